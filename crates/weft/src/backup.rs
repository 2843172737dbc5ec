//! The folder in which the manager keeps the backups of the map that it takes by itself.
//!
//! It owns the files' names, that each is whole or not there, and which are removed. When a backup is taken is the
//! manager's matter.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use weft_types::MapVersion;

/// Backups that are kept: a day of them, with one an hour.
const BACKUPS_KEPT: usize = 24;

/// How the name of a backup begins and ends; between the two is the map's version, so that names sort by age.
const BEGINS: &str = "map-";
const ENDS: &str = ".weftmap";

/// What is added to the name of one that is being written.
const UNFINISHED: &str = ".new";

/// A folder of backups. It is made with the first one.
#[derive(Clone, Debug)]
pub(crate) struct BackupFolder(PathBuf);

impl BackupFolder {
    /// The one beside a manager's store.
    pub(crate) fn beside(store: &Path) -> BackupFolder {
        BackupFolder(store.parent().unwrap_or(Path::new(".")).join("backups"))
    }

    /// Writes a backup, whole or not at all, and removes the oldest that are too many.
    ///
    /// # Errors
    /// What could not be done, with where and why, for people. The backups that are there stay.
    pub(crate) fn write(&self, version: MapVersion, bytes: &[u8]) -> Result<(), String> {
        let failed =
            |what: &str, path: &Path, error: io::Error| format!("cannot {what} {}: {error}", path.display());
        fs::create_dir_all(&self.0).map_err(|e| failed("make the folder", &self.0, e))?;
        let path = self.0.join(format!("{BEGINS}{:020}{ENDS}", version.0));
        let fresh = self.0.join(format!("{BEGINS}{:020}{ENDS}{UNFINISHED}", version.0));
        let written = write_whole(&fresh, &path, bytes).and_then(|()| File::open(&self.0)?.sync_all());
        if let Err(error) = written {
            // Half a file would take the room that the next attempt needs.
            let _ = fs::remove_file(&fresh);
            return Err(failed("write", &path, error));
        }
        let (kept, unfinished) = self.files().map_err(|e| failed("look into", &self.0, e))?;
        let too_many = kept.len().saturating_sub(BACKUPS_KEPT);
        // What an earlier process has not finished is of no use to anyone.
        for old in kept.iter().take(too_many).chain(&unfinished) {
            fs::remove_file(old).map_err(|e| failed("remove the old backup", old, e))?;
        }
        Ok(())
    }

    /// The newest backup that is there.
    pub(crate) fn newest(&self) -> Option<PathBuf> {
        self.files().ok()?.0.pop()
    }

    /// The backups, oldest first, and those that were never finished. Whatever else is there is left alone.
    fn files(&self) -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
        let (mut kept, mut unfinished) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let Some(name) = name.strip_prefix(BEGINS) else { continue };
            if name.ends_with(ENDS) {
                kept.push(path);
            } else if name.strip_suffix(UNFINISHED).is_some_and(|name| name.ends_with(ENDS)) {
                unfinished.push(path);
            }
        }
        kept.sort();
        Ok((kept, unfinished))
    }
}

/// Writes a file durably under another name first, and then gives it its own.
pub(crate) fn write_whole(fresh: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> (Place, BackupFolder) {
            let path = std::env::temp_dir().join(format!("weft-backup-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).expect("the temporary folder can be written");
            let folder = BackupFolder::beside(&path.join("map.redb"));
            (Place(path), folder)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(self.0.join("backups")).expect("it is there");
            let mut names: Vec<String> =
                entries.map(|e| e.expect("readable").file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_day_of_backups_is_kept_and_nothing_else_is_touched() {
        let (place, folder) = Place::new("rotate");
        folder.write(MapVersion(9), b"nine").expect("written");
        for name in ["map-00000000000000000001.weftmap.new", "mine.weftmap", "map-notes.txt"] {
            fs::write(place.0.join("backups").join(name), b"x").expect("written");
        }
        for version in 10..=40 {
            folder.write(MapVersion(version), b"more").expect("written");
        }
        let names = place.names();
        assert_eq!(names.len(), BACKUPS_KEPT + 2, "{names:?}");
        assert_eq!(names[0], "map-00000000000000000017.weftmap", "the oldest are gone: {names:?}");
        assert_eq!(names[BACKUPS_KEPT - 1], "map-00000000000000000040.weftmap");
        assert_eq!(names[BACKUPS_KEPT..], ["map-notes.txt", "mine.weftmap"], "not the manager's");
    }

    #[test]
    fn what_cannot_be_written_is_told_and_leaves_the_others_as_they_are() {
        let (place, folder) = Place::new("refused");
        fs::write(place.0.join("backups"), b"no folder").expect("written");
        let why = folder.write(MapVersion(1), b"one").expect_err("a file is in the way");
        assert!(why.contains("cannot make the folder") && why.contains("backups"), "{why}");
        fs::remove_file(place.0.join("backups")).expect("removed");
        folder.write(MapVersion(1), b"one").expect("written");
        // A folder in the place of the file: it can be written beside, and not be put in its place.
        fs::create_dir(place.0.join("backups/map-00000000000000000002.weftmap")).expect("made");
        let why = folder.write(MapVersion(2), b"two").expect_err("a folder is in the way");
        assert!(why.contains("cannot write") && why.contains("map-00000000000000000002"), "{why}");
        let names = place.names();
        assert_eq!(names.len(), 2, "nothing unfinished stays: {names:?}");
        assert_eq!(fs::read(place.0.join("backups").join(&names[0])).expect("read"), b"one");
    }
}
