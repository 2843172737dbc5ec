//! The block map in RAM: leaves that differ from the drive's, leaves that a checkpoint is writing, and a
//! cache of leaves that do not differ. It never does I/O; who needs a leaf that is not here loads it first.

use crate::cache::Cache;
use crate::changed::Changed;
use crate::leaf::{Leaf, LeafKey};
use std::collections::BTreeMap;
use std::rc::Rc;
use weft_types::{GroupId, Version};

/// Blocks of a leaf that a batch changed which may not be durable yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    first: u8,
    count: u8,
    batch: u64,
}

/// A leaf that differs from the drive's.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    leaf: Rc<Leaf>,
    /// In the order of the batches.
    pending: Vec<Pending>,
    bytes: usize,
}

/// A leaf, and what citing the versions of some of its blocks takes.
pub(crate) struct Cited<'a> {
    pub(crate) leaf: &'a Rc<Leaf>,
    /// The newest batch that changed any of the blocks and may not be durable yet, 0 if none did: who cites them waits
    /// for it.
    pub(crate) batch: u64,
    /// Whether a change makes no further leaf dirty.
    pub(crate) is_dirty: bool,
}

/// Bytes that a dirty leaf costs beside itself: its slot in the map, and its key in the order.
const OVERHEAD_BYTES: usize = 192;

impl Held {
    fn measure(&mut self) -> usize {
        let pending = self.pending.capacity() * size_of::<Pending>();
        self.bytes = OVERHEAD_BYTES + self.leaf.ram_bytes() + pending;
        self.bytes
    }

    /// The newest batch above `durable` that changed any of the blocks, 0 if none.
    fn newest_batch(&self, first: u8, count: u8, durable: u64) -> u64 {
        let touches = |p: &&Pending| p.first < first + count && first < p.first + p.count;
        // Batches only rise, so nothing before the first that is durable needs a look.
        let mut pending = self.pending.iter().rev().take_while(|p| p.batch > durable);
        pending.find(touches).map_or(0, |p| p.batch)
    }
}

/// A leaf that begins to differ from the drive's once more, or for the first time.
///
/// # Panics
/// If it is not in RAM.
fn unchanged(frozen: &Changed<Held>, clean: &mut Cache<LeafKey, Rc<Leaf>>, key: &LeafKey) -> Held {
    match frozen.get(key) {
        Some(held) => Held { bytes: 0, ..held.clone() },
        None => {
            let leaf = clean.remove(key).expect("a leaf is loaded before it is changed");
            Held { leaf, pending: Vec::new(), bytes: 0 }
        }
    }
}

/// The block map as far as it is in RAM.
pub(crate) struct BlockMap {
    dirty: Changed<Held>,
    frozen: Changed<Held>,
    /// Never holds a key that is dirty or frozen.
    clean: Cache<LeafKey, Rc<Leaf>>,
    dirty_bytes: usize,
    frozen_bytes: usize,
}

impl BlockMap {
    /// An empty map with this budget for clean leaves.
    pub(crate) fn new(clean_bytes: usize) -> Self {
        BlockMap {
            dirty: Changed::default(),
            frozen: Changed::default(),
            clean: Cache::new(clean_bytes),
            dirty_bytes: 0,
            frozen_bytes: 0,
        }
    }

    /// Whether the leaf is in RAM.
    pub(crate) fn is_loaded(&self, key: &LeafKey) -> bool {
        self.dirty.contains(key) || self.frozen.contains(key) || self.clean.contains(key)
    }

    /// The leaf, if it is in RAM.
    pub(crate) fn get(&mut self, key: &LeafKey) -> Option<&Rc<Leaf>> {
        match self.dirty.get(key).or_else(|| self.frozen.get(key)) {
            Some(held) => Some(&held.leaf),
            None => self.clean.get(key),
        }
    }

    /// The leaf, if it is in RAM, with what there is to know about some of its blocks.
    pub(crate) fn cite(
        &mut self,
        key: &LeafKey,
        (first, count): (u8, u8),
        durable: u64,
    ) -> Option<Cited<'_>> {
        let dirty = self.dirty.get(key);
        let is_dirty = dirty.is_some();
        match dirty.or_else(|| self.frozen.get(key)) {
            Some(held) => {
                let batch = held.newest_batch(first, count, durable);
                Some(Cited { leaf: &held.leaf, batch, is_dirty })
            }
            None => self.clean.get(key).map(|leaf| Cited { leaf, batch: 0, is_dirty }),
        }
    }

    /// Puts a leaf that was loaded from the drive; the caller has made sure that it is not stale.
    pub(crate) fn insert_clean(&mut self, key: LeafKey, leaf: Leaf) {
        debug_assert!(!self.is_loaded(&key));
        let bytes = leaf.ram_bytes();
        self.clean.insert(key, Rc::new(leaf), bytes);
    }

    /// Changes a leaf, which makes it dirty; `batch` records the change to these blocks.
    ///
    /// # Panics
    /// If the leaf is not in RAM.
    pub(crate) fn change<T>(
        &mut self,
        key: LeafKey,
        (first, count): (u8, u8),
        batch: u64,
        durable: u64,
        change: impl FnOnce(&mut Leaf) -> T,
    ) -> T {
        let BlockMap { dirty, frozen, clean, .. } = self;
        let held = dirty.get_or_insert_with(key, || unchanged(frozen, clean, &key));
        let settled = held.pending.iter().take_while(|p| p.batch <= durable).count();
        held.pending.drain(..settled);
        held.pending.push(Pending { first, count, batch });
        let out = change(Rc::make_mut(&mut held.leaf));
        self.dirty_bytes -= held.bytes;
        self.dirty_bytes += held.measure();
        out
    }

    /// Takes tombstones below `floor` out of a leaf, and makes it dirty: no record stands for that, because
    /// nobody sees a difference (R7). Returns of how many blocks.
    ///
    /// # Panics
    /// If the leaf is not in RAM.
    pub(crate) fn forget(&mut self, key: LeafKey, floor: Version) -> u64 {
        let BlockMap { dirty, frozen, clean, .. } = self;
        let held = dirty.get_or_insert_with(key, || unchanged(frozen, clean, &key));
        let blocks = Rc::make_mut(&mut held.leaf).forget(floor);
        self.dirty_bytes -= held.bytes;
        self.dirty_bytes += held.measure();
        blocks
    }

    /// Dirty leaves become frozen: what a checkpoint writes. Tombstones below the floors of their groups are
    /// left out; also returns of how many blocks.
    ///
    /// # Panics
    /// If a checkpoint runs already.
    pub(crate) fn freeze(&mut self, floor: impl Fn(GroupId) -> Version) -> (Vec<(LeafKey, Rc<Leaf>)>, u64) {
        assert!(self.frozen.is_empty(), "one checkpoint at a time");
        self.frozen = std::mem::take(&mut self.dirty);
        self.frozen_bytes = std::mem::take(&mut self.dirty_bytes);
        let mut forgotten = 0;
        self.frozen.for_each_mut(|key, held| {
            let floor = floor(key.group);
            if held.leaf.has_tombstone_below(floor) {
                forgotten += Rc::make_mut(&mut held.leaf).forget(floor);
            }
        });
        (self.frozen.iter().map(|(key, held)| (key, held.leaf.clone())).collect(), forgotten)
    }

    /// The frozen leaves are on the drive: those that did not change meanwhile become clean.
    pub(crate) fn thaw(&mut self) {
        self.frozen_bytes = 0;
        for (key, held) in self.frozen.take() {
            if !self.dirty.contains(&key) {
                let bytes = held.leaf.ram_bytes();
                self.clean.insert(key, held.leaf, bytes);
            }
        }
    }

    /// Leaves from `from` on, below `end` and up to `last`, that differ from the drive's; with the newest
    /// batch above `durable` that changed one of them.
    pub(crate) fn changed(
        &self,
        from: LeafKey,
        end: Option<LeafKey>,
        last: Option<LeafKey>,
        durable: u64,
    ) -> (BTreeMap<LeafKey, Rc<Leaf>>, u64) {
        let is_inside =
            |key: &LeafKey| end.is_none_or(|end| *key < end) && last.is_none_or(|last| *key <= last);
        let (mut out, mut batch) = (BTreeMap::new(), 0);
        for held in [&self.frozen, &self.dirty] {
            for (key, held) in held.range(from..).take_while(|(key, _)| is_inside(key)) {
                out.insert(key, held.leaf.clone());
                batch = batch.max(held.newest_batch(0, weft_types::limits::CHUNK_BLOCKS as u8, durable));
            }
        }
        (out, batch)
    }

    /// How many leaves differ from the drive's.
    pub(crate) fn changed_leaves(&self) -> u64 {
        (self.dirty.len() + self.frozen.len()) as u64
    }

    /// Whether a change to this leaf adds one.
    pub(crate) fn is_dirty(&self, key: &LeafKey) -> bool {
        self.dirty.contains(key)
    }

    /// How many leaves wait for the next checkpoint.
    pub(crate) fn dirty_leaves(&self) -> u64 {
        self.dirty.len() as u64
    }

    /// Bytes of leaves that wait for the next checkpoint, and of those that one is writing.
    pub(crate) fn changed_bytes(&self) -> (u64, u64) {
        (self.dirty_bytes as u64, self.frozen_bytes as u64)
    }

    /// Bytes of clean leaves.
    pub(crate) fn clean_bytes(&self) -> u64 {
        self.clean.bytes() as u64
    }

    /// Changes the budget for clean leaves.
    pub(crate) fn set_clean_limit(&mut self, bytes: usize) {
        self.clean.set_limit(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaf::{Kind, Run};
    use crate::region::Place;
    use weft_types::{ChunkIndex, ObjectId};

    fn put(map: &mut BlockMap, key: LeafKey, version: u64, batch: u64) {
        let version = Version::from_bits(version);
        let run = Run { version, place: Place::NONE, first: 4, count: 2, kind: Kind::Zero };
        map.change(key, (4, 2), batch, 0, |leaf| leaf.put(run, &[], &mut Vec::new()));
    }

    fn version(map: &mut BlockMap, key: &LeafKey) -> u64 {
        map.get(key).unwrap().runs()[0].version.to_bits()
    }

    #[test]
    fn a_leaf_that_changes_during_a_checkpoint_is_frozen_and_dirty() {
        let key = LeafKey { group: GroupId(1), object: ObjectId::default(), chunk: ChunkIndex(0) };
        let mut map = BlockMap::new(1 << 20);
        assert!(!map.is_loaded(&key));
        map.insert_clean(key, Leaf::default());
        put(&mut map, key, 1, 7);
        let mut cited = |blocks, durable| map.cite(&key, blocks, durable).unwrap().batch;
        assert_eq!(cited((5, 10), 6), 7);
        assert_eq!(cited((6, 10), 6), 0, "other blocks");
        assert_eq!(cited((5, 10), 7), 0, "durable");
        let (frozen, _) = map.freeze(|_| Version::ZERO);
        assert_eq!(version(&mut map, &key), 1);
        put(&mut map, key, 2, 8);
        assert_eq!(frozen[0].1.runs()[0].version.to_bits(), 1, "the checkpoint keeps its instant");
        assert_eq!(map.changed(key, None, None, 7).1, 8);
        map.thaw();
        assert_eq!((version(&mut map, &key), map.dirty_leaves()), (2, 1));
        map.freeze(|_| Version::ZERO);
        map.thaw();
        assert_eq!((version(&mut map, &key), map.changed_leaves()), (2, 0));
        assert_eq!(map.changed_bytes(), (0, 0));
    }
}
