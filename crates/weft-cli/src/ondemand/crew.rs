//! The hosts of a command, with a connection to each: steps that all of them take at once, and who has
//! failed.

use super::known::Known;
use super::message::Request;
use super::plan::Facts;
use super::remote::{HostError, Session, Wait, at_once};
use super::script::{FOLDER, How, Scene};
use crate::error::CliError;
use crate::output::note;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How long a host may take until its shell has looked around, or its program answers a small question.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// How long a host may take for what it does with processes and data.
pub(super) const WORK_WITHIN: Duration = Duration::from_secs(150);

/// A host of a command.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) session: Option<Session>,
    pub(super) facts: Facts,
    /// The file system's folder on it is this start's.
    pub(super) is_claimed: bool,
    /// There is nothing of the file system on it.
    pub(super) has_nothing: bool,
    /// The folder that was found.
    pub(super) folder: Option<String>,
    /// Why it takes no further part.
    pub(super) failure: Option<HostError>,
}

/// A host that has failed, for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Failed {
    pub(super) host: String,
    pub(super) reason: String,
}

/// All hosts of a command.
pub(super) struct Crew<'a> {
    pub(super) hosts: Vec<Host>,
    pub(super) stop: &'a AtomicBool,
    began: Instant,
}

impl Host {
    fn new(name: &str) -> Host {
        Host {
            name: name.to_owned(),
            session: None,
            facts: Facts::default(),
            is_claimed: false,
            has_nothing: false,
            folder: None,
            failure: None,
        }
    }

    /// Whether it takes part.
    pub(super) fn is_here(&self) -> bool {
        self.session.is_some() && self.failure.is_none()
    }

    /// Asks it.
    pub(super) fn ask<T: DeserializeOwned>(&mut self, request: Request, wait: Wait) -> Result<T, HostError> {
        match &mut self.session {
            Some(session) => session.ask(request, wait),
            None => Err(HostError::Ended("there is no connection".into())),
        }
    }
}

impl<'a> Crew<'a> {
    pub(super) fn new(names: &[String], stop: &'a AtomicBool) -> Crew<'a> {
        Crew { hosts: names.iter().map(|name| Host::new(name)).collect(), stop, began: Instant::now() }
    }

    /// How long the command has run.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn wait(&self, limit: Duration) -> Wait<'a> {
        Wait { limit, stop: self.stop }
    }

    /// Says how far the command is.
    pub(super) fn tell(&self, what: &str) {
        note(&format!("{:6.1} s  {what}", self.elapsed().as_secs_f64()));
    }

    /// Has all hosts that take part, and that are meant, do something at once. Returns what each has
    /// answered, with its place; a host that fails takes no further part.
    pub(super) fn each<T: Send>(
        &mut self,
        is_meant: impl Fn(&Host) -> bool,
        work: impl Fn(usize, &mut Host) -> Result<T, HostError> + Sync,
    ) -> Vec<(usize, T)> {
        let hosts =
            self.hosts.iter_mut().enumerate().filter(|(_, host)| host.failure.is_none() && is_meant(host));
        let done = at_once(hosts, |(index, host)| {
            let done = work(index, host);
            match done {
                Ok(done) => Some((index, done)),
                Err(error) => {
                    host.failure = Some(error);
                    None
                }
            }
        });
        done.into_iter().flatten().collect()
    }

    /// Asks all hosts that take part the same.
    pub(super) fn ask_all<T: DeserializeOwned + Send>(
        &mut self,
        request: &Request,
        limit: Duration,
    ) -> Vec<(usize, T)> {
        let wait = self.wait(limit);
        self.each(Host::is_here, |_, host| host.ask(request.clone(), wait))
    }

    /// Connects to what a start has left on each host. Hosts without anything of it are marked.
    pub(super) fn find(&mut self, known: &Known, token: &str, how: How) {
        let wait = self.wait(ANSWER_WITHIN);
        self.each(
            |_| true,
            |_, host| {
                let scene = Scene { token, host: &host.name, path: &known.path, id: &known.id, named: "" };
                let mut session = Session::open(&known.ssh, &host.name, token, &scene.find(how))?;
                let found = await_program(&mut session, host, wait);
                host.session = Some(session);
                found
            },
        );
        // Those have no program to ask.
        for host in self.hosts.iter_mut().filter(|host| host.has_nothing) {
            host.session = None;
        }
    }

    /// Refuses where hosts have different file systems in PATH.
    pub(super) fn check_one(&self) -> Result<(), CliError> {
        let mut folders = self.hosts.iter().filter_map(|host| Some((&host.name, host.folder.as_ref()?)));
        let Some((first_host, first)) = folders.next() else { return Ok(()) };
        match folders.find(|(_, folder)| *folder != first) {
            None => Ok(()),
            Some((host, folder)) => Err(CliError::Refused {
                message: format!("{first_host} holds {first}, and {host} holds {folder}"),
                hint: "name one by its ID, with the same hosts and PATH".into(),
            }),
        }
    }

    /// The identity of what was found.
    pub(super) fn found_id(&self) -> Option<String> {
        let folder = self.hosts.iter().find_map(|host| host.folder.as_deref())?;
        Some(folder.strip_prefix(FOLDER).unwrap_or(folder).to_owned())
    }

    /// Those that have failed, with the reasons.
    pub(super) fn failed(&self) -> Vec<Failed> {
        let failed = |host: &Host| {
            let reason = host.failure.as_ref()?.to_string();
            Some(Failed { host: host.name.clone(), reason })
        };
        self.hosts.iter().filter_map(failed).collect()
    }

    /// Lets go of all connections, all at once.
    pub(super) fn leave(&mut self) {
        let sessions = self.hosts.iter_mut().filter_map(|host| host.session.take());
        at_once(sessions, drop);
    }
}

/// Reads what the script of a search says until the program there is ready.
fn await_program(session: &mut Session, host: &mut Host, wait: Wait) -> Result<(), HostError> {
    loop {
        let line = session.line(wait)?;
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "serves" => return Ok(()),
            "folder" => host.folder = Some(rest.to_owned()),
            "nothing-there" => {
                host.has_nothing = true;
                return Ok(());
            }
            "several" => {
                return Err(HostError::Said(
                    "it has several file systems on demand: say which one by its ID".into(),
                ));
            }
            "no-program" => {
                let what = format!("there is no weft of this version ({rest} was used before): put it there");
                return Err(HostError::Said(what));
            }
            "refused" => return Err(HostError::Said(rest.to_owned())),
            _ => {}
        }
    }
}

/// Hosts with their reasons, for people: a line each.
pub(super) fn list(failed: &[Failed]) -> String {
    let width = failed.iter().map(|failed| failed.host.len()).max().unwrap_or(0);
    failed.iter().map(|failed| format!("  {:width$}  {}\n", failed.host, failed.reason)).collect()
}

/// Hosts with their reasons, on one line.
pub(super) fn in_a_line(failed: &[Failed]) -> String {
    let each = failed.iter().map(|failed| format!("{}: {}", failed.host, failed.reason));
    each.collect::<Vec<_>>().join("; ")
}

/// A number of hosts.
pub(super) fn hosts(count: usize) -> String {
    if count == 1 { "1 host".to_owned() } else { format!("{count} hosts") }
}
