//! What can be known of a local fabric whose manager does not answer: which processes run, and what the nodes say.
//!
//! It owns the questions and the words. It starts and stops nothing.

use super::folder::MANAGER;
use super::{Folder, LocalConfig, LocalNode, ProcessId};
use crate::connection::client_name;
use crate::error::CliError;
use crate::locate::FabricPlace;
use crate::paint::{Paint, Tone};
use crate::size::Size;
use crate::table::{Cell, Table, row};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_api::Advice;
use weft_rpc::{Body, CallError, Link};
use weft_rt::sync::join_all;
use weft_rt::{Addr, timeout};
use weft_types::FabricId;
use weft_wire::Kind;
use weft_wire::control::{self, TargetAnswer, TargetRequest, TargetStatus};
use weft_wire::handshake::{Hello, PeerRole};

/// How long a node may take to answer: it only has to add up numbers.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// A fabric without an answering manager.
#[derive(Serialize)]
pub(crate) struct Unmanaged {
    /// What this document is: `status-without-manager`.
    op: &'static str,
    /// The fabric.
    fabric: FabricId,
    /// What is so, in sentences.
    summary: Vec<String>,
    /// The manager.
    manager: ManagerProcess,
    /// The nodes, in the order of their names.
    nodes: Vec<NodeProcess>,
    /// What people can do.
    advice: Vec<Advice>,
}

/// The manager's process.
#[derive(Serialize)]
struct ManagerProcess {
    addr: String,
    /// Its process, if one runs: then it does not answer although it should.
    pid: Option<i32>,
    log: PathBuf,
}

/// A node's process, and what its target says.
#[derive(Serialize)]
struct NodeProcess {
    name: String,
    addr: String,
    /// Its process, if one runs.
    pid: Option<i32>,
    /// Whether its target serves: by a lease that still holds, or by its peers' word. None if it does not answer.
    serving: Option<bool>,
    /// Why it does not answer, if it does not.
    trouble: Option<String>,
    /// Its drives, as it says.
    drives: Vec<DriveWord>,
    /// Copies that it is bringing up to date.
    resyncs: usize,
}

/// What a target says of a drive.
#[derive(Serialize)]
struct DriveWord {
    path: String,
    capacity_bytes: u64,
    used_bytes: u64,
    /// What broke, if it has failed.
    failed: Option<String>,
}

impl Unmanaged {
    /// Looks at a local fabric; none if there is none in the folder, or nothing of it runs.
    ///
    /// # Errors
    /// If the folder cannot be read or understood.
    pub(crate) async fn look(path: &Path, place: &FabricPlace) -> Result<Option<Unmanaged>, CliError> {
        let folder = Folder::at(path);
        let Some(config) = folder.config()?.filter(|_| folder.has_running_member()) else {
            return Ok(None);
        };
        let nodes = join_all(config.nodes.iter().map(|node| look_at(&folder, &config, node))).await;
        let pid = ProcessId::read_alive(&folder.pid_file(MANAGER)).map(|id| id.pid);
        let manager =
            ManagerProcess { addr: config.manager_addr.clone(), pid, log: folder.log_file(MANAGER) };
        Ok(Some(Unmanaged {
            op: "status-without-manager",
            fabric: config.fabric,
            summary: summary(&manager, &nodes),
            advice: advice(&manager, &nodes, place),
            manager,
            nodes,
        }))
    }

    /// For people.
    pub(crate) fn describe(&self, paint: Paint) -> String {
        let mut text = format!(
            "Fabric {} is {}: its manager does not answer at {}\n",
            self.fabric.short(),
            paint.text(Tone::Warning, "without a manager"),
            self.manager.addr
        );
        for sentence in &self.summary {
            text.push_str(&format!("  {} {sentence}\n", paint.text(Tone::Warning, "-")));
        }
        for advice in &self.advice {
            let command = advice.command.as_ref().map_or_else(String::new, |c| format!(": {c}"));
            text.push_str(&format!("  {} {}{command}\n", paint.text(Tone::Faint, "you can"), advice.what));
        }
        let mut table = Table::new(&["MEMBER", "PROCESS", "STATE", "ADDRESS", ">DRIVES", ">USED"]);
        let process = |pid: Option<i32>| pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let state = match self.manager.pid {
            Some(_) => Cell::new("does not answer", Tone::Bad),
            None => Cell::new("stopped", Tone::Bad),
        };
        table.row(row!["manager", process(self.manager.pid), state, self.manager.addr.as_str(), "-", "-"]);
        for node in &self.nodes {
            let state = match (node.serving, node.pid) {
                (Some(true), _) => Cell::new("serves", Tone::Good),
                (Some(false), _) => Cell::new("does not serve", Tone::Bad),
                (None, Some(_)) => Cell::new("does not answer", Tone::Bad),
                (None, None) => Cell::new("stopped", Tone::Bad),
            };
            let used = node.drives.iter().map(|d| d.used_bytes).sum();
            let failed = node.drives.iter().filter(|d| d.failed.is_some()).count();
            let drives = match failed {
                0 => node.drives.len().to_string(),
                n => format!("{}, {n} failed", node.drives.len()),
            };
            let used = if node.serving.is_some() { Size(used).to_string() } else { "-".into() };
            table.row(row![node.name.as_str(), process(node.pid), state, node.addr.as_str(), drives, used]);
        }
        format!("{text}\n{}", table.render(paint))
    }
}

async fn look_at(folder: &Folder, config: &LocalConfig, node: &LocalNode) -> NodeProcess {
    let pid = ProcessId::read_alive(&folder.pid_file(&node.name)).map(|id| id.pid);
    let answers = match pid {
        Some(_) => {
            let addrs = config.thread_addrs(node);
            join_all(addrs.iter().map(|addr| ask(config.fabric, addr))).await
        }
        None => vec![Err("it does not run".into())],
    };
    let (status, troubles): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    let status: Vec<TargetStatus> = status.into_iter().flatten().collect();
    let trouble = troubles.into_iter().find_map(Result::err);
    let drives = status.iter().flat_map(|s| &s.drives).map(|d| DriveWord {
        path: d.path.clone(),
        capacity_bytes: d.capacity_bytes,
        used_bytes: d.used_bytes,
        failed: d.failed.clone(),
    });
    NodeProcess {
        name: node.name.clone(),
        addr: node.addr.clone(),
        pid,
        // All of its threads, as far as one answers at all.
        serving: (!status.is_empty()).then(|| trouble.is_none() && status.iter().all(|s| s.serving)),
        trouble,
        drives: drives.collect(),
        resyncs: status.iter().flat_map(|s| &s.resyncs).filter(|r| !r.done).count(),
    }
}

/// Asks a node's target how it is.
async fn ask(fabric: FabricId, addr: &str) -> Result<TargetStatus, String> {
    let addr: Addr = addr.parse().map_err(|_| format!("'{addr}' is no address"))?;
    let asked = timeout(ANSWER_MAX, async {
        let hello = Hello::new(PeerRole::Tool, Some(fabric), client_name());
        let link = Link::connect(&addr, &hello).await.map_err(|e| e.to_string())?;
        let request = control::encode(&TargetRequest::Status);
        match link.call(Kind::Control, &request, Body::none()).await {
            Ok(reply) => control::decode::<TargetAnswer>(reply.document()).map_err(|e| e.to_string()),
            Err(error @ CallError::Refused { .. }) => Err(error.text()),
            Err(error) => Err(error.to_string()),
        }
    });
    match asked.await {
        Ok(Ok(TargetAnswer::Status(status))) => Ok(status),
        Ok(Ok(_)) => Err("it answers another question".into()),
        Ok(Err(text)) => Err(text),
        Err(_) => Err(format!("no answer within {} s", ANSWER_MAX.as_secs())),
    }
}

fn summary(manager: &ManagerProcess, nodes: &[NodeProcess]) -> Vec<String> {
    let serving = nodes.iter().filter(|n| n.serving == Some(true)).count();
    let mut summary = Vec::new();
    match serving {
        0 => summary.push("no node serves: nothing can be read or written".to_owned()),
        n if n == nodes.len() => summary.push(format!(
            "all {n} nodes serve by each other's word: reads and writes of attached volumes go on"
        )),
        n => summary.push(format!(
            "{n} of {} nodes serve by each other's word: reads and writes of attached volumes go on where a copy is \
             on these",
            nodes.len()
        )),
    }
    for node in nodes.iter().filter(|n| n.serving != Some(true)) {
        let why = match (&node.trouble, node.serving) {
            (Some(text), _) => text.as_str(),
            _ => "it holds neither a lease nor its peers' word",
        };
        summary.push(format!("node '{}' does not serve: {why}", node.name));
    }
    for node in nodes {
        let failed = node.drives.iter().filter_map(|d| Some((&d.path, d.failed.as_ref()?)));
        let failed =
            failed.map(|(path, cause)| format!("node '{}': drive {path} has failed: {cause}", node.name));
        summary.extend(failed);
    }
    let resyncs: usize = nodes.iter().map(|n| n.resyncs).sum();
    if resyncs > 0 {
        summary.push(format!(
            "{resyncs} copies are being brought up to date, and take part once a manager is there"
        ));
    }
    summary.push(
        "until a manager answers nothing is attached, made or changed, no node can join, and the copies of a node \
         that dies now are not left out: writes to its groups wait"
            .into(),
    );
    if let Some(pid) = manager.pid {
        summary.push(format!("the manager runs as process {pid}, but does not answer"));
    }
    summary
}

fn advice(manager: &ManagerProcess, nodes: &[NodeProcess], place: &FabricPlace) -> Vec<Advice> {
    let mut advice = Vec::new();
    let start = place.command("weft manager start");
    match manager.pid {
        None => advice.push(Advice::command("start the manager: it takes up where it left off", start)),
        Some(_) => {
            let stop = place.command("weft manager stop --kill");
            advice.push(Advice::command("end it and start it anew", format!("{stop} && {start}")));
        }
    }
    let log = manager.log.display();
    advice.push(Advice::plain(format!(
        "look into {log} for what it said last; if its store is lost, see `weft fabric recover --help`"
    )));
    for node in nodes.iter().filter(|n| n.pid.is_none()) {
        let start = place.command(&format!("weft node start {}", node.name));
        advice.push(Advice::command(format!("then start {}", node.name), start));
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, pid: Option<i32>, serving: Option<bool>) -> NodeProcess {
        NodeProcess {
            name: name.into(),
            addr: "127.0.0.1:1".into(),
            pid,
            serving,
            trouble: serving.is_none().then(|| "it does not run".into()),
            drives: vec![DriveWord {
                path: "/d".into(),
                capacity_bytes: 9,
                used_bytes: 5,
                failed: Some("EIO".into()),
            }],
            resyncs: 1,
        }
    }

    #[test]
    fn what_goes_on_and_what_does_not_is_said() {
        let manager = ManagerProcess { addr: "127.0.0.1:1".into(), pid: None, log: "/l".into() };
        let nodes = [node("a", Some(1), Some(true)), node("b", None, None), node("c", Some(2), Some(false))];
        let text = summary(&manager, &nodes).join("\n");
        for part in [
            "1 of 3 nodes serve by each other's word: reads and writes",
            "node 'b' does not serve: it does not run",
            "node 'c' does not serve: it holds neither a lease",
            "node 'a': drive /d has failed: EIO",
            "3 copies are being brought up to date",
        ] {
            assert!(text.contains(part), "'{part}' is not in:\n{text}");
        }
        let place = FabricPlace::new(Some("/f"));
        let commands = |manager: &ManagerProcess| {
            let advice = advice(manager, &nodes, &place);
            advice.into_iter().filter_map(|a| a.command).collect::<Vec<_>>()
        };
        assert_eq!(commands(&manager), ["weft --fabric /f manager start", "weft --fabric /f node start b"]);
        let stuck = ManagerProcess { pid: Some(7), ..manager };
        assert!(commands(&stuck)[0].starts_with("weft --fabric /f manager stop --kill && "));
        assert!(summary(&stuck, &nodes).last().is_some_and(|s| s.contains("process 7")));
    }
}
