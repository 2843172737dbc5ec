//! The directories that a session holds to read, and those that it would gain by holding (F4).

use std::cell::Cell;
use std::collections::BTreeMap;
use weft_types::InodeNumber;

/// Counts what has happened to names: changes that began or ended, leases that came or went.
pub(crate) type Step = u64;

/// After so many questions about a directory the session asks for its lease. A listing counts for two: a look
/// at one of the entries often follows.
const LOOKS_BEFORE_LEASE: u32 = 3;
pub(crate) const LOOKS_OF_LISTING: u32 = 2;

/// Directories whose looks are counted, and that wait for their lease; beyond that, counting begins anew.
const COUNTED: usize = 1_024;
const DUE: usize = 64;

/// Leases of directories.
#[derive(Default)]
pub(crate) struct Leased {
    leases: BTreeMap<InodeNumber, Lease>,
    /// Questions about directories that are not held.
    looks: BTreeMap<InodeNumber, u32>,
    /// Directories whose lease is to be asked for.
    due: Vec<InodeNumber>,
}

struct Lease {
    /// When the lease was granted: a question that left before may have been answered without it.
    since: Step,
    /// Something was answered by it, or changed under it, since that was asked last.
    is_used: Cell<bool>,
}

impl Leased {
    pub(crate) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Since when a directory is held, if it is.
    pub(crate) fn since(&self, directory: InodeNumber) -> Option<Step> {
        self.leases.get(&directory).map(|lease| lease.since)
    }

    /// A directory is held from now on; what is known by an older lease of it is known no more.
    pub(crate) fn insert(&mut self, directory: InodeNumber, since: Step) {
        self.looks.remove(&directory);
        self.leases.insert(directory, Lease { since, is_used: Cell::new(true) });
    }

    /// A directory is held no more. Whether it was.
    pub(crate) fn remove(&mut self, directory: InodeNumber) -> bool {
        self.leases.remove(&directory).is_some()
    }

    /// The lease of a directory is of use.
    pub(crate) fn use_one(&self, directory: InodeNumber) {
        if let Some(lease) = self.leases.get(&directory) {
            lease.is_used.set(true);
        }
    }

    /// Those that were of no use since this was asked last.
    pub(crate) fn unused(&self) -> Vec<InodeNumber> {
        let unused = self.leases.iter().filter(|(_, lease)| !lease.is_used.replace(false));
        unused.map(|(directory, _)| *directory).collect()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<InodeNumber> {
        self.leases.keys().copied().collect()
    }

    /// Questions about a directory were asked that its lease would answer. Whether it is due now.
    pub(crate) fn count_looks(&mut self, directory: InodeNumber, looks: u32) -> bool {
        if self.leases.contains_key(&directory) {
            return false;
        }
        if self.looks.len() >= COUNTED {
            self.looks.clear();
        }
        let counted = self.looks.entry(directory).or_default();
        *counted += looks;
        if *counted < LOOKS_BEFORE_LEASE {
            return false;
        }
        self.is_due_now(directory)
    }

    /// The lease of a directory is due, unless too many are.
    pub(crate) fn is_due_now(&mut self, directory: InodeNumber) -> bool {
        self.looks.remove(&directory);
        let is_due = self.due.len() < DUE && !self.due.contains(&directory);
        if is_due {
            self.due.push(directory);
        }
        is_due
    }

    /// Directories whose lease is to be asked for now.
    pub(crate) fn take_due(&mut self) -> Vec<InodeNumber> {
        std::mem::take(&mut self.due)
    }
}
