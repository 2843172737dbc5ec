//! An attach that any thread may use: its lanes run on threads of this library, and operations are queued
//! to them.
//!
//! It is the one place of this crate where other threads come in. What they queue is a post; what becomes
//! of an operation on its lane runs on one thread, as everything else here does.

use crate::error::ClientError;
use crate::fabric::Fabric;
use crate::lane::Lane;
use crate::volume::{AttachOptions, Volume};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use weft_rt::sync::{Notify, Semaphore};
use weft_rt::{Addr, Buf, Mailbox, Poster, RtError, Thread, block_on, mailbox, sleep, spawn, thread_number};
use weft_types::BLOCK_SIZE;
use weft_types::limits::{
    LANE_IN_FLIGHT_BYTES_MAX, LANE_IN_FLIGHT_MAX, LANE_OPERATION_BYTES_MAX, LANE_QUEUED_MAX, LANES_MAX,
};

/// How long a lane whose queue is full is left alone before it is asked to end again.
const END_RETRY: std::time::Duration = std::time::Duration::from_millis(1);

/// What a lane is to do. Offsets and lengths are multiples of the volume's logical block, in bytes; data is
/// at most 32 MiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneOp {
    /// Fills the buffer with what the volume holds from this offset on.
    Read {
        /// In bytes.
        offset: u64,
        /// As long as what is to be read.
        buffer: Vec<u8>,
    },
    /// Writes the buffer. When it is done, the data is durable on every in-sync copy.
    Write {
        /// In bytes.
        offset: u64,
        /// What to write.
        buffer: Vec<u8>,
    },
    /// Gives back the space of the whole blocks in the range; they read as zeroes afterwards.
    Discard {
        /// In bytes.
        offset: u64,
        /// In bytes.
        length: u64,
    },
    /// Fails if the attach is over. Writes that are done are durable without it.
    Flush,
}

impl LaneOp {
    /// Bytes of data that it moves.
    fn data_bytes(&self) -> u64 {
        match self {
            LaneOp::Read { buffer, .. } | LaneOp::Write { buffer, .. } => buffer.len() as u64,
            LaneOp::Discard { .. } | LaneOp::Flush => 0,
        }
    }

    /// The blocks that it concerns, and whether it changes them.
    fn blocks(&self) -> (Range<u64>, bool) {
        let blocks = |offset: u64, length: u64| {
            let end = offset.saturating_add(length).div_ceil(BLOCK_SIZE as u64);
            offset / BLOCK_SIZE as u64..end
        };
        match self {
            LaneOp::Read { offset, buffer } => (blocks(*offset, buffer.len() as u64), false),
            LaneOp::Write { offset, buffer } => (blocks(*offset, buffer.len() as u64), true),
            LaneOp::Discard { offset, length } => (blocks(*offset, *length), true),
            LaneOp::Flush => (0..0, false),
        }
    }

    fn into_buffer(self) -> Vec<u8> {
        match self {
            LaneOp::Read { buffer, .. } | LaneOp::Write { buffer, .. } => buffer,
            LaneOp::Discard { .. } | LaneOp::Flush => Vec::new(),
        }
    }
}

/// What became of an operation.
#[derive(Debug)]
pub struct Completion {
    /// Whether it was done. A write that failed may or may not have taken effect, as [`ClientError`] says.
    pub result: Result<(), ClientError>,
    /// The buffer of a read or write; empty for others. A read that failed leaves anything in it.
    pub buffer: Vec<u8>,
}

/// Why an operation was not queued. It was not begun, and is handed back.
#[derive(Debug, thiserror::Error)]
pub enum NotQueued {
    /// As many operations as there may be wait for the lane: wait until some are done.
    #[error("{max} operations wait for this lane already")]
    Full {
        /// How many may wait.
        max: usize,
        /// The operation.
        op: LaneOp,
    },
    /// The data is longer than an operation may move: divide it.
    #[error("an operation on {bytes} bytes: at most {max} are moved at once")]
    TooLarge {
        /// Bytes of the buffer.
        bytes: u64,
        /// The most that there may be.
        max: u64,
        /// The operation.
        op: LaneOp,
    },
    /// The attach was ended by [`Submitter::detach`].
    #[error("the attach has been ended")]
    Over {
        /// The operation.
        op: LaneOp,
    },
}

/// Why an attach could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The fabric did not give it.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The kernel has no ring for a thread.
    #[error("the runtime of a lane cannot start")]
    Runtime(#[from] RtError),
    /// The system has no thread left.
    #[error("a thread for a lane cannot be started")]
    Thread(#[source] std::io::Error),
}

/// An attach for any thread. Clones are the same attach, and may be used from any thread.
///
/// **Order.** All operations of one thread go to one lane. There, an operation that overlaps an earlier one
/// in a block begins after the earlier one has ended, unless both read. So a thread's own reads see its own
/// writes, and of two of its writes to a block the later one stays, also if it did not wait for the first.
/// Operations that do not overlap are carried out side by side and end in any order. Between threads there
/// is no order, except that whatever is called after another operation was done sees that operation's
/// effect.
///
/// A lane has at most 1,024 operations and 64 MiB of data in flight, and 4,096 operations that wait. The
/// attach ends with [`Submitter::detach`], or when the last clone is dropped; what was queued before is
/// carried out.
#[derive(Clone)]
pub struct Submitter {
    lanes: Vec<Poster<Post>>,
    facts: Facts,
}

/// What is known of an attach from its beginning.
#[derive(Clone, Copy, Debug)]
struct Facts {
    size_bytes: u64,
    logical_block: u32,
}

type Done = Box<dyn FnOnce(Completion) + Send>;

/// What is posted to a lane.
enum Post {
    Queued(Queued),
    /// End, and hold this until then.
    End(Poster<()>),
}

/// An operation on its way, which ends with a call of `done`, whatever happens.
struct Queued(Option<(LaneOp, Done)>);

impl Queued {
    fn take(&mut self) -> (LaneOp, Done) {
        self.0.take().expect("it is taken once")
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        // Queued behind the end of the attach, or for a thread that has ended.
        let Some((op, done)) = self.0.take() else { return };
        let over = ClientError::SessionOver {
            volume: String::new(),
            why: "it was ended before this operation had begun".into(),
        };
        done(Completion { result: Err(over), buffer: op.into_buffer() });
    }
}

/// What the first lane says when it is attached.
struct Opened {
    facts: Facts,
    lanes: Vec<Lane>,
}

impl Submitter {
    /// Attaches a volume, and runs its lanes on threads of their own. `name` is for people: it is shown as
    /// the client. The attach may have fewer lanes than `options` ask for; [`Submitter::lanes`] says how
    /// many. It waits until the volume is attached.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is attached then.
    ///
    /// # Panics
    /// If an executor of this runtime runs on the calling thread: there, a [`Volume`] is used.
    pub fn open(
        managers: &[Addr],
        name: &str,
        volume: &str,
        options: AttachOptions,
    ) -> Result<Submitter, OpenError> {
        let (poster, posts) = mailbox(LANE_QUEUED_MAX);
        let (report, mut reported) = mailbox(1);
        let (uses, used) = mailbox(1);
        let first = First {
            managers: managers.to_vec(),
            name: name.to_owned(),
            volume: volume.to_owned(),
            options,
            report,
            used,
            posts,
        };
        let mut thread =
            Thread::start("weft-lane-0", None, move || first.run()).map_err(OpenError::Thread)?;
        let opened = block_on(async move {
            match reported.next().await {
                Some(opened) => opened.map_err(OpenError::Client),
                // It has ended before it could say anything.
                None => Err(thread.ended().await.err().map_or_else(gone, OpenError::Runtime)),
            }
        })??;
        let mut lanes = vec![poster];
        lanes.extend(start_others(opened.lanes, &uses)?);
        Ok(Submitter { lanes, facts: opened.facts })
    }

    /// Queues an operation to the lane of the calling thread. `done` is called once, on the thread of that
    /// lane: it should do little, must not panic, and may submit further operations, which then go to that
    /// lane too.
    ///
    /// # Errors
    /// At once, and `done` is not called: [`NotQueued`], with the operation.
    pub fn submit(
        &self,
        op: LaneOp,
        done: impl FnOnce(Completion) + Send + 'static,
    ) -> Result<(), NotQueued> {
        let bytes = op.data_bytes();
        if bytes > LANE_OPERATION_BYTES_MAX {
            return Err(NotQueued::TooLarge { bytes, max: LANE_OPERATION_BYTES_MAX, op });
        }
        let lane = &self.lanes[thread_number() % self.lanes.len()];
        match lane.post(Post::Queued(Queued(Some((op, Box::new(done)))))) {
            Ok(()) => Ok(()),
            Err(Post::Queued(mut queued)) => {
                let (op, _) = queued.take();
                match lane.is_gone() {
                    true => Err(NotQueued::Over { op }),
                    false => Err(NotQueued::Full { max: LANE_QUEUED_MAX, op }),
                }
            }
            Err(Post::End(_)) => unreachable!("what was posted comes back"),
        }
    }

    /// How many lanes there are.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The volume's size in bytes when it was attached.
    pub fn size_bytes(&self) -> u64 {
        self.facts.size_bytes
    }

    /// The unit of addressing in bytes: 512 or 4096.
    pub fn logical_block(&self) -> u32 {
        self.facts.logical_block
    }

    /// Ends the attach, for all clones: operations that were queued before are carried out, later ones are
    /// refused. Waits until the manager has been told.
    ///
    /// # Errors
    /// If the kernel has no ring for the calling thread to wait with; the attach ends then when the last
    /// clone is dropped.
    ///
    /// # Panics
    /// As [`Submitter::open`], and so also in a `done`.
    pub fn detach(self) -> Result<(), RtError> {
        block_on(async move {
            let (ends, mut ended) = mailbox(1);
            for lane in &self.lanes {
                let mut end = Post::End(ends.clone());
                while let Err(again) = lane.post(end) {
                    if lane.is_gone() {
                        break;
                    }
                    sleep(END_RETRY).await;
                    end = again;
                }
            }
            drop(ends);
            // Nothing is posted: it ends with the last lane.
            while let Some(()) = ended.next().await {}
        })
    }
}

fn gone() -> OpenError {
    OpenError::Client(ClientError::SessionOver { volume: String::new(), why: "its thread has ended".into() })
}

/// Starts the threads of the other lanes. A lane that cannot be opened is left out, and told in the log.
fn start_others(lanes: Vec<Lane>, uses: &Poster<()>) -> Result<Vec<Poster<Post>>, OpenError> {
    let (ready, mut told) = mailbox(LANES_MAX);
    let mut posters = BTreeMap::new();
    for lane in lanes {
        let (poster, posts) = mailbox(LANE_QUEUED_MAX);
        let (number, ready, uses) = (lane.number(), ready.clone(), uses.clone());
        let run = move || run_other(lane, posts, ready, uses);
        Thread::start(&format!("weft-lane-{number}"), None, run).map_err(OpenError::Thread)?;
        posters.insert(number, poster);
    }
    drop(ready);
    let ready = block_on(async move {
        let mut ready = Vec::new();
        while let Some(number) = told.next().await {
            ready.push(number);
        }
        ready
    })?;
    posters.retain(|number, _| ready.contains(number));
    Ok(posters.into_values().collect())
}

/// The first lane: attaches, and ends the attach after all others.
struct First {
    managers: Vec<Addr>,
    name: String,
    volume: String,
    options: AttachOptions,
    report: Poster<Result<Opened, ClientError>>,
    used: Mailbox<()>,
    posts: Mailbox<Post>,
}

impl First {
    async fn run(self) {
        let First { managers, name, volume, options, report, mut used, posts } = self;
        let attached = async {
            let fabric = Fabric::connect(&managers, &name).await?;
            fabric.attach(&volume, options).await
        };
        let volume = match attached.await {
            Ok(volume) => volume,
            Err(error) => return drop(report.post(Err(error))),
        };
        let facts = Facts { size_bytes: volume.size_bytes(), logical_block: volume.logical_block() };
        let opened = Opened { facts, lanes: volume.take_lanes() };
        let _ = report.post(Ok(opened));
        drop(report);
        let ends = carry_out_posts(&volume, posts).await;
        // Nothing is posted: the others hold the other end as long as they use their lanes.
        while let Some(()) = used.next().await {}
        volume.detach().await;
        drop(ends);
    }
}

/// Another lane, which holds `uses` until it is done.
async fn run_other(lane: Lane, posts: Mailbox<Post>, ready: Poster<usize>, uses: Poster<()>) {
    let number = lane.number();
    let volume = match lane.open() {
        Ok(volume) => volume,
        Err(error) => return tracing::warn!(lane = number, %error, "a lane cannot be opened"),
    };
    let _ = ready.post(number);
    drop(ready);
    let ends = carry_out_posts(&volume, posts).await;
    volume.detach().await;
    drop((ends, uses));
}

/// Carries out what is posted until an end is, or nobody can post any more, and then waits for what is in
/// flight. Returns what whoever waits for the end is to see dropped.
async fn carry_out_posts(volume: &Volume, mut posts: Mailbox<Post>) -> Option<Poster<()>> {
    let requests = Semaphore::new(LANE_IN_FLIGHT_MAX);
    let bytes = Semaphore::new(LANE_IN_FLIGHT_BYTES_MAX);
    let order = Rc::new(Order::default());
    let end = loop {
        match posts.next().await {
            Some(Post::Queued(mut queued)) => {
                let (op, done) = queued.take();
                let request = requests.acquire(1).await.expect("it is never closed");
                let room = bytes.acquire(op.data_bytes()).await.expect("it is never closed");
                let (turn, volume) = (order.enter(&op), volume.clone());
                spawn(async move {
                    turn.comes().await;
                    let completion = carry_out(&volume, op).await;
                    drop(turn);
                    drop((request, room));
                    done(completion);
                });
            }
            Some(Post::End(ends)) => break Some(ends),
            None => break None,
        }
    };
    // What is posted from now on is refused, and what was posted behind the end is told so.
    drop(posts);
    requests.acquire(LANE_IN_FLIGHT_MAX).await.expect("it is never closed");
    end
}

/// Carries out one operation.
async fn carry_out(volume: &Volume, op: LaneOp) -> Completion {
    match op {
        LaneOp::Read { offset, mut buffer } => {
            let read = volume.read(offset, buffer.len() as u64).await;
            let result = read.map(|parts| {
                let mut at = 0;
                for part in parts {
                    buffer[at..at + part.len()].copy_from_slice(&part);
                    at += part.len();
                }
            });
            Completion { result, buffer }
        }
        LaneOp::Write { offset, buffer } => {
            let result = volume.write(offset, vec![Buf::from(&buffer[..])]).await;
            Completion { result, buffer }
        }
        LaneOp::Discard { offset, length } => {
            Completion { result: volume.discard(offset, length).await, buffer: Vec::new() }
        }
        LaneOp::Flush => Completion { result: volume.flush().await, buffer: Vec::new() },
    }
}

/// Which operations of a lane are under way, or wait for an earlier one, in the order in which they were
/// queued.
#[derive(Default)]
struct Order {
    entries: RefCell<BTreeMap<u64, (Range<u64>, bool)>>,
    next: Cell<u64>,
    left: Notify,
}

impl Order {
    fn enter(self: &Rc<Self>, op: &LaneOp) -> Turn {
        let number = self.next.replace(self.next.get() + 1);
        let (blocks, writes) = op.blocks();
        if !blocks.is_empty() {
            self.entries.borrow_mut().insert(number, (blocks.clone(), writes));
        }
        Turn { order: self.clone(), number, blocks, writes }
    }
}

/// The place of an operation in the order, until it is dropped.
struct Turn {
    order: Rc<Order>,
    number: u64,
    blocks: Range<u64>,
    writes: bool,
}

impl Turn {
    /// Completes when no earlier operation is left that overlaps this one, unless both read.
    async fn comes(&self) {
        loop {
            let left = self.order.left.notified();
            let goes_together = |(blocks, writes): &(Range<u64>, bool)| {
                blocks.end <= self.blocks.start
                    || self.blocks.end <= blocks.start
                    || !(*writes || self.writes)
            };
            if self.order.entries.borrow().range(..self.number).all(|(_, entry)| goes_together(entry)) {
                return;
            }
            left.await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.order.entries.borrow_mut().remove(&self.number);
        self.order.left.notify_all();
    }
}

/// A handle passes between threads, and several may use it at a time.
const _: fn() = || {
    fn is_shared<T: Send + Sync + Clone>() {}
    is_shared::<Submitter>();
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weft_rt::now;
    use weft_rt::sim::Sim;

    fn write(block: u64, count: usize) -> LaneOp {
        LaneOp::Write { offset: block * 4096, buffer: vec![0; count * 4096] }
    }

    fn read(block: u64, count: usize) -> LaneOp {
        LaneOp::Read { offset: block * 4096, buffer: vec![0; count * 4096] }
    }

    #[test]
    fn what_overlaps_goes_in_the_order_in_which_it_was_queued_and_the_rest_side_by_side() {
        Sim::new(1).block_on(async {
            let order = Rc::new(Order::default());
            let ended: Rc<RefCell<Vec<usize>>> = Rc::default();
            let ops =
                [write(0, 2), read(1, 1), read(1, 4), write(1, 1), write(9, 1), LaneOp::Flush, read(0, 1)];
            let begun = now();
            for (number, op) in ops.into_iter().enumerate() {
                let (turn, ended) = (order.enter(&op), ended.clone());
                spawn(async move {
                    turn.comes().await;
                    // Later ones would be done sooner.
                    sleep(Duration::from_millis(100 - 10 * number as u64)).await;
                    ended.borrow_mut().push(number);
                });
            }
            while ended.borrow().len() < 7 {
                sleep(Duration::from_millis(1)).await;
            }
            let ended = ended.borrow();
            let at = |number| ended.iter().position(|other| *other == number).expect("it has ended");
            assert!(at(0) < at(1) && at(0) < at(2) && at(0) < at(6), "{ended:?}");
            assert!(at(1) < at(3) && at(2) < at(3), "{ended:?}");
            assert!(at(5) < at(4) && at(4) < at(0), "{ended:?}");
            assert!(at(2) < at(1), "reads go together: {ended:?}");
            assert!(begun.elapsed() < Duration::from_millis(300), "{:?}", begun.elapsed());
            assert!(order.entries.borrow().is_empty());
        });
    }

    #[test]
    fn what_was_queued_is_told_its_end_also_where_nobody_carries_it_out() {
        Sim::new(2).block_on(async {
            let (poster, posts) = mailbox(LANE_QUEUED_MAX);
            let facts = Facts { size_bytes: 1 << 20, logical_block: 4096 };
            let submitter = Submitter { lanes: vec![poster], facts };
            let (tell, mut told) = mailbox(2);
            let teller = tell.clone();
            let queued = submitter.submit(write(3, 1), move |completion| {
                let _ = teller.post((completion.result.is_err(), completion.buffer.len()));
            });
            assert!(queued.is_ok());
            let mut full = None;
            for _ in 0..LANE_QUEUED_MAX {
                full = submitter.submit(read(0, 1), |_| {}).err();
            }
            assert!(matches!(full, Some(NotQueued::Full { max: LANE_QUEUED_MAX, op: LaneOp::Read { .. } })));
            drop(posts);
            assert_eq!(told.next().await, Some((true, 4096)));
            let over = submitter.submit(write(3, 1), |_| panic!("it was not queued"));
            assert!(matches!(over, Err(NotQueued::Over { op }) if op == write(3, 1)));
            let large = submitter.submit(write(0, 8193), |_| panic!("it was not queued"));
            assert!(matches!(large, Err(NotQueued::TooLarge { .. })));
        });
    }
}
