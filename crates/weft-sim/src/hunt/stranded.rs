//! A member that is cut off from the manager and from some peers, with readers that have heard of nothing: it may
//! serve them as long as it cannot have been evicted, and not an instant longer (R1, R11, leases).

use super::actor::becomes;
use super::crowd;
use super::stage::Stage;
use crate::clients::client_host;
use crate::manager_host;
use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_client::Volume;
use weft_rt::sim::{self, Crash};
use weft_rt::{now, random_below, sleep, spawn, timeout};
use weft_types::Role;

/// A block that is not read, in the same group.
const ASIDE: u64 = 1;

/// Messages of the manager after which a member that comes back has joined, has its grant, and has had time to serve; it
/// may look for the manager a tenth of a second after it was cut off from it last.
const MESSAGES_HEARD: usize = 50;

/// What the member is cut off from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranded {
    /// The manager alone: its peers vouch for it.
    FromManager,
    /// The manager and all peers.
    FromAll,
    /// The manager; of its peers one alone vouches for it, and has not heard that it shall not.
    ByOnePeer,
    /// The manager; its one peer, which has promised not to vouch for it, starts again, joins, and then hears of nothing.
    ByForgetfulPeer,
    /// The manager, which is stopped meanwhile and started again, and is told at once that the member is gone.
    WithNewManager,
    /// Answers of the manager come late before it is cut off.
    AfterLateAnswers,
    /// It comes back, hears of its lease before the map is pushed to it, and readers still take it for a member.
    Returning,
    /// The manager and all peers, and its clock is slow, within the bound on drift.
    WithSlowClock,
    /// It was evicted while it was down, and starts again where nobody tells it.
    Restarted,
}

impl Stranded {
    /// Runs it to its end.
    ///
    /// # Errors
    /// What is wrong.
    pub async fn run(self) -> Result<(), String> {
        let copies = match self {
            Stranded::ByOnePeer => 3,
            Stranded::ByForgetfulPeer => 2,
            _ => 2 + random_below(2) as u8,
        };
        let drift_per_mille = if self == Stranded::WithSlowClock { 900 } else { 10 };
        // A new manager is found after a tenth of a second: short beside this lease.
        let lease_ms = if self == Stranded::WithNewManager { 400 } else { 100 };
        let stage = Stage::set_with(3, copies, lease_ms, drift_per_mille).await;
        let holders = stage.holders().await;
        let (victim, peers) = (holders[0], &holders[1..]);
        let (reader, writer) = (client_host(0), client_host(1));
        let (target, pause_us) = (Rc::new(Cell::new(Some(0))), Rc::new(Cell::new(2_000)));
        for (host, is_reader) in [(reader, true), (writer, false)] {
            let (stage, target, pause_us) = (stage.clone(), target.clone(), pause_us.clone());
            let name = if is_reader { "reader" } else { "writer" };
            sim::spawn_process(host, name, async move {
                let volume = stage.attach(name).await;
                match is_reader {
                    true => read_on(stage, volume, &pause_us).await,
                    false => write_on(stage, volume, &target).await,
                }
            });
        }
        // A target asks its peers every quarter of a lease, but first a quarter of a usual one after it has started.
        let settles_ms =
            if matches!(self, Stranded::FromManager | Stranded::ByForgetfulPeer) { 550 } else { 150 };
        sleep(Duration::from_millis(settles_ms + random_below(100))).await;
        let own = stage.host(victim);
        if self == Stranded::AfterLateAnswers {
            // Each answer travels for up to almost half a lease, which is as long as a target waits for it.
            for _ in 0..3 {
                sim::set_blocked(manager_host(), own, true);
                sleep(Duration::from_millis(35 + random_below(14))).await;
                sim::set_blocked(manager_host(), own, false);
                sleep(Duration::from_micros(300 + random_below(500))).await;
            }
        }
        // What is written so far is known as complete: a reader who finds it open would ask everybody. It is another
        // write that tells all, and their drives. Then nothing is under way that would be missed.
        target.set(Some(ASIDE));
        sleep(Duration::from_millis(8)).await;
        target.set(None);
        sleep(Duration::from_millis(2)).await;
        // Readers hear of nothing: neither from the manager nor, with a newer epoch, from the peers.
        stage.cut(reader, manager_host(), true);
        peers.iter().for_each(|n| stage.cut(reader, stage.host(*n), true));
        stage.cut(writer, own, true);
        stage.cut(own, manager_host(), true);
        if matches!(self, Stranded::FromManager | Stranded::ByForgetfulPeer) {
            // Nobody misses it before it has asked its peers for their word.
            sleep(Duration::from_millis(55 + random_below(40))).await;
        }
        target.set(Some(0));
        match self {
            Stranded::FromManager if random_below(2) == 0 => stage.complain_of(victim),
            Stranded::FromManager => {}
            Stranded::FromAll
            | Stranded::WithSlowClock
            | Stranded::AfterLateAnswers
            | Stranded::Returning
            | Stranded::Restarted => {
                peers.iter().for_each(|n| stage.cut(own, stage.host(*n), true));
                if random_below(2) == 0 || self == Stranded::WithSlowClock {
                    stage.complain_of(victim);
                }
            }
            Stranded::ByForgetfulPeer => {
                // Who writes only then does not wait long between tries; and what is read before says nothing.
                target.set(None);
                pause_us.set(20_000);
                stage.complain_of(victim);
                forget_promise(&stage, peers[0]).await;
                let _ = timeout(Duration::from_millis(200), becomes(&stage, victim, Role::Out)).await;
                // By then the peer looks for the manager again, so that it has a lease as soon as it knows more.
                sleep(Duration::from_millis(100)).await;
                stage.cut(stage.host(peers[0]), manager_host(), false);
                pause_us.set(2_000);
                target.set(Some(0));
            }
            Stranded::ByOnePeer => {
                stage.cut(own, stage.host(peers[0]), true);
                stage.cut(stage.host(peers[1]), manager_host(), true);
            }
            Stranded::WithNewManager => {
                peers.iter().for_each(|n| stage.cut(own, stage.host(*n), true));
                stage.bed.kill_manager();
                stage.bed.start_manager();
                stage.complain_of(victim);
            }
        }
        if self == Stranded::Restarted {
            let stage = stage.clone();
            spawn(async move { stage.restart(victim, Duration::from_millis(260)).await });
        }
        let goes_on_ms = if self == Stranded::ByForgetfulPeer { 100 } else { 350 };
        sleep(Duration::from_millis(goes_on_ms + random_below(250))).await;
        if self == Stranded::Returning {
            come_back_unheard(own).await;
        }
        stage.heal();
        sleep(Duration::from_millis(50)).await;
        stage.history.check().map_err(|v| v.to_string())
    }
}

/// A node starts again just after it has promised not to vouch for another one, which the manager has looked after in vain
/// for a quarter of a lease. It joins, and does not hear that it has a lease.
async fn forget_promise(stage: &Rc<Stage>, node: usize) {
    sleep(Duration::from_micros(28_000 + random_below(6_000))).await;
    stage.bed.kill_node(node, Crash::Process);
    // The manager tries to connect to it at once, and then again after a tenth of a second.
    sleep(Duration::from_millis(1)).await;
    sim::set_blocked(manager_host(), stage.host(node), true);
    stage.bed.start_node(node);
    sleep(Duration::from_millis(8)).await;
    // The connection, the manager's greeting, its answer.
    hear_messages(stage.host(node), 3).await;
}

/// A node finds the manager again, and the manager cannot connect to it. It hears what it asked for, one message at a
/// time: by then it has its grant, and the map is still on its way.
async fn come_back_unheard(node: IpAddr) {
    // What the manager has sent so far would arrive first.
    sim::reset_connections(node, manager_host());
    sim::set_closed(node, true);
    sim::set_blocked(node, manager_host(), false);
    hear_messages(node, MESSAGES_HEARD).await;
}

/// A node hears so many messages of the manager, one at a time on each connection.
async fn hear_messages(node: IpAddr, count: usize) {
    for _ in 0..count {
        sleep(Duration::from_micros(2_000 + random_below(2_000))).await;
        sim::set_blocked(manager_host(), node, false);
        sleep(Duration::from_micros(1)).await;
        sim::set_blocked(manager_host(), node, true);
    }
}

/// Reads again and again, whether or not the reads before have ended: those that ask an unreachable member hang.
pub(super) async fn read_on(stage: Rc<Stage>, volume: Volume, pause_us: &Cell<u64>) {
    loop {
        let (stage, volume) = (stage.clone(), volume.clone());
        spawn(async move {
            let read = crowd::read("reader", &stage, &volume, 0, 1).await;
            sim::tell(|| format!("reader: {read:?}"));
        });
        sleep(Duration::from_micros(pause_us.get() / 4 + random_below(pause_us.get()))).await;
    }
}

/// Writes again and again, while there is a block to write.
pub(super) async fn write_on(stage: Rc<Stage>, volume: Volume, target: &Cell<Option<u64>>) {
    let until = now() + Duration::from_secs(2);
    while now() < until {
        let Some(block) = target.get() else {
            sleep(Duration::from_micros(200)).await;
            continue;
        };
        let written = crowd::write("writer", &stage, &volume, block, 1, false).await;
        sim::tell(|| format!("writer: {written:?}"));
        sleep(Duration::from_micros(random_below(4_000))).await;
    }
}
