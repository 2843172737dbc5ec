//! How much the phases of IO500 may write where the stonewall comes too late: numbers, without any I/O.

use super::conduct::Io500Options;
use super::phase::Form;
use crate::BenchError;
use crate::suites::ior::Layout;
use crate::suites::mdtest::Tree;
use crate::suites::space::{Room, size_words};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Bytes of a transfer of ior-hard.
pub(super) const HARD_TRANSFER_BYTES: u64 = 47_008;

/// Bytes by which file systems give space to files of mdtest-hard, mostly.
const SPACE_UNIT: u64 = 4096;

/// The most of everything for each process, by the room that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Io500Limits {
    /// Processes.
    pub processes: u32,
    /// Bytes of a transfer of ior-easy.
    pub easy_transfer_bytes: u64,
    /// Transfers of ior-easy: half of the space.
    pub easy_transfers: u64,
    /// Transfers of ior-hard: a quarter of the space.
    pub hard_transfers: u64,
    /// Empty files of mdtest-easy.
    pub easy_files: u64,
    /// Files of mdtest-hard: a quarter of the space.
    pub hard_files: u64,
    /// Bytes that all of it takes at the most.
    pub space: u64,
}

impl Io500Limits {
    /// For this many processes, in a folder with this much room.
    ///
    /// # Errors
    /// [`BenchError::NoRoom`] if there is not enough for one transfer and one file of each process.
    pub(super) fn new(options: &Io500Options, processes: u32, room: Room) -> Result<Io500Limits, BenchError> {
        let space = options.space.unwrap_or(room.bytes / 2);
        let ranks = u64::from(processes);
        // Half of the files that there may be, and half of those for each form of mdtest.
        let files = room.inodes.map_or(u64::MAX, |inodes| inodes / 4 / ranks).min(options.files_max);
        let limits = Io500Limits {
            processes,
            easy_transfer_bytes: options.transfer_bytes,
            easy_transfers: space / 2 / ranks / options.transfer_bytes,
            hard_transfers: space / 4 / ranks / HARD_TRANSFER_BYTES,
            easy_files: files,
            hard_files: files.min(space / 4 / ranks / SPACE_UNIT),
            space,
        };
        let refused = |wanted: String, left: String| BenchError::NoRoom {
            folder: options.folder.clone(),
            wanted,
            left,
        };
        let least = ranks * (2 * options.transfer_bytes).max(4 * HARD_TRANSFER_BYTES);
        if space > room.bytes {
            return Err(refused(size_words(space), size_words(room.bytes)));
        }
        if space < least {
            let left =
                format!("{}, of which the test may use {},", size_words(room.bytes), size_words(space));
            return Err(refused(size_words(least), left));
        }
        match room.inodes.filter(|_| files == 0) {
            Some(left) => Err(refused(format!("{} files and folders", 4 * ranks), left.to_string())),
            None => Ok(limits),
        }
    }

    /// The files of IOR.
    pub(super) fn layout(&self, form: Form, top: &Path) -> Layout {
        let is_easy = form == Form::Easy;
        let file: PathBuf = if is_easy { "ior-easy/file" } else { "ior-hard/file.0" }.into();
        let transfer = if is_easy { self.easy_transfer_bytes } else { HARD_TRANSFER_BYTES };
        Layout {
            file: top.join(file),
            is_file_per_process: is_easy,
            ranks: self.processes,
            block_bytes: if is_easy { self.easy_transfers * transfer } else { transfer },
            transfer_bytes: transfer,
            segments: if is_easy { 1 } else { self.hard_transfers },
            is_random: false,
        }
    }

    /// The folders of mdtest, with this many files of each process.
    pub(super) fn tree(&self, form: Form, files: u64) -> Tree {
        let is_unique = form == Form::Easy;
        Tree { depth: 0, branch: 1, is_leaf_only: false, is_unique, items: files, ranks: self.processes }
    }
}

#[cfg(test)]
mod tests {
    use super::super::conduct::tests::options;
    use super::*;

    const ROOM: Room = Room { bytes: 64 << 30, inodes: None };

    #[test]
    fn what_is_written_fits_into_half_of_the_room() {
        let limits = Io500Limits::new(&options(), 2, ROOM).expect("there is room");
        assert_eq!((limits.space, limits.easy_transfers), (32 << 30, 4096));
        assert_eq!((limits.hard_transfers, limits.easy_files), ((4 << 30) / 47_008, 1_000_000));
        assert_eq!(limits.hard_files, 1_000_000);
        let top = Path::new("/top");
        let easy = limits.layout(Form::Easy, top);
        assert_eq!((easy.transfers(), easy.bytes()), (4096, 16 << 30));
        assert_eq!(easy.path(1), Path::new("/top/ior-easy/file.00000001"));
        let hard = limits.layout(Form::Hard, top);
        assert!(hard.transfers() == limits.hard_transfers && hard.bytes() <= 8 << 30, "{hard:?}");
        assert_eq!(limits.tree(Form::Easy, 5).trees(), 2);
        assert_eq!(limits.tree(Form::Hard, 5).trees(), 1);
    }

    #[test]
    fn few_inodes_are_few_files_and_too_little_room_is_refused() {
        let few = Room { bytes: 1 << 30, inodes: Some(800) };
        let limits = Io500Limits::new(&options(), 2, few).expect("there is room");
        assert_eq!((limits.easy_files, limits.hard_files), (100, 100));
        for room in [Room { bytes: 1 << 20, inodes: None }, Room { bytes: 1 << 30, inodes: Some(7) }] {
            let refused = Io500Limits::new(&options(), 2, room).expect_err("it is too little");
            assert!(refused.to_string().contains("are needed"), "{refused}");
        }
        let wanted = Io500Options { space: Some(65 << 30), ..options() };
        let refused = Io500Limits::new(&wanted, 2, ROOM).expect_err("there is not so much");
        assert!(refused.to_string().contains("65 GiB are needed, 64 GiB are free"), "{refused}");
    }
}
