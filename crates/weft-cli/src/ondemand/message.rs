//! What a host's program is asked, and what it answers: one line of JSON each.

use super::record::HostRecord;
use serde::{Deserialize, Deserializer, Serialize};
use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A path of files that are copied. In JSON it is a text, or the numbers of its bytes if it is not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "PathInJson", into = "PathInJson")]
pub(super) struct CopyPath(pub(super) PathBuf);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PathInJson {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<PathInJson> for CopyPath {
    fn from(path: PathInJson) -> CopyPath {
        CopyPath(match path {
            PathInJson::Text(text) => text.into(),
            PathInJson::Bytes(bytes) => OsString::from_vec(bytes).into(),
        })
    }
}

impl From<CopyPath> for PathInJson {
    fn from(path: CopyPath) -> PathInJson {
        match path.0.into_os_string().into_string() {
            Ok(text) => PathInJson::Text(text),
            Err(bytes) => PathInJson::Bytes(bytes.into_vec()),
        }
    }
}

impl CopyPath {
    /// The path for people: a control character in a name, such as a line break, is written as its escape.
    pub(super) fn shown(path: &Path) -> String {
        let text = path.to_string_lossy();
        text.chars()
            .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
            .collect()
    }
}

/// A request with its number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Asked {
    /// From 1 on, in each connection.
    pub(super) n: u64,
    #[serde(flatten)]
    pub(super) request: Request,
}

/// The number in the answer to what had none.
pub(super) const NO_NUMBER: u64 = 0;

/// An answer: one of `ok` and `error` is there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Answered {
    /// The number of the request.
    pub(super) n: u64,
    /// Also where the answer is nothing, `null`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub(super) ok: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

/// A value that is there, which may be `null`: serde takes that for none.
fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<serde_json::Value>, D::Error> {
    serde_json::Value::deserialize(value).map(Some)
}

/// What a host's program is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub(super) enum Request {
    /// Make the folder, the record and the drives. Answer: [`Prepared`].
    Prepare(Box<Prepare>),
    /// Start the manager. Answer: its address.
    Manager {},
    /// Start the node, and wait until the manager counts it. Answer: nothing.
    Node {
        /// The manager's address.
        manager: String,
    },
    /// Create the file system, once all drives are there. Answer: nothing.
    Create { drives: usize, copies: u8, shards: Option<u32> },
    /// Mount the file system, and wait until the mount answers. Answer: nothing.
    Mount {},
    /// The file system is up: what was made stays when this connection ends. Answer: nothing.
    Settle {},
    /// Undo all that was done since the start of this connection. Answer: [`Left`].
    Undo {},
    /// Answer: [`HostRecord`], or none if a start was cut off before there was one.
    Record {},
    /// Who uses the mount. Answer: a list of [`User`].
    Users {},
    /// End the mount. Answer: nothing.
    Unmount {
        /// Also if it is in use.
        force: bool,
        /// What was written need not become durable: all data are removed.
        discard: bool,
    },
    /// Say to the manager that everything is about to stop. Answer: nothing.
    Announce {},
    /// End the node. Answer: nothing.
    EndNode {},
    /// End what is left, and remove the data. Answer: [`Left`].
    Finish { delete: bool },
    /// Answer: [`HostStatus`].
    Status {
        /// Ask the manager how the fabric is.
        fabric: bool,
    },
    /// List what is to be copied, and make its folders and links in the target. Answer: nothing, after lines
    /// `entries` with lists of [`Entry`].
    List { sources: Vec<CopyPath>, target: CopyPath },
    /// Copy files. Answer: nothing, after a line `copied` with a [`Copied`] for each.
    Copy {
        /// Sources and targets.
        files: Vec<(CopyPath, CopyPath)>,
        threads: usize,
    },
    /// Have the file system of the target write everything that it has. Answer: nothing.
    Sync { target: CopyPath },
    /// Give folders the owners, modes and times of their sources. Answer: a list of errors.
    Folders {
        /// Sources and targets, the deepest first.
        folders: Vec<(CopyPath, CopyPath)>,
    },
}

/// Something that is to be copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(super) enum Entry {
    /// A folder, which is made.
    Folder { from: CopyPath, to: CopyPath },
    /// A file, which is not copied yet.
    File { from: CopyPath, to: CopyPath, bytes: u64 },
    /// A symbolic link, which is made.
    Link {},
    /// What cannot be copied, and why.
    Error { what: String },
}

/// What has become of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Copied {
    /// Its place in the list.
    pub(super) index: usize,
    /// Bytes that were copied.
    pub(super) bytes: u64,
    /// It was there already, with the same size and time.
    pub(super) skipped: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

/// What a host is to prepare.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Prepare {
    /// The record, as far as it is known: without address and ports.
    pub(super) record: HostRecord,
    /// The first and the last port that may be used.
    pub(super) ports: (u16, u16),
    /// The network in which its address has to be, as ADDRESS/BITS.
    pub(super) network: Option<String>,
    /// The address at which ssh has reached it.
    pub(super) reached_at: Option<IpAddr>,
    /// An address of another host, if any was reached at one that is not of the loopback network.
    pub(super) other: Option<IpAddr>,
    /// Bytes of each drive; none for what the free space allows.
    pub(super) drive_bytes: Option<u64>,
    /// Let drive files take space as they are written.
    pub(super) sparse: bool,
    /// Take the data of an earlier start, instead of making new drives.
    pub(super) resume: bool,
}

/// What a host has prepared.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Prepared {
    /// Where its node will listen.
    pub(super) address: IpAddr,
    pub(super) drives: usize,
    /// Bytes of all of them.
    pub(super) bytes: u64,
}

/// What could not be undone or ended, for people; empty if there is nothing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Left {
    pub(super) left: Vec<String>,
}

/// A process that uses a mount.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct User {
    pub(super) pid: i32,
    /// The name of its program.
    pub(super) program: String,
    pub(super) uid: u32,
}

/// How a host is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HostStatus {
    /// `starting`, `running` or `stopped`.
    pub(super) state: String,
    /// Whether its node runs.
    pub(super) node: bool,
    /// Whether its manager runs; none on a host without one.
    pub(super) manager: Option<bool>,
    /// Whether the file system is mounted.
    pub(super) mounted: bool,
    /// Whether the mount answers.
    pub(super) answers: bool,
    /// Bytes that are free on the disk below PATH.
    pub(super) free_bytes: u64,
    /// What the manager says; none if it was not asked, or does not answer.
    pub(super) fabric: Option<FabricWord>,
}

/// What the manager says of the fabric.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct FabricWord {
    /// `healthy`, `degraded` or `unavailable`.
    pub(super) health: String,
    pub(super) reasons: Vec<String>,
    /// Bytes that files can have, and have, with the copies of the file system.
    pub(super) size_bytes: u64,
    pub(super) used_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_any_bytes_pass() {
        let json = |path: &[u8]| {
            let path = CopyPath(OsString::from_vec(path.to_vec()).into());
            let json = serde_json::to_string(&path).expect("it serialises");
            assert_eq!(serde_json::from_str::<CopyPath>(&json).expect("a path"), path);
            json
        };
        assert_eq!(json(b"/a\n\"b"), r#""/a\n\"b""#);
        assert_eq!(json(b"/\xff"), "[47,255]");
        assert_eq!(CopyPath::shown(Path::new("/a\nb\u{1b}")), "/a\\nb\\u{1b}");
        let asked = Asked {
            n: 1,
            request: Request::Sync { target: CopyPath(OsString::from_vec(vec![47, 255]).into()) },
        };
        let json = serde_json::to_string(&asked).expect("it serialises");
        let back: Asked = serde_json::from_str(&json).expect("a request");
        assert_eq!(serde_json::to_string(&back).expect("it serialises"), json);
    }

    #[test]
    fn an_answer_that_is_nothing_is_an_answer() {
        let read = |text: &str| {
            let answered: Answered = serde_json::from_str(text).expect("an answer");
            (answered.ok, answered.error)
        };
        assert_eq!(read(r#"{"n":1,"ok":null}"#), (Some(serde_json::Value::Null), None));
        assert_eq!(read(r#"{"n":1,"error":"no"}"#), (None, Some("no".to_owned())));
    }
}
