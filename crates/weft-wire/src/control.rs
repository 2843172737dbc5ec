//! What is rare travels as JSON in the head or, where it may be large, in the body: membership, sessions,
//! marks for resync, status.

use crate::pieces::{are_pieces, decode_whole};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use weft_types::limits::FRAME_HEAD_MAX;
use weft_types::{
    AttachKind, AttachMode, BlockCount, BlockRange, ChunkIndex, DeviceId, DriveId, Epoch, FabricId,
    FabricMap, Generation, Group, GroupId, MapVersion, ObjectId, ScrubFindingKind, Session, SessionId,
    SessionSlot, Slice, TargetId, Version, VolumeId,
};

/// The first protocol in which targets are sent their slices of the map, and what has changed in them.
pub const DELTA_PROTOCOL: u16 = 2;

/// What targets and clients ask of the manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum ManagerRequest {
    /// A target has started (or its drives have changed): it serves nothing before the answer's map is
    /// adopted.
    Join(Join),
    /// A target asks for its lease. It counts the lease from when it sent this.
    Renew {
        /// The target.
        #[serde(rename = "node")]
        target: TargetId,
        /// The start of the target that joined.
        incarnation: u64,
        /// The map that it has adopted durably.
        adopted: MapVersion,
        /// Per drive the newest commit that is durable there: what it must still have when it is seen next.
        #[serde(default)]
        commits: Vec<(DriveId, u64)>,
        /// Drives that have adopted a later map than `adopted`, which another drive of the target holds down,
        /// with the version of each; none from a target of an older release.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ahead: Vec<(DriveId, MapVersion)>,
    },
    /// A target is stopped in order: it refuses every request, and those that it had admitted have
    /// finished. This is how far its drives have come. Answered once that is durable: a drive that is seen
    /// next with less is an older copy of itself. Said once it serves nothing any more, and again once its
    /// drives are closed; a target of an older release says it only then.
    Stopped {
        /// The target.
        #[serde(rename = "node")]
        target: TargetId,
        /// The start of the target that is being stopped.
        incarnation: u64,
        /// Per drive the newest commit that is durable there.
        commits: Vec<(DriveId, u64)>,
    },
    /// Answers once the map is newer than this one, or with no map after a while. From a member of the
    /// release before; all others send `Follow`.
    WatchMap {
        /// The version that the sender has; 0 for none.
        have: MapVersion,
    },
    /// Answers with what has changed in a slice of the map since a version, once something has; with
    /// nothing after a while. At once with the whole slice if the answering manager cannot say what
    /// changed since.
    Follow {
        /// The version of the slice that the sender has; 0 for none.
        version: MapVersion,
        /// The nonce with which that came: the same version of another nonce may say something else.
        nonce: u64,
        /// What is followed: the slice that the sender has at that version.
        slice: Slice,
    },
    /// Every block of this replica is verified in this stint (R15).
    Verified {
        /// The group.
        group: GroupId,
        /// The replica's drive.
        drive: DriveId,
        /// The epoch at which its syncing began.
        stint: Epoch,
    },
    /// A drive has failed: its store is latched.
    DriveFailed {
        /// The drive.
        drive: DriveId,
        /// The start of the process that serves it no more. Another process of this target may have found the
        /// drive sound and serve it by the time that the word arrives.
        incarnation: u64,
        /// What happened, for people.
        cause: String,
        /// Whether the device that it is on is at fault: then its other drives are emptied. A target of the
        /// release before does not say so.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        of_device: bool,
    },
    /// A client attaches a volume. Answered when every target has acknowledged the generation and the
    /// earlier sessions are swept, where the mode asks for that (R16).
    Attach {
        /// The volume's name.
        volume: String,
        /// What the session may do.
        mode: AttachMode,
        /// Whether sessions in the way are ended.
        preempt: bool,
        /// Who asks, for people.
        client: String,
        /// What the client follows already: the answer brings that and what concerns the new session,
        /// and nothing else. From a client of an older release there is none, and the answer brings the
        /// whole map.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        follows: Option<Slice>,
        /// What the client knows this attach by: asked again with it, the attach finds its own session
        /// (C10). 0: it does not say, as clients of an earlier release.
        #[serde(default, skip_serializing_if = "is_zero")]
        number: u64,
        /// How many lanes the session is to have, from 1 to [`weft_types::limits::LANES_MAX`]. How many it
        /// has is in the answer: the slots of the session. A manager of an earlier release gives one.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        lanes: u32,
        /// What the client takes it for. Refused where it is something else.
        #[serde(default, skip_serializing_if = "AttachKind::is_blocks")]
        kind: AttachKind,
        /// Of the server of a shard that attaches its system volume: the target that it runs beside. Refused
        /// where the map names another one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server: Option<TargetId>,
    },
    /// A client is done; its session is over and can be swept.
    Detach {
        /// The session.
        session: SessionId,
    },
    /// A client is alive, and says which targets answer it. Each time says all there is: a target that is
    /// not named any more is not silent any more.
    Touch {
        /// Its sessions.
        sessions: Vec<SessionId>,
        /// Targets that do not answer, with how long it has waited in vain; at most
        /// [`weft_types::limits::REACH_TARGETS_MAX`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        silent: Vec<TargetAge>,
        /// Targets that have answered, with how long ago they did last; at most as many.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        heard: Vec<TargetAge>,
    },
    /// A client or target could not reach a drive's target: a hint to look, no proof.
    Suspect {
        /// The target that does not answer.
        #[serde(rename = "node")]
        target: TargetId,
    },
    /// A node is about to start, and asks whether it may have several targets without anybody having said so.
    /// Answered with `Done`, or refused with who is in the way. A manager of the release before does not know
    /// the question, which is a refusal, too.
    MayHaveTargets {
        /// The node's name.
        node: String,
    },
}

/// What a target says of itself when it joins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The node's name.
    pub node: String,
    /// Where the target listens.
    pub addr: String,
    /// Random, new for each start of the target.
    pub incarnation: u64,
    /// The drives that it opened.
    pub drives: Vec<DriveReport>,
    /// The drives that its process was to serve and has not opened, said by one of the process's targets;
    /// none from a target of an older release.
    #[serde(default)]
    pub left_out: Vec<DriveLeftOut>,
    /// Whether it knows the floors of groups (R7); a target of an older release does not.
    #[serde(default)]
    pub knows_floors: bool,
    /// Which of its process's targets it is, from 0.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub target: u32,
    /// How many targets the process has, from 1; 0 from a target of an older release, which is the only one.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub targets: u32,
    /// The process that it is a thread of: random, new for each start of the process. 0 from a target of an
    /// older release, which is a process of its own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub process: u64,
    /// Whether it asks every target of a node for its word (P2); a target of an older release asks the first
    /// one alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub knows_targets: bool,
    /// Whether it serves sessions with several lanes (P6); a target of an older release refuses all but the
    /// first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub knows_lanes: bool,
    /// Whether it knows file systems: their entries in the map, and objects of inodes. A target of an older
    /// release could not read a map that has one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub knows_file_systems: bool,
    /// Whether it knows file systems with directories in several shards (F3). A target of an older release
    /// could not read a map that has one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub knows_spread: bool,
    /// The sessions under which its process serves shards of file systems. Other sessions of system volumes
    /// that it is named for are of processes before it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub serves: BTreeSet<SessionId>,
}

/// A target, and for how long something has been so, by the sender's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetAge {
    /// The target.
    #[serde(rename = "node")]
    pub target: TargetId,
    /// For how long, in milliseconds.
    pub ms: u64,
}

/// A drive as its target found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveReport {
    /// From the label.
    pub id: DriveId,
    /// Where on the node, for people.
    pub path: String,
    /// Blocks that can hold data.
    pub capacity: BlockCount,
    /// The newest map version that the drive's copy or its groups know.
    pub map_copy: MapVersion,
    /// Groups of which the drive holds a durable entry, with its epoch.
    pub epochs: Vec<(GroupId, Epoch)>,
    /// The newest commit that is durable on it; 0 if its target does not say.
    #[serde(default)]
    pub commit: u64,
    /// What it is on: the same for the drives of a node that share a device. None: it shares it with no
    /// other, or its target does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceId>,
}

/// A drive that a target was to serve, and has left out. For people: nothing is decided by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveLeftOut {
    /// Where on the node.
    pub path: String,
    /// From the label, where that could be read.
    #[serde(default)]
    pub id: Option<DriveId>,
    /// The fabric in the label, if it is another one than the target's.
    #[serde(default)]
    pub fabric: Option<FabricId>,
    /// Why, in a sentence that names the path.
    pub why: String,
    /// What to do about it.
    pub hint: String,
}

/// The manager's answers. A refusal is a frame with another status and a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum ManagerAnswer {
    /// To `Join`: the map travels in the body.
    Joined {
        /// The target's number.
        #[serde(rename = "node")]
        target: TargetId,
        /// Drives that are not this target's, and why: the target must not serve them.
        #[serde(default)]
        refused: Vec<(DriveId, String)>,
        /// Belongs to the version of that map, as in `Followed`; 0 from a manager of an older release.
        #[serde(default, skip_serializing_if = "is_zero")]
        nonce: u64,
    },
    /// To `Renew`: the lease holds once the map of this version is adopted.
    Granted {
        /// The map that must be adopted for the lease to count.
        map: MapVersion,
        /// Targets that must not be vouched for: they are being evicted (R11).
        suspects: Vec<TargetId>,
        /// The manager's wall clock, which never goes back, in microseconds since 1970-01-01T00:00:00Z; 0
        /// from a manager of an older release. A target whose own clock is behind judges by this one which
        /// versions are too far ahead.
        #[serde(default)]
        clock_us: u64,
    },
    /// To `WatchMap`: the map travels in the body; no body: nothing newer yet.
    Map {
        /// The version of the map.
        version: MapVersion,
    },
    /// To `Follow`. The body is a delta that leads from one version of the slice to the other, or the whole
    /// slice as a map. No body: the slice is the same in both.
    Followed {
        /// The version that it leads from: the one in the request; 0: the body is the whole slice.
        from: MapVersion,
        /// The version that it leads to.
        version: MapVersion,
        /// To be sent with that version.
        nonce: u64,
    },
    /// To `Attach`: the map travels in the body, or the slice that was asked for.
    Attached {
        /// The session.
        session: Session,
        /// The generation that its requests carry.
        generation: Generation,
        /// The manager's wall clock, as in `Granted`: no version of the session starts far ahead of it.
        #[serde(default)]
        clock_us: u64,
        /// To be sent with the version of the slice in the body, when that is followed; 0 with a whole
        /// map.
        #[serde(default, skip_serializing_if = "is_zero")]
        nonce: u64,
    },
    /// Done.
    Done,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn one() -> u32 {
    1
}

fn is_one(number: &u32) -> bool {
    *number == 1
}

fn is_zero_u32(number: &u32) -> bool {
    *number == 0
}

impl ManagerAnswer {
    /// Its kind, as on the wire.
    pub fn kind(&self) -> &'static str {
        match self {
            ManagerAnswer::Joined { .. } => "joined",
            ManagerAnswer::Granted { .. } => "granted",
            ManagerAnswer::Map { .. } => "map",
            ManagerAnswer::Followed { .. } => "followed",
            ManagerAnswer::Attached { .. } => "attached",
            ManagerAnswer::Done => "done",
        }
    }

    /// What to say of an answer of another kind than belongs to the request.
    pub fn unexpected(&self, request: &str, expected: &str) -> String {
        format!("unexpected reply to {request}: kind '{}', expected '{expected}'", self.kind())
    }
}

/// What the manager asks of a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum TargetRequest {
    /// Adopt the map in the body, or the target's slice of it; answered once its epochs, roles, stints and
    /// generations are durable (R2).
    AdoptMap {
        /// The version of the map in the body.
        version: MapVersion,
        /// Belongs to that version, as in `Followed`; 0 from a manager of an older release.
        #[serde(default, skip_serializing_if = "is_zero")]
        nonce: u64,
    },
    /// Take the next bytes of a slice that does not fit one frame; the last ones are answered like
    /// `AdoptMap`, the others `Done`. A target that has not taken the ones before, or has them under another
    /// nonce, does nothing, and answers `Holds`. Sent over [`DELTA_PROTOCOL`] and later ones.
    AdoptPart {
        /// The version of the slice.
        version: MapVersion,
        /// Belongs to that version.
        nonce: u64,
        /// Which bytes, from 0 on.
        part: u32,
        /// Of how many.
        parts: u32,
    },
    /// Keep the part of the whole map in the body on this drive, for a recovery (C11). From a manager to
    /// targets over [`DELTA_PROTOCOL`] and later ones.
    KeepPart {
        /// The drive.
        drive: DriveId,
        /// The version of the map.
        version: MapVersion,
    },
    /// Adopt what the delta in the body makes of the map, or the slice of it, that the target has; answered
    /// like `AdoptMap`. A target that has another version, or has it under another nonce, does nothing, and
    /// answers `Holds` (C8). Sent over [`DELTA_PROTOCOL`] and later ones.
    AdoptDelta {
        /// The version that it leads from.
        from: MapVersion,
        /// The version that it leads to.
        version: MapVersion,
        /// Belongs to both versions.
        nonce: u64,
    },
    /// Promise not to vouch for this target (R11). The promise holds, however many maps come, until a grant
    /// that was asked for later does not name the target among its suspects, and the map of that grant is
    /// adopted.
    StopVouching {
        /// The target that is to be evicted.
        victim: TargetId,
        /// The newest map when this was asked: for people and traces, the promise does not end with it.
        map: MapVersion,
    },
    /// Refuse these sessions for good, durably (R10).
    EndSessions {
        /// The sessions that are over.
        sessions: Vec<SessionId>,
    },
    /// Sweep the open entries of these sessions, which are over everywhere; answered when none is left (R10).
    Sweep {
        /// The sessions that are over, with their slots.
        sessions: Vec<(SessionId, SessionSlot)>,
        /// The volume that they were on: their entries are in its groups.
        volume: VolumeId,
        /// The map that has to be adopted first. Copies from a source that an older one has evicted do not
        /// count then.
        map: MapVersion,
    },
    /// Drop every block of a volume that is being deleted.
    DropVolume {
        /// The volume.
        volume: VolumeId,
    },
    /// Say which drives there are, which groups they know, and what they hold of these.
    Inventory {
        /// Groups of which every chunk is looked at.
        detail: Vec<GroupId>,
    },
    /// Say whether a drive holds data of a volume.
    HoldsData {
        /// The volume.
        volume: VolumeId,
    },
    /// Lead exactly these scrubs: begin those that are new, stop those that are not named. Said again, it
    /// asks how they are getting on.
    Scrub {
        /// The scrubs, each told from others by its order.
        orders: Vec<ScrubOrder>,
    },
    /// Say which of these sessions it has served lately: a client that the manager does not hear may be
    /// alive.
    HeardOf {
        /// The sessions.
        sessions: Vec<SessionId>,
    },
    /// Admit no client's write below these versions any more, wait for those that were admitted, and say
    /// what sessions have open then (R7). Without any: say that of each group that has tombstones to forget.
    Floors {
        /// The groups, each with the epoch in which it is to close, and the version.
        close: Vec<(GroupId, Epoch, Version)>,
    },
    /// Report usage and resync progress.
    Status,
    /// Report what was asked since the process started.
    Load,
}

/// A target's answers to the manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum TargetAnswer {
    /// Done, durably.
    Done,
    /// To `AdoptMap` and `AdoptDelta`, where they lead to a slice: adopted, durably.
    Adopted {
        /// Groups of the slice that no drive of the target is a member of, or has anything of, any more.
        left: Vec<GroupId>,
    },
    /// To `AdoptDelta`: it does not begin at the map that the target has, which is this one. Nothing was
    /// done.
    Holds {
        /// The version; 0 for none.
        version: MapVersion,
        /// The nonce that came with it; 0 if only a whole map can follow.
        nonce: u64,
    },
    /// To `Status`.
    Status(TargetStatus),
    /// To `Inventory`: always in the body, behind an empty head, as it may be large.
    Inventory(Box<Inventory>),
    /// To `HoldsData`.
    HoldsData {
        /// Whether a drive does.
        holds: bool,
    },
    /// To `HeardOf`: those of the sessions of which a request was admitted since the process started,
    /// and how many milliseconds ago the last one was.
    HeardOf {
        /// The sessions.
        heard: Vec<(SessionId, u64)>,
    },
    /// To `Floors`. Travels in the body, with an empty head, where it passes what a head may be.
    Floors {
        /// Per drive and group; of those that were to close, only the ones that have.
        groups: Vec<OpenBelow>,
    },
    /// To `Scrub`. Travels in the body, with an empty head, where it passes what a head may be.
    Scrubs(ScrubReport),
    /// To `Load`: always in the body, behind an empty head, as it may be large.
    Load(Box<crate::load::TargetLoad>),
}

/// What a member knows of the writes in a group that may not be finished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenBelow {
    /// The member's drive.
    pub drive: DriveId,
    /// The group.
    pub group: GroupId,
    /// Its epoch there.
    pub epoch: Epoch,
    /// The newest tombstone that is not below the group's floor; none if it holds none.
    pub newest_tombstone: Option<Version>,
    /// Per session slot the watermark, and the lowest version above it that is open.
    pub sessions: Vec<(SessionSlot, Version, Option<Version>)>,
    /// Whether it admits no client's write below a version, until the group begins another epoch. A target
    /// of an earlier release does not say so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_closed: bool,
}

/// What a target says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetStatus {
    /// Per drive.
    pub drives: Vec<DriveStatus>,
    /// Per replica that is being brought up to date.
    pub resyncs: Vec<ResyncStatus>,
    /// Whether the target holds a lease, or its peers' word.
    pub serving: bool,
    /// The share of the time that background work takes while clients are there, in percent; none while no
    /// client is, and it takes all that there is.
    #[serde(default)]
    pub pace_percent: Option<u8>,
    /// Shards of file systems that its process was to serve, and could not open for a while; none from a
    /// target of an older release.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unserved: Vec<UnservedShard>,
}

/// A shard of a file system that its server cannot open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnservedShard {
    /// The file system.
    pub file_system: VolumeId,
    /// Which of its shards, from 0.
    pub shard: u16,
    /// Why, for people.
    pub why: String,
}

/// What a target has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// The version of the program.
    pub software: String,
    /// The clock of its machine when it answered, in microseconds since 1970-01-01T00:00:00Z.
    pub clock_us: u64,
    /// The map that it has adopted.
    pub map: MapVersion,
    /// Its drives, also those that have failed or are refused.
    pub drives: Vec<DriveInventory>,
}

/// What a target has on a drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveInventory {
    /// The drive, from its label.
    pub id: DriveId,
    /// Where on the node, for people.
    pub path: String,
    /// The format of what is on it.
    pub format: u16,
    /// Why it is not served, if it is not.
    pub failed: Option<String>,
    /// The version of its copy of the map; 0 for none.
    pub map_copy: MapVersion,
    /// The newest commit that is durable on it.
    pub commit: u64,
    /// The groups that it knows.
    pub groups: Vec<HeldGroup>,
}

/// A group that a drive knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldGroup {
    /// The group.
    pub group: GroupId,
    /// The epoch of the newest entry that it has adopted.
    pub epoch: Epoch,
    /// Its role in that entry; none if it is no member of it.
    pub role: Option<weft_types::Role>,
    /// Since when.
    pub since: Option<Epoch>,
    /// Volumes of which it holds something there.
    pub volumes: Vec<VolumeId>,
    /// How much, where that was asked.
    pub holding: Option<Holding>,
}

/// How much of a group a drive holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Chunks in which something was written or discarded.
    pub chunks: u64,
    /// Blocks that hold data, or should: what a copy left out and what was found damaged are among them.
    pub blocks: u64,
    /// Those of them that hold it, as far as was noticed; none from a target of an older release.
    #[serde(default)]
    pub readable: Option<u64>,
    /// Blocks that were discarded or zeroed; none from a target of an older release.
    #[serde(default)]
    pub zeroes: Option<u64>,
    /// The newest version.
    pub newest: Version,
    /// What is below was compared with an up-to-date copy in the present stint; none: everything, or never.
    pub verified_below: Option<(ObjectId, ChunkIndex)>,
}

/// What a target says of a drive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriveStatus {
    /// The drive.
    pub id: DriveId,
    /// Where on the node, for people.
    pub path: String,
    /// Bytes that can hold data.
    pub capacity_bytes: u64,
    /// Bytes that hold data or metadata.
    pub used_bytes: u64,
    /// Bytes that clients' writes could take, now or once what was replaced is returned; none from a target
    /// of an older release.
    #[serde(default)]
    pub free_bytes: Option<u64>,
    /// Bytes written to the log since the target started.
    pub log_bytes_written: u64,
    /// Bytes of data written since the target started.
    pub data_bytes_written: u64,
    /// What broke, if the store is latched.
    pub failed: Option<String>,
    /// What has become of the drive, if it is gone and serves all the same, because it has last up-to-date
    /// copies.
    #[serde(default)]
    pub vanished: Option<String>,
    /// Blocks found damaged since the target started.
    #[serde(default)]
    pub blocks_damaged: u64,
    /// Damaged blocks that were written anew since the target started, for a reader or by a scrub.
    #[serde(default)]
    pub blocks_healed: u64,
}

/// One group's scrub, as the manager orders it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubOrder {
    /// Random, never used twice: tells this order from others for the same group.
    pub order: u64,
    /// The group.
    pub group: GroupId,
    /// The in-sync member that leads: a drive of the target that is asked.
    pub drive: DriveId,
    /// Where to begin; none for the first chunk.
    pub from: Option<(ObjectId, ChunkIndex)>,
    /// How many of this order's findings the manager has: the answer holds those after them.
    pub findings_seen: u32,
}

/// What a target says of the scrubs that it leads, and of its drives' damage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// Per order of the request.
    pub scrubs: Vec<ScrubStatus>,
    /// Per drive on which damage was found since the target started.
    pub damage: Vec<DriveDamage>,
}

/// Damage on a drive since its target started, whoever found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveDamage {
    /// The drive.
    pub drive: DriveId,
    /// Blocks found damaged.
    pub found: u64,
    /// Damaged blocks that were written anew.
    pub healed: u64,
}

/// How far the scrub of a group has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// The order that it follows.
    pub order: u64,
    /// The group.
    pub group: GroupId,
    /// The in-sync members that are read and compared.
    pub members: Vec<DriveId>,
    /// Where it would go on; none if it has not begun or is done.
    pub cursor: Option<(ObjectId, ChunkIndex)>,
    /// Chunks read by this order.
    pub chunks_done: u64,
    /// Chunks that this order has to read, as far as known.
    pub chunks_total: u64,
    /// Blocks read and verified, all members counted.
    pub blocks_read: u64,
    /// Damaged copies of blocks that were written anew.
    pub blocks_healed: u64,
    /// Blocks that no member can read.
    pub blocks_lost: u64,
    /// Blocks in which members disagree though no write is in flight, or that could not be healed.
    pub disagreements: u64,
    /// Findings in all.
    pub findings_total: u32,
    /// Findings after those that the manager has, some at a time.
    pub findings: Vec<ScrubFinding>,
    /// Whether it goes on.
    pub state: ScrubState,
}

/// Whether a scrub goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubState {
    /// It does.
    Running,
    /// It will, once this is over.
    Waiting(String),
    /// It has ended before its end, because of this.
    Interrupted(String),
    /// Every chunk was read.
    Done,
}

/// Something that a scrub found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubFinding {
    /// What it is.
    pub kind: ScrubFindingKind,
    /// The object.
    pub object: ObjectId,
    /// The blocks inside the object.
    pub range: BlockRange,
    /// The members' drives that it is about.
    pub drives: Vec<DriveId>,
}

/// How far a replica's verification has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResyncStatus {
    /// The group.
    pub group: GroupId,
    /// The replica's drive.
    pub drive: DriveId,
    /// Chunks compared so far in this stint.
    pub chunks_verified: u64,
    /// Chunks to compare, as far as known.
    pub chunks_total: u64,
    /// Blocks copied so far in this stint.
    pub blocks_copied: u64,
    /// Blocks held by the chunks compared so far.
    pub blocks_held: u64,
    /// Whether it is done.
    pub done: bool,
    /// What holds it up, if something does.
    #[serde(default)]
    pub waits_for: Option<ResyncWait>,
}

/// What holds a resync up. It tries again by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResyncWait {
    /// Its own drive is full.
    Room(String),
    /// Its own drive refuses for another reason.
    Drive(String),
    /// No member that it could copy from answers.
    Source(String),
}

/// Open entries, settled marks and watermarks of a group, for a syncing replica (R14).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Marks {
    /// Every open entry.
    pub open: Vec<OpenMark>,
    /// Per session slot the watermark.
    pub watermarks: Vec<(SessionSlot, Version)>,
}

/// An open entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenMark {
    /// The version.
    pub version: Version,
    /// The object.
    pub object: ObjectId,
    /// The blocks.
    pub range: BlockRange,
    /// Whether it is known to be on the whole write set.
    pub settled: bool,
}

/// A peer asks to be vouched for (manager silent).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VouchRequest {
    /// The target that asks.
    #[serde(rename = "node")]
    pub target: TargetId,
    /// The target that is asked, as the sender's map has it; another one that listens at its address has no
    /// word to give. None from a target of an older release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<TargetId>,
    /// The groups, with the epochs that it last acknowledged, in which the asked target is a member.
    pub groups: Vec<(GroupId, Epoch)>,
    /// For each of the groups the drives that the sender takes for the asked target's, by its map: the word is
    /// about all of them. None from a target of an older release: then all drives on the asked target's node are
    /// meant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<(GroupId, Vec<DriveId>)>,
}

/// The groups for which the asked target vouches, for one lease from when the request was sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VouchAnswer {
    /// The groups vouched for.
    pub groups: Vec<GroupId>,
}

/// A group's entry, for a target that has an older one; also the head of a stale-epoch refusal.
pub type Entry = Group;

/// A map as the body of a frame.
///
/// # Panics
/// Never: the document's shape always serialises.
pub fn encode_map(map: &FabricMap) -> Vec<u8> {
    serde_json::to_vec(map).expect("a fabric map serialises")
}

/// Reads a map, or a slice of one, from the body of a frame or a copy on a drive: a JSON document, or pieces.
///
/// # Errors
/// If the bytes are no map, or one of a newer shape.
pub fn decode_map(bytes: &[u8]) -> Result<FabricMap, crate::DecodeError> {
    if are_pieces(bytes) {
        return decode_whole(bytes);
    }
    #[derive(Deserialize)]
    struct Shape {
        schema: u32,
    }
    let document = |e: serde_json::Error| crate::DecodeError::Document(e.to_string());
    // Every member reads every version of the map: it is gone through once more only if it is not what it
    // should be.
    let map = serde_json::from_slice::<FabricMap>(bytes);
    let schema = match &map {
        Ok(map) => map.schema,
        Err(_) => serde_json::from_slice::<Shape>(bytes).map_err(document)?.schema,
    };
    if schema > FabricMap::SCHEMA {
        return Err(crate::DecodeError::Document(format!(
            "the fabric map has shape {schema}, this program knows up to {}: upgrade this node",
            FabricMap::SCHEMA
        )));
    }
    let map = map.map_err(document)?;
    let highest = map.volumes.last_key_value().map(|(id, _)| (*id, false));
    let of_files = map.file_systems().last().map(|file_system| (file_system.id, true));
    for (id, is_file_system) in highest.into_iter().chain(of_files) {
        check_volume(id, is_file_system)?;
    }
    Ok(map)
}

/// Refuses a volume or a file system that no object can name.
pub(crate) fn check_volume(volume: VolumeId, is_file_system: bool) -> Result<(), crate::DecodeError> {
    let (what, highest) = match is_file_system {
        true => ("file system", ObjectId::FILE_SYSTEM_MAX),
        false => ("volume", ObjectId::VOLUME_MAX),
    };
    match volume.0 > highest {
        true => Err(crate::DecodeError::Document(format!(
            "{what} {volume} has a number that no object can name: the highest is {highest}"
        ))),
        false => Ok(()),
    }
}

/// Any of this module's messages as bytes.
///
/// # Panics
/// Never: these shapes always serialise.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).expect("a control message serialises")
}

/// A request to a manager as the head and body of a frame: what is longer than a head may be, like the join
/// of a target with many drives and groups, travels as the body, behind an empty head.
///
/// # Panics
/// Never: these shapes always serialise.
pub fn encode_request(request: &ManagerRequest) -> (Vec<u8>, Option<Vec<u8>>) {
    match encode(request) {
        long if long.len() > FRAME_HEAD_MAX => (Vec::new(), Some(long)),
        short => (short, None),
    }
}

/// Any of this module's messages from bytes.
///
/// # Errors
/// If the bytes are not such a message.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, crate::DecodeError> {
    serde_json::from_slice(bytes).map_err(|e| crate::DecodeError::Document(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{NodeId, Target};

    #[test]
    fn fields_of_a_later_release_are_passed_over_and_a_later_schema_is_refused() {
        let map = FabricMap::empty(FabricId(7));
        let text = String::from_utf8(encode_map(&map)).expect("JSON is text");
        let later = text.replacen('{', r#"{"later":[1],"#, 1).replacen(
            r#""durations":{"#,
            r#""durations":{"later_ms":1,"#,
            1,
        );
        assert_ne!(later, text);
        assert_eq!(decode_map(later.as_bytes()), Ok(map));
        let next = format!(r#""schema":{}"#, FabricMap::SCHEMA + 1);
        let newer = later.replacen(r#""schema":1"#, &next, 1);
        assert!(decode_map(newer.as_bytes()).unwrap_err().to_string().contains("upgrade"));
    }

    #[test]
    fn only_a_map_with_several_targets_on_a_node_is_not_one_of_schema_1() {
        let mut map = FabricMap::empty(FabricId(7));
        map.put_node(NodeId(3), "a".into(), "h:1".into());
        let text = |map: &FabricMap| String::from_utf8(encode_map(map)).expect("JSON is text");
        let plain = text(&map);
        assert!(plain.contains(r#""schema":1"#) && plain.contains(r#""addr":"h:1""#), "{plain}");
        assert!(!plain.contains("target"), "{plain}");
        assert_eq!(decode_map(plain.as_bytes()), Ok(map.clone()));
        let second = Target { id: TargetId(9), node: NodeId(3), index: 1, addr: "h:2".into() };
        map.targets.insert(second.id, second);
        let of_two = text(&map);
        assert!(of_two.contains(r#""schema":2"#), "{of_two}");
        assert_eq!(decode_map(of_two.as_bytes()), Ok(map.clone()));
        // A slice may list a target without its node's first.
        map.targets.remove(&TargetId(3));
        assert_eq!(decode_map(&encode_map(&map)), Ok(map));
    }

    #[test]
    fn a_touch_without_words_of_targets_is_that_of_an_older_release() {
        let touch = |silent: Vec<TargetAge>| ManagerRequest::Touch {
            sessions: vec![SessionId(7)],
            silent,
            heard: vec![],
        };
        let old = br#"{"op":"touch","sessions":[7]}"#;
        assert_eq!(decode::<ManagerRequest>(old), Ok(touch(vec![])));
        assert_eq!(encode(&touch(vec![])), old);
        let new = touch(vec![TargetAge { target: TargetId(1), ms: 2_000 }]);
        assert_eq!(decode::<ManagerRequest>(&encode(&new)), Ok(new));
    }

    #[test]
    fn a_report_without_a_device_is_that_of_an_older_release() {
        let id = DriveId(1);
        let old = format!(r#"{{"id":"{id}","path":"x","capacity":1,"map_copy":2,"epochs":[],"commit":3}}"#);
        let mut report: DriveReport = decode(old.as_bytes()).expect("it reads");
        assert_eq!((report.device, encode(&report)), (None, old.as_bytes().to_vec()));
        report.device = Some(DeviceId(5));
        assert_eq!(decode::<DriveReport>(&encode(&report)), Ok(report));
    }

    #[test]
    fn the_kind_of_an_answer_is_the_one_on_the_wire() {
        let answers = [
            ManagerAnswer::Joined { target: TargetId(1), refused: vec![], nonce: 0 },
            ManagerAnswer::Granted { map: MapVersion(1), suspects: vec![], clock_us: 0 },
            ManagerAnswer::Map { version: MapVersion(1) },
            ManagerAnswer::Followed { from: MapVersion(0), version: MapVersion(1), nonce: 2 },
            ManagerAnswer::Done,
        ];
        for answer in answers {
            let op = format!("\"op\":\"{}\"", answer.kind());
            assert!(String::from_utf8(encode(&answer)).unwrap().contains(&op), "{answer:?}");
        }
        let text = ManagerAnswer::Done.unexpected("join", "joined");
        assert_eq!(text, "unexpected reply to join: kind 'done', expected 'joined'");
    }

    #[test]
    fn every_answer_of_a_target_reads_back() {
        let inventory = Inventory { software: "1".into(), clock_us: 2, map: MapVersion(3), drives: vec![] };
        let answers = [
            TargetAnswer::Done,
            TargetAnswer::Holds { version: MapVersion(4), nonce: 5 },
            TargetAnswer::Status(TargetStatus::default()),
            TargetAnswer::Scrubs(ScrubReport::default()),
            TargetAnswer::Inventory(Box::new(inventory)),
            TargetAnswer::HoldsData { holds: true },
            TargetAnswer::HeardOf { heard: vec![(SessionId(4), 5)] },
        ];
        for answer in answers {
            assert_eq!(decode::<TargetAnswer>(&encode(&answer)), Ok(answer));
        }
    }
}
