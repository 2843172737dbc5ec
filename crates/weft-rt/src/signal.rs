//! Signals: the wish of a person or of a service manager that the process ends.

use crate::executor::with_core;
use crate::uring::Signals;
use std::future::Future;

/// Completes when the process is asked to end (SIGINT or SIGTERM). From this call on, not only from the first
/// poll, the two no longer end the process by themselves; one that comes while nobody waits is kept. Once it
/// has completed, every later call completes at once, and a second signal ends the process the hard way.
///
/// The signals are taken from the calling thread and those it starts later. Threads that were started before
/// must block them themselves, or they end the process. Under simulation it never completes.
pub fn terminated() -> impl Future<Output = ()> {
    let watched = with_core(|core| match core.uring() {
        Some(driver) => {
            if let Err(error) = driver.signals.watch() {
                tracing::warn!(%error, "cannot watch for signals; they will end the process at once");
            }
            true
        }
        None => false,
    });
    async move {
        match watched {
            true => Signals::came().await,
            false => std::future::pending().await,
        }
    }
}
