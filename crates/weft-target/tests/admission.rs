//! Admission (R1, R2), the version rule as seen over the wire (R3, R8, R9), and fencing.

use crate::fabric;

use fabric::*;
use std::time::Duration;
use weft_rpc::Link;
use weft_rt::sim::{Crash, Sim, set_blocked};
use weft_rt::{Buf, sleep};
use weft_store::{OpenOptions, Store};
use weft_types::*;
use weft_wire::control::{TargetAnswer, TargetRequest};
use weft_wire::data::*;
use weft_wire::handshake::{Hello, PeerRole};
use weft_wire::{Kind, PROTOCOL, Status, control};

const OK: (Status, Option<Verdict>) = (Status::Ok, Some(Verdict::Applied));

#[test]
fn what_is_written_is_read_and_versions_decide() {
    Sim::new(1).block_on(async {
        let _fabric = Fabric::start(2).await;
        let (a, b) = (Client::new(1, 1), Client::new(2, 2));
        a.write_all(&[1, 2], 7, a.v(1), 0xaa).await;
        let found = a.read(2, 7).await.unwrap();
        assert_eq!((found.version, found.byte, found.open), (a.v(1), 0xaa, true));
        // A newer version of another session, then the older one again: applied, as it is in the open set.
        assert_eq!(b.write(1, 7, b.v(5), 0xbb).await, OK);
        assert_eq!(a.write(1, 7, a.v(1), 0xaa).await, OK, "it was taken once");
        assert_eq!(
            a.write(1, 7, a.v(2), 0xac).await,
            (Status::Ok, Some(Verdict::Superseded(b.v(5)))),
            "never taken here, and older"
        );
        assert_eq!(a.read(1, 7).await.unwrap().byte, 0xbb);
        // Settled spares the slow path; a watermark ends it.
        assert_eq!(b.settle(1, 7, b.v(5)).await, Status::Ok);
        assert!(!a.read(1, 7).await.unwrap().open);
        a.watermark.set(a.v(1));
        assert!(!a.read(2, 7).await.unwrap().open);
        let zero = a.read(1, 9).await.unwrap();
        assert_eq!((zero.version, zero.content, zero.open), (Version::ZERO, Content::Zero, false));
    });
}

/// A file system with one set.
fn file_system(id: u64, set: &[GroupId], like: &Volume) -> Volume {
    let files = FileSystem {
        sets: vec![set.to_vec().into()],
        shards: vec![weft_types::ListedShard::new(VolumeId(99))],
        is_spread: false,
    };
    Volume {
        id: VolumeId(id),
        name: format!("f{id}"),
        size: BlockCount(0),
        spans: vec![],
        kind: VolumeKind::Files(files),
        ..like.clone()
    }
}

#[test]
fn objects_of_files_are_those_of_a_file_system_in_a_group_of_its_sets() {
    Sim::new(31).block_on(async {
        let fabric = Fabric::start(1).await;
        fabric.change(|map| {
            let like = map.volumes[&VOLUME].clone();
            map.volumes.insert(VolumeId(30), file_system(30, &[GroupId(77), GROUP], &like));
            map.volumes.insert(VolumeId(31), file_system(31, &[GroupId(77)], &like));
        });
        fabric.push(&[1]).await;
        let a = Client::new(1, 1);
        let ask = async |kind: Kind, object: ObjectId| {
            let purpose = if kind == Kind::Settle { Purpose::Repair } else { Purpose::Client };
            let version = if kind == Kind::Read { Version::ZERO } else { a.v(1) };
            let head = DataRequest { object, ..a.head(1, BlockRange::one(0), version, purpose) };
            let data = block(7);
            let (crcs, body) = match kind {
                Kind::Write => (vec![weft_wire::crc32c(&data)], vec![Buf::from(data)]),
                _ => (vec![], vec![]),
            };
            let answer = a.call(1, kind, head.encode(PROTOCOL, &crcs), body).await.unwrap();
            (answer.status, text(&answer))
        };
        let inode = |id, inode| ObjectId::new(Owner::Inode { file_system: VolumeId(id), inode }, 0);
        for kind in [Kind::Write, Kind::Read, Kind::Settle] {
            let status = async |object| ask(kind, object).await.0;
            assert_eq!(status(inode(30, 5)).await, Status::Ok, "{kind:?}");
            assert_eq!(status(ObjectId::of_volume(VOLUME, 0)).await, Status::Ok, "{kind:?}");
            assert_eq!(status(inode(31, 5)).await, Status::NotServing, "another group's, {kind:?}");
            assert_eq!(status(inode(32, 5)).await, Status::NotServing, "nobody's, {kind:?}");
            for (object, what) in [
                (ObjectId::of_volume(VolumeId(30), 0), "is a file system"),
                (inode(VOLUME.0, 5), "is a volume of blocks"),
            ] {
                let (status, text) = ask(kind, object).await;
                assert!(status == Status::Invalid && text.contains(what), "{kind:?} {status:?} {text}");
            }
            assert_eq!(status(inode(30, 6)).await, Status::Ok, "what is kept of a pass says it too");
        }
    });
}

#[test]
fn a_refused_repair_is_remembered() {
    Sim::new(2).block_on(async {
        let _fabric = Fabric::start(2).await;
        let (a, b) = (Client::new(1, 1), Client::new(2, 2));
        assert_eq!(b.write(1, 0, b.v(9), 9).await, OK);
        let superseded = (Status::Ok, Some(Verdict::Superseded(b.v(9))));
        assert_eq!(a.write(1, 0, a.v(3), 3).await, superseded, "a client's own write leaves no entry");
        assert_eq!(a.write(1, 0, a.v(3), 3).await, superseded);
        assert_eq!(b.put(1, 0, a.v(3), 3, Purpose::Repair).await, superseded);
        assert_eq!(a.write(1, 0, a.v(3), 3).await, OK, "R9: someone is about to have seen it");
    });
}

#[test]
fn zeroes_over_a_whole_object_and_several_blocks_in_one_request() {
    Sim::new(3).block_on(async {
        let _fabric = Fabric::start(1).await;
        let a = Client::new(1, 1);
        let range = BlockRange::new(100, 200);
        let data: Vec<u8> = (0..range.count).flat_map(|i| block(i as u8)).collect();
        let crcs: Vec<u32> = data.chunks(BLOCK_SIZE).map(weft_wire::crc32c).collect();
        let head = a.head(1, range, a.v(1), Purpose::Client);
        let frame = a
            .call(1, Kind::Write, head.encode(PROTOCOL, &crcs), vec![Buf::from(data.clone())])
            .await
            .unwrap();
        assert_eq!(frame.status, Status::Ok, "{}", text(&frame));
        let read = a.head(1, range, Version::ZERO, Purpose::Client).encode(PROTOCOL, &[]);
        let frame = a.call(1, Kind::Read, read.clone(), vec![]).await.unwrap();
        assert!(frame.body[..] == data[..], "the blocks come back in order");
        let versions = a.call(1, Kind::Versions, read.clone(), vec![]).await.unwrap();
        assert!(versions.body.is_empty());
        assert_eq!(ReadAnswer::decode(&versions.head).unwrap().extents[0].version, a.v(1));
        let whole = BlockRange::new(0, limits::OBJECT_BLOCKS_MAX);
        let head = a.head(1, whole, a.v(2), Purpose::Client).encode(PROTOCOL, &[]);
        let frame = a.call(1, Kind::WriteZeroes, head, vec![]).await.unwrap();
        assert_eq!(frame.status, Status::Ok, "{}", text(&frame));
        let frame = a.call(1, Kind::Read, read, vec![]).await.unwrap();
        let extents = ReadAnswer::decode(&frame.head).unwrap().extents;
        assert!(extents.iter().all(|x| x.content == Content::Zero && x.version == a.v(2)));
    });
}

#[test]
fn what_breaks_a_rule_is_refused() {
    Sim::new(4).block_on(async {
        let _fabric = Fabric::start(1).await;
        let a = Client::new(1, 1);
        let status = |frame: Option<Answered>| frame.unwrap().status;
        let data = block(1);
        let crc = weft_wire::crc32c(&data);
        let head = a.head(1, BlockRange::one(0), a.v(1), Purpose::Client);
        let send = |head: DataRequest, crcs: &[u32], data: Vec<u8>| {
            let (a, bytes) = (a.clone(), head.encode(PROTOCOL, crcs));
            async move { status(a.call(1, Kind::Write, bytes, vec![Buf::from(data)]).await) }
        };
        assert_eq!(send(head, &[crc ^ 1], data.clone()).await, Status::DamagedOnTheWay);
        assert_eq!(send(head, &[], data.clone()).await, Status::Invalid);
        assert_eq!(send(head, &[crc], block(1)[..100].to_vec()).await, Status::Invalid);
        let versionless = DataRequest { version: Version::ZERO, ..head };
        assert_eq!(send(versionless, &[crc], data.clone()).await, Status::Invalid);
        let elsewhere = DataRequest { drive: drive(9), ..head };
        assert_eq!(send(elsewhere, &[crc], data.clone()).await, Status::NotFound);
        let system = DataRequest { session: SessionId(0), ..head };
        assert_eq!(send(system, &[crc], data.clone()).await, Status::Invalid, "only targets are the system");
        let other = DataRequest { watermark: version(1, 2), ..head };
        assert_eq!(send(other, &[crc], data.clone()).await, Status::Invalid, "another session's watermark");
        let far = Version::new(Version::COUNTER_MAX, SessionSlot(1));
        assert_eq!(
            send(DataRequest { version: far, ..head }, &[crc], data.clone()).await,
            Status::VersionAhead
        );
        let order = control::encode(&TargetRequest::Status);
        assert_eq!(status(a.call(1, Kind::Control, order, vec![]).await), Status::Refused, "no manager");
        assert_eq!(status(a.call(1, Kind::Read, vec![1, 2, 3], vec![]).await), Status::Invalid);
        assert_eq!(a.read(1, 0).await.unwrap().version, Version::ZERO, "nothing was changed by any of it");
    });
}

#[test]
fn peers_of_protocol_1_are_served_by_their_heads() {
    Sim::new(4).block_on(async {
        let _fabric = Fabric::start(1).await;
        let a = Client::new(1, 1);
        let former = Hello {
            protocol_newest: 1,
            ..Hello::new(PeerRole::Client, Some(FABRIC), "of the former release")
        };
        let link = Link::connect(&addr(1), &former).await.unwrap();
        let data = block(7);
        let write = a.head(1, BlockRange::one(0), a.v(1), Purpose::Client);
        let call = |kind, head: Vec<u8>, body| {
            let link = link.clone();
            async move { answered(link.call(kind, &head, body).await).unwrap().status }
        };
        let crcs = [weft_wire::crc32c(&data)];
        assert_eq!(call(Kind::Write, write.encode(1, &crcs), vec![Buf::from(data)]).await, Status::Ok);
        assert_eq!(a.read(1, 0).await.unwrap().byte, 7, "a peer of protocol 2 reads it");
        let read = a.head(1, BlockRange::one(0), Version::ZERO, Purpose::Client);
        assert_eq!(call(Kind::Read, read.encode(1, &[]), vec![]).await, Status::Ok);
        assert_eq!(call(Kind::Settle, write.encode(1, &[]), vec![]).await, Status::Ok);
        // The head of another protocol than the one that is spoken has another length.
        assert_eq!(call(Kind::Versions, read.encode(2, &[])[..91].to_vec(), vec![]).await, Status::Invalid);
    });
}

#[test]
fn a_cut_a_bound_or_a_column_that_cannot_be_served_is_refused() {
    Sim::new(4).block_on(async {
        let _fabric = Fabric::start(1).await;
        let a = Client::new(1, 1);
        let scopes = [
            Scope { column: 1, ..Scope::default() },
            Scope { cut: a.v(5), ..Scope::default() },
            Scope { bound: a.v(5), ..Scope::default() },
        ];
        let data = block(3);
        for scope in scopes {
            let write = DataRequest { scope, ..a.head(1, BlockRange::one(0), a.v(1), Purpose::Client) };
            let write = write.encode(PROTOCOL, &[weft_wire::crc32c(&data)]);
            let plain = DataRequest { scope, ..a.head(1, BlockRange::one(0), a.v(1), Purpose::Client) };
            let plain = plain.encode(PROTOCOL, &[]);
            for (kind, head, body) in [
                (Kind::Write, write, vec![Buf::from(data.clone())]),
                (Kind::WriteZeroes, plain.clone(), vec![]),
                (Kind::Read, plain.clone(), vec![]),
                (Kind::Versions, plain.clone(), vec![]),
                (Kind::Settle, plain, vec![]),
            ] {
                let frame = a.call(1, kind, head, body).await.unwrap();
                assert_eq!(frame.status, Status::Unsupported, "{kind:?} {scope:?}");
                assert!(text(&frame).contains("upgrade"), "{}", text(&frame));
            }
            for kind in [Kind::Digests, Kind::Entries, Kind::Verify] {
                let asked = PeerRequest { scope, ..a.chunk(1, 0) }.encode(PROTOCOL);
                let frame = a.call(1, kind, asked, vec![]).await.unwrap();
                assert_eq!(frame.status, Status::Unsupported, "{kind:?} {scope:?}");
            }
        }
        assert_eq!(a.read(1, 0).await.unwrap().version, Version::ZERO, "nothing was done");
    });
}

#[test]
fn epochs_only_rise_and_older_ones_are_refused() {
    Sim::new(5).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        a.write_all(&[1, 2], 0, a.v(1), 1).await;
        let old = fabric.entry();
        // The epoch moves on without this target being told: a newer client tells it.
        fabric.set_role(2, Role::Out);
        a.epoch.set(2);
        assert_eq!(a.write(1, 0, a.v(2), 2).await.0, Status::UnknownEpoch);
        assert_eq!(a.teach(1, &fabric.entry()).await, Status::Ok);
        assert_eq!(a.write(1, 0, a.v(2), 2).await, OK);
        a.epoch.set(1);
        let head = a.head(1, BlockRange::one(0), Version::ZERO, Purpose::Client).encode(PROTOCOL, &[]);
        let frame = a.call(1, Kind::Read, head, vec![]).await.unwrap();
        assert_eq!(frame.status, Status::StaleEpoch);
        assert_eq!(control::decode::<Group>(&frame.head).unwrap(), fabric.entry(), "the entry comes along");
        assert_eq!(a.teach(1, &old).await, Status::Ok, "an older entry is ignored");
        assert_eq!(a.write(1, 0, a.v(3), 3).await.0, Status::StaleEpoch);
        // And a crash forgets nothing of it.
        fabric.kill_target(1, Crash::PowerCut);
        fabric.start_target(1);
        eventually("target 1 serves", || fabric.is_serving(1)).await;
        assert_eq!(a.write(1, 0, a.v(3), 3).await.0, Status::StaleEpoch);
        // The one that is out serves nothing.
        fabric.push(&[2]).await;
        a.epoch.set(2);
        assert_eq!(a.write(2, 0, a.v(4), 4).await.0, Status::NotServing);
        assert_eq!(a.read(2, 0).await, Err(Status::NotServing));
    });
}

#[test]
fn an_old_entry_does_not_bring_back_a_group_that_the_drive_has_left() {
    Sim::new(6).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        a.write_all(&[1, 2], 0, a.v(1), 1).await;
        let old = fabric.entry();
        fabric.change(|map| {
            let group = map.groups.get_mut(&GROUP).unwrap();
            group.epoch = group.epoch.next();
            group.slots.retain(|s| s.drive != drive(2));
        });
        fabric.push(&[1, 2]).await;
        sleep(ms(200)).await;
        fabric.kill_target(2, Crash::Process);
        fabric.start_target(2);
        fabric.wait_serving().await;
        assert_eq!(a.teach(2, &old).await, Status::Ok);
        assert!(a.read(2, 0).await.is_err(), "the drive is empty: it must not serve zeroes for data");
    });
}

#[test]
fn fenced_clients_and_ended_sessions_stay_out_even_after_a_crash() {
    Sim::new(7).block_on(async {
        let fabric = Fabric::start(2).await;
        let (a, b, c) = (Client::new(1, 1), Client::new(2, 2), Client::new(3, 3));
        a.write_all(&[1, 2], 0, a.v(1), 1).await;
        // A newer generation that arrives with a client, before the map, waits for the map and fences nobody.
        c.generation.set(2);
        assert_eq!(c.write(1, 0, c.v(2), 2).await.0, Status::NotServing);
        a.write_all(&[1, 2], 5, a.v(3), 3).await;
        fabric.change(|map| map.volumes.get_mut(&VOLUME).unwrap().generation = Generation(2));
        fabric.push(&[1]).await;
        assert_eq!(c.write(1, 0, c.v(2), 2).await, OK);
        assert_eq!(a.write(1, 0, a.v(3), 3).await.0, Status::StaleGeneration);
        assert_eq!(a.write(2, 6, a.v(3), 3).await, OK, "this one has not heard yet");
        fabric.push(&[2]).await;
        assert_eq!(a.write(2, 0, a.v(4), 4).await.0, Status::StaleGeneration);
        b.generation.set(2);
        assert_eq!(b.write(1, 1, b.v(1), 1).await, OK);
        let end = TargetRequest::EndSessions { sessions: vec![SessionId(2)] };
        for n in [1, 2] {
            assert_eq!(fabric.command(n, &end).await, Some(TargetAnswer::Done));
        }
        assert_eq!(b.write(1, 1, b.v(2), 2).await.0, Status::SessionOver);
        for n in [1, 2] {
            fabric.kill_target(n, Crash::PowerCut);
            fabric.start_target(n);
        }
        fabric.wait_serving().await;
        for n in [1, 2] {
            assert_eq!(b.write(n, 1, b.v(2), 2).await.0, Status::SessionOver);
            assert_eq!(a.write(n, 0, a.v(4), 4).await.0, Status::StaleGeneration);
            assert_eq!(c.write(n, 3, c.v(6), 6).await, OK);
        }
    });
}

#[test]
fn a_failed_drive_serves_nothing_and_the_manager_hears_of_it() {
    Sim::new(8).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        a.write_all(&[1, 2], 0, a.v(1), 1).await;
        fabric.disks[0].set_faults(|f| f.write_error = Some(std::io::ErrorKind::Other));
        assert_eq!(a.write(1, 0, a.v(2), 2).await.0, Status::DriveFailed);
        assert_eq!(a.read(1, 0).await, Err(Status::DriveFailed));
        eventually("the manager hears", || !fabric.manager.failed.borrow().is_empty()).await;
        sleep(ms(500)).await;
        let failed = fabric.manager.failed.borrow().clone();
        assert_eq!((failed.len(), failed[0].0), (1, drive(1)), "once");
        assert!(fabric.status(1).unwrap().drives[0].failed.is_some());
        assert_eq!(a.read(2, 0).await.unwrap().byte, 1);
    });
}

/// The drive of a target has failed, and the group goes on without it: nobody has to wait for it to learn of that.
#[test]
fn a_failed_drive_that_left_a_group_keeps_nobody_from_teaching_its_target() {
    Sim::new(10).block_on(async {
        let fabric = Fabric::start(3).await;
        let a = Client::new(1, 1);
        fabric.disks[0].set_faults(|f| f.write_error = Some(std::io::ErrorKind::Other));
        assert_eq!(a.write(1, 0, a.v(2), 2).await.0, Status::DriveFailed);
        fabric.set_role(3, Role::Out);
        assert_eq!(
            a.teach(1, &fabric.entry()).await,
            Status::DriveFailed,
            "it is in-sync, as far as is known"
        );
        fabric.set_role(1, Role::Out);
        assert_eq!(a.teach(1, &fabric.entry()).await, Status::Ok);
        fabric.change(|map| {
            let group = map.groups.get_mut(&GROUP).expect("it is there");
            group.slots.retain(|slot| slot.drive != drive(1));
            group.epoch = group.epoch.next();
        });
        assert_eq!(a.teach(1, &fabric.entry()).await, Status::Ok);
    });
}

#[test]
fn a_drive_that_was_pulled_is_missed_though_nobody_asks_it_for_anything() {
    Sim::new(9).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        a.write_all(&[1, 2], 0, a.v(1), 1).await;
        fabric.disks[0].set_faults(|f| f.is_gone = true);
        eventually("the manager hears", || !fabric.manager.failed.borrow().is_empty()).await;
        let failed = fabric.manager.failed.borrow().clone();
        assert_eq!(failed, [(drive(1), "the drive is gone: the disk was pulled".to_owned())]);
        assert_eq!(a.read(1, 0).await, Err(Status::DriveFailed));
    });
}

#[test]
fn acknowledging_an_epoch_drains_what_was_admitted_before_it() {
    for seed in 0..60 {
        Sim::new(seed).block_on(async {
            let fabric = Fabric::start(1).await;
            let a = Client::new(1, 1);
            for i in 0..8 {
                a.write_all(&[1], i * 128, a.v(1), 1).await;
            }
            // A slow drive, and a block map that has to be read from it: so a write waits between its admission
            // and its first step in the store.
            fabric.kill_target(1, Crash::Process);
            let (store, _) =
                Store::open(fabric.disks[0].open().unwrap(), OpenOptions::default()).await.unwrap();
            store.close().await.unwrap();
            drop(store);
            fabric.start_target(1);
            fabric.wait_serving().await;
            fabric.disks[0].set_faults(|f| f.latency = (ms(5), ms(30)));
            let writes: Vec<_> = (0..8u32)
                .map(|i| {
                    let a = a.clone();
                    weft_rt::spawn(async move { a.write(1, i * 128, a.v(10 + u64::from(i)), 7).await })
                })
                .collect();
            sleep(ms(weft_rt::random_below(3))).await;
            fabric.change(|map| map.groups.get_mut(&GROUP).unwrap().epoch = Epoch(2));
            assert_eq!(a.teach(1, &fabric.entry()).await, Status::Ok);
            let b = Client::new(2, 2);
            b.epoch.set(2);
            let mut seen = Vec::new();
            for i in 0..8 {
                seen.push(b.read(1, i * 128).await.unwrap());
            }
            sleep(ms(200)).await;
            for (i, seen) in seen.into_iter().enumerate() {
                assert_eq!(
                    b.read(1, i as u32 * 128).await.unwrap(),
                    seen,
                    "an old write came after the acknowledgement"
                );
            }
            for write in writes {
                let done = write.await.unwrap();
                assert!(done == OK || done.0 == Status::StaleEpoch, "{done:?}");
            }
        });
    }
}

#[test]
fn a_read_that_outlives_its_stint_is_not_answered() {
    Sim::new(3).block_on(async {
        let fabric = Fabric::start(2).await;
        let (dead, live) = (Client::new(1, 1), Client::new(2, 2));
        live.write_all(&[1, 2], 0, live.v(1), 1).await;
        live.watermark.set(live.v(1));
        assert_eq!(dead.write(2, 0, dead.v(5), 5).await, OK);
        assert!(live.read(2, 0).await.unwrap().open);
        for _ in 0..2 {
            sleep(ms(500)).await;
            fabric.kill_target(2, Crash::Process);
            fabric.start_target(2);
            sleep(ms(500)).await;
            fabric.wait_serving().await;
        }
        let usual = (Duration::from_micros(5), Duration::from_micros(100));
        fabric.disks[1].set_faults(|f| f.latency = (ms(400), ms(400)));
        let c = live.clone();
        let read = weft_rt::spawn(async move { c.read(2, 0).await });
        sleep(ms(10)).await;
        fabric.disks[1].set_faults(|f| f.latency = usual);
        fabric.set_role(2, Role::Out);
        fabric.push(&[1, 2]).await;
        set_blocked(host(2), host(1), true);
        let stint = fabric.set_role(2, Role::Syncing);
        fabric.push(&[1, 2]).await;
        // The new stint has cleared the open set: what the old one held would look as if it were complete.
        assert_eq!(read.await.unwrap(), Err(Status::StaleEpoch));
        let c = live.clone();
        c.epoch.set(stint.0);
        assert_eq!(c.read(1, 0).await.unwrap().version, live.v(1));
    });
}

fn session(id: u64, slot: u16) -> Session {
    Session {
        number: 0,
        lane_slots: vec![],
        id: SessionId(id),
        slot: SessionSlot(slot),
        volume: VOLUME,
        mode: AttachMode::Shared,
        generation: Generation(1),
        client: "raw".into(),
        state: SessionState::Open,
    }
}

#[test]
fn a_listed_session_speaks_for_its_own_slot_only() {
    Sim::new(4).block_on(async {
        let fabric = Fabric::start(1).await;
        let victim = Client::new(10, 1);
        fabric.change(|map| {
            map.sessions.insert(SessionId(10), session(10, 1));
            map.sessions.insert(SessionId(11), session(11, 2));
            map.next_id = 12;
        });
        fabric.push(&[1]).await;
        assert_eq!(victim.write(1, 0, victim.v(5), 5).await, OK);
        // Session 11 would forget what session 10 has not completed: with a request, and with a note.
        let thief = Client::new(11, 1);
        thief.watermark.set(victim.v(9));
        assert_eq!(thief.read(1, 0).await, Err(Status::Invalid));
        assert_eq!(thief.write(1, 1, thief.v(6), 6).await.0, Status::Invalid);
        let note = WatermarkNote {
            drive: drive(1),
            group: GROUP,
            epoch: Epoch(1),
            volume: VOLUME,
            generation: Generation(1),
            session: thief.session,
            watermark: victim.v(9),
        };
        thief.call(1, Kind::Watermark, WatermarkNote::encode_all(&[note]), vec![]).await;
        let honest = Client::new(11, 2);
        assert!(honest.read(1, 0).await.unwrap().open, "the victim's write is still open");
        assert_eq!(honest.write(1, 1, honest.v(6), 6).await, OK);
    });
}

#[test]
fn entries_that_no_manager_made_are_refused() {
    Sim::new(5).block_on(async {
        let fabric = Fabric::start(1).await;
        fabric.change(|map| map.next_id = 100);
        fabric.push(&[1]).await;
        let a = Client::new(200, 1);
        let entry = fabric.entry();
        let slot = entry.slots[0];
        let epoch = |n| Group { epoch: Epoch(n), ..entry.clone() };
        assert_eq!(a.teach(1, &epoch(u64::MAX)).await, Status::Invalid, "no epoch could follow it");
        assert_eq!(a.teach(1, &Group { slots: vec![], ..epoch(2) }).await, Status::Invalid);
        assert_eq!(a.teach(1, &Group { slots: vec![slot, slot], ..epoch(2) }).await, Status::Invalid);
        let many = (1..=5).map(|n| Slot { drive: drive(n), ..slot }).collect();
        assert_eq!(a.teach(1, &Group { slots: many, ..epoch(2) }).await, Status::Invalid);
        let later = vec![Slot { since: Epoch(3), ..slot }];
        assert_eq!(a.teach(1, &Group { slots: later, ..epoch(2) }).await, Status::Invalid);
        let removed = Group { id: GroupId(50), ..entry.clone() };
        assert_eq!(a.teach(1, &removed).await, Status::NotFound, "its number was used, and it is gone");
        assert_eq!(a.write(1, 0, a.v(1), 1).await, OK, "nothing was adopted");
        // A group that is newer than the map, and a newer epoch, are adopted (R1).
        assert_eq!(a.teach(1, &Group { id: GroupId(150), ..entry.clone() }).await, Status::Ok);
        assert_eq!(a.teach(1, &epoch(7)).await, Status::Ok);
        a.epoch.set(7);
        assert_eq!(a.write(1, 0, a.v(2), 2).await, OK);
    });
}

#[test]
fn a_map_ends_what_it_is_too_new_to_list() {
    Sim::new(6).block_on(async {
        let fabric = Fabric::start(1).await;
        fabric.change(|map| {
            let gone = Volume { id: VolumeId(5), name: "gone".into(), ..map.volumes[&VOLUME].clone() };
            map.volumes.insert(VolumeId(5), gone);
            map.sessions.insert(SessionId(10), session(10, 1));
            map.next_id = 12;
        });
        fabric.push(&[1]).await;
        fabric.change(|map| {
            map.volumes.remove(&VolumeId(5));
        });
        fabric.push(&[1]).await;
        fabric.kill_target(1, Crash::Process);
        let (store, _) = Store::open(fabric.disks[0].open().unwrap(), OpenOptions::default()).await.unwrap();
        assert_eq!(store.session_floor(), SessionId(10), "durable: one number instead of a list");
        assert!(store.session_is_over(SessionId(9)) && !store.session_is_over(SessionId(10)));
        assert_eq!(store.generation(VOLUME), Generation(1));
    });
}

#[test]
fn a_lane_speaks_for_its_own_slot_only() {
    Sim::new(5).block_on(async {
        let fabric = Fabric::start(1).await;
        fabric.change(|map| {
            let wide = Session { lane_slots: vec![SessionSlot(7), SessionSlot(8)], ..session(10, 1) };
            map.sessions.insert(SessionId(10), wide);
            map.next_id = 12;
        });
        fabric.push(&[1]).await;
        let lanes = [1, 7, 8].map(|slot| Client::new(10, slot));
        for (lane, client) in (0..).zip(&lanes) {
            assert_eq!(client.write(1, lane, client.v(5), 5).await, OK);
        }
        let (status, _) = Client::new(10, 9).write(1, 3, Version::new(5, SessionSlot(9)), 5).await;
        assert_eq!(status, Status::Invalid, "no lane of the session has this slot");
        // A request of one lane that says what another one has completed.
        let (first, second) = (&lanes[0], &lanes[1]);
        second.watermark.set(first.v(9));
        assert_eq!(second.read(1, 0).await, Err(Status::Invalid));
        assert_eq!(second.write(1, 4, second.v(6), 6).await.0, Status::Invalid);
        second.watermark.set(second.v(5));
        assert_eq!(second.write(1, 4, second.v(6), 6).await, OK);
        assert!(!second.read(1, 1).await.unwrap().open, "its own watermark has passed it");
        assert!(second.read(1, 0).await.unwrap().open, "the write of its sibling is still open");
    });
}
