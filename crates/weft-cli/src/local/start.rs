//! Starting the members of a local fabric: the same program, each in a session of its own, its words in a log.

use super::folder::MANAGER;
use super::{Folder, LocalConfig, LocalError, LocalNode, ProcessId};
use crate::connection::client_name;
use crate::output::note;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use weft_rpc::Link;
use weft_rt::{now, sleep, timeout};
use weft_wire::handshake::{Hello, PeerRole};

/// How long the manager may take until it answers: it opens one small file.
const MANAGER_START_MAX: Duration = Duration::from_secs(20);

/// How long a manager may take for a greeting before it is tried anew.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// How often a starting member is looked at.
const POLL: Duration = Duration::from_millis(20);

/// A member that this process has started.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) id: ProcessId,
    child: Child,
    /// Where its words begin in its log.
    log_start: u64,
}

impl Member {
    /// Tells which drives it does not serve, as far as it has said so: its fabric comes up without them.
    pub(super) fn tell_left_out(&self, folder: &Folder) {
        for what in folder.left_out(&self.name, self.log_start) {
            note(&format!("warning: {} runs without a drive, {what}", self.name));
        }
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten().map(|status| status.to_string())
    }
}

/// This program, for another process.
pub(crate) fn program() -> Result<Command, LocalError> {
    let path = std::env::current_exe().map_err(|source| LocalError::Start { name: "weft".into(), source })?;
    let mut command = Command::new(path);
    command.env_remove("WEFT_FABRIC");
    Ok(command)
}

/// Starts the manager and waits until it answers.
///
/// # Errors
/// [`LocalError::Died`] with its last words if it ends instead.
pub(super) async fn start_manager(
    folder: &Folder,
    config: &LocalConfig,
    supervisor: Option<&ProcessId>,
) -> Result<Member, LocalError> {
    let mut command = program()?;
    command.args(["manager", "run", "--listen", &config.manager_addr, "--fabric-id"]);
    command.arg(config.fabric.to_string()).arg("--store").arg(absolute(&folder.map_file())?);
    let rooted = Folder::at(&absolute(folder.path())?);
    if rooted.socket_addr().is_some() {
        command.arg("--socket").arg(rooted.socket());
    }
    if let Some(metrics) = config.metrics_addr(&config.manager_addr) {
        command.args(["--metrics", &metrics]);
    }
    let mut member = start(folder, MANAGER, command, supervisor)?;
    let addr = config.manager_addr.parse().map_err(|e: weft_rt::ParseAddrError| LocalError::BadConfig {
        path: folder.config_file(),
        reason: e.to_string(),
    })?;
    let began = now();
    loop {
        check_lives(folder, &mut member)?;
        // A word is asked for: the socket of a manager that was killed takes connections a moment longer than it lives.
        let hello = Hello::new(PeerRole::Tool, None, client_name());
        if matches!(timeout(ANSWER_MAX, Link::connect(&addr, &hello)).await, Ok(Ok(_))) {
            return Ok(member);
        }
        if began.elapsed() > MANAGER_START_MAX {
            return Err(LocalError::NotHealthy {
                waited: MANAGER_START_MAX,
                reason: format!("the manager does not answer: {}", folder.last_words(MANAGER)),
            });
        }
        sleep(POLL).await;
    }
}

/// Starts a node; it joins on its own.
pub(super) fn start_node(
    folder: &Folder,
    config: &LocalConfig,
    node: &LocalNode,
    supervisor: Option<&ProcessId>,
) -> Result<Member, LocalError> {
    let mut command = program()?;
    command.args(["node", "run", "--name", &node.name, "--listen", &node.addr]);
    command.args(["--manager", &config.manager_addr, "--fabric-id", &config.fabric.to_string()]);
    for drive in folder.drives(node) {
        command.arg("--drive").arg(absolute(&drive)?);
    }
    // Also where it is one: the ports of others begin behind the last one of this node's.
    command.args(["--threads", &config.threads_of(node).to_string()]);
    if let Some(metrics) = config.metrics_addr(&node.addr) {
        command.args(["--metrics", &metrics]);
    }
    start(folder, &node.name, command, supervisor)
}

/// Fails if the member has ended.
pub(super) fn check_lives(folder: &Folder, member: &mut Member) -> Result<(), LocalError> {
    let Some(how) = member.ended() else { return Ok(()) };
    let name = &member.name;
    Err(LocalError::Died {
        name: name.clone(),
        how,
        last_words: folder.last_words(name),
        log: folder.log_file(name),
    })
}

fn start(
    folder: &Folder,
    name: &str,
    mut command: Command,
    supervisor: Option<&ProcessId>,
) -> Result<Member, LocalError> {
    let pid_file = folder.pid_file(name);
    if let Some(running) = ProcessId::read_alive(&pid_file) {
        return Err(LocalError::MemberRunning { name: name.to_owned(), pid: running.pid });
    }
    // Of bounded size, however long it runs and whatever happens: see `LogArgs` for how much.
    command.arg("--log-file").arg(absolute(&folder.log_file(name))?);
    let (log_file, log_start) = (folder.log_file(name), folder.log_length(name));
    let log = File::options().create(true).append(true).open(&log_file);
    let log = log.map_err(LocalError::file("open", log_file))?;
    if let Some(supervisor) = supervisor {
        command.arg("--supervisor").arg(supervisor.to_string());
    }
    // For what it says before its own log is open.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    detach_from_terminal(&mut command);
    let failed = |source| LocalError::Start { name: name.to_owned(), source };
    let mut child = command.spawn().map_err(failed)?;
    // A child that was not awaited keeps its number, so this is surely the one just started.
    let Some(id) = ProcessId::of(child.id() as i32) else {
        let how = child.wait().map_err(failed)?.to_string();
        let (last_words, log) = (folder.last_words(name), folder.log_file(name));
        return Err(LocalError::Died { name: name.to_owned(), how, last_words, log });
    };
    id.write(&pid_file)?;
    Ok(Member { name: name.to_owned(), id, child, log_start })
}

/// Gives the process a session of its own, so that neither Ctrl-C nor the terminal's end reaches it, and lets
/// through the signals that this process keeps blocked.
pub(crate) fn detach_from_terminal(command: &mut Command) {
    // SAFETY: between fork and exec only setsid, sigemptyset and sigprocmask are called, which
    // signal-safety(7) allows, on memory of this frame alone.
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() < 0 {
                return Err(std::io::Error::last_os_error());
            }
            let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            if libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut()) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

fn absolute(path: &Path) -> Result<PathBuf, LocalError> {
    std::path::absolute(path).map_err(LocalError::file("find", path))
}
