//! The files that are open on a mount, by inode and by handle.
//!
//! It owns that the shard knows each of them, and that an inode is one file here, however it came to be open:
//! of each inode one open, one create or one last close is under way at a time.

use crate::caller::Shards;
use crate::doubts::{Asked, Doubts};
use crate::error::FsError;
use crate::kept_names::KeptBy;
use crate::namespace::Namespace;
use crate::open_file::{Found, OfMount, OpenFile};
use crate::shared::cannot_share;
use crate::turns::Turns;
use crate::write_back::WriteBack;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_client::File;
use weft_rt::sync::{Notify, join_all};
use weft_rt::{spawn, timeout};
use weft_rules::{Path, mark};
use weft_types::{Attributes, FileKind, InodeNumber};
use weft_wire::files::{AttributeChanges, FileError, HoldMode, NameIn, Operation};

/// The data of an inode with these attributes.
type DataOf = Box<dyn Fn(&Attributes) -> Result<File, FsError>>;

/// How often it is looked whether what a recall is about is here.
const LOOKS_AGAIN: Duration = Duration::from_millis(20);

/// A file as it was opened.
pub(crate) struct Handle<S> {
    pub file: Rc<OpenFile<S>>,
    /// What is written goes to its end.
    pub appends: bool,
    /// Of how many losses its user has heard.
    pub heard: Rc<Cell<u64>>,
    /// A kernel keeps pages of what is read and written by it.
    pub keeps_pages: Rc<Cell<bool>>,
}

impl<S> Clone for Handle<S> {
    fn clone(&self) -> Self {
        let Handle { file, appends, heard, keeps_pages } = self;
        let (file, heard, keeps_pages) = (file.clone(), heard.clone(), keeps_pages.clone());
        Handle { file, appends: *appends, heard, keeps_pages }
    }
}

/// All of them.
pub(crate) struct OpenFiles<S> {
    steady: Namespace<S>,
    data_of: DataOf,
    pub(crate) write_back: Rc<WriteBack>,
    pub(crate) doubts: Rc<Doubts>,
    listed: RefCell<BTreeMap<InodeNumber, Rc<OpenFile<S>>>>,
    /// Inodes that are being opened, and what was seen of them meanwhile.
    opening: Turns,
    seen_meanwhile: RefCell<BTreeMap<InodeNumber, Attributes>>,
    /// Files that are being made, by numbers that are counted up: their inodes are not known yet.
    creating: RefCell<BTreeSet<u64>>,
    last_created: Cell<u64>,
    /// A file was made, or not.
    created: Notify,
    /// Inodes that were closed at the shard while a file was being made: one of them may be that file.
    released: RefCell<BTreeSet<InodeNumber>>,
    handles: RefCell<BTreeMap<u64, Handle<S>>>,
    last_handle: Cell<u64>,
}

impl<S: Shards> OpenFiles<S> {
    /// None is open. Handles are counted on from this one.
    pub(crate) fn new(
        steady: Namespace<S>,
        last_handle: u64,
        data_of: impl Fn(&Attributes) -> Result<File, FsError> + 'static,
    ) -> OpenFiles<S> {
        OpenFiles {
            steady,
            data_of: Box::new(data_of),
            write_back: Rc::default(),
            doubts: Rc::default(),
            listed: RefCell::default(),
            opening: Turns::default(),
            seen_meanwhile: RefCell::default(),
            creating: RefCell::default(),
            last_created: Cell::new(0),
            created: Notify::default(),
            released: RefCell::default(),
            handles: RefCell::default(),
            last_handle: Cell::new(last_handle),
        }
    }

    /// The file of an inode, if it is open.
    pub(crate) fn get(&self, inode: InodeNumber) -> Option<Rc<OpenFile<S>>> {
        self.listed.borrow().get(&inode).cloned()
    }

    /// Attributes of an inode, if the mount knows them without asking.
    pub(crate) fn attributes(&self, inode: InodeNumber) -> Option<Attributes> {
        self.get(inode).and_then(|file| file.attributes())
    }

    /// Attributes with what this mount knows better.
    pub(crate) fn seen(&self, found: Attributes) -> Attributes {
        match self.listed.borrow().get(&found.inode) {
            Some(file) => file.seen(found),
            None => self.seen_of_unlisted(found),
        }
    }

    /// Attributes of a file that is not listed. If it is being opened, what its opening is answered may be
    /// older.
    fn seen_of_unlisted(&self, found: Attributes) -> Attributes {
        if self.opening.is_any_at(found.inode) {
            let mut seen = self.seen_meanwhile.borrow_mut();
            seen.retain(|inode, _| self.opening.is_any_at(*inode));
            let newest = seen.entry(found.inode).or_insert(found);
            if newest.revision < found.revision {
                *newest = found;
            }
        }
        found
    }

    /// The same, of attributes that were asked for at this time.
    pub(crate) fn seen_since(&self, found: Attributes, asked: Asked) -> Attributes {
        match self.listed.borrow().get(&found.inode) {
            Some(file) => file.seen_since(found, asked),
            None => self.seen_of_unlisted(found),
        }
    }

    /// What a handle stands for.
    pub(crate) fn by_handle(&self, handle: u64) -> Result<Handle<S>, FsError> {
        let opened = self.handles.borrow().get(&handle).cloned();
        opened.ok_or(FsError::Refused { path: String::new(), error: FileError::Stale })
    }

    /// The newest handle.
    pub(crate) fn last_handle(&self) -> u64 {
        self.last_handle.get()
    }

    /// Whether there is a handle of an inode.
    pub(crate) fn has_handle_of(&self, inode: InodeNumber) -> bool {
        self.handles.borrow().values().any(|handle| handle.file.inode == inode)
    }

    /// Whether there are handles.
    pub(crate) fn has_handles(&self) -> bool {
        !self.handles.borrow().is_empty()
    }

    /// A handle for who uses a file.
    pub(crate) fn new_handle(&self, file: Rc<OpenFile<S>>, appends: bool) -> u64 {
        let handle = self.last_handle.get() + 1;
        self.last_handle.set(handle);
        let heard = Rc::new(Cell::new(file.lost.count()));
        self.handles.borrow_mut().insert(handle, Handle { file, appends, heard, keeps_pages: Rc::default() });
        handle
    }

    /// Opens the files that others have open, under the same handles. Only a rule broken on purpose does
    /// so (F14).
    pub(crate) async fn open_all_of(&self, others: &OpenFiles<S>) {
        let handles: Vec<(u64, Handle<S>)> =
            others.handles.borrow().iter().map(|(handle, opened)| (*handle, opened.clone())).collect();
        for (handle, opened) in handles {
            if let Ok(file) = self.take(opened.file.inode, HoldMode::Open).await {
                self.handles.borrow_mut().insert(handle, Handle { file, ..opened });
            }
        }
    }

    /// A handle is used no more: the locks go that were taken by it, and the file is given back.
    pub(crate) async fn close(&self, handle: u64) {
        let closed = self.handles.borrow_mut().remove(&handle);
        let Some(Handle { file, keeps_pages, .. }) = closed else { return };
        file.keep_pages.set(file.keep_pages.get() - u64::from(keeps_pages.get()));
        if let Err(error) = file.unlock_by(handle).await {
            tracing::debug!(inode = file.inode.0, %error, "locks are not given back yet");
        }
        self.give_back(file).await;
    }

    /// Opens a file for a user, who gives it back later. A file that is not open yet gets this mode, unless
    /// another mount writes it.
    pub(crate) async fn take(&self, inode: InodeNumber, mode: HoldMode) -> Result<Rc<OpenFile<S>>, FsError> {
        let opened = self.opening.take(inode, async || match self.get(inode) {
            Some(file) => Ok(count_user(file)),
            None => {
                let opened = self.open_new(inode, mode).await;
                let seen = self.seen_meanwhile.borrow_mut().remove(&inode);
                opened.inspect(|file| {
                    seen.map(|seen| file.seen(seen));
                })
            }
        });
        self.use_file(opened.await?, mode).await
    }

    /// Has all files let go of the room that they have asked for ahead.
    pub(crate) async fn give_room_back(&self) {
        let files: Vec<_> = self.listed.borrow().values().cloned().collect();
        for given in join_all(files.iter().map(|file| file.give_room_back())).await {
            if let Err(error) = given {
                tracing::debug!(error = %error, "a file keeps the room that it has asked for ahead");
            }
        }
    }

    /// Makes a file by an operation that leaves it open to write, with bytes reserved up to an offset.
    pub(crate) async fn create(
        &self,
        name: &[u8],
        operation: Operation,
        reserved: u64,
    ) -> Result<(Attributes, Rc<OpenFile<S>>), FsError> {
        let number = self.last_created.get() + 1;
        self.last_created.set(number);
        self.creating.borrow_mut().insert(number);
        let made = self.create_listed(name, operation, reserved).await;
        self.creating.borrow_mut().remove(&number);
        if self.creating.borrow().is_empty() {
            self.released.take();
        }
        self.created.notify_all();
        let (made, file) = made?;
        Ok((made, self.use_file(file, HoldMode::Write).await?))
    }

    async fn create_listed(
        &self,
        name: &[u8],
        operation: Operation,
        reserved: u64,
    ) -> Result<(Attributes, Rc<OpenFile<S>>), FsError> {
        let made_as = match &operation {
            Operation::CreateOpen(at, ..) => Some(at.clone()),
            _ => None,
        };
        let asked = self.doubts.asked();
        let made = self.steady.attributes_by(name, operation).await?;
        // Somebody may have found the name, and opened the file, before this answer was here; and closed it.
        let file = self.opening.take(made.inode, async || match self.get(made.inode) {
            Some(file) => {
                file.note_made();
                Ok(count_user(file))
            }
            None => {
                let is_open = !self.released.borrow().contains(&made.inode);
                let mode = is_open.then_some(HoldMode::Write);
                let reserved = is_open.then_some(reserved);
                self.list(made, |data| Found { mode, reserved, made_as, ..Found::new(made, data, asked) })
            }
        });
        Ok((made, file.await?))
    }

    /// Opens a file that is not listed as open. The shard need not know, as long as the file is only read and
    /// no other mount can change it.
    async fn open_new(&self, inode: InodeNumber, mode: HoldMode) -> Result<Rc<OpenFile<S>>, FsError> {
        let asked = self.doubts.asked();
        if let Some((known, kept_by)) = self.steady.kept().of_file_to_open(inode)
            && mode == HoldMode::Read
        {
            if matches!(kept_by, KeptBy::Directory(_)) {
                mark(Path::OpenedUnsaid);
            }
            let (mode, unsaid) = (Some(mode), Some(kept_by));
            return self.list(known, |data| Found { mode, unsaid, ..Found::new(known, data, asked) });
        }
        let (attributes, mode) = self.hold_new(inode, mode).await?;
        let mode = Some(mode);
        let error = match attributes.kind {
            FileKind::Regular => {
                match self.list(attributes, |data| Found { mode, ..Found::new(attributes, data, asked) }) {
                    Ok(file) => return Ok(file),
                    Err(error) => error,
                }
            }
            FileKind::Directory => FsError::Refused { path: String::new(), error: FileError::IsDirectory },
            _ => FsError::Refused { path: String::new(), error: FileError::Invalid },
        };
        let _ = self.release(inode).await;
        Err(error)
    }

    /// Tells the shard that an inode is open, and asks for this mode, or to share it. If another mount has it
    /// to write, the inode is only open: the first operation that needs a mode waits for that mount.
    async fn hold_new(&self, inode: InodeNumber, mode: HoldMode) -> Result<(Attributes, HoldMode), FsError> {
        let steady = &self.steady;
        let hold = async |mode| {
            let found = steady.attributes_by(b"", Operation::Hold(inode, mode)).await;
            found.map(|found| (found, mode))
        };
        if mode == HoldMode::Open {
            return hold(mode).await;
        }
        if let Some(found) = steady.hold_if_free(inode, mode).await? {
            return Ok((found, mode));
        }
        match steady.hold_if_free(inode, HoldMode::Shared).await {
            Ok(Some(found)) => Ok((found, HoldMode::Shared)),
            Ok(None) => hold(HoldMode::Open).await,
            Err(error) if cannot_share(&error) => hold(mode).await,
            Err(error) => Err(error),
        }
    }

    /// The shard knows no more that an inode is open.
    async fn release(&self, inode: InodeNumber) -> Result<(), FsError> {
        let release = Operation::Release(inode, AttributeChanges::default());
        self.steady.ask(b"", inode, release).await.map(drop)
    }

    /// Lists a file as open, and counts a user of it.
    fn list(
        &self,
        attributes: Attributes,
        found: impl FnOnce(File) -> Found,
    ) -> Result<Rc<OpenFile<S>>, FsError> {
        let found = found((self.data_of)(&attributes)?);
        let of_mount = OfMount {
            names: self.steady.clone(),
            hearing: self.steady.hearing(attributes.inode.shard()),
            write_back: self.write_back.clone(),
            doubts: self.doubts.clone(),
        };
        let file = OpenFile::new(of_mount, found);
        self.listed.borrow_mut().insert(attributes.inode, file.clone());
        Ok(count_user(file))
    }

    /// Has the shard know that a file is open which may have been closed just now.
    async fn use_file(&self, file: Rc<OpenFile<S>>, mode: HoldMode) -> Result<Rc<OpenFile<S>>, FsError> {
        match file.open_again(mode).await {
            Ok(()) => Ok(file),
            Err(error) => {
                self.give_back(file).await;
                Err(error)
            }
        }
    }

    /// Counts one user less of a file. The last one has the shard know that it is closed.
    pub(crate) async fn give_back(&self, file: Rc<OpenFile<S>>) {
        file.users.set(file.users.get() - 1);
        if file.users.get() > 0 {
            return;
        }
        if let Err(error) = file.close().await {
            tracing::debug!(inode = file.inode.0, %error, "the shard takes a file for open still");
        }
        if !self.creating.borrow().is_empty() {
            self.released.borrow_mut().insert(file.inode);
        }
        let mut listed = self.listed.borrow_mut();
        if file.users.get() == 0 && listed.get(&file.inode).is_some_and(|other| Rc::ptr_eq(other, &file)) {
            listed.remove(&file.inode);
        }
    }

    /// Answers a recall: waits until this mount keeps no more than a mode of an inode. If it may keep the
    /// mode to write, waits until the shard knows the size. If the inode is no open file, `give_other`
    /// gives it back.
    pub(crate) async fn answer(
        &self,
        inode: InodeNumber,
        keeps: HoldMode,
        give_other: impl AsyncFnOnce() -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        // What is being made may be what the other one waits for.
        let last = self.last_created.get();
        loop {
            let created = self.created.notified();
            let is_making = self.creating.borrow().first().is_some_and(|first| *first <= last);
            if self.get(inode).is_some() || self.steady.kept().is_leased(inode) || !is_making {
                break;
            }
            // A directory that is being made is not counted.
            let _ = timeout(LOOKS_AGAIN, created).await;
        }
        // Or what is being opened. Otherwise nobody here uses it, whatever the shard knows.
        let unlisted = self.opening.take(inode, async || match self.get(inode) {
            Some(file) => Ok(Some(file)),
            None if keeps == HoldMode::Write => Ok(None),
            None => give_other().await.map(|()| None),
        });
        match (unlisted.await?, keeps) {
            (Some(file), HoldMode::Write) => file.tell().await,
            (Some(file), keeps) => file.give(keeps).await,
            (None, _) => Ok(()),
        }
    }

    /// Has the shard know that files are open: those that are meant, by their inodes and what keeps them as
    /// they are.
    pub(crate) async fn say(&self, is_meant: impl Fn(InodeNumber, KeptBy) -> bool) -> Result<(), FsError> {
        let meant: Vec<Rc<OpenFile<S>>> = {
            let listed = self.listed.borrow();
            let is_meant =
                |file: &&Rc<OpenFile<S>>| file.unsaid().is_some_and(|kept_by| is_meant(file.inode, kept_by));
            listed.values().filter(is_meant).cloned().collect()
        };
        join_all(meant.iter().map(|file| file.say())).await.into_iter().collect()
    }

    /// The mount ends: nothing is open any more.
    pub(crate) async fn leave(&self) -> Result<(), FsError> {
        let open: Vec<Rc<OpenFile<S>>> = self.listed.borrow().values().cloned().collect();
        join_all(open.iter().map(|file| file.leave())).await.into_iter().collect()
    }

    /// The file that this mount has made under a name, and of which the shard has not heard all.
    pub(crate) fn unwritten(&self, directory: InodeNumber, name: &[u8]) -> Option<Rc<OpenFile<S>>> {
        let listed = self.listed.borrow();
        let unwritten = listed.values().filter(|file| file.is_unsettled());
        let is_it = |at: &NameIn| at.directory == directory && at.name == name;
        let mut found = unwritten.filter(|file| file.made_as.borrow().as_ref().is_some_and(is_it));
        found.next().cloned()
    }

    /// Begins to write back what is kept of each, and to tell the shard: none waits for another one. What
    /// need not be shared any more is so no longer.
    pub(crate) fn tell_each(&self) {
        let listed = self.listed.borrow();
        let is_due = |file: &&Rc<OpenFile<S>>| file.is_unsettled() || file.is_shared();
        for file in listed.values().filter(is_due).filter(|file| !file.is_telling.replace(true)) {
            let file = file.clone();
            spawn(async move {
                let told = match file.is_shared() {
                    true => file.end_sharing().await,
                    false => file.tell().await,
                };
                if let Err(error) = told {
                    tracing::debug!(inode = file.inode.0, %error, "a file is not told yet");
                }
                file.is_telling.set(false);
            });
        }
    }

    /// Writes back what is kept of all, and has the shard hear of their sizes and times.
    pub(crate) async fn tell_all(&self) -> Result<(), FsError> {
        let open: Vec<Rc<OpenFile<S>>> = self.listed.borrow().values().cloned().collect();
        join_all(open.iter().map(|file| file.tell())).await.into_iter().collect()
    }
}

fn count_user<S>(file: Rc<OpenFile<S>>) -> Rc<OpenFile<S>> {
    file.users.set(file.users.get() + 1);
    file
}
