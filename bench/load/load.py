"""The workloads, and fio: how a job is put to a system, and what is read from fio's result.

Every system gets the same jobs. Only the engine differs, where a system is reached by a client library of its own.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile

MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Workload:
    """A shape of load: one job, so many requests of one size in flight."""

    name: str
    rw: str  # fio's name of order and direction
    block_bytes: int
    depth: int

    @property
    def is_write(self):
        return self.rw.endswith("write")


# The eight workloads of `weft bench figures`, by the same names.
WORKLOADS = [
    Workload("randread-4k-32", "randread", 4096, 32),
    Workload("randwrite-4k-32", "randwrite", 4096, 32),
    Workload("randread-4k-1", "randread", 4096, 1),
    Workload("randwrite-4k-1", "randwrite", 4096, 1),
    Workload("randread-64k-8", "randread", 65536, 8),
    Workload("randwrite-64k-8", "randwrite", 65536, 8),
    Workload("seqread-1m-4", "read", MIB, 4),
    Workload("seqwrite-1m-4", "write", MIB, 4),
]


class LoadError(Exception):
    """fio failed, or found wrong data; the message has its words."""


def nbd(socket):
    """fio's options for an export at a Unix socket."""
    return ["--ioengine=nbd", f"--uri=nbd+unix:///?socket={socket}"]


def file(path):
    """fio's options for a file of a mounted file system, past the kernel's cache."""
    return ["--ioengine=libaio", "--direct=1", f"--filename={path}"]


def fill(reach, size_bytes, env=None):
    """Writes all of the volume twice, so that reads find data and memory was touched; and checks that it keeps data."""
    for _ in range(2):
        _fio(reach, env, ["--name=fill", "--rw=write", "--bs=1m", "--iodepth=4", f"--size={size_bytes}"])
    _fio(reach, env, ["--name=check", "--rw=randwrite", "--bs=4k", "--iodepth=8", f"--size={16 * MIB}",
                      "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"])


def measure(reach, workload, size_bytes, seconds, cpu_s=lambda: 0.0, env=None):
    """One run of a workload; the figures of a round, all as plain numbers. `cpu_s` says how much processor time the system has used;
    `system_cores` is how many processors that system kept busy alone, `cores` is that with fio's."""
    # A fifth of the time, at most two seconds: for queues to fill and executors to find their way of waiting.
    ramp_s = min(2.0, seconds / 5)
    began_cpu_s = cpu_s()
    result, fio_cpu_s = _fio(reach, env, [
        f"--name={workload.name}", f"--rw={workload.rw}", f"--bs={workload.block_bytes}",
        f"--iodepth={workload.depth}", f"--size={size_bytes}", "--time_based", f"--runtime={seconds}",
        f"--ramp_time={ramp_s:.1f}s", "--randrepeat=0", "--norandommap",
    ])
    system_cpu_s = cpu_s() - began_cpu_s
    # Not over all of fio's life: some client libraries take seconds to connect and to let go.
    seconds = result["jobs"][0]["job_runtime"] / 1e3 + ramp_s
    return {**figures(result, workload, (system_cpu_s + fio_cpu_s) / seconds), "system_cores": round(system_cpu_s / seconds, 3)}


def processor_s(pid):
    """Processor time that a process has used, in seconds, user and kernel; an OSError if it has ended."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime of proc(5), counted behind the name


def figures(result, workload, cores):
    """What counts of fio's JSON. `cores` is how many processors the system and fio kept busy together."""
    side = result["jobs"][0]["write" if workload.is_write else "read"]
    if result["jobs"][0]["error"] != 0 or side["total_ios"] == 0:
        raise LoadError(f"{workload.name}: fio reports error {result['jobs'][0]['error']}, {side['total_ios']} requests")
    # Where fio's clock is coarse it leaves percentiles out.
    percentiles = side["clat_ns"].get("percentile", {})
    return {
        "iops": round(side["iops"], 1),
        "mb_per_s": round(side["iops"] * workload.block_bytes / 1e6, 1),
        "mean_us": round(side["clat_ns"]["mean"] / 1e3, 1),
        "p50_us": round(percentiles.get("50.000000", 0) / 1e3, 1),
        "p99_us": round(percentiles.get("99.000000", 0) / 1e3, 1),
        "cores": round(cores, 3),
        "iops_per_core": round(side["iops"] / cores, 1) if cores > 0 else None,
    }


def _fio(reach, env, options):
    """Runs fio; its JSON, and the processor time that it used in seconds."""
    # In a folder of its own: some options leave files where fio runs.
    with tempfile.TemporaryDirectory(prefix="weft-fio-", dir="/dev/shm") as folder:
        before = os.times()
        done = subprocess.run(["fio", "--output-format=json", "--thread", *reach, *options], cwd=folder,
                              env=dict(os.environ, **(env or {})), text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        after = os.times()
    cpu_s = after.children_user - before.children_user + after.children_system - before.children_system
    # Engines print warnings before the document.
    document = done.stdout[done.stdout.find("{"):]
    if done.returncode != 0 or not document.startswith("{"):
        raise LoadError(f"fio {' '.join([*reach, *options])} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:].strip()}")
    result = json.loads(document)
    if any(job["error"] for job in result["jobs"]):
        raise LoadError(f"fio {' '.join([*reach, *options])}: {done.stderr.strip()[-2000:]}")
    return result, cpu_s
