//! Bytes of a stream, read ahead: small parts through a buffer, large ones straight to where they belong.
//!
//! It knows nothing of what the bytes mean.

use crate::{Buf, BufMut, Stream};
use std::io::{self, ErrorKind};

/// Bytes that a reader asks the stream for at once: several requests of usual size, or dozens of small ones.
const READ_BYTES: usize = 256 * 1024;

/// From this many missing bytes on, a part is received where it belongs instead of through the buffer: below, one
/// system call that also brings the next requests is cheaper than the copy it saves.
const DIRECT_BYTES: usize = 32 * 1024;

/// Reads from a stream; nobody else may read from it. Dropping one of its futures before it is done makes it
/// unusable.
///
/// Every error of kind `UnexpectedEof` means that the peer closed where more bytes had to come.
pub struct ByteReader {
    stream: Stream,
    buf: Option<BufMut>,
    start: usize,
    end: usize,
}

impl ByteReader {
    /// The most bytes that [`ByteReader::fill_to`] can be asked for.
    pub const FILL_MAX: usize = READ_BYTES / 4;

    /// A reader of this stream.
    pub fn new(stream: Stream) -> ByteReader {
        ByteReader { stream, buf: Some(BufMut::aligned(READ_BYTES)), start: 0, end: 0 }
    }

    /// The bytes that were read ahead.
    pub fn have(&self) -> &[u8] {
        &self.buf.as_ref().expect("the buffer is only away during a read")[self.start..self.end]
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
        while self.have().len() < len && len - self.have().len() < DIRECT_BYTES && len <= READ_BYTES / 2 {
            self.fill_some().await?;
        }
        let mut part = BufMut::aligned(len);
        let mut filled = self.have().len().min(len);
        part[..filled].copy_from_slice(&self.have()[..filled]);
        self.start += filled;
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

    async fn fill(&mut self) -> io::Result<usize> {
        let mut buf = self.buf.take().expect("one read at a time");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && buf.len() - self.end < READ_BYTES / 4 {
            buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let (n, buf) = self.stream.read(buf, self.end).await;
        self.buf = Some(buf);
        let n = n?;
        self.end += n;
        Ok(n)
    }
}
