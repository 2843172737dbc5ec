//! Operations that wait in a shard because too many changes are under way, while their session ends: from
//! then on none of them is decided (F1).

use super::actor::take_alone;
use super::stage::Stage;
use crate::clients::client_host;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_meta::{Shard, ShardFormat, ShardName, VolumeMedium, open_or_format};
use weft_rt::sim;
use weft_rt::sync::{join_all, oneshot};
use weft_rt::{random_below, sleep, spawn, timeout};
use weft_types::{InodeNumber, SessionId};
use weft_wire::files::{FileRequest, Operation, XattrMode};

/// Blocks of the log: the fewest that there may be.
const LOG_BLOCKS: u32 = 1024;

/// Operations, and bytes of each: together some batches of the log.
const OPERATIONS: u64 = 60;
const BYTES: usize = 60_000;

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let stage = Stage::set(3, 2).await;
    let (ended, end) = oneshot();
    let of_process = stage.clone();
    sim::spawn_process(client_host(0), "meta", async move {
        let volume = take_alone(&of_process, "meta").await;
        let name = ShardName { file_system: 5, shard: 0 };
        let format = ShardFormat { log_blocks: LOG_BLOCKS, ..ShardFormat::new(name, [3; 16], [0; 12]) };
        match open_or_format(VolumeMedium::new(volume), &format).await {
            Ok(shard) => ended.send(wait(&of_process, shard).await),
            Err(error) => ended.send(Err(error.to_string())),
        }
    });
    match timeout(Duration::from_secs(30), end).await {
        Ok(Some(found)) => found,
        _ => Err("it does not end".to_owned()),
    }
}

async fn wait(stage: &Rc<Stage>, shard: Shard<VolumeMedium>) -> Result<(), String> {
    let is_over = Rc::new(Cell::new(false));
    let cut = |is_cut| (0..3).for_each(|node| stage.cut(client_host(0), stage.host(node), is_cut));
    cut(true);
    let under_way = (1..=OPERATIONS).map(|number| {
        let (shard, is_over) = (shard.clone(), is_over.clone());
        let name = format!("user.{number}").into_bytes();
        let operation = Operation::SetXattr(InodeNumber::ROOT, name, vec![1; BYTES], XattrMode::Create);
        let request = FileRequest { session: SessionId(7), number, answered: 0, operation };
        async move {
            let may = || if is_over.get() { Err(()) } else { Ok(()) };
            shard.serve_if(&request, may).await
        }
    });
    let under_way = spawn(join_all(under_way.collect::<Vec<_>>()));
    sleep(Duration::from_millis(1 + random_below(20))).await;
    is_over.set(true);
    let decided = shard.with_tables(|tables| tables.items().count());
    cut(false);
    under_way.await.map_err(|_| "it was killed".to_owned())?;
    let then = shard.with_tables(|tables| tables.items().count());
    match then == decided {
        true => Ok(()),
        false => Err(format!("{} items have come after the session ended", then - decided)),
    }
}
