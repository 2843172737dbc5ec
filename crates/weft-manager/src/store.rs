//! Where the map and the journal are kept: values under keys, changed by transactions that compare first.
//!
//! It owns the contract and the store in memory. A store never looks into a value; only the one in memory
//! does, for those who look into it from outside.

use crate::error::RECOVER_HINT;
use crate::records::{commits_in, deltas_in, events_in, map_in, version_of};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::error::Error;
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use weft_rt::{Instant, now, random_below, sleep};
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
    /// It has not answered. A transaction may be there, or come to be there later.
    #[error("{place} has not answered within {} ms", .after.as_millis())]
    Silent {
        /// Where the store is.
        place: String,
        /// How long it was waited for.
        after: Duration,
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
            StoreError::Silent { .. } => Some("look whether the store's machine, disk and network work"),
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

/// What a store does, until it is done. Dropping it does not take it back.
pub type Pending<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>>>>;

/// Who can change a store while this process has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nobody else: another process cannot have it as long as this value lives, and what a former one did is
    /// over.
    Alone,
    /// Others can at any time, and what they have begun may come to be there later.
    Shared,
}

/// A place that keeps values under keys. What keys there are, and what their values mean, is in `records.rs`.
/// What is asked for is carried out in that order, one after the other, unless an answer is lost.
pub trait KeyStore {
    /// Where it is, for people.
    fn place(&self) -> String;

    /// Who can change it.
    fn hold(&self) -> Hold;

    /// All keys that begin with one of these prefixes, with their values, in key order: as they were at one
    /// moment.
    ///
    /// # Errors
    /// If the store cannot be read, or is damaged.
    fn read(&self, prefixes: &[&str]) -> Pending<Vec<Entry>>;

    /// Carries out a transaction. Tells whether all compared keys had the values that they must have; if
    /// not, nothing was written. Durable when it completes.
    ///
    /// # Errors
    /// If it fails. It is not known then whether it was carried out.
    fn write(&self, transaction: Transaction) -> Pending<bool>;
}

/// The outcome of something that a store does at once: one in memory does if it was not made slow, and one in
/// a file where there is no executor.
///
/// # Panics
/// If it is not done at once.
pub fn at_once<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("the store takes its time"),
    }
}

/// How a store in memory is slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slowness {
    /// The shortest and the longest time until an answer.
    pub latency: (Duration, Duration),
    /// Of 1000 transactions of those who share the store so many get no answer: half of them are lost, the others land up to
    /// [`Slowness::late`] later.
    pub unanswered_per_mille: u64,
    /// How late they land at most.
    pub late: Duration,
}

/// A store in memory. Clones share it, so that it outlives the simulated process that uses it.
#[derive(Clone)]
pub struct MemStore {
    memory: Rc<Memory>,
    hold: Hold,
    /// How slow it is for those who have it by this value, if not as for all.
    own_slowness: Rc<Cell<Option<Slowness>>>,
}

impl Default for MemStore {
    fn default() -> MemStore {
        MemStore { memory: Rc::default(), hold: Hold::Alone, own_slowness: Rc::default() }
    }
}

#[derive(Default)]
struct Memory {
    entries: RefCell<BTreeMap<String, Vec<u8>>>,
    /// The map as it was when it was asked for last.
    map: RefCell<Option<Rc<FabricMap>>>,
    version: Cell<MapVersion>,
    commits: Cell<u64>,
    /// Commits that were asked for, and are not carried out.
    under_way: Cell<u64>,
    writes: Cell<u64>,
    broken: Cell<bool>,
    breaks_at: Cell<Option<(Break, bool)>>,
    slowness: Cell<Slowness>,
    /// What lands later, and when.
    late: RefCell<Vec<(Instant, Transaction)>>,
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

    /// The same store, of those who share it with others.
    pub fn shared(&self) -> MemStore {
        MemStore { memory: self.memory.clone(), hold: Hold::Shared, own_slowness: Rc::default() }
    }

    /// Makes what is asked of it from now on slow.
    pub fn set_slowness(&self, slowness: Slowness) {
        self.memory.slowness.set(slowness);
    }

    /// Makes it as slow only for those who have it by this value, or its clones; with `None` as for all.
    pub fn set_own_slowness(&self, slowness: Option<Slowness>) {
        self.own_slowness.set(slowness);
    }

    /// How slow it is.
    fn slowness(&self) -> Slowness {
        self.own_slowness.get().unwrap_or(self.memory.slowness.get())
    }

    /// Another store with the same content.
    pub fn copy(&self) -> MemStore {
        let copy = MemStore::new();
        copy.memory.entries.replace(self.memory.entries.borrow().clone());
        copy.memory.version.set(self.memory.version.get());
        copy
    }

    /// Has every further commit shown, when it is there: the map before, the one after, and the events that
    /// are written with it, as documents.
    pub fn observe(&self, observer: impl Fn(&FabricMap, &FabricMap, &[&[u8]]) + 'static) {
        *self.memory.observer.borrow_mut() = Some(Rc::new(observer));
    }

    /// How many commits of the map it has taken.
    pub fn commits(&self) -> u64 {
        self.memory.commits.get()
    }

    /// How many commits of the map are on their way to it.
    pub fn commits_under_way(&self) -> u64 {
        self.memory.under_way.get()
    }

    /// How many transactions it has taken, of any kind.
    pub fn writes(&self) -> u64 {
        self.memory.writes.get()
    }

    /// The version of the map that it holds; 0 for none.
    pub fn version(&self) -> MapVersion {
        self.memory.version.get()
    }

    /// The map that it holds; none if it holds none.
    ///
    /// # Panics
    /// If that is damaged.
    pub fn map(&self) -> Option<Rc<FabricMap>> {
        let version = self.version();
        if let Some(map) = self.memory.map.borrow().as_ref().filter(|map| map.version == version) {
            return Some(map.clone());
        }
        let map =
            map_in(&self.place(), &self.memory.entries.borrow()).expect("the store is sound").map(Rc::new);
        *self.memory.map.borrow_mut() = map.clone();
        map
    }

    /// Makes every further operation fail, or work again, now and at any commit.
    pub fn set_broken(&self, broken: bool) {
        self.memory.broken.set(broken);
        self.memory.breaks_at.set(None);
    }

    /// Makes the store fail for good at the commit with this number: with `is_written` just after it is
    /// there, otherwise just before. What a manager meets that dies at that commit.
    pub fn break_at(&self, commit: u64, is_written: bool) {
        self.memory.breaks_at.set(Some((Break::Commit(commit), is_written)));
    }

    /// Makes the store fail for good at the transaction with this number, whatever it is; otherwise as
    /// [`MemStore::break_at`].
    pub fn break_at_write(&self, write: u64, is_written: bool) {
        self.memory.breaks_at.set(Some((Break::Write(write), is_written)));
    }

    fn check(&self, action: &'static str) -> Result<(), StoreError> {
        match self.memory.broken.get() {
            false => Ok(()),
            true => Err(StoreError::Io { action, place: "memory".into(), source: "made to fail".into() }),
        }
    }

    /// Puts and removes, and shows the observer what has become of the map.
    fn apply(&self, transaction: &Transaction, commits: u64) {
        let before = self.memory.observer.borrow().is_some().then(|| self.map()).flatten();
        {
            let mut entries = self.memory.entries.borrow_mut();
            for (from, to) in transaction.removes.iter().filter(|(from, to)| from < to) {
                let gone: Vec<String> =
                    entries.range(from.clone()..to.clone()).map(|(k, _)| k.clone()).collect();
                gone.iter().for_each(|key| drop(entries.remove(key)));
            }
            entries.extend(transaction.puts.iter().cloned());
        }
        self.memory.writes.set(self.memory.writes.get() + 1);
        self.memory.commits.set(self.memory.commits.get() + commits);
        let Some(version) = version_of(&transaction.puts) else { return };
        self.memory.version.set(version);
        self.follow(transaction);
        if let (Some(before), Some(observer)) = (before, self.memory.observer.borrow().clone()) {
            let events: Vec<&[u8]> = events_in(&transaction.puts);
            observer(&before, &self.map().expect("it was committed"), &events);
        }
    }

    /// Brings the map that was asked for last up to date, where that is a small step.
    fn follow(&self, transaction: &Transaction) {
        let mut held = self.memory.map.borrow_mut();
        let deltas = deltas_in(&transaction.puts);
        let next = held.as_ref().and_then(|map| {
            deltas.iter().try_fold(FabricMap::clone(map), |map, delta| map.apply_delta(delta).ok())
        });
        *held = next.map(Rc::new);
    }
}

impl MemStore {
    /// Lets what was late land, as far as it is time for it.
    fn land(&self) {
        let due: Vec<Transaction> = {
            let mut late = self.memory.late.borrow_mut();
            let (due, left) = std::mem::take(&mut *late).into_iter().partition(|(at, _)| *at <= now());
            *late = left;
            let due: Vec<(Instant, Transaction)> = due;
            due.into_iter().map(|(_, transaction)| transaction).collect()
        };
        for transaction in due {
            drop(self.carry_out(&transaction));
        }
    }

    fn read_now(&self, prefixes: &[String]) -> Result<Vec<Entry>, StoreError> {
        self.check("read")?;
        let entries = self.memory.entries.borrow();
        let wanted =
            entries.iter().filter(|(key, _)| prefixes.iter().any(|prefix| key.starts_with(prefix.as_str())));
        Ok(wanted.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn carry_out(&self, transaction: &Transaction) -> Result<bool, StoreError> {
        self.check("write")?;
        {
            let entries = self.memory.entries.borrow();
            if transaction.compares.iter().any(|(key, value)| entries.get(key) != value.as_ref()) {
                return Ok(false);
            }
        }
        let (before, commits) = (self.memory.commits.get(), commits_in(&transaction.puts));
        let breaks = self.memory.breaks_at.get().filter(|(at, _)| match at {
            Break::Commit(number) => (before + 1..=before + commits).contains(number),
            Break::Write(number) => *number == self.memory.writes.get() + 1,
        });
        if breaks.is_none_or(|(_, is_written)| is_written) {
            self.apply(transaction, commits);
        }
        if breaks.is_some() {
            self.memory.breaks_at.set(None);
            self.memory.broken.set(true);
        }
        self.check("write").map(|()| true)
    }

    /// A part of the time that an answer takes.
    async fn take_time(&self) {
        let (least, most) = self.slowness().latency;
        if most > Duration::ZERO {
            let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            let spread = micros(most.saturating_sub(least));
            sleep((least + Duration::from_micros(random_below(spread + 1))) / 2).await;
        }
        if !self.memory.late.borrow().is_empty() {
            self.land();
        }
    }
}

/// Commits that are on their way, until it is dropped.
struct OnItsWay(Rc<Memory>, u64);

impl OnItsWay {
    fn of(memory: &Rc<Memory>, transaction: &Transaction) -> OnItsWay {
        let commits = commits_in(&transaction.puts);
        memory.under_way.set(memory.under_way.get() + commits);
        OnItsWay(memory.clone(), commits)
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - self.1);
    }
}

impl KeyStore for MemStore {
    fn place(&self) -> String {
        "memory".into()
    }

    fn hold(&self) -> Hold {
        self.hold
    }

    fn read(&self, prefixes: &[&str]) -> Pending<Vec<Entry>> {
        let (store, prefixes) = (self.clone(), prefixes.iter().map(|p| p.to_string()).collect::<Vec<_>>());
        Box::pin(async move {
            store.take_time().await;
            let found = store.read_now(&prefixes);
            store.take_time().await;
            found
        })
    }

    fn write(&self, transaction: Transaction) -> Pending<bool> {
        let store = self.clone();
        let on_its_way = OnItsWay::of(&self.memory, &transaction);
        Box::pin(async move {
            store.take_time().await;
            drop(on_its_way);
            let slowness = store.slowness();
            let unanswered = if store.hold == Hold::Shared { slowness.unanswered_per_mille } else { 0 };
            if unanswered > 0 && random_below(1000) < unanswered {
                if random_below(2) == 0 {
                    let late = u64::try_from(slowness.late.as_micros()).unwrap_or(u64::MAX);
                    let at = now() + Duration::from_micros(random_below(late + 1));
                    store.memory.late.borrow_mut().push((at, transaction));
                }
                return pending().await;
            }
            let done = store.carry_out(&transaction);
            store.take_time().await;
            done
        })
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
        assert_eq!(at_once(store.read(&[""])).expect("readable"), vec![]);
        let absent = Transaction { compares: vec![("a/1".into(), None)], ..put("a/1", b"one") };
        assert!(at_once(store.write(absent.clone())).expect("writable"));
        assert!(!at_once(store.write(absent.clone())).expect("writable"), "it is there by now");
        let other = Transaction { compares: vec![("a/1".into(), Some(b"two".to_vec()))], ..put("a/2", b"2") };
        assert!(!at_once(store.write(other)).expect("writable"), "it has another value");
        let same = Transaction { compares: vec![("a/1".into(), Some(b"one".to_vec()))], ..put("a/2", b"2") };
        assert!(at_once(store.write(same)).expect("writable"));
        at_once(store.write(put("b/1", b""))).expect("writable");
        let store = reopened(store);
        let both = [("a/1".into(), b"one".to_vec()), ("a/2".into(), b"2".to_vec())];
        assert_eq!(at_once(store.read(&["a/"])).expect("readable"), both);
        assert_eq!(
            at_once(store.read(&["a/2", "b/"])).expect("readable"),
            [both[1].clone(), ("b/1".into(), vec![])]
        );
        // A range ends before its second key; what is put stays, also where it is in a range.
        let removes = vec![("a/1".into(), "a/2".into()), ("b/".into(), "c".into()), ("z".into(), "y".into())];
        assert!(at_once(store.write(Transaction { removes, ..put("b/2", b"new") })).expect("writable"));
        let left = [both[1].clone(), ("b/2".into(), b"new".to_vec())];
        assert_eq!(at_once(reopened(store).read(&[""])).expect("readable"), left);
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
            assert!(at_once(store.write(put("1", b""))).is_ok());
            assert!(at_once(store.write(put("2", b""))).is_err());
            assert!(at_once(store.read(&[""])).is_err(), "for good");
            store.set_broken(false);
            assert_eq!(at_once(store.read(&[""])).expect("readable").len(), if is_written { 2 } else { 1 });
        }
    }
}
