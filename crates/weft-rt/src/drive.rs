//! Drives: a block device or file with direct I/O, memory, or a simulated disk.

use crate::mem::Mem;
use crate::sim::DiskHandle;
use crate::sync::{Either, Notify, race};
use crate::uring::DriveFile;
use crate::window::{Extent, Window};
use crate::{Buf, BufMut, IO_ALIGN, Landing, now, sleep};
use std::cell::Cell;
use std::io::{self, Seek, SeekFrom};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use weft_types::DeviceId;

/// How long a drive may stay locked by a process that has ended: until the kernel has let go of its ring.
const FREE_WITHIN: Duration = Duration::from_millis(500);

/// How often it is tried meanwhile.
const TRIED_EVERY: Duration = Duration::from_millis(10);

/// How to open a drive.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Create a file of this many bytes, its space reserved, if there is none.
    pub create_bytes: Option<u64>,
    /// With `create_bytes`: leave the file sparse, so that space is taken as it is written.
    pub sparse: bool,
    /// Refuse writes, and take no lock.
    pub read_only: bool,
    /// Open it beside other threads of this process, of which one has it open and has called
    /// [`Drive::share`]: the caller sees to that. Refused as long as another process has the drive.
    pub is_shared: bool,
}

enum Medium {
    File(DriveFile),
    Mem(Mem),
    Sim(DiskHandle),
}

struct Inner {
    path: String,
    /// What it lies on: shared with other windows of one drive that was opened once.
    medium: Rc<Medium>,
    window: Window,
    /// The device that a window's owner says it is a part of.
    part_of: Option<DeviceId>,
    watch: Watch,
}

/// Whether operations complete.
#[derive(Default)]
struct Watch {
    under_way: Cell<u64>,
    completed: Cell<u64>,
    is_given_up: Cell<bool>,
    given_up: Notify,
}

/// How a drive's reads, writes and flushes get on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Operations that have begun and that somebody waits for.
    pub under_way: u64,
    /// Operations that have completed since the drive was opened, well or with an error.
    pub completed: u64,
}

/// An operation that somebody waits for.
struct UnderWay<'a>(&'a Watch);

impl Watch {
    fn begin(&self) -> UnderWay<'_> {
        self.under_way.set(self.under_way.get() + 1);
        UnderWay(self)
    }
}

impl UnderWay<'_> {
    fn complete(self) {
        self.0.completed.set(self.0.completed.get() + 1);
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
    }
}

/// An open drive. Clones share it; it is closed when the last is dropped.
///
/// Offsets and lengths are bytes, multiples of [`IO_ALIGN`]. A completed write is durable only after a
/// [`Drive::flush`] that began after the write had completed.
#[derive(Clone)]
pub struct Drive(Rc<Inner>);

impl Drive {
    /// The bytes of what [`Drive::open`] would open, without taking it for itself.
    ///
    /// # Errors
    /// If it is not there, may not be read, or is no drive.
    pub fn size_of(spec: &str) -> io::Result<u64> {
        match spec.strip_prefix("mem:") {
            Some(size) => parse_size(size),
            None => std::fs::File::open(spec)?.seek(SeekFrom::End(0)),
        }
    }

    /// The NUMA node that the block device at a path is attached to; none of files, and where the kernel does
    /// not say it.
    pub fn numa_node_of(spec: &str) -> Option<u32> {
        DriveFile::numa_node_of(Path::new(spec))
    }

    /// Opens `mem:SIZE` (bytes, or with a suffix K, M, G, T: powers of 1024), or the file or block device
    /// at a path, with direct I/O and locked against a second user.
    ///
    /// # Errors
    /// Those of the operating system; `WouldBlock` if another process has the drive open, and has had it for
    /// half a second.
    pub async fn open(spec: &str, options: OpenOptions) -> io::Result<Drive> {
        let medium = match spec.strip_prefix("mem:") {
            Some(size) => Medium::Mem(Mem::new(parse_size(size)?)?),
            None => Medium::File(open_when_free(spec, &options).await?),
        };
        Ok(Drive::on(spec.to_owned(), medium))
    }

    /// A drive on a simulated disk.
    pub(crate) fn simulated(path: String, disk: DiskHandle) -> Drive {
        Drive::on(path, Medium::Sim(disk))
    }

    /// All of what was opened.
    fn on(path: String, medium: Medium) -> Drive {
        let size = match &medium {
            Medium::File(file) => file.len(),
            Medium::Mem(mem) => mem.len(),
            Medium::Sim(disk) => disk.len(),
        };
        let window = Window::whole(size - size % IO_ALIGN as u64);
        let (medium, watch) = (Rc::new(medium), Watch::default());
        Drive(Rc::new(Inner { path, medium, window, part_of: None, watch }))
    }

    /// A part of this drive as a drive by itself, of that path and that device: the bytes of these extents,
    /// one behind the other. What was opened stays open, and locked, as long as a window of it is there.
    ///
    /// A window has its own [`Drive::progress`], and is given up by itself. The windows of a device may be
    /// open on several threads, of which none knows what the others wait for: so each of them finds out for
    /// itself that the device hangs, at the latest by asking for a block while it is idle.
    ///
    /// # Errors
    /// `InvalidInput` if the extents are none, not aligned to [`IO_ALIGN`], overlap, or leave the drive.
    pub fn window(&self, path: &str, device: DeviceId, extents: &[Extent]) -> io::Result<Drive> {
        Ok(Drive(Rc::new(Inner {
            path: path.to_owned(),
            medium: self.0.medium.clone(),
            window: self.0.window.within(extents)?,
            part_of: Some(device),
            watch: Watch::default(),
        })))
    }

    /// Lets other threads of this process open it as well, with [`OpenOptions::is_shared`]. Other processes
    /// are refused until all that were opened are closed, and nothing of them is under way in the kernel.
    ///
    /// # Errors
    /// `WouldBlock` if another process has taken it at this moment: then nothing was written by this one.
    pub fn share(&self) -> io::Result<()> {
        match &*self.0.medium {
            Medium::File(file) => file.share(Path::new(self.path())),
            Medium::Mem(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a drive in memory belongs to the thread that has made it",
            )),
            Medium::Sim(disk) => {
                disk.share();
                Ok(())
            }
        }
    }

    /// The drive's size in bytes, rounded down to [`IO_ALIGN`]; of a window the window's.
    pub fn size_bytes(&self) -> u64 {
        self.0.window.len()
    }

    /// The device that it is on, which other drives of this machine may be on as well. Of a window it is what
    /// its owner has said; otherwise none if the drive is no block device. Read when the drive was opened.
    pub fn device(&self) -> Option<DeviceId> {
        match &*self.0.medium {
            _ if self.0.part_of.is_some() => self.0.part_of,
            Medium::File(file) => file.device(),
            Medium::Mem(_) | Medium::Sim(_) => None,
        }
    }

    /// Whether it is a block device that does not rotate, as far as the kernel knows; not of files.
    pub fn is_solid_state(&self) -> bool {
        match &*self.0.medium {
            Medium::File(file) => file.is_solid_state(),
            Medium::Mem(_) | Medium::Sim(_) => false,
        }
    }

    /// What the drive was opened by.
    pub fn path(&self) -> &str {
        &self.0.path
    }

    /// Reads `len` bytes.
    ///
    /// # Errors
    /// Those of the drive; `UnexpectedEof` past its end, `InvalidInput` if not aligned.
    pub async fn read(&self, offset: u64, len: usize) -> io::Result<BufMut> {
        self.read_to(offset, len, &Landing::default()).await
    }

    /// Reads `len` bytes to where they need not be copied to be sent, if there is room.
    ///
    /// # Errors
    /// As [`Drive::read`].
    pub async fn read_to(&self, offset: u64, len: usize, landing: &Landing) -> io::Result<BufMut> {
        self.check(offset, len as u64)?;
        if let Some(at) = self.0.window.in_one(offset, len as u64) {
            return self.read_piece(at, len, landing).await;
        }
        let mut whole = landing.buffer(len).unwrap_or_else(|| BufMut::aligned(len));
        let mut done = 0;
        for piece in self.0.window.pieces(offset, len as u64) {
            let read = self.read_piece(piece.start, piece.len as usize, &Landing::default()).await?;
            whole[done..done + read.len()].copy_from_slice(&read);
            done += read.len();
        }
        Ok(whole)
    }

    /// Reads bytes of the medium.
    async fn read_piece(&self, at: u64, len: usize, landing: &Landing) -> io::Result<BufMut> {
        match &*self.0.medium {
            Medium::File(file) => self.watched(file.read(at, landing.buffer(len), len)).await,
            Medium::Mem(mem) => {
                let mut buf = landing.buffer(len).unwrap_or_else(|| BufMut::aligned(len));
                mem.read(at, &mut buf);
                Ok(buf)
            }
            Medium::Sim(disk) => self.watched(disk.read(at, len)).await,
        }
    }

    /// Writes one buffer.
    ///
    /// # Errors
    /// Those of the drive; what is on it in the range is then undefined.
    pub async fn write(&self, offset: u64, data: Buf) -> io::Result<()> {
        self.write_vectored(offset, vec![data]).await
    }

    /// Writes buffers one behind the other. Those that do not begin at [`IO_ALIGN`] are copied first.
    ///
    /// # Errors
    /// Those of the drive; what is on it in the range is then undefined.
    pub async fn write_vectored(&self, offset: u64, data: Vec<Buf>) -> io::Result<()> {
        let len: usize = data.iter().map(|b| b.len()).sum();
        self.check(offset, len as u64)?;
        if let Some(at) = self.0.window.in_one(offset, len as u64) {
            return self.write_piece(at, data, len).await;
        }
        let whole = gather(&data, len);
        let mut done = 0;
        for piece in self.0.window.pieces(offset, len as u64) {
            let next = done + piece.len as usize;
            self.write_piece(piece.start, vec![whole.slice(done..next)], next - done).await?;
            done = next;
        }
        Ok(())
    }

    /// Writes bytes of the medium.
    async fn write_piece(&self, at: u64, mut data: Vec<Buf>, len: usize) -> io::Result<()> {
        match &*self.0.medium {
            Medium::File(file) => {
                if data.iter().any(|b| !b.is_aligned() || b.len() % IO_ALIGN != 0) {
                    data = vec![gather(&data, len)];
                }
                self.watched(file.write(at, data)).await
            }
            Medium::Mem(mem) => {
                mem.write(at, &data);
                Ok(())
            }
            Medium::Sim(disk) => self.watched(disk.write(at, &data)).await,
        }
    }

    /// Makes every write that has completed durable; of a window, those of the whole device, as it happens.
    ///
    /// # Errors
    /// Those of the drive; then nothing is known of the writes since the last flush that succeeded.
    pub async fn flush(&self) -> io::Result<()> {
        match &*self.0.medium {
            Medium::File(file) => self.watched(file.flush()).await,
            Medium::Mem(_) => Ok(()),
            Medium::Sim(disk) => self.watched(disk.flush()).await,
        }
    }

    /// Tells the drive that the range is not needed; reads of it return anything until it is written.
    ///
    /// # Errors
    /// Those of the drive, other than that it does not support it.
    pub async fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(offset, len)?;
        for piece in self.0.window.pieces(offset, len) {
            match &*self.0.medium {
                Medium::File(file) => file.discard(piece.start, piece.len).await?,
                Medium::Mem(mem) => mem.discard(piece.start, piece.len),
                Medium::Sim(_) => {}
            }
        }
        Ok(())
    }

    /// Whether the drive is still there: not a file that was deleted or cut short, nor a device that was
    /// pulled. Such a drive may take reads and writes for a long time; at the latest when it is opened again,
    /// it is gone.
    ///
    /// # Errors
    /// `NotFound` if it is gone, `UnexpectedEof` if its end is.
    pub async fn check_presence(&self) -> io::Result<()> {
        match &*self.0.medium {
            Medium::File(file) => file.check_presence().await,
            Medium::Mem(_) => Ok(()),
            Medium::Sim(disk) => disk.check_presence(),
        }
    }

    /// How its reads, writes and flushes get on. A drive that completes nothing while some are under way
    /// may hang: who judges that has to look more than once.
    pub fn progress(&self) -> Progress {
        let watch = &self.0.watch;
        Progress { under_way: watch.under_way.get(), completed: watch.completed.get() }
    }

    /// Gives the drive up, with all of its clones: what is under way, and all that is asked of it from now
    /// on, fails with `TimedOut`. Nobody learns what completes later; a write may still reach the drive.
    pub fn give_up(&self) {
        self.0.watch.is_given_up.set(true);
        self.0.watch.given_up.notify_all();
    }

    /// Waits for an operation, until the drive is given up.
    async fn watched<T>(&self, operation: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let watch = &self.0.watch;
        let given_up = watch.given_up.notified();
        if watch.is_given_up.get() {
            return Err(is_given_up());
        }
        let under_way = watch.begin();
        match race(operation, given_up).await {
            Either::Left(done) => {
                under_way.complete();
                done
            }
            Either::Right(()) => Err(is_given_up()),
        }
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        let align = IO_ALIGN as u64;
        if !offset.is_multiple_of(align) || !len.is_multiple_of(align) || len == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("offset {offset} and length {len} must be multiples of {align}"),
            ));
        }
        if offset.checked_add(len).is_none_or(|end| end > self.size_bytes()) {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{len} bytes at {offset} pass the drive's end at {}", self.size_bytes()),
            ));
        }
        Ok(())
    }
}

/// What is said of a drive that was given up.
fn is_given_up() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the drive did not answer, and was given up")
}

/// Parts as one aligned buffer; one that is that already is not copied.
pub(crate) fn gather(parts: &[Buf], len: usize) -> Buf {
    if let [one] = parts
        && one.is_aligned()
    {
        return one.clone();
    }
    let mut whole = BufMut::aligned(len);
    let mut at = 0;
    for part in parts {
        whole[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    whole.freeze()
}

fn parse_size(text: &str) -> io::Result<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => 64,
    };
    digits
        .parse::<u64>()
        .ok()
        .filter(|_| shift < 64)
        .and_then(|n| n.checked_mul(1 << shift))
        .filter(|n| *n > 0 && n.is_multiple_of(IO_ALIGN as u64))
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("'mem:{text}' has no valid size: expected a multiple of 4096 such as mem:256M"),
            )
        })
}

impl std::fmt::Debug for Drive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Drive({})", self.0.path)
    }
}

/// Opens a drive; one that another process has may be free in a moment.
async fn open_when_free(spec: &str, options: &OpenOptions) -> io::Result<DriveFile> {
    let from = now();
    loop {
        match DriveFile::open(spec, options).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && from.elapsed() < FREE_WITHIN => {
                sleep(TRIED_EVERY).await;
            }
            opened => return opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Sim, SimDisk};
    use crate::{sleep, spawn};
    use std::time::Duration;

    #[test]
    fn a_drive_that_is_given_up_ends_what_is_under_way_and_late_completions_count_for_nothing() {
        Sim::new(1).block_on(async {
            let disk = SimDisk::new("d", 1 << 20);
            let drive = disk.open().unwrap();
            drive.write(0, Buf::zeroes(4096)).await.unwrap();
            assert_eq!(drive.progress(), Progress { under_way: 0, completed: 1 });
            disk.set_faults(|f| f.stuck = true);
            let (reading, flushing) = (drive.clone(), drive.clone());
            let read = spawn(async move { reading.read(0, 4096).await.map(|_| ()) });
            let flush = spawn(async move { flushing.flush().await });
            sleep(Duration::from_secs(60)).await;
            assert_eq!(drive.progress(), Progress { under_way: 2, completed: 1 });
            drive.give_up();
            for ended in [read.await, flush.await] {
                assert_eq!(ended.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
            }
            disk.set_faults(|f| f.stuck = false);
            sleep(Duration::from_secs(1)).await;
            assert_eq!(drive.progress(), Progress { under_way: 0, completed: 1 });
            assert_eq!(drive.read(0, 4096).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn windows_of_a_drive_are_drives_that_do_not_touch_each_other() {
        Sim::new(1).block_on(async {
            let disk = SimDisk::new("d", 1 << 20);
            let memory = Drive::open("mem:1M", OpenOptions::default()).await.unwrap();
            for whole in [disk.open().unwrap(), memory] {
                let device = DeviceId::of_name("d");
                let extent = |start: u64, len: u64| Extent { start: start << 12, len: len << 12 };
                let first = whole.window("d#0", device, &[extent(1, 8), extent(20, 8)]).unwrap();
                let second = whole.window("d#1", device, &[extent(9, 11)]).unwrap();
                assert_eq!((first.size_bytes(), second.size_bytes()), (16 << 12, 11 << 12));
                assert_eq!((first.device(), first.path()), (Some(device), "d#0"));
                let parts = vec![Buf::from(vec![1; 4096 * 3]), Buf::from(vec![2; 4096])];
                first.write_vectored(6 << 12, parts).await.unwrap();
                second.write(0, Buf::from(vec![3; 4096 * 11])).await.unwrap();
                first.flush().await.unwrap();
                let read = first.read(7 << 12, 3 << 12).await.unwrap();
                assert_eq!([read[0], read[4096], read[8192]], [1, 1, 2]);
                let below = whole.read(8 << 12, 14 << 12).await.unwrap();
                let blocks: Vec<u8> = below.chunks(4096).map(|block| block[0]).collect();
                assert_eq!(blocks, [1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 1, 2]);
                let past = first.read(15 << 12, 2 << 12).await.unwrap_err();
                assert_eq!(past.kind(), io::ErrorKind::UnexpectedEof);
            }
        });
    }

    #[test]
    fn a_window_is_given_up_by_itself() {
        Sim::new(1).block_on(async {
            let disk = SimDisk::new("d", 1 << 20);
            let whole = disk.open().unwrap();
            let half = |start| {
                let extent = Extent { start, len: 1 << 19 };
                whole.window("d", DeviceId::of_name("d"), &[extent]).unwrap()
            };
            let (first, second) = (half(0), half(1 << 19));
            first.give_up();
            assert_eq!(first.read(0, 4096).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
            second.read(0, 4096).await.unwrap();
            assert_eq!((first.progress().completed, second.progress().completed), (0, 1));
            drop((whole, first));
            assert!(disk.open().is_err(), "a window of it is open");
            drop(second);
            assert!(disk.open().is_ok());
        });
    }

    #[test]
    fn sizes_read_with_suffix() {
        assert_eq!(parse_size("8192").unwrap(), 8192);
        assert_eq!(parse_size("256M").unwrap(), 256 << 20);
        assert_eq!(parse_size("1GiB").unwrap(), 1 << 30);
        for bad in ["", "0", "100", "12Q", "-4096", "99999999999999999999T"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
