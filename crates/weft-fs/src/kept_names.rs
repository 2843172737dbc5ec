//! What a session knows of names and attributes without asking, as long as it holds all names of a shard, or
//! directories to read (F4).
//!
//! No other session changes these names and attributes during that time, so an answer of the shard stays
//! valid until this session changes something. A held directory covers the names in it and its own
//! attributes. It also covers the attributes of files that the shard says to *last*: those whose only name
//! is in it, and that no other session writes.
//!
//! Every operation of the session passes here: answers to questions fill what is kept, and changes update
//! it. While a change is under way it is not known whether the shard has decided it. So nothing that the
//! change touches is answered from here until the change is answered. And an answer to a question keeps
//! nothing that was changed after the question left.

use crate::hearing::Hearing;
use crate::leased::{LOOKS_OF_LISTING, Leased, Step};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::Notify;
use weft_rules::{Mutation, mutated};
use weft_types::limits::{FILE_NAME_BYTES_MAX, KEPT_NAMES_MAX};
use weft_types::{Attributes, FileKind, InodeNumber};
use weft_wire::files::{Answer, AttributeChanges, FileError, Listed, NameIn, Operation, RenameMode};

/// The extended attribute of a directory that what is made in it inherits.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Bytes of the names of an inode's extended attributes that are kept; longer ones are asked for.
const XATTRS_KEPT: usize = 256;

/// The names and attributes that a session keeps.
#[derive(Default)]
pub(crate) struct KeptNames {
    kept: RefCell<Kept>,
    /// The lease of a directory is due.
    due: Notify,
}

#[derive(Default)]
struct Kept {
    /// Whether the session hears from the shards in which it holds something, or did.
    hearings: BTreeMap<u16, Rc<Hearing>>,
    /// The session holds all names of these shards.
    all_of: BTreeSet<u16>,
    /// The directories that it holds.
    leased: Leased,
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
    /// How many changes of names are about to begin, or under way: see [`KeptNames::before_names_change`].
    going: u64,
    /// How many changes are under way of names that are not known: nobody knows which inodes these touch.
    blind: u64,
    /// How many changes are under way that may remove a directory.
    removing: u64,
    /// As `blind`, for names of files in a directory that was not held: they may touch any file whose only
    /// name is there.
    blind_in: BTreeMap<InodeNumber, u32>,
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
    /// With which lease all this lasts, where the session does not hold all names of its shard.
    cover: Option<Cover>,
    /// Names of its extended attributes, and since when they are known.
    xattrs: Option<(Vec<Vec<u8>>, Step)>,
}

/// What a session holds that keeps a file as it is while it is open to read and the shard does not know that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeptBy {
    /// All names of its shard.
    AllNames,
    /// The directory in which the file has its only name.
    Directory(InodeNumber),
}

/// Files that may have one of some names.
#[derive(Default)]
pub(crate) struct MayHave {
    /// These.
    pub(crate) inodes: Vec<InodeNumber>,
    /// And any file with a name in one of these directories.
    any_in: Vec<InodeNumber>,
}

impl MayHave {
    /// Whether a file may be one of them. A file that a directory keeps has its only name in it.
    pub(crate) fn has(&self, inode: InodeNumber, kept_by: KeptBy) -> bool {
        let may_be_in_one = match kept_by {
            KeptBy::AllNames => !self.any_in.is_empty(),
            KeptBy::Directory(directory) => self.any_in.contains(&directory),
        };
        may_be_in_one || self.inodes.contains(&inode)
    }
}

/// A lease with which attributes last.
#[derive(Clone, Copy)]
struct Cover {
    directory: InodeNumber,
    /// The lease's beginning.
    since: Step,
    /// When the shard has said so.
    from: Step,
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
    /// What is touched is noted since then, unless everything was forgotten.
    was_on: bool,
}

/// A change that is under way. If it is dropped before it has ended, nobody knows what the shard decides, or
/// when: nothing that it touches is kept any more.
pub(crate) struct Change {
    generation: u64,
    step: Step,
    touches: Vec<InodeNumber>,
    is_blind: bool,
    blind_in: Option<InodeNumber>,
    /// What the names stood for that it changes.
    before: Vec<(NameIn, Option<Name>)>,
}

/// Names are about to change, as long as this is there.
pub(crate) struct Going<'k>(&'k KeptNames);

impl Drop for Going<'_> {
    fn drop(&mut self) {
        self.0.kept.borrow_mut().going -= 1;
    }
}

impl KeptNames {
    /// The session holds all names of a shard.
    pub(crate) fn turn_on(&self, shard: u16, hearing: &Rc<Hearing>) {
        let mut kept = self.kept.borrow_mut();
        kept.forget();
        kept.hearings.insert(shard, hearing.clone());
        kept.all_of.insert(shard);
        // The root's hold stands for all names now.
        kept.leased.remove(InodeNumber::whole_of(shard));
    }

    /// The session is about to give them back, and the root with those of its shard.
    pub(crate) fn turn_off(&self, shard: u16) {
        if !mutated(Mutation::NamesKept) {
            let mut kept = self.kept.borrow_mut();
            kept.all_of.remove(&shard);
            kept.leased.remove(InodeNumber::whole_of(shard));
            kept.forget();
        }
    }

    /// The session holds a directory, which had these attributes when the lease was granted. Other
    /// questions that left before now may have been answered before the lease was granted.
    pub(crate) fn lease(&self, asked: Look, directory: &Attributes, hearing: &Rc<Hearing>) {
        let mut kept = self.kept.borrow_mut();
        let inode = directory.inode;
        let is_untouched = match asked.was_on && asked.generation == kept.generation {
            true => kept.is_untouched(asked.step, inode),
            // Nobody has noted what was touched.
            false => kept.step == asked.step && !kept.changing.contains_key(&inode),
        };
        // Who removes a directory holds it no more.
        let is_untouched = is_untouched && kept.removing == 0;
        kept.step += 1;
        let since = kept.step;
        kept.hearings.insert(inode.shard(), hearing.clone());
        if kept.has_all_of(inode) {
            return kept.leased.insert(inode, since);
        }
        kept.drop_directory(inode);
        kept.leased.insert(inode, since);
        if is_untouched {
            kept.set_cover(inode, inode);
            kept.put(directory, true);
            if directory.size == 0 {
                let empty = Directory { is_complete: true, ..Directory::default() };
                kept.directories.insert(inode, empty);
            }
        }
    }

    /// The session is about to give a directory back.
    pub(crate) fn end_lease(&self, directory: InodeNumber) {
        let mut kept = self.kept.borrow_mut();
        kept.step += 1;
        if !mutated(Mutation::DirectoryKept) {
            kept.unlease(directory);
        }
    }

    /// Whether a directory is held, by itself or with all names.
    pub(crate) fn has(&self, directory: InodeNumber) -> bool {
        self.kept.borrow().has(directory)
    }

    /// Whether a directory is held by itself.
    pub(crate) fn is_leased(&self, directory: InodeNumber) -> bool {
        self.kept.borrow().leased.since(directory).is_some()
    }

    /// How many directories are held.
    pub(crate) fn leases(&self) -> usize {
        self.kept.borrow().leased.len()
    }

    /// All directories that are held; or those only that were of no use since this was asked last.
    pub(crate) fn leased(&self, unused_only: bool) -> Vec<InodeNumber> {
        let kept = self.kept.borrow();
        if unused_only { kept.leased.unused() } else { kept.leased.all() }
    }

    /// Directories that the session would gain by holding, once there are some.
    pub(crate) async fn due(&self) -> Vec<InodeNumber> {
        loop {
            let more = self.due.notified();
            let due = self.kept.borrow_mut().leased.take_due();
            if !due.is_empty() {
                return due;
            }
            more.await;
        }
    }

    /// What the shard would answer, if that is known.
    pub(crate) fn answer(&self, operation: &Operation) -> Option<Answer> {
        let kept = self.kept.borrow();
        if !kept.is_sure_of(operation.inode()) || kept.blind > 0 {
            return None;
        }
        match operation {
            Operation::Attributes(inode) => kept.attributes(*inode).map(Answer::Attributes),
            Operation::Find(at) => match kept.name(at)? {
                Name::Leads(inode) if !kept.is_sure_of(inode) => None,
                Name::Leads(inode) => kept.attributes(inode).map(Answer::Attributes),
                // The shard says what is wrong with the name.
                Name::Absent if at.name.len() > FILE_NAME_BYTES_MAX => None,
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

    /// Attributes of a file that may be opened to read without a word to the shard, and what keeps it as it
    /// is: no other session can write it or take its name away, and this one is not about to.
    pub(crate) fn of_file_to_open(&self, inode: InodeNumber) -> Option<(Attributes, KeptBy)> {
        let Answer::Attributes(found) = self.answer(&Operation::Attributes(inode))? else { return None };
        let kept = self.kept.borrow();
        let kept_by = match kept.has_all_of(inode) {
            true => KeptBy::AllNames,
            false => KeptBy::Directory(kept.cover(inode)?.directory),
        };
        (found.kind == FileKind::Regular && kept.going == 0).then_some((found, kept_by))
    }

    /// Names are about to change: as long as the returned guard lives, no file is opened without telling
    /// the shard. Also returns which files may have the names.
    pub(crate) fn before_names_change(&self, names: &[NameIn]) -> (Going<'_>, MayHave) {
        self.kept.borrow_mut().going += 1;
        let kept = self.kept.borrow();
        let mut files = MayHave::default();
        for at in names {
            match kept.name(at) {
                Some(Name::Leads(inode)) => files.inodes.push(inode),
                Some(Name::Absent) => {}
                Some(Name::Unknown(_)) | None => files.any_in.push(at.directory),
            }
        }
        (Going(self), files)
    }

    /// Whether names of extended attributes may be kept, and are not known of an inode.
    pub(crate) fn wants_xattrs(&self, inode: InodeNumber) -> bool {
        let kept = self.kept.borrow();
        (kept.has_all_of(inode) || kept.cover(inode).is_some()) && kept.xattrs(inode).is_none()
    }

    /// A question is about to leave.
    pub(crate) fn begin_look(&self) -> Look {
        let kept = self.kept.borrow();
        Look { generation: kept.generation, step: kept.step, was_on: kept.is_on() }
    }

    /// A question was answered.
    pub(crate) fn end_look(&self, look: Look, operation: &Operation, answer: &Answer) {
        let mut kept = self.kept.borrow_mut();
        if kept.count_looks(operation, answer) {
            self.due.notify_all();
        }
        if !kept.is_on() || look.generation != kept.generation || kept.blind > 0 {
            return;
        }
        match (operation, answer) {
            (Operation::Attributes(_), Answer::Attributes(found)) => kept.see(look, found, None),
            (Operation::Attributes(_), Answer::Lasting(found, with)) => kept.see(look, found, Some(*with)),
            (Operation::Find(at), Answer::Attributes(found)) => {
                kept.see(look, found, None);
                kept.find(look, at, Name::Leads(found.inode));
            }
            (Operation::Find(at), Answer::Lasting(found, with)) => {
                kept.see(look, found, Some(*with));
                kept.find(look, at, Name::Leads(found.inode));
            }
            (Operation::Find(at), Answer::Failed(FileError::NotFound)) => {
                kept.find(look, at, Name::Absent);
            }
            (Operation::Find(at), Answer::Elsewhere(inode, _)) => {
                kept.find(look, at, Name::Leads(*inode));
            }
            (Operation::List { directory, after, .. }, Answer::Listed(listed)) => {
                kept.list(look, *directory, *after, listed);
            }
            (Operation::XattrNames(inode), Answer::Names(names))
                if kept.are_xattrs_untouched(look.step)
                    && (kept.has_all_of(*inode)
                        || kept.cover(*inode).is_some_and(|cover| cover.from <= look.step))
                    && are_short(names) =>
            {
                kept.know_xattrs(*inode, names.clone());
            }
            _ => {}
        }
        kept.keep_room();
    }

    /// A change is about to leave.
    pub(crate) fn begin_change(&self, operation: &Operation) -> Change {
        let mut kept = self.kept.borrow_mut();
        let (names, mut touches) = touched_by(operation);
        let before: Vec<_> = names.iter().map(|at| (at.clone(), kept.name(at))).collect();
        touches.extend(before.iter().filter_map(|(_, name)| match name {
            Some(Name::Leads(inode)) => Some(*inode),
            _ => None,
        }));
        let is_unknown = takes_names_away(operation) && before.iter().any(|(_, name)| !is_known(*name));
        let blind_in = match operation {
            // All names of a shard may keep a file that has its name in another one.
            Operation::Unlink(at) if is_unknown && kept.all_of.is_empty() && !kept.has(at.directory) => {
                Some(at.directory)
            }
            _ => None,
        };
        let is_blind = is_unknown && blind_in.is_none();
        kept.blind += u64::from(is_blind);
        kept.removing += u64::from(may_remove_directory(operation));
        blind_in.iter().for_each(|directory| count(&mut kept.blind_in, *directory));
        kept.step += 1;
        let step = kept.step;
        touches.iter().for_each(|inode| count(&mut kept.changing, *inode));
        names.iter().for_each(|at| count(&mut kept.changing_names, key_of(at)));
        kept.touch(&touches, &names);
        if !names.is_empty() {
            // Once it is decided, files may last with another directory, or with none.
            touches.iter().for_each(|inode| kept.uncover_file(*inode));
        }
        if kept.forget_xattrs(operation) {
            kept.changing_xattrs += 1;
        }
        Change { generation: kept.generation, step, touches, is_blind, blind_in, before }
    }

    /// The shard has answered a change; `None` if it never happens.
    pub(crate) fn end_change(&self, change: &Change, operation: &Operation, answer: Option<&Answer>) {
        let mut kept = self.kept.borrow_mut();
        kept.step += 1;
        kept.blind -= u64::from(change.is_blind);
        kept.removing -= u64::from(may_remove_directory(operation));
        change.blind_in.iter().for_each(|directory| discount(&mut kept.blind_in, directory));
        let names: Vec<NameIn> = change.before.iter().map(|(at, _)| at.clone()).collect();
        change.touches.iter().for_each(|inode| discount(&mut kept.changing, inode));
        names.iter().for_each(|at| discount(&mut kept.changing_names, &key_of(at)));
        let is_newest = kept.is_on() && change.generation == kept.generation;
        let are_mine = is_newest && names.iter().all(|at| kept.is_of_one(at, change.step));
        let found = answer.and_then(|answer| match answer {
            Answer::Attributes(found) => Some(found),
            _ => None,
        });
        // What another change has touched meanwhile may have changed since.
        let is_shown = found.is_some_and(|found| kept.is_untouched(change.step, found.inode));
        kept.touch(&change.touches, &names);
        // It may have been found by its name only now.
        kept.touch(&found.map(|found| found.inode).into_iter().collect::<Vec<_>>(), &[]);
        if kept.forget_xattrs(operation) {
            kept.changing_xattrs -= 1;
        }
        if let Operation::Rename(from, to, mode) = operation
            && (change.is_blind || !are_mine)
        {
            // What has lost its name, or has another one, is not known.
            return kept.forget_renamed((from, to), *mode, found);
        }
        if !kept.is_on() {
            return;
        }
        if let Some(found) = found {
            if is_shown && are_mine && kept.cover_made(operation, found, change.step) {
                self.due.notify_all();
            }
            kept.put(found, is_shown && is_newest);
            if are_mine {
                kept.follow(operation, found, &change.before, is_shown);
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

fn may_remove_directory(operation: &Operation) -> bool {
    matches!(operation, Operation::RemoveDirectory(_) | Operation::Rename(..))
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
        Operation::Hold(..) | Operation::HoldDirectory(_) => (Vec::new(), Vec::new()),
        Operation::Lock(..) | Operation::Unlock(..) | Operation::CreateUnnamed(..) => {
            (Vec::new(), Vec::new())
        }
        Operation::Release(_, changes) if *changes == AttributeChanges::default() => (Vec::new(), Vec::new()),
        operation => (Vec::new(), vec![operation.inode()]),
    }
}

impl Kept {
    /// Whether anything may be kept.
    fn is_on(&self) -> bool {
        !self.all_of.is_empty() || !self.leased.is_empty()
    }

    /// Whether the session may go by what it holds in the shard of an inode.
    fn is_sure_of(&self, inode: InodeNumber) -> bool {
        self.hearings.get(&inode.shard()).is_some_and(|hearing| hearing.is_sure_for(Duration::ZERO))
    }

    /// Whether the session holds all names of the shard of an inode.
    fn has_all_of(&self, inode: InodeNumber) -> bool {
        self.all_of.contains(&inode.shard())
    }

    fn has(&self, directory: InodeNumber) -> bool {
        self.has_all_of(directory) || self.leased.since(directory).is_some()
    }

    /// Whether a directory is held since before a question left.
    fn has_since(&self, directory: InodeNumber, left: Step) -> bool {
        self.has_all_of(directory) || self.leased.since(directory).is_some_and(|since| since <= left)
    }

    /// With which lease attributes of an inode last, if with any.
    fn cover(&self, inode: InodeNumber) -> Option<Cover> {
        let cover = self.attributes.get(&inode)?.cover?;
        (self.leased.since(cover.directory) == Some(cover.since)).then_some(cover)
    }

    /// What is known of an inode lasts with a directory that is held.
    fn set_cover(&mut self, inode: InodeNumber, directory: InodeNumber) {
        let Some(since) = self.leased.since(directory) else { return };
        if self.blind_in.contains_key(&directory) {
            return self.uncover(inode);
        }
        if self.cover(inode).is_some_and(|cover| cover.directory == directory) {
            return;
        }
        self.step += 1;
        let cover = Some(Cover { directory, since, from: self.step });
        let has_all = self.has_all_of(inode);
        let kept = self.attributes.entry(inode).or_default();
        if !has_all {
            (kept.value, kept.xattrs) = (None, None);
        }
        kept.cover = cover;
    }

    /// Nobody knows any more with which lease attributes of an inode last.
    fn uncover(&mut self, inode: InodeNumber) {
        if let Some(kept) = self.attributes.get_mut(&inode) {
            kept.cover = None;
        }
    }

    /// Counts what was asked of directories that are not held. Whether the lease of one is due now.
    fn count_looks(&mut self, operation: &Operation, answer: &Answer) -> bool {
        let mut is_due = match (operation, answer) {
            (Operation::Find(at), Answer::Failed(FileError::NotFound) | Answer::Attributes(_))
                if !self.has_all_of(at.directory) =>
            {
                self.leased.count_looks(at.directory, 1)
            }
            (Operation::List { directory, .. }, Answer::Listed(_)) if !self.has_all_of(*directory) => {
                self.leased.count_looks(*directory, LOOKS_OF_LISTING)
            }
            _ => false,
        };
        if let Answer::Attributes(found) = answer
            && found.kind == FileKind::Directory
            && !self.has_all_of(found.inode)
        {
            is_due |= self.leased.count_looks(found.inode, 1);
        }
        is_due
    }

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

    /// What is known of an inode for certain.
    fn known(&self, inode: InodeNumber) -> Option<&KeptAttributes> {
        if !self.has_all_of(inode) {
            self.leased.use_one(self.cover(inode)?.directory);
        }
        self.attributes.get(&inode)
    }

    fn attributes(&self, inode: InodeNumber) -> Option<Attributes> {
        self.known(inode)?.value
    }

    fn xattrs(&self, inode: InodeNumber) -> Option<&Vec<Vec<u8>>> {
        self.known(inode)?.xattrs.as_ref().map(|(names, _)| names)
    }

    fn know_xattrs(&mut self, inode: InodeNumber, names: Vec<Vec<u8>>) {
        let since = self.step;
        if self.has_all_of(inode) || self.cover(inode).is_some() {
            self.attributes.entry(inode).or_default().xattrs = Some((names, since));
        }
    }

    /// Forgets extended attributes that a change touches, when it begins and when it ends. Returns whether
    /// it is a change of extended attributes. What was set is not kept either: the shard stores no access
    /// control list that only says what the permissions say.
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
        let of_directory = self.known(at.directory).and_then(|kept| kept.xattrs.as_ref());
        let passes_none =
            |(names, since): &(Vec<Vec<u8>>, Step)| *since < step && !names.iter().any(|n| n == DEFAULT_ACL);
        if of_directory.is_some_and(passes_none) && self.are_xattrs_untouched(step) {
            self.know_xattrs(made, Vec::new());
        }
    }

    fn name(&self, at: &NameIn) -> Option<Name> {
        if !self.has(at.directory) {
            return None;
        }
        self.leased.use_one(at.directory);
        let directory = self.directories.get(&at.directory)?;
        let absent = directory.is_complete.then_some(Name::Absent);
        directory.names.get(&at.name).copied().or(absent)
    }

    fn set_name(&mut self, at: &NameIn, name: Name) {
        if !self.has(at.directory) {
            return;
        }
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
        if !self.is_on() {
            return;
        }
        let step = self.step;
        for inode in inodes {
            let kept = self.attributes.entry(*inode).or_default();
            (kept.value, kept.touched) = (None, step);
        }
        names.iter().for_each(|at| self.set_name(at, Name::Unknown(step)));
    }

    /// Whether only the change that began then can have touched a name since. That change has ended.
    fn is_of_one(&self, at: &NameIn, began: Step) -> bool {
        self.name(at) == Some(Name::Unknown(began)) && !self.changing_names.contains_key(&key_of(at))
    }

    /// Whether no change has touched an inode since then.
    fn is_untouched(&self, since: Step, inode: InodeNumber) -> bool {
        let is_untouched = self.attributes.get(&inode).is_none_or(|kept| kept.touched <= since);
        (is_untouched && !self.changing.contains_key(&inode)) || mutated(Mutation::KeptBesideChanges)
    }

    /// A question was answered with attributes, and perhaps with what they last.
    fn see(&mut self, look: Look, found: &Attributes, with: Option<InodeNumber>) {
        let is_shown = self.is_untouched(look.step, found.inode);
        match with {
            Some(directory) if is_shown && self.has_since(directory, look.step) => {
                self.set_cover(found.inode, directory);
            }
            _ => self.uncover(found.inode),
        }
        self.put(found, is_shown);
    }

    /// Keeps attributes, unless newer ones were seen. What has no name is not kept: it may be gone.
    fn put(&mut self, found: &Attributes, is_shown: bool) {
        if found.kind != FileKind::Directory && found.links != 1 {
            self.uncover(found.inode);
        }
        if !self.has_all_of(found.inode) && !self.attributes.contains_key(&found.inode) {
            return;
        }
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
        if self.is_untouched(look.step, at.directory) && self.has_since(at.directory, look.step) {
            self.set_name(at, name);
        }
    }

    /// A question found names behind a cookie.
    fn list(&mut self, look: Look, directory: InodeNumber, after: u64, listed: &Listed) {
        let is_untouched = self.is_untouched(look.step, directory) && self.has_since(directory, look.step);
        for entry in &listed.entries {
            let is_directory = entry.attributes.kind == FileKind::Directory;
            let with = if is_directory { entry.attributes.inode } else { directory };
            // Of an inode in another shard only the number is shown.
            if entry.attributes.revision > 0 {
                self.see(look, &entry.attributes, entry.lasts.then_some(with));
            }
            if is_untouched {
                let at = NameIn { directory, name: entry.name.clone() };
                self.set_name(&at, Name::Leads(entry.attributes.inode));
            }
        }
        if !is_untouched {
            return;
        }
        let known = self.directories.entry(directory).or_default();
        if known.listed_to != after {
            return;
        }
        known.listed_to = listed.entries.last().map_or(after, |entry| entry.cookie);
        known.is_complete |= listed.is_end;
    }

    /// Carries a change of names over into what is kept. No other change has touched these names since it
    /// left. `is_alone` says whether no other change has touched the inode either.
    fn follow(
        &mut self,
        operation: &Operation,
        found: &Attributes,
        before: &[(NameIn, Option<Name>)],
        is_alone: bool,
    ) {
        match operation {
            Operation::Create(at, _) | Operation::CreateOpen(at, ..) | Operation::Link(_, at) => {
                self.set_name(at, Name::Leads(found.inode));
                let is_made = found.kind == FileKind::Directory && matches!(operation, Operation::Create(..));
                // Unless something was made in it, or found, before this answer was here.
                if is_made && is_alone && self.has_all_of(found.inode) {
                    let empty = || Directory { is_complete: true, ..Directory::default() };
                    self.directories.entry(found.inode).or_insert_with(empty);
                }
            }
            Operation::Unlink(at) => self.set_name(at, Name::Absent),
            Operation::RemoveDirectory(at) => {
                self.set_name(at, Name::Absent);
                self.leave_directory(found.inode);
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
            self.leave_directory(replaced);
        }
        // Files last with the directories that they are in now.
        let others = replaced.into_iter().filter(|inode| *inode != moved);
        others.chain([moved]).for_each(|inode| self.uncover_file(inode));
        self.set_name(from, left);
        self.set_name(to, Name::Leads(moved));
    }

    /// A rename may have happened, and it is not known which inodes it has touched.
    fn forget_renamed(
        &mut self,
        (from, to): (&NameIn, &NameIn),
        mode: RenameMode,
        found: Option<&Attributes>,
    ) {
        match found {
            // It has not happened.
            None if self.all_of.is_empty() => {}
            // A file replaces a file only.
            Some(moved)
                if self.all_of.is_empty()
                    && moved.kind != FileKind::Directory
                    && mode != RenameMode::Exchange =>
            {
                self.uncover(moved.inode);
                for directory in [from.directory, to.directory] {
                    if self.leased.since(directory).is_some() {
                        self.drop_directory(directory);
                        self.leased.insert(directory, self.step);
                    }
                }
            }
            _ => self.forget(),
        }
    }

    /// A file that this session has made under the lease of its directory lasts under that lease. For a
    /// directory, its own lease is to be asked for, because much will be made in it. Returns whether a
    /// lease is due now.
    fn cover_made(&mut self, operation: &Operation, made: &Attributes, began: Step) -> bool {
        let (Operation::Create(at, _) | Operation::CreateOpen(at, ..)) = operation else { return false };
        if self.leased.since(at.directory).is_none_or(|since| since > began) {
            return false;
        }
        match made.kind {
            FileKind::Directory => !self.has_all_of(made.inode) && self.leased.is_due_now(made.inode),
            _ => {
                self.set_cover(made.inode, at.directory);
                false
            }
        }
    }

    /// As `uncover`, for a file only: a directory lasts under its own lease.
    fn uncover_file(&mut self, inode: InodeNumber) {
        if self.attributes.get(&inode).and_then(|kept| kept.cover).is_some_and(|c| c.directory != inode) {
            self.uncover(inode);
        }
    }

    /// A directory is gone.
    fn leave_directory(&mut self, inode: InodeNumber) {
        self.drop_directory(inode);
        self.unlease(inode);
    }

    /// A directory is held no more. With the last one goes what is noted of changes.
    fn unlease(&mut self, directory: InodeNumber) {
        if !self.leased.remove(directory) || self.has_all_of(directory) {
            return;
        }
        self.drop_directory(directory);
        if !self.is_on() {
            self.forget();
        }
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
