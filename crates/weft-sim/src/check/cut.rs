//! While a client is cut off from one node, and nothing else is wrong, what it writes completes within
//! a bound of virtual time: the node's members leave the groups that the client writes to.

use crate::bed::Bed;
use crate::clients::{Party, client_host};
use crate::faults::{self, Guard};
use crate::workload;
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_client::AttachMode;
use weft_rt::sim::{self, spawn_process};
use weft_rt::{Instant, now, random_below, sleep};

/// The first of the hosts of these clients: others are below.
const HOSTS_FROM: usize = 100;

/// Leases within which a write completes: five of silence until one client alone is believed, one until
/// the silence is noticed, reported and probed, and six for what follows from it, beside faults: a write
/// may wait for two evictions, one after the other.
const LEASES: u32 = 12;

/// Virtual time in which all copies are in-sync before the cut.
const IN_SYNC_WITHIN: Duration = Duration::from_secs(150);

/// Leases within which a node that has died is missed.
const MISSED_WITHIN_LEASES: u32 = 3;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A cut of some seed: how many clients are cut off from which node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalmCut {
    /// The node.
    pub node: usize,
    /// Clients that are cut off from it.
    pub clients: usize,
    /// What they send is lost.
    pub to: bool,
    /// What the node sends is lost.
    pub from: bool,
}

/// A client of this check.
#[derive(Default)]
struct Writer {
    /// Since when a request is under way.
    begun: Cell<Option<Instant>>,
    /// Requests that were done.
    done: Cell<u64>,
    is_over: Cell<bool>,
    has_ended: Cell<bool>,
    wrong: RefCell<Option<String>>,
}

/// Cuts clients off from a node while everybody else goes on, until each of them has written for longer
/// than the bound.
///
/// # Errors
/// Who has waited for too long.
pub async fn check(bed: &Rc<Bed>, guard: &Guard, party: &Party, cut: Option<CalmCut>) -> Result<(), String> {
    let is_lost = bed.nodes.iter().any(|n| n.is_lost());
    let Some(cut) = cut.filter(|_| !is_lost) else { return Ok(()) };
    let bound = bed.shape.durations.lease() * LEASES;
    await_in_sync(bed, guard).await?;
    let hosts: Vec<IpAddr> = (0..cut.clients).map(|n| client_host(HOSTS_FROM + n)).collect();
    let writers: Vec<Rc<Writer>> = hosts.iter().map(|_| Rc::default()).collect();
    for (n, (host, writer)) in hosts.iter().zip(&writers).enumerate() {
        let run = run(format!("cut-{}", n + 1), party.clone(), writer.clone());
        spawn_process(*host, &format!("cut-{}", n + 1), run);
    }
    // Each has written every block by then, and so has reached every node: one that has not comes with its
    // fault.
    while writers.iter().any(|w| w.done.get() < 3 * party.habits.hot_blocks.len() as u64) {
        sleep(LOOK_EVERY).await;
    }
    let node = bed.nodes[cut.node].host;
    let block = |is_cut: bool| {
        for host in &hosts {
            sim::set_blocked(*host, node, is_cut && cut.to);
            sim::set_blocked(node, *host, is_cut && cut.from);
        }
    };
    sim::tell(|| format!("a calm cut: {cut:?}"));
    block(true);
    let began = now();
    let mut found = Ok(());
    while began.elapsed() < bound * 2 && found.is_ok() {
        sleep(LOOK_EVERY).await;
        let waited = writers.iter().filter_map(|w| w.begun.get()).map(|at| at.elapsed()).max();
        if let Some(waited) = waited.filter(|w| *w > bound) {
            found = Err(format!("a client that is cut off from one node has waited for {waited:?}: {cut:?}"));
        }
    }
    block(false);
    writers.iter().for_each(|w| w.is_over.set(true));
    while found.is_ok() && writers.iter().any(|w| !w.has_ended.get()) {
        sleep(LOOK_EVERY).await;
    }
    let wrong = writers.iter().find_map(|w| w.wrong.borrow().clone());
    wrong.map_or(found, Err)
}

/// Does what people do until every copy is in-sync, on a drive that is in its place: a group that misses one
/// has none to spare. It must stay so for some leases, since a node that has just died may not be missed yet.
async fn await_in_sync(bed: &Rc<Bed>, guard: &Guard) -> Result<(), String> {
    let (from, mut since) = (now(), now());
    while since.elapsed() < bed.shape.durations.lease() * MISSED_WITHIN_LEASES {
        if let Err(what) = bed.has_all_copies(&bed.truth()) {
            if from.elapsed() > IN_SYNC_WITHIN {
                return Err(format!("copies are missing {IN_SYNC_WITHIN:?} after everything healed: {what}"));
            }
            faults::mend(bed, guard).await;
            since = now();
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Writes and reads, one request after another, until it is over. The first to each block is a write.
async fn run(name: String, party: Party, writer: Rc<Writer>) {
    let volume = workload::attach(&party.managers, &party.volume, &name, AttachMode::Shared).await;
    while !writer.is_over.get() {
        let blocks = &party.habits.hot_blocks;
        let first = blocks[writer.done.get() as usize % blocks.len()];
        writer.begun.set(Some(now()));
        let is_first = writer.done.get() < blocks.len() as u64;
        let result = match random_below(4) {
            0 if !is_first => workload::read(&name, &volume, &party.history, first, 1).await,
            _ => workload::write(&name, &volume, &party.history, first, 1).await,
        };
        writer.begun.set(None);
        writer.done.set(writer.done.get() + 1);
        if let Err(error) = result {
            *writer.wrong.borrow_mut() = Some(format!("{name}: {error}"));
            break;
        }
        sleep(Duration::from_nanos(random_below(party.habits.think.as_nanos() as u64 + 1))).await;
    }
    volume.detach().await;
    writer.has_ended.set(true);
}
