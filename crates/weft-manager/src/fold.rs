//! Folding: the base of the map in a store catches up with the deltas, which are removed then.
//!
//! It owns which chunks the base has, which of them are behind, and what is written next. It never touches a
//! store.

use crate::records::{
    ChunkStart, chunk_key, chunks_of, delta_key, folded_key, folded_value, folding_key, folding_value,
    parts_range,
};
use crate::store::Transaction;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use weft_types::{Delta, FabricMap, MapVersion, PieceKey};

/// Deltas after which they are folded.
const DELTAS_FOLDED_FROM: usize = 256;

/// Bytes of deltas after which they are folded.
const DELTA_BYTES_FOLDED_FROM: usize = 4 << 20;

/// Chunks that are rewritten in one transaction: with 64 KiB each, a mebibyte.
pub(crate) const CHUNKS_PER_STEP: usize = 16;

/// Bytes of a chunk below which it is joined with the one in front of it.
const CHUNK_BYTES_MIN: usize = 16 << 10;

/// Bytes that two chunks have at most that are joined: less than a chunk may have, so that it is not soon
/// divided.
const CHUNK_BYTES_JOINED_MAX: usize = 48 << 10;

/// What was committed since the base was brought up to date.
#[derive(Default)]
struct Behind {
    deltas: usize,
    bytes: usize,
    /// Pieces that changed.
    keys: BTreeSet<PieceKey>,
    /// Nonces of deltas that are in parts.
    in_parts: BTreeSet<u64>,
}

/// A fold that is under way.
struct Folding {
    /// The version that the base will have.
    to: MapVersion,
    /// The map of that version.
    map: FabricMap,
    /// Chunks that are to be rewritten.
    chunks: BTreeSet<ChunkStart>,
    in_parts: BTreeSet<u64>,
    /// What the step does that was given out last.
    given: Option<Given>,
    /// Steps that are done.
    steps: u64,
}

/// What a step does.
enum Given {
    /// These chunks are up to date, and these are there then, with their bytes.
    Chunks { done: Vec<ChunkStart>, there: Chunks },
    /// The base is up to date.
    Folded,
}

/// Bytes of each chunk. A piece is in the last chunk that begins at or before its number.
type Chunks = BTreeMap<ChunkStart, usize>;

/// The base of a map, and how far it is behind.
pub(crate) struct Base {
    folded: MapVersion,
    /// What `folded` must be.
    folded_value: Vec<u8>,
    /// What `folding` must be: a late copy of any step but the next one finds another value.
    folding_value: Option<Vec<u8>>,
    chunks: Chunks,
    behind: Behind,
    folding: Option<Folding>,
}

impl Base {
    /// A base of this version, without chunks, with the values of `folded` and `folding`.
    pub(crate) fn at(folded: MapVersion, folded_value: Vec<u8>, folding_value: Option<Vec<u8>>) -> Base {
        let (chunks, behind) = (Chunks::new(), Behind::default());
        Base { folded, folded_value, folding_value, chunks, behind, folding: None }
    }

    /// A chunk is there.
    pub(crate) fn add_chunk(&mut self, start: ChunkStart, bytes: usize) {
        self.chunks.insert(start, bytes);
    }

    /// A delta is in the store, so long, perhaps in parts with this nonce.
    pub(crate) fn note(&mut self, delta: &Delta, bytes: usize, in_parts: Option<u64>) {
        self.behind.deltas += 1;
        self.behind.bytes += bytes;
        self.behind
            .keys
            .extend(delta.put.iter().map(|piece| piece.key()).chain(delta.removed.iter().copied()));
        self.behind.in_parts.extend(in_parts);
    }

    /// Parts with these nonces are in the store, and are not needed once the base is up to date.
    pub(crate) fn note_parts(&mut self, nonces: impl Iterator<Item = u64>) {
        self.behind.in_parts.extend(nonces);
    }

    /// What is to be written next, if anything is; the same again until [`Base::step_done`]. A fold goes to
    /// the end with the map with which it began: `map` must be durable, and have all that was noted.
    pub(crate) fn next_step(&mut self, map: &FabricMap) -> Option<Transaction> {
        let is_due = self.behind.deltas >= DELTAS_FOLDED_FROM || self.behind.bytes >= DELTA_BYTES_FOLDED_FROM;
        if self.folding.is_none() && is_due {
            let behind = std::mem::take(&mut self.behind);
            let chunks =
                behind.keys.iter().map(|key| chunk_of(&self.chunks, (key.kind(), key.number()))).collect();
            let (to, map) = (map.version, map.clone());
            self.folding =
                Some(Folding { to, map, chunks, in_parts: behind.in_parts, given: None, steps: 0 });
        }
        let folding = self.folding.as_mut()?;
        // A late copy of an older step would bring back a chunk without what a later one has joined to it.
        let compares = vec![
            (folded_key(), Some(self.folded_value.clone())),
            (folding_key(), self.folding_value.clone()),
        ];
        let puts = vec![(folding_key(), folding_value(folding.to, folding.steps + 1))];
        let mut step = Transaction { compares, puts, ..Transaction::default() };
        if folding.chunks.is_empty() {
            step.removes.push((delta_key(MapVersion(0)), delta_key(MapVersion(folding.to.0 + 1))));
            step.removes.extend(folding.in_parts.iter().map(|nonce| parts_range(*nonce)));
            step.puts.push((folded_key(), folded_value(folding.to)));
            folding.given = Some(Given::Folded);
            return Some(step);
        }
        let done: Vec<ChunkStart> = folding.chunks.iter().copied().take(CHUNKS_PER_STEP).collect();
        let (mut there, mut written) = (self.chunks.clone(), BTreeMap::new());
        for start in &done {
            // One in front of it may have taken it in.
            let start = chunk_of(&there, *start);
            rewrite(&folding.map, start, &mut there, &mut written);
        }
        for (start, value) in written {
            let key = chunk_key(start);
            match value {
                Some(value) => step.puts.push((key, value)),
                None => step.removes.push((key.clone(), format!("{key}\0"))),
            }
        }
        folding.given = Some(Given::Chunks { done, there });
        Some(step)
    }

    /// The step that was given out last is durable.
    ///
    /// # Panics
    /// If none was given out.
    pub(crate) fn step_done(&mut self) {
        let folding = self.folding.as_mut().expect("a fold is under way");
        folding.steps += 1;
        self.folding_value = Some(folding_value(folding.to, folding.steps));
        match folding.given.take().expect("a step was given out") {
            Given::Chunks { done, there } => {
                folding.chunks.retain(|start| !done.contains(start));
                self.chunks = there;
            }
            Given::Folded => {
                (self.folded, self.folded_value) = (folding.to, folded_value(folding.to));
                self.folding = None;
            }
        }
    }

    /// The version of the base.
    #[cfg(test)]
    pub(crate) fn folded(&self) -> MapVersion {
        self.folded
    }
}

/// The chunk in which a piece is, or would be.
fn chunk_of(chunks: &Chunks, piece: ChunkStart) -> ChunkStart {
    chunks.range((piece.0, 0)..=piece).next_back().map_or((piece.0, 0), |(start, _)| *start)
}

/// Writes a chunk as it is in the map: divided if it is too long, joined with the one in front of it if it is
/// too short, and gone if it has no pieces.
fn rewrite(
    map: &FabricMap,
    start: ChunkStart,
    there: &mut Chunks,
    written: &mut BTreeMap<ChunkStart, Option<Vec<u8>>>,
) {
    let (kind, mut first) = start;
    let end = there.range((Bound::Excluded(start), Bound::Included((kind, u128::MAX)))).next();
    let end = end.map_or(Bound::Unbounded, |((_, number), _)| Bound::Excluded(*number));
    let mut made = chunks_of(kind, first, &map.pieces_of(kind, (Bound::Included(first), end)));
    let before = there.range((kind, 0)..start).next_back().map(|(start, bytes)| (*start, *bytes));
    if let (Some((before, bytes)), true) = (before, made.len() <= 1) {
        let own = made.first().map_or(0, |(_, value)| value.len());
        if own < CHUNK_BYTES_MIN && own + bytes <= CHUNK_BYTES_JOINED_MAX {
            first = before.1;
            made = chunks_of(kind, first, &map.pieces_of(kind, (Bound::Included(first), end)));
        }
    }
    let was: Vec<ChunkStart> = there.range((kind, first)..=start).map(|(start, _)| *start).collect();
    for gone in was {
        there.remove(&gone);
        written.insert(gone, None);
    }
    for (start, value) in made {
        there.insert(start, value.len());
        written.insert(start, Some(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemStore;
    use crate::led_store::{Decided, LedStore};
    use crate::records::tests::group_of;
    use crate::records::{load_map, put_map};
    use crate::store::{Journal, KeyStore, at_once};
    use std::rc::Rc;
    use weft_types::{FabricId, Group, GroupId};
    use weft_wire::pieces::encode_delta;

    /// A group of some 300 bytes, so that few thousands are many chunks.
    fn group(id: u64, epoch: u64) -> Group {
        group_of(39, id, epoch)
    }

    /// Commits versions of a map with many groups, of which some are added, changed and removed.
    fn grow(map: &mut FabricMap, seed: &mut u64, changes: usize) {
        for _ in 0..changes {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let id = (*seed >> 33) % 4_500;
            match (*seed >> 60) % 4 {
                0 => drop(map.groups.remove(&GroupId(id))),
                _ => drop(map.groups.insert(GroupId(id), group(id, *seed >> 40))),
            }
        }
        map.version = MapVersion(map.version.0 + 1);
    }

    /// A fold that dies before or after any of its writes, and one that goes on with what is there, lead to
    /// the same map.
    #[test]
    fn a_fold_may_die_at_any_write() {
        let store = MemStore::new();
        let mut map = FabricMap::empty(FabricId(1));
        (0..4_500).for_each(|id| drop(map.groups.insert(GroupId(id), group(id, 1))));
        at_once(put_map(&store, &map)).expect("it is empty");
        let mut seed = 1;
        for round in 0..2 {
            let mut base = crate::records::base_in(&store);
            let taken = at_once(LedStore::take_over(Box::new(store.clone()), round)).expect("it works");
            let (records, ..) = taken.expect("there is a map");
            for n in 0..DELTAS_FOLDED_FROM {
                assert!(base.next_step(&map).is_none(), "after {n} deltas");
                let old = map.clone();
                grow(&mut map, &mut seed, if round == 1 { 40 } else { 5 });
                let delta = map.delta_from(&old);
                base.note(&delta, 100, None);
                let encoded = encode_delta(&delta);
                let decided = [Decided { delta, encoded, map: Rc::new(map.clone()) }];
                at_once(records.commit(&decided, &Journal::default())).expect("nobody else leads");
            }
            let (mut steps, mut done) = (0, Vec::new());
            while let Some(step) = base.next_step(&map) {
                // Dead before, and after: what is loaded is the newest, and the fold can be begun again from
                // there.
                assert_eq!(
                    at_once(load_map(&store)).expect("sound").as_ref(),
                    Some(&map),
                    "round {round}, step {steps}"
                );
                finishes(&store.copy(), &map);
                assert!(at_once(store.write(step.clone())).expect("writable"));
                finishes(&store.copy(), &map);
                base.step_done();
                steps += 1;
                // A late copy of any of them is refused, also while the fold goes on.
                done.push(step);
                for step in &done {
                    assert!(!at_once(store.write(step.clone())).expect("writable"));
                }
            }
            assert!(steps > 2, "{steps}");
            assert_eq!(base.folded(), map.version);
            assert_eq!(at_once(store.read(&["delta/", "part/"])).expect("readable"), vec![]);
            let found = crate::records::base_in(&store);
            assert_eq!(found.chunks, base.chunks, "what is known of the chunks is what is there");
        }
        assert_eq!(at_once(load_map(&store)).expect("sound"), Some(map));
    }

    /// Another process loads what is there and folds it.
    fn finishes(store: &MemStore, map: &FabricMap) {
        let mut base = crate::records::base_in(store);
        while let Some(step) = base.next_step(map) {
            assert!(at_once(store.write(step.clone())).expect("writable"));
            base.step_done();
        }
        assert_eq!(at_once(load_map(store)).expect("sound").as_ref(), Some(map));
        assert_eq!(base.folded(), map.version);
    }

    #[test]
    fn chunks_stay_within_their_bounds() {
        let store = MemStore::new();
        let mut map = FabricMap::empty(FabricId(1));
        at_once(put_map(&store, &map)).expect("it is empty");
        let mut base = crate::records::base_in(&store);
        for wanted in [3_000, 10, 1_500, 0, 700] {
            let old = map.clone();
            map.groups.retain(|id, _| id.0 < wanted);
            (0..wanted).for_each(|id| drop(map.groups.insert(GroupId(id), group(id, wanted))));
            map.version = MapVersion(map.version.0 + 1);
            at_once(put_map(&store, &map)).expect("nobody else commits");
            base.note(&map.delta_from(&old), DELTA_BYTES_FOLDED_FROM, None);
            while let Some(step) = base.next_step(&map) {
                assert!(at_once(store.write(step.clone())).expect("writable"));
                base.step_done();
            }
            let chunks = at_once(store.read(&["base/group/"])).expect("readable");
            assert!(chunks.iter().all(|(_, value)| value.len() <= (64 << 10) + 4));
            let bytes: usize = chunks.iter().map(|(_, value)| value.len()).sum();
            assert!(chunks.len() <= 1 + bytes / (8 << 10), "{} chunks of {bytes} bytes", chunks.len());
            assert_eq!(at_once(load_map(&store)).expect("sound").as_ref(), Some(&map));
        }
    }
}
