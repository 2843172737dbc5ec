//! Inodes that are made.

use super::draft::Draft;
use crate::foreign::Need;
use crate::key::Key;
use crate::record::{Entry, Inode, Part, ShardRecord};
use weft_layout::FileLayout;
use weft_rules::{Mutation, mutated};
use weft_types::limits::{FILE_BYTES_MAX, LINK_TARGET_BYTES_MAX};
use weft_types::{Attributes, FileKind, InodeNumber};
use weft_wire::files::{Answer, FileError, HoldMode, NameIn, NewInode};

/// A directory passes its group and this bit on.
const SET_GROUP: u16 = 0o2000;

impl Draft<'_> {
    /// Makes a file and its name, which the session has open to write.
    pub(super) fn create_open(
        &mut self,
        at: &NameIn,
        made: &NewInode,
        reserved_end: u64,
    ) -> Result<Answer, FileError> {
        match made.kind {
            FileKind::Regular if reserved_end > FILE_BYTES_MAX => return Err(FileError::TooLarge),
            FileKind::Regular => {}
            _ => return Err(FileError::Invalid),
        }
        let inode = self.create_reserved(at, made, reserved_end)?;
        self.put_hold(inode.attributes.inode, HoldMode::Write);
        self.give_room(&inode, reserved_end);
        Ok(Answer::Attributes(inode.attributes))
    }

    /// Makes an inode and its name.
    pub(super) fn create(&mut self, at: &NameIn, made: &NewInode) -> Result<Answer, FileError> {
        let inode = self.create_reserved(at, made, 0)?;
        Ok(Answer::Attributes(self.seen(&inode)))
    }

    fn create_reserved(
        &mut self,
        at: &NameIn,
        made: &NewInode,
        reserved_end: u64,
    ) -> Result<Inode, FileError> {
        let directory = self.living_directory(at.directory)?;
        if self.entry(at)?.is_some() {
            return Err(FileError::Exists);
        }
        let mut inode = Inode { reserved_end, ..self.make(&directory, made)? };
        inode.attributes.links = if inode.is_directory() { 2 } else { 1 };
        inode.parent = at.directory;
        if inode.is_directory() {
            self.put(
                Key::part(inode.attributes.inode, 0),
                Part { modified: self.now, ..Part::default() }.encode(),
            );
        }
        self.put(Key::inode(inode.attributes.inode), inode.encode());
        self.add_entry(at, Entry { inode: inode.attributes.inode, kind: made.kind });
        Ok(inode)
    }

    /// Makes a file without a name, which the session has open to write.
    pub(super) fn create_unnamed(
        &mut self,
        directory: InodeNumber,
        made: &NewInode,
    ) -> Result<Answer, FileError> {
        let directory = self.living_directory(directory)?;
        if made.kind != FileKind::Regular {
            return Err(FileError::Invalid);
        }
        let mut inode = self.make(&directory, made)?;
        inode.is_unnamed = true;
        self.put(Key::inode(inode.attributes.inode), inode.encode());
        self.orphan(inode.attributes.inode);
        self.put_hold(inode.attributes.inode, HoldMode::Write);
        Ok(Answer::Attributes(inode.attributes))
    }

    /// An inode without a name, as it begins in a directory.
    fn make(&mut self, directory: &Inode, made: &NewInode) -> Result<Inode, FileError> {
        let is_link = made.kind == FileKind::Symlink;
        let is_device = matches!(made.kind, FileKind::CharacterDevice | FileKind::BlockDevice);
        let fits = if is_link { 1..=LINK_TARGET_BYTES_MAX } else { 0..=0 };
        if !fits.contains(&made.target.len()) {
            return Err(if is_link && !made.target.is_empty() {
                FileError::NameTooLong
            } else {
                FileError::Invalid
            });
        }
        if made.device != 0 && !is_device {
            return Err(FileError::Invalid);
        }
        let number = self.number_of_new(made.kind)?;
        if is_link {
            self.put_pieces(|piece| Key::target(number, piece), &made.target);
        }
        let passes_group = directory.attributes.mode & SET_GROUP != 0;
        let mode = match is_link {
            true => made.mode,
            false => self.inherit(directory.attributes.inode, number, made),
        };
        let mode = match passes_group && made.kind == FileKind::Directory {
            true => mode | SET_GROUP,
            false => mode,
        };
        let attributes = Attributes {
            inode: number,
            kind: made.kind,
            mode,
            links: 0,
            uid: made.uid,
            gid: if passes_group { directory.attributes.gid } else { made.gid },
            size: made.target.len() as u64,
            device: made.device,
            accessed: self.now,
            modified: self.now,
            changed: self.now,
            born: self.now,
            layout: self.layout_in(directory),
            revision: 1,
        };
        Ok(Inode {
            attributes,
            parent: InodeNumber(0),
            reserved_end: 0,
            modified_revision: 0,
            is_unnamed: false,
            project: if mutated(Mutation::ProjectNotInherited) { 0 } else { directory.project },
        })
    }

    /// The layout of an inode in a directory: as the directory's, in the newest set.
    fn layout_in(&self, directory: &Inode) -> [u8; FileLayout::BYTES] {
        let inherited = directory.attributes.layout;
        self.newest_set.map_or(inherited, |set| FileLayout::in_set(inherited, set))
    }

    /// The number of a new inode: of this shard, or of the shard that a directory is made in.
    fn number_of_new(&mut self, kind: FileKind) -> Result<InodeNumber, FileError> {
        match (kind, self.foreign.place, self.foreign.made) {
            (FileKind::Directory, Some(_), Some(made)) => Ok(made),
            (FileKind::Directory, Some(shard), None) => {
                self.needs(Need::Made { shard });
                // What is decided counts for nothing.
                Err(FileError::Busy)
            }
            _ => self.next_inode(),
        }
    }

    /// The number of the inode that is made next.
    fn next_inode(&mut self) -> Result<InodeNumber, FileError> {
        let counter = self.tables.next_inode();
        let record = self.tables.shard().expect("a shard that serves was formatted");
        if counter >= record.reserved {
            let reserved = counter + ShardRecord::RESERVED;
            if reserved >> InodeNumber::COUNTER_BITS != 0 {
                return Err(FileError::NoSpace);
            }
            self.put(Key::shard(), ShardRecord { reserved, ..record }.encode());
        }
        Ok(InodeNumber::new(record.number, counter))
    }
}
