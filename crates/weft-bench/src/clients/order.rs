//! What a client is told to do, as a command line of `weft bench run`, and what it says in the end.

use crate::machine::Machine;
use crate::plan::Pattern;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A load of one client.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) volume: String,
    /// Bytes per request.
    pub(crate) block_bytes: u64,
    /// Threads, each with an attach of its own.
    pub(crate) jobs: u32,
    /// Requests that each of them keeps in flight.
    pub(crate) depth: u32,
    pub(crate) pattern: Pattern,
    /// How many of a hundred requests are reads.
    pub(crate) read_percent: u8,
    pub(crate) runtime: Duration,
    pub(crate) warm_up: Duration,
    pub(crate) seed: u64,
}

impl Order {
    /// The words behind `weft`, without the fabric's place.
    pub(crate) fn arguments(&self, begin_at_ms: u64) -> Vec<String> {
        let ms = |time: Duration| format!("{}ms", time.as_millis());
        let mut arguments: Vec<String> = vec!["bench".into(), "run".into(), self.volume.clone()];
        let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        let (rw, share) = match self.read_percent {
            0 => ("write", None),
            100.. => ("read", None),
            share => ("mix", Some(share)),
        };
        option("--rw", rw.into());
        if let Some(share) = share {
            option("--read-share", share.to_string());
        }
        option("--pattern", self.pattern.word().into());
        option("--bs", self.block_bytes.to_string());
        option("--jobs", self.jobs.to_string());
        option("--depth", self.depth.to_string());
        option("--runtime", ms(self.runtime));
        option("--warm-up", ms(self.warm_up));
        option("--seed", self.seed.to_string());
        option("--begin-at", begin_at_ms.to_string());
        arguments.extend(["--shared", "--overwrite", "--latencies", "--json"].map(str::to_owned));
        arguments
    }
}

/// What a client says in the end, as far as it matters here: a part of what `weft bench run --json` prints.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ClientResult {
    pub(crate) machine: Machine,
    pub(crate) weft_version: String,
    /// Whether somebody ended it early.
    #[serde(default)]
    pub(crate) interrupted: bool,
    pub(crate) elapsed_s: f64,
    pub(crate) cpu_s: f64,
    pub(crate) reads: ClientSide,
    pub(crate) writes: ClientSide,
    pub(crate) seconds: Vec<ClientSecond>,
    /// Nanoseconds, and how many requests took so long.
    pub(crate) latencies_ns: Vec<(u64, u64)>,
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct ClientSide {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
}

/// A second of a client.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientSecond {
    /// When it began, in seconds since the client's beginning.
    pub from_s: f64,
    /// Requests per second.
    pub iops: f64,
    /// What one request in a hundred exceeds, in microseconds; none if nothing completed.
    pub p99_us: Option<f64>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine::tests::machine;

    /// A client that only read blocks of 4 KiB, all requests taking equally long.
    pub(crate) fn result(requests: u64, elapsed_s: f64, us: u64) -> ClientResult {
        ClientResult {
            machine: machine(None),
            weft_version: "1.2.3".into(),
            interrupted: false,
            elapsed_s,
            cpu_s: elapsed_s / 2.0,
            reads: ClientSide { requests, bytes: requests * 4096 },
            writes: ClientSide::default(),
            seconds: vec![ClientSecond { from_s: 0.0, iops: requests as f64, p99_us: Some(us as f64) }],
            latencies_ns: vec![(us * 1000, requests)],
        }
    }

    #[test]
    fn a_share_of_reads_is_a_mix() {
        let order = Order {
            volume: "v".into(),
            block_bytes: 4096,
            jobs: 2,
            depth: 8,
            pattern: Pattern::Sequential,
            read_percent: 30,
            runtime: Duration::from_secs(1),
            warm_up: Duration::ZERO,
            seed: 7,
        };
        let text = order.arguments(5).join(" ");
        for part in
            ["bench run v", "--rw mix --read-share 30", "--pattern sequential", "--begin-at 5", "--json"]
        {
            assert!(text.contains(part), "'{part}' is not in '{text}'");
        }
        let only = |read_percent| Order { read_percent, ..order.clone() }.arguments(0).join(" ");
        assert!(only(0).contains("--rw write --pattern") && only(100).contains("--rw read --pattern"));
    }
}
