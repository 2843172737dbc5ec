//! A tree of directories, links and locks that several mounts change: every answer is that of one order of all
//! operations (F1, F4, F9, F11), while mounts die and lose their sessions and nodes die and are cut off.

use super::files_stage::{FILES, FilesStage};
use crate::refusals::Refusals;
use crate::trees::{Habits, TreesClient};
use std::time::Duration;
use weft_rt::{random_below, sleep};

/// Mounts, at most.
const MOUNTS_MAX: u64 = 3;

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    run_on(FilesStage::set().await).await
}

/// The same with directories in several shards, so that operations happen in two of them or more (F3).
///
/// # Errors
/// What is wrong.
pub async fn run_spread() -> Result<(), String> {
    run_on(FilesStage::set_spread().await).await
}

async fn run_on(stage: FilesStage) -> Result<(), String> {
    let habits = Habits {
        mounts: 1 + random_below(MOUNTS_MAX) as usize,
        patience: Duration::from_secs(30),
        think: Duration::from_millis(1),
        lives: Duration::from_millis([600, 3_000, 20_000][random_below(3) as usize]),
        silence: Duration::from_millis(1_200),
        refusals: Refusals { full: false, quota: false },
    };
    let client = TreesClient::start(&stage.bed, FILES, habits, 0);
    for _ in 0..2 + random_below(4) {
        sleep(Duration::from_millis(200 + random_below(1_500))).await;
        stage.trouble_a_node(200, 4).await;
    }
    stage.heal();
    client.finish().await?;
    stage.check().await
}
