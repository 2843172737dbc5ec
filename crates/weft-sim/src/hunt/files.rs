//! The data of files: a client that has mounted a file system dies again and again, while nodes die and are cut
//! off, and the next one looks at what it left (F8, F9).

use super::stage::Stage;
use crate::bed::KnowFiles;
use crate::files::{FilesClient, Habits};
use std::time::Duration;
use weft_rt::sim::Crash;
use weft_rt::{random_below, sleep};

const FILES: &str = "files";

const HABITS: Habits = Habits {
    patience: Duration::from_secs(30),
    think: Duration::from_millis(1),
    lives: Duration::from_millis(300),
    may_fill: false,
};

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let _know_files = KnowFiles::begin();
    let stage = Stage::set_with_sessions(3, 2, 300).await;
    stage.bed.create_file_system(FILES, 2, 1).await;
    let client = FilesClient::start(&stage.bed, FILES, HABITS, 0);
    for _ in 0..3 + random_below(4) {
        sleep(Duration::from_millis(200 + random_below(600))).await;
        let node = random_below(3) as usize;
        let lasts = Duration::from_millis(random_below(200));
        match random_below(4) {
            0 => stage.isolate(node, lasts).await,
            1 => {
                stage.bed.kill_node(node, Crash::Process);
                sleep(lasts).await;
                stage.bed.start_node(node);
            }
            _ => sleep(lasts).await,
        }
        // One at a time: of two copies one is always there.
        while stage.bed.has_all_copies(&stage.bed.map().await).is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    }
    stage.heal();
    client.finish().await
}
