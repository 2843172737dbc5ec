//! Random operations against a model of one replica (the protocol's `on_write`, `advance`, `settle`), with
//! reopens in between; and readers beside writers that reuse places as early as they may.

use crate::model;

use model::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weft_rt::sim::{Sim, SimDisk};
use weft_store::*;
use weft_types::*;

const GROUP: GroupId = GroupId(1);
const BLOCKS: u32 = 280;

#[derive(Clone, Debug)]
enum Op {
    Write { object: u64, range: BlockRange, version: Version, kind: WriteKind, is_zero: bool },
    Settle { object: u64, range: BlockRange, version: Version },
    Advance { version: Version },
    Checkpoint,
    Reopen,
    DropStore,
    DropVolume,
}

/// One replica, block by block.
#[derive(Default)]
struct Replica {
    /// Version and content; content `None` is zeroes.
    held: BTreeMap<(u64, u32), (Version, Option<u64>)>,
    open: BTreeSet<(u64, u32, Version)>,
    settled: BTreeSet<(u64, u32, Version)>,
    watermark: BTreeMap<SessionSlot, Version>,
}

impl Replica {
    fn version(&self, name: (u64, u32)) -> Version {
        self.held.get(&name).map_or(Version::ZERO, |h| h.0)
    }

    fn is_above(&self, version: Version) -> bool {
        self.watermark.get(&version.slot()).is_none_or(|mark| version > *mark)
    }

    fn on_write(
        &mut self,
        name: (u64, u32),
        version: Version,
        content: Option<u64>,
        kind: WriteKind,
    ) -> Verdict {
        let held = self.version(name);
        let entry = (name.0, name.1, version);
        if self.open.contains(&entry) || version == held {
            return Verdict::Applied;
        }
        let is_taken = version > held;
        if is_taken {
            self.held.insert(name, (version, content));
        }
        if (is_taken || kind == WriteKind::Repair) && self.is_above(version) {
            self.open.insert(entry);
        }
        if is_taken { Verdict::Applied } else { Verdict::Superseded { newest: held } }
    }

    fn advance(&mut self, version: Version) {
        let mark = self.watermark.entry(version.slot()).or_insert(Version::ZERO);
        *mark = version.max(*mark);
        let mark = *mark;
        self.open.retain(|(_, _, v)| v.slot() != version.slot() || *v > mark);
        self.settled.retain(|(_, _, v)| v.slot() != version.slot() || *v > mark);
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let version = || (1u64..40, 1u16..4).prop_map(|(c, s)| Version::new(c, SessionSlot(s)));
    let range = || {
        (0..BLOCKS, prop_oneof![4 => Just(1u32), 2 => 1u32..12, 1 => 100u32..200])
            .prop_map(|(first, count)| BlockRange::new(first, count.min(BLOCKS - first)))
    };
    let kind = || prop_oneof![3 => Just(WriteKind::Client), 1 => Just(WriteKind::Repair)];
    let write = (0u64..3, range(), version(), kind(), prop::bool::weighted(0.25)).prop_map(
        |(object, range, version, kind, is_zero)| Op::Write { object, range, version, kind, is_zero },
    );
    let settle = (0u64..3, range(), version()).prop_map(|(object, range, version)| Op::Settle {
        object,
        range,
        version,
    });
    prop::collection::vec(
        prop_oneof![
            40 => write,
            6 => settle,
            3 => version().prop_map(|version| Op::Advance { version }),
            3 => Just(Op::Checkpoint),
            2 => Just(Op::Reopen),
            2 => Just(Op::DropStore),
            1 => Just(Op::DropVolume),
        ],
        1..70,
    )
}

async fn run(ops: Vec<Op>) {
    let disk = SimDisk::new("d", 8 << 20);
    let mut store = new_store(&disk).await;
    let mut replica = Replica::default();
    let object = |i| ObjectId::of_volume(VolumeId(1), i);
    for (i, op) in ops.into_iter().enumerate() {
        match op {
            Op::Write { object: o, range, version, kind, is_zero } => {
                let content = (!is_zero).then_some(version.to_bits());
                let payload = if is_zero { Payload::Zero } else { fill(version.to_bits(), range.count) };
                let write = Write { version, kind, ..client(object(o), range, 1, payload) };
                let verdicts = store.write(write).await.unwrap();
                let mut at = range.first;
                for (part, verdict) in verdicts {
                    assert_eq!(part.first, at);
                    for block in part.blocks() {
                        let wanted = replica.on_write((o, block), version, content, kind);
                        assert_eq!(verdict, wanted, "operation {i}: block {block}");
                    }
                    at = part.end();
                }
                assert_eq!(at, range.end());
            }
            Op::Settle { object: o, range, version } => {
                store.settle(GROUP, object(o), range, version);
                let entries = range.blocks().map(|b| (o, b, version)).filter(|e| replica.open.contains(e));
                replica.settled.extend(entries.collect::<Vec<_>>());
            }
            Op::Advance { version } => {
                store.advance(GROUP, version.slot(), version);
                replica.advance(version);
            }
            Op::Checkpoint => store.checkpoint().await.unwrap(),
            Op::Reopen => store = reopen(&disk, store).await,
            Op::DropStore => {
                // Marks are logged with the next batch: this is one.
                store.set_generation(VolumeId(2), Generation(i as u64 + 1)).await.unwrap();
                drop(store);
                weft_rt::sleep(std::time::Duration::from_millis(100)).await;
                store = open(&disk).await;
            }
            Op::DropVolume => {
                store.drop_objects(VolumeId(1)).await.unwrap();
                replica.held.clear();
                replica.open.clear();
                replica.settled.clear();
            }
        }
    }
    compare(&store, &replica).await;
    clean(&store, 0).await;
    let store = reopen(&disk, store).await;
    compare(&store, &replica).await;
}

async fn compare(store: &Rc<Store>, replica: &Replica) {
    for o in 0..3u64 {
        for part in [BlockRange::new(0, 140), BlockRange::new(140, 140)] {
            let found = store.read(GROUP, ObjectId::of_volume(VolumeId(1), o), part).await.unwrap();
            let versions = store.versions(GROUP, ObjectId::of_volume(VolumeId(1), o), part).await.unwrap();
            let shape = |x: &Extent| (x.range.first, x.version, x.open);
            let blocks = |all: &[Extent]| -> Vec<_> {
                all.iter().flat_map(|x| x.range.blocks().map(move |b| (b, shape(x).1, x.open))).collect()
            };
            assert_eq!(blocks(&found), blocks(&versions));
            for extent in &found {
                let content = seed_of(extent);
                for block in extent.range.blocks() {
                    let (version, wanted) =
                        replica.held.get(&(o, block)).copied().unwrap_or((Version::ZERO, None));
                    let entry = (o, block, version);
                    let open = replica.open.contains(&entry) && !replica.settled.contains(&entry);
                    assert_eq!(
                        (extent.version, content, extent.open),
                        (version, wanted.map(|w| w & 0xffff_ffff), open)
                    );
                }
            }
        }
    }
    let mut entries = BTreeSet::new();
    for slot in 1..4 {
        let slot = SessionSlot(slot);
        let mark = replica.watermark.get(&slot).copied().unwrap_or(Version::ZERO);
        assert_eq!(store.watermark(GROUP, slot), mark);
        for e in store.open_entries_of(GROUP, slot) {
            for block in e.range.blocks() {
                entries.insert((e.object.index(), block, e.version));
                assert_eq!(e.settled, replica.settled.contains(&(e.object.index(), block, e.version)));
            }
        }
    }
    assert_eq!(entries, replica.open);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..Default::default() })]
    #[test]
    fn a_store_is_what_a_replica_of_the_protocol_is(ops in ops(), seed in 0u64..1000) {
        Sim::new(seed).block_on(run(ops));
    }
}

#[test]
fn readers_beside_writers_never_see_a_place_reused() {
    for seed in 0..20 {
        Sim::new(seed).block_on(async {
            let disk = SimDisk::new("d", 4 << 20);
            drop(new_store(&disk).await);
            weft_rt::sleep(std::time::Duration::from_millis(50)).await;
            let store = open_reusing(&disk).await;
            let latency = (std::time::Duration::from_micros(1), std::time::Duration::from_micros(3000));
            disk.set_faults(|f| f.latency = latency);
            let object = ObjectId::of_volume(VolumeId(1), 0);
            let mut tasks = Vec::new();
            for slot in 1..4u16 {
                let store = store.clone();
                tasks.push(weft_rt::spawn(async move {
                    for i in 0..120u64 {
                        let range = BlockRange::new(weft_rt::random_below(6) as u32, 1 + i as u32 % 3);
                        let version = Version::new(10 + i, SessionSlot(slot));
                        let write = Write { version, ..client(object, range, 1, fill(i, range.count)) };
                        store.write(write).await.unwrap();
                        store.advance(GROUP, SessionSlot(slot), version);
                    }
                }));
            }
            for _ in 0..4 {
                let store = store.clone();
                tasks.push(weft_rt::spawn(async move {
                    for _ in 0..150 {
                        for extent in store.read(GROUP, object, BlockRange::new(0, 8)).await.unwrap() {
                            assert!(!matches!(extent.data, ExtentData::Damaged), "{extent:?}");
                            seed_of(&extent);
                        }
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(store.usage().damaged_found, 0);
            clean(&store, 0).await;
        });
    }
}

#[test]
fn a_slow_read_keeps_its_places_from_being_reused() {
    Sim::new(1).block_on(async {
        let disk = SimDisk::new("d", 4 << 20);
        drop(new_store(&disk).await);
        weft_rt::sleep(std::time::Duration::from_millis(50)).await;
        let store = open_reusing(&disk).await;
        let object = ObjectId::of_volume(VolumeId(1), 0);
        let range = BlockRange::new(0, 8);
        store.write(client(object, range, 1, fill(1, 8))).await.unwrap();
        let latency = |us| {
            let d = std::time::Duration::from_micros(us);
            disk.set_faults(move |f| f.latency = (d, d));
        };
        latency(50_000);
        let reader = store.clone();
        let slow = weft_rt::spawn(async move { reader.read(GROUP, object, range).await.unwrap() });
        weft_rt::sleep(std::time::Duration::from_micros(1)).await;
        latency(1);
        for i in 2..60 {
            let range = BlockRange::new(if i % 2 == 0 { 0 } else { 40 }, 8);
            store.write(client(object, range, i, fill(i, 8))).await.unwrap();
        }
        assert!(!slow.is_finished());
        let found = slow.await.unwrap();
        assert!(found.iter().all(|x| (x.version, seed_of(x)) == (version(1), Some(1))), "{found:?}");
        assert_eq!(store.usage().damaged_found, 0);
    });
}
