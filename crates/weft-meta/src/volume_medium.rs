//! A volume as the medium of a shard.

use crate::error::MediumError;
use crate::medium::Medium;
use weft_client::{AttachMode, ClientError, Volume};
use weft_rt::Buf;
use weft_types::BLOCK_SIZE;

/// A volume that is attached exclusively. The next exclusive attach, by another server, fences this one: from
/// then on no target serves it, neither reads nor writes (R16).
pub struct VolumeMedium(Volume);

impl VolumeMedium {
    /// The medium that is this attach.
    ///
    /// # Panics
    /// If others may use the volume at the same time.
    pub fn new(volume: Volume) -> VolumeMedium {
        assert_eq!(volume.mode(), AttachMode::Exclusive, "a shard has its volume for itself");
        VolumeMedium(volume)
    }
}

impl Medium for VolumeMedium {
    fn generation(&self) -> u64 {
        self.0.generation().0
    }

    fn blocks(&self) -> u64 {
        self.0.size_bytes() / BLOCK_SIZE as u64
    }

    async fn read(&self, block: u64, count: u64) -> Result<Vec<Buf>, MediumError> {
        let (at, length) = (block * BLOCK_SIZE as u64, count * BLOCK_SIZE as u64);
        self.0.read(at, length).await.map_err(medium_error)
    }

    async fn write(&self, block: u64, bufs: Vec<Buf>) -> Result<(), MediumError> {
        self.0.write(block * BLOCK_SIZE as u64, bufs).await.map_err(medium_error)
    }
}

fn medium_error(error: ClientError) -> MediumError {
    match error {
        ClientError::Fenced { .. } => MediumError::Fenced,
        error => MediumError::Failed(weft_types::with_causes(&error).into()),
    }
}
