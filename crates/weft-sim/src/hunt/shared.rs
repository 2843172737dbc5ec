//! Three mounts write one file at the same time, in whole blocks and in parts of them, while mounts and nodes
//! die (F7): each read finds what was written, the file never seems shorter than a write that has returned,
//! its time tells of each write, and what was behind its end is not seen.

use super::files_stage::{FilesStage, done, plain};
use super::stage::Stage;
use crate::files::FORGOTTEN_WITHIN;
use crate::mounts::{Died, Station};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use weft_fs::{Files, FsError, HowToOpen};
use weft_rt::{Buf, Instant, now, random_below, sim, sleep, spawn};
use weft_types::{BLOCK_SIZE, FileKind, FileTime, InodeNumber, SessionId};

const NAME: &[u8] = b"shared";
const MOUNTS: usize = 3;
const USERS: usize = 6;

/// Bytes that hold one stamp, over and over.
const UNIT: u64 = 512;
const UNITS: u64 = BLOCK_SIZE as u64 / UNIT;

/// Most writes begin within so many blocks.
const NEAR_BLOCKS: u64 = 12;

/// By how much the clock of a mount is wrong at most.
const SKEW_MOST_US: u64 = 200_000;

/// What has begun before a rest has ended after so long.
const RESTS_WITHIN: Duration = Duration::from_millis(400);

/// A write. It may have happened from when it began; once it is done, it has.
struct Write {
    mount: usize,
    /// In units.
    first: u64,
    end: u64,
    began: Instant,
    done: Option<Instant>,
    /// From then on its units behind this one are not seen any more: its mount was forgotten, and the file
    /// ended there.
    gone: Option<(Instant, u64)>,
}

impl Write {
    fn covers(&self, unit: u64) -> bool {
        (self.first..self.end).contains(&unit)
    }

    fn may_be_seen(&self, unit: u64, read: (Instant, Instant)) -> bool {
        let is_gone = self.gone.is_some_and(|(since, end)| since < read.0 && unit >= end);
        self.began < read.1 && !is_gone
    }

    fn was_done_before(&self, moment: Instant) -> bool {
        self.done.is_some_and(|done| done < moment)
    }
}

/// All writes of the file; the number of each is its stamp, from 1.
#[derive(Default)]
struct History(Vec<Write>);

impl History {
    fn begin(&mut self, mount: usize, first: u64, end: u64) -> usize {
        self.0.push(Write { mount, first, end, began: now(), done: None, gone: None });
        self.0.len()
    }

    fn end(&mut self, stamp: usize) {
        self.0[stamp - 1].done = Some(now());
    }

    /// A mount has died: what it has not synced may be there or not.
    fn lose(&mut self, mount: usize, synced: Instant) {
        for write in self.0.iter_mut().filter(|write| write.mount == mount && write.gone.is_none()) {
            if write.done.is_none_or(|done| done >= synced) {
                write.done = None;
            }
        }
    }

    /// The mount is forgotten, and the file ends behind this unit.
    fn forget(&mut self, mount: usize, died: Instant, end: u64) {
        let dead = |write: &&mut Write| write.mount == mount && write.began <= died && write.gone.is_none();
        self.0.iter_mut().filter(dead).for_each(|write| write.gone = Some((now(), end)));
    }

    /// Whether the stamp may be that of a unit, 0 for zeroes; `None`: the file ends before it.
    fn judge(&self, unit: u64, stamp: Option<usize>, read: (Instant, Instant)) -> Result<(), String> {
        let all = self.0.iter();
        let is_right = match stamp {
            None => !all.clone().any(|write| write.end > unit && write.was_done_before(read.0)),
            Some(0) => {
                let is_hole = |write: &Write| write.end > unit && !write.covers(unit);
                all.clone().any(|write| is_hole(write) && write.may_be_seen(write.end - 1, read))
                    && !all.clone().any(|write| write.covers(unit) && write.was_done_before(read.0))
            }
            Some(stamp) => self.0.get(stamp - 1).is_some_and(|write| {
                let later = |other: &Write| {
                    let is_behind = write.done.is_some_and(|done| done < other.began);
                    other.covers(unit) && is_behind && other.was_done_before(read.0)
                };
                write.covers(unit) && write.may_be_seen(unit, read) && !all.clone().any(later)
            }),
        };
        match is_right {
            true => Ok(()),
            false => Err(format!("a read finds {stamp:?} in unit {unit}, which it cannot have")),
        }
    }

    fn end_unit(&self) -> u64 {
        self.0.iter().map(|write| write.end).max().unwrap_or(0)
    }
}

struct Scene {
    stage: Rc<Stage>,
    stations: Vec<Rc<Station>>,
    inode: Cell<InodeNumber>,
    began: Instant,
    /// Parts of blocks are written, too. Then the file is shared for short times only.
    has_parts: bool,
    /// By how much the clocks of the mounts are wrong.
    skews_us: [i64; MOUNTS],
    history: RefCell<History>,
    /// When each mount began to sync what it has synced last.
    synced: [Cell<Option<Instant>>; MOUNTS],
    /// A mount is dead, and not forgotten: for now nothing is done but what goes on beside it, and the file
    /// does not become longer.
    rests: Cell<bool>,
    is_over: Cell<bool>,
    users: Cell<usize>,
    found: RefCell<Option<String>>,
}

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let stage = FilesStage::set().await;
    let stations: Vec<Rc<Station>> = (0..MOUNTS).map(|host| stage.mount(host)).collect();
    let scene = Rc::new(Scene {
        stage: stage.clone(),
        stations,
        inode: Cell::new(InodeNumber::ROOT),
        began: now(),
        has_parts: random_below(3) == 0,
        skews_us: std::array::from_fn(|_| random_below(2 * SKEW_MOST_US) as i64 - SKEW_MOST_US as i64),
        history: RefCell::default(),
        synced: Default::default(),
        rests: Cell::new(false),
        is_over: Cell::new(false),
        users: Cell::new(USERS),
        found: RefCell::default(),
    });
    scene.begin().await?;
    for user in 0..USERS {
        spawn(scene.clone().use_file(user));
    }
    for _ in 0..2 {
        sleep(Duration::from_millis(200 + random_below(1_000))).await;
        match random_below(3) {
            0 => scene.stage.trouble_a_node(200, 4).await,
            _ => scene.kill(random_below(MOUNTS as u64) as usize).await?,
        }
    }
    scene.stage.heal();
    scene.is_over.set(true);
    while scene.users.get() > 0 && scene.found.borrow().is_none() {
        sleep(Duration::from_millis(10)).await;
    }
    let end = scene.history.borrow().end_unit();
    let last = scene.clone();
    let read = move |files: Files| async move { last.read(&files, None, 0, end + UNITS).await };
    match scene.found.take() {
        Some(wrong) => return Err(wrong),
        None => done(&scene.stations[0], read).await?,
    }
    scene.found.take().map_or(Ok(()), Err)?;
    stage.check().await
}

impl Scene {
    /// One mount makes the file, and dies at times with bytes behind its end.
    async fn begin(self: &Rc<Self>) -> Result<(), String> {
        (0..MOUNTS).for_each(|mount| self.set_clock(mount));
        let made = done(&self.stations[0], |files| async move {
            let new = plain(FileKind::Regular);
            Ok(files.make(InodeNumber::ROOT, NAME, new).await?.inode)
        });
        self.inode.set(made.await?);
        let this = self.clone();
        let write = move |files: Files| async move {
            let handle =
                files.open(this.inode.get(), HowToOpen { writes: true, ..HowToOpen::default() }).await?;
            this.write(&files, handle, 0, (0, 4 * UNITS)).await?;
            this.sync(&files, 0).await?;
            this.write(&files, handle, 0, (6 * UNITS, 4 * UNITS)).await
        };
        done(&self.stations[0], write).await?;
        if random_below(2) == 0 {
            self.kill(0).await?;
        }
        // Two others come to share it before it becomes longer.
        for step in 0..6 {
            let (mount, this) = (1 + step % 2, self.clone());
            let first = if step == 5 { 12 * UNITS } else { random_below(4) * UNITS };
            let write = move |files: Files| async move {
                let how = HowToOpen { writes: true, ..HowToOpen::default() };
                let handle = files.open(this.inode.get(), how).await?;
                this.write(&files, handle, mount, (first, UNITS)).await?;
                this.read(&files, Some(handle), 0, 13 * UNITS).await
            };
            done(&self.stations[mount], write).await?;
        }
        Ok(())
    }

    /// Kills a mount, rather as it makes the file longer, and at times another one soon after it. Waits until
    /// they are forgotten: from then on what they had not done well is there or not.
    async fn kill(self: &Rc<Self>, mount: usize) -> Result<(), String> {
        self.rests.set(true);
        // What needs the file alone would wait for the dead, and keep it free.
        sleep(RESTS_WITHIN).await;
        let mut dead = vec![self.kill_as_it_grows(mount).await];
        if random_below(3) == 0 {
            sleep(Duration::from_millis(random_below(7_000))).await;
            dead.push(self.kill_as_it_grows((mount + 2) % MOUNTS).await);
        }
        for (_, session, _) in &dead {
            self.forgotten(*session).await;
        }
        let other = &self.stations[(mount + 1) % MOUNTS];
        let this = self.clone();
        let look = move |files: Files| async move {
            let size = files.attributes(this.inode.get()).await?.size;
            for (mount, _, died) in dead {
                this.history.borrow_mut().forget(mount, died, size / UNIT);
            }
            let from = (size / UNIT).saturating_sub(4 * UNITS);
            this.read(&files, None, from, 8 * UNITS).await
        };
        let looked = done(other, look).await;
        self.rests.set(false);
        looked
    }

    /// Which mount was killed, its session, and when.
    async fn kill_as_it_grows(self: &Rc<Self>, mount: usize) -> (usize, Option<SessionId>, Instant) {
        let (this, station) = (self.clone(), self.stations[mount].clone());
        spawn(async move {
            let grow = move |files: Files| async move {
                let how = HowToOpen { writes: true, ..HowToOpen::default() };
                let handle = files.open(this.inode.get(), how).await?;
                this.write_behind(&files, handle, mount).await
            };
            station.run(grow).await.is_ok()
        });
        sleep(Duration::from_micros(random_below(1_500))).await;
        let (session, died) = (self.stations[mount].session(), now());
        self.mount_anew(mount, died);
        (mount, session, died)
    }

    /// A mount dies; the clock of the next one on its machine is as wrong as that of the one before.
    fn mount_anew(&self, mount: usize, died: Instant) {
        self.stations[mount].mount_anew();
        self.set_clock(mount);
        let synced = self.synced[mount].take();
        self.history.borrow_mut().lose(mount, synced.unwrap_or(died));
    }

    fn set_clock(&self, mount: usize) {
        for process in sim::processes_on(self.stations[mount].host()) {
            sim::set_wall_skew(process, self.skews_us[mount]);
        }
    }

    async fn forgotten(&self, session: Option<SessionId>) {
        let Some(session) = session else { return };
        while self.stage.bed.map().await.sessions.contains_key(&session) {
            sleep(Duration::from_millis(100)).await;
        }
        sleep(FORGOTTEN_WITHIN).await;
    }

    async fn use_file(self: Rc<Self>, user: usize) {
        let mount = user % MOUNTS;
        let station = self.stations[mount].clone();
        while !self.is_over.get() && self.found.borrow().is_none() {
            let life = station.life();
            let this = self.clone();
            match station.run(move |files| async move { this.use_for_a_while(&files, mount).await }).await {
                Ok(Ok(())) | Err(Died) => {}
                // Whoever is cut off for long has no session any more.
                Ok(Err(FsError::SessionOver { .. })) if station.life() == life => {
                    sim::tell(|| format!("the session of mount {mount} is over"));
                    self.mount_anew(mount, now());
                }
                Ok(Err(FsError::SessionOver { .. })) => {}
                Ok(Err(error)) => drop(self.found.borrow_mut().get_or_insert(error.to_string())),
            }
        }
        self.users.set(self.users.get() - 1);
    }

    async fn use_for_a_while(&self, files: &Files, mount: usize) -> Result<(), FsError> {
        let inode = self.inode.get();
        let handle = files.open(inode, HowToOpen { writes: true, ..HowToOpen::default() }).await?;
        let mut seen: Option<(FileTime, Instant)> = None;
        for _ in 0..40 {
            if self.is_over.get() || self.found.borrow().is_some() {
                break;
            }
            let near = random_below(NEAR_BLOCKS) * UNITS;
            let what = random_below(20);
            if self.rests.get() && !matches!(what, 0..7 | 10..16) {
                sleep(Duration::from_millis(random_below(300))).await;
                continue;
            }
            match what {
                0..7 => self.write(files, handle, mount, (near, UNITS * (1 + random_below(2)))).await?,
                7..9 if self.is_time_to_grow() => self.write_behind(files, handle, mount).await?,
                9 if self.has_parts => {
                    self.write(files, handle, mount, (near + random_below(UNITS), 1)).await?;
                }
                10..13 => self.read(files, Some(handle), near, 3 * UNITS).await?,
                13..16 => {
                    let end = self.history.borrow().end_unit();
                    self.read(files, Some(handle), end.saturating_sub(3 * UNITS), 4 * UNITS).await?;
                }
                16 => self.sync(files, mount).await?,
                17..19 => seen = Some(self.look_at_time(files, mount, seen).await?),
                _ => sleep(Duration::from_micros(random_below(2_000))).await,
            }
        }
        files.release(handle).await;
        Ok(())
    }

    /// The file becomes longer half of the time: only then does its time change with each such write.
    fn is_time_to_grow(&self) -> bool {
        (self.began.elapsed().as_millis() / 40).is_multiple_of(2)
    }

    /// Writes a block behind the end.
    async fn write_behind(&self, files: &Files, handle: u64, mount: usize) -> Result<(), FsError> {
        let end = self.history.borrow().end_unit().next_multiple_of(UNITS);
        self.write(files, handle, mount, (end + random_below(3) * UNITS, UNITS)).await
    }

    /// Writes some units with a stamp of their own.
    async fn write(
        &self,
        files: &Files,
        handle: u64,
        mount: usize,
        (first, units): (u64, u64),
    ) -> Result<(), FsError> {
        let stamp = self.history.borrow_mut().begin(mount, first, first + units);
        let bytes = (stamp as u64).to_le_bytes().repeat((units * UNIT / 8) as usize);
        files.write_through(handle, first * UNIT, vec![Buf::from(bytes)]).await?;
        self.history.borrow_mut().end(stamp);
        Ok(())
    }

    async fn sync(&self, files: &Files, mount: usize) -> Result<(), FsError> {
        let from = now();
        files.sync(self.inode.get()).await?;
        self.synced[mount].set(Some(from));
        Ok(())
    }

    async fn read(&self, files: &Files, handle: Option<u64>, first: u64, units: u64) -> Result<(), FsError> {
        let opened = match handle {
            Some(handle) => handle,
            None => files.open(self.inode.get(), HowToOpen::default()).await?,
        };
        let began = now();
        let bufs = files.read(opened, first * UNIT, units * UNIT).await?;
        let read = (began, now());
        if handle.is_none() {
            files.release(opened).await;
        }
        let data: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        let mut found = data.chunks(UNIT as usize);
        for unit in first..first + units {
            let judged = match found.next().map(stamp_of) {
                Some(Err(torn)) => Err(format!("unit {unit}: {torn}")),
                Some(Ok(stamp)) => self.history.borrow().judge(unit, Some(stamp), read),
                None => self.history.borrow().judge(unit, None, read),
            };
            if let Err(wrong) = judged {
                self.found.borrow_mut().get_or_insert(wrong);
            }
        }
        Ok(())
    }

    /// The time of the file is another one than it was if somebody else has written it since.
    async fn look_at_time(
        &self,
        files: &Files,
        mount: usize,
        seen: Option<(FileTime, Instant)>,
    ) -> Result<(FileTime, Instant), FsError> {
        let began = now();
        let modified = files.attributes(self.inode.get()).await?.modified;
        if let Some((before, at)) = seen {
            let is_new =
                |write: &Write| write.mount != mount && write.began > at && write.was_done_before(began);
            if before == modified && self.history.borrow().0.iter().any(is_new) {
                let wrong = "a file was written by another mount, and its time is as it was";
                self.found.borrow_mut().get_or_insert(wrong.to_owned());
            }
        }
        Ok((modified, now()))
    }
}

/// The stamp of a unit.
fn stamp_of(unit: &[u8]) -> Result<usize, String> {
    let stamps: Vec<u64> = unit
        .chunks_exact(8)
        .map(|stamp| u64::from_le_bytes(stamp.try_into().expect("eight bytes")))
        .collect();
    match stamps.split_first() {
        Some((first, rest)) if rest.iter().all(|stamp| stamp == first) => Ok(*first as usize),
        _ => Err("it has bytes of several writes".to_owned()),
    }
}
