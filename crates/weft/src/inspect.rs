//! `weft drive inspect`: what is on a drive, as far as it can be read. It never writes.

use crate::drive::store_refusal;
use crate::part::{self, Found, Named};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use weft_api::Timestamp;
use weft_cli::{CliError, Output, Size};
use weft_rt::{OpenOptions, timeout};
use weft_store::{Inspection, Place};
use weft_types::{BLOCK_SIZE, DeviceId, DriveId, FabricId, Role};

/// What is on a path, for programs.
#[derive(Serialize)]
#[serde(untagged)]
enum Report {
    Drive(Box<DriveReport>),
    Device(DeviceReport),
}

/// What is on a device of several parts.
#[derive(Serialize)]
struct DeviceReport {
    path: PathBuf,
    device: DeviceId,
    fabric: FabricId,
    format: u16,
    size_bytes: u64,
    created: Timestamp,
    damaged_labels: usize,
    parts: Vec<PartReport>,
}

/// What is on a part of a device.
#[derive(Serialize)]
#[serde(untagged)]
enum PartReport {
    Drive(Box<DriveReport>),
    /// It cannot be read as the drive that it should be.
    Unusable {
        path: PathBuf,
        drive: DriveId,
        error: String,
        hint: String,
    },
}

/// The device that a drive is a part of.
#[derive(Serialize)]
struct PartOf {
    device: DeviceId,
    index: usize,
    /// Where the drive's bytes are on the device, one extent behind the other.
    extents: Vec<Region>,
}

/// What is on a drive. Places are bytes from the drive's start, also where it is a part of a device.
#[derive(Serialize)]
struct DriveReport {
    path: PathBuf,
    drive: DriveId,
    /// The device, if the drive is a part of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    part_of: Option<PartOf>,
    fabric: FabricId,
    format: u16,
    size_bytes: u64,
    created: Timestamp,
    damaged_labels: usize,
    regions: Vec<Region>,
    superblock: Option<Root>,
    is_other_superblock_damaged: bool,
    log: Log,
    capacity_bytes: u64,
    free_bytes: Option<u64>,
    map_copy: Option<MapCopy>,
    groups: Vec<Member>,
}

/// A run of bytes with one use.
#[derive(Serialize)]
struct Region {
    name: &'static str,
    at: u64,
    length_bytes: u64,
}

/// The newest checkpoint.
#[derive(Serialize)]
struct Root {
    checkpoint: u64,
    batch: u64,
    log_position: u64,
}

/// What the log holds behind the checkpoint.
#[derive(Serialize)]
struct Log {
    capacity_bytes: u64,
    batches: u64,
    records: u64,
    bytes: u64,
    damage: Option<String>,
}

/// The drive's copy of the fabric map.
#[derive(Serialize)]
struct MapCopy {
    version: u64,
    bytes: u64,
}

/// The drive's part in a group, as of the checkpoint.
#[derive(Serialize)]
struct Member {
    group: u64,
    epoch: u64,
    role: Option<Role>,
}

pub(crate) async fn inspect(path: PathBuf, output: Output) -> Result<(), CliError> {
    output.show(&look(path).await?, |r, _| describe(r))
}

/// How long a drive is awaited whose labels are wanted beside much else: its log, of some hundred MiB, is read too.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is on a drive, as a document.
pub(crate) async fn facts(path: PathBuf) -> Result<serde_json::Value, CliError> {
    let slow = |_| CliError::Failed {
        message: format!("{} was not read within {} s", path.display(), PATIENCE.as_secs()),
        hint: "the drive hangs, or is very busy: see the kernel's log".into(),
    };
    let report = timeout(PATIENCE, look(path.clone())).await.map_err(slow)??;
    Ok(serde_json::to_value(report).expect("documents serialise"))
}

async fn look(path: PathBuf) -> Result<Report, CliError> {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let found = part::find(&path, options).await?;
    let (damaged_labels, label) = match &found {
        Found::One(named) => return Ok(Report::Drive(Box::new(look_at(named).await?))),
        Found::All(device, label) => (device.damaged_labels(), label.clone()),
    };
    let mut parts = Vec::new();
    for (named, part) in found.drives()?.into_iter().zip(&label.parts) {
        parts.push(match look_at(&named).await {
            Ok(report) => PartReport::Drive(Box::new(report)),
            Err(error) => {
                let (path, drive) = (named.path.clone(), part.drive);
                PartReport::Unusable { path, drive, error: error.chain(), hint: error.hint() }
            }
        });
    }
    Ok(Report::Device(DeviceReport {
        path,
        device: label.device,
        fabric: label.fabric,
        format: label.format,
        size_bytes: label.size_bytes,
        created: Timestamp::from_millis(label.created_us / 1000),
        damaged_labels,
        parts,
    }))
}

async fn look_at(named: &Named) -> Result<DriveReport, CliError> {
    let found = weft_store::inspect(&named.drive).await.map_err(store_refusal(named.spec()?))?;
    named.check(&found.label)?;
    Ok(report(named, &found))
}

fn report(named: &Named, found: &Inspection) -> DriveReport {
    let label = &found.label;
    let bytes = |blocks: u64| blocks * BLOCK_SIZE as u64;
    let part_of = named.part_of.as_ref().map(|(device, index)| {
        let extents = device.parts[*index].extents.iter();
        let region = |e: &weft_rt::Extent| Region { name: "extent", at: e.start, length_bytes: e.len };
        PartOf { device: device.device, index: *index, extents: extents.map(region).collect() }
    });
    DriveReport {
        path: named.path.clone(),
        drive: label.drive,
        part_of,
        fabric: label.fabric,
        format: label.format,
        size_bytes: label.size_bytes,
        created: Timestamp::from_millis(label.created_us / 1000),
        damaged_labels: found.damaged_labels,
        regions: regions(found),
        superblock: found.superblock.as_ref().map(|s| Root {
            checkpoint: s.checkpoint,
            batch: s.batch,
            log_position: s.log_position,
        }),
        is_other_superblock_damaged: found.is_other_superblock_damaged,
        log: Log {
            capacity_bytes: found.log_capacity_bytes,
            batches: found.log_batches,
            records: found.log_records,
            bytes: found.log_bytes,
            damage: found.log_damage.clone(),
        },
        capacity_bytes: bytes(found.capacity_blocks),
        free_bytes: found.free_blocks.map(bytes),
        map_copy: found.map_copy.map(|(version, bytes)| MapCopy { version, bytes }),
        groups: found
            .groups
            .iter()
            .map(|g| Member {
                group: g.id.0,
                epoch: g.epoch.0,
                role: g.slot_of(label.drive).map(|slot| slot.role),
            })
            .collect(),
    }
}

fn regions(found: &Inspection) -> Vec<Region> {
    let map = &found.label.region;
    let region = |name, at: u64, blocks: u64| Region {
        name,
        at: Place(at).offset(),
        length_bytes: blocks * BLOCK_SIZE as u64,
    };
    vec![
        region("map copies", map.map_copy(0).0, 2 * map.map_slot_blocks),
        region("log", map.log_first, map.log_blocks),
        region("bitmaps", map.bitmap_first, 2 * map.zones),
        region("zone tables", map.table_first, 2 * map.table_blocks),
        region("data", map.data_first, map.data_blocks()),
    ]
}

fn describe(report: &Report) -> String {
    match report {
        Report::Drive(drive) => describe_drive(drive),
        Report::Device(device) => describe_device(device),
    }
}

fn describe_device(report: &DeviceReport) -> String {
    let labels = match report.damaged_labels {
        0 => String::new(),
        _ => ", one of two copies is damaged".into(),
    };
    let lines = [
        ("device", format!("{}, in {} parts", report.device, report.parts.len())),
        ("fabric", report.fabric.to_string()),
        ("label", format!("format {}, of {}{labels}", report.format, report.created)),
        ("size", format!("{} ({} bytes)", Size(report.size_bytes), report.size_bytes)),
    ];
    let mut text: String = lines.iter().map(|(name, value)| format!("{name:12}  {value}\n")).collect();
    for part in &report.parts {
        match part {
            PartReport::Drive(drive) => {
                text.push_str(&format!("\n{}\n{}", drive.path.display(), describe_drive(drive)));
            }
            PartReport::Unusable { path, drive, error, hint } => {
                text.push_str(&format!("\n{}\n", path.display()));
                for (name, value) in [("drive", &drive.to_string()), ("UNUSABLE", error), ("to do", hint)] {
                    text.push_str(&format!("{name:12}  {value}\n"));
                }
            }
        }
    }
    text
}

fn describe_drive(report: &DriveReport) -> String {
    let labels = match report.damaged_labels {
        0 => String::new(),
        _ => ", one of two copies is damaged".into(),
    };
    let root = match &report.superblock {
        Some(root) => format!("checkpoint {}, up to batch {}", root.checkpoint, root.batch),
        None => "both copies are damaged".into(),
    };
    let log = &report.log;
    let damage = log.damage.as_ref().map_or_else(String::new, |d| format!(", DAMAGED: {d}"));
    let used = match report.free_bytes {
        Some(free) => format!("{} of {} free", Size(free), Size(report.capacity_bytes)),
        None => format!("{} in all, the bitmaps are damaged", Size(report.capacity_bytes)),
    };
    let copy = match &report.map_copy {
        Some(copy) => format!("m{}, {} bytes", copy.version, copy.bytes),
        None => "none".into(),
    };
    let in_sync = report.groups.iter().filter(|g| g.role == Some(Role::InSync)).count();
    let mut lines = vec![
        ("drive", report.drive.to_string()),
        ("fabric", report.fabric.to_string()),
        ("label", format!("format {}, of {}{labels}", report.format, report.created)),
        ("size", format!("{} ({} bytes)", Size(report.size_bytes), report.size_bytes)),
        ("superblock", root),
        (
            "log",
            format!(
                "{} batches with {} records, {} of {}{damage}",
                log.batches,
                log.records,
                Size(log.bytes),
                Size(log.capacity_bytes)
            ),
        ),
        ("space", used),
        ("map copy", copy),
        ("groups", format!("{}, in-sync in {in_sync}", report.groups.len())),
    ];
    for extent in report.part_of.iter().flat_map(|part| &part.extents) {
        lines.insert(1, ("on device", format!("{} at byte {}", Size(extent.length_bytes), extent.at)));
    }
    for region in &report.regions {
        lines.push((region.name, format!("{} at byte {}", Size(region.length_bytes), region.at)));
    }
    let line = |(name, value): &(&str, String)| format!("{name:12}  {value}\n");
    lines.iter().map(line).collect()
}
