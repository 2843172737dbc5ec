//! A client for tests of this crate, over simulated streams: says exactly the bytes it is told to.

use crate::protocol::*;
use crate::server::NbdServer;
use std::rc::Rc;
use weft_client::AttachMode;
use weft_client::export::{Exports, MemoryVolume};
use weft_rt::{Addr, Buf, ByteReader, JoinHandle, Listener, Stream, spawn};
use weft_types::limits::NBD_ROOM_BYTES_MAX;

/// A server of one volume in memory, and where it listens.
pub(crate) struct Bed {
    pub(crate) volume: Rc<MemoryVolume>,
    pub(crate) server: NbdServer,
    pub(crate) running: JoinHandle<()>,
    pub(crate) addr: Addr,
}

impl Bed {
    pub(crate) fn start(size: usize, mode: AttachMode) -> Bed {
        Bed::start_with_room(size, mode, NBD_ROOM_BYTES_MAX)
    }

    /// Likewise, with so many bytes of room for all clients.
    pub(crate) fn start_with_room(size: usize, mode: AttachMode, room: u64) -> Bed {
        let volume = MemoryVolume::new(size, mode);
        let mut exports = Exports::new();
        exports.add_memory("data", volume.clone()).expect("the first");
        let server = NbdServer::with_room(exports, room);
        let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("nobody listens");
        let addr = listener.local_addr();
        let runs = server.clone();
        let running = spawn(async move { runs.run(listener).await });
        Bed { volume, server, running, addr }
    }

    /// A client in the transmission phase.
    pub(crate) async fn client(&self, structured: bool) -> TestClient {
        let mut client = TestClient::connect(&self.addr).await;
        if structured {
            client.option(NBD_OPT_STRUCTURED_REPLY, &[]).await;
            assert_eq!(client.option_reply().await, (NBD_REP_ACK, vec![]));
            let context = BASE_ALLOCATION.as_bytes();
            let mut data = vec![0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, context.len() as u8];
            data.extend(context);
            client.option(NBD_OPT_SET_META_CONTEXT, &data).await;
            assert_eq!(client.option_reply().await.0, NBD_REP_META_CONTEXT);
            assert_eq!(client.option_reply().await.0, NBD_REP_ACK);
        }
        client.option(NBD_OPT_GO, &[0; 6]).await;
        while client.option_reply().await.0 != NBD_REP_ACK {}
        client.structured = structured;
        client
    }
}

/// One connection.
pub(crate) struct TestClient {
    pub(crate) stream: Stream,
    pub(crate) reader: ByteReader,
    structured: bool,
}

/// One reply, or one chunk of one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Simple { cookie: u64, error: u32 },
    Chunk { cookie: u64, kind: u16, is_last: bool, payload: Vec<u8> },
}

impl TestClient {
    /// Connects and sends the client flags.
    pub(crate) async fn connect(addr: &Addr) -> TestClient {
        let stream = Stream::connect(addr).await.expect("the server listens");
        let mut reader = ByteReader::new(stream.clone());
        let greeting = reader.next::<18>().await.expect("connected").expect("the server greets");
        assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\x00\x03");
        let client = TestClient { stream, reader, structured: false };
        client.send(&(NBD_FLAG_C_FIXED_NEWSTYLE | NBD_FLAG_C_NO_ZEROES).to_be_bytes()).await;
        client
    }

    pub(crate) async fn send(&self, bytes: &[u8]) {
        // The server may close at any time; what it answers is what counts.
        let _ = self.stream.write(vec![Buf::from(bytes)]).await;
    }

    pub(crate) async fn option(&self, option: u32, data: &[u8]) {
        let mut bytes = IHAVEOPT.to_be_bytes().to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        self.send(&bytes).await;
    }

    pub(crate) async fn option_reply(&mut self) -> (u32, Vec<u8>) {
        let head = self.reader.next::<20>().await.expect("connected").expect("a reply");
        let kind = u32::from_be_bytes(head[12..16].try_into().expect("four bytes"));
        let length = u32::from_be_bytes(head[16..20].try_into().expect("four bytes"));
        (kind, self.reader.take(length as usize).await.expect("connected").to_vec())
    }

    /// Sends a request and, for a write, its data.
    pub(crate) async fn request(&self, command: u16, flags: u16, cookie: u64, at: (u64, u32), data: &[u8]) {
        let header = RequestHeader { flags, command, cookie: Cookie(cookie), offset: at.0, length: at.1 };
        self.send(&[&header.encode()[..], data].concat()).await;
    }

    /// The next reply or chunk; of a simple reply, only the head. `None` if the server has closed.
    pub(crate) async fn reply(&mut self) -> Option<Reply> {
        let magic = u32::from_be_bytes(self.reader.next::<4>().await.ok()??);
        if magic == NBD_SIMPLE_REPLY_MAGIC {
            let rest = self.reader.next::<12>().await.ok()??;
            let error = u32::from_be_bytes(rest[0..4].try_into().expect("four bytes"));
            let cookie = u64::from_be_bytes(rest[4..12].try_into().expect("eight bytes"));
            return Some(Reply::Simple { cookie, error });
        }
        assert_eq!(magic, NBD_STRUCTURED_REPLY_MAGIC);
        assert!(self.structured, "nobody asked for structured replies");
        let rest = self.reader.next::<16>().await.ok()??;
        let kind = u16::from_be_bytes([rest[2], rest[3]]);
        let cookie = u64::from_be_bytes(rest[4..12].try_into().expect("eight bytes"));
        let length = u32::from_be_bytes(rest[12..16].try_into().expect("four bytes"));
        let payload = self.reader.take(length as usize).await.ok()?.to_vec();
        Some(Reply::Chunk { cookie, kind, is_last: rest[1] == 1, payload })
    }

    /// Sends a request and gives the error number of its reply, 0 for success. One at a time.
    pub(crate) async fn errno(&mut self, command: u16, flags: u16, at: (u64, u32), data: &[u8]) -> u32 {
        self.request(command, flags, 77, at, data).await;
        match self.reply().await.expect("a reply") {
            Reply::Simple { cookie, error } => {
                assert_eq!(cookie, 77);
                error
            }
            Reply::Chunk { cookie, kind: NBD_REPLY_TYPE_ERROR, payload, .. } => {
                assert_eq!(cookie, 77);
                u32::from_be_bytes(payload[..4].try_into().expect("four bytes"))
            }
            other => panic!("{other:?} is no plain reply"),
        }
    }

    /// Whether the server has closed the connection.
    pub(crate) async fn is_closed(&mut self) -> bool {
        matches!(self.reader.next::<1>().await, Ok(None) | Err(_))
    }
}
