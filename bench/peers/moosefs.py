"""MooseFS: a master, two chunk servers, and two copies of what is on its FUSE mount: one file as a volume, or all that a file system holds.

Each chunk server has a tmpfs of its own: what is free on a file system it takes for its own space, and of two servers on
one file system the second gets nothing. By default all its processes give themselves the priority -19, before all others of the
machine; here they have that of the runner, as all systems have.
"""

import os

import bed
import load
from system import FileSystem, VOLUME_BYTES, first_line

# The disk, and so much free space that a server still gets new chunks.
CHUNK_SERVER_BYTES = VOLUME_BYTES + 2048 * load.MIB

EXPORTS = "* / rw,alldirs,admin,maproot=0:0\n"
MASTER = """
DATA_PATH = {folder}/master
EXPORTS_FILENAME = {folder}/mfsexports.cfg
TOPOLOGY_FILENAME = {folder}/mfstopology.cfg
WORKING_USER = root
WORKING_GROUP = root
NICE_LEVEL = {nice}
MATOML_LISTEN_HOST = {address}
MATOCS_LISTEN_HOST = {address}
MATOCL_LISTEN_HOST = {address}
"""
CHUNK_SERVER = """
DATA_PATH = {folder}/chunk-{number}
HDD_CONF_FILENAME = {folder}/mfshdd-{number}.cfg
WORKING_USER = root
WORKING_GROUP = root
NICE_LEVEL = {nice}
MASTER_HOST = {address}
BIND_HOST = {address}
CSSERV_LISTEN_HOST = {address}
CSSERV_LISTEN_PORT = {port}
HDD_LEAVE_SPACE_DEFAULT = 64MiB
"""


class MooseFs(FileSystem):
    """Reached through its FUSE mount, which is the only client that it has; here one file of it, as a volume."""

    name = "moosefs"
    title = "MooseFS, a file in 2 copies, by its FUSE mount"
    copies = 2
    packages = ["moosefs-master", "moosefs-chunkserver", "moosefs-client"]
    programs = ["mfsmaster", "mfschunkserver", "mfsmount", "mfssetgoal"]
    needed_files = ["/dev/fuse"]
    media_bytes = 2 * VOLUME_BYTES + 256 * load.MIB
    unequal = [
        "A file system, not a block store; fio reads and writes its FUSE mount with direct I/O, and there is no hop over NBD.",
        "Its client acknowledges writes when they are in its own memory; so fio syncs after each of them (fsync), which waits for"
        " both chunk servers. Meanwhile fio begins nothing new, so there is less in flight than the depth says: see moosefs-cached.",
        *(shared := [
            "It keeps checksums of blocks of 64 KiB, made by chunk servers; a write of 4 KiB reads such a block to make its new one.",
            "The chunk servers pass writes on from one to the next.",
            "Its processes run at the priority of all others, not before them (nice -19) as they come.",
        ]),
    ]
    durable_writes = ["--fsync=1"]
    master_options = ""  # further lines of the master's configuration

    def version(self):
        return "MooseFS " + first_line(self.place.run(["dpkg-query", "-W", "-f", "${Version}", "moosefs-master"]))

    def start(self):
        return [*load.file(self._start_and_mount() / "disk"), *self.durable_writes]

    def _start_and_mount(self):
        folder, run, nice = self.place.folder, self.place.run, os.getpriority(os.PRIO_PROCESS, 0)
        (folder / "mfsexports.cfg").write_text(EXPORTS, encoding="utf-8")
        (folder / "mfstopology.cfg").write_text("", encoding="utf-8")
        master = MASTER.format(folder=folder, address=bed.ADDRESS, nice=nice) + self.master_options
        (folder / "mfsmaster.cfg").write_text(master, encoding="utf-8")
        for name in ("master", "chunk-0", "chunk-1", "hdd-0", "hdd-1"):
            (folder / name).mkdir()
        # What a master begins with that never had a file: the words are the format's.
        (folder / "master" / "metadata.mfs").write_bytes(b"MFSM NEW")
        self.place.daemon(["mfsmaster", "-f", "-c", folder / "mfsmaster.cfg", "start"])
        for number in range(2):
            run(["mount", "-t", "tmpfs", "-o", f"size={CHUNK_SERVER_BYTES}", "tmpfs", folder / f"hdd-{number}"])
            (folder / f"mfshdd-{number}.cfg").write_text(f"{folder}/hdd-{number}\n", encoding="utf-8")
            configuration = folder / f"mfschunkserver-{number}.cfg"
            text = CHUNK_SERVER.format(folder=folder, number=number, address=bed.ADDRESS, nice=nice, port=9422 + 10 * number)
            configuration.write_text(text, encoding="utf-8")
            self.place.daemon(["mfschunkserver", "-f", "-c", configuration, "start"])
        self.place.await_port(9421, bed.ADDRESS)
        mount = self.serve_mount(["mfsmount", "-f", "-H", bed.ADDRESS, "-o", f"mfsnice={nice}", self.mount])
        run(["mfssetgoal", "2", mount])
        # Chunk servers register some seconds after the master is up; until then writes fail, or get one copy.
        self.place.await_that("two copies", lambda: self._has_two_copies(mount / "try"))
        return mount

    def _has_two_copies(self, file):
        self.place.run(["timeout", "10", "dd", "if=/dev/zero", f"of={file}", "bs=64k", "count=1", "conv=fsync"])
        return "2 copies" in self.place.run(["mfscheckfile", file])


class MooseFsCached(MooseFs):
    """As it comes: writes go on behind the back of whoever wrote."""

    name = "moosefs-cached"
    title = "MooseFS, a file in 2 copies, by its FUSE mount, writes not durable"
    unequal = [
        "Writes are not durable when they are acknowledged: they are in the memory of MooseFS's client, and lost with it.",
        "A file system, not a block store; fio reads and writes its FUSE mount with direct I/O, and there is no hop over NBD.",
        *MooseFs.shared,
    ]
    durable_writes = []


class MooseFsMounted(MooseFs):
    """The whole file system."""

    title = "MooseFS, 2 copies, by its FUSE mount"
    unequal = [
        "Its client acknowledges direct writes when they are in its own memory; so fio syncs after each of them (fsync), which waits for both"
        " chunk servers. Meanwhile fio begins nothing new, so there is less in flight than the depth says: see moosefs-cached.",
        *(shared_mounted := [
            "All names are in the memory of one master; they are durable in its log on one machine, not in two copies. It syncs the log after each"
            " change (CHANGELOG_SAVE_MODE=2), which is not its default and costs nothing on a tmpfs.",
            "Plain writes are in its client's memory first, as with Weft; but `close` waits for the chunk servers.",
            "Mounts see what others have done after a second (caches of attributes and names); with Weft at once.",
            "Removed files go at once instead of after a day (trash time 0), and their chunks faster than by default: there is no room for them.",
            *MooseFs.shared,
        ]),
    ]
    master_options = """CHANGELOG_SAVE_MODE = 2
CHUNKS_SOFT_DEL_LIMIT = 1000
CHUNKS_HARD_DEL_LIMIT = 2000
"""

    def start(self):
        mount = self._start_and_mount()
        self.place.run(["mfssettrashtime", "0", mount])
        return mount


class MooseFsMountedCached(MooseFsMounted):
    """As it comes: direct writes go on behind the back of whoever wrote."""

    name = "moosefs-cached"
    title = "MooseFS, 2 copies, by its FUSE mount, direct writes not durable"
    unequal = [
        "Direct writes are not durable when they are acknowledged: they are in the memory of MooseFS's client, and lost with it.",
        *MooseFsMounted.shared_mounted,
    ]
    durable_writes = []
