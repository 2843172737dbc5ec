//! What users of a file system are refused in a run, although it makes sense.

use weft_wire::files::FileError;

/// What may be used up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refusals {
    /// The drives may be full at times.
    pub full: bool,
    /// A user has a quota.
    pub quota: bool,
}

impl Refusals {
    /// Whether an error says that.
    pub fn say(self, error: FileError) -> bool {
        match error {
            FileError::NoSpace => self.full,
            FileError::OverQuota => self.quota,
            _ => false,
        }
    }
}
