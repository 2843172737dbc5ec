//! What a mount has changed of an open file's attributes, and the shard has not heard.

use std::cell::Cell;
use weft_types::{Attributes, FileTime};
use weft_wire::files::{AttributeChanges, SetTime};

/// Changes of one file. The mount that makes them may write to it, so no other mount changes or sees
/// attributes.
#[derive(Default)]
pub(crate) struct Untold {
    /// When data was written last, or what was set for that since.
    modified: Cell<Option<FileTime>>,
    /// Permissions, owner, group, and when it was read.
    others: Cell<AttributeChanges>,
    /// When any of these was changed last.
    changed: Cell<Option<FileTime>>,
    /// Counts changes.
    count: Cell<u64>,
}

impl Untold {
    /// Data was written.
    pub(crate) fn note_write(&self, now: FileTime) {
        self.modified.set(Some(now));
        self.note_change(now);
    }

    /// Attributes were changed; not the size.
    pub(crate) fn note(&self, changes: AttributeChanges, now: FileTime) {
        let at = |time| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        self.modified.set(changes.modified.map(at).or(self.modified.get()));
        let before = self.others.get();
        self.others.set(AttributeChanges {
            mode: changes.mode.or(before.mode),
            uid: changes.uid.or(before.uid),
            gid: changes.gid.or(before.gid),
            accessed: changes.accessed.map(|time| SetTime::At(at(time))).or(before.accessed),
            ..AttributeChanges::default()
        });
        self.note_change(now);
    }

    fn note_change(&self, now: FileTime) {
        self.changed.set(Some(now));
        self.count.set(self.count.get() + 1);
    }

    /// Whether the shard has heard all.
    pub(crate) fn is_none(&self) -> bool {
        self.changed.get().is_none()
    }

    /// Whether the shard has not heard of data that was written, or of their time.
    pub(crate) fn has_time(&self) -> bool {
        self.modified.get().is_some()
    }

    /// Whether the shard has not heard of who may use the file: data that are written from now on are not to
    /// be there before that.
    pub(crate) fn has_owner(&self) -> bool {
        let others = self.others.get();
        others.mode.is_some() || others.uid.is_some() || others.gid.is_some()
    }

    /// When data was written last, if the shard has not heard.
    pub(crate) fn modified(&self) -> Option<FileTime> {
        self.modified.get()
    }

    /// Counts what was noted.
    pub(crate) fn count(&self) -> u64 {
        self.count.get()
    }

    /// What the shard is to hear, beside the size.
    pub(crate) fn changes(&self) -> AttributeChanges {
        AttributeChanges { modified: self.modified.get().map(SetTime::At), ..self.others.get() }
    }

    /// The shard has heard of the time when data was written.
    pub(crate) fn forget_time(&self) {
        self.modified.set(None);
        if self.others.get() == AttributeChanges::default() {
            self.changed.set(None);
        }
    }

    /// The shard has heard all.
    pub(crate) fn clear(&self) {
        self.modified.set(None);
        self.others.set(AttributeChanges::default());
        self.changed.set(None);
    }

    /// Attributes as they are with this.
    pub(crate) fn put_on(&self, seen: &mut Attributes) {
        let others = self.others.get();
        seen.mode = others.mode.unwrap_or(seen.mode);
        seen.uid = others.uid.unwrap_or(seen.uid);
        seen.gid = others.gid.unwrap_or(seen.gid);
        if let Some(SetTime::At(time)) = others.accessed {
            seen.accessed = time;
        }
        seen.modified = self.modified.get().unwrap_or(seen.modified);
        seen.changed = seen.changed.max(self.changed.get().unwrap_or(seen.changed));
    }
}
