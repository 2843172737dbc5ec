//! Drives: a block device or file with direct I/O, memory, or a simulated disk.

use crate::mem::Mem;
use crate::sim::DiskHandle;
use crate::sync::{Either, Notify, race};
use crate::uring::DriveFile;
use crate::{Buf, BufMut, IO_ALIGN, Landing};
use std::cell::Cell;
use std::io::{self, Seek, SeekFrom};
use std::rc::Rc;
use weft_types::DeviceId;

/// How to open a drive.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Create a file of this many bytes, its space reserved, if there is none.
    pub create_bytes: Option<u64>,
    /// With `create_bytes`: leave the file sparse, so that space is taken as it is written.
    pub sparse: bool,
    /// Refuse writes, and take no lock.
    pub read_only: bool,
}

enum Medium {
    File(DriveFile),
    Mem(Mem),
    Sim(DiskHandle),
}

struct Inner {
    path: String,
    medium: Medium,
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

    /// Opens `mem:SIZE` (bytes, or with a suffix K, M, G, T: powers of 1024), or the file or block device
    /// at a path, with direct I/O and locked against a second user.
    ///
    /// # Errors
    /// Those of the operating system; `WouldBlock` if another process has the drive open.
    pub async fn open(spec: &str, options: OpenOptions) -> io::Result<Drive> {
        let medium = match spec.strip_prefix("mem:") {
            Some(size) => Medium::Mem(Mem::new(parse_size(size)?)?),
            None => Medium::File(DriveFile::open(spec, &options).await?),
        };
        Ok(Drive(Rc::new(Inner { path: spec.to_owned(), medium, watch: Watch::default() })))
    }

    /// A drive on a simulated disk.
    pub(crate) fn simulated(path: String, disk: DiskHandle) -> Drive {
        Drive(Rc::new(Inner { path, medium: Medium::Sim(disk), watch: Watch::default() }))
    }

    /// The drive's size in bytes, rounded down to [`IO_ALIGN`].
    pub fn size_bytes(&self) -> u64 {
        let size = match &self.0.medium {
            Medium::File(file) => file.len(),
            Medium::Mem(mem) => mem.len(),
            Medium::Sim(disk) => disk.len(),
        };
        size - size % IO_ALIGN as u64
    }

    /// The device that it is on, which other drives of this machine may be on as well; none if the drive
    /// is no block device. Read when the drive was opened.
    pub fn device(&self) -> Option<DeviceId> {
        match &self.0.medium {
            Medium::File(file) => file.device(),
            Medium::Mem(_) | Medium::Sim(_) => None,
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
        match &self.0.medium {
            Medium::File(file) => self.watched(file.read(offset, landing.buffer(len), len)).await,
            Medium::Mem(mem) => {
                let mut buf = landing.buffer(len).unwrap_or_else(|| BufMut::aligned(len));
                mem.read(offset, &mut buf);
                Ok(buf)
            }
            Medium::Sim(disk) => self.watched(disk.read(offset, len)).await,
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
    pub async fn write_vectored(&self, offset: u64, mut data: Vec<Buf>) -> io::Result<()> {
        let len: usize = data.iter().map(|b| b.len()).sum();
        self.check(offset, len as u64)?;
        match &self.0.medium {
            Medium::File(file) => {
                if data.iter().any(|b| !b.is_aligned() || b.len() % IO_ALIGN != 0) {
                    data = vec![gather(&data, len)];
                }
                self.watched(file.write(offset, data)).await
            }
            Medium::Mem(mem) => {
                mem.write(offset, &data);
                Ok(())
            }
            Medium::Sim(disk) => self.watched(disk.write(offset, &data)).await,
        }
    }

    /// Makes every write that has completed durable.
    ///
    /// # Errors
    /// Those of the drive; then nothing is known of the writes since the last flush that succeeded.
    pub async fn flush(&self) -> io::Result<()> {
        match &self.0.medium {
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
        match &self.0.medium {
            Medium::File(file) => file.discard(offset, len).await,
            Medium::Mem(mem) => {
                mem.discard(offset, len);
                Ok(())
            }
            Medium::Sim(_) => Ok(()),
        }
    }

    /// Whether the drive is still there: not a file that was deleted or cut short, nor a device that was pulled.
    /// Such a drive may take reads and writes for a long time; at the latest when it is opened again, it is gone.
    ///
    /// # Errors
    /// `NotFound` if it is gone, `UnexpectedEof` if its end is.
    pub async fn check_presence(&self) -> io::Result<()> {
        match &self.0.medium {
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
    fn sizes_read_with_suffix() {
        assert_eq!(parse_size("8192").unwrap(), 8192);
        assert_eq!(parse_size("256M").unwrap(), 256 << 20);
        assert_eq!(parse_size("1GiB").unwrap(), 1 << 30);
        for bad in ["", "0", "100", "12Q", "-4096", "99999999999999999999T"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
