//! A client that asks for nothing hears that another one took its volume.

use std::time::Duration;
use weft_client::{AttachMode, AttachOptions, ClientError, Fabric};
use weft_rt::sim::{Crash, Sim};
use weft_rt::sleep;
use weft_sim::{Bed, BedShape};
use weft_types::Durations;

#[test]
fn an_idle_client_hears_from_the_map_that_it_was_preempted() {
    Sim::new(1).block_on(async {
        let durations = Durations { lease_ms: 500, ..Durations::default() };
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
        bed.create_volume("own", 2, 1).await;
        let attach = async |name: &str, preempt: bool| {
            let fabric = Fabric::connect(&bed.managers(), name).await.unwrap();
            let io_timeout = Duration::from_secs(3600);
            let options =
                AttachOptions { mode: AttachMode::Exclusive, preempt, io_timeout, ..Default::default() };
            fabric.attach("own", options).await.unwrap()
        };
        let first = attach("first", false).await;
        first.read(0, 4096).await.unwrap();
        let _second = attach("second", true).await;
        sleep(Duration::from_millis(200)).await;
        // No target is left that could tell it.
        (0..2).for_each(|n| bed.kill_node(n, Crash::Process));
        assert!(matches!(first.read(0, 4096).await, Err(ClientError::Fenced { .. })));
    });
}
