//! Drives of this machine that a command names: their paths, and what the refusals of the runtime and of the
//! store mean to people.

use std::io;
use std::path::Path;
use weft_cli::CliError;
use weft_store::StoreError;
use weft_types::with_causes;

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
            StoreError::ForeignData { .. }
            | StoreError::FormattedAlready { .. }
            | StoreError::FormattedAsDevice { .. } => CliError::Refused { message, hint },
            _ => CliError::Failed { message, hint },
        }
    }
}

fn store_hint(error: &StoreError) -> &'static str {
    match error {
        StoreError::ForeignData { .. }
        | StoreError::FormattedAlready { .. }
        | StoreError::FormattedAsDevice { .. } => {
            "check that it is the right drive; --force overwrites it, and all that is on it is lost"
        }
        StoreError::NotWeft { .. } => "check the path; `weft drive format` makes it a drive of a fabric",
        StoreError::NewerFormat { .. } | StoreError::NewerDevice { .. } | StoreError::Unknown { .. } => {
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
        StoreError::DeviceLabelDamaged { .. } => {
            "format the device anew with --force: the data comes back from the other copies by resync"
        }
        StoreError::NoSuchPart { .. } => "`weft drive inspect` with the device's path shows its parts",
        StoreError::WrongPart { .. } => {
            "something has written over the part: the others can be used; to have it back, drain them and \
             format the device anew"
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
