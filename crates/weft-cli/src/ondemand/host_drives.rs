//! The drives of a host: files that a start makes, or the empty block devices that PATH holds.
//!
//! It owns what is written to a device, and when: a device is formatted if it is empty, and emptied again if
//! it carries the label of this file system.

use super::host_prepare::{output_of, run};
use super::on_host::{Place, Work};
use super::record::HostRecord;
use crate::error::CliError;
use crate::local::program;
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use weft_types::FabricId;

/// What is overwritten at both ends of a device: its labels, and all that a look for data of others reads.
const ENDS_BYTES: u64 = 1 << 20;

/// The drives, by their paths.
pub(super) fn paths(place: &Place, record: &HostRecord) -> Vec<PathBuf> {
    match record.devices.is_empty() {
        true => (1..=record.drives).map(|number| place.0.join(format!("drive-{number}.img"))).collect(),
        false => record.devices.iter().map(|name| record.path.join(name)).collect(),
    }
}

/// Bytes of a drive.
pub(super) fn size(path: &Path) -> Result<u64, CliError> {
    let mut file = File::open(path).map_err(CliError::file("open", path))?;
    file.seek(SeekFrom::End(0)).map_err(CliError::file("find the size of", path))
}

/// Makes the drives: files of a size, or devices as they are.
pub(super) fn format(work: &Work<'_>, record: &HostRecord, bytes: u64, sparse: bool) -> Result<(), CliError> {
    for path in paths(work.place, record) {
        work.check()?;
        let mut command = program()?;
        command.args(["drive", "format"]).arg(path);
        command.args(["--fabric-id", &record.fabric.to_string(), "--parts", "1"]);
        if record.devices.is_empty() {
            command.args(["--size", &bytes.to_string()]);
        }
        if sparse && record.devices.is_empty() {
            command.arg("--sparse");
        }
        run(command, "a drive cannot be made")?;
    }
    Ok(())
}

/// Empties the devices of a file system, so that the next start may take them. A device without
/// its label is left as it is.
pub(super) fn give_back(place: &Place, record: &HostRecord) -> Result<(), CliError> {
    if record.devices.is_empty() {
        return Ok(());
    }
    for path in paths(place, record) {
        if fabric_of(&path)? == Some(record.fabric) {
            empty(&path).map_err(CliError::file("empty", &path))?;
        }
    }
    Ok(())
}

/// The fabric whose label a device has; none if it has no label.
fn fabric_of(path: &Path) -> Result<Option<FabricId>, CliError> {
    #[derive(Deserialize)]
    struct Inspected {
        fabric: FabricId,
    }
    let mut command = program()?;
    command.args(["drive", "inspect", "--json"]).arg(path);
    let done = output_of(command, "a device cannot be inspected")?;
    Ok(serde_json::from_slice(&done.stdout).ok().map(|inspected: Inspected| inspected.fabric))
}

fn empty(path: &Path) -> io::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    let bytes = file.seek(SeekFrom::End(0))?;
    for at in [0, bytes.saturating_sub(ENDS_BYTES)] {
        file.seek(SeekFrom::Start(at))?;
        io::copy(&mut io::repeat(0).take(ENDS_BYTES.min(bytes - at)), &mut file)?;
    }
    file.flush()?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_emptied_and_the_rest_stays() {
        let path = std::env::temp_dir().join(format!("weft-ondemand-empty-{}", std::process::id()));
        let ends = ENDS_BYTES as usize;
        for size in [0, 1, ends, 2 * ends, 3 * ends + 5] {
            std::fs::write(&path, vec![7; size]).expect("written");
            empty(&path).expect("emptied");
            let found = std::fs::read(&path).expect("there");
            assert_eq!((found.len(), super::size(&path).ok()), (size, Some(size as u64)));
            assert_eq!(found.iter().filter(|byte| **byte == 7).count(), size.saturating_sub(2 * ends));
        }
        std::fs::remove_file(path).expect("removed");
    }
}
