//! What sessions have to do before others can go on: give a lease back, or tell the shard what they know
//! (F4).
//!
//! Holds are in the tables, and so durable. Only waits are here: which session waits for which. They are
//! lost with the server, and a session that still waits asks again.

use crate::tables::Tables;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weft_rt::sync::Notify;
use weft_rt::{Instant, now, random_u64, timeout};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::limits::RECALLS_MAX;
use weft_types::{InodeNumber, SessionId};
use weft_wire::files::{Answer, FileRequest, HoldMode, NameIn, Operation, Recall};

/// How long a session that asks for its recalls waits for an answer if there are none.
const TELLS_EVERY: Duration = Duration::from_secs(1);

/// After so long a recall is sent once more: the answer that carried it may be lost.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How long an inode is kept free for a session once it was told that nothing is in its way.
const KEPT_FREE: Duration = Duration::from_millis(200);

/// Who waits for whom.
pub(crate) struct Recalls {
    /// The number of the newest recall. The first number is random, so that an answer to a recall of
    /// another server is not taken for an answer to one of this server.
    last: Cell<u64>,
    of: RefCell<BTreeMap<SessionId, BTreeMap<u64, Asked>>>,
    /// For whom an inode is kept free, and until when: it was asked for first.
    kept_free: RefCell<BTreeMap<InodeNumber, (SessionId, Instant)>>,
    /// Sessions that know how to share a file: they have asked for it.
    sharing: RefCell<BTreeSet<SessionId>>,
    /// Inodes that nobody begins to share: one that shared them is over, and not forgotten.
    ending: RefCell<BTreeSet<InodeNumber>>,
    /// When each session has asked for something last.
    heard: RefCell<BTreeMap<SessionId, Instant>>,
    /// A session has something to do.
    added: Notify,
}

/// What a session was asked for.
struct Asked {
    inode: InodeNumber,
    keeps: HoldMode,
    sent: Option<Instant>,
}

/// Something that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub session: SessionId,
    pub inode: InodeNumber,
    pub keeps: HoldMode,
}

impl Default for Recalls {
    fn default() -> Recalls {
        let last = Cell::new(random_u64() >> 16);
        let (of, kept_free) = (RefCell::default(), RefCell::default());
        let (sharing, ending) = (RefCell::default(), RefCell::default());
        let heard = RefCell::default();
        Recalls { last, of, kept_free, sharing, ending, heard, added: Notify::default() }
    }
}

impl Recalls {
    /// Asks a session for something, and returns the number of the recall. An open recall for the same
    /// thing is used again, unless it asks for size and times and was sent already: these must be asked
    /// for after the question came that needs them. A session of a release that cannot share a file is asked
    /// for all of it.
    pub(crate) fn ask(&self, mut wanted: Wanted) -> u64 {
        if wanted.keeps == HoldMode::Shared && !self.sharing.borrow().contains(&wanted.session) {
            wanted.keeps = HoldMode::Open;
        }
        let mut of = self.of.borrow_mut();
        let asked = of.entry(wanted.session).or_default();
        let is_same = |asked: &Asked| {
            (asked.inode, asked.keeps) == (wanted.inode, wanted.keeps)
                && (asked.keeps != HoldMode::Write || asked.sent.is_none())
        };
        if let Some((number, _)) = asked.iter().find(|(_, asked)| is_same(asked)) {
            return *number;
        }
        let number = self.last.get() + 1;
        self.last.set(number);
        asked.insert(number, Asked { inode: wanted.inode, keeps: wanted.keeps, sent: None });
        self.added.notify_all();
        number
    }

    /// Asks for all of these.
    pub(crate) fn ask_all(&self, wanted: Vec<Wanted>) {
        for wanted in wanted {
            self.ask(wanted);
        }
    }

    /// Keeps inodes free for a session that waits until others hold nothing of them: until then no other
    /// session is granted a mode of these inodes. Otherwise two sessions that read in turn would keep it
    /// waiting for ever.
    pub(crate) fn keep_free(&self, session: SessionId, wanted: &[Wanted]) {
        if mutated(Mutation::ReadersFirst) {
            return;
        }
        let mut kept_free = self.kept_free.borrow_mut();
        kept_free.retain(|_, (_, until)| now() < *until);
        let is_exclusive = |wanted: &&Wanted| matches!(wanted.keeps, HoldMode::Open | HoldMode::Shared);
        for wanted in wanted.iter().filter(is_exclusive) {
            let (of, until) = kept_free.entry(wanted.inode).or_insert((session, now()));
            if *of == session {
                *until = now() + KEPT_FREE;
            }
        }
    }

    /// Whether an operation, or the one that it awaits, wants a mode of an inode that is kept free for
    /// another session, or for nobody for now. A session that gives back a part of its mode may still have
    /// the rest: the other session waits for that part to be given back.
    pub(crate) fn is_kept_from(&self, tables: &Tables, request: &FileRequest) -> bool {
        let operation = match &request.operation {
            Operation::Await(operation) => operation,
            operation => operation,
        };
        let (inode, mode) = match operation {
            Operation::Hold(inode, mode) if *mode != HoldMode::Open => (inode, mode),
            Operation::HoldDirectory(inode) => (inode, &HoldMode::Read),
            _ => return false,
        };
        let has_it = |(holder, held): (SessionId, HoldMode)| holder == request.session && held.covers(*mode);
        if tables.holders(*inode).any(has_it) && !mutated(Mutation::KeptFromItself) {
            return false;
        }
        if *mode == HoldMode::Shared && self.ending.borrow().contains(inode) {
            return true;
        }
        let kept_free = self.kept_free.borrow();
        kept_free.get(inode).is_some_and(|(session, until)| *session != request.session && now() < *until)
    }

    /// An operation was carried out: its session has what it waited for.
    pub(crate) fn has_it(&self, request: &FileRequest) {
        let held = match request.operation {
            Operation::Hold(inode, _) | Operation::HoldDirectory(inode) => Some(inode),
            ref operation if operation.is_of_holder() => return,
            _ => None,
        };
        let is_other = |inode| held.is_some_and(|held| held != inode);
        self.kept_free.borrow_mut().retain(|inode, (of, _)| *of != request.session || is_other(*inode));
    }

    /// When a session has asked for something last; `None` if it has not asked this server.
    pub(crate) fn heard(&self, session: SessionId) -> Option<Instant> {
        self.heard.borrow().get(&session).copied()
    }

    /// A session asks for something. If it asks to share a file, it knows how to.
    pub(crate) fn note(&self, request: &FileRequest) {
        self.heard.borrow_mut().insert(request.session, now());
        let operation = match &request.operation {
            Operation::Await(operation) => operation,
            operation => operation,
        };
        if matches!(operation, Operation::Hold(_, HoldMode::Shared)) {
            self.sharing.borrow_mut().insert(request.session);
        }
    }

    /// A session is over that has shared an inode: what it wrote last may lie behind the end. So the others
    /// give the inode back, and nobody shares it again before that session is forgotten. Whether they have
    /// done so.
    pub(crate) fn end_sharing(
        &self,
        tables: &Tables,
        inode: InodeNumber,
        is_over: impl Fn(SessionId) -> bool,
    ) -> bool {
        let is_meant =
            |(session, held): &(SessionId, HoldMode)| *held == HoldMode::Shared && !is_over(*session);
        let sharing: Vec<SessionId> = tables.holders(inode).filter(is_meant).map(|(of, _)| of).collect();
        let is_ended = sharing.is_empty() || mutated(Mutation::SharedByDead);
        match is_ended {
            true => self.ending.borrow_mut().remove(&inode),
            false => self.ending.borrow_mut().insert(inode),
        };
        if !is_ended {
            for session in sharing {
                self.ask(Wanted { session, inode, keeps: HoldMode::Open });
            }
        }
        is_ended
    }

    /// Sessions are over for good.
    pub(crate) fn forget(&self, is_over: impl Fn(SessionId) -> bool) {
        self.sharing.borrow_mut().retain(|session| !is_over(*session));
        // It asks when they were heard.
        let over: Vec<SessionId> =
            self.heard.borrow().keys().copied().filter(|session| is_over(*session)).collect();
        for session in over {
            self.heard.borrow_mut().remove(&session);
        }
    }

    /// Whether something is still waited for.
    pub(crate) fn is_open(&self, session: SessionId, number: u64) -> bool {
        self.of.borrow().get(&session).is_some_and(|asked| asked.contains_key(&number))
    }

    /// How much a session was asked for, and has not done.
    pub(crate) fn asked_of(&self, session: SessionId) -> u64 {
        self.of.borrow().get(&session).map_or(0, |asked| asked.len() as u64)
    }

    /// The shard was told what it has asked for.
    pub(crate) fn told(&self, session: SessionId, number: u64) {
        if let Some(asked) = self.of.borrow_mut().get_mut(&session) {
            asked.remove(&number);
        }
    }

    /// Drops recalls of sessions that hold no more than the recall lets them keep.
    pub(crate) fn follow(&self, tables: &Tables) {
        let mut of = self.of.borrow_mut();
        of.retain(|session, asked| {
            asked.retain(|_, asked| {
                let mut holders = tables.holders(asked.inode);
                holders.any(|(holder, mode)| holder == *session && is_too_much(mode, asked.keeps))
            });
            !asked.is_empty()
        });
    }

    /// The recalls of a session: waits until there are some, and returns none after `TELLS_EVERY`.
    pub(crate) async fn of_session(&self, session: SessionId) -> Vec<Recall> {
        let from = now();
        loop {
            let added = self.added.notified();
            let due = self.take_due(session);
            let waited = from.elapsed();
            if !due.is_empty() || waited >= TELLS_EVERY {
                return due;
            }
            let _ = timeout(TELLS_EVERY - waited, added).await;
        }
    }

    fn take_due(&self, session: SessionId) -> Vec<Recall> {
        let mut of = self.of.borrow_mut();
        let asked = of.get_mut(&session).into_iter().flatten();
        let due = asked.filter(|(_, asked)| asked.sent.is_none_or(|sent| sent.elapsed() >= AGAIN_AFTER));
        let taken = due.take(RECALLS_MAX as usize).map(|(number, asked)| {
            mark(match (asked.sent, asked.keeps) {
                (Some(_), _) => Path::RecalledAgain,
                (None, HoldMode::Write) => Path::WriterAsked,
                (None, _) => Path::LeaseRecalled,
            });
            asked.sent = Some(now());
            Recall { number: *number, inode: asked.inode, keeps: asked.keeps }
        });
        taken.collect()
    }
}

/// Whether a recall that leaves a session the mode `keeps` still asks something of it when it holds the
/// mode `held`. A session that keeps the mode to write has to tell the shard what it knows.
fn is_too_much(held: HoldMode, keeps: HoldMode) -> bool {
    !keeps.covers(held) || (keeps == HoldMode::Write && held.writes())
}

/// What others hold that has to be given back before an operation, or the one that it awaits, is decided.
pub(crate) fn in_the_way(tables: &Tables, request: &FileRequest) -> Vec<Wanted> {
    let (session, operation) = match &request.operation {
        Operation::Await(operation) => (request.session, &**operation),
        operation => (request.session, operation),
    };
    let others = |inode: InodeNumber, mode: HoldMode, keeps: HoldMode| {
        let others = tables.in_the_way(inode, session, mode);
        others.map(move |(session, _)| Wanted { session, inode, keeps })
    };
    let mut wanted = Vec::new();
    // Who holds all names has to hear of whoever else comes.
    if !operation.is_of_holder() {
        wanted.extend(others(tables.whole(), HoldMode::Read, HoldMode::Open));
    }
    // Whoever holds a directory knows its names and attributes.
    for directory in changed_directories(tables, session, operation) {
        wanted.extend(others(directory, HoldMode::Write, HoldMode::Open));
    }
    match *operation {
        // All names are given only to a session that is alone, so nothing is recalled for it.
        Operation::Hold(inode, _) if inode.is_whole() => wanted.clear(),
        Operation::HoldDirectory(_) => {}
        Operation::Hold(inode, HoldMode::Read) => {
            let others = tables.in_the_way(inode, session, HoldMode::Read);
            wanted.extend(others.map(|(session, held)| {
                let keeps = if held == HoldMode::Shared { HoldMode::Open } else { HoldMode::Read };
                Wanted { session, inode, keeps }
            }));
        }
        // Where nobody writes it is refused, whatever others hold.
        Operation::Hold(inode, HoldMode::Shared) => {
            match tables.holders(inode).any(|(_, held)| held.writes()) {
                true => wanted.extend(others(inode, HoldMode::Shared, HoldMode::Shared)),
                false => wanted.clear(),
            }
        }
        Operation::Hold(inode, HoldMode::Write) => {
            wanted.extend(others(inode, HoldMode::Write, HoldMode::Open));
        }
        // Whoever holds it knows its attributes.
        _ => {
            for inode in changed(tables, operation) {
                wanted.extend(others(inode, HoldMode::Write, HoldMode::Open));
            }
        }
    }
    wanted
}

/// Directories in which an operation changes names, or under whose leases attributes last that it changes.
/// Attributes of an inode that the session holds to write last under no lease.
fn changed_directories(tables: &Tables, session: SessionId, operation: &Operation) -> Vec<InodeNumber> {
    let kept_with = |inode: InodeNumber| tables.inode(inode).and_then(|inode| inode.kept_with());
    let with_named = |at: &NameIn| {
        let named = tables.entry(at.directory, &at.name).and_then(|entry| kept_with(entry.inode));
        [Some(at.directory), named]
    };
    let directories = match operation {
        _ if mutated(Mutation::DirectoryNotRecalled) => Vec::new(),
        Operation::Create(at, _) | Operation::CreateOpen(at, ..) => vec![Some(at.directory)],
        Operation::Link(inode, at) => vec![Some(at.directory), kept_with(*inode)],
        Operation::Unlink(at) | Operation::RemoveDirectory(at) => with_named(at).to_vec(),
        Operation::Rename(from, to, _) => [with_named(from), with_named(to)].concat(),
        Operation::Change(inode, _)
        | Operation::SetLayout(inode, _)
        | Operation::SetXattr(inode, ..)
        | Operation::RemoveXattr(inode, _)
        | Operation::Hold(inode, HoldMode::Write | HoldMode::Shared)
            if !tables.hold_of(*inode, session).is_some_and(HoldMode::writes) =>
        {
            vec![kept_with(*inode)]
        }
        _ => Vec::new(),
    };
    let directories: BTreeSet<InodeNumber> = directories.into_iter().flatten().collect();
    directories.into_iter().collect()
}

/// Inodes whose attributes an operation changes.
fn changed(tables: &Tables, operation: &Operation) -> Vec<InodeNumber> {
    let named = |at: &NameIn| tables.entry(at.directory, &at.name).map(|entry| entry.inode);
    match operation {
        Operation::Change(inode, _)
        | Operation::SetLayout(inode, _)
        | Operation::Link(inode, _)
        | Operation::SetXattr(inode, ..)
        | Operation::RemoveXattr(inode, _) => vec![*inode],
        Operation::Unlink(at) => named(at).into_iter().collect(),
        Operation::Rename(from, to, _) => named(from).into_iter().chain(named(to)).collect(),
        _ => Vec::new(),
    }
}

/// Sessions that write the inodes of an answer, and so know more of them than the shard.
pub(crate) fn who_knows(tables: &Tables, request: &FileRequest, answer: &Answer) -> Vec<Wanted> {
    let inodes: Vec<InodeNumber> = match (&request.operation, answer) {
        (Operation::Find(_) | Operation::Attributes(_), Answer::Attributes(found)) => vec![found.inode],
        (Operation::List { .. }, Answer::Listed(listed)) => {
            listed.entries.iter().map(|entry| entry.attributes.inode).collect()
        }
        _ => Vec::new(),
    };
    let writers = inodes.into_iter().flat_map(|inode| {
        let others = tables.holders(inode).filter(|(session, _)| *session != request.session);
        let writers = others.filter(|(_, mode)| {
            mode.writes() && (*mode == HoldMode::Write || !mutated(Mutation::SharedNotAsked))
        });
        writers.map(move |(session, _)| Wanted { session, inode, keeps: HoldMode::Write })
    });
    writers.collect()
}
