//! Whole: the program `weft`. It picks engines and faces by subcommand.
//!
//! It owns the daemons' entry points and the commands that open drives. What is printed, and everything that
//! a client or a tool can do, is in `weft-cli`.

mod backup;
mod bench;
mod check;
mod collect;
mod device_speed;
mod drive;
#[cfg(test)]
mod examples;
mod format;
mod init;
mod inspect;
mod known;
mod locate;
mod logging;
mod manager;
mod mount;
mod node;
mod part;
mod recover;
mod restore;
mod room;
mod serve;
mod stop;

use clap::{CommandFactory, Parser};
use logging::Daemon;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;
use weft_cli::{
    CliError, DriveFormatArgs, DriveLocateArgs, Engines, Exit, FabricCollectArgs, FabricInitArgs,
    FabricPlace, FabricRecoverArgs, Globals, ManagerRunArgs, MapRestoreArgs, MountArgs, NodeRunArgs, Output,
    UmountArgs, VolumeServeArgs,
};

/// Requests are many small pieces of memory, taken and given back by one thread: this allocator spends a
/// fraction of the time of the C library's on them, and never pauses to put free pieces together.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What `--version` says. A program that was built beside the simulation or the fuzzers says so: it is not
/// for use.
const LONG_VERSION: &str = match IS_TEST_BUILD {
    true => {
        concat!(env!("CARGO_PKG_VERSION"), " (test build: it has switches or doors that a release has not)")
    }
    false => env!("CARGO_PKG_VERSION"),
};

const IS_TEST_BUILD: bool = weft_rules::IS_OF_SIMULATION
    || weft_store::HAS_FUZZING_DOORS
    || weft_nbd::HAS_FUZZING_DOORS
    || weft_cli::HAS_FUZZING_DOORS
    || weft_meta::HAS_FUZZING_DOORS;

/// Shared, protected storage from the drives of many machines
///
/// Weft turns the drives of Linux machines into one fabric and serves mirrored block volumes from it. Begin
/// with `weft up`, which starts a whole fabric on this machine.
#[derive(Parser)]
#[command(
    name = "weft",
    bin_name = "weft",
    version,
    long_version = LONG_VERSION,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_long_help = "Exit codes: 0 done, 1 failed, 2 called wrongly, 3 no manager of the fabric answers, 4 refused \
                       because data or somebody's work could be lost.\n\nData goes to the standard output, everything \
                       else to the standard error. NO_COLOR switches colours off."
)]
struct Program {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    #[command(flatten)]
    Cli(weft_cli::Command),
    /// Measure a volume, or the data path of this build
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Print what a shell needs to complete commands and options
    Completions(weft_cli::CompletionsArgs),
    /// Write the manual pages: one for each command
    Man(weft_cli::ManArgs),
    /// Print the reference of all commands as Markdown
    #[command(hide = true)]
    Reference,
}

/// The engines that the command line asks for.
struct Whole;

impl Engines for Whole {
    fn manager_run(&self, args: ManagerRunArgs) -> Result<(), CliError> {
        let daemon = Daemon { kind: "manager", node: None, default: LevelFilter::INFO };
        logging::start_for_daemon(daemon, &args.log)?;
        weft_cli::block_on(manager::run(args))
    }

    fn node_run(&self, args: NodeRunArgs) -> Result<(), CliError> {
        let daemon = Daemon { kind: "node", node: Some(&args.name), default: LevelFilter::INFO };
        logging::start_for_daemon(daemon, &args.log)?;
        weft_cli::block_on(node::run(args))
    }

    fn drive_format(&self, args: DriveFormatArgs, output: Output) -> Result<(), CliError> {
        weft_cli::block_on(format::format(args, output))
    }

    fn drive_inspect(&self, path: PathBuf, output: Output) -> Result<(), CliError> {
        weft_cli::block_on(inspect::inspect(path, output))
    }

    fn drive_locate(&self, args: DriveLocateArgs, output: Output) -> Result<(), CliError> {
        weft_cli::block_on(locate::locate(args, output))
    }

    fn drive_facts(&self, path: &Path) -> Result<serde_json::Value, CliError> {
        weft_rt::block_on(inspect::facts(path.to_owned()))?
    }

    fn drive_check(&self, path: PathBuf, deep: bool, output: Output) -> Result<(), CliError> {
        weft_cli::block_on(check::check(path, deep, output))
    }

    fn fabric_init(&self, args: FabricInitArgs, output: Output) -> Result<(), CliError> {
        weft_cli::block_on(init::init(args, output))
    }

    fn fabric_collect(&self, args: FabricCollectArgs, output: Output) -> Result<(), CliError> {
        weft_cli::block_on(collect::collect(args, output))
    }

    fn fabric_recover(&self, args: FabricRecoverArgs, output: Output) -> Result<(), CliError> {
        weft_cli::block_on(recover::recover(args, output))
    }

    fn map_restore(&self, args: MapRestoreArgs, output: Output) -> Result<(), CliError> {
        weft_cli::block_on(restore::restore(args, output))
    }

    fn volume_serve(
        &self,
        args: VolumeServeArgs,
        place: FabricPlace,
        output: Output,
    ) -> Result<(), CliError> {
        // It is often started by hand, and then what it serves is all that its user wants to know.
        let daemon = Daemon { kind: "nbd", node: None, default: LevelFilter::WARN };
        logging::start_for_daemon(daemon, &args.log)?;
        weft_cli::block_on(serve::serve(args, place, output))
    }

    fn mount(&self, args: MountArgs, place: FabricPlace, output: Output) -> Result<(), CliError> {
        mount::mount(args, place, output)
    }

    fn umount(&self, args: UmountArgs, output: Output) -> Result<(), CliError> {
        mount::umount(&args, output)
    }
}

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    match weft_cli::words_for_mount(&args) {
        Ok(None) => {}
        // Once more by its own name: the process in the background is started with the same words.
        Ok(Some(words)) => return mount::called_by_mount(&words),
        Err(error) => {
            weft_cli::report(&error, false);
            return ExitCode::from(error.exit() as u8);
        }
    }
    let words = words(args);
    let program = match Program::try_parse_from(&words) {
        Ok(program) => program,
        Err(error) => {
            let args: Vec<String> =
                words.iter().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
            let is_json = args.iter().any(|arg| arg == "--json");
            let exit = weft_cli::report_usage(&error, &Program::command(), &args, is_json);
            return ExitCode::from(exit as u8);
        }
    };
    match run(program.command, &program.globals) {
        Ok(()) => ExitCode::from(Exit::Done as u8),
        Err(error) if error.is_reader_gone() => ExitCode::from(Exit::Done as u8),
        Err(error) => {
            weft_cli::report(&error, program.globals.json);
            ExitCode::from(error.exit() as u8)
        }
    }
}

/// The words of the command line; `weft help volume create` is another way to say `weft volume create
/// --help`.
fn words(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_some_and(|word| word == "help") {
        words.remove(1);
        words.push("--help".into());
    }
    words
}

fn run(command: Command, globals: &Globals) -> Result<(), CliError> {
    match command {
        Command::Cli(command) => {
            if !is_daemon(&command) {
                // A mount goes on when nobody looks: its warnings are all that is left of what has happened.
                let is_mount = matches!(command, weft_cli::Command::Mount(_));
                logging::start_for_command(if is_mount { LevelFilter::WARN } else { LevelFilter::ERROR });
            }
            weft_cli::run(globals, command, &Whole)
        }
        Command::Bench(command) => {
            logging::start_for_command(LevelFilter::ERROR);
            bench::run(command, globals)
        }
        Command::Completions(args) => weft_cli::completions(&Program::command(), &args, globals.output()),
        Command::Man(args) => weft_cli::man(&Program::command(), &args, globals.output()),
        Command::Reference => Output::new(false).print(&weft_cli::reference(&Program::command())),
    }
}

/// Whether the command starts its own logging.
fn is_daemon(command: &weft_cli::Command) -> bool {
    use weft_cli::{Command, ManagerCommand, NodeCommand, VolumeCommand};
    matches!(
        command,
        Command::Manager(ManagerCommand::Run(_))
            | Command::Node(NodeCommand::Run(_))
            | Command::Volume(VolumeCommand::Serve(_))
    )
}
