//! Which targets answer this client, and which do not.
//!
//! A write waits for every member of its group. The manager evicts a member that is gone, but cannot
//! know that a node which it reaches itself is out of this client's reach: so the client says so. It
//! owns the looks at connections, the probes of nodes that are silent, and what is said to the manager
//! and in the log. It never decides who leaves a group.

use crate::lane::Reached;
use crate::managers::Asked;
use crate::shared::{Shared, TargetLink};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;
use weft_rpc::{Body, Link};
use weft_rt::sync::join_all;
use weft_rt::{Addr, Instant, now, sleep, spawn, timeout};
use weft_types::limits::{FRAME_HEAD_MAX, REACH_TARGETS_MAX};
use weft_types::{DriveId, Group, Target, TargetId, Volume};
use weft_wire::control::{self, ManagerRequest, TargetAge, VouchRequest};
use weft_wire::handshake::{Hello, PeerRole};
use weft_wire::{Kind, Status};

/// How often connections are looked at within a lease: a silence is noticed an eighth of a lease late
/// at most.
const LOOKS_PER_LEASE: u32 = 8;

/// A target that has not answered for so much of a lease is probed and, if that is in vain too, reported;
/// a report is repeated as often.
const REPORT_PART: u32 = 2;

/// How long a request goes on before the log says that it is stuck: a few evictions, and early enough
/// for people to do something before it fails.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(5);

/// Bytes of a probe: more than the largest packet that networks carry (9,000 bytes), because a path
/// that loses only large packets lets a small probe pass.
const PROBE_BYTES: usize = 12 * 1024;

const _: () = assert!(PROBE_BYTES < FRAME_HEAD_MAX);

impl Reached {
    /// As many as are told: of more of them the longest silences and the newest answers say most.
    fn shortened(mut self) -> Reached {
        self.silent.sort_by_key(|age| std::cmp::Reverse(age.ms));
        self.heard.sort_by_key(|age| age.ms);
        self.silent.truncate(REACH_TARGETS_MAX);
        self.heard.truncate(REACH_TARGETS_MAX);
        self
    }
}

impl Shared {
    /// The targets that have been silent for at least this long, with their names and for how long.
    fn silent_targets(&self, least: Duration) -> BTreeMap<TargetId, (String, Duration)> {
        let map = self.map();
        let targets = self.targets.borrow();
        let silence = |addr: &str| targets.get(addr)?.contact.silence().filter(|s| *s >= least);
        let of_target = |target: &weft_types::Target| {
            let silence = silence(&target.addr)?;
            Some((target.id, (format!("{} ({})", map.title_of(target.id), target.addr), silence)))
        };
        map.targets.values().filter_map(of_target).collect()
    }

    /// Whether the target of a drive does not answer, as far as is known.
    pub(crate) fn is_silent(&self, drive: DriveId) -> bool {
        let known = self.drives.borrow();
        known.get(&drive).is_some_and(|t| t.contact.is_reported.get() && t.contact.silent.get().is_some())
    }

    /// The preferred member, or the next one that is not known to be silent.
    pub(crate) fn past_the_silent(&self, members: &[DriveId], preferred: usize) -> usize {
        let order = (0..members.len()).map(|i| (preferred + i) % members.len());
        { order }.find(|i| !self.is_silent(members[*i])).unwrap_or(preferred)
    }

    /// Which members of a group's write set do not answer, in words; none if all do.
    pub(crate) fn silence_in(&self, group: &Group) -> Option<String> {
        let map = self.map();
        let silent = self.silent_targets(self.lease() / LOOKS_PER_LEASE);
        let members: BTreeSet<TargetId> = group.write_set().filter_map(|d| map.target_of(d)).collect();
        let words: Vec<String> = (silent.iter().filter(|(target, _)| members.contains(target)))
            .map(|(_, (name, silence))| {
                format!("{name} has not answered this client for {:.1} s", silence.as_secs_f64())
            })
            .collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    pub(crate) fn lease(&self) -> Duration {
        self.map().durations.lease()
    }

    /// After how long a silence the first session would be over.
    pub(crate) fn shortest_expiry(&self) -> Duration {
        let map = self.map();
        let attached = self.attached();
        let volumes = attached.iter().filter_map(|session| map.volumes.get(&session.volume()));
        volumes.map(|volume| map.durations.session_of(volume)).min().unwrap_or(map.durations.session())
    }

    /// Tells the manager which sessions are alive, and which nodes this client reaches. Nothing, if
    /// there are none. Where no manager hears it within so long, targets are shown that the sessions are
    /// alive: the manager asks them before it ends one that it does not hear.
    pub(crate) async fn touch(&self, patience: Duration) {
        // One that has ended here is not kept alive: the manager may not have heard that it was detached.
        let mut sessions = self.attached();
        sessions.retain(|session| !session.has_ended());
        if sessions.is_empty() {
            return;
        }
        let mut reached = self.reached();
        if let Some(first) = &self.first_lane {
            return first.tell_reach(reached);
        }
        sessions.iter().for_each(|session| session.add_reach_of_others(self.lease(), &mut reached));
        let Reached { silent, heard } = reached.shortened();
        let request =
            ManagerRequest::Touch { sessions: sessions.iter().map(|s| s.id()).collect(), silent, heard };
        match timeout(patience, self.ask_manager(&request)).await {
            Ok(Ok(_)) => {}
            Ok(Err(Asked::Answered(status, message))) if status != Status::NotReady => {
                tracing::debug!(%status, message, "the manager does not know a session any more");
            }
            unheard => {
                tracing::debug!("no manager hears that the sessions are alive");
                if unheard.is_err() {
                    self.managers.give_up();
                }
                let telling = join_all(sessions.iter().map(|session| session.show_life()));
                let _ = timeout(patience, telling).await;
            }
        }
    }

    /// The targets that do not answer, and those that do, for the manager.
    fn reached(&self) -> Reached {
        let ms = |since: Instant| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let map = self.map();
        let targets = self.targets.borrow();
        let (mut silent, mut heard) = (Vec::new(), Vec::new());
        for Target { id: target, addr, .. } in map.targets.values() {
            let (target, Some(contact)) = (*target, targets.get(addr).map(|t| &t.contact)) else { continue };
            if let Some(since) = contact.silent.get().filter(|_| contact.is_reported.get()) {
                silent.push(TargetAge { target, ms: ms(since) });
            }
            heard.extend(contact.heard.get().map(|at| TargetAge { target, ms: ms(at) }));
        }
        Reached { silent, heard }.shortened()
    }

    /// Tells the manager which nodes answer, unless somebody does already.
    pub(crate) fn report_soon(&self) {
        let Some(fabric) = self.this.upgrade().filter(|_| !self.is_reporting.replace(true)) else { return };
        let lease = self.lease();
        spawn(async move {
            // The manager may be silent too.
            let _ = timeout(lease, fabric.touch(lease)).await;
            fabric.is_reporting.set(false);
        });
    }

    /// Looks at all connections, probes what must be probed, and says whether the manager has to hear
    /// of it now.
    fn look_at_targets(self: &Rc<Self>) -> bool {
        let lease = self.lease();
        let targets: Vec<Rc<TargetLink>> = self.targets.borrow().values().cloned().collect();
        targets.iter().for_each(|t| t.contact.look(t.open().as_ref()));
        let is_calm = |t: &Rc<TargetLink>| t.contact.silent.get().is_none() && !t.contact.is_reported.get();
        if targets.iter().all(is_calm) {
            return false;
        }
        let used = self.addrs_used();
        let mut is_news = false;
        for target in &targets {
            let contact = &target.contact;
            if !used.contains(&target.addr) {
                contact.silent.set(None);
            }
            // A probe has as long again for its answer, so a slow drive is not taken for a lost path.
            if contact.silence().is_some_and(|s| s >= lease / REPORT_PART / 2) {
                self.probe(target, lease / REPORT_PART);
            }
            let is_silent = contact.silence().is_some_and(|s| s >= lease / REPORT_PART);
            if contact.is_reported.replace(is_silent) != is_silent {
                is_news = true;
                self.tell_of(target, is_silent);
            }
        }
        if targets.iter().any(|t| t.contact.is_reported.get()) {
            // What is said of the others has to be as new.
            let is_old = |at: Instant| at.elapsed() >= lease / REPORT_PART;
            let others = targets.iter().filter(|t| used.contains(&t.addr));
            let others = others.filter(|t| t.contact.heard.get().is_none_or(is_old));
            others.for_each(|target| self.probe(target, lease / REPORT_PART));
        }
        is_news
    }

    /// The addresses of the targets with a copy of something that this client has attached.
    fn addrs_used(&self) -> BTreeSet<String> {
        let map = self.map();
        let sessions = self.attached();
        let volumes: Vec<&Volume> = sessions.iter().filter_map(|s| map.volumes.get(&s.volume())).collect();
        let groups: BTreeSet<_> = volumes.iter().flat_map(|v| v.groups()).copied().collect();
        let slots = groups.iter().filter_map(|g| map.groups.get(g)).flat_map(|g| &g.slots);
        slots.filter_map(|s| map.drive_addr(s.drive).map(str::to_owned)).collect()
    }

    /// Asks a target something on a connection of its own, unless that was done so shortly before.
    fn probe(&self, target: &Rc<TargetLink>, every: Duration) {
        let contact = &target.contact;
        let is_due = contact.probed.get().is_none_or(|at| at.elapsed() >= every);
        if contact.is_probed.get() || !is_due {
            return;
        }
        contact.is_probed.set(true);
        contact.probed.set(Some(now()));
        let hello = Hello::new(PeerRole::Client, Some(self.map().fabric), self.name.clone());
        let target = target.clone();
        spawn(async move {
            if let Ok(Some(())) = timeout(every, answers(&target.addr, &hello)).await {
                target.contact.hear();
            }
            target.contact.is_probed.set(false);
        });
    }

    /// Says in the log that a node does not answer, or does again.
    fn tell_of(&self, target: &TargetLink, is_silent: bool) {
        let map = self.map();
        let node = map.targets.values().find(|t| t.addr == target.addr).map(|t| t.node);
        let node = node.and_then(|node| map.nodes.get(&node)).map(|n| n.name.clone());
        let sessions = self.attached();
        let volumes: BTreeSet<String> = sessions.iter().map(|s| s.volume_name().to_owned()).collect();
        let volumes = volumes.into_iter().collect::<Vec<_>>().join(", ");
        let (addr, silence) = (&target.addr, target.contact.silence().unwrap_or_default());
        let silent_ms = silence.as_millis() as u64;
        match is_silent {
            true => tracing::warn!(
                node,
                addr,
                silent_ms,
                volumes,
                "node does not answer this client: writes that need it wait; the manager is told"
            ),
            false => tracing::warn!(node, addr, volumes, "node answers this client again"),
        }
    }
}

/// Whether a target answers a small question in a large frame, on a new connection.
async fn answers(addr: &str, hello: &Hello) -> Option<()> {
    let to: Addr = addr.parse().ok()?;
    let link = Link::connect(&to, hello).await.ok()?;
    // Every release answers this without a look at a drive. What follows a document is blank.
    let mut question =
        control::encode(&VouchRequest { target: TargetId(0), asked: None, groups: vec![], drives: vec![] });
    question.resize(PROBE_BYTES, b' ');
    let answer = link.call(Kind::Vouch, &question, Body::none()).await;
    link.close();
    // A refusal is an answer.
    (answer.is_ok() || answer.is_err_and(|error| error.status().is_some())).then_some(())
}

/// Follows which nodes answer for as long as somebody uses the fabric, and tells the manager when one
/// does not, or does again: at once, and while one does not, again and again, so that the report does
/// not expire.
pub(crate) async fn watch_targets(shared: Weak<Shared>) {
    let mut said = now();
    loop {
        let Some(fabric) = shared.upgrade() else { return };
        let lease = fabric.lease();
        let is_news = fabric.look_at_targets();
        let is_standing = fabric.targets.borrow().values().any(|t| t.contact.is_reported.get());
        let is_due = is_news || (is_standing && said.elapsed() >= lease / REPORT_PART);
        if is_due && !fabric.is_reporting.get() {
            said = now();
            fabric.report_soon();
        }
        drop(fabric);
        sleep(lease / LOOKS_PER_LEASE).await;
    }
}
