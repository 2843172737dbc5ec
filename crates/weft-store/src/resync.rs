//! What resync asks of a drive (R12 to R14): digests, verified copies of chunks, how far verification has
//! come, and the marks that travel with a copy.

use crate::StoreError;
use crate::leaf::{Kind, Leaf, LeafKey, Run};
use crate::record::{MARKS_PER_RECORD, Record};
use crate::region::{Place, PlaceRun};
use crate::request::{CopyData, CopyEntry, Cursor, Marks, VerifyState};
use crate::state::{Room, State, within};
use crate::store::Store;
use std::ops::Range;
use std::rc::Rc;
use weft_rt::{Buf, Drive, breathe};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::limits::CHUNK_BLOCKS;
use weft_types::{
    BLOCK_SIZE, BlockRange, ChunkIndex, Epoch, GroupId, ObjectId, ObjectRange, Version, VolumeId,
};

/// Leaves that are digested between two looks at the map.
const LEAVES_PER_STEP: usize = 512;

/// Leaves of which the digests are made in a row while other work waits: a few hundred blocks each at most.
const LEAVES_PER_BREATH: usize = 32;

impl Store {
    /// Digests of a group's chunks from `from` on, in key order; chunks that hold nothing are left out. Fewer
    /// than `limit` means that there are no more. Equal content has equal digests on every drive.
    ///
    /// # Errors
    /// If the store has failed, or a page of the map is damaged.
    pub async fn digests(
        &self,
        group: GroupId,
        from: Option<(ObjectId, ChunkIndex)>,
        limit: usize,
    ) -> Result<Vec<(ObjectId, ChunkIndex, u64)>, StoreError> {
        let first = LeafKey::first_of(group);
        let end = group.0.checked_add(1).map(|next| LeafKey::first_of(GroupId(next)));
        let mut next = Some(from.map_or(first, |(object, chunk)| LeafKey { group, object, chunk }));
        let mut out = Vec::new();
        while let Some(from) = next.filter(|_| out.len() < limit) {
            let want = (limit - out.len()).min(LEAVES_PER_STEP);
            let (leaves, more) = self.engine.scan(from, end, want).await?;
            for some in leaves.chunks(LEAVES_PER_BREATH) {
                let floor = self.floor(group);
                let some = some.iter().filter(|(_, leaf)| !leaf.is_empty_above(floor));
                out.extend(some.map(|(key, leaf)| (key.object, key.chunk, leaf.digest(floor))));
                breathe().await;
            }
            next = more;
        }
        Ok(out)
    }

    /// Verifies a chunk in a stint (R12): what this drive holds is replaced by what the source holds, and what
    /// the source has not is removed; only if the chunk was verified before does something newer here stay.
    /// Data that is here already at the same version is not written again. With `equal` the digests were the
    /// same, and the chunk is only marked. One atomic change, durable on return.
    ///
    /// # Errors
    /// `StaleStint` (R13), `NoSpace`, `Invalid`, `UnknownGroup`; then nothing was changed.
    pub async fn verify_chunk(
        &self,
        group: GroupId,
        object: ObjectId,
        chunk: ChunkIndex,
        stint: Epoch,
        source: Vec<CopyEntry>,
        equal: bool,
    ) -> Result<(), StoreError> {
        if equal {
            return self
                .log(|state| {
                    let held = state.drive.group(group)?;
                    held.check_stint(stint)?;
                    let is_new = !held.is_verified(object, chunk);
                    Ok(is_new.then_some(Record::Verified { group, object, chunk, stint }))
                })
                .await;
        }
        self.copy_from_source(LeafKey { group, object, chunk }, stint, chunk.range(), source).await
    }

    /// Takes a part of a chunk that is verified in a stint from a source: what is newer there, and the data of what is
    /// damaged here at the same version. Whatever lies outside the part is not touched. One atomic change, durable on
    /// return.
    ///
    /// # Errors
    /// `StaleStint` (R13), `NoSpace`, `UnknownGroup`; `Invalid`, also if the chunk is not verified, or the part not in
    /// it; then nothing was changed.
    pub async fn fill_part(
        &self,
        group: GroupId,
        object: ObjectId,
        part: BlockRange,
        stint: Epoch,
        source: Vec<CopyEntry>,
    ) -> Result<(), StoreError> {
        let mut chunks = part.by_chunk();
        let (Some((chunk, _)), None) = (chunks.next(), chunks.next()) else {
            return Err(StoreError::Invalid { reason: "a part that is filled lies in one chunk" });
        };
        {
            let state = self.engine.state.borrow();
            let held = state.drive.group(group)?;
            // First: in a newer stint nothing is verified, and that is no fault of the caller.
            held.check_stint(stint)?;
            if !held.is_verified(object, chunk) {
                return Err(StoreError::Invalid { reason: "only a verified chunk is filled in parts" });
            }
        }
        self.copy_from_source(LeafKey { group, object, chunk }, stint, part, source).await
    }

    async fn copy_from_source(
        &self,
        key: LeafKey,
        stint: Epoch,
        part: BlockRange,
        source: Vec<CopyEntry>,
    ) -> Result<(), StoreError> {
        check_source(part, &source)?;
        let LeafKey { group, object, chunk } = key;
        let mut attempt = 0;
        let batch = loop {
            self.engine.admit().await?;
            self.engine.load(key).await?;
            let (needed, room) = {
                let mut state = self.engine.state.borrow_mut();
                state.check()?;
                if !state.has_room() {
                    continue;
                }
                if state.dropping.groups.contains(&group) {
                    return Err(StoreError::UnknownGroup { group });
                }
                state.drive.group(group)?.check_stint(stint)?;
                let Some(leaf) = state.map.get(&key).cloned() else { continue };
                let was_verified = state.drive.group(group)?.is_verified(object, chunk);
                // Of a volume that is being dropped here nothing comes back, whatever the source still has.
                let is_dropped = state.dropping.volumes.contains(&object.owner().volume());
                let source = if is_dropped { &[][..] } else { &source[..] };
                let (mut leaf, floor) = (leaf, state.floor_of(group));
                if leaf.has_tombstone_below(floor) {
                    Rc::make_mut(&mut leaf).forget(floor);
                }
                let plan = plan_copy(chunk, part, &leaf, was_verified, source);
                let needed = plan.iter().map(Put::data_blocks).sum();
                let room = state.room_for(needed, u64::from(!state.map.is_dirty(&key)));
                if room == Room::Enough {
                    break copy(&mut state, &self.engine.drive, key, stint, source, plan);
                }
                (needed, room)
            };
            attempt += 1;
            self.engine.make_room(needed, room, attempt).await?;
        };
        self.engine.work.notify_all();
        self.engine.durable(batch).await
    }

    /// Whether a chunk is verified in the drive's stint, or never had to be.
    pub fn chunk_is_verified(&self, group: GroupId, object: ObjectId, chunk: ChunkIndex) -> bool {
        let state = self.engine.state.borrow();
        state.drive.groups.get(&group).is_some_and(|g| g.is_verified(object, chunk))
    }

    /// Everything below the cursor is verified in this stint. Durable on return; it never moves back.
    ///
    /// # Errors
    /// `StaleStint`, `UnknownGroup`, or the store has failed.
    pub async fn set_cursor(&self, group: GroupId, stint: Epoch, cursor: Cursor) -> Result<(), StoreError> {
        self.log(|state| {
            let held = state.drive.group(group)?;
            held.check_stint(stint)?;
            Ok((cursor > held.cursor).then_some(Record::Cursor { group, stint, cursor }))
        })
        .await
    }

    /// How far this drive has verified a group.
    pub fn verify_state(&self, group: GroupId) -> Option<VerifyState> {
        self.engine.state.borrow().drive.groups.get(&group).map(|g| g.verify_state())
    }

    /// The marks of the chunks from `from` on, below `to` (`None`: to the end), and all watermarks of the group
    /// (R14).
    pub fn marks(
        &self,
        group: GroupId,
        from: (ObjectId, ChunkIndex),
        to: Option<(ObjectId, ChunkIndex)>,
    ) -> Marks {
        let state = self.engine.state.borrow();
        let Some(held) = state.drive.groups.get(&group) else { return Marks::default() };
        let is_inside = |object: ObjectId, range: BlockRange| {
            let (first, last) = (ChunkIndex::of(range.first), ChunkIndex::of(range.end() - 1));
            (object, last) >= from && to.is_none_or(|to| (object, first) < to)
        };
        let open = held.marks.entries().filter(|e| is_inside(e.object, e.range)).collect();
        Marks { open, watermarks: held.marks.watermarks().collect() }
    }

    /// Takes over a source's marks (R14), before its digests are compared. They are durable before, or together with,
    /// whatever is logged after them: a chunk that is verified then, or a cursor. What is held already costs nothing.
    ///
    /// `epoch` is the group's when the source was asked: marks of a source that may have been evicted since are refused
    /// in the very step in which they would count.
    ///
    /// # Errors
    /// `StaleStint`, `UnknownGroup`, `StaleEpoch` if this drive has adopted a later one, or the store has failed.
    pub async fn merge_marks(
        &self,
        group: GroupId,
        stint: Epoch,
        epoch: Epoch,
        marks: Marks,
    ) -> Result<(), StoreError> {
        // Entries first: a watermark that rose at the source meanwhile then removes what it has passed.
        let open = marks.open.chunks(MARKS_PER_RECORD);
        let open = open.map(|part| Marks { open: part.to_vec(), watermarks: Vec::new() });
        let watermarks = marks.watermarks.chunks(MARKS_PER_RECORD);
        let watermarks = watermarks.map(|part| Marks { open: Vec::new(), watermarks: part.to_vec() });
        for mut marks in open.chain(watermarks) {
            self.log_ahead(|state| {
                let held = state.drive.group(group)?;
                held.check_stint(stint)?;
                held.check_epoch(epoch)?;
                held.marks.drop_held(&mut marks);
                let is_new = !marks.open.is_empty() || !marks.watermarks.is_empty();
                Ok(is_new.then_some(Record::Marks { group, marks }))
            })
            .await?;
        }
        Ok(())
    }

    /// The group's chunks of one volume, for a sweep over what a drive holds; in key order.
    ///
    /// # Errors
    /// If the store has failed, or a page of the map is damaged.
    pub async fn chunks_of(
        &self,
        group: GroupId,
        volume: VolumeId,
    ) -> Result<Vec<(ObjectId, ChunkIndex)>, StoreError> {
        let mut out = Vec::new();
        for objects in ObjectRange::of_entry(volume) {
            let (first, end) = LeafKey::bounds(group, objects);
            let mut next = Some(first);
            while let Some(from) = next {
                let (leaves, more) = self.engine.scan(from, end, LEAVES_PER_STEP).await?;
                out.extend(leaves.iter().map(|(key, _)| (key.object, key.chunk)));
                next = more;
            }
        }
        Ok(out)
    }
}

/// Refuses a source whose entries do not describe the blocks that are copied.
fn check_source(part: BlockRange, source: &[CopyEntry]) -> Result<(), StoreError> {
    let mut at = part.first;
    for entry in source {
        let range = entry.range;
        if !range.is_valid() || range.first < at || range.end() > part.end() {
            return Err(StoreError::Invalid { reason: "a copy's entries are in order and inside its chunk" });
        }
        at = range.end();
        if let CopyData::Data { buf, crcs } = &entry.data
            && (buf.len() != range.bytes() || crcs.len() != range.count as usize)
        {
            return Err(StoreError::Invalid {
                reason: "the data or its checksums do not have the entry's length",
            });
        }
        if matches!(entry.data, CopyData::Absent) != (entry.version == Version::ZERO) {
            return Err(StoreError::Invalid {
                reason: "a copied block has version zero if and only if it is absent",
            });
        }
    }
    Ok(())
}

/// A run of blocks that a copy changes.
struct Put {
    /// Blocks, counted from the chunk's start.
    blocks: Range<u8>,
    /// The source's entry and how far into it the run begins; `None` removes the blocks.
    entry: Option<(usize, u32)>,
    has_data: bool,
}

impl Put {
    fn data_blocks(&self) -> u64 {
        if self.has_data { (self.blocks.end - self.blocks.start).into() } else { 0 }
    }
}

/// What has to change so that a part of the chunk is as the source has it.
fn plan_copy(
    chunk: ChunkIndex,
    part: BlockRange,
    leaf: &Leaf,
    was_verified: bool,
    source: &[CopyEntry],
) -> Vec<Put> {
    let mut theirs: [Option<(usize, u32)>; CHUNK_BLOCKS as usize] = [None; CHUNK_BLOCKS as usize];
    for (i, entry) in source.iter().enumerate().filter(|(_, e)| !matches!(e.data, CopyData::Absent)) {
        for block in entry.range.blocks() {
            theirs[usize::from(within(block, chunk))] = Some((i, block - entry.range.first));
        }
    }
    let mut plan: Vec<Put> = Vec::new();
    let first = within(part.first, chunk);
    for piece in leaf.pieces(first, part.count as u8) {
        for i in 0..piece.count {
            let block = piece.first + i;
            let entry = theirs[usize::from(block)];
            let version = entry.map_or(Version::ZERO, |(e, _)| source[e].version);
            let may_stay = (was_verified && !mutated(Mutation::CopyOverwritesNewer))
                || mutated(Mutation::MergesByVersion);
            let is_newer_here = may_stay && piece.version > version;
            let is_same = piece.version == version
                && match entry.map(|(e, at)| (&source[e].data, at as usize)) {
                    None => piece.kind.is_none(),
                    Some((CopyData::Data { crcs, .. }, at)) => {
                        piece.kind == Some(Kind::Data) && piece.crcs[usize::from(i)] == crcs[at]
                    }
                    Some((CopyData::Zero, _)) => piece.kind == Some(Kind::Zero),
                    // The source has lost what is here in good order at the same version: it stays.
                    Some((CopyData::Damaged, _)) => true,
                    Some((CopyData::Absent, _)) => unreachable!("absent blocks have no entry"),
                };
            if is_newer_here {
                mark(Path::CopyRaced);
            }
            let is_absent = entry.is_none() && mutated(Mutation::CopyKeepsAbsent);
            if is_newer_here || is_same || is_absent {
                continue;
            }
            match plan.last_mut() {
                Some(put) if put.blocks.end == block && continues(put, entry) => put.blocks.end += 1,
                _ => {
                    let has_data =
                        entry.is_some_and(|(e, _)| matches!(source[e].data, CopyData::Data { .. }));
                    plan.push(Put { blocks: block..block + 1, entry, has_data });
                }
            }
        }
    }
    plan
}

fn continues(put: &Put, next: Option<(usize, u32)>) -> bool {
    match (put.entry, next) {
        (None, None) => true,
        (Some((a, at)), Some((b, next_at))) => {
            a == b && next_at == at + u32::from(put.blocks.end - put.blocks.start)
        }
        _ => false,
    }
}

/// Makes the change, logs it as one record, and marks the chunk as verified; returns the batch.
fn copy(
    state: &mut State,
    drive: &Drive,
    key: LeafKey,
    stint: Epoch,
    source: &[CopyEntry],
    plan: Vec<Put>,
) -> u64 {
    let mut leaf = Leaf::clone(state.map.get(&key).expect("the leaf was found when the copy was planned"));
    // What the old leaf held and the new one does not is given up by `replace_leaf`, which compares the two.
    let ignored = &mut Vec::new();
    for put in plan {
        let (first, count) = (put.blocks.start, put.blocks.end - put.blocks.start);
        let Some((entry, at)) = put.entry else {
            leaf.remove(first, count, ignored);
            continue;
        };
        let version = source[entry].version;
        let run = |kind, place, first, count| Run { version, place, first, count, kind };
        match &source[entry].data {
            CopyData::Data { buf, crcs } => {
                let from = at as usize;
                let data = buf.slice(from * BLOCK_SIZE..(from + usize::from(count)) * BLOCK_SIZE);
                let crcs = &crcs[from..from + usize::from(count)];
                let mut done = 0;
                for place in place_data(state, drive, data) {
                    let n = place.count as usize;
                    let part = run(Kind::Data, place.place, first + done as u8, n as u8);
                    leaf.put(part, &crcs[done..done + n], ignored);
                    done += n;
                }
            }
            CopyData::Zero => leaf.put(run(Kind::Zero, Place::NONE, first, count), &[], ignored),
            // Nobody knows the checksum of what the source could not read.
            CopyData::Damaged => {
                let crcs = vec![0; usize::from(count)];
                leaf.put(run(Kind::Damaged, Place::NONE, first, count), &crcs, ignored);
            }
            CopyData::Absent => unreachable!("absent blocks are removed"),
        }
    }
    let mut encoded = weft_wire::Encoder::with_capacity(leaf.encoded_len());
    leaf.encode(&mut encoded);
    let LeafKey { group, object, chunk } = key;
    let record = Record::Copy { group, object, chunk, stint, leaf: encoded.0 };
    let batch = state.record(|e| record.encode(e));
    state.replace_leaf(batch, key, leaf);
    state.replay_note(Record::Verified { group, object, chunk, stint });
    batch
}

/// Takes places for data and gives it to the open batch.
fn place_data(state: &mut State, drive: &Drive, data: Buf) -> Vec<PlaceRun> {
    let mut places = Vec::with_capacity(1);
    state.bitmap.allocate((data.len() / BLOCK_SIZE) as u32, &mut places);
    state.figures.data_bytes_written += data.len() as u64;
    let mut at = 0;
    for run in &places {
        let end = at + run.count as usize * BLOCK_SIZE;
        state.commits.add_data(drive, run.place, data.slice(at..end));
        at = end;
    }
    places
}
