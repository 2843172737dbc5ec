//! A file system as its clients have it: names are asked of the servers beside the targets of real nodes,
//! which follow one another as nodes die and are cut off (F1, F2). Sessions end while operations are under
//! way: once one is forgotten, nothing of it happens any more.
//!
//! Each client has a directory of its own, and so knows every answer: the answer of a file system in memory.

use super::stage::Stage;
use crate::bed::KnowFiles;
use crate::clients::client_host;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use weft_api::ApiRequest;
use weft_checker::FileModel;
use weft_client::{AttachMode, AttachOptions, Fabric, FileSystem};
use weft_fs::{Caller, FsError};
use weft_rt::sim::{self, Crash};
use weft_rt::sync::join_all;
use weft_rt::{now, random_below, random_u64, sleep, spawn};
use weft_types::{FileKind, InodeNumber, SessionId};
use weft_wire::files::{Answer, NameIn, NewInode, Operation, XattrMode};

const FILES: &str = "files";

/// Clients, each with a session and a directory at a time.
const CLIENTS: usize = 3;

/// How long an operation may take: nodes die meanwhile, and come back.
const PATIENCE: Duration = Duration::from_secs(30);

/// Large operations under way when a session ends: more than a batch of the log holds, so that some wait.
const FLOOD: usize = 40;
const FLOOD_BYTES: usize = 60_000;

struct Scene {
    stage: Rc<Stage>,
    is_ending: Cell<bool>,
    /// What clients have found.
    found: RefCell<Option<String>>,
    running: Cell<usize>,
}

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let _know_files = KnowFiles::begin();
    let stage = Stage::set(3, 2).await;
    stage.bed.create_file_system(FILES, 2, 1).await;
    let (is_ending, found, running) = (Cell::new(false), RefCell::new(None), Cell::new(CLIENTS));
    let scene = Rc::new(Scene { stage, is_ending, found, running });
    for n in 0..CLIENTS {
        let scene = scene.clone();
        sim::spawn_process(client_host(n), "mount", async move {
            if let Err(what) = live(&scene, n).await {
                scene.found.borrow_mut().get_or_insert(format!("client {n}: {what}"));
            }
            scene.running.set(scene.running.get() - 1);
        });
    }
    for _ in 0..2 + random_below(3) {
        sleep(Duration::from_millis(50 + random_below(400))).await;
        let node = random_below(3) as usize;
        let lasts = Duration::from_millis(random_below(400));
        match random_below(3) {
            0 => scene.stage.isolate(node, lasts).await,
            1 => {
                scene.stage.bed.kill_node(node, Crash::Process);
                sleep(lasts).await;
                scene.stage.bed.start_node(node);
            }
            _ => sleep(lasts).await,
        }
        // One at a time: of two copies one is always there.
        while scene.stage.bed.has_all_copies(&scene.stage.bed.map().await).is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    }
    scene.stage.heal();
    scene.is_ending.set(true);
    while scene.running.get() > 0 && scene.found.borrow().is_none() {
        sleep(Duration::from_millis(10)).await;
    }
    scene.found.take().map_or(Ok(()), Err)
}

/// A session of a client.
struct Mounted {
    files: FileSystem,
    caller: Caller<FileSystem>,
}

impl Mounted {
    async fn mount(scene: &Scene) -> Mounted {
        let name = format!("mount {}", random_u64());
        loop {
            if let Ok(fabric) = Fabric::connect(&scene.stage.bed.managers(), &name).await {
                let options = AttachOptions { mode: AttachMode::Shared, ..AttachOptions::default() };
                if let Ok(files) = fabric.attach_file_system(FILES, options).await {
                    let caller = Caller::new(files.clone(), files.session_id(), PATIENCE);
                    return Mounted { files, caller };
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn ask(&self, operation: Operation) -> Result<Answer, FsError> {
        self.caller.call(0, operation).await
    }

    /// All that can be seen of a directory.
    async fn look(&self, directory: InodeNumber) -> Result<(Answer, Answer), FsError> {
        let list = Operation::List { directory, after: 0, limit: 1024 };
        Ok((self.ask(list).await?, self.ask(Operation::XattrNames(directory)).await?))
    }
}

/// One session after another, until the scene ends.
async fn live(scene: &Rc<Scene>, n: usize) -> Result<(), String> {
    for round in 0.. {
        let mounted = Mounted::mount(scene).await;
        let name = format!("client {n}, round {round}").into_bytes();
        let at = NameIn { directory: InodeNumber::ROOT, name };
        let (kind, target) = (FileKind::Directory, Vec::new());
        let made = NewInode { kind, mode: 0o755, uid: 0, gid: 0, device: 0, target };
        let home = match mounted.ask(Operation::Create(at, made)).await {
            Ok(Answer::Attributes(home)) => home.inode,
            Ok(other) => return Err(format!("it has no directory: {other:?}")),
            Err(FsError::SessionOver { .. }) => continue,
            Err(error) => return Err(error.to_string()),
        };
        if !work(&mounted, home).await? {
            continue;
        }
        match random_below(2) == 0 {
            true => end_in_the_middle(scene, &mounted, home).await?,
            false => mounted.files.detach().await,
        }
        if scene.is_ending.get() {
            break;
        }
    }
    Ok(())
}

/// Some operations, each judged. Whether the session has held.
async fn work(mounted: &Mounted, home: InodeNumber) -> Result<bool, String> {
    let mut model = FileModel::below(home);
    for _ in 0..10 + random_below(40) {
        let operation = model.any_operation(&mut random_below);
        match mounted.ask(operation.clone()).await {
            Ok(answer) => model.judge(&operation, &answer)?,
            Err(FsError::SessionOver { .. }) => return Ok(false),
            Err(error) => return Err(error.to_string()),
        }
        sleep(Duration::from_micros(random_below(2_000))).await;
    }
    Ok(true)
}

/// The session ends while many operations are under way. Once it is forgotten, its directory stays as it is.
async fn end_in_the_middle(scene: &Rc<Scene>, mounted: &Mounted, home: InodeNumber) -> Result<(), String> {
    let flood = (0..FLOOD).map(|n| {
        let name = format!("user.{n}").into_bytes();
        let operation = Operation::SetXattr(home, name, vec![n as u8; FLOOD_BYTES], XattrMode::Either);
        let caller = mounted.caller.clone();
        async move { caller.call(0, operation).await }
    });
    let flooding = spawn(join_all(flood.collect::<Vec<_>>()));
    sleep(Duration::from_micros(random_below(4_000))).await;
    let session = mounted.files.session_id();
    let end = ApiRequest::SessionEnd { session: session.0, dry_run: false };
    // The manager may not be asked now: then the session goes on, and ends here.
    let is_ended = scene.stage.bed.try_api(&end).await.is_ok();
    if !is_ended {
        mounted.files.detach().await;
    }
    until_forgotten(scene, session).await?;
    let other = Mounted::mount(scene).await;
    let before = other.look(home).await.map_err(|error| error.to_string())?;
    sleep(Duration::from_millis(random_below(150))).await;
    let after = other.look(home).await.map_err(|error| error.to_string())?;
    other.files.detach().await;
    drop(flooding);
    match before == after {
        true => Ok(()),
        false => Err(format!("an operation of session {session} happens after that was forgotten")),
    }
}

async fn until_forgotten(scene: &Rc<Scene>, session: SessionId) -> Result<(), String> {
    let from = now();
    while scene.stage.bed.map().await.sessions.contains_key(&session) {
        if from.elapsed() > PATIENCE {
            return Err(format!("session {session} is never forgotten"));
        }
        sleep(Duration::from_micros(500)).await;
    }
    Ok(())
}
