//! `weft ondemand copy`: files into and out of the file system, from all hosts at once.

use super::crew::{ANSWER_WITHIN, Crew, Host, WORK_WITHIN, hosts};
use super::deal::deal;
use super::known::Known;
use super::message::{Copied, CopyPath, Entry, Request};
use super::remote::{HostError, Wait};
use super::script::How;
use crate::error::CliError;
use crate::output::{Output, note};
use crate::size::Size;
use serde::Serialize;
use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long one file may take: until then its host says nothing.
const FILE_WITHIN: Duration = Duration::from_secs(3600);

/// Errors that are named; the others are counted.
const ERRORS_NAMED: usize = 20;

/// What is to be copied.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub(super) known: Known,
    pub(super) sources: Vec<PathBuf>,
    pub(super) target: PathBuf,
    /// Files at a time on each host.
    pub(super) threads: usize,
    pub(super) token: String,
}

/// What was copied, for programs.
#[derive(Debug, Default, Serialize)]
struct Report {
    hosts: usize,
    files: u64,
    bytes: u64,
    /// Files that were there already, with the same size and time.
    skipped: u64,
    folders: u64,
    links: u64,
    errors: u64,
    /// The first of them.
    first_errors: Vec<String>,
    seconds: f64,
    bytes_per_s: u64,
}

impl Report {
    fn error(&mut self, what: String) {
        self.errors += 1;
        if self.first_errors.len() < ERRORS_NAMED {
            note(&format!("error: {what}"));
            self.first_errors.push(what);
        }
    }
}

/// Files that are still to be copied: lists of their places.
type Portions = Mutex<VecDeque<Vec<usize>>>;

/// Files and folders of a copy.
#[derive(Default)]
struct Tree {
    files: Vec<(CopyPath, CopyPath)>,
    sizes: Vec<u64>,
    folders: Vec<(CopyPath, CopyPath)>,
    /// Where the files go to.
    targets: BTreeSet<PathBuf>,
}

pub(super) fn copy(copy: &Copy, interrupted: &AtomicBool, output: Output) -> Result<(), CliError> {
    let mut crew = Crew::new(&copy.known.hosts, interrupted);
    crew.find(&copy.known, &copy.token, How::Shared);
    crew.check_one()?;
    for failed in crew.failed() {
        note(&format!("warning: {} takes no part: {}", failed.host, failed.reason));
    }
    let here = crew.hosts.iter().filter(|host| host.is_here()).count();
    let report = Mutex::new(Report { hosts: here, ..Report::default() });
    let Some(mut tree) = find(copy, &mut crew, &report) else {
        let what = crew.failed().into_iter().map(|failed| format!("{}: {}", failed.host, failed.reason));
        let message = format!("no host can list the sources: {}", what.collect::<Vec<_>>().join("; "));
        crew.leave();
        let hint =
            "sources and target are paths on the hosts; `weft ondemand status` says how these are".into();
        return Err(CliError::Failed { message, hint });
    };
    crew.tell(&format!(
        "copying {} files, {}, on {}",
        tree.files.len(),
        Size(tree.sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(*size))),
        hosts(here)
    ));
    let rest = copy_files(copy, &mut crew, &tree, &report);
    tree.folders.reverse();
    finish(copy, &mut crew, tree, &report);
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..rest {
        report.error("a file was not copied: no host was left, or the command was stopped".into());
    }
    report.seconds = (crew.elapsed().as_millis() as f64) / 1000.0;
    report.bytes_per_s = (report.bytes as f64 / report.seconds.max(0.001)) as u64;
    crew.leave();
    output.show(&report, |report, _| describe(report))?;
    if interrupted.load(Ordering::Relaxed) {
        return Err(CliError::Interrupted { message: "stopped; what was copied stays".into() });
    }
    match report.errors {
        0 => Ok(()),
        errors => Err(CliError::Failed {
            message: format!(
                "{errors} errors; the first: {}",
                report.first_errors.first().cloned().unwrap_or_default()
            ),
            hint: "mend what is wrong and copy again: what was copied is passed over".into(),
        }),
    }
}

/// Has one host list what there is, and make folders and links; another one if that cannot.
fn find(copy: &Copy, crew: &mut Crew, report: &Mutex<Report>) -> Option<Tree> {
    let wait = crew.wait(WORK_WITHIN);
    let sources = copy.sources.iter().cloned().map(CopyPath).collect();
    let list = Request::List { sources, target: CopyPath(copy.target.clone()) };
    for host in crew.hosts.iter_mut().filter(|host| host.is_here()) {
        let session = host.session.as_mut()?;
        let (mut tree, mut found) = (Tree::default(), Vec::new());
        let listed = session.ask_telling::<()>(list.clone(), wait, |line| {
            let entries = line.strip_prefix("entries ").and_then(|json| serde_json::from_str(json).ok());
            found.extend(entries.unwrap_or_else(Vec::<Entry>::new));
        });
        match listed {
            Ok(()) => {
                let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
                found.into_iter().for_each(|entry| take(entry, &mut tree, &mut report));
                return Some(tree);
            }
            Err(error) => {
                note(&format!("warning: {} takes no part: {error}", host.name));
                host.failure = Some(error);
            }
        }
    }
    None
}

fn take(entry: Entry, tree: &mut Tree, report: &mut Report) {
    match entry {
        // Two hosts at work on one file would be in each other's way.
        Entry::File { to, .. } if !tree.targets.insert(to.0.clone()) => {
            report.error(format!("{}: several sources would become this file", CopyPath::shown(&to.0)));
        }
        Entry::File { from, to, bytes } => {
            tree.files.push((from, to));
            tree.sizes.push(bytes);
        }
        Entry::Folder { from, to } => {
            report.folders += 1;
            tree.folders.push((from, to));
        }
        Entry::Link {} => report.links += 1,
        Entry::Error { what } => report.error(what),
    }
}

/// Deals the files to all hosts. Returns how many of them no host has copied.
fn copy_files(copy: &Copy, crew: &mut Crew, tree: &Tree, report: &Mutex<Report>) -> usize {
    let here = crew.hosts.iter().filter(|host| host.is_here()).count();
    let portions: Portions = Mutex::new(deal(&tree.sizes, here));
    let wait = crew.wait(FILE_WITHIN);
    let mut known = crew.failed();
    // Once more where a host has failed when the others had nothing left to do.
    while crew.hosts.iter().any(Host::is_here) && portions.lock().is_ok_and(|portions| !portions.is_empty()) {
        // The lock is held for this only: as the condition of a loop, it would be held while a host copies.
        let next = || portions.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        crew.each(Host::is_here, |_, host| {
            while let Some(portion) = next() {
                let (rest, copied) = copy_portion(copy, host, tree, &portion, report, wait);
                if !rest.is_empty() {
                    // Another host takes what this one has not done.
                    portions.lock().unwrap_or_else(PoisonError::into_inner).push_back(rest);
                    return Err(copied.err().unwrap_or(HostError::Stopped));
                }
                copied?;
            }
            Ok(())
        });
        let failed = crew.failed();
        for failed in failed.iter().filter(|failed| !known.contains(failed)) {
            note(&format!("warning: {} takes no part any more: {}", failed.host, failed.reason));
        }
        known = failed;
    }
    portions.into_inner().unwrap_or_else(PoisonError::into_inner).iter().map(Vec::len).sum()
}

/// Has a host copy some files. Returns those of which it has said nothing.
fn copy_portion(
    copy: &Copy,
    host: &mut Host,
    tree: &Tree,
    portion: &[usize],
    report: &Mutex<Report>,
    wait: Wait,
) -> (Vec<usize>, Result<(), HostError>) {
    let mut done = vec![false; portion.len()];
    let name = host.name.clone();
    let files = portion.iter().map(|place| tree.files[*place].clone()).collect();
    let asked = Request::Copy { files, threads: copy.threads };
    let Some(session) = host.session.as_mut() else {
        return (portion.to_vec(), Err(HostError::Ended("there is no connection".into())));
    };
    let copied = session.ask_telling::<()>(asked, wait, |line| {
        let copied = line.strip_prefix("copied ").and_then(|json| serde_json::from_str(json).ok());
        let Some(Copied { index, bytes, skipped, error }) = copied else { return };
        let Some(done) = done.get_mut(index) else { return };
        *done = true;
        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
        match error {
            Some(error) => report.error(format!("{name}: {error}")),
            None if skipped => report.skipped += 1,
            None => (report.files, report.bytes) = (report.files + 1, report.bytes + bytes),
        }
    });
    let rest = portion.iter().zip(&done).filter(|(_, done)| !**done).map(|(place, _)| *place);
    (rest.collect(), copied)
}

/// Has all be written, and gives folders their modes and times.
fn finish(copy: &Copy, crew: &mut Crew, tree: Tree, report: &Mutex<Report>) {
    let before: Vec<String> = crew.failed().into_iter().map(|failed| failed.host).collect();
    crew.ask_all::<()>(&Request::Sync { target: CopyPath(copy.target.clone()) }, FILE_WITHIN);
    let mut errors: Vec<String> = Vec::new();
    for failed in crew.failed().into_iter().filter(|failed| !before.contains(&failed.host)) {
        errors.push(format!("{}: {}", failed.host, failed.reason));
    }
    let wait = crew.wait(ANSWER_WITHIN.max(WORK_WITHIN));
    if let Some(host) = crew.hosts.iter_mut().find(|host| host.is_here()) {
        match host.ask::<Vec<String>>(Request::Folders { folders: tree.folders }, wait) {
            Ok(found) => errors.extend(found),
            Err(error) => errors.push(format!("{}: {error}", host.name)),
        }
    }
    let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
    errors.into_iter().for_each(|error| report.error(error));
}

fn describe(report: &Report) -> String {
    let mut text = format!(
        "{} files copied, {} in {:.1} s ({}/s), on {}; {} were there already; {} folders, {} links",
        report.files,
        Size(report.bytes),
        report.seconds,
        Size(report.bytes_per_s),
        hosts(report.hosts),
        report.skipped,
        report.folders,
        report.links
    );
    text.push_str(&match report.errors {
        0 => "\n".to_owned(),
        errors => format!("; {errors} errors\n"),
    });
    text
}
