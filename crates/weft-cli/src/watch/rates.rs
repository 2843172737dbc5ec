//! Rates: what happened between two readings of the fabric's counters, per node, drive, volume and client.
//!
//! It owns subtracting and adding up. A node whose process has started anew in between has no rates yet: its counters
//! began at zero, at a time that is not known. It never asks anybody, and knows no terminal.

use crate::row::{Percentiles, Row};
use serde::Serialize;
use std::collections::BTreeMap;
use weft_api::{FabricLoad, NodeLoad, Timestamp};
use weft_types::{FabricId, Latencies, MeterReading};

/// What happened in an interval.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Rates {
    pub(super) fabric: FabricId,
    /// The end of the interval, by the manager's clock.
    pub(super) time: Timestamp,
    /// The interval, by the manager's clock.
    pub(super) interval_ms: u64,
    /// All volumes together.
    pub(super) total: Row,
    pub(super) nodes: Vec<Row>,
    pub(super) drives: Vec<Row>,
    pub(super) volumes: Vec<Row>,
    pub(super) clients: Vec<Row>,
    pub(super) interfaces: Vec<InterfaceRow>,
    /// Nodes that are down, or did not answer.
    pub(super) silent_nodes: Vec<String>,
}

/// What went over a network interface.
#[derive(Clone, Debug, Serialize)]
pub(super) struct InterfaceRow {
    pub(super) node: String,
    pub(super) name: String,
    pub(super) received_bytes_per_s: u64,
    pub(super) sent_bytes_per_s: u64,
}

/// A row that is being added up.
struct Sum {
    /// Without its percentiles, which nobody can add up.
    row: Row,
    reads: Latencies,
    writes: Latencies,
}

impl Sum {
    fn named(name: &str, of: Option<&str>) -> Sum {
        let row = Row { name: name.to_owned(), of: of.map(str::to_owned), ..Row::default() };
        Sum { row, reads: Latencies::default(), writes: Latencies::default() }
    }

    /// Adds what one node counted in so many seconds.
    fn add(&mut self, counted: &MeterReading, seconds: f64) {
        let per_second = |n: u64| n as f64 / seconds;
        let row = &mut self.row;
        row.reads_per_s += per_second(counted.reads);
        row.writes_per_s += per_second(counted.writes);
        row.zeroes_per_s += per_second(counted.zeroes);
        row.read_bytes = row.read_bytes.saturating_add(counted.read_bytes);
        row.written_bytes = row.written_bytes.saturating_add(counted.written_bytes);
        row.zeroed_bytes = row.zeroed_bytes.saturating_add(counted.zeroed_bytes);
        row.read_bytes_per_s = row.read_bytes_per_s.saturating_add(per_second(counted.read_bytes) as u64);
        row.written_bytes_per_s =
            row.written_bytes_per_s.saturating_add(per_second(counted.written_bytes) as u64);
        row.queue = row.queue.saturating_add(counted.in_flight);
        row.errors = row.errors.saturating_add(counted.errors);
        self.reads.add(&counted.read_latency);
        self.writes.add(&counted.write_latency);
    }

    fn row(self) -> Row {
        Row {
            read_latency_us: Percentiles::of(&self.reads),
            write_latency_us: Percentiles::of(&self.writes),
            ..self.row
        }
    }
}

/// What many nodes say of the same, by what tells it apart.
#[derive(Default)]
struct Sums {
    volumes: BTreeMap<u64, Sum>,
    clients: BTreeMap<(u64, String), Sum>,
}

impl Rates {
    /// What happened between two readings.
    pub(super) fn between(before: &FabricLoad, after: &FabricLoad) -> Rates {
        let mut rates = Rates {
            fabric: after.fabric,
            time: after.time,
            interval_ms: after.time.as_millis().saturating_sub(before.time.as_millis()),
            total: Row::default(),
            nodes: Vec::new(),
            drives: Vec::new(),
            volumes: Vec::new(),
            clients: Vec::new(),
            interfaces: Vec::new(),
            silent_nodes: after.silent.clone(),
        };
        let (mut total, mut sums) = (Sum::named("total", None), Sums::default());
        for node in &after.nodes {
            let same = |n: &&NodeLoad| n.id == node.id && n.incarnation == node.incarnation;
            match before.nodes.iter().find(same).filter(|n| n.at_us < node.at_us) {
                Some(then) => rates.add_node(then, node, &mut total, &mut sums),
                None => rates.nodes.push(Sum::named(&node.name, None).row()),
            }
        }
        rates.total = total.row();
        rates.volumes = sums.volumes.into_values().map(Sum::row).collect();
        rates.clients = sums.clients.into_values().map(Sum::row).collect();
        rates
    }

    fn add_node(&mut self, then: &NodeLoad, node: &NodeLoad, total: &mut Sum, sums: &mut Sums) {
        let elapsed_us = (node.at_us - then.at_us) as f64;
        let seconds = elapsed_us / 1e6;
        // What was not there before has begun at zero.
        let nothing = MeterReading::default();
        let mut whole = Sum::named(&node.name, None);
        for drive in &node.drives {
            let earlier = then.drives.iter().find(|d| d.id == drive.id).map_or(&nothing, |d| &d.meter);
            let counted = drive.meter.since(earlier);
            let mut sum = Sum::named(&drive.id.short(), Some(&node.name));
            sum.add(&counted, seconds);
            let stored = then.drives.iter().find(|d| d.id == drive.id).map_or(0, |d| d.data_bytes_written);
            let stored = drive.data_bytes_written.saturating_sub(stored);
            sum.row.stored_bytes_per_s = Some((stored as f64 / seconds) as u64);
            whole.add(&counted, seconds);
            self.drives.push(sum.row());
        }
        for volume in &node.volumes {
            let earlier = then.volumes.iter().find(|v| v.id == volume.id).map_or(&nothing, |v| &v.meter);
            let sum = sums.volumes.entry(volume.id.0).or_insert_with(|| Sum::named(&volume.name, None));
            let counted = volume.meter.since(earlier);
            sum.add(&counted, seconds);
            total.add(&counted, seconds);
        }
        for session in &node.sessions {
            let same = |s: &&weft_api::SessionLoad| (s.id, &s.volume) == (session.id, &session.volume);
            let earlier = then.sessions.iter().find(same).map_or(&nothing, |s| &s.meter);
            let key = (session.id.0, session.volume.clone());
            let named = || Sum::named(&session.client, Some(&session.volume));
            sums.clients.entry(key).or_insert_with(named).add(&session.meter.since(earlier), seconds);
        }
        if let (Some(process), Some(former)) = (&node.process, &then.process) {
            let used_us = process.cpu_us.saturating_sub(former.cpu_us) as f64;
            whole.row.cpu_percent = Some((used_us / elapsed_us * 1000.0).round() / 10.0);
            for interface in &process.interfaces {
                let Some(earlier) = former.interfaces.iter().find(|i| i.name == interface.name) else {
                    continue;
                };
                let rate = |now: u64, then: u64| (now.saturating_sub(then) as f64 / seconds) as u64;
                self.interfaces.push(InterfaceRow {
                    node: node.name.clone(),
                    name: interface.name.clone(),
                    received_bytes_per_s: rate(interface.received_bytes, earlier.received_bytes),
                    sent_bytes_per_s: rate(interface.sent_bytes, earlier.sent_bytes),
                });
            }
        }
        self.nodes.push(whole.row());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_api::{DriveLoad, SessionLoad};
    use weft_types::{DriveId, InterfaceLoad, NodeId, ProcessLoad, SessionId, VolumeId, VolumeLoad};

    fn meter(reads: u64, writes: u64) -> MeterReading {
        let times = |n: u64| Latencies { buckets: vec![(100, n)], sum_us: 90 * n };
        MeterReading {
            reads,
            writes,
            read_bytes: reads * 4096,
            written_bytes: writes * 8192,
            in_flight: 2,
            read_latency: times(reads),
            write_latency: times(writes),
            ..Default::default()
        }
    }

    fn node(id: u32, incarnation: u64, at_us: u64, counted: MeterReading) -> NodeLoad {
        let interface =
            InterfaceLoad { name: "eth0".into(), received_bytes: at_us * 3, sent_bytes: at_us * 5 };
        NodeLoad {
            id: NodeId(id),
            name: format!("node-{id}"),
            incarnation,
            at_us,
            process: Some(ProcessLoad { cpu_us: at_us / 4, resident_bytes: 1, interfaces: vec![interface] }),
            drives: vec![DriveLoad {
                id: DriveId(u128::from(id) << 100),
                path: "d".into(),
                meter: counted.clone(),
                data_bytes_written: 0,
                log_bytes_written: 0,
            }],
            volumes: vec![VolumeLoad { id: VolumeId(1), name: "v".into(), meter: counted.clone() }],
            sessions: vec![SessionLoad {
                id: SessionId(5),
                client: "host".into(),
                volume: "v".into(),
                meter: counted,
            }],
        }
    }

    fn load(ms: u64, nodes: Vec<NodeLoad>) -> FabricLoad {
        let time = Timestamp::from_millis(ms);
        FabricLoad { fabric: FabricId(1), time, nodes, silent: vec!["node-9".into()] }
    }

    #[test]
    fn rates_are_per_second_of_each_nodes_own_clock_and_add_up() {
        let before = load(0, vec![node(1, 7, 1_000_000, meter(10, 0)), node(2, 8, 5_000_000, meter(0, 4))]);
        let after =
            load(2_000, vec![node(1, 7, 3_000_000, meter(30, 0)), node(2, 8, 6_000_000, meter(0, 9))]);
        let rates = Rates::between(&before, &after);
        assert_eq!((rates.interval_ms, &rates.silent_nodes[..]), (2_000, &["node-9".to_owned()][..]));
        let volume = &rates.volumes[0];
        assert_eq!((volume.reads_per_s, volume.writes_per_s), (10.0, 5.0));
        assert_eq!((volume.read_bytes, volume.written_bytes), (20 * 4096, 5 * 8192));
        assert_eq!((volume.read_bytes_per_s, volume.written_bytes_per_s), (10 * 4096, 5 * 8192));
        assert_eq!((rates.total.reads_per_s, rates.total.written_bytes), (10.0, 5 * 8192));
        assert_eq!(rates.drives[0].stored_bytes_per_s, Some(0));
        assert_eq!((volume.queue, rates.volumes.len(), rates.drives.len()), (4, 1, 2));
        assert_eq!(volume.read_latency_us.p99, Some(100));
        assert_eq!(rates.clients[0].of.as_deref(), Some("v"));
        assert_eq!(rates.nodes[0].cpu_percent, Some(25.0));
        assert_eq!(rates.nodes[0].write_latency_us.p50, None);
        let interface = &rates.interfaces[0];
        assert_eq!((interface.received_bytes_per_s, interface.sent_bytes_per_s), (3_000_000, 5_000_000));
    }

    #[test]
    fn a_node_that_has_started_anew_has_no_rates_yet() {
        let before = load(0, vec![node(1, 7, 1_000_000, meter(1_000, 1_000))]);
        let after = load(1_000, vec![node(1, 99, 2_000_000, meter(10, 10))]);
        let rates = Rates::between(&before, &after);
        assert_eq!((rates.nodes.len(), rates.nodes[0].reads_per_s), (1, 0.0));
        assert!(rates.drives.is_empty() && rates.volumes.is_empty());
        let json = serde_json::to_value(&rates.nodes[0]).expect("it serialises");
        assert!(json["read_latency_us"]["p99.9"].is_null() && json.get("cpu_percent").is_none(), "{json}");
    }
}
