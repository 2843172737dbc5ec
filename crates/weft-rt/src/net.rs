//! Connections as streams of bytes: TCP, Unix, or simulated.

use crate::executor::with_core;
use crate::sim::{SimListener, SimStream};
use crate::uring::{SocketListener, SocketReceiver, SocketStream};
use crate::{Buf, BufMut};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;

/// The size of the buffers that a [`Receiver`] fills: several requests of usual size, or hundreds of small
/// ones, and few enough bytes that they are still in the core's cache when they are taken apart.
pub(crate) const CHUNK_BYTES: usize = 64 * 1024;

/// Bytes left free in front of what was received: room for the beginning of a frame from the chunk before.
pub(crate) const HEADROOM_BYTES: usize = 8 * 1024;

/// Where to connect or listen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Addr {
    /// `host:port`, numeric.
    Tcp(SocketAddr),
    /// `unix:PATH`.
    Unix(PathBuf),
}

/// A text that is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no address: expected IP:PORT such as 127.0.0.1:4800, or unix:PATH")]
pub struct ParseAddrError(String);

impl FromStr for Addr {
    type Err = ParseAddrError;
    fn from_str(text: &str) -> Result<Addr, ParseAddrError> {
        match text.strip_prefix("unix:") {
            Some("") => Err(ParseAddrError(text.to_owned())),
            Some(path) => Ok(Addr::Unix(PathBuf::from(path))),
            None => text.parse().map(Addr::Tcp).map_err(|_| ParseAddrError(text.to_owned())),
        }
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Tcp(addr) => write!(f, "{addr}"),
            Addr::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

enum ListenerKind {
    Socket(SocketListener),
    Sim(SimListener),
}

/// Takes connections. A Unix socket's file is removed when it is dropped.
pub struct Listener(ListenerKind);

impl Listener {
    /// Listens at the address; port 0 picks one.
    ///
    /// # Errors
    /// Those of the operating system: address in use, no permission.
    pub fn bind(addr: &Addr) -> io::Result<Listener> {
        with_core(|core| match core.world() {
            Some(world) => Ok(Listener(ListenerKind::Sim(world.bind(core.process(), addr)?))),
            None => Ok(Listener(ListenerKind::Socket(SocketListener::bind(addr)?))),
        })
    }

    /// Listens under an abstract name, which processes of this machine and network namespace can reach, and
    /// which is gone when the listener is. Not under simulation.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn bind_abstract(name: &str) -> io::Result<Listener> {
        Ok(Listener(ListenerKind::Socket(SocketListener::bind_abstract(name)?)))
    }

    /// The next connection.
    ///
    /// # Errors
    /// Those of the operating system; the listener can go on.
    pub async fn accept(&self) -> io::Result<Stream> {
        match &self.0 {
            ListenerKind::Socket(l) => Ok(Stream(StreamKind::Socket(l.accept().await?))),
            ListenerKind::Sim(l) => Ok(Stream(StreamKind::Sim(l.accept().await?))),
        }
    }

    /// Where it listens, with the port that was picked.
    pub fn local_addr(&self) -> Addr {
        match &self.0 {
            ListenerKind::Socket(l) => l.local_addr(),
            ListenerKind::Sim(l) => l.local_addr(),
        }
    }
}

#[derive(Clone)]
enum StreamKind {
    Socket(SocketStream),
    Sim(SimStream),
}

/// A connection. Clones share it, so that one task may read while another writes; it is closed when the
/// last clone is dropped. At most one task may read and one write at a time.
#[derive(Clone)]
pub struct Stream(StreamKind);

impl Stream {
    /// A socket that is connected. Not under simulation.
    pub fn of(socket: OwnedFd) -> Stream {
        Stream(StreamKind::Socket(SocketStream::of(socket)))
    }

    /// Connects to what [`Listener::bind_abstract`] has bound. Not under simulation.
    ///
    /// # Errors
    /// `ConnectionRefused` if nobody has; those of the operating system.
    pub async fn connect_abstract(name: &str) -> io::Result<Stream> {
        Ok(Stream(StreamKind::Socket(SocketStream::connect_abstract(name).await?)))
    }

    /// Waits until there is something to read, or the end. Not under simulation.
    ///
    /// # Errors
    /// Those of the operating system.
    pub async fn readable(&self) -> io::Result<()> {
        match &self.0 {
            StreamKind::Socket(s) => s.readable().await,
            StreamKind::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Completes when the peer has closed its side, or the connection is broken, without reading what it has
    /// sent before. Not to be awaited while another task reads.
    pub async fn hung_up(&self) {
        match &self.0 {
            StreamKind::Socket(s) => s.hung_up().await,
            StreamKind::Sim(s) => s.hung_up().await,
        }
    }

    /// The socket, for what this crate does not do; `None` under simulation.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            StreamKind::Socket(s) => Some(s.socket().as_fd()),
            StreamKind::Sim(_) => None,
        }
    }

    /// Connects.
    ///
    /// # Errors
    /// Those of the operating system: refused, unreachable, timed out.
    pub async fn connect(addr: &Addr) -> io::Result<Stream> {
        let simulated = with_core(|core| core.world().cloned().map(|world| (world, core.process())));
        match simulated {
            Some((world, process)) => Ok(Stream(StreamKind::Sim(world.connect(process, addr).await?))),
            None => Ok(Stream(StreamKind::Socket(SocketStream::connect(addr).await?))),
        }
    }

    /// Reads what is there into `buf[at..]`, waiting for at least one byte; 0 at the end of the stream.
    ///
    /// # Errors
    /// Those of the operating system: reset.
    pub async fn read(&self, buf: BufMut, at: usize) -> (io::Result<usize>, BufMut) {
        assert!(at < buf.len(), "a read needs room");
        match &self.0 {
            StreamKind::Socket(s) => s.read(buf, at).await,
            StreamKind::Sim(s) => s.read(buf, at).await,
        }
    }

    /// Bytes that have arrived and that the next read will not wait for; 0 if that is not known.
    pub(crate) fn waiting_bytes(&self) -> usize {
        match &self.0 {
            StreamKind::Socket(s) => s.waiting_bytes(),
            StreamKind::Sim(_) => 0,
        }
    }

    /// Takes over reading: nobody else may read from the stream as long as the receiver is there, or after
    /// bytes have arrived for it.
    pub(crate) fn receiver(&self) -> Receiver {
        match &self.0 {
            StreamKind::Socket(s) => Receiver::Socket(s.receiver()),
            StreamKind::Sim(_) => Receiver::Sim,
        }
    }

    /// Writes all buffers, one behind the other.
    ///
    /// # Errors
    /// Those of the operating system: reset; some of the bytes may have been sent.
    pub async fn write(&self, bufs: Vec<Buf>) -> io::Result<()> {
        match &self.0 {
            StreamKind::Socket(s) => s.write(bufs).await,
            StreamKind::Sim(s) => s.write(bufs).await,
        }
    }

    /// Ends the connection both ways, so that pending reads and the peer notice.
    pub fn shutdown(&self) {
        match &self.0 {
            StreamKind::Socket(s) => s.shutdown(),
            StreamKind::Sim(s) => s.shutdown(),
        }
    }
}

/// Reads whatever arrives, in chunks that need not be asked for one by one.
pub(crate) enum Receiver {
    Socket(SocketReceiver),
    /// A simulated stream has no chunks.
    Sim,
}

impl Receiver {
    /// How many bytes have arrived next (0 at the end of the stream), and a buffer with [`HEADROOM_BYTES`] of
    /// anything in front of them. `None` if chunks cannot be had, and the stream is to be read from in other
    /// ways. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Those of the operating system: reset.
    pub(crate) async fn next(&mut self) -> io::Result<Option<(usize, BufMut)>> {
        match self {
            Receiver::Socket(s) => s.receive().await,
            Receiver::Sim => Ok(None),
        }
    }

    /// Stops receiving until the next call of [`Receiver::next`]. What has arrived is kept.
    pub(crate) fn pause(&self) {
        match self {
            Receiver::Socket(s) => s.pause(),
            Receiver::Sim => {}
        }
    }

    /// Returns like [`Receiver::next`] what has arrived already; `None` once nothing has, and the stream may
    /// be read from in other ways until the next call of the former.
    pub(crate) async fn drain(&mut self) -> io::Result<Option<(usize, BufMut)>> {
        match self {
            Receiver::Socket(s) => s.drain().await,
            Receiver::Sim => Ok(None),
        }
    }
}
