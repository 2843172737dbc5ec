//! Operations on the blocks of one group, whatever protects them.

use crate::error::ClientError;
use crate::payload::Payload;
use crate::session::Session;
use crate::versions::Operation;
use std::rc::Rc;
use weft_rt::Buf;
use weft_types::{BlockRange, GroupId, ObjectId};
use weft_wire::data::Extent;
use weft_wire::listing::ListAnswer;

/// Blocks of one object, in the group that holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) group: GroupId,
    pub(crate) object: ObjectId,
    pub(crate) range: BlockRange,
    /// The number of the request that they are part of, for the logs of all machines.
    pub(crate) request: u32,
}

impl Place {
    /// Some of these blocks.
    pub(crate) fn part(self, range: BlockRange) -> Place {
        Place { range, ..self }
    }
}

/// Whose word counts about what holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lister {
    /// One up-to-date member: all that was written and acknowledged, and none of what was discarded.
    One,
    /// All members that a write has to reach: whatever one of them holds, or held before it was brought up
    /// to date.
    All,
}

/// Reads and writes blocks of one object, each of them one atomic register. `mirror.rs` does it with copies.
///
/// Nothing here has a deadline: an operation goes on until it is done or the session is over.
pub(crate) trait GroupIo: 'static {
    /// Whose requests they are.
    fn session(&self) -> &Rc<Session>;

    /// Reads blocks: buffers that together are the range, in order.
    async fn read(&self, at: Place) -> Result<Vec<(BlockRange, Buf)>, ClientError>;

    /// Writes blocks. Complete means durable on all members that a write has to reach.
    ///
    /// Once begun it must run to its end: dropped, it holds the watermark for the rest of the session.
    async fn write(
        self: &Rc<Self>,
        operation: Operation,
        at: Place,
        payload: Payload,
    ) -> Result<(), ClientError>;

    /// What the blocks hold, as one up-to-date member says: content, version, and whether a write is in
    /// flight.
    async fn contents(&self, at: Place) -> Result<Vec<Extent>, ClientError>;

    /// Which blocks of objects hold data, from the first block of a place on up to the last object; and
    /// where to go on. Whole chunks, cautiously: blocks that hold none may be among them.
    async fn list(&self, at: Place, last: ObjectId, by: Lister) -> Result<ListAnswer, ClientError>;
}
