//! The transmission phase: requests in, carried out side by side, replies as they complete.
//!
//! Requests start in the order of their arrival and complete in any; a client that wants an order waits for
//! replies (section "Ordering of messages and writes"). A write begins only when all of its data is there, so
//! a client that vanishes leaves no part of one behind.

use crate::connection::ReplyWriter;
use crate::error::{ConnectionError, Failure};
use crate::negotiate::Agreement;
use crate::protocol::*;
use crate::request::{Refusal, RefusedPayload, Request, Terms};
use std::rc::Rc;
use std::time::Duration;
use weft_client::export::{ByteRange, Client, Credit, Credits, Entered, Op, Outcome};
use weft_rt::sync::{Either, race};
use weft_rt::{Buf, ByteReader, JoinHandle, spawn};
use weft_types::limits::{NBD_CONNECTION_REQUESTS_MAX, NBD_STATUS_EXTENTS_MAX};

/// Bytes that a block status request counts for: about what the answers of the targets take.
const BLOCK_STATUS_COST: u64 = 1 << 20;

/// Bytes whose status is asked for at once: as much as one round of requests answers well.
const BLOCK_STATUS_STEP: u64 = 16 << 20;

/// Bytes whose status one request is told at most; the client asks on from there (section "Request types"
/// allows an answer for less). It bounds how long one request takes.
const BLOCK_STATUS_WALK_MAX: u64 = 256 << 20;

/// The shortest run of zeroes that is worth a chunk of its own between data: a chunk costs the client a
/// system call or two, as much as copying some 32 KiB.
const HOLE_BYTES_MIN: usize = 32 * 1024;

/// The unit in which data is looked through for zeroes: what a volume allocates.
const ZERO_UNIT: usize = weft_types::BLOCK_SIZE;

/// For how long requests that arrive after the stop are still answered, with `ESHUTDOWN`.
const STOP_LINGER: Duration = Duration::from_secs(5);

/// What the tasks of one connection share.
struct Transmission {
    client: Client,
    is_structured: bool,
    has_allocation: bool,
    writer: Rc<ReplyWriter>,
    entered: Rc<Entered>,
}

/// Why no more requests come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// The client has said that it leaves, and waits for what is in flight.
    Disconnect,
    /// The client is gone without a word.
    Gone,
    /// The server stops.
    Stop,
}

/// Requests in flight of one connection.
#[derive(Default)]
struct InFlight(Vec<JoinHandle<()>>);

impl InFlight {
    /// So many are looked through for those that have ended: twice as many as may be in flight.
    const LOOKED_THROUGH_AT: usize = 2 * NBD_CONNECTION_REQUESTS_MAX as usize;

    fn add(&mut self, task: JoinHandle<()>) {
        if self.0.len() >= Self::LOOKED_THROUGH_AT {
            self.0.retain(|task| !task.is_finished());
        }
        self.0.push(task);
    }

    /// Gives them up: a write may still take effect, but never over one that is called from now on, on
    /// whichever connection and lane (P8).
    fn give_up(self) {
        self.0.iter().filter(|task| !task.is_finished()).for_each(JoinHandle::abort);
    }
}

/// Serves requests until the client leaves or the server stops; what is in flight then is finished first, and
/// its replies are with the network. Requests of a client that is gone are given up: it may send them again
/// on another connection, and what it sends there must stay.
pub(crate) async fn transmit(
    reader: &mut ByteReader,
    writer: Rc<ReplyWriter>,
    agreement: Agreement,
    client: Client,
    credits: &Credits,
    entered: Rc<Entered>,
) -> Result<(), ConnectionError> {
    let Agreement { is_structured, has_allocation, .. } = agreement;
    let shared = Rc::new(Transmission { client, is_structured, has_allocation, writer, entered });
    let mut in_flight = InFlight::default();
    let result = take_requests(reader, &shared, credits, &mut in_flight).await;
    let is_gone = matches!(
        result,
        Ok(Last::Gone) | Err(ConnectionError::Io(_) | ConnectionError::Truncated | ConnectionError::Magic(_))
    );
    // A server that stops may have closed the connection itself.
    if is_gone && shared.entered.drain().since().is_none() {
        in_flight.give_up();
    }
    credits.all_back().await;
    let load = shared.client.load();
    tracing::info!(
        client = load.name,
        reads = load.reads,
        read_bytes = load.read_bytes,
        writes = load.writes,
        written_bytes = load.written_bytes,
        faults = load.faults,
        "NBD client ends"
    );
    result.map(drop)
}

async fn take_requests(
    reader: &mut ByteReader,
    shared: &Rc<Transmission>,
    credits: &Credits,
    in_flight: &mut InFlight,
) -> Result<Last, ConnectionError> {
    while let Some(header) = reader.next::<{ RequestHeader::BYTES }>().await? {
        let header = RequestHeader::parse(&header).map_err(ConnectionError::Magic)?;
        shared.entered.request_arrived();
        if shared.entered.drain().since().is_some_and(|since| since.elapsed() > STOP_LINGER) {
            return Ok(Last::Stop);
        }
        let cookie = header.cookie;
        match shared.parse(&header) {
            Ok(Request::Disconnect) => return Ok(Last::Disconnect),
            Ok(request) => {
                let Some(credit) = take_credit(reader, credits, request.cost()).await else {
                    return Ok(Last::Gone);
                };
                let data = match request {
                    Request::Write { range } => {
                        let arriving = &credits.share().arriving;
                        arriving.begin(range.length);
                        let data = reader.take(range.length as usize).await;
                        arriving.end();
                        data?
                    }
                    _ => Buf::empty(),
                };
                let shared = shared.clone();
                in_flight.add(spawn(async move { shared.carry_out(request, data, cookie, credit).await }));
            }
            Err(refusal) => {
                let Some(credit) = take_credit(reader, credits, 0).await else { return Ok(Last::Gone) };
                // The data first: libnbd takes a reply to a request that it is still sending for a
                // reply to none, and ends the connection. Held meanwhile, so that a server that
                // stops does not take the client for idle.
                if let RefusedPayload::Skip(length) = refusal.payload {
                    reader.skip(length as usize).await?;
                }
                shared.fail(cookie, &refusal.failure);
                shared.writer.release(credit);
                if let RefusedPayload::TooLarge(length) = refusal.payload {
                    return Err(ConnectionError::WriteTooLarge { length });
                }
            }
        }
    }
    Ok(Last::Gone)
}

/// Credit for a request of so many bytes; `None` if the client goes first. While it waits, nothing more is
/// taken in.
async fn take_credit(reader: &mut ByteReader, credits: &Credits, bytes: u64) -> Option<Credit> {
    if let Some(credit) = credits.try_take(bytes) {
        return Some(credit);
    }
    reader.pause();
    match race(credits.take(bytes), reader.hung_up()).await {
        Either::Left(credit) => Some(credit),
        Either::Right(()) => None,
    }
}

impl Request {
    /// Bytes that the request counts for.
    fn cost(&self) -> u64 {
        match self {
            Request::Read { range, .. } | Request::Write { range } => range.length,
            Request::BlockStatus { .. } => BLOCK_STATUS_COST,
            _ => 0,
        }
    }
}

impl Transmission {
    fn parse(&self, header: &RequestHeader) -> Result<Request, Refusal> {
        let geometry = self.client.export().geometry();
        let terms =
            Terms { geometry, is_structured: self.is_structured, has_allocation: self.has_allocation };
        let request = Request::parse(header, &terms)?;
        if self.entered.drain().since().is_some() && request != Request::Disconnect {
            let payload = match request {
                Request::Write { range } => RefusedPayload::Skip(range.length as u32),
                _ => RefusedPayload::Skip(0),
            };
            return Err(Refusal { failure: Failure::new(NBD_ESHUTDOWN, "the server is stopping"), payload });
        }
        Ok(request)
    }

    async fn carry_out(&self, request: Request, data: Buf, cookie: Cookie, credit: Credit) {
        let done = match request {
            Request::Read { range, dont_fragment } => self.read(range, dont_fragment, cookie).await,
            Request::BlockStatus { range, only_first } => self.block_status(range, only_first, cookie).await,
            Request::Write { range } => self.change(Op::Write { range, data: vec![data] }, cookie).await,
            Request::Trim { range } => self.change(Op::Discard { range }, cookie).await,
            Request::WriteZeroes { range } => self.change(Op::WriteZeroes { range }, cookie).await,
            Request::Flush => self.change(Op::Flush, cookie).await,
            // A hint: the targets keep what they hold as near as they can anyway.
            Request::Cache => {
                self.done(cookie);
                Ok(())
            }
            Request::Disconnect => unreachable!("ends the connection instead"),
        };
        if let Err(failure) = done {
            self.fail(cookie, &failure);
        }
        self.writer.release(credit);
    }

    /// A request whose answer has no data.
    async fn change(&self, op: Op, cookie: Cookie) -> Result<(), Failure> {
        self.client.carry_out(op).await?;
        self.done(cookie);
        Ok(())
    }

    /// Success without data is a simple reply, also where structured replies were negotiated: section
    /// "Structured reply chunk message" demands chunks only of reads and of block status.
    fn done(&self, cookie: Cookie) {
        self.writer.head(|out| encode_simple_reply(None, cookie, out));
    }

    fn fail(&self, cookie: Cookie, failure: &Failure) {
        tracing::debug!(
            errno = failure.errno.0,
            failure.text,
            export = self.client.export().name(),
            "request failed"
        );
        self.writer.head(|out| match self.is_structured {
            true => encode_error_chunk(failure.errno, &failure.text, cookie, out),
            false => encode_simple_reply(Some(failure.errno), cookie, out),
        });
    }

    async fn read(&self, range: ByteRange, dont_fragment: bool, cookie: Cookie) -> Result<(), Failure> {
        let Outcome::Data(bufs) = self.client.carry_out(Op::Read { range }).await? else {
            unreachable!("a read has data")
        };
        if !self.is_structured {
            self.writer.head(|out| encode_simple_reply(None, cookie, out));
            self.writer.data(bufs);
            return Ok(());
        }
        let mut at = range.offset;
        let mut rest = Pieces::new(bufs);
        let chunks = content(rest.bufs(), dont_fragment);
        let last = chunks.len() - 1;
        for (i, chunk) in chunks.into_iter().enumerate() {
            let length = u32::try_from(chunk.length).expect("a part of a request");
            let data = rest.take(chunk.length);
            if chunk.is_zero {
                self.writer.head(|out| {
                    encode_chunk(NBD_REPLY_TYPE_OFFSET_HOLE, i == last, cookie, 12, out);
                    out.extend(at.to_be_bytes());
                    out.extend(length.to_be_bytes());
                });
            } else {
                self.writer.head(|out| {
                    encode_chunk(NBD_REPLY_TYPE_OFFSET_DATA, i == last, cookie, 8 + length, out);
                    out.extend(at.to_be_bytes());
                });
                self.writer.data(data);
            }
            at += u64::from(length);
        }
        Ok(())
    }

    async fn block_status(&self, range: ByteRange, only_first: bool, cookie: Cookie) -> Result<(), Failure> {
        let extents_max = if only_first { 1 } else { NBD_STATUS_EXTENTS_MAX };
        let end = range.offset + range.length.min(BLOCK_STATUS_WALK_MAX);
        let mut at = range.offset;
        let mut extents: Vec<(u32, u32)> = Vec::new();
        'walk: while at < end {
            let length = BLOCK_STATUS_STEP.min(end - at);
            let status = Op::Status { range: ByteRange { offset: at, length } };
            let Outcome::Status(runs) = self.client.carry_out(status).await? else {
                unreachable!("a status has runs")
            };
            for extent in runs {
                let flags = if extent.is_zero { NBD_STATE_HOLE | NBD_STATE_ZERO } else { 0 };
                let length = u32::try_from(extent.length).expect("a part of a request");
                let is_full = extents.len() == extents_max;
                match extents.last_mut() {
                    Some(last) if last.1 == flags => last.0 += length,
                    _ if is_full => break 'walk,
                    _ => extents.push((length, flags)),
                }
            }
            at += length;
        }
        self.writer.head(|out| {
            let length = 4 + 8 * extents.len() as u32;
            encode_chunk(NBD_REPLY_TYPE_BLOCK_STATUS, true, cookie, length, out);
            out.extend(BASE_ALLOCATION_ID.to_be_bytes());
            for (length, flags) in extents {
                out.extend(length.to_be_bytes());
                out.extend(flags.to_be_bytes());
            }
        });
        Ok(())
    }
}

/// A run of data, or of zeroes, inside a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    length: usize,
    is_zero: bool,
}

/// Divides what was read into chunks: data, and runs of zeroes that are long enough. With `dont_fragment` it
/// is all one.
fn content(bufs: &[Buf], dont_fragment: bool) -> Vec<Content> {
    let total = bufs.iter().map(|b| b.len()).sum();
    let mut runs: Vec<Content> = Vec::new();
    for unit in bufs.iter().flat_map(|buf| buf.chunks(ZERO_UNIT)) {
        extend(&mut runs, Content { length: unit.len(), is_zero: is_zero(unit) });
    }
    match runs.len() {
        0 | 1 => return runs,
        _ if dont_fragment => return vec![Content { length: total, is_zero: false }],
        _ => {}
    }
    let mut chunks = Vec::with_capacity(runs.len());
    for run in runs {
        extend(&mut chunks, Content { is_zero: run.is_zero && run.length >= HOLE_BYTES_MIN, ..run });
    }
    chunks
}

fn extend(runs: &mut Vec<Content>, next: Content) {
    match runs.last_mut() {
        Some(last) if last.is_zero == next.is_zero => last.length += next.length,
        _ => runs.push(next),
    }
}

/// Whether all bytes are zero. Data is usually told by its first bytes.
fn is_zero(bytes: &[u8]) -> bool {
    // In pieces of 256 bytes the compiler makes vector instructions of it.
    bytes.chunks(256).all(|piece| piece.iter().fold(0, |sum, byte| sum | byte) == 0)
}

/// Buffers taken as one run of bytes, to be taken from the front.
struct Pieces {
    bufs: std::collections::VecDeque<Buf>,
}

impl Pieces {
    fn new(bufs: Vec<Buf>) -> Pieces {
        Pieces { bufs: bufs.into() }
    }

    fn bufs(&mut self) -> &[Buf] {
        self.bufs.make_contiguous()
    }

    /// The next `length` bytes.
    fn take(&mut self, length: usize) -> Vec<Buf> {
        let mut out = Vec::new();
        let mut left = length;
        while left > 0 {
            let front = self.bufs.pop_front().expect("no more is taken than there is");
            if front.len() > left {
                self.bufs.push_front(front.slice(left..front.len()));
            }
            let n = front.len().min(left);
            out.push(front.slice(0..n));
            left -= n;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bufs(units: &[(usize, u8)]) -> Vec<Buf> {
        units.iter().map(|(blocks, byte)| Buf::from(vec![*byte; blocks * ZERO_UNIT])).collect()
    }

    fn found(units: &[(usize, u8)], dont_fragment: bool) -> Vec<(usize, bool)> {
        let chunks = content(&bufs(units), dont_fragment);
        chunks.into_iter().map(|c| (c.length / ZERO_UNIT, c.is_zero)).collect()
    }

    #[test]
    fn long_runs_of_zeroes_become_holes() {
        assert_eq!(found(&[(1, 0)], false), [(1, true)]);
        assert_eq!(found(&[(1, 0), (1, 1)], false), [(2, false)]);
        assert_eq!(found(&[(2, 1), (8, 0), (1, 2)], false), [(2, false), (8, true), (1, false)]);
        assert_eq!(found(&[(2, 1), (4, 0), (4, 0), (1, 0)], false), [(2, false), (9, true)]);
        assert_eq!(found(&[(2, 1), (7, 0), (1, 2), (8, 0)], false), [(10, false), (8, true)]);
    }

    #[test]
    fn an_unfragmented_reply_is_one_chunk() {
        assert_eq!(found(&[(64, 0)], true), [(64, true)]);
        assert_eq!(found(&[(64, 0), (1, 1)], true), [(65, false)]);
    }

    #[test]
    fn one_byte_makes_a_difference() {
        let mut bytes = vec![0; 600];
        assert!(is_zero(&bytes));
        for at in [0, 255, 256, 599] {
            bytes[at] = 1;
            assert!(!is_zero(&bytes));
            bytes[at] = 0;
        }
    }

    #[test]
    fn pieces_are_taken_in_order() {
        let mut pieces = Pieces::new(vec![Buf::from(&b"abc"[..]), Buf::from(&b"defg"[..])]);
        let mut take = |n| pieces.take(n).iter().flat_map(|b| b.to_vec()).collect::<Vec<u8>>();
        assert_eq!(take(2), b"ab");
        assert_eq!(take(3), b"cde");
        assert_eq!(take(2), b"fg");
        assert_eq!(take(0), b"");
    }
}
