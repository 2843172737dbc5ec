//! Everything that an open store holds in RAM, and the changes that records make to it. Changes are
//! synchronous: none waits, so each is one instant, and live operation and recovery make them by the same
//! functions. It never does I/O.

use crate::StoreError;
use crate::bitmap::{Bitmap, Unowned};
use crate::checkpoint::STATE_ROOM;
use crate::commit::Commits;
use crate::error::Fault;
use crate::frees::Frees;
use crate::group_state::DriveState;
use crate::leaf::{Kind, Leaf, LeafKey, Run};
use crate::log::LogRing;
use crate::map::BlockMap;
use crate::open_set::is_part_of;
use crate::record::{RECORD_BYTES_MAX, RECORD_BYTES_MIN, Record};
use crate::region::{Place, PlaceRun};
use crate::request::{Usage, WriteKind};
use crate::superblock::{PageRef, Superblock};
use crate::tree::UNKNOWN;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weft_rules::{Mutation, mutated};
use weft_types::{
    BlockCount, BlockRange, ChunkIndex, DriveId, GroupId, ObjectId, Version, VolumeId, names_reserve,
};
use weft_wire::{Decoder, Encoder};

/// Pages that one changed leaf may cost the next checkpoint, at most: its leaf page may be cut in three
/// when neighbours are large, and the inner pages above it are written anew.
const PAGES_PER_LEAF: u64 = 5;

/// Likewise for a leaf that only gets tombstones: it does not grow, so its page is written anew and now and then
/// cut in two; and what the pages from there to the root may cost beside.
const PAGES_PER_BARE_LEAF: u64 = 2;
const PAGES_OF_ROOT: u64 = 8;

/// A page of format 1 becomes two when it was full, because keys and children have become longer.
const PAGES_PER_OLD_PAGE: u64 = 2;

/// Pages of format 1 that one checkpoint rewrites beside what it has to write, 8 MiB; and at most
/// this share of what is free, so that they never take what checkpoints need.
const CONVERSIONS_AT_ONCE: u64 = 2048;
const CONVERSIONS_SHARE: u64 = 8;

/// Blocks kept back for checkpoints whatever is dirty: this many, and this share of the drive.
const RESERVE_BLOCKS: u64 = 64;
const RESERVE_SHARE: u64 = 1024;

/// Blocks kept for repairs: 64 MiB, what two connections may have in flight when a drive becomes full; a small
/// part of a small drive.
const REPAIR_BLOCKS_MAX: u64 = 16_384;
const REPAIR_SHARE: u64 = 128;

/// A zone's entry in the zone table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZoneEntry {
    /// The checksum of its bitmap page.
    pub(crate) crc: u32,
    /// How many of its blocks are free.
    pub(crate) free: u16,
    /// Which slot holds the page; [`ZoneEntry::PRISTINE`] if the zone was never written.
    pub(crate) slot: u8,
}

impl ZoneEntry {
    /// No slot is written yet: only the fixed regions are in use.
    pub(crate) const PRISTINE: u8 = 0xff;
}

/// Whether a change has room on the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// It has.
    Enough,
    /// It will have after a checkpoint.
    AfterCheckpoint,
    /// It has not.
    Full,
}

/// What an open store holds.
pub(crate) struct State {
    pub(crate) drive_id: DriveId,
    pub(crate) bitmap: Bitmap,
    pub(crate) map: BlockMap,
    pub(crate) drive: DriveState,
    /// Rises whenever a session or a generation may have been fenced, or is not any more.
    pub(crate) fences: u64,
    pub(crate) ring: LogRing,
    pub(crate) commits: Commits,
    pub(crate) frees: Frees,
    /// The newest durable checkpoint.
    pub(crate) superblock: Superblock,
    pub(crate) zones: Vec<ZoneEntry>,
    /// The pages of its state blob.
    pub(crate) state_pages: Vec<PageRef>,
    /// Bytes of the state blob as of now, at most: what the newest checkpoint wrote, and what was added since.
    pub(crate) state_bytes: u64,
    /// Groups and volumes that are being dropped, or were: nothing of them may come back with a copy.
    pub(crate) dropping: Dropping,
    /// Checkpoints asked for, begun and done since the store was opened.
    pub(crate) checkpoints_wanted: u64,
    pub(crate) checkpoints_begun: u64,
    pub(crate) checkpoints_done: u64,
    /// Those who keep checkpoints from beginning for a while.
    pub(crate) checkpoint_holds: u32,
    /// One checkpoint may begin despite them.
    pub(crate) checkpoint_despite_holds: bool,
    /// Records since the newest checkpoint began.
    pub(crate) records_since_checkpoint: u64,
    /// The newest batch that raised a floor (R7).
    pub(crate) floor_batch: u64,
    /// The newest tombstone that was put in each group since the store was opened.
    pub(crate) tombstones: BTreeMap<GroupId, Version>,
    /// The newest version on the drive when it was opened, if there was one.
    pub(crate) newest_at_open: Option<Version>,
    /// The newest batch that remembers a refused version (R9).
    pub(crate) remembered_batch: u64,
    pub(crate) failed: Option<Rc<str>>,
    /// Whether that was an error of the device, not of what is on it.
    pub(crate) is_device_at_fault: bool,
    pub(crate) is_closing: bool,
    pub(crate) is_stopped: bool,
    /// Recovery: records are applied, not made, and what they replace is free at once.
    pub(crate) is_replaying: bool,
    /// Recovery: the batch is in doubt. What it replaces stays until a checkpoint holds what it put, for should that
    /// not be read now, and found not to have arrived after one more power cut, the block is what it was before.
    pub(crate) is_in_doubt: bool,
    pub(crate) budget_bytes: u64,
    pub(crate) figures: Usage,
    capacity_blocks: u64,
    conversions_max: u64,
    freed: Vec<PlaceRun>,
    /// The first place that the log gives up during the recovery, and that nothing can have owned.
    contradiction: Option<Unowned>,
}

/// What is being dropped while this store is open.
#[derive(Debug, Default)]
pub(crate) struct Dropping {
    /// Until they are gone: a group may come back later.
    pub(crate) groups: BTreeSet<GroupId>,
    /// For good: numbers of volumes are not used twice.
    pub(crate) volumes: BTreeSet<VolumeId>,
}

/// What a new state begins with.
pub(crate) struct StateParts {
    pub(crate) bitmap: Bitmap,
    pub(crate) drive: DriveState,
    pub(crate) ring: LogRing,
    pub(crate) superblock: Superblock,
    pub(crate) zones: Vec<ZoneEntry>,
    pub(crate) state_pages: Vec<PageRef>,
    pub(crate) budget_bytes: u64,
    pub(crate) capacity_blocks: u64,
    pub(crate) conversions_max: Option<u64>,
}

impl State {
    /// The state at a checkpoint.
    pub(crate) fn new(parts: StateParts) -> State {
        let commits = Commits::new(parts.superblock.batch, parts.ring.head, parts.ring.batch_max());
        State {
            state_bytes: parts.drive.encode().len() as u64,
            dropping: Dropping::default(),
            drive_id: parts.superblock.drive,
            bitmap: parts.bitmap,
            map: BlockMap::new(parts.budget_bytes as usize),
            drive: parts.drive,
            fences: 0,
            ring: parts.ring,
            commits,
            frees: Frees::default(),
            superblock: parts.superblock,
            zones: parts.zones,
            state_pages: parts.state_pages,
            checkpoints_wanted: 0,
            checkpoints_begun: 0,
            checkpoints_done: 0,
            checkpoint_holds: 0,
            checkpoint_despite_holds: false,
            records_since_checkpoint: 0,
            floor_batch: 0,
            tombstones: BTreeMap::new(),
            newest_at_open: parts.superblock.root.map(|root| root.newest),
            remembered_batch: 0,
            failed: None,
            is_device_at_fault: false,
            is_closing: false,
            is_stopped: false,
            is_replaying: false,
            is_in_doubt: false,
            budget_bytes: parts.budget_bytes,
            figures: Usage::default(),
            capacity_blocks: parts.capacity_blocks,
            conversions_max: parts.conversions_max.unwrap_or(CONVERSIONS_AT_ONCE),
            freed: Vec::new(),
            contradiction: None,
        }
    }

    /// Refuses work after a failure or after closing began.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if let Some(cause) = &self.failed {
            return Err(StoreError::Failed { cause: cause.clone() });
        }
        if self.is_closing { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Appends a record to the open batch; returns the batch.
    pub(crate) fn record(&mut self, encode: impl FnOnce(&mut Encoder)) -> u64 {
        debug_assert!(!self.is_replaying);
        self.records_since_checkpoint += 1;
        self.commits.append(encode)
    }

    /// Bytes of the log that are in use or spoken for.
    fn log_claimed(&self) -> u64 {
        self.ring.used() + self.commits.queued_bytes()
    }

    /// Whether the log and the RAM have room for one more change. The last quarter of the log is kept for
    /// what cannot wait: rounding, markers, marks.
    pub(crate) fn has_room(&self) -> bool {
        let (dirty, frozen) = self.map.changed_bytes();
        self.log_claimed() + (RECORD_BYTES_MAX as u64) <= self.ring.capacity() / 4 * 3
            && dirty + frozen <= self.budget_bytes / 4 * 3
    }

    /// Whether a small record that is harmless to lose may still be written.
    pub(crate) fn has_room_for_note(&self) -> bool {
        self.failed.is_none()
            && !self.is_closing
            && self.log_claimed() + (RECORD_BYTES_MAX as u64) <= self.ring.capacity() / 8 * 7
    }

    /// Whether a checkpoint is due: the log is half full, or three eighths of the budget are dirty leaves
    /// (so that as many again may be frozen while it runs).
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        self.log_claimed() > self.ring.capacity() / 2
            || self.map.changed_bytes().0 > self.budget_bytes / 8 * 3
    }

    /// The state blob has become longer by at most so many bytes.
    pub(crate) fn grow_state(&mut self, bytes: u64) {
        self.state_bytes += bytes;
    }

    /// Finds out how long the state blob really is: it may have become shorter since it was written. As costly as
    /// writing it, so only for whoever would be refused otherwise.
    pub(crate) fn measure_state(&mut self) {
        self.state_bytes = self.drive.encode().len() as u64;
    }

    /// Pages that the state blob needs in the next checkpoint, at most.
    fn next_state_pages(&self) -> u64 {
        self.state_bytes.div_ceil(STATE_ROOM as u64)
    }

    /// What the next checkpoint needs at the very least, with leaves that only got tombstones: they stay as large as
    /// they were, so that each leaf costs its page and a part of those above it.
    pub(crate) fn bare_need(&self, leaves: u64) -> u64 {
        let pages = PAGES_PER_BARE_LEAF * leaves + PAGES_OF_ROOT;
        self.next_state_pages() + if self.is_converting() { PAGES_PER_OLD_PAGE * pages } else { pages }
    }

    /// Whether the block map on the drive has pages of format 1.
    pub(crate) fn is_converting(&self) -> bool {
        self.superblock.root.is_some_and(|root| root.newest == UNKNOWN)
    }

    /// How many pages of format 1 the next checkpoint may rewrite beside what it has to write.
    pub(crate) fn conversions(&self) -> usize {
        if !self.is_converting() {
            return 0;
        }
        let spare = self.bitmap.free().saturating_sub(self.reserve(0));
        (spare / CONVERSIONS_SHARE).min(self.conversions_max) as usize
    }

    /// Whether the next checkpoint may need more than is free, and gets it when reads end: places that they keep.
    pub(crate) fn checkpoint_waits_for_reads(&self) -> bool {
        let need = self.next_state_pages() + PAGES_PER_LEAF * self.map.changed_leaves() + PAGES_OF_ROOT;
        let free = self.bitmap.free();
        need > free && need <= free + self.frees.blocks_kept_by_reads()
    }

    /// Whether nothing but reads keeps places: no checkpoint would return any.
    pub(crate) fn is_space_kept_by_reads(&self) -> bool {
        let kept = self.frees.blocks_kept_by_reads();
        kept > 0 && kept == self.frees.blocks() && self.map.changed_leaves() == 0
    }

    /// Whether one more entry of an open set leaves the next checkpoint what it needs.
    pub(crate) fn has_room_for_mark(&self) -> bool {
        self.bare_need(self.map.changed_leaves()) < self.bitmap.free()
    }

    /// Blocks that checkpoints need if `new_leaves` more become dirty.
    pub(crate) fn reserve(&self, new_leaves: u64) -> u64 {
        let leaves = self.map.changed_leaves() + new_leaves;
        let fixed = RESERVE_BLOCKS + self.capacity_blocks / RESERVE_SHARE;
        let state_pages = self.next_state_pages().max(self.state_pages.len() as u64);
        fixed + 2 * state_pages + PAGES_PER_LEAF * leaves
    }

    /// Blocks that a write of this kind leaves for others, beside what checkpoints need.
    pub(crate) fn kept_from(&self, kind: WriteKind) -> u64 {
        let share = |most: u64, share: u64| most.min(self.capacity_blocks / share);
        let for_repairs = share(REPAIR_BLOCKS_MAX, REPAIR_SHARE);
        // Repairs leave it alone: there may be any number of those.
        let for_names = names_reserve(BlockCount(self.capacity_blocks)).0;
        match kind {
            WriteKind::Client => for_names + for_repairs,
            WriteKind::Repair => for_names,
            WriteKind::Reserve => 0,
        }
    }

    /// Blocks that a client's write could take now.
    pub(crate) fn free_for_data(&self) -> u64 {
        self.bitmap.free().saturating_sub(self.reserve(0) + self.kept_from(WriteKind::Client))
    }

    /// Blocks that a write could take after the next checkpoints.
    pub(crate) fn free_after_checkpoint(&self) -> u64 {
        let fixed = self.reserve(0) - PAGES_PER_LEAF * self.map.changed_leaves();
        (self.bitmap.free() + self.frees.blocks()).saturating_sub(fixed)
    }

    /// Whether so many blocks of data that make so many more leaves dirty have room, beside what checkpoints
    /// need. A change that needs no block (a discard) may use the reserve, as long as each checkpoint has
    /// what it needs itself.
    pub(crate) fn room_for(&self, needed_blocks: u64, new_leaves: u64) -> Room {
        if needed_blocks + self.reserve(new_leaves) <= self.bitmap.free() {
            Room::Enough
        } else if needed_blocks == 0 {
            let need = self.bare_need(new_leaves);
            if self.map.changed_leaves() > 0 {
                Room::AfterCheckpoint
            } else if need <= self.bitmap.free() {
                Room::Enough
            } else if need <= self.bitmap.free() + self.frees.blocks() {
                Room::AfterCheckpoint
            } else {
                Room::Full
            }
        } else if needed_blocks + PAGES_PER_LEAF * new_leaves <= self.free_after_checkpoint() {
            Room::AfterCheckpoint
        } else {
            Room::Full
        }
    }

    /// Makes data current. The leaves are in RAM and the places are taken.
    pub(crate) fn put_data(
        &mut self,
        batch: u64,
        (group, object): (GroupId, ObjectId),
        (range, version): (BlockRange, Version),
        places: &[PlaceRun],
        crcs: &[u32],
    ) {
        for (chunk, new, crcs) in data_runs((range, version), places, crcs) {
            self.put(batch, LeafKey { group, object, chunk }, new, crcs);
        }
    }

    /// Puts a tombstone. The leaves are in RAM.
    pub(crate) fn put_zero(
        &mut self,
        batch: u64,
        (group, object): (GroupId, ObjectId),
        (range, version): (BlockRange, Version),
    ) {
        self.note_tombstone(group, version);
        for (chunk, part) in range.by_chunk() {
            let (first, count) = (within(part.first, chunk), part.count as u8);
            let new = Run { version, place: Place::NONE, first, count, kind: Kind::Zero };
            if mutated(Mutation::ZeroWithoutVersion) {
                let (mut freed, durable) = (Vec::new(), self.commits.durable());
                let key = LeafKey { group, object, chunk };
                self.map.change(key, (first, count), batch, durable, |leaf| {
                    leaf.remove(first, count, &mut freed)
                });
                self.give_up(batch, &freed);
                continue;
            }
            self.put(batch, LeafKey { group, object, chunk }, new, &[]);
        }
    }

    fn put(&mut self, batch: u64, key: LeafKey, run: Run, crcs: &[u32]) {
        let mut freed = std::mem::take(&mut self.freed);
        let durable = self.commits.durable();
        self.map.change(key, (run.first, run.count), batch, durable, |leaf| leaf.put(run, crcs, &mut freed));
        self.give_up(batch, &freed);
        freed.clear();
        self.freed = freed;
    }

    /// Marks data of a version in a part of a chunk as damaged; what has another version stays, and what lies elsewhere
    /// than at `place`, if one is named: it was healed since that was read. Returns whether anything changed. The leaf is
    /// in RAM.
    pub(crate) fn damage(
        &mut self,
        batch: u64,
        key: LeafKey,
        (first, count): (u8, u8),
        version: Version,
        place: Option<Place>,
    ) -> bool {
        let Some(leaf) = self.map.get(&key) else { return false };
        let mut hit = leaf.as_damaged(first, count, version);
        hit.retain(|(run, _)| place.is_none_or(|place| run.place == place));
        let durable = self.commits.durable();
        for (run, crcs) in &hit {
            // The damaged run keeps the places of the data: nothing is freed.
            self.map.change(key, (run.first, run.count), batch, durable, |leaf| {
                leaf.put(*run, crcs, &mut Vec::new());
            });
        }
        !hit.is_empty()
    }

    /// Replaces a chunk's leaf as a whole. The old leaf is in RAM; places that only the new one has are taken.
    pub(crate) fn replace_leaf(&mut self, batch: u64, key: LeafKey, new: Leaf) {
        if let Some(newest) = new.newest_tombstone() {
            self.note_tombstone(key.group, newest);
        }
        let kept: BTreeSet<u64> = places_of(&new).collect();
        let durable = self.commits.durable();
        let all = (0, weft_types::limits::CHUNK_BLOCKS as u8);
        let old = self.map.change(key, all, batch, durable, |leaf| std::mem::replace(leaf, new));
        let mut freed = std::mem::take(&mut self.freed);
        for run in old.places() {
            let blocks = run.place.0..run.place.0 + u64::from(run.count);
            if kept.is_empty() {
                freed.push(run);
            } else {
                let gone = blocks.filter(|b| !kept.contains(b));
                freed.extend(gone.map(|b| PlaceRun { place: Place(b), count: 1 }));
            }
        }
        self.give_up(batch, &freed);
        freed.clear();
        self.freed = freed;
    }

    fn give_up(&mut self, batch: u64, freed: &[PlaceRun]) {
        let is_known_good = self.is_replaying && !self.is_in_doubt;
        let waits = !is_known_good && !mutated(Mutation::PlaceReusedEarly);
        for run in freed {
            let owned = match waits {
                false => self.bitmap.release(*run),
                // What a log says may be wrong.
                true if self.is_replaying => self.bitmap.check_owned(*run),
                true => Ok(()),
            };
            if let Err(unowned) = owned {
                self.contradiction = self.contradiction.or(Some(unowned));
                continue;
            }
            self.bitmap.mark_dirty(*run);
            if waits {
                self.frees.push(batch, *run);
            }
        }
    }

    /// The leaves that a record changes, which have to be in RAM before it is applied.
    pub(crate) fn leaves_of(record: &Record) -> Vec<LeafKey> {
        let of_range = |group: GroupId, object: ObjectId, range: BlockRange| {
            range.by_chunk().map(|(chunk, _)| LeafKey { group, object, chunk }).collect()
        };
        match record {
            Record::Write { group, object, range, .. }
            | Record::Zero { group, object, range, .. }
            | Record::Damaged { group, object, range, .. } => of_range(*group, *object, *range),
            Record::Copy { group, object, chunk, .. } | Record::DropChunk { group, object, chunk } => {
                vec![LeafKey { group: *group, object: *object, chunk: *chunk }]
            }
            _ => Vec::new(),
        }
    }

    /// Applies a record of the log. The leaves that it changes are in RAM.
    ///
    /// # Errors
    /// Why the record contradicts the state, which means that the drive is damaged.
    pub(crate) fn replay(&mut self, batch: u64, record: Record) -> Result<(), String> {
        debug_assert!(self.is_replaying);
        match record {
            Record::Write { group, object, range, version, opens, places, crcs } => {
                if let Some(run) = places.iter().find(|run| !self.bitmap.try_take(**run)) {
                    return Err(format!("it puts data at {}, which is taken", run.place));
                }
                self.put_data(batch, (group, object), (range, version), &places, &crcs);
                if opens && let Ok(group) = self.drive.group_mut(group) {
                    group.marks.remember(object, range, version);
                }
            }
            Record::Zero { group, object, range, version } => {
                self.put_zero(batch, (group, object), (range, version));
                if let Ok(group) = self.drive.group_mut(group) {
                    group.marks.remember(object, range, version);
                }
            }
            Record::Damaged { group, object, range, version } => {
                for (chunk, part) in range.by_chunk() {
                    let blocks = (within(part.first, chunk), part.count as u8);
                    self.damage(batch, LeafKey { group, object, chunk }, blocks, version, None);
                }
            }
            Record::Copy { group, object, chunk, stint, leaf } => {
                let key = LeafKey { group, object, chunk };
                let leaf = Leaf::decode(&leaf).map_err(|e| format!("its leaf does not decode: {e}"))?;
                let held: BTreeSet<u64> = self.map.get(&key).into_iter().flat_map(|l| places_of(l)).collect();
                for place in places_of(&leaf).filter(|p| !held.contains(p)) {
                    if !self.bitmap.try_take(PlaceRun { place: Place(place), count: 1 }) {
                        return Err(format!("it copies to place {place}, which is taken"));
                    }
                }
                self.replace_leaf(batch, key, leaf);
                self.replay_note(Record::Verified { group, object, chunk, stint });
            }
            Record::DropChunk { group, object, chunk } => {
                self.replace_leaf(batch, LeafKey { group, object, chunk }, Leaf::default());
            }
            note => self.replay_note(note),
        }
        match self.contradiction {
            None => Ok(()),
            Some(Unowned::Outside(place)) => Err(format!("it replaces data at {place}, where none can be")),
            Some(Unowned::Free(place)) => Err(format!("it replaces data at {place}, which is free already")),
        }
    }

    /// Applies a record that is not about blocks. One about a group that has been dropped changes nothing.
    pub(crate) fn replay_note(&mut self, record: Record) {
        self.grow_state(record.state_growth());
        if matches!(record, Record::CloseSessions { .. } | Record::SetGeneration { .. }) {
            self.fences += 1;
        }
        let drive_id = self.drive_id;
        match record {
            Record::SetGroup { entry, is_new_stint } => self.drive.adopt(entry, drive_id, is_new_stint),
            Record::DropGroup { group } => drop(self.drive.groups.remove(&group)),
            Record::CloseSessions { floor, sessions } => self.drive.close_sessions(floor, &sessions),
            Record::SetGeneration { volume, generation } => self.drive.set_generation(volume, generation),
            Record::Floor { group, .. } => {
                self.floor_batch = self.commits.newest_batch();
                if let Ok(state) = self.drive.group_mut(group) {
                    state.apply(record);
                }
            }
            Record::DropOwner { owner } => {
                for group in self.drive.groups.values_mut() {
                    group.marks.drop_owner(owner);
                    group.ahead.retain(|(object, _)| !is_part_of(*object, owner));
                }
            }
            Record::Remember { group, .. }
            | Record::Settle { group, .. }
            | Record::Advance { group, .. }
            | Record::Verified { group, .. }
            | Record::Cursor { group, .. }
            | Record::Marks { group, .. }
            | Record::ForgetSession { group, .. } => {
                if let Ok(state) = self.drive.group_mut(group) {
                    state.apply(record);
                }
            }
            Record::Write { .. }
            | Record::Zero { .. }
            | Record::Damaged { .. }
            | Record::Copy { .. }
            | Record::DropChunk { .. } => unreachable!("records about blocks are applied by `replay`"),
        }
    }

    /// Reads a batch's records.
    ///
    /// # Errors
    /// If they are no records; `Unknown` if a newer program has written one.
    pub(crate) fn decode_records(bytes: &[u8], count: u32) -> Result<Vec<Record>, Fault> {
        let most = bytes.len() / RECORD_BYTES_MIN;
        if count as usize > most {
            return Err(Fault::Damaged(format!(
                "it says that it has {count} records, its {} bytes hold {most}",
                bytes.len()
            )));
        }
        let mut d = Decoder::new(bytes);
        let mut out = Vec::with_capacity(count as usize);
        for i in 0..count {
            let record = Record::decode(&mut d);
            out.push(record.map_err(|fault| fault.in_part(format_args!("record {i}")))?);
        }
        d.finish()?;
        Ok(out)
    }

    /// Bytes of RAM that maps and caches take; the page cache's are given.
    pub(crate) fn ram_bytes(&self, page_cache: u64) -> u64 {
        let (dirty, frozen) = self.map.changed_bytes();
        dirty + frozen + self.map.clean_bytes() + self.bitmap.ram_bytes() + page_cache
    }

    /// Gives the clean leaves what the budget leaves for them.
    pub(crate) fn trim(&mut self, page_cache: u64) {
        let fixed = self.ram_bytes(page_cache) - self.map.clean_bytes();
        self.map.set_clean_limit(self.budget_bytes.saturating_sub(fixed) as usize);
    }

    /// The figures as of now.
    pub(crate) fn usage(&self, page_cache: u64) -> Usage {
        Usage {
            capacity_blocks: self.capacity_blocks,
            used_blocks: self.capacity_blocks - self.bitmap.free(),
            free_blocks: self.free_for_data(),
            pending_free_blocks: self.frees.blocks(),
            log_used_bytes: self.log_claimed(),
            log_capacity_bytes: self.ring.capacity(),
            dirty_leaves: self.map.dirty_leaves(),
            ram_bytes: self.ram_bytes(page_cache),
            ram_budget_bytes: self.budget_bytes,
            checkpoints: self.checkpoints_done,
            ..self.figures
        }
    }
}

/// Data as the runs of its chunks, with the checksums of each.
pub(crate) fn data_runs<'a>(
    (range, version): (BlockRange, Version),
    places: &'a [PlaceRun],
    crcs: &'a [u32],
) -> impl Iterator<Item = (ChunkIndex, Run, &'a [u32])> {
    let mut runs = places.iter().copied();
    let (mut at, mut run) = (range.first, PlaceRun { place: Place::NONE, count: 0 });
    std::iter::from_fn(move || {
        if at == range.end() {
            return None;
        }
        if run.count == 0 {
            run = runs.next().expect("the places cover the range");
        }
        let chunk = ChunkIndex::of(at);
        let count = run.count.min(range.end().min(chunk.range().end()) - at);
        let from = (at - range.first) as usize;
        let first = within(at, chunk);
        let new = Run { version, place: run.place, first, count: count as u8, kind: Kind::Data };
        run = PlaceRun { place: run.place.plus(u64::from(count)), count: run.count - count };
        at += count;
        Some((chunk, new, &crcs[from..from + count as usize]))
    })
}

/// A block's number inside its chunk.
pub(crate) fn within(block: u32, chunk: ChunkIndex) -> u8 {
    (block - chunk.range().first) as u8
}

/// Every place of a leaf.
pub(crate) fn places_of(leaf: &Leaf) -> impl Iterator<Item = u64> + '_ {
    leaf.places().flat_map(|run| run.place.0..run.place.0 + u64::from(run.count))
}
