//! A volume as the medium of a shard.

use crate::error::MediumError;
use crate::medium::Medium;
use std::cell::Cell;
use std::time::Duration;
use weft_client::{AttachMode, ClientError, Volume};
use weft_rt::{Buf, Instant, now, sleep};
use weft_types::{BLOCK_SIZE, names_reserve};

/// How long after a refusal for want of space only the reserve is tried.
const FULL_MEMORY: Duration = Duration::from_secs(2);

/// How long to wait before a write is tried again for which the reserve had no space either.
const NO_RESERVE_PAUSE: Duration = Duration::from_millis(100);

/// A volume that is attached exclusively. The next exclusive attach, by another server, fences this one: from
/// then on no target serves it, neither reads nor writes (R16).
pub struct VolumeMedium {
    volume: Volume,
    /// Set when a write was refused for want of space: until then only the reserve is tried.
    full_until: Cell<Option<Instant>>,
}

impl VolumeMedium {
    /// The medium that is this attach.
    ///
    /// # Panics
    /// If others may use the volume at the same time.
    pub fn new(volume: Volume) -> VolumeMedium {
        assert_eq!(volume.mode(), AttachMode::Exclusive, "a shard has its volume for itself");
        VolumeMedium { volume, full_until: Cell::new(None) }
    }

    /// Writes blocks. A write that was refused for want of space is written once more as a whole: a part of
    /// it may be there, and the blocks are the same.
    async fn write_all(&self, at: u64, bufs: Vec<Buf>) -> Result<(), ClientError> {
        loop {
            let takes_reserve = self.full_until.get().is_some_and(|until| now() < until);
            self.volume.take_reserve(takes_reserve);
            match self.volume.write(at, bufs.clone()).await {
                Err(ClientError::NoSpace { .. }) if takes_reserve => sleep(NO_RESERVE_PAUSE).await,
                Err(ClientError::NoSpace { group }) => {
                    if !self.is_full() {
                        tracing::warn!(
                            group = group.0,
                            "a shard's volume is full: names are not added any more"
                        );
                    }
                    self.full_until.set(Some(now() + FULL_MEMORY));
                }
                Ok(()) if !takes_reserve => {
                    self.full_until.set(None);
                    return Ok(());
                }
                ended => return ended,
            }
        }
    }
}

impl Medium for VolumeMedium {
    fn generation(&self) -> u64 {
        self.volume.generation().0
    }

    fn blocks(&self) -> u64 {
        self.volume.size_bytes() / BLOCK_SIZE as u64
    }

    async fn read(&self, block: u64, count: u64) -> Result<Vec<Buf>, MediumError> {
        let (at, length) = (block * BLOCK_SIZE as u64, count * BLOCK_SIZE as u64);
        self.volume.read(at, length).await.map_err(medium_error)
    }

    async fn write(&self, block: u64, bufs: Vec<Buf>) -> Result<(), MediumError> {
        self.write_all(block * BLOCK_SIZE as u64, bufs).await.map_err(medium_error)
    }

    async fn discard(&self, block: u64, count: u64) -> Result<(), MediumError> {
        let (at, length) = (block * BLOCK_SIZE as u64, count * BLOCK_SIZE as u64);
        loop {
            match self.volume.discard(at, length).await {
                // A drive's own map may need a block for it.
                Err(ClientError::NoSpace { .. }) => sleep(NO_RESERVE_PAUSE).await,
                ended => return ended.map_err(medium_error),
            }
        }
    }

    fn reserve_blocks(&self) -> u64 {
        names_reserve(self.volume.smallest_drive()).0
    }

    fn is_full(&self) -> bool {
        self.full_until.get().is_some()
    }
}

fn medium_error(error: ClientError) -> MediumError {
    match error {
        ClientError::Fenced { .. } => MediumError::Fenced,
        error => MediumError::Failed(weft_types::with_causes(&error).into()),
    }
}
