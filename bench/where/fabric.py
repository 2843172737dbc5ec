"""The fabric that is measured here: a manager and one node, with two `mem:` drives if nothing else is said, on loopback, as
`weft bench figures` has it; and the loads that are put on it."""

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

# Threads of a node, at most: each has a port.
THREADS_MAX = 8

PATIENCE_S = 30


class Trouble(Exception):
    """Something did not work; the message is for people."""


# The processors of the client and of the node: one each, or all of both.
APART, TOGETHER = (0, 1), (None, None)


@contextlib.contextmanager
def fabric(weft, size=VOLUME_SIZE, under=(), drives=(f"mem:{DRIVE_BYTES}",) * 2, node=(), processors=APART, parts=1):
    """A fabric with a filled volume of some size: how to reach it, and its node's process. It ends with the block. The node
    has these drives, or those that a function of the fabric's address makes, and further options, and runs under a command, if
    there is one. Manager and client run on the first of the processors, the node on the second one. Each drive may be a device of
    several parts. The volume is created when all are there, so that it is spread over all."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-where-"))
    address, started = f"127.0.0.1:{free_port()}", []
    try:
        log = open(folder / "log", "w", encoding="utf-8")
        # A binary of before there was this command makes the store when its manager starts.
        call(weft, "fabric", "init", folder / "map.redb")
        started.append(start([weft, "manager", "run", "--store", folder / "map.redb", "--listen", address, "--socket",
                              folder / "manager.sock"], log, processors[0]))
        await_port(address)
        devices = drives(address) if callable(drives) else drives
        drives = [word for device in devices for word in ("--drive", device)]
        started.append(start([*under, weft, "node", "run", "--name", "node-1", "--manager", address, "--listen",
                              f"127.0.0.1:{free_port(THREADS_MAX)}", *drives, *node], log, processors[1]))
        bed = {"weft": weft, "fabric": address, "target": started[1].pid, "folder": folder, "client_on": processors[0]}
        until(lambda: drives_of(weft, address) >= len(devices) * parts, "not all drives have come", folder)
        until(lambda: call(weft, "volume", "create", VOLUME, "--size", size, "--failure-domain", "drive", "--fabric",
                           address).returncode == 0, "no volume could be created", folder)
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


def drives_of(weft, address):
    """How many drives a fabric has."""
    listed = subprocess.run([weft, "drive", "list", "--fabric", address, "--json"], capture_output=True, text=True, check=False)
    return len(json.loads(listed.stdout)["drives"]) if listed.returncode == 0 else 0


def end_of(folder):
    """The last lines of the log of all that runs."""
    return (folder / "log").read_text(encoding="utf-8")[-2000:]


def load(bed, rw, size, depth, is_shared, seconds, more):
    """Starts a load on the volume."""
    transport = [] if is_shared else ["--no-shared-memory"]
    return start([bed["weft"], "bench", "run", bed.get("volume", VOLUME), "--fabric", bed["fabric"], "--rw", rw, "--bs", size, "--depth", str(depth),
                  "--runtime", f"{seconds * 1000:.0f}ms", "--warm-up", "200ms", "--overwrite", "--json", *transport, *more],
                 subprocess.PIPE, bed["client_on"])


def finish(process):
    """What a load said at its end."""
    said, words = process.communicate(timeout=PATIENCE_S)
    if process.returncode != 0:
        raise Trouble(f"the load failed: {words.strip()}")
    return json.loads(said)


def start(command, output, core):
    """Starts a process on one processor, or on all."""
    errors = subprocess.PIPE if output is subprocess.PIPE else subprocess.STDOUT
    place = None if core is None else lambda: os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, text=True, preexec_fn=place)


def call(*command):
    """Runs a command to its end."""
    return subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def free_port(count=1):
    """A port of loopback that nobody has now, and with it the ones that follow."""
    while True:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            for further in range(1, count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port + further))
            return port


def await_port(address):
    """Waits until somebody listens."""
    host, port = address.split(":")

    def answers():
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            return True
        return False

    until(answers, f"nobody listens at {address}")


def until(is_so, trouble, folder=None):
    """Waits until something is so. If it is not, the last words of the log in this folder say more."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > end:
            raise Trouble(f"{trouble}: {end_of(folder)}" if folder else trouble)
        time.sleep(0.1)
