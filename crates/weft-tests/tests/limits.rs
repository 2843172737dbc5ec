//! Limits are in one file: a constant `…_MAX` that bounds a queue or a message is in
//! `crates/weft-types/src/limits.rs`.
//!
//! The rule that a machine can check: in the crates that daemons are made of, every `…_MAX` that counts
//! something (its type is an integer) is there, or in the list below with what it bounds instead. Durations
//! and shares bound neither a queue nor a message. No other crate, tools and tests included, has a constant
//! of the same name as a limit.

use std::collections::BTreeSet;
use std::fs;
use weft_tests::{root, tracked_files};

const LIMITS: &str = "crates/weft-types/src/limits.rs";

/// The crates that daemons are made of. Programs that a person runs (`cli`, `bench`), pages (`report`) and
/// what only tests have limits of their own.
const CRATES: &[&str] = &[
    "weft-types",
    "weft-wire",
    "weft-api",
    "weft-layout",
    "weft-membership",
    "weft-rules",
    "weft-rt",
    "weft-rpc",
    "weft-store",
    "weft-target",
    "weft-client",
    "weft-manager",
    "weft-nbd",
    "weft-fuse",
    "weft-metrics",
];

/// What a constant bounds that is no queue and no message.
#[derive(Clone, Copy, Debug)]
enum Bounds {
    /// A number that the kernel or a standard gives.
    Given,
    /// Made of a limit or of a size beside it, so it cannot be chosen.
    Derived,
    /// A size of what is on a drive: it belongs beside the format.
    Format,
    /// How much is tried, or done at once, before something else has its turn.
    Effort,
    /// What a simulation or a fuzzer stands in for.
    Simulated,
}

/// The others, by file.
#[rustfmt::skip]
const OTHERS: &[(&str, &str, Bounds)] = &[
    ("weft-types/src/version.rs", "COUNTER_MAX", Bounds::Derived), // 48 bits
    ("weft-types/src/object.rs", "VOLUME_MAX", Bounds::Derived), // 63 bits
    ("weft-types/src/object.rs", "FILE_SYSTEM_MAX", Bounds::Derived), // 31 bits
    ("weft-wire/src/data.rs", "NOTES_MAX", Bounds::Derived), // notes that fit a head
    ("weft-membership/src/volume.rs", "VOLUME_BLOCKS_MAX", Bounds::Given), // loff_t
    ("weft-membership/src/node.rs", "HOST_BYTES_MAX", Bounds::Given), // DNS
    ("weft-membership/src/scrub.rs", "AHEAD_MS_MAX", Bounds::Effort), // a time
    ("weft-manager/src/fold.rs", "CHUNK_BYTES_JOINED_MAX", Bounds::Format),
    ("weft-manager/src/records.rs", "CHUNK_BYTES_MAX", Bounds::Format), // of the manager's store
    ("weft-rt/src/byte_reader.rs", "FILL_MAX", Bounds::Derived),
    ("weft-rpc/src/request_log.rs", "LINES_MAX", Bounds::Effort), // lines of a log in a period
    ("weft-rpc/src/shm/arena.rs", "KEPT_MAX", Bounds::Derived), // a part of the pages
    ("weft-rpc/src/shm/arena.rs", "LENT_MAX", Bounds::Derived), // a part of the pages
    ("weft-rpc/src/shm/mod.rs", "WAKEUPS_READ_MAX", Bounds::Effort),
    ("weft-rpc/src/shm/region.rs", "PIECE_MAX", Bounds::Derived), // the largest request
    ("weft-rt/src/sim/net.rs", "IN_FLIGHT_MAX", Bounds::Simulated), // what a socket takes
    ("weft-rt/src/uring/file.rs", "OPERATION_BYTES_MAX", Bounds::Given),
    ("weft-rt/src/uring/gather.rs", "IOV_MAX", Bounds::Given),
    ("weft-rt/src/uring/spin.rs", "SCORE_MAX", Bounds::Effort),
    ("weft-rt/src/uring/spin.rs", "PENALTY_MAX", Bounds::Effort),
    ("weft-rt/src/uring/spin.rs", "DISTURBANCES_MAX", Bounds::Effort),
    ("weft-store/src/bitmap.rs", "RUNS_TRIED_MAX", Bounds::Effort),
    ("weft-store/src/checkpoint.rs", "BITMAP_WRITES_MAX", Bounds::Effort),
    ("weft-store/src/commit.rs", "GATHER_BYTES_MAX", Bounds::Effort),
    ("weft-store/src/commit.rs", "POLLED_TOGETHER_MAX", Bounds::Effort),
    ("weft-store/src/engine.rs", "ROOM_ATTEMPTS_MAX", Bounds::Effort),
    ("weft-store/src/fuzzing.rs", "PAGES_MAX", Bounds::Simulated),
    ("weft-store/src/leaf.rs", "LEAF_BYTES_MAX", Bounds::Format),
    ("weft-store/src/leaf.rs", "RUNS_MAX", Bounds::Format),
    ("weft-store/src/locate.rs", "LOOKS_MAX", Bounds::Effort),
    ("weft-store/src/log.rs", "LOG_BATCH_MAX", Bounds::Format),
    ("weft-store/src/open_set.rs", "ENTRY_BYTES_MAX", Bounds::Format),
    ("weft-store/src/page.rs", "RUN_PAGES_MAX", Bounds::Effort),
    ("weft-store/src/page.rs", "WRITES_MAX", Bounds::Effort),
    ("weft-store/src/record.rs", "RECORD_BYTES_MAX", Bounds::Format),
    ("weft-store/src/recover.rs", "BITMAP_READS_MAX", Bounds::Effort),
    ("weft-store/src/region.rs", "LOG_BYTES_MAX", Bounds::Format),
    ("weft-store/src/region.rs", "MAP_SLOT_BYTES_MAX", Bounds::Format),
    ("weft-store/src/state.rs", "REPAIR_BLOCKS_MAX", Bounds::Format), // room kept on a drive
    ("weft-store/src/tree.rs", "LEVEL_MAX", Bounds::Format),
    ("weft-target/src/scrub.rs", "LOOKS_MAX", Bounds::Effort),
    ("weft-manager/src/floor.rs", "ROUNDS_SAT_OUT_MAX", Bounds::Effort), // a time, in rounds
    ("weft-manager/src/observe.rs", "WORD_LEASES_MAX", Bounds::Effort), // a time, in leases
    ("weft-client/src/version_clock.rs", "COUNTER_SANE_MAX", Bounds::Derived),
    ("weft-client/src/version_clock.rs", "AHEAD_OF_MANAGER_MAX", Bounds::Derived),
    ("weft-nbd/src/transmit.rs", "BLOCK_STATUS_WALK_MAX", Bounds::Effort), // how long one request takes
];

/// A constant: its name and its type.
type Constant = (String, String);

/// The constants `…_MAX` that a source defines.
fn constants(source: &str) -> Vec<Constant> {
    let lines = source.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
    let found = lines.filter_map(|line| {
        let (before, rest) = line.split_once("const ")?;
        let (name, rest) = rest.split_once(':')?;
        let kind = rest.split('=').next()?.trim();
        let is_constant = before.is_empty() || before.starts_with("pub");
        let is_name = name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        (is_constant && is_name && name.ends_with("_MAX")).then(|| (name.to_owned(), kind.to_owned()))
    });
    found.collect()
}

/// Whether a type counts something.
fn counts(kind: &str) -> bool {
    let bits = kind.strip_prefix(['u', 'i']).unwrap_or_default();
    matches!(bits, "8" | "16" | "32" | "64" | "128" | "size")
}

/// What is wrong with the constants of a file; takes what it finds out of the list of others.
fn complaints(
    path: &str,
    source: &str,
    limits: &BTreeSet<String>,
    others: &mut BTreeSet<(String, String)>,
) -> Vec<String> {
    let is_of_daemons = CRATES.iter().any(|name| path.starts_with(&format!("crates/{name}/src/")));
    let mut found = Vec::new();
    for (name, kind) in constants(source) {
        if limits.contains(&name) {
            found.push(format!("{path}: {name} has the name of a limit: use that one, or another name"));
        } else if is_of_daemons
            && counts(&kind)
            && !others.remove(&(path.trim_start_matches("crates/").to_owned(), name.clone()))
        {
            found.push(format!(
                "{path}: {name} belongs into {LIMITS} if it bounds a queue or a message; if not, say in {} what",
                file!()
            ));
        }
    }
    found
}

#[test]
fn what_bounds_a_queue_or_a_message_is_in_one_file() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("sources are UTF-8");
    let limits: BTreeSet<String> = constants(&read(LIMITS)).into_iter().map(|(name, _)| name).collect();
    assert!(limits.len() > 40, "only {} limits", limits.len());
    let mut others: BTreeSet<(String, String)> =
        OTHERS.iter().map(|(path, name, _)| ((*path).to_owned(), (*name).to_owned())).collect();
    assert_eq!(others.len(), OTHERS.len(), "one is listed twice");
    let mut found = Vec::new();
    for path in tracked_files().iter().map(|p| p.display().to_string()) {
        if path.ends_with(".rs") && path != LIMITS {
            found.extend(complaints(&path, &read(&path), &limits, &mut others));
        }
    }
    found
        .extend(others.iter().map(|(path, name)| format!("crates/{path} has no {name} any more: unlist it")));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn strays_are_noticed() {
    let limits = BTreeSet::from(["REQUESTS_MAX".to_owned()]);
    let listed = || BTreeSet::from([("weft-rt/src/a.rs".to_owned(), "TRIES_MAX".to_owned())]);
    let check = |path, source| complaints(path, source, &limits, &mut listed()).len();
    for (path, source) in [
        ("crates/weft-rt/src/a.rs", "const QUEUE_MAX: usize = 3;"),
        ("crates/weft-rt/src/b.rs", "    pub(crate) const TRIES_MAX: u32 = 3;"),
        ("crates/weft-sim/src/a.rs", "const REQUESTS_MAX: u64 = 3;"),
        ("crates/weft-nbd/src/a.rs", "const REQUESTS_MAX: Duration = x;"),
    ] {
        assert_eq!(check(path, source), 1, "{path}: {source}");
    }
    for (path, source) in [
        ("crates/weft-rt/src/a.rs", "const TRIES_MAX: u32 = 3;"),
        ("crates/weft-rt/src/a.rs", "const WAIT_MAX: Duration = x;"),
        ("crates/weft-rt/src/a.rs", "// const QUEUE_MAX: usize = 3;"),
        ("crates/weft-rt/src/a.rs", "let x = QUEUE_MAX; const fn f() {}"),
        ("crates/weft-sim/src/a.rs", "const TASKS_MAX: usize = 3;"),
    ] {
        assert_eq!(check(path, source), 0, "{path}: {source}");
    }
}
