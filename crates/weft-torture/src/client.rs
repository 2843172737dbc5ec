//! A client process: reads, writes and zeroes hot blocks of a shared volume, and records every call and
//! return.

use crate::Trouble;
use crate::record::{Ask, Recorder};
use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use weft_checker::{fill_block, read_value};
use weft_client::{AttachMode, AttachOptions, ClientError, Fabric, Lane, Volume};
use weft_rt::sync::join_all;
use weft_rt::{Addr, Buf, Thread, random_below, sleep, timeout};
use weft_types::BLOCK_SIZE;

/// How long an operation goes on trying: longer than any fault lasts.
const IO_TIMEOUT: Duration = Duration::from_secs(90);

/// Values of one client process are below this, above its number times this.
const VALUES: u64 = 1 << 32;

/// Those of another lane than the first begin in the upper half, for each attach so far behind the last
/// one's.
const VALUES_OF_LANE: u64 = 1 << 24;

/// Threads of a client process, each with a lane of the attach.
const THREADS: usize = 2;

/// What a client does.
#[derive(Clone, Debug)]
pub struct ClientWork {
    /// The manager.
    pub manager: Addr,
    /// The volume, which others use as well.
    pub volume: String,
    /// Its number, which no other process of the run has had; above 0.
    pub number: u32,
    /// The first block of each run that operations begin in.
    pub blocks: Vec<u64>,
    /// The record; other lanes than the first add to its name.
    pub record: PathBuf,
    /// Operations in flight on each thread.
    pub depth: u32,
    /// How long it thinks between two operations, at most.
    pub think: Duration,
    /// Only read each block once, and end.
    pub is_reader: bool,
}

/// Blocks that one operation reaches, at most.
pub const SPAN: u64 = 4;

/// Runs until it is killed; a reader, until all is read.
///
/// # Errors
/// If the record cannot be made, or a reader cannot read.
///
/// # Panics
/// If a block is torn or holds another block's data.
pub async fn run(work: ClientWork) -> Result<(), Trouble> {
    let recorder = Recorder::create(&work.record)?;
    let next = Cell::new(u64::from(work.number) * VALUES);
    for attach_number in 0.. {
        let volume = attach(&work).await;
        if work.is_reader {
            return read_all(&work, &volume, &recorder).await;
        }
        let lanes = volume.take_lanes().into_iter().map(|lane| start_lane(&work, attach_number, lane));
        let lanes = lanes.collect::<Result<Vec<Thread>, Trouble>>()?;
        join_all((0..work.depth).map(|_| operate(&work, &volume, &recorder, &next))).await;
        // Its session is over: it was away for too long.
        for mut lane in lanes {
            lane.ended().await.map_err(|e| Trouble::of("a lane", e))?;
        }
        volume.detach().await;
    }
    Ok(())
}

/// Starts a thread that uses another lane of the attach, with a record of its own, until the session is over.
fn start_lane(work: &ClientWork, attach_number: u64, lane: Lane) -> Result<Thread, Trouble> {
    let (work, number) = (work.clone(), lane.number());
    let record = format!("{}.{attach_number}.{number}", work.record.display());
    let main = move || async move {
        let recorder = Recorder::create(record.as_ref()).expect("a record can be made beside the first one");
        let begin = VALUES / 2 + attach_number * VALUES_OF_LANE;
        let next = Cell::new(u64::from(work.number) * VALUES + begin);
        match lane.open() {
            Ok(volume) => {
                join_all((0..work.depth).map(|_| operate(&work, &volume, &recorder, &next))).await;
            }
            Err(error) => eprintln!("lane {number}: {error}"),
        }
    };
    Thread::start(&format!("lane-{number}"), None, main).map_err(|e| Trouble::of("a thread for a lane", e))
}

async fn attach(work: &ClientWork) -> Volume {
    loop {
        let attempt = async {
            let fabric =
                Fabric::connect(std::slice::from_ref(&work.manager), &format!("torture {}", work.number))
                    .await?;
            let options = AttachOptions {
                mode: AttachMode::Shared,
                preempt: false,
                io_timeout: IO_TIMEOUT,
                lanes: if work.is_reader { 1 } else { THREADS },
                ..Default::default()
            };
            fabric.attach(&work.volume, options).await
        };
        match timeout(Duration::from_secs(20), attempt).await {
            Ok(Ok(volume)) => return volume,
            Ok(Err(error)) => eprintln!("attach: {error}"),
            Err(_) => eprintln!("attach takes too long"),
        }
        sleep(Duration::from_millis(200)).await;
    }
}

async fn read_all(work: &ClientWork, volume: &Volume, recorder: &Recorder) -> Result<(), Trouble> {
    for first in &work.blocks {
        read(volume, recorder, *first, SPAN).await.map_err(|e| Trouble::of(format!("block {first}"), e))?;
    }
    volume.detach().await;
    Ok(())
}

/// One operation after another, until the session is over.
async fn operate(work: &ClientWork, volume: &Volume, recorder: &Recorder, next: &Cell<u64>) {
    loop {
        sleep(Duration::from_nanos(random_below(work.think.as_nanos() as u64 + 1))).await;
        let first = work.blocks[random_below(work.blocks.len() as u64) as usize];
        let count = 1 + random_below(SPAN) * random_below(2);
        let result = match random_below(20) {
            0..=9 => write(volume, recorder, next, first, count).await,
            10 => zero(volume, recorder, first, count).await,
            _ => read(volume, recorder, first, count).await,
        };
        match result {
            Ok(()) => {}
            Err(ClientError::SessionOver { .. } | ClientError::Fenced { .. }) => return,
            Err(error) => eprintln!("block {first}: {error}"),
        }
    }
}

fn bytes(blocks: u64) -> u64 {
    blocks * BLOCK_SIZE as u64
}

async fn write(
    volume: &Volume,
    recorder: &Recorder,
    next: &Cell<u64>,
    first: u64,
    count: u64,
) -> Result<(), ClientError> {
    let value = next.get();
    next.set(value + count);
    let data: Vec<u8> = (0..count).flat_map(|i| fill_block(first + i, value + i)).collect();
    let pending = recorder.begin(Ask::Write(value), first, count);
    volume.write(bytes(first), vec![Buf::from(data)]).await?;
    recorder.end(pending, &[]);
    Ok(())
}

async fn zero(volume: &Volume, recorder: &Recorder, first: u64, count: u64) -> Result<(), ClientError> {
    let pending = recorder.begin(Ask::Zero, first, count);
    match random_below(2) {
        0 => volume.discard(bytes(first), bytes(count)).await?,
        _ => volume.write_zeroes(bytes(first), bytes(count)).await?,
    }
    recorder.end(pending, &[]);
    Ok(())
}

async fn read(volume: &Volume, recorder: &Recorder, first: u64, count: u64) -> Result<(), ClientError> {
    let pending = recorder.begin(Ask::Read, first, count);
    let parts: Rc<Vec<Buf>> = Rc::new(volume.read(bytes(first), bytes(count)).await?);
    let whole: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
    assert_eq!(whole.len() as u64, bytes(count), "a read returns as much as was asked for");
    let blocks = whole.chunks(BLOCK_SIZE).zip(first..);
    let values: Vec<u64> = blocks.map(|(block, at)| read_value(at, block)).collect();
    recorder.end(pending, &values);
    Ok(())
}

/// Writes a volume from its beginning until the fabric has no room for more, or it is full.
///
/// # Errors
/// If it ends otherwise.
pub async fn fill(work: ClientWork) -> Result<(), Trouble> {
    const PIECE: usize = 1 << 20;
    let volume = attach(&work).await;
    let pieces = volume.size_bytes() / PIECE as u64;
    for piece in 0..pieces {
        let data: Vec<u8> = (0..PIECE / 8).flat_map(|_| random_below(u64::MAX).to_le_bytes()).collect();
        match volume.write(piece * PIECE as u64, vec![Buf::from(data)]).await {
            Ok(()) => {}
            Err(ClientError::NoSpace { .. }) => {
                println!("no space after {piece} MiB");
                break;
            }
            Err(error) => return Err(Trouble::of(format!("after {piece} MiB"), error)),
        }
    }
    volume.detach().await;
    Ok(())
}
