//! Lanes of a server: threads that serve connections which another thread has accepted and negotiated.
//!
//! The acceptor's thread agrees with the client on an export, and then posts the socket and what was agreed
//! on to the thread that has the fewest connections to that export. It counts each connection until the
//! other thread posts that the connection has ended. Nothing else passes between them.

use crate::negotiate::Agreement;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use weft_client::export::Entered;
use weft_rt::{Mailbox, Poster, mailbox};
use weft_types::limits::NBD_CONNECTIONS_MAX;

/// The two ends of a lane: one for the server that accepts, one for the thread that serves.
pub fn lane() -> (LaneDoor, LaneSeat) {
    // As many connections as there may be, and the word to stop: no post finds the mailbox full.
    let (posts, arrivals) = mailbox(NBD_CONNECTIONS_MAX + 1);
    let (left, ended) = mailbox(NBD_CONNECTIONS_MAX);
    (LaneDoor { posts, ended }, LaneSeat { posts: arrivals, left })
}

/// The acceptor's end of a lane. See [`crate::NbdServer::add_lane`].
pub struct LaneDoor {
    pub(crate) posts: Poster<LanePost>,
    pub(crate) ended: Mailbox<u64>,
}

/// The end of a lane that serves. It may be sent to the thread that is to run
/// [`crate::NbdServer::run_lane`].
pub struct LaneSeat {
    pub(crate) posts: Mailbox<LanePost>,
    pub(crate) left: Poster<u64>,
}

/// What the acceptor posts.
pub(crate) enum LanePost {
    /// Serve this connection.
    Arrived(Arrival),
    /// Stop in order.
    Stop,
}

/// A connection whose client has chosen an export.
pub(crate) struct Arrival {
    /// The number of the connection, for the log.
    pub(crate) number: u64,
    pub(crate) socket: OwnedFd,
    /// What the client has sent beyond the handshake.
    pub(crate) ahead: Vec<u8>,
    pub(crate) export: String,
    pub(crate) is_structured: bool,
    pub(crate) has_allocation: bool,
}

impl Arrival {
    pub(crate) fn new(number: u64, socket: OwnedFd, ahead: Vec<u8>, agreed: &Agreement) -> Arrival {
        Arrival {
            number,
            socket,
            ahead,
            export: agreed.export.name().to_owned(),
            is_structured: agreed.is_structured,
            has_allocation: agreed.has_allocation,
        }
    }
}

/// Connections to one export on one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneConnections {
    /// The export's name.
    pub export: String,
    /// The lane; 0 is the thread that accepts.
    pub lane: usize,
    /// Open connections.
    pub connections: usize,
}

/// The lanes of a server, and who is connected to which.
pub(crate) struct LaneTable {
    /// By number; the first is the acceptor's own.
    lanes: Vec<LaneEntry>,
    /// Connections that other lanes serve, by number. Each is counted until its lane says that it has ended.
    away: BTreeMap<u64, Away>,
}

struct LaneEntry {
    /// None of the acceptor's own lane.
    posts: Option<Poster<LanePost>>,
    /// Open connections to each export that the lane serves.
    connections: BTreeMap<String, usize>,
}

struct Away {
    lane: usize,
    export: String,
    _entered: Rc<Entered>,
}

impl LaneTable {
    /// The acceptor's own lane, which serves all exports.
    pub(crate) fn new<'a>(exports: impl Iterator<Item = &'a str>) -> LaneTable {
        LaneTable { lanes: vec![LaneEntry::of(None, exports.map(str::to_owned))], away: BTreeMap::new() }
    }

    /// Adds a lane that serves these exports. Returns its number.
    pub(crate) fn add(&mut self, posts: Poster<LanePost>, exports: Vec<String>) -> usize {
        self.lanes.push(LaneEntry::of(Some(posts), exports.into_iter()));
        self.lanes.len() - 1
    }

    /// Chooses the lane with the fewest connections to this export, of those the one with the fewest in
    /// all, and counts a connection there.
    pub(crate) fn enter(&mut self, export: &str) -> usize {
        let load = |(_, lane): &(usize, &LaneEntry)| {
            Some((*lane.connections.get(export)?, lane.connections.values().sum::<usize>()))
        };
        let serving = self.lanes.iter().enumerate().filter(|lane| load(lane).is_some());
        let chosen = serving.min_by_key(load).map_or(0, |(number, _)| number);
        self.count(chosen, export, 1);
        chosen
    }

    /// The connection is not served by this lane, or no longer.
    pub(crate) fn leave(&mut self, lane: usize, export: &str) {
        self.count(lane, export, -1);
    }

    fn count(&mut self, lane: usize, export: &str, change: isize) {
        if let Some(connections) = self.lanes[lane].connections.get_mut(export) {
            *connections = connections.checked_add_signed(change).expect("who leaves was counted");
        }
    }

    /// Where to post to a lane; none of the acceptor's own.
    pub(crate) fn posts(&self, lane: usize) -> Option<Poster<LanePost>> {
        self.lanes[lane].posts.clone()
    }

    /// The lane has been posted this connection.
    pub(crate) fn sent(&mut self, number: u64, lane: usize, export: &str, entered: Rc<Entered>) {
        self.away.insert(number, Away { lane, export: export.to_owned(), _entered: entered });
    }

    /// The connection has ended on its lane.
    pub(crate) fn ended(&mut self, number: u64) {
        if let Some(away) = self.away.remove(&number) {
            self.leave(away.lane, &away.export);
        }
    }

    /// The lane is gone, and its connections with it. It is chosen no more.
    pub(crate) fn gone(&mut self, lane: usize) {
        self.away.retain(|_, away| away.lane != lane);
        self.lanes[lane].connections.clear();
    }

    /// Tells every lane to stop in order.
    pub(crate) fn stop(&self) {
        for posts in self.lanes.iter().filter_map(|lane| lane.posts.as_ref()) {
            // A lane that is gone has stopped.
            let _ = posts.post(LanePost::Stop);
        }
    }

    /// Open connections by export and lane.
    pub(crate) fn connections(&self) -> Vec<LaneConnections> {
        let of_lane = |(lane, entry): (usize, &LaneEntry)| {
            let named = |(export, connections): (&String, &usize)| LaneConnections {
                export: export.clone(),
                lane,
                connections: *connections,
            };
            entry.connections.iter().map(named).collect::<Vec<_>>()
        };
        self.lanes.iter().enumerate().flat_map(of_lane).collect()
    }
}

impl LaneEntry {
    fn of(posts: Option<Poster<LanePost>>, exports: impl Iterator<Item = String>) -> LaneEntry {
        LaneEntry { posts, connections: exports.map(|export| (export, 0)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NbdServer;
    use crate::protocol::*;
    use crate::talk::{Bed, Reply, TestClient};
    use std::time::Duration;
    use weft_client::AttachMode;
    use weft_client::export::{Exports, MemoryVolume};
    use weft_rt::{Thread, block_on, sleep, timeout};
    use weft_types::limits::NBD_ROOM_BYTES_MAX;

    const SIZE: usize = 1 << 20;

    /// A server with one more lane on a thread of its own. Each lane has a volume of its own in memory.
    fn start_lane(bed: &Bed) -> Thread {
        let (door, seat) = lane();
        let thread = Thread::start("lane-1", None, move || async move {
            let mut exports = Exports::new();
            let volume = MemoryVolume::new(SIZE, AttachMode::Shared);
            exports.add_memory("data", volume).expect("the first");
            NbdServer::with_room(exports, NBD_ROOM_BYTES_MAX).run_lane(seat).await;
        });
        bed.server.add_lane(door, vec!["data".into()]);
        thread.expect("it starts")
    }

    /// Connections by lane.
    fn counts(bed: &Bed) -> Vec<usize> {
        bed.server.lane_connections().iter().map(|of| of.connections).collect()
    }

    async fn await_counts(bed: &Bed, wanted: [usize; 2]) {
        let counted = async {
            while counts(bed) != wanted {
                sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(timeout(Duration::from_secs(10), counted).await.is_ok(), "{:?}, not {wanted:?}", counts(bed));
    }

    #[test]
    fn connections_are_spread_over_lanes_and_each_ends_alone() {
        let ran = block_on(async {
            let bed = Bed::start(SIZE, AttachMode::Shared);
            let mut thread = start_lane(&bed);
            let mut clients = Vec::new();
            for n in 0..6_u8 {
                let mut client = bed.client(n % 2 == 0).await;
                let at = (u64::from(n) * 4096, 4096);
                assert_eq!(client.errno(NBD_CMD_WRITE, NBD_CMD_FLAG_FUA, at, &[n + 1; 4096]).await, 0);
                clients.push(client);
            }
            await_counts(&bed, [3, 3]).await;
            // A client that vanishes inside a request takes nobody along.
            let vanishing = clients.pop().expect("there are six");
            vanishing.request(NBD_CMD_WRITE, 0, 1, (0, 65536), &[9; 4096]).await;
            drop(vanishing);
            await_counts(&bed, [3, 2]).await;
            for (n, client) in (0..).zip(&mut clients) {
                assert_eq!(client.errno(NBD_CMD_FLUSH, 0, (0, 0), &[]).await, 0);
                let flags = if n % 2 == 0 { NBD_CMD_FLAG_DF } else { 0 };
                client.request(NBD_CMD_READ, flags, 5, (n * 4096, 4096), &[]).await;
                match client.reply().await {
                    Some(Reply::Chunk { payload, .. }) => {
                        assert!(payload[8..].iter().all(|b| *b == n as u8 + 1))
                    }
                    Some(Reply::Simple { error: 0, .. }) => {
                        let data = client.reader.take(4096).await.expect("the data");
                        assert!(data.iter().all(|b| *b == n as u8 + 1));
                    }
                    other => panic!("{other:?}"),
                }
            }
            // The next one goes to where one has left.
            let _next = bed.client(false).await;
            await_counts(&bed, [3, 3]).await;
            bed.server.stop().await;
            for client in &mut clients {
                assert!(client.is_closed().await);
            }
            assert_eq!((counts(&bed).iter().sum::<usize>(), bed.server.connections()), (0, 0));
            thread.ended().await.expect("the kernel has io_uring");
        });
        ran.expect("the kernel has io_uring");
    }

    /// A request behind the last option, in one segment, is on its way while the connection changes threads.
    #[test]
    fn what_a_client_sends_ahead_is_served_by_its_lane() {
        let ran = block_on(async {
            let bed = Bed::start(SIZE, AttachMode::Shared);
            let mut thread = start_lane(&bed);
            let _first = bed.client(false).await;
            await_counts(&bed, [1, 0]).await;
            let mut client = TestClient::connect(&bed.addr).await;
            let mut bytes = IHAVEOPT.to_be_bytes().to_vec();
            bytes.extend(NBD_OPT_GO.to_be_bytes());
            bytes.extend([0, 0, 0, 6, 0, 0, 0, 0, 0, 0]);
            for cookie in 0..3 {
                let header = RequestHeader {
                    flags: 0,
                    command: NBD_CMD_WRITE,
                    cookie: Cookie(cookie),
                    offset: cookie * 16384,
                    length: 16384,
                };
                bytes.extend(header.encode());
                bytes.extend([cookie as u8 + 1; 16384]);
            }
            client.send(&bytes).await;
            while client.option_reply().await.0 != NBD_REP_ACK {}
            let mut done = [false; 3];
            for _ in 0..3 {
                let Some(Reply::Simple { cookie, error: 0 }) = client.reply().await else {
                    panic!("a reply")
                };
                done[cookie as usize] = true;
            }
            assert!(done.iter().all(|done| *done) && counts(&bed) == [1, 1]);
            client.request(NBD_CMD_READ, 0, 9, (32768, 16384), &[]).await;
            assert_eq!(client.reply().await, Some(Reply::Simple { cookie: 9, error: 0 }));
            assert!(client.reader.take(16384).await.expect("the data").iter().all(|b| *b == 3));
            bed.server.stop().await;
            thread.ended().await.expect("the kernel has io_uring");
        });
        ran.expect("the kernel has io_uring");
    }

    #[test]
    fn a_server_that_is_gone_ends_its_lanes() {
        let ran = block_on(async {
            let bed = Bed::start(SIZE, AttachMode::Shared);
            let mut thread = start_lane(&bed);
            bed.server.stop().await;
            drop(bed);
            let ended = timeout(Duration::from_secs(10), thread.ended()).await;
            ended.expect("it ends").expect("the kernel has io_uring");
            // A lane that nobody has added to a server sees that nobody posts.
            let (door, seat) = lane();
            drop(door);
            let server = NbdServer::new(Exports::new());
            assert!(timeout(Duration::from_secs(10), server.run_lane(seat)).await.is_ok());
        });
        ran.expect("the kernel has io_uring");
    }

    #[test]
    fn a_connection_goes_to_the_lane_with_the_fewest_of_its_export() {
        let mut table = LaneTable::new(["a", "b"].into_iter());
        let (first, _seat) = lane();
        let (second, _other) = lane();
        assert_eq!(table.add(first.posts, vec!["a".into(), "b".into()]), 1);
        assert_eq!(table.add(second.posts, vec!["a".into()]), 2);
        assert_eq!([(); 4].map(|()| table.enter("a")), [0, 1, 2, 0]);
        // Of two lanes with as many of the export, the one with fewer in all.
        assert_eq!([(); 3].map(|()| table.enter("b")), [1, 0, 1]);
        table.leave(0, "a");
        table.leave(0, "a");
        assert_eq!(table.enter("a"), 0);
        table.gone(1);
        assert_eq!([(); 3].map(|()| table.enter("b")), [0, 0, 0]);
        let named = |export: &str, lane, connections| LaneConnections {
            export: export.to_owned(),
            lane,
            connections,
        };
        assert_eq!(table.connections(), [named("a", 0, 1), named("b", 0, 4), named("a", 2, 1)]);
    }
}
