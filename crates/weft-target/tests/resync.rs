//! Coming back: resync of a syncing replica, writes that meet it on the way, and sweeps (R4, R10, R12 to R15).

use crate::fabric;

use fabric::*;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sim::{Crash, Sim, set_blocked};
use weft_rt::sync::{Either, race};
use weft_rt::{random_below, sleep, spawn};
use weft_types::*;
use weft_wire::control::{TargetAnswer, TargetRequest};
use weft_wire::data::*;
use weft_wire::{Kind, PROTOCOL, Status};

const OK: (Status, Option<Verdict>) = (Status::Ok, Some(Verdict::Applied));

/// The last member leaves: the others adopt the map, it does not hear of it.
async fn evict_last(fabric: &Fabric, n: usize) -> u64 {
    let epoch = fabric.set_role(n, Role::Out);
    let others: Vec<usize> = (1..n).collect();
    fabric.push(&others).await;
    epoch.0
}

/// It comes back as syncing, everyone hears.
async fn rejoin(fabric: &Fabric, n: usize) -> u64 {
    let epoch = fabric.set_role(n, Role::Syncing);
    let all: Vec<usize> = (1..=n).collect();
    fabric.push(&all).await;
    epoch.0
}

async fn wait_verified(fabric: &Fabric, n: usize, stint: u64) {
    eventually("all is verified", || {
        fabric.manager.verified.borrow().contains(&(GROUP, drive(n), Epoch(stint)))
    })
    .await;
}

async fn promote(fabric: &Fabric, n: usize) -> u64 {
    let epoch = fabric.set_role(n, Role::InSync);
    let all: Vec<usize> = (1..=n).collect();
    fabric.push(&all).await;
    epoch.0
}

/// Two targets' drives hold the same; otherwise says which block differs, and how.
async fn assert_same(a: &Client, x: usize, y: usize) {
    let (theirs, ours) = (a.digests(x).await, a.digests(y).await);
    for (object, chunk, digest) in theirs.iter().chain(&ours) {
        let entry = (*object, *chunk, *digest);
        if theirs.contains(&entry) && ours.contains(&entry) {
            continue;
        }
        for block in chunk.range().blocks() {
            let (one, other) = (a.read(x, block).await, a.read(y, block).await);
            assert_eq!(one, other, "block {block} on targets {x} and {y}");
        }
        panic!("chunk {chunk:?} differs in its digests only");
    }
}

#[test]
fn a_replica_that_was_away_becomes_equal_and_counts_nothing_that_it_held() {
    Sim::new(1).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        for i in 0..40 {
            a.write_all(&[1, 2], i * 50, a.v(1 + u64::from(i)), i as u8).await;
        }
        // Debris: only the one that leaves has it, and its version is the highest of all.
        assert_eq!(a.write(2, 3, a.v(5000), 0xdd).await, OK);
        assert_eq!(a.write(2, 9000, a.v(5001), 0xdd).await, OK);
        a.epoch.set(evict_last(&fabric, 2).await);
        for i in 0..10 {
            a.write_all(&[1], i * 50, a.v(100 + u64::from(i)), 0x80 + i as u8).await;
        }
        a.write_all(&[1], 15_000, a.v(120), 0x55).await;
        let stint = rejoin(&fabric, 2).await;
        a.epoch.set(stint);
        assert_eq!(a.read(2, 0).await, Err(Status::NotServing), "syncing replicas serve no reads");
        wait_verified(&fabric, 2, stint).await;
        let resync = fabric.status(2).unwrap().resyncs[0].clone();
        assert!(resync.done && resync.chunks_verified == resync.chunks_total.max(resync.chunks_verified));
        assert!(resync.blocks_copied < resync.blocks_held, "equal chunks are not copied: {resync:?}");
        a.epoch.set(promote(&fabric, 2).await);
        assert_eq!(a.digests(1).await, a.digests(2).await);
        assert_eq!(a.read(2, 3).await.unwrap().version, Version::ZERO, "debris is gone");
        assert_eq!(a.read(2, 9000).await.unwrap().version, Version::ZERO);
        assert_eq!(a.read(2, 0).await.unwrap().byte, 0x80);
        assert_eq!(a.read(2, 15_000).await.unwrap().byte, 0x55);
    });
}

#[test]
fn a_write_to_a_syncing_replica_waits_for_its_block_to_be_verified() {
    Sim::new(2).block_on(async {
        let fabric = Fabric::start(3).await;
        let a = Client::new(1, 1);
        a.write_all(&[1, 2, 3], 0, a.v(1), 1).await;
        a.epoch.set(evict_last(&fabric, 3).await);
        a.write_all(&[1, 2], 0, a.v(9), 9).await;
        // Nobody can be asked, so nothing can be verified.
        for n in [1, 2] {
            set_blocked(host(3), host(n), true);
        }
        let stint = rejoin(&fabric, 3).await;
        a.epoch.set(stint);
        let b = a.clone();
        let write = spawn(async move { b.write(3, 0, b.v(5), 5).await });
        sleep(ms(500)).await;
        assert!(!write.is_finished(), "applied before the block was verified");
        for n in [1, 2] {
            set_blocked(host(3), host(n), false);
        }
        let newer = (Status::Ok, Some(Verdict::Superseded(a.v(9))));
        assert_eq!(write.await, Ok(newer), "a newer write was complete before this one began");
    });
}

#[test]
fn nothing_is_copied_before_every_source_refuses_older_epochs() {
    Sim::new(3).block_on(async {
        let fabric = Fabric::start(3).await;
        let a = Client::new(1, 1);
        a.write_all(&[1, 2, 3], 0, a.v(1), 1).await;
        let old_epoch = evict_last(&fabric, 3).await;
        a.epoch.set(old_epoch);
        // Target 2 cannot be told of the syncing epoch.
        set_blocked(host(3), host(2), true);
        fabric.set_role(3, Role::Syncing);
        fabric.push(&[1, 3]).await;
        sleep(ms(1000)).await;
        assert_eq!(fabric.status(3).unwrap().resyncs[0].chunks_verified, 0);
        // A write in the old epoch goes to target 2 only, since target 1 knows better: it must not be missed.
        set_blocked(host(3), host(2), false);
        eventually("the resync goes on", || fabric.status(3).unwrap().resyncs[0].done).await;
        assert_eq!(a.write(2, 1, a.v(3), 3).await.0, Status::StaleEpoch, "the syncing replica has told it");
    });
}

#[test]
fn marks_come_with_the_blocks() {
    for seed in 0..10 {
        Sim::new(seed).block_on(async {
            let fabric = Fabric::start(2).await;
            let (a, b) = (Client::new(1, 1), Client::new(2, 2));
            // Equal on both sides, and different: an unfinished write in either chunk.
            a.write_all(&[1, 2], 0, a.v(1), 1).await;
            a.epoch.set(evict_last(&fabric, 2).await);
            a.write_all(&[1], 200, a.v(2), 2).await;
            // R9: a version that was only seen.
            b.epoch.set(a.epoch.get());
            b.write_all(&[1], 400, b.v(9), 9).await;
            let seen = b.put(1, 400, a.v(4), 4, Purpose::Repair).await;
            assert_eq!(seen.1, Some(Verdict::Superseded(b.v(9))));
            let stint = rejoin(&fabric, 2).await;
            a.epoch.set(stint);
            // While the walk runs, a client dies between its two copies of a write.
            let at = 600 + random_below(100) as u32;
            sleep(std::time::Duration::from_micros(random_below(2000))).await;
            assert_eq!(a.write(1, at, a.v(50), 50).await, OK);
            wait_verified(&fabric, 2, stint).await;
            a.epoch.set(promote(&fabric, 2).await);
            assert!(a.read(2, 0).await.unwrap().open, "equal by digest, but its writer may have died");
            assert!(a.read(2, 200).await.unwrap().open, "copied, but its writer may have died");
            let found = a.read(2, at).await.unwrap();
            assert!(found.version == Version::ZERO || found.open, "an unfinished write without its mark");
            assert_eq!(a.write(2, 400, a.v(4), 4).await, OK, "someone may have seen it");
        });
    }
}

#[test]
fn a_source_that_is_lost_is_replaced_and_a_restart_goes_on() {
    for seed in 0..6 {
        Sim::new(seed).block_on(async {
            let fabric = Fabric::start(3).await;
            let a = Client::new(1, 1);
            a.epoch.set(evict_last(&fabric, 3).await);
            for i in 0..120u32 {
                a.write_all(&[1, 2], i * 128 + i % 7, a.v(1 + u64::from(i)), i as u8).await;
            }
            let stint = rejoin(&fabric, 3).await;
            a.epoch.set(stint);
            sleep(ms(random_below(40))).await;
            fabric.kill_target(1, Crash::Process);
            sleep(ms(random_below(40))).await;
            fabric.kill_target(3, Crash::PowerCut);
            fabric.start_target(3);
            fabric.start_target(1);
            fabric.wait_serving().await;
            wait_verified(&fabric, 3, stint).await;
            a.epoch.set(promote(&fabric, 3).await);
            assert_eq!(a.digests(2).await, a.digests(3).await);
            assert_eq!(a.digests(3).await.len(), 120);
        });
    }
}

#[test]
fn writes_go_on_during_a_resync_and_all_replicas_converge() {
    for seed in 0..12 {
        Sim::new(100 + seed).block_on(async {
            let fabric = Fabric::start(2).await;
            let a = Client::new(1, 1);
            for i in 0..60u32 {
                a.write_all(&[1, 2], i * 100, a.v(1 + u64::from(i)), i as u8).await;
            }
            a.epoch.set(evict_last(&fabric, 2).await);
            for i in 0..30u32 {
                a.write_all(&[1], i * 200 + 1, a.v(200 + u64::from(i)), 0x40 + i as u8).await;
            }
            let stint = rejoin(&fabric, 2).await;
            let writers: Vec<_> = (1..=3u16)
                .map(|slot| {
                    let w = Client::new(u64::from(slot), slot);
                    w.epoch.set(stint);
                    spawn(async move {
                        for i in 0..40u64 {
                            let at = random_below(60) as u32 * 100 + random_below(2) as u32;
                            let version = w.v(1000 + i * 10);
                            let both = [w.clone(), w.clone()];
                            let first = w.write(1, at, version, slot as u8);
                            let second = both[1].write(2, at, version, slot as u8);
                            let done = weft_rt::sync::join_all([
                                Box::pin(first) as std::pin::Pin<Box<dyn Future<Output = _>>>,
                                Box::pin(second),
                            ])
                            .await;
                            assert!(done.iter().all(|d| d.0 == Status::Ok), "{done:?}");
                        }
                    })
                })
                .collect();
            for writer in writers {
                writer.await.unwrap();
            }
            wait_verified(&fabric, 2, stint).await;
            a.epoch.set(promote(&fabric, 2).await);
            assert_same(&a, 1, 2).await;
        });
    }
}

#[test]
fn what_was_fetched_for_a_write_without_its_data_is_filled_also_after_a_restart() {
    let mut left_hollow = 0;
    for seed in 0..12 {
        let is_left = Sim::new(300 + seed).block_on(async move {
            let fabric = Fabric::start(2).await;
            let a = Client::new(1, 1);
            a.epoch.set(evict_last(&fabric, 2).await);
            let range = |i: u32| BlockRange::new(i * 128, 64);
            for i in 0..120u32 {
                let data: Vec<u8> = (0..64).flat_map(|b| block((i + b) as u8 | 1)).collect();
                let crcs: Vec<u32> = data.chunks(BLOCK_SIZE).map(weft_wire::crc32c).collect();
                let head =
                    a.head(1, range(i), a.v(1 + u64::from(i)), Purpose::Client).encode(PROTOCOL, &crcs);
                let written = a.call(1, Kind::Write, head, vec![data.into()]).await;
                assert_eq!(written.expect("it serves").status, Status::Ok);
            }
            let stint = rejoin(&fabric, 2).await;
            a.epoch.set(stint);
            // All of these are complete; the next writes say so.
            a.watermark.set(a.v(500));
            // From the end, away from the walk, which begins at the front.
            for i in (60..120u32).rev().take(20) {
                a.write_all(&[1, 2], i * 128 + 3, a.v(500 + u64::from(i)), 0xee).await;
            }
            let status = fabric.status(2).expect("it runs");
            let copied: u64 = status.resyncs.iter().map(|r| r.blocks_copied).sum();
            // The walk gives way to clients; the twenty chunks came without their 64 blocks.
            let is_left = status.resyncs.iter().all(|r| !r.done) && copied < 10 * 64;
            if seed % 2 == 0 {
                fabric.kill_target(2, if seed % 4 == 0 { Crash::Process } else { Crash::PowerCut });
                fabric.start_target(2);
                fabric.wait_serving().await;
            }
            wait_verified(&fabric, 2, stint).await;
            a.epoch.set(promote(&fabric, 2).await);
            assert_same(&a, 1, 2).await;
            for i in 0..120u32 {
                let found = a.read(2, i * 128 + 7).await.expect("it serves");
                assert_eq!((found.content, found.byte), (Content::Data, (i + 7) as u8 | 1), "chunk {i}");
            }
            is_left
        });
        left_hollow += u32::from(is_left);
    }
    assert!(left_hollow > 6, "the walk is done before the writes: they met nothing hollow");
}

#[test]
fn versions_go_ahead_of_the_data_while_a_client_is_there() {
    Sim::new(17).block_on(async {
        const CHUNKS: u32 = 120;
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        a.epoch.set(evict_last(&fabric, 2).await);
        for i in 0..CHUNKS {
            a.write_all(&[1], i * 128, a.v(1 + u64::from(i)), i as u8 | 1).await;
        }
        let stint = rejoin(&fabric, 2).await;
        a.epoch.set(stint);
        a.watermark.set(a.v(500));
        let copied =
            || fabric.status(2).expect("it runs").resyncs.iter().map(|r| r.blocks_copied).sum::<u64>();
        // Always at the same place, which the client is seen by.
        let mut counter = 500;
        while copied() < 5 {
            counter += 1;
            a.write_all(&[1, 2], 0, a.v(counter), 0xee).await;
            sleep(ms(2)).await;
        }
        assert!(copied() < u64::from(CHUNKS) / 4, "the walk has just begun");
        // Nothing can be fetched now, and no write needs it.
        set_blocked(host(2), host(1), true);
        for i in 1..CHUNKS {
            counter += 1;
            let write = a.write(2, i * 128, a.v(counter), 0xee);
            match race(write, sleep(ms(500))).await {
                Either::Left(done) => assert_eq!(done, OK, "chunk {i}"),
                Either::Right(()) => panic!("a write to chunk {i} waits"),
            }
        }
    });
}

#[test]
fn copies_of_an_older_stint_are_dropped() {
    for seed in 0..8 {
        Sim::new(seed).block_on(async {
            let fabric = Fabric::start(2).await;
            let a = Client::new(1, 1);
            for i in 0..50u32 {
                a.write_all(&[1, 2], i * 128, a.v(1 + u64::from(i)), 1).await;
            }
            a.epoch.set(evict_last(&fabric, 2).await);
            for i in 0..50u32 {
                a.write_all(&[1], i * 128, a.v(100 + u64::from(i)), 2).await;
            }
            rejoin(&fabric, 2).await;
            sleep(std::time::Duration::from_micros(random_below(3000))).await;
            // Out again before it was done, and back without having heard of it.
            a.epoch.set(evict_last(&fabric, 2).await);
            for i in 0..50u32 {
                a.write_all(&[1], i * 128, a.v(300 + u64::from(i)), 3).await;
            }
            let stint = rejoin(&fabric, 2).await;
            a.epoch.set(stint);
            wait_verified(&fabric, 2, stint).await;
            a.epoch.set(promote(&fabric, 2).await);
            for i in 0..50u32 {
                assert_eq!(a.read(2, i * 128).await.unwrap().byte, 3);
            }
            assert_eq!(a.digests(1).await, a.digests(2).await);
        });
    }
}

#[test]
fn a_sweep_finishes_or_buries_what_a_session_left() {
    for seed in 0..5 {
        Sim::new(seed).block_on(async {
            let fabric = Fabric::start(3).await;
            let (dead, live) = (Client::new(1, 1), Client::new(2, 2));
            dead.write_all(&[1, 2, 3], 0, dead.v(1), 1).await;
            assert_eq!(dead.write(1, 1, dead.v(2), 2).await, OK, "on one replica only");
            assert_eq!(dead.write(2, 2, dead.v(3), 3).await, OK);
            live.write_all(&[1, 2, 3], 2, live.v(9), 9).await;
            let head =
                dead.head(3, BlockRange::new(300, 1000), dead.v(4), Purpose::Client).encode(PROTOCOL, &[]);
            let zeroes = dead.call(3, Kind::WriteZeroes, head, vec![]).await.unwrap();
            assert_eq!(zeroes.status, Status::Ok);
            let end = TargetRequest::EndSessions { sessions: vec![dead.session] };
            let sweep = fabric.sweep_of(&[(dead.session, SessionSlot(1))]);
            for n in [1, 2, 3] {
                assert_eq!(fabric.command(n, &end).await, Some(TargetAnswer::Done));
            }
            for n in [1, 2, 3] {
                assert_eq!(fabric.command(n, &sweep).await, Some(TargetAnswer::Done));
            }
            for n in [1, 2, 3] {
                let found = live.read(n, 0).await.unwrap();
                assert_eq!((found.byte, found.open), (1, false), "target {n}");
                let found = live.read(n, 1).await.unwrap();
                assert_eq!(
                    (found.version, found.byte, found.open),
                    (dead.v(2), 2, false),
                    "target {n}: finished"
                );
                assert_eq!(live.read(n, 2).await.unwrap().byte, 9, "target {n}: buried");
                let found = live.read(n, 777).await.unwrap();
                assert_eq!(
                    (found.version, found.content),
                    (dead.v(4), Content::Zero),
                    "target {n}: finished"
                );
            }
            assert_eq!(live.digests(1).await, live.digests(2).await);
            assert_eq!(live.digests(1).await, live.digests(3).await);
        });
    }
}

/// What only an evicted source and the replica that compared itself with it hold was swept without either.
#[test]
fn chunks_that_were_equal_to_a_source_are_compared_again_once_it_is_evicted() {
    for seed in 20..26 {
        Sim::new(seed).block_on(async {
            let fabric = Fabric::start(3).await;
            let (dead, live) = (Client::new(1, 1), Client::new(2, 2));
            let chunks = 16_384 / limits::CHUNK_BLOCKS;
            for chunk in 0..chunks {
                let version = live.v(u64::from(chunk) + 1);
                live.write_all(&[1, 2, 3], chunk * limits::CHUNK_BLOCKS, version, 1).await;
            }
            let at = (chunks - 1) * limits::CHUNK_BLOCKS;
            for n in [1, 3] {
                assert_eq!(dead.write(n, at, dead.v(600), 6).await, OK);
            }
            evict_last(&fabric, 3).await;
            // With a client there, one chunk after another waits for its turn.
            let is_there = Rc::new(Cell::new(true));
            let client = {
                let (fabric, is_there) = (fabric.clone(), is_there.clone());
                spawn(async move {
                    let client = Client::new(3, 3);
                    for n in 700.. {
                        client.epoch.set(fabric.entry().epoch.0);
                        client.write(3, 1, client.v(n), 9).await;
                        sleep(Duration::from_micros(200)).await;
                        if !is_there.get() {
                            return;
                        }
                    }
                })
            };
            let stint = rejoin(&fabric, 3).await;
            sleep(ms(500)).await;
            let is_verified =
                |stint| fabric.manager.verified.borrow().contains(&(GROUP, drive(3), Epoch(stint)));
            assert!(!is_verified(stint), "all is compared, and not all taken yet");
            fabric.set_role(1, Role::Out);
            fabric.push(&[2, 3]).await;
            let end = TargetRequest::EndSessions { sessions: vec![dead.session] };
            for n in [2, 3] {
                assert_eq!(fabric.command(n, &end).await, Some(TargetAnswer::Done));
            }
            for n in [2, 3] {
                let sweep = fabric.sweep_of(&[(dead.session, SessionSlot(1))]);
                assert_eq!(fabric.command(n, &sweep).await, Some(TargetAnswer::Done));
            }
            assert!(!is_verified(stint), "the sweep came before the last chunk");
            is_there.set(false);
            client.await.unwrap();
            wait_verified(&fabric, 3, stint).await;
            live.epoch.set(fabric.set_role(3, Role::InSync).0);
            fabric.push(&[2, 3]).await;
            let (two, three) = (live.read(2, at).await.unwrap(), live.read(3, at).await.unwrap());
            assert_eq!((two.version, two.byte), (three.version, three.byte), "a swept write came back");
        });
    }
}

#[test]
fn a_sweep_waits_for_a_member_that_is_away_and_goes_on_without_it_once_it_is_out() {
    Sim::new(9).block_on(async {
        let fabric = Fabric::start(2).await;
        let dead = Client::new(1, 1);
        assert_eq!(dead.write(1, 1, dead.v(2), 2).await, OK);
        fabric.kill_target(2, Crash::Process);
        let end = TargetRequest::EndSessions { sessions: vec![dead.session] };
        assert_eq!(fabric.command(1, &end).await, Some(TargetAnswer::Done));
        let swept = {
            let fabric: Rc<Fabric> = fabric.clone();
            spawn(async move {
                let sweep = fabric.sweep_of(&[(SessionId(1), SessionSlot(1))]);
                fabric.command(1, &sweep).await
            })
        };
        sleep(ms(1000)).await;
        assert!(!swept.is_finished(), "one member of the write set has not answered");
        fabric.set_role(2, Role::Out);
        fabric.push(&[1]).await;
        assert_eq!(swept.await, Ok(Some(TargetAnswer::Done)));
        let live = Client::new(2, 2);
        live.epoch.set(2);
        assert!(!live.read(1, 1).await.unwrap().open);
    });
}

#[test]
fn a_volume_that_is_dropped_leaves_nothing() {
    Sim::new(10).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        for i in 0..20u32 {
            a.write_all(&[1, 2], i * 128, a.v(1 + u64::from(i)), 1).await;
        }
        for n in [1, 2] {
            let dropped = fabric.command(n, &TargetRequest::DropVolume { volume: VOLUME }).await;
            assert_eq!(dropped, Some(TargetAnswer::Done));
            assert!(a.digests(n).await.is_empty());
        }
    });
}

/// Lets every place rot that holds blocks full of a byte.
fn rot(fabric: &Fabric, n: usize, byte: u8) {
    let disk = &fabric.disks[n - 1];
    let places: Vec<u64> = (0..disk.size_bytes() / 4096)
        .filter(|i| disk.peek(i * 4096, 4096).iter().all(|b| *b == byte))
        .collect();
    assert!(!places.is_empty());
    for place in places {
        disk.flip(place * 4096 + 17, 3);
    }
}

#[test]
fn what_one_source_cannot_read_is_fetched_from_another() {
    for seed in 0..6 {
        Sim::new(seed).block_on(async {
            let fabric = Fabric::start(3).await;
            let a = Client::new(1, 1);
            a.epoch.set(evict_last(&fabric, 3).await);
            for (at, byte) in [(0, 0xe1), (1, 0xe2), (500, 0xe3)] {
                a.write_all(&[1, 2], at, a.v(1 + u64::from(at)), byte).await;
            }
            rot(&fabric, 1, 0xe1);
            rot(&fabric, 2, 0xe2);
            let stint = rejoin(&fabric, 3).await;
            wait_verified(&fabric, 3, stint).await;
            a.epoch.set(promote(&fabric, 3).await);
            for (at, byte) in [(0, 0xe1), (1, 0xe2), (500, 0xe3)] {
                let found = a.read(3, at).await.unwrap();
                assert_eq!((found.version, found.byte), (a.v(1 + u64::from(at)), byte), "block {at}");
            }
        });
    }
}

#[test]
fn damage_at_the_source_does_not_stop_a_resync() {
    Sim::new(11).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        a.epoch.set(evict_last(&fabric, 2).await);
        a.write_all(&[1], 0, a.v(1), 0xe1).await;
        a.write_all(&[1], 500, a.v(2), 0xe2).await;
        rot(&fabric, 1, 0xe1);
        let stint = rejoin(&fabric, 2).await;
        wait_verified(&fabric, 2, stint).await;
        a.epoch.set(promote(&fabric, 2).await);
        let found = a.read(2, 0).await.unwrap();
        assert_eq!((found.version, found.content), (a.v(1), Content::Damaged));
        assert_eq!(a.read(2, 500).await.unwrap().byte, 0xe2);
        // Putting the same version heals it.
        assert_eq!(a.put(2, 0, a.v(1), 0xe1, Purpose::Repair).await, OK);
        assert_eq!(a.read(2, 0).await.unwrap().byte, 0xe1);
    });
}

/// Dropping a large group takes as long as it takes to read its part of the map; the drive may be back
/// before it is over.
#[test]
fn a_group_that_is_being_dropped_holds_no_map_up_and_is_kept_when_its_drive_is_back() {
    Sim::new(40).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        // Every other block, so that little of the map fits a page.
        for i in 0..120 * 64 {
            a.write_all(&[1, 2], i * 2, a.v(1 + u64::from(i)), i as u8).await;
        }
        // So that nothing of the map is in memory.
        fabric.stop_target(2).await;
        fabric.start_target(2);
        fabric.wait_serving().await;
        let slot = fabric.entry().slots[1];
        fabric.change(|map| {
            let group = map.groups.get_mut(&GROUP).unwrap();
            group.epoch = group.epoch.next();
            group.slots.truncate(1);
        });
        fabric.disks[1].set_faults(|f| f.latency = (ms(150), ms(150)));
        fabric.push(&[1, 2]).await;
        sleep(ms(500)).await;
        // Twice: a map that does not name the drive either, and one that does.
        fabric.change(|map| {
            let group = map.groups.get_mut(&GROUP).unwrap();
            group.epoch = group.epoch.next();
        });
        fabric.push(&[1, 2]).await;
        fabric.change(|map| {
            let group = map.groups.get_mut(&GROUP).unwrap();
            group.epoch = group.epoch.next();
            group.slots.push(Slot { role: Role::Syncing, since: group.epoch, ..slot });
        });
        let stint = fabric.entry().epoch;
        fabric.push(&[1, 2]).await;
        assert!(fabric.is_serving(2), "its lease did not run out meanwhile");
        fabric.disks[1].set_faults(|f| f.latency = (ms(0), ms(1)));
        a.epoch.set(stint.0);
        wait_verified(&fabric, 2, stint.0).await;
        a.epoch.set(promote(&fabric, 2).await);
        assert_eq!(a.digests(1).await, a.digests(2).await);
        assert_eq!(a.digests(2).await.len(), 120);
    });
}
