//! Pages of the store: 4 KiB with a header that says what, where and since when, and a checksum. Here are
//! the codec, the reader with its cache, and the writer that gathers pages into long writes.

use crate::StoreError;
use crate::cache::Cache;
use crate::label::FORMAT_VERSION;
use crate::region::{Place, PlaceRun};
use crate::shortage::read_patiently;
use crate::superblock::PageRef;
use crate::v1;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weft_rt::sync::join_all;
use weft_rt::{Buf, BufMut, Drive, JoinHandle};
use weft_rules::{Mutation, mutated};
use weft_types::BLOCK_SIZE;
use weft_wire::crc32c;

/// Bytes of a page's header.
pub(crate) const PAGE_HEADER: usize = 32;

/// Bytes that a page holds behind its header.
pub(crate) const PAGE_ROOM: usize = BLOCK_SIZE - PAGE_HEADER;

const MAGIC: u32 = u32::from_le_bytes(*b"WPAG");

/// The byte of the header that says the page's format: the drive's of then, 0 for format 1.
pub(crate) const FORMAT_AT: usize = 28;

/// Pages that one write of the writer gathers at most, 256 KiB, and writes that it keeps in flight: enough
/// to keep a drive busy beside the foreground, no more.
const RUN_PAGES_MAX: usize = 64;
const WRITES_MAX: usize = 4;

/// What a page is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PageKind {
    /// The block map.
    Tree = 0,
    /// The state blob.
    State = 1,
}

impl PageKind {
    fn name(self) -> &'static str {
        match self {
            PageKind::Tree => "a page of the block map",
            PageKind::State => "a page of the state",
        }
    }
}

/// A verified page.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    bytes: Buf,
}

impl Page {
    /// The format of the body.
    pub(crate) fn format(&self) -> u16 {
        u16::from(self.bytes[FORMAT_AT]).max(v1::FORMAT)
    }

    /// How many items the body has.
    pub(crate) fn count(&self) -> usize {
        usize::from(u16::from_le_bytes([self.bytes[26], self.bytes[27]]))
    }

    /// The page that a draft would be at some place, for fuzzing.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn drafted(draft: &PageDraft<'_>, format: u8) -> (Page, PageRef) {
        let (bytes, from) = draft.encode(Place(1));
        let mut bytes = BufMut::copy_of(&bytes);
        bytes[FORMAT_AT] = format;
        (Page { bytes: bytes.freeze() }, from)
    }

    /// What stands behind the header.
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[PAGE_HEADER..]
    }
}

/// A page to be written: header fields and the body's bytes.
pub(crate) struct PageDraft<'a> {
    pub(crate) kind: PageKind,
    pub(crate) level: u8,
    pub(crate) count: u16,
    pub(crate) checkpoint: u64,
    pub(crate) body: &'a [u8],
}

impl PageDraft<'_> {
    /// The page for a place, and the reference to it.
    pub(crate) fn encode(&self, place: Place) -> (Buf, PageRef) {
        assert!(self.body.len() <= PAGE_ROOM, "{} bytes do not fit a page", self.body.len());
        let mut page = BufMut::zeroed(BLOCK_SIZE);
        page[..4].copy_from_slice(&MAGIC.to_le_bytes());
        page[8..16].copy_from_slice(&place.0.to_le_bytes());
        page[16..24].copy_from_slice(&self.checkpoint.to_le_bytes());
        page[24] = self.level;
        page[25] = self.kind as u8;
        page[26..28].copy_from_slice(&self.count.to_le_bytes());
        page[FORMAT_AT] = FORMAT_VERSION as u8;
        page[PAGE_HEADER..PAGE_HEADER + self.body.len()].copy_from_slice(self.body);
        let crc = crc32c(&page[8..]);
        page[4..8].copy_from_slice(&crc.to_le_bytes());
        (page.freeze(), PageRef { place, crc })
    }
}

/// Checks a page that was read against the reference to it.
fn verify(bytes: &[u8], page: PageRef, kind: PageKind, level: u8) -> Result<(), String> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let found = crc32c(&bytes[8..]);
    if word(0) != MAGIC {
        return Err(format!("magic is {:#010x}", word(0)));
    }
    if found != page.crc || word(4) != page.crc {
        return Err(format!("checksum is {found:#010x}, its reference says {:#010x}", page.crc));
    }
    let place = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    if place != page.place.0 || bytes[24] != level || bytes[25] != kind as u8 {
        return Err(format!("it says that it is level {} at place {place}", bytes[24]));
    }
    if u16::from(bytes[FORMAT_AT]) > FORMAT_VERSION {
        return Err(format!("it has format {}", bytes[FORMAT_AT]));
    }
    Ok(())
}

/// Reads pages, through a cache of block map pages.
pub(crate) struct PageReader {
    drive: Drive,
    cache: RefCell<Cache<PageRef, Rc<Page>>>,
}

impl PageReader {
    /// A reader with a cache of this many bytes.
    pub(crate) fn new(drive: Drive, cache_bytes: usize) -> Self {
        PageReader { drive, cache: RefCell::new(Cache::new(cache_bytes)) }
    }

    /// Bytes that the cache holds.
    pub(crate) fn cached_bytes(&self) -> usize {
        self.cache.borrow().bytes()
    }

    /// Reads and verifies a page; what does not verify is read once more before it counts as damaged. A shortage of
    /// the machine is waited out for a while: with a page the whole drive would be given up.
    ///
    /// # Errors
    /// If the page is damaged.
    pub(crate) async fn read(
        &self,
        page: PageRef,
        kind: PageKind,
        level: u8,
    ) -> Result<Rc<Page>, StoreError> {
        if let Some(found) = self.cache.borrow_mut().get(&page) {
            return Ok(found.clone());
        }
        let mut reason = String::new();
        for _ in 0..2 {
            match read_patiently(&self.drive, page.place.offset(), BLOCK_SIZE).await {
                Err(e) => reason = e.to_string(),
                Ok(bytes) => match verify(&bytes, page, kind, level) {
                    Err(r) => reason = r,
                    Ok(()) => {
                        let found = Rc::new(Page { bytes: bytes.freeze() });
                        if kind == PageKind::Tree && !mutated(Mutation::PagesNotCached) {
                            self.cache.borrow_mut().insert(page, found.clone(), BLOCK_SIZE);
                        }
                        return Ok(found);
                    }
                },
            }
        }
        Err(StoreError::damaged(kind.name(), page.place, reason))
    }

    /// Brings block map pages into the cache together.
    ///
    /// # Errors
    /// If one is damaged.
    pub(crate) async fn prefetch(&self, pages: &[PageRef], level: u8) -> Result<(), StoreError> {
        let missing: Vec<PageRef> =
            pages.iter().copied().filter(|p| !self.cache.borrow().contains(p)).collect();
        let reads = missing.into_iter().map(|p| self.read(p, PageKind::Tree, level));
        join_all(reads).await.into_iter().try_for_each(|r| r.map(|_| ()))
    }

    /// Forgets a page that has been given up.
    pub(crate) fn forget(&self, page: PageRef) {
        self.cache.borrow_mut().remove(&page);
    }

    /// The drive that it reads.
    #[cfg(test)]
    pub(crate) fn drive(&self) -> &Drive {
        &self.drive
    }
}

/// Writes pages to places of its own choice, neighbours together.
pub(crate) struct PageWriter<'a> {
    drive: Drive,
    allocate: &'a dyn Fn() -> Option<Place>,
    run: Vec<Buf>,
    run_at: Place,
    in_flight: Vec<JoinHandle<Result<(), StoreError>>>,
    /// Every place that was taken.
    pub(crate) taken: Vec<PlaceRun>,
    /// Bytes written.
    pub(crate) bytes: Cell<u64>,
}

impl<'a> PageWriter<'a> {
    /// A writer that gets its places from `allocate`.
    pub(crate) fn new(drive: Drive, allocate: &'a dyn Fn() -> Option<Place>) -> Self {
        PageWriter {
            drive,
            allocate,
            run: Vec::new(),
            run_at: Place::NONE,
            in_flight: Vec::new(),
            taken: Vec::new(),
            bytes: Cell::new(0),
        }
    }

    /// Writes a page somewhere; it is on the drive after [`PageWriter::finish`].
    ///
    /// # Errors
    /// If no block is left (the reserve was too small), or an earlier write failed.
    pub(crate) async fn write(&mut self, draft: &PageDraft<'_>) -> Result<PageRef, StoreError> {
        let place = (self.allocate)().ok_or(StoreError::NoSpace { needed_blocks: 1, free_blocks: 0 })?;
        self.taken.push(PlaceRun { place, count: 1 });
        let (bytes, page) = draft.encode(place);
        let is_next = self.run_at.plus(self.run.len() as u64) == place;
        if !self.run.is_empty() && (!is_next || self.run.len() == RUN_PAGES_MAX) {
            self.start().await?;
        }
        if self.run.is_empty() {
            self.run_at = place;
        }
        self.run.push(bytes);
        Ok(page)
    }

    /// Waits until every page has been written (not flushed).
    ///
    /// # Errors
    /// If a write failed.
    pub(crate) async fn finish(&mut self) -> Result<(), StoreError> {
        self.start().await?;
        for write in self.in_flight.drain(..) {
            write.await.unwrap_or(Err(StoreError::Closed))?;
        }
        Ok(())
    }

    async fn start(&mut self) -> Result<(), StoreError> {
        if self.run.is_empty() {
            return Ok(());
        }
        if self.in_flight.len() >= WRITES_MAX {
            self.in_flight.remove(0).await.unwrap_or(Err(StoreError::Closed))?;
        }
        let (drive, at, pages) = (self.drive.clone(), self.run_at.offset(), std::mem::take(&mut self.run));
        let len = (pages.len() * BLOCK_SIZE) as u64;
        self.bytes.set(self.bytes.get() + len);
        self.in_flight.push(weft_rt::spawn(async move {
            drive.write_vectored(at, pages).await.map_err(|e| StoreError::io("write", at, len, e))
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_elsewhere_or_of_another_time_does_not_verify() {
        let draft = PageDraft { kind: PageKind::Tree, level: 1, count: 2, checkpoint: 7, body: b"items" };
        let (bytes, page) = draft.encode(Place(50));
        assert_eq!(verify(&bytes, page, PageKind::Tree, 1), Ok(()));
        assert!(verify(&bytes, page, PageKind::Tree, 0).is_err());
        assert!(verify(&bytes, page, PageKind::State, 1).is_err());
        let (later, other) = PageDraft { checkpoint: 8, ..draft }.encode(Place(50));
        assert!(verify(&later, page, PageKind::Tree, 1).is_err());
        assert!(verify(&bytes, PageRef { place: Place(51), ..page }, PageKind::Tree, 1).is_err());
        assert_ne!(page.crc, other.crc);
    }
}
