#!/usr/bin/env python3
"""How long clients wait when a node dies: the longest request of a volume while a node of several threads is killed under load, and
the time from the death of the node that serves a file system's names to the next change: by a new client, and by a mount, also if
another mount dies at the same time that had the file to write.

Fabrics of their own on loopback, with drives in files; everything runs on this machine. Figures are seconds; a lease lasts 2 s,
which is what a death costs at least. docs/benchmark.md says what to make of it.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import fabric

NODES, DRIVES, DRIVE_SIZE = 3, 8, "256MiB"

# The load beside a death: requests per second at a constant rate, its length, and when the node is killed, in seconds.
RATE, LENGTH_S, KILL_AFTER_S = 3000, 20, 8

# How long a file may take to be made before the run has failed, in seconds.
MADE_WITHIN_S = 60


def main():
    """Parses the command line and does what it says; returns the exit status."""
    parser = argparse.ArgumentParser(description="Shows how long clients wait when a node dies.",
                                     epilog="Exit status: 0 done, 1 failed, 2 usage.")
    parser.add_argument("weft", help="the binary to measure")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="this section; may be given several times")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="deaths of each kind (3)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: at least one")
    options.weft = str(pathlib.Path(options.weft).resolve())
    figures = {}
    try:
        for name in options.only or SECTIONS:
            for number in range(options.rounds):
                print(f"{name}: death {number + 1} of {options.rounds}", file=sys.stderr)
                for what, seconds in SECTIONS[name](options).items():
                    figures.setdefault(what, []).append(seconds)
    except fabric.Trouble as trouble:
        print(f"error: {trouble}", file=sys.stderr)
        return 1
    print(f"{'longest wait':<44} {'median s':>9} {'worst s':>9}")
    for what, seconds in figures.items():
        print(f"{what:<44} {statistics.median(seconds):>9.2f} {max(seconds):>9.2f}")
    if options.json:
        rows = [{"what": what, "seconds": seconds, "median_s": statistics.median(seconds), "worst_s": max(seconds)}
                for what, seconds in figures.items()]
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


@contextlib.contextmanager
def local(options, *more):
    """A local fabric: a function that runs `weft` on it, and its folder. It ends with the block."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-deaths-"))
    environment = {**os.environ, "WEFT_FABRIC": str(folder / "fabric")}

    def weft(*words):
        done = subprocess.run([options.weft, *words], env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise fabric.Trouble(f"weft {' '.join(words)} failed: {done.stderr.strip()}")
        return done.stdout

    try:
        weft("up", "--detach", "--nodes", str(NODES), "--drives", str(DRIVES), "--drive-size", DRIVE_SIZE, "--sparse", "--port",
             str(fabric.free_port(64)), *more)
        yield weft, folder / "fabric", environment
    finally:
        subprocess.run([options.weft, "down"], env=environment, capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def kill(folder, node):
    """Kills a node's process, and says when."""
    member = json.loads((folder / "run" / f"{node}.pid").read_text(encoding="utf-8"))
    os.kill(member["pid"], signal.SIGKILL)
    return time.monotonic()


def volume_death(options):
    """The longest read and write of a volume while a node of eight threads dies."""
    found = {}
    for rw in "read", "write":
        with local(options, "--threads", str(DRIVES)) as (weft, folder, environment):
            weft("volume", "create", "v", "--size", "1GiB", "--copies", "2")
            words = ["bench", "run", "v", "--rw", rw, "--rate-limit", str(RATE), "--depth", "256", "--threads", "2", "--runtime",
                     f"{LENGTH_S}s", "--overwrite", "--json"]
            with subprocess.Popen([options.weft, *words], env=environment, stdout=subprocess.PIPE, text=True) as load:
                time.sleep(KILL_AFTER_S)
                kill(folder, "node-2")
                said = load.communicate()[0]
            if load.returncode != 0:
                raise fabric.Trouble("the load beside a death has failed; what it said is above")
            found[f"{rw} of a volume, a node of {DRIVES} threads dies"] = json.loads(said)["total"]["max_us"] / 1e6
    return found


def names_death(options):
    """From the death of the node that serves a file system's names to the next file that is made."""
    with local(options) as (weft, folder, environment):
        weft("fs", "create", "home", "--copies", "2")
        weft("fs", "mkdir", "home", "/before")
        shown = json.loads(weft("fs", "show", "home", "--json"))["file_system"]
        node = shown["servers"][0]["server"].split("'")[1]
        killed = kill(folder, node)
        made = subprocess.run([options.weft, "fs", "mkdir", "home", "/after"], env=environment, capture_output=True, text=True,
                              timeout=MADE_WITHIN_S, check=False)
        took = time.monotonic() - killed
        if made.returncode != 0:
            raise fabric.Trouble(f"nothing can be made after {node} has died: {made.stderr.strip()}")
        return {"make a directory, the node that serves it dies": took}


@contextlib.contextmanager
def mounts(options, environment, *places):
    """Mounts the file system at these places: a list of processes. They and the mounts end with the block."""
    running = []
    try:
        for place in places:
            place.mkdir()
            running.append(subprocess.Popen([options.weft, "mount", "home", str(place), "--foreground"], env=environment,
                                            stderr=subprocess.DEVNULL))
            until = time.monotonic() + MADE_WITHIN_S
            while not os.path.ismount(place):
                if running[-1].poll() is not None or time.monotonic() > until:
                    raise fabric.Trouble("a mount does not come up: it needs root and /dev/fuse")
                time.sleep(0.05)
        yield running
    finally:
        for place in places:
            subprocess.run(["umount", "--lazy", str(place)], capture_output=True, check=False)
        for process in running:
            process.kill()
            process.wait()


@contextlib.contextmanager
def created(path):
    """A new file that is open to write."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):  # Its mount may be dead.
            os.close(file)


def mount_death(options):
    """From the death of that node, alone or with a mount that writes a file, until another mount has changed that file and made one."""
    found = {}
    for dies_too in False, True:
        with local(options) as (weft, folder, environment):
            weft("fs", "create", "home", "--copies", "2")
            one, other = folder.parent / "one", folder.parent / "other"
            with mounts(options, environment, one, other) as running, created(one / "file") as written:
                os.write(written, b"1" * 4096)
                os.fsync(written)
                os.write(written, b"2" * 4096)
                shown = json.loads(weft("fs", "show", "home", "--json"))["file_system"]
                node = shown["servers"][0]["server"].split("'")[1]
                if dies_too:
                    running[0].kill()
                killed = kill(folder, node)
                changed = subprocess.run([sys.executable, "-c", CHANGE, str(other / "file"), str(other / "new")], capture_output=True,
                                         text=True, timeout=MADE_WITHIN_S, check=False)
                took = time.monotonic() - killed
            if changed.returncode != 0:
                raise fabric.Trouble(f"nothing can be changed after {node} has died: {changed.stderr.strip()}")
            with_whom = " with the mount that writes it" if dies_too else ""
            found[f"change a file, its node dies{with_whom}"] = took
    return found


# Writes over a file, durably, and makes another one.
CHANGE = """
import os, sys
with open(sys.argv[1], 'r+b') as file:
    file.write(b'3' * 4096)
    file.flush()
    os.fsync(file.fileno())
open(sys.argv[2], 'x').close()
"""

SECTIONS = {"volume": volume_death, "names": names_death, "mount": mount_death}

if __name__ == "__main__":
    sys.exit(main())
