//! A connection from the side that asks: many requests in flight, answers matched to them.

use crate::body::Body;
use crate::call::{CallError, Reply};
use crate::frame::{Frame, FrameError};
use crate::frames::{FrameReader, FrameWriter};
use crate::protocol::protocol_newest;
use crate::shm;
use crate::transport::Transport;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::{Rc, Weak};
use std::time::Duration;
use weft_rt::sync::{Notify, OneshotSender, Permit, Semaphore, oneshot};
use weft_rt::{Addr, spawn, timeout};
use weft_types::limits::{FRAME_HEAD_MAX, LINK_REQUESTS_MAX};
use weft_wire::frame::{Envelope, FLAG_ANSWER, FLAG_ONE_WAY, PROTOCOL_OF_BLOCKS};
use weft_wire::handshake::{Hello, Welcome};
use weft_wire::{Kind, Status, control};

/// How long connecting and the handshake may take: several lost packets' worth on any local network.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long it may take to get a connection through shared memory from a process that is there.
const SHARED_TIMEOUT: Duration = Duration::from_secs(1);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No connection.
    #[error("cannot connect to {addr}")]
    Connect {
        /// Where to.
        addr: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The peer refused the handshake.
    #[error("{addr} refused the connection: {reason}")]
    Refused {
        /// Who.
        addr: String,
        /// Its words.
        reason: String,
    },
    /// The handshake broke off or was not one.
    #[error("{addr} did not answer as a Weft peer")]
    Handshake {
        /// Who.
        addr: String,
        /// How it failed, where bytes were at fault.
        #[source]
        source: Option<FrameError>,
    },
    /// A connection that was there has ended.
    #[error("connection lost")]
    Lost,
}

struct Waiting {
    answer: OneshotSender<Frame>,
    serial: u16,
    _request: Permit,
    _bytes: Permit,
}

struct Inner {
    writer: FrameWriter,
    waiting: RefCell<Slab<Waiting>>,
    next_serial: Cell<u16>,
    /// Answers received so far.
    answers: Cell<u64>,
    requests: Semaphore,
    bytes: Semaphore,
    bytes_max: u64,
    closed: Cell<bool>,
    closing: Notify,
    welcome: Welcome,
}

impl Inner {
    fn close(&self) {
        self.closed.set(true);
        self.requests.close();
        self.bytes.close();
        self.writer.shutdown();
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        drop(waiting);
        self.closing.notify_all();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.writer.shutdown();
    }
}

/// A connection to a peer that answers requests. Clones share it; it ends when the last is dropped.
#[derive(Clone)]
pub struct Link(Rc<Inner>);

impl Link {
    /// Connects and shakes hands. Where the peer runs on this machine and offers it, the connection goes
    /// through shared memory, unless [`shm::set_shared_memory`] says no.
    ///
    /// # Errors
    /// If there is no connection within 3 s, or the peer refuses.
    pub async fn connect(addr: &Addr, hello: &Hello) -> Result<Link, ConnectError> {
        let connect = |source| ConnectError::Connect { addr: addr.to_string(), source };
        let attempt = async {
            let transport = Transport::connect(addr).await.map_err(connect)?;
            Self::shake_hands(addr, transport, hello).await
        };
        let link = match timeout(CONNECT_TIMEOUT, attempt).await {
            Ok(result) => result?,
            Err(_) => return Err(connect(io::Error::from(io::ErrorKind::TimedOut))),
        };
        let name = link.welcome().door.as_ref().filter(|_| shm::is_wanted());
        let Some(name) = name else { return Ok(link) };
        let shared = async {
            let transport = Transport::connect_shared(name).await.map_err(connect)?;
            Self::shake_hands(addr, transport, hello).await
        };
        match timeout(SHARED_TIMEOUT, shared).await {
            Ok(Ok(shared)) => Ok(shared),
            Ok(Err(error)) => {
                // On another machine, as a rule.
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "no connection through shared memory"
                );
                Ok(link)
            }
            Err(_) => Ok(link),
        }
    }

    async fn shake_hands(addr: &Addr, transport: Transport, hello: &Hello) -> Result<Link, ConnectError> {
        let broken = |source| ConnectError::Handshake { addr: addr.to_string(), source };
        let envelope = Envelope { kind: Kind::Hello as u16, ..Default::default() };
        let protocol_newest = hello.protocol_newest.min(protocol_newest());
        let (mut reader, writer) = transport.into_halves();
        writer.send(envelope, &control::encode(&Hello { protocol_newest, ..hello.clone() }), Body::none());
        let frame = reader.next().await.map_err(|e| broken(Some(e)))?.ok_or_else(|| broken(None))?;
        if Status::from_u16(frame.envelope.status) != Status::Ok {
            let reason = String::from_utf8_lossy(&frame.head).into_owned();
            return Err(ConnectError::Refused { addr: addr.to_string(), reason });
        }
        let welcome: Welcome =
            control::decode(&frame.head).map_err(|e| broken(Some(FrameError::Decode(e))))?;
        if !(hello.protocol_oldest..=protocol_newest).contains(&welcome.protocol) {
            let reason = format!(
                "it chose protocol {}, this side offered {} to {protocol_newest}",
                welcome.protocol, hello.protocol_oldest
            );
            return Err(ConnectError::Refused { addr: addr.to_string(), reason });
        }
        let bytes_max = u64::from(welcome.bytes_max);
        let inner = Rc::new(Inner {
            writer,
            waiting: RefCell::default(),
            next_serial: Cell::new(1),
            answers: Cell::new(0),
            requests: Semaphore::new(u64::from(welcome.requests_max.min(LINK_REQUESTS_MAX))),
            bytes: Semaphore::new(bytes_max),
            bytes_max,
            closed: Cell::new(false),
            closing: Notify::default(),
            welcome,
        });
        spawn(receive(Rc::downgrade(&inner), reader));
        Ok(Link(inner))
    }

    /// Sends a request and waits for its answer. Waits first for credit, so the order of two calls that are
    /// awaited at once is not defined. Dropping the future does not take the request back.
    ///
    /// # Errors
    /// See [`CallError`]; never [`CallError::Late`].
    ///
    /// # Panics
    /// If head or body pass the limits of a frame.
    pub async fn call(&self, kind: Kind, head: &[u8], body: impl Into<Body>) -> Result<Reply, CallError> {
        self.send(kind, 0, head, body.into()).await?.await
    }

    /// The same, for no longer than `patience`.
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Panics
    /// If head or body pass the limits of a frame.
    pub async fn call_within(
        &self,
        patience: Duration,
        kind: Kind,
        head: &[u8],
        body: impl Into<Body>,
    ) -> Result<Reply, CallError> {
        let called = timeout(patience, self.call(kind, head, body)).await;
        called.unwrap_or(Err(CallError::Late(patience)))
    }

    /// Sends a request, after waiting for credit, and returns the future of its answer. Dropping that does
    /// not take the request back; its credit comes back with the answer. The number is for the logs of both
    /// sides ([`Envelope::number`]).
    ///
    /// # Errors
    /// [`CallError::Broken`] here: the request has not been sent. In the answer's place: see [`CallError`].
    ///
    /// # Panics
    /// If head or body pass the limits of a frame.
    pub async fn send(
        &self,
        kind: Kind,
        number: u32,
        head: &[u8],
        body: Body,
    ) -> Result<impl Future<Output = Result<Reply, CallError>> + use<>, CallError> {
        assert!(head.len() <= FRAME_HEAD_MAX, "a head of {} bytes", head.len());
        let bytes = (body.len() as u64).min(self.0.bytes_max);
        let (request, credit) = match self.credit_at_once(bytes) {
            Some(both) => both,
            // Boxed so that waiting, which is rare, does not swell the future of every request.
            None => Box::pin(self.credit(bytes)).await?,
        };
        let (answer, answered) = oneshot();
        let id = {
            let serial = self.0.next_serial.get();
            self.0.next_serial.set(serial.wrapping_add(1));
            let waiting = Waiting { answer, serial, _request: request, _bytes: credit };
            let key = self.0.waiting.borrow_mut().insert(waiting);
            let key = u16::try_from(key).expect("no more requests are in flight than there are places");
            u64::from(number) << 32 | u64::from(serial) << 16 | u64::from(key)
        };
        let envelope = Envelope { kind: kind as u16, request: id, ..Default::default() };
        let body = if self.protocol() < PROTOCOL_OF_BLOCKS { Body::from(body.into_bufs()) } else { body };
        self.0.writer.send(envelope, head, body);
        Ok(async move { answered.await.ok_or(CallError::Broken)?.into_reply() })
    }

    /// Credit for one request of so many bytes, if there is some and nobody waits for it.
    fn credit_at_once(&self, bytes: u64) -> Option<(Permit, Permit)> {
        Some((self.0.requests.try_acquire(1)?, self.0.bytes.try_acquire(bytes)?))
    }

    async fn credit(&self, bytes: u64) -> Result<(Permit, Permit), CallError> {
        let request = self.0.requests.acquire(1).await.ok_or(CallError::Broken)?;
        let credit = self.0.bytes.acquire(bytes).await.ok_or(CallError::Broken)?;
        Ok((request, credit))
    }

    /// Sends a request that has no answer. It may be lost without notice.
    pub fn cast(&self, kind: Kind, head: &[u8]) {
        let envelope = Envelope { kind: kind as u16, flags: FLAG_ONE_WAY, ..Default::default() };
        self.0.writer.send(envelope, head, Body::none());
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.0.closed.get()
    }

    /// Completes when the connection has ended.
    pub async fn closed(&self) {
        while !self.0.closed.get() {
            self.0.closing.notified().await;
        }
    }

    /// Ends the connection; requests without an answer fail.
    pub fn close(&self) {
        self.0.close();
    }

    /// The protocol that both sides speak: heads of requests are written by this one.
    pub fn protocol(&self) -> u16 {
        self.0.welcome.protocol
    }

    /// What the peer said at the handshake.
    pub fn welcome(&self) -> &Welcome {
        &self.0.welcome
    }

    /// Whether it goes through shared memory: the peer runs on this machine.
    pub fn is_shared(&self) -> bool {
        self.0.writer.is_shared()
    }

    /// Answers received so far.
    pub fn answers(&self) -> u64 {
        self.0.answers.get()
    }

    /// Whether an answer is awaited.
    pub fn is_waiting(&self) -> bool {
        !self.0.waiting.borrow().is_empty()
    }

    /// Bytes sent so far.
    pub fn bytes_sent(&self) -> u64 {
        self.0.writer.bytes_sent()
    }
}

/// Hands answers to those who wait, until the connection ends.
async fn receive(link: Weak<Inner>, mut reader: FrameReader) {
    loop {
        let frame = reader.next().await;
        let Some(inner) = link.upgrade() else { return };
        let frame = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => return inner.close(),
            Err(error) => {
                tracing::debug!(%error, "connection ends");
                return inner.close();
            }
        };
        inner.answers.set(inner.answers.get() + 1);
        let request = frame.envelope.request;
        let (key, serial) = (usize::from(request as u16), (request >> 16) as u16);
        let waiting = {
            let mut waiting = inner.waiting.borrow_mut();
            let known = waiting.get(key).is_some_and(|w| w.serial == serial);
            known.then(|| waiting.remove(key))
        };
        match waiting {
            Some(w) if frame.envelope.flags & FLAG_ANSWER != 0 => w.answer.send(frame),
            _ => {
                tracing::warn!(request, "answer to no request; closing the connection");
                return inner.close();
            }
        }
    }
}
