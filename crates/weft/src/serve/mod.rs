//! `weft volume serve`: volumes for NBD clients.

mod lanes;

use crate::manager::bind;
use crate::room::room_bytes;
use crate::stop::asked_to_stop;
use lanes::Lanes;
use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::Duration;
use weft_cli::{CliError, Connection, FabricPlace, Output, Sector, VolumeServeArgs, client_name, note};
use weft_client::export::Exports;
use weft_client::{AttachMode, AttachOptions, ClientError, Fabric, Volume};
use weft_metrics::{ExportConnections, process_load, server_page};
use weft_nbd::{LaneConnections, NbdServer};
use weft_rt::sync::{Either, race};
use weft_rt::{Addr, Listener, sleep, spawn};
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
    /// Bytes of the smallest request.
    logical_block_bytes: u32,
    /// Threads that serve it.
    lanes: usize,
}

pub(crate) async fn serve(args: VolumeServeArgs, place: FabricPlace, output: Output) -> Result<(), CliError> {
    args.transport.apply();
    let mut volumes = Vec::new();
    let (mut server, mut lanes) = (None, Lanes::default());
    let serving = run(&args, &place, output, &mut volumes, &mut server, &mut lanes);
    let served = race(asked_to_stop(None), serving).await;
    if let Some(server) = server {
        server.stop().await;
    }
    lanes.ended().await;
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
    lanes: &mut Lanes,
) -> Result<(), CliError> {
    let mut named = args.names.clone();
    named.sort();
    if let Some(twice) = named.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(CliError::Usage {
            message: format!("volume {} is named twice", twice[0]),
            hint: "name each volume once".into(),
        });
    }
    let options = attach_options(args)?;
    let mode = options.mode;
    let listener = bind(&args.nbd, "--nbd").await?;
    let metrics = match &args.metrics {
        Some(addr) => Some(bind(addr, "--metrics").await?),
        None => None,
    };
    // Asked first, because its error says where the fabric was looked for and what to do.
    Connection::open(place).await?;
    let fabric = Fabric::connect(&place.managers()?, &format!("nbd {}", client_name())).await?;
    let mut exports = Exports::new();
    let mut served = Served { mode, exports: Vec::new() };
    for name in &args.names {
        let volume = attach(&fabric, name, options.clone(), args.wait).await?;
        volumes.push(volume.clone());
        let export = Export {
            volume: name.clone(),
            uri: uri(&listener.local_addr(), name),
            size_bytes: volume.size_bytes(),
            logical_block_bytes: volume.logical_block(),
            lanes: volume.lanes(),
        };
        tell_lanes(args, &export);
        served.exports.push(export);
        exports
            .add(name, volume)
            .map_err(|e| CliError::Usage { message: e.to_string(), hint: "name each volume once".into() })?;
    }
    let threads = volumes.iter().map(Volume::lanes).max().unwrap_or(1);
    let server = running.insert(NbdServer::with_room(exports, room_bytes(threads as u64)));
    lanes.start(&args.transport, volumes, server, room_bytes(threads as u64)).await?;
    metrics.into_iter().for_each(|listener| serve_metrics(listener, server));
    output.show(&served, |s, _| s.exports.iter().map(|e| format!("{}\n", e.uri)).collect())?;
    match race(server.run(listener), all_over(volumes)).await {
        Either::Left(()) => Ok(()),
        Either::Right(error) => Err(error),
    }
}

/// Says from now on who is connected to what.
fn serve_metrics(listener: Listener, server: &NbdServer) {
    let server = server.clone();
    spawn(weft_metrics::serve(listener, move || {
        let server = server.clone();
        async move {
            let of = |lane: LaneConnections| ExportConnections {
                volume: lane.export,
                lane: lane.lane,
                connections: lane.connections,
            };
            let connections: Vec<_> = server.lane_connections().into_iter().map(of).collect();
            server_page(&connections, &process_load())
        }
    }));
}

/// Cores that this process may use, 1 at least.
fn cores() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// How the volumes are attached: with several lanes, blocks have 4096 bytes (P9).
///
/// # Errors
/// If blocks of 512 bytes are asked for where there are none.
fn attach_options(args: &VolumeServeArgs) -> Result<AttachOptions, CliError> {
    let mode = match (args.shared, args.read_only) {
        (_, true) => AttachMode::ReadOnly,
        (true, false) => AttachMode::Shared,
        (false, false) => AttachMode::Exclusive,
    };
    let lanes = args.lanes_on(cores());
    if args.sector == Some(Sector::Bytes512) {
        let refuse = |what: &str, hint: &str| {
            Err(CliError::Usage { message: format!("--sector 512 {what}"), hint: hint.to_owned() })
        };
        if lanes > 1 {
            return refuse(
                &format!("and --lanes {lanes}: a volume with blocks of 512 bytes has one lane"),
                "choose --sector 4096, or --lanes 1",
            );
        }
        if mode != AttachMode::Exclusive {
            return refuse(
                "needs an exclusive attach: others could change the rest of a block meanwhile",
                "leave --shared and --read-only out, or choose --sector 4096",
            );
        }
    }
    let whole_blocks = lanes > 1 || args.sector == Some(Sector::Bytes4096);
    let preempt = args.preempt;
    Ok(AttachOptions { mode, preempt, lanes, whole_blocks, ..AttachOptions::default() })
}

/// Says what is not as a person may expect: the size of blocks that follows from lanes, and lanes that the
/// manager has not given.
fn tell_lanes(args: &VolumeServeArgs, export: &Export) {
    let Export { volume, lanes, logical_block_bytes, .. } = export;
    let wanted = args.lanes_on(cores());
    if wanted > 1 {
        let why = match args.lanes {
            Some(_) => String::new(),
            None => format!(" (one for eight cores, of which there are {})", cores()),
        };
        note(&format!(
            "volume '{volume}' is served by {lanes} {}{why}, with blocks of {logical_block_bytes} bytes",
            if *lanes == 1 { "lane" } else { "lanes" }
        ));
    }
    if *lanes < wanted {
        note(&format!(
            "the manager gave {lanes} of {wanted} lanes: all nodes have to be up and run this release, and \
             session slots have to be left"
        ));
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

/// Tells which volumes can no longer be served, because another client took them over, their session was
/// ended or they were deleted; returns when none is left: a server that can only refuse should end, so that
/// it is started again.
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

/// Why a volume can no longer be served, as far as its client knows: one that nobody uses finds out that it
/// was taken over only with its next request.
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
