"""Weft as it is measured here: a manager, two nodes with a drive each, a volume with two copies, served over NBD."""

import os

import bed
import load
from system import System, VOLUME_BYTES, first_line

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
