"""Uses an export of NFS, and compares what it does with what two mounts of the exported file system show.

    nfs_client.py 3|4 EXPORT FOLDER THE-SAME-FOLDER FILES MEBIBYTES
    nfs_client.py 3 EXPORT FOLDER THE-SAME-FOLDER

The second form holds a file open while the server is killed and started again: it says `open`, and goes on when it reads a line.
The server is on this machine; FOLDER is what it exports, the other one the same folder on another mount. The client is libnfs: the kernel's
client is not in every kernel.
"""

import ctypes
import errno
import fcntl
import hashlib
import os
import stat
import sys

# Bytes of one request. libnfs 4.0 cannot encode larger writes by NFS 4, so it also writes less there.
READ_BYTES = 1 << 20
WRITE_BYTES = {3: 1 << 18, 4: 3584}
WRITES_ONE_OF = {3: 1, 4: 16}

# Those versions of the library's interface that this program knows.
LIBRARIES = ["libnfs.so.13", "libnfs.so.14"]

# `enum nfs4_lock_op`.
LOCK, TRY, UNLOCK = 0, 1, 2


class Name(ctypes.Structure):
    """The beginning of `struct nfsdirent`."""


Name._fields_ = [("next", ctypes.POINTER(Name)), ("name", ctypes.c_char_p), ("inode", ctypes.c_uint64)]


class Attributes(ctypes.Structure):
    """`struct nfs_stat_64`."""
    _fields_ = [(name, ctypes.c_uint64) for name in ("dev", "ino", "mode", "nlink", "uid", "gid", "rdev", "size", "blksize", "blocks",
                                                     "atime", "mtime", "ctime", "atime_nsec", "mtime_nsec", "ctime_nsec", "used")]


class Nfs:
    """A mounted export. Each call raises what the server has said."""

    def __init__(self, version, export):
        self.library, self.version = library(), version
        self.library.nfs_init_context.restype = ctypes.c_void_p
        self.library.nfs_get_error.restype = ctypes.c_char_p
        self.library.nfs_readdir.restype = ctypes.POINTER(Name)
        self.context = ctypes.c_void_p(self.library.nfs_init_context())
        self.call("set_version", version)
        # What other mounts have done is to be seen at once.
        self.library.nfs_set_dircache.restype = None
        self.library.nfs_set_dircache(self.context, 0)
        self.call("mount", b"127.0.0.1", export.encode())

    def call(self, name, *words):
        """Calls `nfs_name` of the library."""
        done = getattr(self.library, f"nfs_{name}")(self.context, *words)
        if done < 0:
            what = [name] + [os.fsdecode(word) for word in words if isinstance(word, bytes) and len(word) < 256]
            raise OSError(-done, f"{' '.join(what)}: {os.fsdecode(self.library.nfs_get_error(self.context))}")
        return done

    def open(self, path, flags):
        """Opens a file, which has to be there."""
        file = ctypes.c_void_p()
        self.call("open", path.encode(), flags, ctypes.byref(file))
        return file

    def create(self, path):
        """Makes a file and opens it."""
        file = ctypes.c_void_p()
        self.call("open2", path.encode(), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644, ctypes.byref(file))
        return file

    def write(self, file, data, at=0):
        """Writes all of the data."""
        for begin in range(0, len(data), WRITE_BYTES[self.version]):
            piece = data[begin:begin + WRITE_BYTES[self.version]]
            done = self.call("pwrite", file, ctypes.c_uint64(at + begin), ctypes.c_uint64(len(piece)), piece)
            check(done == len(piece), f"{done} of {len(piece)} bytes written")

    def read(self, path):
        """All bytes of a file."""
        file, held, found = self.open(path, os.O_RDONLY), bytearray(), ctypes.create_string_buffer(READ_BYTES)
        while length := self.call("pread", file, ctypes.c_uint64(len(held)), ctypes.c_uint64(READ_BYTES), found):
            held += memoryview(found)[:length]
        self.call("close", file)
        return held

    def stat(self, path):
        """Attributes of a path."""
        found = Attributes()
        self.call("stat64", path.encode(), ctypes.byref(found))
        return found

    def names(self, path):
        """Names in a directory."""
        directory, found = ctypes.c_void_p(), set()
        self.call("opendir", path.encode(), ctypes.byref(directory))
        while entry := self.library.nfs_readdir(self.context, directory):
            found.add(entry.contents.name.decode())
        self.library.nfs_closedir(self.context, directory)
        return found - {".", ".."}


def library():
    """libnfs, in a version whose calls are known."""
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            pass
    raise SystemExit(f"none of {', '.join(LIBRARIES)} is installed")


def check(is_right, what):
    """Ends with what is wrong, if it is."""
    if not is_right:
        raise SystemExit(what)


def digest(path):
    """What a mount shows of a file, in short."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def content(number):
    """What a small file holds: up to 20 KiB, many of them less."""
    return f"{number}.".encode() * (number * number % 5000)


def large(nfs, folders, mebibytes):
    """A file written by NFS, read everywhere, changed by the other mount, read by NFS; another one as large by the other mount."""
    data = numbered(max(1, mebibytes // WRITES_ONE_OF[nfs.version]))
    file = nfs.create("/large")
    nfs.write(file, bytes(data))
    nfs.call("fsync", file)
    nfs.call("close", file)
    for folder in folders:
        check(digest(f"{folder}/large") == hashlib.sha256(data).hexdigest(), f"{folder}/large holds other bytes than NFS has written")
    check(nfs.read("/large") == data, "NFS reads other bytes than it has written")
    changed = os.urandom(700_001)
    with open(f"{folders[1]}/large", "r+b") as file:
        file.seek(123_457)
        file.write(changed)
    data[123_457:123_457 + len(changed)] = changed
    check(nfs.read("/large") == data, "NFS reads other bytes than the other mount has written")
    nfs.call("truncate", b"/large", ctypes.c_uint64(100_001))
    check([os.stat(f"{folder}/large").st_size for folder in folders] == [100_001] * 2, "a size that NFS has set is not seen")
    check(digest(f"{folders[1]}/large") == hashlib.sha256(data[:100_001]).hexdigest(), "other bytes after NFS has made the file shorter")
    data = numbered(mebibytes)
    with open(f"{folders[1]}/larger", "wb") as file:
        file.write(data)
    check(nfs.read("/larger") == data, "NFS reads other bytes of a new file than the other mount has written")


def numbered(mebibytes):
    """So many bytes, no two pieces of them alike."""
    data = bytearray(os.urandom(1 << 20) * mebibytes)
    for n in range(0, len(data), 4096):
        data[n:n + 8] = n.to_bytes(8, "big")
    return data


def names(nfs, folders, files):
    """Small files made by NFS, then each a third renamed by NFS, removed by NFS, renamed by the other mount."""
    nfs.call("mkdir", b"/many")
    for n in range(files):
        file = nfs.create(f"/many/{n}")
        nfs.write(file, content(n))
        nfs.call("close", file)
    expected = {str(n) for n in range(files)}
    compare(nfs, folders, expected)
    for n in range(files):
        if n % 100 == 99:
            # Opening a file renews the lease of NFS 4. libnfs does not do that by itself.
            nfs.read(f"/many/{n}")
        expected.remove(str(n))
        if n % 3 == 0:
            nfs.call("rename", f"/many/{n}".encode(), f"/many/{n}.nfs".encode())
            expected.add(f"{n}.nfs")
        elif n % 3 == 1:
            nfs.call("unlink", f"/many/{n}".encode())
        else:
            os.rename(f"{folders[1]}/many/{n}", f"{folders[1]}/many/{n}.mount")
            expected.add(f"{n}.mount")
    compare(nfs, folders, expected)


def compare(nfs, folders, expected):
    """Names and bytes, as NFS and both mounts show them."""
    for shows, who in (nfs.names("/many"), "NFS"), *((set(os.listdir(f"{folder}/many")), folder) for folder in folders):
        check(shows == expected, f"{who} shows other names: {sorted(shows ^ expected)[:10]} differ")
    for name in expected:
        with open(f"{folders[1]}/many/{name}", "rb") as file:
            check(file.read() == content(int(name.partition(".")[0])), f"the other mount shows other bytes of {name}")
        check(nfs.read(f"/many/{name}") == content(int(name.partition(".")[0])), f"NFS shows other bytes of {name}")


def kinds(nfs, folders):
    """Links, modes, and errors."""
    file = nfs.create("/file")
    nfs.write(file, b"held")
    nfs.call("close", file)
    nfs.call("symlink", b"file", b"/symbolic")
    nfs.call("link", b"/file", b"/hard")
    nfs.call("chmod", b"/file", 0o640)
    found = os.stat(f"{folders[1]}/hard")
    check((found.st_nlink, stat.S_IMODE(found.st_mode)) == (2, 0o640), f"the other mount shows {found} of a file with two names")
    check(os.readlink(f"{folders[1]}/symbolic") == "file", "a symbolic link has another target")
    os.chmod(f"{folders[1]}/hard", 0o600)
    check(stat.S_IMODE(nfs.stat("/file").mode) == 0o600, "NFS shows a mode from before a change by another mount")
    os.unlink(f"{folders[1]}/file")
    refused(errno.ENOENT, nfs, "stat64", b"/file", ctypes.byref(Attributes()))
    refused(errno.ENOTEMPTY, nfs, "rmdir", b"/many")
    refused(errno.EEXIST, nfs, "mkdir", b"/many")


def refused(number, nfs, call, *words):
    """Checks that a call fails, and how."""
    try:
        nfs.call(call, *words)
    except OSError as error:
        check(error.errno == number, f"{call} fails, but not with {errno.errorcode[number]}: {error}")
        return
    raise SystemExit(f"{call} {words[0]} has not failed")


def locks(nfs, folders):
    """A lock by NFS holds against the other mount, and the other way round."""
    file = nfs.create("/locked")
    nfs.write(file, bytes(1000))
    nfs.call("close", file)
    file = nfs.open("/locked", os.O_RDWR)
    with open(f"{folders[1]}/locked", "r+b") as other:
        nfs.call("lockf", file, LOCK, ctypes.c_uint64(1000))
        try:
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            raise SystemExit("a lock that NFS holds is given to the other mount")
        nfs.call("lockf", file, UNLOCK, ctypes.c_uint64(1000))
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            nfs.call("lockf", file, TRY, ctypes.c_uint64(1000))
        except OSError:
            pass
        else:
            raise SystemExit("a lock that the other mount holds is given to NFS")
        fcntl.lockf(other, fcntl.LOCK_UN)
    # Not closed: libnfs 4.0 counts a refused lock as none, and the server then refuses its next call for this file.


def remove(nfs, folders, path=""):
    """Removes what is there, by NFS."""
    for name in nfs.names(path or "/"):
        at = f"{path}/{name}"
        if os.path.isdir(folders[1] + at) and not os.path.islink(folders[1] + at):
            remove(nfs, folders, at)
            nfs.call("rmdir", at.encode())
        else:
            nfs.call("unlink", at.encode())
    check(not os.listdir(folders[1] + path), f"the other mount shows {os.listdir(folders[1] + path)} after all was removed")


def held(nfs, folders):
    """Uses a file by the handle that another server has given."""
    file = nfs.create("/held")
    nfs.write(file, b"before")
    print("open", flush=True)
    sys.stdin.readline()
    nfs.write(file, b", after", 6)
    nfs.call("fsync", file)
    nfs.call("close", file)
    with open(f"{folders[1]}/held", "rb") as other:
        check(other.read() == b"before, after", "what was written by a handle from before the server's death is not there")
    nfs.call("unlink", b"/held")


def main():
    """Does what the arguments say."""
    version, export, folders = int(sys.argv[1]), sys.argv[2], sys.argv[3:5]
    nfs = Nfs(version, export)
    if len(sys.argv) == 5:
        return held(nfs, folders)
    files, mebibytes = map(int, sys.argv[5:])
    large(nfs, folders, mebibytes)
    names(nfs, folders, files)
    kinds(nfs, folders)
    if version == 4:
        locks(nfs, folders)
    remove(nfs, folders)
    print("all is as NFS has left it")


main()
