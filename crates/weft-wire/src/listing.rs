//! Which objects of a group hold data, and where: [`crate::Kind::List`], for who looks for data in what is
//! mostly empty.

use crate::data::DataRequest;
use crate::{DecodeError, Decoder, Encoder};
use weft_types::limits::{LISTED_RUNS_MAX, OBJECT_BLOCKS_MAX};
use weft_types::{BlockRange, ObjectId};

/// A request for the runs of a replica that hold data, in the order of objects and blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListRequest {
    /// Admitted as a read is. The list begins with the first block of its range in its object. It has at most as
    /// many runs as the range has blocks.
    pub from: DataRequest,
    /// The last object that is looked at, of the same volume or file system as the first one.
    pub last: ObjectId,
}

impl ListRequest {
    /// The request as a peer of this protocol reads it: a data request without checksums, then the last
    /// object.
    ///
    /// # Panics
    /// If there is a scope, and the protocol has no room for it.
    pub fn encode(&self, protocol: u16) -> Vec<u8> {
        let mut e = Encoder(self.from.encode(protocol, &[]));
        e.bytes(&self.last.to_bytes());
        e.0
    }

    /// Reads a request of a peer of this protocol.
    ///
    /// # Errors
    /// If the bytes are too few or too many, or the objects are of different volumes or in the wrong order.
    pub fn decode(protocol: u16, head: &[u8]) -> Result<ListRequest, DecodeError> {
        let Some((from, last)) = head.split_last_chunk() else {
            return Err(DecodeError::Short { offset: 0, needed: 16, found: head.len() });
        };
        let (from, crcs) = DataRequest::decode(protocol, from)?;
        if !crcs.is_empty() {
            return Err(DecodeError::Long(4 * crcs.len()));
        }
        let last = ObjectId::from_bytes(*last);
        if last < from.object || last.owner().volume() != from.object.owner().volume() {
            return Err(DecodeError::Invalid { field: "last object", value: last.index() });
        }
        Ok(ListRequest { from, last })
    }
}

/// The answer: runs of whole chunks that hold data, or should, in order; what was discarded is not among
/// them. Every other block up to where the list goes on, or to the last object, holds none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListAnswer {
    /// At most [`LISTED_RUNS_MAX`], none empty, each inside its object.
    pub runs: Vec<(ObjectId, BlockRange)>,
    /// Where to go on: an object, and a block of it. Nothing: this was the last of it.
    pub next: Option<(ObjectId, u32)>,
}

/// Says that there is no place to go on: no block of an object has this number.
const NO_MORE: u32 = u32::MAX;

impl ListAnswer {
    /// The answer as bytes: object and block to go on with (the block `0xffff_ffff`: none), then of each
    /// run object, first block and count.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::with_capacity(20 + 24 * self.runs.len());
        let (object, block) = self.next.unwrap_or((ObjectId::FIRST, NO_MORE));
        e.bytes(&object.to_bytes()).u32(block);
        for (object, range) in &self.runs {
            e.bytes(&object.to_bytes()).u32(range.first).u32(range.count);
        }
        e.0
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// If the bytes do not end with a run, there are more runs than may be, or one is empty,
    /// passes the largest object, or does not lie behind the one before it.
    pub fn decode(head: &[u8]) -> Result<ListAnswer, DecodeError> {
        let mut d = Decoder::new(head);
        let invalid = |field, value: u32| DecodeError::Invalid { field, value: u64::from(value) };
        let next = (ObjectId::from_bytes(d.array()?), d.u32()?);
        let next = match next {
            (ObjectId::FIRST, NO_MORE) => None,
            (_, block) if block >= OBJECT_BLOCKS_MAX => return Err(invalid("next block", block)),
            next => Some(next),
        };
        if d.left() > 24 * LISTED_RUNS_MAX {
            return Err(DecodeError::Long(d.left()));
        }
        let mut runs: Vec<(ObjectId, BlockRange)> = Vec::with_capacity(d.left() / 24);
        while d.left() > 0 {
            let (object, range) = (ObjectId::from_bytes(d.array()?), BlockRange::new(d.u32()?, d.u32()?));
            let follows =
                runs.last().is_none_or(|(before, last)| (*before, last.end()) <= (object, range.first));
            if !range.is_valid() || !follows {
                return Err(invalid("run", range.count));
            }
            runs.push((object, range));
        }
        if next.zip(runs.last()).is_some_and(|(next, (object, range))| next < (*object, range.end() - 1)) {
            return Err(invalid("next block", next.map_or(0, |(_, block)| block)));
        }
        Ok(ListAnswer { runs, next })
    }
}
