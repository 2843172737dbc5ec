//! A measurement of repair as an HTML page.

use super::outcome::VOID;
use super::{
    AmplifyFigures, BesideFigures, ClientFigures, RepairFigures, RoundTimeline, ScrubFigures, SlotFigures,
    SpreadFigures,
};
use weft_report::{Axis, Chart, Marker, Part, Scale, Section, Series, Table, Unit, page};

/// Half of the width of a pair of bars, where their middles are 1 apart.
const BARS_HALF: f64 = 0.4;

impl RepairFigures {
    /// The figures as the text of an HTML file that needs nothing else.
    pub(super) fn page(&self) -> String {
        let mut sections = Vec::new();
        if self.void {
            let words = std::iter::once(VOID).chain(self.void_reasons.iter().map(String::as_str));
            sections.push(Section::new("Void", words.map(|text| Part::Warning(text.into())).collect()));
        }
        if let Some(beside) = &self.beside {
            sections.extend(beside.sections());
        }
        sections.extend(self.spread.as_ref().map(SpreadFigures::section));
        sections.extend(self.scrub.as_ref().map(ScrubFigures::section));
        sections.extend(self.amplify.as_ref().map(AmplifyFigures::section));
        sections.push(Section::new("What it ran on", vec![Part::Facts(self.facts())]));
        page("Repair: what it costs, and how fast it is", &sections)
    }

    fn facts(&self) -> Vec<(String, String)> {
        let machine = &self.machine;
        let [processor, kernel] = machine.facts();
        let facts = [
            processor,
            kernel,
            ("commit", machine.commit_text().to_owned()),
            ("began", machine.date.to_string()),
            ("drives", self.drives.clone()),
            ("rounds", format!("{}, phases of {} s", self.rounds, self.phase_s)),
        ];
        facts.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }
}

impl BesideFigures {
    fn sections(&self) -> Vec<Section> {
        let mut sections = Vec::new();
        for client in &self.clients {
            let mut parts = vec![Part::Text(self.client_text(client)), Part::Table(table(client.rows()))];
            parts.push(Part::Text(client.ratios()));
            if let Some(round) = client.rounds.first() {
                parts.push(Part::Chart(latencies(&round.timeline)));
                parts.push(Part::Chart(rates(&round.timeline)));
            }
            let title = format!("Repair beside a client on {} MiB", client.working_set_bytes >> 20);
            sections.push(Section::new(&title, parts));
        }
        let parts = vec![Part::Text(self.bounds()), Part::Table(table(self.rates()))];
        sections.push(Section::new("How fast repair is", parts));
        sections
    }

    fn client_text(&self, client: &ClientFigures) -> String {
        format!(
            "{} nodes with a drive each, 2 copies of {} MiB. The client: {}. The charts show its first round.",
            self.nodes,
            self.volume_bytes >> 20,
            self.what(client)
        )
    }
}

impl SpreadFigures {
    fn section(&self) -> Section {
        let series = vec![
            bars("read", self.drives.iter().map(|d| d.read_bytes), -BARS_HALF),
            bars("written", self.drives.iter().map(|d| d.written_bytes), 0.0),
        ];
        let x = Axis::new("drive", Unit::Number, Scale::Linear);
        let y = Axis::new("bytes", Unit::Megabytes, Scale::Linear);
        let chart = Chart::new("What each drive read and wrote", x, y, series);
        let parts = vec![Part::Text(self.summary()), Part::Chart(chart), Part::Table(table(self.rows()))];
        Section::new("A rebuild from and to all drives that are left", parts)
    }
}

impl ScrubFigures {
    fn section(&self) -> Section {
        let parts = vec![Part::Text(self.summary()), Part::Table(table(self.rows()))];
        Section::new("Scrubs", parts)
    }
}

impl AmplifyFigures {
    fn section(&self) -> Section {
        let parts = vec![Part::Text(self.summary()), Part::Table(table(self.rows()))];
        Section::new("Write amplification", parts)
    }
}

fn table(mut rows: Vec<Vec<String>>) -> Table {
    let head = rows.remove(0);
    Table { head, rows, ends_in_text: false }
}

/// Bars as an outline: each begins so far from the middle of its pair.
fn bars(name: &str, bytes: impl Iterator<Item = u64>, from: f64) -> Series {
    let mut points = Vec::new();
    for (i, bytes) in bytes.enumerate() {
        let left = (i + 1) as f64 + from;
        let height = bytes as f64 / 1e6;
        points.extend([(left, 0.0), (left, height), (left + BARS_HALF, height), (left + BARS_HALF, 0.0)]);
    }
    Series::new(name, Unit::Megabytes, points)
}

fn markers(timeline: &RoundTimeline) -> Vec<Marker> {
    timeline.events.iter().map(|event| Marker { at: event.at_s, text: event.what.clone() }).collect()
}

fn over_time(
    timeline: &RoundTimeline,
    name: &str,
    unit: Unit,
    value: fn(&SlotFigures) -> Option<f64>,
) -> Series {
    let point = |slot: &SlotFigures| ((slot.from_s + slot.to_s) / 2.0, value(slot).unwrap_or(f64::NAN));
    Series::new(name, unit, timeline.slots.iter().map(point).collect())
}

fn latencies(timeline: &RoundTimeline) -> Chart {
    let unit = Unit::Microseconds;
    let series = vec![
        over_time(timeline, "p50", unit, |slot| slot.p50_us),
        over_time(timeline, "p99", unit, |slot| slot.p99_us),
        over_time(timeline, "max", unit, |slot| slot.max_us),
    ];
    let y = Axis::new("latency", unit, Scale::Log);
    Chart::over_time("Latency of each quarter of a second's requests", y, series).marked(markers(timeline))
}

fn rates(timeline: &RoundTimeline) -> Chart {
    let unit = Unit::PerSecond;
    let series = vec![over_time(timeline, "reads and writes", unit, |slot| Some(slot.iops))];
    let y = Axis::new("rate", unit, Scale::Linear);
    Chart::over_time("Requests per second", y, series).marked(markers(timeline))
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::figures;
    use super::*;
    use crate::Findings;

    #[test]
    fn the_page_has_every_part_and_its_charts() {
        let html = figures().html();
        assert_eq!(html.matches("<svg").count(), 3, "latency and rate over time, and the drives");
        for part in
            ["node-1 goes away", "beside a client on 64 MiB", "Scrubs", "Write amplification", "Fast One"]
        {
            assert!(html.contains(part), "'{part}' is not there");
        }
    }

    #[test]
    fn bars_stand_beside_each_other() {
        let read = bars("read", [1_000_000, 2_000_000].into_iter(), -BARS_HALF);
        assert_eq!(read.points[0], (0.6, 0.0));
        assert_eq!(read.points[5], (1.6, 2.0));
        let written = bars("written", [3_000_000].into_iter(), 0.0);
        assert_eq!(written.points[2], (1.4, 3.0));
    }
}
