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
use std::collections::VecDeque;
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
    /// Not one result but many.
    Repeating(Results),
    /// The future is gone; the completion frees what is held.
    Abandoned,
}

impl State {
    /// Whether the kernel is done with the operation.
    fn has_ended(&self) -> bool {
        match self {
            State::Done(_) => true,
            State::Repeating(results) => results.ended,
            State::Waiting(_) | State::Abandoned => false,
        }
    }
}

/// One result of an operation that completes again and again.
pub(super) struct Repeated {
    /// What the system call would return, or a negated error number.
    pub(super) result: i32,
    /// The chunk that was filled, if one was.
    pub(super) chunk: Option<BufMut>,
}

/// The results of an operation that goes on by itself, as far as nobody has taken them.
#[derive(Default)]
struct Results {
    ready: VecDeque<Repeated>,
    /// So many ready results stop the operation. What the kernel completes before it hears of that comes on top.
    max: usize,
    waker: Option<Waker>,
    /// The kernel was asked to stop, because too many were ready.
    stopping: bool,
    /// The last one is there.
    ended: bool,
}

struct Slot {
    state: State,
    held: Held,
    /// Keeps the file open while the kernel works on it.
    #[expect(dead_code, reason = "the kernel uses it")]
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

/// What a completion asks of the driver.
#[derive(Default)]
pub(super) struct Completed {
    /// Who waits for it.
    pub(super) waker: Option<Waker>,
    /// An operation to cancel, because its results come faster than they are taken.
    pub(super) surplus: Option<u64>,
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
        self.insert_as(State::Waiting(None), file, held)
    }

    /// The same for an operation that completes again and again, until `max` results are ready.
    pub(super) fn insert_repeating(&mut self, file: Rc<OwnedFd>, held: Held, max: usize) -> (usize, u64) {
        self.insert_as(State::Repeating(Results { max, ..Default::default() }), file, held)
    }

    fn insert_as(&mut self, state: State, file: Rc<OwnedFd>, held: Held) -> (usize, u64) {
        // Serials stay below 2^31, so that no token is one of the constants above.
        self.next_serial = (self.next_serial + 1) & (u32::MAX >> 1);
        let serial = self.next_serial;
        let key = self.slots.insert(Slot { state, held, file, serial });
        (key, Self::token(key, serial))
    }

    fn token(key: usize, serial: u32) -> u64 {
        let key = u32::try_from(key).expect("far fewer operations than 2^32");
        u64::from(serial) << 32 | u64::from(key)
    }

    /// Records a completion; `more` says that it is not the operation's last.
    pub(super) fn complete(&mut self, token: u64, repeated: Repeated, more: bool) -> Completed {
        let result = repeated.result;
        let (key, serial) = (token as u32 as usize, (token >> 32) as u32);
        let slot = self.slots.get_mut(key).filter(|slot| slot.serial == serial);
        let slot = slot.expect("the kernel completes what was submitted, once");
        match &mut slot.state {
            State::Repeating(results) => {
                results.ready.push_back(repeated);
                results.ended = !more;
                let full = more && results.ready.len() >= results.max;
                let surplus = (full && !std::mem::replace(&mut results.stopping, true)).then_some(token);
                return Completed { waker: results.waker.take(), surplus };
            }
            State::Abandoned if more => discard(&slot.held, result),
            State::Abandoned => discard(&self.slots.remove(key).held, result),
            State::Waiting(waker) => {
                assert!(!more, "an operation that was to complete once goes on");
                let waker = waker.take();
                slot.state = State::Done(result);
                return Completed { waker, surplus: None };
            }
            State::Done(_) => unreachable!("an operation completes once"),
        }
        Completed::default()
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
            State::Repeating(_) => unreachable!("a repeating operation is asked for its next result"),
        }
    }

    /// The token of a repeating operation that is to be stopped, unless it was told or has ended.
    fn stop(&mut self, key: usize) -> Option<u64> {
        let slot = &mut self.slots[key];
        let State::Repeating(results) = &mut slot.state else {
            unreachable!("the operation was started as a repeating one")
        };
        let told = std::mem::replace(&mut results.stopping, true);
        (!told && !results.ended).then_some(Self::token(key, slot.serial))
    }

    /// The next result of a repeating operation; `None` after the last.
    fn poll_next(&mut self, key: usize, cx: &mut Context<'_>) -> Poll<Option<Repeated>> {
        let State::Repeating(results) = &mut self.slots[key].state else {
            unreachable!("the operation was started as a repeating one")
        };
        match results.ready.pop_front() {
            Some(result) => Poll::Ready(Some(result)),
            None if results.ended => Poll::Ready(None),
            None => {
                results.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    pub(super) fn abandon(&mut self, key: usize) -> Abandon {
        let slot = &mut self.slots[key];
        let token = Self::token(key, slot.serial);
        let ended = slot.state.has_ended();
        match std::mem::replace(&mut slot.state, State::Abandoned) {
            State::Done(result) => discard(&slot.held, result),
            State::Repeating(results) => results.ready.iter().for_each(|r| discard(&slot.held, r.result)),
            State::Waiting(_) => {}
            State::Abandoned => unreachable!("an operation has one future"),
        }
        if !ended {
            return Abandon::Running(token);
        }
        self.slots.remove(key);
        Abandon::Complete
    }

    /// Tokens of all operations that the kernel still works on.
    pub(super) fn running(&self) -> Vec<u64> {
        let running = self.slots.iter().filter(|(_, slot)| !slot.state.has_ended());
        running.map(|(key, slot)| Self::token(key, slot.serial)).collect()
    }

    /// Gives up what the kernel may still write to: better lost than handed out twice.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.slots));
    }
}

/// Closes a connection that nobody takes.
fn discard(held: &Held, result: i32) {
    if matches!(held, Held::Accepted) && result >= 0 {
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
        drop(unsafe { OwnedFd::from_raw_fd(result) });
    }
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
        if !self.taken {
            abandon(self.key, self.cancel);
        }
    }
}

/// The results of an operation that completes again and again, until the kernel, or a drop, ends it.
pub(super) struct RepeatingOp {
    key: usize,
}

impl RepeatingOp {
    pub(super) fn new(key: usize) -> RepeatingOp {
        RepeatingOp { key }
    }

    /// The next result, or `None` after the last.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Repeated>> {
        with_driver(|driver| driver.table().poll_next(self.key, cx))
    }
}

impl RepeatingOp {
    /// Asks the kernel to end it. What it has brought by then is still to be taken.
    pub(super) fn stop(&self) {
        with_driver(|driver| {
            let token = driver.table().stop(self.key);
            token.into_iter().for_each(|token| driver.cancel(token));
        });
    }
}

impl Drop for RepeatingOp {
    fn drop(&mut self) {
        abandon(self.key, true);
    }
}

/// Gives an operation up. Without an executor the ring is gone, and with it the operation.
fn abandon(key: usize, cancel: bool) {
    try_with_core(|core| {
        if let Some(driver) = core.uring() {
            driver.abandon(key, cancel);
        }
    });
}

/// Runs `f` on the ring of this thread.
pub(super) fn with_driver<T>(f: impl FnOnce(&Driver) -> T) -> T {
    with_core(|core| f(core.uring().expect("real files and sockets are not used under simulation")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::os::unix::net::UnixStream;

    fn file() -> Rc<OwnedFd> {
        Rc::new(UnixStream::pair().unwrap().0.into())
    }

    const MAX: usize = 5;

    fn repeated(result: i32) -> Repeated {
        Repeated { result, chunk: None }
    }

    fn ready(poll: Poll<Option<Repeated>>) -> Option<i32> {
        let Poll::Ready(repeated) = poll else { panic!("nothing is ready") };
        repeated.map(|r| r.result)
    }

    #[test]
    fn a_repeating_operation_is_stopped_when_nobody_takes_what_it_brings() {
        let mut table = Table::default();
        let (key, token) = table.insert_repeating(file(), Held::Nothing, MAX);
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(table.poll_next(key, cx).is_pending());
        let results = 0..MAX as i32 + 2;
        for i in results.clone() {
            let completed = table.complete(token, repeated(i), true);
            assert_eq!(completed.waker.is_some(), i == 0, "one wake is enough");
            assert_eq!(completed.surplus, (i + 1 == MAX as i32).then_some(token), "{i}");
        }
        assert_eq!(table.running(), [token]);
        assert!(table.complete(token, repeated(-libc::ECANCELED), false).surplus.is_none());
        assert!(table.running().is_empty());
        for i in results.chain([-libc::ECANCELED]) {
            assert_eq!(ready(table.poll_next(key, cx)), Some(i));
        }
        assert_eq!(ready(table.poll_next(key, cx)), None);
        assert!(matches!(table.abandon(key), Abandon::Complete));
        assert!(table.slots.is_empty());
    }

    #[test]
    fn connections_that_nobody_takes_are_closed() {
        let mut table = Table::default();
        let (key, token) = table.insert_repeating(file(), Held::Accepted, MAX);
        let mut peers = Vec::new();
        let mut connection = || {
            let (ours, peer) = UnixStream::pair().unwrap();
            peer.set_nonblocking(true).unwrap();
            peers.push(peer);
            ours.into_raw_fd()
        };
        table.complete(token, repeated(connection()), true);
        assert!(matches!(table.abandon(key), Abandon::Running(running) if running == token));
        table.complete(token, repeated(connection()), true);
        assert_eq!(table.running(), [token]);
        table.complete(token, repeated(connection()), false);
        assert!(table.slots.is_empty());
        for mut peer in peers {
            assert_eq!(peer.read(&mut [0]).unwrap(), 0, "{} is open", peer.as_raw_fd());
        }
    }
}
