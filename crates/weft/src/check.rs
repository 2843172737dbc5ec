//! `weft drive check`: whether a drive is sound. It changes nothing.

use crate::drive::store_refusal;
use crate::part::{self, Found, Named};
use serde::Serialize;
use std::path::PathBuf;
use weft_cli::{CliError, Output, Size};
use weft_rt::OpenOptions;
use weft_store::{CheckReport, Severity};
use weft_types::{BLOCK_SIZE, DeviceId};

/// What was found, for programs.
#[derive(Serialize)]
#[serde(untagged)]
enum Report {
    Drive(DriveReport),
    Device(DeviceReport),
}

/// What was found on a device of several parts.
#[derive(Serialize)]
struct DeviceReport {
    path: PathBuf,
    device: DeviceId,
    is_clean: bool,
    /// Copies of the device's label that are damaged, 0 or 1: a node repairs it when it opens the device.
    damaged_labels: usize,
    parts: Vec<DriveReport>,
}

/// What was found on a drive.
#[derive(Serialize)]
struct DriveReport {
    path: PathBuf,
    is_clean: bool,
    /// Why it could not be looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
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
    // Opened as for writing, because that takes the lock: a drive in use changes while it is read.
    let (device, label, damaged_labels) = match part::find(&path, OpenOptions::default()).await? {
        Found::One(named) => return check_one(&named, deep, output).await,
        Found::All(device, label) => {
            let damaged = device.damaged_labels();
            (Found::All(device, label.clone()), label, damaged)
        }
    };
    let mut parts = Vec::new();
    let mut unsound = Vec::new();
    for named in device.drives()? {
        let report = match look(&named, deep).await {
            Ok(found) => report(named.path.clone(), &found),
            Err(error) => DriveReport {
                error: Some(format!("{}; to do: {}", error.chain(), error.hint())),
                ..report(named.path.clone(), &CheckReport::default())
            },
        };
        if report.error.is_some() || !report.is_clean {
            unsound.push(named.path.display().to_string());
        }
        parts.push(DriveReport { is_clean: report.is_clean && report.error.is_none(), ..report });
    }
    let is_clean = unsound.is_empty() && damaged_labels == 0;
    let report = DeviceReport { path: path.clone(), device: label.device, is_clean, damaged_labels, parts };
    output.show(&Report::Device(report), |r, _| describe(r))?;
    match (unsound.is_empty(), damaged_labels) {
        (true, 0) => Ok(()),
        (true, _) => Err(CliError::Failed {
            message: format!("a copy of the label of {} is damaged", path.display()),
            hint: "start the node that serves it: the copy is written anew from the other one".into(),
        }),
        (false, _) => Err(CliError::Failed {
            message: format!("{} of {} are not sound: {}", unsound.len(), path.display(), unsound.join(", ")),
            hint: "each finding above says what to do; the other parts can be served".into(),
        }),
    }
}

async fn look(named: &Named, deep: bool) -> Result<CheckReport, CliError> {
    let found = weft_store::check(&named.drive, deep).await.map_err(store_refusal(named.spec()?))?;
    if named.part_of.is_some() {
        let inspected = weft_store::inspect(&named.drive).await.map_err(store_refusal(named.spec()?))?;
        named.check(&inspected.label)?;
    }
    Ok(found)
}

async fn check_one(named: &Named, deep: bool, output: Output) -> Result<(), CliError> {
    let found = look(named, deep).await?;
    output.show(&Report::Drive(report(named.path.clone(), &found)), |r, _| describe(r))?;
    if found.is_clean() {
        return Ok(());
    }
    let worst = found.findings.iter().map(|f| f.severity).max();
    Err(CliError::Failed {
        message: format!("{} is not sound", named.path.display()),
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

fn report(path: PathBuf, found: &CheckReport) -> DriveReport {
    let severity = |severity| match severity {
        Severity::Note => "note",
        Severity::Damage => "damage",
        Severity::Fatal => "fatal",
    };
    DriveReport {
        path,
        is_clean: found.is_clean(),
        error: None,
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
    match report {
        Report::Drive(drive) => describe_drive(drive),
        Report::Device(device) => {
            let parts: String = device.parts.iter().map(describe_drive).collect();
            let labels = if device.damaged_labels > 0 { ", one copy of its label is damaged" } else { "" };
            format!(
                "{}: device {} of {} parts{labels}\n{parts}",
                device.path.display(),
                device.device,
                device.parts.len()
            )
        }
    }
}

fn describe_drive(report: &DriveReport) -> String {
    if let Some(error) = &report.error {
        return format!("{} cannot be used: {error}\n", report.path.display());
    }
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
