//! Places on a drive, and which of them serve what. Pure arithmetic: the map of regions follows from the
//! drive's size at format time and is recorded in the label; nothing here reads or writes.

use std::fmt;
use weft_types::BLOCK_SIZE;
use weft_wire::{DecodeError, Decoder, Encoder};

/// A block of the drive, counted from its start. 64 bits leave room for a device number above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u64);

impl Place {
    /// No place: block 0 holds the label, so nothing else can be there.
    pub const NONE: Place = Place(0);

    /// Every place lies below this one: a drive of an EiB has no more, and arithmetic on places below it cannot pass
    /// 64 bits.
    pub(crate) const END: Place = Place(1 << 48);

    /// The byte at which the block begins.
    pub const fn offset(self) -> u64 {
        self.0 * BLOCK_SIZE as u64
    }

    /// Reads a place.
    ///
    /// # Errors
    /// If no drive can have it.
    pub(crate) fn decode(d: &mut Decoder<'_>) -> Result<Place, DecodeError> {
        match d.u64()? {
            value if value < Self::END.0 => Ok(Place(value)),
            value => Err(DecodeError::Invalid { field: "place", value }),
        }
    }

    /// The place `blocks` further on.
    pub const fn plus(self, blocks: u64) -> Place {
        Place(self.0 + blocks)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "place {}", self.0)
    }
}

/// Neighbouring places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlaceRun {
    /// The first.
    pub place: Place,
    /// How many.
    pub count: u32,
}

/// Blocks that one page of the bitmap covers, 128 MiB: the bits of 4 KiB.
pub const ZONE_BLOCKS: u64 = (BLOCK_SIZE * 8) as u64;

/// Bytes of a zone's entry in the zone table.
pub const ZONE_ENTRY_BYTES: u64 = 8;

/// The log's share of the drive, and its bounds: at half of 1 GiB a checkpoint is due every 8 million small
/// writes; 16 MiB still holds a hundred thousand.
const LOG_SHARE: u64 = 512;
const LOG_BYTES_MIN: u64 = 16 << 20;
const LOG_BYTES_MAX: u64 = 1 << 30;

/// The log takes at most this part of a small drive.
const LOG_SHARE_SMALL: u64 = 8;

/// The smallest log: room for a few of the smallest batches.
pub(crate) const LOG_BYTES_LEAST: u64 = 128 << 10;

/// A slot for a copy of the fabric map takes this share of the drive, within these bounds.
const MAP_SLOT_SHARE: u64 = 64;
const MAP_SLOT_BYTES_MIN: u64 = 32 << 10;
const MAP_SLOT_BYTES_MAX: u64 = 1 << 20;

/// The smallest drive for tests, see `FormatOptions::allow_tiny`.
pub(crate) const TINY_BYTES_MIN: u64 = 1 << 20;

/// Where each structure lies, in blocks. The regions follow each other in the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionMap {
    /// Blocks of the whole drive.
    pub drive_blocks: u64,
    /// Blocks of each of the two slots for a copy of the fabric map.
    pub map_slot_blocks: u64,
    /// The log ring's first block.
    pub log_first: u64,
    /// The log ring's length.
    pub log_blocks: u64,
    /// Two neighbouring blocks per zone: the slots of its bitmap page.
    pub bitmap_first: u64,
    /// How many zones.
    pub zones: u64,
    /// The zone table, twice.
    pub table_first: u64,
    /// Blocks of one copy of the zone table.
    pub table_blocks: u64,
    /// The first block of data and map pages; they end before the last block, which is label B.
    pub data_first: u64,
}

impl RegionMap {
    /// Label A.
    pub const LABEL_A: Place = Place(0);
    /// The first superblock slot; the second follows.
    pub const SUPERBLOCK: Place = Place(1);
    /// The first slot for a copy of the fabric map; fixed, so that it is found without a label.
    pub const MAP_COPY: Place = Place(8);

    /// The regions of a drive of this size.
    pub fn of(size_bytes: u64, log_bytes: Option<u64>) -> RegionMap {
        let block = BLOCK_SIZE as u64;
        let drive_blocks = size_bytes / block;
        let map_slot_blocks = Self::map_slot_blocks(size_bytes);
        let log_bytes = log_bytes
            .unwrap_or((size_bytes / LOG_SHARE).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX))
            .min(size_bytes / LOG_SHARE_SMALL)
            .max(LOG_BYTES_LEAST);
        let log_first = Self::MAP_COPY.0 + 2 * map_slot_blocks;
        let log_blocks = log_bytes / block;
        let bitmap_first = log_first + log_blocks;
        let zones = drive_blocks.div_ceil(ZONE_BLOCKS);
        let table_first = bitmap_first + 2 * zones;
        let table_blocks = (zones * ZONE_ENTRY_BYTES).div_ceil(block);
        RegionMap {
            drive_blocks,
            map_slot_blocks,
            log_first,
            log_blocks,
            bitmap_first,
            zones,
            table_first,
            table_blocks,
            data_first: table_first + 2 * table_blocks,
        }
    }

    /// The size of a slot for a copy of the fabric map depends on the drive's size alone.
    pub fn map_slot_blocks(size_bytes: u64) -> u64 {
        (size_bytes / MAP_SLOT_SHARE).clamp(MAP_SLOT_BYTES_MIN, MAP_SLOT_BYTES_MAX) / BLOCK_SIZE as u64
    }

    /// Label B: the drive's last block.
    pub fn label_b(&self) -> Place {
        Place(self.drive_blocks - 1)
    }

    /// Where slot 0 or 1 of the copies of the fabric map begins.
    pub fn map_copy(&self, slot: u64) -> Place {
        Self::MAP_COPY.plus(slot * self.map_slot_blocks)
    }

    /// Where a zone's bitmap page lies, in slot 0 or 1.
    pub fn bitmap_page(&self, zone: u64, slot: u8) -> Place {
        debug_assert!(zone < self.zones && slot < 2);
        Place(self.bitmap_first + 2 * zone + u64::from(slot))
    }

    /// Where copy 0 or 1 of the zone table begins.
    pub fn zone_table(&self, copy: u64) -> Place {
        Place(self.table_first + copy * self.table_blocks)
    }

    /// The first block after data and map pages.
    pub fn data_end(&self) -> u64 {
        self.drive_blocks - 1
    }

    /// Blocks for data and map pages.
    pub fn data_blocks(&self) -> u64 {
        self.data_end() - self.data_first
    }

    /// Whether data or map pages can lie there.
    pub fn holds_data(&self, run: PlaceRun) -> bool {
        run.place.0 >= self.data_first
            && run.place.0.checked_add(u64::from(run.count)).is_some_and(|end| end <= self.data_end())
    }

    /// Appends the fields, 72 bytes.
    pub(crate) fn encode(&self, e: &mut Encoder) {
        e.u64(self.drive_blocks).u64(self.map_slot_blocks).u64(self.log_first).u64(self.log_blocks);
        e.u64(self.bitmap_first).u64(self.zones).u64(self.table_first).u64(self.table_blocks);
        e.u64(self.data_first);
    }

    pub(crate) fn decode(d: &mut Decoder<'_>) -> Result<RegionMap, DecodeError> {
        Ok(RegionMap {
            drive_blocks: d.u64()?,
            map_slot_blocks: d.u64()?,
            log_first: d.u64()?,
            log_blocks: d.u64()?,
            bitmap_first: d.u64()?,
            zones: d.u64()?,
            table_first: d.u64()?,
            table_blocks: d.u64()?,
            data_first: d.u64()?,
        })
    }

    /// Whether the regions follow each other without overlap and leave room for data.
    pub(crate) fn is_consistent(&self) -> bool {
        let limit = Place::END.0;
        let fields = [self.drive_blocks, self.map_slot_blocks, self.log_first, self.log_blocks];
        let more = [self.bitmap_first, self.zones, self.table_first, self.table_blocks, self.data_first];
        fields.iter().chain(&more).all(|f| *f < limit)
            && self.map_slot_blocks == Self::map_slot_blocks(self.drive_blocks * BLOCK_SIZE as u64)
            && self.log_first == Self::MAP_COPY.0 + 2 * self.map_slot_blocks
            && self.log_blocks * BLOCK_SIZE as u64 >= LOG_BYTES_LEAST
            && self.bitmap_first == self.log_first + self.log_blocks
            && self.zones == self.drive_blocks.div_ceil(ZONE_BLOCKS)
            && self.table_first == self.bitmap_first + 2 * self.zones
            && self.table_blocks == (self.zones * ZONE_ENTRY_BYTES).div_ceil(BLOCK_SIZE as u64)
            && self.data_first == self.table_first + 2 * self.table_blocks
            && self.data_first + 1 < self.drive_blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_of_any_size_are_consistent() {
        for size in [TINY_BYTES_MIN, 8 << 20, 64 << 20, (1 << 30) + 4096, 1 << 40, 64 << 40] {
            let map = RegionMap::of(size, None);
            assert!(map.is_consistent(), "{size}: {map:?}");
            let mut e = Encoder::default();
            map.encode(&mut e);
            assert_eq!(e.0.len(), 72);
            assert_eq!(RegionMap::decode(&mut Decoder::new(&e.0)), Ok(map));
        }
        assert_eq!(RegionMap::of(1 << 40, None).log_blocks * 4096, 1 << 30);
        assert_eq!(RegionMap::of(64 << 20, None).log_blocks * 4096, 8 << 20);
    }

    #[test]
    fn a_region_map_that_overlaps_is_refused() {
        let mut map = RegionMap::of(64 << 20, None);
        map.data_first -= 1;
        assert!(!map.is_consistent());
    }

    #[test]
    fn a_region_map_without_room_for_a_copy_of_the_fabric_map_is_refused() {
        let whole = RegionMap::of(64 << 20, None);
        let cut = 2 * whole.map_slot_blocks;
        let map = RegionMap {
            map_slot_blocks: 0,
            log_first: whole.log_first - cut,
            bitmap_first: whole.bitmap_first - cut,
            table_first: whole.table_first - cut,
            data_first: whole.data_first - cut,
            ..whole
        };
        assert!(!map.is_consistent(), "{map:?}");
    }

    #[test]
    fn a_place_beyond_every_drive_is_refused() {
        for (value, is_one) in [(0, true), (Place::END.0 - 1, true), (Place::END.0, false), (u64::MAX, false)]
        {
            let mut e = Encoder::default();
            e.u64(value);
            assert_eq!(Place::decode(&mut Decoder::new(&e.0)).is_ok(), is_one, "{value}");
        }
    }
}
