//! `weft mount` and `weft umount`: a file system of the fabric as a folder of this machine.
//!
//! It owns the life of a mount: the process in the background, and the order of its end. The kernel is told
//! to unmount, what it has still is written, sizes are told to the shards, and only then the session ends.

mod background;
mod tree;

use crate::stop::asked_to_stop;
use background::Background;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use std::{fs, io, thread};
use tree::FilesTree;
use weft_cli::{
    CliError, Connection, FabricPlace, MountArgs, MountOption, Output, UmountArgs, client_name, note,
};
use weft_client::{AttachMode, ClientError, Fabric};
use weft_fs::{LastingFiles, Mount};
use weft_fuse::{FuseError, MountOptions, Session, Unmount, mount_at, unmount};
use weft_rt::sync::{Either, race};
use weft_rt::{offload, sleep, spawn, timeout};
use weft_types::{InodeNumber, with_causes};

/// How far the kernel reads ahead in files that are read in order.
const READAHEAD_BYTES: u32 = 4 << 20;

/// How long a mount that is asked to stop waits for the kernel to end it.
const UNMOUNTED_WITHIN: Duration = Duration::from_secs(10);

/// When `weft umount` says what it waits for.
const UNMOUNT_TAKES_LONG: Duration = Duration::from_secs(5);

/// How often a mount looks whether there is much room.
const LOOKS_FOR_ROOM_EVERY: Duration = Duration::from_secs(5);

/// What was mounted, for programs.
#[derive(serde::Serialize)]
struct Mounted {
    file_system: String,
    at: PathBuf,
    read_only: bool,
}

#[derive(serde::Serialize)]
struct Unmounted {
    at: PathBuf,
}

/// Carries out `weft mount` in this process, or has one in the background do it.
pub(crate) fn mount(args: MountArgs, place: FabricPlace, output: Output) -> Result<(), CliError> {
    if args.timeout.0.is_zero() {
        return Err(CliError::Usage {
            message: "--timeout 0: every operation would fail at once".to_owned(),
            hint: "say how long an operation may wait for nodes, such as 60s".to_owned(),
        });
    }
    check_folder(&args.at)?;
    match args.foreground || args.in_background {
        true => weft_cli::block_on(run(args, place, output)),
        false => start_in_background(),
    }
}

/// Carries out the words of `weft` that mount(8) has asked for, if there are any.
pub(crate) fn called_by_mount(words: &[OsString]) -> ExitCode {
    let [_, args @ ..] = words else { return ExitCode::SUCCESS };
    let failed = match std::env::current_exe() {
        Ok(program) => Command::new(program).arg0("weft").args(args).exec(),
        Err(error) => error,
    };
    eprintln!("error: weft cannot be started: {failed}");
    ExitCode::FAILURE
}

/// Whether something can be mounted there. A dead mount is taken away first.
fn check_folder(at: &Path) -> Result<(), CliError> {
    let failed = |message: String, hint: &str| CliError::Failed { message, hint: hint.to_owned() };
    let shown = at.display();
    if let Ok(Some(there)) = mount_at(at) {
        if !there.is_dead() {
            return Err(failed(
                format!("{shown}: file system '{}' is mounted there", there.name),
                "choose another folder, or end that mount with `weft umount`",
            ));
        }
        note(&format!("{shown}: a mount whose process has ended was there; it is taken away"));
        unmount(at, Unmount::Now).map_err(|error| umount_error(at, &error))?;
    }
    let mut entries = fs::read_dir(at).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => "make the folder first: mkdir",
            io::ErrorKind::NotADirectory => "name a folder",
            _ => "check the folder's permissions",
        };
        failed(format!("cannot mount at {shown}: {error}"), hint)
    })?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(failed(
            format!("{shown} is not empty: what is in it would be hidden"),
            "mount at an empty folder",
        )),
    }
}

/// Starts this command once more, in a session of its own, and waits until the file system is mounted.
fn start_in_background() -> Result<(), CliError> {
    let failed = |error: io::Error| CliError::Failed {
        message: format!("cannot start a process in the background: {error}"),
        hint: "use --foreground".to_owned(),
    };
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.arg0("weft").args(std::env::args_os().skip(1)).arg("--in-background");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: between fork and exec only setsid is called, which signal-safety(7) allows.
    unsafe {
        command.pre_exec(|| rustix::process::setsid().map(drop).map_err(io::Error::from));
    }
    let mut child = command.spawn().map_err(failed)?;
    let said = child.stdout.take().expect("it is piped");
    let mut text = String::new();
    // Until the mount has let go of this output, or has ended.
    BufReader::new(said).read_to_string(&mut text).map_err(failed)?;
    let mut words = String::new();
    let _ = child.stderr.take().expect("it is piped").read_to_string(&mut words);
    eprint!("{words}");
    if !text.is_empty() {
        print!("{text}");
        return Ok(());
    }
    // It has ended, and has said why.
    let code = child.wait().map_err(failed)?.code().unwrap_or(1);
    std::process::exit(code);
}

async fn run(args: MountArgs, place: FabricPlace, output: Output) -> Result<(), CliError> {
    let background = if args.in_background { Some(Background::open(&args)?) } else { None };
    let files = begin(&args, &place).await?;
    let ended = serve(&args, &place, output, &files, background.as_ref()).await;
    let told = files.end().await;
    ended?;
    told.map_err(|error| CliError::Failed {
        message: format!("not all that was written is known to the shards: {error}"),
        hint: "what was not synced may be missing; `weft status` says how the fabric is".to_owned(),
    })
}

/// Attaches the file system.
async fn begin(args: &MountArgs, place: &FabricPlace) -> Result<Rc<LastingFiles>, CliError> {
    // Asked first, because its error says where the fabric was looked for and what to do.
    Connection::open(place).await?;
    let mode = if args.read_only { AttachMode::ReadOnly } else { AttachMode::Shared };
    let client = format!("mount {}", client_name());
    let fabric = Fabric::connect(&place.managers()?, &client).await?;
    let (name, patience) = (args.name.clone(), args.timeout.0);
    let attach = move || {
        let (fabric, name) = (fabric.clone(), name.clone());
        async move { Mount::attach(&fabric, &name, mode, patience).await }
    };
    let files = LastingFiles::begin(attach).await.map_err(|error| match error {
        ClientError::NoSuchVolume { .. } => CliError::Failed {
            message: format!("there is no file system '{}'", args.name),
            hint: "`weft fs list` shows those that there are".to_owned(),
        },
        error => CliError::from(error),
    })?;
    // A mount that nothing answers would keep every program that looks at it.
    files.newest().attributes(InodeNumber::ROOT).await.map_err(|error| CliError::Failed {
        message: format!("file system '{}' is not mounted: {error}", args.name),
        hint: "its nodes do not answer: `weft status` says which are missing".to_owned(),
    })?;
    Ok(Rc::new(files))
}

/// Mounts it, says so, and serves it until it is unmounted.
async fn serve(
    args: &MountArgs,
    place: &FabricPlace,
    output: Output,
    files: &Rc<LastingFiles>,
    background: Option<&Background>,
) -> Result<(), CliError> {
    let manager = Connection::open(place).await?;
    let tree = Rc::new(FilesTree::new(files.clone(), &args.name, manager));
    files.newest().keep_back(Some(0));
    if !args.write_through && !args.read_only {
        spawn(keep_back_where_there_is_room(files.clone(), tree.clone()));
    }
    let mut options = MountOptions::new(&args.name);
    options.is_read_only = args.read_only;
    options.no_set_id = args.options.contains(&MountOption::Nosuid);
    options.no_devices = args.options.contains(&MountOption::Nodev);
    options.no_programs = args.options.contains(&MountOption::Noexec);
    options.readahead_bytes = Some(READAHEAD_BYTES);
    options.over_io_uring = args.over_io_uring;
    let session =
        Session::mount(&args.at, &options, tree).await.map_err(|error| mount_error(args, &error))?;
    let mounted = Mounted { file_system: args.name.clone(), at: args.at.clone(), read_only: args.read_only };
    output.show(&mounted, |mounted, _| {
        let how = if mounted.read_only { ", read-only" } else { "" };
        format!("file system {} is mounted at {}{how}\n", mounted.file_system, mounted.at.display())
    })?;
    if let Some(background) = background {
        background.go().map_err(|error| CliError::Failed {
            message: format!("the mount cannot go to the background: {error}"),
            hint: "use --foreground".to_owned(),
        })?;
    }
    let at = args.at.clone();
    let stopped = async move {
        asked_to_stop(None).await;
        let ended = offload(move || {
            unmount(&at, Unmount::Idle).or_else(|_| {
                tracing::warn!("the mount is in use, and is taken away: what is open fails");
                unmount(&at, Unmount::Now)
            })
        });
        if let Err(error) = ended.await {
            tracing::warn!(%error, "it is not unmounted");
        }
        // The kernel ends the session, unless a container or the like has the mount still.
        sleep(UNMOUNTED_WITHIN).await;
        tracing::warn!("another mount namespace has the mount still: it is ended there, too");
    };
    let served = match race(session.run(), stopped).await {
        Either::Left(served) => served,
        Either::Right(()) => Ok(()),
    };
    served.map_err(|error| mount_error(args, &error))
}

/// Has writes return before they are durable as long as the pool is far from full, each time for a part of
/// the free space only. So a program learns from its write that there is no space.
async fn keep_back_where_there_is_room(files: Rc<LastingFiles>, tree: Rc<FilesTree>) {
    loop {
        let room = timeout(LOOKS_FOR_ROOM_EVERY, tree.room_to_keep_back()).await;
        // A session that begins in between takes over the number of the one before.
        files.newest().keep_back(Some(room.ok().flatten().unwrap_or(0)));
        sleep(LOOKS_FOR_ROOM_EVERY).await;
    }
}

fn mount_error(args: &MountArgs, error: &FuseError) -> CliError {
    let hint = match error {
        FuseError::NoLanes => {
            "it takes Linux 6.14 with CONFIG_FUSE_IO_URING, and as root \
             `echo Y > /sys/module/fuse/parameters/enable_uring`; or mount without --over-io-uring"
        }
        FuseError::Lanes(_) => "mount without --over-io-uring",
        _ if !rustix::process::geteuid().is_root() => {
            "without root it takes fusermount3 (package fuse3), and a folder of your own"
        }
        _ => "/dev/fuse has to be there: `modprobe fuse`; in a container it has to be allowed",
    };
    CliError::Failed {
        message: format!("cannot serve a mount at {}: {}", args.at.display(), with_causes(error)),
        hint: hint.to_owned(),
    }
}

/// Carries out `weft umount`. Says what it waits for, if that takes long.
pub(crate) fn umount(args: &UmountArgs, output: Output) -> Result<(), CliError> {
    let (over, waits) = channel::<()>();
    let (at, hint) = (args.at.display().to_string(), if args.force { "" } else { ", or try --force" });
    let telling = thread::spawn(move || {
        if waits.recv_timeout(UNMOUNT_TAKES_LONG) == Err(RecvTimeoutError::Timeout) {
            note(&format!(
                "the process of the mount at {at} has not answered yet: `pgrep -af 'weft mount'` shows it; \
                 if it hangs, end it with `kill -9`{hint}"
            ));
        }
    });
    let unmounted = take_away(args, output);
    drop(over);
    let _ = telling.join();
    unmounted
}

fn take_away(args: &UmountArgs, output: Output) -> Result<(), CliError> {
    let shown = args.at.display();
    let there = mount_at(&args.at).map_err(|error| umount_error(&args.at, &error))?;
    let Some(there) = there else {
        return Err(CliError::Failed {
            message: format!("no file system of Weft is mounted at {shown}"),
            hint: "`mount -t fuse.weft` shows those that are".to_owned(),
        });
    };
    // By force the mount is not asked: its process may hang.
    let is_dead = !args.force && there.is_dead();
    let how = if args.force || is_dead { Unmount::Now } else { Unmount::Idle };
    if how == Unmount::Idle {
        // What was written is durable before it is said that it is unmounted.
        let synced = File::open(&args.at).and_then(|root| root.sync_all());
        synced.map_err(|error| umount_error(&args.at, &error))?;
    }
    unmount(&args.at, how).map_err(|error| umount_error(&args.at, &error))?;
    if is_dead {
        note(&format!("the process of the mount at {shown} had ended before"));
    }
    output.show(&Unmounted { at: args.at.clone() }, |unmounted, _| {
        format!("{} is unmounted\n", unmounted.at.display())
    })
}

fn umount_error(at: &Path, error: &io::Error) -> CliError {
    let hint = match error.raw_os_error() {
        Some(libc::EBUSY) => "something uses it: `fuser -m` shows what; --force takes it away all the same",
        Some(libc::EPERM) => "unmounting needs root, or the user who has mounted it",
        Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES) => "check the path",
        Some(libc::ETIMEDOUT | libc::EIO | libc::ENOSPC) => {
            "not all that was written is durable: see `weft status`, then try again; --force gives it up"
        }
        _ => "`weft status` says how the fabric is; --force takes the mount away all the same",
    };
    CliError::Failed { message: format!("cannot unmount {}: {error}", at.display()), hint: hint.to_owned() }
}
