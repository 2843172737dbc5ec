//! What every suite says of a run: where it ran, by which version, on which folder, and how.

use super::space::TestedFolder;
use crate::machine::Machine;
use crate::outcome::count;

/// What was measured, on what, in some lines: `hosts` are the machines of all ranks, `how` the choices of
/// the test.
pub(crate) fn facts(
    machine: &Machine,
    version: &str,
    hosts: &[String],
    folder: &TestedFolder,
    how: &[String],
) -> Vec<String> {
    let hosts = match hosts {
        [host] => format!("on {host}"),
        many => format!("on {}: {}", count(many.len(), "machine"), many.join(", ")),
    };
    vec![
        format!("{machine}, {hosts}"),
        format!("weft {version}, {}; {}", machine.date, folder.text()),
        how.join(", "),
    ]
}

/// A number of processes, in words.
pub(crate) fn processes_text(number: u32) -> String {
    if number == 1 { "1 process".to_owned() } else { format!("{number} processes") }
}
