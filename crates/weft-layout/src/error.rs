//! What a layout can be refused for. It never carries a decision, only what was found and what was needed.

use weft_types::limits::{OBJECT_BLOCKS_MAX, STRIPE_WIDTH_MAX};

/// Why a striping or a placement is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The stripe unit is not a power of two, or does not divide the object.
    #[error(
        "stripe unit of {unit_blocks} blocks: expected a power of two that divides the object of {object_blocks} blocks"
    )]
    Unit {
        /// The unit that was asked for.
        unit_blocks: u32,
        /// The object that it must divide.
        object_blocks: u32,
    },
    /// The stripe width is 0 or too large.
    #[error("stripe width of {width} objects: expected 1 to {STRIPE_WIDTH_MAX}")]
    Width {
        /// The width that was asked for.
        width: u32,
    },
    /// The object size is not a power of two, or too large.
    #[error("object of {object_blocks} blocks: expected a power of two up to {OBJECT_BLOCKS_MAX}")]
    Object {
        /// The object size that was asked for.
        object_blocks: u32,
    },
    /// The layout of a file is of a form that this release does not know, or damaged.
    #[error("the layout of a file has form {form}, this release knows 1: upgrade this program")]
    Form {
        /// The form.
        form: u8,
    },
    /// A file is laid out in a set that its file system does not have.
    #[error("set {set} of groups, the file system has {sets}")]
    NoSet {
        /// The set, from 0.
        set: u8,
        /// How many there are.
        sets: usize,
    },
    /// A file is to have other copies than the groups of its file system.
    #[error("{copies} copies, the groups of the file system have {expected}")]
    OtherCopies {
        /// The copies that were asked for.
        copies: u8,
        /// Those that its groups have.
        expected: usize,
    },
    /// A group needs at least one copy.
    #[error("0 copies: expected at least 1")]
    NoCopies,
    /// There are fewer drives than copies.
    #[error("{copies} copies need {copies} drives, found {drives}")]
    TooFewDrives {
        /// Copies, and so drives, that a group needs.
        copies: usize,
        /// Drives that can take a new group.
        drives: usize,
    },
    /// There are enough drives, on too few devices.
    #[error("{copies} copies need drives on {copies} devices, found {drives} drives on {devices}")]
    TooFewDevices {
        /// Copies, and so devices, that a group needs.
        copies: usize,
        /// Devices that have a drive that can take a new group.
        devices: usize,
        /// Drives that can take a new group.
        drives: usize,
    },
    /// There are enough drives, on too few nodes.
    #[error("{copies} copies need drives on {copies} nodes, found {drives} drives on {nodes}")]
    TooFewNodes {
        /// Copies, and so nodes, that a group needs.
        copies: usize,
        /// Nodes that have a drive that can take a new group.
        nodes: usize,
        /// Drives that can take a new group.
        drives: usize,
    },
}
