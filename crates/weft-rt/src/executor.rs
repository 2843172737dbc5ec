//! The executor: tasks of one thread, woken by each other, by timers and by the backend.
//!
//! Real tasks run first come, first served. Under simulation the seed picks which ready task runs next, so
//! that orders which a real machine rarely shows are tried too. A panic in a task ends the program (a broken
//! invariant must not be outlived by the rest).

use crate::sim::World;
use crate::time::Instant;
use crate::uring::{self, RtError};
use pin_project_lite::pin_project;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

/// Tasks polled in a row before the backend is looked at again: keeps I/O from starving behind busy tasks,
/// and lets many submissions share one system call.
const POLLS_PER_TURN: usize = 64;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
    static CURRENT_ID: Cell<u64> = const { Cell::new(0) };
}

static NEXT_CORE: AtomicU64 = AtomicU64::new(1);

/// Which simulated process a task belongs to; 0 is the harness, or any task of the real backend.
pub(crate) type Process = u32;

/// A future of this thread, in a box.
pub type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    /// The future and what wakes it; absent while the task is being polled.
    polled: Option<(LocalFuture, Waker)>,
    wake: Arc<TaskWake>,
    process: Process,
}

/// What wakers point to. Wakes from the executor's own thread go to its queue; from others through `remote`.
struct TaskWake {
    core: u64,
    key: usize,
    /// Tells this task from an earlier one with the same key.
    serial: u64,
    queued: AtomicBool,
    remote: Arc<Remote>,
}

impl Wake for TaskWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        if CURRENT_ID.get() == self.core {
            let pushed = try_with_core(|core| core.ready.borrow_mut().push_back((self.key, self.serial)));
            if pushed.is_some() {
                return;
            }
        }
        self.remote.push((self.key, self.serial));
    }
}

/// Wakes from other threads.
#[derive(Default)]
pub(crate) struct Remote {
    queue: Mutex<Vec<(usize, u64)>>,
    pending: AtomicBool,
    /// Set by a backend that sleeps in the kernel.
    doorbell: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Remote {
    fn push(&self, task: (usize, u64)) {
        self.queue.lock().expect("no panic while locked").push(task);
        self.pending.store(true, Ordering::Release);
        if let Some(ring) = &*self.doorbell.lock().expect("no panic while locked") {
            ring();
        }
    }

    /// Sets what wakes the executor's thread from a sleep in the kernel.
    pub(crate) fn set_doorbell(&self, ring: Box<dyn Fn() + Send>) {
        *self.doorbell.lock().expect("no panic while locked") = Some(ring);
    }

    /// Whether a wake from another thread waits.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }
}

/// Where time, randomness and I/O come from.
pub(crate) enum Backend {
    Uring(Box<uring::Driver>),
    Sim(World),
}

/// One thread's executor.
pub(crate) struct Core {
    id: u64,
    tasks: RefCell<Slab<Task>>,
    ready: RefCell<VecDeque<(usize, u64)>>,
    timers: RefCell<BTreeMap<(Instant, u64), Waker>>,
    /// Of tasks that let what has happened meanwhile go first.
    breathing: RefCell<Vec<Waker>>,
    /// Simulated processes that stand still, and their tasks that would run.
    paused: RefCell<BTreeMap<Process, Vec<(usize, u64)>>>,
    next_serial: Cell<u64>,
    process: Cell<Process>,
    remote: Arc<Remote>,
    /// Whether the root task has ended, so that there is nothing to wait for.
    root_over: Cell<bool>,
    pub(crate) backend: Backend,
}

/// Runs `f` on the thread's executor.
///
/// # Panics
/// If there is none: the caller is not inside [`block_on`] or a simulation.
pub(crate) fn with_core<T>(f: impl FnOnce(&Core) -> T) -> T {
    try_with_core(f).expect("called outside of weft_rt::block_on")
}

/// Runs `f` on the thread's executor, if there is one.
pub(crate) fn try_with_core<T>(f: impl FnOnce(&Core) -> T) -> Option<T> {
    CURRENT.try_with(|current| current.borrow().as_deref().map(f)).ok().flatten()
}

impl Core {
    fn new(backend: Backend) -> Rc<Core> {
        Rc::new(Core {
            id: NEXT_CORE.fetch_add(1, Ordering::Relaxed),
            tasks: RefCell::default(),
            ready: RefCell::default(),
            timers: RefCell::default(),
            breathing: RefCell::default(),
            paused: RefCell::default(),
            next_serial: Cell::new(1),
            process: Cell::new(0),
            remote: Arc::default(),
            root_over: Cell::new(false),
            backend,
        })
    }

    pub(crate) fn now(&self) -> Instant {
        match &self.backend {
            Backend::Uring(driver) => driver.now(),
            Backend::Sim(world) => world.now(self.process.get()),
        }
    }

    pub(crate) fn wall_clock_us(&self) -> u64 {
        match &self.backend {
            Backend::Uring(driver) => driver.wall_clock_us(),
            Backend::Sim(world) => world.wall_clock_us(self.process.get()),
        }
    }

    pub(crate) fn random_u64(&self) -> u64 {
        match &self.backend {
            Backend::Uring(driver) => driver.random_u64(),
            Backend::Sim(world) => world.random_u64(),
        }
    }

    /// The io_uring driver of this thread, or none under simulation.
    pub(crate) fn uring(&self) -> Option<&uring::Driver> {
        match &self.backend {
            Backend::Uring(driver) => Some(driver),
            Backend::Sim(_) => None,
        }
    }

    /// The simulated world of this thread, or none in reality.
    pub(crate) fn world(&self) -> Option<&World> {
        match &self.backend {
            Backend::Uring(_) => None,
            Backend::Sim(world) => Some(world),
        }
    }

    /// The simulated process whose task runs now.
    pub(crate) fn process(&self) -> Process {
        self.process.get()
    }

    /// Sets or moves a timer; returns its key for [`Core::cancel_timer`].
    pub(crate) fn set_timer(&self, at: Instant, key: Option<u64>, waker: &Waker) -> u64 {
        let key = key.unwrap_or_else(|| self.next_serial());
        self.timers.borrow_mut().insert((self.timer_at(at), key), waker.clone());
        key
    }

    pub(crate) fn cancel_timer(&self, at: Instant, key: u64) {
        let waker = self.timers.borrow_mut().remove(&(self.timer_at(at), key));
        drop(waker);
    }

    /// When a timer fires that the process of the running task has set by its own clock.
    fn timer_at(&self, at: Instant) -> Instant {
        match &self.backend {
            Backend::Uring(_) => at,
            Backend::Sim(world) => world.true_time(self.process.get(), at),
        }
    }

    fn next_serial(&self) -> u64 {
        let n = self.next_serial.get();
        self.next_serial.set(n + 1);
        n
    }

    fn spawn_in(&self, process: Process, future: LocalFuture) -> (usize, u64) {
        let serial = self.next_serial();
        let mut tasks = self.tasks.borrow_mut();
        let entry = tasks.vacant_entry();
        let key = entry.key();
        let wake = Arc::new(TaskWake {
            core: self.id,
            key,
            serial,
            queued: AtomicBool::new(true),
            remote: self.remote.clone(),
        });
        entry.insert(Task { polled: Some((future, wake.clone().into())), wake, process });
        self.ready.borrow_mut().push_back((key, serial));
        (key, serial)
    }

    /// Drops a task. One that is being polled right now ends when its poll returns.
    fn abort(&self, key: usize, serial: u64) {
        let task = {
            let mut tasks = self.tasks.borrow_mut();
            match tasks.get(key) {
                Some(task) if task.wake.serial == serial => Some(tasks.remove(key)),
                _ => None,
            }
        };
        drop(task);
    }

    /// Drops all tasks, also those that their destructors start. The executor has to be there as long, also after a panic.
    fn drop_tasks(&self) {
        loop {
            let key = self.tasks.borrow().iter().next().map(|(key, _)| key);
            let Some(key) = key else { break };
            let task = self.tasks.borrow_mut().remove(key);
            drop(task);
        }
    }

    /// Drops every task of a process (not the one that is running now, whose process must be another).
    pub(crate) fn abort_process(&self, process: Process) {
        assert_ne!(process, self.process.get(), "a process cannot kill itself");
        self.paused.borrow_mut().remove(&process);
        let is_of_it = |task: &Task| task.process == process;
        loop {
            let tasks = self.tasks.borrow();
            let keys: Vec<usize> = tasks.iter().filter(|(_, t)| is_of_it(t)).map(|(key, _)| key).collect();
            drop(tasks);
            if keys.is_empty() {
                break;
            }
            for key in keys {
                // Dropping one may have dropped another.
                let is_there = self.tasks.borrow().get(key).is_some_and(is_of_it);
                let task = is_there.then(|| self.tasks.borrow_mut().remove(key));
                let before = self.process.replace(process);
                drop(task);
                self.process.set(before);
            }
        }
    }

    /// Lets the tasks of a process stand still from now on; what they wait for happens meanwhile.
    pub(crate) fn pause_process(&self, process: Process) {
        self.paused.borrow_mut().entry(process).or_default();
    }

    /// Lets the tasks of a process go on.
    pub(crate) fn resume_process(&self, process: Process) {
        let held = self.paused.borrow_mut().remove(&process).unwrap_or_default();
        self.ready.borrow_mut().extend(held);
    }

    /// Lets the tasks of all processes go on.
    pub(crate) fn resume_all(&self) {
        let held = std::mem::take(&mut *self.paused.borrow_mut());
        self.ready.borrow_mut().extend(held.into_values().flatten());
    }

    /// Tasks that have not ended.
    pub(crate) fn task_count(&self) -> usize {
        self.tasks.borrow().len()
    }

    /// Timers that are set.
    pub(crate) fn timer_count(&self) -> usize {
        self.timers.borrow().len()
    }

    /// Runs `f` as if called by a task of the process.
    pub(crate) fn as_process<T>(&self, process: Process, f: impl FnOnce() -> T) -> T {
        let before = self.process.replace(process);
        let out = f();
        self.process.set(before);
        out
    }

    fn take_remote(&self) {
        if self.remote.pending.swap(false, Ordering::AcqRel) {
            let woken = std::mem::take(&mut *self.remote.queue.lock().expect("no panic while locked"));
            self.ready.borrow_mut().extend(woken);
        }
    }

    fn fire_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now = match &self.backend {
            Backend::Uring(driver) => driver.now(),
            Backend::Sim(world) => world.now(0),
        };
        loop {
            let due = {
                let mut timers = self.timers.borrow_mut();
                match timers.first_key_value() {
                    Some(((at, _), _)) if *at <= now => timers.pop_first(),
                    _ => None,
                }
            };
            let Some((_, waker)) = due else { break };
            waker.wake();
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        self.timers.borrow().first_key_value().map(|((at, _), _)| *at)
    }

    fn pop_ready(&self) -> Option<(usize, u64)> {
        let mut ready = self.ready.borrow_mut();
        match &self.backend {
            Backend::Uring(_) => ready.pop_front(),
            Backend::Sim(world) => {
                if ready.len() > 1 {
                    let i = world.random_below(ready.len() as u64) as usize;
                    ready.swap_remove_front(i)
                } else {
                    ready.pop_front()
                }
            }
        }
    }

    /// Polls one ready task; false if there was none.
    fn run_one(&self) -> bool {
        let Some((key, serial)) = self.pop_ready() else { return false };
        let taken = {
            let mut tasks = self.tasks.borrow_mut();
            match tasks.get_mut(key) {
                Some(task) if task.wake.serial == serial => {
                    if let Some(held) = self.paused.borrow_mut().get_mut(&task.process) {
                        held.push((key, serial));
                        return true;
                    }
                    task.wake.queued.store(false, Ordering::Release);
                    task.polled.take().map(|(future, waker)| (future, waker, task.process))
                }
                _ => None,
            }
        };
        let Some((mut future, waker, process)) = taken else { return true };
        if let Backend::Sim(world) = &self.backend {
            world.trace_poll(process, serial);
        }
        let before = self.process.replace(process);
        let done = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let finished = {
            let mut tasks = self.tasks.borrow_mut();
            match tasks.get_mut(key) {
                Some(task) if task.wake.serial == serial => {
                    if done {
                        Some(tasks.remove(key))
                    } else {
                        task.polled = Some((future, waker));
                        self.process.set(before);
                        return true;
                    }
                }
                // Aborted while it ran.
                _ => None,
            }
        };
        drop(future);
        drop(finished);
        self.process.set(before);
        true
    }

    /// One turn of the loop; false when nothing can ever happen again (simulation only).
    fn turn(&self) -> bool {
        let mut polled = 0;
        while polled < POLLS_PER_TURN && self.run_one() {
            polled += 1;
        }
        self.take_remote();
        let breathing = self.breathing.take();
        let idle = self.ready.borrow().is_empty() && breathing.is_empty();
        match &self.backend {
            Backend::Uring(driver) => {
                driver.turn(idle && !self.root_over.get(), self.next_timer(), &self.remote);
                self.take_remote();
            }
            Backend::Sim(world) => {
                if idle {
                    let Some(at) = self.next_timer() else { return false };
                    world.advance_to(at);
                }
            }
        }
        self.fire_timers();
        breathing.into_iter().for_each(Waker::wake);
        true
    }
}

/// Makes an executor with this backend on this thread and runs the future to its end.
pub(crate) fn run<F: Future + 'static>(backend: Backend, future: F) -> F::Output {
    struct Guard(Rc<Core>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.drop_tasks();
            CURRENT_ID.set(0);
            CURRENT.with(|c| c.borrow_mut().take());
        }
    }
    assert!(CURRENT.with(|c| c.borrow().is_none()), "an executor already runs on this thread");
    let core = Core::new(backend);
    if let Backend::Uring(driver) = &core.backend {
        core.remote.set_doorbell(driver.doorbell());
    }
    CURRENT_ID.set(core.id);
    CURRENT.with(|c| *c.borrow_mut() = Some(core.clone()));
    let _guard = Guard(core.clone());
    let mut root = spawn(async move {
        let output = future.await;
        with_core(|core| core.root_over.set(true));
        output
    });
    let mut noop = Context::from_waker(Waker::noop());
    let mut alive = true;
    let out = loop {
        if let Poll::Ready(out) = Pin::new(&mut root).poll(&mut noop) {
            break out.expect("nobody aborts the root task");
        }
        assert!(alive, "deadlock: no task can run and no timer is set");
        alive = core.turn();
    };
    core.drop_tasks();
    if let Backend::Uring(driver) = &core.backend {
        driver.shut_down();
    }
    out
}

/// Runs a future on a new executor of this thread, on io_uring, until it is done; tasks that are still
/// running then are dropped.
///
/// # Errors
/// If the kernel refuses io_uring; the text says why and what to do.
pub fn block_on<F: Future + 'static>(future: F) -> Result<F::Output, RtError> {
    let driver = uring::Driver::new()?;
    Ok(run(Backend::Uring(Box::new(driver)), future))
}

/// The task was aborted, or its process killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task was cancelled")]
pub struct Cancelled;

struct Join<T> {
    output: Option<T>,
    waiting: Option<Waker>,
    /// Whether the task's future is gone.
    over: bool,
}

/// A handle to a spawned task: await it for its output. Dropping it leaves the task running.
pub struct JoinHandle<T> {
    join: Rc<RefCell<Join<T>>>,
    task: (usize, u64),
}

impl<T> JoinHandle<T> {
    /// Drops the task's future at its present await point.
    pub fn abort(&self) {
        try_with_core(|core| core.abort(self.task.0, self.task.1));
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.join.borrow().over
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Cancelled>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut join = self.join.borrow_mut();
        match join.output.take() {
            Some(output) => Poll::Ready(Ok(output)),
            None if join.over => Poll::Ready(Err(Cancelled)),
            None => {
                join.waiting = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Marks the join as over when the task's future is dropped, done or not.
struct JoinGuard<T>(Rc<RefCell<Join<T>>>);

impl<T> Drop for JoinGuard<T> {
    fn drop(&mut self) {
        let waiting = {
            let mut join = self.0.borrow_mut();
            join.over = true;
            join.waiting.take()
        };
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

/// Starts a task on this thread's executor, in the process of the task that calls it.
///
/// # Panics
/// Outside of an executor.
pub fn spawn<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    with_core(|core| spawn_on(core, core.process(), future))
}

/// Starts a future that is boxed already as a task. Nobody waits for its end.
///
/// # Panics
/// Outside of an executor.
pub fn spawn_boxed(future: LocalFuture) {
    with_core(|core| core.spawn_in(core.process(), future));
}

pub(crate) fn spawn_on<F: Future + 'static>(
    core: &Core,
    process: Process,
    future: F,
) -> JoinHandle<F::Output> {
    let join = Rc::new(RefCell::new(Join { output: None, waiting: None, over: false }));
    let guard = Some(JoinGuard(join.clone()));
    let task = core.spawn_in(process, Box::pin(Joined { future: Some(future), guard }));
    JoinHandle { join, task }
}

pin_project! {
    // A task's future, until it is done; its output is left for who joins it then. Not an `async` block, which would keep
    // room for the future twice.
    struct Joined<F: Future> {
        #[pin]
        future: Option<F>,
        guard: Option<JoinGuard<F::Output>>,
    }
}

impl<F: Future> Future for Joined<F> {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let Some(future) = this.future.as_mut().as_pin_mut() else { return Poll::Ready(()) };
        future.poll(cx).map(|output| {
            this.future.set(None);
            if let Some(guard) = this.guard.take() {
                guard.0.borrow_mut().output = Some(output);
            }
        })
    }
}

/// Hands what was started to the kernel now, and takes what it has completed by then, instead of at the end of the turn. Does
/// nothing under simulation, where everything starts at once.
pub fn submit_now() {
    with_core(|core| core.uring().map(|driver| driver.submit_now()));
}

/// Lets other ready tasks run first.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(move |cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Lets all others go first: tasks that can run, and what the kernel has completed meanwhile. Long work that nobody
/// waits for calls it every tenth of a millisecond or so: [`yield_now`] alone would let the work go on many times
/// before a request that has just arrived is seen.
pub async fn breathe() {
    let mut breathed = false;
    std::future::poll_fn(move |cx| {
        if breathed {
            return Poll::Ready(());
        }
        breathed = true;
        with_core(|core| core.breathing.borrow_mut().push(cx.waker().clone()));
        Poll::Pending
    })
    .await;
}
