//! Where the clients of a benchmark run, and on which fabric.

use super::failed;
use weft_bench::{BenchError, ClientPlaces};
use weft_cli::{CliError, FabricPlace};

/// Clients at most: more than the published plans have machines.
pub(super) const CLIENTS_MAX: i64 = 256;

/// Where clients run.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PlacesArgs {
    /// Run clients by this command, such as 'ssh host2', in turn if given several times [default: processes here]
    ///
    /// The command is given the words of a `weft bench` command line: weft has to be on that machine's PATH, in this
    /// version, and its clock right to a few milliseconds. Words are split at spaces.
    #[arg(long, value_name = "COMMAND")]
    on: Vec<String>,
}

impl PlacesArgs {
    /// On this fabric.
    pub(super) fn places(&self, fabric: &FabricPlace) -> Result<ClientPlaces, CliError> {
        let words = |command: &String| command.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let on: Vec<Vec<String>> = self.on.iter().map(words).collect();
        if on.iter().any(Vec::is_empty) {
            return Err(CliError::Usage {
                message: "--on is given no command".into(),
                hint: "such as --on 'ssh host2'; leave it out for clients on this machine".into(),
            });
        }
        let managers = fabric.managers()?;
        if managers.is_empty() {
            return Err(unreachable(fabric, None));
        }
        let program = std::env::current_exe().map_err(CliError::file("find", "weft"))?;
        Ok(ClientPlaces { program, managers, on })
    }

    /// How many clients there are unless somebody says so: one on each of the other machines, or as many here as leave
    /// the fabric half of the processors.
    pub(super) fn clients_usual(&self) -> u32 {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        if self.on.is_empty() { processors.div_ceil(2) as u32 } else { self.on.len() as u32 }
    }
}

/// Why a benchmark on this fabric has no result.
pub(super) fn failed_on(fabric: &FabricPlace, command: &str) -> impl FnOnce(BenchError) -> CliError {
    move |error| match error {
        BenchError::Link(source) => unreachable(fabric, Some(source)),
        error => failed(error, command),
    }
}

fn unreachable(fabric: &FabricPlace, source: Option<weft_rpc::ConnectError>) -> CliError {
    CliError::Unreachable { at: fabric.to_string(), hint: fabric.hint(), source }
}
