//! Where the map is kept: one document, replaced whole by compare-and-swap on its version; and beside it the journal,
//! what happened and since when something is not as it should be.
//!
//! It owns the contract and the store in memory. A store never looks into the document, and never keeps the one
//! before it.

use crate::error::RECOVER_HINT;
use std::cell::{Cell, RefCell};
use std::error::Error;
use std::rc::Rc;
use weft_types::MapVersion;
use weft_types::limits::EVENTS_MAX;

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
    /// The operating system refused, or the device failed. After a failed commit it is not known whether the
    /// document is there.
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
            StoreError::Conflict { .. } => Some("make sure that only one manager runs, and start it again"),
            StoreError::Locked { .. } => Some("stop the other manager, or give this one a folder of its own"),
            StoreError::Missing { .. } | StoreError::Corrupt { .. } => Some(RECOVER_HINT),
            StoreError::Foreign { .. } => {
                Some("name another file; if this one was the store, see `weft fabric recover`")
            }
            StoreError::Newer { .. } => Some("upgrade this manager"),
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
    /// How far each drive has come, as one document; none if that is not to be written now. It helps to tell a drive from
    /// an older copy of itself, and may be lost.
    pub commits: Option<Vec<u8>>,
}

impl Journal {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.troubles.is_none() && self.commits.is_none()
    }
}

/// A place that keeps one document, and the journal.
pub trait MapStore {
    /// The document and its version; `None` where none was ever committed.
    ///
    /// # Errors
    /// If it cannot be read, or is not what was committed.
    fn load(&self) -> Result<Option<(MapVersion, Vec<u8>)>, StoreError>;

    /// The journal, as far as it can be read: what is damaged is left out.
    ///
    /// # Errors
    /// If the store cannot be read at all.
    fn load_journal(&self) -> Result<Journal, StoreError>;

    /// Replaces the document if the version there is the expected one; version 0 stands for an empty store. What is
    /// to be written down goes with it: both or neither. Of events, [`weft_types::limits::EVENTS_MAX`] are kept, the
    /// newest. Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError::Conflict`]: nothing was written. After any other error it is not known whether the document
    /// was replaced: the caller must not go on from either state.
    fn commit_with(
        &self,
        expected: MapVersion,
        new: MapVersion,
        bytes: &[u8],
        journal: &Journal,
    ) -> Result<(), StoreError>;

    /// Writes something down, with the document as it is. Durable when it returns.
    ///
    /// # Errors
    /// If it cannot be written; the document is untouched.
    fn write_down(&self, journal: &Journal) -> Result<(), StoreError>;

    /// Makes the caller the one manager of this store: every other one that has done so before leads no more, from this
    /// instant on. Returns the number of its term. Durable when it returns. A store that only one process can have open
    /// has no need of it.
    ///
    /// # Errors
    /// If the store cannot be written.
    fn take_over(&self) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// Whether nobody has taken over since this term began.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn is_led_by(&self, _term: u64) -> Result<bool, StoreError> {
        Ok(true)
    }

    /// Replaces the document and writes nothing down.
    ///
    /// # Errors
    /// Those of [`MapStore::commit_with`].
    fn commit(&self, expected: MapVersion, new: MapVersion, bytes: &[u8]) -> Result<(), StoreError> {
        self.commit_with(expected, new, bytes, &Journal::default())
    }

    /// How far each drive has come, as it was kept last; `None` where that is not known.
    ///
    /// # Errors
    /// If the store cannot be read at all.
    fn note(&self) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.load_journal()?.commits)
    }

    /// Keeps how far each drive has come, in the place of what was kept before.
    ///
    /// # Errors
    /// If it cannot be written; the document is as it was.
    fn keep_note(&self, bytes: &[u8]) -> Result<(), StoreError> {
        self.write_down(&Journal { commits: Some(bytes.to_vec()), ..Journal::default() })
    }
}

/// A document with its version.
type Held = Option<(MapVersion, Vec<u8>)>;

/// A store in memory. Clones share it, so that it outlives the simulated process that uses it.
#[derive(Clone, Default)]
pub struct MemStore {
    held: Rc<RefCell<Held>>,
    journal: Rc<RefCell<Journal>>,
    commits: Rc<Cell<u64>>,
    term: Rc<Cell<u64>>,
    broken: Rc<Cell<bool>>,
    breaks_at: Rc<Cell<Option<(u64, bool)>>>,
    observer: Rc<RefCell<Option<Observer>>>,
}

/// Is shown the document before a commit, the one after it, and what is written down with it.
type Observer = Rc<dyn Fn(&[u8], &[u8], &Journal)>;

impl MemStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Has every further commit shown, when it is there: the document before, the one after, and what
    /// is written down.
    pub fn observe(&self, observer: impl Fn(&[u8], &[u8], &Journal) + 'static) {
        *self.observer.borrow_mut() = Some(Rc::new(observer));
    }

    /// How many commits it has taken.
    pub fn commits(&self) -> u64 {
        self.commits.get()
    }

    /// The version of the document that it holds; 0 for none.
    pub fn version(&self) -> MapVersion {
        self.held.borrow().as_ref().map_or(MapVersion(0), |(version, _)| *version)
    }

    /// Makes every further operation fail, or work again, now and at any commit.
    pub fn set_broken(&self, broken: bool) {
        self.broken.set(broken);
        self.breaks_at.set(None);
    }

    /// Makes the store fail for good at the commit with this number: with `is_written` just after it is there, otherwise
    /// just before. What a manager meets that dies at that commit.
    pub fn break_at(&self, commit: u64, is_written: bool) {
        self.breaks_at.set(Some((commit, is_written)));
    }

    fn check(&self, action: &'static str) -> Result<(), StoreError> {
        match self.broken.get() {
            false => Ok(()),
            true => Err(StoreError::Io { action, place: "memory".into(), source: "made to fail".into() }),
        }
    }
}

impl MapStore for MemStore {
    fn load(&self) -> Result<Held, StoreError> {
        self.check("read")?;
        Ok(self.held.borrow().clone())
    }

    fn load_journal(&self) -> Result<Journal, StoreError> {
        self.check("read")?;
        Ok(self.journal.borrow().clone())
    }

    fn take_over(&self) -> Result<u64, StoreError> {
        self.check("write")?;
        self.term.set(self.term.get() + 1);
        Ok(self.term.get())
    }

    fn is_led_by(&self, term: u64) -> Result<bool, StoreError> {
        self.check("read")?;
        Ok(self.term.get() == term)
    }

    fn write_down(&self, journal: &Journal) -> Result<(), StoreError> {
        self.check("write")?;
        let mut held = self.journal.borrow_mut();
        held.events.extend(journal.events.iter().cloned());
        let surplus = held.events.len().saturating_sub(EVENTS_MAX);
        held.events.drain(..surplus);
        held.troubles = journal.troubles.clone().or(held.troubles.take());
        held.commits = journal.commits.clone().or(held.commits.take());
        Ok(())
    }

    fn commit_with(
        &self,
        expected: MapVersion,
        new: MapVersion,
        bytes: &[u8],
        journal: &Journal,
    ) -> Result<(), StoreError> {
        self.check("write")?;
        let mut held = self.held.borrow_mut();
        let found = held.as_ref().map_or(MapVersion(0), |(version, _)| *version);
        if found != expected {
            return Err(StoreError::Conflict { expected, found });
        }
        let number = self.commits.get() + 1;
        let breaks = self.breaks_at.get().filter(|(at, _)| *at == number);
        if breaks.is_none_or(|(_, is_written)| is_written) {
            let before = held.replace((new, bytes.to_vec()));
            self.commits.set(number);
            if let (Some((_, before)), Some(observer)) = (before, &*self.observer.borrow()) {
                observer(&before, bytes, journal);
            }
        }
        if breaks.is_some() {
            self.breaks_at.set(None);
            self.broken.set(true);
        }
        drop(held);
        self.check("write")?;
        self.write_down(journal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_replaces_only_what_was_expected() {
        let store = MemStore::new();
        assert!(store.load().expect("it works").is_none());
        store.commit(MapVersion(0), MapVersion(1), b"one").expect("it is empty");
        let late = store.commit(MapVersion(0), MapVersion(1), b"other");
        assert!(matches!(late, Err(StoreError::Conflict { found: MapVersion(1), .. })));
        assert_eq!(store.clone().load().expect("it works"), Some((MapVersion(1), b"one".to_vec())));
        store.set_broken(true);
        assert!(store.commit(MapVersion(1), MapVersion(2), b"two").is_err() && store.load().is_err());
        assert_eq!(store.commits(), 1);
    }

    #[test]
    fn what_is_not_written_down_stays_as_it_was() {
        let store = MemStore::new();
        store.keep_note(b"far").expect("it works");
        let troubles = Journal { troubles: Some(b"since then".to_vec()), ..Journal::default() };
        store.write_down(&troubles).expect("it works");
        assert_eq!(store.note().expect("it works").as_deref(), Some(&b"far"[..]));
        let found = store.load_journal().expect("it works");
        assert_eq!(found, Journal { commits: Some(b"far".to_vec()), ..troubles });
    }
}
