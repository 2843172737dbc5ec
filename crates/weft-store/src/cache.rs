//! A cache under a byte budget, with second-chance eviction (the clock algorithm: near to least recently
//! used, and a hit only sets a bit).

use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::hash::Hash;

/// Bytes that an entry costs beside its value: the map's slot and the queue's.
const OVERHEAD_BYTES: usize = 96;

/// Entries that a cache keeps whatever its budget, so that one operation always finds what it has just
/// loaded: the leaves of a whole object, which one record of the log may be about.
const ENTRIES_MIN: usize = weft_types::limits::OBJECT_CHUNKS_MAX as usize;

struct Entry<V> {
    value: V,
    bytes: usize,
    /// Tells the queue's entry for this value from those of former values under the same key.
    stamp: u64,
    is_used: bool,
}

/// A cache of values that cost bytes.
pub(crate) struct Cache<K, V> {
    map: FxHashMap<K, Entry<V>>,
    queue: VecDeque<(K, u64)>,
    bytes: usize,
    limit: usize,
    stamp: u64,
}

impl<K: Eq + Hash + Copy, V> Cache<K, V> {
    /// A cache of at most this many bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Cache { map: FxHashMap::default(), queue: VecDeque::new(), bytes: 0, limit, stamp: 0 }
    }

    /// The value under the key.
    pub(crate) fn get(&mut self, key: &K) -> Option<&V> {
        let entry = self.map.get_mut(key)?;
        entry.is_used = true;
        Some(&entry.value)
    }

    /// Whether the key has a value.
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.map.contains_key(key)
    }

    /// Takes the value out.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let entry = self.map.remove(key)?;
        self.bytes -= entry.bytes;
        Some(entry.value)
    }

    /// Puts a value of `bytes` under the key, and evicts others beyond the budget.
    pub(crate) fn insert(&mut self, key: K, value: V, bytes: usize) {
        let bytes = bytes + OVERHEAD_BYTES;
        self.stamp += 1;
        let entry = Entry { value, bytes, stamp: self.stamp, is_used: false };
        if let Some(old) = self.map.insert(key, entry) {
            self.bytes -= old.bytes;
        }
        self.bytes += bytes;
        self.queue.push_back((key, self.stamp));
        self.evict();
        if self.queue.len() > 2 * self.map.len() + ENTRIES_MIN {
            let map = &self.map;
            self.queue.retain(|(key, stamp)| map.get(key).is_some_and(|e| e.stamp == *stamp));
        }
    }

    /// Changes the budget, and evicts what is beyond it.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.evict();
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn evict(&mut self) {
        while self.bytes > self.limit && self.map.len() > ENTRIES_MIN {
            let (key, stamp) = self.queue.pop_front().expect("every entry stands in the queue");
            let Some(entry) = self.map.get_mut(&key).filter(|e| e.stamp == stamp) else { continue };
            if std::mem::take(&mut entry.is_used) {
                self.queue.push_back((key, stamp));
            } else {
                self.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_in_its_budget_and_keeps_what_is_used() {
        let mut cache = Cache::new(200 * (100 + OVERHEAD_BYTES));
        for i in 0..1000u32 {
            cache.insert(i, i, 100);
            assert_eq!(cache.get(&0), Some(&0), "used all the time");
            assert!(cache.bytes() <= 200 * (100 + OVERHEAD_BYTES));
        }
        assert!(cache.contains(&999) && !cache.contains(&500));
        for _ in 0..10_000 {
            cache.insert(7, 7, 100);
            cache.remove(&7);
        }
        assert!(cache.queue.len() < 1000, "the queue does not grow with what has gone");
        cache.set_limit(0);
        assert_eq!(cache.map.len(), ENTRIES_MIN);
    }
}
