//! A lock that changes hands: what was written under it by a mount that dies as soon as it has given the lock
//! back is there for whoever takes it next (F14).

use super::counters::{lock_in_turn, value_of};
use super::files_stage::{FilesStage, done, plain};
use weft_fs::{Files, FsError, HowToOpen};
use weft_rt::Buf;
use weft_types::{FileKind, InodeNumber};
use weft_wire::files::{FileLock, LockFamily, LockMode, LockOwner};

const NAME: &[u8] = b"shared";

/// What is written under the lock.
const VALUE: u64 = 7;

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let stage = FilesStage::set().await;
    let [first, next] = stage.mounts();
    done(&first, write_locked).await?;
    first.mount_anew();
    match done(&next, read_locked).await? {
        VALUE => stage.check().await,
        value => Err(format!("{value} is found under a lock, after {VALUE} was written under it")),
    }
}

fn lock() -> FileLock {
    let owner = LockOwner { family: LockFamily::Range, id: 1 };
    FileLock { owner, start: 0, last: 7, mode: LockMode::Exclusive, process: 1 }
}

async fn write_locked(files: Files) -> Result<(), FsError> {
    let new = plain(FileKind::Regular);
    let (_, handle) = files.create(InodeNumber::ROOT, NAME, new, false).await?;
    files.write(handle, 0, vec![Buf::from(0_u64.to_le_bytes().to_vec())]).await?;
    files.sync_handle(handle).await?;
    lock_in_turn(&files, handle, lock()).await?;
    files.write(handle, 0, vec![Buf::from(VALUE.to_le_bytes().to_vec())]).await?;
    files.unlock(handle, lock().owner, (0, 7)).await
}

async fn read_locked(files: Files) -> Result<u64, FsError> {
    let inode = files.find(InodeNumber::ROOT, NAME).await?.inode;
    let handle = files.open(inode, HowToOpen::default()).await?;
    lock_in_turn(&files, handle, lock()).await?;
    Ok(value_of(&files.read(handle, 0, 8).await?))
}
