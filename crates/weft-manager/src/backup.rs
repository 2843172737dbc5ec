//! The backups of the map that the manager takes by itself: when, and what is told if they cannot be written.
//!
//! It owns the times. It never touches a file: whoever starts the manager says how a backup is kept.

use crate::event::Subjects;
use crate::manager::Manager;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sleep;
use weft_types::MapVersion;
use weft_wire::backup::encode_backup;

/// The first backup is taken when those who were there before have joined.
const FIRST_AFTER: Duration = Duration::from_secs(60);

/// How soon one that could not be written is tried again: a person who makes room should not wait for the next hour.
const RETRY_AFTER: Duration = Duration::from_secs(300);

impl Manager {
    /// Takes a backup of the map this often while it changes, and hands its bytes to `keep`, for ever. One that
    /// cannot be kept is tried again within five minutes, whether or not the map changes; events tell when that
    /// begins and when it is over. Nothing waits for it: who has the drives misses no backup.
    pub async fn keep_backups<K, F>(self: Rc<Self>, every: Duration, keep: K)
    where
        K: Fn(MapVersion, Vec<u8>) -> F,
        F: Future<Output = Result<(), String>>,
    {
        let (mut kept, mut has_failed) = (MapVersion(0), false);
        let mut pause = FIRST_AFTER.min(every);
        loop {
            sleep(pause).await;
            pause = every;
            let map = self.durable_map();
            // A manager that has stopped may have the map of an old store: that is no backup of anything.
            if map.version <= kept || map.nodes.is_empty() || self.halted.borrow().is_some() {
                continue;
            }
            let bytes = encode_backup(&map, self.steady_clock_us() / 1000);
            match keep(map.version, bytes).await {
                Ok(()) => {
                    kept = map.version;
                    if std::mem::take(&mut has_failed) {
                        let why = format!("map {kept} is backed up again");
                        self.tell("map-backup-kept", why, Subjects::default());
                    }
                }
                Err(cause) => {
                    tracing::warn!(map = %map.version, cause, "the map was not backed up");
                    if !std::mem::replace(&mut has_failed, true) {
                        let why = format!(
                            "map {} could not be backed up: {cause}. It is tried again every {} s; the map itself is safe, \
                             and every drive holds a copy of it",
                            map.version,
                            RETRY_AFTER.min(every).as_secs_f64()
                        );
                        self.tell("map-backup-failed", why, Subjects::default());
                    }
                    pause = RETRY_AFTER.min(every);
                }
            }
        }
    }
}
