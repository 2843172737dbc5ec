//! The archive: files, what is missing and why, and the manifest of both.
//!
//! It owns the bound on its size, blacking out, and the form: a gzip-compressed tar with one folder, the manifest first.

use super::redact::redact;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::io::{self, Write};
use weft_api::Timestamp;

/// The version of the manifest's shape.
const SCHEMA: u32 = 1;

/// Bytes kept of the budget for the manifest itself.
const MANIFEST_RESERVE: u64 = 128 << 10;

/// What the manifest says of blacking out.
const REDACTION: &str = "Only what is listed here was collected: no data of volumes and no environment variables. \
    Values of names like password, secret, token, credential or private_key, credentials in addresses, bearer tokens \
    and private keys were replaced by [redacted]; `redactions` counts them per file.";

/// What is in the bundle, and what is not.
#[derive(Serialize)]
pub(super) struct Manifest {
    schema: u32,
    created: Timestamp,
    weft: &'static str,
    max_bytes: u64,
    redaction: &'static str,
    pub(super) files: Vec<Entry>,
    pub(super) missing: Vec<Missing>,
}

/// A file of the bundle.
#[derive(Serialize)]
pub(super) struct Entry {
    name: String,
    from: String,
    bytes: u64,
    sha256: String,
    /// Bytes that were left out at its beginning.
    cut_bytes: u64,
    /// How often something was blacked out.
    pub(super) redactions: u64,
}

/// What could not be collected.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Missing {
    pub(super) name: String,
    pub(super) from: String,
    pub(super) why: String,
}

/// A bundle that is being made.
pub(super) struct Archive {
    folder: String,
    manifest: Manifest,
    contents: Vec<Vec<u8>>,
    left: u64,
}

impl Archive {
    pub(super) fn new(folder: String, created: Timestamp, max_bytes: u64) -> Archive {
        let manifest = Manifest {
            schema: SCHEMA,
            created,
            weft: env!("CARGO_PKG_VERSION"),
            max_bytes,
            redaction: REDACTION,
            files: Vec::new(),
            missing: Vec::new(),
        };
        Archive { folder, manifest, contents: Vec::new(), left: max_bytes.saturating_sub(MANIFEST_RESERVE) }
    }

    /// How many bytes still fit.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Adds a file of text. What does not fit is missing instead.
    pub(super) fn add(&mut self, name: &str, from: &str, bytes: &[u8]) {
        self.add_tail(name, from, bytes, 0);
    }

    /// Adds the end of a file, of which so many bytes are left out already; cuts more off its beginning, up to the end
    /// of a line, if it does not fit.
    pub(super) fn add_tail(&mut self, name: &str, from: &str, bytes: &[u8], mut cut: u64) {
        let (text, redactions) = redact(&String::from_utf8_lossy(bytes));
        let mut text = text.into_bytes();
        let over = (text.len() as u64).saturating_sub(self.left);
        if over > 0 {
            let line_end = text.iter().skip(over as usize).position(|byte| *byte == b'\n');
            // Only the end of a log is of use without its beginning; half a document is not.
            let is_log = name.starts_with("logs/");
            let Some(from_byte) = line_end.filter(|_| is_log).map(|n| over as usize + n + 1) else {
                return self.miss(name, from, "it does not fit: raise --max-size");
            };
            text.drain(..from_byte);
            cut += from_byte as u64;
        }
        self.left -= text.len() as u64;
        let sha256 = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        self.manifest.files.push(Entry {
            name: name.into(),
            from: from.into(),
            bytes: text.len() as u64,
            sha256,
            cut_bytes: cut,
            redactions,
        });
        self.contents.push(text);
    }

    /// Notes what could not be collected.
    pub(super) fn miss(&mut self, name: &str, from: &str, why: &str) {
        let (why, _) = redact(why);
        self.manifest.missing.push(Missing { name: name.into(), from: from.into(), why });
    }

    /// The archive as bytes.
    pub(super) fn finish(self) -> io::Result<(Vec<u8>, Manifest)> {
        let manifest = serde_json::to_vec_pretty(&self.manifest)?;
        let sums: String =
            self.manifest.files.iter().map(|file| format!("{}  {}\n", file.sha256, file.name)).collect();
        let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
        let mut put = |name: &str, bytes: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(self.manifest.created.as_millis() / 1000);
            tar.append_data(&mut header, format!("{}/{name}", self.folder), bytes)
        };
        put("manifest.json", &manifest)?;
        put("SHA256SUMS", sums.as_bytes())?;
        for (entry, bytes) in self.manifest.files.iter().zip(&self.contents) {
            put(&entry.name, bytes)?;
        }
        let mut bytes = tar.into_inner()?.finish()?;
        bytes.flush()?;
        Ok((bytes, self.manifest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Read;

    fn read(bytes: &[u8]) -> BTreeMap<String, String> {
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes));
        let entries = archive.entries().expect("a tar");
        let read = entries.map(|entry| {
            let mut entry = entry.expect("an entry");
            let name = entry.path().expect("a path").display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("text");
            (name, text)
        });
        read.collect()
    }

    #[test]
    fn the_manifest_names_what_is_there_and_what_is_not() {
        let mut archive = Archive::new("b".into(), Timestamp::from_millis(0), 1 << 20);
        archive.add("a.json", "the manager", b"{\"token\": \"xyz\"}");
        archive.miss("c.json", "the manager", "no answer of http://me:pw@x");
        let (bytes, _) = archive.finish().expect("made");
        let files = read(&bytes);
        assert_eq!(files["b/a.json"], "{\"token\": \"[redacted]\"}");
        let manifest: serde_json::Value = serde_json::from_str(&files["b/manifest.json"]).expect("JSON");
        let entry = &manifest["files"][0];
        assert_eq!((entry["bytes"].as_u64(), entry["redactions"].as_u64()), (Some(23), Some(1)));
        assert_eq!(files["b/SHA256SUMS"], format!("{}  a.json\n", entry["sha256"].as_str().expect("a sum")));
        assert_eq!(manifest["missing"][0]["why"], "no answer of http://[redacted]@x");
        assert!(!files.values().any(|text| text.contains("xyz") || text.contains("pw")));
    }

    #[test]
    fn what_does_not_fit_is_cut_if_it_is_a_log_and_missing_otherwise() {
        let mut archive = Archive::new("b".into(), Timestamp::from_millis(0), MANIFEST_RESERVE + 100);
        archive.add("big.json", "x", &[b'x'; 101]);
        let log: String = (0..50).map(|i| format!("line {i:04}\n")).collect();
        archive.add_tail("logs/a.log", "y", log.as_bytes(), 7);
        assert_eq!(archive.left(), 10, "the line that was cut in two is left out");
        let (bytes, manifest) = archive.finish().expect("made");
        assert_eq!(manifest.missing[0].name, "big.json");
        assert_eq!(manifest.files[0].cut_bytes, 7 + 410);
        assert!(read(&bytes)["b/logs/a.log"].starts_with("line 0041\n"));
    }
}
