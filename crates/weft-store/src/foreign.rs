//! Recognises what other programs put on drives, so that formatting never destroys it by mistake.

use crate::StoreError;
use crate::device_label::DEVICE_MAGIC;
use weft_rt::Drive;
use weft_types::BLOCK_SIZE;

/// How much of the start and of the end must be zeroes on a drive that counts as empty: all the signatures
/// below and the usual boot code lie within it.
const LOOK_BYTES: u64 = 64 << 10;

/// A signature: name, offset, bytes.
type Signature = (&'static str, usize, &'static [u8]);

/// What is recognised. Offsets from each format's own description; those beyond the first 64 KiB (btrfs)
/// are read on their own.
const SIGNATURES: &[Signature] = &[
    ("a Weft device of several parts", 0, &DEVICE_MAGIC),
    ("an ext2, ext3 or ext4 file system", 0x438, &[0x53, 0xef]),
    ("an XFS file system", 0, b"XFSB"),
    ("a LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table (4 KiB sectors)", 4096, b"EFI PART"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 0, b"LABELONE"),
    ("a swap area", 4086, b"SWAPSPACE2"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 82, b"FAT32   "),
    ("a FAT file system", 54, b"FAT1"),
    ("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("a bcache device", 4120, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]),
    ("a Linux software RAID member", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a Linux software RAID member", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a Ceph BlueStore device", 0, b"bluestore block device"),
    ("a SquashFS file system", 0, b"hsqs"),
    ("an ISO 9660 image", 0x8001, b"CD001"),
    ("a boot sector or MBR partition table", 510, &[0x55, 0xaa]),
];

/// The btrfs superblock lies at 64 KiB, its magic 64 bytes in.
const BTRFS: (u64, usize, &[u8]) = (64 << 10, 64, b"_BHRfS_M");

/// The ZFS uberblocks begin at 128 KiB in each label; the magic may be of either byte order.
const ZFS_UBERBLOCKS: u64 = 128 << 10;
const ZFS_MAGIC: u64 = 0x00ba_b10c;

/// Says what is on the drive, or `None` if it looks empty.
///
/// # Errors
/// If the drive cannot be read.
pub(crate) async fn look(drive: &Drive) -> Result<Option<String>, StoreError> {
    let size = drive.size_bytes();
    let head = read(drive, 0, LOOK_BYTES.min(size)).await?;
    if let Some((name, at, _)) = SIGNATURES.iter().find(|s| matches(&head, s)) {
        return Ok(Some(format!("{name} (signature at byte {at})")));
    }
    let (at, offset, magic) = BTRFS;
    if size >= at + BLOCK_SIZE as u64 {
        let block = read(drive, at, BLOCK_SIZE as u64).await?;
        if block[offset..].starts_with(magic) {
            return Ok(Some(format!("a btrfs file system (signature at byte {})", at + offset as u64)));
        }
    }
    if size >= 2 * ZFS_UBERBLOCKS {
        let array = read(drive, ZFS_UBERBLOCKS, ZFS_UBERBLOCKS).await?;
        let is_uberblock = |b: &[u8]| {
            let word = u64::from_le_bytes(b[..8].try_into().expect("eight bytes"));
            word == ZFS_MAGIC || word.swap_bytes() == ZFS_MAGIC
        };
        if array.chunks_exact(1024).any(is_uberblock) {
            return Ok(Some("a ZFS pool member (uberblocks at byte 131072)".to_owned()));
        }
    }
    if let Some(at) = head.iter().position(|b| *b != 0) {
        return Ok(Some(format!("data that is not recognised, the first at byte {at}")));
    }
    let tail_at = size.saturating_sub(LOOK_BYTES);
    let tail = read(drive, tail_at, size - tail_at).await?;
    if tail[..].windows(8).any(|w| w == b"EFI PART") {
        return Ok(Some("the backup of a GPT partition table at the drive's end".to_owned()));
    }
    Ok(tail.iter().position(|b| *b != 0).map(|at| {
        format!("data that is not recognised, at byte {}, near the drive's end", tail_at + at as u64)
    }))
}

fn matches(head: &[u8], signature: &Signature) -> bool {
    let (_, at, magic) = signature;
    head.get(*at..at + magic.len()).is_some_and(|found| found == *magic)
}

async fn read(drive: &Drive, offset: u64, len: u64) -> Result<weft_rt::BufMut, StoreError> {
    drive.read(offset, len as usize).await.map_err(|e| StoreError::io("read", offset, len, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_rt::sim::{Sim, SimDisk};

    fn seen(offset: u64, bytes: &'static [u8]) -> Option<String> {
        Sim::new(1).block_on(async move {
            let disk = SimDisk::new("d", 4 << 20);
            disk.poke(offset, bytes);
            let drive = disk.open().unwrap();
            look(&drive).await.unwrap()
        })
    }

    #[test]
    fn every_signature_is_named_and_an_empty_drive_is_empty() {
        for (name, at, magic) in SIGNATURES {
            let found = seen(*at as u64, magic).expect(name);
            assert!(found.starts_with(name), "{found} for {name}");
        }
        assert!(seen(65_600, b"_BHRfS_M").unwrap().contains("btrfs"));
        assert!(seen(131_072 + 4096, b"\x0c\xb1\xba\x00\x00\x00\x00\x00").unwrap().contains("ZFS"));
        assert!(seen(777, b"x").unwrap().contains("byte 777"));
        assert!(seen((4 << 20) - 1, b"x").unwrap().contains("4194303"));
        assert!(seen((4 << 20) - 4096, b"EFI PART").unwrap().contains("GPT"));
        assert_eq!(seen(2 << 20, b"x"), None, "data in the middle alone is not looked for");
    }
}
