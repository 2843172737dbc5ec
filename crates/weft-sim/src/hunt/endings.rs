//! Scripts about sessions that are over: what they left halfway is finished or buried, and nothing of them comes later
//! (R10, R16).

use super::actor::{
    Actor, Begun, about_ms, becomes, changes, cut_off, enter, start_cold, take_alone, until, version,
    with_slow_operation,
};
use super::stage::Stage;
use crate::workload;
use std::rc::Rc;
use std::time::Duration;
use weft_checker::{Value, read_value};
use weft_client::{AttachMode, Volume};
use weft_rt::sim::{self, Crash};
use weft_rt::{now, sleep, spawn};
use weft_types::{BLOCK_SIZE, Role};

/// Virtual time within which a session whose client has died is swept.
const SWEPT_WITHIN: Duration = Duration::from_secs(6);

/// A client dies with a write on one of two members. Nobody reads the block before the session is swept.
pub async fn left_alone() -> Result<(), String> {
    let (stage, [a, b], [writer, reader, other]) = enter(["writer", "reader", "other"]).await;
    until(&reader.write(0).done).await;
    reader.be_quiet().await;
    writer.cut_to(b, true);
    let before = version(&stage, a, 0).await;
    let write = writer.write(0);
    changes(&stage, a, 0, before).await;
    writer.die(&write);
    let (from, all) = (now(), stage.bed.map().await.sessions.len());
    while stage.bed.map().await.sessions.len() >= all {
        if from.elapsed() > SWEPT_WITHIN {
            return Err(format!("a session is not swept within {SWEPT_WITHIN:?} after its client died"));
        }
        sleep(Duration::from_millis(10)).await;
    }
    reader.reach_only(a);
    reader.read_now(0..1).await;
    other.reach_only(b);
    other.read_now(0..1).await;
    stage.heal();
    stage.finish_with_sessions().await
}

/// A client that hears of nothing any more, with a write that reaches neither of two nodes.
struct Unaware {
    stage: Rc<Stage>,
    nodes: [usize; 2],
    /// Attached to another volume.
    keeper: Volume,
    victim: Rc<Actor>,
    write: Begun,
}

impl Unaware {
    async fn set() -> Unaware {
        let stage = Stage::set(3, 2).await;
        let nodes = stage.holders().await;
        let (a, b) = (nodes[0], nodes[1]);
        // An older session, so that the map does not say of all sessions before the newest that they are over.
        stage.bed.create_volume("aside", 2, 1).await;
        let keeper = workload::attach(&stage.bed.managers(), "aside", "keeper", AttachMode::Shared).await;
        let victim = Actor::take(&stage, 0, "victim").await;
        until(&victim.write(0).done).await;
        victim.be_quiet().await;
        // What is true now is in the drive's checkpoint, and it has to read its entries anew.
        start_cold(&stage, b).await;
        victim.hear_of_nothing(true);
        [a, b].iter().for_each(|n| victim.cut_to(*n, true));
        let write = victim.write(0);
        Unaware { stage, nodes: [a, b], keeper, victim, write }
    }
}

/// A client has its volume taken away and does not hear of it. A node that refuses it starts again, and then a write
/// of the client reaches that node alone. `is_alone`: the node hears of nobody else at first.
pub async fn fenced_once(is_alone: bool) -> Result<(), String> {
    let Unaware { stage, nodes: [a, b], keeper, victim, write } = Unaware::set().await;
    let successor = Actor::take(&stage, 1, "successor").await;
    let settled = value(&successor).await?;
    let before = version(&stage, b, 0).await;
    stage.bed.kill_node(b, if is_alone { Crash::PowerCut } else { Crash::Process });
    if is_alone {
        cut_off(&stage, b, true);
        stage.cut(stage.host(a), stage.host(b), true);
    }
    stage.bed.start_node(b);
    sleep(if is_alone { about_ms(2, 2) } else { about_ms(20, 10) }).await;
    victim.lose_connection(b);
    victim.cut_to(b, false);
    for _ in 0..50 {
        if version(&stage, b, 0).await != before {
            break;
        }
        sleep(Duration::from_millis(1)).await;
    }
    sim::kill(write.process, Crash::Process);
    victim.cut_to(b, true);
    if is_alone {
        cut_off(&stage, b, false);
        stage.cut(stage.host(a), stage.host(b), false);
    }
    sleep(Duration::from_millis(50)).await;
    becomes(&stage, b, Role::InSync).await;
    for _ in 0..12 {
        let found = value(&successor).await?;
        if found != settled {
            return Err(format!(
                "a block changed from {settled} to {found} while its only client did nothing"
            ));
        }
    }
    stage.heal();
    successor.volume.detach().await;
    keeper.detach().await;
    stage.finish().await
}

/// A client has its volume taken away and does not hear of it. A node still waits, with the map of before, for a write to
/// another volume, when a write of the client reaches that node alone.
pub async fn fenced_late() -> Result<(), String> {
    let Unaware { stage, nodes: [_, b], keeper, victim, write } = Unaware::set().await;
    let begin = || {
        let writes = (0..16).map(|n| {
            let keeper = keeper.clone();
            spawn(async move { keeper.write_zeroes(n << 20, BLOCK_SIZE as u64).await })
        });
        writes.collect::<Vec<_>>()
    };
    let writes = with_slow_operation(&stage, b, Duration::from_millis(60), begin).await;
    stage.bed.create_volume("news", 2, 1).await;
    let successor = take_alone(&stage, "successor").await;
    let settled = value_of(&successor).await?;
    victim.cut_to(b, false);
    sleep(about_ms(2, 1)).await;
    victim.die(&write);
    for _ in 0..24 {
        let found = value_of(&successor).await?;
        if found != settled {
            return Err(format!(
                "a block changed from {settled} to {found} while its only client did nothing"
            ));
        }
        sleep(Duration::from_millis(5)).await;
    }
    for write in writes {
        let _ = write.await;
    }
    stage.heal();
    successor.detach().await;
    keeper.detach().await;
    stage.finish().await
}

/// What the first block holds.
async fn value(actor: &Actor) -> Result<Value, String> {
    value_of(&actor.volume).await
}

async fn value_of(volume: &Volume) -> Result<Value, String> {
    let parts = volume.read(0, BLOCK_SIZE as u64).await.map_err(|e| e.to_string())?;
    let bytes: Vec<u8> = parts.iter().flat_map(|b| b.iter().copied()).collect();
    Ok(read_value(0, &bytes))
}
