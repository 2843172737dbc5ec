//! What sessions have open, and how far files may have bytes.

use super::draft::Draft;
use crate::key::{Key, KeyParts, Table};
use crate::record::Value;
use weft_rules::{Mutation, mutated};
use weft_types::limits::FILE_BYTES_MAX;
use weft_types::{FileKind, FileTime, InodeNumber};
use weft_wire::files::{Answer, AttributeChanges, FileError, HoldMode};

impl Draft<'_> {
    /// The session opens an inode in a mode. An inode that has no name, and that no session has open,
    /// cannot be opened: it may be purged at this very time.
    pub(super) fn hold(&mut self, inode: InodeNumber, mode: HoldMode) -> Result<Answer, FileError> {
        let is_whole = inode == self.tables.whole();
        if is_whole && mode == HoldMode::Write && self.is_beside_others() {
            return Err(FileError::Busy);
        }
        if is_whole && inode != InodeNumber::ROOT {
            self.put_hold(inode, mode);
            return Ok(Answer::Done);
        }
        let found = self.inode(inode)?;
        if found.attributes.links == 0 && !self.tables.is_held(inode) {
            return Err(FileError::Stale);
        }
        match (inode, mode) {
            (InodeNumber::ROOT, HoldMode::Write | HoldMode::Open) => {}
            _ if found.is_directory() => return Err(FileError::IsDirectory),
            (_, HoldMode::Shared) if !self.may_share(inode) => return Err(FileError::NotPermitted),
            _ => {}
        }
        if !mode.writes() {
            self.take_room(inode);
        }
        self.put_hold(inode, mode);
        Ok(Answer::Attributes(self.seen(&found)))
    }

    /// Whether nothing lies behind the end of a file: the session has seen to that, or others share it.
    fn may_share(&self, inode: InodeNumber) -> bool {
        let is_clear = |(holder, mode): (_, HoldMode)| {
            mode == HoldMode::Shared || (holder == self.session && mode == HoldMode::Write)
        };
        self.tables.holders(inode).any(is_clear)
    }

    /// The session keeps names and attributes of a directory.
    pub(super) fn hold_directory(&mut self, inode: InodeNumber) -> Result<Answer, FileError> {
        let found = self.living_directory(inode)?;
        let held = self.tables.hold_of(inode, self.session);
        if !held.is_some_and(|held| held.covers(HoldMode::Read)) {
            self.put_hold(inode, HoldMode::Read);
        }
        Ok(Answer::Attributes(self.seen(&found)))
    }

    /// Whether another session holds anything.
    fn is_beside_others(&self) -> bool {
        self.tables.of(Table::Held).any(|(key, _)| match key.parts() {
            Some(KeyParts::Held(_, session)) => session != self.session,
            _ => false,
        })
    }

    pub(super) fn put_hold(&mut self, inode: InodeNumber, mode: HoldMode) {
        self.put(Key::held(inode, self.session), Value::from([mode as u8]));
    }

    /// Changes attributes, and the session has it open no more.
    pub(super) fn release(
        &mut self,
        inode: InodeNumber,
        changes: &AttributeChanges,
    ) -> Result<Answer, FileError> {
        let changed = match *changes == AttributeChanges::default() {
            true => Answer::Done,
            false => self.change(inode, changes)?,
        };
        self.drop_locks(inode);
        self.take_room(inode);
        self.delete(Key::held(inode, self.session));
        Ok(changed)
    }

    /// A file is at least this long, and data were written at this time. The time becomes another one in any
    /// case: kernels go by it.
    pub(super) fn grow(
        &mut self,
        inode: InodeNumber,
        size: u64,
        time: FileTime,
    ) -> Result<Answer, FileError> {
        let mut found = self.inode(inode)?;
        if !self.tables.hold_of(inode, self.session).is_some_and(HoldMode::writes) {
            return Err(FileError::Stale);
        }
        match found.attributes.kind {
            FileKind::Regular if size > FILE_BYTES_MAX => return Err(FileError::TooLarge),
            FileKind::Regular => {}
            _ => return Err(FileError::Invalid),
        }
        let attributes = &mut found.attributes;
        attributes.size = match mutated(Mutation::GrowthLowers) {
            true => size,
            false => size.max(attributes.size),
        };
        attributes.modified = time.max(attributes.modified.next());
        self.put_changed(&mut found);
        Ok(Answer::Attributes(self.seen(&found)))
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
        self.give_room(&inode, choose(self.tables.room(inode.attributes.inode), end).min(end));
        Ok(Answer::Reserved(before))
    }
}
