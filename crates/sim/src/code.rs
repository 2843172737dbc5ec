//! Which code is run: what a ledger counts is tied to it.

use std::io::Write;
use std::process::{Command, Stdio};

/// What a simulation is made of: this crate and all of the project that it stands on, and what they are built with.
const PARTS: [&str; 13] = [
    "Cargo.lock",
    "Cargo.toml",
    "crates/api",
    "crates/client",
    "crates/layout",
    "crates/manager",
    "crates/membership",
    "crates/rt",
    "crates/sim",
    "crates/store",
    "crates/target",
    "crates/types",
    "crates/wire",
];

/// The code of the working tree, as far as it can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The commit that is checked out.
    pub commit: String,
    /// Twelve hexadecimal digits that are the same for all commits that simulate alike, with `-changed` behind them if the
    /// tree had changes of its own there; `unknown` outside of a repository.
    pub digest: String,
}

impl Code {
    /// What the repository around the working directory says.
    pub fn here() -> Code {
        let unknown = || Code { commit: "unknown".into(), digest: "unknown".into() };
        let Some(top) = git(".", &["rev-parse", "--show-toplevel"], "") else { return unknown() };
        let git = |args: &[&str], input: &str| git(&top, args, input);
        let with = |args: &[&'static str]| [args, &PARTS[..]].concat();
        let commit = git(&["rev-parse", "--short=12", "HEAD"], "");
        let parts = git(&with(&["ls-tree", "HEAD", "--"]), "");
        let digest = parts.and_then(|parts| git(&["hash-object", "--stdin"], &parts));
        let (Some(commit), Some(mut digest)) = (commit, digest) else { return unknown() };
        digest.truncate(12);
        let changes = git(&with(&["status", "--porcelain", "--untracked-files=no", "--"]), "");
        if changes.is_none_or(|changes| !changes.is_empty()) {
            digest += "-changed";
        }
        Code { commit, digest }
    }
}

fn git(folder: &str, args: &[&str], input: &str) -> Option<String> {
    let mut command = Command::new("git");
    command
        .args(["-C", folder])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut running = command.spawn().ok()?;
    // What is not asked for is not read, and then cannot be written.
    let _ = running.stdin.take()?.write_all(input.as_bytes());
    let ran = running.wait_with_output().ok().filter(|ran| ran.status.success())?;
    Some(String::from_utf8_lossy(&ran.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// The project's crates that a crate depends on, in a build that is no test.
    fn dependencies(crates: &Path, name: &str, all: &mut BTreeSet<String>) {
        if !all.insert(format!("crates/{name}")) {
            return;
        }
        let manifest = std::fs::read_to_string(crates.join(name).join("Cargo.toml")).unwrap();
        let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
        let lines = section.lines().take_while(|line| !line.starts_with('['));
        for needed in lines.filter_map(|line| line.strip_prefix("weft-")) {
            let end = needed.find(['.', ' ', '=']).unwrap();
            dependencies(crates, &needed[..end], all);
        }
    }

    #[test]
    fn all_that_a_simulation_stands_on_is_a_part() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut needed = BTreeSet::from(["Cargo.lock".to_owned(), "Cargo.toml".to_owned()]);
        dependencies(crates, "sim", &mut needed);
        assert_eq!(needed, PARTS.map(str::to_owned).into());
    }
}
