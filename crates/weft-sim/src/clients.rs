//! Clients of a run: some share a volume, one after another attaches another volume for itself alone.

use crate::check::sessions::SessionsCheck;
use crate::workload;
use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_checker::History;
use weft_client::{AttachMode, AttachOptions, ClientError, Fabric, Volume};
use weft_rt::sync::join_all;
use weft_rt::{Addr, random_below, sim, sleep};

/// The host of a client.
pub fn client_host(client: usize) -> IpAddr {
    IpAddr::from([10, 0, 2, 1 + client as u8])
}

/// How clients behave.
#[derive(Clone, Debug)]
pub struct Habits {
    /// The blocks in which requests begin.
    pub hot_blocks: Vec<u64>,
    /// How long a client thinks between operations, at most.
    pub think: Duration,
    /// Operations in flight at once.
    pub depth: u64,
    /// How long a client waits for an operation before it gives it up.
    pub patience: Duration,
}

/// What all clients of a volume have in common.
#[derive(Clone)]
pub struct Party {
    /// Managers to ask.
    pub managers: Vec<Addr>,
    /// The volume.
    pub volume: String,
    /// How it is attached.
    pub mode: AttachMode,
    /// How they behave.
    pub habits: Habits,
    /// What they saw.
    pub history: History,
    /// The sessions that they hold.
    pub sessions: Rc<SessionsCheck>,
    /// Whether they are to come to an end.
    pub is_over: Rc<Cell<bool>>,
}

/// Runs a client until the party is over; then it finishes what it has begun, and sets `done`.
pub async fn run(name: String, party: Party, done: Rc<Cell<bool>>) {
    while !party.is_over.get() {
        let Some(volume) = attach(&name, &party).await else { break };
        sim::tell(|| format!("{name} is attached"));
        // Whoever has a volume for itself gives it back, or has it taken away, after a while.
        let is_alone = party.mode == AttachMode::Exclusive;
        let held = (!is_alone).then(|| party.sessions.hold(volume.session_id(), &name));
        let turn = Rc::new(Cell::new(if is_alone { 1 + random_below(200) } else { u64::MAX }));
        let lanes = (0..party.habits.depth).map(|_| lane(&name, &party, &volume, turn.clone()));
        join_all(lanes).await;
        drop(held);
        if !is_alone || random_below(2) == 0 {
            volume.detach().await;
        }
        // Whoever lost the volume does not take it back at once: each attach is a handful of new maps for everybody.
        let pause_us = if is_alone { 3_000_000 } else { 20_000 };
        sleep(Duration::from_micros(random_below(pause_us))).await;
    }
    sim::tell(|| format!("{name} has finished"));
    done.set(true);
}

/// Attaches the party's volume; none if the party is over.
async fn attach(name: &str, party: &Party) -> Option<Volume> {
    while !party.is_over.get() {
        let attempt = async {
            let fabric = Fabric::connect(&party.managers, name).await?;
            let preempt = party.mode == AttachMode::Exclusive;
            let options = AttachOptions { mode: party.mode, preempt, io_timeout: party.habits.patience };
            fabric.attach(&party.volume, options).await
        };
        match weft_rt::timeout(Duration::from_secs(20), attempt).await {
            Ok(Ok(volume)) => return Some(volume),
            Ok(Err(error)) => sim::tell(|| format!("attach fails: {error}")),
            Err(_) => sim::tell(|| "attach takes too long".to_owned()),
        }
        sleep(Duration::from_millis(100)).await;
    }
    None
}

/// One operation after another, until the turn or the party or the session is over.
async fn lane(name: &str, party: &Party, volume: &Volume, turn: Rc<Cell<u64>>) {
    let (habits, history) = (&party.habits, &party.history);
    while !party.is_over.get() && turn.get() > 0 {
        turn.set(turn.get() - 1);
        sleep(Duration::from_nanos(random_below(habits.think.as_nanos() as u64 + 1))).await;
        let first = habits.hot_blocks[random_below(habits.hot_blocks.len() as u64) as usize];
        let count = 1 + random_below(4) * random_below(2);
        let result = match random_below(20) {
            0..=8 => workload::write(name, volume, history, first, count).await,
            9 => workload::zero(name, volume, history, first, count).await,
            _ => workload::read(name, volume, history, first, count).await,
        };
        match result {
            Ok(()) => {}
            Err(ClientError::SessionOver { .. } | ClientError::Fenced { .. }) => {
                sim::tell(|| format!("{name}: the session is over"));
                turn.set(0);
            }
            // It may have happened or not, or happen yet: the history knows it as an operation that never ended.
            Err(error @ (ClientError::TimedOut { .. } | ClientError::NoSpace { .. })) => {
                sim::tell(|| format!("{name}: {error}"));
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
}
