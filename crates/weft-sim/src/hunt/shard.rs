//! A metadata shard on a volume of a fabric, whose servers follow one another: each takes the volume away
//! from the one before, which need not know it (F1, F2). Clients send again what is not answered, to old
//! servers and new ones, and some of what they have sent arrives long after its answer.
//!
//! Each client has a directory of its own, and so knows every answer: the answer of a file system in memory. One
//! more client uses paths, with many operations under way at a time.

use super::actor::take_alone;
use super::stage::Stage;
use crate::clients::client_host;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use weft_checker::FileModel;
use weft_fs::{Caller, FsError, Namespace, NewFile, Shards, Unanswerable};
use weft_meta::{Shard, ShardFormat, ShardName, VolumeMedium, check_tables, format_shard};
use weft_rt::sim::{self, Crash, ProcessId};
use weft_rt::sync::{OneshotSender, Sender, join_all, oneshot, queue};
use weft_rt::{now, random_below, sleep, spawn, timeout};
use weft_types::{FileKind, InodeNumber, SessionId};
use weft_wire::files::{Answer, FileError, FileRequest, NameIn, NewInode, Operation};

/// Blocks of the log: checkpoints come after a few hundred operations.
const LOG_BLOCKS: u32 = 1024;

/// Clients, each with a session and a directory.
const CLIENTS: usize = 3;

/// How long a client waits for an answer before it asks again.
const PATIENCE: Duration = Duration::from_millis(60);

/// A question on its way, and where its answer goes.
type Question = (FileRequest, OneshotSender<Answer>);

/// The process of a server.
struct Server {
    process: ProcessId,
    asked: Sender<Question>,
}

/// All servers that there were, the newest last.
struct Scene {
    stage: Rc<Stage>,
    servers: RefCell<Vec<Server>>,
    is_ending: Cell<bool>,
}

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let stage = Stage::set(3, 2).await;
    let scene = Rc::new(Scene { stage, servers: RefCell::default(), is_ending: Cell::new(false) });
    scene.start_server().await?;
    let clients = (0..CLIENTS).map(|n| spawn(Client::live(scene.clone(), n as u64)));
    let mut clients: Vec<_> = clients.collect();
    clients.push(spawn(use_paths(scene.clone())));
    for _ in 0..2 + random_below(2) {
        sleep(Duration::from_millis(random_below(250))).await;
        let host = client_host(scene.servers.borrow().len() - 1);
        if random_below(3) > 0 {
            // It does not hear that it is fenced.
            scene.stage.cut(host, crate::manager_host(), true);
        }
        if random_below(3) == 0 {
            let node = random_below(3) as usize;
            let (stage, lasts) = (scene.stage.clone(), Duration::from_millis(random_below(120)));
            spawn(async move { stage.isolate(node, lasts).await });
        }
        if random_below(4) == 0 {
            let process = scene.servers.borrow().last().expect("one is there").process;
            sim::kill(process, Crash::Process);
        }
        scene.start_server().await?;
    }
    sleep(Duration::from_millis(random_below(150))).await;
    scene.is_ending.set(true);
    scene.stage.heal();
    for client in clients {
        client.await.map_err(|_| "a client was killed".to_owned())??;
    }
    scene.check().await
}

impl Scene {
    /// The next server takes the volume over. Returns once it serves.
    async fn start_server(self: &Rc<Scene>) -> Result<(), String> {
        let n = self.servers.borrow().len();
        let (asked, mut questions) = queue::<Question>();
        let (started, is_started) = oneshot::<Result<(), String>>();
        let stage = self.stage.clone();
        let process = sim::spawn_process(client_host(n), "meta", async move {
            let volume = take_alone(&stage, "meta").await;
            let medium = VolumeMedium::new(volume);
            let name = ShardName { file_system: 5, shard: 0 };
            if n == 0 {
                let format =
                    ShardFormat { log_blocks: LOG_BLOCKS, ..ShardFormat::new(name, [3; 16], [0; 12]) };
                if let Err(error) = format_shard(&medium, &format).await {
                    return started.send(Err(error.to_string()));
                }
            }
            let shard = match Shard::open(medium).await {
                Ok(shard) => shard,
                Err(error) => return started.send(Err(format!("server {n} cannot open the shard: {error}"))),
            };
            shard.step_by(1 + random_below(3) as usize);
            started.send(Ok(()));
            while let Some((request, answers)) = questions.recv().await {
                let shard = shard.clone();
                spawn(async move {
                    if random_below(60) == 0 {
                        let _ = shard.checkpoint().await;
                    }
                    if random_below(150) == 0 {
                        let orphans = shard.orphans(64).await.unwrap_or_default();
                        let _ = join_all(orphans.into_iter().map(|inode| shard.purge(inode))).await;
                    }
                    match shard.serve(&request).await {
                        // Some answers are lost.
                        Ok(answer) if random_below(12) > 0 => answers.send(answer),
                        _ => {}
                    }
                });
            }
        });
        let server = Server { process, asked };
        let outcome = timeout(Duration::from_secs(20), is_started).await;
        self.servers.borrow_mut().push(server);
        match outcome {
            Ok(Some(started)) => started,
            _ => Err(format!("server {n} does not take the shard over")),
        }
    }

    /// Sends a request to the newest server, or to one before it; `None` if no answer comes.
    async fn ask_any(&self, request: &FileRequest) -> Option<Answer> {
        let is_late = !self.is_ending.get() && random_below(4) == 0;
        let servers = self.servers.borrow().len();
        let server = if is_late { random_below(servers as u64) as usize } else { servers - 1 };
        self.ask(server, request).await
    }

    /// Sends a request to a server; `None` if no answer comes.
    async fn ask(&self, server: usize, request: &FileRequest) -> Option<Answer> {
        let (answers, answer) = oneshot();
        let _ = self.servers.borrow()[server].asked.send((request.clone(), answers));
        timeout(PATIENCE, answer).await.ok()?
    }

    /// What the last server holds agrees with itself, also when it is opened once more.
    async fn check(self: &Rc<Scene>) -> Result<(), String> {
        let volume = take_alone(&self.stage, "check").await;
        let shard = Shard::open(VolumeMedium::new(volume)).await.map_err(|error| error.to_string())?;
        match shard.with_tables(check_tables).first() {
            Some(finding) => Err(finding.to_string()),
            None => Ok(()),
        }
    }
}

/// A client with one operation at a time.
struct Client {
    scene: Rc<Scene>,
    session: SessionId,
    number: u64,
    model: FileModel,
}

impl Client {
    async fn live(scene: Rc<Scene>, n: u64) -> Result<(), String> {
        let session = SessionId(10 + n);
        let mut client = Client { scene, session, number: 0, model: FileModel::below(InodeNumber::ROOT) };
        let at = NameIn { directory: InodeNumber::ROOT, name: format!("client {n}").into_bytes() };
        let kind = FileKind::Directory;
        let made = NewInode { kind, mode: 0o755, umask: 0, uid: 0, gid: 0, device: 0, target: Vec::new() };
        let home = match client.carry_out(Operation::Create(at, made)).await? {
            Answer::Attributes(home) => home.inode,
            other => return Err(format!("client {n} has no directory: {other:?}")),
        };
        client.model = FileModel::below(home);
        let until = now() + Duration::from_secs(30);
        while !client.scene.is_ending.get() && now() < until {
            let operation = match random_below(4) {
                0 => client.model.any_lock_operation(&mut random_below),
                _ => client.model.any_operation(&mut random_below),
            };
            let answer = client.carry_out(operation.clone()).await?;
            client
                .model
                .judge_beside_purges(&operation, &answer)
                .map_err(|what| format!("client {n}: {what}"))?;
            sleep(Duration::from_micros(random_below(2_000))).await;
        }
        Ok(())
    }

    /// Asks until an answer comes.
    async fn carry_out(&mut self, operation: Operation) -> Result<Answer, String> {
        let mut number = 0;
        if operation.changes() {
            self.number += 1;
            number = self.number;
        }
        // It says late what it has: a client with several operations under way says what it has all answers
        // up to.
        let answered = self.number.saturating_sub(1 + random_below(20));
        let request = FileRequest { session: self.session, number, answered, operation };
        let until = now() + Duration::from_secs(30);
        while now() < until {
            let Some(answer) = self.scene.ask_any(&request).await else {
                sleep(Duration::from_millis(1)).await;
                continue;
            };
            let share = if matches!(answer, Answer::Failed(_)) { 2 } else { 6 };
            if number > 0 && random_below(share) == 0 {
                self.arrives_late(request);
            }
            return match answer {
                Answer::Failed(FileError::OutOfOrder) => Err(format!("number {number} is out of order")),
                answer => Ok(answer),
            };
        }
        Err(format!("operation {number} of {:?} is never answered", self.session))
    }

    /// A copy of a request arrives when its client has its answer.
    fn arrives_late(&self, request: FileRequest) {
        let scene = self.scene.clone();
        spawn(async move {
            sleep(Duration::from_micros(random_below(30_000))).await;
            scene.ask_any(&request).await;
        });
    }
}

/// How a client that uses paths reaches the shard.
struct Ways(Rc<Scene>);

impl Shards for Ways {
    async fn ask(&self, _shard: u16, request: &FileRequest) -> Result<Option<Answer>, Unanswerable> {
        // Never a server that was replaced: with so many requests it would soon know.
        let newest = self.0.servers.borrow().len() - 1;
        let answer = self.0.ask(newest, request).await;
        if answer.is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        Ok(answer)
    }
}

/// Files that are made, renamed and removed at the same time.
const FILES: usize = 40;

/// A client that has many operations under way, each of which succeeds once.
async fn use_paths(scene: Rc<Scene>) -> Result<(), String> {
    let caller = Caller::new(Ways(scene.clone()), SessionId(99), Duration::from_secs(30));
    let files = Namespace::new(caller);
    let new = NewFile { mode: 0o644, umask: 0, uid: 7, gid: 8 };
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: FsError| format!("{what}: {error}")
    };
    let home = files.make_directory(b"/paths", new).await.map_err(failed("the directory"))?;
    for round in 0.. {
        let path = |kind: &str, n: usize| format!("/paths/{kind}-{round}-{n}").into_bytes();
        let made = (0..FILES).map(|n| (path("new", n), files.clone()));
        let made = made.map(|(path, files)| async move { files.create(&path, new).await });
        for made in join_all(made).await {
            made.map_err(failed("a create"))?;
        }
        let moved = (0..FILES / 2).map(|n| (path("new", n), path("moved", n), files.clone()));
        let moved = moved.map(|(from, to, files)| async move { files.rename(&from, &to).await });
        for moved in join_all(moved).await {
            moved.map_err(failed("a rename"))?;
        }
        let found = files.list(home.inode, b"/paths").await.map_err(failed("a list"))?;
        let mut found: Vec<Vec<u8>> = found.into_iter().map(|entry| entry.name).collect();
        found.sort();
        let name = |kind: &str, n: usize| format!("{kind}-{round}-{n}").into_bytes();
        let moved = (0..FILES / 2).map(|n| name("moved", n));
        let mut expected: Vec<Vec<u8>> = moved.chain((FILES / 2..FILES).map(|n| name("new", n))).collect();
        expected.sort();
        if found != expected {
            return Err(format!("{} files are listed, {} were made", found.len(), expected.len()));
        }
        let removed = expected.into_iter().map(|name| ([b"/paths/".to_vec(), name].concat(), files.clone()));
        let removed = removed.map(|(path, files)| async move { files.remove(&path).await });
        for removed in join_all(removed).await {
            removed.map_err(failed("a removal"))?;
        }
        if scene.is_ending.get() {
            break;
        }
    }
    Ok(())
}
