//! Runtime: a single-threaded executor with drives, connections, time and randomness, in two backends.
//!
//! The real backend (`uring`) runs one executor per thread on an io_uring; threads tell each other something through
//! mailboxes alone. The simulated one (`sim`) has
//! virtual time, seeded randomness, simulated drives and a simulated network, and runs whole fabrics of
//! processes that can be killed at any await point. Engines see neither: they call the functions and types
//! of this crate, which act on the executor of the current thread. It never decides anything about data.
//!
//! It knows bytes, and nothing of what they mean.

pub mod affinity;
mod budget;
mod buf;
mod byte_reader;
mod drive;
mod executor;
mod floor;
mod lender;
mod mailbox;
mod mem;
mod net;
mod offload;
mod pinned;
mod polled;
mod ready;
pub mod signal;
pub mod sim;
pub mod sync;
mod thread;
mod time;
mod uring;
mod window;

pub use budget::{Budget, Room, Share, Transfer};
pub use buf::{Buf, BufMut, IO_ALIGN, memory_of, take_over};
pub use byte_reader::ByteReader;
pub use drive::{Drive, OpenOptions, Progress};
pub use executor::{
    Cancelled, JoinHandle, LocalFuture, block_on, breathe, spawn, spawn_boxed, submit_now, yield_now,
};
pub use floor::Floor;
pub use lender::{Landing, Lender};
pub use mailbox::{Mailbox, Poster, mailbox};
pub use net::{Addr, Listener, ParseAddrError, Stream};
pub use offload::{Offload, offload};
pub use polled::{Polled, unwatch, watch};
pub use ready::Readiness;
pub use thread::{Thread, thread_number};
pub use time::{Elapsed, Instant, Sleep, now, sleep, sleep_about, sleep_until, timeout, wall_clock_us};
pub use uring::{COMMAND_ARGUMENT_BYTES, Commands, KERNEL_OLDEST, RtError, Spin};
pub use window::Extent;

/// Says what this thread's executor does when it is idle, instead of [`Spin::Adaptive`]. No effect under
/// simulation.
pub fn set_spin(spin: Spin) {
    executor::with_core(|core| core.uring().map(|driver| driver.set_spin(spin)));
}

/// How often this thread's executor has entered the kernel; 0 under simulation.
pub fn kernel_enters() -> u64 {
    executor::with_core(|core| core.uring().map_or(0, |driver| driver.enters()))
}

/// 64 random bits: of the operating system, or of the simulation's seed.
pub fn random_u64() -> u64 {
    executor::with_core(|core| core.random_u64())
}

/// 128 random bits.
pub fn random_u128() -> u128 {
    u128::from(random_u64()) << 64 | u128::from(random_u64())
}

/// A random number below `n`, evenly distributed up to a bias of n / 2^64.
///
/// # Panics
/// If `n` is 0.
pub fn random_below(n: u64) -> u64 {
    assert!(n > 0, "there is no number below 0");
    ((u128::from(random_u64()) * u128::from(n)) >> 64) as u64
}
