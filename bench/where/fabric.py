"""The fabric that is measured here: a manager and one target process with two `mem:` drives, on loopback, as `weft bench
figures` has it; and the loads that are put on it."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

# Volume and drives of `weft bench figures`.
VOLUME, VOLUME_SIZE, DRIVE_BYTES = "where", "512MiB", 1 << 30

# How long the volume is written from end to end, and then at random, before anything is measured, so that all memory was
# touched.
FILL_S = 4

PATIENCE_S = 30


class Trouble(Exception):
    """Something did not work; the message is for people."""


@contextlib.contextmanager
def fabric(weft, size=VOLUME_SIZE, under=()):
    """A fabric with a filled volume of some size: how to reach it, and its target's process. It ends with the block. The
    target runs under a command, if there is one."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-where-"))
    address, started = f"127.0.0.1:{free_port()}", []
    try:
        log = open(folder / "log", "w", encoding="utf-8")
        # A binary of before there was this command makes the store when its manager starts.
        call(weft, "fabric", "init", folder / "map.redb")
        started.append(start([weft, "manager", "run", "--store", folder / "map.redb", "--listen", address, "--socket",
                              folder / "manager.sock"], log, 0))
        await_port(address)
        drives = ["--drive", f"mem:{DRIVE_BYTES}"] * 2
        started.append(start([*under, weft, "node", "run", "--name", "node-1", "--manager", address, "--listen",
                              f"127.0.0.1:{free_port()}", *drives], log, 1))
        bed = {"weft": weft, "fabric": address, "target": started[1].pid, "folder": folder}
        until(lambda: call(weft, "volume", "create", VOLUME, "--size", size, "--failure-domain", "drive", "--fabric",
                           address).returncode == 0, f"no volume could be created, see {folder}/log")
        for size, pattern in ("1M", "sequential"), ("4K", "random"):
            filled = finish(load(bed, "write", size, 8, True, FILL_S, ["--pattern", pattern]))
            if filled["failure"]:
                raise Trouble(f"the volume cannot be filled: {filled['failure']}")
        yield bed
    finally:
        for process in reversed(started):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S)
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def load(bed, rw, size, depth, is_shared, seconds, more):
    """Starts a load on the volume."""
    transport = [] if is_shared else ["--no-shared-memory"]
    return start([bed["weft"], "bench", "run", VOLUME, "--fabric", bed["fabric"], "--rw", rw, "--bs", size, "--depth", str(depth),
                  "--runtime", f"{seconds * 1000:.0f}ms", "--warm-up", "200ms", "--overwrite", "--json", *transport, *more],
                 subprocess.PIPE, 0)


def finish(process):
    """What a load said at its end."""
    said, words = process.communicate(timeout=PATIENCE_S)
    if process.returncode != 0:
        raise Trouble(f"the load failed: {words.strip()}")
    return json.loads(said)


def start(command, output, core):
    """Starts a process on one processor."""
    errors = subprocess.PIPE if output is subprocess.PIPE else subprocess.STDOUT
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, text=True,
                            preexec_fn=lambda: os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]}))


def call(*command):
    """Runs a command to its end."""
    return subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def free_port():
    """A port of loopback that nobody has now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def await_port(address):
    """Waits until somebody listens."""
    host, port = address.split(":")

    def answers():
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            return True
        return False

    until(answers, f"nobody listens at {address}")


def until(is_so, trouble):
    """Waits until something is so."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > end:
            raise Trouble(trouble)
        time.sleep(0.1)
