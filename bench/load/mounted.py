"""What programs ask of a mounted file system, and how fast it answers: names by processes that make, look at, open, list and remove files,
and an archive of small files that tar unpacks. Direct data are asked for by fio: load.py.

All of it works in folders that it is given. Whose file system that is, and what it is compared with, is the caller's business.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

from load import MIB, LoadError, Workload

NAMES = pathlib.Path(__file__).with_name("names.py")

# Processes that work with names at the same time, and over how many folders they spread their files where there are many.
PROCESSES, FOLDERS = 8, 50

# What each of them does, in this order.
OPERATIONS = ["create", "stat", "open", "readdir", "unlink"]

# Direct reads and writes of one file.
DATA = [Workload("randread-4k-32", "randread", 4096, 32), Workload("randwrite-4k-32", "randwrite", 4096, 32),
        Workload("seqread-1m-8", "read", MIB, 8), Workload("seqwrite-1m-8", "write", MIB, 8)]

# Files in the archive: how many there are in a folder, and the bound of their sizes in bytes.
FILES_IN_A_FOLDER, BYTES_BOUND = 500, 9000


def names(places, processes, folders, files, cpu_s=lambda: 0.0):
    """What processes do with names in turn, with so many files each: by operation, how many a second in all, the median and worst
    hundredth, how many processors they kept busy together with the system, whose processor time `cpu_s` says, and how many the system alone."""
    for place in places:
        pathlib.Path(place).mkdir(parents=True, exist_ok=True)
    running = [subprocess.Popen([sys.executable, str(NAMES), str(places[n % len(places)]), str(files), str(folders)], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for n in range(processes)]
    found = {}
    try:
        for process in running:
            _answer(process)
        for operation in OPERATIONS:
            began_cpu_s = cpu_s()
            for process in running:
                with contextlib.suppress(BrokenPipeError):  # Its answer says why.
                    process.stdin.write("\n")
                    process.stdin.flush()
            found[operation] = _together([json.loads(_answer(process)) for process in running], lambda: cpu_s() - began_cpu_s)
    finally:
        for process in running:
            process.kill()
            process.communicate()
    return found


def _answer(process):
    """The next line that a process says; a failure if it has ended."""
    line = process.stdout.readline()
    if not line:
        raise LoadError(f"a process that works with names has failed: {process.stderr.read()[-1000:].strip()}")
    return line


def _together(said, system_cpu_s):
    """One operation of all processes."""
    seconds, own_cpu_s, used_cpu_s = max(one["seconds"] for one in said), sum(one["cpu_s"] for one in said), system_cpu_s()
    took = sorted(us for one in said for us in one["us"])
    return {"per_second": sum(one["items"] for one in said) / seconds, "p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100],
            "cores": (own_cpu_s + used_cpu_s) / seconds, "system_cores": used_cpu_s / seconds}


@contextlib.contextmanager
def archive(files):
    """A tar archive of so many small files, in memory: its path, and how many bytes are in its files. It is gone with the block."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-small-", dir="/dev/shm"))
    try:
        sizes = [n * 7 % BYTES_BOUND for n in range(files)]
        with tarfile.open(folder / "small.tar", "w") as tar:
            source = folder / "file"
            for n, size in enumerate(sizes):
                source.write_bytes(bytes(size))
                tar.add(source, f"{n // FILES_IN_A_FOLDER}/{n}")
        yield folder / "small.tar", sum(sizes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unpack(path, into, cpu_s=lambda: 0.0):
    """Unpacks an archive into a new folder, and removes that again: how many seconds the former took, and how many processors were busy."""
    into.mkdir()
    before, began_cpu_s, began = os.times(), cpu_s(), time.monotonic()
    done = subprocess.run(["tar", "-xf", path, "-C", into], stderr=subprocess.PIPE, text=True, check=False)
    seconds = time.monotonic() - began
    after, used_cpu_s = os.times(), cpu_s() - began_cpu_s
    if done.returncode != 0:
        raise LoadError(f"tar failed: {done.stderr[-1000:].strip()}")
    shutil.rmtree(into)
    used_cpu_s += after.children_user - before.children_user + after.children_system - before.children_system
    return seconds, used_cpu_s / seconds
