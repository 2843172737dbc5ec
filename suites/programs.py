"""The suites and programs that run on a mounted file system, each a function that returns what it has seen.

A program that fails raises `Failed`, with the end of what it said. None is left out silently: what cannot run here raises
`Missing`, and that fails the run as well.
"""

import collections
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parents[1]

# How long one program may take, in seconds.
PROGRAM_S = 3600

Seen = collections.namedtuple("Seen", "passed failed skipped remark", defaults=(0, 0, ""))
Place = collections.namedtuple("Place", "a b scratch tools short minutes")


class Failed(Exception):
    """A program has found something wrong."""


class Missing(Exception):
    """A program is not there."""


def run(*words, cwd=None, user=None, env=None, ok=(0,), timeout=PROGRAM_S, stdin=None):
    """Runs a program to its end, and returns what it said."""
    words = [str(word) for word in words]
    if user:
        words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", *words]
    try:
        done = subprocess.run(words, cwd=cwd, env=env, stdin=subprocess.DEVNULL if stdin is None else None, input=stdin, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, check=False, errors="replace")
    except FileNotFoundError as error:
        raise Missing(f"{words[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{' '.join(words)[:200]} did not end in {timeout} s") from error
    if done.returncode not in ok:
        raise Failed(f"{' '.join(words)[:200]} ended with {done.returncode}: {done.stdout[-3000:]}")
    return done.stdout


def version(*words, pattern=r"(\d+(?:\.\w+)+)"):
    """The version that a program tells."""
    try:
        said = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return "-"
    found = re.search(pattern, said.stdout + said.stderr)
    return found.group(1) if found else "-"


def pjdfstest(place):
    """Names, permissions, times, links and errors, call by call."""
    config = place.scratch / "pjdfstest.toml"
    config.write_text(PJDFSTEST, encoding="utf-8")
    said = run(place.tools / "pjdfstest", "-c", config, "-p", place.a, ok=(0, 1))
    count = lambda word: int((re.search(rf"(\d+) {word}", said) or [0, 0])[1])
    passed, failed, skipped = count("passed"), count("failed"), count("skipped")
    if failed or not passed:
        raise Failed(f"{failed} failed, {passed} passed: {said[-6000:]}")
    return Seen(passed, failed, skipped, "skipped: flags and calls that Linux does not have")


# Everything that this file system has, with some pause where its times are looked at.
PJDFSTEST = """\
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.01

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"""

# All operations of fsx that Linux has, closing and reopening among them.
FSX = """\
flen = 1000000

[weights]
close_open = 1
invalidate = 1
mapread = 2
mapwrite = 2
read = 5
write = 5
truncate = 2
fsync = 0.2
fdatasync = 0.2
posix_fallocate = 1
punch_hole = 1
sendfile = 1
copy_file_range = 1
"""


def fsx(place):
    """Reads, writes, mappings, truncation, holes and copies of one file, each compared; the long form goes on for an hour with new seeds."""
    config = place.scratch / "fsx.toml"
    config.write_text(FSX, encoding="utf-8")

    def once(seed, operations):
        """A file of its own, so that a seed shows the same alone."""
        run(place.tools / "fsx", "-f", config, "-N", operations, "-S", seed, "-P", place.scratch, place.a / f"file{seed}")
        (place.b / f"file{seed}").unlink()
    operations, seeds = rounds(place, once, 2_000)
    return Seen(operations, remark=f"operations, one mount, seeds from {FIRST_SEED} to {seeds}")


def shared_file(place):
    """The same through two mounts in turn: what one has done, the other one sees."""
    def once(seed, steps):
        """A file of its own, as above."""
        run(sys.executable, TOP / "suites/shared_file.py", place.a / f"file{seed}", place.b / f"file{seed}", steps, seed)
        (place.b / f"file{seed}").unlink()
    steps, seeds = rounds(place, once, 300)
    return Seen(steps, remark=f"operations, two mounts of one file, seeds from {FIRST_SEED} to {seeds}")


def beside(place):
    """Two programs on each of two mounts write and read one file at the same time: through the kernel's pages, past them, in parts of blocks."""
    seconds, again = 3 if place.short else 60, 0
    for how in "buffered", "direct", "parts":
        said = run(sys.executable, TOP / "suites/beside.py", place.a, place.b, seconds, how)
        again += int(re.search(r"(\d+) of them asked again", said).group(1))
    return Seen(3, remark=f"ways, {seconds} s each; {again} reads were asked again, as docs/files.md says")


FIRST_SEED = 7


def rounds(place, once, operations):
    """Runs `once` with a seed and a number of operations: in the short form one round, in the long form so many longer ones as there is time for.

    Returns the operations in all, and the last seed.
    """
    if place.short:
        once(FIRST_SEED, operations)
        return operations, FIRST_SEED
    end, seed, done = time.monotonic() + 60 * place.minutes, FIRST_SEED, 0
    while True:
        once(seed, 10 * operations)
        done += 10 * operations
        if time.monotonic() > end:
            return done, seed
        seed += 1


def locks(place):
    """`flock`, `fcntl`, waits, signals, deadlocks, and SQLite by both."""
    run(sys.executable, TOP / "crates/weft/tests/programs/locks.py", place.a, place.b)
    return Seen(1)


def dbench(place):
    """The calls of a file server with four clients."""
    seconds = 5 if place.short else 60
    said = run("dbench", "-D", place.a, "-t", seconds, 4)
    rate = re.search(r"Throughput ([\d.]+) MB/sec", said)
    return Seen(1, remark=f"{rate.group(1)} MB/s" if rate else "")


def bonnie(place):
    """Sequential data, seeks, and small files."""
    size, files = ("64m", 1) if place.short else ("2g", 16)
    # In the short form without what it writes and reads one character at a time: that is a test of the C library.
    fast = ["-f"] if place.short else []
    run("bonnie++", "-d", place.a, "-u", "root", "-s", size, "-r", "32" if place.short else "1024", "-n", files, "-q", *fast)
    return Seen(1, remark=f"{size}, {files * 1024} files")


# Stressors of files that ask nothing of the file system beyond what files are, and verify what they do.
STRESSORS = ["access", "aio", "aiol", "chattr", "chdir", "chmod", "chown", "copy-file", "dentry", "dir", "dirdeep", "dirmany", "dnotify",
             "dup", "eventfd", "fallocate", "fanotify", "fcntl", "fiemap", "file-ioctl", "filename", "flock", "fpunch", "fsize",
             "fstat", "getdent", "handle", "hdd", "inode-flags", "inotify", "io", "iomix", "ioprio", "lease", "link", "locka",
             "lockf", "lockofd", "metamix", "mknod", "mmap", "open", "readahead", "rename", "revio", "seek", "sendfile",
             "symlink", "sync-file", "touch", "unlink", "utime", "verity", "xattr"]
SHORT_STRESSORS = ["dentry", "fallocate", "fcntl", "flock", "link", "locka", "rename", "seek", "symlink", "xattr"]


def stress_ng(place):
    """Many processes at once on names, attributes, locks and data, with verification."""
    seconds, stressors = (1, SHORT_STRESSORS) if place.short else (5, STRESSORS)
    known = run("stress-ng", "--stressors").split()
    passed, skipped = 0, [stressor for stressor in stressors if stressor not in known]
    for stressor in stressors:
        if stressor in skipped:
            continue
        # 2: it could not be started; 3, 4: not on this machine.
        said = run("stress-ng", f"--{stressor}", 2, "--verify", "-t", f"{seconds}s", "--temp-path", place.a, ok=(0, 3, 4),
                   timeout=seconds + 300)
        if "unsuccessful run" in said:
            raise Failed(f"{stressor}: {said[-3000:]}")
        if re.search(r"skipped: [1-9]|skipping|not implemented|not supported", said) and "passed: 0" in said:
            skipped.append(stressor)
        else:
            passed += 1
    return Seen(passed, 0, len(skipped), f"not on this machine, or not in this version: {', '.join(skipped)}" if skipped else "")


def fio(place):
    """Data that is verified: buffered, direct and mapped."""
    size, seconds = ("16m", 3) if place.short else ("256m", 30)
    kinds = {"buffered": ["--ioengine=psync", "--rw=randrw"], "direct": ["--ioengine=libaio", "--iodepth=16", "--direct=1", "--rw=randwrite"],
             "mmap": ["--ioengine=mmap", "--rw=randwrite"]}
    for kind, words in kinds.items():
        run("fio", f"--name={kind}", f"--directory={place.a}", f"--size={size}", "--bs=4k-64k", "--bs_unaligned=0", "--verify=crc32c",
            "--do_verify=1", "--verify_fatal=1", f"--runtime={seconds}", "--numjobs=2", "--fallocate=none", *words, cwd=place.scratch)
    return Seen(len(kinds), remark=", ".join(kinds))


def git(place):
    """A repository: clone, change, commit, collect, verify; read on the other mount."""
    here = {**os.environ, "HOME": str(place.a), "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org",
            "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org", "GIT_CONFIG_NOSYSTEM": "1"}
    (place.a / ".gitconfig").write_text("[safe]\n\tdirectory = *\n", encoding="utf-8")
    source, clone = place.a / "source", place.a / "clone"
    tree = TOP / "crates/weft-sim" if place.short else TOP / "crates"
    shutil.copytree(tree, source, symlinks=True)
    for words in ["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]:
        run("git", *words, cwd=source, env=here)
    run("git", "clone", "-q", "--no-local", source, clone, env=here)
    run("git", "checkout", "-q", "-b", "other", cwd=clone, env=here)
    run("git", "mv", "src" if place.short else "weft-sim", "moved", cwd=clone, env=here)
    run("git", "commit", "-q", "-m", "second", cwd=clone, env=here)
    run("git", "gc", "-q", cwd=clone, env=here)
    seen = place.b / "clone"
    run("git", "fsck", "--full", "--strict", cwd=seen, env=here)
    if run("git", "status", "--porcelain", cwd=seen, env=here):
        raise Failed("the other mount sees changes that nobody has made")
    return Seen(1, remark="clone, checkout, commit, gc; fsck on the other mount")


def compiler(place):
    """A C library with its configure script, by `make -j`, and its own tests; from the sources of binutils."""
    archives = sorted(pathlib.Path("/usr/src/binutils").glob("binutils-*.tar.*"))
    if not archives:
        raise Missing("the package binutils-source is not installed")
    run("tar", "-xf", archives[-1], "-C", place.a, "--strip-components=1", "--wildcards", "*/libiberty", "*/include",
        "*/config*", "*/install-sh", "*/move-if-change", "*/mkinstalldirs", "*/ltmain.sh", "*/missing", "*/depcomp")
    build = place.a / "build"
    build.mkdir()
    run(place.a / "libiberty/configure", cwd=build)
    run("make", "-j4", cwd=build)
    if not place.short:
        run("make", "check", cwd=build)
    if not (place.b / "build/libiberty.a").stat().st_size:
        raise Failed("the other mount sees no library")
    return Seen(1, remark=archives[-1].name.split(".tar")[0])


def tree(place):
    """A tree of small files: unpacked by tar, copied by rsync, compared through the other mount, removed."""
    files = 1_000 if place.short else 100_000
    # What is unpacked comes from another file system.
    source = pathlib.Path(f"/dev/shm/weft-posix-{os.getpid()}")
    try:
        for n in range(files):
            folder = source / f"{n // 1000}" / f"{n // 50 % 20}"
            if n % 50 == 0:
                folder.mkdir(parents=True)
            (folder / f"{n}").write_bytes(str(n).encode() * (n % 700))
        run("tar", "-cf", f"{source}.tar", "-C", source, ".")
        (place.a / "tar").mkdir()
        run("tar", "-xf", f"{source}.tar", "-C", place.a / "tar")
        run("rsync", "-a", f"{source}/", place.a / "rsync")
        if changed := run("rsync", "-a", "--itemize-changes", f"{source}/", place.b / "rsync").strip():
            raise Failed(f"rsync would copy again, to the other mount: {changed[-1000:]}")
        for copy in "tar", "rsync":
            run("diff", "-r", source, place.b / copy)
        run("rm", "-r", place.b / "tar", place.b / "rsync")
    finally:
        shutil.rmtree(source, ignore_errors=True)
        pathlib.Path(f"{source}.tar").unlink(missing_ok=True)
    return Seen(1, remark=f"{files} files")


def sqlite(place):
    """Rollback mode from two mounts at once; WAL mode from one mount by several processes, then from the other one."""
    steps = 20 if place.short else 400
    for mode in "delete", "wal":
        said = run(sys.executable, TOP / "suites/sqlite_counters.py", place.a / mode, place.b / mode, mode, steps)
        if "all counted" not in said:
            raise Failed(said)
    return Seen(2, remark="rollback mode from two mounts at once, WAL from one after the other")


def postgresql(place):
    """pgbench, the server killed under load and recovered on the other mount, balances compared."""
    programs = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        raise Missing("postgresql is not installed")
    bin_, data, socket = programs[-1], place.a / "data", place.scratch / "socket"
    seconds = 5 if place.short else 60
    for folder in data, socket:
        folder.mkdir(mode=0o700)
        shutil.chown(folder, "postgres", "postgres")

    def client(program, *words, **how):
        return run(bin_ / program, "-h", socket, *words, user="postgres", cwd=socket, **how)

    def start(data):
        """Starts a server, and waits until it answers."""
        with open(place.scratch / "postgresql.log", "ab") as log:
            server = subprocess.Popen(["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", bin_ / "postgres", "-D", data,
                                       "-c", "listen_addresses=", "-k", socket], cwd=socket, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 300
        # 1: it is starting, 2: it does not listen yet.
        while "accepting" not in client("pg_isready", ok=(0, 1, 2)):
            if server.poll() is not None or time.monotonic() > deadline:
                server.kill()
                raise Failed(f"PostgreSQL does not start: {(place.scratch / 'postgresql.log').read_text()[-3000:]}")
            time.sleep(0.2)
        return server

    run(bin_ / "initdb", "-D", data, "-A", "trust", user="postgres", cwd=socket)
    server = start(data)
    try:
        client("pgbench", "-i", "-q", "-s", 1 if place.short else 10, "postgres")
        load = subprocess.Popen([bin_ / "pgbench", "-h", socket, "-U", "postgres", "-n", "-c", "4", "-T", str(seconds), "postgres"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            load.wait(seconds / 2)
        kill_family(server)
        load.wait()
        server = start(place.b / "data")
        said = client("pgbench", "-n", "-c", 4, "-T", seconds, "postgres")
        sums = client("psql", "-Atc", "select (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches) "
                      "and (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history)", "postgres")
        client("psql", "-qc", "create extension if not exists amcheck", "postgres")
        client("psql", "-Atc", "select bt_index_check(c.oid) from pg_class c where relkind = 'i' and relname like 'pgbench%'", "postgres")
    finally:
        # Its fast shutdown.
        server.send_signal(signal.SIGINT)
        server.wait(PROGRAM_S)
    if sums.strip() != "t":
        raise Failed(f"balances do not agree after the server was killed: {sums}")
    recovered = (place.scratch / "postgresql.log").read_text(encoding="utf-8", errors="replace")
    if "automatic recovery in progress" not in recovered:
        raise Failed(f"PostgreSQL has not recovered anything: {recovered[-3000:]}")
    rate = re.search(r"tps = (\d+)", said)
    return Seen(1, remark=f"{rate.group(1)} transactions/s" if rate else "")


def kill_family(server):
    """Kills a process with its children, and waits until none is left."""
    children = pathlib.Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text(encoding="ascii").split()
    server.kill()
    for child in map(int, children):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    server.wait()
    deadline = time.monotonic() + 60
    while any(is_running(child) for child in children):
        if time.monotonic() > deadline:
            raise Failed(f"of {children} not all end after SIGKILL")
        time.sleep(0.1)


def is_running(process):
    """Whether a process is there and has not ended."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def mpi(place):
    """One file written by many ranks through two mounts: mpi4py with MPI-IO in several ways, parallel HDF5, and parallel netCDF."""
    ranks = 4 if place.short else 16
    kinds = ["mpiio", "independent", "views", "ordered", "hdf5", "netcdf"]
    for kind in kinds:
        # The packages are those of the system's own Python.
        said = run("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", ranks, "/usr/bin/python3", TOP / "suites/ranks.py", kind,
                   place.a / kind, place.b / kind, 4 if place.short else 64)
        if "all ranks agree" not in said:
            raise Failed(said)
    return Seen(len(kinds), remark=f"{', '.join(kinds)}; {ranks} ranks on two mounts")


# By name: the program, what tells its version, and whether the short form has it.
SUITES = {
    "pjdfstest": (pjdfstest, ["pjdfstest", "--version"]),
    "fsx": (fsx, ["fsx", "--version"]),
    "shared-file": (shared_file, None),
    "beside": (beside, None),
    "locks": (locks, None),
    "fio": (fio, ["fio", "--version"]),
    "stress-ng": (stress_ng, ["stress-ng", "--version"]),
    "dbench": (dbench, ["dbench", "--version"]),
    "bonnie++": (bonnie, ["bonnie++", "-version"]),
    "git": (git, ["git", "--version"]),
    "compiler": (compiler, ["cc", "--version"]),
    "tree": (tree, ["rsync", "--version"]),
    "sqlite": (sqlite, [sys.executable, "-c", "import sqlite3; print(sqlite3.sqlite_version)"]),
    "postgresql": (postgresql, ["psql", "--version"]),
    "mpi": (mpi, ["mpirun", "--version"]),
}
