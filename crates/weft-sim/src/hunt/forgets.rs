//! Scripts about floors (R7): what may come after a tombstone was forgotten, and while a floor rises.

use super::actor::{Actor, about_ms, changes, enter_on, fast, place, slow, until, version};
use super::stage::Stage;
use crate::workload;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_checker::fill_block;
use weft_rpc::Link;
use weft_rt::{Addr, Buf, random_below, sleep, spawn};
use weft_types::{BlockRange, Version};
use weft_wire::data::{DataRequest, Purpose, Scope};
use weft_wire::handshake::{Hello, PeerRole};
use weft_wire::{Kind, crc32c};

/// How often floors rise here: often while a client is cut off from a node, for less long than until the
/// node leaves.
const FORGET_EVERY: Duration = Duration::from_millis(20);

/// How long a floor takes to rise, and drives to forget what is below it.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(2);

/// How often, where no floor rises while a script looks on.
const SELDOM: Duration = Duration::from_secs(600);

/// A block beside, in the same group.
const BESIDE: u64 = 300;

async fn enter<const CLIENTS: usize>(
    names: [&'static str; CLIENTS],
) -> (Rc<Stage>, [usize; 2], [Rc<Actor>; CLIENTS]) {
    enter_on(Stage::set_forgetting(3, 2, FORGET_EVERY).await, names).await
}

/// A reader has found a write, and stands still before it puts it. The block is discarded, and that is
/// forgotten; then the put arrives.
pub async fn late_put() -> Result<(), String> {
    let (stage, [a, b], [writer, reader]) = enter(["writer", "reader"]).await;
    let written = writer.write(0);
    until(&written.done).await;
    let found = version(&stage, a, 0).await;
    let discarded = workload::zero("writer", &writer.volume, &stage.history, 0, 1).await;
    discarded.map_err(|e| e.to_string())?;
    if !is_forgotten(&stage, [a, b]).await {
        return Err("the discard is not forgotten".into());
    }
    for node in [a, b] {
        put(&stage, node, found, &fill_block(0, written.value)).await;
    }
    for node in [a, b] {
        reader.reach_only(node);
        reader.read_now(0..1).await;
    }
    stage.heal();
    stage.finish_with_sessions().await
}

/// Whether the drives of these nodes forget all their tombstones of the volume's first group in time.
async fn is_forgotten(stage: &Stage, nodes: [usize; 2]) -> bool {
    let (group, _) = place(stage).await;
    let looks = FORGOTTEN_WITHIN.as_millis() / 10;
    for _ in 0..looks {
        let stores = nodes.iter().flat_map(|n| stage.bed.nodes[*n].stores());
        if stores.into_iter().all(|store| store.has_forgotten(group.id)) {
            return true;
        }
        sleep(Duration::from_millis(10)).await;
    }
    false
}

/// Puts data on a node's drive, as a reader does whose session is that of the volume's last client.
async fn put(stage: &Stage, node: usize, version: Version, data: &[u8]) {
    let (group, object) = place(stage).await;
    let map = stage.bed.map().await;
    let session = map.sessions.values().last().expect("the reader's");
    let head = DataRequest {
        drive: stage.bed.nodes[node].drives()[0],
        group: group.id,
        epoch: group.epoch,
        generation: session.generation,
        session: session.id,
        watermark: Version::ZERO,
        object,
        range: BlockRange::one(0),
        version,
        purpose: Purpose::Repair,
        slot: session.slot,
        scope: Scope::default(),
    };
    let to: Addr = format!("{}:4800", stage.host(node)).parse().expect("a valid address");
    let hello = Hello::new(PeerRole::Client, None, "late");
    if let Ok(link) = Link::connect(&to, &hello).await {
        let head = head.encode(link.protocol(), &[crc32c(data)]);
        let _ = link.call(Kind::Write, &head, vec![Buf::from(data.to_vec())]).await;
    }
}

/// A write is on one of two members while newer blocks are discarded beside it; it reaches the other member
/// later.
pub async fn in_flight() -> Result<(), String> {
    let (stage, [a, b], [writer, other, reader]) = enter(["writer", "other", "reader"]).await;
    until(&writer.write(0).done).await;
    writer.be_quiet().await;
    let before = version(&stage, a, 0).await;
    writer.cut_to(b, true);
    let late = writer.write(0);
    changes(&stage, a, 0, before).await;
    let discarded = workload::zero("other", &other.volume, &stage.history, BESIDE, 1).await;
    discarded.map_err(|e| e.to_string())?;
    sleep(about_ms(90, 30)).await;
    writer.cut_to(b, false);
    until(&late.done).await;
    for node in [a, b] {
        reader.reach_only(node);
        reader.read_now(0..1).await;
    }
    stage.heal();
    stage.finish_with_sessions().await
}

/// Floors rise all the time, to just below now, and one member takes long to finish what it has admitted. A
/// client whose clock is behind writes to the other member first.
pub async fn behind_the_floor() -> Result<(), String> {
    let (stage, [a, b], [behind, busy, reader]) = enter(["behind", "busy", "reader"]).await;
    sleep(Duration::from_millis(600)).await;
    until(&reader.write(0).done).await;
    reader.be_quiet().await;
    slow(&stage, b, Duration::from_millis(40));
    let is_over = Rc::new(Cell::new(false));
    let (works, over, of_busy) = (busy.clone(), is_over.clone(), stage.clone());
    let work = spawn(async move {
        while !over.get() {
            let history = &of_busy.history;
            let _ = workload::zero("busy", &works.volume, history, BESIDE + random_below(4), 1).await;
        }
    });
    for round in 1..=20 {
        behind.cut_to(b, true);
        // Its session makes up for a clock once it has seen those of the members.
        let late = behind.write_by_clock(0, 1, -400_000 * round);
        sleep(about_ms(20, 60)).await;
        behind.cut_to(b, false);
        until(&late.done).await;
        reader.reach_only(b);
        reader.read_now(0..1).await;
        reader.reach_only(a);
        reader.read_now(0..1).await;
    }
    is_over.set(true);
    fast(&stage, b);
    let _ = weft_rt::timeout(Duration::from_secs(2), work).await;
    stage.heal();
    stage.finish_with_sessions().await
}

/// Managers die while floors rise, when members have closed below what a floor was to be. The next one seldom
/// raises floors, and a client whose clock is behind writes below: that ends all the same.
pub async fn left_closed() -> Result<(), String> {
    let (stage, [_, b], [behind, busy, reader]) = enter(["behind", "busy", "reader"]).await;
    sleep(Duration::from_millis(600)).await;
    until(&reader.write(0).done).await;
    reader.be_quiet().await;
    for round in 1..=8 {
        let discarded = workload::zero("busy", &busy.volume, &stage.history, BESIDE, 1).await;
        discarded.map_err(|e| e.to_string())?;
        // The floor is to rise to what was just discarded, and waits for what is admitted.
        slow(&stage, b, Duration::from_millis(100));
        let admitted = busy.write(BESIDE + 1);
        sleep(about_ms(30, 40)).await;
        stage.bed.kill_manager();
        fast(&stage, b);
        until(&admitted.done).await;
        stage.bed.forget_every.set(SELDOM);
        stage.bed.start_manager();
        // Its session makes up for a clock once it has seen those of the members.
        let late = behind.write_by_clock(0, 1, -1_500_000 * round);
        if !until(&late.done).await {
            return Err("a write below a floor that was to rise does not end".into());
        }
        stage.bed.kill_manager();
        stage.bed.forget_every.set(FORGET_EVERY);
        stage.bed.start_manager();
    }
    stage.heal();
    stage.finish_with_sessions().await
}
