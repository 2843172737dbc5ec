"""MooseFS: a master, two chunk servers, and a file with two copies on its FUSE mount.

Each chunk server has a tmpfs of its own: what is free on a file system it takes for its own space, and of two servers on
one file system the second gets nothing.
"""

import bed
import load
from system import System, VOLUME_BYTES, first_line

# The disk, and so much free space that a server still gets new chunks.
CHUNK_SERVER_BYTES = VOLUME_BYTES + 2048 * load.MIB

EXPORTS = "* / rw,alldirs,admin,maproot=0:0\n"
MASTER = """
DATA_PATH = {folder}/master
EXPORTS_FILENAME = {folder}/mfsexports.cfg
TOPOLOGY_FILENAME = {folder}/mfstopology.cfg
WORKING_USER = root
WORKING_GROUP = root
MATOML_LISTEN_HOST = {address}
MATOCS_LISTEN_HOST = {address}
MATOCL_LISTEN_HOST = {address}
"""
CHUNK_SERVER = """
DATA_PATH = {folder}/chunk-{number}
HDD_CONF_FILENAME = {folder}/mfshdd-{number}.cfg
WORKING_USER = root
WORKING_GROUP = root
MASTER_HOST = {address}
BIND_HOST = {address}
CSSERV_LISTEN_HOST = {address}
CSSERV_LISTEN_PORT = {port}
HDD_LEAVE_SPACE_DEFAULT = 64MiB
"""


class MooseFs(System):
    """Reached through its FUSE mount, which is the only client that it has."""

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
        ]),
    ]
    sync = ["--fsync=1"]

    def version(self):
        return "MooseFS " + first_line(self.place.run(["dpkg-query", "-W", "-f", "${Version}", "moosefs-master"]))

    def start(self):
        folder, run = self.place.folder, self.place.run
        (folder / "mfsexports.cfg").write_text(EXPORTS, encoding="utf-8")
        (folder / "mfstopology.cfg").write_text("", encoding="utf-8")
        (folder / "mfsmaster.cfg").write_text(MASTER.format(folder=folder, address=bed.ADDRESS), encoding="utf-8")
        for name in ("master", "mount", "chunk-0", "chunk-1", "hdd-0", "hdd-1"):
            (folder / name).mkdir()
        # What a master begins with that never had a file: the words are the format's.
        (folder / "master" / "metadata.mfs").write_bytes(b"MFSM NEW")
        self.place.daemon(["mfsmaster", "-f", "-c", folder / "mfsmaster.cfg", "start"])
        for number in range(2):
            run(["mount", "-t", "tmpfs", "-o", f"size={CHUNK_SERVER_BYTES}", "tmpfs", folder / f"hdd-{number}"])
            (folder / f"mfshdd-{number}.cfg").write_text(f"{folder}/hdd-{number}\n", encoding="utf-8")
            configuration = folder / f"mfschunkserver-{number}.cfg"
            text = CHUNK_SERVER.format(folder=folder, number=number, address=bed.ADDRESS, port=9422 + 10 * number)
            configuration.write_text(text, encoding="utf-8")
            self.place.daemon(["mfschunkserver", "-f", "-c", configuration, "start"])
        self.place.await_port(9421, bed.ADDRESS)
        mount = folder / "mount"
        self.place.daemon(["mfsmount", "-f", "-H", bed.ADDRESS, str(mount)])
        self.place.await_that("the mount", mount.is_mount)
        run(["mfssetgoal", "2", mount])
        # Chunk servers register some seconds after the master is up; until then writes fail, or get one copy.
        self.place.await_that("two copies", lambda: self._has_two_copies(mount / "try"))
        return ["--ioengine=libaio", "--direct=1", *self.sync, f"--filename={mount}/disk"]

    def _has_two_copies(self, file):
        self.place.run(["timeout", "10", "dd", "if=/dev/zero", f"of={file}", "bs=64k", "count=1", "conv=fsync"])
        return "2 copies" in self.place.run(["mfscheckfile", file])

    def stop(self):
        for name in ("mount", "hdd-0", "hdd-1"):
            folder = self.place.folder / name
            if folder.is_mount():
                self.place.run(["umount", "-l", folder])
        super().stop()


class MooseFsCached(MooseFs):
    """As it comes: writes go on behind the back of whoever wrote."""

    name = "moosefs-cached"
    title = "MooseFS, a file in 2 copies, by its FUSE mount, writes not durable"
    unequal = [
        "Writes are not durable when they are acknowledged: they are in the memory of MooseFS's client, and lost with it.",
        "A file system, not a block store; fio reads and writes its FUSE mount with direct I/O, and there is no hop over NBD.",
        *MooseFs.shared,
    ]
    sync = []
