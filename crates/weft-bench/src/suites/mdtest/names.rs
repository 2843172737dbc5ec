//! What one rank does in one phase of mdtest: the same operation on each of the items of a rank.

use super::tree::{Item, Tree};
use crate::BenchError;
use crate::suites::content::{Buffer, Content};
use crate::suites::failed;
use crate::suites::message::PhaseReport;
use crate::suites::mix::Shuffle;
use crate::suites::rank::{Conductor, now_ns};
use crate::suites::stonewall::Stonewall;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// An operation that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Folders that are items are made.
    DirectoryCreation,
    /// Their attributes are asked for.
    DirectoryStat,
    /// They get another name.
    DirectoryRename,
    /// They are removed.
    DirectoryRemoval,
    /// Files are made, and written.
    FileCreation,
    /// Their attributes are asked for.
    FileStat,
    /// They are opened, read and closed.
    FileRead,
    /// They are removed.
    FileRemoval,
    /// The folders of trees are made.
    TreeCreation,
    /// They are removed.
    TreeRemoval,
}

impl Operation {
    /// In a table.
    pub fn words(self) -> &'static str {
        match self {
            Operation::DirectoryCreation => "Directory creation",
            Operation::DirectoryStat => "Directory stat",
            Operation::DirectoryRename => "Directory rename",
            Operation::DirectoryRemoval => "Directory removal",
            Operation::FileCreation => "File creation",
            Operation::FileStat => "File stat",
            Operation::FileRead => "File read",
            Operation::FileRemoval => "File removal",
            Operation::TreeCreation => "Tree creation",
            Operation::TreeRemoval => "Tree removal",
        }
    }

    /// What items it is about; none for trees.
    pub(crate) fn item(self) -> Option<Item> {
        match self {
            Operation::TreeCreation | Operation::TreeRemoval => None,
            Operation::DirectoryCreation
            | Operation::DirectoryStat
            | Operation::DirectoryRename
            | Operation::DirectoryRemoval => Some(Item::Directory),
            _ => Some(Item::File),
        }
    }
}

/// A phase, as one rank carries it out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MdtestOrder {
    pub(crate) operation: Operation,
    pub(crate) tree: Tree,
    /// The folder of the repetition.
    pub(crate) top: PathBuf,
    /// Whose items it works on.
    pub(crate) rank: u32,
    /// Whether folders have been renamed before.
    pub(crate) is_renamed: bool,
    /// Bytes that a new file gets, and that are read of each, at the most.
    pub(crate) write_bytes: u64,
    pub(crate) read_bytes: u64,
    /// Sync each file before it is closed.
    pub(crate) fsync: bool,
    /// Compare what is read with what was written.
    pub(crate) checks: bool,
    pub(crate) seed: u64,
    /// The order in which items are asked for, if it is not that of their making.
    pub(crate) order: Option<u64>,
    /// After this many nanoseconds, all ranks go on until they have done as much as the fastest of them.
    pub(crate) deadline_ns: Option<u64>,
}

/// Carries out a phase.
///
/// # Errors
/// Those of the operating system, with the path; or if the conductor is gone.
pub(crate) fn carry_out(order: &MdtestOrder, conductor: &mut Conductor) -> Result<PhaseReport, BenchError> {
    let folders = order.tree.paths(&order.top, order.rank);
    match order.operation.item() {
        Some(item) => of_items(order, item, &folders, conductor),
        None => of_tree(order, &folders, conductor),
    }
}

fn of_tree(
    order: &MdtestOrder,
    folders: &[PathBuf],
    conductor: &mut Conductor,
) -> Result<PhaseReport, BenchError> {
    conductor.barrier(0)?;
    let mut report = PhaseReport { began_ns: now_ns(), ..PhaseReport::default() };
    let all = folders.len() as u64;
    let mut one = |path: &Path, action: &'static str, act: fn(&Path) -> io::Result<()>| {
        act(path).map_err(failed(action, path))?;
        report.operations += 1;
        conductor.progress(now_ns(), report.operations, all)
    };
    match order.operation {
        Operation::TreeCreation => {
            folders.iter().try_for_each(|path| one(path, "create", |p| fs::create_dir(p)))?
        }
        _ => folders.iter().rev().try_for_each(|path| one(path, "remove", |p| fs::remove_dir(p)))?,
    }
    Ok(report.ended())
}

fn of_items(
    order: &MdtestOrder,
    item: Item,
    folders: &[PathBuf],
    conductor: &mut Conductor,
) -> Result<PhaseReport, BenchError> {
    let count = order.tree.items;
    let shuffle = order.order.filter(|_| order.operation.is_asked()).map(|seed| Shuffle::new(count, seed));
    let mut files = Files::new(order)?;
    conductor.barrier(0)?;
    let mut report = PhaseReport { began_ns: now_ns(), ..PhaseReport::default() };
    let mut stonewall = Stonewall::new(order.deadline_ns, true, count);
    while stonewall.goes_on(report.operations, conductor)? {
        let place = report.operations;
        let number = shuffle.map_or(place, |shuffle| shuffle.at(place));
        let folder = &folders[order.tree.folder_of(number) as usize];
        let mut name = item.name(order.rank, number);
        let plain = folder.join(&name);
        name.push_str(".moved");
        let moved = || folder.join(&name);
        let path = if order.is_renamed && item == Item::Directory { moved() } else { plain };
        match order.operation {
            Operation::DirectoryCreation => fs::create_dir(&path).map_err(failed("create", &path))?,
            Operation::DirectoryStat | Operation::FileStat => {
                fs::symlink_metadata(&path).map(drop).map_err(failed("look at", &path))?;
            }
            Operation::DirectoryRename => fs::rename(&path, moved()).map_err(failed("rename", &path))?,
            Operation::DirectoryRemoval => fs::remove_dir(&path).map_err(failed("remove", &path))?,
            Operation::FileCreation => files.create(&path, number)?,
            Operation::FileRead => files.read(&path, number, &mut report)?,
            _ => fs::remove_file(&path).map_err(failed("remove", &path))?,
        }
        report.operations += 1;
        stonewall.progress(report.operations, conductor)?;
    }
    Ok(report.ended())
}

impl Operation {
    /// Whose items a rank works on, which is some strides away: so a machine does not find in its memory
    /// what it has made or asked for before.
    pub(crate) fn whose(self, rank: u32, stride: u32, ranks: u32) -> u32 {
        let strides = match self {
            Operation::DirectoryStat | Operation::FileStat => 1,
            Operation::FileRead => 2,
            Operation::DirectoryRemoval | Operation::FileRemoval => 3,
            _ => 0,
        };
        let far = u64::from(stride) * strides;
        ((u64::from(rank) + far) % u64::from(ranks)) as u32
    }

    /// Whether it asks for what is there, in any order.
    fn is_asked(self) -> bool {
        matches!(self, Operation::DirectoryStat | Operation::FileStat | Operation::FileRead)
    }
}

/// What writes and reads files.
struct Files<'a> {
    order: &'a MdtestOrder,
    content: Content,
    buffer: Buffer,
}

impl Files<'_> {
    fn new(order: &MdtestOrder) -> Result<Files<'_>, BenchError> {
        let size =
            |bytes: u64| usize::try_from(bytes).map_err(|e| BenchError::Invalid { what: e.to_string() });
        let content = Content::new(order.seed, 0, size(order.write_bytes.max(order.read_bytes))?);
        Ok(Files { order, content, buffer: Buffer::new(size(order.read_bytes)?) })
    }

    /// Each file of each rank has a content of its own.
    fn choose(&mut self, number: u64) {
        self.content.set_file(u64::from(self.order.rank) << 40 | number);
    }

    fn create(&mut self, path: &Path, number: u64) -> Result<(), BenchError> {
        let mut file = File::create_new(path).map_err(failed("create", path))?;
        if self.order.write_bytes > 0 {
            self.choose(number);
            let bytes = self.content.at(0, self.order.write_bytes as usize);
            file.write_all(bytes).map_err(failed("write to", path))?;
        }
        match self.order.fsync {
            true => file.sync_all().map_err(failed("sync", path)),
            false => Ok(()),
        }
    }

    fn read(&mut self, path: &Path, number: u64, report: &mut PhaseReport) -> Result<(), BenchError> {
        let mut file = File::open(path).map_err(failed("open", path))?;
        let wanted = self.order.read_bytes as usize;
        let mut length = 0;
        while length < wanted {
            match file.read(&mut self.buffer.all()[length..wanted]).map_err(failed("read", path))? {
                0 => break,
                more => length += more,
            }
        }
        report.bytes += length as u64;
        if !self.order.checks {
            return Ok(());
        }
        self.choose(number);
        let found = &self.buffer.all()[..length];
        let wrong = self.content.wrong(0, found).map(|wrong| {
            format!("byte {}: expected 0x{:02x}, found 0x{:02x}", wrong.offset, wrong.expected, wrong.found)
        });
        let is_short = (length as u64) < self.order.read_bytes.min(self.order.write_bytes);
        let wrong = wrong.or_else(|| is_short.then(|| format!("it ends at byte {length}")));
        if let Some(wrong) = wrong {
            report.wrong += 1;
            report.first_wrong.get_or_insert_with(|| format!("{}: {wrong}", path.display()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::tests::tree;
    use super::*;
    use crate::suites::rank::tests::alone;

    struct Bed {
        order: MdtestOrder,
    }

    impl Bed {
        fn new(name: &str) -> Bed {
            let top = std::env::temp_dir().join(format!("weft-bench-{name}-{}", std::process::id()));
            fs::create_dir(&top).expect("there is room");
            let order = MdtestOrder {
                operation: Operation::TreeCreation,
                tree: tree(),
                top,
                rank: 1,
                is_renamed: false,
                write_bytes: 3901,
                read_bytes: 3901,
                fsync: false,
                checks: true,
                seed: 5,
                order: Some(3),
                deadline_ns: None,
            };
            Bed { order }
        }

        fn run(&mut self, operation: Operation) -> Result<PhaseReport, BenchError> {
            self.order.operation = operation;
            carry_out(&self.order, &mut alone(&[0]))
        }

        fn done(&mut self, operation: Operation) -> u64 {
            self.run(operation).unwrap_or_else(|error| panic!("{operation:?}: {error:?}")).operations
        }
    }

    impl Drop for Bed {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.order.top);
        }
    }

    #[test]
    fn each_phase_leaves_what_the_next_one_needs() {
        let mut bed = Bed::new("mdtest-phases");
        assert_eq!(bed.done(Operation::TreeCreation), 13);
        for operation in [Operation::DirectoryCreation, Operation::DirectoryStat, Operation::DirectoryRename]
        {
            assert_eq!(bed.done(operation), 26, "{operation:?}");
        }
        assert!(bed.run(Operation::DirectoryStat).is_err(), "they have other names now");
        bed.order.is_renamed = true;
        assert_eq!(bed.done(Operation::DirectoryStat), 26);
        assert_eq!(bed.done(Operation::DirectoryRemoval), 26);
        for operation in [Operation::FileCreation, Operation::FileStat, Operation::FileRead] {
            assert_eq!(bed.done(operation), 26, "{operation:?}");
        }
        assert!(bed.run(Operation::TreeRemoval).is_err(), "it is not empty");
        assert_eq!(bed.done(Operation::FileRemoval), 26);
        assert_eq!(bed.done(Operation::TreeRemoval), 13);
        assert_eq!(fs::read_dir(&bed.order.top).expect("there").count(), 0);
    }

    #[test]
    fn behind_the_deadline_as_many_are_made_as_the_fastest_rank_has_made() {
        let mut bed = Bed::new("mdtest-deadline");
        bed.done(Operation::TreeCreation);
        bed.order.operation = Operation::FileCreation;
        bed.order.deadline_ns = Some(0);
        let report = carry_out(&bed.order, &mut alone(&[0, 7])).expect("there is room");
        assert_eq!(report.operations, 7, "another rank has made 7");
    }

    #[test]
    fn items_are_those_of_other_ranks_for_each_operation() {
        let whose = |operation: Operation| [0, 2].map(|rank| operation.whose(rank, 1, 3));
        assert_eq!(whose(Operation::FileCreation), [0, 2]);
        assert_eq!(whose(Operation::FileStat), [1, 0]);
        assert_eq!(whose(Operation::FileRead), [2, 1]);
        assert_eq!(whose(Operation::FileRemoval), [0, 2], "three strides are a whole round");
        assert_eq!(Operation::FileRead.whose(1, 0, 3), 1, "without a stride they are its own");
    }

    #[test]
    fn a_file_that_was_changed_or_cut_off_is_noticed() {
        let mut bed = Bed::new("mdtest-wrong");
        bed.done(Operation::TreeCreation);
        bed.done(Operation::FileCreation);
        let path = bed.order.top.join("tree.0").join(Item::File.name(1, 1));
        let mut bytes = fs::read(&path).expect("there");
        assert_eq!(bytes.len(), 3901);
        bytes[3000] ^= 1;
        fs::write(&path, &bytes).expect("ours");
        let report = bed.run(Operation::FileRead).expect("it can be read");
        let first = report.first_wrong.expect("it is noticed");
        assert!(report.wrong == 1 && first.contains("file.1.1: byte 3000"), "{first}");
        bytes[3000] ^= 1;
        fs::write(&path, &bytes[..100]).expect("ours");
        let report = bed.run(Operation::FileRead).expect("it can be read");
        assert!(report.first_wrong.expect("it is noticed").contains("it ends at byte 100"));
    }
}
