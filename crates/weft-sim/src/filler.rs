//! A client that fills all drives with a volume of its own, and gives the room back.

use crate::bed::Bed;
use std::rc::Rc;
use std::time::Duration;
use weft_checker::fill_block;
use weft_client::{AttachMode, AttachOptions, ClientError, Fabric};
use weft_rt::sim::{self, Crash, spawn_process};
use weft_rt::{Buf, sleep};
use weft_types::BLOCK_SIZE;

/// The volume that fills the drives.
pub const FILLER: &str = "filler";

/// Its size: more than the drives of any run have.
pub const FILLER_BYTES: u64 = 1 << 30;

/// One write.
const STEP: u64 = 1 << 20;

/// How long one operation may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Writes until there is no room, waits, and discards everything. It ends with the run at the latest.
pub async fn fill(bed: Rc<Bed>, lasts: Duration) {
    let managers = bed.managers();
    let process =
        spawn_process("10.0.2.200".parse().expect("an address"), "filler", async move {
            let block = fill_block(0, u64::MAX);
            let data = Buf::from(block.repeat(STEP as usize / BLOCK_SIZE));
            loop {
                let attached = async {
                    let fabric = Fabric::connect(&managers, "filler").await?;
                    let options = AttachOptions {
                        mode: AttachMode::Shared,
                        preempt: false,
                        io_timeout: PATIENCE,
                        ..Default::default()
                    };
                    fabric.attach(FILLER, options).await
                };
                let Ok(Ok(volume)) = weft_rt::timeout(Duration::from_secs(20), attached).await else {
                    sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let mut at = 0;
                while at < FILLER_BYTES {
                    match volume.write(at, vec![data.clone()]).await {
                        Ok(()) => at += STEP,
                        Err(ClientError::NoSpace { .. }) => {
                            sim::tell(|| format!("drives are full after {} MiB", at >> 20));
                            break;
                        }
                        Err(_) => break,
                    }
                }
                sleep(lasts).await;
                while volume.discard(0, at + STEP).await.is_err() {
                    sleep(Duration::from_millis(50)).await;
                    if volume.discard(0, STEP).await.is_err_and(|e| {
                        matches!(e, ClientError::SessionOver { .. } | ClientError::Fenced { .. })
                    }) {
                        break;
                    }
                }
                volume.detach().await;
                sim::tell(|| "what filled the drives is gone".to_owned());
                return;
            }
        });
    sleep(lasts + Duration::from_secs(30)).await;
    sim::kill(process, Crash::Process);
}
