//! `weft fs layout set|show`: over how many drives the data of files are spread, and which hold what.

use crate::connection::Connection;
use crate::error::CliError;
use crate::files::{FILE_MODE, attached, own_ids, text, umask};
use crate::locate::FabricPlace;
use crate::output::{Output, fields};
use crate::paint::Paint;
use crate::size::Size;
use crate::table::{Table, row};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use weft_api::{ApiAnswer, ApiRequest, DriveInfo, FileSystemInfo};
use weft_client::{AttachMode, FileLayout};
use weft_fs::{FilePart, FsError, NewFile};
use weft_types::limits::STRIPE_WIDTH_MAX;
use weft_types::{Attributes, BLOCK_SIZE, DriveId, FileKind};
use weft_wire::files::FileError;

/// Objects of a file that are looked at: 64 TiB with objects of 64 MiB.
const MOST_OBJECTS: usize = 1 << 20;

/// What can be done with layouts
#[derive(Clone, Debug, clap::Subcommand)]
pub enum LayoutCommand {
    /// Set the layout of new files in a directory, or of one new file
    ///
    /// Files and directories that are made in the directory from now on get its layout; those that it has
    /// keep theirs. A name that is free becomes an empty file with the layout. A file that a program has
    /// opened to write keeps its layout, and so does any file while it is open. What is not said stays as it
    /// is.
    ///
    /// A file always has as many copies as its file system, in the same pool.
    #[command(
        after_long_help = "Examples:\n  weft fs layout set home /results --chunk-size 1MiB --targets 8\n  \
        weft fs layout set home /results/shared.h5 --targets 16\n  \
        weft fs layout set home / --targets 4"
    )]
    Set(LayoutSetArgs),
    /// Show the layout of a file or a directory
    ///
    /// Of a file it says which drives hold how much of it, up to its size; holes count. SHARE is of the
    /// file's bytes: each of them is on as many drives as there are copies.
    #[command(after_long_help = "Examples:\n  weft fs layout show home /results\n  \
        weft fs layout show home /results/run-7.h5\n  \
        weft fs layout show home /results/run-7.h5 --objects\n  \
        weft fs layout show home /results/run-7.h5 --json | jq '.drives'")]
    Show(LayoutShowArgs),
}

/// Arguments of `weft fs layout set`.
#[derive(Clone, Debug, clap::Args)]
pub struct LayoutSetArgs {
    /// The file system's name
    pub name: String,
    /// A directory, or a file: a new one, or one without data
    pub path: OsString,
    /// How much of a file goes to one target before the next one's turn, such as 1MiB: a power of two, from
    /// 4KiB to 64MiB
    #[arg(long, visible_alias = "stripe-unit", value_name = "SIZE", allow_hyphen_values = true)]
    pub chunk_size: Option<Size>,
    /// Over how many targets (groups of drives) neighbouring data is spread, 1 to 64. A large file uses all
    /// drives of the pool in time, whatever this is
    #[arg(long, visible_alias = "width", value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=STRIPE_WIDTH_MAX as i64))]
    pub targets: Option<u16>,
}

/// Arguments of `weft fs layout show`.
#[derive(Clone, Debug, clap::Args)]
pub struct LayoutShowArgs {
    /// The file system's name
    pub name: String,
    /// A file or a directory
    #[arg(default_value = "/")]
    pub path: OsString,
    /// Also list the objects of a file, each with the drives that hold it
    #[arg(long)]
    pub objects: bool,
}

/// A layout, for programs.
#[derive(Serialize)]
struct Shown {
    file_system: String,
    path: String,
    kind: FileKind,
    /// The file was made by this command.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    made: bool,
    chunk_bytes: u64,
    targets: u16,
    copies: u8,
    /// The set of groups, by its place among those of the file system.
    set: u8,
    object_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    /// Drives and objects are those of this many first objects: the file has more.
    #[serde(skip_serializing_if = "Option::is_none")]
    only_first: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drives: Option<Vec<OnDrive>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    objects: Option<Vec<Object>>,
}

/// What a drive holds of a file, for programs.
#[derive(Clone, Serialize)]
struct OnDrive {
    drive: DriveId,
    /// None if the manager does not list the drive any more.
    node: Option<String>,
    path: Option<String>,
    objects: u64,
    bytes: u64,
}

/// An object of a file, for programs.
#[derive(Serialize)]
struct Object {
    object: u32,
    /// None if this client does not know the set of groups yet.
    group: Option<u64>,
    bytes: u64,
    drives: Vec<DriveId>,
}

pub(crate) async fn run(place: &FabricPlace, command: LayoutCommand, output: Output) -> Result<(), CliError> {
    match command {
        LayoutCommand::Set(args) => set(place, &args, output).await,
        LayoutCommand::Show(args) => show(place, &args, output).await,
    }
}

async fn set(place: &FabricPlace, args: &LayoutSetArgs, output: Output) -> Result<(), CliError> {
    let connection = Connection::open(place).await?;
    let info = file_system(&connection, &args.name).await?;
    let asked = Asked::of(args, &info)?;
    let path = args.path.as_bytes();
    let (made, attributes) = attached((place, &args.name, AttachMode::Shared), async |mount| {
        let (made, found) = match mount.names().find(path, true).await {
            Ok(found) => (false, found),
            Err(error) if error.refusal() == Some(FileError::NotFound) => {
                let (uid, gid) = own_ids();
                let new = NewFile { mode: FILE_MODE, umask: umask(), uid, gid };
                (true, mount.names().create(path, new).await?)
            }
            Err(error) => return Err(error.into()),
        };
        let before = layout_of(&found, path)?;
        let set = mount.names().set_layout(found.inode, asked.over(before), path).await;
        Ok((made, set.map_err(|error| stays(error, found.kind, path))?))
    })
    .await?;
    let layout = layout_of(&attributes, path)?;
    let shown = Shown { made, ..shown((&args.name, path), &attributes, layout, &info) };
    output.show(&shown, |shown, _| {
        let what = match (shown.kind, shown.made) {
            (FileKind::Directory, _) => "new files in",
            (_, true) => "new file",
            (_, false) => "file",
        };
        format!("{what} {}:{}: {}\n", shown.file_system, shown.path, in_words(shown))
    })
}

/// What is to be set; what is not named stays.
struct Asked {
    unit_blocks: Option<u32>,
    width: Option<u16>,
}

impl Asked {
    fn of(args: &LayoutSetArgs, info: &FileSystemInfo) -> Result<Asked, CliError> {
        let usage = |message: String, hint: &str| Err(CliError::Usage { message, hint: hint.to_owned() });
        if args.chunk_size.is_none() && args.targets.is_none() {
            return usage(
                "nothing to set is named".into(),
                "pass --chunk-size or --targets; `weft fs layout show` shows what there is",
            );
        }
        if let Some(Size(bytes)) = args.chunk_size {
            let fits = (BLOCK_SIZE as u64..=info.object_bytes).contains(&bytes) && bytes.is_power_of_two();
            if !fits {
                let most = Size(info.object_bytes);
                return usage(
                    format!("a chunk of {} cannot be: found {bytes} bytes", Size(bytes)),
                    &format!("choose a power of two from 4KiB to {most}, such as 64KiB or 1MiB"),
                );
            }
        }
        let groups = info.sets.last().copied().unwrap_or(0);
        if let Some(targets) = args.targets.filter(|targets| usize::from(*targets) > groups) {
            return usage(
                format!("{targets} targets are more than the {groups} groups of drives that new files use"),
                "choose fewer, or add drives and run `weft fs grow`",
            );
        }
        let unit_blocks = args.chunk_size.map(|Size(bytes)| (bytes / BLOCK_SIZE as u64) as u32);
        Ok(Asked { unit_blocks, width: args.targets })
    }

    fn over(&self, before: FileLayout) -> FileLayout {
        FileLayout {
            unit_blocks: self.unit_blocks.unwrap_or(before.unit_blocks),
            width: self.width.unwrap_or(before.width),
            ..before
        }
    }
}

/// Why a layout was not set.
fn stays(error: FsError, kind: FileKind, path: &[u8]) -> CliError {
    let path = text(path);
    let (message, hint) = match (error.refusal(), kind) {
        (Some(FileError::NotPermitted), FileKind::Regular) => (
            format!(
                "{path}: a file keeps its layout once a program has opened it to write, and while it is open"
            ),
            "make a new file by this command, copy the data into it, and rename it",
        ),
        (Some(FileError::Invalid), FileKind::Regular | FileKind::Directory) => (
            format!("{path}: this file system cannot have such a layout"),
            "`weft fs show` shows the layout of new files; leave out one of the options",
        ),
        (Some(FileError::Invalid), _) => {
            (format!("{path}: only files and directories have a layout"), "name a file or a directory")
        }
        _ => return error.into(),
    };
    CliError::Refused { message, hint: hint.to_owned() }
}

async fn show(place: &FabricPlace, args: &LayoutShowArgs, output: Output) -> Result<(), CliError> {
    let connection = Connection::open(place).await?;
    let info = file_system(&connection, &args.name).await?;
    let path = args.path.as_bytes();
    let shown = attached((place, &args.name, AttachMode::ReadOnly), async |mount| {
        let found = mount.names().find(path, true).await?;
        let mut shown = shown((&args.name, path), &found, layout_of(&found, path)?, &info);
        if found.kind == FileKind::Regular {
            let parts = mount.parts_of(&found, path, MOST_OBJECTS)?;
            shown.only_first = (parts.len() == MOST_OBJECTS).then_some(MOST_OBJECTS);
            let listed = drives(&connection).await?;
            shown.drives = Some(by_drive(&parts, &listed));
            shown.objects = args.objects.then(|| parts.iter().map(object).collect());
        }
        Ok(shown)
    })
    .await?;
    output.show(&shown, describe)
}

fn layout_of(attributes: &Attributes, path: &[u8]) -> Result<FileLayout, CliError> {
    FileLayout::decode(&attributes.layout).map_err(|error| CliError::Failed {
        message: format!("{}: {error}", text(path)),
        hint: "`weft fs check` says whether the file system is sound".into(),
    })
}

async fn file_system(connection: &Connection, name: &str) -> Result<FileSystemInfo, CliError> {
    match connection.ask(&ApiRequest::FsShow { name: name.to_owned() }).await? {
        ApiAnswer::FileSystem { file_system, .. } => Ok(file_system),
        _ => Err(CliError::wrong_answer(connection.at())),
    }
}

async fn drives(connection: &Connection) -> Result<Vec<DriveInfo>, CliError> {
    match connection.ask(&ApiRequest::DriveList {}).await? {
        ApiAnswer::Drives { drives, .. } => Ok(drives),
        _ => Err(CliError::wrong_answer(connection.at())),
    }
}

fn shown(
    (name, path): (&str, &[u8]),
    attributes: &Attributes,
    layout: FileLayout,
    info: &FileSystemInfo,
) -> Shown {
    Shown {
        file_system: name.to_owned(),
        path: text(path),
        kind: attributes.kind,
        made: false,
        chunk_bytes: u64::from(layout.unit_blocks) * BLOCK_SIZE as u64,
        targets: layout.width,
        copies: layout.copies,
        set: layout.set,
        object_bytes: info.object_bytes,
        size_bytes: (attributes.kind == FileKind::Regular).then_some(attributes.size),
        only_first: None,
        drives: None,
        objects: None,
    }
}

/// What each drive holds, the most first.
fn by_drive(parts: &[FilePart], listed: &[DriveInfo]) -> Vec<OnDrive> {
    let mut sums: BTreeMap<DriveId, (u64, u64)> = BTreeMap::new();
    for part in parts {
        for drive in &part.drives {
            let (objects, bytes) = sums.entry(*drive).or_default();
            (*objects, *bytes) = (*objects + 1, *bytes + part.bytes);
        }
    }
    let mut drives: Vec<OnDrive> = sums
        .into_iter()
        .map(|(drive, (objects, bytes))| {
            let info = listed.iter().find(|info| info.id == drive);
            let (node, path) = (info.map(|info| info.node.clone()), info.map(|info| info.path.clone()));
            OnDrive { drive, node, path, objects, bytes }
        })
        .collect();
    drives.sort_by(|a, b| (b.bytes, &a.node, &a.path).cmp(&(a.bytes, &b.node, &b.path)));
    drives
}

fn object(part: &FilePart) -> Object {
    let group = part.group.map(|group| group.0);
    Object { object: part.object, group, bytes: part.bytes, drives: part.drives.clone() }
}

fn in_words(shown: &Shown) -> String {
    format!("chunks of {} over {} targets, {} copies", Size(shown.chunk_bytes), shown.targets, shown.copies)
}

fn describe(shown: &Shown, paint: Paint) -> String {
    let what = if shown.kind == FileKind::Directory { "new files" } else { "layout" };
    let mut lines = vec![
        ("path", format!("{}:{}", shown.file_system, shown.path)),
        (what, in_words(shown)),
        ("set", format!("{} of the file system's sets of groups", shown.set)),
    ];
    if let (Some(size), Some(drives)) = (shown.size_bytes, &shown.drives) {
        let objects = shown.objects.as_ref().map_or_else(String::new, |o| format!(" in {} objects", o.len()));
        let on = format!("{}{objects} on {} drives", Size(size), drives.len());
        lines.push(("data", if drives.is_empty() { "none".to_owned() } else { on }));
    }
    if let Some(first) = shown.only_first {
        lines.push(("shown", format!("the first {first} objects")));
    }
    let mut said = fields(paint, &lines);
    if let Some(drives) = shown.drives.as_ref().filter(|drives| !drives.is_empty()) {
        said.push_str(&format!("\n{}", drives_table(shown, drives).render(paint)));
    }
    if let (Some(objects), Some(drives)) = (&shown.objects, &shown.drives) {
        said.push_str(&format!("\n{}", objects_table(objects, drives).render(paint)));
    }
    said
}

fn drives_table(shown: &Shown, drives: &[OnDrive]) -> Table {
    let size = u128::from(shown.size_bytes.unwrap_or(0).max(1));
    let mut table = Table::new(&["NODE", ">OBJECTS", ">DATA", ">SHARE", "DRIVE"]);
    for drive in drives {
        table.row(row![
            drive.node.as_deref().unwrap_or("-"),
            &drive.objects,
            &Size(drive.bytes),
            format!("{}%", u128::from(drive.bytes) * 100 / size),
            drive.path.clone().unwrap_or_else(|| drive.drive.to_string())
        ]);
    }
    table
}

fn objects_table(objects: &[Object], drives: &[OnDrive]) -> Table {
    let place = |id: &DriveId| {
        let drive = drives.iter().find(|drive| drive.drive == *id);
        let place =
            drive.and_then(|drive| Some(format!("{}:{}", drive.node.as_ref()?, drive.path.as_ref()?)));
        place.unwrap_or_else(|| id.to_string())
    };
    let mut table = Table::new(&[">OBJECT", "GROUP", ">DATA", "DRIVES"]);
    for object in objects {
        let on: Vec<String> = object.drives.iter().map(place).collect();
        table.row(row![
            &object.object,
            object.group.map_or_else(|| "-".to_owned(), |group| format!("g{group}")),
            &Size(object.bytes),
            on.join(", ")
        ]);
    }
    table
}
