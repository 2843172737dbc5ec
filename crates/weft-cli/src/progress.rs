//! Progress on the standard error, where it is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// A line that says what is being done, gone when it is done.
pub struct Step(ProgressBar);

impl Step {
    /// A line that says nothing yet.
    #[allow(clippy::new_without_default, reason = "it appears at once, which no default should")]
    pub fn new() -> Step {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(ProgressStyle::default_spinner());
        bar.enable_steady_tick(Duration::from_millis(100));
        Step(bar)
    }

    /// Says something else from now on.
    pub fn says(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A bar of bytes: how far, how fast, how long still.
pub(crate) struct Bytes(ProgressBar);

impl Bytes {
    /// A bar up to `total` bytes, or without an end if that is not known.
    pub(crate) fn new(what: &str, total: Option<u64>) -> Bytes {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        let template = match total {
            Some(_) => {
                "{msg} [{bar:32}] {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  ETA {eta}"
            }
            None => "{msg} {spinner} {binary_bytes}  {binary_bytes_per_sec}",
        };
        let style = ProgressStyle::with_template(template).expect("the template is well formed");
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(what.to_owned());
        Bytes(bar)
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A bar of things that are counted, with a note.
pub(crate) struct Count(ProgressBar);

impl Count {
    pub(crate) fn new(what: &str, total: u64) -> Count {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{prefix} [{bar:32}] {pos} of {len}  {msg}");
        bar.set_style(style.expect("the template is well formed").progress_chars("=> "));
        bar.set_prefix(what.to_owned());
        Count(bar)
    }

    /// Likewise, of a total that has changed.
    pub(crate) fn set_of(&self, done: u64, total: u64, note: &str) {
        self.0.set_length(total);
        self.set(done, note);
    }

    pub(crate) fn set(&self, done: u64, note: &str) {
        self.0.set_position(done);
        self.0.set_message(note.to_owned());
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
