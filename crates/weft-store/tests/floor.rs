//! The floor of a group (R7): below it tombstones count as never written, whether they are in the map or not.

use crate::model;

use model::*;
use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sim::{Crash, Sim, SimDisk, kill, spawn_process};
use weft_rt::sync::{Notify, race};
use weft_rt::{random_below, sleep};
use weft_store::*;
use weft_types::*;

const GROUP: GroupId = GroupId(1);
const OBJECT: ObjectId = ObjectId::of_volume(VolumeId(7), 3);
const STINT: Epoch = Epoch(4);

/// A floor is of no session.
fn floor(counter: u64) -> Version {
    Version::new(counter, SessionSlot(0))
}

fn repair(write: Write) -> Write {
    Write { kind: WriteKind::Repair, ..write }
}

async fn shape(store: &Rc<Store>, range: BlockRange) -> Vec<(BlockRange, Version, Option<u64>)> {
    let found = store.read(GROUP, OBJECT, range).await.unwrap();
    found.iter().map(|x| (x.range, x.version, seed_of(x))).collect()
}

/// Runs a test with a new store on a drive of so many MiB.
fn with_store(seed: u64, mib: u64, test: impl AsyncFnOnce(SimDisk, Rc<Store>) + 'static) {
    Sim::new(seed).block_on(async move {
        let disk = SimDisk::new("d", mib << 20);
        let store = new_store(&disk).await;
        test(disk, store).await;
    });
}

/// Waits until the store has gone through the map.
async fn rest() {
    sleep(Duration::from_secs(5)).await;
}

#[test]
fn below_the_floor_a_tombstone_is_as_good_as_never_written() {
    with_store(1, 8, async |disk, mut store| {
        let at = BlockRange::new;
        store.write(client(OBJECT, at(0, 40), 5, fill(1, 40))).await.unwrap();
        store.write(zero(OBJECT, at(10, 5), 6)).await.unwrap();
        store.write(zero(OBJECT, at(20, 5), 9)).await.unwrap();
        assert_eq!(store.newest_tombstone(GROUP), Some(version(9)));
        store.set_floor(GROUP, floor(8)).await.unwrap();
        store.set_floor(GROUP, floor(7)).await.unwrap();
        for round in 0..3 {
            assert_eq!(store.floor(GROUP), floor(8), "it never falls");
            let expected = [
                (at(0, 10), version(5), Some(1)),
                (at(10, 5), Version::ZERO, None),
                (at(15, 5), version(5), Some(1)),
                (at(20, 5), version(9), None),
                (at(25, 15), version(5), Some(1)),
                (at(40, 4), Version::ZERO, None),
            ];
            assert_eq!(shape(&store, at(0, 44)).await, expected, "round {round}");
            let over = |count| vec![(at(10, count), Verdict::Superseded { newest: floor(8) })];
            // Older than the tombstone, newer than it, and the tombstone once more.
            for (counter, count) in [(3, 5), (7, 5), (6, 5)] {
                let write = client(OBJECT, at(10, count), counter, fill(2, count));
                assert_eq!(store.write(write.clone()).await.unwrap(), over(count), "round {round}");
                assert_eq!(store.write(repair(write)).await.unwrap(), over(count), "round {round}");
            }
            let never = store.write(zero(OBJECT, at(900, 2), 7)).await.unwrap();
            assert_eq!(never, [(at(900, 2), Verdict::Superseded { newest: floor(8) })]);
            let on_data = store.write(client(OBJECT, at(0, 2), 7, fill(2, 2))).await.unwrap();
            assert_eq!(on_data, [(at(0, 2), Verdict::Superseded { newest: floor(8) })]);
            let held = store.write(client(OBJECT, at(0, 2), 5, fill(1, 2))).await.unwrap();
            assert_eq!(held, [(at(0, 2), Verdict::Applied)], "what is held is held");
            assert!(store.open_entries_of(GROUP, SessionSlot(1)).iter().all(|x| x.range.first < 40));
            if round == 1 {
                rest().await;
            }
            store = reopen(&disk, store).await;
        }
        let above = store.write(client(OBJECT, at(10, 5), 8, fill(3, 5))).await.unwrap();
        assert_eq!(above, [(at(10, 5), Verdict::Applied)]);
        clean(&store, 0).await;
    });
}

#[test]
fn tombstones_leave_the_map_and_take_no_room_in_the_end() {
    with_store(2, 16, async |disk, store| {
        store.checkpoint().await.unwrap();
        let empty = store.usage().used_blocks;
        for index in 0..400 {
            let object = ObjectId::of_volume(VolumeId(7), index);
            store.write(client(object, BlockRange::new(0, 4), 5, fill(1, 4))).await.unwrap();
            store.write(zero(object, BlockRange::new(0, 128), 6)).await.unwrap();
        }
        store.advance(GROUP, SessionSlot(1), version(6));
        store.checkpoint().await.unwrap();
        assert!(store.usage().used_blocks > empty + 4, "tombstones take leaves");
        let store = reopen(&disk, store).await;
        assert!(store.newest_tombstone(GROUP) >= Some(version(6)), "an upper bound after a restart");
        store.set_floor(GROUP, floor(7)).await.unwrap();
        assert_eq!(store.newest_tombstone(GROUP), None);
        assert!(store.digests(GROUP, None, 10).await.unwrap().is_empty(), "at once, for all who ask");
        assert_eq!(store.holding(GROUP).await.unwrap(), Holding::default());
        rest().await;
        store.checkpoint().await.unwrap();
        store.checkpoint().await.unwrap();
        assert_eq!(store.usage().tombstones_forgotten, 400 * 128);
        assert_eq!(store.usage().used_blocks, empty);
        let read = store.usage().ram_bytes;
        let store = reopen(&disk, store).await;
        rest().await;
        assert_eq!(store.usage().tombstones_forgotten, 0, "a restart knows that all are gone");
        assert!(store.usage().ram_bytes <= read);
        clean(&store, 0).await;
    });
}

#[test]
fn a_checkpoint_leaves_out_what_is_forgotten_also_of_leaves_that_change_meanwhile() {
    with_store(3, 8, async |_, store| {
        let at = BlockRange::new;
        for round in 0..20u64 {
            let counter = 10 * round + 10;
            store.write(zero(OBJECT, at(0, 128), counter)).await.unwrap();
            store.write(client(OBJECT, at(5, 3), counter + 1, fill(round, 3))).await.unwrap();
            let checkpoint = weft_rt::spawn({
                let store = store.clone();
                async move { store.checkpoint().await.unwrap() }
            });
            store.set_floor(GROUP, floor(counter + 5)).await.unwrap();
            store.write(client(OBJECT, at(60, 1), counter + 6, fill(round, 1))).await.unwrap();
            checkpoint.await.unwrap();
            sleep(Duration::from_millis(random_below(40))).await;
            let expected = [
                (at(0, 5), Version::ZERO, None),
                (at(5, 3), version(counter + 1), Some(round)),
                (at(8, 52), Version::ZERO, None),
                (at(60, 1), version(counter + 6), Some(round)),
                (at(61, 67), Version::ZERO, None),
            ];
            assert_eq!(shape(&store, at(0, 128)).await, expected);
        }
        clean(&store, 0).await;
    });
}

/// What a member says, that has forgotten, and one that has not yet, is the same; so are their digests.
#[test]
fn nobody_can_tell_who_has_forgotten() {
    for seed in 0..30 {
        Sim::new(seed).block_on(async move {
            let (one, two) = (SimDisk::new("a", 8 << 20), SimDisk::new("b", 8 << 20));
            let stores = [new_store(&one).await, new_store(&two).await];
            let mut counter = 1;
            for _ in 0..12 {
                for _ in 0..10 {
                    counter += 1;
                    let range = BlockRange::new(random_below(250) as u32, 1 + random_below(30) as u32);
                    for store in &stores {
                        let payload = match random_below(2) {
                            _ if counter % 2 == 0 => Payload::Zero,
                            _ => fill(counter, range.count),
                        };
                        store.write(client(OBJECT, range, counter, payload)).await.unwrap();
                    }
                }
                let below = floor(counter - random_below(8));
                stores[0].set_floor(GROUP, below).await.unwrap();
                if random_below(2) == 0 {
                    rest().await;
                    stores[0].checkpoint().await.unwrap();
                }
                // The other one learns of it later, and has all of its tombstones.
                stores[1].set_floor(GROUP, below).await.unwrap();
                let digests = stores[0].digests(GROUP, None, 100).await.unwrap();
                assert_eq!(digests, stores[1].digests(GROUP, None, 100).await.unwrap(), "seed {seed}");
                let all = BlockRange::new(0, 256);
                assert_eq!(shape(&stores[0], all).await, shape(&stores[1], all).await);
                for _ in 0..8 {
                    let range = BlockRange::new(random_below(250) as u32, 1 + random_below(30) as u32);
                    let older = 1 + random_below(counter);
                    let write = client(OBJECT, range, older, fill(9, range.count));
                    let write = if random_below(2) == 0 { repair(write) } else { write };
                    // What is open is finished by now, as far as it is below the floor.
                    let told = Version::new(older.min(below.counter() - 1), SessionSlot(1));
                    stores.iter().for_each(|store| store.advance(GROUP, SessionSlot(1), told));
                    let said = stores[0].write(write.clone()).await.unwrap();
                    assert_eq!(said, stores[1].write(write).await.unwrap(), "seed {seed}");
                }
                counter += 1;
            }
            clean(&stores[0], 0).await;
        });
    }
}

/// The source has forgotten what it discarded; the replica that comes back has the data of before.
#[test]
fn a_copy_of_what_the_source_has_forgotten_deletes_what_was_there() {
    Sim::new(5).block_on(async {
        let (one, two) = (SimDisk::new("a", 8 << 20), SimDisk::new("b", 8 << 20));
        let (source, sink) = (new_store(&one).await, new_store(&two).await);
        let chunk = ChunkIndex(0);
        for store in [&source, &sink] {
            store.write(client(OBJECT, BlockRange::new(0, 40), 5, fill(1, 40))).await.unwrap();
        }
        source.write(zero(OBJECT, chunk.range(), 6)).await.unwrap();
        source.set_floor(GROUP, floor(7)).await.unwrap();
        rest().await;
        source.checkpoint().await.unwrap();
        assert!(source.digests(GROUP, None, 10).await.unwrap().is_empty());
        sink.set_group(entry(1, 4, Role::Syncing, 4)).await.unwrap();
        sink.set_floor(GROUP, floor(7)).await.unwrap();
        assert_eq!(sink.digests(GROUP, None, 10).await.unwrap().len(), 1, "so the walk comes to it");
        let absent = CopyEntry { range: chunk.range(), version: Version::ZERO, data: CopyData::Absent };
        sink.verify_chunk(GROUP, OBJECT, chunk, STINT, vec![absent], false).await.unwrap();
        assert_eq!(shape(&sink, chunk.range()).await, [(chunk.range(), Version::ZERO, None)]);
        // In the next stint it has a tombstone that the source has forgotten: that is no difference.
        sink.write(zero(OBJECT, BlockRange::new(0, 8), 8)).await.unwrap();
        source.write(zero(OBJECT, BlockRange::new(0, 8), 8)).await.unwrap();
        sink.set_group(entry(1, 6, Role::Syncing, 6)).await.unwrap();
        assert_eq!(sink.floor(GROUP), floor(7), "a stint does not take it back");
        for store in [&source, &sink] {
            store.set_floor(GROUP, floor(9)).await.unwrap();
        }
        assert_eq!(sink.digests(GROUP, None, 10).await.unwrap(), []);
        // A copy never brings back what was discarded on a verified chunk: it is of an epoch that is over.
        sink.verify_chunk(GROUP, OBJECT, chunk, Epoch(6), vec![], true).await.unwrap();
        clean(&sink, 0).await;
    });
}

#[test]
fn a_drive_without_room_forgets_and_gets_some() {
    Sim::new(6).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = new_store(&disk).await;
        let mut written = 0;
        loop {
            let object = ObjectId::of_volume(VolumeId(7), written);
            match store.write(client(object, BlockRange::new(0, 32), 5, fill(1, 32))).await {
                Ok(_) => written += 1,
                Err(StoreError::NoSpace { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        for index in 0..written {
            store
                .write(zero(ObjectId::of_volume(VolumeId(7), index), BlockRange::new(32, 64), 6))
                .await
                .unwrap();
        }
        store.set_floor(GROUP, floor(7)).await.unwrap();
        sleep(Duration::from_secs(20)).await;
        store.checkpoint().await.unwrap();
        assert_eq!(store.usage().tombstones_forgotten, written * 64);
        clean(&store, 0).await;
    });
}

/// The power goes at every operation of a drive that raises its floor, forgets, and takes checkpoints: a
/// block that was discarded has no data afterwards, a floor that was acknowledged is there, and an older put
/// is refused.
#[test]
fn a_power_cut_at_any_operation_brings_no_discarded_block_back() {
    let mut cuts = 0;
    loop {
        let n = cuts;
        let operations = Sim::new(7).block_on(async move {
            let disk = SimDisk::new("d", 8 << 20);
            new_store(&disk).await.close().await.unwrap();
            let told: Rc<[Cell<u64>; 2]> = Rc::default();
            let began = disk.operations();
            disk.cut_power_after(n);
            let (used, knows, over) = (disk.clone(), told.clone(), Rc::new(Notify::default()));
            let ends = over.clone();
            let process = spawn_process(IpAddr::from([10, 0, 0, 1]), "store", async move {
                discard_and_forget(&used, &knows).await;
                ends.notify_all();
                std::future::pending::<()>().await;
            });
            race(disk.cut(), over.notified()).await;
            kill(process, Crash::PowerCut);
            let operations = disk.operations() - began;
            disk.restore_power();
            for _ in 0..2 {
                let store = open(&disk).await;
                look_after_cut(&store, &told).await;
                clean(&store, 0).await;
                rest().await;
                look_after_cut(&store, &told).await;
                store.close().await.unwrap();
            }
            operations
        });
        if operations <= n {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 60, "{cuts}");
}

/// Objects that are written, discarded in part, and passed by the floor. `told`: the newest round that was
/// discarded durably, and the newest floor.
async fn discard_and_forget(disk: &SimDisk, told: &[Cell<u64>; 2]) {
    let store = open_reusing(disk).await;
    for round in 1..10u64 {
        let object = ObjectId::of_volume(VolumeId(7), round);
        store.write(client(object, BlockRange::new(0, 20), 10 * round, fill(round, 20))).await.unwrap();
        store.write(zero(object, BlockRange::new(5, 200), 10 * round + 1)).await.unwrap();
        told[0].set(round);
        if round % 2 == 0 {
            store.set_floor(GROUP, floor(10 * round + 5)).await.unwrap();
            told[1].set(round);
            sleep(Duration::from_millis(100)).await;
        }
        if round % 3 != 1 {
            store.checkpoint().await.unwrap();
        }
    }
    store.close().await.unwrap();
}

async fn look_after_cut(store: &Rc<Store>, told: &[Cell<u64>; 2]) {
    assert!(store.floor(GROUP) >= floor(if told[1].get() > 0 { 10 * told[1].get() + 5 } else { 0 }));
    for round in 1..=told[0].get() {
        let object = ObjectId::of_volume(VolumeId(7), round);
        let is_below = store.floor(GROUP) > floor(10 * round + 1);
        let found = store.read(GROUP, object, BlockRange::new(0, 205)).await.unwrap();
        for extent in &found {
            let (wanted, seed) = match extent.range.first < 5 {
                true => (version(10 * round), Some(round)),
                false if is_below => (Version::ZERO, None),
                false => (version(10 * round + 1), None),
            };
            assert_eq!((extent.version, seed_of(extent)), (wanted, seed), "{extent:?} of round {round}");
        }
        if is_below {
            let late = client(object, BlockRange::new(5, 15), 10 * round - 1, fill(99, 15));
            let said = store.write(repair(late)).await.unwrap();
            assert_eq!(said, [(BlockRange::new(5, 15), Verdict::Superseded { newest: store.floor(GROUP) })]);
        }
    }
}
