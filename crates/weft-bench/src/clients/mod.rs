//! Client nodes: processes that put loads on a fabric, here or on other machines, and the volumes that are made for them.
//!
//! They begin together, and what they say is added up (`outcome.rs`). Which load, and how often, is whoever's that
//! starts them. It starts no fabric.

pub(crate) mod measured_on;
pub(crate) mod order;
pub(crate) mod outcome;
mod running;
mod volumes;

pub use measured_on::MeasuredOn;
pub use order::ClientSecond;
pub(crate) use order::{ClientResult, ClientSide, Order};
pub use outcome::{ClientRow, ClientsRun, Rates, Together};
pub(crate) use outcome::{cores, cpu_s};
pub(crate) use running::{Begin, Clients};
pub(crate) use volumes::{COPIES, own_volume, with_own_volumes, with_volumes};

use crate::BenchError;
use crate::tool::Tool;
use std::path::PathBuf;
use std::time::Duration;
use weft_rt::Addr;

/// Where clients run, and how they reach the fabric.
#[derive(Clone, Debug)]
pub struct ClientPlaces {
    /// The weft binary, as this machine has it.
    pub program: PathBuf,
    /// Where the fabric's managers may answer, for every client.
    pub managers: Vec<Addr>,
    /// What is put in front of a client's command line, in turn, such as `ssh HOST`; none: they are processes here.
    pub on: Vec<Vec<String>>,
}

impl ClientPlaces {
    /// What is put in front of the command line of the client of this number, counted from 0.
    pub(crate) fn of(&self, number: u32) -> &[String] {
        match self.on.len() {
            0 => &[],
            places => &self.on[number as usize % places],
        }
    }

    /// The commands that bring clients to other machines; none: all run here.
    pub(crate) fn commands(&self) -> Vec<String> {
        self.on.iter().map(|words| words.join(" ")).collect()
    }

    /// A manager that the client of this number can reach: on another machine a socket of this one means nothing.
    fn manager(&self, number: u32) -> Result<&Addr, BenchError> {
        let is_here = self.of(number).is_empty();
        let reached = self.managers.iter().find(|addr| is_here || matches!(addr, Addr::Tcp(_)));
        reached.ok_or_else(|| BenchError::Invalid {
            what: "clients on other machines need the manager's IP:PORT as --fabric".into(),
        })
    }
}

/// Has clients put these loads on the fabric, all beginning at the same time. What they say, and the processors that the
/// targets kept busy meanwhile.
///
/// # Errors
/// [`BenchError::Client`] with the words of the first that failed, and those of [`Tool::load`].
pub(crate) async fn run_together(
    tool: &mut Tool,
    places: &ClientPlaces,
    orders: impl IntoIterator<Item = Order>,
    (warm_up, runtime): (Duration, Duration),
) -> Result<(Vec<ClientResult>, f64), BenchError> {
    let begin = Begin::soon();
    let orders = orders.into_iter().map(|order| order.arguments(begin.at_ms));
    let mut clients = Clients::start(places, orders, None)?;
    // Within what is measured, by a tenth on both sides: clients do not begin to the microsecond.
    let margin = runtime / 10;
    clients.until(begin.at + warm_up + margin).await?;
    let before = tool.load().await?;
    clients.until(begin.at + warm_up + (runtime - margin)).await?;
    let after = tool.load().await?;
    let results: Vec<ClientResult> = clients.results().await?;
    if let Some(number) = results.iter().position(|result| result.interrupted) {
        return Err(BenchError::Client {
            name: running::name_of(number),
            message: "somebody ended it early".into(),
            hint: None,
        });
    }
    Ok((results, cores(&before, &after)))
}
