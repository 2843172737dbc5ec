"""One file that all ranks of an MPI program write, through two mounts, and that each rank reads in whole.

    mpirun -n N ranks.py mpiio|views|ordered|hdf5 FILE THE-SAME-FILE ROUNDS

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


def views(world, path, rounds):
    """Each rank sees only its own part of each stripe, and writes all of its parts in one call."""
    strided = MPI.BYTE.Create_vector(rounds, RECORD, RECORD * world.size).Commit()
    file = MPI.File.Open(world, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
    file.Set_view(world.rank * RECORD, MPI.BYTE, strided)
    file.Write_all(b"".join(record(world.rank, number) for number in range(rounds)))
    file.Sync()
    world.Barrier()
    file.Set_view(0, MPI.BYTE, MPI.BYTE)
    found = bytearray(RECORD * world.size * rounds)
    file.Read_at_all(0, found)
    file.Close()
    strided.Free()
    return differs(world, found, rounds)


def ordered(world, path, rounds):
    """All ranks append by one pointer that they share, in the order of ranks."""
    file = MPI.File.Open(world, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
    for number in range(rounds):
        file.Write_ordered(record(world.rank, number))
    file.Sync()
    file.Close()
    world.Barrier()
    with open(path, "rb") as whole:
        return differs(world, whole.read(), rounds)


def differs(world, found, rounds):
    """What is wrong with records of all ranks in turn."""
    expected = b"".join(record(rank, number) for number in range(rounds) for rank in range(world.size))
    return None if found == expected else f"rank {world.rank} reads something else than all have written"


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


KINDS = {"mpiio": mpiio, "views": views, "ordered": ordered, "hdf5": hdf5}


def main():
    """Does what the arguments say."""
    world = MPI.COMM_WORLD
    kind, paths, rounds = sys.argv[1], sys.argv[2:4], int(sys.argv[4])
    wrong = KINDS[kind](world, paths[world.rank % 2], rounds)
    said = [what for what in world.allgather(wrong) if what]
    if world.rank == 0:
        print(said[0] if said else "all ranks agree")
    return 1 if said else 0


sys.exit(main())
