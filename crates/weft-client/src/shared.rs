//! The fabric as a client sees it: its part of the newest map, connections to targets and to a manager.

use crate::attached::Attached;
use crate::contact::Contact;
use crate::error::ClientError;
use crate::followed::Followed;
use crate::lane::WayToFirst;
use crate::managers::{Asked, Managers};
use crate::reach::watch_targets;
use crate::session::Session;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;
use weft_rpc::Link;
use weft_rt::sync::{Mutex, Notify};
use weft_rt::{Addr, Buf, sleep, spawn};
use weft_types::{
    AttachMode, DriveId, FabricId, FabricMap, Group, GroupId, SessionId, Slice, TargetId, VolumeId,
    with_causes,
};
use weft_wire::Status;
use weft_wire::control::{ManagerAnswer, ManagerRequest};
use weft_wire::handshake::{Hello, PeerRole};

/// How long to wait before a manager that did not answer is tried again: short beside a lease, long beside a
/// connection attempt on a local network.
pub(crate) const MANAGER_RETRY: Duration = Duration::from_millis(200);

/// A target's connection, and the turn of whoever connects.
pub(crate) struct TargetLink {
    pub(crate) addr: String,
    pub(crate) link: RefCell<Option<Link>>,
    pub(crate) connecting: Mutex<()>,
    /// Whether it answers.
    pub(crate) contact: Contact,
}

pub(crate) struct Shared {
    pub(crate) name: String,
    /// As what it connects to targets.
    role: PeerRole,
    pub(crate) managers: Managers,
    pub(crate) map: RefCell<Rc<FabricMap>>,
    /// Which part of it that is.
    pub(crate) followed: RefCell<Followed>,
    /// Volumes whose entries are followed without a session.
    pub(crate) watched: RefCell<BTreeSet<VolumeId>>,
    /// Another part is followed from now on.
    pub(crate) follows_other: Rc<Notify>,
    /// The newest entry known of each group: from the map, or from a refused request.
    pub(crate) entries: RefCell<BTreeMap<GroupId, Rc<Group>>>,
    /// The map or an entry has changed.
    pub(crate) changed: Notify,
    pub(crate) targets: RefCell<BTreeMap<String, Rc<TargetLink>>>,
    /// The target of each drive that was asked for since the map changed.
    pub(crate) drives: RefCell<BTreeMap<DriveId, Rc<TargetLink>>>,
    pub(crate) sessions: RefCell<BTreeMap<SessionId, Weak<dyn Attached>>>,
    pub(crate) bytes_sent_by_closed_links: Cell<u64>,
    /// The manager is being told which nodes answer.
    pub(crate) is_reporting: Cell<bool>,
    /// Attaches that were asked for and not answered, by volume, mode, whether they preempt, and lanes; with
    /// the numbers by which the manager knows them again (C10).
    pub(crate) unanswered: RefCell<BTreeMap<(String, AttachMode, bool, usize), u64>>,
    /// Of a lane after the first one: how it reaches the first one, which asks the manager.
    pub(crate) first_lane: Option<WayToFirst>,
    pub(crate) this: Weak<Shared>,
}

impl Drop for Shared {
    /// Ends the connections, which those who watch over them hold too.
    fn drop(&mut self) {
        for target in self.targets.borrow().values() {
            target.link.borrow().iter().for_each(Link::close);
        }
    }
}

impl Shared {
    /// Nothing known yet.
    pub(crate) fn new(
        name: &str,
        role: PeerRole,
        managers: Managers,
        map: FabricMap,
        first_lane: Option<WayToFirst>,
    ) -> Rc<Shared> {
        Rc::new_cyclic(|this| Shared {
            name: name.to_owned(),
            role,
            managers,
            map: RefCell::new(Rc::new(map)),
            followed: RefCell::default(),
            watched: RefCell::default(),
            follows_other: Rc::default(),
            entries: RefCell::default(),
            changed: Notify::default(),
            targets: RefCell::default(),
            drives: RefCell::default(),
            sessions: RefCell::default(),
            bytes_sent_by_closed_links: Cell::new(0),
            is_reporting: Cell::new(false),
            unanswered: RefCell::default(),
            first_lane,
            this: this.clone(),
        })
    }

    /// The fabric of a lane after the first one: it asks no manager, and goes by the maps that it is sent.
    pub(crate) fn of_lane(name: &str, map: FabricMap, slice: Slice, first: WayToFirst) -> Rc<Shared> {
        let empty = FabricMap::empty(map.fabric);
        let shared = Shared::new(name, PeerRole::Client, Managers::new(&[], name), empty, Some(first));
        shared.followed.borrow_mut().slice = slice;
        shared.adopt(map);
        spawn(watch_targets(Rc::downgrade(&shared)));
        shared
    }

    /// Has a session use it from now on.
    pub(crate) fn attach_session(&self, session: &Rc<Session>) {
        session.pass_over_later();
        let attached: Rc<dyn Attached> = session.clone();
        self.sessions.borrow_mut().insert(session.id, Rc::downgrade(&attached));
    }

    pub(crate) fn map(&self) -> Rc<FabricMap> {
        self.map.borrow().clone()
    }

    /// The sessions that use it.
    pub(crate) fn attached(&self) -> Vec<Rc<dyn Attached>> {
        let mut sessions = self.sessions.borrow_mut();
        sessions.retain(|_, session| session.strong_count() > 0);
        sessions.values().filter_map(Weak::upgrade).collect()
    }

    /// The newest entry known of a group.
    pub(crate) fn entry(&self, group: GroupId) -> Option<Rc<Group>> {
        self.entries.borrow().get(&group).cloned()
    }

    /// Takes an entry that a refused request brought back, if it is newer.
    pub(crate) fn adopt_entry(&self, entry: Group) {
        let known = self.entry(entry.id).map(|e| e.epoch);
        if known.is_some_and(|epoch| epoch < entry.epoch) {
            self.entries.borrow_mut().insert(entry.id, Rc::new(entry));
            self.changed.notify_all();
        }
    }

    /// Holds this version of the map from now on.
    pub(crate) fn set_map(&self, map: FabricMap) -> Rc<FabricMap> {
        let map = Rc::new(map);
        *self.map.borrow_mut() = map.clone();
        weft_rules::holds_slice(&self.followed.borrow().slice, &map);
        map
    }

    /// Goes by this map from now on, apart from entries of groups that are newer already.
    pub(crate) fn adopt(&self, map: FabricMap) {
        {
            let mut entries = self.entries.borrow_mut();
            entries.retain(|id, _| map.groups.contains_key(id));
            for (id, group) in &map.groups {
                if entries.get(id).is_none_or(|known| known.epoch < group.epoch) {
                    entries.insert(*id, Rc::new(group.clone()));
                }
            }
        }
        let map = self.set_map(map);
        self.drives.borrow_mut().clear();
        self.attached().iter().for_each(|session| session.map_changed());
        self.end_what_is_over(&map);
        self.changed.notify_all();
    }

    /// Completes when the newest entry of the group has another epoch than this.
    pub(crate) async fn epoch_changed(&self, entry: &Group) {
        loop {
            let changed = self.changed.notified();
            if self.entry(entry.id).is_none_or(|e| e.epoch != entry.epoch) {
                return;
            }
            changed.await;
        }
    }

    /// The connection to the target that serves a drive.
    pub(crate) async fn link(&self, drive: DriveId) -> Result<Link, String> {
        let known = self.drives.borrow().get(&drive).cloned();
        let slot = match known {
            Some(slot) => slot,
            None => self.target_of(drive)?,
        };
        if let Some(link) = slot.open() {
            return Ok(link);
        }
        slot.contact.want();
        // Boxed so that connecting, which is rare, does not swell the future of every request.
        Box::pin(self.connect(&slot)).await
    }

    /// The connection to a target.
    pub(crate) async fn link_to(&self, target: TargetId) -> Result<Link, String> {
        let addr = self.map.borrow().targets.get(&target).map(|target| target.addr.clone());
        let slot = self.target_at(addr.ok_or_else(|| format!("target {target} is not in the map"))?);
        match slot.open() {
            Some(link) => Ok(link),
            None => {
                slot.contact.want();
                self.connect(&slot).await
            }
        }
    }

    /// The target that serves a drive, as the map says.
    fn target_of(&self, drive: DriveId) -> Result<Rc<TargetLink>, String> {
        let addr = self.map.borrow().drive_addr(drive).map(str::to_owned);
        let slot = self.target_at(addr.ok_or_else(|| format!("drive {drive} is not in the map"))?);
        self.drives.borrow_mut().insert(drive, slot.clone());
        Ok(slot)
    }

    fn target_at(&self, addr: String) -> Rc<TargetLink> {
        let mut targets = self.targets.borrow_mut();
        let slot = targets.entry(addr).or_insert_with_key(|addr| {
            let (link, connecting) = (RefCell::new(None), Mutex::new(()));
            Rc::new(TargetLink { addr: addr.clone(), link, connecting, contact: Contact::default() })
        });
        slot.clone()
    }

    /// A drive with its node, for people.
    pub(crate) fn drive_in_words(&self, id: DriveId) -> String {
        let map = self.map.borrow();
        let node = map.drives.get(&id).and_then(|drive| map.nodes.get(&drive.node));
        node.map_or_else(|| id.to_string(), |node| format!("{id} of node '{}'", node.name))
    }

    /// Which of these drives to ask first, of which all hold the same: one that can be reached through shared
    /// memory, `chosen` of them by number, as long as there are some.
    pub(crate) fn nearest(&self, drives: &[DriveId], chosen: usize) -> usize {
        let known = self.drives.borrow();
        let is_near =
            |drive| known.get(drive).is_some_and(|t| t.link.borrow().as_ref().is_some_and(Link::is_shared));
        let near = || (0..drives.len()).filter(|i| is_near(&drives[*i]));
        match near().count() {
            0 => chosen % drives.len(),
            count => near().nth(chosen % count).expect("there are so many"),
        }
    }

    /// Connects to a target, one caller at a time.
    async fn connect(&self, slot: &TargetLink) -> Result<Link, String> {
        let _turn = slot.connecting.lock().await;
        if let Some(link) = slot.open() {
            return Ok(link);
        }
        if let Some(old) = slot.link.borrow_mut().take() {
            let total = self.bytes_sent_by_closed_links.get() + old.bytes_sent();
            self.bytes_sent_by_closed_links.set(total);
        }
        let to: Addr = slot.addr.parse().map_err(|e| format!("{e}"))?;
        let hello = Hello::new(self.role, Some(self.map.borrow().fabric), self.name.clone());
        let _attempt = slot.contact.connect();
        let link = Link::connect(&to, &hello).await.map_err(|e| with_causes(&e))?;
        slot.contact.hear();
        *slot.link.borrow_mut() = Some(link.clone());
        spawn(watch_link(self.this.clone(), link.clone()));
        Ok(link)
    }

    /// Whether there is a connection to the target that serves a drive.
    pub(crate) fn is_connected(&self, drive: DriveId) -> bool {
        let map = self.map.borrow();
        let targets = self.targets.borrow();
        let target = map.drive_addr(drive).and_then(|addr| targets.get(addr));
        target.is_some_and(|t| t.open().is_some())
    }

    /// Asks a manager ([`Managers::ask`]).
    pub(crate) async fn ask_manager(&self, request: &ManagerRequest) -> Result<(ManagerAnswer, Buf), Asked> {
        self.managers.ask(self.known_fabric(), request).await
    }

    /// The connection to the manager that is asked at present.
    pub(crate) async fn manager_link(&self) -> Result<Link, ClientError> {
        self.managers.link(self.known_fabric()).await
    }

    /// None before a map is there.
    fn known_fabric(&self) -> Option<FabricId> {
        Some(self.map.borrow().fabric).filter(|fabric| fabric.0 != 0)
    }

    /// Why a session is over, as the manager says; asks until it does.
    pub(crate) async fn why_over(&self, session: SessionId, pause: Duration) -> String {
        let touch = ManagerRequest::Touch { sessions: vec![session], silent: vec![], heard: vec![] };
        loop {
            if let Err(Asked::Answered(Status::SessionOver, why)) = self.ask_manager(&touch).await {
                return why;
            }
            sleep(pause).await;
        }
    }
}

impl TargetLink {
    pub(crate) fn open(&self) -> Option<Link> {
        self.link.borrow().as_ref().filter(|l| !l.is_closed()).cloned()
    }
}

/// Tells sessions when a connection to a target has ended.
async fn watch_link(shared: Weak<Shared>, link: Link) {
    link.closed().await;
    let Some(fabric) = shared.upgrade() else { return };
    fabric.attached().iter().for_each(|session| session.connection_ended());
}
