//! Operations of a session on their way to shards: numbered, so that each happens once, and sent again until
//! they are answered (F1).

use crate::error::FsError;
use crate::hearing::{Hearing, Hearings};
use crate::kept_names::KeptNames;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::{Notify, join_all};
use weft_rt::{sleep, spawn, timeout};
use weft_types::limits::FILE_OPERATIONS_MAX;
use weft_types::{InodeNumber, SessionId};
use weft_wire::files::{Answer, FileError, FileRequest, HoldMode, Listed, ListedEntry, Operation};

/// How shards are reached.
pub trait Shards: 'static {
    /// Sends a request to the server that a shard has, as far as is known, and waits for its answer. `None`
    /// if none has come: there is no server, or the connection is lost, or it took too long. The request may
    /// have arrived then, and may still arrive.
    ///
    /// # Errors
    /// If no server will ever answer it: the session is over, or it makes no sense to them.
    fn ask(
        &self,
        shard: u16,
        request: &FileRequest,
    ) -> impl Future<Output = Result<Option<Answer>, Unanswerable>>;
}

/// Why no answer will come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswerable {
    /// The session is over, for this reason.
    Over(Rc<str>),
    /// The server and this side do not understand each other.
    Refused(Rc<str>),
}

/// How long to wait before a request is sent again for which no answer came.
const AGAIN_AFTER: Duration = Duration::from_millis(5);

/// A session that asks shards. Clones are the same session.
pub struct Caller<S>(Rc<Inner<S>>);

impl<S> Clone for Caller<S> {
    fn clone(&self) -> Self {
        Caller(self.0.clone())
    }
}

struct Inner<S> {
    shards: S,
    session: SessionId,
    /// How long whoever asks waits for an answer.
    patience: Duration,
    /// Why the session is over, if it is.
    over: RefCell<Option<Rc<str>>>,
    numbers: RefCell<BTreeMap<u16, Numbers>>,
    /// What is answered without asking.
    kept: KeptNames,
    /// When each shard was heard from.
    hearings: Hearings,
    /// Questions that may wait for other sessions, and those that wait for locks.
    waiting: Cell<usize>,
    waiting_for_locks: Cell<usize>,
    /// An operation was answered, or the session has ended.
    answered: Notify,
}

/// Questions under way that may wait in the shard for other sessions: half of what a connection carries.
const WAITING_MAX: usize = 128;

/// Questions under way that wait for locks. Such a wait may last for ever: others use its place in turn.
const WAITING_FOR_LOCKS_MAX: usize = 64;

/// One of these.
struct Waiting<'c, S> {
    caller: &'c Inner<S>,
    count: &'c Cell<usize>,
}

impl<S> Drop for Waiting<'_, S> {
    fn drop(&mut self) {
        self.count.set(self.count.get() - 1);
        self.caller.answered.notify_all();
    }
}

/// The numbers of operations at one shard.
#[derive(Default)]
struct Numbers {
    /// The number that was given out last.
    last: u64,
    /// Numbers that were not answered yet.
    under_way: BTreeSet<u64>,
}

impl Numbers {
    /// Up to which number all operations were answered.
    fn answered(&self) -> u64 {
        self.under_way.first().map_or(self.last, |first| first - 1)
    }

    /// The next number; `None` while the shard would refuse it.
    fn next(&mut self) -> Option<u64> {
        let has_room = self.last < self.answered() + FILE_OPERATIONS_MAX;
        has_room.then(|| {
            self.last += 1;
            self.under_way.insert(self.last);
            self.last
        })
    }
}

impl<S: Shards> Caller<S> {
    /// The caller of a session. A session has one, for numbers are given out here.
    pub fn new(shards: S, session: SessionId, patience: Duration) -> Caller<S> {
        let (numbers, answered, over) = (RefCell::default(), Notify::default(), RefCell::default());
        let (waiting, waiting_for_locks) = (Cell::new(0), Cell::new(0));
        let (kept, hearings) = (KeptNames::default(), Hearings::default());
        Caller(Rc::new(Inner {
            shards,
            session,
            patience,
            over,
            numbers,
            kept,
            hearings,
            waiting,
            waiting_for_locks,
            answered,
        }))
    }

    /// Has a shard carry out an operation. An operation that changes something is sent again until it is
    /// answered, even when its caller does not wait any more: it may have been sent already, and its
    /// number stays open until it is answered.
    ///
    /// # Errors
    /// [`FsError::NoAnswer`] after the session's patience: an operation that changes something may still
    /// happen then. [`FsError::SessionOver`]: it may have happened. [`FsError::NotUnderstood`].
    pub async fn call(&self, shard: u16, operation: Operation) -> Result<Answer, FsError> {
        let inner = self.0.clone();
        let answer = match operation.changes() {
            false => timeout(self.0.patience, inner.look(shard, operation)).await.ok(),
            true => {
                let going = spawn(async move { inner.change(shard, operation, true).await });
                timeout(self.0.patience, going).await.ok().and_then(Result::ok)
            }
        };
        answer.unwrap_or(Err(FsError::NoAnswer { shard, waited: self.0.patience }))
    }

    /// As [`Caller::call`], but waits until the operation is answered or the session is over, however long
    /// that takes. So what the caller asks for next comes after this operation.
    ///
    /// # Errors
    /// [`FsError::SessionOver`]: it may have happened. [`FsError::NotUnderstood`].
    pub async fn call_to_end(&self, shard: u16, operation: Operation) -> Result<Answer, FsError> {
        match operation.changes() {
            false => self.0.look(shard, operation).await,
            true => self.0.change(shard, operation, true).await,
        }
    }

    /// As [`Caller::call_to_end`], for an operation that changes something, but does not wait for what others
    /// hold: the answer is [`FileError::Busy`] then, and nothing has happened.
    ///
    /// # Errors
    /// As [`Caller::call_to_end`].
    pub(crate) async fn attempt(&self, shard: u16, operation: Operation) -> Result<Answer, FsError> {
        self.0.change(shard, operation, false).await
    }

    /// Waits until nothing is in the way of an operation, for as long as it takes. A caller that stops
    /// waiting drops the future: the question under way keeps its place until it is answered, and no other
    /// question follows it.
    ///
    /// # Errors
    /// As [`Caller::call_to_end`].
    pub async fn until_free(&self, shard: u16, operation: Operation) -> Result<Answer, FsError> {
        let operation = Operation::Await(Box::new(operation));
        loop {
            let inner = self.0.clone();
            let (session, operation) = (inner.session, operation.clone());
            let mut request = FileRequest { session, number: 0, answered: 0, operation };
            let asking = spawn(async move { inner.ask_once(shard, &mut request).await });
            if let Ok(asked) = asking.await
                && let Some(answer) = asked?
            {
                return Ok(answer);
            }
            sleep(AGAIN_AFTER).await;
        }
    }

    /// What is answered without asking.
    pub(crate) fn kept(&self) -> &KeptNames {
        &self.0.kept
    }

    /// When a shard was heard from.
    pub(crate) fn hearing(&self, shard: u16) -> Rc<Hearing> {
        self.0.hearings.of(shard)
    }

    /// When each shard was heard from that was asked.
    pub(crate) fn hearings(&self) -> Vec<(u16, Rc<Hearing>)> {
        self.0.hearings.all()
    }

    /// The shards that were asked, once there are more than this number.
    pub(crate) async fn shards_beyond(&self, count: usize) -> Vec<u16> {
        self.0.hearings.beyond(count).await
    }

    /// How long whoever asks waits for an answer.
    pub(crate) fn patience(&self) -> Duration {
        self.0.patience
    }

    /// Whether the session is over, as far as is known.
    pub(crate) fn is_over(&self) -> bool {
        self.0.over.borrow().is_some()
    }

    /// Sends nothing any more: the session is over, so what was not answered cannot happen any more.
    pub fn end(&self, why: &str) {
        self.0.end(why.into());
    }
}

impl<S: Shards> Inner<S> {
    fn end(&self, why: Rc<str>) {
        self.over.borrow_mut().get_or_insert(why);
        self.answered.notify_all();
    }

    fn check(&self) -> Result<(), FsError> {
        match &*self.over.borrow() {
            Some(why) => Err(FsError::SessionOver { why: why.clone() }),
            None => Ok(()),
        }
    }

    /// Carries out an operation that changes nothing.
    async fn look(&self, shard: u16, operation: Operation) -> Result<Answer, FsError> {
        match &operation {
            Operation::Find(_)
            | Operation::Attributes(_)
            | Operation::List { .. }
            | Operation::XattrNames(_) => self.look_once(shard, operation).await,
            Operation::Xattr(inode, _) => {
                // Most inodes have none.
                if self.kept.wants_xattrs(*inode) {
                    self.look_once(shard, Operation::XattrNames(*inode)).await?;
                }
                self.look_once(shard, operation).await
            }
            _ => self.ask(shard, 0, operation).await,
        }
    }

    /// Asks, unless the answer is known.
    async fn look_once(&self, shard: u16, operation: Operation) -> Result<Answer, FsError> {
        if let Some(answer) = self.kept.answer(&operation) {
            return Ok(answer);
        }
        loop {
            let look = self.kept.begin_look();
            let answer = self.ask(shard, 0, operation.clone()).await?;
            self.kept.end_look(look, &operation, &answer);
            match answer {
                Answer::Lasting(found, _) => return Ok(Answer::Attributes(found)),
                Answer::Elsewhere(inode, _) => match self.look_elsewhere(inode).await? {
                    // It has lost its name meanwhile.
                    Answer::Failed(FileError::Stale) => {}
                    answer => return Ok(answer),
                },
                Answer::Listed(listed) => return self.with_attributes(listed).await.map(Answer::Listed),
                answer => return Ok(answer),
            }
        }
    }

    /// Attributes of an inode that lies in another shard than its name.
    async fn look_elsewhere(&self, inode: InodeNumber) -> Result<Answer, FsError> {
        Box::pin(self.look_once(inode.shard(), Operation::Attributes(inode))).await
    }

    /// A part of a list with the attributes of inodes that lie in other shards. Who has lost its name
    /// meanwhile is left out.
    async fn with_attributes(&self, mut listed: Listed) -> Result<Listed, FsError> {
        let is_elsewhere = |entry: &ListedEntry| entry.attributes.revision == 0;
        let asked = listed.entries.iter().filter(|entry| is_elsewhere(entry)).map(|e| e.attributes.inode);
        let answers = join_all(asked.map(|inode| self.look_elsewhere(inode))).await;
        let mut answers = answers.into_iter();
        let mut entries = Vec::with_capacity(listed.entries.len());
        for mut entry in listed.entries {
            if is_elsewhere(&entry) {
                match answers.next().expect("each was asked for")? {
                    Answer::Attributes(found) => entry.attributes = found,
                    Answer::Failed(FileError::Stale) => continue,
                    _ => return Err(FsError::OtherAnswer { shard: entry.attributes.inode.shard() }),
                }
            }
            entries.push(entry);
        }
        listed.entries = entries;
        Ok(listed)
    }

    /// Carries out an operation that changes something, and has what is kept follow it. `waits`: for what
    /// others hold.
    async fn change(
        self: &Rc<Self>,
        shard: u16,
        operation: Operation,
        waits: bool,
    ) -> Result<Answer, FsError> {
        if let Operation::Create(at, _) | Operation::CreateOpen(at, ..) = &operation
            && self.kept.wants_xattrs(at.directory)
        {
            // What is made in it from then on has none if the directory has none.
            let (inner, directory) = (self.clone(), at.directory);
            spawn(async move { inner.look_once(shard, Operation::XattrNames(directory)).await });
        }
        let change = self.kept.begin_change(&operation);
        let answer = match waits {
            true => self.change_in_turn(shard, &operation).await,
            false => self.change_once(shard, operation.clone()).await,
        };
        self.kept.end_change(&change, &operation, answer.as_ref().ok());
        answer
    }

    /// Carries out an operation that changes something, once nothing that other sessions hold is in its way.
    async fn change_in_turn(&self, shard: u16, operation: &Operation) -> Result<Answer, FsError> {
        loop {
            let answer = self.change_once(shard, operation.clone()).await?;
            if answer != Answer::Failed(FileError::Busy) || is_only_tried(operation) {
                return Ok(answer);
            }
            // Without a number: it may take long, and others of this session must not wait behind it.
            self.ask(shard, 0, Operation::Await(Box::new(operation.clone()))).await?;
        }
    }

    async fn change_once(&self, shard: u16, operation: Operation) -> Result<Answer, FsError> {
        let number = loop {
            let number = self.numbers.borrow_mut().entry(shard).or_default().next();
            match number {
                Some(number) => break number,
                None => {
                    let answered = self.answered.notified();
                    self.check()?;
                    answered.await;
                }
            }
        };
        let answered = self.ask(shard, number, operation).await;
        if matches!(answered, Err(FsError::SessionOver { .. })) {
            return answered;
        }
        // One that the server cannot read never happens: its number is done with.
        self.numbers.borrow_mut().entry(shard).or_default().under_way.remove(&number);
        self.answered.notify_all();
        answered
    }

    /// Waits for a place among the questions under way that may wait in the shard for other sessions.
    /// Their number is bounded, so that they do not fill the connection: what those other sessions wait
    /// for uses the same connection.
    async fn room(&self, for_lock: bool) -> Result<Waiting<'_, S>, FsError> {
        let (count, most) = match for_lock {
            true => (&self.waiting_for_locks, WAITING_FOR_LOCKS_MAX),
            false => (&self.waiting, WAITING_MAX),
        };
        loop {
            let answered = self.answered.notified();
            self.check()?;
            if count.get() < most {
                count.set(count.get() + 1);
                return Ok(Waiting { caller: self, count });
            }
            answered.await;
        }
    }

    /// Asks until an answer comes, or the session ends.
    async fn ask(&self, shard: u16, number: u64, operation: Operation) -> Result<Answer, FsError> {
        let mut request = FileRequest { session: self.session, number, answered: 0, operation };
        loop {
            if let Some(answer) = self.ask_once(shard, &mut request).await? {
                return Ok(answer);
            }
            // Those that have waited for room meanwhile have their turn.
            sleep(AGAIN_AFTER).await;
        }
    }

    /// Asks once; `None` if no answer comes.
    async fn ask_once(&self, shard: u16, request: &mut FileRequest) -> Result<Option<Answer>, FsError> {
        let (operation, has_number) = (&request.operation, request.number > 0);
        let for_lock = matches!(operation, Operation::Await(what) if matches!(**what, Operation::Lock(..)));
        let _waiting = match has_number || matches!(operation, Operation::Recalls | Operation::Told(_)) {
            true => None,
            false => Some(self.room(for_lock).await?),
        };
        self.check()?;
        request.answered = self.numbers.borrow().get(&shard).map_or(0, Numbers::answered);
        self.hearings.of(shard);
        match self.shards.ask(shard, request).await {
            Ok(answer) => Ok(answer),
            Err(Unanswerable::Refused(why)) => Err(FsError::NotUnderstood { shard, why }),
            Err(Unanswerable::Over(why)) => {
                self.end(why);
                self.check().map(|()| None)
            }
        }
    }
}

/// Whether an operation fails at once instead of waiting for other sessions. All names are held by a
/// session that is alone, or not at all. A lease of a directory is worth less than the wait would cost the
/// others.
fn is_only_tried(operation: &Operation) -> bool {
    match operation {
        Operation::Hold(inode, HoldMode::Write) => inode.is_whole(),
        Operation::HoldDirectory(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_out_as_long_as_the_oldest_open_one_is_near() {
        let mut numbers = Numbers::default();
        let given: Vec<u64> = (0..FILE_OPERATIONS_MAX).filter_map(|_| numbers.next()).collect();
        assert_eq!((given.len() as u64, numbers.answered()), (FILE_OPERATIONS_MAX, 0));
        assert_eq!(numbers.next(), None);
        numbers.under_way.remove(&2);
        assert_eq!((numbers.next(), numbers.answered()), (None, 0));
        numbers.under_way.remove(&1);
        assert_eq!(numbers.answered(), 2);
        assert_eq!(numbers.next(), Some(FILE_OPERATIONS_MAX + 1));
    }
}
