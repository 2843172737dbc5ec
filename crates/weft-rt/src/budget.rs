//! How many bytes an executor owes to all of its connections together, and whose turn it is where they are
//! short.
//!
//! A connection has a [`Share`]. Before it takes a request in, it takes room for it, and gives that back once
//! the request is carried out. A small part of the room is each share's own, so that small requests wait for
//! nobody. What goes beyond comes out of the room that all have in common. Where that is short, shares wait
//! in the order in which they came, each with one request at a time.
//!
//! Peers may be slow with what the room is held for: a body that does not arrive, an answer that is not
//! taken. As long as others wait for that room, the budget looks at all shares every second, and ends the
//! connections that have moved nothing for too long. Nobody waits, nobody looks.
//!
//! It belongs to one executor, holds no memory itself, and never decides who takes part in it.

use crate::{sleep, spawn};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use weft_types::limits::{ROOM_BYTES_MAX, ROOM_CONNECTIONS_MAX};

/// Time between two looks for connections that move nothing.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A connection may take one look more for so many bytes that are to move: a hundredth of what a network of
/// 1 Gbit/s carries in that time.
const BYTES_PER_LOOK: u64 = 1 << 20;

/// Looks in a row at which nothing has moved, after which a connection ends. They are counted, instead of the
/// time: an executor that stood still for long looks once, and reads what has arrived meanwhile before it
/// looks again.
const LOOKS_UNMOVED: u64 = 10;

/// Bytes of room, shared by the connections of one executor. Clones are the same.
#[derive(Clone)]
pub struct Budget(Rc<Pool>);

struct Pool {
    /// Bytes beyond their own that all shares may hold together.
    common_bytes: u64,
    /// Bytes that each of the first shares may hold, whatever others hold.
    own_bytes: u64,
    /// How many more shares have room of their own.
    own_left: Cell<usize>,
    /// Bytes beyond their own that shares hold.
    common_held: Cell<u64>,
    /// All bytes that are held.
    held: Cell<u64>,
    /// Looks without movement that a connection is granted.
    patience: u64,
    queue: RefCell<Queue>,
    shares: RefCell<Shares>,
    is_looking: Cell<bool>,
}

/// Shares that wait, in the order in which they came.
#[derive(Default)]
struct Queue {
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
}

struct Waiting {
    share: Weak<Share>,
    bytes: u64,
    waker: Waker,
}

#[derive(Default)]
struct Shares {
    next: u64,
    open: BTreeMap<u64, Weak<Share>>,
}

impl Default for Budget {
    /// One of [`ROOM_BYTES_MAX`] bytes, a quarter of which belongs to [`ROOM_CONNECTIONS_MAX`] shares, for
    /// each the same.
    fn default() -> Self {
        Budget::of_bytes(ROOM_BYTES_MAX)
    }
}

impl Budget {
    /// Likewise, of so many bytes.
    pub fn of_bytes(bytes: u64) -> Budget {
        let own = bytes / 4 / ROOM_CONNECTIONS_MAX as u64;
        Budget::new(bytes, own, ROOM_CONNECTIONS_MAX)
    }

    /// A budget of `bytes` in all, of which each of the first `own_max` shares that are open at a time has
    /// `own_bytes` for itself.
    ///
    /// # Panics
    /// If nothing is left in common.
    pub fn new(bytes: u64, own_bytes: u64, own_max: usize) -> Budget {
        let apart = own_bytes * own_max as u64;
        assert!(apart < bytes, "{bytes} bytes of room, of which {apart} are set apart");
        Budget(Rc::new(Pool {
            common_bytes: bytes - apart,
            own_bytes,
            own_left: Cell::new(own_max),
            common_held: Cell::new(0),
            held: Cell::new(0),
            patience: LOOKS_UNMOVED,
            queue: RefCell::default(),
            shares: RefCell::default(),
            is_looking: Cell::new(false),
        }))
    }

    /// The same, with so many looks, one a second, at which a connection may have moved nothing.
    ///
    /// # Panics
    /// If there are clones of it.
    #[must_use]
    pub fn with_patience(mut self, looks: u64) -> Budget {
        Rc::get_mut(&mut self.0).expect("a budget is set up before it is used").patience = looks;
        self
    }

    /// The part of a connection that waits for its turn. `end` ends the connection, where its peer keeps room
    /// from others and moves nothing.
    pub fn open(&self, end: impl Fn() + 'static) -> Rc<Share> {
        let own_left = self.0.own_left.get();
        self.0.own_left.set(own_left.saturating_sub(1));
        let own = if own_left > 0 { Own::Some(self.0.own_bytes) } else { Own::None };
        self.share(own, Box::new(end))
    }

    /// The part of a connection that waits for nobody, and takes no room from others: it is counted only.
    pub fn open_apart(&self) -> Rc<Share> {
        self.share(Own::All, Box::new(|| {}))
    }

    fn share(&self, own: Own, end: Box<dyn Fn()>) -> Rc<Share> {
        let mut shares = self.0.shares.borrow_mut();
        shares.next += 1;
        let key = shares.next;
        let (held, turn, arriving, leaving) = Default::default();
        let share = Rc::new(Share { pool: self.0.clone(), key, own, held, turn, arriving, leaving, end });
        shares.open.insert(key, Rc::downgrade(&share));
        share
    }

    /// Bytes that are held now, by all shares.
    pub fn held_bytes(&self) -> u64 {
        self.0.held.get()
    }

    /// Connections that wait for their turn now.
    pub fn waiting(&self) -> usize {
        self.0.queue.borrow().waiting.len()
    }
}

impl Pool {
    fn has_common(&self, bytes: u64) -> bool {
        // What is larger than all of it has to go, too: alone.
        self.common_held.get() == 0 || self.common_held.get() + bytes <= self.common_bytes
    }

    /// Gives room to those that wait, in their order, as far as there is some.
    fn serve_queue(&self) {
        loop {
            let mut queue = self.queue.borrow_mut();
            let Some(first) = queue.waiting.first_entry() else { return };
            let Some(share) = first.get().share.upgrade() else {
                first.remove();
                continue;
            };
            if !self.has_common(share.beyond_own(first.get().bytes)) {
                return;
            }
            let waiting = first.remove();
            drop(queue);
            share.be_served(waiting);
        }
    }

    /// Begins to look for connections that move nothing, until nobody waits.
    fn look(self: &Rc<Self>) {
        if self.is_looking.replace(true) {
            return;
        }
        let pool = Rc::downgrade(self);
        spawn(async move {
            loop {
                sleep(LOOK_EVERY).await;
                let Some(pool) = pool.upgrade() else { return };
                if pool.queue.borrow().waiting.is_empty() {
                    return pool.is_looking.set(false);
                }
                let shares: Vec<Rc<Share>> =
                    pool.shares.borrow().open.values().filter_map(Weak::upgrade).collect();
                shares.iter().filter(|share| share.is_stuck()).for_each(|share| (share.end)());
            }
        });
    }
}

/// How far a share has come that asks for room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turn {
    #[default]
    None,
    /// In the queue, under this key.
    Waits(u64),
    /// It has been given the room, and its task has not seen that yet.
    Served,
}

/// What a share may hold whatever others hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    /// It came when there were many.
    None,
    Some(u64),
    All,
}

/// What moves between this process and a peer, in one direction.
#[derive(Default)]
pub struct Transfer {
    /// Bytes that wait for the peer; 0: nothing does.
    bytes: Cell<u64>,
    /// How often something has ended.
    moved: Cell<u64>,
    /// What a look has seen of it, and how many looks in a row.
    seen: Cell<u64>,
    looks: Cell<u64>,
}

impl Transfer {
    /// So many bytes wait for the peer from now on.
    pub fn begin(&self, bytes: u64) {
        self.bytes.set(bytes);
        self.moved.set(self.moved.get() + 1);
    }

    /// So many bytes more wait for the peer.
    pub fn grow(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
    }

    /// Nothing waits for the peer any more.
    pub fn end(&self) {
        self.begin(0);
    }

    /// Looks, and says whether nothing has moved for too long.
    fn is_stuck(&self, patience: u64) -> bool {
        if self.bytes.get() == 0 || self.seen.replace(self.moved.get()) != self.moved.get() {
            self.looks.set(0);
            return false;
        }
        self.looks.set(self.looks.get() + 1);
        self.looks.get() > patience + self.bytes.get() / BYTES_PER_LOOK
    }
}

/// What one connection holds. What is left of it comes back when it is dropped.
pub struct Share {
    pool: Rc<Pool>,
    key: u64,
    own: Own,
    held: Cell<u64>,
    /// Its place in the queue, if it waits.
    turn: Cell<Turn>,
    /// The body that the peer is sending.
    pub arriving: Transfer,
    /// The answers that the peer is taking.
    pub leaving: Transfer,
    end: Box<dyn Fn()>,
}

impl Share {
    fn own(&self) -> u64 {
        match self.own {
            Own::None => 0,
            Own::Some(bytes) => bytes,
            Own::All => u64::MAX,
        }
    }

    /// How many of so many bytes more are beyond its own.
    fn beyond_own(&self, bytes: u64) -> u64 {
        let (held, own) = (self.held.get(), self.own());
        (held + bytes).saturating_sub(own) - held.saturating_sub(own)
    }

    /// Takes so many bytes, if there is room for them and nobody waits whose turn is before.
    pub fn try_take(&self, bytes: u64) -> bool {
        let beyond = self.beyond_own(bytes);
        let can =
            beyond == 0 || (self.pool.has_common(beyond) && self.pool.queue.borrow().waiting.is_empty());
        if can {
            self.owe(bytes);
        }
        can
    }

    /// Takes so many bytes, and waits for them if need be. A share waits for one request at a time. Dropping
    /// the future gives the turn up.
    pub fn take(self: &Rc<Self>, bytes: u64) -> impl Future<Output = ()> + use<> {
        Take { share: self.clone(), bytes }
    }

    /// Takes so many bytes as [`Share::take`] does, to be given back when the room is dropped.
    pub async fn room(self: &Rc<Self>, bytes: u64) -> Room {
        if !self.try_take(bytes) {
            self.take(bytes).await;
        }
        Room { share: self.clone(), bytes }
    }

    /// Takes so many bytes as [`Share::try_take`] does, to be given back when the room is dropped.
    pub fn try_room(self: &Rc<Self>, bytes: u64) -> Option<Room> {
        self.try_take(bytes).then(|| Room { share: self.clone(), bytes })
    }

    /// Holds so many bytes more, whether there is room or not: what is owed already waits for nobody.
    pub fn owe(&self, bytes: u64) {
        let beyond = self.beyond_own(bytes);
        self.held.set(self.held.get() + bytes);
        self.pool.held.set(self.pool.held.get() + bytes);
        self.pool.common_held.set(self.pool.common_held.get() + beyond);
    }

    /// Gives so many bytes back.
    ///
    /// # Panics
    /// If it does not hold as many.
    pub fn give_back(&self, bytes: u64) {
        let held = self.held.get();
        assert!(bytes <= held, "{bytes} bytes come back of {held}");
        self.held.set(held - bytes);
        self.pool.held.set(self.pool.held.get() - bytes);
        self.pool.common_held.set(self.pool.common_held.get() - self.beyond_own(bytes));
        if !self.pool.queue.borrow().waiting.is_empty() {
            self.serve_others();
        }
    }

    /// After something came back: this one may have room of its own now, and others some of what is common.
    #[cold]
    fn serve_others(&self) {
        if let Turn::Waits(key) = self.turn.get() {
            let mut queue = self.pool.queue.borrow_mut();
            let bytes = queue.waiting.get(&key).map_or(u64::MAX, |mine| mine.bytes);
            let mine = if bytes <= self.own().saturating_sub(self.held.get()) {
                queue.waiting.remove(&key)
            } else {
                None
            };
            drop(queue);
            mine.into_iter().for_each(|mine| self.be_served(mine));
        }
        self.pool.serve_queue();
    }

    /// Holds what it has waited for.
    fn be_served(&self, waiting: Waiting) {
        self.owe(waiting.bytes);
        self.turn.set(Turn::Served);
        waiting.waker.wake();
    }

    /// Whether it keeps room from others for a peer that moves nothing.
    fn is_stuck(&self) -> bool {
        // Both, so that each counts its looks.
        let (arriving, leaving) =
            (self.arriving.is_stuck(self.pool.patience), self.leaving.is_stuck(self.pool.patience));
        (arriving || leaving) && self.held.get() > self.own()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.pool.shares.borrow_mut().open.remove(&self.key);
        if let Own::Some(_) = self.own {
            self.pool.own_left.set(self.pool.own_left.get() + 1);
        }
        self.give_back(self.held.get());
    }
}

/// Bytes that a share holds.
pub struct Room {
    share: Rc<Share>,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.share.give_back(self.bytes);
    }
}

struct Take {
    share: Rc<Share>,
    bytes: u64,
}

impl Future for Take {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (share, pool, bytes) = (&self.share, &self.share.pool, self.bytes);
        let key = match share.turn.get() {
            Turn::Served => {
                share.turn.set(Turn::None);
                return Poll::Ready(());
            }
            Turn::None if share.try_take(bytes) => return Poll::Ready(()),
            Turn::None => {
                let mut queue = pool.queue.borrow_mut();
                queue.next += 1;
                queue.next
            }
            Turn::Waits(key) => key,
        };
        let waiting = Waiting { share: Rc::downgrade(share), bytes, waker: cx.waker().clone() };
        pool.queue.borrow_mut().waiting.insert(key, waiting);
        share.turn.set(Turn::Waits(key));
        pool.look();
        Poll::Pending
    }
}

impl Drop for Take {
    fn drop(&mut self) {
        let share = &self.share;
        match share.turn.replace(Turn::None) {
            Turn::None => {}
            Turn::Served => share.give_back(self.bytes),
            Turn::Waits(key) => {
                let left = share.pool.queue.borrow_mut().waiting.remove(&key);
                drop(left);
                share.pool.serve_queue();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Sim;
    use crate::{JoinHandle, random_below, timeout};

    fn open(budget: &Budget) -> Rc<Share> {
        budget.open(|| {})
    }

    fn waits(share: &Rc<Share>, bytes: u64) -> JoinHandle<Room> {
        let share = share.clone();
        spawn(async move { share.room(bytes).await })
    }

    async fn settle() {
        sleep(Duration::from_millis(1)).await;
    }

    #[test]
    fn a_share_has_its_own_room_and_then_its_part_of_what_is_common() {
        let budget = Budget::new(100, 10, 4);
        let (a, b) = (open(&budget), open(&budget));
        assert!(a.try_take(10) && a.try_take(60));
        assert!(!b.try_take(11), "ten of its own, and nothing in common");
        assert!(b.try_take(10) && !b.try_take(1));
        assert_eq!(budget.held_bytes(), 80);
        a.give_back(1);
        assert!(b.try_take(1) && !a.try_take(1));
        a.give_back(60);
        assert!(!b.try_take(60) && b.try_take(59), "the last of its own came back as well");
        drop((a, b));
        assert_eq!(budget.held_bytes(), 0);
        assert!(open(&budget).try_take(70));
    }

    #[test]
    fn those_who_come_late_have_nothing_of_their_own() {
        let budget = Budget::new(100, 10, 2);
        let shares = [(); 3].map(|()| open(&budget));
        assert!(shares[0].try_take(90));
        assert!(shares[1].try_take(10) && !shares[2].try_take(1));
        drop(shares);
        let shares = [(); 2].map(|()| open(&budget));
        assert!(shares[0].try_take(90) && shares[1].try_take(10), "who has gone has left his");
    }

    #[test]
    fn who_stands_apart_takes_nothing_from_others() {
        let budget = Budget::new(100, 10, 2);
        let (apart, share) = (budget.open_apart(), open(&budget));
        assert!(apart.try_take(1000) && share.try_take(90) && apart.try_take(1000));
        assert_eq!(budget.held_bytes(), 2090);
    }

    #[test]
    fn what_is_owed_waits_for_no_room_and_takes_it_from_others() {
        let budget = Budget::new(100, 10, 2);
        let (a, b) = (open(&budget), open(&budget));
        a.owe(500);
        assert!(!b.try_take(11) && b.try_take(10));
        a.give_back(480);
        assert!(b.try_take(70) && !b.try_take(1));
    }

    #[test]
    fn turns_come_in_order_and_large_ones_are_not_passed() {
        Sim::new(1).block_on(async {
            let budget = Budget::new(101, 1, 1);
            let shares: Vec<_> = (0..4).map(|_| open(&budget)).collect();
            let first = shares[1].room(60).await;
            let large = waits(&shares[2], 80);
            settle().await;
            let small = waits(&shares[3], 10);
            settle().await;
            assert_eq!(budget.waiting(), 2, "there is room for the small one, but it came later");
            drop(first);
            settle().await;
            assert!(large.is_finished() && small.is_finished());
            drop(large.await.unwrap());
            drop(small.await.unwrap());
            assert_eq!((budget.held_bytes(), budget.waiting()), (0, 0));
        });
    }

    #[test]
    fn who_gives_its_turn_up_holds_up_nobody() {
        Sim::new(2).block_on(async {
            let budget = Budget::new(100, 0, 0);
            let (a, b, c) = (open(&budget), open(&budget), open(&budget));
            let held = a.room(90).await;
            let large = waits(&b, 50);
            settle().await;
            let small = waits(&c, 10);
            settle().await;
            assert!(!small.is_finished());
            large.abort();
            settle().await;
            assert!(small.is_finished());
            drop((held, small.await));
            assert_eq!(budget.held_bytes(), 0);
            assert!(timeout(Duration::ZERO, a.room(1000)).await.is_ok(), "alone, it may be larger than all");
        });
    }

    #[test]
    fn what_comes_back_of_its_own_needs_no_turn() {
        Sim::new(3).block_on(async {
            let budget = Budget::new(100, 10, 2);
            let (a, b) = (open(&budget), open(&budget));
            let _all = a.room(90).await;
            let own = b.room(10).await;
            let next = waits(&b, 5);
            settle().await;
            assert!(!next.is_finished());
            drop(own);
            settle().await;
            assert!(next.is_finished());
        });
    }

    /// Any order of taking, owing, giving back and giving up leaves the sums right.
    #[test]
    fn sums_hold() {
        for seed in 0..50 {
            Sim::new(seed).block_on(async {
                let budget = Budget::new(400, 20, 4);
                let work = (0..8).map(|_| {
                    let budget = budget.clone();
                    spawn(async move {
                        for _ in 0..random_below(30) {
                            let share = open(&budget);
                            for _ in 0..random_below(6) {
                                let us = Duration::from_micros(random_below(3000));
                                let room = timeout(us, share.room(random_below(300))).await;
                                assert!(budget.held_bytes() <= 400);
                                sleep(Duration::from_micros(random_below(500))).await;
                                drop(room);
                            }
                        }
                    })
                });
                for task in work.collect::<Vec<_>>() {
                    task.await.unwrap();
                }
                let pool = &budget.0;
                assert_eq!((pool.held.get(), pool.common_held.get(), budget.waiting()), (0, 0, 0));
                assert!(pool.own_left.get() == 4 && pool.shares.borrow().open.is_empty());
            });
        }
    }

    #[test]
    fn who_moves_nothing_is_ended_only_while_others_wait() {
        Sim::new(4).block_on(async {
            let budget = Budget::new(100, 10, 4);
            let ended = Rc::new(Cell::new(0));
            let stuck = |ended: &Rc<Cell<u32>>| {
                let ended = ended.clone();
                budget.open(move || ended.set(ended.get() + 1))
            };
            let (slow, busy, moving) = (stuck(&ended), stuck(&ended), stuck(&ended));
            assert!(slow.try_take(40) && busy.try_take(30) && moving.try_take(20));
            slow.leaving.begin(40);
            moving.arriving.begin(20);
            sleep(Duration::from_secs(100)).await;
            assert_eq!(ended.get(), 0, "nobody waits");
            let waiter = open(&budget);
            let waiting = waits(&waiter, 40);
            for _ in 0..LOOKS_UNMOVED {
                sleep(Duration::from_secs(1)).await;
                moving.arriving.begin(20);
            }
            assert_eq!(ended.get(), 0, "not yet");
            sleep(Duration::from_millis(2500)).await;
            moving.arriving.begin(20);
            assert!(ended.get() > 0, "the slow one, again and again until it has gone");
            drop(slow);
            settle().await;
            assert!(waiting.is_finished());
            ended.set(0);
            sleep(Duration::from_secs(100)).await;
            assert_eq!(ended.get(), 0, "nobody waits any more");
            drop((busy, moving));
        });
    }
}
