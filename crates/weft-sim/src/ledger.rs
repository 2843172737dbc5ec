//! What was run of one state of the code: how many seeds, for how long, what failed, and what was covered. Kept in a file, so that
//! one soak goes on where the one before it ended.

use crate::code::Code;
use crate::coverage::Coverage;
use crate::run::{Failure, Outcome};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The form of the file that this program writes.
const SCHEMA_VERSION: u32 = 2;

/// Failures that are kept with all their words.
const FAILURES_MAX: usize = 100;

/// A ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    /// The form of this file.
    pub schema_version: u32,
    /// What was run, as [`Code`] has it.
    pub code: String,
    /// The first commit at which it was.
    pub commit: String,
    /// The first seed, drawn from the clock.
    pub first_seed: u64,
    /// The next seed that was not begun.
    pub next_seed: u64,
    /// Seeds that were run.
    pub seeds: u64,
    /// Scripts that were run beside them.
    #[serde(default)]
    pub scripts: u64,
    /// Seeds and scripts that failed.
    pub failed: u64,
    /// Operations of clients.
    pub operations: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Virtual time of all runs, in seconds.
    pub virtual_s: f64,
    /// Real time of all soaks, in seconds.
    pub real_s: f64,
    /// What failed.
    pub failures: Vec<Failed>,
    /// What was covered.
    pub coverage: Coverage,
}

/// A seed that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failed {
    /// The seed.
    pub seed: u64,
    /// The script that was run with it, if one was.
    #[serde(default)]
    pub script: Option<String>,
    /// The faults that it needs.
    pub faults: Option<String>,
    /// What is wrong.
    pub what: String,
}

impl From<&Failed> for Failure {
    fn from(failed: &Failed) -> Failure {
        Failure {
            seed: failed.seed,
            script: failed.script.clone(),
            faults: failed.faults.clone(),
            what: failed.what.clone(),
        }
    }
}

impl Ledger {
    /// An empty one.
    pub fn new(code: &Code, first_seed: u64) -> Ledger {
        Ledger {
            schema_version: SCHEMA_VERSION,
            code: code.digest.clone(),
            commit: code.commit.clone(),
            first_seed,
            next_seed: first_seed,
            seeds: 0,
            scripts: 0,
            failed: 0,
            operations: 0,
            faults: 0,
            virtual_s: 0.0,
            real_s: 0.0,
            failures: vec![],
            coverage: Coverage::default(),
        }
    }

    /// The ledger of this code in a file; an empty one if there is none, or if it is of another code.
    ///
    /// # Errors
    /// If the file cannot be read, or is no ledger.
    pub fn open(path: &Path, code: &Code, first_seed: u64) -> io::Result<Ledger> {
        match fs::read(path) {
            Ok(bytes) => {
                let ledger: Ledger = serde_json::from_slice(&bytes)?;
                Ok(if ledger.code == code.digest { ledger } else { Ledger::new(code, first_seed) })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Ledger::new(code, first_seed)),
            Err(error) => Err(error),
        }
    }

    /// Writes it; whoever reads it sees the whole of it or of the one before.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut beside: PathBuf = path.to_owned();
        beside.set_extension("new");
        fs::write(&beside, serde_json::to_vec_pretty(self)?)?;
        fs::rename(&beside, path)
    }

    /// Notes a run.
    pub fn note(&mut self, result: &Result<Outcome, Failure>, covered: &Coverage) {
        self.seeds += 1;
        self.coverage.add(covered);
        match result {
            Ok(outcome) => {
                self.operations += outcome.operations;
                self.faults += outcome.faults as u64;
                self.virtual_s += outcome.virtual_time.as_secs_f64();
            }
            Err(failure) => self.note_failure(failure),
        }
    }

    /// Notes a script that was run.
    pub fn note_script(&mut self, result: &Result<(), Failure>, covered: &Coverage) {
        self.scripts += 1;
        self.coverage.add(covered);
        if let Err(failure) = result {
            self.note_failure(failure);
        }
    }

    fn note_failure(&mut self, Failure { seed, script, faults, what }: &Failure) {
        self.failed += 1;
        if self.failures.len() < FAILURES_MAX {
            let (script, faults, what) = (script.clone(), faults.clone(), what.clone());
            self.failures.push(Failed { seed: *seed, script, faults, what });
        }
    }

    /// Notes real time that has passed.
    pub fn note_time(&mut self, passed: Duration) {
        self.real_s += passed.as_secs_f64();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_is_read_as_it_was_written_and_begins_anew_with_other_code() {
        let folder = std::env::temp_dir().join(format!("weft-ledger-{}", std::process::id()));
        let path = folder.join("soak/one.json");
        let code = |digest: &str, commit: &str| Code { digest: digest.into(), commit: commit.into() };
        let mut ledger = Ledger::open(&path, &code("abc", "one"), 7).unwrap();
        let failure = Failure { seed: 9, script: None, faults: Some("1,2/4".into()), what: "wrong".into() };
        ledger.note(&Err(failure), &Coverage::default());
        ledger.note_script(&Ok(()), &Coverage::default());
        ledger.note_time(Duration::from_secs(3));
        ledger.save(&path).unwrap();
        assert_eq!(Ledger::open(&path, &code("abc", "two"), 99).unwrap(), ledger);
        let other = code("def", "two");
        assert_eq!(Ledger::open(&path, &other, 99).unwrap(), Ledger::new(&other, 99));
        fs::remove_dir_all(folder).unwrap();
    }
}
