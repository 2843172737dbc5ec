//! Targets of the wire: frames, heads of the data path, and what travels as JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use weft_types::{
    BlockRange, ChunkIndex, DriveId, Epoch, Generation, Group, GroupId, MapVersion, ObjectId, PoolId, Role,
    SessionId, SessionSlot, Slot, TargetId, Version, VolumeId,
};
use weft_wire::control::{self, Join, ManagerAnswer, ManagerRequest, TargetAnswer, TargetRequest};
use weft_wire::data::{
    Content, DataRequest, DigestsAnswer, Extent, PeerRequest, Purpose, ReadAnswer, SCOPE_PROTOCOL, Scope,
    Verdict, WatermarkNote, WriteAnswer,
};
use weft_wire::frame::{ENVELOPE_BYTES, Envelope};
use weft_wire::handshake::{Hello, PeerRole, Welcome, choose_protocol};
use weft_wire::listing::{ListAnswer, ListRequest};
use weft_wire::renewal::{Grant, Renewal};
use weft_wire::{Kind, PROTOCOL, PROTOCOL_OLDEST, Status};

/// An envelope and its head.
pub(crate) fn frame(bytes: &[u8]) {
    let Some((fixed, rest)) = bytes.split_first_chunk::<ENVELOPE_BYTES>() else { return };
    let Ok(envelope) = Envelope::decode(fixed) else { return };
    Kind::from_u16(envelope.kind);
    Status::from_u16(envelope.status);
    let Some(head) = rest.get(..envelope.head_len as usize) else { return };
    let _ = Envelope::verify(fixed, head);
    let mut again = Vec::new();
    envelope.encode(head, &mut again);
    let fixed: &[u8; ENVELOPE_BYTES] = again.first_chunk().expect("an envelope");
    assert_eq!(Envelope::decode(fixed), Ok(envelope));
    assert_eq!(Envelope::verify(fixed, &again[ENVELOPE_BYTES..]), Ok(()));
}

pub(crate) fn frame_seeds() -> Vec<Vec<u8>> {
    let seed = |kind, head: &[u8], flags| {
        let envelope = Envelope {
            kind,
            status: 0,
            request: 7 << 32 | 9,
            head_len: head.len() as u32,
            body_len: 4096,
            flags,
        };
        let mut bytes = Vec::new();
        envelope.encode(head, &mut bytes);
        bytes
    };
    vec![seed(18, b"a head", 0), seed(1, b"", 1), seed(80, b"{}", 2)]
}

/// The head of a request on the data path, with checksums.
pub(crate) fn data_request(bytes: &[u8]) {
    for protocol in PROTOCOL_OLDEST..=PROTOCOL {
        let Ok((request, crcs)) = DataRequest::decode(protocol, bytes) else { continue };
        assert!(request.range.is_valid());
        request.range.by_chunk().for_each(drop);
        // What has no place in the protocol reads as nothing, so that it is never sent on.
        assert!(protocol >= SCOPE_PROTOCOL || request.scope.is_default());
        assert_eq!(DataRequest::decode(protocol, &request.encode(protocol, &crcs)), Ok((request, crcs)));
    }
}

fn version(counter: u64) -> Version {
    Version::new(counter, SessionSlot(3))
}

fn a_data_request() -> DataRequest {
    DataRequest {
        drive: DriveId::from_random(5),
        group: GroupId(7),
        epoch: Epoch(3),
        generation: Generation(1),
        session: SessionId(12),
        watermark: version(1 << 40),
        object: ObjectId::of_volume(VolumeId(4), 9),
        range: BlockRange::new(16_380, 4),
        version: version(1 << 41),
        purpose: Purpose::Client,
        slot: SessionSlot(3),
        scope: Scope::default(),
    }
}

pub(crate) fn data_request_seeds() -> Vec<Vec<u8>> {
    let request = a_data_request();
    let repair = DataRequest { purpose: Purpose::Repair, ..request };
    let scope = Scope { column: 2, cut: version(1 << 42), bound: version(1 << 43) };
    vec![
        request.encode(1, &[]),
        repair.encode(1, &[1, 2, 3, 4]),
        DataRequest { scope, ..request }.encode(2, &[]),
        DataRequest { scope, ..repair }.encode(2, &[1, 2, 3, 4]),
    ]
}

/// Answers of the data path; the first byte says which.
pub(crate) fn data_answer(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    if which % 2 == 0 {
        let Ok(answer) = WriteAnswer::decode(bytes) else { return };
        // Whoever judges them goes on from where a run ends.
        assert!(answer.verdicts.iter().all(|(range, _)| range.end() > range.first));
        assert_eq!(WriteAnswer::decode(&answer.encode()).as_ref(), Ok(&answer));
    } else {
        let Ok(answer) = ReadAnswer::decode(bytes) else { return };
        for extent in &answer.extents {
            let is_data = extent.content == Content::Data;
            assert_eq!(extent.crcs.len(), if is_data { extent.range.count as usize } else { 0 });
            assert!(extent.range.end() > extent.range.first);
        }
        assert_eq!(ReadAnswer::decode(&answer.encode()).as_ref(), Ok(&answer));
    }
}

pub(crate) fn data_answer_seeds() -> Vec<Vec<u8>> {
    let range = BlockRange::new(5, 3);
    let verdicts = vec![(range, Verdict::Applied), (BlockRange::one(8), Verdict::Superseded(version(8)))];
    let extent = |content, crcs: &[u32]| Extent {
        range,
        version: version(8),
        open: true,
        content,
        crcs: crcs.to_vec(),
    };
    let extents =
        vec![extent(Content::Data, &[1, 2, 3]), extent(Content::Zero, &[]), extent(Content::Damaged, &[])];
    let with = |which: u8, bytes: Vec<u8>| [vec![which], bytes].concat();
    vec![
        with(0, WriteAnswer { clock: 1 << 44, verdicts }.encode()),
        with(1, ReadAnswer { clock: 1 << 44, extents }.encode()),
    ]
}

/// What targets ask of each other and are told one-way; the first byte says which.
pub(crate) fn peer(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    match which % 5 {
        0 => {
            for protocol in PROTOCOL_OLDEST..=PROTOCOL {
                let Ok(request) = PeerRequest::decode(protocol, bytes) else { continue };
                assert!(request.chunk.range().is_valid());
                let (chunk, blocks) = (request.chunk.range(), request.blocks);
                assert!(blocks.is_valid() && blocks.first >= chunk.first && blocks.end() <= chunk.end());
                assert_eq!(PeerRequest::decode(protocol, &request.encode(protocol)), Ok(request));
            }
        }
        1 => {
            let Ok(answer) = DigestsAnswer::decode(bytes) else { return };
            assert!(answer.digests.iter().all(|(_, chunk, _)| chunk.range().is_valid()));
            assert_eq!(DigestsAnswer::decode(&answer.encode()).as_ref(), Ok(&answer));
        }
        2 => {
            let Ok(notes) = WatermarkNote::decode_all(bytes) else { return };
            for some in notes.chunks(WatermarkNote::NOTES_MAX) {
                assert_eq!(WatermarkNote::decode_all(&WatermarkNote::encode_all(some)).as_deref(), Ok(some));
            }
        }
        3 => {
            for protocol in PROTOCOL_OLDEST..=PROTOCOL {
                let Ok(request) = ListRequest::decode(protocol, bytes) else { continue };
                assert!(request.from.object <= request.last);
                assert_eq!(ListRequest::decode(protocol, &request.encode(protocol)), Ok(request));
            }
        }
        _ => {
            let Ok(answer) = ListAnswer::decode(bytes) else { return };
            assert!(answer.runs.is_sorted_by_key(|(object, range)| (*object, range.first)));
            assert_eq!(ListAnswer::decode(&answer.encode()).as_ref(), Ok(&answer));
        }
    }
}

pub(crate) fn peer_seeds() -> Vec<Vec<u8>> {
    let object = ObjectId::of_volume(VolumeId(4), 9);
    let request = PeerRequest {
        drive: DriveId::from_random(5),
        group: GroupId(7),
        epoch: Epoch(3),
        object,
        chunk: ChunkIndex(127),
        blocks: ChunkIndex(127).range(),
        limit: 480,
        is_urgent: true,
        scope: Scope { column: 1, cut: version(8), bound: version(9) },
    };
    let note = WatermarkNote {
        drive: DriveId::from_random(5),
        group: GroupId(7),
        epoch: Epoch(3),
        volume: VolumeId(4),
        generation: Generation(1),
        session: SessionId(12),
        watermark: version(1 << 40),
    };
    let answer =
        DigestsAnswer { digests: vec![(object, ChunkIndex(0), 1), (object, ChunkIndex(5), u64::MAX)] };
    let list = ListRequest { from: a_data_request(), last: ObjectId::of_volume(VolumeId(4), u64::MAX) };
    let with = |which: u8, bytes: Vec<u8>| [vec![which], bytes].concat();
    vec![
        with(0, request.encode(PROTOCOL)),
        with(0, PeerRequest { scope: Scope::default(), ..request }.encode(1)),
        with(1, answer.encode()),
        with(2, WatermarkNote::encode_all(&[note, note])),
        with(3, list.encode(PROTOCOL)),
        with(4, ListAnswer { runs: vec![(object, BlockRange::new(128, 256))], next: None }.encode()),
    ]
}

/// A message that is JSON: what decodes reads back.
fn json<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let message: T = control::decode(bytes).ok()?;
    assert_eq!(control::decode(&control::encode(&message)).as_ref(), Ok(&message));
    Some(message)
}

/// Messages of membership and sessions, and the handshake; the first byte says which.
pub(crate) fn control(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    match which % 10 {
        0 => {
            if let Some(request) = json::<ManagerRequest>(bytes) {
                control::encode_request(&request);
            }
            if let Ok(renewal) = Renewal::decode(bytes) {
                assert_eq!(renewal.encode(), bytes);
            }
        }
        1 => {
            json::<ManagerAnswer>(bytes);
            let (head, body) = bytes.split_at(bytes.len().min(GRANT_HEAD_BYTES));
            if let Ok(grant) = Grant::decode(head, body) {
                assert_eq!(grant.encode(), (head.to_vec(), body.to_vec()));
            }
        }
        2 => drop(json::<TargetRequest>(bytes)),
        3 => {
            if let Some(TargetAnswer::Load(load)) = json::<TargetAnswer>(bytes) {
                for drive in &load.drives {
                    let mut sum = drive.meter.clone();
                    sum.add(&drive.meter);
                    sum.since(&drive.meter);
                    sum.read_latency.quantile_us(0.99);
                }
            }
        }
        4 => drop(json::<control::Marks>(bytes)),
        5 => drop(json::<control::VouchRequest>(bytes)),
        6 => drop(json::<control::VouchAnswer>(bytes)),
        7 => {
            if let Some(group) = json::<control::Entry>(bytes) {
                assert!(group.read_set().count() <= group.write_set().count());
                group.is_degraded();
            }
        }
        8 => {
            if let Some(hello) = json::<Hello>(bytes) {
                let _ = choose_protocol(&hello);
            }
        }
        _ => drop(json::<Welcome>(bytes)),
    }
}

/// Bytes of the head of a grant.
const GRANT_HEAD_BYTES: usize = 16;

/// A drive of another fabric.
fn left_out(drive: DriveId) -> control::DriveLeftOut {
    control::DriveLeftOut {
        path: "/dev/y".into(),
        id: Some(drive),
        fabric: Some(weft_types::FabricId(3)),
        why: "w".into(),
        hint: "h".into(),
    }
}

fn vouch_of(group: GroupId, drive: DriveId) -> control::VouchRequest {
    control::VouchRequest {
        target: TargetId(1),
        asked: Some(TargetId(2)),
        groups: vec![(group, Epoch(3))],
        drives: vec![(group, vec![drive])],
    }
}

/// A renewal as a document, one in its fixed form, and the grant.
fn renewal_seeds(drive: DriveId) -> [Vec<u8>; 3] {
    let (target, adopted, ahead) = (TargetId(1), MapVersion(4), vec![(drive, MapVersion(5))]);
    let fixed = Renewal { target, incarnation: 1, adopted, commits: vec![(drive, 7)], ahead };
    let Renewal { commits, ahead, .. } = fixed.clone();
    let renew = ManagerRequest::Renew { target, incarnation: 1, adopted, commits, ahead };
    let grant = Grant { map: adopted, clock_us: 9, suspects: vec![target, TargetId(2)] };
    let (head, body) = grant.encode();
    let seed = |which: u8, parts: &[&[u8]]| [&[which][..], &parts.concat()].concat();
    [seed(0, &[&control::encode(&renew)]), seed(0, &[&fixed.encode()]), seed(1, &[&head, &body])]
}

fn join_of(drive: DriveId, group: GroupId) -> ManagerRequest {
    let report = control::DriveReport {
        id: drive,
        path: "/dev/x".into(),
        capacity: weft_types::BlockCount(1 << 20),
        map_copy: MapVersion(4),
        epochs: vec![(group, Epoch(3))],
        commit: 9,
        device: None,
    };
    ManagerRequest::Join(Join {
        node: "n".into(),
        addr: "127.0.0.1:1".into(),
        incarnation: 1,
        drives: vec![report],
        left_out: vec![left_out(drive)],
        knows_floors: true,
        target: 1,
        targets: 2,
        process: 7,
        knows_targets: true,
        knows_lanes: true,
        knows_file_systems: true,
        knows_spread: true,
        serves: [weft_types::SessionId(6)].into(),
    })
}

pub(crate) fn control_seeds() -> Vec<Vec<u8>> {
    fn with<T: Serialize>(which: u8, message: &T) -> Vec<u8> {
        [vec![which], control::encode(message)].concat()
    }
    let (drive, group) = (DriveId::from_random(5), GroupId(7));
    let object = ObjectId::of_volume(VolumeId(4), 9);
    let join = join_of(drive, group);
    let order =
        control::ScrubOrder { order: 8, group, drive, from: Some((object, ChunkIndex(3))), findings_seen: 2 };
    let unserved = vec![control::UnservedShard { file_system: VolumeId(4), shard: 1, why: "it is".into() }];
    let status =
        control::TargetStatus { serving: true, pace_percent: Some(30), unserved, ..Default::default() };
    let latency = weft_types::Latencies { buckets: vec![(10, 3), (400, 1)], sum_us: 430 };
    let meter = weft_types::MeterReading { reads: 4, read_latency: latency, ..Default::default() };
    let load = weft_wire::load::DriveLoad { id: drive, meter, data_bytes_written: 1, log_bytes_written: 2 };
    let load = weft_wire::load::TargetLoad { drives: vec![load], ..Default::default() };
    let mark =
        control::OpenMark { version: version(7), object, range: BlockRange::new(1, 2), settled: false };
    let marks = control::Marks { open: vec![mark], watermarks: vec![(SessionSlot(3), version(5))] };
    let slots = vec![Slot { drive, role: Role::Syncing, since: Epoch(2) }];
    let entry = Group { id: group, pool: PoolId(1), epoch: Epoch(3), slots, floor: Default::default() };
    let [renew, fixed, grant] = renewal_seeds(drive);
    let vouch = vouch_of(group, drive);
    vec![
        with(0, &join),
        renew,
        fixed,
        grant,
        with(0, &ManagerRequest::Verified { group, drive, stint: Epoch(3) }),
        with(1, &ManagerAnswer::Granted { map: MapVersion(4), suspects: vec![TargetId(2)], clock_us: 5 }),
        with(2, &TargetRequest::Scrub { orders: vec![order] }),
        with(
            2,
            &TargetRequest::Sweep {
                sessions: vec![(SessionId(12), SessionSlot(3))],
                volume: VolumeId(1),
                map: MapVersion(4),
            },
        ),
        with(3, &TargetAnswer::Status(status)),
        with(3, &TargetAnswer::Load(Box::new(load))),
        with(4, &marks),
        with(5, &vouch),
        with(6, &control::VouchAnswer { groups: vec![group] }),
        with(7, &entry),
        with(8, &Hello::new(PeerRole::Client, None, "c")),
        with(
            9,
            &Welcome { protocol: PROTOCOL, fabric: None, requests_max: 256, bytes_max: 1 << 20, door: None },
        ),
    ]
}
