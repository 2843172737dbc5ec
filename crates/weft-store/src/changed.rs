//! Leaves that differ from the drive's, found by key in the same time however many there are, and told in the
//! order of their keys. It does not know why they differ.

use crate::leaf::LeafKey;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::ops::RangeFrom;

/// Values of leaves.
#[derive(Debug)]
pub(crate) struct Changed<V> {
    by_key: FxHashMap<LeafKey, V>,
    /// The keys of all of them. A key is put here once, when its leaf begins to differ; looking for it here
    /// each time would be most of what a lookup costs.
    order: BTreeSet<LeafKey>,
}

impl<V> Default for Changed<V> {
    fn default() -> Self {
        Changed { by_key: FxHashMap::default(), order: BTreeSet::new() }
    }
}

impl<V> Changed<V> {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Whether this leaf is one of them.
    pub(crate) fn contains(&self, key: &LeafKey) -> bool {
        self.by_key.contains_key(key)
    }

    /// What stands for this leaf.
    pub(crate) fn get(&self, key: &LeafKey) -> Option<&V> {
        self.by_key.get(key)
    }

    /// The same, to change it; made by `make` if it is new.
    pub(crate) fn get_or_insert_with(&mut self, key: LeafKey, make: impl FnOnce() -> V) -> &mut V {
        self.by_key.entry(key).or_insert_with(|| {
            self.order.insert(key);
            make()
        })
    }

    /// All of them, in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LeafKey, &V)> {
        self.order.iter().map(|key| (*key, &self.by_key[key]))
    }

    /// Those from a key on, in the order of their keys.
    pub(crate) fn range(&self, keys: RangeFrom<LeafKey>) -> impl Iterator<Item = (LeafKey, &V)> {
        self.order.range(keys).map(|key| (*key, &self.by_key[key]))
    }

    /// Calls `with` for each of them, in the order of their keys.
    pub(crate) fn for_each_mut(&mut self, mut with: impl FnMut(LeafKey, &mut V)) {
        for key in &self.order {
            with(*key, self.by_key.get_mut(key).expect("each key in the order has a value"));
        }
    }

    /// All of them, in the order of their keys; none is left.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (LeafKey, V)> {
        let Changed { mut by_key, order } = std::mem::take(self);
        order.into_iter().filter_map(move |key| Some((key, by_key.remove(&key)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{ChunkIndex, GroupId, ObjectId};

    #[test]
    fn they_are_found_by_key_and_told_in_order() {
        let key =
            |group: u64| LeafKey { group: GroupId(group), object: ObjectId::FIRST, chunk: ChunkIndex(0) };
        let mut changed = Changed::default();
        for group in [5, 1, 9, 3] {
            assert_eq!(*changed.get_or_insert_with(key(group), || group), group);
        }
        assert_eq!(*changed.get_or_insert_with(key(9), || 0), 9, "it is there already");
        changed.for_each_mut(|_, value| *value += 1);
        let listed = |from: u64| changed.range(key(from)..).map(|(_, value)| *value).collect::<Vec<_>>();
        assert_eq!((listed(0), listed(4)), (vec![2, 4, 6, 10], vec![6, 10]));
        assert_eq!(changed.iter().map(|(at, _)| at.group.0).collect::<Vec<_>>(), [1, 3, 5, 9]);
        assert!(changed.contains(&key(5)) && changed.get(&key(4)).is_none());
        assert_eq!((changed.len(), changed.is_empty()), (4, false));
        assert_eq!(changed.take().map(|(_, value)| value).collect::<Vec<_>>(), [2, 4, 6, 10]);
        assert!(changed.is_empty() && changed.range(key(0)..).next().is_none());
    }
}
