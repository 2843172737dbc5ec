//! How many files a metadata shard makes, finds and removes in a second, in this process, on a volume of a
//! fabric.
//!
//! Against a fabric that `weft up` has started, with a volume that was never written:
//!
//! ```text
//! weft volume create shard --size 8GiB --copies 2
//! cargo run --release -p weft-meta --example creates -- 127.0.0.1:4800 shard 200000
//! ```
//!
//! 512 sessions have an operation under way each.

use std::cell::Cell;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;
use weft_client::{AttachMode, AttachOptions, Fabric};
use weft_meta::{Shard, ShardFormat, ShardName, VolumeMedium, check_tables, format_shard};
use weft_rt::{Addr, spawn};
use weft_types::{FileKind, InodeNumber, SessionId};
use weft_wire::files::{Answer, FileRequest, NameIn, NewInode, Operation};

/// Sessions, each with one operation under way.
const SESSIONS: u64 = 512;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match &arguments[..] {
        [manager, volume, count] => {
            manager.parse().ok().zip(count.parse().ok()).map(|(m, c)| (m, volume.clone(), c))
        }
        _ => None,
    };
    let Some((manager, volume, count)) = parsed else {
        eprintln!("usage: creates MANAGER VOLUME COUNT, such as: creates 127.0.0.1:4800 shard 200000");
        return ExitCode::from(2);
    };
    let ran = weft_rt::block_on(async move { measure(&manager, &volume, count).await });
    match ran.map_err(Failure::from).and_then(|done| done) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn attach(manager: &Addr, volume: &str) -> Result<VolumeMedium, Failure> {
    let fabric = Fabric::connect(std::slice::from_ref(manager), "creates").await?;
    let mode = AttachMode::Exclusive;
    let options = AttachOptions { mode, preempt: true, whole_blocks: true, ..AttachOptions::default() };
    Ok(VolumeMedium::new(fabric.attach(volume, options).await?))
}

async fn measure(manager: &Addr, volume: &str, count: u64) -> Result<(), Failure> {
    let medium = attach(manager, volume).await?;
    format_shard(&medium, &ShardFormat::new(ShardName { file_system: 1, shard: 0 }, [7; 16], [0; 12]))
        .await?;
    let shard = Shard::open(medium).await?;
    measure_all(&shard, "creates", 0, count, create).await?;
    measure_all(&shard, "finds", count, count, |n| Operation::Find(name(n))).await?;
    let begun = Instant::now();
    let next = Shard::open(attach(manager, volume).await?).await?;
    println!("the next server has taken over and serves after {:.2} s", begun.elapsed().as_secs_f64());
    match next.with_tables(check_tables).first() {
        Some(finding) => return Err(finding.to_string().into()),
        None => println!("its {} items agree", next.with_tables(|tables| tables.len())),
    }
    measure_all(&next, "removals", count, count, |n| Operation::Unlink(name(n))).await
}

fn name(n: u64) -> NameIn {
    NameIn { directory: InodeNumber::ROOT, name: format!("file-{n:010}").into_bytes() }
}

fn create(n: u64) -> Operation {
    let kind = FileKind::Regular;
    Operation::Create(
        name(n),
        NewInode { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, device: 0, target: Vec::new() },
    )
}

/// Carries out so many operations; each session's numbers begin behind `before`.
async fn measure_all(
    shard: &Shard<VolumeMedium>,
    what: &str,
    before: u64,
    count: u64,
    operation: impl Fn(u64) -> Operation + Copy + 'static,
) -> Result<(), Failure> {
    let (first, begun) = (shard.counters(), Instant::now());
    let next = Rc::new(Cell::new(0));
    let workers = (0..SESSIONS).map(|worker| {
        let (shard, next) = (shard.clone(), next.clone());
        spawn(async move { work(&shard, worker, &next, (before, count), operation).await })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.map_err(|_| "a worker has ended")??;
    }
    let (seconds, last) = (begun.elapsed().as_secs_f64(), shard.counters());
    let each = |total: u64| total as f64 / count as f64;
    println!(
        "{count} {what}: {:.0} a second; each {:.0} bytes of changes and {:.0} of log",
        count as f64 / seconds,
        each(last.change_bytes - first.change_bytes),
        each(4096 * (last.log_blocks - first.log_blocks)),
    );
    let (batches, probes) = (last.batches - first.batches, last.probes - first.probes);
    println!("  {batches} batches, {probes} probes, {} checkpoints", last.checkpoints - first.checkpoints);
    Ok(())
}

async fn work(
    shard: &Shard<VolumeMedium>,
    worker: u64,
    next: &Cell<u64>,
    (before, count): (u64, u64),
    operation: impl Fn(u64) -> Operation,
) -> Result<(), Failure> {
    let session = SessionId(1 + worker);
    let mut number = before;
    loop {
        let n = next.get();
        if n == count {
            return Ok(());
        }
        next.set(n + 1);
        let operation = operation(n);
        number += 1;
        let number = if operation.changes() { number } else { 0 };
        let request = FileRequest { session, number, answered: number.saturating_sub(1), operation };
        if let Answer::Failed(error) = shard.serve(&request).await? {
            return Err(format!("{:?}: {error}", request.operation).into());
        }
    }
}
