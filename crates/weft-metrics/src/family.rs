//! The metrics: every name, with what it means. It owns the list, of which the reference is printed.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// What a metric is measured in; it is a part of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    Bytes,
    Seconds,
    /// Things that are counted.
    Number,
}

impl Measure {
    pub(crate) fn unit(self) -> Option<Unit> {
        match self {
            Measure::Bytes => Some(Unit::Bytes),
            Measure::Seconds => Some(Unit::Seconds),
            Measure::Number => None,
        }
    }
}

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It only rises while the process lives.
    Counter,
    /// A level.
    Gauge,
    /// Times, by buckets.
    Histogram,
}

impl Kind {
    pub(crate) fn metric_type(self) -> MetricType {
        match self {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        }
    }
}

/// A metric with all its labels.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Family {
    /// Its name without the prefix, the unit, and the suffix of its kind.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) measure: Measure,
    pub(crate) labels: &'static [&'static str],
    pub(crate) help: &'static str,
}

impl Family {
    /// The name as it is in queries; that of a histogram takes `_bucket`, `_sum` and `_count` besides.
    fn full_name(&self) -> String {
        let unit = self.measure.unit().map_or_else(String::new, |unit| format!("_{}", unit.as_str()));
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{PREFIX}_{}{unit}{total}", self.name)
    }
}

/// What all names begin with.
pub(crate) const PREFIX: &str = "weft";

const fn family(
    name: &'static str,
    kind: Kind,
    measure: Measure,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { name, kind, measure, labels, help }
}

use Kind::{Counter, Gauge, Histogram};
use Measure::{Bytes, Number, Seconds};

const DRIVE: &[&str] = &["drive"];
const VOLUME: &[&str] = &["volume"];
const POOL: &[&str] = &["pool"];

/// What nodes, managers and servers of volumes say of their process.
pub(crate) const PROCESS: &[Family] = &[
    family("build_info", Gauge, Number, &["version"], "1, with the version of the program"),
    family("process_cpu", Counter, Seconds, &[], "Processor time of the process, user and kernel"),
    family("process_resident_memory", Gauge, Bytes, &[], "Memory of the process that is resident"),
    family("network_received", Counter, Bytes, &["interface"], "Bytes that the machine received"),
    family("network_sent", Counter, Bytes, &["interface"], "Bytes that the machine sent"),
];

/// What nodes say.
pub(crate) const NODE: &[Family] = &[
    family("node_targets", Gauge, Number, &[], "targets of the node, each a thread, that say what they do"),
    family(
        "node_serving",
        Gauge,
        Number,
        &[],
        "1 while all of its targets hold a lease, or their peers' word",
    ),
    family(
        "node_manager_lease",
        Gauge,
        Number,
        &[],
        "1 while the manager's word holds; 0 while it is silent and the peers vouch, or nobody does",
    ),
    family("node_resyncs", Gauge, Number, &[], "Replicas here that are being brought up to date"),
    family("node_resync_copied", Gauge, Bytes, &[], "Bytes copied by the resyncs that run now"),
    family(
        "node_copied",
        Counter,
        Bytes,
        &[],
        "Bytes copied from other nodes: resyncs, rebuilds and moves, ended or not",
    ),
    family(
        "node_owed",
        Gauge,
        Bytes,
        &[],
        "Bytes held for requests and answers of all connections, of which clients together may have 256 MiB",
    ),
    family(
        "node_connections_waiting",
        Gauge,
        Number,
        &[],
        "Connections of clients that are not read from now, because others hold all the room",
    ),
    family(
        "node_requests_slow",
        Counter,
        Number,
        &[],
        "Requests above the log's threshold, a second by default",
    ),
    family("node_requests_failed", Counter, Number, &[], "Requests that failed, as the log tells them"),
    family("drive_capacity", Gauge, Bytes, DRIVE, "Bytes of the drive that can hold data"),
    family("drive_used", Gauge, Bytes, DRIVE, "Bytes of the drive that hold data or metadata"),
    family("drive_failed", Gauge, Number, DRIVE, "1 if the drive has failed since the node started"),
    family("drive_reads", Counter, Number, DRIVE, "Requests of clients that read data"),
    family("drive_writes", Counter, Number, DRIVE, "Requests of clients that wrote data"),
    family("drive_zeroes", Counter, Number, DRIVE, "Requests of clients that wrote zeroes or discarded"),
    family("drive_probes", Counter, Number, DRIVE, "Requests of clients for versions only"),
    family("drive_errors", Counter, Number, DRIVE, "Requests that were admitted and not carried out"),
    family("drive_read", Counter, Bytes, DRIVE, "Bytes that clients read"),
    family("drive_written", Counter, Bytes, DRIVE, "Bytes of data that clients wrote"),
    family("drive_zeroed", Counter, Bytes, DRIVE, "Bytes that clients made to read as zeroes"),
    family("drive_requests_in_flight", Gauge, Number, DRIVE, "Requests that are being carried out"),
    family("drive_data_written", Counter, Bytes, DRIVE, "Data written, for clients and for other replicas"),
    family("drive_log_written", Counter, Bytes, DRIVE, "Bytes written to the log"),
    family("drive_blocks_damaged", Counter, Number, DRIVE, "Blocks found damaged by their checksum"),
    family(
        "drive_blocks_healed",
        Counter,
        Number,
        DRIVE,
        "Damaged blocks that were healed from another copy",
    ),
    family("drive_read_latency", Histogram, Seconds, DRIVE, "From a read's arrival to its answer"),
    family(
        "drive_write_latency",
        Histogram,
        Seconds,
        DRIVE,
        "From a write's arrival to its answer, zeroes too",
    ),
    family("volume_reads", Counter, Number, VOLUME, "Reads of the volume served by this node"),
    family("volume_writes", Counter, Number, VOLUME, "Writes to the volume: over all nodes each counts once"),
    family("volume_zeroes", Counter, Number, VOLUME, "Zeroes and discards: over all nodes each counts once"),
    family("volume_errors", Counter, Number, VOLUME, "Requests that were admitted and not carried out"),
    family("volume_read", Counter, Bytes, VOLUME, "Bytes of the volume read from this node"),
    family("volume_written", Counter, Bytes, VOLUME, "Bytes written: over all nodes each counts once"),
    family("volume_zeroed", Counter, Bytes, VOLUME, "Bytes zeroed: over all nodes each counts once"),
    family("volume_read_latency", Histogram, Seconds, VOLUME, "From a read's arrival to its answer"),
    family(
        "volume_write_latency",
        Histogram,
        Seconds,
        VOLUME,
        "From a write's arrival to its answer, at every copy",
    ),
];

/// What managers say.
pub(crate) const MANAGER: &[Family] = &[
    family("fabric_health", Gauge, Number, &[], "0 healthy, 1 degraded, 2 unavailable in part"),
    family("fabric_map_version", Gauge, Number, &[], "The version of the fabric map"),
    family("fabric_groups", Gauge, Number, &[], "Groups of drives"),
    family("fabric_volumes", Gauge, Number, &[], "Volumes"),
    family("fabric_sessions", Gauge, Number, &[], "Sessions that are open"),
    family("group_degraded", Gauge, Number, &[], "Groups with a copy that is missing, behind or silent"),
    family("group_unavailable", Gauge, Number, &[], "Groups without an up-to-date copy that answers"),
    family(
        "group_copies_missing",
        Gauge,
        Number,
        &["repair"],
        "Copies that are missing or behind: resync, awaiting-return, no-spare-drive, awaiting-last-copy, evicting",
    ),
    family("resync_chunks", Gauge, Number, &[], "Chunks to compare in the resyncs that run, as far as known"),
    family(
        "resync_chunks_verified",
        Gauge,
        Number,
        &[],
        "Chunks of these that are compared, and copied if need be",
    ),
    family(
        "fabric_drives",
        Gauge,
        Number,
        &["state"],
        "Drives by their state: active, draining, failed, destroyed",
    ),
    family("fabric_events", Counter, Number, &["what"], "Events by their kind, as `weft events` shows them"),
    family("volume_size", Gauge, Bytes, VOLUME, "Size of the volume"),
    family("node_up", Gauge, Number, &["node"], "1 while the node holds a lease and answers"),
    family(
        "fabric_troubles",
        Gauge,
        Number,
        &["kind", "severity"],
        "Troubles as in `weft status`; absent where there are none of a kind",
    ),
    family(
        "pool_level",
        Gauge,
        Number,
        POOL,
        "0 normal, 1 warning, 2 critical, 3 full: by its fullest drive",
    ),
    family("pool_fullest_used", Gauge, Bytes, POOL, "Bytes in use on the pool's fullest drive"),
    family("pool_fullest_capacity", Gauge, Bytes, POOL, "Bytes that this drive can hold"),
    family("pool_raw", Gauge, Bytes, POOL, "Bytes of the pool's active drives"),
    family("pool_used", Gauge, Bytes, POOL, "Bytes in use on drives whose nodes answer"),
    family("pool_provisioned", Gauge, Bytes, POOL, "Bytes promised to volumes, times their copies"),
    family(
        "pool_free",
        Gauge,
        Bytes,
        &["pool", "copies"],
        "The largest volume with so many copies that could still be made",
    ),
    family("scrub_running", Gauge, Number, &[], "1 while a scrub runs"),
    family("scrub_groups", Gauge, Number, &[], "Groups that the scrub which runs is about"),
    family("scrub_groups_done", Gauge, Number, &[], "Groups of these that were read to their end"),
    family("scrub_read", Gauge, Bytes, &[], "Bytes that the scrub which runs has read and verified"),
    family("scrub_remaining", Gauge, Seconds, &[], "When the scrub is done; absent without an estimate"),
    family(
        "volume_scrubbed_time",
        Gauge,
        Seconds,
        VOLUME,
        "Up to when all of the volume was verified, in seconds since 1970; absent before the first time",
    ),
    family(
        "volume_blocks_lost",
        Gauge,
        Number,
        VOLUME,
        "Blocks that the last scrubs could not read from any copy",
    ),
    family(
        "resync_remaining",
        Gauge,
        Seconds,
        &[],
        "When the last resync is done; absent without an estimate",
    ),
    family(
        "emptying_copies_left",
        Gauge,
        Number,
        &["drive", "node"],
        "Copies on a drive that is being emptied",
    ),
];

/// What servers of volumes say.
pub(crate) const SERVER: &[Family] = &[family(
    "server_connections",
    Gauge,
    Number,
    &["volume", "lane"],
    "Connections of clients that have chosen this volume, by the lane (thread) that serves them, from 0",
)];

/// The reference of all metrics, as Markdown.
pub fn reference() -> String {
    let mut text = String::from(
        "# Metrics\n\nGenerated from the code. `weft node run --metrics ADDR`, `weft manager run --metrics \
         ADDR` and\n`weft volume serve --metrics ADDR` serve these at `http://ADDR/metrics` in the text \
         format of OpenMetrics 1.0,\nwhich Prometheus reads; `weft up` \
         gives every member an\naddress on loopback. Whoever reaches the address can read them: there are no secrets \
         in them, but names.\n\nCounters begin at zero with each start of the process. Histograms have `_bucket`, \
         `_sum` and `_count`. Everything that\na node says has the label `node`.\n",
    );
    for (title, families) in [
        ("Of nodes", NODE),
        ("Of managers", MANAGER),
        ("Of servers of volumes", SERVER),
        ("Of nodes, managers and servers: the process", PROCESS),
    ] {
        text.push_str(&format!(
            "\n## {title}\n\n| name | kind | labels | meaning |\n| --- | --- | --- | --- |\n"
        ));
        for family in families {
            let labels: Vec<String> = family.labels.iter().map(|l| format!("`{l}`")).collect();
            text.push_str(&format!(
                "| `{}` | {} | {} | {} |\n",
                family.full_name(),
                family.kind.metric_type().as_str(),
                labels.join(", "),
                family.help
            ));
        }
    }
    text
}
