//! What users of a tree ask of a mount: chosen from what there may be, and done.

use weft_checker::{Deed, FileModel};
use weft_fs::{Files, FsError, HowToOpen};
use weft_rt::random_below;
use weft_types::{Attributes, FileKind, InodeNumber};
use weft_wire::files::{
    Answer, AttributeChanges, FileError, FileLock, LockFamily, LockMode, LockOwner, NameIn, NewInode,
    Operation, RenameMode,
};

/// Names in it, and what else a name may be.
const NAMES: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"f"];
const OTHER_NAMES: [&[u8]; 3] = [b"\xff\n", &[b'x'; 255], &[b'y'; 256]];

/// Bytes of a file that are locked, from its beginning on.
pub(crate) const LOCKED_BYTES: u64 = 12;

/// An entry of the tree, as far as is known.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    at: NameIn,
    inode: InodeNumber,
    kind: Option<FileKind>,
}

/// What deeds are chosen from.
pub(crate) struct Picks<'p> {
    pub model: &'p FileModel,
    pub entries: &'p [Entry],
    /// What another deed at the same time is about.
    pub near: Option<NameIn>,
}

impl Picks<'_> {
    fn any_directory(&self) -> InodeNumber {
        if let Some(near) = &self.near
            && random_below(2) == 0
        {
            return near.directory;
        }
        let nameless = self.model.nameless();
        match random_below(24) {
            0 if !nameless.is_empty() => *one_of(&nameless),
            _ => *one_of(&self.model.directories()),
        }
    }

    /// A name that may be there.
    fn any_name(&self) -> NameIn {
        if let Some(near) = &self.near
            && random_below(4) == 0
        {
            return near.clone();
        }
        let name = match random_below(40) {
            0 => *one_of(&OTHER_NAMES),
            _ => *one_of(&NAMES),
        };
        NameIn { directory: self.any_directory(), name: name.to_vec() }
    }

    /// A name that is there, most of the time; rather of what is meant.
    fn any_entry(&self, is_meant: impl Fn(&Entry) -> bool) -> NameIn {
        let meant: Vec<&Entry> = self.entries.iter().filter(|entry| is_meant(entry)).collect();
        match random_below(8) {
            0 => self.any_name(),
            1..7 if !meant.is_empty() => one_of(&meant).at.clone(),
            _ if !self.entries.is_empty() => one_of(self.entries).at.clone(),
            _ => self.any_name(),
        }
    }

    /// An inode, of these kinds most of the time.
    fn any_inode(&self, kinds: &[FileKind]) -> Option<InodeNumber> {
        let (meant, nameless) = (self.model.files(kinds), self.model.nameless());
        match random_below(8) {
            0 if !nameless.is_empty() => Some(*one_of(&nameless)),
            1 => Some(self.any_directory()),
            _ if !meant.is_empty() => Some(*one_of(&meant)),
            _ => None,
        }
    }

    /// A file that can be opened, most of the time.
    pub fn any_file(&self) -> Option<InodeNumber> {
        let mut files = self.model.files(&[FileKind::Regular]);
        let is_file = |inode: &InodeNumber| self.model.kind_of(*inode) == Some(FileKind::Regular);
        if random_below(8) == 0 {
            files = self.model.nameless().into_iter().filter(is_file).collect();
        }
        (!files.is_empty()).then(|| *one_of(&files))
    }

    /// Something that gives a name to what is new or has one.
    pub fn any_that_makes(&self) -> Option<Deed> {
        use FileKind::{Directory, Pipe, Regular, Symlink};
        let at = self.any_name();
        Some(Deed::Ask(match random_below(30) {
            0..10 => Operation::Create(at, any_new(Directory)),
            10..17 => Operation::CreateOpen(at, any_new(Regular), 0),
            17..20 => Operation::Create(at, any_new([Regular, Pipe][random_below(2) as usize])),
            20..23 => Operation::Create(at, any_new(Symlink)),
            23..25 => Operation::CreateUnnamed(at.directory, any_new(Regular)),
            _ => Operation::Link(self.any_inode(&[Regular, Symlink, Pipe])?, at),
        }))
    }

    /// Something that takes a name away.
    pub fn any_that_removes(&self) -> Deed {
        let is_empty = |e: &Entry| self.model.entries(e.inode).is_empty();
        let is_directory = |e: &Entry| e.kind == Some(FileKind::Directory);
        Deed::Ask(match random_below(2) {
            0 => Operation::Unlink(self.any_entry(|entry| !is_directory(entry))),
            _ => Operation::RemoveDirectory(self.any_entry(|e| is_directory(e) && is_empty(e))),
        })
    }

    /// A rename, also over directories and files, and an exchange.
    pub fn any_rename(&self) -> Deed {
        let is_directory = |e: &Entry| e.kind == Some(FileKind::Directory);
        let is_empty = |e: &Entry| self.model.entries(e.inode).is_empty();
        let (from, to) = match random_below(6) {
            0 => (self.any_entry(is_directory), self.any_entry(|e| is_directory(e) && is_empty(e))),
            1 => (self.any_entry(|e| !is_directory(e)), self.any_entry(|e| !is_directory(e))),
            2 => (self.any_entry(|_| true), self.any_entry(|_| true)),
            _ => (self.any_entry(|_| true), self.any_name()),
        };
        let modes = [RenameMode::Replace, RenameMode::Replace, RenameMode::Keep, RenameMode::Exchange];
        Deed::Ask(Operation::Rename(from, to, *one_of(&modes)))
    }

    /// A change of attributes.
    pub fn any_change(&self) -> Deed {
        let inode = match random_below(2) {
            0 => Some(self.any_directory()),
            _ => self.any_inode(&[FileKind::Regular, FileKind::Symlink]),
        };
        let inode = inode.unwrap_or_else(|| self.any_directory());
        let mut changes = AttributeChanges::default();
        match random_below(4) {
            0 => changes.size = Some(random_below(3) * random_below(20_000)),
            1 => (changes.uid, changes.gid) = (Some(random_below(9) as u32), Some(random_below(9) as u32)),
            _ => changes.mode = Some(random_below(0o10000) as u16),
        }
        Deed::Ask(Operation::Change(inode, changes))
    }

    /// A question.
    pub fn any_look(&self) -> Option<Deed> {
        use FileKind::{Regular, Symlink};
        Some(Deed::Ask(match random_below(14) {
            0..4 => Operation::Find(self.any_entry(|_| true)),
            4..6 => Operation::Find(self.any_name()),
            6..8 => Operation::Attributes(self.any_directory()),
            8..10 => Operation::Attributes(self.any_inode(&[Regular])?),
            10 => Operation::Target(self.any_inode(&[Symlink])?),
            _ => Operation::List { directory: self.any_directory(), after: 0, limit: u32::MAX },
        }))
    }
}

/// All entries of the tree.
pub(crate) fn entries_of(model: &FileModel) -> Vec<Entry> {
    let mut all = Vec::new();
    for directory in model.directories() {
        for (name, inode) in model.entries(directory) {
            all.push(Entry { at: NameIn { directory, name }, inode, kind: model.kind_of(inode) });
        }
    }
    all
}

/// The name that a deed is about.
pub(crate) fn name_of(deed: &Deed) -> Option<NameIn> {
    match deed {
        Deed::Ask(
            Operation::Create(at, _)
            | Operation::CreateOpen(at, ..)
            | Operation::Link(_, at)
            | Operation::Unlink(at)
            | Operation::RemoveDirectory(at)
            | Operation::Rename(_, at, _)
            | Operation::Find(at),
        ) => Some(at.clone()),
        _ => None,
    }
}

/// The call that has opened the file by whose handle something is done.
pub(crate) fn handle_used(deed: &Deed) -> Option<u64> {
    match deed {
        Deed::Close(_, call) => Some(*call),
        Deed::LockInTurn(_, lock) | Deed::Ask(Operation::Lock(_, lock) | Operation::FindLock(_, lock)) => {
            Some(lock.owner.id)
        }
        Deed::Ask(Operation::Unlock(_, owner, _)) => Some(owner.id),
        _ => None,
    }
}

/// Whether it changes attributes.
pub(crate) fn is_change(deed: &Deed) -> bool {
    matches!(deed, Deed::Ask(Operation::Change(..)))
}

/// What is made, of a kind.
pub(crate) fn any_new(kind: FileKind) -> NewInode {
    NewInode {
        kind,
        mode: random_below(0o10000) as u16,
        umask: [0, 0o022, 0o777][random_below(3) as usize],
        uid: random_below(4) as u32,
        gid: random_below(4) as u32,
        device: 0,
        target: match kind {
            FileKind::Symlink => vec![b't'; [1, 30, 4095][random_below(3) as usize]],
            _ => Vec::new(),
        },
    }
}

/// Something that is done by the handle that a call has opened.
pub(crate) fn any_by_handle(inode: InodeNumber, call: u64) -> Deed {
    let owner = LockOwner { family: *one_of(&[LockFamily::Whole, LockFamily::Range]), id: call };
    let (a, b) = match owner.family {
        LockFamily::Whole => (0, LOCKED_BYTES - 1),
        LockFamily::Range => (random_below(LOCKED_BYTES), random_below(LOCKED_BYTES)),
    };
    let mode = *one_of(&[LockMode::Shared, LockMode::Exclusive]);
    let lock = FileLock { owner, start: a.min(b), last: a.max(b), mode, process: 1 };
    match random_below(14) {
        0..4 => Deed::Close(inode, call),
        4..9 => Deed::Ask(Operation::Lock(inode, lock)),
        9..11 => Deed::Ask(Operation::Unlock(inode, owner, (lock.start, lock.last))),
        11 => Deed::Ask(Operation::Unlock(inode, owner, (0, u64::MAX))),
        _ => Deed::Ask(Operation::FindLock(inode, lock)),
    }
}

/// Any one of these.
pub(crate) fn one_of<T>(all: &[T]) -> &T {
    &all[random_below(all.len() as u64) as usize]
}

const OPENED: &str = "what is done by a handle has one";

/// Has a mounted file system do something: the answer, and the handle of what was opened by it.
pub(crate) async fn perform(
    files: Files,
    deed: Deed,
    handle: Option<u64>,
) -> Result<(Answer, Option<u64>), FsError> {
    let operation = match deed {
        Deed::Ask(operation) => operation,
        Deed::Open(inode) => {
            let how = HowToOpen { writes: random_below(3) == 0, ..HowToOpen::default() };
            return files.open(inode, how).await.map(|handle| (Answer::Done, Some(handle)));
        }
        Deed::Close(..) => {
            let handle = handle.expect(OPENED);
            files.release(handle).await;
            // Who has no session any more has not given anything back.
            return match files.is_over() {
                true => Err(FsError::SessionOver { why: "it was over when a file was closed".into() }),
                false => Ok((Answer::Done, None)),
            };
        }
        Deed::LockInTurn(_, lock) => {
            let handle = handle.expect(OPENED);
            loop {
                match files.lock(handle, lock).await {
                    Err(error) if error.refusal() == Some(FileError::Locked) => {
                        files.until_unlocked(handle, lock).await?;
                    }
                    locked => return locked.map(|()| (Answer::Done, None)),
                }
            }
        }
    };
    match operation {
        Operation::Create(at, new) => files.make(at.directory, &at.name, new).await.map(attributes),
        Operation::CreateOpen(at, new, _) => {
            let (made, handle) = files.create(at.directory, &at.name, new, false).await?;
            Ok((Answer::Attributes(made), Some(handle)))
        }
        Operation::CreateUnnamed(directory, new) => {
            let (made, handle) = files.create_unnamed(directory, new, false).await?;
            Ok((Answer::Attributes(made), Some(handle)))
        }
        Operation::Lock(_, lock) => {
            let handle = handle.expect(OPENED);
            files.lock(handle, lock).await.map(done)
        }
        Operation::Unlock(_, owner, range) => {
            let handle = handle.expect(OPENED);
            files.unlock(handle, owner, range).await.map(done)
        }
        Operation::FindLock(_, lock) => {
            let handle = handle.expect(OPENED);
            files.find_lock(handle, lock).await.map(|found| (Answer::Lock(found), None))
        }
        operation => perform_on_names(files, operation).await,
    }
}

/// The same, for what opens nothing.
async fn perform_on_names(files: Files, operation: Operation) -> Result<(Answer, Option<u64>), FsError> {
    match operation {
        Operation::Link(inode, at) => files.link(inode, at.directory, &at.name).await.map(attributes),
        Operation::Unlink(at) => files.unlink(at.directory, &at.name).await.map(done),
        Operation::RemoveDirectory(at) => files.remove_directory(at.directory, &at.name).await.map(done),
        Operation::Rename(from, to, mode) => {
            let (from, to) = ((from.directory, &from.name[..]), (to.directory, &to.name[..]));
            files.rename(from, to, mode).await.map(done)
        }
        Operation::Change(inode, changes) => {
            let changed = files.change(inode, changes).await?;
            if changes.size.is_some() {
                return Ok(attributes(changed));
            }
            // What is changed of an open file outlives the mount once it is synced.
            match files.sync(inode).await {
                Err(error) if error.refusal().is_none() => Err(error),
                _ => Ok(attributes(changed)),
            }
        }
        Operation::Find(at) => files.find(at.directory, &at.name).await.map(attributes),
        Operation::Attributes(inode) => files.attributes(inode).await.map(attributes),
        Operation::Target(inode) => files.target(inode).await.map(|target| (Answer::Bytes(target), None)),
        Operation::List { directory, after, limit } => {
            files.list(directory, after, limit).await.map(|listed| (Answer::Listed(listed), None))
        }
        other => unreachable!("users of a tree do not ask for {other:?}"),
    }
}

fn attributes(found: Attributes) -> (Answer, Option<u64>) {
    (Answer::Attributes(found), None)
}

fn done(_: ()) -> (Answer, Option<u64>) {
    (Answer::Done, None)
}
