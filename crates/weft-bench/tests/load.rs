//! A load on a real volume of the client library, in a simulation, over a server that stands for manager and target
//! and counts what arrives.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_bench::{Amount, Before, BenchError, Ledger, Load, LoadResult, Pattern, Ran, Schedule, Watch};
use weft_client::{AttachOptions, Fabric, Volume};
use weft_rpc::{Answer, Greeter, Peer, Request, Server, Service, Services};
use weft_rt::sim::{Sim, spawn_process};
use weft_rt::{Addr, Buf, Listener, sleep};
use weft_types::*;
use weft_wire::control::{self, ManagerAnswer, ManagerRequest};
use weft_wire::data::{Content, DataRequest, Extent, ReadAnswer, Verdict, WriteAnswer};
use weft_wire::handshake::Hello;
use weft_wire::{Kind, Status};

const VOLUME_BLOCKS: u64 = 1024;
const ADDR: &str = "10.0.0.1:4800";

/// What has arrived.
#[derive(Default)]
struct Seen {
    reads: Cell<u64>,
    writes: Cell<u64>,
    in_flight: Cell<u32>,
    most_in_flight: Cell<u32>,
}

struct Everything {
    seen: Rc<Seen>,
    /// From this many reads on, reads are refused for good.
    reads_max: u64,
}

fn map() -> FabricMap {
    let mut map = FabricMap::empty(FabricId(7));
    let (node, pool, group, volume) = (NodeId(1), PoolId(2), GroupId(3), VolumeId(4));
    map.version = MapVersion(9);
    map.put_node(node, "n".into(), ADDR.into());
    map.pools.insert(pool, Pool { id: pool, name: "default".into() });
    let capacity = BlockCount(4 * VOLUME_BLOCKS);
    let mut slots = Vec::new();
    for id in [DriveId(11), DriveId(12)] {
        let (target, state) = (TargetId::first_of(node), DriveState::Active);
        let (device, path) = (DeviceId::of_drive(id), "mem".into());
        map.drives.insert(id, Drive { id, node, target, device, pool, path, capacity, state });
        slots.push(Slot { drive: id, role: Role::InSync, since: Epoch(1) });
    }
    map.groups.insert(group, Group { id: group, pool, epoch: Epoch(1), slots, floor: Default::default() });
    let striping = Striping { unit_blocks: 256, width: 1, object_blocks: limits::OBJECT_BLOCKS_MAX };
    let spans = vec![ObjectSpan { first: 0, count: 1, groups: vec![group].into() }];
    map.volumes.insert(
        volume,
        weft_types::Volume {
            id: volume,
            name: "v".into(),
            pool,
            size: BlockCount(VOLUME_BLOCKS),
            protection: weft_types::Protection::mirror(2),
            striping,
            spans,
            generation: Generation(1),
            state: VolumeState::Ready,
            thin: false,
            created_ms: 0,
            kind: weft_types::VolumeKind::Blocks,
        },
    );
    map
}

impl Everything {
    async fn manage(&self, head: &[u8]) -> Answer {
        let map = map();
        let body = vec![Buf::from(control::encode_map(&map))];
        let request: ManagerRequest = control::decode(head).expect("a client's request");
        let (answer, body) = match request {
            ManagerRequest::Follow { .. } => {
                return Answer::error(Status::Invalid, "unknown variant `follow`");
            }
            ManagerRequest::WatchMap { have } if have < map.version => {
                (ManagerAnswer::Map { version: map.version }, body)
            }
            ManagerRequest::WatchMap { .. } => {
                sleep(Duration::from_secs(10)).await;
                (ManagerAnswer::Map { version: map.version }, vec![])
            }
            ManagerRequest::Attach { mode, client, .. } => {
                let session = Session {
                    number: 0,
                    lane_slots: vec![],
                    id: SessionId(5),
                    slot: SessionSlot(6),
                    volume: VolumeId(4),
                    mode,
                    generation: Generation(1),
                    client,
                    state: SessionState::Open,
                };
                let mut map = map;
                map.sessions.insert(session.id, session.clone());
                let body = vec![Buf::from(control::encode_map(&map))];
                (ManagerAnswer::Attached { session, generation: Generation(1), clock_us: 0, nonce: 0 }, body)
            }
            _ => (ManagerAnswer::Done, vec![]),
        };
        Answer::ok(control::encode(&answer), body)
    }

    async fn serve(&self, peer: &Peer, request: Request) -> Answer {
        self.seen.in_flight.set(self.seen.in_flight.get() + 1);
        self.seen.most_in_flight.set(self.seen.most_in_flight.get().max(self.seen.in_flight.get()));
        sleep(Duration::from_micros(100)).await;
        self.seen.in_flight.set(self.seen.in_flight.get() - 1);
        let (asked, _) = DataRequest::decode(peer.protocol, &request.head).expect("a client's request");
        if request.kind == Kind::Write {
            self.seen.writes.set(self.seen.writes.get() + 1);
            let verdicts = vec![(asked.range, Verdict::Applied)];
            return Answer::ok(WriteAnswer { clock: 0, verdicts }.encode(), vec![]);
        }
        self.seen.reads.set(self.seen.reads.get() + 1);
        if self.seen.reads.get() > self.reads_max {
            return Answer::error(Status::Invalid, "enough");
        }
        let extent = Extent {
            range: asked.range,
            version: Version::ZERO,
            open: false,
            content: Content::Zero,
            crcs: vec![],
        };
        Answer::ok(ReadAnswer { clock: 0, extents: vec![extent] }.encode(), vec![])
    }
}

impl Greeter for Everything {
    fn greet(&self, _: &Hello) -> Result<Option<FabricId>, String> {
        Ok(Some(FabricId(7)))
    }
}

impl Service for Everything {
    async fn handle(self: Rc<Self>, peer: Rc<Peer>, request: Request) -> Answer {
        match request.kind {
            Kind::Manage => self.manage(&request.head).await,
            Kind::Read | Kind::Write => self.serve(&peer, request).await,
            _ => Answer::ok(vec![], vec![]),
        }
    }
}

/// Runs a load, and tells what arrived at the server.
fn run(load: Load, reads_max: u64) -> (Result<LoadResult, BenchError>, Rc<Seen>) {
    with_volume(reads_max, async move |volume| load.run(&volume).await)
}

/// Runs a load that is watched.
fn run_watched(load: Load, watch: impl FnOnce() -> Watch + 'static) -> Ran {
    let (ran, _) = with_volume(u64::MAX, async move |volume| load.run_watched(&volume, watch()).await);
    ran.expect("the load fits")
}

/// Does something with a volume, and tells what arrived at the server.
fn with_volume<T: 'static>(reads_max: u64, with: impl AsyncFnOnce(Volume) -> T + 'static) -> (T, Rc<Seen>) {
    let seen = Rc::new(Seen::default());
    let arrived = seen.clone();
    let result = Sim::new(3).block_on(async move {
        let addr: Addr = ADDR.parse().expect("a valid address");
        let at = addr.clone();
        spawn_process(IpAddr::from([10, 0, 0, 1]), "server", async move {
            let listener = Listener::bind(&at).expect("the port is free");
            Server::run(listener, Services::one(Rc::new(Everything { seen, reads_max }))).await;
        });
        sleep(Duration::from_millis(1)).await;
        let fabric = Fabric::connect(&[addr], "test").await.expect("the server answers");
        let volume: Volume = fabric.attach("v", AttachOptions::default()).await.expect("the server agrees");
        with(volume).await
    });
    (result, arrived)
}

fn load(read_percent: u8, depth: u32, amount: Amount) -> Load {
    Load {
        pattern: Pattern::Random,
        read_percent,
        block_size: 4096,
        depth,
        amount,
        seed: 1,
        ..Load::default()
    }
}

#[test]
fn every_request_is_carried_out_and_counted_once() {
    let (result, seen) = run(load(50, 8, Amount::Requests(400)), u64::MAX);
    let result = result.expect("the load runs");
    assert_eq!(result.requests(), 400);
    assert_eq!(result.reads.requests, seen.reads.get());
    assert_eq!(result.writes.requests * 2, seen.writes.get(), "each write goes to both replicas");
    assert!(result.reads.requests > 100 && result.writes.requests > 100);
    assert_eq!(result.latency_ns().len(), 400);
    assert!(result.latency_ns().min() >= 100_000, "no request is faster than the server");
}

#[test]
fn the_depth_is_kept_and_not_passed() {
    let (result, seen) = run(load(100, 8, Amount::Time(Duration::from_millis(100))), u64::MAX);
    let result = result.expect("the load runs");
    assert_eq!(seen.most_in_flight.get(), 8);
    assert!(result.elapsed >= Duration::from_millis(99), "{:?}", result.elapsed);
    assert!(result.requests() > 100, "{}", result.requests());
}

#[test]
fn a_request_that_fails_ends_the_load() {
    let (result, seen) = run(load(100, 4, Amount::Requests(u64::MAX)), 20);
    assert!(matches!(result, Err(BenchError::Request(_))), "{result:?}");
    assert!(seen.reads.get() <= 24, "no new request is begun after a failure");
}

#[test]
fn loads_that_do_not_fit_are_refused() {
    let good = load(100, 1, Amount::Requests(1));
    for bad in [
        Load { block_size: 100, ..good.clone() },
        Load { block_size: 0, ..good.clone() },
        Load { block_size: 2 * VOLUME_BLOCKS * 4096, ..good.clone() },
        Load { depth: 0, ..good.clone() },
        Load { read_percent: 101, ..good.clone() },
    ] {
        let (result, seen) = run(bad, u64::MAX);
        assert!(matches!(result, Err(BenchError::Invalid { .. })));
        assert_eq!(seen.reads.get() + seen.writes.get(), 0);
    }
}

#[test]
fn each_second_is_told_and_all_of_them_are_the_whole() {
    let told: Rc<RefCell<Vec<(u64, LoadResult)>>> = Rc::default();
    let listener = told.clone();
    let ran = run_watched(load(50, 4, Amount::Time(Duration::from_millis(2500))), || Watch {
        on_second: Some(Box::new(move |second, result| listener.borrow_mut().push((second, result)))),
        ..Watch::default()
    });
    let told = told.borrow();
    assert_eq!(told.iter().map(|(second, _)| *second).collect::<Vec<_>>(), [0, 1, 2]);
    let sum: u64 = told.iter().map(|(_, result)| result.requests()).sum();
    assert_eq!(sum, ran.result.requests());
    let latencies: u64 = told.iter().map(|(_, result)| result.latency_ns().len()).sum();
    assert_eq!(latencies, ran.result.latency_ns().len());
    assert_eq!((told[0].1.elapsed, told[1].1.elapsed), (Duration::from_secs(1), Duration::from_secs(1)));
    assert!(told[2].1.elapsed >= Duration::from_millis(499), "{:?}", told[2].1.elapsed);
}

#[test]
fn whoever_watches_can_end_a_load() {
    let stop = Arc::new(AtomicBool::new(false));
    let (teller, flag) = (stop.clone(), stop.clone());
    let slow = Load { per_second_max: Some(0.1), ..load(100, 4, Amount::Time(Duration::from_secs(3600))) };
    let ran = run_watched(slow, move || Watch {
        on_second: Some(Box::new(move |second, _| teller.store(second == 1, Ordering::Relaxed))),
        stop: Some(flag),
        ..Watch::default()
    });
    assert!(ran.failure.is_none() && stop.load(Ordering::Relaxed));
    assert_eq!(ran.result.requests(), 1, "one is due at once, the next after ten seconds");
}

#[test]
fn a_rate_is_kept_and_what_it_cannot_keep_is_late() {
    let paced = |per_second, depth| Load {
        per_second_max: Some(per_second),
        ..load(100, depth, Amount::Time(Duration::from_secs(1)))
    };
    let counted = Load { amount: Amount::Requests(50), ..paced(100.0, 4) };
    assert_eq!(run(counted, u64::MAX).0.expect("the load runs").requests(), 50);
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(run(paced(rate, 1), u64::MAX).0, Err(BenchError::Invalid { .. })), "{rate}");
    }
    let kept = run(paced(100.0, 4), u64::MAX).0.expect("the load runs");
    assert!((99..=101).contains(&kept.requests()), "{}", kept.requests());
    assert!(kept.latency_ns().max() < 2_000_000, "none had to wait: {}", kept.latency_ns().max());
    // The server needs 100 us, so that one in flight cannot do 20,000 per second.
    let missed = run(paced(20_000.0, 1), u64::MAX).0.expect("the load runs");
    assert!(missed.requests() < 10_001, "{}", missed.requests());
    assert!(missed.latency_ns().max() > 100_000_000, "the last was due long ago");
}

#[test]
fn a_load_says_how_far_it_is_behind_its_rate() {
    // One in flight does less than 10,000 per second: of a second at 20,000, half is left to make up for.
    for (rate, most, is_behind) in [(100.0, Duration::from_millis(2), false), (20_000.0, Duration::MAX, true)]
    {
        let load = Load { per_second_max: Some(rate), ..load(100, 1, Amount::Time(Duration::from_secs(1))) };
        let farthest = Rc::new(Cell::new(Duration::ZERO));
        let told = farthest.clone();
        run_watched(load, move || {
            let schedule = Rc::new(Schedule::default());
            assert_eq!(schedule.behind(), Duration::ZERO, "nothing is due before it begins");
            let seen = schedule.clone();
            let on_request = move |_, _, _| told.set(told.get().max(seen.behind()));
            Watch { on_request: Some(Box::new(on_request)), schedule: Some(schedule), ..Watch::default() }
        });
        let behind = farthest.get();
        assert!(behind <= most, "{behind:?} at {rate} per second");
        assert_eq!(behind > Duration::from_millis(400), is_behind, "{behind:?} at {rate} per second");
    }
}

#[test]
fn a_load_keeps_to_its_range() {
    let part = |range| Load { range: Some(range), ..load(100, 1, Amount::Requests(5)) };
    assert!(run(part(8192..16384), u64::MAX).0.is_ok());
    for bad in [8192..8192 + 2048, 100..8192, 0..VOLUME_BLOCKS * 4096 + 4096] {
        let (result, _) = run(part(bad), u64::MAX);
        assert!(matches!(result, Err(BenchError::Invalid { .. })));
    }
}

/// Runs a load that is checked, on a server which loses every write and answers zeroes.
fn run_checked(read_percent: u8) -> (Ran, weft_bench::Verified) {
    let range = 0..64 * 4096;
    let ledger = Rc::new(RefCell::new(Ledger::new(9, range.clone(), 4096, Before::Zeroes)));
    let kept = ledger.clone();
    let load = Load { range: Some(range), ..load(read_percent, 4, Amount::Requests(2000)) };
    let ran = run_watched(load, move || Watch { ledger: Some(ledger), ..Watch::default() });
    let verified = kept.borrow().verified().clone();
    (ran, verified)
}

#[test]
fn lost_writes_are_noticed_and_end_the_load() {
    let (ran, verified) = run_checked(50);
    assert!(verified.blocks_wrong > 0 && ran.failure.is_none(), "{verified:?}");
    assert!(ran.result.requests() < 2000, "it goes no further");
    let mismatch = &verified.mismatches[0];
    assert!(mismatch.lba < 64 && mismatch.found == "zeroes", "{mismatch}");
    assert!(mismatch.expected.contains("generation"), "{mismatch}");
}

#[test]
fn zeroes_are_right_where_nothing_was_written() {
    let (ran, verified) = run_checked(100);
    assert_eq!((verified.blocks_wrong, verified.blocks_checked), (0, 2000));
    assert_eq!(ran.result.requests(), 2000);
}
