//! A mount that has a file open to read without a word to the shard, since the lease of the file's directory
//! keeps it as it is; and another mount that writes it, or takes its name away (F4).

use super::files_stage::{BLOCK, FilesStage, done, plain};
use crate::mounts::Station;
use std::rc::Rc;
use std::time::Duration;
use weft_fs::{Files, FsError, HowToOpen};
use weft_rt::sync::join_all;
use weft_rt::{Buf, random_below, sleep};
use weft_types::{BLOCK_SIZE, FileKind, InodeNumber};
use weft_wire::files::RenameMode;

const HOME: &[u8] = b"home";
const NAME: &[u8] = b"shared";
const OTHER_NAME: &[u8] = b"other";

/// Looks after which the mount holds the directory.
const LOOKS: u64 = 8;

/// Blocks that each of two mounts appends.
const APPENDED: u64 = 6;

/// How long a removed file rests at most before it is purged.
const PURGED_WITHIN: Duration = Duration::from_secs(30);

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let stage = FilesStage::set().await;
    let mounts = stage.mounts::<2>();
    let home = done(&mounts[0], |files| async move {
        let home = files.make(InodeNumber::ROOT, HOME, plain(FileKind::Directory)).await?.inode;
        let (_, handle) = files.create(home, NAME, plain(FileKind::Regular), false).await?;
        files.write(handle, 0, vec![block()]).await?;
        files.release(handle).await;
        Ok(home)
    })
    .await?;
    let (reader, other) = match random_below(2) {
        0 => (&mounts[0], &mounts[1]),
        _ => (&mounts[1], &mounts[0]),
    };
    match random_below(4) {
        0 => {
            done(other, move |files| async move { look(&files, home).await }).await?;
            let handle = done(reader, move |files| open_after_looks(files, home)).await?;
            let goes = if random_below(2) == 0 { reader } else { other };
            done(goes, move |files| async move { files.unlink(home, NAME).await }).await?;
            is_there(reader, handle).await
        }
        1 => {
            let handle = done(reader, move |files| open_after_looks(files, home)).await?;
            // It leaves the directory that keeps it as it is, and is removed from another one.
            done(reader, move |files| async move {
                files.rename((home, NAME), (InodeNumber::ROOT, OTHER_NAME), RenameMode::Replace).await
            })
            .await?;
            done(other, |files| async move { files.unlink(InodeNumber::ROOT, OTHER_NAME).await }).await?;
            is_there(reader, handle).await
        }
        2 => {
            let handle = done(reader, move |files| open_after_looks(files, home)).await?;
            done(other, move |files| append(files, home)).await?;
            let read =
                done(reader, move |files| async move { files.read(handle, 0, 2 * BLOCK).await }).await?;
            match read.iter().map(|buf| buf.len() as u64).sum::<u64>() {
                length if length == 2 * BLOCK => Ok(()),
                length => Err(format!("{length} bytes are read after another mount has made it longer")),
            }
        }
        _ => both_append(&mounts, home).await,
    }?;
    stage.check().await
}

/// Both mounts read the file by one handle, and make it longer by another one, at the same time.
async fn both_append(mounts: &[Rc<Station>], home: InodeNumber) -> Result<(), String> {
    let work = async |mount: &Rc<Station>| {
        for _ in 0..APPENDED {
            let handle = done(mount, move |files| open_after_looks(files, home)).await?;
            done(mount, move |files| append(files, home)).await?;
            done(mount, move |files| async move {
                files.release(handle).await;
                Ok(())
            })
            .await?;
        }
        Ok(())
    };
    let ends = join_all(mounts.iter().map(work)).await;
    ends.into_iter().collect::<Result<(), String>>()?;
    let size = done(&mounts[0], move |files| async move { Ok(files.find(home, NAME).await?.size) }).await?;
    match size == (1 + 2 * APPENDED) * BLOCK {
        true => Ok(()),
        false => Err(format!("two mounts have appended, and the file has {size} bytes")),
    }
}

async fn look(files: &Files, home: InodeNumber) -> Result<(), FsError> {
    for _ in 0..LOOKS {
        files.find(home, NAME).await?;
        sleep(Duration::from_millis(random_below(100))).await;
    }
    Ok(())
}

/// Looks so often that the mount holds the directory, and opens the file to read.
async fn open_after_looks(files: Files, home: InodeNumber) -> Result<u64, FsError> {
    look(&files, home).await?;
    let inode = files.find(home, NAME).await?.inode;
    files.open(inode, HowToOpen::default()).await
}

async fn append(files: Files, home: InodeNumber) -> Result<(), FsError> {
    let inode = files.find(home, NAME).await?.inode;
    let how = HowToOpen { writes: true, appends: true, ..HowToOpen::default() };
    let handle = files.open(inode, how).await?;
    files.write(handle, 0, vec![block()]).await?;
    files.release(handle).await;
    Ok(())
}

/// Whether a file that is open and has no name any more can be read after it might have been purged.
async fn is_there(reader: &Rc<Station>, handle: u64) -> Result<(), String> {
    sleep(PURGED_WITHIN).await;
    let read = done(reader, move |files| async move { files.read(handle, 0, BLOCK).await });
    let read = read.await.map_err(|error| format!("a file that is open cannot be read: {error}"))?;
    match read.iter().flat_map(|buf| buf.iter()).all(|byte| *byte == 1) && !read.is_empty() {
        true => Ok(()),
        false => Err("a file is purged that is open".to_owned()),
    }
}

fn block() -> Buf {
    Buf::from(vec![1; BLOCK_SIZE])
}
