//! What goes wrong in a run, and when: drawn from the seed, within a budget.

use crate::bed::{Bed, manager_host};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sim::{self, Crash, ProcessId};
use weft_rt::{random_below, sleep};

/// One thing that goes wrong.
#[derive(Clone, Debug)]
pub enum Fault {
    /// A node dies, and starts again after a while.
    Node {
        /// Which.
        node: usize,
        /// How.
        crash: Crash,
        /// How long it stays away.
        away: Duration,
    },
    /// The manager dies, and starts again after a while.
    Manager {
        /// How long it stays away.
        away: Duration,
    },
    /// Two hosts do not hear each other, in one direction or both, for a while.
    Partition {
        /// One host.
        from: IpAddr,
        /// The other.
        to: IpAddr,
        /// Whether both directions are cut.
        both: bool,
        /// For how long.
        lasts: Duration,
    },
    /// Connections between two hosts are reset; requests in flight are lost.
    Reset {
        /// One host.
        a: IpAddr,
        /// The other.
        b: IpAddr,
    },
    /// A client dies and does not come back.
    Client {
        /// Which.
        client: usize,
    },
    /// A drive is to be emptied; after a while it may be wanted again.
    Evacuate {
        /// The node of the drive.
        node: usize,
        /// Which of its drives.
        drive: usize,
        /// When it is to take part again, if at all.
        cancel_after: Option<Duration>,
    },
    /// Everything on the network takes up to this long, for a while.
    Slow {
        /// The longest latency.
        latency: Duration,
        /// For how long.
        lasts: Duration,
    },
}

/// Faults and the pauses before each.
#[derive(Clone, Debug)]
pub struct Schedule(pub Vec<(Duration, Fault)>);

fn random_ms(low: u64, high: u64) -> Duration {
    Duration::from_micros(low * 1000 + random_below((high - low) * 1000 + 1))
}

/// The host of a client.
pub fn client_host(client: usize) -> IpAddr {
    IpAddr::from([10, 0, 2, 1 + client as u8])
}

impl Schedule {
    /// Up to `budget` faults for a fabric of so many nodes, drives on each, and clients. At least one client lives.
    pub fn random(budget: u64, nodes: usize, drives: usize, clients: usize) -> Schedule {
        let mut client_deaths = clients.saturating_sub(1);
        let mut faults = Vec::new();
        for _ in 0..random_below(budget + 1) {
            // Often one fault upon another, sometimes time to recover between.
            let pause = if random_below(3) == 0 { random_ms(500, 4_000) } else { random_ms(0, 600) };
            let node = random_below(nodes as u64) as usize;
            let host = IpAddr::from([10, 0, 0, 1 + node as u8]);
            let other = match random_below(3) {
                0 => manager_host(),
                1 => client_host(random_below(clients as u64) as usize),
                _ => IpAddr::from([10, 0, 0, 1 + random_below(nodes as u64) as u8]),
            };
            let fault = match random_below(18) {
                0..=5 => {
                    let crash = if random_below(2) == 0 { Crash::Process } else { Crash::PowerCut };
                    let away = if random_below(2) == 0 { random_ms(1, 300) } else { random_ms(300, 5_000) };
                    Fault::Node { node, crash, away }
                }
                6..=7 => Fault::Manager { away: random_ms(10, 3_000) },
                8..=10 => Fault::Partition {
                    from: host,
                    to: other,
                    both: random_below(2) == 0,
                    lasts: random_ms(10, 4_000),
                },
                11..=13 => Fault::Reset { a: host, b: other },
                14 if client_deaths > 0 => {
                    client_deaths -= 1;
                    Fault::Client { client: 1 + client_deaths }
                }
                15..=16 => Fault::Evacuate {
                    node,
                    drive: random_below(drives as u64) as usize,
                    cancel_after: (random_below(2) == 0).then(|| random_ms(1, 3_000)),
                },
                _ => Fault::Slow { latency: random_ms(1, 400), lasts: random_ms(10, 1_500) },
            };
            faults.push((pause, fault));
        }
        Schedule(faults)
    }

    /// Lets everything go wrong in turn. What ends by itself ends in the background; call `heal` afterwards.
    pub async fn play(&self, bed: &Rc<Bed>, clients: &[ProcessId]) {
        for (pause, fault) in &self.0 {
            sleep(*pause).await;
            sim::tell(|| format!("fault: {fault:?}"));
            let bed = bed.clone();
            match fault.clone() {
                Fault::Node { node, crash, away } => {
                    bed.kill_node(node, crash);
                    weft_rt::spawn(async move {
                        sleep(away).await;
                        bed.start_node(node);
                    });
                }
                Fault::Manager { away } => {
                    bed.kill_manager();
                    weft_rt::spawn(async move {
                        sleep(away).await;
                        bed.start_manager();
                    });
                }
                Fault::Partition { from, to, both, lasts } => {
                    sim::set_blocked(from, to, true);
                    sim::set_blocked(to, from, both);
                    weft_rt::spawn(async move {
                        sleep(lasts).await;
                        sim::set_blocked(from, to, false);
                        sim::set_blocked(to, from, false);
                    });
                }
                Fault::Reset { a, b } => sim::reset_connections(a, b),
                Fault::Client { client } => sim::kill(clients[client], Crash::Process),
                Fault::Evacuate { node, drive, cancel_after } => {
                    weft_rt::spawn(async move {
                        bed.evacuate(node, drive, false).await;
                        if let Some(after) = cancel_after {
                            sleep(after).await;
                            bed.evacuate(node, drive, true).await;
                        }
                    });
                }
                Fault::Slow { latency, lasts } => {
                    sim::set_latency(Duration::from_micros(5), latency);
                    weft_rt::spawn(async move {
                        sleep(lasts).await;
                        usual_latency();
                    });
                }
            }
        }
    }
}

fn usual_latency() {
    sim::set_latency(Duration::from_micros(5), Duration::from_micros(200));
}

/// Ends every fault: all networks and processes are back.
pub fn heal(bed: &Bed) {
    sim::tell(|| "everything heals".into());
    sim::heal_network();
    usual_latency();
    bed.start_manager();
    for n in 0..bed.nodes.len() {
        bed.start_node(n);
    }
}
