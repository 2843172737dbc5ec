//! Drives on files and block devices, with direct I/O.

use super::device::{device_of, is_solid_state, numa_node};
use super::op::{Held, Op, with_driver};
use super::{PINNED_INDEX, check_result, is_interrupted};
use crate::offload::offload;
use crate::{Buf, BufMut, OpenOptions};
use io_uring::{opcode, squeue, types};
use std::cell::Cell;
use std::fs::{File, OpenOptions as StdOpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use weft_types::DeviceId;

/// Files of drives are for their owner only: they hold everybody's data.
const MODE: u32 = 0o600;

/// The most bytes of one operation: a multiple of every block size that fits the kernel's 32-bit length.
const OPERATION_BYTES_MAX: usize = 1 << 30;

/// `BLKDISCARD` of linux/fs.h, _IO(0x12, 119): tells a block device that a range is not needed.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Where the kernel lists its block devices by number.
const DEVICES: &str = "/sys/dev/block";

/// File systems that keep the inode of an open file in memory: fstat(2) of it waits for no device and no
/// network.
const LOCAL: [libc::c_long; 4] =
    [libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC, libc::BTRFS_SUPER_MAGIC, libc::TMPFS_MAGIC];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    BlockDevice,
}

/// An open file or block device.
pub(crate) struct DriveFile {
    file: Rc<OwnedFd>,
    kind: Kind,
    len: u64,
    /// The physical device, if it is a block device.
    device: Option<DeviceId>,
    /// Whether the kernel knows the size and names of the file by itself, without asking anything that may
    /// hang.
    is_local: bool,
    /// The first refusal to discard is the last attempt.
    cannot_discard: Cell<bool>,
}

impl DriveFile {
    pub(crate) async fn open(path: &str, options: &OpenOptions) -> io::Result<DriveFile> {
        let path = Path::new(path);
        match open_locked(path, options) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let Some(bytes) = options.create_bytes.filter(|_| !options.read_only) else {
                    return Err(named(path, error));
                };
                create(path, bytes, options.sparse).await
            }
            other => other,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Keeps other processes away as before, and lets files of this process in that open it shared.
    ///
    /// The kernel does not pass from one lock to the other at once, so another process may come between. It
    /// then has the drive, and this one is refused.
    pub(crate) fn share(&self, path: &Path) -> io::Result<()> {
        lock(path, &*self.file, libc::LOCK_SH)
    }

    /// The NUMA node that the block device at a path is attached to.
    pub(crate) fn numa_node_of(path: &Path) -> Option<u32> {
        let found = std::fs::metadata(path).ok()?;
        let rdev = found.file_type().is_block_device().then(|| found.rdev())?;
        numa_node(rdev, Path::new(DEVICES))
    }

    /// Whether it is a block device that does not rotate.
    pub(crate) fn is_solid_state(&self) -> bool {
        let Ok(file) = self.file.try_clone() else { return false };
        let Ok(found) = File::from(file).metadata() else { return false };
        self.kind == Kind::BlockDevice && is_solid_state(found.rdev(), Path::new(DEVICES))
    }

    /// The physical device that it is on; none of a file.
    pub(crate) fn device(&self) -> Option<DeviceId> {
        self.device
    }

    /// Reads `len` bytes to a buffer of that length, or to one that is found for them.
    pub(crate) async fn read(&self, offset: u64, buf: Option<BufMut>, len: usize) -> io::Result<BufMut> {
        let mut buf = buf.unwrap_or_else(|| with_driver(|driver| driver.buffer(len)));
        let mut done = 0;
        while done < len {
            let n = (len - done).min(OPERATION_BYTES_MAX) as u32;
            let (to, at) = (buf[done..].as_mut_ptr(), offset + done as u64);
            let entry = if buf.is_pinned() {
                opcode::ReadFixed::new(self.fd(), to, n, PINNED_INDEX).offset(at).build()
            } else {
                opcode::Read::new(self.fd(), to, n).offset(at).build()
            };
            // SAFETY: the entry points into the buffer that goes with it.
            let (result, held) = unsafe { self.start(entry, Held::Bytes(buf), true) }.await;
            buf = held.into_bytes();
            match check_result(result) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                Ok(n) => done += n,
                Err(error) if is_interrupted(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(buf)
    }

    pub(crate) async fn write(&self, offset: u64, data: Vec<Buf>) -> io::Result<()> {
        let mut offset = offset;
        let mut gather = with_driver(|driver| driver.take_gather());
        gather.load(data);
        while gather.point() {
            let entry = match gather.iov() {
                [one] => {
                    let n = one.iov_len.min(OPERATION_BYTES_MAX) as u32;
                    opcode::Write::new(self.fd(), one.iov_base.cast(), n).offset(offset).build()
                }
                many => {
                    opcode::Writev::new(self.fd(), many.as_ptr(), many.len() as u32).offset(offset).build()
                }
            };
            // SAFETY: the entry points into the box that goes with it, and from there into its buffers.
            let (result, held) = unsafe { self.start(entry, Held::Gather(gather), false) }.await;
            gather = held.into_gather();
            match check_result(result) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero)),
                Ok(n) => {
                    gather.advance(n);
                    offset += n as u64;
                }
                Err(error) if is_interrupted(&error) => {}
                Err(error) => return Err(error),
            }
        }
        with_driver(|driver| driver.return_gather(gather));
        Ok(())
    }

    pub(crate) async fn flush(&self) -> io::Result<()> {
        let entry = opcode::Fsync::new(self.fd()).flags(types::FsyncFlags::DATASYNC).build();
        self.simple(entry).await
    }

    pub(crate) async fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.cannot_discard.get() {
            return Ok(());
        }
        let result = match self.kind {
            Kind::File => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                self.simple(opcode::Fallocate::new(self.fd(), len).offset(offset).mode(mode).build()).await
            }
            Kind::BlockDevice => {
                let device = self.file.try_clone()?;
                offload(move || discard_device(&device, offset, len)).await
            }
        };
        match result {
            Err(error) if is_unsupported(&error) => {
                self.cannot_discard.set(true);
                Ok(())
            }
            other => other,
        }
    }

    pub(crate) async fn check_presence(&self) -> io::Result<()> {
        // Who cannot look does not know: the drive is not taken for gone, its reads and writes tell more.
        let Ok(file) = self.file.try_clone() else { return Ok(()) };
        let (kind, len) = (self.kind, self.len);
        let look = move || {
            let Ok(found) = File::from(file).metadata() else { return Ok(()) };
            match kind {
                Kind::File => check_file(found.nlink(), found.len(), len),
                Kind::BlockDevice => check_device(found.rdev(), Path::new(DEVICES)),
            }
        };
        // Otherwise away from the executor: a file system that hangs would hold up everything.
        if self.is_local { look() } else { offload(look).await }
    }

    fn fd(&self) -> types::Fd {
        types::Fd(self.file.as_raw_fd())
    }

    /// # Safety
    /// As for [`super::Driver::start`].
    unsafe fn start(&self, entry: squeue::Entry, held: Held, cancel: bool) -> Op {
        // SAFETY: the caller's promise.
        with_driver(|driver| unsafe { driver.start(entry, &self.file, held, cancel) })
    }

    /// An operation without memory of ours.
    async fn simple(&self, entry: squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: the entry points to nothing.
            let (result, _) = unsafe { self.start(entry.clone(), Held::Nothing, false) }.await;
            match check_result(result) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                other => return other.map(drop),
            }
        }
    }
}

/// Opens what is there, and makes sure that nobody else uses it.
fn open_locked(path: &Path, options: &OpenOptions) -> io::Result<DriveFile> {
    let metadata = std::fs::metadata(path)?;
    let kind = match metadata.file_type() {
        t if t.is_file() => Kind::File,
        t if t.is_block_device() => Kind::BlockDevice,
        _ => {
            let text = "is neither a file nor a block device";
            return Err(named(path, io::Error::new(io::ErrorKind::InvalidInput, text)));
        }
    };
    // On a block device O_EXCL refuses what is mounted, or part of something else.
    let is_first = !options.read_only && !options.is_shared;
    let exclusive = if kind == Kind::BlockDevice && is_first { libc::O_EXCL } else { 0 };
    let mut how = StdOpenOptions::new();
    how.read(true).write(!options.read_only);
    let file = open_direct(path, &mut how, exclusive)?;
    if !options.read_only {
        // The lock is that of the open file, and lasts until nothing of it is under way in the kernel: so
        // each file of a process has its share, and what a process that was killed has under way keeps others
        // out.
        lock(path, &file, if options.is_shared { libc::LOCK_SH } else { libc::LOCK_EX })?;
    }
    finish(path, file, kind)
}

/// Makes a file of this size. It exists durably, with its space, when this returns; not at all if it fails.
async fn create(path: &Path, bytes: u64, sparse: bool) -> io::Result<DriveFile> {
    let mut how = StdOpenOptions::new();
    how.read(true).write(true).create_new(true).mode(MODE);
    let file = open_direct(path, &mut how, 0)?;
    let mut partial = Partial { path, keep: false };
    lock(path, &file, libc::LOCK_EX)?;
    let file = Rc::new(OwnedFd::from(file));
    let fd = types::Fd(file.as_raw_fd());
    let allocate = opcode::Fallocate::new(fd, bytes).build();
    let sync = opcode::Fsync::new(fd).build();
    let unready = DriveFile {
        file: file.clone(),
        kind: Kind::File,
        len: 0,
        device: None,
        is_local: is_local(&file),
        cannot_discard: Cell::new(false),
    };
    let reserved = if sparse { Ok(false) } else { unready.simple(allocate).await.map(|()| true) };
    let reserved = match reserved {
        Err(error) if is_unsupported(&error) => {
            tracing::warn!(path = %path.display(), "the file system cannot reserve space; the file is sparse");
            Ok(false)
        }
        other => other,
    };
    let reserved = reserved.map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => {
            let text = format!("cannot create {}: no space for {bytes} bytes", path.display());
            io::Error::new(error.kind(), text)
        }
        _ => named(path, error),
    })?;
    if !reserved {
        File::from(file.try_clone()?).set_len(bytes).map_err(|error| named(path, error))?;
    }
    unready.simple(sync).await.map_err(|error| named(path, error))?;
    // The name is durable with its folder.
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all().map_err(|error| named(folder, error))?;
    partial.keep = true;
    Ok(DriveFile { len: bytes, ..unready })
}

/// A file in the making, removed again unless it was finished.
struct Partial<'a> {
    path: &'a Path,
    keep: bool,
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = std::fs::remove_file(self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a partly created file");
        }
    }
}

/// Opens with direct I/O where the file system has it (tmpfs has not before Linux 6.6).
fn open_direct(path: &Path, how: &mut StdOpenOptions, flags: i32) -> io::Result<File> {
    let opened = how.custom_flags(libc::O_DIRECT | flags).open(path);
    let opened = match opened {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            // Some file systems have created the file before they refuse.
            let again = how.create_new(false).create(false).custom_flags(flags).open(path);
            let again = match again {
                Err(error) if error.kind() == io::ErrorKind::NotFound => how.create_new(true).open(path),
                other => other,
            };
            if again.is_ok() {
                tracing::warn!(
                    path = %path.display(),
                    "the file system has no direct I/O; the drive goes through the page cache"
                );
            }
            again
        }
        other => other,
    };
    opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => in_use(path),
        _ if error.kind() == io::ErrorKind::NotFound => error,
        _ => named(path, error),
    })
}

fn lock(path: &Path, file: &impl AsFd, how: i32) -> io::Result<()> {
    // SAFETY: the descriptor is open; the call takes no pointers.
    let result = unsafe { libc::flock(file.as_fd().as_raw_fd(), how | libc::LOCK_NB) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(if error.kind() == io::ErrorKind::WouldBlock { in_use(path) } else { named(path, error) })
}

fn finish(path: &Path, mut file: File, kind: Kind) -> io::Result<DriveFile> {
    // The end of a block device is its size, which its metadata does not tell.
    let len = file.seek(SeekFrom::End(0)).map_err(|error| named(path, error))?;
    let device = match kind {
        Kind::File => None,
        Kind::BlockDevice => device_of(file.metadata()?.rdev(), Path::new(DEVICES)),
    };
    let is_local = kind == Kind::File && is_local(&file);
    Ok(DriveFile {
        file: Rc::new(file.into()),
        kind,
        len,
        device,
        is_local,
        cannot_discard: Cell::new(false),
    })
}

fn discard_device(device: &OwnedFd, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    // SAFETY: the call reads the two numbers of the range.
    match unsafe { libc::ioctl(device.as_raw_fd(), BLKDISCARD, range.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether a file is on one of the [`LOCAL`] file systems; not if that cannot be learnt.
fn is_local(file: &impl AsRawFd) -> bool {
    // SAFETY: the struct is plain numbers, for which zero is a value; the call fills it.
    let mut found = unsafe { std::mem::zeroed::<libc::statfs>() };
    // SAFETY: the struct is ours, and the descriptor is open.
    let result = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut found) };
    result == 0 && LOCAL.contains(&found.f_type)
}

/// Whether an open file still has a name, and all of its length.
fn check_file(names: u64, found_bytes: u64, expected_bytes: u64) -> io::Result<()> {
    if names == 0 {
        return Err(io::Error::new(io::ErrorKind::NotFound, "its file was deleted"));
    }
    if found_bytes < expected_bytes {
        let text = format!("its file was cut to {found_bytes} of {expected_bytes} bytes");
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
    }
    Ok(())
}

/// Whether the kernel still lists an open block device. Where there is no list, nothing is known.
fn check_device(rdev: u64, devices: &Path) -> io::Result<()> {
    let name = format!("{}:{}", libc::major(rdev), libc::minor(rdev));
    if devices.exists() && !devices.join(&name).exists() {
        let text = format!("its device, {name}, was removed");
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    Ok(())
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS))
}

fn in_use(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::WouldBlock, format!("{} is in use by another process", path.display()))
}

/// The error with the path in front; its kind stays.
fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), Named { path: path.to_owned(), source: error })
}

#[derive(Debug, thiserror::Error)]
#[error("{}", path.display())]
struct Named {
    path: PathBuf,
    source: io::Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_there_as_long_as_the_kernel_lists_it() {
        let devices = std::env::temp_dir().join(format!("weft-devices-{}", std::process::id()));
        std::fs::create_dir_all(devices.join("259:3")).expect("the temporary folder can be written");
        assert!(check_device(libc::makedev(259, 3), &devices).is_ok());
        let gone = check_device(libc::makedev(259, 4), &devices).expect_err("it is not listed");
        assert_eq!(gone.to_string(), "its device, 259:4, was removed");
        std::fs::remove_dir_all(&devices).expect("it is there");
        assert!(check_device(libc::makedev(259, 4), &devices).is_ok(), "without a list nothing is known");
    }
}
