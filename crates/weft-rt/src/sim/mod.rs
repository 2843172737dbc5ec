//! Simulation: virtual time, seeded randomness, simulated disks and network, processes that can be killed.
//!
//! Everything runs on one thread. The same seed gives the same run, to the byte: [`trace_hash`] sums up every
//! poll, disk operation and delivery, so that two runs can be compared. Nothing here reads a real clock or
//! the operating system's randomness.

mod disk;
mod net;

pub(crate) use disk::DiskHandle;
pub use disk::{DiskEvent, DiskFaults, SimDisk};
pub(crate) use net::{SimListener, SimStream};

use crate::executor::{self, Backend, Process, with_core};
use crate::time::Instant;
use disk::DiskRef;
use net::Network;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

/// Virtual nanoseconds that a poll takes: small against every latency, but not nothing, so that a task that
/// yields in a circle still lets time pass.
const POLL_NANOS: u64 = 50;

/// Where virtual wall clocks begin: 2026-01-01T00:00:00Z in microseconds.
const WALL_CLOCK_START_US: u64 = 1_767_225_600_000_000;

/// A simulated process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub(crate) Process);

/// What a kill does to the disks that the process has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies, the machine lives: completed writes stay, those in flight may or may not happen.
    Process,
    /// The machine loses power: each write that was not flushed is kept, lost or torn, independently.
    PowerCut,
}

struct ProcessState {
    host: IpAddr,
    name: String,
    /// The true time.
    began: u64,
    wall_skew_us: i64,
    /// What tests have set for it ([`set`]).
    settings: BTreeMap<&'static str, u64>,
    disks: Vec<DiskRef>,
}

/// The monotonic clock of a process beside true time: how fast it runs since the process began.
#[derive(Clone, Copy, Default)]
struct Clock {
    began: u64,
    ppm: i32,
}

impl Clock {
    /// What it shows at a true time.
    fn at(self, true_nanos: u64) -> u64 {
        if self.ppm == 0 {
            return true_nanos;
        }
        let passed = true_nanos.saturating_sub(self.began);
        let ahead = match i64::try_from(passed).ok().and_then(|passed| passed.checked_mul(self.ppm.into())) {
            Some(parts) => parts / 1_000_000,
            None => (i128::from(passed) * i128::from(self.ppm) / 1_000_000) as i64,
        };
        true_nanos.saturating_add_signed(ahead)
    }

    /// The first true time at which it shows this.
    fn shows(self, nanos: u64) -> u64 {
        if self.ppm == 0 || nanos <= self.began {
            return nanos;
        }
        let shown = nanos - self.began;
        let rate = (1_000_000 + i64::from(self.ppm)) as u64;
        let passed = match shown.checked_mul(1_000_000) {
            Some(parts) => parts / rate,
            None => (u128::from(shown) * 1_000_000 / u128::from(rate)).min(u128::from(u64::MAX)) as u64,
        };
        let mut at = self.began.saturating_add(passed);
        while at > self.began && self.at(at) >= nanos {
            at -= 1;
        }
        while self.at(at) < nanos && at < u64::MAX {
            at += 1;
        }
        at
    }
}

/// State of one simulation; clones share it.
#[derive(Clone)]
pub(crate) struct World(Rc<WorldState>);

/// Takes the lines of the story.
type Story = Box<dyn FnMut(&str)>;

struct WorldState {
    seed: u64,
    random: Cell<u64>,
    clock: Cell<u64>,
    trace: Cell<u64>,
    processes: RefCell<BTreeMap<Process, ProcessState>>,
    next_process: Cell<Process>,
    /// Clocks that run faster or slower than true time, by process: they are looked at with every poll. Processes
    /// behind its end, and those that are dead, have true time.
    clocks: RefCell<Vec<Clock>>,
    polls: Cell<u64>,
    polls_max: Cell<u64>,
    network: Network,
    story: RefCell<Option<Story>>,
}

impl World {
    fn new(seed: u64) -> World {
        World(Rc::new(WorldState {
            seed,
            random: Cell::new(seed ^ 0x5eed_5eed_5eed_5eed),
            clock: Cell::new(1_000_000_000),
            trace: Cell::new(0xcbf2_9ce4_8422_2325),
            processes: RefCell::default(),
            next_process: Cell::new(1),
            clocks: RefCell::default(),
            polls: Cell::new(0),
            polls_max: Cell::new(u64::MAX),
            network: Network::default(),
            story: RefCell::new(None),
        }))
    }

    /// What the process's clock shows; true time for process 0.
    pub(crate) fn now(&self, process: Process) -> Instant {
        Instant::from_nanos(self.clock_of(process).at(self.0.clock.get()))
    }

    fn clock_of(&self, process: Process) -> Clock {
        self.0.clocks.borrow().get(process as usize).copied().unwrap_or_default()
    }

    /// The true time at which the process's clock shows this.
    pub(crate) fn true_time(&self, process: Process, at: Instant) -> Instant {
        Instant::from_nanos(self.clock_of(process).shows(at.as_nanos()))
    }

    /// Completes at a true time, or just after, whatever the clock of the process that waits shows.
    pub(crate) fn sleep_until_true(&self, at: Instant) -> crate::Sleep {
        let clock = self.clock_of(with_core(|core| core.process()));
        let shown = clock.at(at.as_nanos()) + u64::from(clock.ppm != 0);
        crate::sleep_until(Instant::from_nanos(shown))
    }

    pub(crate) fn wall_clock_us(&self, process: Process) -> u64 {
        let skew = self.0.processes.borrow().get(&process).map_or(0, |p| p.wall_skew_us);
        (WALL_CLOCK_START_US + self.0.clock.get() / 1000).saturating_add_signed(skew)
    }

    /// SplitMix64 (Steele, Lea, Flood 2014): one word of state, passes BigCrush.
    pub(crate) fn random_u64(&self) -> u64 {
        let state = self.0.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.random.set(state);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn random_below(&self, n: u64) -> u64 {
        ((u128::from(self.random_u64()) * u128::from(n)) >> 64) as u64
    }

    /// A random duration between the two, inclusive.
    pub(crate) fn random_duration(&self, low: Duration, high: Duration) -> Duration {
        let (low, high) = (low.as_nanos() as u64, high.as_nanos() as u64);
        Duration::from_nanos(low + self.random_below(high.saturating_sub(low) + 1))
    }

    pub(crate) fn advance_to(&self, at: Instant) {
        self.0.clock.set(self.0.clock.get().max(at.as_nanos()));
    }

    pub(crate) fn trace_poll(&self, process: Process, serial: u64) {
        self.0.clock.set(self.0.clock.get() + POLL_NANOS);
        self.0.polls.set(self.0.polls.get() + 1);
        assert!(self.0.polls.get() <= self.0.polls_max.get(), "{} polls, and no end", self.0.polls.get());
        self.trace(u64::from(process) << 40 ^ serial);
    }

    /// Adds an event to the trace's hash (FNV-1a over words).
    pub(crate) fn trace(&self, event: u64) {
        let mut h = self.0.trace.get();
        for word in [self.0.clock.get(), event] {
            h = (h ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.0.trace.set(h);
    }

    fn host(&self, process: Process) -> IpAddr {
        let harness = IpAddr::from([127, 0, 0, 1]);
        self.0.processes.borrow().get(&process).map_or(harness, |p| p.host)
    }

    fn register_disk(&self, process: Process, disk: DiskRef) {
        if let Some(p) = self.0.processes.borrow_mut().get_mut(&process) {
            p.disks.push(disk);
        }
    }
}

/// A simulation, ready to run.
pub struct Sim(World);

impl Sim {
    /// A simulation whose every choice follows from the seed.
    pub fn new(seed: u64) -> Sim {
        Sim(World::new(seed))
    }

    /// Tells the story as it happens: every [`tell`] line, with its virtual time, goes to the sink.
    pub fn with_story(self, sink: impl FnMut(&str) + 'static) -> Sim {
        *self.0.0.story.borrow_mut() = Some(Box::new(sink));
        self
    }

    /// Gives the run up after so many polls of tasks: something goes round in circles then.
    pub fn with_polls_max(self, polls: u64) -> Sim {
        self.0.0.polls_max.set(polls);
        self
    }

    /// Runs the harness's future to its end; everything that still runs then is dropped.
    ///
    /// # Panics
    /// If no task can run and no timer is set: a deadlock. After too many polls.
    pub fn block_on<F: Future + 'static>(&self, future: F) -> F::Output {
        let _simulated = weft_rules::Simulated::begin();
        let output = executor::run(Backend::Sim(self.0.clone()), future);
        crate::buf::give_back_free();
        output
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.0.0.seed
    }
}

fn world() -> World {
    with_core(|core| core.world().cloned()).expect("called outside of a simulation")
}

/// Whether the current executor is a simulation.
pub fn is_simulated() -> bool {
    executor::try_with_core(|core| core.world().is_some()).unwrap_or(false)
}

/// Starts a process on a host: the future is its main task, and what it spawns belongs to it.
pub fn spawn_process<F: Future<Output = ()> + 'static>(host: IpAddr, name: &str, future: F) -> ProcessId {
    let world = world();
    let id = world.0.next_process.get();
    world.0.next_process.set(id + 1);
    world.0.processes.borrow_mut().insert(
        id,
        ProcessState {
            host,
            name: name.to_owned(),
            began: world.0.clock.get(),
            wall_skew_us: 0,
            settings: BTreeMap::new(),
            disks: Vec::new(),
        },
    );
    with_core(|core| core.as_process(id, || drop(executor::spawn_on(core, id, future))));
    ProcessId(id)
}

/// Kills a process at whatever await points its tasks are: their futures are dropped, its connections end,
/// its disks lose what the crash says.
pub fn kill(process: ProcessId, crash: Crash) {
    let world = world();
    let Some(state) = world.0.processes.borrow_mut().remove(&process.0) else { return };
    tell(|| format!("{} dies ({crash:?})", state.name));
    if let Some(clock) = world.0.clocks.borrow_mut().get_mut(process.0 as usize) {
        *clock = Clock::default();
    }
    // First the disks: dropping the futures must not let an operation in flight complete.
    for disk in &state.disks {
        disk.crash(&world, process.0, crash);
    }
    with_core(|core| core.abort_process(process.0));
}

/// Whether the process has not been killed.
pub fn is_alive(process: ProcessId) -> bool {
    world().0.processes.borrow().contains_key(&process.0)
}

/// Sets how far the process's wall clock is off, in microseconds.
pub fn set_wall_skew(process: ProcessId, skew_us: i64) {
    if let Some(p) = world().0.processes.borrow_mut().get_mut(&process.0) {
        p.wall_skew_us = skew_us;
    }
}

/// Sets something for a process, which code of other crates asks for by this name ([`setting`]).
pub fn set(process: ProcessId, name: &'static str, value: u64) {
    if let Some(p) = world().0.processes.borrow_mut().get_mut(&process.0) {
        p.settings.insert(name, value);
    }
}

/// What was set for this process under a name; `None` if nothing was, or outside of a simulation.
pub fn setting(name: &str) -> Option<u64> {
    with_core(|core| {
        let processes = &core.world()?.0.processes;
        processes.borrow().get(&core.process())?.settings.get(name).copied()
    })
}

/// Sets how much faster than true time the process's monotonic clock runs, in millionths. It shows true time when
/// the process begins: call it before the process has run.
pub fn set_clock_rate(process: ProcessId, ppm: i32) {
    assert!(ppm.abs() < 1_000_000, "a clock does not stand still or run backwards");
    let world = world();
    let Some(began) = world.0.processes.borrow().get(&process.0).map(|p| p.began) else { return };
    assert_eq!(began, world.0.clock.get(), "the process has not run yet");
    if ppm != 0 {
        let (mut clocks, at) = (world.0.clocks.borrow_mut(), process.0 as usize);
        if clocks.len() <= at {
            clocks.resize(at + 1, Clock::default());
        }
        clocks[at] = Clock { began, ppm };
    }
}

/// Stops a process where it is, as SIGSTOP does: its timers run out, what is sent to it piles up.
pub fn pause(process: ProcessId) {
    if is_alive(process) {
        tell(|| format!("{} stands still", name_of(process)));
        with_core(|core| core.pause_process(process.0));
    }
}

/// Lets a stopped process go on.
pub fn resume(process: ProcessId) {
    if is_alive(process) {
        tell(|| format!("{} goes on", name_of(process)));
        with_core(|core| core.resume_process(process.0));
    }
}

/// Lets every stopped process go on.
pub fn resume_all() {
    with_core(|core| core.resume_all());
}

/// The host of a process that is alive.
pub fn host_of(process: ProcessId) -> Option<IpAddr> {
    world().0.processes.borrow().get(&process.0).map(|p| p.host)
}

/// The processes of a host that are alive, in the order in which they began.
pub fn processes_on(host: IpAddr) -> Vec<ProcessId> {
    let world = world();
    let processes = world.0.processes.borrow();
    processes.iter().filter(|(_, p)| p.host == host).map(|(id, _)| ProcessId(*id)).collect()
}

fn name_of(process: ProcessId) -> String {
    world().0.processes.borrow().get(&process.0).map_or_else(String::new, |p| p.name.clone())
}

/// Tasks that have not ended, of all processes.
pub fn task_count() -> usize {
    with_core(|core| core.task_count())
}

/// Timers that are set, of all processes.
pub fn timer_count() -> usize {
    with_core(|core| core.timer_count())
}

/// Bytes under way on the network, the most on one connection in one direction.
pub fn bytes_under_way() -> usize {
    world().0.network.bytes_under_way()
}

/// Blocks or opens the way from one host to another, one direction; what is sent meanwhile is delivered later.
pub fn set_blocked(from: IpAddr, to: IpAddr, blocked: bool) {
    let world = world();
    tell(|| format!("network from {from} to {to} {}", if blocked { "is cut" } else { "is back" }));
    world.0.network.set_blocked(from, to, blocked);
}

/// Lets a host take no new connections, as behind a firewall, or ends that. Those that it has go on, and it may make
/// others.
pub fn set_closed(host: IpAddr, closed: bool) {
    tell(|| format!("{host} takes {} connections", if closed { "no new" } else { "new" }));
    world().0.network.set_closed(host, closed);
}

/// Opens all ways.
pub fn heal_network() {
    tell(|| "all networks are back".to_owned());
    world().0.network.heal();
}

/// Resets every connection between two hosts; requests in flight are lost.
pub fn reset_connections(a: IpAddr, b: IpAddr) {
    tell(|| format!("connections between {a} and {b} are reset"));
    world().0.network.reset_between(a, b);
}

/// Sets how long bytes travel: at least and at most.
pub fn set_latency(low: Duration, high: Duration) {
    world().0.network.set_latency(low, high);
}

/// Sets how many bytes a connection has under way in one direction before its writer waits: 4 MiB until then.
pub fn set_socket_bytes(bytes: usize) {
    world().0.network.set_socket_bytes(bytes);
}

/// A hash over everything that has happened so far.
pub fn trace_hash() -> u64 {
    world().0.trace.get()
}

/// Adds a line to the story, if one is told.
pub fn tell(line: impl FnOnce() -> String) {
    executor::try_with_core(|core| {
        let Some(world) = core.world() else { return };
        if let Some(story) = &mut *world.0.story.borrow_mut() {
            let us = world.0.clock.get() / 1000;
            let who = world
                .0
                .processes
                .borrow()
                .get(&core.process())
                .map_or_else(String::new, |p| format!("{} ", p.name));
            story(&format!("{:>8}.{:03} ms  {who}{}", us / 1000, us % 1000, line()));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Addr, Buf, BufMut, Listener, Stream, random_u64, sleep, spawn};

    fn host(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    async fn echo_once(addr: Addr) {
        let listener = Listener::bind(&addr).unwrap();
        loop {
            let stream = listener.accept().await.unwrap();
            spawn(async move {
                let (n, buf) = stream.read(BufMut::aligned(64), 0).await;
                if let Ok(n) = n {
                    let _ = stream.write(vec![buf.freeze().slice(0..n)]).await;
                }
            });
        }
    }

    fn run(seed: u64) -> (u64, u64) {
        Sim::new(seed).block_on(async {
            let addr: Addr = "10.0.0.1:4800".parse().unwrap();
            let server = spawn_process(host(1), "server", echo_once(addr.clone()));
            sleep(Duration::from_millis(1)).await;
            for i in 0..10u8 {
                let stream = Stream::connect(&addr).await.unwrap();
                stream.write(vec![Buf::from(&[i][..])]).await.unwrap();
                let (n, buf) = stream.read(BufMut::aligned(64), 0).await;
                assert_eq!((n.unwrap(), buf[0]), (1, i));
            }
            kill(server, Crash::Process);
            assert!(Stream::connect(&addr).await.is_err());
            (trace_hash(), random_u64())
        })
    }

    #[test]
    fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
        assert_eq!(run(7), run(7));
        assert_ne!(run(7).0, run(8).0);
    }

    #[test]
    fn what_is_sent_into_a_cut_network_arrives_when_it_is_back() {
        Sim::new(1).block_on(async {
            let addr: Addr = "10.0.0.1:4800".parse().unwrap();
            spawn_process(host(1), "server", echo_once(addr.clone()));
            sleep(Duration::from_millis(1)).await;
            let client = Stream::connect(&addr).await.unwrap();
            set_blocked(IpAddr::from([127, 0, 0, 1]), host(1), true);
            client.write(vec![Buf::from(&b"x"[..])]).await.unwrap();
            let reader = client.clone();
            let read = spawn(async move { reader.read(BufMut::aligned(64), 0).await.0.unwrap() });
            sleep(Duration::from_secs(5)).await;
            assert!(!read.is_finished());
            heal_network();
            assert_eq!(read.await, Ok(1));
        });
    }

    #[test]
    fn a_closed_host_connects_and_is_not_connected_to() {
        Sim::new(1).block_on(async {
            let addr: Addr = "10.0.0.1:4800".parse().unwrap();
            spawn_process(host(1), "server", echo_once(addr.clone()));
            sleep(Duration::from_millis(1)).await;
            set_closed(IpAddr::from([127, 0, 0, 1]), true);
            Stream::connect(&addr).await.expect("it connects to others");
            set_closed(host(1), true);
            let late = spawn(async move { Stream::connect(&addr).await.is_ok() });
            sleep(Duration::from_secs(1)).await;
            assert!(!late.is_finished());
            heal_network();
            assert_eq!(late.await, Ok(true));
        });
    }

    #[test]
    fn a_killed_process_resets_its_peers() {
        Sim::new(1).block_on(async {
            let addr: Addr = "10.0.0.1:4800".parse().unwrap();
            let to = addr.clone();
            let server = spawn_process(host(1), "server", async move {
                let listener = Listener::bind(&to).unwrap();
                let _held = listener.accept().await.unwrap();
                std::future::pending::<()>().await;
            });
            sleep(Duration::from_millis(1)).await;
            let client = Stream::connect(&addr).await.unwrap();
            kill(server, Crash::Process);
            let (n, _) = client.read(BufMut::aligned(64), 0).await;
            assert!(matches!(n, Ok(0) | Err(_)));
        });
    }
}
