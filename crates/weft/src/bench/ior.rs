//! `weft bench ior`: files written and read by many processes, in IOR's terms.

use super::failed;
use super::files::ResultFiles;
use super::suite::{follows, launched, numbers, ranks, show_plan, size, with_progress};
use super::unsupported::{Refused, Tool, Unsupported};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_bench::{IorOptions, Launched, ReadOrder};
use weft_cli::{CliError, Output};

/// Arguments of `weft bench ior`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct IorArgs {
    /// How files are reached: POSIX is the only way here
    #[arg(short = 'a', long = "api", value_name = "API", default_value = "POSIX", value_parser = api)]
    _api: String,
    /// The file; with -F, what the names of files begin with
    #[arg(short = 'o', long = "test-file", value_name = "FILE")]
    file: PathBuf,
    /// Processes, or several numbers of them such as 1,2,4 [default: as many as mpirun or srun has started,
    /// or 1]
    #[arg(short = 'N', long, visible_alias = "num-tasks", value_name = "LIST", value_delimiter = ',')]
    processes: Vec<u32>,
    /// Bytes of a transfer, or several such as 4k,64k,1m
    #[arg(short = 't', long = "transfer-size", value_name = "LIST", default_value = "256k")]
    #[arg(value_delimiter = ',', value_parser = size)]
    transfer_sizes: Vec<u64>,
    /// Bytes that a process has one after the other in each segment
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "1m", value_parser = size)]
    block_size: u64,
    /// Segments: each has a block of each process
    #[arg(short = 's', long, value_name = "N", default_value_t = 1)]
    segments: u64,
    /// How often all of it is done
    #[arg(short = 'i', long, value_name = "N", default_value_t = 1)]
    repetitions: u32,
    /// Write; without -w, -r, -W and -R both -w and -r are meant
    #[arg(short = 'w', long)]
    write: bool,
    /// Read
    #[arg(short = 'r', long)]
    read: bool,
    /// Check the content after it was written, which is not measured
    #[arg(short = 'W', long)]
    check_write: bool,
    /// Check the content after it was read, which is not measured
    #[arg(short = 'R', long)]
    check_read: bool,
    /// A file for each process instead of one for all
    #[arg(short = 'F', long)]
    file_per_process: bool,
    /// Transfers go to places at random, each place once
    #[arg(short = 'z', long)]
    random_offset: bool,
    /// Direct requests (O_DIRECT), past the pages of the kernel
    #[arg(short = 'B', long = "direct", visible_alias = "posix.odirect")]
    is_direct: bool,
    /// Sync files after the last write, in the time that is measured
    #[arg(short = 'e', long)]
    fsync: bool,
    /// Sync after each write
    #[arg(short = 'Y', long)]
    fsync_per_write: bool,
    /// Processes wait for each other after opens and before closes, too
    #[arg(short = 'g', long)]
    intra_test_barriers: bool,
    /// Leave the files
    #[arg(short = 'k', long)]
    keep_file: bool,
    /// Leave the files if a check has found wrong content
    #[arg(short = 'K', long)]
    keep_file_with_error: bool,
    /// Write to the files of an earlier test instead of new ones
    #[arg(short = 'E', long)]
    use_existing: bool,
    /// End a check at the first wrong transfer
    #[arg(short = 'q', long)]
    quit_on_error: bool,
    /// Read what the next process has written; with several machines, what one on the next machine has
    #[arg(short = 'C', long, conflicts_with = "reorder_random")]
    reorder_tasks: bool,
    /// With -C: this many processes or machines further on
    #[arg(short = 'Q', long, value_name = "N", requires = "reorder_tasks", default_value_t = 1)]
    task_offset: u32,
    /// Read what processes at random have written
    #[arg(short = 'Z', long)]
    reorder_random: bool,
    /// With -Z: what decides which
    #[arg(short = 'X', long, value_name = "SEED", requires = "reorder_random", default_value_t = 0)]
    reorder_seed: u64,
    /// Begin no transfer after this many seconds of a phase; 0: no limit
    #[arg(short = 'D', long, value_name = "SECONDS", default_value_t = 0)]
    deadline: u64,
    /// Begin no phase after this many minutes; 0: no limit
    #[arg(short = 'T', long, value_name = "MINUTES", default_value_t = 0)]
    max_minutes: u64,
    /// Seconds to wait before each repetition
    #[arg(short = 'd', long, value_name = "SECONDS", default_value_t = 0)]
    delay: u64,
    /// What decides the content [default: another one in each run; files that are read say which]
    #[arg(short = 'G', long, value_name = "SEED")]
    seed: Option<u64>,
    /// A directive; stoneWallingWearOut=1: after -D, all processes go on until they have done as much as
    /// the fastest
    #[arg(short = 'O', long, value_name = "NAME=VALUE", value_parser = directive)]
    option: Vec<bool>,
    /// The kind of content: it is always random by offset, and this changes nothing
    #[arg(short = 'l', long = "data-packet-type", value_name = "KIND")]
    _kind: Option<String>,
    /// Say more: all is said in any case, and this changes nothing
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count)]
    _verbose: u8,
    /// Say what would be written and how much space that takes, and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    files: ResultFiles,
    #[command(flatten)]
    refused: Refused<Ior>,
}

/// IOR.
#[derive(Clone, Debug)]
struct Ior;

impl Tool for Ior {
    const NAME: &'static str = "IOR";
    const UNSUPPORTED: &'static [Unsupported] = &[
        option('A', true, "a number for the summary", "leave it out; --out names the file of the figures"),
        option('c', false, "collective requests of MPI-IO", "leave it out: requests are those of POSIX"),
        option(
            'f',
            true,
            "a file with a script",
            "write its options on the command line, one test at a time",
        ),
        option('H', false, "to show hints of MPI-IO", "leave it out: requests are those of POSIX"),
        option('I', false, "data sets of HDF5", "leave it out: requests are those of POSIX"),
        option('j', true, "a warning of slow processes", "leave it out; see the times in --json"),
        option('J', true, "an alignment of HDF5", "leave it out: requests are those of POSIX"),
        option('m', false, "another file for each repetition", "run it once for each file with another -o"),
        option(
            'M',
            true,
            "memory that is taken from the pages of the kernel",
            "use -B, or -C on several machines",
        ),
        option('n', false, "no filling of HDF5 files", "leave it out: requests are those of POSIX"),
        option('p', false, "to reserve the space of files before", "run it with -k, and again with -E"),
        option('P', false, "the shared file pointer of MPI-IO", "leave it out: requests are those of POSIX"),
        option(
            'S',
            false,
            "strided data types of MPI-IO",
            "-b and -s make strides: a block of each process in turn",
        ),
        option(
            'u',
            false,
            "a folder for each file",
            "leave it out; `weft bench mdtest -u` measures many folders",
        ),
        option('U', true, "a file with hints of MPI-IO", "leave it out: requests are those of POSIX"),
        option('V', false, "file views of MPI-IO", "leave it out: requests are those of POSIX"),
        option('x', false, "no second try of incomplete transfers", "leave it out: each is completed"),
    ];
}

const fn option(letter: char, has_value: bool, meaning: &'static str, instead: &'static str) -> Unsupported {
    Unsupported { letter, has_value, meaning, instead }
}

pub(crate) fn run(args: &IorArgs, output: Output) -> Result<(), CliError> {
    args.refused.check()?;
    let launched = launched()?;
    let is_first = launched.as_ref().is_none_or(|launched| launched.rank == 0);
    if args.dry_run && !is_first {
        return Ok(());
    }
    if follows(launched.as_ref(), args.folder(), "ior")? {
        return Ok(());
    }
    args.files.check()?;
    let options = args.options(launched)?;
    if args.dry_run {
        let plan = options.plan().map_err(|error| failed(error, "ior"))?;
        return show_plan(&plan, weft_bench::IorPlan::text, output);
    }
    let figures =
        with_progress(|tell| weft_bench::ior(&options, tell)).map_err(|error| failed(error, "ior"))?;
    args.files.show(&figures, "ior", output)?;
    figures.verdict().map_err(|error| failed(error, "ior"))
}

impl IorArgs {
    fn folder(&self) -> &Path {
        self.file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    fn options(&self, launched: Option<Launched>) -> Result<IorOptions, CliError> {
        if self.file.to_string_lossy().contains('@') {
            return Err(CliError::Usage {
                message: format!(
                    "-o {} has an @: several files by turns are not supported",
                    self.file.display()
                ),
                hint: "name one file; with -F each process has one of its own".into(),
            });
        }
        let is_any = self.write || self.read || self.check_write || self.check_read;
        let seconds = |number: u64| (number > 0).then(|| Duration::from_secs(number));
        Ok(IorOptions {
            file: self.file.clone(),
            processes: numbers(&self.processes, launched.as_ref()),
            ranks: ranks(launched)?,
            transfers: self.transfer_sizes.clone(),
            block_bytes: self.block_size,
            segments: self.segments,
            repetitions: self.repetitions,
            write: self.write || !is_any,
            read: self.read || !is_any,
            check_write: self.check_write,
            check_read: self.check_read,
            is_file_per_process: self.file_per_process,
            is_random: self.random_offset,
            is_direct: self.is_direct,
            fsync: self.fsync,
            fsync_per_write: self.fsync_per_write,
            waits_between: self.intra_test_barriers,
            keep: self.keep_file,
            keep_wrong: self.keep_file_with_error,
            use_existing: self.use_existing,
            quits: self.quit_on_error,
            read_order: match (self.reorder_tasks, self.reorder_random) {
                (true, _) => ReadOrder::Next(self.task_offset),
                (_, true) => ReadOrder::Random(self.reorder_seed),
                _ => ReadOrder::Own,
            },
            deadline: seconds(self.deadline),
            wears_out: self.option.contains(&true),
            seed: self.seed,
            delay: Duration::from_secs(self.delay),
            time_max: seconds(self.max_minutes.saturating_mul(60)),
        })
    }
}

fn api(text: &str) -> Result<String, String> {
    match text.to_ascii_uppercase().as_str() {
        "POSIX" => Ok(text.to_owned()),
        _ => {
            Err("only POSIX is supported: leave -a out, or say -a POSIX; for MPI-IO and HDF5 use IOR itself"
                .into())
        }
    }
}

/// Whether the directive is that all wear out.
fn directive(text: &str) -> Result<bool, String> {
    match text.split_once('=').map(|(name, value)| (name.to_ascii_lowercase(), value)) {
        Some((name, value @ ("0" | "1"))) if name == "stonewallingwearout" => Ok(value == "1"),
        _ => Err("only stoneWallingWearOut=1 or =0 is supported: use the options with a letter".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: IorArgs,
    }

    fn parsed(line: &str) -> Result<IorArgs, clap::Error> {
        Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).map(|line| line.args)
    }

    fn options(line: &str) -> IorOptions {
        parsed(line).unwrap_or_else(|e| panic!("{e}")).options(None).expect("it is valid")
    }

    #[test]
    fn lines_of_articles_are_taken() {
        let found = options("-a POSIX -B -F -w -r -t 32m -b 4G -o /mnt/x");
        assert_eq!((found.transfers.as_slice(), found.block_bytes), ([32 << 20].as_slice(), 4 << 30));
        assert!(found.is_direct && found.is_file_per_process && found.write && found.read && !found.keep);
        let found = options("-z -F -w -r -t 4k -b 320m -o x");
        assert!(found.is_random && found.transfers == [4096] && found.block_bytes == 320 << 20);
        let found = options(
            "-w -s 132000 -a POSIX -i 1 -C -Q 1 -g -G 27 -k -e -t 47008 -b 47008 -o x \
                             -O stoneWallingWearOut=1 -D 300",
        );
        assert_eq!((found.segments, found.seed, found.read_order), (132_000, Some(27), ReadOrder::Next(1)));
        assert!(found.wears_out && found.deadline == Some(Duration::from_secs(300)) && !found.read);
        let found = options("-r -R -W -Z -X 5 -N 1,2,4 -t 4k,64k -o x --posix.odirect");
        assert!(found.check_read && found.check_write && found.is_direct);
        assert_eq!((found.processes, found.transfers), (vec![1, 2, 4], vec![4096, 65_536]));
        assert_eq!(found.read_order, ReadOrder::Random(5));
    }

    #[test]
    fn without_a_phase_both_are_meant_and_one_number_of_processes() {
        let found = options("-o x");
        assert!(found.write && found.read && !found.check_write && !found.check_read);
        assert_eq!(
            (found.processes.as_slice(), found.transfers.as_slice()),
            ([1].as_slice(), [256 << 10].as_slice())
        );
        let only = options("-W -o x");
        assert!(!only.write && !only.read && only.check_write);
    }

    #[test]
    fn what_is_not_supported_is_named_with_what_to_do() {
        for (line, part) in
            [("-c", "-c is not supported"), ("-M 75%", "pages"), ("-f script", "script"), ("-u", "-u")]
        {
            let refused = parsed(&format!("-o x {line}")).expect("the parser takes it").refused.check();
            let error = refused.expect_err("it is not supported");
            assert!(error.to_string().contains(part) && !error.hint().is_empty(), "{error}");
        }
        for line in ["-a MPIIO", "-t 4kb", "-b -1", "-O useO_DIRECT=1", "-Q 2", "-C -Z", "-X 3"] {
            assert!(parsed(&format!("-o x {line}")).is_err(), "{line}");
        }
        assert!(parsed("-w").is_err(), "a file has to be named");
        assert!(parsed("-o a@b").expect("parsed").options(None).is_err());
    }
}
