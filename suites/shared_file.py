"""One file through two mounts in turn, compared with a file in memory after each operation.

    shared_file.py FILE THE-SAME-FILE STEPS [SEED]

Ends with 1 and says what differs, and at which step.
"""

import ctypes
import mmap
import os
import random
import sys

SIZE_MAX = 600_000

# Of fallocate(2).
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16

libc = ctypes.CDLL(None, use_errno=True)


def fallocate(file, mode, offset, length):
    if libc.fallocate(file, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


class File:
    """A file by several handles, and what it should hold."""

    def __init__(self, paths, dice):
        self.paths, self.dice, self.holds = paths, dice, bytearray()
        os.close(os.open(paths[0], os.O_CREAT | os.O_EXCL | os.O_RDWR))
        self.handles = [[os.open(path, os.O_RDWR), os.open(path, os.O_RDWR | os.O_APPEND)] for path in paths]

    def grow(self, size):
        self.holds.extend(bytes(max(0, size - len(self.holds))))

    def step(self):
        """One operation through one mount, and a look at what it should have done through the other."""
        mount = self.dice.randrange(2)
        file, appends = self.handles[mount]
        kind = self.dice.choice(["write", "write", "write", "append", "read", "read", "truncate", "punch", "zero", "extend", "map", "copy", "sync",
                                 "reopen"])
        at, length = self.dice.randrange(SIZE_MAX), self.dice.randrange(1, 40_000)
        data = self.dice.randbytes(length)
        if kind == "write":
            assert os.pwrite(file, data, at) == length
            self.grow(at)
            self.holds[at:at + length] = data
        elif kind == "append" and len(self.holds) + length <= SIZE_MAX:
            assert os.write(appends, data) == length
            self.holds.extend(data)
        elif kind == "truncate":
            os.ftruncate(file, at)
            del self.holds[at:]
            self.grow(at)
        elif kind == "punch":
            fallocate(file, KEEP_SIZE | PUNCH_HOLE, at, length)
            end = min(at + length, len(self.holds))
            if at < end:
                self.holds[at:end] = bytes(end - at)
        elif kind == "zero":
            fallocate(file, ZERO_RANGE, at, length)
            self.grow(at + length)
            self.holds[at:at + length] = bytes(length)
        elif kind == "copy":
            self.copy(file, at, length)
        elif kind == "sync":
            self.dice.choice([os.fsync, os.fdatasync])(file)
        elif kind == "extend":
            fallocate(file, 0, at, length)
            self.grow(at + length)
        elif kind == "map" and at + length <= len(self.holds):
            first = at - at % mmap.PAGESIZE
            with mmap.mmap(file, at + length - first, offset=first) as mapped:
                mapped[at - first:] = data
                mapped.flush()
            self.holds[at:at + length] = data
        elif kind == "reopen":
            os.close(file)
            self.handles[mount][0] = os.open(self.paths[mount], os.O_RDWR)
        self.compare(self.dice.randrange(2), at, length)

    def copy(self, file, at, length):
        """Copies within the file, from one place to another that it does not touch."""
        source = self.dice.randrange(SIZE_MAX)
        length = min(length, len(self.holds) - source)
        if length <= 0 or abs(source - at) < length:
            return
        # Kernels do not ask for the size before they copy (docs/files.md).
        os.fstat(file)
        done = 0
        while done < length:
            copied = os.copy_file_range(file, file, length - done, source + done, at + done)
            assert copied > 0
            done += copied
        self.grow(at)
        self.holds[at:at + length] = self.holds[source:source + length]

    def compare(self, mount, at, length):
        """What a mount shows of a part, and of the size."""
        file = self.handles[mount][0]
        size = os.fstat(file).st_size
        if size != len(self.holds):
            raise SystemExit(f"mount {mount} shows {size} bytes, it has {len(self.holds)}")
        found, expected = os.pread(file, length, at), bytes(self.holds[at:at + length])
        if found != expected:
            wrong = next((n for n, pair in enumerate(zip(found, expected)) if pair[0] != pair[1]), min(len(found), len(expected)))
            raise SystemExit(f"mount {mount} shows other bytes from {at + wrong} on ({len(found)} of {len(expected)} bytes)")


def main():
    """Does what the arguments say."""
    paths, steps = sys.argv[1:3], int(sys.argv[3])
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    file = File(paths, random.Random(seed))
    for number in range(steps):
        try:
            file.step()
        except SystemExit as wrong:
            raise SystemExit(f"seed {seed}, step {number}: {wrong}") from None
    file.compare(0, 0, SIZE_MAX * 2)
    file.compare(1, 0, SIZE_MAX * 2)
    print(f"seed {seed}")


main()
