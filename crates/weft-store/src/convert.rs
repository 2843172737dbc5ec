//! Conversion: a drive of an older format gets the present one when a store opens it.
//!
//! ```text
//!   everything was read, the log was replayed in RAM
//!     -> label A of the present format -> flush -> label B -> flush
//!     -> checkpoint: state, some pages of the block map, superblock
//!     -> further checkpoints, in the background: the rest of the block map
//! ```
//!
//! The order is what makes it safe. Until label A is durable nothing but labels has changed, and an
//! older program opens the drive as it is; from then on it refuses the drive, so it never meets anything
//! that it would misread. Of this program's openings each goes on where the one before was cut off: the
//! superblock says which format the checkpoint has, each page says its own, and each record of the log
//! has the number of its form.

use crate::StoreError;
use crate::engine::Engine;
use crate::label::FORMAT_VERSION;
use crate::region::RegionMap;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::timeout;

/// How long clients have the drive for themselves between two checkpoints of the conversion, each of
/// which writes what they have changed as well. With 8 MiB of the block map at a time it takes a minute
/// for 1 TiB of data, which has about 1 GiB.
const PAUSE: Duration = Duration::from_millis(500);

/// Raises the labels, which have format `label_format`, to the present format. Returns whether the
/// checkpoint has an older format, so that one has to follow.
///
/// # Errors
/// `NoSpace` if the checkpoint would have no room: then nothing was changed. Those of the drive.
pub(crate) async fn begin(engine: &Engine, label_format: u16) -> Result<bool, StoreError> {
    let is_old = {
        let state = engine.state.borrow();
        let is_old = state.superblock.format < FORMAT_VERSION;
        let (needed_blocks, free_blocks) = (state.bare_need(state.map.changed_leaves()), state.bitmap.free());
        if is_old && needed_blocks > free_blocks {
            return Err(StoreError::NoSpace { needed_blocks, free_blocks });
        }
        is_old
    };
    let label = engine.label;
    if label_format < FORMAT_VERSION {
        for place in [RegionMap::LABEL_A, label.region.label_b()] {
            label.write(&engine.drive, &[place]).await?;
            engine.flush().await?;
        }
    }
    if is_old {
        let (from, to) = (engine.state.borrow().superblock.format, FORMAT_VERSION);
        tracing::info!(drive = %label.drive, from, to, "the drive gets a newer format");
    }
    Ok(is_old)
}

/// Takes checkpoints until the whole block map has the present format, or the store is stopped or fails.
pub(crate) async fn run(engine: Rc<Engine>) {
    loop {
        let was_woken = timeout(PAUSE, engine.checkpointed.notified()).await.is_ok();
        let (conversions, before) = {
            let state = engine.state.borrow();
            if state.is_stopped || state.failed.is_some() || !state.is_converting() {
                return;
            }
            (state.conversions(), state.figures.pages_converted)
        };
        if was_woken {
            // A checkpoint that something else wanted has converted as much.
        } else if conversions == 0 {
            // The drive is full: only what clients change is rewritten, until there is room.
            engine.checkpointed.notified().await;
        } else if engine.checkpoint().await.is_err() {
            return;
        } else if engine.state.borrow().figures.pages_converted == before {
            // What stands for "not known" is a version, the very last one: no page needs to be old to
            // have it.
            return;
        }
    }
}
