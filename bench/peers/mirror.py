"""A mirror made by the client out of ordinary parts: QEMU's quorum driver over two NBD servers."""

import json

import bed
import load
from system import System, VOLUME_BYTES, first_line


class QemuMirror(System):
    """Two nbdkit servers with a file each on the media, over TCP; qemu-nbd writes to both and serves the result."""

    name = "qemu-mirror"
    title = "QEMU's quorum over two NBD servers, 2 copies"
    copies = 2
    packages = ["qemu-utils", "nbdkit"]
    programs = ["qemu-nbd", "nbdkit"]
    media_bytes = 2 * VOLUME_BYTES
    ports = [10901, 10902]  # of the bed's own network
    unequal = [
        "It has no manager, no membership and no resync: after the failure of one side nothing says which copy is right.",
        "A write that was under way in a crash can be in one copy only, and nothing finds or repairs that.",
        "It keeps no checksums; reads come from the first copy only (read-pattern=fifo).",
        "Blocks are overwritten in place on both sides.",
    ]

    def version(self):
        return ", ".join(first_line(self.place.run([p, "--version"])) for p in ("qemu-nbd", "nbdkit"))

    def start(self):
        for index, port in enumerate(self.ports):
            disk = bed.free_file(self.place.folder / f"disk-{index}", VOLUME_BYTES)
            self.place.daemon(["nbdkit", "--foreground", "--exit-with-parent", "--ipaddr", "127.0.0.1", "--port", str(port),
                               # qemu-nbd asks before each read which parts are holes, and a tmpfs finds that out page by page.
                               "--filter=noextents", "file", disk])
        sides = [{"driver": "nbd", "server": {"type": "inet", "host": "127.0.0.1", "port": str(port)}} for port in self.ports]
        for port in self.ports:
            self.place.await_port(port)
        # One good answer is enough, as a mirror that goes on with one side needs it; writes wait for both all the same.
        tree = {"driver": "raw", "file": {"driver": "quorum", "vote-threshold": 1, "read-pattern": "fifo", "children": sides}}
        self.place.daemon(["qemu-nbd", "--socket", self.place.socket, "--persistent", "--cache=none", "json:" + json.dumps(tree)])
        self.place.await_socket()
        return load.nbd(self.place.socket)
