//! Puts so many requests on a volume from a single thread, and ends: the client of `make bench-instructions`, for a tool
//! that runs one thread at a time and for which a clock is no measure.
//!
//! usage: `one_thread MANAGER VOLUME tcp|shm read|write BYTES DEPTH REQUESTS`

use std::process::ExitCode;
use weft_bench::{Amount, Load};
use weft_client::{AttachOptions, Fabric};

/// That of `weft`, so that the same is counted.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match load_of(&args) {
        Some(load) => match weft_rt::block_on(run(args[0].clone(), args[1].clone(), load)) {
            Ok(Ok(())) => ExitCode::SUCCESS,
            Ok(Err(said)) => fail(&said),
            Err(error) => fail(&error.to_string()),
        },
        None => {
            eprintln!("usage: one_thread MANAGER VOLUME tcp|shm read|write BYTES DEPTH REQUESTS");
            ExitCode::from(2)
        }
    }
}

fn load_of(args: &[String]) -> Option<Load> {
    let [_, _, transport, rw, block_size, depth, requests] = args else { return None };
    let read_percent = match rw.as_str() {
        "read" => 100,
        "write" => 0,
        _ => return None,
    };
    weft_rpc::shm::set_shared_memory(transport == "shm");
    Some(Load {
        read_percent,
        block_size: block_size.parse().ok()?,
        depth: depth.parse().ok()?,
        amount: Amount::Requests(requests.parse().ok()?),
        ..Load::default()
    })
}

async fn run(manager: String, volume: String, load: Load) -> Result<(), String> {
    let manager = manager.parse().map_err(|e| format!("{manager:?}: {e}"))?;
    let fabric = Fabric::connect(&[manager], "one thread").await.map_err(|e| e.to_string())?;
    let volume = fabric.attach(&volume, AttachOptions::default()).await.map_err(|e| e.to_string())?;
    let done = load.run(&volume).await.map_err(|e| e.to_string());
    volume.detach().await;
    done.map(drop)
}

fn fail(said: &str) -> ExitCode {
    eprintln!("error: {said}");
    ExitCode::FAILURE
}
