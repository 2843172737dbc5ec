//! `weft fs shards`: which node serves which shard, and what it has to do.

use crate::connection::Connection;
use crate::error::CliError;
use crate::files::attached;
use crate::locate::FabricPlace;
use crate::output::Output;
use crate::paint::{Paint, Tone};
use crate::shards::{Unopened, opened, unopened, unopened_in_words};
use crate::size::Size;
use crate::span::span;
use crate::table::{Cell, Table, row};
use serde::Serialize;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, ShardServing};
use weft_client::AttachMode;
use weft_fs::Mount;
use weft_rt::sync::join_all;
use weft_rt::{now, sleep};
use weft_types::BLOCK_SIZE;
use weft_wire::files::ShardState;

/// Numbers of the tables of inodes and of entries, as `weft-meta` has them.
const INODES: u8 = 4;
const ENTRIES: u8 = 6;

/// Arguments of `weft fs shards`.
#[derive(Clone, Debug, clap::Args)]
pub struct FsShardsArgs {
    /// The file system's name
    pub name: String,
    /// For how many seconds rates are counted, 1 to 3600
    #[arg(long, value_name = "SECONDS", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub over: u64,
}

/// Who serves the shards, and what they do, for programs.
#[derive(Serialize)]
struct Served {
    file_system: String,
    is_spread: bool,
    /// For how long rates were counted.
    over_ms: u64,
    shards: Vec<Shard>,
    unopened: Vec<Unopened>,
}

/// A shard and its server, for programs.
#[derive(Serialize)]
struct Shard {
    shard: u16,
    server: Option<String>,
    served_ms: u64,
    /// Rises with each server that takes it.
    generation: u64,
    inodes: u64,
    names: u64,
    /// Operations that were answered, in a second.
    operations_per_second: f64,
    /// Bytes that were appended to its log, in a second.
    log_bytes_per_second: f64,
    /// Bytes that a server would replay.
    log_bytes: u64,
    /// Bytes of its newest checkpoint.
    checkpoint_bytes: u64,
}

pub(crate) async fn run(place: &FabricPlace, args: FsShardsArgs, output: Output) -> Result<(), CliError> {
    let name = &args.name;
    let unopened = unopened(place, name).await?;
    let answer = Connection::open(place).await?.ask(&ApiRequest::FsShow { name: name.clone() }).await?;
    let ApiAnswer::FileSystem { file_system, .. } = answer else {
        return Err(CliError::Failed {
            message: format!("the manager has not said what file system '{name}' is"),
            hint: "use the same version of weft on this side and for the manager".into(),
        });
    };
    let over = Duration::from_secs(args.over);
    let (states, over) = attached((place, name, AttachMode::ReadOnly), async |mount| {
        let shards: Vec<u16> = opened(mount, &unopened).collect();
        let (before, from) = (states_of(mount, &shards).await?, now());
        sleep(over).await;
        let (after, over) = (states_of(mount, &shards).await?, from.elapsed());
        let both = before.into_iter().zip(after);
        Ok((shards.into_iter().zip(both).collect::<Vec<_>>(), over))
    })
    .await?;
    let shards = states.iter().map(|(number, (before, after))| {
        shard(*number, file_system.servers.get(usize::from(*number)), (before, after), over)
    });
    let served = Served {
        file_system: name.clone(),
        is_spread: file_system.is_spread,
        over_ms: over.as_millis() as u64,
        shards: shards.collect(),
        unopened,
    };
    output.show(&served, in_words)
}

async fn states_of(mount: &Mount, shards: &[u16]) -> Result<Vec<ShardState>, CliError> {
    let asked = shards.iter().map(async |shard| Ok(mount.state_of_shard(*shard).await?));
    join_all(asked).await.into_iter().collect()
}

fn shard(
    number: u16,
    serving: Option<&ShardServing>,
    (before, after): (&ShardState, &ShardState),
    over: Duration,
) -> Shard {
    // Another server counts from 0.
    let is_same = before.generation == after.generation;
    let per_second = |count: fn(&ShardState) -> u64| {
        let from = if is_same { count(before) } else { 0 };
        count(after).saturating_sub(from) as f64 / over.as_secs_f64()
    };
    let items = |wanted: u8| after.tables.iter().find(|(table, _)| *table == wanted).map_or(0, |(_, n)| *n);
    Shard {
        shard: number,
        server: serving.and_then(|serving| serving.server.clone()),
        served_ms: after.served_ms,
        generation: after.generation,
        inodes: items(INODES),
        names: items(ENTRIES),
        operations_per_second: per_second(|state| state.operations),
        log_bytes_per_second: per_second(|state| state.appended_blocks * BLOCK_SIZE as u64),
        log_bytes: after.log_next.saturating_sub(after.log_from) * BLOCK_SIZE as u64,
        checkpoint_bytes: after.pages * BLOCK_SIZE as u64,
    }
}

fn in_words(served: &Served, paint: Paint) -> String {
    let mut table = Table::new(&[
        ">SHARD",
        "SERVER",
        "SERVED",
        ">GENERATION",
        ">INODES",
        ">NAMES",
        ">OPERATIONS/S",
        ">LOG/S",
        ">LOG",
        ">CHECKPOINT",
    ]);
    for shard in &served.shards {
        let server = match &shard.server {
            Some(server) => Cell::from(server.as_str()),
            None => Cell::new("none", Tone::Warning),
        };
        table.row(row![
            &shard.shard,
            server,
            span(Duration::from_millis(shard.served_ms)),
            &shard.generation,
            &shard.inodes,
            &shard.names,
            format!("{:.0}", shard.operations_per_second),
            Size(shard.log_bytes_per_second as u64).to_string(),
            Size(shard.log_bytes).to_string(),
            Size(shard.checkpoint_bytes).to_string()
        ]);
    }
    let mut text = table.render(paint);
    text.push_str(&unopened_in_words(&served.unopened, paint));
    if !served.is_spread && served.shards.len() > 1 {
        text.push_str(
            "All names are in shard 0; `weft fs create --spread` puts directories in all shards.\n",
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(generation: u64, operations: u64) -> ShardState {
        let tables = vec![(INODES, 7), (ENTRIES, 9)];
        ShardState {
            generation,
            operations,
            appended_blocks: 2 * operations,
            tables,
            ..ShardState::default()
        }
    }

    #[test]
    fn rates_begin_again_with_another_server() {
        let over = Duration::from_secs(2);
        let same = shard(0, None, (&state(3, 100), &state(3, 160)), over);
        assert_eq!((same.operations_per_second, same.inodes, same.names), (30.0, 7, 9));
        assert_eq!(same.log_bytes_per_second, 30.0 * 2.0 * BLOCK_SIZE as f64);
        let other = shard(0, None, (&state(3, 100), &state(4, 10)), over);
        assert_eq!((other.operations_per_second, other.generation), (5.0, 4));
    }
}
