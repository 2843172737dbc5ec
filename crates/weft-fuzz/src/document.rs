//! Targets of documents: the fabric map, its backups, and what management is asked and answers.

use std::sync::Arc;
use weft_api::{ApiAnswer, ApiError, ApiRequest, ErrorCode, FailureDomain, SettingsWish};
use weft_types::{
    BlockCount, CapacityLevels, Drive, DriveId, DriveState, Epoch, FabricId, FabricMap, Generation, Group,
    GroupId, GroupTable, GroupTableId, Lba, NodeId, ObjectSpan, Pool, PoolId, Role, Slot, SpanGroups,
    Striping, TableWindow, TargetId, Volume, VolumeId, VolumeState,
};
use weft_wire::backup::{decode_backup, encode_backup};
use weft_wire::collected::{Collected, CollectedDrive, DriveContents, decode_collected, encode_collected};
use weft_wire::control::{decode_map, encode_map};
use weft_wire::map_part::{MapPart, join, split};
use weft_wire::pieces::{are_pieces, decode_delta, decode_pieces, encode_delta, encode_pieces, encode_whole};

/// A fabric map: what decodes reads back, can be judged, and can be used where it is judged to be sound.
pub(crate) fn map(bytes: &[u8]) {
    let Ok(map) = decode_map(bytes) else { return };
    // As JSON it says nothing of devices.
    let again = if are_pieces(bytes) { encode_whole(&map) } else { encode_map(&map) };
    assert_eq!(decode_map(&again).as_ref(), Ok(&map));
    if weft_membership::check(&map).is_empty() {
        use_map(&map);
    }
}

/// What clients and targets do with a map that is sound.
fn use_map(map: &FabricMap) {
    for volume in map.volumes.values() {
        let last = volume.size.0.saturating_sub(1);
        for lba in [0, last / 2, last] {
            for piece in weft_layout::pieces(&volume.striping, Lba(lba), 1) {
                assert!(piece.range.is_valid(), "{piece:?}");
                let group = weft_layout::group_of(volume, piece.object_index);
                assert!(
                    group.is_some_and(|group| map.groups.contains_key(&group)),
                    "{piece:?} of {volume:?}"
                );
            }
        }
    }
    for group in map.groups.values() {
        map.copies_of(group);
        map.is_whole(group);
        map.shares_a_node(group);
        assert!(!map.was_removed(group.id));
        assert!(group.slots.iter().all(|slot| map.drive_addr(slot.drive).is_some()), "{group:?}");
    }
}

/// A map that is sound: two drives on two nodes, a group and a volume.
fn sound_map() -> FabricMap {
    let mut map = FabricMap::empty(FabricId::from_random(7));
    let pool = Pool { id: PoolId(1), name: "default".into() };
    map.pools.insert(pool.id, pool);
    let drives = [DriveId::from_random(1), DriveId::from_random(2)];
    for (number, drive) in (2..).zip(drives) {
        map.put_node(NodeId(number), format!("node-{number}"), format!("10.0.0.{number}:4800"));
        let drive = Drive {
            id: drive,
            node: NodeId(number),
            target: TargetId(number),
            device: weft_types::DeviceId::of_drive(drive),
            pool: PoolId(1),
            path: "/dev/x".into(),
            capacity: BlockCount(1 << 20),
            state: DriveState::Active,
        };
        map.drives.insert(drive.id, drive);
    }
    let slots = drives.map(|drive| Slot { drive, role: Role::InSync, since: Epoch(1) }).to_vec();
    let group = Group { id: GroupId(4), pool: PoolId(1), epoch: Epoch(1), slots, floor: Default::default() };
    let striping = Striping { unit_blocks: 16, width: 1, object_blocks: 1024 };
    let volume = Volume {
        id: VolumeId(5),
        name: "data".into(),
        pool: PoolId(1),
        size: BlockCount(10_000),
        protection: weft_types::Protection::mirror(2),
        striping,
        spans: vec![ObjectSpan { first: 0, count: 10, groups: vec![group.id].into() }],
        generation: Generation(1),
        state: VolumeState::Ready,
        thin: false,
        created_ms: 1_700_000_000_000,
        kind: weft_types::VolumeKind::Blocks,
    };
    map.groups.insert(group.id, group);
    map.volumes.insert(volume.id, volume);
    map.next_id = 8;
    map.capacity = CapacityLevels { warning_percent: 70, ..CapacityLevels::default() };
    map
}

/// A map whose volumes share a list of groups.
fn sharing_map() -> FabricMap {
    let mut map = sound_map();
    let table = Arc::new(GroupTable::new(GroupTableId(6), &[GroupId(4)]));
    let window = TableWindow { table: table.id, first: 0, count: 1 };
    let groups = SpanGroups::of_table(&table, window).expect("it is one of the table");
    map.volumes.update_each(|volume| volume.spans[0].groups = groups.clone());
    map.group_tables.insert(table.id, table);
    map
}

pub(crate) fn map_seeds() -> Vec<Vec<u8>> {
    let maps = [FabricMap::empty(FabricId(1)), sound_map(), sharing_map()];
    maps.iter().flat_map(|map| [encode_map(map), encode_whole(map)]).collect()
}

/// A backup of a map.
pub(crate) fn backup(bytes: &[u8]) {
    with_right_checksum(bytes, check_backup);
}

/// Tries the bytes as they are, and with the last line made right where it begins as it should.
fn with_right_checksum(bytes: &[u8], check: fn(&[u8])) {
    check(bytes);
    let mut sealed = bytes.to_vec();
    if let Some(at) = sealed.windows(11).rposition(|w| w == b"{\"crc32c\":\"") {
        let crc = format!("{:08x}\"}}\n", weft_wire::crc32c(&sealed[..at]));
        sealed.truncate(at + 11);
        sealed.extend(crc.bytes());
        check(&sealed);
    }
}

fn check_backup(bytes: &[u8]) {
    let Ok((head, map)) = decode_backup(bytes) else { return };
    let (again, same) = decode_backup(&encode_backup(&map, head.taken_ms)).expect("it was just made");
    assert_eq!(
        (again.fabric, again.map, again.taken_ms, &same),
        (head.fabric, head.map, head.taken_ms, &map)
    );
}

pub(crate) fn backup_seeds() -> Vec<Vec<u8>> {
    vec![encode_backup(&sound_map(), 1_700_000_000_000)]
}

/// Pieces of the map, or what a commit changed: what decodes reads back, and is applied or refused.
pub(crate) fn pieces(bytes: &[u8]) {
    if let Ok(pieces) = decode_pieces(bytes) {
        assert_eq!(decode_pieces(&encode_pieces(&pieces)).as_ref(), Ok(&pieces));
    }
    if let Ok(delta) = decode_delta(bytes) {
        assert_eq!(decode_delta(&encode_delta(&delta)).as_ref(), Ok(&delta));
        let _ = sound_map().apply_delta(&delta);
    }
}

/// A part of a whole map: what decodes is what was encoded, and makes a map or none.
pub(crate) fn map_part(bytes: &[u8]) {
    if let Ok(part) = MapPart::decode(bytes) {
        assert_eq!(part.encode(), bytes);
        join(vec![part]);
    }
}

pub(crate) fn map_part_seeds() -> Vec<Vec<u8>> {
    let parts = [split(&sound_map(), 200), split(&sound_map(), 4096)].into_iter().flatten().flatten();
    parts.map(|part| part.encode()).collect()
}

pub(crate) fn pieces_seeds() -> Vec<Vec<u8>> {
    let map = sound_map();
    let mut later = map.clone();
    later.version.0 += 1;
    later.volumes.clear();
    vec![encode_pieces(&map.pieces()), encode_delta(&later.delta_from(&map))]
}

/// What the drives of a machine know, as a file.
pub(crate) fn collected(bytes: &[u8]) {
    with_right_checksum(bytes, check_collected);
}

fn check_collected(bytes: &[u8]) {
    let Ok((head, found)) = decode_collected(bytes) else { return };
    let again = encode_collected(head.fabric, &head.machine, head.taken_ms, &found);
    let (same, again) = decode_collected(&again).expect("it was just made");
    assert_eq!((same.fabric, same.machine, same.taken_ms), (head.fabric, head.machine, head.taken_ms));
    assert_eq!(again, found);
}

pub(crate) fn collected_seeds() -> Vec<Vec<u8>> {
    let map = sound_map();
    let contents = DriveContents {
        id: weft_types::DriveId(3),
        map_copy: map.version,
        entries: map.groups.values().cloned().collect(),
        generations: map.volumes.values().map(|v| (v.id, v.generation)).collect(),
        slots: [(weft_types::SessionSlot(2), map.groups.keys().copied().collect())].into(),
    };
    let drive = CollectedDrive {
        path: "/dev/a".into(),
        map_copy: Some(map.version),
        commit: 7,
        contents: Some(contents),
        warning: None,
    };
    let broken =
        CollectedDrive { contents: None, warning: Some("its log is damaged".into()), ..drive.clone() };
    let fabric = map.fabric;
    let collected = Collected {
        maps: vec![map],
        parts: split(&sound_map(), 200).expect("few"),
        drives: vec![drive, broken],
    };
    vec![encode_collected(fabric, "node-1", 1_700_000_000_000, &collected)]
}

/// What management is asked, and its answers; the first byte says which.
pub(crate) fn api(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    if which % 2 == 0 {
        let Ok(request) = weft_api::decode_request(bytes) else { return };
        request.is_mutation();
        let again = weft_api::decode_request(&weft_api::encode_request(&request));
        assert_eq!(again.expect("it was just made"), request);
    } else {
        let Ok(reply) = weft_api::decode_reply(bytes) else { return };
        let result = reply.into_result();
        let again = weft_api::decode_reply(&weft_api::encode_reply(result.clone()));
        assert_eq!(again.expect("it was just made").into_result(), result);
    }
}

pub(crate) fn api_seeds() -> Vec<Vec<u8>> {
    let create = ApiRequest::VolumeCreate {
        name: "v".into(),
        size_bytes: 1 << 30,
        protection: weft_types::Protection::mirror(2),
        pool: Some("default".into()),
        stripe_unit_bytes: Some(65_536),
        width: Some(4),
        failure_domain: FailureDomain::Node,
        thin: true,
        dry_run: true,
    };
    let wish = SettingsWish { capacity_critical_percent: Some(95), ..SettingsWish::default() };
    let events =
        br#"{"op":"events","since":"2026-01-31T23:59:59.000Z","kinds":["evict"],"limit":5}"#.to_vec();
    let asked = [create, ApiRequest::Settings(wish), ApiRequest::EventAdd { text: "a note".into() }];
    let mut seeds: Vec<Vec<u8>> = asked.iter().map(weft_api::encode_request).chain([events]).collect();
    seeds.iter_mut().for_each(|seed| seed.insert(0, 0));
    let answers = [
        Ok(ApiAnswer::Events { events: Vec::new() }),
        Err(ApiError::new(ErrorCode::NotFound, "there is no volume 'v'").with_hint("look")),
    ];
    seeds.extend(answers.map(|answer| [vec![1], weft_api::encode_reply(answer)].concat()));
    seeds
}
