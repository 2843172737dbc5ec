//! What users of one tree have called through several mounts, and what they were answered: there must be one
//! order of all calls that explains every answer, with each call between its beginning and its end.
//!
//! It keeps each tree that there may be. A call whose mount has died may have happened, or happens until its
//! session is forgotten, or never: all of these are kept apart until an answer tells. An inode that such a
//! call has made has a number that is not known yet; the first answer that shows it says which.

use crate::files::{Expected, FileModel, UNKNOWN, view};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::InodeNumber;
use weft_wire::files::{Answer, FileLock, Operation};

/// Bits of a call's number that count calls; those above are the number of its mount.
const CALL_BITS: u32 = 40;

/// Trees that there may be at once, at most: a user who leaves that many calls open has to wait for them.
const POSSIBLE_MAX: usize = 20_000;

/// Characters of a call or an answer in what is said of it.
const TEXT_CHARS: usize = 400;

/// Something that a user asks of a mount. Who owns a lock is the number of the call that opened the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// An operation on names, attributes or locks. What makes and opens a file is answered with attributes.
    Ask(Operation),
    /// Opens a file. Answered with [`Answer::Done`].
    Open(InodeNumber),
    /// Closes a file that the call of this number has opened: its locks are given back.
    Close(InodeNumber, u64),
    /// Takes a lock as soon as no other one is in its way.
    LockInTurn(InodeNumber, FileLock),
}

impl Deed {
    /// Inodes that it fails for if they are gone.
    pub(crate) fn inodes(&self) -> Vec<InodeNumber> {
        match self {
            Deed::Ask(Operation::Rename(from, to, _)) => vec![from.directory, to.directory],
            Deed::Ask(Operation::Link(inode, at)) => vec![*inode, at.directory],
            Deed::Ask(operation) => vec![operation.inode()],
            Deed::Open(inode) | Deed::Close(inode, _) | Deed::LockInTurn(inode, _) => vec![*inode],
        }
    }

    fn changes(&self) -> bool {
        match self {
            Deed::Ask(operation) => operation.changes(),
            _ => true,
        }
    }
}

/// The mount by which a file was opened, by the number of the call that opened it.
pub(crate) fn mount_of(handle: u64) -> u64 {
    handle >> CALL_BITS
}

/// A call that has not ended.
#[derive(Clone, Debug)]
struct Called {
    mount: u64,
    /// None: the locks of the mount are given back, because it is gone.
    deed: Option<Deed>,
    /// No answer is to come.
    is_lost: bool,
    /// Other calls were or are under way at the same time.
    is_beside: bool,
}

/// One of the trees that there may be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Possible {
    model: FileModel,
    /// Calls that have not ended and had their effect, with what they are to be answered; none where they
    /// will never have an effect.
    done: BTreeMap<u64, Option<Expected>>,
}

impl Possible {
    /// Whether this answer is the expected one. If it shows the number of an inode for the first time, that
    /// is learned. Attributes may be newer than the names beside which they are shown, if others have changed
    /// them meanwhile: those of one inode are the ones that it has now.
    fn matches(&mut self, expected: &Expected, answer: &Answer, is_beside: bool) -> bool {
        match (answer, expected) {
            (Answer::Failed(found), Expected::Failed(error)) => found == error,
            (Answer::Attributes(found), Expected::Seen(inode, seen)) => {
                self.is_inode(*inode, found.inode.0)
                    && (view(found) == *seen || (is_beside && self.model.sees(found)))
            }
            (Answer::Done, Expected::Seen(..) | Expected::Done) => true,
            (Answer::Listed(listed), Expected::Listed(entries)) => {
                let is_one = |name: &Vec<u8>| listed.entries.iter().filter(|e| e.name == *name).count() == 1;
                listed.is_end
                    && listed.entries.len() == entries.len()
                    && listed.entries.is_sorted_by_key(|e| (e.cookie, &e.name))
                    && entries.keys().all(is_one)
                    && listed.entries.iter().all(|entry| {
                        self.is_inode(entries[&entry.name], entry.attributes.inode.0)
                            && (is_beside || self.model.sees(&entry.attributes))
                    })
            }
            (Answer::Bytes(found), Expected::Bytes(bytes)) => found == bytes,
            (Answer::Lock(found), Expected::Locked(is_locked)) => found.is_some() == *is_locked,
            _ => false,
        }
    }

    /// What is expected, as text: of a list, also the attributes.
    fn in_words(&self, expected: &Expected) -> String {
        match expected {
            Expected::Listed(entries) => {
                let views: Vec<_> = entries.values().map(|inode| self.model.view_of(*inode)).collect();
                text(&(expected, views))
            }
            expected => text(expected),
        }
    }

    /// Whether an inode is the one of this number; learns it, if it was not known.
    fn is_inode(&mut self, expected: u64, found: u64) -> bool {
        if expected == found {
            return true;
        }
        if expected < UNKNOWN || !self.model.is_new(found) {
            return false;
        }
        self.model.name_inode(expected, found);
        self.done.values_mut().flatten().for_each(|done| done.name_inode(expected, found));
        true
    }
}

/// The calls of all users.
#[derive(Clone, Debug)]
pub struct TreeHistory {
    /// One of these is what there is.
    possible: Vec<Possible>,
    calls: BTreeMap<u64, Called>,
    last: u64,
}

impl TreeHistory {
    /// A directory without entries, as [`FileModel::below`] has it.
    pub fn below(root: InodeNumber) -> TreeHistory {
        let first = Possible { model: FileModel::below(root), done: BTreeMap::new() };
        TreeHistory { possible: vec![first], calls: BTreeMap::new(), last: 0 }
    }

    /// One of the trees that there may be.
    pub fn model(&self) -> &FileModel {
        &self.possible[0].model
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.possible.len()
    }

    /// What tells two trees apart that there may be; empty if there is one.
    pub fn difference(&self) -> String {
        match &self.possible[..] {
            [one, other, ..] => {
                let (done, others) = (&one.done, &other.done);
                format!(
                    "{} {}",
                    one.model.difference(&other.model),
                    text(&(done != others).then_some((done, others)))
                )
            }
            _ => String::new(),
        }
    }

    /// A mount is asked for something. Returns the number of the call, which is also that of the handle if a
    /// file is opened by it. Numbers of mounts are below 2^24.
    pub fn begin(&mut self, mount: u64, deed: Deed) -> u64 {
        self.begin_any(mount, Some(deed))
    }

    fn begin_any(&mut self, mount: u64, deed: Option<Deed>) -> u64 {
        self.last += 1;
        let call = mount << CALL_BITS | self.last;
        let is_lost = deed.is_none();
        self.calls.values_mut().for_each(|other| other.is_beside = true);
        let is_beside = !self.calls.is_empty();
        self.calls.insert(call, Called { mount, deed, is_lost, is_beside });
        call
    }

    /// A call is answered.
    ///
    /// # Errors
    /// If no order of all calls explains that. Then nothing has changed, and the call has not ended.
    ///
    /// # Panics
    /// If the call has ended before, or never began.
    pub fn end(&mut self, call: u64, answer: &Answer) -> Result<(), String> {
        let (mut seen, mut kept): (Vec<Possible>, Vec<Possible>) = Default::default();
        let mut expected = Vec::new();
        let is_beside = self.calls[&call].is_beside;
        let mut todo = self.possible.clone();
        while let Some(mut state) = todo.pop() {
            match state.done.get(&call).cloned() {
                Some(Some(done)) => {
                    if state.matches(&done, answer, is_beside) {
                        state.done.remove(&call);
                        add(&mut kept, state);
                        continue;
                    }
                    add(&mut expected, state.in_words(&done));
                    // Attributes that it shows may be those that another call has changed meanwhile.
                    if is_beside && !seen.contains(&state) {
                        todo.extend(self.next(&state, None));
                        seen.push(state);
                    }
                }
                Some(None) => {}
                None if seen.contains(&state) => {}
                None => {
                    todo.extend(self.next(&state, Some(call)));
                    seen.push(state);
                }
            }
            if seen.len() + kept.len() > POSSIBLE_MAX {
                return Err(format!("there are more than {POSSIBLE_MAX} trees that may be"));
            }
        }
        if kept.is_empty() {
            let (deed, answer) = (text(&self.calls[&call].deed), text(answer));
            return Err(format!("{deed} is answered with {answer}, expected {}", expected.join(" or ")));
        }
        self.calls.remove(&call);
        self.possible = kept;
        Ok(())
    }

    /// What a tree may be after one more call has had its effect.
    fn next(&self, state: &Possible, wanted: Option<u64>) -> Vec<Possible> {
        let mut all = Vec::new();
        for (&call, called) in self.calls.iter().filter(|(call, _)| !state.done.contains_key(call)) {
            let Some(deed) = &called.deed else {
                if state.model.locked_by(called.mount).is_empty() {
                    continue;
                }
                let mut after = state.clone();
                after.model.drop_locks_of(called.mount);
                // What the mount has asked for and what has not happened happens no more.
                for (other, _) in self.calls.iter().filter(|(_, other)| other.mount == called.mount) {
                    after.done.entry(*other).or_insert(None);
                }
                all.push(after);
                continue;
            };
            let is_wanted = wanted == Some(call);
            // A look whose answer is lost changes nothing.
            if called.is_lost && !is_wanted && !deed.changes() {
                continue;
            }
            for (model, expected) in state.model.outcomes((called.mount, call), deed) {
                // A failure whose answer is lost is the same as if it never happened.
                if called.is_lost && !is_wanted && matches!(expected, Expected::Failed(_)) {
                    continue;
                }
                let mut after = Possible { model, done: state.done.clone() };
                after.done.insert(call, Some(expected));
                all.push(after);
            }
        }
        all
    }

    /// A call is refused for a reason that the tree knows nothing of: it may have happened, and does not
    /// happen from now on.
    ///
    /// # Panics
    /// If the call has ended before, or never began.
    pub fn give_up(&mut self, call: u64) {
        self.calls.get_mut(&call).expect("it has begun, and not ended").is_lost = true;
        self.settle(&[call]);
    }

    /// A call is refused for a reason that the tree knows nothing of, and has not happened.
    ///
    /// # Errors
    /// If others have seen that it has. Then nothing has changed.
    ///
    /// # Panics
    /// If the call has ended before, or never began.
    pub fn refuse(&mut self, call: u64) -> Result<(), String> {
        let mut kept = Vec::new();
        for mut state in self.possible.clone() {
            match state.done.remove(&call) {
                Some(Some(done)) if !matches!(done, Expected::Failed(_)) => {}
                _ => add(&mut kept, state),
            }
        }
        if kept.is_empty() {
            return Err(format!("{} is refused, and has happened", text(&self.calls[&call].deed)));
        }
        self.calls.remove(&call).expect("it has begun, and not ended");
        self.possible = kept;
        Ok(())
    }

    /// A mount has died: what was asked of it and not answered may have happened, or happens until
    /// [`TreeHistory::forget`]. Its locks are given back until [`TreeHistory::free`].
    pub fn lose(&mut self, mount: u64) {
        for called in self.calls.values_mut().filter(|called| called.mount == mount) {
            called.is_lost = true;
        }
        self.begin_any(mount, None);
    }

    /// Nothing that was asked of a mount happens from now on.
    pub fn forget(&mut self, mount: u64) {
        let of_mount = self.calls.iter().filter(|(_, c)| c.mount == mount && c.deed.is_some());
        let over: Vec<u64> = of_mount.map(|(call, _)| *call).collect();
        self.settle(&over);
        self.possible.iter_mut().for_each(|state| state.model.drop_handles_of(mount));
        if self.locked_by(mount).is_empty() {
            self.free(mount);
        }
    }

    /// The locks of a mount that has died are given back by now.
    pub fn free(&mut self, mount: u64) {
        self.possible.iter_mut().for_each(|state| state.model.drop_locks_of(mount));
        self.calls.retain(|_, called| called.mount != mount || called.deed.is_some());
        self.drop_ended();
    }

    /// Files of which a mount may have locks.
    pub fn locked_by(&self, mount: u64) -> BTreeSet<InodeNumber> {
        self.possible.iter().flat_map(|state| state.model.locked_by(mount)).collect()
    }

    /// Owners of locks that may be in the way of one.
    pub fn in_the_way(&self, inode: InodeNumber, lock: &FileLock) -> BTreeSet<u64> {
        self.possible.iter().flat_map(|state| state.model.in_the_way(inode, lock)).collect()
    }

    /// Whether a call has begun and has neither ended nor been forgotten.
    pub fn is_open(&self, call: u64) -> bool {
        self.calls.contains_key(&call)
    }

    /// Whether calls of dead mounts may still happen.
    pub fn has_lost(&self) -> bool {
        self.calls.values().any(|called| called.is_lost && called.deed.is_some())
    }

    /// Users do not ask for inodes without a name any more, except for this number of the newest.
    pub fn drop_nameless(&mut self, kept: usize) {
        let models = || self.possible.iter().map(|state| &state.model);
        // What one tree forgets all have to, or an answer would tell them apart.
        let is_nameless = |inode: &u64| models().all(|model| model.may_be_gone(*inode));
        let nameless: BTreeSet<u64> =
            models().flat_map(|model| model.orphans()).filter(is_nameless).collect();
        let (unknown, known): (Vec<u64>, Vec<u64>) =
            nameless.into_iter().partition(|inode| *inode >= UNKNOWN);
        let dropped = [&known[..known.len().saturating_sub(kept)], &unknown].concat();
        self.possible.iter_mut().for_each(|state| state.model.drop_inodes(&dropped));
        self.drop_ended();
    }

    /// These calls have happened or never do.
    fn settle(&mut self, over: &[u64]) {
        let mut seen: Vec<Possible> = Vec::new();
        let mut todo = self.possible.clone();
        while let Some(state) = todo.pop() {
            if !seen.contains(&state) {
                todo.extend(self.next(&state, None));
                seen.push(state);
            }
        }
        self.calls.retain(|call, _| !over.contains(call));
        self.possible = seen;
        self.drop_ended();
    }

    /// Of trees that differ only in calls that have ended, one is kept.
    fn drop_ended(&mut self) {
        let mut kept = Vec::new();
        for mut state in std::mem::take(&mut self.possible) {
            state.done.retain(|call, _| self.calls.contains_key(call));
            add(&mut kept, state);
        }
        self.possible = kept;
    }
}

fn add<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if !all.contains(&one) {
        all.push(one);
    }
}

fn text(what: &impl std::fmt::Debug) -> String {
    format!("{what:?}").chars().take(TEXT_CHARS).collect()
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
