//! Identifiers. None is ever reused within a fabric.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// A text that is not an identifier of the kind asked for.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{text}' is not a {kind}: {expected}")]
pub struct ParseIdError {
    text: String,
    kind: &'static str,
    expected: &'static str,
}

/// Where a UUID's text has hyphens.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

/// A UUID as text. Maps are full of them, and are written and read whole: nothing is allocated on the way.
struct UuidText([u8; 36]);

impl UuidText {
    fn of(value: u128) -> UuidText {
        let mut text = [b'-'; 36];
        let mut shift = u128::BITS;
        for (at, byte) in text.iter_mut().enumerate() {
            if !HYPHENS.contains(&at) {
                shift -= 4;
                *byte = b"0123456789abcdef"[(value >> shift) as usize & 0xf];
            }
        }
        UuidText(text)
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("digits and hyphens")
    }
}

/// The UUID that a text spells.
fn uuid_of(text: &[u8]) -> Option<u128> {
    if text.len() != 36 {
        return None;
    }
    let mut value = 0;
    for (at, byte) in text.iter().enumerate() {
        if HYPHENS.contains(&at) {
            if *byte != b'-' {
                return None;
            }
        } else {
            value = value << 4 | u128::from(char::from(*byte).to_digit(16)?);
        }
    }
    Some(value)
}

/// Takes an identifier from its text.
struct TextVisitor<T>(PhantomData<T>);

impl<T: FromStr<Err = ParseIdError>> serde::de::Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl $name {
            /// The 16 bytes as persisted and sent: big-endian, the order in which the text reads.
            pub const fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            /// The identifier with these 16 bytes.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(u128::from_be_bytes(bytes))
            }

            /// A random (version 4) UUID made from 128 random bits (RFC 9562, section 5.4).
            pub const fn from_random(bits: u128) -> Self {
                let bits = bits & !(0xf << 76) | (0x4 << 76);
                Self(bits & !(0x3 << 62) | (0x2 << 62))
            }

            /// The first eight digits: enough for people to tell two apart on a screen.
            pub fn short(self) -> String {
                format!("{:08x}", (self.0 >> 96) as u32)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(UuidText::of(self.0).as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", $kind)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                uuid_of(text.as_bytes()).map(Self).ok_or_else(|| ParseIdError {
                    text: text.to_owned(),
                    kind: $kind,
                    expected: "expected 32 hexadecimal digits as 8-4-4-4-12",
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(UuidText::of(self.0).as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                d.deserialize_str(TextVisitor(PhantomData))
            }
        }
    };
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $int:ty, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(pub $int);

        impl<'de> Deserialize<'de> for $name {
            /// From a number; or from its digits, as JSON has it where it is the key of a map.
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let number = d.deserialize_any(NumberVisitor)?;
                <$int>::try_from(number)
                    .map($name)
                    .map_err(|_| serde::de::Error::custom(format!("{number} is too large for {}", $prefix)))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }
    };
}

/// Takes a number, or its digits.
struct NumberVisitor;

impl serde::de::Visitor<'_> for NumberVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number without sign")
    }

    fn visit_u64<E: serde::de::Error>(self, v: u64) -> Result<u64, E> {
        Ok(v)
    }

    fn visit_i64<E: serde::de::Error>(self, v: i64) -> Result<u64, E> {
        u64::try_from(v).map_err(|_| E::invalid_value(serde::de::Unexpected::Signed(v), &self))
    }

    fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<u64, E> {
        v.parse().map_err(|_| E::invalid_value(serde::de::Unexpected::Str(v), &self))
    }
}

uuid_id!(
    /// One Weft cluster.
    FabricId,
    "fabric id"
);
uuid_id!(
    /// One drive, from its label; a drive formatted anew is another drive.
    DriveId,
    "drive id"
);
uuid_id!(
    /// What fails as one device: a drive has one for itself, or shares it with other partitions or
    /// namespaces of the device that it is on. Two devices of one node have different ones; those of two
    /// nodes may have the same.
    DeviceId,
    "device id"
);

impl DeviceId {
    /// The device of a drive that shares it with no other.
    pub const fn of_drive(drive: DriveId) -> DeviceId {
        DeviceId(drive.0)
    }

    /// The device that its maker, or the kernel, has given this name. The same text always has the same
    /// number, on every machine: FNV-1a with 128 bits, which is no secret and takes no two devices of a
    /// machine for one.
    pub fn of_name(name: &str) -> DeviceId {
        const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        DeviceId(name.bytes().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME)))
    }
}

number_id!(
    /// A list of groups that volumes share.
    GroupTableId,
    u64,
    "gt"
);
number_id!(
    /// A machine in the fabric.
    NodeId,
    u32,
    "n"
);
number_id!(
    /// A target of a node: what serves some of the node's drives, under a lease of its own.
    TargetId,
    u32,
    "t"
);

impl TargetId {
    /// The first target of a node: it has the node's number. Nodes and targets get their numbers from one
    /// counter, so no other target has it.
    pub const fn first_of(node: NodeId) -> TargetId {
        TargetId(node.0)
    }
}

number_id!(
    /// A set of drives that volumes draw from.
    PoolId,
    u32,
    "p"
);
number_id!(
    /// A set of drives that hold the same data.
    GroupId,
    u64,
    "g"
);
number_id!(
    /// A named, sized address space.
    VolumeId,
    u64,
    "vol"
);
number_id!(
    /// A client's attach to a volume; monotone over the fabric's whole life.
    SessionId,
    u64,
    "s"
);
/// A request of a client, as logs name it: the same on every machine that it reaches. Written `s7-1093`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// The session that asks.
    pub session: SessionId,
    /// Counts the session's requests, from 1; it begins anew after 2^32. 0 is what nobody numbered.
    pub number: u32,
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.session, self.number)
    }
}

number_id!(
    /// A volume's counter of exclusive attaches and preemptions; fences older clients.
    Generation,
    u64,
    "gen"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_reads_back_as_it_prints() {
        let id = DriveId::from_random(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        assert_eq!(id.to_string().parse::<DriveId>(), Ok(id));
        assert_eq!(id.to_string().as_bytes()[14], b'4', "version 4");
        assert_eq!(DriveId::from_bytes(id.to_bytes()), id);
        assert_eq!(
            DriveId(0x0a_0000_0000_0000_0000_0000_0000_000f).to_string(),
            "000a0000-0000-0000-0000-00000000000f"
        );
        assert_eq!("ABCDEF01-0000-0000-0000-000000000000".parse(), Ok(DriveId(0xabcd_ef01 << 96)));
    }

    #[test]
    fn what_is_no_uuid_is_refused() {
        for text in [
            "",
            "xyz",
            "0123456789abcdef0123456789abcdef",
            "+1234567-0000-0000-0000-000000000000",
            "01234567-00000-000-0000-000000000000",
            "01234567-0000-0000-0000-00000000000-",
            "01234567-0000-0000-0000-0000000000000",
            "01234567-0000-0000-0000-0000000000é",
        ] {
            assert!(text.parse::<DriveId>().is_err(), "{text}");
        }
    }
}
