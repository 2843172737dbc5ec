//! Sweeps of sessions that are over (R10), beside replicas that come back.

use crate::fabric;

use fabric::*;
use weft_rt::sim::Sim;
use weft_types::*;
use weft_wire::Status;
use weft_wire::control::{TargetAnswer, TargetRequest};
use weft_wire::data::*;

const OK: (Status, Option<Verdict>) = (Status::Ok, Some(Verdict::Applied));

#[test]
fn a_sweep_on_a_syncing_replica_does_not_settle_what_only_it_holds() {
    Sim::new(1).block_on(async {
        let fabric = Fabric::start(2).await;
        let (dead, live) = (Client::new(1, 1), Client::new(2, 2));
        live.write_all(&[1, 2], 0, live.v(1), 1).await;
        fabric.set_role(2, Role::Out);
        fabric.push(&[1]).await;
        let stint = fabric.set_role(2, Role::Syncing);
        fabric.push(&[1, 2]).await;
        for c in [&dead, &live] {
            c.epoch.set(stint.0);
        }
        eventually("verified", || fabric.manager.verified.borrow().contains(&(GROUP, drive(2), stint))).await;
        // The dying client's write reaches the syncing replica only.
        assert_eq!(dead.write(2, 0, dead.v(5), 5).await, OK);
        let end = TargetRequest::EndSessions { sessions: vec![dead.session] };
        let sweep = fabric.sweep_of(&[(dead.session, SessionSlot(1))]);
        for n in [1, 2] {
            assert_eq!(fabric.command(n, &end).await, Some(TargetAnswer::Done));
        }
        for n in [1, 2] {
            assert_eq!(fabric.command(n, &sweep).await, Some(TargetAnswer::Done));
        }
        let epoch = fabric.set_role(2, Role::InSync);
        fabric.push(&[1, 2]).await;
        live.epoch.set(epoch.0);
        let (one, two) = (live.read(1, 0).await.unwrap(), live.read(2, 0).await.unwrap());
        assert!(
            one == two || one.open || two.open,
            "in-sync replicas differ, nothing is open:\n{one:?}\n{two:?}"
        );
    });
}

#[test]
fn a_sweep_is_not_done_as_long_as_a_drive_that_counts_has_failed() {
    Sim::new(2).block_on(async {
        let fabric = Fabric::start(2).await;
        let (dead, live) = (Client::new(1, 1), Client::new(2, 2));
        live.write_all(&[1, 2], 0, live.v(1), 1).await;
        assert_eq!(dead.write(1, 0, dead.v(5), 5).await, OK);
        let end = TargetRequest::EndSessions { sessions: vec![dead.session] };
        for n in [1, 2] {
            assert_eq!(fabric.command(n, &end).await, Some(TargetAnswer::Done));
        }
        fabric.disks[0].set_faults(|f| f.write_error = Some(std::io::ErrorKind::Other));
        assert_eq!(live.write(1, 1, live.v(2), 2).await.0, Status::DriveFailed);
        let sweep = fabric.sweep_of(&[(dead.session, SessionSlot(1))]);
        let frame = fabric.order(1, &sweep).await.expect("it answers");
        let status = frame.status;
        assert_eq!(status, Status::NotReady, "after a restart what it holds counts again");
        // A volume that has nothing on it does not wait for it.
        fabric.change(|map| {
            let mut other = map.volumes[&VOLUME].clone();
            (other.id, other.name) = (VolumeId(2), "other".into());
            other.spans[0].groups = vec![GroupId(77)].into();
            map.volumes.insert(other.id, other);
        });
        let TargetRequest::Sweep { sessions, map, .. } = fabric.sweep_of(&[(SessionId(9), SessionSlot(9))])
        else {
            unreachable!("it is a sweep")
        };
        let of_other = TargetRequest::Sweep { sessions, volume: VolumeId(2), map };
        let frame = fabric.order(1, &of_other).await.expect("it answers");
        let text = text(&frame);
        assert!(text.contains("is not adopted yet"), "a copy of before may still be under way: {text}");
        fabric.push(&[1, 2]).await;
        assert_eq!(fabric.command(1, &of_other).await, Some(TargetAnswer::Done), "its drive has failed");
        fabric.set_role(1, Role::Out);
        fabric.push(&[1, 2]).await;
        for n in [1, 2] {
            assert_eq!(fabric.command(n, &sweep).await, Some(TargetAnswer::Done), "target {n}");
        }
    });
}
