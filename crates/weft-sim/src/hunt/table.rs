//! Which mutation is hunted where, and within how many seeds it has to be found.

use super::crowd::{CALM, Crowd};
use super::drive::{CUT, Drive};
use super::{Scenario, Script, Siblings, Stranded};
use weft_rules::Mutation::{self, *};

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Hunt {
    /// Rules that are broken together: one, or one and what stands behind it.
    pub mutations: &'static [Mutation],
    /// Where.
    pub scenario: Scenario,
    /// Within how many seeds it has to be found; of one that is protected, how many must not find it.
    pub budget: u64,
    /// What protects, if breaking this alone does no harm; empty otherwise.
    pub protected_by: &'static str,
    /// Whether no other rule was found that it takes to do harm: `protected_by` is then an argument, no
    /// experiment.
    pub stands_alone: bool,
}

impl Hunt {
    /// Whether breaking this alone does no harm.
    pub fn is_protected(&self) -> bool {
        !self.protected_by.is_empty()
    }

    /// The names of what is broken.
    pub fn name(&self) -> String {
        self.mutations.iter().map(|m| m.name()).collect::<Vec<_>>().join(" + ")
    }
}

const fn hunt(mutations: &'static [Mutation], scenario: Scenario, budget: u64) -> Hunt {
    Hunt { mutations, scenario, budget, protected_by: "", stands_alone: false }
}

const fn protected(mutations: &'static [Mutation], scenario: Scenario, protected_by: &'static str) -> Hunt {
    Hunt { mutations, scenario, budget: 15, protected_by, stands_alone: false }
}

/// Of one that no experiment has shown to do harm.
const fn harmless(mutations: &'static [Mutation], scenario: Scenario, why: &'static str) -> Hunt {
    Hunt { stands_alone: true, ..protected(mutations, scenario, why) }
}

/// Writers and readers of one block, whose messages are late and lost.
const CONFLICTS: Scenario =
    Scenario::Crowd(Crowd { faults: 120, pause_ms: 6, late: 8, reset: 1, think_us: 2_000, ..CALM });

/// Likewise, with three copies, and members that are evicted and come back.
const EVICTIONS: Scenario = Scenario::Crowd(Crowd {
    copies: 3,
    faults: 80,
    pause_ms: 18,
    late: 50,
    reset: 8,
    evict: 3,
    cut: 4,
    client: 2,
    ..CALM
});

/// Two copies, one of which comes and goes.
const RESYNCS: Scenario = Scenario::Crowd(Crowd {
    copies: 2,
    faults: 120,
    pause_ms: 14,
    late: 60,
    reset: 3,
    evict: 4,
    client: 1,
    blocks: 3,
    stride: 128,
    think_us: 3_000,
    ..CALM
});

/// Clients who do not hear of new maps.
const UNAWARE: Scenario = Scenario::Crowd(Crowd {
    copies: 2,
    faults: 14,
    pause_ms: 180,
    evict: 3,
    isolate: 1,
    unaware: 6,
    cut: 1,
    ..CALM
});

/// Nodes that are stopped in order, and clients who do not hear of the maps that come of it.
const STOPS: Scenario = Scenario::Crowd(Crowd {
    copies: 2,
    faults: 14,
    pause_ms: 250,
    stop: 3,
    unaware: 4,
    think_us: 2_000,
    ..CALM
});

/// All power is cut, again and again, under slow drives.
const BLACKOUTS: Scenario = Scenario::Crowd(Crowd {
    faults: 16,
    pause_ms: 60,
    blackout: 3,
    slow: 3,
    reset: 3,
    think_us: 800,
    ..CALM
});

/// Clients whose clocks are behind, and requests of several blocks.
const BEHIND: Scenario = Scenario::Crowd(Crowd {
    faults: 6,
    reset: 2,
    client: 3,
    blocks: 3,
    longest: 3,
    behind_ms: 400,
    writes: 10,
    ..CALM
});

/// Clients whose clocks are so far behind that the targets' are not followed.
const FAR_BEHIND: Scenario =
    Scenario::Crowd(Crowd { faults: 3, client: 1, behind_ms: 24 * 3_600_000, writes: 12, ..CALM });

/// A block rots, and its node starts again.
const ROT: Scenario = Scenario::Crowd(Crowd { faults: 1, rot: 1, pause_ms: 300, zeroes: 0, ..CALM });

const DRIVE: Scenario = Scenario::Drive(CUT);

/// A drive whose operations take long beside a batch.
const SLOW_DRIVE: Scenario = Scenario::Drive(Drive { latency_us: 2_000, life_ms: 60, ..CUT });

/// A drive with many writers: batches of several sectors.
const CROWDED_DRIVE: Scenario = Scenario::Drive(Drive { writers: 30, ..CUT });

/// A log that is soon full, and checkpoints that take long.
const SMALL_LOG: Scenario =
    Scenario::Drive(Drive { log_bytes: 64 << 10, writers: 8, checkpoint_every: 1_000, life_ms: 40, ..CUT });

/// A drive that does little beside checkpoints.
const CHECKPOINTS: Scenario = Scenario::Drive(Drive { checkpoint_every: 4, ..CUT });

/// A drive whose checkpoints write many pages, one read after another, beside its writers.
const LONG_CHECKPOINTS: Scenario = Scenario::Drive(Drive {
    cuts: 8,
    life_ms: 300,
    writers: 16,
    latency_us: 400,
    checkpoint_every: 200,
    log_bytes: 512 << 10,
    blocks: 4_000,
    ram_bytes: Some(512 << 10),
    ..CUT
});

/// A drive whose process is killed as often as its power goes.
const KILLED: Scenario =
    Scenario::Drive(Drive { kills: true, checkpoint_every: 6, cuts: 12, life_ms: 6, ..CUT });

/// Why what happens while a request waits for its drive does not happen.
const IN_RAM: &str =
    "nothing: but the drives' maps of these fabrics are in RAM, so that admission and effect are one step";

/// All hunts, in the order of the rules.
pub const HUNTS: &[Hunt] = &[
    hunt(&[NoLease], Scenario::Stranded(Stranded::FromAll), 20),
    hunt(&[StaleEpochAdmitted], UNAWARE, 100),
    protected(
        &[NewerEpochAdmitted],
        UNAWARE,
        "leases: a target that can have missed its own eviction serves nobody, and every other member's entry leads to \
         the same blocks (R13 has the members taught before anything is copied)",
    ),
    protected(&[OutServes], UNAWARE, "the epoch: who asks a member that is out has an older one"),
    hunt(&[OutServes, StaleEpochAdmitted], UNAWARE, 100),
    protected(&[NoDrain], Scenario::Script(Script::SlowAdmission), IN_RAM),
    hunt(&[NoDrain, PagesNotCached, LaggingServes], Scenario::Script(Script::SlowAdmission), 20),
    protected(&[ReadNotAdmittedAgain], Scenario::Script(Script::SlowRead), IN_RAM),
    hunt(&[ReadNotAdmittedAgain, PagesNotCached], Scenario::Script(Script::SlowRead), 20),
    protected(
        &[EpochNotDurable],
        Scenario::Script(Script::KnewAtLast),
        "the lease: it counts with the map that came with it only",
    ),
    hunt(&[EpochNotDurable, RestartServesAtOnce], Scenario::Script(Script::KnewAtLast), 200),
    protected(&[RestartForgetsEpoch], EVICTIONS, "the lease: it counts with the map that came with it only"),
    hunt(&[LaggingServes], Scenario::Script(Script::LagsBehind), 20),
    hunt(&[RestartForgetsEpoch, RestartServesAtOnce], Scenario::Script(Script::KnewBetter), 20),
    hunt(&[RestartServesAtOnce], Scenario::Stranded(Stranded::Restarted), 20),
    protected(
        &[RestartVouches],
        Scenario::Stranded(Stranded::ByForgetfulPeer),
        "the manager: it counts no promise of the process before, and asks the new one for its own",
    ),
    hunt(&[RestartVouches, PromiseOutlivesRestart], Scenario::Stranded(Stranded::ByForgetfulPeer), 60),
    hunt(&[AnswerBeforeDurable], BLACKOUTS, 40),
    hunt(&[CitesBeforeDurable], Scenario::Script(Script::CiteLost), 20),
    hunt(&[ReadBeforeDurable], BLACKOUTS, 100),
    hunt(&[OlderWriteTaken], CONFLICTS, 20),
    hunt(&[RepeatedSuperseded], CONFLICTS, 40),
    hunt(&[TakenWithoutEntry], CONFLICTS, 40),
    hunt(&[WriteBeforeVerify], Scenario::Script(Script::WriteToUnverified), 20),
    hunt(&[RetryOnAnySuperseded], Scenario::Script(Script::TakenByOne), 20),
    hunt(&[SupersededSuffices], BEHIND, 40),
    hunt(&[CounterNotRaised], FAR_BEHIND, 40),
    hunt(&[SilenceIsAnAnswer], Scenario::Script(Script::Unheard), 20),
    hunt(&[ReportsUnheeded], Scenario::Script(Script::CutOff), 20),
    hunt(&[NewVersionAfterEpoch], EVICTIONS, 100),
    protected(
        &[AppliedForgotten],
        Scenario::Script(Script::AnswerKept),
        "R9: whoever has seen the write has left its version in the open sets of those that refuse it",
    ),
    hunt(&[AppliedForgotten, RepairLeavesNoEntry], Scenario::Script(Script::AnswerKept), 60),
    hunt(&[BlocksJudgedTogether], Scenario::Script(Script::PartlySuperseded), 20),
    hunt(&[ZeroWithoutVersion], CONFLICTS, 40),
    hunt(&[CopyKeepsAbsent], Scenario::Script(Script::DebrisOfAbsent), 20),
    hunt(&[BelowFloorTaken], Scenario::Script(Script::LatePut), 20),
    hunt(&[FloorWithoutWord], Scenario::Script(Script::InFlight), 20),
    hunt(&[ClosedForEver], Scenario::Script(Script::LeftClosed), 20),
    hunt(&[NoSlowPath], CONFLICTS, 40),
    hunt(&[NoWriteBack], CONFLICTS, 40),
    hunt(&[RepairInSyncOnly], Scenario::Script(Script::RepairWhileSyncing), 20),
    hunt(&[SettledBeforePut], Scenario::Script(Script::PutDelayed), 20),
    hunt(&[SettledAtOnce], CONFLICTS, 40),
    protected(&[ReadsFromSyncing], RESYNCS, "the member: one that is syncing answers no read"),
    protected(&[SyncingServesReads], RESYNCS, "the client: it asks in-sync members only"),
    hunt(&[ReadsFromSyncing, SyncingServesReads], RESYNCS, 100),
    hunt(&[RepairLeavesNoEntry], Scenario::Script(Script::RepairRefused), 60),
    hunt(&[ConfirmForgets], EVICTIONS, 200),
    protected(
        &[ClosedSessionServed],
        Scenario::Takeover,
        "the map, which does not list the session, and the generation",
    ),
    protected(&[UnlistedSessionServed], Scenario::Takeover, "the drive, which was told, and the generation"),
    protected(
        &[GenerationNotChecked],
        Scenario::Takeover,
        "the session: it is over as well, in the map and on the drive",
    ),
    hunt(&[ClosedSessionServed, UnlistedSessionServed, GenerationNotChecked], Scenario::Takeover, 40),
    hunt(&[PassKept], Scenario::Takeover, 100),
    protected(
        &[SessionsNotDurable],
        Scenario::Takeover,
        "the map, which comes with the lease, and the generation",
    ),
    hunt(
        &[SessionsNotDurable, UnlistedSessionServed, GenerationNotChecked],
        Scenario::Script(Script::FencedOnce),
        20,
    ),
    hunt(&[SweepForgetsUnsettled], Scenario::Script(Script::LeftAlone), 20),
    hunt(&[ForgottenUnswept], Scenario::Takeover, 60),
    protected(
        &[SweptBeforeRefused],
        Scenario::Takeover,
        "the map and the generation, which refuse the session already",
    ),
    hunt(&[SweptBeforeRefused, UnlistedSessionServed, GenerationNotChecked], Scenario::Takeover, 400),
    protected(
        &[SweptBeforeMap],
        Scenario::Script(Script::FencedLate),
        "the refusal of the sessions by every target, and the attach, which waits for the new generation",
    ),
    hunt(&[EvictsWithoutWord], Scenario::Stranded(Stranded::FromManager), 40),
    protected(
        &[LeaseNotWaitedOut],
        Scenario::Stranded(Stranded::FromAll),
        "the word of a member: it is asked for after the last grant, and waited out as long",
    ),
    hunt(&[PromiseNotWaitedOut], Scenario::Stranded(Stranded::FromManager), 40),
    hunt(&[LeaseNotWaitedOut, PromiseNotWaitedOut], Scenario::Stranded(Stranded::FromAll), 40),
    hunt(&[DepartsUnawares], Scenario::Script(Script::DepartsUnheard), 100),
    hunt(&[PromiseIgnored], Scenario::Stranded(Stranded::FromManager), 40),
    protected(
        &[PromiseOutlivesRestart],
        Scenario::Stranded(Stranded::ByForgetfulPeer),
        "the lease: before it has a new one it vouches for nobody, and with it comes the list of those who are being evicted",
    ),
    hunt(&[LastWordFirst], STOPS, 400),
    hunt(&[StintKeepsVerified], Scenario::Script(Script::BackAgain), 20),
    protected(
        &[StintKeepsMarks],
        Scenario::Script(Script::MarkOfBefore),
        "a mark above what a block holds, which does not count: it says nothing that the copy does not",
    ),
    hunt(&[StintKeepsMarks, MarkAboveHeldCounts], Scenario::Script(Script::MarkOfBefore), 20),
    hunt(&[MergesByVersion], Scenario::Script(Script::DebrisOfOlder), 20),
    hunt(&[CopyOverwritesNewer], Scenario::Script(Script::WritesMeetCopy), 20),
    hunt(&[DigestsNotCompared], Scenario::Script(Script::BackQuietly), 20),
    hunt(&[HollowNotFilled], Scenario::Script(Script::SourceLost), 20),
    protected(
        &[EvictedSourceCopied],
        Scenario::Script(Script::ReplyOfBefore),
        "the stint, and within it every write, which comes to this replica as well",
    ),
    hunt(&[CopyTooEarly, NewerEpochAdmitted], Scenario::Script(Script::WriteAround), 20),
    protected(
        &[CopyTooEarly],
        Scenario::Script(Script::WriteAround),
        "the epoch of the request: a source that does not know it answers nothing",
    ),
    protected(
        &[StaleStintCopied],
        Scenario::Script(Script::ReplyOfBefore),
        "the epoch, which changes with the stint: an answer of an older one is dropped",
    ),
    protected(
        &[StaleStintPromoted],
        Scenario::Script(Script::WordOfBefore),
        "the replica, which says nothing of a stint that is over",
    ),
    hunt(&[StaleStintPromoted, StaleStintCopied], Scenario::Script(Script::WordOfBefore), 20),
    hunt(&[StaleStintCopied, EvictedSourceCopied], Scenario::Script(Script::ReplyOfBefore), 60),
    hunt(&[CopyDropsMarks], Scenario::Script(Script::OpenOnSource), 20),
    protected(&[MarksBeforeData], Scenario::Script(Script::OpenWhileRead), IN_RAM),
    hunt(&[MarksBeforeData, PagesNotCached], Scenario::Script(Script::OpenWhileRead), 60),
    protected(
        &[MarksOfUnheld],
        Scenario::Script(Script::WritesFollowCopy),
        "the replica: a mark above what a block holds does not count",
    ),
    protected(
        &[MarkAboveHeldCounts],
        Scenario::Script(Script::WritesFollowCopy),
        "the copy, which brings no such marks, and the stint, which begins without any",
    ),
    // The writer is cut off from the copy, which is to stay.
    hunt(
        &[MarksOfUnheld, MarkAboveHeldCounts, ReportsUnheeded],
        Scenario::Script(Script::WritesFollowCopy),
        20,
    ),
    hunt(&[PromotedUnverified], RESYNCS, 40),
    protected(
        &[GenerationNotDurable],
        Scenario::Takeover,
        "the map, which comes with the lease, and the session, which is over",
    ),
    hunt(
        &[GenerationNotDurable, SessionsNotDurable, RestartServesAtOnce],
        Scenario::Script(Script::FencedOnceAlone),
        20,
    ),
    protected(
        &[AttachBeforeGeneration],
        Scenario::Script(Script::FencedLate),
        "the sweep of the sessions before, which the same targets have to refuse first, and for which the attach waits too",
    ),
    hunt(
        &[AttachBeforeGeneration, SweptBeforeRefused, SweptBeforeMap, PagesNotCached],
        Scenario::Script(Script::FencedLate),
        40,
    ),
    protected(
        &[AttachBeforeGeneration, SweptBeforeRefused, PagesNotCached],
        Scenario::Script(Script::FencedLate),
        "the sweep, for which every target needs the map with the new generation",
    ),
    protected(
        &[SweptBeforeRefused, PagesNotCached],
        Scenario::Script(Script::FencedLate),
        "the attach, which waits until every target has the new generation",
    ),
    hunt(&[AttachBeforeSweep], Scenario::Takeover, 40),
    harmless(
        &[MapNotDrained],
        Scenario::Takeover,
        "the end of its sessions, which drains as well before they are swept",
    ),
    hunt(&[AttachUnnumbered], Scenario::Script(Script::AskedAgain), 20),
    hunt(&[SliceFilter], Scenario::Script(Script::MemberPasses), 20),
    hunt(&[DeltaOverGap], Scenario::Script(Script::MissesChanges), 20),
    hunt(&[SkipOverGap], Scenario::Script(Script::MissesChangesAlone), 20),
    hunt(&[GroupUntold], EVICTIONS, 60),
    hunt(&[AbsentIsGone], Scenario::Script(Script::MemberPasses), 20),
    harmless(
        &[SnapshotLowers],
        Scenario::Script(Script::LeftAndForgotten),
        "the session and the generation: a slice without the group lists no volume of it",
    ),
    harmless(
        &[UnlistedVolumeServed],
        Scenario::Script(Script::LeftAndForgotten),
        "the group, of which no entry is taken that the slice does not list",
    ),
    hunt(&[LaneSpeaksForSibling], Scenario::Script(Script::OtherLaneSpeaks), 20),
    hunt(&[OneSlotSwept], Scenario::Script(Script::LaneLeftBehind), 20),
    hunt(&[FloorNotRaised], Scenario::Script(Script::GivenUpOnALane), 20),
    hunt(&[PartsOnLanes], Scenario::Script(Script::PartsOnLanes), 20),
    hunt(&[RoomHeld], Scenario::Rooms, 5),
    hunt(&[NoAnswers], Scenario::Shard, 40),
    hunt(&[NoAnswers], Scenario::Trees, 200),
    hunt(&[FailuresForgotten], Scenario::Shard, 200),
    hunt(&[PrepareNotLogged], Scenario::Spread, 200),
    hunt(&[PrepareAgain], Scenario::Spread, 200),
    hunt(&[ReadLocked], Scenario::Spread, 20),
    hunt(&[CommitUnlogged], Scenario::Spread, 20),
    hunt(&[CommitUnlogged], Scenario::SpreadTrees, 40),
    hunt(&[RenamesUnlocked], Scenario::Moved, 200),
    hunt(&[ParentsOfLocked], Scenario::Moved, 200),
    hunt(&[QuotaUnchecked], Scenario::Quotas, 20),
    hunt(&[BudgetGivenTwice], Scenario::Quotas, 20),
    hunt(&[BudgetNotNoted], Scenario::Quotas, 100),
    hunt(&[BudgetUnnumbered], Scenario::Quotas, 1_000),
    hunt(&[UseUnsaid], Scenario::Quotas, 20),
    hunt(&[ReturnNotLogged], Scenario::Quotas, 200),
    hunt(&[ProjectNotInherited], Scenario::Quotas, 20),
    hunt(&[ProjectLeft], Scenario::Quotas, 20),
    hunt(&[LeaseNotRecalled], Scenario::SharedFiles, 100),
    hunt(&[LeaseNotRecalled], Scenario::Trees, 20),
    hunt(&[LeaseNotRecalled], Scenario::SpreadTrees, 20),
    hunt(&[WriterNotAsked], Scenario::SharedFiles, 100),
    hunt(&[ReadersFirst], Scenario::Readers, 20),
    hunt(&[KeptFromItself], Scenario::Counters, 500),
    hunt(&[NamesStay], Scenario::NamesKept, 20),
    hunt(&[NamesKept], Scenario::NamesKept, 20),
    hunt(&[NamesKept], Scenario::Trees, 20),
    hunt(&[NamesKept], Scenario::SpreadTrees, 20),
    hunt(&[GoneUnsaid], Scenario::Unsaid, 20),
    hunt(&[GoneUnsaid], Scenario::Trees, 60),
    hunt(&[GivenUnsaid], Scenario::Unsaid, 20),
    hunt(&[LeaseGivenUnsaid], Scenario::UnsaidInLease, 60),
    hunt(&[KeptBesideChanges], Scenario::NamesChanged, 20),
    hunt(&[DirectoryNotRecalled], Scenario::DirectoryKept, 20),
    hunt(&[DirectoryNotRecalled], Scenario::Trees, 200),
    hunt(&[DirectoryKept], Scenario::DirectoryKept, 20),
    hunt(&[DirectoryKept], Scenario::Trees, 20),
    hunt(&[DirectoryKept], Scenario::SpreadTrees, 20),
    hunt(&[WrittenLasts], Scenario::DirectoryKept, 20),
    hunt(&[WritesForgotten], Scenario::DiedAfterWrite, 20),
    hunt(&[SharedUncleared], Scenario::WrittenByMany, 60),
    hunt(&[PartsShared], Scenario::WrittenByMany, 60),
    hunt(&[GrowthLowers], Scenario::WrittenByMany, 60),
    hunt(&[GrownBeforeData], Scenario::WrittenByMany, 60),
    hunt(&[SharedSizeKept], Scenario::WrittenByMany, 60),
    hunt(&[SharedNotAsked], Scenario::WrittenByMany, 60),
    hunt(&[SharedByDead], Scenario::WrittenByMany, 200),
    hunt(&[LockUnseen], Scenario::Counters, 20),
    hunt(&[LockUnseen], Scenario::Trees, 40),
    hunt(&[LockKept], Scenario::Shard, 100),
    hunt(&[LockKept], Scenario::Trees, 20),
    hunt(&[HandlesOutlive], Scenario::Renewed, 20),
    hunt(&[SizeBeforeData], Scenario::Files, 100),
    hunt(&[GivenBackUnwritten], Scenario::SharedFiles, 100),
    hunt(&[KeptNotRead], Scenario::Files, 100),
    hunt(&[KeptBehindEnd], Scenario::Files, 500),
    hunt(&[LockBeforeData], Scenario::Handed, 20),
    hunt(&[LocksForgotten], Scenario::Shard, 100),
    hunt(&[GivenBackUnderWay], Scenario::SharedFiles, 500),
    hunt(&[GivenBackUntold], Scenario::SharedFiles, 100),
    hunt(&[NoSelfFence], Scenario::Fenced, 20),
    hunt(&[EvictNoWait], Scenario::Fenced, 20),
    hunt(&[LeavingsSeen], Scenario::Files, 100),
    hunt(&[WriteUnreserved], Scenario::Files, 100),
    hunt(&[GivenBackFirst], Scenario::Files, 500),
    hunt(&[SizeNotTold], Scenario::Files, 100),
    hunt(&[GrowthWithoutTurn], Scenario::Files, 100),
    hunt(&[HoldForgotten], Scenario::Shard, 200),
    hunt(&[PurgedWithData], Scenario::Sparse, 20),
    hunt(&[ListForgotten], Scenario::Sparse, 20),
    hunt(&[ZeroesUnreserved], Scenario::Sparse, 20),
    hunt(&[OldNumbersTaken], Scenario::Shard, 40),
    hunt(&[SessionNotCheckedAgain], Scenario::Waiting, 20),
    hunt(&[AnswerBeforeAppend], Scenario::Shard, 40),
    hunt(&[UnprobedRead], Scenario::Shard, 1_000),
    hunt(&[StepEndsLog], Scenario::Shard, 100),
    protected(&[CrcNotChecked], ROT, "the client: it checks all that it is sent"),
    protected(&[ClientTrustsData], ROT, "the drive: it checks all that it reads"),
    hunt(&[CrcNotChecked, ClientTrustsData], ROT, 40),
    hunt(&[DamageReadsAsZeroes], ROT, 40),
    hunt(&[NoHeal], Scenario::Script(Script::HealedByReads), 20),
    hunt(&[DoubtNotChecked], DRIVE, 20),
    hunt(&[DurableUnhappens], Scenario::Script(Script::RottenInLog), 20),
    hunt(&[WatermarkPassesOpen], CONFLICTS, 40),
    // Clients are cut off from one copy each, and both are to stay.
    hunt(
        &[WatermarkPassesRestart, RetryOnAnySuperseded, ReportsUnheeded],
        Scenario::Script(Script::TakenAndPassed),
        60,
    ),
    protected(
        &[WatermarkPassesRestart],
        Scenario::Script(Script::TakenAndPassed),
        "R5: a write starts again only where every member has refused its version, and then nobody can see it",
    ),
    harmless(&[SlowClock], Scenario::Stranded(Stranded::WithSlowClock), "the margin: that is what it is for"),
    protected(
        &[NoMargin],
        Scenario::Stranded(Stranded::WithSlowClock),
        "nothing: but all clocks of this run go alike",
    ),
    hunt(&[NoMargin, SlowClock], Scenario::Stranded(Stranded::WithSlowClock), 40),
    protected(
        &[LeaseFromReceipt],
        Scenario::Stranded(Stranded::AfterLateAnswers),
        "the word of a member: it is asked for after the last grant, and waited out as long",
    ),
    hunt(&[LeaseFromReceipt, PromiseNotWaitedOut], Scenario::Stranded(Stranded::AfterLateAnswers), 60),
    protected(
        &[GrantWithoutMap],
        Scenario::Stranded(Stranded::Returning),
        "joining, which adopts the map before it asks for a lease",
    ),
    protected(
        &[JoinWithoutMap],
        Scenario::Stranded(Stranded::Returning),
        "the grant, which is void until the map is adopted",
    ),
    hunt(&[GrantWithoutMap, JoinWithoutMap], Scenario::Stranded(Stranded::Returning), 60),
    protected(
        &[LeaderDoesNotWait],
        Scenario::Stranded(Stranded::WithNewManager),
        "the word of a member, which is waited out as long as a lease, and the grants, of which there are none before all have joined",
    ),
    protected(
        &[LeaderDoesNotWait, PromiseNotWaitedOut],
        Scenario::Stranded(Stranded::WithNewManager),
        "the grants: a manager younger than a lease grants none before all have joined, and nobody is evicted without \
         another member that has one",
    ),
    protected(
        &[GrantsUnawaited],
        Scenario::Stranded(Stranded::WithNewManager),
        "the wait for the leases of the manager before, and the word of a member",
    ),
    hunt(
        &[LeaderDoesNotWait, GrantsUnawaited, PromiseNotWaitedOut],
        Scenario::Stranded(Stranded::WithNewManager),
        60,
    ),
    hunt(&[StallUnnoticed, SilentUnasked], Scenario::Script(Script::ManagerStandsStill), 5),
    protected(
        &[StallUnnoticed],
        Scenario::Script(Script::ManagerStandsStill),
        "the targets' word: one that is served is not over, whatever the manager has missed",
    ),
    hunt(&[SilentUnasked], Scenario::Script(Script::HeardByTargetsOnly), 5),
    hunt(&[VouchedByAny], Scenario::Stranded(Stranded::ByOnePeer), 40),
    hunt(&[SiblingRenews], Scenario::Siblings(Siblings::StandsStill), 5),
    hunt(&[SiblingUnasked], Scenario::Siblings(Siblings::Stranded), 40),
    hunt(&[WordForAnyDrive], Scenario::Siblings(Siblings::Redealt), 60),
    hunt(&[PartUnchecked], Scenario::Device, 20),
    hunt(&[DeviceLabelFirst], Scenario::Device, 60),
    hunt(&[DeviceNotWiped], Scenario::Device, 60),
    hunt(&[NodeAnswersOnce], Scenario::TakeoverOfTargets, 60),
    hunt(&[OlderSiblingJoins], Scenario::Siblings(Siblings::JoinsLate), 60),
    hunt(&[PartsAreDrives], Scenario::Parts, 10),
    hunt(&[ToldEarly], Scenario::Script(Script::AnswersAreKept), 10),
    hunt(&[RepeatToldEarly], Scenario::Script(Script::RefusalsAreKept), 20),
    hunt(&[PushDecided], Scenario::Script(Script::MapsAreKept), 10),
    hunt(&[CommandEarly], Scenario::Script(Script::EndsAreKept), 20),
    harmless(
        &[GrantDurable],
        Scenario::Script(Script::JustTakenOut),
        "joining: who was silent for so long joins first, and the answer waits until the eviction is durable",
    ),
    harmless(
        &[NoTermCompare],
        Scenario::Script(Script::Replaced),
        "the term, which ends before the next one begins, and `head`, which commits compare",
    ),
    hunt(&[TermUnending], Scenario::Script(Script::Replaced), 30),
    hunt(&[TakeoverEarly], Scenario::Script(Script::Unanswered), 60),
    harmless(
        &[LedFromAnswer],
        Scenario::Script(Script::Unanswered),
        "an answer is awaited for a quarter of a term at most, and the next manager waits out the word of a \
         member, which takes as long as a lease",
    ),
    hunt(&[CommitWithoutFlush], DRIVE, 20),
    hunt(&[DataNotAwaited], SLOW_DRIVE, 40),
    hunt(&[PagesNotFlushed], CHECKPOINTS, 60),
    hunt(&[SuperblockNotFlushed], CHECKPOINTS, 60),
    hunt(&[SuperblockInPlace], CHECKPOINTS, 60),
    hunt(&[LogTrimmedEarly], SMALL_LOG, 100),
    hunt(&[BitmapInPlace], CHECKPOINTS, 60),
    hunt(&[ZoneTableInPlace], CHECKPOINTS, 60),
    hunt(&[RetiredReusedEarly], CHECKPOINTS, 60),
    hunt(&[PagesOnReached], LONG_CHECKPOINTS, 60),
    hunt(&[PlaceReusedEarly], DRIVE, 40),
    hunt(&[ReaderNotWaitedFor], Scenario::Drive(Drive { slow_reads: true, life_ms: 40, ..CUT }), 60),
    hunt(&[BatchCrcNotChecked], CROWDED_DRIVE, 400),
    hunt(&[LaterBatchNotSought], Scenario::Drive(Drive { rot_log: true, checkpoint_every: 200, ..CUT }), 60),
    hunt(&[FoundNotFlushed], KILLED, 6000),
    hunt(&[DoubtNotSettled], Scenario::Drive(Drive { cut_recovery: true, ..CUT }), 400),
    hunt(&[CursorBeforeChunks], Scenario::Interrupted, 60),
    hunt(&[GroupDroppedFirst], DRIVE, 40),
    protected(
        &[PagesNotCached],
        Scenario::Script(Script::SlowAdmission),
        "nothing needs to: it is slow, and right",
    ),
];
