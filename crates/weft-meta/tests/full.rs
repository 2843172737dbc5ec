//! A shard whose volume has no space but the reserve: names are removed, and their space is given back.

mod memory;

use memory::{Memory, Room};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use weft_meta::*;
use weft_rt::sim::Sim;
use weft_rt::{random_below, sleep, spawn, timeout};
use weft_types::{FileKind, InodeNumber, SessionId};
use weft_wire::files::{Answer, FileError, FileRequest, NameIn, NewInode, Operation};

/// Clients that ask at the same time.
const CLIENTS: u64 = 32;

fn name(client: u64, n: u64) -> NameIn {
    let name = format!("a name that is as long as many names are, of client {client}: {n}");
    NameIn { directory: InodeNumber::ROOT, name: name.into_bytes() }
}

fn create(client: u64, n: u64) -> Operation {
    let kind = FileKind::Regular;
    let new = NewInode { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, device: 0, target: Vec::new() };
    Operation::Create(name(client, n), new)
}

/// What all clients return that do the same thing at the same time, each with its number.
async fn on_clients<T: 'static, F: Future<Output = T> + 'static>(work: impl Fn(u64) -> F) -> Vec<T> {
    let clients: Vec<_> = (0..CLIENTS).map(|client| spawn(work(client))).collect();
    let mut all = Vec::new();
    for client in clients {
        all.push(client.await.expect("no client is killed"));
    }
    all
}

/// Makes names until there is no space; how many there are, fewer than `most`.
async fn make(shard: Shard<Memory>, client: u64, most: u64) -> u64 {
    for n in 0.. {
        let (session, operation) = (SessionId(client), create(client, n));
        match shard.serve(&FileRequest { session, number: n + 1, answered: n, operation }).await.unwrap() {
            Answer::Failed(FileError::NoSpace) => return n,
            Answer::Attributes(_) => assert!(n < most, "more than there is room for"),
            answer => panic!("{answer:?}"),
        }
    }
    unreachable!("there are more numbers than names")
}

/// Removes names in an order that has nothing to do with that of their making, nor with that of their keys.
async fn remove(shard: Shard<Memory>, client: u64, names: u64) {
    let mut left: Vec<u64> = (0..names).collect();
    let mut number = names + 1;
    while !left.is_empty() {
        let n = left.swap_remove(random_below(left.len() as u64) as usize);
        number += 1;
        let (session, operation) = (SessionId(client), Operation::Unlink(name(client, n)));
        let request = FileRequest { session, number, answered: number - 1, operation };
        assert!(matches!(shard.serve(&request).await.unwrap(), Answer::Attributes(gone) if gone.links == 0));
    }
}

/// Gives back what has no name, until the shard has ended or nothing is asked for any more.
async fn purge(shard: Shard<Memory>, is_over: Rc<Cell<bool>>) {
    while !is_over.get() {
        for inode in shard.orphans(16).await.unwrap() {
            shard.purge(inode).await.unwrap();
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// A new shard whose volume has this room.
async fn shard_with(room: Room) -> (Shard<Memory>, Memory) {
    let medium = Memory::of(Default::default());
    let name = ShardName { file_system: 9, shard: 0 };
    format_shard(&medium, &ShardFormat::new(name, [7; 16], [1; 12])).await.unwrap();
    medium.limit(room);
    (Shard::open(medium.attach()).await.unwrap(), medium)
}

/// Removes names, `names` says how many of each client, and gives back what they had. Insists that the next
/// server finds the tables as they are then.
async fn empty(shard: &Shard<Memory>, medium: &Memory, names: Vec<u64>) {
    let is_over = Rc::new(Cell::new(false));
    let purging = spawn(purge(shard.clone(), is_over.clone()));
    on_clients(|client| remove(shard.clone(), client, names[client as usize])).await;
    while shard.may_have_orphans() {
        sleep(Duration::from_secs(1)).await;
    }
    is_over.set(true);
    purging.await.expect("it ends");
    shard.checkpoint().await.unwrap();
    let of_tables = |shard: &Shard<Memory>| {
        shard.with_tables(|tables| {
            assert_eq!(check_tables(tables), []);
            tables.items().map(|(key, value)| (key.clone(), value.clone())).collect::<BTreeSet<_>>()
        })
    };
    let before = of_tables(shard);
    let next = Shard::open(medium.attach()).await.unwrap();
    assert!(of_tables(&next) == before, "the next server finds the same");
}

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(100_000);

#[test]
fn a_volume_that_is_full_of_names_gives_back_whatever_is_removed_in_whatever_order() {
    for seed in 0..3 {
        let (names, blocks) = Sim::new(seed).block_on(async move {
            let (shard, medium) = shard_with(Room { blocks: 3000, reserve: 400 }).await;
            let made = timeout(PATIENCE, on_clients(|client| make(shard.clone(), client, 20_000))).await;
            let made = made.expect("it is full some time");
            let names = made.iter().sum::<u64>();
            let emptied = timeout(PATIENCE, empty(&shard, &medium, made)).await;
            emptied.expect("the reserve is enough for it to go on");
            (names, medium.contents().len())
        });
        eprintln!("seed {seed}: {names} names, {blocks} blocks at the end");
        assert!(names > 2_000, "{names} names");
        assert!(blocks < 500, "the log, and little else: {blocks} blocks");
    }
}

/// Others fill the drives while names are made: what the log has needs room at the next checkpoint.
#[test]
fn a_volume_that_others_fill_at_any_moment_has_room_for_what_its_log_has() {
    for seed in 0..12 {
        Sim::new(seed).block_on(async move {
            let reserve = 400;
            let (shard, medium) = shard_with(Room { blocks: 1 << 20, reserve }).await;
            let state = medium.attached();
            spawn(async move {
                sleep(Duration::from_millis(random_below(1500))).await;
                state.limit(Room { blocks: state.contents().len() + reserve, reserve });
            });
            let made = timeout(PATIENCE, on_clients(|client| make(shard.clone(), client, 20_000))).await;
            let made = made.expect("it is full some time");
            eprintln!("seed {seed}: {} names", made.iter().sum::<u64>());
            let emptied = timeout(PATIENCE, empty(&shard, &medium, made)).await;
            emptied.expect("the reserve is enough for it to go on");
        });
    }
}
