//! Write amplification: bytes that go to drives per byte of data and copy.
//!
//! The kernel counts what a process writes to disks, so drives are files on a real file system, which are written
//! to directly; nothing of what this measures is the store's own count.

use super::copies::Copies;
use super::quiet::Voids;
use super::stage::{Stage, StagePlan};
use super::{RepairOptions, disk_folder};
use crate::BenchError;
use crate::load::{Amount, Load};
use crate::process::disk_bytes;
use crate::progress::progress;
use crate::report::rounded;
use serde::Serialize;

/// Requests in flight.
const DEPTH: u32 = 32;

/// Copies of the volume.
const COPIES: u64 = 2;

/// What drives write per byte of data.
#[derive(Clone, Debug, Serialize)]
pub struct AmplifyFigures {
    /// The bytes of the volume that are written at random, all of it.
    pub working_set_bytes: u64,
    /// Bytes of each drive.
    pub drive_bytes: u64,
    /// Requests in flight.
    pub depth: u32,
    /// One for each block size.
    pub rows: Vec<AmplifyRow>,
}

/// Random writes of one block size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AmplifyRow {
    /// Bytes of each write.
    pub block_bytes: u64,
    /// Bytes of data written by the client.
    pub client_bytes: u64,
    /// Bytes that the kernel counted at the drives, over the client's bytes times the copies.
    pub amplification: f64,
    /// The part of it that is data.
    pub data: f64,
    /// The part of it that is log.
    pub log: f64,
    /// The rest: checkpoints of the map.
    pub other: f64,
    /// Writes per second meanwhile.
    pub iops: f64,
}

pub(crate) async fn measure(options: &RepairOptions, voids: &Voids) -> Result<AmplifyFigures, BenchError> {
    let on_disk = RepairOptions { drives_in: Some(disk_folder(options)), ..options.clone() };
    let working_set = options.sizes.amplify_bytes;
    let plan = StagePlan {
        nodes: 1,
        drives: COPIES as u32,
        drive_bytes: working_set * 2 + (128 << 20),
        volume_bytes: working_set,
        width: None,
        is_thin: false,
    };
    let mut stage = Stage::set(&on_disk, &plan, voids.of("write amplification")).await?;
    progress("write amplification: fill");
    stage.fill().await?;
    let mut rows = Vec::new();
    for block_bytes in [4 << 10, 64 << 10] {
        progress(&format!("write amplification of {} KiB", block_bytes >> 10));
        stage.quiet(&format!("blocks of {} KiB", block_bytes >> 10), Copies::Whole, None).await?;
        rows.push(row(options, &mut stage, block_bytes).await?);
    }
    Ok(AmplifyFigures { working_set_bytes: working_set, drive_bytes: plan.drive_bytes, depth: DEPTH, rows })
}

async fn row(options: &RepairOptions, stage: &mut Stage, block_bytes: u64) -> Result<AmplifyRow, BenchError> {
    let requests = (options.sizes.amplify_written_bytes / block_bytes).max(1);
    let load = |requests| Load {
        read_percent: 0,
        block_size: block_bytes,
        depth: DEPTH,
        amount: Amount::Requests(requests),
        seed: block_bytes,
        ..Load::default()
    };
    // A quarter goes before: what was left to write of the time before is over then.
    load((requests / 4).max(1)).run(&stage.volume).await?;
    let (before, own_before) = (written(stage)?, own_count(stage).await?);
    let ran = load(requests).run(&stage.volume).await?;
    let (after, own_after) = (written(stage)?, own_count(stage).await?);
    let client_bytes = ran.requests() * block_bytes;
    let per = |bytes: u64| bytes as f64 / (client_bytes * COPIES) as f64;
    let (all, data, log) =
        (per(after - before), per(own_after.0 - own_before.0), per(own_after.1 - own_before.1));
    Ok(AmplifyRow {
        block_bytes,
        client_bytes,
        amplification: rounded(all, 0.001),
        data: rounded(data, 0.001),
        log: rounded(log, 0.001),
        other: rounded(all - data - log, 0.001),
        iops: rounded(ran.per_second(), 1.0),
    })
}

/// Bytes that the kernel has counted at the drives.
fn written(stage: &Stage) -> Result<u64, BenchError> {
    let pids = stage.bed.node_pids().into_iter();
    pids.map(|pid| disk_bytes(pid).map(|counted| counted.written)).sum()
}

/// Bytes of data and of log by the stores' own count.
async fn own_count(stage: &mut Stage) -> Result<(u64, u64), BenchError> {
    let load = stage.bed.load().await?;
    let drives = || load.nodes.iter().flat_map(|node| &node.drives);
    let data = drives().map(|d| d.data_bytes_written).sum();
    Ok((data, drives().map(|d| d.log_bytes_written).sum()))
}
