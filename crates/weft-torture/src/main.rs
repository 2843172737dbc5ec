//! `weft-torture`: a fabric of real processes under real faults, and a verdict on every acknowledged write.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use weft_rt::Addr;
use weft_torture::client::{self, ClientWork};
use weft_torture::mounts::Mounts;
use weft_torture::run::{Lasts, Plan, check_programs, run};
use weft_torture::users::{self, UsersWork};
use weft_torture::world::World;
use weft_torture::{Trouble, client::fill};

/// Tortures a fabric of real processes, and checks that no acknowledged write is lost
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Subcommand)]
enum Command {
    /// A client of the run; started by the run itself
    #[command(hide = true)]
    Client(ClientArgs),
    /// Users of files; started by the run itself
    #[command(hide = true)]
    Users(UsersArgs),
}

#[derive(Args)]
struct RunArgs {
    /// How many minutes of faults
    #[arg(long, value_name = "N", default_value_t = 5.0, conflicts_with = "rounds")]
    minutes: f64,
    /// How many rounds of faults, instead of minutes
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// How many seconds a round of faults lasts; then all heals
    #[arg(long, value_name = "SECONDS", default_value_t = 25)]
    round: u64,
    /// Draws the same faults again [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How many nodes, 4 to 16
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(4..=16))]
    nodes: u8,
    /// How many clients, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    clients: u8,
    /// The program under torture [default: weft beside this program]
    #[arg(long, value_name = "PATH")]
    weft: Option<PathBuf>,
    /// A folder for drives, logs and records, which is not there yet [default: one for temporary files; it is
    /// removed when all is well]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Write what happened as JSON
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Args)]
struct ClientArgs {
    #[arg(long)]
    manager: String,
    #[arg(long)]
    volume: String,
    #[arg(long, default_value_t = 0)]
    number: u32,
    #[arg(long)]
    record: Option<PathBuf>,
    #[arg(long, value_delimiter = ',')]
    blocks: Vec<u64>,
    #[arg(long)]
    reader: bool,
    #[arg(long)]
    fill: bool,
}

#[derive(Args)]
struct UsersArgs {
    #[arg(long)]
    mount: Vec<PathBuf>,
    #[arg(long)]
    deaths: Vec<PathBuf>,
    #[arg(long)]
    users: usize,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    end: PathBuf,
    #[arg(long)]
    count: PathBuf,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Some(Command::Client(args)) => client_main(args),
        Some(Command::Users(args)) => {
            let UsersArgs { mount: mounts, deaths, users, seed, end, count } = args;
            users::run(&UsersWork { mounts, deaths, users, seed, end, count })
        }
        None => run_main(&cli.run),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            eprintln!("error: {trouble}");
            ExitCode::FAILURE
        }
    }
}

fn client_main(args: ClientArgs) -> Result<(), Trouble> {
    let manager: Addr = args.manager.parse().map_err(|e| Trouble(format!("--manager: {e}")))?;
    let work = ClientWork {
        manager,
        volume: args.volume,
        number: args.number,
        blocks: args.blocks,
        record: args.record.unwrap_or_default(),
        depth: 3,
        think: Duration::from_millis(20),
        is_reader: args.reader,
    };
    let ended = match args.fill {
        true => weft_rt::block_on(async move { fill(work).await }),
        false => weft_rt::block_on(async move { client::run(work).await }),
    };
    ended.map_err(|e| Trouble(e.to_string()))?
}

fn say_what_there_is(world: World) {
    match world {
        World::Namespaces => println!("every host is a network namespace"),
        World::Loopback => println!("no namespaces here: nobody is cut off, and no drive is starved"),
    }
    if !Mounts::are_possible() {
        println!("no mounts here: they take root and /dev/fuse; files are not used");
    }
}

fn run_main(args: &RunArgs) -> Result<(), Trouble> {
    let beside = std::env::current_exe().ok().and_then(|p| Some(p.parent()?.join("weft")));
    let weft = args.weft.clone().or(beside).ok_or_else(|| Trouble("which weft? say --weft PATH".into()))?;
    let weft = std::path::absolute(&weft).map_err(|e| Trouble::of(weft.display(), e))?;
    check_programs(&weft)?;
    let world = World::enter()?;
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = args.seed.unwrap_or_else(|| clock.map_or(1, |t| t.as_secs()));
    let is_ours = args.dir.is_none();
    let dir = args.dir.clone().unwrap_or_else(|| std::env::temp_dir().join(format!("weft-torture-{seed}")));
    let dir = std::path::absolute(&dir).map_err(|e| Trouble::of(dir.display(), e))?;
    if dir.exists() {
        return Err(Trouble(format!("{} is there already\nhint: name another folder", dir.display())));
    }
    let round = Duration::from_secs(args.round.max(1));
    let lasts = match args.rounds {
        Some(rounds) => Lasts::Rounds(rounds),
        None => Lasts::Time(Duration::from_secs_f64((args.minutes * 60.0).clamp(0.0, 1e9))),
    };
    println!("seed {seed}, in {}", dir.display());
    say_what_there_is(world);
    let plan = Plan {
        weft,
        dir: dir.clone(),
        lasts,
        round,
        seed,
        nodes: args.nodes.into(),
        clients: args.clients.into(),
    };
    let outcome = run(plan, world).map_err(|trouble| {
        Trouble(format!(
            "{trouble}\nhint: records and logs are in {}; the faults again: --seed {seed}",
            dir.display()
        ))
    })?;
    for (kind, count) in &outcome.faults {
        println!("{count:>6}  {kind}");
    }
    println!(
        "{} operations acknowledged, {} blocks: each one an atomic register",
        outcome.acknowledged, outcome.blocks
    );
    println!(
        "longest operation {:.1} s, healthy within {:.1} s",
        outcome.longest.as_secs_f64(),
        outcome.healed_after.as_secs_f64()
    );
    for (before, meanwhile) in &outcome.stalls {
        let (before, meanwhile) = (*before as f64 / 1000.0, *meanwhile as f64 / 1000.0);
        println!(
            "beside a thread that stood still: writes, p99.9: {before:.1} ms before, {meanwhile:.1} meanwhile"
        );
    }
    println!("{} calls on files through mounts: each found what it may find", outcome.calls);
    println!("fio wrote {} and verified {} blocks", outcome.fio.0, outcome.fio.1);
    if let Some(out) = &args.out {
        let text = format!("{:#}\n", outcome.to_json(seed, world));
        std::fs::write(out, text).map_err(|e| Trouble::of(out.display(), e))?;
    }
    if is_ours {
        let _ = std::fs::remove_dir_all(&dir);
    }
    Ok(())
}
