//! Rare schedules, step by step: what random faults would find only after very many seeds.
//!
//! A step waits for what a drive holds, not for a time, wherever that is possible; what is left to the seed is how
//! messages and operations of drives interleave in between.

use super::actor::{
    about_ms, becomes, changes, enter, fast, leave, place, slow, start_cold, store, until, version,
};
use super::stage::chunk_block;
use super::{
    Scenario, conflicts, cut, endings, follow, forgets, kept, lanes, returns, rot, run_seed, silence,
};
use crate::coverage::Coverage;
use std::time::Duration;
use weft_rt::sim::{self, Crash};
use weft_rt::{random_below, sleep};
use weft_types::{ChunkIndex, Role};

/// Declares the schedules: what happens, and how each is run.
macro_rules! scripts {
    ($($(#[$says:meta])* $variant:ident => $run:expr;)*) => {
        /// A schedule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Script {
            $($(#[$says])* $variant,)*
        }

        impl Script {
            /// All of them.
            pub const ALL: &[Script] = &[$(Script::$variant,)*];

            /// Runs it to its end.
            ///
            /// # Errors
            /// What is wrong.
            pub async fn run(self) -> Result<(), String> {
                match self { $(Script::$variant => $run.await,)* }
            }
        }
    };
}

scripts! {
    /// A write's answer is lost, a reader repairs it while a newer write is halfway, the one replica that took the
    /// write is evicted, and the writer asks again.
    RepairRefused => repair_refused(true);
    /// A dying client's write reaches the in-sync member just after the block was copied, a reader settles it, and
    /// the syncing member is promoted.
    RepairWhileSyncing => repair_while_syncing();
    /// Likewise, but the answer arrives.
    AnswerKept => repair_refused(false);
    /// A write is superseded by one that is not durable yet, and that is lost then.
    CiteLost => cite_lost();
    /// A write is admitted and waits for the drive, while a member comes back and copies the block.
    SlowAdmission => slow_admission();
    /// A read waits for the drive while its member is evicted and comes back.
    SlowRead => conflicts::slow_read();
    /// A member that knows that it is not in-sync loses power, and starts again where nobody tells it.
    KnewBetter => conflicts::knew_better(false);
    /// Likewise, at the very moment at which the fabric takes for granted that it knows.
    KnewAtLast => conflicts::knew_better(true);
    /// A member does not get to the map that takes it out, because its drive is busy with the map before.
    LagsBehind => conflicts::lags_behind();
    /// One of two members takes a write, the other one holds a newer one, and the one after the other is seen.
    TakenByOne => conflicts::taken_by_one();
    /// Likewise, and the writer says what is complete before it says anything else.
    TakenAndPassed => conflicts::taken_and_passed();
    /// One of two members does not get a write, and all that its writer hears of it is that the connection is lost.
    Unheard => conflicts::unheard();
    /// A reader finds a write on one of two members, and cannot put it on the other one.
    PutDelayed => conflicts::put_delayed();
    /// Of a request of two blocks one meets a newer write.
    PartlySuperseded => conflicts::partly_superseded();
    /// A write with an old version reaches a replica that has not verified the block.
    WriteToUnverified => returns::write_to_unverified();
    /// A replica copies from a member that has not heard of it, and a client writes there who has not either.
    WriteAround => returns::write_around();
    /// A write that is on one member is copied from there.
    OpenOnSource => returns::open_on_source();
    /// Likewise, while the source reads what is to be copied.
    OpenWhileRead => returns::open_while_read();
    /// Writes come to source and replica while the source reads what is to be copied.
    WritesMeetCopy => returns::writes_meet_copy(false);
    /// Likewise, and late to the replica.
    WritesFollowCopy => returns::writes_meet_copy(true);
    /// A write that was on the replica alone goes on after the replica has come back without it.
    MarkOfBefore => returns::mark_of_before();
    /// A write to a block that was never written reaches one replica, which is evicted; its client dies.
    DebrisOfAbsent => returns::debris(false);
    /// Likewise, of a block that was written before.
    DebrisOfOlder => returns::debris(true);
    /// Nobody writes while a replica comes back.
    BackQuietly => returns::back_quietly();
    /// Likewise, a second time.
    BackAgain => returns::back_again();
    /// What a source has sent arrives after the replica was evicted and came back.
    ReplyOfBefore => returns::reply_of_before();
    /// A replica that has verified everything cannot say so, is evicted and comes back.
    WordOfBefore => returns::word_of_before();
    /// The source is lost for good after a copy that a write had hurried.
    SourceLost => returns::source_lost();
    /// A client dies with a write on one of two members.
    LeftAlone => endings::left_alone();
    /// A client that was fenced writes to a node that has started again since.
    FencedOnce => endings::fenced_once(false);
    /// Likewise, and that node hears of nobody else at first.
    FencedOnceAlone => endings::fenced_once(true);
    /// A client that was fenced writes to a node that has not come to the newest map yet.
    FencedLate => endings::fenced_late();
    /// A reader stands still before it puts what it found; meanwhile the block is discarded, and that is
    /// forgotten.
    LatePut => forgets::late_put();
    /// A write is on one of two members while newer blocks are discarded beside it.
    InFlight => forgets::in_flight();
    /// A client whose clock is behind writes while floors rise to just below now.
    BehindTheFloor => forgets::behind_the_floor();
    /// A manager dies while a floor rises, and a client whose clock is behind writes below it.
    LeftClosed => forgets::left_closed();
    /// A client loses its way to one of two members, and stays cut off.
    CutOff => cut::cut_off();
    /// Two clients miss a member that does not hear that it is to leave; another client reads there.
    DepartsUnheard => cut::departs_unawares();
    /// A block that has rotted on one drive is read, and then the other drive is lost.
    HealedByReads => rot::healed_by_reads();
    /// A block that has rotted in the log, and a power cut.
    RottenInLog => rot::rotten_in_log();
    /// Blocks that have rotted on one of two members are copied from there.
    RottenSource => rot::rotten_source();
    /// The manager stands still for longer than a session's term, while a client goes on.
    ManagerStandsStill => silence::manager_stands_still();
    /// A client is cut off from the manager for longer than a session's term.
    HeardByTargetsOnly => silence::heard_by_targets_only();
    /// The answer to an attach is lost, and the client asks again.
    AskedAgain => silence::asked_again();
    /// People change things while the manager's store is slow, and the manager dies.
    AnswersAreKept => kept::answers_are_kept();
    /// Likewise, and others are told that it is so already.
    RefusalsAreKept => kept::refusals_are_kept();
    /// The map changes while the manager's store is slow, and the manager dies.
    MapsAreKept => kept::maps_are_kept();
    /// A session is ended while the manager's store is slow, and the manager dies.
    EndsAreKept => kept::ends_are_kept();
    /// A node is taken out while the store is slow, and is heard again in that moment.
    JustTakenOut => kept::just_taken_out();
    /// A manager stands still, another one takes over, and a node hears of the first one only.
    Replaced => kept::replaced(kept::First::StandsStill);
    /// The store answers a manager late, and then not at all; another one takes over, and a node hears of the
    /// first one only.
    Unanswered => kept::replaced(kept::First::IsNotAnswered);
    /// A member passes to a drive that a client has not heard of.
    MemberPasses => follow::member_passes();
    /// A member leaves its group and forgets it, and a client that has not heard of that asks it.
    LeftAndForgotten => follow::left_and_forgotten();
    /// A client misses more changes of the map than the manager knows, and then one more.
    MissesChanges => follow::changes_missed(true);
    /// Likewise, and then nothing that concerns it changes.
    MissesChangesAlone => follow::changes_missed(false);
    /// A write is given up on one lane, and the caller writes the block on another one.
    GivenUpOnALane => lanes::given_up_on_a_lane();
    /// A lane's write is on one of two members, which hear what another lane has completed.
    OtherLaneSpeaks => lanes::other_lane_speaks();
    /// A client dies with a write of its second lane on one of two members.
    LaneLeftBehind => lanes::lane_left_behind();
    /// One lane writes sectors, another one whole blocks.
    PartsOnLanes => lanes::parts_on_lanes();
    /// All connections of one lane fail for a while.
    LaneCutOff => lanes::lane_cut_off();
    /// The session of a client with two lanes is taken away.
    LanesEndTogether => lanes::lanes_end_together();
}

impl Script {
    /// Its name, in lower case with hyphens.
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_ascii_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<Script> {
        Script::ALL.iter().copied().find(|script| script.name() == name)
    }

    /// Runs it with this seed while every rule holds, and says which paths it took.
    pub fn rehearse(self, seed: u64, with_story: bool) -> (Result<(), String>, Coverage) {
        weft_rules::take_counts();
        let (result, _) = run_seed(Scenario::Script(self), &[], seed, with_story);
        let mut covered = Coverage::default();
        covered.add_paths(&weft_rules::take_counts());
        (result, covered)
    }
}

async fn repair_refused(is_lost: bool) -> Result<(), String> {
    let (stage, [a, b, c], [writer, other, reader]) = enter(["writer", "other", "reader"]).await;
    until(&other.write(0).done).await;
    sleep(Duration::from_millis(5)).await;
    let before = version(&stage, c, 0).await;
    // The write reaches C alone, and C's answer is lost.
    [a, b].iter().for_each(|n| writer.cut_to(*n, true));
    writer.cut_from(c, is_lost);
    let written = writer.write(0).done;
    if !changes(&stage, c, 0, before).await {
        return Ok(());
    }
    sleep(Duration::from_millis(1)).await;
    // A reader finds it on C, whose drive takes long to read it; meanwhile a newer write reaches A and B.
    slow(&stage, c, Duration::from_millis(20));
    let reads: Vec<_> = (0..4).map(|_| reader.read(0)).collect();
    sleep(Duration::from_millis(22 + random_below(16))).await;
    other.cut_to(c, true);
    let overwritten = other.write(0).done;
    for read in reads {
        let _ = weft_rt::timeout(Duration::from_millis(200), read).await;
    }
    // C is evicted; the newer write is done, and is read; then the writer asks again.
    stage.bed.kill_node(c, Crash::Process);
    becomes(&stage, c, Role::Out).await;
    until(&overwritten).await;
    for _ in 0..3 {
        let _ = weft_rt::timeout(Duration::from_millis(200), reader.read(0)).await;
    }
    [a, b].iter().for_each(|n| writer.cut_to(*n, false));
    until(&written).await;
    stage.heal();
    stage.finish_with_sessions().await
}

async fn cite_lost() -> Result<(), String> {
    let (stage, [a, b], [behind, ahead, reader]) = enter(["behind", "ahead", "reader"]).await;
    until(&reader.write(0).done).await;
    sleep(Duration::from_millis(600)).await;
    // A newer write is on its way into B's drive, and nowhere else.
    slow(&stage, b, Duration::from_millis(40));
    ahead.cut_to(a, true);
    let newer = ahead.write(0).process;
    sleep(Duration::from_millis(3)).await;
    // An older one meets it there.
    let older = behind.write_by_clock(0, 1, -300_000);
    sleep(Duration::from_millis(5 + random_below(10))).await;
    sim::kill(newer, Crash::Process);
    stage.bed.kill_node(b, Crash::PowerCut);
    slow(&stage, b, Duration::from_micros(20));
    sleep(Duration::from_millis(1)).await;
    if !older.done.get() {
        sim::kill(older.process, Crash::Process);
    }
    stage.bed.start_node(b);
    for _ in 0..30 {
        let _ = weft_rt::timeout(Duration::from_millis(20), reader.read(0)).await;
    }
    stage.heal();
    stage.finish_with_sessions().await
}

async fn slow_admission() -> Result<(), String> {
    let (stage, [a, b], [writer, reader]) = enter(["writer", "reader"]).await;
    until(&writer.write(0).done).await;
    leave(&stage, b).await;
    until(&writer.write(0).done).await;
    // A has to read the block's entry anew, and the writer hears of nothing.
    start_cold(&stage, a).await;
    writer.hear_of_nothing(true);
    // Longer than B's copy, whose questions give way to clients for a fifth of a second each.
    slow(&stage, a, about_ms(650, 50));
    let written = writer.write(0).done;
    sleep(Duration::from_millis(2)).await;
    fast(&stage, a);
    // Meanwhile B comes back, and copies the block from A.
    stage.bed.start_node(b);
    becomes(&stage, b, Role::InSync).await;
    until(&written).await;
    reader.reach_only(b);
    reader.read_now(0..1).await;
    stage.heal();
    stage.finish_with_sessions().await
}

async fn repair_while_syncing() -> Result<(), String> {
    let (stage, [a, b], [writer, reader]) = enter(["writer", "reader"]).await;
    for chunk in 0..16 {
        until(&reader.write(chunk_block(chunk)).done).await;
    }
    stage.bed.kill_node(b, Crash::Process);
    becomes(&stage, b, Role::Out).await;
    for chunk in 0..16 {
        until(&reader.write(chunk_block(chunk)).done).await;
    }
    slow(&stage, b, Duration::from_millis(4));
    stage.bed.start_node(b);
    let (group, object) = place(&stage).await;
    let mut is_copied = false;
    for _ in 0..20_000 {
        let held = store(&stage, b);
        let stint = held.as_ref().and_then(|s| s.verify_state(group.id)).and_then(|s| s.stint);
        if stint.is_some() && held.is_some_and(|s| s.chunk_is_verified(group.id, object, ChunkIndex(0))) {
            is_copied = true;
            break;
        }
        sleep(Duration::from_micros(200)).await;
    }
    let (now, _) = place(&stage).await;
    let drive = stage.bed.nodes[b].drives()[0];
    if !is_copied || now.slot_of(drive).is_none_or(|s| s.role != Role::Syncing) {
        return Ok(());
    }
    // The dying client's write reaches the in-sync member alone.
    let before = version(&stage, a, 0).await;
    writer.cut_to(b, true);
    let process = writer.write(0).process;
    changes(&stage, a, 0, before).await;
    sim::kill(process, Crash::Process);
    reader.read_again(0, 3).await;
    slow(&stage, b, Duration::from_micros(20));
    becomes(&stage, b, Role::InSync).await;
    reader.read_again(0, 12).await;
    stage.heal();
    stage.finish_with_sessions().await
}
