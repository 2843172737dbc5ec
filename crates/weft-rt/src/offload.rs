//! Blocking work, away from the executor's thread: system calls that the ring does not have, the manager's
//! store, and what is read from `/proc`.

use crate::executor::try_with_core;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;

type Job = Box<dyn FnOnce() + Send>;

/// The helper thread of one executor. Dropping it waits until it has done all its work.
pub(crate) struct Helper {
    jobs: Option<Sender<Job>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Helper {
    fn start() -> io::Result<Helper> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let thread = thread::Builder::new().name("weft-offload".to_owned()).spawn(move || {
            block_signals();
            while let Ok(job) = queue.recv() {
                job();
            }
        })?;
        Ok(Helper { jobs: Some(jobs), thread: Some(thread) })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the helper thread has panicked");
        }
    }
}

/// Leaves signals to the threads that know what to do with them.
pub(crate) fn block_signals() {
    // SAFETY: a set of signals is plain bits, for which zero is a value; the call fills it.
    let mut all = unsafe { std::mem::zeroed::<libc::sigset_t>() };
    // SAFETY: the set is ours and initialised; the old one is not asked for.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

struct State<T> {
    output: Option<thread::Result<T>>,
    waiting: Option<Waker>,
}

/// The future of work that was given away. Dropping it does not take the work back.
pub struct Offload<T>(Arc<Mutex<State<T>>>);

impl<T> Future for Offload<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.lock().expect("no panic while locked");
        match state.output.take() {
            Some(Ok(output)) => Poll::Ready(output),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => {
                state.waiting = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Runs blocking work on the executor's helper thread, one piece after the other in the order of the calls;
/// the end of the executor waits for all of it. A panic of the work goes on in the task that awaits it. Under
/// simulation, and where there is no executor, the work runs at once, inside the call.
///
/// # Panics
/// If the operating system gives no thread.
pub fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Offload<T> {
    let state = Arc::new(Mutex::new(State { output: None, waiting: None }));
    let shared = state.clone();
    let job = move || {
        let output = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let waiting = {
            let mut state = shared.lock().expect("no panic while locked");
            state.output = Some(output);
            state.waiting.take()
        };
        if let Some(waker) = waiting {
            waker.wake();
        }
    };
    let mut job: Option<Job> = Some(Box::new(job));
    try_with_core(|core| {
        let Some(driver) = core.uring() else { return };
        let mut helper = driver.helper.borrow_mut();
        let helper = helper.get_or_insert_with(|| Helper::start().expect("a process may have two threads"));
        let jobs = helper.jobs.as_ref().expect("it takes work until it is dropped");
        if let Some(job) = job.take() {
            jobs.send(job).expect("the helper outlives its queue");
        }
    });
    if let Some(job) = job {
        job();
    }
    Offload(state)
}
