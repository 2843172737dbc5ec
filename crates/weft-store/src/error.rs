//! What can go wrong in the store, with what is needed to act on it. It decides nothing.

use crate::region::Place;
use std::io;
use std::rc::Rc;
use weft_types::{DeviceId, DriveId, Epoch, FabricId, GroupId};
use weft_wire::DecodeError;

/// Why the store refused or could not do something.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The drive reported an error outside of a data read.
    #[error("cannot {operation} {length_bytes} bytes at offset {offset_bytes}")]
    Io {
        /// What was tried: `read`, `write` or `flush`.
        operation: &'static str,
        /// Where on the drive.
        offset_bytes: u64,
        /// How much.
        length_bytes: u64,
        /// What the operating system says.
        #[source]
        source: Rc<io::Error>,
    },
    /// An earlier write or flush failed: nothing that follows it could be trusted, so the store stopped.
    #[error("the drive has failed: {cause}")]
    Failed {
        /// The first failure.
        cause: Rc<str>,
    },
    /// The drive itself is gone, whatever it still answers: what is written to it from now on is lost.
    #[error("the drive is gone")]
    Gone {
        /// What became of it.
        #[source]
        source: Rc<io::Error>,
    },
    /// The drive completes nothing any more, and reports no error.
    #[error("the drive hangs: nothing that was asked of it has completed for {seconds} s")]
    Hangs {
        /// For how long.
        seconds: u64,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// The drive is full; nothing was changed. Discards still work and return space.
    #[error("no space: {needed_blocks} blocks needed, {free_blocks} free beside the reserve")]
    NoSpace {
        /// Blocks that the request needs.
        needed_blocks: u64,
        /// Blocks that are free for data.
        free_blocks: u64,
    },
    /// So many writes are open that no more can be remembered. A discard or a write of zeroes may have happened in
    /// part; putting the same version again later is safe, and finishes it.
    #[error("too many writes are open: {reason}")]
    Crowded {
        /// Which limit was met.
        reason: &'static str,
    },
    /// A request that breaks a rule of the interface; nothing was changed.
    #[error("invalid request: {reason}")]
    Invalid {
        /// Which rule.
        reason: &'static str,
    },
    /// The group was never set on this drive.
    #[error("group {group} is not known on this drive")]
    UnknownGroup {
        /// The group that was named.
        group: GroupId,
    },
    /// A copy or a word about verification is of another stint: it was dropped (R13).
    #[error("group {group} is in the syncing stint of {current:?}, not of {found}")]
    StaleStint {
        /// The group.
        group: GroupId,
        /// The stint that the request carried.
        found: Epoch,
        /// The stint that this drive is in.
        current: Option<Epoch>,
    },
    /// A group entry that is older than the one held.
    #[error("group {group} is at {current} here already, {found} is older")]
    StaleEpoch {
        /// The group.
        group: GroupId,
        /// The epoch that was offered.
        found: Epoch,
        /// The epoch that this drive holds.
        current: Epoch,
    },
    /// The drive holds something that is not Weft's; formatting it needs `force`.
    #[error("the drive is not empty: found {found}")]
    ForeignData {
        /// What was recognised, and where.
        found: String,
    },
    /// The drive belongs to another fabric; formatting it needs `force`.
    #[error("the drive is formatted for Weft already, as drive {drive} of fabric {fabric}")]
    FormattedAlready {
        /// The fabric in its label.
        fabric: FabricId,
        /// The drive in its label.
        drive: DriveId,
    },
    /// There is no label of Weft.
    #[error("not a Weft drive: {found}")]
    NotWeft {
        /// What is there instead.
        found: String,
    },
    /// Both copies of the label are damaged.
    #[error("both copies of the drive's label are damaged")]
    LabelDamaged,
    /// The drive was formatted by a newer Weft.
    #[error("the drive has format {found}, this program knows formats up to {known}: use a newer Weft")]
    NewerFormat {
        /// The format in the label.
        found: u16,
        /// The newest format known here.
        known: u16,
    },
    /// The device is formatted into parts already; formatting it needs `force`.
    #[error(
        "the device is formatted for Weft already, as device {device} of fabric {fabric} in {parts} parts"
    )]
    FormattedAsDevice {
        /// The fabric in its label.
        fabric: FabricId,
        /// The device in its label.
        device: DeviceId,
        /// How many parts it has.
        parts: usize,
    },
    /// Neither copy of the label of a device of several parts can be used.
    #[error("the device's label is damaged: {reason}")]
    DeviceLabelDamaged {
        /// What is wrong with it.
        reason: String,
    },
    /// The device was formatted into parts by a newer Weft.
    #[error(
        "the device's label has format {found}, this program knows formats up to {known}: use a newer Weft"
    )]
    NewerDevice {
        /// The format in the label.
        found: u16,
        /// The newest format known here.
        known: u16,
    },
    /// A part that the device does not have was asked for.
    #[error("there is no part {index}: the device has {parts}, counted from 0")]
    NoSuchPart {
        /// What was asked for.
        index: usize,
        /// How many there are.
        parts: usize,
    },
    /// A part's own label is not that of the drive that the device's label lists.
    #[error("part {index} is not what the device's label lists: found {what} {found}, expected {listed}")]
    WrongPart {
        /// Which part, from 0.
        index: usize,
        /// What differs.
        what: &'static str,
        /// What the part's own label says.
        found: String,
        /// What the device's label says.
        listed: String,
    },
    /// The drive is shorter than when it was formatted.
    #[error("the drive is truncated: found {found_bytes} bytes, expected {expected_bytes}")]
    Truncated {
        /// Its size now.
        found_bytes: u64,
        /// Its size in the label.
        expected_bytes: u64,
    },
    /// The drive is too small.
    #[error("the drive has {found_bytes} bytes, the smallest that can be used has {minimum_bytes}")]
    TooSmall {
        /// Its size.
        found_bytes: u64,
        /// The limit.
        minimum_bytes: u64,
    },
    /// Both superblocks are damaged: nothing on the drive can be found any more.
    #[error("both superblocks are damaged; the drive must be formatted anew and resynced")]
    SuperblockDamaged,
    /// A batch of the log is unreadable although later ones exist: acknowledged records are lost.
    #[error(
        "the log is damaged: batch {sequence} at log position {position} is unreadable but batch {later} after \
         it is not; acknowledged writes are lost, so the drive must be formatted anew and resynced"
    )]
    LogDamaged {
        /// The batch that is missing.
        sequence: u64,
        /// Its place in the log's byte stream.
        position: u64,
        /// The later batch that proves that it was complete once.
        later: u64,
    },
    /// A page of the map, the bitmap or the state is damaged.
    #[error("{what} at {place} is damaged: {reason}; the drive must be formatted anew and resynced")]
    MetadataDamaged {
        /// Which structure.
        what: &'static str,
        /// Where.
        place: Place,
        /// What is wrong with it.
        reason: String,
    },
    /// The drive is used in a way that a newer Weft has begun, and that this one would break.
    #[error("{what} has {found}, which this program does not know: use a newer Weft")]
    Unknown {
        /// Which structure.
        what: &'static str,
        /// What is not known of it.
        found: String,
    },
    /// A document does not fit the region that is set aside for it.
    #[error("{what} has {found_bytes} bytes, at most {limit_bytes} fit")]
    TooLarge {
        /// Which document.
        what: &'static str,
        /// Its size.
        found_bytes: u64,
        /// The region's size.
        limit_bytes: u64,
    },
}

/// Why bytes of a drive are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// They contradict themselves, for this reason.
    Damaged(String),
    /// They are of a newer program, which has put this there.
    Unknown(String),
}

impl Fault {
    /// The error, with where it was found.
    pub(crate) fn in_structure(self, what: &'static str, place: Place) -> StoreError {
        match self {
            Fault::Damaged(reason) => StoreError::damaged(what, place, reason),
            Fault::Unknown(found) => StoreError::Unknown { what, found },
        }
    }

    /// The same fault, found in this part.
    pub(crate) fn in_part(self, part: impl std::fmt::Display) -> Fault {
        match self {
            Fault::Damaged(reason) => Fault::Damaged(format!("{part}: {reason}")),
            Fault::Unknown(found) => Fault::Unknown(format!("{found} ({part})")),
        }
    }
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Fault {
        Fault::Damaged(error.to_string())
    }
}

impl StoreError {
    /// Whether it says something of the device that the drive is on: it refused to read, write or flush, is
    /// gone, or hangs. Otherwise only what is on the drive is wrong, or the request.
    pub fn is_of_device(&self) -> bool {
        matches!(self, StoreError::Io { .. } | StoreError::Gone { .. } | StoreError::Hangs { .. })
    }

    /// An error of the drive in its context.
    pub(crate) fn io(
        operation: &'static str,
        offset_bytes: u64,
        length_bytes: u64,
        source: io::Error,
    ) -> Self {
        StoreError::Io { operation, offset_bytes, length_bytes, source: Rc::new(source) }
    }

    /// Damage found in a structure of the store.
    pub(crate) fn damaged(what: &'static str, place: Place, reason: impl Into<String>) -> Self {
        StoreError::MetadataDamaged { what, place, reason: reason.into() }
    }
}
