//! Tells replicas up to where a session's writes are complete, where no request has carried it.

use crate::session::Session;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::join_all;
use weft_rt::{random_below, sleep, spawn};
use weft_rules::{Path, mark};
use weft_types::{DriveId, Epoch, Group, GroupId, Version};
use weft_wire::Kind;
use weft_wire::data::WatermarkNote;

/// How long a finished write may stay unknown to replicas when nothing else is sent to them: readers of it
/// take the slow path until then.
const WATERMARK_DELAY: Duration = Duration::from_millis(1);

/// How long to wait before a target that could not be reached is told again: long beside a connection
/// attempt, short beside the time that a restart takes.
const WATERMARK_RETRY: Duration = Duration::from_secs(1);

/// How long after a change of the map groups are looked at that have other members: long enough for several
/// changes, short beside the time after which tombstones are forgotten.
const PASS_OVER_AFTER: Duration = Duration::from_secs(5);

/// How often groups are looked at in which nothing is under way: a tombstone that another session makes is
/// forgotten once every session has passed it over, and a note of that may have been lost.
const PASS_OVER_EVERY: Duration = Duration::from_secs(30);

/// Up to when the members of groups know that nothing of the session comes, as far as somebody may ask.
#[derive(Default)]
pub(crate) struct PassedOver {
    /// In which epoch of a group, and by which manager's maps.
    known: RefCell<BTreeMap<GroupId, (Epoch, u64)>>,
    /// Groups are looked at soon.
    is_due: Cell<bool>,
    /// All groups are looked at some time later.
    is_due_again: Cell<bool>,
}

impl Session {
    /// Tells the members of groups in which nothing is under way that nothing older comes, some time after
    /// the session has begun, or a group an epoch, or the fabric has another manager, and from time to time:
    /// members may have heard nothing of this session, the manager may not know who was a member before, and
    /// as long as the session is idle no request tells them (R7).
    pub(crate) fn pass_over_later(&self) {
        if self.passed_over.is_due.replace(true) {
            return;
        }
        let this = self.this.clone();
        spawn(async move {
            // Not all sessions at once.
            sleep(PASS_OVER_AFTER + PASS_OVER_AFTER.mul_f64(f64::from(random_below(256) as u32) / 256.0))
                .await;
            if let Some(session) = this.upgrade() {
                session.passed_over.is_due.set(false);
                session.pass_over().await;
            }
        });
    }

    /// Has all groups looked at again some time later, whatever their members know.
    fn pass_over_again_later(&self) {
        if self.passed_over.is_due_again.replace(true) {
            return;
        }
        let this = self.this.clone();
        spawn(async move {
            sleep(PASS_OVER_EVERY).await;
            if let Some(session) = this.upgrade() {
                session.passed_over.is_due_again.set(false);
                session.passed_over.known.borrow_mut().clear();
                session.pass_over_later();
            }
        });
    }

    async fn pass_over(&self) {
        if self.check().is_err() {
            return;
        }
        let mut is_one_busy = false;
        let (groups, manager) = (self.groups(), self.fabric.followed.borrow().nonce);
        {
            let mut known = self.passed_over.known.borrow_mut();
            let listed: BTreeSet<GroupId> = groups.iter().map(|group| group.id).collect();
            known.retain(|id, _| listed.contains(id));
            for group in &groups {
                let is = (group.epoch, manager);
                if known.get(&group.id) == Some(&is) {
                    continue;
                }
                match self.versions.pass_over(group.id) {
                    true => drop(known.insert(group.id, is)),
                    false => is_one_busy = true,
                }
                mark(Path::WatermarkPassedOver);
            }
        }
        self.tell_watermarks().await;
        if is_one_busy {
            self.pass_over_later();
        }
        self.pass_over_again_later();
    }

    /// The groups of the volume, as far as they are known.
    fn groups(&self) -> Vec<Rc<Group>> {
        let map = self.fabric.map();
        let ids: BTreeSet<GroupId> =
            map.volumes.get(&self.volume).into_iter().flat_map(|volume| volume.groups().copied()).collect();
        ids.into_iter().filter_map(|id| self.fabric.entry(id)).collect()
    }

    /// Sends watermarks that no request has carried, a little later.
    pub(crate) fn tell_watermarks_soon(&self) {
        if self.telling.replace(true) {
            return;
        }
        let this = self.this.clone();
        spawn(async move {
            sleep(WATERMARK_DELAY).await;
            if let Some(session) = this.upgrade() {
                session.telling.set(false);
                session.tell_watermarks().await;
            }
        });
    }

    /// Sends watermarks once more to targets that could not be reached, when they have had time to come back.
    fn retry_watermarks_later(&self) {
        if self.telling_again.replace(true) {
            return;
        }
        let this = self.this.clone();
        spawn(async move {
            sleep(WATERMARK_RETRY).await;
            if let Some(session) = this.upgrade() {
                session.telling_again.set(false);
                session.tell_watermarks().await;
            }
        });
    }

    /// A connection has ended, and what was sent through it last may be lost: whoever has no connection now
    /// counts as not told.
    pub(crate) fn doubt_watermarks(&self) {
        self.versions.forget_told(|drive| self.fabric.is_connected(drive));
        self.tell_watermarks_soon();
    }

    /// Sends every replica the watermarks that it has not been sent.
    pub(crate) async fn tell_watermarks(&self) {
        if self.check().is_err() {
            return;
        }
        let untold = self.versions.untold(|group| self.fabric.entry(group));
        let told = join_all(untold.into_iter().map(async |(drive, groups)| {
            let Ok(link) = self.fabric.link(drive).await else { return false };
            let notes = groups.into_iter().filter_map(|group| self.take_note(drive, group));
            for part in notes.collect::<Vec<_>>().chunks(WatermarkNote::NOTES_MAX) {
                mark(Path::WatermarkAlone);
                link.cast(Kind::Watermark, &WatermarkNote::encode_all(part));
            }
            true
        }));
        if told.await.contains(&false) {
            self.retry_watermarks_later();
        }
    }

    /// Tells targets that the client is alive: it asks nothing of them at present, and cannot reach a
    /// manager. The watermark of one group goes to the members of its write set once more.
    pub(crate) async fn send_a_watermark(&self) {
        if self.check().is_err() {
            return;
        }
        let map = self.fabric.map();
        let mut of_volume = map.volumes.get(&self.volume).into_iter().flat_map(|v| v.groups());
        let Some(entry) = of_volume.find_map(|group| self.fabric.entry(*group)) else { return };
        let watermark = self.versions.watermark(entry.id);
        let telling = entry.write_set().map(async |drive| {
            let Ok(link) = self.fabric.link(drive).await else { return };
            let Some(note) = self.note(drive, entry.id, watermark) else { return };
            link.cast(Kind::Watermark, &WatermarkNote::encode_all(&[note]));
        });
        join_all(telling).await;
    }

    /// The watermark of a group that the drive has not been sent; from now on it has.
    fn take_note(&self, drive: DriveId, group: GroupId) -> Option<WatermarkNote> {
        self.fabric.entry(group)?;
        self.note(drive, group, self.versions.take_untold(group, drive)?)
    }

    fn note(&self, drive: DriveId, group: GroupId, watermark: Version) -> Option<WatermarkNote> {
        let epoch = self.fabric.entry(group)?.epoch;
        let (volume, generation, session) = (self.volume, self.generation, self.id);
        Some(WatermarkNote { drive, group, epoch, volume, generation, session, watermark })
    }
}
