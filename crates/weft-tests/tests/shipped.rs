//! What is tested is what ships: the program that the end-to-end tests run has no switch and no door of a
//! test build.

use std::path::PathBuf;
use std::process::Command;
use weft_tests::root;

/// The program that ships: the one under test, or the release of this tree.
fn shipped() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    std::env::var_os("WEFT_UNDER_TEST").map_or_else(|| target.join("release/weft"), PathBuf::from)
}

#[test]
fn the_program_that_ships_has_no_switch_and_no_door() {
    let weft = shipped();
    assert!(weft.exists(), "{} is missing: run `make build` first", weft.display());
    let said = Command::new(&weft).arg("--version").output().expect("it runs");
    let said = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    assert_eq!(said, format!("weft {}", env!("CARGO_PKG_VERSION")), "{}", weft.display());
}

#[test]
fn the_program_that_ships_has_its_line_tables_beside_it() {
    // What the section that links to them holds; its name is a word of the standard library in any program.
    const LINK: &[u8] = b"weft.debug\0";
    let weft = shipped();
    let bytes = std::fs::read(&weft).expect("run `make build` first");
    let has_link = bytes.windows(LINK.len()).any(|part| part == LINK);
    assert!(has_link, "{}: {} bytes, with its line tables inside", weft.display(), bytes.len());
}
