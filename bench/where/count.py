#!/usr/bin/env python3
"""How many instructions a request takes, in each layer of client and target.

It starts the fabric of fabric.py and runs client or target under callgrind, once with some requests and once with twice as
many: the difference is theirs alone. Only what runs outside of the kernel is counted. The clock is no part of it, so a busy
machine gives the same figures; what depends on how many requests come together does not stay quite the same.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import fabric
import layers

# Small: under callgrind a target fills one percent of what it could.
VOLUME_SIZE = "64MiB"

# Requests of the shorter run. What differs from run to run besides them, a heartbeat or two, is a few instructions of each.
REQUESTS = 4000

# How long such a run may take, in seconds.
PATIENCE_S = 300

WORKLOADS = {
    f"{transport}{rw}-{size}-d{depth}": (transport or "tcp", rw, block, depth)
    for transport in ("tcp-", "shm-")
    for rw, size, block, depth in [("read", "4K", 4096, 32), ("write", "4K", 4096, 32), ("read", "4K", 4096, 1), ("write", "4K", 4096, 1)]
}


def main():
    """Parses the command line and does what it says; returns the exit status."""
    parser = argparse.ArgumentParser(description="Counts the instructions of a request, by layer, on client and target.",
                                     epilog=f"Workloads: {', '.join(WORKLOADS)}. Exit status: 0 done, 1 failed, 2 usage.")
    parser.add_argument("weft", help="the binary to measure")
    parser.add_argument("client", help="the example `one_thread`, of the same build")
    parser.add_argument("--only", action="append", metavar="PART", help="workloads with this in their name; may be given several times")
    parser.add_argument("--json", metavar="FILE", help="write all counts")
    options = parser.parse_args()
    wanted = [name for name in WORKLOADS if not options.only or any(part in name for part in options.only)]
    if not wanted:
        parser.error(f"no workload has {' or '.join(options.only)} in its name; there are {', '.join(WORKLOADS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if not shutil.which("valgrind"):
            raise fabric.Trouble("valgrind is not installed\nhint: apt-get install valgrind")
        results = {name: {} for name in wanted}
        for side in "client", "target":
            with counting(options, side) as count:
                for name in wanted:
                    print(f"{name}: {side}", file=sys.stderr)
                    few, many = count(name, REQUESTS), count(name, 2 * REQUESTS)
                    results[name][side] = {layer: (many[layer] - few[layer]) / REQUESTS for layer in layers.LAYERS}
    except fabric.Trouble as trouble:
        print(f"error: {trouble}", file=sys.stderr)
        return 1
    print(table(results), end="")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


@contextlib.contextmanager
def counting(options, side):
    """A fabric, and a function that puts so many requests of a workload on it and returns what one side counts meanwhile."""
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-count-")))
        out = folder / "callgrind.out"
        under = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
        bed = stack.enter_context(fabric.fabric(options.weft, VOLUME_SIZE, under if side == "target" else []))

        def count(name, requests):
            transport, rw, block, depth = WORKLOADS[name]
            words = [options.client, bed["fabric"], fabric.VOLUME, transport.rstrip("-"), rw, block, depth, requests]
            if side == "client":
                run(*under, *words)
                return counted(out)
            control("--zero", bed["target"])
            run(*words)
            control("--dump", bed["target"])
            found = sorted(folder.glob("callgrind.out.*"), key=os.path.getmtime)
            totals = counted(found[-1])
            for file in found:
                file.unlink()
            return totals

        yield count


def control(what, pid):
    """Has callgrind set its counts to zero, or write them to a file."""
    run("callgrind_control", what, pid)


def run(*command):
    """Runs a command to its end."""
    command = [str(word) for word in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode != 0:
        raise fabric.Trouble(f"{command[0]} failed: {done.stdout.strip()}")


def counted(file):
    """Instructions by layer, of what callgrind has written."""
    totals = dict.fromkeys(layers.LAYERS, 0)
    for name, count in layers.counts_of(pathlib.Path(file).read_text(encoding="utf-8", errors="replace").splitlines()):
        totals[layers.layer_of([(name, False)])] += count
    return totals


def table(results):
    """One table: a row per layer, a column per workload and side."""
    columns = [(name, side) for name in results for side in ("client", "target")]
    lines = ["| instructions per request | " + " | ".join(f"{name}, {side}" for name, side in columns) + " |",
             "| --- |" + " ---: |" * len(columns)]
    rows = {layer: [results[name][side][layer] for name, side in columns] for layer in layers.LAYERS}
    lines += [row(layer, values) for layer, values in rows.items() if any(value >= 0.5 for value in values)]
    busy = [sum(values[column] for layer, values in rows.items() if layer != layers.WAITING) for column in range(len(columns))]
    return "\n".join([*lines, row("all but looking for work", busy), ""])


def row(name, values):
    """A row of a table."""
    return f"| {name} | " + " | ".join(f"{value:,.0f}" for value in values) + " |"


if __name__ == "__main__":
    sys.exit(main())
