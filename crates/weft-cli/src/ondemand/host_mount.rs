//! The mount on a host: making it, ending it, and who uses it.

use super::host_member::{Member, end_member, last_words};
use super::host_prepare::run;
use super::message::User;
use super::on_host::Work;
use super::record::FILE_SYSTEM;
use crate::error::CliError;
use crate::local::program;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use weft_rt::{now, sleep};

/// How long a mount may take: its file system's first shard has to be opened.
const MOUNT_MAX: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(50);

/// How long a mount may take for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The type of our mounts, as the kernel lists them.
const TYPE: &[u8] = b"fuse.weft";

/// Mounts the file system, and waits until the mount answers.
pub(super) async fn mount(work: &Work<'_>) -> Result<(), CliError> {
    let (place, record) = (work.place, work.place.record()?);
    let at = &record.mountpoint;
    let mut command = program()?;
    command.args(["mount", FILE_SYSTEM]).arg(at).args(["--foreground", "--fabric", &record.manager]);
    let mut member = Member::start(work, "mount", command)?;
    let began = now();
    while !(is_mounted(at) && answers(at)) {
        work.check()?;
        member.check()?;
        if began.elapsed() > MOUNT_MAX {
            return Err(CliError::Failed {
                message: format!(
                    "{} is not mounted after {} s: {}",
                    at.display(),
                    MOUNT_MAX.as_secs(),
                    last_words(place, "mount")
                ),
                hint: "the log of the mount says more".into(),
            });
        }
        sleep(POLL).await;
    }
    Ok(())
}

/// Ends the mount. Without `force` it is refused where somebody uses it. Where everything is discarded,
/// nothing is written back.
pub(super) async fn unmount(work: &Work<'_>, force: bool, discard: bool) -> Result<(), CliError> {
    let record = work.place.record()?;
    let at = &record.mountpoint;
    if !force {
        let users = users(at);
        if !users.is_empty() {
            return Err(CliError::Refused {
                message: format!("{} is in use: {}", at.display(), shown(&users)),
                hint: "end these processes, or take the mount away with --force".into(),
            });
        }
    }
    while is_mounted(at) {
        let mut command = program()?;
        command.arg("umount").arg(at);
        if force || discard {
            command.arg("--force");
        }
        run(command, "it is not unmounted")?;
    }
    end_member(work.place, "mount").await
}

/// Fails where the file system is not mounted, or its mount does not answer: files that are written there
/// would be on a disk of this host.
pub(super) fn check_mounted(at: &Path) -> Result<(), CliError> {
    match is_mounted(at) && answers(at) {
        true => Ok(()),
        false => Err(CliError::Failed {
            message: format!("the file system is not mounted at {} here, or does not answer", at.display()),
            hint: "`weft ondemand status` says how hosts are".into(),
        }),
    }
}

/// Processes, for people.
pub(super) fn shown(users: &[User]) -> String {
    const NAMED: usize = 8;
    let named = users.iter().take(NAMED);
    let mut named: Vec<String> =
        named.map(|user| format!("{} (process {}, user {})", user.program, user.pid, user.uid)).collect();
    if users.len() > NAMED {
        named.push(format!("{} more", users.len() - NAMED));
    }
    named.join(", ")
}

/// Whether a mount of ours is uppermost at a path. The mount is not asked.
pub(super) fn is_mounted(at: &Path) -> bool {
    let list = fs::read("/proc/self/mountinfo").unwrap_or_default();
    uppermost_type(&list, &settled(at)).is_some_and(|kind| kind == TYPE)
}

/// A path without links, as far as its folder goes: a mount that hangs answers nothing.
fn settled(path: &Path) -> PathBuf {
    match (path.parent().map(fs::canonicalize), path.file_name()) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

/// The type of what is uppermost at a path in the kernel's list of mounts (proc_pid_mountinfo(5)).
fn uppermost_type(list: &[u8], at: &Path) -> Option<Vec<u8>> {
    let kind = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let dash = 6 + fields.get(6..)?.iter().position(|field| *field == b"-")?;
        let path = PathBuf::from(OsString::from_vec(unescaped(fields.get(4)?)));
        (path == at).then(|| fields.get(dash + 1).map(|kind| kind.to_vec()))?
    };
    list.split(|byte| *byte == b'\n').filter_map(kind).next_back()
}

/// Without the octal escapes of spaces, tabs, newlines and backslashes.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((first, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| *first == b'\\');
        let value = octal.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(value.unwrap_or(*first));
        rest = if value.is_some() { &behind[3..] } else { behind };
    }
    bytes
}

/// Whether a mount answers.
pub(super) fn answers(at: &Path) -> bool {
    let (answer, waits) = channel();
    let at = at.to_owned();
    // A mount that hangs keeps this thread until it is taken away.
    thread::spawn(move || answer.send(fs::read_dir(&at).is_ok()));
    waits.recv_timeout(ANSWER_MAX).unwrap_or(false)
}

/// Processes that have their folder, their root, their program, an open file or a mapping below a path. Where
/// this user may not look, nothing is found. The mount is not asked.
pub(super) fn users(at: &Path) -> Vec<User> {
    let at = settled(at);
    let mut found = BTreeSet::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if uses(&entry.path(), &at) {
            let program = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            let uid = entry.metadata().map_or(0, |metadata| metadata.uid());
            found.insert(User { pid, program: program.trim().to_owned(), uid });
        }
    }
    found.into_iter().collect()
}

/// Whether a process, by its folder in `/proc`, uses what is below a path.
fn uses(process: &Path, at: &Path) -> bool {
    // Another mount namespace may have another file system at the same path.
    let space = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    if space(process) != space(Path::new("/proc/self")) {
        return false;
    }
    let is_below = |link: PathBuf| fs::read_link(link).is_ok_and(|target| target.starts_with(at));
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    ["cwd", "root", "exe"].iter().any(|name| is_below(process.join(name)))
        || files.map(|file| file.path()).any(is_below)
        || fs::read(process.join("maps")).is_ok_and(|maps| maps_below(&maps, at))
}

/// Whether a list of mappings (proc_pid_maps(5)) has a file below a path.
fn maps_below(maps: &[u8], at: &Path) -> bool {
    let mut lines = maps.split(|byte| *byte == b'\n');
    lines.any(|line| {
        let path = line.iter().position(|byte| *byte == b'/').map(|slash| &line[slash..]);
        path.is_some_and(|path| Path::new(std::ffi::OsStr::from_bytes(path)).starts_with(at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_uppermost_mount_counts() {
        let list = b"22 1 8:1 / / rw shared:1 - ext4 /dev/root rw\n\
            36 22 0:35 / /mnt/a\\040b rw shared:2 master:1 - fuse.weft ondemand rw\n\
            37 22 0:36 / /mnt/c rw - fuse.weft ondemand rw\n38 22 0:37 / /mnt/c rw - tmpfs none rw\nbroken\n";
        let kind = |at: &str| uppermost_type(list, Path::new(at));
        assert_eq!(kind("/mnt/a b").as_deref(), Some(TYPE));
        assert_eq!(kind("/mnt/c").as_deref(), Some(&b"tmpfs"[..]));
        assert_eq!(kind("/mnt"), None);
    }

    #[test]
    fn who_uses_a_folder_is_found() {
        let dir = std::env::temp_dir().join(format!("weft-ondemand-users-{}", std::process::id()));
        fs::create_dir_all(dir.join("below")).expect("made");
        let dir = dir.canonicalize().expect("there");
        assert_eq!(users(&dir), []);
        let mut child = Command::new("sleep")
            .arg("60")
            .current_dir(dir.join("below"))
            .stdin(Stdio::null())
            .spawn()
            .expect("sleep");
        let pid = child.id() as i32;
        let found = users(&dir);
        let _ = child.kill().and_then(|()| child.wait());
        assert!(found.iter().any(|user| user.pid == pid), "{found:?}");
        assert!(shown(&found).contains(&format!("process {pid}")));
        let file = fs::File::create(dir.join("open")).expect("made");
        assert!(users(&dir).iter().any(|user| user.pid == std::process::id() as i32));
        drop(file);
        fs::remove_dir_all(dir).expect("removed");
        let maps = b"7f0-7f1 r--p 00000000 00:2f 12  /mnt/x/lib.so\n7f2-7f3 rw-p 0 0:0 0 \n";
        assert!(maps_below(maps, Path::new("/mnt/x")) && !maps_below(maps, Path::new("/mnt/y")));
    }
}
