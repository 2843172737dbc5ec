//! The lease: the manager's word that this target is still a member wherever its map says so.
//!
//! It owns the connection to the manager: joining, renewing, fetching the map that a grant names. A target
//! counts its lease from when it sent the request, and the grant is void until the map that it names is
//! adopted. It never grants anything to itself: while the manager is silent, `vouch.rs` asks the peers.

use crate::drive::ServedDrive;
use crate::target::Target;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use weft_rpc::{CallError, ConnectError, Link, Reply};
use weft_rt::sync::{Notify, join_all};
use weft_rt::{Buf, Instant, now, sleep, sleep_about, timeout};
use weft_rules::{Mutation, mutated};
use weft_types::{BlockCount, DriveId, Durations, MapVersion, TargetId, with_causes};
use weft_wire::control::{self, DriveReport, Join, ManagerAnswer, ManagerRequest};
use weft_wire::renewal::{Grant, RENEWAL_PROTOCOL, Renewal};
use weft_wire::{Kind, Status};

/// How often a lease is renewed within its life: three requests may be lost before it runs out.
pub const RENEWALS_PER_LEASE: u32 = 4;

/// How long to wait before a manager that refused or did not answer is tried again: short beside a lease,
/// long beside a connection attempt on a local network.
const RETRY: Duration = Duration::from_millis(100);

/// The longest wait while a manager goes on refusing: somebody has to mend something first, and each refusal
/// is an event.
const RETRY_LONGEST: Duration = Duration::from_secs(3);

/// For so many leases a manager that has let this target join, and is not ready to grant anything, is
/// waited for before the next one is asked: one that has just started waits for a lease and a little
/// more.
const NOT_READY_LEASES: u32 = 2;

/// What is known of this target's right to serve.
#[derive(Default)]
pub(crate) struct Lease {
    /// When the newest grant whose map is adopted runs out.
    until: Cell<Option<Instant>>,
    /// Grants whose maps are not adopted yet, in the order in which they were asked for. A newer one does not
    /// make an older one void: otherwise maps that follow each other faster than they are adopted would end
    /// the lease.
    pending: RefCell<VecDeque<Pending>>,
    /// A grant has counted since this process started, so its list of suspects is known (R2).
    was_granted: Cell<bool>,
    /// A map that a grant named is being fetched.
    pub(crate) is_fetching: Cell<bool>,
    /// Targets that are being evicted, says the newest grant that counts, or one since.
    suspects: RefCell<BTreeSet<TargetId>>,
    /// Targets that this one has promised not to vouch for, and when it did.
    promises: RefCell<BTreeMap<TargetId, Instant>>,
}

/// A grant that waits for its map.
struct Pending {
    /// When its request was sent.
    sent: Instant,
    until: Instant,
    map: MapVersion,
    /// Targets that are being evicted as of this map.
    suspects: BTreeSet<TargetId>,
}

impl Lease {
    /// Whether the manager's word holds now.
    pub(crate) fn is_valid(&self) -> bool {
        self.until.get().map_or(mutated(Mutation::RestartServesAtOnce), |until| now() < until)
    }

    /// Whether the manager's word will run out before this instant.
    pub(crate) fn ends_before(&self, at: Instant) -> bool {
        self.until.get().is_none_or(|until| until < at)
    }

    /// Whether a grant has counted since this process started.
    pub(crate) fn was_granted(&self) -> bool {
        self.was_granted.get()
    }

    /// Whether this target may vouch for that one: not if the manager is about to evict it.
    pub(crate) fn may_vouch_for(&self, target: TargetId) -> bool {
        let (suspects, promises) = (self.suspects.borrow(), self.promises.borrow());
        let is_suspect = suspects.contains(&target) || promises.contains_key(&target);
        !is_suspect || mutated(Mutation::PromiseIgnored)
    }

    /// Promises not to vouch for the target (R11). The promise ends when the answer to a renewal that was
    /// sent after it no longer names the target, and the map of that answer is adopted: the eviction is then
    /// called off, or committed and known here. It is kept however many maps come in between, because a map
    /// that still lists the victim may be about something else.
    pub(crate) fn promise(&self, victim: TargetId) {
        self.promises.borrow_mut().insert(victim, now());
    }

    /// Takes a grant whose request was sent at `sent`.
    pub(crate) fn grant(
        &self,
        sent: Instant,
        lease: Duration,
        map: MapVersion,
        suspects: Vec<TargetId>,
        adopted: MapVersion,
    ) {
        let suspects: BTreeSet<TargetId> = suspects.into_iter().collect();
        // Suspicion counts at once, its end only with the map in which the victim is out: until then this
        // target would vouch for it by a map that still lists it.
        self.suspects.borrow_mut().extend(&suspects);
        let begins = if mutated(Mutation::LeaseFromReceipt) { now() } else { sent };
        let map = if mutated(Mutation::GrantWithoutMap) { MapVersion(0) } else { map };
        let mut pending = self.pending.borrow_mut();
        // What has run out while its map was on its way is of no use any more.
        pending.retain(|grant| grant.until > now());
        pending.push_back(Pending { sent, until: begins + lease, map, suspects });
        drop(pending);
        self.map_adopted(adopted);
    }

    /// A map is adopted: the newest grant that waited for it counts.
    pub(crate) fn map_adopted(&self, version: MapVersion) {
        let mut pending = self.pending.borrow_mut();
        let Some(newest) = pending.iter().rposition(|grant| grant.map <= version) else { return };
        let Some(Pending { sent, until, mut suspects, .. }) = pending.drain(..=newest).next_back() else {
            return;
        };
        suspects.extend(pending.iter().flat_map(|later| &later.suspects));
        drop(pending);
        self.until.set(self.until.get().max(Some(until)));
        self.was_granted.set(true);
        self.promises.borrow_mut().retain(|target, promised| *promised >= sent || suspects.contains(target));
        *self.suspects.borrow_mut() = suspects;
    }
}

/// Why the connection to the manager is of no further use.
pub(crate) enum Silent {
    /// It ended, or an answer did not come in time.
    Lost(String),
    /// The manager does not know this start of the target, or refuses it.
    Refused(String),
    /// The manager grants nothing at present: it has just started, or cannot trust its own store.
    NotReady(String),
}

impl Target {
    /// The durations of the adopted map, or the usual ones.
    pub(crate) fn durations(&self) -> Durations {
        self.map().map_or_else(Durations::default, |map| map.durations)
    }

    /// A lease, as long as this target's clock says that it lasts.
    pub(crate) fn lease_by_own_clock(&self) -> Duration {
        match mutated(Mutation::SlowClock) {
            true => self.durations().lease_wait(),
            false => self.durations().lease(),
        }
    }

    /// Joins the fabric and keeps the lease, for ever.
    pub(crate) async fn keep_lease(self: Rc<Self>) {
        let (mut at, mut pause) = (0, RETRY);
        loop {
            let addr = &self.options.managers[at % self.options.managers.len()];
            let silent = match Link::connect(addr, &self.hello()).await {
                Ok(link) => self.serve_under(&link).await,
                // It answers, so somebody has to mend something: this may be the manager of another fabric.
                Err(error @ ConnectError::Refused { .. }) => Silent::Refused(with_causes(&error)),
                Err(error) => Silent::Lost(with_causes(&error)),
            };
            at += 1;
            let is_round = at % self.options.managers.len() == 0;
            pause = match silent {
                // Another manager may be ready: it is asked before this one is given time.
                Silent::Refused(reason) | Silent::NotReady(reason) if !is_round => {
                    tracing::debug!(%addr, reason, "manager refuses");
                    RETRY
                }
                Silent::Lost(reason) => {
                    tracing::debug!(%addr, reason, "manager is silent");
                    RETRY
                }
                Silent::Refused(reason) | Silent::NotReady(reason) => {
                    tracing::warn!(%addr, reason, "manager refuses");
                    (pause * 2).min(RETRY_LONGEST)
                }
            };
            sleep(pause).await;
        }
    }

    /// Joins and renews over one connection until it is of no further use.
    async fn serve_under(&self, link: &Link) -> Silent {
        if let Err(silent) = self.join(link).await {
            return silent;
        }
        self.peers.set_manager(Some(link.clone()));
        let mut granted_at = now();
        let silent = loop {
            let sent = now();
            match self.renew(link).await {
                Ok(()) => granted_at = now(),
                // One that has just started grants nothing for about a lease.
                Err(Silent::NotReady(reason)) if self.has_patience(granted_at) => {
                    tracing::debug!(reason, "manager grants nothing yet");
                }
                Err(silent) => break silent,
            }
            let pause = self.durations().lease() / RENEWALS_PER_LEASE;
            sleep_about(pause.saturating_sub(sent.elapsed())).await;
        };
        self.peers.set_manager(None);
        silent
    }

    /// Whether a manager that has granted nothing since this instant is still given time: always where
    /// there is no other.
    fn has_patience(&self, since: Instant) -> bool {
        let patience = self.durations().lease() * NOT_READY_LEASES;
        self.options.managers.len() == 1 || since.elapsed() < patience
    }

    async fn join(&self, link: &Link) -> Result<(), Silent> {
        // What was refused once may be taken this time.
        let sound = self.drives.values().filter(|d| d.breakage().is_none());
        let drives = join_all(sound.map(|drive| self.report(drive))).await;
        let reported: Vec<DriveId> = drives.iter().map(|d| d.id).collect();
        let request = ManagerRequest::Join(Join {
            node: self.options.node_name.clone(),
            addr: self.options.listen.to_string(),
            incarnation: self.incarnation,
            drives,
            left_out: self.left_out.borrow().clone(),
            knows_floors: true,
            target: self.options.thread.index,
            targets: self.options.thread.of,
            process: self.options.thread.process,
            knows_targets: true,
            knows_lanes: true,
            knows_file_systems: true,
            knows_spread: true,
            serves: self.serves.borrow().clone(),
        });
        let (answer, body) = self.ask(link, &request).await?;
        let (id, refused, nonce) = match answer {
            ManagerAnswer::Joined { target, refused, nonce } => (target, refused, nonce),
            other => return Err(Silent::Refused(other.unexpected("join", "joined"))),
        };
        let refused: BTreeMap<DriveId, String> = refused.into_iter().collect();
        for (id, cause) in &refused {
            if let Some(drive) = self.drives.get(id) {
                drive.refuse(cause.clone());
            }
        }
        self.set_id(id);
        if !mutated(Mutation::JoinWithoutMap) || self.map().is_none() {
            self.adopt_soon(body, nonce).await?;
        }
        let taken = reported.iter().filter(|id| !refused.contains_key(id));
        for drive in taken.filter_map(|id| self.drives.get(id)).filter(|d| d.is_refused()) {
            self.take_back(drive).await;
        }
        Ok(())
    }

    /// Adopts the map that came with a join. A drive that hangs may hold that up until it counts as failed;
    /// after some time it goes on in the background, so that the lease is renewed meanwhile. It counts once
    /// the map is adopted.
    async fn adopt_soon(&self, body: Buf, nonce: u64) -> Result<(), Silent> {
        let (outcome, done) = (Rc::new(RefCell::new(Ok(()))), Rc::new(Notify::default()));
        let (target, told, adopted) = (self.shared(), outcome.clone(), done.clone());
        let waiting = done.notified();
        self.background(async move {
            *told.borrow_mut() = target.adopt_joined(&body, nonce).await;
            adopted.notify_all();
        });
        let _ = timeout(self.durations().lease() / RENEWALS_PER_LEASE, waiting).await;
        outcome.replace(Ok(()))
    }

    async fn renew(&self, link: &Link) -> Result<(), Silent> {
        let target = self.id().expect("a target renews after it has joined");
        let adopted = self.adopted_version();
        let (incarnation, commits, ahead) = (self.incarnation, self.commits(), self.ahead_of(adopted));
        let renewal = Renewal { target, incarnation, adopted, commits, ahead };
        let sent = now();
        let Grant { map, suspects, clock_us } = match link.protocol() >= RENEWAL_PROTOCOL {
            true => {
                let reply = self.call_manager(link, Kind::Renew, &renewal.encode(), None).await?;
                Grant::decode(&reply.head, &reply.body).map_err(|e| Silent::Refused(e.to_string()))?
            }
            false => self.renew_by_document(link, renewal).await?,
        };
        self.steady_clock.heard(clock_us);
        self.lease.grant(sent, self.lease_by_own_clock(), map, suspects, self.map_version());
        if map > self.map_version() {
            self.fetch_map(link);
        }
        Ok(())
    }

    /// Renews at a manager that does not know the fixed form.
    async fn renew_by_document(&self, link: &Link, renewal: Renewal) -> Result<Grant, Silent> {
        let Renewal { target, incarnation, adopted, commits, ahead } = renewal;
        let request = ManagerRequest::Renew { target, incarnation, adopted, commits, ahead };
        let (answer, _) = self.ask(link, &request).await?;
        match answer {
            ManagerAnswer::Granted { map, suspects, clock_us } => Ok(Grant { map, suspects, clock_us }),
            other => Err(Silent::Refused(other.unexpected("renew", "granted"))),
        }
    }

    /// How far the drives that it serves have come, durably.
    pub(crate) fn commits(&self) -> Vec<(DriveId, u64)> {
        let served = self.drives.values().filter(|d| !d.has_failed());
        served.map(|d| (d.id, d.store.durable_commit())).collect()
    }

    /// Drives that have adopted a later map than this one, and which: at most the map in force.
    fn ahead_of(&self, version: MapVersion) -> Vec<(DriveId, MapVersion)> {
        let working = self.drives.values().filter(|d| !d.has_failed());
        let adopted = working.map(|d| (d.id, d.adopted().min(self.map_version())));
        adopted.filter(|(_, adopted)| *adopted > version).collect()
    }

    /// Asks the manager. An answer that takes longer than half a lease is none: the connection may be dead
    /// without anyone having said so.
    pub(crate) async fn ask(
        &self,
        link: &Link,
        request: &ManagerRequest,
    ) -> Result<(ManagerAnswer, Buf), Silent> {
        let (head, body) = control::encode_request(request);
        let reply = self.call_manager(link, Kind::Manage, &head, body).await?;
        let answer = control::decode(&reply.head).map_err(|e| Silent::Refused(e.to_string()))?;
        Ok((answer, reply.body))
    }

    async fn call_manager(
        &self,
        link: &Link,
        kind: Kind,
        head: &[u8],
        body: Option<Vec<u8>>,
    ) -> Result<Reply, Silent> {
        let patience = self.durations().lease() / 2;
        match link.call_within(patience, kind, head, body).await {
            Ok(reply) => Ok(reply),
            Err(error) if error.status() == Some(Status::NotReady) => Err(Silent::NotReady(error.text())),
            Err(error @ CallError::Refused { .. }) => Err(Silent::Refused(error.to_string())),
            Err(error) => {
                if matches!(error, CallError::Late(_)) {
                    link.close();
                }
                Err(Silent::Lost(error.to_string()))
            }
        }
    }

    /// Tells the manager something until it has taken note, or until it need not know any more.
    pub(crate) async fn tell_manager(&self, request: ManagerRequest, is_needed: impl Fn() -> bool) {
        while is_needed() && !self.is_stopped() {
            if self.tell_manager_once(&request).await {
                return;
            }
            sleep(RETRY).await;
        }
    }

    /// Whether the manager has taken note.
    async fn tell_manager_once(&self, request: &ManagerRequest) -> bool {
        let Some(link) = self.peers.manager() else { return false };
        matches!(self.ask(&link, request).await, Ok((ManagerAnswer::Done, _)))
    }

    /// A drive as this target found it. What the drive's copy of the map knows counts also before this start
    /// has adopted any: a manager with an older store shall hear of it.
    async fn report(&self, drive: &ServedDrive) -> DriveReport {
        let store = &drive.store;
        let copy = match self.map() {
            // What the drive has is no newer: nothing of it is read, and one that hangs keeps no join
            // waiting.
            Some(_) => MapVersion(0),
            None => match store.map_copy().await {
                Ok(copy) => copy.map_or(MapVersion(0), |(version, _)| MapVersion(version)),
                Err(error) => {
                    drive.note(&error);
                    MapVersion(0)
                }
            },
        };
        let epochs = store.groups().into_iter().filter_map(|g| Some((g, store.group(g)?.epoch))).collect();
        DriveReport {
            id: drive.id,
            path: drive.path.clone(),
            capacity: BlockCount(store.usage().capacity_blocks),
            map_copy: self.map_version().max(copy),
            epochs,
            commit: store.durable_commit(),
            device: store.device(),
        }
    }

    /// Tells the manager of each drive that fails, once it serves nothing any more. One whose word is not
    /// taken yet holds up no other.
    pub(crate) async fn report_failures(self: Rc<Self>) {
        let mut reported = BTreeSet::new();
        loop {
            let failed = self.failures.notified();
            // The word would be about the drive of this name that another target serves.
            let told = |d: &ServedDrive| d.is_refused() || reported.contains(&d.id);
            let news: Vec<ManagerRequest> = (self.drives.values())
                .filter(|drive| !told(drive))
                .filter_map(|drive| {
                    Some(ManagerRequest::DriveFailed {
                        drive: drive.id,
                        incarnation: self.incarnation,
                        cause: drive.failure()?,
                        of_device: drive.is_device_at_fault(),
                    })
                })
                .collect();
            if news.is_empty() {
                failed.await;
                continue;
            }
            for request in news {
                if let ManagerRequest::DriveFailed { drive, .. } = request
                    && self.tell_manager_once(&request).await
                {
                    reported.insert(drive);
                }
            }
            sleep(RETRY).await;
        }
    }
}
