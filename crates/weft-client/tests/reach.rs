//! A client that cannot reach a node says so to the manager, in its log and in its errors; a slow drive
//! is no lost path.

use crate::fabric;

use fabric::*;
use std::time::Duration;
use weft_client::ClientError;
use weft_rt::sim::{Sim, set_blocked};
use weft_rt::{Buf, now, sleep, spawn};
use weft_types::{BLOCK_SIZE, TargetId};
use weft_wire::Kind;

fn block(value: u8) -> Vec<Buf> {
    vec![Buf::from(vec![value; BLOCK_SIZE])]
}

/// The nodes that the last word names as silent; none if nothing was said.
fn missed() -> Option<Vec<TargetId>> {
    words().last().map(|(silent, _)| silent.iter().map(|age| age.target).collect())
}

#[test]
fn a_node_that_does_not_answer_is_reported_at_once_again_and_again_and_when_it_answers() {
    for (to, from) in [(true, true), (true, false), (false, true)] {
        Sim::new(1).block_on(async move {
            let _targets = start(3).await;
            let volume = attach(Duration::from_secs(60)).await;
            volume.write(0, block(1)).await.unwrap();
            sleep(ms(100)).await;
            words();
            set_blocked(client_host(), host(1), to);
            set_blocked(host(1), client_host(), from);
            let cut = now();
            let writer = volume.clone();
            let write = spawn(async move { writer.write(0, block(2)).await });
            let mut said = Vec::new();
            while said.is_empty() {
                sleep(ms(10)).await;
                said = words();
            }
            assert!((ms(1_000)..ms(1_600)).contains(&cut.elapsed()), "{:?}", cut.elapsed());
            let (silent, heard) = &said[0];
            assert_eq!(silent.iter().map(|s| s.target).collect::<Vec<_>>(), [TargetId(1)]);
            assert!((1_000..1_500).contains(&silent[0].ms), "{silent:?}");
            assert_eq!(heard.len(), 3, "it has heard of the first one before");
            sleep(ms(8_000)).await;
            let said = words();
            assert!((7..=9).contains(&said.len()), "twice per lease, not more: {}", said.len());
            for (silent, heard) in &said {
                let ages = |n| heard.iter().find(|age| age.target == TargetId(n)).map(|age| age.ms);
                assert_eq!(silent.len(), 1);
                assert!(
                    ages(2).is_some_and(|ms| ms <= 1_500) && ages(3).is_some_and(|ms| ms <= 1_500),
                    "{heard:?}"
                );
            }
            set_blocked(client_host(), host(1), false);
            set_blocked(host(1), client_host(), false);
            assert!(write.await.expect("it runs").is_ok());
            sleep(ms(1_500)).await;
            assert_eq!(missed(), Some(vec![]), "it is told that the node answers");
            sleep(ms(4_000)).await;
            assert!(words().len() <= 1, "there is nothing more to say");
        });
    }
}

#[test]
fn a_slow_drive_is_no_lost_path() {
    Sim::new(2).block_on(async {
        let targets = start(2).await;
        let volume = attach(Duration::from_secs(60)).await;
        volume.write(0, block(1)).await.unwrap();
        targets[0]
            .say(|_, kind, _| if kind == Kind::Write { Act::ServeAfter(ms(20_000)) } else { Act::Serve });
        words();
        volume.write(0, block(2)).await.unwrap();
        assert!(words().iter().all(|(silent, _)| silent.is_empty()));
    });
}

#[test]
fn the_error_says_who_has_not_answered() {
    Sim::new(3).block_on(async {
        let _targets = start(2).await;
        let volume = attach(Duration::from_secs(8)).await;
        volume.write(0, block(1)).await.unwrap();
        set_blocked(client_host(), host(2), true);
        let written = volume.write(0, block(2)).await;
        let Err(error @ ClientError::TimedOut { .. }) = written else { panic!("{written:?}") };
        let text = error.to_string();
        assert!(text.contains("node 'n2' (10.0.0.2:4800) has not answered this client for 7."), "{text}");
        assert!(!text.contains("n1") && !text.contains("no replica"), "{text}");
    });
}

#[test]
fn reads_do_not_ask_a_silent_node_again_and_again() {
    Sim::new(4).block_on(async {
        let _targets = start(2).await;
        let volume = attach(Duration::from_secs(60)).await;
        volume.write(0, block(1)).await.unwrap();
        sleep(ms(10)).await;
        set_blocked(client_host(), host(1), true);
        let begun = now();
        while begun.elapsed() < ms(4_000) {
            volume.read(0, BLOCK_SIZE as u64).await.unwrap();
            sleep(ms(20)).await;
        }
        let from = now();
        for _ in 0..50 {
            volume.read(0, BLOCK_SIZE as u64).await.unwrap();
        }
        assert!(from.elapsed() < ms(500), "{:?} for fifty reads", from.elapsed());
    });
}
