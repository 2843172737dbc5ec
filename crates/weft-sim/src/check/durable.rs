//! Every acknowledged write can be read in the end, by a client that was not there before: what it reads goes into the
//! history, where an older value has no place.

use crate::clients::Party;
use crate::workload::{self, Blocks};
use std::time::Duration;
use weft_checker::History;
use weft_client::AttachMode;
use weft_rt::timeout;

/// Virtual time in which one block must have been read: nothing is wrong any more.
const BLOCK_WITHIN: Duration = Duration::from_secs(20);

/// Reads every block of a party's volume or file system that was touched.
///
/// # Errors
/// The first that cannot be read, or not in time.
pub async fn check(party: &Party) -> Result<(), String> {
    if party.of_files {
        let attached = workload::attach_file_system(&party.managers, &party.volume, "reader").await;
        read_all(&party.volume, &attached, &party.history).await?;
        attached.detach().await;
        return Ok(());
    }
    let attached = workload::attach(&party.managers, &party.volume, "reader", AttachMode::Shared).await;
    read_all(&party.volume, &attached, &party.history).await?;
    attached.detach().await;
    Ok(())
}

async fn read_all(volume: &str, attached: &impl Blocks, history: &History) -> Result<(), String> {
    for block in history.blocks() {
        let read = timeout(BLOCK_WITHIN, workload::read("reader", attached, history, block, 1)).await;
        match read {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(format!("volume {volume}, block {block}: {error}")),
            Err(_) => return Err(format!("volume {volume}, block {block}: not read in {BLOCK_WITHIN:?}")),
        }
    }
    Ok(())
}
