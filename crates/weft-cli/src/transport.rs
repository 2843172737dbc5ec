//! How a process talks to others of its machine, and how it waits: the same for all that move data.

use weft_rt::Spin;

/// How a process waits for something to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Waits {
    /// Spins for some microseconds before it sleeps, as long as that pays off
    #[default]
    Adaptive,
    /// Sleeps at once
    Never,
    /// Spins always: for measurements, with a core to itself
    Always,
}

/// Options that need no touching, for measurements and for when something is wrong.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct TransportArgs {
    /// Talk to processes of this machine over TCP too, instead of through shared memory
    #[arg(long)]
    pub no_shared_memory: bool,
    /// When to spin before sleeping
    #[arg(long, value_name = "WHEN", default_value = "adaptive")]
    pub spin: Waits,
}

impl TransportArgs {
    /// Makes it so: the latter on this thread, whose executor runs.
    pub fn apply(&self) {
        weft_rpc::shm::set_shared_memory(!self.no_shared_memory);
        weft_rt::set_spin(self.spin());
    }

    /// How threads that this process starts have to wait.
    pub fn spin(&self) -> Spin {
        match self.spin {
            Waits::Adaptive => Spin::Adaptive,
            Waits::Never => Spin::Never,
            Waits::Always => Spin::Always,
        }
    }
}
