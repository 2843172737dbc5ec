//! Golden bytes: every head and every document of this crate, as text that people can read in a diff.
//!
//! Both directions: what is written today is what the file says, and what the file says reads back as the
//! value. A message of which no case is here does not compile, or fails.
//! `WEFT_GOLDEN=write cargo test -p weft-wire --test golden` writes the files anew; what has changed in them
//! is what has changed between processes, and `docs/format/wire.md` says what it means.

mod documents;
mod form;
mod heads;
mod samples;
mod shards;

use form::cases_of;
pub use form::{Case, Form, Named, case, check, covers};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;
use weft_wire::control;

/// A case of a document.
pub fn document<T>(name: impl Into<String>, value: T) -> Case
where
    T: Serialize + DeserializeOwned + Debug + PartialEq + 'static,
{
    case(name, value, control::encode, |bytes| control::decode::<T>(bytes))
}

/// Cases of the documents of an enum, named by their variants; one of each at least.
pub fn documents_of<T>(values: Vec<T>) -> Vec<Case>
where
    T: Named + Serialize + DeserializeOwned + Debug + PartialEq + 'static,
{
    cases_of(values, document)
}
