//! Maps and entries as states hold them: shared, and told apart by a digest.
//!
//! It owns cheap copies, comparisons and hashes of documents that do not change. It never looks into one.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// A document that many states hold.
#[derive(Clone)]
pub struct Shared<T> {
    value: Arc<T>,
    /// Of everything that the document shows in its debug form.
    digest: u64,
}

impl<T: fmt::Debug> Shared<T> {
    pub fn new(value: T) -> Self {
        let digest = digest(&format!("{value:?}"));
        Shared { value: Arc::new(value), digest }
    }
}

/// The same number for the same value, in every run.
pub fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl<T> Eq for Shared<T> {}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl<T> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:08x}", self.digest as u32)
    }
}
