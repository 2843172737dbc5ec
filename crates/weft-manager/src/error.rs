//! Why the manager does not start, or does not do what it was asked.

use crate::StoreError;
use weft_membership::Refusal;
use weft_types::{FabricId, MapVersion, with_causes};
use weft_wire::Status;

/// Why a manager does not start.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The store cannot be read or written.
    #[error("cannot use the manager's store")]
    Store(#[from] StoreError),
    /// The map breaks a rule that every map keeps.
    #[error("the fabric map in the manager's store breaks a rule: {first} ({count} in all)")]
    Broken {
        /// The first rule that is broken.
        first: String,
        /// How many are.
        count: usize,
    },
    /// Nothing was ever committed to the store.
    #[error("the manager's store holds no fabric: nothing was ever written to it")]
    NoFabric,
    /// A fabric was to be made where there is one.
    #[error("the store holds fabric {fabric} already, with map {version}")]
    FabricThere {
        /// The fabric in the store.
        fabric: FabricId,
        /// The version of its map.
        version: MapVersion,
    },
    /// The store belongs to another fabric.
    #[error("the manager's store belongs to fabric {found}, expected {expected}")]
    OtherFabric {
        /// The fabric in the store.
        found: FabricId,
        /// The fabric asked for.
        expected: FabricId,
    },
}

/// What to do where the map is as large as it may be.
pub(crate) const TOO_LARGE_HINT: &str = "the rest is kept for what has to fit always, such as \
     evictions and deletions: delete volumes that nobody needs";

/// What to do where too much would change at once.
pub(crate) const CHANGE_TOO_LARGE_HINT: &str = "ask for it in several steps, each with less";

/// What to do where the store is behind.
pub(crate) const STORE_BEHIND_HINT: &str =
    "look whether the disk of the manager's store works, then ask again";

/// What to do where the map is lost or cannot be trusted: the drives hold copies of it.
pub(crate) const RECOVER_HINT: &str =
    "the drives hold copies of the map: stop the manager and run `weft fabric recover`";

impl ManagerError {
    /// What to do about it, where there is something that people can do.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ManagerError::Store(error) => error.hint(),
            ManagerError::Broken { .. } => Some(RECOVER_HINT),
            ManagerError::NoFabric => Some(
                "`weft fabric init` makes a new fabric; if there was one, its drives hold copies of the map: \
                 `weft fabric recover`",
            ),
            ManagerError::FabricThere { .. } => {
                Some("start its manager, or name another file for a new fabric")
            }
            ManagerError::OtherFabric { .. } => {
                Some("name the store of this fabric, or leave the fabric's id out")
            }
        }
    }
}

/// Why a change was not committed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommitError {
    /// The rules forbid it; nothing has changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The map would be larger than it may be for this change; nothing has changed.
    #[error("the fabric map would have {bytes} bytes, and may have {limit} after such a change")]
    TooLarge { bytes: usize, limit: usize },
    /// What changes is more than one commit may have; nothing has changed.
    #[error("the change has {bytes} bytes, and may have {limit}")]
    ChangeTooLarge { bytes: usize, limit: usize },
    /// The store is too far behind what was decided; nothing has changed.
    #[error("the manager's store is behind: {ahead} changes wait for it")]
    StoreBehind { ahead: usize },
    /// The manager has stopped: whether the change is in the store is not known.
    #[error("the manager has stopped: {0}")]
    Halted(String),
}

/// A request of a target or client that is not carried out.
#[derive(Debug)]
pub(crate) struct Denied {
    pub(crate) status: Status,
    pub(crate) text: String,
}

impl Denied {
    pub(crate) fn new(status: Status, text: impl Into<String>) -> Self {
        Denied { status, text: text.into() }
    }
}

impl From<CommitError> for Denied {
    fn from(error: CommitError) -> Self {
        let status = match &error {
            CommitError::Refused(Refusal::Unknown { .. }) => Status::NotFound,
            CommitError::Refused(_) | CommitError::TooLarge { .. } | CommitError::ChangeTooLarge { .. } => {
                Status::Refused
            }
            CommitError::StoreBehind { .. } | CommitError::Halted(_) => Status::NotReady,
        };
        let hint = match &error {
            CommitError::Refused(refusal) => refusal.hint(),
            CommitError::TooLarge { .. } => Some(TOO_LARGE_HINT.to_owned()),
            CommitError::ChangeTooLarge { .. } => Some(CHANGE_TOO_LARGE_HINT.to_owned()),
            CommitError::StoreBehind { .. } => Some(STORE_BEHIND_HINT.to_owned()),
            CommitError::Halted(_) => None,
        };
        let mut text = with_causes(&error);
        if let Some(hint) = hint {
            text = format!("{text}; {hint}");
        }
        Denied { status, text }
    }
}
