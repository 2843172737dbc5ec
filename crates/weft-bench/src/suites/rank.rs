//! A rank: a process that carries out the phases that its conductor orders, and says how long they took.
//!
//! It prints nothing. It ends when the conductor says so, or is gone.

use super::launch::Launched;
use super::meeting;
use super::message::{Hello, Order, PhaseReport, Word, receive, send};
use super::{io500, ior, mdtest};
use crate::BenchError;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use weft_types::with_causes;

/// How often a rank says how far it has come.
pub(crate) const PROGRESS_EVERY_NS: u64 = 500_000_000;

/// A rank's side of its connection to the conductor.
pub(crate) struct Conductor {
    from: Box<dyn BufRead>,
    to: Box<dyn Write>,
    /// When it was last said how far the phase has come.
    progress_ns: u64,
}

/// Carries out orders that come over the standard input, a socket, until the conductor ends it: what the
/// hidden command of the program does that a conductor starts for each rank.
///
/// # Errors
/// If the standard input is no socket.
pub fn serve_as_rank(rank: u32) -> Result<(), BenchError> {
    let failed =
        |source| BenchError::System { action: "talk to the conductor by the standard input", source };
    // Ctrl-C reaches all processes of a terminal: the conductor decides what is still to be done.
    ignore_interrupts();
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?);
    let from = Box::new(BufReader::new(socket.try_clone().map_err(failed)?));
    let mut conductor = Conductor { from, to: Box::new(socket), progress_ns: 0 };
    send(&mut conductor.to, &Word::Hello(hello(rank, String::new()))).map_err(failed)?;
    conductor.serve().map_err(failed)
}

/// Takes part as a rank that a launcher has started, and that is not the first: finds the conductor by a
/// file in the tested folder, and carries out its orders.
///
/// # Errors
/// If it is not found.
pub fn follow(folder: &Path, launched: &Launched) -> Result<(), BenchError> {
    let failed = |source| BenchError::System { action: "talk to rank 0", source };
    let (stream, key) = meeting::meet(folder, launched)?;
    let from = Box::new(BufReader::new(stream.try_clone().map_err(failed)?));
    let mut conductor = Conductor { from, to: Box::new(stream), progress_ns: 0 };
    send(&mut conductor.to, &Word::Hello(hello(launched.rank, key))).map_err(failed)?;
    conductor.serve().map_err(failed)
}

impl Conductor {
    /// Carries out orders until there are no more.
    fn serve(&mut self) -> io::Result<()> {
        loop {
            let done = match receive::<Order>(&mut self.from)? {
                // The conductor is gone, and the program that has started it knows why.
                None | Some(Order::End) => return Ok(()),
                Some(Order::Go(_)) => continue,
                Some(Order::Ior(order)) => ior::carry_out(&order, self),
                Some(Order::Mdtest(order)) => mdtest::carry_out(&order, self),
                Some(Order::Find(order)) => io500::carry_out(&order, self),
            };
            let word = match done {
                Ok(report) => Word::Done(report),
                Err(error) => Word::Failed(with_causes(&error), error.hint().map(str::to_owned)),
            };
            send(&mut self.to, &word)?;
        }
    }

    /// Waits until all ranks of the phase have come here; the largest of the values that they bring.
    ///
    /// # Errors
    /// If the conductor is gone.
    pub(crate) fn barrier(&mut self, value: u64) -> Result<u64, BenchError> {
        let failed = |source| BenchError::System { action: "wait for the other ranks", source };
        send(&mut self.to, &Word::Barrier(value)).map_err(failed)?;
        match receive::<Order>(&mut self.from).map_err(failed)? {
            Some(Order::Go(largest)) => Ok(largest),
            _ => Err(failed(io::ErrorKind::ConnectionAborted.into())),
        }
    }

    /// Says how far the phase has come, now and then.
    ///
    /// # Errors
    /// If the conductor is gone: then it cleans up, and nothing new may be made.
    pub(crate) fn progress(&mut self, now_ns: u64, done: u64, of: u64) -> Result<(), BenchError> {
        if now_ns.saturating_sub(self.progress_ns) < PROGRESS_EVERY_NS {
            return Ok(());
        }
        self.progress_ns = now_ns;
        let sent = send(&mut self.to, &Word::Progress(done, of));
        sent.map_err(|source| BenchError::System { action: "say how far the phase has come", source })
    }
}

impl PhaseReport {
    /// Ends the phase.
    pub(crate) fn ended(mut self) -> PhaseReport {
        self.ended_ns = now_ns();
        self
    }
}

fn hello(rank: u32, key: String) -> Hello {
    let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    Hello {
        rank,
        key,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: line("/proc/sys/kernel/random/boot_id"),
        host: line("/proc/sys/kernel/hostname"),
    }
}

/// The clock that all processes of a machine have in common, in nanoseconds since it was started.
pub(crate) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills in a time that lives as long as the call. This clock is there on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    let time = Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
    time.as_nanos() as u64
}

/// Seconds between two times of the clock.
pub(crate) fn seconds(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e9
}

fn ignore_interrupts() {
    // SAFETY: to ignore a signal runs no code of this program.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A rank whose conductor lets it pass every barrier with the value that it brings, for as many as
    /// there are.
    pub(crate) fn alone(barriers: &[u64]) -> Conductor {
        let mut lines = Vec::new();
        barriers.iter().for_each(|value| send(&mut lines, &Order::Go(*value)).expect("memory takes all"));
        let from = Box::new(BufReader::new(io::Cursor::new(lines)));
        Conductor { from, to: Box::new(io::sink()), progress_ns: 0 }
    }

    #[test]
    fn a_rank_whose_conductor_is_gone_ends() {
        let mut conductor = alone(&[3]);
        assert_eq!(conductor.barrier(1).expect("it goes on"), 3);
        assert!(conductor.barrier(1).is_err());
        conductor.serve().expect("there is nothing to do");
    }

    #[test]
    fn the_clock_goes_on() {
        let (first, second) = (now_ns(), now_ns());
        assert!(second >= first && first > 0);
        assert_eq!(seconds(1_000_000_000, 3_500_000_000), 2.5);
    }
}
