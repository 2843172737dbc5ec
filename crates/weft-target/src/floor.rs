//! What the manager asks before it raises the floor of a group (R7): who has something open, and that no
//! more is taken below a version.
//!
//! It owns closing, and the order: nothing more is admitted, what was admitted finishes, then it is told
//! what is open. It never decides where the floor is.

use crate::member::Member;
use crate::target::Target;
use std::rc::Rc;
use weft_rt::random_below;
use weft_rt::sync::join_all;
use weft_rules::{Path, mark};
use weft_types::limits::{FLOOR_SESSIONS_MAX, FLOORS_MAX};
use weft_types::{Epoch, GroupId, Role, Version};
use weft_wire::control::OpenBelow;

impl Target {
    /// Closes members below versions, and says what they know then. Those that are not in-sync in the epoch,
    /// before or after, are left out. Without any to close: says that of members that are closed, and of
    /// those that have tombstones to forget, as many as one answer has room for.
    pub(crate) async fn floors(&self, close: &[(GroupId, Epoch, Version)]) -> Vec<OpenBelow> {
        if close.is_empty() {
            return self.forgetful();
        }
        let mut members = Vec::new();
        for (group, epoch, version) in close {
            let drives = self.drives.keys().filter_map(|drive| self.member(*drive, *group));
            members.extend(drives.map(|member| (member, *epoch, *version)));
        }
        let closed = members.iter().map(async |(member, epoch, version)| {
            if !serves_in(member, *epoch) {
                return None;
            }
            member.close_below(*epoch, *version);
            member.drain().await;
            serves_in(member, *epoch).then(|| what_is_open(member))
        });
        within_one_answer(join_all(closed).await.into_iter().flatten())
    }

    /// Members that are closed, and those of groups with tombstones above the floor. Where there are many, it
    /// begins anywhere, so that all have their turn; but with those that are closed.
    fn forgetful(&self) -> Vec<OpenBelow> {
        let has_some = |m: &Rc<Member>| m.is_closed() || m.drive.store.newest_tombstone(m.group).is_some();
        let mut members: Vec<_> =
            self.members().into_iter().filter(|m| serves_in(m, m.epoch()) && has_some(m)).collect();
        if members.len() > FLOORS_MAX {
            let first = random_below(members.len() as u64) as usize;
            members.rotate_left(first);
            members.sort_by_key(|m| !m.is_closed());
            members.truncate(FLOORS_MAX);
        }
        within_one_answer(members.iter().map(what_is_open))
    }
}

/// As many words as one answer has room for: idle sessions are in all groups of their volume.
fn within_one_answer(words: impl Iterator<Item = OpenBelow>) -> Vec<OpenBelow> {
    let mut sessions = 0;
    let fits = |word: &OpenBelow| {
        sessions += word.sessions.len();
        sessions <= FLOOR_SESSIONS_MAX
    };
    words.take_while(fits).collect()
}

/// Whether the drive is in-sync in the group in this epoch, as far as it knows.
fn serves_in(member: &Rc<Member>, epoch: Epoch) -> bool {
    let works = !member.drive.has_failed() && !member.is_gone();
    works && member.epoch() == epoch && member.role() == Role::InSync
}

fn what_is_open(member: &Rc<Member>) -> OpenBelow {
    mark(Path::FloorAsked);
    let (store, group) = (&member.drive.store, member.group);
    OpenBelow {
        drive: member.drive.id,
        group,
        epoch: member.epoch(),
        newest_tombstone: store.newest_tombstone(group),
        sessions: store.open_by_session(group),
        is_closed: member.is_closed(),
    }
}
