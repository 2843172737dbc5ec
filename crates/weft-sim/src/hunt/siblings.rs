//! Targets of one node that differ: one is cut off, stands still, or is of an older process (P1 to P4).

use super::crowd;
use super::stage::Stage;
use super::stranded::{read_on, write_on};
use crate::bed::Dealing;
use crate::clients::client_host;
use crate::manager_host;
use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_api::FailureDomain;
use weft_rt::sim::{self, Crash};
use weft_rt::{random_below, sleep, timeout};

/// A block that is not read, in the same group.
const ASIDE: u64 = 1;

/// How long a write may wait for a thread that stands still: several leases.
const WRITES_GO_ON_WITHIN: Duration = Duration::from_millis(1_000);

/// What happens to a target, and not to the other one of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Siblings {
    /// It stands still.
    StandsStill,
    /// It is cut off from the manager. Of the other holders of its group the sibling alone hears the manager.
    Stranded,
    /// A drive has passed from it to its sibling, and the holder on another node has not heard of that.
    Redealt,
    /// It is of a process that was replaced, and what it said to join is late.
    JoinsLate,
}

impl Siblings {
    /// Runs it to its end.
    ///
    /// # Errors
    /// What is wrong.
    pub async fn run(self) -> Result<(), String> {
        match self {
            Siblings::StandsStill => stands_still().await,
            Siblings::Stranded => stranded().await,
            Siblings::Redealt => redealt().await,
            Siblings::JoinsLate => joins_late().await,
        }
    }
}

/// A thread stands still, and its sibling goes on. Its drives are left out, so that writes go on.
async fn stands_still() -> Result<(), String> {
    let stage = Stage::set_split(2, 2, FailureDomain::Node).await;
    let volume = stage.attach("writer").await;
    let (node, at) = stage.place_of(stage.write_set().await[0]);
    crowd::write("writer", &stage, &volume, 0, 1, false).await.map_err(|e| e.to_string())?;
    let thread = stage.bed.nodes[node].threads()[at];
    sleep(Duration::from_millis(random_below(100))).await;
    sim::pause(thread);
    let written = timeout(WRITES_GO_ON_WITHIN, crowd::write("writer", &stage, &volume, 0, 1, false)).await;
    sim::resume(thread);
    match written {
        Ok(written) => written.map_err(|e| e.to_string())?,
        Err(_) => {
            return Err(format!("a write waits for a thread that stands still: {WRITES_GO_ON_WITHIN:?}"));
        }
    }
    volume.detach().await;
    stage.finish().await
}

/// Two targets of a node and one of another have copies. The manager hears one of the two alone, and has its
/// promise: the others leave the group. The third has heard of nothing, and vouches on; the sibling does not.
async fn stranded() -> Result<(), String> {
    let stage = Stage::set_split(2, 3, FailureDomain::Device).await;
    let holders: Vec<(usize, usize)> =
        stage.write_set().await.into_iter().map(|drive| stage.place_of(drive)).collect();
    let is_twin = |place: &&(usize, usize)| holders.iter().filter(|other| other.0 == place.0).count() == 2;
    let twins: Vec<&(usize, usize)> = holders.iter().filter(is_twin).collect();
    let alone = holders.iter().find(|place| !is_twin(place)).expect("three copies on two nodes");
    let turn = random_below(2) as usize;
    let host = |place: &(usize, usize)| stage.bed.host_of(place.0, place.1);
    let (victim, sibling, other) = (host(twins[turn]), host(twins[1 - turn]), host(alone));
    let (reader, writer) = (client_host(0), client_host(1));
    let target = Rc::new(Cell::new(Some(0)));
    for (client, is_reader) in [(reader, true), (writer, false)] {
        let (stage, target) = (stage.clone(), target.clone());
        let name = if is_reader { "reader" } else { "writer" };
        sim::spawn_process(client, name, async move {
            let volume = stage.attach(name).await;
            match is_reader {
                true => read_on(stage, volume, &Cell::new(2_000)).await,
                false => write_on(stage, volume, &target).await,
            }
        });
    }
    sleep(Duration::from_millis(150 + random_below(100))).await;
    // What is written so far is known as complete: a reader who finds it open would ask everybody.
    target.set(Some(ASIDE));
    sleep(Duration::from_millis(8)).await;
    target.set(None);
    sleep(Duration::from_millis(2)).await;
    // Readers hear of nothing, and reach the victim alone.
    for unheard in [manager_host(), sibling, other] {
        stage.cut(reader, unheard, true);
    }
    for (a, b) in [(writer, victim), (victim, manager_host()), (other, manager_host()), (writer, other)] {
        stage.cut(a, b, true);
    }
    target.set(Some(0));
    sleep(Duration::from_millis(350 + random_below(250))).await;
    stage.heal();
    sleep(Duration::from_millis(50)).await;
    stage.history.check().map_err(|v| v.to_string())
}

/// One thread of a node has two of three copies, and then its process starts anew with a thread for each. The holder on
/// another node has lost the manager before that: it takes the first thread for the one that has both drives. That thread
/// loses the manager as well, and cannot speak for the drive that has passed on.
async fn redealt() -> Result<(), String> {
    let stage = Stage::set_split(2, 3, FailureDomain::Device).await;
    let holders: Vec<(usize, usize)> =
        stage.write_set().await.into_iter().map(|drive| stage.place_of(drive)).collect();
    let is_twin = |place: &&(usize, usize)| holders.iter().filter(|other| other.0 == place.0).count() == 2;
    let node = holders.iter().find(is_twin).expect("three copies on two nodes").0;
    let alone = *holders.iter().find(|place| !is_twin(place)).expect("three copies on two nodes");
    let (first, second) = (stage.bed.host_of(node, 0), stage.bed.host_of(node, 1));
    let other = stage.bed.host_of(alone.0, alone.1);
    stage.bed.dealing.set(Dealing::One);
    stage.restart(node, Duration::from_millis(1)).await;
    stage.become_whole().await?;
    let (reader, writer) = (client_host(0), client_host(1));
    let target = Rc::new(Cell::new(Some(0)));
    for (client, is_reader) in [(reader, true), (writer, false)] {
        let (stage, target) = (stage.clone(), target.clone());
        let name = if is_reader { "reader" } else { "writer" };
        sim::spawn_process(client, name, async move {
            let volume = stage.attach(name).await;
            match is_reader {
                true => read_on(stage, volume, &Cell::new(2_000)).await,
                false => write_on(stage, volume, &target).await,
            }
        });
    }
    sleep(Duration::from_millis(150 + random_below(100))).await;
    // What is written so far is known as complete: a reader who finds it open would ask everybody.
    target.set(Some(ASIDE));
    sleep(Duration::from_millis(8)).await;
    target.set(None);
    sleep(Duration::from_millis(2)).await;
    for unheard in [manager_host(), first, second] {
        stage.cut(reader, unheard, true);
    }
    stage.cut(other, manager_host(), true);
    stage.cut(writer, other, true);
    stage.bed.kill_node(node, Crash::Process);
    stage.bed.dealing.set(Dealing::OnePerDrive);
    stage.bed.start_node(node);
    // Both have joined, and the first has had a lease.
    sleep(Duration::from_millis(8 + random_below(30))).await;
    stage.cut(first, manager_host(), true);
    stage.cut(writer, first, true);
    target.set(Some(0));
    sleep(Duration::from_millis(400 + random_below(300))).await;
    stage.heal();
    sleep(Duration::from_millis(50)).await;
    stage.history.check().map_err(|v| v.to_string())
}

/// A process of two threads starts; what one of them says to join is late. The process is replaced by one of
/// a single thread, which serves all drives. Then the late word arrives.
async fn joins_late() -> Result<(), String> {
    let stage = Stage::set_split(3, 2, FailureDomain::Node).await;
    let (node, late) = (random_below(3) as usize, 1);
    let host = stage.bed.host_of(node, late);
    stage.bed.kill_node(node, Crash::Process);
    stage.bed.start_node(node);
    hold_what_follows_the_hello(host).await;
    stage.bed.kill_node(node, Crash::Process);
    let drive = stage.bed.nodes[node].drive_at(late);
    let listed = stage.bed.truth().drives[&drive].target;
    stage.bed.dealing.set(Dealing::One);
    stage.bed.start_node(node);
    // At once: later the drive holds more than what the late word says, which is then that of an older copy.
    for _ in 0..1_000 {
        if stage.bed.truth().drives[&drive].target != listed {
            break;
        }
        sleep(Duration::from_micros(50)).await;
    }
    stage.cut(host, manager_host(), false);
    sleep(Duration::from_millis(random_below(200))).await;
    stage.finish().await
}

/// Cuts the way from a host to the manager, so soon after its process has started that its hello has passed
/// and the request behind it may not have.
async fn hold_what_follows_the_hello(host: IpAddr) {
    sleep(Duration::from_micros(600 + random_below(1_000))).await;
    sim::set_blocked(host, manager_host(), true);
    sleep(Duration::from_millis(2)).await;
}
