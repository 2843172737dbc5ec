//! The data of files: mounts of a file system die again and again, while nodes die and are cut off, and the
//! next one, or another one, looks at what they left (F4, F8, F9).

use super::files_stage::{FILES, FilesStage};
use crate::files::{FilesClient, Habits};
use crate::refusals::Refusals;
use std::time::Duration;
use weft_rt::{random_below, sleep};

const HABITS: Habits = Habits {
    mounts: 1,
    patience: Duration::from_secs(30),
    think: Duration::from_millis(1),
    lives: Duration::from_millis(1_000),
    refusals: Refusals { full: false, quota: false },
};

/// Runs it to its end, with one mount at a time.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    run_as(HABITS).await
}

/// Likewise, with several mounts that seldom die.
///
/// # Errors
/// What is wrong.
pub async fn run_shared() -> Result<(), String> {
    run_as(Habits { mounts: 3, lives: Duration::from_secs(6), ..HABITS }).await
}

async fn run_as(habits: Habits) -> Result<(), String> {
    let stage = FilesStage::set_to_grow().await;
    let client = FilesClient::start(&stage.bed, FILES, habits, 0);
    for _ in 0..3 + random_below(4) {
        sleep(Duration::from_millis(200 + random_below(1_500))).await;
        stage.trouble_a_node(200, 4).await;
        if random_below(2) == 0 {
            stage.grow().await;
        }
    }
    stage.heal();
    client.finish().await?;
    stage.check().await
}
