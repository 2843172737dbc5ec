"""Ceph: a monitor, a manager and two OSDs with BlueStore, and two copies of an RBD image, or of a file system with one metadata server."""

import uuid

import bed
import load
from system import FileSystem, System, VOLUME_BYTES, first_line

# Of one OSD's file: the image, the space that BlueStore takes for its log and its database, and room to allocate from.
OSD_BYTES = 3072 * load.MIB

# The rest is as Ceph comes. Authentication is off and debug logs are off, which is in its favour.
CONFIGURATION = """
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:3300,v1:127.0.0.1:6789]
public network = 127.0.0.0/8
run dir = {folder}/run
admin socket = {folder}/run/$name.asok
log file = {folder}/log-$name
auth cluster required = none
auth service required = none
auth client required = none
# Two copies on two OSDs of one machine; with one of them missing, I/O goes on, as it does with Weft.
osd pool default size = 2
osd pool default min size = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on insecure global id reclaim allowed = false
debug ms = 0/0
debug osd = 0/0
debug bluestore = 0/0
debug bluefs = 0/0
debug bdev = 0/0
debug rocksdb = 0/0
debug mon = 0/0
debug paxos = 0/0
debug auth = 0/0
debug monc = 0/0
debug objecter = 0/0
debug rados = 0/0
debug rbd = 0/0
debug objectcacher = 0/0
debug mds = 0/0
debug client = 0/0
[mon]
mon data = {folder}/mon
[mgr]
mgr data = {folder}/mgr
[mds]
mds data = {folder}/mds
[osd]
osd data = {folder}/osd-$id
osd objectstore = bluestore
# Of these media a request never waits, and Ceph cannot know that they are memory.
bluestore block create = false
[client]
# A cache of the client would acknowledge writes before they are on any OSD.
rbd cache = false
"""


class Ceph(System):
    """The cluster."""

    copies = 2
    media_bytes = 2 * OSD_BYTES + 512 * load.MIB
    shared = [
        "BlueStore in files of the media, with its checksums (CRC-32C, verified by OSDs when they read; not end to end),"
        " its write-ahead log and RocksDB.",
        "Writes go to a primary OSD first, which passes them on; Weft's client writes both copies itself.",
    ]

    def version(self):
        return first_line(self.place.run(["ceph-osd", "--version"]))

    def _start_cluster(self):
        """Brings it up; returns the command `ceph`, and the options by which its tools find it."""
        folder, run = self.place.folder, self.place.run
        fsid = str(uuid.uuid4())
        configuration = folder / "ceph.conf"
        configuration.write_text(CONFIGURATION.format(fsid=fsid, folder=folder), encoding="utf-8")
        for name in ("run", "mon", "mgr", "osd-0", "osd-1"):
            (folder / name).mkdir()
        of = ["--conf", configuration]
        run(["monmaptool", "--create", "--fsid", fsid, "--addv", "a", "[v2:127.0.0.1:3300,v1:127.0.0.1:6789]", folder / "monmap"])
        run(["ceph-mon", *of, "--mkfs", "--id", "a", "--monmap", folder / "monmap"])
        self.place.daemon(["ceph-mon", *of, "--foreground", "--id", "a"])
        ceph = ["ceph", *of, "--connect-timeout", "10"]
        self.place.await_that("Ceph's monitor", lambda: run([*ceph, "status"]))
        self.place.daemon(["ceph-mgr", *of, "--foreground", "--id", "x"])
        for number in range(2):
            bed.free_file(folder / f"osd-{number}" / "block", OSD_BYTES)
            osd_uuid = str(uuid.uuid4())
            run([*ceph, "osd", "new", osd_uuid])
            run(["ceph-osd", *of, "--mkfs", "--id", str(number), "--osd-uuid", osd_uuid])
            self.place.daemon(["ceph-osd", *of, "--foreground", "--id", str(number)])
        self.place.await_that("both OSDs", lambda: "2 up" in run([*ceph, "osd", "stat"]))
        return ceph, of


class CephLibrbd(Ceph):
    """Reached as its own users do: fio links librbd."""

    name = "ceph-librbd"
    title = "Ceph RBD, 2 copies on 2 OSDs, by librbd in fio"
    packages = ["ceph-mon", "ceph-osd", "ceph-mgr", "ceph-common"]
    programs = ["ceph-mon", "ceph-osd", "ceph-mgr", "ceph", "rbd", "monmaptool"]
    unequal = [
        "fio calls librbd directly: the hop over NBD, which Weft has in these figures, is spared.",
        *(shared := [
            *Ceph.shared,
            "Authentication (cephx) and debug logs are off, and the client's cache too, since a write in it is not durable.",
            "32 placement groups, no tuning else. Its OSDs may keep what they read in caches of their own (4 GiB each).",
        ]),
    ]

    def start(self):
        self._create_image()
        return ["--ioengine=rbd", "--clientname=admin", "--pool=rbd", "--rbdname=peers"]

    def fio_environment(self):
        return {"CEPH_CONF": str(self.place.folder / "ceph.conf")}

    def _create_image(self):
        ceph, of = self._start_cluster()
        self.place.run([*ceph, "osd", "pool", "create", "rbd", "32", "32"])
        self.place.run(["rbd", *of, "pool", "init", "rbd"])
        self.place.run(["rbd", *of, "create", "rbd/peers", "--size", f"{VOLUME_BYTES}B", "--image-feature", "layering"])


class CephNbd(CephLibrbd):
    """Reached over NBD, as Weft is here."""

    name = "ceph-nbd"
    title = "Ceph RBD, 2 copies on 2 OSDs, over NBD (qemu-nbd)"
    packages = [*CephLibrbd.packages, "qemu-utils", "qemu-block-extra"]
    programs = [*CephLibrbd.programs, "qemu-nbd"]
    needed_files = ["/usr/lib/*/qemu/block-rbd.so"]
    unequal = ["Its NBD face is qemu-nbd with librbd, in one process.", *CephLibrbd.shared]

    def start(self):
        self._create_image()
        self.place.daemon(["qemu-nbd", "--socket", self.place.socket, "--persistent", "--cache=none", "--image-opts",
                           f"driver=raw,file.driver=rbd,file.pool=rbd,file.image=peers,file.user=admin,file.conf={self.place.folder}/ceph.conf"])
        self.place.await_socket()
        return load.nbd(self.place.socket)

    def fio_environment(self):
        return {}


class CephFs(Ceph, FileSystem):
    """Mounted by its own FUSE client."""

    name = "cephfs"
    title = "CephFS, 2 copies on 2 OSDs, 1 metadata server, by ceph-fuse"
    packages = ["ceph-mon", "ceph-osd", "ceph-mgr", "ceph-mds", "ceph-fuse", "ceph-common"]
    programs = ["ceph-mon", "ceph-osd", "ceph-mgr", "ceph-mds", "ceph-fuse", "ceph", "monmaptool"]
    unequal = [
        "Its metadata server answers before what it did is in its journal on the OSDs; that is durable after fsync, or some seconds. With Weft it"
        " is durable when a call returns.",
        "One metadata server, and none that stands by; with Weft each node serves a part of the names.",
        *Ceph.shared,
        "Plain writes are in its client's memory first, as with Weft; direct writes wait for both OSDs.",
        "Authentication (cephx) and debug logs are off. 32 placement groups for data and 16 for metadata, no tuning else. Its OSDs may keep what they"
        " read in caches of their own (4 GiB each).",
    ]

    def start(self):
        ceph, of = self._start_cluster()
        (self.place.folder / "mds").mkdir()
        for pool, groups in ("data", "32"), ("metadata", "16"):
            self.place.run([*ceph, "osd", "pool", "create", pool, groups, groups])
        self.place.run([*ceph, "fs", "new", "peers", "metadata", "data"])
        self.place.daemon(["ceph-mds", *of, "--foreground", "--id", "a"])
        self.place.await_that("the metadata server", lambda: "up:active" in self.place.run([*ceph, "mds", "stat"]))
        return self.serve_mount(["ceph-fuse", *of, "-f", "-n", "client.admin", self.mount])
