//! Clients of a run: some share a volume, one after another attaches another volume for itself alone, and
//! some share a file system.

use crate::bed::speak_some_protocol;
use crate::check::sessions::SessionsCheck;
use crate::workload::{self, Blocks};
use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_checker::History;
use weft_client::{AttachMode, AttachOptions, ClientError, Fabric, FileSystem, Lane, Volume};
use weft_rt::sync::{OneshotReceiver, join_all, oneshot};
use weft_rt::{Addr, random_below, sim, sleep};
use weft_types::SessionId;

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
    /// The volume, or the file system.
    pub volume: String,
    /// How it is attached.
    pub mode: AttachMode,
    /// Whether it is a file system.
    pub of_files: bool,
    /// How they behave.
    pub habits: Habits,
    /// What they saw.
    pub history: History,
    /// The sessions that they hold.
    pub sessions: Rc<SessionsCheck>,
    /// Whether they are to come to an end.
    pub is_over: Rc<Cell<bool>>,
}

/// Who runs.
#[derive(Clone)]
pub struct Client {
    /// Its name.
    pub name: String,
    /// Its host. All processes there are its lanes, and die with it.
    pub host: IpAddr,
    /// How many lanes it has, at most.
    pub lanes: usize,
}

/// An attach, as long as its client works with it.
#[derive(Clone)]
struct Stay {
    client: Client,
    party: Party,
    /// The client's name with the session: what was given up in another attach may come later than what is
    /// called in this one.
    caller: Rc<str>,
    /// Operations that may still begin.
    turn: Rc<Cell<u64>>,
}

/// What a client has attached.
#[derive(Clone)]
enum Attached {
    Volume(Volume),
    Files(FileSystem),
}

impl Attached {
    fn session_id(&self) -> SessionId {
        match self {
            Attached::Volume(volume) => volume.session_id(),
            Attached::Files(files) => files.session_id(),
        }
    }

    fn take_lanes(&self) -> Vec<Lane> {
        match self {
            Attached::Volume(volume) => volume.take_lanes(),
            Attached::Files(files) => files.take_lanes(),
        }
    }

    async fn detach(&self) {
        match self {
            Attached::Volume(volume) => volume.detach().await,
            Attached::Files(files) => files.detach().await,
        }
    }

    /// What each lane does.
    async fn work(&self, stay: &Stay) {
        let depth = stay.party.habits.depth;
        match self {
            Attached::Volume(volume) => drop(join_all((0..depth).map(|_| one_by_one(stay, volume))).await),
            Attached::Files(files) => drop(join_all((0..depth).map(|_| one_by_one(stay, files))).await),
        }
    }
}

/// Runs a client until the party is over; then it finishes what it has begun, and sets `done`.
pub async fn run(client: Client, party: Party, done: Rc<Cell<bool>>) {
    let name = client.name.clone();
    while !party.is_over.get() {
        let Some(attached) = attach(&client, &party).await else { break };
        sim::tell(|| format!("{name} is attached"));
        // Whoever has a volume for itself gives it back, or has it taken away, after a while.
        let is_alone = party.mode == AttachMode::Exclusive;
        let held = (!is_alone).then(|| party.sessions.hold(attached.session_id(), &name));
        let turn = Rc::new(Cell::new(if is_alone { 1 + random_below(200) } else { u64::MAX }));
        let caller = format!("{name}@{}", attached.session_id()).into();
        let stay = Stay { client: client.clone(), party: party.clone(), caller, turn };
        let others =
            attached.take_lanes().into_iter().map(|lane| start_lane(&stay, lane)).collect::<Vec<_>>();
        attached.work(&stay).await;
        // A lane that stands still detaches when it goes on.
        for other in others {
            let _ = other.await;
        }
        drop(held);
        if !is_alone || random_below(2) == 0 {
            attached.detach().await;
        }
        // Whoever lost the volume does not take it back at once: each attach is a handful of new maps for everybody.
        let pause_us = if is_alone { 3_000_000 } else { 20_000 };
        sleep(Duration::from_micros(random_below(pause_us))).await;
    }
    sim::tell(|| format!("{name} has finished"));
    done.set(true);
}

/// Attaches the party's volume or file system; none if the party is over.
async fn attach(client: &Client, party: &Party) -> Option<Attached> {
    while !party.is_over.get() {
        let attempt = async {
            let fabric = Fabric::connect(&party.managers, &client.name).await?;
            let (preempt, lanes) = (party.mode == AttachMode::Exclusive, client.lanes);
            let whole_blocks = lanes > 1;
            let (mode, io_timeout) = (party.mode, party.habits.patience);
            let options = AttachOptions { mode, preempt, io_timeout, lanes, whole_blocks };
            match party.of_files {
                true => fabric.attach_file_system(&party.volume, options).await.map(Attached::Files),
                false => fabric.attach(&party.volume, options).await.map(Attached::Volume),
            }
        };
        match weft_rt::timeout(Duration::from_secs(20), attempt).await {
            Ok(Ok(attached)) => return Some(attached),
            Ok(Err(error)) => sim::tell(|| format!("attach fails: {error}")),
            Err(_) => sim::tell(|| "attach takes too long".to_owned()),
        }
        sleep(Duration::from_millis(100)).await;
    }
    None
}

/// Starts a lane, as one more process of its client's host. What is returned completes when the lane is done.
fn start_lane(stay: &Stay, lane: Lane) -> OneshotReceiver<()> {
    let (stay, (over, ended)) = (stay.clone(), oneshot());
    let (host, name) = (stay.client.host, format!("{}-lane-{}", stay.client.name, lane.number()));
    let process = sim::spawn_process(host, &name, async move {
        let opened = match stay.party.of_files {
            true => lane.open_file_system().map(Attached::Files),
            false => lane.open().map(Attached::Volume),
        };
        match opened {
            Ok(attached) => {
                attached.work(&stay).await;
                attached.detach().await;
            }
            Err(error) => sim::tell(|| format!("a lane does not open: {error}")),
        }
        over.send(());
    });
    speak_some_protocol(process);
    ended
}

/// One operation after another, until the turn or the party or the session is over.
async fn one_by_one(stay: &Stay, volume: &impl Blocks) {
    let Stay { client: Client { name, .. }, party, caller, turn } = stay;
    let (habits, history) = (&party.habits, &party.history);
    while !party.is_over.get() && turn.get() > 0 {
        turn.set(turn.get() - 1);
        sleep(Duration::from_nanos(random_below(habits.think.as_nanos() as u64 + 1))).await;
        let first = habits.hot_blocks[random_below(habits.hot_blocks.len() as u64) as usize];
        let count = 1 + random_below(4) * random_below(2);
        let result = match random_below(20) {
            0..=8 => workload::write(caller, volume, history, first, count).await,
            9 => workload::zero(caller, volume, history, first, count).await,
            _ => workload::read(caller, volume, history, first, count).await,
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
