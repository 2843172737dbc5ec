//! The file that `weft watch --record` writes: a line of JSON for each interval.
//!
//! It owns the file. A line is complete on the file system before the next interval begins, so that a watch that is
//! killed leaves what it saw until then; what the lines mean is in `report/record.rs`.

use crate::error::CliError;
use crate::output::Document;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use weft_api::SCHEMA_VERSION;

/// A record in the making.
pub(super) struct RecordFile {
    path: PathBuf,
    file: File,
}

impl RecordFile {
    /// A new file.
    ///
    /// # Errors
    /// If there is a file with something in it, which is never written over; or the new one cannot be made.
    pub(super) fn create(path: &Path) -> Result<RecordFile, CliError> {
        if std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0) {
            return Err(CliError::Refused {
                message: format!("{} holds something already", path.display()),
                hint: "name a new file, or remove this one first".into(),
            });
        }
        let file = OpenOptions::new().append(true).create(true).open(path);
        let file = file.map_err(CliError::file("write", path))?;
        Ok(RecordFile { path: path.to_owned(), file })
    }

    /// Adds a line.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn add(&mut self, body: &impl Serialize) -> Result<(), CliError> {
        let line = serde_json::to_vec(&Document { schema_version: SCHEMA_VERSION, body });
        let written = line.map_err(io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            self.file.write_all(&line)
        });
        written.map_err(CliError::file("write", &self.path))
    }
}
