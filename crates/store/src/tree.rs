//! The block map on the drive: an immutable copy-on-write B+tree of leaves. A checkpoint makes a new root
//! that shares every page that it did not touch; nothing is ever changed in place.
//!
//! Leaf pages (level 0) hold keys and encoded leaves; inner pages hold, per child, the first key below it,
//! its place and its checksum. So a page that verifies is the page that was meant, all the way down.

use crate::StoreError;
use crate::leaf::{LEAF_BYTES_MAX, Leaf, LeafKey};
use crate::page::{PAGE_ROOM, Page, PageDraft, PageKind, PageReader, PageWriter};
use crate::region::PlaceRun;
use crate::superblock::{PageRef, TreeRoot};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use weft_rt::breathe;
use weft_types::limits::OBJECT_CHUNKS_MAX;
use weft_wire::{Decoder, Encoder};

/// Bytes before each encoded leaf: key and length.
const ITEM_HEADER: usize = LeafKey::BYTES + 2;
const _: () = assert!(ITEM_HEADER + LEAF_BYTES_MAX <= PAGE_ROOM, "any leaf fits a page");

/// Bytes of a child in an inner page: key, place, checksum.
const CHILD_BYTES: usize = LeafKey::BYTES + PageRef::BYTES;

/// Children that are read ahead together when a checkpoint rewrites an inner page.
const READ_AHEAD: usize = 16;

/// Leaf pages that are read or rewritten in a row while other work waits: a tenth of a millisecond.
const PAGES_PER_BREATH: usize = 8;

/// A tree of more levels than this is not one: 106 children per page give far more leaves than any drive has.
const LEVEL_MAX: u8 = 12;

/// A future of a recursive step.
type Step<'f, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + 'f>>;

/// A child in an inner page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    /// A lower bound of the keys below it.
    pub(crate) key: LeafKey,
    /// Its page.
    pub(crate) page: PageRef,
}

/// Finds a leaf.
///
/// # Errors
/// If a page on the way is damaged.
pub(crate) async fn lookup(
    reader: &PageReader,
    root: Option<TreeRoot>,
    key: LeafKey,
) -> Result<Option<Leaf>, StoreError> {
    let Some(TreeRoot { mut page, mut level }) = root else { return Ok(None) };
    while level > 0 {
        let children = children(&*read(reader, page, level).await?, page)?;
        let after = children.partition_point(|c| c.key <= key);
        if after == 0 {
            return Ok(None);
        }
        page = children[after - 1].page;
        level -= 1;
    }
    let found = read(reader, page, 0).await?;
    for item in Items::new(&found, page) {
        let (at, bytes) = item?;
        if at == key {
            return decode_leaf(&found.body()[bytes], page).map(Some);
        }
        if at > key {
            break;
        }
    }
    Ok(None)
}

/// Appends up to `limit` leaves from `from` on, below `end`, in key order.
///
/// # Errors
/// If a page on the way is damaged.
pub(crate) async fn scan(
    reader: &PageReader,
    root: Option<TreeRoot>,
    from: LeafKey,
    end: Option<LeafKey>,
    limit: usize,
) -> Result<Vec<(LeafKey, Leaf)>, StoreError> {
    let mut out = Vec::new();
    if let Some(root) = root {
        scan_page(reader, root, from, end, limit, &mut out).await?;
    }
    Ok(out)
}

fn scan_page<'f>(
    reader: &'f PageReader,
    node: TreeRoot,
    from: LeafKey,
    end: Option<LeafKey>,
    limit: usize,
    out: &'f mut Vec<(LeafKey, Leaf)>,
) -> Step<'f, ()> {
    Box::pin(async move {
        let found = read(reader, node.page, node.level).await?;
        if node.level == 0 {
            for item in Items::new(&found, node.page) {
                let (key, bytes) = item?;
                if key >= from && end.is_none_or(|end| key < end) && out.len() < limit {
                    out.push((key, decode_leaf(&found.body()[bytes], node.page)?));
                }
            }
            return Ok(());
        }
        let children = children(&found, node.page)?;
        let first = children.partition_point(|c| c.key <= from).saturating_sub(1);
        for (i, child) in children[first..].iter().enumerate() {
            if out.len() >= limit || end.is_some_and(|end| child.key >= end) {
                break;
            }
            if i % PAGES_PER_BREATH == PAGES_PER_BREATH - 1 {
                breathe().await;
            }
            let below = TreeRoot { page: child.page, level: node.level - 1 };
            scan_page(reader, below, from, end, limit, out).await?;
        }
        Ok(())
    })
}

/// What a walk calls for each page: the page and its level, and the leaves of a leaf page. It says whether the pages
/// below are to be visited too.
pub(crate) type Visit<'v> = dyn FnMut(TreeRoot, Result<Vec<(LeafKey, Leaf)>, StoreError>) -> bool + 'v;

/// Calls `visit` for every page with its level and, for leaf pages, the leaves. For checks.
///
/// # Errors
/// What `visit` returns; damage is given to `visit` as an error in place of the leaves.
pub(crate) fn walk<'f>(
    reader: &'f PageReader,
    node: TreeRoot,
    visit: &'f mut Visit<'_>,
) -> Pin<Box<dyn Future<Output = ()> + 'f>> {
    Box::pin(async move {
        let found = match read(reader, node.page, node.level).await {
            Ok(found) => found,
            Err(e) => {
                visit(node, Err(e));
                return;
            }
        };
        if node.level == 0 {
            let leaves = Items::new(&found, node.page)
                .map(|item| {
                    let (key, bytes) = item?;
                    Ok((key, decode_leaf(&found.body()[bytes], node.page)?))
                })
                .collect();
            visit(node, leaves);
            return;
        }
        match children(&found, node.page) {
            Err(e) => {
                visit(node, Err(e));
            }
            Ok(children) => {
                if !visit(node, Ok(Vec::new())) {
                    return;
                }
                for child in children {
                    walk(reader, TreeRoot { page: child.page, level: node.level - 1 }, visit).await;
                }
            }
        }
    })
}

async fn read(reader: &PageReader, page: PageRef, level: u8) -> Result<Rc<Page>, StoreError> {
    if level > LEVEL_MAX {
        return Err(StoreError::damaged("a page of the block map", page.place, format!("level {level}")));
    }
    reader.read(page, PageKind::Tree, level).await
}

/// The items of a leaf page: key, and where in the body its leaf lies.
struct Items<'a> {
    page: &'a Page,
    at: usize,
    left: usize,
    from: PageRef,
}

impl<'a> Items<'a> {
    fn new(page: &'a Page, from: PageRef) -> Self {
        Items { page, at: 0, left: page.count(), from }
    }
}

impl Iterator for Items<'_> {
    type Item = Result<(LeafKey, Range<usize>), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let body = self.page.body();
        let item = body.get(self.at..self.at + ITEM_HEADER).and_then(|head| {
            let key = LeafKey::from_bytes(head[..LeafKey::BYTES].try_into().ok()?);
            let len = usize::from(u16::from_le_bytes(head[LeafKey::BYTES..].try_into().ok()?));
            let start = self.at + ITEM_HEADER;
            let is_possible = u32::from(key.chunk.0) < OBJECT_CHUNKS_MAX;
            (is_possible && start + len <= body.len()).then_some((key, start..start + len))
        });
        match item {
            Some((key, bytes)) => {
                self.at = bytes.end;
                Some(Ok((key, bytes)))
            }
            None => {
                self.left = 0;
                let reason = format!("its items end at byte {}, or name a chunk that no object has", self.at);
                Some(Err(StoreError::damaged("a page of the block map", self.from.place, reason)))
            }
        }
    }
}

fn children(page: &Page, from: PageRef) -> Result<Vec<Child>, StoreError> {
    let damaged = |reason: &str| StoreError::damaged("a page of the block map", from.place, reason);
    if page.count() > page.body().len() / CHILD_BYTES {
        return Err(damaged("it says that it has more children than a page holds"));
    }
    let mut d = Decoder::new(page.body());
    let mut out = Vec::with_capacity(page.count());
    for _ in 0..page.count() {
        let key = d.array().map_err(|_| damaged("its children pass its end"))?;
        let page = PageRef::decode(&mut d).map_err(|_| damaged("a child of it lies beyond every drive"))?;
        out.push(Child { key: LeafKey::from_bytes(&key), page });
    }
    if out.is_empty() || !out.is_sorted_by(|a, b| a.key < b.key) {
        return Err(damaged("its children are not in order"));
    }
    Ok(out)
}

/// Decodes a page's body in both ways, for fuzzing.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn decode_any(count: u16, body: &[u8]) {
    let draft = PageDraft {
        kind: PageKind::Tree,
        level: 0,
        count,
        checkpoint: 1,
        body: &body[..body.len().min(PAGE_ROOM)],
    };
    let (page, from) = Page::drafted(&draft);
    let mut found = 0;
    for item in Items::new(&page, from) {
        found += 1;
        if let Ok((_, leaf)) = item {
            let _ = decode_leaf(&page.body()[leaf], from);
        }
    }
    assert!(found <= usize::from(count));
    if let Ok(children) = children(&page, from) {
        assert_eq!(children.len(), usize::from(count));
        assert_eq!(partition(&children, &[]).len(), children.len());
    }
}

fn decode_leaf(bytes: &[u8], from: PageRef) -> Result<Leaf, StoreError> {
    Leaf::decode(bytes)
        .map_err(|e| StoreError::damaged("a page of the block map", from.place, format!("leaf: {e}")))
}

/// Changes to the map, sorted by key; an empty leaf removes its key.
pub(crate) type Updates = [(LeafKey, Rc<Leaf>)];

/// The making of a new root.
pub(crate) struct TreeBuild<'a> {
    pub(crate) reader: &'a PageReader,
    pub(crate) writer: PageWriter<'a>,
    pub(crate) checkpoint: u64,
    /// Pages of the old root that the new one does not reach.
    pub(crate) retired: Vec<PageRef>,
}

impl TreeBuild<'_> {
    /// Makes the root of the map with the updates, writing only pages that they touch.
    ///
    /// # Errors
    /// If a page that has to be read is damaged, or one cannot be written.
    pub(crate) async fn apply(
        &mut self,
        root: Option<TreeRoot>,
        updates: &Updates,
    ) -> Result<Option<TreeRoot>, StoreError> {
        debug_assert!(updates.is_sorted_by(|a, b| a.0 < b.0));
        if updates.is_empty() {
            return Ok(root);
        }
        let (mut nodes, mut level) = match root {
            None => (self.rewrite_leaf_page(None, updates).await?, 0),
            Some(TreeRoot { page, level: 0 }) => (self.rewrite_leaf_page(Some(page), updates).await?, 0),
            Some(TreeRoot { page, level }) => {
                (self.rewrite_children(page, level, updates).await?.0, level - 1)
            }
        };
        while nodes.len() > 1 {
            level += 1;
            nodes = self.write_inner(&nodes, level, false).await?;
        }
        Ok(nodes.first().map(|c| TreeRoot { page: c.page, level }))
    }

    /// Rewrites what the updates touch below an inner page; returns its new children, and whether only its
    /// last child was touched.
    fn rewrite_children<'f>(
        &'f mut self,
        page: PageRef,
        level: u8,
        updates: &'f Updates,
    ) -> Step<'f, (Vec<Child>, bool)> {
        Box::pin(async move {
            let old = children(&*read(self.reader, page, level).await?, page)?;
            self.retired.push(page);
            let parts = partition(&old, updates);
            let touched: Vec<PageRef> =
                parts.iter().zip(&old).filter(|(p, _)| !p.is_empty()).map(|(_, c)| c.page).collect();
            let is_at_end = touched.len() == 1 && parts.last().is_some_and(|p| !p.is_empty());
            let (mut new, mut ahead) = (Vec::with_capacity(old.len() + 1), touched.chunks(READ_AHEAD));
            let mut seen = 0;
            for (child, part) in old.iter().zip(parts) {
                if part.is_empty() {
                    new.push(*child);
                    continue;
                }
                if seen % READ_AHEAD == 0 && touched.len() > 1 {
                    let next = ahead.next().expect("one window per started run of touched children");
                    self.reader.prefetch(next, level - 1).await?;
                }
                seen += 1;
                if seen % PAGES_PER_BREATH == 0 {
                    breathe().await;
                }
                let below = &updates[part];
                if level == 1 {
                    new.extend(self.rewrite_leaf_page(Some(child.page), below).await?);
                } else {
                    let (children, at_end) = self.rewrite_children(child.page, level - 1, below).await?;
                    new.extend(self.write_inner(&children, level - 1, at_end).await?);
                }
            }
            Ok((new, is_at_end))
        })
    }

    /// Merges updates into a leaf page; returns the pages that replace it.
    async fn rewrite_leaf_page(
        &mut self,
        page: Option<PageRef>,
        updates: &Updates,
    ) -> Result<Vec<Child>, StoreError> {
        let old = match page {
            Some(page) => {
                self.retired.push(page);
                Some((read(self.reader, page, 0).await?, page))
            }
            None => None,
        };
        let (items, is_at_end) = merge(old.as_ref().map(|(p, r)| (&**p, *r)), updates)?;
        let sizes: Vec<usize> = items.items.iter().map(|(_, bytes)| bytes.len()).collect();
        let mut out = Vec::new();
        for part in split(&sizes, is_at_end) {
            let bytes = items.items[part.start].1.start..items.items[part.end - 1].1.end;
            let draft = PageDraft {
                kind: PageKind::Tree,
                level: 0,
                count: part.len() as u16,
                checkpoint: self.checkpoint,
                body: &items.bytes[bytes],
            };
            out.push(Child { key: items.items[part.start].0, page: self.writer.write(&draft).await? });
        }
        Ok(out)
    }

    /// Writes inner pages over the children.
    async fn write_inner(
        &mut self,
        children: &[Child],
        level: u8,
        is_at_end: bool,
    ) -> Result<Vec<Child>, StoreError> {
        let mut out = Vec::new();
        for part in split(&vec![CHILD_BYTES; children.len()], is_at_end) {
            let part = &children[part];
            let mut e = Encoder::with_capacity(part.len() * CHILD_BYTES);
            for child in part {
                e.bytes(&child.key.to_bytes());
                child.page.encode(&mut e);
            }
            let draft = PageDraft {
                kind: PageKind::Tree,
                level,
                count: part.len() as u16,
                checkpoint: self.checkpoint,
                body: &e.0,
            };
            out.push(Child { key: part[0].key, page: self.writer.write(&draft).await? });
        }
        Ok(out)
    }
}

/// Which updates belong below which child: those below the first child's key belong to it too.
fn partition(children: &[Child], updates: &Updates) -> Vec<Range<usize>> {
    let mut from = 0;
    let mut parts = Vec::with_capacity(children.len());
    for next in children.iter().skip(1).map(|c| Some(c.key)).chain([None]) {
        let to = next.map_or(updates.len(), |key| from + updates[from..].partition_point(|u| u.0 < key));
        parts.push(from..to);
        from = to;
    }
    parts
}

/// Items one behind the other as they will stand in pages.
struct Merged {
    bytes: Vec<u8>,
    /// Key, and where in `bytes` the item lies, its header included.
    items: Vec<(LeafKey, Range<usize>)>,
}

impl Merged {
    fn push_old(&mut self, key: LeafKey, leaf: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&key.to_bytes());
        self.bytes.extend_from_slice(&(leaf.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(leaf);
        self.items.push((key, start..self.bytes.len()));
    }

    fn push_new(&mut self, key: LeafKey, leaf: &Leaf) {
        if leaf.is_empty() {
            return;
        }
        let start = self.bytes.len();
        let mut e = Encoder(std::mem::take(&mut self.bytes));
        e.bytes(&key.to_bytes()).u16(leaf.encoded_len() as u16);
        leaf.encode(&mut e);
        self.bytes = e.0;
        self.items.push((key, start..self.bytes.len()));
    }
}

/// Merges the items of a page with updates; the second result says whether all updates lie behind the page.
fn merge(old: Option<(&Page, PageRef)>, updates: &Updates) -> Result<(Merged, bool), StoreError> {
    let mut merged = Merged { bytes: Vec::with_capacity(2 * PAGE_ROOM), items: Vec::new() };
    let mut next = 0;
    let mut last_old = None;
    if let Some((page, from)) = old {
        for item in Items::new(page, from) {
            let (key, bytes) = item?;
            while next < updates.len() && updates[next].0 < key {
                merged.push_new(updates[next].0, &updates[next].1);
                next += 1;
            }
            if next < updates.len() && updates[next].0 == key {
                merged.push_new(key, &updates[next].1);
                next += 1;
            } else {
                merged.push_old(key, &page.body()[bytes]);
            }
            last_old = Some(key);
        }
    }
    for (key, leaf) in &updates[next..] {
        merged.push_new(*key, leaf);
    }
    let is_at_end = updates.first().is_some_and(|u| last_old.is_none_or(|last| u.0 > last));
    Ok((merged, is_at_end))
}

/// Cuts items into pages. Pages that grow at their end are filled to the brim, because nothing will be
/// inserted between; others are cut evenly, so that each has room for what comes between.
fn split(sizes: &[usize], is_at_end: bool) -> Vec<Range<usize>> {
    let total: usize = sizes.iter().sum();
    let goal = if is_at_end { PAGE_ROOM } else { total.div_ceil(total.div_ceil(PAGE_ROOM).max(1)) };
    let (mut parts, mut from, mut filled) = (Vec::new(), 0, 0);
    for (i, size) in sizes.iter().enumerate() {
        if filled > 0 && (filled + size > PAGE_ROOM || filled >= goal) {
            parts.push(from..i);
            (from, filled) = (i, 0);
        }
        filled += size;
    }
    if filled > 0 {
        parts.push(from..sizes.len());
    }
    parts
}

/// The places of pages.
pub(crate) fn places(pages: &[PageRef]) -> impl Iterator<Item = PlaceRun> + '_ {
    pages.iter().map(|p| PlaceRun { place: p.place, count: 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaf::{Kind, Run};
    use crate::region::Place;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use weft_rt::sim::{Sim, SimDisk};
    use weft_types::{ChunkIndex, GroupId, ObjectId, Version, VolumeId};

    fn key(n: u32) -> LeafKey {
        let object = ObjectId::of_volume(VolumeId(1), u64::from(n / 8));
        LeafKey { group: GroupId(3), object, chunk: ChunkIndex((n % 8) as u16) }
    }

    fn leaf(runs: u8, version: u64) -> Rc<Leaf> {
        let mut leaf = Leaf::default();
        for i in 0..runs {
            let place = Place(10_000 + 3 * u64::from(i));
            let run =
                Run { version: Version::from_bits(version), place, first: i, count: 1, kind: Kind::Data };
            leaf.put(run, &[7], &mut Vec::new());
        }
        Rc::new(leaf)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn a_tree_is_what_a_sorted_map_is(
            rounds in prop::collection::vec(
                prop::collection::btree_map(0u32..900, (0u8..128, 1u64..1000), 1..120), 1..12)
        ) {
            Sim::new(1).block_on(async move {
                let disk = SimDisk::new("d", 256 << 20);
                let reader = PageReader::new(disk.open().unwrap(), 1 << 20);
                let next = Cell::new(100);
                let allocate = || { next.set(next.get() + 1); Some(Place(next.get())) };
                let mut model: BTreeMap<LeafKey, Rc<Leaf>> = BTreeMap::new();
                let (mut root, mut live) = (None, std::collections::BTreeSet::new());
                for (i, round) in rounds.into_iter().enumerate() {
                    let updates: Vec<_> =
                        round.into_iter().map(|(n, (runs, v))| (key(n), leaf(runs, v))).collect();
                    let writer = PageWriter::new(reader.drive().clone(), &allocate);
                    let mut build = TreeBuild {
                        reader: &reader, writer, checkpoint: i as u64, retired: Vec::new(),
                    };
                    root = build.apply(root, &updates).await.unwrap();
                    for page in std::mem::take(&mut build.retired) {
                        assert!(live.remove(&page.place), "retired twice");
                    }
                    build.writer.finish().await.unwrap();
                    live.extend(build.writer.taken.iter().map(|r| r.place));
                    for (key, leaf) in updates {
                        if leaf.is_empty() { model.remove(&key); } else { model.insert(key, leaf); }
                    }
                    let all = scan(&reader, root, key(0), None, usize::MAX).await.unwrap();
                    assert_eq!(all.len(), model.len());
                    assert!(all.iter().zip(&model).all(|(a, b)| a.0 == *b.0 && a.1 == **b.1));
                    let mut reached = std::collections::BTreeSet::new();
                    if let Some(root) = root {
                        walk(&reader, root, &mut |node, leaves| {
                            leaves.unwrap();
                            assert!(reached.insert(node.page.place));
                            true
                        }).await;
                    }
                    assert_eq!(reached, live, "pages are neither lost nor shared");
                }
                for n in (0..900).step_by(7) {
                    let found = lookup(&reader, root, key(n)).await.unwrap();
                    assert_eq!(found.as_ref(), model.get(&key(n)).map(|l| &**l));
                    let some = scan(&reader, root, key(n), Some(key(n + 40)), 5).await.unwrap();
                    let want: Vec<_> = model.range(key(n)..key(n + 40)).take(5).map(|(k, _)| *k).collect();
                    assert_eq!(some.iter().map(|s| s.0).collect::<Vec<_>>(), want);
                }
            });
        }
    }

    #[test]
    fn pages_that_grow_at_the_end_are_full_and_others_even() {
        assert_eq!(split(&[1000; 9], true), [0..4, 4..8, 8..9]);
        assert_eq!(split(&[1000; 9], false), [0..3, 3..6, 6..9]);
        assert_eq!(split(&[PAGE_ROOM, 1, PAGE_ROOM], false), [0..1, 1..2, 2..3]);
        assert!(split(&[], true).is_empty());
    }
}
