//! Scripts about writes that meet, and about readers who see one halfway (R1, R3, R5, R6, R8).

use super::actor::{
    Actor, Begun, about_ms, becomes, changes, cut_off, enter, fast, leave, slow, start_cold, start_unmissed,
    until, version, with_slow_operation,
};
use super::stage::Stage;
use crate::manager_host;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::{sim, sleep, spawn};
use weft_types::Role;

/// Connections that a client loses until it waits for as long as it ever does before it asks again.
const RESETS: usize = 7;

/// Two writes to the first block, a newer one on B alone, and an older one on A alone, whose writer is cut off from both.
async fn one_each(stage: &Stage, [a, b]: [usize; 2], ahead: &Rc<Actor>, behind: &Rc<Actor>) -> [Begun; 2] {
    sleep(Duration::from_millis(600)).await;
    ahead.cut_to(a, true);
    let before = version(stage, b, 0).await;
    let newer = ahead.write(0);
    changes(stage, b, 0, before).await;
    sleep(Duration::from_millis(2)).await;
    // A takes the older one, and answers late; by then nothing more of its writer gets through.
    slow(stage, a, Duration::from_millis(10));
    let older = behind.write_by_clock(0, 1, -300_000);
    sleep(about_ms(1, 3)).await;
    [a, b].iter().for_each(|n| behind.cut_to(*n, true));
    sleep(Duration::from_millis(60)).await;
    fast(stage, a);
    [newer, older]
}

/// One of two members takes a write, the other one holds a newer one. The write is seen, then the newer one is, and
/// then whatever the writer still does arrives.
pub async fn taken_by_one() -> Result<(), String> {
    let (stage, [a, b], [behind, ahead, reader]) = enter(["behind", "ahead", "reader"]).await;
    until(&reader.write(0).done).await;
    let [newer, older] = one_each(&stage, [a, b], &ahead, &behind).await;
    leave(&stage, b).await;
    reader.read_again(0, 3).await;
    ahead.cut_to(a, false);
    until(&newer.done).await;
    reader.read_again(0, 3).await;
    [a, b].iter().for_each(|n| behind.cut_to(*n, false));
    until(&older.done).await;
    reader.read_again(0, 3).await;
    stage.heal();
    stage.finish_with_sessions().await
}

/// Likewise. What the writer sends next does not get through, only what it says of what is complete; then the two writes
/// are seen in turn.
pub async fn taken_and_passed() -> Result<(), String> {
    let (stage, [a, b], [behind, ahead, reader, other]) = enter(["behind", "ahead", "reader", "other"]).await;
    until(&other.write(0).done).await;
    let [newer, older] = one_each(&stage, [a, b], &ahead, &behind).await;
    // Each time that its connection is lost after it has greeted, it waits twice as long before it asks again.
    for _ in 0..RESETS {
        behind.lose_connection(a);
        sleep(about_ms(105, 10)).await;
        behind.let_through(a, 2).await;
    }
    behind.lose_connection(a);
    behind.cut_to(a, false);
    // It says what is complete as soon as it is connected again.
    sleep(about_ms(4, 4)).await;
    reader.reach_only(a);
    reader.read_now(0..1).await;
    other.read_again(0, 12).await;
    behind.cut_to(b, false);
    until(&older.done).await;
    other.read_again(0, 3).await;
    ahead.cut_to(a, false);
    until(&newer.done).await;
    stage.heal();
    stage.finish_with_sessions().await
}

/// One of two members does not get a write, and its writer's connection is lost; then that member is read.
pub async fn unheard() -> Result<(), String> {
    let (stage, [a, b], [writer, reader]) = enter(["writer", "reader"]).await;
    until(&reader.write(0).done).await;
    reader.be_quiet().await;
    writer.cut_to(b, true);
    let before = version(&stage, a, 0).await;
    let write = writer.write(0);
    changes(&stage, a, 0, before).await;
    writer.lose_connection(b);
    sleep(about_ms(3, 20)).await;
    reader.reach_only(b);
    reader.read_now(0..1).await;
    stage.heal();
    until(&write.done).await;
    reader.read_again(0, 3).await;
    stage.finish_with_sessions().await
}

/// A reader finds a write on one of two members, and cannot put it on the other one.
pub async fn put_delayed() -> Result<(), String> {
    let (stage, [a, b], [writer, reader, other, third]) = enter(["writer", "reader", "other", "third"]).await;
    until(&reader.write(0).done).await;
    reader.be_quiet().await;
    writer.cut_to(b, true);
    let before = version(&stage, a, 0).await;
    let _write = writer.write(0);
    changes(&stage, a, 0, before).await;
    // It asks both what they hold; what B answers arrives when B hears nothing more.
    reader.cut_from(b, true);
    let reads: Vec<_> = (0..6).map(|_| reader.read(0)).collect();
    sleep(about_ms(3, 2)).await;
    reader.cut_to(b, true);
    reader.cut_from(b, false);
    sleep(about_ms(3, 2)).await;
    other.reach_only(a);
    other.read_now(0..1).await;
    third.reach_only(b);
    third.read_now(0..1).await;
    drop(reads);
    stage.heal();
    stage.finish_with_sessions().await
}

/// Of a request of two blocks one meets a newer write, which was complete before.
pub async fn partly_superseded() -> Result<(), String> {
    let stage = Stage::set(3, 2).await;
    let behind = Actor::enter(&stage, 0, "behind").await;
    let other = Actor::enter(&stage, 1, "other").await;
    until(&other.write_by_clock(0, 2, 0).done).await;
    sleep(Duration::from_millis(500)).await;
    until(&other.write(1).done).await;
    other.be_quiet().await;
    until(&behind.write_by_clock(0, 2, -300_000).done).await;
    other.read_again(0, 2).await;
    other.read_again(1, 2).await;
    stage.finish_with_sessions().await
}

/// A read waits for the drive while its member is evicted and comes back, with what a client left on it alone.
pub async fn slow_read() -> Result<(), String> {
    let (stage, [a, b], [writer, reader, other]) = enter(["writer", "reader", "other"]).await;
    until(&other.write(0).done).await;
    other.be_quiet().await;
    writer.cut_to(a, true);
    let before = version(&stage, b, 0).await;
    let _write = writer.write(0);
    changes(&stage, b, 0, before).await;
    sleep(Duration::from_millis(2)).await;
    writer.cut_to(b, true);
    start_unmissed(&stage, b).await;
    reader.hear_of_nothing(true);
    reader.reach_only(b);
    let begin = || (0..8).map(|_| reader.read(0)).collect::<Vec<_>>();
    let reads = with_slow_operation(&stage, b, Duration::from_millis(450), begin).await;
    cut_off(&stage, b, true);
    stage.cut(stage.host(a), stage.host(b), true);
    stage.complain_of(b);
    becomes(&stage, b, Role::Out).await;
    cut_off(&stage, b, false);
    becomes(&stage, b, Role::Syncing).await;
    sleep(Duration::from_millis(450)).await;
    stage.cut(stage.host(a), stage.host(b), false);
    becomes(&stage, b, Role::InSync).await;
    other.read_again(0, 4).await;
    drop(reads);
    stage.heal();
    stage.finish_with_sessions().await
}

/// A member's drive takes long over a map that says nothing new of it. Meanwhile the member is taken out, a
/// write goes past it, and its target has a lease again.
pub async fn lags_behind() -> Result<(), String> {
    let (stage, [_, b], [writer, reader]) = enter(["writer", "reader"]).await;
    until(&writer.write(0).done).await;
    writer.be_quiet().await;
    reader.hear_of_nothing(true);
    reader.reach_only(b);
    let bed = stage.bed.clone();
    let begin = || spawn(async move { bed.create_volume("another", 2, 1).await });
    let _created = with_slow_operation(&stage, b, Duration::from_millis(900), begin).await;
    leave_alone(&stage, b, true);
    becomes(&stage, b, Role::Out).await;
    until(&writer.write(0).done).await;
    writer.be_quiet().await;
    leave_alone(&stage, b, false);
    for _ in 0..6 {
        sleep(Duration::from_millis(20)).await;
        reader.read_now(0..1).await;
    }
    stage.heal();
    stage.finish_with_sessions().await
}

/// Cuts a node off from the manager and all other nodes, or ends that.
fn leave_alone(stage: &Stage, node: usize, blocked: bool) {
    cut_off(stage, node, blocked);
    for other in (0..stage.bed.nodes.len()).filter(|n| *n != node) {
        stage.cut(stage.host(other), stage.host(node), blocked);
    }
}

/// A member knows that it is not in-sync any more, loses power, and starts again where nobody tells it.
/// `at_last`: its drive has been slow, and it loses power as soon as the fabric counts on what it knows.
pub async fn knew_better(at_last: bool) -> Result<(), String> {
    let (stage, [a, b], [writer, reader]) = enter(["writer", "reader"]).await;
    until(&writer.write(0).done).await;
    writer.be_quiet().await;
    start_cold(&stage, a).await;
    reader.hear_of_nothing(true);
    reader.reach_only(a);
    cut_off(&stage, a, true);
    stage.cut(stage.host(a), stage.host(b), true);
    becomes(&stage, a, Role::Out).await;
    writer.cut_to(a, true);
    until(&writer.write(0).done).await;
    writer.be_quiet().await;
    if at_last {
        for disk in stage.bed.nodes[a].disks() {
            disk.set_faults(|f| f.latency = (Duration::from_micros(20), Duration::from_millis(40)));
        }
    }
    if at_last {
        // It hears of it with the answer to its join, and not before.
        sim::reset_connections(stage.host(a), manager_host());
        sim::set_closed(stage.host(a), true);
    }
    cut_off(&stage, a, false);
    becomes(&stage, a, Role::Syncing).await;
    if !at_last {
        sleep(about_ms(10, 10)).await;
    }
    stage.bed.kill_node(a, sim::Crash::PowerCut);
    cut_off(&stage, a, true);
    sim::set_closed(stage.host(a), false);
    fast(&stage, a);
    stage.bed.start_node(a);
    for _ in 0..6 {
        sleep(Duration::from_millis(20)).await;
        reader.read_now(0..1).await;
    }
    stage.heal();
    stage.finish_with_sessions().await
}
