//! Imports point down, and nowhere else: the layers of ARCHITECTURE.md, checked on `cargo metadata`.

use serde_json::Value;
use std::collections::BTreeMap;
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
    ("weft-layout", Pure),
    ("weft-membership", Pure),
    ("weft-rt", Runtime),
    ("weft-store", Engine),
    ("weft-target", Engine),
    ("weft-client", Engine),
    ("weft-manager", Engine),
    ("weft-nbd", Face),
    ("weft-cli", Face),
    ("weft-bench", Face),
    ("weft", Whole),
    ("weft-sim", Whole),
    ("weft-tests", Whole),
];

/// Membership places groups, so one pure crate uses another; engines stand side by side, except that a target
/// owns its stores; faces use the client and nothing beside or below it but words and the runtime.
const EXCEPTIONS: &[(&str, &str)] =
    &[("weft-membership", "weft-layout"), ("weft-target", "weft-store")];

fn layer(name: &str) -> Option<Layer> {
    LAYERS.iter().find(|(n, _)| *n == name).map(|(_, layer)| *layer)
}

fn allowed(from: &str, to: &str) -> Result<(), String> {
    let (Some(above), Some(below)) = (layer(from), layer(to)) else {
        return Err(format!("{from} -> {to}: a crate without a layer; add it to the table and ARCHITECTURE.md"));
    };
    let fine = match above {
        Words | Pure | Runtime => below == Words,
        Engine => matches!(below, Words | Pure | Runtime),
        Face => matches!(below, Words | Runtime) || to == "weft-client",
        Whole => true,
    };
    if fine || EXCEPTIONS.contains(&(from, to)) {
        return Ok(());
    }
    Err(format!("{from} ({above:?}) must not import {to} ({below:?})"))
}

/// Every arrow between crates of the workspace, tests' own dependencies included.
fn arrows(metadata: &Value) -> Vec<(String, String)> {
    let packages = metadata["packages"].as_array().expect("cargo metadata lists packages");
    let names: Vec<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    let mut arrows = Vec::new();
    for package in packages {
        let from = package["name"].as_str().expect("a package has a name");
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = dependency["name"].as_str().expect("a dependency has a name");
            if names.contains(&to) && to != from {
                arrows.push((from.to_owned(), to.to_owned()));
            }
        }
    }
    arrows
}

fn metadata() -> Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .current_dir(weft_tests::root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

#[test]
fn imports_point_down() {
    let arrows = arrows(&metadata());
    assert!(arrows.len() > 30, "cargo metadata shows only {} arrows", arrows.len());
    let wrong: Vec<String> = arrows.iter().filter_map(|(from, to)| allowed(from, to).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_crate_has_a_layer_and_every_layer_entry_a_crate() {
    let metadata = metadata();
    let mut known: BTreeMap<&str, bool> = LAYERS.iter().map(|(name, _)| (*name, false)).collect();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        let seen = known.get_mut(name).unwrap_or_else(|| panic!("{name} has no layer"));
        *seen = true;
    }
    let gone: Vec<_> = known.iter().filter(|(_, seen)| !**seen).collect();
    assert!(gone.is_empty(), "entries without a crate: {gone:?}");
}

#[test]
fn arrows_that_point_up_or_sideways_are_refused() {
    for (from, to) in [
        ("weft-types", "weft-wire-nonexistent"),
        ("weft-rt", "weft-store"),
        ("weft-client", "weft-store"),
        ("weft-store", "weft-target"),
        ("weft-nbd", "weft-target"),
        ("weft-cli", "weft-manager"),
        ("weft-layout", "weft-rt"),
        ("weft-manager", "weft-client"),
    ] {
        assert!(allowed(from, to).is_err(), "{from} -> {to}");
    }
    assert!(allowed("weft-target", "weft-store").is_ok());
}
