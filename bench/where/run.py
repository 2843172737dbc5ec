#!/usr/bin/env python3
"""Where the time of a request goes: profiles client and target under a load, and prints nanoseconds per request and layer.

It starts a fabric of its own on loopback (a manager, one target process with two `mem:` drives), as `weft bench figures`
does, puts each workload on it, and samples both processes with `perf` meanwhile. Several binaries are measured in turn, so
that a change shows as two columns of one run. What belongs to which layer is in layers.py; docs/performance.md says what to
make of it.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time

import fabric
import layers

# Samples per second of CPU: enough for a percent in a second, few enough that taking them costs little.
FREQUENCY = 1999

# From the start of the load until it is sampled, in seconds: connections, and the load's own warm-up.
SETTLE_S = 1.0

WORKLOADS = {
    f"{transport}{rw}-{size}-d{depth}": (rw, size, depth, transport == "shm-")
    for transport in ("", "shm-")
    for rw, size, depth in [("read", "4K", 32), ("write", "4K", 32), ("read", "4K", 1), ("write", "4K", 1), ("read", "64K", 8),
                            ("write", "64K", 8)]
}


def main():
    """Parses the command line and does what it says; returns the exit status."""
    parser = argparse.ArgumentParser(description="Shows where the processor time of a request goes, by layer, on client and target.",
                                     epilog=f"Workloads: {', '.join(WORKLOADS)}. Exit status: 0 done, 1 failed, 2 usage.")
    parser.add_argument("weft", nargs="+", metavar="BINARY", help="the binary to profile; several take turns, and get a column each")
    parser.add_argument("--only", action="append", metavar="PART", help="workloads with this in their name; may be given several times")
    parser.add_argument("--seconds", type=float, default=1.5, help="how long each run is sampled (default: 1.5)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each workload, whose median counts (default: 3)")
    parser.add_argument("--json", metavar="FILE", help="write all runs")
    options = parser.parse_args()
    wanted = [name for name in WORKLOADS if not options.only or any(part in name for part in options.only)]
    if not wanted:
        parser.error(f"no workload has {' or '.join(options.only)} in its name; there are {', '.join(WORKLOADS)}")
    if options.seconds <= 0 or options.rounds < 1:
        parser.error("--seconds and --rounds are above zero")
    if (os.cpu_count() or 1) < 2:
        parser.error("two processors are needed: one for the client, one for the target")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if not shutil.which("perf"):
            raise fabric.Trouble("perf is not installed\nhint: apt-get install linux-perf (Debian) or linux-tools-generic (Ubuntu)")
        results = measure(options.weft, wanted, options.seconds, options.rounds)
    except fabric.Trouble as trouble:
        print(f"error: {trouble}", file=sys.stderr)
        return 1
    print(tables(results, options.weft), end="")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(binaries, workloads, seconds, rounds):
    """All runs, in rounds: each workload with each binary in turn."""
    results = []
    for number in range(rounds):
        for weft in binaries if number % 2 == 0 else reversed(binaries):
            with fabric.fabric(weft) as bed:
                for name in workloads:
                    print(f"round {number + 1} of {rounds}: {name} with {weft}", file=sys.stderr)
                    results.append({"binary": weft, "workload": name, **profile(bed, name, seconds)})
    return results


def profile(bed, name, seconds):
    """One run: requests per second, mean latency, and nanoseconds per request and layer on either side."""
    rw, size, depth, is_shared = WORKLOADS[name]
    client = fabric.load(bed, rw, size, depth, is_shared, SETTLE_S + seconds + 1, [])
    try:
        time.sleep(SETTLE_S)
        sides = {"client": client.pid, "target": bed["target"]}
        files = {side: bed["folder"] / f"{side}.perf" for side in sides}
        taking = [subprocess.Popen(["perf", "record", "-q", "-F", str(FREQUENCY), "-e", "cpu-clock", "--call-graph", "dwarf,2048",
                                    "-o", files[side], "-p", str(pid), "--", "sleep", str(seconds)], stderr=subprocess.PIPE, text=True)
                  for side, pid in sides.items()]
        for process in taking:
            _, said = process.communicate(timeout=fabric.PATIENCE_S + seconds)
            if process.returncode != 0:
                if client.poll() is not None:
                    fabric.finish(client)
                raise fabric.Trouble(f"perf could not sample: {said.strip()}")
        total = fabric.finish(client)["total"]
    finally:
        client.kill()
        client.wait()
    requests = total["iops"] * seconds
    return {"iops": total["iops"], "mean_us": total["mean_us"],
            "ns": {side: layers.per_request(stacks(file), FREQUENCY, requests) for side, file in files.items()}}


def stacks(file):
    """The stacks that perf has recorded."""
    done = subprocess.run(["perf", "script", "--no-inline", "-F", "ip,sym,dso", "-i", file], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise fabric.Trouble(f"perf cannot read what it recorded: {done.stderr.strip()}")
    return layers.stacks_of(done.stdout.splitlines())


def tables(results, binaries):
    """A table per workload: a row per layer, a column per side and binary."""
    lines = []
    for name in dict.fromkeys(result["workload"] for result in results):
        runs = {weft: [r for r in results if r["workload"] == name and r["binary"] == weft] for weft in binaries}
        lines += [f"## {name}", ""]
        for weft, of in runs.items():
            iops, mean = (statistics.median(r[key] for r in of) for key in ("iops", "mean_us"))
            lines.append(f"{weft}: {iops:,.0f} requests per second, {mean:.1f} us each\n")
        columns = [(side, weft) for side in ("client", "target") for weft in binaries]
        few = len(binaries) == 1
        lines.append("| ns per request | " + " | ".join(side if few else f"{side}, {pathlib.Path(weft).name}" for side, weft in columns) + " |")
        lines.append("| --- |" + " ---: |" * len(columns))
        rows = {layer: [statistics.median(r["ns"][side][layer] for r in runs[weft]) for side, weft in columns] for layer in layers.LAYERS}
        lines += [row(layer, values) for layer, values in rows.items() if any(value >= 0.5 for value in values)]
        busy = [sum(values[column] for layer, values in rows.items() if layer != layers.WAITING) for column in range(len(columns))]
        lines += [row("all but looking for work", busy), ""]
    return "\n".join(lines)


def row(name, values):
    """A row of a table."""
    return f"| {name} | " + " | ".join(f"{value:,.0f}" for value in values) + " |"


if __name__ == "__main__":
    sys.exit(main())
