//! Looks whether drives are still there: a deleted file takes writes as before and loses them at the
//! process's end, and a pulled device that nobody asks for anything reports no error.
//!
//! Such a drive has failed, unless it has the last up-to-date copy of something: then it goes on serving,
//! loudly, until other drives have that. It owns this judgement; where the copies go, the manager decides.
//! It never repairs anything.

use crate::drive::ServedDrive;
use crate::target::Target;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sleep_about;
use weft_types::{GroupId, Role, with_causes};

/// How often drives are looked for: a rebuild takes minutes at best, so a second more does not matter.
const PRESENCE_EVERY: Duration = Duration::from_secs(1);

impl Target {
    /// Looks again and again whether each drive is still there, and whether its store has failed while
    /// nobody asked it for anything.
    pub(crate) async fn watch_drives(self: Rc<Self>) {
        for drive in self.drives.values() {
            let (target, drive) = (self.clone(), drive.clone());
            // Each by itself: a look at a drive that hangs may take for ever.
            self.background(async move {
                while drive.breakage().is_none() {
                    sleep_about(PRESENCE_EVERY).await;
                    target.look_for(&drive).await;
                }
            });
        }
        loop {
            sleep_about(PRESENCE_EVERY).await;
            // Whoever asks a store that has failed takes note of it.
            self.drives.values().for_each(|drive| drop(drive.breakage()));
        }
    }

    async fn look_for(&self, drive: &ServedDrive) {
        let Err(error) = drive.store.check_presence().await else { return };
        match self.has_last_copy(drive) {
            Some(group) => drive.vanish(with_causes(&error), group),
            None => drive.note(&error),
        }
    }

    /// A group that a volume uses and of which the drive has the only up-to-date copy.
    fn has_last_copy(&self, drive: &ServedDrive) -> Option<GroupId> {
        let map = self.map();
        let is_used = |group: GroupId| {
            let uses = |v: &weft_types::Volume| v.has_group(group);
            map.as_ref().is_none_or(|map| map.volumes.values().any(uses))
        };
        let is_last = |member: &crate::member::Member| {
            let is_only_one = member.entry().is_some_and(|entry| entry.read_set().count() == 1);
            member.role() == Role::InSync && is_only_one && !member.is_gone()
        };
        let own = self.members().into_iter().filter(|m| m.drive.id == drive.id);
        own.filter(|m| is_last(m)).map(|m| m.group).find(|group| is_used(*group))
    }
}
