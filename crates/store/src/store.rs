//! The public face of the store.

use crate::StoreError;
use crate::label::Label;
use crate::request::*;
use std::rc::Rc;
use weft_rt::Drive;
use weft_types::{
    BlockRange, ChunkIndex, Epoch, Generation, Group, GroupId, ObjectId, SessionId, SessionSlot, Version,
    VolumeId,
};

/// One open drive.
pub struct Store;

#[allow(unused_variables, missing_docs, clippy::unused_async)]
impl Store {
    pub async fn format(drive: &Drive, options: FormatOptions) -> Result<Label, StoreError> {
        Err(StoreError::Closed)
    }
    pub async fn open(drive: Drive, options: OpenOptions) -> Result<(Rc<Store>, OpenReport), StoreError> {
        Err(StoreError::Closed)
    }
    pub async fn close(&self) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    pub fn label(&self) -> &Label {
        panic!()
    }
    pub fn usage(&self) -> Usage {
        Usage::default()
    }
    pub async fn write(&self, w: Write) -> Result<Vec<(BlockRange, Verdict)>, StoreError> {
        Err(StoreError::Closed)
    }
    pub async fn read(
        &self,
        group: GroupId,
        object: ObjectId,
        range: BlockRange,
    ) -> Result<Vec<Extent>, StoreError> {
        Err(StoreError::Closed)
    }
    pub async fn versions(
        &self,
        group: GroupId,
        object: ObjectId,
        range: BlockRange,
    ) -> Result<Vec<Extent>, StoreError> {
        Err(StoreError::Closed)
    }
    pub fn settle(&self, group: GroupId, object: ObjectId, range: BlockRange, version: Version) {}
    pub fn advance(&self, group: GroupId, slot: SessionSlot, watermark: Version) {}
    /// `equal`: the digests were equal, `source` is empty, the chunk is only marked as verified. Durable on return.
    pub async fn verify_chunk(
        &self,
        group: GroupId,
        object: ObjectId,
        chunk: ChunkIndex,
        stint: Epoch,
        source: Vec<CopyEntry>,
        equal: bool,
    ) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    pub fn chunk_is_verified(&self, group: GroupId, object: ObjectId, chunk: ChunkIndex) -> bool {
        false
    }
    /// Durable on return.
    pub async fn set_cursor(&self, group: GroupId, stint: Epoch, cursor: Cursor) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    pub fn verify_state(&self, group: GroupId) -> Option<VerifyState> {
        None
    }
    /// Durable on return.
    pub async fn merge_marks(&self, group: GroupId, stint: Epoch, marks: Marks) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    /// The marks of the chunks from `from` up to, not including, `to` (`None`: to the end), and all watermarks.
    pub fn marks(
        &self,
        group: GroupId,
        from: (ObjectId, ChunkIndex),
        to: Option<(ObjectId, ChunkIndex)>,
    ) -> Marks {
        Marks::default()
    }
    pub fn open_entries_of(&self, group: GroupId, slot: SessionSlot) -> Vec<OpenEntry> {
        Vec::new()
    }
    /// Durable on return.
    pub async fn forget_session(&self, group: GroupId, slot: SessionSlot) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    pub fn watermark(&self, group: GroupId, slot: SessionSlot) -> Version {
        Version::ZERO
    }
    pub fn groups(&self) -> Vec<GroupId> {
        Vec::new()
    }
    pub fn group(&self, group: GroupId) -> Option<Rc<Group>> {
        None
    }
    /// The model's `adopt`. Durable on return.
    pub async fn set_group(&self, entry: Group) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    pub async fn drop_group(&self, group: GroupId) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    /// These sessions, and all below the floor, are over for good. Durable on return.
    pub async fn close_sessions(
        &self,
        floor: Option<SessionId>,
        sessions: &[SessionId],
    ) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    pub fn session_is_over(&self, session: SessionId) -> bool {
        false
    }
    pub async fn set_generation(&self, volume: VolumeId, generation: Generation) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    pub fn generation(&self, volume: VolumeId) -> Generation {
        Generation(0)
    }
    pub async fn drop_objects(&self, volume: VolumeId) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    pub async fn digests(
        &self,
        group: GroupId,
        from: Option<(ObjectId, ChunkIndex)>,
        limit: usize,
    ) -> Result<Vec<(ObjectId, ChunkIndex, u64)>, StoreError> {
        Err(StoreError::Closed)
    }
    pub async fn put_map_copy(&self, version: u64, bytes: &[u8]) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    /// The newest good copy of the fabric map: its version and bytes. Works even if the rest is damaged.
    pub async fn read_map_copy(drive: &Drive) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        Err(StoreError::Closed)
    }
}
