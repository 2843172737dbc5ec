//! What a client sends to the server of a shard.

use super::FileRequest;
use crate::{DecodeError, Decoder, Encoder};
use weft_types::VolumeId;

/// A request, and the shard that it is for: a server may have several, of several file systems.
///
/// ```text
///  offset  size  field
///       0     8  file system
///       8     2  shard
///      10     -  the request
/// ```
///
/// It is the head of a frame, or its body if it is longer than a head may be. So is the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardRequest {
    /// The file system's number.
    pub file_system: VolumeId,
    /// The shard's number in it.
    pub shard: u16,
    /// What is asked.
    pub request: FileRequest,
}

impl ShardRequest {
    /// The request as bytes.
    pub fn encode(&self) -> Vec<u8> {
        ShardRequest::encode_of(self.file_system, self.shard, &self.request)
    }

    /// The bytes of a request to a shard.
    pub fn encode_of(file_system: VolumeId, shard: u16, request: &FileRequest) -> Vec<u8> {
        let mut e = Encoder::default();
        e.u64(file_system.0).u16(shard);
        request.encode(&mut e);
        e.0
    }

    /// Reads a request.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<ShardRequest, DecodeError> {
        let mut d = Decoder::new(bytes);
        let (file_system, shard) = (VolumeId(d.u64()?), d.u16()?);
        let request = FileRequest::decode(&mut d)?;
        d.finish()?;
        Ok(ShardRequest { file_system, shard, request })
    }
}
