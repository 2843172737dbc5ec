//! A torture run: rounds of faults, what destroys a drive between them, and the verdict.

use crate::Trouble;
use crate::client::SPAN;
use crate::dice::Dice;
use crate::fabric::{DEVICE_BYTES, Fabric, PATIENCE, is_on, tail};
use crate::fault::Fault;
use crate::fio::{Export, VOLUME, VOLUME_MIB};
use crate::mounts::Mounts;
use crate::record::Histories;
use crate::world::{Host, World, signal};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use weft_checker::is_linearizable;

/// Faults that last at once, at most.
const AT_ONCE: usize = 3;

/// The volume that clients share.
const HOT: &str = "hot";
const HOT_MIB: u64 = 64;

/// The volume that nobody touches after it was filled.
const COLD: &str = "cold";
const COLD_MIB: u64 = 32;

/// Longer than a mount keeps back what was written: it looks whether there is room every five seconds.
const KEPT_BACK: Duration = Duration::from_secs(8);

/// How long a thread stands still while the others are measured: longer than a lease, and its end.
const STALL: Duration = Duration::from_secs(10);

/// How long latencies are counted for a percentile of them.
const MEASURED: Duration = Duration::from_secs(8);

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program under torture.
    pub weft: PathBuf,
    /// A folder for everything, which is not there yet.
    pub dir: PathBuf,
    /// How long to go on.
    pub lasts: Lasts,
    /// How long a round of faults is.
    pub round: Duration,
    /// What the dice are thrown by.
    pub seed: u64,
    /// How many nodes, 4 or more.
    pub nodes: usize,
    /// How many clients.
    pub clients: usize,
}

/// How long a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasts {
    /// Until this time is over, and the round that goes on then.
    Time(Duration),
    /// So many rounds.
    Rounds(u32),
}

/// A client's process and its host.
pub struct Client {
    /// Where it runs.
    pub host: Host,
    child: Option<Child>,
    log: PathBuf,
}

/// A run that is under way.
pub struct Torture {
    /// What is tortured.
    pub fabric: Fabric,
    /// Who uses it.
    pub clients: Vec<Client>,
    /// Mounts of a file system, and who uses these.
    pub mounts: Mounts,
    plan: Plan,
    world: World,
    dice: Dice,
    /// Processes of clients that were started so far: their numbers and records.
    records: Vec<(String, PathBuf)>,
    began: Instant,
    outcome: Outcome,
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Faults by kind.
    pub faults: BTreeMap<String, u64>,
    /// Rounds.
    pub rounds: u32,
    /// Operations that clients had an answer to.
    pub acknowledged: u64,
    /// Calls that users of files had an answer to.
    pub calls: u64,
    /// Blocks whose history was checked.
    pub blocks: usize,
    /// The longest that an operation took.
    pub longest: Duration,
    /// The longest from the end of the last fault of a round to a healthy fabric.
    pub healed_after: Duration,
    /// For each thread that stood still: p99.9 of writes on the slowest drive of other threads, before and
    /// meanwhile, in microseconds.
    pub stalls: Vec<(u64, u64)>,
    /// What fio wrote and verified, in operations.
    pub fio: (u64, u64),
    /// From the beginning to the verdict.
    pub took: Duration,
}

impl Client {
    /// Kills it, and awaits its end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// If it does not run.
    pub fn signal(&self, name: &str) -> Result<(), Trouble> {
        match &self.child {
            Some(child) => signal(child, name),
            None => Err(Trouble(format!("{} does not run", self.host.name))),
        }
    }

    fn check(&mut self) -> Result<(), Trouble> {
        let Some(child) = &mut self.child else { return Ok(()) };
        match child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                self.child = None;
                Err(Trouble(format!("{} ended by itself, {status}:\n{}", self.host.name, tail(&self.log))))
            }
            Err(error) => Err(Trouble::of(&self.host.name, error)),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a plan to its verdict, telling what happens.
///
/// # Errors
/// Whatever must not be: an acknowledged write that is gone, a process that ended by itself, a fabric that
/// does not heal. What was recorded stays in the plan's folder.
pub fn run(plan: Plan, world: World) -> Result<Outcome, Trouble> {
    fs::create_dir_all(&plan.dir).map_err(|e| Trouble::of(plan.dir.display(), e))?;
    world.set_up()?;
    let fabric = Fabric::start(&plan.weft, &plan.dir, world, plan.nodes)?;
    let copies = if plan.seed % 3 == 2 { "3" } else { "2" };
    fabric.weft(&["volume", "create", HOT, "--size", &format!("{HOT_MIB}MiB"), "--copies", copies])?;
    fabric.weft(&["volume", "create", VOLUME, "--size", &format!("{VOLUME_MIB}MiB"), "--copies", "2"])?;
    fabric.weft(&["volume", "create", COLD, "--size", &format!("{COLD_MIB}MiB"), "--copies", "2"])?;
    let mounts = match Mounts::are_possible() {
        true => Mounts::start(&fabric, world, plan.seed)?,
        false => Mounts::none(),
    };
    let mut torture = Torture {
        dice: Dice::new(plan.seed),
        mounts,
        fabric,
        clients: Vec::new(),
        plan,
        world,
        records: Vec::new(),
        began: Instant::now(),
        outcome: Outcome::default(),
    };
    let cold = torture.fill_cold()?;
    for n in 0..torture.plan.clients {
        let host = world.host(&format!("client-{}", n + 1), 31 + n as u8)?;
        let log = torture.fabric.dir.join(format!("log/{}.log", host.name));
        torture.clients.push(Client { host, child: None, log });
        torture.start_client(n)?;
    }
    let (nodes, mounts) = (torture.plan.nodes, torture.mounts.all.len());
    torture
        .say(&format!("{nodes} nodes, {} clients, {mounts} mounts, {copies} copies", torture.plan.clients));
    torture.rounds()?;
    torture.judge(&cold)?;
    torture.outcome.took = torture.began.elapsed();
    Ok(torture.outcome.clone())
}

impl Torture {
    fn say(&self, what: &str) {
        println!("{:>8.2} s  {what}", self.began.elapsed().as_secs_f64());
    }

    /// Starts a client's process, which begins a record of its own.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_client(&mut self, n: usize) -> Result<(), Trouble> {
        let child =
            self.client_process(&self.clients[n].host.clone(), &self.clients[n].log.clone(), false)?;
        self.clients[n].child = Some(child);
        Ok(())
    }

    fn client_process(&mut self, host: &Host, log: &Path, is_reader: bool) -> Result<Child, Trouble> {
        let number = self.records.len() + 1;
        let record = self.fabric.dir.join(format!("record-{number}"));
        self.records.push((format!("{}/{number}", host.name), record.clone()));
        let program = std::env::current_exe().map_err(|e| Trouble::of("this program's path", e))?;
        let mut args = vec!["client".to_owned()];
        let mut option = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        option("manager", self.fabric.address().to_owned());
        option("volume", HOT.to_owned());
        option("number", number.to_string());
        option("record", record.display().to_string());
        option("blocks", hot_blocks().iter().map(u64::to_string).collect::<Vec<_>>().join(","));
        if is_reader {
            args.push("--reader".into());
        }
        host.start(&program, &args, log)
    }

    /// Rounds of faults until the time is over, and between them what takes a drive.
    fn rounds(&mut self) -> Result<(), Trouble> {
        let mut export = Export::start(&self.fabric)?;
        let began = Instant::now();
        loop {
            self.outcome.rounds += 1;
            let fio = export.fio(&self.fabric, self.outcome.rounds, self.plan.round)?;
            self.round()?;
            let (written, verified) = fio.end()?;
            export.check()?;
            self.outcome.fio.0 += written;
            self.outcome.fio.1 += verified;
            self.say("fio has verified what it wrote");
            let is_over = match self.plan.lasts {
                Lasts::Time(time) => began.elapsed() >= time,
                Lasts::Rounds(rounds) => self.outcome.rounds >= rounds,
            };
            if is_over {
                return Ok(());
            }
            // Nothing else is broken now, so that a lost drive is not the last copy. In turns, so that a
            // short run has what concerns threads and devices.
            match (self.outcome.rounds % 5, self.world) {
                (1, _) => self.stall_thread()?,
                (2, _) => self.pull_device()?,
                (3, _) => self.truncate_device()?,
                (4, World::Namespaces) => self.starve_drives()?,
                _ => self.fill_pool()?,
            }
            self.await_health()?;
        }
    }

    /// Faults that overlap, for a round; then all heal.
    fn round(&mut self) -> Result<(), Trouble> {
        let until = Instant::now() + self.plan.round;
        let mut lasting: Vec<(Instant, Fault)> = Vec::new();
        let mut next = Instant::now() + self.dice.span(300, 1_500);
        while Instant::now() < until {
            let now = Instant::now();
            let (over, left): (Vec<_>, Vec<_>) = lasting.into_iter().partition(|(end, _)| *end <= now);
            lasting = left;
            over.iter().try_for_each(|(_, fault)| fault.heal(self))?;
            if now >= next && lasting.len() < AT_ONCE {
                let (nodes, clients, mounts) = (self.plan.nodes, self.plan.clients, self.mounts.all.len());
                let fault = Fault::draw(&mut self.dice, self.world, nodes, clients, mounts);
                if !lasting.iter().any(|(_, other)| other.meets(&fault)) {
                    self.strike(&fault)?;
                    lasting.push((now + fault.lasts, fault));
                    next = now + self.dice.span(50, 2_500);
                }
            }
            self.check()?;
            std::thread::sleep(Duration::from_millis(20));
        }
        lasting.iter().try_for_each(|(_, fault)| fault.heal(self))?;
        self.await_health()
    }

    fn strike(&mut self, fault: &Fault) -> Result<(), Trouble> {
        self.say(&fault.to_string());
        self.count(fault.kind());
        fault.strike(self)
    }

    fn count(&mut self, kind: String) {
        *self.outcome.faults.entry(kind).or_default() += 1;
    }

    fn await_health(&mut self) -> Result<(), Trouble> {
        let took = self.fabric.await_health()?;
        self.check()?;
        self.say(&format!("healthy again, after {:.1} s", took.as_secs_f64()));
        self.outcome.healed_after = self.outcome.healed_after.max(took);
        Ok(())
    }

    fn check(&mut self) -> Result<(), Trouble> {
        self.fabric.check()?;
        self.mounts.check(&self.fabric)?;
        self.clients.iter_mut().try_for_each(Client::check)
    }

    /// Has one thread of a node stand still for longer than a lease: its drives go out, and come back. Says
    /// how slow the slowest drive of the other threads was before, and meanwhile.
    fn stall_thread(&mut self) -> Result<(), Trouble> {
        let nodes = &self.fabric.nodes;
        let several: Vec<usize> = (0..nodes.len()).filter(|n| nodes[*n].member.threads().len() > 1).collect();
        if several.is_empty() {
            self.say("no node has several threads now");
            return Ok(());
        }
        let n = several[self.dice.below(several.len())];
        let count = self.fabric.nodes[n].member.threads().len();
        let which = self.dice.below(count);
        self.say(&format!("thread {which} of the {count} of node-{} stands still for {STALL:?}", n + 1));
        self.count("thread stands still while others are measured".into());
        let before = self.slowest_of_drives()?;
        let until = Instant::now() + STALL;
        self.fabric.nodes[n].member.stall(which)?;
        let meanwhile = self.slowest_of_drives()?;
        let absent = self.fabric.json(&["drive", "list"])?;
        let absent = absent["drives"].as_array().into_iter().flatten().filter(|d| d["present"] == false);
        let absent: Vec<String> = absent.filter_map(|d| d["id"].as_str().map(str::to_owned)).collect();
        self.wait_a_while(until.saturating_duration_since(Instant::now()))?;
        self.fabric.nodes[n].member.resume();
        let drives = 3;
        if absent.is_empty() || absent.len() + count > drives + 1 {
            let what = format!("of a thread that stands still {} drives went out: {absent:?}", absent.len());
            return Err(Trouble(format!("{what}; each of the {count} threads has one at least")));
        }
        let slowest = |of: &BTreeMap<String, u64>| {
            of.iter()
                .filter(|(id, _)| !absent.iter().any(|absent| absent.starts_with(*id)))
                .map(|(_, us)| *us)
                .max()
                .unwrap_or(0)
        };
        let (before, meanwhile) = (slowest(&before), slowest(&meanwhile));
        self.say(&format!(
            "{} drives went out; writes on the slowest other drive, p99.9: {:.1} ms before, {:.1} meanwhile",
            absent.len(),
            before as f64 / 1000.0,
            meanwhile as f64 / 1000.0
        ));
        self.outcome.stalls.push((before, meanwhile));
        self.fabric.wait("its drives are back", &["drive", "list"], |list| {
            let mut drives = list["drives"].as_array().into_iter().flatten();
            drives.all(|d| d["present"] == true)
        })?;
        Ok(())
    }

    /// The p99.9 of writes of each drive over [`MEASURED`], in microseconds, by the beginning of its
    /// identity.
    fn slowest_of_drives(&self) -> Result<BTreeMap<String, u64>, Trouble> {
        let interval = format!("{}s", MEASURED.as_secs());
        let args = ["watch", "--by", "drive", "--count", "1", "--interval", &interval];
        let seen = self.fabric.json(&args)?;
        let rows = seen["drives"].as_array().into_iter().flatten();
        let row = |row: &Value| {
            Some((row["name"].as_str()?.to_owned(), row["write_latency_us"]["p99.9"].as_u64()?))
        };
        Ok(rows.filter_map(row).collect())
    }

    /// Pulls a device: its file is removed under its node. It comes back with what it held, and takes part
    /// again.
    fn pull_device(&mut self) -> Result<(), Trouble> {
        let (n, d) = (self.dice.below(self.plan.nodes), self.dice.below(2));
        let path = self.fabric.nodes[n].devices[d].clone();
        let trouble = |e| Trouble::of(path.display(), e);
        self.say(&format!("device {} of node-{} is pulled", d + 1, n + 1));
        self.count("device pulled".into());
        // What is open stays, though no name leads to it.
        let pulled = fs::File::open(&path).map_err(trouble)?;
        fs::remove_file(&path).map_err(trouble)?;
        self.fabric.wait("it is missed", &["drive", "list"], |list| {
            let drives = list["drives"].as_array().into_iter().flatten();
            drives.filter(|drive| is_on(drive, &path)).all(|drive| drive["state"] != "active")
        })?;
        let patience = self.dice.span(1_000, 5_000);
        self.wait_a_while(patience)?;
        self.fabric.nodes[n].member.kill();
        // By another file system: that of the first node has no room for it twice.
        let shelf = self.fabric.dir.join("pulled.img");
        copy_sparse(pulled, &shelf).map_err(trouble)?;
        copy_sparse(fs::File::open(&shelf).map_err(trouble)?, &path).map_err(trouble)?;
        fs::remove_file(&shelf).map_err(trouble)?;
        self.fabric.start_node(n)?;
        self.fabric.restore(&path)
    }

    /// Cuts a device's file short under its node, then gives the node an empty device in its place.
    fn truncate_device(&mut self) -> Result<(), Trouble> {
        let (n, d) = (self.dice.below(self.plan.nodes), self.dice.below(2));
        let path = self.fabric.nodes[n].devices[d].clone();
        let ids = |drives: &[Value]| -> Vec<String> {
            drives.iter().filter_map(|drive| drive["id"].as_str().map(str::to_owned)).collect()
        };
        let old = ids(&self.fabric.drives_on(&path)?);
        self.say(&format!("device {} of node-{} is cut to half its length", d + 1, n + 1));
        self.count("device truncated".into());
        let file = fs::OpenOptions::new().write(true).open(&path);
        let file = file.map_err(|e| Trouble::of(path.display(), e))?;
        file.set_len(DEVICE_BYTES / 2).map_err(|e| Trouble::of(path.display(), e))?;
        let patience = self.dice.span(1_000, 5_000);
        self.wait_a_while(patience)?;
        self.fabric.nodes[n].member.kill();
        fs::remove_file(&path).map_err(|e| Trouble::of(path.display(), e))?;
        self.fabric.format(&path)?;
        self.fabric.start_node(n)?;
        self.fabric.wait("the empty device joins", &["drive", "list"], |list| {
            let drives: Vec<Value> = list["drives"].as_array().cloned().unwrap_or_default();
            let on = drives.into_iter().filter(|drive| is_on(drive, &path)).collect::<Vec<_>>();
            ids(&on).iter().filter(|id| !old.contains(id)).count() == old.len()
        })?;
        self.fabric.wait("no copy is missing", &["status"], |s| {
            s["degraded_groups"].as_array().is_some_and(Vec::is_empty)
        })?;
        for id in &old {
            self.fabric.wait("the old drive is let go", &["drive", "remove", id, "--yes"], |_| true)?;
        }
        Ok(())
    }

    /// Takes away the room below the sparse drives of the first node, and gives it back.
    fn starve_drives(&mut self) -> Result<(), Trouble> {
        self.say("no room is left below the drives of node-1");
        self.count("drives starved".into());
        let ballast = self.fabric.dir.join("node-1/ballast");
        let mut file = fs::File::create(&ballast).map_err(|e| Trouble::of(ballast.display(), e))?;
        while file.write_all(&[0x5A; 1 << 16]).is_ok() {}
        // As long as it is open it takes room.
        drop(file);
        let patience = self.dice.span(2_000, 6_000);
        self.wait_a_while(patience)?;
        fs::remove_file(&ballast).map_err(|e| Trouble::of(ballast.display(), e))?;
        self.fabric.nodes[0].member.kill();
        self.fabric.start_node(0)?;
        let devices = self.fabric.nodes[0].devices.clone();
        devices.iter().try_for_each(|device| self.fabric.restore(device))
    }

    /// Fills every drive with a volume that promises more than there is, and deletes it.
    fn fill_pool(&mut self) -> Result<(), Trouble> {
        self.say("a volume fills the pool");
        self.mounts.may_lose()?;
        self.count("pool filled".into());
        let size = format!("{}MiB", (DEVICE_BYTES * 2 * self.plan.nodes as u64) >> 20);
        self.fabric.weft(&["volume", "create", "filler", "--size", &size, "--copies", "2", "--thin"])?;
        let host = self.clients[0].host.clone();
        let program = std::env::current_exe().map_err(|e| Trouble::of("this program's path", e))?;
        let args = ["client", "--manager", self.fabric.address(), "--volume", "filler", "--fill"];
        let log = self.fabric.dir.join("log/filler.log");
        let mut child = host.start(&program, &args.map(String::from), &log)?;
        let began = Instant::now();
        let full = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status.success(),
                _ if began.elapsed() > PATIENCE => break false,
                _ => self.wait_and_lose(Duration::from_millis(100))?,
            }
        };
        let _ = child.kill();
        let _ = child.wait();
        if !full {
            return Err(Trouble(format!("the pool was not filled:\n{}", tail(&log))));
        }
        let patience = self.dice.span(500, 3_000);
        self.wait_and_lose(patience)?;
        self.fabric.weft(&["volume", "delete", "filler", "--yes", "--force"])?;
        self.wait_and_lose(KEPT_BACK)
    }

    /// Likewise, where mounts may lose what they keep back, at any moment of it.
    fn wait_and_lose(&mut self, span: Duration) -> Result<(), Trouble> {
        let until = Instant::now() + span;
        while Instant::now() < until {
            self.mounts.may_lose()?;
            self.wait_a_while(Duration::from_millis(100))?;
        }
        self.mounts.may_lose()
    }

    fn wait_a_while(&mut self, span: Duration) -> Result<(), Trouble> {
        let until = Instant::now() + span;
        while Instant::now() < until {
            self.check()?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Fills the volume that nobody touches any more; returns its contents.
    fn fill_cold(&mut self) -> Result<Vec<u8>, Trouble> {
        let words = (0..COLD_MIB << 17).flat_map(|_| self.dice.roll().to_le_bytes());
        let bytes: Vec<u8> = words.collect();
        let path = self.fabric.dir.join("cold.img");
        fs::write(&path, &bytes).map_err(|e| Trouble::of(path.display(), e))?;
        self.fabric.weft(&["volume", "import", COLD, &path.display().to_string()])?;
        Ok(bytes)
    }

    /// Everything is as it was acknowledged: blocks by their histories, cold data by its bytes, copies by a
    /// scrub.
    fn judge(&mut self, cold: &[u8]) -> Result<(), Trouble> {
        self.clients.iter_mut().for_each(Client::kill);
        self.outcome.calls = self.mounts.judge(&self.fabric)?;
        self.say(&format!("files are what they may be, after {} calls", self.outcome.calls));
        let host = self.clients[0].host.clone();
        let log = self.fabric.dir.join("log/reader.log");
        let mut reader = self.client_process(&host, &log, true)?;
        let status = reader.wait().map_err(|e| Trouble::of("the reader", e))?;
        if !status.success() {
            return Err(Trouble(format!("not every block can be read, {status}:\n{}", tail(&log))));
        }
        self.scrub()?;
        let back = self.fabric.dir.join("cold.back");
        self.fabric.weft(&["volume", "export", COLD, &back.display().to_string()])?;
        if fs::read(&back).map_err(|e| Trouble::of(back.display(), e))? != cold {
            return Err(Trouble("data that nobody touched is not what it was".into()));
        }
        self.fabric.weft(&["fabric", "check"])?;
        self.say("copies agree, cold data is what it was; checking the records");
        let mut histories = Histories::default();
        for (client, record) in &self.records {
            // A client that was killed at once has none. Each lane of an attach has one.
            for (part, path) in parts_of(record) {
                let Ok(text) = fs::read_to_string(path) else { continue };
                histories.add(&format!("{client}{part}"), &text)?;
            }
        }
        self.outcome.acknowledged = histories.acknowledged;
        self.outcome.blocks = histories.blocks.len();
        self.outcome.longest = Duration::from_nanos(histories.longest_ns);
        for (block, operations) in &mut histories.blocks {
            operations.sort_by_key(|o| o.start);
            if !is_linearizable(operations) {
                let path = self.plan.dir.join(format!("block-{block}.txt"));
                let lines = operations.iter().map(|o| {
                    let end = o.end.map_or_else(|| "never".into(), |e| e.to_string());
                    format!("{} .. {end} {} {:?}\n", o.start, o.client, o.action)
                });
                let _ = fs::write(&path, lines.collect::<String>());
                return Err(Trouble(format!(
                    "block {block} of volume {HOT} was no atomic register; all that was done to it: {}",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    fn scrub(&mut self) -> Result<(), Trouble> {
        self.fabric.weft(&["scrub", "start", "--all"])?;
        self.fabric.wait("the scrub ends", &["scrub", "status"], |s| {
            s["running"].is_null() && s["last"].is_object()
        })?;
        let status = self.fabric.json(&["scrub", "status"])?;
        let last = &status["last"];
        match last["lost_blocks"] == 0 && last["disagreements"] == 0 {
            true => Ok(()),
            false => Err(Trouble(format!("the scrub found what must not be: {last}"))),
        }
    }
}

/// Copies a file to a new one; what is zeroes takes no room there.
fn copy_sparse(from: fs::File, to: &Path) -> io::Result<()> {
    let (bytes, file) = (from.metadata()?.len(), fs::File::create(to)?);
    file.set_len(bytes)?;
    let mut piece = vec![0; 64 << 10];
    let mut at = 0;
    while at < bytes {
        let piece = &mut piece[..(bytes - at).min(64 << 10) as usize];
        from.read_exact_at(piece, at)?;
        if piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(piece, at)?;
        }
        at += piece.len() as u64;
    }
    Ok(())
}

/// A client's record and those of its other lanes, with what follows the record's name in each.
fn parts_of(record: &Path) -> Vec<(String, PathBuf)> {
    let name = record.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = record.parent().map(fs::read_dir).into_iter().flatten().flatten().flatten();
    let part = |path: PathBuf| {
        let found = path.file_name()?.to_string_lossy().into_owned();
        let part = found.strip_prefix(&name).filter(|part| part.is_empty() || part.starts_with('.'))?;
        Some((part.to_owned(), path))
    };
    folder.filter_map(|entry| part(entry.path())).collect()
}

/// First blocks of the runs that clients use: some at the beginning of a stripe unit, some across its end.
fn hot_blocks() -> Vec<u64> {
    let blocks = (HOT_MIB << 20) / weft_types::BLOCK_SIZE as u64;
    (0..24)
        .map(|i| i * (blocks / 24) / 16 * 16 + if i % 2 == 0 { 0 } else { 14 })
        .inspect(|b| assert!(b + SPAN < blocks))
        .collect()
}

impl Outcome {
    /// As a document.
    pub fn to_json(&self, seed: u64, world: World) -> serde_json::Value {
        json!({
            "schema_version": 1,
            "seed": seed,
            "hosts": match world { World::Namespaces => "network namespaces", World::Loopback => "loopback" },
            "seconds": self.took.as_secs(),
            "rounds": self.rounds,
            "faults": self.faults,
            "acknowledged": self.acknowledged,
            "calls_on_files": self.calls,
            "blocks": self.blocks,
            "longest_ms": self.longest.as_millis() as u64,
            "healed_after_ms": self.healed_after.as_millis() as u64,
            "p99_9_us_beside_a_stall": self.stalls,
            "fio": { "written": self.fio.0, "verified": self.fio.1 },
        })
    }
}

/// The program's own check that what it needs is there.
///
/// # Errors
/// What is missing.
pub fn check_programs(weft: &Path) -> Result<(), Trouble> {
    if !weft.exists() {
        return Err(Trouble(format!(
            "{} is missing\nhint: cargo build --release -p weft, or --weft PATH",
            weft.display()
        )));
    }
    for program in ["fio", "kill"] {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        if !found.is_ok_and(|o| o.status.success()) {
            return Err(Trouble(format!("{program} is not installed\nhint: scripts/setup.sh --for test")));
        }
    }
    Ok(())
}
