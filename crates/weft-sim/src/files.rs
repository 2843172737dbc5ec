//! A client that has mounted a file system and dies again and again. The next one finds what was acknowledged
//! before: names at once, bytes with the size that the shard knows, and nothing else behind the end (F8, F9).

use crate::bed::Bed;
use crate::clients::client_host;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;
use weft_checker::{Change, Contents};
use weft_client::{AttachMode, Fabric};
use weft_fs::{Files, FsError, HowToOpen, Mount};
use weft_rt::sim::{self, Crash};
use weft_rt::sync::join_all;
use weft_rt::{Buf, now, random_below, random_u64, sleep};
use weft_types::{Attributes, FileKind, InodeNumber};
use weft_wire::files::{AttributeChanges, FileError, NewInode, RenameMode};

/// Names that files have.
const NAMES: u64 = 5;

/// Most writes begin within so many parts, and some anywhere within so many, more than is reserved at once.
const NEAR_PARTS: u64 = 60;
const FAR_PARTS: u64 = 1_500;

/// Parts that are written by one call, at most.
const PARTS_MAX: u64 = 20;

/// Files that are open at once, at most.
const OPEN_MAX: usize = 4;

/// The name of the directory that all files are in.
const HOME: &[u8] = b"home";

/// What a name may have: inodes by name. A file whose number is not known, because its maker died, has this.
type Names = BTreeMap<u64, InodeNumber>;
const UNKNOWN: InodeNumber = InodeNumber(0);

/// How a client behaves.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// How long an operation may take: nodes die meanwhile, and come back.
    pub patience: Duration,
    /// How long it rests between two operations, at most.
    pub think: Duration,
    /// How long it lives, at most.
    pub lives: Duration,
    /// Whether the drives may be full at times.
    pub may_fill: bool,
}

/// A client that mounts, and what its files may hold.
pub struct FilesClient {
    bed: Rc<Bed>,
    file_system: &'static str,
    habits: Habits,
    is_over: Cell<bool>,
    /// A file is being changed.
    is_changing: Cell<bool>,
    has_finished: Cell<bool>,
    found: RefCell<Option<String>>,
    known: RefCell<Known>,
}

/// What is known of the files.
struct Known {
    /// One of these is what there is.
    names: Vec<Names>,
    files: BTreeMap<InodeNumber, Contents>,
}

/// Why a life ends early.
enum End {
    /// The session is over.
    Over,
    /// Something is wrong.
    Wrong(String),
}

impl From<String> for End {
    fn from(what: String) -> End {
        End::Wrong(what)
    }
}

impl FilesClient {
    /// Starts it on the host of this client.
    pub fn start(bed: &Rc<Bed>, file_system: &'static str, habits: Habits, host: usize) -> Rc<FilesClient> {
        let client = Rc::new(FilesClient {
            bed: bed.clone(),
            file_system,
            habits,
            is_over: Cell::new(false),
            is_changing: Cell::new(false),
            has_finished: Cell::new(false),
            found: RefCell::new(None),
            known: RefCell::new(Known { names: vec![Names::new()], files: BTreeMap::new() }),
        });
        weft_rt::spawn(live_again_and_again(client.clone(), host));
        client
    }

    /// Has it come to its end.
    ///
    /// # Errors
    /// What it has found, or that it does not end.
    pub async fn finish(&self) -> Result<(), String> {
        self.is_over.set(true);
        let from = now();
        while !self.has_finished.get() && self.found.borrow().is_none() {
            if from.elapsed() > 2 * self.habits.patience {
                return Err("a client of files does not end".to_owned());
            }
            sleep(Duration::from_millis(10)).await;
        }
        self.found.take().map_or(Ok(()), Err)
    }
}

/// One process after another, until all is over. The last one ends in order.
async fn live_again_and_again(client: Rc<FilesClient>, host: usize) {
    for life in 0.. {
        let ended = Rc::new(Cell::new(false));
        let (own, is_ended) = (client.clone(), ended.clone());
        let process = sim::spawn_process(client_host(host), &format!("files-{life}"), async move {
            match live(&own).await {
                Ok(()) | Err(End::Over) => {}
                Err(End::Wrong(what)) => {
                    own.found.borrow_mut().get_or_insert(format!("life {life} of files: {what}"));
                }
            }
            is_ended.set(true);
        });
        let dies = (random_below(4) > 0).then(|| now() + client.habits.lives.mul_f64(fraction()));
        while !ended.get() && (client.is_over.get() || dies.is_none_or(|dies| now() < dies)) {
            sleep(Duration::from_micros(1 + random_below(2_000))).await;
        }
        // Rather in the middle of a change than between two.
        let patience = now() + client.habits.think;
        while !ended.get() && !client.is_changing.get() && now() < patience {
            sleep(Duration::from_micros(20)).await;
        }
        sleep(Duration::from_micros(random_below(600))).await;
        let in_order = ended.get();
        sim::kill(process, Crash::Process);
        if client.found.borrow().is_some() || client.is_over.get() && in_order {
            break;
        }
        sleep(Duration::from_micros(random_below(50_000))).await;
    }
    client.has_finished.set(true);
}

fn fraction() -> f64 {
    random_below(1_000) as f64 / 1_000.0
}

/// Mounts, looks at all that there is, works for a while, and unmounts.
async fn live(client: &Rc<FilesClient>) -> Result<(), End> {
    client.is_changing.set(false);
    let files = begin(client).await;
    let mut life = Life { client: client.clone(), home: InodeNumber::ROOT, files, open: Vec::new() };
    let ended = life.run().await;
    if matches!(ended, Err(End::Over)) {
        sim::tell(|| "the session of files is over".to_owned());
    }
    let told = life.files.end().await;
    if ended.is_ok() && told.is_ok() {
        client.known.borrow_mut().files.values_mut().for_each(Contents::make_durable);
    }
    ended
}

/// Mounts, once the mount before is over.
async fn begin(client: &FilesClient) -> Files {
    loop {
        let name = format!("mount {}", random_u64());
        if let Ok(fabric) = Fabric::connect(&client.bed.managers(), &name).await {
            let patience = client.habits.patience;
            let mount = Mount::attach(&fabric, client.file_system, AttachMode::Shared, patience).await;
            if let Ok(mount) = mount {
                match Files::begin(mount.clone()).await {
                    Ok(files) => return files,
                    Err(_) => mount.detach().await,
                }
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Something that is done to a file: whether it has happened.
type Going<'l> = Pin<Box<dyn Future<Output = Result<Option<()>, End>> + 'l>>;

/// How the size of a file is judged.
type JudgeSize = fn(&mut Contents, u64) -> Result<(), String>;

/// An open file of a life.
#[derive(Clone, Copy)]
struct Opened {
    handle: u64,
    inode: InodeNumber,
}

/// A mount, as long as its process lives.
struct Life {
    client: Rc<FilesClient>,
    home: InodeNumber,
    files: Files,
    open: Vec<Opened>,
}

impl Life {
    async fn run(&mut self) -> Result<(), End> {
        self.home = self.find_home().await?;
        self.look_at_all(Contents::reopen).await?;
        while !self.client.is_over.get() && random_below(300) > 0 {
            self.step().await?;
            sleep(Duration::from_micros(random_below(self.client.habits.think.as_micros() as u64 + 1))).await;
        }
        for opened in std::mem::take(&mut self.open) {
            self.files.release(opened.handle).await;
        }
        self.look_at_all(Contents::settle).await
    }

    async fn find_home(&self) -> Result<InodeNumber, End> {
        loop {
            match self.judge(self.files.find(InodeNumber::ROOT, HOME).await).await {
                Ok(Some(home)) => return Ok(home.inode),
                Ok(None) => {}
                Err(end) => return Err(end),
            }
            let new = NewInode { kind: FileKind::Directory, ..new_file() };
            let made = self.files.make(InodeNumber::ROOT, HOME, new).await;
            if let Some(home) = self.judge(made).await? {
                return Ok(home.inode);
            }
            sleep(self.client.habits.think).await;
        }
    }

    /// What an operation has brought; none if it was refused for a reason that may be.
    async fn judge<T>(&self, result: Result<T, FsError>) -> Result<Option<T>, End> {
        let error = match result {
            Ok(value) => return Ok(Some(value)),
            Err(error) => error,
        };
        match error.refusal() {
            Some(FileError::NoSpace) if self.client.habits.may_fill => return Ok(None),
            Some(FileError::NotFound) => return Ok(None),
            _ => {}
        }
        // What is broken for whoever has no session any more is no surprise.
        match self.files.attributes(InodeNumber::ROOT).await {
            Err(FsError::SessionOver { .. }) => Err(End::Over),
            _ => Err(End::Wrong(error.to_string())),
        }
    }

    /// Compares all names and files with what there may be.
    async fn look_at_all(&mut self, judge_size: JudgeSize) -> Result<(), End> {
        let Some(listed) = self.judge(self.files.list(self.home, 0, 1_000).await).await? else {
            return Err(End::Wrong("the directory is gone".to_owned()));
        };
        let mut found = Names::new();
        for entry in listed.entries {
            let name = std::str::from_utf8(&entry.name).ok().and_then(|name| name.parse().ok());
            let name = name.ok_or_else(|| format!("nobody gave the name {:?}", entry.name))?;
            found.insert(name, entry.attributes.inode);
        }
        self.settle_names(&found)?;
        for inode in found.values() {
            self.look_at(*inode, judge_size).await?;
        }
        Ok(())
    }

    /// These names are there.
    fn settle_names(&self, found: &Names) -> Result<(), String> {
        let mut known = self.client.known.borrow_mut();
        let Known { names, files } = &mut *known;
        let is_this = |names: &Names| {
            names.len() == found.len()
                && found.iter().all(|(name, inode)| match names.get(name) {
                    Some(&UNKNOWN) => !files.contains_key(inode),
                    known => known == Some(inode),
                })
        };
        if !names.iter().any(is_this) {
            return Err(format!("the names are {found:?}, and may be {names:?}"));
        }
        *names = vec![found.clone()];
        for inode in found.values() {
            files.entry(*inode).or_insert_with(|| Contents::empty(random_below(512)));
        }
        let open: Vec<InodeNumber> = self.open.iter().map(|opened| opened.inode).collect();
        files.retain(|inode, _| found.values().any(|named| named == inode) || open.contains(inode));
        Ok(())
    }

    /// Compares a file with what it may hold. Nobody has it open that may change it meanwhile.
    async fn look_at(&self, inode: InodeNumber, judge_size: JudgeSize) -> Result<(), End> {
        let Some(handle) = self.judge(self.files.open(inode, HowToOpen::default()).await).await? else {
            return Err(End::Wrong(format!("inode {inode} has a name and is not there")));
        };
        let looked = self.settle(Opened { handle, inode }, judge_size).await;
        self.files.release(handle).await;
        looked
    }

    /// Reads all of a file, whose size is judged first.
    async fn settle(&self, opened: Opened, judge_size: JudgeSize) -> Result<(), End> {
        let Opened { handle, inode } = opened;
        let Some(found) = self.judge(self.files.attributes(inode).await).await? else {
            return Err(End::Wrong(format!("inode {inode} is gone")));
        };
        self.with(inode, |file| judge_size(file, found.size))?;
        let parts = self.with(inode, |file| Ok(file.parts()))?;
        for first in (0..parts + 1).step_by(200) {
            self.read(Opened { handle, inode }, first, 200).await?;
        }
        Ok(())
    }

    /// What is known of a file, changed or asked.
    fn with<T>(
        &self,
        inode: InodeNumber,
        ask: impl FnOnce(&mut Contents) -> Result<T, String>,
    ) -> Result<T, String> {
        let mut known = self.client.known.borrow_mut();
        let file = known.files.get_mut(&inode).ok_or_else(|| format!("nothing is known of inode {inode}"))?;
        ask(file).map_err(|what| format!("inode {inode}: {what}"))
    }

    async fn read(&self, opened: Opened, first: u64, parts: u64) -> Result<(), End> {
        let (from, length) =
            self.with(opened.inode, |file| Ok((file.position(first), file.bytes(first, parts))))?;
        if let Some(bufs) = self.judge(self.files.read(opened.handle, from, length).await).await? {
            self.with(opened.inode, |file| file.judge(first, parts, &whole(&bufs)))?;
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<(), End> {
        let opened = self.open.get(random_below(OPEN_MAX as u64) as usize).copied();
        match (random_below(20), opened) {
            (0..3, _) => self.open_or_create(random_below(NAMES)).await,
            (3, _) => self.unlink(random_below(NAMES)).await,
            (4, _) => self.rename(random_below(NAMES), random_below(NAMES)).await,
            (5, Some(_)) => {
                let n = random_below(self.open.len() as u64) as usize;
                let opened = self.open.swap_remove(n);
                self.files.release(opened.handle).await;
                Ok(())
            }
            (6..10, Some(opened)) => self.read(opened, any_part(), 1 + random_below(NEAR_PARTS)).await,
            (10, Some(opened)) => {
                let told = match random_below(3) {
                    0 => self.files.flush(opened.handle).await,
                    1 => self.files.sync(opened.inode).await,
                    _ => self.files.sync_all().await,
                };
                if self.judge(told).await?.is_some() {
                    self.with(opened.inode, |file| {
                        file.make_durable();
                        Ok(())
                    })?;
                }
                Ok(())
            }
            (11, Some(opened)) => self.seek(opened).await,
            (12.., Some(opened)) => self.change(opened).await,
            (_, None) => Ok(()),
        }
    }

    fn names(&self) -> Names {
        self.client.known.borrow().names[0].clone()
    }

    /// One more state may be what there is from now on.
    fn names_may_be(&self, names: Names) {
        self.client.known.borrow_mut().names.push(names);
    }

    /// Whether what was done last has happened.
    fn names_are(&self, has_changed: bool) {
        let mut known = self.client.known.borrow_mut();
        let names = known.names.swap_remove(usize::from(has_changed));
        known.names = vec![names];
    }

    async fn open_or_create(&mut self, name: u64) -> Result<(), End> {
        if self.open.len() == OPEN_MAX {
            return Ok(());
        }
        let (inode, handle) = match self.names().get(&name) {
            Some(&inode) => {
                let truncates = random_below(4) == 0;
                if truncates {
                    self.with(inode, |file| {
                        file.begin(Change::Resize(0));
                        Ok(())
                    })?;
                }
                let opened = self.files.open(inode, HowToOpen { writes: true, truncates }).await;
                let opened = self.judge(opened).await?;
                if truncates {
                    self.end_changes(Opened { handle: opened.unwrap_or(0), inode }, opened.is_some()).await?;
                }
                let Some(handle) = opened else { return Ok(()) };
                (inode, handle)
            }
            None => {
                let after = self.names().into_iter().chain([(name, UNKNOWN)]).collect();
                self.names_may_be(after);
                let made = self.files.create(self.home, name.to_string().as_bytes(), new_file()).await;
                let Some((made, handle)) = self.judge(made).await? else {
                    return self.look_again().await;
                };
                self.is_made(name, &made);
                (made.inode, handle)
            }
        };
        self.open.push(Opened { handle, inode });
        Ok(())
    }

    fn is_made(&self, name: u64, made: &Attributes) {
        self.names_are(true);
        let mut known = self.client.known.borrow_mut();
        known.names[0].insert(name, made.inode);
        known.files.insert(made.inode, Contents::empty(random_below(512)));
    }

    /// Something was refused: which names there are is seen.
    async fn look_again(&self) -> Result<(), End> {
        let listed = self.judge(self.files.list(self.home, 0, 1_000).await).await?;
        let Some(listed) = listed else { return Err(End::Wrong("the directory is gone".to_owned())) };
        let found = listed.entries.iter().map(|entry| {
            let name = String::from_utf8_lossy(&entry.name).parse().unwrap_or(NAMES);
            (name, entry.attributes.inode)
        });
        Ok(self.settle_names(&found.collect())?)
    }

    async fn unlink(&self, name: u64) -> Result<(), End> {
        let mut after = self.names();
        if after.remove(&name).is_none() {
            return Ok(());
        }
        self.names_may_be(after);
        let unlinked = self.files.unlink(self.home, name.to_string().as_bytes()).await;
        let has_happened = self.judge(unlinked).await?.is_some();
        self.names_are(has_happened);
        Ok(())
    }

    async fn rename(&self, from: u64, to: u64) -> Result<(), End> {
        let mut after = self.names();
        let Some(moved) = after.get(&from).copied() else { return Ok(()) };
        if after.get(&to) != Some(&moved) {
            after.remove(&from);
            after.insert(to, moved);
        }
        self.names_may_be(after);
        let (from, to) = (from.to_string(), to.to_string());
        let (from, to) = ((self.home, from.as_bytes()), (self.home, to.as_bytes()));
        let renamed = self.files.rename(from, to, RenameMode::Replace).await;
        let has_happened = self.judge(renamed).await?.is_some();
        self.names_are(has_happened);
        Ok(())
    }

    /// What is said to be a hole reads as zeroes.
    async fn seek(&self, opened: Opened) -> Result<(), End> {
        let first = any_part();
        let from = self.with(opened.inode, |file| Ok(file.position(first)))?;
        let found = self.judge(self.files.seek(opened.handle, from, true).await).await?.flatten();
        let size = self.with(opened.inode, |file| Ok(file.position(file.parts())))?;
        let end = found.unwrap_or(size);
        self.with(opened.inode, |file| {
            let parts = (0..).take_while(|parts| from + file.bytes(first, parts + 1) <= end).count() as u64;
            file.judge(first, parts, &vec![0; file.bytes(first, parts) as usize])
        })?;
        Ok(())
    }

    /// Some changes of a file at once, and reads beside them.
    async fn change(&self, opened: Opened) -> Result<(), End> {
        let changes = any_changes();
        let changes: Vec<Change> = changes
            .into_iter()
            .map(|change| {
                self.with(opened.inode, |file| {
                    let change = match change {
                        Change::Write { first, parts, .. } => {
                            Change::Write { first, parts, value: file.next_value() }
                        }
                        change => change,
                    };
                    file.begin(change);
                    Ok(change)
                })
            })
            .collect::<Result<_, _>>()?;
        let mut going: Vec<Going<'_>> = Vec::new();
        for change in changes {
            going.push(Box::pin(async move { self.judge(self.carry_out(opened, change).await).await }));
        }
        for _ in 0..random_below(3) {
            let (first, parts) = (any_part(), 1 + random_below(NEAR_PARTS));
            going.push(Box::pin(async move { self.read(opened, first, parts).await.map(Some) }));
        }
        self.client.is_changing.set(true);
        let ended: Vec<Option<()>> = join_all(going).await.into_iter().collect::<Result<_, _>>()?;
        self.client.is_changing.set(false);
        self.end_changes(opened, ended.iter().all(Option::is_some)).await
    }

    /// What was begun has ended, all of it well or not.
    async fn end_changes(&self, opened: Opened, all: bool) -> Result<(), End> {
        self.with(opened.inode, |file| {
            if all {
                file.end()
            } else {
                file.give_up()
            }
            Ok(())
        })?;
        let is_uncertain = self.with(opened.inode, |file| Ok(file.is_uncertain()))?;
        match is_uncertain && opened.handle != 0 {
            true => self.settle(opened, Contents::settle).await,
            false => Ok(()),
        }
    }

    async fn carry_out(&self, opened: Opened, change: Change) -> Result<(), FsError> {
        let at = |part: u64| {
            self.with(opened.inode, |file| Ok(file.position(part))).expect("it is known while it is open")
        };
        let (files, handle) = (&self.files, opened.handle);
        match change {
            Change::Write { first, parts, value } => {
                let data = vec![value; (at(first + parts) - at(first)) as usize];
                files.write(handle, at(first), vec![Buf::from(data)]).await
            }
            Change::Zero { first, parts } => {
                files.zero(handle, at(first), at(first + parts) - at(first)).await
            }
            Change::Resize(to) => {
                let changes = AttributeChanges { size: Some(at(to)), ..Default::default() };
                files.change(opened.inode, changes).await.map(drop)
            }
            Change::Extend(to) => files.extend(handle, at(to)).await,
        }
    }
}

/// One change, or some at once whose ranges are apart.
fn any_changes() -> Vec<Change> {
    let mut changes = Vec::new();
    let mut at = any_part();
    for _ in 0..1 + random_below(3) * random_below(2) {
        let parts = 1 + random_below(PARTS_MAX);
        let change = match random_below(8) {
            0 => Change::Zero { first: at, parts },
            _ => Change::Write { first: at, parts, value: 0 },
        };
        changes.push(change);
        at += parts + random_below(NEAR_PARTS) * random_below(2);
    }
    let resize = match random_below(2) {
        0 => Change::Resize(any_part()),
        _ => Change::Extend(any_part()),
    };
    match random_below(12) {
        0 => changes.push(resize),
        1..4 => changes = vec![resize],
        _ => {}
    }
    changes
}

fn any_part() -> u64 {
    random_below(if random_below(8) == 0 { FAR_PARTS } else { NEAR_PARTS })
}

fn new_file() -> NewInode {
    NewInode { kind: FileKind::Regular, mode: 0o755, uid: 0, gid: 0, device: 0, target: Vec::new() }
}

fn whole(bufs: &[Buf]) -> Vec<u8> {
    bufs.iter().flat_map(|buf| buf.iter().copied()).collect()
}
