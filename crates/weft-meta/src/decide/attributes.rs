//! Attributes, and targets of symbolic links.

use super::draft::Draft;
use crate::key::Key;
use weft_layout::FileLayout;
use weft_types::limits::FILE_BYTES_MAX;
use weft_types::{FileKind, FileTime, InodeNumber};
use weft_wire::files::{Answer, AttributeChanges, FileError, SetTime};

impl Draft<'_> {
    /// Attributes of an inode.
    pub(super) fn attributes_of(&mut self, inode: InodeNumber) -> Result<Answer, FileError> {
        let inode = self.inode(inode)?;
        Ok(Answer::Attributes(self.seen(&inode)))
    }

    /// Changes attributes.
    pub(super) fn change(
        &mut self,
        inode: InodeNumber,
        changes: &AttributeChanges,
    ) -> Result<Answer, FileError> {
        let now = self.now;
        let at = |time: SetTime| -> FileTime {
            match time {
                SetTime::Now => now,
                SetTime::At(time) => time,
            }
        };
        let mut inode = self.inode(inode)?;
        let attributes = &mut inode.attributes;
        if let Some(size) = changes.size {
            match attributes.kind {
                FileKind::Regular if size > FILE_BYTES_MAX => return Err(FileError::TooLarge),
                FileKind::Regular => (attributes.size, attributes.modified) = (size, now),
                FileKind::Directory => return Err(FileError::IsDirectory),
                _ => return Err(FileError::Invalid),
            }
        }
        attributes.mode = changes.mode.unwrap_or(attributes.mode);
        if let Some(mode) = changes.mode {
            self.follow_mode(inode.attributes.inode, mode);
        }
        let attributes = &mut inode.attributes;
        attributes.uid = changes.uid.unwrap_or(attributes.uid);
        attributes.gid = changes.gid.unwrap_or(attributes.gid);
        attributes.accessed = changes.accessed.map_or(attributes.accessed, at);
        attributes.modified = changes.modified.map_or(attributes.modified, at);
        if changes.modified.is_some() && inode.is_directory() {
            inode.modified_revision = self.part(inode.attributes.inode).revision;
        }
        self.put_changed(&mut inode);
        Ok(Answer::Attributes(self.seen(&inode)))
    }

    /// Sets how the data of a file without data will lie, or of files that are made in a directory. The
    /// session may not have the file open either: where its data go is known by its layout at the open.
    pub(super) fn set_layout(
        &mut self,
        inode: InodeNumber,
        layout: &[u8; FileLayout::BYTES],
    ) -> Result<Answer, FileError> {
        let mut inode = self.inode(inode)?;
        let layout = FileLayout::decode(layout).map_err(|_| FileError::Invalid)?;
        let attributes = &mut inode.attributes;
        match attributes.kind {
            FileKind::Directory => {}
            FileKind::Regular => {
                let has_data = attributes.size > 0 || inode.reserved_end > 0;
                if has_data || self.tables.is_held(attributes.inode) {
                    return Err(FileError::NotPermitted);
                }
            }
            _ => return Err(FileError::Invalid),
        }
        // A layout of a later release is not taken apart here, and stays.
        let before = FileLayout::decode(&attributes.layout).map_err(|_| FileError::Invalid)?;
        if layout.copies != before.copies || !layout.is_possible() {
            return Err(FileError::Invalid);
        }
        attributes.layout = FileLayout { set: before.set, ..layout }.encode();
        self.put_changed(&mut inode);
        Ok(Answer::Attributes(self.seen(&inode)))
    }

    /// Target of a symbolic link.
    pub(super) fn target(&mut self, inode: InodeNumber) -> Result<Answer, FileError> {
        if self.inode(inode)?.attributes.kind != FileKind::Symlink {
            return Err(FileError::Invalid);
        }
        let target = self.pieces(|piece| Key::target(inode, piece));
        Ok(Answer::Bytes(target.expect("a symbolic link is made with its target")))
    }
}
