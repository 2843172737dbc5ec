//! How many threads a node has where nobody says: as few as its drives and cores need.

use std::thread::available_parallelism;
use std::time::Duration;
use weft_rpc::Link;
use weft_rt::{Addr, timeout};
use weft_types::with_causes;
use weft_wire::Kind;
use weft_wire::control::{self, ManagerRequest};
use weft_wire::handshake::{Hello, PeerRole};

/// Cores for each thread: what one thread serves takes as much again in the kernel, and clients, virtual
/// machines and the manager need theirs.
const CORES_PER_THREAD: u32 = 6;

/// Threads that a node has by default at most: with more, each connection of a client carries too little.
const THREADS_MAX: u32 = 8;

/// How long the manager may take to say whether the node may have several targets.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Cores that this process may use: by its affinity, its cpuset, and the processor time that its control
/// groups allow, rounded down; 1 at least.
pub(super) fn cores() -> u32 {
    available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

/// Threads for so many drives on so many cores; 1 at least.
pub(super) fn threads_for(drives: u32, cores: u32) -> u32 {
    drives.min(cores / CORES_PER_THREAD).clamp(1, THREADS_MAX)
}

/// Whether the manager lets the node have several targets that nobody has asked for.
///
/// # Errors
/// Why not, for people.
pub(super) async fn may_be_several(manager: &Addr, node: &str) -> Result<(), String> {
    let ask = async {
        let link = Link::connect(manager, &Hello::new(PeerRole::Tool, None, node)).await;
        let link = link.map_err(|error| with_causes(&error))?;
        let request = ManagerRequest::MayHaveTargets { node: node.to_owned() };
        let answer = link.call(Kind::Manage, &control::encode(&request), vec![]).await;
        answer.map(drop).map_err(|error| with_causes(&error))
    };
    timeout(ANSWER_MAX, ask).await.unwrap_or_else(|_| Err("the manager does not answer".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_follow_the_drives_and_a_sixth_of_the_cores() {
        for (drives, cores, threads) in
            [(8, 2, 1), (0, 64, 1), (8, 11, 1), (8, 12, 2), (24, 24, 4), (3, 64, 3), (32, 128, 8)]
        {
            assert_eq!(threads_for(drives, cores), threads, "{drives} drives, {cores} cores");
        }
    }
}
