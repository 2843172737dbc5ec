//! `weft ondemand`: a file system that exists as long as a job, on the disks of the job's hosts, over ssh.
//!
//! It owns what runs on which host in which order, and that all of it can be undone. Files that are called
//! `host_…` run on the hosts (`on_host.rs` says how), the others on the machine of the command. Host files
//! (`host_file.rs`), what a start does (`plan.rs`) and how files are dealt (`deal.rs`) are pure.

mod copy;
mod copy_files;
mod copy_list;
mod crew;
mod deal;
mod host_drives;
mod host_file;
mod host_member;
mod host_mount;
mod host_prepare;
mod host_status;
mod known;
mod message;
mod network;
mod on_host;
mod plan;
mod record;
mod remote;
mod script;
mod start;
mod status;
mod stop;

pub use on_host::OnHostArgs;

use crate::error::CliError;
use crate::output::{Output, note};
use crate::size::Size;
use known::{Known, WhichArgs, known, read_hosts};
use network::Network;
use plan::{Ports, Wanted, check_apart, check_plain, copies, host_path};
use record::Records;
use remote::Ssh;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use weft_rt::sync::{Either, race};
use weft_rt::{random_u128, signal, sleep};
use weft_types::FabricId;
use weft_types::limits::{COPIES_MAX, DRIVE_BYTES_MIN, DRIVES_PER_TARGET_MAX, SHARDS_MAX};

/// How often the end of the work is looked for.
const POLL: Duration = Duration::from_millis(20);

/// Files of a copy at a time on each host where nothing is said.
const COPIES_AT_ONCE: usize = 4;

/// A file system that exists as long as a job, on the disks of the job's hosts
#[derive(Clone, Debug, clap::Subcommand)]
pub enum OndemandCommand {
    /// Start a file system on the hosts of a job, and mount it on all of them
    ///
    /// Over ssh, on all hosts at once: looks whether each is fit (PATH empty, writable and with enough room,
    /// MOUNTPOINT free, FUSE there), copies this program to hosts without it, makes drives from files below
    /// PATH, starts a manager on the first host and a node on each, creates a file system and mounts it
    /// everywhere. The command returns once every mount answers. If anything fails, or it is interrupted,
    /// everything is undone on all hosts.
    ///
    /// ssh must not ask for anything: with keys or host-based authentication. Processes on the hosts run as
    /// the user that ssh logs in as. Mounting needs root, or fusermount3.
    ///
    /// Nothing that hosts send to each other is encrypted or authenticated: use a network that only they
    /// reach.
    #[command(after_long_help = "Examples:\n  \
        weft ondemand start -n hosts.txt -d /local/scratch -c /mnt/job\n  \
        weft ondemand start -n $PBS_NODEFILE -d /local/scratch -c /mnt/job --copies 1 --size 200GiB\n  \
        scontrol show hostnames | weft ondemand start -n - -d /nvme -c /mnt/job --network 10.1.0.0/16\n  \
        weft ondemand start -n hosts.txt -d /local/scratch -c /mnt/job --dry-run")]
    Start(Box<OndemandStartArgs>),
    /// End a file system on demand: unmount it everywhere, and end its processes
    ///
    /// Refused where a program uses it, unless --force is given; the programs are named. A host that cannot
    /// be reached is named and passed over: the exit code is 1 then, and the command can be run again.
    #[command(after_long_help = "Examples:\n  weft ondemand stop --delete\n  \
        weft ondemand stop 3f2a91bc --delete --force\n  \
        weft ondemand stop -n hosts.txt -d /local/scratch --delete")]
    Stop(OndemandStopArgs),
    /// Show how a file system on demand is: hosts, mounts, health and space
    #[command(
        after_long_help = "Examples:\n  weft ondemand status\n  weft ondemand status 3f2a91bc --json\n  \
        weft ondemand status -n hosts.txt -d /local/scratch\n  weft ondemand status --list"
    )]
    Status(OndemandStatusArgs),
    /// Copy files into or out of a file system on demand, from all hosts at once
    ///
    /// Sources and target are paths on the hosts, and every host has to reach both: such as a folder of a
    /// shared file system, and one below MOUNTPOINT. Each source goes into the folder DST under its own name;
    /// of one that ends with a slash, the contents do. Owners, modes, times and symbolic links are kept; hard
    /// links become files of their own, and extended attributes are left out.
    ///
    /// A file that is there with the same size and time is passed over: a copy that was cut off goes on where
    /// it was when it is run again.
    #[command(after_long_help = "Examples:\n  weft ondemand copy /home/ada/input /mnt/job\n  \
        weft ondemand copy /mnt/job/results/ /home/ada/results")]
    Copy(OndemandCopyArgs),
    /// Carry out what the command on another machine asks
    #[command(hide = true)]
    OnHost(OnHostArgs),
}

/// Arguments of `weft ondemand start`.
#[derive(Clone, Debug, clap::Args)]
pub struct OndemandStartArgs {
    /// The file that names the hosts, as Slurm, PBS or Open MPI write it; - for the standard input
    ///
    /// A host a line, with words such as slots=4 behind it or not; or lists such as node[01-04,07]. A host
    /// that comes several times counts once.
    #[arg(long = "hosts", short = 'n', value_name = "FILE")]
    pub hosts: PathBuf,
    /// The folder on each host for the data, on a disk of its own host; made where it is missing
    ///
    /// Where it holds block devices, or links to them, and nothing else, these are the drives: they have to
    /// be empty, and `stop --delete` empties them again. Elsewhere drives are files in it.
    #[arg(long, short = 'd', value_name = "PATH")]
    pub path: PathBuf,
    /// The folder on each host at which the file system is mounted; made where it is missing
    #[arg(long, short = 'c', value_name = "FOLDER")]
    pub mountpoint: PathBuf,
    /// Shards of its metadata, 1 to 256, served by as many hosts as there are; directories lie in all of them
    /// [default: 16]
    #[arg(long, short = 'm', value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=SHARDS_MAX as i64))]
    pub shards: Option<u32>,
    /// Copies of each block, each on another host [default: 2, or 1 where there is one host]
    ///
    /// With one copy, files are lost with the first host that dies.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=COPIES_MAX as i64))]
    pub copies: Option<u8>,
    /// How much of each host's disk it takes, such as 200GiB [default: 80 % of what is free]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub size: Option<Size>,
    /// Into how many drive files that is divided; each thread of a node serves at least one of them
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=DRIVES_PER_TARGET_MAX as i64))]
    pub drives: u16,
    /// Let drive files take space as they are written, instead of reserving it
    #[arg(long)]
    pub sparse: bool,
    /// Ports that its processes may use on each host
    #[arg(long, value_name = "FIRST-LAST", default_value = "4900-4999")]
    pub ports: Ports,
    /// The network of its traffic, such as 10.1.0.0/16 [default: that by which ssh reaches the hosts]
    #[arg(long, value_name = "ADDRESS/BITS")]
    pub network: Option<Network>,
    /// The command that reaches a host, with options
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub ssh: Ssh,
    /// Where weft is on the hosts [default: on the PATH there, in /usr/bin or /usr/local/bin; else it is
    /// copied]
    #[arg(long, value_name = "PATH")]
    pub weft: Option<PathBuf>,
    /// Take the data that a stop without --delete has left in PATH
    #[arg(long, conflicts_with_all = ["size", "drives", "shards", "copies"])]
    pub resume: bool,
    /// Look at all hosts, say what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Where this machine keeps what it knows of file systems that were started on it [default:
    /// $XDG_STATE_HOME/weft/ondemand, or ~/.local/state/weft/ondemand]
    #[arg(long, value_name = "DIR", env = "WEFT_ONDEMAND_STATE", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
}

/// Arguments of `weft ondemand stop`.
#[derive(Clone, Debug, clap::Args)]
pub struct OndemandStopArgs {
    /// The file system's ID [default: the only one that was started on this machine]
    pub id: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would take it for the help of the command")]
    pub which: WhichArgs,
    /// Remove the data, too; without it, `start --resume` takes them
    #[arg(long)]
    pub delete: bool,
    /// Also where programs use it: what they have open fails from then on
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `weft ondemand status`.
#[derive(Clone, Debug, clap::Args)]
pub struct OndemandStatusArgs {
    /// The file system's ID [default: the only one that was started on this machine]
    pub id: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would take it for the help of the command")]
    pub which: WhichArgs,
    /// List those that were started on this machine, and ask no host
    #[arg(long)]
    pub list: bool,
}

/// Arguments of `weft ondemand copy`.
#[derive(Clone, Debug, clap::Args)]
pub struct OndemandCopyArgs {
    /// What is copied: absolute paths on the hosts
    #[arg(required = true, value_name = "SRC")]
    pub sources: Vec<PathBuf>,
    /// The folder that it is copied into, made where it is missing: an absolute path on the hosts
    #[arg(value_name = "DST")]
    pub target: PathBuf,
    /// The file system's ID [default: the only one that was started on this machine]
    #[arg(long)]
    pub id: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would take it for the help of the command")]
    pub which: WhichArgs,
    /// Files that each host copies at a time
    #[arg(long, value_name = "N", default_value_t = COPIES_AT_ONCE as u16,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub at_once: u16,
}

/// Carries out a command.
pub(crate) async fn run(command: OndemandCommand, output: Output) -> Result<(), CliError> {
    match command {
        OndemandCommand::OnHost(args) => on_host::on_host(args, output).await,
        OndemandCommand::Start(args) => {
            let start = started(*args)?;
            until_done(move |stop| start::start(&start, stop, output)).await
        }
        OndemandCommand::Stop(args) => {
            let records = Records::new(args.which.state_dir.as_deref())?;
            let Some(known) = which(&args.which, args.id.as_deref(), &records)? else { return Ok(()) };
            let stop = stop::Stop { known, delete: args.delete, force: args.force, records, token: token() };
            until_done(move |interrupted| stop::stop(&stop, interrupted, output)).await
        }
        OndemandCommand::Status(args) => {
            let records = Records::new(args.which.state_dir.as_deref())?;
            if args.list {
                return status::show_known(&records, output);
            }
            let Some(known) = which(&args.which, args.id.as_deref(), &records)? else { return Ok(()) };
            let token = token();
            until_done(move |interrupted| status::status(&known, &token, interrupted, output)).await
        }
        OndemandCommand::Copy(args) => {
            let records = Records::new(args.which.state_dir.as_deref())?;
            for path in args.sources.iter().chain([&args.target]) {
                check_plain(path).map_err(as_hosts_see)?;
            }
            let Some(known) = which(&args.which, args.id.as_deref(), &records)? else {
                return Err(CliError::Failed {
                    message: "there is no file system on demand to copy with".into(),
                    hint: "start one, or name its hosts and PATH with -n and -d".into(),
                });
            };
            let threads = usize::from(args.at_once);
            let copy =
                copy::Copy { known, sources: args.sources, target: args.target, threads, token: token() };
            until_done(move |interrupted| copy::copy(&copy, interrupted, output)).await
        }
    }
}

/// Finds what a command is about; where nothing is, says so.
fn which(which: &WhichArgs, id: Option<&str>, records: &Records) -> Result<Option<Known>, CliError> {
    let known = known(which, id, records)?;
    if known.is_none() {
        note("no file system on demand was started here, or it was removed");
    }
    Ok(known)
}

fn as_hosts_see(message: String) -> CliError {
    CliError::Usage { message, hint: "name it as hosts see it, from / on".into() }
}

/// What is to be started, checked as far as no host has to be asked.
fn started(args: OndemandStartArgs) -> Result<start::Start, CliError> {
    let usage = |message: String, hint: &str| CliError::Usage { message, hint: hint.to_owned() };
    let path = host_path(&args.path).map_err(as_hosts_see)?;
    let mountpoint = host_path(&args.mountpoint).map_err(as_hosts_see)?;
    check_apart(&path, &mountpoint)
        .map_err(|message| usage(message, "name two folders beside each other"))?;
    let hosts = read_hosts(&args.hosts)?;
    let copies = copies(args.copies, hosts.len())
        .map_err(|message| usage(message, "name more hosts, or ask for fewer copies"))?;
    let least = DRIVE_BYTES_MIN * u64::from(args.drives);
    if let Some(size) = args.size.filter(|size| size.0 < least) {
        let message = format!("--size {size}: {} drives need {} at least", args.drives, Size(least));
        return Err(usage(message, "ask for more, or for fewer drives"));
    }
    if copies == 1 && hosts.len() > 1 && !args.resume {
        note("warning: with one copy, files are lost with the first host that dies");
    }
    let wanted = Wanted {
        path,
        mountpoint,
        size: args.size.map(|size| size.0),
        drives: args.drives,
        copies,
        sparse: args.sparse,
        resume: args.resume,
    };
    Ok(start::Start {
        hosts,
        wanted,
        shards: args.shards,
        ports: args.ports,
        network: args.network,
        ssh: args.ssh,
        weft: args.weft,
        dry_run: args.dry_run,
        records: Records::new(args.state_dir.as_deref())?,
        fabric: FabricId::from_random(random_u128()),
        token: token(),
    })
}

/// What marks the lines of hosts that are meant for this command.
fn token() -> String {
    format!("@weft-{:032x}@", random_u128())
}

/// Does work that waits for hosts. After SIGINT or SIGTERM it is to end, and is awaited until it has.
async fn until_done<T: Send + 'static>(work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> T {
    // From here on the signals are held back, also in threads that are started now.
    let signalled = signal::terminated();
    let stop = Arc::new(AtomicBool::new(false));
    let worker = thread::spawn({
        let stop = stop.clone();
        move || work(&stop)
    });
    let ends = async || {
        while !worker.is_finished() {
            sleep(POLL).await;
        }
    };
    if let Either::Left(()) = race(signalled, ends()).await {
        stop.store(true, Ordering::Relaxed);
        ends().await;
    }
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
