//! The tools in Python (`bench`): their own checks, which need none of the systems and tools that they
//! measure with, and the rules of the house for their files.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use weft_tests::{program, root, tracked_files};

#[test]
fn the_tools_pass_their_own_checks() {
    for checks in ["bench/peers/test_report.py", "bench/where/test_layers.py"] {
        // -B: the tree stays as it is.
        let mut python = Command::new(program("python3"));
        let output = python.args(["-B", checks]).current_dir(root()).output().expect("python3 runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{checks}: {said}");
        assert!(said.contains("\nOK"), "{checks}: {said}");
    }
}

#[test]
fn every_file_says_what_it_owns() {
    let is_ours = |path: &PathBuf| path.starts_with("bench") && path.extension().is_some_and(|e| e == "py");
    let files: Vec<PathBuf> = tracked_files().into_iter().filter(is_ours).collect();
    assert!(files.len() > 8, "git lists only {files:?}");
    for path in files {
        let text = fs::read_to_string(root().join(&path)).expect("sources are UTF-8");
        let head = text.strip_prefix("#!/usr/bin/env python3\n").unwrap_or(&text);
        assert!(head.starts_with("\"\"\""), "{}: begins without saying what it owns", path.display());
        for (number, line) in text.lines().enumerate() {
            let is_clean = !line.ends_with([' ', '\t']) && !line.contains('\t');
            assert!(is_clean, "{}:{}: a tab, or trailing white space", path.display(), number + 1);
        }
    }
}
