//! The end of a direction that sends: bodies into pages, unless they lie there already, then a record about
//! them into the ring.
//!
//! A record is four numbers of 32 bits (bytes of the front, first page of the piece of body, bytes of the
//! piece, zero) and the front: envelope and head of a frame, nothing in the record of a later piece. What the
//! other end says of what it has taken and freed is checked before it is used.

use super::arena::Arena;
use super::peer_waker::PeerWaker;
use super::region::{Direction, FRONTS_BYTES, PAGE, PIECE_MAX, RECORD_ALIGN};
use super::{ProtocolViolation, wants};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use weft_rt::{Buf, Lender, take_over};

/// Bytes of the numbers in front of a record.
pub(super) const FIXED_BYTES: usize = 16;

/// Looking at what the other end has freed costs a trip to its processor's cache: it is done once for so many
/// frames, or when room is short.
const SENDS_PER_COLLECTION: u32 = 32;

/// A frame that is being sent.
pub(super) struct Outgoing {
    /// Envelope and head; empty once they are sent.
    pub(super) front: Vec<u8>,
    body: Vec<Buf>,
    /// The buffer to go on with, and how many bytes of it are sent.
    at: (usize, usize),
    /// Bytes of the body that are not sent yet.
    left: usize,
    /// Bytes of front and body.
    pub(super) bytes: u64,
}

impl Outgoing {
    pub(super) fn new(front: Vec<u8>, body: Vec<Buf>) -> Outgoing {
        let left = body.iter().map(|buf| buf.len()).sum();
        let bytes = (front.len() + left) as u64;
        Outgoing { front, body, at: (0, 0), left, bytes }
    }

    /// Where the whole body lies, if that is in pages of this sender. They are not ours any more then.
    fn hand_over(&mut self, sender: &Rc<Sender>) -> Option<NonNull<u8>> {
        if self.left == 0 || self.left > PIECE_MAX || self.at != (0, 0) {
            return None;
        }
        let start = take_over(&self.body, &**sender)?;
        self.left = 0;
        Some(start)
    }

    /// Copies the next `len` bytes of the body to `to`.
    ///
    /// # Safety
    /// `to` must be valid for writes of `len` bytes.
    unsafe fn copy(&mut self, to: *mut u8, len: usize) {
        let mut done = 0;
        while done < len {
            let (index, skip) = self.at;
            let rest = &self.body[index][skip..];
            let n = rest.len().min(len - done);
            // SAFETY: the caller's promise, and what was copied before is behind us.
            unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), to.add(done), n) };
            done += n;
            self.at = if n == rest.len() { (index + 1, 0) } else { (index, skip + n) };
        }
        self.left -= len;
    }
}

/// The sending end.
pub(crate) struct Sender {
    direction: Direction,
    peer_waker: Rc<PeerWaker>,
    arena: RefCell<Arena>,
    written: Cell<u64>,
    /// What the other end has taken and freed, as far as it was looked at.
    taken: Cell<u64>,
    freed: Cell<u64>,
    before_collection: Cell<u32>,
}

impl Sender {
    pub(super) fn new(direction: Direction, peer_waker: Rc<PeerWaker>) -> Rc<Sender> {
        Rc::new(Sender {
            direction,
            peer_waker,
            arena: RefCell::new(Arena::new()),
            written: Cell::new(0),
            taken: Cell::new(0),
            freed: Cell::new(0),
            before_collection: Cell::new(SENDS_PER_COLLECTION),
        })
    }

    /// Sends as much of a frame as there is room for; whether that was all.
    ///
    /// # Errors
    /// If the other end breaks the rules.
    pub(super) fn send(self: &Rc<Self>, frame: &mut Outgoing) -> Result<bool, ProtocolViolation> {
        loop {
            let mut piece = frame.left.min(PIECE_MAX);
            let record = (FIXED_BYTES + frame.front.len()).next_multiple_of(RECORD_ALIGN);
            if !self.has_room_for(record)? {
                return Ok(false);
            }
            let page = match frame.hand_over(self) {
                Some(start) => self.direction.page_at(start) as u32,
                // Any page, of which nothing is used.
                None if piece == 0 => 0,
                None => {
                    let count = piece.div_ceil(PAGE);
                    let found = self.take_pages(|arena| arena.take_some(count))?;
                    let Some((page, count)) = found else { return Ok(false) };
                    piece = piece.min(count * PAGE);
                    let to = self.direction.page(page as usize, piece);
                    // SAFETY: the pages are ours until they are handed over, and have room for the piece.
                    unsafe { frame.copy(to.as_ptr(), piece) };
                    page
                }
            };
            if piece > 0 {
                self.arena.borrow_mut().hand_over(page);
            }
            let mut fixed = [0; FIXED_BYTES];
            let numbers = [frame.front.len() as u32, page, piece as u32];
            for (bytes, number) in fixed.chunks_exact_mut(4).zip(numbers) {
                bytes.copy_from_slice(&number.to_le_bytes());
            }
            let at = self.written.get();
            self.direction.put_front(at, &fixed);
            self.direction.put_front(at + FIXED_BYTES as u64, &frame.front);
            self.publish(at + record as u64);
            frame.front.clear();
            if frame.left == 0 {
                return Ok(true);
            }
        }
    }

    fn publish(&self, written: u64) {
        self.written.set(written);
        let positions = self.direction.positions();
        positions.written.0.store(written, Release);
        // Either this sees that the other end is about to sleep, or that one sees what was written: the pair
        // of this fence is passed before it sleeps.
        fence(SeqCst);
        if wants(&positions.asleep.0) {
            self.peer_waker.wake();
        }
    }

    fn has_room_for(&self, record: usize) -> Result<bool, ProtocolViolation> {
        let written = self.written.get();
        let fits = |taken: u64| written - taken + record as u64 <= FRONTS_BYTES as u64;
        if fits(self.taken.get()) {
            return Ok(true);
        }
        self.look_at_taken()?;
        Ok(fits(self.taken.get()))
    }

    fn look_at_taken(&self) -> Result<(), ProtocolViolation> {
        let taken = self.direction.positions().taken.0.load(Acquire);
        if taken < self.taken.get() || taken > self.written.get() {
            return Err(ProtocolViolation("it says that it has taken what was not sent"));
        }
        self.taken.set(taken);
        Ok(())
    }

    /// Takes pages; those as well that have just been freed, if there are too few.
    fn take_pages<T>(&self, take: impl Fn(&mut Arena) -> Option<T>) -> Result<Option<T>, ProtocolViolation> {
        let left = self.before_collection.get() - 1;
        self.before_collection.set(left);
        if left == 0 {
            self.collect()?;
        }
        if let Some(taken) = take(&mut self.arena.borrow_mut()) {
            return Ok(Some(taken));
        }
        self.collect()?;
        Ok(take(&mut self.arena.borrow_mut()))
    }

    /// Takes back what the other end has freed.
    pub(super) fn collect(&self) -> Result<(), ProtocolViolation> {
        self.before_collection.set(SENDS_PER_COLLECTION);
        let freed = self.direction.positions().freed.0.load(Acquire);
        let mut arena = self.arena.borrow_mut();
        if freed.wrapping_sub(self.freed.get()) > arena.out() {
            return Err(ProtocolViolation("it says that it has freed more than was sent"));
        }
        while self.freed.get() < freed {
            let page = self.direction.free_entry(self.freed.get()).load(Relaxed);
            if !arena.give_back(page) {
                return Err(ProtocolViolation("it frees what was not sent"));
            }
            self.freed.set(self.freed.get() + 1);
        }
        Ok(())
    }

    /// Whether the other end has made room since this was last looked at.
    pub(super) fn is_ready(&self) -> bool {
        let positions = self.direction.positions();
        positions.taken.0.load(Acquire) != self.taken.get()
            || positions.freed.0.load(Acquire) != self.freed.get()
    }

    /// Asks for a wake-up when there is room, and looks at all that the other end has said so far, so that
    /// only what it says from now on is news; try once more after this.
    ///
    /// # Errors
    /// If the other end breaks the rules.
    pub(super) fn ask_for_space(&self) -> Result<(), ProtocolViolation> {
        self.direction.positions().starved.0.store(1, Relaxed);
        fence(SeqCst);
        self.look_at_taken()?;
        self.collect()
    }
}

// SAFETY: pages that the arena has given out are nobody else's until they are put back, and the mapping lives
// as long as the sender.
unsafe impl Lender for Sender {
    /// Pages that are to be sent from where they are; `None` if there is no room for so many in one piece, or
    /// too many are lent already.
    fn lend(&self, len: usize) -> Option<NonNull<u8>> {
        let count = len.div_ceil(PAGE);
        if len == 0 || len > PIECE_MAX || !self.arena.borrow().may_lend(count) {
            return None;
        }
        // Should the other end break the rules, a later look finds that again.
        let page = self.take_pages(|arena| arena.take(count)).ok()??;
        Some(self.direction.page(page as usize, len))
    }

    /// Pages that were not sent.
    fn give_back(&self, start: NonNull<u8>, _: usize) {
        self.arena.borrow_mut().put_back(self.direction.page_at(start) as u32);
    }
}
