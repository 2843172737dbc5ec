//! Tables of the fabric map: sorted maps whose versions share what they have in common.

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, RangeBounds};

/// What a key of a table has to be: sorted, and cheap to copy.
pub trait Key: Copy + Ord {}

impl<K: Copy + Ord> Key for K {}

/// A sorted map from keys to entries.
///
/// A clone costs nothing that depends on the number of entries: it shares them, and a change copies
/// only what leads to the entry. So the map before a commit and the map after it are both at hand,
/// and [`Table::changes`] finds what differs at a cost of what differs.
#[derive(Clone, PartialEq, Eq)]
pub struct Table<K: Key, V: Clone>(OrdMap<K, V>);

/// What became of an entry between two versions of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableChange<'a, K, V> {
    /// It is new, or not as it was.
    Put(&'a K, &'a V),
    /// It is not there any more.
    Removed(&'a K),
}

impl<'a, K, V> TableChange<'a, K, V> {
    /// The entry's key.
    pub fn key(&self) -> &'a K {
        match self {
            TableChange::Put(key, _) | TableChange::Removed(key) => key,
        }
    }
}

impl<K: Key, V: Clone> Table<K, V> {
    /// A table without entries.
    pub fn new() -> Self {
        Table(OrdMap::new())
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entry with this key.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.0.get(key)
    }

    /// The entry with this key, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.get_mut(key)
    }

    /// Whether there is an entry with this key.
    pub fn contains_key(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

    /// Puts an entry in. Returns the one that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.0.insert(key, value)
    }

    /// Takes an entry out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.0.remove(key)
    }

    /// Takes out all entries.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The entries with their keys, in key order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> + Clone {
        self.0.iter()
    }

    /// The keys in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> + Clone {
        self.0.iter().map(|(key, _)| key)
    }

    /// The entries in key order.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + Clone {
        self.0.iter().map(|(_, value)| value)
    }

    /// The entries whose keys are in the range, in key order.
    pub fn range(&self, range: impl RangeBounds<K>) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.0.range(range)
    }

    /// The entry with the lowest key.
    pub fn first_key_value(&self) -> Option<(&K, &V)> {
        self.0.get_min().map(|(key, value)| (key, value))
    }

    /// The entry with the highest key.
    pub fn last_key_value(&self) -> Option<(&K, &V)> {
        self.0.get_max().map(|(key, value)| (key, value))
    }

    /// Changes every entry, in key order.
    pub fn update_each(&mut self, update: impl FnMut(&mut V)) {
        self.update_where(|_| true, update);
    }

    /// Changes the entries for which the condition holds, in key order. The others stay shared.
    pub fn update_where(&mut self, mut is_due: impl FnMut(&V) -> bool, mut update: impl FnMut(&mut V)) {
        let due: Vec<K> = self.0.iter().filter(|(_, value)| is_due(value)).map(|(key, _)| *key).collect();
        for key in due {
            update(self.0.get_mut(&key).expect("it was found a moment ago"));
        }
    }

    /// Keeps the entries for which the condition holds.
    pub fn retain(&mut self, mut stays: impl FnMut(&K, &V) -> bool) {
        let removed: Vec<K> = self.0.iter().filter(|(k, v)| !stays(k, v)).map(|(k, _)| *k).collect();
        for key in removed {
            self.0.remove(&key);
        }
    }

    /// What differs from an older version of this table, in key order.
    ///
    /// Costs what differs if the tables have a common origin, all entries otherwise.
    pub fn changes<'a>(&'a self, old: &'a Self) -> impl Iterator<Item = TableChange<'a, K, V>>
    where
        V: PartialEq,
    {
        old.0.diff(&self.0).map(|item| match item {
            DiffItem::Add(key, value) => TableChange::Put(key, value),
            DiffItem::Update { new: (key, value), .. } => TableChange::Put(key, value),
            DiffItem::Remove(key, _) => TableChange::Removed(key),
        })
    }
}

impl<K: Key, V: Clone> Default for Table<K, V> {
    fn default() -> Self {
        Table::new()
    }
}

impl<K: Key + fmt::Debug, V: Clone + fmt::Debug> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Key, V: Clone> FromIterator<(K, V)> for Table<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        Table(entries.into_iter().collect())
    }
}

impl<K: Key, V: Clone, const N: usize> From<[(K, V); N]> for Table<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<K: Key, V: Clone> Extend<(K, V)> for Table<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        self.0.extend(entries);
    }
}

impl<'a, K: Key, V: Clone> IntoIterator for &'a Table<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = <&'a OrdMap<K, V> as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        (&self.0).into_iter()
    }
}

/// # Panics
/// If there is no such entry.
impl<K: Key, V: Clone, Q: Borrow<K>> Index<Q> for Table<K, V> {
    type Output = V;

    fn index(&self, key: Q) -> &V {
        self.0.get(key.borrow()).expect("the table has an entry with this key")
    }
}

impl<K: Key + Serialize, V: Clone + Serialize> Serialize for Table<K, V> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.iter())
    }
}

impl<'de, K: Key + Deserialize<'de>, V: Clone + Deserialize<'de>> Deserialize<'de> for Table<K, V> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Entries<K, V>(PhantomData<(K, V)>);
        impl<'de, K: Key + Deserialize<'de>, V: Clone + Deserialize<'de>> serde::de::Visitor<'de> for Entries<K, V> {
            type Value = Table<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut table = Table::new();
                while let Some((key, value)) = map.next_entry()? {
                    table.insert(key, value);
                }
                Ok(table)
            }
        }
        d.deserialize_map(Entries(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A step: with a value an entry is put in, otherwise it is taken out.
    type Step = (u8, Option<u16>);

    fn run(table: &mut Table<u8, u16>, steps: &[Step]) {
        for (key, value) in steps {
            match value {
                Some(value) => drop(table.insert(*key, *value)),
                None => drop(table.remove(key)),
            }
        }
    }

    proptest! {
        #[test]
        fn changes_lead_from_the_old_table_to_the_new(first: Vec<Step>, then: Vec<Step>) {
            let mut old = Table::new();
            run(&mut old, &first);
            let mut new = old.clone();
            run(&mut new, &then);
            let mut made: BTreeMap<u8, u16> = old.iter().map(|(k, v)| (*k, *v)).collect();
            let mut last = None;
            for change in new.changes(&old) {
                let key = match change {
                    TableChange::Put(key, value) => {
                        prop_assert!(made.insert(*key, *value) != Some(*value), "nothing is put that is there");
                        *key
                    }
                    TableChange::Removed(key) => {
                        prop_assert!(made.remove(key).is_some(), "nothing is removed that is not there");
                        *key
                    }
                };
                prop_assert!(last < Some(key), "in key order");
                last = Some(key);
            }
            prop_assert!(made.iter().eq(new.iter()));
        }

        #[test]
        fn it_does_what_a_sorted_map_does(steps: Vec<Step>, odd: bool) {
            let mut table = Table::new();
            run(&mut table, &steps);
            let mut map = BTreeMap::new();
            for (key, value) in &steps {
                match value {
                    Some(value) => drop(map.insert(*key, *value)),
                    None => drop(map.remove(key)),
                }
            }
            prop_assert!(table.iter().eq(map.iter()) && table.values().rev().eq(map.values().rev()));
            prop_assert!(table.range(10..=99).eq(map.range(10..=99)) && table.len() == map.len());
            prop_assert_eq!(table.first_key_value(), map.first_key_value());
            prop_assert_eq!(table.last_key_value(), map.last_key_value());
            let before = table.clone();
            table.update_where(|value| (value % 2 == 1) == odd, |value| *value = value.wrapping_add(1));
            map.values_mut().filter(|v| (**v % 2 == 1) == odd).for_each(|v| *v = v.wrapping_add(1));
            prop_assert!(table.iter().eq(map.iter()));
            table.retain(|key, _| key % 3 == 0);
            map.retain(|key, _| key % 3 == 0);
            prop_assert!(table.iter().eq(map.iter()));
            prop_assert!(before.len() >= table.len(), "the table before is not changed");
        }
    }

    #[test]
    fn a_table_is_a_map_in_documents() {
        let table = Table::from([(2u32, "b".to_owned()), (1, "a".to_owned())]);
        let text = serde_json::to_string(&table).expect("it serialises");
        assert_eq!(text, r#"{"1":"a","2":"b"}"#);
        assert_eq!(serde_json::from_str::<Table<u32, String>>(&text).expect("it reads back"), table);
    }
}
