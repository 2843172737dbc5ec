//! Where the output of a mount in the background goes: its warnings to a log, all else to nowhere.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use weft_cli::{CliError, MountArgs, note};

/// The folder of the logs of mounts that were given no other file.
const LOGS: &str = "/var/log/weft";

pub(super) struct Background {
    null: File,
    log: File,
    /// The log that nobody has asked for: it does not stay if nothing is in it.
    by_default: Option<PathBuf>,
}

impl Background {
    /// Opens the log, before anything is mounted: if one that was asked for cannot be written, nothing is
    /// mounted. Without the one by default a mount does.
    pub(super) fn open(args: &MountArgs) -> Result<Background, CliError> {
        let nowhere = Path::new("/dev/null");
        let null = File::options().read(true).write(true).open(nowhere);
        let null = null.map_err(CliError::file("open", nowhere))?;
        if let Some(path) = &args.log_file {
            let log = append_to(path).map_err(CliError::file("open the log", path))?;
            return Ok(Background { null, log, by_default: None });
        }
        let path = log_of(&args.at);
        match fs::create_dir_all(LOGS).and_then(|()| append_to(&path)) {
            Ok(log) => Ok(Background { null, log, by_default: Some(path) }),
            Err(error) => {
                note(&format!(
                    "warnings of the mount are not logged, since {} is not: {error}",
                    path.display()
                ));
                let log = null.try_clone().map_err(CliError::file("open", nowhere))?;
                Ok(Background { null, log, by_default: None })
            }
        }
    }

    /// Lets go of the process that has started this one, which reads this output to its end.
    pub(super) fn go(&self) -> io::Result<()> {
        rustix::stdio::dup2_stdout(&self.null)?;
        rustix::stdio::dup2_stderr(&self.log)?;
        Ok(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(path) = &self.by_default
            && self.log.metadata().is_ok_and(|log| log.len() == 0)
        {
            let _ = fs::remove_file(path);
        }
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

/// The log of the mount at a place: its path, with a dash for each slash.
fn log_of(at: &Path) -> PathBuf {
    let whole = std::path::absolute(at).unwrap_or_else(|_| at.to_owned());
    let name = whole.to_string_lossy().trim_matches('/').replace('/', "-");
    // A file name has 255 bytes at most; the end of a path tells most.
    let end = name.char_indices().map(|(at, _)| at).find(|at| name.len() - at <= 240).unwrap_or(0);
    Path::new(LOGS).join(format!("{}.log", &name[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_has_a_log_by_its_place() {
        assert_eq!(log_of(Path::new("/mnt/home/")), Path::new("/var/log/weft/mnt-home.log"));
        let long = log_of(Path::new(&format!("/{}/end", "ä".repeat(300))));
        let name = long.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(name.len() <= 255 && name.ends_with("-end.log"), "{name}");
    }
}
