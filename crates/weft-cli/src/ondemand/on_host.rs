//! `weft ondemand on-host`: what runs on each host while a command is at work there. It is started over ssh,
//! by the same command on another machine, and is no part of what users call.
//!
//! It owns the order in which requests are carried out, and what happens when the connection breaks: a start
//! that has not come to its end is undone.

use super::host_drives::give_back;
use super::host_member::{end_member, start_manager, start_node};
use super::host_mount::{check_mounted, mount, unmount, users};
use super::host_prepare::prepare;
use super::host_status::{announce, create, status};
use super::message::{Answered, Asked, Left, NO_NUMBER, Request};
use super::record::{HostRecord, Phase, read, write};
use super::script::probe_line;
use super::{copy_files, copy_list};
use crate::error::CliError;
use crate::files::own_ids;
use crate::local::{ProcessId, Signal};
use crate::output::Output;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
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
    /// End another one that is at work there and does not come to its end
    #[arg(long)]
    pub force: bool,
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

    /// Which process has the lock.
    fn holder_file(&self) -> PathBuf {
        self.0.join("holder.pid")
    }

    /// Says what was there above PATH before the start made PATH; missing if PATH was there.
    fn made_path_file(&self) -> PathBuf {
        self.0.join("made-path")
    }

    pub(super) fn store(&self) -> PathBuf {
        self.0.join("manager/map.redb")
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
    let locked = match check_own(&place.0) {
        Ok(()) if args.share => Ok(None),
        Ok(()) => lock(&place, args.force).await,
        Err(error) => Err(error),
    };
    let _lock = match locked {
        Ok(None) if !args.share => {
            work.tell("nothing-there");
            return Ok(());
        }
        Ok(lock) => lock,
        Err(error) => {
            work.tell(&format!("refused {}; hint: {}", error.chain(), error.hint()));
            return Ok(());
        }
    };
    work.tell("serves");
    for asked in read_requests(stop.clone()) {
        let undoes = matches!(&asked, Ok(Asked { request: Request::Undo {}, .. }));
        let answered = match asked {
            Ok(asked) => {
                let (ok, error) = match carry_out(&work, asked.request).await {
                    Ok(ok) => (Some(ok), None),
                    Err(error) => (None, Some(format!("{}; hint: {}", error.chain(), error.hint()))),
                };
                Answered { n: asked.n, ok, error }
            }
            Err(refusal) => refusal,
        };
        work.tell(&format!("answer {}", serde_json::to_string(&answered).expect("an answer serialises")));
        if undoes {
            return Ok(());
        }
    }
    // Whoever has started this is gone: what is not settled is undone.
    undo(&work).await;
    Ok(())
}

/// Requests as they come; the refusal, where a line is not one. Once the input ends, or something is to be
/// undone, `stop` is set at once.
fn read_requests(stop: Arc<AtomicBool>) -> Receiver<Result<Asked, Answered>> {
    let (requests, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(io::stdin()).split(b'\n') {
            let Ok(line) = line else { break };
            let asked = parse(&line);
            if matches!(&asked, Ok(Asked { request: Request::Undo {}, .. })) {
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

/// Reads a request. What is not one is answered with its number, or with [`NO_NUMBER`].
fn parse(line: &[u8]) -> Result<Asked, Answered> {
    #[derive(Deserialize)]
    struct Number {
        n: u64,
    }
    serde_json::from_slice(line).map_err(|error| {
        let n = serde_json::from_slice::<Number>(line).map_or(NO_NUMBER, |number| number.n);
        let error =
            format!("weft {} there does not understand the request: {error}", env!("CARGO_PKG_VERSION"));
        Answered { n, ok: None, error: Some(error) }
    })
}

/// Refuses a folder in which another user may have put what this program is to end or to run.
fn check_own(folder: &Path) -> Result<(), CliError> {
    let found = fs::symlink_metadata(folder).map_err(CliError::file("find", folder))?;
    let is_own = found.uid() == own_ids().0;
    match found.is_dir() && is_own && found.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(CliError::Refused {
            message: format!("{} is not a folder that this user alone can write to", folder.display()),
            hint: "run this as the user who has started the file system".into(),
        }),
    }
}

/// Locks the folder against other commands that are at work on this host; none if one of them has removed it.
/// With `force`, another one that has not ended by then is ended: its machine may have died.
async fn lock(place: &Place, force: bool) -> Result<Option<File>, CliError> {
    let path = place.0.join("lock");
    let file = File::options().create(true).append(true).mode(0o600).open(&path);
    let file = match file {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(CliError::file("open", &path))?,
    };
    let (mut began, mut has_ended) = (now(), false);
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(error)) => return Err(CliError::file("lock", path)(error)),
            Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_PATIENCE => sleep(LOCK_POLL).await,
            Err(TryLockError::WouldBlock) if force && !has_ended => {
                // Its threads end one after another, and the last one lets go of the lock.
                (began, has_ended) = (now(), true);
                if let Some(other) = ProcessId::read_alive(&place.holder_file()) {
                    other.signal(Signal::Kill).map_err(CliError::file("end the process of", &path))?;
                    other.ends_within(LOCK_PATIENCE).await;
                }
            }
            Err(TryLockError::WouldBlock) => {
                return Err(CliError::Refused {
                    message: "another `weft ondemand` is at work on this host".into(),
                    hint: "wait until it has ended; if its machine has died, `weft ondemand stop --force` \
                           ends it"
                        .into(),
                });
            }
        }
    }
    // Whoever had it before may have removed all.
    if !place.0.exists() {
        return Ok(None);
    }
    ProcessId::current().write(&place.holder_file())?;
    Ok(Some(file))
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
        Request::List { sources, target } => {
            check_mounted(&place.record()?.mountpoint)?;
            json(copy_list::list(work, &sources, &target.0)?)
        }
        Request::Copy { files, threads } => json(copy_files::copy(work, &files, threads)?),
        Request::Sync { target } => {
            check_mounted(&place.record()?.mountpoint)?;
            json(copy_files::sync(&target.0)?)
        }
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
    let above_path = fs::read(place.made_path_file()).ok().map(|mut bytes| {
        bytes.pop_if(|last| *last == b'\n');
        PathBuf::from(OsString::from_vec(bytes))
    });
    if let Some(record) = &record {
        give_back(place, record)?;
    }
    // Before anything of it is gone: what remains of a removal that is cut off has no record, and no data.
    let _ = fs::remove_file(place.record_file());
    fs::remove_dir_all(&place.0).map_err(CliError::file("remove", &place.0))?;
    if let Some(record) = record
        && let Some(above) = &record.above_mountpoint
    {
        remove_empty(&record.mountpoint, above);
    }
    if let (Some(above), Some(path)) = (above_path, place.0.parent()) {
        remove_empty(path, &above);
    }
    Ok(())
}

/// Removes folders that this program has made: a path, up to what was there before. What somebody has put
/// there since stays.
fn remove_empty(path: &Path, above: &Path) {
    let made = path.ancestors().take_while(|path| *path != above && path.starts_with(above));
    let _ = made.into_iter().try_for_each(fs::remove_dir);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn what_is_no_request_is_answered() {
        let refusal = |line: &[u8]| match parse(line) {
            Err(Answered { n, ok: None, error: Some(error) }) => (n, error),
            other => panic!("{other:?}"),
        };
        let lines: [&[u8]; 8] = [
            b"",
            b"\xff\xfe",
            b"null",
            b"{}",
            b"[[[[",
            br#"{"n":-1,"op":"undo"}"#,
            br#"{"op":"undo"}"#,
            br#"{"n":"7","op":"undo"}"#,
        ];
        for line in lines {
            let (n, error) = refusal(line);
            assert_eq!(n, NO_NUMBER, "{line:?}");
            assert!(error.contains("does not understand the request"), "{error}");
        }
        let lines: [&[u8]; 5] = [
            br#"{"n":7,"op":"explode"}"#,
            br#"{"n":7}"#,
            br#"{"n":7,"op":"copy","files":[["/a"]],"threads":1}"#,
            br#"{"n":7,"op":"copy","files":[[[1,2,300],"/b"]],"threads":1}"#,
            br#"{"n":7,"op":"finish","delete":"yes"}"#,
        ];
        for line in lines {
            assert_eq!(refusal(line).0, 7, "{line:?}");
        }
        assert!(matches!(parse(br#"{"n":7,"op":"undo"}"#), Ok(Asked { n: 7, request: Request::Undo {} })));
    }

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("weft-ondemand-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("made");
        dir
    }

    #[test]
    fn a_folder_of_others_is_refused() {
        let dir = folder("own");
        let own = dir.join("own");
        fs::create_dir(&own).expect("made");
        let set = |mode| fs::set_permissions(&own, fs::Permissions::from_mode(mode)).expect("set");
        set(0o755);
        check_own(&own).expect("no other user writes to it");
        for mode in [0o770, 0o702, 0o1777] {
            set(mode);
            assert!(matches!(check_own(&own), Err(CliError::Refused { .. })), "{mode:o}");
        }
        set(0o700);
        symlink(&own, dir.join("link")).expect("made");
        assert!(check_own(&dir.join("link")).is_err() && check_own(&dir.join("none")).is_err());
        if own_ids().0 == 0 {
            std::os::unix::fs::chown(&own, Some(65534), None).expect("given away");
            assert!(matches!(check_own(&own), Err(CliError::Refused { .. })));
        }
        fs::remove_dir_all(dir).expect("removed");
    }

    #[test]
    fn folders_that_were_made_are_removed_up_to_what_was_there() {
        let dir = folder("made");
        fs::create_dir_all(dir.join("a/b/c")).expect("made");
        remove_empty(&dir.join("a/b/c"), &dir.join("a"));
        assert!(dir.join("a").exists() && !dir.join("a/b").exists());
        fs::create_dir_all(dir.join("a/b/c")).expect("made");
        fs::write(dir.join("a/x"), "of somebody").expect("written");
        remove_empty(&dir.join("a/b/c"), &dir);
        assert!(dir.join("a/x").exists() && !dir.join("a/b").exists());
        remove_empty(&dir.join("a"), Path::new("/nowhere"));
        assert!(dir.join("a/x").exists());
        fs::remove_dir_all(dir).expect("removed");
    }
}
