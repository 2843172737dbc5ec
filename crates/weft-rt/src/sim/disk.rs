//! Simulated disks: they outlive processes, and lose, tear and reorder what was not flushed.

use super::{Crash, World};
use crate::executor::{Process, with_core};
use crate::sync::Notify;
use crate::time::sleep;
use crate::{Buf, BufMut, Drive};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// The unit in which a simulated disk writes atomically.
const SECTOR: usize = 512;
/// The unit in which a simulated disk keeps its contents.
const PAGE: usize = 4096;
/// What repeats in a page that is not kept byte by byte.
const UNIT: usize = 16;

/// What a simulated disk does wrong.
#[derive(Clone, Debug)]
pub struct DiskFaults {
    /// Reads that touch these bytes fail. What is written is readable again, in its old place or on a spare
    /// one: that is what drives do.
    pub unreadable: Vec<Range<u64>>,
    /// So many reads more fail for want of memory.
    pub reads_without_memory: u32,
    /// Writes and flushes fail with this error.
    pub write_error: Option<io::ErrorKind>,
    /// Operations do not complete until this is lifted.
    pub stuck: bool,
    /// The disk is gone, as a file that was deleted: it works on, and only who asks whether it is there is
    /// told.
    pub is_gone: bool,
    /// How long an operation takes: at least and at most.
    pub latency: (Duration, Duration),
}

impl Default for DiskFaults {
    fn default() -> Self {
        DiskFaults {
            unreadable: Vec::new(),
            reads_without_memory: 0,
            write_error: None,
            stuck: false,
            is_gone: false,
            latency: (Duration::from_micros(5), Duration::from_micros(100)),
        }
    }
}

/// Something that changed what a power cut leaves of a disk; see [`SimDisk::record`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// A write began: from now on a cut may leave all, some or none of its sectors.
    Write {
        /// Its name; rises from write to write.
        serial: u64,
        /// Where, in bytes.
        offset: u64,
        /// What.
        data: Vec<u8>,
    },
    /// A flush completed: of the writes with these names all sectors stay.
    Flushed {
        /// Names of writes.
        serials: Vec<u64>,
    },
}

/// A write that a power cut may still lose.
struct Unflushed {
    serial: u64,
    process: Process,
    /// The number of its first page.
    first: u64,
    pages: Vec<Page>,
    completed: bool,
    /// What could not be read before it was written: nor can it be when the write is lost.
    mended: Vec<Range<u64>>,
}

impl Unflushed {
    fn bytes(&self) -> Range<u64> {
        bytes_of(self.first, &self.pages)
    }
}

/// Where pages lie, in bytes from the start.
fn bytes_of(first: u64, pages: &[Page]) -> Range<u64> {
    first * PAGE as u64..(first + pages.len() as u64) * PAGE as u64
}

/// Takes a range out of others; returns what of it they had.
fn take_out(ranges: &mut Vec<Range<u64>>, gone: &Range<u64>) -> Vec<Range<u64>> {
    let mut taken = Vec::new();
    for range in std::mem::take(ranges) {
        let within = range.start.max(gone.start)..range.end.min(gone.end);
        if within.is_empty() {
            ranges.push(range);
            continue;
        }
        let rest = [range.start..within.start, within.end..range.end];
        ranges.extend(rest.into_iter().filter(|rest| !rest.is_empty()));
        taken.push(within);
    }
    taken
}

/// A page's contents. What is written, what is visible and what is durable share them: whoever changes a page
/// puts another one in its place.
#[derive(Clone)]
enum Page {
    /// These bytes again and again: zeroes, and what workloads fill blocks with. Most of what a simulation
    /// writes is of this kind, and takes no memory beside the map's.
    Filled([u8; UNIT]),
    /// Any.
    Bytes(Rc<[u8]>),
}

impl Page {
    const ZEROES: Page = Page::Filled([0; UNIT]);

    fn of(bytes: &[u8]) -> Page {
        match bytes.first_chunk() {
            Some(unit) if bytes[UNIT..] == bytes[..PAGE - UNIT] => Page::Filled(*unit),
            _ => Page::Bytes(bytes.into()),
        }
    }

    /// Copies the bytes from a place on.
    fn read(&self, from: usize, out: &mut [u8]) {
        match self {
            Page::Filled(unit) if *unit == [unit[0]; UNIT] => out.fill(unit[0]),
            Page::Filled(unit) => {
                let before = from % UNIT;
                let (head, rest) = out.split_at_mut(out.len().min((UNIT - before) % UNIT));
                head.copy_from_slice(&unit[before..before + head.len()]);
                let (units, tail) = rest.as_chunks_mut();
                units.fill(*unit);
                tail.copy_from_slice(&unit[..tail.len()]);
            }
            Page::Bytes(bytes) => out.copy_from_slice(&bytes[from..from + out.len()]),
        }
    }

    fn to_bytes(&self) -> [u8; PAGE] {
        let mut bytes = [0; PAGE];
        self.read(0, &mut bytes);
        bytes
    }
}

/// Pages that were ever written, by number.
type Pages = BTreeMap<u64, Page>;

struct DiskState {
    name: String,
    size: u64,
    /// What reads see.
    visible: RefCell<Pages>,
    /// What survives a power cut for certain.
    durable: RefCell<Pages>,
    unflushed: RefCell<Vec<Unflushed>>,
    next_serial: Cell<u64>,
    operations: Cell<u64>,
    cut_after: Cell<Option<u64>>,
    is_cut: Cell<bool>,
    faults: RefCell<DiskFaults>,
    is_pulled: Cell<bool>,
    /// How often it was pulled.
    pulls: Cell<u64>,
    changed: Notify,
    /// Who has it open, once for each time that it was opened.
    opened_by: RefCell<Vec<Process>>,
    /// Whether others of the host may open it beside whoever has it open.
    is_shared: Cell<bool>,
    recorded: RefCell<Option<Vec<DiskEvent>>>,
}

/// A simulated disk. Clones are the same disk. It starts out as zeroes.
#[derive(Clone)]
pub struct SimDisk(Rc<DiskState>);

/// What a process holds of a disk: enough to crash it.
pub(crate) type DiskRef = SimDisk;

/// Puts whole pages in a row.
fn put_pages(pages: &mut Pages, first: u64, new: &[Page]) {
    pages.extend((first..).zip(new.iter().cloned()));
}

/// Changes any bytes.
fn write_bytes(pages: &mut Pages, offset: u64, data: &[u8]) {
    let mut at = offset;
    let mut rest = data;
    while !rest.is_empty() {
        let (page, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
        let n = rest.len().min(PAGE - within);
        let kept = pages.entry(page).or_insert(Page::ZEROES);
        let mut bytes = kept.to_bytes();
        bytes[within..within + n].copy_from_slice(&rest[..n]);
        *kept = Page::of(&bytes);
        at += n as u64;
        rest = &rest[n..];
    }
}

/// What is to be written, as pages of their own.
fn pages_of(data: &[Buf]) -> Vec<Page> {
    if data.iter().all(|part| part.len().is_multiple_of(PAGE)) {
        return data.iter().flat_map(|part| part.chunks(PAGE)).map(Page::of).collect();
    }
    let whole: Vec<u8> = data.iter().flat_map(|part| &**part).copied().collect();
    whole.chunks(PAGE).map(Page::of).collect()
}

fn read_pages(pages: &Pages, offset: u64, out: &mut [u8]) {
    let (mut at, mut done) = (offset, 0);
    while done < out.len() {
        let (page, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
        let n = (out.len() - done).min(PAGE - within);
        match pages.get(&page) {
            Some(page) => page.read(within, &mut out[done..done + n]),
            None => out[done..done + n].fill(0),
        }
        at += n as u64;
        done += n;
    }
}

impl SimDisk {
    /// A disk of zeroes. Its size is in bytes.
    pub fn new(name: &str, size: u64) -> SimDisk {
        SimDisk(Rc::new(DiskState {
            name: name.to_owned(),
            size,
            visible: RefCell::default(),
            durable: RefCell::default(),
            unflushed: RefCell::default(),
            next_serial: Cell::new(0),
            operations: Cell::new(0),
            cut_after: Cell::new(None),
            is_cut: Cell::new(false),
            faults: RefCell::default(),
            is_pulled: Cell::new(false),
            pulls: Cell::new(0),
            changed: Notify::default(),
            opened_by: RefCell::default(),
            is_shared: Cell::new(false),
            recorded: RefCell::default(),
        }))
    }

    /// Opens it for the calling process.
    ///
    /// # Errors
    /// `NotFound` if it was pulled, `WouldBlock` if a process has it open.
    pub fn open(&self) -> io::Result<Drive> {
        self.check_not_pulled()?;
        if !self.0.opened_by.borrow().is_empty() {
            return Err(io::Error::from(io::ErrorKind::WouldBlock));
        }
        self.0.is_shared.set(false);
        Ok(self.open_beside())
    }

    /// Opens it for the calling process beside others, which are threads of one node: one of them has it
    /// open, and has called [`Drive::share`].
    ///
    /// # Errors
    /// `NotFound` if it was pulled, `WouldBlock` if nobody shares it, or a process of another host does.
    pub fn open_shared(&self) -> io::Result<Drive> {
        self.check_not_pulled()?;
        let is_ours = with_core(|core| {
            let world = core.world().expect("a simulated disk needs a simulation");
            let host = world.host(core.process());
            self.0.opened_by.borrow().iter().all(|process| world.host(*process) == host)
        });
        if !self.0.is_shared.get() || !is_ours || self.0.opened_by.borrow().is_empty() {
            return Err(io::Error::from(io::ErrorKind::WouldBlock));
        }
        Ok(self.open_beside())
    }

    fn check_not_pulled(&self) -> io::Result<()> {
        if self.is_pulled() { Err(pulled()) } else { Ok(()) }
    }

    fn open_beside(&self) -> Drive {
        with_core(|core| {
            let world = core.world().expect("a simulated disk needs a simulation").clone();
            let process = core.process();
            self.0.opened_by.borrow_mut().push(process);
            world.register_disk(process, self.clone());
            let path = format!("sim:{}", self.0.name);
            let handle = DiskHandle { world, disk: self.0.clone(), process, pulls: self.pulls() };
            Drive::simulated(path, handle)
        })
    }

    /// Writes and flushes begun so far.
    pub fn operations(&self) -> u64 {
        self.0.operations.get()
    }

    /// Lets `n` more writes and flushes begin; the one after and all later never complete, until
    /// [`SimDisk::restore_power`].
    pub fn cut_power_after(&self, n: u64) {
        self.0.cut_after.set(Some(self.0.operations.get() + n));
    }

    /// Whether [`SimDisk::cut_power_after`] has struck.
    pub fn is_cut(&self) -> bool {
        self.0.is_cut.get()
    }

    /// Completes when [`SimDisk::cut_power_after`] strikes.
    pub async fn cut(&self) {
        while !self.0.is_cut.get() {
            self.0.changed.notified().await;
        }
    }

    /// Operations complete again. What was unflushed has to be resolved before by killing the process.
    pub fn restore_power(&self) {
        self.0.cut_after.set(None);
        self.0.is_cut.set(false);
        self.0.changed.notify_all();
    }

    /// Notes every write and flush from now on, so that what a cut at each of them might leave can be made
    /// later without running the same again.
    pub fn record(&self) {
        self.0.recorded.replace(Some(Vec::new()));
    }

    /// How many events were noted.
    pub fn recorded_events(&self) -> usize {
        self.0.recorded.borrow().as_ref().map_or(0, Vec::len)
    }

    /// What was noted; nothing more is from now on.
    pub fn take_record(&self) -> Vec<DiskEvent> {
        self.0.recorded.take().unwrap_or_default()
    }

    /// Changes the faults.
    pub fn set_faults(&self, change: impl FnOnce(&mut DiskFaults)) {
        change(&mut self.0.faults.borrow_mut());
        self.0.changed.notify_all();
    }

    /// Pulls it out of its machine: what was not flushed is kept, lost or torn as by a power cut, and whoever
    /// has it open gets nothing but errors from now on, also when it is back. Nobody is told before it is
    /// asked for.
    pub fn pull(&self) {
        let world = with_core(|core| core.world().expect("a simulated disk needs a simulation").clone());
        self.lose_power(&world);
        self.0.is_pulled.set(true);
        self.0.pulls.set(self.pulls() + 1);
        self.0.changed.notify_all();
    }

    /// Puts it back, for whoever opens it next.
    pub fn put_back(&self) {
        self.0.is_pulled.set(false);
    }

    /// Whether it was pulled, and is not back.
    pub fn is_pulled(&self) -> bool {
        self.0.is_pulled.get()
    }

    /// How often it was pulled.
    pub fn pulls(&self) -> u64 {
        self.0.pulls.get()
    }

    /// What a read would return now, without faults.
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        read_pages(&self.0.visible.borrow(), offset, &mut out);
        out
    }

    /// Changes bytes behind the processes' backs, durably.
    pub fn poke(&self, offset: u64, bytes: &[u8]) {
        write_bytes(&mut self.0.visible.borrow_mut(), offset, bytes);
        write_bytes(&mut self.0.durable.borrow_mut(), offset, bytes);
    }

    /// Flips a bit behind the processes' backs, durably.
    pub fn flip(&self, offset: u64, bit: u8) {
        let byte = self.peek(offset, 1)[0] ^ (1 << (bit % 8));
        self.poke(offset, &[byte]);
    }

    /// Where something was ever written, in bytes from the start, by pages of 4 KiB.
    pub fn touched(&self) -> Vec<u64> {
        self.0.visible.borrow().keys().map(|page| page * PAGE as u64).collect()
    }

    /// The disk's size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.0.size
    }

    /// A copy of the disk as it is now, everything durable.
    pub fn copy(&self, name: &str) -> SimDisk {
        let copy = SimDisk::new(name, self.0.size);
        copy.0.visible.replace(self.0.visible.borrow().clone());
        copy.0.durable.replace(self.0.visible.borrow().clone());
        copy
    }

    /// Resolves what the process had not flushed.
    pub(crate) fn crash(&self, world: &World, process: Process, crash: Crash) {
        self.0.opened_by.borrow_mut().retain(|opener| *opener != process);
        match crash {
            Crash::Process => {
                let mut visible = self.0.visible.borrow_mut();
                let unreadable = &mut self.0.faults.borrow_mut().unreadable;
                for w in self.0.unflushed.borrow_mut().iter_mut() {
                    if w.process == process && !w.completed {
                        if tear(world, &mut w.pages, &visible, w.first) {
                            w.mended = take_out(unreadable, &w.bytes());
                        }
                        put_pages(&mut visible, w.first, &w.pages);
                        w.completed = true;
                    }
                }
            }
            Crash::PowerCut => self.lose_power(world),
        }
    }

    /// Resolves what was not flushed, whoever wrote it.
    fn lose_power(&self, world: &World) {
        let mut durable = self.0.durable.borrow_mut();
        let unreadable = &mut self.0.faults.borrow_mut().unreadable;
        for mut w in self.0.unflushed.borrow_mut().drain(..) {
            if tear(world, &mut w.pages, &durable, w.first) {
                take_out(unreadable, &w.bytes());
            } else {
                unreadable.append(&mut w.mended);
            }
            put_pages(&mut durable, w.first, &w.pages);
        }
        *self.0.visible.borrow_mut() = durable.clone();
    }
}

/// What is said of a disk that is not there.
fn pulled() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the disk was pulled")
}

/// Keeps a write, loses it, or mixes its sectors with what was there; whether it is kept.
fn tear(world: &World, pages: &mut [Page], before: &Pages, first: u64) -> bool {
    let fate = world.random_below(3);
    if fate == 0 {
        return true;
    }
    for (page, number) in pages.iter_mut().zip(first..) {
        let old = before.get(&number).unwrap_or(&Page::ZEROES);
        if fate == 1 {
            *page = old.clone();
            continue;
        }
        let mut mixed = page.to_bytes();
        for (at, sector) in mixed.chunks_mut(SECTOR).enumerate() {
            if world.random_below(2) == 0 {
                old.read(at * SECTOR, sector);
            }
        }
        *page = Page::of(&mixed);
    }
    false
}

/// The simulated half of [`Drive`]; the disk is free for others when it is dropped.
pub(crate) struct DiskHandle {
    world: World,
    disk: Rc<DiskState>,
    process: Process,
    /// How often the disk had been pulled when it was opened.
    pulls: u64,
}

impl DiskHandle {
    pub(crate) fn len(&self) -> u64 {
        self.disk.size
    }

    /// Lets others of the host open it as well.
    pub(crate) fn share(&self) {
        self.disk.is_shared.set(true);
    }

    /// Waits out latency and whatever keeps the disk from completing.
    ///
    /// # Errors
    /// If the disk was pulled.
    async fn operate(&self) -> io::Result<()> {
        let (low, high) = self.disk.faults.borrow().latency;
        sleep(self.world.random_duration(low, high)).await;
        while self.is_present() && (self.disk.is_cut.get() || self.disk.faults.borrow().stuck) {
            self.disk.changed.notified().await;
        }
        self.check_use()
    }

    /// Whether the disk has been there ever since it was opened.
    fn is_present(&self) -> bool {
        self.disk.pulls.get() == self.pulls
    }

    /// Counts a write or flush, and cuts the power at the chosen one.
    fn begin(&self, what: u64) {
        let n = self.disk.operations.get();
        self.disk.operations.set(n + 1);
        self.world.trace(0x6469_736b ^ what << 32 ^ n);
        if self.disk.cut_after.get().is_some_and(|limit| n >= limit) {
            self.disk.is_cut.set(true);
            self.disk.changed.notify_all();
        }
    }

    pub(crate) fn check_presence(&self) -> io::Result<()> {
        match self.is_present() && !self.disk.faults.borrow().is_gone {
            true => Ok(()),
            false => Err(pulled()),
        }
    }

    fn check_use(&self) -> io::Result<()> {
        if self.is_present() { Ok(()) } else { Err(pulled()) }
    }

    fn write_error(&self) -> io::Result<()> {
        match self.disk.faults.borrow().write_error {
            Some(kind) => Err(io::Error::from(kind)),
            None => Ok(()),
        }
    }

    pub(crate) async fn read(&self, offset: u64, len: usize) -> io::Result<BufMut> {
        self.operate().await?;
        let wanted = offset..offset + len as u64;
        let bad = |r: &Range<u64>| r.start < wanted.end && wanted.start < r.end;
        let mut faults = self.disk.faults.borrow_mut();
        if let Some(left) = faults.reads_without_memory.checked_sub(1) {
            faults.reads_without_memory = left;
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if faults.unreadable.iter().any(bad) {
            return Err(io::Error::other("unreadable sector"));
        }
        drop(faults);
        let mut buf = BufMut::aligned(len);
        read_pages(&self.disk.visible.borrow(), offset, &mut buf);
        Ok(buf)
    }

    /// Writes whole pages.
    pub(crate) async fn write(&self, offset: u64, data: &[Buf]) -> io::Result<()> {
        self.check_use()?;
        self.begin(offset);
        let serial = self.disk.next_serial.get();
        self.disk.next_serial.set(serial + 1);
        if let Some(events) = &mut *self.disk.recorded.borrow_mut() {
            let data = data.iter().flat_map(|part| &**part).copied().collect();
            events.push(DiskEvent::Write { serial, offset, data });
        }
        let (first, pages) = (offset / PAGE as u64, pages_of(data));
        self.disk.unflushed.borrow_mut().push(Unflushed {
            serial,
            process: self.process,
            first,
            pages: pages.clone(),
            completed: false,
            mended: Vec::new(),
        });
        self.operate().await?;
        self.write_error()?;
        put_pages(&mut self.disk.visible.borrow_mut(), first, &pages);
        let mended = take_out(&mut self.disk.faults.borrow_mut().unreadable, &bytes_of(first, &pages));
        let mut unflushed = self.disk.unflushed.borrow_mut();
        if let Some(w) = unflushed.iter_mut().find(|w| w.serial == serial) {
            (w.completed, w.mended) = (true, mended);
        }
        Ok(())
    }

    pub(crate) async fn flush(&self) -> io::Result<()> {
        self.check_use()?;
        self.begin(u64::from(u32::MAX));
        let covered: Vec<u64> =
            self.disk.unflushed.borrow().iter().filter(|w| w.completed).map(|w| w.serial).collect();
        self.operate().await?;
        self.write_error()?;
        let mut durable = self.disk.durable.borrow_mut();
        self.disk.unflushed.borrow_mut().retain(|w| {
            let flushed = covered.binary_search(&w.serial).is_ok();
            if flushed {
                put_pages(&mut durable, w.first, &w.pages);
            }
            !flushed
        });
        if let Some(events) = &mut *self.disk.recorded.borrow_mut() {
            events.push(DiskEvent::Flushed { serials: covered });
        }
        Ok(())
    }
}

impl Drop for DiskHandle {
    fn drop(&mut self) {
        let mut opened_by = self.disk.opened_by.borrow_mut();
        if let Some(at) = opened_by.iter().position(|opener| *opener == self.process) {
            opened_by.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Sim, kill, spawn_process};
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn a_power_cut_keeps_what_was_flushed_and_sometimes_what_was_not() {
        let mut kept = 0;
        for seed in 0..50 {
            let second = Sim::new(seed).block_on(async {
                let disk = SimDisk::new("d", 1 << 20);
                let used = disk.clone();
                let p = spawn_process(IpAddr::from([10, 0, 0, 1]), "p", async move {
                    let drive = used.open().unwrap();
                    drive.write(0, Buf::from(vec![1; 4096])).await.unwrap();
                    drive.flush().await.unwrap();
                    drive.write(4096, Buf::from(vec![2; 4096])).await.unwrap();
                    std::future::pending::<()>().await;
                });
                sleep(Duration::from_millis(10)).await;
                assert!(disk.open().is_err(), "open already");
                kill(p, Crash::PowerCut);
                let drive = disk.open().unwrap();
                assert!(drive.read(0, 4096).await.unwrap().iter().all(|b| *b == 1));
                drive.read(4096, 4096).await.unwrap()[0]
            });
            kept += usize::from(second == 2);
        }
        assert!(kept > 5 && kept < 45, "kept {kept} of 50");
    }

    #[test]
    fn what_was_written_can_be_read_again_unless_a_power_cut_loses_the_write() {
        let mut kept = 0;
        for seed in 0..50 {
            let is_kept = Sim::new(seed).block_on(async {
                let disk = SimDisk::new("d", 1 << 20);
                disk.set_faults(|f| f.unreadable.push(0..3 * PAGE as u64));
                let used = disk.clone();
                let p = spawn_process(IpAddr::from([10, 0, 0, 1]), "p", async move {
                    let drive = used.open().unwrap();
                    drive.write(0, Buf::from(vec![1; PAGE])).await.unwrap();
                    drive.flush().await.unwrap();
                    drive.write(PAGE as u64, Buf::from(vec![2; PAGE])).await.unwrap();
                    drive.read(0, 2 * PAGE).await.unwrap();
                    std::future::pending::<()>().await;
                });
                sleep(Duration::from_millis(10)).await;
                kill(p, Crash::PowerCut);
                let drive = disk.open().unwrap();
                drive.read(0, PAGE).await.unwrap();
                drive.read(2 * PAGE as u64, PAGE).await.unwrap_err();
                let second = drive.read(PAGE as u64, PAGE).await;
                assert!(second.as_ref().is_ok_and(|page| page.iter().all(|b| *b == 2)) || second.is_err());
                second.is_ok()
            });
            kept += usize::from(is_kept);
        }
        assert!(kept > 5 && kept < 45, "kept {kept} of 50");
    }

    #[test]
    fn a_disk_that_was_pulled_fails_whoever_has_it_open_and_holds_what_was_flushed_when_it_is_back() {
        for seed in 0..20 {
            Sim::new(seed).block_on(async {
                let disk = SimDisk::new("d", 1 << 20);
                let drive = disk.open().unwrap();
                drive.write(0, Buf::from(vec![1; PAGE])).await.unwrap();
                drive.flush().await.unwrap();
                disk.set_faults(|f| f.stuck = true);
                let late = drive.clone();
                let write = crate::spawn(async move { late.write(0, Buf::from(vec![2; PAGE])).await });
                sleep(Duration::from_millis(1)).await;
                disk.pull();
                assert!(matches!(write.await, Ok(Err(_))), "it does not wait for a disk that is not there");
                assert_eq!(disk.open().map(|_| ()).unwrap_err().kind(), io::ErrorKind::NotFound);
                let held = disk.peek(0, PAGE);
                disk.put_back();
                disk.set_faults(|f| f.stuck = false);
                drive.write(0, Buf::from(vec![3; PAGE])).await.unwrap_err();
                drive.flush().await.unwrap_err();
                drive.check_presence().await.unwrap_err();
                drop(drive);
                let again = disk.open().unwrap();
                again.check_presence().await.unwrap();
                let found = again.read(0, PAGE).await.unwrap();
                assert_eq!(*found, held[..], "as it was when it was pulled");
                assert!(found.iter().all(|byte| [1, 2].contains(byte)));
            });
        }
    }

    #[test]
    fn threads_of_a_node_share_a_disk_and_nobody_else_does() {
        Sim::new(1).block_on(async {
            let disk = SimDisk::new("d", 1 << 20);
            let opens = |host: u8, disk: SimDisk| {
                let told = Rc::new(Cell::new(None));
                let tell = told.clone();
                spawn_process(IpAddr::from([10, 0, 0, host]), "other", async move {
                    tell.set(Some(disk.open_shared().is_ok()));
                });
                async move {
                    sleep(Duration::from_millis(1)).await;
                    told.get()
                }
            };
            let used = disk.clone();
            let first = spawn_process(IpAddr::from([10, 0, 0, 1]), "first", async move {
                let drive = used.open().unwrap();
                sleep(Duration::from_millis(10)).await;
                drive.share().unwrap();
                std::future::pending::<()>().await;
            });
            sleep(Duration::from_millis(1)).await;
            assert_eq!(opens(1, disk.clone()).await, Some(false), "it is not shared yet");
            sleep(Duration::from_millis(20)).await;
            assert_eq!(opens(1, disk.clone()).await, Some(true));
            assert_eq!(opens(2, disk.clone()).await, Some(false), "another machine");
            assert!(disk.open().is_err());
            kill(first, Crash::Process);
            assert!(disk.open().is_ok(), "nobody has it open any more");
            assert!(disk.open_shared().is_err(), "who opens it anew has not shared it");
        });
    }

    #[test]
    fn pages_of_any_kind_read_as_they_were_written() {
        let unit: Vec<u8> = (1..=UNIT as u8).collect();
        let mut odd = unit.repeat(PAGE / UNIT);
        odd[PAGE - 1] = 99;
        let written = [unit.repeat(PAGE / UNIT), vec![7; PAGE], odd, vec![0; PAGE]];
        let disk = SimDisk::new("d", 1 << 20);
        for (page, bytes) in written.iter().enumerate() {
            assert_eq!(matches!(Page::of(bytes), Page::Bytes(_)), page == 2);
            disk.poke((page * PAGE) as u64, bytes);
        }
        let whole = written.concat();
        for (at, len) in [(0, PAGE), (3, 5), (3, 40), (16, 16), (PAGE - 7, 20), (2 * PAGE - 1, PAGE + 2)] {
            assert_eq!(disk.peek(at as u64, len), &whole[at..at + len], "{len} bytes at {at}");
        }
        disk.flip(20, 3);
        assert_eq!(disk.peek(16, 16)[4], unit[4] ^ 8);
        assert_eq!(disk.peek(0, 16), unit, "the bytes before it are as they were");
    }

    #[test]
    fn operations_after_a_cut_never_complete() {
        Sim::new(1).block_on(async {
            let disk = SimDisk::new("d", 1 << 20);
            let drive = disk.open().unwrap();
            disk.cut_power_after(1);
            drive.write(0, Buf::zeroes(4096)).await.unwrap();
            assert!(crate::timeout(Duration::from_secs(9), drive.flush()).await.is_err());
            assert!(disk.is_cut());
        });
    }
}
