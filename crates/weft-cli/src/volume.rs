//! `weft volume`: named, sized address spaces on the fabric.

use crate::change::{confirm, note_change, sessions_ended, used_by, would_be};
use crate::connection::Connection;
use crate::error::CliError;
use crate::log::LogArgs;
use crate::output::{Output, fields, table_or_note};
use crate::paint::Paint;
use crate::repair::VolumeRepairArgs;
use crate::size::Size;
use crate::table::{Table, row};
use crate::transfer::{VolumeExportArgs, VolumeImportArgs};
use crate::transport::TransportArgs;
use weft_api::{ApiAnswer, ApiRequest, FailureDomain, Health, VolumeInfo};
use weft_rt::Addr;
use weft_types::limits::{COPIES_MAX, LANES_MAX};
use weft_types::{SessionId, VolumeState};

/// Volumes: named, sized address spaces on the fabric
#[derive(Clone, Debug, clap::Subcommand)]
pub enum VolumeCommand {
    /// Create a volume
    ///
    /// Its data is kept in several copies, each on the drive of another node, and striped over several groups
    /// of drives. A volume that is larger than what the pool can still hold is refused, unless --thin is
    /// given.
    #[command(after_long_help = "Examples:\n  weft volume create data --size 100GiB\n  \
        weft volume create db --size 1TiB --copies 3 --thin\n  \
        weft volume create scratch --size 10GiB --copies 1 --stripe-width 8 --stripe-unit 256KiB")]
    Create(VolumeCreateArgs),
    /// List the volumes
    #[command(after_long_help = "Examples:\n  weft volume list\n  \
        weft volume list --json | jq -r '.volumes[].name'")]
    List {
        /// Also those that hold metadata of file systems: `weft fs` creates and deletes them
        #[arg(long)]
        all: bool,
    },
    /// Show a volume
    #[command(after_long_help = "Examples:\n  weft volume show data")]
    Show {
        /// The volume's name
        name: String,
    },
    /// Grow a volume, also while it is in use
    ///
    /// Clients see the new size at once. A volume cannot shrink.
    #[command(after_long_help = "Examples:\n  weft volume resize data --size 200GiB")]
    Resize {
        /// The volume's name
        name: String,
        /// Its new size, such as 200GiB
        #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
        size: Size,
        /// Go through all checks and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Delete a volume with all data on it
    ///
    /// It is gone for clients at once; its space comes back as the nodes drop its blocks. A volume that is
    /// attached is refused, unless --force is given.
    #[command(after_long_help = "Examples:\n  weft volume delete scratch\n  \
        weft volume delete scratch --force --yes\n  weft volume delete scratch --dry-run")]
    Delete(VolumeDeleteArgs),
    /// Have a volume go on whose last up-to-date copies are gone for good
    ///
    /// Where a drive is only away, bring it back: nothing is lost then. Where all drives with up-to-date
    /// copies of some of the volume are gone for good, nothing can bring that data back, and clients wait for
    /// it. Then this command lets the volume go on with the newest copy that is left, which has missed
    /// writes, or with zeroes where none is left.
    ///
    /// Every drive that is gone must be named with --destroyed by its whole identifier. It never takes part
    /// again, also if it turns up. A drive that is in service cannot be named, every volume that loses
    /// something must be, and all of their sessions end. Without --accept-data-loss it says what is wrong,
    /// and is refused.
    ///
    /// A lost drive may also have had the last copy of groups that hold nothing of any volume: nobody misses
    /// them, but the drive stays listed there, and cannot be removed. Without a volume's name they are begun
    /// anew.
    #[command(
        after_long_help = "Examples:\n  weft volume repair data\n  weft volume repair data --accept-data-loss \
        --dry-run --destroyed 68e816c6-87bb-44b1-a785-902fb927d651\n  weft volume repair data \
        --accept-data-loss --destroyed 68e816c6-87bb-44b1-a785-902fb927d651"
    )]
    Repair(VolumeRepairArgs),
    /// Copy a file into a volume
    ///
    /// The volume then holds what the file holds, and zeroes behind its end; what it held before is gone. A
    /// file that is empty is refused. Blocks of zeroes take no space. A volume that holds data is refused,
    /// unless --force is given. The volume is attached exclusively meanwhile.
    ///
    /// If it fails in between, the volume holds a part of the file; run the command again.
    #[command(after_long_help = "Examples:\n  weft volume import data ./disk.img --create\n  \
        zstd -dc disk.img.zst | weft volume import data -")]
    Import(VolumeImportArgs),
    /// Copy a volume into a file
    ///
    /// The volume is attached read-only meanwhile. Clients that have it attached shared may go on to write to
    /// it: a copy is only consistent if nobody does. While one has it exclusively, as `weft volume serve`
    /// does without --shared, it is refused.
    #[command(after_long_help = "Examples:\n  weft volume export data ./disk.img --sparse\n  \
        weft volume export data - | zstd > disk.img.zst")]
    Export(VolumeExportArgs),
    /// Serve volumes to NBD clients
    ///
    /// Every program that speaks NBD can use them: the kernel's nbd-client, QEMU, nbdcopy, fio. Runs in the
    /// foreground; Ctrl-C or SIGTERM ends it after the requests in flight, and detaches the volumes.
    ///
    /// NBD has no passwords here: whoever reaches the address can read and write. Listen on loopback or a
    /// Unix socket, or on a network that is trusted.
    #[command(after_long_help = "Examples:\n  weft volume serve data --nbd 127.0.0.1:10809\n  \
        weft volume serve data db --nbd unix:/run/weft/nbd.sock --shared")]
    Serve(VolumeServeArgs),
}

/// Arguments of `weft volume create`.
#[derive(Clone, Debug, clap::Args)]
pub struct VolumeCreateArgs {
    /// The volume's name: 1 to 63 of A-Z a-z 0-9 . _ -, beginning with a letter or digit
    pub name: String,
    /// Its size, such as 100GiB: a multiple of 4KiB
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub size: Size,
    /// Copies of each block, each on another node
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u8).range(1..=COPIES_MAX as i64))]
    pub copies: u8,
    /// Over how many groups of drives neighbouring data is spread, 1 to 64 [default: up to 4]
    #[arg(long, value_name = "N")]
    pub stripe_width: Option<u32>,
    /// How much goes to one group before the next one's turn, such as 64KiB: a power of two [default: chosen
    /// by the manager]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub stripe_unit: Option<Size>,
    /// The pool of drives to draw from [default: the pool 'default']
    #[arg(long)]
    pub pool: Option<String>,
    /// What must not hold two copies of the same data
    #[arg(long, value_enum, default_value_t = Domain::Node)]
    pub failure_domain: Domain,
    /// Allow it to be larger than what is free; the pool can then run full
    #[arg(long)]
    pub thin: bool,
    /// Go through all checks and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// What must not hold two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Domain {
    /// Every copy is on another node
    Node,
    /// Copies may share a node, but not a device: a node's death can take all of them
    Device,
    /// Copies may also share a device if there is no other, but not a drive: for tests
    Drive,
}

impl Domain {
    /// As the manager is asked for it.
    pub(crate) fn asked(self) -> FailureDomain {
        match self {
            Domain::Node => FailureDomain::Node,
            Domain::Device => FailureDomain::Device,
            Domain::Drive => FailureDomain::Drive,
        }
    }
}

impl std::fmt::Display for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Domain::Node => "node",
            Domain::Device => "device",
            Domain::Drive => "drive",
        })
    }
}

/// Arguments of `weft volume delete`.
#[derive(Clone, Debug, clap::Args)]
pub struct VolumeDeleteArgs {
    /// The volume's name
    pub name: String,
    /// Delete it even if clients have it attached: they lose access at once
    #[arg(long)]
    pub force: bool,
    /// Go through all checks and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask first
    #[arg(long)]
    pub yes: bool,
}

/// Arguments of `weft volume serve`.
#[derive(Clone, Debug, clap::Args)]
pub struct VolumeServeArgs {
    /// The volumes' names; clients name one of them as the export
    #[arg(required = true)]
    pub names: Vec<String>,
    /// Where to listen: IP:PORT or unix:PATH
    #[arg(long, value_name = "ADDR")]
    pub nbd: Addr,
    /// Attach shared: other clients may read and write the volumes as well; blocks are 4096 bytes
    #[arg(long, conflicts_with = "read_only")]
    pub shared: bool,
    /// Attach read-only
    #[arg(long)]
    pub read_only: bool,
    /// End attaches of other clients that are in the way: they lose access at once
    #[arg(long)]
    pub preempt: bool,
    /// Wait while a volume cannot be attached, such as for the end of another client, instead of
    /// giving up
    #[arg(long, conflicts_with = "preempt")]
    pub wait: bool,
    /// Threads that serve each volume [default: one for eight cores, 4 at most, where blocks have 4096 bytes;
    /// else 1]
    ///
    /// Each has connections to the nodes of its own. More than one makes blocks of 4096 bytes. Clients have
    /// to open as many connections.
    #[arg(long, value_name = "N", value_parser = parse_lanes)]
    pub lanes: Option<usize>,
    /// Bytes of the smallest request [default: 512 where the volume is attached exclusively with one
    /// lane, else 4096]
    #[arg(long, value_name = "BYTES", value_enum)]
    pub sector: Option<Sector>,
    /// Where to serve metrics for Prometheus, as IP:PORT: http://ADDR/metrics [default: nowhere]
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<Addr>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would take it for the help of the command")]
    pub transport: TransportArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would take it for the help of the command")]
    pub log: LogArgs,
}

/// Bytes of the smallest request to an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sector {
    /// As disks have; parts of blocks are read, changed and written back
    #[value(name = "512")]
    Bytes512,
    /// As blocks have
    #[value(name = "4096")]
    Bytes4096,
}

/// Cores for each lane where nobody says how many lanes there are, and the most lanes then: with more of them
/// each connection to a node carries too little.
const CORES_PER_LANE: usize = 8;
const DEFAULT_LANES_MOST: usize = 4;

impl VolumeServeArgs {
    /// How many lanes volumes are attached with, on a machine where this process may use so many cores.
    pub fn lanes_on(&self, cores: usize) -> usize {
        let has_whole_blocks = self.shared || self.read_only || self.sector == Some(Sector::Bytes4096);
        self.lanes.unwrap_or(match has_whole_blocks {
            true => (cores / CORES_PER_LANE).clamp(1, DEFAULT_LANES_MOST),
            false => 1,
        })
    }
}

/// A number of lanes.
fn parse_lanes(text: &str) -> Result<usize, String> {
    let lanes = text.parse().ok().filter(|lanes| (1..=LANES_MAX).contains(lanes));
    lanes.ok_or_else(|| format!("expected 1 to {LANES_MAX} lanes"))
}

pub(crate) async fn create(
    connection: &Connection,
    args: VolumeCreateArgs,
    output: Output,
) -> Result<(), CliError> {
    let request = ApiRequest::VolumeCreate {
        name: args.name,
        size_bytes: args.size.0,
        protection: weft_types::Protection::mirror(args.copies),
        pool: args.pool,
        stripe_unit_bytes: args.stripe_unit.map(|s| s.0),
        width: args.stripe_width,
        failure_domain: args.failure_domain.asked(),
        thin: args.thin,
        dry_run: args.dry_run,
    };
    let answer = connection.ask(&request).await?;
    show_one(connection, &answer, "created", output)
}

pub(crate) async fn list(connection: &Connection, all: bool, output: Output) -> Result<(), CliError> {
    let answer = connection.ask(&ApiRequest::VolumeList { all }).await?;
    let ApiAnswer::Volumes { volumes } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    let empty = "there are no volumes yet: `weft volume create` makes one";
    output.show(&answer, |_, paint| table_or_note(&table(volumes), paint, empty))
}

pub(crate) async fn show(connection: &Connection, name: &str, output: Output) -> Result<(), CliError> {
    let answer = connection.ask(&ApiRequest::VolumeShow { name: name.to_owned() }).await?;
    let ApiAnswer::Volume { volume, .. } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    output.show(&answer, |_, paint| describe(volume, paint))
}

pub(crate) async fn resize(
    connection: &Connection,
    name: &str,
    size: Size,
    dry_run: bool,
    output: Output,
) -> Result<(), CliError> {
    let request = ApiRequest::VolumeResize { name: name.to_owned(), size_bytes: size.0, dry_run };
    let answer = connection.ask(&request).await?;
    show_one(connection, &answer, "resized", output)
}

pub(crate) async fn delete(
    connection: &Connection,
    args: &VolumeDeleteArgs,
    output: Output,
) -> Result<(), CliError> {
    let request = |dry_run| ApiRequest::VolumeDelete { name: args.name.clone(), force: args.force, dry_run };
    if !args.dry_run {
        // What would be refused is refused before anybody is asked.
        let rehearsal = connection.ask(&request(true)).await?;
        let ApiAnswer::Deleting { volume, ended_sessions, .. } = rehearsal else {
            return Err(CliError::wrong_answer(connection.at()));
        };
        let users = used_by(ended_sessions.len());
        let size = Size(volume.size_bytes);
        let what = format!("This deletes volume '{}' of {size}{users}, for good.", volume.name);
        confirm(&what, &volume.name, args.yes)?;
    }
    let answer = connection.ask(&request(args.dry_run)).await?;
    let ApiAnswer::Deleting { volume, ended_sessions, dry_run } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    output.show(&answer, |_, _| deleted(volume, ended_sessions, *dry_run))
}

fn deleted(volume: &VolumeInfo, ended: &[SessionId], dry_run: bool) -> String {
    let (size, would) = (Size(volume.size_bytes), would_be(dry_run));
    format!("volume {} of {size} {would}deleted\n{}", volume.name, sessions_ended(ended, dry_run))
}

/// Shows a volume that was changed.
fn show_one(connection: &Connection, answer: &ApiAnswer, done: &str, output: Output) -> Result<(), CliError> {
    let ApiAnswer::Volume { volume, warnings, dry_run } = answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    note_change(warnings, *dry_run);
    output.show(answer, |_, _| {
        format!(
            "volume {} {}{done}: {}, {}, striped over {} groups in units of {}\n",
            volume.name,
            would_be(*dry_run),
            Size(volume.size_bytes),
            volume.protection,
            volume.width,
            Size(volume.stripe_unit_bytes)
        )
    })
}

fn table(volumes: &[VolumeInfo]) -> Table {
    let mut table =
        Table::new(&["VOLUME", ">SIZE", ">COPIES", "HEALTH", "STATE", ">WIDTH", ">SESSIONS", "POOL"]);
    for volume in volumes {
        table.row(row![
            volume.name.as_str(),
            &Size(volume.size_bytes),
            &volume.copies,
            crate::status::health(volume.health),
            state(volume.state),
            &volume.width,
            &volume.sessions,
            volume.pool.as_str()
        ]);
    }
    table
}

/// A state in a word.
pub(crate) fn state(state: VolumeState) -> &'static str {
    match state {
        VolumeState::Ready => "ready",
        VolumeState::Deleting => "deleting",
    }
}

/// A health, and what to do where it is not good.
pub(crate) fn health(health: Health) -> &'static str {
    match health {
        Health::Healthy => "healthy",
        Health::Degraded => "degraded: `weft status` says why",
        Health::Unavailable => "unavailable: `weft status` says why",
    }
}

fn describe(volume: &VolumeInfo, paint: Paint) -> String {
    let thin = if volume.thin { ", thin" } else { "" };
    let striping = format!(
        "units of {} over {} objects of {}",
        Size(volume.stripe_unit_bytes),
        volume.width,
        Size(volume.object_bytes)
    );
    let mut rows = vec![
        ("volume", format!("{} ({})", volume.name, volume.id)),
        ("size", format!("{} ({} bytes){thin}", Size(volume.size_bytes), volume.size_bytes)),
        ("state", state(volume.state).to_owned()),
        ("health", health(volume.health).to_owned()),
        ("copies", volume.copies.to_string()),
        ("striping", striping),
        ("pool", format!("{}, in {} groups", volume.pool, volume.groups)),
        ("sessions", volume.sessions.to_string()),
        ("generation", volume.generation.0.to_string()),
        ("created", volume.created.to_string()),
    ];
    if let Some(file_system) = &volume.file_system {
        rows.push(("metadata of", format!("file system {file_system}")));
    }
    fields(paint, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        serve: VolumeServeArgs,
    }

    #[test]
    fn lanes_follow_from_cores_where_blocks_are_whole() {
        let lanes = |options: &[&str], cores| {
            let line = ["serve", "v", "--nbd", "unix:/v"].iter().chain(options).copied();
            Program::try_parse_from(line).map(|program| program.serve.lanes_on(cores))
        };
        for (options, cores, expected) in [
            (&[][..], 64, 1),
            (&["--sector", "512"], 64, 1),
            (&["--sector", "4096"], 64, 4),
            (&["--sector", "4096"], 2, 1),
            (&["--shared"], 24, 3),
            (&["--read-only"], 15, 1),
            (&["--lanes", "2"], 64, 2),
            (&["--shared", "--lanes", "1"], 64, 1),
        ] {
            assert_eq!(lanes(options, cores).ok(), Some(expected), "{options:?} on {cores} cores");
        }
        assert!(lanes(&["--lanes", "0"], 8).is_err() && lanes(&["--lanes", "9"], 8).is_err());
    }
}
