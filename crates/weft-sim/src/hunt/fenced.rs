//! Two mounts, one of which is to give back what it holds: one that hears from nobody while its session ends
//! (F5), and one that keeps names, as its kernel does (F4).

use super::files_stage::{BLOCK, FilesStage, done, plain};
use super::stage::Stage;
use crate::bed::manager_host;
use std::net::IpAddr;
use std::time::Duration;
use weft_fs::{Files, FsError, HowToOpen};
use weft_rt::sync::join_all;
use weft_rt::{Buf, now, random_below, sim, sleep, spawn, timeout};
use weft_types::{BLOCK_SIZE, FileKind, InodeNumber};
use weft_wire::files::FileError;

const NAME: &[u8] = b"shared";

/// How long a read of the mount that is cut off is waited for.
const READS_WITHIN: Duration = Duration::from_secs(1);

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let stage = FilesStage::set().await;
    let (reader, writer) = (stage.mount(0), stage.mount(1));
    done(&writer, write_first).await?;
    let handle = done(&reader, |files| async move {
        let inode = files.find(InodeNumber::ROOT, NAME).await?.inode;
        let handle = files.open(inode, HowToOpen::default()).await?;
        files.read(handle, 0, 2 * BLOCK).await?;
        Ok(handle)
    })
    .await?;
    cut_off(&stage, reader.host());
    done(&writer, write_second).await?;
    sleep(Duration::from_millis(random_below(3_000))).await;
    let read = reader.run(move |files| async move { files.read(handle, BLOCK, BLOCK).await });
    match timeout(READS_WITHIN, read).await {
        Ok(Ok(Ok(bufs))) if bufs.is_empty() => {
            return Err(
                "a mount that was cut off finds the end of before, after another one has written".to_owned()
            );
        }
        _ => {}
    }
    stage.heal();
    stage.check().await
}

/// A mount is alone, and its kernel keeps that there is no such name. Another one makes it.
///
/// # Errors
/// What is wrong.
pub async fn run_names() -> Result<(), String> {
    let stage = FilesStage::set().await;
    let alone = stage.mount(0);
    let look = |files: Files| async move {
        match files.find(InodeNumber::ROOT, NAME).await {
            Err(error) if error.refusal() == Some(FileError::NotFound) => Ok(files.stays()),
            found => found.map(|_| Duration::ZERO),
        }
    };
    while done(&alone, look).await?.is_zero() {
        sleep(Duration::from_millis(1)).await;
    }
    let other = stage.mount(1);
    while other.session().is_none() {
        sleep(Duration::from_micros(100)).await;
    }
    let kept_until = now() + done(&alone, look).await?;
    done(&other, write_first).await?;
    if now() < kept_until {
        return Err("a kernel keeps that there is no such name, and another mount has made it".to_owned());
    }
    let found = done(&alone, |files| async move { files.find(InodeNumber::ROOT, NAME).await }).await;
    match found {
        Ok(_) => Ok(()),
        Err(_) => Err("a mount keeps that there is no such name, and another one has made it".to_owned()),
    }
}

/// A mount is alone, and makes and removes a name that it looks for at the same time.
///
/// # Errors
/// What is wrong.
pub async fn run_changed_names() -> Result<(), String> {
    let stage = FilesStage::set().await;
    let alone = stage.mount(0);
    let find = |files: Files| async move { files.find(InodeNumber::ROOT, NAME).await };
    for round in 0..50 {
        let look = |_| {
            let alone = alone.clone();
            spawn(async move {
                for _ in 0..4 {
                    sleep(Duration::from_micros(random_below(200))).await;
                    let _ = alone.run(find).await;
                }
            })
        };
        let looks: Vec<_> = (0..4).map(look).collect();
        done(&alone, write_first).await?;
        join_all(looks).await;
        done(&alone, find).await.map_err(|error| format!("a name is not found that was made: {error}"))?;
        let looks: Vec<_> = (0..4).map(look).collect();
        done(&alone, |files| async move { files.unlink(InodeNumber::ROOT, NAME).await }).await?;
        join_all(looks).await;
        if done(&alone, find).await.is_ok() {
            return Err(format!("a name is found that was removed, in round {round}"));
        }
    }
    Ok(())
}

/// A mount that is alone reads a file that loses its name: by itself, or by another mount.
///
/// # Errors
/// What is wrong.
pub async fn run_unsaid() -> Result<(), String> {
    let stage = FilesStage::set().await;
    let alone = stage.mount(0);
    done(&alone, write_first).await?;
    let open = |files: Files| async move {
        let inode = files.find(InodeNumber::ROOT, NAME).await?.inode;
        let handle = files.open(inode, HowToOpen::default()).await?;
        Ok((files.stays(), handle))
    };
    let handle = loop {
        let (stays, handle) = done(&alone, open).await?;
        if !stays.is_zero() {
            break handle;
        }
        let release = move |files: Files| async move {
            files.release(handle).await;
            Ok(())
        };
        done(&alone, release).await?;
        sleep(Duration::from_millis(100)).await;
    };
    let unlink = |files: Files| async move { files.unlink(InodeNumber::ROOT, NAME).await };
    match random_below(2) {
        0 => done(&alone, unlink).await?,
        _ => done(&stage.mount(1), unlink).await?,
    }
    sleep(Duration::from_secs(10)).await;
    let read = done(&alone, move |files| async move { files.read(handle, 0, BLOCK).await });
    let read = read.await.map_err(|error| format!("a file that is open cannot be read: {error}"))?;
    match read.iter().flat_map(|buf| buf.iter()).all(|byte| *byte == 1) && !read.is_empty() {
        true => Ok(()),
        false => Err("a file is purged that is open".to_owned()),
    }
}

/// A mount dies as soon as a write is durable. The shard has not heard of the write, but others have to see
/// that the file has changed: their kernels have pages of it, and go by its time.
///
/// # Errors
/// If the file seems to be as it was.
pub async fn run_died() -> Result<(), String> {
    let stage = FilesStage::set().await;
    let [writer, other] = stage.mounts();
    done(&writer, write_first).await?;
    let look = |files: Files| async move { files.find(InodeNumber::ROOT, NAME).await };
    let before = done(&other, look).await?;
    done(&writer, |files| async move {
        let inode = files.find(InodeNumber::ROOT, NAME).await?.inode;
        let handle = files.open(inode, HowToOpen { writes: true, ..HowToOpen::default() }).await?;
        files.write_through(handle, 0, vec![block(2)]).await
    })
    .await?;
    writer.mount_anew();
    let after = done(&other, look).await?;
    match (after.modified != before.modified, after.revision > before.revision) {
        (true, true) => Ok(()),
        _ => Err("a file was written by a mount that has died, and seems to be as it was".to_owned()),
    }
}

async fn write_first(files: Files) -> Result<(), FsError> {
    let new = plain(FileKind::Regular);
    let (_, handle) = files.create(InodeNumber::ROOT, NAME, new, false).await?;
    files.write(handle, 0, vec![block(1)]).await?;
    files.release(handle).await;
    Ok(())
}

async fn write_second(files: Files) -> Result<(), FsError> {
    let inode = files.find(InodeNumber::ROOT, NAME).await?.inode;
    let handle = files.open(inode, HowToOpen { writes: true, ..HowToOpen::default() }).await?;
    files.write(handle, BLOCK, vec![block(2)]).await
}

fn block(value: u8) -> Buf {
    Buf::from(vec![value; BLOCK_SIZE])
}

/// No message reaches the host of a mount, and none of it reaches anybody.
pub(super) fn cut_off(stage: &Stage, client: IpAddr) {
    let nodes = stage.bed.nodes.iter().map(|node| node.host);
    for host in nodes.chain([manager_host()]) {
        sim::set_blocked(host, client, true);
        sim::set_blocked(client, host, true);
    }
}
