//! A client node of the matrix: `weft bench run` as a process, here or wherever a command such as `ssh HOST` brings it.

use super::MatrixLoad;
use crate::BenchError;
use crate::process::end_with_starter;
use serde::Deserialize;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;
use weft_rt::{Addr, sleep};

/// How often it is looked whether a client is done.
const LOOKED_AT: Duration = Duration::from_millis(20);

/// What a client is to do.
pub(super) struct Order {
    pub(super) volume: String,
    pub(super) load: MatrixLoad,
    pub(super) is_read: bool,
    pub(super) runtime: Duration,
    pub(super) warm_up: Duration,
    pub(super) seed: u64,
    /// When it begins, in milliseconds since 1970.
    pub(super) begin_at_ms: u64,
}

impl Order {
    fn arguments(&self, manager: &Addr) -> Vec<String> {
        let ms = |time: Duration| format!("{}ms", time.as_millis());
        let mut arguments: Vec<String> = vec!["bench".into(), "run".into(), self.volume.clone()];
        let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        option("--fabric", manager.to_string());
        option("--rw", if self.is_read { "read" } else { "write" }.into());
        option("--bs", self.load.block_bytes.to_string());
        option("--jobs", self.load.jobs.to_string());
        option("--depth", self.load.depth.to_string());
        option("--runtime", ms(self.runtime));
        option("--warm-up", ms(self.warm_up));
        option("--seed", self.seed.to_string());
        option("--begin-at", self.begin_at_ms.to_string());
        arguments.extend(["--shared", "--overwrite", "--latencies", "--json"].map(str::to_owned));
        arguments
    }
}

/// What a client says in the end, as far as it matters here.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ClientResult {
    pub(super) elapsed_s: f64,
    pub(super) cpu_s: f64,
    pub(super) total: Total,
    /// Nanoseconds, and how many requests took so long.
    pub(super) latencies_ns: Vec<(u64, u64)>,
}

/// All requests of a client.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Total {
    pub(super) requests: u64,
}

/// A client that runs. A process here ends with this one; dropped before, it does what it was told, and nobody listens.
pub(super) struct Client {
    name: String,
    ended: Receiver<std::io::Result<Output>>,
}

impl Client {
    /// Starts it.
    ///
    /// # Errors
    /// If there is no such program, or no address of a manager that the client can reach.
    pub(super) fn start(
        program: &Path,
        on: &[String],
        managers: &[Addr],
        order: &Order,
        number: u32,
    ) -> Result<Client, BenchError> {
        // On another machine a socket of this one means nothing.
        let is_far = |addr: &&Addr| matches!(addr, Addr::Tcp(_));
        let manager = if on.is_empty() { managers.first() } else { managers.iter().find(is_far) };
        let manager = manager.ok_or_else(|| BenchError::Invalid {
            what: "clients on other machines need the manager's IP:PORT as --fabric".into(),
        })?;
        let mut command = match on {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg("weft");
                command
            }
        };
        command.args(order.arguments(manager));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        end_with_starter(&mut command);
        let path = Path::new(command.get_program()).to_owned();
        let child = command.spawn().map_err(|source| BenchError::File { action: "start", path, source })?;
        Ok(Client { name: format!("client {number}"), ended: listen(child)? })
    }

    /// Waits until it is done.
    ///
    /// # Errors
    /// [`BenchError::Client`] with its words if it failed.
    pub(super) async fn wait(self) -> Result<ClientResult, BenchError> {
        let output = loop {
            match self.ended.try_recv() {
                Ok(output) => break output,
                Err(TryRecvError::Empty) => sleep(LOOKED_AT).await,
                Err(TryRecvError::Disconnected) => break Err(std::io::ErrorKind::BrokenPipe.into()),
            }
        };
        let output =
            output.map_err(|source| BenchError::System { action: "read what a client says", source })?;
        let failed = |message: String| BenchError::Client { name: self.name.clone(), message };
        if !output.status.success() {
            return Err(failed(format!("{}: {}", output.status, words(&output))));
        }
        serde_json::from_slice(&output.stdout).map_err(|e| failed(format!("its answer is no result: {e}")))
    }
}

/// What a client said when it failed: the message of a document, or whatever stands there.
fn words(output: &Output) -> String {
    let texts = [&output.stderr, &output.stdout].map(|bytes| String::from_utf8_lossy(bytes));
    let text =
        texts.iter().map(|text| text.trim()).find(|text| !text.is_empty()).unwrap_or("it said nothing");
    let document: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let message = document.as_ref().and_then(|document| document["error"]["message"].as_str());
    message.unwrap_or(text).to_owned()
}

/// Reads what a process says until it ends, on a thread: pipes hold 64 KiB, and results are longer.
fn listen(child: Child) -> Result<Receiver<std::io::Result<Output>>, BenchError> {
    let (sender, ended) = channel();
    thread::Builder::new()
        .name("bench-client".into())
        .spawn(move || {
            // Nobody listens any more once another client has failed.
            let _ = sender.send(child.wait_with_output());
        })
        .map_err(|source| BenchError::System { action: "start a thread", source })?;
    Ok(ended)
}
