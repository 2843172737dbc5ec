//! Several threads of a program use one attach of several lanes: each writes its part of a volume, reads it
//! back and verifies it.
//!
//! Against a fabric that `weft up` has started, with a volume whose data is of no use any more:
//!
//! ```text
//! weft volume create scratch --size 64MiB
//! cargo run --release -p weft-client --example submit -- 127.0.0.1:4800 scratch
//! ```

use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::thread;
use weft_client::{AttachOptions, Completion, LaneOp, NotQueued, Submitter};
use weft_rt::Addr;

/// Threads of this program.
const THREADS: usize = 4;

/// Lanes that the attach is to have.
const LANES: usize = 2;

/// Bytes of an operation.
const BYTES: usize = 64 << 10;

/// Operations of a thread that are under way at a time.
const DEPTH: usize = 32;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [manager, volume] = &arguments[..] else {
        eprintln!(
            "usage: submit MANAGER VOLUME, such as: submit 127.0.0.1:4800 scratch\nthe volume's data is lost"
        );
        return ExitCode::from(2);
    };
    match manager.parse::<Addr>().map_err(Failure::from).and_then(|manager| run(&manager, volume)) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes all of a volume from four threads, verifies it, and says what was done.
pub fn run(manager: &Addr, volume: &str) -> Result<String, Failure> {
    let options = AttachOptions { lanes: LANES, whole_blocks: true, ..AttachOptions::default() };
    let volume = Submitter::open(std::slice::from_ref(manager), "submit example", volume, options)?;
    let (lanes, operations) = (volume.lanes(), volume.size_bytes() / BYTES as u64);
    let threads: Vec<_> = (0..THREADS as u64)
        .map(|number| {
            let (volume, count) = (volume.clone(), operations / THREADS as u64);
            thread::spawn(move || write_and_verify(&volume, number * count, count))
        })
        .collect();
    for thread in threads {
        thread.join().expect("it does not panic")?;
    }
    volume.detach()?;
    Ok(format!("{} threads wrote and verified {operations} times {BYTES} bytes over {lanes} lanes", THREADS))
}

/// What an operation's place holds in the end. The value means nothing.
fn data(place: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|at| (place.wrapping_mul(31) ^ at ^ (at >> 9)) as u8).collect()
}

/// Writes so many places from the first one on, twice each without a wait between, and then reads them.
fn write_and_verify(volume: &Submitter, first: u64, count: u64) -> Result<(), Failure> {
    let (tell, told) = channel::<(u64, Completion)>();
    let mut under_way = 0;
    let mut place = first;
    while place < first + count || under_way > 0 {
        if place < first + count && under_way < DEPTH {
            let offset = place * BYTES as u64;
            // What a thread submits later to the same place is what stays.
            for buffer in [vec![0xee; BYTES], data(place)] {
                queue(volume, LaneOp::Write { offset, buffer }, place, &tell)?;
            }
            // And it sees what it wrote, without waiting for the writes.
            queue(volume, LaneOp::Read { offset, buffer: vec![0; BYTES] }, place | READ, &tell)?;
            under_way += 3;
            place += 1;
            continue;
        }
        let (place, completion) = told.recv()?;
        completion.result?;
        under_way -= 1;
        if place & READ != 0 && completion.buffer != data(place & !READ) {
            return Err(format!("place {} does not hold what was written", place & !READ).into());
        }
    }
    Ok(())
}

/// Marks the reads among what is told.
const READ: u64 = 1 << 63;

/// Queues an operation; if the queue is full, it waits a moment and tries again.
fn queue(
    volume: &Submitter,
    op: LaneOp,
    place: u64,
    tell: &std::sync::mpsc::Sender<(u64, Completion)>,
) -> Result<(), Failure> {
    let mut op = op;
    loop {
        let tell = tell.clone();
        let done = move |completion| {
            // The thread may have failed, and listens no more.
            let _ = tell.send((place, completion));
        };
        match volume.submit(op, done) {
            Ok(()) => return Ok(()),
            Err(NotQueued::Full { op: again, .. }) => op = again,
            Err(error) => return Err(error.into()),
        }
        thread::yield_now();
    }
}
