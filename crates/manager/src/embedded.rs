//! The store in a file of this machine, on redb: for fabrics with one manager.
//!
//! It owns the file. One table, and the map is one value under one key, so that a commit is one transaction:
//!
//! ```text
//! offset size field (little-endian)
//!      0    4 format   FORMAT
//!      4    8 version  of the map, at least 1
//!     12    4 crc      CRC-32C of bytes 0..12 and the map
//!     16      map      JSON
//! ```
//! The checksum is there because the engine verifies its pages only after a crash, and a flipped digit in the map
//! would still be a map.
//!
//! Beside it, in tables of their own that an older program leaves alone, the journal: events by number, and since when
//! there are which troubles, each value with a checksum in front (CRC-32C of the rest, little-endian). It is for
//! people: what cannot be read of it is left out, and keeps no manager from starting. How far each drive has come is
//! a part of it that may be lost too, and is beside the map under a key of its own.

use crate::{Journal, MapStore, StoreError};
use redb::{
    Database, DatabaseError, ReadOnlyDatabase, ReadableDatabase, ReadableTable, ReadableTableMetadata,
    StorageError, TableDefinition, TableError, WriteTransaction,
};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use weft_types::MapVersion;
use weft_types::limits::EVENTS_MAX;
use weft_wire::{crc32c, crc32c_of_all};

/// The version of the value's bytes.
const FORMAT: u32 = 1;

/// Bytes in front of the map.
const HEADER_BYTES: usize = 16;

const TABLE: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("weft-manager");

const KEY: &str = "map";

const EVENTS: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("weft-manager-events");

const NOTES: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("weft-manager-notes");

const TROUBLES: &str = "troubles";

/// Bytes in front of each value of the journal.
const SEAL_BYTES: usize = 4;

/// Where it is how far each drive has come: in the map's table.
const COMMITS_KEY: &str = "note";

/// The first bytes of every redb file (redb, `docs/design.md`, "Database header").
const ENGINE_MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// The store in a file. The file is locked while this value lives.
pub struct EmbeddedStore {
    path: PathBuf,
    database: Database,
}

impl EmbeddedStore {
    /// Opens the store, or makes an empty one where there is no file; the folder must exist.
    ///
    /// # Errors
    /// Those of [`EmbeddedStore::open`], but [`StoreError::Missing`].
    pub fn open_or_make(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref();
        match fs::exists(path) {
            Ok(true) => {}
            Ok(false) => make(path)?,
            Err(source) => return Err(io_error("look for", path, source)),
        }
        Self::open(path)
    }

    /// Opens the store that is there.
    ///
    /// # Errors
    /// [`StoreError::Missing`] if there is no file. If the file is in use, damaged, foreign, of a newer
    /// format, or the operating system refuses.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref().to_owned();
        match fs::exists(&path) {
            Ok(true) => check_magic(&path)?,
            Ok(false) => return Err(StoreError::Missing { place: path.display().to_string() }),
            Err(source) => return Err(io_error("look for", &path, source)),
        }
        guard(&path, || {
            let mut database = Database::open(&path).map_err(|e| open_error(&path, e))?;
            // Every page is read and compared with its checksum: the store is small, and it is read once.
            let is_whole = database.check_integrity().map_err(|e| open_error(&path, e))?;
            if !is_whole {
                let cause = "its pages do not match their checksums".to_owned();
                return Err(StoreError::Corrupt { place: path.display().to_string(), cause });
            }
            let store = EmbeddedStore { path: path.clone(), database };
            store.read()?;
            Ok(store)
        })
    }

    /// Whether a process has the store open. The file is not changed, also where it is damaged: it may be
    /// all that is left of a fabric.
    pub fn is_in_use(path: impl AsRef<Path>) -> bool {
        let path = path.as_ref();
        let opened = guard(path, || ReadOnlyDatabase::open(path).map_err(|e| open_error(path, e)));
        matches!(opened, Err(StoreError::Locked { .. }))
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn failed(&self, action: &'static str, error: impl Into<redb::Error>) -> StoreError {
        match error.into() {
            redb::Error::Corrupted(cause) => StoreError::Corrupt { place: self.place(), cause },
            error => StoreError::Io { action, place: self.place(), source: Box::new(error) },
        }
    }

    fn read(&self) -> Result<Option<(MapVersion, Vec<u8>)>, StoreError> {
        let failed = |e: redb::Error| self.failed("read", e);
        let transaction = self.database.begin_read().map_err(|e| failed(e.into()))?;
        let table = match transaction.open_table(TABLE) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => {
                return Err(StoreError::Foreign { place: self.place(), cause: "it has other tables".into() });
            }
            Err(error) => return Err(failed(error.into())),
        };
        let Some(value) = table.get(KEY).map_err(|e| failed(e.into()))? else { return Ok(None) };
        self.decode(value.value()).map(Some)
    }

    fn read_journal(&self) -> Result<Journal, StoreError> {
        let failed = |e: redb::Error| self.failed("read", e);
        let transaction = self.database.begin_read().map_err(|e| failed(e.into()))?;
        let mut journal = Journal::default();
        // A store that nothing was written down in has none of these tables.
        match transaction.open_table(EVENTS) {
            Ok(table) => {
                for entry in table.iter().map_err(|e| failed(e.into()))? {
                    let (number, value) = entry.map_err(|e| failed(e.into()))?;
                    journal.events.extend(unsealed(value.value()).map(|event| (number.value(), event)));
                }
            }
            Err(TableError::TableDoesNotExist(_)) => {}
            Err(error) => return Err(failed(error.into())),
        }
        match transaction.open_table(NOTES) {
            Ok(table) => {
                let value = table.get(TROUBLES).map_err(|e| failed(e.into()))?;
                journal.troubles = value.and_then(|value| unsealed(value.value()));
            }
            Err(TableError::TableDoesNotExist(_)) => {}
            Err(error) => return Err(failed(error.into())),
        }
        let table = transaction.open_table(TABLE).map_err(|e| failed(e.into()))?;
        if let Some(value) = table.get(COMMITS_KEY).map_err(|e| failed(e.into()))? {
            journal.commits = unsealed(value.value());
            if journal.commits.is_none() {
                tracing::warn!("how far drives had come cannot be read: it does not match its checksum");
            }
        }
        Ok(journal)
    }

    fn decode(&self, value: &[u8]) -> Result<(MapVersion, Vec<u8>), StoreError> {
        let corrupt = |cause: String| StoreError::Corrupt { place: self.place(), cause };
        if value.len() < HEADER_BYTES {
            return Err(corrupt(format!(
                "a value of {} bytes, at least {HEADER_BYTES} expected",
                value.len()
            )));
        }
        let (header, map) = value.split_at(HEADER_BYTES);
        let format = u32::from_le_bytes(header[..4].try_into().expect("4 bytes"));
        let version = u64::from_le_bytes(header[4..12].try_into().expect("8 bytes"));
        let found = u32::from_le_bytes(header[12..].try_into().expect("4 bytes"));
        let expected = checksum(&header[..12], map);
        if found != expected {
            return Err(corrupt(format!("checksum {found:08x}, expected {expected:08x}")));
        }
        if format > FORMAT {
            return Err(StoreError::Newer { place: self.place(), found: format, known: FORMAT });
        }
        Ok((MapVersion(version), map.to_vec()))
    }
}

impl MapStore for EmbeddedStore {
    fn load(&self) -> Result<Option<(MapVersion, Vec<u8>)>, StoreError> {
        guard(&self.path, || self.read())
    }

    fn load_journal(&self) -> Result<Journal, StoreError> {
        guard(&self.path, || self.read_journal())
    }

    fn write_down(&self, journal: &Journal) -> Result<(), StoreError> {
        let failed = |e: redb::Error| self.failed("write", e);
        let transaction = self.database.begin_write().map_err(|e| failed(e.into()))?;
        write_journal(&transaction, journal).map_err(failed)?;
        transaction.commit().map_err(|e| failed(e.into()))
    }

    fn commit_with(
        &self,
        expected: MapVersion,
        new: MapVersion,
        bytes: &[u8],
        journal: &Journal,
    ) -> Result<(), StoreError> {
        let failed = |e: redb::Error| self.failed("write", e);
        let mut value = Vec::with_capacity(HEADER_BYTES + bytes.len());
        value.extend_from_slice(&FORMAT.to_le_bytes());
        value.extend_from_slice(&new.0.to_le_bytes());
        value.extend_from_slice(&checksum(&value, bytes).to_le_bytes());
        value.extend_from_slice(bytes);
        let transaction = self.database.begin_write().map_err(|e| failed(e.into()))?;
        {
            let mut table = transaction.open_table(TABLE).map_err(|e| failed(e.into()))?;
            let found = match table.get(KEY).map_err(|e| failed(e.into()))? {
                Some(value) => self.decode(value.value())?.0,
                None => MapVersion(0),
            };
            if found != expected {
                return Err(StoreError::Conflict { expected, found });
            }
            table.insert(KEY, value.as_slice()).map_err(|e| failed(e.into()))?;
        }
        if !journal.is_empty() {
            write_journal(&transaction, journal).map_err(failed)?;
        }
        // The engine's default durability: on the device when this returns.
        transaction.commit().map_err(|e| failed(e.into()))
    }
}

/// Adds to the journal, and drops the oldest events beyond those that are kept.
fn write_journal(transaction: &WriteTransaction, journal: &Journal) -> Result<(), redb::Error> {
    if !journal.events.is_empty() {
        let mut table = transaction.open_table(EVENTS)?;
        for (number, event) in &journal.events {
            table.insert(number, sealed(event).as_slice())?;
        }
        while table.len()? > EVENTS_MAX as u64 {
            table.pop_first()?;
        }
    }
    if let Some(troubles) = &journal.troubles {
        transaction.open_table(NOTES)?.insert(TROUBLES, sealed(troubles).as_slice())?;
    }
    if let Some(commits) = &journal.commits {
        transaction.open_table(TABLE)?.insert(COMMITS_KEY, sealed(commits).as_slice())?;
    }
    Ok(())
}

fn sealed(value: &[u8]) -> Vec<u8> {
    [&crc32c(value).to_le_bytes()[..], value].concat()
}

/// The value behind its checksum, if it is the one that was written.
fn unsealed(bytes: &[u8]) -> Option<Vec<u8>> {
    let (seal, value) = bytes.split_at_checked(SEAL_BYTES)?;
    (seal == crc32c(value).to_le_bytes()).then(|| value.to_vec())
}

fn checksum(header: &[u8], map: &[u8]) -> u32 {
    crc32c_of_all([header, map])
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Io { action, place: path.display().to_string(), source: Box::new(source) }
}

fn open_error(path: &Path, error: DatabaseError) -> StoreError {
    let place = path.display().to_string();
    match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => {
            StoreError::Locked { place }
        }
        DatabaseError::Storage(StorageError::Corrupted(cause)) => StoreError::Corrupt { place, cause },
        // The magic was right, so a file that ends too early or has other nonsense was a store once.
        DatabaseError::Storage(StorageError::Io(e))
            if matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            StoreError::Corrupt { place, cause: e.to_string() }
        }
        DatabaseError::UpgradeRequired(found) => {
            let cause = format!("its engine's file format {found} is not one that this program reads");
            StoreError::Foreign { place, cause }
        }
        other => StoreError::Io { action: "open", place, source: Box::new(other) },
    }
}

/// Runs an engine's read of bytes that may be damaged. The engine checks most of them and panics on the rest;
/// to the operator both are the same.
fn guard<T>(path: &Path, read: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    // What the closure shares is dropped unused after a panic: the store is not opened.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).unwrap_or_else(|_| {
        let cause = "the engine found pages that contradict each other".to_owned();
        Err(StoreError::Corrupt { place: path.display().to_string(), cause })
    })
}

/// Looks whether the file is one of the engine's at all. An empty one is not: a store is made under another name
/// first, so an empty file was a store that something has truncated.
fn check_magic(path: &Path) -> Result<(), StoreError> {
    let mut magic = Vec::new();
    let file = File::open(path).map_err(|e| io_error("open", path, e))?;
    file.take(ENGINE_MAGIC.len() as u64).read_to_end(&mut magic).map_err(|e| io_error("read", path, e))?;
    let place = path.display().to_string();
    match magic {
        magic if magic == ENGINE_MAGIC => Ok(()),
        magic if magic.is_empty() => Err(StoreError::Corrupt { place, cause: "it is empty".into() }),
        _ => Err(StoreError::Foreign { place, cause: "it begins with other bytes".into() }),
    }
}

/// Makes an empty store under another name and then gives it its own: a crash leaves no half of a store behind.
fn make(path: &Path) -> Result<(), StoreError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error("remove", &new, error)),
        _ => {}
    }
    let failed = |e: redb::Error| StoreError::Io {
        action: "make",
        place: new.display().to_string(),
        source: Box::new(e),
    };
    {
        let database = Database::create(&new).map_err(|e| open_error(&new, e))?;
        let transaction = database.begin_write().map_err(|e| failed(e.into()))?;
        transaction.open_table(TABLE).map_err(|e| failed(e.into()))?;
        transaction.commit().map_err(|e| failed(e.into()))?;
    }
    // A hard link never replaces a file that another manager has made meanwhile, as a rename would; but not every
    // file system has hard links.
    let mut placed = fs::hard_link(&new, path);
    if placed
        .as_ref()
        .is_err_and(|e| matches!(e.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied))
    {
        return fs::rename(&new, path)
            .and_then(|()| sync_folder(path))
            .map_err(|e| io_error("make", path, e));
    }
    if placed.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::AlreadyExists) {
        placed = Ok(());
    }
    let removed = fs::remove_file(&new);
    placed.map_err(|e| io_error("make", path, e))?;
    removed.map_err(|e| io_error("remove", &new, e))?;
    sync_folder(path).map_err(|e| io_error("make durable", path, e))
}

/// Makes the file's name durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, SeekFrom, Write};

    /// A folder that is removed when it is dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("weft-manager-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).expect("the folder is new");
            Folder(path)
        }

        fn file(&self) -> PathBuf {
            self.0.join("map.redb")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn filled(folder: &Folder) {
        let store = EmbeddedStore::open_or_make(folder.file()).expect("it is made");
        store.commit(MapVersion(0), MapVersion(1), b"the first").expect("it is empty");
        store.commit(MapVersion(1), MapVersion(2), b"the second").expect("version 1 is there");
    }

    #[test]
    fn what_was_committed_is_there_after_opening_again() {
        let folder = Folder::new("again");
        assert!(
            EmbeddedStore::open_or_make(folder.file()).expect("made").load().expect("readable").is_none()
        );
        filled(&folder);
        let store = EmbeddedStore::open(folder.file()).expect("it opens");
        assert_eq!(store.load().expect("readable"), Some((MapVersion(2), b"the second".to_vec())));
        let late = store.commit(MapVersion(1), MapVersion(2), b"late");
        assert!(matches!(late, Err(StoreError::Conflict { found: MapVersion(2), .. })));
        assert_eq!(store.load().expect("readable"), Some((MapVersion(2), b"the second".to_vec())));
        assert_eq!(fs::read_dir(&folder.0).expect("a folder").count(), 1, "no other file is left behind");
    }

    #[test]
    fn the_journal_is_kept_in_order_bounded_and_apart_from_the_map() {
        let folder = Folder::new("journal");
        filled(&folder);
        let store = EmbeddedStore::open(folder.file()).expect("it opens");
        assert_eq!(store.load_journal().expect("readable"), Journal::default(), "an older store has none");
        let event = |n: u64| (n, format!("event {n}").into_bytes());
        let first = Journal { events: (1..=EVENTS_MAX as u64).map(event).collect(), ..Journal::default() };
        store.write_down(&first).expect("writable");
        let second = Journal {
            events: vec![event(9001), event(9002)],
            troubles: Some(b"since then".to_vec()),
            commits: Some(b"far".to_vec()),
        };
        store.commit_with(MapVersion(2), MapVersion(3), b"the third", &second).expect("in order");
        let late = store.commit_with(MapVersion(2), MapVersion(3), b"late", &first);
        assert!(late.is_err(), "neither the map nor the journal is written");
        drop(store);
        let store = EmbeddedStore::open(folder.file()).expect("it opens");
        assert_eq!(store.load().expect("readable"), Some((MapVersion(3), b"the third".to_vec())));
        let journal = store.load_journal().expect("readable");
        let numbers: Vec<u64> = journal.events.iter().map(|(n, _)| *n).collect();
        assert_eq!(numbers, (3..=EVENTS_MAX as u64).chain([9001, 9002]).collect::<Vec<u64>>());
        assert_eq!(journal.events[0].1, b"event 3");
        assert_eq!(journal.troubles.as_deref(), Some(&b"since then"[..]));
        assert_eq!(journal.commits.as_deref(), Some(&b"far"[..]));
        store.keep_note(b"farther").expect("writable");
        assert_eq!(store.note().expect("readable").as_deref(), Some(&b"farther"[..]));
        let found = store.load_journal().expect("readable");
        assert_eq!(found, Journal { commits: Some(b"farther".to_vec()), ..journal });
    }

    #[test]
    fn what_is_damaged_in_the_journal_is_left_out() {
        let folder = Folder::new("torn");
        filled(&folder);
        let store = EmbeddedStore::open(folder.file()).expect("it opens");
        let transaction = store.database.begin_write().expect("a transaction");
        {
            let mut table = transaction.open_table(EVENTS).expect("a table");
            for (number, value) in [(1, sealed(b"good")), (2, b"nonsense".to_vec()), (3, b"x".to_vec())] {
                table.insert(number, value.as_slice()).expect("writable");
            }
            let mut table = transaction.open_table(TABLE).expect("the table");
            table.insert("note", b"nonsense".as_slice()).expect("writable");
        }
        transaction.commit().expect("committed");
        let journal = store.load_journal().expect("readable");
        assert_eq!((&journal.events[..], journal.commits), (&[(1, b"good".to_vec())][..], None));
        assert_eq!(store.load().expect("readable").map(|(version, _)| version), Some(MapVersion(2)));
    }

    /// A manager that is killed leaves the file as it is at that moment.
    #[test]
    fn a_store_that_was_not_closed_holds_every_commit() {
        let folder = Folder::new("killed");
        let store = EmbeddedStore::open_or_make(folder.file()).expect("it is made");
        for version in 0..20u64 {
            let map = vec![version as u8; 5000 * version as usize];
            store.commit(MapVersion(version), MapVersion(version + 1), &map).expect("in order");
            let copy = folder.0.join("copy.redb");
            fs::copy(folder.file(), &copy).expect("readable");
            let found = EmbeddedStore::open(&copy).expect("it opens").load().expect("readable");
            assert_eq!(found, Some((MapVersion(version + 1), map)));
            fs::remove_file(&copy).expect("removable");
        }
    }

    #[test]
    fn two_managers_cannot_use_one_store() {
        let folder = Folder::new("locked");
        let _first = EmbeddedStore::open_or_make(folder.file()).expect("it is made");
        let second = EmbeddedStore::open(folder.file());
        assert!(matches!(second.err(), Some(StoreError::Locked { .. })));
        assert!(EmbeddedStore::is_in_use(folder.file()));
    }

    #[test]
    fn whether_a_store_is_in_use_is_seen_without_changing_it() {
        let folder = Folder::new("untouched");
        filled(&folder);
        let sound = fs::read(folder.file()).expect("readable");
        let mut damaged = sound.clone();
        damaged[4096..].fill(0x5a);
        for content in [sound, damaged, b"other bytes".to_vec(), Vec::new()] {
            fs::write(folder.file(), &content).expect("writable");
            assert!(!EmbeddedStore::is_in_use(folder.file()));
            assert!(fs::read(folder.file()).expect("readable") == content);
        }
    }

    #[test]
    fn what_is_no_store_is_refused_with_a_hint() {
        let folder = Folder::new("foreign");
        fs::write(folder.file(), b"these are the minutes of our last meeting").expect("writable");
        let error = EmbeddedStore::open(folder.file()).err().expect("refused");
        assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
        fs::write(folder.file(), b"").expect("writable");
        let error = EmbeddedStore::open(folder.file()).err().expect("refused");
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        assert!(error.hint().expect("a hint").contains("weft fabric recover"));
        fs::remove_file(folder.file()).expect("removable");
        let other: TableDefinition<'_, &str, &str> = TableDefinition::new("other");
        let database = Database::create(folder.file()).expect("made");
        let transaction = database.begin_write().expect("a transaction");
        transaction.open_table(other).expect("a table");
        transaction.commit().expect("committed");
        drop(database);
        let error = EmbeddedStore::open(folder.file()).err().expect("refused");
        assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
    }

    #[test]
    fn a_newer_format_is_refused() {
        let folder = Folder::new("newer");
        filled(&folder);
        let mut value = [2u32.to_le_bytes().to_vec(), 9u64.to_le_bytes().to_vec()].concat();
        value.extend_from_slice(&checksum(&value, b"x").to_le_bytes());
        value.push(b'x');
        {
            let database = Database::open(folder.file()).expect("it opens");
            let transaction = database.begin_write().expect("a transaction");
            transaction.open_table(TABLE).expect("the table").insert(KEY, value.as_slice()).expect("written");
            transaction.commit().expect("committed");
        }
        let error = EmbeddedStore::open(folder.file()).err().expect("refused");
        assert!(matches!(error, StoreError::Newer { found: 2, known: 1, .. }), "{error}");
    }

    /// The file has many pages that hold nothing, so not every flipped bit can be noticed; but none may bring
    /// back another map, or a panic.
    #[test]
    fn damage_never_passes_for_another_map() {
        let folder = Folder::new("damage");
        filled(&folder);
        let good = fs::read(folder.file()).expect("readable");
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let mut noticed = 0;
        let in_use: Vec<usize> = (0..good.len()).filter(|&at| good[at] != 0).collect();
        let step = (in_use.len() / 300).max(1);
        for &at in in_use.iter().step_by(step) {
            let mut file = fs::OpenOptions::new().write(true).open(folder.file()).expect("writable");
            file.set_len(good.len() as u64).expect("resizable");
            file.write_all(&good).expect("writable");
            file.seek(SeekFrom::Start(at as u64)).expect("seekable");
            file.write_all(&[good[at] ^ 0x10]).expect("writable");
            drop(file);
            match EmbeddedStore::open(folder.file()).and_then(|s| s.load()) {
                Ok(Some((version, map))) => {
                    // The engine may go back to its other commit slot, which holds the map before.
                    let whole = [(MapVersion(2), &b"the second"[..]), (MapVersion(1), &b"the first"[..])];
                    assert!(whole.contains(&(version, &map[..])), "byte {at}: {version}");
                }
                Ok(None) => {}
                Err(_) => noticed += 1,
            }
        }
        std::panic::set_hook(hook);
        assert!(noticed > 0, "some damage is noticed");
    }
}
