//! A target that is stopped in order says how far its drives have come, and is not held up by a manager that is dead.

use crate::fabric;

use fabric::*;
use std::time::Duration;
use weft_rt::sim::{Sim, heal_network, set_blocked};
use weft_rt::{now, sleep, spawn};
use weft_types::*;
use weft_wire::Status;
use weft_wire::data::Verdict;

/// How long a stop may take when nobody hears it: 0.2 s for the first word, two seconds for the last, and
/// its drive's checkpoint.
const STOP_MAX: Duration = Duration::from_millis(2_700);

const OK: (Status, Option<Verdict>) = (Status::Ok, Some(Verdict::Applied));

#[test]
fn what_no_renewal_has_told_is_told_at_the_end() {
    Sim::new(1).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        // Just after a renewal, so that the next one is far away.
        let renewals = fabric.manager.renewals.get();
        eventually("a renewal", || fabric.manager.renewals.get() >= renewals + 2).await;
        for i in 0..5 {
            a.write_all(&[1, 2], 0, a.v(1 + i), i as u8).await;
        }
        let renewed = fabric.manager.renewed.borrow()[&drive(1)];
        let (heard, commit) = fabric.stop_target(1).await;
        assert!(heard && commit > renewed, "{commit} is more than {renewed}");
        let words = fabric.manager.last_words.borrow().clone();
        assert_eq!((words.len(), words.last()), (2, Some(&(TargetId(1), vec![(drive(1), commit)]))));
        assert!(words[0].1[0].1 > renewed, "said before the drive is closed");
        // What it holds when it is back is what it had said, or more.
        fabric.start_target(1);
        fabric.wait_serving().await;
        assert!(fabric.manager.renewed.borrow()[&drive(1)] >= commit);
    });
}

#[test]
fn a_dead_manager_does_not_hold_a_stop_up() {
    Sim::new(2).block_on(async {
        for is_cut_off in [false, true] {
            let fabric = Fabric::start(2).await;
            let a = Client::new(1, 1);
            a.write_all(&[1, 2], 0, a.v(1), 1).await;
            // Either it refuses connections, or nothing comes back at all.
            if is_cut_off {
                set_blocked(host(100), host(1), true);
            } else {
                fabric.stop_manager();
            }
            let began = now();
            let (heard, _) = fabric.stop_target(1).await;
            assert!(!heard && began.elapsed() < STOP_MAX, "it took {:?}", began.elapsed());
            heal_network();
            fabric.kill_target(2, weft_rt::sim::Crash::Process);
            if is_cut_off {
                fabric.stop_manager();
            }
        }
    });
}

#[test]
fn a_manager_that_is_away_for_a_moment_hears_it_all_the_same() {
    Sim::new(3).block_on(async {
        let fabric = Fabric::start(1).await;
        let a = Client::new(1, 1);
        assert_eq!(a.write(1, 0, a.v(1), 1).await, OK);
        fabric.stop_manager();
        let back = fabric.clone();
        spawn(async move {
            sleep(ms(1_000)).await;
            back.start_manager();
        });
        let (heard, commit) = fabric.stop_target(1).await;
        assert!(heard);
        assert_eq!(*fabric.manager.last_words.borrow(), [(TargetId(1), vec![(drive(1), commit)])]);
    });
}

#[test]
fn a_manager_that_knows_better_is_not_asked_again() {
    Sim::new(4).block_on(async {
        let fabric = Fabric::start(1).await;
        fabric.manager.incarnations.borrow_mut().clear();
        let began = now();
        let (heard, _) = fabric.stop_target(1).await;
        assert!(!heard && began.elapsed() < ms(500), "it took {:?}", began.elapsed());
    });
}
