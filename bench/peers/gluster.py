"""GlusterFS: a volume with two replicas, and a file of it as a disk, which fio reaches by Gluster's client library.

Not over NBD: qemu-nbd asks before each read which parts are holes, which bricks on a tmpfs find out page by page, so that
it reads a few hundred times per second. That is a defect of such a set-up, not of Gluster.
"""

import bed
import load
from system import System, VOLUME_BYTES, first_line

CONFIGURATION = """
volume management
    type mgmt/glusterd
    option working-directory {folder}/glusterd
    option transport-type socket
    option transport.socket.bind-address {address}
    option ping-timeout 0
    option event-threads 1
end-volume
"""

# What Gluster's own profile for disk images sets, as far as it matters for one file; and no cache of the client that
# answers reads, or acknowledges writes before they are on the bricks.
OPTIONS = [
    ("performance.write-behind", "off"),
    ("performance.quick-read", "off"),
    ("performance.read-ahead", "off"),
    ("performance.io-cache", "off"),
    ("performance.low-prio-threads", "32"),
    ("performance.client-io-threads", "on"),
    ("network.remote-dio", "disable"),
    ("performance.strict-o-direct", "on"),
    ("cluster.eager-lock", "enable"),
]


class Gluster(System):
    """Two bricks in folders of the media; fio links libgfapi."""

    name = "gluster"
    title = "GlusterFS, a file in 2 replicas, by libgfapi in fio"
    copies = 2
    packages = ["glusterfs-server"]
    programs = ["glusterd", "gluster"]
    media_bytes = 2 * VOLUME_BYTES + 256 * load.MIB
    unequal = [
        "fio calls libgfapi directly: the hop over NBD, which Weft has in these figures, is spared.",
        "A file system, not a block store: the disk is one file, in files of the media at both bricks.",
        "It keeps no checksums of data. Blocks are overwritten in place.",
        "Its client writes both replicas itself, as Weft's does; it records what is under way in attributes of the files.",
        "Without an arbiter it can split its brain; its documents advise three replicas.",
        "The client's caches are off, since a write in them is not durable.",
    ]

    def version(self):
        return first_line(self.place.run(["glusterd", "--version"]))

    def start(self):
        folder, run = self.place.folder, self.place.run
        (folder / "glusterd").mkdir()
        configuration = folder / "glusterd.vol"
        configuration.write_text(CONFIGURATION.format(folder=folder, address=bed.ADDRESS), encoding="utf-8")
        self.place.daemon(["glusterd", "--no-daemon", "--log-level", "WARNING", "--log-file", folder / "glusterd.log",
                           "--volfile", configuration])
        gluster = ["gluster", "--mode=script"]
        self.place.await_that("glusterd", lambda: run([*gluster, "pool", "list"]))
        bricks = [f"{bed.ADDRESS}:{folder}/brick-{number}" for number in range(2)]
        # `force`: it warns of two replicas, and of bricks on one machine.
        run([*gluster, "volume", "create", "peers", "replica", "2", *bricks, "force"])
        for option, value in OPTIONS:
            run([*gluster, "volume", "set", "peers", option, value])
        run([*gluster, "volume", "start", "peers"])
        return ["--ioengine=gfapi_async", "--volume=peers", f"--brick={bed.ADDRESS}", "--filename=disk", "--direct=1"]
