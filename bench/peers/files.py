"""The comparison as mounted file systems: who takes part, and what programs ask of all: names, small files, direct data of one file.

The same that `bench/files` measures, by the same code.
"""

import dataclasses
import os

import load
import mounted
from ceph import CephFs
from gluster import GlusterMounted
from moosefs import MooseFsMounted, MooseFsMountedCached
from system import VOLUME_BYTES
from weft import WeftMounted

WEFT = WeftMounted
PEERS = [GlusterMounted, MooseFsMounted, MooseFsMountedCached, CephFs]

# How many files there are follows from the length of a run, which they do not have: at 5 s as many as `bench/files` has. By name these are
# files of all processes together, and files that are unpacked.
FILES_PER_SECOND, UNPACKED_PER_SECOND = 800, 4000

# Operations on names that are told: listing goes by folders, and one process has a single one.
TOLD = ["create", "stat", "open", "unlink"]


@dataclasses.dataclass(frozen=True)
class Names:
    """Processes that make, look at, open and remove files, in so many folders."""

    processes: int
    folders: int

    @property
    def names(self):
        """The workloads that are measured at once."""
        return [f"{operation}-{self.processes}" for operation in TOLD]

    def measure(self, system, mount, seconds):
        """Figures by workload."""
        files = max(1, int(FILES_PER_SECOND * seconds) // self.processes)
        found = mounted.names([mount / "names"], self.processes, self.folders, files, system.place.cpu_s)
        return {f"{operation}-{self.processes}": figures(found[operation]["per_second"], found[operation]["cores"], p50_us=found[operation]["p50"],
                                                         p99_us=found[operation]["p99"]) for operation in TOLD}


class Unpack:
    """An archive of small files that tar unpacks."""

    names = ["unpack"]

    def measure(self, system, mount, seconds):
        """Figures by workload."""
        files = max(1, int(UNPACKED_PER_SECOND * seconds))
        with mounted.archive(files) as (archive, size_bytes):
            took_s, cores = mounted.unpack(archive, mount / "unpacked", system.place.cpu_s)
        return {"unpack": figures(files / took_s, cores, mb_per_s=size_bytes / took_s / 1e6)}


@dataclasses.dataclass(frozen=True)
class Direct:
    """Reads or writes of one file past the kernel's cache."""

    workload: load.Workload

    @property
    def names(self):
        """The workloads that are measured at once."""
        return [self.workload.name]

    def measure(self, system, mount, seconds):
        """Figures by workload."""
        reach = [*load.file(mount / "data"), *(system.durable_writes if self.workload.is_write else [])]
        found = load.measure(reach, self.workload, VOLUME_BYTES, seconds, system.place.cpu_s)
        return {self.workload.name: figures(found["iops"], found["cores"], found["mb_per_s"], found["p50_us"], found["p99_us"])}


RUNS = [Names(1, 1), Names(mounted.PROCESSES, mounted.FOLDERS), Unpack(), *(Direct(workload) for workload in mounted.DATA)]


def figures(per_second, cores, mb_per_s=None, p50_us=None, p99_us=None):
    """The figures of a round, all as plain numbers; None where there is no such figure."""
    return {
        "per_second": round(per_second, 1),
        "mb_per_s": None if mb_per_s is None else round(mb_per_s, 1),
        "p50_us": p50_us,
        "p99_us": p99_us,
        "cores": round(cores, 3),
        "per_second_per_core": round(per_second / cores, 1) if cores > 0 else None,
    }


def missing():
    """What this machine lacks beside packages, in words; None if nothing."""
    if os.geteuid() != 0:
        return "mounting needs root"
    if not os.path.exists("/dev/fuse"):
        return "/dev/fuse is not there\nhint: modprobe fuse"
    return None


def fill(system, mount):
    """Writes the file for direct data, and checks that it keeps them."""
    load.fill(load.file(mount / "data"), VOLUME_BYTES)
