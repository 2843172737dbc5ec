//! Collecting what the plan lists. Nothing here fails as a whole: what cannot be had is noted, and the next is tried.

use super::archive::Archive;
use super::plan::{Facts, Item, Plan, Source};
use super::scrape::scrape;
use crate::Engines;
use crate::connection::Connection;
use crate::error::CliError;
use crate::locate::FabricPlace;
use crate::progress::Count;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;
use weft_api::ApiRequest;
use weft_rt::sync::join_all;
use weft_rt::{Addr, timeout};

/// How long one question to the manager may take: many times what a busy one needs.
const MANAGER_PATIENCE: Duration = Duration::from_secs(15);

/// Bytes of a file of the kernel; the largest, of machines with hundreds of processors, have some hundred KiB.
const FILE_MAX: u64 = 1 << 20;

/// Settings of the kernel, under /proc/sys: what io_uring, memory, files and TCP are allowed.
const SETTINGS: [&str; 20] = [
    "kernel/osrelease",
    "kernel/io_uring_disabled",
    "kernel/io_uring_group",
    "kernel/pid_max",
    "kernel/threads-max",
    "kernel/random/boot_id",
    "kernel/tainted",
    "vm/swappiness",
    "vm/overcommit_memory",
    "vm/dirty_ratio",
    "vm/dirty_background_ratio",
    "vm/max_map_count",
    "fs/file-max",
    "fs/nr_open",
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/core/somaxconn",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/ipv4/tcp_congestion_control",
];

/// What is read of each block device, under /sys/block/NAME.
const BLOCK_DEVICE: [&str; 10] = [
    "size",
    "removable",
    "ro",
    "device/model",
    "device/state",
    "queue/rotational",
    "queue/logical_block_size",
    "queue/physical_block_size",
    "queue/scheduler",
    "queue/write_cache",
];

/// What is read of each network interface, under /sys/class/net/NAME.
const INTERFACE: [&str; 5] = ["operstate", "mtu", "speed", "duplex", "carrier_changes"];

/// Collects, with a place where the manager may be and engines that can read drives.
pub(super) struct Collector<'a> {
    place: &'a FabricPlace,
    engines: &'a dyn Engines,
    log_bytes: u64,
    /// Why the manager is not asked again: one that does not answer would be waited for with each question.
    no_manager: Option<String>,
    /// The pages of metrics, by address: all members are asked at once, because each dead one has to be waited for.
    pages: BTreeMap<String, Result<Vec<u8>, String>>,
}

impl<'a> Collector<'a> {
    pub(super) fn new(place: &'a FabricPlace, engines: &'a dyn Engines, log_bytes: u64) -> Collector<'a> {
        Collector { place, engines, log_bytes, no_manager: None, pages: BTreeMap::new() }
    }

    /// Collects everything, in the plan's order.
    pub(super) fn collect(mut self, plan: Plan, archive: &mut Archive) {
        let progress = Count::new("collecting", plan.items.len() as u64);
        progress.set(0, "metrics of all members");
        self.pages = fetch_all(&plan.items);
        for (i, item) in plan.items.iter().enumerate() {
            progress.set(i as u64, &item.name);
            let from = item.source.to_string();
            match self.take(item, archive.left()) {
                Ok((bytes, 0)) => archive.add(&item.name, &from, &bytes),
                Ok((bytes, cut)) => archive.add_tail(&item.name, &from, &bytes, cut),
                Err(why) => archive.miss(&item.name, &from, &why),
            }
        }
    }

    /// What an item holds, and how much was left out at its beginning.
    fn take(&mut self, item: &Item, left: u64) -> Result<(Vec<u8>, u64), String> {
        match &item.source {
            Source::Facts(facts) => Ok((document(&gather(*facts)), 0)),
            Source::File(path) => read(path).map(|bytes| (bytes, 0)),
            Source::Manager(request) => self.ask(request).map(|answer| (document(&answer), 0)),
            Source::Metrics(addr) => {
                let page = self.pages.remove(&addr.to_string());
                page.unwrap_or_else(|| Err("its address is named twice".into())).map(|page| (page, 0))
            }
            Source::Drive(path) => {
                let facts = self.engines.drive_facts(path).map_err(|error| error.chain())?;
                Ok((document(&facts), 0))
            }
            Source::Log(path) => tail(path, self.log_bytes.min(left)).map_err(|e| e.to_string()),
            Source::Nowhere(why) => Err(why.clone()),
        }
    }

    fn ask(&mut self, request: &ApiRequest) -> Result<Value, String> {
        if let Some(why) = &self.no_manager {
            return Err(why.clone());
        }
        let (place, request) = (self.place.clone(), request.clone());
        let asked = weft_rt::block_on(async move {
            let ask = async {
                let connection = Connection::open(&place).await.map_err(|e| (true, e))?;
                connection.ask(&request).await.map_err(|e| (false, e))
            };
            timeout(MANAGER_PATIENCE, ask).await
        });
        let (is_silent, why) = match asked {
            Ok(Ok(Ok(answer))) => return serde_json::to_value(&answer).map_err(|e| e.to_string()),
            Ok(Ok(Err((is_silent, error)))) => (is_silent, error.chain()),
            Ok(Err(_)) => (true, format!("no answer within {} s", MANAGER_PATIENCE.as_secs())),
            Err(error) => (true, CliError::from(error).chain()),
        };
        if is_silent {
            self.no_manager = Some(why.clone());
        }
        Err(why)
    }
}

/// The pages of all members, by address.
fn fetch_all(items: &[Item]) -> BTreeMap<String, Result<Vec<u8>, String>> {
    let addr = |item: &Item| match &item.source {
        Source::Metrics(addr) => Some(addr.clone()),
        _ => None,
    };
    let addrs: Vec<Addr> = items.iter().filter_map(addr).collect();
    let names: Vec<String> = addrs.iter().map(Addr::to_string).collect();
    let asked = weft_rt::block_on(async move { join_all(addrs.iter().map(scrape)).await });
    let pages = asked.unwrap_or_else(|error| {
        let why = CliError::from(error).chain();
        names.iter().map(|_| Err(why.clone())).collect()
    });
    names.into_iter().zip(pages).collect()
}

fn document(value: &Value) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(value).expect("a value serialises");
    bytes.push(b'\n');
    bytes
}

/// A small file as it is.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|e| e.to_string())?;
    file.take(FILE_MAX).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    Ok(bytes)
}

/// The end of a file, from the beginning of a line on, and how much was left out before.
fn tail(path: &Path, bytes_max: u64) -> io::Result<(Vec<u8>, u64)> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut skipped = length.saturating_sub(bytes_max);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    if skipped > 0 {
        let begins = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        bytes.drain(..begins);
        skipped += begins as u64;
    }
    Ok((bytes, skipped))
}

fn gather(facts: Facts) -> Value {
    match facts {
        Facts::Program => program(),
        Facts::Settings => {
            SETTINGS.iter().map(|name| ((*name).to_owned(), word(Path::new("/proc/sys"), name))).collect()
        }
        Facts::BlockDevices => entries(Path::new("/sys/block"), &BLOCK_DEVICE),
        Facts::Interfaces => entries(Path::new("/sys/class/net"), &INTERFACE),
    }
}

fn program() -> Value {
    let io_uring = match weft_rt::block_on(async {}) {
        Ok(()) => json!({ "available": true }),
        Err(error) => json!({ "available": false, "why": CliError::from(error).chain() }),
    };
    json!({
        "weft": env!("CARGO_PKG_VERSION"),
        "architecture": std::env::consts::ARCH,
        "processors": std::thread::available_parallelism().map_or(0, |n| n.get()),
        "kernel_oldest": weft_rt::KERNEL_OLDEST,
        "io_uring": io_uring,
    })
}

/// What is written about each thing that has a folder in `dir`.
fn entries(dir: &Path, names: &[&str]) -> Value {
    let mut all = Map::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let facts: Map<String, Value> =
            names.iter().map(|name| ((*name).to_owned(), word(&entry.path(), name))).collect();
        all.insert(entry.file_name().to_string_lossy().into_owned(), facts.into());
    }
    all.into()
}

/// The text of a small file, or nothing where there is none.
fn word(dir: &Path, name: &str) -> Value {
    let bytes = read(&dir.join(name)).ok();
    bytes.map_or(Value::Null, |bytes| String::from_utf8_lossy(&bytes).trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_begins_with_a_whole_line() {
        let path = std::env::temp_dir().join(format!("weft-bundle-tail-{}", std::process::id()));
        fs::write(&path, "one\ntwo\nthree\n").expect("written");
        assert_eq!(tail(&path, 100).expect("read"), (b"one\ntwo\nthree\n".to_vec(), 0));
        assert_eq!(tail(&path, 9).expect("read"), (b"three\n".to_vec(), 8));
        assert_eq!(tail(&path, 3).expect("read"), (b"".to_vec(), 14));
        fs::remove_file(&path).expect("removed");
    }
}
