//! The tables as an operation is about to leave them.

use crate::change::Change;
use crate::foreign::{Foreign, Need, inode_of};
use crate::key::Key;
use crate::record::{Entry, Inode, PIECE_BYTES, Part, Value};
use crate::tables::Tables;
use std::cell::RefCell;
use weft_types::limits::FILE_NAME_BYTES_MAX;
use weft_types::{Attributes, FileKind, FileTime, InodeNumber, SessionId};
use weft_wire::files::{FileError, NameIn};

/// Tables with changes on top of them. Whoever reads here sees the changes.
pub(super) struct Draft<'t> {
    pub(super) tables: &'t Tables,
    /// The session that asks.
    pub(super) session: SessionId,
    pub(super) now: FileTime,
    /// The set of groups that new inodes lie in; that of their directory if it is not known.
    pub(super) newest_set: Option<u8>,
    /// In the order in which they were made; few, so they are searched one by one.
    pub(super) changes: Vec<Change>,
    /// What is known of other shards.
    pub(super) foreign: &'t Foreign,
    /// What has to be known of them, and is not: then everything else that the draft says counts for nothing.
    pub(super) need: RefCell<Option<Need>>,
    /// The number of this shard.
    own: u16,
}

impl<'t> Draft<'t> {
    pub(super) fn new(
        tables: &'t Tables,
        session: SessionId,
        now: FileTime,
        newest_set: Option<u8>,
        foreign: &'t Foreign,
    ) -> Draft<'t> {
        let own = tables.shard().map_or(0, |record| record.number);
        let (changes, need) = (Vec::new(), RefCell::new(None));
        Draft { tables, session, now, newest_set, changes, foreign, need, own }
    }

    /// Whether an inode belongs to another shard.
    pub(super) fn is_foreign(&self, inode: InodeNumber) -> bool {
        inode.shard() != self.own
    }

    /// Something has to be had of another shard.
    pub(super) fn needs(&self, need: Need) {
        let mut needed = self.need.borrow_mut();
        match needed.as_mut() {
            Some(needed) => needed.join(need),
            None => *needed = Some(need),
        }
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &Key) -> Option<Value> {
        match self.changes.iter().rev().find(|change| change.key() == key) {
            Some(Change::Put(_, value)) => Some(value.clone()),
            Some(Change::Delete(_)) => None,
            None => match inode_of(key).filter(|inode| self.is_foreign(*inode)) {
                None => self.tables.get(key).cloned(),
                Some(inode) => self.foreign.items.get(key).cloned().unwrap_or_else(|| {
                    self.needs(Need::item(inode, key));
                    None
                }),
            },
        }
    }

    pub(super) fn put(&mut self, key: Key, value: Value) {
        self.changes.push(Change::Put(key, value));
    }

    pub(super) fn delete(&mut self, key: Key) {
        self.changes.push(Change::Delete(key));
    }

    /// An inode.
    ///
    /// # Errors
    /// If it is gone.
    pub(super) fn inode(&self, inode: InodeNumber) -> Result<Inode, FileError> {
        let bytes = self.get(&Key::inode(inode)).ok_or(FileError::Stale)?;
        Ok(Inode::decode(&bytes).expect("values are checked"))
    }

    /// An inode that is a directory.
    ///
    /// # Errors
    /// If it is gone, or something else.
    pub(super) fn directory(&self, inode: InodeNumber) -> Result<Inode, FileError> {
        let inode = self.inode(inode)?;
        if inode.is_directory() { Ok(inode) } else { Err(FileError::NotDirectory) }
    }

    /// A directory in which names may be made: one that has a name itself.
    ///
    /// # Errors
    /// Those of [`Draft::directory`], and if it was removed.
    pub(super) fn living_directory(&self, inode: InodeNumber) -> Result<Inode, FileError> {
        let directory = self.directory(inode)?;
        if directory.attributes.links > 0 { Ok(directory) } else { Err(FileError::NotFound) }
    }

    /// Puts an inode whose attributes have changed now.
    pub(super) fn put_changed(&mut self, inode: &mut Inode) {
        inode.attributes.changed = self.now;
        self.put_inode(inode);
    }

    pub(super) fn put_inode(&mut self, inode: &mut Inode) {
        inode.attributes.revision += 1;
        self.put(Key::inode(inode.attributes.inode), inode.encode());
    }

    /// Attributes as users see them: those of a directory have what its parts say.
    pub(super) fn seen(&self, inode: &Inode) -> Attributes {
        let mut seen = inode.attributes;
        if seen.kind == FileKind::Directory {
            let part = self.part(seen.inode);
            seen.size = part.entries;
            if seen.links > 0 {
                seen.links += part.directories;
            }
            if part.revision > inode.modified_revision {
                seen.modified = part.modified;
            }
            seen.changed = seen.changed.max(part.modified);
            seen.revision += part.revision;
        }
        seen
    }

    /// The counters of a directory.
    pub(super) fn part(&self, directory: InodeNumber) -> Part {
        let bytes = self.get(&Key::part(directory, 0));
        bytes.map_or_else(Part::default, |bytes| Part::decode(&bytes).expect("values are checked"))
    }

    fn entry_key(&self, at: &NameIn) -> Key {
        Key::entry(at.directory, self.tables.hash(at.directory, &at.name), &at.name)
    }

    /// What a name stands for; `None` if it is free.
    ///
    /// # Errors
    /// If no directory can have such a name, or it is not in a directory.
    pub(super) fn entry(&self, at: &NameIn) -> Result<Option<Entry>, FileError> {
        self.directory(at.directory)?;
        check_name(&at.name)?;
        let bytes = self.get(&self.entry_key(at));
        Ok(bytes.map(|bytes| Entry::decode(&bytes).expect("values are checked")))
    }

    /// The entry of a name, and its inode.
    ///
    /// # Errors
    /// Those of [`Draft::entry`], and if the name is free.
    pub(super) fn named(&self, at: &NameIn) -> Result<(Entry, Inode), FileError> {
        let entry = self.entry(at)?.ok_or(FileError::NotFound)?;
        Ok((entry, self.inode(entry.inode)?))
    }

    /// Makes an entry where none is.
    pub(super) fn add_entry(&mut self, at: &NameIn, entry: Entry) {
        self.put(self.entry_key(at), entry.encode());
        self.count_entry(at.directory, entry.kind, 1);
    }

    /// Puts another entry in the place of one.
    pub(super) fn replace_entry(&mut self, at: &NameIn, old: Entry, new: Entry) {
        self.put(self.entry_key(at), new.encode());
        self.count_entry(at.directory, old.kind, -1);
        self.count_entry(at.directory, new.kind, 1);
    }

    /// Removes an entry.
    pub(super) fn remove_entry(&mut self, at: &NameIn, entry: Entry) {
        self.delete(self.entry_key(at));
        self.count_entry(at.directory, entry.kind, -1);
    }

    fn count_entry(&mut self, directory: InodeNumber, kind: FileKind, by: i64) {
        let mut part = self.part(directory);
        if self.need.borrow().is_some() {
            return;
        }
        part.entries = part.entries.checked_add_signed(by).expect("a part counts its entries");
        if kind == FileKind::Directory {
            let directories = i64::from(part.directories) + by;
            part.directories = u32::try_from(directories).expect("a part counts its directories");
        }
        part.modified = self.now;
        part.revision += 1;
        self.put(Key::part(directory, 0), part.encode());
    }

    /// An inode has lost its last name: it is to be purged.
    pub(super) fn orphan(&mut self, inode: InodeNumber) {
        self.put(Key::orphan(inode), Value::from([]));
    }

    /// Puts bytes of any length under keys that are numbered from 0, behind their length.
    pub(super) fn put_pieces(&mut self, key: impl Fn(u8) -> Key, bytes: &[u8]) {
        let mut whole = (bytes.len() as u32).to_le_bytes().to_vec();
        whole.extend_from_slice(bytes);
        for (n, piece) in whole.chunks(PIECE_BYTES).enumerate() {
            self.put(key(u8::try_from(n).expect("at most 64 KiB")), piece.into());
        }
    }

    /// The bytes that were put so; `None` if there are none.
    pub(super) fn pieces(&self, key: impl Fn(u8) -> Key) -> Option<Vec<u8>> {
        let first = self.get(&key(0))?;
        let (length, bytes) = first.split_first_chunk().expect("values are checked");
        let (length, mut bytes) = (u32::from_le_bytes(*length) as usize, bytes.to_vec());
        let mut n = 0;
        while bytes.len() < length {
            n += 1;
            bytes.extend_from_slice(&self.get(&key(n)).expect("all pieces are put together"));
        }
        Some(bytes)
    }

    /// Removes what was put so.
    pub(super) fn delete_pieces(&mut self, key: impl Fn(u8) -> Key) {
        for n in 0..=u8::MAX {
            if self.get(&key(n)).is_none() {
                break;
            }
            self.delete(key(n));
        }
    }
}

/// Whether a directory can have such a name.
///
/// # Errors
/// What is wrong with it.
fn check_name(name: &[u8]) -> Result<(), FileError> {
    if name.len() > FILE_NAME_BYTES_MAX {
        return Err(FileError::NameTooLong);
    }
    let is_wrong = matches!(name, b"" | b"." | b"..") || name.iter().any(|byte| matches!(byte, 0 | b'/'));
    if is_wrong { Err(FileError::Invalid) } else { Ok(()) }
}
