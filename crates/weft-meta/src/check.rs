//! Whether the tables of a shard agree with each other.

use crate::key::{Key, KeyParts, Table};
use crate::record::{Entry, Inode, Part};
use crate::tables::Tables;
use std::collections::BTreeMap;
use std::fmt;
use weft_types::limits::FILE_OPERATIONS_MAX;
use weft_types::{FileKind, InodeNumber};

/// Something in the tables that contradicts something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableFinding {
    /// A name stands for an inode that is not there.
    NoInode {
        /// Where the name is.
        directory: InodeNumber,
        /// The name.
        name: Vec<u8>,
        /// What it stands for.
        inode: InodeNumber,
    },
    /// A name says another kind than its inode.
    OtherKind {
        /// The inode.
        inode: InodeNumber,
        /// What the name says.
        named: FileKind,
        /// What it is.
        kind: FileKind,
    },
    /// An entry is where its name's hash does not put it.
    OtherHash {
        /// Where the name is.
        directory: InodeNumber,
        /// The name.
        name: Vec<u8>,
    },
    /// Something belongs to an inode that is not there, or to one that has no such things.
    NoOwner {
        /// What it is.
        what: &'static str,
        /// Whose it would be.
        inode: InodeNumber,
    },
    /// An inode has another number of names than it says.
    Links {
        /// The inode.
        inode: InodeNumber,
        /// What it says.
        said: u32,
        /// Names that are there.
        found: u32,
    },
    /// A directory has another number of entries or of directories than it says.
    Counted {
        /// The directory.
        directory: InodeNumber,
        /// Entries and directories, as it says.
        said: (u64, u32),
        /// Entries and directories that are there.
        found: (u64, u32),
    },
    /// A directory says that it is in one where it has no name.
    Parent {
        /// The directory.
        directory: InodeNumber,
        /// Where it says that it is.
        said: InodeNumber,
        /// Where its name is.
        found: Option<InodeNumber>,
    },
    /// An inode without a name is not to be purged, or one with a name is.
    Orphan {
        /// The inode.
        inode: InodeNumber,
        /// Its names.
        links: u32,
        /// Whether it is to be purged.
        is_listed: bool,
    },
    /// An inode may be made again: its number is not below those that are reserved.
    NotReserved {
        /// The inode.
        inode: InodeNumber,
    },
    /// More answers of a session are kept than may be, or some that it has.
    Answers {
        /// The session.
        session: u64,
        /// How many.
        kept: u64,
    },
    /// Two owners have locks of an inode that exclude each other.
    Locks {
        /// The inode.
        inode: InodeNumber,
    },
    /// A value in several pieces is not whole.
    Pieces {
        /// The inode.
        inode: InodeNumber,
    },
}

impl fmt::Display for TableFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |name: &[u8]| name.escape_ascii().to_string();
        match self {
            TableFinding::NoInode { directory, name, inode } => {
                write!(
                    f,
                    "name {:?} in directory {directory} stands for inode {inode}, which is not there",
                    text(name)
                )
            }
            TableFinding::OtherKind { inode, named, kind } => {
                write!(f, "a name says that inode {inode} is {named:?}, it is {kind:?}")
            }
            TableFinding::OtherHash { directory, name } => {
                write!(f, "name {:?} in directory {directory} is not where its hash puts it", text(name))
            }
            TableFinding::NoOwner { what, inode } => write!(f, "{what} of inode {inode}, which has none"),
            TableFinding::Links { inode, said, found } => {
                write!(f, "inode {inode} says that it has {said} names, {found} are there")
            }
            TableFinding::Counted { directory, said, found } => {
                write!(
                    f,
                    "directory {directory} counts {said:?} entries and directories, {found:?} are there"
                )
            }
            TableFinding::Parent { directory, said, found } => {
                write!(f, "directory {directory} says that it is in {said}, its name is in {found:?}")
            }
            TableFinding::Orphan { inode, links, is_listed } => {
                write!(
                    f,
                    "inode {inode} has {links} names, and is {}to be purged",
                    if *is_listed { "" } else { "not " }
                )
            }
            TableFinding::NotReserved { inode } => write!(f, "inode {inode} may be made again"),
            TableFinding::Answers { session, kept } => write!(f, "session {session} has {kept} answers kept"),
            TableFinding::Locks { inode } => write!(f, "two locks of inode {inode} exclude each other"),
            TableFinding::Pieces { inode } => write!(f, "a value of inode {inode} is not whole"),
        }
    }
}

/// Everything in the tables of a shard that contradicts something else; inodes of other shards are not looked
/// for.
pub fn check_tables(tables: &Tables) -> Vec<TableFinding> {
    let mut check = Check { tables, findings: Vec::new(), seen: BTreeMap::new() };
    check.entries();
    check.inodes();
    check.orphans();
    check.owned();
    check.held();
    check.locks();
    check.sessions();
    check.findings
}

/// What was seen of an inode's names.
#[derive(Default)]
struct Seen {
    names: u32,
    parent: Option<InodeNumber>,
    entries: u64,
    directories: u32,
}

struct Check<'t> {
    tables: &'t Tables,
    findings: Vec<TableFinding>,
    seen: BTreeMap<InodeNumber, Seen>,
}

impl Check<'_> {
    fn is_here(&self, inode: InodeNumber) -> bool {
        self.tables.shard().is_some_and(|record| record.number == inode.shard())
    }

    fn entries(&mut self) {
        for (key, value) in self.tables.of(Table::Entry) {
            let Some(KeyParts::Entry(directory, hash, name)) = key.parts() else { continue };
            let entry = Entry::decode(value).expect("values are checked");
            if hash != self.tables.hash(directory, name) {
                self.findings.push(TableFinding::OtherHash { directory, name: name.to_vec() });
            }
            let of_directory = self.seen.entry(directory).or_default();
            of_directory.entries += 1;
            of_directory.directories += u32::from(entry.kind == FileKind::Directory);
            let named = self.seen.entry(entry.inode).or_default();
            named.names += 1;
            named.parent = Some(directory);
            match self.tables.inode(entry.inode) {
                None if self.is_here(entry.inode) => {
                    let name = name.to_vec();
                    self.findings.push(TableFinding::NoInode { directory, name, inode: entry.inode });
                }
                Some(inode) if inode.attributes.kind != entry.kind => {
                    let kind = inode.attributes.kind;
                    self.findings.push(TableFinding::OtherKind {
                        inode: entry.inode,
                        named: entry.kind,
                        kind,
                    });
                }
                _ => {}
            }
        }
    }

    fn inodes(&mut self) {
        let reserved = self.tables.shard().map_or(0, |record| record.reserved);
        for (_, value) in self.tables.of(Table::Inode) {
            let Inode { attributes, parent, .. } = Inode::decode(value).expect("values are checked");
            let inode = attributes.inode;
            let seen = self.seen.remove(&inode).unwrap_or_default();
            if inode.counter() >= reserved {
                self.findings.push(TableFinding::NotReserved { inode });
            }
            let is_root = inode == InodeNumber::ROOT;
            let found = match attributes.kind {
                FileKind::Directory if seen.names == 1 || is_root => 2,
                _ => seen.names,
            };
            if found != attributes.links {
                self.findings.push(TableFinding::Links { inode, said: attributes.links, found });
            }
            if attributes.kind == FileKind::Directory {
                self.directory(inode, parent, &seen, is_root);
            }
            let is_listed = self.tables.get(&Key::orphan(inode)).is_some();
            if is_listed != (attributes.links == 0) {
                self.findings.push(TableFinding::Orphan { inode, links: attributes.links, is_listed });
            }
        }
        // What is left has entries and no inode.
        let left = std::mem::take(&mut self.seen).into_iter().filter(|(_, seen)| seen.entries > 0);
        let left: Vec<InodeNumber> =
            left.map(|(inode, _)| inode).filter(|inode| self.is_here(*inode)).collect();
        self.findings.extend(left.into_iter().map(|inode| TableFinding::NoOwner { what: "entries", inode }));
    }

    fn directory(&mut self, directory: InodeNumber, parent: InodeNumber, seen: &Seen, is_root: bool) {
        let found = if is_root { Some(directory) } else { seen.parent };
        if found.is_some() && found != Some(parent) {
            self.findings.push(TableFinding::Parent { directory, said: parent, found });
        }
        let part = self.tables.part(directory).unwrap_or_default();
        let (said, found) = ((part.entries, part.directories), (seen.entries, seen.directories));
        if said != found {
            self.findings.push(TableFinding::Counted { directory, said, found });
        }
    }

    fn orphans(&mut self) {
        for (key, _) in self.tables.of(Table::Orphan) {
            if let Some(KeyParts::Orphan(inode)) = key.parts()
                && self.tables.inode(inode).is_none()
            {
                self.findings.push(TableFinding::NoOwner { what: "an order to purge", inode });
            }
        }
    }

    /// Parts, targets and extended attributes belong to inodes that can have them.
    fn owned(&mut self) {
        for (key, value) in self.tables.of(Table::Part) {
            let Some(KeyParts::Part(inode, _)) = key.parts() else { continue };
            let _ = Part::decode(value).expect("values are checked");
            self.owner("a part of a directory", inode, |kind| kind == FileKind::Directory);
        }
        for (key, _) in self.tables.of(Table::Target) {
            let Some(KeyParts::Target(inode, piece)) = key.parts() else { continue };
            self.owner("a target", inode, |kind| kind == FileKind::Symlink);
            self.pieces(inode, piece, |piece| Key::target(inode, piece));
        }
        for (key, _) in self.tables.of(Table::Xattr) {
            let Some(KeyParts::Xattr(inode, name, piece)) = key.parts() else { continue };
            self.owner("an extended attribute", inode, |_| true);
            self.pieces(inode, piece, |piece| Key::xattr(inode, name, piece));
        }
    }

    /// Who has a lock has the inode open, and no two exclude each other.
    fn locks(&mut self) {
        let mut seen = None;
        for (key, _) in self.tables.of(Table::Lock) {
            let Some(KeyParts::Lock(inode, session, ..)) = key.parts() else { continue };
            if self.tables.get(&Key::held(inode, session)).is_none() {
                self.findings.push(TableFinding::NoOwner { what: "a lock", inode });
            }
            if seen.replace(inode) == Some(inode) {
                continue;
            }
            let mut locks = self.tables.locks(inode);
            if locks
                .any(|(session, lock)| self.tables.locks_in_the_way(inode, session, lock).next().is_some())
            {
                self.findings.push(TableFinding::Locks { inode });
            }
        }
    }

    /// What sessions have open is there.
    fn held(&mut self) {
        for (key, _) in self.tables.of(Table::Held) {
            let Some(KeyParts::Held(inode, _)) = key.parts() else { continue };
            self.owner("a hold", inode, |_| true);
        }
    }

    fn owner(&mut self, what: &'static str, inode: InodeNumber, fits: impl Fn(FileKind) -> bool) {
        if !self.tables.inode(inode).is_some_and(|found| fits(found.attributes.kind)) {
            self.findings.push(TableFinding::NoOwner { what, inode });
        }
    }

    /// Looks at all pieces with the first one; others must have one before them.
    fn pieces(&mut self, inode: InodeNumber, piece: u8, key: impl Fn(u8) -> Key) {
        let is_whole = match piece {
            0 => {
                let pieces = (0..=u8::MAX).map_while(|piece| self.tables.get(&key(piece)));
                let bytes: Vec<u8> = pieces.flat_map(|piece| piece.iter().copied()).collect();
                let (length, bytes) = bytes.split_first_chunk().expect("values are checked");
                u32::from_le_bytes(*length) as usize == bytes.len()
            }
            _ => self.tables.get(&key(piece - 1)).is_some(),
        };
        if !is_whole {
            self.findings.push(TableFinding::Pieces { inode });
        }
    }

    fn sessions(&mut self) {
        let mut kept: BTreeMap<u64, u64> = BTreeMap::new();
        for (key, _) in self.tables.of(Table::Answer) {
            let Some(KeyParts::Answer(session, number)) = key.parts() else { continue };
            let count = kept.entry(session.0).or_default();
            *count = count.saturating_add(1);
            if self.tables.session(session).is_none_or(|answered| number <= answered) {
                *count = u64::MAX;
            }
        }
        let wrong = kept.into_iter().filter(|(_, kept)| *kept > FILE_OPERATIONS_MAX);
        self.findings.extend(wrong.map(|(session, kept)| TableFinding::Answers { session, kept }));
    }
}
