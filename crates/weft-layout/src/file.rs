//! Files: from an object of an inode to its group, and the layout that an inode keeps.
//!
//! It owns the formula and the twelve bytes. Both are for ever: the objects of a file are found by them.

use crate::LayoutError;
use crate::stripe::validate;
use weft_types::limits::{OBJECT_BLOCKS_MAX, SETS_MAX};
use weft_types::{BlockCount, GroupId, ObjectId, Owner, Striping, Volume};

/// How the addresses of a file become objects, as its inode keeps it.
///
/// The size of objects is that of the file system's default layout, the same for all of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLayout {
    /// The set of groups that its objects are in, by its place among the file system's sets.
    pub set: u8,
    /// How many copies its data has: those of the file system's groups.
    pub copies: u8,
    /// Blocks that go to one object before the next one's turn; a power of two, at most those of an object.
    pub unit_blocks: u32,
    /// Objects that a stripe runs over, from 1. A large file uses all groups of its set, whatever this is.
    pub width: u16,
}

/// The form of the bytes that is written, and the only one that is read.
const FORM: u8 = 1;

impl FileLayout {
    /// Bytes of a layout in an inode.
    pub const BYTES: usize = 12;

    /// The layout of a new file of a file system for which nobody has said another: in the newest set.
    /// Nothing if it is no file system.
    pub fn default_of(volume: &Volume) -> Option<FileLayout> {
        let sets = volume.files()?.sets.len();
        Some(FileLayout {
            set: u8::try_from(sets.checked_sub(1)?).ok()?,
            copies: u8::try_from(volume.protection.members()).ok()?,
            unit_blocks: volume.striping.unit_blocks,
            width: u16::try_from(volume.striping.width).ok()?,
        })
    }

    /// An encoded layout with another set. Other bytes stay as they are.
    pub fn in_set(mut encoded: [u8; Self::BYTES], set: u8) -> [u8; Self::BYTES] {
        encoded[1] = set;
        encoded
    }

    /// The layout as 12 bytes, little-endian:
    ///
    /// ```text
    ///  offset  size  field
    ///       0     1  form: 1
    ///       1     1  set
    ///       2     1  copies
    ///       3     1  0
    ///       4     4  blocks of a stripe unit
    ///       8     2  width
    ///      10     2  0
    /// ```
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..3].copy_from_slice(&[FORM, self.set, self.copies]);
        bytes[4..8].copy_from_slice(&self.unit_blocks.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.width.to_le_bytes());
        bytes
    }

    /// Reads a layout. Whether it fits a file system is for [`FileLayout::striping`] to say.
    ///
    /// # Errors
    /// [`LayoutError::Form`] if a later release has written it, or the bytes are no layout.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<FileLayout, LayoutError> {
        let [form, set, copies, zero, u0, u1, u2, u3, w0, w1, z0, z1] = *bytes;
        if form != FORM || [zero, z0, z1] != [0; 3] {
            return Err(LayoutError::Form { form });
        }
        let (unit_blocks, width) = (u32::from_le_bytes([u0, u1, u2, u3]), u16::from_le_bytes([w0, w1]));
        Ok(FileLayout { set, copies, unit_blocks, width })
    }

    /// Whether a file of some file system can have it: the unit and the width keep the rules of [`validate`]
    /// with the largest objects.
    pub fn is_possible(&self) -> bool {
        let width = u32::from(self.width);
        validate(&Striping { unit_blocks: self.unit_blocks, width, object_blocks: OBJECT_BLOCKS_MAX }).is_ok()
    }

    /// How the addresses of a file with this layout become objects, in this file system.
    ///
    /// # Errors
    /// If the volume is no file system, has no such set, has other copies, or the unit or the width break the
    /// rules of [`validate`].
    pub fn striping(&self, volume: &Volume) -> Result<Striping, LayoutError> {
        let sets = volume.files().map_or(0, |files| files.sets.len());
        if usize::from(self.set) >= sets.min(SETS_MAX) {
            return Err(LayoutError::NoSet { set: self.set, sets });
        }
        self.striping_in_any_set(volume)
    }

    /// As [`FileLayout::striping`], whether or not the file system has the set.
    ///
    /// # Errors
    /// Those of [`FileLayout::striping`], but that there is no such set.
    pub fn striping_in_any_set(&self, volume: &Volume) -> Result<Striping, LayoutError> {
        let copies = volume.protection.members();
        if usize::from(self.copies) != copies {
            return Err(LayoutError::OtherCopies { copies: self.copies, expected: copies });
        }
        let (unit_blocks, width) = (self.unit_blocks, u32::from(self.width));
        let striping = Striping { unit_blocks, width, object_blocks: volume.striping.object_blocks };
        validate(&striping)?;
        Ok(striping)
    }
}

/// The group that holds an object of an inode: in `set[(hash(inode) + index) % set.len()]`. Nothing if the
/// volume is no file system, or has no such set.
pub fn group_of_file(volume: &Volume, set: u8, inode: u64, index: u32) -> Option<GroupId> {
    let groups = volume.files()?.sets.get(usize::from(set))?;
    let at = mix(inode).wrapping_add(u64::from(index)).checked_rem(groups.len() as u64)?;
    groups.get(at as usize).copied()
}

/// The largest size of a file with this striping: what the numbers of objects reach, in whole rows.
///
/// # Panics
/// If the striping is invalid (see [`validate`]).
pub fn file_blocks_max(striping: &Striping) -> BlockCount {
    assert_eq!(validate(striping), Ok(()), "a striping is validated before it is used");
    let objects = INODE_OBJECTS - INODE_OBJECTS % u64::from(striping.width);
    BlockCount(objects * u64::from(striping.object_blocks))
}

/// How many objects an inode can have.
const INODE_OBJECTS: u64 = {
    let file_system = weft_types::VolumeId(0);
    let objects = Owner::Inode { file_system, inode: 0 }.objects();
    objects.last.index() - objects.first.index() + 1
};

const _: () = assert!(ObjectId::FILE_SYSTEM_MAX < ObjectId::VOLUME_MAX);

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every input bit changes half of the output bits,
/// and no two inputs have the same output. Inodes that follow each other begin in groups far apart.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use weft_types::VolumeState;
    use weft_types::{
        FileSystem, Generation, ListedShard, PoolId, Protection, SpanGroups, VolumeId, VolumeKind,
    };

    fn file_system(sets: &[&[u64]]) -> Volume {
        let set = |groups: &&[u64]| groups.iter().copied().map(GroupId).collect::<SpanGroups>();
        let files = FileSystem {
            sets: sets.iter().map(set).collect(),
            shards: vec![ListedShard::new(VolumeId(9))],
            is_spread: false,
        };
        Volume {
            id: VolumeId(8),
            name: "f".into(),
            pool: PoolId(1),
            size: BlockCount(0),
            protection: Protection::mirror(2),
            striping: crate::default_striping(9),
            spans: vec![],
            generation: Generation(1),
            state: VolumeState::Ready,
            thin: true,
            created_ms: 0,
            kind: VolumeKind::Files(files),
        }
    }

    #[test]
    fn objects_of_a_file_go_round_its_set_from_a_place_of_its_own() {
        let volume = file_system(&[&[1, 2, 3], &[7, 8, 9, 10]]);
        let groups = |set, inode| -> Vec<u64> {
            (0..5).filter_map(|i| group_of_file(&volume, set, inode, i)).map(|g| g.0).collect()
        };
        // The places are for ever: files are found by them.
        assert_eq!(groups(0, 1), [2, 3, 1, 2, 3]);
        assert_eq!(groups(1, 1), [8, 9, 10, 7, 8]);
        assert_eq!(groups(1, 2), [9, 10, 7, 8, 9]);
        assert_eq!(groups(2, 1), [0; 0], "there is no such set");
        let blocks = Volume { kind: VolumeKind::Blocks, ..volume.clone() };
        assert_eq!(group_of_file(&blocks, 0, 1, 0), None);
        assert_eq!(group_of_file(&file_system(&[&[]]), 0, 1, 0), None);
        assert!(group_of_file(&volume, 0, u64::MAX, u32::MAX).is_some());
    }

    #[test]
    fn a_group_that_a_set_names_twice_gets_twice_as_much() {
        let volume = file_system(&[&[1, 2, 1, 3]]);
        let mut files: BTreeMap<u64, u32> = BTreeMap::new();
        for inode in 0..40_000 {
            *files.entry(group_of_file(&volume, 0, inode, 0).expect("it has one").0).or_default() += 1;
        }
        let near = |count: u32, expected: u32| count.abs_diff(expected) < expected / 20;
        assert!(near(files[&1], 20_000) && near(files[&2], 10_000) && near(files[&3], 10_000), "{files:?}");
    }

    #[test]
    fn a_layout_has_twelve_bytes() {
        let layout = FileLayout { set: 3, copies: 2, unit_blocks: 0x0004_0100, width: 0x0102 };
        assert_eq!(layout.encode(), [1, 3, 2, 0, 0, 1, 4, 0, 2, 1, 0, 0]);
        for (at, byte) in [(0, 0), (0, 2), (3, 1), (10, 1), (11, 1)] {
            let mut bytes = layout.encode();
            bytes[at] = byte;
            assert_eq!(FileLayout::decode(&bytes), Err(LayoutError::Form { form: bytes[0] }), "{at}");
        }
    }

    #[test]
    fn a_layout_that_does_not_fit_the_file_system_is_refused() {
        let volume = file_system(&[&[1], &[2, 3]]);
        let layout = FileLayout::default_of(&volume).expect("it is a file system");
        assert_eq!((layout.set, layout.copies), (1, 2));
        assert_eq!(layout.striping(&volume), Ok(volume.striping));
        let of = |layout: FileLayout| layout.striping(&volume);
        assert_eq!(of(FileLayout { set: 2, ..layout }), Err(LayoutError::NoSet { set: 2, sets: 2 }));
        let copies = LayoutError::OtherCopies { copies: 3, expected: 2 };
        assert_eq!(of(FileLayout { copies: 3, ..layout }), Err(copies));
        assert!(of(FileLayout { width: 0, ..layout }).is_err());
        assert!(of(FileLayout { unit_blocks: 3, ..layout }).is_err());
        assert!(of(FileLayout { unit_blocks: 2 * OBJECT_BLOCKS_MAX, ..layout }).is_err());
        let blocks = Volume { kind: VolumeKind::Blocks, ..volume.clone() };
        assert_eq!(FileLayout::default_of(&blocks), None);
        assert!(layout.striping(&blocks).is_err());
    }

    #[test]
    fn the_largest_file_has_as_many_objects_as_numbers() {
        let striping = Striping { unit_blocks: 1, width: 3, object_blocks: 4 };
        assert_eq!(file_blocks_max(&striping), BlockCount(((1 << 32) - 1) * 4), "2^32 is no multiple of 3");
        let last = crate::pieces(&striping, weft_types::Lba(file_blocks_max(&striping).0 - 1), 1).last();
        assert_eq!(last.map(|piece| piece.object_index), Some((1 << 32) - 2));
    }

    proptest! {
        #[test]
        fn a_layout_is_read_as_it_was_written(set: u8, copies: u8, unit_blocks: u32, width: u16) {
            let layout = FileLayout { set, copies, unit_blocks, width };
            prop_assert_eq!(FileLayout::decode(&layout.encode()), Ok(layout));
        }

        #[test]
        fn any_bytes_are_a_layout_or_refused(bytes: [u8; 12]) {
            if let Ok(layout) = FileLayout::decode(&bytes) {
                prop_assert_eq!(layout.encode(), bytes);
                let _ = layout.striping(&file_system(&[&[1]]));
            }
        }
    }
}
