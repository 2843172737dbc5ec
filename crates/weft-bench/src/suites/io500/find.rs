//! What one rank does in the phase *find* of IO500: it looks for files by name, size and time.
//!
//! All ranks list the first two levels of folders, and deal what is in them out by turns, so that each
//! file is looked at once and ranks need not speak with each other. A folder below is of one rank.

use crate::BenchError;
use crate::suites::failed;
use crate::suites::message::PhaseReport;
use crate::suites::rank::{Conductor, now_ns};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What is in the names that are searched.
pub(super) const WANTED_NAME: &str = "01";

/// The size of the files that are searched: that of the files of mdtest-hard, in bytes.
pub(super) const WANTED_BYTES: u64 = 3901;

/// Levels of folders below the first folder that every rank lists.
const LEVELS_OF_ALL: u32 = 1;

/// A search, as one rank carries it out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FindOrder {
    /// The folder that is searched with all below it.
    pub(crate) top: PathBuf,
    /// The file that those which are searched are newer than.
    pub(crate) timestamp: PathBuf,
    /// This rank, of all that search.
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// About how many files it will look at: for progress.
    pub(crate) expected: u64,
}

/// Carries out a search.
///
/// # Errors
/// Those of the operating system, with the path; or if the conductor is gone.
pub(crate) fn carry_out(order: &FindOrder, conductor: &mut Conductor) -> Result<PhaseReport, BenchError> {
    let path = &order.timestamp;
    let made = fs::symlink_metadata(path).and_then(|found| found.modified());
    let newer_than = made.map_err(failed("look at", path))?;
    conductor.barrier(0)?;
    let report = PhaseReport { began_ns: now_ns(), ..PhaseReport::default() };
    let mut search = Search { order, newer_than, turn: 0, report, conductor };
    search.with_all(&order.top, 0)?;
    Ok(search.report.ended())
}

/// A search that runs.
struct Search<'a> {
    order: &'a FindOrder,
    newer_than: SystemTime,
    /// Whose turn it is: counted alike by all ranks.
    turn: u64,
    report: PhaseReport,
    conductor: &'a mut Conductor,
}

impl Search<'_> {
    /// Lists a folder that all ranks list, and deals out what is in it.
    fn with_all(&mut self, folder: &Path, level: u32) -> Result<(), BenchError> {
        let entries: Result<Vec<DirEntry>, _> = fs::read_dir(folder).and_then(Iterator::collect);
        let mut entries = entries.map_err(failed("list", folder))?;
        // Ranks may see them in different orders.
        entries.sort_by_key(DirEntry::file_name);
        for entry in entries {
            let is_folder = is_folder(&entry)?;
            if is_folder && level < LEVELS_OF_ALL {
                self.with_all(&entry.path(), level + 1)?;
                continue;
            }
            let is_own = self.turn % u64::from(self.order.ranks) == u64::from(self.order.rank);
            self.turn += 1;
            match is_folder {
                _ if !is_own => {}
                true => self.alone(entry.path())?,
                false => self.look(&entry)?,
            }
        }
        Ok(())
    }

    /// Looks at all files in a folder and below it.
    fn alone(&mut self, folder: PathBuf) -> Result<(), BenchError> {
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).map_err(failed("list", &folder))? {
                let entry = entry.map_err(failed("list", &folder))?;
                match is_folder(&entry)? {
                    true => folders.push(entry.path()),
                    false => self.look(&entry)?,
                }
            }
        }
        Ok(())
    }

    /// Looks at a file. Its attributes are read only if its name matches.
    fn look(&mut self, entry: &DirEntry) -> Result<(), BenchError> {
        self.report.operations += 1;
        let done = self.report.operations.min(self.order.expected);
        self.conductor.progress(now_ns(), done, self.order.expected)?;
        if !entry.file_name().to_string_lossy().contains(WANTED_NAME) {
            return Ok(());
        }
        let path = entry.path();
        let found = entry.metadata().map_err(failed("look at", &path))?;
        let modified = found.modified().map_err(failed("look at", &path))?;
        let is_wanted = found.is_file() && found.len() == WANTED_BYTES && modified > self.newer_than;
        self.report.found += u64::from(is_wanted);
        Ok(())
    }
}

fn is_folder(entry: &DirEntry) -> Result<bool, BenchError> {
    Ok(entry.file_type().map_err(failed("look at", &entry.path()))?.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::rank::tests::alone;
    use std::fs::File;
    use std::time::Duration;

    fn write(path: &Path, bytes: usize, age_s: u64) {
        fs::write(path, vec![7; bytes]).expect("there is room");
        let file = File::options().write(true).open(path).expect("it is there");
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000 - age_s);
        file.set_modified(time).expect("it is ours");
    }

    #[test]
    fn each_file_is_looked_at_once_and_those_that_match_are_found() {
        let top = std::env::temp_dir().join(format!("weft-bench-find-{}", std::process::id()));
        for folder in ["a", "b/tree.0/deep", "b/tree.1", "c/tree.0"] {
            fs::create_dir_all(top.join(folder)).expect("there is room");
        }
        write(&top.join("timestamp"), 0, 100);
        write(&top.join("a/file.01"), 3901, 100);
        write(&top.join("b/tree.0/file.0.101"), 3900, 0);
        for name in ["b/tree.0/deep/file.0.101", "b/tree.1/file.1.2010", "c/tree.0/file.0.101"] {
            write(&top.join(name), 3901, 0);
        }
        write(&top.join("c/tree.0/file.0.1"), 3901, 0);
        for ranks in 1..5 {
            let order = |rank| {
                let timestamp = top.join("timestamp");
                FindOrder { top: top.clone(), timestamp, rank, ranks, expected: 4 }
            };
            let reports: Vec<PhaseReport> = (0..ranks)
                .map(|rank| carry_out(&order(rank), &mut alone(&[0])).expect("all can be read"))
                .collect();
            let sum = |of: fn(&PhaseReport) -> u64| reports.iter().map(of).sum::<u64>();
            let (looked_at, found) = (sum(|report| report.operations), sum(|report| report.found));
            assert_eq!((looked_at, found), (7, 3), "by {ranks} ranks");
        }
        fs::remove_dir_all(&top).expect("it is ours");
    }
}
