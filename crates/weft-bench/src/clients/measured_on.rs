//! What a benchmark on a fabric was measured on: it stands at the head of every such result.

use super::ClientPlaces;
use crate::BenchError;
use crate::cores::own_cores;
use crate::machine::Machine;
use crate::tool::{Tool, not_an_answer};
use serde::Serialize;
use weft_api::{ApiAnswer, ApiRequest};
use weft_report::{Part, Section};

/// The machine, the code and the fabric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasuredOn {
    /// Where the benchmark was started, and what it was built from.
    pub machine: Machine,
    /// The program's version.
    pub weft_version: &'static str,
    /// The fabric's nodes, drives and copies.
    pub layout: String,
    /// Commands that brought clients to other machines; empty: all ran where it was started.
    pub on: Vec<String>,
}

impl MeasuredOn {
    pub(crate) fn new(machine: Machine, layout: String, places: &ClientPlaces) -> MeasuredOn {
        MeasuredOn { machine, weft_version: env!("CARGO_PKG_VERSION"), layout, on: places.commands() }
    }

    /// Looks at this machine and the fabric, on which the volumes have so many copies.
    ///
    /// # Errors
    /// Those of [`Tool::ask`], and of the operating system.
    pub(crate) async fn look(
        tool: &mut Tool,
        places: &ClientPlaces,
        copies: u8,
    ) -> Result<MeasuredOn, BenchError> {
        let ApiAnswer::Status(status) = tool.ask("status", &ApiRequest::Status {}).await? else {
            return Err(not_an_answer("status"));
        };
        let drives: usize = status.nodes.iter().map(|node| node.drives).sum();
        let layout = format!("{} nodes with {drives} drives, {copies} copies", status.nodes.len());
        let machine = Machine::describe(own_cores()?.len()).with_commit();
        Ok(MeasuredOn::new(machine, layout, places))
    }

    /// In two lines.
    pub(crate) fn text(&self) -> String {
        let machine = &self.machine;
        format!(
            "{machine}\nweft {}, commit {}, {}; {}\n",
            self.weft_version,
            machine.commit_text(),
            machine.date,
            self.layout
        )
    }

    /// As the last section of a page.
    pub(crate) fn section(&self) -> Section {
        let [processor, kernel] = self.machine.facts();
        let weft = format!("{}, commit {}", self.weft_version, self.machine.commit_text());
        let began = self.machine.date.to_string();
        let mut facts =
            vec![("Weft", weft), ("began", began), processor, kernel, ("fabric", self.layout.clone())];
        if !self.on.is_empty() {
            facts.push(("clients", self.on.join(", ")));
        }
        let facts = facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Section::new("What it ran on", vec![Part::Facts(facts)])
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine::tests::machine;

    /// A fabric of four nodes, with clients brought by these commands.
    pub(crate) fn measured_on(on: &[&str]) -> MeasuredOn {
        let on = on.iter().map(|words| words.split(' ').map(str::to_owned).collect()).collect();
        let places = ClientPlaces { program: "weft".into(), managers: vec![], on };
        MeasuredOn::new(machine(Some("abc")), "4 nodes with 8 drives, 2 copies".into(), &places)
    }

    #[test]
    fn machine_code_and_fabric_are_told() {
        let found = measured_on(&["ssh a", "ssh b"]);
        let text = found.text();
        assert!(
            text.contains("Fast One") && text.contains("commit abc") && text.contains("8 drives"),
            "{text}"
        );
        let facts = format!("{:?}", found.section());
        assert!(facts.contains("ssh a, ssh b") && facts.contains("6.18.0"), "{facts}");
    }
}
