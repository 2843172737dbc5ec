//! Entries of a directory.

use super::draft::Draft;
use crate::key::{Key, KeyParts};
use crate::record::Entry;
use weft_types::InodeNumber;
use weft_types::limits::LISTED_ENTRIES_MAX;
use weft_wire::files::{Answer, FileError, Listed, ListedEntry};

impl Draft<'_> {
    /// Entries behind a cookie, in the order of cookies. At least one, and all of one cookie together.
    pub(super) fn list(
        &mut self,
        directory: InodeNumber,
        after: u64,
        limit: u32,
    ) -> Result<Answer, FileError> {
        let limit = limit.clamp(1, LISTED_ENTRIES_MAX) as usize;
        let mut listed =
            Listed { parent: self.directory(directory)?.parent.0, entries: Vec::new(), is_end: true };
        let from = Key::entry(directory, after.saturating_add(1), b"");
        for (key, value) in self.tables.from(from) {
            let Some(KeyParts::Entry(found, cookie, name)) = key.parts() else { break };
            if found != directory {
                break;
            }
            if listed.entries.len() >= limit && listed.entries.last().is_some_and(|e| e.cookie != cookie) {
                listed.is_end = false;
                break;
            }
            let entry = Entry::decode(value).expect("values are checked");
            if self.is_foreign(entry.inode) {
                let attributes = entry.elsewhere();
                listed.entries.push(ListedEntry { cookie, name: name.to_vec(), attributes, lasts: false });
                continue;
            }
            // What a check would find does not hide the others.
            let Ok(inode) = self.inode(entry.inode) else { continue };
            let attributes = self.seen(&inode);
            listed.entries.push(ListedEntry { cookie, name: name.to_vec(), attributes, lasts: false });
        }
        Ok(Answer::Listed(listed))
    }
}
