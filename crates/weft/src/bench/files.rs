//! Where the figures of a benchmark go: to the standard output, and to files.

use super::failed;
use std::path::{Path, PathBuf};
use weft_bench::Findings;
use weft_cli::{CliError, Output, note};

/// Files for the figures.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ResultFiles {
    /// Also write the figures as JSON to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Also write a page with charts to this file, which any browser shows
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl ResultFiles {
    /// Fails before the measurement rather than after it if a file cannot be written.
    pub(super) fn check(&self) -> Result<(), CliError> {
        [&self.out, &self.html].into_iter().flatten().try_for_each(|path| check(path))
    }

    /// Writes the figures of the command to the files, and prints them.
    pub(super) fn show(
        &self,
        figures: &impl Findings,
        command: &str,
        output: Output,
    ) -> Result<(), CliError> {
        if let Some(path) = &self.out {
            figures.write_json(path).map_err(|e| failed(e, command))?;
        }
        if let Some(path) = &self.html {
            figures.write_html(path).map_err(|e| failed(e, command))?;
        }
        output.print(&if output.is_json { figures.json() } else { figures.text() })?;
        if let Some(path) = &self.out {
            note(&format!("the figures are in {}", path.display()));
        }
        if let Some(path) = &self.html {
            note(&format!("the page with charts is {}", path.display()));
        }
        Ok(())
    }
}

/// Fails if there is no folder for the file, or a folder in its place.
pub(super) fn check(path: &Path) -> Result<(), CliError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let is_folder = |path: &Path| std::fs::metadata(path).map(|found| found.is_dir());
    match is_folder(folder) {
        Ok(true) if is_folder(path).unwrap_or(false) => {
            Err(CliError::file("write", path)(std::io::ErrorKind::IsADirectory.into()))
        }
        Ok(true) => Ok(()),
        Ok(false) => Err(CliError::file("write", path)(std::io::ErrorKind::NotADirectory.into())),
        Err(error) => Err(CliError::file("write", path)(error)),
    }
}
