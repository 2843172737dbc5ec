#!/usr/bin/env python3
"""Programs on two mounts write and read one file at the same time: a read finds what was written by any of them and has returned.

Each of four programs, two on each mount, writes blocks of its own, over and over and further out, and reads those of all. A block holds its
number of writes, all over. Memory that they share says of each block up to which number writes have begun and returned.

usage: beside.py MOUNT OTHER_MOUNT SECONDS buffered|direct|parts
  buffered  through the kernel's pages     direct  past them (O_DIRECT)     parts  buffered, and now and then a part of a block
"""

import mmap
import multiprocessing
import os
import random
import sys
import time

BLOCK, PROGRAMS, BLOCKS_EACH, WORD = 4096, 4, 64, 8
SECONDS_TO_END = 120

# A read through the kernel's pages may show what was there before (docs/files.md): then it is asked again, so often, after a pause that
# is longer each time.
TRIES, PAUSE_S = 20, 0.002


class Wrong(Exception):
    """A read has found what it cannot."""


class Program:
    """One of them."""

    def __init__(self, number, path, how, shared):
        self.number, self.how, self.dice = number, how, random.Random(number)
        self.begun, self.done, self.ends, self.stops = shared
        flags = os.O_RDWR | (os.O_DIRECT if how == "direct" else 0)
        self.file = os.open(path, flags)
        # O_DIRECT takes memory that begins at a page.
        self.room = mmap.mmap(-1, BLOCK)

    def run(self):
        """Writes and reads until it is time to stop; returns how many of each, and how many reads were asked again."""
        counts = [0, 0, 0]
        while time.monotonic() < self.stops:
            if self.dice.random() < 0.4:
                self.write()
                counts[0] += 1
            else:
                counts[2] += self.read(self.dice.randrange(PROGRAMS))
                counts[1] += 1
        return counts

    def write(self):
        """Writes one of its blocks: the next new one at times."""
        block, end = self.number, self.ends[self.number]
        of_mine = end if end < BLOCKS_EACH and self.dice.random() < 0.05 else self.dice.randrange(max(end, 1))
        block += of_mine * PROGRAMS
        count = self.begun[block] + 1
        self.begun[block] = count
        data = count.to_bytes(WORD, "little") * (BLOCK // WORD)
        if self.how == "parts" and self.dice.random() < 0.1:
            os.pwrite(self.file, data[:BLOCK // 2], block * BLOCK)
            os.pwrite(self.file, data[BLOCK // 2:], block * BLOCK + BLOCK // 2)
        else:
            self.room[:] = data
            if os.pwrite(self.file, self.room, block * BLOCK) != BLOCK:
                raise Wrong(f"block {block}: a write takes less")
        self.done[block] = count
        if of_mine == end:
            self.ends[self.number] = end + 1

    def read(self, whose):
        """Reads a block of one of them, and compares; how often it was asked again."""
        end = self.ends[whose]
        if end == 0:
            return 0
        block = whose + self.dice.randrange(end) * PROGRAMS
        for tries in range(1 if self.how == "direct" else TRIES):
            least = self.done[block]
            length = os.preadv(self.file, [self.room], block * BLOCK)
            most = self.begun[block]
            words = memoryview(self.room).cast("Q").tolist()
            # As on other file systems of Linux, a page may be read while it is written.
            is_whole = self.how != "direct" or len(set(words)) == 1
            if length == BLOCK and is_whole and all(least <= word <= most for word in words):
                return tries
            time.sleep(PAUSE_S * tries)
        raise Wrong(f"block {block}: a read finds writes {sorted(set(words))} in {length} bytes, expected {least} to {most}")


def serve(number, path, how, shared, results):
    """A program as a process."""
    try:
        results.put((number, Program(number, path, how, shared).run()))
    except (Wrong, OSError) as wrong:
        results.put((number, f"program {number}: {wrong}"))


def main():
    """Does what the arguments say; returns the exit status."""
    mounts, seconds, how = sys.argv[1:3], float(sys.argv[3]), sys.argv[4]
    name = f"beside-{how}"
    with open(os.path.join(mounts[0], name), "wb"):
        pass
    array = lambda length: multiprocessing.Array("Q", length, lock=False)
    blocks = PROGRAMS * BLOCKS_EACH
    shared = (array(blocks), array(blocks), array(PROGRAMS), time.monotonic() + seconds)
    results = multiprocessing.Queue()
    programs = []
    for number in range(PROGRAMS):
        path = os.path.join(mounts[number % 2], name)
        programs.append(multiprocessing.Process(target=serve, args=(number, path, how, shared, results)))
    for program in programs:
        program.start()
    found = [results.get(timeout=seconds + SECONDS_TO_END)[1] for _ in programs]
    for program in programs:
        program.join()
    os.unlink(os.path.join(mounts[1], name))
    wrong = [text for text in found if isinstance(text, str)]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    writes, reads, again = (sum(counts[n] for counts in found) for n in range(3))
    print(f"{how}: {writes} writes, {reads} reads, {again} of them asked again")
    return 0


sys.exit(main())
