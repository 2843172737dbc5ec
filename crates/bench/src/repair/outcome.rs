//! What came of a measurement of repair, as text and for programs.
//!
//! It measures nothing.

use super::{AmplifyFigures, BesideFigures, ClientFigures, PhaseFigures, ScrubFigures, SpreadFigures};
use crate::BenchError;
use crate::machine::Machine;
use crate::report::{aligned, grouped, replace};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

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
    /// A client beside resync and rebuild.
    pub beside: Option<BesideFigures>,
    /// How a rebuild spreads over the drives.
    pub spread: Option<SpreadFigures>,
    /// Scrubs.
    pub scrub: Option<ScrubFigures>,
    /// What drives write per byte of data.
    pub amplify: Option<AmplifyFigures>,
}

impl RepairFigures {
    /// The whole result as text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let m = &self.machine;
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{} x {}, Linux {}, TCP {}", m.cores, m.cpu, m.kernel, m.tcp_congestion_control);
        let commit = m.commit.as_deref().unwrap_or("unknown");
        let _ = writeln!(out, "commit {commit}, {}, drives {}", m.date, self.drives);
        if let Some(beside) = &self.beside {
            let _ = write!(out, "\n{}", beside.text());
        }
        out
    }

    /// The result as JSON.
    ///
    /// # Panics
    /// Never: the shape always serialises.
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("figures serialise");
        text.push('\n');
        text
    }

    /// Writes the JSON to a file, replacing it at once or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_json(&self, path: &Path) -> Result<(), BenchError> {
        replace(path, &self.json())
    }
}

impl BesideFigures {
    fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "A client beside repair: {} nodes with a drive each, 2 copies of {} MiB",
            self.nodes,
            self.volume_bytes >> 20
        );
        for client in &self.clients {
            let _ = write!(out, "\n{}", self.client(client));
        }
        let _ = writeln!(out, "\n{}", self.bounds());
        out.push_str(&aligned(&self.rates()));
        out
    }

    fn client(&self, client: &ClientFigures) -> String {
        let pace = match client.per_second {
            Some(rate) => {
                format!("{}/s (a closed loop reaches {}/s alone)", grouped(rate), grouped(client.closed_loop_iops))
            }
            None => "as fast as it can".into(),
        };
        let mut out = format!(
            "4 KiB random over {} MiB, {} % reads, at most {} in flight, {pace}\n",
            client.working_set_bytes >> 20,
            self.read_percent,
            self.depth
        );
        out.push_str(&aligned(&phase_rows(&client.phases)));
        let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |r| format!("{r:.2}"));
        let (resync, rebuild) = (ratio(client.resync_p99_ratio), ratio(client.rebuild_p99_ratio));
        let _ = writeln!(out, "p99 over that alone: {resync} beside a resync, {rebuild} beside a rebuild");
        out
    }

    /// What repair could reach at most.
    fn bounds(&self) -> String {
        format!(
            "Rates of repair; a drive by itself writes {} and reads {} MB/s, a bare exchange of the frames of copies \
             carries {} MB/s",
            grouped(self.raw.write_mb_per_s),
            grouped(self.raw.read_mb_per_s),
            grouped(self.exchange_mb_per_s)
        )
    }

    fn rates(&self) -> Vec<Vec<String>> {
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

fn phase_rows(phases: &[PhaseFigures]) -> Vec<Vec<String>> {
    let head = ["phase", "s", "iops", "mean us", "p50", "p99", "p99.9", "max", "read p99", "write p99", "nodes", "client"];
    let us = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), grouped);
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(phases.iter().map(|p| {
        let mut cells = vec![p.phase.to_owned(), format!("{:.1}", p.seconds), grouped(p.iops)];
        cells.extend([p.mean_us, p.p50_us, p.p99_us, p.p999_us, p.max_us, p.read_p99_us, p.write_p99_us].map(us));
        cells.extend([p.nodes_cores, p.client_cores].map(|cores| format!("{cores:.2}")));
        cells
    }));
    lines
}
