//! Which code is run: what a ledger counts is tied to it.

use std::io::Write;
use std::process::{Command, Stdio};

/// What a simulation is made of, beside `Cargo.lock` and `Cargo.toml`: this crate and all of the project that it stands on.
const CRATES: [&str; 16] = [
    "weft-api",
    "weft-checker",
    "weft-client",
    "weft-fs",
    "weft-layout",
    "weft-manager",
    "weft-membership",
    "weft-meta",
    "weft-rpc",
    "weft-rules",
    "weft-rt",
    "weft-sim",
    "weft-store",
    "weft-target",
    "weft-types",
    "weft-wire",
];

/// What a simulation is built from, which is not the crates' tests.
fn parts() -> Vec<String> {
    let of_crate = |name| ["Cargo.toml", "build.rs", "src"].map(|part| format!("crates/{name}/{part}"));
    let of_all = ["Cargo.lock", "Cargo.toml"].map(str::to_owned);
    of_all.into_iter().chain(CRATES.into_iter().flat_map(of_crate)).collect()
}

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
        let parts = parts();
        let with = |args: &[&'static str]| -> Vec<&str> {
            args.iter().copied().chain(parts.iter().map(String::as_str)).collect()
        };
        let commit = git(&["rev-parse", "--short=12", "HEAD"], "");
        let listed = git(&with(&["ls-tree", "HEAD", "--"]), "");
        let digest = listed.and_then(|listed| git(&["hash-object", "--stdin"], &listed));
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
        if !all.insert(name.to_owned()) {
            return;
        }
        let manifest = std::fs::read_to_string(crates.join(name).join("Cargo.toml")).unwrap();
        let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
        let lines = section.lines().take_while(|line| !line.starts_with('['));
        for needed in lines.filter(|line| line.starts_with("weft-")) {
            let end = needed.find(['.', ' ', '=']).unwrap();
            dependencies(crates, &needed[..end], all);
        }
    }

    #[test]
    fn all_that_a_simulation_stands_on_is_a_part() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut needed = BTreeSet::new();
        dependencies(crates, "weft-sim", &mut needed);
        assert_eq!(needed, CRATES.map(str::to_owned).into());
    }
}
