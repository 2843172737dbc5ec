//! `weft drive format`: makes a device of this machine one or several drives of a fabric.
//!
//! It owns the refusals about parts, and what is printed.

use crate::device_speed::{PART_BYTES_LEAST, PARTS, Speed};
use crate::drive::{open_refusal, spec, store_refusal};
use std::fs;
use std::path::Path;
use weft_cli::{CliError, DriveFormatArgs, Output, Size, note};
use weft_rt::{Drive, OpenOptions, random_u128};
use weft_store::{Device, DeviceFormat, DeviceLabel, FormatOptions, Label, Part, Store, StoreError};
use weft_types::limits::DRIVE_BYTES_MIN;
use weft_types::{DeviceId, DriveId, with_causes};

/// What was, or would be, formatted, for programs.
#[derive(serde::Serialize)]
struct Report<'a> {
    path: &'a Path,
    /// The drive's identity; none of several parts, and of what was not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    drive: Option<String>,
    /// The device's identity, if it has several parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    fabric: String,
    size_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<u16>,
    /// The parts, if there are several: each is a drive.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<PartReport>,
    /// What decided on the number of parts, if that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Speed>,
    #[serde(flatten)]
    rehearsed: Option<Rehearsed>,
}

/// A part of a device.
#[derive(serde::Serialize)]
struct PartReport {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    drive: Option<String>,
    size_bytes: u64,
}

/// What is added where nothing was done.
#[derive(serde::Serialize)]
struct Rehearsed {
    /// What is on it that would be lost.
    overwrites: Option<String>,
    dry_run: bool,
}

/// What a path has become, or would.
enum Made {
    Drive(Label),
    Device(DeviceLabel),
}

pub(crate) async fn format(args: DriveFormatArgs, output: Output) -> Result<(), CliError> {
    let path = args.path.as_path();
    let existing = fs::metadata(path).ok();
    let create_bytes = match (&existing, args.size) {
        (None, Some(size)) => Some(size.0),
        (None, None) => {
            return Err(CliError::Failed {
                message: format!("{} does not exist", path.display()),
                hint: "check the path, or create a file of that name with --size 8GiB".into(),
            });
        }
        (Some(found), Some(size)) if found.is_file() && found.len() != size.0 => {
            return Err(CliError::Refused {
                message: format!("{} exists with {}, not {size}", path.display(), Size(found.len())),
                hint: "leave --size out to format it as it is, or name another file".into(),
            });
        }
        (Some(_), _) => None,
    };
    if args.dry_run {
        return rehearse(&args, create_bytes, output).await;
    }
    let (made, measured) = make(&args, create_bytes).await.inspect_err(|_| {
        if existing.is_none() {
            // It did not exist before, so nothing is lost; that it may not be there either is no news.
            let _ = fs::remove_file(path);
        }
    })?;
    output.show(&report(&args, &made, measured, None), |r, _| describe(r))
}

/// Says what formatting would do, after the checks that it goes through.
async fn rehearse(args: &DriveFormatArgs, create_bytes: Option<u64>, output: Output) -> Result<(), CliError> {
    let spec = spec(&args.path)?;
    let (size_bytes, parts, overwrites, measured) = match create_bytes {
        Some(bytes) => (bytes, new_parts(args, bytes)?, None, None),
        None => {
            let options = OpenOptions { read_only: true, ..OpenOptions::default() };
            let drive = Drive::open(spec, options).await.map_err(open_refusal(spec))?;
            let (options, overwrites) = what_would_be_lost(args, &drive).await?;
            let (parts, measured) = parts_for(args, &drive, false).await?;
            if parts == 1 {
                Store::check_format(&drive, options).await.map_err(store_refusal(spec))?;
            }
            (drive.size_bytes(), parts, overwrites, measured)
        }
    };
    let made = match parts {
        1 if size_bytes < DRIVE_BYTES_MIN => {
            let small = StoreError::TooSmall { found_bytes: size_bytes, minimum_bytes: DRIVE_BYTES_MIN };
            return Err(store_refusal(spec)(small));
        }
        1 => None,
        _ => Some(Device::plan(size_bytes, &in_parts(args, parts)).map_err(store_refusal(spec))?),
    };
    let rehearsed = Some(Rehearsed { overwrites, dry_run: true });
    let about = match made {
        Some(label) => report(args, &Made::Device(label), measured, rehearsed),
        None => Report { size_bytes, measured, rehearsed, ..empty(args) },
    };
    output.show(&about, |r, _| describe(r))
}

/// What is on a device that formatting it would overwrite, and how it would be formatted as one drive.
///
/// # Errors
/// A refusal if that may not be.
async fn what_would_be_lost(
    args: &DriveFormatArgs,
    drive: &Drive,
) -> Result<(FormatOptions, Option<String>), CliError> {
    let options = as_one(args);
    let unforced = FormatOptions { force: false, ..options.clone() };
    match Store::check_format(drive, unforced).await {
        Err(
            found @ (StoreError::ForeignData { .. }
            | StoreError::FormattedAlready { .. }
            | StoreError::FormattedAsDevice { .. }),
        ) if args.force => Ok((options, Some(with_causes(&found)))),
        Err(error) => Err(store_refusal(spec(&args.path)?)(error)),
        Ok(_) => Ok((options, None)),
    }
}

/// Formats.
async fn make(args: &DriveFormatArgs, create_bytes: Option<u64>) -> Result<(Made, Option<Speed>), CliError> {
    let spec = spec(&args.path)?;
    if let Some(bytes) = create_bytes {
        // Before a large file is made for nothing.
        new_parts(args, bytes)?;
    }
    let options = OpenOptions { create_bytes, sparse: args.sparse, ..Default::default() };
    let drive = Drive::open(spec, options).await.map_err(open_refusal(spec))?;
    let options = as_one(args);
    Store::check_format(&drive, options.clone()).await.map_err(store_refusal(spec))?;
    let (parts, measured) = parts_for(args, &drive, true).await?;
    let made = match parts {
        1 => Store::format(&drive, options).await.map(Made::Drive),
        _ => Device::format(&drive, &in_parts(args, parts)).await.map(Made::Device),
    };
    Ok((made.map_err(store_refusal(spec))?, measured))
}

fn as_one(args: &DriveFormatArgs) -> FormatOptions {
    let drive_id = DriveId::from_random(random_u128());
    FormatOptions { force: args.force, ..FormatOptions::new(args.fabric_id, drive_id) }
}

fn in_parts(args: &DriveFormatArgs, parts: u32) -> DeviceFormat {
    DeviceFormat {
        fabric: args.fabric_id,
        device: DeviceId::from_random(random_u128()),
        drives: (0..parts).map(|_| DriveId::from_random(random_u128())).collect(),
        force: args.force,
        allow_tiny: false,
    }
}

/// The number of parts of a file that is not there yet.
fn new_parts(args: &DriveFormatArgs, size_bytes: u64) -> Result<u32, CliError> {
    let parts = args.parts.unwrap_or(1);
    check_parts(args, parts, size_bytes, Some("it is a file, where every flush is one of the file system"))?;
    Ok(parts)
}

/// The number of parts: what was asked for, or what the device's speed says.
async fn parts_for(
    args: &DriveFormatArgs,
    drive: &Drive,
    may_write: bool,
) -> Result<(u32, Option<Speed>), CliError> {
    let (size_bytes, is_solid_state) = (drive.size_bytes(), drive.is_solid_state());
    if let Some(parts) = args.parts {
        let is_file = fs::metadata(&args.path).is_ok_and(|found| found.is_file());
        let slow = match is_solid_state {
            _ if is_file => Some("it is a file, where every flush is one of the file system"),
            false => Some("it rotates, as far as the kernel knows"),
            true => None,
        };
        check_parts(args, parts, size_bytes, slow)?;
        return Ok((parts, None));
    }
    if !is_solid_state || size_bytes < 2 * PART_BYTES_LEAST {
        return Ok((1, None));
    }
    let path = args.path.display();
    note(&format!(
        "measuring reads and flushes of {path} for 2 s, to find into how many parts it is formatted"
    ));
    match Speed::measure(drive, may_write).await {
        Ok(speed) => {
            note(&format!("{path}: {}", speed.describe(size_bytes)));
            Ok((speed.parts(), Some(speed)))
        }
        Err(error) => {
            note(&format!("{path} could not be measured ({error}): 1 part"));
            Ok((1, None))
        }
    }
}

/// Refuses several parts where they would be slower than one, unless that is forced.
fn check_parts(
    args: &DriveFormatArgs,
    parts: u32,
    size_bytes: u64,
    slow: Option<&str>,
) -> Result<(), CliError> {
    let usage = |message: String, hint: &str| Err(CliError::Usage { message, hint: hint.to_owned() });
    if !PARTS.contains(&parts) {
        return usage(
            format!("--parts {parts}: a device has 1, 2, 4 or 8 parts"),
            "one for each thread that the device keeps busy; leave it out, and the device is measured",
        );
    }
    if parts == 1 || args.force {
        return Ok(());
    }
    let hint = "leave --parts out; for trying, --force makes them all the same, and overwrites what is there";
    let path = args.path.display();
    if let Some(slow) = slow {
        let message = format!("{parts} parts of {path} would wait for each other: {slow}");
        return usage(message, hint);
    }
    if size_bytes / u64::from(parts) < PART_BYTES_LEAST {
        let (size, least) = (Size(size_bytes / u64::from(parts)), Size(PART_BYTES_LEAST));
        return usage(format!("{parts} parts of {path} would have {size} each, less than {least}"), hint);
    }
    Ok(())
}

/// A document about a path of which nothing is known.
fn empty(args: &DriveFormatArgs) -> Report<'_> {
    Report {
        path: &args.path,
        drive: None,
        device: None,
        fabric: args.fabric_id.to_string(),
        size_bytes: 0,
        format: None,
        parts: Vec::new(),
        measured: None,
        rehearsed: None,
    }
}

/// The document about what was, or would be, made. Identities are those of what was made.
fn report<'a>(
    args: &'a DriveFormatArgs,
    made: &Made,
    measured: Option<Speed>,
    rehearsed: Option<Rehearsed>,
) -> Report<'a> {
    let is_made = rehearsed.is_none();
    let about = Report { measured, rehearsed, ..empty(args) };
    match made {
        Made::Drive(label) => Report {
            drive: is_made.then(|| label.drive.to_string()),
            size_bytes: label.size_bytes,
            format: is_made.then_some(label.format),
            ..about
        },
        Made::Device(label) => {
            let part = |(index, part): (usize, &Part)| PartReport {
                path: format!("{}#{index}", args.path.display()),
                drive: is_made.then(|| part.drive.to_string()),
                size_bytes: part.size_bytes(),
            };
            Report {
                device: is_made.then(|| label.device.to_string()),
                size_bytes: label.size_bytes,
                format: is_made.then_some(label.format),
                parts: label.parts.iter().enumerate().map(part).collect(),
                ..about
            }
        }
    }
}

fn describe(report: &Report<'_>) -> String {
    let (path, size) = (report.path.display(), Size(report.size_bytes));
    let count = report.parts.len();
    if let Some(rehearsed) = &report.rehearsed {
        let lost = rehearsed.overwrites.as_ref();
        let lost = lost.map_or_else(String::new, |found| format!("; lost would be what is there: {found}"));
        let parts = match report.parts.first() {
            Some(part) => format!(" in {count} parts of {}", Size(part.size_bytes)),
            None => String::new(),
        };
        return format!("{path} of {size} would be formatted{parts}{lost}\n");
    }
    if let Some(drive) = &report.drive {
        return format!("{path} formatted as drive {drive}, {size}\n");
    }
    let device = report.device.as_deref().unwrap_or_default();
    let mut text = format!("{path} formatted as device {device}, {size} in {count} parts\n");
    for part in &report.parts {
        let (drive, size) = (part.drive.as_deref().unwrap_or_default(), Size(part.size_bytes));
        text.push_str(&format!("  {} is drive {drive}, {size}\n", part.path));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_slower_or_too_small_have_to_be_forced() {
        let args = |force| DriveFormatArgs {
            path: "/dev/disk".into(),
            fabric_id: Default::default(),
            force,
            dry_run: false,
            parts: None,
            size: None,
            sparse: false,
        };
        let refusal = |parts, bytes, slow| {
            check_parts(&args(false), parts, bytes, slow).expect_err("it is refused").chain()
        };
        let (small, large) = (2 * PART_BYTES_LEAST - 1, 2 * PART_BYTES_LEAST);
        let rotates = Some("it rotates, as far as the kernel knows");
        assert!(
            refusal(2, large, rotates).contains("2 parts of /dev/disk would wait for each other: it rotates")
        );
        assert!(
            refusal(2, small, None).contains("would have 64.0 GiB each")
                || refusal(2, small, None).contains("less than 64 GiB")
        );
        for parts in [0, 3, 16, u32::MAX] {
            assert!(refusal(parts, large, None).contains("1, 2, 4 or 8 parts"));
            assert!(check_parts(&args(true), parts, large, None).is_err(), "also where it is forced");
        }
        check_parts(&args(false), 2, large, None).expect("they are large enough");
        check_parts(&args(false), 1, 1 << 20, rotates).expect("one part is as ever");
        check_parts(&args(true), 8, small, rotates).expect("forced");
    }
}
