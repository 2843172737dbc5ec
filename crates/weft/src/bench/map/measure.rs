//! The measurements: one manager on its embedded store, asked as targets, clients and people ask it.
//!
//! Nothing waits between two requests, so no background work of the manager runs in between, and
//! what is timed is the request alone.

use super::placed::Placed;
use super::shape::Shape;
use crate::manager::refused;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;
use weft_api::{ApiAnswer, ApiRequest, Outcome, SettingsWish};
use weft_cli::{CliError, Step};
use weft_manager::{EmbeddedStore, Manager, ManagerError, ManagerOptions, at_once, put_map};
use weft_membership::{Acknowledged, Change, CloseSession, Evict, SweepSession};
use weft_metrics::process_load;
use weft_rpc::{Peer, Request, Service};
use weft_rt::{Buf, Landing, sleep, spawn};
use weft_target::RENEWALS_PER_LEASE;
use weft_types::{AttachMode, DriveId, FabricMap, MapVersion, NodeId, Role, Slice, TargetId, TargetSlice};
use weft_wire::control::{self, DriveReport, Join, ManagerAnswer, ManagerRequest};
use weft_wire::handshake::PeerRole;
use weft_wire::pieces::{encode_delta, encode_whole};
use weft_wire::renewal::Renewal;
use weft_wire::{Kind, Status};

/// How often each request is timed; the median counts.
const ROUNDS: usize = 11;

/// Renewals are timed in a row, because one takes less than a clock tells well.
const RENEWALS: u32 = 200;

/// Bytes of the longest slice that a drive keeps: half of its place for copies of the map.
const SLICE_KEPT_MAX: usize = 1 << 19;

/// What something costs, or why it is not done for a map of this size.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Cost {
    /// In the unit of the field's name.
    Value(u64),
    /// The manager's reason.
    Refused(String),
}

impl Cost {
    /// The same in another unit.
    fn map(self, unit: impl FnOnce(u64) -> u64) -> Cost {
        match self {
            Cost::Value(value) => Cost::Value(unit(value)),
            refused @ Cost::Refused(_) => refused,
        }
    }

    /// The manager's reason, if it refused.
    fn refusal(&self) -> Option<&str> {
        match self {
            Cost::Refused(why) => Some(why),
            Cost::Value(_) => None,
        }
    }
}

/// What was measured. Times are medians.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    /// Machines.
    pub(super) nodes: u32,
    /// Targets of the fabric.
    pub(super) targets: usize,
    /// Drives of the fabric.
    pub(super) drives: usize,
    /// Groups.
    pub(super) groups: usize,
    /// Volumes.
    pub(super) volumes: usize,
    /// Open sessions.
    pub(super) sessions: usize,
    /// Bytes of the map in the store.
    pub(super) map_bytes: u64,
    /// From a closed store to a manager that answers.
    pub(super) load_ms: u64,
    /// Memory that the process gained by that.
    pub(super) resident_mib: u64,
    /// A change that touches nothing but settings.
    pub(super) commit_us: Cost,
    /// All drives of a node leave all of their groups, in one commit.
    pub(super) eviction_us: Cost,
    /// A target asks for its lease; rounded up.
    pub(super) renewal_us: Cost,
    /// How much of a core the renewals of all targets take, each as often as it asks in a lease, in percent.
    pub(super) renewals_core_percent: Cost,
    /// The manager looks at what it knows of all nodes and drives, and finds nothing to do.
    pub(super) look_us: Cost,
    /// All groups of an empty pool with these drives are placed.
    pub(super) place_groups_us: u64,
    /// The nodes that a node then shares groups with.
    pub(super) partner_nodes: usize,
    /// The drives of other nodes that the drives of a node then share groups with.
    pub(super) partner_drives: usize,
    /// A volume is created, from the request to the answer.
    pub(super) create_volume_us: Cost,
    /// A shared attach, its detach, and the session's end: three commits.
    pub(super) attach_us: Cost,
    /// Bytes written to drives, as copies of the whole map, and sent to targets and the client for these
    /// three.
    pub(super) attach_bytes: Cost,
    /// What a client is sent that attaches one volume.
    pub(super) client_slice_bytes: u64,
    /// What a client is sent when one group of its volume has changed; nothing for what is not its volume's.
    pub(super) client_refresh_bytes: u64,
    /// What a target is sent when one group has changed, its own or another's.
    pub(super) target_refresh_bytes: u64,
}

impl Measured {
    /// Why what was refused was refused, each reason once.
    pub(super) fn refusals(&self) -> BTreeSet<&str> {
        let costs =
            [&self.commit_us, &self.eviction_us, &self.renewal_us, &self.create_volume_us, &self.attach_us];
        costs.into_iter().filter_map(Cost::refusal).collect()
    }
}

/// Makes a map of this shape and a store with it.
pub(super) fn write_store(file: &Path, shape: Shape) -> Result<(), CliError> {
    let store = EmbeddedStore::open_or_make(file).map_err(|e| refused(&ManagerError::from(e)))?;
    let map = shape.map();
    at_once(put_map(&store, &map)).map_err(|e| refused(&ManagerError::from(e)))
}

/// Measures a manager on this store.
pub(super) fn measure(file: &Path, shape: Shape) -> Result<Measured, CliError> {
    let file = file.to_owned();
    weft_rt::block_on(async move { Bench::start(&file, shape).await?.measure().await })?
}

/// Bytes that a follower is sent.
struct Refresh {
    /// All of its slice.
    whole: u64,
    /// What has changed in it.
    change: u64,
}

#[derive(Clone)]
struct Bench {
    manager: Rc<Manager>,
    shape: Shape,
    load_ms: u64,
    resident_mib: u64,
}

impl Bench {
    async fn start(file: &Path, shape: Shape) -> Result<Bench, CliError> {
        let step = Step::new();
        step.says("loading the map");
        let (before, began) = (process_load().resident_bytes, Instant::now());
        let store = EmbeddedStore::open(file).map_err(|e| refused(&ManagerError::from(e)))?;
        let manager = Manager::start(store, ManagerOptions::default()).await.map_err(|e| refused(&e))?;
        let load_ms = began.elapsed().as_millis() as u64;
        let resident_mib = process_load().resident_bytes.saturating_sub(before) >> 20;
        Ok(Bench { manager, shape, load_ms, resident_mib })
    }

    async fn measure(self) -> Result<Measured, CliError> {
        let step = Step::new();
        let map = self.manager.map();
        let map_bytes = encode_whole(&map).len() as u64;
        let renewing = self.clone();
        drop(spawn(async move { renewing.keep_renewing().await }));
        step.says("targets join");
        self.join_all().await?;
        step.says("renewals");
        let renewal_ns = self.renewal().await;
        step.says("looks");
        let look_us = self.look().await;
        step.says("commits");
        let commit_us = self.commit().await;
        step.says("volumes");
        let create_volume_us = self.create_volume().await;
        step.says("sessions");
        let (attach_us, attach_deltas) = self.attach().await;
        step.says("evictions");
        let eviction_us = self.eviction().await;
        let placed = Placed::measure(&map, self.shape.protection)?;
        let client_refresh_bytes = client_refresh(&map);
        // Each commit is sent to the targets of the volume, whose drives keep their slices with it; the
        // client gets its slice once. What the store keeps of it is about a kilobyte.
        let (targets, kept) = told_of_first_session(&map);
        let attach_bytes = match &attach_us {
            Cost::Value(_) => Cost::Value(3 * kept + attach_deltas * targets + client_refresh_bytes.whole),
            Cost::Refused(why) => Cost::Refused(why.clone()),
        };
        Ok(Measured {
            nodes: self.shape.nodes,
            targets: map.targets.len(),
            drives: map.drives.len(),
            groups: map.groups.len(),
            volumes: map.volumes.len(),
            sessions: map.sessions.len(),
            map_bytes,
            load_ms: self.load_ms,
            resident_mib: self.resident_mib,
            commit_us,
            eviction_us,
            renewals_core_percent: of_a_core(&map, &renewal_ns),
            renewal_us: renewal_ns.map(|ns| ns.div_ceil(1000)),
            look_us,
            place_groups_us: placed.took.as_micros() as u64,
            partner_nodes: placed.partner_nodes,
            partner_drives: placed.partner_drives,
            create_volume_us,
            attach_us,
            attach_bytes,
            client_slice_bytes: client_refresh_bytes.whole,
            client_refresh_bytes: client_refresh_bytes.change,
            target_refresh_bytes: target_refresh(&map),
        })
    }

    /// Every target joins, so that the manager awaits nobody when one asks for its lease.
    async fn join_all(&self) -> Result<(), CliError> {
        let map = self.manager.map();
        let mut drives: BTreeMap<TargetId, Vec<DriveReport>> = BTreeMap::new();
        for drive in map.drives.values() {
            drives.entry(drive.target).or_default().push(DriveReport {
                id: drive.id,
                path: drive.path.clone(),
                capacity: drive.capacity,
                map_copy: MapVersion(1),
                epochs: Vec::new(),
                commit: 1,
                device: None,
            });
        }
        for target in map.targets.values() {
            let node = &map.nodes[&target.node];
            let drives = drives.remove(&target.id).unwrap_or_default();
            let join = ManagerRequest::Join(Join {
                node: node.name.clone(),
                addr: target.addr.clone(),
                incarnation: u64::from(target.id.0),
                drives,
                knows_floors: true,
                target: target.index,
                targets: map.targets_of(node.id).count() as u32,
                process: u64::from(node.id.0),
                knows_targets: true,
                knows_lanes: true,
                knows_file_systems: true,
                knows_spread: true,
                ..Join::default()
            });
            self.manage(PeerRole::Target(target.id), &join).await.map_err(|why| CliError::Failed {
                message: format!("'{}' cannot join: {why}", node.name),
                hint: "this is a fault of the measurement: say so".into(),
            })?;
        }
        Ok(())
    }

    /// Has every target renew its lease, as long as it is polled: otherwise the manager would be busy with
    /// a fabric whose nodes are all gone.
    async fn keep_renewing(&self) {
        loop {
            // Those that have not joined yet are refused.
            let _ = self.renew_all().await;
            sleep(self.manager.map().durations.lease() / 4).await;
        }
    }

    async fn renew_all(&self) -> Result<(), String> {
        let map = self.manager.map();
        let mut refused = Ok(());
        for target in map.targets.keys().copied() {
            let (incarnation, adopted) = (u64::from(target.0), Shape::VERSION);
            let renewal = Renewal { target, incarnation, adopted, commits: Vec::new(), ahead: Vec::new() };
            if let Err(why) = self.renew(&renewal).await {
                refused = Err(why);
            }
        }
        refused
    }

    async fn renew(&self, renewal: &Renewal) -> Result<(), String> {
        let role = PeerRole::Target(renewal.target);
        self.ask(role, Kind::Renew, renewal.encode(), None).await.map(|_| ())
    }

    /// In ns.
    async fn renewal(&self) -> Cost {
        let target = TargetId(1);
        let map = self.manager.map();
        // As a target renews that writes all the time: its drives have come further with each.
        let drives: Vec<DriveId> =
            map.drives.values().filter(|drive| drive.target == target).map(|drive| drive.id).collect();
        let renewal = |commit: u64| Renewal {
            target,
            incarnation: u64::from(target.0),
            adopted: map.version,
            commits: drives.iter().map(|drive| (*drive, commit)).collect(),
            ahead: vec![],
        };
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let began = Instant::now();
            for commit in 0..RENEWALS {
                if let Err(why) = self.renew(&renewal(u64::from(commit))).await {
                    return Cost::Refused(why);
                }
            }
            times.push(began.elapsed().as_nanos() as u64 / u64::from(RENEWALS));
        }
        Cost::Value(median(times))
    }

    /// All nodes are up, so that nothing is out of order.
    async fn look(&self) -> Cost {
        if let Err(why) = self.renew_all().await {
            return Cost::Refused(why);
        }
        // What was measured before kept the manager from its work: it has to catch up first.
        self.manager.decide().await;
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let began = Instant::now();
            self.manager.decide().await;
            times.push(began.elapsed().as_micros() as u64);
        }
        Cost::Value(median(times))
    }

    async fn commit(&self) -> Cost {
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            let capacity_warning_percent = Some(50 + round as u8);
            let wish = SettingsWish { capacity_warning_percent, ..SettingsWish::default() };
            let began = Instant::now();
            match self.operate(&ApiRequest::Settings(wish)).await {
                Ok(_) => times.push(began.elapsed().as_micros() as u64),
                Err(why) => return Cost::Refused(why),
            }
        }
        Cost::Value(median(times))
    }

    async fn create_volume(&self) -> Cost {
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            let create = ApiRequest::VolumeCreate {
                name: format!("measured-{round}"),
                size_bytes: 1 << 30,
                protection: self.shape.protection,
                pool: None,
                stripe_unit_bytes: None,
                width: None,
                failure_domain: Default::default(),
                thin: true,
                dry_run: false,
            };
            let began = Instant::now();
            match self.operate(&create).await {
                Ok(_) => times.push(began.elapsed().as_micros() as u64),
                Err(why) => return Cost::Refused(why),
            }
        }
        Cost::Value(median(times))
    }

    /// What an attach and its end take, and the bytes of the deltas of their three commits.
    async fn attach(&self) -> (Cost, u64) {
        let (mut times, mut delta_bytes) = (Vec::new(), 0);
        for _ in 0..ROUNDS {
            let (mut before, began) = (self.manager.map(), Instant::now());
            let maps = match self.attach_once().await {
                Ok(maps) => maps,
                Err(why) => return (Cost::Refused(why), 0),
            };
            times.push(began.elapsed().as_micros() as u64);
            delta_bytes = 0;
            for map in maps {
                delta_bytes += encode_delta(&map.delta_from(&before)).len() as u64;
                before = map;
            }
        }
        (Cost::Value(median(times)), delta_bytes)
    }

    /// Attaches the first volume, shared, and ends the session; the maps of the three commits.
    async fn attach_once(&self) -> Result<[Rc<FabricMap>; 3], String> {
        let map = self.manager.map();
        let volume = map.volumes.values().next().ok_or("there is no volume")?;
        let attach = ManagerRequest::Attach {
            volume: volume.name.clone(),
            mode: AttachMode::Shared,
            preempt: false,
            client: "measurement".into(),
            follows: Some(Slice::of_nothing()),
            number: 0,
            lanes: 1,
            kind: Default::default(),
            server: None,
        };
        let session = match self.manage(PeerRole::Client, &attach).await? {
            ManagerAnswer::Attached { session, .. } => session.id,
            other => return Err(format!("an unexpected answer: {other:?}")),
        };
        let attached = self.manager.map();
        self.manager.commit_planned(&Change::CloseSession(CloseSession { session })).await?;
        let closed = self.manager.map();
        self.manager.commit_planned(&Change::SweepSession(SweepSession { session })).await?;
        Ok([attached, closed, self.manager.map()])
    }

    async fn eviction(&self) -> Cost {
        let mut times = Vec::new();
        for round in 0..ROUNDS.min(self.shape.nodes as usize - 1) {
            let map = self.manager.map();
            let evict = evict(&map, NodeId(1 + round as u32));
            let began = Instant::now();
            match self.manager.commit_planned(&Change::Evict(evict)).await {
                Ok(()) => times.push(began.elapsed().as_micros() as u64),
                Err(why) => return Cost::Refused(why),
            }
        }
        match times.is_empty() {
            true => Cost::Refused("the only node cannot be evicted".into()),
            false => Cost::Value(median(times)),
        }
    }

    async fn manage(&self, role: PeerRole, request: &ManagerRequest) -> Result<ManagerAnswer, String> {
        let (head, body) = control::encode_request(request);
        let answer = self.ask(role, Kind::Manage, head, body).await?;
        control::decode(&answer.head).map_err(|e| e.to_string())
    }

    async fn operate(&self, request: &ApiRequest) -> Result<ApiAnswer, String> {
        let answer = self.ask(PeerRole::Tool, Kind::Api, weft_api::encode_request(request), None).await?;
        let body = answer.body.into_bufs().pop().ok_or("the answer has no body")?;
        match weft_api::decode_reply(&body).map_err(|e| e.to_string())?.outcome {
            Outcome::Answer(answer) => Ok(answer),
            Outcome::Error(error) => Err(error.message),
        }
    }

    async fn ask(
        &self,
        role: PeerRole,
        kind: Kind,
        head: Vec<u8>,
        body: Option<Vec<u8>>,
    ) -> Result<weft_rpc::Answer, String> {
        let peer =
            Peer { role, name: "measurement".into(), protocol: weft_wire::PROTOCOL, since: weft_rt::now() };
        let request = Request {
            kind,
            number: 0,
            head: Buf::from(head),
            body: Buf::from(body.unwrap_or_default()),
            one_way: false,
            landing: Landing::default(),
        };
        let answer = self.manager.clone().handle(Rc::new(peer), request).await;
        match answer.status {
            Status::Ok => Ok(answer),
            status => Err(format!("{status}: {}", String::from_utf8_lossy(&answer.head))),
        }
    }
}

/// How much of a core all renewals take, in percent and rounded up, if each of them takes so long in ns.
fn of_a_core(map: &FabricMap, renewal_ns: &Cost) -> Cost {
    let per_second =
        map.targets.len() as f64 * f64::from(RENEWALS_PER_LEASE) / map.durations.lease().as_secs_f64();
    renewal_ns.clone().map(|ns| (per_second * ns as f64 / 1e7).ceil() as u64)
}

/// What the client of the first session is sent, at first and when a group of its volume has changed.
fn client_refresh(map: &FabricMap) -> Refresh {
    let session = map.sessions.values().next();
    let slice = Slice::Client {
        volumes: session.map(|s| s.volume).into_iter().collect(),
        sessions: session.map(|s| s.id).into_iter().collect(),
    };
    let held = map.slice(&slice);
    let mut next = map.clone();
    next.version.0 += 1;
    if let Some(group) = held.groups.keys().next().and_then(|id| next.groups.get_mut(id)) {
        group.epoch.0 += 1;
    }
    let change = encode_delta(&next.slice(&slice).delta_from(&held)).len() as u64;
    Refresh { whole: encode_whole(&held).len() as u64, change }
}

/// How many targets are told of a session on the volume of the first one, and how many bytes their drives
/// keep with it: each the slice of its target, which is reckoned from that of the first of them.
fn told_of_first_session(map: &FabricMap) -> (u64, u64) {
    let volume = map.sessions.values().next().and_then(|s| map.volumes.get(&s.volume));
    let groups = volume.iter().flat_map(|v| v.groups());
    let slots = groups.filter_map(|id| map.groups.get(id)).flat_map(|group| &group.slots);
    let targets: BTreeSet<TargetId> =
        slots.filter_map(|slot| map.drives.get(&slot.drive)).map(|drive| drive.target).collect();
    let drives = map.drives.values().filter(|drive| targets.contains(&drive.target)).count() as u64;
    let slice = targets.first().map_or(0, |target| encode_whole(&map.slice(&Slice::Target(*target))).len());
    let kept = if slice > SLICE_KEPT_MAX { 0 } else { slice };
    (targets.len() as u64, drives * kept as u64)
}

/// What a target is sent when a group of its own has changed.
fn target_refresh(map: &FabricMap) -> u64 {
    let mut next = map.clone();
    next.version.0 += 1;
    let Some(target) = map.targets.keys().next() else { return 0 };
    let slice = TargetSlice::of(map, *target, BTreeSet::new());
    if let Some(id) = slice.held.first() {
        next.groups.get_mut(id).expect("it is listed").epoch.0 += 1;
    }
    let change = next.delta_from(map);
    slice
        .lead_on(map, &next, &[&change], &BTreeSet::new())
        .map_or(0, |(_, delta)| encode_delta(&delta).len() as u64)
}

/// The eviction of a node from every group that has another in-sync member, by that member's word.
fn evict(map: &FabricMap, node: NodeId) -> Evict {
    let drives: BTreeSet<DriveId> = map.drives.values().filter(|d| d.node == node).map(|d| d.id).collect();
    let is_written = |d: &DriveId| drives.contains(d);
    let groups = map.groups.values().filter(|g| g.write_set().any(|d| is_written(&d)));
    let word = groups.filter_map(|group| {
        let others = group.slots.iter().filter(|s| s.role == Role::InSync && !is_written(&s.drive));
        others.map(|s| (group.id, Acknowledged { by: s.drive, epoch: group.epoch })).next()
    });
    Evict { acknowledged: word.collect(), drives: drives.clone() }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}
