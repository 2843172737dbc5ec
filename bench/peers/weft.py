"""Weft as it is measured here: a manager, two nodes with a drive each, and two copies: a volume that is served over NBD, or a file system
that is mounted."""

import os
import uuid

import bed
import load
from system import FileSystem, System, VOLUME_BYTES, first_line

DRIVE_BYTES = 2048 * load.MIB


class Weft(System):
    """Two nodes, each with a drive in a file on the media."""

    name = "weft"
    title = "Weft, 2 copies on 2 nodes, over NBD"
    copies = 2
    media_bytes = 2 * DRIVE_BYTES + 256 * load.MIB

    def __init__(self, place):
        super().__init__(place)
        self.binary = os.environ["WEFT"]
        self.fabric = place.folder / "fabric"

    def version(self):
        return first_line(self.place.run([self.binary, "--version"]))

    def start(self):
        self.place.run([self.binary, "up", "--dir", self.fabric, "--nodes", "2", "--drives", "1",
                        "--drive-size", str(DRIVE_BYTES), "--detach"])
        for drive in self.fabric.glob("nodes/*/drive-*.img"):
            bed.reserve(drive, DRIVE_BYTES)
        self.place.run([self.binary, "--fabric", self.fabric, "volume", "create", "peers",
                        "--size", str(VOLUME_BYTES), "--copies", "2"])
        self.place.daemon([self.binary, "--fabric", self.fabric, "volume", "serve", "peers",
                           "--nbd", f"unix:{self.place.socket}",
                           # The nodes stand for machines of their own, as those of the others do.
                           "--no-shared-memory"])
        self.place.await_socket()
        return load.nbd(self.place.socket)


class WeftMounted(Weft, FileSystem):
    """The same with a file system."""

    title = "Weft, 2 copies on 2 nodes, mounted"

    def start(self):
        folder, run, manager, fabric_id = self.place.folder, self.place.run, "127.0.0.1:4800", str(uuid.uuid4())
        run([self.binary, "fabric", "init", folder / "map.redb", "--fabric-id", fabric_id])
        self.place.daemon([self.binary, "manager", "run", "--store", folder / "map.redb", "--listen", manager])
        self.place.await_port(4800)
        weft = [self.binary, "--fabric", manager]
        for number in range(2):
            drive = bed.free_file(folder / f"drive-{number}", DRIVE_BYTES)
            run([self.binary, "drive", "format", drive, "--fabric-id", fabric_id])
            self.place.daemon([self.binary, "node", "run", "--name", f"node-{number + 1}", "--manager", manager,
                               "--listen", f"127.0.0.1:{4801 + number}", "--drive", drive,
                               # The nodes stand for machines of their own, as those of the others do: for each other, and for the mount.
                               "--no-shared-memory"])
        self.place.await_that("a file system on both nodes", lambda: run([*weft, "fs", "create", "peers", "--copies", "2"]))
        return self.serve_mount([*weft, "mount", "peers", self.mount, "--foreground"])
