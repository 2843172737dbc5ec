//! Whether the tables of a shard agree with each other.
//!
//! The tables are read a few items at a time, so that the shard serves in between. What one item says of
//! another is compared at once. The names of an inode can be counted only after all names were read, so
//! the count is compared for inodes that have not changed since the reading began ([`Tables::watch`]).

use crate::finding::TableFinding;
use crate::key::{Key, KeyParts, Table};
use crate::record::{Entry, Inode, Value};
use crate::tables::Tables;
use crate::usage::Usage;
use std::collections::{BTreeMap, BTreeSet};
use weft_types::limits::FILE_OPERATIONS_MAX;
use weft_types::{Attributes, FileKind, InodeNumber, SessionId};
use weft_wire::files::{FileLock, LockMode, LockOwner, NameAcross};

/// Entries of a directory that is changed all the time which are counted at once: some milliseconds.
const COUNTED_AT_ONCE: u64 = 32_768;

/// The tables that are read, in this order: names before what has them.
const ORDER: [Table; 11] = [
    Table::Entry,
    Table::Inode,
    Table::Orphan,
    Table::Part,
    Table::Target,
    Table::Xattr,
    Table::Lock,
    Table::Held,
    Table::Room,
    Table::Session,
    Table::Answer,
];

/// Everything in the tables of a shard that contradicts something else; inodes of other shards are not looked
/// for.
pub fn check_tables(tables: &Tables) -> Vec<TableFinding> {
    let mut check = Pass::default();
    while !check.step(tables, usize::MAX) {}
    let mut used = Usage::default();
    for (_, value) in tables.of(Table::Inode) {
        let inode = Inode::decode(value).expect("values are checked");
        used.add(&inode, tables.room(inode.attributes.inode));
    }
    check.findings.extend(used.differs(tables.usage()).map(TableFinding::Used));
    check.findings
}

/// What was seen of an inode's names.
#[derive(Default)]
struct Seen {
    names: u32,
    parent: Option<InodeNumber>,
    /// What the last one of its names says that it is.
    kind: Option<FileKind>,
    entries: u64,
    directories: u32,
}

/// One reading of all tables.
#[derive(Default)]
pub(crate) struct Pass {
    /// Directories of the file system lie in several shards: names of an inode may be in another one.
    is_spread: bool,
    /// The table that is read, by its place in the order.
    at: usize,
    /// The item that was read last.
    last: Option<Key>,
    seen: BTreeMap<InodeNumber, Seen>,
    /// The inode whose locks were compared last.
    locked: Option<InodeNumber>,
    /// Items that were read.
    pub(crate) read: u64,
    /// Inodes that were compared.
    pub(crate) inodes: u64,
    /// Names that were read.
    pub(crate) names: u64,
    /// Inodes without a name.
    pub(crate) orphans: u64,
    /// Inodes whose names seem wrong, and which were changed since the pass began.
    pub(crate) unsettled: BTreeSet<InodeNumber>,
    /// Inodes with names in another shard than their own, once all inodes were read.
    pub(crate) across: Vec<NameAcross>,
    pub(crate) findings: Vec<TableFinding>,
}

impl Pass {
    /// A reading of the tables of a shard; `is_spread`: of a file system whose directories lie in several.
    pub(crate) fn new(is_spread: bool) -> Pass {
        Pass { is_spread, ..Pass::default() }
    }

    /// Reads at most `most` items more, and says whether these were the last ones. Nothing may change the
    /// tables meanwhile; between two steps it may, if they are watched.
    pub(crate) fn step(&mut self, tables: &Tables, most: usize) -> bool {
        let mut left = most;
        while let Some(table) = ORDER.get(self.at) {
            let items = tables.behind(*table, self.last.as_ref());
            let mut last = None;
            for (key, value) in items.take(left) {
                left -= 1;
                self.item(tables, key, value);
                last = Some(key);
            }
            if left == 0 {
                self.last = last.cloned().or(self.last.take());
                return false;
            }
            if *table == Table::Inode {
                self.left_over(tables);
            }
            (self.at, self.last) = (self.at + 1, None);
        }
        true
    }

    fn item(&mut self, tables: &Tables, key: &Key, value: &Value) {
        self.read += 1;
        match key.parts() {
            Some(KeyParts::Entry(directory, hash, name)) => {
                self.entry(tables, (directory, hash, name), value);
            }
            Some(KeyParts::Inode(_)) => self.inode(tables, value),
            Some(KeyParts::Orphan(inode)) => {
                self.orphans += 1;
                self.owner(tables, "an order to purge", inode, |_| true);
            }
            Some(KeyParts::Part(inode, _)) => {
                self.owner(tables, "a part of a directory", inode, |kind| kind == FileKind::Directory);
            }
            Some(KeyParts::Target(inode, piece)) => {
                self.owner(tables, "a target", inode, |kind| kind == FileKind::Symlink);
                self.pieces(tables, inode, piece, |piece| Key::target(inode, piece));
            }
            Some(KeyParts::Xattr(inode, name, piece)) => {
                self.owner(tables, "an extended attribute", inode, |_| true);
                self.pieces(tables, inode, piece, |piece| Key::xattr(inode, name, piece));
            }
            Some(KeyParts::Lock(inode, session, ..)) => {
                // Who has a lock has the inode open.
                if tables.get(&Key::held(inode, session)).is_none() {
                    self.findings.push(TableFinding::NoOwner { what: "a lock", inode });
                }
                self.locks(tables, inode);
            }
            Some(KeyParts::Room(inode)) => {
                if !tables.holders(inode).any(|(_, mode)| mode.writes()) {
                    self.findings.push(TableFinding::NoOwner { what: "room to write", inode });
                }
            }
            Some(KeyParts::Held(inode, _)) if inode == tables.whole() => {}
            Some(KeyParts::Held(inode, _)) => self.owner(tables, "a hold", inode, |_| true),
            Some(KeyParts::Session(session)) => {
                let answers = tables.from(Key::answer(session, 0)).map_while(|(key, _)| match key.parts() {
                    Some(KeyParts::Answer(of, _)) if of == session => Some(()),
                    _ => None,
                });
                let kept = answers.take(FILE_OPERATIONS_MAX as usize + 1).count() as u64;
                if kept > FILE_OPERATIONS_MAX {
                    self.findings.push(TableFinding::Answers { session: session.0, kept });
                }
            }
            Some(KeyParts::Answer(session, number)) => {
                if tables.session(session).is_none_or(|answered| number <= answered) {
                    self.findings.push(TableFinding::Answers { session: session.0, kept: u64::MAX });
                }
            }
            Some(
                KeyParts::Shard
                | KeyParts::Transactions
                | KeyParts::Committed(..)
                | KeyParts::Prepared(..)
                | KeyParts::Over(_)
                | KeyParts::Quota(_)
                | KeyParts::Budget(..),
            )
            | None => {}
        }
    }

    fn entry(&mut self, tables: &Tables, (directory, hash, name): (InodeNumber, u64, &[u8]), value: &Value) {
        let entry = Entry::decode(value).expect("values are checked");
        self.names += 1;
        if hash != tables.hash(directory, name) {
            self.findings.push(TableFinding::OtherHash { directory, name: name.to_vec() });
        }
        let of_directory = self.seen.entry(directory).or_default();
        of_directory.entries += 1;
        of_directory.directories += u32::from(entry.kind == FileKind::Directory);
        let named = self.seen.entry(entry.inode).or_default();
        named.names += 1;
        (named.parent, named.kind) = (Some(directory), Some(entry.kind));
        match tables.inode(entry.inode) {
            None if is_here(tables, entry.inode) => {
                let name = name.to_vec();
                self.findings.push(TableFinding::NoInode { directory, name, inode: entry.inode });
            }
            Some(inode) if inode.attributes.kind != entry.kind => {
                let kind = inode.attributes.kind;
                self.findings.push(TableFinding::OtherKind { inode: entry.inode, named: entry.kind, kind });
            }
            _ => {}
        }
    }

    fn inode(&mut self, tables: &Tables, value: &Value) {
        let Inode { attributes, parent, .. } = Inode::decode(value).expect("values are checked");
        self.inodes += 1;
        let inode = attributes.inode;
        let seen = self.seen.remove(&inode).unwrap_or_default();
        if inode.counter() >= tables.shard().map_or(0, |record| record.reserved) {
            self.findings.push(TableFinding::NotReserved { inode });
        }
        let is_root = inode == InodeNumber::ROOT;
        let found = match attributes.kind {
            FileKind::Directory if seen.names == 1 || is_root => 2,
            _ => seen.names,
        };
        let may_be_elsewhere = self.is_spread && seen.names < attributes.links;
        let lacks = names_of(&attributes).saturating_sub(seen.names);
        if self.is_spread && lacks > 0 {
            self.across.push(NameAcross { inode, names: lacks, directory: parent, kind: attributes.kind });
        }
        if found != attributes.links && !may_be_elsewhere {
            self.of_names(tables, TableFinding::Links { inode, said: attributes.links, found });
        }
        let found = if is_root { Some(inode) } else { seen.parent };
        let says_directory = attributes.kind == FileKind::Directory || parent != InodeNumber(0);
        if says_directory && found.is_some() && (found != Some(parent) || seen.names > 1) {
            self.of_names(tables, TableFinding::Parent { inode, said: parent, found });
        }
        if attributes.kind == FileKind::Directory {
            self.count(tables, inode, (seen.entries, seen.directories));
        }
        let is_listed = tables.get(&Key::orphan(inode)).is_some();
        if is_listed != (attributes.links == 0) {
            self.findings.push(TableFinding::Orphan { inode, links: attributes.links, is_listed });
        }
    }

    fn count(&mut self, tables: &Tables, directory: InodeNumber, mut found: (u64, u32)) {
        let part = tables.part(directory).unwrap_or_default();
        let said = (part.entries, part.directories);
        if said == found {
            return;
        }
        if tables.is_touched(directory) && part.entries <= COUNTED_AT_ONCE {
            found = (0, 0);
            for entry in tables.entries(directory).take(2 * COUNTED_AT_ONCE as usize) {
                found = (found.0 + 1, found.1 + u32::from(entry.kind == FileKind::Directory));
            }
            if said != found {
                self.findings.push(TableFinding::Counted { directory, said, found });
            }
            return;
        }
        self.of_names(tables, TableFinding::Counted { directory, said, found });
    }

    /// Something that was found by counting names: it is so unless the inode was changed meanwhile.
    fn of_names(&mut self, tables: &Tables, finding: TableFinding) {
        match finding.inode().filter(|inode| tables.is_touched(*inode)) {
            Some(inode) => drop(self.unsettled.insert(inode)),
            None => self.findings.push(finding),
        }
    }

    /// What is left when all inodes were read: names of inodes of other shards, and entries of a directory
    /// that has no inode.
    fn left_over(&mut self, tables: &Tables) {
        for (inode, seen) in std::mem::take(&mut self.seen) {
            if let (false, Some(directory), Some(kind)) = (is_here(tables, inode), seen.parent, seen.kind) {
                self.across.push(NameAcross { inode, names: seen.names, directory, kind });
            }
            if seen.entries > 0 && is_here(tables, inode) {
                self.of_names(tables, TableFinding::NoOwner { what: "entries", inode });
            }
        }
    }

    /// No two locks exclude each other.
    fn locks(&mut self, tables: &Tables, inode: InodeNumber) {
        if self.locked.replace(inode) == Some(inode) {
            return;
        }
        let mut locks: Vec<(SessionId, FileLock)> = tables.locks(inode).collect();
        locks.sort_by_key(|(_, lock)| (lock.owner.family, lock.start));
        for family in locks.chunk_by(|(_, a), (_, b)| a.owner.family == b.owner.family) {
            let [mut all, mut exclusive] = [Reach::default(), Reach::default()];
            for (session, lock) in family {
                let (owner, is_exclusive) = ((*session, lock.owner), lock.mode == LockMode::Exclusive);
                let before = if is_exclusive { &all } else { &exclusive };
                if before.of_others(owner).is_some_and(|last| last >= lock.start) {
                    self.findings.push(TableFinding::Locks { inode });
                    return;
                }
                all.add(owner, lock.last);
                if is_exclusive {
                    exclusive.add(owner, lock.last);
                }
            }
        }
    }

    /// Checks that an inode to which something belongs is there, and can have such a thing.
    fn owner(
        &mut self,
        tables: &Tables,
        what: &'static str,
        inode: InodeNumber,
        fits: impl Fn(FileKind) -> bool,
    ) {
        if !tables.inode(inode).is_some_and(|found| fits(found.attributes.kind)) {
            self.findings.push(TableFinding::NoOwner { what, inode });
        }
    }

    /// Looks at all pieces with the first one; others must have one before them.
    fn pieces(&mut self, tables: &Tables, inode: InodeNumber, piece: u8, key: impl Fn(u8) -> Key) {
        let is_whole = match piece {
            0 => {
                let pieces = (0..=u8::MAX).map_while(|piece| tables.get(&key(piece)));
                let bytes: Vec<u8> = pieces.flat_map(|piece| piece.iter().copied()).collect();
                let (length, bytes) = bytes.split_first_chunk().expect("values are checked");
                u32::from_le_bytes(*length) as usize == bytes.len()
            }
            _ => tables.get(&key(piece - 1)).is_some(),
        };
        if !is_whole {
            self.findings.push(TableFinding::Pieces { inode });
        }
    }
}

/// How far locks reach: the furthest one, and the furthest one of another owner.
#[derive(Default)]
struct Reach {
    furthest: Option<((SessionId, LockOwner), u64)>,
    other: Option<((SessionId, LockOwner), u64)>,
}

impl Reach {
    fn add(&mut self, owner: (SessionId, LockOwner), last: u64) {
        let new = Some((owner, last));
        match self.furthest {
            Some((of, reach)) if of == owner => self.furthest = Some((of, reach.max(last))),
            Some((_, reach)) if reach >= last => {
                if self.other.is_none_or(|(_, reach)| reach < last) {
                    self.other = new;
                }
            }
            before => (self.furthest, self.other) = (new, before),
        }
    }

    /// How far those reach that others have.
    fn of_others(&self, owner: (SessionId, LockOwner)) -> Option<u64> {
        let others = [self.furthest, self.other].into_iter().flatten().filter(|(of, _)| *of != owner);
        others.map(|(_, last)| last).max()
    }
}

/// How many names an inode says that it has.
pub(crate) fn names_of(attributes: &Attributes) -> u32 {
    match attributes.kind {
        _ if attributes.inode == InodeNumber::ROOT => 0,
        FileKind::Directory => u32::from(attributes.links > 0),
        _ => attributes.links,
    }
}

fn is_here(tables: &Tables, inode: InodeNumber) -> bool {
    tables.shard().is_some_and(|record| record.number == inode.shard())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Change;
    use crate::decide::{Limits, decide};
    use crate::record::encode_lock;
    use crate::shard::ShardFormat;
    use crate::superblock::ShardName;
    use weft_checker::FileModel;
    use weft_rt::random_below;
    use weft_rt::sim::Sim;
    use weft_types::{FileTime, SessionId};
    use weft_wire::files::{FileRequest, HoldMode, LockFamily};

    fn new_tables() -> Tables {
        let name = ShardName { file_system: 9, shard: 0 };
        let mut tables = ShardFormat::new(name, [7; 16], [1; 12]).items(FileTime::from_us(1));
        tables.begin();
        tables
    }

    /// Carries out one operation of many kinds.
    fn step(tables: &mut Tables, model: &mut FileModel, number: u64) {
        let operation = model.any_operation(&mut random_below);
        let number = if operation.changes() { number } else { 0 };
        let request =
            FileRequest { session: SessionId(3), number, answered: number.saturating_sub(2), operation };
        let limits = Limits::default();
        let decision = decide(tables, &request, FileTime::from_us(number), limits);
        decision.changes.iter().for_each(|change| tables.apply(change));
        model.judge(&request.operation, &decision.answer).unwrap();
    }

    #[test]
    fn nothing_is_found_in_tables_that_change_while_they_are_read() {
        for seed in 0..20 {
            Sim::new(seed).block_on(async move {
                let (mut tables, mut model) = (new_tables(), FileModel::below(InodeNumber::ROOT));
                for number in 1..400 {
                    step(&mut tables, &mut model, number);
                }
                tables.watch(true);
                let mut pass = Pass::default();
                for number in 400.. {
                    if pass.step(&tables, 1 + random_below(3) as usize) {
                        break;
                    }
                    if random_below(2) == 0 {
                        step(&mut tables, &mut model, number);
                    }
                }
                assert_eq!(pass.findings, [], "seed {seed}");
                assert_eq!(check_tables(&tables), [], "seed {seed}");
            });
        }
    }

    #[test]
    fn each_kind_of_item_that_is_lost_is_missed() {
        Sim::new(1).block_on(async {
            let (mut tables, mut model) = (new_tables(), FileModel::below(InodeNumber::ROOT));
            for number in 1..600 {
                step(&mut tables, &mut model, number);
            }
            assert_eq!(check_tables(&tables), []);
            let is_missed = |key: &Key| {
                let mut damaged = Tables::default();
                let others = tables.items().filter(|(other, _)| *other != key);
                others.for_each(|(key, value)| damaged.load(key.clone(), value.clone()));
                !check_tables(&damaged).is_empty()
            };
            for table in [Table::Entry, Table::Inode, Table::Part] {
                let keys: Vec<&Key> = tables.of(table).map(|(key, _)| key).collect();
                assert!(keys.len() > 3, "{table:?} has items");
                let empty = |key: &Key| match key.parts() {
                    // A directory without entries has none to count.
                    Some(KeyParts::Part(of, _)) => tables.entries(of).next().is_none(),
                    _ => false,
                };
                for key in keys.into_iter().filter(|key| !empty(key)) {
                    assert!(is_missed(key), "{key:?}");
                }
            }
        });
    }

    #[test]
    fn names_across_shards_are_listed_and_no_findings() {
        Sim::new(2).block_on(async {
            let (mut tables, mut model) = (new_tables(), FileModel::below(InodeNumber::ROOT));
            for number in 1..300 {
                step(&mut tables, &mut model, number);
            }
            let named = tables.entries(InodeNumber::ROOT).find(|entry| entry.kind == FileKind::Regular);
            let named = named.expect("the model makes files");
            let (hash, elsewhere) = (tables.hash(InodeNumber::ROOT, b"far"), InodeNumber::new(3, 9));
            let far = Entry { inode: elsewhere, kind: FileKind::Directory };
            // One name leads to another shard, in the place of one that leads to a file of this shard.
            let others = tables.items().filter(|(key, value)| {
                let is_it = Entry::decode(value).is_ok_and(|entry| entry.inode == named.inode);
                !(matches!(key.parts(), Some(KeyParts::Entry(InodeNumber::ROOT, ..))) && is_it)
            });
            let mut spread = Tables::default();
            others.for_each(|(key, value)| spread.load(key.clone(), value.clone()));
            let taken = tables.entries(InodeNumber::ROOT).filter(|entry| entry.inode == named.inode).count();
            spread.load(Key::entry(InodeNumber::ROOT, hash, b"far"), far.encode());
            let mut pass = Pass::new(true);
            while !pass.step(&spread, 7) {}
            let lacks = pass.across.iter().find(|name| name.inode == named.inode).expect("it is listed");
            assert_eq!((lacks.names, lacks.kind), (taken as u32, FileKind::Regular));
            let leads = pass.across.iter().find(|name| name.inode == elsewhere).expect("it is listed");
            assert_eq!(
                (leads.names, leads.directory, leads.kind),
                (1, InodeNumber::ROOT, FileKind::Directory)
            );
            let is_count = |finding: &TableFinding| matches!(finding, TableFinding::Counted { .. });
            assert!(pass.findings.iter().all(is_count), "{:?}", pass.findings);
        });
    }

    #[test]
    fn locks_that_exclude_each_other_are_found() {
        Sim::new(1).block_on(async {
            for _ in 0..3_000 {
                let mut tables = new_tables();
                let root = InodeNumber::ROOT;
                for session in [1, 2].map(SessionId) {
                    tables.load(Key::held(root, session), Value::from([HoldMode::Open as u8]));
                }
                for _ in 0..2 + random_below(4) {
                    let owner = LockOwner { family: LockFamily::Range, id: random_below(2) };
                    let (a, b) = (random_below(20), random_below(20));
                    let mode = [LockMode::Shared, LockMode::Exclusive][random_below(2) as usize];
                    let session = SessionId(1 + random_below(2));
                    let lock = FileLock { owner, start: a.min(b), last: a.max(b), mode, process: 0 };
                    tables.load(Key::lock(root, session, owner, lock.start), encode_lock(&lock));
                }
                let mut locks = tables.locks(root);
                let expected = locks
                    .any(|(session, lock)| tables.locks_in_the_way(root, session, lock).next().is_some());
                assert_eq!(check_tables(&tables).is_empty(), !expected);
            }
        });
    }

    #[test]
    fn what_was_changed_meanwhile_is_unsettled_and_no_finding() {
        let mut tables = new_tables();
        tables.watch(true);
        let wrong = tables.inode(InodeNumber::ROOT).map(|mut root| {
            root.attributes.links = 7;
            root
        });
        tables.apply(&Change::Put(Key::inode(InodeNumber::ROOT), wrong.unwrap().encode()));
        let mut pass = Pass::default();
        while !pass.step(&tables, 1) {}
        assert_eq!((pass.findings.len(), pass.unsettled.len()), (0, 1));
        let mut again = Pass::default();
        tables.watch(true);
        while !again.step(&tables, 1) {}
        assert_eq!(again.findings.len(), 1, "it stands still: {:?}", again.findings);
    }
}
