//! How groups lie on drives.
//!
//! It owns the counts from which placement judges a drive: its groups, those in which it is first, and with
//! whom it shares them. It never chooses, and knows no nodes.

use std::collections::BTreeMap;
use weft_types::DriveId;

/// How many groups each drive is in, and with which others. Kept at a cost of what changes: a group that
/// changes is removed as it was, and added as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loads {
    /// A drive that is in no group is not there.
    drives: BTreeMap<DriveId, Load>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Load {
    /// Groups that the drive is in.
    groups: u64,
    /// Groups in which it has the first slot.
    firsts: u64,
    /// The other members of its groups in order, each as often as they meet.
    partners: Vec<DriveId>,
}

impl Loads {
    /// No group.
    pub const NONE: &Loads = &Loads { drives: BTreeMap::new() };

    /// The loads by these groups, each given by its drives in slot order.
    pub fn of<G: AsRef<[DriveId]>>(groups: impl IntoIterator<Item = G>) -> Loads {
        let mut loads = Loads::default();
        groups.into_iter().for_each(|members| loads.add(members.as_ref()));
        loads
    }

    /// Counts a group with these drives, in slot order.
    pub fn add(&mut self, members: &[DriveId]) {
        for (at, drive) in members.iter().enumerate() {
            let load = self.drives.entry(*drive).or_default();
            load.groups += 1;
            load.firsts += u64::from(at == 0);
            for partner in members.iter().filter(|other| *other != drive) {
                let place = load.partners.partition_point(|p| p <= partner);
                load.partners.insert(place, *partner);
            }
        }
    }

    /// Counts a group no more that was added with these drives.
    pub fn remove(&mut self, members: &[DriveId]) {
        for (at, drive) in members.iter().enumerate() {
            let Some(load) = self.drives.get_mut(drive) else { continue };
            load.groups = load.groups.saturating_sub(1);
            load.firsts = load.firsts.saturating_sub(u64::from(at == 0));
            for partner in members.iter().filter(|other| *other != drive) {
                if let Ok(place) = load.partners.binary_search(partner) {
                    load.partners.remove(place);
                }
            }
            if load.groups == 0 {
                self.drives.remove(drive);
            }
        }
    }

    /// Whether no group is counted.
    pub fn is_empty(&self) -> bool {
        self.drives.is_empty()
    }

    /// How many groups the drive is in.
    pub(crate) fn groups(&self, drive: DriveId) -> u64 {
        self.drives.get(&drive).map_or(0, |load| load.groups)
    }

    /// In how many groups the drive has the first slot.
    pub(crate) fn firsts(&self, drive: DriveId) -> u64 {
        self.drives.get(&drive).map_or(0, |load| load.firsts)
    }

    /// The drives that this one shares groups with, in order, each as often as they meet.
    pub(crate) fn partners(&self, drive: DriveId) -> &[DriveId] {
        self.drives.get(&drive).map_or(&[], |load| &load.partners)
    }

    /// In how many groups the two drives are together.
    pub(crate) fn meetings(&self, drive: DriveId, other: DriveId) -> usize {
        let partners = self.partners(drive);
        partners.partition_point(|p| *p <= other) - partners.partition_point(|p| *p < other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn what_is_removed_leaves_no_trace(
            kept in proptest::collection::vec(proptest::collection::btree_set(0u128..6, 1..4), 0..8),
            gone in proptest::collection::vec(proptest::collection::btree_set(0u128..6, 1..4), 0..8),
        ) {
            let drives = |group: &BTreeSet<u128>| group.iter().copied().map(DriveId).collect::<Vec<_>>();
            let mut loads = Loads::of(gone.iter().map(drives));
            kept.iter().for_each(|group| loads.add(&drives(group)));
            gone.iter().for_each(|group| loads.remove(&drives(group)));
            prop_assert_eq!(loads, Loads::of(kept.iter().map(drives)));
        }
    }
}
