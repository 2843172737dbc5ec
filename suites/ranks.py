"""One file that all ranks of an MPI program write, through two mounts, and that each rank reads in whole.

    mpirun -n N ranks.py mpiio|independent|views|ordered|hdf5|netcdf FILE THE-SAME-FILE ROUNDS

Ranks of even numbers use the first path, others the second one. Records have 47,008 bytes: their ends are in the middle of blocks.
"""

import ctypes
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


def independent(world, path, rounds):
    """Each rank writes its records when it likes, and then reads those of all others."""
    file = MPI.File.Open(world, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
    for number in range(rounds):
        file.Write_at((number * world.size + world.rank) * RECORD, record(world.rank, number))
    file.Sync()
    world.Barrier()
    file.Sync()
    found = bytearray(RECORD * world.size * rounds)
    file.Read_at(0, found)
    file.Close()
    return differs(world, found, rounds)


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


class NetCdf:
    """What is used of the parallel netCDF library. Each call that fails ends the rank."""

    CREATE, COLLECTIVE, INT = 0x1000, 1, 4

    def __init__(self, world):
        self.library = ctypes.CDLL("libnetcdf_mpi.so.19")
        # Communicators of Open MPI are pointers.
        self.world = ctypes.c_void_p.from_address(MPI._addressof(world))
        self.info = ctypes.c_void_p.from_address(MPI._addressof(MPI.INFO_NULL))
        self.file = ctypes.c_int()

    def call(self, name, *words):
        """Calls a function of the library."""
        status = getattr(self.library, name)(*words)
        if status != 0:
            raise OSError(f"{name} returns {status}")

    def open(self, name, path, mode):
        """Opens a file on all ranks, by nc_create_par or nc_open_par."""
        self.call(name, path.encode(), mode, self.world, self.info, ctypes.byref(self.file))

    def rows(self, name, first, count, width, values):
        """Reads or writes whole rows of the one variable, by nc_get_vara_int or nc_put_vara_int."""
        start, size = (ctypes.c_size_t * 2)(first, 0), (ctypes.c_size_t * 2)(count, width)
        self.call(name, self.file, 0, start, size, values)


def netcdf(world, path, rounds):
    """A variable of which each rank writes its rows, all ranks at once."""
    width = RECORD // 4
    file, row = NetCdf(world), ctypes.c_int * width
    file.open("nc_create_par", path, file.CREATE)
    dimensions = (ctypes.c_int * 2)()
    for at, (name, length) in enumerate([(b"row", rounds * world.size), (b"column", width)]):
        file.call("nc_def_dim", file.file, name, ctypes.c_size_t(length), ctypes.byref(dimensions, 4 * at))
    variable = ctypes.c_int()
    file.call("nc_def_var", file.file, b"rows", file.INT, 2, dimensions, ctypes.byref(variable))
    file.call("nc_enddef", file.file)
    file.call("nc_var_par_access", file.file, variable, file.COLLECTIVE)
    for number in range(rounds):
        file.rows("nc_put_vara_int", number * world.size + world.rank, 1, width, row(*[number * 1000 + world.rank] * width))
    file.call("nc_close", file.file)
    world.Barrier()
    file.open("nc_open_par", path, 0)
    found = row()
    for number in range(rounds):
        for rank in range(world.size):
            file.rows("nc_get_vara_int", number * world.size + rank, 1, width, found)
            if any(value != number * 1000 + rank for value in found):
                return f"rank {world.rank} reads something else in row {number} of rank {rank}"
    file.call("nc_close", file.file)
    return None


KINDS = {"mpiio": mpiio, "independent": independent, "views": views, "ordered": ordered, "hdf5": hdf5, "netcdf": netcdf}


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
