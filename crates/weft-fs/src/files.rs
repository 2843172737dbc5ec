//! A file system by inode numbers, as a kernel uses it: names, and files that are open.
//!
//! It owns which files are open on this mount, and that the shard knows each of them: a file that loses its
//! name stays until it is closed (F9). It hears what other mounts wait for, and has the files give that back
//! (F4).

use crate::all_names::AllNames;
use crate::error::FsError;
use crate::hearing::Hearing;
use crate::mount::Mount;
use crate::namespace::Namespace;
use crate::open_file::{Found, OpenFile, RESERVED_STEP};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;
use weft_client::{AttachMode, FileSystem};
use weft_rt::sync::{Mutex, join_all};
use weft_rt::{Buf, now, sleep, spawn, timeout};
use weft_types::limits::LISTED_ENTRIES_MAX;
use weft_types::{Attributes, FileKind, InodeNumber};
use weft_wire::files::{
    Answer, AttributeChanges, FileError, HoldMode, Listed, NameIn, NewInode, Operation, Recall, RenameMode,
    XattrMode,
};

/// How long size and times of a file that is written may stay unknown to the shard.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// How long a server may take to say what others wait for: it does within a second.
const HEARS_WITHIN: Duration = Duration::from_millis(2_500);

/// An open file of a mount.
type Open = OpenFile<FileSystem>;

/// What a file is opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HowToOpen {
    /// It is written.
    pub writes: bool,
    /// It loses its contents first.
    pub truncates: bool,
    /// What is written goes to its end, wherever that is by then.
    pub appends: bool,
}

/// A file as it was opened.
#[derive(Clone)]
struct Handle {
    file: Rc<Open>,
    appends: bool,
}

/// A mounted file system. Clones are the same.
#[derive(Clone)]
pub struct Files(Rc<Inner>);

struct Inner {
    mount: Mount,
    names: Namespace<FileSystem>,
    /// The same, for what has to be waited for as long as it takes.
    steady: Namespace<FileSystem>,
    hearing: Rc<Hearing>,
    all_names: AllNames,
    open: RefCell<BTreeMap<InodeNumber, Rc<Open>>>,
    /// Inodes that are being opened.
    opening: RefCell<BTreeMap<InodeNumber, Rc<Mutex<()>>>>,
    /// Recalls that are being answered.
    answering: RefCell<BTreeSet<u64>>,
    handles: RefCell<BTreeMap<u64, Handle>>,
    last_handle: Cell<u64>,
}

impl Files {
    /// Begins to use an attached file system.
    pub fn begin(mount: Mount) -> Files {
        let names = mount.names().clone();
        let hearing = Rc::new(Hearing::from(mount.began()));
        let inner = Inner {
            mount,
            hearing,
            all_names: AllNames::default(),
            steady: names.to_end(),
            names,
            open: RefCell::default(),
            opening: RefCell::default(),
            answering: RefCell::default(),
            handles: RefCell::default(),
            last_handle: Cell::new(0),
        };
        let files = Files(Rc::new(inner));
        spawn(tell_from_time_to_time(Rc::downgrade(&files.0)));
        spawn(hear_recalls(Rc::downgrade(&files.0)));
        if files.0.mount.mode() != AttachMode::ReadOnly {
            spawn(hold_all_names(Rc::downgrade(&files.0)));
        }
        files
    }

    /// How long names and attributes that are answered now stay as they are, whatever other mounts do.
    pub fn stays(&self) -> Duration {
        self.0.all_names.stay(&self.0.hearing)
    }

    /// Ends the mount: what the shards have not heard is told first.
    ///
    /// # Errors
    /// If that fails; it has ended then, too.
    pub async fn end(&self) -> Result<(), FsError> {
        let told = self.sync_all().await;
        let left = self.to_end(|files| async move { files.0.leave().await }).await;
        self.0.mount.detach().await;
        told.and(left)
    }

    /// How often the shard has changed the inode of a handle, as far as this mount knows: never less than at
    /// the open.
    pub fn revision(&self, handle: u64) -> Option<u64> {
        self.file_of(handle).ok().map(|file| file.revision())
    }

    /// What has a name.
    ///
    /// # Errors
    /// If there is nothing.
    pub async fn find(&self, directory: InodeNumber, name: &[u8]) -> Result<Attributes, FsError> {
        self.look(name, Operation::Find(at(directory, name))).await
    }

    /// Attributes of an inode.
    ///
    /// # Errors
    /// If it is gone.
    pub async fn attributes(&self, inode: InodeNumber) -> Result<Attributes, FsError> {
        if let Some(known) = self.0.open.borrow().get(&inode).and_then(|file| file.attributes()) {
            return Ok(known);
        }
        self.look(b"", Operation::Attributes(inode)).await
    }

    /// Changes attributes. A file that becomes shorter gives its space back.
    ///
    /// # Errors
    /// If it is gone, or cannot have them.
    pub async fn change(&self, inode: InodeNumber, changes: AttributeChanges) -> Result<Attributes, FsError> {
        let is_open = self.0.open.borrow().contains_key(&inode);
        if changes.size.is_none() && !is_open {
            return self.look(b"", Operation::Change(inode, changes)).await;
        }
        self.to_end(|files| async move {
            let file = files.take(inode, HoldMode::Write).await?;
            let changed = files.change_open(&file, changes).await;
            files.give_back(file).await;
            changed
        })
        .await
    }

    async fn change_open(&self, file: &Open, changes: AttributeChanges) -> Result<Attributes, FsError> {
        let rest = AttributeChanges { size: None, ..changes };
        if let Some(size) = changes.size {
            let resized = file.resize(size).await?;
            if rest == AttributeChanges::default() {
                return Ok(file.seen(resized));
            }
        }
        file.change_others(rest).await
    }

    /// Runs something to its end, and waits for that as long as the mount's patience lasts.
    async fn to_end<T: 'static, F: Future<Output = Result<T, FsError>> + 'static>(
        &self,
        work: impl FnOnce(Files) -> F,
    ) -> Result<T, FsError> {
        let waited = self.0.names.patience();
        let going = spawn(work(self.clone()));
        let ended = timeout(waited, going).await.ok().and_then(Result::ok);
        ended.unwrap_or(Err(FsError::NoAnswer { shard: 0, waited }))
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// If it is none.
    pub async fn target(&self, inode: InodeNumber) -> Result<Vec<u8>, FsError> {
        self.bytes(Operation::Target(inode)).await
    }

    /// Makes what is no open file, with a name.
    ///
    /// # Errors
    /// If the name is taken.
    pub async fn make(
        &self,
        directory: InodeNumber,
        name: &[u8],
        new: NewInode,
    ) -> Result<Attributes, FsError> {
        self.look(name, Operation::Create(at(directory, name), new)).await
    }

    /// Makes a file with a name, and opens it: to append, or to write anywhere.
    ///
    /// # Errors
    /// As [`Files::make`].
    pub async fn create(
        &self,
        directory: InodeNumber,
        name: &[u8],
        new: NewInode,
        appends: bool,
    ) -> Result<(Attributes, u64), FsError> {
        let operation = Operation::CreateOpen(at(directory, name), new, RESERVED_STEP);
        let name = name.to_vec();
        self.to_end(|files| async move {
            let made = files.0.steady.attributes_by(&name, operation).await?;
            let file = files.list_open(made, HoldMode::Write, Some(RESERVED_STEP))?;
            Ok((made, files.new_handle(file, appends)))
        })
        .await
    }

    /// Makes a file without a name, and opens it.
    ///
    /// # Errors
    /// If there is no such directory.
    pub async fn create_unnamed(
        &self,
        directory: InodeNumber,
        new: NewInode,
        appends: bool,
    ) -> Result<(Attributes, u64), FsError> {
        self.to_end(|files| async move {
            let operation = Operation::CreateUnnamed(directory, new);
            let made = files.0.steady.attributes_by(b"", operation).await?;
            let file = files.list_open(made, HoldMode::Write, Some(0))?;
            Ok((made, files.new_handle(file, appends)))
        })
        .await
    }

    /// Gives an inode another name.
    ///
    /// # Errors
    /// If the name is taken, or the inode cannot have another one.
    pub async fn link(
        &self,
        inode: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, FsError> {
        self.look(name, Operation::Link(inode, at(directory, name))).await
    }

    /// Removes a name of what is no directory.
    ///
    /// # Errors
    /// If there is nothing, or a directory.
    pub async fn unlink(&self, directory: InodeNumber, name: &[u8]) -> Result<(), FsError> {
        self.look(name, Operation::Unlink(at(directory, name))).await.map(drop)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// If there is none, or it has entries.
    pub async fn remove_directory(&self, directory: InodeNumber, name: &[u8]) -> Result<(), FsError> {
        self.look(name, Operation::RemoveDirectory(at(directory, name))).await.map(drop)
    }

    /// Gives what has one name another one.
    ///
    /// # Errors
    /// If there is nothing, or it cannot have that name.
    pub async fn rename(
        &self,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> Result<(), FsError> {
        let renamed = self.look(from.1, Operation::Rename(at(from.0, from.1), at(to.0, to.1), mode)).await;
        // What had the new name has another one, or none, and the answer is not about that.
        self.0.open.borrow().values().for_each(|file| file.is_known_no_more());
        renamed.map(drop)
    }

    /// Entries of a directory behind a cookie, at most so many. Those of equal cookies come together.
    ///
    /// # Errors
    /// If it is gone, or no directory.
    pub async fn list(&self, directory: InodeNumber, after: u64, limit: u32) -> Result<Listed, FsError> {
        let limit = limit.clamp(1, LISTED_ENTRIES_MAX);
        let answer = self.0.names.ask(b"", directory, Operation::List { directory, after, limit }).await?;
        let Answer::Listed(mut listed) = answer else { return Err(other_answer(directory)) };
        for entry in &mut listed.entries {
            entry.attributes = self.seen(entry.attributes);
        }
        Ok(listed)
    }

    /// Opens a file.
    ///
    /// # Errors
    /// If it is gone, or no file.
    pub async fn open(&self, inode: InodeNumber, how: HowToOpen) -> Result<u64, FsError> {
        self.to_end(|files| async move {
            let mode = if how.writes { HoldMode::Write } else { HoldMode::Read };
            let file = files.take(inode, mode).await?;
            if how.truncates
                && let Err(error) = file.resize(0).await
            {
                files.give_back(file).await;
                return Err(error);
            }
            Ok(files.new_handle(file, how.appends))
        })
        .await
    }

    /// Reads; fewer bytes at the end of the file only.
    ///
    /// # Errors
    /// If the data cannot be read, or the handle is none.
    pub async fn read(&self, handle: u64, offset: u64, length: u64) -> Result<Vec<Buf>, FsError> {
        let file = self.file_of(handle)?;
        match file.is_ready(HoldMode::Read) {
            true => file.read(offset, length).await,
            // What is asked of the shard is asked to the end, also for a caller that is killed.
            false => self.to_end(|_| async move { file.read(offset, length).await }).await,
        }
    }

    /// Writes all of it: at this offset, or at the end by a handle that appends. The data is durable then;
    /// size and time are so after [`Files::flush`], [`Files::sync`], or a second later.
    ///
    /// # Errors
    /// If there is no space, or the data cannot be written.
    pub async fn write(&self, handle: u64, offset: u64, bufs: Vec<Buf>) -> Result<(), FsError> {
        let Handle { file, appends } = self.opened(handle)?;
        let write = |_| async move {
            match appends {
                true => file.append(bufs).await,
                false => file.write(offset, bufs).await,
            }
        };
        self.to_end(write).await
    }

    /// Makes size and time durable of the file of a handle.
    ///
    /// # Errors
    /// If no shard answers.
    pub async fn flush(&self, handle: u64) -> Result<(), FsError> {
        let file = self.file_of(handle)?;
        self.to_end(|_| async move { file.tell().await }).await
    }

    /// Makes size and time durable of a file, whichever mount has written it.
    ///
    /// # Errors
    /// As [`Files::flush`].
    pub async fn sync(&self, inode: InodeNumber) -> Result<(), FsError> {
        let open = self.0.open.borrow().get(&inode).cloned();
        if let Some(file) = open {
            self.to_end(|_| async move { file.tell().await }).await?;
        }
        // The shard asks another mount that writes.
        self.0.names.attributes_by(b"", Operation::Attributes(inode)).await.map(drop)
    }

    /// Likewise, of all files.
    ///
    /// # Errors
    /// As [`Files::flush`].
    pub async fn sync_all(&self) -> Result<(), FsError> {
        self.to_end(|files| async move { files.0.tell_all().await }).await
    }

    /// Closes a handle.
    pub async fn release(&self, handle: u64) {
        let opened = self.0.handles.borrow_mut().remove(&handle);
        if let Some(Handle { file, .. }) = opened {
            let closing = self.to_end(|files| async move {
                files.give_back(file).await;
                Ok(())
            });
            // What it could not do it goes on doing.
            let _ = closing.await;
        }
    }

    /// Makes a part of a file read as zeroes, and gives back its space. It does not become longer.
    ///
    /// # Errors
    /// If the data cannot be written.
    pub async fn zero(&self, handle: u64, offset: u64, length: u64) -> Result<(), FsError> {
        let file = self.file_of(handle)?;
        self.to_end(|_| async move { file.zero(offset, length).await }).await
    }

    /// Makes a file at least this long.
    ///
    /// # Errors
    /// If it is gone, or would be too long.
    pub async fn extend(&self, handle: u64, size: u64) -> Result<(), FsError> {
        let file = self.file_of(handle)?;
        self.to_end(|_| async move { file.extend(size).await }).await
    }

    /// Where data or a hole begins at or behind an offset; `None` if there is none before the end.
    ///
    /// # Errors
    /// If the data cannot be read.
    pub async fn seek(&self, handle: u64, offset: u64, wants_data: bool) -> Result<Option<u64>, FsError> {
        let file = self.file_of(handle)?;
        self.to_end(|_| async move { file.find(offset, wants_data).await }).await
    }

    /// Value of an extended attribute.
    ///
    /// # Errors
    /// If there is none.
    pub async fn xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>, FsError> {
        self.bytes(Operation::Xattr(inode, name.to_vec())).await
    }

    /// Names of all extended attributes.
    ///
    /// # Errors
    /// If the inode is gone.
    pub async fn xattr_names(&self, inode: InodeNumber) -> Result<Vec<Vec<u8>>, FsError> {
        match self.0.names.ask(b"", inode, Operation::XattrNames(inode)).await? {
            Answer::Names(names) => Ok(names),
            _ => Err(other_answer(inode)),
        }
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// If the mode does not allow it, or it is too long.
    pub async fn set_xattr(
        &self,
        inode: InodeNumber,
        name: &[u8],
        value: Vec<u8>,
        mode: XattrMode,
    ) -> Result<(), FsError> {
        self.look(b"", Operation::SetXattr(inode, name.to_vec(), value, mode)).await.map(drop)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// If there is none.
    pub async fn remove_xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<(), FsError> {
        self.look(b"", Operation::RemoveXattr(inode, name.to_vec())).await.map(drop)
    }

    async fn look(&self, path: &[u8], operation: Operation) -> Result<Attributes, FsError> {
        self.0.names.attributes_by(path, operation).await.map(|found| self.seen(found))
    }

    async fn bytes(&self, operation: Operation) -> Result<Vec<u8>, FsError> {
        let inode = operation.inode();
        match self.0.names.ask(b"", inode, operation).await? {
            Answer::Bytes(bytes) => Ok(bytes),
            _ => Err(other_answer(inode)),
        }
    }

    /// Attributes with what this mount knows better.
    fn seen(&self, found: Attributes) -> Attributes {
        match self.0.open.borrow().get(&found.inode) {
            Some(file) => file.seen(found),
            None => found,
        }
    }

    fn file_of(&self, handle: u64) -> Result<Rc<Open>, FsError> {
        self.opened(handle).map(|opened| opened.file)
    }

    fn opened(&self, handle: u64) -> Result<Handle, FsError> {
        let opened = self.0.handles.borrow().get(&handle).cloned();
        opened.ok_or(FsError::Refused { path: String::new(), error: FileError::Stale })
    }

    fn new_handle(&self, file: Rc<Open>, appends: bool) -> u64 {
        let handle = self.0.last_handle.get() + 1;
        self.0.last_handle.set(handle);
        self.0.handles.borrow_mut().insert(handle, Handle { file, appends });
        handle
    }

    /// Opens a file for whoever gives it back. One that nobody has open may be used as the mode says.
    async fn take(&self, inode: InodeNumber, mode: HoldMode) -> Result<Rc<Open>, FsError> {
        // One at a time asks the shard for an inode: two answers would have no order.
        let new = || Rc::new(Mutex::new(()));
        let opening = self.0.opening.borrow_mut().entry(inode).or_insert_with(new).clone();
        let opened = {
            let _turn = opening.lock().await;
            let open = self.0.open.borrow().get(&inode).cloned();
            match open {
                Some(file) => Ok(self.count_user(file)),
                None => self.open_new(inode, mode).await,
            }
        };
        drop(opening);
        self.0.opening.borrow_mut().retain(|_, turn| Rc::strong_count(turn) > 1);
        self.use_file(opened?, mode).await
    }

    /// Opens a file that is not listed as open.
    async fn open_new(&self, inode: InodeNumber, mode: HoldMode) -> Result<Rc<Open>, FsError> {
        let attributes = self.0.steady.attributes_by(b"", Operation::Hold(inode, mode)).await?;
        let error = match attributes.kind {
            FileKind::Regular => return self.list_open(attributes, mode, None),
            FileKind::Directory => FileError::IsDirectory,
            _ => FileError::Invalid,
        };
        let release = Operation::Release(inode, AttributeChanges::default());
        let _ = self.0.steady.ask(b"", inode, release).await;
        Err(FsError::Refused { path: String::new(), error })
    }

    /// Lists a file as open, and counts a user of it.
    fn list_open(
        &self,
        attributes: Attributes,
        mode: HoldMode,
        reserved: Option<u64>,
    ) -> Result<Rc<Open>, FsError> {
        let data = self.0.mount.data_of(&attributes, b"")?;
        let found = Found { attributes, data, mode, reserved };
        let file = OpenFile::new(self.0.steady.clone(), self.0.hearing.clone(), found);
        self.0.open.borrow_mut().insert(attributes.inode, file.clone());
        Ok(self.count_user(file))
    }

    fn count_user(&self, file: Rc<Open>) -> Rc<Open> {
        file.users.set(file.users.get() + 1);
        file
    }

    /// Has the shard know that a file is open which may have been closed just now.
    async fn use_file(&self, file: Rc<Open>, mode: HoldMode) -> Result<Rc<Open>, FsError> {
        match file.open_again(mode).await {
            Ok(()) => Ok(file),
            Err(error) => {
                self.give_back(file).await;
                Err(error)
            }
        }
    }

    /// Counts one user less of a file. The last one has the shard know that it is closed.
    async fn give_back(&self, file: Rc<Open>) {
        file.users.set(file.users.get() - 1);
        if file.users.get() > 0 {
            return;
        }
        if let Err(error) = file.close().await {
            tracing::debug!(inode = file.inode.0, %error, "the shard takes a file for open still");
        }
        let mut open = self.0.open.borrow_mut();
        if file.users.get() == 0 && open.get(&file.inode).is_some_and(|listed| Rc::ptr_eq(listed, &file)) {
            open.remove(&file.inode);
        }
    }
}

impl Inner {
    /// Does what another mount waits for. Of a file that is not open here nothing is known and nothing held.
    async fn answer(self: Rc<Inner>, recall: Recall) {
        // One that was sent again is being answered.
        if !self.answering.borrow_mut().insert(recall.number) {
            return;
        }
        if recall.inode == InodeNumber::ROOT {
            self.all_names.give(&self.steady).await;
            self.answering.borrow_mut().remove(&recall.number);
            return;
        }
        // What is being opened may be what the other one waits for.
        let opening = self.opening.borrow().get(&recall.inode).cloned();
        if let Some(opening) = opening {
            drop(opening.lock().await);
        }
        let open = self.open.borrow().get(&recall.inode).cloned();
        let answered = match (open, recall.keeps) {
            (Some(file), HoldMode::Write) => file.tell().await,
            (Some(file), keeps) => file.give(keeps).await,
            (None, _) => Ok(()),
        };
        self.answering.borrow_mut().remove(&recall.number);
        let answered = match recall.keeps {
            HoldMode::Write if answered.is_ok() => {
                let told = Operation::Told(recall.number);
                self.steady.ask(b"", InodeNumber::ROOT, told).await.map(drop)
            }
            _ => answered,
        };
        if let Err(error) = answered {
            tracing::debug!(inode = recall.inode.0, %error, "a recall is not answered yet");
        }
    }

    /// Nothing is held any more: whoever comes next need not wait until the session is forgotten.
    async fn leave(&self) -> Result<(), FsError> {
        self.all_names.end(&self.steady).await?;
        let open: Vec<Rc<Open>> = self.open.borrow().values().cloned().collect();
        join_all(open.iter().map(|file| file.leave())).await.into_iter().collect()
    }

    async fn tell_all(&self) -> Result<(), FsError> {
        let open: Vec<Rc<Open>> = self.open.borrow().values().cloned().collect();
        join_all(open.iter().map(|file| file.tell())).await.into_iter().collect()
    }
}

/// Hears what other mounts wait for, as long as there is the mount.
async fn hear_recalls(inner: Weak<Inner>) {
    loop {
        let left = now();
        let Some(steady) = inner.upgrade().map(|inner| inner.steady.clone()) else { return };
        let asked = timeout(HEARS_WITHIN, steady.ask(b"", InodeNumber::ROOT, Operation::Recalls)).await;
        let Some(inner) = inner.upgrade() else { return };
        match asked {
            Ok(Ok(Answer::Recalled(recalls))) => {
                inner.hearing.note(left);
                recalls.into_iter().for_each(|recall| drop(spawn(inner.clone().answer(recall))));
            }
            Ok(Ok(_)) => return inner.hearing.end(other_answer(InodeNumber::ROOT)),
            Ok(Err(error)) => return inner.hearing.end(error),
            // Nobody has answered: the one that serves now is asked.
            Err(_) => {}
        }
    }
}

/// Holds all names whenever this mount is alone, as long as there is the mount.
async fn hold_all_names(inner: Weak<Inner>) {
    loop {
        let Some(this) = inner.upgrade() else { return };
        this.all_names.try_to_hold(&this.steady).await;
        let pause = this.all_names.pause();
        drop(this);
        sleep(pause).await;
    }
}

/// Has the shards hear of sizes and times, as long as there is the mount.
async fn tell_from_time_to_time(inner: Weak<Inner>) {
    loop {
        sleep(TELL_EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        if let Err(error) = inner.tell_all().await {
            tracing::debug!(%error, "sizes of files are not told yet");
        }
    }
}

fn at(directory: InodeNumber, name: &[u8]) -> NameIn {
    NameIn { directory, name: name.to_vec() }
}

fn other_answer(inode: InodeNumber) -> FsError {
    FsError::OtherAnswer { shard: inode.shard() }
}
