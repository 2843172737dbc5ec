//! `weft drive check`: whether a drive is sound. It changes nothing.

use crate::drive::{open_refusal, spec, store_refusal};
use serde::Serialize;
use std::path::PathBuf;
use weft_cli::{CliError, Output, Size};
use weft_rt::{Drive, OpenOptions};
use weft_store::{CheckReport, Severity};
use weft_types::BLOCK_SIZE;

/// What was found, for programs.
#[derive(Serialize)]
struct Report {
    path: PathBuf,
    is_clean: bool,
    findings: Vec<Finding>,
    more_findings: u64,
    leaves: u64,
    pages: u64,
    /// Pages of an older format, which an open store rewrites.
    old_pages: u64,
    data_bytes: u64,
    verified_bytes: u64,
    log_batches: u64,
}

/// Something that is not as it should be.
#[derive(Serialize)]
struct Finding {
    severity: &'static str,
    /// Bytes from the drive's start, if it is at one place.
    at: Option<u64>,
    what: String,
    action: &'static str,
}

pub(crate) async fn check(path: PathBuf, deep: bool, output: Output) -> Result<(), CliError> {
    let spec = spec(&path)?;
    // Opened as for writing, because that takes the lock: a drive in use changes while it is read.
    let drive = Drive::open(spec, OpenOptions::default()).await.map_err(open_refusal(spec))?;
    let found = weft_store::check(&drive, deep).await.map_err(store_refusal(spec))?;
    output.show(&report(path.clone(), &found), |r, _| describe(r))?;
    if found.is_clean() {
        return Ok(());
    }
    let worst = found.findings.iter().map(|f| f.severity).max();
    Err(CliError::Failed {
        message: format!("{spec} is not sound"),
        hint: match worst {
            _ if found.needs_upgrade => {
                "leave it as it is, and upgrade weft here: a newer one has used the drive"
            }
            Some(Severity::Fatal) => "format it anew with --force: the data comes back from the other copies",
            _ => "each finding above says what to do",
        }
        .into(),
    })
}

fn report(path: PathBuf, found: &CheckReport) -> Report {
    let severity = |severity| match severity {
        Severity::Note => "note",
        Severity::Damage => "damage",
        Severity::Fatal => "fatal",
    };
    Report {
        path,
        is_clean: found.is_clean(),
        findings: found
            .findings
            .iter()
            .map(|f| Finding {
                severity: severity(f.severity),
                at: f.place.map(|place| place.offset()),
                what: f.what.clone(),
                action: f.action,
            })
            .collect(),
        more_findings: found.more_findings,
        leaves: found.leaves,
        pages: found.pages,
        old_pages: found.old_pages,
        data_bytes: found.data_blocks * BLOCK_SIZE as u64,
        verified_bytes: found.verified_blocks * BLOCK_SIZE as u64,
        log_batches: found.log_batches,
    }
}

fn describe(report: &Report) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let at = finding.at.map_or_else(String::new, |at| format!(" at byte {at}"));
        text.push_str(&format!("{}{at}: {}; to do: {}\n", finding.severity, finding.what, finding.action));
    }
    if report.more_findings > 0 {
        text.push_str(&format!("and {} more\n", report.more_findings));
    }
    let verdict = if report.is_clean { "sound" } else { "NOT sound" };
    let old = match report.old_pages {
        0 => String::new(),
        pages => format!(" ({pages} of an older format)"),
    };
    text.push_str(&format!(
        "{} is {verdict}: {} of data, {} of it read, in {} leaves on {} pages{old}; {} batches in the log\n",
        report.path.display(),
        Size(report.data_bytes),
        Size(report.verified_bytes),
        report.leaves,
        report.pages,
        report.log_batches
    ));
    text
}
