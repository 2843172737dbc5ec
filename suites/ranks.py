"""One file that all ranks of an MPI program write, through two mounts, and that each rank reads in whole.

    mpirun -n N ranks.py mpiio|hdf5 FILE THE-SAME-FILE ROUNDS

Ranks of even numbers use the first path, others the second one. Records have 47,008 bytes: their ends are in the middle of blocks.
"""

import sys

from mpi4py import MPI

RECORD = 47_008


def record(rank, number):
    """The bytes that a rank writes in a round."""
    return bytes([(rank * 31 + number * 7 + 1) % 256]) * RECORD


def mpiio(world, path, rounds):
    """Collective writes of records in turn."""
    file = MPI.File.Open(world, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
    for number in range(rounds):
        file.Write_at_all((number * world.size + world.rank) * RECORD, record(world.rank, number))
    file.Sync()
    file.Close()
    world.Barrier()
    with open(path, "rb") as whole:
        for number in range(rounds):
            for rank in range(world.size):
                if whole.read(RECORD) != record(rank, number):
                    return f"rank {world.rank} reads something else in round {number} of rank {rank}"
    return None


def hdf5(world, path, rounds):
    """A data set of which each rank writes its rows."""
    import h5py
    import numpy
    with h5py.File(path, "w", driver="mpio", comm=world) as file:
        rows = file.create_dataset("rows", (rounds * world.size, RECORD // 8), dtype="f8")
        for number in range(rounds):
            rows[number * world.size + world.rank] = number * 1000 + world.rank
    world.Barrier()
    with h5py.File(path, "r", driver="mpio", comm=world) as file:
        found = file["rows"][:]
    for number in range(rounds):
        for rank in range(world.size):
            if not numpy.all(found[number * world.size + rank] == number * 1000 + rank):
                return f"rank {world.rank} reads something else in row {number} of rank {rank}"
    return None


def main():
    """Does what the arguments say."""
    world = MPI.COMM_WORLD
    kind, paths, rounds = sys.argv[1], sys.argv[2:4], int(sys.argv[4])
    wrong = {"mpiio": mpiio, "hdf5": hdf5}[kind](world, paths[world.rank % 2], rounds)
    said = [what for what in world.allgather(wrong) if what]
    if world.rank == 0:
        print(said[0] if said else "all ranks agree")
    return 1 if said else 0


sys.exit(main())
