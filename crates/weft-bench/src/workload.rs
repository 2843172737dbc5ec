//! The workloads that every run of the benchmark measures.

use crate::limit::Shape;
use crate::load::{Amount, Load};
use crate::plan::Pattern;
use crate::transport::Transport;
use weft_rt::Spin;

/// Copies of each block in the volume under test.
pub(crate) const COPIES: u32 = 2;

/// The seed of all loads, so that every run does the same requests. The value means nothing.
const SEED: u64 = 0x5745_4654;

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name in tables and files; stable.
    pub name: &'static str,
    /// The order of offsets.
    pub pattern: Pattern,
    /// Whether it reads or writes.
    pub is_read: bool,
    /// Bytes per request.
    pub block_size: usize,
    /// Requests in flight.
    pub depth: u32,
    /// How client and target reach each other.
    pub transport: Transport,
    /// How both wait.
    pub spin: Spin,
}

/// The name of a way to wait in tables and files.
pub(crate) fn spin_name(spin: Spin) -> &'static str {
    match spin {
        Spin::Adaptive => "adaptive",
        Spin::Never => "never",
        Spin::Always => "always",
    }
}

/// All of them, in the order in which they run: those that say most about the data path first, and together what one
/// fabric can measure.
pub const WORKLOADS: [Workload; 18] = [
    row("randread-4k-d32", Pattern::Random, true, 4 << 10, 32),
    row("randwrite-4k-d32", Pattern::Random, false, 4 << 10, 32),
    row("randread-4k-d1", Pattern::Random, true, 4 << 10, 1),
    row("randwrite-4k-d1", Pattern::Random, false, 4 << 10, 1),
    row("randread-64k-d8", Pattern::Random, true, 64 << 10, 8),
    row("randwrite-64k-d8", Pattern::Random, false, 64 << 10, 8),
    row("seqread-1m-d4", Pattern::Sequential, true, 1 << 20, 4),
    row("seqwrite-1m-d4", Pattern::Sequential, false, 1 << 20, 4),
    row("shm-randread-4k-d32", Pattern::Random, true, 4 << 10, 32).shared(),
    row("shm-randwrite-4k-d32", Pattern::Random, false, 4 << 10, 32).shared(),
    row("shm-randread-4k-d1", Pattern::Random, true, 4 << 10, 1).shared(),
    row("shm-randwrite-4k-d1", Pattern::Random, false, 4 << 10, 1).shared(),
    row("shm-randread-64k-d8", Pattern::Random, true, 64 << 10, 8).shared(),
    row("shm-randwrite-64k-d8", Pattern::Random, false, 64 << 10, 8).shared(),
    row("shm-seqread-1m-d4", Pattern::Sequential, true, 1 << 20, 4).shared(),
    row("shm-seqwrite-1m-d4", Pattern::Sequential, false, 1 << 20, 4).shared(),
    row("nospin-randread-4k-d1", Pattern::Random, true, 4 << 10, 1).never_spinning(),
    row("nospin-randwrite-4k-d1", Pattern::Random, false, 4 << 10, 1).never_spinning(),
];

const fn row(name: &'static str, pattern: Pattern, is_read: bool, block_size: usize, depth: u32) -> Workload {
    let (transport, spin) = (Transport::Tcp, Spin::Adaptive);
    Workload { name, pattern, is_read, block_size, depth, transport, spin }
}

impl Workload {
    const fn shared(self) -> Workload {
        Workload { transport: Transport::Shared, ..self }
    }

    const fn never_spinning(self) -> Workload {
        Workload { spin: Spin::Never, ..self }
    }

    /// The load to put on a volume.
    pub fn load(&self, amount: Amount) -> Load {
        Load {
            pattern: self.pattern,
            read_percent: if self.is_read { 100 } else { 0 },
            block_size: self.block_size as u64,
            depth: self.depth,
            amount,
            seed: SEED,
            ..Load::default()
        }
    }

    /// The frames that a request of it exchanges.
    pub fn shape(&self) -> Shape {
        if self.is_read { Shape::of_read(self.block_size) } else { Shape::of_write(self.block_size, COPIES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_say_what_they_are() {
        for (i, w) in WORKLOADS.iter().enumerate() {
            assert!(WORKLOADS[..i].iter().all(|other| other.name != w.name));
            assert!(w.name.contains(if w.is_read { "read" } else { "write" }));
            assert!(w.name.ends_with(&format!("-d{}", w.depth)));
            assert_eq!(w.name.contains("seq"), w.pattern == Pattern::Sequential);
            assert_eq!(w.name.starts_with("shm-"), w.transport == Transport::Shared);
            assert_eq!(w.name.starts_with("nospin-"), w.spin == Spin::Never);
        }
    }

    #[test]
    fn a_write_goes_out_once_per_copy() {
        for w in WORKLOADS {
            assert_eq!(w.shape().copies, if w.is_read { 1 } else { COPIES });
            assert_eq!(w.shape().request_body + w.shape().reply_body, w.block_size);
        }
    }
}
