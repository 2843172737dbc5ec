//! All changes to the map as one type, and the one function that applies them.
//!
//! It owns the list and the map's version. What a change does is in the file of its name.

use crate::{
    AcceptLoss, AddDrive, AddFileSet, AddTarget, AssignDrive, BeginDelete, BeginRelocation, CancelRelocation,
    ChangeSettings, CloseSession, CreateFileSystem, CreatePool, CreateVolume, Demote, Depart, DrainDrive,
    Evict, FailDrive, FinishDelete, FinishRelocation, GrowVolume, HandOver, JoinNode, KeepMember, MoveTarget,
    NameServers, NoteScrubs, OpenSession, Promote, RaiseFloors, Reason, Rebuild, Refusal, Rejoin,
    RemoveDrive, RemoveNode, RemoveTarget, Replace, RestoreDrive, ScheduleScrub, SetDevice, StopScrub,
    SweepSession, WantScrub,
};
use crate::{
    delete, demote, drive, evict, file_set, file_system, floor, loss, node, pool, promote, rebuild, rejoin,
    relocate, replace, resize, scrub, session, settings, shard_server, target, volume,
};
use serde::{Deserialize, Serialize};
use weft_types::{FabricMap, MapVersion};

/// A change to the map, with all that was decided: what travels from one map to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// A machine joins the fabric.
    JoinNode(JoinNode),
    /// A further target joins a node.
    AddTarget(AddTarget),
    /// A target listens at another address.
    MoveTarget(MoveTarget),
    /// A target without drives is forgotten.
    RemoveTarget(RemoveTarget),
    /// Another target of its node serves a drive.
    AssignDrive(AssignDrive),
    /// A node without drives is forgotten.
    RemoveNode(RemoveNode),
    /// A pool is created, without drives.
    CreatePool(CreatePool),
    /// A drive joins a pool.
    AddDrive(AddDrive),
    /// A drive is on another device than was known.
    SetDevice(SetDevice),
    /// A drive is being emptied, or no longer.
    DrainDrive(DrainDrive),
    /// A drive is declared failed: nothing new is placed on it.
    FailDrive(FailDrive),
    /// A drive that had failed takes part again.
    RestoreDrive(RestoreDrive),
    /// A drive that no group lists any more is forgotten.
    RemoveDrive(RemoveDrive),
    /// Drives leave the write sets of their groups.
    Evict(Evict),
    /// Members that clients cannot reach leave the read sets of their groups.
    Demote(Demote),
    /// ... and, once their targets know that, the write sets.
    Depart(Depart),
    /// Drives that were out come back as syncing.
    Rejoin(Rejoin),
    /// A syncing replica that has verified everything becomes in-sync.
    Promote(Promote),
    /// One group's lost copy is rebuilt on another drive.
    Rebuild(Rebuild),
    /// A drive takes over every slot of another one.
    Replace(Replace),
    /// A further drive joins a group, to take over from a member.
    BeginRelocation(BeginRelocation),
    /// The drive that is to leave serves no reads any more.
    HandOver(HandOver),
    /// The drive that is to leave does.
    FinishRelocation(FinishRelocation),
    /// The drive that was to take over leaves again.
    CancelRelocation(CancelRelocation),
    /// The drive that was to leave stays, in the place of a member that is lost.
    KeepMember(KeepMember),
    /// Drives are declared destroyed, and groups whose last up-to-date copies were on them go on without.
    AcceptLoss(AcceptLoss),
    /// A volume is created.
    CreateVolume(CreateVolume),
    /// A file system is created, with its system volumes.
    CreateFileSystem(CreateFileSystem),
    /// A file system gets a further set of groups.
    AddFileSet(AddFileSet),
    /// Shards of a file system get other servers.
    NameServers(NameServers),
    /// A volume grows.
    GrowVolume(GrowVolume),
    /// A volume is gone for clients.
    BeginDelete(BeginDelete),
    /// A deleted volume is forgotten.
    FinishDelete(FinishDelete),
    /// A client attaches a volume.
    OpenSession(OpenSession),
    /// A client session is over.
    CloseSession(CloseSession),
    /// A session that is over was swept everywhere, and is forgotten.
    SweepSession(SweepSession),
    /// Groups begin an epoch with a floor.
    RaiseFloors(RaiseFloors),
    /// Somebody wants groups scrubbed.
    WantScrub(WantScrub),
    /// Nobody wants a scrub any more, and the schedule rests for a while.
    StopScrub(StopScrub),
    /// The schedule of scrubs.
    ScheduleScrub(ScheduleScrub),
    /// Groups were scrubbed to their end.
    NoteScrubs(NoteScrubs),
    /// Settings of the whole fabric change.
    Settings(ChangeSettings),
}

impl Change {
    /// Whether it makes the map larger for long. Near the map's limit such changes are refused, so that
    /// all others fit: those that let writes go on, bring back copies, or free something.
    pub fn grows_map(&self) -> bool {
        match self {
            Change::JoinNode(_)
            | Change::CreatePool(_)
            | Change::CreateVolume(_)
            | Change::CreateFileSystem(_)
            | Change::AddFileSet(_)
            | Change::GrowVolume(_)
            | Change::OpenSession(_)
            | Change::WantScrub(_)
            | Change::NoteScrubs(_) => true,
            // A node that comes with its drives must not be kept out because of one more.
            Change::AddDrive(_)
            | Change::SetDevice(_)
            | Change::AddTarget(_)
            | Change::MoveTarget(_)
            | Change::RemoveTarget(_)
            | Change::AssignDrive(_)
            | Change::RemoveNode(_)
            | Change::DrainDrive(_)
            | Change::FailDrive(_)
            | Change::RestoreDrive(_)
            | Change::RemoveDrive(_)
            | Change::Evict(_)
            | Change::Demote(_)
            | Change::Depart(_)
            | Change::Rejoin(_)
            | Change::Promote(_)
            | Change::Rebuild(_)
            | Change::Replace(_)
            // A few at a time: what they add is gone when they are over.
            | Change::BeginRelocation(_)
            | Change::HandOver(_)
            | Change::FinishRelocation(_)
            | Change::CancelRelocation(_)
            | Change::KeepMember(_)
            | Change::AcceptLoss(_)
            | Change::NameServers(_)
            | Change::BeginDelete(_)
            | Change::FinishDelete(_)
            | Change::CloseSession(_)
            | Change::SweepSession(_)
            // A few bytes for a group, once.
            | Change::RaiseFloors(_)
            | Change::StopScrub(_)
            | Change::ScheduleScrub(_)
            | Change::Settings(_) => false,
        }
    }
}

/// The map after a change, and what the change did.
///
/// The version is raised by exactly one; the epoch of each group that changed is raised by one. Applying the same
/// change to the same map gives the same result everywhere.
///
/// # Errors
/// A [`Refusal`] where the change does not fit this map; the map is then unchanged.
pub fn apply(map: &FabricMap, change: &Change) -> Result<(FabricMap, Reason), Refusal> {
    let mut next = map.clone();
    next.version = MapVersion(map.version.0 + 1);
    let reason = match change {
        Change::JoinNode(change) => node::join(&mut next, change),
        Change::AddTarget(change) => target::add(&mut next, change),
        Change::MoveTarget(change) => target::relocate(&mut next, change),
        Change::RemoveTarget(change) => target::remove(&mut next, change),
        Change::AssignDrive(change) => target::assign(&mut next, change),
        Change::RemoveNode(change) => node::remove(&mut next, change),
        Change::CreatePool(change) => pool::create(&mut next, change),
        Change::AddDrive(change) => drive::add(&mut next, change),
        Change::SetDevice(change) => drive::set_device(&mut next, change),
        Change::DrainDrive(change) => drive::drain(&mut next, change),
        Change::FailDrive(change) => drive::fail(&mut next, change),
        Change::RestoreDrive(change) => drive::restore(&mut next, change),
        Change::RemoveDrive(change) => drive::remove(&mut next, change),
        Change::Evict(change) => evict::evict(&mut next, change),
        Change::Demote(change) => demote::demote(&mut next, change),
        Change::Depart(change) => demote::depart(&mut next, change),
        Change::Rejoin(change) => rejoin::rejoin(&mut next, change),
        Change::Promote(change) => promote::promote(&mut next, change),
        Change::Rebuild(change) => rebuild::rebuild(&mut next, change),
        Change::Replace(change) => replace::replace(&mut next, change),
        Change::BeginRelocation(change) => relocate::begin(&mut next, change),
        Change::HandOver(change) => relocate::hand_over(&mut next, change),
        Change::FinishRelocation(change) => relocate::finish(&mut next, change),
        Change::CancelRelocation(change) => relocate::cancel(&mut next, change),
        Change::KeepMember(change) => relocate::keep(&mut next, change),
        Change::AcceptLoss(change) => loss::accept(&mut next, change),
        Change::CreateVolume(change) => volume::create(&mut next, change),
        Change::CreateFileSystem(change) => file_system::create(&mut next, change),
        Change::AddFileSet(change) => file_set::add(&mut next, change),
        Change::NameServers(change) => shard_server::name(&mut next, change),
        Change::GrowVolume(change) => resize::grow(&mut next, change),
        Change::BeginDelete(change) => delete::begin(&mut next, change),
        Change::FinishDelete(change) => delete::finish(&mut next, change),
        Change::OpenSession(change) => session::open(&mut next, change),
        Change::CloseSession(change) => session::close(&mut next, change),
        Change::SweepSession(change) => session::sweep(&mut next, change),
        Change::RaiseFloors(change) => floor::raise(&mut next, change),
        Change::WantScrub(change) => scrub::want(&mut next, change),
        Change::StopScrub(change) => scrub::stop(&mut next, change),
        Change::ScheduleScrub(change) => scrub::schedule(&mut next, change),
        Change::NoteScrubs(change) => scrub::note(&mut next, change),
        Change::Settings(change) => settings::set(&mut next, change),
    }?;
    Ok((next, reason))
}

/// The next number for an identifier; none is given twice in a fabric's life.
pub(crate) fn take_id(map: &mut FabricMap) -> u64 {
    let id = map.next_id;
    map.next_id += 1;
    id
}
