//! Where an export's data is.

#[cfg(any(test, feature = "memory"))]
use crate::export::MemoryVolume;
use crate::{AttachMode, ClientError, StatusExtent, Volume};
#[cfg(any(test, feature = "memory"))]
use std::rc::Rc;
use weft_rt::Buf;

/// A volume, or what stands in for one.
pub(super) enum Source {
    Volume(Volume),
    /// For tests of faces, which may not build a fabric.
    #[cfg(any(test, feature = "memory"))]
    Memory(Rc<MemoryVolume>),
}

/// Calls the method on whatever is there.
macro_rules! on {
    ($source:expr, $volume:ident => $call:expr) => {
        match $source {
            Source::Volume($volume) => $call,
            #[cfg(any(test, feature = "memory"))]
            Source::Memory($volume) => $call,
        }
    };
}

impl Source {
    pub(super) fn name(&self) -> &str {
        on!(self, v => v.name())
    }

    pub(super) fn size_bytes(&self) -> u64 {
        on!(self, v => v.size_bytes())
    }

    pub(super) fn logical_block(&self) -> u32 {
        on!(self, v => v.logical_block())
    }

    pub(super) fn mode(&self) -> AttachMode {
        on!(self, v => v.mode())
    }

    pub(super) async fn read(&self, offset: u64, length: u64) -> Result<Vec<Buf>, ClientError> {
        on!(self, v => v.read(offset, length).await)
    }

    pub(super) async fn write(&self, offset: u64, data: Vec<Buf>) -> Result<(), ClientError> {
        on!(self, v => v.write(offset, data).await)
    }

    pub(super) async fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        on!(self, v => v.write_zeroes(offset, length).await)
    }

    pub(super) async fn discard(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        on!(self, v => v.discard(offset, length).await)
    }

    pub(super) async fn flush(&self) -> Result<(), ClientError> {
        on!(self, v => v.flush().await)
    }

    pub(super) async fn block_status(
        &self,
        offset: u64,
        length: u64,
    ) -> Result<Vec<StatusExtent>, ClientError> {
        on!(self, v => v.block_status(offset, length).await)
    }
}
