//! Clients of a file system's names: each has a directory of its own, and so knows every answer, that of a
//! file system in memory (F1, F2). Sessions end while operations are under way: once one is forgotten, nothing of it
//! happens any more.

use crate::bed::Bed;
use crate::check::tables;
use crate::clients::client_host;
use crate::refusals::Refusals;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use weft_api::ApiRequest;
use weft_checker::FileModel;
use weft_client::{AttachMode, AttachOptions, Fabric, FileSystem};
use weft_fs::{Caller, FsError};
use weft_rt::sim;
use weft_rt::sync::join_all;
use weft_rt::{now, random_below, random_u64, sleep, spawn, timeout};
use weft_types::{FileKind, InodeNumber, SessionId};
use weft_wire::files::{Answer, NameIn, NewInode, Operation, XattrMode};

/// Operations under way when a session ends, and bytes of each.
const FLOOD: usize = 40;
const FLOOD_BYTES: usize = 100;

/// How long the manager is asked to end a session.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// How often it is asked how a check of the tables stands.
const CHECK_LOOKS_EVERY: Duration = Duration::from_millis(2);

/// Clients of a file system's names.
pub struct Names {
    bed: Rc<Bed>,
    file_system: &'static str,
    /// How long an operation may take: nodes die meanwhile, and come back.
    patience: Duration,
    /// How long a client rests between two operations, at most.
    think: Duration,
    /// What clients may be refused.
    refusals: Refusals,
    is_over: Cell<bool>,
    found: RefCell<Option<String>>,
    running: Cell<usize>,
}

impl Names {
    /// Starts so many clients, on the hosts of the clients from this one on.
    pub fn start(
        bed: &Rc<Bed>,
        file_system: &'static str,
        (patience, think, refusals): (Duration, Duration, Refusals),
        hosts: std::ops::Range<usize>,
    ) -> Rc<Names> {
        let (is_over, found, running) = (Cell::new(false), RefCell::new(None), Cell::new(hosts.len()));
        let names = Rc::new(Names {
            bed: bed.clone(),
            file_system,
            patience,
            think,
            refusals,
            is_over,
            found,
            running,
        });
        for n in hosts {
            let names = names.clone();
            sim::spawn_process(client_host(n), "names", async move {
                if let Err(what) = live(&names, n).await {
                    names.found.borrow_mut().get_or_insert(format!("client {n}: {what}"));
                }
                names.running.set(names.running.get() - 1);
            });
        }
        names
    }

    /// Has all of them come to their end.
    ///
    /// # Errors
    /// What they have found, or that one does not end.
    pub async fn finish(&self) -> Result<(), String> {
        self.is_over.set(true);
        let from = now();
        while self.running.get() > 0 && self.found.borrow().is_none() {
            if from.elapsed() > 2 * self.patience {
                return Err("a client of names does not end".to_owned());
            }
            sleep(Duration::from_millis(10)).await;
        }
        self.found.take().map_or(Ok(()), Err)
    }
}

/// A session of a client.
struct Mounted {
    files: FileSystem,
    caller: Caller<FileSystem>,
}

impl Mounted {
    async fn mount(names: &Names) -> Mounted {
        let name = format!("mount {}", random_u64());
        loop {
            if let Ok(fabric) = Fabric::connect(&names.bed.managers(), &name).await {
                let options = AttachOptions { mode: AttachMode::Shared, ..AttachOptions::default() };
                if let Ok(files) = fabric.attach_file_system(names.file_system, options).await {
                    let caller = Caller::new(files.clone(), files.session_id(), names.patience);
                    return Mounted { files, caller };
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn ask(&self, operation: Operation) -> Result<Answer, FsError> {
        self.caller.call(operation.inode().shard(), operation).await
    }

    /// All that can be seen of a directory.
    async fn look(&self, directory: InodeNumber) -> Result<(Answer, Answer), FsError> {
        let list = Operation::List { directory, after: 0, limit: 1024 };
        Ok((self.ask(list).await?, self.ask(Operation::XattrNames(directory)).await?))
    }
}

/// One session after another, until all is over.
async fn live(names: &Rc<Names>, n: usize) -> Result<(), String> {
    for round in 0.. {
        let mounted = Mounted::mount(names).await;
        let name = format!("client {n}, round {round}").into_bytes();
        let at = NameIn { directory: InodeNumber::ROOT, name };
        let (kind, target) = (FileKind::Directory, Vec::new());
        let made = NewInode { kind, mode: 0o755, umask: 0, uid: 0, gid: 0, device: 0, target };
        let home = match mounted.ask(Operation::Create(at, made)).await {
            Ok(Answer::Attributes(home)) => home.inode,
            Ok(Answer::Failed(error)) if names.refusals.say(error) => {
                mounted.files.detach().await;
                if names.is_over.get() {
                    break;
                }
                sleep(names.think).await;
                continue;
            }
            Ok(other) => return Err(format!("it has no directory: {other:?}")),
            Err(FsError::SessionOver { .. }) => continue,
            Err(error) => return Err(error.to_string()),
        };
        // Every other one has the shard check itself meanwhile.
        let checking = (round % 2 == 1).then(|| spawn(check_beside(mounted.caller.clone(), home.shard())));
        let has_held = work(names, &mounted, home).await?;
        if let Some(checking) = checking {
            checking.await.unwrap_or(Ok(()))?;
        }
        if !has_held {
            continue;
        }
        match random_below(2) == 0 {
            true => end_in_the_middle(names, &mounted, home).await?,
            false => mounted.files.detach().await,
        }
        if names.is_over.get() {
            break;
        }
    }
    Ok(())
}

/// Whether an operation may use more than there was.
fn may_use(operation: &Operation) -> bool {
    operation.grows() || matches!(operation, Operation::Change(..) | Operation::Reserve(..))
}

/// Some operations, each judged. Whether the session has held.
async fn work(names: &Names, mounted: &Mounted, home: InodeNumber) -> Result<bool, String> {
    let mut model = FileModel::below(home);
    for _ in 0..10 + random_below(40) {
        let operation = model.any_operation(&mut random_below);
        match mounted.ask(operation.clone()).await {
            Ok(Answer::Failed(error)) if names.refusals.say(error) && may_use(&operation) => {}
            Ok(answer) => model.judge_beside_purges(&operation, &answer)?,
            Err(FsError::SessionOver { .. }) => return Ok(false),
            Err(error) => return Err(error.to_string()),
        }
        sleep(Duration::from_micros(random_below(names.think.as_micros() as u64))).await;
    }
    Ok(true)
}

/// Has a shard compare its tables while it serves others, and hears what comes of it.
async fn check_beside(caller: Caller<FileSystem>, shard: u16) -> Result<(), String> {
    let number = random_u64();
    loop {
        match caller.call(shard, Operation::Check(number)).await {
            Ok(Answer::Check(check)) if check.number == number && check.is_over => {
                return tables::verdict(shard, &check);
            }
            Ok(Answer::Check(_)) => sleep(CHECK_LOOKS_EVERY).await,
            Ok(other) => return Err(format!("a check is answered by {other:?}")),
            // Its session is over, or a node is away: another one asks again.
            Err(FsError::SessionOver { .. } | FsError::NoAnswer { .. }) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// The session ends while many operations are under way. Once it is forgotten, its directory stays as it is.
async fn end_in_the_middle(names: &Rc<Names>, mounted: &Mounted, home: InodeNumber) -> Result<(), String> {
    let flood = (0..FLOOD).map(|n| {
        let name = format!("user.{n}").into_bytes();
        let operation = Operation::SetXattr(home, name, vec![n as u8; FLOOD_BYTES], XattrMode::Either);
        let caller = mounted.caller.clone();
        async move { caller.call(home.shard(), operation).await }
    });
    let flooding = spawn(join_all(flood.collect::<Vec<_>>()));
    sleep(Duration::from_micros(random_below(4_000))).await;
    let session = mounted.files.session_id();
    let end = ApiRequest::SessionEnd { session: session.0, dry_run: false };
    // The manager may not be asked now: then the session goes on, and ends here.
    let is_ended = matches!(timeout(END_PATIENCE, names.bed.try_api(&end)).await, Ok(Ok(_)));
    if !is_ended {
        mounted.files.detach().await;
    }
    until_forgotten(names, session).await?;
    drop(flooding);
    let other = Mounted::mount(names).await;
    let looks = async {
        let before = other.look(home).await?;
        sleep(Duration::from_millis(random_below(150))).await;
        Ok(before == other.look(home).await?)
    };
    let looked = looks.await;
    other.files.detach().await;
    match looked {
        // A session that was out of touch for too long has seen nothing.
        Ok(true) | Err(FsError::SessionOver { .. }) => Ok(()),
        Ok(false) => Err(format!("an operation of session {session} happens after that was forgotten")),
        Err(error) => Err(error.to_string()),
    }
}

async fn until_forgotten(names: &Rc<Names>, session: SessionId) -> Result<(), String> {
    let from = now();
    while names.bed.map().await.sessions.contains_key(&session) {
        if from.elapsed() > names.patience {
            return Err(format!("session {session} is never forgotten"));
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
