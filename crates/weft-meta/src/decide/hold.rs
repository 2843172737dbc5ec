//! What sessions have open, and how far files may have bytes.

use super::draft::Draft;
use crate::key::Key;
use crate::record::Value;
use weft_types::limits::FILE_BYTES_MAX;
use weft_types::{FileKind, InodeNumber};
use weft_wire::files::{Answer, FileError};

impl Draft<'_> {
    /// The session has an inode open. One that has lost its last name, and that nobody has open, may be
    /// purged at this very time.
    pub(super) fn hold(&mut self, inode: InodeNumber) -> Result<Answer, FileError> {
        let found = self.inode(inode)?;
        if found.attributes.links == 0 && !self.tables.is_held(inode) {
            return Err(FileError::Stale);
        }
        if inode == InodeNumber::ROOT && self.tables.holders(inode).any(|holder| holder != self.session) {
            return Err(FileError::Busy);
        }
        self.put(Key::held(inode, self.session), Value::from([]));
        Ok(Answer::Attributes(self.seen(&found)))
    }

    /// The session has it open no more.
    pub(super) fn release(&mut self, inode: InodeNumber) -> Result<Answer, FileError> {
        self.delete(Key::held(inode, self.session));
        Ok(Answer::Done)
    }

    /// Moves the end of what may lie in a file.
    pub(super) fn move_end(
        &mut self,
        inode: InodeNumber,
        end: u64,
        choose: fn(u64, u64) -> u64,
    ) -> Result<Answer, FileError> {
        let mut inode = self.inode(inode)?;
        match inode.attributes.kind {
            FileKind::Regular if end > FILE_BYTES_MAX => return Err(FileError::TooLarge),
            FileKind::Regular => {}
            _ => return Err(FileError::Invalid),
        }
        let before = inode.reserved_end;
        inode.reserved_end = choose(before, end);
        self.put_inode(&mut inode);
        Ok(Answer::Reserved(before))
    }
}
