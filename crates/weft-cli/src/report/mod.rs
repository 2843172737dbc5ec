//! `weft report`: what `weft watch --record` recorded, as figures, and as a page with charts.
//!
//! It owns the command, and writing the page to its file. It asks no fabric: a record has everything.

mod marks;
mod page;
mod record;
mod summary;

use crate::error::CliError;
use crate::output::{Output, note};
use record::Record;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Show what `weft watch --record` recorded, as a page with charts
///
/// Prints how much was read and written, how long it took, and what happened meanwhile: what the fabric noticed, and
/// the notes that people added with `weft events --add`. With --html it also writes a page with charts over time of
/// throughput, latency and missing copies, with all events marked: one file that any browser shows, without a network.
///
/// A record may be looked at while it is still being written. Where it is long, each point of a chart stands for
/// several intervals: rates are means then, latencies the worst.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  weft watch --record night.jsonl\n  \
        weft report night.jsonl --html night.html --title 'Drives of node-3 replaced'\n  \
        weft report night.jsonl --json | jq .volumes")]
pub struct ReportArgs {
    /// The record
    pub record: PathBuf,
    /// Also write a page with charts to this file
    #[arg(long, value_name = "PAGE")]
    pub html: Option<PathBuf>,
    /// What the page is called [default: after the fabric]
    #[arg(long, value_name = "TEXT", requires = "html")]
    pub title: Option<String>,
}

pub(crate) fn report(args: &ReportArgs, output: Output) -> Result<(), CliError> {
    let record = Record::read(&args.record)?;
    if let Some(page) = &args.html {
        check_page(page)?;
        write(&record, page, args.title.as_deref())?;
    }
    output.show(&summary::summary(&record), summary::describe)?;
    if let Some(page) = &args.html {
        note(&format!("the page with charts is {}", page.display()));
    }
    Ok(())
}

/// The page of a record as text, after its figures were made; none if it is no record. For fuzzing.
#[cfg(feature = "fuzzing")]
pub(crate) fn render(text: &str) -> Option<String> {
    let record = Record::parse(text).ok()?;
    let figures = summary::summary(&record);
    serde_json::to_vec(&figures).expect("figures serialise");
    summary::describe(&figures, crate::paint::Paint::off());
    Some(page::html(&record, None))
}

/// Makes a page of a record.
///
/// # Errors
/// If the record cannot be understood, or the page not be written.
pub(crate) fn write_page(record: &Path, page: &Path, title: Option<&str>) -> Result<(), CliError> {
    write(&Record::read(record)?, page, title)?;
    note(&format!("the page with charts is {}", page.display()));
    Ok(())
}

/// Whether a page can be written there, before hours are spent on what it is to show.
///
/// # Errors
/// If it names a folder, or a file in a folder that does not exist.
pub(crate) fn check_page(page: &Path) -> Result<(), CliError> {
    let folder = page.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = fs::metadata(folder).map_err(CliError::file("write", page))?;
    if page.is_dir() {
        return Err(CliError::file("write", page)(io::ErrorKind::IsADirectory.into()));
    }
    if !found.is_dir() {
        return Err(CliError::file("write", page)(io::ErrorKind::NotADirectory.into()));
    }
    Ok(())
}

/// Writes the page beside its place, then puts it there: a reader sees the old one or the new one.
fn write(record: &Record, page: &Path, title: Option<&str>) -> Result<(), CliError> {
    let mut name = page.as_os_str().to_owned();
    name.push(".new");
    let fresh = PathBuf::from(name);
    fs::write(&fresh, page::html(record, title)).map_err(CliError::file("write", &fresh))?;
    fs::rename(&fresh, page).map_err(CliError::file("write", page))
}
