//! The target: its drives, its peers, and which module answers which request.
//!
//! It owns what the parts share. It never judges a request itself.

use crate::clock::SteadyClock;
use crate::drive::ServedDrive;
use crate::follow::Partly;
use crate::lease::Lease;
use crate::load::ProcessProbe;
use crate::member::Member;
use crate::meter::Meters;
use crate::peer::Peers;
use crate::resync::Resync;
use crate::scrub::Scrubs;
use crate::sweep::Sweeps;
use crate::tell::Told;
use crate::throttle::Throttle;
use crate::vouch::Vouches;
use crate::watermark::WaitingWatermarks;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use weft_rpc::{Answer, Greeter, Peer, Request, Server, Service, Services};
use weft_rt::sync::{Mutex, Notify};
use weft_rt::{Addr, Budget, JoinHandle, Listener, random_u64, sleep, spawn};
use weft_rules::{Mutation, mutated};
use weft_store::Store;
use weft_types::limits::CHUNK_BLOCKS;
use weft_types::{BLOCK_SIZE, DriveId, FabricId, FabricMap, GroupId, MapVersion, SessionId, Slice, TargetId};
use weft_wire::control::{DriveLeftOut, UnservedShard};
use weft_wire::data::DataRequest;
use weft_wire::handshake::Hello;
use weft_wire::{Kind, Status};

/// How a target is started.
#[derive(Clone, Debug)]
pub struct TargetOptions {
    /// The node's name, unique in the fabric.
    pub node_name: String,
    /// The fabric that the drives belong to.
    pub fabric: FabricId,
    /// Where clients and peers reach this target: published in the map.
    pub listen: Addr,
    /// Where managers listen; each is tried in turn.
    pub managers: Vec<Addr>,
    /// Which of its process's targets it is.
    pub thread: TargetThread,
}

/// A target among those of its process: each is one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetThread {
    /// The process: random, new for each start. Never 0.
    pub process: u64,
    /// Which one it is, from 0.
    pub index: u32,
    /// How many there are; at most [`weft_types::limits::TARGETS_PER_NODE_MAX`].
    pub of: u32,
}

impl TargetThread {
    /// The only target of a new process.
    pub fn only() -> TargetThread {
        TargetThread { process: random_u64() | 1, index: 0, of: 1 }
    }
}

/// Serves the drives of one node, or of one thread of its process.
pub struct Target {
    pub(crate) options: TargetOptions,
    /// Random, new for each start.
    pub(crate) incarnation: u64,
    pub(crate) drives: BTreeMap<DriveId, Rc<ServedDrive>>,
    /// The group first: comparing its number finds most.
    members: RefCell<BTreeMap<(GroupId, DriveId), Rc<Member>>>,
    map: RefCell<Option<Rc<FabricMap>>>,
    /// How many maps were adopted.
    pub(crate) maps_adopted: Cell<u64>,
    /// Came with the version of the map; 0: only a whole map can follow.
    pub(crate) map_nonce: Cell<u64>,
    /// A slice of which not all bytes have come.
    pub(crate) partly: RefCell<Option<Partly>>,
    /// The turn of whoever adopts a map.
    pub(crate) adopting: Mutex<()>,
    /// The number that the manager gave to this target.
    id: Cell<Option<TargetId>>,
    pub(crate) lease: Lease,
    pub(crate) vouches: Vouches,
    pub(crate) peers: Peers,
    pub(crate) resyncs: RefCell<BTreeMap<(DriveId, GroupId), Rc<Resync>>>,
    pub(crate) sweeps: Sweeps,
    pub(crate) scrubs: Scrubs,
    pub(crate) throttle: Throttle,
    pub(crate) meters: Meters,
    pub(crate) told: Told,
    pub(crate) waiting_watermarks: WaitingWatermarks,
    /// Blocks that resyncs have copied since the process started.
    pub(crate) copied_blocks: Cell<u64>,
    /// What is owed to all clients together (P10).
    budget: RefCell<Budget>,
    pub(crate) process_probe: Cell<Option<ProcessProbe>>,
    /// The clock that says which versions are too far ahead.
    pub(crate) steady_clock: SteadyClock,
    /// The highest version counter that was admitted here.
    pub(crate) highest_counter: Cell<u64>,
    /// The drives that this process was to serve and has not opened.
    pub(crate) left_out: RefCell<Vec<DriveLeftOut>>,
    /// The sessions under which its process serves shards of file systems.
    pub(crate) serves: RefCell<BTreeSet<SessionId>>,
    /// The shards that it was to serve and cannot open.
    pub(crate) unserved: RefCell<Vec<UnservedShard>>,
    /// A drive has failed.
    pub(crate) failures: Rc<Notify>,
    /// A map was adopted, or an entry of one.
    pub(crate) adopted: Notify,
    stopped: Cell<bool>,
    background: RefCell<Vec<JoinHandle<()>>>,
    this: Weak<Target>,
}

impl Target {
    /// A target over these drives (path and open store), and its background work: the lease, vouching,
    /// resync. It serves nothing before the manager has granted a lease and the map that came with it is
    /// durable.
    ///
    /// # Panics
    /// If two stores are of one drive, or no manager is named.
    pub fn start(options: TargetOptions, stores: Vec<(String, Rc<Store>)>) -> Rc<Target> {
        assert!(!options.managers.is_empty(), "a target needs a manager");
        let failures = Rc::new(Notify::default());
        let mut drives = BTreeMap::new();
        let mut members = BTreeMap::new();
        for (path, store) in stores {
            let drive = Rc::new(ServedDrive::new(path, store, failures.clone()));
            for group in drive.store.groups() {
                members.insert((group, drive.id), Member::new(drive.clone(), group));
            }
            let twin = drives.insert(drive.id, drive);
            assert!(twin.is_none(), "a drive was given to the target twice");
        }
        let target = Rc::new_cyclic(|this| Target {
            options,
            incarnation: random_u64(),
            drives,
            members: RefCell::new(members),
            map: RefCell::new(None),
            maps_adopted: Cell::new(0),
            map_nonce: Cell::new(0),
            partly: RefCell::new(None),
            adopting: Mutex::new(()),
            id: Cell::new(None),
            lease: Lease::default(),
            vouches: Vouches::default(),
            peers: Peers::default(),
            resyncs: RefCell::default(),
            sweeps: Sweeps::default(),
            scrubs: Scrubs::default(),
            throttle: Throttle::default(),
            meters: Meters::default(),
            told: Told::default(),
            waiting_watermarks: WaitingWatermarks::default(),
            copied_blocks: Cell::new(0),
            budget: RefCell::default(),
            process_probe: Cell::new(None),
            steady_clock: SteadyClock::new(),
            highest_counter: Cell::new(0),
            left_out: RefCell::default(),
            serves: RefCell::default(),
            unserved: RefCell::default(),
            failures,
            adopted: Notify::default(),
            stopped: Cell::new(false),
            background: RefCell::default(),
            this: this.clone(),
        });
        target.background(target.clone().keep_lease());
        target.background(target.clone().keep_vouches());
        target.background(target.clone().report_failures());
        target.background(target.clone().watch_drives());
        target
    }

    /// How it was started.
    pub fn options(&self) -> &TargetOptions {
        &self.options
    }

    /// Says which drives it was to serve and are not among its stores: the manager shows them to people
    /// from the next join on. To be called before the caller waits for anything.
    pub fn set_left_out(&self, left_out: Vec<DriveLeftOut>) {
        *self.left_out.borrow_mut() = left_out;
    }

    /// Says how many bytes this target may owe to all clients together, instead of
    /// [`weft_types::limits::ROOM_BYTES_MAX`]. To be called before it runs.
    pub fn set_room(&self, bytes: u64) {
        *self.budget.borrow_mut() = Budget::of_bytes(bytes);
    }

    /// Says how many targets of this node, this one too, serve parts of one device: they divide the time that
    /// background work may take of it. 1 if not said. To be called before it runs.
    pub fn set_device_sharers(&self, targets: u32) {
        self.throttle.set_sharers(targets);
    }

    /// What is owed to all clients together: for watchers.
    pub fn budget(&self) -> Budget {
        self.budget.borrow().clone()
    }

    /// Serves every connection that the listener takes, for ever.
    pub async fn run(self: &Rc<Self>, listener: Listener) {
        self.run_beside(listener, |services| services).await;
    }

    /// Likewise, with what else is served at its address.
    pub async fn run_beside(self: &Rc<Self>, listener: Listener, others: impl FnOnce(Services) -> Services) {
        let services = Services::new(self.clone()).serve(ANSWERED, self.clone()).within(self.budget());
        Server::run_with_shared_memory(listener, others(services)).await;
    }

    /// Stops serving: every request is refused from now on, and what was admitted has finished on return. The
    /// stores can be closed then. The manager was told, if it answered at once: it has the target's drives
    /// leave their groups where others are up to date, so that clients wait for neither the lease nor the
    /// closing of the stores.
    pub async fn stop(&self) {
        if mutated(Mutation::LastWordFirst) {
            self.say_first_word().await;
            sleep(self.durations().lease()).await;
        }
        self.stopped.set(true);
        for task in self.background.borrow_mut().drain(..) {
            task.abort();
        }
        self.resyncs.borrow_mut().clear();
        {
            let _no_map = self.adopting.lock().await;
            for member in self.members() {
                let _no_entry = member.turn.lock().await;
                member.drain().await;
            }
        }
        self.say_first_word().await;
    }

    /// Whether [`Target::stop`] was called.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    /// Runs work that ends with the target.
    pub(crate) fn background(&self, work: impl Future<Output = ()> + 'static) {
        let mut background = self.background.borrow_mut();
        background.retain(|task| !task.is_finished());
        background.push(spawn(work));
    }

    /// How many tasks of that work have not ended.
    #[cfg(test)]
    pub(crate) fn background_tasks(&self) -> usize {
        self.background.borrow().iter().filter(|task| !task.is_finished()).count()
    }

    /// The target, for work that outlives a call.
    pub(crate) fn shared(&self) -> Rc<Target> {
        self.this.upgrade().expect("a target is only ever used through an Rc")
    }

    /// The map that was adopted last: what concerns this target.
    pub fn map(&self) -> Option<Rc<FabricMap>> {
        self.map.borrow().clone()
    }

    /// The version of the map that was adopted last; 0 for none.
    pub(crate) fn map_version(&self) -> MapVersion {
        self.map.borrow().as_ref().map_or(MapVersion(0), |m| m.version)
    }

    pub(crate) fn set_map(&self, map: Rc<FabricMap>, nonce: u64) {
        let slice = map.of_target.as_ref().map_or(Slice::Whole, |says| Slice::Target(says.target));
        weft_rules::holds_slice(&slice, &map);
        *self.map.borrow_mut() = Some(map);
        self.maps_adopted.set(self.maps_adopted.get() + 1);
        self.map_nonce.set(nonce);
        self.adopted.notify_all();
    }

    /// Tells when a map was adopted, or an entry of one.
    pub fn adopted(&self) -> &Notify {
        &self.adopted
    }

    /// Says under which sessions its process serves shards of file systems: the manager hears it when the
    /// target joins.
    pub fn set_serves(&self, sessions: BTreeSet<SessionId>) {
        *self.serves.borrow_mut() = sessions;
    }

    /// Says which shards its process was to serve and cannot open: people hear it when they ask for its
    /// status.
    pub fn set_unserved(&self, shards: Vec<UnservedShard>) {
        *self.unserved.borrow_mut() = shards;
    }

    /// This target's number, once the manager has told it.
    pub fn id(&self) -> Option<TargetId> {
        self.id.get()
    }

    /// Whether a manager has let it join since it started.
    pub fn has_joined(&self) -> bool {
        self.id().is_some()
    }

    pub(crate) fn set_id(&self, id: TargetId) {
        self.id.set(Some(id));
    }

    /// A drive's part in a group, if the drive has heard of it.
    pub(crate) fn member(&self, drive: DriveId, group: GroupId) -> Option<Rc<Member>> {
        self.members.borrow().get(&(group, drive)).cloned()
    }

    /// A drive's part in a group, which begins without an entry if it is new.
    pub(crate) fn member_or_new(&self, drive: &Rc<ServedDrive>, group: GroupId) -> Rc<Member> {
        let mut members = self.members.borrow_mut();
        members.entry((group, drive.id)).or_insert_with(|| Member::new(drive.clone(), group)).clone()
    }

    /// Forgets a drive's part in a group that was removed from the fabric.
    pub(crate) fn forget_member(&self, member: &Member) {
        let (drive, group) = (member.drive.id, member.group);
        self.members.borrow_mut().remove(&(group, drive));
        self.resyncs.borrow_mut().remove(&(drive, group));
    }

    /// All parts that drives of this target have in groups.
    pub(crate) fn members(&self) -> Vec<Rc<Member>> {
        self.members.borrow().values().cloned().collect()
    }
}

/// Kinds of requests that a target answers.
const ANSWERED: &[Kind] = &[
    Kind::Read,
    Kind::Versions,
    Kind::Write,
    Kind::WriteZeroes,
    Kind::Settle,
    Kind::Watermark,
    Kind::AdoptEntry,
    Kind::List,
    Kind::Vouch,
    Kind::Digests,
    Kind::Marks,
    Kind::Entries,
    Kind::Verify,
    Kind::Control,
];

impl Greeter for Target {
    fn greet(&self, hello: &Hello) -> Result<Option<FabricId>, String> {
        match hello.fabric {
            Some(fabric) if fabric != self.options.fabric => Err(format!(
                "'{}' belongs to fabric {fabric}, this target to {}",
                hello.name, self.options.fabric
            )),
            _ => Ok(Some(self.options.fabric)),
        }
    }
}

impl Service for Target {
    fn answer_bytes(&self, kind: Kind, head: &[u8]) -> u64 {
        match kind {
            Kind::Read => u64::from(DataRequest::peek_blocks(head)) * BLOCK_SIZE as u64,
            // With the data of a whole chunk.
            Kind::Entries => u64::from(CHUNK_BLOCKS) * BLOCK_SIZE as u64,
            _ => 0,
        }
    }

    // Not an `async fn`, which would keep its arguments twice.
    #[allow(clippy::manual_async_fn)]
    fn handle(self: Rc<Self>, peer: Rc<Peer>, request: Request) -> impl Future<Output = Answer> {
        async move {
            if self.is_stopped() {
                return Answer::error(Status::NotServing, "this target is being stopped");
            }
            match request.kind {
                Kind::Read | Kind::Versions => {
                    let answer = self.read(&peer, &request).await;
                    self.tell_if_failed(&peer, &request, answer)
                }
                Kind::Write | Kind::WriteZeroes => {
                    let answer = self.write(&peer, &request).await;
                    self.tell_if_failed(&peer, &request, answer)
                }
                Kind::Settle => Box::pin(self.settle(&peer, &request)).await,
                Kind::Watermark => self.take_watermarks(&request),
                Kind::AdoptEntry => Box::pin(self.answer_entry(&request)).await,
                Kind::List => Box::pin(self.list(&peer, &request)).await,
                Kind::Vouch => self.answer_vouch(&request),
                Kind::Digests | Kind::Marks | Kind::Entries => {
                    Box::pin(self.answer_resync(&peer, &request)).await
                }
                Kind::Verify => Box::pin(self.answer_verify(&peer, &request)).await,
                Kind::Control => Box::pin(self.command(&peer, request)).await,
                other => Answer::error(Status::Invalid, format!("a target does not answer {other:?}")),
            }
        }
    }
}
