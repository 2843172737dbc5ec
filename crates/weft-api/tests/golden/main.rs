//! Golden bytes: every request and every answer of management, as text that people can read in a diff.
//!
//! Both directions: what is written today is what the file says, and what the file says reads back as the
//! value. A variant of which no case is here does not compile, or fails.
//! `WEFT_GOLDEN=write cargo test -p weft-api --test golden` writes the files; what has changed in them is
//! what has changed for programs that ask a manager.

mod answers;
#[allow(dead_code, reason = "the documents of this crate are JSON only")]
#[path = "../../../weft-wire/tests/golden/form.rs"]
mod form;
mod requests;
#[allow(dead_code, reason = "some of the values are parts of other documents")]
#[path = "../../../weft-wire/tests/golden/samples.rs"]
mod samples;

pub use form::covers;
