//! A client's request, parsed fully and checked against the export before anything is done.

use crate::error::Failure;
use crate::protocol::*;
use weft_client::export::{ByteRange, FaultKind, Geometry};
use weft_types::limits::{NBD_REFUSED_BYTES_MAX, NBD_REQUEST_BYTES_MAX};

/// What a connection has agreed on, as far as it decides which requests are valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The export as of now.
    pub(crate) geometry: Geometry,
    /// Whether structured replies were negotiated.
    pub(crate) is_structured: bool,
    /// Whether `base:allocation` was negotiated.
    pub(crate) has_allocation: bool,
}

/// A valid request. FUA is nowhere to be seen: every completed write is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Read {
        range: ByteRange,
        /// At most one content chunk.
        dont_fragment: bool,
    },
    /// The data follows on the wire.
    Write {
        range: ByteRange,
    },
    Disconnect,
    Flush,
    Trim {
        range: ByteRange,
    },
    Cache,
    /// Whether holes are welcome is not kept: a thin, copy-on-write volume cannot reserve the place of a future
    /// write, with or without data there now, so `NBD_CMD_FLAG_NO_HOLE` would buy nothing but slowness. Zeroes
    /// are always fast, so `NBD_CMD_FLAG_FAST_ZERO` never fails.
    WriteZeroes {
        range: ByteRange,
    },
    BlockStatus {
        range: ByteRange,
        /// The first extent is enough.
        only_first: bool,
    },
}

/// Why a request is not carried out, and what follows it on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) failure: Failure,
    pub(crate) payload: RefusedPayload,
}

/// The data behind a refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusedPayload {
    /// This many bytes, to be thrown away so that the next request can be found.
    Skip(u32),
    /// More than is worth reading: the connection ends after the reply.
    TooLarge(u32),
}

impl Request {
    /// Parses a request.
    ///
    /// # Errors
    /// [`Refusal`], with the error number that section "Error values" asks for.
    pub(crate) fn parse(header: &RequestHeader, terms: &Terms) -> Result<Request, Refusal> {
        let payload = match (header.command, header.length) {
            (NBD_CMD_WRITE, length) if length > NBD_REFUSED_BYTES_MAX => RefusedPayload::TooLarge(length),
            (NBD_CMD_WRITE, length) => RefusedPayload::Skip(length),
            _ => RefusedPayload::Skip(0),
        };
        Self::check(header, terms).map_err(|failure| Refusal { failure, payload })
    }

    fn check(header: &RequestHeader, terms: &Terms) -> Result<Request, Failure> {
        check_flags(header, terms)?;
        let writes = matches!(header.command, NBD_CMD_WRITE | NBD_CMD_TRIM | NBD_CMD_WRITE_ZEROES);
        if writes && terms.geometry.is_read_only() {
            return Err(Failure::new(NBD_EPERM, "the export is read-only"));
        }
        let range = || check_range(header, terms);
        match header.command {
            NBD_CMD_READ => Ok(Request::Read {
                dont_fragment: header.flags & NBD_CMD_FLAG_DF != 0,
                range: check_length(range()?, NBD_EOVERFLOW)?,
            }),
            NBD_CMD_WRITE => Ok(Request::Write { range: check_length(range()?, NBD_EINVAL)? }),
            NBD_CMD_DISC => Ok(Request::Disconnect),
            NBD_CMD_FLUSH => Ok(Request::Flush),
            NBD_CMD_TRIM => Ok(Request::Trim { range: range()? }),
            NBD_CMD_CACHE => range().map(|_| Request::Cache),
            NBD_CMD_WRITE_ZEROES => Ok(Request::WriteZeroes { range: range()? }),
            NBD_CMD_BLOCK_STATUS if !terms.has_allocation => {
                Err(Failure::new(NBD_EINVAL, "no metadata context was negotiated"))
            }
            NBD_CMD_BLOCK_STATUS => Ok(Request::BlockStatus {
                range: range()?,
                only_first: header.flags & NBD_CMD_FLAG_REQ_ONE != 0,
            }),
            other => Err(Failure::new(NBD_EINVAL, format!("command {other} is unknown"))),
        }
    }
}

/// Section "Command flags": FUA is valid for every command, the others each for one.
fn check_flags(header: &RequestHeader, terms: &Terms) -> Result<(), Failure> {
    let valid = NBD_CMD_FLAG_FUA
        | match header.command {
            NBD_CMD_READ if terms.is_structured => NBD_CMD_FLAG_DF,
            NBD_CMD_WRITE_ZEROES => NBD_CMD_FLAG_NO_HOLE | NBD_CMD_FLAG_FAST_ZERO,
            NBD_CMD_BLOCK_STATUS => NBD_CMD_FLAG_REQ_ONE,
            _ => 0,
        };
    match header.flags & !valid {
        0 => Ok(()),
        flags => {
            let text = format!("flags {flags:#x} are not valid for command {}", header.command);
            Err(Failure::new(NBD_EINVAL, text))
        }
    }
}

fn check_range(header: &RequestHeader, terms: &Terms) -> Result<ByteRange, Failure> {
    let RequestHeader { offset, length, .. } = *header;
    terms.geometry.check(offset, u64::from(length)).map_err(|fault| match (fault.kind, header.command) {
        (FaultKind::Range, NBD_CMD_WRITE | NBD_CMD_WRITE_ZEROES) => Failure::new(NBD_ENOSPC, fault.text),
        _ => fault.into(),
    })
}

/// Requests that move data are bounded by the largest block size that was advertised.
fn check_length(range: ByteRange, errno: Errno) -> Result<ByteRange, Failure> {
    if range.length > u64::from(NBD_REQUEST_BYTES_MAX) {
        let text = format!("{} bytes are more than the {NBD_REQUEST_BYTES_MAX} of a request", range.length);
        return Err(Failure::new(errno, text));
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_client::AttachMode;

    const GEOMETRY: Geometry =
        Geometry { size: 8 << 30, logical_block: 4096, physical_block: 4096, mode: AttachMode::Shared };

    const TERMS: Terms = Terms { geometry: GEOMETRY, is_structured: true, has_allocation: true };

    fn header(command: u16, flags: u16, offset: u64, length: u32) -> RequestHeader {
        RequestHeader { flags, command, cookie: Cookie(7), offset, length }
    }

    fn errno(header: RequestHeader, terms: &Terms) -> Option<Errno> {
        Request::parse(&header, terms).err().map(|r| r.failure.errno)
    }

    #[test]
    fn refusals_have_the_errors_of_the_specification() {
        let read_only = Terms { geometry: Geometry { mode: AttachMode::ReadOnly, ..GEOMETRY }, ..TERMS };
        let plain = Terms { is_structured: false, has_allocation: false, ..TERMS };
        let end = GEOMETRY.size;
        for (header, terms, expected) in [
            (header(NBD_CMD_READ, 0, 0, 4096), TERMS, None),
            (header(NBD_CMD_READ, NBD_CMD_FLAG_FUA, end - 4096, 4096), TERMS, None),
            (header(NBD_CMD_READ, 0, end, 4096), TERMS, Some(NBD_EINVAL)),
            (header(NBD_CMD_READ, 0, u64::MAX - 4095, 4096), TERMS, Some(NBD_EINVAL)),
            (header(NBD_CMD_READ, 0, 512, 4096), TERMS, Some(NBD_EINVAL)),
            (header(NBD_CMD_READ, 0, 0, 512), TERMS, Some(NBD_EINVAL)),
            (header(NBD_CMD_READ, 0, 0, 0), TERMS, Some(NBD_EINVAL)),
            (header(NBD_CMD_READ, 0, 0, 2 << 30), TERMS, Some(NBD_EOVERFLOW)),
            (header(NBD_CMD_READ, NBD_CMD_FLAG_DF, 0, 4096), plain, Some(NBD_EINVAL)),
            (header(NBD_CMD_READ, NBD_CMD_FLAG_NO_HOLE, 0, 4096), TERMS, Some(NBD_EINVAL)),
            (header(NBD_CMD_WRITE, NBD_CMD_FLAG_FUA, 0, 4096), TERMS, None),
            (header(NBD_CMD_WRITE, 0, 0, 4096), read_only, Some(NBD_EPERM)),
            (header(NBD_CMD_WRITE, 0, end, 4096), TERMS, Some(NBD_ENOSPC)),
            (header(NBD_CMD_WRITE, 0, 0, 2 << 30), TERMS, Some(NBD_EINVAL)),
            (header(NBD_CMD_TRIM, 0, 0, 2 << 30), TERMS, None),
            (header(NBD_CMD_TRIM, 0, 0, 4096), read_only, Some(NBD_EPERM)),
            (header(NBD_CMD_TRIM, 0, end, 4096), TERMS, Some(NBD_EINVAL)),
            (
                header(NBD_CMD_WRITE_ZEROES, NBD_CMD_FLAG_NO_HOLE | NBD_CMD_FLAG_FAST_ZERO, 0, 4096),
                TERMS,
                None,
            ),
            (header(NBD_CMD_WRITE_ZEROES, 0, end, 4096), TERMS, Some(NBD_ENOSPC)),
            (header(NBD_CMD_BLOCK_STATUS, NBD_CMD_FLAG_REQ_ONE, 0, 4096), TERMS, None),
            (header(NBD_CMD_BLOCK_STATUS, 0, 0, 4096), plain, Some(NBD_EINVAL)),
            (header(NBD_CMD_FLUSH, 0, 0, 0), read_only, None),
            (header(8, 0, 0, 4096), TERMS, Some(NBD_EINVAL)),
            (header(u16::MAX, 0, 0, 0), TERMS, Some(NBD_EINVAL)),
        ] {
            assert_eq!(errno(header, &terms), expected, "{header:?}");
        }
    }

    #[test]
    fn the_data_of_a_refused_write_is_skipped_unless_it_is_too_large() {
        let payload =
            |length| Request::parse(&header(NBD_CMD_WRITE, 0, 1, length), &TERMS).unwrap_err().payload;
        assert_eq!(payload(4096), RefusedPayload::Skip(4096));
        assert_eq!(payload(NBD_REQUEST_BYTES_MAX), RefusedPayload::Skip(NBD_REQUEST_BYTES_MAX));
        assert_eq!(payload(NBD_REFUSED_BYTES_MAX), RefusedPayload::Skip(NBD_REFUSED_BYTES_MAX));
        assert_eq!(payload(NBD_REFUSED_BYTES_MAX + 1), RefusedPayload::TooLarge(NBD_REFUSED_BYTES_MAX + 1));
        let trim = Request::parse(&header(NBD_CMD_TRIM, 0, 1, 4096), &TERMS).unwrap_err();
        assert_eq!(trim.payload, RefusedPayload::Skip(0));
    }

    proptest! {
        #[test]
        fn what_is_accepted_lies_inside_the_export(
            flags in 0u16..64, command in 0u16..9, offset: u64, length: u32, size in 0u64..1 << 40,
            shift in 9u32..13, is_read_only: bool, is_structured: bool, has_allocation: bool,
        ) {
            let block_min = 1 << shift;
            let mode = if is_read_only { AttachMode::ReadOnly } else { AttachMode::Exclusive };
            let geometry = Geometry { size, logical_block: block_min, physical_block: 4096, mode };
            let terms = Terms { geometry, is_structured, has_allocation };
            // Half of the offsets near the export, or nearly all would be refused for the same reason.
            let offset = if offset & 1 == 0 { offset } else { (offset >> 20) & !u64::from(block_min - 1) };
            match Request::parse(&header(command, flags, offset, length & !(block_min - 1)), &terms) {
                Ok(Request::Read { range, .. } | Request::Write { range }) => {
                    prop_assert!(range.length <= u64::from(NBD_REQUEST_BYTES_MAX));
                    prop_assert!(range.offset + range.length <= size);
                }
                Ok(Request::Trim { range } | Request::WriteZeroes { range }) => {
                    prop_assert!(!is_read_only && range.offset + range.length <= size);
                }
                Ok(Request::BlockStatus { range, .. }) => {
                    prop_assert!(has_allocation && range.length > 0);
                }
                Ok(_) => {}
                Err(refusal) => prop_assert!(refusal.failure.errno.0 != 0 && !refusal.failure.text.is_empty()),
            }
        }
    }
}
