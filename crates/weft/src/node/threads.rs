//! A node with several targets: a thread for each, and the main thread beside them.
//!
//! The main thread deals out the drives, tells the threads what passes between them (drives that are copies
//! of each other, the end), and asks them for their counters. All of it goes by mailboxes. It owns the order
//! of a start: the node's first target joins before the others, because the node enters the map with it.

use super::deal::{Share, bind as bind_to_cores, deal};
use super::default_threads::{at_most, cores, is_port_of};
use super::devices::{Devices, Listed};
use super::drives::twins;
use super::served::Served;
use super::{bind_metrics, fabric_of, page_of};
use crate::manager::bind;
use crate::stop::asked_to_stop;
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_cli::{CliError, NodeRunArgs};
use weft_metrics::{TargetPage, node_page};
use weft_rt::sync::{Either, race};
use weft_rt::{
    Addr, Listener, Mailbox, Poster, Thread, affinity, mailbox, random_u64, sleep, spawn, timeout,
};
use weft_target::{Target, TargetThread};
use weft_types::limits::TARGETS_PER_NODE_MAX;
use weft_types::{DeviceId, DriveId, FabricId, with_causes};
use weft_wire::control::DriveLeftOut;

/// How long the other targets wait for the first one to join: it takes milliseconds. Then they try by
/// themselves.
const FIRST_JOINS_MAX: Duration = Duration::from_secs(2);

/// How often a thread looks whether its target has joined.
const JOIN_POLL: Duration = Duration::from_millis(5);

/// How long a thread may take to list its counters.
const PAGE_MAX: Duration = Duration::from_secs(1);

/// Words that a thread has room for: each is read at once.
const WORDS: usize = 16;

/// What the main thread tells a thread.
enum Word {
    /// Serve, without these drives. The first target says which drives the process has left out.
    Serve { left_out: Vec<DriveLeftOut>, twins: BTreeMap<DriveId, DriveLeftOut> },
    /// Say what you have counted.
    Page(Poster<TargetPage>),
    /// Stop in order.
    Stop,
}

/// What a thread tells the main thread.
enum News {
    /// It has opened its drives.
    Opened { drives: Vec<(String, DriveId)>, left_out: Vec<DriveLeftOut> },
    /// Its target has joined.
    Joined(u32),
    /// It cannot go on.
    Failed { message: String, hint: String },
}

/// All that a thread begins with.
struct Plan {
    args: NodeRunArgs,
    fabric: FabricId,
    thread: TargetThread,
    /// The drives that were dealt to it.
    drives: Vec<Listed>,
    /// Threads, this one too, that have parts of a device of its.
    sharers: u32,
    words: Mailbox<Word>,
    news: Poster<News>,
}

/// A thread that runs.
struct Running {
    thread: Thread,
    words: Poster<Word>,
}

/// How many targets the node is to have at most: as many as were asked for, or as the machine says.
///
/// # Errors
/// If there cannot be so many as were asked for.
pub(super) async fn asked(args: &NodeRunArgs) -> Result<u32, CliError> {
    let Some(asked) = args.threads else { return Ok(at_most(args).await) };
    if (1..=TARGETS_PER_NODE_MAX).contains(&asked) {
        return Ok(asked);
    }
    Err(CliError::Usage {
        message: format!("--threads {asked}: a node has 1 to {TARGETS_PER_NODE_MAX} threads"),
        hint: "as many as the drives and the load need: few are enough".into(),
    })
}

/// How many of so many threads have a drive to serve.
///
/// # Errors
/// If there is no port for each.
fn count(args: &NodeRunArgs, asked: u32, drives: usize) -> Result<u32, CliError> {
    let usage = |message: String, hint: &str| Err(CliError::Usage { message, hint: hint.to_owned() });
    let drives = u32::try_from(drives).unwrap_or(TARGETS_PER_NODE_MAX);
    let count = asked.min(drives.max(1));
    if count < asked && args.threads.is_some() {
        tracing::warn!(
            asked,
            used = count,
            "more threads than drives: each thread serves at least one drive"
        );
    }
    let cores = cores();
    if count > cores {
        tracing::warn!(
            threads = count,
            cores,
            "more threads than cores that this process may use: they share them"
        );
    }
    match &args.listen {
        _ if count == 1 => Ok(1),
        Addr::Unix(_) => usage(
            format!("--threads {count}: each thread listens at a port of its own, and --listen is a path"),
            "choose IP:PORT: the first thread listens there, the others at the ports that follow",
        ),
        Addr::Tcp(addr) if addr.port() > 0 && u32::from(addr.port()) + count - 1 > u32::from(u16::MAX) => {
            usage(
                format!("--threads {count} need as many ports from {} on: there are fewer", addr.port()),
                "choose a lower port for --listen",
            )
        }
        Addr::Tcp(_) => {
            let own = (0..count).filter_map(|index| match listen_of(&args.listen, index) {
                Addr::Tcp(addr) if addr.port() > 0 => Some(addr),
                _ => None,
            });
            match own.into_iter().find(|addr| is_port_of(args.metrics.as_ref(), *addr)) {
                Some(addr) => usage(
                    format!("--threads {count}: {addr} is the address of a thread, and that of --metrics"),
                    "choose a port for --metrics that is not among those that follow --listen",
                ),
                None => Ok(count),
            }
        }
    }
}

/// Where a thread listens: the first one where the node does, each other one a port further.
pub(super) fn listen_of(listen: &Addr, index: u32) -> Addr {
    match listen {
        Addr::Tcp(addr) if addr.port() > 0 => {
            Addr::Tcp(SocketAddr::new(addr.ip(), addr.port() + index as u16))
        }
        other => other.clone(),
    }
}

/// Runs the threads until a signal, and then stops all of them in order.
pub(super) async fn run(args: &NodeRunArgs, asked: u32) -> Result<(), CliError> {
    let running: RefCell<Vec<Running>> = RefCell::default();
    // The locks of devices with parts are held until all threads have ended.
    let held: OnceCell<Devices> = OnceCell::new();
    let serving = async {
        let metrics = bind_metrics(args).await?;
        let found = Devices::find(&args.drives).await;
        let devices = held.get_or_init(|| found);
        let count = count(args, asked, devices.drives.len() + devices.left_out.len())?;
        let fabric = fabric_of(args).await;
        let shares = deal(&devices.drives, count as usize, &affinity::allowed_by_numa_node());
        let mut news = start(args, fabric, shares, &running).await?;
        let mut opened = all_open(count, &mut news).await?;
        opened.left_out.extend(devices.left_out.iter().cloned());
        serve(&running, opened, &mut news).await?;
        if let Some(listener) = metrics {
            let words: Rc<Vec<Poster<Word>>> = Rc::new(words_of(&running));
            let name = args.name.clone();
            spawn(weft_metrics::serve(listener, move || {
                let (words, name) = (words.clone(), name.clone());
                async move { node_page(&name, &pages(&words).await) }
            }));
        }
        while let Some(told) = news.next().await {
            told.check()?;
        }
        Ok(())
    };
    let ended = match race(asked_to_stop(args.supervisor.clone()), serving).await {
        Either::Left(()) => Ok(()),
        Either::Right(ended) => ended,
    };
    for words in words_of(&running) {
        // One that has ended has no mailbox any more.
        let _ = words.post(Word::Stop);
    }
    let running = running.take();
    for mut running in running {
        running.thread.ended().await.map_err(|error| CliError::Failed {
            message: format!("a thread could not run: {}", with_causes(&error)),
            hint: "see docs/guide.md for what a node needs of the kernel".into(),
        })?;
    }
    ended
}

fn words_of(running: &RefCell<Vec<Running>>) -> Vec<Poster<Word>> {
    running.borrow().iter().map(|running| running.words.clone()).collect()
}

/// Starts the threads; each opens its drives.
async fn start(
    args: &NodeRunArgs,
    fabric: FabricId,
    dealt: Vec<Share>,
    running: &RefCell<Vec<Running>>,
) -> Result<Mailbox<News>, CliError> {
    let count = dealt.len() as u32;
    let process = random_u64() | 1;
    let (news, told) = mailbox(WORDS * count as usize);
    let (near, allowed) = (affinity::allowed_by_numa_node(), affinity::allowed().unwrap_or_default());
    let cores = bind_to_cores(&dealt, &near, &allowed, args.pin);
    let sharers = sharers(&dealt);
    for (((index, share), sharers), cores) in (0..).zip(dealt).zip(sharers).zip(cores) {
        let listen = listen_of(&args.listen, index);
        tell_of_thread(index, &listen, &share, cores.as_deref());
        let (words, own) = mailbox(WORDS);
        let plan = Plan {
            args: NodeRunArgs { listen, ..args.clone() },
            fabric,
            thread: TargetThread { process, index, of: count },
            drives: share.drives,
            sharers,
            words: own,
            news: news.clone(),
        };
        let thread = Thread::start(&format!("target-{index}"), cores, move || plan.run());
        let thread = thread.map_err(|error| CliError::Failed {
            message: format!("thread {index} could not be started: {error}"),
            hint: "raise the limit of processes and threads of the service, or ask for fewer threads".into(),
        })?;
        running.borrow_mut().push(Running { thread, words });
    }
    tracing::info!(
        node = args.name,
        threads = count,
        pinned = args.pin,
        "each thread has drives and a port of its own"
    );
    Ok(told)
}

/// Tells what a thread is for.
fn tell_of_thread(index: u32, listen: &Addr, share: &Share, cores: Option<&[usize]>) {
    let drives: Vec<&str> = share.drives.iter().map(|drive| &*drive.path).collect();
    let (drives, cores) =
        (drives.join(", "), cores.map_or_else(|| "any".to_owned(), |cores| format!("{cores:?}")));
    tracing::info!(thread = index, %listen, drives, cores, "a thread of the node");
}

/// How many threads, each of them too, have parts of a device that it has a part of; the most of its devices.
fn sharers(dealt: &[Share]) -> Vec<u32> {
    let devices = |drives: &[Listed]| drives.iter().filter_map(Listed::device).collect::<BTreeSet<_>>();
    let all: Vec<BTreeSet<DeviceId>> = dealt.iter().map(|share| devices(&share.drives)).collect();
    let with = |device: &DeviceId| all.iter().filter(|of_thread| of_thread.contains(device)).count() as u32;
    all.iter().map(|own| own.iter().map(with).max().unwrap_or(1)).collect()
}

/// What the threads have opened and left out.
#[derive(Default)]
struct Opened {
    drives: Vec<(String, DriveId)>,
    left_out: Vec<DriveLeftOut>,
}

/// Waits until every thread has opened its drives.
async fn all_open(count: u32, news: &mut Mailbox<News>) -> Result<Opened, CliError> {
    let mut all = Opened::default();
    for _ in 0..count {
        let Some(told) = news.next().await else { break };
        if let News::Opened { drives, left_out } = told.check()? {
            all.drives.extend(drives);
            all.left_out.extend(left_out);
        }
    }
    Ok(all)
}

/// Has every thread serve, the first one in front.
async fn serve(
    running: &RefCell<Vec<Running>>,
    opened: Opened,
    news: &mut Mailbox<News>,
) -> Result<(), CliError> {
    let twins = twins(opened.drives.iter().map(|(path, drive)| (path.as_str(), *drive)));
    let mut left_out = opened.left_out;
    left_out.extend(twins.values().cloned());
    for (index, words) in words_of(running).into_iter().enumerate() {
        let left_out = std::mem::take(&mut left_out);
        // A thread that has failed has told why.
        let _ = words.post(Word::Serve { left_out, twins: twins.clone() });
        if index == 0 {
            timeout(FIRST_JOINS_MAX, first_joins(news)).await.unwrap_or(Ok(()))?;
        }
    }
    Ok(())
}

async fn first_joins(news: &mut Mailbox<News>) -> Result<(), CliError> {
    while let Some(told) = news.next().await {
        if let News::Joined(0) = told.check()? {
            break;
        }
    }
    Ok(())
}

/// What the threads have counted; nothing of those that do not answer.
async fn pages(words: &[Poster<Word>]) -> Vec<TargetPage> {
    let (answer, mut answers) = mailbox(words.len());
    let asked = words.iter().filter(|words| words.post(Word::Page(answer.clone())).is_ok()).count();
    drop(answer);
    let mut pages = Vec::new();
    let gather = async {
        while pages.len() < asked {
            match answers.next().await {
                Some(page) => pages.push(page),
                None => break,
            }
        }
    };
    let _ = timeout(PAGE_MAX, gather).await;
    pages
}

impl News {
    /// # Errors
    /// If it says that a thread cannot go on.
    fn check(self) -> Result<News, CliError> {
        match self {
            News::Failed { message, hint } => Err(CliError::Failed { message, hint }),
            news => Ok(news),
        }
    }
}

impl Plan {
    /// The life of a thread: opens its drives, serves them once it is told to, and stops in order when it is
    /// told that or nobody is there any more.
    async fn run(mut self) {
        self.args.transport.apply();
        let served = Served::default();
        match bind(&self.args.listen, "--listen").await {
            Ok(listener) => self.open_and_serve(&served, listener).await,
            Err(error) => {
                let (message, hint) = (error.chain(), error.hint());
                self.tell(News::Failed { message, hint });
                while !matches!(self.words.next().await, None | Some(Word::Stop)) {}
            }
        }
        served.stop().await;
    }

    async fn open_and_serve(&mut self, served: &Served, listener: Listener) {
        let opening = served.open(&self.drives, self.fabric);
        // Nothing is said before it has opened them, but that it shall stop.
        let Either::Left(left_out) = race(opening, self.words.next()).await else { return };
        self.tell(News::Opened { drives: served.drives(), left_out });
        let Some(Word::Serve { left_out, twins }) = self.words.next().await else { return };
        served.leave_out(&twins).await;
        let target = served.start(&self.args, self.fabric, &listener, self.thread);
        target.set_left_out(left_out);
        target.set_device_sharers(self.sharers);
        self.tell_when_joined(target.clone());
        let serving = served.run(listener);
        spawn(serving);
        while let Some(Word::Page(answer)) = self.words.next().await {
            let target = target.clone();
            spawn(async move {
                // Nobody waits any more where this fails.
                let _ = answer.post(page_of(&target).await);
            });
        }
    }

    fn tell_when_joined(&self, target: Rc<Target>) {
        let (news, index) = (self.news.clone(), self.thread.index);
        spawn(async move {
            while !target.has_joined() && !news.is_gone() {
                sleep(JOIN_POLL).await;
            }
            let _ = news.post(News::Joined(index));
        });
    }

    /// Tells the main thread, unless it is stopping and reads no more.
    fn tell(&self, news: News) {
        let _ = self.news.post(news);
    }
}
