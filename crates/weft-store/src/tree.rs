//! The block map on the drive: an immutable copy-on-write B+tree of leaves. A checkpoint makes a new root
//! that shares every page that it did not touch; nothing is ever changed in place.
//!
//! Leaf pages (level 0) hold keys and encoded leaves; inner pages hold, per child, the first key below
//! it, its place, its checksum and the newest version below it. So a page that verifies is the page that
//! was meant, all the way down; and who looks for what changed since a version passes over pages that
//! hold nothing newer.
//!
//! Pages of format 1, which say nothing of versions, are read as they are and rewritten in the
//! present format.

use crate::StoreError;
use crate::error::Fault;
use crate::leaf::{LEAF_BYTES_MAX, Leaf, LeafKey};
use crate::page::{PAGE_ROOM, Page, PageDraft, PageKind, PageReader, PageWriter};
use crate::region::PlaceRun;
use crate::superblock::{PageRef, TreeRoot};
use crate::v1;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use weft_rt::breathe;
use weft_types::Version;
use weft_types::limits::OBJECT_CHUNKS_MAX;
use weft_wire::{Decoder, Encoder};

/// Bytes before each encoded leaf: key and length.
const ITEM_HEADER: usize = LeafKey::BYTES + LENGTH_BYTES;
const LENGTH_BYTES: usize = 2;
const _: () = assert!(ITEM_HEADER + LEAF_BYTES_MAX <= PAGE_ROOM, "any leaf fits a page");

/// Bytes of a child in an inner page: key, place, checksum, newest version.
pub(crate) const CHILD_BYTES: usize = LeafKey::BYTES + PageRef::BYTES + size_of::<Version>();

/// What stands for the newest version below a page of format 1, and below any page that reaches one: no
/// version is newer, so nothing that looks for changes passes over it.
pub(crate) const UNKNOWN: Version = Version::from_bits(u64::MAX);

/// Children that are read ahead together when a checkpoint rewrites an inner page.
const READ_AHEAD: usize = 16;

/// Leaf pages that are read or rewritten in a row while other work waits: a tenth of a millisecond.
const PAGES_PER_BREATH: usize = 8;

/// A tree of more levels than this is not one: 76 children per page give far more leaves than any drive has.
const LEVEL_MAX: u8 = 12;

/// What errors call a page.
const PAGE: &str = "a page of the block map";

/// A future of a recursive step.
type Step<'f, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + 'f>>;

/// A child in an inner page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    /// A lower bound of the keys below it.
    pub(crate) key: LeafKey,
    /// Its page.
    pub(crate) page: PageRef,
    /// The newest version of all leaves below it, or [`UNKNOWN`].
    pub(crate) newest: Version,
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
    let Some(TreeRoot { mut page, mut level, .. }) = root else { return Ok(None) };
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
            let below = child.root(node.level - 1);
            scan_page(reader, below, from, end, limit, out).await?;
        }
        Ok(())
    })
}

/// What a walk has found in a page.
pub(crate) struct Visited {
    /// The leaves of a leaf page.
    pub(crate) leaves: Vec<(LeafKey, Leaf)>,
    /// The newest version that the page itself tells of, or [`UNKNOWN`]: what stands above it has to say
    /// the same.
    pub(crate) newest: Version,
    /// The format of the page.
    pub(crate) format: u16,
}

/// What a walk calls for each page: how it is referred to, and what is in it. It says whether the pages
/// below are to be visited too.
pub(crate) type Visit<'v> = dyn FnMut(TreeRoot, Result<Visited, StoreError>) -> bool + 'v;

/// Calls `visit` for every page with what refers to it and what is in it. For checks.
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
            visit(node, visited(&found, node.page));
            return;
        }
        match children(&found, node.page) {
            Err(e) => {
                visit(node, Err(e));
            }
            Ok(children) => {
                let (newest, format) = (newest_of(&children), found.format());
                if !visit(node, Ok(Visited { leaves: Vec::new(), newest, format })) {
                    return;
                }
                for child in children {
                    walk(reader, child.root(node.level - 1), visit).await;
                }
            }
        }
    })
}

/// What is in a leaf page.
fn visited(found: &Page, from: PageRef) -> Result<Visited, StoreError> {
    let leaves = Items::new(found, from)
        .map(|item| {
            let (key, bytes) = item?;
            Ok((key, decode_leaf(&found.body()[bytes], from)?))
        })
        .collect::<Result<Vec<(LeafKey, Leaf)>, StoreError>>()?;
    let newest = match found.format() {
        v1::FORMAT => UNKNOWN,
        _ => leaves.iter().map(|(_, leaf)| leaf.newest()).max().unwrap_or(Version::ZERO),
    };
    Ok(Visited { leaves, newest, format: found.format() })
}

/// The newest version below any of the children.
fn newest_of(children: &[Child]) -> Version {
    children.iter().map(|child| child.newest).max().unwrap_or(Version::ZERO)
}

impl Child {
    /// The child as the root of what lies below it.
    fn root(&self, level: u8) -> TreeRoot {
        TreeRoot { page: self.page, level, newest: self.newest }
    }
}

async fn read(reader: &PageReader, page: PageRef, level: u8) -> Result<Rc<Page>, StoreError> {
    if level > LEVEL_MAX {
        return Err(StoreError::damaged(PAGE, page.place, format!("level {level}")));
    }
    reader.read(page, PageKind::Tree, level).await
}

/// The items of a leaf page: key, and where in the body its leaf lies.
struct Items<'a> {
    page: &'a Page,
    key_bytes: usize,
    at: usize,
    left: usize,
    from: PageRef,
}

impl<'a> Items<'a> {
    fn new(page: &'a Page, from: PageRef) -> Self {
        let key_bytes = if page.format() == v1::FORMAT { v1::KEY_BYTES } else { LeafKey::BYTES };
        Items { page, key_bytes, at: 0, left: page.count(), from }
    }
}

impl Items<'_> {
    /// The item at the place that the walk has come to.
    fn item(&self) -> Result<(LeafKey, Range<usize>), Fault> {
        let (body, start) = (self.page.body(), self.at + self.key_bytes + LENGTH_BYTES);
        let ends = || Fault::Damaged(format!("its items end at byte {}", self.at));
        let head = body.get(self.at..start).ok_or_else(ends)?;
        let (key, length) = head.split_at(self.key_bytes);
        let key = match key.try_into() {
            Ok(key) => LeafKey::from_bytes(key)?,
            Err(_) => LeafKey::from_chunk_bytes(key.try_into().expect("a key of format 1")),
        };
        if u32::from(key.chunk.0) >= OBJECT_CHUNKS_MAX {
            return Err(Fault::Damaged(format!("it names chunk {}, which no object has", key.chunk.0)));
        }
        let end = start + usize::from(u16::from_le_bytes(length.try_into().expect("two bytes")));
        if end > body.len() { Err(ends()) } else { Ok((key, start..end)) }
    }
}

impl Iterator for Items<'_> {
    type Item = Result<(LeafKey, Range<usize>), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        match self.item() {
            Ok((key, bytes)) => {
                self.at = bytes.end;
                Some(Ok((key, bytes)))
            }
            Err(fault) => {
                self.left = 0;
                Some(Err(fault.in_structure(PAGE, self.from.place)))
            }
        }
    }
}

fn children(page: &Page, from: PageRef) -> Result<Vec<Child>, StoreError> {
    let damaged = |reason: String| StoreError::damaged(PAGE, from.place, reason);
    let is_old = page.format() == v1::FORMAT;
    let most = page.body().len() / if is_old { v1::CHILD_BYTES } else { CHILD_BYTES };
    if page.count() > most {
        return Err(damaged("it says that it has more children than a page holds".to_owned()));
    }
    let mut d = Decoder::new(page.body());
    let mut out = Vec::with_capacity(page.count());
    for _ in 0..page.count() {
        let child = match is_old {
            true => v1::decode_child(&mut d).map_err(Fault::from),
            false => decode_child(&mut d),
        };
        out.push(child.map_err(|fault| fault.in_part("a child of it").in_structure(PAGE, from.place))?);
    }
    if out.is_empty() || !out.is_sorted_by(|a, b| a.key < b.key) {
        return Err(damaged("its children are not in order".to_owned()));
    }
    Ok(out)
}

fn encode_child(e: &mut Encoder, child: &Child) {
    e.bytes(&child.key.to_bytes());
    child.page.encode(e);
    e.u64(child.newest.to_bits());
}

fn decode_child(d: &mut Decoder<'_>) -> Result<Child, Fault> {
    let key = LeafKey::from_bytes(&d.array()?)?;
    Ok(Child { key, page: PageRef::decode(d)?, newest: Version::from_bits(d.u64()?) })
}

/// Decodes a page's body in both ways, for fuzzing.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn decode_any(format: u8, count: u16, body: &[u8]) {
    let draft = PageDraft {
        kind: PageKind::Tree,
        level: 0,
        count,
        checkpoint: 1,
        body: &body[..body.len().min(PAGE_ROOM)],
    };
    let (page, from) = Page::drafted(&draft, format);
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
    Leaf::decode(bytes).map_err(|e| StoreError::damaged(PAGE, from.place, format!("leaf: {e}")))
}

/// Changes to the map, sorted by key; an empty leaf removes its key.
pub(crate) type Updates = [(LeafKey, Rc<Leaf>)];

/// The making of a new root.
pub(crate) struct TreeBuild<'a> {
    pub(crate) reader: &'a PageReader,
    pub(crate) writer: PageWriter<'a>,
    pub(crate) checkpoint: u64,
    /// How many more pages of format 1 may be rewritten although nothing changes in them.
    pub(crate) conversions: usize,
    /// How many pages of format 1 were.
    pub(crate) converted: u64,
    /// Pages of the old root that the new one does not reach.
    pub(crate) retired: Vec<PageRef>,
}

impl TreeBuild<'_> {
    /// Makes the root of the map with the updates, writing only pages that they touch, and pages of
    /// format 1 as far as `conversions` goes.
    ///
    /// # Errors
    /// If a page that has to be read is damaged, or one cannot be written.
    pub(crate) async fn apply(
        &mut self,
        root: Option<TreeRoot>,
        updates: &Updates,
    ) -> Result<Option<TreeRoot>, StoreError> {
        debug_assert!(updates.is_sorted_by(|a, b| a.0 < b.0));
        let is_converting = root.is_some_and(|root| root.newest == UNKNOWN) && self.conversions > 0;
        if updates.is_empty() && !is_converting {
            return Ok(root);
        }
        let (mut nodes, mut level) = match root {
            None => (self.rewrite_leaf_page(None, updates).await?, 0),
            Some(TreeRoot { page, level: 0, .. }) => (self.rewrite_leaf_page(Some(page), updates).await?, 0),
            Some(TreeRoot { page, level, .. }) => {
                (self.rewrite_children(page, level, updates).await?.0, level - 1)
            }
        };
        while nodes.len() > 1 {
            level += 1;
            nodes = self.write_inner(&nodes, level, false).await?;
        }
        Ok(nodes.first().map(|child| child.root(level)))
    }

    /// The new root does not reach the page, but what takes its place.
    fn retire(&mut self, page: PageRef, found: &Page) {
        self.retired.push(page);
        self.converted += u64::from(found.format() == v1::FORMAT);
    }

    /// Whether a page is rewritten although nothing changes in it.
    fn converts(&self, child: &Child) -> bool {
        child.newest == UNKNOWN && self.conversions > 0
    }

    /// Rewrites what the updates touch below an inner page, and what is converted there; returns its new
    /// children, and whether the updates touched only its last child.
    fn rewrite_children<'f>(
        &'f mut self,
        page: PageRef,
        level: u8,
        updates: &'f Updates,
    ) -> Step<'f, (Vec<Child>, bool)> {
        Box::pin(async move {
            let found = read(self.reader, page, level).await?;
            let old = children(&found, page)?;
            self.retire(page, &found);
            let parts = partition(&old, updates);
            let updated = parts.iter().filter(|part| !part.is_empty()).count();
            let is_at_end = updated == 1 && parts.last().is_some_and(|p| !p.is_empty());
            let is_touched =
                |(part, child): &(&Range<usize>, &Child)| !part.is_empty() || self.converts(child);
            let touched: Vec<PageRef> =
                parts.iter().zip(&old).filter(is_touched).map(|(_, c)| c.page).collect();
            let (mut new, mut ahead) = (Vec::with_capacity(old.len() + 1), touched.chunks(READ_AHEAD));
            let mut seen = 0;
            for (child, part) in old.iter().zip(parts) {
                if part.is_empty() && !self.converts(child) {
                    new.push(*child);
                    continue;
                }
                if part.is_empty() {
                    self.conversions -= 1;
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
                let found = read(self.reader, page, 0).await?;
                self.retire(page, &found);
                Some((found, page))
            }
            None => None,
        };
        let (items, is_at_end) = merge(old.as_ref().map(|(p, r)| (&**p, *r)), updates)?;
        let sizes: Vec<usize> = items.items.iter().map(|item| item.bytes.len()).collect();
        let mut out = Vec::new();
        for part in split(&sizes, is_at_end) {
            let part = &items.items[part];
            let (first, last) = (&part[0], &part[part.len() - 1]);
            let draft = PageDraft {
                kind: PageKind::Tree,
                level: 0,
                count: part.len() as u16,
                checkpoint: self.checkpoint,
                body: &items.bytes[first.bytes.start..last.bytes.end],
            };
            let newest = part.iter().map(|item| item.newest).max().unwrap_or(Version::ZERO);
            out.push(Child { key: first.key, page: self.writer.write(&draft).await?, newest });
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
                encode_child(&mut e, child);
            }
            let draft = PageDraft {
                kind: PageKind::Tree,
                level,
                count: part.len() as u16,
                checkpoint: self.checkpoint,
                body: &e.0,
            };
            let newest = newest_of(part);
            out.push(Child { key: part[0].key, page: self.writer.write(&draft).await?, newest });
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

/// An item as it will stand in a page.
struct MergedItem {
    key: LeafKey,
    /// Where it lies in the bytes, its header included.
    bytes: Range<usize>,
    /// The newest version of its leaf.
    newest: Version,
}

/// Items one behind the other as they will stand in pages.
struct Merged {
    bytes: Vec<u8>,
    items: Vec<MergedItem>,
}

impl Merged {
    /// Adds a leaf as it stands in a page.
    ///
    /// # Errors
    /// If the leaf is shorter than it says.
    fn push_old(&mut self, key: LeafKey, leaf: &[u8]) -> Result<(), Fault> {
        let newest =
            Leaf::newest_of(leaf).ok_or_else(|| Fault::Damaged("a leaf of it is too short".to_owned()))?;
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&key.to_bytes());
        self.bytes.extend_from_slice(&(leaf.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(leaf);
        self.items.push(MergedItem { key, bytes: start..self.bytes.len(), newest });
        Ok(())
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
        self.items.push(MergedItem { key, bytes: start..self.bytes.len(), newest: leaf.newest() });
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
                let pushed = merged.push_old(key, &page.body()[bytes]);
                pushed.map_err(|fault| fault.in_structure(PAGE, from.place))?;
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
                        reader: &reader, writer, checkpoint: i as u64, conversions: 0, converted: 0, retired: Vec::new(),
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
                        walk(&reader, root, &mut |node, found| {
                            assert_eq!(found.unwrap().newest, node.newest, "the newest version below a page");
                            assert!(reached.insert(node.page.place));
                            true
                        }).await;
                    }
                    assert_eq!(reached, live, "pages are neither lost nor shared");
                    let newest = model.values().map(|leaf| leaf.newest()).max();
                    assert_eq!(root.map(|root| root.newest), newest);
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
