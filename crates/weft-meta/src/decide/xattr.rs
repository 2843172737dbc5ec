//! Extended attributes.

use super::draft::Draft;
use crate::key::{Key, KeyParts};
use weft_types::InodeNumber;
use weft_types::limits::{
    XATTR_NAME_BYTES_MAX, XATTR_NAMES_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX,
};
use weft_wire::files::{Answer, FileError, XattrMode};

impl Draft<'_> {
    /// The value of an extended attribute.
    pub(super) fn xattr(&mut self, inode: InodeNumber, name: &[u8]) -> Result<Answer, FileError> {
        self.inode(inode)?;
        check_name(name)?;
        self.pieces(|piece| Key::xattr(inode, name, piece)).map(Answer::Bytes).ok_or(FileError::NoXattr)
    }

    /// Names of all extended attributes, in order.
    pub(super) fn xattr_names(&mut self, inode: InodeNumber) -> Result<Answer, FileError> {
        self.inode(inode)?;
        let mut names: Vec<Vec<u8>> = self.xattrs_of(inode).into_iter().map(|(name, _)| name).collect();
        names.sort();
        Ok(Answer::Names(names))
    }

    /// Names of the extended attributes of an inode, with the lengths of their values.
    fn xattrs_of(&self, inode: InodeNumber) -> Vec<(Vec<u8>, usize)> {
        let (mut found, mut from) = (Vec::new(), Key::first_xattr(inode));
        while let Some((key, value)) = self.tables.from(from).next() {
            let Some(KeyParts::Xattr(owner, name, _)) = key.parts() else { break };
            if owner != inode {
                break;
            }
            let length = value.first_chunk().map_or(0, |length| u32::from_le_bytes(*length));
            found.push((name.to_vec(), length as usize));
            // Behind all of its pieces.
            from = Key::xattr(inode, name, u8::MAX);
        }
        found
    }

    /// Sets an extended attribute.
    pub(super) fn set_xattr(
        &mut self,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Answer, FileError> {
        let mut changed = self.inode(inode)?;
        check_name(name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(FileError::NoSpace);
        }
        let is_there = self.get(&Key::xattr(inode, name, 0)).is_some();
        match mode {
            XattrMode::Create if is_there => return Err(FileError::Exists),
            XattrMode::Replace if !is_there => return Err(FileError::NoXattr),
            _ => {}
        }
        let others: Vec<(Vec<u8>, usize)> =
            self.xattrs_of(inode).into_iter().filter(|(n, _)| n != name).collect();
        let names: usize = others.iter().map(|(name, _)| name.len() + 1).sum();
        let values: usize = others.iter().map(|(_, length)| length).sum();
        let has_room = names + name.len() < XATTR_NAMES_BYTES_MAX && values + value.len() <= XATTRS_BYTES_MAX;
        if !has_room {
            return Err(FileError::NoSpace);
        }
        self.delete_pieces(|piece| Key::xattr(inode, name, piece));
        self.put_pieces(|piece| Key::xattr(inode, name, piece), value);
        self.put_changed(&mut changed);
        Ok(Answer::Attributes(self.seen(&changed)))
    }

    /// Removes an extended attribute.
    pub(super) fn remove_xattr(&mut self, inode: InodeNumber, name: &[u8]) -> Result<Answer, FileError> {
        let mut changed = self.inode(inode)?;
        check_name(name)?;
        if self.get(&Key::xattr(inode, name, 0)).is_none() {
            return Err(FileError::NoXattr);
        }
        self.delete_pieces(|piece| Key::xattr(inode, name, piece));
        self.put_changed(&mut changed);
        Ok(Answer::Attributes(self.seen(&changed)))
    }
}

/// Whether an extended attribute can have such a name.
///
/// # Errors
/// What is wrong with it.
fn check_name(name: &[u8]) -> Result<(), FileError> {
    match name.len() {
        1..=XATTR_NAME_BYTES_MAX => Ok(()),
        _ => Err(FileError::Invalid),
    }
}
