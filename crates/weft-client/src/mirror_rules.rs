//! Decisions of the write protocol that can be broken on purpose, one function each: what the rule says, and
//! the switch beside it. `mirror.rs` reads as if no switch existed.

use crate::versions::Operation;
use std::ops::Range;
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::{BlockRange, DriveId, Group};
use weft_wire::data::{Extent, Purpose, Verdict, is_intact};
use weft_wire::newest::Newest;

/// Who has to take a version: the whole write set (R3), also in a repair (R8).
pub(crate) fn writable(entry: &Group, purpose: Purpose) -> Vec<DriveId> {
    match purpose == Purpose::Repair && mutated(Mutation::RepairInSyncOnly) {
        true => entry.read_set().collect(),
        false => entry.write_set().collect(),
    }
}

/// Who may be read from: in-sync members only (R1).
pub(crate) fn readable(entry: &Group) -> Vec<DriveId> {
    match mutated(Mutation::ReadsFromSyncing) {
        true => entry.write_set().collect(),
        false => entry.read_set().collect(),
    }
}

/// The runs to be written again in a higher version. R5: a block for which nobody said "applied" may have met
/// a newer complete write. One that was given up ends there: its next version would undo writes that were
/// called after it had failed.
pub(crate) fn superseded(operation: &Operation, run: BlockRange, applied: &[bool]) -> Vec<BlockRange> {
    if operation.is_given_up() || mutated(Mutation::SupersededSuffices) {
        mark(Path::GivenUp);
        return Vec::new();
    }
    if applied.contains(&false) {
        mark(Path::WriteAgain);
    }
    runs_where(run, |block| !applied[(block - run.first) as usize])
}

/// Notes what a replica said of the blocks of a run: a block that one replica has applied is applied (R5).
pub(crate) fn note_verdict(applied: &mut [bool], run: Range<usize>, verdict: &Verdict) {
    match verdict {
        Verdict::Applied => {
            applied[run].fill(true);
            if mutated(Mutation::BlocksJudgedTogether) {
                applied.fill(true);
            }
        }
        Verdict::Superseded(_) => {
            if mutated(Mutation::RetryOnAnySuperseded) {
                applied[run].fill(false);
            }
        }
    }
}

/// What was answered in an earlier epoch still counts (R6).
pub(crate) fn forget_answers(applied: &mut [bool]) {
    if mutated(Mutation::AppliedForgotten) {
        applied.fill(false);
    }
}

/// Whether a version ends with its epoch: it does not, it goes on in the next one (R6).
pub(crate) fn gets_a_new_version() -> bool {
    mutated(Mutation::NewVersionAfterEpoch)
}

/// Whether data is returned to the caller: only what matches its checksums.
pub(crate) fn is_good(data: &[u8], crcs: &[u32]) -> bool {
    is_intact(data, crcs) || mutated(Mutation::ClientTrustsData)
}

/// Whether a version needs no slow path: no write of it may be in flight (R8).
pub(crate) fn is_settled(extent: &Extent) -> bool {
    !extent.open || mutated(Mutation::NoSlowPath)
}

/// Whether all members that have to hold the newest version do, so that it need not be put there (R8).
pub(crate) fn is_everywhere(entry: &Group, newest: &Newest) -> bool {
    entry.write_set().all(|drive| newest.intact_on.contains(&drive)) || mutated(Mutation::NoWriteBack)
}

/// Whether replicas hear that a version is settled before it is: they do not.
pub(crate) fn is_told_too_early() -> bool {
    mutated(Mutation::SettledBeforePut)
}

/// The runs of blocks for which the condition holds.
fn runs_where(range: BlockRange, condition: impl Fn(u32) -> bool) -> Vec<BlockRange> {
    let mut runs: Vec<BlockRange> = Vec::new();
    for block in range.blocks().filter(|b| condition(*b)) {
        match runs.last_mut() {
            Some(run) if run.end() == block => run.count += 1,
            _ => runs.push(BlockRange::one(block)),
        }
    }
    runs
}
