//! How the processes under test reach each other.

/// How a client and a target of one machine reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP on loopback, as between machines but for the network.
    Tcp,
    /// Shared memory.
    Shared,
}

impl Transport {
    /// Its name in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Shared => "shm",
        }
    }
}
