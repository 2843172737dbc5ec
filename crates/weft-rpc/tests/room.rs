//! Many connections, and room for few of their requests: all go on, and nobody keeps room from others for
//! long. Simulated, with rooms and requests that are small beside real ones.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_rpc::{Answer, FrameReader, FrameWriter, Greeter, Link, Peer, Request, Server, Service, Services};
use weft_rt::sim::{self, Sim, reset_connections, spawn_process};
use weft_rt::sync::join_all;
use weft_rt::{Addr, Budget, Buf, Listener, Stream, random_below, sleep, spawn, timeout};
use weft_types::FabricId;
use weft_types::limits::{CONNECTION_REQUESTS_MAX, FRAME_BODY_MAX, ROOM_CONNECTIONS_MAX};
use weft_wire::Kind;
use weft_wire::control;
use weft_wire::frame::Envelope;
use weft_wire::handshake::{Hello, PeerRole};

/// Longer than it takes to notice a peer that moves nothing, and shorter than a few of these times.
const SOON: Duration = Duration::from_secs(13);

const KIB: usize = 1 << 10;

/// Carries out what it is asked in about a millisecond: takes the body, and answers with as many bytes as the
/// head says. Notes how much was held at most, and in which order peers had their turns.
struct Worker {
    budget: Budget,
    held_max: Cell<u64>,
    turns: RefCell<Vec<String>>,
}

impl Greeter for Worker {
    fn greet(&self, _: &Hello) -> Result<Option<FabricId>, String> {
        Ok(None)
    }
}

fn asked(head: &[u8]) -> usize {
    head.try_into().map_or(0, u32::from_le_bytes) as usize
}

impl Service for Worker {
    fn answer_bytes(&self, _: Kind, head: &[u8]) -> u64 {
        asked(head) as u64
    }

    async fn handle(self: Rc<Self>, peer: Rc<Peer>, request: Request) -> Answer {
        self.held_max.set(self.held_max.get().max(self.budget.held_bytes()));
        self.turns.borrow_mut().push(peer.name.clone());
        sleep(Duration::from_micros(500 + random_below(1000))).await;
        Answer::ok(vec![], vec![Buf::zeroes(asked(&request.head))])
    }
}

fn addr(server: u8) -> Addr {
    format!("10.0.0.{server}:4800").parse().unwrap()
}

async fn start(budget: Budget) -> Rc<Worker> {
    let (held_max, turns) = Default::default();
    let worker = Rc::new(Worker { budget: budget.clone(), held_max, turns });
    let service = worker.clone();
    spawn_process(IpAddr::from([10, 0, 0, 1]), "server", async move {
        let services = Services::one(service).within(budget);
        Server::run(Listener::bind(&addr(1)).unwrap(), services).await;
    });
    sleep(Duration::from_millis(1)).await;
    worker
}

async fn connect(name: &str) -> Link {
    Link::connect(&addr(1), &Hello::new(PeerRole::Client, None, name)).await.unwrap()
}

/// Asks for so many bytes, and sends others along.
async fn ask(link: &Link, answer: usize, body: usize) {
    let head = (answer as u32).to_le_bytes();
    let reply = link.call(Kind::Read, &head, vec![Buf::zeroes(body)]).await.expect("it is answered");
    assert_eq!(reply.body.len(), answer);
}

/// A client that says each byte by itself, and has been greeted.
struct Raw {
    stream: Stream,
    writer: FrameWriter,
    reader: FrameReader,
}

async fn connect_raw(name: &str) -> Raw {
    let stream = Stream::connect(&addr(1)).await.unwrap();
    let (mut reader, writer) = (FrameReader::new(stream.clone()), FrameWriter::new(stream.clone()));
    let hello = control::encode(&Hello::new(PeerRole::Client, None, name));
    writer.send(Envelope { kind: Kind::Hello as u16, ..Default::default() }, &hello, Buf::empty().into());
    reader.next().await.unwrap().expect("a welcome");
    Raw { stream, writer, reader }
}

impl Raw {
    fn ask(&self, answer: usize, body: usize) {
        let head = (answer as u32).to_le_bytes();
        let envelope = Envelope { kind: Kind::Read as u16, ..Default::default() };
        self.writer.send(envelope, &head, Buf::zeroes(body).into());
    }

    /// Says that a body of so many bytes comes, and sends none of it.
    async fn announce(&self, body: usize) {
        let envelope = Envelope { kind: Kind::Write as u16, body_len: body as u32, ..Default::default() };
        let mut bytes = Vec::new();
        envelope.encode(&[], &mut bytes);
        self.stream.write(vec![Buf::from(bytes)]).await.unwrap();
    }

    async fn is_closed(&mut self) -> bool {
        !matches!(timeout(Duration::from_millis(100), self.reader.next()).await, Err(_) | Ok(Ok(Some(_))))
    }
}

/// Waits until nothing is held.
async fn all_back(budget: &Budget) {
    let done = async {
        while budget.held_bytes() > 0 || budget.waiting() > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let what = || format!("{} bytes are held, {} wait", budget.held_bytes(), budget.waiting());
    assert!(timeout(SOON, done).await.is_ok(), "{}", what());
}

#[test]
fn a_thousand_connections_that_all_send_go_on_in_turns_within_the_room() {
    Sim::new(1).block_on(async {
        const BYTES: u64 = 8 << 20;
        let worker = start(Budget::of_bytes(BYTES)).await;
        let (clients, each) = (ROOM_CONNECTIONS_MAX, 8);
        let links = join_all((0..clients).map(|i| async move { connect(&i.to_string()).await })).await;
        let waited = Rc::new(Cell::new(0));
        let (budget, most) = (worker.budget.clone(), waited.clone());
        spawn(async move {
            loop {
                most.set(most.get().max(budget.waiting()));
                sleep(Duration::from_millis(1)).await;
            }
        });
        join_all(links.iter().map(|link| join_all((0..each).map(|_| ask(link, 0, 64 * KIB))))).await;
        assert!(worker.held_max.get() <= BYTES, "{} bytes were held", worker.held_max.get());
        assert!(worker.held_max.get() > BYTES / 2 && waited.get() > clients / 2, "it was crowded");
        // The first ones found an empty room. From then on all wait, and each round brings a turn to
        // everybody.
        let mut turns: BTreeMap<&str, u32> = BTreeMap::new();
        let all = worker.turns.take();
        all[clients..clients * 3].iter().for_each(|name| *turns.entry(name).or_default() += 1);
        let (least, most) = (turns.values().min().unwrap(), turns.values().max().unwrap());
        assert!(
            turns.len() == clients && *least >= 1 && *most <= 3,
            "in two rounds {least} and {most} turns"
        );
        drop(links);
        all_back(&worker.budget).await;
    });
}

#[test]
fn a_thousand_connections_with_all_requests_that_they_may_have_go_on() {
    Sim::new(2).block_on(async {
        const BYTES: u64 = 32 << 20;
        let worker = start(Budget::of_bytes(BYTES)).await;
        let links =
            join_all((0..ROOM_CONNECTIONS_MAX).map(|i| async move { connect(&i.to_string()).await })).await;
        // With 4 KiB and the request itself a connection would hold 2 MiB.
        join_all(links.iter().map(|link| join_all((0..CONNECTION_REQUESTS_MAX).map(|_| ask(link, 0, 512)))))
            .await;
        assert!(worker.held_max.get() <= BYTES && worker.held_max.get() > BYTES / 2);
    });
}

#[test]
fn a_thousand_slow_readers_hold_no_more_than_the_room_and_others_go_on() {
    Sim::new(3).block_on(async {
        const BYTES: u64 = 32 << 20;
        sim::set_socket_bytes(8 * KIB);
        let worker = start(Budget::of_bytes(BYTES)).await;
        let link = connect("quick").await;
        let slow = (1..ROOM_CONNECTIONS_MAX).map(|i| async move { connect_raw(&format!("slow {i}")).await });
        let mut slow = join_all(slow).await;
        slow.iter().for_each(|raw| (0..4).for_each(|_| raw.ask(64 * KIB, 0)));
        sleep(Duration::from_millis(500)).await;
        assert!(worker.budget.waiting() > 500, "{} wait", worker.budget.waiting());
        // What fits into its own room does not wait at all.
        let small = async {
            for _ in 0..100 {
                ask(&link, 1000, 0).await;
            }
        };
        timeout(Duration::from_secs(1), small).await.expect("others do not hold it up");
        // All that came before it have to be sent away, as many at a time as there is room for.
        let large = join_all((0..4).map(|_| ask(&link, 64 * KIB, 64 * KIB)));
        timeout(Duration::from_secs(200), large).await.expect("it goes on");
        assert!(worker.held_max.get() <= BYTES, "{} bytes were held", worker.held_max.get());
        let mut closed = 0;
        for raw in slow.iter_mut() {
            closed += usize::from(raw.is_closed().await);
        }
        assert!(closed > 0);
    });
}

#[test]
fn slow_readers_that_take_something_stay() {
    Sim::new(4).block_on(async {
        sim::set_socket_bytes(8 * KIB);
        let worker = start(Budget::new(1 << 20, 8 << 10, 16)).await;
        // Each of them takes an answer every second: a few, and more of them than there is room for.
        let slow = (0..40).map(|i| {
            spawn(async move {
                let mut raw = connect_raw(&format!("slow {i}")).await;
                (0..10).for_each(|_| raw.ask(64 * KIB, 0));
                for _ in 0..10 {
                    sleep(Duration::from_secs(1)).await;
                    assert!(raw.reader.next().await.is_ok_and(|frame| frame.is_some()), "it stays");
                }
            })
        });
        let slow: Vec<_> = slow.collect();
        sleep(Duration::from_secs(2)).await;
        assert!(worker.budget.waiting() > 0);
        for client in slow {
            client.await.unwrap();
        }
        all_back(&worker.budget).await;
    });
}

#[test]
fn a_body_that_does_not_come_keeps_room_only_while_nobody_waits_for_it() {
    Sim::new(5).block_on(async {
        let budget = Budget::new(256 << 10, 8 << 10, 4);
        let worker = start(budget.clone()).await;
        let mut silent = Vec::new();
        for i in 0..3 {
            silent.push(connect_raw(&format!("silent {i}")).await);
            silent[i].announce(64 * KIB).await;
        }
        sleep(Duration::from_secs(60)).await;
        assert!(budget.held_bytes() > (3 * 64 * KIB) as u64, "they have what they asked for");
        for raw in &mut silent {
            assert!(!raw.is_closed().await, "they harm nobody");
        }
        let link = connect("honest").await;
        assert!(timeout(Duration::from_secs(2), ask(&link, 0, 64 * KIB)).await.is_err(), "there is no room");
        timeout(SOON, ask(&link, 0, 64 * KIB)).await.expect("it goes on");
        for raw in &mut silent {
            assert!(raw.is_closed().await);
        }
        assert_eq!(worker.turns.borrow().iter().filter(|name| name.starts_with("silent")).count(), 0);
        all_back(&budget).await;
    });
}

#[test]
fn a_connection_that_ends_while_it_waits_gives_its_turn_up() {
    Sim::new(6).block_on(async {
        let budget = Budget::new(256 << 10, 1 << 10, 4);
        let worker = start(budget.clone()).await;
        let holds = connect_raw("holds").await;
        holds.announce(128 * KIB).await;
        sleep(Duration::from_millis(10)).await;
        let waits = connect_raw("waits").await;
        waits.announce(200 * KIB).await;
        let link = connect("last").await;
        let last = spawn(async move { ask(&link, 0, 100 * KIB).await });
        sleep(Duration::from_millis(10)).await;
        assert_eq!(budget.waiting(), 2, "one behind the other, though there is room for the last");
        let client = IpAddr::from([127, 0, 0, 1]);
        drop((waits, holds));
        timeout(Duration::from_secs(1), last).await.expect("it goes on").unwrap();
        assert_eq!(*worker.turns.borrow(), ["last"]);
        all_back(&budget).await;
        // It does not wait for its turn with that.
        let holds = connect_raw("holds").await;
        holds.announce(200 * KIB).await;
        let waits = connect_raw("waits").await;
        waits.announce(200 * KIB).await;
        sleep(Duration::from_millis(10)).await;
        assert_eq!(budget.waiting(), 1);
        drop(waits);
        sleep(Duration::from_millis(10)).await;
        assert_eq!(budget.waiting(), 0);
        drop(holds);
        all_back(&budget).await;
        // Likewise where a connection breaks.
        let holds = connect_raw("holds").await;
        holds.announce(200 * KIB).await;
        let waits = connect_raw("waits").await;
        waits.announce(200 * KIB).await;
        sleep(Duration::from_millis(10)).await;
        assert_eq!(budget.waiting(), 1);
        reset_connections(client, IpAddr::from([10, 0, 0, 1]));
        all_back(&budget).await;
    });
}

#[test]
fn what_is_larger_than_all_the_room_goes_alone() {
    Sim::new(7).block_on(async {
        let worker = start(Budget::new(1 << 20, 1 << 10, 4)).await;
        let link = connect("large").await;
        let others = connect("others").await;
        let small = async {
            for _ in 0..50 {
                ask(&others, 64 * KIB, 64 * KIB).await;
            }
        };
        let large = join_all((0..2).map(|_| ask(&link, 0, FRAME_BODY_MAX)));
        timeout(SOON, join_all([Box::pin(small) as Pinned, Box::pin(async { drop(large.await) })]))
            .await
            .expect("all go on");
        all_back(&worker.budget).await;
    });
}

type Pinned<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + 'a>>;

#[test]
fn answers_count_until_the_network_has_them() {
    Sim::new(8).block_on(async {
        sim::set_socket_bytes(8 * KIB);
        let worker = start(Budget::of_bytes(64 << 20)).await;
        let mut raw = connect_raw("slow").await;
        (0..4).for_each(|_| raw.ask(64 * KIB, 0));
        sleep(Duration::from_secs(20)).await;
        // They wait for nothing but this reader, which keeps room from nobody.
        let held = worker.budget.held_bytes();
        assert!((3 * 64 * KIB..5 * 64 * KIB).contains(&(held as usize)), "{held} bytes");
        for _ in 0..4 {
            raw.reader.next().await.unwrap().unwrap();
        }
        all_back(&worker.budget).await;
        (0..4).for_each(|_| raw.ask(64 * KIB, 0));
        sleep(Duration::from_millis(100)).await;
        assert!(worker.budget.held_bytes() > 0);
        drop(raw);
        all_back(&worker.budget).await;
    });
}
