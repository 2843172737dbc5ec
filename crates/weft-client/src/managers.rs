//! Finding a manager that answers, and changing to another one when it does not.

use crate::error::ClientError;
use std::cell::{Cell, RefCell};
use weft_rpc::{Body, ConnectError, Link};
use weft_rt::{Addr, Buf};
use weft_types::FabricId;
use weft_wire::control::{self, ManagerAnswer, ManagerRequest};
use weft_wire::handshake::{Hello, PeerRole};
use weft_wire::{Kind, Status};

/// The managers of a fabric, one of which is asked at a time.
pub(crate) struct Managers {
    addrs: Vec<Addr>,
    /// The name of this client, for people.
    client: String,
    link: RefCell<Option<Link>>,
    /// The one that is asked.
    turn: Cell<usize>,
}

/// A manager's answer that is not the one wished for.
pub(crate) enum Asked {
    Answered(Status, String),
    Failed(ClientError),
}

impl From<Asked> for ClientError {
    fn from(asked: Asked) -> ClientError {
        match asked {
            Asked::Answered(_, message) => ClientError::Refused { message },
            Asked::Failed(error) => error,
        }
    }
}

impl Managers {
    /// At these addresses, for a client of this name.
    pub(crate) fn new(addrs: &[Addr], client: &str) -> Managers {
        Managers {
            addrs: addrs.to_vec(),
            client: client.to_owned(),
            link: RefCell::new(None),
            turn: Cell::new(0),
        }
    }

    /// Asks a manager. One that cannot be reached, or says that it is not ready, is passed over for the next.
    /// The fabric is named if it is known.
    pub(crate) async fn ask(
        &self,
        fabric: Option<FabricId>,
        request: &ManagerRequest,
    ) -> Result<(ManagerAnswer, Buf), Asked> {
        let mut not_ready = None;
        for _ in &self.addrs {
            match self.ask_one(fabric, request).await {
                Err(Asked::Answered(Status::NotReady, text)) => {
                    self.pass();
                    not_ready.get_or_insert(text);
                }
                // What the one said that answers is of more use than that others do not.
                Err(Asked::Failed(_)) if not_ready.is_some() => break,
                other => return other,
            }
        }
        Err(Asked::Answered(Status::NotReady, not_ready.unwrap_or_default()))
    }

    async fn ask_one(
        &self,
        fabric: Option<FabricId>,
        request: &ManagerRequest,
    ) -> Result<(ManagerAnswer, Buf), Asked> {
        let link = self.link(fabric).await.map_err(Asked::Failed)?;
        match link.call(Kind::Manage, &control::encode(request), Body::none()).await {
            Ok(reply) => control::decode(&reply.head)
                .map(|answer| (answer, reply.body))
                .map_err(|e| Asked::Answered(Status::Failed, e.to_string())),
            Err(error) => Err(match error.status() {
                Some(status) => Asked::Answered(status, error.text()),
                None => Asked::Failed(self.none_answers(ConnectError::Lost)),
            }),
        }
    }

    /// The connection to the manager that is asked, or to the next one that takes a connection.
    ///
    /// # Errors
    /// [`ClientError::NoManager`].
    pub(crate) async fn link(&self, fabric: Option<FabricId>) -> Result<Link, ClientError> {
        if let Some(link) = self.link.borrow().as_ref().filter(|l| !l.is_closed()) {
            return Ok(link.clone());
        }
        let mut last = ConnectError::Lost;
        for _ in 0..self.addrs.len() {
            let hello = Hello::new(PeerRole::Client, fabric, self.client.clone());
            match Link::connect(&self.addrs[self.turn.get()], &hello).await {
                Ok(link) => {
                    *self.link.borrow_mut() = Some(link.clone());
                    return Ok(link);
                }
                Err(error) => last = error,
            }
            self.pass();
        }
        Err(self.none_answers(last))
    }

    /// The next manager is asked from now on. Who still waits for an answer of this one may: the
    /// connection ends with the last of them.
    pub(crate) fn pass(&self) {
        self.turn.set((self.turn.get() + 1) % self.addrs.len().max(1));
        self.link.borrow_mut().take();
    }

    /// This manager gives no answer. Where there is another one, that is asked from now on, and nobody waits
    /// for this one any more.
    pub(crate) fn give_up(&self) {
        let silent = self.link.borrow().clone();
        if self.addrs.len() > 1 {
            self.pass();
            silent.iter().for_each(Link::close);
        }
    }

    fn none_answers(&self, source: ConnectError) -> ClientError {
        let addrs: Vec<String> = self.addrs.iter().map(Addr::to_string).collect();
        ClientError::NoManager { addrs: addrs.join(", "), source }
    }
}
