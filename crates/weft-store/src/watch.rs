//! Looks whether the drive still completes anything: one that hangs reports no error, and whoever waits for
//! it would wait for ever.
//!
//! It owns when a drive hangs: while something is under way and nothing completes. A drive that is slow
//! completes something now and then, however late, and is left alone. An idle drive is asked for a block,
//! so that it is not found out by a client. It never decides what becomes of the drive: the store fails as
//! with any I/O error.

use crate::StoreError;
use crate::engine::Engine;
use crate::region::RegionMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use weft_rt::sync::race;
use weft_rt::{Drive, sleep_about};
use weft_types::BLOCK_SIZE;
use weft_types::limits::DRIVE_SILENCE_SECONDS_MAX;

/// How often it is looked. What stands still between two looks counts, not what the clock says: a process
/// that was paused has seen nothing of its drive meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Completes when the drive hangs.
pub(crate) async fn hangs(drive: &Drive) -> StoreError {
    let mut before = drive.progress();
    let mut silent = 0;
    // The question to an idle drive; it is dropped with everything else when the store is closed.
    let mut question: Option<Pin<Box<dyn Future<Output = ()>>>> = None;
    loop {
        let asking = poll_fn(|cx| {
            if question.as_mut().is_some_and(|question| question.as_mut().poll(cx).is_ready()) {
                question = None;
            }
            Poll::<()>::Pending
        });
        race(sleep_about(LOOK_EVERY), asking).await;
        let seen = drive.progress();
        let is_still = seen.completed == before.completed;
        silent = if is_still && seen.under_way > 0 { silent + 1 } else { 0 };
        if silent >= DRIVE_SILENCE_SECONDS_MAX {
            return StoreError::Hangs { seconds: silent };
        }
        if is_still && question.is_none() {
            let drive = drive.clone();
            // Whether the block can be read does not matter.
            let asked = async move { drop(drive.read(RegionMap::LABEL_A.offset(), BLOCK_SIZE).await) };
            question = Some(Box::pin(asked));
        }
        before = seen;
    }
}

/// Fails the store once its drive hangs.
pub(crate) async fn run(engine: Rc<Engine>) {
    let error = hangs(&engine.drive).await;
    // First the cause: what is under way fails with less to say.
    engine.fail(&error);
    engine.drive.give_up();
}
