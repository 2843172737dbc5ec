//! A device of several parts is one failure domain (P5): it is lost, and each block has a copy on another
//! one.

use super::crowd;
use super::stage::{Stage, shape};
use crate::bed::BedShape;
use std::time::Duration;
use weft_rt::sim::Crash;
use weft_rt::{random_below, sleep, timeout};

/// How long a read may take after the loss: the targets join, and the leases of those before are waited out.
const READS_WITHIN: Duration = Duration::from_secs(10);

/// Blocks that are written, in different groups.
const BLOCKS: u64 = 24;

/// One node with two devices of two parts each. One device is lost, and an empty one is put in its place.
///
/// # Errors
/// What is wrong.
pub(super) async fn run() -> Result<(), String> {
    let stage = Stage::set_on_devices(BedShape { drives: 4, parts: 2, ..shape(1, 2, 100, 10) }).await;
    let volume = stage.attach("writer").await;
    for block in 0..BLOCKS {
        crowd::write("writer", &stage, &volume, 4 * block, 1, false).await.map_err(|e| e.to_string())?;
    }
    volume.detach().await;
    stage.bed.kill_node(0, Crash::PowerCut);
    stage.bed.put_empty_device(0, random_below(4) as usize).await;
    sleep(Duration::from_millis(random_below(100))).await;
    stage.bed.start_node(0);
    let reader = stage.attach("reader").await;
    for block in 0..BLOCKS {
        match timeout(READS_WITHIN, crowd::read("reader", &stage, &reader, 4 * block, 1)).await {
            Ok(read) => read.map_err(|e| e.to_string())?,
            Err(_) => return Err(format!("block {} has no copy outside the device that is lost", 4 * block)),
        }
    }
    reader.detach().await;
    stage.history.check().map_err(|violation| violation.to_string())
}
