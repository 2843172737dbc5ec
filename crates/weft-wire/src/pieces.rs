//! Pieces of the map and what a commit changed, as documents: bodies of frames, values of the manager's
//! store.
//!
//! They travel between releases and outlive them, so each says what it takes to read it:
//!
//! ```text
//!  offset  size  field
//!       0     4  magic: "WFTD"; a document of version 1, which is JSON, begins with a brace
//!       4     4  version of the form, little-endian: 2
//!       8     4  features that a reader must know, one bit each
//!      12     4  features that it may pass over, one bit each
//!      16        the document (`v2.rs`)
//! ```
//!
//! A reader refuses a version that is not its own, and a feature of the first kind that it does not know: the
//! release that reads has to be upgraded. Everything else that it does not know it passes over: fields,
//! pieces and keys of unknown kinds, features of the second kind. They are not kept, so only the manager,
//! whose documents the others follow, writes them. A release that adds something reads documents without it,
//! and writes it only when every reader knows it, or may pass over it.

mod v2;

use crate::control::check_volume;
use crate::{DecodeError, Decoder, Encoder};
use prost::Message;
use weft_types::limits::PIECES_BYTES_MAX;
use weft_types::{Delta, FabricMap, Piece};

/// How every document but those of version 1 begins.
const MAGIC: [u8; 4] = *b"WFTD";

/// The version that is written, and the newest that is read.
const VERSION: u32 = 2;

/// A feature that must be understood: volumes name windows of tables, which are pieces. To a reader that
/// passed over both, such a volume would have no groups.
const FEATURE_GROUP_TABLES: u32 = 1;

/// A feature that must be understood: sessions have several lanes. A target that passed over their slots
/// would refuse them, and a manager would leave them unswept.
const FEATURE_LANES: u32 = 2;

/// A feature that must be understood: volumes are file systems, or hold metadata of one. A reader that passed
/// over that would take the former for volumes without blocks and groups, and let anybody attach the latter.
const FEATURE_FILE_SYSTEMS: u32 = 4;

/// Features that must be understood, and are by this release.
const FEATURES_KNOWN: u32 = FEATURE_GROUP_TABLES | FEATURE_LANES | FEATURE_FILE_SYSTEMS;

/// What stands before a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The version of its form.
    pub version: u32,
    /// Features that a reader must know.
    pub must_understand: u32,
    /// Features that a reader may pass over.
    pub may_ignore: u32,
}

impl Header {
    /// Bytes of a header.
    pub const BYTES: usize = 16;

    /// What this release writes where nothing in the document has to be understood.
    pub const WRITTEN: Header = Header { version: VERSION, must_understand: 0, may_ignore: 0 };

    /// The header as bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut e = Encoder::with_capacity(Self::BYTES);
        e.bytes(&MAGIC).u32(self.version).u32(self.must_understand).u32(self.may_ignore);
        e.0.try_into().expect("a header has 16 bytes")
    }

    /// Splits a document from its header.
    ///
    /// # Errors
    /// If there is no header, or the document is of a later release that has to be understood.
    pub fn decode(bytes: &[u8]) -> Result<(Header, &[u8]), DecodeError> {
        if bytes.len() > PIECES_BYTES_MAX {
            return Err(DecodeError::Long(bytes.len() - PIECES_BYTES_MAX));
        }
        let mut d = Decoder::new(bytes);
        if d.array::<4>()? != MAGIC {
            return Err(DecodeError::Document("it does not begin as pieces of a map do".into()));
        }
        let header = Header { version: d.u32()?, must_understand: d.u32()?, may_ignore: d.u32()? };
        if header.version != VERSION {
            return Err(DecodeError::Version { found: header.version, newest: VERSION });
        }
        let unknown = header.must_understand & !FEATURES_KNOWN;
        if unknown != 0 {
            return Err(DecodeError::Features(unknown));
        }
        let left = d.left();
        Ok((header, d.bytes(left)?))
    }
}

/// What a commit changed, as a document.
pub fn encode_delta(delta: &Delta) -> Vec<u8> {
    write(&v2::Document::of_delta(delta))
}

/// Reads what a commit changed. Pieces and keys of kinds that this release does not know are left out.
///
/// # Errors
/// If the bytes are no delta, or one that only a later release understands, or it puts in a volume with a
/// number that no object can name.
pub fn decode_delta(bytes: &[u8]) -> Result<Delta, DecodeError> {
    let delta = read(bytes)?.into_delta()?;
    for piece in &delta.put {
        if let Piece::Volume(volume) = piece {
            check_volume(volume.id, volume.is_file_system())?;
        }
    }
    Ok(delta)
}

/// A whole map, or a slice of one, as a document: what leads to it from nothing.
pub fn encode_whole(map: &FabricMap) -> Vec<u8> {
    encode_delta(&map.from_nothing())
}

/// Whether bytes are pieces of a map, and not the JSON of a map.
pub fn are_pieces(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Reads a whole map, or a slice of one.
///
/// # Errors
/// If the bytes are no document of a whole map, or of one that only a later release understands.
pub fn decode_whole(bytes: &[u8]) -> Result<FabricMap, DecodeError> {
    FabricMap::led_to_from_nothing(&decode_delta(bytes)?).map_err(|e| DecodeError::Document(e.to_string()))
}

/// Pieces of the map, as a document.
pub fn encode_pieces(pieces: &[Piece]) -> Vec<u8> {
    write(&v2::Document::of_pieces(pieces))
}

/// Reads pieces of the map. Those of kinds that this release does not know are left out.
///
/// # Errors
/// If the bytes are no pieces, or some that only a later release understands.
pub fn decode_pieces(bytes: &[u8]) -> Result<Vec<Piece>, DecodeError> {
    read(bytes)?.into_pieces()
}

fn write(document: &v2::Document) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(Header::BYTES + document.encoded_len());
    let tables = if document.names_tables() { FEATURE_GROUP_TABLES } else { 0 };
    let lanes = if document.has_lanes() { FEATURE_LANES } else { 0 };
    let file_systems = if document.has_file_systems() { FEATURE_FILE_SYSTEMS } else { 0 };
    let must_understand = tables | lanes | file_systems;
    bytes.extend_from_slice(&Header { must_understand, ..Header::WRITTEN }.encode());
    document.encode(&mut bytes).expect("a vector has room");
    bytes
}

fn read(bytes: &[u8]) -> Result<v2::Document, DecodeError> {
    let (_, document) = Header::decode(bytes)?;
    v2::Document::decode(document).map_err(|e| DecodeError::Document(e.to_string()))
}

/// A field with a value that it cannot have.
fn invalid(field: &'static str, value: u64) -> DecodeError {
    DecodeError::Invalid { field, value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_types::limits::{LANES_MAX, SETS_MAX, SHARDS_MAX};
    use weft_types::{
        AttachMode, BlockCount, CapacityLevels, DeviceId, Drive, DriveId, DriveState, Durations, Epoch,
        FabricId, FileSystem, Generation, Group, GroupId, GroupTable, GroupTableId, ListedShard, MapSettings,
        MapVersion, NamedGroups, Node, NodeId, ObjectId, ObjectSpan, PieceKey, Pool, PoolId, Protection,
        Relocation, Role, ScrubRecord, Session, SessionId, SessionSlot, SessionState, Slot, Striping,
        TableWindow, Target, TargetId, Volume, VolumeId, VolumeKind, VolumeState,
    };

    fn settings() -> impl Strategy<Value = Piece> {
        let durations = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>());
        let ids = proptest::collection::vec(any::<(u64, u64)>(), 0..3);
        let wanted = proptest::collection::btree_set(any::<u64>().prop_map(GroupId), 0..4);
        (durations, any::<(u8, u8)>(), any::<Option<u64>>(), any::<u64>(), wanted, ids).prop_map(
            |(durations, (warning_percent, critical_percent), every, rests, scrub_wanted, unknown_ids)| {
                let (lease_ms, drift_per_mille, session_ms, rebuild_after_ms) = durations;
                Piece::Settings(MapSettings {
                    durations: Durations { lease_ms, drift_per_mille, session_ms, rebuild_after_ms },
                    capacity: CapacityLevels { warning_percent, critical_percent },
                    scrub_every_ms: every,
                    scrub_rests_until_ms: rests,
                    scrub_wanted,
                    unknown_ids,
                })
            },
        )
    }

    fn drive_id() -> impl Strategy<Value = DriveId> {
        // Few enough that one document names some of them twice.
        prop_oneof![(0u128..4).prop_map(DriveId), any::<u128>().prop_map(DriveId)]
    }

    fn machine() -> impl Strategy<Value = Piece> {
        use DriveState::*;
        let state = prop_oneof![Just(Active), Just(Draining), Just(Failed), Just(Destroyed)];
        prop_oneof![
            (any::<u32>(), ".{0,9}").prop_map(|(id, name)| Piece::Node(Node { id: NodeId(id), name })),
            (any::<(u32, u32, u32)>(), ".{0,9}").prop_map(|((id, node, index), addr)| Piece::Target(
                Target { id: TargetId(id), node: NodeId(node), index, addr }
            )),
            (
                drive_id(),
                any::<(u32, Option<u32>, Option<u128>)>(),
                any::<u32>(),
                ".{0,9}",
                any::<u64>(),
                state
            )
                .prop_map(|(id, (node, target, device), pool, path, capacity, state)| {
                    Piece::Drive(Drive {
                        id,
                        node: NodeId(node),
                        target: target.map_or(TargetId::first_of(NodeId(node)), TargetId),
                        device: device.map_or(DeviceId::of_drive(id), DeviceId),
                        pool: PoolId(pool),
                        path,
                        capacity: BlockCount(capacity),
                        state,
                    })
                }),
            drive_id().prop_map(Piece::RemovedDrive),
            (any::<u32>(), ".{0,9}").prop_map(|(id, name)| Piece::Pool(Pool { id: PoolId(id), name })),
        ]
    }

    fn group() -> impl Strategy<Value = Piece> {
        let role = prop_oneof![Just(Role::InSync), Just(Role::Syncing), Just(Role::Out)];
        let slot = (drive_id(), role, any::<u64>()).prop_map(|(drive, role, since)| Slot {
            drive,
            role,
            since: Epoch(since),
        });
        let record = any::<(u64, u8, u64, u64, u64, u64)>().prop_map(
            |(finished_ms, members, chunks, healed, lost, disagreements)| ScrubRecord {
                finished_ms,
                members,
                chunks,
                healed,
                lost,
                disagreements,
            },
        );
        prop_oneof![
            (any::<u64>(), any::<u32>(), any::<[u64; 2]>(), proptest::collection::vec(slot, 0..4)).prop_map(
                |(id, pool, [epoch, floor], slots)| Piece::Group(Group {
                    id: GroupId(id),
                    pool: PoolId(pool),
                    epoch: Epoch(epoch),
                    slots,
                    floor: weft_types::Version::from_bits(floor),
                })
            ),
            (any::<u64>(), drive_id(), drive_id()).prop_map(|(group, from, to)| Piece::Relocation {
                group: GroupId(group),
                relocation: Relocation { from, to },
            }),
            (any::<u64>(), groups()).prop_map(|(id, groups)| {
                Piece::GroupTable(GroupTable::new(GroupTableId(id), &groups).into())
            }),
            (any::<u64>(), record)
                .prop_map(|(group, record)| Piece::Scrubbed { group: GroupId(group), record }),
        ]
    }

    fn groups() -> impl Strategy<Value = Vec<GroupId>> {
        proptest::collection::vec(any::<u64>().prop_map(GroupId), 0..9)
    }

    fn volume() -> impl Strategy<Value = Piece> {
        let own = groups().prop_map(|groups| NamedGroups::Own(groups.into()));
        let window = any::<(u64, u32, u32)>().prop_map(|(table, first, count)| {
            NamedGroups::Window(TableWindow { table: GroupTableId(table), first, count })
        });
        let groups = prop_oneof![own, window];
        let files = (proptest::collection::vec(groups.clone(), 1..3), any::<(u64, u64, bool)>());
        let shard = |volume, server| ListedShard { volume: VolumeId(volume), server };
        let files = files.prop_map(move |(sets, (a, b, is_spread))| {
            VolumeKind::Files(FileSystem {
                sets,
                shards: vec![shard(a, None), shard(b, Some(TargetId(b as u32)))],
                is_spread,
            })
        });
        let system = any::<u64>().prop_map(|id| VolumeKind::System { file_system: VolumeId(id) });
        let kind = prop_oneof![Just(VolumeKind::Blocks), system, files];
        let span = (any::<u64>(), any::<u64>(), groups).prop_map(|(first, count, groups)| ObjectSpan {
            first,
            count,
            groups,
        });
        let striping = any::<(u32, u32, u32)>().prop_map(|(unit_blocks, width, object_blocks)| Striping {
            unit_blocks,
            width,
            object_blocks,
        });
        let state = prop_oneof![Just(VolumeState::Ready), Just(VolumeState::Deleting)];
        let numbers = any::<(u64, u32, u64, u8, u64, bool, u64)>();
        (numbers, ".{0,9}", striping, proptest::collection::vec(span, 0..3), state, kind).prop_map(
            |((id, pool, size, copies, generation, thin, created_ms), name, striping, spans, state, kind)| {
                let id_max = match kind {
                    VolumeKind::Files(_) => ObjectId::FILE_SYSTEM_MAX,
                    _ => ObjectId::VOLUME_MAX,
                };
                Piece::Volume(Volume {
                    id: VolumeId(id & id_max),
                    name,
                    pool: PoolId(pool),
                    size: BlockCount(size),
                    protection: Protection::mirror(copies),
                    striping,
                    spans,
                    generation: Generation(generation),
                    state,
                    thin,
                    created_ms,
                    kind,
                })
            },
        )
    }

    fn session() -> impl Strategy<Value = Piece> {
        let mode =
            prop_oneof![Just(AttachMode::Shared), Just(AttachMode::Exclusive), Just(AttachMode::ReadOnly)];
        let state = prop_oneof![Just(SessionState::Open), Just(SessionState::Over)];
        let lanes = proptest::collection::vec(any::<u16>(), 0..LANES_MAX);
        (any::<(u64, u16, u64, u64, u64)>(), mode, ".{0,9}", state, lanes).prop_map(
            |((id, slot, volume, generation, number), mode, client, state, lanes)| {
                Piece::Session(Session {
                    number,
                    lane_slots: lanes.into_iter().map(SessionSlot).collect(),
                    id: SessionId(id),
                    slot: SessionSlot(slot),
                    volume: VolumeId(volume),
                    mode,
                    generation: Generation(generation),
                    client,
                    state,
                })
            },
        )
    }

    fn piece() -> impl Strategy<Value = Piece> {
        prop_oneof![settings(), machine(), group(), volume(), session()]
    }

    fn delta() -> impl Strategy<Value = Delta> {
        let some = || proptest::collection::vec(piece(), 0..9);
        (any::<u128>(), any::<(u64, u64, u64)>(), some(), some()).prop_map(
            |(fabric, (from, to, next_id), put, removed)| Delta {
                fabric: FabricId(fabric),
                from: MapVersion(from),
                to: MapVersion(to),
                next_id,
                put,
                removed: removed.iter().map(Piece::key).collect::<Vec<PieceKey>>(),
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(delta in delta()) {
            prop_assert_eq!(decode_delta(&encode_delta(&delta)), Ok(delta.clone()));
            prop_assert_eq!(decode_pieces(&encode_pieces(&delta.put)), Ok(delta.put));
        }

        #[test]
        fn what_is_damaged_does_no_harm(delta in delta(), at in any::<usize>(), byte in any::<u8>()) {
            let mut bytes = encode_delta(&delta);
            let at = at % bytes.len();
            let _ = decode_delta(&bytes[..at]);
            bytes[at] = byte;
            let _ = decode_delta(&bytes);
        }
    }

    fn small() -> Delta {
        let pool = Piece::Pool(Pool { id: PoolId(1), name: "default".into() });
        Delta {
            fabric: FabricId(7),
            from: MapVersion(1),
            to: MapVersion(2),
            next_id: 9,
            put: vec![pool],
            removed: vec![PieceKey::Session(SessionId(3))],
        }
    }

    /// The bytes of a document under another header.
    fn under(header: Header) -> Vec<u8> {
        let bytes = encode_delta(&small());
        [&header.encode()[..], &bytes[Header::BYTES..]].concat()
    }

    #[test]
    fn a_later_form_is_refused_and_says_what_to_upgrade() {
        for header in [
            Header { version: VERSION + 1, ..Header::WRITTEN },
            Header { must_understand: 1 << 9, ..Header::WRITTEN },
        ] {
            let error = decode_delta(&under(header)).unwrap_err().to_string();
            assert!(error.contains("upgrade"), "{error}");
        }
        assert!(decode_delta(br#"{"fabric":"x"}"#).is_err());
        assert!(decode_pieces(&encode_delta(&small())).is_err(), "a change is no list of pieces");
        assert!(decode_delta(&encode_pieces(&small().put)).is_err(), "pieces are no change");
    }

    #[test]
    fn what_a_later_release_adds_is_passed_over() {
        let mut bytes = under(Header { may_ignore: u32::MAX, ..Header::WRITTEN });
        // A field of the document, and a piece and a key of kinds, that nobody knows yet: tag 500.
        let unknown = [0xa2, 0x1f, 2, 0xff, 0xff];
        bytes.extend_from_slice(&unknown);
        for tag in [0x12, 0x1a] {
            bytes.extend_from_slice(&[tag, unknown.len() as u8]);
            bytes.extend_from_slice(&unknown);
        }
        assert_eq!(decode_delta(&bytes), Ok(small()));
    }

    #[test]
    fn drives_are_named_by_number() {
        let drive = |n: u128| DriveId(u128::MAX / 25 * n);
        let groups: Vec<Piece> = (0..1000)
            .map(|n| {
                let slot = |i: u64| Slot {
                    drive: drive(((n + i) % 24).into()),
                    role: Role::InSync,
                    since: Epoch(5),
                };
                let slots = (0..3).map(slot).collect();
                Piece::Group(Group {
                    id: GroupId(4000 + n),
                    pool: PoolId(1),
                    epoch: Epoch(9),
                    slots,
                    floor: Default::default(),
                })
            })
            .collect();
        let bytes = encode_pieces(&groups).len();
        assert!(bytes < 40 * groups.len(), "{bytes} bytes of {} groups", groups.len());
    }

    #[test]
    fn who_does_not_know_tables_refuses_a_volume_that_names_one() {
        let table = GroupTable::new(GroupTableId(5), &[GroupId(3)]);
        let put = vec![Piece::GroupTable(table.into())];
        let bytes = encode_delta(&Delta { put, ..small() });
        let (header, _) = Header::decode(&bytes).expect("it is known here");
        assert_eq!(header.must_understand, FEATURE_GROUP_TABLES);
        let bytes = encode_delta(&small());
        let (header, _) = Header::decode(&bytes).expect("it is known here");
        assert_eq!(header.must_understand, 0);
    }

    fn with_a_volume(id: u64, kind: VolumeKind<NamedGroups>) -> Vec<u8> {
        let volume = Volume {
            id: VolumeId(id),
            name: "v".into(),
            pool: PoolId(1),
            size: BlockCount(0),
            protection: Protection::mirror(2),
            striping: Striping { unit_blocks: 64, width: 1, object_blocks: 64 },
            spans: vec![],
            generation: Generation(1),
            state: VolumeState::Ready,
            thin: true,
            created_ms: 1,
            kind,
        };
        encode_delta(&Delta { put: vec![Piece::Volume(volume)], ..small() })
    }

    #[test]
    fn who_does_not_know_file_systems_refuses_them_and_their_system_volumes() {
        let needs = |bytes: &[u8]| Header::decode(bytes).expect("it is known here").0.must_understand;
        let files = |sets: usize, shards: usize| {
            let sets = vec![NamedGroups::Own([GroupId(4), GroupId(4)].into()); sets];
            let shards = vec![ListedShard::new(VolumeId(9)); shards];
            VolumeKind::Files(FileSystem { sets, shards, is_spread: false })
        };
        assert_eq!(needs(&with_a_volume(8, VolumeKind::Blocks)), 0);
        assert_eq!(needs(&with_a_volume(8, files(1, 1))), FEATURE_FILE_SYSTEMS);
        let system = VolumeKind::System { file_system: VolumeId(8) };
        assert_eq!(needs(&with_a_volume(9, system)), FEATURE_FILE_SYSTEMS);
        let table = TableWindow { table: GroupTableId(5), first: 0, count: 1 };
        let window = FileSystem {
            sets: vec![NamedGroups::Window(table)],
            shards: vec![ListedShard::new(VolumeId(9))],
            is_spread: false,
        };
        let both = FEATURE_FILE_SYSTEMS | FEATURE_GROUP_TABLES;
        assert_eq!(needs(&with_a_volume(8, VolumeKind::Files(window))), both);
        assert!(decode_delta(&with_a_volume(8, files(SETS_MAX, SHARDS_MAX))).is_ok());
        for (sets, shards) in [(0, 1), (1, 0), (SETS_MAX + 1, 1), (1, SHARDS_MAX + 1)] {
            assert!(decode_delta(&with_a_volume(8, files(sets, shards))).is_err(), "{sets} and {shards}");
        }
        assert!(decode_delta(&with_a_volume(ObjectId::FILE_SYSTEM_MAX, files(1, 1))).is_ok());
        assert!(decode_delta(&with_a_volume(ObjectId::FILE_SYSTEM_MAX + 1, files(1, 1))).is_err());
    }

    fn with_lanes(lane_slots: Vec<SessionSlot>) -> Vec<u8> {
        let session = Session {
            number: 0,
            lane_slots,
            id: SessionId(9),
            slot: SessionSlot(10),
            volume: VolumeId(2),
            mode: AttachMode::Shared,
            generation: Generation(1),
            client: "c".into(),
            state: SessionState::Open,
        };
        encode_delta(&Delta { put: vec![Piece::Session(session)], ..small() })
    }

    #[test]
    fn who_does_not_know_lanes_refuses_a_session_that_has_several() {
        let needs = |bytes: &[u8]| Header::decode(bytes).expect("it is known here").0.must_understand;
        let (one, two) = (with_lanes(vec![]), with_lanes(vec![SessionSlot(60_000)]));
        assert_eq!((needs(&one), needs(&two)), (0, FEATURE_LANES));
        let most = with_lanes(vec![SessionSlot(60_000); LANES_MAX - 1]);
        assert!(most.len() <= one.len() + 6 * (LANES_MAX - 1), "{} bytes", most.len() - one.len());
        assert!(decode_delta(&most).is_ok());
        assert!(decode_delta(&with_lanes(vec![SessionSlot(60_000); LANES_MAX])).is_err());
    }
}
