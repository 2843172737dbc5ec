//! `weft bench mdtest`: names made, found and removed by many processes, in mdtest's terms.

use super::failed;
use super::files::ResultFiles;
use super::suite::{follows, launched, numbers, ranks, show_plan, size, with_progress};
use super::unsupported::{Refused, Tool, Unsupported};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_bench::{Items, Launched, MdtestOptions, MdtestPhases};
use weft_cli::{CliError, Output};

/// Arguments of `weft bench mdtest`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MdtestArgs {
    /// How files are reached: POSIX is the only way here
    #[arg(short = 'a', long = "api", value_name = "API", default_value = "POSIX", value_parser = api)]
    _api: String,
    /// The folder in which all is made; it is made if it is not there
    #[arg(short = 'd', long, value_name = "DIR")]
    directory: PathBuf,
    /// Processes, or several numbers of them such as 1,2,4 [default: as many as mpirun or srun has started,
    /// or 1]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    processes: Vec<u32>,
    /// Items of each process in all folders of a tree together [default: 0, which measures trees only]
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "items_per_directory")]
    items: Option<u64>,
    /// Items of each process in each folder of a tree
    #[arg(short = 'I', long, value_name = "N")]
    items_per_directory: Option<u64>,
    /// Levels of a tree below its root
    #[arg(short = 'z', long, value_name = "N", default_value_t = 0)]
    depth: u32,
    /// Folders in each folder of a tree above the lowest level
    #[arg(short = 'b', long, value_name = "N", default_value_t = 1)]
    branch: u32,
    /// Items only on the lowest level of a tree
    #[arg(short = 'L', long)]
    leaf_only: bool,
    /// A tree for each process instead of one for all
    #[arg(short = 'u', long)]
    unique: bool,
    /// Only files
    #[arg(short = 'F', long, conflicts_with = "directories_only")]
    files_only: bool,
    /// Only folders
    #[arg(short = 'D', long)]
    directories_only: bool,
    /// How often all of it is done
    #[arg(short = 'i', long, value_name = "N", default_value_t = 1)]
    iterations: u32,
    /// Only make items; without -C, -T, -E and -r all four are meant. What is not removed stays for a later
    /// run
    #[arg(short = 'C', long)]
    create: bool,
    /// Only ask for attributes
    #[arg(short = 'T', long)]
    stat: bool,
    /// Only read files
    #[arg(short = 'E', long)]
    read: bool,
    /// Only remove
    #[arg(short = 'r', long)]
    remove: bool,
    /// Bytes that each new file gets
    #[arg(short = 'w', long, value_name = "SIZE", default_value = "0", value_parser = size)]
    write_bytes: u64,
    /// Bytes that are read of each file
    #[arg(short = 'e', long, value_name = "SIZE", default_value = "0", value_parser = size)]
    read_bytes: u64,
    /// Sync each file after it was written
    #[arg(short = 'y', long)]
    fsync: bool,
    /// Check what is read
    #[arg(short = 'X', long)]
    verify_read: bool,
    /// Look at the items of the process this many further on, read and remove those of twice and three times
    /// this many
    #[arg(short = 'N', long, value_name = "N", default_value_t = 0)]
    stride: u32,
    /// Ask for items in an order that looks random, by this seed
    #[arg(short = 'R', long, value_name = "SEED", num_args = 0..=1, default_missing_value = "0")]
    random: Option<u64>,
    /// Seconds to wait before each repetition
    #[arg(short = 'p', long, value_name = "SECONDS", default_value_t = 0)]
    delay: u64,
    /// Say more: all is said in any case, and this changes nothing
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count)]
    _verbose: u8,
    /// Say what would be made and how much space that takes, and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    results: ResultFiles,
    #[command(flatten)]
    refused: Refused<Mdtest>,
}

/// mdtest.
#[derive(Clone, Debug)]
struct Mdtest;

impl Tool for Mdtest {
    const NAME: &'static str = "mdtest";
    const UNSUPPORTED: &'static [Unsupported] = &[
        option(
            'B',
            false,
            "no barriers between phases",
            "leave it out: rates are those of phases that begin together",
        ),
        option('c', false, "that the first process makes and removes all", "use --processes 1"),
        option('f', true, "the first of several numbers of processes", "name all of them: --processes 1,2,4"),
        option('G', true, "a seed of the content", "leave it out: each file has a content of its own"),
        option('k', false, "to make files by mknod", "leave it out: files are made by open"),
        option('l', true, "the last of several numbers of processes", "name all of them: --processes 1,2,4"),
        option('P', false, "to print times beside rates", "--json has both"),
        option('s', true, "the step of several numbers of processes", "name all of them: --processes 1,2,4"),
        option('S', false, "one file that all processes use", "see `weft bench ior` without -F"),
        option('t', false, "to count the making of folders with -u", "see the rate of trees, which has it"),
        option('U', false, "to remove with -u only", "use -u and -r"),
        option('V', true, "how much is said", "leave it out: all is said in any case"),
        option('W', true, "to end the making of items after this many seconds", "make fewer: -n or -I"),
        option('x', true, "a file that says how far -W came", "leave it out, and make fewer: -n or -I"),
        option('Y', false, "to call sync after each phase", "use -y, which syncs each file"),
        option('Z', false, "to print times instead of rates", "--json has both"),
    ];
}

const fn option(letter: char, has_value: bool, meaning: &'static str, instead: &'static str) -> Unsupported {
    Unsupported { letter, has_value, meaning, instead }
}

pub(crate) fn run(args: &MdtestArgs, output: Output) -> Result<(), CliError> {
    args.refused.check()?;
    let launched = launched()?;
    let is_first = launched.as_ref().is_none_or(|launched| launched.rank == 0);
    if args.dry_run && !is_first {
        return Ok(());
    }
    if follows(launched.as_ref(), &args.directory, "mdtest")? {
        return Ok(());
    }
    args.results.check()?;
    let options = args.options(launched)?;
    if args.dry_run {
        let plan = options.plan().map_err(|error| failed(error, "mdtest"))?;
        return show_plan(&plan, weft_bench::MdtestPlan::text, output);
    }
    let measured = with_progress(|tell| weft_bench::mdtest(&options, tell));
    let figures = measured.map_err(|error| failed(error, "mdtest"))?;
    args.results.show(&figures, "mdtest", output)?;
    figures.verdict().map_err(|error| failed(error, "mdtest"))
}

impl MdtestArgs {
    fn options(&self, launched: Option<Launched>) -> Result<MdtestOptions, CliError> {
        if has_at(&self.directory) {
            return Err(CliError::Usage {
                message: format!(
                    "-d {} has an @: several folders are not supported",
                    self.directory.display()
                ),
                hint: "name one folder; with -u each process has a tree of its own".into(),
            });
        }
        let is_all = !(self.create || self.stat || self.read || self.remove);
        let phases = MdtestPhases {
            create: self.create || is_all,
            stat: self.stat || is_all,
            read: self.read || is_all,
            remove: self.remove || is_all,
        };
        Ok(MdtestOptions {
            folder: self.directory.clone(),
            processes: numbers(&self.processes, launched.as_ref()),
            ranks: ranks(launched)?,
            depth: self.depth,
            branch: self.branch,
            is_leaf_only: self.leaf_only,
            is_unique: self.unique,
            items: match (self.items, self.items_per_directory) {
                (_, Some(items)) => Items::PerFolder(items),
                (items, None) => Items::InAll(items.unwrap_or(0)),
            },
            directories: !self.files_only,
            files: !self.directories_only,
            repetitions: self.iterations,
            phases,
            write_bytes: self.write_bytes,
            read_bytes: self.read_bytes,
            fsync: self.fsync,
            checks: self.verify_read,
            stride: self.stride,
            order: self.random,
            delay: Duration::from_secs(self.delay),
        })
    }
}

fn has_at(path: &Path) -> bool {
    path.to_string_lossy().contains('@')
}

fn api(text: &str) -> Result<String, String> {
    match text.to_ascii_uppercase().as_str() {
        "POSIX" => Ok(text.to_owned()),
        _ => Err("only POSIX is supported: leave -a out, or say -a POSIX".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: MdtestArgs,
    }

    fn parsed(line: &str) -> Result<MdtestArgs, clap::Error> {
        Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).map(|line| line.args)
    }

    fn options(line: &str) -> MdtestOptions {
        parsed(line).unwrap_or_else(|e| panic!("{e}")).options(None).expect("it is valid")
    }

    #[test]
    fn lines_of_articles_are_taken() {
        let found = options("-I 10 -i 2 -z 5 -b 5 -d /mnt/x");
        assert_eq!(
            (found.items, found.repetitions, found.depth, found.branch),
            (Items::PerFolder(10), 2, 5, 5)
        );
        assert_eq!((found.phases, found.directories, found.files), (MdtestPhases::ALL, true, true));
        let found = options("-C -F -L -w 3901 -e 3901 -N 1 -n 100 -u -y -d x -R5");
        assert_eq!((found.items, found.write_bytes, found.read_bytes), (Items::InAll(100), 3901, 3901));
        assert!(found.is_leaf_only && found.is_unique && found.fsync && !found.directories);
        assert_eq!((found.stride, found.order), (1, Some(5)));
        assert!(found.phases.create && !found.phases.stat && !found.phases.remove);
        assert_eq!(options("-d x -R -D").order, Some(0));
        assert_eq!(options("-d x --processes 1,2").processes, [1, 2]);
    }

    #[test]
    fn what_is_not_supported_is_named_with_what_to_do() {
        for (line, part) in
            [("-c", "-c is not supported"), ("-W 300", "seconds"), ("-S", "one file"), ("-Y", "sync")]
        {
            let refused = parsed(&format!("-d x {line}")).expect("the parser takes it").refused.check();
            let error = refused.expect_err("it is not supported");
            assert!(error.to_string().contains(part) && !error.hint().is_empty(), "{error}");
        }
        for line in ["-a DFS", "-w 4kb", "-n 1 -I 1", "-F -D", "-b many", "-z -1"] {
            assert!(parsed(&format!("-d x {line}")).is_err(), "{line}");
        }
        assert!(parsed("-n 5").is_err(), "a folder has to be named");
        assert!(parsed("-d a@b").expect("parsed").options(None).is_err());
    }
}
