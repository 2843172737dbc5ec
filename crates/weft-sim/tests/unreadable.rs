//! A block of a drive's newest batch cannot be read when the drive is opened after a power cut.

use std::rc::Rc;
use std::time::Duration;
use weft_checker::fill_block;
use weft_client::{AttachMode, Volume};
use weft_rt::sim::{Crash, Sim};
use weft_rt::{Buf, random_below, sleep};
use weft_sim::workload;
use weft_sim::{Bed, BedShape};
use weft_types::{BLOCK_SIZE, Durations};

/// The block that is written.
const BLOCK: u64 = 3;

async fn start() -> (Rc<Bed>, Volume) {
    let durations =
        Durations { lease_ms: 500, drift_per_mille: 10, session_ms: 4_000, rebuild_after_ms: 3_600_000 };
    let bed = Bed::start(BedShape {
        nodes: 2,
        drives: 1,
        parts: 1,
        targets: 1,
        drive_bytes: 64 << 20,
        copies: 2,
        durations,
    })
    .await;
    bed.create_volume("shared", 2, 1).await;
    let volume = workload::attach(&bed.managers(), "shared", "writer", AttachMode::Shared).await;
    (bed, volume)
}

async fn write(volume: &Volume, value: u64) {
    let data = vec![Buf::from(fill_block(BLOCK, value))];
    volume.write(BLOCK * BLOCK_SIZE as u64, data).await.expect("written");
}

/// Cuts the power of a node, after which a sector that holds this value cannot be read; whether it has one.
async fn cut(bed: &Bed, node: usize, value: u64) -> bool {
    bed.kill_node(node, Crash::PowerCut);
    let disk = bed.nodes[node].disks()[0].clone();
    let held = disk.touched().into_iter().find(|at| disk.peek(*at, BLOCK_SIZE) == fill_block(BLOCK, value));
    disk.set_faults(|f| f.unreadable.extend(held.map(|at| at..at + BLOCK_SIZE as u64)));
    sleep(Duration::from_micros(random_below(2_000))).await;
    bed.start_node(node);
    held.is_some()
}

async fn read(volume: &Volume) -> Vec<u8> {
    let parts = volume.read(BLOCK * BLOCK_SIZE as u64, BLOCK_SIZE as u64).await.expect("another copy has it");
    parts.iter().flat_map(|part| part.iter().copied()).collect()
}

#[test]
fn the_drive_opens_and_is_healed_from_another_copy() {
    for seed in 0..8 {
        Sim::new(seed).block_on(async move {
            let (bed, volume) = start().await;
            write(&volume, 1).await;
            sleep(Duration::from_millis(100)).await;
            write(&volume, 2).await;
            assert!(cut(&bed, (seed % 2) as usize, 2).await, "it was acknowledged");
            for _ in 0..40 {
                assert_eq!(read(&volume).await, fill_block(BLOCK, 2));
                sleep(Duration::from_millis(10)).await;
            }
            volume.detach().await;
            while bed.is_whole().await.is_err() {
                sleep(Duration::from_millis(100)).await;
            }
            bed.scrub().await.expect("replicas are equal");
            bed.scrub_itself().await.expect("what was read is healed");
        });
    }
}
