//! Scripts about a replica that comes back: what it held before counts for nothing, and no write goes around it
//! (R4, R12 to R14).

use super::actor::{
    Actor, about_ms, becomes, changes, cut_off, enter, fast, leave, place, slow, start_unmissed, store,
    until, version,
};
use super::stage::{Stage, chunk_block};
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sim::{self, Crash};
use weft_rt::sync::join_all;
use weft_rt::{now, random_below, sleep};
use weft_types::{ChunkIndex, Role};

/// Chunks that hold something: more than a walk has in flight.
const CHUNKS: u64 = 16;

/// Waits until the first chunk has been verified in a new stint.
async fn copy_begins(stage: &Stage, node: usize) -> bool {
    let (group, object) = place(stage).await;
    let from = now();
    while from.elapsed() < Duration::from_secs(1) {
        let held = store(stage, node);
        let stint = held.as_ref().and_then(|s| s.verify_state(group.id)).and_then(|s| s.stint);
        if stint.is_some() && held.is_some_and(|s| s.chunk_is_verified(group.id, object, ChunkIndex(0))) {
            return true;
        }
        sleep(Duration::from_micros(100)).await;
    }
    false
}

/// All chunks are written, and once more while a member is away.
async fn miss_writes(stage: &Stage, writer: &Rc<Actor>, node: usize) {
    writer.write_chunks(CHUNKS).await;
    leave(stage, node).await;
    writer.write_chunks(CHUNKS).await;
}

/// A writer, a reader, and two members: the second one has missed writes, and begins to copy from the first one, whose
/// drive is slow.
async fn copy_under_way() -> (Rc<Stage>, [usize; 2], [Rc<Actor>; 2]) {
    let (stage, [a, b], [writer, reader]) = enter(["writer", "reader"]).await;
    miss_writes(&stage, &writer, b).await;
    slow(&stage, a, Duration::from_millis(6));
    stage.bed.start_node(b);
    copy_begins(&stage, b).await;
    (stage, [a, b], [writer, reader])
}

fn chunk_blocks() -> impl Iterator<Item = u64> {
    (0..CHUNKS).map(chunk_block)
}

/// A write with an old version reaches a replica that has not verified the block, after a newer one was complete.
pub async fn write_to_unverified() -> Result<(), String> {
    let (stage, [a, b], [behind, other]) = enter(["behind", "other"]).await;
    until(&other.write(0).done).await;
    sleep(Duration::from_millis(800)).await;
    leave(&stage, b).await;
    until(&other.write(0).done).await;
    // It cannot copy anything yet.
    stage.cut(stage.host(a), stage.host(b), true);
    stage.bed.start_node(b);
    becomes(&stage, b, Role::Syncing).await;
    sleep(about_ms(2, 3)).await;
    let write = behind.write_by_clock(0, 1, -700_000);
    sleep(about_ms(3, 3)).await;
    stage.cut(stage.host(a), stage.host(b), false);
    until(&write.done).await;
    other.read_again(0, 12).await;
    stage.heal();
    stage.finish_with_sessions().await
}

/// A replica comes back and copies a block from a member that has not heard of that; then a client who has not either
/// writes the block.
pub async fn write_around() -> Result<(), String> {
    // The copy gives way to clients for a tenth of a second, and A, which hears of nothing, has to serve it by its lease.
    let stage = Stage::set_with(3, 2, 500, 10).await;
    let nodes = stage.holders().await;
    let (a, b) = (nodes[0], nodes[1]);
    let writer = Actor::enter(&stage, 0, "writer").await;
    let reader = Actor::enter(&stage, 1, "reader").await;
    until(&writer.write(0).done).await;
    leave(&stage, b).await;
    until(&writer.write(0).done).await;
    writer.be_quiet().await;
    writer.hear_of_nothing(true);
    sim::set_blocked(crate::manager_host(), stage.host(a), true);
    stage.bed.start_node(b);
    let _ = weft_rt::timeout(Duration::from_millis(400), becomes(&stage, b, Role::InSync)).await;
    let write = writer.write(0);
    let _ = weft_rt::timeout(Duration::from_millis(20), until(&write.done)).await;
    reader.reach_only(b);
    reader.read_now(0..1).await;
    stage.heal();
    until(&write.done).await;
    becomes(&stage, b, Role::InSync).await;
    reader.read_again(0, 12).await;
    stage.finish_with_sessions().await
}

/// A write that has reached one member is copied from there; then the new copy and a member without the write are
/// read.
pub async fn open_on_source() -> Result<(), String> {
    let (stage, [a, b, c], [writer, reader, other]) = enter(["writer", "reader", "other"]).await;
    until(&reader.write(0).done).await;
    reader.be_quiet().await;
    leave(&stage, b).await;
    [b, c].iter().for_each(|n| writer.cut_to(*n, true));
    let before = version(&stage, a, 0).await;
    let _write = writer.write(0);
    changes(&stage, a, 0, before).await;
    stage.bed.start_node(b);
    becomes(&stage, b, Role::InSync).await;
    reader.reach_only(b);
    reader.read_now(0..1).await;
    other.reach_only(c);
    other.read_now(0..1).await;
    stage.heal();
    stage.finish_with_sessions().await
}

/// Likewise, with writes that reach the source just before it is asked for the chunks, so that it takes note of them
/// while it reads what it has to answer. Other writes, which reach the replica alone, have it ask at once.
pub async fn open_while_read() -> Result<(), String> {
    let (stage, [a, b, c], [writer, reader, other, hurry]) =
        enter(["writer", "reader", "other", "hurry"]).await;
    miss_writes(&stage, &reader, b).await;
    start_unmissed(&stage, a).await;
    [b, c].iter().for_each(|n| writer.cut_to(*n, true));
    [a, c].iter().for_each(|n| hurry.cut_to(*n, true));
    slow(&stage, a, Duration::from_millis(8));
    stage.bed.start_node(b);
    becomes(&stage, b, Role::Syncing).await;
    let hurried: Vec<_> = chunk_blocks().map(|block| hurry.write(block + 1)).collect();
    let writes = chunk_blocks().map(async |block| {
        sleep(about_ms(0, 30)).await;
        writer.write(block)
    });
    let writes = join_all(writes).await;
    becomes(&stage, b, Role::InSync).await;
    fast(&stage, a);
    reader.reach_only(b);
    reader.read_now(chunk_blocks()).await;
    other.reach_only(c);
    other.read_now(chunk_blocks()).await;
    stage.heal();
    for write in writes.iter().chain(&hurried) {
        until(&write.done).await;
    }
    stage.finish_with_sessions().await
}

/// Writes meet the walk: they come to both members while the source reads what is to be copied, or late to the one
/// that comes back.
pub async fn writes_meet_copy(late: bool) -> Result<(), String> {
    let (stage, [a, b], [writer, reader]) = enter(["writer", "reader"]).await;
    miss_writes(&stage, &writer, b).await;
    slow(&stage, a, Duration::from_millis(6));
    writer.cut_to(b, late);
    stage.bed.start_node(b);
    // Some chunks are copied, and others are on their way.
    copy_begins(&stage, b).await;
    slow(&stage, a, Duration::from_millis(12));
    let writes = chunk_blocks().skip(4).map(async |block| {
        sleep(about_ms(0, 16)).await;
        writer.write(block)
    });
    let writes = join_all(writes).await;
    if late {
        becomes(&stage, b, Role::InSync).await;
        writer.cut_to(b, false);
    }
    for write in writes {
        until(&write.done).await;
    }
    writer.be_quiet().await;
    becomes(&stage, b, Role::InSync).await;
    fast(&stage, a);
    reader.reach_only(b);
    reader.read_now(chunk_blocks()).await;
    stage.heal();
    stage.finish_with_sessions().await
}

/// A write reaches one member alone, which leaves, comes back, and copies the block from the other one; then the write
/// goes on.
pub async fn mark_of_before() -> Result<(), String> {
    let (stage, [a, b], [writer, reader]) = enter(["writer", "reader"]).await;
    until(&reader.write(0).done).await;
    reader.be_quiet().await;
    writer.cut_to(a, true);
    let before = version(&stage, b, 0).await;
    let write = writer.write(0);
    changes(&stage, b, 0, before).await;
    sleep(Duration::from_millis(2)).await;
    writer.cut_to(b, true);
    leave(&stage, b).await;
    stage.bed.start_node(b);
    becomes(&stage, b, Role::InSync).await;
    [a, b].iter().for_each(|n| writer.cut_to(*n, false));
    until(&write.done).await;
    writer.be_quiet().await;
    reader.reach_only(b);
    reader.read_now(0..1).await;
    stage.heal();
    stage.finish_with_sessions().await
}

/// A dying client's write reaches one member alone, which leaves and comes back. `was_written`: the block held
/// something before.
pub async fn debris(was_written: bool) -> Result<(), String> {
    let (stage, [a, c], [writer, reader]) = enter(["writer", "reader"]).await;
    until(&reader.write(if was_written { 0 } else { 3 }).done).await;
    writer.cut_to(a, true);
    let before = version(&stage, c, 0).await;
    let write = writer.write(0);
    changes(&stage, c, 0, before).await;
    sim::kill(write.process, Crash::Process);
    leave(&stage, c).await;
    reader.read_again(0, 3).await;
    stage.heal();
    becomes(&stage, c, Role::InSync).await;
    reader.read_again(0, 12).await;
    stage.finish_with_sessions().await
}

/// Blocks are written while a member is away, and nobody writes them when it comes back.
pub async fn back_quietly() -> Result<(), String> {
    let (stage, [_, b], [writer, reader]) = enter(["writer", "reader"]).await;
    miss_writes(&stage, &writer, b).await;
    stage.bed.start_node(b);
    becomes(&stage, b, Role::InSync).await;
    reader.reach_only(b);
    reader.read_now(chunk_blocks()).await;
    stage.heal();
    stage.finish_with_sessions().await
}

/// A replica comes back, is verified as a whole, and misses writes again.
pub async fn back_again() -> Result<(), String> {
    let (stage, [_, b], [writer, reader]) = enter(["writer", "reader"]).await;
    for _ in 0..2 {
        miss_writes(&stage, &writer, b).await;
        stage.bed.start_node(b);
        becomes(&stage, b, Role::InSync).await;
    }
    reader.reach_only(b);
    reader.read_now(chunk_blocks()).await;
    stage.heal();
    stage.finish_with_sessions().await
}

/// What a source has sent arrives only after the replica was evicted and came back, and the blocks were written
/// meanwhile.
pub async fn reply_of_before() -> Result<(), String> {
    let (stage, [a, b], [writer, reader]) = copy_under_way().await;
    sleep(Duration::from_micros(random_below(3_000))).await;
    sim::set_blocked(stage.host(a), stage.host(b), true);
    cut_off(&stage, b, true);
    becomes(&stage, b, Role::Out).await;
    fast(&stage, a);
    writer.write_chunks(CHUNKS).await;
    cut_off(&stage, b, false);
    becomes(&stage, b, Role::Syncing).await;
    sleep(about_ms(5, 20)).await;
    sim::set_blocked(stage.host(a), stage.host(b), false);
    becomes(&stage, b, Role::InSync).await;
    reader.reach_only(b);
    reader.read_now(chunk_blocks()).await;
    stage.heal();
    stage.finish_with_sessions().await
}

/// A replica that has verified everything cannot say so, is evicted, and comes back to where it can copy nothing.
pub async fn word_of_before() -> Result<(), String> {
    let (stage, [a, b], [writer, reader]) = copy_under_way().await;
    cut_off(&stage, b, true);
    sleep(Duration::from_millis(50)).await;
    fast(&stage, a);
    becomes(&stage, b, Role::Out).await;
    stage.cut(stage.host(a), stage.host(b), true);
    writer.write_chunks(CHUNKS).await;
    cut_off(&stage, b, false);
    sleep(about_ms(300, 100)).await;
    reader.reach_only(b);
    reader.read_now(chunk_blocks()).await;
    stage.heal();
    stage.finish_with_sessions().await
}

/// Part of a chunk is copied in a hurry, because a write waits for it; then the source is lost for good.
pub async fn source_lost() -> Result<(), String> {
    let (stage, [a, b], [writer]) = enter(["writer"]).await;
    let last = chunk_block(CHUNKS - 1);
    miss_writes(&stage, &writer, b).await;
    slow(&stage, a, Duration::from_millis(10));
    stage.bed.start_node(b);
    becomes(&stage, b, Role::Syncing).await;
    sleep(Duration::from_micros(random_below(2_000))).await;
    until(&writer.write(last + 1).done).await;
    becomes(&stage, b, Role::InSync).await;
    fast(&stage, a);
    leave(&stage, a).await;
    for block in [last, last + 1] {
        match weft_rt::timeout(Duration::from_secs(2), writer.read(block)).await {
            Ok(Ok(Ok(()))) => {}
            other => {
                return Err(format!("block {block} cannot be read from the copy that is left: {other:?}"));
            }
        }
    }
    stage.heal();
    stage.finish_with_sessions().await
}
