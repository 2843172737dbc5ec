//! What a session knows of names and attributes without asking, as long as it holds all names (F4).
//!
//! Nobody else changes anything meanwhile, so what the shard has answered stays until this session changes
//! it. Every operation of the session passes here: answers to questions fill what is kept, and changes
//! update it. While a change is under way nobody knows whether the shard has decided it. So nothing that
//! it touches is answered from here until then, and no answer to a question fills what was changed since
//! the question left.

use crate::hearing::Hearing;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_rules::{Mutation, mutated};
use weft_types::limits::KEPT_NAMES_MAX;
use weft_types::{Attributes, FileKind, InodeNumber};
use weft_wire::files::{Answer, AttributeChanges, FileError, Listed, NameIn, Operation, RenameMode};

/// The extended attribute of a directory that what is made in it inherits.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Bytes of the names of an inode's extended attributes that are kept; longer ones are asked for.
const XATTRS_KEPT: usize = 256;

/// Counts what has happened to names: changes that began or ended.
type Step = u64;

/// The names and attributes that a session keeps.
#[derive(Default)]
pub(crate) struct KeptNames(RefCell<Kept>);

#[derive(Default)]
struct Kept {
    /// Whether the session hears from the shard; `None` while it does not hold all names.
    hearing: Option<Rc<Hearing>>,
    /// Counts how often everything was forgotten.
    generation: u64,
    step: Step,
    attributes: BTreeMap<InodeNumber, KeptAttributes>,
    directories: BTreeMap<InodeNumber, Directory>,
    /// Names in all directories.
    names: usize,
    /// How many changes are under way that touch an inode.
    changing: BTreeMap<InodeNumber, u32>,
    /// Likewise, that give or take away a name.
    changing_names: BTreeMap<(InodeNumber, Vec<u8>), u32>,
    /// How many changes of extended attributes are under way, and when one of them began or ended last.
    changing_xattrs: u64,
    xattrs_touched: Step,
    /// How many names are about to be taken away: see [`KeptNames::before_name_goes`].
    going: u64,
    /// How many changes are under way of names that are not known: nobody knows which inodes these touch.
    blind: u64,
}

/// What is known of an inode.
#[derive(Default)]
struct KeptAttributes {
    /// None while they may be others.
    value: Option<Attributes>,
    /// The newest revision that was seen.
    revision: u64,
    /// When a change that touches it began or ended last.
    touched: Step,
    /// Names of its extended attributes, and since when they are known.
    xattrs: Option<(Vec<Vec<u8>>, Step)>,
}

/// What is known of a directory.
#[derive(Default)]
struct Directory {
    names: BTreeMap<Vec<u8>, Name>,
    /// No other name is in it.
    is_complete: bool,
    /// All names up to this cookie are known.
    listed_to: u64,
}

/// What is known of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    Leads(InodeNumber),
    Absent,
    /// Nothing, since then.
    Unknown(Step),
}

/// A question that is under way.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    generation: u64,
    step: Step,
}

/// A change that is under way. If it is dropped before it has ended, nobody knows what the shard decides, or
/// when: nothing that it touches is kept any more.
pub(crate) struct Change {
    generation: u64,
    step: Step,
    touches: Vec<InodeNumber>,
    is_blind: bool,
    /// What the names stood for that it changes.
    before: Vec<(NameIn, Option<Name>)>,
}

/// A name is about to be taken away, as long as this is there.
pub(crate) struct Going<'k>(&'k KeptNames);

impl Drop for Going<'_> {
    fn drop(&mut self) {
        self.0.0.borrow_mut().going -= 1;
    }
}

impl KeptNames {
    /// The session holds all names.
    pub(crate) fn turn_on(&self, hearing: &Rc<Hearing>) {
        let mut kept = self.0.borrow_mut();
        kept.forget();
        kept.hearing = Some(hearing.clone());
    }

    /// The session is about to give them back.
    pub(crate) fn turn_off(&self) {
        if !mutated(Mutation::NamesKept) {
            let mut kept = self.0.borrow_mut();
            kept.hearing = None;
            kept.forget();
        }
    }

    /// What the shard would answer, if that is known.
    pub(crate) fn answer(&self, operation: &Operation) -> Option<Answer> {
        let kept = self.0.borrow();
        if !kept.hearing.as_ref()?.is_sure_for(Duration::ZERO) || kept.blind > 0 {
            return None;
        }
        match operation {
            Operation::Attributes(inode) => kept.attributes(*inode).map(Answer::Attributes),
            Operation::Find(at) => match kept.name(at)? {
                Name::Leads(inode) => kept.attributes(inode).map(Answer::Attributes),
                Name::Absent => Some(Answer::Failed(FileError::NotFound)),
                Name::Unknown(_) => None,
            },
            Operation::XattrNames(inode) => kept.xattrs(*inode).cloned().map(Answer::Names),
            Operation::Xattr(inode, name) if !kept.xattrs(*inode)?.contains(name) => {
                Some(Answer::Failed(FileError::NoXattr))
            }
            _ => None,
        }
    }

    /// Attributes of a file that may be opened to read without a word to the shard: nobody else has anything
    /// open, and nobody here is taking its name away.
    pub(crate) fn of_file_to_open(&self, inode: InodeNumber) -> Option<Attributes> {
        match self.answer(&Operation::Attributes(inode))? {
            Answer::Attributes(found) if found.kind == FileKind::Regular && self.0.borrow().going == 0 => {
                Some(found)
            }
            _ => None,
        }
    }

    /// A name is about to be taken away: as long as what this returns is there, no file is opened without a
    /// word to the shard. And which inodes have the name; `None` if that is not known.
    pub(crate) fn before_name_goes(&self, at: &NameIn) -> (Going<'_>, Option<Vec<InodeNumber>>) {
        self.0.borrow_mut().going += 1;
        let inodes = match self.0.borrow().name(at) {
            Some(Name::Leads(inode)) => Some(vec![inode]),
            Some(Name::Absent) => Some(Vec::new()),
            Some(Name::Unknown(_)) | None => None,
        };
        (Going(self), inodes)
    }

    /// Whether names of extended attributes may be kept, and are not known of an inode.
    pub(crate) fn wants_xattrs(&self, inode: InodeNumber) -> bool {
        let kept = self.0.borrow();
        kept.hearing.is_some() && kept.xattrs(inode).is_none()
    }

    /// A question is about to leave.
    pub(crate) fn begin_look(&self) -> Look {
        let kept = self.0.borrow();
        Look { generation: kept.generation, step: kept.step }
    }

    /// A question was answered.
    pub(crate) fn end_look(&self, look: Look, operation: &Operation, answer: &Answer) {
        let mut kept = self.0.borrow_mut();
        if kept.hearing.is_none() || look.generation != kept.generation || kept.blind > 0 {
            return;
        }
        match (operation, answer) {
            (Operation::Attributes(_), Answer::Attributes(found)) => kept.see(look, found),
            (Operation::Find(at), Answer::Attributes(found)) => {
                kept.see(look, found);
                kept.find(look, at, Name::Leads(found.inode));
            }
            (Operation::Find(at), Answer::Failed(FileError::NotFound)) => {
                kept.find(look, at, Name::Absent);
            }
            (Operation::List { directory, after, .. }, Answer::Listed(listed)) => {
                kept.list(look, *directory, *after, listed);
            }
            (Operation::XattrNames(inode), Answer::Names(names))
                if kept.are_xattrs_untouched(look.step) && are_short(names) =>
            {
                kept.know_xattrs(*inode, names.clone());
            }
            _ => {}
        }
        kept.keep_room();
    }

    /// A change is about to leave.
    pub(crate) fn begin_change(&self, operation: &Operation) -> Change {
        let mut kept = self.0.borrow_mut();
        let (names, mut touches) = touched_by(operation);
        let before: Vec<_> = names.iter().map(|at| (at.clone(), kept.name(at))).collect();
        touches.extend(before.iter().filter_map(|(_, name)| match name {
            Some(Name::Leads(inode)) => Some(*inode),
            _ => None,
        }));
        let is_blind = takes_names_away(operation) && before.iter().any(|(_, name)| !is_known(*name));
        kept.blind += u64::from(is_blind);
        kept.step += 1;
        let step = kept.step;
        touches.iter().for_each(|inode| count(&mut kept.changing, *inode));
        names.iter().for_each(|at| count(&mut kept.changing_names, key_of(at)));
        kept.touch(&touches, &names);
        if kept.forget_xattrs(operation) {
            kept.changing_xattrs += 1;
        }
        Change { generation: kept.generation, step, touches, is_blind, before }
    }

    /// The shard has answered a change; `None` if it never happens.
    pub(crate) fn end_change(&self, change: &Change, operation: &Operation, answer: Option<&Answer>) {
        let mut kept = self.0.borrow_mut();
        kept.step += 1;
        kept.blind -= u64::from(change.is_blind);
        let names: Vec<NameIn> = change.before.iter().map(|(at, _)| at.clone()).collect();
        change.touches.iter().for_each(|inode| discount(&mut kept.changing, inode));
        names.iter().for_each(|at| discount(&mut kept.changing_names, &key_of(at)));
        let is_newest = kept.hearing.is_some() && change.generation == kept.generation;
        let are_mine = is_newest && names.iter().all(|at| kept.is_of_one(at, change.step));
        let found = answer.and_then(|answer| match answer {
            Answer::Attributes(found) => Some(found),
            _ => None,
        });
        // What another change has touched meanwhile may have changed since.
        let is_shown = found.is_some_and(|found| kept.is_untouched(change.step, found.inode));
        kept.touch(&change.touches, &names);
        if kept.forget_xattrs(operation) {
            kept.changing_xattrs -= 1;
        }
        if matches!(operation, Operation::Rename(..)) && (change.is_blind || !are_mine) {
            // What has lost its name, or has another one, is not known.
            return kept.forget();
        }
        if kept.hearing.is_none() {
            return;
        }
        if let Some(found) = found {
            kept.put(found, is_shown && is_newest);
            if are_mine {
                kept.follow(operation, found, &change.before);
            }
            if is_newest {
                kept.inherit(operation, found.inode, change.step);
            }
        }
        kept.keep_room();
    }
}

/// Whether names of extended attributes are kept.
fn are_short(names: &[Vec<u8>]) -> bool {
    names.iter().map(Vec::len).sum::<usize>() <= XATTRS_KEPT
}

fn key_of(at: &NameIn) -> (InodeNumber, Vec<u8>) {
    (at.directory, at.name.clone())
}

/// Counts one more of these.
fn count<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) {
    *counts.entry(key).or_default() += 1;
}

/// Counts one less.
fn discount<K: Ord>(counts: &mut BTreeMap<K, u32>, key: &K) {
    match counts.get_mut(key) {
        Some(count) if *count > 1 => *count -= 1,
        _ => drop(counts.remove(key)),
    }
}

/// Whether it is known what a name stands for.
fn is_known(name: Option<Name>) -> bool {
    matches!(name, Some(Name::Leads(_) | Name::Absent))
}

/// Whether a change takes a name away from an inode.
fn takes_names_away(operation: &Operation) -> bool {
    matches!(operation, Operation::Unlink(_) | Operation::RemoveDirectory(_) | Operation::Rename(..))
}

/// The names that a change gives or takes away, and the inodes that it touches beside what these stand for.
fn touched_by(operation: &Operation) -> (Vec<NameIn>, Vec<InodeNumber>) {
    match operation {
        Operation::Create(at, _)
        | Operation::CreateOpen(at, ..)
        | Operation::Unlink(at)
        | Operation::RemoveDirectory(at) => (vec![at.clone()], vec![at.directory]),
        Operation::Link(inode, at) => (vec![at.clone()], vec![*inode, at.directory]),
        Operation::Rename(from, to, _) => {
            (vec![from.clone(), to.clone()], vec![from.directory, to.directory])
        }
        // These leave attributes as they are.
        Operation::Hold(..) | Operation::Lock(..) | Operation::Unlock(..) | Operation::CreateUnnamed(..) => {
            (Vec::new(), Vec::new())
        }
        Operation::Release(_, changes) if *changes == AttributeChanges::default() => (Vec::new(), Vec::new()),
        operation => (Vec::new(), vec![operation.inode()]),
    }
}

impl Kept {
    fn forget(&mut self) {
        self.generation += 1;
        self.attributes.clear();
        self.directories.clear();
        self.names = 0;
    }

    /// Forgets everything where it would be too much.
    fn keep_room(&mut self) {
        if self.names + self.attributes.len() > KEPT_NAMES_MAX as usize {
            self.forget();
        }
    }

    fn attributes(&self, inode: InodeNumber) -> Option<Attributes> {
        self.attributes.get(&inode)?.value
    }

    fn xattrs(&self, inode: InodeNumber) -> Option<&Vec<Vec<u8>>> {
        self.attributes.get(&inode)?.xattrs.as_ref().map(|(names, _)| names)
    }

    fn know_xattrs(&mut self, inode: InodeNumber, names: Vec<Vec<u8>>) {
        let since = self.step;
        self.attributes.entry(inode).or_default().xattrs = Some((names, since));
    }

    /// A change begins or ends. Whether it is one of extended attributes: then these are not known. The
    /// shard keeps no list that says what permissions say.
    fn forget_xattrs(&mut self, operation: &Operation) -> bool {
        let (Operation::SetXattr(inode, ..) | Operation::RemoveXattr(inode, _)) = operation else {
            return false;
        };
        self.xattrs_touched = self.step;
        if let Some(kept) = self.attributes.get_mut(inode) {
            kept.xattrs = None;
        }
        true
    }

    /// Whether no extended attributes of any inode have changed since then.
    fn are_xattrs_untouched(&self, since: Step) -> bool {
        (self.changing_xattrs == 0 && self.xattrs_touched <= since) || mutated(Mutation::KeptBesideChanges)
    }

    /// What was made has no extended attributes if its directory had none to pass on, all the time.
    fn inherit(&mut self, operation: &Operation, made: InodeNumber, step: Step) {
        let (Operation::Create(at, _) | Operation::CreateOpen(at, ..)) = operation else { return };
        let of_directory = self.attributes.get(&at.directory).and_then(|kept| kept.xattrs.as_ref());
        let passes_none =
            |(names, since): &(Vec<Vec<u8>>, Step)| *since < step && !names.iter().any(|n| n == DEFAULT_ACL);
        if of_directory.is_some_and(passes_none) && self.are_xattrs_untouched(step) {
            self.know_xattrs(made, Vec::new());
        }
    }

    fn name(&self, at: &NameIn) -> Option<Name> {
        let directory = self.directories.get(&at.directory)?;
        let absent = directory.is_complete.then_some(Name::Absent);
        directory.names.get(&at.name).copied().or(absent)
    }

    fn set_name(&mut self, at: &NameIn, name: Name) {
        let directory = self.directories.entry(at.directory).or_default();
        self.names -= directory.names.len();
        match (name, directory.is_complete) {
            (Name::Absent, true) => drop(directory.names.remove(&at.name)),
            _ => drop(directory.names.insert(at.name.clone(), name)),
        }
        self.names += directory.names.len();
    }

    /// Something may be others now, or in a moment.
    fn touch(&mut self, inodes: &[InodeNumber], names: &[NameIn]) {
        if self.hearing.is_none() {
            return;
        }
        let step = self.step;
        for inode in inodes {
            let kept = self.attributes.entry(*inode).or_default();
            (kept.value, kept.touched) = (None, step);
        }
        names.iter().for_each(|at| self.set_name(at, Name::Unknown(step)));
    }

    /// Whether no other change than the one that began then, and has ended, can have touched a name since.
    fn is_of_one(&self, at: &NameIn, began: Step) -> bool {
        self.name(at) == Some(Name::Unknown(began)) && !self.changing_names.contains_key(&key_of(at))
    }

    /// Whether no change has touched an inode since then.
    fn is_untouched(&self, since: Step, inode: InodeNumber) -> bool {
        let is_untouched = self.attributes.get(&inode).is_none_or(|kept| kept.touched <= since);
        (is_untouched && !self.changing.contains_key(&inode)) || mutated(Mutation::KeptBesideChanges)
    }

    /// A question was answered with attributes.
    fn see(&mut self, look: Look, found: &Attributes) {
        let is_shown = self.is_untouched(look.step, found.inode);
        self.put(found, is_shown);
    }

    /// Keeps attributes, unless newer ones were seen. What has no name is not kept: it may be gone.
    fn put(&mut self, found: &Attributes, is_shown: bool) {
        let kept = self.attributes.entry(found.inode).or_default();
        if found.revision < kept.revision {
            return;
        }
        let is_newer = found.revision > kept.revision;
        kept.revision = found.revision;
        match is_shown && found.links > 0 {
            true => kept.value = Some(*found),
            false if is_newer => kept.value = None,
            false => {}
        }
    }

    /// A question found what a name stands for.
    fn find(&mut self, look: Look, at: &NameIn, name: Name) {
        if self.is_untouched(look.step, at.directory) {
            self.set_name(at, name);
        }
    }

    /// A question found names behind a cookie.
    fn list(&mut self, look: Look, directory: InodeNumber, after: u64, listed: &Listed) {
        let is_untouched = self.is_untouched(look.step, directory);
        for entry in &listed.entries {
            self.see(look, &entry.attributes);
            if is_untouched {
                let at = NameIn { directory, name: entry.name.clone() };
                self.set_name(&at, Name::Leads(entry.attributes.inode));
            }
        }
        let known = self.directories.entry(directory).or_default();
        if !is_untouched || known.listed_to != after {
            return;
        }
        known.listed_to = listed.entries.last().map_or(after, |entry| entry.cookie);
        known.is_complete |= listed.is_end;
    }

    /// A change of names has happened, and nothing else that touches these.
    fn follow(&mut self, operation: &Operation, found: &Attributes, before: &[(NameIn, Option<Name>)]) {
        match operation {
            Operation::Create(at, _) | Operation::CreateOpen(at, ..) | Operation::Link(_, at) => {
                self.set_name(at, Name::Leads(found.inode));
                if found.kind == FileKind::Directory && matches!(operation, Operation::Create(..)) {
                    // Unless something was made in it, or found, before this answer was here.
                    let empty = || Directory { is_complete: true, ..Directory::default() };
                    self.directories.entry(found.inode).or_insert_with(empty);
                }
            }
            Operation::Unlink(at) => self.set_name(at, Name::Absent),
            Operation::RemoveDirectory(at) => {
                self.set_name(at, Name::Absent);
                self.drop_directory(found.inode);
            }
            Operation::Rename(from, to, mode) => self.follow_rename((from, to), *mode, found.inode, before),
            _ => {}
        }
    }

    fn follow_rename(
        &mut self,
        (from, to): (&NameIn, &NameIn),
        mode: RenameMode,
        moved: InodeNumber,
        before: &[(NameIn, Option<Name>)],
    ) {
        let replaced = match before {
            [_, (_, Some(Name::Leads(inode)))] => Some(*inode),
            _ => None,
        };
        let left = match (mode, replaced) {
            (RenameMode::Exchange, Some(other)) => Name::Leads(other),
            // Both are names of one file: both stay.
            (_, Some(same)) if same == moved => Name::Leads(moved),
            _ => Name::Absent,
        };
        if let (true, Some(replaced)) = (left == Name::Absent, replaced) {
            self.drop_directory(replaced);
        }
        self.set_name(from, left);
        self.set_name(to, Name::Leads(moved));
    }

    fn drop_directory(&mut self, inode: InodeNumber) {
        if let Some(dropped) = self.directories.remove(&inode) {
            self.names -= dropped.names.len();
        }
    }
}

#[cfg(test)]
#[path = "kept_names_tests.rs"]
mod tests;
