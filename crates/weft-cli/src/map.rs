//! `weft map`: the fabric map as a document, and as a backup.

use crate::connection::Connection;
use crate::error::CliError;
use crate::fabric::DriveSources;
use crate::output::Output;
use serde::Serialize;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use weft_api::{ApiAnswer, ApiRequest, Timestamp};
use weft_rt::wall_clock_us;
use weft_types::{FabricId, FabricMap, MapVersion};
use weft_wire::backup::{BackupError, decode_backup, encode_backup};

/// The fabric map
#[derive(Clone, Debug, clap::Subcommand)]
pub enum MapCommand {
    /// Print the fabric map as JSON
    ///
    /// The map is the document that says which drives exist, how groups are composed of them, and where
    /// volumes lie.
    #[command(after_long_help = "Examples:\n  weft map show\n  weft map show | jq '.map.groups | length'")]
    Show,
    /// Write the fabric map to a file, with a checksum
    ///
    /// Every drive holds a copy of the map as well, and `weft fabric recover` needs no other. A backup is for when
    /// drives are lost together with the manager, and to see later what was there. The manager takes one every hour
    /// by itself, into the folder `backups` beside its store.
    #[command(after_long_help = "Examples:\n  weft map backup ./map.weftmap\n  \
        weft map backup - | ssh elsewhere 'cat > map.weftmap'")]
    Backup {
        /// The file to write, or - for the standard output
        file: PathBuf,
        /// Overwrite a file that exists
        #[arg(long)]
        force: bool,
    },
    /// Check a backup of the fabric map, and print what is in it
    #[command(
        after_long_help = "Examples:\n  weft map verify ./map.weftmap\n  weft map verify ./map.weftmap --json"
    )]
    Verify {
        /// The backup
        file: PathBuf,
    },
    /// Say what has changed since a backup
    ///
    /// One line for each thing that is different now, or in another backup.
    #[command(
        after_long_help = "Examples:\n  weft map diff ./map.weftmap\n  weft map diff old.weftmap new.weftmap"
    )]
    Diff {
        /// The backup
        file: PathBuf,
        /// Another backup [default: the fabric as it is]
        other: Option<PathBuf>,
    },
    /// Make the manager's store anew from a backup of the fabric map
    ///
    /// For when the store is lost. Refused where a drive, or the store that is there, knows anything that the
    /// backup does not: an older map could bring back copies that have missed writes. So all drives with
    /// copies must be named, those of other machines by files of `weft fabric collect`. What clients and
    /// targets compare by number is raised, as `weft fabric recover` does, and all sessions are over
    /// afterwards. A store that exists, damaged or not, is kept under another name, which is printed.
    ///
    /// The manager and all nodes must be stopped. Where a backup is refused because it is too old,
    /// `weft fabric recover` makes a newer map from the drives.
    #[command(after_long_help = "Examples:\n  weft map restore ./map.weftmap ./weft-fabric --drives \
        ./weft-fabric/nodes/*/drive-*.img --dry-run\n  weft map restore ./map.weftmap ./weft-fabric --drives \
        ./weft-fabric/nodes/*/drive-*.img")]
    Restore(MapRestoreArgs),
}

/// Arguments of `weft map restore`.
#[derive(Clone, Debug, clap::Args)]
pub struct MapRestoreArgs {
    /// The backup
    pub file: PathBuf,
    /// The folder of a local fabric, or the file to write the manager's store to
    #[arg(value_name = "STORE")]
    pub dir: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would take it for the help of the command")]
    pub sources: DriveSources,
    /// Read and say what would be changed, and write nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// A backup, for programs.
#[derive(Serialize)]
struct Backup<'a> {
    file: &'a Path,
    fabric: FabricId,
    map: MapVersion,
    taken: Timestamp,
    nodes: usize,
    drives: usize,
    groups: usize,
    volumes: Vec<&'a str>,
    bytes: usize,
}

#[derive(Serialize)]
struct Difference {
    from: MapVersion,
    to: MapVersion,
    changes: Vec<String>,
}

pub(crate) async fn show(connection: &Connection) -> Result<(), CliError> {
    let answer = connection.ask(&ApiRequest::MapGet {}).await?;
    // For people as for programs: the map is a document.
    let output = Output { is_json: true, paint: crate::paint::Paint::off() };
    output.show(&answer, |_, _| String::new())
}

pub(crate) async fn backup(
    connection: &Connection,
    file: &Path,
    force: bool,
    output: Output,
) -> Result<(), CliError> {
    let map = get(connection).await?;
    let taken_ms = wall_clock_us() / 1000;
    let bytes = encode_backup(&map, taken_ms);
    if file == Path::new("-") {
        return std::io::stdout().lock().write_all(&bytes).map_err(CliError::Output);
    }
    write_new(file, &bytes, force)?;
    output.show(&describe_backup(file, &map, taken_ms, bytes.len()), |b, _| text(b, "backed up"))
}

pub(crate) async fn verify(file: &Path, output: Output) -> Result<(), CliError> {
    let (taken_ms, map, bytes) = read(file)?;
    output.show(&describe_backup(file, &map, taken_ms, bytes), |b, _| text(b, "intact"))
}

pub(crate) async fn diff(
    connection: &Connection,
    file: &Path,
    other: Option<&Path>,
    output: Output,
) -> Result<(), CliError> {
    let (_, from, _) = read(file)?;
    let to = match other {
        Some(other) => read(other)?.1,
        None => get(connection).await?,
    };
    let answer = connection
        .ask(&ApiRequest::MapDiff { from: Box::new(from.clone()), to: Box::new(to.clone()) })
        .await?;
    let ApiAnswer::MapDiff { changes } = answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    let difference = Difference { from: from.version, to: to.version, changes };
    output.show(&difference, |d, _| {
        let mut text: String = d.changes.iter().map(|c| format!("{c}\n")).collect();
        text.push_str(&format!("{} changes from map {} to map {}\n", d.changes.len(), d.from, d.to));
        text
    })
}

async fn get(connection: &Connection) -> Result<FabricMap, CliError> {
    match connection.ask(&ApiRequest::MapGet {}).await? {
        ApiAnswer::Map { map } => Ok(*map),
        _ => Err(CliError::wrong_answer(connection.at())),
    }
}

fn read(file: &Path) -> Result<(u64, FabricMap, usize), CliError> {
    let bytes = fs::read(file).map_err(CliError::file("read", file))?;
    let (head, map) = decode_backup(&bytes).map_err(|error| CliError::Failed {
        message: format!("{} cannot be used: {error}", file.display()),
        hint: match error {
            BackupError::Foreign => "name a file that `weft map backup` has written".into(),
            BackupError::Newer { .. } => "use the version of weft that wrote it, or a newer one".into(),
            BackupError::Damaged(_) => {
                "use another backup; a map can also be made from the drives: `weft fabric recover`".into()
            }
        },
    })?;
    Ok((head.taken_ms, map, bytes.len()))
}

/// Writes the file whole, or leaves what was there.
fn write_new(file: &Path, bytes: &[u8], force: bool) -> Result<(), CliError> {
    if file.exists() && !force {
        return Err(CliError::Refused {
            message: format!("{} exists", file.display()),
            hint: "name another file, or pass --force to overwrite it".into(),
        });
    }
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let fresh = PathBuf::from(name);
    let written = File::create(&fresh).and_then(|mut f| f.write_all(bytes).and_then(|()| f.sync_all()));
    written.map_err(CliError::file("write", &fresh))?;
    fs::rename(&fresh, file).map_err(CliError::file("write", file))
}

fn describe_backup<'a>(file: &'a Path, map: &'a FabricMap, taken_ms: u64, bytes: usize) -> Backup<'a> {
    Backup {
        file,
        fabric: map.fabric,
        map: map.version,
        taken: Timestamp::from_millis(taken_ms),
        nodes: map.nodes.len(),
        drives: map.drives.len(),
        groups: map.groups.len(),
        volumes: map.volumes.values().map(|v| v.name.as_str()).collect(),
        bytes,
    }
}

fn text(backup: &Backup<'_>, verb: &str) -> String {
    format!(
        "map {} of fabric {}, taken {}, with {} nodes, {} drives, {} groups and volumes {} {verb}: {}\n",
        backup.map,
        backup.fabric,
        backup.taken,
        backup.nodes,
        backup.drives,
        backup.groups,
        if backup.volumes.is_empty() { "(none)".to_owned() } else { backup.volumes.join(", ") },
        backup.file.display()
    )
}
