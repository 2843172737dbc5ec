//! A page as a demonstration would write it: throughput and latency over time, with what happened meanwhile.
//!
//! `cargo run -p weft-report --example page > page.html`

use weft_report::{Axis, Chart, Marker, Part, Scale, Section, Series, Table, Unit, page};

fn main() {
    let events = [
        (12.0, "node-2 is killed"),
        (12.4, "node-2 is evicted"),
        (30.0, "node-2 is back"),
        (41.2, "all copies are equal again"),
    ];
    let markers: Vec<Marker> = events.map(|(at, text)| Marker { at, text: text.to_owned() }).to_vec();
    let over_time =
        |value: fn(f64) -> f64| (0..=60).map(f64::from).map(|s| (s, value(s))).collect::<Vec<_>>();
    let rate =
        over_time(|s| if (12.0..13.0).contains(&s) { 0.0 } else { 42_000.0 + 2_000.0 * (s / 3.0).sin() });
    let p50 =
        over_time(|s| if (12.0..13.0).contains(&s) { f64::NAN } else { 700.0 + 40.0 * (s / 3.0).cos() });
    let p99 = over_time(|s| if s == 13.0 { 450_000.0 } else { 2_400.0 + 300.0 * s.sin() });
    let throughput = Chart::over_time(
        "Requests per second",
        Axis::new("rate", Unit::PerSecond, Scale::Linear),
        vec![Series::new("reads and writes", Unit::PerSecond, rate)],
    );
    let latency = Chart::over_time(
        "Latency",
        Axis::new("latency", Unit::Microseconds, Scale::Log),
        vec![Series::new("p50", Unit::Microseconds, p50), Series::new("p99", Unit::Microseconds, p99)],
    );
    let table = Table {
        head: ["", "requests", "p99"].map(str::to_owned).to_vec(),
        rows: vec![["total", "2,520,000", "2.71 ms"].map(str::to_owned).to_vec()],
        ends_in_text: false,
    };
    let parts = vec![
        Part::Text("A node dies under load and comes back.".to_owned()),
        Part::Table(table),
        Part::Chart(throughput.marked(markers.clone())),
        Part::Chart(latency.marked(markers)),
    ];
    print!("{}", page("A node's death", &[Section::new("What happened", parts)]));
}
