//! A replica comes back, and loses power again in the middle of its resync: what counts as verified then must be.

use super::crowd;
use super::stage::{Stage, chunk_block};
use std::time::Duration;
use weft_rt::sim::Crash;
use weft_rt::sync::join_all;
use weft_rt::{random_below, sleep};
use weft_types::Role;

/// Chunks that the volume's blocks lie in.
const CHUNKS: u64 = 12;

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let stage = Stage::set(3, 2 + random_below(2) as u8).await;
    let victim = stage.holders().await[0];
    let volume = stage.attach("writer").await;
    let write_all = async || {
        join_all((0..CHUNKS).map(|c| crowd::write("writer", &stage, &volume, chunk_block(c), 2, false))).await
    };
    write_all().await;
    stage.bed.kill_node(victim, Crash::PowerCut);
    sleep(Duration::from_millis(400)).await;
    write_all().await;
    let disks = stage.bed.nodes[victim].disks();
    disks.iter().for_each(|d| d.set_faults(|f| f.latency.1 = Duration::from_millis(3)));
    stage.bed.start_node(victim);
    for _ in 0..400 {
        let map = stage.bed.map().await;
        let drive = stage.bed.nodes[victim].drives()[0];
        if map.groups.values().any(|g| g.slot_of(drive).is_some_and(|s| s.role == Role::Syncing)) {
            break;
        }
        sleep(Duration::from_millis(1)).await;
    }
    sleep(Duration::from_micros(random_below(40_000))).await;
    stage.bed.kill_node(victim, Crash::PowerCut);
    sleep(Duration::from_millis(1)).await;
    stage.bed.start_node(victim);
    let reads = (0..40).map(|_| async {
        sleep(Duration::from_micros(random_below(300_000))).await;
        crowd::read("writer", &stage, &volume, chunk_block(random_below(CHUNKS)), 1).await
    });
    join_all(reads).await;
    stage.heal();
    stage.become_whole_but_for_sessions().await?;
    for c in 0..CHUNKS {
        for _ in 0..4 {
            crowd::read("writer", &stage, &volume, chunk_block(c), 2).await.map_err(|e| e.to_string())?;
        }
    }
    volume.detach().await;
    stage.finish().await
}
