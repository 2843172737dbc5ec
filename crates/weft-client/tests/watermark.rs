//! Watermarks reach replicas even where nothing else is sent.

use crate::fabric;

use fabric::*;
use std::time::Duration;
use weft_rt::sim::{Sim, heal_network, reset_connections, set_blocked};
use weft_rt::sleep;

/// The note about the last write before a pause is lost with its connection: it is sent again.
#[test]
fn a_lost_watermark_is_told_again() {
    Sim::new(1).block_on(async {
        let targets = start(2).await;
        let volume = attach(Duration::from_secs(30)).await;
        volume.write(0, block(1)).await.unwrap();
        set_blocked(client_host(), host(1), true);
        sleep(ms(20)).await;
        reset_connections(client_host(), host(1));
        heal_network();
        let version = targets[0].holds(0).0;
        assert!(targets[0].watermark.get() < version, "the note was to be lost");
        sleep(Duration::from_secs(2)).await;
        assert_eq!(targets[0].watermark.get(), version);
        assert_eq!(targets[1].watermark.get(), version);
    });
}
