//! `weft fs put|get|ls|rm|mkdir`: files of a file system, without a mount.

use crate::change::would_be;
use crate::connection::{Connection, client_name};
use crate::error::{CliError, file_hint};
use crate::helper::Helper;
use crate::interrupt::unless_interrupted;
use crate::locate::FabricPlace;
use crate::output::{Output, note, table_or_note};
use crate::progress::Bytes;
use crate::removal::Removal;
use crate::size::Size;
use crate::table::{Table, row};
use serde::Serialize;
use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_api::Timestamp;
use weft_client::{AttachMode, ClientError, Fabric};
use weft_fs::{DirectoryEntry, FsError, Mount, NewFile, Source};
use weft_types::{Attributes, FileKind, with_causes};
use weft_wire::files::{AttributeChanges, FileError};

/// How long an operation waits for a shard before it fails: several takeovers' worth.
const PATIENCE: Duration = Duration::from_secs(30);

/// Permissions of what does not come from a file, before the umask.
pub(crate) const FILE_MODE: u16 = 0o666;
const DIRECTORY_MODE: u16 = 0o777;

/// What can be done with the files of a file system
#[derive(Clone, Debug, clap::Subcommand)]
pub enum FilesCommand {
    /// Copy a file into a file system
    ///
    /// The file has its new name once all of its data is durable on all copies: until then the name is free,
    /// or stands for what it stood for before. It gets the permissions of the file that is copied, and the
    /// owner that runs the command.
    #[command(after_long_help = "Examples:\n  weft fs put home report.pdf /team/report.pdf\n  \
        weft fs put home report.pdf /team\n  pg_dump shop | weft fs put home - /backup/shop.sql")]
    Put(FsPutArgs),
    /// Copy a file out of a file system
    #[command(after_long_help = "Examples:\n  weft fs get home /team/report.pdf\n  \
        weft fs get home /backup/shop.sql - | psql shop")]
    Get(FsGetArgs),
    /// List files
    #[command(after_long_help = "Examples:\n  weft fs ls home\n  weft fs ls home /team --all\n  \
        weft fs ls home /team --json | jq '[.files[].size_bytes] | add'")]
    Ls(FsListFilesArgs),
    /// Remove files
    #[command(after_long_help = "Examples:\n  weft fs rm home /team/report.pdf\n  \
        weft fs rm home --recursive /team --dry-run\n  weft fs rm home --recursive /team")]
    Rm(FsRemoveArgs),
    /// Make directories
    #[command(after_long_help = "Examples:\n  weft fs mkdir home /team\n  \
        weft fs mkdir home --parents /team/2026/november")]
    Mkdir(FsMakeDirectoryArgs),
}

/// Arguments of `weft fs put`.
#[derive(Clone, Debug, clap::Args)]
pub struct FsPutArgs {
    /// The file system's name
    pub name: String,
    /// The file to copy, or - for the standard input
    pub file: PathBuf,
    /// Where to, in the file system: a name, which may be taken by a file, or a directory
    pub path: OsString,
}

/// Arguments of `weft fs get`.
#[derive(Clone, Debug, clap::Args)]
pub struct FsGetArgs {
    /// The file system's name
    pub name: String,
    /// The file in the file system
    pub path: OsString,
    /// Where to: a file, a folder, or - for the standard output
    #[arg(default_value = ".")]
    pub file: PathBuf,
    /// Overwrite a file that exists
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `weft fs ls`.
#[derive(Clone, Debug, clap::Args)]
pub struct FsListFilesArgs {
    /// The file system's name
    pub name: String,
    /// A directory, or a file
    #[arg(default_value = "/")]
    pub path: OsString,
    /// List names that begin with a dot, too
    #[arg(short, long)]
    pub all: bool,
}

/// Arguments of `weft fs rm`.
#[derive(Clone, Debug, clap::Args)]
pub struct FsRemoveArgs {
    /// The file system's name
    pub name: String,
    /// What to remove: files, symbolic links, empty directories
    #[arg(required = true)]
    pub paths: Vec<OsString>,
    /// Remove directories with all that is in them
    #[arg(short, long)]
    pub recursive: bool,
    /// Say what would be removed, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Arguments of `weft fs mkdir`.
#[derive(Clone, Debug, clap::Args)]
pub struct FsMakeDirectoryArgs {
    /// The file system's name
    pub name: String,
    /// The directories to make
    #[arg(required = true)]
    pub paths: Vec<OsString>,
    /// Make those above them as well, and pass over those that are there
    #[arg(short, long)]
    pub parents: bool,
}

/// What was copied, for programs.
#[derive(Serialize)]
struct Copied<'a> {
    file_system: &'a str,
    path: String,
    file: &'a Path,
    bytes: u64,
}

/// What a directory has, for programs.
#[derive(Serialize)]
struct Listing<'a> {
    file_system: &'a str,
    path: String,
    files: Vec<Listed>,
}

/// A file, for programs.
#[derive(Serialize)]
struct Listed {
    name: String,
    /// The bytes of a name that is not UTF-8, two digits each.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    kind: FileKind,
    inode: u64,
    /// Permissions as octal digits.
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size_bytes: u64,
    modified: Timestamp,
}

/// What was removed, for programs.
#[derive(Serialize)]
struct Removed<'a> {
    file_system: &'a str,
    removed: u64,
    dry_run: bool,
}

/// What was made, for programs.
#[derive(Serialize)]
struct Made<'a> {
    file_system: &'a str,
    made: Vec<String>,
}

impl From<FsError> for CliError {
    fn from(error: FsError) -> CliError {
        let hint = match &error {
            FsError::Refused { error, .. } => refusal_hint(*error),
            FsError::NoAnswer { .. } => {
                "`weft status` says what is missing; look before you ask again: it may have been done"
            }
            FsError::SessionOver { .. } => {
                "what was under way may have been done: look, then run the command again"
            }
            FsError::Changed { .. } => "read it again",
            FsError::CheckForgotten { .. } => "run the command again once `weft status` shows no trouble",
            FsError::TooManyLinks { .. } => "`weft fs ls` shows where the links lead",
            FsError::NotUnderstood { .. } | FsError::OtherAnswer { .. } => {
                "use the same version of weft on this side and for the nodes"
            }
            FsError::Data { .. } => "`weft status` says how the fabric is",
        };
        CliError::Failed { message: with_causes(&error), hint: hint.to_owned() }
    }
}

fn refusal_hint(error: FileError) -> &'static str {
    match error {
        FileError::NotFound => "`weft fs ls` shows what there is",
        FileError::NotDirectory => "check the path: a file is not a directory",
        FileError::IsDirectory => "name a file in it, or pass --recursive to remove it",
        FileError::NotEmpty => "pass --recursive to remove all that is in it",
        FileError::Exists => "choose another name, or remove what is there first",
        FileError::NoSpace => "remove something, or add drives and have new files use them: `weft fs grow`",
        FileError::OtherProject => "copy it there, and remove it here: `weft fs project show`",
        FileError::OverQuota => "remove something, or have the limit raised: `weft fs quota show`",
        FileError::Busy => "`weft session list` shows who has it; use that mount, or mount with --read-only",
        _ => "see the command's --help for what is allowed",
    }
}

/// Attaches a file system of the fabric.
async fn attach(place: &FabricPlace, name: &str, mode: AttachMode) -> Result<Mount, CliError> {
    // Asked first, because its error says where the fabric was looked for and what to do.
    Connection::open(place).await?;
    let fabric = Fabric::connect(&place.managers()?, &client_name()).await?;
    Mount::attach(&fabric, name, mode, PATIENCE).await.map_err(|error| match error {
        ClientError::NoSuchVolume { .. } => CliError::Failed {
            message: format!("there is no file system '{name}'"),
            hint: "`weft fs list` shows the file systems".into(),
        },
        other => other.into(),
    })
}

/// Does something with an attached file system, and detaches it whatever comes of it.
pub(crate) async fn attached<T>(
    (place, name, mode): (&FabricPlace, &str, AttachMode),
    work: impl AsyncFnOnce(&Mount) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let mount = attach(place, name, mode).await?;
    let done = unless_interrupted(work(&mount)).await;
    mount.detach().await;
    done.unwrap_or_else(|| Err(CliError::Interrupted { message: "interrupted".into() }))
}

/// Gives the root of a file system to the user who runs this.
pub(crate) async fn own_root(place: &FabricPlace, name: &str) -> Result<(), CliError> {
    let (uid, gid) = own_ids();
    let changes = AttributeChanges { uid: Some(uid), gid: Some(gid), ..AttributeChanges::default() };
    attached((place, name, AttachMode::Shared), async |mount| {
        let root = mount.names().find(b"/", true).await?;
        Ok(mount.names().change(root.inode, changes, b"/").await.map(drop)?)
    })
    .await
}

/// A local file, or the standard input, as the source of a file.
struct Local {
    helper: Helper<Box<dyn Read + Send>>,
    path: PathBuf,
}

impl Source for Local {
    async fn next(&mut self, most: usize) -> Result<Vec<u8>, String> {
        let read = self.helper.run(move |source| {
            let mut bytes = Vec::with_capacity(most);
            source.as_mut().take(most as u64).read_to_end(&mut bytes).map(|_| bytes)
        });
        read.await
            .map_err(|error| format!("cannot read {}: {error}; {}", self.path.display(), file_hint(&error)))
    }
}

pub(crate) async fn run(place: &FabricPlace, command: FilesCommand, output: Output) -> Result<(), CliError> {
    match command {
        FilesCommand::Put(args) => put(place, &args, output).await,
        FilesCommand::Get(args) => get(place, &args, output).await,
        FilesCommand::Ls(args) => ls(place, &args, output).await,
        FilesCommand::Rm(args) => rm(place, &args, output).await,
        FilesCommand::Mkdir(args) => mkdir(place, &args, output).await,
    }
}

async fn put(place: &FabricPlace, args: &FsPutArgs, output: Output) -> Result<(), CliError> {
    let is_stdin = args.file == Path::new("-");
    let (source, (mode, umask), length): (Box<dyn Read + Send>, (u16, u16), Option<u64>) = match is_stdin {
        true => (Box::new(io::stdin()), (FILE_MODE, umask()), None),
        false => {
            let file = File::open(&args.file).map_err(CliError::file("open", &args.file))?;
            let found = file.metadata().map_err(CliError::file("read", &args.file))?;
            if found.is_dir() {
                return Err(CliError::file("read", &args.file)(io::Error::from(io::ErrorKind::IsADirectory)));
            }
            let length = found.is_file().then_some(found.len());
            (Box::new(file), ((found.mode() & 0o7777) as u16, 0), length)
        }
    };
    let mut source = Local { helper: Helper::new(source), path: args.file.clone() };
    let (path, size) = attached((place, &args.name, AttachMode::Shared), async |mount| {
        let path = destination(mount, args.path.as_bytes(), &args.file).await?;
        let (bar, shown) = (Bytes::new("copying", length), Cell::new(0));
        let (uid, gid) = own_ids();
        let progress = |bytes| bar.add(bytes - shown.replace(bytes));
        let made = mount.write_file(&path, NewFile { mode, umask, uid, gid }, &mut source, progress).await?;
        Ok((path, made.size))
    })
    .await?;
    let copied = Copied { file_system: &args.name, path: text(&path), file: &args.file, bytes: size };
    output.show(&copied, |c, _| format!("{} copied to {}:{}\n", Size(c.bytes), c.file_system, c.path))
}

/// Where a file is to be put: under its own name if the path is a directory.
async fn destination(mount: &Mount, path: &[u8], file: &Path) -> Result<Vec<u8>, CliError> {
    match mount.names().find(path, true).await {
        Ok(found) if found.kind == FileKind::Directory => {
            match file.file_name().filter(|_| file != Path::new("-")) {
                Some(name) => Ok([path.strip_suffix(b"/").unwrap_or(path), b"/", name.as_bytes()].concat()),
                None => Err(FsError::Refused { path: text(path), error: FileError::IsDirectory }.into()),
            }
        }
        Ok(_) => Ok(path.to_vec()),
        Err(error) if error.refusal() == Some(FileError::NotFound) => Ok(path.to_vec()),
        Err(error) => Err(error.into()),
    }
}

/// Where the bytes of a file go.
enum Sink {
    Standard(io::Stdout),
    File(File),
}

impl Sink {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Sink::Standard(out) => out.write_all(bytes),
            Sink::File(file) => file.write_all(bytes),
        }
    }

    /// All of it is there: durable, with the permissions that the file had.
    fn finish(&mut self, mode: u16) -> io::Result<()> {
        match self {
            Sink::Standard(out) => out.flush(),
            Sink::File(file) if file.metadata()?.is_file() => {
                file.set_permissions(Permissions::from_mode(u32::from(mode & 0o777)))?;
                file.sync_all()
            }
            Sink::File(_) => Ok(()),
        }
    }
}

async fn get(place: &FabricPlace, args: &FsGetArgs, output: Output) -> Result<(), CliError> {
    let is_stdout = args.file == Path::new("-");
    let path = args.path.as_bytes();
    let file = match args.file.is_dir() {
        true => {
            let name = path.split(|byte| *byte == b'/').rfind(|name| !name.is_empty()).unwrap_or(b"file");
            args.file.join(OsString::from_vec(name.to_vec()))
        }
        false => args.file.clone(),
    };
    if !is_stdout && !args.force && file.exists() {
        return Err(CliError::Refused {
            message: format!("{} exists; nothing was copied", file.display()),
            hint: "choose another file, or pass --force to overwrite it".into(),
        });
    }
    // Written next to its place until it is complete. What is no regular file, such as a device, is
    // written in place.
    let is_special = file.exists() && !file.is_file();
    let mut unfinished = file.clone().into_os_string();
    if !is_special {
        unfinished.push(format!(".weft-unfinished-{}", std::process::id()));
    }
    let unfinished = PathBuf::from(unfinished);
    let done = attached((place, &args.name, AttachMode::ReadOnly), async |mount| {
        let size = mount.names().find(path, true).await?.size;
        let bar = Bytes::new("copying", Some(size));
        let mut sink = match is_stdout {
            true => Sink::Standard(io::stdout()),
            false => Sink::File(File::create(&unfinished).map_err(CliError::file("write", &unfinished))?),
        };
        let read = mount.read_file(path, |bytes| {
            bar.add(bytes.len() as u64);
            sink.write_all(bytes)
                .map_err(|error| format!("cannot write {}: {error}; {}", file.display(), file_hint(&error)))
        });
        let found = read.await?;
        sink.finish(found.mode).map_err(CliError::file("write", &file))?;
        Ok(found)
    })
    .await;
    if is_stdout {
        return done.map(|_| ());
    }
    let found = match done {
        Ok(found) => found,
        Err(error) => {
            if !is_special {
                // It may not have been made.
                let _ = std::fs::remove_file(&unfinished);
            }
            return Err(error);
        }
    };
    if !is_special {
        std::fs::rename(&unfinished, &file).map_err(CliError::file("write", &file))?;
    }
    let copied = Copied { file_system: &args.name, path: text(path), file: &file, bytes: found.size };
    output.show(&copied, |c, _| {
        format!("{} copied from {}:{} to {}\n", Size(c.bytes), c.file_system, c.path, c.file.display())
    })
}

async fn ls(place: &FabricPlace, args: &FsListFilesArgs, output: Output) -> Result<(), CliError> {
    let path = args.path.as_bytes();
    let mut files = attached((place, &args.name, AttachMode::ReadOnly), async |mount| {
        let found = mount.names().find(path, true).await?;
        Ok(match found.kind {
            FileKind::Directory => mount.names().list(found.inode, path).await?,
            _ => vec![DirectoryEntry { cookie: 0, name: path.to_vec(), attributes: found, lasts: false }],
        })
    })
    .await?;
    let is_one = files.len() == 1 && files[0].name == path;
    files.retain(|entry| args.all || is_one || entry.name.first() != Some(&b'.'));
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let files = files.iter().map(|entry| listed(&entry.name, &entry.attributes)).collect();
    let listing = Listing { file_system: &args.name, path: text(path), files };
    output.show(&listing, |listing, paint| {
        let mut table = Table::new(&["MODE", ">LINKS", ">OWNER", ">GROUP", ">SIZE", "MODIFIED", "NAME"]);
        for file in &listing.files {
            table.row(row![
                mode_in_letters(file),
                &file.links,
                &file.uid,
                &file.gid,
                Size(file.size_bytes).to_string(),
                file.modified.to_string(),
                file.name.escape_debug().to_string()
            ]);
        }
        table_or_note(&table, paint, "the directory is empty")
    })
}

fn listed(name: &[u8], attributes: &Attributes) -> Listed {
    let is_text = std::str::from_utf8(name).is_ok();
    let hex = || name.iter().map(|byte| format!("{byte:02x}")).collect();
    let modified = attributes.modified;
    Listed {
        name: String::from_utf8_lossy(name).into_owned(),
        name_hex: (!is_text).then(hex),
        kind: attributes.kind,
        inode: attributes.inode.0,
        mode: format!("{:04o}", attributes.mode),
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        size_bytes: attributes.size,
        modified: Timestamp::from_millis(modified.as_ms()),
    }
}

/// Kind and permissions as `ls -l` shows them.
fn mode_in_letters(file: &Listed) -> String {
    let kind = match file.kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Pipe => 'p',
        FileKind::Socket => 's',
        FileKind::CharacterDevice => 'c',
        FileKind::BlockDevice => 'b',
    };
    let mode = u32::from_str_radix(&file.mode, 8).unwrap_or(0);
    let letters = (0..9).map(|at| match mode & (0o400 >> at) {
        0 => '-',
        _ => ['r', 'w', 'x'][at % 3],
    });
    std::iter::once(kind).chain(letters).collect()
}

async fn rm(place: &FabricPlace, args: &FsRemoveArgs, output: Output) -> Result<(), CliError> {
    for path in &args.paths {
        check_removable(path.as_bytes())?;
    }
    let mode = if args.dry_run { AttachMode::ReadOnly } else { AttachMode::Shared };
    let removed = attached((place, &args.name, mode), async |mount| {
        let mut removal = Removal::new(args.recursive, args.dry_run);
        for path in &args.paths {
            removal.remove(mount, path.as_bytes()).await?;
        }
        Ok(removal.count)
    })
    .await?;
    let removed = Removed { file_system: &args.name, removed, dry_run: args.dry_run };
    output.show(&removed, |removed, _| {
        let would = would_be(removed.dry_run);
        let names = if removed.removed == 1 { "name" } else { "names" };
        format!("{} {names} {would}removed\n", removed.removed)
    })
}

/// Refuses a path that names the root, or nothing: all names would go, and the root would stay.
fn check_removable(path: &[u8]) -> Result<(), CliError> {
    let last = path.split(|byte| *byte == b'/').rfind(|part| !part.is_empty());
    match last {
        None | Some(b"." | b"..") => Err(CliError::Usage {
            message: format!("{:?} is no name that can be removed", text(path)),
            hint: "name what is in the folder; `weft fs delete` removes a whole file system".into(),
        }),
        Some(_) => Ok(()),
    }
}

async fn mkdir(place: &FabricPlace, args: &FsMakeDirectoryArgs, output: Output) -> Result<(), CliError> {
    let (uid, gid) = own_ids();
    let new = NewFile { mode: DIRECTORY_MODE, umask: umask(), uid, gid };
    let made = attached((place, &args.name, AttachMode::Shared), async |mount| {
        let mut made = Vec::new();
        for path in &args.paths {
            let path = path.as_bytes();
            let above = path
                .iter()
                .enumerate()
                .filter(|(at, byte)| *at > 0 && **byte == b'/')
                .map(|(at, _)| &path[..at]);
            let above: Vec<&[u8]> = if args.parents { above.collect() } else { Vec::new() };
            for path in above.into_iter().chain([path]) {
                match mount.names().make_directory(path, new).await {
                    Ok(_) => made.push(text(path)),
                    Err(error) if args.parents && error.refusal() == Some(FileError::Exists) => {
                        let found = mount.names().find(path, true).await?;
                        if found.kind != FileKind::Directory {
                            return Err(error.into());
                        }
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(made)
    })
    .await?;
    if made.is_empty() && !output.is_json {
        note("all of them are there already");
    }
    let made = Made { file_system: &args.name, made };
    output.show(&made, |made, _| made.made.iter().map(|path| format!("{path} made\n")).collect())
}

/// A path as text for people.
pub(crate) fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).escape_debug().to_string()
}

/// The user and group that run the command.
pub(crate) fn own_ids() -> (u32, u32) {
    // SAFETY: these calls have no arguments and cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// The permissions that new files of this process do not get.
pub(crate) fn umask() -> u16 {
    // SAFETY: the call cannot fail; it is put back at once, and nothing else makes files meanwhile.
    unsafe {
        let mask = libc::umask(0o022);
        libc::umask(mask);
        (mask & 0o777) as u16
    }
}
