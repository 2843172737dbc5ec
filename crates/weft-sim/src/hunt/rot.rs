//! Scripts about blocks that rot on one drive: another copy heals them, and none steps back to an older version.

use super::actor::{about_ms, becomes, enter, leave, until};
use super::stage::chunk_block;
use std::time::Duration;
use weft_checker::fill_block;
use weft_rt::sim::Crash;
use weft_rt::sleep;
use weft_types::Role;

/// Blocks that rot before they are copied: several, since each is copied from either member.
const ROTTEN: u64 = 8;

/// A block rots on one drive and is read; then the other drive is lost for good.
pub async fn healed_by_reads() -> Result<(), String> {
    let (stage, [a, b], [writer]) = enter(["writer"]).await;
    let write = writer.write(0);
    until(&write.done).await;
    writer.be_quiet().await;
    if !stage.bed.rot(a, &fill_block(0, write.value)) {
        return Err("the block is not on the drive that is to rot".into());
    }
    writer.read_again(0, 12).await;
    leave(&stage, b).await;
    match weft_rt::timeout(Duration::from_secs(2), writer.read(0)).await {
        Ok(Ok(Ok(()))) => {}
        other => return Err(format!("a block that was read and healed cannot be read again: {other:?}")),
    }
    stage.heal();
    stage.finish_with_sessions().await
}

/// Blocks rot on one of two members from which a third one copies them.
pub async fn rotten_source() -> Result<(), String> {
    let (stage, [a, b, _], [writer, reader]) = enter(["writer", "reader"]).await;
    until(&writer.write(0).done).await;
    leave(&stage, b).await;
    let blocks = (0..ROTTEN).map(chunk_block);
    let writes: Vec<_> = blocks.clone().map(|block| (block, writer.write(block))).collect();
    for (_, write) in &writes {
        until(&write.done).await;
    }
    writer.be_quiet().await;
    for (block, write) in &writes {
        if !stage.bed.rot(a, &fill_block(*block, write.value)) {
            return Err(format!("block {block} is not on the drive that is to rot"));
        }
    }
    stage.bed.start_node(b);
    becomes(&stage, b, Role::InSync).await;
    for block in blocks {
        reader.read_again(block, 4).await;
    }
    stage.heal();
    stage.finish_with_sessions().await
}

/// The newest version of a block rots on one drive, which then loses power.
pub async fn rotten_in_log() -> Result<(), String> {
    let (stage, [a, _], [writer]) = enter(["writer"]).await;
    until(&writer.write(0).done).await;
    let write = writer.write(0);
    until(&write.done).await;
    writer.be_quiet().await;
    // Later batches say that it was durable.
    for block in 1..4 {
        until(&writer.write(block).done).await;
        sleep(about_ms(1, 2)).await;
    }
    if !stage.bed.rot(a, &fill_block(0, write.value)) {
        return Err("the block is not on the drive that is to rot".into());
    }
    stage.bed.kill_node(a, Crash::PowerCut);
    sleep(Duration::from_millis(1)).await;
    stage.bed.start_node(a);
    sleep(Duration::from_millis(30)).await;
    writer.read_again(0, 12).await;
    stage.heal();
    stage.finish_with_sessions().await
}
