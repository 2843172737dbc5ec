//! `weft fabric`: the fabric as a whole.

use crate::connection::Connection;
use crate::error::CliError;
use crate::output::{Output, fields};
use crate::span::span_ms;
use serde::Serialize;
use std::path::PathBuf;
use weft_api::{ApiAnswer, ApiRequest, SettingsInfo, SettingsWish};
use weft_types::{FabricId, MapVersion};

/// The fabric as a whole
#[derive(Clone, Debug, clap::Subcommand)]
pub enum FabricCommand {
    /// Make a new fabric: its identity, and the store of its manager
    ///
    /// A fabric is made once, before its manager is started for the first time; `weft manager run` never
    /// makes one. It has no nodes, drives and volumes yet: what to do next is printed.
    ///
    /// Refused where there is a store, or where backups of a map lie beside it: then there was a fabric,
    /// whose drives may hold data, and a new one would not know them. `weft up` makes its own fabric
    /// without this command.
    #[command(after_long_help = "Examples:\n  weft fabric init\n  weft fabric init /srv/weft/map.redb\n  \
        weft fabric init --json | jq -r .fabric")]
    Init(FabricInitArgs),
    /// Show the fabric's identity and settings
    #[command(after_long_help = "Examples:\n  weft fabric show\n  weft fabric show --json")]
    Show,
    /// Compare the fabric map with what every drive says, and change nothing
    ///
    /// Checks the rules that hold in every map, the manager's store, that each node has the drives that the map
    /// lists and each drive the groups, what drives hold that the map does not know, the clocks of the nodes, and
    /// the versions of the programs. Each finding says what to do about it.
    ///
    /// Exits with 0 if the fabric is sound, and with 1 if something is not as it must be, or could not be looked at.
    #[command(after_long_help = "Examples:\n  weft fabric check\n  \
        weft fabric check --json | jq -r '.findings[].what'")]
    Check,
    /// Write down what the drives of this machine know, for a recovery on another machine
    ///
    /// For when the manager's store is lost and the drives are on several machines: run it on each of them,
    /// take the files to the machine of the manager, and name them to `weft fabric recover --from` or `weft
    /// map restore --from`. A file holds the copies of the fabric map on the drives, and what the drives
    /// know of groups, volumes and sessions; no data of volumes.
    ///
    /// The nodes must be stopped, and stay so until the manager is back: what their drives learn later is
    /// not in the file.
    #[command(after_long_help = "Examples:\n  weft fabric collect node-2.weftdrives --drives /dev/nvme0n1 \
                           /dev/nvme1n1\n  \
        ssh node-2 weft fabric collect - --drives /dev/nvme0n1 > node-2.weftdrives")]
    Collect(FabricCollectArgs),
    /// Make the manager's store anew, from the copies of the fabric map on the drives
    ///
    /// For when the manager's store is lost or damaged. Every drive holds a copy of the fabric map; the
    /// newest is taken, and everything that clients and targets compare by number is raised above what any
    /// drive has seen. All sessions are over afterwards: clients attach again.
    ///
    /// The manager and all nodes must be stopped. Name all drives of the fabric: one that is left out may
    /// hold the newest copy. Where they are on several machines, run `weft fabric collect` on each of the
    /// others, and name the files with --from. A store that exists, damaged or not, is kept under another
    /// name, which is printed.
    #[command(after_long_help = "Examples:\n  weft fabric recover ./weft-fabric --drives \
        ./weft-fabric/nodes/*/drive-*.img --dry-run\n  weft fabric recover ./weft-fabric --drives \
        ./weft-fabric/nodes/*/drive-*.img\n  weft fabric recover /var/lib/weft/map.redb --drives \
        /dev/nvme0n1 --from \
        node-2.weftdrives node-3.weftdrives")]
    Recover(FabricRecoverArgs),
    /// Show or change the fabric's settings
    #[command(after_long_help = "Examples:\n  weft fabric set --rebuild-after-ms 60000\n  \
                           weft fabric set --capacity-warning 70% --capacity-critical 85%")]
    Set(FabricSetArgs),
}

/// Arguments of `weft fabric init`.
#[derive(Clone, Debug, clap::Args)]
pub struct FabricInitArgs {
    /// The file to make, which will hold the fabric map: that of `weft manager run --store`
    #[arg(value_name = "STORE", default_value = STORE_DEFAULT)]
    pub store: PathBuf,
    /// The identity of the fabric, which its drives carry [default: a random one]
    #[arg(long, value_name = "UUID")]
    pub fabric_id: Option<FabricId>,
    /// Go through all checks, say what would be made, and make nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Where the manager's store is on a machine that runs the unit of the package
/// (scripts/package/weft-manager.service).
const STORE_DEFAULT: &str = "/var/lib/weft/map.redb";

/// Arguments of `weft fabric set`.
#[derive(Clone, Debug, clap::Args)]
pub struct FabricSetArgs {
    /// How long a replica may be out before its data is rebuilt elsewhere, in milliseconds: 1000 to 31536000000
    #[arg(long, value_name = "MS")]
    pub rebuild_after_ms: Option<u64>,
    /// From which part of its capacity on a pool's fullest drive is worth a warning, such as 80%
    #[arg(long, value_name = "PERCENT")]
    pub capacity_warning: Option<Percent>,
    /// From which part on it is critical, such as 90%
    #[arg(long, value_name = "PERCENT")]
    pub capacity_critical: Option<Percent>,
}

/// A whole number of percent, with or without its sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(pub u8);

impl std::str::FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Percent, String> {
        let number = text.strip_suffix('%').unwrap_or(text).trim_end();
        match number.parse() {
            Ok(percent @ 1..=99) if number.bytes().all(|b| b.is_ascii_digit()) => Ok(Percent(percent)),
            _ => Err("expected a whole number from 1 to 99, such as 80 or 80%".into()),
        }
    }
}

/// Arguments of `weft fabric collect`.
#[derive(Clone, Debug, clap::Args)]
pub struct FabricCollectArgs {
    /// The file to write, or - for the standard output
    pub file: PathBuf,
    /// The drives of the fabric on this machine
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    pub drives: Vec<PathBuf>,
    /// Overwrite a file that exists
    #[arg(long)]
    pub force: bool,
    /// Read and say what would be written, and write nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// What a recovery goes by.
#[derive(Clone, Debug, clap::Args)]
pub struct DriveSources {
    /// The drives of the fabric on this machine
    #[arg(long, value_name = "PATH", required_unless_present = "from", num_args = 1..)]
    pub drives: Vec<PathBuf>,
    /// Files that `weft fabric collect` has written on the other machines, one of each
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub from: Vec<PathBuf>,
    /// Take files that were written more than a day ago
    ///
    /// What their drives have learnt since is not known. It is safe only if no node has run on that machine
    /// since then.
    #[arg(long, requires = "from")]
    pub accept_old: bool,
}

/// Arguments of `weft fabric recover`.
#[derive(Clone, Debug, clap::Args)]
pub struct FabricRecoverArgs {
    /// The folder of a local fabric, or the file to write the manager's store to
    #[arg(value_name = "STORE")]
    pub dir: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would take it for the help of the command")]
    pub sources: DriveSources,
    /// Read and say what would be done, and write nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// The fabric, for programs.
#[derive(Serialize)]
struct Identity {
    fabric: FabricId,
    /// The same, under the name that options and other documents have for it.
    fabric_id: FabricId,
    map: MapVersion,
    nodes: usize,
    drives: usize,
    groups: usize,
    volumes: usize,
    settings: SettingsInfo,
}

pub(crate) async fn show(connection: &Connection, output: Output) -> Result<(), CliError> {
    let answer = connection.ask(&ApiRequest::MapGet {}).await?;
    let ApiAnswer::Map { map } = answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    let identity = Identity {
        fabric: map.fabric,
        fabric_id: map.fabric,
        map: map.version,
        nodes: map.nodes.len(),
        drives: map.drives.len(),
        groups: map.groups.len(),
        volumes: map.volumes.len(),
        settings: SettingsInfo::of(&map),
    };
    output.show(&identity, |i, paint| {
        let mut lines = vec![
            ("fabric", i.fabric.to_string()),
            ("map", i.map.to_string()),
            ("nodes", i.nodes.to_string()),
            ("drives", i.drives.to_string()),
            ("groups", i.groups.to_string()),
            ("volumes", i.volumes.to_string()),
        ];
        lines.extend(settings_in_words(&i.settings));
        fields(paint, &lines)
    })
}

pub(crate) async fn set(
    connection: &Connection,
    args: &FabricSetArgs,
    output: Output,
) -> Result<(), CliError> {
    let wanted = SettingsWish {
        rebuild_after_ms: args.rebuild_after_ms,
        capacity_warning_percent: args.capacity_warning.map(|p| p.0),
        capacity_critical_percent: args.capacity_critical.map(|p| p.0),
    };
    let answer = connection.ask(&ApiRequest::Settings(wanted)).await?;
    let ApiAnswer::Settings { settings } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    output.show(&answer, |_, paint| fields(paint, &settings_in_words(settings)))
}

/// The settings, each by its name.
fn settings_in_words(settings: &SettingsInfo) -> [(&'static str, String); 5] {
    [
        ("lease", span_ms(settings.lease_ms.into())),
        ("session", span_ms(settings.session_ms.into())),
        ("rebuild after", span_ms(settings.rebuild_after_ms)),
        ("capacity warning", format!("{} %", settings.capacity.warning_percent)),
        ("capacity critical", format!("{} %", settings.capacity.critical_percent)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_are_read() {
        for (text, percent) in [("80", 80), ("80%", 80), ("80 %", 80), ("1", 1), ("99%", 99)] {
            assert_eq!(text.parse(), Ok(Percent(percent)), "{text}");
        }
        for text in ["", "%", "0", "100", "256", "-5", "+5", "8.5", "80%%"] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
    }
}
