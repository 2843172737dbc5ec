//! Services: who answers which kind of request. A process lists its services; the server knows none of them.

use crate::body::Body;
use crate::frame::Front;
use crate::frames::FrameWriter;
use pin_project_lite::pin_project;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use weft_rt::{Budget, Buf, Instant, Landing, LocalFuture, Share, memory_of};
use weft_types::FabricId;
use weft_types::limits::{FRAME_BODY_MAX, FRAME_HEAD_MAX, ROOM_REQUEST_BYTES};
use weft_wire::frame::{Envelope, FLAG_ANSWER, PROTOCOL_OF_BLOCKS};
use weft_wire::handshake::{Hello, PeerRole};
use weft_wire::{Kind, Status};

/// Who is at the other end.
#[derive(Debug)]
pub struct Peer {
    /// What it is.
    pub role: PeerRole,
    /// Its name, for people.
    pub name: String,
    /// The protocol that both sides speak: its requests are read, and answered, by this one.
    pub protocol: u16,
    /// When it said hello. Its first request is later, since that waits for the welcome: so of two processes
    /// that follow each other, whatever the former still has on the way is from an earlier hello than any of
    /// the latter.
    pub since: Instant,
}

/// A request as it arrived.
#[derive(Debug)]
pub struct Request {
    /// What it asks.
    pub kind: Kind,
    /// How the side that asks counts it, for logs ([`Envelope::number`]).
    pub number: u32,
    /// The typed head.
    pub head: Buf,
    /// Data blocks or a document.
    pub body: Buf,
    /// Whether the peer wants no answer.
    pub one_way: bool,
    /// Where to read blocks that the answer carries.
    pub landing: Landing,
}

/// What is sent back.
pub struct Answer {
    /// How the request ended.
    pub status: Status,
    /// The typed head, or a text for people where the status is a failure.
    pub head: Vec<u8>,
    /// Data blocks or a document.
    pub body: Body,
}

impl Answer {
    /// Success.
    pub fn ok(head: Vec<u8>, body: impl Into<Body>) -> Answer {
        Answer { status: Status::Ok, head, body: body.into() }
    }

    /// A failure, with a text for people.
    pub fn error(status: Status, text: impl Into<String>) -> Answer {
        let mut text: String = text.into();
        if text.len() > FRAME_HEAD_MAX {
            let mut end = FRAME_HEAD_MAX;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
        }
        Answer { status, head: text.into_bytes(), body: Body::none() }
    }
}

/// Decides who may connect.
pub trait Greeter: 'static {
    /// Whether this peer is welcome, and to which fabric.
    ///
    /// # Errors
    /// A text for the peer's people.
    fn greet(&self, hello: &Hello) -> Result<Option<FabricId>, String>;
}

/// Answers requests. Several run at once, in no defined order beyond that they start in the order of arrival.
pub trait Service: 'static {
    /// Carries out one request. The answer to a one-way request is dropped.
    fn handle(self: Rc<Self>, peer: Rc<Peer>, request: Request) -> impl Future<Output = Answer>;

    /// About how many bytes of data the answer to a request carries, as its head has it: room for these is
    /// taken before the request is begun. The head is anything, and not checked yet. Nothing, unless told
    /// otherwise: what a head of an answer holds is counted with the request.
    fn answer_bytes(&self, _kind: Kind, _head: &[u8]) -> u64 {
        0
    }
}

/// What a server answers: who greets, and which service each kind of request goes to.
pub struct Services {
    greeter: Rc<dyn Greeter>,
    /// By the number of the kind.
    by_kind: Vec<Option<Rc<dyn Begin>>>,
    /// For kinds that are not listed.
    rest: Option<Rc<dyn Begin>>,
    budget: Budget,
}

impl Services {
    /// None yet.
    pub fn new(greeter: Rc<impl Greeter>) -> Services {
        Services { greeter, by_kind: Vec::new(), rest: None, budget: Budget::default() }
    }

    /// One that greets, and answers all kinds of requests.
    pub fn one(service: Rc<impl Greeter + Service>) -> Services {
        Services { rest: Some(Rc::new(Of(service.clone()))), ..Services::new(service) }
    }

    /// Requests of these kinds go to this service.
    #[must_use]
    pub fn serve(mut self, kinds: &[Kind], service: Rc<impl Service>) -> Services {
        let service: Rc<dyn Begin> = Rc::new(Of(service));
        for kind in kinds.iter().map(|kind| *kind as usize) {
            self.by_kind.resize(self.by_kind.len().max(kind + 1), None);
            self.by_kind[kind] = Some(service.clone());
        }
        self
    }

    /// What is owed to all clients counts in this budget, instead of one of the default size.
    #[must_use]
    pub fn within(mut self, budget: Budget) -> Services {
        self.budget = budget;
        self
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    pub(crate) fn greet(&self, hello: &Hello) -> Result<Option<FabricId>, String> {
        self.greeter.greet(hello)
    }

    fn of_kind(&self, kind: Kind) -> Option<&Rc<dyn Begin>> {
        let listed = self.by_kind.get(kind as usize).and_then(Option::as_ref);
        listed.or(self.rest.as_ref())
    }

    /// Bytes of room that a request takes from before its body is read until it is carried out.
    pub(crate) fn cost(&self, front: &Front) -> u32 {
        let Front { envelope, head } = front;
        let service = Kind::from_u16(envelope.kind).and_then(|kind| Some((kind, self.of_kind(kind)?)));
        let answer = service.map_or(0, |(kind, service)| service.answer_bytes(kind, head));
        // No answer is longer than a frame, whatever a head says.
        let answer = answer.min(FRAME_BODY_MAX as u64) as u32;
        memory_of(envelope.body_len as usize) as u32 + answer + ROOM_REQUEST_BYTES
    }

    /// The work that a request is, up to its answer.
    pub(crate) fn begin(&self, call: Call) -> LocalFuture {
        match self.of_kind(call.request.kind) {
            Some(service) => service.begin(call),
            None => {
                let text = format!("this side does not answer {:?}", call.request.kind);
                call.answered(Answer::error(Status::Invalid, text));
                Box::pin(std::future::ready(()))
            }
        }
    }
}

/// A request, and what its answer needs.
pub(crate) struct Call {
    pub(crate) peer: Rc<Peer>,
    pub(crate) request: Request,
    pub(crate) envelope: Envelope,
    pub(crate) size: Size,
    pub(crate) writer: Rc<FrameWriter>,
    pub(crate) in_flight: Rc<InFlight>,
}

impl Call {
    fn answered(self, answer: Answer) {
        if !self.request.one_way {
            send(&self.writer, &self.peer, &self.envelope, answer);
        }
        self.in_flight.end(self.request.one_way, self.size);
    }
}

/// How much a request counts for while it is carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Bytes of its body, against the credit of its connection.
    pub(crate) body: u32,
    /// Bytes that it holds of the room of all connections.
    pub(crate) room: u32,
}

/// A service whose type is not known: each request costs one box, as the work of a known one does.
trait Begin {
    fn begin(&self, call: Call) -> LocalFuture;
    fn answer_bytes(&self, kind: Kind, head: &[u8]) -> u64;
}

struct Of<S>(Rc<S>);

impl<S: Service> Begin for Of<S> {
    fn begin(&self, call: Call) -> LocalFuture {
        let Call { peer, request, envelope, size, writer, in_flight } = call;
        let one_way = request.one_way;
        let work = self.0.clone().handle(peer.clone(), request);
        Box::pin(Answering { work, peer, envelope, one_way, size, writer, in_flight })
    }

    fn answer_bytes(&self, kind: Kind, head: &[u8]) -> u64 {
        self.0.answer_bytes(kind, head)
    }
}

/// Requests of one connection that are being carried out.
pub(crate) struct InFlight {
    /// Those that the credit granted to the peer covers.
    pub(crate) requests: Cell<u32>,
    pub(crate) one_way: Cell<u32>,
    /// Bytes of their bodies.
    pub(crate) bytes: Cell<u32>,
    /// The room that the connection holds.
    pub(crate) share: Rc<Share>,
}

impl InFlight {
    /// Of a connection that holds this share.
    pub(crate) fn new(share: Rc<Share>) -> InFlight {
        let (requests, one_way, bytes) = Default::default();
        InFlight { requests, one_way, bytes, share }
    }

    fn of(&self, one_way: bool) -> &Cell<u32> {
        if one_way { &self.one_way } else { &self.requests }
    }

    /// A request begins, whose room is taken.
    pub(crate) fn begin(&self, one_way: bool, size: Size) {
        self.of(one_way).set(self.of(one_way).get() + 1);
        self.bytes.set(self.bytes.get() + size.body);
    }

    /// It has ended. An answer counts by itself by now.
    fn end(&self, one_way: bool, size: Size) {
        self.of(one_way).set(self.of(one_way).get() - 1);
        self.bytes.set(self.bytes.get() - size.body);
        self.share.give_back(u64::from(size.room));
    }
}

pin_project! {
    // A request that is carried out, until its answer is on its way. Not an `async` block, which would keep
    // what the handler is called with twice.
    struct Answering<F> {
        #[pin]
        work: F,
        peer: Rc<Peer>,
        envelope: Envelope,
        one_way: bool,
        size: Size,
        writer: Rc<FrameWriter>,
        in_flight: Rc<InFlight>,
    }
}

impl<F: Future<Output = Answer>> Future for Answering<F> {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        this.work.poll(cx).map(|answer| {
            if !*this.one_way {
                send(this.writer, this.peer, this.envelope, answer);
            }
            this.in_flight.end(*this.one_way, *this.size);
        })
    }
}

/// Sends the answer to a request. A peer of an older protocol does not hear that a body is blocks.
pub(crate) fn send(writer: &FrameWriter, peer: &Peer, request: &Envelope, answer: Answer) {
    let envelope = Envelope {
        kind: request.kind,
        status: answer.status as u16,
        request: request.request,
        flags: FLAG_ANSWER,
        ..Default::default()
    };
    let body = match peer.protocol < PROTOCOL_OF_BLOCKS {
        true => Body::from(answer.body.into_bufs()),
        false => answer.body,
    };
    writer.send(envelope, &answer.head, body);
}
