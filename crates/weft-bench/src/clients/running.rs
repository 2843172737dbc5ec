//! Clients as processes: commands of weft, here or wherever a command such as `ssh HOST` brings them.

use super::ClientPlaces;
use crate::BenchError;
use crate::subprocess::{LOOKED_AT, Subprocess};
use serde::de::DeserializeOwned;
use std::process::Command;
use std::time::Duration;
use weft_rt::{Instant, now, sleep, wall_clock_us};

/// How long before they begin clients are started: what a process takes to start and attach on a busy machine.
const STARTS_BEFORE: Duration = Duration::from_secs(2);

/// When clients that are started now are to begin.
pub(crate) struct Begin {
    pub(crate) at: Instant,
    /// The same in milliseconds since 1970, for other processes.
    pub(crate) at_ms: u64,
}

impl Begin {
    pub(crate) fn soon() -> Begin {
        let at_us = wall_clock_us().saturating_add(STARTS_BEFORE.as_micros() as u64);
        Begin { at: now() + STARTS_BEFORE, at_ms: at_us / 1000 }
    }
}

/// Clients that run. Dropped, those that are here end; those on other machines are no longer listened to.
pub(crate) struct Clients(Vec<Client>);

struct Client {
    process: Subprocess,
    /// What it said, once it has ended well.
    said: Option<String>,
}

/// What the client is called that has this number, counted from 0.
pub(super) fn name_of(number: usize) -> String {
    format!("client {}", number + 1)
}

impl Clients {
    /// Starts a client for each of these lists of words behind `weft`, and has it read the input.
    ///
    /// # Errors
    /// If there is no such program, or no address of a manager that a client can reach.
    pub(crate) fn start(
        places: &ClientPlaces,
        words: impl IntoIterator<Item = Vec<String>>,
        input: Option<&str>,
    ) -> Result<Clients, BenchError> {
        let mut clients = Vec::new();
        for (number, words) in words.into_iter().enumerate() {
            let manager = places.manager(number as u32)?;
            let mut command = match places.of(number as u32) {
                [] => Command::new(&places.program),
                [first, rest @ ..] => {
                    let mut command = Command::new(first);
                    command.args(rest).arg("weft");
                    command
                }
            };
            command.args(words).args(["--fabric".to_owned(), manager.to_string()]);
            let process = Subprocess::start(&name_of(number), &mut command, input.map(str::to_owned))?;
            clients.push(Client { process, said: None });
        }
        Ok(Clients(clients))
    }

    /// Waits until then.
    ///
    /// # Errors
    /// [`BenchError::Client`] as soon as one of them fails.
    pub(crate) async fn until(&mut self, at: Instant) -> Result<(), BenchError> {
        while now() < at {
            self.have_ended()?;
            sleep(LOOKED_AT).await;
        }
        Ok(())
    }

    /// Waits until all are done. What each says.
    ///
    /// # Errors
    /// [`BenchError::Client`] as soon as one of them fails.
    pub(crate) async fn results<T: DeserializeOwned>(mut self) -> Result<Vec<T>, BenchError> {
        while !self.have_ended()? {
            sleep(LOOKED_AT).await;
        }
        let read = |client: Client| {
            let said = client.said.unwrap_or_default();
            serde_json::from_str(&said).map_err(|e| BenchError::Client {
                name: client.process.name().to_owned(),
                message: format!("its answer is no result: {e}"),
                hint: None,
            })
        };
        self.0.into_iter().map(read).collect()
    }

    /// Whether all have ended, and well.
    fn have_ended(&mut self) -> Result<bool, BenchError> {
        for client in self.0.iter_mut().filter(|client| client.said.is_none()) {
            let Some(ended) = client.process.ended()? else { continue };
            if !ended.status.success() {
                return Err(ended.refusal(client.process.name()));
            }
            client.said = Some(ended.out);
        }
        Ok(self.0.iter().all(|client| client.said.is_some()))
    }
}
