//! Where the map and the journal are kept: values under keys, changed by transactions that compare first.
//!
//! It owns the contract and the store in memory. A store never looks into a value; only the one in memory
//! does, for those who look into it from outside.

use crate::error::RECOVER_HINT;
use crate::records::{commits_in, deltas_in, events_in, load_map, version_of};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::error::Error;
use std::rc::Rc;
use weft_types::{FabricMap, MapVersion};

/// Why a store does not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Someone else has committed meanwhile; nothing was written.
    #[error("the store holds version {found}, expected {expected}: another manager has committed")]
    Conflict {
        /// The version that was expected; 0 for an empty store.
        expected: MapVersion,
        /// The version that is there.
        found: MapVersion,
    },
    /// Another manager has begun to lead; nothing was written.
    #[error("another manager has taken {place} over")]
    Overtaken {
        /// Where the store is.
        place: String,
    },
    /// It is not there.
    #[error("there is no manager's store at {place}")]
    Missing {
        /// Where it was looked for.
        place: String,
    },
    /// Another process has it open.
    #[error("{place} is in use by another manager")]
    Locked {
        /// Where the store is.
        place: String,
    },
    /// It is damaged.
    #[error("{place} is damaged: {cause}")]
    Corrupt {
        /// Where the store is.
        place: String,
        /// What was found.
        cause: String,
    },
    /// It is something else than a manager's store.
    #[error("{place} is no manager's store: {cause}")]
    Foreign {
        /// Where it is.
        place: String,
        /// What was found.
        cause: String,
    },
    /// It was written by a newer program.
    #[error("{place} has format {found}, this program knows up to {known}")]
    Newer {
        /// Where the store is.
        place: String,
        /// The format found.
        found: u32,
        /// The newest format known.
        known: u32,
    },
    /// A document in it was written by a newer program.
    #[error("{place}: {cause}")]
    NewerDocument {
        /// Where the store is.
        place: String,
        /// Which one, and what this program does not know of it.
        cause: String,
    },
    /// The operating system refused, or the device failed. After a failed write it is not known whether it is
    /// there.
    #[error("cannot {action} {place}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where the store is.
        place: String,
        /// Why not.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl StoreError {
    /// What to do about it, where there is something that people can do.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            StoreError::Conflict { .. } | StoreError::Overtaken { .. } => {
                Some("make sure that only one manager runs, and start it again")
            }
            StoreError::Locked { .. } => Some("stop the other manager, or give this one a folder of its own"),
            StoreError::Missing { .. } | StoreError::Corrupt { .. } => Some(RECOVER_HINT),
            StoreError::Foreign { .. } => {
                Some("name another file; if this one was the store, see `weft fabric recover`")
            }
            StoreError::Newer { .. } | StoreError::NewerDocument { .. } => Some("upgrade this manager"),
            StoreError::Io { .. } => None,
        }
    }
}

/// What is written down beside the map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    /// Events by their numbers, ascending.
    pub events: Vec<(u64, Vec<u8>)>,
    /// Since when which trouble is there, as one document; none if that has not changed.
    pub troubles: Option<Vec<u8>>,
    /// How far each drive has come, as one document; none if that is not to be written now. It helps to tell
    /// a drive from an older copy of itself, and may be lost.
    pub commits: Option<Vec<u8>>,
}

impl Journal {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.troubles.is_none() && self.commits.is_none()
    }
}

/// A key and its value.
pub type Entry = (String, Vec<u8>);

/// What is written at once: all of it, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Keys that must have these values, or must not be there: otherwise nothing is written.
    pub compares: Vec<(String, Option<Vec<u8>>)>,
    /// Ranges of keys that are removed before anything is put: the first key, and the one at which it ends.
    pub removes: Vec<(String, String)>,
    /// Keys that get these values.
    pub puts: Vec<Entry>,
}

/// A place that keeps values under keys. What keys there are, and what their values mean, is in `records.rs`.
pub trait KeyStore {
    /// Where it is, for people.
    fn place(&self) -> String;

    /// All keys that begin with one of these prefixes, with their values, in key order: as they were at one
    /// moment.
    ///
    /// # Errors
    /// If the store cannot be read, or is damaged.
    fn read(&self, prefixes: &[&str]) -> Result<Vec<Entry>, StoreError>;

    /// Carries out a transaction. Returns whether all compared keys had the values that they must have; if
    /// not, nothing was written. Durable when it returns.
    ///
    /// # Errors
    /// If it fails. It is not known then whether it was carried out.
    fn write(&self, transaction: &Transaction) -> Result<bool, StoreError>;
}

/// A store in memory. Clones share it, so that it outlives the simulated process that uses it.
#[derive(Clone, Default)]
pub struct MemStore(Rc<Memory>);

#[derive(Default)]
struct Memory {
    entries: RefCell<BTreeMap<String, Vec<u8>>>,
    /// The map as it was when it was asked for last.
    map: RefCell<Option<Rc<FabricMap>>>,
    version: Cell<MapVersion>,
    commits: Cell<u64>,
    writes: Cell<u64>,
    broken: Cell<bool>,
    breaks_at: Cell<Option<(Break, bool)>>,
    observer: RefCell<Option<Observer>>,
}

/// Where a store in memory fails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Break {
    Commit(u64),
    Write(u64),
}

/// Is shown the map before a commit, the one after it, and the events that are written with it.
type Observer = Rc<dyn Fn(&FabricMap, &FabricMap, &[&[u8]])>;

impl MemStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Another store with the same content.
    pub fn copy(&self) -> MemStore {
        let copy = MemStore::new();
        copy.0.entries.replace(self.0.entries.borrow().clone());
        copy.0.version.set(self.0.version.get());
        copy
    }

    /// Has every further commit shown, when it is there: the map before, the one after, and the events that
    /// are written with it, as documents.
    pub fn observe(&self, observer: impl Fn(&FabricMap, &FabricMap, &[&[u8]]) + 'static) {
        *self.0.observer.borrow_mut() = Some(Rc::new(observer));
    }

    /// How many commits of the map it has taken.
    pub fn commits(&self) -> u64 {
        self.0.commits.get()
    }

    /// How many transactions it has taken, of any kind.
    pub fn writes(&self) -> u64 {
        self.0.writes.get()
    }

    /// The version of the map that it holds; 0 for none.
    pub fn version(&self) -> MapVersion {
        self.0.version.get()
    }

    /// The map that it holds; none if it holds none.
    ///
    /// # Panics
    /// If that is damaged.
    pub fn map(&self) -> Option<Rc<FabricMap>> {
        let version = self.version();
        if let Some(map) = self.0.map.borrow().as_ref().filter(|map| map.version == version) {
            return Some(map.clone());
        }
        let healthy = MemStore(Rc::new(Memory { entries: self.0.entries.clone(), ..Memory::default() }));
        let map = load_map(&healthy).expect("the store is sound").map(Rc::new);
        *self.0.map.borrow_mut() = map.clone();
        map
    }

    /// Makes every further operation fail, or work again, now and at any commit.
    pub fn set_broken(&self, broken: bool) {
        self.0.broken.set(broken);
        self.0.breaks_at.set(None);
    }

    /// Makes the store fail for good at the commit with this number: with `is_written` just after it is
    /// there, otherwise just before. What a manager meets that dies at that commit.
    pub fn break_at(&self, commit: u64, is_written: bool) {
        self.0.breaks_at.set(Some((Break::Commit(commit), is_written)));
    }

    /// Makes the store fail for good at the transaction with this number, whatever it is; otherwise as
    /// [`MemStore::break_at`].
    pub fn break_at_write(&self, write: u64, is_written: bool) {
        self.0.breaks_at.set(Some((Break::Write(write), is_written)));
    }

    fn check(&self, action: &'static str) -> Result<(), StoreError> {
        match self.0.broken.get() {
            false => Ok(()),
            true => Err(StoreError::Io { action, place: "memory".into(), source: "made to fail".into() }),
        }
    }

    /// Puts and removes, and shows the observer what has become of the map.
    fn apply(&self, transaction: &Transaction, commits: u64) {
        let before = self.0.observer.borrow().is_some().then(|| self.map()).flatten();
        {
            let mut entries = self.0.entries.borrow_mut();
            for (from, to) in transaction.removes.iter().filter(|(from, to)| from < to) {
                let gone: Vec<String> =
                    entries.range(from.clone()..to.clone()).map(|(k, _)| k.clone()).collect();
                gone.iter().for_each(|key| drop(entries.remove(key)));
            }
            entries.extend(transaction.puts.iter().cloned());
        }
        self.0.writes.set(self.0.writes.get() + 1);
        self.0.commits.set(self.0.commits.get() + commits);
        let Some(version) = version_of(&transaction.puts) else { return };
        self.0.version.set(version);
        self.follow(transaction);
        if let (Some(before), Some(observer)) = (before, self.0.observer.borrow().clone()) {
            let events: Vec<&[u8]> = events_in(&transaction.puts);
            observer(&before, &self.map().expect("it was committed"), &events);
        }
    }

    /// Brings the map that was asked for last up to date, where that is a small step.
    fn follow(&self, transaction: &Transaction) {
        let mut held = self.0.map.borrow_mut();
        let deltas = deltas_in(&transaction.puts);
        let next = held.as_ref().and_then(|map| {
            deltas.iter().try_fold(FabricMap::clone(map), |map, delta| map.apply_delta(delta).ok())
        });
        *held = next.map(Rc::new);
    }
}

impl KeyStore for MemStore {
    fn place(&self) -> String {
        "memory".into()
    }

    fn read(&self, prefixes: &[&str]) -> Result<Vec<Entry>, StoreError> {
        self.check("read")?;
        let entries = self.0.entries.borrow();
        let wanted = entries.iter().filter(|(key, _)| prefixes.iter().any(|prefix| key.starts_with(prefix)));
        Ok(wanted.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn write(&self, transaction: &Transaction) -> Result<bool, StoreError> {
        self.check("write")?;
        {
            let entries = self.0.entries.borrow();
            if transaction.compares.iter().any(|(key, value)| entries.get(key) != value.as_ref()) {
                return Ok(false);
            }
        }
        let (before, commits) = (self.0.commits.get(), commits_in(&transaction.puts));
        let breaks = self.0.breaks_at.get().filter(|(at, _)| match at {
            Break::Commit(number) => (before + 1..=before + commits).contains(number),
            Break::Write(number) => *number == self.0.writes.get() + 1,
        });
        if breaks.is_none_or(|(_, is_written)| is_written) {
            self.apply(transaction, commits);
        }
        if breaks.is_some() {
            self.0.breaks_at.set(None);
            self.0.broken.set(true);
        }
        self.check("write").map(|()| true)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn put(key: &str, value: &[u8]) -> Transaction {
        Transaction { puts: vec![(key.into(), value.to_vec())], ..Transaction::default() }
    }

    /// What every store must do; `reopened` gives the same one as another process finds it.
    pub(crate) fn keeps_the_contract<S: KeyStore>(store: S, reopened: impl Fn(S) -> S) {
        assert_eq!(store.read(&[""]).expect("readable"), vec![]);
        let absent = Transaction { compares: vec![("a/1".into(), None)], ..put("a/1", b"one") };
        assert!(store.write(&absent).expect("writable"));
        assert!(!store.write(&absent).expect("writable"), "it is there by now");
        let other = Transaction { compares: vec![("a/1".into(), Some(b"two".to_vec()))], ..put("a/2", b"2") };
        assert!(!store.write(&other).expect("writable"), "it has another value");
        let same = Transaction { compares: vec![("a/1".into(), Some(b"one".to_vec()))], ..put("a/2", b"2") };
        assert!(store.write(&same).expect("writable"));
        store.write(&put("b/1", b"")).expect("writable");
        let store = reopened(store);
        let both = [("a/1".into(), b"one".to_vec()), ("a/2".into(), b"2".to_vec())];
        assert_eq!(store.read(&["a/"]).expect("readable"), both);
        assert_eq!(store.read(&["a/2", "b/"]).expect("readable"), [both[1].clone(), ("b/1".into(), vec![])]);
        // A range ends before its second key; what is put stays, also where it is in a range.
        let removes = vec![("a/1".into(), "a/2".into()), ("b/".into(), "c".into()), ("z".into(), "y".into())];
        assert!(store.write(&Transaction { removes, ..put("b/2", b"new") }).expect("writable"));
        let left = [both[1].clone(), ("b/2".into(), b"new".to_vec())];
        assert_eq!(reopened(store).read(&[""]).expect("readable"), left);
    }

    #[test]
    fn memory_keeps_the_contract() {
        keeps_the_contract(MemStore::new(), |store| store);
    }

    #[test]
    fn it_fails_where_it_is_to_fail() {
        for is_written in [false, true] {
            let store = MemStore::new();
            store.break_at_write(2, is_written);
            assert!(store.write(&put("1", b"")).is_ok());
            assert!(store.write(&put("2", b"")).is_err());
            assert!(store.read(&[""]).is_err(), "for good");
            store.set_broken(false);
            assert_eq!(store.read(&[""]).expect("readable").len(), if is_written { 2 } else { 1 });
        }
    }
}
