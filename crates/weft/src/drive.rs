//! `weft drive format`: makes a drive of this machine one of a fabric. Also what the store's refusals mean to
//! people.

use std::fs;
use std::io;
use std::path::Path;
use weft_cli::{CliError, DriveFormatArgs, Output, Size};
use weft_rt::{Drive, OpenOptions, random_u128};
use weft_store::{FormatOptions, Label, Store, StoreError};
use weft_types::limits::DRIVE_BYTES_MIN;
use weft_types::{DriveId, with_causes};

/// A drive that was formatted, for programs.
#[derive(serde::Serialize)]
struct Formatted<'a> {
    path: &'a Path,
    drive: String,
    fabric: String,
    size_bytes: u64,
    format: u16,
}

/// A drive that would be formatted, for programs.
#[derive(serde::Serialize)]
struct WouldFormat<'a> {
    path: &'a Path,
    fabric: String,
    size_bytes: u64,
    /// What is on it that would be lost.
    overwrites: Option<String>,
    dry_run: bool,
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
    let label = make(&args, create_bytes).await.inspect_err(|_| {
        if existing.is_none() {
            // It did not exist before, so nothing is lost; that it may not be there either is no news.
            let _ = fs::remove_file(path);
        }
    })?;
    let formatted = Formatted {
        path,
        drive: label.drive.to_string(),
        fabric: label.fabric.to_string(),
        size_bytes: label.size_bytes,
        format: label.format,
    };
    output.show(&formatted, |f, _| {
        format!("{} formatted as drive {}, {}\n", f.path.display(), f.drive, Size(f.size_bytes))
    })
}

/// Says what formatting would do, after the checks that it goes through.
async fn rehearse(args: &DriveFormatArgs, create_bytes: Option<u64>, output: Output) -> Result<(), CliError> {
    let spec = spec(&args.path)?;
    let (size_bytes, overwrites) = match create_bytes {
        Some(found_bytes) if found_bytes < DRIVE_BYTES_MIN => {
            let small = StoreError::TooSmall { found_bytes, minimum_bytes: DRIVE_BYTES_MIN };
            return Err(store_refusal(spec)(small));
        }
        Some(bytes) => (bytes, None),
        None => {
            let options = OpenOptions { read_only: true, ..Default::default() };
            let drive = Drive::open(spec, options).await.map_err(open_refusal(spec))?;
            let options = FormatOptions::new(args.fabric_id, DriveId::from_random(random_u128()));
            let checked = match Store::check_format(&drive, options.clone()).await {
                Err(found @ (StoreError::ForeignData { .. } | StoreError::FormattedAlready { .. }))
                    if args.force =>
                {
                    let forced = FormatOptions { force: true, ..options };
                    Store::check_format(&drive, forced).await.map(|label| (label, Some(with_causes(&found))))
                }
                other => other.map(|label| (label, None)),
            };
            let (label, found) = checked.map_err(store_refusal(spec))?;
            (label.size_bytes, found)
        }
    };
    let would = WouldFormat {
        path: &args.path,
        fabric: args.fabric_id.to_string(),
        size_bytes,
        overwrites,
        dry_run: true,
    };
    output.show(&would, |w, _| {
        let found = w
            .overwrites
            .as_ref()
            .map_or_else(String::new, |found| format!("; lost would be what is there: {found}"));
        format!("{} of {} would be formatted{found}\n", w.path.display(), Size(w.size_bytes))
    })
}

async fn make(args: &DriveFormatArgs, create_bytes: Option<u64>) -> Result<Label, CliError> {
    let spec = spec(&args.path)?;
    let options = OpenOptions { create_bytes, sparse: args.sparse, ..Default::default() };
    let drive = Drive::open(spec, options).await.map_err(open_refusal(spec))?;
    let drive_id = DriveId::from_random(random_u128());
    let options = FormatOptions { force: args.force, ..FormatOptions::new(args.fabric_id, drive_id) };
    Store::format(&drive, options).await.map_err(store_refusal(spec))
}

/// The path as the runtime wants it.
pub(crate) fn spec(path: &Path) -> Result<&str, CliError> {
    path.to_str().ok_or_else(|| CliError::Usage {
        message: format!("{} is not valid UTF-8", path.display()),
        hint: "name the drive by another path, such as a symbolic link".into(),
    })
}

/// A drive that cannot be opened.
pub(crate) fn open_refusal(path: &str) -> impl FnOnce(io::Error) -> CliError {
    let path = path.to_owned();
    move |error| CliError::Failed {
        // The runtime's words name the path themselves.
        message: format!("cannot open the drive: {}", with_causes(&error)),
        hint: match error.kind() {
            io::ErrorKind::NotFound => format!("check the path {path}"),
            io::ErrorKind::PermissionDenied => {
                "check the permissions, or run as root for a block device".into()
            }
            io::ErrorKind::WouldBlock => "stop the node that serves it first".into(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "use a smaller --size, let it grow with --sparse, or choose another disk".into()
            }
            io::ErrorKind::InvalidInput => "name a file, a block device, or mem:SIZE such as mem:256M".into(),
            io::ErrorKind::FileTooLarge => "use a smaller --size: the file system cannot hold it".into(),
            _ => format!("the kernel's log may say more about {path}"),
        },
    }
}

/// What the store refuses, with what to do.
pub(crate) fn store_refusal(path: &str) -> impl FnOnce(StoreError) -> CliError {
    let path = path.to_owned();
    move |error| {
        let message = format!("{path}: {}", with_causes(&error));
        let hint = store_hint(&error).to_owned();
        match error {
            StoreError::ForeignData { .. } | StoreError::FormattedAlready { .. } => {
                CliError::Refused { message, hint }
            }
            _ => CliError::Failed { message, hint },
        }
    }
}

fn store_hint(error: &StoreError) -> &'static str {
    match error {
        StoreError::ForeignData { .. } | StoreError::FormattedAlready { .. } => {
            "check that it is the right drive; --force overwrites it, and all that is on it is lost"
        }
        StoreError::NotWeft { .. } => "check the path; `weft drive format` makes it a drive of a fabric",
        StoreError::NewerFormat { .. } | StoreError::Unknown { .. } => {
            "use the version of weft that wrote it last, or a newer one"
        }
        StoreError::Truncated { .. } => {
            "restore its full size if the rest still exists; otherwise format it anew, and it is resynced"
        }
        StoreError::TooSmall { .. } => "use a larger drive",
        StoreError::Io { .. } | StoreError::Failed { .. } => {
            "the drive reports errors: look at the kernel's log, and replace the drive if they persist"
        }
        StoreError::Hangs { .. } => {
            "look at the kernel's log and at the cable, and restart the node once it answers, or replace it"
        }
        StoreError::LabelDamaged
        | StoreError::SuperblockDamaged
        | StoreError::LogDamaged { .. }
        | StoreError::MetadataDamaged { .. } => {
            "format it anew with --force: the data comes back from the other copies by resync"
        }
        _ => "`weft drive inspect` shows what is on it",
    }
}
