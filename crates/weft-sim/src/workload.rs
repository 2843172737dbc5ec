//! A client that reads, writes and zeroes a few blocks of a shared volume, or of a few inodes of a file
//! system, and records what it saw.

use std::time::Duration;
use weft_checker::{Call, History, fill_block, read_value};
use weft_client::{AttachMode, AttachOptions, ClientError, Fabric, File, FileSystem, Volume};
use weft_rt::sync::join_all;
use weft_rt::{Addr, Buf, BufMut, random_below, sim, sleep};
use weft_types::{BLOCK_SIZE, InodeNumber};

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Managers to ask.
    pub managers: Vec<Addr>,
    /// The volume.
    pub volume: String,
    /// The blocks that are used: first block of each run that requests begin in.
    pub hot_blocks: Vec<u64>,
    /// How long the client thinks between operations, at most.
    pub think: Duration,
    /// Operations after which it is done; unlimited if none.
    pub operations: Option<u64>,
    /// Operations in flight at once.
    pub depth: u64,
}

/// Blocks by number, which a history knows by these numbers.
pub trait Blocks {
    /// Reads blocks.
    fn read(&self, first: u64, count: u64) -> impl Future<Output = Result<Vec<Buf>, ClientError>>;
    /// Writes whole blocks.
    fn write(&self, first: u64, data: Vec<u8>) -> impl Future<Output = Result<(), ClientError>>;
    /// Makes blocks read as zeroes, as a discard or not.
    fn zero(&self, first: u64, count: u64, is_discard: bool)
    -> impl Future<Output = Result<(), ClientError>>;
}

impl Blocks for Volume {
    async fn read(&self, first: u64, count: u64) -> Result<Vec<Buf>, ClientError> {
        Volume::read(self, bytes(first), bytes(count)).await
    }

    async fn write(&self, first: u64, data: Vec<u8>) -> Result<(), ClientError> {
        Volume::write(self, bytes(first), vec![Buf::from(data)]).await
    }

    async fn zero(&self, first: u64, count: u64, is_discard: bool) -> Result<(), ClientError> {
        match is_discard {
            true => self.discard(bytes(first), bytes(count)).await,
            false => self.write_zeroes(bytes(first), bytes(count)).await,
        }
    }
}

/// As many blocks of a history belong to one inode, whose number is 1 for the first of them. No request
/// begins so near the end of an inode's that it would reach into the next.
pub const INODE_BLOCKS: u64 = 1024;

impl Blocks for FileSystem {
    async fn read(&self, first: u64, count: u64) -> Result<Vec<Buf>, ClientError> {
        let (file, at) = file_at(self, first)?;
        file.read(bytes(at), bytes(count)).await
    }

    async fn write(&self, first: u64, data: Vec<u8>) -> Result<(), ClientError> {
        let (file, at) = file_at(self, first)?;
        file.write(bytes(at), vec![Buf::from(data)]).await
    }

    async fn zero(&self, first: u64, count: u64, is_discard: bool) -> Result<(), ClientError> {
        let (file, at) = file_at(self, first)?;
        match is_discard {
            true => file.discard(bytes(at), bytes(count)).await,
            false => file.write_zeroes(bytes(at), bytes(count)).await,
        }
    }
}

/// The inode that a block of a history belongs to, and the block in it.
fn file_at(file_system: &FileSystem, block: u64) -> Result<(File, u64), ClientError> {
    // Of a shard that there is not: no server knows these inodes, and gives back what they have.
    let inode = InodeNumber::new(InodeNumber::SHARDS - 1, 1 + block / INODE_BLOCKS);
    let file = file_system.file(inode.0, file_system.default_layout()?)?;
    Ok((file, block % INODE_BLOCKS))
}

/// Attaches the volume, trying until it works.
pub async fn attach(managers: &[Addr], volume: &str, name: &str, mode: AttachMode) -> Volume {
    until_attached(async || Fabric::connect(managers, name).await?.attach(volume, options_of(mode)).await)
        .await
}

/// Attaches the file system, trying until it works.
pub async fn attach_file_system(managers: &[Addr], name: &str, client: &str) -> FileSystem {
    until_attached(async || {
        let fabric = Fabric::connect(managers, client).await?;
        fabric.attach_file_system(name, options_of(AttachMode::Shared)).await
    })
    .await
}

fn options_of(mode: AttachMode) -> AttachOptions {
    AttachOptions { mode, io_timeout: Duration::from_secs(3600), ..Default::default() }
}

async fn until_attached<T>(attempt: impl AsyncFn() -> Result<T, ClientError>) -> T {
    loop {
        match weft_rt::timeout(Duration::from_secs(20), attempt()).await {
            Ok(Ok(attached)) => return attached,
            Ok(Err(error)) => sim::tell(|| format!("attach fails: {error}")),
            Err(_) => sim::tell(|| "attach takes too long".to_owned()),
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Runs a client until its operations are done, or for ever. A session that is over is begun anew.
pub async fn run(name: String, workload: Workload, history: History) {
    let mut left = workload.operations;
    while left != Some(0) {
        let volume = attach(&workload.managers, &workload.volume, &name, AttachMode::Shared).await;
        sim::tell(|| format!("{name} is attached"));
        let lanes = (0..workload.depth).map(|_| {
            let share = left.map(|n| n.div_ceil(workload.depth));
            lane(&name, &workload, &volume, &history, share)
        });
        let done: u64 = join_all(lanes).await.into_iter().sum();
        left = left.map(|n| n.saturating_sub(done));
        volume.detach().await;
    }
}

/// One operation after another, until the share is done or the session is over. Returns how many were done.
async fn lane(
    name: &str,
    workload: &Workload,
    volume: &Volume,
    history: &History,
    share: Option<u64>,
) -> u64 {
    let mut done = 0;
    while share.is_none_or(|n| done < n) {
        if !workload.think.is_zero() {
            sleep(Duration::from_nanos(random_below(workload.think.as_nanos() as u64 + 1))).await;
        }
        let first = workload.hot_blocks[random_below(workload.hot_blocks.len() as u64) as usize];
        let count = 1 + random_below(4) * random_below(2);
        let result = match random_below(20) {
            0..=8 => write(name, volume, history, first, count).await,
            9 => zero(name, volume, history, first, count).await,
            _ => read(name, volume, history, first, count).await,
        };
        match result {
            Ok(()) => done += 1,
            Err(ClientError::SessionOver { .. } | ClientError::Fenced { .. }) => {
                sim::tell(|| format!("{name}: the session is over"));
                return done;
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
    done
}

fn bytes(block: u64) -> u64 {
    block * BLOCK_SIZE as u64
}

pub(crate) async fn write(
    name: &str,
    volume: &impl Blocks,
    history: &History,
    first: u64,
    count: u64,
) -> Result<(), ClientError> {
    let mut data = Vec::new();
    let mut calls: Vec<Call> = Vec::new();
    for block in first..first + count {
        let value = history.fresh_value();
        data.extend_from_slice(&fill_block(block, value));
        calls.push(history.begin_write(name, block, value));
    }
    let written = volume.write(first, data).await;
    end(history, calls, written)
}

/// Writes have ended, or their caller has given them up.
fn end(history: &History, calls: Vec<Call>, ended: Result<(), ClientError>) -> Result<(), ClientError> {
    for call in calls {
        match ended {
            Ok(()) => history.end_write(call),
            Err(_) => history.give_up(call),
        }
    }
    ended
}

pub(crate) async fn zero(
    name: &str,
    volume: &impl Blocks,
    history: &History,
    first: u64,
    count: u64,
) -> Result<(), ClientError> {
    let calls: Vec<Call> = (first..first + count).map(|block| history.begin_write(name, block, 0)).collect();
    let zeroed = volume.zero(first, count, random_below(2) == 0).await;
    end(history, calls, zeroed)
}

/// Reads blocks and records what they hold.
pub async fn read(
    name: &str,
    volume: &impl Blocks,
    history: &History,
    first: u64,
    count: u64,
) -> Result<(), ClientError> {
    let calls: Vec<Call> = (first..first + count).map(|block| history.begin_read(name, block)).collect();
    let parts = volume.read(first, count).await?;
    let mut whole = BufMut::aligned(bytes(count) as usize);
    let mut at = 0;
    for part in parts {
        whole[at..at + part.len()].copy_from_slice(&part);
        at += part.len();
    }
    assert_eq!(at, whole.len(), "a read returns as much as was asked for");
    for (i, call) in calls.into_iter().enumerate() {
        let block = &whole[i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE];
        history.end_read(call, read_value(first + i as u64, block));
    }
    Ok(())
}
