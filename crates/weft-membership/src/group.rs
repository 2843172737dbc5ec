//! The roles of a group's slots, and the one place that changes them.
//!
//! ```text
//!               stand down                     leave
//!   in-sync ------------------->  syncing  ------------>  out
//!    |  ^                          |    ^                 ^ |
//!    |  +-------- promote ---------+    +----- begin -----|-+
//!    +---------------------- leave -----------------------+
//!
//!   accepted loss:  in-sync, syncing -- leave, stand down, begin again --> out, syncing -- survive --> in-sync
//! ```
//! The diagram is the table [`ARROWS`], which the setter reads. A new drive begins as syncing in a slot of
//! its own; with `begin`, another drive may take the slot of one that is out. It owns the diagram. It never
//! decides that a role changes: the changes that are named at the steps do.

use weft_types::{DriveId, Epoch, Group, Role, Slot};

/// A step along an arrow of the diagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A member leaves the write set: `Evict`, `Depart`; or it is gone: `AcceptLoss`.
    Leave,
    /// A member that was out takes part again (`Rejoin`), or another drive in its slot (`Rebuild`,
    /// `Replace`).
    Begin,
    /// All is verified: `Promote`.
    Promote,
    /// A member leaves the read set, before it leaves the write set: `HandOver`, `Demote`; or what it holds
    /// counts no more: `AcceptLoss`.
    StandDown,
    /// What a syncing member compared itself with is gone: `AcceptLoss`.
    BeginAgain,
    /// What this member holds is the truth from now on: `AcceptLoss`.
    Survive,
}

/// The arrows: from which role which step leads to which.
const ARROWS: &[(Role, Step, Role)] = &[
    (Role::InSync, Step::Leave, Role::Out),
    (Role::Syncing, Step::Leave, Role::Out),
    (Role::Out, Step::Begin, Role::Syncing),
    (Role::Syncing, Step::Promote, Role::InSync),
    (Role::InSync, Step::StandDown, Role::Syncing),
    (Role::Syncing, Step::BeginAgain, Role::Syncing),
    (Role::Syncing, Step::Survive, Role::InSync),
    (Role::Out, Step::Survive, Role::InSync),
];

/// Where a step leads from a role; `None` where the diagram has no such arrow.
fn arrow(from: Role, step: Step) -> Option<Role> {
    ARROWS.iter().find(|arrow| (arrow.0, arrow.1) == (from, step)).map(|arrow| arrow.2)
}

/// Whether a slot may pass from one role to the other in one change, other than by an accepted loss.
pub(crate) fn is_transition_valid(from: Role, to: Role) -> bool {
    let of_loss = |step| matches!(step, Step::BeginAgain | Step::Survive);
    ARROWS.iter().any(|(before, step, after)| (*before, *after) == (from, to) && !of_loss(*step))
}

/// Takes a slot along an arrow at this epoch, which begins a new stint.
///
/// # Panics
/// If the diagram has no such arrow: the change that asked has not checked its own rule.
pub(crate) fn take(slot: &mut Slot, step: Step, epoch: Epoch) {
    let role = arrow(slot.role, step);
    slot.role = role.unwrap_or_else(|| panic!("no slot that is {} can {step:?}", slot.role));
    slot.since = epoch;
}

/// Puts another drive into a slot that is out; it begins as syncing.
///
/// # Panics
/// If the slot is not out.
pub(crate) fn set_drive(slot: &mut Slot, drive: DriveId, epoch: Epoch) {
    assert_ne!(slot.drive, drive, "another drive takes the slot over");
    take(slot, Step::Begin, epoch);
    slot.drive = drive;
}

/// Begins the group's next epoch.
pub(crate) fn next_epoch(group: &mut Group) -> Epoch {
    group.epoch = group.epoch.next();
    group.epoch
}

/// A slot for a drive that is new in its group.
pub(crate) fn syncing(drive: DriveId, epoch: Epoch) -> Slot {
    Slot { drive, role: Role::Syncing, since: epoch }
}

/// Whether a member is in-sync: it can be the source of a resync.
pub(crate) fn has_source(group: &Group) -> bool {
    group.read_set().next().is_some()
}

/// Whether a member other than this drive is in-sync: it can be the source of a resync.
pub(crate) fn has_source_beside(group: &Group, drive: DriveId) -> bool {
    group.read_set().any(|d| d != drive)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn nothing_becomes_in_sync_but_by_syncing() {
        assert!(!is_transition_valid(Role::Out, Role::InSync));
        assert!(is_transition_valid(Role::Syncing, Role::InSync));
        assert!(is_transition_valid(Role::InSync, Role::Syncing), "it stands down");
        assert!(!is_transition_valid(Role::Syncing, Role::Syncing), "only where a loss was accepted");
    }

    #[test]
    fn a_step_leads_from_a_role_to_one_other() {
        let from: BTreeSet<String> =
            ARROWS.iter().map(|(from, step, _)| format!("{from} {step:?}")).collect();
        assert_eq!(from.len(), ARROWS.len());
        let mut slot = Slot { drive: DriveId(1), role: Role::Out, since: Epoch(1) };
        let steps = [
            Step::Begin,
            Step::Promote,
            Step::StandDown,
            Step::BeginAgain,
            Step::Leave,
            Step::Survive,
            Step::Leave,
        ];
        let roles: Vec<Role> = (2..)
            .zip(steps)
            .map(|(epoch, step)| {
                take(&mut slot, step, Epoch(epoch));
                assert_eq!(slot.since, Epoch(epoch), "every step begins a stint");
                slot.role
            })
            .collect();
        use Role::{InSync, Out, Syncing};
        assert_eq!(roles, [Syncing, InSync, Syncing, Syncing, Out, InSync, Out]);
    }

    #[test]
    #[should_panic(expected = "no slot that is out can Promote")]
    fn a_forbidden_step_is_a_broken_invariant() {
        let mut slot = Slot { drive: DriveId(1), role: Role::Out, since: Epoch(1) };
        take(&mut slot, Step::Promote, Epoch(2));
    }
}
