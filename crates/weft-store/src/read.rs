//! Reading: extents as of one instant per chunk, their data read in as few drive reads as it lies, every
//! block verified. What does not verify is reported as damaged, remembered, and never returned.

use crate::StoreError;
use crate::leaf::{Kind, LeafKey};
use crate::record::Record;
use crate::region::Place;
use crate::request::{Extent, ExtentData};
use crate::shortage::read_patiently;
use crate::state::within;
use crate::store::Store;
use weft_rt::sync::join_all;
use weft_rt::{Buf, Drive, Landing};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::limits::REQUEST_BLOCKS_MAX;
use weft_types::{BLOCK_SIZE, BlockRange, GroupId, ObjectId, Version};
use weft_wire::crc32c;
use weft_wire::data::is_intact;

/// A run of blocks as the map had it at one instant: one version, one kind, neighbouring places.
struct Found {
    range: BlockRange,
    version: Version,
    open: bool,
    kind: Kind,
    place: Place,
    crcs: Vec<u32>,
}

impl Found {
    /// Whether this is what was found: each block of data has its checksum.
    fn is_whole(&self, data: &[u8]) -> bool {
        let is_intact = |data: &[u8]| is_intact(data, &self.crcs) || mutated(Mutation::CrcNotChecked);
        self.kind != Kind::Data || (data.len() == self.range.bytes() && is_intact(data))
    }

    /// Whether nothing was ever written there, as far as counts.
    fn is_absent(&self) -> bool {
        self.version == Version::ZERO
    }

    fn without_data(self) -> Extent {
        self.with_data(Buf::empty())
    }

    fn with_data(self, buf: Buf) -> Extent {
        let data = match self.kind {
            Kind::Data => ExtentData::Data { buf, crcs: self.crcs },
            Kind::Zero => ExtentData::Zero,
            Kind::Damaged => ExtentData::Damaged,
        };
        Extent { range: self.range, version: self.version, open: self.open, data }
    }
}

/// A drive read: blocks from `place` on, for the extents `first..end`.
struct Job {
    place: Place,
    blocks: u32,
    first: usize,
    end: usize,
}

impl Store {
    /// Reads a run of blocks: extents in order that cover it. Everything cited is durable on return; blocks
    /// that were never written are zero with [`Version::ZERO`].
    ///
    /// # Errors
    /// `UnknownGroup`, `Invalid`, a damaged page of the map, or the store has failed; `Gone` if the drive is not there any
    /// more. A block that cannot be read or does not match its checksum otherwise is no error but an extent that is
    /// damaged.
    pub async fn read(
        &self,
        group: GroupId,
        object: ObjectId,
        range: BlockRange,
    ) -> Result<Vec<Extent>, StoreError> {
        self.read_to(group, object, range, &Landing::default()).await
    }

    /// Likewise, to where the data need not be copied to be sent.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn read_to(
        &self,
        group: GroupId,
        object: ObjectId,
        range: BlockRange,
        landing: &Landing,
    ) -> Result<Vec<Extent>, StoreError> {
        if range.count > REQUEST_BLOCKS_MAX {
            return Err(StoreError::Invalid { reason: "the read is longer than one request may be" });
        }
        self.read_where(group, object, range, landing, |_| true).await
    }

    /// Like [`Store::versions`], but with the data of what is open: versions that may be on this drive alone.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn read_open(
        &self,
        group: GroupId,
        object: ObjectId,
        range: BlockRange,
    ) -> Result<Vec<Extent>, StoreError> {
        self.read_where(group, object, range, &Landing::default(), |found| found.open).await
    }

    /// Reads the data of some of the runs.
    async fn read_where(
        &self,
        group: GroupId,
        object: ObjectId,
        range: BlockRange,
        landing: &Landing,
        is_wanted: impl Fn(&Found) -> bool,
    ) -> Result<Vec<Extent>, StoreError> {
        let pin = self.engine.pin();
        let found = self.find(group, object, range).await?;
        let jobs = jobs_of(&found, &is_wanted);
        let results: Vec<Option<Buf>> = match &jobs[..] {
            [] => Vec::new(),
            [job] => vec![read_job(&self.engine.drive, job, landing).await],
            jobs => {
                let own = Landing::default();
                join_all(jobs.iter().map(|job| read_job(&self.engine.drive, job, &own))).await
            }
        };
        let mut datas = vec![Buf::empty(); found.len()];
        let mut bytes = 0;
        for (job, data) in jobs.iter().zip(results) {
            bytes += u64::from(job.blocks) * BLOCK_SIZE as u64;
            let Some(data) = data else { continue };
            let mut at = 0;
            for (found, slot) in found[job.first..job.end].iter().zip(&mut datas[job.first..job.end]) {
                *slot = data.slice(at..at + found.range.bytes());
                at += found.range.bytes();
            }
        }
        self.engine.state.borrow_mut().figures.data_bytes_read += bytes;
        let mut out = Vec::with_capacity(found.len());
        for (found, data) in found.into_iter().zip(datas) {
            if !is_wanted(&found) {
                out.push(found.without_data());
            } else if found.is_whole(&data) {
                out.push(found.with_data(data));
            } else {
                Box::pin(self.read_singly(group, object, found, &mut out)).await?;
            }
        }
        drop(pin);
        Ok(out)
    }

    /// Like [`Store::read`], without the data: extents of data have their checksums and no bytes.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn versions(
        &self,
        group: GroupId,
        object: ObjectId,
        range: BlockRange,
    ) -> Result<Vec<Extent>, StoreError> {
        let found = self.find(group, object, range).await?;
        Ok(found.into_iter().map(Found::without_data).collect())
    }

    /// What the map says of a run of blocks, once it is durable.
    async fn find(
        &self,
        group: GroupId,
        object: ObjectId,
        range: BlockRange,
    ) -> Result<Vec<Found>, StoreError> {
        if !range.is_valid() {
            return Err(StoreError::Invalid { reason: "the range is empty or passes the largest object" });
        }
        let mut out = Vec::with_capacity(1);
        let mut batch = 0;
        for (chunk, part) in range.by_chunk() {
            let key = LeafKey { group, object, chunk };
            while !self.collect(key, part, &mut out, &mut batch)? {
                Box::pin(self.engine.load(key)).await?;
            }
        }
        if batch > self.engine.state.borrow().commits.durable() {
            mark(Path::WaitsForDurable);
        }
        if !mutated(Mutation::ReadBeforeDurable) {
            self.engine.durable(batch).await?;
        }
        Ok(out)
    }

    /// Appends what one leaf says; `false` if it is not in RAM.
    fn collect(
        &self,
        key: LeafKey,
        part: BlockRange,
        out: &mut Vec<Found>,
        batch: &mut u64,
    ) -> Result<bool, StoreError> {
        let mut state = self.engine.state.borrow_mut();
        let state = &mut *state;
        if let Some(cause) = &state.failed {
            return Err(StoreError::Failed { cause: cause.clone() });
        }
        let held = state.drive.group(key.group)?;
        let (marks, floor) = (&held.marks, held.floor);
        let (first, count) = (within(part.first, key.chunk), part.count as u8);
        let durable = state.commits.durable();
        let Some(cited) = state.map.cite(&key, (first, count), durable) else { return Ok(false) };
        let first_block = part.first;
        *batch = (*batch).max(cited.batch);
        for piece in cited.leaf.pieces(first, count) {
            let base = key.chunk.range().first + u32::from(piece.first);
            let range = BlockRange::new(base, u32::from(piece.count));
            let kind = piece.kind.unwrap_or(Kind::Zero);
            let version = piece.version_above(floor);
            marks.split_open(key.object, range, version, |range, open| {
                let skip = (range.first - base) as usize;
                let has_data = kind == Kind::Data;
                let place = if has_data { piece.place.plus(skip as u64) } else { Place::NONE };
                let crcs = if has_data {
                    piece.crcs[skip..skip + range.count as usize].to_vec()
                } else {
                    Vec::new()
                };
                // Whether a tombstone below the floor is still in the map cannot be told from how runs are
                // cut.
                match out.last_mut().filter(|last| last.is_absent() && version == Version::ZERO) {
                    Some(last) if last.range.end() == range.first && range.first > first_block => {
                        last.range.count += range.count;
                    }
                    _ => out.push(Found { range, version, open, kind, place, crcs }),
                }
            });
        }
        Ok(true)
    }

    /// Reads data that is not whole again, block by block; blocks that do not verify become damaged ones, unless the drive
    /// is gone.
    async fn read_singly(
        &self,
        group: GroupId,
        object: ObjectId,
        found: Found,
        out: &mut Vec<Extent>,
    ) -> Result<(), StoreError> {
        let Found { range, version, open, place, crcs, .. } = found;
        for (i, crc) in crcs.into_iter().enumerate() {
            let (block, place) = (BlockRange::one(range.first + i as u32), place.plus(i as u64));
            let data = match read_block(&self.engine.drive, place, crc).await {
                Some(buf) => ExtentData::Data { buf, crcs: vec![crc] },
                None if mutated(Mutation::DamageReadsAsZeroes) => ExtentData::Zero,
                None => {
                    // Of a drive that was pulled nothing can be read, and nothing is damaged for that.
                    self.check_presence().await?;
                    self.remember_damage(group, object, block, version, place).await?;
                    ExtentData::Damaged
                }
            };
            out.push(Extent { range: block, version, open, data });
        }
        Ok(())
    }

    /// Marks a block as damaged if it still has the version and lies where it was read; logged with the next batch. Losing
    /// the mark is harmless: the next read finds the damage again.
    async fn remember_damage(
        &self,
        group: GroupId,
        object: ObjectId,
        block: BlockRange,
        version: Version,
        place: Place,
    ) -> Result<(), StoreError> {
        let key = LeafKey { group, object, chunk: weft_types::ChunkIndex::of(block.first) };
        self.engine.load(key).await?;
        let mut state = self.engine.state.borrow_mut();
        state.figures.damaged_found += 1;
        mark(Path::DamageFound);
        tracing::warn!(drive = %self.engine.label.drive, %group, %object, %block, %version, "block is damaged");
        if !state.has_room_for_note() || !state.map.is_loaded(&key) {
            return Ok(());
        }
        let batch = state.commits.open_batch();
        if state.damage(batch, key, (within(block.first, key.chunk), 1), version, Some(place)) {
            let logged = state.record(|e| Record::Damaged { group, object, range: block, version }.encode(e));
            debug_assert_eq!(batch, logged);
        }
        drop(state);
        self.engine.work.notify_all();
        Ok(())
    }
}

/// The drive reads that bring in the data that is wanted: neighbours on the drive are read together.
fn jobs_of(found: &[Found], is_wanted: impl Fn(&Found) -> bool) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    for (i, f) in found.iter().enumerate().filter(|(_, f)| f.kind == Kind::Data && is_wanted(f)) {
        let blocks = f.range.count;
        match jobs.last_mut() {
            Some(job) if job.end == i && job.place.plus(u64::from(job.blocks)) == f.place => {
                job.blocks += blocks;
                job.end = i + 1;
            }
            _ => jobs.push(Job { place: f.place, blocks, first: i, end: i + 1 }),
        }
    }
    jobs
}

/// Reads a job's bytes; `None` if the drive cannot.
async fn read_job(drive: &Drive, job: &Job, landing: &Landing) -> Option<Buf> {
    let len = job.blocks as usize * BLOCK_SIZE;
    drive.read_to(job.place.offset(), len, landing).await.ok().map(|data| data.freeze())
}

/// Reads one block that did not verify as part of a longer read, to memory of our own; `None` if it does not verify now
/// either. Where the machine is short of something, that says nothing of the block, and it is tried again for a while.
async fn read_block(drive: &Drive, place: Place, crc: u32) -> Option<Buf> {
    let data = read_patiently(drive, place.offset(), BLOCK_SIZE).await.ok()?;
    (crc32c(&data) == crc).then(|| data.freeze())
}
