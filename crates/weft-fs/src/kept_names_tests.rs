//! What is kept says what the shard would say, whatever is under way.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::Cell;
use std::collections::BTreeSet;
use weft_rt::now;
use weft_types::FileTime;
use weft_wire::files::{HoldMode, ListedEntry, NewInode, XattrMode};

/// A shard of which only what is kept matters: names in some directories, and revisions.
#[derive(Clone)]
struct Shard {
    /// Directories that the session holds to read.
    held: BTreeSet<InodeNumber>,
    /// Files that another session holds to write.
    written: BTreeSet<InodeNumber>,
    /// The directory of files that have had one name only.
    only_in: BTreeMap<InodeNumber, InodeNumber>,
    names: BTreeMap<(InodeNumber, Vec<u8>), InodeNumber>,
    inodes: BTreeMap<InodeNumber, (FileKind, u32, u64)>,
    xattrs: BTreeMap<InodeNumber, BTreeSet<Vec<u8>>>,
    last: u64,
}

const DIRECTORIES: [InodeNumber; 2] = [InodeNumber(1), InodeNumber(2)];

impl Shard {
    fn new() -> Shard {
        let inodes = DIRECTORIES.map(|inode| (inode, (FileKind::Directory, 2, 1))).into();
        let (held, written, only_in) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        let (names, xattrs) = (BTreeMap::new(), BTreeMap::new());
        Shard { held, written, only_in, names, inodes, xattrs, last: 2 }
    }

    fn attributes(&self, inode: InodeNumber) -> Answer {
        match self.inodes.get(&inode) {
            Some((kind, links, revision)) => {
                let size = self.names.keys().filter(|(of, _)| *of == inode).count() as u64;
                Answer::Attributes(Attributes { size, ..attributes(inode, *kind, *links, *revision) })
            }
            None => Answer::Failed(FileError::Stale),
        }
    }

    fn is_directory(&self, inode: InodeNumber) -> bool {
        self.inodes.get(&inode).is_some_and(|(kind, links, _)| *kind == FileKind::Directory && *links > 0)
    }

    fn is_file(&self, inode: InodeNumber) -> bool {
        self.inodes.get(&inode).is_some_and(|(kind, links, _)| *kind == FileKind::Regular && *links > 0)
    }

    fn kept_with(&self, inode: InodeNumber) -> Option<InodeNumber> {
        match self.inodes.get(&inode)? {
            (FileKind::Directory, ..) => Some(inode),
            (_, 1, _) => self.only_in.get(&inode).copied(),
            _ => None,
        }
    }

    /// The directory with which attributes last, if the session holds it.
    fn lasts_with(&self, inode: InodeNumber) -> Option<InodeNumber> {
        self.kept_with(inode).filter(|with| self.held.contains(with) && !self.written.contains(&inode))
    }

    /// What is answered to a question, with what lasts of it.
    fn lasting(&self, answer: Answer) -> Answer {
        match answer {
            Answer::Attributes(found) => match self.lasts_with(found.inode) {
                Some(directory) => Answer::Lasting(found, directory),
                None => Answer::Attributes(found),
            },
            answer => answer,
        }
    }

    /// What others have to give back before one of them does this.
    fn changed_by(&self, operation: &Operation) -> BTreeSet<InodeNumber> {
        let with_named = |at: &NameIn| [Some(at.directory), self.of(at).and_then(|i| self.kept_with(i))];
        let changed = match operation {
            Operation::Create(at, _) => vec![Some(at.directory)],
            Operation::Link(inode, at) => vec![Some(at.directory), self.kept_with(*inode)],
            Operation::Unlink(at) | Operation::RemoveDirectory(at) => with_named(at).to_vec(),
            Operation::Rename(from, to, _) => [with_named(from), with_named(to)].concat(),
            Operation::Change(inode, _)
            | Operation::SetLayout(inode, _)
            | Operation::SetXattr(inode, ..)
            | Operation::RemoveXattr(inode, _)
            | Operation::Hold(inode, _)
                if !self.written.contains(inode) =>
            {
                vec![self.kept_with(*inode)]
            }
            _ => Vec::new(),
        };
        changed.into_iter().flatten().collect()
    }

    fn touch(&mut self, inode: InodeNumber, links: i32) {
        if let Some((_, had, revision)) = self.inodes.get_mut(&inode) {
            *had = had.saturating_add_signed(links);
            *revision += 1;
        }
    }

    fn of(&self, at: &NameIn) -> Option<InodeNumber> {
        self.names.get(&(at.directory, at.name.clone())).copied()
    }

    fn set(&mut self, at: &NameIn, inode: Option<InodeNumber>) {
        let key = (at.directory, at.name.clone());
        match inode {
            Some(inode) => drop(self.names.insert(key, inode)),
            None => drop(self.names.remove(&key)),
        }
        self.touch(at.directory, 0);
    }

    fn decide(&mut self, operation: &Operation) -> Answer {
        match operation {
            Operation::Find(NameIn { directory, .. }) | Operation::List { directory, .. }
                if self.inodes.get(directory).is_none_or(|(kind, ..)| *kind != FileKind::Directory) =>
            {
                Answer::Failed(FileError::NotDirectory)
            }
            Operation::Find(at) => match self.of(at) {
                Some(inode) => self.attributes(inode),
                None => Answer::Failed(FileError::NotFound),
            },
            Operation::Attributes(inode) => self.attributes(*inode),
            Operation::List { directory, .. } => Answer::Listed(self.list(*directory)),
            Operation::XattrNames(inode) if !self.inodes.contains_key(inode) => {
                Answer::Failed(FileError::Stale)
            }
            Operation::XattrNames(inode) => {
                Answer::Names(self.xattrs.get(inode).into_iter().flatten().cloned().collect())
            }
            Operation::Create(at, _) | Operation::Link(_, at) if !self.is_directory(at.directory) => {
                Answer::Failed(FileError::NotDirectory)
            }
            Operation::Create(at, new) => self.create(at, new.kind),
            Operation::Link(inode, at) => self.link(*inode, at),
            Operation::Unlink(at) => match self.of(at) {
                Some(inode) if self.is_directory(inode) => Answer::Failed(FileError::IsDirectory),
                Some(inode) => {
                    self.touch(inode, -1);
                    self.set(at, None);
                    self.attributes(inode)
                }
                None => Answer::Failed(FileError::NotFound),
            },
            Operation::RemoveDirectory(at) => match self.of(at) {
                Some(inode) if self.is_directory(inode) && self.is_empty(inode) => {
                    self.touch(inode, -2);
                    self.held.remove(&inode);
                    self.set(at, None);
                    self.attributes(inode)
                }
                Some(_) => Answer::Failed(FileError::NotEmpty),
                None => Answer::Failed(FileError::NotFound),
            },
            Operation::Rename(from, to, mode) => self.rename(from, to, *mode),
            Operation::Change(inode, _) | Operation::SetLayout(inode, _) => {
                self.touch(*inode, 0);
                self.attributes(*inode)
            }
            Operation::SetXattr(inode, name, ..) => {
                self.xattrs.entry(*inode).or_default().insert(name.clone());
                self.touch(*inode, 0);
                self.attributes(*inode)
            }
            Operation::RemoveXattr(inode, name) => {
                self.xattrs.entry(*inode).or_default().remove(name);
                self.touch(*inode, 0);
                self.attributes(*inode)
            }
            _ => Answer::Done,
        }
    }

    fn link(&mut self, inode: InodeNumber, at: &NameIn) -> Answer {
        if self.of(at).is_some() || !self.is_file(inode) {
            return Answer::Failed(FileError::Exists);
        }
        self.touch(inode, 1);
        self.only_in.remove(&inode);
        self.set(at, Some(inode));
        self.attributes(inode)
    }

    fn create(&mut self, at: &NameIn, kind: FileKind) -> Answer {
        if self.of(at).is_some() {
            return Answer::Failed(FileError::Exists);
        }
        self.last += 1;
        let made = InodeNumber(self.last);
        let is_directory = kind == FileKind::Directory;
        self.inodes.insert(made, (kind, if is_directory { 2 } else { 1 }, 1));
        if !is_directory {
            self.only_in.insert(made, at.directory);
        }
        let passed = self.xattrs.get(&at.directory).is_some_and(|of| of.contains(DEFAULT_ACL));
        self.xattrs.insert(made, passed.then(|| b"inherited".to_vec()).into_iter().collect());
        self.set(at, Some(made));
        self.attributes(made)
    }

    fn is_empty(&self, directory: InodeNumber) -> bool {
        !self.names.keys().any(|(of, _)| *of == directory)
    }

    fn list(&self, directory: InodeNumber) -> Listed {
        let entries = self.names.iter().filter(|((of, _), _)| *of == directory).enumerate();
        let entry = |(n, ((_, name), inode)): (usize, (&(InodeNumber, Vec<u8>), &InodeNumber))| {
            let Answer::Attributes(attributes) = self.attributes(*inode) else { unreachable!() };
            let lasts = self.lasts_with(*inode).is_some();
            ListedEntry { cookie: 16 + n as u64, name: name.clone(), attributes, lasts }
        };
        Listed { parent: 1, entries: entries.map(entry).collect(), is_end: true }
    }

    fn rename(&mut self, from: &NameIn, to: &NameIn, mode: RenameMode) -> Answer {
        let (Some(moved), taken) = (self.of(from), self.of(to)) else {
            return Answer::Failed(FileError::NotFound);
        };
        let replaces_well = match taken.filter(|_| mode == RenameMode::Replace) {
            Some(other) => self.is_directory(moved) == self.is_directory(other) && self.is_empty(other),
            None => true,
        };
        // Directories do not get below themselves: they get to the first ones only.
        let are_top = DIRECTORIES.contains(&from.directory) && DIRECTORIES.contains(&to.directory);
        let has_directory = self.is_directory(moved) || taken.is_some_and(|other| self.is_directory(other));
        if !replaces_well || !self.is_directory(to.directory) || has_directory && !are_top {
            return Answer::Failed(FileError::Invalid);
        }
        match (mode, taken) {
            (RenameMode::Keep, Some(_)) => return Answer::Failed(FileError::Exists),
            (RenameMode::Exchange, None) => return Answer::Failed(FileError::NotFound),
            (_, Some(same)) if same == moved => return self.attributes(moved),
            (RenameMode::Exchange, Some(other)) => {
                self.touch(other, 0);
                self.move_to(other, from.directory);
                self.set(from, Some(other));
            }
            (_, taken) => {
                if let Some(replaced) = taken {
                    let is_directory = self.is_directory(replaced);
                    self.touch(replaced, if is_directory { -2 } else { -1 });
                    if is_directory {
                        self.held.remove(&replaced);
                    }
                }
                self.set(from, None);
            }
        }
        self.touch(moved, 0);
        self.move_to(moved, to.directory);
        self.set(to, Some(moved));
        self.attributes(moved)
    }

    fn move_to(&mut self, moved: InodeNumber, directory: InodeNumber) {
        if let Some((FileKind::Regular, 1, _)) = self.inodes.get(&moved) {
            self.only_in.insert(moved, directory);
        }
    }
}

fn attributes(inode: InodeNumber, kind: FileKind, links: u32, revision: u64) -> Attributes {
    let time = FileTime { seconds: 0, nanoseconds: 0 };
    Attributes {
        inode,
        kind,
        mode: 0o644,
        links,
        uid: 0,
        gid: 0,
        size: 0,
        device: 0,
        accessed: time,
        modified: time,
        changed: time,
        born: time,
        layout: [0; 12],
        revision,
    }
}

/// What is under way: it was sent, then it is decided, then its answer arrives.
enum Flight {
    Look(Look, Operation, Option<Answer>),
    Change(Change, Operation, Option<Answer>),
    /// The lease of a directory is asked for; once that is decided, its attributes if it is granted.
    Lease(Look, InodeNumber, Option<Option<Attributes>>),
    /// It goes back.
    Release(InodeNumber),
}

impl Flight {
    fn is_of_lease(&self, directory: InodeNumber) -> bool {
        matches!(self, Flight::Lease(_, of, _) | Flight::Release(of) if *of == directory)
    }
}

/// One step of a history, drawn.
type Draw = (u8, u8, u8, u8);

fn operation((what, which, other, _): Draw) -> Operation {
    // Directories that may have been made, too.
    let at = |n: u8| NameIn { directory: DIRECTORY_OF[usize::from(n % 6)], name: vec![b'a' + (n / 6) % 3] };
    let inode = InodeNumber(1 + u64::from(other % 7));
    let kind = if other % 3 == 0 { FileKind::Directory } else { FileKind::Regular };
    let new = NewInode { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, device: 0, target: Vec::new() };
    let xattr = if which % 2 == 0 { DEFAULT_ACL.to_vec() } else { b"user.x".to_vec() };
    match what % 17 {
        0..3 => Operation::Find(at(which)),
        3 => Operation::Attributes(inode),
        4 => Operation::List { directory: DIRECTORY_OF[usize::from(which % 6)], after: 0, limit: 100 },
        5 => Operation::XattrNames(inode),
        6..9 => Operation::Create(at(which), new),
        9 => Operation::Link(inode, at(which)),
        10 => Operation::Unlink(at(which)),
        11 => Operation::Rename(at(which), at(other), RenameMode::Replace),
        12 => Operation::Rename(at(which), at(other), RenameMode::Exchange),
        13 => Operation::Change(inode, AttributeChanges::default()),
        14 => Operation::SetXattr(inode, xattr, Vec::new(), XattrMode::Either),
        15 => Operation::RemoveXattr(inode, xattr),
        _ => Operation::RemoveDirectory(at(which)),
    }
}

/// The directories of names: the first two mostly.
const DIRECTORY_OF: [InodeNumber; 6] =
    [InodeNumber(1), InodeNumber(2), InodeNumber(1), InodeNumber(3), InodeNumber(2), InodeNumber(4)];

/// All questions that can be answered from what is kept.
fn questions() -> impl Iterator<Item = Operation> {
    let names = (0..18).map(|n| operation((0, n, 0, 0)));
    names.chain((0..7).flat_map(|n| [operation((3, 0, n, 0)), operation((5, 0, n, 0))]))
}

/// A session that keeps names, its shard, and perhaps another session.
struct History {
    kept: KeptNames,
    hearing: Rc<Hearing>,
    shard: Shard,
    flights: Vec<Flight>,
    /// What may be answered: what the shard would have said since nothing was decided and unanswered last.
    since: Vec<Shard>,
    /// The session holds all names.
    has_all: bool,
    /// What another session does once it may.
    other: Option<Operation>,
    answered: usize,
}

impl History {
    fn new() -> History {
        let (kept, hearing) = (KeptNames::default(), Rc::new(Hearing::from(now())));
        let shard = Shard::new();
        let since = vec![shard.clone()];
        History { kept, hearing, shard, flights: Vec::new(), since, has_all: false, other: None, answered: 0 }
    }

    /// One step of a session that holds all names.
    fn step(&mut self, draw: &Draw) {
        let at = usize::from(draw.3);
        match draw.0 {
            0..128 if self.flights.len() < 4 => {
                let operation = operation(*draw);
                self.flights.push(match operation.changes() {
                    false => Flight::Look(self.kept.begin_look(), operation, None),
                    true => Flight::Change(self.kept.begin_change(&operation), operation, None),
                });
            }
            64..192 if !self.flights.is_empty() => self.decide(at % self.flights.len()),
            _ if !self.flights.is_empty() => self.arrive(at % self.flights.len()),
            _ => {}
        }
    }

    /// One step of a session beside another one: it holds directories, which that one wants back.
    fn step_beside_other(&mut self, draw: &Draw) {
        let directory = InodeNumber(1 + u64::from(draw.1 % 5));
        match draw.0 % 8 {
            0 if !self.kept.has(directory)
                && !self.flights.iter().any(|flight| flight.is_of_lease(directory)) =>
            {
                self.flights.push(Flight::Lease(self.kept.begin_look(), directory, None));
            }
            // It is alone for a while.
            2 if self.may_be_alone() => {
                self.kept.turn_on(0, &self.hearing);
                self.shard.held.remove(&InodeNumber::ROOT);
                self.has_all = true;
            }
            1 if self.other.is_none() => {
                let inode = InodeNumber(1 + u64::from(draw.2 % 7));
                self.other = Some(match draw.0 / 8 % 4 {
                    0 => Operation::Hold(inode, HoldMode::Write),
                    1 => Operation::Release(inode, AttributeChanges::default()),
                    _ => operation((draw.0 / 8, draw.1 % 8, draw.2 % 8, draw.3)),
                });
            }
            // Few names, so that much happens to each.
            _ => self.step(&(draw.0 ^ draw.3, draw.1 % 8, draw.2 % 8, draw.3)),
        }
        self.serve_other();
    }

    fn may_be_alone(&self) -> bool {
        let is_at_rest = self.other.is_none() && self.shard.written.is_empty() && !self.has_all;
        is_at_rest && !self.flights.iter().any(|flight| flight.is_of_lease(InodeNumber::ROOT))
    }

    /// Has the session give back what another one waits for, which then goes on.
    fn serve_other(&mut self) {
        let Some(operation) = self.other.take_if(|operation| operation.changes()) else {
            self.other = None;
            return;
        };
        if std::mem::take(&mut self.has_all) {
            self.kept.turn_off(0);
        }
        let held = self.shard.changed_by(&operation).into_iter().filter(|of| self.shard.held.contains(of));
        let held: Vec<InodeNumber> = held.collect();
        for directory in &held {
            if !self.flights.iter().any(|flight| flight.is_of_lease(*directory)) {
                self.kept.end_lease(*directory);
                self.flights.push(Flight::Release(*directory));
            }
        }
        if !held.is_empty() {
            self.other = Some(operation);
            return;
        }
        for shard in self.since.iter_mut().chain([&mut self.shard]) {
            match &operation {
                Operation::Hold(inode, _) if shard.is_file(*inode) => drop(shard.written.insert(*inode)),
                Operation::Hold(..) => {}
                Operation::Release(inode, _) => drop(shard.written.remove(inode)),
                operation => drop(shard.decide(operation)),
            }
        }
        self.since.push(self.shard.clone());
    }

    /// Something is decided.
    fn decide(&mut self, n: usize) {
        match &mut self.flights[n] {
            Flight::Look(_, operation, answer @ None) => {
                let found = self.shard.decide(operation);
                *answer = Some(self.shard.lasting(found));
            }
            Flight::Change(_, operation, answer @ None) => {
                *answer = Some(self.shard.decide(operation));
                self.since.push(self.shard.clone());
            }
            Flight::Lease(_, directory, granted @ None) => {
                let is_there = self.shard.is_directory(*directory);
                *granted = Some(match self.shard.attributes(*directory) {
                    Answer::Attributes(found) if is_there => Some(found),
                    _ => None,
                });
                if is_there {
                    self.shard.held.insert(*directory);
                }
            }
            Flight::Release(directory) => {
                self.shard.held.remove(directory);
                self.flights.remove(n);
            }
            _ => {}
        }
    }

    /// An answer arrives.
    fn arrive(&mut self, n: usize) {
        match &self.flights[n] {
            Flight::Look(look, operation, Some(answer)) => self.kept.end_look(*look, operation, answer),
            Flight::Change(change, operation, Some(answer)) => {
                self.kept.end_change(change, operation, Some(answer));
            }
            Flight::Lease(asked, _, Some(Some(found))) => self.kept.lease(*asked, found, &self.hearing),
            Flight::Lease(_, _, Some(None)) => {}
            _ => return,
        }
        self.flights.remove(n);
        let is_open = |flight: &Flight| matches!(flight, Flight::Change(_, _, Some(_)));
        if !self.flights.iter().any(is_open) {
            self.since = vec![self.shard.clone()];
        }
    }

    /// Compares what is answered without asking.
    fn check(&mut self) -> Result<(), TestCaseError> {
        for question in questions() {
            if let Some(answer) = self.kept.answer(&question) {
                self.answered += 1;
                let is_right = self.since.iter().any(|shard| shard.clone().decide(&question) == answer);
                prop_assert!(is_right, "{question:?} is answered with {answer:?}");
            }
        }
        Ok(())
    }
}

/// Runs random histories; returns how often something was answered without asking.
fn run(cases: u32, new: impl Fn() -> History, step: impl Fn(&mut History, &Draw)) -> usize {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let histories = proptest::collection::vec(any::<Draw>(), 1..200);
    let answered = Cell::new(0);
    let held = TestRunner::new(config).run(&histories, |draws| {
        let mut history = new();
        for draw in &draws {
            step(&mut history, draw);
            history.check()?;
        }
        answered.set(answered.get() + history.answered);
        Ok(())
    });
    assert!(held.is_ok(), "{held:?}");
    answered.get()
}

#[test]
fn it_says_what_the_shard_would_say() {
    weft_rt::block_on(async {
        let all_names = || {
            let history = History::new();
            history.kept.turn_on(0, &history.hearing);
            history
        };
        let answered = run(10_000, all_names, History::step);
        assert!(answered > 200_000, "answered without asking: {answered}");
    })
    .unwrap();
}

#[test]
fn it_says_what_the_shard_would_say_beside_another_session() {
    weft_rt::block_on(async {
        let two_directories = || {
            let mut history = History::new();
            for directory in DIRECTORIES {
                lease(&history.kept, &mut history.shard, directory, &history.hearing);
            }
            history.since = vec![history.shard.clone()];
            history
        };
        let answered = run(30_000, two_directories, History::step_beside_other);
        assert!(answered > 500_000, "answered without asking: {answered}");
    })
    .unwrap();
}

/// A directory is held.
fn lease(kept: &KeptNames, shard: &mut Shard, directory: InodeNumber, hearing: &Rc<Hearing>) {
    let asked = kept.begin_look();
    shard.held.insert(directory);
    let Answer::Attributes(found) = shard.attributes(directory) else { panic!("it is there") };
    kept.lease(asked, &found, hearing);
}

/// Something is sent, decided and answered.
fn send(kept: &KeptNames, shard: &mut Shard, operation: Operation) {
    if operation.changes() {
        let change = kept.begin_change(&operation);
        let answer = shard.decide(&operation);
        kept.end_change(&change, &operation, Some(&answer));
    } else {
        let look = kept.begin_look();
        let answer = shard.decide(&operation);
        kept.end_look(look, &operation, &shard.lasting(answer));
    }
}

#[test]
fn what_lasts_with_one_directory_does_not_last_with_another_one() {
    weft_rt::block_on(async { check_moved() }).unwrap();
}

fn check_moved() {
    let History { kept, hearing, mut shard, .. } = History::new();
    for directory in DIRECTORIES {
        lease(&kept, &mut shard, directory, &hearing);
        send(&kept, &mut shard, Operation::List { directory, after: 0, limit: 100 });
    }
    send(&kept, &mut shard, operation((6, 0, 1, 0)));
    let made = InodeNumber(3);
    send(&kept, &mut shard, Operation::XattrNames(made));
    assert!(kept.answer(&Operation::Attributes(made)).is_some());
    assert!(kept.answer(&Operation::XattrNames(made)).is_some());
    // Its directory is given back, and held once more.
    kept.end_lease(DIRECTORIES[0]);
    assert_eq!(kept.answer(&Operation::Attributes(made)), None);
    lease(&kept, &mut shard, DIRECTORIES[0], &hearing);
    send(&kept, &mut shard, operation((0, 0, 0, 0)));
    assert!(kept.answer(&Operation::Attributes(made)).is_some());
    assert_eq!(kept.answer(&Operation::XattrNames(made)), None, "they may have changed meanwhile");
    // It gets into the other one, which is given back.
    send(&kept, &mut shard, operation((11, 0, 1, 0)));
    kept.end_lease(DIRECTORIES[1]);
    assert_eq!(kept.answer(&Operation::Attributes(made)), None, "others change it unheard");
}

#[test]
fn what_was_made_and_listed_is_answered_without_asking() {
    weft_rt::block_on(async { check_made_and_listed() }).unwrap();
}

fn check_made_and_listed() {
    let (kept, mut shard) = (KeptNames::default(), Shard::new());
    kept.turn_on(0, &Rc::new(Hearing::from(now())));
    for what in [4, 6, 13] {
        send(&kept, &mut shard, operation((what, 0, 2, 0)));
    }
    let (made, other) = (operation((0, 0, 0, 0)), operation((0, 6, 0, 0)));
    assert!(matches!(kept.answer(&made), Some(Answer::Attributes(_))));
    assert_eq!(kept.answer(&other), Some(Answer::Failed(FileError::NotFound)));
    let find = |bytes| Operation::Find(NameIn { directory: DIRECTORIES[0], name: vec![b'x'; bytes] });
    assert_eq!(kept.answer(&find(255)), Some(Answer::Failed(FileError::NotFound)));
    assert_eq!(kept.answer(&find(256)), None, "the shard says that it is too long");
    let missing = |inode| Operation::Xattr(InodeNumber(inode), b"security.capability".to_vec());
    assert_eq!(kept.answer(&missing(3)), None, "nobody knows what the directory passes on");
    send(&kept, &mut shard, Operation::XattrNames(DIRECTORIES[0]));
    send(&kept, &mut shard, operation((6, 6, 1, 0)));
    assert_eq!(kept.answer(&missing(4)), Some(Answer::Failed(FileError::NoXattr)));
    kept.turn_off(0);
    assert_eq!(kept.answer(&made), None);
}
