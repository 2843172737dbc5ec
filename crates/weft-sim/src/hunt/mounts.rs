//! A file system as its clients have it: names are asked of the servers beside the targets of real nodes,
//! which follow one another as nodes die and are cut off (F1, F2), and sessions end in the middle.

use super::files_stage::{FILES, FilesStage, PATIENCE};
use crate::names::Names;
use crate::refusals::Refusals;
use std::time::Duration;
use weft_rt::{random_below, sleep};

/// How long a client rests between two operations, at most.
const THINK: Duration = Duration::from_millis(2);

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let stage = FilesStage::set_to_last().await;
    let names = Names::start(&stage.bed, FILES, (PATIENCE, THINK, Refusals::default()), 0..3);
    for _ in 0..2 + random_below(3) {
        sleep(Duration::from_millis(50 + random_below(400))).await;
        stage.trouble_a_node(400, 3).await;
    }
    stage.heal();
    names.finish().await?;
    stage.check().await
}
