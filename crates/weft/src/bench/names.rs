//! `weft bench names`: how many files a file system makes, finds, lists and removes in a second.
//!
//! Each client is a process of its own with one session, which keeps operations in flight in a directory of
//! its own. What they do is added up.

use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;
use weft_cli::{CliError, FabricPlace, Output, Step, Table, client_name};
use weft_client::{AttachMode, Fabric};
use weft_fs::{FsError, Mount, NewFile};
use weft_rt::sync::join_all;
use weft_rt::{now, random_u64};

/// How long an operation may take before the measurement fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Who the files belong to.
const NEW: NewFile = NewFile { mode: 0o644, umask: 0, uid: 0, gid: 0 };

/// Arguments of `weft bench names`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct NamesArgs {
    /// The file system's name
    name: String,
    /// Files that each client makes
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    files: u32,
    /// Operations of each client in flight
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: u32,
    /// Clients, each a process of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
}

/// What one kind of operation has reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    workload: String,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
}

/// The result, for programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Names {
    files: u32,
    depth: u32,
    clients: u32,
    rows: Vec<Row>,
}

pub(crate) fn run(args: NamesArgs, place: FabricPlace, output: Output) -> Result<(), CliError> {
    if args.clients > 1 {
        let names = all(&args, &place)?;
        return show(&names, output);
    }
    weft_cli::block_on(async move {
        let rows = alone(&args, &place).await?;
        show(&Names { files: args.files, depth: args.depth, clients: 1, rows }, output)
    })
}

fn show(names: &Names, output: Output) -> Result<(), CliError> {
    output.show(names, |names, paint| {
        let mut table = Table::new(&["OPERATION", ">PER SECOND", ">p50 us", ">p99 us"]);
        for row in &names.rows {
            let cells = [row.per_second, row.p50_us, row.p99_us].map(|figure| format!("{figure:.0}").into());
            table.row([vec![row.workload.as_str().into()], cells.to_vec()].concat());
        }
        table.render(paint)
    })
}

/// Runs a process for each client, and adds up what they say. Latencies are the worst client's.
fn all(args: &NamesArgs, place: &FabricPlace) -> Result<Names, CliError> {
    let step = Step::new();
    step.says(&format!("{} clients make, find and remove {} files each", args.clients, args.files));
    let own = std::env::current_exe().map_err(CliError::file("find", "this program"))?;
    let (files, depth) = (args.files.to_string(), args.depth.to_string());
    let start = || {
        let mut command = Command::new(&own);
        command.args(["bench", "names", &args.name, "--files", &files, "--depth", &depth, "--json"]);
        command.args(["--fabric", &place.to_string()]).stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().map_err(CliError::file("start", &own))
    };
    let clients: Vec<_> = (0..args.clients).map(|_| start()).collect::<Result<_, _>>()?;
    let mut names = Names { files: args.files, depth: args.depth, clients: args.clients, rows: Vec::new() };
    for client in clients {
        let said = client.wait_with_output().map_err(CliError::file("wait for", &own))?;
        let found: Option<Names> =
            serde_json::from_slice(&said.stdout).ok().filter(|_| said.status.success());
        let found = found.ok_or_else(|| CliError::Failed {
            message: "a client has failed; what it said is above".into(),
            hint: "`weft status` says how the fabric is".into(),
        })?;
        for row in found.rows {
            match names.rows.iter_mut().find(|sum| sum.workload == row.workload) {
                None => names.rows.push(row),
                Some(sum) => {
                    sum.per_second += row.per_second;
                    sum.p50_us = sum.p50_us.max(row.p50_us);
                    sum.p99_us = sum.p99_us.max(row.p99_us);
                }
            }
        }
    }
    Ok(names)
}

/// What one client reaches in a directory of its own.
async fn alone(args: &NamesArgs, place: &FabricPlace) -> Result<Vec<Row>, CliError> {
    let fabric = Fabric::connect(&place.managers()?, &client_name()).await?;
    let mount = Mount::attach(&fabric, &args.name, AttachMode::Shared, PATIENCE).await?;
    let measured = measure(&mount, args).await;
    mount.detach().await;
    Ok(measured?)
}

async fn measure(mount: &Mount, args: &NamesArgs) -> Result<Vec<Row>, FsError> {
    let directory = format!("/weft-bench-{:016x}", random_u64());
    let names = mount.names();
    let home = names.make_directory(directory.as_bytes(), NEW).await?;
    let inside = names.below(home.inode);
    let path = |n: u32| format!("file-{n:08}").into_bytes();
    let rows = vec![
        rate("create", args, async |n| inside.create(&path(n), NEW).await.map(drop)).await?,
        rate("find", args, async |n| inside.find(&path(n), false).await.map(drop)).await?,
        {
            let began = now();
            let listed = names.list(home.inode, directory.as_bytes()).await?.len();
            let took = began.elapsed().as_secs_f64();
            let us = took * 1e6;
            Row { workload: "list".into(), per_second: listed as f64 / took, p50_us: us, p99_us: us }
        },
        rate("remove", args, async |n| inside.unlink(&path(n)).await.map(drop)).await?,
    ];
    names.remove(directory.as_bytes()).await?;
    Ok(rows)
}

/// Carries an operation out for each file, with so many in flight.
async fn rate(
    workload: &str,
    args: &NamesArgs,
    operation: impl AsyncFn(u32) -> Result<(), FsError>,
) -> Result<Row, FsError> {
    let next = Rc::new(Cell::new(0));
    let latencies = RefCell::new(Vec::with_capacity(args.files as usize));
    let began = now();
    let worker = async || {
        while next.get() < args.files {
            let n = next.replace(next.get() + 1);
            let begun = now();
            operation(n).await?;
            latencies.borrow_mut().push(begun.elapsed());
        }
        Ok(())
    };
    let done: Result<Vec<()>, FsError> =
        join_all((0..args.depth).map(|_| worker()).collect::<Vec<_>>()).await.into_iter().collect();
    done?;
    let took = began.elapsed().as_secs_f64();
    let mut latencies = latencies.into_inner();
    latencies.sort_unstable();
    let quantile = |share: f64| {
        let at = ((latencies.len() as f64 * share) as usize).min(latencies.len() - 1);
        latencies[at].as_secs_f64() * 1e6
    };
    Ok(Row {
        workload: workload.to_owned(),
        per_second: f64::from(args.files) / took,
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
    })
}
