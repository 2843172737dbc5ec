//! What runs have covered: how often each path of the protocol was taken, and which fault struck while which other
//! one lasted.

use crate::faults::Struck;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;
use weft_rules::Path;

/// How long a fault counts as lasting beyond its end: a lease and what follows from it.
const AFTERMATH: Duration = Duration::from_millis(1_000);

/// Counts of one run, or of many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Per path how often it was taken.
    pub paths: BTreeMap<String, u64>,
    /// Per path in how many runs it was taken.
    pub runs: BTreeMap<String, u64>,
    /// Per kind how many faults struck.
    pub faults: BTreeMap<String, u64>,
    /// Per two kinds how often the second struck while the first lasted, as `first > second`.
    pub pairs: BTreeMap<String, u64>,
}

impl Coverage {
    /// Faults of one run, and their pairs.
    pub fn of_pairs(struck: &[Struck]) -> Coverage {
        let mut covered = Coverage::default();
        for (i, second) in struck.iter().enumerate() {
            *covered.faults.entry(second.name.into()).or_default() += 1;
            for first in struck[..i].iter().filter(|first| first.to + AFTERMATH >= second.from) {
                *covered.pairs.entry(format!("{} > {}", first.name, second.name)).or_default() += 1;
            }
        }
        covered
    }

    /// Adds counts of one run in the order of [`Path::ALL`].
    pub fn add_paths(&mut self, counts: &[u64]) {
        for (path, count) in Path::ALL.iter().zip(counts).filter(|(_, count)| **count > 0) {
            *self.paths.entry(path.name().into()).or_default() += count;
            *self.runs.entry(path.name().into()).or_default() += 1;
        }
    }

    /// Adds what others covered.
    pub fn add(&mut self, other: &Coverage) {
        let both = [
            (&mut self.paths, &other.paths),
            (&mut self.runs, &other.runs),
            (&mut self.faults, &other.faults),
            (&mut self.pairs, &other.pairs),
        ];
        for (own, theirs) in both {
            for (name, count) in theirs {
                *own.entry(name.clone()).or_default() += count;
            }
        }
    }

    /// Paths that were never taken.
    pub fn never(&self) -> Vec<Path> {
        Path::ALL.iter().copied().filter(|path| !self.paths.contains_key(path.name())).collect()
    }

    /// A table of all paths and faults, for people.
    pub fn table(&self) -> String {
        let mut out = format!("{:<28} {:>12} {:>9}  what happens\n", "path", "taken", "in runs");
        let count = |map: &BTreeMap<String, u64>, name: &str| map.get(name).copied().unwrap_or(0);
        for path in Path::ALL {
            let (taken, runs) = (count(&self.paths, path.name()), count(&self.runs, path.name()));
            let _ = writeln!(out, "{:<28} {taken:>12} {runs:>9}  {}", path.name(), path.says());
        }
        let names: Vec<&String> = self.faults.keys().collect();
        let all = names.len() * names.len();
        let _ = writeln!(out, "\n{:<28} {:>12}  most often while it lasted", "fault", "struck");
        for name in &names {
            let start = format!("{name} > ");
            let mut within: Vec<(&str, u64)> =
                self.pairs.iter().filter_map(|(pair, n)| Some((pair.strip_prefix(&start)?, *n))).collect();
            within.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
            let most: Vec<String> = within.iter().take(4).map(|(name, n)| format!("{name} {n}")).collect();
            let _ = writeln!(out, "{name:<28} {:>12}  {}", self.faults[*name], most.join(", "));
        }
        let _ = write!(
            out,
            "\n{} of {all} pairs of faults were seen, one while the other lasted",
            self.pairs.len()
        );
        out
    }
}
