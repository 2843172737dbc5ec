"""nbdkit alone: a file of the media over NBD, in one copy. No peer but the bound of what NBD allows here."""

import bed
import load
from system import System, VOLUME_BYTES, first_line


class NbdkitFile(System):
    """One file, one copy."""

    name = "nbdkit-file"
    title = "nbdkit, a file over NBD, 1 copy"
    copies = 1
    packages = ["nbdkit"]
    programs = ["nbdkit"]
    media_bytes = VOLUME_BYTES
    unequal = [
        "One copy on this machine: there is no replication, no second process and no network behind NBD.",
        "It keeps no checksums. Blocks are overwritten in place, so a crash can tear them.",
        "An upper bound of what a server over NBD reaches with this client, not a storage system.",
    ]

    def version(self):
        return first_line(self.place.run(["nbdkit", "--version"]))

    def start(self):
        disk = bed.free_file(self.place.folder / "disk", VOLUME_BYTES)
        self._serve(["file", disk])
        return load.nbd(self.place.socket)

    def _serve(self, plugin):
        self.place.daemon(["nbdkit", "--foreground", "--exit-with-parent", "--unix", self.place.socket, *plugin])
        self.place.await_socket()


class NbdkitMemory(NbdkitFile):
    """Memory of the server, one copy."""

    name = "nbdkit-memory"
    title = "nbdkit, its own memory over NBD, 1 copy"
    media_bytes = 0
    unequal = [
        "One copy in the server's memory, lost with its process: there is no replication and no medium.",
        "It keeps no checksums. Blocks are overwritten in place.",
        "An upper bound of what a server over NBD reaches with this client, not a storage system.",
    ]

    def start(self):
        self._serve(["memory", str(VOLUME_BYTES)])
        return load.nbd(self.place.socket)
