//! What a drive of format 1 holds that format 2 writes in another way. It only reads: the first
//! checkpoints of a store that opens such a drive rewrite everything (`convert`).

use crate::error::Fault;
use crate::group_state::{DriveState, GroupState};
use crate::leaf::LeafKey;
use crate::open_set::OpenSets;
use crate::record::{Record, decode_chunk, decode_cursor};
use crate::superblock::PageRef;
use crate::tree::{Child, UNKNOWN};
use std::rc::Rc;
use weft_types::{
    ChunkIndex, DriveId, Epoch, Generation, Group, GroupId, ObjectId, Owner, PoolId, Role, SessionId, Slot,
    VolumeId,
};
use weft_wire::{DecodeError, Decoder};

/// The format's number.
pub(crate) const FORMAT: u16 = 1;

/// The first bytes of a superblock.
pub(crate) const SUPERBLOCK_MAGIC: [u8; 8] = *b"WEFTSUPR";

/// Bytes of the key of a leaf: a chunk has one.
pub(crate) const KEY_BYTES: usize = LeafKey::CHUNK_BYTES;

/// Bytes of a child in an inner page: key, place, checksum. Versions below it are not known.
pub(crate) const CHILD_BYTES: usize = KEY_BYTES + PageRef::BYTES;

/// Reads a child of an inner page.
///
/// # Errors
/// If its place is impossible, or the bytes end.
pub(crate) fn decode_child(d: &mut Decoder<'_>) -> Result<Child, DecodeError> {
    let key = LeafKey::from_chunk_bytes(&d.array()?);
    Ok(Child { key, page: PageRef::decode(d)?, newest: UNKNOWN })
}

/// The numbers of records that only format 1 has. The others are the same in both.
pub(crate) mod kind {
    pub(crate) const COPY: u8 = 8;
    pub(crate) const SET_GROUP: u8 = 11;
    pub(crate) const DROP_CHUNK: u8 = 17;
    pub(crate) const DROP_VOLUME: u8 = 18;
}

/// Reads a record that only format 1 has, behind its number.
///
/// # Errors
/// If the bytes are not a record of this format.
pub(crate) fn decode_record(number: u8, d: &mut Decoder<'_>) -> Result<Record, Fault> {
    Ok(match number {
        kind::COPY => {
            let (group, object, chunk) = decode_chunk(d)?;
            let stint = Epoch(d.u64()?);
            let len = usize::from(d.u16()?);
            Record::Copy { group, object, chunk, stint, leaf: d.bytes(len)?.to_vec() }
        }
        kind::SET_GROUP => {
            let is_new_stint = d.u8()? != 0;
            Record::SetGroup { entry: decode_group(d)?, is_new_stint }
        }
        kind::DROP_CHUNK => {
            let (group, object, chunk) = decode_chunk(d)?;
            Record::DropChunk { group, object, chunk }
        }
        kind::DROP_VOLUME => match d.u64()? {
            volume if volume <= ObjectId::VOLUME_MAX => {
                Record::DropOwner { owner: Owner::Volume(VolumeId(volume)) }
            }
            value => return Err(DecodeError::Invalid { field: "volume", value }.into()),
        },
        n => return Err(Fault::Damaged(format!("a record has the number {n}"))),
    })
}

/// Reads a group's entry.
fn decode_group(d: &mut Decoder<'_>) -> Result<Group, DecodeError> {
    let (id, pool, epoch) = (GroupId(d.u64()?), PoolId(d.u32()?), Epoch(d.u64()?));
    let mut slots = Vec::new();
    for _ in 0..d.u8()? {
        let drive = DriveId::from_bytes(d.array()?);
        let role = match d.u8()? {
            0 => Role::InSync,
            1 => Role::Syncing,
            2 => Role::Out,
            n => return Err(DecodeError::Invalid { field: "role", value: u64::from(n) }),
        };
        slots.push(Slot { drive, role, since: Epoch(d.u64()?) });
    }
    Ok(Group { id, pool, epoch, slots, floor: Default::default() })
}

/// Reads the state, behind the number of its format.
///
/// # Errors
/// If the bytes are not a state of this format.
pub(crate) fn decode_state(d: &mut Decoder<'_>) -> Result<DriveState, DecodeError> {
    let mut state = DriveState { session_floor: SessionId(d.u64()?), ..Default::default() };
    for _ in 0..d.u32()? {
        state.closed.insert(SessionId(d.u64()?));
    }
    for _ in 0..d.u32()? {
        state.generations.insert(VolumeId(d.u64()?), Generation(d.u64()?));
    }
    for _ in 0..d.u32()? {
        let mut group = GroupState::new(Rc::new(decode_group(d)?));
        let (has_stint, stint) = (d.u8()? != 0, Epoch(d.u64()?));
        group.stint = has_stint.then_some(stint);
        group.cursor = decode_cursor(d)?;
        for _ in 0..d.u32()? {
            group.ahead.insert((ObjectId::from_bytes(d.array()?), ChunkIndex(d.u16()?)));
        }
        group.marks = OpenSets::decode(d)?;
        state.groups.insert(group.entry.id, group);
    }
    Ok(state)
}
