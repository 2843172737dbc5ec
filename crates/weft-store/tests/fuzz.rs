//! Random operations against a model in RAM, on a small drive that gets full, while bits rot, sectors become
//! unreadable for a while or for good, and the store is closed, dropped and opened. What a check of the drive
//! says must agree with what the model knows. Rot of the drive's own structures is tried on copies: a clear
//! refusal or the right data, never wrong data.
//!
//! `WEFT_STORE_FACTOR=n` tries n times as many sequences.

use crate::model;

use model::*;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_rt::random_below;
use weft_rt::sim::{Crash, Sim, SimDisk, kill, spawn_process};
use weft_store::*;
use weft_types::*;

const GROUP: GroupId = GroupId(1);
const STINT: Epoch = Epoch(1);
const OBJECTS: u64 = 3;
const BLOCKS: u32 = 150;
const SIZE: u64 = 3 << 19;
const SEQUENCES: u64 = 40;
const OPERATIONS: u32 = 160;

/// What has become of a block's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Good,
    /// It reads as damaged until it is put again.
    Rotten,
    /// It was unreadable once: the store may remember it as damaged, or may have forgotten.
    Doubtful,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    version: Version,
    /// Whose data, and which block of the write; `None` is zeroes.
    content: Option<(u64, u32)>,
    health: Health,
}

#[derive(Default)]
struct Counts {
    full: u64,
    rotten: u64,
    unreadable: u64,
    healed: u64,
    copies: u64,
    refused_opens: u64,
    metadata_rot: u64,
    checks: u64,
}

#[derive(Default)]
struct Fuzz {
    blocks: BTreeMap<(u64, u32), Block>,
    next: u64,
    /// Versions that were sent, whatever has become of them: one that is sent again is answered by the open set.
    sent: BTreeSet<Version>,
    counts: Counts,
}

fn object(index: u64) -> ObjectId {
    ObjectId::of_volume(VolumeId(1), index)
}

fn some_range(most: u32) -> (u64, BlockRange) {
    let count = 1 + random_below(u64::from(most)) as u32;
    let first = random_below(u64::from(BLOCKS - count + 1)) as u32;
    (random_below(OBJECTS), BlockRange::new(first, count))
}

/// The data of blocks, each said by its writer and its number in the write.
fn data_of(contents: &[(u64, u32)]) -> Payload {
    let bytes: Vec<u8> = contents.iter().flat_map(|(seed, block)| pattern(*seed, *block)).collect();
    let crcs = bytes.chunks(BLOCK_SIZE).map(weft_wire::crc32c).collect();
    Payload::Data { data: weft_rt::Buf::from(bytes), crcs }
}

impl Fuzz {
    fn version_of(&self, name: (u64, u32)) -> Version {
        self.blocks.get(&name).map_or(Version::ZERO, |b| b.version)
    }

    /// A good block of data, if a few tries find one.
    fn some_data(&self) -> Option<((u64, u32), Block)> {
        (0..20).find_map(|_| {
            let (o, range) = some_range(1);
            let found = self.blocks.get(&(o, range.first))?;
            (found.content.is_some() && found.health == Health::Good).then_some(((o, range.first), *found))
        })
    }

    fn damaged(&self) -> Vec<(u64, u32)> {
        self.blocks.iter().filter(|(_, b)| b.health != Health::Good).map(|(name, _)| *name).collect()
    }

    async fn write(&mut self, store: &Rc<Store>) {
        let (o, range) = some_range(if random_below(4) == 0 { 100 } else { 12 });
        self.next += 1;
        let version = Version::new(self.next + random_below(6), SessionSlot(1 + random_below(3) as u16));
        if !self.sent.insert(version) {
            return;
        }
        let is_zero = random_below(5) == 0;
        let seed = self.next;
        let payload = if is_zero { Payload::Zero } else { fill(seed, range.count) };
        let write = Write { version, ..client(object(o), range, 0, payload) };
        let verdicts = match store.write(write).await {
            Ok(verdicts) => verdicts,
            Err(StoreError::NoSpace { .. }) => {
                assert!(!is_zero, "a discard is never refused for want of space");
                self.counts.full += 1;
                self.compare(store, o, range).await;
                return self.make_space(store).await;
            }
            Err(error) => panic!("{error}"),
        };
        for (part, verdict) in verdicts {
            for block in part.blocks() {
                let held = self.version_of((o, block));
                let wanted = if version > held {
                    Verdict::Applied
                } else {
                    // It was never taken before, or was replaced since: the open set tells, which another test
                    // compares; here every version is sent once.
                    Verdict::Superseded { newest: held }
                };
                assert_eq!(verdict, wanted, "{o}/{block} at {version}");
                if version > held {
                    let content = (!is_zero).then_some((seed, block - range.first));
                    self.blocks.insert((o, block), Block { version, content, health: Health::Good });
                }
            }
        }
    }

    /// The drive is full: what is discarded comes back.
    async fn make_space(&mut self, store: &Rc<Store>) {
        let o = random_below(OBJECTS);
        let is_data = |(name, b): &(&(u64, u32), &Block)| name.0 == o && b.content.is_some();
        let given_up = self.blocks.iter().filter(is_data).count();
        self.next += 10;
        let version = Version::new(self.next, SessionSlot(1));
        let all = BlockRange::new(0, BLOCKS);
        store.write(Write { version, ..zero(object(o), all, 0) }).await.unwrap();
        for block in all.blocks() {
            self.blocks.insert((o, block), Block { version, content: None, health: Health::Good });
        }
        if given_up < 30 {
            return;
        }
        for _ in 0..2 {
            weft_rt::sleep(Duration::from_millis(30)).await;
            store.checkpoint().await.unwrap();
        }
        let usage = store.usage();
        assert!(usage.free_blocks + 12 >= given_up as u64, "{given_up} were given up: {usage:?}");
        self.next += 1;
        let version = Version::new(self.next, SessionSlot(1));
        let write = Write { version, ..client(object(o), BlockRange::one(0), 0, fill(self.next, 1)) };
        store.write(write).await.unwrap();
        let content = Some((self.next, 0));
        self.blocks.insert((o, 0), Block { version, content, health: Health::Good });
    }

    /// What a read says is what the model holds, block by block.
    async fn compare(&mut self, store: &Rc<Store>, o: u64, range: BlockRange) {
        let found = store.read(GROUP, object(o), range).await.unwrap();
        self.compare_with(o, range, &found);
    }

    fn compare_with(&self, o: u64, range: BlockRange, found: &[Extent]) {
        let mut next = range.first;
        for extent in found {
            assert_eq!(extent.range.first, next);
            next = extent.range.end();
            for block in extent.range.blocks() {
                let name = (o, block);
                let held = self.blocks.get(&name).copied();
                assert_eq!(extent.version, self.version_of(name), "{name:?}");
                let wanted = held.and_then(|b| b.content);
                let health = held.map_or(Health::Good, |b| b.health);
                match &extent.data {
                    ExtentData::Zero => assert_eq!(wanted, None, "{name:?}"),
                    ExtentData::Damaged => assert_ne!(health, Health::Good, "{name:?} is damaged"),
                    ExtentData::Data { buf, .. } => {
                        assert_ne!(health, Health::Rotten, "{name:?} is rotten and was returned as good");
                        let at = (block - extent.range.first) as usize * BLOCK_SIZE;
                        let (seed, number) = wanted.unwrap_or_else(|| panic!("{name:?} has no data"));
                        assert!(buf[at..at + BLOCK_SIZE] == pattern(seed, number), "{name:?}");
                    }
                }
            }
        }
        assert_eq!(next, range.end());
    }

    async fn compare_all(&mut self, store: &Rc<Store>) {
        for o in 0..OBJECTS {
            self.compare(store, o, BlockRange::new(0, BLOCKS)).await;
        }
    }

    /// Where a block of data lies.
    async fn place_of(&self, disk: &SimDisk, (o, block): (u64, u32)) -> u64 {
        let wanted = [Wanted { group: GROUP, object: object(o), range: BlockRange::one(block) }];
        let found = locate(&disk.copy("look").open().unwrap(), &wanted, false).await.unwrap();
        match found[0].held {
            Held::Data { place, .. } => place.offset(),
            other => panic!("{o}/{block} is {other:?}"),
        }
    }

    /// A bit of a block's data turns over.
    async fn rot(&mut self, disk: &SimDisk) {
        let Some((name, _)) = self.some_data() else { return };
        // Until a marker follows it, data of the newest batch that does not match is taken for data that never
        // arrived: no recovery can tell the two apart.
        weft_rt::sleep(Duration::from_millis(30)).await;
        let place = self.place_of(disk, name).await;
        disk.flip(place + random_below(BLOCK_SIZE as u64), random_below(8) as u8);
        self.blocks.get_mut(&name).unwrap().health = Health::Rotten;
        self.counts.rotten += 1;
    }

    /// A block cannot be read for a while.
    async fn fail_reads(&mut self, store: &Rc<Store>, disk: &SimDisk) {
        let Some(((o, block), _)) = self.some_data() else { return };
        let place = self.place_of(disk, (o, block)).await;
        disk.set_faults(|f| {
            f.unreadable.clear();
            f.unreadable.push(place..place + BLOCK_SIZE as u64);
        });
        self.blocks.get_mut(&(o, block)).unwrap().health = Health::Rotten;
        self.counts.unreadable += 1;
        // Its neighbours are read all the same.
        let first = block.saturating_sub(3);
        let around = BlockRange::new(first, 8.min(BLOCKS - first));
        self.compare(store, o, around).await;
        disk.set_faults(|f| f.unreadable.clear());
        self.blocks.get_mut(&(o, block)).unwrap().health = Health::Doubtful;
    }

    /// Damage that a read has found is healed by a put of the same version, or by a verified copy.
    async fn heal(&mut self, store: &Rc<Store>) {
        let damaged = self.damaged();
        if damaged.is_empty() {
            return;
        }
        let (o, block) = damaged[random_below(damaged.len() as u64) as usize];
        let range = BlockRange::one(block);
        self.compare(store, o, range).await;
        let held = self.blocks[&(o, block)];
        let good = data_of(&[held.content.expect("only data is damaged")]);
        match random_below(3) {
            0 => return self.copy(store, o, ChunkIndex::of(block)).await,
            1 => {
                // A reader puts what another replica has.
                let write = client(object(o), range, 0, good);
                let write = Write { version: held.version, kind: WriteKind::Repair, ..write };
                match store.write(write).await {
                    Ok(verdicts) => assert_eq!(verdicts, [(range, Verdict::Applied)]),
                    Err(StoreError::NoSpace { .. }) => return,
                    Err(error) => panic!("{error}"),
                }
            }
            _ => {
                self.next += 10;
                let version = Version::new(self.next, SessionSlot(2));
                store.write(Write { version, ..zero(object(o), range, 0) }).await.unwrap();
                self.blocks.insert((o, block), Block { version, content: None, health: Health::Good });
            }
        }
        self.blocks.get_mut(&(o, block)).unwrap().health = Health::Good;
        self.counts.healed += 1;
        self.compare(store, o, range).await;
    }

    /// A verified copy of a chunk from a replica that has the same, all of it good.
    async fn copy(&mut self, store: &Rc<Store>, o: u64, chunk: ChunkIndex) {
        let first = chunk.range().first;
        let range = BlockRange::new(first, chunk.range().end().min(BLOCKS) - first);
        self.compare(store, o, range).await;
        let mut source = Vec::new();
        for block in range.blocks() {
            let Some(held) = self.blocks.get(&(o, block)) else { continue };
            let data = match held.content {
                None => CopyData::Zero,
                Some(content) => {
                    let Payload::Data { data, crcs } = data_of(&[content]) else { unreachable!() };
                    CopyData::Data { buf: data, crcs }
                }
            };
            source.push(CopyEntry { range: BlockRange::one(block), version: held.version, data });
        }
        match store.verify_chunk(GROUP, object(o), chunk, STINT, source, false).await {
            Ok(()) => {}
            Err(StoreError::NoSpace { .. }) => return,
            Err(error) => panic!("{error}"),
        }
        self.counts.copies += 1;
        for block in range.blocks() {
            if let Some(held) = self.blocks.get_mut(&(o, block)) {
                held.health = Health::Good;
            }
        }
        self.compare(store, o, range).await;
    }

    /// A check of the open store, or of the closed drive, finds what the model knows, and nothing else.
    async fn check(&mut self, store: Rc<Store>, disk: &SimDisk) -> Rc<Store> {
        self.counts.checks += 1;
        let count = |health| self.blocks.values().filter(|b| b.health == health).count() as u64;
        let (rotten, doubtful) = (count(Health::Rotten), count(Health::Doubtful));
        let data = self.blocks.values().filter(|b| b.content.is_some()).count() as u64;
        if random_below(2) == 0 {
            let report = store.check(true).await.unwrap();
            assert!(report.findings.iter().all(|f| f.severity == Severity::Damage), "{report:#?}");
            assert!(report.is_clean() || rotten + doubtful > 0, "{report:#?}");
            assert!(rotten == 0 || !report.is_clean(), "{rotten} blocks are rotten");
            assert!(report.verified_blocks + rotten + doubtful >= data, "{report:#?}");
            assert!(report.verified_blocks + rotten <= data, "{report:#?}");
            return store;
        }
        store.close().await.unwrap();
        drop(store);
        let report = check(&disk.open().unwrap(), true).await.unwrap();
        let found = report.findings.len() as u64 + report.more_findings;
        assert!(report.findings.iter().all(|f| f.severity == Severity::Damage), "{report:#?}");
        assert!(found >= rotten && found <= rotten + doubtful, "{rotten} + {doubtful}: {report:#?}");
        assert_eq!(report.verified_blocks + found, data, "{report:#?}");
        self.rot_of_structures(disk).await;
        open(disk).await
    }

    /// On copies of the drive, a bit turns over anywhere: a refusal, or what the model holds.
    async fn rot_of_structures(&mut self, disk: &SimDisk) {
        let all = disk.peek(0, disk.size_bytes() as usize);
        let is_used = |at: &u64| all[*at as usize * BLOCK_SIZE..][..BLOCK_SIZE].iter().any(|b| *b != 0);
        let used: Vec<u64> = (0..disk.size_bytes() / BLOCK_SIZE as u64).filter(is_used).collect();
        let seen = inspect(&disk.copy("look").open().unwrap()).await.unwrap();
        let superblock = seen.superblock.unwrap();
        let region = seen.label.region;
        let table = region.table_first + u64::from(superblock.table_copy) * region.table_blocks;
        let root = superblock.root.map_or(0, |r| r.page.place.0);
        let state = superblock.state.map_or(0, |r| r.place.0);
        for _ in 0..3 {
            let random = used[random_below(used.len() as u64) as usize];
            let places = [0, 1, 2, table, root, state, region.bitmap_first, random, random];
            let place = places[random_below(places.len() as u64) as usize];
            let bad = disk.copy("bad");
            bad.flip(place * BLOCK_SIZE as u64 + random_below(200), random_below(8) as u8);
            self.counts.metadata_rot += 1;
            let report = check(&bad.open().unwrap(), true).await;
            let is_fatal = match &report {
                Ok(report) => report.findings.iter().any(|f| f.severity == Severity::Fatal),
                Err(_) => true,
            };
            let opened = Store::open(bad.open().unwrap(), OpenOptions::default()).await;
            let (store, _) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    assert!(is_fatal, "open refuses ({error}), check does not");
                    self.counts.refused_opens += 1;
                    continue;
                }
            };
            for o in 0..OBJECTS {
                let range = BlockRange::new(0, BLOCKS);
                match store.read(GROUP, object(o), range).await {
                    Err(StoreError::MetadataDamaged { .. }) => {
                        assert!(is_fatal, "a read is refused, but the check found nothing fatal");
                    }
                    Err(error) => panic!("{error}"),
                    Ok(found) => self.compare_but_for_one(o, range, &found),
                }
            }
        }
    }

    /// The flipped bit may have been one of data: then that block is damaged.
    fn compare_but_for_one(&self, o: u64, range: BlockRange, found: &[Extent]) {
        let is_new = |x: &&Extent| {
            let is_good = |b| self.blocks.get(&(o, b)).is_some_and(|b| b.health == Health::Good);
            matches!(x.data, ExtentData::Damaged) && x.range.blocks().any(is_good)
        };
        let damage: Vec<_> = found.iter().filter(is_new).map(|x| x.range).collect();
        assert!(damage.iter().map(|r| r.count).sum::<u32>() <= 1, "{damage:?}");
        let mut rest = Fuzz { blocks: self.blocks.clone(), ..Default::default() };
        for range in damage {
            rest.blocks.get_mut(&(o, range.first)).unwrap().health = Health::Rotten;
        }
        rest.compare_with(o, range, found);
    }
}

async fn run() -> Counts {
    let disk = SimDisk::new("d", SIZE);
    format(&disk, FormatOptions { allow_tiny: true, log_bytes: Some(128 << 10), ..options() }).await.unwrap();
    let mut store = open(&disk).await;
    store.set_group(entry(1, 1, Role::Syncing, 1)).await.unwrap();
    let empty = store.usage().used_blocks;
    let mut fuzz = Fuzz { next: 10, ..Default::default() };
    for _ in 0..OPERATIONS {
        match random_below(100) {
            0..50 => fuzz.write(&store).await,
            50..62 => {
                let (o, range) = some_range(60);
                fuzz.compare(&store, o, range).await;
            }
            62..67 => fuzz.rot(&disk).await,
            67..72 => fuzz.fail_reads(&store, &disk).await,
            72..80 => fuzz.heal(&store).await,
            80..84 => {
                let (o, range) = some_range(1);
                fuzz.copy(&store, o, ChunkIndex::of(range.first)).await;
            }
            84..88 => store.checkpoint().await.unwrap(),
            88..91 => store = reopen(&disk, store).await,
            91..94 => {
                drop(store);
                weft_rt::sleep(Duration::from_millis(100)).await;
                store = open(&disk).await;
                fuzz.compare_all(&store).await;
            }
            94..97 => store = fuzz.check(store, &disk).await,
            97 => {
                let mark = Version::new(fuzz.next, SessionSlot(1));
                store.advance(GROUP, SessionSlot(1), mark);
            }
            98 => {
                store.put_map_copy(fuzz.next, b"map").await.unwrap();
                store.set_generation(VolumeId(2), Generation(fuzz.next)).await.unwrap();
            }
            _ => {
                store.drop_objects(VolumeId(1)).await.unwrap();
                fuzz.blocks.clear();
                // Copies bring nothing of the volume back as long as the store is open.
                store = reopen(&disk, store).await;
            }
        }
    }
    fuzz.compare_all(&store).await;
    // All space comes back.
    store.drop_objects(VolumeId(1)).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let store = open(&disk).await;
    clean(&store, 0).await;
    let usage = store.usage();
    assert!(usage.used_blocks - usage.pending_free_blocks <= empty + 2, "{empty} once: {usage:?}");
    fuzz.counts
}

#[test]
fn random_operations_with_faults_agree_with_the_model() {
    let factor: u64 = std::env::var("WEFT_STORE_FACTOR").map_or(1, |f| f.parse().unwrap());
    let mut all = Counts::default();
    for seed in 0..SEQUENCES * factor {
        let told = Told(seed);
        let c = Sim::new(seed).block_on(run());
        all.full += c.full;
        all.rotten += c.rotten;
        all.unreadable += c.unreadable;
        all.healed += c.healed;
        all.copies += c.copies;
        all.refused_opens += c.refused_opens;
        all.metadata_rot += c.metadata_rot;
        all.checks += c.checks;
        std::mem::forget(told);
    }
    println!("sequences {}, operations each {OPERATIONS}", SEQUENCES * factor);
    println!("full {}, rotten blocks {}, unreadable {}", all.full, all.rotten, all.unreadable);
    println!("healed by puts {}, verified copies {}, checks {}", all.healed, all.copies, all.checks);
    println!("rot anywhere {}, of these refused {}", all.metadata_rot, all.refused_opens);
    for (n, what) in [
        (all.full, "full"),
        (all.rotten, "rotten"),
        (all.unreadable, "unreadable"),
        (all.healed, "healed"),
        (all.copies, "copies"),
        (all.refused_opens, "refused"),
        (all.metadata_rot - all.refused_opens, "opened in spite of rot"),
    ] {
        assert!(n > 10, "{what}: {n}");
    }
}

/// Says the seed if it is dropped: by a panic.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        eprintln!("seed {}", self.0);
    }
}

/// A store with one acknowledged write over another, whose power goes at once: the newer write is in the batch in
/// doubt. Returns where its data lies.
async fn cut_after_an_answer(disk: &SimDisk) -> u64 {
    format(disk, FormatOptions { allow_tiny: true, log_bytes: Some(128 << 10), ..options() }).await.unwrap();
    let told = Rc::new(weft_rt::sync::Notify::default());
    let (used, tell) = (disk.clone(), told.clone());
    let process = spawn_process([10, 0, 0, 1].into(), "store", async move {
        let store = open(&used).await;
        store.set_group(entry(1, 1, Role::InSync, 1)).await.unwrap();
        store.write(client(object(0), BlockRange::new(0, 8), 1, fill(1, 8))).await.unwrap();
        store.checkpoint().await.unwrap();
        store.write(client(object(0), BlockRange::new(0, 8), 2, fill(2, 8))).await.unwrap();
        tell.notify_all();
        std::future::pending::<()>().await;
    });
    told.notified().await;
    kill(process, Crash::PowerCut);
    find_block(disk, &pattern(2, 3))
}

/// A syncing store with some data and a verified copy that left it alone, whose power goes at once: the copy is in the
/// batch in doubt.
async fn cut_after_a_copy(disk: &SimDisk) {
    let small = FormatOptions { allow_tiny: true, log_bytes: Some(128 << 10), ..options() };
    format(disk, small).await.unwrap();
    let told = Rc::new(weft_rt::sync::Notify::default());
    let (used, tell) = (disk.clone(), told.clone());
    let process = spawn_process([10, 0, 0, 1].into(), "store", async move {
        let store = open(&used).await;
        store.set_group(entry(1, 1, Role::Syncing, 1)).await.unwrap();
        store.write(client(object(0), BlockRange::new(0, 8), 1, fill(1, 8))).await.unwrap();
        store.checkpoint().await.unwrap();
        let copied = |first, counter, payload| {
            let Payload::Data { data, crcs } = payload else { unreachable!() };
            let data = CopyData::Data { buf: data, crcs };
            CopyEntry { range: BlockRange::new(first, 8), version: version(counter), data }
        };
        let source = vec![copied(0, 1, fill(1, 8)), copied(8, 2, fill(2, 8))];
        store.verify_chunk(GROUP, object(0), ChunkIndex(0), STINT, source, false).await.unwrap();
        tell.notify_all();
        std::future::pending::<()>().await;
    });
    told.notified().await;
    kill(process, Crash::PowerCut);
}

#[test]
fn rot_of_what_a_copy_left_alone_makes_no_acknowledged_copy_unhappen() {
    Sim::new(4).block_on(async {
        let disk = SimDisk::new("d", SIZE);
        cut_after_a_copy(&disk).await;
        disk.flip(find_block(&disk, &pattern(1, 5)) + 9, 1);
        let store = open(&disk).await;
        assert!(store.chunk_is_verified(GROUP, object(0), ChunkIndex(0)), "the mark is gone");
        let found = store.read(GROUP, object(0), BlockRange::new(0, 16)).await.unwrap();
        let of = |block| found.iter().find(|x| x.range.contains(block)).unwrap();
        assert_eq!((of(12).version, seed_of(of(12))), (version(2), Some(2)));
        assert!(matches!(of(5).data, ExtentData::Damaged), "{:?}", of(5));
        assert_eq!(seed_of(of(4)), Some(1));
    });
}

/// Opens the store of a drive whose newest batch is in doubt and has a block that cannot be read; then the trouble passes.
async fn open_in_trouble(disk: &SimDisk, place: u64) -> Rc<Store> {
    disk.set_faults(|f| f.unreadable.push(place..place + BLOCK_SIZE as u64));
    let store = open(disk).await;
    disk.set_faults(|f| f.unreadable.clear());
    store
}

#[test]
fn a_read_that_fails_in_the_recovery_makes_no_acknowledged_write_unhappen() {
    Sim::new(3).block_on(async {
        let disk = SimDisk::new("d", SIZE);
        let place = cut_after_an_answer(&disk).await;
        for _ in 0..2 {
            let store = open_in_trouble(&disk, place).await;
            let found = store.read(GROUP, object(0), BlockRange::new(0, 8)).await.unwrap();
            assert!(found.iter().all(|x| (x.version, seed_of(x)) == (version(2), Some(2))), "{found:?}");
            drop(store);
            weft_rt::sleep(Duration::from_millis(50)).await;
        }
    });
}

#[test]
fn what_cannot_be_read_in_the_recovery_is_damaged_at_its_version_until_it_is_put_again() {
    Sim::new(5).block_on(async {
        let disk = SimDisk::new("d", SIZE);
        let place = cut_after_an_answer(&disk).await;
        // As if it had never arrived, which the failed read does not tell.
        disk.poke(place, &[0; BLOCK_SIZE]);
        let store = open_in_trouble(&disk, place).await;
        let range = BlockRange::new(0, 8);
        for _ in 0..2 {
            let found = store.read(GROUP, object(0), range).await.unwrap();
            assert!(found.iter().all(|x| x.version == version(2) && x.open), "{found:?}");
            let damaged = found.iter().filter(|x| matches!(x.data, ExtentData::Damaged));
            assert_eq!(damaged.map(|x| x.range).collect::<Vec<_>>(), [BlockRange::one(3)]);
        }
        let again = store.write(client(object(0), range, 2, fill(2, 8))).await.unwrap();
        assert_eq!(again, [(range, Verdict::Applied)]);
        let found = store.read(GROUP, object(0), range).await.unwrap();
        assert!(found.iter().all(|x| (x.version, seed_of(x)) == (version(2), Some(2))), "{found:?}");
    });
}

#[test]
fn a_copy_that_cannot_be_read_in_the_recovery_has_happened() {
    Sim::new(6).block_on(async {
        let disk = SimDisk::new("d", SIZE);
        cut_after_a_copy(&disk).await;
        let store = open_in_trouble(&disk, find_block(&disk, &pattern(2, 5))).await;
        assert!(store.chunk_is_verified(GROUP, object(0), ChunkIndex(0)), "the mark is gone");
        let found = store.read(GROUP, object(0), BlockRange::new(0, 16)).await.unwrap();
        let of = |block| found.iter().find(|x| x.range.contains(block)).unwrap();
        assert_eq!((of(4).version, seed_of(of(4))), (version(1), Some(1)));
        assert_eq!((of(13).version, seed_of(of(13))), (version(2), Some(2)));
    });
}
