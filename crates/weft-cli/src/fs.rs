//! `weft fs`: file systems on the fabric, as the manager lists them.

use crate::change::{confirm, note_change, sessions_ended, used_by, would_be};
use crate::connection::Connection;
use crate::df::FsSpaceArgs;
use crate::error::CliError;
use crate::files::FilesCommand;
use crate::find::FsFindArgs;
use crate::layout::LayoutCommand;
use crate::output::{Output, fields, table_or_note};
use crate::paint::Paint;
use crate::project::ProjectCommand;
use crate::quota::QuotaCommand;
use crate::shard_load::FsShardsArgs;
use crate::shards::ShardsCommand;
use crate::size::Size;
use crate::table::{Table, row};
use crate::volume::{Domain, health, state};
use std::collections::BTreeMap;
use weft_api::{ApiAnswer, ApiRequest, FileSystemInfo, ShardServing};
use weft_types::SessionId;
use weft_types::limits::{COPIES_MAX, SHARDS_MAX};

/// File systems: files and directories on the fabric
#[derive(Clone, Debug, clap::Subcommand)]
pub enum FsCommand {
    /// Create a file system
    ///
    /// Data and metadata are kept in several copies, each on the drive of another node. A file system has no
    /// size: it takes what is free in its pool. Its metadata is in shards, each in a volume of its own that
    /// is created with it and not listed among volumes. How many there are never changes.
    ///
    /// The first shard has all names and attributes, so one node at a time serves them, unless --spread is
    /// given: then each directory that is made in the root, and in the directories there, lies in one of the
    /// shards, and what is made in it lies with it. So all nodes that serve shards work at the same time, and
    /// when one of them dies the others go on with theirs. This cannot be changed later.
    ///
    /// All nodes have to run a release that knows file systems.
    #[command(after_long_help = "Examples:\n  weft fs create home\n  \
        weft fs create scratch --copies 1 --shards 64 --spread\n  \
        weft fs create video --copies 3 --width 8 --stripe-unit 1MiB --dry-run")]
    Create(FsCreateArgs),
    /// List the file systems
    #[command(after_long_help = "Examples:\n  weft fs list\n  \
        weft fs list --json | jq -r '.file_systems[].name'")]
    List,
    /// Show a file system
    #[command(after_long_help = "Examples:\n  weft fs show home")]
    Show {
        /// The file system's name
        name: String,
    },
    /// Have new files use drives that were added
    ///
    /// Files lie on the drives that the file system had when it was made, or grew last. Files that are made
    /// from now on lie on all drives of its pool that can take copies; those that there are stay where they
    /// are. It can be done while the file system is in use, and 63 times in all. To have old files use new
    /// drives, empty a full drive onto them: `weft drive evacuate`.
    #[command(after_long_help = "Examples:\n  weft fs grow home --dry-run\n  weft fs grow home")]
    Grow {
        /// The file system's name
        name: String,
        /// Go through all checks and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Show how much file systems have used, and what is left
    ///
    /// SIZE, USED and FREE are bytes of files: the pool's, divided by the number of copies. What else draws
    /// from the pool takes from the same space.
    #[command(after_long_help = "Examples:\n  weft fs df\n  weft fs df home --drives\n  \
        weft fs df --json | jq '.file_systems[] | {file_system, used_percent}'")]
    Df(FsSpaceArgs),
    /// Files of a file system.
    #[command(flatten)]
    Files(FilesCommand),
    /// Find files by what they are called, are, hold and lie on
    ///
    /// All that is named has to fit. Paths are printed as they are found, a directory before what is in it, one
    /// in a line; characters that would break a line are written as \n or \xff. With --json each one is a
    /// document of one line.
    #[command(after_long_help = "Examples:\n  weft fs find home --name '*.h5' --size +1GiB\n  \
        weft fs find home /scratch --type f --mtime +30d\n  \
        weft fs find home --drive 5c0f9a3e --json | jq -r .path\n  \
        weft fs find home --type d --targets +4 --owner 1000")]
    Find(FsFindArgs),
    /// Show or set over how many drives the data of files are spread
    #[command(subcommand)]
    Layout(LayoutCommand),
    /// Show or set which files are counted together, as a project
    #[command(subcommand)]
    Project(ProjectCommand),
    /// Show or limit how much users, groups, projects and directories use
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Show which node serves which shard, and what it has to do
    ///
    /// Rates are of the moment: the shards are asked twice. GENERATION rises with each server that takes a
    /// shard, CHECKPOINT is what of it is in its newest checkpoint. A shard moves by itself when the node that
    /// serves it dies, leaves or is emptied.
    #[command(after_long_help = "Examples:\n  weft fs shards home\n  \
        weft fs shards home --over 10 --json | jq '.shards[] | {shard, server, operations_per_second}'")]
    Shards(FsShardsArgs),
    /// Shards of a file system.
    #[command(flatten)]
    OfShards(ShardsCommand),
    /// Delete a file system with all files in it
    ///
    /// It is gone for clients at once; its space comes back as the nodes drop its blocks. A file system that
    /// is mounted is refused, unless --force is given.
    #[command(after_long_help = "Examples:\n  weft fs delete scratch\n  \
        weft fs delete scratch --force --yes\n  weft fs delete scratch --dry-run")]
    Delete(FsDeleteArgs),
}

/// Arguments of `weft fs create`.
#[derive(Clone, Debug, clap::Args)]
pub struct FsCreateArgs {
    /// The file system's name: 1 to 63 of A-Z a-z 0-9 . _ -, beginning with a letter or digit
    pub name: String,
    /// Copies of each block of data and of metadata, each on another node
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u8).range(1..=COPIES_MAX as i64))]
    pub copies: u8,
    /// Shards of its metadata, 1 to 256 [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=SHARDS_MAX as i64))]
    pub shards: Option<u32>,
    /// Have directories lie in all shards, so that many nodes serve them
    #[arg(long)]
    pub spread: bool,
    /// Over how many groups of drives neighbouring data of a file is spread where nobody says otherwise, 1 to
    /// 64 [default: up to 4]
    #[arg(long, value_name = "N")]
    pub width: Option<u32>,
    /// How much of a file goes to one group before the next one's turn where nobody says otherwise, such as
    /// 64KiB: a power of two [default: chosen by the manager]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub stripe_unit: Option<Size>,
    /// The pool of drives to draw from [default: the pool 'default']
    #[arg(long)]
    pub pool: Option<String>,
    /// What must not hold two copies of the same data
    #[arg(long, value_enum, default_value_t = Domain::Node)]
    pub failure_domain: Domain,
    /// Go through all checks and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Arguments of `weft fs delete`.
#[derive(Clone, Debug, clap::Args)]
pub struct FsDeleteArgs {
    /// The file system's name
    pub name: String,
    /// Delete it even if clients have mounted it: they lose access at once
    #[arg(long)]
    pub force: bool,
    /// Go through all checks and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask first
    #[arg(long)]
    pub yes: bool,
}

pub(crate) async fn create(
    connection: &Connection,
    args: FsCreateArgs,
    output: Output,
) -> Result<(), CliError> {
    let request = ApiRequest::FsCreate {
        name: args.name,
        protection: weft_types::Protection::mirror(args.copies),
        pool: args.pool,
        shards: args.shards,
        is_spread: args.spread,
        stripe_unit_bytes: args.stripe_unit.map(|size| size.0),
        width: args.width,
        failure_domain: args.failure_domain.asked(),
        dry_run: args.dry_run,
    };
    let answer = connection.ask(&request).await?;
    let ApiAnswer::FileSystem { file_system, warnings, dry_run } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    note_change(warnings, *dry_run);
    output.show(&answer, |_, _| created(file_system, *dry_run))
}

fn created(file_system: &FileSystemInfo, dry_run: bool) -> String {
    format!(
        "file system {} {}created: {}, {} shards, files striped over {} groups in units of {}\n",
        file_system.name,
        would_be(dry_run),
        file_system.protection,
        file_system.shards,
        file_system.width,
        Size(file_system.stripe_unit_bytes)
    )
}

pub(crate) async fn list(connection: &Connection, output: Output) -> Result<(), CliError> {
    let answer = connection.ask(&ApiRequest::FsList {}).await?;
    let ApiAnswer::FileSystems { file_systems } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    let empty = "there are no file systems yet: `weft fs create` makes one";
    output.show(&answer, |_, paint| table_or_note(&table(file_systems), paint, empty))
}

pub(crate) async fn show(connection: &Connection, name: &str, output: Output) -> Result<(), CliError> {
    let answer = connection.ask(&ApiRequest::FsShow { name: name.to_owned() }).await?;
    let ApiAnswer::FileSystem { file_system, .. } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    output.show(&answer, |_, paint| describe(file_system, paint))
}

pub(crate) async fn grow(
    connection: &Connection,
    name: &str,
    dry_run: bool,
    output: Output,
) -> Result<(), CliError> {
    let answer = connection.ask(&ApiRequest::FsGrow { name: name.to_owned(), dry_run }).await?;
    let ApiAnswer::FileSystem { file_system, warnings, dry_run } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    note_change(warnings, *dry_run);
    output.show(&answer, |_, _| {
        let groups = file_system.sets.last().copied().unwrap_or(0);
        let would = if *dry_run { "would be made" } else { "are made" };
        format!("file system {}: new files {would} over {groups} groups of drives\n", file_system.name)
    })
}

pub(crate) async fn delete(
    connection: &Connection,
    args: &FsDeleteArgs,
    output: Output,
) -> Result<(), CliError> {
    let request = |dry_run| ApiRequest::FsDelete { name: args.name.clone(), force: args.force, dry_run };
    if !args.dry_run {
        // What would be refused is refused before anybody is asked.
        let rehearsal = connection.ask(&request(true)).await?;
        let ApiAnswer::FileSystemDeleting { file_system, .. } = rehearsal else {
            return Err(CliError::wrong_answer(connection.at()));
        };
        let users = used_by(file_system.sessions);
        let what =
            format!("This deletes file system '{}' with all of its files{users}, for good.", args.name);
        confirm(&what, &args.name, args.yes)?;
    }
    let answer = connection.ask(&request(args.dry_run)).await?;
    let ApiAnswer::FileSystemDeleting { file_system, ended_sessions, dry_run } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    output.show(&answer, |_, _| deleted(file_system, ended_sessions, *dry_run))
}

fn deleted(file_system: &FileSystemInfo, ended: &[SessionId], dry_run: bool) -> String {
    let would = would_be(dry_run);
    format!("file system {} {would}deleted\n{}", file_system.name, sessions_ended(ended, dry_run))
}

fn table(file_systems: &[FileSystemInfo]) -> Table {
    let mut table =
        Table::new(&["FILE SYSTEM", ">COPIES", "HEALTH", "STATE", ">SHARDS", ">WIDTH", ">SESSIONS", "POOL"]);
    for file_system in file_systems {
        table.row(row![
            file_system.name.as_str(),
            &file_system.copies,
            crate::status::health(file_system.health),
            state(file_system.state),
            &file_system.shards,
            &file_system.width,
            &file_system.sessions,
            file_system.pool.as_str()
        ]);
    }
    table
}

fn describe(file_system: &FileSystemInfo, paint: Paint) -> String {
    let sets: Vec<String> = file_system.sets.iter().map(usize::to_string).collect();
    let layout = format!(
        "units of {} over {} objects of {}",
        Size(file_system.stripe_unit_bytes),
        file_system.width,
        Size(file_system.object_bytes)
    );
    fields(
        paint,
        &[
            ("file system", format!("{} ({})", file_system.name, file_system.id)),
            ("state", state(file_system.state).to_owned()),
            ("health", health(file_system.health).to_owned()),
            ("copies", file_system.copies.to_string()),
            ("shards", shards(file_system)),
            ("served by", served_by(&file_system.servers)),
            ("new files", layout),
            ("pool", format!("{}, in {} groups", file_system.pool, file_system.groups)),
            ("sets", format!("{} groups", sets.join(", "))),
            ("sessions", file_system.sessions.to_string()),
            ("generation", file_system.generation.0.to_string()),
            ("created", file_system.created.to_string()),
        ],
    )
}

/// How many shards there are, and which of them are in use.
fn shards(file_system: &FileSystemInfo) -> String {
    match file_system.is_spread {
        true => format!("{} of metadata, with directories in all of them", file_system.shards),
        false => format!("{} of metadata, with all names in the first", file_system.shards),
    }
}

/// Who serves how many shards.
fn served_by(servers: &[ShardServing]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let serving = servers.iter().filter(|shard| shard.serves);
    serving
        .filter_map(|shard| shard.server.as_deref())
        .for_each(|name| *counts.entry(name).or_default() += 1);
    let waiting = servers.iter().filter(|shard| !shard.serves).count();
    let waiting = (waiting > 0).then(|| format!("{waiting} wait for a server"));
    let names = counts.iter().map(|(name, count)| format!("{name}: {count}"));
    names.chain(waiting).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_api::{Health, Timestamp};
    use weft_types::{Generation, Protection, VolumeId, VolumeState};

    fn info() -> FileSystemInfo {
        FileSystemInfo {
            id: VolumeId(7),
            name: "home".into(),
            pool: "default".into(),
            protection: Protection::mirror(2),
            copies: 2,
            stripe_unit_bytes: 256 << 10,
            width: 4,
            object_bytes: 64 << 20,
            shards: 2,
            is_spread: true,
            servers: vec![
                ShardServing { server: Some("node 'a'".into()), serves: true },
                ShardServing { server: Some("node 'b'".into()), serves: false },
            ],
            sets: vec![12, 15],
            state: VolumeState::Ready,
            generation: Generation(1),
            created: Timestamp::from_millis(0),
            health: Health::Degraded,
            groups: 15,
            sessions: 1,
        }
    }

    #[test]
    fn a_file_system_is_told_in_words() {
        assert_eq!(
            created(&info(), true),
            "file system home would be created: 2 copies, 2 shards, files striped over 4 groups in units of \
             256 KiB\n"
        );
        assert_eq!(
            deleted(&info(), &[SessionId(4)], false),
            "file system home deleted\nsessions ended: s4\n"
        );
        let shown = describe(&info(), Paint::off());
        for part in [
            "home (vol7)",
            "node 'a': 1, 1 wait for a server",
            "12, 15 groups",
            "in 15 groups",
            "degraded: `weft status`",
        ] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
    }
}
