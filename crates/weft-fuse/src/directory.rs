//! Listings of directories: entries as READDIR and READDIRPLUS want them, in a buffer of given length.
//!
//! The kernel goes on behind the cookie of the last entry that it took. Cookies of `.` and `..` are 1 and 2,
//! those of entries are the tree's, from 16 on. Entries of one cookie are a *group*.

use crate::answer::{Answer, AnswerBody, entry_of, kind_bits};
use crate::proto::{Dirent, EntryOut, Field};
use crate::tree::Timeouts;
use weft_types::limits::LISTED_ENTRIES_MAX;
use weft_types::{FileKind, InodeNumber};
use weft_wire::files::{Listed, ListedEntry};

/// The cookie of `.`.
const DOT: u64 = 1;
/// The cookie of `..`, which is also what lies behind both.
const DOT_DOT: u64 = 2;

/// Bytes of a name that is neither short nor long, for guessing how many entries a buffer takes.
const USUAL_NAME_BYTES: usize = 16;

/// Entries are aligned to so many bytes.
const ALIGN: usize = 8;

/// What the kernel asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listing {
    pub(crate) directory: InodeNumber,
    /// The cookie of the last entry that it has; 0 at the beginning.
    pub(crate) after: u64,
    /// Bytes that the answer may have.
    pub(crate) length: usize,
    /// Whether it wants to know the inodes (READDIRPLUS).
    pub(crate) with_attributes: bool,
}

impl Listing {
    /// The cookie behind which the tree's entries are asked for.
    pub(crate) fn tree_after(&self) -> u64 {
        if self.after <= DOT_DOT { 0 } else { self.after }
    }

    /// How many entries to ask the tree for: what the buffer takes if names are of usual length.
    pub(crate) fn limit(&self) -> u32 {
        let entries = self.length / self.entry_bytes(USUAL_NAME_BYTES);
        (entries.max(1) as u32).min(LISTED_ENTRIES_MAX)
    }

    /// Packs what the tree has listed. A group that does not fit is left for the next request, unless it
    /// is the first of the buffer: then as much of it is there as fits.
    pub(crate) fn pack(&self, listed: &Listed, timeouts: Timeouts) -> Answer {
        let mut page = Page { listing: self, bytes: Vec::new(), gives: Vec::new(), timeouts };
        let dots = [(DOT, b"." as &[u8], self.directory.0), (DOT_DOT, b"..", listed.parent)];
        for (cookie, name, inode) in dots {
            if self.after < cookie && !page.put_dot(cookie, name, inode) {
                return page.finish();
            }
        }
        let mut before = self.after.max(DOT_DOT);
        for group in listed.entries.chunk_by(|a, b| a.cookie == b.cookie) {
            let is_first = page.bytes.is_empty();
            let needed: usize = group.iter().map(|entry| self.entry_bytes(entry.name.len())).sum();
            if needed > page.room() && !is_first {
                break;
            }
            let fitting = page.fitting(group);
            for (i, entry) in group[..fitting].iter().enumerate() {
                // A caller may take a part of the answer. If that ends inside of a group, the whole group
                // comes again: better twice than never.
                let cookie = if i + 1 == fitting { entry.cookie } else { before };
                page.put(cookie, entry);
            }
            if fitting < group.len() {
                break;
            }
            before = group[0].cookie;
        }
        page.finish()
    }

    /// Bytes of an entry with a name of this length.
    fn entry_bytes(&self, name: usize) -> usize {
        let attributes = if self.with_attributes { EntryOut::BYTES } else { 0 };
        (attributes + Dirent::BYTES + name).next_multiple_of(ALIGN)
    }
}

/// An answer that is being filled.
struct Page<'a> {
    listing: &'a Listing,
    bytes: Vec<u8>,
    gives: Vec<InodeNumber>,
    timeouts: Timeouts,
}

impl Page<'_> {
    fn room(&self) -> usize {
        self.listing.length - self.bytes.len()
    }

    /// How many entries from the first on there is room for.
    fn fitting(&self, group: &[ListedEntry]) -> usize {
        let mut room = self.room();
        let fits = |entry: &&ListedEntry| {
            let left = room.checked_sub(self.listing.entry_bytes(entry.name.len()));
            room = left.unwrap_or(room);
            left.is_some()
        };
        group.iter().take_while(fits).count()
    }

    /// `.` or `..`; whether there was room. The kernel learns no inode from it.
    fn put_dot(&mut self, cookie: u64, name: &[u8], inode: u64) -> bool {
        if self.listing.entry_bytes(name.len()) > self.room() {
            return false;
        }
        if self.listing.with_attributes {
            EntryOut::default().put(&mut self.bytes);
        }
        self.put_name(cookie, name, inode, FileKind::Directory);
        true
    }

    fn put(&mut self, cookie: u64, entry: &ListedEntry) {
        let attributes = &entry.attributes;
        if self.listing.with_attributes {
            entry_of(attributes, self.timeouts).put(&mut self.bytes);
            self.gives.push(attributes.inode);
        }
        self.put_name(cookie, &entry.name, attributes.inode.0, attributes.kind);
    }

    fn put_name(&mut self, off: u64, name: &[u8], ino: u64, kind: FileKind) {
        // `d_type` is what says in `st_mode` what an inode is.
        let dirent = Dirent { ino, off, namelen: name.len() as u32, kind: kind_bits(kind) >> 12 };
        dirent.put(&mut self.bytes);
        self.bytes.extend_from_slice(name);
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
    }

    fn finish(self) -> Answer {
        Answer { body: AnswerBody::Bytes(self.bytes), gives: self.gives, opens: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{Attributes, FileTime};

    fn entry(cookie: u64, name: &str) -> ListedEntry {
        let time = FileTime::default();
        let attributes = Attributes {
            inode: InodeNumber(1000 + cookie),
            kind: FileKind::Regular,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            size: 0,
            device: 0,
            accessed: time,
            modified: time,
            changed: time,
            born: time,
            layout: [0; 12],
            revision: 0,
        };
        ListedEntry { cookie, name: name.as_bytes().to_vec(), attributes, lasts: false }
    }

    /// Names and cookies of an answer, and how many inodes it gives.
    fn unpack(listing: &Listing, listed: &Listed) -> (Vec<(String, u64)>, usize) {
        let answer = listing.pack(listed, Timeouts::default());
        let AnswerBody::Bytes(bytes) = answer.body else { panic!("a listing is bytes") };
        assert!(bytes.len() <= listing.length);
        let (mut rest, mut found) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let before = rest.len();
            if listing.with_attributes {
                EntryOut::take(&mut rest).unwrap();
            }
            let dirent = Dirent::take(&mut rest).unwrap();
            let name = String::from_utf8(rest[..dirent.namelen as usize].to_vec()).unwrap();
            let used = (before - rest.len() + name.len()).next_multiple_of(ALIGN);
            rest = &rest[used - (before - rest.len())..];
            found.push((name, dirent.off));
        }
        (found, answer.gives.len())
    }

    fn listing(after: u64, length: usize, with_attributes: bool) -> Listing {
        Listing { directory: InodeNumber(5), after, length, with_attributes }
    }

    fn names(found: &[(String, u64)]) -> Vec<&str> {
        found.iter().map(|(name, _)| &**name).collect()
    }

    #[test]
    fn dots_come_first_and_give_no_inode() {
        let entries = vec![entry(16, "a"), entry(17, "b")];
        let listed = Listed { parent: 1, entries, is_end: true };
        for with_attributes in [false, true] {
            let (found, gives) = unpack(&listing(0, 4096, with_attributes), &listed);
            assert_eq!(names(&found), [".", "..", "a", "b"]);
            assert_eq!(found.iter().map(|(_, off)| *off).collect::<Vec<_>>(), [1, 2, 16, 17]);
            assert_eq!(gives, if with_attributes { 2 } else { 0 });
        }
        assert_eq!(names(&unpack(&listing(1, 4096, false), &listed).0), ["..", "a", "b"]);
        assert_eq!(names(&unpack(&listing(2, 4096, false), &listed).0), ["a", "b"]);
        assert_eq!(names(&unpack(&listing(0, 40, false), &listed).0), ["."]);
        assert!(unpack(&listing(0, 8, false), &listed).0.is_empty());
        assert_eq!((listing(1, 64, true).tree_after(), listing(16, 64, true).tree_after()), (0, 16));
        assert_eq!((listing(0, 0, true).limit(), listing(0, 1 << 20, false).limit()), (1, 1024));
    }

    #[test]
    fn a_group_is_not_cut_unless_it_is_the_first() {
        let entries = vec![entry(16, "a"), entry(20, "b"), entry(20, "c"), entry(30, "d")];
        let listed = Listed { parent: 1, entries, is_end: true };
        // Each of these entries takes 32 bytes.
        let (found, _) = unpack(&listing(2, 64, false), &listed);
        assert_eq!(found, [("a".to_owned(), 16)]);
        let (found, _) = unpack(&listing(2, 96, false), &listed);
        let cookies: Vec<u64> = found.iter().map(|(_, off)| *off).collect();
        assert_eq!((names(&found), cookies), (vec!["a", "b", "c"], vec![16, 16, 20]));
        let behind = Listed { entries: listed.entries[1..].to_vec(), ..listed.clone() };
        let (found, _) = unpack(&listing(16, 32, false), &behind);
        assert_eq!(found, [("b".to_owned(), 20)], "better a part than a listing that never ends");
        let (found, gives) = unpack(&listing(16, 32 + 128, true), &behind);
        assert_eq!((names(&found), gives), (vec!["b"], 1));
        let (found, _) = unpack(&listing(0, 64 + 32, false), &behind);
        assert_eq!(names(&found), [".", ".."], "dots are in front of it");
    }
}
