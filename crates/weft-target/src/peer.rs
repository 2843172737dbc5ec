//! Connections to other targets, and the one to the manager.
//!
//! It owns finding a peer by the map's address, one connection attempt at a time, and how long an answer may take. A
//! drive of this very target is asked without a connection. It never repeats a request: the caller knows whether
//! that is of use.

use crate::target::Target;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_rpc::{Answer, Body, CallError, Link, Peer, Reply, Request, Service, protocol_newest};
use weft_rt::sync::Mutex;
use weft_rt::{Addr, Buf, BufMut, Instant, Landing, now};
use weft_types::{DriveId, with_causes};
use weft_wire::handshake::{Hello, PeerRole};
use weft_wire::{Kind, Status};

/// How long a peer may take to answer: many times what a busy drive needs, less than the usual lease. A connection on
/// which an answer is that late is given up, because it may be dead without anyone having said so.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// Why a peer gave no reply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    /// It was not asked: for people.
    #[error("{0}")]
    Unreached(String),
    /// It was asked.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl PeerError {
    /// What it has refused with; `None` if it has not answered.
    pub(crate) fn status(&self) -> Option<Status> {
        match self {
            PeerError::Unreached(_) => None,
            PeerError::Call(error) => error.status(),
        }
    }
}

/// The way to one peer.
#[derive(Default)]
struct Way {
    link: Option<Link>,
    /// When the last attempt to connect failed, and why.
    failed: Option<(Instant, String)>,
}

/// Open connections.
#[derive(Default)]
pub(crate) struct Peers {
    links: RefCell<BTreeMap<String, Rc<Mutex<Way>>>>,
    manager: RefCell<Option<Link>>,
}

impl Peers {
    /// The connection over which this target has joined, if it is up.
    pub(crate) fn manager(&self) -> Option<Link> {
        self.manager.borrow().clone().filter(|link| !link.is_closed())
    }

    pub(crate) fn set_manager(&self, link: Option<Link>) {
        *self.manager.borrow_mut() = link;
    }
}

impl Target {
    /// Asks whoever serves the drive. The head is written by the protocol that is spoken there.
    ///
    /// # Errors
    /// See [`PeerError`]; unless it was refused, it is not known whether the request was carried out.
    pub(crate) async fn call_drive(
        &self,
        drive: DriveId,
        kind: Kind,
        head: impl Fn(u16) -> Vec<u8>,
        body: impl Into<Body>,
    ) -> Result<Reply, PeerError> {
        let body = body.into();
        if self.serves(drive) {
            return Ok(self.call_self(kind, head(protocol_newest()), body).await?);
        }
        let addr = self.map().and_then(|map| map.drive_addr(drive).map(str::to_owned));
        let addr = addr.ok_or_else(|| PeerError::Unreached(format!("drive {drive} is not in the map")))?;
        self.call_addr(&addr, kind, head, body).await
    }

    /// Asks the target at an address.
    ///
    /// # Errors
    /// As for [`Target::call_drive`].
    pub(crate) async fn call_addr(
        &self,
        addr: &str,
        kind: Kind,
        head: impl Fn(u16) -> Vec<u8>,
        body: impl Into<Body>,
    ) -> Result<Reply, PeerError> {
        let link = self.link(addr).await.map_err(PeerError::Unreached)?;
        let called = link.call_within(PATIENCE, kind, &head(link.protocol()), body).await;
        if let Err(CallError::Late(_)) = &called {
            link.close();
        }
        Ok(called?)
    }

    async fn link(&self, addr: &str) -> Result<Link, String> {
        let begun = now();
        let way = {
            let mut links = self.peers.links.borrow_mut();
            links.entry(addr.to_owned()).or_insert_with(|| Rc::new(Mutex::new(Way::default()))).clone()
        };
        let turn = way.lock().await;
        let open = turn.get().link.clone().filter(|link| !link.is_closed());
        if let Some(link) = open {
            return Ok(link);
        }
        // Whoever waited for this turn shares the outcome: attempts one after another would pile up.
        let failed = turn.get().failed.clone().filter(|(at, _)| *at >= begun);
        if let Some((_, why)) = failed {
            return Err(why);
        }
        let to: Addr = addr.parse().map_err(|e| format!("{e}"))?;
        match Link::connect(&to, &self.hello()).await {
            Ok(link) => {
                turn.get().link = Some(link.clone());
                Ok(link)
            }
            Err(error) => {
                let why = with_causes(&error);
                turn.get().failed = Some((now(), why.clone()));
                Err(why)
            }
        }
    }

    /// What it says first to whomever it connects to.
    pub(crate) fn hello(&self) -> Hello {
        let role = PeerRole::Target(self.id().unwrap_or_default());
        Hello::new(role, Some(self.options.fabric), self.options.node_name.clone())
    }

    /// Asks a drive of this very target, through the same admission as everyone.
    async fn call_self(&self, kind: Kind, head: Vec<u8>, body: Body) -> Result<Reply, CallError> {
        let role = PeerRole::Target(self.id().unwrap_or_default());
        let peer = Rc::new(Peer {
            role,
            name: self.options.node_name.clone(),
            protocol: protocol_newest(),
            since: now(),
        });
        let landing = Landing::default();
        let (head, body) = (Buf::from(head), gather(body.into_bufs()));
        let request = Request { kind, number: 0, head, body, one_way: false, landing };
        // Boxed, because serving a request may lead to asking a peer again.
        let answer: Answer = Box::pin(self.shared().handle(peer, request)).await;
        match answer.status {
            Status::Ok => Ok(Reply { head: Buf::from(answer.head), body: gather(answer.body.into_bufs()) }),
            status => Err(CallError::Refused { status, head: answer.head }),
        }
    }
}

/// The buffers as one; copies only if there are several.
pub(crate) fn gather(mut parts: Vec<Buf>) -> Buf {
    match parts.len() {
        0 => Buf::empty(),
        1 => parts.remove(0),
        _ => {
            let mut whole = BufMut::aligned(parts.iter().map(|b| b.len()).sum());
            let mut at = 0;
            for part in parts {
                whole[at..at + part.len()].copy_from_slice(&part);
                at += part.len();
            }
            whole.freeze()
        }
    }
}
