"""Where systems run: namespaces and RAM-backed media of our own, and every process that was started in them.

The measuring part of the runner runs as process 1 of a PID namespace, with a network of its own (loopback, and one
address more on it) and mounts of its own. So nothing listens where others could reach it, fixed ports and folders of a
peer cannot collide with those of the machine, and when the measuring part ends, for whatever reason, the kernel ends
all of its processes and drops all of its mounts. This file never measures anything.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import load

# The address of the bed on its own loopback, for systems that refuse 127.0.0.1. From the block for benchmarks (RFC 2544).
ADDRESS = "198.18.0.1"

# The media: one tmpfs. It hides the machine's own /dev/shm, which every Linux has, from the bed only.
MEDIA = pathlib.Path("/dev/shm")

# Folders that some daemon writes to wherever its configuration points. Each is hidden by an empty tmpfs, if it exists.
HIDDEN = ["/run", "/var/lib/ceph", "/var/log/ceph", "/etc/ceph", "/var/lib/glusterd", "/var/log/glusterfs", "/var/lib/mfs",
          "/var/lib/nfs"]

# Which system a process belongs to: children inherit it in their environment, so that also daemons that went their own way are found.
MARK = "WEFT_BENCH_SYSTEM"

# How long a daemon may take to come up, or to end after SIGTERM, in seconds. Judgements: ten times what was seen.
START_PATIENCE_S = 120
STOP_PATIENCE_S = 10


class BedError(Exception):
    """Something could not be started; the message is for people, and ends in what to look at."""


def namespaced(command):
    """The command, to be run as process 1 of a new bed. It dies with the caller, and with it all that it started."""
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    unshare = ["unshare", *user, "--mount", "--net", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"]
    return ["setpriv", "--pdeathsig", "KILL", *unshare, "--", *command]


def make(media_bytes):
    """Network and media, inside of the namespaces."""
    assert os.getpid() == 1, "the bed is made by process 1 of its namespaces"
    free_bytes = available_memory_bytes()
    if free_bytes < media_bytes:
        raise BedError(f"media and daemons need {media_bytes >> 20} MiB of memory, {free_bytes >> 20} MiB are available\n"
                       "hint: --peer picks peers that need less")
    run(["ip", "link", "set", "lo", "up"])
    run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"])
    for folder in HIDDEN:
        if os.path.isdir(folder):
            run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder])
    run(["mount", "-t", "tmpfs", "-o", f"size={media_bytes},mode=755", "tmpfs", str(MEDIA)])


def run(command, mark=None, env=None, timeout_s=START_PATIENCE_S):
    """Runs a command to its end; returns what it printed. Fails with its words."""
    done = subprocess.run(command, env=_environment(mark, env), text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout_s, check=False)
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise BedError(f"`{' '.join(map(str, command))}` ended with {done.returncode}: {words}")
    return done.stdout


def free_file(path, size_bytes):
    """A new file on the media with all of its space reserved."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    reserve(path, size_bytes)
    return path


def reserve(path, size_bytes):
    """Reserves all of a file's space, whatever it holds: its memory is touched before anything is timed."""
    with open(path, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)


def available_memory_bytes():
    """Memory that can be taken without swapping, by the kernel's estimate."""
    lines = pathlib.Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


class Place:
    """What one system has of the bed: a folder on the media, daemons with their logs, and a socket to be reached at."""

    def __init__(self, name):
        self.name = name
        self.folder = MEDIA / name
        self.folder.mkdir()
        self.socket = self.folder / "nbd.sock"
        self._daemons = []

    def run(self, command, env=None):
        """A command of this system, to its end."""
        return run([str(word) for word in command], mark=self.name, env=env)

    def daemon(self, command, env=None):
        """Starts a daemon that stays in the foreground; its output goes to a log in the folder."""
        command = [str(word) for word in command]
        log = self.folder / f"{len(self._daemons)}-{os.path.basename(command[0])}.log"
        with open(log, "wb") as output:
            child = subprocess.Popen(command, env=_environment(self.name, env), stdin=subprocess.DEVNULL,
                                     stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        self._daemons.append((child, log))
        return child

    def await_that(self, what, is_there):
        """Waits until a condition holds; a daemon that ends meanwhile is the failure, told with its log."""
        deadline = time.monotonic() + START_PATIENCE_S
        last = ""
        while time.monotonic() < deadline:
            try:
                if is_there():
                    return
            except (BedError, OSError, subprocess.TimeoutExpired) as error:
                last = f"; last: {error}"
            for child, log in self._daemons:
                if child.poll() is not None:
                    raise BedError(f"{child.args[0]} ended with {child.returncode}: {_tail(log)}")
            time.sleep(0.1)
        logs = "".join(f"\n{log.name}: {_tail(log)}" for _, log in self._daemons)
        raise BedError(f"{what}: not after {START_PATIENCE_S} s{last}{logs}")

    def await_socket(self, path=None):
        """Waits until the Unix socket at which the system is reached (or another one) is there."""
        path = path or self.socket
        self.await_that(f"the socket {path.name}", path.is_socket)

    def await_port(self, port, host="127.0.0.1"):
        """Waits until something listens at this TCP port."""
        def is_there():
            socket.create_connection((host, port), timeout=1).close()
            return True
        self.await_that(f"a server at port {port}", is_there)

    def cpu_s(self):
        """Processor time that this system's processes have used, in seconds, user and kernel."""
        used = 0.0
        for pid in self._pids():
            with contextlib.suppress(OSError):  # It ended meanwhile.
                used += load.processor_s(pid)
        return used

    def stop(self):
        """Drops the system's mounts, ends its processes, the last started first, and frees its media."""
        for mount in reversed(self._mounts()):
            run(["umount", "--lazy", mount])
        known = self._pids()
        for child, _ in reversed(self._daemons):
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(STOP_PATIENCE_S)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
        # What daemons started on their own, too.
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + STOP_PATIENCE_S
            for pid in self._pids(known):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            while self._pids(known) and time.monotonic() < deadline:
                time.sleep(0.05)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _mounts(self):
        """What is mounted in the folder, in the order of mounting."""
        lines = pathlib.Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        return [point for point in (line.split()[1] for line in lines) if point.startswith(f"{self.folder}/")]

    def _pids(self, known=frozenset()):
        """All processes of the system, of those that were known before also such as nothing tells any more. Some overwrite their
        environment, and so the mark, with a title of theirs: who started them tells."""
        wanted = f"{MARK}={self.name}".encode()
        found, parents = {child.pid for child, _ in self._daemons if child.poll() is None}, {}
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit() and entry.name != "1":
                try:
                    state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                    if state != "Z":
                        parents[int(entry.name)] = int(parent)
                        if wanted in (entry / "environ").read_bytes().split(b"\0"):
                            found.add(int(entry.name))
                except OSError:
                    pass  # It ended meanwhile.
        found |= known & parents.keys()
        while started := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= started
        return found


def _environment(mark, env):
    result = dict(os.environ, LC_ALL="C", **(env or {}))
    result.pop(MARK, None)
    if mark:
        result[MARK] = mark
    return result


def _tail(log):
    try:
        return log.read_text(errors="replace")[-1500:].strip() or "it said nothing"
    except OSError as error:
        return str(error)


def say(text):
    """What goes on, on standard error."""
    print(text, file=sys.stderr, flush=True)
