//! Raising the floors of groups (R7), so that their members may forget tombstones.
//!
//! It owns the rounds and the evidence: a floor is committed only if everything below it is finished, or was
//! never taken by anyone. In a round every member closes below the floor that is meant, so that what a
//! session has not written there by then it never will; whatever comes of it, the group begins a new epoch,
//! in which its members are open again.

use crate::manager::{Manager, State};
use crate::member::Member;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_membership::{Change, GroupFloor, RaiseFloors};
use weft_rt::sync::join_all;
use weft_rt::{now, sleep_until};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::limits::FLOORS_PER_ROUND_MAX;
use weft_types::{
    DriveId, Epoch, Group, GroupId, Role, Session, SessionId, SessionSlot, Slot, TargetId, Version,
    with_causes,
};
use weft_wire::control::{OpenBelow, TargetAnswer, TargetRequest};

/// How long a target may take to say what is open: it waits for the writes that it has admitted.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A group's members, and since when they have not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unbroken {
    slots: Vec<Slot>,
    /// A session with this number or a higher one has attached since: no former member has taken anything
    /// from it.
    from: SessionId,
}

/// Most rounds that a group sits out after rounds in which its floor did not rise: each such round cost an
/// epoch, and at one round in ten minutes these are less than three hours.
const ROUNDS_SAT_OUT_MAX: u32 = 16;

/// The processes that serve the members of a group.
type Processes = BTreeMap<DriveId, (TargetId, u64)>;

/// Groups whose floors did not rise in their last round, and how many rounds they sit out: one at first,
/// then twice as many each time. A group takes part at once where another process serves a member.
#[derive(Debug, Default)]
pub(crate) struct Pauses(BTreeMap<GroupId, Pause>);

#[derive(Debug)]
struct Pause {
    processes: Processes,
    rounds: u32,
    left: u32,
}

impl Pauses {
    /// A round begins; only these groups may still be there.
    fn begin_round(&mut self, is_listed: impl Fn(&GroupId) -> bool) {
        self.0.retain(|group, _| is_listed(group));
        for pause in self.0.values_mut() {
            pause.left = pause.left.saturating_sub(1);
        }
    }

    /// Whether the group sits this round out.
    fn has(&self, group: GroupId, processes: &Processes) -> bool {
        self.0.get(&group).is_some_and(|pause| pause.left > 0 && pause.processes == *processes)
    }

    /// Notes what has come of a group's round.
    fn note(&mut self, closing: &Closing, has_risen: bool) {
        let Closing { group, processes, .. } = closing;
        if has_risen {
            self.0.remove(group);
            return;
        }
        let before = self.0.get(group).filter(|pause| pause.processes == *processes);
        let rounds = before.map_or(1, |pause| (pause.rounds * 2).min(ROUNDS_SAT_OUT_MAX));
        // The next round begins with one less.
        let pause = Pause { processes: processes.clone(), rounds, left: rounds + 1 };
        self.0.insert(*group, pause);
    }
}

/// What members have said of their groups.
type Said = BTreeMap<GroupId, Vec<OpenBelow>>;

/// A group in a round.
struct Closing {
    group: GroupId,
    epoch: Epoch,
    floor: Version,
    processes: Processes,
}

impl Manager {
    /// Raises floors from time to time, for ever; and has groups begin an epoch whose members a manager
    /// before this one has closed.
    pub(crate) async fn keep_forgetting(self: Rc<Self>) {
        let mut due = now() + self.options.forget_every;
        let mut asked = BTreeMap::new();
        loop {
            sleep_until(due.min(now() + self.map().durations.lease())).await;
            if self.halted.borrow().is_some() {
                return;
            }
            self.open_what_was_closed(&mut asked).await;
            if now() < due {
                continue;
            }
            {
                let mut state = self.state.borrow_mut();
                state.note_unbroken();
                let map = state.map.clone();
                state.floor_pauses.begin_round(|group| map.groups.contains_key(group));
            }
            self.forget_once().await;
            due = now() + self.options.forget_every;
        }
    }

    /// Asks the targets that have joined since which of their members are closed, and opens these. `asked`
    /// are the processes that have said so.
    async fn open_what_was_closed(self: &Rc<Self>, asked: &mut BTreeMap<TargetId, u64>) {
        let processes = self.state.borrow().processes();
        asked.retain(|target, incarnation| processes.get(target) == Some(incarnation));
        let new: Vec<(TargetId, u64)> =
            processes.into_iter().filter(|(target, _)| !asked.contains_key(target)).collect();
        let ask = TargetRequest::Floors { close: vec![] };
        let answers = join_all(new.iter().map(|(target, _)| self.ask(*target, &ask, None, ANSWER_MAX))).await;
        let mut said = Said::new();
        for (process, answer) in new.into_iter().zip(answers) {
            if let Ok(TargetAnswer::Floors { groups }) = answer {
                asked.extend([process]);
                groups.into_iter().for_each(|word| said.entry(word.group).or_default().push(word));
            }
        }
        self.open_closed(&said);
    }

    /// Has the groups begin an epoch of which a member has said that it is closed. To be called where no
    /// round is under way.
    fn open_closed(&self, said: &Said) {
        let floors = self.state.borrow().closed_in(said);
        if floors.is_empty() || mutated(Mutation::ClosedForEver) {
            return;
        }
        mark(Path::ClosedOpened);
        if let Err(error) = self.commit(&Change::RaiseFloors(RaiseFloors { floors })) {
            tracing::warn!(error = with_causes(&error), "groups stay closed below a floor");
        }
    }

    /// One round over the groups that have something to forget.
    async fn forget_once(self: &Rc<Self>) {
        let targets: BTreeSet<TargetId> = self.map().targets.keys().copied().collect();
        let ask = TargetRequest::Floors { close: vec![] };
        let said = self.ask_floors(targets.iter().map(|target| (*target, ask.clone())).collect()).await;
        // What is closed now was closed by a round whose end was not committed.
        self.open_closed(&said);
        let round = self.state.borrow().plan_round(&said);
        if round.is_empty() {
            return;
        }
        let mut asks: BTreeMap<TargetId, Vec<(GroupId, Epoch, Version)>> = BTreeMap::new();
        for closing in &round {
            let targets: BTreeSet<TargetId> = closing.processes.values().map(|(target, _)| *target).collect();
            for target in targets {
                asks.entry(target).or_default().push((closing.group, closing.epoch, closing.floor));
            }
        }
        let asks =
            asks.into_iter().map(|(target, close)| (target, TargetRequest::Floors { close })).collect();
        let said = self.ask_floors(asks).await;
        // Judged and committed in one step: no session attaches, and no member goes, in between.
        let floors = self.state.borrow().judge_round(&round, &said);
        if floors.is_empty() {
            return;
        }
        match self.commit(&Change::RaiseFloors(RaiseFloors { floors: floors.clone() })) {
            Ok(_) => self.state.borrow_mut().note_round(&round, &floors),
            Err(error) => tracing::warn!(error = with_causes(&error), "floors are not raised"),
        }
    }

    /// Asks targets about floors; who does not answer, or does not know the question, has said nothing.
    async fn ask_floors(self: &Rc<Self>, asks: Vec<(TargetId, TargetRequest)>) -> Said {
        let asked = asks.iter().map(|(target, ask)| self.ask(*target, ask, None, ANSWER_MAX));
        let mut said = Said::new();
        for answer in join_all(asked).await {
            if let Ok(TargetAnswer::Floors { groups }) = answer {
                for word in groups {
                    said.entry(word.group).or_default().push(word);
                }
            }
        }
        said
    }
}

impl State {
    /// Notes which groups have other members than when this was last called.
    fn note_unbroken(&mut self) {
        let map = self.map.clone();
        self.unbroken.retain(|group, _| map.groups.contains_key(group));
        for group in map.groups.values() {
            if self.unbroken.get(&group.id).is_none_or(|known| known.slots != group.slots) {
                // Numbers of groups and sessions come from one counter. A group whose members are those it
                // was made with has had no others.
                let is_as_made = group.slots.iter().all(|s| s.role == Role::InSync && s.since == Epoch(1));
                let from = if is_as_made { SessionId(group.id.0) } else { SessionId(map.next_id) };
                self.unbroken.insert(group.id, Unbroken { slots: group.slots.clone(), from });
            }
        }
    }

    /// The groups whose floor can rise by what was said, as far as one round goes. No floor passes the
    /// newest tombstone, so no clock matters: a client that attaches later and begins below it starts its
    /// first write again, once.
    fn plan_round(&self, said: &Said) -> Vec<Closing> {
        let mut round = Vec::new();
        for (group, words) in said {
            let Some(entry) = self.map.groups.get(group).filter(|entry| self.is_quiet(entry)) else {
                continue;
            };
            let newest =
                words.iter().filter(|w| w.epoch == entry.epoch).filter_map(|w| w.newest_tombstone).max();
            let (Some(newest), Some(processes)) = (newest, self.processes_of(entry)) else { continue };
            let bound = self.evidence(entry, words).min(newest.counter() + 1);
            let floor = Version::new(bound, SessionSlot(0));
            let sits_out = self.floor_pauses.has(*group, &processes);
            if floor > entry.floor && !sits_out && round.len() < FLOORS_PER_ROUND_MAX {
                round.push(Closing { group: *group, epoch: entry.epoch, floor, processes });
            }
        }
        round
    }

    /// The groups of which a member has said that it is closed in the present epoch, with the floors that
    /// they have.
    fn closed_in(&self, said: &Said) -> Vec<GroupFloor> {
        let mut floors = Vec::new();
        for (group, words) in said {
            let Some(entry) = self.map.groups.get(group) else { continue };
            // A group with a member that is not in-sync has begun an epoch since.
            let is_closed = words.iter().any(|w| w.is_closed && w.epoch == entry.epoch);
            if is_closed && entry.slots.iter().all(|s| s.role == Role::InSync) {
                floors.push(GroupFloor { group: *group, epoch: entry.epoch, floor: entry.floor });
            }
        }
        floors
    }

    /// The processes that have joined, are up, and can be asked about floors.
    fn processes(&self) -> BTreeMap<TargetId, u64> {
        let joined = |(target, member): (&TargetId, &Member)| Some((*target, member.incarnation?));
        self.members.iter().filter(|(_, m)| m.is_up() && m.knows_floors).filter_map(joined).collect()
    }

    /// What the groups of a round have for a floor from the next epoch on. A group that has begun one
    /// meanwhile is open already, and left out.
    fn judge_round(&self, round: &[Closing], said: &Said) -> Vec<GroupFloor> {
        let mut floors = Vec::new();
        for closing in round {
            let Closing { group, epoch, .. } = *closing;
            let entry = self.map.groups.get(&group).filter(|g| g.epoch == epoch && self.is_quiet(g));
            let Some(entry) = entry else { continue };
            let words: &[OpenBelow] = said.get(&group).map_or(&[], |words| words);
            let has_closed = |s: &Slot| words.iter().any(|w| w.drive == s.drive && w.epoch == epoch);
            let is_sure = entry.slots.iter().all(has_closed)
                && self.processes_of(entry).as_ref() == Some(&closing.processes)
                && self.evidence(entry, words) >= closing.floor.counter();
            let floor = if is_sure { closing.floor } else { entry.floor };
            floors.push(GroupFloor { group, epoch, floor });
        }
        floors
    }

    /// Notes which floors have risen, and which are to be tried again later.
    fn note_round(&mut self, round: &[Closing], floors: &[GroupFloor]) {
        for closing in round {
            if let Some(floor) = floors.iter().find(|f| f.group == closing.group) {
                self.floor_pauses.note(closing, floor.floor == closing.floor);
            }
        }
    }

    /// Whether every member is in-sync and none is passing to another drive.
    fn is_quiet(&self, group: &Group) -> bool {
        group.slots.iter().all(|s| s.role == Role::InSync) && !self.map.relocations.contains_key(&group.id)
    }

    /// The processes that serve the members of a group; none if one of them is not served, or its process
    /// does not know floors.
    fn processes_of(&self, group: &Group) -> Option<Processes> {
        let process = |slot: &Slot| {
            let target = self.map.drives.get(&slot.drive)?.target;
            let member = self.members.get(&target).filter(|m| {
                m.has_drive(slot.drive) && m.knows_floors && self.is_of_newest_process(m, slot.drive)
            })?;
            Some((slot.drive, (target, member.incarnation?)))
        };
        group.slots.iter().map(process).collect()
    }

    /// The highest counter such that everything below it is finished, or was not taken by any member that has
    /// spoken: by each lane of each session that the map lists, open or over. One that it does not list is
    /// swept, or has not attached yet.
    fn evidence(&self, group: &Group, words: &[OpenBelow]) -> u64 {
        if mutated(Mutation::FloorWithoutWord) {
            return u64::MAX;
        }
        let uses = |session: &&Session| {
            let volume = self.map.volumes.get(&session.volume);
            volume.is_none_or(|v| v.has_group(group.id))
        };
        let known = self.unbroken.get(&group.id).filter(|known| known.slots == group.slots);
        let has_attached_since = |id| known.is_some_and(|known| id >= known.from);
        // Each lane has a watermark of its own, and says nothing of the others (P6).
        let slots = |s: &'_ Session| s.slots().map(|slot| (slot, s.id)).collect::<Vec<_>>();
        let bound = |(slot, id)| finished_below(slot, has_attached_since(id), words);
        self.map.sessions.values().filter(uses).flat_map(slots).map(bound).min().unwrap_or(u64::MAX)
    }
}

/// The highest counter such that everything of a session's slot below it is finished, or was not taken by any
/// member that has spoken. `has_attached_since`: the group has had no other member since the session
/// attached.
fn finished_below(slot: SessionSlot, has_attached_since: bool, words: &[OpenBelow]) -> u64 {
    let of_slot = || words.iter().flat_map(|w| &w.sessions).filter(|(s, ..)| *s == slot);
    let told = of_slot().map(|(_, watermark, _)| watermark.counter()).max().unwrap_or(0);
    let open = of_slot().filter_map(|(_, _, open)| open.map(|open| open.counter())).min();
    match has_attached_since {
        true => told.max(open.unwrap_or(u64::MAX)),
        // What it wrote to a former member may have been applied there, and count for its client still.
        false => told,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(drive: u128, sessions: &[(u16, u64, Option<u64>)]) -> OpenBelow {
        let version = |counter, slot| Version::new(counter, SessionSlot(slot));
        let sessions = sessions.iter().map(|(slot, told, open)| {
            (SessionSlot(*slot), version(*told, *slot), open.map(|open| version(open, *slot)))
        });
        OpenBelow {
            drive: DriveId(drive),
            group: GroupId(1),
            epoch: Epoch(1),
            newest_tombstone: None,
            sessions: sessions.collect(),
            is_closed: false,
        }
    }

    #[test]
    fn a_group_whose_floor_does_not_rise_sits_out_twice_as_many_rounds_each_time_up_to_a_bound() {
        let closing = |incarnation| Closing {
            group: GroupId(1),
            epoch: Epoch(1),
            floor: Version::new(7, SessionSlot(0)),
            processes: BTreeMap::from([(DriveId(1), (TargetId(1), incarnation))]),
        };
        let mut pauses = Pauses::default();
        let (failing, mut tried) = (closing(5), Vec::new());
        for round in 0..60 {
            pauses.begin_round(|_| true);
            if !pauses.has(GroupId(1), &failing.processes) {
                tried.push(round);
                pauses.note(&failing, false);
            }
        }
        assert_eq!(tried, [0, 2, 5, 10, 19, 36, 53], "1, 2, 4, 8, 16 and 16 rounds in between");
        assert!(pauses.has(GroupId(1), &failing.processes));
        assert!(!pauses.has(GroupId(1), &closing(6).processes), "its target was started again");
        pauses.note(&failing, true);
        assert!(!pauses.has(GroupId(1), &failing.processes), "it has risen");
        pauses.note(&failing, false);
        pauses.begin_round(|_| false);
        assert!(pauses.0.is_empty(), "the group is gone");
    }

    #[test]
    fn a_sessions_word_counts_whoever_has_it_and_an_open_version_wherever_it_is() {
        let words = [said(1, &[(1, 5, None), (2, 0, Some(8))]), said(2, &[(1, 9, None), (2, 3, None)])];
        let below = |slot, since| finished_below(SessionSlot(slot), since, &words);
        assert_eq!(below(1, false), 9, "one member has heard more");
        assert_eq!(below(1, true), u64::MAX, "nothing of it is open anywhere");
        assert_eq!(below(2, false), 3);
        assert_eq!(below(2, true), 8, "its write is on one of two");
        assert_eq!(below(3, true), u64::MAX, "it has written nothing");
        assert_eq!(below(3, false), 0, "it may have written to a former member");
        let told = [said(1, &[(1, 0, Some(4))]), said(2, &[(1, 6, None)])];
        assert_eq!(finished_below(SessionSlot(1), true, &told), 6, "one member has not heard of the end");
    }
}
