//! `weft node`: the machines of the fabric.

use crate::connection::Connection;
use crate::drive::EvacuateArgs;
use crate::error::CliError;
use crate::local::ProcessId;
use crate::log::LogArgs;
use crate::output::{Output, fields, table_or_note};
use crate::paint::{Paint, Tone};
use crate::span::span_ms;
use crate::table::{Cell, Table, row};
use crate::transport::TransportArgs;
use weft_api::{ApiAnswer, ApiRequest, DriveInfo, NodeInfo, Presence, TargetInfo, Timestamp};
use weft_rt::{Addr, wall_clock_us};
use weft_types::FabricId;

/// The machines of the fabric
#[derive(Clone, Debug, clap::Subcommand)]
pub enum NodeCommand {
    /// List the nodes
    #[command(after_long_help = "Examples:\n  weft node list\n  weft node list --json")]
    List,
    /// Show a node and its drives
    #[command(after_long_help = "Examples:\n  weft node show node-2")]
    Show {
        /// The node's name
        name: String,
    },
    /// Empty all drives of a node: their copies pass to other nodes while everything stays usable
    ///
    /// As `weft drive evacuate` for each of its drives.
    #[command(
        after_long_help = "Examples:\n  weft node evacuate node-2 --dry-run\n  weft node evacuate node-2"
    )]
    Evacuate {
        /// The node's name
        name: String,
        #[command(flatten)]
        #[allow(missing_docs, reason = "clap would take it for the help of the command")]
        how: EvacuateArgs,
    },
    /// Forget a node whose drives hold no copy
    ///
    /// Its target must be down: it would join again at once. Its drives are not touched, but the fabric never
    /// takes them back: format them to use them again.
    #[command(after_long_help = "Examples:\n  weft node evacuate node-2 && weft node stop node-2 && \
        weft node remove node-2")]
    Remove {
        /// The node's name
        name: String,
        /// Go through all checks, say what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Do it without being asked
        #[arg(long)]
        yes: bool,
    },
    /// Start a node of a local fabric
    ///
    /// For a fabric that `weft up` made on this machine. The node joins with the drives that it had, and is
    /// brought up to date.
    #[command(after_long_help = "Examples:\n  weft node start node-2")]
    Start {
        /// The node's name
        name: String,
    },
    /// Stop a node of a local fabric
    ///
    /// For a fabric that `weft up` made on this machine. Volumes with another copy of the node's data stay
    /// usable.
    #[command(after_long_help = "Examples:\n  weft node stop node-2\n  weft node stop node-2 --kill")]
    Stop {
        /// The node's name
        name: String,
        /// Kill the process (SIGKILL) instead of asking it to stop, to see what a crash does
        #[arg(long)]
        kill: bool,
    },
    /// Serve this machine's drives
    ///
    /// Runs in the foreground until SIGTERM or SIGINT, then writes what it holds in memory to the drives and
    /// ends. A drive that cannot be opened is reported and left out; the others are served.
    ///
    /// The log goes to the standard error, or to --log-file in files of bounded size; docs/logs.md has its
    /// fields.
    #[command(after_long_help = "Examples:\n  weft node run --name node-1 --manager 10.0.0.1:4800 \
        --listen 10.0.0.2:4810 --drive /dev/nvme0n1 --drive /dev/nvme1n1")]
    Run(Box<NodeRunArgs>),
}

/// Arguments of `weft node run`.
#[derive(Clone, Debug, clap::Args)]
pub struct NodeRunArgs {
    /// The node's name in the fabric
    #[arg(long)]
    pub name: String,
    /// Where the manager listens, as IP:PORT
    #[arg(long, value_name = "ADDR")]
    pub manager: Addr,
    /// Where to listen for clients and other nodes, as IP:PORT
    #[arg(long, value_name = "ADDR")]
    pub listen: Addr,
    /// The fabric that the drives must belong to [default: the manager's]
    #[arg(long, value_name = "UUID")]
    pub fabric_id: Option<FabricId>,
    /// A drive formatted with `weft drive format`, or mem:SIZE for one in memory; may be given several times
    #[arg(long = "drive", value_name = "PATH", required = true)]
    pub drives: Vec<String>,
    /// How many threads serve the drives [default: one for six cores, no more than drives, 8 at most]
    ///
    /// Each has some of the drives, a port of its own (--listen is that of the first, the others follow it),
    /// and a lease of its own. More of them serve more requests at a time, on as many cores. The drives are
    /// dealt to them at each start, so the number may change from one start to the next. Needs every node of
    /// the fabric to run this release: by default the manager is asked first, and there is one as long as a
    /// node has not said so. Cores are those that affinity, cpuset and processor quota leave.
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Bind each thread to one core, instead of letting the system place them
    #[arg(long)]
    pub pin: bool,
    /// Where to serve metrics for Prometheus, as IP:PORT: http://ADDR/metrics [default: nowhere]
    ///
    /// Whoever reaches the address can read them: choose one that only your network reaches.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<Addr>,
    /// Stop when this process ends
    #[arg(long, hide = true)]
    pub supervisor: Option<ProcessId>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would take it for the help of the command")]
    pub transport: TransportArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would take it for the help of the command")]
    pub log: LogArgs,
}

pub(crate) async fn list(connection: &Connection, output: Output) -> Result<(), CliError> {
    let answer = connection.ask(&ApiRequest::NodeList {}).await?;
    let ApiAnswer::Nodes { nodes } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    output.show(&answer, |_, paint| {
        table_or_note(&table(nodes, present()), paint, "the fabric has no nodes yet")
    })
}

pub(crate) async fn show(connection: &Connection, name: &str, output: Output) -> Result<(), CliError> {
    let answer = connection.ask(&ApiRequest::NodeShow { name: name.to_owned() }).await?;
    let ApiAnswer::Node { node, drives } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    output.show(&answer, |_, paint| describe(node, drives, paint))
}

/// Nodes as a table, as of this time; with their threads, if any has several.
pub(crate) fn table(nodes: &[NodeInfo], time: Timestamp) -> Table {
    let mut nodes: Vec<&NodeInfo> = nodes.iter().collect();
    // Shorter names first, so that node-10 comes after node-2.
    nodes.sort_by(|a, b| (a.name.len(), &a.name).cmp(&(b.name.len(), &b.name)));
    let has_threads = nodes.iter().any(|node| !node.targets.is_empty());
    let mut columns = vec!["NODE", "STATE", "SINCE", "ADDRESS"];
    columns.extend(has_threads.then_some(">THREADS"));
    columns.extend([">DRIVES", ">MAP"]);
    let mut table = Table::new(&columns);
    for node in nodes {
        let adopted = node.adopted.map_or_else(|| "-".into(), |map| map.to_string());
        let mut cells = row![node.name.as_str(), state(node), ago(node.since, time), node.addr.as_str()];
        if has_threads {
            cells.push(Cell::from(node.targets.len().max(1).to_string()));
        }
        cells.extend(row![&node.drives, adopted]);
        table.row(cells);
    }
    table
}

fn describe(node: &NodeInfo, drives: &[DriveInfo], paint: Paint) -> String {
    let head = fields(
        paint,
        &[
            ("node", format!("{} ({})", node.name, node.id)),
            ("state", format!("{}, since {}", presence_name(node.presence), ago(node.since, present()))),
            ("address", node.addr.clone()),
            ("map adopted", node.adopted.map_or_else(|| "none known".into(), |map| map.to_string())),
        ],
    );
    let drives = crate::drive::table(drives).render(paint);
    match node.targets.is_empty() {
        true => format!("{head}\n{drives}"),
        false => format!("{head}\n{}\n{drives}", targets(&node.targets).render(paint)),
    }
}

/// The targets of a node that has several.
fn targets(targets: &[TargetInfo]) -> Table {
    let mut table = Table::new(&[">TARGET", "STATE", "SINCE", "ADDRESS", ">DRIVES", ">MAP"]);
    for target in targets {
        table.row(row![
            &target.index,
            presence(target.presence),
            ago(target.since, present()),
            target.addr.as_str(),
            &target.drives,
            target.adopted.map_or_else(|| "-".into(), |map| map.to_string())
        ]);
    }
    table
}

/// Whether the node takes part, and with how many of its targets if not with all.
fn state(node: &NodeInfo) -> Cell {
    let up = node.targets.iter().filter(|target| target.presence == Presence::Up).count();
    match node.targets.len() {
        all if up < all && node.presence == Presence::Up => {
            Cell::new(format!("up, {up} of {all} targets"), Tone::Warning)
        }
        _ => presence(node.presence),
    }
}

fn presence_name(presence: Presence) -> &'static str {
    match presence {
        Presence::Up => "up",
        Presence::Suspect => "suspect",
        Presence::Down => "down",
    }
}

fn presence(presence: Presence) -> Cell {
    let tone = match presence {
        Presence::Up => Tone::Good,
        Presence::Suspect => Tone::Warning,
        Presence::Down => Tone::Bad,
    };
    Cell::new(presence_name(presence), tone)
}

/// How long ago one time was at another.
fn ago(then: Timestamp, time: Timestamp) -> String {
    format!("{} ago", span_ms(time.as_millis().saturating_sub(then.as_millis())))
}

/// The time by this machine's clock.
fn present() -> Timestamp {
    Timestamp::from_millis(wall_clock_us() / 1000)
}
