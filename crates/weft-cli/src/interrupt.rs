//! Ctrl-C and SIGTERM: work that is ended in order instead of at any point.

use std::future::Future;
use weft_rt::signal;
use weft_rt::sync::{Either, race};

/// Runs the work to its end; none if SIGINT or SIGTERM came first.
///
/// Threads may only be started inside of the work: they then inherit that these signals are held back.
pub(crate) async fn unless_interrupted<F: Future>(work: F) -> Option<F::Output> {
    match race(signal::terminated(), work).await {
        Either::Left(()) => None,
        Either::Right(output) => Some(output),
    }
}
