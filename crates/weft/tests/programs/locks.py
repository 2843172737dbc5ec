"""What programs may rely on when they lock files through two mounts of one file system.

    locks.py FOLDER OTHER

Both are mounts of the same files. Ends with 1 and says what is wrong; prints `locks hold` otherwise.
"""

import contextlib
import errno
import fcntl
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import time

# `struct flock` of 64-bit Linux: type, whence, start, length, pid.
FLOCK = "hhqqi"
F_OFD_SETLK = 37
STEPS = 40


def record(kind, start=0, length=0):
    return struct.pack(FLOCK, kind, os.SEEK_SET, start, length, 0)


def taken(lock):
    """Whether somebody else has it."""
    try:
        lock()
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return True
        raise
    return False


def ranged(file, kind, start=0, length=0, wait=False):
    return fcntl.fcntl(file, fcntl.F_SETLKW if wait else fcntl.F_SETLK, record(kind, start, length))


def is_locked(file, kind, start=0, length=0):
    """By whom, as `F_GETLK` says it: type, start and length."""
    found = struct.unpack(FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, record(kind, start, length)))
    return None if found[0] == fcntl.F_UNLCK else (found[0], found[2], found[3])


@contextlib.contextmanager
def other_process(work):
    """Another process that has done something, and stays until it is killed."""
    done, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
            os.write(told, b"1")
            time.sleep(600)
        except BaseException as error:  # noqa: B902
            os.write(told, repr(error).encode())
        os._exit(0)
    os.close(told)
    said = os.read(done, 1000)
    assert said == b"1", said
    yield
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(done)


def wait_until(what, says):
    for _ in range(400):
        if says():
            return
        time.sleep(0.05)
    raise AssertionError(what)


def whole_files(a, b):
    first, second = open(a), open(b)
    fcntl.flock(first, fcntl.LOCK_SH)
    fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert taken(lambda: fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)), "two share it, and one has it alone"
    fcntl.flock(second, fcntl.LOCK_UN)
    fcntl.flock(first, fcntl.LOCK_EX)
    assert taken(lambda: fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB)), "one has it alone beside another one"
    # Of two that share it and want it alone, one gets it, and then the other one.
    fcntl.flock(first, fcntl.LOCK_SH)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        own = open(b)
        fcntl.flock(own, fcntl.LOCK_SH)
        os.write(tell, b"1")
        fcntl.flock(own, fcntl.LOCK_EX)
        os._exit(0)
    os.read(told, 1)
    time.sleep(0.2)
    fcntl.flock(first, fcntl.LOCK_EX)
    fcntl.flock(first, fcntl.LOCK_UN)
    assert os.waitpid(child, 0)[1] == 0
    fcntl.flock(first, fcntl.LOCK_EX)
    # The other family of locks knows nothing of it.
    with open(b, "r+") as ranges:
        ranged(ranges, fcntl.F_WRLCK)
    first.close()
    wait_until("a lock stays when its file is closed", lambda: not taken(lambda: fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)))
    second.close()


def ranges(a, b):
    def hold():
        file = open(a, "r+")
        ranged(file, fcntl.F_WRLCK, 100, 50)
        ranged(file, fcntl.F_UNLCK, 120, 10)
        ranged(file, fcntl.F_RDLCK, 140, 60)
        hold.file = file

    with other_process(hold), open(b, "r+") as file:
        assert is_locked(file, fcntl.F_WRLCK, 0, 100) is None
        assert is_locked(file, fcntl.F_RDLCK, 119, 2) == (fcntl.F_WRLCK, 100, 20)
        assert is_locked(file, fcntl.F_RDLCK, 120, 10) is None
        assert is_locked(file, fcntl.F_RDLCK, 130, 60) == (fcntl.F_WRLCK, 130, 10)
        assert is_locked(file, fcntl.F_RDLCK, 140, 1000) is None
        assert is_locked(file, fcntl.F_WRLCK, 199, 1000) == (fcntl.F_RDLCK, 140, 60)
        assert taken(lambda: ranged(file, fcntl.F_WRLCK, 0, 0))
        ranged(file, fcntl.F_WRLCK, 120, 10)
    with open(b, "r+") as file:
        wait_until("a lock stays when its process is killed", lambda: is_locked(file, fcntl.F_WRLCK) is None)


def closed_files(a, b):
    # A process that closes a file has no lock on a range of it any more, by whatever descriptor it took it.
    def hold_and_close():
        hold_and_close.file = open(a, "r+")
        ranged(hold_and_close.file, fcntl.F_WRLCK)
        open(a).close()

    with other_process(hold_and_close), open(b, "r+") as file:
        assert is_locked(file, fcntl.F_WRLCK) is None, "a closed file is locked"
    # One of an open file goes with that.
    first, second = open(a, "r+"), open(b, "r+")
    fcntl.fcntl(first, F_OFD_SETLK, record(fcntl.F_WRLCK))
    assert taken(lambda: fcntl.fcntl(second, F_OFD_SETLK, record(fcntl.F_WRLCK)))
    open(a).close()
    assert taken(lambda: fcntl.fcntl(second, F_OFD_SETLK, record(fcntl.F_WRLCK)))
    first.close()
    again = lambda: not taken(lambda: fcntl.fcntl(second, F_OFD_SETLK, record(fcntl.F_WRLCK)))
    wait_until("a lock of an open file outlives it", again)
    second.close()


def waiting(a, b):
    def hold():
        hold.file = open(a, "r+")
        ranged(hold.file, fcntl.F_WRLCK, 0, 1)

    # Somebody who waits is told by a signal, and has nothing then.
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    signal.signal(signal.SIGALRM, ring)
    with open(b, "r+") as file:
        with other_process(hold):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            try:
                ranged(file, fcntl.F_WRLCK, 0, 10, wait=True)
                raise AssertionError("a lock is granted twice")
            except Alarm:
                pass
        with open(a, "r+") as other:
            pid = os.fork()
            if pid == 0:
                os._exit(0 if is_locked(other, fcntl.F_WRLCK, 1, 9) is None else 1)
            assert os.waitpid(pid, 0)[1] == 0, "who was interrupted has the lock"
        # Signals that come all the time take it nothing: it has the lock once that is free.
        signal.signal(signal.SIGALRM, lambda *_: None)
        with other_process(hold):
            pid = os.fork()
            if pid == 0:
                signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
                ranged(file, fcntl.F_WRLCK, 0, 10, wait=True)
                os._exit(0)
            time.sleep(1.5)
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), "a lock is granted twice"
        assert os.waitpid(pid, 0)[1] == 0
    # Or gets it when it is free.
    with open(a, "r+") as first:
        ranged(first, fcntl.F_WRLCK)
        child = os.fork()
        if child == 0:
            with open(b, "r+") as file:
                ranged(file, fcntl.F_WRLCK, wait=True)
            os._exit(0)
        time.sleep(0.3)
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "a lock is granted twice"
        ranged(first, fcntl.F_UNLCK)
        assert os.waitpid(child, 0)[1] == 0


def deadlock(a, b):
    with open(b, "r+") as file:
        ranged(file, fcntl.F_WRLCK, 0, 1)
        child = os.fork()
        if child == 0:
            with open(a, "r+") as other:
                ranged(other, fcntl.F_WRLCK, 1, 1)
                ranged(other, fcntl.F_WRLCK, 0, 1, wait=True)
            os._exit(0)
        wait_until("the child has its lock", lambda: is_locked(file, fcntl.F_WRLCK, 1, 1) is not None)
        time.sleep(0.2)
        try:
            ranged(file, fcntl.F_WRLCK, 1, 1, wait=True)
            raise AssertionError("two wait for each other")
        except OSError as error:
            assert error.errno == errno.EDEADLK, error
        ranged(file, fcntl.F_UNLCK)
        assert os.waitpid(child, 0)[1] == 0


def count(path):
    """Counts in a database, beside another process."""
    database = sqlite3.connect(path, timeout=60, isolation_level=None)
    for _ in range(STEPS):
        database.execute("begin immediate")
        (value,) = database.execute("select value from counter").fetchone()
        database.execute("update counter set value = ?", (value + 1,))
        database.execute("commit")
    database.close()


def databases(a, b):
    path, other = os.path.join(a, "data.db"), os.path.join(b, "data.db")
    database = sqlite3.connect(path)
    database.execute("create table counter(value integer)")
    database.execute("insert into counter values (0)")
    database.commit()
    database.close()
    children = [subprocess.Popen([sys.executable, __file__, "--count", place]) for place in (path, other)]
    assert [child.wait() for child in children] == [0, 0]
    database = sqlite3.connect(other)
    (value,) = database.execute("select value from counter").fetchone()
    assert value == 2 * STEPS, f"{value} of {2 * STEPS} transactions are there"
    assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    database.close()


def main():
    if sys.argv[1] == "--count":
        return count(sys.argv[2])
    a, b = sys.argv[1:]
    with open(os.path.join(a, "locked"), "w") as file:
        file.write("x" * 1000)
    files = os.path.join(a, "locked"), os.path.join(b, "locked")
    for check in (whole_files, ranges, closed_files, waiting, deadlock):
        check(*files)
    databases(a, b)
    print("locks hold")


main()
