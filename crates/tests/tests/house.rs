//! Rules of the house that a machine can check: see CONTRIBUTING in ARCHITECTURE.md.

use std::fs;
use std::path::{Path, PathBuf};
use weft_tests::{root, tracked_files};

/// Lines after which a file has to be split.
const LINES_MAX: usize = 1500;

/// What is wrong with a Rust source file.
fn complaints(path: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut complain = |line: usize, what: &str| found.push(format!("{}:{line}: {what}", path.display()));
    if !text.starts_with("//!") {
        complain(1, "begins without saying what it owns (`//!`)");
    }
    let lines = text.lines().count();
    if lines > LINES_MAX {
        complain(lines, "is too long: split it");
    }
    for (i, line) in text.lines().enumerate() {
        if line.ends_with([' ', '\t']) {
            complain(i + 1, "trailing white space");
        }
        if line.contains('\t') {
            complain(i + 1, "a tab");
        }
        for word in ["todo!(", "unimplemented!(", "dbg!(", "FIXME", "XXX"] {
            // This file names the words.
            if line.contains(word) && !path.ends_with("house.rs") {
                complain(i + 1, &format!("unfinished: {word}"));
            }
        }
        if is_engine(path) {
            for word in ["std::time::Instant", "SystemTime", "std::thread", "std::net::Tcp", "std::fs::File"] {
                if line.contains(word) {
                    complain(i + 1, &format!("{word}: engines get time, threads and I/O from weft-rt only"));
                }
            }
        }
    }
    found
}

fn is_engine(path: &Path) -> bool {
    ["store", "target", "client"].iter().any(|name| path.starts_with(format!("crates/{name}/src")))
}

#[test]
fn every_source_file_keeps_the_rules() {
    let sources: Vec<PathBuf> =
        tracked_files().into_iter().filter(|p| p.extension().is_some_and(|e| e == "rs")).collect();
    assert!(sources.len() > 20, "git lists only {} source files", sources.len());
    let found: Vec<String> = sources
        .iter()
        .flat_map(|path| complaints(path, &fs::read_to_string(root().join(path)).expect("sources are UTF-8")))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_rules_notice_what_breaks_them() {
    let path = Path::new("crates/store/src/x.rs");
    let good = "//! Owns x.\nfn x() {}\n";
    assert!(complaints(path, good).is_empty());
    let long = format!("//! Owns x.\n{}", "\n".repeat(LINES_MAX));
    for bad in ["fn x() {}\n", "//! X. \n", "//! X\n\tfn x() {}\n", "//! X\nuse std::time::Instant;\n", &long] {
        assert_eq!(complaints(path, bad).len(), 1, "{bad:?}");
    }
}

#[test]
fn decisions_are_numbered_without_gaps() {
    let mut numbers: Vec<u32> = fs::read_dir(root().join("docs/decisions"))
        .expect("there are decisions")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.get(..4)?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let expected: Vec<u32> = (1..=numbers.len() as u32).collect();
    assert_eq!(numbers, expected);
    assert!(!numbers.is_empty());
}

/// Names under `[workspace.dependencies]` that come from outside.
fn outside_dependencies(manifest: &str) -> Vec<String> {
    let section = manifest.split("[workspace.dependencies]").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    section
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name.trim().to_owned())
        .filter(|name| !name.starts_with("weft-") && !name.starts_with('#'))
        .collect()
}

#[test]
fn every_outside_dependency_is_argued_for() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("there is a manifest");
    let mut argued = String::new();
    for entry in fs::read_dir(root().join("docs/decisions")).expect("there are decisions").flatten() {
        argued += &fs::read_to_string(entry.path()).expect("decisions are text");
    }
    let names = outside_dependencies(&manifest);
    assert!(names.len() > 5, "{names:?}");
    let silent: Vec<_> = names.iter().filter(|name| !argued.contains(&format!("`{name}`"))).collect();
    assert!(silent.is_empty(), "no decision names {silent:?}");
}

#[test]
fn the_documents_are_there() {
    for name in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE"] {
        let length = fs::metadata(root().join(name)).map(|m| m.len()).unwrap_or(0);
        assert!(length > 200, "{name} is missing or empty");
    }
}
