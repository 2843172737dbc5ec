//! What is asked of a target shows in the meters of the drive, the volume and the session.

use crate::fabric;

use fabric::*;
use weft_rt::sim::Sim;
use weft_types::*;
use weft_wire::control::{TargetAnswer, TargetRequest};
use weft_wire::data::*;
use weft_wire::load::TargetLoad;
use weft_wire::{Kind, PROTOCOL, Status};

async fn load(fabric: &Fabric, n: usize) -> TargetLoad {
    match fabric.command(n, &TargetRequest::Load).await {
        Some(TargetAnswer::Load(load)) => *load,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_read_and_a_write_show_in_drive_volume_and_session() {
    Sim::new(1).block_on(async {
        let fabric = Fabric::start(2).await;
        let before = load(&fabric, 1).await;
        assert!(before.volumes.is_empty() && before.sessions.is_empty(), "{before:?}");
        let a = Client::new(1, 1);
        a.write_all(&[1, 2], 7, a.v(1), 0xaa).await;
        a.read(1, 7).await.unwrap();
        let (first, second) = (load(&fabric, 1).await, load(&fabric, 2).await);
        assert_eq!(first.incarnation, before.incarnation);
        assert_ne!(first.incarnation, second.incarnation);
        assert!(first.at_us > before.at_us);
        let block = BLOCK_SIZE as u64;

        let asked = first.drives[0].meter.since(&before.drives[0].meter);
        assert_eq!(first.drives[0].id, drive(1));
        assert_eq!((asked.reads, asked.read_bytes, asked.writes, asked.written_bytes), (1, block, 1, block));
        assert_eq!((asked.read_latency.count(), asked.write_latency.count()), (1, 1));
        assert_eq!((asked.errors, asked.in_flight), (0, 0));
        assert_eq!(second.drives[0].meter.writes, 1, "each drive has written its copy");
        assert!(first.drives[0].data_bytes_written >= block);

        let (volume, session) = (&first.volumes[0], &first.sessions[0]);
        assert_eq!((volume.id, session.id, session.volume), (VOLUME, a.session, VOLUME));
        assert_eq!(volume.meter, session.meter);
        assert_eq!((volume.meter.reads, volume.meter.read_bytes), (1, block));
        assert_eq!((volume.meter.writes, volume.meter.written_bytes), (1, block));
        let other = &second.volumes[0].meter;
        assert_eq!((other.reads, other.writes, other.written_bytes), (0, 0, 0), "the write counts once");
        assert_eq!(other.write_latency.count(), 1, "and is timed at every replica");
    });
}

#[test]
fn zeroes_and_probes_are_told_apart_and_refusals_are_nobodys() {
    Sim::new(2).block_on(async {
        let fabric = Fabric::start(1).await;
        let a = Client::new(1, 1);
        let head = a.head(1, BlockRange::new(0, 1000), a.v(1), Purpose::Client).encode(PROTOCOL, &[]);
        let frame = a.call(1, Kind::WriteZeroes, head, vec![]).await.unwrap();
        assert_eq!(frame.status, Status::Ok);
        let head = a.head(1, BlockRange::one(0), Version::ZERO, Purpose::Client).encode(PROTOCOL, &[]);
        let frame = a.call(1, Kind::Versions, head, vec![]).await.unwrap();
        assert_eq!(frame.status, Status::Ok);
        let stale = Client::new(9, 9);
        stale.epoch.set(0);
        assert_ne!(stale.write(1, 0, stale.v(2), 1).await.0, Status::Ok);
        let load = load(&fabric, 1).await;
        let meter = &load.volumes[0].meter;
        assert_eq!((meter.zeroes, meter.zeroed_bytes), (1, 1000 * BLOCK_SIZE as u64));
        assert_eq!((meter.probes, meter.reads, meter.writes, meter.errors), (1, 0, 0, 0));
        assert_eq!(meter.write_latency.count(), 1);
        let sessions: Vec<SessionId> = load.sessions.iter().map(|s| s.id).collect();
        assert_eq!(sessions, [a.session], "what is not admitted has no meter");
    });
}

#[test]
fn what_nobody_should_meet_counts_as_failed_and_what_a_newer_map_makes_good_does_not() {
    Sim::new(3).block_on(async {
        let fabric = Fabric::start(1).await;
        let a = Client::new(1, 1);
        let stale = Client::new(9, 9);
        stale.epoch.set(0);
        assert_ne!(stale.write(1, 0, stale.v(2), 1).await.0, Status::Ok);
        let before = load(&fabric, 1).await;
        assert!(before.leased, "the manager's word holds");
        assert_eq!((before.failed_requests, before.slow_requests), (0, 0));
        // A checksum that is not that of the block, and a write without a version.
        let head = a.head(1, BlockRange::one(0), a.v(1), Purpose::Client).encode(PROTOCOL, &[1]);
        let frame = a.call(1, Kind::Write, head, vec![block(7).into()]).await.unwrap();
        assert_eq!(frame.status, Status::DamagedOnTheWay);
        let head = a.head(1, BlockRange::one(0), Version::ZERO, Purpose::Client).encode(PROTOCOL, &[]);
        let frame = a.call(1, Kind::WriteZeroes, head, vec![]).await.unwrap();
        assert_eq!(frame.status, Status::Invalid);
        assert_eq!(load(&fabric, 1).await.failed_requests, 2);
    });
}
