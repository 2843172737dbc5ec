//! What a benchmark found, in the forms that all of them have: for programs, for people who read, and for people who
//! look.

use crate::BenchError;
use crate::report::{document, replace};
use serde::Serialize;
use std::path::Path;

/// The form of the JSON of all of them. Keys that are added do not change it.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// The figures of a benchmark.
pub trait Findings: Serialize {
    /// As text for people.
    fn text(&self) -> String;

    /// As the text of an HTML file that needs nothing else.
    fn html(&self) -> String;

    /// As JSON that people can read too.
    ///
    /// # Panics
    /// Never: figures always serialise.
    fn json(&self) -> String {
        #[derive(Serialize)]
        struct Document<'a, T: ?Sized> {
            schema_version: u32,
            #[serde(flatten)]
            figures: &'a T,
        }
        document(&Document { schema_version: SCHEMA_VERSION, figures: self })
    }

    /// Writes the JSON to a file, replacing it at once or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    fn write_json(&self, path: &Path) -> Result<(), BenchError> {
        replace(path, &self.json())
    }

    /// Writes the HTML to a file, replacing it at once or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    fn write_html(&self, path: &Path) -> Result<(), BenchError> {
        replace(path, &self.html())
    }
}
