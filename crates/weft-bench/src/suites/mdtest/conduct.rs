//! A test of mdtest from its first process to its last figure: what is asked for, what that needs, and
//! which phases follow each other.

use super::names::{MdtestOrder, Operation};
use super::outcome::{MdtestFigures, MdtestResult};
use super::tree::{Item, Tree, folders_to, is_given};
use crate::BenchError;
use crate::outcome::count;
use crate::report::grouped;
use crate::suites::facts::processes_text;
use crate::suites::failed;
use crate::suites::message::Order;
use crate::suites::mix::mix;
use crate::suites::ranks::{Ranks, RanksOptions};
use crate::suites::space::{TestedFolder, insist_on, room, size_words};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Folders of a tree: each rank has their paths in memory.
const FOLDERS_MAX: u64 = 10_000_000;

/// Bytes that are written to a file, or read of it: each rank has as many in memory.
const FILE_BYTES_KEPT_MAX: u64 = 1 << 30;

/// Bytes by which file systems give space, mostly.
const SPACE_UNIT: u64 = 4096;

/// The file in the folder of a repetition that says what made it.
const MARK: &str = ".weft-mdtest.json";

/// Which phases run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MdtestPhases {
    /// Items are made, and the trees before.
    pub create: bool,
    /// Their attributes are asked for.
    pub stat: bool,
    /// Files are read.
    pub read: bool,
    /// Items are removed, and the trees afterwards.
    pub remove: bool,
}

impl MdtestPhases {
    /// All of them.
    pub const ALL: MdtestPhases = MdtestPhases { create: true, stat: true, read: true, remove: true };
}

/// What to run, on what.
#[derive(Clone, Debug)]
pub struct MdtestOptions {
    /// Where ranks come from.
    pub ranks: RanksOptions,
    /// The folder in which all is made; it is made if it is not there.
    pub folder: PathBuf,
    /// Numbers of processes, each of which is measured; at least one.
    pub processes: Vec<u32>,
    /// Levels of a tree below its root.
    pub depth: u32,
    /// Folders in each folder above the lowest level.
    pub branch: u32,
    /// Only folders of the lowest level have items.
    pub is_leaf_only: bool,
    /// Each rank has a tree of its own.
    pub is_unique: bool,
    /// How many items each rank makes.
    pub items: Items,
    /// Whether folders and files are items.
    pub directories: bool,
    /// See `directories`.
    pub files: bool,
    /// How often all of it is done.
    pub repetitions: u32,
    /// Which phases run.
    pub phases: MdtestPhases,
    /// Bytes that each new file gets.
    pub write_bytes: u64,
    /// The most bytes that are read of each file.
    pub read_bytes: u64,
    /// Sync each file before it is closed.
    pub fsync: bool,
    /// Compare what is read with what was written.
    pub checks: bool,
    /// Whose items a rank looks at, reads and removes: those of the rank this many, twice and three times so
    /// many further on.
    pub stride: u32,
    /// Ask for items in an order that looks random, by this seed.
    pub order: Option<u64>,
    /// How long to wait before each repetition.
    pub delay: Duration,
}

/// How many items each rank makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Items {
    /// This many in all folders together.
    InAll(u64),
    /// This many in each folder.
    PerFolder(u64),
}

/// What a test would do, and what that takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MdtestPlan {
    /// Where.
    pub folder: TestedFolder,
    /// Processes: the largest number.
    pub processes: u32,
    /// Trees, and folders of each.
    pub trees: u64,
    /// See `trees`.
    pub folders_per_tree: u64,
    /// Files of each process, and as many folders.
    pub items_per_process: u64,
    /// The most files and folders that are there at a time.
    pub entries: u64,
    /// Bytes that files have at a time, rounded up to whole blocks.
    pub bytes: u64,
    /// Bytes that the folder has left.
    pub bytes_free: u64,
    /// Whether they stay.
    pub keeps: bool,
}

impl MdtestPlan {
    /// As text for people.
    pub fn text(&self) -> String {
        let fate = if self.keeps { "which stay" } else { "which are removed in the end" };
        format!(
            "folder   {}\nentries  {} files and folders at a time, {fate}\n         {} of {} folders each, \
             {} items of each of {}\nspace    {} at a time, of {} that are free\n",
            self.folder.text(),
            grouped(self.entries as f64),
            count(self.trees as usize, "tree"),
            grouped(self.folders_per_tree as f64),
            grouped(self.items_per_process as f64),
            processes_text(self.processes),
            size_words(self.bytes),
            size_words(self.bytes_free)
        )
    }
}

impl MdtestOptions {
    fn check(&self) -> Result<(), BenchError> {
        let folders = folders_to(self.depth, self.branch);
        let what = if let Some(what) = self.ranks.what_is_wrong_with("--processes", &self.processes) {
            what
        } else if self.branch == 0 || self.repetitions == 0 {
            "-b and -i have to be at least 1".to_owned()
        } else if folders.is_none_or(|folders| folders > FOLDERS_MAX) {
            let (depth, branch) = (self.depth, self.branch);
            format!("a tree with -z {depth} and -b {branch} has more than {FOLDERS_MAX} folders")
        } else if self.write_bytes.max(self.read_bytes) > FILE_BYTES_KEPT_MAX {
            format!("-w and -e go up to {} bytes", FILE_BYTES_KEPT_MAX)
        } else if self.items_of(1).is_none() {
            "-I and the folders of a tree are more items than can be counted".to_owned()
        } else if self.checks && self.write_bytes == 0 {
            "-X checks what is read, and -w says that nothing is written".to_owned()
        } else {
            return Ok(());
        };
        Err(BenchError::Invalid { what })
    }

    /// Items of each rank.
    fn items_of(&self, ranks: u32) -> Option<u64> {
        let tree = Tree { items: 0, ..self.tree_with(0, ranks) };
        let items = match self.items {
            Items::InAll(items) => items,
            Items::PerFolder(items) => items.checked_mul(tree.folders_with_items())?,
        };
        items.checked_mul(1 << 20).map(|_| items)
    }

    fn tree_with(&self, items: u64, ranks: u32) -> Tree {
        Tree {
            depth: self.depth,
            branch: self.branch,
            is_leaf_only: self.is_leaf_only,
            is_unique: self.is_unique,
            items,
            ranks,
        }
    }

    fn tree(&self, ranks: u32) -> Tree {
        self.tree_with(self.items_of(ranks).expect("it was checked"), ranks)
    }

    /// The kinds of items, in the order in which they are tested.
    fn kinds(&self) -> Vec<Item> {
        let kinds = [(self.directories, Item::Directory), (self.files, Item::File)];
        kinds.into_iter().filter(|(is_tested, _)| *is_tested).map(|(_, item)| item).collect()
    }

    /// The folder of a repetition.
    fn top(&self, iteration: u32) -> PathBuf {
        self.folder.join(format!("weft-mdtest.{iteration}"))
    }

    /// The folder, or the one above it that is there.
    fn existing(&self) -> &Path {
        let is_there = |folder: &&Path| folder.as_os_str().is_empty() || folder.exists();
        let found = self.folder.ancestors().find(is_there).unwrap_or(Path::new("."));
        if found.as_os_str().is_empty() { Path::new(".") } else { found }
    }

    /// What the test would do.
    ///
    /// # Errors
    /// [`BenchError::Invalid`], and those of the operating system.
    pub fn plan(&self) -> Result<MdtestPlan, BenchError> {
        self.check()?;
        let processes = self.processes.iter().copied().max().unwrap_or(1);
        let tree = self.tree(processes);
        let of_kind = tree.items * u64::from(processes);
        let kinds = if self.phases.remove { 1 } else { self.kinds().len() as u64 };
        let kinds = kinds.min(self.kinds().len() as u64);
        let times = if self.phases.remove { 1 } else { u64::from(self.repetitions) };
        let files = if self.files { of_kind } else { 0 };
        let file_bytes = self.write_bytes.div_ceil(SPACE_UNIT).saturating_mul(SPACE_UNIT);
        let is_made = u64::from(self.phases.create);
        let entries = tree.folders() * tree.trees() + of_kind.saturating_mul(kinds);
        let existing = self.existing();
        Ok(MdtestPlan {
            folder: TestedFolder::look(existing),
            processes,
            trees: tree.trees(),
            folders_per_tree: tree.folders(),
            items_per_process: tree.items,
            entries: entries.saturating_mul(times * is_made),
            bytes: files.saturating_mul(file_bytes).saturating_mul(times * is_made),
            bytes_free: room(existing)?.bytes,
            keeps: !self.phases.remove,
        })
    }
}

/// Runs the test: starts its processes or waits for them, measures, and removes what it has made, also if
/// something fails or somebody asks for the end. `tell` gets a line about what is being done.
///
/// # Errors
/// [`BenchError::Invalid`]; [`BenchError::NoRoom`] and [`BenchError::NotOurs`] before anything was made;
/// what a rank says that fails; [`BenchError::Stopped`].
pub fn mdtest(options: &MdtestOptions, tell: &mut dyn FnMut(&str)) -> Result<MdtestFigures, BenchError> {
    let plan = options.plan()?;
    insist_on(options.existing(), plan.bytes, plan.entries)?;
    if options.phases.create
        && let Some(path) = (0..options.repetitions).map(|n| options.top(n)).find(|p| p.exists())
    {
        return Err(BenchError::NotOurs { path });
    }
    let is_new = !options.folder.exists();
    fs::create_dir_all(&options.folder).map_err(failed("create", &options.folder))?;
    let size = options.processes.iter().copied().max().unwrap_or(1);
    let gathered = Ranks::gather(&options.ranks, size, &options.folder);
    let folder = TestedFolder::look(&options.folder);
    let measured = gathered.and_then(|ranks| {
        let mut figures = MdtestFigures::new(options, folder, ranks.hosts());
        let mut test = Test { options, ranks, figures: &mut figures, tell };
        let measured = options.processes.iter().try_for_each(|processes| test.measure(*processes));
        drop(test);
        measured.map(|()| figures)
    });
    if measured.is_err() && options.phases.create {
        if options.ranks.launched.is_some() {
            // Those on other machines hear of it when they say how far they have come.
            std::thread::sleep(Duration::from_nanos(2 * crate::suites::rank::PROGRESS_EVERY_NS));
        }
        tell("removing what was made");
        (0..options.repetitions).for_each(|iteration| clean_up(&options.top(iteration)));
    }
    if is_new {
        // Something may have been left in it.
        let _ = fs::remove_dir(&options.folder);
    }
    measured
}

/// What is said in the folder of a repetition, so that later runs know what is in it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Mark {
    tree: Tree,
    kinds: Vec<Item>,
    seed: u64,
    write_bytes: u64,
}

/// A test that runs.
struct Test<'a> {
    options: &'a MdtestOptions,
    ranks: Ranks,
    figures: &'a mut MdtestFigures,
    tell: &'a mut dyn FnMut(&str),
}

impl Test<'_> {
    /// All repetitions with one number of processes.
    fn measure(&mut self, processes: u32) -> Result<(), BenchError> {
        let options = self.options;
        let mut result = MdtestResult::new(processes, &options.tree(processes));
        for iteration in 0..options.repetitions {
            self.ranks.pause(options.delay)?;
            let mark = Mark {
                tree: options.tree(processes),
                kinds: options.kinds(),
                seed: mix(iteration.into()),
                write_bytes: options.write_bytes,
            };
            let top = options.top(iteration);
            begin(&top, &mark, options.phases.create)?;
            self.repetition(&mark, iteration, &mut result)?;
            if options.phases.remove {
                end(&top)?;
            }
        }
        self.figures.results.push(result);
        Ok(())
    }

    fn repetition(
        &mut self,
        mark: &Mark,
        iteration: u32,
        result: &mut MdtestResult,
    ) -> Result<(), BenchError> {
        let phases = self.options.phases;
        if phases.create {
            self.phase(Operation::TreeCreation, mark, iteration, false, result)?;
        }
        for kind in self.options.kinds() {
            // Names that later runs expect are not changed.
            let is_whole = phases.create && phases.remove;
            let (create, stat, middle, remove) = match kind {
                Item::Directory => (
                    Operation::DirectoryCreation,
                    Operation::DirectoryStat,
                    is_whole.then_some(Operation::DirectoryRename),
                    Operation::DirectoryRemoval,
                ),
                Item::File => (
                    Operation::FileCreation,
                    Operation::FileStat,
                    phases.read.then_some(Operation::FileRead),
                    Operation::FileRemoval,
                ),
            };
            let chosen = [
                phases.create.then_some(create),
                phases.stat.then_some(stat),
                middle,
                phases.remove.then_some(remove),
            ];
            for operation in chosen.into_iter().flatten() {
                self.phase(operation, mark, iteration, is_whole && operation == remove, result)?;
            }
        }
        match phases.remove {
            true => self.phase(Operation::TreeRemoval, mark, iteration, false, result),
            false => Ok(()),
        }
    }

    /// One phase of all ranks, and its rate.
    fn phase(
        &mut self,
        operation: Operation,
        mark: &Mark,
        iteration: u32,
        is_renamed: bool,
        result: &mut MdtestResult,
    ) -> Result<(), BenchError> {
        let options = self.options;
        let tree = &mark.tree;
        if operation.item().is_some() && tree.items == 0 {
            return Ok(());
        }
        // One tree is made by one rank.
        let ranks = if operation.item().is_none() { tree.trees() as u32 } else { tree.ranks };
        let order = |rank: u32| {
            let whose = operation.whose(rank, options.stride, tree.ranks);
            Order::Mdtest(MdtestOrder {
                operation,
                tree: tree.clone(),
                top: options.top(iteration),
                rank: if operation.item().is_none() { rank } else { whose },
                is_renamed,
                write_bytes: mark.write_bytes,
                read_bytes: options.read_bytes,
                fsync: options.fsync,
                checks: options.checks,
                seed: mark.seed,
                order: options.order,
                deadline_ns: None,
            })
        };
        let what = format!(
            "{} by {} (repetition {} of {})",
            operation.words(),
            processes_text(tree.ranks),
            iteration + 1,
            options.repetitions
        );
        let tell = &mut *self.tell;
        tell(&what);
        let reports =
            self.ranks.phase(ranks, order, &mut |hundredths| tell(&format!("{what}: {hundredths} %")))?;
        let total_s = self.ranks.span_s(&reports);
        result.add(operation, &reports, total_s);
        Ok(())
    }
}

/// Makes the folder of a repetition, or finds the one that an earlier run has left.
fn begin(top: &Path, mark: &Mark, is_created: bool) -> Result<(), BenchError> {
    let file = top.join(MARK);
    if is_created {
        fs::create_dir(top).map_err(failed("create", top))?;
        let text = serde_json::to_vec(mark).expect("a mark serialises");
        return fs::write(&file, text).map_err(failed("write", &file));
    }
    let text = match fs::read(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let what = format!("{} holds no test: make one first with -C, and the same -d", top.display());
            return Err(BenchError::Invalid { what });
        }
        text => text.map_err(failed("read", &file))?,
    };
    let found: Mark = serde_json::from_slice(&text).map_err(|error| failed("read", &file)(error.into()))?;
    let is_there = |kind: &Item| found.kinds.contains(kind);
    if found.tree != mark.tree || !mark.kinds.iter().all(is_there) {
        let what = format!(
            "{} holds another test: {:?} of {:?}, and asked for are {:?} of {:?}",
            top.display(),
            found.tree,
            found.kinds,
            mark.tree,
            mark.kinds
        );
        return Err(BenchError::Invalid { what });
    }
    Ok(())
}

/// Removes the folder of a repetition, which is empty but for its mark.
fn end(top: &Path) -> Result<(), BenchError> {
    let file = top.join(MARK);
    fs::remove_file(&file).map_err(failed("remove", &file))?;
    fs::remove_dir(top).map_err(failed("remove", top))
}

/// Removes all below the folder of a repetition that a test has given its name, and the folder.
fn clean_up(top: &Path) {
    if !top.join(MARK).exists() {
        return;
    }
    let removed =
        remove_given(top).and_then(|()| fs::remove_file(top.join(MARK))).and_then(|()| fs::remove_dir(top));
    if let Err(error) = removed {
        tracing::error!(folder = %top.display(), %error, "what the test has made stays behind");
    }
}

/// Removes all in a folder that a test has given its name.
///
/// # Errors
/// Those of the operating system; [`io::ErrorKind::DirectoryNotEmpty`] if something else is in a folder
/// below.
pub(crate) fn remove_given(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(is_given) {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => {
                remove_given(&entry.path())?;
                fs::remove_dir(entry.path())?;
            }
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn options() -> MdtestOptions {
        MdtestOptions {
            ranks: RanksOptions { program: "weft".into(), words: vec![], launched: None },
            folder: std::env::temp_dir(),
            processes: vec![2],
            depth: 5,
            branch: 5,
            is_leaf_only: false,
            is_unique: false,
            items: Items::PerFolder(10),
            directories: true,
            files: true,
            repetitions: 2,
            phases: MdtestPhases::ALL,
            write_bytes: 0,
            read_bytes: 0,
            fsync: false,
            checks: false,
            stride: 0,
            order: None,
            delay: Duration::ZERO,
        }
    }

    #[test]
    fn a_plan_says_what_is_there_at_a_time() {
        let plan = options().plan().expect("it is valid");
        assert_eq!((plan.folders_per_tree, plan.items_per_process, plan.trees), (3906, 39_060, 1));
        assert_eq!((plan.entries, plan.bytes, plan.keeps), (3906 + 2 * 39_060, 0, false));
        let phases = MdtestPhases { create: true, stat: false, read: false, remove: false };
        let kept = MdtestOptions { phases, write_bytes: 5000, is_unique: true, ..options() };
        let plan = kept.plan().expect("it is valid");
        assert_eq!(plan.entries, 2 * (2 * 3906 + 2 * 2 * 39_060), "both kinds of both repetitions stay");
        assert_eq!((plan.bytes, plan.keeps), (2 * 2 * 39_060 * 8192, true));
        assert!(plan.text().contains("which stay"), "{}", plan.text());
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_option() {
        let refused = |options: MdtestOptions| options.plan().expect_err("it makes no sense").to_string();
        assert!(refused(MdtestOptions { branch: 0, ..options() }).contains("-b"));
        assert!(refused(MdtestOptions { depth: 40, ..options() }).contains("-z 40 and -b 5"));
        assert!(refused(MdtestOptions { processes: vec![1, 0], ..options() }).contains("process"));
        assert!(refused(MdtestOptions { checks: true, ..options() }).contains("-X"));
        assert!(refused(MdtestOptions { items: Items::PerFolder(u64::MAX), ..options() }).contains("-I"));
    }

    #[test]
    fn only_what_a_test_has_named_is_removed() {
        let top = std::env::temp_dir().join(format!("weft-bench-clean-{}", std::process::id()));
        fs::create_dir_all(top.join("tree.0/dir.0.1")).expect("there is room");
        fs::write(top.join("tree.0/file.0.1"), "x").expect("ours");
        fs::write(top.join(MARK), "{}").expect("ours");
        fs::write(top.join("notes"), "x").expect("ours");
        clean_up(&top);
        assert!(top.join("notes").exists() && !top.join("tree.0").exists());
        fs::remove_dir_all(&top).expect("ours");
    }
}
