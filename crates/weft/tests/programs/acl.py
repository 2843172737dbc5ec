"""Access control lists as the kernel's own file systems have them: the same is done in a folder of Weft and in one of theirs, and the
permissions and lists of all that is made are compared, through another mount.

    acl.py FOLDER THE-SAME-FOLDER ORACLE STEPS [SEED]

ORACLE: an empty folder of a file system that has access control lists, such as tmpfs. Ends with 1 and says what differs.
"""

import errno
import os
import random
import struct
import sys

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
OWNER, USER, OWNER_GROUP, GROUP, MASK, OTHERS = 1, 2, 4, 8, 16, 32
NOBODY = 0xFFFFFFFF


def any_list(dice):
    """A list that makes sense, or one time in eight none."""
    perm = lambda: dice.randrange(8)
    entries = [(OWNER, perm(), NOBODY)]
    names = dice.randrange(3)
    entries += [(USER, perm(), 1000 + n) for n in range(names)] + [(OWNER_GROUP, perm(), NOBODY)]
    entries += [(GROUP, perm(), 2000 + n) for n in range(names // 2)]
    if names or dice.randrange(4) == 0:
        entries.append((MASK, perm(), NOBODY))
    entries.append((OTHERS, perm(), NOBODY))
    if dice.randrange(8) == 0:
        entries.pop(dice.randrange(len(entries)))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def outcome(work):
    """What a call came to."""
    try:
        return work() or 0
    except OSError as error:
        return errno.errorcode[error.errno]


def create(path, mode):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))


class Folders:
    """The same in two places."""

    def __init__(self, folder, oracle, dice):
        self.places, self.dice, self.made, self.folders, self.names = [folder, oracle], dice, [""], [""], 0

    def both(self, what, work):
        """Does something in both places, and compares what came of it."""
        said = [outcome(lambda place=place: work(place)) for place in self.places]
        if said[0] != said[1]:
            raise SystemExit(f"{what}: {said[0]}, expected {said[1]}")
        return said[0] == 0

    def step(self):
        dice = self.dice
        kind = dice.choice(["create", "create", "mkdir", "mkfifo", "symlink", "chmod", "access", "default", "default", "remove", "open-chmod"])
        name = dice.choice(self.made)
        mode = dice.choice([0o777, 0o666, 0o640, 0o2755, 0o1777, dice.randrange(0o10000)])
        if kind in ("create", "mkdir", "mkfifo", "symlink"):
            self.names += 1
            name = f"{dice.choice(self.folders)}/{self.names}"
            os.umask(dice.choice([0, 0o022, 0o077, 0o777]))
            make = {"create": create, "mkdir": os.mkdir, "mkfifo": os.mkfifo, "symlink": lambda path, _: os.symlink("x", path)}[kind]
            if self.both(f"{kind} {name} {mode:o}", lambda place: make(place + name, mode)) and kind != "symlink":
                self.made.append(name)
                if kind == "mkdir":
                    self.folders.append(name)
        elif kind == "chmod":
            self.both(f"chmod {mode:o}", lambda place: os.chmod(place + name, mode))
        elif kind == "open-chmod":
            value = any_list(dice)

            def change(place):
                file = os.open(place + name, os.O_RDONLY | os.O_NONBLOCK)
                try:
                    os.fchmod(file, mode)
                    os.setxattr(file, ACCESS, value)
                    os.fchmod(file, mode >> 3 & 0o777)
                finally:
                    os.close(file)
            self.both("changes of an open file", change)
        elif kind == "remove":
            which = dice.choice([ACCESS, DEFAULT])
            self.both(f"removal of {which}", lambda place: os.removexattr(place + name, which))
        else:
            which, value = ACCESS if kind == "access" else DEFAULT, any_list(dice)
            self.both(f"{which} of {name} {value.hex()}", lambda place: os.setxattr(place + name, which, value))

    def compare(self, other):
        """What another mount shows of everything that was made."""
        for name in self.made:
            seen = []
            for place in (other, self.places[0], self.places[1]):
                path = place + name
                lists = [outcome(lambda path=path, which=which: os.getxattr(path, which)) for which in (ACCESS, DEFAULT)]
                seen.append((oct(os.stat(path).st_mode), *lists))
            if seen[0] != seen[2] or seen[1] != seen[2]:
                raise SystemExit(f"{name}: {seen[0]} and {seen[1]}, expected {seen[2]}")


def main():
    """Does what the arguments say."""
    folder, other, oracle, steps = *sys.argv[1:4], int(sys.argv[4])
    seed = int(sys.argv[5]) if len(sys.argv) > 5 else 1
    folders = Folders(folder, oracle, random.Random(seed))
    for at in folder, oracle:
        os.chmod(at, 0o755)
    for number in range(steps):
        try:
            folders.step()
            if number % 10 == 0:
                folders.compare(other)
        except SystemExit as wrong:
            raise SystemExit(f"seed {seed}, step {number}: {wrong}") from None
    folders.compare(other)
    print("lists agree")


main()
