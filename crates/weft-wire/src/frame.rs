//! Frames: how messages follow each other on a connection.
//!
//! ```text
//! offset size field (little-endian)
//!      0    4 magic      "WEFT"
//!      4    2 kind       what the head means
//!      6    2 status     of an answer; 0 in a request
//!      8    8 request    chosen by the side that asks; the answer repeats it; see [`Envelope::number`]
//!     16    4 head_len   bytes of the head, at most FRAME_HEAD_MAX
//!     20    4 body_len   bytes of the body, at most FRAME_BODY_MAX
//!     24    2 flags      1: is an answer; 2: wants none; 4: the body is blocks (protocol 2)
//!     26    2 zero
//!     28    4 crc        CRC-32C of bytes 0..28 and the head
//!     32      head, then body
//! ```
//! The body is not covered: data blocks carry a checksum each, in the head, made by the client.

use crate::{DecodeError, Decoder, Encoder, crc32c_of_all};
use weft_types::limits::{FRAME_BODY_MAX, FRAME_HEAD_MAX};

/// "WEFT" in little-endian order.
pub const MAGIC: u32 = u32::from_le_bytes(*b"WEFT");

/// Bytes of an envelope.
pub const ENVELOPE_BYTES: usize = 32;

/// Flag: this frame answers a request.
pub const FLAG_ANSWER: u16 = 1;

/// Flag: the sender wants no answer.
pub const FLAG_ONE_WAY: u16 = 2;

/// Flag: the body is data blocks, each with a checksum that its users verify. A transport through shared
/// memory leaves them where they lie. Only for peers of protocol 2 or newer ([`PROTOCOL_OF_BLOCKS`]): older
/// ones refuse it.
pub const FLAG_BLOCKS: u16 = 4;

/// The first protocol that knows [`FLAG_BLOCKS`].
pub const PROTOCOL_OF_BLOCKS: u16 = 2;

/// The fixed part in front of every message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// What the head means; see [`crate::Kind`].
    pub kind: u16,
    /// How the request ended; see [`crate::Status`].
    pub status: u16,
    /// Chosen by the side that asks; the answer repeats it.
    pub request: u64,
    /// Bytes of the head.
    pub head_len: u32,
    /// Bytes of the body.
    pub body_len: u32,
    /// [`FLAG_ANSWER`], [`FLAG_ONE_WAY`], [`FLAG_BLOCKS`].
    pub flags: u16,
}

impl Envelope {
    /// The upper half of `request`: how the side that asks counts its requests, for logs; 0 where it does
    /// not. What is sent to several replicas, or again, has the same number.
    pub const fn number(&self) -> u32 {
        (self.request >> 32) as u32
    }

    /// Writes envelope and head, checksummed, to the end of `out`.
    ///
    /// # Panics
    /// If the head is not `head_len` long or a length passes its limit: a bug of the caller.
    pub fn encode(&self, head: &[u8], out: &mut Vec<u8>) {
        assert_eq!(head.len(), self.head_len as usize);
        assert!(head.len() <= FRAME_HEAD_MAX && self.body_len as usize <= FRAME_BODY_MAX);
        let start = out.len();
        let mut e = Encoder(std::mem::take(out));
        e.u32(MAGIC).u16(self.kind).u16(self.status).u64(self.request);
        e.u32(self.head_len).u32(self.body_len).u16(self.flags).u16(0);
        let crc = crc32c_of_all([&e.0[start..], head]);
        e.u32(crc).bytes(head);
        *out = e.0;
    }

    /// Reads an envelope and the checksum that follows it; the head comes next, see [`Envelope::verify`].
    ///
    /// # Errors
    /// If this is no Weft frame, or a length passes its limit.
    pub fn decode(bytes: &[u8; ENVELOPE_BYTES]) -> Result<Envelope, DecodeError> {
        let mut d = Decoder::new(bytes);
        let magic = d.u32()?;
        if magic != MAGIC {
            return Err(DecodeError::Magic(magic));
        }
        let envelope = Envelope {
            kind: d.u16()?,
            status: d.u16()?,
            request: d.u64()?,
            head_len: d.u32()?,
            body_len: d.u32()?,
            flags: d.u16()?,
        };
        let invalid = |field, value| Err(DecodeError::Invalid { field, value });
        if envelope.head_len as usize > FRAME_HEAD_MAX {
            return invalid("head_len", u64::from(envelope.head_len));
        }
        if envelope.body_len as usize > FRAME_BODY_MAX {
            return invalid("body_len", u64::from(envelope.body_len));
        }
        if envelope.flags & !(FLAG_ANSWER | FLAG_ONE_WAY | FLAG_BLOCKS) != 0 {
            return invalid("flags", u64::from(envelope.flags));
        }
        Ok(envelope)
    }

    /// Compares the checksum in the envelope's bytes with these bytes and the head.
    ///
    /// # Errors
    /// If they differ: the frame was damaged, and so is everything after it on this connection.
    pub fn verify(bytes: &[u8; ENVELOPE_BYTES], head: &[u8]) -> Result<(), DecodeError> {
        let found = u32::from_le_bytes(bytes[28..32].try_into().expect("4 bytes"));
        let expected = crc32c_of_all([&bytes[..28], head]);
        if found != expected {
            return Err(DecodeError::Checksum { found, expected });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Envelope, Vec<u8>) {
        let envelope = Envelope { kind: 18, status: 0, request: 7, head_len: 3, body_len: 4096, flags: 0 };
        let mut bytes = Vec::new();
        envelope.encode(b"abc", &mut bytes);
        (envelope, bytes)
    }

    #[test]
    fn an_envelope_reads_back() {
        let (envelope, bytes) = sample();
        let fixed: &[u8; ENVELOPE_BYTES] = bytes[..ENVELOPE_BYTES].try_into().unwrap();
        assert_eq!(Envelope::decode(fixed), Ok(envelope));
        assert_eq!(Envelope::verify(fixed, &bytes[ENVELOPE_BYTES..]), Ok(()));
    }

    #[test]
    fn the_bytes_are_those_of_protocols_1_to_3() {
        let (_, bytes) = sample();
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "5745465412000000070000000000000003000000001000000000000007f60668616263");
        assert_eq!(
            (crate::PROTOCOL_OLDEST, crate::PROTOCOL),
            (1, 3),
            "a change of these bytes is a new protocol"
        );
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (_, bytes) = sample();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let fixed: &[u8; ENVELOPE_BYTES] = bad[..ENVELOPE_BYTES].try_into().unwrap();
            let noticed =
                Envelope::decode(fixed).is_err() || Envelope::verify(fixed, &bad[ENVELOPE_BYTES..]).is_err();
            // The two reserved bytes are covered by the checksum too.
            assert!(noticed, "bit {bit}");
        }
    }
}
