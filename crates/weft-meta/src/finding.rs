//! What can be wrong in the tables of a shard.

use std::fmt;
use weft_types::{FileKind, InodeNumber};
use weft_wire::files::{QuotaKind, QuotaOf};

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
    /// An inode says that it has its only name in a directory, and has it in another one, or several.
    Parent {
        /// The inode.
        inode: InodeNumber,
        /// Where it says that it is.
        said: InodeNumber,
        /// Where its name is, or one of them.
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
    /// What is counted of a user or group is not what is there (F16).
    Used(QuotaOf),
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

impl TableFinding {
    /// What it is about; `None` of a session.
    pub fn inode(&self) -> Option<InodeNumber> {
        match self {
            TableFinding::NoInode { inode, .. }
            | TableFinding::OtherKind { inode, .. }
            | TableFinding::NoOwner { inode, .. }
            | TableFinding::Links { inode, .. }
            | TableFinding::Orphan { inode, .. }
            | TableFinding::NotReserved { inode }
            | TableFinding::Parent { inode, .. }
            | TableFinding::Locks { inode }
            | TableFinding::Pieces { inode } => Some(*inode),
            TableFinding::OtherHash { directory, .. } | TableFinding::Counted { directory, .. } => {
                Some(*directory)
            }
            TableFinding::Answers { .. } | TableFinding::Used(_) => None,
        }
    }
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
            TableFinding::Parent { inode, said, found } => {
                write!(f, "inode {inode} says that its only name is in {said}, there is one in {found:?}")
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
            TableFinding::Used(QuotaOf { kind, id }) => {
                let kind = match kind {
                    QuotaKind::User => "user",
                    QuotaKind::Group => "group",
                    QuotaKind::Project => "project",
                };
                write!(f, "what is counted of {kind} {id} is not what is there")
            }
            TableFinding::Locks { inode } => write!(f, "two locks of inode {inode} exclude each other"),
            TableFinding::Pieces { inode } => write!(f, "a value of inode {inode} is not whole"),
        }
    }
}
