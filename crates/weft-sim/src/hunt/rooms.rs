//! Servers without a fabric that ask each other before they answer their clients, with little room each
//! (P10): all requests end, however they meet.
//!
//! It stands for syncing replicas: a write waits there for what a peer has (R4), while the peer's own room is
//! full of writes that wait for this one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_rpc::{Answer, Greeter, Link, Peer, Request, Server, Service, Services};
use weft_rt::sim::spawn_process;
use weft_rt::sync::{Mutex, join_all};
use weft_rt::{Addr, Budget, Buf, Listener, random_below, sleep, spawn, timeout};
use weft_types::limits::CHUNK_BLOCKS;
use weft_types::{BLOCK_SIZE, FabricId, TargetId};
use weft_wire::handshake::{Hello, PeerRole};
use weft_wire::{Kind, Status};

/// Room of one server: a few chunks and the writes that wait for them.
const ROOM_BYTES: u64 = 1 << 20;

/// Bytes of what a peer has of a chunk.
const CHUNK_BYTES: usize = CHUNK_BLOCKS as usize * BLOCK_SIZE;

/// Bytes of a write.
const WRITE_BYTES: usize = 16 * BLOCK_SIZE;

/// Virtual time within which all requests end: they take some milliseconds each.
const END_WITHIN: Duration = Duration::from_secs(20);

/// A server, and its ways to the others.
struct Replica {
    number: u8,
    links: RefCell<BTreeMap<u8, Rc<Mutex<Option<Link>>>>>,
}

fn host(number: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, number])
}

fn addr(number: u8) -> Addr {
    Addr::Tcp((host(number), 4800).into())
}

impl Replica {
    /// What a peer has of a chunk.
    async fn fetch(&self, from: u8) -> bool {
        let way = {
            let mut links = self.links.borrow_mut();
            links.entry(from).or_insert_with(|| Rc::new(Mutex::new(None))).clone()
        };
        let turn = way.lock().await;
        let known = turn.get().clone();
        let link = match known {
            Some(link) => link,
            None => {
                let role = PeerRole::Target(TargetId(u32::from(self.number)));
                let Ok(link) = Link::connect(&addr(from), &Hello::new(role, None, "replica")).await else {
                    return false;
                };
                *turn.get() = Some(link.clone());
                link
            }
        };
        drop(turn);
        link.call(Kind::Entries, &[], Buf::empty()).await.is_ok()
    }
}

impl Greeter for Replica {
    fn greet(&self, _: &Hello) -> Result<Option<FabricId>, String> {
        Ok(None)
    }
}

impl Service for Replica {
    fn answer_bytes(&self, kind: Kind, _: &[u8]) -> u64 {
        if kind == Kind::Entries { CHUNK_BYTES as u64 } else { 0 }
    }

    async fn handle(self: Rc<Self>, _: Rc<Peer>, request: Request) -> Answer {
        sleep(Duration::from_micros(100 + random_below(400))).await;
        match (request.kind, request.head.first()) {
            (Kind::Entries, _) => Answer::ok(vec![], vec![Buf::zeroes(CHUNK_BYTES)]),
            (_, Some(from)) if !self.fetch(*from).await => Answer::error(Status::NotReady, "no source"),
            _ => Answer::ok(vec![], vec![]),
        }
    }
}

async fn write_at(server: u8, peer: u8, count: u64) -> bool {
    let Ok(link) = Link::connect(&addr(server), &Hello::new(PeerRole::Client, None, "writer")).await else {
        return false;
    };
    let writes =
        (0..count).map(|_| link.call(Kind::Write, std::slice::from_ref(&peer), Buf::zeroes(WRITE_BYTES)));
    join_all(writes).await.iter().all(Result::is_ok)
}

/// Runs it to its end.
pub async fn run() -> Result<(), String> {
    let servers = 2 + random_below(2) as u8;
    for number in 1..=servers {
        spawn_process(host(number), "replica", async move {
            let replica = Rc::new(Replica { number, links: RefCell::default() });
            let listener = Listener::bind(&addr(number)).expect("nobody else is there");
            let budget = Budget::new(ROOM_BYTES, BLOCK_SIZE as u64, 16);
            Server::run(listener, Services::one(replica).within(budget)).await;
        });
    }
    sleep(Duration::from_millis(1)).await;
    let writers = (0..12 + random_below(12)).map(|i| {
        let server = 1 + (i % u64::from(servers)) as u8;
        let peer = 1 + (u64::from(server) + random_below(u64::from(servers) - 1)) as u8 % servers;
        spawn(write_at(server, peer, 4 + random_below(12)))
    });
    let writers: Vec<_> = writers.collect();
    match timeout(END_WITHIN, join_all(writers)).await {
        Ok(ended) if ended.iter().all(|ended| *ended == Ok(true)) => Ok(()),
        Ok(_) => Err("a write failed, and nothing was wrong".into()),
        Err(_) => Err(format!("writes that wait for peers do not end within {END_WITHIN:?}")),
    }
}
