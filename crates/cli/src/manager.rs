//! `weft manager`: the service that owns the fabric map. It holds the arguments only; the program runs it.

use crate::local::ProcessId;
use std::path::PathBuf;
use weft_rt::Addr;
use weft_types::FabricId;

/// The service that owns the fabric map
#[derive(Clone, Debug, clap::Subcommand)]
pub enum ManagerCommand {
    /// Run the manager
    ///
    /// Runs in the foreground until SIGTERM or SIGINT. While it is stopped, reads and writes go on; only a
    /// further failure has to wait for it.
    ///
    /// The log goes to the standard error; WEFT_LOG filters it, for example WEFT_LOG=debug.
    #[command(after_long_help = "Examples:\n  weft manager run --store /var/lib/weft/map.redb \
        --listen 10.0.0.1:4800 --socket /run/weft/manager.sock")]
    Run(ManagerRunArgs),
}

/// Arguments of `weft manager run`.
#[derive(Clone, Debug, clap::Args)]
pub struct ManagerRunArgs {
    /// The file that holds the fabric map; made if there is none
    #[arg(long, value_name = "FILE")]
    pub store: PathBuf,
    /// Where to listen for nodes and clients, as IP:PORT
    #[arg(long, value_name = "ADDR")]
    pub listen: Addr,
    /// Where to listen for tools of this machine, a Unix socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The identity of the fabric if there is none yet in the store [default: a random one]
    #[arg(long, value_name = "UUID")]
    pub fabric_id: Option<FabricId>,
    /// Stop when this process ends
    #[arg(long, hide = true)]
    pub supervisor: Option<ProcessId>,
}
