//! Data that go from one open file to another one, or within one, without a way through the kernel.

use crate::error::FsError;
use crate::files::Files;

/// Bytes that are read before they are written.
const PIECE_BYTES: u64 = 1 << 20;

/// Bytes that one call copies: others of the mount have their turns, and whoever interrupts it does not wait
/// for long.
const CALL_BYTES: u64 = 16 << 20;

/// A place in an open file.
#[derive(Clone, Copy, Debug)]
pub struct FilePlace {
    /// Its handle.
    pub handle: u64,
    /// In bytes from the beginning.
    pub offset: u64,
}

impl Files {
    /// Copies up to `length` bytes, and returns how many: fewer at the end of the source, or after 16 MiB.
    /// Bytes that are written to the source during the copy may be copied in part. The copied data are as
    /// durable as after [`Files::write`].
    ///
    /// # Errors
    /// If nothing could be copied: as [`Files::read`] and [`Files::write`].
    pub async fn copy(&self, from: FilePlace, to: FilePlace, length: u64) -> Result<u64, FsError> {
        let (mut copied, length) = (0, length.min(CALL_BYTES));
        while copied < length {
            match self.copy_piece(from, to, copied, (length - copied).min(PIECE_BYTES)).await {
                Ok(0) => break,
                Ok(bytes) => copied += bytes,
                Err(error) if copied == 0 => return Err(error),
                // The next call meets it.
                Err(_) => break,
            }
        }
        Ok(copied)
    }

    async fn copy_piece(&self, from: FilePlace, to: FilePlace, at: u64, length: u64) -> Result<u64, FsError> {
        // Boxed, for what it awaits is deep.
        let read = Box::pin(self.read(from.handle, from.offset + at, length)).await?;
        let bytes = read.iter().map(|buf| buf.len() as u64).sum();
        if bytes > 0 {
            Box::pin(self.write(to.handle, to.offset + at, read)).await?;
        }
        Ok(bytes)
    }
}
