//! One mount writes to a file that others read all the time (F4): it has its turn, and so have they.

use super::files_stage::{FilesStage, done, plain};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_fs::{Files, FsError, HowToOpen};
use weft_rt::sync::{Either, race};
use weft_rt::{Buf, random_below, sleep, spawn};
use weft_types::{BLOCK_SIZE, FileKind, InodeNumber};

const NAME: &[u8] = b"shared";
const READERS: usize = 4;
const BLOCKS: u64 = 32;

/// Writes, and how long all of them may take: some hundred times what they take alone.
const WRITES: u8 = 5;
const WRITES_WITHIN: Duration = Duration::from_secs(3);

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let stage = FilesStage::set_to_last().await;
    let station = |host| stage.mount(host);
    let (writer, readers): (_, Vec<_>) = (station(0), (1..=READERS).map(station).collect());
    let handle = done(&writer, make).await?;
    let read = Rc::new(Cell::new(0_u64));
    for reader in &readers {
        let (reader, read) = (reader.clone(), read.clone());
        spawn(async move {
            let opened = done(&reader, open).await;
            while let Ok(handle) = opened {
                let length = (1 + random_below(BLOCKS)) * BLOCK_SIZE as u64;
                let _ = done(&reader, move |files| async move { files.read(handle, 0, length).await }).await;
                read.set(read.get() + 1);
            }
        });
    }
    while read.get() < 10 * READERS as u64 {
        sleep(Duration::from_millis(1)).await;
    }
    let before = read.get();
    let writes = async {
        for value in 0..WRITES {
            let data = Buf::from(vec![value; BLOCK_SIZE]);
            let write = move |files: Files| async move {
                files.write(handle, 0, vec![data]).await?;
                files.sync_handle(handle).await
            };
            done(&writer, write).await?;
        }
        Ok::<(), String>(())
    };
    match race(writes, sleep(WRITES_WITHIN)).await {
        Either::Left(Ok(())) if read.get() == before => {
            return Err("the readers do not read while one mount writes".to_owned());
        }
        Either::Left(written) => written?,
        Either::Right(()) => {
            return Err(format!("{WRITES} writes take more than {WRITES_WITHIN:?} beside readers"));
        }
    }
    stage.check().await
}

async fn make(files: Files) -> Result<u64, FsError> {
    let new = plain(FileKind::Regular);
    let (_, handle) = files.create(InodeNumber::ROOT, NAME, new, false).await?;
    let data = Buf::from(vec![1; BLOCKS as usize * BLOCK_SIZE]);
    files.write(handle, 0, vec![data]).await?;
    Ok(handle)
}

async fn open(files: Files) -> Result<u64, FsError> {
    let inode = files.find(InodeNumber::ROOT, NAME).await?.inode;
    files.open(inode, HowToOpen::default()).await
}
