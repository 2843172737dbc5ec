#!/usr/bin/env python3
"""Weft beside other storage systems, as block volumes or as mounted file systems: each is started on the same media, asked the same, and
compared in one run.

Python with nothing but its standard library: there are namespaces, a dozen daemons, JSON and medians to handle, all of
which a shell does badly, and it must run where only packages of Debian are. What runs where is in bed.py; who takes part and what is
asked of them in blocks.py and files.py; the load in bench/load; the tables in report.py; each system in a file of its own.
docs/benchmark.md explains the result.

This file owns the command line, and the order of things: it starts itself a second time in a bed (see bed.py), which
measures and hands its result back over a pipe; the outer part, on the machine itself, prints and writes.
"""

import argparse
import datetime
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "bench/load"))
import bed  # noqa: E402
import blocks  # noqa: E402
import files  # noqa: E402
import load  # noqa: E402
import report  # noqa: E402
from system import VOLUME_BYTES, find, first_line  # noqa: E402

# What systems are compared as. Each module has `WEFT`, `PEERS`, `RUNS` with the names of their workloads, `fill` and `missing`.
COMPARISONS = {"blocks": blocks, "files": files}

# What the runner itself needs, by package.
NEEDS = {"fio": "fio", "ip": "iproute2", "unshare": "util-linux", "setpriv": "util-linux", "mount": "mount"}

# How the measuring part ends when Weft or the bed did not start and that was told; `unshare` has other words for itself.
TOLD = 3

# Beside what systems take of the media: their logs and sockets, fio's folders, and archives.
SPARE_BYTES = 512 * load.MIB


def main():
    """Parses the command line and does what it says; returns the exit status."""
    names = {kind: [peer.name for peer in comparison.PEERS] for kind, comparison in COMPARISONS.items()}
    parser = argparse.ArgumentParser(
        description="Compares Weft with other storage systems on this machine, on RAM-backed media.",
        epilog="WEFT names the binary to measure (default: target/release/weft). Exit status: 0 done, 1 a system failed, 2 usage, "
               "130 interrupted.")
    parser.add_argument("--as", dest="kind", choices=COMPARISONS, default="blocks",
                        help="what they are compared as: block volumes, or mounted file systems (default: blocks)")
    every = "; ".join(f"as {kind}, {', '.join(of)}" for kind, of in names.items())
    parser.add_argument("--peer", action="append", metavar="NAME",
                        help=f"a peer to compare with; may be given several times (default: all: {every})")
    parser.add_argument("--only", action="append", metavar="PART", help="workloads with this in their name; may be given several times")
    parser.add_argument("--seconds", type=float, default=5, help="length of each run (default: 5)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of Weft and the peer in turn (default: 5)")
    parser.add_argument("--json", metavar="FILE", help="write the result with all its rounds")
    parser.add_argument("--markdown", action="store_true", help="print tables for a document instead of text")
    parser.add_argument("--from", dest="recorded", metavar="FILE", help="print the tables of a result of --json; measure nothing")
    parser.add_argument("--install", action="store_true", help="install the packages of the peers that are not installed")
    parser.add_argument("--list", action="store_true", help="say which peers are installed; measure nothing")
    parser.add_argument("--inside", type=int, metavar="FD", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.seconds <= 0 or options.rounds < 1:
        parser.error("--seconds and --rounds have to be above zero")
    comparison = COMPARISONS[options.kind]
    for name in options.peer or []:
        if name not in names[options.kind]:
            parser.error(f"no peer as {options.kind} is called {name}: {', '.join(names[options.kind])}")
    peers = [peer for peer in comparison.PEERS if not options.peer or peer.name in options.peer]
    every = [name for run in comparison.RUNS for name in run.names]
    workloads = [name for name in every if not options.only or any(part in name for part in options.only)]
    if not workloads:
        parser.error(f"no workload has that in its name: {', '.join(every)}")
    if options.inside is not None:
        return measure_all(comparison, peers, workloads, options)
    try:
        if options.recorded:
            return tell(json.loads(pathlib.Path(options.recorded).read_text(encoding="utf-8")), options)
        if options.install:
            install(peers)
        if options.list:
            for peer in peers:
                print(f"{peer.name:14} {'not installed: ' + ' '.join(peer.packages) if peer.missing() else 'installed':40} {peer.title}")
            return 0
        return compare_here(comparison, options)
    except (OSError, ValueError, bed.BedError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def install(peers):
    """Installs what is missing, by name, the way the tree's own set-up does."""
    packages = sorted({package for peer in peers if peer.missing() for package in peer.packages})
    if packages:
        options = [word for package in packages for word in ("--with", package)]
        subprocess.run([TOP / "scripts/setup.sh", "--for", "peers", *options], check=True)


def compare_here(comparison, options):
    """Measures in a bed, and tells the result."""
    missing = [f"{program} (package {package})" for program, package in NEEDS.items() if not find(program)]
    if missing:
        raise bed.BedError(f"not installed: {', '.join(missing)}\nhint: scripts/setup.sh --for peers")
    if comparison.missing():
        raise bed.BedError(comparison.missing())
    binary = os.environ.setdefault("WEFT", str(TOP / "target/release/weft"))
    if not os.access(binary, os.X_OK):
        raise bed.BedError(f"{binary} is not there\nhint: make build, or WEFT=/path/to/weft")
    os.environ["WEFT"] = os.path.abspath(binary)
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    if options.json:  # Now rather than after an hour.
        pathlib.Path(options.json).touch()
    receiver, sender = os.pipe()
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--inside", str(sender)]
    # A session of its own: what a terminal sends on Ctrl-C, this part passes on, once.
    child = subprocess.Popen(bed.namespaced(command), pass_fds=[sender], start_new_session=True)
    os.close(sender)
    signal.signal(signal.SIGINT, lambda *_: pass_on_interrupt(child))
    for number in (signal.SIGTERM, signal.SIGHUP):
        # The bed dies with `unshare`, and everything in it with the bed.
        signal.signal(number, lambda number, _: (child.kill(), sys.exit(128 + number)))
    with open(receiver, encoding="utf-8") as pipe:
        handed_over = pipe.read()
    status = child.wait()
    if status == TOLD:
        return 1
    if not handed_over:
        raise bed.BedError(f"the bed ended with {status}\nhint: it needs root, or user namespaces that anybody may make")
    result = json.loads(handed_over)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    told = tell(result, options)
    return 130 if result["run"]["interrupted"] else told


def pass_on_interrupt(unshare):
    """The first interruption goes to the bed, which hands over what it has; the second one ends it as it is."""
    signal.signal(signal.SIGINT, lambda *_: unshare.kill())
    children = pathlib.Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text(encoding="ascii").split()
    for pid in children:
        os.kill(int(pid), signal.SIGINT)


def tell(result, options):
    """Prints the tables; returns the exit status."""
    if result.get("schema_version") != report.SCHEMA_VERSION:
        raise ValueError(f"the result has schema_version {result.get('schema_version')}, expected {report.SCHEMA_VERSION}")
    sys.stdout.write(report.markdown(result) if options.markdown else report.text(result))
    return 1 if any(peer["state"] == "failed" for peer in result["peers"]) else 0


def measure_all(comparison, peers, workloads, options):
    """In the bed: Weft beside each peer in turn. Whatever happens, what is there of the result is handed over."""
    # Process 1 has no handlers unless it asks for them, and signals without one do nothing to it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    result = {"schema_version": report.SCHEMA_VERSION, "machine": machine(), "run": run_facts(workloads, options), "peers": []}
    try:
        usable = [peer for peer in peers if not peer.missing()]
        bed.make(comparison.WEFT.media_bytes + max((peer.media_bytes for peer in usable), default=0) + SPARE_BYTES)
        weft = comparison.WEFT(bed.Place(comparison.WEFT.name))
        result["run"]["weft_version"] = weft.version()
        if usable:
            bed.say("== Weft starts, and is filled")
            reach = weft.start()
            comparison.fill(weft, reach)
        for peer in peers:
            entry = {"name": peer.name, "title": peer.title, "copies": peer.copies, "packages": peer.packages, "unequal": peer.unequal,
                     "state": "missing", "version": None, "failure": None, "workloads": {}}
            result["peers"].append(entry)
            if peer in usable:
                measure_peer(comparison, (weft, reach), peer(bed.Place(peer.name)), workloads, options, entry)
            else:
                bed.say(f"== {peer.name}: not installed ({', '.join(peer.missing())}), passed over")
    except KeyboardInterrupt:
        bed.say("== interrupted: telling what there is")
        result["run"]["interrupted"] = True
        for entry in result["peers"]:
            if entry["state"] == "measuring":
                entry["state"] = "measured" if entry["workloads"] else "failed"
                entry["failure"] = None if entry["workloads"] else "interrupted before its first round"
    except (bed.BedError, load.LoadError, OSError, subprocess.SubprocessError) as error:
        bed.say(f"error: {error}")
        return TOLD
    with open(options.inside, "w", encoding="utf-8") as pipe:
        json.dump(result, pipe)
    return 0


def measure_peer(comparison, weft, peer, workloads, options, entry):
    """One peer from its start to its end, in turn with Weft, of which there is the system and how it is reached. Its failure is told, and ends
    nothing else."""
    bed.say(f"== {peer.name} starts, and is filled: {peer.title}")
    entry["state"] = "measuring"
    try:
        entry["version"] = peer.version()
        reach = peer.start()
        comparison.fill(peer, reach)
        for run in comparison.RUNS:
            wanted = [name for name in run.names if name in workloads]
            for number in range(options.rounds if wanted else 0):
                ours, theirs = run.measure(*weft, options.seconds), run.measure(peer, reach, options.seconds)
                for name in wanted:
                    one = {"weft": ours[name], "peer": theirs[name]}
                    entry["workloads"].setdefault(name, []).append(one)
                    rates = [one[side][report.KINDS[options.kind].rate] for side in ("weft", "peer")]
                    bed.say(f"   {name:16} round {number + 1}: weft {rates[0]:9,.0f}, {peer.name} {rates[1]:9,.0f}, "
                            f"ratio {rates[0] / rates[1]:.2f}")
        entry["state"] = "measured"
    except (bed.BedError, load.LoadError, OSError, subprocess.SubprocessError) as error:
        bed.say(f"error: {peer.name}: {error}")
        entry.update(state="failed", failure=str(error))
    finally:
        peer.stop()


def machine():
    """What the run is measured on."""
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0] if names else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": os.uname().release,
        "tcp_congestion_control": pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="utf-8").strip(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def run_facts(workloads, options):
    """What is measured, and with what."""
    described = subprocess.run(["git", "-C", str(TOP), "describe", "--always", "--dirty", "--abbrev=12"], text=True,
                               capture_output=True, check=False).stdout.strip()
    arguments = sys.argv[1:sys.argv.index("--inside")]
    return {
        "command": shlex.join(["bench/peers/run.py", *arguments]),
        "as": options.kind,
        "commit": described or "unknown",
        "weft_version": None,
        "fio_version": first_line(bed.run(["fio", "--version"])),
        "seconds": options.seconds,
        "rounds": options.rounds,
        "volume_bytes": VOLUME_BYTES,
        "workloads": workloads,
        "interrupted": False,
    }


if __name__ == "__main__":
    sys.exit(main())
