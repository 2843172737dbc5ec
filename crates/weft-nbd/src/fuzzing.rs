//! Doors to the parsers of this crate, for fuzzing: each takes any bytes, checks what must hold for them, and panics
//! if it does not. Nothing of this is in a build for use.

use crate::negotiate::{Negotiation, Step, parse_option};
use crate::protocol::*;
use crate::request::{RefusedPayload, Request, Terms};
use crate::server::NbdServer;
use std::time::Duration;
use weft_client::AttachMode;
use weft_client::export::{Exports, Geometry, MemoryVolume};
use weft_rt::{Buf, ByteReader, Listener, Stream, sleep, spawn};
use weft_types::limits::{NBD_REFUSED_BYTES_MAX, NBD_REQUEST_BYTES_MAX};

/// Bytes of the volume behind every export.
const VOLUME_BYTES: usize = 256 << 10;

fn exports(names: &[&str], mode: AttachMode) -> Exports {
    let mut exports = Exports::new();
    for name in names {
        let volume = MemoryVolume::new(VOLUME_BYTES, mode);
        exports.add_memory(name, volume).expect("names are different");
    }
    exports
}

/// An option: its number in four bytes, then its data; the same again as often as bytes are left for it, with two
/// bytes of length before each.
///
/// # Panics
/// If an option has no reply, or one that is not framed as the specification says.
pub fn options(bytes: &[u8]) {
    let exports = exports(&["a", "data"], AttachMode::Shared);
    let mut negotiation = Negotiation::new(&exports, true);
    let mut fields = Fields(bytes);
    while let (Some(option), Some(length)) = (fields.u32(), fields.u16()) {
        let length = usize::from(length).min(fields.0.len());
        let data = fields.bytes(length).expect("there are so many");
        let mut out = Vec::new();
        let step = negotiation.answer(option, parse_option(option, data), &mut out);
        if option != NBD_OPT_EXPORT_NAME {
            check_replies(option, &out);
        }
        if !matches!(step, Step::More) {
            return;
        }
    }
}

fn check_replies(option: u32, replies: &[u8]) {
    assert!(!replies.is_empty(), "option {option} has no reply");
    let mut fields = Fields(replies);
    while !fields.0.is_empty() {
        assert_eq!(fields.bytes(8), Some(&NBD_REP_MAGIC.to_be_bytes()[..]));
        assert_eq!(fields.u32(), Some(option));
        let (_, length) = (fields.u32().expect("a kind"), fields.u32().expect("a length"));
        assert!(fields.bytes(length as usize).is_some(), "a reply is cut off");
    }
}

/// A request of 28 bytes without its magic number, behind a byte of terms.
///
/// # Panics
/// If what is accepted does not lie inside the export, or moves more than a request may.
pub fn request(bytes: &[u8]) {
    let Some((bits, rest)) = bytes.split_first() else { return };
    let Some(rest) = rest.first_chunk::<24>() else { return };
    let mut header = [0; RequestHeader::BYTES];
    header[..4].copy_from_slice(&NBD_REQUEST_MAGIC.to_be_bytes());
    header[4..].copy_from_slice(rest);
    let header = RequestHeader::parse(&header).expect("its magic number is right");
    assert_eq!(RequestHeader::parse(&header.encode()), Ok(header));
    let terms = Terms {
        geometry: Geometry {
            size: if bits & 1 == 0 { 8 << 30 } else { u64::MAX / 4096 * 4096 },
            logical_block: if bits & 2 == 0 { 512 } else { 4096 },
            physical_block: 4096,
            mode: if bits & 4 != 0 { AttachMode::ReadOnly } else { AttachMode::Exclusive },
        },
        is_structured: bits & 8 != 0,
        has_allocation: bits & 16 != 0,
    };
    let range = match Request::parse(&header, &terms) {
        Ok(Request::Read { range, .. } | Request::Write { range }) => {
            assert!(range.length <= u64::from(NBD_REQUEST_BYTES_MAX));
            range
        }
        Ok(Request::Trim { range } | Request::WriteZeroes { range } | Request::BlockStatus { range, .. }) => {
            range
        }
        Ok(Request::Disconnect | Request::Flush | Request::Cache) => return,
        Err(refusal) => {
            if let RefusedPayload::Skip(length) = refusal.payload {
                assert!(length <= NBD_REFUSED_BYTES_MAX);
            }
            return;
        }
    };
    assert!(range.length > 0 && range.offset <= terms.geometry.size);
    assert!(range.length <= terms.geometry.size - range.offset);
    assert!(
        range.offset.is_multiple_of(u64::from(terms.geometry.logical_block))
            && range.length.is_multiple_of(u64::from(terms.geometry.logical_block))
    );
}

/// What a client says, from its first byte on, behind a byte: whether the client is in the transmission phase already,
/// and whether the export is exclusive. Runs in a simulation.
///
/// # Panics
/// If the server does, does not let go of the connection, or serves nobody afterwards.
pub async fn conversation(bytes: &[u8]) {
    let Some((bits, said)) = bytes.split_first() else { return };
    let mode = if bits & 2 == 0 { AttachMode::Exclusive } else { AttachMode::Shared };
    let server = NbdServer::new(exports(&["data"], mode));
    let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("nobody listens");
    let addr = listener.local_addr();
    let runs = server.clone();
    let running = spawn(async move { runs.run(listener).await });
    let client = Stream::connect(&addr).await.expect("the server listens");
    let mut begin = Vec::new();
    if bits & 1 != 0 {
        begin.extend((NBD_FLAG_C_FIXED_NEWSTYLE | NBD_FLAG_C_NO_ZEROES).to_be_bytes());
        if bits & 4 != 0 {
            push_option(NBD_OPT_STRUCTURED_REPLY, &[], &mut begin);
            let context = BASE_ALLOCATION.as_bytes();
            let mut data = vec![0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, context.len() as u8];
            data.extend(context);
            push_option(NBD_OPT_SET_META_CONTEXT, &data, &mut begin);
        }
        push_option(NBD_OPT_GO, &[0; 6], &mut begin);
    }
    begin.extend(said);
    // The server may close at any time.
    let _ = client.write(vec![Buf::from(&begin[..])]).await;
    sleep(Duration::from_millis(20)).await;
    drop(client);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(server.connections(), 0, "the server holds on to a client that is gone");
    let next = Stream::connect(&addr).await.expect("the server still listens");
    let greeting = ByteReader::new(next.clone()).next::<18>().await;
    assert!(matches!(greeting, Ok(Some(_))), "the server greets nobody any more");
    drop(next);
    server.stop().await;
    running.await.expect("the server ends in order");
}

fn push_option(option: u32, data: &[u8], out: &mut Vec<u8>) {
    out.extend(IHAVEOPT.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}
