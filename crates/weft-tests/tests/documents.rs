//! The documents tell the truth, as far as a machine can tell: rules that are cited are defined and hunted,
//! symbols and files that are named exist where the text says so.
//!
//! It reads the tree as text. It never judges whether a sentence is true, only whether what it names is
//! there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use weft_tests::{root, tracked_files};

/// The home of the rules.
const PROTOCOL: &str = "docs/protocol.md";

/// Letters of rules: mirrored writes, and those that are reserved for later designs. The page says what each
/// means.
const LETTERS: &str = "RCPFSEN";

/// The crates that carry the rules out; a rule that none of them cites is only a promise.
const CARRIED_OUT_IN: &[&str] = &[
    "weft-client",
    "weft-store",
    "weft-target",
    "weft-manager",
    "weft-membership",
    "weft-meta",
    "weft-fs",
    "weft-wire",
];

/// Where rules are broken on purpose, and where that is hunted.
const SWITCHES: &str = "crates/weft-rules/src/switch.rs";
const HUNTS: &str = "crates/weft-sim/src/hunt/table.rs";

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Words made of letters, digits and underscores, with what stands between them left out.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Whether a word is the number of a rule: a known letter and one or two digits.
fn is_rule(word: &str) -> bool {
    let mut chars = word.chars();
    let has_letter = chars.next().is_some_and(|c| LETTERS.contains(c));
    let digits = chars.as_str();
    has_letter && (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
}

/// The rules that a text cites.
fn cited(text: &str) -> BTreeSet<String> {
    words(text).filter(|word| is_rule(word)).map(str::to_owned).collect()
}

/// A section of the page about the rules.
#[derive(Debug, PartialEq)]
struct Section {
    /// The rule's number, or the word in the heading by which switches name what is no numbered rule.
    rule: String,
    text: String,
}

/// The sections of the page that have a rule: `### R1: title`, or a heading with (`word`) in it.
fn sections(page: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut is_within = false;
    for line in page.lines() {
        if line.starts_with("## ") || line.starts_with("### ") {
            let title = line.trim_start_matches('#').trim();
            let number = title.split(':').next().filter(|word| is_rule(word));
            let word = title.split_once("(`").and_then(|(_, rest)| rest.split('`').next());
            is_within = number.or(word).is_some();
            if let Some(rule) = number.or(word) {
                sections.push(Section { rule: rule.to_owned(), text: String::new() });
            }
        } else if let Some(section) = sections.last_mut().filter(|_| is_within) {
            section.text.push_str(line);
            section.text.push('\n');
        }
    }
    sections
}

/// The paragraphs of a text.
fn paragraphs(text: &str) -> impl Iterator<Item = String> {
    let mut parts: Vec<String> = vec![String::new()];
    for line in text.lines() {
        match line.trim().is_empty() {
            true => parts.push(String::new()),
            false => {
                let part = parts.last_mut().expect("there is always one");
                part.push_str(line);
                part.push(' ');
            }
        }
    }
    parts.into_iter().filter(|part| !part.is_empty())
}

/// What stands between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The switches that a section lists: `None` if it has no such paragraph.
fn listed_switches(section: &str) -> Option<BTreeSet<String>> {
    let paragraph = paragraphs(section).find(|p| p.starts_with("**Switches:**"))?;
    Some(quoted(&paragraph).into_iter().map(str::to_owned).collect())
}

/// Each switch: the name of its variant, the rule that it breaks, its own name.
fn switches(source: &str) -> Vec<(String, String, String)> {
    let lines = source.lines().filter_map(|line| {
        let (variant, rest) = line.trim().split_once(", \"")?;
        let mut parts = rest.split("\", \"");
        let (rule, name) = (parts.next()?, parts.next()?);
        let is_name = !variant.is_empty() && variant.bytes().all(|b| b.is_ascii_alphanumeric());
        (is_name && parts.next().is_some()).then(|| (variant.to_owned(), rule.to_owned(), name.to_owned()))
    });
    lines.collect()
}

/// Files in which rules are cited: sources, documents and scripts, without what only other tests make.
fn citing_files() -> Vec<PathBuf> {
    let is_text = |p: &PathBuf| {
        let extension = p.extension().and_then(|e| e.to_str()).unwrap_or_default();
        matches!(extension, "rs" | "md" | "sh" | "py") || p.ends_with("Makefile")
    };
    tracked_files().into_iter().filter(is_text).filter(|p| !p.ends_with("tests/documents.rs")).collect()
}

#[test]
fn every_cited_rule_is_defined() {
    let defined: BTreeSet<String> = sections(&read(PROTOCOL)).into_iter().map(|s| s.rule).collect();
    let mut lost = Vec::new();
    for path in citing_files() {
        for rule in cited(&read(&path)).into_iter().filter(|rule| !defined.contains(rule)) {
            lost.push(format!("{}: {rule} is not defined in {PROTOCOL}", path.display()));
        }
    }
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}

#[test]
fn every_rule_is_carried_out_and_can_be_broken() {
    let carried_out: BTreeSet<String> = tracked_files()
        .iter()
        .filter(|p| CARRIED_OUT_IN.iter().any(|name| p.starts_with(format!("crates/{name}/src"))))
        .flat_map(|p| cited(&read(p)))
        .collect();
    let hunts = read(HUNTS);
    let hunted: BTreeSet<&str> = words(&hunts).collect();
    let mut by_rule: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (variant, rule, name) in switches(&read(SWITCHES)) {
        if !hunted.contains(variant.as_str()) {
            wrong.push(format!("{HUNTS} does not hunt {variant}"));
        }
        by_rule.entry(rule).or_default().insert(name);
    }
    assert!(by_rule.len() > 16, "{SWITCHES} is read wrong: {by_rule:?}");
    for Section { rule, text } in sections(&read(PROTOCOL)) {
        if is_rule(&rule) && !carried_out.contains(&rule) {
            wrong.push(format!("{rule}: no crate of {CARRIED_OUT_IN:?} cites it"));
        }
        let known = by_rule.remove(&rule).unwrap_or_default();
        let says_why = paragraphs(&text).any(|p| p.starts_with("**No switch:**"));
        match listed_switches(&text) {
            Some(listed) if listed != known => {
                let differ: Vec<_> = listed.symmetric_difference(&known).collect();
                wrong.push(format!("{rule}: {PROTOCOL} and {SWITCHES} differ in {differ:?}"));
            }
            None if !known.is_empty() || !says_why => {
                wrong.push(format!(
                    "{rule}: {PROTOCOL} lists no switches, and does not say why there are none"
                ));
            }
            _ => {}
        }
    }
    for rule in by_rule.keys() {
        wrong.push(format!("{rule}: {SWITCHES} breaks it, {PROTOCOL} does not define it"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether a source defines a name: an item, or a variant of an enum.
fn defines(source: &str, name: &str) -> bool {
    const ITEMS: &[&str] =
        &["fn", "struct", "enum", "trait", "const", "static", "type", "mod", "union", "macro_rules!"];
    let is_end = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let is_variant = name.starts_with(|c: char| c.is_ascii_uppercase());
    source.lines().map(str::trim_start).filter(|line| !line.starts_with("//")).any(|line| {
        let is_item = ITEMS.iter().any(|item| {
            let key = format!("{item} {name}");
            line.match_indices(&key).any(|(at, _)| {
                let is_start = at == 0 || line.as_bytes()[at - 1] == b' ';
                is_start && is_end(&line[at + key.len()..])
            })
        });
        let variant = line.strip_prefix(name).map(str::trim_start);
        item_or_variant(is_item, is_variant, variant)
    })
}

/// A variant stands at the beginning of a line, alone, with fields, or with a number.
fn item_or_variant(is_item: bool, is_variant: bool, rest: Option<&str>) -> bool {
    let is_plain = |rest: &str| rest.is_empty() || rest.starts_with([',', '(', '{', '=']);
    is_item || (is_variant && rest.is_some_and(is_plain))
}

/// Every source of the tree, by its path from the root.
fn sources() -> BTreeMap<String, String> {
    let rust = tracked_files().into_iter().filter(|p| p.extension().is_some_and(|e| e == "rs"));
    rust.map(|p| (p.display().to_string(), read(&p))).collect()
}

/// What is wrong with a symbol that is said to be in a file: `name`, or `Type::name`.
fn symbol_complaint(sources: &BTreeMap<String, String>, file: &str, symbol: &str) -> Option<String> {
    let Some(source) = sources.get(file) else { return Some(format!("{file} does not exist")) };
    let (owner, name) = match symbol.rsplit_once("::") {
        Some((owner, name)) => (Some(owner), name),
        None => (None, symbol),
    };
    let knows_owner = owner.is_none_or(|owner| words(source).any(|word| word == owner));
    (!knows_owner || !defines(source, name)).then(|| format!("{file} does not define {symbol}"))
}

/// The path from the root of a file that a document names: as it stands, or below `crates/`.
fn resolve(path: &str) -> Option<String> {
    [path.to_owned(), format!("crates/{path}")].into_iter().find(|p| root().join(p).exists())
}

#[test]
fn what_the_protocol_names_exists() {
    let (sources, page) = (sources(), read(PROTOCOL));
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for paragraph in paragraphs(&page).filter(|p| p.starts_with("**Code:**")) {
        // `file.rs` (`name`, `Other`), `next.rs` (...): each file, then the names in it.
        let mut file = String::new();
        for token in quoted(&paragraph) {
            checked += 1;
            if token.ends_with(".rs") {
                file = format!("crates/{token}");
                if !sources.contains_key(&file) {
                    wrong.push(format!("{file} does not exist"));
                }
            } else {
                wrong.extend(symbol_complaint(&sources, &file, token));
            }
        }
    }
    assert!(checked > 100, "only {checked} names are found in {PROTOCOL}");
    assert!(wrong.is_empty(), "{PROTOCOL}:\n{}", wrong.join("\n"));
}

/// What ARCHITECTURE.md quotes that is neither a file nor a symbol of this tree.
const OTHER_WORDS: &[(&str, &str)] =
    &[("redb", "a library"), ("--faults", "a flag of the simulation"), ("cargo test", "a command")];

/// Prefixes of commands that ARCHITECTURE.md quotes.
const COMMANDS: &[&str] = &["make ", "weft ", "cargo "];

/// A name that a document quotes, and the file in which it says that it is.
#[derive(Debug, PartialEq)]
struct Named {
    line: usize,
    token: String,
    file: Option<String>,
    /// In a row of the table of crates: the crates of the row.
    of_crates: Vec<String>,
}

/// Whether a quoted token is a path of the tree.
fn is_path(token: &str) -> bool {
    token.contains('/') || [".rs", ".md", ".json", ".toml"].iter().any(|end| token.ends_with(end))
}

/// What a document quotes. Names that stand in a row in front of a file in parentheses are in that file:
/// `` `begin`, `next_version` (`weft-client/src/session.rs`) ``.
fn named(page: &str) -> Vec<Named> {
    let mut all: Vec<Named> = Vec::new();
    for (at, line) in page.lines().enumerate() {
        let parts: Vec<&str> = line.split('`').collect();
        let mut row: Vec<usize> = Vec::new();
        let of_crates: Vec<&str> =
            line.split('|').nth(1).filter(|_| line.starts_with("| `weft")).map(quoted).unwrap_or_default();
        for i in (1..parts.len()).step_by(2) {
            let (before, token) = (parts[i - 1].trim(), parts[i]);
            if !matches!(before, "," | "and" | "(" | "." | "/") {
                row.clear();
            }
            if before == "(" && is_path(token) {
                for named in row.drain(..) {
                    all[named].file = Some(token.to_owned());
                }
            }
            let of_crates = of_crates.iter().map(|name| (*name).to_owned()).collect();
            row.push(all.len());
            all.push(Named { line: at + 1, token: token.to_owned(), file: None, of_crates });
        }
    }
    all
}

/// What is wrong with a name in ARCHITECTURE.md.
fn architecture_complaint(sources: &BTreeMap<String, String>, named: &Named) -> Option<String> {
    let Named { token, file, of_crates, .. } = named;
    // `Volume::write(offset, buffers)` names what stands in front of the parenthesis.
    let token = token.split('(').next().unwrap_or_default();
    let in_crate = |folder: &str| {
        let prefix = format!("crates/{folder}/");
        sources.iter().filter(move |(path, _)| path.starts_with(&prefix))
    };
    if COMMANDS.iter().any(|c| token.starts_with(c)) || OTHER_WORDS.iter().any(|(word, _)| *word == token) {
        return None;
    }
    if token.starts_with("weft-") && !is_path(token) {
        let manifest = format!("crates/{token}/Cargo.toml");
        return (!root().join(&manifest).exists()).then(|| format!("{manifest} does not exist"));
    }
    for folder in of_crates {
        // A file, a folder or a module of the crate in this row.
        let places = [format!("src/{token}"), token.to_owned(), format!("src/{token}.rs")];
        let is_there = places.iter().any(|p| root().join(format!("crates/{folder}/{p}")).exists());
        if is_there {
            return None;
        }
    }
    if is_path(token) {
        return resolve(token).is_none().then(|| format!("{token} does not exist"));
    }
    if let Some(file) = file {
        let Some(path) = resolve(file) else { return Some(format!("{file} does not exist")) };
        return symbol_complaint(sources, &path, token);
    }
    if let Some(rest) = token.strip_prefix("weft_") {
        let (folder, name) =
            rest.split_once("::").map_or((rest, None), |(folder, name)| (folder, Some(name)));
        let folder = format!("weft-{folder}");
        let is_there = in_crate(&folder).any(|(_, source)| name.is_none_or(|name| defines(source, name)));
        return (!is_there).then(|| format!("the crate {folder} does not define {name:?}"));
    }
    if token == "weft" {
        return None;
    }
    let is_there = sources.keys().any(|path| symbol_complaint(sources, path, token).is_none());
    (!is_there).then(|| format!("nothing defines {token}"))
}

#[test]
fn what_the_architecture_names_exists() {
    let (sources, page) = (sources(), read("ARCHITECTURE.md"));
    let all = named(&page);
    let in_files = all.iter().filter(|n| n.file.is_some()).count();
    assert!(all.len() > 100 && in_files > 10, "{} names, {in_files} in files", all.len());
    let wrong: Vec<String> = all
        .iter()
        .filter_map(|n| Some(format!("ARCHITECTURE.md:{}: {}", n.line, architecture_complaint(&sources, n)?)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn citations_sections_and_switches_are_read_right() {
    assert_eq!(cited("R1 to R16, (C3). R123 AR4 x_R5 R 7"), ["C3", "R1", "R16"].map(str::to_owned).into());
    let page = "# P\n## A\nx\n### R1: one\ntext\n\n**Code:** `a.rs` (`b`).\n\n**Switches:** `s`,\n`t`.\n## L (`lease`)\ny\n## Z\nz\n";
    let found = sections(page);
    let rules: Vec<&str> = found.iter().map(|s| s.rule.as_str()).collect();
    assert_eq!(rules, ["R1", "lease"]);
    assert_eq!(listed_switches(&found[0].text), Some(["s", "t"].map(str::to_owned).into()));
    assert_eq!(listed_switches(&found[1].text), None);
    assert_eq!(found[1].text, "y\n", "a section ends where the next begins");
    let source = "    /// \"R1\", \"x\", \"y\"\n    NoLease, \"R1\", \"no-lease\", \"A target serves.\";\n";
    assert_eq!(switches(source), [("NoLease".into(), "R1".into(), "no-lease".into())]);
}

#[test]
fn definitions_are_told_from_uses() {
    let source = "pub(crate) async fn put_once(\n// fn gone()\nenum Kind {\n    Read,\n    Write = 3,\n}\nlet x = stale();\npub const LIMIT_MAX: u32 = 1;\n";
    for name in ["put_once", "Kind", "Read", "Write", "LIMIT_MAX"] {
        assert!(defines(source, name), "{name}");
    }
    for name in ["put", "gone", "stale", "x", "LIMIT", "Rea"] {
        assert!(!defines(source, name), "{name}");
    }
    let sources =
        BTreeMap::from([("crates/a/src/b.rs".to_owned(), "impl Session {\n    fn judge() {}\n".to_owned())]);
    assert_eq!(symbol_complaint(&sources, "crates/a/src/b.rs", "Session::judge"), None);
    assert!(symbol_complaint(&sources, "crates/a/src/b.rs", "Operation::judge").is_some());
    assert!(symbol_complaint(&sources, "crates/a/src/c.rs", "judge").is_some());
}

#[test]
fn names_are_found_with_their_files() {
    let page = "`A::b`, `c` (`x/src/y.rs`) and `d`: (`z.rs`, `E`)\n| `weft-rt` | `link.rs` | text |\n";
    let found: Vec<(String, Option<String>)> = named(page).into_iter().map(|n| (n.token, n.file)).collect();
    let in_y = Some("x/src/y.rs".to_owned());
    assert_eq!(found[0], ("A::b".into(), in_y.clone()));
    assert_eq!(found[1], ("c".into(), in_y));
    assert_eq!(found[3].1, None, "a colon stands between");
    assert_eq!(named(page).last().map(|n| n.of_crates.clone()), Some(vec!["weft-rt".to_owned()]));
    for (bad, sources) in [
        (Named { line: 1, token: "nowhere.rs".into(), file: None, of_crates: vec![] }, BTreeMap::new()),
        (Named { line: 1, token: "NoSuchType".into(), file: None, of_crates: vec![] }, sources()),
        (Named { line: 1, token: "weft-nothing".into(), file: None, of_crates: vec![] }, BTreeMap::new()),
        (Named { line: 1, token: "weft_rt::no_such".into(), file: None, of_crates: vec![] }, sources()),
    ] {
        assert!(architecture_complaint(&sources, &bad).is_some(), "{bad:?}");
    }
}
