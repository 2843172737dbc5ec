"""GlusterFS: a volume with two replicas: a file of it as a disk, which fio reaches by Gluster's client library, or mounted by its FUSE client.

A disk is not reached over NBD: qemu-nbd asks before each read which parts are holes, which bricks on a tmpfs find out page by page, so that
it reads a few hundred times per second. That is a defect of such a set-up, not of Gluster.
"""

import bed
import load
from system import FileSystem, SMALL_FILES_BYTES, System, VOLUME_BYTES, first_line

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


# A mount is as it comes, but for direct writes: by default write-behind acknowledges these, too, from its own memory.
MOUNT_OPTIONS = [
    ("network.remote-dio", "disable"),
    ("performance.strict-o-direct", "on"),
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
        self._start_volume(OPTIONS)
        return ["--ioengine=gfapi_async", "--volume=peers", f"--brick={bed.ADDRESS}", "--filename=disk", "--direct=1"]

    def _start_volume(self, options):
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
        for option, value in options:
            run([*gluster, "volume", "set", "peers", option, value])
        run([*gluster, "volume", "start", "peers"])


class GlusterMounted(Gluster, FileSystem):
    """Mounted by its own FUSE client."""

    title = "GlusterFS, 2 replicas, by its FUSE mount"
    packages = ["glusterfs-server", "glusterfs-client"]
    programs = ["glusterd", "gluster", "glusterfs"]
    media_bytes = 2 * (VOLUME_BYTES + SMALL_FILES_BYTES) + 256 * load.MIB
    unequal = [
        "It keeps no checksums of data. Blocks are overwritten in place.",
        "Names are made and removed in the file systems of both bricks, which write their own logs some seconds later: what has returned is"
        " lost if all bricks lose their power, which costs nothing on a tmpfs.",
        "Its client writes both replicas itself, as Weft's does; it records what is under way in attributes of the files.",
        "Without an arbiter it can split its brain; its documents advise three replicas.",
        "Mounts see what others have done after a second (caches of attributes and names); with Weft at once.",
        "Plain writes are acknowledged by its client before they are on any brick, and so is `close`, as with Weft (write-behind, flush-behind, as"
        " it comes); direct writes when both bricks have them (strict-o-direct).",
    ]

    def start(self):
        self._start_volume(MOUNT_OPTIONS)
        return self.serve_mount(["glusterfs", "--no-daemon", f"--volfile-server={bed.ADDRESS}", "--volfile-id=peers", "--log-level=WARNING",
                                 f"--log-file={self.place.folder}/mount.log", self.mount])
