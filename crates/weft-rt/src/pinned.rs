//! Memory of fixed size that the kernel knows: pinned once, not for every read of a drive.
//!
//! It owns one mapping, and lends blocks of two sizes out of it. A block finds its way back by itself when it is
//! dropped; the mapping goes when the last block and its owner have. It never grows: who finds none left takes
//! other memory, which works as well and costs a little more.

use std::cell::RefCell;
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

/// The sizes of blocks, smallest first, and how many there are of each: one block of a volume for a few full queues
/// of requests, and medium reads for a queue of them. What is larger spends its time elsewhere.
const CLASSES: [(usize, usize); 2] = [(4 << 10, 512), (64 << 10, 32)];

/// Bytes of the mapping, which count against the limit of locked memory (RLIMIT_MEMLOCK; 8 MiB by default).
pub(crate) const PINNED_BYTES: usize = CLASSES[0].0 * CLASSES[0].1 + CLASSES[1].0 * CLASSES[1].1;

/// One mapping, and which of its blocks are free.
pub(crate) struct Pinned {
    start: NonNull<u8>,
    free: RefCell<[Vec<NonNull<u8>>; CLASSES.len()]>,
}

impl Pinned {
    /// Maps it, zeroed.
    pub(crate) fn map() -> io::Result<Pinned> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), PINNED_BYTES, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).expect("a mapping is not at address zero");
        let mut at = 0;
        let free = CLASSES.map(|(bytes, count)| {
            let first = at;
            at += bytes * count;
            // SAFETY: all blocks together are as long as the mapping.
            (0..count).rev().map(|i| unsafe { start.add(first + i * bytes) }).collect()
        });
        Ok(Pinned { start, free: RefCell::new(free) })
    }

    /// The whole mapping, for the kernel to register.
    pub(crate) fn iov(&self) -> libc::iovec {
        libc::iovec { iov_base: self.start.as_ptr().cast(), iov_len: PINNED_BYTES }
    }

    /// A free block of at least `len` bytes and its size; `None` if there is none left, or none so large. Its
    /// bytes are initialised and unspecified.
    pub(crate) fn take(self: &Rc<Self>, len: usize) -> Option<(NonNull<u8>, usize)> {
        let class = CLASSES.iter().position(|(bytes, _)| len <= *bytes)?;
        let start = self.free.borrow_mut()[class].pop()?;
        Some((start, CLASSES[class].0))
    }

    /// A block that [`Pinned::take`] gave comes back.
    pub(crate) fn give_back(&self, start: NonNull<u8>, bytes: usize) {
        let class = CLASSES.iter().position(|class| class.0 == bytes);
        self.free.borrow_mut()[class.expect("blocks have the size of a class")].push(start);
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no block of it is lent: each holds a reference to this. Where the kernel
        // still has it registered, it holds the pages by itself.
        let result = unsafe { libc::munmap(self.start.as_ptr().cast(), PINNED_BYTES) };
        debug_assert_eq!(result, 0, "a whole mapping can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BufMut;

    #[test]
    fn blocks_are_apart_come_back_and_run_out() {
        let pinned = Rc::new(Pinned::map().unwrap());
        let take = |len| BufMut::pinned(&pinned, len);
        assert!(take((64 << 10) + 1).is_none(), "larger than the largest class");
        for (len, count) in [(4096, 512), (5000, 32)] {
            let mut lent: Vec<BufMut> = std::iter::from_fn(|| take(len)).collect();
            assert_eq!(lent.len(), count);
            for (i, buf) in lent.iter_mut().enumerate() {
                assert!(buf.is_pinned() && buf.len() == len && buf.as_mut_ptr().addr().is_multiple_of(4096));
                buf.fill(i as u8);
            }
            for (i, buf) in lent.iter().enumerate() {
                assert!(buf.iter().all(|byte| *byte == i as u8), "block {i} shares bytes with another");
            }
            let kept = lent.pop().unwrap().freeze();
            let part = kept.slice(1..2);
            drop((lent, kept));
            assert_eq!(
                std::iter::from_fn(|| take(len)).collect::<Vec<_>>().len(),
                count - 1,
                "one is still used"
            );
            drop(part);
            assert!(take(len).is_some());
        }
    }

    #[test]
    fn a_block_outlives_the_owner_of_the_mapping() {
        let pinned = Rc::new(Pinned::map().unwrap());
        let mut buf = BufMut::pinned(&pinned, 4096).unwrap();
        drop(pinned);
        buf.fill(7);
        assert!(buf.freeze().iter().all(|byte| *byte == 7));
    }
}
