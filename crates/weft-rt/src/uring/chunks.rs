//! Chunks: buffers that the kernel fills by itself as bytes arrive (a provided buffer ring, Linux 5.19). All
//! connections of a thread share them. A filled chunk is replaced before anybody looks at it, so that a slow
//! reader never keeps others waiting. This module never looks into the bytes.

use crate::BufMut;
use crate::net::{CHUNK_BYTES, HEADROOM_BYTES};
use io_uring::{Submitter, types};
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

/// The name of the ring of buffers among the rings that this driver registers: it has one.
pub(super) const GROUP: u16 = 0;

/// Chunks that the kernel can fill in one turn of the executor, a power of two: half a megabyte, which stays in
/// the cache of one core. A receive that finds none ends, and is started again by its reader.
const CHUNKS: u16 = 8;

/// The ring of buffers, and what is in it.
pub(super) struct Chunks {
    /// The entries that the kernel reads: a page.
    ring: BufMut,
    filling: Vec<BufMut>,
    tail: u16,
}

impl Chunks {
    /// Hands the first chunks to the kernel, which must have let go of them when the value is dropped.
    ///
    /// # Errors
    /// Those of the kernel: it has no such rings, or no memory may be locked.
    pub(super) fn new(submitter: &Submitter<'_>) -> io::Result<Chunks> {
        let ring = BufMut::zeroed(crate::IO_ALIGN);
        assert!(size_of::<types::BufRingEntry>() * usize::from(CHUNKS) <= ring.len());
        let mut chunks = Chunks { ring, filling: Vec::new(), tail: 0 };
        let address = chunks.ring.as_mut_ptr() as u64;
        // SAFETY: the page is aligned, has room for the entries, and lives as long as the ring is used.
        unsafe { submitter.register_buf_ring_with_flags(address, CHUNKS, GROUP, 0)? };
        for id in 0..CHUNKS {
            chunks.filling.push(BufMut::aligned(CHUNK_BYTES));
            chunks.provide(id);
        }
        Ok(chunks)
    }

    /// Takes the chunk that the kernel has filled, and gives it another.
    pub(super) fn exchange(&mut self, id: u16) -> BufMut {
        let empty = BufMut::aligned(CHUNK_BYTES);
        let filled = std::mem::replace(&mut self.filling[usize::from(id)], empty);
        self.provide(id);
        filled
    }

    fn provide(&mut self, id: u16) {
        let start = self.filling[usize::from(id)][HEADROOM_BYTES..].as_mut_ptr();
        let entries = self.ring.as_mut_ptr().cast::<types::BufRingEntry>();
        // SAFETY: the index is below the number of entries, and the kernel reads none from the tail on.
        let entry = unsafe { &mut *entries.add(usize::from(self.tail % CHUNKS)) };
        entry.set_addr(start as u64);
        entry.set_len((CHUNK_BYTES - HEADROOM_BYTES) as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail is an aligned field of the first entry, which only the kernel reads meanwhile.
        let tail = unsafe { AtomicU16::from_ptr(types::BufRingEntry::tail(entries).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}
