//! Memory that a piece of code takes, counted by this crate's allocator. It hands everything on to the system's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts what its thread takes and gives back.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Bytes taken and not given back by this thread, and the most that there were since the last look. What another
    /// thread gives back was never taken there: that can be less than none.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // At a thread's end there is nobody to count for.
    let _ = LIVE.try_with(|live| {
        live.set(live.get().wrapping_add(bytes));
        PEAK.try_with(|peak| peak.set(peak.get().max(live.get())))
    });
}

// SAFETY: every call is handed on to the system's allocator as it came; counting touches no memory but two cells that
// need no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps to the contract of this method, which is that of the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// The most bytes that this thread held at once during a call, beyond what it held before.
pub(crate) fn peak_of(call: impl FnOnce()) -> usize {
    let before = LIVE.get();
    PEAK.set(before);
    call();
    usize::try_from(PEAK.get() - before).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_that_was_held_at_once_is_counted() {
        let held = std::hint::black_box(vec![0u8; 5 << 20]);
        let peak = peak_of(|| {
            for _ in 0..3 {
                std::hint::black_box(Vec::<u8>::with_capacity(2 << 20));
            }
            std::hint::black_box(vec![1u8; 1 << 20]);
        });
        assert!((2 << 20..3 << 20).contains(&peak), "{peak} beside {}", held.len());
        assert_eq!(peak_of(|| ()), 0);
    }
}
