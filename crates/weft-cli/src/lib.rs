//! Face: the command line.
//!
//! It owns the arguments, their help, what is printed and the exit codes, and the local fabric of `weft up`:
//! its folder and its processes. What needs an engine beyond the client (to run a manager, to open a drive)
//! it asks of the program through [`Engines`]. It never touches a drive, and never decides anything about the
//! fabric.

/// Whether this program was built with the doors that fuzzing goes through.
pub const HAS_FUZZING_DOORS: bool = cfg!(feature = "fuzzing");

mod bundle;
mod change;
mod check;
mod completions;
mod connection;
mod df;
mod drive;
mod error;
mod evacuate;
mod events;
mod fabric;
mod files;
mod find;
mod fs;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod helper;
mod interrupt;
mod layout;
mod local;
mod locate;
mod log;
mod manager;
mod map;
mod mount;
mod mount_helper;
mod node;
mod ondemand;
mod output;
mod pages;
mod paint;
mod pool;
mod progress;
mod project;
mod quota;
mod reference;
mod removal;
mod repair;
mod report;
mod row;
mod scrub;
mod session;
mod shard_load;
mod shards;
mod size;
mod span;
mod status;
mod table;
mod transfer;
mod transport;
mod usage;
mod volume;
mod watch;

pub use bundle::SupportBundleArgs;
pub use completions::{CompletionsArgs, Shell, completions};
pub use connection::{Connection, client_name};
pub use df::FsSpaceArgs;
pub use drive::{DriveCommand, DriveFormatArgs, DriveLocateArgs};
pub use error::{CliError, Exit};
pub use events::{EventsArgs, Since};
pub use fabric::{
    DriveSources, FabricCollectArgs, FabricCommand, FabricInitArgs, FabricRecoverArgs, FabricSetArgs, Percent,
};
pub use files::{FilesCommand, FsGetArgs, FsListFilesArgs, FsMakeDirectoryArgs, FsPutArgs, FsRemoveArgs};
pub use fs::{FsCommand, FsCreateArgs, FsDeleteArgs};
pub use layout::{LayoutCommand, LayoutSetArgs, LayoutShowArgs};
pub use local::{DownArgs, Folder, LocalConfig, LocalError, LocalNode, LocalShape, ProcessId, UpArgs};
pub use locate::FabricPlace;
pub use log::{LogArgs, LogFormat};
pub use manager::{ManagerCommand, ManagerRunArgs};
pub use map::{MapCommand, MapRestoreArgs};
pub use mount::{MountArgs, MountOption, UmountArgs};
pub use mount_helper::words_for_mount;
pub use node::{NodeCommand, NodeRunArgs};
pub use ondemand::{
    OnHostArgs, OndemandCommand, OndemandCopyArgs, OndemandStartArgs, OndemandStatusArgs, OndemandStopArgs,
};
pub use output::{Output, note, report};
pub use pages::{ManArgs, man};
pub use paint::{Paint, Tone};
pub use pool::PoolCommand;
pub use progress::Step;
pub use reference::reference;
pub use repair::VolumeRepairArgs;
pub use report::ReportArgs;
pub use scrub::{ScrubCommand, ScrubScheduleArgs, ScrubStartArgs};
pub use session::SessionCommand;
pub use size::{ParseSizeError, Size};
pub use span::{ParseSpanError, Span, span};
pub use table::{Cell, Table};
pub use transfer::{VolumeExportArgs, VolumeImportArgs};
pub use transport::{TransportArgs, Waits};
pub use usage::report_usage;
pub use volume::{Domain, Sector, VolumeCommand, VolumeCreateArgs, VolumeDeleteArgs, VolumeServeArgs};
pub use watch::{By, SortColumn, WatchArgs};

use std::future::Future;
use std::path::{Path, PathBuf};

/// Options of every command.
#[derive(Clone, Debug, clap::Args)]
pub struct Globals {
    /// The fabric: a manager's IP:PORT or unix:PATH, or the folder of a local fabric [default: ./weft-fabric]
    #[arg(long, global = true, value_name = "PLACE", env = "WEFT_FABRIC", hide_env_values = true)]
    pub fabric: Option<String>,
    /// Print JSON instead of text
    ///
    /// Documents have a `schema_version`, bytes as integers and times as RFC 3339. Errors are JSON as well.
    #[arg(long, global = true)]
    pub json: bool,
}

impl Globals {
    /// Where the fabric is.
    pub fn place(&self) -> FabricPlace {
        FabricPlace::new(self.fabric.as_deref())
    }

    /// How to print.
    pub fn output(&self) -> Output {
        Output::new(self.json)
    }

    /// The folder of the local fabric: the one named for this command, or the fabric named for all.
    fn folder(&self, dir: Option<&PathBuf>) -> Result<Folder, CliError> {
        if let Some(dir) = dir {
            return Ok(Folder::at(dir));
        }
        match self.place() {
            FabricPlace::Folder(dir) => Ok(Folder::at(&dir)),
            FabricPlace::Address(addr) => Err(CliError::Usage {
                message: format!("the fabric at {addr} is not one that `weft up` made on this machine"),
                hint: "name the folder of a local fabric with --fabric, or with --dir where there is one"
                    .into(),
            }),
        }
    }
}

/// The commands.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Start a whole fabric on this machine
    Up(UpArgs),
    /// Stop the fabric that `weft up` started
    Down(DownArgs),
    /// Show how the fabric is: health, troubles, capacity, nodes
    ///
    /// For each trouble: what it is, since when, which volumes and how much of them it concerns, what the fabric
    /// does about it or waits for, and what can be done. Exits with 0 also if the fabric is degraded: the word is
    /// in the output, and in `health` of the JSON document, whose shape is described in docs/status.md.
    ///
    /// Without a manager it shows what can be known of a local fabric (which processes run, and what the nodes
    /// say), and exits with 3.
    #[command(after_long_help = "Examples:\n  weft status\n  weft status --json | jq -r .health\n  \
                           weft status --json | jq -r '.troubles[] | [.severity, .since, .what] | @tsv'")]
    Status,
    /// Show what the fabric does, second by second
    Watch(WatchArgs),
    /// Show what `weft watch --record` recorded, as a page with charts
    Report(ReportArgs),
    /// Volumes: named, sized address spaces on the fabric
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// File systems: files and directories on the fabric
    #[command(subcommand)]
    Fs(FsCommand),
    /// Mount a file system at a folder of this machine
    ///
    /// It is an ordinary folder then, for every program and user of this machine, with the permissions that its
    /// files have. The command returns when it is mounted; a process in the background serves it until it is unmounted.
    ///
    /// Any number of machines may mount it: each sees at once what the others have done. What a program has synced is
    /// durable on all copies.
    Mount(MountArgs),
    /// End a mount
    ///
    /// What is written is durable when this returns. Also takes away a mount whose process has died.
    Umount(UmountArgs),
    /// A file system that exists as long as a job, on the disks of the job's hosts
    #[command(subcommand)]
    Ondemand(OndemandCommand),
    /// Clients that have attached volumes or file systems
    #[command(subcommand)]
    Session(SessionCommand),
    /// The machines of the fabric
    #[command(subcommand)]
    Node(NodeCommand),
    /// The drives of the fabric, and of this machine
    #[command(subcommand)]
    Drive(DriveCommand),
    /// The sets of drives that volumes draw from
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Reading everything, verifying it, and healing what is damaged
    #[command(subcommand)]
    Scrub(ScrubCommand),
    /// Show what happened in the fabric lately
    Events(EventsArgs),
    /// Collect what helps to find out what is wrong, in one archive
    ///
    /// Takes what the manager tells (status, map, events, load), the metrics and logs of all members, what is on the labels
    /// of drives, and facts about this machine (kernel, memory, limits, mounts, network interfaces). Never takes data of
    /// volumes, nor environment variables; what looks like a password, a token or a private key in what it takes is
    /// blacked out. Names of volumes, nodes, clients and addresses are in it.
    ///
    /// Whatever does not answer is noted in the archive's manifest with the reason, and the rest is taken: the manager and
    /// nodes may be dead. Of a fabric that `weft up` made on this machine all places are known; of another, name the addresses
    /// of metrics, the logs and the drives of this machine, and run it on each machine.
    SupportBundle(SupportBundleArgs),
    /// The fabric as a whole
    #[command(subcommand)]
    Fabric(FabricCommand),
    /// The fabric map
    #[command(subcommand)]
    Map(MapCommand),
    /// The service that owns the fabric map
    #[command(subcommand)]
    Manager(ManagerCommand),
}

/// What the program does for the command line with engines that it must not touch. Each runs to its end.
#[allow(missing_docs, reason = "each is the command of its name")]
pub trait Engines {
    fn manager_run(&self, args: ManagerRunArgs) -> Result<(), CliError>;
    fn node_run(&self, args: NodeRunArgs) -> Result<(), CliError>;
    fn drive_format(&self, args: DriveFormatArgs, output: Output) -> Result<(), CliError>;
    fn drive_inspect(&self, path: PathBuf, output: Output) -> Result<(), CliError>;
    fn drive_locate(&self, args: DriveLocateArgs, output: Output) -> Result<(), CliError>;
    /// What `weft drive inspect --json` prints, as a document.
    fn drive_facts(&self, path: &Path) -> Result<serde_json::Value, CliError>;
    fn drive_check(&self, path: PathBuf, deep: bool, output: Output) -> Result<(), CliError>;
    fn fabric_init(&self, args: FabricInitArgs, output: Output) -> Result<(), CliError>;
    fn fabric_collect(&self, args: FabricCollectArgs, output: Output) -> Result<(), CliError>;
    fn fabric_recover(&self, args: FabricRecoverArgs, output: Output) -> Result<(), CliError>;
    fn map_restore(&self, args: MapRestoreArgs, output: Output) -> Result<(), CliError>;
    fn volume_serve(&self, args: VolumeServeArgs, place: FabricPlace, output: Output)
    -> Result<(), CliError>;
    fn mount(&self, args: MountArgs, place: FabricPlace, output: Output) -> Result<(), CliError>;
    fn umount(&self, args: UmountArgs, output: Output) -> Result<(), CliError>;
}

/// Carries out a command.
///
/// # Errors
/// Whatever kept it from being done, with exit code and hint.
pub fn run(globals: &Globals, command: Command, engines: &dyn Engines) -> Result<(), CliError> {
    let (place, output) = (globals.place(), globals.output());
    match command {
        Command::Manager(ManagerCommand::Run(args)) => engines.manager_run(*args),
        Command::Node(NodeCommand::Run(args)) => engines.node_run(*args),
        Command::Drive(DriveCommand::Format(args)) => engines.drive_format(args, output),
        Command::Drive(DriveCommand::Inspect { path }) => engines.drive_inspect(path, output),
        Command::Drive(DriveCommand::Locate(args)) => engines.drive_locate(args, output),
        Command::Drive(DriveCommand::Check { path, deep }) => engines.drive_check(path, deep, output),
        Command::Fabric(FabricCommand::Init(args)) => engines.fabric_init(args, output),
        Command::Fabric(FabricCommand::Collect(args)) => engines.fabric_collect(args, output),
        Command::Fabric(FabricCommand::Recover(args)) => engines.fabric_recover(args, output),
        Command::SupportBundle(args) => bundle::bundle(&args, &place, engines, output),
        Command::Map(MapCommand::Restore(args)) => engines.map_restore(args, output),
        Command::Map(MapCommand::Verify { file }) => {
            block_on(async move { map::verify(&file, output).await })
        }
        Command::Volume(VolumeCommand::Serve(args)) => engines.volume_serve(args, place, output),
        Command::Mount(args) => engines.mount(args, place, output),
        Command::Umount(args) => engines.umount(args, output),
        command @ (Command::Up(_)
        | Command::Down(_)
        | Command::Manager(ManagerCommand::Start | ManagerCommand::Stop { .. })
        | Command::Node(NodeCommand::Start { .. } | NodeCommand::Stop { .. })) => {
            run_local(globals, command, output)
        }
        Command::Volume(VolumeCommand::Import(args)) => {
            block_on(async move { transfer::import(&place, &args, output).await })
        }
        Command::Volume(VolumeCommand::Export(args)) => {
            block_on(async move { transfer::export(&place, &args, output).await })
        }
        Command::Fs(
            command @ (FsCommand::Files(_)
            | FsCommand::Find(_)
            | FsCommand::Layout(_)
            | FsCommand::Project(_)
            | FsCommand::Quota(_)
            | FsCommand::Shards(_)
            | FsCommand::OfShards(_)),
        ) => block_on(async move { run_attached(&place, command, output).await }),
        Command::Ondemand(command) => block_on(async move { ondemand::run(command, output).await }),
        Command::Report(args) => report::report(&args, output),
        Command::Status => block_on(async move { status::status(&place, output).await }),
        Command::Events(args) => block_on(async move { events::events(&place, &args, output).await }),
        Command::Watch(args) => block_on(async move { watch::watch(&place, &args, output).await }),
        asked => block_on(async move {
            let connection = Connection::open(&place).await?;
            ask(&connection, asked, output).await
        }),
    }
}

/// Carries out a command that attaches a file system.
async fn run_attached(place: &FabricPlace, command: FsCommand, output: Output) -> Result<(), CliError> {
    match command {
        FsCommand::Files(command) => files::run(place, command, output).await,
        FsCommand::Find(args) => find::run(place, &args, output).await,
        FsCommand::Layout(command) => layout::run(place, command, output).await,
        FsCommand::Project(command) => project::run(place, command, output).await,
        FsCommand::Quota(command) => quota::run(place, command, output).await,
        FsCommand::Shards(args) => shard_load::run(place, args, output).await,
        FsCommand::OfShards(command) => shards::run(place, command, output).await,
        _ => unreachable!("the manager is asked for it"),
    }
}

/// Carries out a command for a fabric of processes on this machine.
fn run_local(globals: &Globals, command: Command, output: Output) -> Result<(), CliError> {
    match command {
        Command::Up(args) => {
            let folder = globals.folder(args.dir.as_ref())?;
            block_on(async move { local::up(&args, &folder, output).await })
        }
        Command::Down(args) => {
            let folder = globals.folder(args.dir.as_ref())?;
            block_on(async move { local::down(&args, &folder, output).await })
        }
        Command::Manager(ManagerCommand::Start) => {
            let folder = globals.folder(None)?;
            block_on(async move { local::start_lost_manager(&folder, output).await })
        }
        Command::Manager(ManagerCommand::Stop { kill }) => {
            let folder = globals.folder(None)?;
            block_on(async move { local::stop_manager(&folder, kill, output).await })
        }
        Command::Node(NodeCommand::Start { name }) => {
            let folder = globals.folder(None)?;
            block_on(async move { local::start_member(&folder, &name, output).await })
        }
        Command::Node(NodeCommand::Stop { name, kill }) => {
            let folder = globals.folder(None)?;
            block_on(async move { local::stop_member(&folder, &name, kill, output).await })
        }
        _ => unreachable!("the others need no fabric on this machine"),
    }
}

/// Carries out a command that only asks the manager.
async fn ask(connection: &Connection, command: Command, output: Output) -> Result<(), CliError> {
    match command {
        Command::Volume(VolumeCommand::Create(args)) => volume::create(connection, args, output).await,
        Command::Volume(VolumeCommand::List { all }) => volume::list(connection, all, output).await,
        Command::Volume(VolumeCommand::Show { name }) => volume::show(connection, &name, output).await,
        Command::Volume(VolumeCommand::Resize { name, size, dry_run }) => {
            volume::resize(connection, &name, size, dry_run, output).await
        }
        Command::Volume(VolumeCommand::Repair(args)) => repair::repair(connection, args, output).await,
        Command::Volume(VolumeCommand::Delete(args)) => volume::delete(connection, &args, output).await,
        Command::Fs(FsCommand::Create(args)) => fs::create(connection, args, output).await,
        Command::Fs(FsCommand::List) => fs::list(connection, output).await,
        Command::Fs(FsCommand::Df(args)) => df::df(connection, &args, output).await,
        Command::Fs(FsCommand::Show { name }) => fs::show(connection, &name, output).await,
        Command::Fs(FsCommand::Grow { name, dry_run }) => fs::grow(connection, &name, dry_run, output).await,
        Command::Fs(FsCommand::Delete(args)) => fs::delete(connection, &args, output).await,
        Command::Session(SessionCommand::List { volume, all }) => {
            session::list(connection, volume.as_deref(), all, output).await
        }
        Command::Session(SessionCommand::End { session, dry_run, yes }) => {
            session::end(connection, &session, dry_run, yes, output).await
        }
        Command::Node(NodeCommand::List) => node::list(connection, output).await,
        Command::Node(NodeCommand::Show { name }) => node::show(connection, &name, output).await,
        Command::Node(NodeCommand::Evacuate { name, how }) => {
            evacuate::node(connection, name, how, output).await
        }
        Command::Node(NodeCommand::Remove { name, dry_run, yes }) => {
            evacuate::remove_node(connection, name, dry_run, yes, output).await
        }
        Command::Drive(DriveCommand::Evacuate(args)) => evacuate::drive(connection, args, output).await,
        Command::Drive(DriveCommand::Replace(args)) => evacuate::replace(connection, args, output).await,
        Command::Drive(DriveCommand::Restore { id, device, dry_run }) => {
            drive::restore(connection, &id, device, dry_run, output).await
        }
        Command::Drive(DriveCommand::Remove(args)) => evacuate::remove_drive(connection, args, output).await,
        Command::Drive(DriveCommand::List) => drive::list(connection, output).await,
        Command::Drive(DriveCommand::Show { id }) => drive::show(connection, &id, output).await,
        Command::Pool(PoolCommand::List) => pool::list(connection, output).await,
        Command::Scrub(command) => scrub::scrub(connection, command, output).await,
        Command::Fabric(FabricCommand::Show) => fabric::show(connection, output).await,
        Command::Fabric(FabricCommand::Set(args)) => fabric::set(connection, &args, output).await,
        Command::Fabric(FabricCommand::Check) => check::check(connection, output).await,
        Command::Map(MapCommand::Show) => map::show(connection).await,
        Command::Map(MapCommand::Backup { file, force }) => {
            map::backup(connection, &file, force, output).await
        }
        Command::Map(MapCommand::Diff { file, other }) => {
            map::diff(connection, &file, other.as_deref(), output).await
        }
        other => unreachable!("{other:?} asks no manager"),
    }
}

/// Runs a command on this thread's executor.
///
/// # Errors
/// The command's, or that the kernel refuses what the executor needs.
pub fn block_on(command: impl Future<Output = Result<(), CliError>> + 'static) -> Result<(), CliError> {
    weft_rt::block_on(command)?
}
