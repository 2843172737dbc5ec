//! Says where blocks lie on a drive, from the drive alone: the newest checkpoint, then the log behind it. It never
//! writes, so it may look at a drive that a store has open, in this process or in another.
//!
//! Such a drive changes while it is looked at. What is read verifies by checksums, so a look that a checkpoint has
//! overtaken is noticed, and is taken again; what it returns was so at one moment of the look.

use crate::StoreError;
use crate::label::Label;
use crate::leaf::{Kind, Leaf, LeafKey, Run};
use crate::log::{FoundBatch, LogReader, LogRing};
use crate::page::PageReader;
use crate::record::Record;
use crate::recover::{check_data, keep_what_arrived};
use crate::region::{Place, PlaceRun};
use crate::state::{State, data_runs, places_of, within};
use crate::superblock::Superblock;
use crate::tree;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use weft_rt::Drive;
use weft_types::limits::CHUNK_BLOCKS;
use weft_types::{BlockRange, GroupId, ObjectId, Version};

/// How often a look is taken anew when the drive has changed under it: checkpoints are seconds apart, looks take
/// less.
const LOOKS_MAX: usize = 5;

/// RAM for the pages of the block map that a look shares.
const CACHE_BYTES: usize = 8 << 20;

/// Blocks that are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The group.
    pub group: GroupId,
    /// The object.
    pub object: ObjectId,
    /// The blocks of the object.
    pub range: BlockRange,
}

/// What a drive holds of a run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// They were never written here.
    Nothing,
    /// Discarded or zeroed: they take no place.
    Zero,
    /// Data, in places that follow each other.
    Data {
        /// The place of the first block.
        place: Place,
        /// Whether the data matches its checksums; none if it was not read.
        is_intact: Option<bool>,
    },
    /// Data that the store knows to be damaged; it has no place if it came so from another replica.
    Damaged {
        /// The place of the first block.
        place: Option<Place>,
    },
}

/// A run of blocks, and what the drive holds of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// The group.
    pub group: GroupId,
    /// The object.
    pub object: ObjectId,
    /// The blocks of the object.
    pub range: BlockRange,
    /// Their version; [`Version::ZERO`] where nothing was ever written.
    pub version: Version,
    /// What is there.
    pub held: Held,
}

/// Looks for blocks on a drive; they come in the order of `wanted`, cut into runs. With `verify` their data is
/// read, and compared with its checksums.
///
/// # Errors
/// If the drive is not Weft's, its structures are damaged, or it changes faster than it can be read.
pub async fn locate(drive: &Drive, wanted: &[Wanted], verify: bool) -> Result<Vec<Located>, StoreError> {
    let (label, _) = Label::read(drive).await?;
    let mut former: Option<Vec<Located>> = None;
    for look in 1.. {
        let found = look_for(drive, &label, wanted, verify).await;
        let is_last = look == LOOKS_MAX;
        match found {
            Err(_) if !is_last => {}
            // Data that does not match was replaced meanwhile, or is damaged: then a second look sees the same.
            Ok(found) if !is_last && has_damage(&found) && former.as_ref() != Some(&found) => {
                former = Some(found);
            }
            found => return found,
        }
    }
    unreachable!("the last look returns");
}

fn has_damage(found: &[Located]) -> bool {
    found.iter().any(|l| matches!(l.held, Held::Data { is_intact: Some(false), .. }))
}

async fn look_for(
    drive: &Drive,
    label: &Label,
    wanted: &[Wanted],
    verify: bool,
) -> Result<Vec<Located>, StoreError> {
    let (superblock, _) = Superblock::read(drive, label.drive).await?;
    superblock.check_is_known()?;
    let mut leaves = BTreeMap::new();
    let reader = PageReader::new(drive.clone(), CACHE_BYTES);
    for key in wanted.iter().flat_map(keys_of) {
        // Parts of one chunk may be looked for one by one.
        if let Entry::Vacant(slot) = leaves.entry(key) {
            slot.insert(tree::lookup(&reader, superblock.root, key).await?.unwrap_or_default());
        }
    }
    follow_log(drive, label, &superblock, &mut leaves).await?;
    let mut out = Vec::new();
    for wanted in wanted {
        out.extend(runs_of(drive, label, wanted, &leaves, verify).await);
    }
    Ok(out)
}

/// What the leaves say of a run of blocks.
async fn runs_of(
    drive: &Drive,
    label: &Label,
    wanted: &Wanted,
    leaves: &BTreeMap<LeafKey, Leaf>,
    verify: bool,
) -> Vec<Located> {
    let mut out = Vec::new();
    for key in keys_of(wanted) {
        let (group, object, chunk) = (key.group, key.object, key.chunk.range());
        let first = wanted.range.first.max(chunk.first);
        let count = (wanted.range.end().min(chunk.end()) - first) as u8;
        for piece in leaves[&key].pieces(within(first, key.chunk), count) {
            let (start, version) = (chunk.first + u32::from(piece.first), piece.version);
            let range = BlockRange::new(start, u32::from(piece.count));
            let held = match piece.kind {
                None => Held::Nothing,
                Some(Kind::Zero) => Held::Zero,
                Some(Kind::Damaged) => {
                    Held::Damaged { place: (piece.place != Place::NONE).then_some(piece.place) }
                }
                Some(Kind::Data) => Held::Data { place: piece.place, is_intact: None },
            };
            if !(verify && piece.kind == Some(Kind::Data)) {
                push(&mut out, Located { group, object, range, version, held });
                continue;
            }
            let places = [PlaceRun { place: piece.place, count: range.count }];
            let intact = check_data(drive, &label.region, &places, piece.crcs).await;
            for (i, is_intact) in (0..).zip(intact) {
                let held = Held::Data { place: piece.place.plus(u64::from(i)), is_intact: Some(is_intact) };
                push(&mut out, Located { group, object, range: BlockRange::one(start + i), version, held });
            }
        }
    }
    out
}

/// The leaves that hold the blocks.
fn keys_of(wanted: &Wanted) -> impl Iterator<Item = LeafKey> + use<> {
    let Wanted { group, object, range } = *wanted;
    range.by_chunk().map(move |(chunk, _)| LeafKey { group, object, chunk })
}

/// Brings leaves from the checkpoint up to the end of the log.
async fn follow_log(
    drive: &Drive,
    label: &Label,
    superblock: &Superblock,
    leaves: &mut BTreeMap<LeafKey, Leaf>,
) -> Result<(), StoreError> {
    let ring = LogRing::new(label.drive, &label.region, superblock.log_position);
    let mut log = LogReader::new(&ring, drive, superblock.log_position, superblock.batch + 1);
    let mut waiting: Option<FoundBatch> = None;
    loop {
        let next = log.next().await?;
        if let Some(batch) = waiting.take() {
            let is_durable = next.as_ref().is_some_and(|n| n.header.durable >= batch.header.sequence);
            let damaged =
                |reason: String| StoreError::damaged("the log", Place(label.region.log_first), reason);
            let place = Place(label.region.log_first);
            for record in batch.decode().map_err(|fault| fault.in_structure("the log", place))? {
                if !State::leaves_of(&record).iter().any(|key| leaves.contains_key(key)) {
                    continue;
                }
                let kept = match is_durable {
                    true => vec![record],
                    false => {
                        let keys = State::leaves_of(&record);
                        let held =
                            keys.iter().filter_map(|key| leaves.get(key)).flat_map(places_of).collect();
                        keep_what_arrived(drive, &label.region, record, &held).await.0
                    }
                };
                kept.iter().try_for_each(|record| apply(record, leaves)).map_err(damaged)?;
            }
        }
        match next {
            Some(batch) => waiting = Some(batch),
            None => return Ok(()),
        }
    }
}

/// Applies a record to those of its leaves that are looked for.
fn apply(record: &Record, leaves: &mut BTreeMap<LeafKey, Leaf>) -> Result<(), String> {
    match record {
        Record::Write { group, object, range, version, places, crcs, .. } => {
            for (chunk, run, crcs) in data_runs((*range, *version), places, crcs) {
                if let Some(leaf) = leaves.get_mut(&LeafKey { group: *group, object: *object, chunk }) {
                    leaf.put(run, crcs, &mut Vec::new());
                }
            }
        }
        Record::Zero { group, object, range, version } => {
            for (chunk, part) in range.by_chunk() {
                if let Some(leaf) = leaves.get_mut(&LeafKey { group: *group, object: *object, chunk }) {
                    let (first, count) = (within(part.first, chunk), part.count as u8);
                    let (place, kind, version) = (Place::NONE, Kind::Zero, *version);
                    leaf.put(Run { version, place, first, count, kind }, &[], &mut Vec::new());
                }
            }
        }
        Record::Damaged { group, object, range, version } => {
            for (chunk, part) in range.by_chunk() {
                if let Some(leaf) = leaves.get_mut(&LeafKey { group: *group, object: *object, chunk }) {
                    let hit = leaf.as_damaged(within(part.first, chunk), part.count as u8, *version);
                    hit.iter().for_each(|(run, crcs)| leaf.put(*run, crcs, &mut Vec::new()));
                }
            }
        }
        Record::Copy { group, object, chunk, leaf, .. } => {
            if let Some(held) = leaves.get_mut(&LeafKey { group: *group, object: *object, chunk: *chunk }) {
                *held = Leaf::decode(leaf).map_err(|e| format!("a leaf does not decode: {e}"))?;
            }
        }
        Record::DropChunk { group, object, chunk } => {
            if let Some(held) = leaves.get_mut(&LeafKey { group: *group, object: *object, chunk: *chunk }) {
                *held = Leaf::default();
            }
        }
        _ => {}
    }
    Ok(())
}

/// Adds a run, joined to the one before where it goes on from there.
fn push(out: &mut Vec<Located>, next: Located) {
    if let Some(last) = out.last_mut() {
        let blocks = u64::from(last.range.count);
        let follows = match (last.held, next.held) {
            (Held::Data { place: a, is_intact: x }, Held::Data { place: b, is_intact: y }) => {
                a.plus(blocks) == b && x == y
            }
            (Held::Damaged { place: Some(a) }, Held::Damaged { place: Some(b) }) => a.plus(blocks) == b,
            (a, b) => a == b,
        };
        let is_same = (last.group, last.object, last.version) == (next.group, next.object, next.version);
        if is_same && follows && last.range.end() == next.range.first {
            last.range = BlockRange::new(last.range.first, last.range.count + next.range.count);
            return;
        }
    }
    out.push(next);
}

const _: () = assert!(CHUNK_BLOCKS <= u8::MAX as u32, "a part of a chunk is counted in a byte");
