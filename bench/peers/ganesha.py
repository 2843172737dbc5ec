"""NFS in user space: NFS-Ganesha exports a folder of the media, and a file in it is a disk over NBD. One copy."""

import bed
import load
from system import System, VOLUME_BYTES, first_line

CONFIGURATION = """
NFS_CORE_PARAM {{
    Protocols = 3;
    Bind_addr = 127.0.0.1;
    Enable_NLM = false;
    Enable_RQUOTA = false;
}}
EXPORT {{
    Export_Id = 1;
    Path = "{export}";
    Pseudo = "/peers";
    Access_Type = RW;
    Squash = No_Root_Squash;
    Protocols = 3;
    Transports = TCP;
    SecType = sys;
    FSAL {{ Name = VFS; }}
}}
LOG {{ Default_Log_Level = WARN; }}
"""


class Ganesha(System):
    """One server; qemu-nbd links libnfs, since the kernel's client is not in every kernel."""

    name = "nfs-ganesha"
    title = "NFS-Ganesha, a file over NFS 3, 1 copy, over NBD (qemu-nbd)"
    copies = 1
    packages = ["nfs-ganesha", "nfs-ganesha-vfs", "rpcbind", "qemu-utils", "qemu-block-extra"]
    programs = ["ganesha.nfsd", "rpcbind", "qemu-nbd"]
    needed_files = ["/usr/lib/*/qemu/block-nfs.so", "/usr/lib/*/ganesha/libfsalvfs.so"]
    media_bytes = VOLUME_BYTES
    unequal = [
        "One copy on one server: NFS by itself replicates nothing.",
        "It keeps no checksums. Blocks are overwritten in place.",
        "Its NBD face is qemu-nbd with libnfs, in one process.",
    ]

    def version(self):
        return "NFS-Ganesha " + first_line(self.place.run(["dpkg-query", "-W", "-f", "${Version}", "nfs-ganesha"]))

    def start(self):
        folder = self.place.folder
        export = folder / "export"
        bed.free_file(export / "disk", VOLUME_BYTES)
        configuration = folder / "ganesha.conf"
        configuration.write_text(CONFIGURATION.format(export=export), encoding="utf-8")
        self.place.daemon(["rpcbind", "-f"])
        self.place.await_port(111)
        self.place.daemon(["ganesha.nfsd", "-F", "-f", configuration, "-L", folder / "ganesha.log", "-p", folder / "ganesha.pid"])
        disk = f"driver=raw,file.driver=nfs,file.server.type=inet,file.server.host=127.0.0.1,file.path={export}/disk"
        self.place.await_that("the export", lambda: self.place.run(["qemu-img", "info", "--image-opts", disk]))
        self.place.daemon(["qemu-nbd", "--socket", self.place.socket, "--persistent", "--cache=none", "--image-opts", disk])
        self.place.await_socket()
        return load.nbd(self.place.socket)
