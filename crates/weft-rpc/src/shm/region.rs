//! The memory that the two ends of a connection share: made, checked, mapped, and where everything is in it.
//!
//! ```text
//! direction 0 (from the end that connected), then direction 1, each:
//!   positions   4 KiB    who has written, taken and freed how much; who sleeps
//!   fronts    256 KiB    ring of records: envelopes and heads, and where their bodies are
//!   frees      16 KiB    ring of the first pages of bodies that the receiver needs no more
//!   pages      16 MiB    bodies
//! ```
//! It judges nothing that it finds there: whoever reads has to check it. The size is sealed, so that
//! the other end cannot take mapped memory away.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use weft_types::BLOCK_SIZE;
use weft_types::limits::{FRAME_HEAD_MAX, REQUEST_BLOCKS_MAX};
use weft_wire::frame::ENVELOPE_BYTES;

/// Bytes of a page of the body area: a block of a volume, and the alignment that drives want.
pub(super) const PAGE: usize = BLOCK_SIZE;

/// Pages of one direction: sixteen of the largest requests.
pub(super) const PAGES: usize = 4096;

/// Bytes of bodies that lie in one piece: the largest request. What is longer goes in several pieces.
pub(super) const PIECE_MAX: usize = REQUEST_BLOCKS_MAX as usize * BLOCK_SIZE;

/// Bytes of the ring of records, a power of two: a thousand requests of usual size.
pub(super) const FRONTS_BYTES: usize = 256 << 10;

/// Records begin at multiples of this, so that their fixed part is never cut by the ring's end.
pub(super) const RECORD_ALIGN: usize = 16;

const POSITIONS_BYTES: usize = 4096;
const FREES_BYTES: usize = PAGES * size_of::<u32>();
const DIRECTION_BYTES: usize = POSITIONS_BYTES + FRONTS_BYTES + FREES_BYTES + PAGES * PAGE;

/// Bytes of the whole: 33 MiB of addresses, and as much memory as was ever used of them.
const REGION_BYTES: usize = 2 * DIRECTION_BYTES;

/// What tells this layout from another.
pub(super) const LAYOUT: [u8; 8] = *b"WEFTSHM1";

const _: () =
    assert!(FRONTS_BYTES.is_power_of_two() && FRONTS_BYTES >= 4 * (ENVELOPE_BYTES + FRAME_HEAD_MAX));
const _: () = assert!(DIRECTION_BYTES.is_multiple_of(PAGE) && PIECE_MAX <= PAGES * PAGE);

/// What one end may do to it: anything but change its size.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A value that has its cache lines to itself: processors fetch them in pairs.
#[repr(C, align(128))]
pub(super) struct Line<T>(pub(super) T);

/// How far the ends of one direction are. Positions only rise; an index is a position modulo the ring's size.
#[repr(C)]
pub(super) struct Positions {
    /// Bytes of records written, by the sender.
    pub(super) written: Line<AtomicU64>,
    /// Bytes of records taken, by the receiver.
    pub(super) taken: Line<AtomicU64>,
    /// Entries of the ring of frees written, by the receiver.
    pub(super) freed: Line<AtomicU64>,
    /// The receiver sleeps: whoever takes this 1 wakes it.
    pub(super) asleep: Line<AtomicU32>,
    /// The sender waits for room: whoever takes this 1 wakes it.
    pub(super) starved: Line<AtomicU32>,
}

const _: () = assert!(size_of::<Positions>() <= POSITIONS_BYTES);

/// One mapping.
pub(super) struct Region {
    start: NonNull<u8>,
}

impl Region {
    /// New memory, zeroed, and the descriptor by which another process maps the same.
    ///
    /// # Errors
    /// Those of the kernel: too many descriptors, no address space.
    pub(super) fn create() -> io::Result<(Rc<Region>, OwnedFd)> {
        let file = memfd_create("weft", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, REGION_BYTES as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok((Region::map(&file)?, file))
    }

    /// Maps what another process has made.
    ///
    /// # Errors
    /// `InvalidData` if it could change its size, or has another one; those of the kernel.
    pub(super) fn open(file: &OwnedFd) -> io::Result<Rc<Region>> {
        let invalid = |text: String| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        if !fcntl_get_seals(file)?.contains(SEALS) {
            return invalid("the memory that was handed over could be taken away".into());
        }
        let bytes = fstat(file)?.st_size;
        if bytes != REGION_BYTES as i64 {
            return invalid(format!("{bytes} bytes of memory were handed over, {REGION_BYTES} are expected"));
        }
        Region::map(file)
    }

    fn map(file: &OwnedFd) -> io::Result<Rc<Region>> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { mmap(std::ptr::null_mut(), REGION_BYTES, access, MapFlags::SHARED, file, 0)? };
        Ok(Rc::new(Region { start: NonNull::new(start.cast()).expect("a mapping is not at address zero") }))
    }

    /// One of the two directions.
    pub(super) fn direction(self: &Rc<Self>, index: usize) -> Direction {
        assert!(index < 2, "there are two directions");
        // SAFETY: both directions lie inside of the mapping.
        let start = unsafe { self.start.add(index * DIRECTION_BYTES) };
        Direction { start, _region: self.clone() }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whatever points into it holds a reference to this.
        let result = unsafe { munmap(self.start.as_ptr().cast(), REGION_BYTES) };
        debug_assert!(result.is_ok(), "a whole mapping can be unmapped");
    }
}

/// The memory of one direction. What lies in it may change at any time, also while it is read.
#[derive(Clone)]
pub(super) struct Direction {
    start: NonNull<u8>,
    _region: Rc<Region>,
}

impl Direction {
    /// Positions and flags.
    pub(super) fn positions(&self) -> &Positions {
        // SAFETY: the positions begin on a page of the mapping, which lives as long as `self`, and are
        // atomics, for which any bytes are values.
        unsafe { self.start.cast::<Positions>().as_ref() }
    }

    /// An entry of the ring of frees.
    pub(super) fn free_entry(&self, position: u64) -> &AtomicU32 {
        let index = position as usize % PAGES;
        // SAFETY: the ring has `PAGES` entries, aligned to four bytes, inside of the mapping.
        unsafe { self.start.add(POSITIONS_BYTES + FRONTS_BYTES).cast::<AtomicU32>().add(index).as_ref() }
    }

    /// Copies bytes of records into the ring, from a position on.
    pub(super) fn put_front(&self, position: u64, bytes: &[u8]) {
        let at = position as usize % FRONTS_BYTES;
        let head = bytes.len().min(FRONTS_BYTES - at);
        assert!(bytes.len() <= FRONTS_BYTES);
        // SAFETY: both parts lie inside of the ring. The other end may read meanwhile, but does not before it
        // has been told the position.
        unsafe {
            let ring = self.start.add(POSITIONS_BYTES).as_ptr();
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), ring.add(at), head);
            std::ptr::copy_nonoverlapping(bytes.as_ptr().add(head), ring, bytes.len() - head);
        }
    }

    /// Copies bytes of records out of the ring, from a position on.
    pub(super) fn get_front(&self, position: u64, bytes: &mut [u8]) {
        let at = position as usize % FRONTS_BYTES;
        let head = bytes.len().min(FRONTS_BYTES - at);
        assert!(bytes.len() <= FRONTS_BYTES);
        // SAFETY: both parts lie inside of the ring. Should the other end write meanwhile, against the rules,
        // the bytes are whatever they are: they are looked at only once they are ours.
        unsafe {
            let ring = self.start.add(POSITIONS_BYTES).as_ptr();
            std::ptr::copy_nonoverlapping(ring.add(at), bytes.as_mut_ptr(), head);
            std::ptr::copy_nonoverlapping(ring, bytes.as_mut_ptr().add(head), bytes.len() - head);
        }
    }

    /// Where a page of the body area begins.
    ///
    /// # Panics
    /// If `len` bytes from there are not inside of the area.
    pub(super) fn page(&self, page: usize, len: usize) -> NonNull<u8> {
        assert!(page < PAGES && len <= (PAGES - page) * PAGE, "{len} bytes at page {page}");
        // SAFETY: the page lies inside of the mapping.
        unsafe { self.start.add(POSITIONS_BYTES + FRONTS_BYTES + FREES_BYTES + page * PAGE) }
    }

    /// The page that begins at an address which [`Direction::page`] gave.
    pub(super) fn page_at(&self, start: NonNull<u8>) -> usize {
        let area = self.page(0, 0);
        (start.as_ptr().addr() - area.as_ptr().addr()) / PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_could_be_taken_away_or_has_another_size_is_refused() {
        let (region, file) = Region::create().unwrap();
        assert!(ftruncate(&file, 4096).is_err() && ftruncate(&file, 1 << 30).is_err(), "its size is sealed");
        let twin = Region::open(&file).unwrap();
        region.direction(1).put_front(FRONTS_BYTES as u64 - 3, b"across");
        let mut found = [0; 6];
        twin.direction(1).get_front(FRONTS_BYTES as u64 - 3, &mut found);
        assert_eq!(&found, b"across");
        let other = |bytes: u64, seals| {
            let file = memfd_create("other", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&file, bytes).unwrap();
            fcntl_add_seals(&file, seals).unwrap();
            Region::open(&file).err().expect("it is refused").to_string()
        };
        assert!(other(REGION_BYTES as u64, SealFlags::GROW).contains("taken away"));
        assert!(other(4096, SEALS).contains("4096 bytes"));
    }
}
