//! Threads with an executor of their own, for a process that is to use several cores.
//!
//! Each is a world of its own: its ring, its connections, its drives. Nothing is shared but what passes
//! through mailboxes (`mailbox.rs`) and what never changes. It owns that a panic in one of them ends the
//! process: what a broken invariant has left behind must not be outlived by the other threads.

use crate::affinity;
use crate::executor::block_on;
use crate::mailbox::{Mailbox, mailbox};
use crate::offload::block_signals;
use crate::uring::RtError;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{io, process, thread};

/// A thread that was started.
pub struct Thread {
    ended: Mailbox<Result<(), RtError>>,
}

impl Thread {
    /// Starts a thread of this name, which runs the future that `main` makes there to its end. The name is
    /// cut to 15 bytes by the system. With `processors` it runs on these only.
    ///
    /// # Errors
    /// If the system has no thread left. That it may not run on these processors is told in the log.
    pub fn start<F, M>(name: &str, processors: Option<Vec<usize>>, main: M) -> io::Result<Thread>
    where
        F: Future<Output = ()> + 'static,
        M: FnOnce() -> F + Send + 'static,
    {
        let (poster, ended) = mailbox(1);
        let run = move || {
            let _aborts = AbortOnPanic;
            block_signals();
            if let Some(processors) = processors
                && let Err(error) = affinity::pin_to(&processors)
            {
                tracing::warn!(?processors, %error, "a thread is not bound to its processors");
            }
            let outcome = block_on(async move { main().await });
            // Nobody waits any more where this fails.
            let _ = poster.post(outcome);
        };
        thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Thread { ended })
    }

    /// Completes when the thread's future is done.
    ///
    /// # Errors
    /// If the kernel refused it a ring.
    pub async fn ended(&mut self) -> Result<(), RtError> {
        self.ended.next().await.unwrap_or(Ok(()))
    }
}

/// A number of the calling thread. The first thread that asks has 0, the next one 1, and so on: threads
/// that ask are spread evenly over whatever is counted by it.
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    OWN.with(|own| *own)
}

/// Ends the process where it is dropped by a panic, which was told by then.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sleep;
    use std::time::Duration;

    #[test]
    fn threads_run_beside_each_other_and_are_waited_for() {
        block_on(async {
            let (poster, mut posts) = mailbox::<(usize, Option<String>)>(8);
            let processor = affinity::allowed().expect("it is known")[0];
            let start = |n: usize| {
                let poster = poster.clone();
                Thread::start(&format!("test-{n}"), Some(vec![processor]), move || async move {
                    sleep(Duration::from_millis(1)).await;
                    assert_eq!(affinity::allowed().expect("it is known"), [processor]);
                    poster.post((n, thread::current().name().map(str::to_owned))).expect("there is room");
                })
                .expect("it starts")
            };
            let mut threads: Vec<Thread> = (0..3).map(start).collect();
            let mut heard = Vec::new();
            for _ in 0..3 {
                heard.extend(posts.next().await);
            }
            heard.sort();
            let expected: Vec<_> = (0..3).map(|n| (n, Some(format!("test-{n}")))).collect();
            assert_eq!(heard, expected);
            for thread in &mut threads {
                thread.ended().await.expect("the kernel has io_uring");
            }
        })
        .expect("the kernel has io_uring");
    }

    #[test]
    fn a_thread_keeps_its_number_and_shares_it_with_none() {
        let ask = || thread::spawn(|| [thread_number(), thread_number()]);
        let threads: Vec<_> = (0..8).map(|_| ask()).collect();
        let mut numbers: Vec<[usize; 2]> = threads.into_iter().map(|t| t.join().expect("it ends")).collect();
        assert!(numbers.iter().all(|[first, again]| first == again), "{numbers:?}");
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 8);
    }

    /// In a process of its own, since it ends it.
    #[test]
    fn a_panic_in_a_thread_ends_the_process() {
        const INSIDE: &str = "WEFT_TEST_PANIC_IN_A_THREAD";
        if std::env::var_os(INSIDE).is_some() {
            let _ = block_on(async {
                let thread = Thread::start("panics", None, || async { panic!("a broken invariant") });
                let _ = thread.expect("it starts").ended().await;
                sleep(Duration::from_secs(60)).await;
            });
            return;
        }
        let own = std::env::current_exe().expect("this program has a path");
        let name = "thread::tests::a_panic_in_a_thread_ends_the_process";
        let ended =
            process::Command::new(own).args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output();
        let ended = ended.expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{said}");
        assert!(said.contains("a broken invariant"), "{said}");
    }
}
