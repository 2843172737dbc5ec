//! The tables on the medium: a copy-on-write tree of pages. A checkpoint makes a new root that shares every
//! page in which nothing has changed; no page is ever changed in place.
//!
//! Pages of level 0 hold items; those above hold, for each page below, a lower bound of its keys, its block
//! and its checksum. So a page that verifies is the page that was meant. Which pages there are is kept in
//! memory.

use crate::error::MetaError;
use crate::key::Key;
use crate::medium::{Medium, read_whole};
use crate::page::{PAGE, PAGE_ROOM, PageHead, PageRef, decode_page, encode_page};
use crate::place::Places;
use crate::record::{VALUE_BYTES_MAX, Value, check_value};
use crate::superblock::{Root, ShardName, Superblock};
use crate::tables::Tables;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};
use weft_rt::sync::join_all;
use weft_rt::{Buf, breathe};
use weft_wire::{DecodeError, Decoder, Encoder};

/// Bytes before an item: the lengths of key and value.
const ITEM_HEAD_BYTES: usize = 4;
const _: () = assert!(2 * (ITEM_HEAD_BYTES + Key::BYTES_MAX + VALUE_BYTES_MAX) <= PAGE_ROOM, "two items fit");

/// Bytes of a page in the page above, besides its key.
const CHILD_BYTES: usize = 2 + 8 + 4;
const _: () = assert!(5 * (CHILD_BYTES + Key::BYTES_MAX) <= PAGE_ROOM, "a page has at least five below it");

/// Pages that are read at the same time.
const READS_MAX: usize = 64;

/// Blocks that one write of a checkpoint has at most, and writes that are under way at the same time.
const RUN_BLOCKS_MAX: usize = 64;
const WRITES_MAX: usize = 4;

/// Pages that are made in a row while other work waits: some tens of microseconds.
const PAGES_PER_BREATH: usize = 4;

/// Pages below this fill are made one with the next.
const SPARSE_BYTES: usize = 2 * PAGE_ROOM / 5;

/// Which pages there are: for each level, by a lower bound of their keys. The highest level has one page,
/// unless there are no items.
#[derive(Clone, Default)]
pub(crate) struct Tree {
    levels: Vec<BTreeMap<Key, PageRef>>,
}

/// What a step of a checkpoint writes, and what the tree does not reach behind it.
pub(crate) struct Rewritten {
    /// New pages, by block.
    pub(crate) pages: BTreeMap<u64, Vec<u8>>,
    /// Blocks of pages that the new tree does not reach.
    pub(crate) retired: Vec<u64>,
    /// Changed keys whose items the new tree has as they were, or not at all.
    pub(crate) rest: BTreeSet<Key>,
}

impl Tree {
    /// Reads all pages and their items. Says also which blocks the pages have.
    ///
    /// # Errors
    /// If a page is damaged, or lies where none can be.
    pub(crate) async fn load(
        medium: &impl Medium,
        superblock: &Superblock,
        tables: &mut Tables,
    ) -> Result<(Tree, BTreeSet<u64>), MetaError> {
        let mut used = BTreeSet::new();
        let Some(root) = superblock.root else { return Ok((Tree::default(), used)) };
        let mut levels = vec![BTreeMap::from([(Key::lowest(), root.page)])];
        for level in (0..=root.level).rev() {
            let pages: Vec<(Key, PageRef)> =
                levels[0].iter().map(|(key, page)| (key.clone(), *page)).collect();
            let mut below = BTreeMap::new();
            for some in pages.chunks(READS_MAX) {
                for (_, page) in some {
                    check_place(*page, superblock, medium.blocks(), &mut used)?;
                }
                let reads = some.iter().map(|(_, page)| read_whole(medium, page.block, 1));
                for (bytes, (bound, page)) in join_all(reads).await.into_iter().zip(some) {
                    let page = Loaded { bytes: bytes?, name: superblock.name, page: *page, bound, level };
                    match level {
                        0 => page.items(tables)?,
                        _ => page.children(&mut below)?,
                    }
                }
                breathe().await;
            }
            if level > 0 {
                levels.insert(0, below);
            }
        }
        Ok((Tree { levels }, used))
    }

    /// Pages, and levels of these.
    pub(crate) fn size(&self) -> (u64, u8) {
        (self.levels.iter().map(|level| level.len() as u64).sum(), self.levels.len() as u8)
    }

    /// The page that everything is reached from; `None` if there are no items.
    pub(crate) fn root(&self) -> Option<Root> {
        let page = *self.levels.last()?.values().next()?;
        Some(Root { page, level: (self.levels.len() - 1) as u8 })
    }

    /// Puts the first of these keys, which have changed since this tree was made, into it: those whose items
    /// fill `pages_most` pages, or little more. `items` gives the items of a range that are wanted.
    pub(crate) async fn rewrite(
        &mut self,
        (changed, pages_most): (BTreeSet<Key>, usize),
        items: impl Fn(&Key, Option<&Key>, &mut dyn FnMut(&Key, &Value) -> bool) -> Vec<(Key, Value)>,
        (name, checkpoint): (ShardName, u64),
        places: &mut Places,
    ) -> Rewritten {
        let mut rewrite =
            Rewrite { name, checkpoint, places, pages: BTreeMap::new(), retired: Vec::new(), made: 0 };
        let levels = &mut self.levels;
        let (mut touched, mut rest) = (changed, BTreeSet::new());
        let mut level = 0;
        while !touched.is_empty() {
            if level == levels.len() {
                if level > 0 && levels[level - 1].len() <= 1 {
                    break;
                }
                levels.push(BTreeMap::new());
            }
            let (below, above) = levels.split_at_mut(level);
            touched = match below.last() {
                None => {
                    let encoded = |from: &Key, to: Option<&Key>, share: &mut Share| {
                        let items = items(from, to, &mut |key, value| share.takes(key, value.len()));
                        items.into_iter().map(|(key, value)| encode_item(key, &value)).collect()
                    };
                    let mut share = Share::of(touched, pages_most);
                    let moved = rewrite.level(&mut above[0], 0, &mut share, encoded).await;
                    rest = share.rest();
                    moved
                }
                Some(children) => {
                    let encoded = |from: &Key, to: Option<&Key>, _: &mut Share| {
                        let range = (Bound::Included(from), to.map_or(Bound::Unbounded, Bound::Excluded));
                        children.range(range).map(|(key, page)| encode_child(key, *page)).collect()
                    };
                    let mut share = Share::all(touched);
                    rewrite.level(&mut above[0], level as u8, &mut share, encoded).await
                }
            };
            level += 1;
        }
        // Levels above a single page say nothing.
        while levels.len() > 1 && levels[levels.len() - 2].len() <= 1 {
            let top = levels.pop().expect("there are two");
            rewrite.retired.extend(top.values().map(|page| page.block));
        }
        levels.retain(|level| !level.is_empty());
        Rewritten { pages: rewrite.pages, retired: rewrite.retired, rest }
    }
}

/// How much of what has changed a step takes, by its keys in their order.
struct Share {
    touched: BTreeSet<Key>,
    /// Bytes of items that its pages may have yet.
    room: usize,
    /// Whether it has an item that has changed: else the next step would be the same.
    has_some: bool,
    /// Where the next step begins.
    rest_from: Option<Key>,
}

impl Share {
    fn of(touched: BTreeSet<Key>, pages: usize) -> Share {
        Share { touched, room: pages.saturating_mul(PAGE_ROOM), has_some: false, rest_from: None }
    }

    fn all(touched: BTreeSet<Key>) -> Share {
        Share::of(touched, usize::MAX)
    }

    /// Whether the new pages have an item. An item that has not changed stays in its page. A changed item
    /// that is left for the next step may be missing until then: the log has it.
    fn takes(&mut self, key: &Key, value_bytes: usize) -> bool {
        if self.touched.contains(key) {
            if self.room == 0 && self.has_some {
                self.rest_from.get_or_insert_with(|| key.clone());
            }
            if self.rest_from.is_some() {
                return false;
            }
            self.has_some = true;
        }
        self.room = self.room.saturating_sub(ITEM_HEAD_BYTES + key.bytes().len() + value_bytes);
        true
    }

    /// The key that is next behind a part of the level, if the step takes one more.
    fn next(&mut self, end: Option<&Key>) -> Option<Key> {
        if self.rest_from.is_some() {
            return None;
        }
        let next = self.touched.range(end?..).next().cloned();
        if self.room > 0 {
            return next;
        }
        self.rest_from = next;
        None
    }

    fn rest(mut self) -> BTreeSet<Key> {
        self.rest_from.map(|from| self.touched.split_off(&from)).unwrap_or_default()
    }
}

/// An item or a child as it stands in a page.
struct Encoded {
    key: Key,
    bytes: Vec<u8>,
}

fn encode_item(key: Key, value: &[u8]) -> Encoded {
    let mut e = Encoder::with_capacity(ITEM_HEAD_BYTES + key.bytes().len() + value.len());
    e.u16(key.bytes().len() as u16).u16(value.len() as u16).bytes(key.bytes()).bytes(value);
    Encoded { key, bytes: e.0 }
}

fn encode_child(key: &Key, page: PageRef) -> Encoded {
    let mut e = Encoder::with_capacity(CHILD_BYTES + key.bytes().len());
    e.u16(key.bytes().len() as u16).u64(page.block).u32(page.crc).bytes(key.bytes());
    Encoded { key: key.clone(), bytes: e.0 }
}

/// The making of new pages.
struct Rewrite<'a> {
    name: ShardName,
    checkpoint: u64,
    places: &'a mut Places,
    pages: BTreeMap<u64, Vec<u8>>,
    retired: Vec<u64>,
    made: usize,
}

impl Rewrite<'_> {
    /// Makes pages of a level again in which keys were touched; returns the bounds of pages that came or
    /// went.
    async fn level(
        &mut self,
        level: &mut BTreeMap<Key, PageRef>,
        number: u8,
        share: &mut Share,
        encoded: impl Fn(&Key, Option<&Key>, &mut Share) -> Vec<Encoded>,
    ) -> BTreeSet<Key> {
        let mut moved = BTreeSet::new();
        let mut next = share.touched.first().cloned();
        while let Some(key) = next {
            let range = self.retire(level, (&key, share), &encoded, &mut moved);
            for (bound, page) in self.make(number, &range) {
                moved.insert(bound.clone());
                level.insert(bound, page);
            }
            next = share.next(range.end.as_ref());
            if self.made >= PAGES_PER_BREATH {
                self.made = 0;
                breathe().await;
            }
        }
        moved
    }

    /// Takes the page of a key out of its level, and those behind it as long as what was taken is little, and
    /// the step has room.
    fn retire(
        &mut self,
        level: &mut BTreeMap<Key, PageRef>,
        (key, share): (&Key, &mut Share),
        encoded: &impl Fn(&Key, Option<&Key>, &mut Share) -> Vec<Encoded>,
        moved: &mut BTreeSet<Key>,
    ) -> Filled {
        let bound = level
            .range(..=key.clone())
            .next_back()
            .or(level.first_key_value())
            .map(|(bound, _)| bound.clone());
        let mut from = match &bound {
            Some(bound) if level.first_key_value().is_some_and(|(first, _)| first != bound) => bound.clone(),
            _ => Key::lowest(),
        };
        let start = from.clone();
        let mut page = bound;
        let mut filled = Filled { start, end: None, parts: Vec::new() };
        loop {
            if let Some(bound) = page.take() {
                let old = level.remove(&bound).expect("it was found there");
                self.retired.push(old.block);
                moved.insert(bound);
            }
            let following = level.range(from.clone()..).next().map(|(bound, _)| bound.clone());
            filled.parts.extend(encoded(&from, following.as_ref(), share));
            filled.end = following.clone();
            match following {
                Some(bound) if filled.bytes() < SPARSE_BYTES && share.rest_from.is_none() => {
                    (from, page) = (bound.clone(), Some(bound));
                }
                _ => return filled,
            }
        }
    }

    /// Makes pages of items or children: full ones if there are many, equal ones if there are two.
    fn make(&mut self, level: u8, filled: &Filled) -> Vec<(Key, PageRef)> {
        let mut pages = Vec::new();
        for part in split(&filled.parts) {
            let part = &filled.parts[part];
            let body: Vec<u8> = part.iter().flat_map(|encoded| &encoded.bytes).copied().collect();
            let head = PageHead { level, count: part.len() as u16, checkpoint: self.checkpoint };
            let (bytes, crc) = encode_page(self.name, head, &body);
            let block = self.places.take();
            self.pages.insert(block, bytes);
            self.made += 1;
            pages.push((part[0].key.clone(), PageRef { block, crc }));
        }
        // The first page of a level holds whatever comes before.
        if let (true, Some(first)) = (filled.start == Key::lowest(), pages.first_mut()) {
            first.0 = Key::lowest();
        }
        pages
    }
}

/// What is to be put into pages.
struct Filled {
    start: Key,
    /// Where the page behind begins; `None` if it is the last.
    end: Option<Key>,
    parts: Vec<Encoded>,
}

impl Filled {
    fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes.len()).sum()
    }
}

/// Which of these go to one page.
fn split(parts: &[Encoded]) -> Vec<Range<usize>> {
    let fill = |room: usize| {
        let (mut ranges, mut start, mut bytes) = (Vec::new(), 0, 0);
        for (n, part) in parts.iter().enumerate() {
            let length = part.bytes.len();
            if n > start && (bytes + length > PAGE_ROOM || bytes >= room) {
                ranges.push(start..n);
                (start, bytes) = (n, 0);
            }
            bytes += length;
        }
        if start < parts.len() {
            ranges.push(start..parts.len());
        }
        ranges
    };
    let ranges = fill(PAGE_ROOM);
    if ranges.len() != 2 {
        return ranges;
    }
    let half = parts.iter().map(|part| part.bytes.len()).sum::<usize>() / 2;
    let halves = fill(half);
    if halves.len() == 2 { halves } else { ranges }
}

/// A page that was read.
pub(crate) struct Loaded<'a> {
    pub(crate) bytes: Vec<u8>,
    pub(crate) name: ShardName,
    pub(crate) page: PageRef,
    /// No key in it is lower.
    pub(crate) bound: &'a Key,
    pub(crate) level: u8,
}

impl Loaded<'_> {
    /// Calls `each` for what is in the page, one behind the other.
    fn read(
        &self,
        mut each: impl FnMut(&mut Decoder<'_>) -> Result<Key, DecodeError>,
    ) -> Result<(), MetaError> {
        let damaged = |reason: String| MetaError::damaged(PAGE, self.page.block, reason);
        let (head, body) = decode_page(&self.bytes, self.name, self.page, self.level)?;
        let mut d = Decoder::new(&self.bytes[body]);
        let mut last: Option<Key> = None;
        for _ in 0..head.count {
            let key = each(&mut d).map_err(|error| damaged(error.to_string()))?;
            if last.as_ref().is_some_and(|last| *last >= key) || key < *self.bound {
                return Err(damaged(format!("{key:?} is not in order")));
            }
            last = Some(key);
        }
        d.finish().map_err(|error| damaged(error.to_string()))
    }

    /// Puts its items in the tables.
    pub(crate) fn items(&self, tables: &mut Tables) -> Result<(), MetaError> {
        self.read(|d| {
            let (key, value) = (d.u16()?, d.u16()?);
            let key = decode_key(d, key)?;
            let value = d.bytes(value.into())?;
            check_value(&key, value)?;
            tables.load(key.clone(), value.into());
            Ok(key)
        })
    }

    /// Adds the pages below it.
    pub(crate) fn children(&self, below: &mut BTreeMap<Key, PageRef>) -> Result<(), MetaError> {
        self.read(|d| {
            let length = d.u16()?;
            let page = PageRef { block: d.u64()?, crc: d.u32()? };
            let key = if length == 0 { Key::lowest() } else { decode_key(d, length)? };
            below.insert(key.clone(), page);
            Ok(key)
        })
    }
}

fn decode_key(d: &mut Decoder<'_>, length: u16) -> Result<Key, DecodeError> {
    Key::from_bytes(d.bytes(length.into())?)
        .ok_or(DecodeError::Invalid { field: "key", value: length.into() })
}

/// Whether a page may lie there.
///
/// # Errors
/// If it lies outside of where pages are, or where another one is.
fn check_place(
    page: PageRef,
    superblock: &Superblock,
    blocks: u64,
    used: &mut BTreeSet<u64>,
) -> Result<(), MetaError> {
    if !(superblock.first_page()..blocks).contains(&page.block) {
        return Err(MetaError::damaged(PAGE, page.block, "no page can be there"));
    }
    match used.insert(page.block) {
        true => Ok(()),
        false => Err(MetaError::damaged(PAGE, page.block, "it is reached twice")),
    }
}

/// Writes pages: neighbours together, a few writes at a time.
///
/// # Errors
/// Those of the medium, and if that is too small.
pub(crate) async fn write_pages(
    medium: &impl Medium,
    pages: BTreeMap<u64, Vec<u8>>,
) -> Result<(), MetaError> {
    if let Some(needed) =
        pages.last_key_value().map(|(block, _)| *block).filter(|block| *block >= medium.blocks())
    {
        return Err(MetaError::NoSpace { needed, blocks: medium.blocks() });
    }
    let mut runs: Vec<(u64, Vec<Buf>)> = Vec::new();
    for (block, page) in pages {
        match runs.last_mut() {
            Some((first, run)) if *first + run.len() as u64 == block && run.len() < RUN_BLOCKS_MAX => {
                run.push(Buf::from(page));
            }
            _ => runs.push((block, vec![Buf::from(page)])),
        }
    }
    let mut runs = runs.into_iter().peekable();
    while runs.peek().is_some() {
        let some = runs.by_ref().take(WRITES_MAX).map(|(block, run)| medium.write(block, run));
        join_all(some).await.into_iter().collect::<Result<Vec<()>, _>>()?;
    }
    Ok(())
}
