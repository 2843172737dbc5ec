//! The store through its face, on simulated disks without power cuts: versions, reads, marks, groups, full
//! drives, damage.

use crate::model;

use model::*;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sim::{DiskFaults, Sim, SimDisk};
use weft_rt::{sleep, spawn, timeout};
use weft_store::*;
use weft_types::limits::DRIVE_SILENCE_SECONDS_MAX;
use weft_types::*;

const GROUP: GroupId = GroupId(1);
const OBJECT: ObjectId = ObjectId::of_volume(VolumeId(7), 3);

#[test]
fn what_was_written_is_read_also_after_a_reopen() {
    Sim::new(1).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = new_store(&disk).await;
        let data = fill(3, 200);
        let range = BlockRange::new(100, 200);
        let verdicts = store.write(client(OBJECT, range, 5, data)).await.unwrap();
        assert_eq!(verdicts, [(range, Verdict::Applied)]);
        let again = store.write(client(OBJECT, range, 5, fill(3, 200))).await.unwrap();
        assert_eq!(again, [(range, Verdict::Applied)], "asked again");
        let older = store.write(client(OBJECT, BlockRange::new(99, 2), 4, fill(9, 2))).await.unwrap();
        let newest = version(5);
        let (a, b) = (BlockRange::one(99), BlockRange::one(100));
        assert_eq!(older, [(a, Verdict::Applied), (b, Verdict::Superseded { newest })]);
        let mut store = store;
        for round in 0..3 {
            if round > 0 {
                store = reopen(&disk, store).await;
            }
            let found = store.read(GROUP, OBJECT, BlockRange::new(98, 202)).await.unwrap();
            let shape: Vec<_> = found.iter().map(|x| (x.range, x.version, seed_of(x))).collect();
            assert_eq!(shape[..2], [(BlockRange::one(98), Version::ZERO, None), (a, version(4), Some(9))]);
            assert!(shape[2..].iter().all(|x| x.1 == newest && x.2 == Some(3)));
            assert_eq!(found.last().unwrap().range.end(), 300);
            assert!(found[1].open, "no watermark has passed it");
        }
    });
}

#[test]
fn zeroes_are_versions_too() {
    Sim::new(2).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = new_store(&disk).await;
        let before = store.usage();
        store.write(client(OBJECT, BlockRange::new(0, 256), 5, fill(3, 256))).await.unwrap();
        let all = BlockRange::new(0, limits::OBJECT_BLOCKS_MAX);
        assert_eq!(store.write(zero(OBJECT, all, 6)).await.unwrap(), [(all, Verdict::Applied)]);
        let late = store.write(client(OBJECT, BlockRange::one(9), 5, fill(3, 1))).await.unwrap();
        assert_eq!(late, [(BlockRange::one(9), Verdict::Applied)], "taken before");
        let older = store.write(client(OBJECT, BlockRange::one(9000), 5, fill(3, 1))).await.unwrap();
        assert_eq!(older, [(BlockRange::one(9000), Verdict::Superseded { newest: version(6) })]);
        let found = store.read(GROUP, OBJECT, BlockRange::new(0, 256)).await.unwrap();
        assert!(found.iter().all(|x| x.version == version(6) && matches!(x.data, ExtentData::Zero)));
        store.checkpoint().await.unwrap();
        let after = store.usage();
        assert!(after.used_blocks < before.used_blocks + 20, "the space is back: {before:?} {after:?}");
        clean(&store, 0).await;
    });
}

#[test]
fn a_full_drive_refuses_changes_nothing_and_heals_by_discards() {
    Sim::new(3).block_on(async {
        let disk = SimDisk::new("d", 4 << 20);
        let mut store = new_store(&disk).await;
        let object = |i: u64| ObjectId::of_volume(VolumeId(1), i);
        let range = BlockRange::new(5, 7);
        let mut counts = Vec::new();
        for round in 0..4u64 {
            let mut written = 0;
            loop {
                match store.write(client(object(written), range, 10 + round * 10, fill(written, 7))).await {
                    Ok(_) => written += 1,
                    Err(StoreError::NoSpace { .. }) => break,
                    Err(e) => panic!("{e}"),
                }
            }
            counts.push(written);
            let found = store.versions(GROUP, object(written), range).await.unwrap();
            assert!(found[0].version < version(10 + round * 10), "a refused write leaves nothing");
            store = reopen(&disk, store).await;
            for i in 0..written {
                let found = store.read(GROUP, object(i), range).await.unwrap();
                assert_eq!(seed_of(&found[0]), Some(i));
            }
            clean(&store, 0).await;
            for i in 0..written {
                store.write(zero(object(i), BlockRange::new(0, 128), 15 + round * 10)).await.unwrap();
            }
        }
        assert!(counts[0] > 80 && counts.iter().all(|c| *c + 10 > counts[0]), "{counts:?}");
        clean(&store, 0).await;
    });
}

#[test]
fn a_drive_without_a_free_block_can_be_overwritten_as_far_as_the_reserve_goes() {
    Sim::new(13).block_on(async {
        let disk = SimDisk::new("d", 4 << 20);
        let store = new_store(&disk).await;
        let mut first = 0;
        while store.write(client(OBJECT, BlockRange::new(first, 5), 10, fill(1, 5))).await.is_ok() {
            first += 5;
        }
        let full = store.write(client(OBJECT, BlockRange::new(0, 200), 20, fill(2, 200))).await;
        assert!(matches!(full, Err(StoreError::NoSpace { .. })), "{full:?}");
        store.write(zero(OBJECT, BlockRange::new(0, 5), 20)).await.unwrap();
        for round in 0..20 {
            let block = BlockRange::one(10 + round);
            let again = store.write(client(OBJECT, block, 30, fill(2, 1))).await.unwrap();
            assert_eq!(again, [(block, Verdict::Applied)], "what was replaced returns in time");
        }
        clean(&store, 0).await;
    });
}

/// What a read may be reading is not given back before it ends, whatever was replaced since; nor do checkpoints
/// give back meanwhile what they take themselves.
#[test]
fn a_slow_read_on_a_full_drive_holds_up_changes_and_the_drive_does_not_fail() {
    for seed in 0..8 {
        Sim::new(seed).block_on(async move {
            let disk = SimDisk::new("d", 8 << 20);
            let store = new_store(&disk).await;
            let mut blocks = 0;
            let put = |at, version, from| client(OBJECT, BlockRange::new(at, 5), version, fill(from, 5));
            while store.write(put(blocks, 10, 1)).await.is_ok() {
                blocks += 5;
            }
            let usual = DiskFaults::default().latency;
            disk.set_faults(|f| f.latency = (Duration::from_secs(3), Duration::from_secs(3)));
            let (reader, first) = (store.clone(), BlockRange::one(0));
            let read = spawn(async move { reader.read(GROUP, OBJECT, first).await });
            sleep(Duration::from_millis(1)).await;
            disk.set_faults(|f| f.latency = usual);
            store.write(zero(OBJECT, BlockRange::new(0, blocks), 20)).await.unwrap();
            let changes = (0..200).map(|i| {
                let (store, block) = (store.clone(), BlockRange::one(i % blocks));
                spawn(async move {
                    let mut refused = 0;
                    loop {
                        let change = match i % 2 {
                            0 => client(OBJECT, block, 30 + u64::from(i), fill(2, 1)),
                            _ => zero(OBJECT, block, 30 + u64::from(i)),
                        };
                        match store.write(change).await {
                            Ok(_) => return refused,
                            Err(StoreError::NoSpace { .. }) if i % 2 == 0 => refused += 1,
                            Err(error) => panic!("seed {seed}, change {i}: {error}"),
                        }
                        assert!(refused < 10, "seed {seed}: the space is not given back");
                    }
                })
            });
            for change in changes.collect::<Vec<_>>() {
                change.await.unwrap();
            }
            assert_eq!(seed_of(&read.await.unwrap().unwrap()[0]), Some(1), "seed {seed}");
            assert_eq!(store.failure(), None, "seed {seed}");
            clean(&store, 0).await;
        });
    }
}

#[test]
fn a_flipped_bit_is_damage_and_a_put_of_the_same_version_heals_it() {
    Sim::new(4).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = new_store(&disk).await;
        let range = BlockRange::new(0, 64);
        store.write(client(OBJECT, range, 5, fill(3, 64))).await.unwrap();
        store.checkpoint().await.unwrap();
        let at = find_block(&disk, &pattern(3, 17));
        disk.flip(at + 99, 1);
        for _ in 0..2 {
            let found = store.read(GROUP, OBJECT, range).await.unwrap();
            let bad: Vec<_> = found.iter().filter(|x| matches!(x.data, ExtentData::Damaged)).collect();
            assert_eq!((bad.len(), bad[0].range, bad[0].version), (1, BlockRange::one(17), version(5)));
            let good: u32 = found.iter().filter(|x| seed_of(x) == Some(3)).map(|x| x.range.count).sum();
            assert_eq!(good, 63);
        }
        let store = reopen(&disk, store).await;
        let found = store.versions(GROUP, OBJECT, BlockRange::one(17)).await.unwrap();
        assert!(matches!(found[0].data, ExtentData::Damaged), "remembered");
        let digest = store.digests(GROUP, None, 10).await.unwrap();
        let mut repair = client(OBJECT, BlockRange::new(16, 2), 5, fill_at(3, 16, 2));
        repair.kind = WriteKind::Repair;
        assert_eq!(store.write(repair).await.unwrap(), [(BlockRange::new(16, 2), Verdict::Applied)]);
        let found = store.read(GROUP, OBJECT, range).await.unwrap();
        assert!(found.iter().all(|x| seed_of(x) == Some(3)));
        assert_ne!(store.digests(GROUP, None, 10).await.unwrap(), digest);
        clean(&store, 0).await;
        // A drive that cannot read is damage of blocks too, not a failure of the store.
        let at = find_block(&disk, &pattern(3, 30));
        let bad = at..at + 4096;
        disk.set_faults(|f| f.unreadable.push(bad));
        let found = store.read(GROUP, OBJECT, range).await.unwrap();
        assert_eq!(found.iter().filter(|x| matches!(x.data, ExtentData::Damaged)).count(), 1);
        assert!(store.failure().is_none());
    });
}

/// A long read finds the old data damaged when it was healed already, elsewhere on the drive.
#[test]
fn a_late_look_at_old_data_does_not_undo_a_heal() {
    Sim::new(26).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = Rc::new(new_store(&disk).await);
        let (range, block) = (BlockRange::new(0, 64), BlockRange::one(40));
        store.write(client(OBJECT, range, 5, fill(3, 64))).await.unwrap();
        let at = find_block(&disk, &pattern(3, 40));
        let bad = at..at + 4096;
        let millisecond = Duration::from_millis(1);
        disk.set_faults(|f| (f.unreadable, f.latency) = (vec![bad], (millisecond, millisecond)));
        let reader = store.clone();
        let late = spawn(async move { reader.read(GROUP, OBJECT, range).await.unwrap() });
        let found = store.read(GROUP, OBJECT, block).await.unwrap();
        assert!(matches!(found[0].data, ExtentData::Damaged));
        let mut repair = client(OBJECT, block, 5, fill_at(3, 40, 1));
        repair.kind = WriteKind::Repair;
        store.write(repair).await.unwrap();
        let found = late.await.unwrap();
        assert_eq!(found.iter().filter(|x| matches!(x.data, ExtentData::Damaged)).count(), 1, "it came late");
        let found = store.read(GROUP, OBJECT, range).await.unwrap();
        assert!(found.iter().all(|x| seed_of(x) == Some(3)), "and nothing is damaged any more");
    });
}

#[test]
fn a_machine_that_is_short_of_memory_is_no_damage_of_blocks() {
    Sim::new(27).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = new_store(&disk).await;
        let range = BlockRange::new(0, 8);
        store.write(client(OBJECT, range, 5, fill(3, 8))).await.unwrap();
        disk.set_faults(|f| f.reads_without_memory = 15);
        let found = store.read(GROUP, OBJECT, range).await.unwrap();
        assert!(found.iter().all(|x| seed_of(x) == Some(3)));
        // Nor of a page of the map, with which the whole drive would be given up.
        let store = reopen(&disk, store).await;
        disk.set_faults(|f| f.reads_without_memory = 15);
        let found = store.read(GROUP, OBJECT, range).await.unwrap();
        assert!(found.iter().all(|x| seed_of(x) == Some(3)));
    });
}

#[test]
fn a_drive_that_is_gone_is_no_damage_of_blocks() {
    Sim::new(25).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = new_store(&disk).await;
        let range = BlockRange::new(0, 64);
        store.write(client(OBJECT, range, 5, fill(3, 64))).await.unwrap();
        disk.pull();
        let found = store.read(GROUP, OBJECT, range).await;
        assert!(matches!(found, Err(StoreError::Gone { .. })), "{found:?}");
        assert_eq!(store.usage().damaged_found, 0);
        disk.put_back();
        drop(store);
        weft_rt::sleep(std::time::Duration::from_millis(50)).await;
        let (store, _) = Store::open(disk.open().unwrap(), OpenOptions::default()).await.unwrap();
        let found = store.read(GROUP, OBJECT, range).await.unwrap();
        assert!(found.iter().all(|x| seed_of(x) == Some(3)));
    });
}

#[test]
fn rot_of_what_was_acknowledged_is_told_from_a_torn_tail() {
    Sim::new(14).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = new_store(&disk).await;
        store.write(client(OBJECT, BlockRange::one(0), 4, fill(1, 1))).await.unwrap();
        store.checkpoint().await.unwrap();
        for counter in 5..9 {
            store.write(client(OBJECT, BlockRange::one(0), counter, fill(counter, 1))).await.unwrap();
        }
        // Idle for a while: a marker says that the last batch is durable.
        weft_rt::sleep(std::time::Duration::from_millis(50)).await;
        drop(store);
        weft_rt::sleep(std::time::Duration::from_millis(50)).await;
        let seen = inspect(&disk.open().unwrap()).await.unwrap();
        assert_eq!((seen.log_batches, seen.log_records), (5, 4), "four writes and a marker");
        let data = find_block(&disk, &pattern(8, 0));
        disk.flip(data + 1000, 0);
        let copy = disk.copy("copy");
        let (store, report) = Store::open(copy.open().unwrap(), OpenOptions::default()).await.unwrap();
        assert_eq!((report.blocks_dropped, report.records_replayed), (0, 4));
        let found = store.read(GROUP, OBJECT, BlockRange::one(0)).await.unwrap();
        assert_eq!(found[0].version, version(8), "never a step back to an older version");
        assert!(matches!(found[0].data, ExtentData::Damaged));
        let superblock = seen.superblock.unwrap();
        let at = seen.label.region.log_first * 4096 + superblock.log_position;
        for batch in 0..4 {
            let rotten = disk.copy("rotten");
            rotten.flip(at + batch * 4096 + 80, 5);
            match Store::open(rotten.open().unwrap(), OpenOptions::default()).await {
                Err(StoreError::LogDamaged { sequence, .. }) => {
                    assert_eq!(sequence, superblock.batch + 1 + batch)
                }
                other => panic!("{:?}", other.map(|o| o.1)),
            }
            let report = check(&rotten.open().unwrap(), false).await.unwrap();
            assert_eq!(report.findings[0].severity, Severity::Fatal);
        }
        // Without the marker the last batch is in doubt: its rotten data counts as never arrived.
        disk.flip(at + 4 * 4096 + 80, 5);
        let (store, report) = Store::open(disk.open().unwrap(), OpenOptions::default()).await.unwrap();
        assert_eq!((report.blocks_dropped, report.records_replayed), (1, 3));
        let found = store.read(GROUP, OBJECT, BlockRange::one(0)).await.unwrap();
        assert_eq!((found[0].version, seed_of(&found[0])), (version(7), Some(7)));
    });
}

#[test]
fn damaged_metadata_is_found_and_never_followed() {
    Sim::new(15).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = new_store(&disk).await;
        store.write(client(OBJECT, BlockRange::one(0), 4, fill(1, 1))).await.unwrap();
        store.close().await.unwrap();
        drop(store);
        let seen = inspect(&disk.open().unwrap()).await.unwrap();
        let superblock = seen.superblock.unwrap();
        let region = seen.label.region;
        let table = (region.table_first + u64::from(superblock.table_copy) * region.table_blocks) * 4096;
        let places = [
            superblock.root.unwrap().page.place.0 * 4096 + 50,
            superblock.state.unwrap().place.0 * 4096 + 50,
            table,
        ];
        for at in places {
            let bad = disk.copy("bad");
            bad.flip(at, 1);
            let report = check(&bad.open().unwrap(), true).await.unwrap();
            assert!(report.findings.iter().any(|f| f.severity == Severity::Fatal), "{report:?}");
            if let Ok((store, _)) = Store::open(bad.open().unwrap(), OpenOptions::default()).await {
                let found = store.read(GROUP, OBJECT, BlockRange::one(0)).await;
                assert!(matches!(found, Err(StoreError::MetadataDamaged { .. })), "{found:?}");
            }
        }
        // One damaged superblock: the older checkpoint and the log behind it hold everything.
        let bad = disk.copy("bad");
        bad.flip((1 + superblock.checkpoint % 2) * 4096 + 33, 1);
        let (store, report) = Store::open(bad.open().unwrap(), OpenOptions::default()).await.unwrap();
        assert!(report.superblock_fallback);
        let found = store.read(GROUP, OBJECT, BlockRange::one(0)).await.unwrap();
        assert_eq!(seed_of(&found[0]), Some(1));
    });
}

#[test]
fn a_failed_write_latches_the_store() {
    Sim::new(5).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = new_store(&disk).await;
        store.write(client(OBJECT, BlockRange::one(1), 5, fill(1, 1))).await.unwrap();
        disk.set_faults(|f| f.write_error = Some(std::io::ErrorKind::Other));
        for _ in 0..2 {
            let refused = store.write(client(OBJECT, BlockRange::one(2), 6, fill(1, 1))).await;
            assert!(matches!(refused, Err(StoreError::Failed { .. })), "{refused:?}");
        }
        disk.set_faults(|f| f.write_error = None);
        let refused = store.write(client(OBJECT, BlockRange::one(3), 7, fill(1, 1))).await;
        assert!(matches!(refused, Err(StoreError::Failed { .. })), "it stays failed");
        assert!(matches!(
            store.read(GROUP, OBJECT, BlockRange::one(1)).await,
            Err(StoreError::Failed { .. })
        ));
        assert!(store.close().await.is_err());
        drop(store);
        let store = open(&disk).await;
        let found = store.read(GROUP, OBJECT, BlockRange::one(1)).await.unwrap();
        assert_eq!(seed_of(&found[0]), Some(1));
    });
}

#[test]
fn a_refused_repair_leaves_an_entry_and_watermarks_remove_them() {
    Sim::new(6).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = new_store(&disk).await;
        let block = BlockRange::one(8);
        let (new, old) = (Version::new(9, SessionSlot(2)), Version::new(5, SessionSlot(1)));
        let put = |v, kind| {
            let mut w = client(OBJECT, block, 0, fill(1, 1));
            (w.version, w.kind) = (v, kind);
            w
        };
        store.write(put(new, WriteKind::Client)).await.unwrap();
        let superseded = [(block, Verdict::Superseded { newest: new })];
        assert_eq!(store.write(put(old, WriteKind::Client)).await.unwrap(), superseded);
        assert!(store.open_entries_of(GROUP, SessionSlot(1)).is_empty(), "a client's write leaves none");
        assert_eq!(store.write(put(old, WriteKind::Repair)).await.unwrap(), superseded);
        assert_eq!(store.write(put(old, WriteKind::Client)).await.unwrap(), [(block, Verdict::Applied)]);
        store.settle(GROUP, OBJECT, block, new);
        store.write(client(OBJECT, BlockRange::one(0), 20, fill(1, 1))).await.unwrap();
        let store = reopen(&disk, store).await;
        assert_eq!(store.write(put(old, WriteKind::Client)).await.unwrap(), [(block, Verdict::Applied)]);
        assert!(!store.read(GROUP, OBJECT, block).await.unwrap()[0].open, "settled");
        assert!(store.open_entries_of(GROUP, SessionSlot(2))[0].settled);
        store.advance(GROUP, SessionSlot(1), old);
        assert_eq!(store.write(put(old, WriteKind::Repair)).await.unwrap(), superseded);
        let left = store.open_entries_of(GROUP, SessionSlot(1));
        assert!(left.iter().all(|e| e.version == version(20)), "{left:?}");
        store
            .write(Write {
                version: Version::new(30, SessionSlot(2)),
                ..client(OBJECT, block, 0, fill(1, 1))
            })
            .await
            .unwrap();
        assert!(!store.forget_session(GROUP, SessionSlot(2)).await.unwrap(), "an entry is not settled");
        assert_eq!(store.open_entries_of(GROUP, SessionSlot(2)).len(), 2);
        store.settle(GROUP, OBJECT, block, Version::new(30, SessionSlot(2)));
        assert!(store.forget_session(GROUP, SessionSlot(2)).await.unwrap());
        assert!(store.open_entries_of(GROUP, SessionSlot(2)).is_empty());
    });
}

#[test]
fn groups_sessions_and_generations_are_durable() {
    Sim::new(7).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = new_store(&disk).await;
        store.set_group(entry(2, 3, Role::Syncing, 3)).await.unwrap();
        let older = store.set_group(entry(2, 2, Role::InSync, 1)).await;
        assert!(matches!(older, Err(StoreError::StaleEpoch { .. })));
        store.close_sessions(Some(SessionId(4)), &[SessionId(9)]).await.unwrap();
        store.set_generation(VolumeId(1), Generation(3)).await.unwrap();
        store.set_generation(VolumeId(1), Generation(2)).await.unwrap();
        let mut store = store;
        for _ in 0..2 {
            store = reopen(&disk, store).await;
            assert_eq!(store.groups(), [GROUP, GroupId(2)]);
            assert_eq!(store.group(GroupId(2)).unwrap().epoch, Epoch(3));
            assert_eq!(store.verify_state(GroupId(2)).unwrap().stint, Some(Epoch(3)));
            assert!(!store.chunk_is_verified(GroupId(2), OBJECT, ChunkIndex(0)));
            assert!(store.chunk_is_verified(GROUP, OBJECT, ChunkIndex(0)));
            assert!(store.session_is_over(SessionId(3)) && store.session_is_over(SessionId(9)));
            assert!(!store.session_is_over(SessionId(4)));
            assert_eq!(store.generation(VolumeId(1)), Generation(3));
        }
        let unknown = store.read(GroupId(5), OBJECT, BlockRange::one(0)).await;
        assert!(matches!(unknown, Err(StoreError::UnknownGroup { .. })));
    });
}

#[test]
fn a_copy_makes_a_chunk_what_the_source_has() {
    Sim::new(8).block_on(async {
        let (one, two) = (SimDisk::new("a", 8 << 20), SimDisk::new("b", 8 << 20));
        let (source, sink) = (new_store(&one).await, new_store(&two).await);
        source.write(client(OBJECT, BlockRange::new(0, 40), 5, fill(1, 40))).await.unwrap();
        source.write(zero(OBJECT, BlockRange::new(10, 5), 6)).await.unwrap();
        source.write(client(OBJECT, BlockRange::new(20, 5), 7, fill(2, 5))).await.unwrap();
        sink.write(client(OBJECT, BlockRange::new(0, 20), 5, fill(1, 20))).await.unwrap();
        sink.write(client(OBJECT, BlockRange::new(18, 60), 90, fill(4, 60))).await.unwrap();
        sink.write(client(ObjectId::of_volume(VolumeId(7), 9), BlockRange::one(0), 5, fill(4, 1)))
            .await
            .unwrap();
        let stint = Epoch(4);
        sink.set_group(entry(1, 4, Role::Syncing, 4)).await.unwrap();
        let theirs = source.digests(GROUP, None, 100).await.unwrap();
        assert_ne!(sink.digests(GROUP, None, 100).await.unwrap(), theirs);
        let copy = copy_entries(&source, OBJECT, ChunkIndex(0)).await;
        let stale = sink.verify_chunk(GROUP, OBJECT, ChunkIndex(0), Epoch(3), copy.clone(), false).await;
        assert!(matches!(stale, Err(StoreError::StaleStint { .. })));
        let before = sink.usage().data_bytes_written;
        sink.verify_chunk(GROUP, OBJECT, ChunkIndex(0), stint, copy.clone(), false).await.unwrap();
        let copied = (sink.usage().data_bytes_written - before) / 4096;
        assert_eq!(copied, 22, "ten of data were there already, two had to be replaced");
        let other = ObjectId::of_volume(VolumeId(7), 9);
        sink.verify_chunk(GROUP, other, ChunkIndex(0), stint, Vec::new(), false).await.unwrap();
        assert_eq!(sink.digests(GROUP, None, 100).await.unwrap(), theirs);
        sink.write(client(OBJECT, BlockRange::new(3, 2), 95, fill(8, 2))).await.unwrap();
        sink.verify_chunk(GROUP, OBJECT, ChunkIndex(0), stint, copy, false).await.unwrap();
        let found = sink.read(GROUP, OBJECT, BlockRange::new(3, 2)).await.unwrap();
        assert_eq!((found[0].version, seed_of(&found[0])), (version(95), Some(8)), "newer, and verified");
        let sink = reopen(&two, sink).await;
        assert!(sink.chunk_is_verified(GROUP, OBJECT, ChunkIndex(0)));
        assert!(!sink.chunk_is_verified(GROUP, OBJECT, ChunkIndex(1)));
        sink.set_cursor(GROUP, stint, Cursor::End).await.unwrap();
        assert!(sink.chunk_is_verified(GROUP, OBJECT, ChunkIndex(1)));
        let marks = source.marks(GROUP, (OBJECT, ChunkIndex(0)), None);
        assert_eq!(marks.open.len(), 3);
        let before = Epoch(stint.0 - 1);
        let refused = sink.merge_marks(GROUP, stint, before, marks.clone()).await;
        assert!(matches!(refused, Err(StoreError::StaleEpoch { .. })), "a source of before: {refused:?}");
        sink.merge_marks(GROUP, stint, stint, marks).await.unwrap();
        assert_eq!(sink.open_entries_of(GROUP, SessionSlot(1)).len(), 4);
        clean(&sink, 0).await;
    });
}

#[test]
fn a_verified_chunk_is_filled_in_parts() {
    Sim::new(8).block_on(async {
        let (one, two) = (SimDisk::new("a", 8 << 20), SimDisk::new("b", 8 << 20));
        let (source, sink) = (new_store(&one).await, new_store(&two).await);
        source.write(client(OBJECT, BlockRange::new(0, 40), 5, fill(1, 40))).await.unwrap();
        source.write(zero(OBJECT, BlockRange::new(10, 5), 6)).await.unwrap();
        let (chunk, stint) = (ChunkIndex(0), Epoch(4));
        sink.set_group(entry(1, 4, Role::Syncing, 4)).await.unwrap();
        let all = copy_entries(&source, OBJECT, chunk).await;
        let part = |first, count| {
            let part = BlockRange::new(first, count);
            let cut = all.iter().filter_map(|x| {
                let (from, to) = (x.range.first.max(part.first), x.range.end().min(part.end()));
                let range = (from < to).then(|| BlockRange::new(from, to - from))?;
                let (at, count) = ((from - x.range.first) as usize, (to - from) as usize);
                let data = match &x.data {
                    CopyData::Data { buf, crcs } => CopyData::Data {
                        buf: buf.slice(at * 4096..(at + count) * 4096),
                        crcs: crcs[at..at + count].to_vec(),
                    },
                    other => other.clone(),
                };
                Some(CopyEntry { range, version: x.version, data })
            });
            (part, cut.collect::<Vec<_>>())
        };
        let (first, data) = part(0, 12);
        let early = sink.fill_part(GROUP, OBJECT, first, stint, data.clone()).await;
        assert!(matches!(early, Err(StoreError::Invalid { .. })), "nothing vouches for the rest: {early:?}");
        // Only the versions at first.
        let mut hollow = all.clone();
        for entry in hollow.iter_mut().filter(|x| matches!(x.data, CopyData::Data { .. })) {
            entry.data = CopyData::Damaged;
        }
        sink.verify_chunk(GROUP, OBJECT, chunk, stint, hollow, false).await.unwrap();
        sink.write(client(OBJECT, BlockRange::new(3, 2), 95, fill(8, 2))).await.unwrap();
        let stale = sink.fill_part(GROUP, OBJECT, first, Epoch(3), data.clone()).await;
        assert!(matches!(stale, Err(StoreError::StaleStint { .. })), "{stale:?}");
        let beyond = sink.fill_part(GROUP, OBJECT, BlockRange::new(0, 11), stint, data.clone()).await;
        assert!(matches!(beyond, Err(StoreError::Invalid { .. })), "{beyond:?}");
        let two_chunks = sink.fill_part(GROUP, OBJECT, BlockRange::new(120, 16), stint, vec![]).await;
        assert!(matches!(two_chunks, Err(StoreError::Invalid { .. })), "{two_chunks:?}");
        sink.fill_part(GROUP, OBJECT, first, stint, data).await.unwrap();
        let sink = reopen(&two, sink).await;
        let found = sink.read(GROUP, OBJECT, BlockRange::new(0, 40)).await.unwrap();
        let found: Vec<_> =
            found.iter().map(|x| (x.range.first, x.range.count, x.version, seed_of(x))).collect();
        let expected = [
            (0, 3, version(5), Some(1)),
            (3, 2, version(95), Some(8)),
            (5, 5, version(5), Some(1)),
            (10, 5, version(6), None),
            (15, 25, version(5), None),
        ];
        assert_eq!(found, expected, "what is outside of the part is as it was");
        for (range, data) in [part(12, 20), part(32, 96)] {
            sink.fill_part(GROUP, OBJECT, range, stint, data).await.unwrap();
        }
        let found = sink.read(GROUP, OBJECT, BlockRange::new(15, 25)).await.unwrap();
        assert!(found.iter().all(|x| x.version == version(5) && seed_of(x) == Some(1)));
        source.write(client(OBJECT, BlockRange::new(3, 2), 95, fill(8, 2))).await.unwrap();
        let theirs = source.digests(GROUP, None, 100).await.unwrap();
        assert_eq!(sink.digests(GROUP, None, 100).await.unwrap(), theirs);
        sink.set_group(entry(1, 6, Role::Syncing, 6)).await.unwrap();
        let (range, data) = part(0, 12);
        let late = sink.fill_part(GROUP, OBJECT, range, stint, data).await;
        assert!(
            matches!(late, Err(StoreError::StaleStint { .. })),
            "nothing is verified yet, but first: {late:?}"
        );
        clean(&sink, 0).await;
    });
}

#[test]
fn dropping_a_volume_or_a_group_returns_its_space() {
    Sim::new(9).block_on(async {
        let disk = SimDisk::new("d", 16 << 20);
        let store = new_store(&disk).await;
        store.set_group(entry(2, 1, Role::InSync, 1)).await.unwrap();
        for volume in 1..4 {
            for index in 0..90 {
                let mut write =
                    client(ObjectId::of_volume(VolumeId(volume), index), BlockRange::one(3), 5, fill(1, 1));
                write.group = GroupId(1 + index % 2);
                store.write(write).await.unwrap();
            }
        }
        store.checkpoint().await.unwrap();
        store.drop_objects(VolumeId(2)).await.unwrap();
        let store = reopen(&disk, store).await;
        for group in [GROUP, GroupId(2)] {
            let left = store.digests(group, None, 1000).await.unwrap();
            assert_eq!(left.len(), 90);
            assert!(left.iter().all(|(object, _, _)| object.owner() != VolumeId(2).into()));
        }
        assert_eq!(store.chunks_of(GROUP, VolumeId(3)).await.unwrap().len(), 45);
        store.drop_group(GroupId(2)).await.unwrap();
        assert_eq!(store.groups(), [GROUP]);
        store.drop_objects(VolumeId(1)).await.unwrap();
        store.drop_objects(VolumeId(3)).await.unwrap();
        let store = reopen(&disk, store).await;
        assert!(store.usage().used_blocks <= 2, "{:?}", store.usage());
        clean(&store, 0).await;
    });
}

#[test]
fn a_store_stays_in_its_ram_budget() {
    Sim::new(10).block_on(async {
        let disk = SimDisk::new("d", 64 << 20);
        format(&disk, FormatOptions { allow_tiny: true, ..options() }).await.unwrap();
        let budget = 512 << 10;
        let open = OpenOptions { ram_budget_bytes: Some(budget), ..Default::default() };
        let (store, _) = Store::open(disk.open().unwrap(), open).await.unwrap();
        store.set_group(entry(1, 1, Role::InSync, 1)).await.unwrap();
        for i in 0..4000u64 {
            let object = ObjectId::of_volume(VolumeId(1), i.wrapping_mul(7919) % 4001);
            store.write(client(object, BlockRange::one((i % 128) as u32), 5, fill(i, 1))).await.unwrap();
            let usage = store.usage();
            assert!(usage.ram_bytes <= budget + budget / 4, "{usage:?}");
        }
        assert!(store.usage().checkpoints > 3);
        for i in (0..4000u64).rev().step_by(3) {
            let object = ObjectId::of_volume(VolumeId(1), i.wrapping_mul(7919) % 4001);
            let found = store.read(GROUP, object, BlockRange::one((i % 128) as u32)).await.unwrap();
            assert_eq!(seed_of(&found[0]), Some(i));
            assert!(store.usage().ram_bytes <= budget + budget / 4, "{:?}", store.usage());
        }
        clean(&store, 0).await;
    });
}

#[test]
fn format_and_open_refuse_what_they_must() {
    Sim::new(11).block_on(async {
        let disk = SimDisk::new("d", 64 << 20);
        disk.poke(0, b"XFSB");
        let refused = format(&disk, options()).await.unwrap_err();
        assert!(refused.to_string().contains("XFS"), "{refused}");
        format(&disk, FormatOptions { force: true, ..options() }).await.unwrap();
        let refused = format(&disk, options()).await.unwrap_err();
        assert!(matches!(refused, StoreError::FormattedAlready { .. }));
        disk.flip(40, 2);
        let (store, report) = Store::open(disk.open().unwrap(), OpenOptions::default()).await.unwrap();
        assert!(report.label_repaired && report.was_clean);
        store.put_map_copy(3, b"three").await.unwrap();
        store.put_map_copy(4, &[9; 5000]).await.unwrap();
        let big = store.put_map_copy(5, &vec![1; 2 << 20]).await;
        assert!(matches!(big, Err(StoreError::TooLarge { .. })));
        store.close().await.unwrap();
        assert!(store.read(GROUP, OBJECT, BlockRange::one(0)).await.is_err());
        drop(store);
        let other = OpenOptions { fabric: Some(FabricId(99)), ..Default::default() };
        assert!(Store::open(disk.open().unwrap(), other).await.is_err());
        disk.poke(0, &[1; 12288]);
        disk.poke((64 << 20) - 4096, &[1; 4096]);
        let drive = disk.open().unwrap();
        assert_eq!(Store::read_map_copy(&drive).await.unwrap(), Some((4, vec![9; 5000])));
        drop(drive);
        assert!(Store::open(disk.open().unwrap(), OpenOptions::default()).await.is_err());
        let small = SimDisk::new("s", 1 << 20);
        assert!(matches!(format(&small, options()).await, Err(StoreError::TooSmall { .. })));
        let short = SimDisk::new("t", 32 << 20);
        let whole = SimDisk::new("u", 64 << 20);
        format(&whole, options()).await.unwrap();
        short.poke(0, &whole.peek(0, 4096));
        let refused = Store::open(short.open().unwrap(), OpenOptions::default()).await.err().unwrap();
        assert!(matches!(refused, StoreError::Truncated { .. }), "{refused}");
    });
}

#[test]
fn a_burst_of_writers_waits_for_the_log_and_never_overruns_it() {
    Sim::new(16).block_on(async {
        let disk = SimDisk::new("d", 64 << 20);
        format(&disk, FormatOptions { log_bytes: Some(128 << 10), ..options() }).await.unwrap();
        let mut store = open(&disk).await;
        store.set_group(entry(1, 1, Role::InSync, 1)).await.unwrap();
        for version in 5..7 {
            // In the second round all are admitted together and then wait for leaves that are not in RAM.
            let writes = (0..6000u64).map(|i| {
                let range = BlockRange::one((i % 200) as u32);
                let write = client(ObjectId::of_volume(VolumeId(1), i / 200), range, version, fill(i, 1));
                let store = store.clone();
                weft_rt::spawn(async move { store.write(write).await.unwrap() })
            });
            for write in writes.collect::<Vec<_>>() {
                write.await.unwrap();
            }
            assert!(store.usage().checkpoints > 1);
            store = reopen(&disk, store).await;
        }
        clean(&store, 0).await;
    });
}

#[test]
fn many_writers_share_batches() {
    Sim::new(12).block_on(async {
        let disk = SimDisk::new("d", 64 << 20);
        format(&disk, options()).await.unwrap();
        let store = open(&disk).await;
        store.set_group(entry(1, 1, Role::InSync, 1)).await.unwrap();
        let before = store.usage();
        let tasks: Vec<_> = (0..32u64)
            .map(|task| {
                let store: Rc<Store> = store.clone();
                weft_rt::spawn(async move {
                    for i in 0..40u64 {
                        let block = BlockRange::one((weft_rt::random_below(4000)) as u32);
                        let mut write = client(OBJECT, block, 100 + i, fill(task, 1));
                        write.version = Version::new(100 + i, SessionSlot(1 + task as u16));
                        store.write(write).await.unwrap();
                        store.advance(
                            GROUP,
                            SessionSlot(1 + task as u16),
                            Version::new(100 + i, SessionSlot(1 + task as u16)),
                        );
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        store.checkpoint().await.unwrap();
        let after = store.usage();
        let (data, log, meta) = (
            after.data_bytes_written - before.data_bytes_written,
            after.log_bytes_written - before.log_bytes_written,
            after.metadata_bytes_written - before.metadata_bytes_written,
        );
        let amplification = (data + log + meta) as f64 / data as f64;
        assert!(amplification < 1.5, "{amplification}: data {data} log {log} metadata {meta}");
        clean(&store, 0).await;
    });
}

#[test]
fn discards_on_a_full_drive_are_never_refused() {
    for seed in 0..4 {
        Sim::new(seed).block_on(async move {
            let disk = SimDisk::new("d", 16 << 20);
            let store = new_store(&disk).await;
            let object = |i: u64| ObjectId::of_volume(VolumeId(1), i);
            let all = BlockRange::new(0, limits::OBJECT_BLOCKS_MAX);
            let put = |n: u64| {
                let at = BlockRange::new((n % 40) as u32 * 128, 1);
                Write { kind: WriteKind::Repair, ..client(object(n / 40), at, 1 + n, fill(n, 1)) }
            };
            let mut n = 0;
            let refused = loop {
                match store.write(put(n)).await {
                    Ok(_) => n += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(refused, StoreError::NoSpace { .. }), "{refused}");
            // Many at once take the room that a checkpoint makes from each other.
            let discards = (0..30).map(|i| {
                let store = store.clone();
                weft_rt::spawn(async move { store.write(zero(object(i), all, 1_000_000 + i)).await })
            });
            for (i, discard) in discards.collect::<Vec<_>>().into_iter().enumerate() {
                let verdicts = discard.await.unwrap();
                assert_eq!(verdicts.unwrap(), [(all, Verdict::Applied)], "seed {seed}, discard {i}");
            }
        });
    }
}

#[test]
fn an_open_set_has_a_bound_and_a_watermark_gives_room_again() {
    Sim::new(11).block_on(async {
        let disk = SimDisk::new("d", 64 << 20);
        let store = new_store(&disk).await;
        let limit = 16 * limits::WATERMARK_LAG_MAX;
        let at = |i: u64| (ObjectId::of_volume(VolumeId(7), i / 128), BlockRange::one((i % 128) as u32));
        for first in (0..limit).step_by(512) {
            let writes = (first..first + 512).map(|i| store.write(zero(at(i).0, at(i).1, 1 + i)));
            for written in weft_rt::sync::join_all(writes).await {
                written.unwrap();
            }
        }
        let (object, block) = at(limit);
        let next = || zero(object, block, 1 + limit);
        assert!(matches!(store.write(next()).await, Err(StoreError::Crowded { .. })));
        let again = zero(at(0).0, at(0).1, 1);
        assert_eq!(store.write(again).await.unwrap(), [(at(0).1, Verdict::Applied)], "it was taken before");
        let other = Write { version: Version::new(9, SessionSlot(2)), ..next() };
        assert_eq!(store.write(other).await.unwrap(), [(block, Verdict::Applied)], "another session's");
        let repair = Write { kind: WriteKind::Repair, ..next() };
        assert_eq!(store.write(repair).await.unwrap(), [(block, Verdict::Applied)], "a repair goes further");
        store.settle(GROUP, at(5).0, at(5).1, version(6));
        assert!(
            store.open_entries_of(GROUP, SessionSlot(1))[5].settled,
            "a sweep can settle what it is given"
        );
        store.advance(GROUP, SessionSlot(1), version(10));
        assert_eq!(store.write(next()).await.unwrap(), [(block, Verdict::Applied)]);
        clean(&store, 0).await;
    });
}

#[test]
fn a_full_drive_takes_discards_until_it_cannot_remember_them_and_never_fails() {
    Sim::new(12).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = new_store(&disk).await;
        let object = |i: u64| ObjectId::of_volume(VolumeId(1), i);
        let mut n = 0;
        while store
            .write(Write { kind: WriteKind::Repair, ..client(object(0), BlockRange::one(n), 1, fill(1, 1)) })
            .await
            .is_ok()
        {
            n += 1;
        }
        // Every other block, so that no two are one run; nothing is ever complete, so the open set only grows.
        let mut refused = 0;
        for round in 0..8 {
            for i in 0..1500 {
                let block = BlockRange::one((i * 2) % limits::OBJECT_BLOCKS_MAX);
                match store.write(zero(object(1), block, 10 + round * 1500 + u64::from(i))).await {
                    Ok(_) => {}
                    Err(StoreError::Crowded { .. }) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert_eq!(store.failure(), None);
        assert!(refused > 0, "the open set of 12000 entries has no room on this drive");
        store.advance(GROUP, SessionSlot(1), version(1_000_000));
        store.write(zero(object(1), BlockRange::one(0), 1_000_001)).await.unwrap();
        clean(&store, 0).await;
    });
}

#[test]
fn a_copy_under_way_leaves_nothing_of_what_is_dropped() {
    for seed in 0..20 {
        Sim::new(seed).block_on(async move {
            let disk = SimDisk::new("d", 8 << 20);
            let store = new_store(&disk).await;
            for group in [1, 2] {
                store.set_group(entry(group, 2, Role::Syncing, 2)).await.unwrap();
            }
            let copies: Vec<_> = (0..40u16)
                .map(|i| {
                    let (store, group) = (store.clone(), GroupId(1 + u64::from(i % 2)));
                    weft_rt::spawn(async move {
                        weft_rt::sleep(std::time::Duration::from_micros(u64::from(i) * 20)).await;
                        let chunk = ChunkIndex(i);
                        let range = BlockRange::one(chunk.range().first);
                        let Payload::Data { data: buf, crcs } = fill(1, 1) else { unreachable!() };
                        let copied =
                            CopyEntry { range, version: version(1), data: CopyData::Data { buf, crcs } };
                        store.verify_chunk(group, OBJECT, chunk, Epoch(2), vec![copied], false).await
                    })
                })
                .collect();
            weft_rt::sleep(std::time::Duration::from_micros(weft_rt::random_below(600))).await;
            store.drop_group(GroupId(2)).await.unwrap();
            store.drop_objects(OBJECT.owner().volume()).await.unwrap();
            for copy in copies {
                let _ = copy.await.unwrap();
            }
            let left = store.chunks_of(GROUP, OBJECT.owner().volume()).await.unwrap();
            assert!(left.is_empty(), "seed {seed}: {left:?}");
            let left = store.chunks_of(GroupId(2), OBJECT.owner().volume()).await.unwrap();
            assert!(left.is_empty(), "seed {seed}: {left:?}");
            clean(&store, 0).await;
        });
    }
}

/// What a look at the drive finds of the object.
async fn look(disk: &SimDisk, range: BlockRange, verify: bool) -> Vec<Located> {
    let wanted = [Wanted { group: GROUP, object: OBJECT, range }];
    locate(&disk.copy("copy").open().unwrap(), &wanted, verify).await.unwrap()
}

#[test]
fn blocks_are_located_on_a_drive_that_is_in_use() {
    Sim::new(21).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = new_store(&disk).await;
        let all = BlockRange::new(90, 300);
        for stage in 0..3 {
            store
                .write(client(OBJECT, BlockRange::new(100, 200), 5 + 10 * stage, fill(3, 200)))
                .await
                .unwrap();
            if stage == 1 {
                store.checkpoint().await.unwrap();
            }
            store.write(client(OBJECT, BlockRange::new(120, 2), 6 + 10 * stage, fill(9, 2))).await.unwrap();
            store.write(zero(OBJECT, BlockRange::one(130), 7 + 10 * stage)).await.unwrap();
            let found = look(&disk, all, true).await;
            assert_eq!(
                found.iter().map(|l| l.range.count).sum::<u32>(),
                all.count,
                "without gaps: {found:?}"
            );
            let of = |block: u32| *found.iter().find(|l| l.range.contains(block)).unwrap();
            assert_eq!((of(90).held, of(300).held), (Held::Nothing, Held::Nothing));
            assert_eq!((of(130).held, of(130).version), (Held::Zero, version(7 + 10 * stage)));
            assert_eq!(
                (of(121).version, of(122).version),
                (version(6 + 10 * stage), version(5 + 10 * stage))
            );
            for block in [100, 120, 129, 131, 299] {
                let Held::Data { place, is_intact: Some(true) } = of(block).held else { panic!("{found:?}") };
                let place = place.plus(u64::from(block - of(block).range.first));
                let bytes = disk.peek(place.offset(), BLOCK_SIZE);
                let read = store.read(GROUP, OBJECT, BlockRange::one(block)).await.unwrap();
                let ExtentData::Data { buf, .. } = &read[0].data else { panic!("{read:?}") };
                assert!(bytes[..] == buf[..], "block {block} is where it was said to be");
            }
        }
        // The store notices what the look has found, and the look what the store has noticed.
        let Held::Data { place, .. } = look(&disk, BlockRange::one(200), false).await[0].held else {
            panic!()
        };
        disk.flip(place.offset() + 77, 3);
        let found = look(&disk, BlockRange::new(199, 3), true).await;
        let is_intact = |l: &Located| matches!(l.held, Held::Data { is_intact: Some(true), .. });
        let intact: Vec<_> = found.iter().map(|l| (l.range, is_intact(l))).collect();
        assert_eq!(
            intact,
            [(BlockRange::one(199), true), (BlockRange::one(200), false), (BlockRange::one(201), true)]
        );
        let read = store.read(GROUP, OBJECT, BlockRange::one(200)).await.unwrap();
        assert!(matches!(read[0].data, ExtentData::Damaged));
        store.checkpoint().await.unwrap();
        let found = look(&disk, BlockRange::one(200), true).await;
        assert_eq!(found[0].held, Held::Damaged { place: Some(place) });
    });
}

/// Longer than any drive may be silent.
const LONG: Duration = Duration::from_secs(DRIVE_SILENCE_SECONDS_MAX + 3);

#[test]
fn a_drive_that_hangs_fails_and_what_waits_for_it_ends() {
    for is_idle in [false, true] {
        Sim::new(31).block_on(async move {
            let disk = SimDisk::new("d", 8 << 20);
            let store = new_store(&disk).await;
            let (object, range) = (ObjectId::of_volume(VolumeId(1), 0), BlockRange::new(0, 1));
            store.write(client(object, range, 4, fill(1, 1))).await.unwrap();
            disk.set_faults(|f| f.stuck = true);
            let writer = store.clone();
            let write = (!is_idle)
                .then(|| spawn(async move { writer.write(client(object, range, 5, fill(2, 1))).await }));
            sleep(Duration::from_secs(DRIVE_SILENCE_SECONDS_MAX - 1)).await;
            assert!(store.failure().is_none());
            sleep(LONG - Duration::from_secs(DRIVE_SILENCE_SECONDS_MAX - 1)).await;
            let cause = store.failure().expect("it has failed");
            assert!(cause.contains("hangs"), "{cause}");
            if let Some(write) = write {
                assert!(write.await.unwrap().is_err());
            }
            disk.set_faults(|f| f.stuck = false);
            sleep(Duration::from_secs(1)).await;
            let after = store.write(client(object, range, 6, fill(3, 1))).await;
            assert!(
                matches!(after, Err(StoreError::Failed { .. })),
                "a late answer changes nothing: {after:?}"
            );
            store.close().await.unwrap_err();
        });
    }
}

#[test]
fn a_drive_that_is_slow_and_completes_something_does_not_fail() {
    Sim::new(32).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = new_store(&disk).await;
        let (object, range) = (ObjectId::of_volume(VolumeId(1), 0), BlockRange::new(0, 1));
        let slow = Duration::from_secs(DRIVE_SILENCE_SECONDS_MAX - 2);
        disk.set_faults(|f| f.latency = (slow, slow));
        for i in 0..4 {
            store.write(client(object, range, 4 + i, fill(1, 1))).await.unwrap();
        }
        sleep(LONG * 3).await;
        assert!(store.failure().is_none());
        disk.set_faults(|f| f.latency = (Duration::ZERO, Duration::from_millis(1)));
        store.close().await.unwrap();
    });
}

#[test]
fn a_drive_that_hangs_while_it_is_opened_or_closed_holds_nobody_up() {
    Sim::new(33).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = new_store(&disk).await;
        let (object, range) = (ObjectId::of_volume(VolumeId(1), 0), BlockRange::new(0, 1));
        store.write(client(object, range, 4, fill(1, 1))).await.unwrap();
        disk.set_faults(|f| f.stuck = true);
        assert!(timeout(LONG, store.close()).await.expect("it ends").is_err());
        drop(store);
        sleep(Duration::from_millis(1)).await;
        let opened = timeout(LONG, Store::open(disk.open().unwrap(), OpenOptions::default())).await;
        assert!(matches!(opened.expect("it ends"), Err(StoreError::Hangs { .. })));
        disk.set_faults(|f| f.stuck = false);
        let store = open(&disk).await;
        assert_eq!(store.read(GroupId(1), object, range).await.unwrap()[0].version, version(4));
    });
}
