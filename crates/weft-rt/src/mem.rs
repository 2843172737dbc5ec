//! `mem:SIZE` drives: memory that vanishes with the process, for tests and benchmarks.

use crate::{Buf, BufMut};
use std::io;
use std::ptr::NonNull;

/// An anonymous mapping; pages appear when they are first touched.
pub(crate) struct Mem {
    start: NonNull<u8>,
    len: usize,
}

impl Mem {
    pub(crate) fn new(len: u64) -> io::Result<Mem> {
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: an anonymous private mapping at an address that the kernel picks touches nothing of ours.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Large pages are fewer to fault in and to look up, as those of a drive would be none at all. Only a wish.
        // SAFETY: the range is the mapping.
        unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) };
        let start = NonNull::new(start.cast()).expect("a mapping is never at address 0");
        Ok(Mem { start, len })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    fn at(&self, offset: u64, len: usize) -> *mut u8 {
        let offset = usize::try_from(offset).expect("offsets were checked against the size");
        assert!(offset <= self.len && len <= self.len - offset, "access past the end of a mem: drive");
        // SAFETY: the assertion keeps the result inside the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    pub(crate) fn read(&self, offset: u64, buf: &mut BufMut) {
        let from = self.at(offset, buf.len());
        // SAFETY: `from` has as many bytes as `buf`, and they cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) };
    }

    pub(crate) fn write(&self, offset: u64, data: &[Buf]) {
        let mut offset = offset;
        for part in data {
            let to = self.at(offset, part.len());
            // SAFETY: `to` has `part.len()` bytes; a mapping of ours never overlaps a buffer.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len()) };
            offset += part.len() as u64;
        }
    }

    pub(crate) fn discard(&self, offset: u64, len: u64) {
        let at = self.at(offset, len as usize);
        // SAFETY: the range lies inside our private mapping; its pages read as zeroes afterwards.
        unsafe { libc::madvise(at.cast(), len as usize, libc::MADV_DONTNEED) };
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and nobody has a reference into it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
