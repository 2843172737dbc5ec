//! Bytes of a stream, read ahead: small parts through a buffer, large ones straight to where they belong.
//!
//! As long as only small parts are asked for, a receive that repeats by itself brings them in chunks, at less
//! cost per message. Large parts want every byte received in place, and starting and stopping the repetition
//! for each would cost more than it saves: with the first of them the reader goes over to receiving piece by
//! piece, and back after a while without. It knows nothing of what the bytes mean.

use crate::net::{HEADROOM_BYTES, Receiver};
use crate::{Buf, BufMut, Stream};
use std::cell::Cell;
use std::io::{self, ErrorKind};
use weft_types::limits::READERS_AHEAD_MAX;

/// Bytes that a reader asks the stream for at once where chunks are not used: a dozen small requests beside
/// large ones. Each connection may hold as many, and there may be very many of them.
const READ_BYTES: usize = 32 * 1024;

/// Bytes that a reader asks for at once where the stream has more than [`READ_BYTES`] already: several large
/// requests, so that what is sent at once is also served at once.
const READ_AHEAD_BYTES: usize = 256 * 1024;

/// From this many missing bytes on, a part is received where it belongs instead of through the buffer: below,
/// one system call that also brings the next requests is cheaper than the copy it saves.
const DIRECT_BYTES: usize = 32 * 1024;

/// So many reads of the stream without a large part bring chunks back: a few round trips of a full queue.
const READS_BEFORE_CHUNKS: u32 = 256;

thread_local! {
    /// Readers that hold [`READ_AHEAD_BYTES`].
    static READING_AHEAD: Cell<usize> = const { Cell::new(0) };
}

/// Leave to hold [`READ_AHEAD_BYTES`].
struct ReadAhead;

impl ReadAhead {
    /// `None` if [`READERS_AHEAD_MAX`] readers have it.
    fn begin() -> Option<ReadAhead> {
        let readers = READING_AHEAD.get();
        (readers < READERS_AHEAD_MAX).then(|| {
            READING_AHEAD.set(readers + 1);
            ReadAhead
        })
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        READING_AHEAD.set(READING_AHEAD.get() - 1);
    }
}

/// Reads from a stream; nobody else may read from it. Dropping one of its futures before it is done makes it
/// unusable.
///
/// Every error of kind `UnexpectedEof` means that the peer closed where more bytes had to come.
pub struct ByteReader {
    stream: Stream,
    receiver: Receiver,
    /// A buffer of [`READ_BYTES`] or [`READ_AHEAD_BYTES`], or the last chunk; what is in it from `start` to
    /// `end` is still to be taken.
    buf: BufMut,
    start: usize,
    end: usize,
    /// Reads left until chunks are tried (again); 0 while they are used.
    before_chunks: u32,
    /// While the buffer is one of [`READ_AHEAD_BYTES`].
    ahead: Option<ReadAhead>,
}

impl ByteReader {
    /// The most bytes that [`ByteReader::fill_to`] can be asked for.
    pub const FILL_MAX: usize = READ_BYTES / 4 * 3;

    /// A reader of this stream.
    pub fn new(stream: Stream) -> ByteReader {
        let receiver = stream.receiver();
        // Without chunks at first: a thousand connections that begin with large parts would fill several each
        // before they wait.
        let before_chunks = READS_BEFORE_CHUNKS;
        ByteReader { stream, receiver, buf: BufMut::aligned(0), start: 0, end: 0, before_chunks, ahead: None }
    }

    /// A reader of a stream of which these bytes were read before, for example by
    /// [`ByteReader::into_ahead`] on another executor.
    pub fn with_ahead(stream: Stream, ahead: &[u8]) -> ByteReader {
        let mut reader = ByteReader::new(stream);
        if !ahead.is_empty() {
            let mut buf = BufMut::aligned(ahead.len().max(READ_BYTES));
            buf[..ahead.len()].copy_from_slice(ahead);
            (reader.buf, reader.end) = (buf, ahead.len());
        }
        reader
    }

    /// Stops reading, and returns the bytes that were read and not taken. The kernel has no receive of this
    /// reader any more, so another reader can go on with the stream, also on another executor.
    ///
    /// # Errors
    /// If the connection broke.
    pub async fn into_ahead(mut self) -> io::Result<Vec<u8>> {
        let mut ahead = self.have().to_vec();
        while let Some((n, chunk)) = self.receiver.drain().await? {
            if n == 0 {
                // The next reader meets the end as well.
                break;
            }
            ahead.extend_from_slice(&chunk[HEADROOM_BYTES..HEADROOM_BYTES + n]);
        }
        Ok(ahead)
    }

    /// The bytes that were read ahead.
    pub fn have(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    /// Reads until at least `n` bytes are there. False if the peer closed and none were.
    ///
    /// # Errors
    /// If the connection broke, or ended behind the first byte and before the `n`th.
    ///
    /// # Panics
    /// If `n` passes [`ByteReader::FILL_MAX`].
    pub async fn fill_to(&mut self, n: usize) -> io::Result<bool> {
        assert!(n <= Self::FILL_MAX, "{n} bytes do not go through the buffer");
        if n > 0 && self.have().is_empty() && self.fill().await? == 0 {
            return Ok(false);
        }
        while self.have().len() < n {
            self.fill_some().await?;
        }
        Ok(true)
    }

    /// The next `N` bytes; `None` if the peer closed before the first of them.
    ///
    /// # Errors
    /// If the connection broke, or ended behind the first byte.
    pub async fn next<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        if !self.fill_to(N).await? {
            return Ok(None);
        }
        let bytes = self.have()[..N].try_into().expect("that many bytes");
        self.consume(N);
        Ok(Some(bytes))
    }

    /// Takes in no more than it has, and what is on the way to it, until it is asked for more: for a while in
    /// which nobody is going to ask. The peer waits meanwhile. Of a chunk only the bytes are kept that are
    /// still to be taken.
    pub fn pause(&mut self) {
        self.receiver.pause();
        if self.have().len() < self.buf.len() / 2 {
            let have = BufMut::copy_of(self.have());
            (self.start, self.end) = (0, have.len());
            self.buf = have;
            self.ahead = None;
        }
    }

    /// Completes when the peer has closed or the connection is broken, for whoever waits between two parts.
    /// What the peer has sent before is still to be read.
    pub async fn hung_up(&self) {
        self.stream.hung_up().await;
    }

    /// Leaves the first `n` bytes behind.
    ///
    /// # Panics
    /// If fewer were read ahead.
    pub fn consume(&mut self, n: usize) {
        assert!(n <= self.have().len(), "only what is there can be left behind");
        self.start += n;
    }

    /// The next `len` bytes in one buffer, aligned to [`crate::IO_ALIGN`] from 4096 bytes on.
    ///
    /// # Errors
    /// If the connection broke or ended before.
    pub async fn take(&mut self, len: usize) -> io::Result<Buf> {
        if len == 0 {
            return Ok(Buf::empty());
        }
        let missing = len.saturating_sub(self.have().len());
        let is_large = missing >= DIRECT_BYTES || (missing > 0 && len > READ_BYTES);
        while !is_large && self.have().len() < len {
            self.fill_some().await?;
        }
        let mut part = BufMut::aligned(len);
        let mut filled = self.take_into(&mut part, 0);
        if len >= DIRECT_BYTES {
            self.before_chunks = READS_BEFORE_CHUNKS;
        }
        if is_large {
            while filled < len {
                let Some((n, chunk)) = self.receiver.drain().await? else { break };
                if n == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                self.append(n, chunk);
                filled += self.take_into(&mut part, filled);
            }
        }
        while filled < len {
            let (n, returned) = self.stream.read(part, filled).await;
            part = returned;
            match n? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                n => filled += n,
            }
        }
        Ok(part.freeze())
    }

    /// Moves what is there to `part` from `filled` on, as far as it fits; returns how many bytes.
    fn take_into(&mut self, part: &mut BufMut, filled: usize) -> usize {
        let n = self.have().len().min(part.len() - filled);
        part[filled..filled + n].copy_from_slice(&self.have()[..n]);
        self.start += n;
        n
    }

    /// Throws the next `len` bytes away.
    ///
    /// # Errors
    /// If the connection broke or ended before.
    pub async fn skip(&mut self, len: usize) -> io::Result<()> {
        let mut left = len;
        loop {
            let n = self.have().len().min(left);
            self.start += n;
            left -= n;
            if left == 0 {
                return Ok(());
            }
            self.fill_some().await?;
        }
    }

    async fn fill_some(&mut self) -> io::Result<()> {
        match self.fill().await? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Adds what arrives next to what is there; returns how many bytes came, 0 at the end.
    async fn fill(&mut self) -> io::Result<usize> {
        self.before_chunks = self.before_chunks.saturating_sub(1);
        let chunk = match self.before_chunks {
            0 => self.receiver.next().await?,
            // What the repeating receive had brought before it was stopped comes first.
            _ => self.receiver.drain().await?,
        };
        match chunk {
            Some((0, _)) => Ok(0),
            Some((n, chunk)) => {
                self.append(n, chunk);
                Ok(n)
            }
            None => self.fill_buffer().await,
        }
    }

    /// Reads behind what is there, in a buffer that is kept.
    async fn fill_buffer(&mut self) -> io::Result<usize> {
        let left = self.have().len();
        if left == 0 {
            self.fit_buffer();
        } else if self.buf.len() < READ_BYTES {
            let mut buf = BufMut::aligned(READ_BYTES);
            buf[..left].copy_from_slice(self.have());
            (self.buf, self.start, self.end) = (buf, 0, left);
        } else if self.start > 0 && self.buf.len() - self.end < READ_BYTES / 2 {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, left);
        }
        // A small one stands in while the kernel has it.
        let buf = std::mem::replace(&mut self.buf, BufMut::aligned(0));
        let (n, buf) = self.stream.read(buf, self.end).await;
        self.buf = buf;
        let n = n?;
        self.end += n;
        Ok(n)
    }

    /// Makes the empty buffer as long as what the stream has is worth.
    fn fit_buffer(&mut self) {
        (self.start, self.end) = (0, 0);
        let is_ahead = self.stream.waiting_bytes() > READ_BYTES;
        if !is_ahead {
            self.ahead = None;
        } else if self.ahead.is_none() {
            self.ahead = ReadAhead::begin();
        }
        let len = if self.ahead.is_some() { READ_AHEAD_BYTES } else { READ_BYTES };
        if self.buf.len() != len {
            self.buf = BufMut::aligned(len);
        }
    }

    /// Adds a chunk to what is there.
    fn append(&mut self, n: usize, mut chunk: BufMut) {
        self.ahead = None;
        let left = self.have().len();
        let data = HEADROOM_BYTES..HEADROOM_BYTES + n;
        if left <= HEADROOM_BYTES {
            let start = data.start - left;
            chunk[start..data.start].copy_from_slice(self.have());
            (self.buf, self.start, self.end) = (chunk, start, data.end);
        } else {
            // A part that is neither small nor large came in pieces.
            let mut both = BufMut::aligned((left + n).max(READ_BYTES));
            both[..left].copy_from_slice(self.have());
            both[left..left + n].copy_from_slice(&chunk[data]);
            (self.buf, self.start, self.end) = (both, 0, left + n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Listener, random_below, spawn};

    /// What byte the stream has at a place.
    fn byte(at: usize) -> u8 {
        (at ^ at >> 8 ^ at >> 16) as u8
    }

    async fn send(stream: Stream, len: usize) {
        let mut at = 0;
        while at < len {
            let n = (1 + random_below(150_000) as usize).min(len - at);
            stream.write(vec![Buf::from((at..at + n).map(byte).collect::<Vec<_>>())]).await.unwrap();
            at += n;
        }
    }

    /// Phases of small parts, of parts of every size, and of large ones, taken or skipped: nothing is lost or
    /// comes twice where the reader changes the way in which it receives.
    #[test]
    fn parts_of_any_size_come_in_order() {
        crate::block_on(async {
            let phases = [(900, 3000), (40, 300_000), (1, 1 << 20), (900, 5000), (9, 1 << 20), (600, 70_000)];
            let sizes =
                phases.iter().flat_map(|(count, max)| (0..*count).map(|_| random_below(*max) as usize));
            let sizes: Vec<usize> = sizes.collect();
            let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
            let sender = Stream::connect(&listener.local_addr()).await.unwrap();
            spawn(send(sender, sizes.iter().sum()));
            let mut reader = ByteReader::new(listener.accept().await.unwrap());
            let mut at = 0;
            for size in sizes {
                if size % 7 == 3 {
                    reader.skip(size).await.unwrap();
                } else {
                    assert!(size < 16 || reader.fill_to(16).await.unwrap());
                    let part = reader.take(size).await.unwrap();
                    assert!(
                        part.iter().zip(at..).all(|(found, at)| *found == byte(at)),
                        "{size} bytes at {at}"
                    );
                }
                at += size;
            }
            assert!(!reader.fill_to(1).await.unwrap(), "the sender has closed");
        })
        .unwrap();
    }

    /// Readers take turns with one stream, each on a handle of its own, while bytes arrive; also one whose
    /// receive repeats by itself by then.
    #[test]
    fn another_reader_goes_on_where_one_has_stopped() {
        crate::block_on(async {
            let turns: Vec<(usize, usize)> =
                [3, 900, 1, 40, 700].into_iter().zip([30, 900, 1, 9000, 50]).collect();
            let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
            let sender = Stream::connect(&listener.local_addr()).await.unwrap();
            spawn(send(sender, turns.iter().map(|(count, size)| count * size).sum()));
            let mut stream = listener.accept().await.unwrap();
            let (mut at, mut ahead) = (0, Vec::new());
            for (count, size) in turns {
                let mut reader = ByteReader::with_ahead(stream.clone(), &ahead);
                for _ in 0..count {
                    let part = reader.take(size).await.unwrap();
                    assert!(part.iter().zip(at..).all(|(found, at)| *found == byte(at)), "{size} at {at}");
                    at += size;
                }
                ahead = reader.into_ahead().await.unwrap();
                stream = Stream::of(stream.socket().unwrap().try_clone_to_owned().unwrap());
            }
            assert!(ahead.is_empty() && !ByteReader::new(stream).fill_to(1).await.unwrap());
        })
        .unwrap();
    }

    #[test]
    fn so_many_readers_read_ahead_and_give_it_up_again() {
        crate::block_on(async {
            let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
            let mut readers = Vec::new();
            for _ in 0..READERS_AHEAD_MAX + 3 {
                let sender = Stream::connect(&listener.local_addr()).await.unwrap();
                let mut reader = ByteReader::new(listener.accept().await.unwrap());
                sender.write(vec![Buf::from(vec![1; 2 * READ_BYTES])]).await.unwrap();
                assert!(reader.fill_to(1).await.unwrap());
                readers.push((reader, sender));
            }
            assert_eq!(READING_AHEAD.get(), READERS_AHEAD_MAX);
            // One that has taken all waits with a small buffer.
            let (reader, sender) = &mut readers[0];
            reader.skip(2 * READ_BYTES).await.unwrap();
            sender.write(vec![Buf::from(vec![2])]).await.unwrap();
            assert_eq!(reader.next().await.unwrap(), Some([2]));
            assert_eq!(READING_AHEAD.get(), READERS_AHEAD_MAX - 1);
            drop(readers);
            assert_eq!(READING_AHEAD.get(), 0);
        })
        .unwrap();
    }

    #[test]
    fn a_peer_that_closes_inside_a_part_is_told_from_one_that_closes_between_parts() {
        crate::block_on(async {
            for (sent, asked) in [(100, 101), (100_000, 200_000), (40_000, 50_000)] {
                let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
                let sender = Stream::connect(&listener.local_addr()).await.unwrap();
                spawn(send(sender, sent));
                let mut reader = ByteReader::new(listener.accept().await.unwrap());
                let error = reader.take(asked).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{sent} of {asked} bytes");
            }
        })
        .unwrap();
    }
}
