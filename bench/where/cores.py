#!/usr/bin/env python3
"""What threads of a node (T), parts of a device (P) and lanes of a client (L) cost, and what they are worth.

Everything runs on this machine, however few processors it has, so it shows what requests cost and how evenly they are spread, by
the clocks of threads; and what more threads are worth by giving each of them a fifth of a processor. Every figure is a ratio to
one thread of each, taken in the same round. docs/benchmark.md says what to make of it.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import fabric

# How much longer a load runs than it is measured, in seconds: a machine that is busy with other things reads late.
SLACK_S = 4

# From the start of a load until it is measured, in seconds: connections, and the load's own warm-up.
SETTLE_S = 1.2

# Requests in flight on each connection: with L = P as many in each part.
DEPTH = 8

# Threads of the node, parts of each device, lanes of the client; the first is what the others are compared with.
SHAPES = [(1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 1, 1), (1, 2, 2), (1, 4, 4), (1, 8, 8), (2, 2, 2), (4, 2, 2)]

# Requests in flight in all, for the curve at a constant depth.
DEPTH_IN_ALL = 256

# How much of the machine an open loop takes.
OPEN_SHARE = 0.3

# Processor time of a client per request, in us: what a request takes by itself, and what all that travel together share.
CLIENT_US, TOGETHER_US = 2.6, 8.1

# Drives in memory are not smaller.
DRIVE_BYTES_LEAST = 192 << 20

# Devices in files.
DEVICE_SIZE = "2560MiB"

# A thread that is slowed down may run so long of each period, in us.
QUOTA_US, PERIOD_US = 2000, 10000
LIMITS = pathlib.Path("/sys/fs/cgroup/cpu")

# An idle fabric: how many nodes, threads of each, how long it settles, and how long it is watched, in seconds.
IDLE_NODES, IDLE_THREADS, IDLE_SETTLE_S, IDLE_S = 4, 8, 15, 20

LOADS = {"read": "read", "write": "write"}


def main():
    """Parses the command line and does what it says; returns the exit status."""
    parser = argparse.ArgumentParser(description="Shows what threads, parts and lanes cost, and what they are worth.",
                                     epilog=f"Sections: {', '.join(SECTIONS)}. Exit status: 0 done, 1 failed, 2 usage.")
    parser.add_argument("weft", help="the binary to measure")
    parser.add_argument("--only", action="append", metavar="SECTION", choices=SECTIONS, help="this section; may be given several times")
    parser.add_argument("--seconds", type=float, default=2, help="how long each load is measured (default: 2)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of whose ratios the medians count (default: 3)")
    parser.add_argument("--folder", type=pathlib.Path, help="where to make files of devices, 5 GiB in all, that real flushes are of "
                                                            "(default: the system's folder for temporary files)")
    parser.add_argument("--json", metavar="FILE", help="write all figures")
    options = parser.parse_args()
    if options.seconds <= 0 or options.rounds < 1:
        parser.error("--seconds and --rounds are above zero")
    if (os.cpu_count() or 1) < 2:
        parser.error("two processors are needed: one for the client, one for the node")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = {}
    try:
        for name in options.only or SECTIONS:
            title, rounds, table = SECTIONS[name]
            if name == "slowed" and not can_be_slowed():
                print(f"skipped: {name}: {LIMITS} is no group of processor time that can be divided\n"
                      "hint: run as root where the controller `cpu` of version 1 is mounted", file=sys.stderr)
                continue
            results[name] = []
            for number in range(options.rounds):
                print(f"{name}: round {number + 1} of {options.rounds}", file=sys.stderr)
                results[name].append(rounds(options))
            print("\n".join([f"## {title}", "", *table(results[name]), ""]), flush=True)
    except fabric.Trouble as trouble:
        print(f"error: {trouble}", file=sys.stderr)
        return 1
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


# What requests cost


def cost_round(options):
    """Processor time per request of client and node for each shape: an open loop, as many in flight on each connection, and as
    many in all."""
    figures, rates = {}, {}
    for shape in SHAPES:
        threads, parts, lanes = shape
        with shaped(options.weft, threads, parts, fabric.TOGETHER) as bed:
            for load in LOADS:
                closed = run(bed, options, load, DEPTH * threads, lanes)
                if shape == SHAPES[0]:
                    rates[load] = OPEN_SHARE * os.cpu_count() * 1e6 / (closed["client_us"] + closed["node_us"])
                limit = ["--rate-limit", f"{rates[load]:.0f}"]
                figures[name_of(shape) + " " + load] = {
                    "open": run(bed, options, load, DEPTH * threads, lanes, limit),
                    "closed": closed,
                    "constant": run(bed, options, load, max(DEPTH_IN_ALL // lanes, 1), lanes),
                }
    return figures


def cost_table(rounds):
    """The medians of the rounds as a table."""
    lines = [f"An open loop of {OPEN_SHARE:.0%} of the machine; {DEPTH} requests in flight on each connection; {DEPTH_IN_ALL} in all, "
             f"of which the client's part is foretold by {CLIENT_US} + {TOGETHER_US}/b us. Never spinning; us of client + node per "
             "request, and how much of that of one thread each.", "",
             "| T, P, L | load | open | ratio | per connection | ratio | constant | ratio | client | foretold |",
             "| --- | --- |" + " ---: |" * 8]
    for shape in SHAPES:
        for load in LOADS:
            cells = []
            for way in "open", "closed", "constant":
                figure = [both(figures[f"{name_of(shape)} {load}"][way]) for figures in rounds]
                base = [both(figures[f"{name_of(SHAPES[0])} {load}"][way]) for figures in rounds]
                ratio = statistics.median(own / of for own, of in zip(figure, base))
                cells += [f"{statistics.median(figure):.2f}", f"{ratio:.2f}"]
            client = statistics.median(figures[f"{name_of(shape)} {load}"]["constant"]["client_us"] for figures in rounds)
            together = DEPTH_IN_ALL / (shape[0] * shape[2])
            lines.append(f"| {name_of(shape)} | {load} | {' | '.join(cells)} | {client:.2f} | {CLIENT_US + TOGETHER_US / together:.2f} |")
    return lines


def both(figure):
    """What client and node take together."""
    return figure["client_us"] + figure["node_us"]


def name_of(shape):
    """Threads, parts and lanes in words."""
    return ", ".join(str(number) for number in shape)


# What more threads are worth


def slowed_round(options):
    """Requests per second of 1, 2 and 4 threads that have a fifth of a processor each, of the node and of the client."""
    figures = {}
    for count in 1, 2, 4:
        with shaped(options.weft, count, 1, fabric.APART, []) as bed:
            for load in LOADS:
                with slowed(bed["target"], node_threads):
                    figures[f"{count} threads {load}"] = run(bed, options, load, 4 * DEPTH * count, 1)["iops"]
    for count in 1, 2, 4:
        with shaped(options.weft, 1, count, fabric.APART, []) as bed:
            for load in LOADS:
                figures[f"{count} lanes {load}"] = run(bed, options, load, 4 * DEPTH, count, slow_client=True)["iops"]
    return figures


def slowed_table(rounds):
    """The medians of the rounds as a table."""
    lines = [f"Each has {QUOTA_US / 1000:.0f} of {PERIOD_US / 1000:.0f} ms of a processor, and the other side one of its own.", "",
             "| | load | 1 | 2 | 4 | 2 to 1 | 4 to 1 |", "| --- | --- |" + " ---: |" * 5]
    for what in "threads", "lanes":
        for load in LOADS:
            rates = [[figures[f"{count} {what} {load}"] for figures in rounds] for count in (1, 2, 4)]
            ratios = [statistics.median(more / one for more, one in zip(rate, rates[0])) for rate in rates[1:]]
            lines.append(f"| {what} | {load} | " + " | ".join(f"{statistics.median(rate):,.0f}" for rate in rates) + " | "
                         + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
    return lines


def can_be_slowed():
    """Whether this machine has control groups that give a thread a share of a processor."""
    return (LIMITS / "cpu.cfs_quota_us").exists() and os.access(LIMITS, os.W_OK)


@contextlib.contextmanager
def slowed(process, chosen):
    """Gives each of the chosen threads of a process a share of a processor."""
    made = []
    try:
        for thread in chosen(process):
            group = LIMITS / f"weft-{process}-{thread}"
            group.mkdir()
            made.append(group)
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
            (group / "cpu.cfs_quota_us").write_text(str(QUOTA_US), encoding="ascii")
            (group / "tasks").write_text(str(thread), encoding="ascii")
        yield
    finally:
        for group in made:
            for thread in (group / "tasks").read_text(encoding="ascii").split():
                with contextlib.suppress(OSError):
                    (LIMITS / "tasks").write_text(thread, encoding="ascii")
            group.rmdir()


# Threads beside each other


def pairs_round(options):
    """Requests per second of two threads and two lanes on two processors, and of one each with one of its own."""
    figures = {}
    for load in LOADS:
        figures[load] = {}
        for shape, processors in ((1, 1, 1), fabric.APART), ((2, 1, 2), fabric.TOGETHER):
            with shaped(options.weft, shape[0], shape[1], processors) as bed:
                figures[load][name_of(shape)] = run(bed, options, load, 4 * DEPTH * shape[0], shape[2])["iops"]
    return figures


def pairs_table(rounds):
    """The medians of the rounds as a table."""
    lines = [f"{4 * DEPTH} requests in flight on each connection; threads never spin.", "",
             "| load | one each, pinned | two each, unpinned | ratio |", "| --- | ---: | ---: | ---: |"]
    for load in LOADS:
        one, two = ([figures[load][shape] for figures in rounds] for shape in ("1, 1, 1", "2, 1, 2"))
        ratio = statistics.median(more / less for more, less in zip(two, one))
        lines.append(f"| {load} | {statistics.median(one):,.0f} | {statistics.median(two):,.0f} | {ratio:.2f} |")
    return lines


# How evenly they work


def balance_round(options):
    """The processor time of the busiest of four threads to that of all, with sixteen volumes, and with one on many
    connections."""
    figures = {}
    with shaped(options.weft, 4, 1, fabric.TOGETHER) as bed:
        figures["one volume, 8 lanes"] = run(bed, options, "read", 4 * DEPTH, 8)["busiest"]
        volumes = [f"balance-{number}" for number in range(16)]
        for volume in volumes:
            made = fabric.call(options.weft, "volume", "create", volume, "--size", "16MiB", "--failure-domain", "drive", "--fabric", bed["fabric"])
            if made.returncode != 0:
                raise fabric.Trouble(f"volume '{volume}' could not be created: exit code {made.returncode}")
        figures["16 volumes"] = many(bed, options, volumes)
    return figures


def many(bed, options, volumes):
    """Writes to many volumes at once; returns the busiest thread to the mean."""
    loads = []
    try:
        loads = [fabric.load({**bed, "volume": volume}, "write", "4K", DEPTH, False, SETTLE_S + options.seconds + 2, ["--spin", "never"])
                 for volume in volumes]
        time.sleep(2 * SETTLE_S)
        before = clocks(bed["target"])
        time.sleep(options.seconds)
        after = clocks(bed["target"])
        for load in loads:
            fabric.finish(load)
    finally:
        for load in loads:
            load.kill()
            load.wait()
    served = [{thread: clock[thread] for thread in node_threads(bed["target"])} for clock in (before, after)]
    return busiest(*served)


def balance_table(rounds):
    """The medians of the rounds as a table."""
    lines = ["Processor time of the busiest of four threads to their mean.", "", "| load | busiest to mean |", "| --- | ---: |"]
    return lines + [f"| {load} | {statistics.median(figures[load] for figures in rounds):.2f} |" for load in rounds[0]]


def busiest(before, after):
    """The processor time of the busiest thread of a node to the mean of those that serve."""
    spent = [after[thread] - before.get(thread, 0) for thread in after]
    return max(spent) / statistics.mean(spent)


# Logs and flushes


def log_round(options):
    """Bytes of log per write and the median latency of writes, for parts of a device and depths, on files with real flushes."""
    figures = {}
    for parts in 1, 2, 4:
        with tempfile.TemporaryDirectory(prefix="weft-cores-", dir=options.folder) as folder:
            devices = [str(pathlib.Path(folder) / f"device-{number}") for number in (0, 1)]
            with shaped(options.weft, 1, parts, fabric.APART, [], devices) as bed:
                for depth in 8, 32, 128:
                    figures[f"{parts} {depth}"] = run(bed, options, "write", depth, 1)
    return figures


def log_table(rounds):
    """The medians of the rounds as a table."""
    lines = ["Two devices in files, written by one client; each write is in two logs.", "",
             "| parts | depth | log bytes per write | writes/s | median latency, us | latency to one part |", "| ---: |" + " ---: |" * 5]
    for name in rounds[0]:
        parts, depth = name.split()
        figure = {key: statistics.median(figures[name][key] for figures in rounds) for key in ("log", "iops", "p50_us")}
        ratio = statistics.median(figures[name]["p50_us"] / figures[f"1 {depth}"]["p50_us"] for figures in rounds)
        lines.append(f"| {parts} | {depth} | {figure['log']:,.0f} | {figure['iops']:,.0f} | {figure['p50_us']:,.0f} | {ratio:.2f} |")
    return lines


def log_bytes(bed):
    """What all drives have written to their logs."""
    with urllib.request.urlopen(f"http://{bed['metrics']}/metrics", timeout=fabric.PATIENCE_S) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("weft_drive_log_written_bytes_total"))


# What an idle fabric costs


def idle_round(options):
    """The share of a processor that an idle fabric takes, with its manager, and the memory of a node, by its threads."""
    return {str(threads): idle(options.weft, threads) for threads in (1, IDLE_THREADS)}


def idle(weft, threads):
    """Likewise for one number of threads: each serves one drive."""
    with tempfile.TemporaryDirectory(prefix="weft-cores-") as folder:
        started = fabric.call(weft, "up", "--dir", f"{folder}/fabric", "--detach", "--nodes", IDLE_NODES, "--drives", threads, "--threads", threads,
                              "--drive-size", "192MiB", "--sparse", "--port", fabric.free_port(IDLE_NODES * (fabric.THREADS_MAX + 1)))
        try:
            if started.returncode != 0:
                raise fabric.Trouble(f"an idle fabric could not be started: exit code {started.returncode}")
            time.sleep(IDLE_SETTLE_S)
            members = {path.stem: json.loads(path.read_text(encoding="utf-8"))["pid"] for path in pathlib.Path(folder).glob("fabric/run/*.pid")}
            before, begun = [sum(clocks(pid).values()) for pid in members.values()], time.monotonic_ns()
            time.sleep(IDLE_S)
            after, ended = [sum(clocks(pid).values()) for pid in members.values()], time.monotonic_ns()
            nodes = [resident_bytes(pid) for name, pid in members.items() if name != "manager"]
            return {"percent": 100 * (sum(after) - sum(before)) / (ended - begun), "node_bytes": statistics.mean(nodes)}
        finally:
            fabric.call(weft, "down", "--dir", f"{folder}/fabric")


def resident_bytes(process):
    """The memory of a process that is in use."""
    status = pathlib.Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]) * 1024


def idle_table(rounds):
    """The medians of the rounds as a table."""
    lines = [f"{IDLE_NODES} nodes and a manager, one drive for each thread, nothing asked of them for {IDLE_S} s.", "",
             "| threads of each node | of one processor | memory of a node, MB | of that each further thread |", "| ---: |" + " ---: |" * 3]
    median = {threads: {key: statistics.median(round_[threads][key] for round_ in rounds) for key in figures}
              for threads, figures in rounds[0].items()}
    first = median["1"]["node_bytes"]
    for threads, figure in median.items():
        more = int(threads) - 1
        further = f"{(figure['node_bytes'] - first) / more / 1e6:.1f}" if more else ""
        lines.append(f"| {threads} | {figure['percent']:.2f} % | {figure['node_bytes'] / 1e6:.0f} | {further} |")
    return lines


# Fabrics and loads


@contextlib.contextmanager
def shaped(weft, threads, parts, processors, spin=("--spin", "never"), devices=()):
    """A fabric whose node has so many threads, with two drives of each part for each; or with these files as devices."""
    metrics = f"127.0.0.1:{fabric.free_port()}"
    # All of them together have as much memory as two, so that the first writes have touched all of it.
    number = 2 * threads * parts
    drives = [f"mem:{max(2 * fabric.DRIVE_BYTES // number, DRIVE_BYTES_LEAST)}"] * number
    node = ["--threads", str(threads), "--metrics", metrics, *spin]
    made = (lambda address: formatted(weft, address, devices, parts)) if devices else drives
    count = parts if devices else 1
    with fabric.fabric(weft, drives=made, node=node, processors=processors, parts=count) as bed:
        yield {**bed, "metrics": metrics, "spin": list(spin)}


def formatted(weft, address, devices, parts):
    """Makes files into devices of so many parts, and returns them."""
    shown = subprocess.run([weft, "fabric", "show", "--fabric", address, "--json"], capture_output=True, text=True, check=False)
    if shown.returncode != 0:
        raise fabric.Trouble(f"the fabric does not say what it is: {shown.stderr.strip()}")
    for device in devices:
        done = subprocess.run([weft, "drive", "format", device, "--size", DEVICE_SIZE, "--parts", str(parts), "--force", "--fabric-id",
                               json.loads(shown.stdout)["fabric_id"]], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise fabric.Trouble(f"{device} cannot be formatted: {done.stderr.strip()}")
    return devices


def run(bed, options, rw, depth, lanes, more=(), slow_client=False):
    """One load: requests per second, processor time per request of either side, and the busiest thread of the node."""
    length = SETTLE_S + options.seconds + SLACK_S
    lanes_of = ["--threads", str(lanes)] if lanes > 1 else []
    load = fabric.load(bed, rw, "4K", depth, False, length, [*lanes_of, *bed["spin"], *more])
    try:
        time.sleep(SETTLE_S)
        with slowed(load.pid, client_threads) if slow_client else contextlib.nullcontext():
            logged, sides = log_bytes(bed), (load.pid, bed["target"])
            before, began = [clocks(side) for side in sides], time.monotonic()
            time.sleep(options.seconds)
            if load.poll() is not None:
                fabric.finish(load)
            after, took = [clocks(side) for side in sides], time.monotonic() - began
            logged = log_bytes(bed) - logged
            report = fabric.finish(load)
    finally:
        load.kill()
        load.wait()
    within = [second["iops"] for second in report["seconds"]] if "seconds" in report else []
    iops = statistics.mean(within[1:-1]) if slow_client and len(within) > 2 else report["total"]["iops"]
    client, node = (sum(a.values()) - sum(b.values()) for a, b in zip(after, before))
    requests = iops * took
    served = [{thread: clock[thread] for thread in node_threads(bed["target"])} for clock in (before[1], after[1])]
    return {"iops": iops, "p50_us": report["total"]["p50_us"], "client_us": client / 1000 / requests, "node_us": node / 1000 / requests,
            "busiest": busiest(*served), "log": logged / requests if rw == "write" else 0}


def clocks(process):
    """The processor time of each thread of a process, in ns."""
    found = {}
    for thread in pathlib.Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(OSError):
            found[int(thread.name)] = int((thread / "schedstat").read_text(encoding="ascii").split()[0])
    return found


def node_threads(process):
    """The threads of a node that serve: its first one if it has no others."""
    return threads_named(process, "target-") or [process]


def client_threads(process):
    """The threads of a load that make requests."""
    return threads_named(process, "bench-job-")


def threads_named(process, prefix):
    """The threads of a process whose names begin so."""
    return sorted(int(thread.name) for thread in pathlib.Path(f"/proc/{process}/task").iterdir()
                  if (thread / "comm").read_text(encoding="utf-8").startswith(prefix))


SECTIONS = {
    "cost": ("What requests cost", cost_round, cost_table),
    "slowed": ("Threads slowed down", slowed_round, slowed_table),
    "pairs": ("Two threads beside each other", pairs_round, pairs_table),
    "balance": ("Balance", balance_round, balance_table),
    "log": ("Logs and flushes of parts", log_round, log_table),
    "idle": ("An idle fabric", idle_round, idle_table),
}

if __name__ == "__main__":
    sys.exit(main())
