//! A mount at work: reads requests of the kernel, starts a task for each, and sends answers.
//!
//! The way of a request: [`Session::run`] reads it, `request.rs` decodes it, a task of its own carries it out
//! (`service.rs`), and the answer goes back in one call (`device.rs`). Requests are answered in any order.

use crate::answer::Answer;
use crate::device::{Device, Sent, Terms, WRITE_HEAD_BYTES, message_buffer, message_range};
use crate::error::FuseError;
use crate::lookups::Lookups;
use crate::mounts::{MountOptions, Mounted};
use crate::request::{FuseOperation, FuseRequest, Refusal};
use crate::service::carry_out;
use crate::tree::{Errno, Reply, Tree};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::{Either, Notify, race};
use weft_rt::{Buf, BufMut, sleep, spawn, yield_now};
use weft_types::limits::FUSE_REQUESTS_MAX;
use weft_wire::files::{FileLock, LockFamily};

/// Requests read in a row before other tasks get their turn.
const READ_IN_A_ROW: usize = 16;

/// Requests taken from lanes in a row: all that most machines have. Lanes of refused requests come again at
/// once.
const LANES_IN_A_ROW: usize = 128;

/// Data of a WRITE below this are copied out of the message's buffer, which takes 2 MiB of memory whatever it
/// holds. A copy of this length costs less than the system calls of the request.
const COPIED_BELOW_BYTES: usize = 64 * 1024;

/// How often it is looked whether an interrupted caller is being killed.
const KILL_CHECK: Duration = Duration::from_secs(1);

/// A tree that is mounted.
pub struct Session<T: Tree> {
    shared: Rc<Shared<T>>,
    mounted: Mounted,
}

/// A caller that waits for a lock, for as long as this is there.
struct LockWait<'s>(&'s Cell<usize>);

impl LockWait<'_> {
    fn begin(waits: &Cell<usize>, max: usize) -> Reply<LockWait<'_>> {
        if waits.get() >= max {
            return Err(Errno(libc::ENOLCK));
        }
        waits.set(waits.get() + 1);
        Ok(LockWait(waits))
    }
}

impl Drop for LockWait<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<T: Tree> Drop for Session<T> {
    fn drop(&mut self) {
        // Before it is unmounted: the kernel waits for what lies in lanes, and this thread would wait for
        // the kernel.
        self.shared.device.end();
    }
}

/// How the kernel has ended the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The file system is unmounted.
    Unmounted,
    /// Somebody has aborted the connection (`/sys/fs/fuse/connections`). The mount is still there, and dead.
    Aborted,
}

/// What the tasks of requests share.
struct Shared<T> {
    device: Device,
    terms: Terms,
    tree: Rc<T>,
    lookups: Lookups,
    /// Requests that are not answered, by the kernel's number: whether the caller was interrupted.
    in_flight: RefCell<FxHashMap<u64, bool>>,
    /// A caller was interrupted, or the mount has ended.
    interrupts: Notify,
    has_ended: Cell<bool>,
    /// Callers that wait for locks.
    lock_waits: Cell<usize>,
    /// A request was answered.
    answered: Notify,
}

impl<T: Tree> Session<T> {
    /// Mounts the tree at this path, an empty directory or one whose contents are to be hidden. Nothing is
    /// answered before [`Session::run`] runs: a caller that looks at the path waits.
    ///
    /// Dropping the session unmounts ([`Unmount::Now`](crate::Unmount::Now)).
    ///
    /// # Errors
    /// If there is no device, mount(2) refuses (`EPERM`: it takes root), or the kernel's protocol is too old.
    pub async fn mount(path: &Path, options: &MountOptions, tree: Rc<T>) -> Result<Session<T>, FuseError> {
        let (device, terms, mounted) = Device::mount(path, options).await?;
        let shared = Rc::new(Shared {
            device,
            terms,
            tree,
            lookups: Lookups::default(),
            in_flight: RefCell::default(),
            interrupts: Notify::default(),
            has_ended: Cell::new(false),
            lock_waits: Cell::new(0),
            answered: Notify::default(),
        });
        Ok(Session { shared, mounted })
    }

    /// Serves requests until the file system is unmounted and all requests under way that change
    /// something have ended; others are dropped.
    ///
    /// The kernel drops requests that it has not sent by then. Files that were open when the mount was
    /// ended by force are not released. After an orderly end the last releases may be missing, too. What
    /// must be durable at the end, the caller has to make durable afterwards.
    ///
    /// # Errors
    /// If the connection to the kernel fails; the mount is then ended.
    pub async fn run(mut self) -> Result<(), FuseError> {
        let served = self.shared.clone().serve().await;
        self.shared.device.end();
        if matches!(served, Ok(End::Unmounted)) {
            self.mounted.ended();
        }
        self.shared.has_ended.set(true);
        self.shared.interrupts.notify_all();
        self.shared.all_answered().await;
        served.map(drop)
    }
}

impl<T: Tree> Shared<T> {
    /// Reads requests until the end of the mount.
    async fn serve(self: Rc<Self>) -> Result<End, FuseError> {
        let mut buffer = message_buffer();
        loop {
            self.room().await;
            let (mut is_empty, mut from_lanes) = (false, 0);
            while from_lanes < LANES_IN_A_ROW
                && let Some(length) = self.device.read_lane(&mut buffer)
            {
                buffer = self.take(buffer, length);
                from_lanes += 1;
            }
            for _ in 0..READ_IN_A_ROW {
                match self.device.read(&mut buffer) {
                    Ok(Some(length)) => buffer = self.take(buffer, length),
                    Ok(None) => {
                        is_empty = true;
                        break;
                    }
                    Err(error) => match error.raw_os_error() {
                        Some(libc::ENODEV) => return Ok(End::Unmounted),
                        Some(libc::ECONNABORTED) => return Ok(End::Aborted),
                        _ => return Err(FuseError::Connection(error)),
                    },
                }
            }
            match is_empty && from_lanes == 0 {
                true => self.device.ready().await.map_err(FuseError::Connection)?,
                false => yield_now().await,
            }
        }
    }

    /// Waits until a turn's requests can be begun. Lanes bound them by themselves.
    async fn room(&self) {
        while !self.device.has_lanes() && self.in_flight.borrow().len() + READ_IN_A_ROW > FUSE_REQUESTS_MAX {
            self.answered.notified().await;
        }
    }

    async fn all_answered(&self) {
        while !self.in_flight.borrow().is_empty() {
            self.answered.notified().await;
        }
    }

    /// Begins what a message asks for; returns a buffer for the next one.
    fn take(self: &Rc<Self>, buffer: BufMut, length: usize) -> BufMut {
        let range = message_range(length);
        let request = match FuseRequest::decode(&buffer[range.clone()], self.terms) {
            Ok(request) => request,
            Err(refusal) => {
                self.refuse(refusal);
                return buffer;
            }
        };
        match request.operation {
            FuseOperation::Forget(inodes) => {
                for (inode, lookups) in inodes {
                    self.lookups.forget(inode, lookups).inspect(|all| self.tree.forget(inode, *all));
                }
                buffer
            }
            FuseOperation::Interrupt { unique } => {
                // One that is not in flight was answered meanwhile: requests are read before their
                // interrupts.
                if let Some(is_interrupted) = self.in_flight.borrow_mut().get_mut(&unique) {
                    *is_interrupted = true;
                    self.interrupts.notify_all();
                }
                buffer
            }
            FuseOperation::Write { length, .. } => {
                let start = range.start + WRITE_HEAD_BYTES;
                let data = start..start + length as usize;
                if data.len() < COPIED_BELOW_BYTES {
                    self.begin(request, BufMut::copy_of(&buffer[data]).freeze());
                    return buffer;
                }
                self.begin(request, buffer.freeze().slice(data));
                message_buffer()
            }
            _ => {
                self.begin(request, Buf::empty());
                buffer
            }
        }
    }

    fn refuse(&self, refusal: Refusal) {
        let errno = refusal.errno;
        if errno != Errno(libc::ENOSYS) {
            tracing::debug!(errno = errno.0, "a request of the kernel is refused as it is");
        }
        if let Some(unique) = refusal.unique {
            self.send(unique, &Err(errno));
        }
    }

    /// Starts the task of a request.
    fn begin(self: &Rc<Self>, request: FuseRequest, data: Buf) {
        let shared = self.clone();
        self.in_flight.borrow_mut().insert(request.unique, false);
        spawn(async move {
            let unique = request.unique;
            let reply = shared.carry_out(request, data).await;
            let refused = shared.send(unique, &reply);
            if let (true, Ok(answer)) = (refused, reply) {
                shared.take_back(answer).await;
            }
            shared.in_flight.borrow_mut().remove(&unique);
            shared.answered.notify_all();
        });
    }

    async fn carry_out(&self, request: FuseRequest, data: Buf) -> Reply<Answer> {
        let (unique, thread) = (request.unique, request.thread);
        if let FuseOperation::Lock { handle, lock, waits } = request.operation {
            return self.lock(&request, handle, lock, waits).await;
        }
        if !request.operation.can_be_given_up() {
            return carry_out(&*self.tree, request, data).await;
        }
        match race(carry_out(&*self.tree, request, data), self.unwanted(unique, thread)).await {
            Either::Left(reply) => reply,
            Either::Right(()) => Err(Errno(libc::EINTR)),
        }
    }

    /// Takes a lock. Any signal to the caller ends the wait, and only that: a call of the tree that takes
    /// the lock runs to its end, so that it is known whether there is a lock.
    async fn lock(&self, request: &FuseRequest, handle: u64, lock: FileLock, waits: bool) -> Reply<Answer> {
        let inode = request.node;
        loop {
            match self.tree.lock(inode, handle, lock).await {
                Err(Errno(libc::EAGAIN)) if waits => {}
                locked => return locked.map(|()| Answer::done()),
            }
            let _waiting = LockWait::begin(&self.lock_waits, self.device.lock_waits_max())?;
            if lock.owner.family == LockFamily::Whole {
                // As in Linux: of two that share a lock and want it alone, one gets it.
                self.tree.unlock(inode, handle, lock.owner, (lock.start, lock.last)).await?;
            }
            let unlocked = self.tree.until_unlocked(inode, handle, lock);
            match race(unlocked, self.signalled(request.unique, request.thread)).await {
                Either::Left(unlocked) => unlocked?,
                Either::Right(()) => return Err(Errno(libc::EINTR)),
            }
        }
    }

    fn is_interrupted(&self, unique: u64) -> bool {
        self.in_flight.borrow().get(&unique).is_some_and(|interrupted| *interrupted)
    }

    /// Completes when the caller has a signal, or the mount has ended.
    async fn interrupted(&self, unique: u64) {
        while !self.is_interrupted(unique) && !self.has_ended.get() {
            self.interrupts.notified().await;
        }
    }

    /// Completes when nobody waits for the answer any more: the mount has ended, or the caller was
    /// interrupted and is being killed. Any other signal can wait: programs do not expect `EINTR` of files.
    async fn unwanted(&self, unique: u64, thread: u32) {
        if self.device.has_lanes() {
            // The kernel sends no INTERRUPT for a request that was interrupted before the mount had it.
            let _ = race(sleep(KILL_CHECK), self.interrupted(unique)).await;
        } else {
            self.interrupted(unique).await;
        }
        while !self.has_ended.get() && !is_being_killed(thread) {
            let _ = race(sleep(KILL_CHECK), self.interrupts.notified()).await;
        }
    }

    /// Completes when the caller has a signal, or the mount has ended.
    async fn signalled(&self, unique: u64, thread: u32) {
        if !self.device.has_lanes() {
            return self.interrupted(unique).await;
        }
        while !self.is_interrupted(unique) && !self.has_ended.get() && !was_interrupted(thread) {
            let _ = race(sleep(KILL_CHECK), self.interrupts.notified()).await;
        }
    }

    /// Sends an answer; whether the kernel has not taken it.
    fn send(&self, unique: u64, reply: &Reply<Answer>) -> bool {
        let given = reply.as_ref().map_or(&[][..], |answer| &answer.gives);
        // First counted, then sent: what the kernel has, it may forget at once.
        given.iter().for_each(|inode| self.lookups.add(*inode));
        match self.device.send(unique, reply.as_ref().map_err(|errno| *errno)) {
            Ok(Sent::Taken) => return false,
            Ok(Sent::NotWanted) => {}
            Err(error) => tracing::error!(%error, "the kernel refuses an answer"),
        }
        true
    }

    /// The kernel has not taken what was given to it.
    async fn take_back(&self, answer: Answer) {
        for inode in answer.gives {
            self.lookups.forget(inode, 1).inspect(|all| self.tree.forget(inode, *all));
        }
        if let Some((inode, handle)) = answer.opens {
            self.tree.release(inode, handle).await;
        }
    }
}

/// Whether SIGKILL is pending for a thread: every fatal signal becomes SIGKILL for all threads of its
/// process. False if nothing is known of the thread.
fn is_being_killed(thread: u32) -> bool {
    let pending = status_of(thread, "SigPnd").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    pending.is_some_and(|mask| mask & 1 << (libc::SIGKILL - 1) != 0)
}

/// Whether a thread that waits for an answer was interrupted: until a signal comes it can be woken (`S`),
/// and after that only be killed (`D`). False if nothing is known of the thread.
fn was_interrupted(thread: u32) -> bool {
    status_of(thread, "State").is_some_and(|state| state.starts_with('D'))
}

/// A line of what `/proc` says of a thread.
fn status_of(thread: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(|line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_being_killed_who_runs_or_is_not_there() {
        assert!(!is_being_killed(std::process::id()));
        assert!(!is_being_killed(0) && !was_interrupted(0));
        assert!(!was_interrupted(std::process::id()) && status_of(std::process::id(), "State").is_some());
    }
}
