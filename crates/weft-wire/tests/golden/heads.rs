//! Heads with fixed bytes: frames, the data path, requests among targets, and the numbers of kinds and
//! statuses.

use crate::samples::{blocks, drive, objects, version};
use crate::{Case, Form, case, check, covers, variants};
use weft_types::{
    BlockRange, ChunkIndex, Epoch, Generation, GroupId, MapVersion, SessionId, SessionSlot, TargetId,
    Version, VolumeId,
};
use weft_wire::data::{
    Content, DataRequest, DigestsAnswer, Extent, PeerRequest, Purpose, ReadAnswer, Scope, Verdict,
    WatermarkNote, WriteAnswer,
};
use weft_wire::frame::{ENVELOPE_BYTES, Envelope, FLAG_ANSWER, FLAG_ONE_WAY};
use weft_wire::listing::{ListAnswer, ListRequest};
use weft_wire::renewal::{Grant, Renewal};
use weft_wire::{DecodeError, Kind, PROTOCOL, PROTOCOL_OLDEST, Status};

variants!(Kind {
    Hello,
    Welcome,
    Read,
    Versions,
    Write,
    WriteZeroes,
    Settle,
    Watermark,
    AdoptEntry,
    List,
    Vouch,
    Digests,
    Marks,
    Entries,
    Verify,
    AskShard,
    AskPeer,
    Control,
    Manage,
    Renew,
    Api,
});
variants!(Status {
    Ok,
    NotServing,
    StaleEpoch,
    UnknownEpoch,
    StaleGeneration,
    SessionOver,
    NoSpace,
    Invalid,
    DriveFailed,
    VersionAhead,
    DamagedOnTheWay,
    NotFound,
    Refused,
    Failed,
    NotReady,
    Unsupported,
});
variants!(Purpose { Client, Repair, Reserve });
variants!(Verdict { Applied, Superseded });
variants!(Content { Zero, Data, Damaged });

#[test]
fn frames() {
    let frame = |(name, kind, status, flags): (&str, Kind, Status, u16)| {
        let envelope = Envelope {
            kind: kind as u16,
            status: status as u16,
            request: 0x0000_0445_0000_0007,
            head_len: 3,
            body_len: 4096,
            flags,
        };
        let encode = |envelope: &Envelope| {
            let mut bytes = Vec::new();
            envelope.encode(b"abc", &mut bytes);
            bytes
        };
        let decode = |bytes: &[u8]| -> Result<Envelope, DecodeError> {
            let (fixed, head) = bytes.split_first_chunk::<ENVELOPE_BYTES>().expect("it is longer");
            Envelope::verify(fixed, head)?;
            Envelope::decode(fixed)
        };
        case(name, envelope, encode, decode)
    };
    let cases: Vec<Case> = [
        ("request", Kind::Write, Status::Ok, 0),
        ("answer", Kind::Write, Status::NotServing, FLAG_ANSWER),
        ("one-way", Kind::Watermark, Status::Ok, FLAG_ONE_WAY),
    ]
    .into_iter()
    .map(frame)
    .collect();
    check("frame.txt", Form::Hex, &cases);
}

fn data_request(purpose: Purpose) -> DataRequest {
    DataRequest {
        drive: drive(1),
        group: GroupId(11),
        epoch: Epoch(7),
        generation: Generation(3),
        session: SessionId(30),
        watermark: version(0x00a1_a2a3_a4a5),
        object: objects()[0],
        range: blocks(),
        version: version(0x00b1_b2b3_b4b5),
        purpose,
        slot: SessionSlot(0x1234),
        scope: Scope::default(),
    }
}

fn scope() -> Scope {
    Scope { column: 5, cut: version(0x00d1_d2d3_d4d5), bound: version(0x00e1_e2e3_e4e5) }
}

fn data_case(protocol: u16, name: &str, request: DataRequest, crcs: Vec<u32>) -> Case {
    let encode = move |(request, crcs): &(DataRequest, Vec<u32>)| request.encode(protocol, crcs);
    case(name, (request, crcs), encode, move |bytes| DataRequest::decode(protocol, bytes))
}

#[test]
fn data_requests() {
    let read = DataRequest { version: Version::ZERO, ..data_request(Purpose::Client) };
    let write = data_request(Purpose::Client);
    let settle = data_request(Purpose::Repair);
    let reserve = data_request(Purpose::Reserve);
    covers([&read, &write, &reserve, &settle].map(|request| &request.purpose));
    let crcs = || vec![0x0102_0304, 0x0506_0708];
    let inode = DataRequest { object: objects()[1], ..read };
    let cases = [
        data_case(1, "read or versions", read, vec![]),
        data_case(1, "write", write, crcs()),
        data_case(1, "write zeroes", write, vec![]),
        data_case(1, "settle", settle, vec![]),
        data_case(1, "of an inode's object", inode, vec![]),
        data_case(2, "write from the reserve, protocol 2", reserve, crcs()),
        data_case(2, "read or versions, protocol 2", read, vec![]),
        data_case(2, "write, protocol 2", write, crcs()),
        data_case(2, "read with a scope, protocol 2", DataRequest { scope: scope(), ..read }, vec![]),
        data_case(2, "write with a scope, protocol 2", DataRequest { scope: scope(), ..write }, crcs()),
    ];
    check("data-request.txt", Form::Hex, &cases);
}

#[test]
fn lists() {
    let inode = objects()[1];
    let from = DataRequest { object: inode, version: Version::ZERO, ..data_request(Purpose::Client) };
    let request = ListRequest { from, last: inode };
    let request_of = |protocol, name| {
        let encode = move |request: &ListRequest| request.encode(protocol);
        case(name, request, encode, move |bytes| ListRequest::decode(protocol, bytes))
    };
    let runs = vec![(inode, BlockRange::new(0, 128)), (inode, BlockRange::new(256, 384))];
    let answer = ListAnswer { runs, next: Some((inode, 1024)) };
    let cases = [
        request_of(1, "list"),
        request_of(3, "list, protocol 3"),
        case("what holds data", answer, ListAnswer::encode, ListAnswer::decode),
        case("nothing holds data", ListAnswer::default(), ListAnswer::encode, ListAnswer::decode),
    ];
    check("list.txt", Form::Hex, &cases);
}

#[test]
fn how_many_blocks_a_head_names_is_seen_without_reading_it() {
    let request = data_request(Purpose::Client);
    for protocol in [1, 2] {
        let head = request.encode(protocol, &[1, 2, 3]);
        assert_eq!(DataRequest::peek_blocks(&head), request.range.count, "protocol {protocol}");
        assert_eq!(DataRequest::peek_blocks(&head[..76]), 0);
    }
}

#[test]
fn answers() {
    let verdicts = vec![
        (BlockRange::new(260, 1), Verdict::Applied),
        (BlockRange::new(261, 1), Verdict::Superseded(version(0x00c1_c2c3_c4c5))),
    ];
    covers(verdicts.iter().map(|(_, verdict)| verdict));
    let write = WriteAnswer { clock: 0x00d1_d2d3_d4d5, verdicts };
    let ahead = WriteAnswer { clock: 0x00d1_d2d3_d4d5, verdicts: vec![] };
    let extent = |first, count, counter, open, content, crcs| Extent {
        range: BlockRange::new(first, count),
        version: if counter == 0 { Version::ZERO } else { version(counter) },
        open,
        content,
        crcs,
    };
    let extents = vec![
        extent(256, 2, 0, false, Content::Zero, vec![]),
        extent(258, 2, 8, true, Content::Data, vec![0x0102_0304, 0x0506_0708]),
        extent(260, 1, 9, false, Content::Damaged, vec![]),
    ];
    covers(extents.iter().map(|extent| &extent.content));
    let read = ReadAnswer { clock: 0x00e1_e2e3_e4e5, extents };
    let digests = objects().map(|object| (object, ChunkIndex(2), 0x0102_0304_0506_0708));
    let digests = DigestsAnswer { digests: digests.to_vec() };
    let cases = [
        case("write answer", write, WriteAnswer::encode, WriteAnswer::decode),
        case("version too far ahead", ahead, WriteAnswer::encode, WriteAnswer::decode),
        case("read answer", read, ReadAnswer::encode, ReadAnswer::decode),
        case("digests", digests, DigestsAnswer::encode, DigestsAnswer::decode),
    ];
    check("answer.txt", Form::Hex, &cases);
}

#[test]
fn renewals() {
    let renewal = Renewal {
        target: TargetId(2),
        incarnation: 0x0102_0304_0506_0708,
        adopted: MapVersion(9),
        commits: vec![(drive(1), 0x0a0b), (drive(2), 0x0c0d)],
        ahead: vec![(drive(1), MapVersion(10))],
    };
    let grant = Grant {
        map: MapVersion(9),
        clock_us: 1_700_000_000_000_000,
        suspects: vec![TargetId(5), TargetId(0x0102_0304)],
    };
    let joined = |grant: &Grant| {
        let (head, body) = grant.encode();
        [head, body].concat()
    };
    let split = |bytes: &[u8]| Grant::decode(&bytes[..16], &bytes[16..]);
    check(
        "renewal.txt",
        Form::Hex,
        &[
            case("renewal", renewal, Renewal::encode, Renewal::decode),
            case("grant, head and body", grant, joined, split),
        ],
    );
}

#[test]
fn watermark_notes() {
    let note = |n: u64| WatermarkNote {
        drive: drive(1),
        group: GroupId(11 + n),
        epoch: Epoch(7),
        volume: VolumeId(21),
        generation: Generation(3),
        session: SessionId(30),
        watermark: version(0x00a1_a2a3_a4a5 + n),
    };
    let encode = |notes: &Vec<WatermarkNote>| WatermarkNote::encode_all(notes);
    check(
        "watermark.txt",
        Form::Hex,
        &[case("two notes", vec![note(0), note(1)], encode, WatermarkNote::decode_all)],
    );
}

#[test]
fn peer_requests() {
    let request = |limit, is_urgent| PeerRequest {
        drive: drive(1),
        group: GroupId(11),
        epoch: Epoch(7),
        object: objects()[0],
        chunk: ChunkIndex(2),
        blocks: blocks(),
        limit,
        is_urgent,
        scope: Scope::default(),
    };
    let peer_of = |protocol, name, request: PeerRequest| {
        let encode = move |request: &PeerRequest| request.encode(protocol);
        case(name, request, encode, move |bytes| PeerRequest::decode(protocol, bytes))
    };
    let peer = |name, request| peer_of(1, name, request);
    let cases = [
        peer(
            "digests, marks or verify",
            PeerRequest { blocks: ChunkIndex(2).range(), ..request(480, false) },
        ),
        peer("entries with all data", request(1, false)),
        peer("entries hollow, urgent", request(0, true)),
        peer_of(2, "entries with all data, protocol 2", request(1, false)),
        peer_of(2, "entries with a scope, protocol 2", PeerRequest { scope: scope(), ..request(1, true) }),
    ];
    check("peer-request.txt", Form::Hex, &cases);
}

/// Numbers and names as a document of lines.
fn numbers<T>(values: &[T]) -> Case
where
    T: Numbered + std::fmt::Debug + Copy + PartialEq + 'static,
{
    covers(values);
    let text: String = values.iter().map(|value| format!("{:3} {value:?}\n", value.number())).collect();
    let values: Vec<T> = values.to_vec();
    let decode = move |bytes: &[u8]| -> Result<Vec<T>, String> {
        let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?;
        let number = |line: &str| line.split_whitespace().next().and_then(|n| n.parse().ok());
        text.lines().map(|line| number(line).and_then(T::of).ok_or_else(|| line.to_owned())).collect()
    };
    case(T::WHAT, values, move |_| text.clone().into_bytes(), decode)
}

/// What has a number on the wire.
trait Numbered: crate::Named + Sized {
    const WHAT: &'static str;
    fn number(&self) -> u16;
    fn of(number: u16) -> Option<Self>;
}

impl Numbered for Kind {
    const WHAT: &'static str = "kinds";

    fn number(&self) -> u16 {
        *self as u16
    }

    fn of(number: u16) -> Option<Kind> {
        Kind::from_u16(number)
    }
}

impl Numbered for Status {
    const WHAT: &'static str = "statuses";

    fn number(&self) -> u16 {
        *self as u16
    }

    fn of(number: u16) -> Option<Status> {
        // An unknown number is a failure; so each must be its own.
        Some(Status::from_u16(number)).filter(|status| *status as u16 == number)
    }
}

#[test]
fn kinds_and_statuses() {
    use Kind::*;
    let kinds = [
        Hello,
        Welcome,
        Read,
        Versions,
        Write,
        WriteZeroes,
        Settle,
        Watermark,
        AdoptEntry,
        List,
        Vouch,
        Digests,
        Marks,
        Entries,
        Verify,
        AskShard,
        AskPeer,
        Control,
        Manage,
        Renew,
        Api,
    ];
    let statuses: Vec<Status> = (0..u16::MAX)
        .map(Status::from_u16)
        .take_while(|s| *s != Status::Failed)
        .chain([Status::Failed, Status::NotReady, Status::Unsupported])
        .collect();
    let protocols = case(
        "protocols",
        (PROTOCOL_OLDEST, PROTOCOL),
        |(oldest, newest)| format!("{oldest} to {newest}\n").into_bytes(),
        |bytes| {
            let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?;
            let (oldest, newest) = text.trim().split_once(" to ").ok_or("no range")?;
            Ok::<_, String>((oldest.parse().unwrap_or(0), newest.parse().unwrap_or(0)))
        },
    );
    check("numbers.txt", Form::Text, &[protocols, numbers(&kinds), numbers(&statuses)]);
}
