//! Which attributes of an answer last: nobody changes them as long as the session holds a directory (F4).

use super::draft::Draft;
use weft_rules::{Mutation, mutated};
use weft_types::{Attributes, FileKind, InodeNumber};
use weft_wire::files::{Answer, HoldMode};

impl Draft<'_> {
    /// An answer to a question, with what lasts of it.
    pub(super) fn with_what_lasts(&self, answer: Answer) -> Answer {
        match answer {
            Answer::Attributes(found) => match self.lasts_with(&found) {
                Some(directory) => Answer::Lasting(found, directory),
                None => Answer::Attributes(found),
            },
            Answer::Listed(mut listed) => {
                for entry in &mut listed.entries {
                    entry.lasts = self.lasts_with(&entry.attributes).is_some();
                }
                Answer::Listed(listed)
            }
            other => other,
        }
    }

    /// The directory with which attributes last, if the session holds it.
    fn lasts_with(&self, found: &Attributes) -> Option<InodeNumber> {
        let directory = match found.kind {
            FileKind::Directory => found.inode,
            _ if found.links != 1 => return None,
            _ => self.tables.inode(found.inode)?.kept_with()?,
        };
        // Who holds all names keeps everything, and may be of a release that knows of no leases.
        let is_held = self.tables.hold_of(directory, self.session) == Some(HoldMode::Read);
        (is_held && (!self.has_other_writer(found.inode) || mutated(Mutation::WrittenLasts)))
            .then_some(directory)
    }

    /// Whether another session knows more of an inode than the shard.
    fn has_other_writer(&self, inode: InodeNumber) -> bool {
        let mut holders = self.tables.holders(inode);
        holders.any(|(holder, mode)| holder != self.session && mode.writes())
    }
}
