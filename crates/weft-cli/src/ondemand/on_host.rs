//! `weft ondemand on-host`: what runs on each host while a command is at work there. It is started over ssh,
//! by the same command on another machine, and is no part of what users call.
//!
//! It owns the order in which requests are carried out, and what happens when the connection breaks: a start
//! that has not come to its end is undone.

use super::host_member::{end_member, start_manager, start_node};
use super::host_mount::{mount, unmount, users};
use super::host_prepare::prepare;
use super::host_status::{announce, create, status};
use super::message::{Answered, Asked, Left, Request};
use super::record::{HostRecord, Phase, read, write};
use super::script::probe_line;
use super::{copy_files, copy_list};
use crate::error::CliError;
use crate::output::Output;
use serde::Serialize;
use std::cell::Cell;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use weft_rt::{now, sleep};

/// How long another command that is at work on this host is awaited.
const LOCK_PATIENCE: Duration = Duration::from_secs(20);
const LOCK_POLL: Duration = Duration::from_millis(50);

/// Arguments of `weft ondemand on-host`.
#[derive(Clone, Debug, clap::Args)]
pub struct OnHostArgs {
    /// Say whether this program can take part
    #[arg(long)]
    pub probe: bool,
    /// What marks lines that are answers
    #[arg(long, default_value = "")]
    pub token: String,
    /// The folder of the file system on this host
    #[arg(long, required_unless_present = "probe")]
    pub folder: Option<PathBuf>,
    /// Others may be at work there at the same time: nothing is started or ended
    #[arg(long)]
    pub share: bool,
}

/// The folder of a file system on this host: PATH/weft-ondemand-ID.
#[derive(Clone, Debug)]
pub(super) struct Place(pub(super) PathBuf);

impl Place {
    pub(super) fn record_file(&self) -> PathBuf {
        self.0.join("record.json")
    }

    pub(super) fn pid_file(&self, member: &str) -> PathBuf {
        self.0.join(format!("run/{member}.pid"))
    }

    pub(super) fn log_file(&self, member: &str) -> PathBuf {
        self.0.join(format!("log/{member}.log"))
    }

    pub(super) fn store(&self) -> PathBuf {
        self.0.join("manager/map.redb")
    }

    pub(super) fn drive(&self, number: u16) -> PathBuf {
        self.0.join(format!("drive-{number}.img"))
    }

    pub(super) fn record(&self) -> Result<HostRecord, CliError> {
        read(&self.record_file())?.ok_or_else(|| CliError::Failed {
            message: format!("{} has no record", self.0.display()),
            hint: "a start that was cut off at once has left it: remove the folder".into(),
        })
    }

    /// Changes the record.
    pub(super) fn change(&self, change: impl FnOnce(&mut HostRecord)) -> Result<HostRecord, CliError> {
        let mut record = self.record()?;
        change(&mut record);
        write(&self.record_file(), &record)?;
        Ok(record)
    }
}

/// What an undo has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undo {
    /// Nothing: what is there is not of this start.
    Nothing,
    /// End the processes, and leave the data, which are of an earlier start.
    Stop,
    /// End the processes, and remove everything.
    Remove,
}

/// What a request is carried out with.
pub(super) struct Work<'a> {
    pub(super) place: &'a Place,
    pub(super) undo: Cell<Undo>,
    /// Set once what is under way is to be undone.
    pub(super) stop: &'a AtomicBool,
    token: &'a str,
}

impl Work<'_> {
    /// Fails where what is under way is to be undone.
    pub(super) fn check(&self) -> Result<(), CliError> {
        match self.stop.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(CliError::Interrupted { message: "stopped in between".into() }),
        }
    }

    /// Says a line before the answer.
    pub(super) fn tell(&self, line: &str) {
        self.teller().tell(line);
    }

    /// What threads say lines with.
    pub(super) fn teller(&self) -> Teller<'_> {
        Teller(self.token)
    }
}

/// Says lines that are meant for the command on the other machine.
#[derive(Clone, Copy)]
pub(super) struct Teller<'a>(&'a str);

impl Teller<'_> {
    /// Says a line. Whether somebody listens is of no interest.
    pub(super) fn tell(&self, line: &str) {
        let mut out = io::stdout().lock();
        let _ = writeln!(out, "{} {line}", self.0).and_then(|()| out.flush());
    }
}

/// Carries out what comes on the standard input until that ends.
pub(crate) async fn on_host(args: OnHostArgs, output: Output) -> Result<(), CliError> {
    if args.probe {
        return output.print(&format!("{}\n", probe_line()));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let place = Place(args.folder.unwrap_or_default());
    let work = Work { place: &place, undo: Cell::new(Undo::Nothing), stop: &stop, token: &args.token };
    let locked = if args.share { Ok(None) } else { lock(&place).await.map(Some) };
    let _lock = match locked {
        Ok(lock) => lock,
        Err(error) => {
            work.tell(&format!("refused {}", error.chain()));
            return Ok(());
        }
    };
    work.tell("serves");
    for asked in read_requests(stop.clone()) {
        let undoes = matches!(asked.request, Request::Undo {});
        let done = carry_out(&work, asked.request).await;
        let (ok, error) = match done {
            Ok(ok) => (Some(ok), None),
            Err(error) => (None, Some(format!("{}; hint: {}", error.chain(), error.hint()))),
        };
        let answered = Answered { n: asked.n, ok, error };
        work.tell(&format!("answer {}", serde_json::to_string(&answered).expect("an answer serialises")));
        if undoes {
            return Ok(());
        }
    }
    // Whoever has started this is gone: what is not settled is undone.
    undo(&work).await;
    Ok(())
}

/// Requests as they come. Once the input ends, or something is to be undone, `stop` is set at once.
fn read_requests(stop: Arc<AtomicBool>) -> Receiver<Asked> {
    let (requests, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(io::stdin()).lines() {
            let Ok(line) = line else { break };
            let Ok(asked) = serde_json::from_str::<Asked>(&line) else { break };
            if matches!(asked.request, Request::Undo {}) {
                stop.store(true, Ordering::Relaxed);
            }
            if requests.send(asked).is_err() {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    receiver
}

/// Locks the folder against other commands that are at work on this host.
async fn lock(place: &Place) -> Result<File, CliError> {
    let path = place.0.join("lock");
    let file = File::options().create(true).append(true).open(&path);
    let file = file.map_err(CliError::file("open", &path))?;
    let began = now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(CliError::file("lock", path)(error)),
            Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_PATIENCE => sleep(LOCK_POLL).await,
            Err(TryLockError::WouldBlock) => {
                return Err(CliError::Refused {
                    message: "another `weft ondemand` is at work on this host".into(),
                    hint: "wait until it has ended".into(),
                });
            }
        }
    }
}

async fn carry_out(work: &Work<'_>, request: Request) -> Result<serde_json::Value, CliError> {
    let place = work.place;
    Ok(match request {
        Request::Prepare(asked) => json(prepare(work, *asked).await?),
        Request::Manager {} => json(start_manager(work).await?),
        Request::Node { manager } => json(start_node(work, &manager).await?),
        Request::Create { drives, copies, shards } => json(create(work, drives, copies, shards).await?),
        Request::Mount {} => json(mount(work).await?),
        Request::Settle {} => {
            place.change(|record| record.state = Phase::Running)?;
            work.undo.set(Undo::Nothing);
            json(())
        }
        Request::Undo {} => json(undo(work).await),
        Request::Record {} => json(read::<HostRecord>(&place.record_file())?),
        Request::Users {} => json(users(&place.record()?.mountpoint)),
        Request::Unmount { force, discard } => json(unmount(work, force, discard).await?),
        Request::Announce {} => json(announce(work).await?),
        Request::EndNode {} => json(end_member(place, "node").await?),
        Request::Finish { delete } => json(finish(work, delete).await),
        Request::Status { fabric } => json(status(work, fabric).await?),
        Request::List { sources, target } => json(copy_list::list(work, &sources, &target)?),
        Request::Copy { files, threads } => {
            copy_files::copy(work, &files, threads);
            json(())
        }
        Request::Sync { target } => json(copy_files::sync(&target)?),
        Request::Folders { folders } => json(copy_files::finish_folders(&folders)),
    })
}

fn json(value: impl Serialize) -> serde_json::Value {
    serde_json::to_value(value).expect("an answer serialises")
}

/// Ends and removes what a start has made so far.
async fn undo(work: &Work<'_>) -> Left {
    let mut left = Vec::new();
    let delete = match work.undo.replace(Undo::Nothing) {
        Undo::Nothing => return Left { left },
        Undo::Stop => false,
        Undo::Remove => true,
    };
    // Before there is a record, nothing is mounted.
    if work.place.record_file().exists()
        && let Err(error) = unmount(work, true, delete).await
    {
        left.push(error.chain());
    }
    let mut ended = finish(work, delete).await;
    left.append(&mut ended.left);
    Left { left }
}

/// Ends all processes, and removes the data or leaves them for a later start.
async fn finish(work: &Work<'_>, delete: bool) -> Left {
    let (place, mut left) = (work.place, Vec::new());
    for member in ["mount", "node", "manager"] {
        if let Err(error) = end_member(place, member).await {
            left.push(error.chain());
        }
    }
    // What a process has open still is not taken from under it.
    if !left.is_empty() {
        return Left { left };
    }
    let done = match delete {
        true => remove(place),
        false => place.change(|record| record.state = Phase::Stopped).map(drop),
    };
    left.extend(done.err().map(|error| error.chain()));
    Left { left }
}

/// Removes the folder, and of the folders around it what a start has made.
fn remove(place: &Place) -> Result<(), CliError> {
    let record = place.record().ok();
    let made_path = record.as_ref().is_some_and(|record| record.made_path);
    // Before anything of it is gone: what remains of a removal that is cut off has no record, and no data.
    for name in ["record.json", "made-path"] {
        let _ = fs::remove_file(place.0.join(name));
    }
    fs::remove_dir_all(&place.0).map_err(CliError::file("remove", &place.0))?;
    if let Some(record) = record
        && record.made_mountpoint
    {
        remove_empty(&record.mountpoint);
    }
    if made_path && let Some(path) = place.0.parent() {
        remove_empty(path);
    }
    Ok(())
}

/// Removes a folder that this program has made. What somebody has put there since stays.
fn remove_empty(path: &Path) {
    let _ = fs::remove_dir(path);
}
