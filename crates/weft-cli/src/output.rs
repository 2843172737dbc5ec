//! What a command prints: data on the standard output as text or JSON, everything else on the standard error.

use crate::error::CliError;
use crate::paint::{Paint, Tone};
use crate::table::Table;
use serde::Serialize;
use std::io::{self, Write};
use weft_api::SCHEMA_VERSION;

/// How a command prints.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// Print documents instead of text.
    pub is_json: bool,
    /// Colours of the standard output.
    pub paint: Paint,
}

/// A document for programs.
#[derive(Serialize)]
pub(crate) struct Document<'a, T> {
    pub(crate) schema_version: u32,
    #[serde(flatten)]
    pub(crate) body: &'a T,
}

impl Output {
    /// For this process: coloured where a terminal is.
    pub fn new(is_json: bool) -> Output {
        Output { is_json, paint: Paint::for_stream(&io::stdout()) }
    }

    /// Prints the body as a JSON document with the schema's version, or else the text that `text` makes of it.
    ///
    /// # Errors
    /// [`CliError::Output`].
    pub fn show<T: Serialize>(
        &self,
        body: &T,
        text: impl FnOnce(&T, Paint) -> String,
    ) -> Result<(), CliError> {
        self.show_as(serde_json::to_string_pretty, body, text)
    }

    /// Prints the body as one line of JSON, or else the text; for streams of documents.
    ///
    /// # Errors
    /// [`CliError::Output`].
    pub fn show_line<T: Serialize>(
        &self,
        body: &T,
        text: impl FnOnce(&T, Paint) -> String,
    ) -> Result<(), CliError> {
        self.show_as(serde_json::to_string, body, text)
    }

    fn show_as<'a, T: Serialize>(
        &self,
        to_json: fn(&Document<'a, T>) -> serde_json::Result<String>,
        body: &'a T,
        text: impl FnOnce(&T, Paint) -> String,
    ) -> Result<(), CliError> {
        if self.is_json {
            let json = to_json(&Document { schema_version: SCHEMA_VERSION, body });
            return self.print(&format!("{}\n", json.expect("documents serialise")));
        }
        self.print(&text(body, self.paint))
    }

    /// Prints to the standard output.
    ///
    /// # Errors
    /// [`CliError::Output`].
    pub fn print(&self, text: &str) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Output)
    }
}

/// Tells the user something that is not data.
pub fn note(text: &str) {
    // Nobody may be listening on the standard error; then there is nobody to tell that either.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// A table as text; where it is empty, a note says so instead.
pub(crate) fn table_or_note(table: &Table, paint: Paint, empty: &str) -> String {
    if table.is_empty() {
        note(empty);
        return String::new();
    }
    table.render(paint)
}

/// Prints an error: for people with its hint, for programs as one line of JSON; on the standard error.
pub fn report(error: &CliError, is_json: bool) {
    if is_json {
        let document = serde_json::json!({
            "schema_version": SCHEMA_VERSION,
            "error": { "message": error.chain(), "hint": error.hint() },
            "exit_code": error.exit() as u8,
        });
        return note(&document.to_string());
    }
    let paint = Paint::for_stream(&io::stderr());
    note(&format!("{} {}", paint.text(Tone::Bad, "error:"), error.chain()));
    note(&format!("{} {}", paint.text(Tone::Strong, "hint:"), error.hint()));
}

/// Lines of names and values, aligned.
pub(crate) fn fields(paint: Paint, fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| {
        format!("{}  {value}\n", paint.text(Tone::Faint, &format!("{name:width$}")))
    };
    fields.iter().map(line).collect()
}
