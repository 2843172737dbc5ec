//! Names that are given to something else.

use super::draft::Draft;
use crate::foreign::{Need, RENAMES};
use crate::key::Key;
use crate::record::{Entry, Inode};
use weft_rules::{Mutation, mutated};
use weft_types::InodeNumber;
use weft_wire::files::{Answer, FileError, NameIn, RenameMode};

/// Directories above a directory, far more than a path can have: beyond it the tables contradict themselves.
const DEPTH_MAX: u32 = 1 << 20;

impl Draft<'_> {
    /// Gives what has the name `from` the name `to`.
    pub(super) fn rename(
        &mut self,
        from: &NameIn,
        to: &NameIn,
        mode: RenameMode,
    ) -> Result<Answer, FileError> {
        let (entry, inode) = self.named(from)?;
        self.living_directory(to.directory)?;
        let taken = self.entry(to)?;
        let has_other_parent = to.directory != from.directory;
        if inode.is_directory() && has_other_parent {
            self.lock_renames();
        }
        if inode.is_directory() && self.is_below(to.directory, entry.inode)? {
            return Err(FileError::Invalid);
        }
        self.fits_project(&inode, Some(from.directory), to.directory)?;
        match (mode, taken) {
            (RenameMode::Keep, Some(_)) => Err(FileError::Exists),
            (RenameMode::Exchange, None) => Err(FileError::NotFound),
            (RenameMode::Exchange, Some(other)) => self.exchange(from, (entry, inode), to, other),
            (_, Some(other)) if other.inode == entry.inode => Ok(Answer::Attributes(self.seen(&inode))),
            (_, Some(other)) => {
                self.check_replace(&inode, other)?;
                let mut replaced = self.inode(other.inode)?;
                self.replace_entry(to, other, entry);
                self.drop_name(&mut replaced);
                self.leave(from, entry, inode, to)
            }
            (_, None) => {
                self.add_entry(to, entry);
                self.leave(from, entry, inode, to)
            }
        }
    }

    /// Removes the old name of what has the new one already.
    fn leave(&mut self, from: &NameIn, entry: Entry, inode: Inode, to: &NameIn) -> Result<Answer, FileError> {
        self.remove_entry(from, entry);
        let moved = self.put_moved(inode, to.directory);
        Ok(Answer::Attributes(self.seen(&moved)))
    }

    /// Whether a name may be taken away from what has it, for this inode.
    fn check_replace(&self, inode: &Inode, other: Entry) -> Result<(), FileError> {
        let other = self.inode(other.inode)?;
        match (inode.is_directory(), other.is_directory()) {
            (true, false) => Err(FileError::NotDirectory),
            (false, true) => Err(FileError::IsDirectory),
            (true, true) if self.part(other.attributes.inode).entries > 0 => Err(FileError::NotEmpty),
            _ => Ok(()),
        }
    }

    /// Exchanges two names.
    fn exchange(
        &mut self,
        from: &NameIn,
        (entry, inode): (Entry, Inode),
        to: &NameIn,
        other: Entry,
    ) -> Result<Answer, FileError> {
        let partner = self.inode(other.inode)?;
        if partner.is_directory() && from.directory != to.directory {
            self.lock_renames();
        }
        if partner.is_directory() && self.is_below(from.directory, other.inode)? {
            return Err(FileError::Invalid);
        }
        if other.inode == entry.inode {
            return Ok(Answer::Attributes(self.seen(&inode)));
        }
        self.fits_project(&partner, Some(to.directory), from.directory)?;
        self.replace_entry(to, other, entry);
        self.replace_entry(from, entry, other);
        self.put_moved(partner, from.directory);
        let moved = self.put_moved(inode, to.directory);
        Ok(Answer::Attributes(self.seen(&moved)))
    }

    /// Puts an inode that has a name in this directory now.
    fn put_moved(&mut self, mut inode: Inode, directory: InodeNumber) -> Inode {
        if inode.is_directory() || inode.attributes.links == 1 {
            inode.parent = directory;
        }
        self.put_changed(&mut inode);
        inode
    }

    /// Until this operation has ended, no other one gives a directory another parent. Needed where the
    /// directories above one may lie in several shards.
    fn lock_renames(&self) {
        let is_locked = self.foreign.locked.contains(&RENAMES) || mutated(Mutation::RenamesUnlocked);
        if self.foreign.is_spread && !is_locked {
            self.needs(Need::lock(RENAMES));
        }
    }

    /// Whether a directory is another one, or somewhere in it.
    fn is_below(&self, directory: InodeNumber, top: InodeNumber) -> Result<bool, FileError> {
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            if at == top {
                return Ok(true);
            }
            let parent = match self.is_foreign(at) && !self.foreign.items.contains_key(&Key::inode(at)) {
                true => match self.foreign.parents.get(&at) {
                    Some(parent) => *parent,
                    None => {
                        self.needs(Need::Parents(at));
                        return Ok(false);
                    }
                },
                false if self.foreign.locked_here.contains(&at) && !mutated(Mutation::ParentsOfLocked) => {
                    self.needs(Need::Unlocked(at));
                    return Ok(false);
                }
                false => self.directory(at)?.parent,
            };
            if parent == at {
                return Ok(false);
            }
            at = parent;
        }
        Err(FileError::Invalid)
    }
}
