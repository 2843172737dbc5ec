//! Clocks that are set back by a day under load: of the manager, of a node, of a client, of all, with and
//! without a restart. Nothing may stall, and nothing may be lost.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_checker::History;
use weft_client::AttachMode;
use weft_rt::sim::{self, Crash, ProcessId, Sim, spawn_process};
use weft_rt::{now, sleep};
use weft_sim::workload::{self, Workload};
use weft_sim::{Bed, BedShape, manager_host};
use weft_types::Durations;

const DAY_US: i64 = 86_400_000_000;

/// Clients finish some hundred operations in this time; a stall finishes none.
const WHILE: Duration = Duration::from_secs(3);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

struct Fabric {
    bed: Rc<Bed>,
    history: History,
    clients: Vec<ProcessId>,
}

impl Fabric {
    async fn start() -> Fabric {
        let durations =
            Durations { lease_ms: 500, drift_per_mille: 10, session_ms: 4_000, rebuild_after_ms: 3_600_000 };
        let shape = BedShape {
            nodes: 3,
            drives: 1,
            parts: 1,
            targets: 1,
            drive_bytes: 64 << 20,
            copies: 2,
            durations,
        };
        let bed = Bed::start(shape).await;
        bed.create_volume("shared", 2, 2).await;
        let history = History::default();
        let mut fabric = Fabric { bed, history, clients: vec![] };
        for n in 0..2 {
            fabric.add_client(n, 0);
        }
        fabric.makes_progress("at first").await;
        fabric
    }

    fn add_client(&mut self, n: u8, skew_us: i64) {
        let workload = Workload {
            managers: self.bed.managers(),
            volume: "shared".into(),
            hot_blocks: vec![0, 2, 150, 515],
            think: ms(2),
            operations: None,
            depth: 2,
        };
        let name = format!("client-{n}");
        let run = workload::run(name.clone(), workload, self.history.clone());
        let process = spawn_process(IpAddr::from([10, 0, 2, 1 + n]), &name, run);
        sim::set_wall_skew(process, skew_us);
        self.clients.push(process);
    }

    /// Clients finish operations all the time: every block is written again and again meanwhile.
    async fn makes_progress(&self, when: &str) {
        for _ in 0..3 {
            let before = self.history.completed();
            sleep(WHILE).await;
            let done = self.history.completed() - before;
            assert!(done > 200, "{when}: {done} operations in {WHILE:?}");
        }
    }

    async fn check(self) {
        for client in &self.clients {
            sim::kill(*client, Crash::Process);
        }
        let begun = now();
        while let Err(why) = self.bed.is_whole().await {
            assert!(begun.elapsed() < Duration::from_secs(60), "not whole: {why}");
            sleep(ms(100)).await;
        }
        let volume = workload::attach(&self.bed.managers(), "shared", "reader", AttachMode::Shared).await;
        for block in self.history.blocks() {
            workload::read("reader", &volume, &self.history, block, 1).await.expect("readable");
        }
        volume.detach().await;
        self.bed.scrub().await.expect("replicas are equal");
        self.history.check().unwrap_or_else(|violation| panic!("{violation}"));
    }
}

#[test]
fn the_managers_clock_is_set_back() {
    Sim::new(1).block_on(async {
        let fabric = Fabric::start().await;
        fabric.bed.set_clock(manager_host(), -DAY_US);
        fabric.makes_progress("the manager's clock is a day behind").await;
        fabric.bed.kill_node(0, Crash::Process);
        sleep(ms(3000)).await;
        fabric.makes_progress("a node has died").await;
        fabric.bed.kill_manager();
        fabric.bed.start_manager();
        fabric.bed.start_node(0);
        fabric.makes_progress("the manager and the node are back").await;
        fabric.check().await;
    });
}

#[test]
fn a_nodes_clock_is_set_back_while_it_runs_and_before_it_starts() {
    for seed in 1..4 {
        Sim::new(seed).block_on(async {
            let fabric = Fabric::start().await;
            fabric.bed.set_clock(fabric.bed.nodes[0].host, -DAY_US);
            fabric.makes_progress("a node's clock is a day behind").await;
            fabric.bed.kill_node(0, Crash::PowerCut);
            sleep(ms(2000)).await;
            fabric.bed.start_node(0);
            sleep(ms(2000)).await;
            fabric.makes_progress("it has started with that clock").await;
            fabric.check().await;
        });
    }
}

#[test]
fn a_client_comes_whose_clock_is_a_day_behind() {
    Sim::new(1).block_on(async {
        let mut fabric = Fabric::start().await;
        for client in fabric.clients.drain(..) {
            sim::kill(client, Crash::Process);
        }
        fabric.add_client(7, -DAY_US);
        sleep(ms(2000)).await;
        fabric.makes_progress("only a client whose clock is behind").await;
        fabric.check().await;
    });
}

/// What a wrong time server does to a whole site whose power has failed.
#[test]
fn everything_starts_anew_with_clocks_a_day_behind() {
    for seed in 1..4 {
        Sim::new(seed).block_on(async {
            let mut fabric = Fabric::start().await;
            for client in fabric.clients.drain(..) {
                sim::kill(client, Crash::Process);
            }
            fabric.bed.kill_manager();
            for n in 0..3 {
                fabric.bed.kill_node(n, Crash::PowerCut);
                fabric.bed.set_clock(fabric.bed.nodes[n].host, -DAY_US);
            }
            fabric.bed.set_clock(manager_host(), -DAY_US);
            fabric.bed.start_manager();
            for n in 0..3 {
                fabric.bed.start_node(n);
            }
            fabric.add_client(7, -DAY_US);
            sleep(ms(5000)).await;
            fabric.makes_progress("all clocks are a day behind").await;
            fabric.check().await;
        });
    }
}
