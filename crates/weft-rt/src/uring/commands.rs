//! Commands of the FUSE device that stay with the kernel until it has something to say (IORING_OP_URING_CMD).
//!
//! They have a ring of their own, because their entries have 128 bytes. The executor looks at it in each of
//! its turns, and while the thread sleeps the ring rings its doorbell. It owns the memory of each command:
//! the kernel reads and writes this memory only while the command is under way. This module does not know
//! what the commands mean.

use super::error::RtError;
use super::has_completions;
use super::op::with_driver;
use crate::{BufMut, Polled, sleep, spawn, unwatch, watch, yield_now};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Bytes of a command's argument, at most: what an entry of 128 bytes has room for.
pub const COMMAND_ARGUMENT_BYTES: usize = 80;

/// The number of `/dev/fuse`. Commands of other devices may carry pointers, which are not looked at here.
const FUSE: (u32, u32) = (10, 229);

/// Whether the ring's doorbell may be switched off while the thread is awake. The kernel first sets the
/// flag TASKRUN and then reads whether the doorbell is off. Only where setting the flag is a full barrier
/// (x86) is no wake-up lost.
const CAN_BE_QUIET: bool = cfg!(target_arch = "x86_64");

/// Where the field `len` is in an entry (`struct io_uring_sqe`).
const LEN_AT: usize = 24;

/// Until the kernel is asked again that has said that there is something, and had nothing.
const ASK_AGAIN: Duration = Duration::from_millis(1);

/// Until the kernel is asked again that has no room for submissions now.
const SUBMIT_AGAIN: Duration = Duration::from_millis(1);

/// Commands to an open file of `/dev/fuse`, each with memory in two segments, which are passed to the
/// kernel as `iovec`s.
///
/// Not under simulation, where no device is. Dropping it ends the commands; the memory of those that the
/// kernel has still under way is given up.
pub struct Commands(Rc<Inner>);

struct Inner {
    ring: RefCell<IoUring<squeue::Entry128, cqueue::Entry>>,
    /// The task that waits for completions.
    waiting: Cell<Option<Waker>>,
    device: OwnedFd,
    commands: Vec<Command>,
    /// The kernel said that there was something, and had nothing. What it says may come late, and stands
    /// then until there is something again.
    has_asked_in_vain: Cell<bool>,
    /// A task hands to the kernel what was started.
    is_submitting: Cell<bool>,
}

/// The memory of one command.
struct Command {
    memory: RefCell<[BufMut; 2]>,
    /// Points to the memory; the kernel reads it when a command is started.
    segments: Box<[libc::iovec; 2]>,
    is_under_way: Cell<bool>,
}

impl Command {
    fn new(segment_bytes: [usize; 2]) -> Command {
        let mut memory = segment_bytes.map(BufMut::aligned);
        let segments = memory
            .each_mut()
            .map(|segment| libc::iovec { iov_base: segment.as_mut_ptr().cast(), iov_len: segment.len() });
        let (memory, segments) = (RefCell::new(memory), Box::new(segments));
        Command { memory, segments, is_under_way: Cell::new(false) }
    }
}

impl Commands {
    /// So many commands, each with segments of these lengths, in bytes. The memory does not move: the
    /// kernel uses the addresses of the first start for all later ones.
    ///
    /// # Errors
    /// If it is another device (`InvalidInput`), the kernel has no ring with such entries that waits to be
    /// asked (Linux 6.1), or no room for one.
    pub fn new(device: OwnedFd, count: usize, segment_bytes: [usize; 2]) -> io::Result<Commands> {
        let found = rustix::fs::fstat(&device)?;
        if (libc::major(found.st_rdev), libc::minor(found.st_rdev)) != FUSE {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not /dev/fuse"));
        }
        let entries = u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?.next_power_of_two();
        let mut builder = IoUring::builder();
        // The kernel sets a flag in shared memory and does not interrupt the thread.
        builder
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .dontfork();
        let mut ring = builder.build(entries).map_err(|error| io::Error::other(RtError::of_setup(error)))?;
        if CAN_BE_QUIET {
            ring.completion().disable_eventfd();
        }
        ring.submitter().register_eventfd(with_driver(|driver| driver.bell.fd()))?;
        let commands = (0..count).map(|_| Command::new(segment_bytes)).collect();
        let (ring, is_submitting, waiting) = (RefCell::new(ring), Cell::default(), Cell::default());
        let has_asked_in_vain = Cell::default();
        let inner = Rc::new(Inner { ring, waiting, device, commands, has_asked_in_vain, is_submitting });
        watch(inner.clone());
        Ok(Commands(inner))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.commands.len()
    }

    /// Reads or writes the memory of a command that is not under way.
    ///
    /// # Panics
    /// If it is under way.
    pub fn with_memory<T>(&self, command: usize, work: impl FnOnce([&mut [u8]; 2]) -> T) -> T {
        let command = &self.0.commands[command];
        assert!(!command.is_under_way.get(), "the kernel has the memory");
        work(command.memory.borrow_mut().each_mut().map(|segment| &mut segment[..]))
    }

    /// Starts a command, with its memory as it is now. The command is submitted after the tasks that are
    /// ready now have run, so that one system call submits many commands.
    ///
    /// # Panics
    /// If it is under way, or the argument has more than [`COMMAND_ARGUMENT_BYTES`].
    pub fn start(&self, command: usize, operation: u32, argument: &[u8]) {
        let inner = &self.0;
        let Command { segments, is_under_way, .. } = &inner.commands[command];
        assert!(!is_under_way.replace(true), "the command is under way");
        let mut cmd = [0; COMMAND_ARGUMENT_BYTES];
        cmd[..argument.len()].copy_from_slice(argument);
        let device = types::Fd(inner.device.as_raw_fd());
        let mut entry = opcode::UringCmd80::new(device, operation)
            .cmd(cmd)
            .addr(Some(segments.as_ptr() as u64))
            .build()
            .user_data(command as u64);
        // SAFETY: an entry is 128 plain bytes in the kernel's layout, and this is the field of 32 bits that
        // the builder of commands leaves out.
        unsafe { (&raw mut entry).cast::<u8>().add(LEN_AT).cast::<u32>().write(segments.len() as u32) };
        // SAFETY: segments and memory stay where they are: they are given up if the kernel has not let go
        // of them.
        let pushed = unsafe { inner.ring.borrow_mut().submission().push(&entry) };
        pushed.expect("the queue has room for every command once");
        if !inner.is_submitting.replace(true) {
            spawn(submit(Rc::downgrade(inner)));
        }
    }

    /// Completes when the kernel has all commands that were started.
    pub async fn submitted(&self) {
        while self.0.is_submitting.get() {
            yield_now().await;
        }
    }

    /// The next command that has completed, and its result: as the system call would return it, or a
    /// negated error number.
    pub fn next(&self) -> Option<(usize, i32)> {
        let completion = self.0.take_or_ask()?;
        Some((completion.user_data() as usize, completion.result()))
    }

    /// Completes when a command may have completed. At most one task may wait at a time.
    pub async fn ready(&self) {
        if self.0.has_asked_in_vain.replace(false) {
            sleep(ASK_AGAIN).await;
        }
        poll_fn(|cx| {
            if self.0.has_completions() {
                return Poll::Ready(());
            }
            self.0.waiting.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        let polled: Rc<dyn Polled> = self.0.clone();
        unwatch(&polled);
    }
}

impl Polled for Inner {
    /// Only what a task waits for counts: whoever takes nothing any more must not keep the thread awake.
    fn is_ready(&self) -> bool {
        let waiting = self.waiting.take();
        let is_waiting = waiting.is_some();
        self.waiting.set(waiting);
        is_waiting && self.has_completions()
    }

    fn poll(&self) {
        // This is asked whenever anything that is watched is ready: who waits here may have to go on waiting.
        if self.is_ready()
            && let Some(waker) = self.waiting.take()
        {
            waker.wake();
        }
    }

    fn arm_wakeup(&self) {
        // Always enabled where it is never disabled.
        self.ring.borrow_mut().completion().enable_eventfd();
    }

    fn disarm_wakeup(&self) {
        if CAN_BE_QUIET {
            self.ring.borrow_mut().completion().disable_eventfd();
        }
    }
}

impl Inner {
    /// Whether a command has completed, or the kernel would complete one if asked.
    fn has_completions(&self) -> bool {
        has_completions(&mut self.ring.borrow_mut())
    }

    /// The next completion; its command is not under way any more.
    fn take(&self) -> Option<cqueue::Entry> {
        let completion = self.ring.borrow_mut().completion().next()?;
        self.commands[completion.user_data() as usize].is_under_way.set(false);
        Some(completion)
    }

    /// The same, and if there is none, after the kernel was asked.
    fn take_or_ask(&self) -> Option<cqueue::Entry> {
        if let Some(completion) = self.take() {
            return Some(completion);
        }
        if self.has_completions() {
            // A failure, such as a signal, is no loss: it still has completions.
            let _ = self.ring.borrow().submit();
        }
        let completion = self.take();
        self.has_asked_in_vain.set(completion.is_none() && self.has_completions());
        completion
    }
}

/// Hands to the kernel all that was started, unless the commands are gone.
async fn submit(commands: Weak<Inner>) {
    while let Some(inner) = commands.upgrade() {
        // It may be done already: who looks for completions hands over what was started, too.
        if inner.ring.borrow_mut().submission().is_empty() {
            return inner.is_submitting.set(false);
        }
        let submitted = inner.ring.borrow().submit();
        match submitted.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) | Err((Some(libc::EINTR | libc::EBUSY | libc::EAGAIN), _)) => {}
            Err((_, error)) => panic!("io_uring_enter was called wrongly: {error}"),
        }
        if inner.ring.borrow_mut().submission().is_empty() {
            return inner.is_submitting.set(false);
        }
        drop(inner);
        // The kernel was short of something.
        sleep(SUBMIT_AGAIN).await;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        while self.take_or_ask().is_some() {}
        let commands = mem::take(&mut self.commands);
        let (under_way, complete): (Vec<_>, Vec<_>) =
            commands.into_iter().partition(|c| c.is_under_way.get());
        drop(complete);
        if !under_way.is_empty() {
            tracing::debug!(
                commands = under_way.len(),
                "the memory of commands that have not ended is given up"
            );
        }
        mem::forget(under_way);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeout;
    use std::fs::File;

    /// Commands that are refused, because nothing is mounted; none on a machine that mounts nothing.
    fn refused(count: usize) -> Option<Commands> {
        let device = File::options().read(true).write(true).open("/dev/fuse").ok()?;
        Some(Commands::new(device.into(), count, [64, 4096]).unwrap())
    }

    #[test]
    fn other_devices_are_refused() {
        crate::block_on(async {
            let device = File::options().read(true).write(true).open("/dev/zero").unwrap();
            let error = Commands::new(device.into(), 1, [64, 64]).err().expect("it is another device");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        })
        .unwrap();
    }

    #[test]
    fn who_waits_goes_on_waiting_while_something_else_is_ready() {
        crate::block_on(async {
            let (Some(first), Some(second)) = (refused(1), refused(1)) else { return };
            let first = Rc::new(first);
            let waiting = spawn({
                let first = first.clone();
                async move { first.ready().await }
            });
            second.start(0, 1, &[]);
            second.ready().await;
            assert!(second.next().is_some());
            assert!(!waiting.is_finished());
            first.start(0, 1, &[]);
            timeout(Duration::from_secs(10), waiting).await.expect("it is woken").unwrap();
            assert!(first.next().is_some_and(|(command, result)| command == 0 && result < 0));
        })
        .unwrap();
    }

    #[test]
    fn a_device_without_commands_says_so_to_each() {
        crate::block_on(async {
            let Some(commands) = refused(5) else { return };
            for round in 0..3u8 {
                for command in 0..commands.count() {
                    commands.with_memory(command, |[_, body]| body.fill(round));
                    commands.start(command, 1, &[round; 24]);
                }
                let mut done = Vec::new();
                while done.len() < commands.count() {
                    match commands.next() {
                        Some(completed) => done.push(completed),
                        None => commands.ready().await,
                    }
                }
                done.sort_unstable();
                assert!(done.iter().enumerate().all(|(at, (command, result))| at == *command && *result < 0));
                commands.with_memory(4, |[_, body]| assert!(body.iter().all(|byte| *byte == round)));
            }
        })
        .unwrap();
    }
}
