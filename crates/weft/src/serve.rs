//! `weft volume serve`: volumes for NBD clients.

use crate::manager::bind;
use crate::stop::asked_to_stop;
use weft_cli::{CliError, Connection, FabricPlace, Output, VolumeServeArgs, client_name};
use weft_client::{AttachMode, AttachOptions, Fabric, Volume};
use weft_nbd::{Exports, NbdServer};
use weft_rt::Addr;
use weft_rt::sync::{Either, race};

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
    let listener = bind(&args.nbd, "--nbd")?;
    let mode = match (args.shared, args.read_only) {
        (_, true) => AttachMode::ReadOnly,
        (true, false) => AttachMode::Shared,
        (false, false) => AttachMode::Exclusive,
    };
    // Asked first, because its error says where the fabric was looked for and what to do.
    Connection::open(place).await?;
    let fabric = Fabric::connect(&place.managers(), &format!("nbd {}", client_name())).await?;
    let mut exports = Exports::new();
    let mut served = Served { mode, exports: Vec::new() };
    for name in &args.names {
        let options = AttachOptions { mode, preempt: args.preempt, ..AttachOptions::default() };
        let volume = fabric.attach(name, options).await?;
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
    running.insert(NbdServer::new(exports)).run(listener).await;
    Ok(())
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
