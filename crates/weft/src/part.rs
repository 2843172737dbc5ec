//! What a path on the command line names: a drive, a device of several parts, or one of its parts as
//! `PATH#INDEX`.
//!
//! It owns the words for people about that. A file whose own name ends so is that file.

use crate::drive::{open_refusal, spec, store_refusal};
use std::path::{Path, PathBuf};
use weft_cli::CliError;
use weft_rt::{Drive, OpenOptions};
use weft_store::{Device, DeviceLabel, Label, split_part};

/// A drive that was named: all of what was opened, or a part of it.
pub(crate) struct Named {
    /// The path, or `PATH#INDEX`.
    pub(crate) path: PathBuf,
    pub(crate) drive: Drive,
    /// The device and the index in it, if it is a part.
    pub(crate) part_of: Option<(DeviceLabel, usize)>,
}

/// What a path has led to.
pub(crate) enum Found {
    /// One drive.
    One(Named),
    /// A device of several parts, all of which were named.
    All(Device, DeviceLabel),
}

/// Opens what a path names.
///
/// # Errors
/// If it is not there or in use, or is a device whose label cannot be used.
pub(crate) async fn find(path: &Path, options: OpenOptions) -> Result<Found, CliError> {
    let whole = spec(path)?;
    let named = split_part(whole).filter(|(device, _)| !path.exists() && Path::new(device).exists());
    let spec = named.map_or(whole, |(device, _)| device);
    let drive = Drive::open(spec, options).await.map_err(open_refusal(spec))?;
    let device = Device::read(drive).await.map_err(store_refusal(spec))?;
    match (device.label().cloned(), named) {
        (None, None) => {
            let (path, drive) = (path.to_owned(), device.drive().clone());
            Ok(Found::One(Named { path, drive, part_of: None }))
        }
        (Some(label), None) => Ok(Found::All(device, label)),
        (Some(label), Some((_, index))) => {
            let drive = label.part(device.drive(), index).map_err(store_refusal(spec))?;
            Ok(Found::One(Named { path: path.to_owned(), drive, part_of: Some((label, index)) }))
        }
        (None, Some((_, index))) => Err(CliError::Failed {
            message: format!("{spec} has no parts, so there is no part {index} of it"),
            hint: format!("name it alone: {spec}"),
        }),
    }
}

impl Found {
    /// The drives that were named: all parts of a device, by index.
    ///
    /// # Errors
    /// If a part does not lie on what was opened.
    pub(crate) fn drives(self) -> Result<Vec<Named>, CliError> {
        match self {
            Found::One(named) => Ok(vec![named]),
            Found::All(device, label) => {
                let spec = device.drive().path();
                let part = |index| {
                    let drive = label.part(device.drive(), index).map_err(store_refusal(spec))?;
                    let (path, part_of) = (PathBuf::from(drive.path()), Some((label.clone(), index)));
                    Ok(Named { path, drive, part_of })
                };
                (0..label.parts.len()).map(part).collect()
            }
        }
    }

    /// The one drive that was named.
    ///
    /// # Errors
    /// If it is a device of several parts: which names they have.
    pub(crate) fn one(self) -> Result<Named, CliError> {
        match self {
            Found::One(named) => Ok(named),
            Found::All(device, label) => {
                let (path, parts) = (device.drive().path(), label.parts.len());
                Err(CliError::Usage {
                    message: format!("{path} is a device of {parts} parts, each a drive by itself"),
                    hint: format!("name one of them: {path}#0 to {path}#{}", parts - 1),
                })
            }
        }
    }
}

impl Named {
    /// The path as people give it.
    pub(crate) fn spec(&self) -> Result<&str, CliError> {
        spec(&self.path)
    }

    /// Refuses a part whose own label is not that of the drive which the device lists.
    pub(crate) fn check(&self, label: &Label) -> Result<(), CliError> {
        match &self.part_of {
            Some((device, index)) => device.check_part(*index, label).map_err(store_refusal(self.spec()?)),
            None => Ok(()),
        }
    }
}
