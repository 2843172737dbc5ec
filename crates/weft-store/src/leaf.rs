//! A leaf of the block map: what one chunk of an object holds, block by block. Pure data: it never does
//! I/O, and it does not judge versions, it only records what it is told.
//!
//! In RAM and on the drive a leaf is a list of runs: blocks that were written together (one version, places
//! that follow each other) are one run, and the checksums of all data blocks stand behind, one each. A
//! block that no run covers was never written.

use crate::error::Fault;
use crate::layer::Layer;
use crate::region::{Place, PlaceRun};
use weft_types::limits::CHUNK_BLOCKS;
use weft_types::{ChunkIndex, GroupId, ObjectId, ObjectRange, Version};
use weft_wire::{DecodeError, Decoder, Encoder};

/// Where a leaf stands in the block map. Its order is the map's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafKey {
    /// The group.
    pub group: GroupId,
    /// The object.
    pub object: ObjectId,
    /// The chunk of the object.
    pub chunk: ChunkIndex,
}

impl LeafKey {
    /// Bytes that name a chunk.
    pub const CHUNK_BYTES: usize = 26;

    /// Bytes of an encoded key: the chunk, and the layer of the leaf.
    pub const BYTES: usize = Self::CHUNK_BYTES + Layer::BYTES;

    /// The first key that a group's leaf can have.
    pub fn first_of(group: GroupId) -> LeafKey {
        LeafKey { group, object: ObjectId::FIRST, chunk: ChunkIndex(0) }
    }

    /// The first key of a run of objects in a group, and the first one behind them. `None`: they are the last of all.
    pub fn bounds(group: GroupId, objects: ObjectRange) -> (LeafKey, Option<LeafKey>) {
        let behind = match objects.last.following() {
            Some(object) => Some(LeafKey { group, object, chunk: ChunkIndex(0) }),
            None => group.0.checked_add(1).map(|next| LeafKey::first_of(GroupId(next))),
        };
        (LeafKey { group, object: objects.first, chunk: ChunkIndex(0) }, behind)
    }

    /// The key as bytes, big-endian, so that byte order is key order. Every leaf is a live one.
    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..Self::CHUNK_BYTES].copy_from_slice(&self.chunk_bytes());
        bytes[Self::CHUNK_BYTES..].copy_from_slice(&Layer::Live.to_bytes());
        bytes
    }

    /// The key with these bytes.
    ///
    /// # Errors
    /// `Unknown` if it names another layer than the live one: a newer program has put the leaf there.
    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<LeafKey, Fault> {
        let (chunk, layer) = bytes.split_first_chunk().expect("a key is longer than a chunk's name");
        let layer: [u8; Layer::BYTES] = layer.try_into().expect("the rest is the layer");
        match Layer::from_bytes(layer) {
            Some(Layer::Live) => Ok(LeafKey::from_chunk_bytes(chunk)),
            Some(other) => Err(Fault::Unknown(format!("a leaf of layer {other:?}"))),
            None => Err(Fault::Unknown(format!("a leaf of layer {layer:02x?}"))),
        }
    }

    /// The bytes that name the chunk, in key order.
    fn chunk_bytes(self) -> [u8; Self::CHUNK_BYTES] {
        let mut bytes = [0; Self::CHUNK_BYTES];
        bytes[..8].copy_from_slice(&self.group.0.to_be_bytes());
        bytes[8..24].copy_from_slice(&self.object.to_bytes());
        bytes[24..].copy_from_slice(&self.chunk.0.to_be_bytes());
        bytes
    }

    /// The key of the chunk with this name.
    pub(crate) fn from_chunk_bytes(bytes: &[u8; Self::CHUNK_BYTES]) -> LeafKey {
        LeafKey {
            group: GroupId(u64::from_be_bytes(bytes[..8].try_into().expect("8 bytes"))),
            object: ObjectId::from_bytes(bytes[8..24].try_into().expect("16 bytes")),
            chunk: ChunkIndex(u16::from_be_bytes(bytes[24..].try_into().expect("2 bytes"))),
        }
    }

    /// The key that follows this one directly, or `None` at the end of all keys.
    pub(crate) fn next(self) -> Option<LeafKey> {
        let mut bytes = self.chunk_bytes();
        for byte in bytes.iter_mut().rev() {
            let (sum, overflow) = byte.overflowing_add(1);
            *byte = sum;
            if !overflow {
                return Some(LeafKey::from_chunk_bytes(&bytes));
            }
        }
        None
    }
}

/// What a run of blocks holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Discarded or zeroed at the version: a tombstone.
    Zero = 0,
    /// Data at places that follow each other.
    Data = 1,
    /// Data that could not be read back; its place stays taken until it is overwritten, [`Place::NONE`] if it
    /// came as damaged from a peer.
    Damaged = 2,
}

impl Kind {
    fn has_crcs(self) -> bool {
        self != Kind::Zero
    }
}

/// Blocks of a chunk that were put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The version of all of them.
    pub version: Version,
    /// The place of the first; those of the others follow. [`Place::NONE`] for tombstones.
    pub place: Place,
    /// The first block, counted from the chunk's start.
    pub first: u8,
    /// How many blocks, 1 to 128.
    pub count: u8,
    /// What they hold.
    pub kind: Kind,
}

impl Run {
    fn end(&self) -> u8 {
        self.first + self.count
    }

    /// Whether it is a tombstone that counts as never written (R7).
    pub(crate) fn is_tombstone_below(&self, floor: Version) -> bool {
        self.kind == Kind::Zero && self.version < floor
    }

    fn crc_count(&self) -> usize {
        if self.kind.has_crcs() { usize::from(self.count) } else { 0 }
    }

    /// The part of the run from `first` up to `end`, both inside it.
    fn part(&self, first: u8, end: u8) -> Run {
        Run { first, count: end - first, place: self.place_of(first), ..*self }
    }

    fn place_of(&self, block: u8) -> Place {
        if self.place == Place::NONE { Place::NONE } else { self.place.plus(u64::from(block - self.first)) }
    }

    /// The places that it takes.
    pub fn places(&self) -> Option<PlaceRun> {
        (self.place != Place::NONE).then_some(PlaceRun { place: self.place, count: u32::from(self.count) })
    }

    fn continues(&self, next: &Run) -> bool {
        self.end() == next.first
            && self.kind == next.kind
            && self.version == next.version
            && match self.kind {
                Kind::Zero => true,
                _ if self.place == Place::NONE => next.place == Place::NONE,
                _ => self.place.plus(u64::from(self.count)) == next.place,
            }
    }
}

/// What a leaf says of a run of blocks: a run or part of one, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The first block, counted from the chunk's start.
    pub first: u8,
    /// How many blocks.
    pub count: u8,
    /// The version; [`Version::ZERO`] where nothing was ever written.
    pub version: Version,
    /// What they hold; `None` where nothing was ever written.
    pub kind: Option<Kind>,
    /// The place of the first, if they have places.
    pub place: Place,
    /// The checksums, if they have any.
    pub crcs: &'a [u32],
}

impl Piece<'_> {
    /// The version that counts: a tombstone below `floor` is as good as never written (R7).
    pub(crate) fn version_above(&self, floor: Version) -> Version {
        let is_forgotten = self.kind == Some(Kind::Zero) && self.version < floor;
        if is_forgotten { Version::ZERO } else { self.version }
    }
}

/// The most runs that a leaf has, and bytes of one run and of one checksum as encoded.
const RUNS_MAX: usize = CHUNK_BLOCKS as usize;
const RUN_BYTES: usize = 19;

/// Where the runs of an encoded leaf begin.
const RUNS_AT: usize = 2;

/// Bytes of the largest encoded leaf: every block a run of its own.
pub const LEAF_BYTES_MAX: usize = RUNS_AT + RUNS_MAX * (RUN_BYTES + 4);

/// What one chunk holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaf {
    runs: Vec<Run>,
    crcs: Vec<u32>,
    /// A bit for each block at which a run begins, and one for each block that has a checksum: where to look in the
    /// lists follows from counting bits. After random writes there is a run for each block, and looking through them
    /// would cost more than all else that a write does here.
    starts: u128,
    summed: u128,
}

const _: () = assert!(RUNS_MAX == u128::BITS as usize, "a bit for each block");

/// The bits of blocks `first..end`.
fn bits(first: u8, end: u8) -> u128 {
    let below = |block: u8| if block >= 128 { u128::MAX } else { (1 << block) - 1 };
    below(end) & !below(first)
}

impl Leaf {
    /// Whether nothing was ever written to the chunk (or all of it was removed).
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Puts `count` blocks from `first`; the places of what was there are appended to `freed`. `crcs` has one
    /// per block for data, and for damage; none for a tombstone.
    pub fn put(&mut self, run: Run, crcs: &[u32], freed: &mut Vec<PlaceRun>) {
        assert!(run.count > 0 && usize::from(run.first) + usize::from(run.count) <= RUNS_MAX, "{run:?}");
        assert_eq!(crcs.len(), run.crc_count(), "a checksum for each block that has one: {run:?}");
        let (at, crc_at) = self.position(run.first);
        if let Some(old) = self.runs.get_mut(at)
            && old.first == run.first
            && old.count == run.count
            && old.kind.has_crcs() == run.kind.has_crcs()
        {
            freed.extend(old.places());
            *old = run;
            self.crcs[crc_at..crc_at + crcs.len()].copy_from_slice(crcs);
        } else {
            self.cut(at, crc_at, run.first, run.end(), Some((run, crcs)), freed);
        }
        self.merge_around(at);
    }

    /// What to put to mark data of a version in `count` blocks from `first` as damaged; what has another version is
    /// left out, and the places stay taken.
    pub fn as_damaged(&self, first: u8, count: u8, version: Version) -> Vec<(Run, Vec<u32>)> {
        let is_hit = |p: &Piece<'_>| p.version == version && p.kind == Some(Kind::Data);
        let damaged = |p: Piece<'_>| {
            let (place, first, count) = (p.place, p.first, p.count);
            (Run { version, place, first, count, kind: Kind::Damaged }, p.crcs.to_vec())
        };
        self.pieces(first, count).filter(is_hit).map(damaged).collect()
    }

    /// Makes `count` blocks from `first` never written; their places are appended to `freed`.
    pub fn remove(&mut self, first: u8, count: u8, freed: &mut Vec<PlaceRun>) {
        let (at, crc_at) = self.position(first);
        self.cut(at, crc_at, first, first + count, None, freed);
    }

    /// Whether a tombstone of a version below `floor` is there: it counts as never written (R7).
    pub(crate) fn has_tombstone_below(&self, floor: Version) -> bool {
        floor != Version::ZERO && self.runs.iter().any(|run| run.is_tombstone_below(floor))
    }

    /// Whether nothing is there but tombstones below `floor`, if so much.
    pub(crate) fn is_empty_above(&self, floor: Version) -> bool {
        self.runs.iter().all(|run| run.is_tombstone_below(floor))
    }

    /// Takes the tombstones below `floor` out; returns of how many blocks.
    pub(crate) fn forget(&mut self, floor: Version) -> u64 {
        let mut blocks = 0;
        self.runs.retain(|run| {
            let is_forgotten = run.is_tombstone_below(floor);
            if is_forgotten {
                blocks += u64::from(run.count);
                self.starts &= !(1 << run.first);
            }
            !is_forgotten
        });
        blocks
    }

    /// The index of the first run that ends after `block`, and how many checksums stand before its own.
    fn position(&self, block: u8) -> (usize, usize) {
        let begun = (self.starts & bits(0, block + 1)).count_ones() as usize;
        let at = match begun.checked_sub(1) {
            Some(last) if self.runs[last].end() > block => last,
            _ => begun,
        };
        let crc_at = match self.runs.get(at) {
            Some(run) => (self.summed & bits(0, run.first)).count_ones() as usize,
            None => self.crcs.len(),
        };
        (at, crc_at)
    }

    /// Replaces blocks `first..end` by `new`, keeping what the touched runs have outside of them.
    fn cut(
        &mut self,
        at: usize,
        crc_at: usize,
        first: u8,
        end: u8,
        new: Option<(Run, &[u32])>,
        freed: &mut Vec<PlaceRun>,
    ) {
        let (mut left, mut right) = (None, None);
        let (mut crc_low, mut crc_high, mut stop) = (crc_at, crc_at, at);
        while let Some(run) = self.runs.get(stop).filter(|r| r.first < end) {
            crc_high += run.crc_count();
            if run.first < first {
                let part = run.part(run.first, first);
                crc_low += part.crc_count();
                left = Some(part);
            }
            if run.end() > end {
                let part = run.part(end, run.end());
                crc_high -= part.crc_count();
                right = Some(part);
            }
            freed.extend(run.part(run.first.max(first), run.end().min(end)).places());
            stop += 1;
        }
        let (run, crcs) = new.map_or((None, &[][..]), |(r, c)| (Some(r), c));
        self.starts &= !bits(first, end);
        self.summed &= !bits(first, end);
        for part in run.iter().chain(&right) {
            self.starts |= 1 << part.first;
        }
        if run.is_some_and(|run| run.kind.has_crcs()) {
            self.summed |= bits(first, end);
        }
        self.runs.splice(at..stop, left.into_iter().chain(run).chain(right));
        self.crcs.splice(crc_low..crc_high, crcs.iter().copied());
    }

    /// Joins the runs next to the one at, or just behind, `at` where they continue each other.
    fn merge_around(&mut self, at: usize) {
        let mut i = at.saturating_sub(1);
        let mut stop = at + 2;
        while i + 1 < self.runs.len() && i < stop {
            let next = self.runs[i + 1];
            if self.runs[i].continues(&next) {
                self.runs[i].count += next.count;
                self.runs.remove(i + 1);
                self.starts &= !(1 << next.first);
                stop -= 1;
            } else {
                i += 1;
            }
        }
    }

    /// All runs in order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// What the leaf says of `count` blocks from `first`, in order and without gaps.
    pub fn pieces(&self, first: u8, count: u8) -> Pieces<'_> {
        let (index, crc_at) = self.position(first);
        Pieces { leaf: self, index, crc_at, at: first, end: first + count }
    }

    /// Every place that the leaf takes.
    pub fn places(&self) -> impl Iterator<Item = PlaceRun> + '_ {
        self.runs.iter().filter_map(Run::places)
    }

    /// Sums up what the chunk holds: equal content gives an equal digest, wherever it lies and however its
    /// runs are cut. Damage counts as such, whatever its checksum was. Tombstones below `floor` count as
    /// never written (R7).
    pub fn digest(&self, floor: Version) -> u64 {
        let mut sum = 0u64;
        let mut crcs = self.crcs.iter();
        for run in self.runs.iter().filter(|run| !run.is_tombstone_below(floor)) {
            for block in run.first..run.end() {
                let crc = if run.kind.has_crcs() { *crcs.next().expect("one per block") } else { 0 };
                let crc = if run.kind == Kind::Data { crc } else { 0 };
                let what = u64::from(crc) << 32 | u64::from(block) << 8 | run.kind as u64;
                sum = sum.wrapping_add(mix(mix(what) ^ run.version.to_bits()));
            }
        }
        sum
    }

    /// Appends the leaf: number of runs, one zero byte, the runs, the checksums.
    pub(crate) fn encode(&self, e: &mut Encoder) {
        e.u8(self.runs.len() as u8).u8(0);
        for run in &self.runs {
            e.u8(run.first).u8(run.count).u8(run.kind as u8);
            e.u64(run.version.to_bits()).u64(run.place.0);
        }
        for crc in &self.crcs {
            e.u32(*crc);
        }
    }

    /// Bytes that [`Leaf::encode`] appends.
    pub(crate) fn encoded_len(&self) -> usize {
        2 + self.runs.len() * RUN_BYTES + 4 * self.crcs.len()
    }

    /// Reads a leaf from exactly these bytes.
    ///
    /// # Errors
    /// If the bytes are too few or too many, or the runs are impossible.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Leaf, DecodeError> {
        let mut d = Decoder::new(bytes);
        let count = usize::from(d.u8()?);
        d.u8()?;
        let mut leaf = Leaf { runs: Vec::with_capacity(count), ..Leaf::default() };
        let (mut end, mut crcs) = (0u8, 0);
        for _ in 0..count {
            let (first, count, kind) = (d.u8()?, d.u8()?, d.u8()?);
            let kind = match kind {
                0 => Kind::Zero,
                1 => Kind::Data,
                2 => Kind::Damaged,
                n => return Err(DecodeError::Invalid { field: "kind", value: u64::from(n) }),
            };
            let run = Run {
                version: Version::from_bits(d.u64()?),
                place: Place::decode(&mut d)?,
                first,
                count,
                kind,
            };
            let is_inside = first >= end
                && count > 0
                && usize::from(first) + usize::from(count) <= RUNS_MAX
                && (kind == Kind::Data) <= (run.place != Place::NONE)
                && (kind == Kind::Zero) <= (run.place == Place::NONE);
            if !is_inside {
                return Err(DecodeError::Invalid { field: "run", value: u64::from(first) });
            }
            end = run.end();
            crcs += run.crc_count();
            leaf.starts |= 1 << first;
            if run.kind.has_crcs() {
                leaf.summed |= bits(first, end);
            }
            leaf.runs.push(run);
        }
        leaf.crcs.reserve_exact(crcs);
        for _ in 0..crcs {
            leaf.crcs.push(d.u32()?);
        }
        d.finish()?;
        Ok(leaf)
    }

    /// The newest tombstone of a leaf.
    pub(crate) fn newest_tombstone(&self) -> Option<Version> {
        self.runs.iter().filter(|run| run.kind == Kind::Zero).map(|run| run.version).max()
    }

    /// The newest version of a leaf.
    pub(crate) fn newest(&self) -> Version {
        self.runs.iter().map(|run| run.version).max().unwrap_or(Version::ZERO)
    }

    /// The newest version of an encoded leaf; `None` if the bytes end before its runs do.
    pub(crate) fn newest_of(bytes: &[u8]) -> Option<Version> {
        let runs = bytes.get(RUNS_AT..RUNS_AT + usize::from(*bytes.first()?) * RUN_BYTES)?;
        let version =
            |run: &[u8]| Version::from_bits(u64::from_le_bytes(*run[3..].first_chunk().expect("8 bytes")));
        Some(runs.chunks_exact(RUN_BYTES).map(version).max().unwrap_or(Version::ZERO))
    }

    /// Bytes of RAM behind the leaf.
    pub(crate) fn ram_bytes(&self) -> usize {
        self.runs.capacity() * size_of::<Run>() + self.crcs.capacity() * 4 + size_of::<Leaf>() + 16
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every input bit changes half of the output bits.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// See [`Leaf::pieces`].
pub struct Pieces<'a> {
    leaf: &'a Leaf,
    index: usize,
    crc_at: usize,
    at: u8,
    end: u8,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        if self.at >= self.end {
            return None;
        }
        let first = self.at;
        let run = self.leaf.runs.get(self.index).filter(|r| r.first < self.end);
        let Some(run) = run.filter(|r| r.first <= first) else {
            self.at = run.map_or(self.end, |r| r.first);
            let count = self.at - first;
            let (version, place) = (Version::ZERO, Place::NONE);
            return Some(Piece { first, count, version, kind: None, place, crcs: &[] });
        };
        let stop = run.end().min(self.end);
        let count = stop - first;
        let crcs = if run.kind.has_crcs() {
            let from = self.crc_at + usize::from(first - run.first);
            &self.leaf.crcs[from..from + usize::from(count)]
        } else {
            &[]
        };
        let piece = Piece {
            first,
            count,
            version: run.version,
            kind: Some(run.kind),
            place: run.place_of(first),
            crcs,
        };
        self.crc_at += run.crc_count();
        self.index += 1;
        self.at = stop;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a block holds, the long way: version, kind, place, checksum.
    type Model = Vec<Option<(u64, Kind, u64, u32)>>;

    fn read_out(leaf: &Leaf) -> Model {
        let mut out = Vec::new();
        for p in leaf.pieces(0, 128) {
            for i in 0..p.count {
                out.push(p.kind.map(|k| {
                    let place = if p.place == Place::NONE { 0 } else { p.place.0 + u64::from(i) };
                    let crc = p.crcs.get(usize::from(i)).copied().unwrap_or(0);
                    (p.version.to_bits(), k, place, crc)
                }));
            }
        }
        out
    }

    fn kinds() -> impl Strategy<Value = Option<Kind>> {
        prop_oneof![
            Just(Some(Kind::Data)),
            Just(Some(Kind::Data)),
            Just(Some(Kind::Zero)),
            Just(Some(Kind::Damaged)),
            Just(None)
        ]
    }

    proptest! {
        #[test]
        fn a_leaf_is_what_a_list_of_blocks_is(
            steps in prop::collection::vec((0u8..128, 1u8..40, kinds(), 1u64..4, prop::bool::ANY), 1..60)
        ) {
            let mut model: Model = vec![None; 128];
            let mut leaf = Leaf::default();
            let (mut next_place, mut taken) = (1000u64, std::collections::BTreeSet::new());
            for (first, count, kind, version, gap) in steps {
                let count = count.min(128 - first);
                let mut freed = Vec::new();
                next_place += u64::from(gap);
                if let Some(kind) = kind {
                    let place = if kind == Kind::Data { Place(next_place) } else { Place::NONE };
                    let crcs: Vec<u32> = (0..u32::from(count))
                        .map(|i| i + version as u32).take(if kind == Kind::Zero { 0 } else { 128 }).collect();
                    let version = Version::from_bits(version);
                    leaf.put(Run { version, place, first, count, kind }, &crcs, &mut freed);
                    for i in 0..count {
                        let place = if kind == Kind::Data { next_place + u64::from(i) } else { 0 };
                        let crc = crcs.get(usize::from(i)).copied().unwrap_or(0);
                        model[usize::from(first + i)] = Some((version.to_bits(), kind, place, crc));
                    }
                    if kind == Kind::Data {
                        taken.extend(next_place..next_place + u64::from(count));
                        next_place += u64::from(count);
                    }
                } else {
                    leaf.remove(first, count, &mut freed);
                    model[usize::from(first)..usize::from(first + count)].fill(None);
                }
                for run in freed {
                    for i in 0..u64::from(run.count) {
                        prop_assert!(taken.remove(&(run.place.0 + i)), "freed twice");
                    }
                }
                prop_assert_eq!(read_out(&leaf), model.clone());
            }
            let held: std::collections::BTreeSet<u64> =
                leaf.places().flat_map(|r| r.place.0..r.place.0 + u64::from(r.count)).collect();
            prop_assert_eq!(held, taken);
            let mut e = Encoder::default();
            leaf.encode(&mut e);
            prop_assert!(e.0.len() == leaf.encoded_len() && e.0.len() <= LEAF_BYTES_MAX);
            prop_assert_eq!(Leaf::newest_of(&e.0), Some(leaf.newest()));
            prop_assert_eq!(Leaf::newest_of(&e.0[..1]), None);
            prop_assert_eq!(Leaf::decode(&e.0).unwrap(), leaf);
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(0u8..4, 0..80)) {
            let _ = Leaf::decode(&bytes);
        }
    }

    #[test]
    fn equal_content_has_an_equal_digest_however_it_was_written() {
        let put = |leaf: &mut Leaf, first: u8, count: u8, place: u64, crcs: &[u32]| {
            let version = Version::from_bits(9);
            let run = Run { version, place: Place(place), first, count, kind: Kind::Data };
            leaf.put(run, crcs, &mut Vec::new());
        };
        let (mut one, mut two) = (Leaf::default(), Leaf::default());
        put(&mut one, 3, 2, 100, &[7, 8]);
        put(&mut two, 4, 1, 500, &[8]);
        put(&mut two, 3, 1, 900, &[7]);
        assert_eq!(one.digest(Version::ZERO), two.digest(Version::ZERO));
        assert_eq!(Leaf::default().digest(Version::ZERO), 0);
        put(&mut two, 3, 1, 900, &[6]);
        assert_ne!(one.digest(Version::ZERO), two.digest(Version::ZERO), "another checksum");
        let moved = Leaf { runs: vec![Run { first: 4, ..one.runs[0] }], ..one.clone() };
        assert_ne!(one.digest(Version::ZERO), moved.digest(Version::ZERO), "other blocks");
    }

    #[test]
    fn writes_that_follow_each_other_with_one_version_are_one_run() {
        let mut leaf = Leaf::default();
        for i in 0..128u8 {
            let run = Run {
                version: Version::from_bits(5),
                place: Place(1000 + u64::from(i)),
                first: i,
                count: 1,
                kind: Kind::Data,
            };
            leaf.put(run, &[u32::from(i)], &mut Vec::new());
        }
        assert_eq!(leaf.runs.len(), 1);
        assert_eq!(leaf.encoded_len(), 2 + 19 + 512);
    }
}
