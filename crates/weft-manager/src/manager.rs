//! The manager: one process, the map, and what is known of everyone.
//!
//! It owns start-up and the main loop: observe, decide, commit, and let background work begin. What the work
//! is, is in the files beside it. Nothing here waits while it holds state: every commit is one step.

use crate::changed_in::ChangedIn;
use crate::copies::CopiesKept;
use crate::durable::Durable;
use crate::ended::EndedSessions;
use crate::error::ManagerError;
use crate::event::{Events, Subjects};
use crate::floor::{Pauses, Unbroken};
use crate::follow::RecentMaps;
use crate::index::Index;
use crate::known::KnownTroubles;
use crate::led_store::LedStore;
use crate::left_out::ForeignNode;
use crate::member::Member;
use crate::process::Processes;
use crate::records::{load_map, put_map};
use crate::scrub::Scrubbing;
use crate::serve::ANSWERED;
use crate::slices::Holders;
use crate::stall::Watch;
use crate::status::Usage;
use crate::store::{Journal, KeyStore, StoreError};
use crate::whole::WholeMap;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_membership::{Reach, ReachReport};
use weft_rpc::{Server, Services};
use weft_rt::sync::{Notify, race};
use weft_rt::{Buf, Instant, Listener, now, sleep, sleep_until, spawn};
use weft_types::limits::MAP_BYTES_GROWN_MAX;
use weft_types::{
    DriveId, Durations, Epoch, FabricId, FabricMap, GroupId, NodeId, SessionId, TargetId, VolumeId,
    with_causes,
};
use weft_wire::control;

/// The main loop looks at least so often per lease, so that a silence is noticed an eighth of a lease late at
/// most; targets renew four times per lease.
pub(crate) const LOOKS_PER_LEASE: u32 = 8;

/// How often the store learns how far each drive has come, while they go on: an older copy that is put in a
/// drive's place is told from it if it is that much older. Each time costs one small write.
pub(crate) const COMMITS_KEPT_EVERY: Duration = Duration::from_secs(5);

/// How often floors are raised: each time the groups that have discarded something begin a new epoch, which
/// their clients learn with their next request. A discard takes room in the map of a drive for so long.
const FORGET_EVERY: Duration = Duration::from_secs(600);

/// How a manager starts.
#[derive(Clone, Debug)]
pub struct ManagerOptions {
    /// The fabric that the store must hold; none to serve the one that it holds.
    pub fabric: Option<FabricId>,
    /// Its name, for people: targets show it.
    pub name: String,
    /// Bytes of the map up to which it takes what makes the map larger; tests lower it.
    pub map_bytes_max: usize,
    /// How often the floors of groups are raised that have tombstones to forget (R7).
    pub forget_every: Duration,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        ManagerOptions {
            fabric: None,
            name: "manager".into(),
            map_bytes_max: MAP_BYTES_GROWN_MAX,
            forget_every: FORGET_EVERY,
        }
    }
}

/// Everything that changes.
pub(crate) struct State {
    /// The newest map: what is decided, by which whoever decides goes.
    pub(crate) map: Rc<FabricMap>,
    /// The map as the store has it, and what is on its way there.
    pub(crate) durable: Durable,
    /// Look-ups into it.
    pub(crate) index: Index,
    /// Drives of the map that their targets do not have, as far as is known.
    pub(crate) lacking: BTreeSet<DriveId>,
    /// Targets that are taken for gone.
    pub(crate) suspected: BTreeSet<TargetId>,
    /// The map as it travels whole.
    pub(crate) whole: WholeMap,
    /// The newest durable versions of the map.
    pub(crate) recent: RecentMaps,
    /// In which version each group and drive changed last, as far as that was since this process started.
    pub(crate) changed_in: ChangedIn,
    /// What is known of each target of the map.
    pub(crate) members: BTreeMap<TargetId, Member>,
    /// Those of the targets that have not joined this process.
    pub(crate) unheard: BTreeSet<TargetId>,
    /// The newest process of each node.
    pub(crate) processes: Processes,
    /// What drives keep of the whole map.
    pub(crate) copies: CopiesKept,
    /// Who holds groups without being a member of them.
    pub(crate) holders: Holders,
    /// From when silence counts of those whom this process has not heard of: its start, without the
    /// time in which it stood still.
    pub(crate) hears_from: Instant,
    /// When each open session was last heard of, as far as it was.
    pub(crate) touched: BTreeMap<SessionId, Instant>,
    /// Why the sessions that ended last are over.
    pub(crate) ended: EndedSessions,
    /// What the client of each open session said last of the targets that it talks to.
    pub(crate) reports: BTreeMap<SessionId, ReachReport>,
    /// Which targets clients cannot reach, and what follows.
    pub(crate) reach: Reach,
    /// When targets served a session last that was not heard of itself, by their word.
    pub(crate) served: BTreeMap<SessionId, Instant>,
    /// Sessions about which targets are being asked.
    pub(crate) asked_about: BTreeSet<SessionId>,
    /// Sessions of which neither this process nor targets have heard for a term.
    pub(crate) silent: BTreeSet<SessionId>,
    /// Replicas that say they have verified everything, with the stint.
    pub(crate) verified: BTreeMap<(GroupId, DriveId), Epoch>,
    /// Per drive the newest commit that its target has said to be durable: what the drive must still have
    /// when it is seen next. Kept beside the map in the store, a little later.
    pub(crate) commits: BTreeMap<DriveId, u64>,
    /// When they were kept last, and whether they have changed since.
    pub(crate) commits_kept: (Instant, bool),
    /// Nodes of another fabric that have asked lately, by name.
    pub(crate) foreign_nodes: BTreeMap<String, ForeignNode>,
    /// Targets with a task that attends to them.
    pub(crate) attended: BTreeSet<TargetId>,
    /// Volumes whose sessions are being swept.
    pub(crate) sweeping: BTreeSet<VolumeId>,
    /// Volumes whose blocks are being dropped.
    pub(crate) emptying: BTreeSet<VolumeId>,
    /// Since when each group has the members that it has.
    pub(crate) unbroken: BTreeMap<GroupId, Unbroken>,
    /// Groups whose floors did not rise, and which are tried again later.
    pub(crate) floor_pauses: Pauses,
    /// What happened lately.
    pub(crate) events: Events,
    /// What targets said last of their drives, and when.
    pub(crate) usage: Option<(Instant, Rc<Usage>)>,
    /// Since when which trouble is there.
    pub(crate) known_troubles: KnownTroubles,
}

impl State {
    /// The targets of a node, and what is known of them, in the order of their numbers.
    pub(crate) fn members_of(&self, node: NodeId) -> impl Iterator<Item = (TargetId, &Member)> {
        self.index.targets_of(node).filter_map(|target| Some((target, self.members.get(&target)?)))
    }

    /// How far each drive has come, as a document, if that has changed since it was kept, and that was so
    /// long ago. It counts as kept then.
    pub(crate) fn commits_to_keep(&mut self, at_most_every: Duration) -> Option<Vec<u8>> {
        let (kept, is_new) = self.commits_kept;
        if !is_new || kept.elapsed() < at_most_every {
            return None;
        }
        self.commits_kept = (now(), false);
        Some(control::encode(&self.commits.iter().collect::<Vec<_>>()))
    }

    /// The durable map as it travels whole.
    pub(crate) fn bytes(&self) -> Buf {
        self.whole.bytes(&self.durable.map)
    }
}

/// The service that owns the fabric map.
pub struct Manager {
    pub(crate) options: ManagerOptions,
    pub(crate) store: LedStore,
    /// See [`Manager::nonce`]; drawn when the map is sent first.
    pub(crate) nonce: OnceCell<u64>,
    pub(crate) started: Instant,
    /// What the clock was then at least: as it is on this machine, or as it was written down if that is
    /// later.
    started_us: u64,
    pub(crate) state: RefCell<State>,
    /// The map, or something that was observed, has changed.
    pub(crate) changed: Notify,
    /// Something is to be written.
    pub(crate) decided: Notify,
    /// Why it serves no more: another manager has committed, the store has failed, or it is an old copy.
    pub(crate) halted: RefCell<Option<String>>,
    /// Whether it stopped because its store is an old copy: then the process stays, to say so.
    pub(crate) is_stale: Cell<bool>,
    /// Until when the fabric is about to stop as a whole, and so nothing is decided.
    pub(crate) stops_until: Cell<Option<Instant>>,
    pub(crate) polling: Cell<bool>,
    pub(crate) scrubbing: Scrubbing,
    pub(crate) watch: Watch,
    /// On whose request the code that runs now acts; nobody's: of its own accord.
    pub(crate) acting: RefCell<Option<Rc<str>>>,
}

impl Manager {
    /// Takes the map out of the store, and begins to watch over it; of a store that is shared, as soon as
    /// nobody else leads. The manager lives as long as its executor.
    ///
    /// # Errors
    /// If the store cannot be used, or holds no sound map of the fabric asked for.
    /// [`ManagerError::NoFabric`] if it holds none at all: only [`found`] makes a fabric, because an empty
    /// store may be what is left of one that was lost.
    pub async fn start(
        store: impl KeyStore + 'static,
        options: ManagerOptions,
    ) -> Result<Rc<Manager>, ManagerError> {
        // From here on nobody else grants or commits anything: a full wait from now outlasts what it granted.
        let taken = LedStore::take_over(Box::new(store), weft_rt::wall_clock_us()).await?;
        let (store, map, journal) = taken.ok_or(ManagerError::NoFabric)?;
        check_map(&map, options.fabric)?;
        let started = now();
        let events = events_from(&options, &map, &journal);
        let map = Rc::new(map);
        let state = State {
            whole: WholeMap::default(),
            changed_in: ChangedIn::before(map.version),
            index: Index::of(&map),
            lacking: map.drives.keys().copied().collect(),
            suspected: BTreeSet::new(),
            copies: CopiesKept::default(),
            holders: Holders::new(),
            recent: RecentMaps::starting(map.clone()),
            durable: Durable::at(map.clone()),
            members: unknown_members(&map, started),
            unheard: map.targets.keys().copied().collect(),
            map,
            processes: Processes::default(),
            hears_from: started,
            touched: BTreeMap::new(),
            ended: EndedSessions::default(),
            reports: BTreeMap::new(),
            reach: Reach::default(),
            served: BTreeMap::new(),
            asked_about: BTreeSet::new(),
            silent: BTreeSet::new(),
            verified: BTreeMap::new(),
            commits: read_commits(journal.commits.as_deref()),
            commits_kept: (started, false),
            foreign_nodes: BTreeMap::new(),
            attended: BTreeSet::new(),
            sweeping: BTreeSet::new(),
            emptying: BTreeSet::new(),
            unbroken: BTreeMap::new(),
            floor_pauses: Pauses::default(),
            events,
            usage: None,
            known_troubles: KnownTroubles::kept(journal.troubles.as_deref()),
        };
        let noted_ms = state.known_troubles.clock_ms().max(state.events.latest_ms());
        let manager = Rc::new(Manager {
            options,
            store,
            nonce: OnceCell::new(),
            started,
            started_us: weft_rt::wall_clock_us().max(noted_ms * 1000),
            state: RefCell::new(state),
            changed: Notify::default(),
            decided: Notify::default(),
            halted: RefCell::new(None),
            is_stale: Cell::new(false),
            stops_until: Cell::new(None),
            polling: Cell::new(false),
            scrubbing: Scrubbing::default(),
            watch: Watch::starting(),
            acting: RefCell::new(None),
        });
        manager.begin_work();
        Ok(manager)
    }

    /// Begins what goes on by itself, for ever.
    fn begin_work(self: &Rc<Self>) {
        spawn(self.clone().keep_durable());
        spawn(self.clone().keep_leading());
        spawn(self.clone().keep_copies());
        spawn(self.clone().watch_over());
        spawn(self.clone().keep_scrubbing());
        spawn(self.clone().keep_asking());
        spawn(self.clone().keep_forgetting());
    }

    /// Answers targets, clients and tools on this listener, for ever. May run on several listeners at once.
    pub async fn serve(self: Rc<Self>, listener: Listener) {
        let services = Services::new(self.clone()).serve(ANSWERED, self);
        Server::run(listener, services).await;
    }

    /// The newest map: what is decided. The store may have it a moment later.
    pub fn map(&self) -> Rc<FabricMap> {
        self.state.borrow().map.clone()
    }

    /// How many events of each kind there were since this process started, such as `evict`.
    pub fn event_counts(&self) -> BTreeMap<String, u64> {
        self.state.borrow().events.counts().clone()
    }

    /// Completes with the reason when the manager can serve no more, because the store failed or another
    /// manager has committed: the process should end, and start again. It does not complete when the store
    /// turns out to be an old copy: no new start mends that, so the manager stays, grants nothing, and says
    /// so in its status.
    pub async fn halted(&self) -> String {
        loop {
            let changed = self.changed.notified();
            if let Some(reason) = self.halted.borrow().clone().filter(|_| !self.is_stale.get()) {
                return reason;
            }
            changed.await;
        }
    }

    /// Observes, decides and commits, whenever something has changed and every eighth of a lease.
    async fn watch_over(self: Rc<Self>) {
        // Whoever has followed another manager asks that one, so this one has to find out by itself.
        while self.why_over().is_none() {
            self.begin_look().await;
            let changed = self.changed.notified();
            let began = now();
            self.suspect_the_silent();
            self.ask_about_the_silent();
            let due = self.commit_what_is_due();
            self.attend_to_targets();
            self.sweep_what_is_over();
            self.empty_what_is_deleted();
            self.look_for_troubles();
            self.decided.notify_all();
            let (took, look_every) = (began.elapsed(), self.lease() / LOOKS_PER_LEASE);
            let look = now() + look_every;
            // A look sees every drive, and each commit and many a renewal asks for one: of all time it takes
            // half.
            if !took.is_zero() {
                sleep(took.min(look_every)).await;
            }
            // Whatever is due now was not possible; the next look decides anew.
            let next = due.filter(|d| *d > now()).map_or(look, |d| d.min(look));
            race(changed, sleep_until(next)).await;
        }
    }

    /// A wall clock that never goes back, also not over a restart: for targets, which judge by it what is too
    /// far ahead, and for clients, whose versions must not be.
    pub(crate) fn steady_clock_us(&self) -> u64 {
        let since = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        weft_rt::wall_clock_us().max(self.started_us.saturating_add(since))
    }

    /// Keeps in the store how far each drive has come, if that was not done for so long. Without it a drive
    /// that was replaced by an older copy of itself while nobody ran is not told from the drive that it was.
    ///
    /// # Errors
    /// If the store refuses. It is tried again when that time has passed once more.
    pub async fn keep_commits(&self, at_most_every: Duration) -> Result<(), StoreError> {
        // Whoever leads now has figures of its own.
        if self.why_over().is_some() {
            return Ok(());
        }
        let Some(bytes) = self.state.borrow_mut().commits_to_keep(at_most_every) else { return Ok(()) };
        let kept = self.store.write_down(&Journal { commits: Some(bytes), ..Journal::default() }).await;
        self.state.borrow_mut().commits_kept.1 |= kept.is_err();
        kept
    }

    /// The lease, as a target counts it.
    pub(crate) fn lease(&self) -> Duration {
        self.state.borrow().map.durations.lease()
    }
}

/// Milliseconds since 1970-01-01T00:00:00Z, for people.
pub(crate) fn wall_clock_ms() -> u64 {
    weft_rt::wall_clock_us() / 1000
}

fn check_map(map: &FabricMap, expected: Option<FabricId>) -> Result<(), ManagerError> {
    let mut broken = weft_membership::check(map).into_iter().map(|v| v.to_string());
    if let Some(first) = broken.next() {
        return Err(ManagerError::Broken { first, count: 1 + broken.count() });
    }
    match expected {
        Some(expected) if expected != map.fabric => {
            Err(ManagerError::OtherFabric { found: map.fabric, expected })
        }
        _ => Ok(()),
    }
}

/// How far each drive had come. Where that was not kept nothing is known, which is where every fabric begins.
fn read_commits(kept: Option<&[u8]>) -> BTreeMap<DriveId, u64> {
    match kept.map(control::decode::<Vec<(DriveId, u64)>>) {
        Some(Ok(commits)) => commits.into_iter().collect(),
        Some(Err(error)) => {
            tracing::warn!(error = with_causes(&error), "how far drives had come cannot be read");
            BTreeMap::new()
        }
        None => BTreeMap::new(),
    }
}

/// Makes a new fabric in a store that holds none: its first map, without nodes, drives and volumes. Durable
/// on return.
///
/// # Errors
/// [`ManagerError::FabricThere`] if the store holds a fabric; nothing has changed then. If the store cannot
/// be used.
pub async fn found(
    store: &impl KeyStore,
    fabric: FabricId,
    durations: Durations,
) -> Result<FabricMap, ManagerError> {
    if let Some(found) = load_map(store).await? {
        return Err(ManagerError::FabricThere { fabric: found.fabric, version: found.version });
    }
    let map = FabricMap { durations, ..FabricMap::empty(fabric) };
    put_map(store, &map).await?;
    Ok(map)
}

/// The events that the store has kept, and that this manager serves from now on.
fn events_from(options: &ManagerOptions, map: &FabricMap, journal: &Journal) -> Events {
    let is_new = map.version == FabricMap::empty(map.fabric).version && journal.events.is_empty();
    let mut events = Events::kept(&journal.events);
    let what = if is_new { "fabric-made" } else { "manager-started" };
    let why = format!("manager '{}' serves fabric {}", options.name, map.fabric);
    events.add(events.next(None, map.version, what, &why, Subjects::default()));
    events
}

/// The targets of a map that this process has not heard of yet.
fn unknown_members(map: &FabricMap, started: Instant) -> BTreeMap<TargetId, Member> {
    let wall_ms = wall_clock_ms();
    map.targets.keys().map(|&id| (id, Member::unknown(started, wall_ms))).collect()
}
