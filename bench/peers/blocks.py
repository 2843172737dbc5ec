"""The comparison as block volumes: who takes part, and the jobs of fio that are put to all."""

import dataclasses

import load
from ceph import CephLibrbd, CephNbd
from ganesha import Ganesha
from gluster import Gluster
from mirror import QemuMirror
from moosefs import MooseFs, MooseFsCached
from nbdkit import NbdkitFile, NbdkitMemory
from system import VOLUME_BYTES
from weft import Weft

WEFT = Weft
PEERS = [NbdkitFile, NbdkitMemory, Ganesha, QemuMirror, Gluster, MooseFs, MooseFsCached, CephNbd, CephLibrbd]


@dataclasses.dataclass(frozen=True)
class Job:
    """One job of fio on the volume: one workload."""

    workload: load.Workload

    @property
    def names(self):
        """The workloads that are measured at once."""
        return [self.workload.name]

    def measure(self, system, reach, seconds):
        """Figures by workload. `reach` is what the system's start has returned."""
        return {self.workload.name: load.measure(reach, self.workload, VOLUME_BYTES, seconds, system.place.cpu_s, system.fio_environment())}


RUNS = [Job(workload) for workload in load.WORKLOADS]


def missing():
    """What this machine lacks beside packages, in words; None if nothing."""
    return None


def fill(system, reach):
    """Writes the volume, and checks that it keeps data."""
    load.fill(reach, VOLUME_BYTES, system.fio_environment())
