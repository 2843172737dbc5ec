//! `weft support-bundle`: one archive with all that helps to find out what is wrong, and nothing else.
//!
//! What is taken is an explicit list (`plan.rs`): the manager's answers, metrics, logs, drive labels, facts of the
//! machine. Data of volumes and environment variables are not on it, so they cannot get in; what looks like a secret in
//! what is taken is blacked out (`redact.rs`). Whatever cannot be collected is noted with its reason, and the rest goes
//! on: the command is made for fabrics that are broken.

mod archive;
mod collect;
mod plan;
mod redact;
mod scrape;

use crate::Engines;
use crate::error::CliError;
use crate::locate::FabricPlace;
use crate::output::{Output, fields, note};
use crate::size::Size;
use crate::table::{Table, row};
use archive::{Archive, Missing};
use collect::Collector;
use plan::{Item, Plan};
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use weft_api::Timestamp;
use weft_rt::Addr;

/// Bytes that a bundle may hold at least: below, not even the facts of the machine fit.
const SIZE_MIN: u64 = 1 << 20;

/// Bytes that a bundle may hold at most: it is made in memory.
const SIZE_MAX: u64 = 1 << 30;

/// Names shown of what could not be collected; all are in the manifest.
const MISSING_SHOWN: usize = 12;

/// What a bundle takes beside what is known of a local fabric, and where it goes.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  weft support-bundle\n  weft support-bundle --dry-run\n  \
    weft support-bundle --out /tmp/bundle.tar.gz --max-size 32MiB\n  weft --fabric 10.0.0.1:4800 support-bundle \
    --metrics 10.0.0.2:9810 --log /var/log/weft/node-1.log --drive /dev/nvme0n1")]
pub struct SupportBundleArgs {
    /// The file to write [default: weft-support-TIME.tar.gz in this folder]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// List what would be taken, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// How much to take at most, before compression; logs are cut first, at their beginnings
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub max_size: Size,
    /// How much to take of the end of each log file
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub log_size: Size,
    /// Where a member serves metrics, beside those of a local fabric; may be given several times
    #[arg(long, value_name = "ADDR")]
    pub metrics: Vec<Addr>,
    /// A log file of a daemon on this machine, beside those of a local fabric; may be given several times
    #[arg(long = "log", value_name = "FILE")]
    pub logs: Vec<PathBuf>,
    /// A drive of this machine, of which the labels are read; may be given several times
    #[arg(long = "drive", value_name = "PATH")]
    pub drives: Vec<PathBuf>,
}

/// What would be taken, for programs.
#[derive(Serialize)]
struct Planned<'a> {
    out: &'a Path,
    items: Vec<PlannedItem<'a>>,
    dry_run: bool,
}

#[derive(Serialize)]
struct PlannedItem<'a> {
    name: &'a str,
    from: String,
}

/// What was written, for programs.
#[derive(Serialize)]
struct Written<'a> {
    path: &'a Path,
    /// Of the archive.
    bytes: u64,
    files: usize,
    /// What was blacked out.
    redactions: u64,
    missing: &'a [Missing],
}

/// Collects what can be collected, and writes the archive.
pub(crate) fn bundle(
    args: &SupportBundleArgs,
    place: &FabricPlace,
    engines: &dyn Engines,
    output: Output,
) -> Result<(), CliError> {
    let time = wall_clock();
    let name = format!("weft-support-{}", compact(time));
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    check(args, &out)?;
    let plan = Plan::new(args, place);
    if args.dry_run {
        return show_plan(&plan.items, &out, output);
    }
    let mut archive = Archive::new(name, time, args.max_size.0);
    Collector::new(place, engines, args.log_size.0).collect(plan, &mut archive);
    let (bytes, manifest) = archive.finish().map_err(CliError::file("make", &out))?;
    write(&out, &bytes).map_err(CliError::file("write", &out))?;
    let written = Written {
        path: &out,
        bytes: bytes.len() as u64,
        files: manifest.files.len(),
        redactions: manifest.files.iter().map(|file| file.redactions).sum(),
        missing: &manifest.missing,
    };
    output.show(&written, |w, paint| {
        tell_missing(w.missing);
        fields(
            paint,
            &[
                ("bundle", w.path.display().to_string()),
                ("size", Size(w.bytes).to_string()),
                ("files", w.files.to_string()),
                ("blacked out", w.redactions.to_string()),
                ("not collected", w.missing.len().to_string()),
            ],
        )
    })
}

/// Refuses what cannot work before anything is collected.
fn check(args: &SupportBundleArgs, out: &Path) -> Result<(), CliError> {
    let size = args.max_size;
    if !(SIZE_MIN..=SIZE_MAX).contains(&size.0) {
        return Err(CliError::Usage {
            message: format!("--max-size is {size}, expected {} to {}", Size(SIZE_MIN), Size(SIZE_MAX)),
            hint: "the default, 64MiB, holds a fabric of many nodes".into(),
        });
    }
    if args.dry_run {
        return Ok(());
    }
    if out.exists() {
        return Err(CliError::Usage {
            message: format!("{} exists already", out.display()),
            hint: "choose another name with --out, or remove it first".into(),
        });
    }
    let folder = match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::metadata(folder).map_err(CliError::file("write into the folder", folder))?;
    Ok(())
}

fn show_plan(items: &[Item], out: &Path, output: Output) -> Result<(), CliError> {
    let items = items.iter().map(|item| PlannedItem { name: &item.name, from: item.source.to_string() });
    let planned = Planned { out, items: items.collect(), dry_run: true };
    output.show(&planned, |planned, paint| {
        let mut table = Table::new(&["FILE IN THE BUNDLE", "FROM"]);
        for item in &planned.items {
            table.row(row![item.name, item.from.as_str()]);
        }
        note(&format!("{} would be written; nothing was", planned.out.display()));
        table.render(paint)
    })
}

fn tell_missing(missing: &[Missing]) {
    for item in missing.iter().take(MISSING_SHOWN) {
        note(&format!("not collected: {}: {}", item.name, item.why));
    }
    if let Some(more) = missing.len().checked_sub(MISSING_SHOWN).filter(|more| *more > 0) {
        note(&format!("not collected: {more} more, see manifest.json in the bundle"));
    }
}

/// Writes a new file that only its owner can read. What is half written is removed.
fn write(out: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(out)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if written.is_err() {
        // The error of the write is what is told.
        let _ = fs::remove_file(out);
    }
    written
}

/// The time, without the runtime: it may be what is broken.
fn wall_clock() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A time for the name of a file: `20260131T235959Z`.
fn compact(time: Timestamp) -> String {
    let text = time.to_string();
    let seconds = text.split('.').next().unwrap_or(&text);
    format!("{}Z", seconds.chars().filter(|c| c.is_ascii_alphanumeric()).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_has_the_time() {
        assert_eq!(compact(Timestamp::from_millis(0)), "19700101T000000Z");
    }
}
