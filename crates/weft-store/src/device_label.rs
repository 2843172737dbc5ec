//! The label of a device of several parts: which drives lie on it, and where. It is the device's first and
//! its last block; each part is a drive as it is alone on a device, with its own label in its own window.
//!
//! It owns the bytes, and what a device and its parts have to do with each other. A device without it is one
//! drive. See docs/format/device.md.

use crate::label::{LABEL_MAGIC, Label};
use crate::{StoreError, foreign};
use weft_rt::{Buf, BufMut, Drive, Extent};
use weft_types::limits::{DEVICE_EXTENTS_MAX, DEVICE_PARTS_MAX};
use weft_types::{BLOCK_SIZE, DeviceId, DriveId, FabricId};
use weft_wire::{DecodeError, Decoder, Encoder, crc32c};

/// The first bytes of a device of several parts, of every format version.
pub(crate) const DEVICE_MAGIC: [u8; 8] = *b"WEFTDEVC";

/// The format that this program writes; it refuses newer ones.
pub(crate) const DEVICE_FORMAT: u16 = 1;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The checksum's place, the block's last four bytes, in every format version.
const CRC_AT: usize = BLOCK_SIZE - 4;

/// Bytes at each end of a device that belong to no part, and what parts begin and end at multiples of: what
/// devices erase at once is a power of two up to that as a rule.
const ALIGN_BYTES: u64 = 1 << 20;

// 72 bytes in front, 18 for each part, 16 for each extent, and the checksum.
const _: () = assert!(72 + 18 * DEVICE_PARTS_MAX + 16 * DEVICE_EXTENTS_MAX <= CRC_AT);

/// A part of a device: a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The identity that the part's own label must have.
    pub drive: DriveId,
    /// Where on the device it lies: one extent behind the other are its bytes.
    pub extents: Vec<Extent>,
}

impl Part {
    /// The part's size.
    pub fn size_bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.len).sum()
    }
}

/// Which drives lie on a device, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLabel {
    /// The format of the label.
    pub format: u16,
    /// The fabric that all parts belong to.
    pub fabric: FabricId,
    /// The device's identity; a copy of the device has the same.
    pub device: DeviceId,
    /// The device's size when it was formatted.
    pub size_bytes: u64,
    /// When it was formatted, in microseconds since 1970-01-01T00:00:00Z.
    pub created_us: u64,
    /// The parts, by index. They do not overlap.
    pub parts: Vec<Part>,
}

impl DeviceLabel {
    /// Parts of one size for these drives, on a device of this size. Parts without any bytes are possible:
    /// the caller has to look whether each is large enough.
    pub(crate) fn parts_of(size_bytes: u64, drives: &[DriveId]) -> Vec<Part> {
        let room = size_bytes.saturating_sub(2 * ALIGN_BYTES) / drives.len().max(1) as u64;
        let len = room - room % ALIGN_BYTES;
        let part = |(index, drive): (u64, &DriveId)| Part {
            drive: *drive,
            extents: vec![Extent { start: ALIGN_BYTES + index * len, len }],
        };
        (0..).zip(drives).map(part).collect()
    }

    /// A part as a drive by itself. `opened` is the whole device, opened anywhere in this process.
    ///
    /// Its [`Drive::device`] is the physical device where the kernel tells it, so that parts of two
    /// partitions of one disk are not taken for two devices; otherwise the label's.
    ///
    /// # Errors
    /// `NoSuchPart` if there are fewer; `DeviceLabelDamaged` if what was opened is too small.
    pub fn part(&self, opened: &Drive, index: usize) -> Result<Drive, StoreError> {
        let parts = self.parts.len();
        let part = self.parts.get(index).ok_or(StoreError::NoSuchPart { index, parts })?;
        let device = opened.device().unwrap_or(self.device);
        let window = opened.window(&part_path(opened.path(), index), device, &part.extents);
        window.map_err(|error| StoreError::DeviceLabelDamaged { reason: error.to_string() })
    }

    /// Compares a part's own label with what is listed of it here.
    ///
    /// # Errors
    /// `WrongPart` with what differs: the label of another drive, or of a drive of another size or fabric,
    /// has come to this place.
    pub fn check_part(&self, index: usize, label: &Label) -> Result<(), StoreError> {
        let parts = self.parts.len();
        let part = self.parts.get(index).ok_or(StoreError::NoSuchPart { index, parts })?;
        let what = |name, found: String, listed: String| {
            Err(StoreError::WrongPart { index, what: name, found, listed })
        };
        if label.drive != part.drive {
            return what("drive", label.drive.to_string(), part.drive.to_string());
        }
        if label.fabric != self.fabric {
            return what("fabric", label.fabric.to_string(), self.fabric.to_string());
        }
        if label.size_bytes != part.size_bytes() {
            return what("size", label.size_bytes.to_string(), part.size_bytes().to_string());
        }
        Ok(())
    }

    /// The label as a block.
    pub(crate) fn encode(&self) -> BufMut {
        let mut e = Encoder::with_capacity(512);
        e.bytes(&DEVICE_MAGIC).u16(self.format).u16(self.parts.len() as u16).u32(0);
        e.bytes(&self.fabric.to_bytes()).bytes(&self.device.to_bytes());
        e.u64(self.size_bytes).u64(self.created_us).u64(0);
        for part in &self.parts {
            e.bytes(&part.drive.to_bytes()).u16(part.extents.len() as u16);
            for extent in &part.extents {
                e.u64(extent.start).u64(extent.len);
            }
        }
        let mut block = BufMut::zeroed(BLOCK_SIZE);
        block[..e.0.len()].copy_from_slice(&e.0);
        let crc = crc32c(&block[..CRC_AT]);
        block[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Reads a label.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(crate) fn decode(block: &[u8]) -> Result<DeviceLabel, DeviceFault> {
        if block.len() != BLOCK_SIZE || block[..8] != DEVICE_MAGIC {
            return Err(DeviceFault::NotALabel);
        }
        let crc = u32::from_le_bytes(block[CRC_AT..].try_into().expect("four bytes"));
        if crc32c(&block[..CRC_AT]) != crc {
            return Err(DeviceFault::Damaged("its checksum is wrong".into()));
        }
        let format = u16::from_le_bytes([block[8], block[9]]);
        if format > DEVICE_FORMAT {
            return Err(DeviceFault::Newer(format));
        }
        let (label, must_know) =
            decode_fields(&block[8..CRC_AT]).map_err(|error| DeviceFault::Damaged(error.to_string()))?;
        if must_know != 0 {
            return Err(DeviceFault::Unknown(format!("uses {must_know:#x}")));
        }
        label.check().map_err(DeviceFault::Damaged)?;
        Ok(label)
    }

    /// Whether the parts are parts: each a drive of its own, of whole blocks between the labels, which no
    /// other part has.
    fn check(&self) -> Result<(), String> {
        let (parts, size) = (self.parts.len(), self.size_bytes);
        if !(1..=DEVICE_PARTS_MAX).contains(&parts) {
            return Err(format!("it lists {parts} parts, a device has 1 to {DEVICE_PARTS_MAX}"));
        }
        if !size.is_multiple_of(BLOCK) || size < 3 * BLOCK {
            return Err(format!("a device of {size} bytes has no room for parts"));
        }
        let mut taken: Vec<(Extent, usize)> = Vec::new();
        for (index, part) in self.parts.iter().enumerate() {
            if self.parts[..index].iter().any(|other| other.drive == part.drive) {
                return Err(format!("two parts are drive {}", part.drive));
            }
            if part.extents.is_empty() {
                return Err(format!("part {index} has no place"));
            }
            taken.extend(part.extents.iter().map(|extent| (*extent, index)));
        }
        if taken.len() > DEVICE_EXTENTS_MAX {
            return Err(format!("{} extents, at most {DEVICE_EXTENTS_MAX} fit", taken.len()));
        }
        taken.sort();
        let mut free_from = BLOCK;
        for (extent, index) in taken {
            let Extent { start, len } = extent;
            if !start.is_multiple_of(BLOCK) || !len.is_multiple_of(BLOCK) || len == 0 {
                return Err(format!("part {index}: {len} bytes at {start} are no whole blocks"));
            }
            if start < free_from {
                return Err(format!("part {index}: {len} bytes at {start} overlap what lies before"));
            }
            free_from = match extent.end() {
                Some(end) if end <= size - BLOCK => end,
                _ => return Err(format!("part {index}: {len} bytes at {start} leave the device")),
            };
        }
        Ok(())
    }

    /// Reads the label of a device from either copy; none if it is not a device of several parts. The second
    /// result says at which bytes a copy needs repair.
    ///
    /// # Errors
    /// If there is a label and it cannot be used, or the device is truncated.
    pub(crate) async fn read(drive: &Drive) -> Result<Option<(DeviceLabel, Vec<u64>)>, StoreError> {
        let size = drive.size_bytes();
        if size < 3 * BLOCK {
            return Ok(None);
        }
        let first = match drive.read(0, BLOCK_SIZE).await {
            Ok(block) if block[..8] == LABEL_MAGIC => return Ok(None),
            Ok(block) => Self::decode(&block),
            Err(_) => Err(DeviceFault::Unreadable),
        };
        let expected_bytes = first.as_ref().map_or(size, |label| label.size_bytes);
        if size < expected_bytes {
            return Err(StoreError::Truncated { found_bytes: size, expected_bytes });
        }
        let last = expected_bytes - BLOCK;
        let second = match drive.read(last, BLOCK_SIZE).await {
            Ok(block) => Self::decode(&block),
            Err(_) => Err(DeviceFault::Unreadable),
        };
        use DeviceFault::{Damaged, Newer, NotALabel, Unknown, Unreadable};
        match (first, second) {
            (Err(Newer(found)), _) | (_, Err(Newer(found))) => {
                Err(StoreError::NewerDevice { found, known: DEVICE_FORMAT })
            }
            (Err(Unknown(found)), _) | (_, Err(Unknown(found))) => {
                Err(StoreError::Unknown { what: "the device's label", found })
            }
            (Ok(a), Ok(b)) if a == b => Ok(Some((a, Vec::new()))),
            (Ok(a), _) => Ok(Some((a, vec![last]))),
            (Err(_), Ok(b)) if b.size_bytes == size => Ok(Some((b, vec![0]))),
            (Err(Damaged(reason)), _) | (_, Err(Damaged(reason))) => {
                Err(StoreError::DeviceLabelDamaged { reason })
            }
            (Err(NotALabel | Unreadable), Err(NotALabel | Unreadable)) => Ok(None),
            (Err(NotALabel | Unreadable), Ok(b)) => Err(StoreError::DeviceLabelDamaged {
                reason: format!("it is at the end of {size} bytes, and says {}", b.size_bytes),
            }),
        }
    }

    /// Writes the copies at these bytes.
    pub(crate) async fn write(&self, drive: &Drive, places: &[u64]) -> Result<(), StoreError> {
        let block: Buf = self.encode().freeze();
        for at in places {
            let written = drive.write(*at, block.clone()).await;
            written.map_err(|error| StoreError::io("write", *at, BLOCK, error))?;
        }
        let flushed = drive.flush().await;
        flushed.map_err(|error| StoreError::io("flush", 0, 0, error))
    }
}

/// The fields behind the magic, and the uses that a program must know.
fn decode_fields(bytes: &[u8]) -> Result<(DeviceLabel, u64), DecodeError> {
    let mut d = Decoder::new(bytes);
    let (format, count) = (d.u16()?, d.u16()?);
    d.u32()?;
    let (fabric, device) = (FabricId::from_bytes(d.array()?), DeviceId::from_bytes(d.array()?));
    let (size_bytes, created_us, must_know) = (d.u64()?, d.u64()?, d.u64()?);
    let mut parts = Vec::new();
    for _ in 0..count {
        let (drive, extents) = (DriveId::from_bytes(d.array()?), d.u16()?);
        if usize::from(extents) > DEVICE_EXTENTS_MAX {
            return Err(DecodeError::Invalid { field: "extents", value: extents.into() });
        }
        let extents = (0..extents).map(|_| Ok(Extent { start: d.u64()?, len: d.u64()? }));
        parts.push(Part { drive, extents: extents.collect::<Result<_, DecodeError>>()? });
    }
    Ok((DeviceLabel { format, fabric, device, size_bytes, created_us, parts }, must_know))
}

/// How a part of a device is named: `PATH#INDEX`.
pub(crate) fn part_path(device: &str, index: usize) -> String {
    format!("{device}#{index}")
}

/// Why a block is not a device's label that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceFault {
    /// It does not begin like one.
    NotALabel,
    /// It cannot be read from the device.
    Unreadable,
    /// Its checksum or fields are wrong.
    Damaged(String),
    /// It is of this newer format.
    Newer(u16),
    /// It is used in a way that this program does not know.
    Unknown(String),
}

/// Refuses a device that is not empty: with a label of several parts, of a drive, or anything else.
pub(crate) async fn refuse_what_is_there(drive: &Drive) -> Result<(), StoreError> {
    match DeviceLabel::read(drive).await {
        Ok(Some((label, _))) => {
            let (fabric, device, parts) = (label.fabric, label.device, label.parts.len());
            return Err(StoreError::FormattedAsDevice { fabric, device, parts });
        }
        Ok(None) => {}
        Err(StoreError::Io { operation, offset_bytes, length_bytes, source }) => {
            return Err(StoreError::Io { operation, offset_bytes, length_bytes, source });
        }
        Err(other) => return Err(StoreError::ForeignData { found: format!("a Weft label: {other}") }),
    }
    match Label::read(drive).await {
        Ok((label, _)) => {
            return Err(StoreError::FormattedAlready { fabric: label.fabric, drive: label.drive });
        }
        Err(StoreError::NotWeft { .. }) => {}
        Err(StoreError::Io { operation, offset_bytes, length_bytes, source }) => {
            return Err(StoreError::Io { operation, offset_bytes, length_bytes, source });
        }
        Err(other) => return Err(StoreError::ForeignData { found: format!("a Weft label: {other}") }),
    }
    match foreign::look(drive).await? {
        Some(found) => Err(StoreError::ForeignData { found }),
        None => Ok(()),
    }
}

#[cfg(test)]
pub(crate) fn sample(size_bytes: u64) -> DeviceLabel {
    let drives = [DriveId::from_random(2), DriveId::from_random(3)];
    DeviceLabel {
        format: DEVICE_FORMAT,
        fabric: FabricId::from_random(1),
        device: DeviceId::from_random(4),
        size_bytes,
        created_us: 1_700_000_000_000_000,
        parts: DeviceLabel::parts_of(size_bytes, &drives),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 64 << 20;

    fn fault(label: &DeviceLabel) -> String {
        match DeviceLabel::decode(&label.encode()) {
            Err(DeviceFault::Damaged(reason)) => reason,
            other => panic!("not refused: {other:?}"),
        }
    }

    /// The label with its parts in these extents, of which a part may have several.
    fn lying(parts: &[&[(u64, u64)]]) -> DeviceLabel {
        let label = sample(SIZE);
        let extent = |(start, len): &(u64, u64)| Extent { start: *start, len: *len };
        let part = |(n, extents): (usize, &&[(u64, u64)])| Part {
            drive: DriveId::from_random(n as u128),
            extents: extents.iter().map(extent).collect(),
        };
        DeviceLabel { parts: parts.iter().enumerate().map(part).collect(), ..label }
    }

    #[test]
    fn a_label_reads_back_and_every_flipped_bit_is_seen() {
        let label = sample(SIZE);
        let block = label.encode();
        assert_eq!(DeviceLabel::decode(&block), Ok(label));
        for at in (0..BLOCK_SIZE).step_by(61).chain(CRC_AT..BLOCK_SIZE) {
            let mut bad = BufMut::copy_of(&block);
            bad[at] ^= 4;
            assert!(DeviceLabel::decode(&bad).is_err(), "byte {at}");
        }
        let several = lying(&[&[(BLOCK, BLOCK), (4 * BLOCK, BLOCK)], &[(2 * BLOCK, 2 * BLOCK)]]);
        assert_eq!(DeviceLabel::decode(&several.encode()), Ok(several));
        let most: Vec<(u64, u64)> = (1..=DEVICE_EXTENTS_MAX as u64).map(|n| (n * BLOCK, BLOCK)).collect();
        let most = lying(&[&most]);
        assert_eq!(DeviceLabel::decode(&most.encode()), Ok(most), "as many extents as there may be fit");
    }

    #[test]
    fn parts_that_are_none_are_refused_by_name() {
        let end = SIZE - BLOCK;
        for (parts, why) in [
            (&[][..], "lists 0 parts"),
            (&[&[(BLOCK, BLOCK)][..]; 9], "lists 9 parts"),
            (&[&[][..]], "part 0 has no place"),
            (&[&[(BLOCK, 4 * BLOCK)][..], &[(4 * BLOCK, BLOCK)]], "part 1: 4096 bytes at 16384 overlap"),
            (&[&[(0, 4 * BLOCK)][..]], "overlap what lies before"),
            (&[&[(BLOCK, end)][..]], "leave the device"),
            (&[&[(end, BLOCK)][..]], "leave the device"),
            (&[&[(BLOCK, u64::MAX - 4095)][..]], "leave the device"),
            (&[&[(BLOCK + 512, BLOCK)][..]], "no whole blocks"),
            (&[&[(BLOCK, 0)][..]], "no whole blocks"),
        ] {
            let found = fault(&lying(parts));
            assert!(found.contains(why), "{parts:?}: {found}");
        }
        let mut twice = sample(SIZE);
        twice.parts[1].drive = twice.parts[0].drive;
        assert!(fault(&twice).contains("two parts are drive"));
        let tiny = DeviceLabel { size_bytes: BLOCK, ..sample(SIZE) };
        assert!(fault(&tiny).contains("no room for parts"));
    }

    #[test]
    fn newer_labels_are_told_apart_from_damage() {
        let newer = DeviceLabel { format: DEVICE_FORMAT + 1, ..sample(SIZE) };
        assert_eq!(DeviceLabel::decode(&newer.encode()), Err(DeviceFault::Newer(DEVICE_FORMAT + 1)));
        let mut used = sample(SIZE).encode();
        used[64] = 1;
        let crc = crc32c(&used[..CRC_AT]);
        used[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(DeviceLabel::decode(&used), Err(DeviceFault::Unknown("uses 0x1".into())));
    }

    #[test]
    fn parts_leave_both_ends_and_are_of_one_size() {
        let drives: Vec<DriveId> = (0..8).map(DriveId).collect();
        for size in [64 << 20, (64 << 20) + 4096, 1 << 40, 3 << 20] {
            for count in [1, 2, 4, 8] {
                let parts = DeviceLabel::parts_of(size, &drives[..count]);
                assert_eq!(parts.len(), count);
                let first = parts[0].extents[0];
                for (n, part) in (0..).zip(&parts) {
                    let extent = part.extents[0];
                    assert_eq!(extent.start, ALIGN_BYTES + n * first.len);
                    assert!(extent.len == first.len && extent.start + extent.len <= size - ALIGN_BYTES);
                }
            }
        }
    }
}
