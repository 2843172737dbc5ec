//! Connections over TCP and Unix sockets.

use super::chunks::GROUP;
use super::op::{Held, Op, Repeated, RepeatingOp, with_driver};
use super::{check_result, is_interrupted};
use crate::{Addr, Buf, BufMut};
use io_uring::{opcode, types};
use socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use weft_types::limits::{ACCEPTED_CONNECTIONS_MAX, RECEIVED_CHUNKS_MAX};

/// Connections that wait to be taken: what Linux allows by default (net.core.somaxconn).
const BACKLOG: i32 = 4096;

/// How long a connection may be silent before the kernel asks the peer's machine whether it is there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(3);
/// How often it asks again, and after how many silences it gives up: 3 s + 3 x 2 s, so within 10 s.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_RETRIES: u32 = 3;
/// How long sent bytes may stay without acknowledgement before the connection is given up: the same.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(9);

/// Takes connections.
pub(crate) struct SocketListener {
    socket: Rc<OwnedFd>,
    addr: Addr,
    /// The accept under way. It outlives the future that waits for it, so that no connection is lost when a
    /// caller stops waiting.
    accepting: RefCell<Option<Accept>>,
}

enum Accept {
    /// Takes one connection.
    Once(Op),
    /// Takes connections until it is stopped, at [`ACCEPTED_CONNECTIONS_MAX`] that nobody has asked for
    /// (IORING_ACCEPT_MULTISHOT, Linux 5.19).
    Repeating(RepeatingOp),
}

impl SocketListener {
    pub(crate) fn bind(addr: &Addr) -> io::Result<SocketListener> {
        let (socket, addr) = match addr {
            Addr::Tcp(at) => {
                let socket = Socket::new(Domain::for_address(*at), Type::STREAM, None)?;
                socket.set_reuse_address(true)?;
                socket.bind(&SockAddr::from(*at))?;
                let at = socket.local_addr()?.as_socket();
                (socket, Addr::Tcp(at.expect("a TCP socket has an internet address")))
            }
            Addr::Unix(path) => (bind_unix(path)?, addr.clone()),
        };
        socket.listen(BACKLOG)?;
        Ok(SocketListener::of(socket, addr))
    }

    /// Listens under an abstract name, which processes of this network namespace can reach, and which is gone when
    /// the listener is.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn bind_abstract(name: &str) -> io::Result<SocketListener> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        let path = abstract_path(name);
        socket.bind(&SockAddr::unix(&path)?)?;
        socket.listen(BACKLOG)?;
        Ok(SocketListener::of(socket, Addr::Unix(path)))
    }

    pub(super) fn of(socket: Socket, addr: Addr) -> SocketListener {
        SocketListener { socket: Rc::new(socket.into()), addr, accepting: RefCell::default() }
    }

    pub(crate) async fn accept(&self) -> io::Result<SocketStream> {
        loop {
            let fd = match check_result(poll_fn(|cx| self.poll_result(cx)).await) {
                Ok(fd) => fd as i32,
                // A peer that has gone before it was taken is no failure of the listener.
                Err(e) if is_interrupted(&e) || e.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            // SAFETY: the kernel has just made this descriptor for us.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            tune(&SockRef::from(&socket), &self.addr)?;
            return Ok(SocketStream { socket: Rc::new(socket) });
        }
    }

    /// The next result of accepting: a descriptor, or a negated error number.
    fn poll_result(&self, cx: &mut Context<'_>) -> Poll<i32> {
        let mut accepting = self.accepting.borrow_mut();
        loop {
            match accepting.get_or_insert_with(|| self.start()) {
                Accept::Once(op) => {
                    let Poll::Ready((result, _)) = Pin::new(op).poll(cx) else { return Poll::Pending };
                    *accepting = None;
                    return Poll::Ready(result);
                }
                Accept::Repeating(op) => match op.poll_next(cx) {
                    Poll::Pending => return Poll::Pending,
                    // It was stopped because too many connections waited for a caller. Now one asks again.
                    Poll::Ready(None) => *accepting = None,
                    Poll::Ready(Some(Repeated { result, .. })) if result == -libc::ECANCELED => {}
                    // An older kernel refuses what it does not know.
                    Poll::Ready(Some(Repeated { result, .. })) if result == -libc::EINVAL => {
                        with_driver(|driver| driver.accepts_repeat.set(false));
                        *accepting = None;
                    }
                    Poll::Ready(Some(Repeated { result, .. })) => return Poll::Ready(result),
                },
            }
        }
    }

    fn start(&self) -> Accept {
        let fd = types::Fd(self.socket.as_raw_fd());
        with_driver(|driver| {
            if driver.accepts_repeat.get() {
                let entry = opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build();
                // SAFETY: the entry points to nothing.
                return Accept::Repeating(unsafe {
                    driver.start_repeating(entry, &self.socket, Held::Accepted, ACCEPTED_CONNECTIONS_MAX)
                });
            }
            let (addr, addr_len) = (std::ptr::null_mut(), std::ptr::null_mut());
            let entry = opcode::Accept::new(fd, addr, addr_len).flags(libc::SOCK_CLOEXEC).build();
            // SAFETY: the entry points to nothing.
            Accept::Once(unsafe { driver.start(entry, &self.socket, Held::Accepted, true) })
        })
    }

    pub(crate) fn local_addr(&self) -> Addr {
        self.addr.clone()
    }
}

impl Drop for SocketListener {
    fn drop(&mut self) {
        if let Addr::Unix(path) = &self.addr
            && !is_abstract(path)
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::debug!(path = %path.display(), %error, "cannot remove the socket's file");
        }
    }
}

/// An abstract name as the system calls want it: behind a zero byte.
fn abstract_path(name: &str) -> PathBuf {
    PathBuf::from(format!("\0{name}"))
}

fn is_abstract(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().starts_with(b"\0")
}

/// Binds a Unix socket; the file of one that nobody serves any more is replaced.
fn bind_unix(path: &Path) -> io::Result<Socket> {
    let addr = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    match socket.bind(&addr) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
        Err(error) => return Err(error),
        Ok(()) => return Ok(socket),
    }
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    let in_use = |why: &str| {
        let text = format!("{}: {why}", path.display());
        Err(io::Error::new(io::ErrorKind::AddrInUse, text))
    };
    if !is_socket {
        return in_use("there is a file of this name that is no socket");
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    match probe.connect(&addr) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        // It is served, or its queue is full, or we may not ask.
        _ => return in_use("another process listens here"),
    }
    std::fs::remove_file(path)?;
    socket.bind(&addr)?;
    Ok(socket)
}

/// Small messages leave at once, and a machine that has vanished is noticed within 10 s.
fn tune(socket: &SockRef<'_>, addr: &Addr) -> io::Result<()> {
    if matches!(addr, Addr::Unix(_)) {
        return Ok(());
    }
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))
}

/// A connection; clones share the socket, which is closed when the last is gone and no operation runs.
#[derive(Clone)]
pub(crate) struct SocketStream {
    socket: Rc<OwnedFd>,
}

impl SocketStream {
    pub(crate) async fn connect(addr: &Addr) -> io::Result<SocketStream> {
        let to = match addr {
            Addr::Tcp(at) => SockAddr::from(*at),
            Addr::Unix(path) => SockAddr::unix(path)?,
        };
        let socket = Socket::new(to.domain(), Type::STREAM, None)?;
        tune(&SockRef::from(&socket), addr)?;
        let socket: Rc<OwnedFd> = Rc::new(socket.into());
        let to = Box::new(to);
        let fd = types::Fd(socket.as_raw_fd());
        let entry = opcode::Connect::new(fd, to.as_ptr().cast(), to.len()).build();
        // SAFETY: the entry points into the address that goes with it.
        let op = with_driver(|driver| unsafe { driver.start(entry, &socket, Held::Address(to), true) });
        check_result(op.await.0)?;
        Ok(SocketStream { socket })
    }

    /// Connects to what [`SocketListener::bind_abstract`] has bound.
    ///
    /// # Errors
    /// `ConnectionRefused` if nobody has; those of the operating system.
    pub(crate) async fn connect_abstract(name: &str) -> io::Result<SocketStream> {
        SocketStream::connect(&Addr::Unix(abstract_path(name))).await
    }

    /// Waits until there is something to read, or the end.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        let entry = opcode::PollAdd::new(types::Fd(self.socket.as_raw_fd()), libc::POLLIN as u32).build();
        // SAFETY: the entry points to nothing.
        let op = with_driver(|driver| unsafe { driver.start(entry, &self.socket, Held::Nothing, true) });
        check_result(op.await.0).map(drop)
    }

    /// Completes when the peer sends nothing more, or the connection is broken.
    pub(crate) async fn hung_up(&self) {
        let entry = opcode::PollAdd::new(types::Fd(self.socket.as_raw_fd()), libc::POLLRDHUP as u32).build();
        // SAFETY: the entry points to nothing.
        let op = with_driver(|driver| unsafe { driver.start(entry, &self.socket, Held::Nothing, true) });
        // An error of the poll is taken for the end as well: a read will say more.
        op.await;
    }

    /// A connection that somebody else made.
    pub(crate) fn of(socket: OwnedFd) -> SocketStream {
        SocketStream { socket: Rc::new(socket) }
    }

    /// The socket, for what the ring does not do.
    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Reads into `buf[at..]`. Bytes that arrive for a future that was dropped are lost: a stream whose read
    /// was given up can only be closed.
    pub(crate) async fn read(&self, buf: BufMut, at: usize) -> (io::Result<usize>, BufMut) {
        let mut buf = buf;
        loop {
            let len = u32::try_from(buf.len() - at).unwrap_or(u32::MAX);
            let to = buf[at..].as_mut_ptr();
            let entry = opcode::Recv::new(types::Fd(self.socket.as_raw_fd()), to, len).build();
            // SAFETY: the entry points into the buffer that goes with it.
            let op =
                with_driver(|driver| unsafe { driver.start(entry, &self.socket, Held::Bytes(buf), true) });
            let (result, held) = op.await;
            buf = held.into_bytes();
            match check_result(result) {
                Err(error) if is_interrupted(&error) => {}
                result => return (result, buf),
            }
        }
    }

    /// Bytes that have arrived and that the next read will not wait for (FIONREAD); 0 if that is not known.
    pub(crate) fn waiting_bytes(&self) -> usize {
        let bytes = rustix::io::ioctl_fionread(&*self.socket).unwrap_or(0);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    pub(crate) fn receiver(&self) -> SocketReceiver {
        SocketReceiver { stream: self.clone(), op: None }
    }

    pub(crate) async fn write(&self, bufs: Vec<Buf>) -> io::Result<()> {
        let mut gather = with_driver(|driver| driver.take_gather());
        gather.load(bufs);
        while gather.point() {
            let fd = types::Fd(self.socket.as_raw_fd());
            let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
            let entry = opcode::SendMsg::new(fd, gather.message()).flags(flags as u32).build();
            // SAFETY: the entry points into the box that goes with it, and from there into its buffers.
            let op = with_driver(|driver| unsafe {
                driver.start(entry, &self.socket, Held::Gather(gather), true)
            });
            let (result, held) = op.await;
            gather = held.into_gather();
            match check_result(result) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero)),
                Ok(n) => gather.advance(n),
                Err(error) if is_interrupted(&error) => {}
                Err(error) => return Err(error),
            }
        }
        with_driver(|driver| driver.return_gather(gather));
        Ok(())
    }

    /// Ends the connection both ways at once; operations under way complete.
    pub(crate) fn shutdown(&self) {
        if let Err(error) = SockRef::from(&*self.socket).shutdown(std::net::Shutdown::Both)
            && error.kind() != io::ErrorKind::NotConnected
        {
            tracing::debug!(%error, "cannot shut a connection down");
        }
    }
}

/// The side of a connection that takes whatever arrives, in chunks.
pub(crate) struct SocketReceiver {
    stream: SocketStream,
    /// The receive under way (IORING_RECV_MULTISHOT, Linux 6.0). It goes on between two calls.
    op: Option<RepeatingOp>,
}

impl SocketReceiver {
    /// The next bytes, in a buffer of their own behind [`crate::net::HEADROOM_BYTES`], 0 of them at the end of the stream; `None` if
    /// the kernel cannot repeat receives.
    pub(crate) async fn receive(&mut self) -> io::Result<Option<(usize, BufMut)>> {
        while self.op.is_some() || with_driver(|driver| driver.receives_repeat.get()) {
            if self.op.is_none() {
                self.op = Some(start_receiving(&self.stream));
            }
            if let Some(received) = self.next().await? {
                return Ok(Some(received));
            }
        }
        Ok(None)
    }

    /// Stops what goes on by itself. What it has brought is kept for the next call of the others.
    pub(crate) fn pause(&self) {
        self.op.iter().for_each(RepeatingOp::stop);
    }

    /// Stops what goes on by itself, and returns like `receive` what it has brought until then; `None` once all is
    /// taken, and the stream can be read from in other ways.
    pub(crate) async fn drain(&mut self) -> io::Result<Option<(usize, BufMut)>> {
        self.pause();
        self.next().await
    }

    /// What the receive under way brings next; `None` if it has ended.
    async fn next(&mut self) -> io::Result<Option<(usize, BufMut)>> {
        while let Some(op) = &mut self.op {
            match poll_fn(|cx| op.poll_next(cx)).await {
                // The chunks were used up for a moment, too many waited for this caller, or it was stopped.
                None => self.op = None,
                Some(Repeated { result, chunk: Some(chunk) }) => {
                    return Ok(Some((check_result(result)?, chunk)));
                }
                Some(Repeated { result: 0, .. }) => return Ok(Some((0, BufMut::aligned(0)))),
                Some(Repeated { result, .. }) => match -result {
                    libc::ENOBUFS | libc::ECANCELED | libc::EINTR | libc::EAGAIN => {}
                    // An older kernel refuses what it does not know.
                    libc::EINVAL => with_driver(|driver| driver.receives_repeat.set(false)),
                    errno => return Err(io::Error::from_raw_os_error(errno)),
                },
            }
        }
        Ok(None)
    }
}

fn start_receiving(stream: &SocketStream) -> RepeatingOp {
    let entry = opcode::RecvMulti::new(types::Fd(stream.socket.as_raw_fd()), GROUP).build();
    // SAFETY: the entry points to nothing; the chunks that it fills belong to the driver.
    with_driver(|driver| unsafe {
        driver.start_repeating(entry, &stream.socket, Held::Nothing, RECEIVED_CHUNKS_MAX)
    })
}
