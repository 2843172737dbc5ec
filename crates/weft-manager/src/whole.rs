//! How long the map is as it travels: as pieces, and whole as JSON to members of the release before.
//!
//! It owns how long that may become: a map that does not fit a frame must not be committed. How long the
//! next one is at most follows from what was encoded last and from what was put in since, so nothing is
//! encoded for that before it comes near the limit. As pieces, each slice is shorter than the whole. As
//! JSON, it is encoded when somebody asks for it, and at most once per version.

use std::cell::{Cell, RefCell};
use weft_rt::Buf;
use weft_types::{Delta, FabricMap, MapVersion};
use weft_wire::control::encode_map;
use weft_wire::pieces::encode_whole;

/// Bytes by which a map grows at most although no piece is put in: a version with more digits.
const NUMBERS_BYTES: usize = 64;

/// The newest map as it travels.
#[derive(Default)]
pub(crate) struct WholeMap {
    encoded: RefCell<Option<(MapVersion, Buf)>>,
    /// Bytes that the newest map has at most as JSON; unknown until one was encoded.
    bytes_max: Cell<Option<usize>>,
    /// Likewise as pieces.
    pieces_max: Cell<Option<usize>>,
    /// The version of the newest map.
    newest: Cell<MapVersion>,
}

impl WholeMap {
    /// The bytes of a map: of the newest one, or of one before it.
    pub(crate) fn bytes(&self, map: &FabricMap) -> Buf {
        let mut encoded = self.encoded.borrow_mut();
        if let Some((version, bytes)) = &*encoded
            && *version == map.version
        {
            return bytes.clone();
        }
        let bytes = Buf::from(encode_map(&map.clone().for_earlier_release()));
        if map.version >= self.newest.get() {
            self.bytes_max.set(Some(bytes.len()));
        }
        *encoded = Some((map.version, bytes.clone()));
        bytes
    }

    /// Checks that the map that follows has no more bytes than it may have, and notes it. `encoded` is how
    /// long the delta is as pieces. As JSON it has a limit only while somebody is sent the whole.
    ///
    /// # Errors
    /// How many it would have.
    pub(crate) fn follow(
        &self,
        next: &FabricMap,
        delta: &Delta,
        encoded: usize,
        limit: usize,
        json_limit: Option<usize>,
    ) -> Result<(), usize> {
        let pieces = within(self.pieces_max.get(), || encoded, limit, || encode_whole(next).len())?;
        let json = match json_limit {
            Some(limit) => {
                let json = |map: FabricMap| encode_map(&map.for_earlier_release()).len();
                let grown = || json(map_of(next, delta));
                Some(within(self.bytes_max.get(), grown, limit, || json(next.clone()))?)
            }
            None => None,
        };
        self.pieces_max.set(Some(pieces));
        self.bytes_max.set(json);
        self.newest.set(next.version);
        Ok(())
    }
}

/// How many bytes the next one has at most, if they are no more than it may have: what the one before had,
/// and what is new in it, or what is counted.
fn within(
    before: Option<usize>,
    grown: impl Fn() -> usize,
    limit: usize,
    count: impl Fn() -> usize,
) -> Result<usize, usize> {
    let estimated = before.map(|bytes| bytes + grown() + NUMBERS_BYTES).filter(|bytes| *bytes <= limit);
    match estimated.unwrap_or_else(count) {
        bytes if bytes > limit => Err(bytes),
        bytes => Ok(bytes),
    }
}

/// A map of nothing but what was put in.
fn map_of(next: &FabricMap, delta: &Delta) -> FabricMap {
    let mut map = FabricMap { group_tables: next.group_tables.clone(), ..FabricMap::empty(next.fabric) };
    for piece in &delta.put {
        map.put_piece(piece.clone()).expect("the tables are there");
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{
        BlockCount, Drive, DriveId, DriveState, FabricId, NodeId, PoolId, ScrubRecord, TargetId,
    };
    use weft_wire::pieces::encode_delta;

    #[test]
    fn what_is_estimated_is_never_too_little() {
        let whole = WholeMap::default();
        let mut map = FabricMap::empty(FabricId(1));
        assert_eq!(whole.bytes(&map).len(), encode_map(&map).len());
        for n in 0..200u128 {
            let old = map.clone();
            let drive = Drive {
                id: DriveId(n << 64),
                node: NodeId(1),
                target: TargetId(1),
                device: weft_types::DeviceId::of_drive(DriveId(n << 64)),
                pool: PoolId(1),
                path: "/dev/x".repeat(1 + n as usize % 3),
                capacity: BlockCount(7),
                state: DriveState::Active,
            };
            map.drives.insert(drive.id, drive);
            map.removed_drives.insert(DriveId(n));
            map.scrub.done.insert(weft_types::GroupId(n as u64), ScrubRecord::default());
            map.scrub.wanted.insert(weft_types::GroupId(n as u64));
            map.version = MapVersion(map.version.0.saturating_mul(2));
            let delta = map.delta_from(&old);
            let encoded = encode_delta(&delta).len();
            assert_eq!(whole.follow(&map, &delta, encoded, usize::MAX, Some(usize::MAX)), Ok(()));
            assert!(whole.bytes_max.get() >= Some(encode_map(&map).len()));
            assert!(whole.pieces_max.get() >= Some(encode_whole(&map).len()));
        }
        // Near the limit it is exact, and what is refused changes nothing.
        let (bytes, pieces) = (encode_map(&map).len(), encode_whole(&map).len());
        assert!(pieces < bytes);
        let delta = map.delta_from(&map);
        let follow = |limit, json_limit| whole.follow(&map, &delta, 0, limit, json_limit);
        assert_eq!(follow(pieces, Some(bytes)), Ok(()));
        assert_eq!(follow(pieces, Some(bytes - 1)), Err(bytes));
        // Only as long as somebody is sent the whole.
        assert_eq!((follow(pieces, None), follow(pieces - 1, None)), (Ok(()), Err(pieces)));
        assert_eq!(follow(pieces, Some(bytes - 1)), Err(bytes));
        assert_eq!(whole.bytes(&map).len(), bytes);
    }
}
