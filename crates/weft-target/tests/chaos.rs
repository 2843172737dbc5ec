//! Random crashes, power cuts, evictions and cuts of the network under concurrent writers: what was acknowledged is
//! on every in-sync replica in the end, no block holds what was never written there, and a sweep makes all equal.

use crate::fabric;

use fabric::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weft_rt::sim::{Crash, Sim, heal_network, set_blocked};
use weft_rt::sync::join_all;
use weft_rt::{random_below, sleep, spawn, timeout};
use weft_types::*;
use weft_wire::Status;
use weft_wire::control::{TargetAnswer, TargetRequest};
use weft_wire::data::*;

const TARGETS: usize = 3;

/// Few blocks, so that writers meet; in several chunks, so that resyncs have work.
const BLOCKS: [u32; 8] = [0, 1, 2, 127, 128, 700, 9000, 9001];

/// The byte that a version fills its block with.
fn byte_of(version: Version) -> u8 {
    (version.counter() as u8).wrapping_mul(31) ^ version.slot().0 as u8 | 1
}

/// A client that follows the write protocol (R3, R5, R6), without watermarks.
struct Writer {
    client: Client,
    fabric: Rc<Fabric>,
    counter: Rc<Cell<u64>>,
    /// The newest version of each block that is known to be complete.
    complete: Rc<RefCell<BTreeMap<u32, Version>>>,
}

impl Writer {
    async fn write(&self, at: u32) {
        loop {
            self.counter.set(self.counter.get() + 1);
            let version = self.client.v(self.counter.get());
            if self.put(at, version).await {
                let mut complete = self.complete.borrow_mut();
                let newest = complete.entry(at).or_default();
                *newest = version.max(*newest);
                return;
            }
        }
    }

    /// Puts a version on the whole write set of one epoch; whether some replica took it.
    async fn put(&self, at: u32, version: Version) -> bool {
        let mut applied = false;
        loop {
            let entry = self.fabric.entry();
            let ends =
                join_all(entry.write_set().map(|d| self.deliver(&entry, d.0 as usize, at, version))).await;
            applied |= ends.contains(&Some(Verdict::Applied));
            if ends.iter().all(Option::is_some) {
                return applied;
            }
        }
    }

    /// Sends a write to one target until it answers, or the epoch is another.
    async fn deliver(&self, entry: &Group, n: usize, at: u32, version: Version) -> Option<Verdict> {
        loop {
            let client = self.client.clone();
            client.epoch.set(entry.epoch.0);
            match timeout(ms(400), client.write(n, at, version, byte_of(version))).await {
                Ok((Status::Ok, verdict)) => return verdict,
                Ok((Status::UnknownEpoch, _)) => {
                    let _ = timeout(ms(400), client.teach(n, entry)).await;
                }
                _ => sleep(ms(3)).await,
            }
            if self.fabric.entry().epoch != entry.epoch {
                return None;
            }
        }
    }
}

/// One thing that goes wrong, and its repair.
async fn trouble(fabric: &Rc<Fabric>) {
    let n = 1 + random_below(TARGETS as u64) as usize;
    let crash = if random_below(2) == 0 { Crash::Process } else { Crash::PowerCut };
    match random_below(4) {
        0 => {
            fabric.kill_target(n, crash);
            sleep(ms(random_below(50))).await;
            fabric.start_target(n);
        }
        1 => {
            let other = 1 + n % TARGETS;
            set_blocked(host(n), host(other), true);
            sleep(ms(random_below(300))).await;
            heal_network();
        }
        2 => {
            fabric.stop_manager();
            sleep(ms(random_below(1500))).await;
            fabric.start_manager();
        }
        _ => leave_and_come_back(fabric, n, crash).await,
    }
    // Not always before the next trouble.
    if random_below(3) > 0 {
        fabric.wait_serving().await;
    }
}

/// A member is evicted while it is dead, or after it has acknowledged that itself (R11); then it comes back.
async fn leave_and_come_back(fabric: &Rc<Fabric>, n: usize, crash: Crash) {
    fabric.wait_serving().await;
    let dies = random_below(2) == 0;
    if dies {
        fabric.kill_target(n, crash);
    } else {
        let mut next = fabric.entry();
        next.epoch = next.epoch.next();
        for slot in next.slots.iter_mut().filter(|s| s.drive == drive(n)) {
            (slot.role, slot.since) = (Role::Out, next.epoch);
        }
        assert_eq!(Client::new(9, 9).teach(n, &next).await, Status::Ok);
    }
    fabric.set_role(n, Role::Out);
    sleep(ms(random_below(100))).await;
    if dies {
        fabric.start_target(n);
    }
    let stint = fabric.set_role(n, Role::Syncing);
    if random_below(2) == 0 {
        sleep(ms(random_below(30))).await;
        fabric.kill_target(n, crash);
        fabric.start_target(n);
    }
    eventually("all is verified", || fabric.manager.verified.borrow().contains(&(GROUP, drive(n), stint)))
        .await;
    fabric.set_role(n, Role::InSync);
}

async fn run(seed_events: u64) {
    let fabric = Fabric::start(TARGETS).await;
    let (counter, complete) = (Rc::new(Cell::new(1)), Rc::new(RefCell::new(BTreeMap::new())));
    let writers: Vec<_> = (1..=3u16)
        .map(|slot| {
            let client = Client::new(u64::from(slot), slot);
            // Counters of one writer often lag behind those of another, so that versions meet out of order.
            let counter = if slot == 3 { Rc::new(Cell::new(1)) } else { counter.clone() };
            let writer = Writer { client, fabric: fabric.clone(), counter, complete: complete.clone() };
            spawn(async move {
                for _ in 0..60 {
                    writer.write(BLOCKS[random_below(BLOCKS.len() as u64) as usize]).await;
                    sleep(ms(random_below(30))).await;
                }
            })
        })
        .collect();
    for _ in 0..seed_events {
        trouble(&fabric).await;
        sleep(ms(random_below(100))).await;
    }
    heal_network();
    for writer in writers {
        writer.await.unwrap();
    }
    fabric.wait_serving().await;
    fabric.push(&[1, 2, 3]).await;
    let complete = complete.borrow().clone();
    check(&fabric, &complete).await;
}

/// Reads a block; a target may be without a lease for a moment after the manager was away.
async fn read_surely(client: &Client, n: usize, at: u32) -> Found {
    loop {
        match client.read(n, at).await {
            Ok(found) => return found,
            Err(status) => assert_eq!(status, Status::NotServing),
        }
        sleep(ms(10)).await;
    }
}

async fn check(fabric: &Rc<Fabric>, complete: &BTreeMap<u32, Version>) {
    let client = Client::new(9, 9);
    client.epoch.set(fabric.entry().epoch.0);
    for (at, newest) in complete {
        for n in 1..=TARGETS {
            let found = read_surely(&client, n, *at).await;
            assert!(
                found.version >= *newest,
                "block {at} on target {n} has {found:?}, {newest} was complete"
            );
            assert_eq!(
                found.byte,
                byte_of(found.version),
                "block {at} on target {n} has another version's data"
            );
        }
    }
    let sessions: Vec<_> = (1..=3).map(|n| (SessionId(n), SessionSlot(n as u16))).collect();
    let end = TargetRequest::EndSessions { sessions: sessions.iter().map(|s| s.0).collect() };
    for n in 1..=TARGETS {
        assert_eq!(fabric.command(n, &end).await, Some(TargetAnswer::Done));
    }
    for n in 1..=TARGETS {
        let sweep = fabric.sweep_of(&sessions);
        assert_eq!(fabric.command(n, &sweep).await, Some(TargetAnswer::Done));
    }
    for n in 2..=TARGETS {
        assert_eq!(client.digests(1).await, client.digests(n).await, "targets 1 and {n} after the sweep");
    }
    for at in complete.keys() {
        for n in 1..=TARGETS {
            assert!(!read_surely(&client, n, *at).await.open, "block {at} on target {n} is still open");
        }
    }
}

#[test]
fn what_was_acknowledged_survives_whatever_happens() {
    let seeds = std::env::var("WEFT_CHAOS_SEEDS").map_or(25, |n| n.parse().expect("a number of seeds"));
    let first = std::env::var("WEFT_CHAOS_FIRST").map_or(0, |n| n.parse().expect("the first seed"));
    for seed in first..first + seeds {
        let story = Rc::new(RefCell::new(Vec::new()));
        let lines = story.clone();
        let sim = Sim::new(seed).with_story(move |line| lines.borrow_mut().push(line.to_owned()));
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sim.block_on(run(4 + seed % 8))));
        if let Err(panic) = result {
            eprintln!("seed {seed}, the last of its story:");
            let story = story.borrow();
            for line in &story[story.len().saturating_sub(60)..] {
                eprintln!("{line}");
            }
            std::panic::resume_unwind(panic);
        }
    }
}
