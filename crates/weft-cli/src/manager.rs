//! `weft manager`: the service that owns the fabric map. It holds the arguments only; the program runs
//! it, and the manager of a local fabric is started and stopped as its nodes are.

use crate::local::ProcessId;
use crate::log::LogArgs;
use crate::span::Span;
use std::path::PathBuf;
use std::time::Duration;
use weft_rt::Addr;
use weft_types::FabricId;

/// The service that owns the fabric map
#[derive(Clone, Debug, clap::Subcommand)]
pub enum ManagerCommand {
    /// Start the manager of a local fabric
    ///
    /// For a fabric that `weft up` made on this machine, whose manager has ended while its nodes go on.
    #[command(after_long_help = "Examples:\n  weft manager start")]
    Start,
    /// Stop the manager of a local fabric
    ///
    /// For a fabric that `weft up` made on this machine. Reads and writes go on; only a further failure has to
    /// wait for the manager.
    #[command(after_long_help = "Examples:\n  weft manager stop\n  weft manager stop --kill")]
    Stop {
        /// Kill the process (SIGKILL) instead of asking it to stop, to see what a crash does
        #[arg(long)]
        kill: bool,
    },
    /// Run the manager
    ///
    /// The store must hold a fabric: `weft fabric init` makes a new one. Where the store is missing or
    /// empty, the manager refuses to start with exit code 4, because there may have been one.
    ///
    /// Runs in the foreground until SIGTERM or SIGINT. While it is stopped, reads and writes go on; only a
    /// further failure has to wait for it.
    ///
    /// The log goes to the standard error, or to --log-file in files of bounded size; docs/logs.md has its fields.
    #[command(after_long_help = "Examples:\n  weft manager run --store /var/lib/weft/map.redb \
        --listen 10.0.0.1:4800 --socket /run/weft/manager.sock")]
    Run(Box<ManagerRunArgs>),
}

/// Arguments of `weft manager run`.
#[derive(Clone, Debug, clap::Args)]
pub struct ManagerRunArgs {
    /// The file that holds the fabric map; `weft fabric init` makes it
    #[arg(long, value_name = "FILE")]
    pub store: PathBuf,
    /// Where to listen for nodes and clients, as IP:PORT
    #[arg(long, value_name = "ADDR")]
    pub listen: Addr,
    /// Where to listen for tools of this machine, a Unix socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The fabric that the store must hold [default: whichever it holds]
    #[arg(long, value_name = "UUID")]
    pub fabric_id: Option<FabricId>,
    /// Where to serve metrics for Prometheus, as IP:PORT: http://ADDR/metrics [default: nowhere]
    ///
    /// Whoever reaches the address can read them: choose one that only your network reaches.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<Addr>,
    /// How often the map is backed up while it changes, to backups/ beside the store; 24 backups are kept
    #[arg(long, value_name = "SPAN", default_value = "1h", value_parser = backup_every)]
    pub backup_every: Span,
    /// Stop when this process ends
    #[arg(long, hide = true)]
    pub supervisor: Option<ProcessId>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would take it for the help of the command")]
    pub log: LogArgs,
}

/// How often backups may be taken: more often would only wear the disk.
const BACKUP_EVERY_MIN: Duration = Duration::from_secs(1);

fn backup_every(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|e: crate::span::ParseSpanError| e.to_string())?;
    if span.0 < BACKUP_EVERY_MIN {
        return Err(format!("it must be at least {} s", BACKUP_EVERY_MIN.as_secs()));
    }
    Ok(span)
}
