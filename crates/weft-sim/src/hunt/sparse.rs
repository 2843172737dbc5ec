//! Files whose data lie further apart than all drives are large: what is found in them, zeroed, cut off and
//! given back (F8, F9).

use super::files_stage::{BLOCK, FilesStage, done, plain};
use crate::mounts::Station;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_fs::{Files, FsError, HowToOpen};
use weft_rt::{Buf, random_below, sleep};
use weft_types::{FileKind, InodeNumber};
use weft_wire::files::AttributeChanges;

const NAME: &[u8] = b"sparse";

/// Changes of a file, by one mount or the other.
const CHANGES: u64 = 12;

/// Blocks of the longest file, as a power of two.
const LONGEST: u64 = 44;

/// How long a removed file rests, and is given back.
const PURGED_WITHIN: Duration = Duration::from_secs(30);

/// What the file holds: the byte that fills each block that was written, and the size in blocks.
#[derive(Default)]
struct Expected {
    blocks: BTreeMap<u64, u8>,
    size: u64,
}

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let stage = FilesStage::set().await;
    let mounts = stage.mounts::<2>();
    let inode = done(&mounts[0], |files| async move {
        let new = plain(FileKind::Regular);
        Ok(files.make(InodeNumber::ROOT, NAME, new).await?.inode)
    })
    .await?;
    let mut expected = Expected::default();
    for number in 1..=CHANGES {
        let mount = &mounts[random_below(2) as usize];
        change(mount, inode, &mut expected, number as u8).await?;
        let mount = &mounts[random_below(2) as usize];
        let found = done(mount, move |files| data_of(files, inode)).await?;
        let blocks: Vec<(u64, u8)> = expected.blocks.iter().map(|(block, byte)| (*block, *byte)).collect();
        if found != blocks {
            return Err(format!("after change {number} data are found at {found:?}, expected {blocks:?}"));
        }
    }
    zero_where_nothing_is_reserved(&mounts[0], inode, expected.size * BLOCK).await?;
    done(&mounts[0], |files| async move { files.unlink(InodeNumber::ROOT, NAME).await }).await?;
    sleep(PURGED_WITHIN).await;
    stage.check().await
}

/// A block that is as likely near as far away.
fn any_block() -> u64 {
    random_below(1 << random_below(LONGEST))
}

async fn change(
    mount: &Rc<Station>,
    inode: InodeNumber,
    expected: &mut Expected,
    byte: u8,
) -> Result<(), String> {
    let (block, count) = (any_block(), 1 + random_below(3));
    match random_below(4) {
        0 => {
            let length = any_block();
            expected.blocks.retain(|at, _| *at < block || *at - block >= length);
            with_handle(mount, inode, move |files, handle| async move {
                files.zero(handle, block * BLOCK, length * BLOCK).await
            })
            .await
        }
        1 => {
            expected.blocks.retain(|at, _| *at < block);
            expected.size = block;
            let changes = AttributeChanges { size: Some(block * BLOCK), ..Default::default() };
            done(mount, move |files| async move { files.change(inode, changes).await.map(drop) }).await
        }
        _ => {
            expected.blocks.extend((block..block + count).map(|at| (at, byte)));
            expected.size = expected.size.max(block + count);
            let data = Buf::from(vec![byte; (count * BLOCK) as usize]);
            with_handle(mount, inode, move |files, handle| async move {
                files.write(handle, block * BLOCK, vec![data]).await
            })
            .await
        }
    }
}

/// Makes the file longer than it ever was, and has a part of a block zeroed there: by itself, or because the
/// file ends in it and becomes longer.
async fn zero_where_nothing_is_reserved(
    mount: &Rc<Station>,
    inode: InodeNumber,
    size: u64,
) -> Result<(), String> {
    let far = size.next_multiple_of(1 << 30) + (1 << 30);
    if random_below(2) == 0 {
        let zero = move |files: Files, handle| async move {
            files.extend(handle, far + BLOCK).await?;
            files.zero(handle, far + 1, BLOCK / 2).await
        };
        return with_handle(mount, inode, zero).await;
    }
    for size in [far + 2 * BLOCK, far + 1, far + 2 * BLOCK] {
        let changes = AttributeChanges { size: Some(size), ..Default::default() };
        done(mount, move |files| async move { files.change(inode, changes).await.map(drop) }).await?;
    }
    Ok(())
}

async fn with_handle<F: Future<Output = Result<(), FsError>> + 'static>(
    mount: &Rc<Station>,
    inode: InodeNumber,
    work: impl FnOnce(Files, u64) -> F + 'static,
) -> Result<(), String> {
    done(mount, move |files| async move {
        let handle = files.open(inode, HowToOpen { writes: true, ..HowToOpen::default() }).await?;
        let done = work(files.clone(), handle).await;
        files.release(handle).await;
        done
    })
    .await
}

/// The blocks that are found by looking for data and holes in turn, with the byte that each is filled with.
async fn data_of(files: Files, inode: InodeNumber) -> Result<Vec<(u64, u8)>, FsError> {
    let handle = files.open(inode, HowToOpen::default()).await?;
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(begin) = files.seek(handle, at, true).await? {
        let end = files.seek(handle, begin, false).await?.unwrap_or(begin);
        for block in begin / BLOCK..end / BLOCK {
            let data = files.read(handle, block * BLOCK, BLOCK).await?;
            let byte = data.first().and_then(|buf| buf.first().copied()).unwrap_or(0);
            found.push((block, byte));
        }
        at = end;
    }
    files.release(handle).await;
    Ok(found)
}
