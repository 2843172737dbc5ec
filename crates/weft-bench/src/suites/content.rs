//! What test files hold: bytes that follow from a seed, the number of a file and an offset, and from
//! nothing else.
//!
//! Each sector of 512 bytes begins with a stamp of 8 bytes that no other sector has; the other bytes are
//! pseudo-random and repeat after 1 MiB. So a transfer costs a few stamps instead of a pass over all of its
//! bytes, and a sector that is damaged, old, of another file or of another place differs from what is
//! expected. The first stamp of a file is the seed itself: a later run learns the seed from the file, and
//! knows that the file is one of these.

use super::mix::mix;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// After how many bytes all but the stamps repeat: more than the window of the compressors that file
/// systems use.
const PERIOD: usize = 1 << 20;

/// Bytes of a sector.
const SECTOR: u64 = 512;

/// Bytes of a stamp.
const STAMP: usize = 8;

/// Bytes that a file needs for it to be known as one of these: the seed, and 56 bytes that follow from it.
const KNOWN_BY: usize = 64;

/// What the kernel wants buffers of direct requests to be aligned to, on every file system that is known.
const ALIGNMENT: usize = 4096;

/// Memory whose first byte is aligned for direct requests.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    from: usize,
    length: usize,
}

impl Buffer {
    /// Zeroes of this length.
    pub(crate) fn new(length: usize) -> Buffer {
        let bytes = vec![0; length + ALIGNMENT];
        let from = bytes.as_ptr().align_offset(ALIGNMENT);
        Buffer { bytes, from, length }
    }

    pub(crate) fn all(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.length]
    }
}

/// A byte that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongByte {
    /// Where in the file.
    pub(crate) offset: u64,
    pub(crate) expected: u8,
    pub(crate) found: u8,
}

/// The content of one file.
#[derive(Debug)]
pub(crate) struct Content {
    seed: u64,
    file: u64,
    buffer: Buffer,
}

impl Content {
    /// Of a file, for transfers up to this length.
    pub(crate) fn new(seed: u64, file: u64, transfer: usize) -> Content {
        let mut buffer = Buffer::new(PERIOD + transfer);
        for (n, word) in buffer.all().chunks_mut(STAMP).enumerate() {
            let bytes = base(seed, (n * STAMP % PERIOD / STAMP) as u64).to_le_bytes();
            word.copy_from_slice(&bytes[..word.len()]);
        }
        Content { seed, file, buffer }
    }

    /// Of another file, with the same seed.
    pub(crate) fn set_file(&mut self, file: u64) {
        self.file = file;
    }

    /// The bytes that belong there. They are aligned as the offset is.
    pub(crate) fn at(&mut self, offset: u64, length: usize) -> &[u8] {
        let (seed, file) = (self.seed, self.file);
        let from = (offset % PERIOD as u64) as usize;
        let bytes = &mut self.buffer.all()[from..from + length];
        let end = offset + length as u64;
        let mut sector = offset / SECTOR;
        while sector * SECTOR < end {
            let word = stamp(seed, file, sector).to_le_bytes();
            // The first and the last stamp may be cut off.
            let (begin, stop) = ((sector * SECTOR).max(offset), (sector * SECTOR + STAMP as u64).min(end));
            if begin < stop {
                let part = &word[(begin - sector * SECTOR) as usize..(stop - sector * SECTOR) as usize];
                bytes[(begin - offset) as usize..(stop - offset) as usize].copy_from_slice(part);
            }
            sector += 1;
        }
        bytes
    }

    /// The first byte that is not what belongs there.
    pub(crate) fn wrong(&mut self, offset: u64, found: &[u8]) -> Option<WrongByte> {
        let expected = self.at(offset, found.len());
        if expected == found {
            return None;
        }
        let at = expected.iter().zip(found).position(|(a, b)| a != b)?;
        Some(WrongByte { offset: offset + at as u64, expected: expected[at], found: found[at] })
    }
}

/// The seed of the content of an open file; none if the file does not begin as one of these does.
///
/// # Errors
/// Those of reading.
pub(crate) fn seed_of(file: &File) -> io::Result<Option<u64>> {
    // A file that is open for direct requests wants whole blocks.
    let mut buffer = Buffer::new(ALIGNMENT);
    let length = file.read_at(buffer.all(), 0)?;
    let head = &buffer.all()[..length];
    let Some((first, rest)) = head.split_at_checked(STAMP).filter(|_| length >= KNOWN_BY) else {
        return Ok(None);
    };
    let seed = u64::from_le_bytes(first.try_into().expect("a stamp has 8 bytes"));
    let is_known = (1..).zip(rest[..KNOWN_BY - STAMP].chunks(STAMP)).all(|(n, word)| {
        let expected = base(seed, n).to_le_bytes();
        word == expected
    });
    Ok(is_known.then_some(seed))
}

/// A word of what repeats.
fn base(seed: u64, word: u64) -> u64 {
    mix(seed.wrapping_add(mix(word)))
}

fn stamp(seed: u64, file: u64, sector: u64) -> u64 {
    match sector {
        0 => seed,
        _ => mix(mix(seed ^ mix(file.wrapping_add(1))).wrapping_add(sector)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(seed: u64, file: u64, length: usize) -> Vec<u8> {
        Content::new(seed, file, length).at(0, length).to_vec()
    }

    #[test]
    fn content_follows_from_the_offset_however_it_is_cut() {
        let whole = all(7, 3, 3 << 20);
        for transfer in [1_usize, 3, 500, 4096, 47_008] {
            let mut content = Content::new(7, 3, transfer);
            for at in (0..whole.len() - transfer).step_by(transfer.max(99_991)) {
                assert!(content.at(at as u64, transfer) == &whole[at..at + transfer], "{transfer} at {at}");
            }
        }
    }

    #[test]
    fn no_two_sectors_are_equal_in_one_file_or_in_two() {
        let mut seen = std::collections::BTreeSet::new();
        for file in 0..3 {
            let bytes = all(1, file, 2 << 20);
            // The first sector is the same in all: it says what the seed is.
            let skipped = usize::from(file > 0);
            assert!(bytes.chunks(512).skip(skipped).all(|sector| seen.insert(sector.to_vec())), "{file}");
        }
        assert!(all(1, 0, 4096)[512..] != all(2, 0, 4096)[512..]);
    }

    #[test]
    fn a_byte_that_was_changed_is_found() {
        let mut bytes = all(9, 1, 100_000);
        let mut content = Content::new(9, 1, 100_000);
        assert_eq!(content.wrong(0, &bytes), None);
        bytes[70_001] ^= 1;
        let wrong = content.wrong(0, &bytes).expect("it differs");
        assert_eq!((wrong.offset, wrong.expected ^ wrong.found), (70_001, 1));
        // Old bytes of the same place 1 MiB before are noticed by their stamps alone.
        let early = content.at(0, 4096).to_vec();
        assert_eq!(content.wrong(1 << 20, &early).map(|wrong| wrong.offset / 8), Some((1 << 20) / 8));
    }

    #[test]
    fn buffers_are_aligned() {
        let mut content = Content::new(1, 0, 8192);
        for offset in [0, 4096, 512 * 4096 + 8192] {
            assert!(content.at(offset, 4096).as_ptr().addr().is_multiple_of(ALIGNMENT));
        }
    }
}
