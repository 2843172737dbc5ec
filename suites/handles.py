"""Files by their handles, as a server of NFS opens them: a handle from one mount opens the same file on the other one.

    handles.py FOLDER THE-SAME-FOLDER

The kernel of the other mount does not know such a file, and asks the file system for it by its number alone; for the way from a directory
up to the root it asks for parents. A handle of what was removed is stale.
"""

import ctypes
import errno
import os
import sys

HANDLE_BYTES_MAX = 128

libc = ctypes.CDLL(None, use_errno=True)


class Handle(ctypes.Structure):
    """`struct file_handle` of open_by_handle_at(2)."""
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("handle", ctypes.c_ubyte * HANDLE_BYTES_MAX)]


def handle_of(path):
    """The handle of what a path names."""
    handle, mount = Handle(HANDLE_BYTES_MAX), ctypes.c_int()
    if libc.name_to_handle_at(-100, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount), 0) != 0:
        raise OSError(ctypes.get_errno(), f"name_to_handle_at {path}: {os.strerror(ctypes.get_errno())}")
    return handle


def open_handle(mount, handle, flags):
    """Opens a handle on the file system of a descriptor."""
    file = libc.open_by_handle_at(mount, ctypes.byref(handle), flags)
    if file < 0:
        raise OSError(ctypes.get_errno(), f"open_by_handle_at: {os.strerror(ctypes.get_errno())}")
    return file


def check(is_right, what):
    """Ends with what is wrong, if it is."""
    if not is_right:
        raise SystemExit(what)


def main():
    """Does what the arguments say."""
    one, other = sys.argv[1:3]
    mounts = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (one, other)]
    deep = "/".join(f"d{n}" for n in range(12))
    os.makedirs(f"{one}/{deep}")
    handles = {}
    for n in range(100):
        name = f"{deep}/f{n}"
        with open(f"{one}/{name}", "wb") as file:
            file.write(name.encode() * (n + 1))
        handles[name] = handle_of(f"{one}/{name}")
    for name, handle in handles.items():
        for mount in mounts:
            file = open_handle(mount, handle, os.O_RDWR)
            expected = name.encode() * (int(name.rpartition("f")[2]) + 1)
            check(os.pread(file, len(expected) + 1, 0) == expected, f"{name}: other bytes by its handle")
            os.close(file)

    # A directory is connected with its parents, up to the root.
    folder = open_handle(mounts[1], handle_of(f"{one}/{deep}"), os.O_RDONLY | os.O_DIRECTORY)
    check(sorted(os.listdir(folder)) == sorted(name.rpartition("/")[2] for name in handles), f"{deep}: other names by its handle")
    check(os.readlink(f"/proc/self/fd/{folder}") == os.path.realpath(f"{other}/{deep}"), f"{deep}: another path by its handle")
    check(os.path.samestat(os.stat("..", dir_fd=folder), os.stat(f"{other}/{os.path.dirname(deep)}")), f"{deep}: another parent")

    # It is the inode's, whatever its name.
    name, handle = next(iter(handles.items()))
    os.rename(f"{other}/{name}", f"{other}/moved")
    file = open_handle(mounts[1], handle, os.O_RDWR)
    os.pwrite(file, b"moved", 0)
    os.close(file)
    with open(f"{one}/moved", "rb") as moved:
        check(moved.read(5) == b"moved", "what was written by a handle after a rename is not in the file")

    # What is gone, is gone for both, also when new files were made since.
    os.unlink(f"{one}/moved")
    for n in range(100):
        with open(f"{one}/new{n}", "wb"):
            pass
    for mount in mounts:
        try:
            file = open_handle(mount, handle, os.O_RDWR)
        except OSError as error:
            check(error.errno == errno.ESTALE, f"a handle of a removed file fails with {error}")
            continue
        raise SystemExit(f"a handle of a removed file opens {os.readlink(f'/proc/self/fd/{file}')}")
    print("all handles are right")


main()
