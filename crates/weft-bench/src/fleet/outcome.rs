//! What the clients of a workload did: for programs, for people who read, and as a page with charts.

use super::{FleetLoad, FleetOptions};
use crate::clients::{MeasuredOn, Together};
use crate::findings::Findings;
use crate::outcome::{count, size_text};
use crate::report::aligned;
use serde::Serialize;
use weft_report::{Part, Section, page};

/// All clients, and what they did.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "benchmark", rename = "workload")]
pub struct FleetFigures {
    /// What it was measured on.
    #[serde(flatten)]
    pub on: MeasuredOn,
    /// What each client did.
    pub load: FleetLoad,
    /// How long that was measured, in seconds.
    pub duration_s: f64,
    /// How long it went on before, in seconds.
    pub warm_up_s: f64,
    /// Bytes of each volume.
    pub volume_bytes: u64,
    /// Each client, and all together.
    #[serde(flatten)]
    pub together: Together,
}

impl FleetFigures {
    pub(super) fn new(on: MeasuredOn, options: &FleetOptions, together: Together) -> FleetFigures {
        FleetFigures {
            on,
            load: options.load,
            duration_s: options.duration.as_secs_f64(),
            warm_up_s: options.warm_up.as_secs_f64(),
            volume_bytes: options.volume_bytes,
            together,
        }
    }

    /// What was done, in a line.
    fn what(&self) -> String {
        let clients = match self.together.clients.len() {
            1 => "1 client,".to_owned(),
            many => format!("{many} clients, each"),
        };
        format!(
            "{clients} on a volume of {}: {}, for {} s",
            size_text(self.volume_bytes),
            self.load.what(),
            self.duration_s
        )
    }
}

impl Findings for FleetFigures {
    fn text(&self) -> String {
        let table = aligned(&self.together.rows());
        let fairness = self.together.fairness().map(|line| line + "\n").unwrap_or_default();
        format!("{}{}\n\n{table}{fairness}", self.on.text(), self.what())
    }

    fn html(&self) -> String {
        let mut parts = vec![Part::Text(self.what())];
        parts.extend(self.together.parts());
        page("Workload", &[Section::new("What the clients did", parts), self.on.section()])
    }
}

impl FleetLoad {
    /// In a line.
    pub(crate) fn what(&self) -> String {
        let FleetLoad { block_bytes, threads, outstanding, write_percent, pattern } = self;
        let threads = count(*threads as usize, "thread");
        format!(
            "{} {}, {write_percent} % writes, {threads} x {outstanding} outstanding",
            size_text(*block_bytes),
            pattern.word()
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::clients::measured_on::tests::measured_on;
    use crate::clients::order::tests::result;
    use crate::plan::Pattern;
    use std::time::Duration;

    /// Three clients, of which one is half as fast.
    pub(crate) fn figures() -> FleetFigures {
        let places =
            crate::ClientPlaces { program: "weft".into(), managers: vec![], on: vec![vec!["here".into()]] };
        let options = FleetOptions {
            places: places.clone(),
            clients: 3,
            load: FleetLoad {
                block_bytes: 4096,
                threads: 2,
                outstanding: 8,
                write_percent: 0,
                pattern: Pattern::Random,
            },
            duration: Duration::from_secs(1),
            warm_up: Duration::ZERO,
            volume_bytes: 1 << 30,
        };
        let results = vec![result(1000, 1.0, 100), result(500, 1.0, 100), result(1000, 1.0, 300)];
        let volumes = ["a", "b", "c"].map(str::to_owned);
        FleetFigures::new(measured_on(&[]), &options, Together::new(&places, &volumes, results, 0.5))
    }

    #[test]
    fn one_client_and_one_thread_are_called_so() {
        let mut figures = figures();
        figures.load.threads = 1;
        figures.together.clients.truncate(1);
        let text = figures.text();
        assert!(text.contains("1 client, on a volume of 1 GiB: "), "{text}");
        assert!(text.contains(" 1 thread x 8 outstanding"), "{text}");
    }

    #[test]
    fn load_clients_and_machine_are_told() {
        let text = figures().text();
        for part in [
            "4 KiB random, 0 % writes, 2 threads x 8",
            "outstanding, for 1 s",
            "0.50 of the fastest",
            "Fast One",
        ] {
            assert!(text.contains(part), "'{part}' is not in {text}");
        }
        let html = figures().html();
        assert_eq!(html.matches("<svg").count(), 2, "{html}");
        assert!(html.contains("client 3") && html.contains("8 drives"), "{html}");
        let json: serde_json::Value = serde_json::from_str(&figures().json()).expect("a document");
        assert_eq!((&json["benchmark"], &json["schema_version"]), (&"workload".into(), &1.into()));
        assert_eq!(json["clients"][1]["iops"], 500.0);
        assert_eq!((&json["load"]["pattern"], &json["total"]["fairness"]), (&"random".into(), &0.5.into()));
    }
}
