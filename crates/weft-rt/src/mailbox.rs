//! Mailboxes: how executors of one process tell each other something.
//!
//! Beside what never changes, a post is all that passes from one thread to another. A mailbox is bounded: who
//! posts never waits, and is told where there is no room. Under simulation a post is on its way for a while
//! that the seed draws, as between two cores.

use crate::executor;
use crate::time::{Instant, now, sleep_until};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

/// How long a post is on its way under simulation, at most: what waking a sleeping thread takes.
const ON_ITS_WAY_MAX: Duration = Duration::from_micros(20);

/// A mailbox with room for so many posts, and the first of those who can post to it.
pub fn mailbox<T: Send>(room: usize) -> (Poster<T>, Mailbox<T>) {
    let shared = Shared { posts: VecDeque::new(), room, posters: 1, is_gone: false, waiting: None };
    let shared = Arc::new(Mutex::new(shared));
    (Poster(shared.clone()), Mailbox(shared))
}

struct Shared<T> {
    /// In the order in which they were posted, each with when it arrives.
    posts: VecDeque<(Instant, T)>,
    room: usize,
    posters: usize,
    /// Whether the mailbox is gone.
    is_gone: bool,
    waiting: Option<Waker>,
}

/// Posts to a mailbox, from any thread.
pub struct Poster<T: Send>(Arc<Mutex<Shared<T>>>);

impl<T: Send> Poster<T> {
    /// Puts something into the mailbox.
    ///
    /// # Errors
    /// The thing itself: the mailbox is full, or gone.
    pub fn post(&self, post: T) -> Result<(), T> {
        let waiting = {
            let mut shared = lock(&self.0);
            if shared.is_gone || shared.posts.len() >= shared.room {
                return Err(post);
            }
            // The order stays: a post does not pass one before it.
            let least = shared.posts.back().map_or(Instant::default(), |(at, _)| *at);
            shared.posts.push_back((arrival().max(least), post));
            shared.waiting.take()
        };
        waiting.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Whether the mailbox is gone: nobody will ever read what is posted.
    pub fn is_gone(&self) -> bool {
        lock(&self.0).is_gone
    }
}

impl<T: Send> Clone for Poster<T> {
    fn clone(&self) -> Self {
        lock(&self.0).posters += 1;
        Poster(self.0.clone())
    }
}

impl<T: Send> Drop for Poster<T> {
    fn drop(&mut self) {
        let waiting = {
            let mut shared = lock(&self.0);
            shared.posters -= 1;
            // As long as another one can post, it has somebody to wake.
            if shared.posters == 0 { shared.waiting.take() } else { None }
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Where posts arrive.
pub struct Mailbox<T: Send>(Arc<Mutex<Shared<T>>>);

impl<T: Send> Mailbox<T> {
    /// The next post; none once all posters are gone and everything has been taken.
    pub async fn next(&mut self) -> Option<T> {
        loop {
            let arrives = poll_fn(|context| {
                let mut shared = lock(&self.0);
                match shared.posts.front() {
                    Some((at, _)) => Poll::Ready(Some(*at)),
                    None if shared.posters == 0 => Poll::Ready(None),
                    None => {
                        shared.waiting = Some(context.waker().clone());
                        Poll::Pending
                    }
                }
            })
            .await?;
            if arrives <= now() {
                return lock(&self.0).posts.pop_front().map(|(_, post)| post);
            }
            sleep_until(arrives).await;
        }
    }
}

impl<T: Send> Drop for Mailbox<T> {
    fn drop(&mut self) {
        let mut shared = lock(&self.0);
        shared.is_gone = true;
        let posts = std::mem::take(&mut shared.posts);
        drop(shared);
        drop(posts);
    }
}

/// When what is posted now arrives.
fn arrival() -> Instant {
    let is_simulated = executor::try_with_core(|core| core.world().is_some()).unwrap_or(false);
    match is_simulated {
        true => now() + Duration::from_nanos(crate::random_below(ON_ITS_WAY_MAX.as_nanos() as u64)),
        false => Instant::default(),
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that runs while it is locked panics.
    shared.lock().expect("no panic while locked")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Sim;
    use crate::{block_on, sleep, spawn};
    use std::thread;

    #[test]
    fn posts_arrive_in_order_and_end_with_the_last_poster() {
        block_on(async {
            let (poster, mut mailbox) = mailbox::<u32>(1_000);
            let other = poster.clone();
            let posting = thread::spawn(move || {
                for n in 0..500 {
                    while other.post(n).is_err() {
                        thread::yield_now();
                    }
                }
            });
            let mut got = Vec::new();
            while got.len() < 500 {
                got.extend(mailbox.next().await);
            }
            assert_eq!(got, (0..500).collect::<Vec<u32>>());
            posting.join().expect("it posts");
            drop(poster);
            assert_eq!(mailbox.next().await, None);
        })
        .expect("the kernel has io_uring");
    }

    #[test]
    fn who_posts_is_told_where_there_is_no_room_and_when_nobody_reads() {
        Sim::new(1).block_on(async {
            let (poster, mut mailbox) = mailbox::<u32>(2);
            assert_eq!((poster.post(1), poster.post(2), poster.post(3)), (Ok(()), Ok(()), Err(3)));
            assert_eq!(mailbox.next().await, Some(1));
            assert_eq!(poster.post(3), Ok(()));
            assert_eq!((mailbox.next().await, mailbox.next().await), (Some(2), Some(3)));
            drop(mailbox);
            assert!(poster.is_gone() && poster.post(4) == Err(4));
        });
    }

    #[test]
    fn a_poster_that_goes_takes_no_wake_of_the_others_along() {
        Sim::new(3).block_on(async {
            let (poster, mut mailbox) = mailbox::<u32>(1);
            let other = poster.clone();
            spawn(async move {
                sleep(Duration::from_millis(1)).await;
                drop(other);
                sleep(Duration::from_millis(1)).await;
                poster.post(7).expect("there is room");
            });
            assert_eq!((mailbox.next().await, mailbox.next().await), (Some(7), None));
        });
    }

    #[test]
    fn under_simulation_a_post_takes_its_time_and_wakes_who_waits() {
        Sim::new(2).block_on(async {
            let (poster, mut mailbox) = mailbox::<u32>(10);
            spawn(async move {
                sleep(Duration::from_millis(3)).await;
                (0..5).for_each(|n| poster.post(n).expect("there is room"));
            });
            let mut arrivals = Vec::new();
            while let Some(n) = mailbox.next().await {
                arrivals.push((n, now()));
            }
            assert_eq!(arrivals.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
            let posted = Duration::from_millis(3).as_nanos() as u64;
            assert!(arrivals.iter().any(|(_, at)| at.as_nanos() > posted), "{arrivals:?}");
        });
    }
}
