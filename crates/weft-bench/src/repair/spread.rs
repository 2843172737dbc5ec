//! How a rebuild spreads: a drive of eight is lost, and its copies are made anew from and to all of the others.
//!
//! What drives read and write is what the kernel counts for their processes, so drives are files here, and each
//! process has one.

use super::copies::Copies;
use super::quiet::Voids;
use super::stage::{Stage, StagePlan};
use super::{RepairOptions, disk_folder};
use crate::BenchError;
use crate::load::data;
use crate::process::{DiskBytes, disk_bytes};
use crate::progress::progress;
use crate::report::rounded;
use serde::Serialize;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::{now, spawn};
use weft_types::BLOCK_SIZE;
use weft_types::limits::OBJECT_BLOCKS_MAX;

/// Nodes, with one drive each.
const NODES: u32 = 8;

/// Objects that the volume has, each written in part: many per drive, so that evenness shows.
const OBJECTS: u64 = 256;

/// Bytes of an object.
const OBJECT_BYTES: u64 = OBJECT_BLOCKS_MAX as u64 * BLOCK_SIZE as u64;

/// Requests in flight while objects are written, and the bytes of each at most.
const FILL_DEPTH: usize = 4;
const FILL_BYTES: u64 = 1 << 20;

/// How a rebuild spread over the drives that were left.
#[derive(Clone, Debug, Serialize)]
pub struct SpreadFigures {
    /// Drives before the loss, on as many nodes.
    pub drives_before: u32,
    /// Bytes of data that the volume held; there were two copies.
    pub data_bytes: u64,
    /// Bytes of data that were copied.
    pub copied_bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// Megabytes copied per second, all drives together.
    pub mb_per_s: f64,
    /// The drives that were left.
    pub drives: Vec<DriveShare>,
    /// The most that a drive read over the least; none if one read nothing.
    pub read_max_over_min: Option<f64>,
    /// The most that a drive wrote over the least.
    pub written_max_over_min: Option<f64>,
}

/// A drive's part of a rebuild.
#[derive(Clone, Debug, Serialize)]
pub struct DriveShare {
    /// The drive's node.
    pub node: String,
    /// Bytes read from the drive.
    pub read_bytes: u64,
    /// Bytes written to it, with logs and checkpoints.
    pub written_bytes: u64,
}

pub(crate) async fn measure(options: &RepairOptions, voids: &Voids) -> Result<SpreadFigures, BenchError> {
    progress("a rebuild from and to seven drives");
    let on_disk = RepairOptions { drives_in: Some(disk_folder(options)), ..options.clone() };
    let part = (options.sizes.spread_bytes / OBJECTS).next_multiple_of(BLOCK_SIZE as u64);
    let plan = StagePlan {
        nodes: NODES,
        drives: 1,
        // A quarter of the data is on each, and twice as much may come.
        drive_bytes: options.sizes.spread_bytes / 2 + (96 << 20),
        volume_bytes: OBJECTS * OBJECT_BYTES,
        width: Some(1),
        is_thin: true,
    };
    let mut stage = Stage::set(&on_disk, &plan, voids.of("the spread of a rebuild")).await?;
    fill(&stage, part).await?;
    stage.quiet("rebuild", Copies::Whole, None).await?;
    stage.bed.kill(0);
    let before = counted(&stage)?;
    let given = stage.copied().await?;
    stage.bed.rebuild_after(Duration::from_secs(1)).await?;
    stage.wait_for("a rebuild begins", |copies| copies == Copies::Syncing).await?;
    let began = now();
    stage.wait_for("all copies are there again", |copies| copies == Copies::Whole).await?;
    let took = began.elapsed().as_secs_f64();
    let copied_bytes = stage.copied().await?.since(&given);
    let share = |(node, (before, after)): (usize, (&DiskBytes, DiskBytes))| DriveShare {
        node: stage.bed.node_name(node).to_owned(),
        read_bytes: after.read - before.read,
        written_bytes: after.written - before.written,
    };
    let drives: Vec<_> = before.iter().zip(counted(&stage)?).enumerate().map(share).collect();
    Ok(SpreadFigures {
        drives_before: NODES,
        data_bytes: part * OBJECTS,
        copied_bytes,
        seconds: rounded(took, 0.01),
        mb_per_s: rounded(copied_bytes as f64 / 1e6 / took, 0.1),
        read_max_over_min: max_over_min(drives.iter().map(|d| d.read_bytes)),
        written_max_over_min: max_over_min(drives.iter().map(|d| d.written_bytes)),
        drives,
    })
}

/// What the kernel has counted for each node's process.
fn counted(stage: &Stage) -> Result<Vec<DiskBytes>, BenchError> {
    stage.bed.node_pids().into_iter().map(disk_bytes).collect()
}

/// Writes the first so many bytes of every object.
async fn fill(stage: &Stage, part: u64) -> Result<(), BenchError> {
    let next = Rc::new(Cell::new(0));
    let workers: Vec<_> = (0..FILL_DEPTH)
        .map(|seed| {
            let (volume, next) = (stage.volume.clone(), next.clone());
            let bufs = data(FILL_BYTES.min(part) as usize, seed as u64);
            spawn(async move {
                loop {
                    let object = next.get();
                    if object >= OBJECTS {
                        return Ok::<(), BenchError>(());
                    }
                    next.set(object + 1);
                    let start = object * OBJECT_BYTES;
                    for offset in (0..part).step_by(FILL_BYTES as usize) {
                        let buf = &bufs[(offset / FILL_BYTES) as usize % bufs.len()];
                        let len = FILL_BYTES.min(part - offset) as usize;
                        volume.write(start + offset, vec![buf.slice(0..len)]).await?;
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("nobody aborts it")?;
    }
    Ok(())
}

fn max_over_min(values: impl Iterator<Item = u64> + Clone) -> Option<f64> {
    let (max, min) = (values.clone().max()?, values.min()?);
    (min > 0).then(|| rounded(max as f64 / min as f64, 0.01))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_of_the_most_and_the_least() {
        assert_eq!(max_over_min([20, 10, 15].into_iter()), Some(2.0));
        assert_eq!(max_over_min([20, 0].into_iter()), None);
        assert_eq!(max_over_min([].into_iter()), None);
    }
}
