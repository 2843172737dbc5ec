//! Objects and their owners: what data belongs to, in 128 bits.

use crate::VolumeId;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// What an object belongs to.
///
/// A file system is an entry in the fabric map's table of volumes. So each owner belongs to one
/// such entry, and sessions, generation and deletion go by that entry: see [`Owner::volume`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A block volume. Its id is below 2^63.
    Volume(VolumeId),
    /// A file.
    Inode {
        /// The file system, as an entry of the table of volumes. Its id is below 2^31.
        file_system: VolumeId,
        /// The inode number inside the file system.
        inode: u64,
    },
}

impl Owner {
    /// The entry of the fabric map's table of volumes that the owner is part of: the volume itself,
    /// or the file system of the inode.
    pub const fn volume(self) -> VolumeId {
        match self {
            Owner::Volume(volume) => volume,
            Owner::Inode { file_system, .. } => file_system,
        }
    }

    /// The objects that the owner may have.
    pub const fn objects(self) -> ObjectRange {
        let last = match self {
            Owner::Volume(_) => u64::MAX,
            Owner::Inode { .. } => u32::MAX as u64,
        };
        ObjectRange { first: ObjectId::new(self, 0), last: ObjectId::new(self, last) }
    }
}

impl From<VolumeId> for Owner {
    fn from(volume: VolumeId) -> Owner {
        Owner::Volume(volume)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Volume(volume) => write!(f, "{volume}"),
            Owner::Inode { file_system, inode } => write!(f, "{file_system}:{inode}"),
        }
    }
}

/// A numbered run of blocks that lives in one group: its owner, and its index among the owner's objects.
///
/// Persisted and sent as 16 bytes, big-endian, so that byte order is key order. The highest bit
/// says what the rest is: 0, volume 63 bits, index 64 bits; or 1, file system 31 bits, inode 64
/// bits, index 32 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(u128);

/// The highest bit of an object that belongs to an inode.
const OF_INODE: u128 = 1 << 127;

/// Where the fields of an inode's object begin, in bits from the lowest.
const INODE_SHIFT: u32 = 32;
const FILE_SYSTEM_SHIFT: u32 = 96;

/// Where the volume of a volume's object begins.
const VOLUME_SHIFT: u32 = 64;

impl ObjectId {
    /// The lowest of all objects.
    pub const FIRST: ObjectId = ObjectId(0);

    /// The highest volume id that has room in an object id.
    pub const VOLUME_MAX: u64 = (1 << 63) - 1;

    /// The highest file system id that has room in an object id.
    pub const FILE_SYSTEM_MAX: u64 = (1 << 31) - 1;

    /// The object of an owner with this index.
    ///
    /// # Panics
    /// If a part does not fit its bits: a volume of 2^63 or more, a file system of 2^31 or more, or
    /// the index of an inode's object of 2^32 or more. The manager gives out no such ids.
    pub const fn new(owner: Owner, index: u64) -> Self {
        match owner {
            Owner::Volume(volume) => {
                assert!(volume.0 <= Self::VOLUME_MAX, "the volume's id has more than 63 bits");
                ObjectId((volume.0 as u128) << VOLUME_SHIFT | index as u128)
            }
            Owner::Inode { file_system, inode } => {
                assert!(file_system.0 <= Self::FILE_SYSTEM_MAX, "the file system's id has more than 31 bits");
                assert!(index <= u32::MAX as u64, "the index of an inode's object has more than 32 bits");
                let owner = (file_system.0 as u128) << FILE_SYSTEM_SHIFT | (inode as u128) << INODE_SHIFT;
                ObjectId(OF_INODE | owner | index as u128)
            }
        }
    }

    /// The object of a volume with this index. Panics as [`ObjectId::new`] does.
    pub const fn of_volume(volume: VolumeId, index: u64) -> Self {
        ObjectId::new(Owner::Volume(volume), index)
    }

    /// What the object belongs to.
    pub const fn owner(self) -> Owner {
        if self.0 & OF_INODE == 0 {
            return Owner::Volume(VolumeId((self.0 >> VOLUME_SHIFT) as u64));
        }
        Owner::Inode {
            file_system: VolumeId((self.0 >> FILE_SYSTEM_SHIFT) as u64 & Self::FILE_SYSTEM_MAX),
            inode: (self.0 >> INODE_SHIFT) as u64,
        }
    }

    /// The object's number among those of its owner.
    pub const fn index(self) -> u64 {
        if self.0 & OF_INODE == 0 { self.0 as u64 } else { self.0 as u32 as u64 }
    }

    /// The object whose key comes next, whatever its owner. None behind the highest of all.
    pub fn following(self) -> Option<ObjectId> {
        self.0.checked_add(1).map(ObjectId)
    }

    /// The 16 bytes as persisted and sent.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The object with these 16 bytes. Every value is an object.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        ObjectId(u128::from_be_bytes(bytes))
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner(), self.index())
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A run of objects in key order. Never empty: `first` is at most `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectRange {
    /// The first object.
    pub first: ObjectId,
    /// The last object, which is part of the run.
    pub last: ObjectId,
}

impl ObjectRange {
    /// The objects of an entry of the table of volumes: those of the volume, and those of all
    /// inodes if it is a file system. An entry is one or the other, and its number is never used
    /// again.
    pub fn of_entry(volume: VolumeId) -> impl Iterator<Item = ObjectRange> {
        let is_file_system = volume.0 <= ObjectId::FILE_SYSTEM_MAX;
        let inode = is_file_system.then(|| ObjectId::new(Owner::Inode { file_system: volume, inode: 0 }, 0));
        let objects = [Some(ObjectId::of_volume(volume, 0)), inode];
        objects.into_iter().flatten().map(ObjectRange::of_entry_around)
    }

    /// The objects of the entry that this object belongs to, as far as they are of the same kind as it.
    pub fn of_entry_around(object: ObjectId) -> ObjectRange {
        match object.owner() {
            owner @ Owner::Volume(_) => owner.objects(),
            Owner::Inode { file_system, .. } => ObjectRange {
                first: Owner::Inode { file_system, inode: 0 }.objects().first,
                last: Owner::Inode { file_system, inode: u64::MAX }.objects().last,
            },
        }
    }

    /// Whether the object is part of the run.
    pub fn contains(&self, object: ObjectId) -> bool {
        self.first <= object && object <= self.last
    }
}

/// An object as JSON has it: `{"volume":1,"index":2}`, or `{"file_system":1,"inode":2,"index":3}`.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Document {
    Volume { volume: VolumeId, index: u64 },
    Inode { file_system: VolumeId, inode: u64, index: u32 },
}

impl Serialize for ObjectId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let document = match self.owner() {
            Owner::Volume(volume) => Document::Volume { volume, index: self.index() },
            Owner::Inode { file_system, inode } => {
                Document::Inode { file_system, inode, index: self.0 as u32 }
            }
        };
        document.serialize(s)
    }
}

impl<'de> Deserialize<'de> for ObjectId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let too_large = |id: VolumeId| serde::de::Error::custom(format!("{id} is too large for an object"));
        match Document::deserialize(d)? {
            Document::Volume { volume, .. } if volume.0 > Self::VOLUME_MAX => Err(too_large(volume)),
            Document::Volume { volume, index } => Ok(ObjectId::of_volume(volume, index)),
            Document::Inode { file_system, .. } if file_system.0 > Self::FILE_SYSTEM_MAX => {
                Err(too_large(file_system))
            }
            Document::Inode { file_system, inode, index } => {
                Ok(ObjectId::new(Owner::Inode { file_system, inode }, u64::from(index)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owners() -> impl Strategy<Value = Owner> {
        prop_oneof![
            (0..=ObjectId::VOLUME_MAX).prop_map(|id| Owner::Volume(VolumeId(id))),
            (0..=ObjectId::FILE_SYSTEM_MAX, any::<u64>())
                .prop_map(|(id, inode)| Owner::Inode { file_system: VolumeId(id), inode }),
        ]
    }

    fn objects() -> impl Strategy<Value = ObjectId> {
        (owners(), any::<u64>()).prop_map(|(owner, index)| match owner {
            Owner::Volume(_) => ObjectId::new(owner, index),
            Owner::Inode { .. } => ObjectId::new(owner, u64::from(index as u32)),
        })
    }

    proptest! {
        #[test]
        fn owner_and_index_read_back(object in objects()) {
            prop_assert_eq!(ObjectId::new(object.owner(), object.index()), object);
            prop_assert_eq!(ObjectId::from_bytes(object.to_bytes()), object);
            prop_assert!(object.owner().objects().contains(object));
            let json = serde_json::to_string(&object).expect("it serialises");
            prop_assert_eq!(serde_json::from_str::<ObjectId>(&json).expect("it reads back"), object);
        }

        #[test]
        fn byte_order_is_owner_and_index_order(a in objects(), b in objects()) {
            prop_assert_eq!(a.cmp(&b), a.to_bytes().cmp(&b.to_bytes()));
            prop_assert_eq!(a.cmp(&b), (a.owner(), a.index()).cmp(&(b.owner(), b.index())));
        }

        #[test]
        fn owners_do_not_share_objects(a in owners(), b in owners()) {
            let shares = a.objects().contains(b.objects().first) || a.objects().contains(b.objects().last);
            prop_assert_eq!(shares, a == b);
        }

        #[test]
        fn an_entry_has_the_objects_of_its_owners_only(a in objects(), b in objects()) {
            let entry = a.owner().volume();
            let is_inside = ObjectRange::of_entry(entry).any(|range| range.contains(b));
            prop_assert_eq!(is_inside, b.owner().volume() == entry);
            prop_assert!(ObjectRange::of_entry_around(a).contains(a));
            prop_assert!(ObjectRange::of_entry(entry).any(|range| range == ObjectRange::of_entry_around(a)));
        }

        #[test]
        fn every_16_bytes_are_an_object(bytes: [u8; 16]) {
            let object = ObjectId::from_bytes(bytes);
            prop_assert_eq!(object.to_bytes(), bytes);
            prop_assert_eq!(ObjectId::new(object.owner(), object.index()), object);
        }
    }

    #[test]
    fn the_object_of_a_volume_is_what_the_first_release_wrote() {
        let object = ObjectId::of_volume(VolumeId(0x0102), 0x0304);
        assert_eq!(object.to_bytes(), [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3, 4]);
        assert_eq!(serde_json::to_string(&object).expect("it serialises"), r#"{"volume":258,"index":772}"#);
        assert_eq!(object.to_string(), "vol258/772");
    }

    #[test]
    fn ids_that_do_not_fit_are_refused_in_documents() {
        for text in [
            r#"{"volume":9223372036854775808,"index":0}"#,
            r#"{"file_system":2147483648,"inode":1,"index":0}"#,
            r#"{"file_system":1,"inode":1,"index":4294967296}"#,
            r#"{"index":4}"#,
        ] {
            assert!(serde_json::from_str::<ObjectId>(text).is_err(), "{text}");
        }
    }
}
