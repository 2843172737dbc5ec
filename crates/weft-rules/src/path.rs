//! What a simulation wants to know of the engines: which paths of the protocol were taken, which reads were
//! served, and what followers hold of the map.
//!
//! An engine marks a path with one line, [`mark`], where the path is taken. It is compiled in with the
//! feature `coverage` only, which the simulator turns on; without it, a mark is nothing. Marks count per
//! thread and change nothing: a simulation takes the same course with and without them.

use weft_types::{DriveId, Epoch, FabricMap, GroupId, Slice};

macro_rules! paths {
    ($($variant:ident $name:literal $says:literal)*) => {
        /// A path of the protocol that a run may take.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Path {
            $(#[doc = $says] $variant,)*
        }

        impl Path {
            /// All of them.
            pub const ALL: &[Path] = &[$(Path::$variant),*];

            /// Its name in tables.
            pub const fn name(self) -> &'static str {
                match self { $(Path::$variant => $name),* }
            }

            /// What happens on it.
            pub const fn says(self) -> &'static str {
                match self { $(Path::$variant => $says),* }
            }
        }
    };
}

paths! {
    SlowRead "slow-read" "A read finds a version whose write may be in flight, and finishes that write first (R8)."
    SlowReadAgain "slow-read-again" "The block or the epoch moved on while a read was on the slow path."
    RepairByReader "repair-by-reader" "A reader puts the newest version on the whole write set (R8)."
    ReadElsewhere "read-elsewhere" "A replica takes long over a read, and another one is asked beside it."
    SupersededWrite "superseded-write" "A write counts although some replica holds something newer (R5)."
    WriteAgain "write-again" "No replica took a write: it starts again with a higher version (R5)."
    WriteInNextEpoch "write-in-next-epoch" "The same version goes to the write set of a newer epoch (R6)."
    AnswerKept "answer-kept" "An answer from before the epoch changed makes a write complete (R6)."
    EpochFromReplica "epoch-from-replica" "A client learns of an epoch from a replica's refusal (R1)."
    EpochTaught "epoch-taught" "A client brings a replica an epoch that it did not know (R1)."
    WatermarkAlone "watermark-alone" "A watermark travels without a request."
    WatermarkPassedOver "watermark-passed-over" "An idle session tells members that nothing older comes (R7)."
    SessionOver "session-over" "A client learns that its session is over (R10)."
    SessionFenced "session-fenced" "A client learns that a newer attach has fenced it (R16)."
    GivenUp "given-up" "A write that its caller gave up is called off, or finished in the background."
    RefusedNoLease "refused-no-lease" "A request is refused because the target holds no lease (R1)."
    RefusedRole "refused-role" "A request is refused because of the drive's role (R1)."
    RefusedSession "refused-session" "A request of a session that is over is refused (R10)."
    RefusedGeneration "refused-generation" "A request of an older generation is refused (R16)."
    RefusedAfterwards "refused-afterwards" "What a read found is not sent, because the epoch or the lease ended meanwhile (R1)."
    VouchedLease "vouched-lease" "A target serves by the word of its peers, while no manager answers."
    WaitsForGate "waits-for-gate" "A request waits while an entry is being adopted (R1)."
    EntryAdopted "entry-adopted" "A group's entry is made durable and acknowledged (R2)."
    DeltaAdopted "delta-adopted" "A target adopts what has changed in the map (C8)."
    DeltaElsewhere "delta-elsewhere" "A target is sent a change that does not begin at its map (C8)."
    DrainedFirst "drained-first" "An epoch's acknowledgement waits for what was admitted before it (R1)."
    GenerationRaised "generation-raised" "A request of a newer generation raises it durably (R16)."
    WriteToUnverified "write-to-unverified" "A write waits for a block of a syncing replica to be verified (R4)."
    HollowFetch "hollow-fetch" "A chunk is fetched without its data, for a write that waits (R4)."
    VersionsAhead "versions-ahead" "A chunk's versions are fetched ahead of its data, so that no write has to wait (R4)."
    HollowFilled "hollow-filled" "The walk brings the data of a chunk that was fetched hollow (R12)."
    FilledInParts "filled-in-parts" "It does so part by part, because clients are there (R12)."
    CopyRaced "copy-raced" "A fetched chunk holds something older than a write that came meanwhile (R12)."
    CopyOfDamaged "copy-of-damaged" "A block that the source cannot read is copied as damaged (R12)."
    EqualByDigest "equal-by-digest" "A chunk is verified because both sides have the same digest (R12)."
    StintOver "stint-over" "A resync ends because its stint is over (R13)."
    MarksBrought "marks-brought" "A copy brings the source's open entries along (R14)."
    MarkOfNewer "mark-of-newer" "A source's mark is of something newer than what was copied, and does not count (R14)."
    Promoted "promoted" "A replica that has verified everything becomes in-sync (R15)."
    PromotionRefused "promotion-refused" "The word that all is verified is about a stint that is over (R15)."
    AppliedAgain "applied-again" "A replica is asked again for a version that it has taken (R3)."
    AnswerOfBuried "answer-of-buried" "A replica says applied of a version that it holds no more, but remembers (R3)."
    RefusedRepairRemembered "refused-repair-remembered" "A refused repair is added to the open set all the same (R9)."
    FloorAsked "floor-asked" "A member says what is open, before its group's floor is raised (R7)."
    ClosedOpened "closed-opened" "Members are opened that a dead manager has closed (R7)."
    ClosedBelow "closed-below" "A write is below a floor that is being raised (R7)."
    BelowFloor "below-floor" "A version below the floor is refused (R7)."
    TombstonesForgotten "tombstones-forgotten" "A drive has taken forgotten tombstones out of its map (R7)."
    SettledRead "settled-read" "A replica is told that a version is on the whole write set (R10)."
    SweptEntry "swept-entry" "A sweep finishes or buries what a session that is over has left (R10)."
    SweptSyncing "swept-syncing" "A syncing replica sweeps what only it may hold (R10)."
    DamageFound "damage-found" "A block does not match its checksum, or cannot be read."
    DamageHealed "damage-healed" "A put of the version that is damaged heals it."
    ScrubHealed "scrub-healed" "A scrub puts an intact copy over a damaged one."
    WaitsForDurable "waits-for-durable" "An answer waits until the version that it cites is durable (R3)."
    TornBatch "torn-batch" "Recovery drops blocks of the last batch, because their data never arrived."
    LogReplayed "log-replayed" "Recovery applies what was logged since the last checkpoint."
    CheckpointTaken "checkpoint-taken" "A store takes a checkpoint."
    Evicted "evicted" "A replica is evicted (R11)."
    Demoted "demoted" "A member that clients cannot reach leaves the read set (R11)."
    Departed "departed" "... and, once its target knows that, the write set (R11)."
    PeerPromised "peer-promised" "A member promises not to vouch for one that is to be evicted (R11)."
    SuspicionEnded "suspicion-ended" "A target that was taken for gone renews its lease."
    OlderProcessRefused "older-process-refused" "A target of a process that was replaced is refused (P4)."
    GrantRefused "grant-refused" "A new manager grants nothing before all have joined."
    ManagerFenced "manager-fenced" "A manager stops because another one has committed."
    Relocated "relocated" "A member passes to another drive, as a drive is emptied."
    Rebuilt "rebuilt" "A member that is gone is replaced by another drive."
    OpenedUnsaid "opened-unsaid" "A file opens to read by the lease of its directory alone (F4)."
    WrittenBeside "written-beside" "A mount writes a file that others write at the same time (F7)."
    AnsweredAgain "answered-again" "A shard gives a kept answer to an operation that came again (F1)."
    ShardCheckpointStepped "shard-checkpoint-stepped" "A checkpoint of a shard takes more than one step (F2)."
    ShardReplayed "shard-replayed" "A server opens a shard with changes that are in its log only (F2)."
    LeaseRecalled "lease-recalled" "A shard asks a session to give back what it holds of an inode (F4)."
    RecalledAgain "recalled-again" "It asks once more, since nothing was given back for a while (F4)."
    WriterAsked "writer-asked" "A shard asks who writes a file for its size and times (F4)."
    SessionForgotten "session-forgotten" "A shard takes back what a session that is over has held (F5)."
    GrowthTold "growth-told" "A mount reports the growth of a file that several mounts write (F7)."
    LeavingsZeroed "leavings-zeroed" "Zeroes are put behind the end of a file before it grows over them (F8)."
    Purged "purged" "The data of a file without a name are given back (F9)."
    LockWaited "lock-waited" "An owner waits for a lock that another one has (F11)."
    DeadlockRefused "deadlock-refused" "An owner is refused that would wait for itself (F11)."
    WriteBackLost "write-back-lost" "Data that were kept to be written later cannot be written (F14)."
    SessionRenewed "session-renewed" "A mount whose session is over takes a new one (F14)."
}

/// A read that a replica has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedRead {
    /// The group.
    pub group: GroupId,
    /// The drive that was read.
    pub drive: DriveId,
    /// The epoch under which it was admitted.
    pub epoch: Epoch,
}

#[cfg(feature = "coverage")]
mod counting {
    use super::{FabricMap, Path, ServedRead, Slice};
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    type Observer = Rc<dyn Fn(ServedRead)>;

    /// Is shown each slice that a follower has.
    pub type SliceObserver = Rc<dyn Fn(&Slice, &FabricMap)>;

    thread_local! {
        static COUNTS: [Cell<u64>; Path::ALL.len()] = const { [const { Cell::new(0) }; Path::ALL.len()] };
        static OBSERVER: RefCell<Option<Observer>> = const { RefCell::new(None) };
        static SLICE_OBSERVER: RefCell<Option<SliceObserver>> = const { RefCell::new(None) };
    }

    /// A path is taken.
    pub fn mark(path: Path) {
        COUNTS.with(|counts| {
            let count = &counts[path as usize];
            count.set(count.get() + 1);
        });
    }

    /// How often each path was taken on this thread since this was asked last, in the order of [`Path::ALL`].
    pub fn take_counts() -> Vec<u64> {
        COUNTS.with(|counts| counts.iter().map(|count| count.replace(0)).collect())
    }

    /// A replica answers a read, at this very instant.
    pub fn serves_read(read: impl FnOnce() -> ServedRead) {
        let observer = OBSERVER.with(|observer| observer.borrow().clone());
        if let Some(observer) = observer {
            observer(read());
        }
    }

    /// Calls this from now on for every read that is answered on this thread; none to call nothing.
    pub fn observe_reads(observer: Option<Rc<dyn Fn(ServedRead)>>) {
        let before = OBSERVER.with(|held| held.replace(observer));
        drop(before);
    }

    /// A follower has this slice of the map from now on (C8).
    pub fn holds_slice(slice: &Slice, map: &FabricMap) {
        let observer = SLICE_OBSERVER.with(|observer| observer.borrow().clone());
        if let Some(observer) = observer {
            observer(slice, map);
        }
    }

    /// Calls this from now on for every slice that a follower on this thread has; none to call nothing.
    pub fn observe_slices(observer: Option<SliceObserver>) {
        let before = SLICE_OBSERVER.with(|held| held.replace(observer));
        drop(before);
    }
}

#[cfg(feature = "coverage")]
pub use counting::*;

/// A path is taken. Nothing here: this program is not a simulation.
#[cfg(not(feature = "coverage"))]
#[inline(always)]
pub fn mark(_: Path) {}

/// A replica answers a read. Nothing here: this program is not a simulation.
#[cfg(not(feature = "coverage"))]
#[inline(always)]
pub fn serves_read(_: impl FnOnce() -> ServedRead) {}

/// A follower has this slice of the map from now on. Nothing here: this program is not a simulation.
#[cfg(not(feature = "coverage"))]
#[inline(always)]
pub fn holds_slice(_: &Slice, _: &FabricMap) {}
