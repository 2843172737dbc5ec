//! How the copies of a volume stand, all together.

use weft_api::DriveInfo;

/// How the drives stand in the groups that list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    /// All are in-sync.
    Whole,
    /// Some are out, and none is being brought up to date.
    Out,
    /// Some are being brought up to date.
    Syncing,
}

impl Copies {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Copies::Whole => "all in-sync",
            Copies::Out => "out",
            Copies::Syncing => "being brought up to date",
        }
    }

    pub(crate) fn of(drives: &[DriveInfo]) -> Copies {
        let sum = |roles: fn(&DriveInfo) -> usize| drives.iter().map(roles).sum::<usize>();
        match (sum(|d| d.syncing_groups), sum(|d| d.out_groups)) {
            (0, 0) => Copies::Whole,
            (0, _) => Copies::Out,
            _ => Copies::Syncing,
        }
    }
}
