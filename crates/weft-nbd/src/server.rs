//! Takes connections, leads each through handshake and transmission, and ends them gracefully.

use crate::connection::ReplyWriter;
use crate::error::ConnectionError;
use crate::lane::{Arrival, LaneConnections, LaneDoor, LanePost, LaneSeat, LaneTable};
use crate::negotiate::{Agreement, negotiate};
use crate::transmit::transmit;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;
use weft_client::export::{Credits, Drain, Entered, Exports};
use weft_rt::sync::{Either, race};
use weft_rt::{Budget, ByteReader, JoinHandle, Listener, Share, Stream, sleep, spawn, timeout};
use weft_types::limits::{
    NBD_CONNECTION_BYTES_MAX, NBD_CONNECTION_REQUESTS_MAX, NBD_CONNECTIONS_MAX, NBD_ROOM_BYTES_MAX,
};
use weft_types::with_causes;

/// How long a client may take to choose an export: it needs milliseconds, a person typing options a little
/// more.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the last replies may take to leave when a connection ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// How often in a row, at one look a second, a client may be seen to move nothing while it keeps room from
/// others. Much longer than a target has patience: a driver does not connect again by itself, and a guest
/// sees errors.
const LOOKS_UNMOVED: u64 = 30;

/// How long to wait before connections are taken again after an error: others may close some files meanwhile.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Serves exports over NBD. Clones are the same server: one may run on several listeners, while another waits
/// to stop it.
#[derive(Clone)]
pub struct NbdServer(Rc<Shared>);

struct Shared {
    exports: Exports,
    drain: Drain,
    /// What is owed to all clients together.
    budget: Budget,
    /// The number of the next connection, for the log.
    next: Cell<u64>,
    /// Which threads serve connections that this server has taken, and how many.
    lanes: RefCell<LaneTable>,
}

impl NbdServer {
    /// A server of these exports, not yet running. Its clients may have [`NBD_ROOM_BYTES_MAX`] bytes of data
    /// in flight together.
    pub fn new(exports: Exports) -> NbdServer {
        NbdServer::with_room(exports, NBD_ROOM_BYTES_MAX)
    }

    /// The same, with so many bytes instead. Half of them is set apart: each connection has its part of it,
    /// whatever others do.
    ///
    /// # Panics
    /// If it is none.
    pub fn with_room(exports: Exports, bytes: u64) -> NbdServer {
        let drain = Drain::new(NBD_CONNECTIONS_MAX);
        let own = bytes / 2 / NBD_CONNECTIONS_MAX as u64;
        let budget = Budget::new(bytes, own, NBD_CONNECTIONS_MAX).with_patience(LOOKS_UNMOVED);
        let lanes = RefCell::new(LaneTable::new(exports.names()));
        NbdServer(Rc::new(Shared { exports, drain, budget, next: Cell::new(1), lanes }))
    }

    /// Has another thread serve some of the connections to these exports: those for which it has the fewest
    /// connections when the handshake is over. That thread runs [`NbdServer::run_lane`] with the other end
    /// of the lane. Not under simulation.
    pub fn add_lane(&self, door: LaneDoor, exports: Vec<String>) {
        let LaneDoor { posts, mut ended } = door;
        let number = self.0.lanes.borrow_mut().add(posts, exports);
        let shared = Rc::downgrade(&self.0);
        spawn(async move {
            while let Some(connection) = ended.next().await {
                let Some(shared) = shared.upgrade() else { return };
                shared.lanes.borrow_mut().ended(connection);
            }
            shared.upgrade().iter().for_each(|shared| shared.lanes.borrow_mut().gone(number));
        });
    }

    /// Serves the connections that arrive at this lane, from a server that accepts on another thread, until
    /// that server stops or is gone. Then it stops in the same way ([`NbdServer::stop`]). The exports of
    /// this server are the same volumes as those of the other one, by lanes of their attaches.
    pub async fn run_lane(&self, seat: LaneSeat) {
        let LaneSeat { mut posts, left } = seat;
        while let Some(LanePost::Arrived(arrival)) = posts.next().await {
            let (shared, left, number) = (self.0.clone(), left.clone(), arrival.number);
            // The other server has counted it.
            let entered = shared.drain.enter();
            spawn(async move {
                if let Some(entered) = entered {
                    serve_arrival(arrival, &shared, entered).await;
                }
                // A server that is gone counts nothing.
                let _ = left.post(number);
            });
        }
        self.stop().await;
    }

    /// Takes and serves connections until [`NbdServer::stop`]; the listener is closed then. May be called for
    /// several listeners at once. Connections over the server's limit of 128 are closed unserved.
    pub async fn run(&self, listener: Listener) {
        let shared = &self.0;
        loop {
            match race(shared.drain.begun(), listener.accept()).await {
                Either::Left(()) => return,
                Either::Right(Ok(stream)) => match shared.drain.enter() {
                    Some(entered) => drop(spawn(serve(stream, shared.clone(), entered))),
                    None => {
                        tracing::warn!(
                            max = NBD_CONNECTIONS_MAX,
                            "too many NBD connections; closing a new one"
                        );
                    }
                },
                Either::Right(Err(error)) => {
                    tracing::warn!(%error, "cannot take an NBD connection");
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    /// Stops: no new connections; requests in flight are finished, later ones answered with `ESHUTDOWN`;
    /// connections are closed when they are idle. Returns when all have ended, after
    /// [`weft_client::export::STOP_MAX`] at most; only an operation that takes longer is waited for.
    /// Afterwards nothing uses the volumes any more, and they can be detached.
    pub async fn stop(&self) {
        self.0.drain.begin();
        self.0.lanes.borrow().stop();
        self.0.drain.done().await;
    }

    /// Connections that are open now, also those that other lanes serve.
    pub fn connections(&self) -> usize {
        self.0.drain.clients()
    }

    /// Open connections of clients that have chosen an export, by lane and export.
    pub fn lane_connections(&self) -> Vec<LaneConnections> {
        self.0.lanes.borrow().connections()
    }
}

/// A connection that this thread reads and writes.
struct Connection {
    number: u64,
    stream: Stream,
    reader: ByteReader,
    writer: Rc<ReplyWriter>,
    credits: Rc<Credits>,
    entered: Rc<Entered>,
    /// Closes the connection once the server stops and the client is idle.
    closing: JoinHandle<()>,
}

impl Connection {
    /// A connection of which these bytes were read before.
    fn open(stream: Stream, ahead: &[u8], number: u64, shared: &Shared, entered: Entered) -> Connection {
        let entered = Rc::new(entered);
        let share = open_share(&shared.budget, number, &stream);
        let credits =
            Rc::new(Credits::new(NBD_CONNECTION_REQUESTS_MAX, NBD_CONNECTION_BYTES_MAX, share.clone()));
        let writer = Rc::new(ReplyWriter::new(stream.clone(), share));
        let closing = {
            let (stream, entered, credits) = (stream.clone(), entered.clone(), credits.clone());
            spawn(async move {
                entered.is_to_go(&credits).await;
                stream.shutdown();
            })
        };
        let reader = ByteReader::with_ahead(stream.clone(), ahead);
        Connection { number, stream, reader, writer, credits, entered, closing }
    }

    /// Agrees with the client on an export; `None` if the client wants no more.
    async fn negotiate(&mut self, shared: &Shared) -> Result<Option<Agreement>, ConnectionError> {
        let negotiated =
            timeout(HANDSHAKE_TIMEOUT, negotiate(&mut self.reader, &self.writer, &shared.exports));
        negotiated.await.unwrap_or(Err(ConnectionError::HandshakeTimeout))
    }

    async fn transmit(&mut self, agreed: Agreement) -> Result<(), ConnectionError> {
        let client = agreed.export.client(&format!("NBD connection {}", self.number));
        tracing::info!(
            number = self.number,
            export = agreed.export.name(),
            structured = agreed.is_structured,
            block_status = agreed.has_allocation,
            "NBD client begins"
        );
        let entered = self.entered.clone();
        transmit(&mut self.reader, self.writer.clone(), agreed, client, &self.credits, entered).await
    }

    async fn end(self, outcome: Result<(), ConnectionError>) {
        let number = self.number;
        match outcome {
            Ok(()) => tracing::debug!(number, "NBD connection ends"),
            Err(error) => tracing::info!(number, error = with_causes(&error), "NBD connection ends"),
        }
        // A client that does not read must not keep the connection.
        let _ = timeout(FINISH_TIMEOUT, self.writer.finish()).await;
        self.closing.abort();
        self.stream.shutdown();
    }

    /// Takes the connection apart for another thread, once the client has been answered.
    async fn hand_over(self, agreed: &Agreement) -> io::Result<(Arrival, Rc<Entered>)> {
        let Connection { number, stream, reader, writer, credits, entered, closing } = self;
        let is_answered = timeout(FINISH_TIMEOUT, writer.finish()).await.is_ok();
        closing.abort();
        // The tasks that are over let go of what they share.
        drop((writer, credits));
        let handed = async {
            if !is_answered {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let ahead = reader.into_ahead().await?;
            let socket = stream.socket().ok_or(io::ErrorKind::Unsupported)?.try_clone_to_owned()?;
            Ok(Arrival::new(number, socket, ahead, agreed))
        };
        match handed.await {
            Ok(arrival) => Ok((arrival, entered)),
            Err(error) => {
                stream.shutdown();
                Err(error)
            }
        }
    }
}

/// Serves one connection to its end, or to where another lane goes on.
async fn serve(stream: Stream, shared: Rc<Shared>, entered: Entered) {
    let number = shared.next.replace(shared.next.get() + 1);
    tracing::debug!(number, "NBD connection begins");
    let mut connection = Connection::open(stream, &[], number, &shared, entered);
    let agreed = match connection.negotiate(&shared).await {
        Ok(Some(agreed)) => agreed,
        Ok(None) => return connection.end(Ok(())).await,
        Err(error) => return connection.end(Err(error)).await,
    };
    let export = agreed.export.name().to_owned();
    let lane = shared.lanes.borrow_mut().enter(&export);
    let posts = shared.lanes.borrow().posts(lane);
    match posts {
        // A lane that stops takes no connection any more.
        Some(posts) if shared.drain.since().is_none() => {
            pass_on(connection, &agreed, lane, &posts, &shared).await;
        }
        _ => {
            let outcome = connection.transmit(agreed).await;
            connection.end(outcome).await;
            shared.lanes.borrow_mut().leave(lane, &export);
        }
    }
}

/// Posts a connection to the lane that serves it from here on.
async fn pass_on(
    connection: Connection,
    agreed: &Agreement,
    lane: usize,
    posts: &weft_rt::Poster<LanePost>,
    shared: &Shared,
) {
    let (number, export) = (connection.number, agreed.export.name());
    let passed = match connection.hand_over(agreed).await {
        Ok((arrival, entered)) if shared.drain.since().is_none() => {
            // Counted before the lane can say that it has ended.
            shared.lanes.borrow_mut().sent(number, lane, export, entered);
            match posts.post(LanePost::Arrived(arrival)) {
                Ok(()) => {
                    tracing::debug!(number, lane, export, "NBD connection is passed to its lane");
                    return;
                }
                Err(_) => {
                    shared.lanes.borrow_mut().ended(number);
                    return tracing::warn!(
                        number,
                        lane,
                        export,
                        "the lane of an NBD connection is gone; closing"
                    );
                }
            }
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    shared.lanes.borrow_mut().leave(lane, export);
    match passed {
        Ok(()) => tracing::debug!(number, "the server stops; closing an NBD connection"),
        Err(error) => {
            tracing::info!(number, lane, export, %error, "NBD connection ends before its lane has it")
        }
    }
}

/// Serves a connection that another thread has taken.
async fn serve_arrival(arrival: Arrival, shared: &Shared, entered: Entered) {
    let Arrival { number, socket, ahead, export, is_structured, has_allocation } = arrival;
    let mut connection = Connection::open(Stream::of(socket), &ahead, number, shared, entered);
    let outcome = match shared.exports.find(&export) {
        Some(export) => connection.transmit(Agreement { export, is_structured, has_allocation }).await,
        None => Err(ConnectionError::NoSuchExport { name: export }),
    };
    connection.end(outcome).await;
}

/// The connection's share of what is owed to all clients.
fn open_share(budget: &Budget, number: u64, stream: &Stream) -> Rc<Share> {
    let stream = stream.clone();
    budget.open(move || {
        tracing::warn!(number, "NBD client keeps room from others and moves nothing; closing the connection");
        stream.shutdown();
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::*;
    use crate::talk::{Bed, Reply, TestClient};
    use weft_client::export::STOP_MAX;
    use weft_client::{AttachMode, ClientError};
    use weft_rt::sim::Sim;
    use weft_rt::{Buf, now, random_below};
    use weft_types::GroupId;

    const SIZE: usize = 16 << 20;

    #[test]
    fn a_write_is_read_back_in_both_styles_and_on_another_connection() {
        Sim::new(1).block_on(async {
            let bed = Bed::start(SIZE, AttachMode::Exclusive);
            let data: Vec<u8> = (0..70_000u32 / 512 * 512).map(|i| (i % 251) as u8).collect();
            let at = (512, data.len() as u32);
            let mut simple = bed.client(false).await;
            assert_eq!(simple.errno(NBD_CMD_WRITE, NBD_CMD_FLAG_FUA, at, &data).await, 0);
            simple.request(NBD_CMD_READ, 0, 5, at, &[]).await;
            assert_eq!(simple.reply().await, Some(Reply::Simple { cookie: 5, error: 0 }));
            assert_eq!(simple.reader.take(data.len()).await.unwrap()[..], data);
            let mut structured = bed.client(true).await;
            structured.request(NBD_CMD_READ, NBD_CMD_FLAG_DF, 6, at, &[]).await;
            let payload = [&512u64.to_be_bytes()[..], &data].concat();
            let kind = NBD_REPLY_TYPE_OFFSET_DATA;
            assert_eq!(
                structured.reply().await,
                Some(Reply::Chunk { cookie: 6, kind, is_last: true, payload })
            );
            structured.request(NBD_CMD_DISC, 0, 0, (0, 0), &[]).await;
            assert!(structured.is_closed().await);
        });
    }

    #[test]
    fn zeroes_travel_as_holes_and_show_in_the_block_status() {
        Sim::new(2).block_on(async {
            let bed = Bed::start(SIZE, AttachMode::Shared);
            let mut client = bed.client(true).await;
            assert_eq!(client.errno(NBD_CMD_WRITE, 0, (8192, 4096), &[7; 4096]).await, 0);
            client.request(NBD_CMD_READ, 0, 1, (0, 1 << 20), &[]).await;
            let first = client.reply().await.unwrap();
            assert!(
                matches!(&first, Reply::Chunk { kind: NBD_REPLY_TYPE_OFFSET_DATA, is_last: false, payload, .. }
                if payload.len() == 8 + 3 * 4096)
            );
            let payload = [&12_288u64.to_be_bytes()[..], &((1u32 << 20) - 12_288).to_be_bytes()].concat();
            let hole = Reply::Chunk { cookie: 1, kind: NBD_REPLY_TYPE_OFFSET_HOLE, is_last: true, payload };
            assert_eq!(client.reply().await, Some(hole));
            let words = |words: &[u32]| words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<u8>>();
            let all = words(&[1, 8192, 3, 4096, 0, SIZE as u32 - 12_288, 3]);
            for (flags, payload) in [(0, all), (NBD_CMD_FLAG_REQ_ONE, words(&[1, 8192, 3]))] {
                client.request(NBD_CMD_BLOCK_STATUS, flags, 2, (0, SIZE as u32), &[]).await;
                let kind = NBD_REPLY_TYPE_BLOCK_STATUS;
                assert_eq!(client.reply().await, Some(Reply::Chunk { cookie: 2, kind, is_last: true, payload }));
            }
            assert_eq!(client.errno(NBD_CMD_TRIM, 0, (8192, 4096), &[]).await, 0);
            assert!(bed.volume.bytes.borrow().iter().all(|b| *b == 0));
        });
    }

    #[test]
    fn bad_requests_are_answered_and_the_connection_goes_on() {
        Sim::new(3).block_on(async {
            let bed = Bed::start(SIZE, AttachMode::Shared);
            for structured in [false, true] {
                let mut client = bed.client(structured).await;
                let end = SIZE as u64;
                assert_eq!(client.errno(NBD_CMD_WRITE, 0, (512, 4096), &[1; 4096]).await, NBD_EINVAL.0);
                assert_eq!(client.errno(NBD_CMD_WRITE, 0, (end, 4096), &[1; 4096]).await, NBD_ENOSPC.0);
                assert_eq!(client.errno(NBD_CMD_READ, 0, (end, 4096), &[]).await, NBD_EINVAL.0);
                assert_eq!(client.errno(NBD_CMD_READ, 0, (u64::MAX, 4096), &[]).await, NBD_EINVAL.0);
                assert_eq!(client.errno(99, 0, (0, 4096), &[]).await, NBD_EINVAL.0);
                assert_eq!(client.errno(NBD_CMD_CACHE, 0, (0, 4096), &[]).await, 0);
                assert_eq!(client.errno(NBD_CMD_FLUSH, NBD_CMD_FLAG_FUA, (0, 0), &[]).await, 0);
                let fast = NBD_CMD_FLAG_FAST_ZERO | NBD_CMD_FLAG_NO_HOLE;
                assert_eq!(client.errno(NBD_CMD_WRITE_ZEROES, fast, (0, 4096), &[]).await, 0);
            }
            assert!(bed.volume.bytes.borrow().iter().all(|b| *b == 0));
        });
    }

    #[test]
    fn the_volume_s_errors_reach_the_client() {
        Sim::new(4).block_on(async {
            let bed = Bed::start(SIZE, AttachMode::Exclusive);
            let mut client = bed.client(true).await;
            *bed.volume.failing.borrow_mut() = Some(|| ClientError::NoSpace { group: GroupId(3) });
            client.request(NBD_CMD_WRITE, 0, 1, (0, 512), &[1; 512]).await;
            let Some(Reply::Chunk { kind, is_last: true, payload, .. }) = client.reply().await else {
                panic!("a failure is one chunk")
            };
            assert_eq!((kind, &payload[..4]), (NBD_REPLY_TYPE_ERROR, &NBD_ENOSPC.0.to_be_bytes()[..]));
            let text = String::from_utf8_lossy(&payload[6..]).into_owned();
            assert!(text.contains("are full") && text.contains("hint"), "{text}");
            *bed.volume.failing.borrow_mut() =
                Some(|| ClientError::Fenced { volume: "v".into(), why: "it was deleted".into() });
            assert_eq!(client.errno(NBD_CMD_READ, 0, (0, 512), &[]).await, NBD_ESHUTDOWN.0);
            assert_eq!(client.errno(NBD_CMD_FLUSH, 0, (0, 0), &[]).await, NBD_ESHUTDOWN.0);
            let mut late = TestClient::connect(&bed.addr).await;
            late.option(NBD_OPT_GO, &[0; 6]).await;
            assert_eq!(late.option_reply().await.0, NBD_REP_ERR_SHUTDOWN);
        });
    }

    /// libnbd and others look for the request that a reply belongs to among those that they have
    /// sent in full, and end the connection if it is not there.
    async fn refused_after_its_data(client: &mut TestClient, at: (u64, u32)) -> u32 {
        const PART: usize = 4096;
        let header =
            RequestHeader { flags: 0, command: NBD_CMD_WRITE, cookie: Cookie(5), offset: at.0, length: at.1 };
        let data = vec![1; at.1 as usize];
        client.send(&[&header.encode()[..], &data[PART..]].concat()).await;
        let stream = client.stream.clone();
        let rest = spawn(async move {
            sleep(Duration::from_secs(1)).await;
            stream.write(vec![Buf::from(&data[..PART])]).await
        });
        let reply = client.reply().await.expect("a reply");
        assert!(rest.is_finished(), "{reply:?} came before the data of the write was sent");
        match reply {
            Reply::Simple { cookie: 5, error } => error,
            Reply::Chunk { cookie: 5, kind: NBD_REPLY_TYPE_ERROR, is_last: true, payload } => {
                u32::from_be_bytes(payload[..4].try_into().expect("four bytes"))
            }
            other => panic!("{other:?} is no refusal"),
        }
    }

    #[test]
    fn a_refused_write_is_answered_after_its_data() {
        Sim::new(11).block_on(async {
            let end = SIZE as u64;
            for structured in [false, true] {
                let bed = Bed::start(SIZE, AttachMode::Shared);
                let mut client = bed.client(structured).await;
                for (at, errno) in [
                    ((512, 1 << 20), NBD_EINVAL),
                    ((end - 4096, 1 << 20), NBD_ENOSPC),
                    ((end, 4 << 20), NBD_ENOSPC),
                    // More than was advertised, and little enough to read past.
                    ((0, 33 << 20), NBD_ENOSPC),
                    ((512, 64 << 20), NBD_EINVAL),
                ] {
                    assert_eq!(refused_after_its_data(&mut client, at).await, errno.0, "{at:?}");
                }
                assert_eq!(client.errno(NBD_CMD_FLUSH, 0, (0, 0), &[]).await, 0);
                let read_only = Bed::start(SIZE, AttachMode::ReadOnly);
                let mut client = read_only.client(structured).await;
                assert_eq!(refused_after_its_data(&mut client, (0, 1 << 20)).await, NBD_EPERM.0);
                assert_eq!(client.errno(NBD_CMD_FLUSH, 0, (0, 0), &[]).await, 0);
            }
        });
    }

    #[test]
    fn a_stopping_server_refuses_a_write_after_its_data() {
        Sim::new(12).block_on(async {
            let bed = Bed::start(SIZE, AttachMode::Exclusive);
            let mut client = bed.client(true).await;
            let server = bed.server.clone();
            let stopping = spawn(async move { server.stop().await });
            sleep(Duration::from_millis(10)).await;
            // The rest of its data is a second away: the connection does not count as idle until it
            // is there.
            assert_eq!(refused_after_its_data(&mut client, (0, 1 << 20)).await, NBD_ESHUTDOWN.0);
            assert!(client.is_closed().await);
            assert_eq!(stopping.await, Ok(()));
            assert!(bed.volume.bytes.borrow().iter().all(|b| *b == 0));
        });
    }

    #[test]
    fn writes_to_a_read_only_export_are_not_permitted() {
        Sim::new(5).block_on(async {
            let bed = Bed::start(SIZE, AttachMode::ReadOnly);
            let mut client = bed.client(false).await;
            for command in [NBD_CMD_TRIM, NBD_CMD_WRITE_ZEROES] {
                assert_eq!(client.errno(command, 0, (0, 4096), &[]).await, NBD_EPERM.0);
            }
            assert_eq!(client.errno(NBD_CMD_WRITE, 0, (0, 4096), &[1; 4096]).await, NBD_EPERM.0);
        });
    }

    #[test]
    fn a_client_that_vanishes_inside_a_write_leaves_nothing_of_it() {
        Sim::new(6).block_on(async {
            let bed = Bed::start(SIZE, AttachMode::Exclusive);
            let client = bed.client(false).await;
            client.request(NBD_CMD_WRITE, 0, 1, (0, 1 << 20), &[9; 4096 * 100]).await;
            drop(client);
            sleep(Duration::from_secs(1)).await;
            assert_eq!(bed.server.connections(), 0);
            assert!(bed.volume.bytes.borrow().iter().all(|b| *b == 0));
        });
    }

    #[test]
    fn what_a_client_had_in_flight_is_given_up_when_it_is_gone_and_finished_when_it_says_that_it_leaves() {
        for says in [false, true] {
            Sim::new(16).block_on(async move {
                let bed = Bed::start(SIZE, AttachMode::Exclusive);
                bed.volume.delay_max.set(Duration::from_secs(20));
                let client = bed.client(false).await;
                for cookie in 0..200 {
                    client.request(NBD_CMD_WRITE, 0, cookie, (cookie * 4096, 4096), &[7; 4096]).await;
                }
                if says {
                    client.request(NBD_CMD_DISC, 0, 0, (0, 0), &[]).await;
                }
                sleep(Duration::from_millis(100)).await;
                let before = bed.volume.bytes.borrow().iter().filter(|b| **b == 7).count();
                drop(client);
                // It is the same client: what it writes now stays.
                sleep(Duration::from_millis(10)).await;
                bed.volume.delay_max.set(Duration::ZERO);
                let mut again = bed.client(false).await;
                assert_eq!(again.errno(NBD_CMD_WRITE, 0, (0, 200 * 4096), &vec![8; 200 * 4096]).await, 0);
                sleep(Duration::from_secs(30)).await;
                let landed = bed.volume.bytes.borrow().iter().filter(|b| **b == 7).count();
                assert_eq!(bed.server.connections(), 1);
                assert!(before < 200 * 4096 && (landed > 0) == says, "{before} bytes, then {landed}");
            });
        }
    }

    #[test]
    fn garbage_and_oversized_writes_end_the_connection() {
        Sim::new(7).block_on(async {
            let bed = Bed::start(SIZE, AttachMode::Exclusive);
            let mut garbage = bed.client(false).await;
            garbage.send(&[0x55; 28]).await;
            assert!(garbage.is_closed().await);
            let mut large = bed.client(false).await;
            assert_eq!(large.errno(NBD_CMD_READ, 0, (0, 2 << 30), &[]).await, NBD_EINVAL.0);
            // Also past the end of this small export, which is what is said.
            assert_eq!(large.errno(NBD_CMD_WRITE, 0, (0, 2 << 30), &[1; 512]).await, NBD_ENOSPC.0);
            assert!(large.is_closed().await);
            let mut option = TestClient::connect(&bed.addr).await;
            option.send(&[&IHAVEOPT.to_be_bytes()[..], &[0, 0, 0, 7, 0x7f, 0, 0, 0]].concat()).await;
            assert_eq!(option.option_reply().await.0, NBD_REP_ERR_TOO_BIG);
            assert!(option.is_closed().await);
            let mut silent = TestClient::connect(&bed.addr).await;
            assert!(silent.is_closed().await, "the handshake has a time limit");
            let mut aborting = TestClient::connect(&bed.addr).await;
            aborting.option(NBD_OPT_ABORT, &[]).await;
            assert_eq!(aborting.option_reply().await.0, NBD_REP_ACK);
            assert!(aborting.is_closed().await);
        });
    }

    #[test]
    fn random_bytes_never_bring_the_server_down() {
        for seed in 0..200 {
            Sim::new(seed).block_on(async {
                let bed = Bed::start(1 << 20, AttachMode::Exclusive);
                let client = match random_below(2) {
                    0 => TestClient::connect(&bed.addr).await,
                    _ => bed.client(random_below(2) == 0).await,
                };
                for _ in 0..20 {
                    let mut bytes: Vec<u8> =
                        (0..28 + random_below(40)).map(|_| random_below(256) as u8).collect();
                    if random_below(4) > 0 {
                        bytes[..4].copy_from_slice(&NBD_REQUEST_MAGIC.to_be_bytes());
                        bytes[4..8].copy_from_slice(&[0, random_below(32) as u8, 0, random_below(9) as u8]);
                        bytes[16..22].fill(0);
                        bytes[24..26].fill(0);
                        bytes[23] = 0;
                        bytes[27] = 0;
                    }
                    client.send(&bytes).await;
                }
                drop(client);
                sleep(Duration::from_secs(1)).await;
                assert_eq!(bed.server.connections(), 0);
                let mut next = bed.client(true).await;
                assert_eq!(next.errno(NBD_CMD_FLUSH, 0, (0, 0), &[]).await, 0);
            });
        }
    }

    #[test]
    fn many_requests_are_in_flight_and_each_is_answered_once() {
        Sim::new(8).block_on(async {
            let bed = Bed::start(SIZE, AttachMode::Exclusive);
            let mut client = bed.client(false).await;
            let count = 1000;
            for cookie in 0..count {
                let at = (cookie * 4096, 4096);
                client.request(NBD_CMD_WRITE, 0, cookie, at, &[cookie as u8; 4096]).await;
            }
            let mut seen = vec![false; count as usize];
            for _ in 0..count {
                let Some(Reply::Simple { cookie, error: 0 }) = client.reply().await else {
                    panic!("a reply")
                };
                assert!(!std::mem::replace(&mut seen[cookie as usize], true), "one reply each");
            }
            let (now, most) = bed.volume.in_flight.get();
            assert!(now == 0 && most > 16 && most <= 256, "{now} {most}");
            assert!((0..count as usize).all(|i| bed.volume.bytes.borrow()[i * 4096 + 4095] == i as u8));
        });
    }

    #[test]
    fn a_client_that_does_not_read_is_not_read_from() {
        Sim::new(9).block_on(async {
            let bed = Bed::start(64 << 20, AttachMode::Exclusive);
            bed.volume.bytes.borrow_mut().fill(1);
            let client = bed.client(false).await;
            for cookie in 0..64 {
                client.request(NBD_CMD_READ, 0, cookie, (0, 32 << 20), &[]).await;
            }
            sleep(Duration::from_secs(5)).await;
            assert!(bed.volume.in_flight.get().1 <= 2, "{:?}", bed.volume.in_flight.get());
            drop(client);
            bed.server.stop().await;
        });
    }

    /// Looks at a server's room as time goes by: the most that was held, and how many waited at most.
    fn watch_room(server: &NbdServer) -> Rc<Cell<(u64, usize)>> {
        let most = Rc::new(Cell::new((0, 0)));
        let (budget, seen) = (server.0.budget.clone(), most.clone());
        spawn(async move {
            loop {
                let (held, waiting) = seen.get();
                seen.set((held.max(budget.held_bytes()), waiting.max(budget.waiting())));
                sleep(Duration::from_micros(100)).await;
            }
        });
        most
    }

    #[test]
    fn all_clients_together_have_no_more_in_flight_than_there_is_room_for() {
        Sim::new(13).block_on(async {
            const ROOM: u64 = 8 << 20;
            let bed = Bed::start_with_room(SIZE, AttachMode::Exclusive, ROOM);
            bed.volume.delay_max.set(Duration::from_millis(5));
            let most = watch_room(&bed.server);
            let clients = (0..NBD_CONNECTIONS_MAX).map(|i| {
                let client = bed.client(false);
                let data = vec![i as u8; 1 << 20];
                async move {
                    let mut client = client.await;
                    for cookie in 0..2 {
                        let at = (cookie << 20, 1 << 20);
                        client.request(NBD_CMD_WRITE, 0, cookie, at, &data).await;
                    }
                    for _ in 0..2 {
                        assert!(matches!(client.reply().await, Some(Reply::Simple { error: 0, .. })));
                    }
                    assert_eq!(client.errno(NBD_CMD_READ, 0, (0, 0), &[]).await, NBD_EINVAL.0);
                }
            });
            weft_rt::sync::join_all(clients).await;
            let (held, waiting) = most.get();
            assert!(held <= ROOM && held > ROOM / 2 && waiting > 64, "{held} bytes, {waiting} waited");
            assert_eq!((bed.server.0.budget.held_bytes(), bed.server.0.budget.waiting()), (0, 0));
        });
    }

    #[test]
    fn a_request_of_the_largest_size_fits_the_least_room() {
        Sim::new(14).block_on(async {
            let bed = Bed::start_with_room(64 << 20, AttachMode::Exclusive, 64 << 20);
            let clients = (0..3).map(|_| async {
                let mut client = bed.client(false).await;
                for cookie in 0..2 {
                    client.request(NBD_CMD_READ, 0, cookie, (0, 32 << 20), &[]).await;
                }
                for _ in 0..2 {
                    assert!(matches!(client.reply().await, Some(Reply::Simple { error: 0, .. })));
                    client.reader.skip(32 << 20).await.unwrap();
                }
            });
            weft_rt::sync::join_all(clients).await;
        });
    }

    #[test]
    fn clients_that_do_not_read_keep_room_from_others_for_half_a_minute_at_most() {
        Sim::new(15).block_on(async {
            weft_rt::sim::set_socket_bytes(64 << 10);
            let bed = Bed::start_with_room(SIZE, AttachMode::Exclusive, 4 << 20);
            bed.volume.bytes.borrow_mut().fill(1);
            let mut slow = Vec::new();
            for _ in 0..8 {
                let client = bed.client(false).await;
                client.request(NBD_CMD_READ, 0, 1, (0, 1 << 20), &[]).await;
                slow.push(client);
            }
            sleep(Duration::from_secs(100)).await;
            assert!(bed.server.0.budget.waiting() > 0 || bed.server.connections() < 8);
            let before = bed.server.connections();
            let mut client = bed.client(false).await;
            // Its own room is enough for these, whatever the others do.
            let small = client.errno(NBD_CMD_WRITE, 0, (0, 4096), &[2; 4096]);
            assert_eq!(timeout(Duration::from_secs(1), small).await, Ok(0));
            let data = vec![3; 1 << 20];
            let large = client.errno(NBD_CMD_WRITE, 0, (0, 1 << 20), &data);
            assert_eq!(timeout(Duration::from_secs(200), large).await, Ok(0));
            assert!(bed.server.connections() <= before + 1);
            drop(slow);
        });
    }

    #[test]
    fn a_stop_ends_within_its_time_though_a_client_reads_no_reply() {
        Sim::new(11).block_on(async {
            let bed = Bed::start(64 << 20, AttachMode::Exclusive);
            let client = bed.client(false).await;
            for cookie in 0..8 {
                client.request(NBD_CMD_READ, 0, cookie, (0, 32 << 20), &[]).await;
            }
            sleep(Duration::from_secs(1)).await;
            let begun = now();
            bed.server.stop().await;
            assert!((Duration::from_secs(40)..=STOP_MAX).contains(&begun.elapsed()), "{:?}", begun.elapsed());
            drop(client);
        });
    }

    #[test]
    fn a_stop_finishes_what_is_in_flight() {
        Sim::new(10).block_on(async {
            let bed = Bed::start(SIZE, AttachMode::Exclusive);
            bed.volume.delay_max.set(Duration::from_secs(3));
            let mut busy = bed.client(true).await;
            let mut idle = bed.client(false).await;
            for cookie in 0..20 {
                busy.request(NBD_CMD_WRITE, 0, cookie, (cookie * 512, 512), &[1; 512]).await;
            }
            sleep(Duration::from_millis(10)).await;
            let server = bed.server.clone();
            let stopping = spawn(async move { server.stop().await });
            sleep(Duration::from_millis(10)).await;
            busy.request(NBD_CMD_WRITE, 0, 99, (0, 512), &[2; 512]).await;
            let (mut done, mut refused) = (0, 0);
            while let Some(reply) = busy.reply().await {
                match reply {
                    Reply::Simple { error: 0, .. } => done += 1,
                    Reply::Chunk { cookie: 99, kind: NBD_REPLY_TYPE_ERROR, payload, .. } => {
                        assert_eq!(payload[..4], NBD_ESHUTDOWN.0.to_be_bytes());
                        refused += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!((done, refused), (20, 1));
            assert!(idle.is_closed().await);
            assert_eq!(stopping.await, Ok(()));
            assert_eq!(bed.running.await, Ok(()));
            assert!(bed.volume.bytes.borrow()[..20 * 512].iter().all(|b| *b == 1));
            assert!(Stream::connect(&bed.addr).await.is_err());
        });
    }
}
