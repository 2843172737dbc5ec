//! A connection to the fabric: volumes are attached through it.

use crate::error::ClientError;
use crate::file_system::FileSystem;
use crate::follow::follow_map;
use crate::lane::{Lane, LaneSeed, Seat, hear_words};
use crate::managers::{Asked, Managers};
use crate::reach::watch_targets;
use crate::session::Session;
use crate::shared::Shared;
use crate::version_clock::VersionClock;
use crate::volume::{AttachOptions, Volume};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::time::Duration;
use weft_rpc::Link;
use weft_rt::{Addr, Instant, now, random_u64, sleep, spawn, timeout};
use weft_rules::{Mutation, mutated};
use weft_types::limits::FRAME_HEAD_MAX;
use weft_types::{AttachKind, AttachMode, FabricMap, TargetId, VolumeId};
use weft_wire::control::{ManagerAnswer, ManagerRequest};
use weft_wire::handshake::PeerRole;
use weft_wire::{Kind, Status};

/// How often sessions are kept alive, as a part of the time after which they are over.
const TOUCHES_PER_EXPIRY: u32 = 6;

/// What is attached.
#[derive(Clone, Copy)]
struct What {
    kind: AttachKind,
    /// Of a system volume: the target that its server runs beside.
    server: Option<TargetId>,
}

impl What {
    fn of(kind: AttachKind) -> What {
        What { kind, server: None }
    }
}

/// A connection to the fabric. Clones share it; it ends when the last clone and volume are dropped.
#[derive(Clone)]
pub struct Fabric(pub(crate) Rc<Shared>);

impl Fabric {
    /// Connects to the first manager that answers, and begins to follow the fabric map. The name is for
    /// people: it is shown as the client of its attaches.
    ///
    /// # Errors
    /// [`ClientError::NoManager`] if none answers.
    pub async fn connect(managers: &[Addr], name: &str) -> Result<Fabric, ClientError> {
        Fabric::connect_as(PeerRole::Client, managers, name).await
    }

    /// Likewise, for what a target's process does on behalf of clients: requests of clients that wait for it
    /// hold room at targets, so its own wait for none (P10).
    ///
    /// # Errors
    /// [`ClientError::NoManager`] if none answers.
    pub async fn connect_beside(
        managers: &[Addr],
        name: &str,
        target: TargetId,
    ) -> Result<Fabric, ClientError> {
        Fabric::connect_as(PeerRole::Target(target), managers, name).await
    }

    async fn connect_as(role: PeerRole, managers: &[Addr], name: &str) -> Result<Fabric, ClientError> {
        let map = FabricMap::empty(Default::default());
        let shared = Shared::new(name, role, Managers::new(managers, name), map, None);
        shared.fetch_map().await?;
        spawn(follow_map(Rc::downgrade(&shared)));
        spawn(keep_sessions_alive(Rc::downgrade(&shared)));
        spawn(watch_targets(Rc::downgrade(&shared)));
        Ok(Fabric(shared))
    }

    /// Attaches a volume. The volume that is returned is the attach's first lane; the others, as many as the
    /// manager has given, are in [`Volume::take_lanes`].
    ///
    /// An exclusive or preempting attach returns when every target fences the clients before it and their
    /// unfinished writes are finished or buried, so that this client sees one settled past.
    ///
    /// # Errors
    /// If there is no such volume, another attach is in the way, or no manager answers.
    /// [`ClientError::LanesOfParts`] if several lanes are asked for on a volume with blocks of 512 bytes
    /// (P9).
    pub async fn attach(&self, volume: &str, options: AttachOptions) -> Result<Volume, ClientError> {
        if options.lanes > 1 && options.writes_parts() && !mutated(Mutation::PartsOnLanes) {
            return Err(ClientError::LanesOfParts { volume: volume.to_owned(), lanes: options.lanes });
        }
        let (session, lanes) = self.attach_as(What::of(AttachKind::Blocks), volume, &options).await?;
        Ok(Volume::of_first_lane(session, options, lanes))
    }

    /// Attaches the system volume of a shard of a file system, for the server of that shard, which runs
    /// beside this target: exclusively, with blocks of 4096 bytes. The volume's name is that of
    /// [`weft_types::system_volume_name`].
    ///
    /// # Errors
    /// Those of [`Fabric::attach`]; [`ClientError::Refused`] if it is no system volume, or the map names
    /// another target.
    pub async fn attach_system_volume(
        &self,
        volume: &str,
        server: TargetId,
        options: AttachOptions,
    ) -> Result<Volume, ClientError> {
        let options = AttachOptions { mode: AttachMode::Exclusive, whole_blocks: true, ..options };
        let what = What { kind: AttachKind::System, server: Some(server) };
        let (session, lanes) = self.attach_as(what, volume, &options).await?;
        Ok(Volume::of_first_lane(session, options, lanes))
    }

    /// Attaches a file system beside other clients, to read and write, or only to read. What is returned is
    /// the attach's first lane; the others are in [`FileSystem::take_lanes`].
    ///
    /// # Errors
    /// Those of [`Fabric::attach`]; [`ClientError::Refused`] if it is no file system, or the options ask for
    /// an exclusive attach.
    pub async fn attach_file_system(
        &self,
        name: &str,
        options: AttachOptions,
    ) -> Result<FileSystem, ClientError> {
        let (session, lanes) = self.attach_as(What::of(AttachKind::Files), name, &options).await?;
        Ok(FileSystem::of_first_lane(session, options, lanes))
    }

    /// Attaches something that is of this kind: the first lane's session, and the other lanes.
    async fn attach_as(
        &self,
        what: What,
        volume: &str,
        options: &AttachOptions,
    ) -> Result<(Rc<Session>, Vec<Lane>), ClientError> {
        let (session, clock) = self.open_session(what, volume, options).await?;
        if session.lanes() < options.lanes {
            let (asked, given) = (options.lanes, session.lanes());
            tracing::warn!(volume, asked, given, "the attach has fewer lanes than it asked for");
        }
        let seed = |_| LaneSeed {
            name: self.0.name.clone(),
            volume: volume.to_owned(),
            slice: self.0.followed.borrow().slice.clone(),
            map: FabricMap::clone(&self.0.map()),
            clock,
            options: options.clone(),
        };
        let (seat, lanes, words) = Seat::of_first(&session, seed);
        let clock = VersionClock::read_at(clock.0, clock.1);
        let session = Session::new(self.0.clone(), &session, volume, clock, seat);
        words.into_iter().for_each(|words| drop(spawn(hear_words(Rc::downgrade(&session), words))));
        self.0.attach_session(&session);
        self.0.end_what_is_over(&self.0.map());
        Ok((session, lanes))
    }

    /// Opens a session, and says what the manager's clock was when.
    async fn open_session(
        &self,
        what: What,
        volume: &str,
        options: &AttachOptions,
    ) -> Result<(weft_types::Session, (Instant, u64)), ClientError> {
        let follows = self.0.follows();
        let key = (volume.to_owned(), options.mode, options.preempt, options.lanes);
        // While this attach is under way no other one has its number: two would share a session.
        let number = self.0.unanswered.borrow_mut().remove(&key).unwrap_or_else(|| random_u64() | 1);
        let request = ManagerRequest::Attach {
            volume: volume.to_owned(),
            mode: options.mode,
            preempt: options.preempt,
            client: self.0.name.clone(),
            follows: Some(follows.clone()),
            number,
            lanes: u32::try_from(options.lanes).unwrap_or(u32::MAX),
            kind: what.kind,
            server: what.server,
        };
        let asked = self.0.ask_manager(&request).await;
        // Only an answer tells for certain that no session is left of this attach, or which it is.
        if matches!(asked, Err(Asked::Failed(_) | Asked::Answered(Status::NotReady, _))) {
            self.0.unanswered.borrow_mut().insert(key.clone(), number);
        }
        let (answer, body) = asked.map_err(|e| match e {
            Asked::Answered(Status::NotFound, _) => ClientError::NoSuchVolume { name: volume.to_owned() },
            other => other.into(),
        })?;
        let (mut session, generation, clock_us, nonce) = match answer {
            ManagerAnswer::Attached { session, generation, clock_us, nonce } => {
                (session, generation, clock_us, nonce)
            }
            other => return Err(ClientError::Refused { message: other.unexpected("attach", "attached") }),
        };
        let clock = (now(), clock_us);
        if let Err(error) = self.0.take_attached(&body, nonce, follows, &session).await {
            self.0.unanswered.borrow_mut().insert(key, number);
            return Err(error);
        }
        session.generation = generation;
        Ok((session, clock))
    }

    /// The newest map that this client has: what concerns its sessions, as [`weft_types::Slice`] says.
    pub fn map(&self) -> Rc<FabricMap> {
        self.0.map()
    }

    /// Has the map of this client list these volumes from soon on, whether they are attached or not, with
    /// their groups and the targets of these. Volumes of an earlier call that are not among them are left
    /// out, unless they are attached.
    pub fn watch_volumes(&self, volumes: BTreeSet<VolumeId>) {
        if self.0.watched.replace(volumes.clone()) != volumes {
            self.0.follows_other.notify_all();
        }
    }

    /// Sends a message to the server beside a target, as the head of a frame or as its body if it is longer
    /// than a head may be, and returns the answer. `None` if no answer has come in `patience`, or none that
    /// is no error: the message may have arrived then, and may still arrive.
    ///
    /// # Panics
    /// If the message is longer than the body of a frame may be.
    pub async fn ask_beside(
        &self,
        target: TargetId,
        kind: Kind,
        message: &[u8],
        patience: Duration,
    ) -> Option<Vec<u8>> {
        let link = timeout(patience, self.0.link_to(target)).await.ok()?.ok()?;
        let (head, body) = match message.len() <= FRAME_HEAD_MAX {
            true => (message, None),
            false => (&[][..], Some(message.to_vec())),
        };
        let reply = link.call_within(patience, kind, head, body).await.ok()?;
        let bytes = if reply.head.is_empty() { &reply.body } else { &reply.head };
        Some(bytes.to_vec())
    }

    /// Bytes that this client has sent to targets.
    pub fn bytes_sent(&self) -> u64 {
        let open: u64 = self
            .0
            .targets
            .borrow()
            .values()
            .filter_map(|t| t.link.borrow().as_ref().map(Link::bytes_sent))
            .sum();
        open + self.0.bytes_sent_by_closed_links.get()
    }
}

/// Tells the manager which sessions are alive, and which nodes this client reaches.
async fn keep_sessions_alive(shared: Weak<Shared>) {
    loop {
        let Some(fabric) = shared.upgrade() else { return };
        let every = fabric.shortest_expiry() / TOUCHES_PER_EXPIRY;
        fabric.touch(every).await;
        drop(fabric);
        sleep(every).await;
    }
}
