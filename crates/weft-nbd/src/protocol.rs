//! The NBD protocol's numbers under the specification's names, and its messages to and from bytes.
//!
//! Everything on the wire is big-endian (section "Conventions"). Parsing is pure: bytes in, a typed value or a
//! refusal out; nothing here reads, writes, or knows of volumes.

use weft_types::limits::NBD_ERROR_TEXT_BYTES_MAX;

/// Section "Newstyle negotiation": `INIT_PASSWD`, the first eight bytes of a server.
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Section "Newstyle negotiation": `IHAVEOPT`, before the handshake flags and before each option.
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// Section "Fixed newstyle negotiation": before each reply to an option.
pub const NBD_REP_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Section "Request message".
pub const NBD_REQUEST_MAGIC: u32 = 0x2560_9513;
/// Section "Simple reply message".
pub const NBD_SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Section "Structured reply chunk message".
pub const NBD_STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flag: the server speaks fixed newstyle.
pub const NBD_FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag: the 124 zero bytes after `NBD_OPT_EXPORT_NAME` can be left out.
pub const NBD_FLAG_NO_ZEROES: u16 = 1 << 1;
/// Client flag: the client speaks fixed newstyle.
pub const NBD_FLAG_C_FIXED_NEWSTYLE: u32 = 1 << 0;
/// Client flag: leave the 124 zero bytes out.
pub const NBD_FLAG_C_NO_ZEROES: u32 = 1 << 1;

/// Transmission flag: always set.
pub const NBD_FLAG_HAS_FLAGS: u16 = 1 << 0;
/// Transmission flag: writes will fail.
pub const NBD_FLAG_READ_ONLY: u16 = 1 << 1;
/// Transmission flag: `NBD_CMD_FLUSH` is served.
pub const NBD_FLAG_SEND_FLUSH: u16 = 1 << 2;
/// Transmission flag: `NBD_CMD_FLAG_FUA` is honoured.
pub const NBD_FLAG_SEND_FUA: u16 = 1 << 3;
/// Transmission flag: `NBD_CMD_TRIM` is served.
pub const NBD_FLAG_SEND_TRIM: u16 = 1 << 5;
/// Transmission flag: `NBD_CMD_WRITE_ZEROES` is served.
pub const NBD_FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
/// Transmission flag: `NBD_CMD_FLAG_DF` is honoured; only with structured replies.
pub const NBD_FLAG_SEND_DF: u16 = 1 << 7;
/// Transmission flag: what one connection flushed, every connection sees.
pub const NBD_FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
/// Transmission flag: `NBD_CMD_CACHE` is served.
pub const NBD_FLAG_SEND_CACHE: u16 = 1 << 10;
/// Transmission flag: `NBD_CMD_FLAG_FAST_ZERO` is honoured.
pub const NBD_FLAG_SEND_FAST_ZERO: u16 = 1 << 11;

/// Option: choose an export and begin, with no way to report an error.
pub const NBD_OPT_EXPORT_NAME: u32 = 1;
/// Option: end the session.
pub const NBD_OPT_ABORT: u32 = 2;
/// Option: list the exports.
pub const NBD_OPT_LIST: u32 = 3;
/// Option: encrypt from here on. Not offered.
pub const NBD_OPT_STARTTLS: u32 = 5;
/// Option: describe an export.
pub const NBD_OPT_INFO: u32 = 6;
/// Option: describe an export and begin.
pub const NBD_OPT_GO: u32 = 7;
/// Option: answer reads in chunks.
pub const NBD_OPT_STRUCTURED_REPLY: u32 = 8;
/// Option: list metadata contexts.
pub const NBD_OPT_LIST_META_CONTEXT: u32 = 9;
/// Option: choose metadata contexts.
pub const NBD_OPT_SET_META_CONTEXT: u32 = 10;
/// Option: 64-bit lengths. Not offered.
pub const NBD_OPT_EXTENDED_HEADERS: u32 = 11;

/// Option reply: done.
pub const NBD_REP_ACK: u32 = 1;
/// Option reply: one export of a list.
pub const NBD_REP_SERVER: u32 = 2;
/// Option reply: one piece of information on an export.
pub const NBD_REP_INFO: u32 = 3;
/// Option reply: one metadata context.
pub const NBD_REP_META_CONTEXT: u32 = 4;
/// Option reply: the option is not known here.
pub const NBD_REP_ERR_UNSUP: u32 = (1 << 31) + 1;
/// Option reply: the option's data makes no sense.
pub const NBD_REP_ERR_INVALID: u32 = (1 << 31) + 3;
/// Option reply: there is no such export.
pub const NBD_REP_ERR_UNKNOWN: u32 = (1 << 31) + 6;
/// Option reply: the server, or the export, is going away.
pub const NBD_REP_ERR_SHUTDOWN: u32 = (1 << 31) + 7;
/// Option reply: the option is too large.
pub const NBD_REP_ERR_TOO_BIG: u32 = (1 << 31) + 9;

/// Information: size and transmission flags.
pub const NBD_INFO_EXPORT: u16 = 0;
/// Information: the canonical name.
pub const NBD_INFO_NAME: u16 = 1;
/// Information: a text for people.
pub const NBD_INFO_DESCRIPTION: u16 = 2;
/// Information: smallest, preferred and largest request.
pub const NBD_INFO_BLOCK_SIZE: u16 = 3;

/// The one metadata context of the specification (section "Metadata querying").
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The number under which [`BASE_ALLOCATION`] is answered: any constant does.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// Status flag of `base:allocation`: takes no space.
pub const NBD_STATE_HOLE: u32 = 1 << 0;
/// Status flag of `base:allocation`: reads as zeroes.
pub const NBD_STATE_ZERO: u32 = 1 << 1;

/// Command: read.
pub const NBD_CMD_READ: u16 = 0;
/// Command: write; its data follows.
pub const NBD_CMD_WRITE: u16 = 1;
/// Command: finish what is in flight and close; has no reply.
pub const NBD_CMD_DISC: u16 = 2;
/// Command: make completed writes durable.
pub const NBD_CMD_FLUSH: u16 = 3;
/// Command: a range is no longer needed.
pub const NBD_CMD_TRIM: u16 = 4;
/// Command: a range will soon be read.
pub const NBD_CMD_CACHE: u16 = 5;
/// Command: make a range zero.
pub const NBD_CMD_WRITE_ZEROES: u16 = 6;
/// Command: describe a range in the chosen metadata contexts.
pub const NBD_CMD_BLOCK_STATUS: u16 = 7;

/// Command flag: durable before the reply.
pub const NBD_CMD_FLAG_FUA: u16 = 1 << 0;
/// Command flag of `NBD_CMD_WRITE_ZEROES`: do not give the space back.
pub const NBD_CMD_FLAG_NO_HOLE: u16 = 1 << 1;
/// Command flag of `NBD_CMD_READ`: at most one content chunk.
pub const NBD_CMD_FLAG_DF: u16 = 1 << 2;
/// Command flag of `NBD_CMD_BLOCK_STATUS`: one extent is enough.
pub const NBD_CMD_FLAG_REQ_ONE: u16 = 1 << 3;
/// Command flag of `NBD_CMD_WRITE_ZEROES`: fail unless it is faster than writing.
pub const NBD_CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

/// Flag of a chunk: the last of its reply.
pub const NBD_REPLY_FLAG_DONE: u16 = 1 << 0;
/// Chunk: nothing.
pub const NBD_REPLY_TYPE_NONE: u16 = 0;
/// Chunk: data at an offset.
pub const NBD_REPLY_TYPE_OFFSET_DATA: u16 = 1;
/// Chunk: zeroes at an offset.
pub const NBD_REPLY_TYPE_OFFSET_HOLE: u16 = 2;
/// Chunk: extents of one metadata context.
pub const NBD_REPLY_TYPE_BLOCK_STATUS: u16 = 5;
/// Chunk: an error and a text.
pub const NBD_REPLY_TYPE_ERROR: u16 = (1 << 15) + 1;

/// An error number of the protocol (section "Error values").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub u32);

/// Operation not permitted: a write to a read-only export.
pub const NBD_EPERM: Errno = Errno(1);
/// Input/output error.
pub const NBD_EIO: Errno = Errno(5);
/// Invalid argument.
pub const NBD_EINVAL: Errno = Errno(22);
/// No space left on device, or a write past its end.
pub const NBD_ENOSPC: Errno = Errno(28);
/// Value too large: a read longer than a reply may be.
pub const NBD_EOVERFLOW: Errno = Errno(75);
/// The server, or the attach behind the export, is over.
pub const NBD_ESHUTDOWN: Errno = Errno(108);

/// The bytes at this place are not what the specification puts there; the connection is of no further use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:#x} is not the magic number of {what}")]
pub struct BadMagic {
    /// What should have been there.
    pub what: &'static str,
    /// The number found.
    pub found: u64,
}

/// A client's name for a request; the server repeats it in the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie(pub u64);

/// A request as it is on the wire (section "Request message"); nothing in it has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// `NBD_CMD_FLAG_*`.
    pub flags: u16,
    /// `NBD_CMD_*`.
    pub command: u16,
    /// The client's name for the request.
    pub cookie: Cookie,
    /// In bytes from the export's start.
    pub offset: u64,
    /// In bytes.
    pub length: u32,
}

impl RequestHeader {
    /// Bytes on the wire.
    pub const BYTES: usize = 28;

    /// Reads a header.
    ///
    /// # Errors
    /// [`BadMagic`] if it is none.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Result<RequestHeader, BadMagic> {
        let magic = be_u32(bytes, 0);
        if magic != NBD_REQUEST_MAGIC {
            return Err(BadMagic { what: "a request", found: u64::from(magic) });
        }
        Ok(RequestHeader {
            flags: be_u16(bytes, 4),
            command: be_u16(bytes, 6),
            cookie: Cookie(be_u64(bytes, 8)),
            offset: be_u64(bytes, 16),
            length: be_u32(bytes, 24),
        })
    }

    /// The header as bytes, as a client sends it.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&NBD_REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.0.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// The fixed part of an option (section "Fixed newstyle negotiation").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// `NBD_OPT_*`.
    pub option: u32,
    /// Bytes of data that follow.
    pub length: u32,
}

impl OptionHeader {
    /// Bytes on the wire.
    pub const BYTES: usize = 16;

    /// Reads a header.
    ///
    /// # Errors
    /// [`BadMagic`] if it is none.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Result<OptionHeader, BadMagic> {
        let magic = be_u64(bytes, 0);
        if magic != IHAVEOPT {
            return Err(BadMagic { what: "an option", found: magic });
        }
        Ok(OptionHeader { option: be_u32(bytes, 8), length: be_u32(bytes, 12) })
    }
}

/// Appends a reply to an option.
pub fn encode_option_reply(option: u32, reply: u32, data: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(data.len()).expect("replies to options are small");
    out.extend(NBD_REP_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(reply.to_be_bytes());
    out.extend(length.to_be_bytes());
    out.extend(data);
}

/// Appends the fixed part of a simple reply.
pub fn encode_simple_reply(error: Option<Errno>, cookie: Cookie, out: &mut Vec<u8>) {
    out.extend(NBD_SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend(error.map_or(0, |e| e.0).to_be_bytes());
    out.extend(cookie.0.to_be_bytes());
}

/// Appends the fixed part of a chunk; `length` bytes of payload follow it.
pub fn encode_chunk(kind: u16, is_last: bool, cookie: Cookie, length: u32, out: &mut Vec<u8>) {
    out.extend(NBD_STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out.extend(if is_last { NBD_REPLY_FLAG_DONE } else { 0 }.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(cookie.0.to_be_bytes());
    out.extend(length.to_be_bytes());
}

/// Appends a whole reply that says that a request failed, and why.
pub fn encode_error_chunk(error: Errno, text: &str, cookie: Cookie, out: &mut Vec<u8>) {
    let text = cut_text(text);
    encode_chunk(NBD_REPLY_TYPE_ERROR, true, cookie, 6 + text.len() as u32, out);
    out.extend(error.0.to_be_bytes());
    out.extend((text.len() as u16).to_be_bytes());
    out.extend(text.as_bytes());
}

/// The beginning of a text, cut at a character so that it fits a message.
pub fn cut_text(text: &str) -> &str {
    let mut end = text.len().min(NBD_ERROR_TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Reads fields of variable length, one after another; `None` where the bytes end too early.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (now, later) = self.0.split_at_checked(count)?;
        self.0 = later;
        Some(now)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.bytes(2).map(|b| be_u16(b, 0))
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.bytes(4).map(|b| be_u32(b, 0))
    }
}

fn be_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn be_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn be_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn random_headers_never_panic(request: [u8; RequestHeader::BYTES], option: [u8; OptionHeader::BYTES]) {
            let _ = RequestHeader::parse(&request);
            let _ = OptionHeader::parse(&option);
        }

        #[test]
        fn a_request_survives_the_wire(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) {
            let header = RequestHeader { flags, command, cookie: Cookie(cookie), offset, length };
            prop_assert_eq!(RequestHeader::parse(&header.encode()), Ok(header));
        }

        #[test]
        fn a_text_is_cut_at_a_character(text in "\\PC{0,600}") {
            let cut = cut_text(&text);
            prop_assert!(cut.len() <= NBD_ERROR_TEXT_BYTES_MAX && text.starts_with(cut));
        }
    }

    #[test]
    fn the_bytes_of_replies_are_those_of_the_specification() {
        let mut out = Vec::new();
        encode_simple_reply(Some(NBD_EINVAL), Cookie(0x0102_0304_0506_0708), &mut out);
        assert_eq!(out, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 22, 1, 2, 3, 4, 5, 6, 7, 8]);
        out.clear();
        encode_error_chunk(NBD_EIO, "no", Cookie(1), &mut out);
        let fixed = [0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 8];
        assert_eq!(out, [&fixed[..], &[0, 0, 0, 5, 0, 2], b"no"].concat());
        out.clear();
        encode_option_reply(NBD_OPT_LIST, NBD_REP_ERR_INVALID, b"x", &mut out);
        let fixed = [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9, 0, 0, 0, 3, 0x80, 0, 0, 3, 0, 0, 0, 1];
        assert_eq!(out, [&fixed[..], b"x"].concat());
    }
}
