//! What one user expects in a folder of a file system that several mounts show: names as they were
//! acknowledged, and bytes as they were written and synced.
//!
//! The user does one thing after another, each through any mount. What a call has returned every mount shows.
//! A mount that dies takes with it what was written through it and not synced: then each byte is an old or a
//! new one. A name is there, or not, as the last call said; a call that ended with its mount may have been
//! carried out or not.

use std::collections::BTreeMap;

/// A mount, and how often it may have died until some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Through {
    /// Which mount.
    pub mount: usize,
    /// How often it may have died by then.
    pub deaths: u64,
}

/// Something that changed the bytes of a file, and may not be durable.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

/// The bytes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    settled: Vec<u8>,
    changes: Vec<Change>,
    /// Through which mount these were made.
    through: Option<Through>,
    /// One of them may have failed.
    is_loose: bool,
}

/// The files of a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Files by name. Several names may stand for one.
    pub names: BTreeMap<String, u64>,
}

impl Contents {
    /// What a mount shows that lives still.
    pub fn current(&self) -> Vec<u8> {
        let mut bytes = self.settled.clone();
        for change in &self.changes {
            match change {
                Change::Write(at, written) => {
                    let end = at + written.len();
                    if bytes.len() < end {
                        bytes.resize(end, 0);
                    }
                    bytes[*at..end].copy_from_slice(written);
                }
                Change::Truncate(size) => bytes.resize(*size, 0),
            }
        }
        bytes
    }

    /// Through which mount changes were made that may not be durable.
    pub fn through(&self) -> Option<Through> {
        self.through
    }

    /// Bytes were written; with `is_sure`, the call has returned without an error.
    pub fn write(&mut self, at: usize, bytes: Vec<u8>, through: Through, is_sure: bool) {
        self.change(Change::Write(at, bytes), through, is_sure);
    }

    /// The size was set.
    pub fn truncate(&mut self, size: usize, through: Through, is_sure: bool) {
        self.change(Change::Truncate(size), through, is_sure);
    }

    fn change(&mut self, change: Change, through: Through, is_sure: bool) {
        self.changes.push(change);
        // Of changes through two lives of a mount, the earlier ones may be lost.
        self.is_loose |= !is_sure || self.through.is_some_and(|before| before != through);
        self.through = Some(through);
    }

    /// A sync through the mount of the changes has succeeded, which may have died so often by then: all of them
    /// are durable.
    pub fn settle(&mut self, deaths_now: u64) {
        if !self.is_loose && self.through.is_none_or(|through| through.deaths == deaths_now) {
            self.settled = self.current();
            (self.changes, self.through) = (Vec::new(), None);
        }
    }

    /// A call that would have said so has failed: anything of what was changed may be lost.
    pub fn loosen(&mut self) {
        self.is_loose = true;
    }

    /// Whether all calls that have changed it have succeeded, through one life of a mount.
    pub fn is_sure(&self) -> bool {
        !self.is_loose
    }

    /// A mount has shown these bytes, when the mount of the changes may have died so often.
    ///
    /// # Errors
    /// If they cannot be there.
    pub fn judge(&mut self, found: &[u8], shown_by: usize, deaths_now: u64) -> Result<(), String> {
        let is_loose = self.is_loose || self.through.is_some_and(|through| through.deaths != deaths_now);
        match is_loose {
            false => compare(found, &self.current())?,
            true => self.judge_loosely(found)?,
        }
        // Another mount shows only what is durable. This one may live still, and keep what it shows.
        if self.through.is_none_or(|through| through.mount != shown_by) {
            *self = Contents { settled: found.to_vec(), ..Contents::default() };
        }
        Ok(())
    }

    /// Each byte is one that was there at some time since the last moment at which all was known.
    fn judge_loosely(&self, found: &[u8]) -> Result<(), String> {
        let (mut least, mut most) = (self.settled.len(), self.settled.len());
        for change in &self.changes {
            match change {
                Change::Write(at, bytes) => most = most.max(at + bytes.len()),
                Change::Truncate(size) => (least, most) = (least.min(*size), most.max(*size)),
            }
        }
        if !(least..=most).contains(&found.len()) {
            return Err(format!("{} bytes, expected from {least} to {most}", found.len()));
        }
        let has_shrunk = self.changes.iter().any(|change| matches!(change, Change::Truncate(_)));
        for (at, byte) in found.iter().enumerate() {
            let is_settled = self.settled.get(at).map_or(*byte == 0, |settled| settled == byte);
            let mut written = self.changes.iter().filter_map(|change| match change {
                Change::Write(from, bytes) => bytes.get(at.checked_sub(*from)?),
                Change::Truncate(_) => None,
            });
            let may_be = is_settled || (has_shrunk && *byte == 0) || written.any(|other| other == byte);
            if !may_be {
                return Err(format!("byte {at} is {byte:#04x}, which was never there"));
            }
        }
        Ok(())
    }
}

/// Whether these are the bytes, and where not.
fn compare(found: &[u8], expected: &[u8]) -> Result<(), String> {
    if found.len() != expected.len() {
        return Err(format!("{} bytes, expected {}", found.len(), expected.len()));
    }
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => {
            let (found, expected) = (found[at], expected[at]);
            Err(format!("byte {at} is {found:#04x}, expected {expected:#04x}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Through = Through { mount: 0, deaths: 0 };

    #[test]
    fn what_was_written_is_shown_by_every_mount_that_lives() {
        let mut contents = Contents::default();
        contents.write(2, vec![7, 8], A, true);
        assert!(contents.clone().judge(&[0, 0, 7], 1, 0).is_err());
        assert!(contents.clone().judge(&[0, 0, 7, 9], 1, 0).is_err());
        contents.judge(&[0, 0, 7, 8], 1, 0).unwrap();
        assert_eq!(contents.through(), None, "another mount has shown it: it is durable");
    }

    #[test]
    fn a_mount_that_dies_takes_what_was_not_synced() {
        let mut contents = Contents::default();
        contents.write(0, vec![1, 2], A, true);
        contents.settle(0);
        contents.write(1, vec![8, 9], A, true);
        for found in [&[1, 2][..], &[1, 8, 9], &[1, 8], &[1, 2, 9]] {
            contents.clone().judge(found, 1, 1).unwrap();
        }
        for found in [&[1][..], &[0, 2], &[1, 7], &[1, 8, 9, 0]] {
            assert!(contents.clone().judge(found, 1, 1).is_err(), "{found:?}");
        }
    }

    #[test]
    fn what_was_synced_stays() {
        let mut contents = Contents::default();
        contents.write(0, vec![1, 2], A, true);
        contents.settle(0);
        assert!(contents.clone().judge(&[], 1, 5).is_err());
        contents.judge(&[1, 2], 1, 5).unwrap();
    }

    #[test]
    fn what_may_have_failed_is_not_settled_by_the_mount_itself() {
        let mut contents = Contents::default();
        contents.write(0, vec![1], A, false);
        contents.judge(&[1], 0, 0).unwrap();
        contents.judge(&[], 1, 0).unwrap();
        assert!(contents.judge(&[1], 1, 0).is_err(), "it was not there for another mount");
    }
}
