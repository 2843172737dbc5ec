//! How many threads a node has where nobody says: as few as its drives and cores need.

use super::threads::listen_of;
use std::net::{SocketAddr, TcpListener};
use std::thread::available_parallelism;
use std::time::Duration;
use weft_cli::NodeRunArgs;
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

/// Threads that so many cores need at most; 1 at least.
fn threads_for(cores: u32) -> u32 {
    (cores / CORES_PER_THREAD).clamp(1, THREADS_MAX)
}

/// How many threads a node has at most where nobody says: as many as its cores need, the members of the
/// fabric know of, and ports are free for. It never has more than drives.
pub(super) async fn at_most(args: &NodeRunArgs) -> u32 {
    const USUAL: &str = "one for every six cores";
    let cores = cores();
    let wanted = threads_for(cores);
    let (threads, why) = match wanted {
        1 => (1, USUAL.to_owned()),
        _ => match may_be_several(&args.manager, &args.name).await {
            Err(why) => (1, format!("{why}; it is looked at again at the next start")),
            Ok(()) => match free_ports(&args.listen, args.metrics.as_ref(), wanted) {
                free if free < wanted => (free, format!("port {free} behind --listen is not free")),
                _ => (wanted, USUAL.to_owned()),
            },
        },
    };
    tracing::info!(at_most = threads, cores, why, "threads by default: --threads says another number");
    threads
}

/// How many of so many threads could listen, from the first port on, beside the metrics: at least the first,
/// whose port is the business of who has chosen it.
fn free_ports(listen: &Addr, metrics: Option<&Addr>, wanted: u32) -> u32 {
    let Addr::Tcp(first) = listen else { return 1 };
    let there_are = match first.port() {
        0 => wanted,
        port => wanted.min(u32::from(u16::MAX - port) + 1),
    };
    let is_free = |index: &u32| match listen_of(listen, *index) {
        Addr::Tcp(addr) if addr.port() == 0 => true,
        Addr::Tcp(addr) => !is_port_of(metrics, addr) && TcpListener::bind(addr).is_ok(),
        Addr::Unix(_) => false,
    };
    1 + (1..there_are).take_while(is_free).count() as u32
}

/// Whether somebody who listens there keeps this address from a second listener.
pub(super) fn is_port_of(listener: Option<&Addr>, wanted: SocketAddr) -> bool {
    let Some(Addr::Tcp(taken)) = listener else { return false };
    let any = |addr: &SocketAddr| addr.ip().is_unspecified();
    taken.port() == wanted.port() && (taken.ip() == wanted.ip() || any(taken) || any(&wanted))
}

/// Whether the manager lets the node have several targets that nobody has asked for.
///
/// # Errors
/// Why not, for people.
async fn may_be_several(manager: &Addr, node: &str) -> Result<(), String> {
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
    fn threads_are_a_sixth_of_the_cores() {
        for (cores, threads) in [(1, 1), (2, 1), (11, 1), (12, 2), (24, 4), (64, 8), (128, 8)] {
            assert_eq!(threads_for(cores), threads, "{cores} cores");
        }
    }

    #[test]
    fn threads_by_default_stop_at_a_port_that_somebody_has() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = taken.local_addr().expect("it is bound").port();
        let free = |listen: String| free_ports(&listen.parse().expect("an address"), None, 4);
        assert_eq!(free(format!("127.0.0.1:{}", port - 1)), 1);
        assert_eq!(free(format!("127.0.0.1:{}", u16::MAX)), 1, "there is no port behind the last");
        assert_eq!(free("unix:/tmp/x".to_owned()), 1);
        assert_eq!(free("127.0.0.1:0".to_owned()), 4, "any ports will do");
    }

    #[test]
    fn the_port_of_the_metrics_is_not_one_of_a_thread() {
        let addr = |text: &str| text.parse::<Addr>().expect("an address");
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        for (metrics, is_taken) in [
            ("127.0.0.1:4811", true),
            ("0.0.0.0:4811", true),
            ("127.0.0.1:4812", false),
            ("10.0.0.1:4811", false),
        ] {
            assert_eq!(is_port_of(Some(&addr(metrics)), at(4811)), is_taken, "{metrics}");
        }
        assert!(is_port_of(Some(&addr("10.0.0.1:4811")), SocketAddr::from(([0, 0, 0, 0], 4811))));
        assert!(!is_port_of(None, at(4811)));
        let first = addr("127.0.0.1:4810");
        assert_eq!(free_ports(&first, Some(&addr("127.0.0.1:4811")), 4), 1);
    }
}
