//! Buffers: aligned for direct I/O, cheap to share, recycled per thread.

use crate::Lender;
use crate::pinned::Pinned;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::Rc;

/// The alignment of buffers of at least this size: what O_DIRECT needs on every drive that we know.
pub const IO_ALIGN: usize = 4096;

/// The smallest size class, below which buffers are not worth telling apart.
const CLASS_MIN_SHIFT: u32 = 8;
/// The largest size class that is recycled, 2 MiB: twice the largest request.
const CLASS_MAX_SHIFT: u32 = 21;
/// Bytes that one thread keeps for reuse, in all size classes together.
const KEEP_BYTES: usize = 32 * 1024 * 1024;

/// Free blocks by size class, each with the room for counting its users.
#[derive(Default)]
struct FreeLists {
    classes: [Vec<Rc<Block>>; (CLASS_MAX_SHIFT - CLASS_MIN_SHIFT + 1) as usize],
    /// Bytes of all of them.
    bytes: usize,
}

impl FreeLists {
    fn take(&mut self, class: usize) -> Option<Rc<Block>> {
        let block = self.classes[class].pop()?;
        self.bytes -= block.capacity;
        Some(block)
    }

    fn keep(&mut self, class: usize, block: Rc<Block>) {
        self.bytes += block.capacity;
        self.classes[class].push(block);
        if self.bytes > KEEP_BYTES {
            // One of the largest goes, which costs least to make again for what it holds.
            let largest = (class..self.classes.len()).rev().find(|class| !self.classes[*class].is_empty());
            drop(largest.and_then(|class| self.take(class)));
        }
    }
}

/// Bytes of memory that a buffer of `len` bytes takes.
pub fn memory_of(len: usize) -> usize {
    len.next_power_of_two().max(1 << CLASS_MIN_SHIFT)
}

thread_local! {
    static FREE: RefCell<FreeLists> = const {
        RefCell::new(FreeLists { classes: [const { Vec::new() }; 14], bytes: 0 })
    };
    static ZEROES: Buf = BufMut::zeroed(1 << 20).freeze();
}

/// An owned allocation: aligned, always initialised (fresh memory is zeroed; reused memory keeps old bytes).
struct Block {
    start: NonNull<u8>,
    capacity: usize,
    /// Who gets it back, if it is not from the heap.
    owner: Option<Owner>,
}

/// Who gets a block back that is not from the heap.
enum Owner {
    Pinned(Rc<Pinned>),
    /// A lender, unless somebody has taken the block over ([`take_over`]).
    Lender(Rc<dyn Lender>, Cell<bool>),
}

impl Block {
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, IO_ALIGN.min(capacity)).expect("capacities are powers of two")
    }

    fn allocate(capacity: usize) -> Block {
        let layout = Self::layout(capacity);
        // SAFETY: the layout has a non-zero size (at least 256 bytes).
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Block { start, capacity, owner: None }
    }

    fn class(capacity: usize) -> Option<usize> {
        let shift = capacity.trailing_zeros();
        (shift <= CLASS_MAX_SHIFT).then(|| (shift - CLASS_MIN_SHIFT) as usize)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match &self.owner {
            Some(Owner::Pinned(pinned)) => pinned.give_back(self.start, self.capacity),
            Some(Owner::Lender(_, is_taken_over)) if is_taken_over.get() => {}
            Some(Owner::Lender(lender, _)) => lender.give_back(self.start, self.capacity),
            // SAFETY: `start` came from `alloc_zeroed` with this layout and nobody else owns it.
            None => unsafe { dealloc(self.start.as_ptr(), Self::layout(self.capacity)) },
        }
    }
}

/// One user of a block. The last one keeps it for whoever needs one of its size next.
struct Hold(ManuallyDrop<Rc<Block>>);

impl Hold {
    fn new(block: Block) -> Hold {
        Hold(ManuallyDrop::new(Rc::new(block)))
    }

    /// A block for so many bytes without other users, and whether it is fresh.
    fn take(len: usize) -> (Hold, bool) {
        let capacity = memory_of(len);
        let recycled = Block::class(capacity)
            .and_then(|class| FREE.try_with(|free| free.borrow_mut().take(class)).ok().flatten());
        match recycled {
            Some(block) => (Hold(ManuallyDrop::new(block)), false),
            None => (Hold::new(Block::allocate(capacity)), true),
        }
    }
}

impl Clone for Hold {
    fn clone(&self) -> Hold {
        Hold(self.0.clone())
    }
}

impl Deref for Hold {
    type Target = Block;
    fn deref(&self) -> &Block {
        &self.0
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // SAFETY: it is taken here only, and nobody looks at it afterwards.
        let block = unsafe { ManuallyDrop::take(&mut self.0) };
        if Rc::strong_count(&block) > 1 || block.owner.is_some() {
            return;
        }
        let Some(class) = Block::class(block.capacity) else { return };
        // A thread that ends has no lists any more.
        let _ = FREE.try_with(|free| free.borrow_mut().keep(class, block));
    }
}

/// Gives back what this thread keeps for reuse: one simulation does not inherit the buffers of the one
/// before.
pub(crate) fn give_back_free() {
    FREE.with(|free| free.take());
}

/// A buffer with one owner, to be filled.
pub struct BufMut {
    block: Hold,
    len: usize,
}

impl BufMut {
    /// A buffer of `len` bytes with unspecified (but initialised) contents. From 4096 bytes on it is aligned
    /// to [`IO_ALIGN`].
    pub fn aligned(len: usize) -> Self {
        BufMut { block: Hold::take(len).0, len }
    }

    /// The same, in memory that the kernel knows; `None` if there is none of this length left.
    pub(crate) fn pinned(lender: &Rc<Pinned>, len: usize) -> Option<Self> {
        let (start, capacity) = lender.take(len)?;
        let block = Block { start, capacity, owner: Some(Owner::Pinned(lender.clone())) };
        Some(BufMut { block: Hold::new(block), len })
    }

    /// The same, in memory of this lender; `None` if it has none of this length left. Where that is shared
    /// with another process, which may write to it against the rules, it changes, like that of [`Buf::lent`].
    pub fn lent(lender: &Rc<dyn Lender>, len: usize) -> Option<Self> {
        let owner = Some(Owner::Lender(lender.clone(), Cell::new(false)));
        let block = Block { start: lender.lend(len)?, capacity: len, owner };
        Some(BufMut { block: Hold::new(block), len })
    }

    /// Whether it lies in memory that the kernel knows.
    pub(crate) fn is_pinned(&self) -> bool {
        matches!(self.block.owner, Some(Owner::Pinned(_)))
    }

    /// A buffer of `len` zero bytes, aligned likewise.
    pub fn zeroed(len: usize) -> Self {
        let (block, fresh) = Hold::take(len);
        let mut buf = BufMut { block, len };
        if !fresh {
            buf.fill(0);
        }
        buf
    }

    /// A copy of `bytes`, aligned likewise.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = BufMut::aligned(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Makes it immutable and shareable.
    pub fn freeze(self) -> Buf {
        Buf { block: self.block, start: 0, len: self.len }
    }

    /// Keeps the first `len` bytes.
    ///
    /// # Panics
    /// If it is shorter.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "a buffer of {} bytes cannot be truncated to {len}", self.len);
        self.len = len;
    }

    /// Where the bytes are, for the kernel.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.block.start.as_ptr()
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= capacity` bytes from `start` are owned by `block` and initialised.
        unsafe { std::slice::from_raw_parts(self.block.start.as_ptr(), self.len) }
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `block` has this one user in this process.
        unsafe { std::slice::from_raw_parts_mut(self.block.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for BufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufMut({} bytes)", self.len)
    }
}

/// An immutable run of bytes; clones and slices share the memory.
#[derive(Clone)]
pub struct Buf {
    block: Hold,
    start: usize,
    len: usize,
}

impl Buf {
    /// No bytes.
    pub fn empty() -> Buf {
        Buf::zeroes(0)
    }

    /// `len` zero bytes; up to 1 MiB they are shared.
    pub fn zeroes(len: usize) -> Buf {
        ZEROES.with(|z| if len <= z.len { z.slice(0..len) } else { BufMut::zeroed(len).freeze() })
    }

    /// Bytes in memory of a lender, which gets them back when the last user has dropped them.
    ///
    /// # Safety
    /// `len` bytes from `start` must be there as long as the lender is, or until it got them back. Where they
    /// are shared with another process, which may write to them against the rules, they change: users may
    /// copy and sum them, but not rely on two looks being the same.
    pub unsafe fn lent(lender: Rc<dyn Lender>, start: NonNull<u8>, len: usize) -> Buf {
        let block = Block { start, capacity: len, owner: Some(Owner::Lender(lender, Cell::new(false))) };
        Buf { block: Hold::new(block), start: 0, len }
    }

    /// A part of it.
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn slice(&self, range: Range<usize>) -> Buf {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is not in 0..{}", self.len);
        Buf { block: self.block.clone(), start: self.start + range.start, len: range.end - range.start }
    }

    /// Whether the first byte lies where direct I/O wants it.
    pub fn is_aligned(&self) -> bool {
        (self.as_ptr() as usize).is_multiple_of(IO_ALIGN)
    }
}

/// If these, one behind the other, are the beginning of a block that this lender has lent, and nobody else
/// uses that block: the caller has the block from now on, and the lender does not get it back. Says where it
/// begins.
pub fn take_over(parts: &[Buf], lender: &dyn Lender) -> Option<NonNull<u8>> {
    let block: &Rc<Block> = &parts.first()?.block.0;
    let Some(Owner::Lender(owner, is_taken_over)) = &block.owner else { return None };
    let mut end = 0;
    for part in parts {
        if !Rc::ptr_eq(&part.block.0, block) || part.start != end {
            return None;
        }
        end += part.len;
    }
    // Those who look at these bytes now, and nobody later.
    let is_its_own = std::ptr::addr_eq(Rc::as_ptr(owner), lender);
    if !is_its_own || Rc::strong_count(block) != parts.len() || is_taken_over.replace(true) {
        return None;
    }
    Some(block.start)
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start + len <= capacity`, the bytes are initialised, and nobody of this process writes
        // to a frozen block. What another process may do to one in shared memory, `Buf::lent` says.
        unsafe { std::slice::from_raw_parts(self.block.start.as_ptr().add(self.start), self.len) }
    }
}

impl From<Vec<u8>> for Buf {
    fn from(bytes: Vec<u8>) -> Buf {
        BufMut::copy_of(&bytes).freeze()
    }
}

impl From<&[u8]> for Buf {
    fn from(bytes: &[u8]) -> Buf {
        BufMut::copy_of(bytes).freeze()
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_are_aligned_and_zeroed_ones_are_zero_even_when_recycled() {
        for len in [1, 255, 4096, 5000, 1 << 20, 3 << 20] {
            let mut buf = BufMut::aligned(len);
            buf.fill(0xaa);
            drop(buf);
            let buf = BufMut::zeroed(len);
            assert_eq!(buf.len(), len);
            assert!(buf.iter().all(|b| *b == 0));
            assert!(len < 4096 || buf.freeze().is_aligned());
        }
    }

    #[test]
    fn slices_share_and_nest() {
        let buf = Buf::from((0..=255u8).collect::<Vec<_>>());
        let part = buf.slice(16..32).slice(4..8);
        assert_eq!(&part[..], &[20, 21, 22, 23]);
    }
}
