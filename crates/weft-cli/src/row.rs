//! What was asked of a node, a drive or a volume, or by a client, in an interval: a row as `weft watch` shows and
//! records it, and as `weft report` reads it again.
//!
//! It owns the shape; what is in it, `watch/rates.rs` has counted.

use serde::{Deserialize, Serialize};
use weft_types::Latencies;

/// A row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Of a drive its node, of a client its volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) of: Option<String>,
    /// Processor time in percent of one core; of nodes only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_percent: Option<f64>,
    pub(crate) reads_per_s: f64,
    pub(crate) writes_per_s: f64,
    pub(crate) zeroes_per_s: f64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    /// No report needs it: a record without it can be read.
    #[serde(default)]
    pub(crate) zeroed_bytes: u64,
    pub(crate) read_bytes_per_s: u64,
    pub(crate) written_bytes_per_s: u64,
    /// Data that was put on the drive by anybody, so also by a resync, a rebuild or a scrub; of drives only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stored_bytes_per_s: Option<u64>,
    /// No report needs it.
    #[serde(default)]
    pub(crate) queue: u64,
    pub(crate) errors: u64,
    pub(crate) read_latency_us: Percentiles,
    pub(crate) write_latency_us: Percentiles,
}

/// Percentiles of times, in microseconds; none where nothing was timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: Option<u64>,
    pub(crate) p99: Option<u64>,
    #[serde(rename = "p99.9")]
    pub(crate) p999: Option<u64>,
}

impl Percentiles {
    pub(crate) fn of(times: &Latencies) -> Percentiles {
        Percentiles {
            p50: times.quantile_us(0.5),
            p99: times.quantile_us(0.99),
            p999: times.quantile_us(0.999),
        }
    }

    /// The worse of two, percentile by percentile.
    pub(crate) fn worse(self, other: Percentiles) -> Percentiles {
        Percentiles {
            p50: self.p50.max(other.p50),
            p99: self.p99.max(other.p99),
            p999: self.p999.max(other.p999),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let times = Latencies { buckets: vec![(100, 3)], sum_us: 300 };
        let row = Row {
            name: "data".into(),
            stored_bytes_per_s: Some(7),
            zeroed_bytes: 5,
            queue: 2,
            read_latency_us: Percentiles::of(&times),
            ..Row::default()
        };
        let json = serde_json::to_value(&row).expect("it serialises");
        assert_eq!(json["read_latency_us"]["p99.9"], 100);
        assert!(json["write_latency_us"]["p50"].is_null() && json.get("cpu_percent").is_none(), "{json}");
        assert_eq!(serde_json::from_value::<Row>(json).expect("its own document"), row);
    }
}
