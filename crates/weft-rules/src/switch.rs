//! Switches that break one rule each, so that the simulation can show that it would notice.
//!
//! A switch stands beside the rule that it breaks, and does nothing unless the simulation of this thread was
//! told to break that rule. Without the feature `mutations` of this crate there is nothing to switch:
//! [`mutated`] is a constant. It never changes what sound code does, and never acts outside of a simulation
//! ([`Simulated`]).

/// Declares the switches: the rule, the name, and what is broken.
macro_rules! mutations {
    ($($variant:ident, $rule:literal, $name:literal, $breaks:literal;)*) => {
        /// A rule of the protocol, or an order in which a drive is written, that can be broken on purpose.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Mutation {
            $(#[doc = $breaks] $variant,)*
        }

        impl Mutation {
            /// All of them, in the order of the rules.
            pub const ALL: &[Mutation] = &[$(Mutation::$variant,)*];

            /// The rule of the protocol, or the part of it: `R1` to `R16`, `C8`, `lease`, `watermark`,
            /// `damage`, `store`.
            pub const fn rule(self) -> &'static str {
                match self { $(Mutation::$variant => $rule,)* }
            }

            /// Its name, in lower case with hyphens.
            pub const fn name(self) -> &'static str {
                match self { $(Mutation::$variant => $name,)* }
            }

            /// What it breaks, as a sentence.
            pub const fn breaks(self) -> &'static str {
                match self { $(Mutation::$variant => $breaks,)* }
            }
        }
    };
}

mutations! {
    NoLease, "R1", "no-lease", "A target serves without a lease.";
    StaleEpochAdmitted, "R1", "stale-epoch-admitted", "A request with an older epoch than the group's is admitted.";
    NewerEpochAdmitted, "R1", "newer-epoch-admitted", "A request with an epoch that the target does not know yet is admitted.";
    OutServes, "R1", "out-serves", "A member that is out of the group serves requests.";
    NoDrain, "R1", "no-drain", "An epoch is acknowledged while requests that an older one admitted still run.";
    ReadNotAdmittedAgain, "R1", "read-not-admitted-again", "A read that outlived its epoch is answered all the same.";
    EpochNotDurable, "R2", "epoch-not-durable", "An epoch is acknowledged before it is durable.";
    LaggingServes, "R2", "lagging-serves", "A drive serves that has not adopted the map in force yet.";
    RestartForgetsEpoch, "R2", "restart-forgets-epoch", "What a group's entry says is not logged, so a restart forgets it.";
    RestartServesAtOnce, "R2", "restart-serves-at-once", "A restarted target serves before it has a new lease.";
    RestartVouches, "R2", "restart-vouches", "A restarted target vouches for others before it has a lease of its own.";
    AnswerBeforeDurable, "R3", "answer-before-durable", "A write is answered before its version is durable.";
    CitesBeforeDurable, "R3", "cites-before-durable", "An answer that cites a version which the replica has already does not wait until that is durable.";
    ReadBeforeDurable, "R3", "read-before-durable", "A read cites versions that are not durable yet.";
    OlderWriteTaken, "R3", "older-write-taken", "A replica takes a write although it holds something newer.";
    RepeatedSuperseded, "R3", "repeated-superseded", "A version that was taken before is answered as superseded when it is asked for again.";
    TakenWithoutEntry, "R3", "taken-without-entry", "A version that is taken is not added to the open set.";
    WriteBeforeVerify, "R4", "write-before-verify", "A syncing replica answers a write before it has verified the block.";
    RetryOnAnySuperseded, "R5", "retry-on-any-superseded", "A write starts again because one replica said superseded, although another one took it.";
    SupersededSuffices, "R5", "superseded-suffices", "A write that no replica took counts as done.";
    CounterNotRaised, "R5", "counter-not-raised", "A write that starts again does not raise its counter above what it has seen.";
    SilenceIsAnAnswer, "R6", "silence-is-an-answer", "A replica that gives no answer counts as one that has answered.";
    ReportsUnheeded, "R6", "reports-unheeded", "What clients say of nodes out of their reach is ignored.";
    NewVersionAfterEpoch, "R6", "new-version-after-epoch", "A write goes to a new write set with another version.";
    AppliedForgotten, "R6", "applied-forgotten", "An applied that was collected in an earlier epoch does not count.";
    BlocksJudgedTogether, "R6", "blocks-judged-together", "Several blocks in one request count as one register.";
    ZeroWithoutVersion, "R7", "zero-without-version", "A discard leaves no tombstone.";
    CopyKeepsAbsent, "R7", "copy-keeps-absent", "A copy of an absent block leaves what was there.";
    BelowFloorTaken, "R7", "below-floor-taken", "A version below the floor is taken.";
    ClosedForEver, "R7", "closed-for-ever", "Members stay closed that a dead manager has closed.";
    FloorWithoutWord, "R7", "floor-without-word", "A floor rises above writes in flight.";
    NoSlowPath, "R8", "no-slow-path", "A reader returns a version that is open and not settled.";
    NoWriteBack, "R8", "no-write-back", "A reader does not put the newest version where it is missing.";
    RepairInSyncOnly, "R8", "repair-in-sync-only", "A reader puts the newest version on in-sync members only.";
    SettledBeforePut, "R8", "settled-before-put", "A version is told to be settled before it is on the whole write set.";
    SettledAtOnce, "R8", "settled-at-once", "A replica marks a version as settled when it takes it.";
    ReadsFromSyncing, "R8", "reads-from-syncing", "A client reads from syncing members.";
    SyncingServesReads, "R8", "syncing-serves-reads", "A syncing member answers reads.";
    RepairLeavesNoEntry, "R9", "repair-leaves-no-entry", "A replica that refuses a repair does not remember its version.";
    ConfirmForgets, "R10", "confirm-forgets", "A version that is settled leaves the open set.";
    ClosedSessionServed, "R10", "closed-session-served", "A drive serves a session that it was told is over.";
    PassKept, "R10", "pass-kept", "A session that was admitted once is admitted after it was fenced.";
    UnlistedSessionServed, "R10", "unlisted-session-served", "A target serves a session that its map does not list as open.";
    SessionsNotDurable, "R10", "sessions-not-durable", "That a session is over is forgotten by a restart.";
    SweepForgetsUnsettled, "R10", "sweep-forgets-unsettled", "A target forgets a session without finishing its writes.";
    ForgottenUnswept, "R10", "forgotten-unswept", "The manager forgets a session that no target has swept.";
    SweptBeforeRefused, "R10", "swept-before-refused", "A session is swept before every target refuses it.";
    SweptBeforeMap, "R10", "swept-before-map", "A target sweeps before it has adopted the map that the sweep is about.";
    EvictsWithoutWord, "R11", "evicts-without-word", "An eviction does not wait for another member's word.";
    LeaseNotWaitedOut, "R11", "lease-not-waited-out", "An eviction does not wait until the victim's lease has run out.";
    PromiseNotWaitedOut, "R11", "promise-not-waited-out", "An eviction does not wait until what a member vouched for has run out.";
    PromiseIgnored, "R11", "promise-ignored", "A target vouches for a member in spite of its promise.";
    PromiseOutlivesRestart, "R11", "promise-outlives-restart", "The manager counts a promise of a process that was restarted since.";
    LastWordFirst, "R11", "last-word-first", "A target says its last word while it still serves.";
    DepartsUnawares, "R11", "departs-unawares", "A demoted member departs before its target knows of it.";
    StintKeepsVerified, "R12", "stint-keeps-verified", "A replica that comes back counts what it held as verified.";
    StintKeepsMarks, "R12", "stint-keeps-marks", "A replica that comes back keeps its open sets and watermarks.";
    MergesByVersion, "R12", "merges-by-version", "A copy leaves newer versions of before the stint in place.";
    CopyOverwritesNewer, "R12", "copy-overwrites-newer", "A copy replaces a newer version that came since the block was verified.";
    DigestsNotCompared, "R12", "digests-not-compared", "Chunks count as verified whatever their digests are.";
    HollowNotFilled, "R12", "hollow-not-filled", "Data that a copy for a waiting write left out is never fetched.";
    EvictedSourceCopied, "R12", "evicted-source-copied", "What a source sent before the epoch changed is still copied.";
    CopyTooEarly, "R13", "copy-too-early", "Verification starts before every in-sync member knows the syncing epoch.";
    StaleStintCopied, "R13", "stale-stint-copied", "A copy of an older stint is taken.";
    StaleStintPromoted, "R13", "stale-stint-promoted", "The word that all is verified counts for a later stint.";
    CopyDropsMarks, "R14", "copy-drops-marks", "A copy does not bring the source's open entries.";
    MarksBeforeData, "R14", "marks-before-data", "A source takes its marks before the data that they belong to.";
    MarksOfUnheld, "R14", "marks-of-unheld", "A copy brings marks of versions that are newer than its data.";
    MarkAboveHeldCounts, "R14", "mark-above-held-counts", "A mark above what a block holds counts as if the data were there.";
    PromotedUnverified, "R15", "promoted-unverified", "The manager promotes a member that has not verified everything.";
    GenerationNotChecked, "R16", "generation-not-checked", "A target serves older generations of a volume.";
    GenerationNotDurable, "R16", "generation-not-durable", "A volume's generation is forgotten by a restart.";
    AttachBeforeGeneration, "R16", "attach-before-generation", "An attach does not wait until every target has the new generation.";
    AttachUnnumbered, "C10", "attach-unnumbered", "An attach that is asked for again opens another session.";
    AttachBeforeSweep, "R16", "attach-before-sweep", "An attach does not wait until earlier sessions are swept.";
    MapNotDrained, "R16", "map-not-drained", "A generation is acknowledged while requests that an older one admitted still run.";
    SliceFilter, "C8", "slice-filter", "The delta of a slice has only what commits have touched.";
    DeltaOverGap, "C8", "delta-over-gap", "A delta is taken that does not begin where the follower is.";
    SkipOverGap, "C8", "skip-over-gap", "That nothing has changed counts from any version.";
    GroupUntold, "C9", "group-untold", "That a group changes does not concern its members.";
    AbsentIsGone, "C14", "absent-is-gone", "A target takes a session for over that its slice does not list.";
    UnlistedVolumeServed, "C14", "unlisted-volume-served", "A target serves sessions of a volume that its slice does not list.";
    SnapshotLowers, "C14", "snapshot-lowers", "A target takes an entry of a group that its slice does not list.";
    LaneSpeaksForSibling, "P6", "lane-speaks-for-sibling", "A lane tells its watermark for a sibling.";
    OneSlotSwept, "P7", "one-slot-swept", "Of a session that is over, the slot of one lane is swept.";
    FloorNotRaised, "P8", "floor-not-raised", "What is given up does not raise the floor of its attach.";
    PartsOnLanes, "P9", "parts-on-lanes", "A volume with blocks of 512 bytes has several lanes.";
    RoomHeld, "P10", "room-held", "A request of a peer waits for room, as those of clients do.";
    NoAnswers, "F1", "no-answers", "An operation that was decided before is decided again.";
    FailuresForgotten, "F1", "failures-forgotten", "The answer of an operation that failed is not kept.";
    OldNumbersTaken, "F1", "old-numbers-taken", "A number is decided whose answer its session has.";
    SessionNotCheckedAgain, "F1", "session-not-checked-again", "What waited is decided for a dead session.";
    AnswerBeforeAppend, "F2", "answer-before-append", "An answer leaves before the log has it.";
    UnprobedRead, "F2", "unprobed-read", "A read is answered without proof.";
    StepEndsLog, "F2", "step-ends-log", "A step of a checkpoint gives up the log of those behind it.";
    PrepareNotLogged, "F3", "prepare-not-logged", "A shard that is opened knows no locks of transactions.";
    PrepareAgain, "F3", "prepare-again", "What comes twice is prepared once more.";
    ReadLocked, "F3", "read-locked", "What a transaction has locked is read.";
    CommitUnlogged, "F3", "commit-unlogged", "A coordinator forgets whom it has to tell.";
    RenamesUnlocked, "F3", "renames-unlocked", "Two operations give directories other parents at once.";
    ParentsOfLocked, "F3", "parents-of-locked", "Parents are read that a transaction has changed.";
    LeaseNotRecalled, "F4", "lease-not-recalled", "A lease is granted beside one that does not go with it.";
    WriterNotAsked, "F4", "writer-not-asked", "Attributes are answered without the word of who writes.";
    ReadersFirst, "F4", "readers-first", "Who reads is granted that before who waits to write.";
    KeptFromItself, "F4", "kept-from-itself", "Who gives back a part waits for another one.";
    NamesKept, "F4", "names-kept", "Names that are given back are answered without asking.";
    KeptBesideChanges, "F4", "kept-beside-changes", "Answers fill what is kept, whatever has changed since.";
    DirectoryNotRecalled, "F4", "directory-not-recalled", "What is kept with a directory changes.";
    WrittenLasts, "F4", "written-lasts", "Attributes are kept of what another session writes.";
    DirectoryKept, "F4", "directory-kept", "A directory that is given back is answered for without asking.";
    GoneUnsaid, "F4", "gone-unsaid", "A name goes of a file that the shard does not know to be open.";
    GivenUnsaid, "F4", "given-unsaid", "All names go back without a word of files that are open.";
    LeaseGivenUnsaid, "F4", "lease-given-unsaid", "A directory goes back, its open files unsaid.";
    NamesStay, "F4", "names-stay", "All names go back while the kernel has some of them.";
    GivenBackUnderWay, "F4", "given-back-under-way", "A lease goes back while it is in use.";
    GivenBackUntold, "F4", "given-back-untold", "A lease goes back without the size that was written.";
    NoSelfFence, "F5", "no-self-fence", "A mount that hears from no server goes by its leases.";
    EvictNoWait, "F5", "evict-no-wait", "Leases of a session that is over are taken at once.";
    WritesForgotten, "F5", "writes-forgotten", "A writer is forgotten, and the time of its file stays.";
    SharedUncleared, "F7", "shared-uncleared", "A file is shared while something lies behind its end.";
    PartsShared, "F7", "parts-shared", "Parts of blocks are written beside other mounts.";
    GrowthLowers, "F7", "growth-lowers", "A file that many write takes the size that was told last.";
    GrownBeforeData, "F7", "grown-before-data", "A shared file is longer before the data are there.";
    SharedSizeKept, "F7", "shared-size-kept", "The end of a shared file is where it was known to be.";
    SharedNotAsked, "F7", "shared-not-asked", "Attributes are answered without the word of who shares.";
    SharedByDead, "F7", "shared-by-dead", "A file stays shared where one that shared it was forgotten.";
    LeavingsSeen, "F8", "leavings-seen", "A file grows over what lies behind its end.";
    WriteUnreserved, "F8", "write-unreserved", "Bytes are written whose end the shard does not know.";
    ZeroesUnreserved, "F8", "zeroes-unreserved", "A part of a block is zeroed where nothing is reserved.";
    GivenBackFirst, "F8", "given-back-first", "Space is given back before the shard knows the new end.";
    SizeNotTold, "F8", "size-not-told", "A file is synced, and the shard does not know its size.";
    GrowthWithoutTurn, "F8", "growth-without-turn", "Two writes make a file longer at the same time.";
    ListForgotten, "F8", "list-forgotten", "Data far out in a file are not given back.";
    PurgedWithData, "F9", "purged-with-data", "An inode is purged before its data are given back.";
    HoldForgotten, "F9", "hold-forgotten", "A file without a name is purged while it is open.";
    LockUnseen, "F11", "lock-unseen", "A lock is granted beside one that excludes it.";
    LockKept, "F11", "lock-kept", "Who closes a file keeps its locks.";
    LocksForgotten, "F11", "locks-forgotten", "A shard that is opened knows no locks.";
    HandlesOutlive, "F14", "handles-outlive", "What was opened goes on in the next session.";
    SizeBeforeData, "F14", "size-before-data", "The shard hears of a size before the data are written.";
    GivenBackUnwritten, "F14", "given-back-unwritten", "A lease goes back before what was kept is written.";
    KeptNotRead, "F14", "kept-not-read", "A read does not wait for what is kept.";
    KeptBehindEnd, "F14", "kept-behind-end", "What is kept behind a shorter end is written back.";
    LockBeforeData, "F14", "lock-before-data", "A lock goes back before what was written under it.";
    QuotaUnchecked, "F16", "quota-unchecked", "What a quota limits is done all the same.";
    BudgetGivenTwice, "F16", "budget-given-twice", "A shard gives away what it uses of a quota itself.";
    BudgetNotNoted, "F16", "budget-not-noted", "What a shard gives of a quota is not in its log.";
    BudgetUnnumbered, "F16", "budget-unnumbered", "A part of a quota counts that was taken back meanwhile.";
    UseUnsaid, "F16", "use-unsaid", "A shard that asks for more of a quota does not say what it uses.";
    ReturnNotLogged, "F16", "return-not-logged", "A part of a quota is given back, and not in the log.";
    ProjectNotInherited, "F16", "project-not-inherited", "What is made belongs to no project.";
    ProjectLeft, "F16", "project-left", "What counts for a project gets a name where another one counts.";
    CrcNotChecked, "damage", "crc-not-checked", "A drive does not check the data that it reads.";
    ClientTrustsData, "damage", "client-trusts-data", "A client does not check the data that it is sent.";
    DamageReadsAsZeroes, "damage", "damage-reads-as-zeroes", "A block that does not match its checksum reads as zeroes.";
    NoHeal, "damage", "no-heal", "A put of the same version does not heal a damaged block.";
    DoubtNotChecked, "damage", "doubt-not-checked", "Recovery takes a record of the last batch whose data has not arrived.";
    DurableUnhappens, "damage", "durable-unhappens", "Recovery drops a durable record whose data is damaged.";
    WatermarkPassesOpen, "watermark", "watermark-passes-open", "A client sends a watermark above writes that are under way.";
    WatermarkPassesRestart, "watermark", "watermark-passes-restart", "A write that starts again holds the watermark below its last version only.";
    LeaseFromReceipt, "lease", "lease-from-receipt", "A target counts its lease from the answer instead of from its request.";
    NoMargin, "lease", "no-margin", "The manager waits out a lease without the margin for clock rates.";
    SlowClock, "lease", "slow-clock", "A target's clock is slow, within the bound on drift: no rule is broken.";
    GrantWithoutMap, "lease", "grant-without-map", "A grant counts before the map that it names is adopted.";
    JoinWithoutMap, "lease", "join-without-map", "A target that joins does not adopt the map that comes with the answer.";
    LeaderDoesNotWait, "lease", "leader-does-not-wait", "A new manager does not wait for the leases of the one before.";
    GrantsUnawaited, "lease", "grants-unawaited", "A new manager grants leases before all that may know more have joined.";
    StallUnnoticed, "lease", "stall-unnoticed", "What a manager that stood still missed counts as silence.";
    SilentUnasked, "lease", "silent-unasked", "A session ends for silence although targets serve its client.";
    VouchedByAny, "lease", "vouched-by-any", "The word of some member is enough, where that of all is needed.";
    SiblingRenews, "P1", "sibling-renews", "A renewal counts for the siblings, too.";
    SiblingUnasked, "P2", "sibling-unasked", "A target leaves its siblings unasked.";
    WordForAnyDrive, "P2", "word-for-any-drive", "A word counts for drives that have passed to a sibling.";
    NodeAnswersOnce, "P3", "node-answers-once", "One target of a node speaks for all.";
    OlderSiblingJoins, "P4", "older-sibling-joins", "A target of a replaced process joins.";
    PartsAreDrives, "P5", "parts-are-drives", "Each part of a device counts as a device of its own.";
    PartUnchecked, "P5", "part-unchecked", "A part is served although another one is listed in its place.";
    DeviceLabelFirst, "P5", "device-label-first", "A device's label is written before its parts are.";
    DeviceNotWiped, "P5", "device-not-wiped", "A device keeps its old label until it is formatted anew.";
    ToldEarly, "C1", "told-early", "An answer does not wait until what it says is durable.";
    RepeatToldEarly, "C1", "repeat-told-early", "An answer that decides nothing does not wait.";
    PushDecided, "C1", "push-decided", "Targets are sent maps that are not durable yet.";
    CommandEarly, "C1", "command-early", "Targets end sessions whose end is not durable yet.";
    GrantDurable, "C4", "grant-durable", "A grant names the newest durable map, not the newest decided one.";
    NoTermCompare, "C2", "no-term-compare", "What a manager writes does not compare the term.";
    TakeoverEarly, "C4", "takeover-early", "A manager takes over while another one leads.";
    TermUnending, "C4", "term-unending", "A manager leads on although its term was not confirmed in time.";
    LedFromAnswer, "C4", "led-from-answer", "A term counts from the answer, not from the request.";
    CommitWithoutFlush, "store", "commit-without-flush", "A batch counts as durable before the drive was flushed.";
    DataNotAwaited, "store", "data-not-awaited", "A batch is flushed before the data that it speaks of is written.";
    PagesNotFlushed, "store", "pages-not-flushed", "A checkpoint's superblock is written before its pages are durable.";
    SuperblockNotFlushed, "store", "superblock-not-flushed", "What a checkpoint replaced is reused before its superblock is durable.";
    SuperblockInPlace, "store", "superblock-in-place", "A superblock is written over the one before.";
    LogTrimmedEarly, "store", "log-trimmed-early", "The log is reused although no checkpoint holds what is in it.";
    BitmapInPlace, "store", "bitmap-in-place", "A page of the bitmap is written over the one that the checkpoint before needs.";
    ZoneTableInPlace, "store", "zone-table-in-place", "The zone table is written over the one that the checkpoint before needs.";
    RetiredReusedEarly, "store", "retired-reused-early", "Pages that the newest durable checkpoint needs are reused while the next one is written.";
    PagesOnReached, "store", "pages-on-reached", "Pages are put where their checkpoint has data.";
    PlaceReusedEarly, "store", "place-reused-early", "A place is reused before the version that replaced it is durable.";
    ReaderNotWaitedFor, "store", "reader-not-waited-for", "A place is reused while a read of it is under way.";
    BatchCrcNotChecked, "store", "batch-crc-not-checked", "Recovery does not check a batch's checksum.";
    LaterBatchNotSought, "store", "later-batch-not-sought", "Recovery takes a damaged batch for the log's end, whatever lies behind it.";
    FoundNotFlushed, "store", "found-not-flushed", "Recovery does not flush what it has found.";
    DoubtNotSettled, "store", "doubt-not-settled", "Recovery takes no checkpoint of what it has replayed.";
    CursorBeforeChunks, "store", "cursor-before-chunks", "A resync's cursor passes chunks before they are durable.";
    PagesNotCached, "store", "pages-not-cached", "A drive's map is read from the drive each time: no rule is broken.";
    GroupDroppedFirst, "store", "group-dropped-first", "That a group was dropped is logged before its chunks are.";
}

impl Mutation {
    /// The one with this name.
    pub fn named(name: &str) -> Option<Mutation> {
        Mutation::ALL.iter().copied().find(|m| m.name() == name)
    }
}

impl std::fmt::Display for Mutation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(feature = "mutations")]
mod active {
    use super::Mutation;
    use std::cell::Cell;

    /// A bit for each switch.
    type Bits = [u64; Mutation::ALL.len().div_ceil(64)];

    const NONE: Bits = [0; Mutation::ALL.len().div_ceil(64)];

    thread_local! {
        static IS_SIMULATED: Cell<bool> = const { Cell::new(false) };
        static ACTIVE: Cell<Bits> = const { Cell::new(NONE) };
        static REACHED: Cell<Bits> = const { Cell::new(NONE) };
    }

    fn has(bits: &Bits, mutation: Mutation) -> bool {
        bits[mutation as usize / 64] & 1 << (mutation as usize % 64) != 0
    }

    fn with(mut bits: Bits, mutation: Mutation) -> Bits {
        bits[mutation as usize / 64] |= 1 << (mutation as usize % 64);
        bits
    }

    /// Whether a rule is broken: its switch was turned, and this thread runs a simulation.
    pub fn mutated(mutation: Mutation) -> bool {
        let is_active = has(&ACTIVE.get(), mutation) && IS_SIMULATED.get();
        if is_active {
            REACHED.set(with(REACHED.get(), mutation));
        }
        is_active
    }

    /// This thread runs a simulation as long as it lives: the runtime makes one where a simulation runs.
    #[must_use = "the thread runs no simulation any more when it is dropped"]
    pub struct Simulated(bool);

    impl Simulated {
        /// From now on.
        pub fn begin() -> Simulated {
            Simulated(IS_SIMULATED.replace(true))
        }
    }

    impl Drop for Simulated {
        fn drop(&mut self) {
            IS_SIMULATED.set(self.0);
        }
    }

    /// Rules that are broken as long as it lives.
    #[must_use = "the rules hold again when it is dropped"]
    pub struct Broken(Bits);

    impl Broken {
        /// Breaks these rules, and no others, in simulations of this thread.
        pub fn rules(mutations: &[Mutation]) -> Broken {
            let before = ACTIVE.replace(mutations.iter().fold(NONE, |bits, m| with(bits, *m)));
            REACHED.set(NONE);
            Broken(before)
        }

        /// Whether code with this switch has run since.
        pub fn has_reached(&self, mutation: Mutation) -> bool {
            has(&REACHED.get(), mutation)
        }
    }

    impl Drop for Broken {
        fn drop(&mut self) {
            ACTIVE.set(self.0);
        }
    }
}

#[cfg(feature = "mutations")]
pub use active::{Broken, Simulated, mutated};

/// Whether a rule is broken: never.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub const fn mutated(_: Mutation) -> bool {
    false
}

/// Nothing: without switches nobody asks whether a thread runs a simulation.
#[cfg(not(feature = "mutations"))]
#[must_use = "the thread runs no simulation any more when it is dropped"]
pub struct Simulated;

#[cfg(not(feature = "mutations"))]
impl Simulated {
    /// From now on.
    pub fn begin() -> Simulated {
        Simulated
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_differ_and_lead_back() {
        let names: BTreeSet<&str> = Mutation::ALL.iter().map(|m| m.name()).collect();
        assert_eq!(names.len(), Mutation::ALL.len());
        for m in Mutation::ALL {
            assert_eq!(Mutation::named(m.name()), Some(*m));
            assert!(m.name().bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{m}");
            assert!(m.breaks().ends_with('.'), "{m}");
        }
    }

    #[test]
    fn every_rule_of_the_protocol_has_a_switch() {
        let rules: BTreeSet<&str> = Mutation::ALL.iter().map(|m| m.rule()).collect();
        for n in 1..=16 {
            assert!(rules.contains(format!("R{n}").as_str()), "R{n}");
        }
        for other in ["C8", "C9", "C14", "P10", "F1", "F2", "lease", "damage", "watermark", "store"] {
            assert!(rules.contains(other), "{other}");
        }
    }

    #[cfg(feature = "mutations")]
    #[test]
    fn a_switch_acts_in_simulations_of_its_thread_while_it_is_turned() {
        let look = || {
            let _simulated = Simulated::begin();
            mutated(Mutation::NoLease)
        };
        assert!(!look());
        let broken = Broken::rules(&[Mutation::NoLease]);
        assert!(!broken.has_reached(Mutation::NoLease));
        assert!(look() && broken.has_reached(Mutation::NoLease));
        assert!(!mutated(Mutation::NoLease), "outside of a simulation");
        assert!(!std::thread::spawn(look).join().unwrap(), "another thread");
        drop(broken);
        assert!(!look());
    }
}
