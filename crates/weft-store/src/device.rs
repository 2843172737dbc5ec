//! A device of this machine as it was opened: one drive, or several parts of which each is a drive.
//!
//! It owns how a device is formatted into parts. A crash on the way leaves a device without any label, which
//! counts as empty, or with one that is torn, which is refused; it is formatted again.

use crate::device_label::{DEVICE_FORMAT, DeviceLabel, Part, refuse_what_is_there};
use crate::format;
use crate::region::TINY_BYTES_MIN;
use crate::request::FormatOptions;
use crate::{StoreError, watch};
use weft_rt::Drive;
use weft_rt::sync::{Either, race};
use weft_rules::{Mutation, mutated};
use weft_types::limits::{DEVICE_PARTS_MAX, DRIVE_BYTES_MIN};
use weft_types::{BLOCK_SIZE, DeviceId, DriveId, FabricId};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// How to format a device into parts.
#[derive(Clone, Debug)]
pub struct DeviceFormat {
    /// The fabric that all parts shall belong to.
    pub fabric: FabricId,
    /// The device's new identity.
    pub device: DeviceId,
    /// The new identities of the parts, one for each.
    pub drives: Vec<DriveId>,
    /// Overwrite what is there: foreign data, or labels of Weft.
    pub force: bool,
    /// Allow parts below [`DRIVE_BYTES_MIN`], down to 1 MiB; for tests.
    pub allow_tiny: bool,
}

/// A device as it was opened.
#[derive(Debug)]
pub struct Device {
    drive: Drive,
    label: Option<DeviceLabel>,
    damaged: Vec<u64>,
}

impl Device {
    /// Reads what a drive is that was opened. Writes nothing.
    ///
    /// # Errors
    /// If it is a device of several parts whose label cannot be used, or does not answer. What is not Weft's
    /// at all is no error here: it is taken for one drive, and refused when that is opened.
    pub async fn read(drive: Drive) -> Result<Device, StoreError> {
        let read = match race(DeviceLabel::read(&drive), watch::hangs(&drive)).await {
            Either::Left(read) => read?,
            Either::Right(hangs) => {
                drive.give_up();
                return Err(hangs);
            }
        };
        let (label, damaged) = read.map_or((None, Vec::new()), |(label, damaged)| (Some(label), damaged));
        Ok(Device { drive, label, damaged })
    }

    /// What was opened: all of it.
    pub fn drive(&self) -> &Drive {
        &self.drive
    }

    /// The label of a device of several parts; none of one drive.
    pub fn label(&self) -> Option<&DeviceLabel> {
        self.label.as_ref()
    }

    /// Copies of the device's label that are damaged, 0 or 1.
    pub fn damaged_labels(&self) -> usize {
        self.damaged.len()
    }

    /// Writes the copy of the label anew that is damaged, if one is. Durable on return.
    ///
    /// # Errors
    /// Those of the drive. The other copy still serves.
    pub async fn repair_label(&mut self) -> Result<(), StoreError> {
        if let Some(label) = &self.label
            && !self.damaged.is_empty()
        {
            label.write(&self.drive, &self.damaged).await?;
            self.damaged.clear();
        }
        Ok(())
    }

    /// Goes through all that [`Device::format`] checks, and changes nothing: the label that the device would
    /// get.
    ///
    /// # Errors
    /// Those of [`Device::format`].
    pub async fn check_format(drive: &Drive, options: &DeviceFormat) -> Result<DeviceLabel, StoreError> {
        let label = plan(drive.size_bytes(), options)?;
        if !options.force {
            refuse_what_is_there(drive).await?;
        }
        Ok(label)
    }

    /// Whether a device of this size has room for these parts: the label that it would get.
    ///
    /// # Errors
    /// `TooSmall`, or `Invalid` for a number of parts that cannot be.
    pub fn plan(size_bytes: u64, options: &DeviceFormat) -> Result<DeviceLabel, StoreError> {
        plan(size_bytes, options)
    }

    /// Formats a device into parts, all at once: everything on it is lost. Durable on return. Until then the
    /// device is without a label: it is never one of which only some parts are new.
    ///
    /// # Errors
    /// If the parts are too small, the device holds anything that `force` does not allow to destroy, or it
    /// cannot be written.
    pub async fn format(drive: &Drive, options: &DeviceFormat) -> Result<DeviceLabel, StoreError> {
        let label = Self::check_format(drive, options).await?;
        let last = label.size_bytes - BLOCK;
        if !mutated(Mutation::DeviceNotWiped) {
            format::wipe_ends(drive, drive.size_bytes()).await?;
            format::flush(drive).await?;
        }
        if mutated(Mutation::DeviceLabelFirst) {
            label.write(drive, &[0]).await?;
        }
        for index in 0..label.parts.len() {
            let part = FormatOptions {
                force: true,
                allow_tiny: options.allow_tiny,
                ..FormatOptions::new(label.fabric, label.parts[index].drive)
            };
            format::format(&label.part(drive, index)?, &part).await?;
        }
        // The last copy first: whoever finds the first one finds a device that is whole.
        label.write(drive, &[last]).await?;
        label.write(drive, &[0]).await?;
        Ok(label)
    }
}

fn plan(size_bytes: u64, options: &DeviceFormat) -> Result<DeviceLabel, StoreError> {
    if !(1..=DEVICE_PARTS_MAX).contains(&options.drives.len()) {
        return Err(StoreError::Invalid { reason: "a device has 1 to 8 parts" });
    }
    let minimum_bytes = if options.allow_tiny { TINY_BYTES_MIN } else { DRIVE_BYTES_MIN };
    let parts = DeviceLabel::parts_of(size_bytes, &options.drives);
    let found_bytes = parts.iter().map(Part::size_bytes).min().unwrap_or(0);
    if found_bytes < minimum_bytes {
        return Err(StoreError::TooSmall { found_bytes, minimum_bytes });
    }
    Ok(DeviceLabel {
        format: DEVICE_FORMAT,
        fabric: options.fabric,
        device: options.device,
        size_bytes,
        created_us: weft_rt::wall_clock_us(),
        parts,
    })
}

/// The device and the index that `PATH#INDEX` names; none if it does not end so.
pub fn split_part(path: &str) -> Option<(&str, usize)> {
    let (device, index) = path.rsplit_once('#')?;
    let is_number = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
    Some((device, index.parse().ok().filter(|_| is_number)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_by_a_number_behind_the_path() {
        assert_eq!(split_part("/dev/nvme0n1#3"), Some(("/dev/nvme0n1", 3)));
        assert_eq!(split_part("a#1#2"), Some(("a#1", 2)));
        for other in ["/dev/nvme0n1", "a#", "a#x", "a#+1", "a#-1", "a#99999999999999999999999"] {
            assert_eq!(split_part(other), None, "{other}");
        }
    }
}
