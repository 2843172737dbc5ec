//! The simulated network: ordered streams of bytes between hosts, with latency, cuts and resets.

use super::World;
use crate::drive::gather;
use crate::executor::Process;
use crate::sync::{Either, Notify, race};
use crate::time::Instant;
use crate::{Addr, Buf, BufMut};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Bytes that may be under way in one direction before the writer waits, like a socket's buffers, unless a
/// simulation sets fewer.
const IN_FLIGHT_MAX: usize = 4 << 20;

/// How long a connection attempt into a cut network lasts before it fails.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Hosts, ways between them, listeners and connections.
pub(crate) struct Network {
    blocked: RefCell<BTreeSet<(IpAddr, IpAddr)>>,
    /// Hosts that take no new connections.
    closed: RefCell<BTreeSet<IpAddr>>,
    latency: Cell<(Duration, Duration)>,
    /// Bytes under way in one direction before the writer waits.
    socket_bytes: Cell<usize>,
    listeners: RefCell<BTreeMap<String, Weak<ListenerState>>>,
    connections: RefCell<Vec<Weak<Connection>>>,
    /// Ways opened, or listeners changed.
    changed: Notify,
    next_port: Cell<u16>,
}

impl Default for Network {
    fn default() -> Self {
        Network {
            blocked: RefCell::default(),
            closed: RefCell::default(),
            latency: Cell::new((Duration::from_micros(5), Duration::from_micros(200))),
            socket_bytes: Cell::new(IN_FLIGHT_MAX),
            listeners: RefCell::default(),
            connections: RefCell::default(),
            changed: Notify::default(),
            next_port: Cell::new(40_000),
        }
    }
}

impl Network {
    pub(crate) fn set_blocked(&self, from: IpAddr, to: IpAddr, blocked: bool) {
        if blocked {
            self.blocked.borrow_mut().insert((from, to));
        } else {
            self.blocked.borrow_mut().remove(&(from, to));
            self.changed.notify_all();
        }
    }

    pub(crate) fn set_closed(&self, host: IpAddr, closed: bool) {
        if closed {
            self.closed.borrow_mut().insert(host);
        } else {
            self.closed.borrow_mut().remove(&host);
            self.changed.notify_all();
        }
    }

    pub(crate) fn heal(&self) {
        self.blocked.borrow_mut().clear();
        self.closed.borrow_mut().clear();
        self.changed.notify_all();
    }

    pub(crate) fn set_latency(&self, low: Duration, high: Duration) {
        self.latency.set((low, high));
    }

    pub(crate) fn set_socket_bytes(&self, bytes: usize) {
        self.socket_bytes.set(bytes);
    }

    pub(crate) fn reset_between(&self, a: IpAddr, b: IpAddr) {
        let connections: Vec<_> = self.connections.borrow().iter().filter_map(Weak::upgrade).collect();
        for c in connections {
            if c.hosts == [a, b] || c.hosts == [b, a] {
                c.reset.set(true);
                c.ways.iter().for_each(|w| w.changed.notify_all());
            }
        }
        self.changed.notify_all();
    }

    /// The most that is under way on one connection in one direction.
    pub(crate) fn bytes_under_way(&self) -> usize {
        let connections: Vec<_> = self.connections.borrow().iter().filter_map(Weak::upgrade).collect();
        connections.iter().flat_map(|c| &c.ways).map(|way| way.bytes.get()).max().unwrap_or(0)
    }

    fn is_blocked(&self, from: IpAddr, to: IpAddr) -> bool {
        from != to && self.blocked.borrow().contains(&(from, to))
    }

    fn can_connect(&self, from: IpAddr, to: IpAddr) -> bool {
        let is_closed = from != to && self.closed.borrow().contains(&to);
        !is_closed && !self.is_blocked(from, to) && !self.is_blocked(to, from)
    }
}

struct ListenerState {
    addr: Addr,
    host: IpAddr,
    waiting: RefCell<VecDeque<SimStream>>,
    changed: Notify,
}

/// The simulated half of [`crate::Listener`].
pub(crate) struct SimListener(Rc<ListenerState>);

impl SimListener {
    pub(crate) async fn accept(&self) -> io::Result<SimStream> {
        loop {
            if let Some(stream) = self.0.waiting.borrow_mut().pop_front() {
                return Ok(stream);
            }
            self.0.changed.notified().await;
        }
    }

    pub(crate) fn local_addr(&self) -> Addr {
        self.0.addr.clone()
    }
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    chunks: RefCell<VecDeque<(Instant, Buf)>>,
    bytes: Cell<usize>,
    /// When the last bytes, or the end, arrive: later ones never arrive earlier.
    last: Cell<Instant>,
    /// The sender closed; readers see the end after this.
    ended: Cell<Option<Instant>>,
    changed: Notify,
}

struct Connection {
    hosts: [IpAddr; 2],
    ways: [Way; 2],
    reset: Cell<bool>,
}

/// One side of a connection; the other notices when the last clone is dropped.
struct Side {
    world: World,
    connection: Rc<Connection>,
    side: usize,
}

impl Side {
    fn end(&self) {
        let way = &self.connection.ways[self.side];
        if way.ended.get().is_none() {
            let (low, high) = self.world.0.network.latency.get();
            let at = (self.world.now(0) + self.world.random_duration(low, high)).max(way.last.get());
            way.last.set(at);
            way.ended.set(Some(at));
            self.connection.ways.iter().for_each(|w| w.changed.notify_all());
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.end();
    }
}

/// The simulated half of [`crate::Stream`].
#[derive(Clone)]
pub(crate) struct SimStream(Rc<Side>);

fn reset_error() -> io::Error {
    io::Error::from(io::ErrorKind::ConnectionReset)
}

impl SimStream {
    pub(crate) async fn read(&self, mut buf: BufMut, at: usize) -> (io::Result<usize>, BufMut) {
        let (world, c, side) = (&self.0.world, &self.0.connection, self.0.side);
        let way = &c.ways[1 - side];
        loop {
            if c.reset.get() {
                return (Err(reset_error()), buf);
            }
            if c.ways[side].ended.get().is_some() {
                return (Ok(0), buf);
            }
            let network = &world.0.network;
            let (changed, opened) = (way.changed.notified(), network.changed.notified());
            let arrival = way.chunks.borrow().front().map(|(at, _)| *at).or(way.ended.get());
            match arrival {
                Some(_) if network.is_blocked(c.hosts[1 - side], c.hosts[side]) => {
                    race(opened, changed).await;
                }
                Some(when) if when > world.now(0) => {
                    race(world.sleep_until_true(when), changed).await;
                }
                Some(_) => {
                    let n = way.take(&mut buf[at..]);
                    world.trace(0x6e65_7400 ^ n as u64);
                    way.changed.notify_all();
                    return (Ok(n), buf);
                }
                None => changed.await,
            }
        }
    }

    pub(crate) async fn hung_up(&self) {
        let (world, c, side) = (&self.0.world, &self.0.connection, self.0.side);
        let way = &c.ways[1 - side];
        loop {
            let network = &world.0.network;
            let (changed, opened) = (way.changed.notified(), network.changed.notified());
            match way.ended.get() {
                _ if c.reset.get() || c.ways[side].ended.get().is_some() => return,
                Some(_) if network.is_blocked(c.hosts[1 - side], c.hosts[side]) => {
                    race(opened, changed).await;
                }
                Some(when) if when > world.now(0) => {
                    race(world.sleep_until_true(when), changed).await;
                }
                Some(_) => return,
                None => changed.await,
            }
        }
    }

    pub(crate) async fn write(&self, bufs: Vec<Buf>) -> io::Result<()> {
        let (world, c, side) = (&self.0.world, &self.0.connection, self.0.side);
        let way = &c.ways[side];
        let mut rest = gather(&bufs, bufs.iter().map(|b| b.len()).sum());
        while !rest.is_empty() {
            if c.reset.get() || way.ended.get().is_some() {
                return Err(reset_error());
            }
            let now = world.now(0);
            let peer_closed = c.ways[1 - side].ended.get().is_some_and(|at| at <= now);
            if peer_closed && !world.0.network.is_blocked(c.hosts[1 - side], c.hosts[side]) {
                return Err(io::Error::from(io::ErrorKind::BrokenPipe));
            }
            if way.bytes.get() >= world.0.network.socket_bytes.get() {
                match c.ways[1 - side].ended.get().filter(|at| *at > now) {
                    // That the peer has closed is on the way.
                    Some(at) => {
                        race(world.sleep_until_true(at), way.changed.notified()).await;
                    }
                    None => way.changed.notified().await,
                }
                continue;
            }
            // A write may arrive in pieces, as real segments do.
            let piece = if world.random_below(4) == 0 {
                1 + world.random_below(rest.len() as u64) as usize
            } else {
                rest.len()
            };
            let (low, high) = world.0.network.latency.get();
            let at = (now + world.random_duration(low, high)).max(way.last.get());
            way.last.set(at);
            way.chunks.borrow_mut().push_back((at, rest.slice(0..piece)));
            way.bytes.set(way.bytes.get() + piece);
            way.changed.notify_all();
            rest = rest.slice(piece..rest.len());
        }
        Ok(())
    }

    pub(crate) fn shutdown(&self) {
        self.0.end();
    }
}

impl Way {
    /// Moves bytes that have arrived into `out`; 0 at the end of the stream.
    fn take(&self, out: &mut [u8]) -> usize {
        let mut chunks = self.chunks.borrow_mut();
        let Some((_, front)) = chunks.front_mut() else { return 0 };
        let n = front.len().min(out.len());
        out[..n].copy_from_slice(&front[..n]);
        if n == front.len() {
            chunks.pop_front();
        } else {
            *front = front.slice(n..front.len());
        }
        self.bytes.set(self.bytes.get() - n);
        n
    }
}

impl World {
    pub(crate) fn bind(&self, process: Process, addr: &Addr) -> io::Result<SimListener> {
        let network = &self.0.network;
        let addr = match addr {
            Addr::Tcp(a) if a.port() == 0 => {
                let port = network.next_port.get();
                network.next_port.set(port + 1);
                Addr::Tcp(SocketAddr::new(a.ip(), port))
            }
            other => other.clone(),
        };
        let mut listeners = network.listeners.borrow_mut();
        if listeners.get(&addr.to_string()).is_some_and(|l| l.strong_count() > 0) {
            return Err(io::Error::from(io::ErrorKind::AddrInUse));
        }
        let state = Rc::new(ListenerState {
            addr: addr.clone(),
            host: self.host(process),
            waiting: RefCell::default(),
            changed: Notify::default(),
        });
        listeners.insert(addr.to_string(), Rc::downgrade(&state));
        Ok(SimListener(state))
    }

    pub(crate) async fn connect(&self, process: Process, addr: &Addr) -> io::Result<SimStream> {
        let network = &self.0.network;
        let from = self.host(process);
        let (low, high) = network.latency.get();
        let deadline = self.now(0) + CONNECT_TIMEOUT;
        self.sleep_until_true(self.now(0) + self.random_duration(low, high)).await;
        loop {
            let listener = network.listeners.borrow().get(&addr.to_string()).and_then(Weak::upgrade);
            let to = match (&listener, addr) {
                (Some(l), _) => l.host,
                (None, Addr::Tcp(a)) => a.ip(),
                (None, Addr::Unix(_)) => from,
            };
            if !network.can_connect(from, to) {
                // Not held while waiting: its process may die, and another may listen there.
                drop(listener);
                match race(network.changed.notified(), self.sleep_until_true(deadline)).await {
                    Either::Left(()) => continue,
                    Either::Right(()) => return Err(io::Error::from(io::ErrorKind::TimedOut)),
                }
            }
            let Some(listener) = listener else {
                return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
            };
            let connection =
                Rc::new(Connection { hosts: [from, to], ways: Default::default(), reset: Cell::new(false) });
            network.connections.borrow_mut().retain(|c| c.strong_count() > 0);
            network.connections.borrow_mut().push(Rc::downgrade(&connection));
            let side =
                |side| SimStream(Rc::new(Side { world: self.clone(), connection: connection.clone(), side }));
            listener.waiting.borrow_mut().push_back(side(1));
            listener.changed.notify_all();
            return Ok(side(0));
        }
    }
}
