"""A fabric of three nodes on this machine, with a file system that is mounted twice: what two machines would have."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

NODES, DRIVE_SIZE = 3, "8GiB"

# How long a command of Weft may take, in seconds.
WEFT_S = 120


class Trouble(Exception):
    """The bed is not as it should be; the message is for people."""


class Bed:
    """The mounts, and how to reach the fabric below them."""

    def __init__(self, weft, folder, create_options, mount_options):
        self.weft, self.folder, self.create_options, self.mount_options = weft, folder, create_options, mount_options
        self.environment = {**os.environ, "WEFT_FABRIC": str(folder / "fabric")}
        self.mounts = [folder / "a", folder / "b"]

    def run(self, *words):
        """Runs `weft` on the fabric, and returns what it prints."""
        done = subprocess.run([self.weft, *words], env=self.environment, capture_output=True, text=True, timeout=WEFT_S,
                              check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise Trouble(f"weft {' '.join(words)} failed: {done.stderr.strip()}{done.stdout[-2000:]}")
        return done.stdout

    def start(self, port):
        """Starts the fabric, and mounts the file system."""
        self.run("up", "--detach", "--nodes", str(NODES), "--drives", "1", "--drive-size", DRIVE_SIZE, "--sparse", "--port", str(port))
        self.run("fs", "create", "home", "--copies", "2", *self.create_options)
        for at in self.mounts:
            at.mkdir()
            self.run("mount", "home", str(at), *self.mount_options, "--log-file", str(self.folder / f"mount-{at.name}.log"))

    def check(self):
        """Whether the file system is sound: `weft fs check`."""
        checked = json.loads(self.run("fs", "check", "home", "--json"))
        if not checked["sound"]:
            raise Trouble(f"weft fs check: {checked['findings']}")
        return checked

    def end(self):
        """Unmounts, and ends the fabric."""
        for at in self.mounts:
            subprocess.run([self.weft, "umount", str(at), "--force"], env=self.environment, capture_output=True, check=False)
        subprocess.run([self.weft, "down"], env=self.environment, capture_output=True, check=False)


@contextlib.contextmanager
def bed(weft, port, room=None, keep=False, create_options=(), mount_options=()):
    """A bed in a new folder, which is removed at the end unless it is to be kept."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-posix-", dir=room))
    # Users that suites make pass through it.
    folder.chmod(0o755)
    made = Bed(weft, folder, create_options, mount_options)
    try:
        made.start(port)
        yield made
    finally:
        made.end()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
