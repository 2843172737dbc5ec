//! What a benchmark that starts its own fabric is doing, a line at a time on standard error.
//!
//! It decides nothing, and no figure goes through it.

/// Says what begins now, or what just came of something.
pub(crate) fn progress(line: &str) {
    eprintln!("bench: {line}");
}
