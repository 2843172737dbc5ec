//! Users of a file system that some machines have mounted: what one of them does is seen by all at once,
//! whatever mount it went through. Mounts die again and again. The others, or the next one, find what was
//! acknowledged before: names at once, bytes with the size that the shard knows, and nothing else behind the
//! end (F4, F8, F9).

use crate::bed::Bed;
use crate::mounts::{Died, Station};
use crate::refusals::Refusals;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;
use weft_checker::{Change, Contents};
use weft_fs::{Files, FsError, HowToOpen};
use weft_rt::sync::join_all;
use weft_rt::{Buf, Instant, now, random_below, sim, sleep, spawn};
use weft_types::{BLOCK_SIZE, FileKind, InodeNumber, SessionId};
use weft_wire::files::{AttributeChanges, FileError, NewInode, RenameMode};

/// Names that files have.
const NAMES: u64 = 5;

/// Most writes begin within so many parts, and some anywhere within so many, more than is reserved at once.
const NEAR_PARTS: u64 = 60;
const FAR_PARTS: u64 = 1_500;

/// Parts that are written by one call, at most.
const PARTS_MAX: u64 = 20;

/// A session is forgotten by a shard so long after the map has forgotten it.
pub const FORGOTTEN_WITHIN: Duration = Duration::from_secs(8);

/// Parts of a block.
const BLOCK_PARTS: u64 = 8;

/// Files that are open at once, at most.
const OPEN_MAX: usize = 6;

/// The name of the directory that all files are in.
const HOME: &[u8] = b"home";

/// Inodes by name. A file whose number is not known, because its maker has died, has this one.
type Names = BTreeMap<u64, InodeNumber>;
const UNKNOWN: InodeNumber = InodeNumber(0);

/// How the users behave.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Mounts.
    pub mounts: usize,
    /// How long an operation may take: nodes die meanwhile, and come back.
    pub patience: Duration,
    /// How long they rest between two operations, at most.
    pub think: Duration,
    /// How long a mount lives, at most.
    pub lives: Duration,
    /// What they may be refused.
    pub refusals: Refusals,
}

/// The users of some mounts, and what the files may hold.
pub struct FilesClient {
    bed: Rc<Bed>,
    habits: Habits,
    stations: Vec<Rc<Station>>,
    is_over: Cell<bool>,
    has_finished: Cell<bool>,
    /// A file is being changed.
    is_changing: Cell<bool>,
    /// A mount has died that may have shared a file: what it has not told may be seen when another one makes
    /// the file longer, until it is forgotten (F7).
    leaves_behind_end: Cell<bool>,
    found: RefCell<Option<String>>,
    known: RefCell<Known>,
    /// What the kernel of a mount keeps, by mount and name.
    kept: RefCell<BTreeMap<(usize, u64), Kept>>,
    home: Cell<InodeNumber>,
}

/// What is known of the files.
struct Known {
    /// One of these is what there is.
    names: Vec<Names>,
    files: BTreeMap<InodeNumber, Contents>,
    open: Vec<Opened>,
}

/// An open file of a mount.
#[derive(Clone, Copy, Debug)]
struct Opened {
    station: usize,
    life: u64,
    handle: u64,
    inode: InodeNumber,
}

/// What a kernel keeps of a name: the inode and its size, or that there is none.
#[derive(Clone, Copy)]
struct Kept {
    life: u64,
    until: Instant,
    seen: Option<(InodeNumber, u64)>,
}

/// Why something has not been done.
enum End {
    /// Its mount has died, or has no session any more. It may have happened.
    Died,
    /// Something is wrong.
    Wrong(String),
}

impl From<String> for End {
    fn from(what: String) -> End {
        End::Wrong(what)
    }
}

/// How the size of a file is judged.
type JudgeSize = fn(&mut Contents, u64) -> Result<(), String>;

/// Something that is done to a file: whether it has happened.
type Going<'l> = Pin<Box<dyn Future<Output = Result<Option<()>, End>> + 'l>>;

impl FilesClient {
    /// Starts them, with mounts on the hosts of the clients from this one on.
    pub fn start(bed: &Rc<Bed>, file_system: &'static str, habits: Habits, host: usize) -> Rc<FilesClient> {
        let hosts = host..host + habits.mounts;
        let station = |host| Station::start(bed, file_system, host, habits.patience);
        let client = Rc::new(FilesClient {
            bed: bed.clone(),
            habits,
            stations: hosts.map(station).collect(),
            is_over: Cell::new(false),
            has_finished: Cell::new(false),
            is_changing: Cell::new(false),
            leaves_behind_end: Cell::new(false),
            found: RefCell::new(None),
            known: RefCell::new(Known {
                names: vec![Names::new()],
                files: BTreeMap::new(),
                open: Vec::new(),
            }),
            kept: RefCell::default(),
            home: Cell::new(InodeNumber::ROOT),
        });
        if habits.refusals.full {
            // What is lost for want of space is not lost silently.
            client.stations.iter().for_each(|station| station.keep_nothing_back());
        }
        for n in 0..client.stations.len() {
            spawn(client.clone().let_die(n));
        }
        spawn(client.clone().use_files());
        client
    }

    /// Has them come to their end.
    ///
    /// # Errors
    /// What they have found, or that they do not end.
    pub async fn finish(&self) -> Result<(), String> {
        self.is_over.set(true);
        let from = now();
        while !self.has_finished.get() {
            if from.elapsed() > 2 * self.habits.patience {
                return Err("users of files do not end".to_owned());
            }
            sleep(Duration::from_millis(10)).await;
        }
        self.found.take().map_or(Ok(()), Err)
    }

    /// Kills a mount from time to time, rather in the middle of a change than between two.
    async fn let_die(self: Rc<Self>, n: usize) {
        while !self.is_over.get() {
            sleep(self.habits.lives.mul_f64(0.1 + fraction())).await;
            let patience = now() + self.habits.think;
            while !self.is_changing.get() && now() < patience {
                sleep(Duration::from_micros(20)).await;
            }
            sleep(Duration::from_micros(random_below(600))).await;
            if self.is_over.get() {
                return;
            }
            self.mount_anew(n);
        }
    }

    /// A mount dies, and with it what it has not told.
    fn mount_anew(&self, n: usize) {
        self.stations[n].mount_anew();
        let mut known = self.known.borrow_mut();
        known.open.retain(|opened| opened.station != n);
        known.files.values_mut().for_each(Contents::lose_writer);
    }

    async fn use_files(self: Rc<Self>) {
        let used = self.run().await;
        if let Err(End::Wrong(what)) = used {
            self.found.borrow_mut().get_or_insert(format!("files: {what}"));
        }
        self.has_finished.set(true);
    }

    async fn run(&self) -> Result<(), End> {
        self.until(async || self.find_home().await).await?;
        while !self.is_over.get() {
            match self.step().await {
                Ok(()) => {}
                Err(End::Died) => {
                    self.known.borrow_mut().files.values_mut().for_each(Contents::abandon);
                    if self.leaves_behind_end.take() {
                        self.until_forgotten().await;
                        sleep(FORGOTTEN_WITHIN).await;
                    }
                    self.settle_names_at_last().await?;
                }
                Err(wrong) => return Err(wrong),
            }
            sleep(Duration::from_micros(random_below(self.habits.think.as_micros() as u64 + 1))).await;
        }
        self.until(async || self.look_at_all(Contents::settle).await).await?;
        for station in &self.stations {
            let _ = station.end().await;
        }
        Ok(())
    }

    /// Does something until no mount dies meanwhile.
    async fn until<T>(&self, work: impl AsyncFn() -> Result<T, End>) -> Result<T, End> {
        loop {
            match work().await {
                Err(End::Died) => sleep(self.habits.think).await,
                done => return done,
            }
        }
    }

    fn lives(&self) -> Vec<u64> {
        self.stations.iter().map(|station| station.life()).collect()
    }

    fn any_station(&self) -> usize {
        random_below(self.stations.len() as u64) as usize
    }

    /// Has a mount do something. What is refused for a reason that may be is none.
    async fn on<T: 'static, F: Future<Output = Result<T, FsError>> + 'static>(
        &self,
        n: usize,
        job: impl FnOnce(Files) -> F + 'static,
    ) -> Result<Option<T>, End> {
        let station = &self.stations[n];
        let life = station.life();
        let error = match station.run(job).await {
            Ok(Ok(value)) => return Ok(Some(value)),
            Err(Died) => return Err(End::Died),
            Ok(Err(error)) => error,
        };
        match error.refusal() {
            Some(error) if self.habits.refusals.say(error) => return Ok(None),
            Some(FileError::NotFound) => return Ok(None),
            _ => {}
        }
        // What is broken for whoever has no session any more is no surprise.
        match station.run(|files| async move { files.attributes(InodeNumber::ROOT).await }).await {
            Ok(Err(FsError::SessionOver { .. })) => {
                sim::tell(|| format!("the session of mount {n} is over"));
                if station.life() == life {
                    self.mount_anew(n);
                }
                Err(End::Died)
            }
            Err(Died) => Err(End::Died),
            _ => Err(End::Wrong(format!("mount {n}: {error}"))),
        }
    }

    async fn find_home(&self) -> Result<(), End> {
        let n = self.any_station();
        loop {
            let found = self.on(n, |files| async move { files.find(InodeNumber::ROOT, HOME).await }).await?;
            let home = match found {
                Some(found) => Some(found),
                None => {
                    let new = NewInode { kind: FileKind::Directory, ..new_file() };
                    self.on(n, |files| async move { files.make(InodeNumber::ROOT, HOME, new).await }).await?
                }
            };
            if let Some(home) = home {
                self.home.set(home.inode);
                return Ok(());
            }
            sleep(self.habits.think).await;
        }
    }

    async fn step(&self) -> Result<(), End> {
        let opened = {
            let known = self.known.borrow();
            known.open.get(random_below(OPEN_MAX as u64) as usize).copied()
        };
        match (random_below(22), opened) {
            (20.., _) => self.look_up(self.any_station(), random_below(NAMES)).await,
            (0..4, _) => self.open_or_create(random_below(NAMES)).await,
            (4, _) => self.unlink(random_below(NAMES)).await,
            (5, _) => self.rename(random_below(NAMES), random_below(NAMES)).await,
            (6, Some(opened)) => self.release(opened).await,
            (7..10, Some(opened)) => self.read(opened, any_part(), 1 + random_below(NEAR_PARTS)).await,
            (10, Some(opened)) => self.sync(opened).await,
            (11, Some(opened)) => self.seek(opened).await,
            (12, Some(opened)) => self.settle(opened.station, opened.inode, Contents::settle).await,
            (13.., Some(opened)) => self.change(opened).await,
            (_, None) => Ok(()),
        }
    }

    // ---- names

    fn names(&self) -> Names {
        self.known.borrow().names[0].clone()
    }

    /// One more state may be what there is from now on.
    fn names_may_be(&self, names: Names) {
        self.known.borrow_mut().names.push(names);
    }

    /// Whether what was done last has happened.
    fn names_are(&self, has_changed: bool) {
        let mut known = self.known.borrow_mut();
        let names = known.names.swap_remove(usize::from(has_changed));
        known.names = vec![names];
    }

    /// Something is known of names again, after a mount has died while it changed some: nothing of it happens
    /// once all sessions are forgotten that were there.
    async fn settle_names_at_last(&self) -> Result<(), End> {
        if self.known.borrow().names.len() == 1 {
            return Ok(());
        }
        self.until_forgotten().await;
        self.until(async || self.list().await).await.map(drop)
    }

    /// Waits until all sessions are forgotten whose mounts have died.
    async fn until_forgotten(&self) {
        let map = self.bed.map().await;
        let mounts = map.sessions.values().filter(|session| session.client.starts_with("files "));
        let mut dead: Vec<SessionId> = mounts.map(|session| session.id).collect();
        while !dead.is_empty() {
            let map = self.bed.map().await;
            // One may have been opened whose mount has not heard of it by then.
            let lives = |id: &SessionId| self.stations.iter().any(|station| station.session() == Some(*id));
            dead.retain(|session| map.sessions.contains_key(session) && !lives(session));
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Compares all names with what there may be.
    async fn list(&self) -> Result<Names, End> {
        let home = self.home.get();
        let listed =
            self.on(self.any_station(), move |files| async move { files.list(home, 0, 1_000).await });
        let Some(listed) = listed.await? else {
            return Err(End::Wrong("the directory is gone".to_owned()));
        };
        let mut found = Names::new();
        for entry in listed.entries {
            let name = std::str::from_utf8(&entry.name).ok().and_then(|name| name.parse().ok());
            let name = name.ok_or_else(|| format!("nobody gave the name {:?}", entry.name))?;
            found.insert(name, entry.attributes.inode);
        }
        self.settle_names(&found)?;
        Ok(found)
    }

    /// These names are there.
    fn settle_names(&self, found: &Names) -> Result<(), String> {
        let mut known = self.known.borrow_mut();
        let Known { names, files, open } = &mut *known;
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
            files.entry(*inode).or_insert_with(|| Contents::empty(any_shift()));
        }
        let is_open = |inode| open.iter().any(|opened| opened.inode == inode);
        files.retain(|inode, _| found.values().any(|named| named == inode) || is_open(*inode));
        Ok(())
    }

    /// Looks a name up by a mount, or by what its kernel keeps of it.
    async fn look_up(&self, station: usize, name: u64) -> Result<(), End> {
        let (home, life) = (self.home.get(), self.stations[station].life());
        let kept = self.kept.borrow().get(&(station, name)).copied();
        let seen = match kept.filter(|kept| kept.life == life && now() < kept.until) {
            Some(kept) => kept.seen,
            None => {
                let find = move |files: Files| async move {
                    let found = match files.find(home, name.to_string().as_bytes()).await {
                        Err(error) if error.refusal() == Some(FileError::NotFound) => None,
                        found => Some(found?),
                    };
                    Ok((found.map(|found| (found.inode, found.size)), files.stays()))
                };
                let Some((seen, stays)) = self.on(station, find).await? else { return Ok(()) };
                let kept = Kept { life, until: now() + stays, seen };
                self.kept.borrow_mut().insert((station, name), kept);
                seen
            }
        };
        match (seen, self.names().get(&name).copied()) {
            (None, None) => Ok(()),
            (Some((inode, size)), Some(named)) if inode == named => {
                Ok(self.with(inode, |file| file.may_have(size))?)
            }
            (seen, named) => {
                Err(End::Wrong(format!("{name} is {seen:?} for mount {station}, and {named:?}")))
            }
        }
    }

    /// A kernel follows what its own mount does.
    fn forget_kept(&self, station: usize, is_changed: impl Fn(u64, Option<InodeNumber>) -> bool) {
        let mut kept = self.kept.borrow_mut();
        kept.retain(|(of, name), kept| {
            *of != station || !is_changed(*name, kept.seen.map(|(inode, _)| inode))
        });
    }

    async fn open_or_create(&self, name: u64) -> Result<(), End> {
        if self.known.borrow().open.len() >= OPEN_MAX {
            return Ok(());
        }
        let station = self.any_station();
        match self.names().get(&name) {
            Some(&inode) => self.open(station, inode).await,
            None => self.create(station, name).await,
        }
    }

    async fn open(&self, station: usize, inode: InodeNumber) -> Result<(), End> {
        self.settle_if_uncertain(station, inode).await?;
        let (truncates, writes) = (random_below(5) == 0, random_below(2) == 0);
        if truncates {
            self.forget_kept(station, |_, kept| kept == Some(inode));
            self.with(inode, |file| {
                file.begin(Change::Resize(0));
                Ok(())
            })?;
        }
        let life = self.stations[station].life();
        let how = HowToOpen { writes: writes || truncates, truncates, appends: false };
        let opened = self.on(station, move |files| async move { files.open(inode, how).await }).await?;
        sim::tell(|| format!("mount {station}: inode {inode} is opened: {opened:?}, {how:?}"));
        if let Some(handle) = opened {
            self.note_open(Opened { station, life, handle, inode });
        }
        match truncates {
            true => self.end_changes(station, inode, opened.is_some()).await,
            false => Ok(()),
        }
    }

    fn note_open(&self, opened: Opened) {
        if self.stations[opened.station].life() == opened.life {
            self.known.borrow_mut().open.push(opened);
        }
    }

    async fn create(&self, station: usize, name: u64) -> Result<(), End> {
        let after = self.names().into_iter().chain([(name, UNKNOWN)]).collect();
        self.names_may_be(after);
        self.forget_kept(station, |kept, _| kept == name);
        let (home, life) = (self.home.get(), self.stations[station].life());
        let create = move |files: Files| async move {
            files.create(home, name.to_string().as_bytes(), new_file(), false).await
        };
        let Some((made, handle)) = self.on(station, create).await? else {
            // It may have been made all the same.
            return self.list().await.map(drop);
        };
        self.names_are(true);
        {
            let mut known = self.known.borrow_mut();
            known.names[0].insert(name, made.inode);
            known.files.insert(made.inode, Contents::empty(any_shift()));
        }
        self.note_open(Opened { station, life, handle, inode: made.inode });
        Ok(())
    }

    async fn unlink(&self, name: u64) -> Result<(), End> {
        let mut after = self.names();
        if after.remove(&name).is_none() {
            return Ok(());
        }
        self.names_may_be(after);
        let home = self.home.get();
        let unlink = move |files: Files| async move { files.unlink(home, name.to_string().as_bytes()).await };
        let station = self.any_station();
        self.forget_kept(station, |kept, _| kept == name);
        let has_happened = self.on(station, unlink).await?.is_some();
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
        let home = self.home.get();
        let rename = move |files: Files| async move {
            let (from, to) = (from.to_string(), to.to_string());
            files.rename((home, from.as_bytes()), (home, to.as_bytes()), RenameMode::Replace).await
        };
        let station = self.any_station();
        self.forget_kept(station, |kept, _| kept == from || kept == to);
        let has_happened = self.on(station, rename).await?.is_some();
        self.names_are(has_happened);
        Ok(())
    }

    // ---- bytes

    /// What is known of a file, changed or asked.
    fn with<T>(
        &self,
        inode: InodeNumber,
        ask: impl FnOnce(&mut Contents) -> Result<T, String>,
    ) -> Result<T, String> {
        let mut known = self.known.borrow_mut();
        let file = known.files.get_mut(&inode).ok_or_else(|| format!("nothing is known of inode {inode}"))?;
        ask(file).map_err(|what| format!("inode {inode}: {what}"))
    }

    /// Compares all names and files with what there may be.
    async fn look_at_all(&self, judge_size: JudgeSize) -> Result<(), End> {
        for inode in self.list().await?.into_values() {
            self.settle(self.any_station(), inode, judge_size).await?;
        }
        Ok(())
    }

    async fn settle_if_uncertain(&self, station: usize, inode: InodeNumber) -> Result<(), End> {
        match self.with(inode, |file| Ok(file.is_uncertain()))? {
            true => self.settle(station, inode, Contents::settle).await,
            false => Ok(()),
        }
    }

    /// Reads all of a file by a mount, and judges its size first. The file has a name, or is open there.
    async fn settle(&self, station: usize, inode: InodeNumber, judge_size: JudgeSize) -> Result<(), End> {
        let known_open = {
            let known = self.known.borrow();
            known.open.iter().find(|opened| (opened.station, opened.inode) == (station, inode)).copied()
        };
        let (opened, is_new) = match known_open {
            Some(opened) => (opened, false),
            None if !self.names().values().any(|named| *named == inode) => return Ok(()),
            None => {
                let life = self.stations[station].life();
                let how = HowToOpen::default();
                let opened = self.on(station, move |files| async move { files.open(inode, how).await });
                let Some(handle) = opened.await? else {
                    return Err(End::Wrong(format!("inode {inode} has a name and is not there")));
                };
                (Opened { station, life, handle, inode }, true)
            }
        };
        let looked = self.look_at(opened, judge_size).await;
        if is_new {
            let handle = opened.handle;
            self.on(station, move |files| async move {
                files.release(handle).await;
                Ok(())
            })
            .await?;
        }
        looked
    }

    async fn look_at(&self, opened: Opened, judge_size: JudgeSize) -> Result<(), End> {
        let inode = opened.inode;
        let found = self.on(opened.station, move |files| async move { files.attributes(inode).await });
        let Some(found) = found.await? else {
            return Err(End::Wrong(format!("inode {inode} is gone")));
        };
        sim::tell(|| format!("mount {}: inode {inode} has {} bytes", opened.station, found.size));
        self.with(inode, |file| judge_size(file, found.size))?;
        let parts = self.with(inode, |file| Ok(file.parts()))?;
        for first in (0..parts + 1).step_by(200) {
            self.read(opened, first, 200).await?;
        }
        Ok(())
    }

    async fn read(&self, opened: Opened, first: u64, parts: u64) -> Result<(), End> {
        let Opened { station, handle, inode, .. } = opened;
        let (from, length) = self.with(inode, |file| Ok((file.position(first), file.bytes(first, parts))))?;
        let read = self.on(station, move |files| async move { files.read(handle, from, length).await });
        sim::tell(|| format!("mount {station}: reads {first} {parts} of inode {inode}"));
        if let Some(bufs) = read.await? {
            self.with(inode, |file| file.judge(first, parts, &whole(&bufs)))?;
        }
        Ok(())
    }

    async fn release(&self, opened: Opened) -> Result<(), End> {
        let Opened { station, handle, .. } = opened;
        let is_this = |other: &Opened| (other.station, other.handle) == (station, handle);
        self.known.borrow_mut().open.retain(|other| !is_this(other));
        let release = move |files: Files| async move {
            files.release(handle).await;
            Ok(())
        };
        self.on(station, release).await.map(drop)
    }

    /// Syncs a file, or all of them. Of several mounts, the one that writes has to do it.
    async fn sync(&self, opened: Opened) -> Result<(), End> {
        let Opened { station, handle, inode, .. } = opened;
        let way = if self.stations.len() > 1 { 1 } else { random_below(3) };
        let sync = move |files: Files| async move {
            match way {
                0 => files.sync_handle(handle).await,
                1 => files.sync(inode).await,
                _ => files.sync_all().await,
            }
        };
        if self.on(station, sync).await?.is_some() {
            self.with(inode, |file| {
                file.make_durable();
                Ok(())
            })?;
        }
        Ok(())
    }

    /// What is said to be a hole reads as zeroes.
    async fn seek(&self, opened: Opened) -> Result<(), End> {
        let Opened { station, handle, inode, .. } = opened;
        self.settle_if_uncertain(station, inode).await?;
        let first = any_part();
        let from = self.with(inode, |file| Ok(file.position(first)))?;
        let found = self.on(station, move |files| async move { files.seek(handle, from, true).await });
        let found = found.await?.flatten();
        let size = self.with(inode, |file| Ok(file.position(file.parts())))?;
        let end = found.unwrap_or(size);
        self.with(inode, |file| {
            let parts = (0..).take_while(|parts| from + file.bytes(first, parts + 1) <= end).count() as u64;
            file.judge(first, parts, &vec![0; file.bytes(first, parts) as usize])
        })?;
        Ok(())
    }

    /// Some changes of a file at once, by all mounts that have it open, and reads beside them.
    async fn change(&self, opened: Opened) -> Result<(), End> {
        let inode = opened.inode;
        self.settle_if_uncertain(opened.station, inode).await?;
        let all: Vec<Opened> =
            self.known.borrow().open.iter().filter(|o| o.inode == inode).copied().collect();
        if all.is_empty() {
            return Ok(());
        }
        let any = || all[random_below(all.len() as u64) as usize];
        let mut going: Vec<Going<'_>> = Vec::new();
        for change in any_changes() {
            let change = self.with(inode, |file| {
                let change = match change {
                    Change::Write { first, parts, .. } => {
                        Change::Write { first, parts, value: file.next_value() }
                    }
                    change => change,
                };
                file.begin(change);
                Ok(change)
            })?;
            let opened = any();
            sim::tell(|| format!("mount {}: {change:?} of inode {inode}", opened.station));
            going.push(Box::pin(async move { self.carry_out(opened, change).await }));
        }
        for _ in 0..random_below(3) {
            let (opened, first, parts) = (any(), any_part(), 1 + random_below(NEAR_PARTS));
            going.push(Box::pin(async move { self.read(opened, first, parts).await.map(Some) }));
        }
        self.is_changing.set(true);
        let lives = self.lives();
        let ended = join_all(going).await;
        self.is_changing.set(false);
        // What a mount has done well, and had not told when it died, may be lost all the same.
        let (mut all_done, mut has_died) = (lives == self.lives(), false);
        sim::tell(|| format!("inode {inode} is changed: {}", ended.iter().all(Result::is_ok)));
        for ended in ended {
            match ended {
                Ok(done) => all_done &= done.is_some(),
                Err(End::Died) => has_died = true,
                Err(wrong) => return Err(wrong),
            }
        }
        if has_died {
            let may_be_shared = self.with(inode, |file| Ok(file.bytes(0, BLOCK_PARTS)))? == BLOCK_SIZE as u64;
            self.leaves_behind_end.set(may_be_shared && self.stations.len() > 1);
        }
        match has_died {
            true => Err(End::Died),
            false => self.end_changes(opened.station, inode, all_done).await,
        }
    }

    /// What was begun has ended, all of it well or not.
    async fn end_changes(&self, station: usize, inode: InodeNumber, all: bool) -> Result<(), End> {
        self.with(inode, |file| {
            if all {
                file.end()
            } else {
                file.give_up()
            }
            Ok(())
        })?;
        self.settle_if_uncertain(station, inode).await
    }

    async fn carry_out(&self, opened: Opened, change: Change) -> Result<Option<()>, End> {
        let Opened { station, handle, inode, .. } = opened;
        self.forget_kept(station, |_, kept| kept == Some(inode));
        let at = |part: u64| self.with(inode, |file| Ok(file.position(part)));
        match change {
            Change::Write { first, parts, value } => {
                let from = at(first)?;
                let data = vec![value; (at(first + parts)? - from) as usize];
                let write =
                    move |files: Files| async move { files.write(handle, from, vec![Buf::from(data)]).await };
                self.on(station, write).await
            }
            Change::Zero { first, parts } => {
                let (from, length) = (at(first)?, at(first + parts)? - at(first)?);
                self.on(station, move |files| async move { files.zero(handle, from, length).await }).await
            }
            Change::Resize(to) => {
                let changes = AttributeChanges { size: Some(at(to)?), ..Default::default() };
                let change = move |files: Files| async move { files.change(inode, changes).await.map(drop) };
                self.on(station, change).await
            }
            Change::Extend(to) => {
                let size = at(to)?;
                self.on(station, move |files| async move { files.extend(handle, size).await }).await
            }
        }
    }
}

fn fraction() -> f64 {
    random_below(1_000) as f64 / 1_000.0
}

/// One change, or some at once whose ranges are apart; in half of all cases of whole blocks, where parts
/// begin as blocks do.
fn any_changes() -> Vec<Change> {
    let mut changes = Vec::new();
    let whole = if random_below(2) == 0 { BLOCK_PARTS } else { 1 };
    let mut at = any_part() / whole * whole;
    for _ in 0..1 + random_below(3) * random_below(2) {
        let parts = (1 + random_below(PARTS_MAX)).next_multiple_of(whole);
        let change = match random_below(8) {
            0 => Change::Zero { first: at, parts },
            _ => Change::Write { first: at, parts, value: 0 },
        };
        changes.push(change);
        at += parts + random_below(NEAR_PARTS) / whole * whole * random_below(2);
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

/// By how many bytes the first part of a file is shorter: in half of all files parts begin where blocks do,
/// so that mounts share them (F7).
fn any_shift() -> u64 {
    random_below(512) * random_below(2)
}

fn any_part() -> u64 {
    random_below(if random_below(8) == 0 { FAR_PARTS } else { NEAR_PARTS })
}

fn new_file() -> NewInode {
    NewInode { kind: FileKind::Regular, mode: 0o755, umask: 0, uid: 0, gid: 0, device: 0, target: Vec::new() }
}

fn whole(bufs: &[Buf]) -> Vec<u8> {
    bufs.iter().flat_map(|buf| buf.iter().copied()).collect()
}
