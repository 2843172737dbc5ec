//! Asking before something is destroyed.

use crate::error::CliError;
use std::io::{self, BufRead, IsTerminal, Write};

/// Asks the user to type a word before something is destroyed. Without a terminal nobody can be asked: then
/// only `--yes` lets it pass.
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
        return Err(refused(format!("{what} Nobody can be asked whether that is meant")));
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
