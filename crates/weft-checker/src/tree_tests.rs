//! Histories of a tree that has one order, and such that have none.

use super::*;
use weft_types::{Attributes, FileKind, FileTime};
use weft_wire::files::{
    AttributeChanges, FileError, Listed, ListedEntry, LockFamily, LockMode, LockOwner, NameIn, NewInode,
    RenameMode,
};

const ROOT: InodeNumber = InodeNumber(1);

fn at(name: &str) -> NameIn {
    NameIn { directory: ROOT, name: name.into() }
}

fn new(kind: FileKind) -> NewInode {
    NewInode { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, device: 0, target: Vec::new() }
}

fn make(name: &str, kind: FileKind) -> Deed {
    Deed::Ask(Operation::Create(at(name), new(kind)))
}

fn find(name: &str) -> Deed {
    Deed::Ask(Operation::Find(at(name)))
}

fn list() -> Deed {
    Deed::Ask(Operation::List { directory: ROOT, after: 0, limit: 100 })
}

fn attributes(inode: u64, kind: FileKind, links: u32) -> Attributes {
    let time = FileTime::default();
    Attributes {
        inode: InodeNumber(inode),
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
        revision: 0,
    }
}

fn file(inode: u64) -> Answer {
    Answer::Attributes(attributes(inode, FileKind::Regular, 1))
}

fn directory(inode: u64) -> Answer {
    Answer::Attributes(attributes(inode, FileKind::Directory, 2))
}

fn no(error: FileError) -> Answer {
    Answer::Failed(error)
}

fn listed(names: &[(&str, u64)]) -> Answer {
    let entry = |(n, (name, inode)): (usize, &(&str, u64))| ListedEntry {
        cookie: n as u64 + 1,
        name: name.as_bytes().to_vec(),
        attributes: attributes(*inode, FileKind::Regular, 1),
        lasts: false,
    };
    Answer::Listed(Listed { parent: 1, entries: names.iter().enumerate().map(entry).collect(), is_end: true })
}

/// A call that is answered at once.
fn call(history: &mut TreeHistory, mount: u64, deed: Deed, answer: &Answer) -> Result<u64, String> {
    let call = history.begin(mount, deed);
    history.end(call, answer).map(|()| call)
}

#[test]
fn of_two_calls_at_once_either_may_be_first_and_not_both() {
    for second in [no(FileError::Exists), file(11)] {
        let mut history = TreeHistory::below(ROOT);
        let calls = [1, 2].map(|mount| history.begin(mount, make("a", FileKind::Regular)));
        let first = history.end(calls[1], &file(10));
        assert_eq!(first, Ok(()));
        let ended = history.end(calls[0], &second);
        assert_eq!(ended.is_ok(), second == no(FileError::Exists), "{ended:?}");
    }
}

#[test]
fn a_look_beside_a_change_may_come_before_it_whichever_returns_first() {
    for (seen, is_right) in [(no(FileError::NotFound), true), (file(10), true), (file(11), false)] {
        let mut history = TreeHistory::below(ROOT);
        let look = history.begin(1, find("a"));
        call(&mut history, 2, make("a", FileKind::Regular), &file(10)).unwrap();
        assert_eq!(history.end(look, &seen).is_ok(), is_right, "{seen:?}");
    }
}

#[test]
fn attributes_may_be_newer_than_the_name_that_was_found_and_not_older() {
    let seen = |links| Answer::Attributes(attributes(10, FileKind::Regular, links));
    let remove = Deed::Ask(Operation::Unlink(at("b")));
    for (is_beside, links, is_right) in
        [(true, 1, true), (true, 2, true), (true, 3, false), (false, 1, false)]
    {
        let mut history = TreeHistory::below(ROOT);
        call(&mut history, 1, make("a", FileKind::Regular), &file(10)).unwrap();
        call(&mut history, 1, Deed::Ask(Operation::Link(InodeNumber(10), at("b"))), &seen(2)).unwrap();
        let look = history.begin(2, find("b"));
        if is_beside {
            call(&mut history, 1, remove.clone(), &Answer::Done).unwrap();
        }
        assert_eq!(history.end(look, &seen(links)).is_ok(), is_right, "{is_beside} {links}");
    }
    for (is_beside, is_right) in [(true, true), (false, false)] {
        let mut history = TreeHistory::below(ROOT);
        call(&mut history, 1, make("a", FileKind::Regular), &file(10)).unwrap();
        let look = is_beside.then(|| history.begin(2, list()));
        let change = AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() };
        let mut changed = attributes(10, FileKind::Regular, 1);
        changed.mode = 0o600;
        let deed = Deed::Ask(Operation::Change(InodeNumber(10), change));
        call(&mut history, 1, deed, &Answer::Attributes(changed)).unwrap();
        let look = look.unwrap_or_else(|| history.begin(2, list()));
        assert_eq!(history.end(look, &listed(&[("a", 10)])).is_ok(), is_right);
    }
}

#[test]
fn an_inode_without_a_name_is_dropped_from_all_trees_or_from_none() {
    let mut history = TreeHistory::below(ROOT);
    for (name, inode) in [("a", 10), ("b", 11), ("c", 12)] {
        call(&mut history, 1, make(name, FileKind::Regular), &file(inode)).unwrap();
    }
    call(&mut history, 1, Deed::Ask(Operation::Unlink(at("a"))), &Answer::Done).unwrap();
    // The removal takes what was there before or what the rename has moved, and no answer says which.
    let rename = Deed::Ask(Operation::Rename(at("b"), at("c"), RenameMode::Replace));
    let calls = [Deed::Ask(Operation::Unlink(at("c"))), rename].map(|deed| history.begin(1, deed));
    for call in calls {
        history.end(call, &Answer::Done).unwrap();
    }
    assert_eq!(history.count(), 2);
    history.drop_nameless(1);
    let look = Deed::Ask(Operation::Attributes(InodeNumber(11)));
    call(&mut history, 1, look, &Answer::Attributes(attributes(11, FileKind::Regular, 0))).unwrap();
    call(&mut history, 1, list(), &listed(&[])).unwrap();
}

#[test]
fn a_call_may_be_seen_before_it_returns_and_not_unseen_again() {
    let mut history = TreeHistory::below(ROOT);
    let made = history.begin(1, make("a", FileKind::Regular));
    call(&mut history, 2, find("a"), &no(FileError::NotFound)).unwrap();
    call(&mut history, 2, find("a"), &file(10)).unwrap();
    assert!(call(&mut history.clone(), 3, find("a"), &no(FileError::NotFound)).is_err());
    assert!(history.clone().end(made, &file(11)).is_err(), "another one was seen under its name");
    history.end(made, &file(10)).unwrap();
    assert_eq!(history.count(), 1);
}

#[test]
fn a_call_of_a_dead_mount_happens_until_it_is_forgotten_or_never() {
    let mut history = TreeHistory::below(ROOT);
    call(&mut history, 1, make("a", FileKind::Regular), &file(10)).unwrap();
    history.begin(1, Deed::Ask(Operation::Rename(at("a"), at("b"), RenameMode::Replace)));
    history.begin(1, make("c", FileKind::Regular));
    history.lose(1);
    call(&mut history, 2, list(), &listed(&[("a", 10)])).unwrap();
    let mut other = history.clone();
    call(&mut other, 2, list(), &listed(&[("b", 10), ("c", 12)])).unwrap();
    assert!(call(&mut other.clone(), 2, list(), &listed(&[("b", 10)])).is_err(), "the name was seen");
    other.forget(1);
    call(&mut other, 2, list(), &listed(&[("b", 10), ("c", 12)])).unwrap();
    assert_eq!(other.count(), 1);
    history.forget(1);
    assert!(history.count() > 1 && !history.has_lost());
    call(&mut history, 2, list(), &listed(&[("a", 10)])).unwrap();
    assert!(call(&mut history, 2, list(), &listed(&[("b", 10)])).is_err(), "it was forgotten");
}

#[test]
fn what_is_open_is_there_and_what_is_neither_open_nor_named_may_be_gone() {
    let mut history = TreeHistory::below(ROOT);
    let create = Deed::Ask(Operation::CreateOpen(at("a"), new(FileKind::Regular), 0));
    let handle = call(&mut history, 1, create, &file(10)).unwrap();
    call(&mut history, 2, Deed::Ask(Operation::Unlink(at("a"))), &Answer::Done).unwrap();
    let look = || Deed::Ask(Operation::Attributes(InodeNumber(10)));
    assert!(call(&mut history.clone(), 2, look(), &no(FileError::Stale)).is_err());
    let nameless = Answer::Attributes(attributes(10, FileKind::Regular, 0));
    call(&mut history, 2, look(), &nameless).unwrap();
    call(&mut history, 1, Deed::Close(InodeNumber(10), handle), &Answer::Done).unwrap();
    call(&mut history, 2, look(), &nameless).unwrap();
    call(&mut history, 2, look(), &no(FileError::Stale)).unwrap();
    assert!(call(&mut history, 2, look(), &nameless).is_err(), "it was gone");
}

#[test]
fn a_lock_of_a_dead_mount_is_in_the_way_until_it_is_given_back() {
    let mut history = TreeHistory::below(ROOT);
    let create = Deed::Ask(Operation::CreateOpen(at("a"), new(FileKind::Regular), 0));
    let handles = [
        call(&mut history, 1, create, &file(10)).unwrap(),
        call(&mut history, 2, Deed::Open(InodeNumber(10)), &Answer::Done).unwrap(),
    ];
    let lock = |n: usize, mode| FileLock {
        owner: LockOwner { family: LockFamily::Range, id: handles[n] },
        start: 0,
        last: 3,
        mode,
        process: 0,
    };
    let take = |n, mode| Deed::Ask(Operation::Lock(InodeNumber(10), lock(n, mode)));
    call(&mut history, 1, take(0, LockMode::Shared), &Answer::Done).unwrap();
    call(&mut history, 2, take(1, LockMode::Shared), &Answer::Done).unwrap();
    call(&mut history, 2, take(1, LockMode::Exclusive), &no(FileError::Locked)).unwrap();
    let waits = history.begin(2, Deed::LockInTurn(InodeNumber(10), lock(1, LockMode::Exclusive)));
    assert!(history.clone().end(waits, &Answer::Done).is_err());
    history.lose(1);
    history.forget(1);
    assert_eq!(history.locked_by(1), [InodeNumber(10)].into());
    let find = Deed::Ask(Operation::FindLock(InodeNumber(10), lock(1, LockMode::Exclusive)));
    let found = lock(0, LockMode::Shared);
    call(&mut history, 2, find, &Answer::Lock(Some(found))).unwrap();
    history.end(waits, &Answer::Done).unwrap();
    assert!(history.locked_by(1).is_empty());
    history.free(1);
    assert_eq!(history.count(), 1);
}

#[test]
fn a_directory_that_was_made_by_a_dead_mount_is_known_once_it_is_seen() {
    let mut history = TreeHistory::below(ROOT);
    history.begin(1, make("d", FileKind::Directory));
    history.lose(1);
    history.forget(1);
    let d = history.clone().possible.iter().flat_map(|state| state.model.directories()).collect::<Vec<_>>();
    assert!(d.iter().all(|inode| *inode == ROOT), "what has no number yet cannot be asked for");
    call(&mut history, 2, find("d"), &directory(20)).unwrap();
    let into = NameIn { directory: InodeNumber(20), name: b"x".to_vec() };
    call(&mut history, 2, Deed::Ask(Operation::Create(into, new(FileKind::Regular))), &file(21)).unwrap();
    let remove = Deed::Ask(Operation::RemoveDirectory(at("d")));
    call(&mut history, 3, remove, &no(FileError::NotEmpty)).unwrap();
    assert!(
        call(&mut history, 3, make("x", FileKind::Regular), &file(20)).is_err(),
        "a number is used twice"
    );
}

#[test]
fn what_is_refused_has_not_happened() {
    let mut history = TreeHistory::below(ROOT);
    let refused = history.begin(1, make("a", FileKind::Regular));
    history.refuse(refused).expect("it has not been seen");
    let seen = history.begin(2, find("a"));
    assert!(history.end(seen, &file(5)).is_err());
    history.end(seen, &no(FileError::NotFound)).expect("it is not there");

    // Another mount has seen it before the refusal.
    let refused = history.begin(1, make("b", FileKind::Regular));
    let seen = history.begin(2, find("b"));
    history.end(seen, &file(6)).expect("it may have happened");
    assert!(history.refuse(refused).is_err());
    history.end(refused, &file(6)).expect("it has happened");
}
