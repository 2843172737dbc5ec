//! A crowd: a small fabric, many clients on one or two blocks, and one fault upon another, biased towards one kind.
//!
//! Short in virtual time: leases last a tenth of a second. What is looked at in the end is what every run is judged
//! by: the history of each block, a fabric that becomes whole, replicas that are equal, and drives without damage.

use super::stage::Stage;
use crate::bed::STOP_PATIENCE;
use crate::clients::client_host;
use std::rc::Rc;
use std::time::Duration;
use weft_checker::{fill_block, read_value};
use weft_client::{ClientError, Volume};
use weft_rt::sim::{self, Crash, ProcessId};
use weft_rt::sync::join_all;
use weft_rt::{Buf, BufMut, random_below, sleep, spawn};
use weft_types::BLOCK_SIZE;

/// What a crowd is like. Numbers are weights where nothing else is said.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// Nodes, with one drive each.
    pub nodes: usize,
    /// Copies of each block.
    pub copies: u8,
    /// Clients.
    pub clients: usize,
    /// Operations that each has in flight.
    pub depth: usize,
    /// Blocks that they meet in.
    pub blocks: u64,
    /// How far apart they lie.
    pub stride: u64,
    /// Blocks of the longest request.
    pub longest: u64,
    /// The longest pause between two operations of one lane, in microseconds.
    pub think_us: u64,
    /// How many faults strike.
    pub faults: u64,
    /// The longest pause between two of them, in milliseconds.
    pub pause_ms: u64,
    /// Connections of a client to a node are reset.
    pub reset: u64,
    /// A node starts again at once.
    pub restart: u64,
    /// A node is stopped in order, and starts again.
    pub stop: u64,
    /// A node stays away until it is evicted.
    pub evict: u64,
    /// What a client sends to a node arrives a little later, or what a node answers.
    pub late: u64,
    /// A client and a node do not hear each other for a while, in one direction or both.
    pub cut: u64,
    /// A node does not hear the others, or they do not hear it, until it is evicted.
    pub isolate: u64,
    /// The manager starts again.
    pub manager: u64,
    /// A client dies, and another comes.
    pub client: u64,
    /// All nodes lose power at once.
    pub blackout: u64,
    /// A drive is slow for a while.
    pub slow: u64,
    /// A client does not hear of new maps for a while.
    pub unaware: u64,
    /// A block of some drive rots, and its node starts again.
    pub rot: u64,
    /// By how many milliseconds the clocks of clients are behind at most.
    pub behind_ms: u64,
    /// Of 20 operations so many write, and so many write zeroes.
    pub writes: u64,
    /// See `writes`.
    pub zeroes: u64,
}

/// Everybody at once, no faults.
pub const CALM: Crowd = Crowd {
    nodes: 3,
    copies: 2,
    clients: 4,
    depth: 2,
    blocks: 1,
    stride: 1,
    longest: 1,
    think_us: 5_000,
    faults: 0,
    pause_ms: 40,
    reset: 0,
    late: 0,
    restart: 0,
    stop: 0,
    evict: 0,
    cut: 0,
    isolate: 0,
    manager: 0,
    client: 0,
    blackout: 0,
    slow: 0,
    unaware: 0,
    rot: 0,
    behind_ms: 0,
    writes: 9,
    zeroes: 1,
};

impl Crowd {
    fn draw(&self) -> Fault {
        let weights = [
            (self.reset, Fault::Reset),
            (self.late, Fault::Late),
            (self.restart, Fault::Restart),
            (self.stop, Fault::Stop),
            (self.evict, Fault::Evict),
            (self.cut, Fault::Cut),
            (self.isolate, Fault::Isolate),
            (self.manager, Fault::Manager),
            (self.client, Fault::Client),
            (self.blackout, Fault::Blackout),
            (self.slow, Fault::Slow),
            (self.unaware, Fault::Unaware),
            (self.rot, Fault::Rot),
        ];
        let mut at = random_below(weights.iter().map(|(weight, _)| weight).sum());
        for (weight, fault) in weights {
            if at < weight {
                return fault;
            }
            at -= weight;
        }
        unreachable!("the number is below the sum")
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// What is wrong.
    pub async fn run(self) -> Result<(), String> {
        let stage = Stage::set(self.nodes, self.copies).await;
        let mut clients: Vec<(String, ProcessId)> =
            (0..self.clients).map(|n| self.start_client(&stage, n, &format!("client-{n}"))).collect();
        sleep(Duration::from_millis(60)).await;
        for nth in 0..self.faults {
            sleep(Duration::from_micros(random_below(self.pause_ms * 1000 + 1))).await;
            let fault = self.draw();
            let node = random_below(self.nodes as u64) as usize;
            let client = random_below(self.clients as u64) as usize;
            sim::tell(|| format!("fault: {fault:?}, node {}, client {client}", node + 1));
            if fault == Fault::Client {
                sim::kill(clients[client].1, Crash::Process);
                clients[client] = self.start_client(&stage, client, &format!("client-{client}-{nth}"));
            } else {
                strike(fault, &stage, node, client);
            }
        }
        sleep(Duration::from_millis(100 + random_below(300))).await;
        stage.heal();
        sleep(Duration::from_millis(150)).await;
        stage.await_operations().await?;
        for (_, process) in &clients {
            sim::kill(*process, Crash::Process);
        }
        // What ends by itself has ended after this.
        sleep(Duration::from_millis(700)).await;
        stage.heal();
        stage.finish_despite(self.rot > 0).await
    }

    fn start_client(self, stage: &Rc<Stage>, n: usize, name: &str) -> (String, ProcessId) {
        let (stage, own) = (stage.clone(), name.to_owned());
        let process = sim::spawn_process(client_host(n), name, async move {
            loop {
                let volume = stage.attach(&own).await;
                let lanes = (0..self.depth).map(|_| self.lane(&own, &stage, &volume));
                join_all(lanes).await;
                volume.detach().await;
            }
        });
        if self.behind_ms > 0 {
            sim::set_wall_skew(process, -(random_below(self.behind_ms * 1000 + 1) as i64));
        }
        (name.to_owned(), process)
    }

    /// One operation after another, until the session is over.
    async fn lane(self, name: &str, stage: &Rc<Stage>, volume: &Volume) {
        loop {
            sleep(Duration::from_micros(random_below(self.think_us + 1))).await;
            let _operation = stage.begin_operation().await;
            let first = random_below(self.blocks) * self.stride;
            let count = 1 + random_below(self.longest);
            let what = random_below(20);
            let done = if what < self.writes {
                write(name, stage, volume, first, count, false).await
            } else if what < self.writes + self.zeroes {
                write(name, stage, volume, first, count, true).await
            } else {
                read(name, stage, volume, first, count).await
            };
            match done {
                Ok(()) => {}
                Err(ClientError::SessionOver { .. } | ClientError::Fenced { .. }) => return,
                Err(error) => panic!("{name}: {error}"),
            }
        }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Reset,
    Late,
    Restart,
    Stop,
    Evict,
    Cut,
    Isolate,
    Manager,
    Client,
    Blackout,
    Slow,
    Unaware,
    Rot,
}

fn some_ms(low: u64, high: u64) -> Duration {
    Duration::from_micros(low * 1000 + random_below((high - low) * 1000 + 1))
}

fn strike(fault: Fault, stage: &Rc<Stage>, node: usize, client: usize) {
    let (host, user) = (stage.bed.nodes[node].host, client_host(client));
    let stage = stage.clone();
    match fault {
        Fault::Reset if random_below(2) == 0 => sim::reset_connections(host, user),
        // To all: then no answer is left.
        Fault::Reset => stage.bed.nodes.iter().for_each(|n| sim::reset_connections(n.host, user)),
        Fault::Late => {
            let (from, to) = if random_below(3) == 0 { (host, user) } else { (user, host) };
            sim::set_blocked(from, to, true);
            spawn(async move {
                sleep(Duration::from_micros(200 + random_below(8_000))).await;
                sim::set_blocked(from, to, false);
            });
        }
        Fault::Restart => drop(spawn(async move { stage.restart(node, some_ms(0, 12)).await })),
        Fault::Stop => drop(spawn(async move {
            stage.bed.stop_node(node, STOP_PATIENCE).await;
            sleep(some_ms(10, 300)).await;
            stage.bed.start_node(node);
        })),
        Fault::Evict => drop(spawn(async move {
            stage.restart(node, some_ms(230, 400)).await;
            // It comes back slowly, so that much happens meanwhile.
            stage.be_slow(node, some_ms(0, 4), some_ms(20, 150)).await;
        })),
        Fault::Cut => {
            let (to, back) = [(true, true), (true, false), (false, true)][random_below(3) as usize];
            sim::set_blocked(user, host, to);
            sim::set_blocked(host, user, back);
            spawn(async move {
                sleep(some_ms(1, 400)).await;
                sim::set_blocked(user, host, false);
                sim::set_blocked(host, user, false);
                if random_below(2) == 0 {
                    sim::reset_connections(host, user);
                }
            });
        }
        Fault::Isolate => drop(spawn(async move { stage.isolate(node, some_ms(100, 500)).await })),
        Fault::Manager => {
            stage.bed.kill_manager();
            spawn(async move {
                sleep(some_ms(1, 200)).await;
                stage.bed.start_manager();
            });
        }
        Fault::Blackout => drop(spawn(async move { stage.blackout().await })),
        Fault::Slow => {
            spawn(async move { stage.be_slow(node, some_ms(2, 60), some_ms(10, 200)).await });
        }
        Fault::Unaware => {
            sim::set_blocked(crate::manager_host(), user, true);
            spawn(async move {
                sleep(some_ms(50, 900)).await;
                sim::set_blocked(crate::manager_host(), user, false);
            });
        }
        // Of one node alone: what rots everywhere is lost.
        Fault::Rot => drop(spawn(async move { stage.rot_something(0).await })),
        Fault::Client => unreachable!("the caller starts another one"),
    }
}

fn bytes(block: u64) -> u64 {
    block * BLOCK_SIZE as u64
}

/// Writes blocks, each with a value of its own or zeroes, and records it.
///
/// # Errors
/// Those of the client; the writes then have not ended.
pub async fn write(
    name: &str,
    stage: &Stage,
    volume: &Volume,
    first: u64,
    count: u64,
    is_zero: bool,
) -> Result<(), ClientError> {
    let history = &stage.history;
    let mut data = Vec::new();
    let mut calls = Vec::new();
    for block in first..first + count {
        let value = if is_zero { 0 } else { history.fresh_value() };
        if !is_zero {
            data.extend_from_slice(&fill_block(block, value));
        }
        calls.push(history.begin_write(name, block, value));
    }
    match is_zero {
        true => volume.write_zeroes(bytes(first), bytes(count)).await?,
        false => volume.write(bytes(first), vec![Buf::from(data)]).await?,
    }
    calls.into_iter().for_each(|call| history.end_write(call));
    Ok(())
}

/// Reads blocks and records what they hold.
///
/// # Errors
/// Those of the client.
///
/// # Panics
/// If a block holds what nobody can have written.
pub async fn read(
    name: &str,
    stage: &Stage,
    volume: &Volume,
    first: u64,
    count: u64,
) -> Result<(), ClientError> {
    let history = &stage.history;
    let calls: Vec<_> = (first..first + count).map(|block| history.begin_read(name, block)).collect();
    let parts = volume.read(bytes(first), bytes(count)).await?;
    let mut whole = BufMut::aligned(bytes(count) as usize);
    let mut at = 0;
    for part in parts {
        whole[at..at + part.len()].copy_from_slice(&part);
        at += part.len();
    }
    for (i, call) in calls.into_iter().enumerate() {
        let block = &whole[i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE];
        let value = read_value(first + i as u64, block);
        sim::tell(|| format!("{name} reads {value} in block {}", first + i as u64));
        history.end_read(call, value);
    }
    Ok(())
}
