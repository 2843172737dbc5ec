//! What a workload asked of a drive and what it was told, each with the instant on the drive's record: from it
//! follows, for every cut, what must be on the drive and what may be.

#![allow(dead_code, missing_docs)]

use crate::model::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use weft_rt::random_below;
use weft_rt::sim::SimDisk;
use weft_store::*;
use weft_types::*;

pub const GROUP: GroupId = GroupId(1);
pub const SYNCING: GroupId = GroupId(2);
pub const COPIED: ObjectId = ObjectId::of_volume(VolumeId(9), 1);
pub const OBJECTS: u64 = 2;
pub const BLOCKS: u32 = 150;

/// An instant that has not come.
const NEVER: usize = usize::MAX;

/// Something that was asked for, and answered or not.
#[derive(Clone, Copy, Debug)]
struct Asked<T> {
    sent: usize,
    acked: usize,
    what: T,
}

/// Copies of a chunk of the syncing group.
#[derive(Clone, Copy, Debug)]
struct Copied {
    stint: Epoch,
    chunk: ChunkIndex,
    number: u64,
}

/// A volume that came and, perhaps, went.
#[derive(Clone, Copy, Debug)]
struct Life {
    group: GroupId,
    volume: VolumeId,
    /// Asked to be dropped, and answered.
    dropped: (usize, usize),
    by_group: bool,
}

type Name = (u64, u32);

#[derive(Default)]
struct Facts {
    /// Per block everything that was ever sent: when, and the content (`None`: zeroes).
    sent: BTreeMap<Name, BTreeMap<Version, (usize, Option<u64>)>>,
    cited: Vec<(usize, u64, BlockRange, Version)>,
    applied: Vec<(usize, u64, BlockRange, Version)>,
    settled: Vec<(usize, u64, BlockRange, Version)>,
    watermarks: Vec<(usize, SessionSlot, Version)>,
    /// What only rises.
    registers: BTreeMap<&'static str, Vec<Asked<u64>>>,
    copies: Vec<Asked<Copied>>,
    marks: Vec<Asked<(Epoch, Version)>>,
    lives: Vec<Asked<Life>>,
    next: u64,
    full: u32,
}

#[derive(Clone)]
pub struct Ledger {
    disk: SimDisk,
    facts: Rc<RefCell<Facts>>,
}

impl Ledger {
    pub fn new(disk: SimDisk) -> Ledger {
        Ledger { disk, facts: Rc::default() }
    }

    fn now(&self) -> usize {
        self.disk.recorded_events()
    }

    fn next(&self) -> u64 {
        let mut facts = self.facts.borrow_mut();
        facts.next += 1;
        facts.next
    }

    /// How often the drive was full.
    pub fn refusals(&self) -> u32 {
        self.facts.borrow().full
    }

    pub fn assert_it_has_all(&self) {
        let f = self.facts.borrow();
        let counts = [
            f.cited.len(),
            f.applied.len(),
            f.settled.len(),
            f.watermarks.len(),
            f.copies.len(),
            f.marks.len(),
            f.lives.iter().filter(|l| l.what.dropped.1 != NEVER && l.what.by_group).count(),
            f.lives.iter().filter(|l| l.what.dropped.1 != NEVER && !l.what.by_group).count(),
        ];
        assert!(counts.iter().all(|n| *n > 0), "{counts:?}");
        for name in ["group 1", "group 2", "generation", "floor", "map copy"] {
            assert!(f.registers[name].len() > 2, "{name}");
        }
    }

    /// Asks for something that only rises.
    pub async fn raise(
        &self,
        name: &'static str,
        value: u64,
        asked: impl Future<Output = Result<(), StoreError>>,
    ) {
        let sent = self.now();
        let asked_for = Asked { sent, acked: NEVER, what: value };
        self.facts.borrow_mut().registers.entry(name).or_default().push(asked_for);
        asked.await.unwrap();
        let acked = self.now();
        let mut facts = self.facts.borrow_mut();
        let all = facts.registers.get_mut(name).unwrap();
        all.iter_mut().find(|a| a.what == value && a.acked == NEVER).unwrap().acked = acked;
    }

    pub async fn write(
        &self,
        store: &Rc<Store>,
        slot: SessionSlot,
        object: u64,
        range: BlockRange,
        kind: WriteKind,
        is_zero: bool,
    ) {
        let seed = self.next();
        // Counters of different sessions interleave and collide, as clients' do.
        let version = Version::new(10 + seed / 2 + random_below(3), slot);
        let content = (!is_zero).then_some(seed);
        {
            let now = self.now();
            let mut f = self.facts.borrow_mut();
            let mark = f.watermarks.iter().filter(|w| w.1 == slot).map(|w| w.2).max();
            if mark.is_some_and(|m| version <= m) || f.sent.values().any(|v| v.contains_key(&version)) {
                return;
            }
            for block in range.blocks() {
                f.sent.entry((object, block)).or_default().insert(version, (now, content));
            }
        }
        let payload = if is_zero { Payload::Zero } else { fill(seed, range.count) };
        let base = client(ObjectId::of_volume(VolumeId(1), object), range, 0, payload);
        let answer = store.write(Write { version, kind, ..base }).await;
        let now = self.now();
        let mut f = self.facts.borrow_mut();
        match answer {
            Ok(verdicts) => {
                for (part, verdict) in verdicts {
                    let newest = match verdict {
                        Verdict::Applied => version,
                        Verdict::Superseded { newest } => newest,
                    };
                    f.cited.push((now, object, part, newest));
                    if verdict == Verdict::Applied {
                        f.applied.push((now, object, part, version));
                    }
                }
            }
            Err(StoreError::NoSpace { .. }) => {
                f.full += 1;
                for block in range.blocks() {
                    f.sent.get_mut(&(object, block)).unwrap().remove(&version);
                }
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// What a read cites is durable.
    pub async fn read(&self, store: &Rc<Store>, object: u64, range: BlockRange) {
        let found = store.read(GROUP, ObjectId::of_volume(VolumeId(1), object), range).await.unwrap();
        let now = self.now();
        let mut f = self.facts.borrow_mut();
        f.cited.extend(found.iter().map(|x| (now, object, x.range, x.version)));
    }

    pub fn settle_some(&self, store: &Rc<Store>) {
        let now = self.now();
        let mut f = self.facts.borrow_mut();
        if f.applied.is_empty() {
            return;
        }
        let (_, object, range, version) = f.applied[random_below(f.applied.len() as u64) as usize];
        f.settled.push((now, object, range, version));
        store.settle(GROUP, ObjectId::of_volume(VolumeId(1), object), range, version);
    }

    /// The watermark rises to the newest version that the session was told of.
    pub fn advance(&self, store: &Rc<Store>, slot: SessionSlot) {
        let now = self.now();
        let mut f = self.facts.borrow_mut();
        let newest = f.applied.iter().map(|a| a.3).filter(|v| v.slot() == slot).max();
        if let Some(newest) = newest {
            f.watermarks.push((now, slot, newest));
            store.advance(GROUP, slot, newest);
        }
    }

    /// Makes a chunk of the syncing group what a source has: data, a tombstone and damage.
    pub async fn copy(&self, store: &Rc<Store>, stint: Epoch, chunk: ChunkIndex) {
        let (number, sent) = (self.next(), self.now());
        let at = |first, count| BlockRange::new(chunk.range().first + first, count);
        let Payload::Data { data, crcs } = fill(number, 24) else { unreachable!() };
        let version = Version::from_bits(number);
        let source = vec![
            CopyEntry { range: at(10, 24), version, data: CopyData::Data { buf: data, crcs } },
            CopyEntry { range: at(40, 4), version, data: CopyData::Zero },
            CopyEntry { range: at(50, 2), version, data: CopyData::Damaged },
        ];
        let index = {
            let mut f = self.facts.borrow_mut();
            f.copies.push(Asked { sent, acked: NEVER, what: Copied { stint, chunk, number } });
            f.copies.len() - 1
        };
        match store.verify_chunk(SYNCING, COPIED, chunk, stint, source, false).await {
            Ok(()) => self.facts.borrow_mut().copies[index].acked = self.now(),
            Err(StoreError::NoSpace { .. }) => {
                let mut f = self.facts.borrow_mut();
                f.full += 1;
                f.copies[index].sent = NEVER;
            }
            Err(error) => panic!("{error}"),
        }
    }

    pub async fn merge_marks(&self, store: &Rc<Store>, stint: Epoch) {
        let (number, sent) = (self.next(), self.now());
        let version = Version::new(number, SessionSlot(7));
        let entry = OpenEntry { version, object: COPIED, range: BlockRange::new(9, 20), settled: true };
        let marks = Marks { open: vec![entry], watermarks: vec![(SessionSlot(7), Version::from_bits(7))] };
        let index = {
            let mut f = self.facts.borrow_mut();
            f.marks.push(Asked { sent, acked: NEVER, what: (stint, version) });
            f.marks.len() - 1
        };
        let epoch = store.group(SYNCING).expect("it was set").epoch;
        store.merge_marks(SYNCING, stint, epoch, marks).await.unwrap();
        // A cursor that does not move waits for what was logged before it.
        store.set_cursor(SYNCING, stint, Cursor::At(ObjectId::default(), ChunkIndex(0))).await.unwrap();
        self.facts.borrow_mut().marks[index].acked = self.now();
    }

    /// A group and a volume on it that is written to, and stays, or is dropped, or goes with its group.
    pub async fn live(&self, store: &Rc<Store>, number: u64) {
        let (group, volume) = (GroupId(30 + number % 2), VolumeId(40 + number));
        let of_group = entry(group.0, number + 1, Role::InSync, 1);
        store.set_group(of_group).await.unwrap();
        let sent = self.now();
        let index = {
            let mut f = self.facts.borrow_mut();
            let life = Life { group, volume, dropped: (NEVER, NEVER), by_group: false };
            f.lives.push(Asked { sent, acked: NEVER, what: life });
            f.lives.len() - 1
        };
        let write =
            client(ObjectId::of_volume(volume, 0), BlockRange::new(126, 5), number + 1, fill(number, 5));
        match store.write(Write { group, ..write }).await {
            Ok(_) => self.facts.borrow_mut().lives[index].acked = self.now(),
            Err(StoreError::NoSpace { .. }) => self.facts.borrow_mut().lives[index].sent = NEVER,
            Err(error) => panic!("{error}"),
        }
        let by_group = number % 3 == 2;
        let goes = |life: &Life| match by_group {
            true => life.group == group,
            false => life.volume == volume,
        };
        if number.is_multiple_of(3) {
            return;
        }
        let sent = self.now();
        for life in self.facts.borrow_mut().lives.iter_mut().filter(|l| goes(&l.what)) {
            if life.what.dropped.0 == NEVER {
                life.what.dropped.0 = sent;
                life.what.by_group = by_group;
            }
        }
        match by_group {
            true => store.drop_group(group).await.unwrap(),
            false => store.drop_objects(volume).await.unwrap(),
        }
        let acked = self.now();
        for life in self.facts.borrow_mut().lives.iter_mut().filter(|l| goes(&l.what)) {
            life.what.dropped.1 = life.what.dropped.1.min(acked);
        }
    }

    /// Opens the drive as a cut at this instant left it, and compares.
    pub async fn verify(&self, disk: &SimDisk, at: usize) -> OpenReport {
        let before = check(&disk.open().unwrap(), false).await.unwrap();
        assert!(before.is_clean(), "{before:#?}");
        let (store, report) = Store::open(disk.open().unwrap(), OpenOptions::default()).await.unwrap();
        // Nobody adds to it meanwhile.
        let f = self.facts.take();
        f.verify_registers(&store, at).await;
        if store.group(GROUP).is_some() {
            f.verify_blocks(&store, at).await;
            f.verify_open_sets(&store, at);
        }
        let mut damaged = 0;
        if store.group(SYNCING).is_some() {
            for chunk in [ChunkIndex(0), ChunkIndex(1)] {
                damaged += f.verify_copy(&store, at, chunk).await;
            }
            f.verify_marks(&store, at);
        }
        for life in &f.lives {
            verify_life(&store, at, life, &f.lives).await;
        }
        self.facts.replace(f);
        clean(&store, damaged).await;
        store.close().await.unwrap();
        report
    }
}

impl Facts {
    async fn verify_registers(&self, store: &Rc<Store>, at: usize) {
        let epoch = |group| store.group(group).map_or(0, |g| g.epoch.0);
        let map = store.map_copy().await.unwrap();
        assert!(map.as_ref().is_none_or(|(v, bytes)| bytes == &[*v as u8 - 1; 5000]), "{map:?}");
        for (name, asked) in &self.registers {
            let found = match *name {
                "group 1" => epoch(GROUP),
                "group 2" => epoch(SYNCING),
                "generation" => store.generation(VolumeId(1)).0,
                "floor" => store.session_floor().0,
                "map copy" => map.as_ref().map_or(0, |(v, _)| *v),
                other => panic!("{other}"),
            };
            let least = asked.iter().filter(|a| a.acked <= at).map(|a| a.what).max().unwrap_or(0);
            let most = asked.iter().filter(|a| a.sent <= at).map(|a| a.what).max().unwrap_or(0);
            assert!(found >= least && found <= most, "{name}: {least} <= {found} <= {most}");
        }
    }

    async fn verify_blocks(&self, store: &Rc<Store>, at: usize) {
        let mut cited: BTreeMap<Name, Version> = BTreeMap::new();
        for (_, object, range, version) in self.cited.iter().filter(|c| c.0 <= at) {
            for block in range.blocks() {
                let newest = cited.entry((*object, block)).or_default();
                *newest = (*newest).max(*version);
            }
        }
        for object in 0..OBJECTS {
            let range = BlockRange::new(0, BLOCKS);
            let found = store.read(GROUP, ObjectId::of_volume(VolumeId(1), object), range).await.unwrap();
            let mut next = 0;
            for extent in &found {
                assert_eq!(extent.range.first, next);
                next = extent.range.end();
                for (block, content) in contents(extent) {
                    let name = (object, block);
                    let least = cited.get(&name).copied().unwrap_or_default();
                    let version = extent.version;
                    assert!(version >= least, "{name:?}: {least} was cited, {version} is held");
                    let sent = self.sent.get(&name).and_then(|v| v.get(&version));
                    let wanted = match version {
                        Version::ZERO => None,
                        _ => {
                            let (when, content) =
                                sent.expect("what was never sent, or was refused, is there");
                            assert!(*when <= at, "{name:?}: {version} was not sent yet");
                            *content
                        }
                    };
                    assert_eq!(content, wanted, "{name:?} at {version}");
                }
            }
            assert_eq!(next, BLOCKS);
        }
    }

    /// What was applied is open until a watermark passes it; nothing else is; settled is what was settled.
    fn verify_open_sets(&self, store: &Rc<Store>, at: usize) {
        for slot in (1..=4).map(SessionSlot) {
            let sent = self.watermarks.iter().filter(|w| w.0 <= at && w.1 == slot).map(|w| w.2);
            let (mark, found) = (sent.clone().max().unwrap_or_default(), store.watermark(GROUP, slot));
            assert!(found == Version::ZERO || sent.clone().any(|m| m == found), "{found} of {slot:?}");
            let mut open: BTreeMap<(u64, u32, Version), bool> = BTreeMap::new();
            for e in store.open_entries_of(GROUP, slot) {
                assert!(e.version > found);
                open.extend(e.range.blocks().map(|b| ((e.object.index(), b, e.version), e.settled)));
            }
            for ((object, block, version), settled) in &open {
                let sent = self.sent.get(&(*object, *block)).and_then(|v| v.get(version));
                assert!(sent.is_some_and(|s| s.0 <= at), "{version} of {object}/{block} is open");
                let was_settled = self.settled.iter().any(|(when, o, range, v)| {
                    *when <= at && o == object && v == version && range.contains(*block)
                });
                assert!(!settled || was_settled, "{version} of {object}/{block} is settled");
            }
            for (when, object, range, version) in &self.applied {
                if *when <= at && version.slot() == slot && *version > mark {
                    for block in range.blocks() {
                        let is_open = open.contains_key(&(*object, block, *version));
                        assert!(is_open, "{version} of {object}/{block} was applied and is not open");
                    }
                }
            }
        }
    }

    /// The chunk is one copy as a whole, at least the one acknowledged last; a mark is never without its copy.
    /// Returns how many damaged runs it has.
    async fn verify_copy(&self, store: &Rc<Store>, at: usize, chunk: ChunkIndex) -> usize {
        let of_chunk = || self.copies.iter().filter(|c| c.what.chunk == chunk && c.sent <= at);
        let least = of_chunk().filter(|c| c.acked <= at).map(|c| c.what.number).max().unwrap_or(0);
        let found = store.read(SYNCING, COPIED, chunk.range()).await.unwrap();
        let held = found.iter().map(|x| x.version.to_bits()).max().unwrap();
        assert!(held >= least, "copy {held} of {chunk:?}, {least} was acknowledged");
        assert!(held == 0 || of_chunk().any(|c| c.what.number == held), "copy {held} was not sent");
        for extent in &found {
            for (i, block) in extent.range.blocks().map(|b| b - chunk.range().first).zip(0..) {
                let (wanted, version) = match i {
                    10..34 => (Some(held), held),
                    40..44 => (None, held),
                    50..52 => (Some(DAMAGED), held),
                    _ => (None, 0),
                };
                let wanted = if held == 0 { None } else { wanted };
                let content = contents(extent).nth(block).unwrap().1;
                assert_eq!((extent.version.to_bits(), content), (version, wanted), "{i} of {chunk:?}");
            }
        }
        let stint = store.verify_state(SYNCING).unwrap().stint.unwrap();
        let of_stint = || of_chunk().filter(|c| c.what.stint == stint);
        let is_marked = store.chunk_is_verified(SYNCING, COPIED, chunk);
        let must_be = of_stint().any(|c| c.acked <= at);
        assert!(is_marked || !must_be, "{chunk:?} was verified in {stint}, and is not");
        let first = of_stint().map(|c| c.what.number).min();
        assert!(!is_marked || first.is_some_and(|n| held >= n), "{chunk:?} is marked, and holds {held}");
        usize::from(held > 0)
    }

    fn verify_marks(&self, store: &Rc<Store>, at: usize) {
        let stint = store.verify_state(SYNCING).unwrap().stint.unwrap();
        let open = store.open_entries_of(SYNCING, SessionSlot(7));
        let of_stint = || self.marks.iter().filter(|m| m.what.0 == stint && m.sent <= at);
        for entry in &open {
            assert!(entry.settled && of_stint().any(|m| m.what.1 == entry.version), "{entry:?}");
        }
        for marks in of_stint().filter(|m| m.acked <= at) {
            assert!(open.iter().any(|e| e.version == marks.what.1), "{marks:?} are not in {open:?}");
            assert_eq!(store.watermark(SYNCING, SessionSlot(7)), Version::from_bits(7));
        }
    }
}

async fn verify_life(store: &Rc<Store>, at: usize, asked: &Asked<Life>, all: &[Asked<Life>]) {
    let life = asked.what;
    let is_over = life.dropped.1 <= at;
    let object = ObjectId::of_volume(life.volume, 0);
    match store.read(life.group, object, BlockRange::new(126, 5)).await {
        Err(StoreError::UnknownGroup { .. }) => {
            let is_dropped = |l: &Asked<Life>| l.what.by_group && l.what.dropped.0 <= at;
            let dropped = all.iter().any(|l| l.what.group == life.group && is_dropped(l));
            assert!(dropped || asked.sent > at || asked.sent == NEVER, "{life:?} is gone at {at}");
            assert!(asked.acked > at || life.dropped.0 <= at, "{life:?} is gone at {at}");
        }
        Err(error) => panic!("{error}"),
        Ok(found) => {
            for (block, content) in found.iter().flat_map(contents) {
                let is_there = content.is_some();
                assert!(!is_there || (asked.sent <= at && !is_over), "{block} of {life:?} is there at {at}");
                let must_be = asked.acked <= at && life.dropped.0 > at;
                assert!(is_there || !must_be, "{block} of {life:?} is not there at {at}");
                assert!(content.is_none_or(|c| c + 40 == life.volume.0), "{content:?} in {life:?}");
            }
        }
    }
}

/// The content of a block that is damaged.
const DAMAGED: u64 = u64::MAX;

/// The blocks of an extent and whose data they are.
fn contents(extent: &Extent) -> impl Iterator<Item = (u32, Option<u64>)> + '_ {
    extent.range.blocks().map(|block| {
        let content = match &extent.data {
            ExtentData::Zero => None,
            ExtentData::Damaged => Some(DAMAGED),
            ExtentData::Data { buf, .. } => {
                let at = (block - extent.range.first) as usize * BLOCK_SIZE;
                Some(seed_of_sectors(&buf[at..at + BLOCK_SIZE]))
            }
        };
        (block, content)
    })
}

/// Whose data a block is: like `seed_of_block`, but it looks at each sector's ends only.
fn seed_of_sectors(block: &[u8]) -> u64 {
    let word = |i: usize| u64::from_le_bytes(block[8 * i..8 * i + 8].try_into().unwrap());
    for sector in 0..BLOCK_SIZE / 512 {
        for i in [64 * sector, 64 * sector + 63] {
            assert!(word(i) & 0xfff == i as u64 && word(i) >> 12 == word(0) >> 12, "the block is torn");
        }
    }
    word(0) >> 32
}
