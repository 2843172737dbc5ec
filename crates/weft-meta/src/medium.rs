//! What a shard is kept on.

use crate::error::MediumError;
use weft_rt::Buf;

/// Blocks of 4096 bytes that one server at a time may use: an exclusively attached volume.
///
/// Each block is an atomic register: it is read as it was written last, also after this program has died.
/// Several blocks of one write are several registers. What completes is durable. After another server has
/// begun, everything here fails.
pub trait Medium: 'static {
    /// Raised for each server that begins: the generation of the volume.
    fn generation(&self) -> u64;

    /// How many blocks there are.
    fn blocks(&self) -> u64;

    /// Reads so many blocks from one on. Those that were never written are zeroes.
    ///
    /// # Errors
    /// If another server has begun, or no copy can be read.
    fn read(&self, block: u64, count: u64) -> impl Future<Output = Result<Vec<Buf>, MediumError>>;

    /// Writes whole blocks from one on. Where there is no space it takes what is kept for this medium, and
    /// where that is used up it waits until there is some.
    ///
    /// # Errors
    /// If another server has begun, or the write may not have happened. The shard is then over.
    fn write(&self, block: u64, bufs: Vec<Buf>) -> impl Future<Output = Result<(), MediumError>>;

    /// Makes blocks read as zeroes, and gives back their space.
    ///
    /// # Errors
    /// Those of [`Medium::write`].
    fn discard(&self, block: u64, count: u64) -> impl Future<Output = Result<(), MediumError>>;

    /// Blocks of space that is kept for this medium and others like it, about.
    fn reserve_blocks(&self) -> u64;

    /// Whether writes take space that is kept for this medium, because there is no other: what would make
    /// the shard larger is refused as long as this is so.
    fn is_full(&self) -> bool;
}

/// Reads blocks into one piece.
///
/// # Errors
/// Those of [`Medium::read`].
pub(crate) async fn read_whole(medium: &impl Medium, block: u64, count: u64) -> Result<Vec<u8>, MediumError> {
    Ok(medium.read(block, count).await?.iter().flat_map(|buf| &buf[..]).copied().collect())
}
