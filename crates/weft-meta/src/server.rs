//! The shards that one target's process serves: which these are, and who may ask them.
//!
//! It owns when a shard is opened and when it ends. The map names a target for each shard; the server beside
//! that target takes the system volume away from the server before it (R16), and serves until another one is
//! named or has taken it. It decides nothing about names and attributes.

use crate::error::{MediumError, MetaError};
use crate::other_shards::OtherShards;
use crate::purge::purge;
use crate::shard::{Shard, ShardFormat, open_or_format};
use crate::superblock::ShardName;
use crate::volume_medium::VolumeMedium;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_client::{AttachMode, AttachOptions, ClientError, Fabric};
use weft_layout::FileLayout;
use weft_rpc::{Answer as Reply, Body, Peer, Request, Service};
use weft_rt::sync::{Either, Notify, race};
use weft_rt::{Buf, Listener, now, sleep, spawn};
use weft_rules::{Mutation, mutated};
use weft_target::Target;
use weft_types::limits::{FILE_LEASE_MS, FRAME_HEAD_MAX, SHARD_REQUESTS_MAX};
use weft_types::{FabricMap, SessionId, SessionState, Volume, VolumeId, VolumeState, with_causes};
use weft_wire::control::UnservedShard;
use weft_wire::files::{AttributeChanges, HoldMode, Operation, ShardRequest};
use weft_wire::{Encoder, Kind, Status};

/// First and longest pause before a shard that could not be opened is tried again.
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_LONGEST: Duration = Duration::from_secs(1);

/// How long an operation on a shard's volume is tried again. As long as a group has no replica that
/// serves, ending the shard would not help, because it could not be opened again either.
const VOLUME_PATIENCE: Duration = Duration::from_secs(600);

/// Which shard of which file system.
pub(crate) type Key = (VolumeId, u16);

/// How long the leases of a session stay after its end. A mount relies on them for `FILE_LEASE_MS` after a
/// server has last heard from it, by a clock that may run slower: so a tenth is added.
const LEASE_WAIT: Duration = Duration::from_millis(FILE_LEASE_MS + FILE_LEASE_MS / 10);

/// How long a shard cannot be opened before people are told: another server may hold it for that long.
const UNSERVED_AFTER: Duration = Duration::from_secs(3);

/// How often answers of sessions that are over are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(5);

/// The shards that are served beside one target.
pub struct ShardServer {
    target: Rc<Target>,
    shards: RefCell<BTreeMap<Key, Rc<Served>>>,
    fabric: RefCell<Option<Fabric>>,
    under_way: UnderWay,
    has_stopped: Cell<bool>,
    /// The server was stopped.
    stopped: Notify,
}

/// Operations that change something, by shard, session and number.
type OperationKey = (VolumeId, u16, SessionId, u64);

/// Requests that are begun and not answered.
#[derive(Default)]
struct UnderWay {
    keys: RefCell<BTreeSet<OperationKey>>,
    count: Cell<usize>,
}

/// A request, for as long as it is under way.
struct Begun<'a> {
    under_way: &'a UnderWay,
    key: Option<OperationKey>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.under_way.count.set(self.under_way.count.get() - 1);
        if let Some(key) = &self.key {
            self.under_way.keys.borrow_mut().remove(key);
        }
    }
}

/// A shard that the map names this server for.
struct Served {
    /// Its system volume.
    volume: VolumeId,
    shard: RefCell<Option<Shard<VolumeMedium>>>,
    session: Cell<Option<SessionId>>,
    /// Why it could not be opened when that was tried last, once that has been so for a while.
    trouble: RefCell<Option<String>>,
    is_over: Cell<bool>,
    /// It is served no more.
    over: Notify,
}

impl Served {
    fn end(&self) {
        self.is_over.set(true);
        self.over.notify_all();
        if let Some(shard) = self.shard.take() {
            shard.close();
        }
    }
}

impl ShardServer {
    /// The server beside a target. It does nothing before [`ShardServer::run`].
    pub fn beside(target: &Rc<Target>) -> Rc<ShardServer> {
        Rc::new(ShardServer {
            target: target.clone(),
            shards: RefCell::default(),
            fabric: RefCell::new(None),
            under_way: UnderWay::default(),
            has_stopped: Cell::new(false),
            stopped: Notify::default(),
        })
    }

    /// Serves the target at its address, and the shards that the map names it for, for ever.
    pub async fn run(self: &Rc<Self>, listener: Listener) {
        spawn(self.clone().follow_maps());
        let kinds = [Kind::AskShard, Kind::AskPeer];
        self.target.run_beside(listener, |services| services.serve(&kinds, self.clone())).await;
    }

    /// Serves what the map names it for, until it is stopped.
    async fn follow_maps(self: Rc<Self>) {
        while !self.has_stopped.get() {
            let adopted = self.target.adopted().notified();
            self.follow_map();
            race(adopted, self.stopped.notified()).await;
        }
    }

    /// Serves nothing any more. What is under way is not answered.
    pub fn stop(&self) {
        self.has_stopped.set(true);
        self.stopped.notify_all();
        self.shards.take().values().for_each(|served| served.end());
    }

    /// Begins to serve what the map names this server for, and ends what it does not.
    fn follow_map(self: &Rc<Self>) {
        let named = self.named();
        let mut shards = self.shards.borrow_mut();
        shards.retain(|key, served| {
            let stays = named.get(key) == Some(&served.volume);
            if !stays {
                served.end();
            }
            stays
        });
        for (key, served) in shards.iter() {
            if let Some(shard) = &*served.shard.borrow() {
                self.tell_newest_set(key.0, shard);
            }
        }
        for (key, volume) in named {
            shards.entry(key).or_insert_with(|| {
                let served = Rc::new(Served {
                    volume,
                    shard: RefCell::new(None),
                    session: Cell::new(None),
                    trouble: RefCell::new(None),
                    is_over: Cell::new(false),
                    over: Notify::default(),
                });
                spawn(self.clone().keep(key, served.clone()));
                served
            });
        }
        drop(shards);
        self.watch_file_systems();
    }

    /// Tells a shard the set that new inodes lie in, as the target's map has it.
    fn tell_newest_set(&self, file_system: VolumeId, shard: &Shard<VolumeMedium>) {
        let map = self.target.map();
        let listed = map.as_ref().and_then(|map| map.volumes.get(&file_system));
        if let Some(layout) = listed.and_then(FileLayout::default_of) {
            shard.use_set(layout.set);
        }
    }

    /// The shards that this server is named for, with their system volumes.
    fn named(&self) -> BTreeMap<Key, VolumeId> {
        let Some((own, map)) = self.target.id().zip(self.target.map()) else { return BTreeMap::new() };
        let ready = map.file_systems().filter(|volume| volume.state == VolumeState::Ready);
        let shards = ready.flat_map(|volume| {
            let shards = volume.files().into_iter().flat_map(|files| &files.shards);
            shards.enumerate().map(move |(n, shard)| ((volume.id, n as u16), shard))
        });
        let own = shards.filter(|(_, shard)| shard.server == Some(own));
        own.map(|(key, shard)| (key, shard.volume)).collect()
    }

    /// Opens a shard, and again when it has ended, until another server is named.
    async fn keep(self: Rc<Self>, key: Key, served: Rc<Served>) {
        let (mut pause, mut told, mut closed_since) = (RETRY_FIRST, String::new(), now());
        while !served.is_over.get() {
            let why = match race(self.open(key, &served), served.over.notified()).await {
                Either::Left(Ok(shard)) if served.is_over.get() => {
                    shard.close();
                    break;
                }
                Either::Left(Ok(shard)) => {
                    pause = RETRY_FIRST;
                    let (file_system, shard_number) = (key.0.0, key.1);
                    self.tell_newest_set(key.0, &shard);
                    tracing::info!(file_system, shard = shard_number, "the shard is served here");
                    *served.shard.borrow_mut() = Some(shard.clone());
                    served.trouble.replace(None);
                    self.tell_unserved();
                    let opened = now();
                    let why = self.serve(key, &shard).await;
                    served.shard.replace(None);
                    // One that ends as soon as it is opened is of no use either.
                    if opened.elapsed() >= UNSERVED_AFTER {
                        closed_since = now();
                    }
                    with_causes(&why)
                }
                Either::Left(Err(why)) => why,
                Either::Right(()) => break,
            };
            if closed_since.elapsed() >= UNSERVED_AFTER {
                served.trouble.replace(Some(why.clone()));
                self.tell_unserved();
            }
            served.session.set(None);
            self.tell_sessions();
            if served.is_over.get() {
                break;
            }
            if told != why {
                tracing::warn!(
                    file_system = key.0.0,
                    shard = key.1,
                    error = why,
                    "the shard is not served here"
                );
                told = why;
            }
            race(sleep(pause), served.over.notified()).await;
            pause = (pause * 2).min(RETRY_LONGEST);
        }
        served.session.set(None);
        self.tell_sessions();
        self.tell_unserved();
    }

    /// Has a shard served until it ends.
    async fn serve(&self, (file_system, _): Key, shard: &Shard<VolumeMedium>) -> MetaError {
        let listed = self.target.map().and_then(|map| map.volumes.get(&file_system).map(|v| v.name.clone()));
        let fabric = self.fabric.borrow().clone();
        let Some((name, fabric)) = listed.zip(fabric) else { return shard.ended().await };
        let cleaning = race(purge(shard, &fabric, &name), self.forget_sessions(file_system, shard));
        match race(cleaning, shard.ended()).await {
            Either::Left(Either::Left(why) | Either::Right(why)) | Either::Right(why) => why,
        }
    }

    /// Has a shard forget the answers of sessions that are over for good, from time to time, until it ends.
    ///
    /// A mount may not have heard yet that its session is over. It relies on its leases until it finds that
    /// it hears from no server (F5). So they stay that long from when the server has heard of it last.
    async fn forget_sessions(&self, file_system: VolumeId, shard: &Shard<VolumeMedium>) -> MetaError {
        let pause = Cell::new(FORGET_EVERY);
        loop {
            race(sleep(pause.get()), self.target.adopted().notified()).await;
            pause.set(FORGET_EVERY);
            let Some(map) = self.target.map() else { continue };
            let is_over = |session: SessionId| {
                if !map.was_forgotten(session, file_system) {
                    return false;
                }
                let left = LEASE_WAIT.saturating_sub(shard.silent_for(session));
                if left.is_zero() || mutated(Mutation::EvictNoWait) {
                    return true;
                }
                pause.set(pause.get().min(left));
                false
            };
            loop {
                match shard.forget_sessions(&is_over).await {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(error) => return error,
                }
            }
        }
    }

    /// Takes a shard over from the server before.
    async fn open(
        self: &Rc<Self>,
        (file_system, shard): Key,
        served: &Served,
    ) -> Result<Shard<VolumeMedium>, String> {
        let (target, map) = self.target.id().zip(self.target.map()).ok_or("the target has no map yet")?;
        let gone = || format!("the map of the target has no file system {file_system}");
        let listed = map.volumes.get(&file_system).ok_or_else(gone)?;
        let format = format_of(&map, listed, shard)?;
        let name = map.volumes.get(&served.volume).ok_or_else(gone)?.name.clone();
        let options =
            AttachOptions { preempt: true, io_timeout: VOLUME_PATIENCE, ..AttachOptions::default() };
        let fabric = self.fabric().await.map_err(|error| with_causes(&error))?;
        self.watch_file_systems();
        let attached = fabric.attach_system_volume(&name, target, options).await;
        let volume = attached.map_err(|error| with_causes(&error))?;
        served.session.set(Some(volume.session_id()));
        self.tell_sessions();
        self.target_follows(served.volume, volume.session_id()).await?;
        let opened = open_or_format(VolumeMedium::new(volume), &format).await;
        let opened = opened.map_err(|error| with_causes(&error))?;
        if let Some(files) = listed.files().filter(|files| files.is_spread) {
            opened.join_peers(Rc::new(OtherShards::of(self, file_system)), files.shards.len() as u16);
        }
        Ok(opened)
    }

    /// Has the connection to the fabric follow where the shards of file systems are served whose directories
    /// lie in several of them.
    fn watch_file_systems(&self) {
        let Some((fabric, map)) = self.fabric_now().zip(self.target.map()) else { return };
        let served: BTreeSet<VolumeId> = self.shards.borrow().keys().map(|key| key.0).collect();
        let is_spread = |id: &VolumeId| {
            let files = map.volumes.get(id).and_then(Volume::files);
            files.is_some_and(|files| files.is_spread)
        };
        fabric.watch_volumes(served.into_iter().filter(is_spread).collect());
    }

    /// Waits until the target's map lists the session of a shard. From then on it is at least as new as the
    /// attach, and knows every session that was over by then.
    ///
    /// # Errors
    /// If the session is over.
    async fn target_follows(&self, volume: VolumeId, session: SessionId) -> Result<(), String> {
        loop {
            let adopted = self.target.adopted().notified();
            if let Some(map) = self.target.map() {
                match map.sessions.get(&session).map(|listed| listed.state) {
                    Some(SessionState::Open) => return Ok(()),
                    None if !map.was_forgotten(session, volume) => {}
                    Some(SessionState::Over) | None => {
                        return Err(format!("session {session} of the server is over"));
                    }
                }
            }
            adopted.await;
        }
    }

    async fn fabric(&self) -> Result<Fabric, ClientError> {
        if let Some(fabric) = &*self.fabric.borrow() {
            return Ok(fabric.clone());
        }
        let options = self.target.options();
        let name = format!("shards of {}/{}", options.node_name, options.thread.index);
        let own = self.target.id().unwrap_or_default();
        let fabric = Fabric::connect_beside(&options.managers, &name, own).await?;
        Ok(self.fabric.borrow_mut().get_or_insert(fabric).clone())
    }

    /// The connection to the fabric, if there is one.
    pub(crate) fn fabric_now(&self) -> Option<Fabric> {
        self.fabric.borrow().clone()
    }

    /// A shard that is served here now.
    pub(crate) fn shard(&self, key: Key) -> Option<Shard<VolumeMedium>> {
        self.shards.borrow().get(&key).and_then(|served| served.shard.borrow().clone())
    }

    fn tell_unserved(&self) {
        let shards = self.shards.borrow();
        let unserved = shards.iter().filter_map(|((file_system, shard), served)| {
            let why = served.trouble.borrow().clone()?;
            Some(UnservedShard { file_system: *file_system, shard: *shard, why })
        });
        self.target.set_unserved(unserved.collect());
    }

    fn tell_sessions(&self) {
        let shards = self.shards.borrow();
        self.target.set_serves(shards.values().filter_map(|served| served.session.get()).collect());
    }

    /// Notes that a request is begun. Returns `None` if too many are under way, or if this one is: then
    /// its client asks again for the answer.
    fn begin(&self, asked: &ShardRequest) -> Option<Begun<'_>> {
        let number = asked.request.number;
        let count = self.under_way.count.get();
        let key = (number > 0).then_some((asked.file_system, asked.shard, asked.request.session, number));
        // What others wait for must not wait behind them. Numbered requests are bounded by the window of
        // their session.
        let may_wait =
            number == 0 && !matches!(asked.request.operation, Operation::Recalls | Operation::Told(_));
        let is_full = count >= SHARD_REQUESTS_MAX && may_wait;
        if is_full || key.is_some_and(|key| !self.under_way.keys.borrow_mut().insert(key)) {
            return None;
        }
        self.under_way.count.set(count + 1);
        Some(Begun { under_way: &self.under_way, key })
    }

    /// Answers a question of a client.
    async fn answer(&self, request: &Request) -> Reply {
        let bytes = if request.head.is_empty() { &request.body } else { &request.head };
        let asked = match ShardRequest::decode(bytes) {
            Ok(asked) => asked,
            Err(error) => return Reply::error(Status::Invalid, with_causes(&error)),
        };
        if let Err(refusal) = self.check_session(&asked) {
            return refusal;
        }
        let key = (asked.file_system, asked.shard);
        let Some(shard) = self.shard(key) else {
            let text =
                format!("shard {} of file system {} is not served here", asked.shard, asked.file_system);
            return Reply::error(Status::NotServing, text);
        };
        let Some(_under_way) = self.begin(&asked) else {
            return Reply::error(Status::NotReady, "the operation is under way, or too many are");
        };
        match shard.serve_if(&asked.request, || self.check_session(&asked)).await {
            // Its session may have ended meanwhile.
            Ok(Ok(answer)) => self.check_session(&asked).err().unwrap_or_else(|| {
                let mut e = Encoder::default();
                answer.encode(&mut e);
                framed(e.0)
            }),
            Ok(Err(refusal)) => refusal,
            Err(error @ MetaError::Medium(MediumError::Fenced) | error @ MetaError::Closed) => {
                Reply::error(Status::NotServing, with_causes(&error))
            }
            Err(error) => Reply::error(Status::NotReady, with_causes(&error)),
        }
    }

    /// Refuses a session that is not open on the file system, by the map of the target (F1).
    fn check_session(&self, asked: &ShardRequest) -> Result<(), Reply> {
        let refused = |status, text: String| Err(Reply::error(status, text));
        let (session, file_system) = (asked.request.session, asked.file_system);
        let Some(map) = self.target.map() else {
            return refused(Status::NotServing, "the target has no map yet".to_owned());
        };
        match map.sessions.get(&session) {
            Some(listed) if listed.volume != file_system => {
                refused(Status::Invalid, format!("session {session} is of {}", listed.volume))
            }
            Some(listed) if listed.state == SessionState::Open => {
                match listed.mode == AttachMode::ReadOnly && !may_read_only(&asked.request.operation) {
                    true => refused(Status::Refused, format!("session {session} only reads")),
                    false => Ok(()),
                }
            }
            Some(_) => refused(Status::SessionOver, format!("session {session} is over")),
            None if map.was_forgotten(session, file_system) => {
                refused(Status::SessionOver, format!("session {session} is over"))
            }
            None => refused(Status::NotServing, format!("session {session} is not known here yet")),
        }
    }
}

/// Whether a session that only reads may ask for this. It may hold inodes, so that they stay while it has
/// them open.
fn may_read_only(operation: &Operation) -> bool {
    match operation {
        Operation::Hold(_, mode) => *mode != HoldMode::Write,
        Operation::Release(_, changes) => *changes == AttributeChanges::default(),
        Operation::HoldDirectory(_) | Operation::Lock(..) | Operation::Unlock(..) => true,
        operation => !operation.changes(),
    }
}

impl Service for ShardServer {
    async fn handle(self: Rc<Self>, _peer: Rc<Peer>, request: Request) -> Reply {
        match request.kind {
            Kind::AskPeer => self.answer_peer(&request).await,
            _ => self.answer(&request).await,
        }
    }
}

/// An answer as a frame: the head, or the body if it is longer than a head may be.
pub(crate) fn framed(answer: Vec<u8>) -> Reply {
    match answer.len() <= FRAME_HEAD_MAX {
        true => Reply::ok(answer, Body::none()),
        false => Reply::ok(Vec::new(), Buf::from(answer)),
    }
}

/// What a new shard is.
fn format_of(map: &FabricMap, file_system: &Volume, shard: u16) -> Result<ShardFormat, String> {
    let layout = FileLayout::default_of(file_system);
    let layout = layout.ok_or_else(|| format!("{} is no file system", file_system.id))?;
    let name = ShardName { file_system: file_system.id.0, shard };
    let is_spread = file_system.files().is_some_and(|files| files.is_spread);
    let format = ShardFormat::new(name, hash_key_of(map, file_system), layout.encode());
    Ok(ShardFormat { is_spread, ..format })
}

/// The key by which all shards of a file system hash names: another one for each file system.
fn hash_key_of(map: &FabricMap, file_system: &Volume) -> [u8; 16] {
    use siphasher::sip128::{Hasher128, SipHasher24};
    use std::hash::Hasher;
    let mut hasher = SipHasher24::new_with_key(&map.fabric.to_bytes());
    hasher.write_u64(file_system.id.0);
    hasher.write_u64(file_system.created_ms);
    hasher.finish128().as_bytes()
}
