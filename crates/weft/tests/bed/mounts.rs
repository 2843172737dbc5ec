//! A file system 'home' that is served, and folders to mount it at. It mounts nothing itself.

use super::Bed;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

/// A folder that nothing is mounted at in the end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(bed: &Bed, name: &str) -> Folder {
        fs::create_dir(bed.path(name)).expect("it is new");
        Folder(bed.path(name))
    }

    pub fn text(&self) -> &str {
        self.0.to_str().expect("temporary folders have plain names")
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", self.text()]).output();
    }
}

/// A bed with a file system that is served; none on a machine that mounts nothing.
pub fn with_home(name: &str) -> Option<Bed> {
    with_home_on(name, 3, "128MiB")
}

/// As [`with_home`], on so many nodes, each with one drive of this size.
pub fn with_home_on(name: &str, nodes: u16, drive_size: &str) -> Option<Bed> {
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        eprintln!("NOTHING IS MOUNTED: /dev/fuse cannot be opened: {error}");
        return None;
    }
    let bed = Bed::new(name);
    bed.up_with(nodes, 1, drive_size);
    bed.ok(&["fs", "create", "home"]);
    Some(bed)
}

/// The process of a mount of 'home' at this folder.
pub fn mount_process_at(folder: &str) -> String {
    let out = Command::new("pgrep").args(["-f", &format!("mount home {folder}")]).output();
    let pids = String::from_utf8(out.expect("pgrep runs").stdout).expect("numbers");
    pids.lines().next().expect("a mount runs").to_owned()
}
