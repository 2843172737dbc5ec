//! The volumes that are made for clients, and deleted again whatever happens.

use super::ClientPlaces;
use crate::BenchError;
use crate::load::Load;
use crate::progress::progress;
use crate::tool::Tool;
use std::time::Duration;
use weft_api::{ApiRequest, FailureDomain};
use weft_client::{AttachMode, AttachOptions, Fabric};
use weft_rt::sync::{Either, race};
use weft_rt::{now, signal, sleep};

/// The copies of each block.
pub(crate) const COPIES: u8 = 2;

/// How long a volume may take to be gone, and how often it is looked whether it is.
const GONE_WITHIN: Duration = Duration::from_secs(60);
const GONE_LOOKED_AT: Duration = Duration::from_millis(100);

/// The volume of a client that has one for itself, counted from 0 on.
pub(crate) fn own_volume(client: u32) -> String {
    format!("weft-bench-{}", client + 1)
}

/// Makes a volume for each of so many clients, does something with them, and deletes them again, as [`with_volumes`] does.
///
/// # Errors
/// Those of [`with_volumes`].
pub(crate) async fn with_own_volumes<T>(
    places: &ClientPlaces,
    clients: u32,
    bytes: u64,
    measure: impl AsyncFnOnce(&mut Tool, &[String]) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let mut tool = Tool::new(places.managers.clone());
    let volumes: Vec<String> = (0..clients).map(own_volume).collect();
    let measure = async |tool: &mut Tool| measure(tool, &volumes).await;
    with_volumes(&mut tool, places, &volumes, bytes, measure).await
}

/// Makes volumes, does something with them, and deletes them again, also if it fails or this process is asked to end.
///
/// # Errors
/// What the manager refuses (a volume of that name is there already), what is done with them, and
/// [`BenchError::Interrupted`].
pub(crate) async fn with_volumes<T>(
    tool: &mut Tool,
    places: &ClientPlaces,
    names: &[String],
    bytes: u64,
    measure: impl AsyncFnOnce(&mut Tool) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    // Signals are held back from here on, and one that comes while volumes are made is kept until they are known.
    let asked_to_end = signal::terminated();
    let mut made = Vec::new();
    let measured = match make(tool, names, bytes, &mut made).await {
        Ok(()) => {
            let work = async {
                fill(places, names, bytes).await?;
                measure(tool).await
            };
            match race(asked_to_end, work).await {
                Either::Left(()) => Err(BenchError::Interrupted),
                Either::Right(measured) => measured,
            }
        }
        Err(error) => Err(error),
    };
    if matches!(measured, Err(BenchError::Interrupted)) {
        progress("ending: the volumes are deleted");
    }
    for name in made {
        if let Err(error) = unmake(tool, &name).await {
            tracing::warn!(volume = name, %error, "the volume stays behind");
        }
    }
    measured
}

/// Makes the volumes.
async fn make(
    tool: &mut Tool,
    names: &[String],
    bytes: u64,
    made: &mut Vec<String>,
) -> Result<(), BenchError> {
    for name in names {
        let request = ApiRequest::VolumeCreate {
            name: name.clone(),
            size_bytes: bytes,
            protection: weft_types::Protection::mirror(COPIES),
            pool: None,
            stripe_unit_bytes: None,
            width: None,
            failure_domain: FailureDomain::Node,
            thin: false,
            dry_run: false,
        };
        tool.ask("volume-create", &request).await?;
        made.push(name.clone());
    }
    Ok(())
}

/// Writes all of each volume, so that reads find data.
async fn fill(places: &ClientPlaces, names: &[String], bytes: u64) -> Result<(), BenchError> {
    let fabric = Fabric::connect(&places.managers, "weft bench").await?;
    for (n, name) in names.iter().enumerate() {
        progress(&format!("fill volume {} of {}", n + 1, names.len()));
        let attach = AttachOptions { mode: AttachMode::Exclusive, ..AttachOptions::default() };
        let volume = fabric.attach(name, attach).await?;
        let filled = Load::filling(0..bytes, n as u64).run(&volume).await;
        volume.detach().await;
        filled?;
    }
    Ok(())
}

/// Deletes a volume, and waits until it is gone: the next run needs its name.
async fn unmake(tool: &mut Tool, name: &str) -> Result<(), BenchError> {
    let request = ApiRequest::VolumeDelete { name: name.to_owned(), force: true, dry_run: false };
    tool.ask("volume-delete", &request).await?;
    let until = now() + GONE_WITHIN;
    let show = ApiRequest::VolumeShow { name: name.to_owned() };
    while now() < until && tool.ask("volume-show", &show).await.is_ok() {
        sleep(GONE_LOOKED_AT).await;
    }
    Ok(())
}
