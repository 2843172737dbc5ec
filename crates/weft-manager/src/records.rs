//! The map and the journal as keys and values: one layout for every store.
//!
//! ```text
//! key              value                                             written
//! head             schema, fabric, version, next number, nonce      with each commit, compared
//! term             in which term somebody leads                     when somebody begins to lead
//! beat             that they still do: a number that rises          every fifth of a term, where the store is shared
//! delta/VERSION    what the commit of this version changed          with each commit
//! part/NONCE/N     a piece of a long delta                          before its delta, which names NONCE
//! base/KIND/FIRST  a chunk: pieces with numbers from FIRST on       by folding
//! folded           up to which version the base has everything      by folding, last
//! folding          which step of folding was the last               by folding, compared
//! event/N          one event                                        with a commit or by itself
//! troubles, seen   since when which trouble is there; how far drives have come
//! ```
//! Numbers in keys have a fixed width, so that keys are in the order of the numbers. Each value begins with a
//! CRC-32C of the rest (4 bytes, little-endian): a flipped digit in a document would still be a document.
//! `head`, `term`, `beat`, `folded` and `folding` are JSON. A delta's value:
//!
//! ```text
//! offset size field (little-endian)
//!      0    4 crc      CRC-32C of what follows
//!      4    8 nonce    of its commit: unique in this store
//!     12    4 parts    how many parts it is in; 0: it follows
//!     16      delta    `weft_wire::pieces::encode_delta`
//! ```
//! Order of writing: a part that no delta names was never there; a base without a `head` was never there;
//! deltas are removed in the transaction that raises `folded`, after the chunks. So a crash between any two
//! transactions leaves a store that loads as the newest commit: the deltas above `folded` lead there from any
//! mixture of older and newer chunks.

use crate::fold::Base;
#[cfg(test)]
use crate::store::at_once;
use crate::store::{Entry, Journal, KeyStore, StoreError, Transaction};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weft_types::limits::{DELTA_PART_BYTES, DELTA_WHOLE_BYTES_MAX, EVENTS_MAX};
use weft_types::{Delta, FabricId, FabricMap, MapVersion, Piece, PieceKind, PieceSet};
use weft_wire::pieces::{decode_delta, decode_pieces, encode_delta, encode_pieces};
use weft_wire::{DecodeError, crc32c};

/// The version of the layout. The first one was one document in a table of redb: see `convert.rs`. A store
/// says 4 as long as sessions of its map have several lanes: managers of the release before sweep the first
/// one alone.
pub(crate) const SCHEMA: u32 = 4;

/// The version of a store that says 3 as long as nodes of its map have several targets: managers of the
/// release before that take a node for its first target.
const SCHEMA_OF_SEVERAL_TARGETS: u32 = 3;

/// The version of a store whose map the release before understands.
const SCHEMA_OF_FIRST_TARGETS: u32 = 2;

pub(crate) const HEAD: &str = "head";
pub(crate) const TERM: &str = "term";
pub(crate) const BEAT: &str = "beat";
const FOLDED: &str = "folded";
const FOLDING: &str = "folding";
const DELTA: &str = "delta/";
const PART: &str = "part/";
const BASE: &str = "base/";
const EVENT: &str = "event/";
const TROUBLES: &str = "troubles";
const SEEN: &str = "seen";

/// Bytes in front of each value.
const SEAL_BYTES: usize = 4;

/// Nonce and number of parts in front of a delta.
const DELTA_HEADER_BYTES: usize = 12;

/// Bytes of a chunk above which it is divided.
const CHUNK_BYTES_MAX: usize = 64 << 10;

/// Events are trimmed when their numbers pass a multiple of this.
const EVENTS_TRIMMED_EVERY: u64 = 64;

/// What names the newest version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    schema: u32,
    fabric: FabricId,
    version: MapVersion,
    next_id: u64,
    /// Of the commit that wrote it: two heads are never the same.
    nonce: u64,
}

/// Where a chunk begins: the kind of its pieces, and the lowest number that it may hold.
pub(crate) type ChunkStart = (PieceKind, u128);

/// What a store holds.
pub(crate) struct Stored {
    pub(crate) map: FabricMap,
    /// The value of `head`.
    pub(crate) head: Vec<u8>,
    nonce: u64,
    pub(crate) base: Base,
}

/// The map that a store holds; `None` where none was ever committed.
///
/// # Errors
/// If it cannot be read, is damaged, or was written by a newer program.
pub async fn load_map(store: &(impl KeyStore + ?Sized)) -> Result<Option<FabricMap>, StoreError> {
    Ok(load(store).await?.map(|stored| stored.map))
}

/// The map in these entries of a store; `None` if they have none.
///
/// # Errors
/// If they are damaged, or were written by a newer program.
pub(crate) fn map_in(
    place: &str,
    entries: &BTreeMap<String, Vec<u8>>,
) -> Result<Option<FabricMap>, StoreError> {
    Ok(stored_in(place, entries)?.map(|stored| stored.map))
}

/// The journal that a store holds, as far as it can be read: what is damaged is left out. Of events, the
/// newest [`EVENTS_MAX`].
///
/// # Errors
/// If the store cannot be read at all.
pub async fn load_journal(store: &(impl KeyStore + ?Sized)) -> Result<Journal, StoreError> {
    let mut journal = Journal::default();
    for (key, value) in store.read(&[EVENT, TROUBLES, SEEN]).await? {
        let Some(value) = unsealed(&value) else {
            tracing::warn!(key, "what was written down cannot be read: it does not match its checksum");
            continue;
        };
        match &key[..] {
            TROUBLES => journal.troubles = Some(value),
            SEEN => journal.commits = Some(value),
            key => {
                let number = key.strip_prefix(EVENT).and_then(|number| number.parse().ok());
                journal.events.extend(number.map(|number| (number, value)));
            }
        }
    }
    let surplus = journal.events.len().saturating_sub(EVENTS_MAX);
    journal.events.drain(..surplus);
    Ok(journal)
}

/// Writes something down in a store without a leader. Durable when it returns.
///
/// # Errors
/// If the store fails.
pub async fn put_journal(store: &(impl KeyStore + ?Sized), journal: &Journal) -> Result<(), StoreError> {
    let mut transaction = Transaction::default();
    journal.put_into(&mut transaction);
    store.write(transaction).await.map(drop)
}

/// Makes a store hold this map, whatever it held: for a store without a leader. Durable when it returns; a
/// crash on the way leaves what was there before.
///
/// # Errors
/// [`StoreError::Conflict`] if somebody commits meanwhile. If the store fails.
///
/// # Panics
/// If the store holds a map of another fabric.
pub async fn put_map(store: &(impl KeyStore + ?Sized), map: &FabricMap) -> Result<(), StoreError> {
    let Some(stored) = load(store).await? else {
        let absent = || vec![(HEAD.to_owned(), None)];
        let mut entries = base_of(map);
        let head = entries.pop().expect("the head is the last");
        // What is there without a head was never there.
        let removes = [BASE, DELTA, PART].map(|prefix| (prefix.to_owned(), end_of(prefix))).to_vec();
        let mut transactions = vec![Transaction { compares: absent(), removes, puts: Vec::new() }];
        for puts in entries.chunks(crate::fold::CHUNKS_PER_STEP) {
            transactions.push(Transaction {
                compares: absent(),
                puts: puts.to_vec(),
                ..Transaction::default()
            });
        }
        transactions.push(Transaction { compares: absent(), puts: vec![head], ..Transaction::default() });
        for transaction in transactions {
            if !store.write(transaction).await? {
                return Err(conflict(store, MapVersion(0)).await);
            }
        }
        return Ok(());
    };
    assert_eq!(stored.map.fabric, map.fabric, "a store stays with its fabric");
    let (delta, nonce) = (map.delta_from(&stored.map), stored.nonce.wrapping_add(1));
    let value = delta_value(nonce, 0, &encode_delta(&delta));
    let transaction = Transaction {
        compares: vec![(HEAD.into(), Some(stored.head))],
        puts: vec![(delta_key(delta.to), value), (HEAD.into(), head_of(map, nonce))],
        ..Transaction::default()
    };
    match store.write(transaction).await? {
        true => Ok(()),
        false => Err(conflict(store, stored.map.version).await),
    }
}

/// The error of one whose transaction was refused.
pub(crate) async fn conflict(store: &(impl KeyStore + ?Sized), expected: MapVersion) -> StoreError {
    match load_map(store).await {
        Ok(found) => StoreError::Conflict { expected, found: found.map_or(MapVersion(0), |m| m.version) },
        Err(error) => error,
    }
}

/// All entries of a store with this map and nothing else: chunks, then `folded`, then the head.
pub(crate) fn base_of(map: &FabricMap) -> Vec<Entry> {
    let kinds = PieceKind::ALL.into_iter();
    let mut entries: Vec<Entry> = kinds
        .flat_map(|kind| chunks_of(kind, 0, &map.pieces_of(kind, ..)))
        .map(|(start, value)| (chunk_key(start), value))
        .collect();
    entries.push((FOLDED.into(), folded_value(map.version)));
    entries.push((HEAD.into(), head_of(map, 0)));
    entries
}

/// Divides pieces of one kind into chunks with their values; the first one begins at `first`. No pieces are
/// no chunk.
pub(crate) fn chunks_of(kind: PieceKind, first: u128, pieces: &[Piece]) -> Vec<(ChunkStart, Vec<u8>)> {
    if pieces.is_empty() {
        return Vec::new();
    }
    let bytes = encode_pieces(pieces);
    if bytes.len() <= CHUNK_BYTES_MAX || pieces.len() == 1 {
        return vec![((kind, first), sealed(&bytes))];
    }
    let (low, high) = pieces.split_at(pieces.len() / 2);
    let mut chunks = chunks_of(kind, first, low);
    chunks.extend(chunks_of(kind, high[0].key().number(), high));
    chunks
}

/// Everything that a store holds of the map; `None` where there is no head.
pub(crate) async fn load(store: &(impl KeyStore + ?Sized)) -> Result<Option<Stored>, StoreError> {
    let entries = store.read(&[HEAD, FOLDED, FOLDING, BASE, DELTA, PART]).await?;
    stored_in(&store.place(), &entries.into_iter().collect())
}

fn stored_in(place: &str, entries: &BTreeMap<String, Vec<u8>>) -> Result<Option<Stored>, StoreError> {
    let Some(head_value) = entries.get(HEAD) else { return Ok(None) };
    let head = read_head(place, head_value)?;
    let corrupt = |cause: String| StoreError::Corrupt { place: place.to_owned(), cause };
    let folded_at = entries.get(FOLDED).ok_or_else(|| corrupt("it has a head and no base".into()))?;
    let folded: MapVersion = document(place, FOLDED, folded_at)?;
    // A base without deltas has the next number in its head; the others have it in each delta.
    let mut set = PieceSet::at(head.fabric, folded, head.next_id);
    let mut base = Base::at(folded, folded_at.clone(), entries.get(FOLDING).cloned());
    for (key, value) in entries.range(BASE.to_owned()..end_of(BASE)) {
        let start = chunk_of_key(key).ok_or_else(|| corrupt(format!("an unknown key {key}")))?;
        let pieces = decode_pieces(&unseal(place, key, value)?).map_err(|e| unreadable(place, key, &e))?;
        base.add_chunk(start, value.len());
        pieces.into_iter().for_each(|piece| set.put(piece));
    }
    for (key, value) in entries.range(delta_key(MapVersion(folded.0.saturating_add(1)))..end_of(DELTA)) {
        let bytes = read_delta(place, key, value, entries)?;
        let delta = decode_delta(&bytes).map_err(|e| unreadable(place, key, &e))?;
        base.note(&delta, bytes.len(), None);
        set.replay(delta).map_err(|e| corrupt(format!("{key}: {e}")))?;
    }
    let map = set.into_map().map_err(|e| corrupt(e.to_string()))?;
    // Parts without a delta are removed with those of the deltas.
    let nonces = entries.range(PART.to_owned()..end_of(PART)).filter_map(|(key, _)| nonce_of_part(key));
    base.note_parts(nonces);
    if (map.version, map.next_id) != (head.version, head.next_id) {
        return Err(corrupt(format!(
            "its newest change leads to {}, its head is at {}",
            map.version, head.version
        )));
    }
    Ok(Some(Stored { map, head: head_value.clone(), nonce: head.nonce, base }))
}

/// The base in a store that holds a map.
#[cfg(test)]
pub(crate) fn base_in(store: &impl KeyStore) -> Base {
    at_once(load(store)).expect("the store is sound").expect("it holds a map").base
}

/// Refuses a store that a newer program has written, without reading its map.
///
/// # Errors
/// [`StoreError::Newer`]; if its head cannot be read.
pub(crate) fn check_head(place: &str, entries: &[Entry]) -> Result<(), StoreError> {
    entries.iter().filter(|(key, _)| key == HEAD).try_for_each(|(_, value)| read_head(place, value).map(drop))
}

fn read_head(place: &str, value: &[u8]) -> Result<Head, StoreError> {
    #[derive(Deserialize)]
    struct Shape {
        schema: u32,
    }
    let shape: Shape = document(place, HEAD, value)?;
    if shape.schema > SCHEMA {
        return Err(StoreError::Newer { place: place.to_owned(), found: shape.schema, known: SCHEMA });
    }
    document(place, HEAD, value)
}

/// A delta's bytes, from its value or its parts.
fn read_delta(
    place: &str,
    key: &str,
    value: &[u8],
    entries: &BTreeMap<String, Vec<u8>>,
) -> Result<Vec<u8>, StoreError> {
    let corrupt = |cause: String| StoreError::Corrupt { place: place.to_owned(), cause };
    let value = unseal(place, key, value)?;
    let Some((header, bytes)) = value.split_at_checked(DELTA_HEADER_BYTES) else {
        return Err(corrupt(format!("{key} has {} bytes", value.len())));
    };
    let nonce = u64::from_le_bytes(header[..8].try_into().expect("8 bytes"));
    let parts = u32::from_le_bytes(header[8..].try_into().expect("4 bytes")) as usize;
    let mut bytes = bytes.to_vec();
    for number in 0..parts {
        let key = part_key(nonce, number);
        let part = entries.get(&key).ok_or_else(|| corrupt(format!("{key} is missing")))?;
        bytes.extend(unseal(place, &key, part)?);
    }
    Ok(bytes)
}

/// The entries of a store that has this written down.
pub(crate) fn journal_entries(journal: &Journal) -> Vec<Entry> {
    let mut transaction = Transaction::default();
    journal.put_into(&mut transaction);
    transaction.puts
}

impl Journal {
    pub(crate) fn put_into(&self, transaction: &mut Transaction) {
        for (number, event) in &self.events {
            transaction.puts.push((event_key(*number), sealed(event)));
        }
        let newest = self.events.last().map_or(0, |(number, _)| *number);
        if self.events.iter().any(|(number, _)| number % EVENTS_TRIMMED_EVERY == 0) {
            let kept_from = newest.saturating_sub(EVENTS_MAX as u64 - 1);
            transaction.removes.push((event_key(0), event_key(kept_from)));
        }
        for (key, value) in [(TROUBLES, &self.troubles), (SEEN, &self.commits)] {
            transaction.puts.extend(value.iter().map(|value| (key.to_owned(), sealed(value))));
        }
    }
}

/// The parts of a delta that is too long for one value; none of any other.
pub(crate) fn parts_of(encoded: &[u8]) -> Vec<&[u8]> {
    match encoded.len() > DELTA_WHOLE_BYTES_MAX {
        true => encoded.chunks(DELTA_PART_BYTES).collect(),
        false => Vec::new(),
    }
}

pub(crate) fn delta_value(nonce: u64, parts: usize, encoded: &[u8]) -> Vec<u8> {
    let parts = u32::try_from(parts).expect("a delta has few parts");
    sealed(&[&nonce.to_le_bytes()[..], &parts.to_le_bytes()[..], encoded].concat())
}

pub(crate) fn head_of(map: &FabricMap, nonce: u64) -> Vec<u8> {
    let FabricMap { fabric, version, next_id, .. } = *map;
    let schema = if map.sessions.values().any(|s| s.lanes() > 1) {
        SCHEMA
    } else if map.targets.len() > map.nodes.len() {
        SCHEMA_OF_SEVERAL_TARGETS
    } else {
        SCHEMA_OF_FIRST_TARGETS
    };
    sealed_document(&Head { schema, fabric, version, next_id, nonce })
}

/// Nonces are counted from here: microseconds in the upper bits leave room for 1024 commits in each.
pub(crate) fn first_nonce(clock_us: u64, term: u64) -> u64 {
    clock_us << 10 ^ term << 54
}

pub(crate) fn term_value(term: u64) -> Vec<u8> {
    sealed_document(&term)
}

pub(crate) fn folded_value(version: MapVersion) -> Vec<u8> {
    sealed_document(&version)
}

/// The key of `folded`.
pub(crate) fn folded_key() -> String {
    FOLDED.into()
}

/// The key of `folding`.
pub(crate) fn folding_key() -> String {
    FOLDING.into()
}

/// The value of `folding` after this step of the fold that leads to this version.
pub(crate) fn folding_value(to: MapVersion, step: u64) -> Vec<u8> {
    sealed_document(&(to, step))
}

pub(crate) fn delta_key(version: MapVersion) -> String {
    format!("{DELTA}{:020}", version.0)
}

pub(crate) fn part_key(nonce: u64, number: usize) -> String {
    format!("{PART}{nonce:016x}/{number:04}")
}

fn nonce_of_part(key: &str) -> Option<u64> {
    u64::from_str_radix(key.strip_prefix(PART)?.split_once('/')?.0, 16).ok()
}

/// The range of keys of the parts of one delta.
pub(crate) fn parts_range(nonce: u64) -> (String, String) {
    let prefix = format!("{PART}{nonce:016x}/");
    (prefix.clone(), end_of(&prefix))
}

pub(crate) fn chunk_key((kind, first): ChunkStart) -> String {
    format!("{BASE}{}/{first:032x}", kind.name())
}

fn chunk_of_key(key: &str) -> Option<ChunkStart> {
    let (kind, first) = key.strip_prefix(BASE)?.split_once('/')?;
    let kind = PieceKind::ALL.into_iter().find(|k| k.name() == kind)?;
    Some((kind, u128::from_str_radix(first, 16).ok()?))
}

fn event_key(number: u64) -> String {
    format!("{EVENT}{number:020}")
}

/// The first key behind all that begin with a prefix, which ends in a slash.
fn end_of(prefix: &str) -> String {
    let stem = prefix.strip_suffix('/').expect("prefixes end in a slash");
    // The character behind the slash.
    format!("{stem}0")
}

/// The version that a transaction makes the newest one, if it does.
pub(crate) fn version_of(puts: &[Entry]) -> Option<MapVersion> {
    let (_, value) = puts.iter().find(|(key, _)| key == HEAD)?;
    let head: Head = serde_json::from_slice(&unsealed(value)?).ok()?;
    Some(head.version)
}

/// How many commits are in a transaction.
pub(crate) fn commits_in(puts: &[Entry]) -> u64 {
    puts.iter().filter(|(key, _)| key.starts_with(DELTA)).count() as u64
}

/// The deltas in a transaction that are in one value.
pub(crate) fn deltas_in(puts: &[Entry]) -> Vec<Delta> {
    let values = puts.iter().filter(|(key, _)| key.starts_with(DELTA));
    values.filter_map(|(_, value)| decode_delta(unsealed(value)?.get(DELTA_HEADER_BYTES..)?).ok()).collect()
}

/// The events in a transaction.
pub(crate) fn events_in(puts: &[Entry]) -> Vec<&[u8]> {
    puts.iter().filter(|(key, _)| key.starts_with(EVENT)).filter_map(|(_, v)| v.get(SEAL_BYTES..)).collect()
}

pub(crate) fn sealed_document(value: &impl Serialize) -> Vec<u8> {
    sealed(&serde_json::to_vec(value).expect("it serialises"))
}

pub(crate) fn sealed(value: &[u8]) -> Vec<u8> {
    [&crc32c(value).to_le_bytes()[..], value].concat()
}

/// The value behind its checksum, if it is the one that was written.
pub(crate) fn unsealed(bytes: &[u8]) -> Option<Vec<u8>> {
    let (seal, value) = bytes.split_at_checked(SEAL_BYTES)?;
    (seal == crc32c(value).to_le_bytes()).then(|| value.to_vec())
}

fn unseal(place: &str, key: &str, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
    unsealed(bytes).ok_or_else(|| StoreError::Corrupt {
        place: place.to_owned(),
        cause: format!("{key} does not match its checksum"),
    })
}

/// Why a document of the map is refused: one of a later release is not damaged.
fn unreadable(place: &str, key: &str, error: &DecodeError) -> StoreError {
    let (place, cause) = (place.to_owned(), format!("{key}: {error}"));
    match error {
        DecodeError::Version { .. } | DecodeError::Features(_) => StoreError::NewerDocument { place, cause },
        _ => StoreError::Corrupt { place, cause },
    }
}

pub(crate) fn document<T: DeserializeOwned>(place: &str, key: &str, value: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(&unseal(place, key, value)?)
        .map_err(|e| StoreError::Corrupt { place: place.to_owned(), cause: format!("{key}: {e}") })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::MemStore;
    use crate::led_store::{Decided, LedStore};
    use std::rc::Rc;
    use weft_types::{DriveId, Epoch, Group, GroupId, NodeId, PoolId, Role, Slot, Target, TargetId};
    use weft_wire::pieces::Header;

    /// A group with so many members, all in-sync.
    pub(crate) fn group_of(members: u128, id: u64, epoch: u64) -> Group {
        let slot = |n: u128| Slot { drive: DriveId(n), role: Role::InSync, since: Epoch(1) };
        Group {
            id: GroupId(id),
            pool: PoolId(1),
            epoch: Epoch(epoch),
            slots: (1..=members).map(slot).collect(),
            floor: Default::default(),
        }
    }

    fn group(id: u64, epoch: u64) -> Group {
        group_of(3, id, epoch)
    }

    fn next(map: &FabricMap, groups: u64) -> FabricMap {
        let mut next = map.clone();
        (0..groups).for_each(|id| drop(next.groups.insert(GroupId(id), group(id, map.version.0))));
        next.version = MapVersion(map.version.0 + 1);
        next.next_id += 1;
        next
    }

    fn made() -> (MemStore, FabricMap) {
        let (store, map) = (MemStore::new(), FabricMap::empty(FabricId(1)));
        at_once(put_map(&store, &map)).expect("it is empty");
        (store, map)
    }

    fn led(store: &MemStore) -> LedStore {
        let taken = at_once(LedStore::take_over(Box::new(store.clone()), 7)).expect("it works");
        taken.expect("there is a map").0
    }

    fn commit(led: &LedStore, old: &FabricMap, new: &FabricMap) -> Result<(), StoreError> {
        let delta = new.delta_from(old);
        let journal = Journal { events: vec![(new.version.0, b"event".to_vec())], ..Journal::default() };
        let encoded = encode_delta(&delta);
        at_once(led.commit(&[Decided { delta, encoded, map: Rc::new(new.clone()) }], &journal))
    }

    #[test]
    fn a_commit_writes_what_has_changed() {
        let (store, map) = made();
        let many = next(&map, 2_000);
        let records = led(&store);
        commit(&records, &map, &many).expect("nobody else leads");
        let few = next(&many, 1);
        commit(&records, &many, &few).expect("nobody else leads");
        assert_eq!(at_once(load_map(&store)).expect("sound"), Some(few.clone()));
        let entries = at_once(store.read(&["head", "event/", &delta_key(few.version)])).expect("readable");
        let bytes: usize = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!(bytes < 1_500, "{bytes}");
        assert_eq!(at_once(load_journal(&store)).expect("readable").events.len(), 2);
    }

    #[test]
    fn a_store_says_that_nodes_have_several_targets_as_long_as_they_do() {
        let (store, map) = made();
        let schema = || {
            let entries = at_once(store.read(&["head"])).expect("readable");
            read_head("here", &entries[0].1).expect("it is a head").schema
        };
        assert_eq!(schema(), SCHEMA_OF_FIRST_TARGETS);
        let records = led(&store);
        let mut of_one = next(&map, 0);
        of_one.put_node(NodeId(3), "a".into(), "h:1".into());
        commit(&records, &map, &of_one).expect("nobody else leads");
        assert_eq!(schema(), SCHEMA_OF_FIRST_TARGETS);
        let mut of_two = next(&of_one, 0);
        let second = Target { id: TargetId(4), node: NodeId(3), index: 1, addr: "h:2".into() };
        of_two.targets.insert(second.id, second);
        commit(&records, &of_one, &of_two).expect("nobody else leads");
        assert_eq!(schema(), SCHEMA_OF_SEVERAL_TARGETS);
        let again = FabricMap { targets: of_one.targets.clone(), ..next(&of_two, 0) };
        commit(&records, &of_two, &again).expect("nobody else leads");
        assert_eq!(schema(), SCHEMA_OF_FIRST_TARGETS);
        assert_eq!(at_once(load_map(&store)).expect("sound"), Some(again));
    }

    /// A long change is written in parts. Before the delta that names them is there, nothing has changed.
    #[test]
    fn a_long_change_is_there_whole_or_not_at_all() {
        let (store, map) = made();
        let long = next(&map, 22_000);
        let mut seen = Vec::new();
        // The first write begins the term.
        for write in 2.. {
            let copy = store.copy();
            copy.break_at_write(write, false);
            let committed = commit(&led(&copy), &map, &long).is_ok();
            copy.set_broken(false);
            let found = at_once(load_map(&copy)).expect("sound").expect("there is one");
            assert_eq!(found, if committed { long.clone() } else { map.clone() });
            // Who leads next commits something else, and folds: the parts are gone, whether a delta named
            // them or not.
            let (records, end) = (led(&copy), next(&found, 0));
            let old = found.clone();
            commit(&records, &old, &end).expect("nobody else leads");
            let mut at = end;
            for _ in 0..260 {
                let later = next(&at, 1);
                commit(&records, &at, &later).expect("nobody else leads");
                at = later;
                at_once(records.fold(&at)).expect("nobody else leads");
            }
            while at_once(records.fold(&at)).expect("nobody else leads") {}
            assert_eq!(at_once(load_map(&copy)).expect("sound"), Some(at));
            assert_eq!(at_once(copy.read(&[PART])).expect("readable"), vec![]);
            seen.push(committed);
            if committed {
                break;
            }
        }
        assert!(seen.len() >= 4, "there are parts: {seen:?}");
    }

    /// It is refused, and not taken for damage: what helps against that would lose it.
    #[test]
    fn a_document_of_a_later_release_is_refused_as_such() {
        let (store, map) = made();
        let second = next(&map, 1);
        commit(&led(&store), &map, &second).expect("nobody else leads");
        let written = Header::WRITTEN;
        for header in [
            Header { version: written.version + 1, ..written },
            Header { must_understand: 1 << 31, ..written },
        ] {
            for (key, value) in at_once(store.read(&[BASE, DELTA])).expect("readable") {
                let mut value = unsealed(&value).expect("sound");
                let at = if key.starts_with(DELTA) { DELTA_HEADER_BYTES } else { 0 };
                value[at..at + Header::BYTES].copy_from_slice(&header.encode());
                let (copy, puts) = (store.copy(), vec![(key.clone(), sealed(&value))]);
                at_once(copy.write(Transaction { puts, ..Transaction::default() })).expect("writable");
                let found = at_once(load_map(&copy));
                assert!(matches!(found, Err(StoreError::NewerDocument { .. })), "{key}: {found:?}");
            }
        }
    }

    #[test]
    fn who_was_followed_writes_nothing_any_more() {
        let (store, map) = made();
        let former = led(&store);
        let second = next(&map, 1);
        commit(&former, &map, &second).expect("nobody else leads");
        let newest = led(&store);
        let before = at_once(store.read(&[""])).expect("readable");
        let refused = commit(&former, &second, &next(&second, 2));
        assert!(matches!(refused, Err(StoreError::Conflict { found, .. }) if found == second.version));
        let note = Journal { commits: Some(b"far".to_vec()), ..Journal::default() };
        assert!(at_once(former.write_down(&note)).is_err());
        assert_eq!(at_once(store.read(&[""])).expect("readable"), before);
        commit(&newest, &second, &next(&second, 3)).expect("it leads");
    }

    #[test]
    fn a_store_that_lacks_something_is_refused() {
        let (store, map) = made();
        let records = led(&store);
        let (second, third) = (next(&map, 1), next(&next(&map, 1), 2));
        commit(&records, &map, &second).expect("it leads");
        commit(&records, &second, &third).expect("it leads");
        for key in [delta_key(second.version), delta_key(third.version), FOLDED.into()] {
            let copy = store.copy();
            let removes = vec![(key.clone(), format!("{key}\0"))];
            at_once(copy.write(Transaction { removes, ..Transaction::default() })).expect("writable");
            assert!(matches!(at_once(load_map(&copy)), Err(StoreError::Corrupt { .. })), "without {key}");
        }
        for (key, value) in at_once(store.read(&[""])).expect("readable") {
            let copy = store.copy();
            let mut damaged = value.clone();
            damaged[value.len() / 2] ^= 1;
            let puts = vec![(key.clone(), damaged)];
            at_once(copy.write(Transaction { puts, ..Transaction::default() })).expect("writable");
            let found = at_once(load_map(&copy));
            let is_of_the_map = !key.starts_with(EVENT) && key != TERM;
            assert_eq!(found.is_err(), is_of_the_map, "{key}");
        }
        assert_eq!(at_once(load_map(&store)).expect("sound"), Some(third));
    }
}
