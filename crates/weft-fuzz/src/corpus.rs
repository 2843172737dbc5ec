//! The corpus: for each target a folder of inputs that reach something, most of them found by coverage, and of inputs
//! that once broke it, named for what they broke.

use crate::Target;
use std::fs;
use std::path::PathBuf;

/// Where the inputs of all targets are, a folder for each.
pub fn corpus_folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

/// The inputs of a target: its seeds, then its files by name.
///
/// # Panics
/// If a file cannot be read.
pub fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let seeds = (target.seeds)().into_iter().enumerate();
    let mut inputs: Vec<(String, Vec<u8>)> = seeds.map(|(i, seed)| (format!("seed {i}"), seed)).collect();
    let mut files = Vec::new();
    // A target without files has no folder.
    for entry in fs::read_dir(corpus_folder().join(target.name)).into_iter().flatten() {
        let path = entry.expect("the corpus can be listed").path();
        let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        files.push((name, fs::read(&path).expect("the corpus can be read")));
    }
    files.sort();
    inputs.extend(files);
    inputs
}
