//! Every acknowledged write can be read in the end, by a client that was not there before: what it reads goes into the
//! history, where an older value has no place.

use crate::workload;
use std::time::Duration;
use weft_checker::History;
use weft_client::AttachMode;
use weft_rt::{Addr, timeout};

/// Virtual time in which one block must have been read: nothing is wrong any more.
const BLOCK_WITHIN: Duration = Duration::from_secs(20);

/// Reads every block of a volume that was touched.
///
/// # Errors
/// The first that cannot be read, or not in time.
pub async fn check(managers: &[Addr], volume: &str, history: &History) -> Result<(), String> {
    let attached = workload::attach(managers, volume, "reader", AttachMode::Shared).await;
    for block in history.blocks() {
        let read = timeout(BLOCK_WITHIN, workload::read("reader", &attached, history, block, 1)).await;
        match read {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(format!("volume {volume}, block {block}: {error}")),
            Err(_) => return Err(format!("volume {volume}, block {block}: not read in {BLOCK_WITHIN:?}")),
        }
    }
    attached.detach().await;
    Ok(())
}
