//! The roles of a group's slots, and the one place that changes them.
//!
//! ```text
//!              evict                      evict
//!   in-sync ----------->  out  <---------------- syncing
//!    ^    |                |                     ^  ^  |
//!    |    |                +------- rejoin ------+  |  |
//!    |    |                 rebuild, replace        |  |
//!    |    |                 (with another drive)    |  |
//!    |    +-- hand over, demote (before it leaves) --+  |
//!    +--------------------- promote -------------------+
//! ```
//!
//! It owns the diagram. It never decides that a role changes: the changes that are named on the arrows do.

use weft_types::{DriveId, Epoch, Group, Role, Slot};

/// Whether a slot may pass from one role to the other in one change.
pub(crate) fn is_transition_valid(from: Role, to: Role) -> bool {
    matches!(
        (from, to),
        (Role::InSync | Role::Syncing, Role::Out)
            | (Role::Out, Role::Syncing)
            | (Role::Syncing, Role::InSync)
    )
}

/// Takes an in-sync member out of the read set, before it leaves the write set.
///
/// # Panics
/// If the slot is not in-sync.
pub(crate) fn stand_down(slot: &mut Slot, epoch: Epoch) {
    assert_eq!(slot.role, Role::InSync, "only an in-sync member stands down");
    slot.role = Role::Syncing;
    slot.since = epoch;
}

/// Gives a slot a new role at this epoch, which begins a new stint.
///
/// # Panics
/// If the diagram has no such arrow: the change that asked has not checked its own rule.
pub(crate) fn set_role(slot: &mut Slot, role: Role, epoch: Epoch) {
    assert!(is_transition_valid(slot.role, role), "a slot never goes from {} to {role}", slot.role);
    slot.role = role;
    slot.since = epoch;
}

/// Puts another drive into a slot that is out; it begins as syncing.
///
/// # Panics
/// If the slot is not out.
pub(crate) fn set_drive(slot: &mut Slot, drive: DriveId, epoch: Epoch) {
    assert_ne!(slot.drive, drive, "another drive takes the slot over");
    set_role(slot, Role::Syncing, epoch);
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

    #[test]
    fn nothing_becomes_in_sync_but_by_syncing() {
        assert!(!is_transition_valid(Role::Out, Role::InSync));
        assert!(!is_transition_valid(Role::InSync, Role::Syncing));
        assert!(is_transition_valid(Role::Syncing, Role::InSync));
    }

    #[test]
    #[should_panic(expected = "from out to in-sync")]
    fn a_forbidden_role_is_a_broken_invariant() {
        let mut slot = Slot { drive: DriveId(1), role: Role::Out, since: Epoch(1) };
        set_role(&mut slot, Role::InSync, Epoch(2));
    }
}
