//! What a host knows of the fabric, and asks of its manager.

use super::host_member::{ask, ask_status, place_of, runs};
use super::host_mount::{answers, is_mounted};
use super::message::{FabricWord, HostStatus};
use super::on_host::Work;
use super::record::FILE_SYSTEM;
use crate::error::CliError;
use crate::files::{own_ids, own_root};
use crate::local::free_bytes;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, Health};
use weft_rt::{now, sleep, timeout};
use weft_types::{DriveState, Protection};

/// How long drives of nodes that are up may take to be part of the fabric.
const DRIVES_MAX: Duration = Duration::from_secs(30);

/// How long the manager may take to create the file system.
const CREATE_MAX: Duration = Duration::from_secs(60);

/// How long the manager may take to hear that everything is about to stop.
const ANNOUNCE_MAX: Duration = Duration::from_secs(3);

const POLL: Duration = Duration::from_millis(50);

/// Creates the file system, once all drives are there; not a second time.
pub(super) async fn create(
    work: &Work<'_>,
    drives: usize,
    copies: u8,
    shards: Option<u32>,
) -> Result<(), CliError> {
    let manager = work.place.record()?.manager;
    await_drives(work, &manager, drives).await?;
    let name = FILE_SYSTEM.to_owned();
    if let Ok(ApiAnswer::FileSystem { .. }) = ask(&manager, &ApiRequest::FsShow { name: name.clone() }).await
    {
        return Ok(());
    }
    let request = ApiRequest::FsCreate {
        name,
        protection: Protection::mirror(copies),
        pool: None,
        shards,
        // Each rank of a job has a directory of its own, more often than not.
        is_spread: shards != Some(1),
        stripe_unit_bytes: None,
        width: None,
        failure_domain: Default::default(),
        dry_run: false,
    };
    let created = timeout(CREATE_MAX, ask(&manager, &request)).await;
    created.map_err(|_| CliError::Failed {
        message: format!("the manager has not created it within {} s", CREATE_MAX.as_secs()),
        hint: "its log says more".into(),
    })??;
    // The root of a new file system is root's, who is not there to give it away.
    match own_ids().0 {
        0 => Ok(()),
        _ => own_root(&place_of(&manager)?, FILE_SYSTEM).await,
    }
}

async fn await_drives(work: &Work<'_>, manager: &str, drives: usize) -> Result<(), CliError> {
    let began = now();
    loop {
        work.check()?;
        let active = match ask(manager, &ApiRequest::DriveList {}).await? {
            ApiAnswer::Drives { drives, .. } => {
                drives.iter().filter(|drive| drive.state == DriveState::Active).count()
            }
            _ => return Err(CliError::wrong_answer(manager)),
        };
        if active >= drives {
            return Ok(());
        }
        if began.elapsed() > DRIVES_MAX {
            return Err(CliError::Failed {
                message: format!("{active} of {drives} drives are part of the fabric"),
                hint: "the logs of the nodes say which are left out, and why".into(),
            });
        }
        sleep(POLL).await;
    }
}

/// Says to the manager that everything is about to stop, so that it takes no node for lost. If the manager
/// does not answer, the stop goes on.
pub(super) async fn announce(work: &Work<'_>) -> Result<(), CliError> {
    let manager = work.place.record()?.manager;
    let _ = timeout(ANNOUNCE_MAX, ask(&manager, &ApiRequest::FabricStop {})).await;
    Ok(())
}

/// How this host is.
pub(super) async fn status(work: &Work<'_>, fabric: bool) -> Result<HostStatus, CliError> {
    let (place, record) = (work.place, work.place.record()?);
    let mounted = is_mounted(&record.mountpoint);
    let word = match fabric {
        true => ask_status(&record.manager).await,
        false => None,
    };
    let copies = u64::from(record.copies).max(1);
    Ok(HostStatus {
        state: record.state.word().to_owned(),
        node: runs(place, "node"),
        manager: record.has_manager().then(|| runs(place, "manager")),
        mounted,
        answers: mounted && answers(&record.mountpoint),
        free_bytes: free_bytes(&place.0).unwrap_or(0),
        fabric: word.map(|status| FabricWord {
            health: match status.health {
                Health::Healthy => "healthy",
                Health::Degraded => "degraded",
                Health::Unavailable => "unavailable",
            }
            .to_owned(),
            reasons: status.reasons.clone(),
            size_bytes: status.pools.iter().map(|pool| pool.raw_bytes).sum::<u64>() / copies,
            used_bytes: status.pools.iter().map(|pool| pool.used_bytes).sum::<u64>() / copies,
        }),
    })
}
