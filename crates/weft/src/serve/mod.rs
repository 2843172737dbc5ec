//! `weft volume serve`: volumes for NBD clients.

use crate::manager::bind;
use crate::room::room_bytes;
use crate::stop::asked_to_stop;
use std::time::Duration;
use weft_cli::{CliError, Connection, FabricPlace, Output, VolumeServeArgs, client_name, note};
use weft_client::export::Exports;
use weft_client::{AttachMode, AttachOptions, ClientError, Fabric, Volume};
use weft_nbd::NbdServer;
use weft_rt::sync::{Either, race};
use weft_rt::{Addr, sleep};
use weft_types::with_causes;

/// How often it is looked whether the sessions go on: soon enough for whoever waits for the server to end.
const SESSIONS_LOOKED_AT: Duration = Duration::from_millis(500);

/// How long to wait before a volume that is in use is asked for again: short for a person, long for
/// the manager.
const ATTACH_RETRY: Duration = Duration::from_secs(1);

/// What is served, for programs.
#[derive(serde::Serialize)]
struct Served {
    mode: AttachMode,
    exports: Vec<Export>,
}

#[derive(serde::Serialize)]
struct Export {
    volume: String,
    uri: String,
    size_bytes: u64,
}

pub(crate) async fn serve(args: VolumeServeArgs, place: FabricPlace, output: Output) -> Result<(), CliError> {
    args.transport.apply();
    let mut volumes = Vec::new();
    let mut server = None;
    let served = race(asked_to_stop(None), run(&args, &place, output, &mut volumes, &mut server)).await;
    if let Some(server) = server {
        server.stop().await;
    }
    for volume in volumes {
        volume.detach().await;
    }
    match served {
        Either::Left(()) => Ok(()),
        Either::Right(ended) => ended,
    }
}

async fn run(
    args: &VolumeServeArgs,
    place: &FabricPlace,
    output: Output,
    volumes: &mut Vec<Volume>,
    running: &mut Option<NbdServer>,
) -> Result<(), CliError> {
    let mut named = args.names.clone();
    named.sort();
    if let Some(twice) = named.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(CliError::Usage {
            message: format!("volume {} is named twice", twice[0]),
            hint: "name each volume once".into(),
        });
    }
    let listener = bind(&args.nbd, "--nbd").await?;
    let mode = match (args.shared, args.read_only) {
        (_, true) => AttachMode::ReadOnly,
        (true, false) => AttachMode::Shared,
        (false, false) => AttachMode::Exclusive,
    };
    // Asked first, because its error says where the fabric was looked for and what to do.
    Connection::open(place).await?;
    let fabric = Fabric::connect(&place.managers()?, &format!("nbd {}", client_name())).await?;
    let mut exports = Exports::new();
    let mut served = Served { mode, exports: Vec::new() };
    for name in &args.names {
        let options = AttachOptions { mode, preempt: args.preempt, ..AttachOptions::default() };
        let volume = attach(&fabric, name, options, args.wait).await?;
        volumes.push(volume.clone());
        served.exports.push(Export {
            volume: name.clone(),
            uri: uri(&listener.local_addr(), name),
            size_bytes: volume.size_bytes(),
        });
        exports
            .add(name, volume)
            .map_err(|e| CliError::Usage { message: e.to_string(), hint: "name each volume once".into() })?;
    }
    output.show(&served, |s, _| s.exports.iter().map(|e| format!("{}\n", e.uri)).collect())?;
    let server = running.insert(NbdServer::with_room(exports, room_bytes(1)));
    match race(server.run(listener), all_over(volumes)).await {
        Either::Left(()) => Ok(()),
        Either::Right(error) => Err(error),
    }
}

/// Attaches a volume. With `waits`, it tries again for as long as the manager refuses, and says why
/// it waits.
async fn attach(
    fabric: &Fabric,
    name: &str,
    options: AttachOptions,
    waits: bool,
) -> Result<Volume, ClientError> {
    let mut told = false;
    loop {
        match fabric.attach(name, options.clone()).await {
            Err(ClientError::Refused { message }) if waits => {
                if !std::mem::replace(&mut told, true) {
                    note(&format!("waiting: {message}"));
                }
                sleep(ATTACH_RETRY).await;
            }
            other => return other,
        }
    }
}

/// Tells which volumes can no longer be served, because another client took them over, their session was ended
/// or they were deleted; returns when none is left: a server that can only refuse should end, so that it is
/// started again.
async fn all_over(volumes: &[Volume]) -> CliError {
    let mut left: Vec<&Volume> = volumes.iter().collect();
    loop {
        let mut last = None;
        for volume in std::mem::take(&mut left) {
            match why_over(volume).await {
                None => left.push(volume),
                Some(why) => last = Some(why),
            }
        }
        match last {
            Some(why) if left.is_empty() => {
                return CliError::Failed {
                    message: format!("nothing is left to serve: {why}"),
                    hint: "see `weft events` for what happened, then serve the volumes again".into(),
                };
            }
            Some(why) => note(&format!("a volume is not served any more: {why}")),
            None => sleep(SESSIONS_LOOKED_AT).await,
        }
    }
}

/// Why a volume can no longer be served, as far as its client knows: one that nobody uses finds out that it was
/// taken over only with its next request.
async fn why_over(volume: &Volume) -> Option<String> {
    // Costs nothing: completed writes are durable, so it only looks at the session.
    match volume.flush().await {
        // The manager knows why; the first word of it was that of a target or a map.
        Err(error) => Some(with_causes(&volume.why_over().await.unwrap_or(error))),
        // No volume is that small, so the map does not have it any more.
        Ok(()) if volume.size_bytes() == 0 => Some(format!("volume '{}' was deleted", volume.name())),
        Ok(()) => None,
    }
}

/// The export's address as clients write it (NBD project, `doc/uri.md`).
fn uri(addr: &Addr, name: &str) -> String {
    match addr {
        Addr::Tcp(addr) => format!("nbd://{addr}/{name}"),
        Addr::Unix(path) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            format!("nbd+unix:///{name}?socket={}", path.display())
        }
    }
}
