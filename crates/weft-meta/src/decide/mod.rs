//! What an operation does to the tables, and what it answers. Pure: no clock, no chance, no I/O; the time is
//! given.

mod attributes;
mod draft;
mod hold;
mod lasting;
mod list;
mod lock;
mod names;
mod new_inode;
mod quota;
mod rename;
mod xattr;

use crate::change::Change;
use crate::foreign::{Foreign, Need};
use crate::key::Key;
use crate::recalls::in_the_way;
use crate::record::{KeptAnswer, encode_number};
use crate::tables::Tables;
use draft::Draft;
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::FileTime;
use weft_types::limits::FILE_OPERATIONS_MAX;
use weft_wire::files::{Answer, FileError, FileRequest, Operation};

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What it changes, to be made durable together with the answer. None if it was decided before, or only
    /// reads.
    pub changes: Vec<Change>,
    /// What it answers once everything that it is based on is durable.
    pub answer: Answer,
}

impl Decision {
    pub(crate) fn refused(error: FileError) -> Decision {
        Decision { changes: Vec::new(), answer: Answer::Failed(error) }
    }
}

/// What an operation may not do, by what is not in the tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// There is no space: what would make the tables larger is refused.
    pub is_full: bool,
    /// What it wants is kept free for another session.
    pub is_kept: bool,
    /// The set of groups that new inodes lie in, by its place among those of the file system; that of their
    /// directory if it is not known.
    pub newest_set: Option<u8>,
}

/// What an operation does to these tables at this time.
///
/// An operation that can change something is decided once (F1): its answer is part of the changes, and a
/// request that is sent again gets that answer. This is also so if the operation fails: sent again later,
/// it might succeed after its client was told that it had failed. If the hold of another session is in its
/// way, the operation is refused ([`FileError::Busy`]) and never waits: it would keep the session's other
/// numbers waiting (F4).
pub fn decide(tables: &Tables, request: &FileRequest, now: FileTime, limits: Limits) -> Decision {
    let decided = decide_with(tables, request, now, limits, &Foreign::default());
    decided.unwrap_or_else(|_| Decision::refused(FileError::Stale))
}

/// As [`decide`], with items of other shards that are locked for the operation (F3).
///
/// # Errors
/// What is needed of other shards first; then nothing is decided.
pub(crate) fn decide_with(
    tables: &Tables,
    request: &FileRequest,
    now: FileTime,
    limits: Limits,
    foreign: &Foreign,
) -> Result<Decision, Need> {
    if !request.operation.changes() {
        let mut draft = Draft::new(tables, request.session, now, limits.newest_set, foreign);
        let answer = carry_out(&mut draft, &request.operation).unwrap_or_else(Answer::Failed);
        let answer = draft.with_what_lasts(answer);
        debug_assert!(draft.changes.is_empty(), "{:?} changes something", request.operation);
        return draft.need.into_inner().map_or(Ok(Decision { changes: Vec::new(), answer }), Err);
    }
    let known = tables.session(request.session);
    let answered = known.unwrap_or(0).max(request.answered);
    let is_old = request.number <= answered && !mutated(Mutation::OldNumbersTaken);
    if is_old || request.number > answered.saturating_add(FILE_OPERATIONS_MAX) {
        return Ok(Decision::refused(FileError::OutOfOrder));
    }
    let (key, of) = (Key::answer(request.session, request.number), request.operation.checksum());
    if let Some(kept) = tables.get(&key)
        && !mutated(Mutation::NoAnswers)
    {
        let kept = KeptAnswer::decode(kept).expect("values are checked");
        mark(Path::AnsweredAgain);
        return Ok(match kept.of == of {
            true => Decision { changes: Vec::new(), answer: kept.answer },
            // Two operations have one number: their client has lost count.
            false => Decision::refused(FileError::OutOfOrder),
        });
    }
    let mut draft = Draft::new(tables, request.session, now, limits.newest_set, foreign);
    let is_in_the_way = !mutated(Mutation::LeaseNotRecalled) && !in_the_way(tables, request).is_empty();
    let carried_out = match () {
        () if is_in_the_way || limits.is_kept => Err(FileError::Busy),
        () if limits.is_full && request.operation.grows() => Err(FileError::NoSpace),
        () => carry_out(&mut draft, &request.operation)
            .and_then(|answer| draft.within_quotas(&request.operation).map(|()| answer)),
    };
    if let Some(need) = draft.need.take() {
        return Err(need);
    }
    let answer = match carried_out {
        Ok(answer) => answer,
        Err(error) if mutated(Mutation::FailuresForgotten) => return Ok(Decision::refused(error)),
        Err(error) => {
            draft.changes.clear();
            Answer::Failed(error)
        }
    };
    let mut changes = draft.changes;
    forget_answers(tables, request, known, &mut changes);
    changes.push(Change::Put(key, KeptAnswer { of, answer: answer.clone() }.encode()));
    Ok(Decision { changes, answer })
}

/// Answers that the session has are dropped.
fn forget_answers(tables: &Tables, request: &FileRequest, known: Option<u64>, changes: &mut Vec<Change>) {
    if known.is_some_and(|known| request.answered <= known) {
        return;
    }
    let session = request.session;
    let first = Key::answer(session, known.unwrap_or(0));
    let last = Key::answer(session, request.answered);
    let kept = tables.from(first).take_while(|(key, _)| **key <= last);
    changes.extend(kept.map(|(key, _)| Change::Delete(key.clone())));
    changes.push(Change::Put(Key::session(session), encode_number(request.answered)));
}

/// Carries out an operation in a draft; an error leaves a draft that is to be thrown away.
fn carry_out(draft: &mut Draft<'_>, operation: &Operation) -> Result<Answer, FileError> {
    match operation {
        Operation::Find(at) => draft.find(at),
        Operation::Attributes(inode) => draft.attributes_of(*inode),
        Operation::Create(at, made) => draft.create(at, made),
        Operation::CreateUnnamed(directory, made) => draft.create_unnamed(*directory, made),
        Operation::Link(inode, at) => draft.link(*inode, at),
        Operation::Unlink(at) => draft.unlink(at),
        Operation::RemoveDirectory(at) => draft.remove_directory(at),
        Operation::Rename(from, to, mode) => draft.rename(from, to, *mode),
        Operation::Change(inode, changes) => draft.change(*inode, changes),
        Operation::SetLayout(inode, layout) => draft.set_layout(*inode, layout),
        Operation::SetQuota(whole, of, limit, directory) => draft.set_quota(*whole, *of, *limit, *directory),
        Operation::SetProject(inode, project) => draft.set_project(*inode, *project),
        Operation::Project(inode) => draft.project(*inode),
        Operation::List { directory, after, limit } => draft.list(*directory, *after, *limit),
        Operation::Target(inode) => draft.target(*inode),
        Operation::Xattr(inode, name) => draft.xattr(*inode, name),
        Operation::XattrNames(inode) => draft.xattr_names(*inode),
        Operation::SetXattr(inode, name, value, mode) => draft.set_xattr(*inode, name, value, *mode),
        Operation::RemoveXattr(inode, name) => draft.remove_xattr(*inode, name),
        Operation::Hold(inode, mode) => draft.hold(*inode, *mode),
        Operation::HoldDirectory(inode) => draft.hold_directory(*inode),
        Operation::Release(inode, changes) => draft.release(*inode, changes),
        Operation::Reserve(inode, end) => draft.move_end(*inode, *end, u64::max),
        Operation::Unreserve(inode, end) => draft.move_end(*inode, *end, u64::min),
        Operation::Grow(inode, size, time) => draft.grow(*inode, *size, *time),
        Operation::CreateOpen(at, made, end) => draft.create_open(at, made, *end),
        // What is waited for is not in the tables.
        Operation::Recalls
        | Operation::Told(_)
        | Operation::Await(_)
        | Operation::Check(_)
        | Operation::Use
        | Operation::State
        | Operation::DataOf(_)
        | Operation::Across(..)
        | Operation::NamesOf(_)
        | Operation::Quotas(_) => Ok(Answer::Done),
        Operation::Lock(inode, lock) => draft.lock(*inode, lock),
        Operation::Unlock(inode, owner, range) => draft.unlock(*inode, *owner, *range),
        Operation::FindLock(inode, lock) => draft.find_lock(*inode, lock),
    }
}
