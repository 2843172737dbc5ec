//! A page of metrics: samples of families, and their text.
//!
//! It owns that every family of a page is on it, with or without samples, and that a sample has its family's labels.

use crate::family::{Family, Kind, Measure, PREFIX};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use std::borrow::Cow;
use std::fmt;
use weft_types::{Latencies, MeterReading, ProcessLoad};

/// Upper bounds of the histograms' buckets in microseconds, from what a fast drive needs to what a client waits: three
/// per decade are enough to see a percentile move, and few enough for many volumes.
const BOUNDS_US: [u64; 20] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000, 30_000_000,
];

/// A value of a metric.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Number(u64),
    Seconds(f64),
    Times(Latencies),
}

/// One line, or one histogram.
#[derive(Clone, Debug)]
struct Sample {
    labels: Vec<(&'static str, String)>,
    value: Value,
}

/// Families with their samples.
#[derive(Debug)]
pub(crate) struct Page {
    families: Vec<(&'static Family, Vec<Sample>)>,
    /// On every sample.
    labels: Vec<(&'static str, String)>,
}

impl Page {
    /// A page of these families, without samples; the labels are on every sample to come.
    pub(crate) fn new(families: &[&'static [Family]], labels: Vec<(&'static str, String)>) -> Page {
        let families = families.iter().flat_map(|part| part.iter()).map(|f| (f, Vec::new())).collect();
        Page { families, labels }
    }

    /// Adds a sample; the values of the labels are in the order of the family's.
    ///
    /// # Panics
    /// If the page has no such family, or the family other labels.
    pub(crate) fn add(&mut self, name: &str, measure: Measure, labels: &[&str], value: Value) {
        let found = self.families.iter_mut().find(|(f, _)| f.name == name && f.measure == measure);
        let (family, samples) = found.unwrap_or_else(|| panic!("there is no metric {name} in {measure:?}"));
        assert_eq!(family.labels.len(), labels.len(), "{name} has the labels {:?}", family.labels);
        let labels = family.labels.iter().copied().zip(labels.iter().map(|l| (*l).to_owned())).collect();
        samples.push(Sample { labels, value });
    }

    /// Adds a count or a level.
    pub(crate) fn number(&mut self, name: &str, labels: &[&str], value: u64) {
        self.add(name, Measure::Number, labels, Value::Number(value));
    }

    /// Adds a number of bytes.
    pub(crate) fn bytes(&mut self, name: &str, labels: &[&str], value: u64) {
        self.add(name, Measure::Bytes, labels, Value::Number(value));
    }

    /// Adds a span of time, in seconds.
    pub(crate) fn seconds(&mut self, name: &str, labels: &[&str], value: f64) {
        self.add(name, Measure::Seconds, labels, Value::Seconds(value));
    }

    /// Adds what drives and volumes have in common.
    pub(crate) fn meter(&mut self, of: &str, label: &str, meter: &MeterReading) {
        let label = &[label];
        self.number(&format!("{of}_reads"), label, meter.reads);
        self.number(&format!("{of}_writes"), label, meter.writes);
        self.number(&format!("{of}_zeroes"), label, meter.zeroes);
        self.number(&format!("{of}_errors"), label, meter.errors);
        self.bytes(&format!("{of}_read"), label, meter.read_bytes);
        self.bytes(&format!("{of}_written"), label, meter.written_bytes);
        self.bytes(&format!("{of}_zeroed"), label, meter.zeroed_bytes);
        for (what, times) in [("read", &meter.read_latency), ("write", &meter.write_latency)] {
            let name = format!("{of}_{what}_latency");
            self.add(&name, Measure::Seconds, label, Value::Times(times.clone()));
        }
    }

    /// Adds which program this is.
    pub(crate) fn build(&mut self) {
        self.number("build_info", &[env!("CARGO_PKG_VERSION")], 1);
    }

    /// Adds what the process has used.
    pub(crate) fn process(&mut self, process: &ProcessLoad) {
        self.seconds("process_cpu", &[], process.cpu_us as f64 / 1e6);
        self.bytes("process_resident_memory", &[], process.resident_bytes);
        for interface in &process.interfaces {
            self.bytes("network_received", &[&interface.name], interface.received_bytes);
            self.bytes("network_sent", &[&interface.name], interface.sent_bytes);
        }
    }

    /// The page as text.
    pub(crate) fn render(mut self) -> String {
        let labels = std::mem::take(&mut self.labels).into_iter();
        let labels = labels.map(|(name, value)| (Cow::Borrowed(name), Cow::Owned(value)));
        let mut registry = Registry::with_prefix_and_labels(PREFIX, labels);
        registry.register_collector(Box::new(self));
        let mut page = String::new();
        text::encode(&mut page, &registry).expect("a string takes everything");
        page
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for (family, samples) in &self.families {
            let unit = family.measure.unit();
            let kind = family.kind.metric_type();
            let mut metric = encoder.encode_descriptor(family.name, family.help, unit.as_ref(), kind)?;
            for sample in samples {
                match sample.labels.is_empty() {
                    true => encode_value(&mut metric, family, &sample.value)?,
                    false => encode_value(&mut metric.encode_family(&sample.labels)?, family, &sample.value)?,
                }
            }
        }
        Ok(())
    }
}

fn encode_value(metric: &mut MetricEncoder, family: &Family, value: &Value) -> fmt::Result {
    let exemplar = None::<&Exemplar<NoLabelSet, u64>>;
    match (family.kind, value) {
        (Kind::Counter, Value::Number(n)) => metric.encode_counter(n, exemplar),
        (Kind::Counter, Value::Seconds(s)) => metric.encode_counter(s, exemplar),
        (Kind::Gauge, Value::Number(n)) => metric.encode_gauge(n),
        (Kind::Gauge, Value::Seconds(s)) => metric.encode_gauge(s),
        (Kind::Histogram, Value::Times(times)) => {
            let buckets = buckets(times);
            let sum = times.sum_us as f64 / 1e6;
            metric.encode_histogram::<NoLabelSet>(sum, times.count(), &buckets, None)
        }
        (kind, value) => panic!("{} is a {kind:?}, which {value:?} is not", family.name),
    }
}

/// The histogram in the fixed buckets, in seconds: each narrow bucket goes where its longest time belongs.
fn buckets(times: &Latencies) -> Vec<(f64, u64)> {
    let mut counts = [0; BOUNDS_US.len() + 1];
    for (us, count) in &times.buckets {
        counts[BOUNDS_US.partition_point(|bound| bound < us)] += count;
    }
    let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
    bounds.zip(counts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_buckets_go_into_the_fixed_ones() {
        let times = Latencies { buckets: vec![(10, 1), (11, 2), (47, 4), (59_999_999, 8)], sum_us: 0 };
        let buckets = buckets(&times);
        assert_eq!(buckets[0], (1e-5, 1));
        assert_eq!(buckets[1], (2e-5, 2));
        assert_eq!(buckets[2], (5e-5, 4));
        assert_eq!(buckets[BOUNDS_US.len()], (f64::INFINITY, 8));
    }
}
