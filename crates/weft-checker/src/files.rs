//! A file system as one program would keep it in memory: what a metadata shard has to answer to one client
//! after another.

use crate::tree::{Deed, mount_of};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weft_types::limits::FILE_BYTES_MAX;
use weft_types::{FileKind, FileTime, InodeNumber};
use weft_wire::files::*;

/// A file, a directory or what else there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    kind: u8,
    mode: u16,
    uid: u32,
    gid: u32,
    device: u64,
    size: u64,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    entries: BTreeMap<Vec<u8>, u64>,
    names: u32,
    parent: u64,
    is_unnamed: bool,
    is_held: bool,
    /// It is held to write.
    may_write: bool,
    /// A directory that is held to read.
    is_kept: bool,
    /// Handles of several mounts: see [`crate::TreeHistory`].
    handles: BTreeSet<u64>,
    reserved_end: u64,
    /// The mode of each unit that is locked, by owner.
    locks: BTreeMap<LockOwner, [Option<LockMode>; LOCK_UNITS as usize]>,
}

/// Locks of the model are on the first so many bytes of a file.
const LOCK_UNITS: u64 = 12;

impl Expected {
    /// The number of an inode is known.
    pub(crate) fn name_inode(&mut self, unknown: u64, inode: u64) {
        match self {
            Expected::Seen(seen, _) if *seen == unknown => *seen = inode,
            Expected::Listed(entries) => {
                entries.values_mut().filter(|entry| **entry == unknown).for_each(|entry| *entry = inode);
            }
            _ => {}
        }
    }
}

impl Node {
    /// It is not held any more.
    fn give_back(&mut self) {
        (self.is_held, self.is_kept, self.may_write) = (false, false, false);
        self.locks.clear();
    }

    /// Whether somebody else has a lock that excludes this one.
    fn is_locked(&self, lock: &FileLock) -> bool {
        let others = self.locks.iter().filter(|(owner, _)| **owner != lock.owner);
        let of_family = others.filter(|(owner, _)| owner.family == lock.owner.family);
        let last = lock.last.min(LOCK_UNITS - 1) as usize;
        let mut modes = of_family.flat_map(|(_, units)| &units[lock.start as usize..=last]);
        modes.any(|mode| mode.is_some_and(|mode| mode.max(lock.mode) == LockMode::Exclusive))
    }

    fn lock(&mut self, owner: LockOwner, (start, last): (u64, u64), mode: Option<LockMode>) {
        let units = self.locks.entry(owner).or_default();
        units[start as usize..=last.min(LOCK_UNITS - 1) as usize].fill(mode);
        if *units == [None; LOCK_UNITS as usize] {
            self.locks.remove(&owner);
        }
    }

    /// Whether somebody has it open.
    fn is_open(&self) -> bool {
        self.is_held || !self.handles.is_empty()
    }

    /// Whether it may be purged.
    fn is_orphan(&self) -> bool {
        self.names == 0 && !self.is_open()
    }
}

/// What is expected of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Kind, mode, links, owner, group, size, device.
    Seen(u64, (u8, u16, u32, u32, u32, u64, u64)),
    /// An inode that is new, with these.
    New((u8, u16, u32, u32, u32, u64, u64)),
    Listed(BTreeMap<Vec<u8>, u64>),
    Bytes(Vec<u8>),
    Names(Vec<Vec<u8>>),
    Done,
    Reserved(u64),
    Locked(bool),
    Failed(FileError),
}

/// What a number below another one is drawn with.
pub type Dice<'d> = &'d mut dyn FnMut(u64) -> u64;

/// The names and attributes of a file system, without the times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileModel {
    nodes: BTreeMap<u64, Arc<Node>>,
    /// Inodes that were given out, also those that are gone.
    known: Vec<u64>,
}

/// Characters of an operation or an answer in what is said of it.
const TEXT_CHARS: usize = 300;

/// Numbers of inodes from this one on stand for those that are not known yet.
pub(crate) const UNKNOWN: u64 = 1 << 63;

const DIRECTORY: u8 = FileKind::Directory as u8;
const REGULAR: u8 = FileKind::Regular as u8;
const SYMLINK: u8 = FileKind::Symlink as u8;

impl FileModel {
    /// One directory without entries, of owner and group 0 and with mode 0755. Nothing outside of it is
    /// known.
    pub fn below(root: InodeNumber) -> FileModel {
        let node = Node { kind: DIRECTORY, mode: 0o755, names: 1, parent: root.0, ..Node::default() };
        FileModel { nodes: [(root.0, Arc::new(node))].into(), known: vec![root.0] }
    }

    fn any_inode(&self, dice: Dice<'_>) -> InodeNumber {
        // Mostly one of the first, so that directories fill.
        let most = if dice(2) == 0 { 6.min(self.known.len()) } else { self.known.len() };
        InodeNumber(self.known[dice(most as u64) as usize])
    }

    fn any_name(&self, dice: Dice<'_>) -> NameIn {
        let names: [&[u8]; 10] =
            [b"a", b"b", b"c", b"d", b"e", b"f", b"\xff\n", &[b'x'; 255], &[b'y'; 256], b".."];
        let likely = if dice(12) == 0 { names.len() } else { 6 };
        NameIn { directory: self.any_inode(dice), name: names[dice(likely as u64) as usize].to_vec() }
    }

    fn any_new(dice: Dice<'_>) -> NewInode {
        let kinds =
            [FileKind::Regular, FileKind::Directory, FileKind::Directory, FileKind::Symlink, FileKind::Pipe];
        let kind = kinds[dice(5) as usize];
        let length = [1, 30, 3000, 4095, 0][dice(5) as usize];
        NewInode {
            kind,
            mode: dice(0o7777) as u16,
            umask: [0, 0o022, 0o777][dice(3) as usize],
            uid: dice(4) as u32,
            gid: dice(4) as u32,
            device: 0,
            target: if kind == FileKind::Symlink { vec![b't'; length] } else { Vec::new() },
        }
    }

    /// An operation that may or may not succeed.
    pub fn any_operation(&self, dice: Dice<'_>) -> Operation {
        let xattr = [&b"user.a"[..], b"user.b", b"user.c", b""][dice(4) as usize].to_vec();
        let modes = [RenameMode::Replace, RenameMode::Keep, RenameMode::Exchange];
        match dice(35) {
            0..7 => Operation::Create(self.any_name(dice), FileModel::any_new(dice)),
            7 => {
                let end = dice(3) << dice(30);
                Operation::CreateOpen(self.any_name(dice), FileModel::any_new(dice), end)
            }
            8 => Operation::CreateUnnamed(self.any_inode(dice), FileModel::any_new(dice)),
            9..11 => Operation::Link(self.any_inode(dice), self.any_name(dice)),
            11..14 => Operation::Unlink(self.any_name(dice)),
            14..16 => Operation::RemoveDirectory(self.any_name(dice)),
            16..21 => Operation::Rename(self.any_name(dice), self.any_name(dice), modes[dice(3) as usize]),
            21 => Operation::Find(self.any_name(dice)),
            22 => Operation::Attributes(self.any_inode(dice)),
            23..25 => {
                let mut changes = AttributeChanges::default();
                match dice(3) {
                    0 => changes.size = Some(dice(3) << dice(62)),
                    1 => changes.mode = Some(dice(0o7777) as u16),
                    _ => (changes.uid, changes.gid) = (Some(dice(9) as u32), Some(dice(9) as u32)),
                }
                Operation::Change(self.any_inode(dice), changes)
            }
            25 => Operation::List { directory: self.any_inode(dice), after: 0, limit: u32::MAX },
            26 => Operation::Target(self.any_inode(dice)),
            27 if dice(2) == 0 => Operation::XattrNames(self.any_inode(dice)),
            27 => Operation::Xattr(self.any_inode(dice), xattr),
            28 => {
                let modes = [XattrMode::Either, XattrMode::Create, XattrMode::Replace];
                let length = [0, 10, 1019, 1020, 1021, 5000, 65_536][dice(7) as usize];
                let value = vec![dice(256) as u8; length];
                Operation::SetXattr(self.any_inode(dice), xattr, value, modes[dice(3) as usize])
            }
            29 => Operation::RemoveXattr(self.any_inode(dice), xattr),
            30..32 => Operation::Hold(self.any_inode(dice), HoldMode::Open),
            32..34 => {
                let size = (dice(2) == 0).then(|| dice(3) << dice(40));
                let changes = AttributeChanges { size, ..Default::default() };
                Operation::Release(self.any_inode(dice), changes)
            }
            _ if dice(2) == 0 => Operation::Unreserve(self.any_inode(dice), dice(3) << dice(62)),
            _ if dice(2) == 0 => Operation::Reserve(self.any_inode(dice), dice(3) << dice(62)),
            _ => {
                let time = FileTime { seconds: dice(9) as i64, nanoseconds: 0 };
                Operation::Grow(self.any_inode(dice), dice(3) << dice(62), time)
            }
        }
    }

    /// An operation of one of a few owners on locks.
    pub fn any_lock_operation(&self, dice: Dice<'_>) -> Operation {
        let family = [LockFamily::Whole, LockFamily::Range][dice(2) as usize];
        let owner = LockOwner { family, id: dice(3) };
        let (a, b) = (dice(LOCK_UNITS), dice(LOCK_UNITS));
        let (start, last) = (a.min(b), a.max(b));
        let mode = [LockMode::Shared, LockMode::Exclusive][dice(2) as usize];
        let (inode, lock) = (self.any_inode(dice), FileLock { owner, start, last, mode, process: 7 });
        match dice(8) {
            0 => Operation::FindLock(inode, lock),
            1 => Operation::Unlock(inode, owner, (0, u64::MAX)),
            2 => Operation::Unlock(inode, owner, (start, last)),
            3..5 => Operation::Hold(inode, HoldMode::Open),
            _ => Operation::Lock(inode, lock),
        }
    }

    /// Carries an operation out, and compares the answer.
    ///
    /// # Errors
    /// If another answer was expected.
    pub fn judge(&mut self, operation: &Operation, answer: &Answer) -> Result<(), String> {
        let mut after = self.clone();
        let expected = after.carry_out(operation).unwrap_or_else(Expected::Failed);
        if !matches!(expected, Expected::Failed(_)) {
            *self = after;
        }
        self.check_what_lasts(answer)?;
        let found = match (answer, &expected) {
            (Answer::Attributes(a), Expected::New(_)) => {
                if self.known.contains(&a.inode.0) {
                    return Err(format!("inode {} is made again", a.inode));
                }
                self.adopt(operation, a.inode.0);
                Expected::New(view(a))
            }
            (Answer::Attributes(a) | Answer::Lasting(a, _), _) => Expected::Seen(a.inode.0, view(a)),
            (Answer::Listed(listed), _) => {
                if !listed.is_end || !listed.entries.is_sorted_by_key(|e| (e.cookie, e.name.clone())) {
                    return Err("a directory is listed out of order, or not to its end".to_owned());
                }
                Expected::Listed(
                    listed.entries.iter().map(|e| (e.name.clone(), e.attributes.inode.0)).collect(),
                )
            }
            (Answer::Bytes(bytes), _) => Expected::Bytes(bytes.clone()),
            (Answer::Names(names), _) => Expected::Names(names.clone()),
            (Answer::Failed(error), _) => Expected::Failed(*error),
            (Answer::Done, _) => Expected::Done,
            (Answer::Reserved(before), _) => Expected::Reserved(*before),
            (Answer::Lock(found), _) => Expected::Locked(found.is_some()),
            // Answers of the server, of which the model knows nothing.
            _ => return Err("nobody has asked for that".to_owned()),
        };
        match found == expected {
            true => Ok(()),
            false => {
                let text = |what: String| what.chars().take(TEXT_CHARS).collect::<String>();
                let (asked, found) = (text(format!("{operation:?}")), text(format!("{found:?}")));
                Err(format!("{asked} is answered with {found}, expected {}", text(format!("{expected:?}"))))
            }
        }
    }

    /// What is said to last with a directory: it is held, and is the inode itself, or holds its only name.
    fn check_what_lasts(&self, answer: &Answer) -> Result<(), String> {
        let Answer::Lasting(found, with) = answer else { return Ok(()) };
        let (inode, directory) = (found.inode.0, &self.nodes[&with.0]);
        let is_in = match self.nodes[&inode].kind {
            DIRECTORY => with.0 == inode,
            _ => self.nodes[&inode].names == 1 && directory.entries.values().any(|named| *named == inode),
        };
        match directory.is_kept && is_in {
            true => Ok(()),
            false => Err(format!("attributes of inode {inode} are said to last with directory {with}")),
        }
    }

    /// A hold of anything as a directory.
    pub fn any_hold_of_directory(&self, dice: Dice<'_>) -> Operation {
        Operation::HoldDirectory(self.any_inode(dice))
    }

    /// Likewise where inodes without a name are purged by somebody else: at any time, so whatever was asked
    /// about one may be answered with "it is gone".
    ///
    /// # Errors
    /// As [`FileModel::judge`].
    pub fn judge_beside_purges(&mut self, operation: &Operation, answer: &Answer) -> Result<(), String> {
        let other = match operation {
            Operation::Rename(_, to, _) => Some(to.directory),
            Operation::Link(inode, _) => Some(*inode),
            _ => None,
        };
        let may_be_purged =
            |inode: InodeNumber| self.nodes.get(&inode.0).is_some_and(|node| node.is_orphan());
        let is_purged = *answer == Answer::Failed(FileError::Stale)
            && [Some(operation.inode()), other].into_iter().flatten().any(may_be_purged);
        if is_purged { Ok(()) } else { self.judge(operation, answer) }
    }

    /// The number of the inode that was made.
    fn adopt(&mut self, operation: &Operation, inode: u64) {
        let node = self.nodes.remove(&0).expect("it was made as number 0");
        self.nodes.insert(inode, node);
        self.known.push(inode);
        if let Operation::Create(at, _) | Operation::CreateOpen(at, ..) = operation {
            self.change(at.directory.0).entries.insert(at.name.clone(), inode);
        }
    }

    /// There is such an inode, whatever it is.
    pub fn know(&mut self, inode: u64) {
        if !self.known.contains(&inode) {
            self.known.push(inode);
        }
    }

    /// An inode without a name is gone from now on.
    ///
    /// # Panics
    /// If it is not there, or has a name.
    pub fn purge(&mut self, inode: u64) {
        let node = self.nodes.remove(&inode).expect("only what is there is purged");
        assert_eq!(node.names, 0);
    }

    /// Inodes without a name that are not held.
    pub fn orphans(&self) -> Vec<u64> {
        self.nodes.iter().filter(|(_, node)| node.is_orphan()).map(|(inode, _)| *inode).collect()
    }

    fn node(&self, inode: InodeNumber) -> Result<&Node, FileError> {
        self.nodes.get(&inode.0).map(|node| &**node).ok_or(FileError::Stale)
    }

    fn directory(&self, inode: InodeNumber) -> Result<&Node, FileError> {
        let node = self.node(inode)?;
        if node.kind == DIRECTORY { Ok(node) } else { Err(FileError::NotDirectory) }
    }

    fn living(&self, inode: InodeNumber) -> Result<&Node, FileError> {
        let node = self.directory(inode)?;
        if node.names > 0 { Ok(node) } else { Err(FileError::NotFound) }
    }

    fn entry(&self, at: &NameIn) -> Result<Option<u64>, FileError> {
        let directory = self.directory(at.directory)?;
        match &at.name[..] {
            name if name.len() > 255 => Err(FileError::NameTooLong),
            b".." => Err(FileError::Invalid),
            name => Ok(directory.entries.get(name).copied()),
        }
    }

    fn named(&self, at: &NameIn) -> Result<u64, FileError> {
        self.entry(at)?.ok_or(FileError::NotFound)
    }

    fn change(&mut self, inode: u64) -> &mut Node {
        Arc::make_mut(self.nodes.get_mut(&inode).expect("it is there"))
    }

    fn seen(&self, inode: u64) -> Expected {
        Expected::Seen(inode, self.view(inode))
    }

    fn view(&self, inode: u64) -> (u8, u16, u32, u32, u32, u64, u64) {
        let node = &self.nodes[&inode];
        let directories =
            node.entries.values().filter(|inode| self.nodes[inode].kind == DIRECTORY).count() as u32;
        let (links, size) = match node.kind {
            DIRECTORY if node.names > 0 => (2 + directories, node.entries.len() as u64),
            DIRECTORY => (0, 0),
            SYMLINK => (node.names, node.target.len() as u64),
            _ => (node.names, node.size),
        };
        (node.kind, node.mode, links, node.uid, node.gid, size, node.device)
    }

    fn carry_out(&mut self, operation: &Operation) -> Result<Expected, FileError> {
        match operation {
            Operation::Find(at) => self.named(at).map(|inode| self.seen(inode)),
            Operation::Attributes(inode) => self.node(*inode).map(|_| self.seen(inode.0)),
            Operation::Create(at, made) => self.create(at, made),
            Operation::CreateOpen(at, made, end) => {
                if made.kind != FileKind::Regular {
                    return Err(FileError::Invalid);
                }
                let made = self.create(at, made);
                if made.is_ok() {
                    let node = self.change(0);
                    (node.is_held, node.may_write, node.reserved_end) = (true, true, *end);
                }
                made
            }
            Operation::CreateUnnamed(directory, made) => {
                self.living(*directory)?;
                if made.kind != FileKind::Regular {
                    return Err(FileError::Invalid);
                }
                self.make(*directory, made, 0)
            }
            Operation::Link(inode, at) => self.link(*inode, at),
            Operation::Rename(from, to, mode) => self.rename(from, to, *mode),
            Operation::Change(inode, changes) => self.set(*inode, changes),
            // Where data lie is not seen by who only has names.
            Operation::SetLayout(inode, _) => self.set(*inode, &AttributeChanges::default()),
            Operation::SetProject(inode, _) => self.node(*inode).map(|_| Expected::Done),
            Operation::List { directory, .. } => {
                Ok(Expected::Listed(self.directory(*directory)?.entries.clone()))
            }
            Operation::Target(inode) => match self.node(*inode)? {
                node if node.kind == SYMLINK => Ok(Expected::Bytes(node.target.clone())),
                _ => Err(FileError::Invalid),
            },
            Operation::Unlink(at) => self.unlink(at),
            Operation::RemoveDirectory(at) => self.remove_directory(at),
            Operation::Hold(inode, _) => self.hold(*inode),
            Operation::HoldDirectory(inode) => self.hold_directory(*inode),
            Operation::Release(inode, changes) => {
                let changed = match *changes == AttributeChanges::default() {
                    true => Expected::Done,
                    false => self.set(*inode, changes)?,
                };
                if self.nodes.contains_key(&inode.0) {
                    self.change(inode.0).give_back();
                }
                Ok(changed)
            }
            other if other.is_of_server() => Ok(Expected::Done),
            Operation::Reserve(inode, end) => self.move_end(*inode, *end, u64::max),
            Operation::Unreserve(inode, end) => self.move_end(*inode, *end, u64::min),
            Operation::Grow(inode, size, _) => self.grow(*inode, *size),
            Operation::Lock(..) | Operation::Unlock(..) | Operation::FindLock(..) => {
                self.carry_out_on_locks(operation)
            }
            xattr => self.carry_out_on_xattrs(xattr),
        }
    }

    fn create(&mut self, at: &NameIn, new: &NewInode) -> Result<Expected, FileError> {
        self.living(at.directory)?;
        if self.entry(at)?.is_some() {
            return Err(FileError::Exists);
        }
        self.make(at.directory, new, 1)
    }

    fn hold(&mut self, inode: InodeNumber) -> Result<Expected, FileError> {
        match self.node(inode)? {
            node if node.is_orphan() => Err(FileError::Stale),
            node if node.kind == DIRECTORY && inode != InodeNumber::ROOT => Err(FileError::IsDirectory),
            _ => {
                let node = self.change(inode.0);
                (node.is_held, node.is_kept, node.may_write) = (true, false, false);
                Ok(self.seen(inode.0))
            }
        }
    }

    fn grow(&mut self, inode: InodeNumber, size: u64) -> Result<Expected, FileError> {
        match self.node(inode)? {
            node if !node.may_write => Err(FileError::Stale),
            node if node.kind != REGULAR => Err(FileError::Invalid),
            _ if size > FILE_BYTES_MAX => Err(FileError::TooLarge),
            _ => {
                let node = self.change(inode.0);
                node.size = node.size.max(size);
                Ok(self.seen(inode.0))
            }
        }
    }

    fn hold_directory(&mut self, inode: InodeNumber) -> Result<Expected, FileError> {
        self.living(inode)?;
        let node = self.change(inode.0);
        (node.is_held, node.is_kept) = (true, true);
        Ok(self.seen(inode.0))
    }

    fn carry_out_on_locks(&mut self, operation: &Operation) -> Result<Expected, FileError> {
        match operation {
            Operation::Lock(inode, lock) => match self.node(*inode)? {
                node if !node.is_open() => Err(FileError::Stale),
                node if node.is_locked(lock) => Err(FileError::Locked),
                _ => {
                    self.change(inode.0).lock(lock.owner, (lock.start, lock.last), Some(lock.mode));
                    Ok(Expected::Done)
                }
            },
            Operation::Unlock(inode, owner, range) => {
                if self.nodes.contains_key(&inode.0) {
                    self.change(inode.0).lock(*owner, *range, None);
                }
                Ok(Expected::Done)
            }
            Operation::FindLock(inode, lock) => {
                self.node(*inode).map(|node| Expected::Locked(node.is_locked(lock)))
            }
            other => unreachable!("{other:?} is not about locks"),
        }
    }

    fn move_end(
        &mut self,
        inode: InodeNumber,
        end: u64,
        choose: fn(u64, u64) -> u64,
    ) -> Result<Expected, FileError> {
        match self.node(inode)?.kind {
            REGULAR if end > 1 << 58 => Err(FileError::TooLarge),
            REGULAR => {
                let node = self.change(inode.0);
                let before = node.reserved_end;
                node.reserved_end = choose(before, end);
                Ok(Expected::Reserved(before))
            }
            _ => Err(FileError::Invalid),
        }
    }

    fn carry_out_on_xattrs(&mut self, operation: &Operation) -> Result<Expected, FileError> {
        match operation {
            Operation::XattrNames(inode) => {
                Ok(Expected::Names(self.node(*inode)?.xattrs.keys().cloned().collect()))
            }
            Operation::Xattr(inode, name) => {
                let node = self.node(*inode)?;
                check_xattr(name)?;
                node.xattrs.get(name).cloned().map(Expected::Bytes).ok_or(FileError::NoXattr)
            }
            Operation::SetXattr(inode, name, value, mode) => {
                let node = self.node(*inode)?;
                check_xattr(name)?;
                match (mode, node.xattrs.contains_key(name)) {
                    (XattrMode::Create, true) => return Err(FileError::Exists),
                    (XattrMode::Replace, false) => return Err(FileError::NoXattr),
                    _ => {}
                }
                self.change(inode.0).xattrs.insert(name.clone(), value.clone());
                Ok(self.seen(inode.0))
            }
            Operation::RemoveXattr(inode, name) => {
                self.node(*inode)?;
                check_xattr(name)?;
                self.change(inode.0).xattrs.remove(name).ok_or(FileError::NoXattr)?;
                Ok(self.seen(inode.0))
            }
            _ => unreachable!("the others are carried out elsewhere"),
        }
    }

    fn unlink(&mut self, at: &NameIn) -> Result<Expected, FileError> {
        let inode = self.named(at)?;
        if self.nodes[&inode].kind == DIRECTORY {
            return Err(FileError::IsDirectory);
        }
        self.change(at.directory.0).entries.remove(&at.name);
        self.change(inode).names -= 1;
        Ok(self.seen(inode))
    }

    fn remove_directory(&mut self, at: &NameIn) -> Result<Expected, FileError> {
        let inode = self.named(at)?;
        let node = &self.nodes[&inode];
        if node.kind != DIRECTORY {
            return Err(FileError::NotDirectory);
        }
        if !node.entries.is_empty() {
            return Err(FileError::NotEmpty);
        }
        self.change(at.directory.0).entries.remove(&at.name);
        let removed = self.change(inode);
        removed.names = 0;
        removed.give_back();
        Ok(self.seen(inode))
    }

    fn make(&mut self, directory: InodeNumber, made: &NewInode, names: u32) -> Result<Expected, FileError> {
        if made.kind == FileKind::Symlink && made.target.is_empty() {
            return Err(FileError::Invalid);
        }
        let parent = &self.nodes[&directory.0];
        let passes_on = parent.mode & 0o2000 != 0;
        let is_link = made.kind == FileKind::Symlink;
        let mode = if is_link { made.mode } else { made.mode & !made.umask };
        let node = Node {
            kind: made.kind as u8,
            mode: mode | if passes_on && made.kind == FileKind::Directory { 0o2000 } else { 0 },
            uid: made.uid,
            gid: if passes_on { parent.gid } else { made.gid },
            target: made.target.clone(),
            names,
            parent: directory.0,
            is_unnamed: names == 0,
            is_held: names == 0,
            may_write: names == 0,
            ..Node::default()
        };
        self.nodes.insert(0, Arc::new(node));
        Ok(Expected::New(self.view(0)))
    }

    fn link(&mut self, inode: InodeNumber, at: &NameIn) -> Result<Expected, FileError> {
        let node = self.node(inode)?.clone();
        self.living(at.directory)?;
        let taken = self.entry(at)?;
        if node.kind == DIRECTORY {
            return Err(FileError::NotPermitted);
        }
        if taken.is_some() {
            return Err(FileError::Exists);
        }
        if node.names == 0 && !(node.is_unnamed && node.is_held) {
            return Err(FileError::NotFound);
        }
        self.change(at.directory.0).entries.insert(at.name.clone(), inode.0);
        let node = self.change(inode.0);
        node.names += 1;
        node.is_unnamed = false;
        Ok(self.seen(inode.0))
    }

    fn is_below(&self, mut at: u64, top: u64) -> bool {
        loop {
            if at == top {
                return true;
            }
            match self.nodes[&at].parent {
                parent if parent == at => return false,
                parent => at = parent,
            }
        }
    }

    fn rename(&mut self, from: &NameIn, to: &NameIn, mode: RenameMode) -> Result<Expected, FileError> {
        let moved = self.named(from)?;
        self.living(to.directory)?;
        let taken = self.entry(to)?;
        let is_directory = |model: &FileModel, inode: u64| model.nodes[&inode].kind == DIRECTORY;
        if is_directory(self, moved) && self.is_below(to.directory.0, moved) {
            return Err(FileError::Invalid);
        }
        match (mode, taken) {
            (RenameMode::Keep, Some(_)) => return Err(FileError::Exists),
            (RenameMode::Exchange, None) => return Err(FileError::NotFound),
            (RenameMode::Exchange, Some(other)) => {
                if is_directory(self, other) && self.is_below(from.directory.0, other) {
                    return Err(FileError::Invalid);
                }
                self.change(from.directory.0).entries.insert(from.name.clone(), other);
                if is_directory(self, other) {
                    self.change(other).parent = from.directory.0;
                }
            }
            (_, Some(other)) if other == moved => return Ok(self.seen(moved)),
            (_, Some(other)) => {
                match (is_directory(self, moved), is_directory(self, other)) {
                    (true, false) => return Err(FileError::NotDirectory),
                    (false, true) => return Err(FileError::IsDirectory),
                    (true, true) if !self.nodes[&other].entries.is_empty() => {
                        return Err(FileError::NotEmpty);
                    }
                    _ => {}
                }
                let replaced = self.change(other);
                replaced.names -= 1;
                if replaced.kind == DIRECTORY {
                    replaced.give_back();
                }
                self.change(from.directory.0).entries.remove(&from.name);
            }
            (_, None) => {
                self.change(from.directory.0).entries.remove(&from.name);
            }
        }
        self.change(to.directory.0).entries.insert(to.name.clone(), moved);
        if is_directory(self, moved) {
            self.change(moved).parent = to.directory.0;
        }
        Ok(self.seen(moved))
    }

    fn set(&mut self, inode: InodeNumber, changes: &AttributeChanges) -> Result<Expected, FileError> {
        let kind = self.node(inode)?.kind;
        match changes.size {
            Some(size) if kind == REGULAR && size > 1 << 58 => return Err(FileError::TooLarge),
            Some(_) if kind == DIRECTORY => return Err(FileError::IsDirectory),
            Some(_) if kind != REGULAR => return Err(FileError::Invalid),
            _ => {}
        }
        let node = self.change(inode.0);
        node.size = changes.size.unwrap_or(node.size);
        node.mode = changes.mode.unwrap_or(node.mode);
        node.uid = changes.uid.unwrap_or(node.uid);
        node.gid = changes.gid.unwrap_or(node.gid);
        Ok(self.seen(inode.0))
    }
}

/// A tree that several mounts have: see [`crate::TreeHistory`].
impl FileModel {
    /// Directories that have a name, and whose numbers are known.
    pub fn directories(&self) -> Vec<InodeNumber> {
        self.numbers(|node| node.kind == DIRECTORY && node.names > 0)
    }

    /// Files of these kinds that have a name, and whose numbers are known.
    pub fn files(&self, kinds: &[FileKind]) -> Vec<InodeNumber> {
        self.numbers(|node| node.names > 0 && kinds.iter().any(|kind| *kind as u8 == node.kind))
    }

    /// Inodes that are there and have no name.
    pub fn nameless(&self) -> Vec<InodeNumber> {
        self.numbers(|node| node.names == 0)
    }

    fn numbers(&self, is_wanted: impl Fn(&Node) -> bool) -> Vec<InodeNumber> {
        let wanted = self.nodes.iter().filter(|(inode, node)| **inode < UNKNOWN && is_wanted(node));
        wanted.map(|(inode, _)| InodeNumber(*inode)).collect()
    }

    /// All names of a directory, with their inodes.
    pub fn entries(&self, directory: InodeNumber) -> Vec<(Vec<u8>, InodeNumber)> {
        let entries = self.nodes.get(&directory.0).into_iter().flat_map(|node| &node.entries);
        entries.map(|(name, inode)| (name.clone(), InodeNumber(*inode))).collect()
    }

    /// What an inode is; none if it is not there.
    pub fn kind_of(&self, inode: InodeNumber) -> Option<FileKind> {
        self.nodes.get(&inode.0).and_then(|node| FileKind::from_u8(node.kind))
    }

    /// What may come of a deed, and its answer. Nothing while it has to wait.
    pub(crate) fn outcomes(&self, by: (u64, u64), deed: &Deed) -> Vec<(FileModel, Expected)> {
        let mut after = self.clone();
        let mut all = match after.carry_out_for(by, deed) {
            Ok(Some(expected)) => vec![(after, expected)],
            Ok(None) => return Vec::new(),
            Err(error) => vec![(self.clone(), Expected::Failed(error))],
        };
        // What has no name and is not open may be purged at any time.
        let may_be_gone = |inode: &InodeNumber| self.nodes.get(&inode.0).is_some_and(|n| n.is_orphan());
        if deed.inodes().iter().any(may_be_gone) {
            let mut gone = self.clone();
            if let Deed::Ask(Operation::Attributes(inode) | Operation::List { directory: inode, .. }) = deed {
                gone.nodes.remove(&inode.0);
            }
            all.push((gone, Expected::Failed(FileError::Stale)));
        }
        all
    }

    fn carry_out_for(&mut self, by: (u64, u64), deed: &Deed) -> Result<Option<Expected>, FileError> {
        match deed {
            Deed::Ask(operation) => self.ask_for(by, operation).map(Some),
            Deed::Open(inode) => {
                self.node(*inode)?;
                self.change(inode.0).handles.insert(by.1);
                Ok(Some(self.seen(inode.0)))
            }
            Deed::Close(inode, handle) => {
                if self.nodes.contains_key(&inode.0) {
                    let node = self.change(inode.0);
                    node.handles.remove(handle);
                    node.locks.retain(|owner, _| owner.id != *handle);
                }
                Ok(Some(Expected::Done))
            }
            Deed::LockInTurn(inode, lock) if self.node(*inode)?.is_locked(lock) => Ok(None),
            Deed::LockInTurn(inode, lock) => {
                self.change(inode.0).lock(lock.owner, (lock.start, lock.last), Some(lock.mode));
                Ok(Some(Expected::Done))
            }
        }
    }

    fn ask_for(&mut self, (mount, call): (u64, u64), operation: &Operation) -> Result<Expected, FileError> {
        // What has no name gets one by the mount only that has made it and has it open.
        let holds = |node: &Arc<Node>| node.handles.iter().any(|handle| mount_of(*handle) == mount);
        let links = match operation {
            Operation::Link(inode, _) => self.nodes.get(&inode.0).is_some_and(holds).then_some(*inode),
            _ => None,
        };
        links.iter().for_each(|inode| self.change(inode.0).is_held = true);
        let expected = self.carry_out(operation);
        links.iter().for_each(|inode| self.change(inode.0).is_held = false);
        let seen = match expected {
            Ok(Expected::New(seen)) => seen,
            other => return other,
        };
        let made = UNKNOWN | call;
        self.adopt(operation, made);
        // Trees are the same whichever inode was made first.
        self.known.sort_unstable();
        if matches!(operation, Operation::CreateOpen(..) | Operation::CreateUnnamed(..)) {
            let node = self.change(made);
            (node.is_held, node.may_write) = (false, false);
            node.handles.insert(call);
        }
        Ok(Expected::Seen(made, seen))
    }

    /// Whether attributes are those of their inode.
    pub(crate) fn sees(&self, found: &weft_types::Attributes) -> bool {
        self.nodes.contains_key(&found.inode.0) && self.view(found.inode.0) == view(found)
    }

    /// Attributes of an inode as they are compared; none if it is not there.
    pub(crate) fn view_of(&self, inode: u64) -> Option<(u8, u16, u32, u32, u32, u64, u64)> {
        self.nodes.contains_key(&inode).then(|| self.view(inode))
    }

    /// What tells this tree from another one, as text.
    pub(crate) fn difference(&self, other: &FileModel) -> String {
        let inodes: BTreeSet<&u64> = self.nodes.keys().chain(other.nodes.keys()).collect();
        let differs = |inode: &&&u64| self.nodes.get(inode) != other.nodes.get(inode);
        let differing = inodes.iter().filter(differs);
        let text =
            |inode: &&u64| format!("{inode}: {:?} or {:?}", self.nodes.get(inode), other.nodes.get(inode));
        differing.map(text).collect::<Vec<_>>().join("; ")
    }

    /// Whether no answer has shown an inode of this number.
    pub(crate) fn is_new(&self, inode: u64) -> bool {
        !self.known.contains(&inode)
    }

    /// The number of an inode is known.
    pub(crate) fn name_inode(&mut self, unknown: u64, inode: u64) {
        if let Some(node) = self.nodes.remove(&unknown) {
            self.nodes.insert(inode, node);
        }
        self.known.iter_mut().filter(|known| **known == unknown).for_each(|known| *known = inode);
        self.known.sort_unstable();
        for node in self.nodes.values_mut() {
            if node.parent == unknown || node.entries.values().any(|entry| *entry == unknown) {
                let node = Arc::make_mut(node);
                let numbers = node.entries.values_mut().chain([&mut node.parent]);
                numbers.filter(|number| **number == unknown).for_each(|number| *number = inode);
            }
        }
    }

    /// Files of which a mount has locks.
    pub(crate) fn locked_by(&self, mount: u64) -> Vec<InodeNumber> {
        let has = |node: &Node| node.locks.keys().any(|owner| mount_of(owner.id) == mount);
        let locked = self.nodes.iter().filter(|(_, node)| has(node));
        locked.map(|(inode, _)| InodeNumber(*inode)).collect()
    }

    /// Owners of locks that are in the way of one.
    pub(crate) fn in_the_way(&self, inode: InodeNumber, lock: &FileLock) -> Vec<u64> {
        let Some(node) = self.nodes.get(&inode.0) else { return Vec::new() };
        let is_in_the_way = |owner: &LockOwner| {
            let only = [(*owner, node.locks[owner])].into();
            Node { locks: only, ..Node::default() }.is_locked(lock)
        };
        node.locks.keys().filter(|owner| is_in_the_way(owner)).map(|owner| owner.id).collect()
    }

    /// A mount has no locks any more.
    pub(crate) fn drop_locks_of(&mut self, mount: u64) {
        for inode in self.locked_by(mount) {
            self.change(inode.0).locks.retain(|owner, _| mount_of(owner.id) != mount);
        }
    }

    /// A mount has nothing open any more; what it has locked stays so.
    pub(crate) fn drop_handles_of(&mut self, mount: u64) {
        for node in self.nodes.values_mut() {
            if node.handles.iter().any(|handle| mount_of(*handle) == mount) {
                Arc::make_mut(node).handles.retain(|handle| mount_of(*handle) != mount);
            }
        }
    }

    /// Whether an inode is not there, or may be purged at any time.
    pub(crate) fn may_be_gone(&self, inode: u64) -> bool {
        self.nodes.get(&inode).is_none_or(|node| node.is_orphan())
    }

    /// Forgets these inodes: users do not ask for them any more. No answer has shown those without a number.
    pub(crate) fn drop_inodes(&mut self, dropped: &[u64]) {
        self.nodes.retain(|inode, _| !dropped.contains(inode));
        self.known.retain(|inode| *inode < UNKNOWN || !dropped.contains(inode));
    }
}

fn check_xattr(name: &[u8]) -> Result<(), FileError> {
    if name.is_empty() { Err(FileError::Invalid) } else { Ok(()) }
}

pub(crate) fn view(a: &weft_types::Attributes) -> (u8, u16, u32, u32, u32, u64, u64) {
    (a.kind as u8, a.mode, a.links, a.uid, a.gid, a.size, a.device)
}
