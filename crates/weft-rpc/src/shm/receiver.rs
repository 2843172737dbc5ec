//! The end of a direction that receives. A record is copied before anybody looks at it; a body may be used
//! where it lies, and its pages go back when the last user is done. None of its numbers is trusted before it
//! is checked.

use super::arena::KEPT_MAX;
use super::peer_waker::PeerWaker;
use super::region::{Direction, FRONTS_BYTES, PAGE, PAGES, PIECE_MAX, RECORD_ALIGN};
use super::sender::FIXED_BYTES;
use super::{ProtocolViolation, wants};
use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use weft_rt::{Buf, BufMut, Lender};
use weft_types::limits::FRAME_HEAD_MAX;
use weft_wire::frame::ENVELOPE_BYTES;

/// Taken records of so many bytes are told at the latest; as a rule when no more are there.
const TOLD_LATE_BYTES: u64 = FRONTS_BYTES as u64 / 8;

/// A record that was taken.
pub(super) struct Record {
    /// Envelope and head of a frame; empty in the record of a later piece.
    pub(super) front: Buf,
    pub(super) piece: Piece,
}

/// A piece of a body that lies in shared memory. Whoever takes a record uses or copies it.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    page: usize,
    pub(super) len: usize,
}

/// The receiving end.
pub(crate) struct Receiver {
    direction: Direction,
    peer_waker: Rc<PeerWaker>,
    taken: Cell<u64>,
    told: Cell<u64>,
    freed: Cell<u64>,
    lent: Cell<usize>,
}

impl Receiver {
    pub(super) fn new(direction: Direction, peer_waker: Rc<PeerWaker>) -> Rc<Receiver> {
        let (taken, told, freed, lent) = Default::default();
        Rc::new(Receiver { direction, peer_waker, taken, told, freed, lent })
    }

    /// Whether a record waits.
    pub(super) fn is_ready(&self) -> bool {
        self.direction.positions().written.0.load(Acquire) != self.taken.get()
    }

    /// Asks for a wake-up when a record comes; look for one once more, behind a fence, after this.
    pub(super) fn arm_wakeup(&self) {
        self.direction.positions().asleep.0.store(1, Relaxed);
    }

    /// Needs no wake-up any more.
    pub(super) fn disarm_wakeup(&self) {
        self.direction.positions().asleep.0.store(0, Relaxed);
    }

    /// The next record, if there is one.
    ///
    /// # Errors
    /// If the other end breaks the rules.
    pub(super) fn take(&self) -> Result<Option<Record>, ProtocolViolation> {
        let at = self.taken.get();
        let there = self.direction.positions().written.0.load(Acquire).wrapping_sub(at);
        if there == 0 {
            self.tell_taken(0);
            return Ok(None);
        }
        let is_sane = there <= FRONTS_BYTES as u64 && there.is_multiple_of(RECORD_ALIGN as u64);
        if !is_sane {
            return Err(ProtocolViolation("its records do not fit the ring"));
        }
        let mut fixed = [0; FIXED_BYTES];
        self.direction.get_front(at, &mut fixed);
        let number =
            |i: usize| u32::from_le_bytes(fixed[i * 4..i * 4 + 4].try_into().expect("4 bytes")) as usize;
        let (front, page, len) = (number(0), number(1), number(2));
        let record = (FIXED_BYTES + front).next_multiple_of(RECORD_ALIGN) as u64;
        if front > ENVELOPE_BYTES + FRAME_HEAD_MAX || record > there {
            return Err(ProtocolViolation("a record is longer than the records that are there"));
        }
        if page >= PAGES || len > PIECE_MAX || len > (PAGES - page) * PAGE {
            return Err(ProtocolViolation("a body does not lie in the pages"));
        }
        let mut bytes = BufMut::aligned(front);
        self.direction.get_front(at + FIXED_BYTES as u64, &mut bytes);
        self.taken.set(at + record);
        self.tell_taken(TOLD_LATE_BYTES);
        Ok(Some(Record { front: bytes.freeze(), piece: Piece { page, len } }))
    }

    /// Tells the sender what was taken, if that is more than so many bytes.
    fn tell_taken(&self, more_than: u64) {
        if self.taken.get() - self.told.get() > more_than {
            self.told.set(self.taken.get());
            self.direction.positions().taken.0.store(self.taken.get(), Release);
            self.feed();
        }
    }

    /// Wakes a sender that waits for room.
    fn feed(&self) {
        // Either this sees that the sender waits, or the sender sees the room: the pair is in
        // `Sender::ask_for_space`.
        fence(SeqCst);
        if wants(&self.direction.positions().starved.0) {
            self.peer_waker.wake();
        }
    }

    /// A piece as a buffer, where it lies if that can be. The other end can still change what lies there, if
    /// it breaks the rules: so this is for blocks with checksums, which their users verify and never
    /// interpret.
    pub(super) fn lend_piece(self: &Rc<Self>, piece: Piece) -> Buf {
        let pages = piece.len.div_ceil(PAGE);
        if self.lent.get() + pages > KEPT_MAX {
            let mut copy = BufMut::aligned(piece.len);
            self.copy(piece, &mut copy);
            return copy.freeze();
        }
        self.lent.set(self.lent.get() + pages);
        // SAFETY: the pages are there as long as the lender is, and are freed once, when the buffer is
        // dropped.
        unsafe { Buf::lent(self.clone(), self.direction.page(piece.page, piece.len), piece.len) }
    }

    /// Copies a piece, which is as long as `to`, and frees it.
    pub(super) fn copy(&self, piece: Piece, to: &mut [u8]) {
        assert_eq!(piece.len, to.len());
        if piece.len > 0 {
            let from = self.direction.page(piece.page, piece.len);
            // SAFETY: the piece lies in the mapping. Should the other end write meanwhile, against the rules,
            // the bytes are whatever they are: they are looked at only once they are ours.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), piece.len) };
            self.free(piece.page);
        }
    }

    fn free(&self, page: usize) {
        let position = self.freed.get();
        self.direction.free_entry(position).store(page as u32, Relaxed);
        self.freed.set(position + 1);
        self.direction.positions().freed.0.store(position + 1, Release);
        self.feed();
    }
}

// SAFETY: no memory is lent for buffers to be filled.
unsafe impl Lender for Receiver {
    fn lend(&self, _: usize) -> Option<NonNull<u8>> {
        None
    }

    fn give_back(&self, start: NonNull<u8>, len: usize) {
        self.lent.set(self.lent.get() - len.div_ceil(PAGE));
        self.free(self.direction.page_at(start));
    }
}
