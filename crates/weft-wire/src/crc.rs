//! CRC-32C (Castagnoli), which the catalogue of parametrised CRC algorithms lists as CRC-32/ISCSI: of each block, of each
//! frame's front, and of whatever else is written to a drive or a file.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC-32C of some bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Pieces of so many bytes together are brought together first: one sum over bytes that follow each other costs less than
/// to go on with one.
const TOGETHER_BYTES: usize = 256;

/// The CRC-32C of several pieces taken as one.
pub fn crc32c_of_all<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let (mut together, mut len) = ([0; TOGETHER_BYTES], 0);
    let mut pieces = pieces.into_iter();
    let too_long = loop {
        let Some(piece) = pieces.next() else { return crc32c(&together[..len]) };
        match together.get_mut(len..len + piece.len()) {
            Some(place) => place.copy_from_slice(piece),
            None => break piece,
        }
        len += piece.len();
    };
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&together[..len]);
    digest.update(too_long);
    pieces.for_each(|piece| digest.update(piece));
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bit by bit, as the polynomial says (RFC 3720, appendix B.4, has the values of `known_sums`).
    fn slow(bytes: &[u8]) -> u32 {
        let bit = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| bit(crc)))
    }

    #[test]
    fn known_sums() {
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&rising), 0x46dd_794e);
        assert_eq!(crc32c(&[]), 0);
    }

    proptest! {
        /// Lengths and places on both sides of every width that the instructions have.
        #[test]
        fn sums_are_those_of_the_polynomial(
            bytes in prop::collection::vec(any::<u8>(), 0..9000),
            cuts in (0usize..70, 0usize..400, 0usize..9000),
        ) {
            let part = &bytes[cuts.0.min(bytes.len())..];
            let (head, rest) = part.split_at(cuts.1.min(part.len()));
            let (middle, tail) = rest.split_at(cuts.2.min(rest.len()));
            prop_assert_eq!(crc32c(part), slow(part));
            prop_assert_eq!(crc32c_of_all([head, middle, tail]), slow(part));
            prop_assert_eq!(crc32c_of_all([head]), slow(head));
        }
    }
}
