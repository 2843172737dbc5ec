//! What came of a measurement of repair, as text and for programs.
//!
//! It measures nothing.

use super::{AmplifyFigures, BesideFigures, ClientFigures, PhaseFigures, ScrubFigures, SpreadFigures};
use crate::findings::Findings;
use crate::machine::Machine;
use crate::report::{aligned, grouped};
use serde::Serialize;
use std::fmt::Write;

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct RepairFigures {
    /// What it ran on.
    pub machine: Machine,
    /// Where the drives were: `mem:` or a folder.
    pub drives: String,
    /// Rounds of what is repeated.
    pub rounds: usize,
    /// How long a phase lasts that does not last as long as a repair, in seconds.
    pub phase_s: f64,
    /// Whether a phase began before what went before it was over: then the figures say nothing about the code.
    pub void: bool,
    /// Where, and what was not over.
    pub void_reasons: Vec<String>,
    /// A client beside resync and rebuild.
    pub beside: Option<BesideFigures>,
    /// How a rebuild spreads over the drives.
    pub spread: Option<SpreadFigures>,
    /// Scrubs.
    pub scrub: Option<ScrubFigures>,
    /// What drives write per byte of data.
    pub amplify: Option<AmplifyFigures>,
}

/// What is said of a run in which a phase began too early.
pub(super) const VOID: &str = "a phase began before what went before it was over, so these figures say nothing about \
                               the code. Quieten the machine and run again.";

impl Findings for RepairFigures {
    fn text(&self) -> String {
        let mut out = String::new();
        let m = &self.machine;
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{m}\ncommit {}, {}, drives {}", m.commit_text(), m.date, self.drives);
        let parts = [
            self.beside.as_ref().map(BesideFigures::text),
            self.spread.as_ref().map(SpreadFigures::text),
            self.scrub.as_ref().map(ScrubFigures::text),
            self.amplify.as_ref().map(AmplifyFigures::text),
        ];
        for part in parts.into_iter().flatten() {
            let _ = write!(out, "\n{part}");
        }
        if self.void {
            let _ = writeln!(out, "\n*** VOID: {VOID}");
            for reason in &self.void_reasons {
                let _ = writeln!(out, "*** {reason}");
            }
        }
        out
    }

    fn html(&self) -> String {
        self.page()
    }
}

impl BesideFigures {
    fn text(&self) -> String {
        let mut out = format!(
            "A client beside repair: {} nodes with a drive each, 2 copies of {} MiB\n",
            self.nodes,
            self.volume_bytes >> 20
        );
        for client in &self.clients {
            out += &format!("\n{}\n{}{}\n", self.what(client), aligned(&client.rows()), client.ratios());
        }
        out + &format!("\n{}\n{}", self.bounds(), aligned(&self.rates()))
    }

    /// What a client does.
    pub(super) fn what(&self, client: &ClientFigures) -> String {
        let pace = match client.per_second {
            Some(rate) => {
                let closed = grouped(client.closed_loop_iops);
                format!("{}/s (as fast as it can it reaches {closed}/s alone)", grouped(rate))
            }
            None => "as fast as it can".into(),
        };
        let mib = client.working_set_bytes >> 20;
        let (reads, depth) = (self.read_percent, self.depth);
        format!("4 KiB random over {mib} MiB, {reads} % reads, at most {depth} in flight, {pace}")
    }

    /// What repair could reach at most.
    pub(super) fn bounds(&self) -> String {
        let (write, read) = (grouped(self.raw.write_mb_per_s), grouped(self.raw.read_mb_per_s));
        let exchange = grouped(self.exchange_mb_per_s);
        format!(
            "Rates of repair. By itself a drive writes {write} and reads {read} MB/s, and a bare exchange of the \
             frames of copies carries {exchange} MB/s."
        )
    }

    pub(super) fn rates(&self) -> Vec<Vec<String>> {
        let mut lines = vec![["MB/s", "resync", "rebuild"].map(str::to_owned).to_vec()];
        let mut line = |name: String, resync: f64, rebuild: f64| {
            lines.push(vec![name, grouped(resync), grouped(rebuild)]);
        };
        line("alone".into(), self.resync_alone_mb_per_s, self.rebuild_alone_mb_per_s);
        for client in &self.clients {
            let name = format!("beside a client on {} MiB", client.working_set_bytes >> 20);
            line(name, client.resync_mb_per_s, client.rebuild_mb_per_s);
        }
        lines
    }
}

impl ClientFigures {
    pub(super) fn rows(&self) -> Vec<Vec<String>> {
        phase_rows(&self.phases)
    }

    pub(super) fn ratios(&self) -> String {
        let line = |what: &str, resync: Option<f64>, rebuild: Option<f64>| {
            let (resync, rebuild) = (ratio(resync), ratio(rebuild));
            format!("{what} over that alone: {resync} beside a resync, {rebuild} beside a rebuild")
        };
        let p99 = line("p99", self.resync_p99_ratio, self.rebuild_p99_ratio);
        let usual = line("usual p99", self.resync_usual_p99_ratio, self.rebuild_usual_p99_ratio);
        format!("{p99}; {usual}")
    }
}

impl SpreadFigures {
    fn text(&self) -> String {
        format!("{}\n{}", self.summary(), aligned(&self.rows()))
    }

    pub(super) fn summary(&self) -> String {
        format!(
            "A drive of {} is lost, 2 copies of {} MiB: {} MiB copied in {} s, {} MB/s; the most over the least: read \
             {}, written {}",
            self.drives_before,
            self.data_bytes >> 20,
            self.copied_bytes >> 20,
            self.seconds,
            grouped(self.mb_per_s),
            ratio(self.read_max_over_min),
            ratio(self.written_max_over_min)
        )
    }

    pub(super) fn rows(&self) -> Vec<Vec<String>> {
        let mb = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
        let mut lines = vec![["drive of", "read MB", "written MB"].map(str::to_owned).to_vec()];
        lines.extend(self.drives.iter().map(|d| vec![d.node.clone(), mb(d.read_bytes), mb(d.written_bytes)]));
        lines
    }
}

impl ScrubFigures {
    fn text(&self) -> String {
        format!("{}\n{}", self.summary(), aligned(&self.rows()))
    }

    pub(super) fn summary(&self) -> String {
        let pace = self.per_second.map_or("as fast as it can".into(), |rate| format!("{}/s", grouped(rate)));
        format!(
            "Scrubs of 2 copies of {} MiB: {} MB/s alone, {} MB/s beside a client ({pace}), whose p99 is {} times \
             that alone, and usual p99 {} times",
            self.volume_bytes >> 20,
            grouped(self.alone_mb_per_s),
            grouped(self.beside_mb_per_s),
            ratio(self.p99_ratio),
            ratio(self.usual_p99_ratio)
        )
    }

    pub(super) fn rows(&self) -> Vec<Vec<String>> {
        phase_rows(&self.phases)
    }
}

impl AmplifyFigures {
    fn text(&self) -> String {
        format!("{}\n{}", self.summary(), aligned(&self.rows()))
    }

    pub(super) fn summary(&self) -> String {
        format!(
            "Write amplification of random writes over {} MiB at depth {}: bytes written to drives (/proc/PID/io) over \
             the client's bytes times 2 copies",
            self.working_set_bytes >> 20,
            self.depth
        )
    }

    pub(super) fn rows(&self) -> Vec<Vec<String>> {
        let head = ["block", "all", "data", "log", "other", "written MB", "iops"];
        let mut lines = vec![head.map(str::to_owned).to_vec()];
        lines.extend(self.rows.iter().map(|row| {
            let mut cells = vec![format!("{} KiB", row.block_bytes >> 10)];
            cells.extend([row.amplification, row.data, row.log, row.other].map(|part| format!("{part:.3}")));
            cells.extend([grouped(row.client_bytes as f64 / 1e6), grouped(row.iops)]);
            cells
        }));
        lines
    }
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |r| format!("{r:.2}"))
}

/// Phases under their titles; latencies in microseconds, and the cores that nodes and client kept busy.
fn phase_rows(phases: &[PhaseFigures]) -> Vec<Vec<String>> {
    let head = [
        "phase",
        "s",
        "iops",
        "mean us",
        "p50",
        "p99",
        "usual p99",
        "p99.9",
        "max",
        "read p99",
        "write p99",
        "nodes' cores",
        "client's",
    ];
    let us = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), grouped);
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(phases.iter().map(|p| {
        let mut cells = vec![p.phase.to_owned(), format!("{:.1}", p.seconds), grouped(p.iops)];
        let latencies = [
            p.mean_us,
            p.p50_us,
            p.p99_us,
            p.usual_p99_us,
            p.p999_us,
            p.max_us,
            p.read_p99_us,
            p.write_p99_us,
        ];
        cells.extend(latencies.map(us));
        cells.extend([p.nodes_cores, p.client_cores].map(|cores| format!("{cores:.2}")));
        cells
    }));
    lines
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{
        AmplifyRow, Copied, DriveShare, RawRates, Round, RoundEvent, RoundTimeline, SlotFigures,
    };
    use super::*;
    use crate::machine::tests::machine;

    fn phase(phase: &'static str, p99_us: Option<f64>) -> PhaseFigures {
        PhaseFigures {
            phase,
            seconds: 4.0,
            iops: 12_345.0,
            mean_us: Some(100.0),
            p50_us: Some(90.0),
            p99_us,
            usual_p99_us: p99_us,
            p999_us: Some(900.0),
            max_us: Some(1_000.0),
            read_p99_us: p99_us,
            write_p99_us: p99_us,
            nodes_cores: 0.5,
            client_cores: 0.25,
        }
    }

    /// Figures of every part.
    pub(in super::super) fn figures() -> RepairFigures {
        let phases = vec![phase("alone", Some(200.0)), phase("resync", None)];
        let slot = |i: u32| SlotFigures {
            from_s: f64::from(i),
            to_s: f64::from(i + 1),
            iops: 10.0,
            p50_us: Some(10.0),
            p99_us: (i != 1).then_some(20.0),
            max_us: Some(30.0),
        };
        let timeline = RoundTimeline {
            slots: (0..4).map(slot).collect(),
            events: vec![RoundEvent { at_s: 1.5, what: "node-1 goes away".into() }],
        };
        let copied = Copied { bytes: 1 << 20, seconds: 1.0, mb_per_s: 1.0 };
        let round = Round { phases: phases.clone(), resync: copied, rebuild: copied, timeline };
        let client = ClientFigures {
            working_set_bytes: 64 << 20,
            closed_loop_iops: 24_000.0,
            per_second: Some(12_000.0),
            phases: phases.clone(),
            resync_p99_ratio: Some(1.5),
            rebuild_p99_ratio: None,
            resync_usual_p99_ratio: Some(1.25),
            rebuild_usual_p99_ratio: None,
            resync_mb_per_s: 100.0,
            rebuild_mb_per_s: 1_200.0,
            rounds: vec![round],
        };
        let beside = BesideFigures {
            nodes: 4,
            volume_bytes: 1 << 30,
            read_percent: 50,
            depth: 8,
            raw: RawRates { write_mb_per_s: 5_000.0, read_mb_per_s: 6_000.0 },
            exchange_mb_per_s: 3_000.0,
            resync_alone_mb_per_s: 800.0,
            rebuild_alone_mb_per_s: 900.0,
            clients: vec![client],
        };
        let share =
            |node: &str, bytes| DriveShare { node: node.into(), read_bytes: bytes, written_bytes: bytes };
        let row = AmplifyRow {
            block_bytes: 4096,
            client_bytes: 1 << 30,
            amplification: 1.25,
            data: 1.0,
            log: 0.2,
            other: 0.05,
            iops: 20_000.0,
        };
        RepairFigures {
            machine: machine(None),
            drives: "mem:".into(),
            rounds: 1,
            phase_s: 4.0,
            void: false,
            void_reasons: vec![],
            beside: Some(beside),
            spread: Some(SpreadFigures {
                drives_before: 3,
                data_bytes: 64 << 20,
                copied_bytes: 16 << 20,
                seconds: 2.0,
                mb_per_s: 8.4,
                drives: vec![share("node-2", 10_000_000), share("node-3", 8_000_000)],
                read_max_over_min: Some(1.25),
                written_max_over_min: Some(1.25),
            }),
            scrub: Some(ScrubFigures {
                volume_bytes: 1 << 30,
                per_second: None,
                alone_mb_per_s: 1_500.0,
                beside_mb_per_s: 250.0,
                phases,
                p99_ratio: Some(1.75),
                usual_p99_ratio: Some(1.5),
                rounds: vec![],
            }),
            amplify: Some(AmplifyFigures {
                working_set_bytes: 512 << 20,
                drive_bytes: 1 << 30,
                depth: 32,
                rows: vec![row],
            }),
        }
    }

    #[test]
    fn the_text_has_every_part_and_its_tables_are_aligned() {
        let text = figures().text();
        for part in [
            "4 KiB random over 64 MiB, 50 % reads, at most 8 in flight, 12,000/s",
            "1.50 beside a resync, - beside a rebuild",
            "beside a client on 64 MiB     100    1,200",
            "the most over the least: read 1.25",
            "250 MB/s beside a client (as fast as it can)",
            "4 KiB  1.250  1.000  0.200  0.050",
        ] {
            assert!(text.contains(part), "'{part}' is not in\n{text}");
        }
    }

    #[test]
    fn a_void_run_says_so_and_why() {
        let mut figures = figures();
        assert!(!figures.text().contains("VOID") && !figures.html().contains("a phase began"));
        figures.void = true;
        figures.void_reasons = vec!["a scrub, round 1, alone: a scrub ran".into()];
        let (text, html) = (figures.text(), figures.html());
        for told in [&text, &html] {
            assert!(
                told.contains("a phase began before") && told.contains("round 1, alone: a scrub"),
                "{told}"
            );
        }
        assert!(text.contains("*** VOID: "), "{text}");
        let json: serde_json::Value = serde_json::from_str(&figures.json()).expect("JSON");
        assert_eq!((&json["void"], json["void_reasons"].as_array().map(Vec::len)), (&true.into(), Some(1)));
    }

    #[test]
    fn programs_find_every_part() {
        let json: serde_json::Value = serde_json::from_str(&figures().json()).expect("JSON");
        assert_eq!(json["beside"]["clients"][0]["resync_p99_ratio"], 1.5);
        assert_eq!(json["beside"]["clients"][0]["rounds"][0]["timeline"]["events"][0]["at_s"], 1.5);
        assert_eq!(json["spread"]["drives"][1]["node"], "node-3");
        assert_eq!(json["scrub"]["p99_ratio"], 1.75);
        assert_eq!(json["amplify"]["rows"][0]["amplification"], 1.25);
        assert!(json["beside"]["clients"][0]["phases"][1]["p99_us"].is_null());
    }
}
