//! What is kept says what the shard would say, whatever is under way.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::Cell;
use std::collections::BTreeSet;
use weft_rt::now;
use weft_types::FileTime;
use weft_wire::files::{ListedEntry, NewInode, XattrMode};

/// A shard of which only what is kept matters: names of files in two directories, and revisions.
#[derive(Clone)]
struct Shard {
    names: BTreeMap<(InodeNumber, Vec<u8>), InodeNumber>,
    inodes: BTreeMap<InodeNumber, (FileKind, u32, u64)>,
    xattrs: BTreeMap<InodeNumber, BTreeSet<Vec<u8>>>,
    last: u64,
}

const DIRECTORIES: [InodeNumber; 2] = [InodeNumber(1), InodeNumber(2)];

impl Shard {
    fn new() -> Shard {
        let inodes = DIRECTORIES.map(|inode| (inode, (FileKind::Directory, 2, 1))).into();
        Shard { names: BTreeMap::new(), inodes, xattrs: BTreeMap::new(), last: 2 }
    }

    fn attributes(&self, inode: InodeNumber) -> Answer {
        match self.inodes.get(&inode) {
            Some((kind, links, revision)) => Answer::Attributes(attributes(inode, *kind, *links, *revision)),
            None => Answer::Failed(FileError::Stale),
        }
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
            Operation::Create(at, _) => match self.of(at) {
                Some(_) => Answer::Failed(FileError::Exists),
                None => {
                    self.last += 1;
                    let made = InodeNumber(self.last);
                    self.inodes.insert(made, (FileKind::Regular, 1, 1));
                    let passed = self.xattrs.get(&at.directory).is_some_and(|of| of.contains(DEFAULT_ACL));
                    self.xattrs.insert(made, passed.then(|| b"inherited".to_vec()).into_iter().collect());
                    self.set(at, Some(made));
                    self.attributes(made)
                }
            },
            Operation::Link(inode, at) => {
                let is_there = |(kind, links, _): &_| *links > 0 && *kind == FileKind::Regular;
                let has_name = self.inodes.get(inode).is_some_and(is_there);
                match self.of(at) {
                    None if has_name => {
                        self.touch(*inode, 1);
                        self.set(at, Some(*inode));
                        self.attributes(*inode)
                    }
                    _ => Answer::Failed(FileError::Exists),
                }
            }
            Operation::Unlink(at) => match self.of(at) {
                Some(inode) => {
                    self.touch(inode, -1);
                    self.set(at, None);
                    self.attributes(inode)
                }
                None => Answer::Failed(FileError::NotFound),
            },
            Operation::Rename(from, to, mode) => self.rename(from, to, *mode),
            Operation::Change(inode, _) => {
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

    fn list(&self, directory: InodeNumber) -> Listed {
        let entries = self.names.iter().filter(|((of, _), _)| *of == directory).enumerate();
        let entry = |(n, ((_, name), inode)): (usize, (&(InodeNumber, Vec<u8>), &InodeNumber))| {
            let Answer::Attributes(attributes) = self.attributes(*inode) else { unreachable!() };
            ListedEntry { cookie: 16 + n as u64, name: name.clone(), attributes }
        };
        Listed { parent: 1, entries: entries.map(entry).collect(), is_end: true }
    }

    fn rename(&mut self, from: &NameIn, to: &NameIn, mode: RenameMode) -> Answer {
        let (Some(moved), taken) = (self.of(from), self.of(to)) else {
            return Answer::Failed(FileError::NotFound);
        };
        match (mode, taken) {
            (RenameMode::Keep, Some(_)) => return Answer::Failed(FileError::Exists),
            (RenameMode::Exchange, None) => return Answer::Failed(FileError::NotFound),
            (_, Some(same)) if same == moved => return self.attributes(moved),
            (RenameMode::Exchange, Some(other)) => {
                self.touch(other, 0);
                self.set(from, Some(other));
            }
            (_, taken) => {
                taken.into_iter().for_each(|replaced| self.touch(replaced, -1));
                self.set(from, None);
            }
        }
        self.touch(moved, 0);
        self.set(to, Some(moved));
        self.attributes(moved)
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
}

/// One step of a history, drawn.
type Draw = (u8, u8, u8, u8);

fn operation((what, which, other, _): Draw) -> Operation {
    let at = |n: u8| NameIn { directory: DIRECTORIES[usize::from(n % 2)], name: vec![b'a' + (n / 2) % 3] };
    let inode = InodeNumber(1 + u64::from(other % 7));
    let kind = FileKind::Regular;
    let new = NewInode { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, device: 0, target: Vec::new() };
    let xattr = if which % 2 == 0 { DEFAULT_ACL.to_vec() } else { b"user.x".to_vec() };
    match what % 16 {
        0..3 => Operation::Find(at(which)),
        3 => Operation::Attributes(inode),
        4 => Operation::List { directory: DIRECTORIES[usize::from(which % 2)], after: 0, limit: 100 },
        5 => Operation::XattrNames(inode),
        6..9 => Operation::Create(at(which), new),
        9 => Operation::Link(inode, at(which)),
        10 => Operation::Unlink(at(which)),
        11 => Operation::Rename(at(which), at(other), RenameMode::Replace),
        12 => Operation::Rename(at(which), at(other), RenameMode::Exchange),
        13 => Operation::Change(inode, AttributeChanges::default()),
        14 => Operation::SetXattr(inode, xattr, Vec::new(), XattrMode::Either),
        _ => Operation::RemoveXattr(inode, xattr),
    }
}

/// All questions that can be answered from what is kept.
fn questions() -> impl Iterator<Item = Operation> {
    let names = (0..6).map(|n| operation((0, n, 0, 0)));
    names.chain((0..7).flat_map(|n| [operation((3, 0, n, 0)), operation((5, 0, n, 0))]))
}

/// Runs a history; returns how often something was answered without asking.
fn run(draws: &[Draw]) -> Result<usize, TestCaseError> {
    let kept = KeptNames::default();
    let mut shard = Shard::new();
    let mut flights: Vec<Flight> = Vec::new();
    // What may be answered: what the shard would have said since nothing was decided and unanswered last.
    let mut since = vec![shard.clone()];
    let mut answered = 0;
    kept.turn_on(&Rc::new(Hearing::from(now())));
    for draw in draws {
        let at = usize::from(draw.3);
        match draw.0 {
            // Something is sent.
            0..128 if flights.len() < 4 => {
                let operation = operation(*draw);
                flights.push(match operation.changes() {
                    false => Flight::Look(kept.begin_look(), operation, None),
                    true => Flight::Change(kept.begin_change(&operation), operation, None),
                });
            }
            // Something is decided.
            64..192 if !flights.is_empty() => {
                let n = at % flights.len();
                let (Flight::Look(_, operation, answer) | Flight::Change(_, operation, answer)) =
                    &mut flights[n];
                if answer.is_none() {
                    *answer = Some(shard.decide(operation));
                    since.push(shard.clone());
                }
            }
            // An answer arrives.
            _ if !flights.is_empty() => {
                let n = at % flights.len();
                match &flights[n] {
                    Flight::Look(look, operation, Some(answer)) => kept.end_look(*look, operation, answer),
                    Flight::Change(change, operation, Some(answer)) => {
                        kept.end_change(change, operation, Some(answer));
                    }
                    _ => continue,
                }
                flights.remove(n);
                let is_open = |flight: &Flight| matches!(flight, Flight::Change(_, _, Some(_)));
                if !flights.iter().any(is_open) {
                    since = vec![shard.clone()];
                }
            }
            _ => {}
        }
        for question in questions() {
            if let Some(answer) = kept.answer(&question) {
                answered += 1;
                let is_right = since.iter().any(|shard| shard.clone().decide(&question) == answer);
                prop_assert!(is_right, "{question:?} is answered with {answer:?}");
            }
        }
    }
    Ok(answered)
}

#[test]
fn it_says_what_the_shard_would_say() {
    weft_rt::block_on(async {
        let config = ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() };
        let histories = proptest::collection::vec(any::<Draw>(), 1..200);
        let answered = Cell::new(0);
        let held = TestRunner::new(config).run(&histories, |draws| {
            answered.set(answered.get() + run(&draws)?);
            Ok(())
        });
        assert!(held.is_ok(), "{held:?}");
        assert!(answered.get() > 200_000, "answered without asking: {}", answered.get());
    })
    .unwrap();
}

#[test]
fn what_was_made_and_listed_is_answered_without_asking() {
    weft_rt::block_on(async { check_made_and_listed() }).unwrap();
}

fn check_made_and_listed() {
    let send = |kept: &KeptNames, shard: &mut Shard, operation: Operation| {
        if operation.changes() {
            let change = kept.begin_change(&operation);
            let answer = shard.decide(&operation);
            kept.end_change(&change, &operation, Some(&answer));
        } else {
            let look = kept.begin_look();
            let answer = shard.decide(&operation);
            kept.end_look(look, &operation, &answer);
        }
    };
    let (kept, mut shard) = (KeptNames::default(), Shard::new());
    kept.turn_on(&Rc::new(Hearing::from(now())));
    for what in [4, 6, 13] {
        send(&kept, &mut shard, operation((what, 0, 2, 0)));
    }
    let (made, other) = (operation((0, 0, 0, 0)), operation((0, 2, 0, 0)));
    assert!(matches!(kept.answer(&made), Some(Answer::Attributes(_))));
    assert_eq!(kept.answer(&other), Some(Answer::Failed(FileError::NotFound)));
    let missing = |inode| Operation::Xattr(InodeNumber(inode), b"security.capability".to_vec());
    assert_eq!(kept.answer(&missing(3)), None, "nobody knows what the directory passes on");
    send(&kept, &mut shard, Operation::XattrNames(DIRECTORIES[0]));
    send(&kept, &mut shard, operation((6, 2, 0, 0)));
    assert_eq!(kept.answer(&missing(4)), Some(Answer::Failed(FileError::NoXattr)));
    kept.turn_off();
    assert_eq!(kept.answer(&made), None);
}
