//! Shards of one file system on volumes of a fabric, with directories in all of them: servers follow one
//! another and need not know it, and what they say to each other is late, lost, or comes twice (F3).
//!
//! Some clients work in directories of their own, and so know every answer: the answer of a file system in
//! memory. Others move directories into each other. At the end names, inodes and counters of all shards
//! agree.

use super::actor::take_alone_of;
use super::stage::{Stage, VOLUME};
use crate::clients::client_host;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;
use weft_checker::FileModel;
use weft_meta::{
    Entry, Inode, Key, KeyParts, Part, PeerAnswer, PeerAsk, Peers, Shard, ShardFormat, ShardName, Value,
    VolumeMedium, format_shard,
};
use weft_rt::sim::{self, Crash, ProcessId};
use weft_rt::sync::{OneshotSender, Sender, join_all, oneshot, queue};
use weft_rt::{now, random_below, sleep, spawn, timeout};
use weft_types::{Attributes, FileKind, InodeNumber, SessionId};
use weft_wire::files::{Answer, FileError, FileRequest, NameIn, NewInode, Operation, RenameMode};

/// The shards, each on a volume of this name.
pub(super) const VOLUMES: [&str; 3] = [VOLUME, "second", "third"];

/// Blocks of the log of a shard.
const LOG_BLOCKS: u32 = 1024;

/// Clients with a directory each, and clients that move directories.
const CLIENTS: u64 = 3;
const MOVERS: u64 = 2;

/// How long two directories are moved to and fro.
const MOVED_FOR: Duration = Duration::from_secs(2);

/// Directories that are moved.
const MOVED: usize = 5;

/// How long a question is waited for.
const PATIENCE: Duration = Duration::from_millis(60);

/// How long a client is waited for.
const LIVES: Duration = Duration::from_secs(30);

/// A question on its way, and where its answer goes.
enum Question {
    OfClient(FileRequest, OneshotSender<Answer>),
    OfShard(PeerAsk, OneshotSender<PeerAnswer>),
}

/// The process of a server.
struct Server {
    process: ProcessId,
    asked: Sender<Question>,
    /// What its shard holds, once it is asked for.
    shard: Rc<RefCell<Option<Shard<VolumeMedium>>>>,
}

/// The shards, and what becomes of their servers and messages.
pub(super) struct Scene {
    stage: Rc<Stage>,
    /// The servers of each shard that there were, the newest last.
    servers: RefCell<[Vec<Server>; VOLUMES.len()]>,
    started: Cell<usize>,
    is_ending: Cell<bool>,
    is_quiet: Cell<bool>,
}

/// How a shard reaches the others.
struct Wire(Rc<Scene>);

impl Peers for Wire {
    fn ask(&self, shard: u16, ask: PeerAsk) -> Pin<Box<dyn Future<Output = Option<PeerAnswer>>>> {
        let scene = self.0.clone();
        Box::pin(async move {
            if !scene.is_quiet.get() && random_below(8) == 0 {
                let (scene, ask) = (scene.clone(), ask.clone());
                spawn(async move {
                    sleep(Duration::from_micros(random_below(300_000))).await;
                    scene.ask_shard(shard, ask).await
                });
            }
            scene.ask_shard(shard, ask).await
        })
    }
}

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let scene = Scene::set().await?;
    let clients: Vec<_> = (1..=CLIENTS).map(|n| spawn(Client::new(&scene, n).live())).collect();
    let movers = scene.start_movers(MOVERS).await?;
    for _ in 0..2 + random_below(3) {
        sleep(Duration::from_millis(random_below(150))).await;
        scene.trouble_one().await?;
    }
    sleep(Duration::from_millis(random_below(150))).await;
    scene.end();
    let mut worked = Vec::new();
    for client in clients {
        worked.push(client.await.map_err(|_| "a client was killed".to_owned())??);
    }
    end_of(movers).await?;
    scene.check().await?;
    for (mut client, mut model) in worked {
        client.look(&mut model).await?;
    }
    Ok(())
}

/// Each of two directories has another one in it, and is moved into that of the other one at the same time:
/// if both were moved, they would be below themselves. Then what was moved goes back.
///
/// # Errors
/// What is wrong.
pub async fn run_moved() -> Result<(), String> {
    let scene = Scene::set().await?;
    let mut client = Client::new(&scene, 1);
    let mut homes = Vec::new();
    for n in 0..2 {
        let home = client.make_directory(InodeNumber::ROOT, format!("home {n}")).await?;
        let moved = client.make_directory(home, "moved".to_owned()).await?;
        homes.push((home, moved, client.make_directory(moved, "below".to_owned()).await?));
    }
    let mut movers = [Client::new(&scene, 2), Client::new(&scene, 3)];
    let name_in = |directory| NameIn { directory, name: b"moved".to_vec() };
    let until = now() + MOVED_FOR;
    while now() < until {
        let moves = movers.iter_mut().enumerate().map(|(n, mover)| {
            let rename = Operation::Rename(name_in(homes[n].0), name_in(homes[1 - n].2), RenameMode::Keep);
            async move {
                sleep(Duration::from_micros(random_below(4_000))).await;
                mover.carry_out(rename).await
            }
        });
        let mut moved = Vec::new();
        for (n, answer) in join_all(moves).await.into_iter().enumerate() {
            match answer? {
                Answer::Attributes(_) => moved.push(n),
                // The other one is there.
                Answer::Failed(FileError::Invalid) => {}
                other => return Err(format!("directory {n} is moved: {other:?}")),
            }
        }
        if moved.len() > 1 {
            return Err("each of two directories is below the other one".to_owned());
        }
        for n in moved {
            let back = Operation::Rename(name_in(homes[1 - n].2), name_in(homes[n].0), RenameMode::Keep);
            client.carry_out(back).await?;
        }
    }
    scene.is_ending.set(true);
    scene.check().await
}

type Mover = weft_rt::JoinHandle<Result<(), String>>;

async fn end_of(movers: Vec<Mover>) -> Result<(), String> {
    for mover in movers {
        mover.await.map_err(|_| "a client was killed".to_owned())??;
    }
    Ok(())
}

impl Scene {
    pub(super) async fn set() -> Result<Rc<Scene>, String> {
        let stage = Stage::set(3, 2).await;
        for name in &VOLUMES[1..] {
            stage.bed.create_volume(name, 2, 1).await;
        }
        let scene = Rc::new(Scene {
            stage,
            servers: RefCell::default(),
            started: Cell::new(0),
            is_ending: Cell::new(false),
            is_quiet: Cell::new(false),
        });
        for shard in 0..VOLUMES.len() {
            scene.start_server(shard).await?;
        }
        Ok(scene)
    }

    /// What clients do comes to its end: messages arrive at the newest servers, and nothing is cut off.
    pub(super) fn end(&self) {
        self.is_ending.set(true);
        self.stage.heal();
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.get()
    }

    /// No message is lost any more, or comes twice.
    pub(super) fn quiet(&self) {
        self.is_quiet.set(true);
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.is_quiet.get()
    }

    /// The shards that the newest servers have opened.
    pub(super) fn newest(&self) -> Vec<Shard<VolumeMedium>> {
        let servers = self.servers.borrow();
        servers.iter().filter_map(|servers| servers.last()?.shard.borrow().clone()).collect()
    }

    async fn start_movers(self: &Rc<Scene>, movers: u64) -> Result<Vec<Mover>, String> {
        let (home, moved) = make_directories(&mut Client::new(self, CLIENTS + 1)).await?;
        let movers = (1..=movers).map(|n| {
            let (client, moved) = (Client::new(self, CLIENTS + 1 + n), moved.clone());
            spawn(move_directories(client, home, moved))
        });
        Ok(movers.collect())
    }

    /// When all messages have arrived, the shards agree.
    async fn check(&self) -> Result<(), String> {
        self.quiet();
        sleep(Duration::from_secs(4)).await;
        check(&self.items())
    }

    /// The server of a shard is cut off or dies, or neither, and another one takes its place.
    pub(super) async fn trouble_one(self: &Rc<Scene>) -> Result<(), String> {
        let shard = random_below(VOLUMES.len() as u64) as usize;
        let process = self.servers.borrow()[shard].last().expect("one is there").process;
        match random_below(3) {
            0 => sim::kill(process, Crash::Process),
            1 => {
                let node = random_below(3) as usize;
                let (stage, lasts) = (self.stage.clone(), Duration::from_millis(random_below(120)));
                spawn(async move { stage.isolate(node, lasts).await });
            }
            // It does not hear that it is fenced.
            _ => self.stage.cut(client_host(self.started.get() - 1), crate::manager_host(), true),
        }
        self.start_server(shard).await
    }

    /// The next server takes a shard over. Returns once it serves.
    async fn start_server(self: &Rc<Scene>, shard: usize) -> Result<(), String> {
        let n = self.started.replace(self.started.get() + 1);
        let (asked, mut questions) = queue::<Question>();
        let (started, is_started) = oneshot::<Result<(), String>>();
        let (scene, kept) = (self.clone(), Rc::new(RefCell::new(None)));
        let of_process = kept.clone();
        let process = sim::spawn_process(client_host(n), "meta", async move {
            let volume = take_alone_of(&scene.stage, VOLUMES[shard], "meta").await;
            let medium = VolumeMedium::new(volume);
            let name = ShardName { file_system: 5, shard: shard as u16 };
            if n < VOLUMES.len() {
                let format = ShardFormat {
                    log_blocks: LOG_BLOCKS,
                    is_spread: true,
                    ..ShardFormat::new(name, [3; 16], [0; 12])
                };
                if let Err(error) = format_shard(&medium, &format).await {
                    return started.send(Err(error.to_string()));
                }
            }
            let served = match Shard::open(medium).await {
                Ok(served) => served,
                Err(error) => return started.send(Err(format!("server {n} cannot open {shard}: {error}"))),
            };
            served.join_peers(Rc::new(Wire(scene.clone())), VOLUMES.len() as u16);
            of_process.replace(Some(served.clone()));
            started.send(Ok(()));
            let under_way: Rc<RefCell<BTreeSet<(SessionId, u64)>>> = Rc::default();
            while let Some(question) = questions.recv().await {
                let served = served.clone();
                // As in a node: what is asked for again while it is under way is not begun again.
                let key = match &question {
                    Question::OfClient(request, _) if request.number > 0 => {
                        Some((request.session, request.number))
                    }
                    _ => None,
                };
                if key.is_some_and(|key| !under_way.borrow_mut().insert(key)) {
                    continue;
                }
                let under_way = under_way.clone();
                // Some answers are lost.
                let is_lost = !scene.is_quiet.get() && random_below(12) == 0;
                spawn(async move {
                    match question {
                        Question::OfClient(request, answers) => match served.serve(&request).await {
                            Ok(answer) if !is_lost => answers.send(answer),
                            _ => {}
                        },
                        Question::OfShard(ask, answers) => match served.answer_peer(&ask).await {
                            Ok(answer) if !is_lost => answers.send(answer),
                            _ => {}
                        },
                    }
                    if let Some(key) = key {
                        under_way.borrow_mut().remove(&key);
                    }
                });
            }
        });
        let outcome = timeout(Duration::from_secs(20), is_started).await;
        self.servers.borrow_mut()[shard].push(Server { process, asked, shard: kept });
        match outcome {
            Ok(Some(started)) => started,
            _ => Err(format!("server {n} does not take shard {shard} over")),
        }
    }

    /// Sends a question to the newest server of a shard, or to one before it.
    fn send(&self, shard: u16, question: Question) {
        let servers = self.servers.borrow();
        let servers = &servers[usize::from(shard)];
        let is_late = !self.is_ending.get() && random_below(8) == 0;
        let server = if is_late { random_below(servers.len() as u64) as usize } else { servers.len() - 1 };
        let _ = servers[server].asked.send(question);
    }

    async fn ask_shard(&self, shard: u16, ask: PeerAsk) -> Option<PeerAnswer> {
        sleep(Duration::from_micros(random_below(1_500))).await;
        let (answers, answer) = oneshot();
        self.send(shard, Question::OfShard(ask, answers));
        timeout(PATIENCE, answer).await.ok()?
    }

    async fn ask(&self, shard: u16, request: &FileRequest) -> Option<Answer> {
        let (answers, answer) = oneshot();
        self.send(shard, Question::OfClient(request.clone(), answers));
        timeout(PATIENCE, answer).await.ok()?
    }

    /// What the newest servers hold.
    pub(super) fn items(&self) -> Vec<(Key, Value)> {
        let items = self.newest().into_iter().flat_map(|shard| {
            shard
                .with_tables(|tables| tables.items().map(|(k, v)| (k.clone(), v.clone())).collect::<Vec<_>>())
        });
        items.collect()
    }
}

/// A session with one operation at a time.
pub(super) struct Client {
    scene: Rc<Scene>,
    session: SessionId,
    /// The last number of an operation at each shard.
    numbers: BTreeMap<u16, u64>,
}

impl Client {
    pub(super) fn new(scene: &Rc<Scene>, session: u64) -> Client {
        Client { scene: scene.clone(), session: SessionId(session), numbers: BTreeMap::new() }
    }

    /// The number of its session.
    pub(super) fn number(&self) -> u64 {
        self.session.0
    }

    /// Has an operation carried out, and waits for transactions that are in its way.
    pub(super) async fn carry_out(&mut self, operation: Operation) -> Result<Answer, String> {
        loop {
            let answer = self.ask(operation.clone()).await?;
            if answer != Answer::Failed(FileError::Busy) {
                return Ok(answer);
            }
            self.ask(Operation::Await(Box::new(operation.clone()))).await?;
        }
    }

    /// Asks until an answer comes.
    async fn ask(&mut self, operation: Operation) -> Result<Answer, String> {
        let shard = operation.inode().shard();
        let last = self.numbers.entry(shard).or_default();
        *last += u64::from(operation.changes());
        let (number, answered) = (if operation.changes() { *last } else { 0 }, last.saturating_sub(1));
        let request = FileRequest { session: self.session, number, answered, operation };
        let until = now() + LIVES;
        while now() < until {
            if let Some(answer) = self.scene.ask(shard, &request).await {
                return Ok(answer);
            }
            sleep(Duration::from_millis(1)).await;
        }
        Err(format!("{:?} of {:?} is never answered", request.operation, self.session))
    }

    /// Has an operation carried out as users see it: what lies in another shard is asked for there.
    async fn whole(&mut self, operation: Operation) -> Result<Answer, String> {
        Ok(match self.carry_out(operation).await? {
            Answer::Elsewhere(inode, _) => self.carry_out(Operation::Attributes(inode)).await?,
            Answer::Listed(mut listed) => {
                for entry in listed.entries.iter_mut().filter(|entry| entry.attributes.revision == 0) {
                    let inode = entry.attributes.inode;
                    match self.carry_out(Operation::Attributes(inode)).await? {
                        Answer::Attributes(found) => entry.attributes = found,
                        other => return Err(format!("{inode} has a name: {other:?}")),
                    }
                }
                Answer::Listed(listed)
            }
            answer => answer,
        })
    }

    pub(super) async fn make_directory(
        &mut self,
        directory: InodeNumber,
        name: String,
    ) -> Result<InodeNumber, String> {
        let at = NameIn { directory, name: name.into_bytes() };
        let (kind, mode) = (FileKind::Directory, 0o755);
        let new = NewInode { kind, mode, umask: 0, uid: 0, gid: 0, device: 0, target: Vec::new() };
        match self.carry_out(Operation::Create(at, new)).await? {
            Answer::Attributes(Attributes { inode, .. }) => Ok(inode),
            other => Err(format!("{:?} has no directory: {other:?}", self.session)),
        }
    }

    /// Makes a directory, and works in it.
    async fn live(mut self) -> Result<(Client, FileModel), String> {
        let name = format!("client {}", self.session.0);
        let mut model = FileModel::below(self.make_directory(InodeNumber::ROOT, name).await?);
        let until = now() + LIVES;
        while !self.scene.is_ending.get() && now() < until {
            let operation = model.any_operation(&mut random_below);
            let answer = self.whole(operation.clone()).await?;
            model.judge(&operation, &answer).map_err(|what| format!("{:?}: {what}", self.session))?;
            sleep(Duration::from_micros(random_below(1_000))).await;
        }
        Ok((self, model))
    }

    /// Looks at what is left, when nothing changes any more.
    async fn look(&mut self, model: &mut FileModel) -> Result<(), String> {
        for _ in 0..200 {
            let operation = model.any_operation(&mut random_below);
            if !operation.changes() {
                let answer = self.whole(operation.clone()).await?;
                let judged = model.judge(&operation, &answer);
                judged.map_err(|what| format!("at the end, {:?}: {what}", self.session))?;
            }
        }
        Ok(())
    }
}

/// The name of a directory, wherever it is.
fn name_in(directory: InodeNumber, of: InodeNumber) -> NameIn {
    NameIn { directory, name: of.to_string().into_bytes() }
}

/// Makes directories that others move.
async fn make_directories(client: &mut Client) -> Result<(InodeNumber, Vec<InodeNumber>), String> {
    let home = client.make_directory(InodeNumber::ROOT, "moved".to_owned()).await?;
    let mut made = Vec::new();
    for n in 0..MOVED {
        let name = format!("new {n}");
        let directory = client.make_directory(home, name.clone()).await?;
        let from = NameIn { directory: home, name: name.into_bytes() };
        client.carry_out(Operation::Rename(from, name_in(home, directory), RenameMode::Keep)).await?;
        made.push(directory);
    }
    Ok((home, made))
}

/// Moves directories into each other. Where each is, the client does not know.
async fn move_directories(
    mut client: Client,
    home: InodeNumber,
    moved: Vec<InodeNumber>,
) -> Result<(), String> {
    let any = || moved[random_below(moved.len() as u64) as usize];
    while !client.scene.is_ending.get() {
        let (what, to) = (any(), any());
        let from = if random_below(3) == 0 { home } else { any() };
        let mode = [RenameMode::Replace, RenameMode::Exchange][random_below(2) as usize];
        let rename = Operation::Rename(name_in(from, what), name_in(to, what), mode);
        match client.carry_out(rename).await? {
            Answer::Attributes(_) => {}
            Answer::Failed(FileError::NotFound | FileError::Invalid | FileError::NotEmpty) => {}
            other => return Err(format!("a directory is moved: {other:?}")),
        }
    }
    Ok(())
}

/// What the entries of all shards say of an inode.
#[derive(Default)]
struct Named {
    names: u32,
    parent: Option<InodeNumber>,
    entries: u64,
    directories: u32,
}

/// All inodes, parts of directories, and what entries say.
#[derive(Default)]
struct Whole {
    inodes: BTreeMap<InodeNumber, Inode>,
    parts: BTreeMap<InodeNumber, Part>,
    named: BTreeMap<InodeNumber, Named>,
}

/// Compares names, inodes and counters of all shards, and finds no transaction that is not over.
fn check(items: &[(Key, Value)]) -> Result<(), String> {
    let mut whole = Whole::default();
    for (key, value) in items {
        let decoded = match key.parts() {
            Some(KeyParts::Entry(directory, ..)) => Entry::decode(value).map(|e| whole.see(directory, e)),
            Some(KeyParts::Inode(inode)) => Inode::decode(value).map(|found| {
                whole.inodes.insert(inode, found);
            }),
            Some(KeyParts::Part(inode, _)) => Part::decode(value).map(|part| {
                whole.parts.insert(inode, part);
            }),
            Some(KeyParts::Committed(..)) => return Err(format!("{key:?} is not over")),
            // The first byte says whether its changes are made.
            Some(KeyParts::Prepared(..)) if value[0] == 0 => return Err(format!("{key:?} is not over")),
            _ => Ok(()),
        };
        decoded.map_err(|error| format!("{key:?}: {error}"))?;
    }
    whole.inodes.keys().try_for_each(|inode| whole.check_inode(*inode))?;
    let is_missing = |(inode, of): &(&InodeNumber, &Named)| of.names > 0 && !whole.inodes.contains_key(inode);
    match whole.named.iter().find(is_missing) {
        Some((inode, _)) => Err(format!("inode {inode} has a name, and is not there")),
        None => Ok(()),
    }
}

impl Whole {
    fn see(&mut self, directory: InodeNumber, entry: Entry) {
        let named = self.named.entry(entry.inode).or_default();
        (named.names, named.parent) = (named.names + 1, Some(directory));
        let of = self.named.entry(directory).or_default();
        of.entries += 1;
        of.directories += u32::from(entry.kind == FileKind::Directory);
    }

    fn check_inode(&self, inode: InodeNumber) -> Result<(), String> {
        let (found, nothing) = (&self.inodes[&inode], Named::default());
        let of = self.named.get(&inode).unwrap_or(&nothing);
        let is_root = inode == InodeNumber::ROOT;
        let links = if found.is_directory() && (of.names == 1 || is_root) { 2 } else { of.names };
        if found.attributes.links != links {
            return Err(format!("inode {inode} says {} links and has {links}", found.attributes.links));
        }
        if !found.is_directory() {
            return Ok(());
        }
        if of.names > 0 && Some(found.parent) != of.parent {
            return Err(format!("directory {inode} says parent {}, and is in {:?}", found.parent, of.parent));
        }
        let part = self.parts.get(&inode).copied().unwrap_or_default();
        if (part.entries, part.directories) != (of.entries, of.directories) {
            return Err(format!("directory {inode} counts {part:?}, and has {} entries", of.entries));
        }
        let mut at = inode;
        for _ in 0..=self.inodes.len() {
            match self.inodes.get(&at).filter(|above| above.attributes.links > 0 && above.parent != at) {
                Some(above) => at = above.parent,
                None => return Ok(()),
            }
        }
        Err(format!("directory {inode} is below itself"))
    }
}
