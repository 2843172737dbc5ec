//! Two managers on one store: whoever was replaced grants nothing more, whatever it still believes.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_checker::History;
use weft_client::AttachMode;
use weft_rt::sim::{self, Crash, Sim, spawn_process};
use weft_rt::{now, sleep, spawn};
use weft_sim::check::lease::LeaseCheck;
use weft_sim::check::progress;
use weft_sim::faults::{self, Guard};
use weft_sim::workload::{self, Workload};
use weft_sim::{Bed, BedShape, client_host, second_manager_host};
use weft_types::{BLOCK_SIZE, Durations, Role};

/// Virtual time within which a node that is cut off is evicted.
const EVICTED_WITHIN: Duration = Duration::from_secs(10);

const HOT: [u64; 4] = [0, 2, 150, 515];

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

async fn start() -> Rc<Bed> {
    let durations =
        Durations { lease_ms: 500, drift_per_mille: 10, session_ms: 4_000, rebuild_after_ms: 3_600_000 };
    let shape =
        BedShape { nodes: 3, drives: 1, parts: 1, targets: 1, drive_bytes: 64 << 20, copies: 2, durations };
    let bed = Bed::start_with(shape, BTreeMap::new(), true).await;
    bed.create_volume("shared", 2, 3).await;
    bed
}

/// The first manager stands still, another one takes over and evicts a node that it cannot hear; then the
/// first one goes on, and that node asks it for a lease.
fn replaced_while_it_stood_still(seed: u64) -> Result<(), String> {
    Sim::new(seed).block_on(async move {
        let bed = start().await;
        let (history, workload) = (History::default(), workload(&bed));
        let clients: Vec<_> = (0..2)
            .map(|n| {
                let name = format!("client-{}", n + 1);
                let run = workload::run(name.clone(), workload.clone(), history.clone());
                spawn_process(client_host(n), &name, run)
            })
            .collect();
        let reader = spawn_process(client_host(2), "reader", read_on(bed.clone()));
        sleep(ms(500)).await;
        let reads = LeaseCheck::start(&bed);
        // It hears of nothing: neither from the other manager nor, with a newer epoch, from the other nodes.
        for other in [bed.nodes[1].host, bed.nodes[2].host, second_manager_host()] {
            sim::set_blocked(client_host(2), other, true);
            sim::set_blocked(other, client_host(2), true);
        }
        let first = bed.manager_process().expect("it runs");
        let victim = bed.nodes[0].drives()[0];
        sim::pause(first);
        sim::set_blocked(bed.nodes[0].host, second_manager_host(), true);
        sim::set_blocked(second_manager_host(), bed.nodes[0].host, true);
        assert!(bed.start_second_manager());
        let began = now();
        let is_in = |bed: &Rc<Bed>| {
            bed.truth().groups.values().any(|g| g.slot_of(victim).is_some_and(|s| s.role != Role::Out))
        };
        while is_in(&bed) {
            assert!(began.elapsed() < EVICTED_WITHIN, "the node is not evicted");
            sleep(ms(20)).await;
        }
        sim::resume(first);
        // Longer than the node waits for the manager that it cannot hear, before it asks the first one again.
        sleep(ms(4_000)).await;
        assert!(reads.verdict()? > 100);
        faults::heal(&bed);
        sleep(ms(1_000)).await;
        clients.into_iter().chain([reader]).for_each(|c| sim::kill(c, Crash::Process));
        progress::converge(&bed, &Guard::default(), now()).await.unwrap_or_else(|wrong| panic!("{wrong}"));
        bed.scrub().await.expect("replicas are equal");
        history.check().unwrap_or_else(|violation| panic!("{violation}"));
        Ok(())
    })
}

#[test]
fn a_manager_that_was_replaced_while_it_stood_still_grants_no_lease() {
    for seed in 0..6 {
        replaced_while_it_stood_still(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// Reads one block after another, whether or not the reads before have ended: those that ask a node which
/// cannot be reached hang. Who answers is looked at, not what: reads that hang for long would keep the
/// history's check busy.
async fn read_on(bed: Rc<Bed>) {
    let volume = workload::attach(&bed.managers(), "shared", "reader", AttachMode::Shared).await;
    for block in HOT.iter().cycle() {
        let volume = volume.clone();
        spawn(async move {
            let _ = volume.read(*block * BLOCK_SIZE as u64, BLOCK_SIZE as u64).await;
        });
        sleep(ms(10)).await;
    }
}

fn workload(bed: &Rc<Bed>) -> Workload {
    Workload {
        managers: bed.managers(),
        volume: "shared".into(),
        hot_blocks: HOT.to_vec(),
        think: ms(2),
        operations: None,
        depth: 2,
    }
}
