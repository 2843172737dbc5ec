//! What the paths of a node name, before any drive is opened: drives, and devices of several parts.
//!
//! It owns the locks of devices with parts. The main thread opens each of them, holds its lock until the
//! process ends, and lets the threads open it as well, each part with a file of its own. A drive that is
//! alone on its device is opened and locked by the thread that serves it. What is a copy of another device is
//! found here, before any of its parts is opened.

use super::drives::{FORMER_DRIVE_MAX, open_patiently};
use crate::drive::{open_refusal, store_refusal};
use std::collections::BTreeMap;
use std::path::Path;
use weft_cli::CliError;
use weft_rt::sync::join_all;
use weft_rt::{Drive, OpenOptions, now};
use weft_store::{Device, DeviceLabel, split_part};
use weft_types::{DeviceId, with_causes};
use weft_wire::control::DriveLeftOut;

/// A drive that is to be opened, on any thread.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    /// How the fabric names it: the path, or `PATH#INDEX`.
    pub(super) path: String,
    /// Its size; 0 if that is not known.
    pub(super) bytes: u64,
    /// The NUMA node that its device is attached to, as far as the kernel knows.
    pub(super) near: Option<u32>,
    /// Where it lies, if it is a part of a device.
    pub(super) part: Option<PartOf>,
}

/// Where a part lies.
#[derive(Clone, Debug)]
pub(super) struct PartOf {
    /// The device's path.
    pub(super) path: String,
    pub(super) label: DeviceLabel,
    pub(super) index: usize,
}

/// The drives of a node; devices with parts are locked as long as this lives.
#[derive(Default)]
pub(super) struct Devices {
    pub(super) drives: Vec<Listed>,
    pub(super) left_out: Vec<DriveLeftOut>,
    held: Vec<Drive>,
}

impl Listed {
    /// A drive that is alone on its device.
    pub(super) fn alone(path: &str) -> Listed {
        let (bytes, near) = (Drive::size_of(path).unwrap_or(0), Drive::numa_node_of(path));
        Listed { path: path.to_owned(), bytes, near, part: None }
    }

    /// The device that it shares with other parts.
    pub(super) fn device(&self) -> Option<DeviceId> {
        self.part.as_ref().map(|part| part.label.device)
    }
}

impl Devices {
    /// Looks what the paths name, all at once.
    pub(super) async fn find(paths: &[String]) -> Devices {
        let mut all = Devices::default();
        let mut labelled: BTreeMap<DeviceId, Vec<(Device, DeviceLabel)>> = BTreeMap::new();
        for (path, found) in paths.iter().zip(join_all(paths.iter().map(|path| look(path))).await) {
            match found {
                Ok(None) => all.drives.push(Listed::alone(path)),
                Ok(Some((device, label))) => labelled.entry(label.device).or_default().push((device, label)),
                Err(left_out) => all.leave_out(*left_out),
            }
        }
        for found in labelled.into_values() {
            all.take(found);
        }
        all
    }

    /// Takes what has one device's identity: a device, or copies of it.
    fn take(&mut self, found: Vec<(Device, DeviceLabel)>) {
        let paths: Vec<String> = found.iter().map(|(device, _)| device.drive().path().to_owned()).collect();
        let is_twin = found.len() > 1;
        for (path, (device, label)) in paths.iter().zip(found) {
            let parts = parts_of(path, &label);
            let shared = if is_twin { Err(twin(&paths)) } else { share(&device) };
            match shared {
                Ok(()) => {
                    let (id, count) = (label.device, parts.len());
                    tracing::info!(path, device = %id, parts = count, "a device of several parts");
                    self.held.push(device.drive().clone());
                    self.drives.extend(parts);
                }
                Err((why, hint)) => {
                    let parts = parts.iter().map(|part| left_out_part(part, why.clone(), hint.clone()));
                    parts.for_each(|part| self.leave_out(part));
                }
            }
        }
    }

    fn leave_out(&mut self, drive: DriveLeftOut) {
        tracing::error!(path = drive.path, "drive is left out: {}; hint: {}", drive.why, drive.hint);
        self.left_out.push(drive);
    }
}

fn parts_of(path: &str, label: &DeviceLabel) -> Vec<Listed> {
    let near = Drive::numa_node_of(path);
    let part = |index: usize| Listed {
        path: format!("{path}#{index}"),
        bytes: label.parts[index].size_bytes(),
        near,
        part: Some(PartOf { path: path.to_owned(), label: label.clone(), index }),
    };
    (0..label.parts.len()).map(part).collect()
}

/// Why a device and its copies are left out, and what to do.
fn twin(paths: &[String]) -> (String, String) {
    (
        format!("{} carry the same identity, so one is a copy of the other", paths.join(" and ")),
        "keep the one that was in use last, and format the other one anew".into(),
    )
}

/// Lets the threads open the device; otherwise why it is left out, and what to do.
fn share(device: &Device) -> Result<(), (String, String)> {
    device.drive().share().map_err(|error| {
        let error = open_refusal(device.drive().path())(error);
        (error.chain(), error.hint())
    })
}

/// A part that is left out: it is known which drive it is.
pub(super) fn left_out_part(part: &Listed, why: String, hint: String) -> DriveLeftOut {
    let id = part.part.as_ref().map(|part| part.label.parts[part.index].drive);
    DriveLeftOut { path: part.path.clone(), id, fabric: None, why, hint }
}

/// Opens a path, and looks whether it is a device of several parts. Nothing stays open of one that is not.
async fn look(path: &str) -> Result<Option<(Device, DeviceLabel)>, Box<DriveLeftOut>> {
    let left_out = |error: CliError| {
        let (why, hint) = (error.chain(), error.hint());
        Box::new(DriveLeftOut { path: path.to_owned(), id: None, fabric: None, why, hint })
    };
    if path.starts_with("mem:") {
        return Ok(None);
    }
    let until = now() + FORMER_DRIVE_MAX;
    let drive = open_patiently(path, &OpenOptions::default(), until).await.map_err(|error| {
        left_out(match split_part(path) {
            Some((device, _)) if Path::new(device).exists() => CliError::Usage {
                message: format!("{path} is not there"),
                hint: format!("a node serves all parts of a device: name it alone, --drive {device}"),
            },
            _ => open_refusal(path)(error),
        })
    })?;
    let mut device = Device::read(drive).await.map_err(|error| left_out(store_refusal(path)(error)))?;
    let Some(label) = device.label().cloned() else { return Ok(None) };
    if device.damaged_labels() > 0 {
        match device.repair_label().await {
            Ok(()) => tracing::warn!(path, "a copy of the device's label was damaged, and is written anew"),
            Err(error) => {
                let error = with_causes(&error);
                tracing::warn!(path, error, "a copy of the device's label is damaged, and stays so");
            }
        }
    }
    Ok(Some((device, label)))
}
