//! Rules of the house that a machine can check: on sources, on decisions, and on what is taken from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use weft_tests::{root, tracked_files};

/// Lines after which a file has to be split.
const LINES_MAX: usize = 1500;

/// Columns of a line, comments included: what `rustfmt` allows for code.
const COLUMNS_MAX: usize = 110;

/// Lines of a function that still read as one thing.
const FUNCTION_LINES_MAX: usize = 70;

/// Lines that are wider, by crate. A ratchet: the numbers may only fall.
const WIDE_LINES: &[(&str, usize)] = &[
    ("weft-api", 18),
    ("weft-bench", 132),
    ("weft-cli", 126),
    ("weft-client", 9),
    ("weft-fuzz", 28),
    ("weft-layout", 27),
    ("weft-manager", 198),
    ("weft-membership", 126),
    ("weft-metrics", 13),
    ("weft-nbd", 13),
    ("weft-report", 13),
    ("weft-rt", 47),
    ("weft-rpc", 7),
    ("weft-rules", 71),
    ("weft-sim", 148),
    ("weft-store", 107),
    ("weft-target", 164),
    ("weft-tests", 5),
    ("weft-torture", 15),
    ("weft-types", 13),
    ("weft", 76),
    ("weft-wire", 37),
];

/// Functions that are longer, with their lines. A ratchet: none may be added, and none may grow.
const LONG_FUNCTIONS: &[(&str, &str, usize)] = &[
    ("weft-bench/src/repair/outcome.rs", "figures", 87),
    ("weft-manager/src/loss.rs", "repair_volumes", 71),
    ("weft-manager/src/operate.rs", "operate", 91),
    ("weft-membership/src/reason.rs", "fmt", 110),
    ("weft-membership/tests/model/fabric.rs", "take", 72),
    ("weft-membership/tests/properties.rs", "change", 133),
    ("weft-sim/src/faults/strike.rs", "strike", 175),
    ("weft-sim/src/hunt/stranded.rs", "run", 105),
    ("weft-store/tests/basic.rs", "a_verified_chunk_is_filled_in_parts", 73),
    ("weft/tests/package.rs", "the_package_holds_what_it_should", 93),
    ("weft/tests/status.rs", "a_dead_node_a_dead_manager_and_what_is_said_of_them", 81),
];

/// Words of unfinished work. They are put together here, so that this file does not hold them itself.
const UNFINISHED: &[&str] =
    &[concat!("to", "do!("), concat!("un", "implemented!("), concat!("d", "bg!("), concat!("FIX", "ME")];

/// Crates whose every line must also run in the simulation: time, threads, randomness and I/O come from
/// `weft-rt`.
const ENGINES: &[&str] =
    &["weft-store", "weft-target", "weft-client", "weft-manager", "weft-meta", "weft-fs"];

/// Names that an engine must not reach, by module: what the simulation cannot decide, and what threads share.
/// An engine runs on one thread, and learns nothing of others.
const OUTSIDE_THE_SIMULATION: &[&str] = &[
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::time::UNIX_EPOCH",
    "std::sync",
    "weft_rt::Thread",
    "weft_rt::Mailbox",
    "weft_rt::Poster",
    "weft_rt::mailbox",
    "weft_rt::affinity",
];

/// The file of an engine whose lanes post to each other. They are not told on which executors they run.
const POSTS_BETWEEN_LANES: &[&str] = &["crates/weft-client/src/lane.rs"];

/// The file of an engine through which threads of other programs reach lanes. It starts their threads, and
/// nothing else of the engine knows of those.
const STARTS_LANES: &[&str] = &["crates/weft-client/src/submit.rs"];

/// What these files may name.
const POSTS: &[&str] = &["weft_rt::Mailbox", "weft_rt::Poster", "weft_rt::mailbox"];

/// Files of engines that share something with the helper thread of their executor, which does blocking work.
const SHARES_WITH_THE_HELPER: &[&str] = &["crates/weft-manager/src/embedded.rs"];

/// What is wrong with a Rust source file.
fn complaints(path: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut complain = |line: usize, what: &str| found.push(format!("{}:{line}: {what}", path.display()));
    if !text.starts_with("//!") {
        complain(1, "begins without saying what it owns (`//!`)");
    }
    let lines = text.lines().count();
    if lines >= LINES_MAX {
        complain(lines, "is too long: split it");
    }
    for (i, line) in text.lines().enumerate() {
        if line.ends_with([' ', '\t']) {
            complain(i + 1, "trailing white space");
        }
        if line.trim_end().contains('\t') {
            complain(i + 1, "a tab");
        }
        for word in UNFINISHED.iter().filter(|word| line.contains(**word)) {
            complain(i + 1, &format!("unfinished: {word}"));
        }
    }
    // An example is a program of somebody who uses the engine.
    let is_example = path.components().any(|part| part.as_os_str() == "examples");
    if !is_example && ENGINES.iter().any(|name| path.starts_with(format!("crates/{name}"))) {
        let paths = ["std::", "weft_rt::"].into_iter().flat_map(|root| paths_from(root, text));
        let is_test = path.components().any(|part| part.as_os_str() == "tests");
        let may_share = is_test || SHARES_WITH_THE_HELPER.iter().any(|file| path == Path::new(file));
        let is_listed = |files: &[&str]| files.iter().any(|file| path == Path::new(file));
        let starts_lanes = is_listed(STARTS_LANES);
        let may_post = starts_lanes || is_listed(POSTS_BETWEEN_LANES);
        for name in paths.filter(|name| leaves_simulation(name)) {
            let is_post = may_post && POSTS.contains(&name.as_str());
            let is_start = starts_lanes && name == "weft_rt::Thread";
            if !is_post && !is_start && (!may_share || !name.starts_with("std::sync")) {
                complain(1, &format!("{name}: engines run on one thread, and get time from weft-rt only"));
            }
        }
    }
    found
}

/// Whether a path reaches what the simulation cannot decide, or imports so much that it could.
fn leaves_simulation(path: &str) -> bool {
    OUTSIDE_THE_SIMULATION.iter().any(|bad| path == *bad || path.starts_with(&format!("{bad}::")))
        || matches!(path, "std" | "std::*" | "std::time" | "std::time::*" | "std::time::self")
}

/// Every path from this root that a source names, with braces of imports opened: from `std::`, `use
/// std::{thread, time::{self as t, Duration}};` names `std::thread`, `std::time::self` and
/// `std::time::Duration`.
fn paths_from(root: &str, text: &str) -> BTreeSet<String> {
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join("\n");
    let mut paths = BTreeSet::new();
    for (at, _) in code.match_indices(root) {
        let before = code[..at].chars().next_back();
        if before.is_none_or(|c| !c.is_alphanumeric() && c != '_') {
            read_path(&code[at..], "", &mut paths);
        }
    }
    paths
}

/// Reads one path, or one tree of an import, behind `prefix`; returns what is left of the text.
fn read_path<'a>(text: &'a str, prefix: &str, paths: &mut BTreeSet<String>) -> &'a str {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '*').unwrap_or(text.len());
    let path = format!("{prefix}{}", &text[..end]);
    let rest = &text[end..];
    let Some(tail) = rest.strip_prefix("::") else {
        paths.insert(path);
        return rest;
    };
    let Some(mut branch) = tail.trim_start().strip_prefix('{') else {
        return read_path(tail, &format!("{path}::"), paths);
    };
    loop {
        branch = branch.trim_start();
        if branch.is_empty() || branch.starts_with('}') {
            return branch.get(1..).unwrap_or_default();
        }
        let after = read_path(branch, &format!("{path}::"), paths);
        // On to the next name of this brace: over a comma, an alias, or whatever else may stand there.
        let next = after.find([',', '}']).unwrap_or(after.len());
        branch = after[next..].strip_prefix(',').unwrap_or(&after[next..]);
    }
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
    let path = Path::new("crates/weft-layout/src/x.rs");
    assert_eq!(complaints(path, "//! Owns x.\nfn x() {}\n"), Vec::<String>::new());
    let mut bad = vec!["fn x() {}\n".to_owned(), "//! X. \n".to_owned(), "//! X\n\tfn x() {}\n".to_owned()];
    bad.push(format!("//! X\n{}", "\n".repeat(LINES_MAX - 1)));
    bad.extend(UNFINISHED.iter().map(|word| format!("//! X\n// {word}\n")));
    for text in bad {
        assert_eq!(complaints(path, &text).len(), 1, "{text:?}");
    }
    let just_short_enough = format!("//! X\n{}", "\n".repeat(LINES_MAX - 2));
    assert_eq!(complaints(path, &just_short_enough), Vec::<String>::new());
}

#[test]
fn engines_are_noticed_that_leave_the_simulation() {
    for line in [
        "use std::time::Instant;",
        "use std::time::{Duration, Instant};",
        "use std::{rc::Rc, time::{Duration, SystemTime as Wall}};",
        "use std::{\n    cell::Cell,\n    thread,\n};",
        "use std::time::*;",
        "use std::time;",
        "use std::time::{self, Duration};",
        "fn x() { std::thread::sleep(y); }",
        "fn x() -> std::time::Instant { y }",
        "use ::std::thread::spawn;",
        "use std::sync::Arc;",
        "static X: std::sync::atomic::AtomicU64 = y;",
        "use weft_rt::{Addr, Thread};",
        "fn x(y: weft_rt::Poster<u8>) {}",
    ] {
        let text = format!("//! X\n{line}\n");
        for engine in ENGINES {
            let path = PathBuf::from(format!("crates/{engine}/src/x.rs"));
            assert_eq!(complaints(&path, &text).len(), 1, "{line}");
        }
        assert!(
            complaints(Path::new("crates/weft-rt/src/x.rs"), &text).is_empty(),
            "the runtime may: {line}"
        );
    }
    for line in [
        "use std::time::Duration;",
        "use std::{collections::{BTreeMap, btree_map::Entry}, time::Duration};",
        "fn x(at: weft_rt::Instant) -> std::io::Result<()> { y }",
        "// Never std::thread here.",
    ] {
        let text = format!("//! X\n{line}\n");
        assert_eq!(complaints(Path::new("crates/weft-store/src/x.rs"), &text), Vec::<String>::new());
    }
}

/// The functions of a source that are too long: their names and lines. It reads what `rustfmt` has laid out:
/// a function ends with the first brace that stands as far in as its beginning.
fn long_functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let indent = &line[..line.len() - line.trim_start().len()];
        let Some(name) = function_name(line.trim_start()) else { continue };
        let is_end = |l: &&str| {
            l.strip_prefix(indent).is_some_and(|rest| {
                rest == "}" || rest.starts_with(") -> ") && rest.ends_with(';') || rest == ");"
            })
        };
        let is_on_one_line = line.ends_with(['}', ';']);
        let length =
            if is_on_one_line { 1 } else { lines[at..].iter().position(is_end).map_or(1, |n| n + 1) };
        if length > FUNCTION_LINES_MAX {
            found.push((name, length));
        }
    }
    found
}

/// The name of the function whose definition begins with this line.
fn function_name(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("fn ")?;
    let is_modifier = |word: &str| {
        matches!(word, "pub" | "const" | "async" | "unsafe" | "default")
            || word.starts_with("pub(")
            || word.ends_with(')')
            || word == "extern"
            || word == "\"C\""
    };
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    before.split_whitespace().all(is_modifier).then_some(&rest[..end]).filter(|name| !name.is_empty())
}

/// The crate of a path: `crates/NAME/...`.
fn crate_of(path: &Path) -> Option<&str> {
    path.strip_prefix("crates").ok()?.iter().next()?.to_str()
}

#[test]
fn lines_do_not_get_wider_nor_functions_longer() {
    let mut wide: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for path in tracked_files().iter().filter(|p| p.extension().is_some_and(|e| e == "rs")) {
        let text = fs::read_to_string(root().join(path)).expect("sources are UTF-8");
        let Some(name) = crate_of(path) else { continue };
        *wide.entry(name.to_owned()).or_default() +=
            text.lines().filter(|line| line.chars().count() > COLUMNS_MAX).count();
        for (function, lines) in long_functions(&text) {
            let is_path = |p: &str| *path == Path::new("crates").join(p);
            let known = LONG_FUNCTIONS.iter().find(|(p, f, _)| is_path(p) && *f == function);
            if known.is_none_or(|(_, _, most)| lines > *most) {
                found.push(format!("{}: {function} has {lines} lines: split it", path.display()));
            }
        }
    }
    for (path, function, _) in LONG_FUNCTIONS {
        let text = fs::read_to_string(root().join("crates").join(path)).unwrap_or_default();
        if !long_functions(&text).iter().any(|(name, _)| name == function) {
            found.push(format!("crates/{path}: {function} is not long any more: unlist it"));
        }
    }
    for (name, lines) in wide {
        let most = WIDE_LINES.iter().find(|(known, _)| *known == name).map_or(0, |(_, most)| *most);
        if lines > most {
            found.push(format!("crates/{name}: {lines} lines of over {COLUMNS_MAX} columns, at most {most}"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn long_functions_are_found() {
    let body = |lines| "        x();\n".repeat(lines);
    let long = format!(
        "impl X {{\n    pub(crate) async fn y(\n        z: u8,\n    ) -> u8 {{\n{}    }}\n}}\n",
        body(70)
    );
    assert_eq!(long_functions(&long), [("y", 74)]);
    let short = format!("fn y() {{\n{}}}\nfn one() {{}}\n{}", body(68), body(80));
    assert_eq!(long_functions(&short), []);
    let declared = format!("trait X {{\n    fn y(\n        z: u8,\n    ) -> u8;\n{}}}\n", body(80));
    assert_eq!(long_functions(&declared), []);
    assert_eq!(function_name("let fn_name = \"fn x\";"), None);
    assert_eq!(crate_of(Path::new("crates/weft-rt/src/x.rs")), Some("weft-rt"));
}

/// Files of tests that no program names, so that none of their tests would run. Where a crate has one program
/// of tests, `tests/suite.rs`, cargo looks for no others.
fn forgotten_tests(suite: &str, files: &[String]) -> Vec<String> {
    let is_named =
        |file: &&String| file.as_str() == "suite" || suite.lines().any(|line| line == format!("mod {file};"));
    files.iter().filter(|file| !is_named(file)).cloned().collect()
}

#[test]
fn no_file_of_tests_is_forgotten() {
    let tracked = tracked_files();
    let suites: Vec<&PathBuf> = tracked.iter().filter(|path| path.ends_with("tests/suite.rs")).collect();
    assert!(suites.len() > 3, "only {suites:?} are found");
    for suite in suites {
        let text = fs::read_to_string(root().join(suite)).expect("sources are UTF-8");
        let beside =
            |path: &&PathBuf| path.parent() == suite.parent() && path.extension().is_some_and(|e| e == "rs");
        let name =
            |path: &PathBuf| path.file_stem().expect("files have names").to_string_lossy().into_owned();
        let files: Vec<String> = tracked.iter().filter(beside).map(name).collect();
        assert_eq!(forgotten_tests(&text, &files), Vec::<String>::new(), "not named by {}", suite.display());
    }
    let files = ["suite", "lease", "leases"].map(str::to_owned);
    assert_eq!(forgotten_tests("//! Tests.\nmod lease;\n", &files), ["leases"]);
}

/// What is wrong with the names of the decisions' files: they are `NNNN-title.md`, numbered from 1 without
/// gaps.
fn decision_complaints(names: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let mut numbers = Vec::new();
    for name in names {
        match name.split_once('-').filter(|(n, title)| n.len() == 4 && title.ends_with(".md")) {
            Some((number, _)) => numbers.extend(number.parse::<usize>()),
            None => found.push(format!("{name}: expected NNNN-title.md")),
        }
    }
    numbers.sort_unstable();
    let expected: Vec<usize> = (1..=names.len()).collect();
    if numbers.is_empty() || numbers != expected {
        found.push(format!("numbers {numbers:?}, expected {expected:?}"));
    }
    found
}

/// Names and texts of the decisions.
fn decisions() -> Vec<(String, String)> {
    let folder = fs::read_dir(root().join("docs/decisions")).expect("there are decisions");
    let read = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().expect("names are UTF-8");
        (name, fs::read_to_string(entry.path()).expect("decisions are text"))
    };
    folder.map(|entry| read(entry.expect("the folder can be read"))).collect()
}

#[test]
fn decisions_are_numbered_without_gaps() {
    let names: Vec<String> = decisions().into_iter().map(|(name, _)| name).collect();
    assert_eq!(decision_complaints(&names), Vec::<String>::new());
}

#[test]
fn gaps_between_decisions_are_noticed() {
    let check =
        |names: &[&str]| decision_complaints(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
    assert!(check(&["0002-b.md", "0001-a.md"]).is_empty());
    for bad in
        [&[][..], &["0001-a.md", "0003-c.md"], &["0001-a.md", "0001-b.md"], &["0002-b.md"], &["notes.md"]]
    {
        assert!(!check(bad).is_empty(), "{bad:?}");
    }
}

/// Names under `[workspace.dependencies]` that come from outside.
fn outside_dependencies(manifest: &str) -> Vec<String> {
    let section = manifest.split("[workspace.dependencies]\n").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let lines = section.lines().filter(|line| !line.starts_with('#') && !line.contains("path = "));
    lines.filter_map(|line| line.split_once('=')).map(|(name, _)| name.trim().to_owned()).collect()
}

/// Names that a crate's manifest takes from outside of the workspace, and lines that do not take them from
/// its list.
fn taken(manifest: &str) -> (BTreeSet<String>, Vec<String>) {
    let (mut names, mut direct, mut is_dependencies) = (BTreeSet::new(), Vec::new(), false);
    for line in manifest.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            is_dependencies = section.trim_end_matches(']').ends_with("dependencies");
        } else if is_dependencies && !line.starts_with('#') {
            let Some((left, right)) = line.split_once('=') else { continue };
            let name = left.trim().split('.').next().unwrap_or_default();
            if !(left.trim().ends_with(".workspace") || right.contains("workspace = true")) {
                direct.push(line.to_owned());
            }
            names.insert(name.to_owned());
        }
    }
    (names, direct)
}

#[test]
fn every_outside_dependency_is_argued_for_and_used() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("there is a manifest");
    let argued: String = decisions().into_iter().map(|(_, text)| text).collect();
    let names = outside_dependencies(&manifest);
    assert!(names.len() > 5, "{names:?}");
    let silent: Vec<_> = names.iter().filter(|name| !argued.contains(&format!("`{name}`"))).collect();
    assert!(silent.is_empty(), "no decision argues for {silent:?}");

    let mut used = BTreeSet::new();
    for path in tracked_files().iter().filter(|p| p.starts_with("crates") && p.ends_with("Cargo.toml")) {
        let (names, direct) = taken(&fs::read_to_string(root().join(path)).expect("manifests are UTF-8"));
        assert!(direct.is_empty(), "{}: not from the workspace's list: {direct:?}", path.display());
        used.extend(names);
    }
    let idle: Vec<_> = names.iter().filter(|name| !used.contains(*name)).collect();
    assert!(idle.is_empty(), "nothing uses {idle:?}: remove them, and their arguments");
}

#[test]
fn manifests_are_read_right() {
    let manifest = "[workspace.dependencies]\nweft-x = { path = \"x\" }\n# why\na-b = \"1\"\nc= { version = \"2\" }\n\n[profile.dev]\nd = 1\n";
    assert_eq!(outside_dependencies(manifest), ["a-b", "c"]);
    let manifest = "[package]\nname = \"x\"\n[dependencies]\na.workspace = true\nb = { workspace = true }\n\
        [target.'cfg(unix)'.dev-dependencies]\nc = \"1\"\n[lints]\nworkspace = true\n";
    let (names, direct) = taken(manifest);
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(direct, ["c = \"1\""]);
}

#[test]
fn the_documents_are_there() {
    for (name, says) in [
        ("README.md", "make demo"),
        ("ARCHITECTURE.md", "## Life of a write"),
        ("CHANGELOG.md", "## Unreleased"),
        ("LICENSE", "Apache License"),
    ] {
        let text = fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(text.contains(says), "{name} lacks '{says}'");
    }
}
