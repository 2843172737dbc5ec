//! `weft drive`: the drives of the fabric, and the drives of this machine.

use crate::connection::Connection;
use crate::error::CliError;
use crate::output::{Output, fields, table_or_note};
use crate::paint::{Paint, Tone};
use crate::size::Size;
use crate::table::{Cell, Table, row};
use std::path::PathBuf;
use weft_api::{ApiAnswer, ApiRequest, DriveInfo, ReplicaInfo};
use weft_types::{DeviceId, DriveState, FabricId, Role};

/// The drives of the fabric, and of this machine
#[derive(Clone, Debug, clap::Subcommand)]
pub enum DriveCommand {
    /// List the drives of the fabric
    #[command(after_long_help = "Examples:\n  weft drive list\n  weft drive list --json")]
    List,
    /// Show a drive of the fabric and the groups that it serves
    #[command(after_long_help = "Examples:\n  weft drive show 5c0f9a3e")]
    Show {
        /// The drive's identifier, or the first digits of it
        id: String,
    },
    /// Empty a drive: its copies pass to other drives while everything stays usable
    ///
    /// Nothing new is placed on the drive. Each copy leaves it only when another drive holds it in full, so that
    /// no volume is less protected at any time. Refused where no other drive can take a copy, or there is not
    /// enough room. The work goes on in the background, also when this command is ended; --cancel stops it.
    #[command(after_long_help = "Examples:\n  weft drive evacuate 5c0f9a3e --dry-run\n  \
        weft drive evacuate 5c0f9a3e\n  weft drive evacuate 5c0f9a3e --cancel\n  \
        weft drive evacuate 5c0f9a3e --device")]
    Evacuate(DriveEvacuateArgs),
    /// Have a drive take the place of another one, which may be in service or lost
    ///
    /// Every copy on the old drive passes to the new one. A copy of which the new drive's node holds another
    /// one is refused: choose a drive of the same node, or use `weft drive evacuate`.
    #[command(after_long_help = "Examples:\n  weft drive replace 5c0f9a3e --with 77aa01f2 --dry-run\n  \
        weft drive replace 5c0f9a3e --with 77aa01f2")]
    Replace(DriveReplaceArgs),
    /// Let a drive take part again that is marked as failed
    ///
    /// A drive on which an error was met is marked as failed for good, so that it is not trusted again by chance.
    /// Once it is sound (a cable, a full disk under a file), restart its node's target, then restore it: its
    /// copies are brought up to date.
    #[command(after_long_help = "Examples:\n  weft drive restore 5c0f9a3e")]
    Restore {
        /// The drive's identifier, or the first digits of it
        id: String,
        /// Take all drives that are parts of its device; those that are being emptied take part again, too
        #[arg(long)]
        device: bool,
        /// Go through all checks, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Forget a drive that holds no copy
    ///
    /// Its data is not touched, but the fabric never takes it back: format it to use it again.
    #[command(after_long_help = "Examples:\n  weft drive remove 5c0f9a3e")]
    Remove(DriveRemoveArgs),
    /// Format a block device or file of this machine for a fabric
    ///
    /// Everything on it is lost. A drive that is not empty is refused, and what was found on it is named: a
    /// file system, a partition table, another fabric's drive, or any data at its start or end.
    ///
    /// A device that is faster than one thread of a node is formatted into parts. Each of them is a drive of
    /// the fabric, named PATH#0, PATH#1 and so on; a node that serves PATH serves all of them. No two copies
    /// are placed on one device. For another number of parts, empty its drives with `weft drive evacuate`,
    /// and format it anew.
    #[command(after_long_help = "Examples:\n  weft drive format /dev/nvme0n1 --fabric-id \
        0f6c3a52-7c5e-4f6b-9d0e-1a2b3c4d5e6f\n  weft drive format ./drive.img --size 8GiB --fabric-id \
        0f6c3a52-7c5e-4f6b-9d0e-1a2b3c4d5e6f\n  weft drive format /dev/nvme0n1 --parts 4 --fabric-id \
        0f6c3a52-7c5e-4f6b-9d0e-1a2b3c4d5e6f --dry-run")]
    Format(DriveFormatArgs),
    /// Say what is on a drive of this machine
    ///
    /// Reads only. Shows the label, where the structures lie, and the state of the log, as far as they can be
    /// read.
    #[command(after_long_help = "Examples:\n  weft drive inspect /dev/nvme0n1\n  \
        weft drive inspect ./drive.img --json")]
    Inspect {
        /// The block device or file; PATH#1 is one of the parts of a device
        path: PathBuf,
    },
    /// Say where a volume's data lies on a drive of this machine
    ///
    /// Reads only, and may be used while a node serves the drive. The volume is found in the copy of the fabric map
    /// that every drive holds; each run of blocks is told with the byte on the drive where it begins. Blocks of
    /// groups that have no copy on this drive are elsewhere: `weft map show` and `weft drive show` say where.
    #[command(after_long_help = "Examples:\n  weft drive locate ./drive.img data\n  \
        weft drive locate /dev/nvme0n1 data --offset 10GiB --size 1MiB --verify\n  \
        weft drive locate ./drive.img data --size 1GiB --json | jq '.runs[] | select(.held == \"data\")'")]
    Locate(DriveLocateArgs),
    /// Check a drive of this machine for damage
    ///
    /// Reads every structure of the drive and compares them with each other. The drive must not be in use by
    /// a node. Exits with 1 if anything is wrong.
    #[command(after_long_help = "Examples:\n  weft drive check /dev/nvme0n1\n  \
        weft drive check ./drive.img --deep")]
    Check {
        /// The block device or file; PATH#1 is one of the parts of a device
        path: PathBuf,
        /// Read all data as well, and verify its checksums
        #[arg(long)]
        deep: bool,
    },
}

/// Arguments of `weft drive locate`.
#[derive(Clone, Debug, clap::Args)]
pub struct DriveLocateArgs {
    /// The block device or file; PATH#1 is one of the parts of a device
    pub path: PathBuf,
    /// The volume's name
    pub volume: String,
    /// From where on in the volume
    #[arg(long, value_name = "SIZE", default_value = "0", allow_hyphen_values = true)]
    pub offset: Size,
    /// How much of the volume, at most 16GiB
    #[arg(long, value_name = "SIZE", default_value = "4KiB", allow_hyphen_values = true)]
    pub size: Size,
    /// Read the data, and say whether it matches its checksums
    #[arg(long)]
    pub verify: bool,
}

/// Arguments of `weft drive evacuate`.
#[derive(Clone, Debug, clap::Args)]
pub struct DriveEvacuateArgs {
    /// The drive's identifier, or the first digits of it
    pub id: String,
    /// Take all drives that are parts of its device
    #[arg(long)]
    pub device: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would take it for the help of the command")]
    pub how: EvacuateArgs,
}

/// How drives are emptied.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct EvacuateArgs {
    /// Let it take part again; what has passed to other drives stays there
    #[arg(long)]
    pub cancel: bool,
    /// Go through all checks, say what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Return as soon as it has begun
    #[arg(long)]
    pub no_wait: bool,
}

/// Arguments of `weft drive replace`.
#[derive(Clone, Debug, clap::Args)]
pub struct DriveReplaceArgs {
    /// The drive that is to go: its identifier, or the first digits of it
    pub id: String,
    /// The drive that takes its place
    #[arg(long, value_name = "ID")]
    pub with: String,
    /// Take all drives that are parts of its device, one for one by those of the other's device
    #[arg(long)]
    pub device: bool,
    /// Go through all checks, say what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Return as soon as it has begun
    #[arg(long)]
    pub no_wait: bool,
}

/// Arguments of `weft drive remove`.
#[derive(Clone, Debug, clap::Args)]
pub struct DriveRemoveArgs {
    /// The drive's identifier, or the first digits of it
    pub id: String,
    /// Take all drives that are parts of its device
    #[arg(long)]
    pub device: bool,
    /// Go through all checks, say what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do it without being asked
    #[arg(long)]
    pub yes: bool,
}

/// Arguments of `weft drive format`.
#[derive(Clone, Debug, clap::Args)]
pub struct DriveFormatArgs {
    /// The block device or file
    pub path: PathBuf,
    /// The fabric that it will belong to: `weft fabric show` says which
    #[arg(long, value_name = "UUID")]
    pub fabric_id: FabricId,
    /// Overwrite whatever is on it
    #[arg(long)]
    pub force: bool,
    /// Go through all checks, say what would be lost, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Into how many parts: 1, 2, 4 or 8
    ///
    /// Several are worth it on a device that one thread of a node cannot keep busy, and where a flush is
    /// quick. They are refused on files, on disks that rotate, and where a part would have less than 64 GiB,
    /// unless forced. Without this option a block device that does not rotate and has at least 128 GiB is
    /// measured for 2 s: it gets a part for each 250000 random reads of 4 KiB per second, and one alone if a
    /// flush takes 100 us or more. Everything else gets one.
    #[arg(long, value_name = "N")]
    pub parts: Option<u32>,
    /// Create a file of this size, such as 8GiB, if there is none
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub size: Option<Size>,
    /// Let the new file take space as it is written, instead of reserving it
    #[arg(long, requires = "size")]
    pub sparse: bool,
}

pub(crate) async fn list(connection: &Connection, output: Output) -> Result<(), CliError> {
    let answer = connection.ask(&ApiRequest::DriveList {}).await?;
    let ApiAnswer::Drives { drives } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    output.show(&answer, |_, paint| table_or_note(&table(drives), paint, "the fabric has no drives yet"))
}

pub(crate) async fn show(connection: &Connection, id: &str, output: Output) -> Result<(), CliError> {
    let answer = connection.ask(&ApiRequest::DriveShow { id: id.to_owned() }).await?;
    let ApiAnswer::Drive { drive, replicas } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    output.show(&answer, |_, paint| describe(drive, replicas, paint))
}

pub(crate) async fn restore(
    connection: &Connection,
    id: &str,
    device: bool,
    dry_run: bool,
    output: Output,
) -> Result<(), CliError> {
    let answer = connection.ask(&ApiRequest::DriveRestore { id: id.to_owned(), device, dry_run }).await?;
    let ApiAnswer::Drive { drive, .. } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    let verb = if dry_run { "would take" } else { "takes" };
    let others = if device { ", and the others of its device," } else { "" };
    output.show(&answer, |_, _| {
        format!("drive {} of {}{others} {verb} part again\n", drive.id.short(), drive.node)
    })
}

/// Drives as a table; with their devices, if several share one.
pub(crate) fn table(drives: &[DriveInfo]) -> Table {
    let devices: Vec<DeviceId> = drives.iter().filter_map(|drive| drive.device).collect();
    let is_shared = (0..devices.len()).any(|at| devices[..at].contains(&devices[at]));
    let mut columns = vec!["DRIVE", "NODE", "STATE", ">SIZE", ">USED", ">IN-SYNC", ">SYNCING", ">OUT"];
    columns.extend(is_shared.then_some("DEVICE"));
    columns.push("PATH");
    let mut table = Table::new(&columns);
    for drive in drives {
        let mut cells = row![
            drive.id.short(),
            drive.node.as_str(),
            state(drive),
            &Size(drive.capacity_bytes),
            used(drive),
            &drive.in_sync_groups,
            &drive.syncing_groups,
            &drive.out_groups
        ];
        if is_shared {
            cells.push(Cell::from(drive.device.map_or_else(|| "-".to_owned(), |device| device.short())));
        }
        cells.push(Cell::from(drive.path.as_str()));
        table.row(cells);
    }
    table
}

fn describe(drive: &DriveInfo, replicas: &[ReplicaInfo], paint: Paint) -> String {
    let mut text = fields(
        paint,
        &[
            ("drive", drive.id.to_string()),
            ("node", drive.node.clone()),
            ("path", drive.path.clone()),
            ("device", drive.device.map_or_else(|| "its own".to_owned(), |device| device.short())),
            ("pool", drive.pool.clone()),
            ("state", state_name(drive).to_owned()),
            ("size", Size(drive.capacity_bytes).to_string()),
            ("used", used(drive)),
            ("damage", damage(drive)),
        ],
    );
    let mut table = Table::new(&["GROUP", "ROLE", "SINCE"]);
    for replica in replicas {
        table.row(row![&replica.group, role(replica.role), format!("epoch {}", replica.since.0)]);
    }
    if !table.is_empty() {
        text.push('\n');
        text.push_str(&table.render(paint));
    }
    text
}

/// What was found damaged, and healed, since the drive's target started.
fn damage(drive: &DriveInfo) -> String {
    match drive.usage {
        None => "-".into(),
        Some(usage) if usage.blocks_damaged == 0 => "none found".into(),
        Some(usage) => format!("{} blocks found, {} healed", usage.blocks_damaged, usage.blocks_healed),
    }
}

fn used(drive: &DriveInfo) -> String {
    drive.usage.map_or_else(|| "-".into(), |usage| Size(usage.used_bytes).to_string())
}

fn state_name(drive: &DriveInfo) -> &'static str {
    match (drive.state, drive.present) {
        (DriveState::Failed, _) => "failed",
        (DriveState::Destroyed, _) => "destroyed",
        (DriveState::Draining, true) => "emptying",
        (DriveState::Active, true) => "active",
        (DriveState::Active | DriveState::Draining, false) => "absent",
    }
}

fn state(drive: &DriveInfo) -> Cell {
    let tone = match (drive.state, drive.present) {
        (DriveState::Failed | DriveState::Destroyed, _) => Tone::Bad,
        (DriveState::Active, true) => Tone::Good,
        (DriveState::Active, false) | (DriveState::Draining, _) => Tone::Warning,
    };
    Cell::new(state_name(drive), tone)
}

/// A replica's role as a cell.
pub(crate) fn role(role: Role) -> Cell {
    let tone = match role {
        Role::InSync => Tone::Good,
        Role::Syncing => Tone::Warning,
        Role::Out => Tone::Bad,
    };
    Cell::new(role.to_string(), tone)
}
