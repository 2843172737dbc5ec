//! Memory for simulations: small pieces come from lists of free ones, of which each thread has its own.
//!
//! A simulation takes and gives back millions of small pieces in a second, nearly all on one thread and in few sizes. An
//! allocator for all programs spends much of a run on splitting and merging them. Here a piece keeps its size: it is
//! the first of a list, or cut off a chunk, and goes back to the list. What is large goes to the system's allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

/// Sizes of pieces are multiples of this, and so is where they lie.
const STEP: usize = 16;

/// The largest piece: more than nearly all that is taken, less than a page's contents.
const PIECE_MAX: usize = 2048;

/// What is asked of the system at once.
const CHUNK: usize = 256 << 10;

/// The allocator of this program.
pub struct Pool;

/// Free pieces of one thread.
struct Lists {
    /// The first of each size; a free piece begins with where the next one lies.
    free: [Cell<*mut u8>; PIECE_MAX / STEP],
    /// What is left of the newest chunk.
    chunk: Cell<*mut u8>,
    left: Cell<usize>,
}

thread_local! {
    // Without a destructor, so that it works until the thread's very end.
    static LISTS: Lists = const {
        Lists {
            free: [const { Cell::new(null_mut()) }; PIECE_MAX / STEP],
            chunk: Cell::new(null_mut()),
            left: Cell::new(0),
        }
    };
}

/// The list that has pieces for this, if it is small.
fn list_of(layout: Layout) -> Option<usize> {
    let is_small = layout.size() <= PIECE_MAX && layout.align() <= STEP;
    is_small.then(|| layout.size().saturating_sub(1) / STEP)
}

impl Lists {
    fn take(&self, list: usize) -> *mut u8 {
        let first = self.free[list].get();
        if first.is_null() {
            return self.cut((list + 1) * STEP);
        }
        // SAFETY: a piece in a list is nobody's, at least `STEP` bytes long and aligned to that, and `put` wrote there
        // where the next one lies.
        self.free[list].set(unsafe { first.cast::<*mut u8>().read() });
        first
    }

    fn put(&self, list: usize, piece: *mut u8) {
        // SAFETY: whoever had the piece has given it back, and it has room for a pointer.
        unsafe { piece.cast::<*mut u8>().write(self.free[list].get()) };
        self.free[list].set(piece);
    }

    /// A new piece. What a chunk has left and is too short for it stays unused.
    fn cut(&self, size: usize) -> *mut u8 {
        if self.left.get() < size {
            let layout = Layout::from_size_align(CHUNK, STEP).expect("a constant of the right form");
            // SAFETY: the layout is not empty.
            let chunk = unsafe { System.alloc(layout) };
            if chunk.is_null() {
                return chunk;
            }
            self.chunk.set(chunk);
            self.left.set(CHUNK);
        }
        let piece = self.chunk.get();
        self.left.set(self.left.get() - size);
        // SAFETY: `size` bytes were left of the chunk.
        self.chunk.set(unsafe { piece.add(size) });
        piece
    }
}

// SAFETY: a piece is at least as large as was asked for, aligned to `STEP`, and in no list while somebody has it. By its
// layout alone it is known whether it came from a list, and from which; any thread may give it back to its own.
unsafe impl GlobalAlloc for Pool {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match list_of(layout) {
            Some(list) => LISTS.with(|lists| lists.take(list)),
            // SAFETY: as the caller promises.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        match list_of(layout) {
            Some(list) => LISTS.with(|lists| lists.put(list, start)),
            // SAFETY: as the caller promises, and what is in no list came from there.
            None => unsafe { System.dealloc(start, layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if list_of(layout).is_none() {
            // SAFETY: as the caller promises.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: as the caller promises.
        let start = unsafe { self.alloc(layout) };
        if !start.is_null() {
            // SAFETY: as many bytes were just allocated.
            unsafe { start.write_bytes(0, layout.size()) };
        }
        start
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that it is a layout.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (list_of(layout), list_of(new)) {
            // SAFETY: as the caller promises, and both are in no list.
            (None, None) => unsafe { System.realloc(start, layout, size) },
            (old, new) if old == new => start,
            _ => {
                // SAFETY: as the caller promises; the new piece is another one, and both have the bytes that are copied.
                unsafe {
                    let moved = self.alloc(new);
                    if !moved.is_null() {
                        moved.copy_from_nonoverlapping(start, layout.size().min(size));
                        self.dealloc(start, layout);
                    }
                    moved
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_all_sizes_keep_their_bytes_as_they_grow_shrink_and_come_back() {
        let mut held: Vec<Vec<u8>> = Vec::new();
        for round in 0..3u8 {
            for size in 0..3 * PIECE_MAX {
                let mut bytes = vec![round; size / 2];
                bytes.resize(size, round);
                bytes.shrink_to_fit();
                assert!(vec![0u8; size].iter().all(|b| *b == 0), "zeroed, whoever had it before");
                held.push(bytes);
            }
            assert!(held.iter().all(|bytes| bytes.iter().all(|b| *b == held[held.len() - 1][0])));
            std::thread::scope(|scope| {
                scope.spawn(|| held.drain(..).for_each(drop));
            });
        }
    }
}
