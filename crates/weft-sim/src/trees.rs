//! Users of a tree that several machines have mounted: they make, link, rename, replace, lock and remove
//! what is in it, each time through any mount and often several at once, and every answer has to be that of
//! one order of all of it (F1, F4, F9, F11). Mounts die, are cut off and lose their sessions meanwhile.
//! What was under way then may have happened, and may happen until the session is forgotten; what was
//! locked is free soon after that (F5).

use crate::bed::{Bed, manager_host, second_manager_host};
use crate::files::FORGOTTEN_WITHIN;
use crate::mounts::{Died, Station};
use crate::refusals::Refusals;
use crate::tree_deeds::{
    LOCKED_BYTES, Picks, any_by_handle, any_new, entries_of, handle_used, is_change, name_of, one_of, perform,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest};
use weft_checker::{Deed, TreeHistory};
use weft_fs::{Files, FsError};
use weft_rt::sync::join_all;
use weft_rt::{Instant, now, random_below, sim, sleep, spawn, timeout};
use weft_types::{FabricMap, FileKind, InodeNumber, SessionId};
use weft_wire::files::{
    Answer, FileError, FileLock, LockFamily, LockMode, LockOwner, NameIn, NewInode, Operation,
};

/// The name of the tree.
const HOME: &[u8] = b"tree";

/// With more entries than this nothing is made.
const ENTRIES_MAX: usize = 40;

/// Inodes without a name that users ask for.
const NAMELESS_KEPT: usize = 6;

/// Files that are open at once, at most.
const OPEN_MAX: usize = 10;

/// Trees that may be there at once, beyond which users wait until it is known which one it is.
const POSSIBLE_ENOUGH: usize = 50;

/// How often it is looked which sessions are forgotten, and how long that may take.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LOOK_PATIENCE: Duration = Duration::from_secs(2);

/// How the users behave.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Mounts.
    pub mounts: usize,
    /// How long an operation may take: nodes die meanwhile, and come back.
    pub patience: Duration,
    /// How long they rest after some operations, at most.
    pub think: Duration,
    /// How long a mount lives, at most.
    pub lives: Duration,
    /// How long a mount is cut off, at most.
    pub silence: Duration,
    /// What they may be refused.
    pub refusals: Refusals,
}

/// The users of some mounts, and what the tree may be.
pub struct TreesClient {
    bed: Rc<Bed>,
    file_system: &'static str,
    habits: Habits,
    host: usize,
    /// One more is there at last.
    stations: RefCell<Vec<Rc<Station>>>,
    home: Cell<InodeNumber>,
    history: RefCell<TreeHistory>,
    opened: RefCell<Vec<Opened>>,
    dead: RefCell<Vec<Dead>>,
    looked: Cell<Instant>,
    /// Trees that there may still be after all was looked at.
    unresolved: Cell<usize>,
    /// Calls under way, and those that were answered.
    under_way: Cell<usize>,
    answered: Cell<u64>,
    /// Nothing fails any more.
    is_over: Cell<bool>,
    has_finished: Cell<bool>,
    found: RefCell<Option<String>>,
}

/// An open file of a mount.
#[derive(Clone, Copy, Debug)]
struct Opened {
    station: usize,
    handle: u64,
    inode: InodeNumber,
    /// The call by which it was opened.
    call: u64,
    /// By the task that looks whether locks of dead mounts are free.
    is_of_looker: bool,
}

/// A mount that has died.
#[derive(Clone, Copy, Debug)]
struct Dead {
    mount: u64,
    session: SessionId,
    is_forgotten: bool,
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

impl TreesClient {
    /// Starts them, with mounts on the hosts of the clients from this one on. One host more is used at last.
    pub fn start(bed: &Rc<Bed>, file_system: &'static str, habits: Habits, host: usize) -> Rc<TreesClient> {
        let station = |n| Station::start(bed, file_system, host + n, habits.patience);
        let client = Rc::new(TreesClient {
            bed: bed.clone(),
            file_system,
            habits,
            host,
            stations: RefCell::new((0..habits.mounts).map(station).collect()),
            home: Cell::new(InodeNumber::ROOT),
            history: RefCell::new(TreeHistory::below(InodeNumber::ROOT)),
            opened: RefCell::default(),
            dead: RefCell::default(),
            looked: Cell::new(now()),
            unresolved: Cell::new(1),
            under_way: Cell::new(0),
            answered: Cell::new(0),
            is_over: Cell::new(false),
            has_finished: Cell::new(false),
            found: RefCell::new(None),
        });
        for n in 0..habits.mounts {
            spawn(client.clone().let_die(n));
        }
        spawn(client.clone().look_for_locks());
        spawn(client.clone().use_tree());
        client
    }

    /// Has them come to their end. Nothing fails from now on.
    ///
    /// # Errors
    /// What they have found, or that they do not end.
    pub async fn finish(&self) -> Result<(), String> {
        self.is_over.set(true);
        let from = now();
        while !self.has_finished.get() {
            if from.elapsed() > 2 * self.habits.patience {
                return Err(self.found.take().unwrap_or("users of a tree do not end".to_owned()));
            }
            sleep(Duration::from_millis(10)).await;
        }
        self.found.take().map_or(Ok(()), Err)
    }

    /// How many operations were answered.
    pub fn operations(&self) -> u64 {
        self.answered.get()
    }

    fn note(&self, ended: Result<(), End>) {
        if let Err(End::Wrong(what)) = ended {
            self.found.borrow_mut().get_or_insert(format!("trees: {what}"));
        }
    }

    // ---- mounts

    /// The number of a mount: each life of a station is another one.
    fn mount(&self, n: usize) -> u64 {
        n as u64 * 10_000 + self.station(n).life()
    }

    fn station(&self, n: usize) -> Rc<Station> {
        self.stations.borrow()[n].clone()
    }

    /// Any of those that are there; at last there is one.
    fn any_station(&self) -> usize {
        let count = self.stations.borrow().len();
        if count > self.habits.mounts { count - 1 } else { random_below(count as u64) as usize }
    }

    /// Kills a mount from time to time, cuts it off or ends its session, rather in the middle of something.
    async fn let_die(self: Rc<Self>, n: usize) {
        while !self.is_over.get() {
            sleep(self.habits.lives.mul_f64(0.1 + random_below(1_000) as f64 / 1_000.0)).await;
            let patience = now() + self.habits.think;
            while self.under_way.get() == 0 && now() < patience {
                sleep(Duration::from_micros(20)).await;
            }
            sleep(Duration::from_micros(random_below(3_000))).await;
            if self.is_over.get() {
                return;
            }
            match random_below(4) {
                0 => self.cut_off(n).await,
                1 => self.end_session(n).await,
                _ => self.mount_anew(n),
            }
        }
    }

    async fn cut_off(&self, n: usize) {
        let (own, ways) = (self.station(n).host(), [(true, true), (true, false), (false, true)]);
        let ways = ways[random_below(3) as usize];
        let mut others: Vec<_> = self.bed.nodes.iter().map(|node| node.host).collect();
        others.extend([manager_host(), second_manager_host()]);
        let cut = |to, from| {
            for other in &others {
                sim::set_blocked(own, *other, to);
                sim::set_blocked(*other, own, from);
            }
        };
        cut(ways.0, ways.1);
        let until = now() + self.habits.silence.mul_f64(random_below(1_000) as f64 / 1_000.0);
        while now() < until && !self.is_over.get() {
            sleep(Duration::from_millis(10)).await;
        }
        cut(false, false);
    }

    /// Somebody ends the session of a mount. The manager may not be asked now: then it goes on.
    async fn end_session(&self, n: usize) {
        let Some(session) = self.station(n).session() else { return };
        let end = ApiRequest::SessionEnd { session: session.0, dry_run: false };
        let _ = timeout(LOOK_PATIENCE, self.bed.try_api(&end)).await;
    }

    /// A mount dies, and the next one takes its place.
    fn mount_anew(&self, n: usize) {
        let (mount, session) = (self.mount(n), self.station(n).session());
        self.station(n).mount_anew();
        self.opened.borrow_mut().retain(|opened| opened.station != n);
        let mut history = self.history.borrow_mut();
        history.lose(mount);
        match session {
            Some(session) => self.dead.borrow_mut().push(Dead { mount, session, is_forgotten: false }),
            // It had no session, and so has asked for nothing.
            None => {
                history.forget(mount);
                history.free(mount);
            }
        }
    }

    /// Looks which sessions of dead mounts are forgotten.
    async fn look_at_sessions(&self) {
        if self.dead.borrow().iter().all(|dead| dead.is_forgotten) || self.looked.get().elapsed() < LOOK_EVERY
        {
            return;
        }
        self.looked.set(now());
        if let Some(map) = self.map_now().await {
            self.forget_what(&map);
        }
    }

    /// The map that a manager has, if one answers.
    async fn map_now(&self) -> Option<FabricMap> {
        match timeout(LOOK_PATIENCE, self.bed.try_api(&ApiRequest::MapGet {})).await {
            Ok(Ok(ApiAnswer::Map { map })) => Some(*map),
            _ => None,
        }
    }

    /// The same; waits for a manager as long as an operation may take.
    async fn map(&self) -> Option<FabricMap> {
        let until = now() + self.habits.patience;
        loop {
            let found = self.map_now().await;
            if found.is_some() || now() > until {
                return found;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Forgets dead mounts whose sessions a map does not have.
    fn forget_what(&self, map: &FabricMap) {
        let (mut dead, mut history) = (self.dead.borrow_mut(), self.history.borrow_mut());
        dead.retain_mut(|dead| {
            if !dead.is_forgotten && !map.sessions.contains_key(&dead.session) {
                sim::tell(|| format!("tree: mount {} is forgotten", dead.mount));
                dead.is_forgotten = true;
                history.forget(dead.mount);
            }
            let is_over = dead.is_forgotten && history.locked_by(dead.mount).is_empty();
            if is_over {
                history.free(dead.mount);
            }
            !is_over
        });
    }

    /// Has a mount do something, and judges the answer.
    async fn call(&self, n: usize, deed: Deed) -> Result<Answer, End> {
        self.call_by_number(n, deed).await.map(|(_, answer)| answer)
    }

    /// The same; returns the number of the call, too.
    async fn call_by_number(&self, n: usize, deed: Deed) -> Result<(u64, Answer), End> {
        let (station, life) = (self.station(n), self.station(n).life());
        let handle = match handle_used(&deed) {
            // Its mount may have died just now.
            Some(call) => Some(self.opened_by(call).ok_or(End::Died)?.handle),
            None => None,
        };
        if let Deed::Close(_, call) = &deed {
            self.opened.borrow_mut().retain(|opened| opened.call != *call);
        }
        let call = self.history.borrow_mut().begin(self.mount(n), deed.clone());
        sim::tell(|| format!("tree: mount {n}: {deed:?}"));
        self.under_way.set(self.under_way.get() + 1);
        let asked = deed.clone();
        let ended = station.run(move |files| perform(files, asked, handle)).await;
        self.under_way.set(self.under_way.get() - 1);
        let answer = match ended {
            Ok(Ok((answer, handle))) => {
                self.note_opened((n, life), call, &deed, &answer, handle);
                answer
            }
            Err(Died) => return Err(End::Died),
            Ok(Err(error)) => match error.refusal() {
                Some(error) if self.habits.refusals.say(error) => {
                    match error {
                        FileError::OverQuota => self.history.borrow_mut().refuse(call)?,
                        _ => self.history.borrow_mut().give_up(call),
                    }
                    return Ok((call, Answer::Failed(error)));
                }
                Some(refused) => Answer::Failed(refused),
                None => return Err(self.why_failed(n, life, &error).await),
            },
        };
        sim::tell(|| format!("tree: mount {n} answers {deed:?}: {answer:?}"));
        self.answered.set(self.answered.get() + 1);
        self.judge(call, &answer).await.map_err(|what| format!("mount {n}: {what}"))?;
        if self.history.borrow().count() > 1 {
            sim::tell(|| {
                format!("tree: which one it is, is not known: {}", self.history.borrow().difference())
            });
        }
        Ok((call, answer))
    }

    /// Judges an answer. Where no order of the calls explains it, the session of a mount may be over, and the
    /// mount does not know that yet: the shard has removed what it had open. Then the mount counts as dead,
    /// and the answer is judged once more. An answer to the dead mount itself is not judged.
    async fn judge(&self, call: u64, answer: &Answer) -> Result<(), String> {
        let Err(what) = self.history.borrow_mut().end(call, answer) else { return Ok(()) };
        if !self.bury_forgotten().await {
            return Err(what);
        }
        let mut history = self.history.borrow_mut();
        if history.is_open(call) { history.end(call, answer) } else { Ok(()) }
    }

    /// Counts mounts as dead whose sessions the map does not have any more. Returns whether there was one.
    async fn bury_forgotten(&self) -> bool {
        let session = |n: &usize| self.station(*n).session();
        // A session that begins after the question may not be in the answer.
        let before: Vec<usize> = (0..self.stations.borrow().len()).filter(|n| session(n).is_some()).collect();
        let sessions: Vec<_> = before.iter().map(session).collect();
        let Some(map) = self.map().await else { return false };
        for (n, asked) in before.iter().zip(sessions) {
            let is_over = asked.is_some_and(|asked| !map.sessions.contains_key(&asked));
            if is_over && session(n) == asked {
                sim::tell(|| format!("tree: mount {n} has not heard that its session is over"));
                self.mount_anew(*n);
            }
        }
        let are_any_dead = !self.dead.borrow().is_empty();
        self.forget_what(&map);
        are_any_dead
    }

    /// Why something has failed that no shard has refused. What fails for a mount without a session is
    /// no surprise: some hear of that sooner than others.
    async fn why_failed(&self, n: usize, life: u64, error: &FsError) -> End {
        let station = self.station(n);
        let mut is_over = matches!(error, FsError::SessionOver { .. });
        let until = now() + FORGOTTEN_WITHIN;
        while !is_over {
            if station.life() != life {
                return End::Died;
            }
            // The shard is asked, whatever the mount keeps: the root is no link.
            let asked = station.run(|files| async move { files.target(InodeNumber::ROOT).await });
            match asked.await {
                Err(Died) => return End::Died,
                Ok(asked) => is_over = matches!(asked, Err(FsError::SessionOver { .. })),
            }
            if now() > until {
                return End::Wrong(format!("mount {n}: {error}"));
            }
            sleep(LOOK_EVERY).await;
        }
        sim::tell(|| format!("tree: the session of mount {n} is over"));
        if station.life() == life {
            self.mount_anew(n);
        }
        End::Died
    }

    // ---- open files

    fn note_opened(
        &self,
        (station, life): (usize, u64),
        call: u64,
        deed: &Deed,
        answer: &Answer,
        handle: Option<u64>,
    ) {
        let inode = match (deed, answer) {
            (Deed::Open(inode), _) => *inode,
            (_, Answer::Attributes(made)) => made.inode,
            _ => return,
        };
        if let Some(handle) = handle.filter(|_| self.station(station).life() == life) {
            let opened = Opened { station, handle, inode, call, is_of_looker: false };
            self.opened.borrow_mut().push(opened);
        }
    }

    fn opened_by(&self, call: u64) -> Option<Opened> {
        self.opened.borrow().iter().find(|opened| opened.call == call).copied()
    }

    // ---- what users do

    async fn use_tree(self: Rc<Self>) {
        let used = self.run().await;
        self.note(used);
        self.has_finished.set(true);
    }

    async fn run(&self) -> Result<(), End> {
        self.until(async || self.find_home().await).await?;
        while !self.is_over.get() {
            self.look_at_sessions().await;
            match self.step().await {
                Ok(()) | Err(End::Died) => {}
                Err(wrong) => return Err(wrong),
            }
            sleep(Duration::from_micros(random_below(self.habits.think.as_micros() as u64 + 1))).await;
        }
        self.close_all().await?;
        // A walk may find that the session of a mount is over.
        loop {
            while !self.dead.borrow().is_empty() && self.found.borrow().is_none() {
                self.look_at_sessions().await;
                sleep(Duration::from_millis(10)).await;
            }
            self.until(async || self.walk().await).await?;
            if self.dead.borrow().is_empty() || self.found.borrow().is_some() {
                break;
            }
        }
        for n in 0..self.habits.mounts {
            let _ = self.station(n).end().await;
        }
        self.look_at_last().await
    }

    /// Does something until no mount dies meanwhile.
    async fn until(&self, work: impl AsyncFn() -> Result<(), End>) -> Result<(), End> {
        loop {
            match work().await {
                Err(End::Died) => {
                    self.look_at_sessions().await;
                    sleep(self.habits.think).await;
                }
                done => return done,
            }
        }
    }

    async fn find_home(&self) -> Result<(), End> {
        let n = self.any_station();
        let (station, life) = (self.station(n), self.station(n).life());
        let new = NewInode { mode: 0o755, umask: 0, uid: 0, gid: 0, ..any_new(FileKind::Directory) };
        let find = move |files: Files| async move {
            match files.find(InodeNumber::ROOT, HOME).await {
                Err(error) if error.refusal() == Some(FileError::NotFound) => {
                    files.make(InodeNumber::ROOT, HOME, new).await
                }
                found => found,
            }
        };
        loop {
            match station.run(find.clone()).await {
                Ok(Ok(home)) => {
                    self.home.set(home.inode);
                    *self.history.borrow_mut() = TreeHistory::below(home.inode);
                    return Ok(());
                }
                Err(Died) => return Err(End::Died),
                Ok(Err(error)) if error.refusal().is_some_and(|why| self.habits.refusals.say(why)) => {}
                Ok(Err(error)) => return Err(self.why_failed(n, life, &error).await),
            }
            sleep(self.habits.think).await;
        }
    }

    /// Some deeds at once, or a look at all that there is where that is not known.
    async fn step(&self) -> Result<(), End> {
        let (count, has_lost) = {
            let mut history = self.history.borrow_mut();
            history.drop_nameless(NAMELESS_KEPT);
            (history.count(), history.has_lost())
        };
        if has_lost && count > POSSIBLE_ENOUGH {
            sleep(LOOK_EVERY).await;
            return Ok(());
        }
        self.unresolved.set(self.unresolved.get().min(count));
        if count > self.unresolved.get() && !has_lost {
            self.walk().await?;
            self.unresolved.set(self.history.borrow().count());
            return Ok(());
        }
        let deeds = self.any_deeds();
        let going = deeds.into_iter().map(|(n, deed)| self.call(n, deed)).collect::<Vec<_>>();
        let mut ended = Ok(());
        for one in join_all(going).await {
            match one {
                Err(End::Wrong(what)) => return Err(End::Wrong(what)),
                Err(End::Died) => ended = Err(End::Died),
                Ok(_) => {}
            }
        }
        ended
    }

    /// Compares all that there is with what may be, each part through any mount.
    async fn walk(&self) -> Result<(), End> {
        let mut asked = self.history.borrow().model().nameless();
        asked.push(self.home.get());
        for inode in asked {
            self.call(self.any_station(), Deed::Ask(Operation::Attributes(inode))).await?;
        }
        let mut left = vec![self.home.get()];
        while let Some(directory) = left.pop() {
            let list = Operation::List { directory, after: 0, limit: u32::MAX };
            let Answer::Listed(listed) = self.call(self.any_station(), Deed::Ask(list)).await? else {
                // Somebody has removed it: a call that was under way.
                continue;
            };
            for entry in listed.entries {
                let at = NameIn { directory, name: entry.name };
                self.call(self.any_station(), Deed::Ask(Operation::Find(at))).await?;
                match entry.attributes.kind {
                    FileKind::Directory => left.push(entry.attributes.inode),
                    FileKind::Symlink => {
                        let target = Operation::Target(entry.attributes.inode);
                        self.call(self.any_station(), Deed::Ask(target)).await?;
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    async fn close_all(&self) -> Result<(), End> {
        loop {
            let next = self.opened.borrow().iter().find(|opened| !opened.is_of_looker).copied();
            let Some(opened) = next else { return Ok(()) };
            match self.call(opened.station, Deed::Close(opened.inode, opened.call)).await {
                Ok(_) | Err(End::Died) => {}
                Err(wrong) => return Err(wrong),
            }
        }
    }

    /// A mount that was not there before finds all of it, and takes any lock.
    async fn look_at_last(&self) -> Result<(), End> {
        let number = self.habits.mounts;
        let station = Station::start(&self.bed, self.file_system, self.host + number, self.habits.patience);
        self.stations.borrow_mut().push(station);
        self.until(async || self.walk().await).await?;
        let files = self.history.borrow().model().files(&[FileKind::Regular]);
        for inode in files {
            self.until(async || self.lock_alone(number, inode).await).await?;
        }
        let _ = self.station(number).end().await;
        let mut history = self.history.borrow_mut();
        history.drop_nameless(0);
        match history.count() {
            1 => Ok(()),
            count => {
                let difference = history.difference();
                let what = format!("{count} trees may be there after all was looked at: {difference}");
                Err(End::Wrong(what))
            }
        }
    }

    // ---- locks of dead mounts

    /// Looks whether what dead mounts had locked is free once they are forgotten.
    async fn look_for_locks(self: Rc<Self>) {
        while !self.has_finished.get() {
            let all = self.dead.borrow().clone();
            // In the end others may be in the way that are not forgotten yet.
            let is_early = self.is_over.get() && all.iter().any(|dead| !dead.is_forgotten);
            let Some(dead) = all.into_iter().find(|dead| dead.is_forgotten && !is_early) else {
                sleep(LOOK_EVERY).await;
                continue;
            };
            match self.look_for_locks_of(dead.mount).await {
                Ok(()) => {
                    self.history.borrow_mut().free(dead.mount);
                    self.dead.borrow_mut().retain(|other| other.mount != dead.mount);
                }
                Err(End::Died) => sleep(self.habits.think).await,
                wrong => return self.note(wrong),
            }
        }
    }

    async fn look_for_locks_of(&self, mount: u64) -> Result<(), End> {
        let locked = self.history.borrow().locked_by(mount);
        for inode in locked {
            if self.history.borrow().model().files(&[FileKind::Regular]).contains(&inode) {
                self.lock_alone(self.any_station(), inode).await?;
                continue;
            }
            // What has no name cannot be opened, but may be open.
            let open = self.opened.borrow().iter().find(|o| o.inode == inode && !o.is_of_looker).copied();
            if let Some(open) = open {
                self.lock_opened(open.station, inode, open.call).await?;
            }
        }
        Ok(())
    }

    /// Takes all locks of a file, which are free, or are those of dead mounts.
    async fn lock_alone(&self, n: usize, inode: InodeNumber) -> Result<(), End> {
        let (call, answer) = self.call_by_number(n, Deed::Open(inode)).await?;
        match answer {
            Answer::Done => self.lock_opened(n, inode, call).await,
            _ => Ok(()),
        }
    }

    /// The same, of a file that a mount has opened by a call. Closes it.
    async fn lock_opened(&self, n: usize, inode: InodeNumber, call: u64) -> Result<(), End> {
        self.opened.borrow_mut().iter_mut().filter(|o| o.call == call).for_each(|o| o.is_of_looker = true);
        for family in [LockFamily::Whole, LockFamily::Range] {
            let owner = LockOwner { family, id: call };
            let mode = LockMode::Exclusive;
            let lock = FileLock { owner, start: 0, last: LOCKED_BYTES - 1, mode, process: 1 };
            self.unlock_living(inode, &lock).await?;
            let patience = if self.is_over.get() { FORGOTTEN_WITHIN } else { self.habits.patience };
            let locked = timeout(patience, self.call(n, Deed::LockInTurn(inode, lock))).await;
            locked.unwrap_or_else(|_| {
                let found = self.history.borrow().in_the_way(inode, &lock);
                Err(End::Wrong(format!("inode {inode} is still locked after {patience:?} by {found:?}")))
            })?;
            let unlock = Operation::Unlock(inode, owner, (0, u64::MAX));
            self.call(n, Deed::Ask(unlock)).await?;
        }
        self.call(n, Deed::Close(inode, call)).await.map(drop)
    }

    /// Has mounts that live close what is in the way of a lock.
    async fn unlock_living(&self, inode: InodeNumber, lock: &FileLock) -> Result<(), End> {
        let in_the_way = self.history.borrow().in_the_way(inode, lock);
        for opened in in_the_way.into_iter().filter_map(|call| self.opened_by(call)) {
            self.call(opened.station, Deed::Close(inode, opened.call)).await?;
        }
        Ok(())
    }

    // ---- deeds

    /// Something for one mount to do, or for several at once.
    fn any_deeds(&self) -> Vec<(usize, Deed)> {
        let history = self.history.borrow();
        let entries = entries_of(history.model());
        let mut deeds: Vec<(usize, Deed)> = Vec::new();
        for _ in 0..[1, 1, 2, 2, 3][random_below(5) as usize] {
            let near = deeds.first().and_then(|(_, deed)| name_of(deed));
            let picks = Picks { model: history.model(), entries: &entries, near };
            let Some((n, deed)) = self.any_deed(&picks) else { continue };
            // What a mount has changed of an open file it may see before the others.
            let is_beside = deeds.iter().any(|(other, _)| *other == n);
            if is_beside && deeds.iter().map(|(_, deed)| deed).chain([&deed]).any(is_change) {
                continue;
            }
            // A file is closed once, and by its handle nothing is done meanwhile.
            if handle_used(&deed)
                .is_some_and(|used| deeds.iter().any(|(_, other)| handle_used(other) == Some(used)))
            {
                continue;
            }
            deeds.push((n, deed));
        }
        drop(history);
        match &deeds[..] {
            [(n, Deed::Ask(Operation::Lock(inode, lock)))] if random_below(2) == 0 => {
                self.lock_in_turn(*n, *inode, *lock).unwrap_or(deeds)
            }
            _ => deeds,
        }
    }

    /// A mount waits for a lock while those who are in its way give it back; none if not all of them can.
    fn lock_in_turn(&self, n: usize, inode: InodeNumber, lock: FileLock) -> Option<Vec<(usize, Deed)>> {
        let in_the_way = self.history.borrow().in_the_way(inode, &lock);
        let opened: Option<Vec<Opened>> = in_the_way.into_iter().map(|call| self.opened_by(call)).collect();
        let opened = opened?;
        if opened.iter().any(|opened| opened.is_of_looker) {
            return None;
        }
        let give_back = |opened: Opened| {
            let owner = LockOwner { family: lock.owner.family, id: opened.call };
            let deed = match random_below(2) {
                0 => Deed::Close(inode, opened.call),
                _ => Deed::Ask(Operation::Unlock(inode, owner, (0, u64::MAX))),
            };
            (opened.station, deed)
        };
        let waits = (n, Deed::LockInTurn(inode, lock));
        Some([waits].into_iter().chain(opened.into_iter().map(give_back)).collect())
    }

    fn any_deed(&self, picks: &Picks<'_>) -> Option<(usize, Deed)> {
        let n = self.any_station();
        let opened: Vec<Opened> =
            self.opened.borrow().iter().filter(|opened| !opened.is_of_looker).copied().collect();
        let handle = (!opened.is_empty()).then(|| *one_of(&opened));
        let is_full = picks.entries.len() > ENTRIES_MAX;
        let deed = match random_below(100) {
            0..30 if !is_full => picks.any_that_makes(),
            0..30 => Some(picks.any_that_removes()),
            30..46 => Some(picks.any_that_removes()),
            46..60 => Some(picks.any_rename()),
            60..67 => Some(picks.any_change()),
            67..81 => picks.any_look(),
            81..86 if opened.len() < OPEN_MAX => picks.any_file().map(Deed::Open),
            _ => {
                let opened = handle?;
                return Some((opened.station, any_by_handle(opened.inode, opened.call)));
            }
        };
        Some((n, deed?))
    }
}
