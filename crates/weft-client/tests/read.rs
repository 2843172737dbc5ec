//! Reads from replicas that are slow, or do not answer.

use crate::fabric;

use fabric::*;
use std::time::Duration;
use weft_client::ClientError;
use weft_rpc::Answer;
use weft_rt::now;
use weft_rt::sim::Sim;
use weft_rt::sync::join_all;
use weft_types::{BLOCK_SIZE, BlockRange, SessionSlot, Version};
use weft_wire::Kind;
use weft_wire::data::{Content, Extent, ReadAnswer};

#[test]
fn a_replica_that_is_alone_is_waited_for() {
    Sim::new(1).block_on(async {
        let targets = start(1).await;
        let volume = attach(Duration::from_secs(30)).await;
        volume.write(0, block(7)).await.unwrap();
        targets[0].say(|_, _, _| Act::ServeAfter(Duration::from_secs(4)));
        assert_eq!(volume.read(0, BLOCK_SIZE as u64).await.unwrap()[0][0], 7);
    });
}

#[test]
fn replicas_that_are_all_slow_are_waited_for() {
    Sim::new(2).block_on(async {
        let targets = start(2).await;
        let volume = attach(Duration::from_secs(30)).await;
        volume.write(0, block(7)).await.unwrap();
        for target in &targets {
            target.say(|_, kind, _| match kind {
                Kind::Read => Act::ServeAfter(Duration::from_secs(3)),
                _ => Act::Serve,
            });
        }
        let from = now();
        assert_eq!(volume.read(0, BLOCK_SIZE as u64).await.unwrap()[0][0], 7);
        assert!(now() - from < Duration::from_secs(4), "the first request was left running");
    });
}

/// More reads than the connection has credit for, from one replica that hangs and one that does not: each is
/// answered by the other one in time, and the credit comes back with the answers.
#[test]
fn a_replica_that_hangs_does_not_hold_up_reads() {
    Sim::new(3).block_on(async {
        let targets = start(2).await;
        let volume = attach(Duration::from_secs(30)).await;
        volume.write(0, block(7)).await.unwrap();
        targets[0].say(|_, _, _| Act::ServeAfter(Duration::from_secs(20)));
        let from = now();
        for read in join_all((0..1200).map(|_| volume.read(0, BLOCK_SIZE as u64))).await {
            assert_eq!(read.unwrap()[0][0], 7);
        }
        assert!(now() - from < Duration::from_secs(5), "{:?}", now() - from);
        // The answers that nobody waits for have come in: the replica can be asked again.
        weft_rt::sleep(Duration::from_secs(60)).await;
        targets[0].say(|_, _, _| Act::Serve);
        let asked = targets[0].requests.get();
        join_all((0..100).map(|_| volume.read(0, BLOCK_SIZE as u64))).await;
        assert!(targets[0].requests.get() > asked + 20);
    });
}

/// A target of which the first block is damaged at a version that is newer than anything that was acknowledged.
fn is_damaged(target: &Target, is_open: bool) {
    let version = Version::new(target.holds(0).0.counter() + 5, SessionSlot(9));
    target.say(move |_, kind, head| match kind {
        Kind::Read | Kind::Versions => {
            let damaged = Extent {
                range: BlockRange::one(head.range.first),
                version,
                open: is_open,
                content: Content::Damaged,
                crcs: vec![],
            };
            Act::Answer(Answer::ok(ReadAnswer { clock: 0, extents: vec![damaged] }.encode(), vec![]))
        }
        _ => Act::Serve,
    });
}

/// A write was cut off when only one replica had it, and that one cannot read it: it was not complete, since the other
/// holds an older one, and that is what reads return, whichever replica they ask.
#[test]
fn a_write_that_nobody_can_read_and_not_all_hold_hides_no_older_one() {
    for is_open in [true, false] {
        Sim::new(4).block_on(async move {
            let targets = start(2).await;
            let volume = attach(Duration::from_secs(30)).await;
            volume.write(0, block(7)).await.unwrap();
            is_damaged(&targets[0], is_open);
            for _ in 0..20 {
                assert_eq!(volume.read(0, BLOCK_SIZE as u64).await.unwrap()[0][0], 7);
            }
            assert_eq!(volume.read(BLOCK_SIZE as u64, BLOCK_SIZE as u64).await.unwrap()[0][0], 0);
            // Where all hold it, it was complete.
            is_damaged(&targets[1], is_open);
            let refused = volume.read(0, BLOCK_SIZE as u64).await;
            assert!(matches!(refused, Err(ClientError::Damaged { .. })), "{refused:?}");
        });
    }
}
