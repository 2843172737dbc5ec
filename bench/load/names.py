"""What one process does with names in a folder: makes files, opens, looks at, lists and removes them, and says how long each took.

    names.py FOLDER FILES FOLDERS

FOLDERS: over how many folders the files are spread. Prints an empty line once all is ready, then JSON: for each operation its microseconds,
in order, and its processor time. It begins with each when a line comes on its standard input, so that several processes do the same at the
same time.
"""

import json
import os
import sys
import time


def timed(work, items):
    """Microseconds of each call."""
    took = []
    for item in items:
        began = time.perf_counter_ns()
        work(item)
        took.append((time.perf_counter_ns() - began) // 1000)
    return took


def create(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def look_into(path):
    os.close(os.open(path, os.O_RDONLY))


def main():
    """Does what the arguments say."""
    folder, files, folders = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    parts = [f"{folder}/{n}" for n in range(folders)]
    for part in parts:
        os.makedirs(part, exist_ok=True)
    # Several processes may share a folder: names are of one process.
    paths = [f"{parts[n % folders]}/{os.getpid()}-{n:06}" for n in range(files)]
    print(flush=True)
    for name, work, items in (("create", create, paths), ("stat", os.stat, paths), ("open", look_into, paths),
                              ("readdir", os.listdir, parts), ("unlink", os.unlink, paths)):
        sys.stdin.readline()
        began, began_cpu_s = time.monotonic(), time.process_time()
        took = timed(work, items)
        print(json.dumps({"operation": name, "seconds": time.monotonic() - began, "items": files, "us": took,
                          "cpu_s": time.process_time() - began_cpu_s}), flush=True)


main()
