//! Imports point down, and nowhere else: the layers of ARCHITECTURE.md, checked on `cargo metadata`.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Command;

/// A layer of the architecture, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Words,
    Pure,
    Runtime,
    Engine,
    Face,
    Whole,
}

use Layer::{Engine, Face, Pure, Runtime, Whole, Words};

/// Every crate has its layer here; one that is missing fails the test.
const LAYERS: &[(&str, Layer)] = &[
    ("weft-types", Words),
    ("weft-wire", Words),
    ("weft-api", Words),
    ("weft-rules", Words),
    ("weft-layout", Pure),
    ("weft-membership", Pure),
    ("weft-report", Pure),
    ("weft-checker", Pure),
    ("weft-rt", Runtime),
    ("weft-rpc", Runtime),
    ("weft-store", Engine),
    ("weft-target", Engine),
    ("weft-client", Engine),
    ("weft-manager", Engine),
    ("weft-meta", Engine),
    ("weft-fs", Engine),
    ("weft-nbd", Face),
    ("weft-fuse", Face),
    ("weft-cli", Face),
    ("weft-bench", Face),
    ("weft-metrics", Face),
    ("weft", Whole),
    ("weft-sim", Whole),
    ("weft-torture", Whole),
    ("weft-fuzz", Whole),
    ("weft-tests", Whole),
];

/// Layers that each layer may import; the whole layer may import anything.
const ALLOWED: &[(Layer, &[Layer])] = &[
    (Words, &[Words]),
    (Pure, &[Words]),
    (Runtime, &[Words]),
    (Engine, &[Words, Pure, Runtime]),
    (Face, &[Words, Runtime]),
    (Whole, &[Words, Pure, Runtime, Engine, Face, Whole]),
];

/// Layers that tests may import on top of those: they set scenes with words, pure rules and the simulation.
const ALLOWED_IN_TESTS: &[Layer] = &[Words, Pure, Runtime];

/// Arrows from one crate to another that are allowed beside the layers (decision 1). Membership asks layout
/// where a group goes; a target owns its stores, and nothing else does. A metadata
/// shard is kept on a volume, and served beside a target, by the map that this follows. A client of a file
/// system has the objects of files from the client of the fabric. Faces reach data through the client
/// alone: this opens the one engine to them, by name. The load generator shows its results on a page, the
/// command line what was recorded; a page is pure.
const ARROWS: &[(&str, &str)] = &[
    ("weft-rpc", "weft-rt"),
    ("weft-membership", "weft-layout"),
    ("weft-target", "weft-store"),
    ("weft-meta", "weft-client"),
    ("weft-meta", "weft-target"),
    ("weft-fs", "weft-client"),
    ("weft-nbd", "weft-client"),
    ("weft-cli", "weft-client"),
    ("weft-cli", "weft-fs"),
    ("weft-cli", "weft-report"),
    ("weft-bench", "weft-client"),
    ("weft-bench", "weft-report"),
];

/// One crate's wish for another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Arrow {
    from: String,
    to: String,
    /// Only its tests, examples and benchmarks use it.
    is_dev: bool,
}

fn layer(name: &str) -> Option<Layer> {
    LAYERS.iter().find(|(n, _)| *n == name).map(|(_, layer)| *layer)
}

/// What is wrong with an arrow, if anything is.
fn complaint(arrow: &Arrow) -> Option<String> {
    let Arrow { from, to, is_dev } = arrow;
    let (Some(above), Some(below)) = (layer(from), layer(to)) else {
        return Some(format!(
            "{from} -> {to}: a crate without a layer; add it to the table and ARCHITECTURE.md"
        ));
    };
    let lower = ALLOWED.iter().find(|(layer, _)| *layer == above).map_or(&[][..], |(_, lower)| *lower);
    let fine = lower.contains(&below)
        || (*is_dev && ALLOWED_IN_TESTS.contains(&below))
        || ARROWS.contains(&(from.as_str(), to.as_str()));
    (!fine).then(|| format!("{from} ({above:?}) must not import {to} ({below:?})"))
}

/// Names of the workspace's crates in `cargo metadata`.
fn crates(metadata: &Value) -> BTreeSet<&str> {
    let packages = metadata["packages"].as_array().expect("cargo metadata lists packages");
    packages.iter().map(|p| p["name"].as_str().expect("a package has a name")).collect()
}

/// Every arrow between two crates of the workspace. What only a build script uses counts like any other.
fn arrows(metadata: &Value) -> Vec<Arrow> {
    let names = crates(metadata);
    let mut arrows = Vec::new();
    for package in metadata["packages"].as_array().expect("cargo metadata lists packages") {
        let from = package["name"].as_str().expect("a package has a name");
        for dependency in package["dependencies"].as_array().expect("a package lists its dependencies") {
            let to = dependency["name"].as_str().expect("a dependency has a name");
            if names.contains(to) {
                let is_dev = dependency["kind"] == "dev";
                arrows.push(Arrow { from: from.to_owned(), to: to.to_owned(), is_dev });
            }
        }
    }
    arrows
}

/// Crates without a layer, and layers' entries without a crate.
fn strangers(metadata: &Value) -> Vec<String> {
    let crates = crates(metadata);
    let listed: BTreeSet<&str> = LAYERS.iter().map(|(name, _)| *name).collect();
    crates.symmetric_difference(&listed).map(|name| (*name).to_owned()).collect()
}

fn metadata() -> Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(weft_tests::root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

#[test]
fn imports_point_down() {
    let arrows = arrows(&metadata());
    // Fewer would mean that this test reads the metadata wrongly: each of sixteen crates imports two or more.
    assert!(arrows.len() > 30, "cargo metadata shows only {} arrows", arrows.len());
    let wrong: Vec<String> = arrows.iter().filter_map(complaint).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_crate_has_a_layer_and_every_entry_a_crate() {
    assert_eq!(strangers(&metadata()), Vec::<String>::new());
}

/// Who turns on the switches that break rules (`weft-rules/src/switch.rs`).
fn breakers(metadata: &Value) -> BTreeSet<String> {
    let packages = metadata["packages"].as_array().expect("cargo metadata lists packages");
    let wants = |package: &Value, dependency: &Value| {
        let features = dependency["features"].as_array().cloned().unwrap_or_default();
        let own = package["features"].as_object().cloned().unwrap_or_default();
        let passes_on = own.values().any(|to| to.to_string().contains("mutations"));
        dependency["name"] == "weft-rules" && (features.iter().any(|f| f == "mutations") || passes_on)
    };
    let breaks = |package: &&Value| {
        let dependencies = package["dependencies"].as_array();
        dependencies.is_some_and(|all| all.iter().any(|dependency| wants(package, dependency)))
    };
    packages.iter().filter(breaks).filter_map(|p| Some(p["name"].as_str()?.to_owned())).collect()
}

#[test]
fn only_the_simulation_can_break_rules() {
    assert_eq!(breakers(&metadata()), BTreeSet::from(["weft-sim".to_owned()]));
    let bad = json!({ "packages": [
        { "name": "weft", "dependencies": [{ "name": "weft-rules", "features": ["mutations"] }] },
        { "name": "weft-nbd", "features": { "x": ["weft-rules/mutations"] }, "dependencies": [{ "name": "weft-rules" }] },
    ] });
    assert_eq!(breakers(&bad).len(), 2);
}

/// Torture runs what ships: a program that links the simulation has switches.
#[test]
fn nobody_stands_on_the_simulation() {
    let found: Vec<String> =
        arrows(&metadata()).into_iter().filter(|a| a.to == "weft-sim").map(|a| a.from).collect();
    assert!(found.is_empty(), "{found:?}");
}

fn arrow(from: &str, to: &str, is_dev: bool) -> Arrow {
    Arrow { from: from.into(), to: to.into(), is_dev }
}

#[test]
fn an_arrow_up_or_sideways_is_refused() {
    for (from, to) in [
        ("weft-types", "weft-rt"),
        ("weft-wire", "weft-layout"),
        ("weft-layout", "weft-rt"),
        ("weft-layout", "weft-membership"),
        ("weft-rt", "weft-store"),
        ("weft-rt", "weft-rpc"),
        ("weft-rt", "weft-layout"),
        ("weft-store", "weft-target"),
        ("weft-client", "weft-store"),
        ("weft-manager", "weft-store"),
        ("weft-manager", "weft-client"),
        ("weft-nbd", "weft-target"),
        ("weft-nbd", "weft-layout"),
        ("weft-cli", "weft-manager"),
        ("weft-bench", "weft-store"),
        ("weft-bench", "weft-nbd"),
        ("weft-client", "weft-sim"),
        ("weft-client", "weft-unheard-of"),
        ("weft-unheard-of", "weft-types"),
    ] {
        assert!(complaint(&arrow(from, to, false)).is_some(), "{from} -> {to}");
    }
    for (from, to) in [("weft-target", "weft-store"), ("weft-cli", "weft-client"), ("weft", "weft-manager")] {
        assert_eq!(complaint(&arrow(from, to, false)), None);
    }
}

#[test]
fn tests_may_use_words_pure_rules_and_the_runtime_and_no_more() {
    assert_eq!(complaint(&arrow("weft-wire", "weft-rt", true)), None);
    assert_eq!(complaint(&arrow("weft-nbd", "weft-layout", true)), None);
    assert!(complaint(&arrow("weft-client", "weft-target", true)).is_some());
    assert!(complaint(&arrow("weft-nbd", "weft-manager", true)).is_some());
}

#[test]
fn arrows_are_read_from_metadata_and_strangers_noticed() {
    let metadata = json!({ "packages": [
        { "name": "weft-types", "dependencies": [{ "name": "serde", "kind": null }] },
        { "name": "weft-odd", "dependencies": [
            { "name": "weft-types", "kind": null },
            { "name": "weft-types", "kind": "dev" },
            { "name": "weft-types", "kind": "build" },
        ] },
    ] });
    let is_dev: Vec<bool> = arrows(&metadata).iter().map(|a| a.is_dev).collect();
    assert_eq!(is_dev, [false, true, false]);
    let strangers = strangers(&metadata);
    assert!(strangers.contains(&"weft-odd".to_owned()), "{strangers:?}");
    assert!(strangers.contains(&"weft-rt".to_owned()), "{strangers:?}");
    assert!(!strangers.contains(&"weft-types".to_owned()), "{strangers:?}");
}
