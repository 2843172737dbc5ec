//! What a write puts in blocks, and buffers taken as one run of bytes.

use weft_rt::Buf;
use weft_types::{BLOCK_SIZE, BlockRange};
use weft_wire::{crc32c, crc32c_of_all};

/// What a write puts in its blocks.
#[derive(Clone)]
pub(crate) enum Payload {
    /// Data, whole blocks, with the CRC-32C of each.
    Data { bufs: Vec<Buf>, crcs: Vec<u32> },
    /// Zeroes: the blocks' places are given back.
    Zero,
}

impl Payload {
    /// Data, whole blocks, with checksums made here: targets and whoever reads check them.
    pub(crate) fn of(bufs: Vec<Buf>) -> Payload {
        let crcs = block_crcs(&bufs);
        Payload::Data { bufs, crcs }
    }

    /// The payload of the blocks `part` out of those of `whole`.
    pub(crate) fn slice(&self, whole: BlockRange, part: BlockRange) -> Payload {
        match self {
            Payload::Zero => Payload::Zero,
            _ if whole == part => self.clone(),
            Payload::Data { bufs, crcs } => {
                let first = (part.first - whole.first) as usize;
                Payload::Data {
                    bufs: cut(bufs, first * BLOCK_SIZE, part.bytes()),
                    crcs: crcs[first..first + part.count as usize].to_vec(),
                }
            }
        }
    }
}

/// `len` bytes from `start` of the buffers taken as one.
///
/// # Panics
/// If they are shorter.
pub(crate) fn cut(bufs: &[Buf], start: usize, len: usize) -> Vec<Buf> {
    let (mut skip, mut left) = (start, len);
    let mut out = Vec::with_capacity(bufs.len().min(2));
    for buf in bufs {
        if left == 0 {
            break;
        }
        if skip >= buf.len() {
            skip -= buf.len();
            continue;
        }
        let n = left.min(buf.len() - skip);
        out.push(buf.slice(skip..skip + n));
        (skip, left) = (0, left - n);
    }
    assert_eq!(left, 0, "the buffers are shorter than the range");
    out
}

/// Copies the buffers, one behind the other, to the beginning of `out`.
///
/// # Panics
/// If it is shorter.
pub(crate) fn fill(mut out: &mut [u8], bufs: &[Buf]) {
    for buf in bufs {
        let (now, later) = out.split_at_mut(buf.len());
        now.copy_from_slice(buf);
        out = later;
    }
}

/// The CRC-32C of each block of the buffers taken as one.
fn block_crcs(bufs: &[Buf]) -> Vec<u32> {
    let mut crcs = Vec::with_capacity(bufs.iter().map(|b| b.len()).sum::<usize>() / BLOCK_SIZE);
    // Of a block that is cut: its bytes so far.
    let (mut pieces, mut have): (Vec<&[u8]>, usize) = (Vec::new(), 0);
    for buf in bufs {
        let mut rest = &buf[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(BLOCK_SIZE - have));
            rest = later;
            if now.len() == BLOCK_SIZE {
                crcs.push(crc32c(now));
                continue;
            }
            pieces.push(now);
            have += now.len();
            if have == BLOCK_SIZE {
                crcs.push(crc32c_of_all(pieces.drain(..)));
                have = 0;
            }
        }
    }
    assert_eq!(have, 0, "whole blocks");
    crcs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_do_not_depend_on_how_the_bytes_are_cut() {
        let bytes: Vec<u8> = (0..3 * BLOCK_SIZE).map(|i| (i * 7 % 251) as u8).collect();
        let whole = Buf::from(bytes);
        let pieces = [whole.slice(0..100), whole.slice(100..5000), whole.slice(5000..3 * BLOCK_SIZE)];
        assert_eq!(block_crcs(std::slice::from_ref(&whole)), block_crcs(&pieces));
        assert_eq!(block_crcs(&[whole]).len(), 3);
    }
}
