//! Extended attributes, and access control lists among them.

use super::draft::Draft;
use crate::acl::{self, Acl};
use crate::key::{Key, KeyParts};
use crate::record::Inode;
use weft_types::limits::{
    XATTR_NAME_BYTES_MAX, XATTR_NAMES_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX,
};
use weft_types::{FileKind, InodeNumber};
use weft_wire::files::{Answer, FileError, NewInode, XattrMode};

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
        let is_kept = self.take_acl(&mut changed, name, value)?;
        let others: Vec<(Vec<u8>, usize)> =
            self.xattrs_of(inode).into_iter().filter(|(n, _)| n != name).collect();
        let names: usize = others.iter().map(|(name, _)| name.len() + 1).sum();
        let values: usize = others.iter().map(|(_, length)| length).sum();
        let has_room = names + name.len() < XATTR_NAMES_BYTES_MAX && values + value.len() <= XATTRS_BYTES_MAX;
        if !has_room {
            return Err(FileError::NoSpace);
        }
        self.delete_pieces(|piece| Key::xattr(inode, name, piece));
        if is_kept {
            self.put_pieces(|piece| Key::xattr(inode, name, piece), value);
        }
        self.put_changed(&mut changed);
        Ok(Answer::Attributes(self.seen(&changed)))
    }

    /// Removes an extended attribute.
    pub(super) fn remove_xattr(&mut self, inode: InodeNumber, name: &[u8]) -> Result<Answer, FileError> {
        let mut changed = self.inode(inode)?;
        check_name(name)?;
        if self.get(&Key::xattr(inode, name, 0)).is_none() {
            // As in Linux, a list that is not there can be removed.
            return match name == acl::ACCESS || name == acl::DEFAULT {
                true => Ok(Answer::Attributes(self.seen(&changed))),
                false => Err(FileError::NoXattr),
            };
        }
        self.delete_pieces(|piece| Key::xattr(inode, name, piece));
        self.put_changed(&mut changed);
        Ok(Answer::Attributes(self.seen(&changed)))
    }
}

impl Draft<'_> {
    /// When an access control list is set, the permissions follow it. Returns whether the attribute is to
    /// be kept: not if the permissions say all that the list says.
    fn take_acl(&self, inode: &mut Inode, name: &[u8], value: &[u8]) -> Result<bool, FileError> {
        if name != acl::ACCESS && name != acl::DEFAULT {
            return Ok(true);
        }
        let acl = Acl::decode(value).ok_or(FileError::Invalid)?;
        let attributes = &mut inode.attributes;
        match attributes.kind {
            FileKind::Symlink => return Err(FileError::Invalid),
            FileKind::Directory => {}
            _ if name == acl::DEFAULT => return Err(FileError::NotPermitted),
            _ => {}
        }
        if name == acl::DEFAULT {
            return Ok(true);
        }
        attributes.mode = attributes.mode & !acl::PERMISSIONS | acl.permissions();
        Ok(!acl.is_permissions())
    }

    fn acl(&self, inode: InodeNumber, name: &[u8]) -> Option<Acl> {
        let value = self.pieces(|piece| Key::xattr(inode, name, piece))?;
        Acl::decode(&value)
    }

    /// Permissions were set: the list follows.
    pub(super) fn follow_mode(&mut self, inode: InodeNumber, mode: u16) {
        if let Some(mut acl) = self.acl(inode, acl::ACCESS) {
            acl.follow(mode);
            self.put_pieces(|piece| Key::xattr(inode, acl::ACCESS, piece), &acl.encode());
        }
    }

    /// What is made in a directory gets its default list, or else permissions without those of the umask.
    /// Returns its permissions.
    pub(super) fn inherit(&mut self, directory: InodeNumber, inode: InodeNumber, made: &NewInode) -> u16 {
        let Some(default) = self.acl(directory, acl::DEFAULT) else { return made.mode & !made.umask };
        if made.kind == FileKind::Directory {
            self.put_pieces(|piece| Key::xattr(inode, acl::DEFAULT, piece), &default.encode());
        }
        let access = default.inherited(made.mode);
        if !access.is_permissions() {
            self.put_pieces(|piece| Key::xattr(inode, acl::ACCESS, piece), &access.encode());
        }
        made.mode & !acl::PERMISSIONS | access.permissions()
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
