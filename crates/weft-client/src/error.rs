//! What can go wrong for someone who uses a volume.

use std::time::Duration;
use weft_rpc::ConnectError;
use weft_types::{DriveId, GroupId, Lba};

/// Why an operation on a volume failed. A write that failed may or may not have taken effect, unless the
/// variant says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No manager could be reached.
    #[error("no manager answers at {addrs}")]
    NoManager {
        /// Where they were looked for.
        addrs: String,
        /// What the last attempt met.
        #[source]
        source: ConnectError,
    },
    /// The manager refused; its text says what was found and what to do.
    #[error("{message}")]
    Refused {
        /// The manager's words.
        message: String,
    },
    /// There is no volume of that name.
    #[error("there is no volume '{name}'")]
    NoSuchVolume {
        /// The name asked for.
        name: String,
    },
    /// The volume has a newer generation, or is gone: targets refuse all requests of this attach,
    /// for good. Another client attached exclusively, the volume was deleted, or the fabric's map
    /// was recovered.
    #[error("this attach of volume '{volume}' is over: {why}")]
    Fenced {
        /// The volume's name.
        volume: String,
        /// What ended it: the manager's words, or what is possible while the manager has not answered.
        why: String,
    },
    /// The session is over; attach again.
    #[error("the session on volume '{volume}' is over: {why}")]
    SessionOver {
        /// The volume's name.
        volume: String,
        /// What ended it: the manager's words, or what is possible while the manager has not answered.
        why: String,
    },
    /// The drives of a group are full. Nothing was written; discard or delete something, or add drives.
    #[error("the drives of group {group} are full")]
    NoSpace {
        /// The group.
        group: GroupId,
    },
    /// Not all replicas of a group that were needed have answered within the time allowed.
    #[error("not every answer that was needed of group {group} came within {waited:?}: {cause}")]
    TimedOut {
        /// The group.
        group: GroupId,
        /// How long was tried.
        waited: Duration,
        /// Which members have not answered, or what the last attempt met.
        cause: String,
    },
    /// No replica has a good copy of a block.
    #[error("{block} of object {object} is damaged on every replica of group {group}")]
    Damaged {
        /// The group.
        group: GroupId,
        /// The object.
        object: String,
        /// The block inside the object.
        block: Lba,
    },
    /// The request passes the end of the volume. Nothing was done.
    #[error("{length} bytes at {offset} pass the end of the volume at {size}")]
    OutOfBounds {
        /// Where it begins, in bytes.
        offset: u64,
        /// How long it is.
        length: u64,
        /// The volume's size in bytes.
        size: u64,
    },
    /// The request does not begin and end at logical blocks. Nothing was done.
    #[error("{length} bytes at {offset} are not whole logical blocks of {logical_block}")]
    Misaligned {
        /// Where it begins, in bytes.
        offset: u64,
        /// How long it is.
        length: u64,
        /// The logical block size in bytes.
        logical_block: u32,
    },
    /// The volume is attached read-only. Nothing was done.
    #[error("volume '{volume}' is attached read-only")]
    ReadOnly {
        /// The volume's name.
        volume: String,
    },
    /// Several lanes of a volume whose blocks are changed in parts: a whole write on another lane could be
    /// undone by the change of a part. Nothing was done.
    #[error(
        "volume '{volume}' has logical blocks of 512 bytes, and {lanes} lanes were asked for: it has one"
    )]
    LanesOfParts {
        /// The volume's name.
        volume: String,
        /// How many were asked for.
        lanes: usize,
    },
    /// A file has a layout that does not fit its file system. Nothing was done.
    #[error("the layout of a file does not fit its file system")]
    Layout(#[source] weft_layout::LayoutError),
    /// A target broke the protocol or refused a well-formed request.
    #[error("target at {addr}, drive {drive}: {message}")]
    Protocol {
        /// Where it listens.
        addr: String,
        /// The drive that it was asked about.
        drive: DriveId,
        /// What happened.
        message: String,
    },
}

impl ClientError {
    /// What the user could do, where there is something.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ClientError::NoManager { .. } => Some("is the fabric up? see `weft status`"),
            ClientError::NoSuchVolume { .. } => Some("`weft volume list` shows the volumes"),
            ClientError::Fenced { .. } | ClientError::SessionOver { .. } => Some("attach again"),
            ClientError::NoSpace { .. } => Some("delete or discard data, or add drives"),
            ClientError::TimedOut { .. } => {
                Some("`weft status` says which nodes and drives are missing, and who cannot reach a node")
            }
            ClientError::Damaged { .. } => {
                Some("restore the block by writing it, or bring back the missing drive")
            }
            ClientError::LanesOfParts { .. } => {
                Some("attach it shared, or with logical blocks of 4096 bytes (`--sector 4096`)")
            }
            _ => None,
        }
    }
}
