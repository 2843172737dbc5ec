//! Whole: what several test files share: the tree, its crates, and the programs that tests run.
//!
//! The tests themselves are in `tests/`. Nothing else depends on this crate.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the tree.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the crate lies in the tree")
}

/// The `weft` binary of this build; `make test` builds it first.
///
/// # Panics
/// If it was not built.
pub fn weft() -> PathBuf {
    if let Some(named) = std::env::var_os("WEFT_UNDER_TEST") {
        return named.into();
    }
    let mut folder = std::env::current_exe().expect("a test knows its own path");
    folder.pop();
    if folder.ends_with("deps") {
        folder.pop();
    }
    let binary = folder.join("weft");
    assert!(binary.exists(), "{} is missing: run `cargo build -p weft` first", binary.display());
    binary
}

/// The path of a program that a test needs.
///
/// # Panics
/// If it is not installed: a missing client must fail the test, not skip it.
pub fn program(name: &str) -> PathBuf {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let found = path.split(':').map(|dir| Path::new(dir).join(name)).find(|p| p.exists());
    found.unwrap_or_else(|| panic!("'{name}' is not installed: run scripts/setup.sh --for test"))
}

/// Paths of the files that git tracks, relative to the root.
pub fn tracked_files() -> Vec<PathBuf> {
    // The tree may belong to another user than the one that runs the tests, as in a container with a mounted
    // tree.
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "ls-files", "-z"]).current_dir(root());
    let output = git.output().expect("git runs");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("paths are UTF-8");
    text.split('\0')
        .filter(|p| !p.is_empty())
        .map(PathBuf::from)
        .filter(|p| root().join(p).exists())
        .collect()
}
