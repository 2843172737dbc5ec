//! The question before something is destroyed, and the words about a change or a dry run.

use crate::error::CliError;
use crate::output::note;
use std::io::{self, BufRead, IsTerminal, Write};
use weft_types::SessionId;

/// Asks the user to type a word before something is destroyed. Without a terminal there is no answer:
/// then only `--yes` lets it pass.
///
/// # Errors
/// [`CliError::Refused`] unless the word was typed, or `is_yes`.
pub(crate) fn confirm(what: &str, word: &str, is_yes: bool) -> Result<(), CliError> {
    if is_yes {
        return Ok(());
    }
    let refused = |message: String| CliError::Refused {
        message,
        hint: "pass --yes to do it without being asked, --dry-run to see what would be done".into(),
    };
    if !io::stdin().is_terminal() {
        return Err(refused(format!("{what} There is no terminal to confirm it on")));
    }
    let mut err = io::stderr().lock();
    let mut typed = String::new();
    let asked = write!(err, "{what}\nType '{word}' to go on: ").and_then(|()| err.flush());
    asked.and_then(|()| io::stdin().lock().read_line(&mut typed)).map_err(CliError::Output)?;
    if typed.trim() == word {
        return Ok(());
    }
    Err(refused("not confirmed; nothing was done".into()))
}

/// The clients that use what is to be destroyed, as the end of a sentence about it; empty if there are none.
pub(crate) fn used_by(clients: usize) -> String {
    match clients {
        0 => String::new(),
        1 => ", which 1 client uses now".to_owned(),
        n => format!(", which {n} clients use now"),
    }
}

/// A line about the sessions that a change has ended, or would end; empty if there are none.
pub(crate) fn sessions_ended(ended: &[SessionId], dry_run: bool) -> String {
    if ended.is_empty() {
        return String::new();
    }
    let sessions: Vec<String> = ended.iter().map(SessionId::to_string).collect();
    format!("sessions {}ended: {}\n", would_be(dry_run), sessions.join(", "))
}

/// What stands before a participle: `would be ` in a dry run, else nothing.
pub(crate) fn would_be(dry_run: bool) -> &'static str {
    if dry_run { "would be " } else { "" }
}

/// Prints the manager's warnings about a change, and whether it was a dry run.
pub(crate) fn note_change(warnings: &[String], dry_run: bool) {
    for warning in warnings {
        note(&format!("warning: {warning}"));
    }
    if dry_run {
        note("nothing was changed; this is how it would be");
    }
}
