"""What every system of the comparison has: its name, its packages, what is not equal about it, how it starts.

One file per system derives from `System`; `run.py` lists them. Nothing here starts anything.
"""

import os
import shutil

import load

# The same for all. The volume, or the file of a mounted file system, fits into any peer's caches as well as ours: all media are memory anyway.
VOLUME_BYTES = 512 * load.MIB

# What the small files of a comparison take of each copy, at most: 20,000 in an archive, twice where the old ones go late.
SMALL_FILES_BYTES = 512 * load.MIB

# Names where programs for administrators are that not everybody has on the PATH.
ADMIN_PATHS = "/usr/sbin:/sbin"


def find(program):
    """Where a program is; None if it is not installed."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{ADMIN_PATHS}")


class System:
    """A system under test. Its class says what is known before it runs; an object is one that runs in a bed."""

    name = ""  # as it is given to --peer, and heads its column
    title = ""  # in words
    copies = 0
    packages = []  # Debian's
    programs = []  # that have to be there for it to run
    needed_files = []  # further signs that it is complete: globs of files
    unequal = []  # what is not as it is with Weft; full sentences
    media_bytes = 0  # how much of the media it takes at most

    def __init__(self, place):
        self.place = place

    @classmethod
    def missing(cls):
        """What is not installed of it."""
        import glob
        return [p for p in cls.programs if not find(p)] + [p for p in cls.needed_files if not glob.glob(p)]

    def version(self):
        """One line."""
        raise NotImplementedError

    def start(self):
        """Brings the system up, with a volume of `VOLUME_BYTES`. Returns fio's options to reach it."""
        raise NotImplementedError

    def fio_environment(self):
        """What fio's environment needs besides."""
        return {}

    def stop(self):
        """Ends it, and frees its media."""
        self.place.stop()


class FileSystem(System):
    """One that is mounted, in a folder of its place."""

    durable_writes = []  # fio's options by which a direct write is on all copies when it is acknowledged, if it would not be

    def __init__(self, place):
        super().__init__(place)
        self.mount = place.folder / "mount"

    def start(self):
        """Brings the system up, and mounts its file system. Returns the folder."""
        raise NotImplementedError

    def serve_mount(self, command):
        """Starts the daemon that serves the mount, and waits until it does."""
        self.mount.mkdir()
        self.place.daemon(command)
        self.place.await_that("the mount", self.mount.is_mount)
        return self.mount


def first_line(text):
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "unknown")
