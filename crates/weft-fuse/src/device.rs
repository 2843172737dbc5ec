//! The kernel's device: opening, mounting, the handshake (INIT), and messages in and out.
//!
//! It owns the descriptor and the flags that both sides agreed on. It never looks into requests after INIT.

use crate::answer::{Answer, AnswerBody};
use crate::error::FuseError;
use crate::lanes::Lanes;
use crate::mounts::{MountOptions, Mounted};
use crate::proto::{Field, InHeader, InitIn, InitOut, MAJOR, MINOR, MINOR_OLDEST, OutHeader, WriteIn};
use crate::proto::{init, op};
use crate::tree::Errno;
use rustix::fs::{Mode, OFlags};
use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use weft_rt::sync::{Either, race};
use weft_rt::{BufMut, IO_ALIGN, Readiness, offload};
use weft_types::limits::FUSE_LOCK_WAITS_MAX;

/// The most data of one READ or WRITE: the largest request of a volume's data path.
pub(crate) const DATA_BYTES: usize = 1 << 20;

/// What is in front of the data of a WRITE.
pub(crate) const WRITE_HEAD_BYTES: usize = InHeader::BYTES + WriteIn::BYTES;

/// Where a message begins in its buffer: so that the data of a WRITE begin at [`IO_ALIGN`].
pub(crate) const MESSAGE_AT: usize = IO_ALIGN - WRITE_HEAD_BYTES;

/// Requests that the kernel sends for its own caches (readahead, asynchronous direct I/O) and that are not
/// answered yet; from the second number on it slows their makers down.
const BACKGROUND_REQUESTS: u16 = 256;
const BACKGROUND_CONGESTED: u16 = 192;

/// The furthest that the kernel may read ahead.
const READAHEAD_BYTES: u32 = 64 << 20;

/// Buffers of an answer's data that one writev(2) takes, beside the header (`IOV_MAX` is 1024).
const PARTS_OF_AN_ANSWER: usize = 1000;

/// What is asked of the kernel, as far as it has it.
const WANTED: u64 = init::ASYNC_READ
    | init::POSIX_LOCKS
    | init::FLOCK_LOCKS
    | init::ATOMIC_O_TRUNC
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::POSIX_ACL
    | init::AUTO_INVAL_DATA
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::ABORT_ERROR
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::DIRECT_IO_ALLOW_MMAP;

/// FUSE over io_uring, which the kernel offers if its administrator lets it.
const LANES_WANTED: u64 = init::OVER_IO_URING;

/// What both sides agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The flags of INIT that are in force.
    pub(crate) flags: u64,
}

/// The device of one mount.
pub(crate) struct Device {
    file: Readiness,
    /// What most requests go over, if that was asked for.
    lanes: RefCell<Option<Rc<Lanes>>>,
}

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The kernel has it.
    Taken,
    /// Nobody waits for it any more: what it gives was not taken.
    NotWanted,
}

/// A buffer for one message.
pub(crate) fn message_buffer() -> BufMut {
    BufMut::aligned(IO_ALIGN + DATA_BYTES)
}

/// Where a message of `length` bytes is in its buffer.
pub(crate) fn message_range(length: usize) -> Range<usize> {
    MESSAGE_AT..MESSAGE_AT + length
}

impl Device {
    /// Mounts, and agrees with the kernel. mount(2) runs on the helper thread: looking up the path may
    /// wait for other mounts.
    pub(crate) async fn mount(
        path: &Path,
        options: &MountOptions,
    ) -> Result<(Device, Terms, Mounted), FuseError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = rustix::fs::open(c"/dev/fuse", flags, Mode::empty());
        let file = opened.map_err(|error| FuseError::Device(error.into()))?;
        let (at, how) = (path.to_owned(), options.clone());
        let mounting = offload(move || Mounted::new(&at, &how, file));
        let mounted = mounting.await;
        let (file, mounted) = mounted.map_err(|source| FuseError::Mount { path: path.to_owned(), source })?;
        let device = Device::of(file);
        let wanted = WANTED | if options.over_io_uring { LANES_WANTED } else { 0 };
        let terms = device.negotiate(wanted).await?;
        if terms.flags & LANES_WANTED != 0 {
            let file = device.file.as_fd().try_clone_to_owned().map_err(FuseError::Lanes)?;
            let lanes = Lanes::open(file).await?;
            device.lanes.replace(Some(Rc::new(lanes)));
        } else if options.over_io_uring {
            return Err(FuseError::NoLanes);
        }
        options.readahead_bytes.inspect(|bytes| mounted.set_readahead(*bytes));
        Ok((device, terms, mounted))
    }

    /// A device that is mounted, or whatever behaves like one.
    fn of(file: OwnedFd) -> Device {
        Device { file: Readiness::new(file), lanes: RefCell::default() }
    }

    /// Waits until there may be a message.
    pub(crate) async fn ready(&self) -> io::Result<()> {
        match self.lanes() {
            None => self.file.ready().await,
            Some(lanes) => match race(lanes.ready(), self.file.ready()).await {
                Either::Left(()) => Ok(()),
                Either::Right(ready) => ready,
            },
        }
    }

    fn lanes(&self) -> Option<Rc<Lanes>> {
        self.lanes.borrow().clone()
    }

    /// Whether requests come over io_uring.
    pub(crate) fn has_lanes(&self) -> bool {
        self.lanes.borrow().is_some()
    }

    /// Programs that may wait for locks at the same time.
    pub(crate) fn lock_waits_max(&self) -> usize {
        self.lanes().map_or(FUSE_LOCK_WAITS_MAX, |lanes| lanes.lock_waits_max())
    }

    /// The mount has ended: requests in lanes fail, also those that were not read. The kernel waits for that.
    pub(crate) fn end(&self) {
        self.lanes.take();
    }

    /// The same as [`read`](Device::read), of a message that has come in a lane. These are to be read
    /// first: the interrupt of a request comes through the file, behind the request.
    pub(crate) fn read_lane(&self, buffer: &mut BufMut) -> Option<usize> {
        self.lanes()?.read(buffer)
    }

    /// Reads one message to its place in the buffer ([`message_range`]) without waiting; `None` if there
    /// is none now.
    ///
    /// # Errors
    /// `ENODEV` or `ECONNABORTED` once it is unmounted; others of the kernel.
    pub(crate) fn read(&self, buffer: &mut BufMut) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.file, &mut buffer[MESSAGE_AT..]) {
                Ok(length) => return Ok(Some(length)),
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                // A signal; or a request whose caller was killed before it was read.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Answers a request, in one call.
    pub(crate) fn send(&self, unique: u64, answer: Result<&Answer, Errno>) -> io::Result<Sent> {
        let (error, body) = match answer {
            Ok(answer) => (0, Some(&answer.body)),
            Err(errno) => (-valid_errno(errno), None),
        };
        let joined;
        let parts: Vec<&[u8]> = match body {
            None => Vec::new(),
            Some(AnswerBody::Bytes(bytes)) => vec![bytes],
            Some(AnswerBody::Data(parts)) if parts.len() <= PARTS_OF_AN_ANSWER => {
                parts.iter().map(|part| &part[..]).collect()
            }
            Some(AnswerBody::Data(parts)) => {
                joined = parts.iter().flat_map(|part| part.iter().copied()).collect::<Vec<u8>>();
                vec![&joined]
            }
        };
        if self.lanes().is_some_and(|lanes| lanes.send(unique, error, &parts)) {
            return Ok(Sent::Taken);
        }
        let length = OutHeader::BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
        let mut head = Vec::with_capacity(OutHeader::BYTES);
        OutHeader { len: length as u32, error, unique }.put(&mut head);
        let mut slices = Vec::with_capacity(1 + parts.len());
        slices.push(IoSlice::new(&head));
        slices.extend(parts.iter().filter(|part| !part.is_empty()).map(|part| IoSlice::new(part)));
        match rustix::io::writev(&self.file, &slices) {
            Ok(_) => Ok(Sent::Taken),
            // The caller was killed, or the connection is over.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV | rustix::io::Errno::CONNABORTED) => {
                Ok(Sent::NotWanted)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads INIT and answers it. The kernel holds back all other requests until then.
    async fn negotiate(&self, wanted: u64) -> Result<Terms, FuseError> {
        let mut buffer = message_buffer();
        loop {
            let length = match self.read(&mut buffer).map_err(FuseError::Connection)? {
                Some(length) => length,
                None => {
                    self.ready().await.map_err(FuseError::Connection)?;
                    continue;
                }
            };
            let init = Init::decode(&buffer[message_range(length)])?;
            let (answer, terms) = init.answer(wanted)?;
            let sent = self.send(init.unique, Ok(&Answer::of(&answer)));
            sent.map_err(FuseError::Connection)?;
            if let Some(terms) = terms {
                return Ok(terms);
            }
        }
    }
}

/// An error number as the kernel takes it: it leaves the caller waiting for ever for others.
fn valid_errno(errno: Errno) -> i32 {
    match errno.0 {
        1..=511 => errno.0,
        _ => libc::EIO,
    }
}

/// What the kernel says in INIT.
struct Init {
    unique: u64,
    asked: InitIn,
    offered: u64,
}

impl Init {
    fn decode(message: &[u8]) -> Result<Init, FuseError> {
        let mut rest = message;
        let header = InHeader::take(&mut rest).ok_or(FuseError::FirstRequest { operation: 0 })?;
        let unexpected = FuseError::FirstRequest { operation: header.opcode };
        if header.opcode != op::INIT {
            return Err(unexpected);
        }
        let asked = InitIn::take(&mut rest).ok_or(unexpected)?;
        let more = match u64::from(asked.flags) & init::INIT_EXT {
            0 => 0,
            _ => u32::take(&mut rest).unwrap_or(0),
        };
        let offered = u64::from(asked.flags) | u64::from(more) << 32;
        Ok(Init { unique: header.unique, asked, offered })
    }

    /// The answer, and what holds from then on; no terms if the kernel has to ask again with our version.
    fn answer(&self, wanted: u64) -> Result<(InitOut, Option<Terms>), FuseError> {
        let (major, minor) = (self.asked.major, self.asked.minor);
        if major < MAJOR || (major == MAJOR && minor < MINOR_OLDEST) {
            return Err(FuseError::Version { major, minor });
        }
        if major > MAJOR {
            return Ok((InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() }, None));
        }
        let flags = wanted & self.offered;
        let answer = InitOut {
            major: MAJOR,
            minor: MINOR.min(minor),
            // Only an upper bound: `Mounted::set_readahead` says how far.
            max_readahead: self.asked.max_readahead.max(READAHEAD_BYTES),
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            max_background: BACKGROUND_REQUESTS,
            congestion_threshold: BACKGROUND_CONGESTED,
            max_write: DATA_BYTES as u32,
            time_gran: 1,
            max_pages: (DATA_BYTES / rustix::param::page_size()).max(1) as u16,
            ..InitOut::default()
        };
        Ok((answer, Some(Terms { flags })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn init(major: u32, minor: u32, flags: u64, bytes: usize) -> Vec<u8> {
        let mut message = Vec::new();
        InHeader { opcode: op::INIT, unique: 2, ..InHeader::default() }.put(&mut message);
        InitIn { major, minor, max_readahead: 1 << 17, flags: flags as u32 }.put(&mut message);
        ((flags >> 32) as u32).put(&mut message);
        message.resize(InHeader::BYTES + bytes, 0);
        message
    }

    #[test]
    fn only_what_both_sides_have_is_agreed() {
        let agreed = |minor, flags, bytes| {
            let init = Init::decode(&init(7, minor, flags, bytes)).unwrap();
            let (answer, terms) = init.answer(WANTED).unwrap();
            (answer.minor, terms.unwrap().flags)
        };
        assert_eq!(agreed(45, u64::MAX, 64), (45, WANTED));
        assert_eq!(agreed(60, 0, 64), (45, 0));
        let old = init::SETXATTR_EXT | init::DIRECT_IO_ALLOW_MMAP;
        assert_eq!(agreed(31, old, 64), (31, init::SETXATTR_EXT), "a second word needs INIT_EXT");
        assert_eq!(agreed(31, u64::MAX, 16).1, WANTED & 0xffff_ffff, "an old kernel's INIT is short");
        assert_eq!(message_buffer().len() - MESSAGE_AT, WRITE_HEAD_BYTES + DATA_BYTES);
    }

    #[test]
    fn other_versions_and_other_messages_are_refused() {
        let outcome = |message: &[u8]| Init::decode(message).and_then(|init| Ok(init.answer(WANTED)?.1));
        assert!(matches!(outcome(&init(7, 30, 0, 64)), Err(FuseError::Version { minor: 30, .. })));
        assert!(matches!(outcome(&init(6, 99, 0, 64)), Err(FuseError::Version { major: 6, .. })));
        assert!(matches!(outcome(&init(8, 0, 0, 64)), Ok(None)), "it asks again");
        let whole = init(7, 45, u64::MAX, 64);
        for end in 0..InHeader::BYTES + InitIn::BYTES {
            assert!(matches!(outcome(&whole[..end]), Err(FuseError::FirstRequest { .. })), "{end}");
        }
        let mut other = whole.clone();
        other[4] = op::LOOKUP as u8;
        assert!(matches!(outcome(&other), Err(FuseError::FirstRequest { operation: 1 })));
    }

    #[test]
    fn error_numbers_are_those_that_the_kernel_takes() {
        for (errno, sent) in [(2, 2), (511, 511), (0, 5), (-2, 5), (512, 5), (i32::MIN, 5)] {
            assert_eq!(valid_errno(Errno(errno)), sent);
        }
    }
}
