//! `weft fabric collect`: what the drives of this machine know, as a file for a recovery on another machine.
//!
//! It owns the command. Reading drives is `known.rs`, the bytes are those of `weft_wire::collected`.

use crate::backup::write_whole;
use crate::known::{Found, one_fabric, read_drives};
use crate::recover::beside;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use weft_api::Timestamp;
use weft_cli::{CliError, FabricCollectArgs, Output, note};
use weft_rt::wall_clock_us;
use weft_types::{DriveId, FabricId, MapVersion};
use weft_wire::collected::{Collected, encode_collected};

/// What was, or would be, written.
#[derive(serde::Serialize)]
struct Report {
    file: PathBuf,
    fabric: FabricId,
    machine: String,
    taken: Timestamp,
    drives: Vec<Read>,
    bytes: usize,
    warnings: Vec<String>,
    dry_run: bool,
}

/// A drive that was read.
#[derive(serde::Serialize)]
struct Read {
    path: String,
    /// None if only its copy of the map could be read.
    drive: Option<DriveId>,
    map: Option<MapVersion>,
}

pub(crate) async fn collect(args: FabricCollectArgs, output: Output) -> Result<(), CliError> {
    let is_stdout = args.file == Path::new("-");
    if !is_stdout && args.file.exists() && !args.force {
        return Err(CliError::Refused {
            message: format!("{} exists", args.file.display()),
            hint: "name another file, or pass --force to overwrite it".into(),
        });
    }
    let (mut collected, mut found) = (Collected::default(), Vec::new());
    for path in &args.drives {
        for Found { fabric, map, parts, drive } in read_drives(path).await? {
            found.push((fabric, drive.path.clone()));
            if let Some(map) = map.filter(|map| !collected.maps.contains(map)) {
                collected.maps.push(map);
            }
            for part in parts {
                if !collected.parts.contains(&part) {
                    collected.parts.push(part);
                }
            }
            collected.drives.push(drive);
        }
    }
    let fabric = one_fabric(found.into_iter())?;
    let (machine, taken_ms) = (machine(), wall_clock_us() / 1000);
    let bytes = encode_collected(fabric, &machine, taken_ms, &collected);
    let report = Report {
        file: args.file,
        fabric,
        machine,
        taken: Timestamp::from_millis(taken_ms),
        drives: collected.drives.iter().map(read).collect(),
        bytes: bytes.len(),
        warnings: collected.drives.iter().filter_map(|d| d.warning.clone()).collect(),
        dry_run: args.dry_run,
    };
    for warning in &report.warnings {
        note(&format!("warning: {warning}"));
    }
    if !args.dry_run && is_stdout {
        return std::io::stdout().lock().write_all(&bytes).map_err(CliError::Output);
    }
    if !args.dry_run {
        let fresh = beside(&report.file, "new");
        let written = write_whole(&fresh, &report.file, &bytes);
        written
            .inspect_err(|_| drop(fs::remove_file(&fresh)))
            .map_err(CliError::file("write", &report.file))?;
    }
    output.show(&report, |r, _| describe(r))
}

fn read(drive: &weft_wire::collected::CollectedDrive) -> Read {
    let id = drive.contents.as_ref().map(|c| c.id);
    Read { path: drive.path.clone(), drive: id, map: drive.map_copy }
}

/// This machine by its host name, for people.
fn machine() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "unknown".into() } else { name.trim().into() }
}

fn describe(report: &Report) -> String {
    let mut text = String::new();
    for drive in &report.drives {
        let id = drive.drive.map_or_else(|| "not sound".into(), |id| format!("drive {id}"));
        let map = drive.map.map_or_else(|| "no map".into(), |map| format!("map {map}"));
        text.push_str(&format!("{}: {id}, {map}\n", drive.path));
    }
    let done = if report.dry_run { "would be written" } else { "written" };
    text.push_str(&format!(
        "what {} drives of fabric {} know {done} to {} ({} bytes)\n",
        report.drives.len(),
        report.fabric,
        report.file.display(),
        report.bytes
    ));
    if !report.dry_run {
        text.push_str(
            "keep the nodes of this machine stopped, and take the file to the machine of the manager: \
             weft fabric recover \
             STORE --from FILE...\n",
        );
    }
    text
}
