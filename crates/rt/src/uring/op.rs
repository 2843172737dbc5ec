//! Operations in flight: what each owns until the kernel is done with it, and the future of its result.
//!
//! The kernel reads and writes memory of ours while an operation runs. So that memory belongs to the table
//! here, never to the future: a future may be dropped at any time, the memory stays until the completion has
//! come. This module never talks to the kernel itself.

use super::Driver;
use super::gather::Gather;
use crate::BufMut;
use crate::executor::{try_with_core, with_core};
use slab::Slab;
use socket2::SockAddr;
use std::future::Future;
use std::os::fd::{FromRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Completions of requests that nobody waits for: those to cancel another.
pub(super) const TOKEN_IGNORED: u64 = u64::MAX;
/// Completions of the read of the doorbell.
pub(super) const TOKEN_BELL: u64 = u64::MAX - 1;

/// Memory that an operation uses, returned with its result. What the kernel sees is on the heap: moving the
/// value does not move it.
pub(super) enum Held {
    /// None.
    Nothing,
    /// A buffer to be filled.
    Bytes(BufMut),
    /// Buffers to be written.
    Gather(Box<Gather>),
    /// Where to connect. Only kept alive, never read again.
    Address(#[expect(dead_code, reason = "the kernel reads it")] Box<SockAddr>),
    /// None; the result is a connection, which is to be closed if nobody takes it.
    Accepted,
}

impl Held {
    /// The buffer of an operation that was started with one.
    pub(super) fn into_bytes(self) -> BufMut {
        match self {
            Held::Bytes(buf) => buf,
            _ => unreachable!("the operation was started with a buffer"),
        }
    }

    /// The buffers of an operation that was started with several.
    pub(super) fn into_gather(self) -> Box<Gather> {
        match self {
            Held::Gather(gather) => gather,
            _ => unreachable!("the operation was started with buffers to write"),
        }
    }
}

enum State {
    /// The future has not seen the result; its waker, once it was polled.
    Waiting(Option<Waker>),
    /// The result, for the future to take.
    Done(i32),
    /// The future is gone; the completion frees what is held.
    Abandoned,
}

struct Slot {
    state: State,
    held: Held,
    /// Keeps the file open while the kernel works on it.
    file: Rc<OwnedFd>,
    /// Tells this operation from an earlier one with the same key.
    serial: u32,
}

/// What became of an operation whose future was dropped.
pub(super) enum Abandon {
    /// It was complete already.
    Complete,
    /// It still runs, under this token.
    Running(u64),
}

/// All operations in flight of one ring.
#[derive(Default)]
pub(super) struct Table {
    slots: Slab<Slot>,
    next_serial: u32,
}

impl Table {
    /// Takes over what the operation needs; returns its key and the token that the kernel is to hand back.
    pub(super) fn insert(&mut self, file: Rc<OwnedFd>, held: Held) -> (usize, u64) {
        // Serials stay below 2^31, so that no token is one of the constants above.
        self.next_serial = (self.next_serial + 1) & (u32::MAX >> 1);
        let serial = self.next_serial;
        let key = self.slots.insert(Slot { state: State::Waiting(None), held, file, serial });
        (key, Self::token(key, serial))
    }

    fn token(key: usize, serial: u32) -> u64 {
        let key = u32::try_from(key).expect("far fewer operations than 2^32");
        u64::from(serial) << 32 | u64::from(key)
    }

    /// Records a completion; returns who waits for it.
    pub(super) fn complete(&mut self, token: u64, result: i32) -> Option<Waker> {
        let (key, serial) = (token as u32 as usize, (token >> 32) as u32);
        let slot = self.slots.get_mut(key).filter(|slot| slot.serial == serial);
        let slot = slot.expect("the kernel completes what was submitted, once");
        match std::mem::replace(&mut slot.state, State::Done(result)) {
            State::Waiting(waker) => waker,
            State::Abandoned => {
                discard(self.slots.remove(key), result);
                None
            }
            State::Done(_) => unreachable!("an operation completes once"),
        }
    }

    fn poll(&mut self, key: usize, cx: &mut Context<'_>) -> Poll<(i32, Held)> {
        let slot = &mut self.slots[key];
        match &mut slot.state {
            State::Done(result) => {
                let result = *result;
                Poll::Ready((result, self.slots.remove(key).held))
            }
            State::Waiting(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            State::Abandoned => unreachable!("an abandoned operation has no future"),
        }
    }

    pub(super) fn abandon(&mut self, key: usize) -> Abandon {
        let slot = &mut self.slots[key];
        match slot.state {
            State::Done(result) => {
                discard(self.slots.remove(key), result);
                Abandon::Complete
            }
            _ => {
                slot.state = State::Abandoned;
                Abandon::Running(Self::token(key, slot.serial))
            }
        }
    }

    /// Tokens of all operations that the kernel still works on.
    pub(super) fn running(&self) -> Vec<u64> {
        let running = self.slots.iter().filter(|(_, slot)| !matches!(slot.state, State::Done(_)));
        running.map(|(key, slot)| Self::token(key, slot.serial)).collect()
    }

    /// Gives up what the kernel may still write to: better lost than handed out twice.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.slots));
    }
}

/// Drops what a completed operation held, its result included.
fn discard(slot: Slot, result: i32) {
    if matches!(slot.held, Held::Accepted) && result >= 0 {
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
        drop(unsafe { OwnedFd::from_raw_fd(result) });
    }
    drop(slot.file);
}

/// The future of an operation's result (what the system call would return, or a negated error number) and of
/// what it held. Dropping it cancels the operation where that makes sense.
pub(super) struct Op {
    key: usize,
    /// Whether a drop asks the kernel to stop: for what may wait for ever, not for writes to drives.
    cancel: bool,
    taken: bool,
}

impl Op {
    pub(super) fn new(key: usize, cancel: bool) -> Op {
        Op { key, cancel, taken: false }
    }
}

impl Future for Op {
    type Output = (i32, Held);
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(i32, Held)> {
        assert!(!self.taken, "polled after completion");
        let done = with_driver(|driver| driver.table().poll(self.key, cx));
        self.taken = done.is_ready();
        done
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        // Without an executor the ring is gone, and with it the operation.
        try_with_core(|core| {
            if let Some(driver) = core.uring() {
                driver.abandon(self.key, self.cancel);
            }
        });
    }
}

/// Runs `f` on the ring of this thread.
pub(super) fn with_driver<T>(f: impl FnOnce(&Driver) -> T) -> T {
    with_core(|core| f(core.uring().expect("real files and sockets are not used under simulation")))
}
