//! `weft fs find`: files of a file system by what they are called, are, hold and lie on.

use crate::connection::Connection;
use crate::error::CliError;
use crate::files::attached;
use crate::locate::FabricPlace;
use crate::output::{Document, Output};
use crate::size::Size;
use crate::span::{ParseSpanError, Span};
use globset::{GlobBuilder, GlobMatcher};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;
use std::time::SystemTime;
use weft_api::{ApiAnswer, ApiRequest, SCHEMA_VERSION, Timestamp};
use weft_client::{AttachMode, FileLayout};
use weft_fs::Mount;
use weft_types::{Attributes, BLOCK_SIZE, DriveId, FileKind};
use weft_wire::files::FileError;

/// Objects of a file that are looked at for its drives: 64 TiB with objects of 64 MiB.
const MOST_OBJECTS: usize = 1 << 20;

/// More or less than a limit, or just that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit<T> {
    /// `+`: more than this.
    Above(T),
    /// `-`: less than this.
    Below(T),
    /// Without a sign.
    Exactly(T),
}

impl<T: FromStr> FromStr for Limit<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Limit<T>, T::Err> {
        match text.split_at_checked(1) {
            Some(("+", rest)) => rest.parse().map(Limit::Above),
            Some(("-", rest)) => rest.parse().map(Limit::Below),
            _ => text.parse().map(Limit::Exactly),
        }
    }
}

impl<T: Ord + Copy> Limit<T> {
    fn holds(self, found: T) -> bool {
        match self {
            Limit::Above(limit) => found > limit,
            Limit::Below(limit) => found < limit,
            Limit::Exactly(limit) => found == limit,
        }
    }
}

/// How long ago: `+7d` is longer ago, `-1h` is not so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age(pub Limit<Span>);

/// A text that is no age.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseAgeError {
    /// It has no sign.
    #[error("expected a sign: +7d for longer ago than seven days, -1h for within the last hour")]
    Sign,
    /// What follows the sign is no span.
    #[error(transparent)]
    Span(#[from] ParseSpanError),
}

impl FromStr for Age {
    type Err = ParseAgeError;

    fn from_str(text: &str) -> Result<Age, ParseAgeError> {
        match text.parse()? {
            Limit::Exactly(_) => Err(ParseAgeError::Sign),
            limit => Ok(Age(limit)),
        }
    }
}

/// What `--type` takes, as find(1) has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// A regular file
    F,
    /// A directory
    D,
    /// A symbolic link
    L,
    /// A pipe
    P,
    /// A socket
    S,
    /// A character device
    C,
    /// A block device
    B,
}

impl Kind {
    fn is(self, kind: FileKind) -> bool {
        kind == match self {
            Kind::F => FileKind::Regular,
            Kind::D => FileKind::Directory,
            Kind::L => FileKind::Symlink,
            Kind::P => FileKind::Pipe,
            Kind::S => FileKind::Socket,
            Kind::C => FileKind::CharacterDevice,
            Kind::B => FileKind::BlockDevice,
        }
    }
}

/// Arguments of `weft fs find`.
#[derive(Clone, Debug, clap::Args)]
pub struct FsFindArgs {
    /// The file system's name
    pub file_system: String,
    /// Where to look: a directory with all below it, or a file
    #[arg(default_value = "/")]
    pub path: OsString,
    /// The last part of the path fits a pattern of the shell, such as '*.h5'
    #[arg(long, value_name = "PATTERN")]
    pub name: Option<OsString>,
    /// What it is; may be given several times
    #[arg(long = "type", value_enum, value_name = "KIND")]
    pub kinds: Vec<Kind>,
    /// Bytes of a regular file: +1GiB for more, -4KiB for less, 0 for just that
    #[arg(long, value_name = "[+|-]SIZE", allow_hyphen_values = true)]
    pub size: Option<Limit<Size>>,
    /// When its data was changed last: +30d for longer ago, -1h for within the last hour
    #[arg(long, value_name = "+|-TIME", allow_hyphen_values = true)]
    pub mtime: Option<Age>,
    /// Its owner: the number of a user
    #[arg(long, visible_alias = "uid", value_name = "UID")]
    pub owner: Option<u32>,
    /// Its group: the number of a group
    #[arg(long, visible_alias = "gid", value_name = "GID")]
    pub group: Option<u32>,
    /// A file with data on this drive: its id, or the beginning of the id, from `weft drive list`
    #[arg(long, value_name = "DRIVE")]
    pub drive: Option<String>,
    /// A file or a directory with this chunk size: +1MiB for more, -1MiB for less
    #[arg(long, visible_alias = "stripe-unit", value_name = "[+|-]SIZE", allow_hyphen_values = true)]
    pub chunk_size: Option<Limit<Size>>,
    /// A file or a directory that is spread over this many targets: +1 for more, -4 for fewer
    #[arg(long, visible_alias = "width", value_name = "[+|-]N", allow_hyphen_values = true)]
    pub targets: Option<Limit<u16>>,
    /// Directories to go down at most; 0 looks at PATH alone
    #[arg(long, value_name = "N")]
    pub max_depth: Option<u32>,
    /// End each path with a zero byte, for `xargs -0`: paths are as they are then, whatever bytes they have
    #[arg(short = '0', long)]
    pub print0: bool,
}

/// Something that was found, for programs.
#[derive(Serialize)]
struct Found<'a> {
    path: String,
    /// The bytes of the path, if it is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    kind: FileKind,
    inode: u64,
    size_bytes: u64,
    uid: u32,
    gid: u32,
    modified: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    targets: Option<u16>,
    file_system: &'a str,
}

/// What is looked for.
struct Wanted<'a> {
    args: &'a FsFindArgs,
    name: Option<GlobMatcher>,
    drive: Option<DriveId>,
    now_ms: u64,
}

/// Something that is looked at.
struct Entry {
    path: Vec<u8>,
    attributes: Attributes,
    depth: u32,
}

pub(crate) async fn run(place: &FabricPlace, args: &FsFindArgs, output: Output) -> Result<(), CliError> {
    if args.print0 && output.is_json {
        return Err(CliError::Usage {
            message: "--print0 and --json are two forms of output".into(),
            hint: "leave out one of them".into(),
        });
    }
    let wanted = Wanted {
        args,
        name: args.name.as_deref().map(pattern).transpose()?,
        drive: match &args.drive {
            Some(id) => Some(drive(&Connection::open(place).await?, id).await?),
            None => None,
        },
        now_ms: now_ms(),
    };
    attached((place, &args.file_system, AttachMode::ReadOnly), async |mount| {
        walk(mount, &wanted, output).await
    })
    .await
}

/// A pattern as shells have it: `*`, `?` and `[...]` fit any byte of a name, a dot at its beginning too.
fn pattern(text: &OsStr) -> Result<GlobMatcher, CliError> {
    let usage = |why: String| CliError::Usage {
        message: format!("--name {}: {why}", text.to_string_lossy().escape_debug()),
        hint: "write a pattern such as '*.h5' or 'run-[0-9]?.log', in quotes".into(),
    };
    let pattern = text.to_str().ok_or_else(|| usage("a pattern has to be UTF-8".into()))?;
    let glob = GlobBuilder::new(pattern).backslash_escape(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| usage(error.kind().to_string()))
}

async fn drive(connection: &Connection, id: &str) -> Result<DriveId, CliError> {
    match connection.ask(&ApiRequest::DriveShow { id: id.to_owned() }).await? {
        ApiAnswer::Drive { drive, .. } => Ok(drive.id),
        _ => Err(CliError::wrong_answer(connection.at())),
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Looks at all that there is, a directory before what is in it, in the order of names.
async fn walk(mount: &Mount, wanted: &Wanted<'_>, output: Output) -> Result<(), CliError> {
    let start = normal(wanted.args.path.as_bytes());
    let attributes = mount.names().find(&start, true).await?;
    let mut left = vec![Entry { path: start, attributes, depth: 0 }];
    let mut lines = Lines { wanted, output, text: Vec::new() };
    while let Some(entry) = left.pop() {
        if wanted.fits(mount, &entry)? {
            lines.add(&entry)?;
        }
        let is_deep = wanted.args.max_depth.is_some_and(|most| entry.depth >= most);
        if entry.attributes.kind != FileKind::Directory || is_deep {
            continue;
        }
        let listed = mount.names().list(entry.attributes.inode, &entry.path).await;
        let mut below = match listed {
            Ok(below) => below,
            // Somebody has removed it.
            Err(error) if matches!(error.refusal(), Some(FileError::NotFound | FileError::Stale)) => continue,
            Err(error) => {
                lines.print()?;
                return Err(error.into());
            }
        };
        below.sort_by(|a, b| b.name.cmp(&a.name));
        let is_root = entry.path == b"/";
        left.extend(below.into_iter().map(|found| Entry {
            path: [if is_root { b"" } else { &entry.path[..] }, b"/", &found.name].concat(),
            attributes: found.attributes,
            depth: entry.depth + 1,
        }));
    }
    lines.print()
}

/// A path that begins with a slash and does not end with one, unless it is the root.
fn normal(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    let joined: Vec<u8> = parts.flat_map(|part| [b"/", part].concat()).collect();
    if joined.is_empty() { b"/".to_vec() } else { joined }
}

impl Wanted<'_> {
    fn fits(&self, mount: &Mount, entry: &Entry) -> Result<bool, CliError> {
        Ok(self.fits_attributes(entry) && self.is_on_drive(mount, entry)?)
    }

    fn fits_attributes(&self, Entry { path, attributes, .. }: &Entry) -> bool {
        let (args, is_file) = (self.args, attributes.kind == FileKind::Regular);
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let is_named = |glob: &GlobMatcher| glob.is_match(OsStr::from_bytes(name));
        let age_ms = self.now_ms.saturating_sub(attributes.modified.as_ms());
        let is_aged = |Age(limit): Age| match limit {
            Limit::Above(span) => u128::from(age_ms) > span.0.as_millis(),
            Limit::Below(span) | Limit::Exactly(span) => u128::from(age_ms) < span.0.as_millis(),
        };
        let layout = layout_of(attributes);
        let has_layout = |fits: &dyn Fn(FileLayout) -> bool| layout.is_some_and(fits);
        self.name.as_ref().is_none_or(is_named)
            && (args.kinds.is_empty() || args.kinds.iter().any(|kind| kind.is(attributes.kind)))
            && args.size.is_none_or(|limit| is_file && limit.holds(Size(attributes.size)))
            && args.mtime.is_none_or(is_aged)
            && args.owner.is_none_or(|owner| owner == attributes.uid)
            && args.group.is_none_or(|group| group == attributes.gid)
            && args.chunk_size.is_none_or(|limit| has_layout(&|l| limit.holds(Size(chunk_bytes(&l)))))
            && args.targets.is_none_or(|limit| has_layout(&|l| limit.holds(l.width)))
    }

    fn is_on_drive(&self, mount: &Mount, Entry { path, attributes, .. }: &Entry) -> Result<bool, CliError> {
        let Some(drive) = self.drive else { return Ok(true) };
        if attributes.kind != FileKind::Regular || attributes.size == 0 {
            return Ok(false);
        }
        let parts = mount.parts_of(attributes, path, MOST_OBJECTS)?;
        Ok(parts.iter().any(|part| part.drives.contains(&drive)))
    }
}

/// The layout of a file, or that of new files in a directory.
fn layout_of(attributes: &Attributes) -> Option<FileLayout> {
    let has_one = matches!(attributes.kind, FileKind::Regular | FileKind::Directory);
    has_one.then(|| FileLayout::decode(&attributes.layout).ok()).flatten()
}

fn chunk_bytes(layout: &FileLayout) -> u64 {
    u64::from(layout.unit_blocks) * BLOCK_SIZE as u64
}

/// What is printed next.
struct Lines<'a> {
    wanted: &'a Wanted<'a>,
    output: Output,
    text: Vec<u8>,
}

/// Bytes that are printed at a time.
const PRINTED_AT_ONCE: usize = 1 << 16;

impl Lines<'_> {
    fn add(&mut self, entry: &Entry) -> Result<(), CliError> {
        if self.output.is_json {
            let found = found(&self.wanted.args.file_system, entry);
            let document = Document { schema_version: SCHEMA_VERSION, body: &found };
            self.text.extend(serde_json::to_vec(&document).expect("documents serialise"));
            self.text.push(b'\n');
        } else if self.wanted.args.print0 {
            self.text.extend(&entry.path);
            self.text.push(0);
        } else {
            self.text.extend(in_one_line(&entry.path).bytes());
            self.text.push(b'\n');
        }
        if self.text.len() < PRINTED_AT_ONCE { Ok(()) } else { self.print() }
    }

    fn print(&mut self) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        let printed = out.write_all(&self.text).and_then(|()| out.flush());
        self.text.clear();
        printed.map_err(CliError::Output)
    }
}

fn found<'a>(file_system: &'a str, Entry { path, attributes, .. }: &Entry) -> Found<'a> {
    let layout = layout_of(attributes);
    let is_text = std::str::from_utf8(path).is_ok();
    let hex = || path.iter().map(|byte| format!("{byte:02x}")).collect();
    Found {
        file_system,
        path: String::from_utf8_lossy(path).into_owned(),
        path_hex: (!is_text).then(hex),
        kind: attributes.kind,
        inode: attributes.inode.0,
        size_bytes: attributes.size,
        uid: attributes.uid,
        gid: attributes.gid,
        modified: Timestamp::from_millis(attributes.modified.as_ms()),
        chunk_bytes: layout.as_ref().map(chunk_bytes),
        targets: layout.map(|layout| layout.width),
    }
}

/// A path as it is, but for control characters and bytes that are no text: `\n`, `\xff`.
fn in_one_line(path: &[u8]) -> String {
    let mut line = String::new();
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c.is_control() {
                true => line.extend(c.escape_default()),
                false => line.push(c),
            }
        }
        line.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn limits_and_ages_are_read() {
        assert_eq!("+1MiB".parse(), Ok(Limit::Above(Size(1 << 20))));
        assert_eq!("-4KiB".parse(), Ok(Limit::Below(Size(4096))));
        assert_eq!("0".parse(), Ok(Limit::Exactly(Size(0))));
        assert!("+".parse::<Limit<Size>>().is_err() && "+1MB".parse::<Limit<Size>>().is_err());
        assert_eq!("+7d".parse(), Ok(Age(Limit::Above(Span(Duration::from_secs(7 * 86_400))))));
        assert_eq!("7d".parse::<Age>(), Err(ParseAgeError::Sign));
        assert!("-".parse::<Age>().is_err() && "é".parse::<Age>().is_err());
        let holds = |limit: Limit<u16>| [1, 2, 3].map(|n| limit.holds(n));
        assert_eq!(holds(Limit::Above(2)), [false, false, true]);
        assert_eq!(holds(Limit::Below(2)), [true, false, false]);
        assert_eq!(holds(Limit::Exactly(2)), [false, true, false]);
    }

    #[test]
    fn paths_are_normal_and_fit_in_a_line() {
        for (path, expected) in [("", "/"), ("/", "/"), ("//a//b/", "/a/b"), ("a", "/a")] {
            assert_eq!(normal(path.as_bytes()), expected.as_bytes());
        }
        assert_eq!(in_one_line(b"/a\n\xff'\xc3\xa9"), "/a\\n\\xff'é");
    }

    #[test]
    fn patterns_fit_names() {
        let fits = |text: &str, name: &str| pattern(OsStr::new(text)).expect("a pattern").is_match(name);
        assert!(fits("*.h5", "a.h5") && fits("*", ".hidden") && fits("run-[0-9]?", "run-07"));
        assert!(!fits("*.h5", "a.h5x") && fits("\\*", "*") && !fits("\\*", "a"));
        assert!(pattern(OsStr::new("[a")).is_err());
    }
}
