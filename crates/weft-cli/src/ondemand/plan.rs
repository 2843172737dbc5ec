//! What a start does on which host, and whether hosts are fit for it.
//!
//! Pure: it owns names, limits and refusals, and asks no host.

use super::script::probe_line;
use crate::size::Size;
use serde::Serialize;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use weft_types::limits::{COPIES_MAX, DRIVE_BYTES_MIN, DRIVES_PER_TARGET_MAX, NAME_BYTES_MAX};

/// What the file system below PATH has to have free beside the drives.
const SPARE_BYTES: u64 = 64 << 20;

/// Copies where nothing is said.
const COPIES_DEFAULT: u8 = 2;

/// Ports that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The first one.
    pub first: u16,
    /// The last one.
    pub last: u16,
}

/// A text that is no range of ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected FIRST-LAST, such as 4900-4999, with 1 to 65535")]
pub struct ParsePortsError;

impl FromStr for Ports {
    type Err = ParsePortsError;
    fn from_str(text: &str) -> Result<Ports, ParsePortsError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.parse().ok().filter(|port| *port > 0).ok_or(ParsePortsError);
        let ports = Ports { first: port(first)?, last: port(last)? };
        if ports.first > ports.last { Err(ParsePortsError) } else { Ok(ports) }
    }
}

impl std::fmt::Display for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// What is to be started.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) path: PathBuf,
    pub(super) mountpoint: PathBuf,
    /// Bytes of each host; none for what the free space allows.
    pub(super) size: Option<u64>,
    /// Drive files of each host.
    pub(super) drives: u16,
    pub(super) copies: u8,
    pub(super) sparse: bool,
    pub(super) resume: bool,
}

/// The number of copies: what is asked for, or two, or one on one host.
///
/// # Errors
/// If there are not as many hosts.
pub(super) fn copies(asked: Option<u8>, hosts: usize) -> Result<u8, String> {
    let most = hosts.min(COPIES_MAX) as u8;
    match asked {
        None => Ok(COPIES_DEFAULT.min(most)),
        Some(asked) if asked <= most => Ok(asked),
        Some(asked) => Err(format!("{asked} copies need as many hosts, and there are {hosts}")),
    }
}

/// A path as every host is to understand it.
///
/// # Errors
/// If it is no [plain](check_plain) path of UTF-8, or has control characters: a line of a script, or of what
/// it says, ends at a line break.
pub(super) fn host_path(path: &Path) -> Result<PathBuf, String> {
    check_plain(path)?;
    match path.to_str() {
        Some(text) if !text.contains(char::is_control) => Ok(path.components().collect()),
        _ => Err(format!("{path:?}: hosts need a path of UTF-8 without control characters")),
    }
}

/// Refuses a path that is not absolute, or has `..` in it.
pub(super) fn check_plain(path: &Path) -> Result<(), String> {
    let shown = path.display();
    if !path.is_absolute() {
        return Err(format!("{shown}: hosts need an absolute path"));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(format!("{shown}: a path with '..' may be another one on each host"));
    }
    Ok(())
}

/// Refuses folders of which one lies in the other.
pub(super) fn check_apart(path: &Path, mountpoint: &Path) -> Result<(), String> {
    let (path_shown, at) = (path.display(), mountpoint.display());
    if path.starts_with(mountpoint) || mountpoint.starts_with(path) {
        return Err(format!("PATH {path_shown} and MOUNTPOINT {at} must not lie in each other"));
    }
    Ok(())
}

/// The names of the nodes: those of the hosts, as far as nodes may have them.
pub(super) fn node_names(hosts: &[String]) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let name = |(index, host): (usize, &String)| {
        let host = host.rsplit('@').next().unwrap_or(host);
        let letter =
            |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
        let name: String = host.chars().map(letter).take(NAME_BYTES_MAX).collect();
        let is_fine = name.starts_with(|c: char| c.is_ascii_alphanumeric()) && !taken.contains(&name);
        let numbered = || (index + 1..).map(|number| format!("node-{number}"));
        let free = || numbered().find(|name| !taken.contains(name)).expect("numbers do not end");
        let name = if is_fine { name } else { free() };
        taken.insert(name.clone());
        name
    };
    hosts.iter().enumerate().map(name).collect()
}

/// What is known of a host before anything is done there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Facts {
    pub(super) uid: Option<u32>,
    /// The kind of its processor.
    pub(super) machine: String,
    /// The address at which ssh has reached it.
    pub(super) address: Option<IpAddr>,
    /// A program there that can take part.
    pub(super) weft: Option<String>,
    /// Programs there that cannot.
    pub(super) other_wefts: Vec<String>,
    pub(super) has_fuse: bool,
    pub(super) has_fusermount: bool,
    pub(super) path_is_folder: bool,
    pub(super) path_is_file: bool,
    pub(super) path_is_writable: bool,
    /// What is to hold PATH can be written.
    pub(super) above_is_writable: bool,
    pub(super) free_bytes: Option<u64>,
    /// A name in PATH that is none of ours.
    pub(super) foreign: Option<String>,
    /// Names of block devices in PATH.
    pub(super) devices: Vec<String>,
    /// Folders of file systems on demand in PATH, with their states.
    pub(super) ondemand: Vec<(String, String)>,
    pub(super) mountpoint_is_folder: bool,
    pub(super) mountpoint_is_file: bool,
    pub(super) mountpoint_holds: Option<String>,
    /// Type and source of what is mounted at MOUNTPOINT, uppermost last.
    pub(super) mounted: Vec<String>,
}

impl Facts {
    /// Takes a line of the script; false if it is not one of facts.
    pub(super) fn take(&mut self, line: &str) -> bool {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (word, rest) {
            ("uid", _) => self.uid = rest.parse().ok(),
            ("machine", _) => self.machine = rest.to_owned(),
            // CLIENT PORT SERVER PORT (ssh(1)); an address of a link has its interface behind a percent sign.
            ("ssh", _) => self.address = rest.split(' ').nth(2).and_then(|address| address.parse().ok()),
            ("weft", _) => self.weft = Some(rest.to_owned()),
            ("other-weft", _) => self.other_wefts.push(rest.to_owned()),
            ("fuse", _) => self.has_fuse = true,
            ("fusermount", _) => self.has_fusermount = true,
            ("path", "folder") => self.path_is_folder = true,
            ("path", "file") => self.path_is_file = true,
            ("path", "writable") => self.path_is_writable = true,
            ("above", _) => self.above_is_writable = true,
            ("free", _) => self.free_bytes = rest.parse::<u64>().ok().and_then(|kib| kib.checked_mul(1024)),
            ("device", _) => self.devices.push(rest.to_owned()),
            ("foreign", _) => self.foreign = Some(rest.to_owned()),
            ("ondemand", _) => {
                let (name, state) = rest.split_once(' ').unwrap_or((rest, "unknown"));
                self.ondemand.push((name.to_owned(), state.to_owned()));
            }
            ("mountpoint", "folder") => self.mountpoint_is_folder = true,
            ("mountpoint", "file") => self.mountpoint_is_file = true,
            ("mountpoint-holds", _) => self.mountpoint_holds = Some(rest.to_owned()),
            ("mounted", _) => self.mounted.push(rest.to_owned()),
            _ => return false,
        }
        true
    }

    /// How many drives it is to have: the devices that are there, or as many files as are wanted.
    pub(super) fn drives(&self, wanted: &Wanted) -> u16 {
        match self.devices.len() {
            0 => wanted.drives,
            devices => devices.try_into().unwrap_or(u16::MAX),
        }
    }

    /// Whether the program has to be copied there.
    pub(super) fn needs_program(&self) -> bool {
        self.weft.is_none()
    }
}

/// A reason why a host is not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Complaint {
    pub(super) what: String,
    /// Data of somebody, or a file system that runs, is in the way.
    pub(super) is_refusal: bool,
}

/// What is in the way of a start on a host.
pub(super) fn complaints(facts: &Facts, wanted: &Wanted) -> Vec<Complaint> {
    let mut found = Vec::new();
    let mut complain = |is_refusal: bool, what: String| found.push(Complaint { what, is_refusal });
    let (path, at) = (wanted.path.display(), wanted.mountpoint.display());
    if facts.needs_program() && facts.machine != std::env::consts::ARCH {
        complain(
            false,
            format!(
                "it has no weft that says '{}', and this program is not for its processor ({}): install \
                 weft there{}",
                probe_line(),
                facts.machine,
                others(facts),
            ),
        );
    }
    if facts.path_is_file {
        complain(false, format!("PATH {path} is no folder"));
    } else if facts.path_is_folder && !facts.path_is_writable {
        complain(false, format!("PATH {path} cannot be written: is it read-only, or another user's?"));
    } else if !facts.path_is_folder && !facts.above_is_writable {
        complain(false, format!("PATH {path} does not exist, and what would hold it cannot be written"));
    }
    if let Some(name) = &facts.foreign {
        complain(true, format!("PATH {path} holds '{name}', which is not Weft's: name an empty folder"));
    }
    match (&*facts.ondemand, wanted.resume) {
        ([], false) => {}
        ([], true) => complain(false, format!("PATH {path} holds no data that could be resumed")),
        ([(_, state)], true) if state == "stopped" => {}
        ([(name, state), ..], true) => {
            complain(
                true,
                format!("PATH {path} holds {name}, which is {state}: `weft ondemand stop` ends it"),
            );
        }
        ([(name, state), ..], false) => complain(
            true,
            format!(
                "PATH {path} holds {name} of another start, which is {state}: `weft ondemand stop \
                 --delete` with the same hosts and PATH removes it, `start --resume` takes its \
                 data once it is stopped"
            ),
        ),
    }
    if facts.devices.len() > DRIVES_PER_TARGET_MAX {
        let count = facts.devices.len();
        complain(
            false,
            format!("PATH {path} holds {count} devices, at most {DRIVES_PER_TARGET_MAX} are used"),
        );
    }
    if let Some(complaint) = no_room(facts, wanted) {
        complain(false, complaint);
    }
    if let Some(complaint) = no_fuse(facts) {
        complain(false, complaint);
    }
    if facts.mountpoint_is_file {
        complain(false, format!("MOUNTPOINT {at} is no folder"));
    }
    if let Some(mounted) = facts.mounted.iter().rfind(|mounted| mounted.starts_with("fuse.weft ")) {
        let name = mounted.split(' ').nth(1).unwrap_or_default();
        complain(true, format!("file system '{name}' of Weft is mounted at {at}: end that first"));
    } else if let Some(name) = &facts.mountpoint_holds {
        complain(true, format!("MOUNTPOINT {at} is not empty: it holds '{name}', which would be hidden"));
    }
    found
}

fn others(facts: &Facts) -> String {
    match facts.other_wefts.is_empty() {
        true => String::new(),
        false => format!(" (there is {})", facts.other_wefts.join(", ")),
    }
}

fn no_fuse(facts: &Facts) -> Option<String> {
    let is_root = facts.uid == Some(0);
    match (facts.has_fuse, is_root || facts.has_fusermount) {
        (true, true) => None,
        (false, _) => Some(
            "/dev/fuse is not there, or not for this user: `modprobe fuse`; containers need leave for it"
                .to_owned(),
        ),
        (true, false) => {
            Some("only root may mount, and there is no fusermount3 (package fuse3): install it".to_owned())
        }
    }
}

fn no_room(facts: &Facts, wanted: &Wanted) -> Option<String> {
    let path = wanted.path.display();
    let Some(free) = facts.free_bytes else {
        return Some(format!("the free space of PATH {path} is not known: df says nothing"));
    };
    let least = DRIVE_BYTES_MIN.saturating_mul(u64::from(wanted.drives));
    if wanted.size.is_some_and(|size| size < least) {
        // Said once, before any host is asked.
        return None;
    }
    let needed = if wanted.sparse || wanted.resume || !facts.devices.is_empty() {
        0
    } else {
        wanted.size.unwrap_or(least)
    };
    let needed = needed.saturating_add(if wanted.resume { 0 } else { SPARE_BYTES });
    (free < needed).then(|| {
        format!("PATH {path} has too little room: {} are free, {} are needed", Size(free), Size(needed))
    })
}

/// Who does what in which order, for people.
pub(super) fn steps(
    hosts: &[String],
    wanted: &Wanted,
    without_program: usize,
    with_devices: usize,
) -> Vec<String> {
    let (count, first) = (hosts.len(), &hosts[0]);
    let at = wanted.mountpoint.display();
    let all = if count == 1 { "1 host".to_owned() } else { format!("{count} hosts") };
    let mut steps = vec![format!("make a folder in {} on {all}", wanted.path.display())];
    if without_program > 0 {
        steps.push(format!("copy this program to {without_program} of them"));
    }
    steps.push(match (wanted.resume, wanted.size) {
        (true, _) => "take the drives that are there".to_owned(),
        (false, Some(size)) => {
            format!("make {} drives of {} on each", wanted.drives, Size(size / u64::from(wanted.drives)))
        }
        (false, None) => format!("make {} drives on each, of 80 % of what is free", wanted.drives),
    });
    if with_devices > 0 && !wanted.resume {
        steps
            .push(format!("format the devices in PATH instead on {with_devices} of them, if they are empty"));
    }
    steps.push(format!("start the manager on {first}"));
    steps.push(format!("start a node on {all}"));
    steps.push(format!("create the file system, with {} copies on different hosts", wanted.copies));
    steps.push(format!("mount it at {at} on {all}"));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Wanted {
        Wanted {
            path: "/local".into(),
            mountpoint: "/mnt/job".into(),
            size: Some(1 << 30),
            drives: 1,
            copies: 2,
            sparse: false,
            resume: false,
        }
    }

    fn fit() -> Facts {
        let mut facts = Facts::default();
        let machine = format!("machine {}", std::env::consts::ARCH);
        for line in [
            "uid 0",
            &machine,
            "ssh 10.0.0.9 4000 10.0.0.1 22",
            "fuse yes",
            "path folder",
            "path writable",
            "above writable",
            "free 4194304",
            "mountpoint folder",
        ] {
            assert!(facts.take(line), "{line}");
        }
        assert!(!facts.take("looked"));
        facts
    }

    fn said(change: impl FnOnce(&mut Facts), wanted: &Wanted) -> String {
        let mut facts = fit();
        change(&mut facts);
        let found = complaints(&facts, wanted);
        let shown = |c: &Complaint| format!("{}{}", if c.is_refusal { "refused: " } else { "" }, c.what);
        found.iter().map(shown).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_host_is_fit_or_it_is_said_why_not() {
        assert_eq!(said(|_| {}, &wanted()), "");
        assert_eq!(fit().address, Some([10, 0, 0, 1].into()));
        assert_eq!(said(|f| f.path_is_folder = false, &wanted()), "", "it is made");
        let devices = |f: &mut Facts| {
            f.devices = vec!["nvme0".into(), "nvme1".into()];
            f.free_bytes = Some(100 << 20);
            assert_eq!((f.drives(&wanted()), fit().drives(&wanted())), (2, 1));
        };
        assert_eq!(said(devices, &wanted()), "", "devices have room of their own");
        let mut other = Vec::new();
        for (change, says) in [
            (
                Box::new(|f: &mut Facts| f.machine = "riscv64".into()) as Box<dyn FnOnce(&mut Facts)>,
                "install weft there",
            ),
            (Box::new(|f| f.path_is_writable = false), "PATH /local cannot be written"),
            (
                Box::new(|f| (f.path_is_folder, f.above_is_writable) = (false, false)),
                "PATH /local does not exist",
            ),
            (Box::new(|f| (f.path_is_folder, f.path_is_file) = (false, true)), "PATH /local is no folder"),
            (Box::new(|f| f.devices = vec!["sda".into(); 65]), "holds 65 devices, at most 64"),
            (Box::new(|f| f.foreign = Some("thesis.tex".into())), "refused: PATH /local holds 'thesis.tex'"),
            (
                Box::new(|f| f.ondemand.push(("weft-ondemand-7".into(), "running".into()))),
                "refused: PATH /local holds weft-ondemand-7 of another start, which is running",
            ),
            (
                Box::new(|f| f.free_bytes = Some(1 << 29)),
                "has too little room: 512 MiB are free, 1 GiB are needed",
            ),
            (Box::new(|f| f.free_bytes = None), "is not known"),
            (Box::new(|f| f.has_fuse = false), "/dev/fuse is not there"),
            (Box::new(|f| f.uid = Some(1000)), "there is no fusermount3"),
            (Box::new(|f| f.mountpoint_is_file = true), "MOUNTPOINT /mnt/job is no folder"),
            (
                Box::new(|f| f.mountpoint_holds = Some("x".into())),
                "refused: MOUNTPOINT /mnt/job is not empty",
            ),
            (
                Box::new(|f| f.mounted = vec!["ext4 /dev/sda rw".into(), "fuse.weft home rw".into()]),
                "refused: file system 'home' of Weft is mounted at /mnt/job",
            ),
        ] {
            let said = said(change, &wanted());
            assert!(said.contains(says) && !said.contains('\n'), "{says}: {said}");
            other.push(said);
        }
        assert_eq!(said(|f| f.mounted = vec!["ext4 /dev/sda rw".into()], &wanted()), "", "an empty disk");
    }

    #[test]
    fn data_that_stopped_can_be_resumed() {
        let wanted = Wanted { resume: true, size: None, ..wanted() };
        let with = |state: &str| {
            let state = state.to_owned();
            said(move |f| f.ondemand.push(("weft-ondemand-7".into(), state)), &wanted)
        };
        assert_eq!(with("stopped"), "");
        assert!(with("running").contains("refused: PATH /local holds weft-ondemand-7, which is running"));
        assert!(said(|_| {}, &wanted).contains("holds no data that could be resumed"));
    }

    #[test]
    fn copies_are_on_different_hosts() {
        assert_eq!((copies(None, 1), copies(None, 9), copies(Some(3), 3)), (Ok(1), Ok(2), Ok(3)));
        assert!(copies(Some(2), 1).expect_err("one host").contains("2 copies need as many hosts"));
    }

    #[test]
    fn paths_mean_the_same_on_every_host() {
        assert_eq!(host_path(Path::new("/a//b/./c/")), Ok("/a/b/c".into()));
        assert!(host_path(Path::new("a")).is_err() && host_path(Path::new("/a/../b")).is_err());
        assert!(host_path(Path::new("/a\nb")).is_err() && check_plain(Path::new("/a\nb")).is_ok());
        let apart = |a: &str, b: &str| check_apart(Path::new(a), Path::new(b)).is_ok();
        assert!(apart("/a", "/ab") && !apart("/a", "/a/b") && !apart("/a/b", "/a") && !apart("/a", "/a"));
    }

    #[test]
    fn nodes_have_the_names_of_their_hosts() {
        let hosts = ["root@n1", "N-2.x_y", "::1", "root@n1", "ü", &"l".repeat(80)].map(str::to_owned);
        let names = node_names(&hosts);
        assert_eq!(names[..5], ["n1", "N-2.x_y", "node-3", "node-4", "node-5"]);
        assert_eq!(names[5].len(), 63);
        let twins = ["node-2", "a@node-2"].map(str::to_owned);
        assert_eq!(node_names(&twins), ["node-2", "node-3"]);
    }

    #[test]
    fn ports_are_a_range() {
        assert_eq!("4900-4999".parse(), Ok(Ports { first: 4900, last: 4999 }));
        assert_eq!("80".parse(), Ok(Ports { first: 80, last: 80 }));
        for text in ["", "0-9", "9-8", "1-70000", "a-b"] {
            assert_eq!(text.parse::<Ports>(), Err(ParsePortsError), "{text}");
        }
    }
}
