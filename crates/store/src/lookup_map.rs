//! A map that is looked up with every request and walked now and then: found by hash, walked in the order of the keys.

use foldhash::fast::FixedState;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::ops::RangeFrom;

/// The map.
pub(crate) struct LookupMap<K, V> {
    /// Never iterated. The hash has no random keys, so that two runs do the same.
    values: HashMap<K, V, FixedState>,
    order: BTreeSet<K>,
}

impl<K, V> Default for LookupMap<K, V> {
    fn default() -> Self {
        LookupMap { values: HashMap::default(), order: BTreeSet::new() }
    }
}

impl<K: Copy + Ord + Hash, V> LookupMap<K, V> {
    /// The value under the key.
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        // A map that is empty most of the time costs nothing then.
        if self.values.is_empty() { None } else { self.values.get(key) }
    }

    /// Whether the key has a value.
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// The value under the key; a new one if there is none.
    pub(crate) fn get_or_insert_with(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        match self.values.entry(key) {
            Entry::Occupied(slot) => slot.into_mut(),
            Entry::Vacant(slot) => {
                self.order.insert(key);
                slot.insert(new())
            }
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.order.iter().map(|key| (key, &self.values[key]))
    }

    /// Those from a key on, in order.
    pub(crate) fn range(&self, range: RangeFrom<K>) -> impl Iterator<Item = (&K, &V)> {
        self.order.range(range).map(|key| (key, &self.values[key]))
    }

    /// Takes all of them out, in order.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (K, V)> {
        let (mut values, order) = (std::mem::take(&mut self.values), std::mem::take(&mut self.order));
        order.into_iter().map(move |key| {
            let value = values.remove(&key).expect("both have the same keys");
            (key, value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_walked_in_the_order_of_its_keys() {
        let mut map = LookupMap::default();
        for key in [5u64, 1, 9, 3, 5] {
            *map.get_or_insert_with(key, || 0) += key;
        }
        assert_eq!(map.iter().collect::<Vec<_>>(), [(&1, &1), (&3, &3), (&5, &10), (&9, &9)]);
        assert_eq!(map.range(4..).map(|(key, _)| *key).collect::<Vec<_>>(), [5, 9]);
        assert!(map.contains(&9) && !map.contains(&4) && map.get(&5) == Some(&10));
        assert_eq!(map.drain().collect::<Vec<_>>(), [(1, 1), (3, 3), (5, 10), (9, 9)]);
        assert!(map.is_empty() && map.len() == 0 && map.get(&1).is_none());
    }
}
