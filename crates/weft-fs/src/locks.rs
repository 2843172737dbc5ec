//! Locks of programs on files that are open (F11).

use crate::caller::Shards;
use crate::error::FsError;
use crate::files::{Files, other_answer};
use crate::open_file::OpenFile;
use weft_rt::spawn;
use weft_rules::{Mutation, mutated};
use weft_types::InodeNumber;
use weft_wire::files::{Answer, FileLock, LockOwner, Operation};

/// All bytes of a file.
const ALL: (u64, u64) = (0, u64::MAX);

impl Files {
    /// Takes a lock of the file of a handle, instead of what its owner has locked in that range.
    ///
    /// # Errors
    /// If somebody else has a lock that excludes it ([`FileError::Locked`](weft_wire::files::FileError)): see
    /// [`Files::until_unlocked`].
    pub async fn lock(&self, handle: u64, lock: FileLock) -> Result<(), FsError> {
        let file = self.0.open.by_handle(handle)?.file;
        self.to_end(move |files| async move {
            file.lock(handle, lock).await?;
            match files.0.open.by_handle(handle) {
                Ok(_) => Ok(()),
                // Nobody has the file open any more by which it was taken.
                Err(closed) => {
                    file.unlock_by(handle).await?;
                    Err(closed)
                }
            }
        })
        .await
    }

    /// Waits until nobody else has a lock that excludes this one, for as long as it takes. May be dropped.
    ///
    /// # Errors
    /// If who has it waits for this owner ([`FileError::Deadlock`](weft_wire::files::FileError)).
    pub async fn until_unlocked(&self, handle: u64, lock: FileLock) -> Result<(), FsError> {
        let inode = self.0.open.by_handle(handle)?.file.inode;
        let mut wait = LockWait { files: self, inode, lock, is_over: false };
        let waited = self.0.steady.until_free(inode, Operation::Lock(inode, lock)).await;
        wait.is_over = true;
        waited
    }

    /// Gives back what an owner has locked in a range, from the first byte to the last one.
    ///
    /// # Errors
    /// If no shard answers.
    pub async fn unlock(&self, handle: u64, owner: LockOwner, range: (u64, u64)) -> Result<(), FsError> {
        let file = self.0.open.by_handle(handle)?.file;
        match file.lockers.has(owner) {
            true => self.to_end(move |_| async move { file.unlock(owner, range).await }).await,
            false => Ok(()),
        }
    }

    /// Gives back all locks that an owner has on the file of a handle, when it has closed the file by any
    /// handle.
    ///
    /// # Errors
    /// If no shard answers.
    pub async fn unlock_all(&self, handle: u64, owner: LockOwner) -> Result<(), FsError> {
        let file = self.0.open.by_handle(handle)?.file;
        match file.lockers.forget(owner) {
            true => self.to_end(move |_| async move { file.unlock(owner, ALL).await }).await,
            false => Ok(()),
        }
    }

    /// A lock of somebody else that excludes this one, if there is one.
    ///
    /// # Errors
    /// If no shard answers.
    pub async fn find_lock(&self, handle: u64, lock: FileLock) -> Result<Option<FileLock>, FsError> {
        let inode = self.0.open.by_handle(handle)?.file.inode;
        match self.0.names.ask(b"", inode, Operation::FindLock(inode, lock)).await? {
            Answer::Lock(found) => Ok(found),
            _ => Err(other_answer(inode)),
        }
    }
}

/// A wait for a lock. If it is given up, the shard hears that its owner does not wait any more.
struct LockWait<'f> {
    files: &'f Files,
    inode: InodeNumber,
    lock: FileLock,
    is_over: bool,
}

impl Drop for LockWait<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (names, inode) = (self.files.0.names.clone(), self.inode);
        let look = Operation::FindLock(inode, self.lock);
        spawn(async move { names.ask(b"", inode, look).await.map(drop) });
    }
}

impl<S: Shards> OpenFile<S> {
    async fn lock(&self, handle: u64, lock: FileLock) -> Result<(), FsError> {
        self.say().await?;
        let _turn = self.lock_turn.lock().await;
        // Noted before, since the answer may come late; and after, since the file may have been closed
        // meanwhile, and then the kernel gives this lock back.
        self.lockers.note(lock.owner, handle);
        let locked = self.names.ask(b"", self.inode, Operation::Lock(self.inode, lock)).await;
        self.lockers.note(lock.owner, handle);
        locked.map(drop)
    }

    /// What was written under a lock is durable before others have it: they may go by it, whatever dies.
    async fn unlock(&self, owner: LockOwner, range: (u64, u64)) -> Result<(), FsError> {
        if !mutated(Mutation::LockBeforeData)
            && let Err(error) = self.tell().await
        {
            tracing::debug!(inode = self.inode.0, %error, "what was written under a lock is not told");
        }
        let _turn = self.lock_turn.lock().await;
        self.names.ask(b"", self.inode, Operation::Unlock(self.inode, owner, range)).await.map(drop)
    }

    /// A handle is closed for good: locks go that were taken by it.
    pub(crate) async fn unlock_by(&self, handle: u64) -> Result<(), FsError> {
        if mutated(Mutation::LockKept) {
            return Ok(());
        }
        for owner in self.lockers.close(handle) {
            self.unlock(owner, ALL).await?;
        }
        Ok(())
    }
}
