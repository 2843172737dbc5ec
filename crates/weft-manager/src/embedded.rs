//! The store in a file of this machine, on redb: for fabrics with one manager.
//!
//! It owns the file. All keys are in one table. What they mean is in `records.rs`; a store of the first
//! release, which had one document, is converted when it is opened (`convert.rs`).
//!
//! The engine verifies its pages only after a crash and when the store is opened; so each value has a
//! checksum of its own.

use crate::convert::{convert, write_marker};
use crate::records::check_head;
use crate::store::{Entry, Hold, Pending};
use crate::{KeyStore, StoreError, Transaction};
use redb::{
    Database, DatabaseError, ReadOnlyDatabase, ReadableDatabase, ReadableTable, StorageError,
    TableDefinition, TableError,
};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weft_rt::offload;

/// The table with all keys.
pub(crate) const TABLE: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("weft");

/// The first bytes of every redb file (redb, `docs/design.md`, "Database header").
const ENGINE_MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// The store in a file. The file is locked while this value lives, and until what was begun is done. What is
/// asked for is done on the executor's helper thread.
pub struct EmbeddedStore(Arc<Inner>);

struct Inner {
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
            convert(&path, &database)?;
            let inner = Inner { path: path.clone(), database };
            inner.read_keys(&["term"])?;
            check_head(&inner.place(), &inner.read_keys(&["head"])?)?;
            Ok(EmbeddedStore(Arc::new(inner)))
        })
    }

    /// Whether a process has the store open. The file is not changed, also where it is damaged: it may be
    /// all that is left of a fabric.
    pub fn is_in_use(path: impl AsRef<Path>) -> bool {
        let path = path.as_ref();
        let opened = guard(path, || ReadOnlyDatabase::open(path).map_err(|e| open_error(path, e)));
        matches!(opened, Err(StoreError::Locked { .. }))
    }
}

impl Inner {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn failed(&self, action: &'static str, error: impl Into<redb::Error>) -> StoreError {
        match error.into() {
            redb::Error::Corrupted(cause) => StoreError::Corrupt { place: self.place(), cause },
            error => StoreError::Io { action, place: self.place(), source: Box::new(error) },
        }
    }

    fn read_keys(&self, prefixes: &[&str]) -> Result<Vec<Entry>, StoreError> {
        let failed = |e: redb::Error| self.failed("read", e);
        let transaction = self.database.begin_read().map_err(|e| failed(e.into()))?;
        let table = match transaction.open_table(TABLE) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => {
                return Err(StoreError::Foreign { place: self.place(), cause: "it has other tables".into() });
            }
            Err(error) => return Err(failed(error.into())),
        };
        let mut prefixes = prefixes.to_vec();
        prefixes.sort_unstable();
        let mut found: Vec<Entry> = Vec::new();
        for prefix in prefixes {
            for entry in table.range(prefix..).map_err(|e| failed(e.into()))? {
                let (key, value) = entry.map_err(|e| failed(e.into()))?;
                if !key.value().starts_with(prefix) {
                    break;
                }
                // Another prefix may begin with this one.
                if found.last().is_none_or(|(last, _)| last.as_str() < key.value()) {
                    found.push((key.value().to_owned(), value.value().to_vec()));
                }
            }
        }
        Ok(found)
    }

    fn carry_out(&self, transaction: &Transaction) -> Result<bool, StoreError> {
        let failed = |e: redb::Error| self.failed("write", e);
        let write = self.database.begin_write().map_err(|e| failed(e.into()))?;
        {
            let mut table = write.open_table(TABLE).map_err(|e| failed(e.into()))?;
            for (key, expected) in &transaction.compares {
                let found = table.get(key.as_str()).map_err(|e| failed(e.into()))?;
                if found.as_ref().map(|value| value.value()) != expected.as_deref() {
                    return Ok(false);
                }
            }
            for (from, to) in transaction.removes.iter().filter(|(from, to)| from < to) {
                table.retain_in(from.as_str()..to.as_str(), |_, _| false).map_err(|e| failed(e.into()))?;
            }
            for (key, value) in &transaction.puts {
                table.insert(key.as_str(), value.as_slice()).map_err(|e| failed(e.into()))?;
            }
        }
        // The engine's default durability: on the device when this returns.
        write.commit().map_err(|e| failed(e.into()))?;
        Ok(true)
    }
}

impl KeyStore for EmbeddedStore {
    fn place(&self) -> String {
        self.0.place()
    }

    /// The engine locks the file.
    fn hold(&self) -> Hold {
        Hold::Alone
    }

    fn read(&self, prefixes: &[&str]) -> Pending<Vec<Entry>> {
        let (inner, prefixes) = (self.0.clone(), prefixes.iter().map(|p| p.to_string()).collect::<Vec<_>>());
        Box::pin(offload(move || {
            let prefixes: Vec<&str> = prefixes.iter().map(String::as_str).collect();
            guard(&inner.path, || inner.read_keys(&prefixes))
        }))
    }

    fn write(&self, transaction: Transaction) -> Pending<bool> {
        let inner = self.0.clone();
        Box::pin(offload(move || inner.carry_out(&transaction)))
    }
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

/// Looks whether the file is one of the engine's at all. An empty one is not: a store is made under another
/// name first, so an empty file was a store that something has truncated.
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

/// Makes an empty store under another name and then gives it its own: a crash leaves no half of a store
/// behind.
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
        write_marker(&transaction).map_err(failed)?;
        transaction.commit().map_err(|e| failed(e.into()))?;
    }
    // A hard link never replaces a file that another manager has made meanwhile, as a rename would; but not
    // every file system has hard links.
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
    use crate::records::{load_journal, load_map, put_journal, put_map, sealed};
    use crate::store::tests::keeps_the_contract;
    use crate::store::{Journal, at_once};
    use std::io::{Seek, SeekFrom, Write};
    use weft_types::limits::EVENTS_MAX;
    use weft_types::{FabricId, FabricMap, MapVersion};

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

    fn map_at(version: u64) -> FabricMap {
        FabricMap { version: MapVersion(version), next_id: 100 + version, ..FabricMap::empty(FabricId(1)) }
    }

    fn filled(folder: &Folder) {
        let store = EmbeddedStore::open_or_make(folder.file()).expect("it is made");
        at_once(put_map(&store, &map_at(1))).expect("it is empty");
        at_once(put_map(&store, &map_at(2))).expect("version 1 is there");
    }

    fn loaded(folder: &Folder) -> Option<FabricMap> {
        let store = EmbeddedStore::open(folder.file()).expect("it opens");
        at_once(load_map(&store)).expect("readable")
    }

    #[test]
    fn it_keeps_the_contract() {
        let folder = Folder::new("contract");
        let reopened = |store: EmbeddedStore| {
            let path = store.0.path.clone();
            drop(store);
            EmbeddedStore::open(path).expect("it opens")
        };
        keeps_the_contract(EmbeddedStore::open_or_make(folder.file()).expect("it is made"), reopened);
    }

    #[test]
    fn what_was_committed_is_there_after_opening_again() {
        let folder = Folder::new("again");
        let store = EmbeddedStore::open_or_make(folder.file()).expect("made");
        assert!(at_once(load_map(&store)).expect("readable").is_none());
        drop(store);
        filled(&folder);
        assert_eq!(loaded(&folder), Some(map_at(2)));
        assert_eq!(fs::read_dir(&folder.0).expect("a folder").count(), 1, "no other file is left behind");
    }

    #[test]
    fn the_journal_is_kept_in_order_bounded_and_apart_from_the_map() {
        let folder = Folder::new("journal");
        filled(&folder);
        let store = EmbeddedStore::open(folder.file()).expect("it opens");
        assert_eq!(at_once(load_journal(&store)).expect("readable"), Journal::default());
        let event = |n: u64| (n, format!("event {n}").into_bytes());
        let all = |numbers: std::ops::RangeInclusive<u64>| Journal {
            events: numbers.map(event).collect(),
            ..Journal::default()
        };
        let max = EVENTS_MAX as u64;
        at_once(put_journal(&store, &all(1..=max))).expect("writable");
        let mut second = all(max + 1..=max + 150);
        second.troubles = Some(b"since then".to_vec());
        second.commits = Some(b"far".to_vec());
        at_once(put_journal(&store, &second)).expect("writable");
        drop(store);
        let store = EmbeddedStore::open(folder.file()).expect("it opens");
        assert_eq!(at_once(load_map(&store)).expect("readable"), Some(map_at(2)));
        let journal = at_once(load_journal(&store)).expect("readable");
        let numbers: Vec<u64> = journal.events.iter().map(|(n, _)| *n).collect();
        assert_eq!(numbers, (151..=max + 150).collect::<Vec<u64>>());
        assert_eq!(journal.events[0].1, b"event 151");
        assert_eq!(journal.troubles.as_deref(), Some(&b"since then"[..]));
        assert_eq!(
            at_once(store.read(&["event/"])).expect("readable").len(),
            EVENTS_MAX,
            "the others are gone"
        );
        let farther = Journal { commits: Some(b"farther".to_vec()), ..Journal::default() };
        at_once(put_journal(&store, &farther)).expect("writable");
        let found = at_once(load_journal(&store)).expect("readable");
        assert_eq!(found, Journal { commits: Some(b"farther".to_vec()), ..journal });
    }

    #[test]
    fn what_is_damaged_in_the_journal_is_left_out() {
        let folder = Folder::new("torn");
        filled(&folder);
        let store = EmbeddedStore::open(folder.file()).expect("it opens");
        let good = Journal { events: vec![(1, b"good".to_vec())], ..Journal::default() };
        at_once(put_journal(&store, &good)).expect("writable");
        let nonsense = |key: &str| (key.to_owned(), b"nonsense".to_vec());
        let puts = vec![nonsense("event/00000000000000000002"), ("event/x".into(), vec![]), nonsense("seen")];
        at_once(store.write(Transaction { puts, ..Transaction::default() })).expect("writable");
        assert_eq!(at_once(load_journal(&store)).expect("readable"), good);
        assert_eq!(at_once(load_map(&store)).expect("readable"), Some(map_at(2)));
    }

    /// A manager that is killed leaves the file as it is at that moment.
    #[test]
    fn a_store_that_was_not_closed_holds_every_commit() {
        let folder = Folder::new("killed");
        let store = EmbeddedStore::open_or_make(folder.file()).expect("it is made");
        for version in 1..20u64 {
            let mut map = map_at(version);
            map.unknown_ids = (0..version * 100).map(|n| (n, n + 1)).collect();
            at_once(put_map(&store, &map)).expect("in order");
            let copy = folder.0.join("copy.redb");
            fs::copy(folder.file(), &copy).expect("readable");
            let found = at_once(load_map(&EmbeddedStore::open(&copy).expect("it opens"))).expect("readable");
            assert_eq!(found, Some(map));
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
    fn a_newer_layout_is_refused() {
        let folder = Folder::new("newer");
        filled(&folder);
        let store = EmbeddedStore::open(folder.file()).expect("it opens");
        let puts = vec![("head".to_owned(), sealed(br#"{"schema":5,"whatever":1}"#))];
        at_once(store.write(Transaction { puts, ..Transaction::default() })).expect("writable");
        assert!(matches!(at_once(load_map(&store)), Err(StoreError::Newer { found: 5, known: 4, .. })));
        drop(store);
        let error = EmbeddedStore::open(folder.file()).err().expect("refused");
        assert!(matches!(error, StoreError::Newer { found: 5, known: 4, .. }), "{error}");
        assert!(error.hint().expect("a hint").contains("upgrade"));
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
            match EmbeddedStore::open(folder.file()).and_then(|s| at_once(load_map(&s))) {
                Ok(Some(map)) => {
                    // The engine may go back to its other commit slot, which holds the map before.
                    assert!([map_at(2), map_at(1)].contains(&map), "byte {at}: {}", map.version);
                }
                Ok(None) => {}
                Err(_) => noticed += 1,
            }
        }
        std::panic::set_hook(hook);
        assert!(noticed > 0, "some damage is noticed");
    }
}
