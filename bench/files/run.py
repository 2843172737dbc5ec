#!/usr/bin/env python3
"""What a file system reaches: names by the library and through mounts, data, small files, memory; beside a file system in memory behind
the same face, and the volume underneath, in the same run.

A fabric of its own on loopback with drives in memory, so that nothing is bound by this machine's disk; all of it, the programs that ask too,
on this machine. docs/benchmark.md says what to make of it.
"""

import argparse
import concurrent.futures
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

for beside in "where", "load":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / beside))
import fabric  # noqa: E402
import load  # noqa: E402
import mounted  # noqa: E402
from mounted import FOLDERS, PROCESSES  # noqa: E402

DRIVE_BYTES, VOLUME_SIZE, FILE_BYTES = 3 << 30, "512MiB", 512 * load.MIB

# Files of each process or client, and in the archive that is unpacked: in full, and quickly.
FILES, FILES_QUICK = 4000, 500
UNPACKED, UNPACKED_QUICK = 20_000, 2_000

# Clients that make names at the same time where shards are counted.
CLIENTS_OF_SHARDS = 4

# The kernel's switch for FUSE over io_uring, and the lock that those who switch it for a moment hold.
LANES_SWITCH = pathlib.Path("/sys/module/fuse/parameters/enable_uring")
LANES_LOCK = pathlib.Path(tempfile.gettempdir()) / "weft-enable-uring.lock"

# Files that two mounts write, and how.
ONE_FILE, TWO_FILES, SHARED_BYTES = ["both"], ["left", "right"], 256 * load.MIB
SHARED = [(load.Workload("randwrite-4k-8", "randwrite", 4096, 8), "4K"), (load.Workload("seqwrite-1m-8", "write", load.MIB, 8), "1M"),
          (load.Workload("randwrite-parts-8", "randwrite", 3584, 8), "3.5K")]


def main():
    """Parses the command line and does what it says; returns the exit status."""
    parser = argparse.ArgumentParser(description="Shows what a file system reaches.", epilog="Exit status: 0 done, 1 failed, 2 usage.")
    parser.add_argument("weft", help="the binary to measure")
    parser.add_argument("memory", help="the mount of a file system in memory that is the limit (weft-fuse, example memory)")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="this section; may be given several times")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds, whose medians are told (3)")
    parser.add_argument("--seconds", type=float, default=5, help="length of each run of data (5)")
    parser.add_argument("--quick", action="store_true", help="one short round, which says little")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    options.weft, options.memory = (str(pathlib.Path(path).resolve()) for path in (options.weft, options.memory))
    if options.quick:
        options.rounds, options.seconds = 1, 1
    options.files = FILES_QUICK if options.quick else FILES
    options.unpacked = UNPACKED_QUICK if options.quick else UNPACKED
    rows = {}
    try:
        with bed(options) as made:
            for number in range(options.rounds):
                for name in options.only or SECTIONS:
                    print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr)
                    for row in SECTIONS[name](made, options):
                        rows.setdefault(row["workload"], []).append(row)
    except (fabric.Trouble, load.LoadError) as trouble:
        print(f"error: {trouble}", file=sys.stderr)
        return 1
    figures = [median(workload, found) for workload, found in rows.items()]
    show(figures)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


@contextlib.contextmanager
def bed(options):
    """A fabric with a file system that is mounted twice, and a mount of the file system in memory."""
    drives = (f"mem:{DRIVE_BYTES}",) * 2
    with fabric.fabric(options.weft, VOLUME_SIZE, drives=drives, processors=fabric.TOGETHER) as made:
        made["environment"] = {**os.environ, "WEFT_FABRIC": made["fabric"]}
        weft(made, "fs", "create", "home", "--copies", "2", "--failure-domain", "drive")
        places, memory = [made["folder"] / name for name in ("a", "b")], made["folder"] / "memory"
        made.update(places=places, memory=memory)
        for at in [*places, memory]:
            at.mkdir()
        serving = subprocess.Popen([options.memory, memory], stdin=subprocess.DEVNULL)
        try:
            fabric.until(lambda: os.path.ismount(memory), "the file system in memory is not mounted")
            weft(made, "mount", "home", str(places[0]))
            yield made
        finally:
            for at in places:
                subprocess.run([options.weft, "umount", at, "--force"], env=made["environment"], capture_output=True, check=False)
            subprocess.run(["umount", "-l", memory], capture_output=True, check=False)
            serving.wait(fabric.PATIENCE_S)


def weft(made, *words):
    """Runs `weft` on the fabric, and returns what it prints."""
    done = subprocess.run([made["weft"], *words], env=made["environment"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise fabric.Trouble(f"weft {' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout


def row(workload, per_second=None, mb_per_s=None, p50=None, p99=None, limit=None):
    """A figure; `limit`: what it is a part of, in the same unit."""
    reached = per_second if mb_per_s is None else mb_per_s
    return {"workload": workload, "per_second": per_second, "mb_per_s": mb_per_s, "p50_us": p50, "p99_us": p99,
            "limit_ratio": reached / limit if limit else None}


def by_library(made, options):
    """Names by the library, without a mount: one client process and two."""
    was_mounted = made["places"][0]
    weft(made, "umount", str(was_mounted))
    rows = []
    for clients in 1, 2:
        said = json.loads(weft(made, "bench", "names", "home", "--files", str(5 * options.files), "--clients", str(clients), "--json"))
        rows += [row(f"{found['workload']} by the library, {clients} client{'s' * (clients > 1)}", found["per_second"], p50=found["p50_us"],
                     p99=found["p99_us"]) for found in said["rows"]]
    weft(made, "mount", "home", str(was_mounted))
    return rows


def through_mounts(made, options):
    """Names through FUSE: from one process and from several, in one folder and in many, by one mount and by two."""
    a, b = made["places"]
    rows = []
    shapes = [("1 process", 1, 1), (f"{PROCESSES} processes, one folder", PROCESSES, 1), (f"{PROCESSES} processes, many folders", PROCESSES, FOLDERS)]
    for shape, processes, folders in shapes:
        files = options.files // processes
        limits = mounted.names([made["memory"] / "names"], processes, folders, files)
        found = mounted.names([a / "names"], processes, folders, files)
        rows += [row(f"{operation} through FUSE, {shape}", seen["per_second"], p50=seen["p50"], p99=seen["p99"],
                     limit=limits[operation]["per_second"]) for operation, seen in found.items()]
    weft(made, "mount", "home", str(b))
    found = mounted.names([a / "names", b / "names"], PROCESSES, 1, options.files // PROCESSES)
    rows += [row(f"{operation} through FUSE, two mounts, {PROCESSES} processes, one folder", seen["per_second"], p50=seen["p50"], p99=seen["p99"])
             for operation, seen in found.items()]
    weft(made, "umount", str(b))
    return rows


def data(made, options):
    """Direct reads and writes of one file, beside the same of the volume underneath."""
    path, rows = made["places"][0] / "data", []
    load.fill(load.file(path), FILE_BYTES)
    for workload in mounted.DATA:
        found = load.measure(load.file(path), workload, FILE_BYTES, options.seconds)
        size, words = ("4K", "random") if workload.block_bytes == 4096 else ("1M", "sequential")
        rw, depth = "write" if workload.is_write else "read", workload.depth
        below = fabric.finish(fabric.load(made, rw, size, depth, True, options.seconds, ["--pattern", words]))["total"]
        limit = below["iops"] * (1 if size == "4K" else 1.048576)
        speed = {} if size == "4K" else {"mb_per_s": found["mb_per_s"]}
        rows.append(row(f"{size} direct {rw} through FUSE, depth {depth}; limit: the volume", found["iops"], p50=found["p50_us"],
                        p99=found["p99_us"], limit=limit, **speed))
    os.unlink(path)
    return rows


def shared(made, options):
    """Direct writes of one file by two mounts at the same time, beside those of two files, one by each. Parts of blocks are written by one
    mount at a time."""
    places, rows = made["places"], []
    weft(made, "mount", "home", str(places[1]))
    # They stay for the next round: what is removed takes its room for some seconds more.
    for at in (places[0] / name for name in ONE_FILE + TWO_FILES):
        if not at.exists():
            load.fill(load.file(at), SHARED_BYTES)
    for workload, size in SHARED:
        (limit, _), (one_file, p99) = (by_both(places, names, workload, options.seconds) for names in (TWO_FILES, ONE_FILE * 2))
        megabytes = workload.block_bytes / 1e6
        rows.append(row(f"{size} direct write of one file by two mounts, depth {workload.depth} each; limit: two files", one_file,
                        mb_per_s=one_file * megabytes, p99=p99, limit=limit * megabytes))
    weft(made, "umount", str(places[1]))
    return rows


def by_both(places, names, workload, seconds):
    """A workload by both mounts, each with its file: requests per second in all, and the worse p99 in us."""
    with concurrent.futures.ThreadPoolExecutor(len(places)) as threads:
        measure = lambda at: load.measure(load.file(at[0] / at[1]), workload, SHARED_BYTES, seconds)
        found = list(threads.map(measure, zip(places, names)))
    return sum(one["iops"] for one in found), max(one["p99_us"] for one in found)


def over_io_uring(made, options):
    """A mount over io_uring beside one through the device, one after the other; no rows where the kernel has only the device."""
    if not LANES_SWITCH.exists():
        print("skipped: this kernel has no FUSE over io_uring", file=sys.stderr)
        return []
    places, rows = made["places"], []
    # Others that switch it hold this lock, too; the mount stays as it is made.
    with open(LANES_LOCK, "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        was = LANES_SWITCH.read_text(encoding="ascii")
        LANES_SWITCH.write_text("Y", encoding="ascii")
        try:
            weft(made, "mount", "home", str(places[1]), "--over-io-uring")
        finally:
            LANES_SWITCH.write_text(was.strip(), encoding="ascii")
    try:
        paths = [at / f"by-{number}" for number, at in enumerate(places)]
        for path in paths:
            load.fill(load.file(path), FILE_BYTES)
        for workload in mounted.DATA:
            device, found = (load.measure(load.file(path), workload, FILE_BYTES, options.seconds) for path in paths)
            rows.append(row(f"{workload.name} through FUSE over io_uring; limit: through the device", found["iops"], p50=found["p50_us"],
                            p99=found["p99_us"], limit=device["iops"]))
        for path in paths:
            os.unlink(path)
        files = options.files // PROCESSES
        device, found = (mounted.names([at / f"names-{number}"], PROCESSES, FOLDERS, files) for number, at in enumerate(places))
        rows += [row(f"{operation} through FUSE over io_uring, {PROCESSES} processes, many folders; limit: through the device",
                     seen["per_second"], p50=seen["p50"], p99=seen["p99"], limit=device[operation]["per_second"])
                 for operation, seen in found.items()]
    finally:
        weft(made, "umount", str(places[1]))
    return rows


def thread(made, options):
    """Processor time of a mount's thread for each request: what one mount can reach where the machine has cores for everything else."""
    place = made["places"][0]
    cpu_s = lambda: load.processor_s(mount_of(place))
    used = lambda what, per_second, cores: {**row(f"processor time of a mount for each {what}, us"), "value": 1e6 * cores / per_second}
    path, rows = place / "thread", []
    load.fill(load.file(path), FILE_BYTES)
    for workload in mounted.DATA:
        found = load.measure(load.file(path), workload, FILE_BYTES, options.seconds, cpu_s)
        size = "4K" if workload.block_bytes == 4096 else "1M"
        rows.append(used(f"{size} direct {'write' if workload.is_write else 'read'}, depth {workload.depth}", found["iops"], found["system_cores"]))
    os.unlink(path)
    found = mounted.names([place / "names"], PROCESSES, FOLDERS, options.files // PROCESSES, cpu_s)
    return rows + [used(f"{operation}, {PROCESSES} processes, many folders", seen["per_second"], seen["system_cores"])
                   for operation, seen in found.items()]


def mount_of(place):
    """The process that serves a mount of this run."""
    for at in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            said = (at / "cmdline").read_bytes().split(b"\0")
            if said[1:2] == [b"mount"] and os.fsencode(place) in said:
                return int(at.name)
    raise fabric.Trouble(f"no process serves {place}")


def small_files(made, options):
    """An archive of small files unpacked through a mount, beside the file system in memory."""
    with mounted.archive(options.unpacked) as (archive, _):
        limit, took = (options.unpacked / mounted.unpack(archive, at / "unpacked")[0] for at in (made["memory"], made["places"][0]))
    return [row(f"files of up to 9 kB unpacked by tar through FUSE, {options.unpacked}", took, limit=limit)]


def costs(made, options):
    """Memory for each inode, and bytes of the log for each create."""
    files = 10 * options.files

    def state():
        shards = json.loads(weft(made, "fs", "inspect", "home", "--json"))["shards"]
        status = pathlib.Path(f"/proc/{made['target']}/status").read_text(encoding="utf-8")
        rss = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024
        total = lambda field: sum(shard["log"][field] for shard in shards)
        return rss, total("change_bytes"), total("appended_blocks"), sum(shard["tables"].get("inodes", 0) for shard in shards)

    before = state()
    weft(made, "fs", "mkdir", "home", "/costs")
    at = made["places"][0] / "costs"
    for n in range(files):
        os.close(os.open(at / f"{n:07}", os.O_CREAT | os.O_WRONLY))
    after = state()
    shutil.rmtree(at)
    inodes = after[3] - before[3]
    return [{**row("memory of the node per million inodes, MB"), "value": (after[0] - before[0]) / inodes},
            {**row("bytes of changes in the log per create and close"), "value": (after[1] - before[1]) / files},
            {**row("bytes appended to the log per create and close"), "value": (after[2] - before[2]) * 4096 / files}]


def shards(made, options):
    """Names by the library of clients with a folder each, with one shard and with folders in several; and what the node works for each."""
    rows, files = [], 2 * options.files
    for count in 1, 4, 16:
        words = ["--spread"] if count > 1 else []
        weft(made, "fs", "create", "wide", "--copies", "2", "--failure-domain", "drive", "--shards", str(count), *words)
        before = load.processor_s(made["target"])
        said = json.loads(weft(made, "bench", "names", "wide", "--files", str(files), "--clients", str(CLIENTS_OF_SHARDS), "--json"))
        worked = load.processor_s(made["target"]) - before
        weft(made, "fs", "delete", "wide", "--yes")
        shape = f"{CLIENTS_OF_SHARDS} clients, {count} shard{'s' * (count > 1)}"
        rows += [row(f"{found['workload']} by the library, {shape}", found["per_second"], p50=found["p50_us"], p99=found["p99_us"])
                 for found in said["rows"]]
        # Each file is made, found and removed; lists are few.
        rows.append({**row(f"processor time of the node for each operation, us, {shape}"), "value": 1e6 * worked / (3 * files * CLIENTS_OF_SHARDS)})
    return rows


SECTIONS = {"library": by_library, "shards": shards, "mounts": through_mounts, "data": data, "shared": shared, "io-uring": over_io_uring, "thread": thread,
            "small": small_files, "costs": costs}


def median(workload, found):
    """The medians of all rounds."""
    def of(field):
        seen = [one[field] for one in found if one.get(field) is not None]
        return statistics.median(seen) if seen else None
    fields = ["per_second", "mb_per_s", "p50_us", "p99_us", "limit_ratio"] + (["value"] if "value" in found[0] else [])
    return {"workload": workload, **{field: of(field) for field in fields}}


def show(figures):
    """Prints a table."""
    print(f"{'workload':<72} {'per s':>9} {'MB/s':>7} {'p50 us':>8} {'p99 us':>8} {'of limit':>8}")
    text = lambda value, form: "" if value is None else format(value, form)
    for one in figures:
        value = one["per_second"] if one.get("value") is None else one["value"]
        print(f"{one['workload']:<72} {text(value, '9.0f'):>9} {text(one['mb_per_s'], '7.0f'):>7} {text(one['p50_us'], '8.0f'):>8} "
              f"{text(one['p99_us'], '8.0f'):>8} {text(one['limit_ratio'], '8.2f'):>8}")


if __name__ == "__main__":
    sys.exit(main())
