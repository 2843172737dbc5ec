//! `weft bench`: the load generator, and the committed benchmark.

mod compare;
mod figures;
mod files;
mod fio;
mod io500;
mod ior;
mod map;
mod matrix;
mod mdtest;
mod names;
mod places;
mod rate;
mod repair;
mod run;
mod start_workload;
mod suite;
mod unsupported;

use compare::CompareArgs;
use figures::FiguresArgs;
use fio::FioArgs;
use io500::Io500Args;
use ior::IorArgs;
use map::MapArgs;
use matrix::MatrixArgs;
use mdtest::MdtestArgs;
use names::NamesArgs;
use repair::RepairArgs;
use run::RunArgs;
use start_workload::StartWorkloadArgs;
use suite::RankArgs;
use weft_bench::{BenchError, FioError};
use weft_cli::{CliError, Globals};
use weft_types::with_causes;

/// Measure a volume, or the data path of this build
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum BenchCommand {
    /// Put a load on a volume and measure it
    ///
    /// Keeps requests in flight on a volume of any fabric for a while, and reports requests and
    /// bytes per second and latencies, as a whole and for each second. On a terminal a line per
    /// second shows how it goes; Ctrl-C ends it early, with the report of what ran.
    ///
    /// A load that writes destroys what the volume holds: a volume that holds data is refused,
    /// unless --overwrite is given. Reading a volume that nothing was written to measures little:
    /// unwritten blocks are not read from any drive. Run a sequential write over it first.
    ///
    /// With --verify each block that is written bears its address, a generation and a checksum, and
    /// what is read is checked against what was acknowledged before; what was written is read back
    /// at the end. A block that is not what it should be is named with its LBA, and the exit code
    /// is 1.
    #[command(after_long_help = "Examples:\n  \
        weft bench run scratch --rw write --pattern sequential --bs 1MiB --depth 4 --runtime 1m\n  \
        weft bench run scratch --html report.html\n  \
        weft bench run scratch --rw mix --read-share 70 --verify --overwrite\n  \
        weft bench run scratch --rw write --rate-limit 5000 --overwrite --json | jq .total.p99_us")]
    Run(RunArgs),
    /// Run the committed benchmark: workloads beside the machine's own limit
    ///
    /// Starts a fabric of its own with drives in memory, and runs each workload in turns with a bare exchange
    /// of messages of the same sizes. On a machine that does not reach the reference exchange the figures
    /// mean nothing: then the command fails.
    #[command(after_long_help = "Examples:\n  weft bench figures --pin --out bench.json\n  \
                                 weft bench figures --only read --runs 3")]
    Figures(FiguresArgs),
    /// Measure what repair costs a client, and how fast it is
    ///
    /// Starts fabrics of its own on loopback and measures four parts: a client's latencies beside a
    /// resync and a rebuild and their rates with and without it (beside), how evenly a rebuild
    /// spreads over the drives that are left (spread), scrubs with and without a client (scrub),
    /// and the bytes that drives write per byte of data (amplify).
    ///
    /// Drives are in memory; with --drives they are files in that folder, removed afterwards. What
    /// drives write is always measured on files, for which 2 GiB are needed there, or where
    /// temporary files are kept.
    #[command(after_long_help = "Examples:\n  weft bench repair --out repair.json --html repair.html\n  \
                                 weft bench repair --drives /mnt/scratch --only beside --rounds 5")]
    Repair(RepairArgs),
    /// Measure loads of 4 KiB to 1 MiB from one client to many, on volumes of their own and on a shared one
    ///
    /// Makes volumes of two copies on the fabric and writes all of them, then has clients read and
    /// write at random: 4 KiB and 8 KiB with 64 jobs of 64 requests in flight each, 64 KiB with 64
    /// of 8, 1 MiB with 8 of 4. All clients begin at the same time, each a process of its own, here
    /// or on the machines that --on names. What they do is added up, and their latencies taken
    /// together. The volumes, weft-bench-1 and so on, are deleted in the end.
    ///
    /// `fairness` is the rate of the slowest client over that of the fastest.
    #[command(after_long_help = "Examples:\n  weft bench matrix --quick --html matrix.html\n  \
        weft bench matrix --on 'ssh host1' --on 'ssh host2' --fabric 10.0.0.1:4800 --out matrix.json\n  \
        weft bench compare before.json matrix.json")]
    Matrix(MatrixArgs),
    /// Put one load on the fabric from many clients at once, in DISKSPD's terms
    ///
    /// Makes a volume of two copies for each client and writes all of it, then has all clients
    /// begin at the same time, each a process of its own, here or on the machines that --on names.
    /// Their requests are added up, and their latencies taken together; each client is a row, with
    /// what it did in each second on the page of --html. The volumes, weft-bench-1 and so on, are
    /// deleted in the end, also after Ctrl-C.
    ///
    /// Options are those of DISKSPD, with its defaults: `-b4K -o32 -t8 -w100 -r -d60` is taken as
    /// it is there. Sizes are powers of two, and volumes take the place of files.
    ///
    /// `cores` are processors that clients kept busy, `targets'` those of the targets, by their own
    /// count, over the middle eight tenths of the time; `iops/core` is over both.
    #[command(
        after_long_help = "Examples:\n  weft bench start-workload -b 4K -o 32 -t 8 -w 100 -r -d 60\n  \
        weft bench start-workload -b 4K -o 32 -t 4 -r -c 10G --clients 8 --html workload.html\n  \
        weft bench start-workload -b 1M -o 4 -w 30 --on 'ssh host1' --on 'ssh host2' --out after.json\n  \
        weft bench compare before.json after.json"
    )]
    StartWorkload(StartWorkloadArgs),
    /// Run a job file of fio on many clients at once, over NBD, and add up what they measure
    ///
    /// Makes a volume of two copies for each client and writes all of it, then has fio run the job
    /// file on all clients at the same time, here or on the machines that --on names, each on a
    /// volume that `weft volume serve` serves to it at a Unix socket. The volumes, weft-bench-1 and
    /// so on, are deleted in the end, also after Ctrl-C. With --volume it runs here, on a volume of
    /// yours: one that holds data is refused if a job writes, unless --overwrite is given.
    ///
    /// Of the job file only what says where the data is and how it is reached is replaced
    /// (ioengine, filename, directory and the like). All else is fio's: sections are jobs, and what
    /// a job does not say has fio's default. fio runs in a folder that is removed, so other files
    /// need absolute paths. It has to be installed where clients run, version 3 with its engine for
    /// NBD.
    ///
    /// Processes of a job, and the same job of all clients, are taken together: rates are added up,
    /// latencies are of all their requests. `cores` are processors that fio and what serves it kept
    /// busy, `targets'` those of the targets, by their own count; `iops/core` is over both, and
    /// over all jobs.
    #[command(
        after_long_help = "Examples:\n  weft bench fio jobs.fio --clients 4 --size 10GiB --html fio.html\n  \
        weft bench fio jobs.fio --on 'ssh host1' --on 'ssh host2' --fabric 10.0.0.1:4800 --out after.json\n  \
        weft bench fio jobs.fio --volume scratch --overwrite --json | jq .total.iops_per_core\n  \
        weft bench compare before.json after.json\n\nA job file:\n  [global]\n  bs=4k\n  iodepth=32\n  \
        time_based\n  runtime=60\n  [reads]\n  rw=randread\n  [writes]\n  stonewall\n  rw=randwrite"
    )]
    Fio(FioArgs),
    /// Measure what a fabric map of any size costs the manager, and those who follow it
    ///
    /// Makes a map of so many nodes, drives, volumes and sessions, puts it into an embedded store,
    /// and starts a manager on it. Then it asks what targets, clients and people ask, one request
    /// at a time: memory and time to load the map, to commit a small change, to evict a node, to
    /// renew a lease, to create a volume, to attach and detach. There are no targets and drives:
    /// what would be sent to them is counted. Times are medians. Needs some memory and disk: for
    /// 1,000 nodes with 24 drives and 100,000 volumes about 2 GiB of each.
    #[command(after_long_help = "Examples:\n  weft bench map --nodes 24 --drives 8 --volumes 500\n  \
        weft bench map --nodes 1000 --drives 24 --volumes 100000 --sessions 10000 --json")]
    Map(MapArgs),
    /// Measure how many files a file system makes, finds, lists and removes in a second
    ///
    /// Each client is a process with a session of its own, which makes a directory, keeps operations in
    /// flight in it, and removes all of it in the end. Rates are added up; latencies are those of the
    /// client that waits longest. Each answer is durable on all copies.
    #[command(after_long_help = "Examples:\n  weft bench names home\n  \
        weft bench names home --clients 2 --files 50000 --depth 128\n  \
        weft bench names home --json | jq '.rows[] | {workload, per_second}'")]
    Names(NamesArgs),
    /// Write and read files from many processes, in IOR's terms, in any folder
    ///
    /// Takes the options of IOR: each process writes and reads blocks of one file, or of a file of its own
    /// (-F). The folder may be on a mount of Weft or on any other file system, and no fabric is needed.
    /// --processes starts processes here; under mpirun or srun each rank is one, on as many machines as
    /// there are. No MPI library is needed: ranks find the first one by a file in the tested folder, and
    /// only that one prints.
    ///
    /// The content follows from a seed and the offset, so -W and -R notice each byte that is wrong. Files
    /// are removed in the end, also after an error or Ctrl-C, unless -k is given. A file in their place
    /// that no such test has written is never touched.
    ///
    /// Several sizes (-t) or numbers of processes are measured one after the other; --html draws them as
    /// charts.
    #[command(after_long_help = "Examples:\n  \
        weft bench ior -a POSIX -B -F -w -r -t 32m -b 4G -N 4 -o /mnt/home/x\n  \
        weft bench ior -z -F -w -r -t 4k -b 320m -e -C -N 4 -o /mnt/home/test\n  \
        weft bench ior -w -r -R -t 4k,64k,1m -b 64m -N 1,2,4 -o /mnt/home/test --html ior.html\n  \
        mpirun -n 8 weft bench ior -w -r -C -e -t 1m -b 1g -o /mnt/home/test")]
    Ior(Box<IorArgs>),
    /// Make, find, read and remove files and folders from many processes, in mdtest's terms, in any folder
    ///
    /// Takes the options of mdtest: each process makes items in a tree of folders, asks for their
    /// attributes, reads and removes them; each phase begins when all have ended the one before. The folder
    /// may be on a mount of Weft or on any other file system, and no fabric is needed. --processes starts
    /// processes here; under mpirun or srun each rank is one, as for `weft bench ior`.
    ///
    /// All is below folders weft-mdtest.N of the named one, and is removed in the end, also after an error
    /// or Ctrl-C. With -C alone it stays, for later runs with -T, -E and -r and the same other options.
    #[command(after_long_help = "Examples:\n  \
        weft bench mdtest -I 10 -i 2 -z 5 -b 5 --processes 4 -d /mnt/home/x\n  \
        weft bench mdtest -F -u -n 10000 --processes 1,2,4 -d /mnt/home/test --html mdtest.html\n  \
        weft bench mdtest -F -w 3901 -e 3901 -X -N 1 -n 1000 --processes 4 -d /mnt/home/test\n  \
        mpirun -n 8 weft bench mdtest -n 1000 -d /mnt/home/test")]
    Mdtest(Box<MdtestArgs>),
    /// Run the phases of IO500 in any folder, and work out a score that is NOT an official one
    ///
    /// Writes and reads files as `weft bench ior` does, makes, finds and removes them as `weft bench mdtest`
    /// does, in the order and by the rules that IO500 has published: an easy form, with a file or a folder
    /// for each process, and a hard one, where all share one. The folder may be on a mount of Weft or on any
    /// other file system, and no fabric is needed. --processes starts processes here; under mpirun or srun
    /// each rank is one, as for `weft bench ior`.
    ///
    /// Each of the four write phases goes on until the stonewall, then all processes do as much as the
    /// fastest; the other phases are of what was written. The score is the geometric mean of two figures:
    /// the mean of the four phases in GiB/s, and that of the eight in kIOPS, both geometric, too. It is NOT
    /// an official IO500 score: the list takes runs of the program of IO500 only, with a stonewall of 300
    /// seconds. It compares runs of this command.
    ///
    /// All is in a folder weft-io500.N of the named one, for N processes, and is removed in the end, also
    /// after an error or Ctrl-C, unless -k is given.
    #[command(after_long_help = "Examples:\n  \
        weft bench io500 -d /mnt/home --processes 2\n  \
        weft bench io500 -d /mnt/home --processes 1,2,4 --stonewall 60 --html io500.html\n  \
        weft bench io500 -d /mnt/home --stonewall 10 --space 4g --dry-run\n  \
        mpirun -n 8 weft bench io500 -d /mnt/home --stonewall 300 --out io500.json")]
    Io500(Box<Io500Args>),
    /// Serve as a rank of a suite: orders come over the standard input
    #[command(hide = true)]
    Rank(RankArgs),
    /// Compare two results of the same benchmark
    ///
    /// Takes what `weft bench matrix`, `weft bench start-workload` or `weft bench fio` wrote with
    /// --out, and puts side by side what both have: the same load from as many clients.
    #[command(after_long_help = "Examples:\n  weft bench compare before.json after.json")]
    Compare(CompareArgs),
}

pub(crate) fn run(command: BenchCommand, globals: &Globals) -> Result<(), CliError> {
    match command {
        BenchCommand::Run(args) => {
            let (place, output) = (globals.place(), globals.output());
            weft_cli::block_on(async move { run::run(args, &place, output).await })
        }
        BenchCommand::Figures(args) => figures::run(args),
        BenchCommand::Repair(args) => repair::run(args, globals.output()),
        BenchCommand::Matrix(args) => matrix::run(&args, &globals.place(), globals.output()),
        BenchCommand::StartWorkload(args) => start_workload::run(&args, &globals.place(), globals.output()),
        BenchCommand::Fio(args) => fio::run(&args, &globals.place(), globals.output()),
        BenchCommand::Map(args) => map::run(&args, globals.output()),
        BenchCommand::Names(args) => names::run(args, globals.place(), globals.output()),
        BenchCommand::Ior(args) => ior::run(&args, globals.output()),
        BenchCommand::Mdtest(args) => mdtest::run(&args, globals.output()),
        BenchCommand::Io500(args) => io500::run(&args, globals.output()),
        BenchCommand::Rank(args) => suite::serve_as_rank(&args),
        BenchCommand::Compare(args) => compare::run(&args, globals.output()),
    }
}

/// Why there is no result, in the form of every other error.
fn failed(error: BenchError, command: &str) -> CliError {
    let hint = error
        .hint()
        .map_or_else(|| format!("see the options with `weft bench {command} --help`"), str::to_owned);
    let message = with_causes(&error);
    match error {
        BenchError::Request(error) => CliError::Client(error),
        BenchError::Runtime(error) => CliError::Runtime(error),
        BenchError::Interrupted | BenchError::Stopped => CliError::Interrupted { message },
        BenchError::HoldsData { .. }
        | BenchError::NoRoom { .. }
        | BenchError::NotOurs { .. }
        | BenchError::Leftover { .. } => CliError::Refused { message, hint },
        BenchError::Invalid { .. } | BenchError::Fio(FioError::JobFile { .. }) => {
            CliError::Usage { message, hint }
        }
        BenchError::File { action, path, source } => CliError::File { action, path, source },
        _ => CliError::Failed { message, hint },
    }
}
