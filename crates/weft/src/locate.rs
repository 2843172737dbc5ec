//! `weft drive locate`: where a volume's data lies on a drive of this machine. It never writes.
//!
//! The drive alone is asked: its copy of the fabric map says which objects are the volume's and in which groups they
//! live, its own block map where their blocks are.

use crate::drive::store_refusal;
use crate::part;
use serde::Serialize;
use std::path::PathBuf;
use weft_cli::{Cell, CliError, DriveLocateArgs, Output, Paint, Size, Table, Tone};
use weft_layout::{address_of, group_of, pieces};
use weft_rt::{Drive, OpenOptions};
use weft_store::{Held, Label, Located, Store, Wanted};
use weft_types::{BLOCK_SIZE, DriveId, FabricMap, Lba, MapVersion, ObjectId, Role, Volume};
use weft_wire::control::decode_map;

/// The most that one look is about: what it finds is held in memory, some hundred bytes for each run.
const SIZE_MAX: u64 = 16 << 30;

/// Runs that are shown to people; programs get all of them.
const ROWS_SHOWN: usize = 64;

/// Where a part of a volume lies on a drive, for programs.
#[derive(Serialize)]
struct Report {
    path: PathBuf,
    drive: DriveId,
    volume: String,
    /// The map that the drive holds a copy of.
    map: MapVersion,
    offset_bytes: u64,
    size_bytes: u64,
    /// In the order of the volume's addresses; together they cover the part.
    runs: Vec<Run>,
}

/// Blocks that follow each other in the volume and on the drive.
#[derive(Clone, Serialize)]
struct Run {
    /// Where in the volume.
    offset_bytes: u64,
    length_bytes: u64,
    object: u64,
    group: u64,
    /// This drive's role in the group, as far as the drive knows; none if it has no part in it.
    role: Option<Role>,
    held: &'static str,
    /// The byte of the drive at which the run begins; of a part of a device, from the part's start.
    drive_byte: Option<u64>,
    /// The version of the data, as a number that rises with each write.
    version: Option<u64>,
    /// Whether the data matches its checksums, where it was read.
    is_intact: Option<bool>,
}

pub(crate) async fn locate(args: DriveLocateArgs, output: Output) -> Result<(), CliError> {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let named = part::find(&args.path, options).await?.one()?;
    let (spec, drive) = (named.spec()?, &named.drive);
    let label = weft_store::inspect(drive).await.map_err(store_refusal(spec))?.label;
    named.check(&label)?;
    let map = map_of(drive, spec).await?;
    let volume = map.volume_named(&args.volume).ok_or_else(|| unknown(&args, &map))?;
    let (lba, count) = part(&args, volume)?;
    let mut runs = Vec::new();
    let mut wanted = Vec::new();
    for piece in pieces(&volume.striping, lba, count) {
        let group = group_of(volume, piece.object_index).ok_or_else(|| CliError::Failed {
            message: format!("object {} of volume '{}' has no group", piece.object_index, volume.name),
            hint: "the drive's copy of the fabric map is damaged; use another drive of the fabric".into(),
        })?;
        let role = map.groups.get(&group).and_then(|g| g.slot_of(label.drive)).map(|slot| slot.role);
        match role {
            Some(_) => {
                let object = ObjectId::of_volume(volume.id, piece.object_index);
                wanted.push(Wanted { group, object, range: piece.range });
            }
            None => runs.push(Run {
                offset_bytes: (lba.0 + piece.at) * BLOCK_SIZE as u64,
                length_bytes: piece.range.bytes() as u64,
                object: piece.object_index,
                group: group.0,
                role: None,
                held: "elsewhere",
                drive_byte: None,
                version: None,
                is_intact: None,
            }),
        }
    }
    let found = weft_store::locate(drive, &wanted, args.verify).await.map_err(store_refusal(spec))?;
    runs.extend(found.iter().map(|located| run(located, volume, &map, &label)));
    runs.sort_by_key(|run| run.offset_bytes);
    let report = Report {
        path: args.path.clone(),
        drive: label.drive,
        volume: volume.name.clone(),
        map: map.version,
        offset_bytes: args.offset.0,
        size_bytes: args.size.0,
        runs,
    };
    let damaged = report.runs.iter().filter(|run| run.is_intact == Some(false)).count();
    output.show(&report, describe)?;
    match damaged {
        0 => Ok(()),
        _ => Err(CliError::Failed {
            message: format!(
                "{damaged} {} of blocks on this drive {} not match their checksums",
                if damaged == 1 { "run" } else { "runs" },
                if damaged == 1 { "does" } else { "do" }
            ),
            hint: format!("have them healed from another copy: weft scrub start {}", report.volume),
        }),
    }
}

async fn map_of(drive: &Drive, spec: &str) -> Result<FabricMap, CliError> {
    let copy = Store::read_map_copy(drive).await.map_err(store_refusal(spec))?;
    let Some((_, bytes)) = copy else {
        return Err(CliError::Failed {
            message: format!("{spec} holds no copy of the fabric map yet"),
            hint: "it gets one when a node serves it: `weft node run`".into(),
        });
    };
    decode_map(&bytes).map_err(|error| CliError::Failed {
        message: format!("the copy of the fabric map on {spec} cannot be read: {error}"),
        hint: "use the version of weft that wrote it, or a newer one".into(),
    })
}

fn unknown(args: &DriveLocateArgs, map: &FabricMap) -> CliError {
    let names: Vec<&str> = map.volumes.values().map(|v| v.name.as_str()).collect();
    let known =
        if names.is_empty() { "there are none".into() } else { format!("known: {}", names.join(", ")) };
    CliError::Failed {
        message: format!("no volume '{}' in the drive's copy of map {}", args.volume, map.version),
        hint: format!("check the name ({known}), and that {} is a drive of its fabric", args.path.display()),
    }
}

/// The blocks that are asked for.
fn part(args: &DriveLocateArgs, volume: &Volume) -> Result<(Lba, u64), CliError> {
    let block = BLOCK_SIZE as u64;
    let (offset, size) = (args.offset.0, args.size.0);
    let volume_bytes = volume.size.0 * block;
    let usage = |message: String, hint: &str| Err(CliError::Usage { message, hint: hint.to_owned() });
    if volume.is_file_system() {
        let message =
            format!("'{}' is a file system: only its metadata says where its files are", volume.name);
        return usage(message, "name a volume");
    }
    if !offset.is_multiple_of(block) || !size.is_multiple_of(block) || size == 0 {
        let message = format!("found offset {offset} and size {size}, expected multiples of {block} above 0");
        return usage(message, "round them to whole blocks of 4KiB");
    }
    if size > SIZE_MAX {
        let message = format!("found a size of {}, expected at most {}", Size(size), Size(SIZE_MAX));
        return usage(message, "look at a part at a time, with --offset");
    }
    if offset.checked_add(size).is_none_or(|end| end > volume_bytes) {
        let message = format!(
            "{} from {} on pass the end of volume '{}' at {}",
            Size(size),
            Size(offset),
            volume.name,
            Size(volume_bytes)
        );
        return usage(message, "choose --offset and --size within the volume");
    }
    Ok((Lba(offset / block), size / block))
}

fn run(located: &Located, volume: &Volume, map: &FabricMap, label: &Label) -> Run {
    let (held, place, is_intact) = match located.held {
        Held::Nothing => ("nothing", None, None),
        Held::Zero => ("zeroes", None, None),
        Held::Data { place, is_intact } => ("data", Some(place), is_intact),
        Held::Damaged { place } => ("damaged", place, Some(false)),
    };
    let lba = address_of(&volume.striping, located.object.index(), located.range.first);
    let role = map.groups.get(&located.group).and_then(|g| g.slot_of(label.drive)).map(|slot| slot.role);
    Run {
        offset_bytes: lba.expect("it was found by its address").0 * BLOCK_SIZE as u64,
        length_bytes: located.range.bytes() as u64,
        object: located.object.index(),
        group: located.group.0,
        role,
        held,
        drive_byte: place.map(|place| place.offset()),
        version: (held != "nothing").then(|| located.version.to_bits()),
        is_intact,
    }
}

fn describe(report: &Report, paint: Paint) -> String {
    let here = report.runs.iter().filter(|r| r.role.is_some()).map(|r| r.length_bytes).sum();
    let mut text = format!(
        "{} of volume {} from {} on, on drive {} as of map {}: {} of it in groups of this drive\n\n",
        Size(report.size_bytes),
        report.volume,
        Size(report.offset_bytes),
        report.drive.short(),
        report.map,
        Size(here)
    );
    let mut table =
        Table::new(&[">VOLUME BYTE", ">LENGTH", ">OBJECT", ">GROUP", "ROLE", "HELD", ">DRIVE BYTE", "DATA"]);
    for run in report.runs.iter().take(ROWS_SHOWN) {
        let data = match run.is_intact {
            Some(true) => Cell::new("intact", Tone::Good),
            Some(false) => Cell::new("DAMAGED", Tone::Bad),
            None => Cell::from("-"),
        };
        table.row(vec![
            Cell::from(&run.offset_bytes),
            Cell::from(Size(run.length_bytes).to_string()),
            Cell::from(&run.object),
            Cell::from(&run.group),
            Cell::from(run.role.map_or_else(|| "-".into(), |role| role.to_string())),
            Cell::from(run.held),
            Cell::from(run.drive_byte.map_or_else(|| "-".into(), |byte| byte.to_string())),
            data,
        ]);
    }
    text.push_str(&table.render(paint));
    if let Some(more) = report.runs.len().checked_sub(ROWS_SHOWN).filter(|more| *more > 0) {
        text.push_str(&format!("and {more} more: --json prints all\n"));
    }
    text
}
