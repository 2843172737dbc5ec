//! The real backend: one io_uring per thread.
//!
//! The driver queues what tasks start and hands it to the kernel once per turn of the executor, many
//! operations in one system call. It sleeps in the same call when there is nothing to do, and learns when a
//! short spin before that pays off (`spin.rs`). It never looks into the bytes that it moves.

mod bell;
mod chunks;
mod commands;
mod device;
mod error;
mod file;
mod gather;
mod op;
mod ready;
mod signal;
mod socket;
mod spin;

pub use commands::{COMMAND_ARGUMENT_BYTES, Commands};
pub use error::{KERNEL_OLDEST, RtError};
pub(crate) use file::DriveFile;
pub(crate) use ready::PolledFile;
pub(crate) use signal::Signals;
pub(crate) use socket::{SocketListener, SocketReceiver, SocketStream};
pub use spin::Spin;

use crate::BufMut;
use crate::Polled;
use crate::executor::Remote;
use crate::offload::Helper;
use crate::pinned::{PINNED_BYTES, Pinned};
use crate::time::Instant;
use bell::Bell;
use chunks::Chunks;
use gather::Gather;
use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use op::{Abandon, Held, Op, Repeated, RepeatingOp, TOKEN_BELL, TOKEN_IGNORED, Table};
use spin::{Spinner, Turn};
use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use weft_types::limits::{COMPLETIONS_MAX, SUBMISSIONS_MAX};

/// Looks at shared memory between two looks at the clock while spinning: about a microsecond.
const LOOKS_PER_CLOCK: u32 = 16;

/// How long the end of the executor waits for the drives to finish what they were told. A drive that takes
/// longer does not answer at all; the memory that it may still write to is given up then.
const SHUT_DOWN_MAX: Duration = Duration::from_secs(10);

/// How often the wait for them looks again.
const SHUT_DOWN_STEP: Duration = Duration::from_millis(100);

/// Lists of buffers that are kept for the next write.
const GATHERS_KEPT: usize = 64;

/// The number under which the kernel knows the one registered mapping of a ring.
const PINNED_INDEX: u16 = 0;

/// Every operation that this backend submits, and what it is called.
const OPERATIONS: [(u8, &str); 12] = [
    (opcode::Read::CODE, "the operation READ"),
    (opcode::ReadFixed::CODE, "the operation READ_FIXED"),
    (opcode::Write::CODE, "the operation WRITE"),
    (opcode::Writev::CODE, "the operation WRITEV"),
    (opcode::Fsync::CODE, "the operation FSYNC"),
    (opcode::Fallocate::CODE, "the operation FALLOCATE"),
    (opcode::Accept::CODE, "the operation ACCEPT"),
    (opcode::Connect::CODE, "the operation CONNECT"),
    (opcode::Recv::CODE, "the operation RECV"),
    (opcode::SendMsg::CODE, "the operation SENDMSG"),
    (opcode::PollAdd::CODE, "the operation POLL_ADD"),
    (opcode::AsyncCancel::CODE, "the operation ASYNC_CANCEL"),
];

/// One thread's ring.
pub(crate) struct Driver {
    ring: RefCell<IoUring>,
    table: RefCell<Table>,
    bell: Arc<Bell>,
    /// What the doorbell's counter is read into. Its address must not change while a read is under way.
    bell_count: Box<Cell<u64>>,
    bell_armed: Cell<bool>,
    spinner: Spinner,
    random: Cell<[u64; 4]>,
    /// Calls of io_uring_enter so far.
    enters: Cell<u64>,
    /// Whether the kernel has accepts that go on by themselves, as far as is known.
    accepts_repeat: Cell<bool>,
    /// What repeating receives fill; none if the kernel has neither these nor those (Linux 6.0), as far as known.
    chunks: RefCell<Option<Chunks>>,
    receives_repeat: Cell<bool>,
    /// Memory for reads of drives, from the first such read on; `None` in it if the kernel refused.
    pinned: OnceCell<Option<Rc<Pinned>>>,
    #[expect(
        clippy::vec_box,
        reason = "the kernel has seen their addresses, and a new box is what is saved"
    )]
    gathers: RefCell<Vec<Box<Gather>>>,
    /// Connections through shared memory, which this thread looks at itself.
    watched: RefCell<Vec<Rc<dyn Polled>>>,
    /// Operations did not end: what they may still write to is given up, and what becomes of them is not looked at.
    gave_up: Cell<bool>,
    pub(crate) signals: Signals,
    pub(crate) helper: RefCell<Option<Helper>>,
}

impl Driver {
    /// Sets up the ring of this thread, with the best the kernel has.
    pub(crate) fn new() -> Result<Driver, RtError> {
        Driver::with(&Mode::ALL)
    }

    /// Sets it up in the first of these modes that the kernel has.
    fn with(modes: &[Mode]) -> Result<Driver, RtError> {
        let ring = set_up(modes)?;
        let chunks = Chunks::new(&ring.submitter())
            .inspect_err(|error| tracing::debug!(%error, "connections are read without a ring of buffers"))
            .ok();
        let failed = |what| move |source| RtError::Failed { what, source };
        let mut seed = [0u8; 32];
        getrandom::fill(&mut seed).map_err(io::Error::from).map_err(failed("random numbers"))?;
        // As long as no thread is bound to fewer processors.
        spin::usable();
        let word = |i: usize| u64::from_le_bytes(seed[i * 8..i * 8 + 8].try_into().expect("8 bytes"));
        let bell = Bell::new().map_err(failed("the thread's doorbell"))?;
        Ok(Driver {
            ring: RefCell::new(ring),
            table: RefCell::default(),
            bell: Arc::new(bell),
            bell_count: Box::default(),
            bell_armed: Cell::new(false),
            spinner: Spinner::new(spin::processors()),
            // The generator must not begin with zeroes only.
            random: Cell::new([word(0) | 1, word(1), word(2), word(3)]),
            enters: Cell::new(0),
            accepts_repeat: Cell::new(true),
            receives_repeat: Cell::new(chunks.is_some()),
            chunks: RefCell::new(chunks),
            pinned: OnceCell::new(),
            gathers: RefCell::default(),
            watched: RefCell::default(),
            gave_up: Cell::new(false),
            signals: Signals::default(),
            helper: RefCell::default(),
        })
    }

    /// The monotonic clock that also counts while the machine is suspended: a lease must not outlive a nap.
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(read_clock(libc::CLOCK_BOOTTIME))
    }

    pub(crate) fn wall_clock_us(&self) -> u64 {
        read_clock(libc::CLOCK_REALTIME) / 1000
    }

    /// xoshiro256++ (Blackman, Vigna 2019), seeded by the operating system: fast, and good enough for what is
    /// random here (ids, pauses, choices); not for secrets.
    pub(crate) fn random_u64(&self) -> u64 {
        let mut s = self.random.get();
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        self.random.set(s);
        out
    }

    /// What other threads call to wake this one.
    pub(crate) fn doorbell(&self) -> Box<dyn Fn() + Send> {
        let bell = self.bell.clone();
        Box::new(move || bell.ring())
    }

    /// How this thread waits.
    pub(crate) fn set_spin(&self, mode: Spin) {
        self.spinner.set(mode);
    }

    /// Calls of io_uring_enter so far.
    pub(crate) fn enters(&self) -> u64 {
        self.enters.get()
    }

    /// Hands what was started to the kernel and takes what is complete. If the executor is idle, waits for
    /// something to do first: a completion, a wake from another thread, or the next timer.
    pub(crate) fn turn(&self, idle: bool, next_timer: Option<Instant>, remote: &Remote) {
        self.arm_bell();
        if !idle {
            self.submit();
            self.reap();
            self.look();
            return;
        }
        let mut began = self.now();
        let spin = self.spinner.budget().and_then(|budget| Some((budget, Turn::take(budget)?)));
        let is_spun = spin.is_some();
        if let Some((budget, _turn)) = spin {
            self.submit();
            if self.reap() | self.look() || self.spin(began, budget, next_timer, remote) {
                return;
            }
            began = self.now();
        }
        self.sleep(next_timer, remote);
        self.spinner.slept(self.now() - began, is_spun);
    }

    /// Hands what was started to the kernel and takes what is complete.
    pub(crate) fn submit_now(&self) {
        self.submit();
        self.reap();
    }

    /// Spins until there is something to do; false if the budget ran out first.
    fn spin(&self, began: Instant, budget: Duration, timer: Option<Instant>, remote: &Remote) -> bool {
        let mut looked = began;
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.has_completions() || remote.is_pending() || self.has_news() {
                    let now = self.now();
                    if !self.spinner.paused(now - looked) {
                        self.spinner.undisturbed();
                        self.spinner.waited(now - began);
                    }
                    self.submit();
                    self.reap();
                    self.look();
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = self.now();
            if timer.is_some_and(|at| at <= now) {
                return true;
            }
            if self.spinner.paused(now - looked) && budget != Duration::MAX || now - began > budget {
                return false;
            }
            looked = now;
        }
    }

    /// Sleeps in the kernel until there is something to do.
    fn sleep(&self, timer: Option<Instant>, remote: &Remote) {
        self.watched.borrow().iter().for_each(|polled| polled.arm_wakeup());
        self.bell.lie_down();
        if remote.is_pending() || self.has_news() {
            self.submit();
        } else {
            match timer {
                None => self.enter(|submitter| submitter.submit_and_wait(1)),
                Some(at) => {
                    let left = types::Timespec::from(at - self.now());
                    let args = types::SubmitArgs::new().timespec(&left);
                    self.enter(|submitter| submitter.submit_with_args(1, &args));
                }
            }
        }
        self.bell.get_up();
        self.watched.borrow().iter().for_each(|polled| polled.disarm_wakeup());
        self.reap();
        self.look();
    }

    /// Looks at it in each turn from now on.
    pub(crate) fn watch(&self, polled: Rc<dyn Polled>) {
        self.watched.borrow_mut().push(polled);
    }

    pub(crate) fn unwatch(&self, polled: &Rc<dyn Polled>) {
        let is_it = |watched: &Rc<dyn Polled>| std::ptr::addr_eq(Rc::as_ptr(watched), Rc::as_ptr(polled));
        let index = self.watched.borrow().iter().position(is_it);
        let polled = index.map(|index| self.watched.borrow_mut().swap_remove(index));
        drop(polled);
    }

    /// Whether something has come to what is watched.
    fn has_news(&self) -> bool {
        self.watched.borrow().iter().any(|polled| polled.is_ready())
    }

    /// Wakes those for whom something has come to what is watched; whether there were any.
    fn look(&self) -> bool {
        let watched = self.watched.borrow();
        let any = watched.iter().any(|polled| polled.is_ready());
        if any {
            watched.iter().for_each(|polled| polled.poll());
        }
        any
    }

    /// Whether the kernel has a result for us, or would have if asked. Costs no system call.
    fn has_completions(&self) -> bool {
        has_completions(&mut self.ring.borrow_mut())
    }

    /// Hands what was started to the kernel, if anything was, and lets it finish what it has for us.
    fn submit(&self) {
        let needed = {
            let mut ring = self.ring.borrow_mut();
            let queue = ring.submission();
            !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
        };
        if needed {
            self.enter(|submitter| submitter.submit());
        }
    }

    fn enter(&self, call: impl FnOnce(io_uring::Submitter<'_>) -> io::Result<usize>) {
        self.enters.set(self.enters.get() + 1);
        let result = call(self.ring.borrow().submitter());
        match result.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) => {}
            // The time is over, a signal came, the completions have to be taken first, or the kernel is short
            // of memory for a moment: whatever was not submitted stays queued until the next turn.
            Err((Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN), _)) => {}
            Err((_, error)) => panic!("io_uring_enter was called wrongly: {error}"),
        }
    }

    /// Takes all completions; whether there were any.
    fn reap(&self) -> bool {
        let mut any = false;
        let mut surplus = Vec::new();
        for completion in self.ring.borrow_mut().completion() {
            any = true;
            match completion.user_data() {
                TOKEN_IGNORED => {}
                TOKEN_BELL => self.bell_armed.set(false),
                token => {
                    let more = cqueue::more(completion.flags());
                    let filled = cqueue::buffer_select(completion.flags());
                    let chunk = filled.map(|id| {
                        let mut chunks = self.chunks.borrow_mut();
                        chunks.as_mut().expect("the kernel fills what it was given").exchange(id)
                    });
                    let repeated = Repeated { result: completion.result(), chunk };
                    let completed = self.table().complete(token, repeated, more);
                    surplus.extend(completed.surplus);
                    if let Some(waker) = completed.waker {
                        waker.wake();
                    }
                }
            }
        }
        surplus.into_iter().for_each(|token| self.cancel(token));
        any
    }

    /// Keeps a read of the doorbell under way, so that ringing it ends a sleep.
    fn arm_bell(&self) {
        if self.bell_armed.replace(true) {
            return;
        }
        let entry = opcode::Read::new(types::Fd(self.bell.fd()), self.bell_count.as_ptr().cast(), 8).build();
        // SAFETY: the driver owns descriptor and buffer, and `shut_down` ends the read before both are dropped.
        unsafe { self.push(entry.user_data(TOKEN_BELL)) };
    }

    /// Queues an entry; enters the kernel only if there is no room.
    ///
    /// # Safety
    /// What the entry points to must stay where it is until its completion has been taken.
    unsafe fn push(&self, entry: squeue::Entry) {
        loop {
            // SAFETY: the caller's promise.
            let pushed = unsafe { self.ring.borrow_mut().submission().push(&entry) };
            if pushed.is_ok() {
                return;
            }
            self.enter(|submitter| submitter.submit());
            // An older kernel takes nothing more while completions overflow.
            self.reap();
        }
    }

    fn table(&self) -> RefMut<'_, Table> {
        self.table.borrow_mut()
    }

    /// Starts an operation; `cancel` says whether dropping its future is to stop it.
    ///
    /// # Safety
    /// The entry may point only into the heap memory of `held` and work only on `file`.
    unsafe fn start(&self, entry: squeue::Entry, file: &Rc<OwnedFd>, held: Held, cancel: bool) -> Op {
        let (key, token) = self.table().insert(file.clone(), held);
        // SAFETY: the table keeps memory and file until the completion has been taken.
        unsafe { self.push(entry.user_data(token)) };
        Op::new(key, cancel)
    }

    /// Starts an operation that completes again and again, until `max` results are ready; dropping it stops it.
    ///
    /// # Safety
    /// As for [`Driver::start`].
    unsafe fn start_repeating(
        &self,
        entry: squeue::Entry,
        file: &Rc<OwnedFd>,
        held: Held,
        max: usize,
    ) -> RepeatingOp {
        let (key, token) = self.table().insert_repeating(file.clone(), held, max);
        // SAFETY: the table keeps memory and file until the last completion has been taken.
        unsafe { self.push(entry.user_data(token)) };
        RepeatingOp::new(key)
    }

    /// The future of an operation is gone.
    fn abandon(&self, key: usize, cancel: bool) {
        let abandoned = self.table().abandon(key);
        if let (Abandon::Running(token), true) = (abandoned, cancel) {
            self.cancel(token);
        }
    }

    fn cancel(&self, token: u64) {
        let entry = opcode::AsyncCancel::new(token).build().user_data(TOKEN_IGNORED);
        // SAFETY: the entry points to nothing.
        unsafe { self.push(entry) };
    }

    /// A buffer for a read of a drive, in registered memory as long as there is some. Its bytes are unspecified.
    fn buffer(&self, len: usize) -> BufMut {
        let pinned = self.pinned.get_or_init(|| match self.register() {
            Ok(pinned) => Some(pinned),
            Err(error) => {
                tracing::info!(
                    %error, bytes = PINNED_BYTES,
                    "no memory is registered for reads of drives, which costs some CPU (see ulimit -l)"
                );
                None
            }
        });
        let pinned = pinned.as_ref().and_then(|pinned| BufMut::pinned(pinned, len));
        pinned.unwrap_or_else(|| BufMut::aligned(len))
    }

    /// Maps memory and makes it known to the ring as [`PINNED_INDEX`].
    fn register(&self) -> io::Result<Rc<Pinned>> {
        let pinned = Rc::new(Pinned::map()?);
        // SAFETY: the mapping is there, and the kernel holds its pages by itself from here on.
        unsafe { self.ring.borrow().submitter().register_buffers(&[pinned.iov()]) }?;
        Ok(pinned)
    }

    fn take_gather(&self) -> Box<Gather> {
        self.gathers.borrow_mut().pop().unwrap_or_else(Gather::new)
    }

    fn return_gather(&self, mut gather: Box<Gather>) {
        gather.clear();
        let mut kept = self.gathers.borrow_mut();
        if kept.len() < GATHERS_KEPT {
            kept.push(gather);
        }
    }

    /// Cancels every operation that can be, and waits until the kernel has let go of all memory.
    pub(crate) fn shut_down(&self) {
        if self.gave_up.get() {
            return;
        }
        drop(self.helper.take());
        self.signals.forget();
        self.submit();
        self.reap();
        // The table must be free while these are queued: a full queue takes completions in between.
        let running = self.table().running();
        running.into_iter().for_each(|token| self.cancel(token));
        self.cancel(TOKEN_BELL);
        let deadline = self.now() + SHUT_DOWN_MAX;
        loop {
            self.submit();
            self.reap();
            if self.table().running().is_empty() && !self.bell_armed.get() {
                return;
            }
            if self.now() >= deadline {
                tracing::error!("operations do not end; their memory is given up");
                self.gave_up.set(true);
                self.table().leak();
                std::mem::forget(self.chunks.take());
                return;
            }
            let step = types::Timespec::from(SHUT_DOWN_STEP);
            let args = types::SubmitArgs::new().timespec(&step);
            self.enter(|submitter| submitter.submit_with_args(1, &args));
        }
    }
}

impl Drop for Driver {
    /// After a panic: what the kernel may still write to must not be freed before it is done.
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// When the kernel runs what completes an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// When this thread asks for completions (Linux 6.1).
    Deferred,
    /// When this thread enters the kernel anyhow (5.19).
    Cooperative,
    /// At once, interrupting this thread.
    Interrupting,
}

impl Mode {
    const ALL: [Mode; 3] = [Mode::Deferred, Mode::Cooperative, Mode::Interrupting];

    fn builder(self) -> io_uring::Builder {
        let mut builder = IoUring::builder();
        match self {
            Mode::Deferred => builder.setup_single_issuer().setup_defer_taskrun(),
            Mode::Cooperative => builder.setup_coop_taskrun(),
            Mode::Interrupting => &mut builder,
        };
        if self != Mode::Interrupting {
            // Shared memory says when the kernel waits to be asked, so that looking costs no system call; and
            // a refused operation does not hold up those behind it.
            builder.setup_taskrun_flag().setup_submit_all();
        }
        builder.dontfork().setup_cqsize(COMPLETIONS_MAX);
        builder
    }
}

/// Makes a ring in the first mode that the kernel has.
fn set_up(modes: &[Mode]) -> Result<IoUring, RtError> {
    let mut last = io::Error::from_raw_os_error(libc::EINVAL);
    for mode in modes {
        match mode.builder().build(SUBMISSIONS_MAX) {
            Ok(ring) => {
                check(&ring)?;
                return Ok(ring);
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => last = error,
            Err(error) => return Err(RtError::of_setup(error)),
        }
    }
    Err(RtError::of_setup(last))
}

/// Whether the kernel has all that is used here.
fn check(ring: &IoUring) -> Result<(), RtError> {
    if !ring.params().is_feature_ext_arg() {
        return Err(RtError::TooOld { feature: "waiting with a timeout (IORING_FEAT_EXT_ARG)" });
    }
    if !ring.params().is_feature_nodrop() {
        return Err(RtError::TooOld { feature: "reliable completions (IORING_FEAT_NODROP)" });
    }
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(RtError::of_setup)?;
    match OPERATIONS.iter().find(|(code, _)| !probe.is_supported(*code)) {
        Some((_, feature)) => Err(RtError::TooOld { feature }),
        None => Ok(()),
    }
}

/// Whether the kernel has a result in a ring, or would have if asked. Costs no system call.
fn has_completions<E: squeue::EntryMarker>(ring: &mut IoUring<E>) -> bool {
    if !ring.completion().is_empty() {
        return true;
    }
    let queue = ring.submission();
    queue.taskrun() || queue.cq_overflow()
}

/// Nanoseconds of a clock that every Linux has.
fn read_clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(result, 0, "clocks can be read");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The result of an operation as the standard library has it.
fn check_result(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

/// Whether the kernel asks to try the same again.
fn is_interrupted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{Backend, run, spawn};
    use crate::sync::join_all;
    use crate::{Addr, Buf, Listener, Stream, offload, sleep};

    /// Bytes there and back over many connections at once, more operations than the queue has room for,
    /// reads that are given up, a timer, and work of another thread.
    async fn exercise() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let addr: Addr = listener.local_addr();
        spawn(async move {
            loop {
                let stream = listener.accept().await.unwrap();
                spawn(async move {
                    let mut buf = BufMut::aligned(4096);
                    loop {
                        let (n, filled) = stream.read(buf, 0).await;
                        let Ok(n @ 1..) = n else { return };
                        stream.write(vec![Buf::from(&filled[..n])]).await.unwrap();
                        buf = filled;
                    }
                });
            }
        });
        let connections = SUBMISSIONS_MAX as usize + 44;
        let talk = |i: usize| {
            let addr = addr.clone();
            async move {
                let stream = Stream::connect(&addr).await.unwrap();
                stream.write(vec![Buf::from(&i.to_le_bytes()[..])]).await.unwrap();
                let (n, buf) = stream.read(BufMut::aligned(64), 0).await;
                assert_eq!((n.unwrap(), &buf[..8]), (8, &i.to_le_bytes()[..]));
                let given_up = crate::timeout(Duration::from_millis(2), stream.read(buf, 0)).await;
                assert!(given_up.is_err());
            }
        };
        join_all((0..connections).map(talk)).await;
        sleep(Duration::from_millis(1)).await;
        assert_eq!(offload(|| 6 * 7).await, 42);
    }

    #[test]
    fn every_mode_of_older_kernels_works_with_and_without_spinning() {
        for mode in Mode::ALL {
            for spin in [Spin::Never, Spin::Adaptive, Spin::Always] {
                let driver = Driver::with(&[mode]).unwrap();
                driver.set_spin(spin);
                // The same kernels know no accepts and receives that repeat.
                driver.accepts_repeat.set(mode != Mode::Interrupting);
                driver.receives_repeat.set(mode != Mode::Interrupting);
                run(Backend::Uring(Box::new(driver)), exercise());
            }
        }
    }

    #[test]
    fn a_kernel_that_refuses_to_repeat_accepts_takes_connections_one_by_one() {
        crate::block_on(async {
            let unready = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            unready.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
            let addr = Addr::Tcp(unready.local_addr().unwrap().as_socket().unwrap());
            let listener = SocketListener::of(unready.try_clone().unwrap(), addr.clone());
            // The kernel's answer to an accept before `listen` is the one of a kernel that cannot repeat it.
            let refused = listener.accept().await.err().unwrap();
            assert_eq!(refused.raw_os_error(), Some(libc::EINVAL), "the second refusal is the caller's");
            assert!(!op::with_driver(|driver| driver.accepts_repeat.get()));
            unready.listen(1).unwrap();
            for _ in 0..3 {
                let client = Stream::connect(&addr).await.unwrap();
                let server = listener.accept().await.unwrap();
                server.write(vec![Buf::from(&b"x"[..])]).await.unwrap();
                assert_eq!(client.read(BufMut::aligned(16), 0).await.0.unwrap(), 1);
            }
        })
        .unwrap();
    }

    #[test]
    fn random_numbers_differ_between_executors() {
        let draw = || {
            let driver = Driver::new().unwrap();
            [driver.random_u64(), driver.random_u64()]
        };
        let (a, b) = (draw(), draw());
        assert_ne!(a, b);
        assert_ne!(a[0], a[1]);
    }

    #[test]
    fn the_end_of_the_executor_waits_for_writes_under_way() {
        let path = std::env::temp_dir().join(format!("weft-rt-end-{}", std::process::id()));
        let file = path.to_str().unwrap().to_owned();
        crate::block_on(async move {
            let options = crate::OpenOptions { create_bytes: Some(1 << 20), ..Default::default() };
            let drive = crate::Drive::open(&file, options).await.unwrap();
            // More of them than the queue has room for requests to cancel.
            for _ in 0..2 * SUBMISSIONS_MAX {
                let drive = drive.clone();
                spawn(async move { drive.write(0, Buf::zeroes(64 << 10)).await });
            }
            crate::yield_now().await;
        })
        .unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_drive_reads_the_same_with_registered_memory_without_and_when_it_has_run_out() {
        let path = std::env::temp_dir().join(format!("weft-rt-pinned-{}", std::process::id()));
        for registered in [true, false] {
            let file = path.to_str().unwrap().to_owned();
            let driver = Driver::new().unwrap();
            if !registered {
                assert!(driver.pinned.set(None).is_ok());
            }
            let read_all = async move {
                let options = crate::OpenOptions { create_bytes: Some(4 << 20), ..Default::default() };
                let drive = crate::Drive::open(&file, options).await.unwrap();
                let bytes: Vec<u8> = (0..4u32 << 20).map(|i| (i / 4096 * 7 + i) as u8).collect();
                drive.write(0, Buf::from(&bytes[..])).await.unwrap();
                let mut held = Vec::new();
                for at in (0..bytes.len()).step_by(4096) {
                    held.push((at, drive.read(at as u64, 4096).await.unwrap()));
                }
                held.push((65536, drive.read(65536, 65536).await.unwrap()));
                held.push((0, drive.read(0, 1 << 20).await.unwrap()));
                assert!(held.iter().all(|(at, buf)| buf[..] == bytes[*at..at + buf.len()]));
                // Files on a system that cannot pin anything at all are served, too.
                let pinned = held.iter().filter(|(_, buf)| buf.is_pinned()).count();
                assert!(pinned < held.len() && (registered || pinned == 0), "{pinned} of {}", held.len());
            };
            run(Backend::Uring(Box::new(driver)), read_all);
            std::fs::remove_file(&path).unwrap();
        }
    }
}
