//! A thread for files: reading and writing them blocks, and the thread of the volume must not.
//!
//! Not the runtime's helper thread: that one is awaited when the executor ends, and a read of a pipe may never
//! end.

use std::future::poll_fn;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;

type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

/// A thread that owns something and does one job on it after another. It ends after its last job when this
/// is dropped.
pub(crate) struct Helper<S> {
    jobs: Sender<Job<S>>,
}

/// Where the result of a job is left.
enum Slot<R> {
    Waiting(Option<Waker>),
    Done(R),
}

impl<S: Send + 'static> Helper<S> {
    /// Starts the thread.
    pub(crate) fn new(mut owned: S) -> Helper<S> {
        let (jobs, todo) = channel::<Job<S>>();
        thread::spawn(move || {
            for job in todo {
                job(&mut owned);
            }
        });
        Helper { jobs }
    }

    /// Does a job on the thread, and waits for its result.
    ///
    /// # Panics
    /// If the job does.
    pub(crate) async fn run<R: Send + 'static>(&self, job: impl FnOnce(&mut S) -> R + Send + 'static) -> R {
        let slot = Arc::new(Mutex::new(Slot::Waiting(None)));
        let theirs = slot.clone();
        let boxed: Job<S> = Box::new(move |owned| {
            let result = job(owned);
            let before = {
                let mut slot = theirs.lock().expect("nobody panics while holding it");
                std::mem::replace(&mut *slot, Slot::Done(result))
            };
            if let Slot::Waiting(Some(waker)) = before {
                waker.wake();
            }
        });
        self.jobs.send(boxed).expect("the thread takes jobs until this is dropped");
        poll_fn(move |cx| {
            let mut state = slot.lock().expect("nobody panics while holding it");
            match std::mem::replace(&mut *state, Slot::Waiting(Some(cx.waker().clone()))) {
                Slot::Done(result) => Poll::Ready(result),
                // The other owner is the job: without it and without a result, it has panicked.
                Slot::Waiting(_) if Arc::strong_count(&slot) == 1 => panic!("the job on a file panicked"),
                Slot::Waiting(_) => Poll::Pending,
            }
        })
        .await
    }
}
