//! A connection from the side that answers: one task per request, bounded by the credits granted.

use crate::body::Body;
use crate::frame::{Frame, FrameError};
use crate::frames::{FrameReader, FrameWriter};
use crate::protocol::protocol_newest;
use crate::service::{Answer, Call, InFlight, Peer, Request, Services, Size, send};
use crate::shm::{self, ShmListener};
use crate::transport::Transport;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use weft_rt::sim;
use weft_rt::sync::{Either, race};
use weft_rt::{Budget, Listener, LocalFuture, Share, now, sleep, spawn, spawn_boxed, timeout, yield_now};
use weft_rules::{Mutation, mutated};
use weft_types::limits::{
    CONNECTION_BYTES_MAX, CONNECTION_REQUESTS_MAX, ONE_WAY_REQUESTS_MAX, SHARED_CONNECTIONS_MAX,
};
use weft_wire::frame::{Envelope, FLAG_ANSWER, FLAG_ONE_WAY};
use weft_wire::handshake::{Hello, PeerRole, Welcome, choose_protocol};
use weft_wire::{Kind, Status, control};

/// How long a peer may take to say hello: longer than any honest one needs.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Takes connections and serves each.
pub struct Server;

impl Server {
    /// Serves every connection that the listener takes, for ever.
    pub async fn run(listener: Listener, services: impl Into<Rc<Services>>) {
        Self::take_connections(listener, services.into(), None).await;
    }

    /// The same, and connections through shared memory of processes of this machine, unless
    /// [`shm::set_shared_memory`] says no.
    pub async fn run_with_shared_memory(listener: Listener, services: impl Into<Rc<Services>>) {
        let services = services.into();
        let shared = shm::is_wanted().then(ShmListener::open);
        let refused = |error: &io::Error| tracing::info!(%error, "no connections through shared memory");
        let Some(Ok(shared)) = shared.map(|opened| opened.inspect_err(refused)) else {
            return Self::run(listener, services).await;
        };
        let name: Rc<str> = shared.name().into();
        let taking = spawn(Self::take_shared(shared, services.clone()));
        Self::take_connections(listener, services, Some(name)).await;
        taking.abort();
    }

    async fn take_connections(listener: Listener, services: Rc<Services>, shared: Option<Rc<str>>) {
        loop {
            match listener.accept().await {
                Ok(stream) => {
                    let (services, shared) = (services.clone(), shared.clone());
                    spawn(async move {
                        Self::serve(Transport::Stream(stream), services, shared.as_deref()).await;
                    });
                }
                Err(error) => cannot_take(error).await,
            }
        }
    }

    async fn take_shared(listener: ShmListener, services: Rc<Services>) {
        // Each connection has one more.
        let open = Rc::new(());
        loop {
            match listener.accept().await {
                // One that gets none goes on through its socket.
                Ok(_) if Rc::strong_count(&open) > SHARED_CONNECTIONS_MAX => {
                    tracing::debug!("there are as many connections through shared memory as there may be");
                }
                Ok(end) => {
                    let (services, open) = (services.clone(), open.clone());
                    spawn(async move {
                        Self::serve(Transport::Shared(end), services, None).await;
                        drop(open);
                    });
                }
                Err(error) => cannot_take(error).await,
            }
        }
    }

    /// Serves one connection until it ends.
    async fn serve(transport: Transport, services: Rc<Services>, shared: Option<&str>) {
        let (mut reader, writer) = transport.into_halves();
        let writer = Rc::new(writer);
        if let Some(peer) = greet(&mut reader, &writer, &services, shared).await {
            serve_requests(&mut reader, &writer, peer, &services).await;
        }
        // Answers that are ready still go out: closing is left to the peer, or to the last owner.
        if Rc::strong_count(&writer) == 1 {
            yield_now().await;
        }
        drop(writer);
    }
}

/// Out of file descriptors, most likely: others may close some.
async fn cannot_take(error: io::Error) {
    tracing::warn!(%error, "cannot take a connection");
    sleep(Duration::from_millis(100)).await;
}

async fn greet(
    reader: &mut FrameReader,
    writer: &FrameWriter,
    services: &Services,
    shared: Option<&str>,
) -> Option<Rc<Peer>> {
    let frame = match timeout(HELLO_TIMEOUT, first_frame(reader)).await {
        Ok(Ok(Some(frame))) if frame.envelope.kind == Kind::Hello as u16 => frame,
        Ok(Ok(Some(frame))) => {
            tracing::warn!(kind = frame.envelope.kind, "peer does not begin with a hello");
            return None;
        }
        Ok(Ok(None)) | Err(_) => return None,
        Ok(Err(error)) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "handshake failed");
            return None;
        }
    };
    let welcome = control::decode::<Hello>(&frame.head).map_err(|e| e.to_string()).and_then(|hello| {
        let protocol = choose_protocol(&hello)?.min(protocol_newest());
        let fabric = services.greet(&hello)?;
        let welcome = Welcome {
            protocol,
            fabric,
            requests_max: CONNECTION_REQUESTS_MAX,
            bytes_max: CONNECTION_BYTES_MAX,
            door: shared.map(str::to_owned),
        };
        Ok((hello, welcome))
    });
    let envelope = |status: Status| Envelope {
        kind: Kind::Welcome as u16,
        status: status as u16,
        flags: FLAG_ANSWER,
        ..Default::default()
    };
    match welcome {
        Ok((hello, welcome)) => {
            let protocol = welcome.protocol;
            writer.send(envelope(Status::Ok), &control::encode(&welcome), Body::none());
            Some(Rc::new(Peer { role: hello.role, name: hello.name, protocol, since: now() }))
        }
        Err(reason) => {
            let answer = Answer::error(Status::Refused, reason);
            writer.send(envelope(answer.status), &answer.head, answer.body);
            None
        }
    }
}

/// The first frame. It has no body, for which there is no room yet; with one it ends the connection.
async fn first_frame(reader: &mut FrameReader) -> Result<Option<Frame>, FrameError> {
    let Some(front) = reader.front().await?.filter(|front| front.envelope.body_len == 0) else {
        return Ok(None);
    };
    let body = reader.body(&front).await?;
    Ok(Some(Frame { envelope: front.envelope, head: front.head, body }))
}

async fn serve_requests(
    reader: &mut FrameReader,
    writer: &Rc<FrameWriter>,
    peer: Rc<Peer>,
    services: &Services,
) {
    let share = open_share(services.budget(), &peer, writer);
    writer.count_in(share.clone());
    let in_flight = Rc::new(InFlight::new(share));
    loop {
        // An answer counts until the network has taken it: a peer that does not read is not read from either.
        while in_flight.requests.get() + writer.pending() > CONNECTION_REQUESTS_MAX {
            if writer.is_closed() {
                return;
            }
            reader.pause();
            writer.drained().await;
        }
        let (frame, room) = match take_in(reader, writer, services, &in_flight.share).await {
            Ok(Some(taken)) => taken,
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(peer = peer.name, %error, "connection ends");
                return;
            }
        };
        let one_way = frame.envelope.flags & FLAG_ONE_WAY != 0;
        let Some(kind) = Kind::from_u16(frame.envelope.kind) else {
            let text = format!(
                "request of unknown kind {}: this side speaks an older protocol",
                frame.envelope.kind
            );
            if !one_way {
                send(writer, &peer, &frame.envelope, Answer::error(Status::Invalid, text));
            }
            continue;
        };
        if one_way && in_flight.one_way.get() >= ONE_WAY_REQUESTS_MAX {
            tracing::debug!(peer = peer.name, ?kind, "too many one-way requests at once; one is dropped");
            continue;
        }
        if !one_way && in_flight.requests.get() >= CONNECTION_REQUESTS_MAX {
            tracing::warn!(peer = peer.name, "more requests in flight than granted; closing the connection");
            writer.shutdown();
            return;
        }
        let Frame { envelope, head, body } = frame;
        let size = Size { body: body.len() as u32, room: room.bytes };
        if in_flight.bytes.get() + size.body > CONNECTION_BYTES_MAX {
            tracing::warn!(peer = peer.name, "more bytes in flight than granted; closing the connection");
            writer.shutdown();
            return;
        }
        let landing = writer.landing();
        let request = Request { kind, number: envelope.number(), head, body, one_way, landing };
        room.keep();
        in_flight.begin(one_way, size);
        let (peer, writer, in_flight) = (peer.clone(), writer.clone(), in_flight.clone());
        let mut work = services.begin(Call { peer, request, envelope, size, writer, in_flight });
        if !poll_once(&mut work).await {
            spawn_boxed(work);
        }
    }
}

/// The share of a connection. Clients and tools wait for their turn. What a target or a manager asks may be
/// what others wait for that hold room, so it waits for none (P10).
fn open_share(budget: &Budget, peer: &Rc<Peer>, writer: &FrameWriter) -> Rc<Share> {
    let waits = matches!(peer.role, PeerRole::Client | PeerRole::Tool);
    if !waits && !mutated(Mutation::RoomHeld) {
        return budget.open_apart();
    }
    let (peer, close) = (peer.clone(), writer.closer());
    budget.open(move || {
        tracing::warn!(
            peer = peer.name,
            "peer keeps room from others and moves nothing; closing the connection"
        );
        close();
    })
}

/// The next frame, and the room that was taken for it before its body was read.
async fn take_in<'a>(
    reader: &mut FrameReader,
    writer: &FrameWriter,
    services: &Services,
    share: &'a Rc<Share>,
) -> Result<Option<(Frame, Taken<'a>)>, FrameError> {
    let Some(front) = reader.front().await? else { return Ok(None) };
    let bytes = services.cost(&front);
    if !share.try_take(u64::from(bytes)) {
        reader.pause();
        let ends = race(reader.hung_up(), writer.closed());
        // Boxed so that waiting, which is rare, does not swell the future of the connection.
        let turn = race(share.take(u64::from(bytes)), ends);
        if let Either::Right(_) = Box::pin(turn).await {
            return Ok(None);
        }
    }
    let room = Taken { share, bytes };
    share.arriving.begin(u64::from(front.envelope.body_len));
    let body = reader.body(&front).await;
    share.arriving.end();
    Ok(Some((Frame { envelope: front.envelope, head: front.head, body: body? }, room)))
}

/// Room of a request that is not begun yet.
struct Taken<'a> {
    share: &'a Share,
    bytes: u32,
}

impl Taken<'_> {
    /// It is given back by somebody else.
    fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.share.give_back(u64::from(self.bytes));
    }
}

/// Runs a request up to its first wait, and says whether it has ended: one that is answered from memory then
/// costs no task. Not under simulation, where each request is a task from the start, so that the seed picks
/// its turn.
async fn poll_once(work: &mut LocalFuture) -> bool {
    if sim::is_simulated() {
        return false;
    }
    poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx).is_ready())).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::set_protocol_newest;
    use crate::{CallError, ConnectError, Greeter, Link, Service};
    use std::cell::Cell;
    use std::net::IpAddr;
    use weft_rt::sim::{Sim, reset_connections, spawn_process};
    use weft_rt::sync::join_all;
    use weft_rt::{Addr, Buf, BufMut, Stream, random_below};
    use weft_types::FabricId;
    use weft_types::limits::FRAME_BODY_MAX;
    use weft_wire::PROTOCOL;
    use weft_wire::frame::{FLAG_BLOCKS, MAGIC};

    struct Reverse;

    impl Greeter for Reverse {
        fn greet(&self, hello: &Hello) -> Result<Option<FabricId>, String> {
            if hello.name == "stranger" { Err("strangers are not served".into()) } else { Ok(None) }
        }
    }

    impl Service for Reverse {
        async fn handle(self: Rc<Self>, _: Rc<Peer>, request: Request) -> Answer {
            sleep(Duration::from_micros(random_below(1000))).await;
            if request.head.is_empty() {
                std::future::pending::<()>().await;
            }
            let mut head = request.head.to_vec();
            head.reverse();
            Answer::ok(head, vec![request.body])
        }
    }

    fn addr() -> Addr {
        "10.0.0.1:4800".parse().unwrap()
    }

    async fn start() {
        spawn_process(IpAddr::from([10, 0, 0, 1]), "server", async {
            Server::run(Listener::bind(&addr()).unwrap(), Services::one(Rc::new(Reverse))).await;
        });
        sleep(Duration::from_millis(1)).await;
    }

    #[test]
    fn answers_find_their_requests_whatever_order_they_come_in() {
        Sim::new(4).block_on(async {
            start().await;
            let link = Link::connect(&addr(), &Hello::new(PeerRole::Client, None, "c")).await.unwrap();
            let calls = (0..600usize).map(|i| {
                let link = link.clone();
                async move {
                    let body = Buf::from(vec![i as u8; (i * 37) % 5000]);
                    let head = format!("{i:05}");
                    let frame = link.call(Kind::Read, head.as_bytes(), vec![body.clone()]).await.unwrap();
                    assert!(frame.head.iter().copied().eq(head.bytes().rev()));
                    assert_eq!(frame.body[..], body[..]);
                }
            });
            join_all(calls).await;
        });
    }

    /// Counts what it carries out at once; one-way requests never end, answers are large.
    #[derive(Default)]
    struct Counting {
        requests: Cell<u32>,
        one_way: Cell<u32>,
    }

    impl Greeter for Counting {
        fn greet(&self, _: &Hello) -> Result<Option<FabricId>, String> {
            Ok(None)
        }
    }

    impl Service for Counting {
        async fn handle(self: Rc<Self>, _: Rc<Peer>, request: Request) -> Answer {
            if request.one_way {
                self.one_way.set(self.one_way.get() + 1);
                std::future::pending::<()>().await;
            }
            self.requests.set(self.requests.get() + 1);
            sleep(Duration::from_millis(1)).await;
            Answer::ok(request.head.to_vec(), vec![Buf::zeroes(64 * 1024)])
        }
    }

    async fn start_counting() -> Rc<Counting> {
        let counting = Rc::new(Counting::default());
        let handler = counting.clone();
        spawn_process(IpAddr::from([10, 0, 0, 1]), "server", async {
            Server::run(Listener::bind(&addr()).unwrap(), Services::one(handler)).await;
        });
        sleep(Duration::from_millis(1)).await;
        counting
    }

    #[test]
    fn one_way_requests_are_bounded_and_take_nobodys_credit() {
        Sim::new(7).block_on(async {
            let counting = start_counting().await;
            let link = Link::connect(&addr(), &Hello::new(PeerRole::Client, None, "c")).await.unwrap();
            let calls = (0..2 * CONNECTION_REQUESTS_MAX).map(|_| {
                link.cast(Kind::Watermark, b"note");
                link.call(Kind::Read, b"r", vec![])
            });
            for answer in join_all(calls).await {
                assert!(answer.is_ok(), "an honest connection was closed");
            }
            assert_eq!(counting.one_way.get(), ONE_WAY_REQUESTS_MAX);
        });
    }

    #[test]
    fn a_peer_that_does_not_read_is_not_read_from() {
        Sim::new(8).block_on(async {
            let counting = start_counting().await;
            let stream = Stream::connect(&addr()).await.unwrap();
            let writer = FrameWriter::new(stream.clone());
            let hello = control::encode(&Hello::new(PeerRole::Client, None, "c"));
            writer.send(Envelope { kind: Kind::Hello as u16, ..Default::default() }, &hello, Body::none());
            for request in 0..3000 {
                // Slow enough that no more than the credit are carried out at once.
                sleep(Duration::from_micros(100)).await;
                writer.send(
                    Envelope { kind: Kind::Read as u16, request, ..Default::default() },
                    b"r",
                    Body::none(),
                );
            }
            sleep(Duration::from_secs(1)).await;
            // 4 MiB fit the simulated socket, in answers of 64 KiB; the credit's worth waits behind them.
            let carried_out = counting.requests.get();
            assert!(carried_out < 2 * CONNECTION_REQUESTS_MAX, "{carried_out} answers are held");
        });
    }

    /// Whether a peer is still served after so many requests at once with the longest bodies, which nobody
    /// answers, and one that is answered.
    async fn is_served_after(long: usize) -> bool {
        let stream = Stream::connect(&addr()).await.unwrap();
        let (mut reader, writer) = (FrameReader::new(stream.clone()), FrameWriter::new(stream));
        let hello = control::encode(&Hello::new(PeerRole::Client, None, "c"));
        writer.send(Envelope { kind: Kind::Hello as u16, ..Default::default() }, &hello, Body::none());
        assert_eq!(reader.next().await.unwrap().unwrap().envelope.kind, Kind::Welcome as u16);
        let ask = |head: &[u8], body: Buf| {
            let (head_len, body_len) = (head.len() as u32, body.len() as u32);
            let kind = Kind::Write as u16;
            writer.send(Envelope { kind, head_len, body_len, ..Default::default() }, head, body.into());
        };
        (0..long).for_each(|_| ask(b"", Buf::zeroes(FRAME_BODY_MAX)));
        ask(b"last", Buf::zeroes(4096));
        matches!(reader.next().await, Ok(Some(frame)) if &frame.head[..] == b"tsal")
    }

    #[test]
    fn whoever_sends_more_bytes_than_were_granted_is_sent_away() {
        Sim::new(9).block_on(async {
            start().await;
            let most = CONNECTION_BYTES_MAX as usize / FRAME_BODY_MAX;
            assert!(is_served_after(most - 1).await);
            assert!(!is_served_after(most).await);
        });
    }

    struct Numbers;

    impl Greeter for Numbers {
        fn greet(&self, _: &Hello) -> Result<Option<FabricId>, String> {
            Ok(None)
        }
    }

    impl Service for Numbers {
        async fn handle(self: Rc<Self>, _: Rc<Peer>, request: Request) -> Answer {
            Answer::ok(request.number.to_le_bytes().to_vec(), vec![])
        }
    }

    #[test]
    fn the_number_of_a_request_arrives_and_may_be_given_twice() {
        Sim::new(8).block_on(async {
            spawn_process(IpAddr::from([10, 0, 0, 1]), "server", async {
                Server::run(Listener::bind(&addr()).unwrap(), Services::one(Rc::new(Numbers))).await;
            });
            sleep(Duration::from_millis(1)).await;
            let link = Link::connect(&addr(), &Hello::new(PeerRole::Client, None, "c")).await.unwrap();
            for numbers in [[7, 7], [u32::MAX, 1]] {
                let (first, second) = (
                    link.send(Kind::Read, numbers[0], b"", Body::none()).await.unwrap(),
                    link.send(Kind::Read, numbers[1], b"", Body::none()).await.unwrap(),
                );
                for (answer, number) in [(second.await, numbers[1]), (first.await, numbers[0])] {
                    assert_eq!(answer.unwrap().head[..], number.to_le_bytes());
                }
            }
            assert_eq!(link.call(Kind::Read, b"", vec![]).await.unwrap().head[..], [0; 4]);
        });
    }

    /// Answers with its own name.
    struct Named(&'static str);

    impl Greeter for Named {
        fn greet(&self, _: &Hello) -> Result<Option<FabricId>, String> {
            Ok(None)
        }
    }

    impl Service for Named {
        async fn handle(self: Rc<Self>, _: Rc<Peer>, _: Request) -> Answer {
            Answer::ok(self.0.into(), Body::blocks(vec![Buf::zeroes(4096)]))
        }
    }

    #[test]
    fn each_kind_goes_to_its_service_and_others_are_refused() {
        Sim::new(10).block_on(async {
            let (reads, writes) = (Rc::new(Named("reads")), Rc::new(Named("writes")));
            let services = Services::new(reads.clone());
            let services = services.serve(&[Kind::Read, Kind::Versions], reads).serve(&[Kind::Write], writes);
            spawn(Server::run(Listener::bind(&addr()).unwrap(), services));
            let link = Link::connect(&addr(), &Hello::new(PeerRole::Client, None, "c")).await.unwrap();
            for (kind, name) in [(Kind::Versions, "reads"), (Kind::Read, "reads"), (Kind::Write, "writes")] {
                assert_eq!(link.call(kind, b"", vec![]).await.unwrap().head[..], *name.as_bytes());
            }
            // Of a number below those that are listed, and above them.
            for kind in [Kind::Hello, Kind::Api] {
                let error = link.call(kind, b"", vec![]).await.unwrap_err();
                assert_eq!(error.status(), Some(Status::Invalid));
                assert!(error.text().contains("does not answer"), "{error}");
            }
            assert!(link.call(Kind::Read, b"", vec![]).await.is_ok(), "the connection goes on");
        });
    }

    #[test]
    fn only_peers_that_know_the_flag_hear_that_a_body_is_blocks() {
        Sim::new(11).block_on(async {
            spawn(Server::run(Listener::bind(&addr()).unwrap(), Services::one(Rc::new(Named("n")))));
            for protocol in [1, 2] {
                // A client's side, byte by byte.
                let stream = Stream::connect(&addr()).await.unwrap();
                let (mut reader, writer) = (FrameReader::new(stream.clone()), FrameWriter::new(stream));
                let hello = Hello { protocol_newest: protocol, ..Hello::new(PeerRole::Client, None, "c") };
                let ask = |kind: Kind, head: &[u8]| {
                    writer.send(Envelope { kind: kind as u16, ..Default::default() }, head, Body::none());
                };
                ask(Kind::Hello, &control::encode(&hello));
                ask(Kind::Read, b"");
                let mut flags = Vec::new();
                for _ in 0..2 {
                    flags.push(reader.next().await.unwrap().unwrap().envelope.flags);
                }
                let blocks = if protocol == 1 { 0 } else { FLAG_BLOCKS };
                assert_eq!(flags, [FLAG_ANSWER, FLAG_ANSWER | blocks], "protocol {protocol}");
                // A server's side.
                let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
                let at = listener.local_addr();
                let serving = spawn(async move {
                    let stream = listener.accept().await.unwrap();
                    let (mut reader, writer) = (FrameReader::new(stream.clone()), FrameWriter::new(stream));
                    reader.next().await.unwrap().unwrap();
                    let (requests_max, bytes_max) = (4, 1 << 20);
                    let welcome = Welcome { protocol, fabric: None, requests_max, bytes_max, door: None };
                    let envelope =
                        Envelope { kind: Kind::Welcome as u16, flags: FLAG_ANSWER, ..Default::default() };
                    writer.send(envelope, &control::encode(&welcome), Body::none());
                    reader.next().await.unwrap().unwrap().envelope.flags
                });
                let link = Link::connect(&at, &Hello::new(PeerRole::Client, None, "c")).await.unwrap();
                let write = Body::blocks(vec![Buf::zeroes(4096)]);
                assert!(matches!(link.call(Kind::Write, b"w", write).await, Err(CallError::Broken)));
                assert_eq!(serving.await.unwrap(), blocks, "protocol {protocol}");
            }
        });
    }

    #[test]
    fn a_lost_connection_fails_what_is_in_flight() {
        Sim::new(5).block_on(async {
            start().await;
            let link = Link::connect(&addr(), &Hello::new(PeerRole::Client, None, "c")).await.unwrap();
            let waiting = link.clone();
            let call = spawn(async move { waiting.call(Kind::Read, b"", vec![]).await.err() });
            sleep(Duration::from_millis(5)).await;
            reset_connections(IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 0, 0, 1]));
            assert!(matches!(call.await, Ok(Some(CallError::Broken))));
            link.closed().await;
        });
    }

    #[test]
    fn the_newest_protocol_that_both_sides_speak_is_spoken() {
        Sim::new(8).block_on(async {
            start().await;
            let hello = Hello::new(PeerRole::Client, None, "c");
            let newest = Link::connect(&addr(), &hello).await.unwrap();
            assert_eq!(newest.protocol(), PROTOCOL);
            let former = Hello { protocol_newest: 1, ..hello.clone() };
            assert_eq!(Link::connect(&addr(), &former).await.unwrap().protocol(), 1);
            let next = Hello { protocol_newest: PROTOCOL + 7, ..hello.clone() };
            assert_eq!(Link::connect(&addr(), &next).await.unwrap().protocol(), PROTOCOL);
            // A server of the former release.
            let host = IpAddr::from([10, 0, 0, 9]);
            let at: Addr = "10.0.0.9:4800".parse().unwrap();
            let listens = at.clone();
            let process = spawn_process(host, "former", async move {
                Server::run(Listener::bind(&listens).unwrap(), Services::one(Rc::new(Reverse))).await;
            });
            set_protocol_newest(process, 1);
            sleep(Duration::from_millis(1)).await;
            assert_eq!(Link::connect(&at, &hello).await.unwrap().protocol(), 1);
        });
    }

    #[test]
    fn strangers_and_garbage_are_refused() {
        Sim::new(6).block_on(async {
            start().await;
            let refused = Link::connect(&addr(), &Hello::new(PeerRole::Client, None, "stranger")).await;
            assert!(matches!(refused.err(), Some(ConnectError::Refused { reason, .. }) if reason.contains("not served")));
            let newer = Hello { protocol_oldest: 99, protocol_newest: 99, ..Hello::new(PeerRole::Client, None, "c") };
            let refused = Link::connect(&addr(), &newer).await;
            assert!(matches!(refused.err(), Some(ConnectError::Refused { reason, .. }) if reason.contains("upgrade")));
            let garbage = Stream::connect(&addr()).await.unwrap();
            let mut bytes = vec![0xff; 4096];
            bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
            garbage.write(vec![Buf::from(bytes)]).await.unwrap();
            let (n, _) = garbage.read(BufMut::aligned(16), 0).await;
            assert!(matches!(n, Ok(0) | Err(_)), "the server hangs up");
        });
    }
}
