#!/usr/bin/env python3
"""Suites and real programs on a file system that is mounted twice on this machine, each followed by `weft fs check`.

Python with nothing but its standard library, for what runs here are other programs. What each suite does is in programs.py,
what it runs on in bed.py.
"""

import argparse
import contextlib
import json
import pathlib
import platform
import shutil
import signal
import socket
import sys
import time

import bed
import exports
import programs

PORTS = 64

SUITES = {**programs.SUITES, **exports.SUITES}


def main():
    """Parses the command line and does what it says; returns the exit status."""
    parser = argparse.ArgumentParser(description="Runs suites and real programs on a mounted file system.",
                                     epilog="Exit status: 0 all passed, 1 one failed or is missing, 2 usage.")
    parser.add_argument("weft", help="the binary to test")
    parser.add_argument("--tools", type=pathlib.Path, required=True, help="the folder of pjdfstest and fsx")
    parser.add_argument("--only", action="append", choices=SUITES, help="this suite; may be given several times")
    parser.add_argument("--short", action="store_true", help="a short form of each")
    parser.add_argument("--minutes", type=float, default=60, help="how long fsx and shared-file go on, unless short (default: 60)")
    parser.add_argument("--room", help="a folder with some 30 GB for the fabric's drives (default: the usual one for temporary files)")
    parser.add_argument("--over-io-uring", action="store_true", help="mount so; the kernel has to allow it (weft mount --help)")
    parser.add_argument("--spread", action="store_true", help="on a file system with directories in all of its shards")
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the result there")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the result as a page there")
    options = parser.parse_args()
    weft = str(pathlib.Path(options.weft).resolve())
    # What was started and mounted ends with the run, however it ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows = []
    try:
        create_options = ["--spread"] if options.spread else []
        mount_options = ["--over-io-uring"] if options.over_io_uring else []
        with bed.bed(weft, free_ports(), options.room, options.keep, create_options, mount_options) as made:
            for name in options.only or SUITES:
                rows.append(one(made, name, options))
                tell(rows[-1])
    except bed.Trouble as trouble:
        print(f"error: {trouble}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(page(rows, options.short), encoding="utf-8")
    return 1 if any(row["error"] for row in rows) else 0


def one(made, name, options):
    """Runs a suite in a folder of its own, and checks the file system behind it."""
    suite, tells_version = SUITES[name]
    if tells_version and (options.tools / tells_version[0]).exists():
        tells_version = [options.tools / tells_version[0], *tells_version[1:]]
    row = {"suite": name, "version": programs.version(*tells_version) if tells_version else "-", "passed": 0, "failed": 0, "skipped": 0,
           "remark": "", "error": "", "what": " ".join(suite.__doc__.split())}
    places = [at / name for at in made.mounts]
    places[0].mkdir(mode=0o755)
    began = time.monotonic()
    try:
        seen = suite(programs.Place(*places, made.folder, options.tools.resolve(), options.short, options.minutes))
        row.update(seen._asdict())
        made.check()
        shutil.rmtree(places[1])
        made.check()
    except (programs.Failed, programs.Missing, bed.Trouble, OSError) as trouble:
        row["failed"] = max(1, row["failed"])
        row["error"] = str(trouble)
    row["seconds"] = round(time.monotonic() - began, 1)
    return row


def tell(row):
    """Says how a suite has ended, as soon as it has."""
    said = f"failed: {row['error']}" if row["error"] else "passed"
    counts = f"{row['passed']} passed, {row['skipped']} skipped" if row["passed"] > 1 else ""
    print(f"{row['suite']:<12} {row['seconds']:>7.1f} s  {said}  {counts}  {row['remark']}", flush=True)


def page(rows, is_short):
    """The result as a page."""
    lines = ["# Programs on a mounted file system", "",
             "Written by `make posix`. Three nodes and two mounts of one file system on one machine, two copies; after each suite",
             "`weft fs check` compares all names and inodes, and what the suite has left is removed through the other mount.", "",
             f"{platform.system()} {platform.release()}, {time.strftime('%Y-%m-%d')}{', short forms' if is_short else ''}.", "",
             "| suite | version | passed | failed | skipped | seconds | |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        remark = row["error"].splitlines()[0][:200] if row["error"] else row["remark"]
        cells = [row["suite"], row["version"], row["passed"], row["failed"], row["skipped"], f"{row['seconds']:.0f}", remark]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "What each of them is:", ""] + [f"- **{row['suite']}**: {row['what'][0].lower()}{row['what'][1:]}" for row in rows]
    return "\n".join(lines) + "\n"


def free_ports():
    """A port that is free, with those behind it."""
    while True:
        with contextlib.ExitStack() as held:
            port = bound(held, 0)
            try:
                for n in range(1, PORTS):
                    bound(held, port + n)
            except (OSError, OverflowError):
                continue
            return port


def bound(held, port):
    """Binds a port for as long as the stack holds it; returns its number."""
    one = held.enter_context(socket.socket())
    one.bind(("127.0.0.1", port))
    return one.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
