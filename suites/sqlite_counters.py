"""SQLite databases that processes on two mounts count in; nothing is lost, and the database is whole.

    sqlite_counters.py FILE THE-SAME-FILE delete|wal STEPS

In rollback mode (`delete`) processes on both mounts work at once. In WAL mode SQLite needs memory that all processes share:
all are on one mount, then all on the other one.
"""

import sqlite3
import subprocess
import sys

PROCESSES = 2


def connect(path, mode):
    base = sqlite3.connect(path, timeout=120, isolation_level=None)
    base.execute(f"pragma journal_mode={mode}")
    return base


def count(path, mode, steps):
    """Adds one so many times, each in a transaction that reads first."""
    base = connect(path, mode)
    for _ in range(steps):
        base.execute("begin immediate")
        (value,) = base.execute("select value from counter").fetchone()
        base.execute("update counter set value = ?", (value + 1,))
        base.execute("insert into log(value, filler) values (?, hex(randomblob(200)))", (value + 1,))
        base.execute("commit")
    base.close()


def main():
    """Does what the arguments say."""
    if sys.argv[1] == "count":
        return count(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    one, other, mode, steps = sys.argv[1:3] + [sys.argv[3], int(sys.argv[4])]
    base = connect(one, mode)
    base.executescript("create table counter(value integer); insert into counter values (0);"
                       "create table log(value integer primary key, filler text);")
    base.close()
    rounds = [[one, other]] if mode == "delete" else [[one] * PROCESSES, [other] * PROCESSES]
    for paths in rounds:
        running = [subprocess.Popen([sys.executable, __file__, "count", path, mode, str(steps)]) for path in paths]
        if any([process.wait() for process in running]):
            raise SystemExit("a process that counts has failed")
    base = connect(other, mode)
    (value,) = base.execute("select value from counter").fetchone()
    (logged,) = base.execute("select count(*) from log").fetchone()
    (whole,) = base.execute("pragma integrity_check").fetchone()
    base.close()
    expected = PROCESSES * steps * len(rounds)
    if (value, logged, whole) != (expected, expected, "ok"):
        raise SystemExit(f"counted {value}, logged {logged}, expected {expected}; the database is {whole}")
    print("all counted")


main()
