//! Names: found, given and taken away.

use super::draft::Draft;
use crate::key::Key;
use crate::record::{Entry, Inode};
use weft_types::limits::FILE_LINKS_MAX;
use weft_types::{FileKind, InodeNumber};
use weft_wire::files::{Answer, FileError, NameIn};

impl Draft<'_> {
    /// Attributes of what has a name.
    pub(super) fn find(&mut self, at: &NameIn) -> Result<Answer, FileError> {
        let entry = self.entry(at)?.ok_or(FileError::NotFound)?;
        if self.is_foreign(entry.inode) {
            return Ok(Answer::Elsewhere(entry.inode, entry.kind));
        }
        let inode = self.inode(entry.inode)?;
        Ok(Answer::Attributes(self.seen(&inode)))
    }

    /// Another name of an inode.
    pub(super) fn link(&mut self, inode: InodeNumber, at: &NameIn) -> Result<Answer, FileError> {
        let mut inode = self.inode(inode)?;
        self.living_directory(at.directory)?;
        let taken = self.entry(at)?;
        if inode.is_directory() {
            return Err(FileError::NotPermitted);
        }
        if taken.is_some() {
            return Err(FileError::Exists);
        }
        self.fits_project(&inode, None, at.directory)?;
        let attributes = &mut inode.attributes;
        let is_held = self.get(&Key::held(attributes.inode, self.session)).is_some();
        // One that the session does not have open may be purged at this very time.
        if attributes.links == 0 && !(inode.is_unnamed && is_held) {
            return Err(FileError::NotFound);
        }
        if attributes.links >= FILE_LINKS_MAX {
            return Err(FileError::TooManyLinks);
        }
        attributes.links += 1;
        let is_only_name = attributes.links == 1;
        let entry = Entry { inode: attributes.inode, kind: attributes.kind };
        if inode.is_unnamed {
            inode.is_unnamed = false;
            self.delete(Key::orphan(entry.inode));
        }
        inode.parent = if is_only_name { at.directory } else { InodeNumber(0) };
        self.put_changed(&mut inode);
        self.add_entry(at, entry);
        Ok(Answer::Attributes(inode.attributes))
    }

    /// Removes a name of what is not a directory.
    pub(super) fn unlink(&mut self, at: &NameIn) -> Result<Answer, FileError> {
        let (entry, mut inode) = self.named(at)?;
        if inode.is_directory() {
            return Err(FileError::IsDirectory);
        }
        self.remove_entry(at, entry);
        self.drop_name(&mut inode);
        Ok(Answer::Attributes(inode.attributes))
    }

    /// Removes an empty directory.
    pub(super) fn remove_directory(&mut self, at: &NameIn) -> Result<Answer, FileError> {
        let (entry, mut inode) = self.named(at)?;
        if !inode.is_directory() {
            return Err(FileError::NotDirectory);
        }
        if self.part(entry.inode).entries > 0 {
            return Err(FileError::NotEmpty);
        }
        self.remove_entry(at, entry);
        self.drop_name(&mut inode);
        Ok(Answer::Attributes(self.seen(&inode)))
    }

    /// Counts one name less of an inode whose entry is removed or replaced. A directory has only one name.
    /// The session's hold of a directory ends, too: otherwise the directory would never be purged.
    pub(super) fn drop_name(&mut self, inode: &mut Inode) {
        let number = inode.attributes.inode;
        let links = &mut inode.attributes.links;
        *links = if inode.attributes.kind == FileKind::Directory { 0 } else { *links - 1 };
        if *links == 0 {
            self.orphan(number);
        }
        if inode.is_directory() && self.get(&Key::held(number, self.session)).is_some() {
            self.drop_locks(number);
            self.delete(Key::held(number, self.session));
        }
        self.put_changed(inode);
    }
}
