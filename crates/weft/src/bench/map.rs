//! `weft bench map`: what a fabric map of any size costs its manager, and those who follow it.
//!
//! The map is made, not grown: no target, drive or client exists. The manager and its store are the
//! real ones; requests come to it as they would from connections. What is sent to others is
//! counted, not sent.

mod measure;
mod placed;
mod shape;

use clap::builder::RangedI64ValueParser;
use measure::{Cost, Measured, measure, write_store};
use shape::Shape;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use weft_cli::{Cell, CliError, Output, Step, Table};
use weft_types::Protection;
use weft_types::limits::{DEVICE_PARTS_MAX, LANES_MAX};

/// Threads of a node that are worth it.
const THREADS_MAX: usize = 8;

/// A number from 1 to this one.
fn up_to(most: usize) -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=most as i64)
}

/// Arguments of `weft bench map`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MapArgs {
    /// Machines in the map
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nodes: u32,
    /// Devices of each machine
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    drives: u32,
    /// Parts of each device, each a drive
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to(DEVICE_PARTS_MAX))]
    parts: u32,
    /// Threads of each machine, each a target
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to(THREADS_MAX))]
    threads: u32,
    /// Volumes of 100 GiB
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    volumes: u64,
    /// Open sessions
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(0..=65_000))]
    sessions: u64,
    /// Lanes of each session
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to(LANES_MAX))]
    lanes: u32,
    /// Copies of each block
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=3))]
    copies: u8,
    /// Where the store is made, in a folder of its own that is removed; the folder for temporary
    /// files if left out
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Make the map and its store in this file, and measure nothing
    #[arg(long, value_name = "FILE", hide = true)]
    only_make: Option<PathBuf>,
}

impl MapArgs {
    fn shape(&self) -> Shape {
        Shape {
            nodes: self.nodes,
            threads: self.threads,
            devices: self.drives,
            parts: self.parts,
            volumes: self.volumes,
            sessions: self.sessions,
            lanes: self.lanes,
            protection: Protection::mirror(self.copies),
        }
    }
}

pub(crate) fn run(args: &MapArgs, output: Output) -> Result<(), CliError> {
    if u32::from(args.copies) > args.nodes {
        return Err(CliError::Usage {
            message: format!("{} copies on {} nodes", args.copies, args.nodes),
            hint: "each copy is on another node: give --nodes at least as many".into(),
        });
    }
    if let Some(file) = &args.only_make {
        return write_store(file, args.shape());
    }
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = Folder::make(&parent)?;
    let file = folder.0.join("map.redb");
    let step = Step::new();
    step.says("making the map");
    make(args, &file)?;
    drop(step);
    let shape = args.shape();
    let measured = measure(&file, shape)?;
    output.show(&measured, |measured, paint| table(measured).render(paint))
}

/// Makes the store in another process, so that this one has no memory of the map when it begins to measure.
fn make(args: &MapArgs, file: &Path) -> Result<(), CliError> {
    let program = std::env::current_exe().map_err(CliError::file("find", "weft"))?;
    let mut command = Command::new(&program);
    command.args(["bench", "map", "--only-make"]).arg(file);
    for (option, value) in [
        ("--nodes", u64::from(args.nodes)),
        ("--drives", u64::from(args.drives)),
        ("--parts", u64::from(args.parts)),
        ("--threads", u64::from(args.threads)),
        ("--lanes", u64::from(args.lanes)),
        ("--volumes", args.volumes),
        ("--sessions", args.sessions),
        ("--copies", u64::from(args.copies)),
    ] {
        command.arg(option).arg(value.to_string());
    }
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(CliError::file("start", &program))?;
    if status.success() {
        return Ok(());
    }
    Err(CliError::Failed {
        message: format!("the map was not made: {status}"),
        hint: "the reason is above; `--dir` names a folder with more room".into(),
    })
}

fn table(measured: &Measured) -> Table {
    let mut table = Table::new(&["WHAT", ">VALUE", "UNIT"]);
    let mut row = |what: &str, value: String, unit: &str| {
        table.row(vec![Cell::from(what), Cell::from(value), Cell::from(unit)]);
    };
    let cost = |cost: &Cost| match cost {
        Cost::Value(value) => value.to_string(),
        Cost::Refused(_) => "refused".to_owned(),
    };
    row("targets", measured.targets.to_string(), "");
    row("drives", measured.drives.to_string(), "");
    row("groups", measured.groups.to_string(), "");
    row("map in the store", measured.map_bytes.to_string(), "bytes");
    row("load", measured.load_ms.to_string(), "ms");
    row("memory", measured.resident_mib.to_string(), "MiB");
    row("commit", cost(&measured.commit_us), "us");
    row("eviction of a node", cost(&measured.eviction_us), "us");
    row("renewal of a lease", cost(&measured.renewal_us), "us");
    row("renewals of all targets", cost(&measured.renewals_core_percent), "% of a core");
    row("look at all nodes and drives", cost(&measured.look_us), "us");
    row("groups of an empty pool placed", measured.place_groups_us.to_string(), "us");
    row("nodes that a node shares groups with", measured.partner_nodes.to_string(), "");
    row("drives of theirs", measured.partner_drives.to_string(), "");
    row("volume created", cost(&measured.create_volume_us), "us");
    row("attach, detach and sweep", cost(&measured.attach_us), "us");
    row("sent for these, in all", cost(&measured.attach_bytes), "bytes");
    row("client's slice", measured.client_slice_bytes.to_string(), "bytes");
    row("client's refresh", measured.client_refresh_bytes.to_string(), "bytes");
    row("target's refresh", measured.target_refresh_bytes.to_string(), "bytes");
    for why in measured.refusals() {
        row(&format!("refused: {why}"), String::new(), "");
    }
    table
}

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn make(parent: &Path) -> Result<Folder, CliError> {
        let path = parent.join(format!("weft-bench-map.{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(CliError::file("create the folder", &path))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left: the figures count.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
