//! A lock that changes hands: what was written under it by a mount that dies as soon as it has given the lock
//! back is there for whoever takes it next (F14).

use super::counters::{lock_in_turn, value_of};
use super::fenced::done;
use super::stage::Stage;
use crate::bed::KnowFiles;
use crate::mounts::Station;
use std::time::Duration;
use weft_fs::{Files, FsError, HowToOpen};
use weft_rt::Buf;
use weft_types::{FileKind, InodeNumber};
use weft_wire::files::{FileLock, LockFamily, LockMode, LockOwner, NewInode};

const FILES: &str = "files";
const NAME: &[u8] = b"shared";

/// How long an operation may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is written under the lock.
const VALUE: u64 = 7;

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let _know_files = KnowFiles::begin();
    let stage = Stage::set_with_sessions(3, 2, 300).await;
    stage.bed.create_file_system(FILES, 2, 1).await;
    let [first, next] = [0, 1].map(|host| Station::start(&stage.bed, FILES, host, PATIENCE));
    done(&first, write_locked).await?;
    first.mount_anew();
    match done(&next, read_locked).await? {
        VALUE => Ok(()),
        value => Err(format!("{value} is found under a lock, after {VALUE} was written under it")),
    }
}

fn lock() -> FileLock {
    let owner = LockOwner { family: LockFamily::Range, id: 1 };
    FileLock { owner, start: 0, last: 7, mode: LockMode::Exclusive, process: 1 }
}

async fn write_locked(files: Files) -> Result<(), FsError> {
    let kind = FileKind::Regular;
    let new = NewInode { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, device: 0, target: Vec::new() };
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
