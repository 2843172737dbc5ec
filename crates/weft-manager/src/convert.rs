//! A store of the first release: one document with the whole map, in a table of its own.
//!
//! It owns how such a store becomes one of today, in one transaction of the engine: as it was, or whole. The
//! old table stays, with a marker of a later format, so that a program of the first release refuses the store
//! instead of taking it for an empty one.
//!
//! The table `weft-manager` had the map under the key `map`, and how far drives had come under `note`:
//!
//! ```text
//! offset size field (little-endian)
//!      0    4 format   FORMAT
//!      4    8 version  of the map, at least 1
//!     12    4 crc      CRC-32C of bytes 0..12 and the map
//!     16      map      JSON
//! ```
//! Events were in `weft-manager-events` by number, troubles in `weft-manager-notes`, each value behind a
//! CRC-32C.

use crate::embedded::TABLE;
use crate::records::{base_of, journal_entries, unsealed};
use crate::store::{Journal, StoreError};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction};
use std::path::Path;
use weft_types::FabricMap;
use weft_wire::control::decode_map;
use weft_wire::{crc32c, crc32c_of_all};

/// The format of the first release.
const FORMAT: u32 = 1;

/// The format of the marker that is left in its place.
const FORMAT_GONE: u32 = 2;

/// Bytes in front of the map.
const HEADER_BYTES: usize = 16;

const OLD_TABLE: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("weft-manager");
const EVENTS: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("weft-manager-events");
const NOTES: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("weft-manager-notes");

const MAP_KEY: &str = "map";
const COMMITS_KEY: &str = "note";
const TROUBLES_KEY: &str = "troubles";

/// What a store of the first release holds: the map, none if none was ever committed, and the journal.
type Old = (Option<FabricMap>, Journal);

/// Makes a store of the first release one of today; leaves any other as it is. Durable when it returns.
///
/// # Errors
/// If the map cannot be read; nothing has changed then. If the store cannot be written.
pub(crate) fn convert(path: &Path, database: &Database) -> Result<(), StoreError> {
    let place = || path.display().to_string();
    let failed = |action: &'static str, e: redb::Error| match e {
        redb::Error::Corrupted(cause) => StoreError::Corrupt { place: place(), cause },
        e => StoreError::Io { action, place: place(), source: Box::new(e) },
    };
    let read = database.begin_read().map_err(|e| failed("read", e.into()))?;
    match (read.open_table(TABLE), read.open_table(OLD_TABLE)) {
        (Err(TableError::TableDoesNotExist(_)), Ok(_)) => {}
        // Whoever opens the tables next says what is wrong.
        _ => return Ok(()),
    }
    drop(read);
    let write = database.begin_write().map_err(|e| failed("convert", e.into()))?;
    let (map, journal) =
        read_old(&write).map_err(|e| failed("read", e))?.map_err(|refusal| match refusal {
            Refusal::Damaged(cause) => StoreError::Corrupt { place: place(), cause },
            Refusal::Newer(found) => StoreError::Newer { place: place(), found, known: FORMAT },
        })?;
    let version = map.as_ref().map(|map| map.version);
    write_new(&write, map.as_ref(), &journal).map_err(|e| failed("convert", e))?;
    write.commit().map_err(|e| failed("convert", e.into()))?;
    tracing::info!(store = place(), map = ?version, "the store was converted from the first release's layout");
    Ok(())
}

/// Leaves a word for programs of the first release: this is a store, and a later one than theirs.
///
/// # Errors
/// If the store cannot be written.
pub(crate) fn write_marker(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    let mut marker = [&FORMAT_GONE.to_le_bytes()[..], &0u64.to_le_bytes()[..]].concat();
    marker.extend_from_slice(&crc32c(&marker).to_le_bytes());
    transaction.open_table(OLD_TABLE)?.insert(MAP_KEY, marker.as_slice())?;
    Ok(())
}

/// Why an old store is not converted.
enum Refusal {
    Damaged(String),
    Newer(u32),
}

fn read_old(transaction: &WriteTransaction) -> Result<Result<Old, Refusal>, redb::Error> {
    let mut journal = Journal::default();
    for entry in transaction.open_table(EVENTS)?.iter()? {
        let (number, value) = entry?;
        journal.events.extend(unsealed(value.value()).map(|event| (number.value(), event)));
    }
    let troubles = transaction.open_table(NOTES)?.get(TROUBLES_KEY)?.and_then(|v| unsealed(v.value()));
    journal.troubles = troubles;
    let table = transaction.open_table(OLD_TABLE)?;
    journal.commits = table.get(COMMITS_KEY)?.and_then(|value| unsealed(value.value()));
    let Some(value) = table.get(MAP_KEY)? else { return Ok(Ok((None, journal))) };
    Ok(read_value(value.value()).map(|map| (Some(map), journal)))
}

/// The map in the old value.
fn read_value(value: &[u8]) -> Result<FabricMap, Refusal> {
    let Some((header, map)) = value.split_at_checked(HEADER_BYTES) else {
        let cause = format!("a value of {} bytes, at least {HEADER_BYTES} expected", value.len());
        return Err(Refusal::Damaged(cause));
    };
    let format = u32::from_le_bytes(header[..4].try_into().expect("4 bytes"));
    let version = u64::from_le_bytes(header[4..12].try_into().expect("8 bytes"));
    let found = u32::from_le_bytes(header[12..].try_into().expect("4 bytes"));
    let expected = crc32c_of_all([&header[..12], map]);
    if found != expected {
        return Err(Refusal::Damaged(format!("checksum {found:08x}, expected {expected:08x}")));
    }
    if format > FORMAT {
        return Err(Refusal::Newer(format));
    }
    let map = decode_map(map).map_err(|e| Refusal::Damaged(format!("its map cannot be read: {e}")))?;
    match map.version.0 == version {
        true => Ok(map),
        false => Err(Refusal::Damaged(format!("version {} under the number {version}", map.version))),
    }
}

fn write_new(
    transaction: &WriteTransaction,
    map: Option<&FabricMap>,
    journal: &Journal,
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(TABLE)?;
    let entries = map.map(base_of).unwrap_or_default().into_iter().chain(journal_entries(journal));
    for (key, value) in entries {
        table.insert(key.as_str(), value.as_slice())?;
    }
    transaction.delete_table(EVENTS)?;
    transaction.delete_table(NOTES)?;
    transaction.open_table(OLD_TABLE)?.remove(COMMITS_KEY)?;
    write_marker(transaction)
}
