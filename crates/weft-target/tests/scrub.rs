//! What one leader makes of what it finds: writes in flight, writes that a member missed, different data, rot, a
//! member that leaves.

use crate::fabric;

use fabric::*;
use weft_rt::sim::{Crash, Sim};
use weft_rt::sleep;
use weft_types::*;
use weft_wire::Status;
use weft_wire::control::*;
use weft_wire::data::Verdict;

const OK: (Status, Option<Verdict>) = (Status::Ok, Some(Verdict::Applied));

/// Has target 1 lead a scrub, and asks how it is getting on until it waits for nothing more.
async fn scrub(fabric: &Fabric, order: u64) -> ScrubStatus {
    loop {
        let status = ask(fabric, order).await;
        if matches!(status.state, ScrubState::Done | ScrubState::Interrupted(_)) {
            return status;
        }
        sleep(ms(10)).await;
    }
}

async fn ask(fabric: &Fabric, order: u64) -> ScrubStatus {
    let asked = ScrubOrder { order, group: GROUP, drive: drive(1), from: None, findings_seen: 0 };
    match fabric.command(1, &TargetRequest::Scrub { orders: vec![asked] }).await {
        Some(TargetAnswer::Scrubs(report)) => report.scrubs.into_iter().next().expect("it was ordered"),
        other => panic!("the answer to a scrub is {other:?}"),
    }
}

fn found(status: &ScrubStatus) -> Vec<(ScrubFindingKind, u32, u32, Vec<DriveId>)> {
    assert_eq!(status.findings_total as usize, status.findings.len());
    status.findings.iter().map(|f| (f.kind, f.range.first, f.range.count, f.drives.clone())).collect()
}

#[test]
fn a_write_in_flight_is_left_alone_and_one_that_was_missed_is_told_and_put() {
    Sim::new(1).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        a.write_all(&[1, 2], 0, a.v(1), 1).await;
        assert_eq!(a.write(1, 0, a.v(2), 2).await, OK);
        let status = scrub(&fabric, 7).await;
        assert_eq!((&status.state, status.disagreements), (&ScrubState::Done, 0));
        assert_eq!(found(&status), [], "the client may be about to go on");
        assert_eq!(a.read(2, 0).await.unwrap().byte, 1, "and nobody has finished the write for it");

        // A client that says that everything is complete, although it is not.
        a.watermark.set(a.v(2));
        a.write_all(&[1, 2], 9, a.v(3), 3).await;
        let status = scrub(&fabric, 8).await;
        assert_eq!(found(&status), [(ScrubFindingKind::Stale, 0, 1, vec![drive(2)])]);
        assert_eq!(status.disagreements, 1);
        assert_eq!(a.read(2, 0).await.unwrap().byte, 2);
        assert_eq!(found(&scrub(&fabric, 9).await), []);
    });
}

#[test]
fn a_chunk_that_only_the_other_member_holds_is_not_passed_over() {
    Sim::new(2).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        a.write_all(&[1, 2], 0, a.v(1), 1).await;
        assert_eq!(a.write(2, 15_000, a.v(2), 2).await, OK);
        a.watermark.set(a.v(2));
        a.write_all(&[1, 2], 0, a.v(3), 3).await;
        let status = scrub(&fabric, 7).await;
        assert_eq!(found(&status), [(ScrubFindingKind::Stale, 15_000, 1, vec![drive(1)])]);
        assert_eq!(a.read(1, 15_000).await.unwrap().byte, 2);
    });
}

#[test]
fn different_data_of_one_version_is_told_and_not_touched() {
    Sim::new(3).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        assert_eq!(a.write(1, 5, a.v(1), 1).await, OK);
        assert_eq!(a.write(2, 5, a.v(1), 2).await, OK);
        let status = scrub(&fabric, 7).await;
        assert_eq!(found(&status), [(ScrubFindingKind::Different, 5, 1, vec![drive(1), drive(2)])]);
        assert_eq!((a.read(1, 5).await.unwrap().byte, a.read(2, 5).await.unwrap().byte), (1, 2));
    });
}

#[test]
fn a_scrub_waits_for_a_silent_member_and_ends_when_the_membership_changes() {
    Sim::new(4).block_on(async {
        let fabric = Fabric::start(3).await;
        let a = Client::new(1, 1);
        for i in 0..20 {
            a.write_all(&[1, 2, 3], i * 200, a.v(1 + u64::from(i)), 1).await;
        }
        fabric.kill_target(3, Crash::Process);
        ask(&fabric, 7).await;
        sleep(ms(3000)).await;
        let waiting = ask(&fabric, 7).await;
        assert!(matches!(waiting.state, ScrubState::Waiting(_)), "{waiting:?}");
        fabric.set_role(3, Role::Out);
        fabric.push(&[1, 2]).await;
        let ended = scrub(&fabric, 7).await;
        assert!(matches!(ended.state, ScrubState::Interrupted(_)), "{ended:?}");
        let again = scrub(&fabric, 8).await;
        assert_eq!((again.state, again.members.len(), again.chunks_done), (ScrubState::Done, 2, 20));
        assert_eq!(again.blocks_read, 40, "both members have read each block");
        // An order that is not named any more is forgotten.
        let none = fabric.command(1, &TargetRequest::Scrub { orders: vec![] }).await;
        assert_eq!(none, Some(TargetAnswer::Scrubs(ScrubReport::default())));
    });
}
