//! `weft up`: a whole fabric on this machine.

use super::config::PARTS;
use super::folder::{MANAGER, SUPERVISOR};
use super::room::{check_disk, check_ports, free_bytes};
use super::start::{Member, check_lives, program, start_manager, start_node};
use super::stop::{forget, running, stop_all, supervisor};
use super::{Folder, LocalConfig, LocalError, LocalShape, ProcessId};
use crate::connection::Connection;
use crate::error::CliError;
use crate::interrupt::unless_interrupted;
use crate::locate::{FOLDER_DEFAULT, FabricPlace};
use crate::output::{Output, note};
use crate::progress::Step;
use crate::size::Size;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, FabricStatus, Health, Presence};
use weft_rt::sync::{Either, race};
use weft_rt::{Addr, now, sleep};
use weft_types::limits::{DRIVES_PER_TARGET_MAX, TARGETS_PER_NODE_MAX};

/// Nodes where nothing is said: with two copies, one may fail while two others are busy resyncing.
const NODES_DEFAULT: u16 = 4;
const NODES_MAX: i64 = 64;
/// Drives of each node where nothing is said.
const DRIVES_DEFAULT: u16 = 2;
/// Bytes of a drive where nothing is said.
const DRIVE_BYTES_DEFAULT: u64 = 8 << 30;
/// A default that is smaller is a multiple of this, for people's eyes.
const DRIVE_BYTES_STEP: u64 = 256 << 20;
/// The first port where nothing is said.
const PORT_DEFAULT: u16 = 4800;

/// Drive files that are formatted at once: each waits for the disk most of the time.
const FORMATS_AT_ONCE: usize = 8;
/// How long the nodes of a new fabric may take to join.
const JOIN_MAX: Duration = Duration::from_secs(60);
/// How long the nodes of a fabric with data are awaited before it is left without those that are missing: its
/// data may be whole without them.
const REJOIN_MAX: Duration = Duration::from_secs(20);
/// How long a fabric whose nodes are all there is awaited to be healthy before it is left to its resync.
const HEALTH_MAX: Duration = Duration::from_secs(15);
/// How often members and health are looked at.
const POLL: Duration = Duration::from_millis(100);

/// Start a whole fabric on this machine
///
/// One manager and several nodes, each with drive files of its own, are started as processes of this machine
/// that listen on loopback only. A folder that holds a fabric already is started again, with its data.
///
/// The command checks that there is room before it makes anything, waits until the fabric is healthy, and stays
/// in the foreground until Ctrl-C or `weft down`; then it stops everything in order. With --detach it
/// leaves the fabric running in the background.
///
/// A node that dies is reported and not restarted: `weft node start` does that.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  weft up\n  weft up --nodes 3 --drives 1 --drive-size 1GiB --sparse\n  \
                             weft up --dir /srv/fabric --detach\n  weft up --threads 2 --parts 2 --sparse\n  \
                             weft up --port 5800"
)]
pub struct UpArgs {
    /// The fabric's folder [default: the folder named by --fabric or WEFT_FABRIC, or ./weft-fabric]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// How many nodes a new fabric has [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=NODES_MAX))]
    pub nodes: Option<u16>,
    /// How many drives each node of a new fabric has [default: 2]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=DRIVES_PER_TARGET_MAX as i64))]
    pub drives: Option<u16>,
    /// The size of each drive file of a new fabric, such as 512MiB [default: 8GiB, or what half of the free space allows]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub drive_size: Option<Size>,
    /// How many threads serve the drives of each node [default: 1, or as before]
    ///
    /// Each has a port of its own. The number may be another one at each start. There are never more than
    /// drives, or parts of drives, on a node.
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=TARGETS_PER_NODE_MAX as i64))]
    pub threads: Option<u32>,
    /// Into how many parts each drive file of a new fabric is formatted: 1, 2, 4 or 8 [default: 1]
    ///
    /// For trying what devices with parts do: each part is a drive, and no two copies are placed on one
    /// device. Parts of files are not faster than whole ones.
    #[arg(long, value_name = "N", value_parser = parts)]
    pub parts: Option<u32>,
    /// Let drive files of a new fabric take space as they are written, instead of reserving it
    ///
    /// The disk can then run full while the fabric is in use: its drives fail, as drives do.
    #[arg(long)]
    pub sparse: bool,
    /// Leave the fabric running in the background
    #[arg(long)]
    pub detach: bool,
    /// The first port on 127.0.0.1: the manager's, then those of the nodes, one for each thread, then one for
    /// the metrics of each member [default: 4800]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
}

/// Reads a number of parts.
fn parts(text: &str) -> Result<u32, String> {
    let known = text.parse().ok().filter(|parts| PARTS.contains(parts));
    known.ok_or_else(|| "a device has 1, 2, 4 or 8 parts".to_owned())
}

/// What is up, for programs.
#[derive(Serialize)]
struct Report<'a> {
    dir: &'a Path,
    fabric: String,
    manager: &'a str,
    socket: Option<PathBuf>,
    nodes: Vec<&'a str>,
    drives: usize,
    drive_bytes: u64,
    /// Threads of each node.
    threads: u32,
    /// Parts of each drive file.
    parts: u32,
    health: Health,
    reasons: Vec<String>,
}

pub(crate) async fn up(args: &UpArgs, folder: &Folder, output: Output) -> Result<(), CliError> {
    let lock = folder.make()?;
    let prepared =
        prepare(args, folder).inspect(tell_of_shape).and_then(|config| check_ports(&config).map(|()| config));
    let config = prepared.inspect_err(|_| folder.unmake())?;
    let own = (!args.detach).then(ProcessId::current);
    if let Some(own) = &own {
        own.write(&folder.pid_file(SUPERVISOR))?;
    }
    let (config, mut members, status) = match unless_interrupted(bring_up(folder, config, own.as_ref())).await
    {
        Some(Ok(up)) => up,
        Some(Err(error)) => {
            give_up(folder).await;
            return Err(error);
        }
        None => {
            give_up(folder).await;
            return Err(CliError::Interrupted { message: "stopped before the fabric was up".into() });
        }
    };
    drop(lock);
    members.iter().for_each(|member| member.tell_left_out(folder));
    let report = report(folder, &config, &status);
    output.show(&report, |r, _| summary(r, folder, args.detach))?;
    if args.detach {
        return Ok(());
    }
    watch(folder, &mut members).await;
    note("stopping the fabric");
    // The lock is free, or held by a command that is about to be done.
    let _lock = folder.lock().ok();
    let mut reap = members;
    let stopped = race(stop_all(folder, &config), reap_forever(&mut reap)).await;
    forget(folder, SUPERVISOR)?;
    if let Either::Left(stopped) = stopped {
        stopped?;
    }
    note("stopped; `weft up` brings it back with its data");
    Ok(())
}

/// Decides what to start: the fabric that the folder holds, or a new one for which there is room.
fn prepare(args: &UpArgs, folder: &Folder) -> Result<LocalConfig, LocalError> {
    let known = folder.config()?;
    if let Some(unfinished) = known.as_ref().filter(|c| !c.is_formatted) {
        // No node ever ran on these files, so they hold nothing; what is asked for now may be something else.
        let drives = unfinished.nodes.iter().flat_map(|node| folder.drives(node));
        for path in drives.chain([folder.map_file()]).filter(|p| p.exists()) {
            fs::remove_file(&path).map_err(LocalError::file("remove", path))?;
        }
    }
    let Some(mut config) = known.filter(|c| c.is_formatted) else {
        let shape = LocalShape {
            nodes: args.nodes.unwrap_or(NODES_DEFAULT),
            drives: args.drives.unwrap_or(DRIVES_DEFAULT),
            drive_bytes: drive_bytes(args, folder),
            sparse: args.sparse,
            threads: args.threads.unwrap_or(1),
            parts: args.parts.unwrap_or(1),
        };
        let config = LocalConfig::new(shape, args.port.unwrap_or(PORT_DEFAULT))?;
        check_disk(&config, folder.path())?;
        return Ok(config);
    };
    let mut alive: Vec<String> = running(folder, &config).into_iter().map(|(name, _)| name).collect();
    alive.extend(supervisor(folder).map(|id| format!("weft up as process {}", id.pid)));
    if !alive.is_empty() {
        let (path, has_manager) = (folder.path().to_owned(), alive.iter().any(|name| name == MANAGER));
        return Err(LocalError::Running { path, running: alive.join(", "), has_manager });
    }
    if !folder.has_map_file()? {
        // A manager would make a new, empty fabric, and the drives would not belong to it.
        return Err(LocalError::NoStore { folder: folder.path().to_owned(), store: folder.map_file() });
    }
    check_same(args, folder, &config)?;
    let base = config.manager_addr.rsplit(':').next().and_then(|port| port.parse().ok());
    match (args.port, args.threads) {
        (None, None) => {}
        (port, threads) => {
            // Threads have ports of their own, so those of all members follow.
            config.threads = threads.unwrap_or(config.threads);
            config.set_ports(port.or(base).unwrap_or(PORT_DEFAULT))?;
        }
    }
    Ok(config)
}

/// Tells what of the shape is less, or slower, than it looks.
fn tell_of_shape(config: &LocalConfig) {
    let used = config.nodes.iter().map(|node| config.threads_of(node)).max().unwrap_or(1);
    if used < config.threads {
        let asked = config.threads;
        note(&format!(
            "warning: --threads {asked}: each serves at least one drive or part, so {used} are used"
        ));
    }
    if config.parts > 1 {
        note("parts of files are for trying (as with `drive format --force`): whole files are as fast");
    }
}

/// The size of a new fabric's drives: what is asked for; else the usual size, or less where reserving it would
/// take more than half of what is free.
fn drive_bytes(args: &UpArgs, folder: &Folder) -> u64 {
    if let Some(size) = args.drive_size {
        return size.0;
    }
    let count =
        u64::from(args.nodes.unwrap_or(NODES_DEFAULT)) * u64::from(args.drives.unwrap_or(DRIVES_DEFAULT));
    match free_bytes(folder.path()) {
        Ok(free) if !args.sparse => {
            let fair = free / 2 / count;
            (fair - fair % DRIVE_BYTES_STEP).clamp(DRIVE_BYTES_STEP, DRIVE_BYTES_DEFAULT)
        }
        _ => DRIVE_BYTES_DEFAULT,
    }
}

/// Refuses options that contradict the fabric that is there.
fn check_same(args: &UpArgs, folder: &Folder, config: &LocalConfig) -> Result<(), LocalError> {
    let differs = |found: String, asked: String| {
        Err(LocalError::Differs { path: folder.path().to_owned(), found, asked })
    };
    let drives = config.nodes.first().map_or(0, |n| n.drives);
    match (args.nodes, args.drives, args.drive_size) {
        (Some(n), _, _) if usize::from(n) != config.nodes.len() => {
            differs(format!("{} nodes", config.nodes.len()), n.to_string())
        }
        (_, Some(n), _) if n != drives => differs(format!("{drives} drives on each node"), n.to_string()),
        (_, _, Some(size)) if size.0 != config.drive_bytes => {
            differs(format!("drives of {}", Size(config.drive_bytes)), size.to_string())
        }
        _ => match args.parts.filter(|parts| *parts != config.parts) {
            Some(parts) => differs(format!("drives in {} parts", config.parts), parts.to_string()),
            None => Ok(()),
        },
    }
}

/// Formats what is new, starts the members in order, and waits until they serve.
async fn bring_up(
    folder: &Folder,
    mut config: LocalConfig,
    supervisor: Option<&ProcessId>,
) -> Result<(LocalConfig, Vec<Member>, FabricStatus), CliError> {
    let step = Step::new();
    folder.write_config(&config)?;
    if !config.is_formatted {
        format_drives(folder, &config, &step).await?;
        make_fabric(folder, &config)?;
    }
    step.says("starting the manager");
    let mut members = vec![start_manager(folder, &config, supervisor).await?];
    let is_new = !config.is_formatted;
    if is_new {
        // From here on the drives may hold data, and the manager's store is there.
        config.is_formatted = true;
        folder.write_config(&config)?;
    }
    step.says(&format!("starting {} nodes", config.nodes.len()));
    for node in &config.nodes {
        members.push(start_node(folder, &config, node, supervisor)?);
    }
    let status = await_health(folder, &config, &mut members, is_new, &step).await?;
    Ok((config, members, status))
}

/// Makes the fabric in the manager's store.
fn make_fabric(folder: &Folder, config: &LocalConfig) -> Result<(), LocalError> {
    let mut command = program()?;
    command.args(["fabric", "init"]).arg(folder.map_file());
    command.arg("--fabric-id").arg(config.fabric.to_string());
    let start = |source| LocalError::Start { name: "weft fabric init".into(), source };
    let done = command.stdin(Stdio::null()).output().map_err(start)?;
    match done.status.success() {
        true => Ok(()),
        false => Err(LocalError::Init { store: folder.map_file(), reason: one_line(&done.stderr) }),
    }
}

/// What a command said, on one line.
fn one_line(said: &[u8]) -> String {
    String::from_utf8_lossy(said).lines().map(str::trim).collect::<Vec<_>>().join("; ")
}

/// Makes and formats all drive files, each by a process of its own.
async fn format_drives(folder: &Folder, config: &LocalConfig, step: &Step) -> Result<(), LocalError> {
    let paths: Vec<PathBuf> = config.nodes.iter().flat_map(|node| folder.drives(node)).collect();
    for (i, batch) in paths.chunks(FORMATS_AT_ONCE).enumerate() {
        step.says(&format!("formatting drives ({} of {})", i * FORMATS_AT_ONCE + batch.len(), paths.len()));
        let mut formats: Vec<(PathBuf, Child)> = Vec::new();
        for path in batch {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(LocalError::file("create the folder", parent))?;
            }
            // Left over from a start that was interrupted before any drive held anything.
            match fs::remove_file(path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(LocalError::file("remove", path)(e));
                }
                _ => {}
            }
            let mut command = program()?;
            command.args(["drive", "format"]).arg(path).arg("--fabric-id").arg(config.fabric.to_string());
            command.arg("--size").arg(config.drive_bytes.to_string());
            if config.sparse {
                command.arg("--sparse");
            }
            if config.parts > 1 {
                // Files are for trying: several parts of them are never faster.
                command.args(["--force", "--parts", &config.parts.to_string()]);
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            let start = |source| LocalError::Start { name: "weft drive format".into(), source };
            formats.push((path.clone(), command.spawn().map_err(start)?));
        }
        for (path, child) in formats {
            await_format(path, child).await?;
        }
    }
    Ok(())
}

async fn await_format(path: PathBuf, mut child: Child) -> Result<(), LocalError> {
    loop {
        match child.try_wait() {
            Ok(None) => sleep(Duration::from_millis(5)).await,
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(_)) | Err(_) => break,
        }
    }
    let said = child.wait_with_output().map(|o| one_line(&o.stderr));
    let reason = said.unwrap_or_else(|e| e.to_string());
    Err(LocalError::Format { path, reason })
}

/// Waits until every node serves and all is healthy, or what is missing will take longer.
async fn await_health(
    folder: &Folder,
    config: &LocalConfig,
    members: &mut [Member],
    is_new: bool,
    step: &Step,
) -> Result<FabricStatus, CliError> {
    let place = FabricPlace::Address(parse_addr(folder, &config.manager_addr)?);
    let connection = Connection::open(&place).await?;
    let (began, mut all_up) = (now(), None);
    loop {
        for member in members.iter_mut().filter(|m| is_new || m.name == MANAGER) {
            check_lives(folder, member)?;
        }
        let ApiAnswer::Status(status) = connection.ask(&ApiRequest::Status {}).await? else {
            return Err(CliError::wrong_answer(connection.at()));
        };
        let is_up = |name: &str| status.nodes.iter().any(|n| n.name == name && n.presence == Presence::Up);
        let up = config.nodes.iter().filter(|n| is_up(&n.name)).count();
        step.says(&format!("{up} of {} nodes are up", config.nodes.len()));
        if up == config.nodes.len() {
            let since = *all_up.get_or_insert_with(now);
            if status.health == Health::Healthy || since.elapsed() > HEALTH_MAX {
                return Ok(*status);
            }
        } else if began.elapsed() > if is_new { JOIN_MAX } else { REJOIN_MAX } {
            let names = config.nodes.iter().map(|n| n.name.as_str()).filter(|n| !is_up(n));
            let missing: Vec<String> =
                names.map(|name| format!("{name} is not up: {}", folder.last_words(name))).collect();
            if is_new {
                let reason = missing.join("; ");
                return Err(LocalError::NotHealthy { waited: JOIN_MAX, reason }.into());
            }
            missing.iter().for_each(|text| note(&format!("warning: {text}")));
            return Ok(*status);
        }
        sleep(POLL).await;
    }
}

fn parse_addr(folder: &Folder, addr: &str) -> Result<Addr, LocalError> {
    addr.parse().map_err(|e: weft_rt::ParseAddrError| LocalError::BadConfig {
        path: folder.config_file(),
        reason: e.to_string(),
    })
}

/// Stops what was started of a fabric that does not come up. Best effort: the error that led here is told.
async fn give_up(folder: &Folder) {
    if let Ok(Some(config)) = folder.config()
        && let Err(error) = stop_all(folder, &config).await
    {
        note(&format!("not everything could be stopped: {error}"));
    }
    let _ = forget(folder, SUPERVISOR);
}

/// Reports members that end, until a signal comes or none is left.
async fn watch(folder: &Folder, members: &mut Vec<Member>) {
    let reports = async {
        while !members.is_empty() {
            members.retain_mut(|member| {
                let Some(how) = member.ended() else { return true };
                let name = &member.name;
                note(&format!("{name} has ended ({how}); `weft node start {name}` starts a node again"));
                // Its record may already be that of its successor.
                if ProcessId::read(&folder.pid_file(name)).is_some_and(|id| id == member.id) {
                    let _ = forget(folder, name);
                }
                false
            });
            sleep(POLL).await;
        }
    };
    unless_interrupted(reports).await;
}

/// Awaits members that end while they are being stopped, so that they do not count as running.
async fn reap_forever(members: &mut Vec<Member>) {
    loop {
        members.retain_mut(|member| member.ended().is_none());
        sleep(POLL).await;
    }
}

fn report<'a>(folder: &'a Folder, config: &'a LocalConfig, status: &FabricStatus) -> Report<'a> {
    Report {
        dir: folder.path(),
        fabric: config.fabric.to_string(),
        manager: &config.manager_addr,
        socket: Some(folder.socket()).filter(|s| s.exists()),
        nodes: config.nodes.iter().map(|n| n.name.as_str()).collect(),
        drives: config.nodes.iter().map(|n| usize::from(n.drives)).sum(),
        drive_bytes: config.drive_bytes,
        threads: config.nodes.iter().map(|node| config.threads_of(node)).max().unwrap_or(1),
        parts: config.parts,
        health: status.health,
        reasons: status.reasons.clone(),
    }
}

/// What is up, and what to do next.
fn summary(report: &Report, folder: &Folder, is_detached: bool) -> String {
    let dir = folder.path().display();
    let (fabric, at) = if folder.path() == Path::new(FOLDER_DEFAULT) {
        (String::new(), String::new())
    } else {
        (format!(" --fabric {dir}"), format!(" --dir {dir}"))
    };
    let health = match report.health {
        Health::Healthy => "is up".to_owned(),
        Health::Degraded => "is up, but degraded".to_owned(),
        Health::Unavailable => "is up, but not all data is available".to_owned(),
    };
    let reasons: String = report.reasons.iter().map(|reason| format!("  - {reason}\n")).collect();
    let stop = if is_detached { format!("weft down{at}") } else { format!("weft down{at}, or Ctrl-C here") };
    // What fits: a quarter of all, of which two copies take half.
    let quarter = (report.drive_bytes * report.drives as u64 / 4).max(1);
    let size = Size((1 << quarter.ilog2()).min(1 << 30)).to_string().replace(' ', "");
    let rows = [
        (format!("weft{fabric} volume create data --size {size}"), "make a volume"),
        (format!("weft{fabric} volume serve data --nbd 127.0.0.1:10809"), "use it as nbd://127.0.0.1/data"),
        (format!("weft{fabric} status"), "see how all is"),
        (stop, "stop it; the data stays"),
    ];
    let width = rows.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    let next: String = rows.iter().map(|(command, what)| format!("  {command:width$}   {what}\n")).collect();
    let threads = if report.threads > 1 { format!(" of {} threads", report.threads) } else { String::new() };
    let parts = if report.parts > 1 { format!(" in {} parts each", report.parts) } else { String::new() };
    format!(
        "Fabric {} {health}: {} nodes{threads}, {} drives of {}{parts}, in {dir}\n{reasons}\nNext:\n{next}",
        &report.fabric[..8],
        report.nodes.len(),
        report.drives,
        Size(report.drive_bytes),
    )
}
