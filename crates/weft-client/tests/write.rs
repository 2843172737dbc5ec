//! Writes that meet what is rare: lost answers, full drives, strange answers, callers who give up, wrong clocks.

use crate::fabric;

use fabric::*;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_client::ClientError;
use weft_rt::sim::Sim;
use weft_rt::sync::join_all;
use weft_rt::{Buf, now, sleep, spawn, wall_clock_us};
use weft_types::{BLOCK_SIZE, DriveId, Epoch, Version};
use weft_wire::data::{Purpose, Verdict, WriteAnswer, clock_counter};
use weft_wire::{Kind, Status};

const HOUR_US: u64 = 3_600_000_000;

fn bytes(block: u64) -> u64 {
    block * BLOCK_SIZE as u64
}

/// One replica takes a version in the answer that comes with another's newer epoch; in that epoch the other is
/// full and asked first. The version must get everywhere, or the replicas differ without an open write.
#[test]
fn a_version_that_one_replica_took_is_not_called_off_for_want_of_space() {
    Sim::new(1).block_on(async {
        let targets = start(2).await;
        let is_full = Rc::new(Cell::new(true));
        let full = is_full.clone();
        targets[0].say(move |_, kind, head| match kind {
            Kind::Write if head.range.first == 0 && head.epoch == Epoch(1) => {
                Act::AnswerAfter(ms(20), stale(&group(2, 2)))
            }
            Kind::Write if full.get() => Act::Answer(refusal(Status::NoSpace)),
            _ => Act::Serve,
        });
        let volume = attach(Duration::from_secs(60)).await;
        let v = volume.clone();
        let first = spawn(async move { v.write(bytes(0), block(7)).await });
        let v = volume.clone();
        let second = spawn(async move { v.write(bytes(1), block(8)).await });
        sleep(ms(500)).await;
        is_full.set(false);
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        assert!(second.is_ok(), "{second:?}");
        assert!(first.is_ok(), "{first:?}");
        assert_eq!(targets[0].holds(0), targets[1].holds(0));
        assert_eq!(targets[0].holds(0).1, 7);
    });
}

#[test]
fn a_write_that_every_drive_refuses_for_want_of_space_fails_at_once() {
    Sim::new(2).block_on(async {
        let targets = start(2).await;
        for target in &targets {
            target.say(|_, _, _| Act::Answer(refusal(Status::NoSpace)));
        }
        let volume = attach(Duration::from_secs(60)).await;
        let written = volume.write(0, block(1)).await;
        assert!(matches!(written, Err(ClientError::NoSpace { .. })), "{written:?}");
    });
}

/// Nobody knows what became of a write that a replica answers with nonsense: it is settled, and the watermark goes
/// on, so that later writes are not held up and readers need no slow path.
#[test]
fn a_write_with_a_strange_end_does_not_hold_the_watermark() {
    Sim::new(3).block_on(async {
        let targets = start(2).await;
        let strange = Cell::new(true);
        targets[1].say(move |_, kind, _| match kind {
            Kind::Write if strange.replace(false) => Act::Answer(refusal(Status::Invalid)),
            _ => Act::Serve,
        });
        let volume = attach(Duration::from_secs(60)).await;
        let written = volume.write(0, block(5)).await;
        assert!(matches!(written, Err(ClientError::Protocol { .. })), "{written:?}");
        let (text, second) = (written.unwrap_err().to_string(), DriveId(2));
        assert!(text.contains("target at 10.0.0.2:4800") && text.contains(&second.to_string()), "{text}");
        sleep(Duration::from_secs(2)).await;
        assert_eq!(targets[0].holds(0), targets[1].holds(0), "it is on all or on none");
        volume.write(bytes(1), block(6)).await.unwrap();
        sleep(ms(50)).await;
        for target in &targets {
            assert_eq!(target.watermark.get(), targets[0].holds(1).0);
        }
    });
}

/// Far more is written to a group that hangs than the client may keep: most of it never begins.
#[test]
fn writes_that_time_out_do_not_pile_up() {
    Sim::new(4).block_on(async {
        let targets = start(1).await;
        targets[0].say(
            |_, kind, _| {
                if kind == Kind::Write { Act::Answer(refusal(Status::NotReady)) } else { Act::Serve }
            },
        );
        let volume = attach(ms(200)).await;
        let data = Buf::from(vec![1; 1 << 20]);
        for _ in 0..30 {
            let writes = (0..8u64).map(|i| volume.write(i << 20, vec![data.clone()]));
            for written in join_all(writes).await {
                assert!(matches!(written, Err(ClientError::TimedOut { .. })), "{written:?}");
            }
        }
        let begun = targets[0].asked.borrow().len();
        assert!((64..=72).contains(&begun), "{begun} MiB of given-up writes are held");
        // They end once the group serves again, and what is written then is the newest.
        targets[0].say(|_, _, _| Act::Serve);
        sleep(Duration::from_secs(2)).await;
        volume.write(0, block(9)).await.unwrap();
        sleep(Duration::from_secs(2)).await;
        assert_eq!(targets[0].holds(0).1, 9);
        assert_eq!(targets[0].watermark.get(), targets[0].holds(0).0);
    });
}

/// A whole write that was given up is superseded everywhere by one that was acknowledged: it must not start again.
#[test]
fn a_given_up_write_is_not_started_again() {
    Sim::new(5).block_on(async {
        let targets = start(2).await;
        let serves = Rc::new(Cell::new(false));
        for target in &targets {
            let serves = serves.clone();
            target.say(move |target, kind, head| {
                let is_first = target.asked.borrow().first() == Some(&head.version);
                if kind == Kind::Write && is_first && !serves.get() {
                    return Act::Answer(refusal(Status::NotReady));
                }
                Act::Serve
            });
        }
        let volume = attach(ms(300)).await;
        assert!(matches!(volume.write(0, block(1)).await, Err(ClientError::TimedOut { .. })));
        volume.write(0, block(2)).await.unwrap();
        serves.set(true);
        sleep(Duration::from_secs(2)).await;
        for target in &targets {
            assert_eq!(target.holds(0).1, 2, "the acknowledged write was undone");
        }
        volume.write(bytes(1), block(3)).await.unwrap();
        sleep(ms(50)).await;
        assert_eq!(targets[0].watermark.get(), targets[0].holds(1).0, "the given-up write has ended");
    });
}

/// One target's clock runs two hours ahead: nobody's writes may be refused for it.
#[test]
fn a_targets_clock_that_is_far_ahead_is_not_followed() {
    for clock in [clock_counter(1_767_225_600_000_000 + 2 * HOUR_US), Version::COUNTER_MAX, u64::MAX] {
        Sim::new(6).block_on(async move {
            let targets = start(2).await;
            targets[0].clock.set(Some(clock));
            let volume = attach(Duration::from_secs(5)).await;
            for n in 0..3 {
                volume.write(0, block(n)).await.unwrap();
                volume.read(0, BLOCK_SIZE as u64).await.unwrap();
            }
        });
    }
}

#[test]
fn a_client_whose_own_clock_is_far_off_can_write() {
    for skew_us in [2 * HOUR_US as i64, -2 * HOUR_US as i64] {
        Sim::new(7).block_on(async move {
            start_with_old_manager(2).await;
            with_skewed_clock(skew_us, async {
                let volume = attach(Duration::from_secs(5)).await;
                let writes = (0..50).map(|n| volume.write(bytes(n % 7), block(n as u8)));
                for written in join_all(writes).await {
                    written.unwrap();
                }
                assert!(wall_clock_us() > 0);
            })
            .await;
        });
    }
}

/// Two targets refuse a version as too far ahead, and a third one has no lease for a while: the version is nowhere, so the
/// write begins again with another one, and does not wait until the clocks have come so far.
#[test]
fn a_version_too_far_ahead_is_given_up_although_a_target_does_not_serve() {
    Sim::new(9).block_on(async {
        let targets = start_with_old_manager(3).await;
        let from = now();
        targets[1].say(move |_, kind, _| match kind {
            Kind::Write if from.elapsed() < Duration::from_secs(1) => {
                Act::Answer(refusal(Status::NotServing))
            }
            _ => Act::Serve,
        });
        with_skewed_clock(2 * HOUR_US as i64, async {
            let volume = attach(Duration::from_secs(5)).await;
            volume.write(0, block(3)).await.unwrap();
        })
        .await;
        for target in &targets {
            assert_eq!(target.holds(0), (targets[0].holds(0).0, 3));
        }
    });
}

/// Nobody knows what became of a write on one target, and the other one would refuse a version that is far ahead: so none
/// is given out, however wrong the client's clock is.
#[test]
fn a_clock_that_is_a_day_ahead_does_not_hold_up_a_write_that_a_target_may_have_taken() {
    Sim::new(10).block_on(async {
        let targets = start(2).await;
        let from = now();
        targets[1].say(move |_, kind, _| match kind {
            Kind::Write if from.elapsed() < Duration::from_secs(1) => Act::Answer(refusal(Status::Failed)),
            _ => Act::Serve,
        });
        with_skewed_clock(24 * HOUR_US as i64, async {
            let volume = attach(Duration::from_secs(50)).await;
            volume.write(0, block(3)).await.unwrap();
        })
        .await;
        for target in &targets {
            assert_eq!(target.holds(0), (targets[0].holds(0).0, 3));
        }
    });
}

#[test]
fn a_version_beyond_every_clock_is_an_error_and_no_panic() {
    Sim::new(8).block_on(async {
        let targets = start(1).await;
        targets[0].say(|_, kind, head| match kind {
            Kind::Write if head.purpose == Purpose::Client => {
                let newest = Version::from_bits(u64::MAX);
                let verdicts = vec![(head.range, Verdict::Superseded(newest))];
                Act::Answer(weft_rpc::Answer::ok(WriteAnswer { clock: 0, verdicts }.encode(), vec![]))
            }
            _ => Act::Serve,
        });
        let volume = attach(Duration::from_secs(5)).await;
        let written = volume.write(0, block(1)).await;
        assert!(matches!(written, Err(ClientError::Protocol { .. })), "{written:?}");
        targets[0].say(|_, _, _| Act::Serve);
        volume.write(0, block(2)).await.unwrap();
    });
}
