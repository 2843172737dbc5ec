//! When a daemon ends: at a signal, or with the process that started it.

use std::future::pending;
use std::time::Duration;
use weft_cli::ProcessId;
use weft_rt::sync::{Either, race};
use weft_rt::{signal, sleep};

/// How often the starter of a daemon is looked at: a second later is soon enough, and costs next to nothing.
const SUPERVISOR_POLL: Duration = Duration::from_secs(1);

/// Completes when this daemon should end. SIGINT and SIGTERM are held back from the first poll on, also in
/// threads that are started later.
pub(crate) async fn asked_to_stop(supervisor: Option<ProcessId>) {
    let signalled = async {
        signal::terminated().await;
        tracing::info!("asked to stop");
    };
    let abandoned = async {
        let Some(supervisor) = supervisor else { return pending().await };
        while supervisor.is_alive() {
            sleep(SUPERVISOR_POLL).await;
        }
        tracing::warn!(%supervisor, "the process that started this one has ended");
    };
    match race(signalled, abandoned).await {
        Either::Left(()) | Either::Right(()) => {}
    }
}
