//! A mount that answers for a directory without asking, beside another one that changes something there (F4).

use super::files_stage::{FilesStage, done, plain};
use crate::mounts::Station;
use std::rc::Rc;
use std::time::Duration;
use weft_fs::{Files, FsError, HowToOpen};
use weft_rt::sync::join_all;
use weft_rt::{Buf, random_below, sleep};
use weft_types::{BLOCK_SIZE, FileKind, InodeNumber};
use weft_wire::files::{AttributeChanges, FileError, RenameMode};

const HOME: &[u8] = b"home";

/// Names that are looked at.
const NAMES: u64 = 4;

/// Changes that the other mount makes. Between two of them leases are taken again.
const CHANGES: u64 = 12;

/// What a look by name finds, as far as others may have changed it.
#[derive(Debug, PartialEq, Eq)]
struct Seen(Option<(InodeNumber, u16, u64, u32)>);

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let stage = FilesStage::set().await;
    let mounts = stage.mounts::<2>();
    let home = done(&mounts[0], |files| async move {
        let home = files.make(InodeNumber::ROOT, HOME, plain(FileKind::Directory)).await?.inode;
        write(&files, home, 0).await?;
        Ok(home)
    })
    .await?;
    for _ in 0..CHANGES {
        // Both look so often that they hold the directory, and the names are known.
        for _ in 0..8 {
            join_all(mounts.iter().map(|mount| look_at_all(mount, home))).await;
            sleep(Duration::from_millis(random_below(100))).await;
        }
        let (changes, looks) = match random_below(2) {
            0 => (&mounts[0], &mounts[1]),
            _ => (&mounts[1], &mounts[0]),
        };
        let what = random_below(7);
        done(changes, move |files| async move { change(&files, home, what).await }).await?;
        let (kept, asked) = (look_at_all(looks, home).await?, look_at_all(changes, home).await?);
        if kept != asked {
            return Err(format!(
                "after change {what} of another mount one sees {kept:?}, the other one {asked:?}"
            ));
        }
    }
    stage.check().await
}

/// Changes something: names, attributes or sizes, by operations of one mount.
async fn change(files: &Files, home: InodeNumber, what: u64) -> Result<(), FsError> {
    let (from, to) = (random_below(NAMES), random_below(NAMES));
    let found = files.find(home, &name(from)).await;
    let changed = match (what, found) {
        (_, Err(_)) => write(files, home, from).await,
        (0 | 1, Ok(_)) => files.unlink(home, &name(from)).await,
        (2, Ok(_)) => files.rename((home, &name(from)), (home, &name(to)), RenameMode::Replace).await,
        (3, Ok(found)) => {
            let mode = Some(random_below(0o777) as u16);
            files.change(found.inode, AttributeChanges { mode, ..Default::default() }).await.map(drop)
        }
        (4, Ok(found)) => files.link(found.inode, home, &name(to)).await.map(drop),
        (_, Ok(found)) => {
            // It stays open: only this mount knows its size.
            let how = HowToOpen { writes: true, ..HowToOpen::default() };
            let handle = files.open(found.inode, how).await?;
            for _ in 0..2 {
                let size = files.attributes(found.inode).await?.size;
                files.write(handle, size, vec![Buf::from(vec![1; BLOCK_SIZE])]).await?;
                sleep(Duration::from_millis(random_below(300))).await;
            }
            if random_below(2) == 0 {
                files.release(handle).await;
            }
            Ok(())
        }
    };
    match changed {
        Err(error) if matches!(error.refusal(), Some(FileError::Exists | FileError::NotFound)) => Ok(()),
        changed => changed,
    }
}

async fn write(files: &Files, home: InodeNumber, n: u64) -> Result<(), FsError> {
    let (_, handle) = files.create(home, &name(n), plain(FileKind::Regular), false).await?;
    files.write(handle, 0, vec![Buf::from(vec![1; BLOCK_SIZE])]).await?;
    files.release(handle).await;
    Ok(())
}

async fn look_at_all(mount: &Rc<Station>, home: InodeNumber) -> Result<Vec<Seen>, String> {
    let look = move |files: Files| async move {
        let mut all = Vec::new();
        for n in 0..NAMES {
            all.push(match files.find(home, &name(n)).await {
                Ok(found) => Seen(Some((found.inode, found.mode, found.size, found.links))),
                Err(error) if error.refusal() == Some(FileError::NotFound) => Seen(None),
                Err(error) => return Err(error),
            });
        }
        Ok(all)
    };
    done(mount, look).await
}

fn name(n: u64) -> Vec<u8> {
    n.to_string().into_bytes()
}
