//! A file system by inode numbers, as a kernel uses it: names, and files that are open.
//!
//! It owns which files are open on this mount, and that the shard knows each of them: a file that loses its
//! name stays until it is closed (F9). It hears what other mounts wait for, and has the files give that back
//! (F4).

use crate::all_names::AllNames;
use crate::directory_leases::{DirectoryLeases, LOOKED_THROUGH_EVERY};
use crate::error::FsError;
use crate::mount::Mount;
use crate::namespace::Namespace;
use crate::open_file::{OpenFile, RESERVED_STEP};
use crate::open_files::{Handle, OpenFiles};
use crate::shared::Need;
use crate::write_back::write_back_early;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::slice;
use std::time::Duration;
use weft_client::{AttachMode, FileSystem};
use weft_rt::{Buf, now, sleep, spawn, timeout};
use weft_rules::{Mutation, mutated};
use weft_types::limits::LISTED_ENTRIES_MAX;
use weft_types::{Attributes, InodeNumber, SessionId};
use weft_wire::files::{
    Answer, AttributeChanges, FileError, HoldMode, Listed, NameIn, NewInode, Operation, Recall, RenameMode,
    XattrMode,
};

/// How long size and times of a file that is written may stay unknown to the shard.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What the names of extended attributes begin with that are access control lists.
const ACCESS_CONTROL_LISTS: &[u8] = b"system.posix_acl_";

/// How often the shard is told of one file before its access control list is looked at or changed.
const TELLS_OF_ONE: usize = 3;

/// How long a server may take to say what others wait for: it does within a second.
const HEARS_WITHIN: Duration = Duration::from_millis(2_500);

/// An open file of a mount.
pub(crate) type Open = OpenFile<FileSystem>;

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

/// A mounted file system. Clones are the same.
#[derive(Clone)]
pub struct Files(pub(crate) Rc<Inner>);

pub(crate) struct Inner {
    mount: Mount,
    pub(crate) names: Namespace<FileSystem>,
    /// The same, for what has to be waited for as long as it takes.
    pub(crate) steady: Namespace<FileSystem>,
    all_names: AllNames,
    directories: DirectoryLeases,
    pub(crate) open: OpenFiles<FileSystem>,
    /// Recalls of shards that are being answered.
    answering: RefCell<BTreeSet<(u16, u64)>>,
}

impl Files {
    /// Begins to use an attached file system.
    pub fn begin(mount: Mount) -> Files {
        Files::begin_after(mount, 0)
    }

    /// As [`Files::begin`], but no handle has a number that `before` has given out, and as much may be
    /// kept back.
    pub(crate) fn begin_behind(mount: Mount, before: &Files) -> Files {
        let files = Files::begin_after(mount, before.0.open.last_handle());
        files.keep_back(before.0.open.write_back.allowance());
        files
    }

    fn begin_after(mount: Mount, last_handle: u64) -> Files {
        let names = mount.names().clone();
        let data_of = mount.clone();
        let data_of = move |attributes: &Attributes| data_of.data_of(attributes, b"");
        let inner = Inner {
            mount,
            all_names: AllNames::default(),
            directories: DirectoryLeases::default(),
            open: OpenFiles::new(names.to_end(), last_handle, data_of),
            steady: names.to_end(),
            names: names.clone(),
            answering: RefCell::default(),
        };
        let files = Files(Rc::new(inner));
        spawn(tell_from_time_to_time(Rc::downgrade(&files.0)));
        spawn(hear_shards(Rc::downgrade(&files.0), names.clone()));
        spawn(hold_directories(Rc::downgrade(&files.0), names));
        spawn(give_unused_directories(Rc::downgrade(&files.0)));
        files
    }

    /// How long names and attributes that are answered now stay as they are, whatever other mounts do.
    pub fn stays(&self) -> Duration {
        self.0.all_names.stay(self.0.names.hearings())
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

    /// The session has ended without the mount: nothing is told any more, and what is open fails.
    pub(crate) async fn abandon(&self) {
        self.0.mount.detach().await;
    }

    /// Whether the session is over, as far as is known.
    pub fn is_over(&self) -> bool {
        self.0.names.is_over()
    }

    /// The session.
    pub fn session_id(&self) -> SessionId {
        self.0.mount.session_id()
    }

    /// How long whoever asks waits for an answer.
    pub(crate) fn patience(&self) -> Duration {
        self.0.names.patience()
    }

    /// Whether there is a handle of an inode.
    pub(crate) fn has_handle_of(&self, inode: InodeNumber) -> bool {
        self.0.open.has_handle_of(inode)
    }

    /// Whether a handle was opened here, and is not closed.
    pub(crate) fn knows(&self, handle: u64) -> bool {
        self.0.open.by_handle(handle).is_ok()
    }

    /// Whether anything is open.
    pub(crate) fn has_handles(&self) -> bool {
        self.0.open.has_handles()
    }

    /// How often the shard has changed the inode of a handle, as far as this mount knows: never less than at
    /// the open. None if another mount may know of more.
    pub fn revision(&self, handle: u64) -> Option<u64> {
        let file = self.file_of(handle).ok().filter(|file| file.is_alone());
        file.map(|file| file.revision())
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
        if let Some(known) = self.0.open.attributes(inode) {
            return Ok(known);
        }
        if let Some(file) = self.0.open.get(inode).filter(|file| file.is_shared()) {
            // The shard orders the times of all who write the file.
            self.to_end(|_| async move { file.tell().await }).await?;
        }
        self.look(b"", Operation::Attributes(inode)).await
    }

    /// Permissions of an inode. If it is an open file, other mounts that write it are not asked.
    ///
    /// # Errors
    /// If it is gone.
    pub async fn permissions(&self, inode: InodeNumber) -> Result<u16, FsError> {
        match self.0.open.get(inode).and_then(|file| file.permissions()) {
            Some(known) => Ok(known),
            None => self.attributes(inode).await.map(|found| found.mode),
        }
    }

    /// Changes attributes. A file that becomes shorter gives its space back.
    ///
    /// # Errors
    /// If it is gone, or cannot have them.
    pub async fn change(&self, inode: InodeNumber, changes: AttributeChanges) -> Result<Attributes, FsError> {
        if changes.size.is_none() && self.0.open.get(inode).is_none() {
            return self.look(b"", Operation::Change(inode, changes)).await;
        }
        self.to_end(|files| async move {
            let file = files.0.open.take(inode, HoldMode::Write).await?;
            let changed = files.change_open(&file, changes).await;
            files.0.open.give_back(file).await;
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
    pub(crate) async fn to_end<T: 'static, F: Future<Output = Result<T, FsError>> + 'static>(
        &self,
        work: impl FnOnce(Files) -> F,
    ) -> Result<T, FsError> {
        let waited = self.0.names.patience();
        let going = spawn(work(self.clone()));
        let ended = timeout(waited, going).await.ok().and_then(Result::ok);
        ended.unwrap_or(Err(FsError::NoAnswer { shard: 0, waited }))
    }

    /// Likewise, for what opens a file. If nobody waits for it any more, it is closed again.
    async fn open_to_end<T: 'static, F: Future<Output = Result<(T, u64), FsError>> + 'static>(
        &self,
        work: impl FnOnce(Files) -> F + 'static,
    ) -> Result<(T, u64), FsError> {
        let is_waited_for = Rc::new(());
        let waits = Rc::downgrade(&is_waited_for);
        let opened = self.to_end(|files| async move {
            let opened = work(files.clone()).await;
            match &opened {
                Ok((_, handle)) if waits.strong_count() == 0 => files.0.open.close(*handle).await,
                _ => {}
            }
            opened
        });
        let opened = opened.await;
        drop(is_waited_for);
        opened
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
        let at = at(directory, name);
        let name = name.to_vec();
        self.open_to_end(move |files| async move {
            let create = async |reserved| {
                let operation = Operation::CreateOpen(at.clone(), new.clone(), reserved);
                files.0.open.create(&name, operation, reserved).await
            };
            let (made, file) = match create(RESERVED_STEP).await {
                // A quota may have inodes left, and less than a step of space.
                Err(error) if error.refusal() == Some(FileError::OverQuota) => create(0).await?,
                created => created?,
            };
            Ok((made, files.0.open.new_handle(file, appends)))
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
        let operation = Operation::CreateUnnamed(directory, new);
        self.open_to_end(move |files| async move {
            let (made, file) = files.0.open.create(b"", operation, 0).await?;
            Ok((made, files.0.open.new_handle(file, appends)))
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
        let at = at(directory, name);
        let link = Operation::Link(inode, at.clone());
        self.to_end(move |files| async move { files.change_names((&[], Some(inode)), &at.name, link).await })
            .await
    }

    /// Removes a name of what is no directory.
    ///
    /// # Errors
    /// If there is nothing, or a directory.
    pub async fn unlink(&self, directory: InodeNumber, name: &[u8]) -> Result<(), FsError> {
        let at = at(directory, name);
        self.to_end(move |files| async move {
            let unlink = Operation::Unlink(at.clone());
            files.change_names((slice::from_ref(&at), None), &at.name, unlink).await
        })
        .await
        .map(drop)
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
        // A program that replaces a file with one just written wants to find one of both, whatever fails.
        if let Some(file) = self.0.open.unwritten(from.0, from.1) {
            self.to_end(|_| async move { file.tell().await }).await?;
        }
        let names = [at(from.0, from.1), at(to.0, to.1)];
        let rename = Operation::Rename(names[0].clone(), names[1].clone(), mode);
        let change = move |files: Files| async move {
            files.change_names((&names, None), &names[1].name, rename).await
        };
        let renamed = self.to_end(change).await;
        // The file that had the new name may have lost it or moved, and the answer is not about that file.
        self.0.open.doubts.note();
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
            entry.attributes = self.0.open.seen(entry.attributes);
        }
        Ok(listed)
    }

    /// Opens a file.
    ///
    /// # Errors
    /// If it is gone, or no file.
    pub async fn open(&self, inode: InodeNumber, how: HowToOpen) -> Result<u64, FsError> {
        let opened = self.open_to_end(move |files| async move {
            let mode = if how.writes { HoldMode::Write } else { HoldMode::Read };
            let file = files.0.open.take(inode, mode).await?;
            if how.truncates
                && let Err(error) = file.resize(0).await
            {
                files.0.open.give_back(file).await;
                return Err(error);
            }
            Ok(((), files.0.open.new_handle(file, how.appends)))
        });
        opened.await.map(|(_, handle)| handle)
    }

    /// A kernel keeps pages of what is read and written by a handle, until it is closed. To be called before
    /// it has any: meanwhile the mount does not share the file with others (F7).
    ///
    /// # Errors
    /// If there is no such handle, or the shard cannot be told what was written.
    pub async fn keep_pages(&self, handle: u64) -> Result<(), FsError> {
        let Handle { file, keeps_pages, .. } = self.0.open.by_handle(handle)?;
        match keeps_pages.replace(true) {
            true => Ok(()),
            false => self.to_end(|_| async move { file.begin_to_keep_pages().await }).await,
        }
    }

    /// Reads; fewer bytes at the end of the file only.
    ///
    /// # Errors
    /// If the data cannot be read, or the handle is none.
    pub async fn read(&self, handle: u64, offset: u64, length: u64) -> Result<Vec<Buf>, FsError> {
        let file = self.file_of(handle)?;
        // What has to be written back is so to its end, too.
        let is_written = !file.has_part(offset, offset.saturating_add(length));
        match file.is_ready(Need::Look) && !file.is_shared() && is_written {
            true => file.read(offset, length).await,
            // What is asked of the shard is asked to the end, also for a caller that is killed.
            false => self.to_end(|_| async move { file.read(offset, length).await }).await,
        }
    }

    /// Takes all of it: at this offset, or at the end by a handle that appends. Every mount sees it from
    /// then on. Data, size and time are durable after [`Files::sync_handle`], [`Files::sync`], or some
    /// seconds later (F14).
    ///
    /// # Errors
    /// If there is no space, or the data cannot be written.
    pub async fn write(&self, handle: u64, offset: u64, bufs: Vec<Buf>) -> Result<(), FsError> {
        let Handle { file, appends, .. } = self.0.open.by_handle(handle)?;
        match self.0.open.write_back.is_on() {
            true => self.keep(file, (!appends).then_some(offset), bufs).await,
            false => self.write_through(handle, offset, bufs).await,
        }
    }

    /// As [`Files::write`], but at this offset even if the handle appends: for pages of a mapping.
    ///
    /// # Errors
    /// As [`Files::write`].
    pub async fn write_at(&self, handle: u64, offset: u64, bufs: Vec<Buf>) -> Result<(), FsError> {
        let file = self.file_of(handle)?;
        match self.0.open.write_back.is_on() {
            true => self.keep(file, Some(offset), bufs).await,
            false => {
                let write = |files: Files| async move {
                    files.with_room(async || file.write_through(offset, bufs.clone()).await).await
                };
                self.to_end(write).await
            }
        }
    }

    /// Does what needs room of a quota. If it is refused, open files give back what they have asked for
    /// ahead, and it is tried once more (F16).
    async fn with_room<T>(&self, work: impl AsyncFn() -> Result<T, FsError>) -> Result<T, FsError> {
        match work().await {
            Err(error) if error.refusal() == Some(FileError::OverQuota) => {
                self.0.open.give_room_back().await;
                work().await
            }
            done => done,
        }
    }

    /// Takes bytes, at the end if no offset is said.
    async fn keep(&self, file: Rc<Open>, offset: Option<u64>, bufs: Vec<Buf>) -> Result<(), FsError> {
        if file.write_now(offset, &bufs) {
            write_back_early(&file);
            return Ok(());
        }
        let write = |files: Files| async move {
            let write = async || match offset {
                None => file.append(bufs.clone()).await,
                Some(offset) => file.write(offset, bufs.clone()).await,
            };
            files.with_room(write).await?;
            write_back_early(&file);
            Ok(())
        };
        self.to_end(write).await
    }

    /// As [`Files::write`], but the data are durable when it returns. Size and time become durable later.
    ///
    /// # Errors
    /// As [`Files::write`].
    pub async fn write_through(&self, handle: u64, offset: u64, bufs: Vec<Buf>) -> Result<(), FsError> {
        let Handle { file, appends, .. } = self.0.open.by_handle(handle)?;
        let write = |files: Files| async move {
            let write = async || match appends {
                true => file.append_through(bufs.clone()).await,
                false => file.write_through(offset, bufs.clone()).await,
            };
            files.with_room(write).await
        };
        self.to_end(write).await
    }

    /// Sets how many bytes, in all, [`Files::write`] may keep back from now on. `None`, the value at the
    /// beginning, means any number. Once they are used up, each write returns when it is durable. Near the
    /// end of space the number must be less than what is free, so that a program learns from its write
    /// that there is no more.
    pub fn keep_back(&self, bytes: Option<u64>) {
        self.0.open.write_back.allow(bytes);
    }

    /// A program has closed the file of a handle: reports what was lost of the file. What is still kept is
    /// written back when the last handle is released.
    ///
    /// # Errors
    /// Why something was lost that this handle has not heard of.
    pub async fn flush(&self, handle: u64) -> Result<(), FsError> {
        match self.is_over() {
            // Nothing goes on its way any more.
            true => self.sync_handle(handle).await,
            false => {
                let Handle { file, heard, .. } = self.0.open.by_handle(handle)?;
                file.lost.tell(&heard)
            }
        }
    }

    /// Makes data, size and time durable of the file of a handle, whichever mount has written them.
    ///
    /// # Errors
    /// If they cannot be; or why something was lost that this handle has not heard of.
    pub async fn sync_handle(&self, handle: u64) -> Result<(), FsError> {
        let Handle { file, heard, .. } = self.0.open.by_handle(handle)?;
        let synced = self.sync(file.inode).await;
        file.lost.tell(&heard).and(synced)
    }

    /// Makes data, size and time durable of a file, whichever mount has written it.
    ///
    /// # Errors
    /// If they cannot be.
    pub async fn sync(&self, inode: InodeNumber) -> Result<(), FsError> {
        if let Some(file) = self.0.open.get(inode) {
            self.to_end(|_| async move { file.tell().await }).await?;
        }
        // The shard asks another mount that writes.
        self.0.names.attributes_by(b"", Operation::Attributes(inode)).await.map(drop)
    }

    /// Likewise, of all files.
    ///
    /// # Errors
    /// As [`Files::sync`].
    pub async fn sync_all(&self) -> Result<(), FsError> {
        let told = self.to_end(|files| async move { files.0.open.tell_all().await }).await;
        self.0.open.write_back.tell_lost().and(told)
    }

    /// Closes a handle.
    pub async fn release(&self, handle: u64) {
        let closing = self.to_end(move |files| async move {
            files.0.open.close(handle).await;
            Ok(())
        });
        // A closing that takes longer goes on in its own task.
        let _ = closing.await;
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
        self.to_end(|files| async move { files.with_room(async || file.extend(size).await).await }).await
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
        if name.starts_with(ACCESS_CONTROL_LISTS) {
            self.tell_owner_of(inode).await?;
        }
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
        self.tell_owner_of(inode).await?;
        self.look(b"", Operation::SetXattr(inode, name.to_vec(), value, mode)).await.map(drop)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// If there is none.
    pub async fn remove_xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<(), FsError> {
        self.look(b"", Operation::RemoveXattr(inode, name.to_vec())).await.map(drop)
    }

    /// Tells the shard who may use an open file, if it has not heard. Extended attributes are set after
    /// that, because an access control list follows the permissions and changes them.
    async fn tell_owner_of(&self, inode: InodeNumber) -> Result<(), FsError> {
        match self.0.open.get(inode) {
            Some(file) => {
                let tell = |_| async move {
                    // Permissions that are set meanwhile are told with the next word.
                    for _ in 0..TELLS_OF_ONE {
                        if !file.has_untold_owner() {
                            break;
                        }
                        file.tell().await?;
                    }
                    Ok(())
                };
                self.to_end(tell).await
            }
            None => Ok(()),
        }
    }

    /// Carries out a change of names. Before that, the shard must know whether the files that have or get
    /// these names are open. It purges a file that has no name and is not open. And the directory that a
    /// file was in does not keep it as it is any more when the file has two names, or is in another
    /// directory. To be run to its end, because until the shard has answered no file is opened without
    /// telling the shard.
    async fn change_names(
        &self,
        (names, other): (&[NameIn], Option<InodeNumber>),
        path: &[u8],
        operation: Operation,
    ) -> Result<Attributes, FsError> {
        let (_going, mut files) = self.0.steady.kept().before_names_change(names);
        files.inodes.extend(other);
        if !mutated(Mutation::GoneUnsaid) {
            self.0.open.say(|inode, kept_by| files.has(inode, kept_by)).await?;
        }
        let changed = self.0.steady.attributes_by(path, operation).await;
        changed.map(|found| self.0.open.seen(found))
    }

    async fn look(&self, path: &[u8], operation: Operation) -> Result<Attributes, FsError> {
        let asked = self.0.open.doubts.asked();
        let found = self.0.names.attributes_by(path, operation).await;
        found.map(|found| self.0.open.seen_since(found, asked))
    }

    async fn bytes(&self, operation: Operation) -> Result<Vec<u8>, FsError> {
        let inode = operation.inode();
        match self.0.names.ask(b"", inode, operation).await? {
            Answer::Bytes(bytes) => Ok(bytes),
            _ => Err(other_answer(inode)),
        }
    }

    fn file_of(&self, handle: u64) -> Result<Rc<Open>, FsError> {
        self.0.open.by_handle(handle).map(|handle| handle.file)
    }
}

impl Inner {
    /// Does what another mount waits for.
    async fn answer(self: Rc<Inner>, recall: Recall) {
        let key = (recall.inode.shard(), recall.number);
        // One that was sent again is being answered.
        if !self.answering.borrow_mut().insert(key) {
            return;
        }
        let answered = match recall.inode {
            whole if whole.is_whole() => {
                let all_names = self.all_names.of(whole.shard());
                all_names.give(&self.steady, &self.open).await;
                match all_names.stop().await {
                    // The root is a directory, too.
                    (_stopped, false) if whole == InodeNumber::ROOT => {
                        self.directories.give((&self.steady, &self.open), whole).await
                    }
                    _ => Ok(()),
                }
            }
            inode => {
                let give_directory = async || self.directories.give((&self.steady, &self.open), inode).await;
                self.open.answer(inode, recall.keeps, give_directory).await
            }
        };
        self.answering.borrow_mut().remove(&key);
        let answered = match recall.keeps {
            HoldMode::Write if answered.is_ok() => {
                let told = Operation::Told(recall.number);
                self.steady.ask(b"", recall.inode, told).await.map(drop)
            }
            _ => answered,
        };
        if let Err(error) = answered {
            tracing::debug!(inode = recall.inode.0, %error, "a recall is not answered yet");
        }
    }

    /// Gives back all that is held, so that the next mount need not wait until this session is forgotten.
    async fn leave(&self) -> Result<(), FsError> {
        // First the files: those of which the shard does not know that they are open need all names, or
        // their directory, to be held.
        let left = self.open.leave().await;
        let left = self.all_names.end(&self.steady).await.and(left);
        self.directories.end((&self.steady, &self.open)).await.and(left)
    }

    /// Holds a directory that is looked at again and again.
    async fn hold_directory(self: Rc<Inner>, directory: InodeNumber) {
        let all_names = self.all_names.of(directory.shard());
        let _stopped = match directory {
            InodeNumber::ROOT => Some(all_names.stop().await),
            _ => None,
        };
        self.directories.take(&self.steady, directory).await;
    }
}

/// Hears what other mounts wait for from each shard that was asked something, as long as there is the mount.
async fn hear_shards(inner: Weak<Inner>, names: Namespace<FileSystem>) {
    let mut heard = BTreeSet::new();
    loop {
        let shards = timeout(LOOKED_THROUGH_EVERY, names.shards_beyond(heard.len())).await;
        if inner.upgrade().is_none() {
            return;
        }
        for shard in shards.into_iter().flatten() {
            if heard.insert(shard) {
                spawn(hear_recalls(inner.clone(), shard));
                spawn(hold_all_names(inner.clone(), shard));
            }
        }
    }
}

/// Hears what other mounts wait for from one shard, as long as there is the mount.
async fn hear_recalls(inner: Weak<Inner>, shard: u16) {
    // Any inode of it.
    let of_shard = InodeNumber::new(shard, InodeNumber::ROOT.counter());
    loop {
        let left = now();
        let Some(steady) = inner.upgrade().map(|inner| inner.steady.clone()) else { return };
        let asked = timeout(HEARS_WITHIN, steady.ask(b"", of_shard, Operation::Recalls)).await;
        let Some(inner) = inner.upgrade() else { return };
        let hearing = inner.steady.hearing(shard);
        match asked {
            Ok(Ok(Answer::Recalled(recalls))) => {
                hearing.note(left);
                recalls.into_iter().for_each(|recall| drop(spawn(inner.clone().answer(recall))));
            }
            Ok(Ok(_)) => return hearing.end(other_answer(of_shard)),
            Ok(Err(error)) => return hearing.end(error),
            // Nobody has answered: the one that serves now is asked.
            Err(_) => {}
        }
    }
}

/// Holds all names of a shard whenever this mount is alone there, as long as there is the mount.
async fn hold_all_names(inner: Weak<Inner>, shard: u16) {
    loop {
        let Some(this) = inner.upgrade() else { return };
        if this.mount.mode() == AttachMode::ReadOnly {
            return;
        }
        let all_names = this.all_names.of(shard);
        all_names.try_to_hold(&this.steady).await;
        let pause = all_names.pause();
        drop(this);
        sleep(pause).await;
    }
}

/// Holds directories that are looked at again and again, as long as there is the mount.
async fn hold_directories(inner: Weak<Inner>, names: Namespace<FileSystem>) {
    loop {
        let due = timeout(LOOKED_THROUGH_EVERY, names.kept().due()).await;
        let Some(inner) = inner.upgrade() else { return };
        for directory in due.into_iter().flatten() {
            spawn(inner.clone().hold_directory(directory));
        }
    }
}

/// Gives directories back that nobody looks at any more, as long as there is the mount.
async fn give_unused_directories(inner: Weak<Inner>) {
    loop {
        sleep(LOOKED_THROUGH_EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        if inner.directories.give_unused((&inner.steady, &inner.open)).await
            && let all_names = inner.all_names.of(InodeNumber::ROOT.shard())
            && let (_stopped, false) = all_names.stop().await
            && let Err(error) =
                inner.directories.give_back((&inner.steady, &inner.open), InodeNumber::ROOT).await
        {
            tracing::debug!(%error, "the root is not given back yet");
        }
    }
}

/// Has the shards hear of sizes and times, as long as there is the mount.
async fn tell_from_time_to_time(inner: Weak<Inner>) {
    loop {
        sleep(TELL_EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        inner.open.tell_each();
    }
}

fn at(directory: InodeNumber, name: &[u8]) -> NameIn {
    NameIn { directory, name: name.to_vec() }
}

pub(crate) fn other_answer(inode: InodeNumber) -> FsError {
    FsError::OtherAnswer { shard: inode.shard() }
}
