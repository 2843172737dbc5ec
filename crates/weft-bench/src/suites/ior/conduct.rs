//! A test of IOR from its first process to its last figure: what is asked for, what that needs, and which
//! phases follow each other.

use super::access::{Access, IorOrder};
use super::layout::{Layout, ReadOrder};
use super::outcome::{Checked, IorFigures, IorRow};
use crate::BenchError;
use crate::outcome::{count, size_text};
use crate::suites::content::seed_of;
use crate::suites::facts::processes_text;
use crate::suites::meeting::random_number;
use crate::suites::message::{Order, PhaseReport};
use crate::suites::mix::mix;
use crate::suites::ranks::{Ranks, RanksOptions};
use crate::suites::space::{TestedFolder, insist_on, room, size_words};
use serde::Serialize;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The largest transfer: each rank has one in memory, twice.
const TRANSFER_BYTES_MAX: u64 = 4 << 30;

/// The unit of direct requests, on every file system that is known.
const DIRECT_UNIT: u64 = 512;

/// What to run, on what.
#[derive(Clone, Debug)]
pub struct IorOptions {
    /// Where ranks come from.
    pub ranks: RanksOptions,
    /// The file, or what the names of files of ranks begin with.
    pub file: PathBuf,
    /// Numbers of processes, each of which is measured; at least one.
    pub processes: Vec<u32>,
    /// Bytes of transfers, each of which is measured with each number of processes; at least one.
    pub transfers: Vec<u64>,
    /// Bytes of a block: what a rank has of each segment.
    pub block_bytes: u64,
    /// Segments of a file.
    pub segments: u64,
    /// How often all of it is done.
    pub repetitions: u32,
    /// Whether files are written.
    pub write: bool,
    /// Whether they are read.
    pub read: bool,
    /// Whether they are checked after they were written, and after they were read.
    pub check_write: bool,
    /// See `check_write`.
    pub check_read: bool,
    /// Each rank has a file of its own.
    pub is_file_per_process: bool,
    /// Transfers go to places at random, each place once.
    pub is_random: bool,
    /// Direct requests, past the pages of the kernel.
    pub is_direct: bool,
    /// Sync files before they are closed, in the time that is measured.
    pub fsync: bool,
    /// Sync after each write.
    pub fsync_per_write: bool,
    /// All ranks wait for each other after the open and before the close.
    pub waits_between: bool,
    /// Leave the files.
    pub keep: bool,
    /// Leave them if a check has found something wrong.
    pub keep_wrong: bool,
    /// Write to files that an earlier test has left, instead of to new ones.
    pub use_existing: bool,
    /// End a check at the first transfer that is wrong.
    pub quits: bool,
    /// Whose data each rank reads.
    pub read_order: ReadOrder,
    /// Begin no transfer after this time.
    pub deadline: Option<Duration>,
    /// After the deadline, go on until all ranks have done as much as the fastest.
    pub wears_out: bool,
    /// What decides the content; none: a number that no other run has, or the one of the files that are read.
    pub seed: Option<u64>,
    /// How long to wait before each repetition.
    pub delay: Duration,
    /// Begin no phase after this time.
    pub time_max: Option<Duration>,
}

/// What a test would do, and what that takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IorPlan {
    /// Where.
    pub folder: TestedFolder,
    /// Files that it writes or reads at a time.
    pub files: u32,
    /// The first and the last of them.
    pub names: Vec<PathBuf>,
    /// Bytes that files have at a time, with the largest number of processes.
    pub bytes: u64,
    /// Bytes that the folder has left.
    pub bytes_free: u64,
    /// Bytes that are written in all.
    pub bytes_written: u64,
    /// Bytes that are read in all, also to check them.
    pub bytes_read: u64,
    /// Whether the files stay.
    pub keeps: bool,
}

impl IorPlan {
    /// As text for people.
    pub fn text(&self) -> String {
        let names: Vec<String> = self.names.iter().map(|name| name.display().to_string()).collect();
        let fate = if self.keeps { "which stay" } else { "which are removed in the end" };
        format!(
            "folder   {}\nfiles    {}, {fate}: {}\nspace    {} at a time, of {} that are free\n\
             written  {} in all\nread     {} in all\n",
            self.folder.text(),
            count(self.files as usize, "file"),
            names.join(" to "),
            size_words(self.bytes),
            size_words(self.bytes_free),
            size_words(self.bytes_written),
            size_words(self.bytes_read)
        )
    }
}

/// Why transfers cannot have this size; `None` if they can.
pub(crate) fn what_is_wrong_with_transfers(bytes: u64, is_direct: bool) -> Option<String> {
    if bytes > TRANSFER_BYTES_MAX {
        return Some(format!("-t {} is more than {}", size_text(bytes), size_text(TRANSFER_BYTES_MAX)));
    }
    let is_odd = is_direct && !bytes.is_multiple_of(DIRECT_UNIT);
    is_odd.then(|| format!("-B wants transfers of a multiple of {DIRECT_UNIT} bytes, and -t is {bytes}"))
}

impl IorOptions {
    fn check(&self) -> Result<(), BenchError> {
        let most = self.processes.iter().copied().max().unwrap_or(0);
        let odd = |bytes: &&u64| **bytes == 0 || !self.block_bytes.is_multiple_of(**bytes);
        let refused = |bytes: &u64| what_is_wrong_with_transfers(*bytes, self.is_direct);
        let what = if let Some(what) = self.ranks.what_is_wrong_with("-N", &self.processes) {
            what
        } else if self.segments == 0 || self.block_bytes == 0 || self.repetitions == 0 {
            "-b, -s and -i have to be at least 1".to_owned()
        } else if let Some(transfer) = self.transfers.iter().find(odd) {
            let block = size_text(self.block_bytes);
            format!("-b {block} is not a multiple of -t {}", size_text(*transfer))
        } else if let Some(what) = self.transfers.iter().find_map(refused) {
            what
        } else if self.total(most).is_none() {
            "-b, -s and the number of processes are more bytes than a file can have".to_owned()
        } else if self.file.file_name().is_none() {
            format!("-o {} is not the name of a file", self.file.display())
        } else {
            return Ok(());
        };
        Err(BenchError::Invalid { what })
    }

    /// Bytes of all files with this many processes, if a file can have this many.
    fn total(&self, processes: u32) -> Option<u64> {
        let total = self.block_bytes.checked_mul(self.segments)?.checked_mul(processes.into())?;
        (total <= i64::MAX as u64).then_some(total)
    }

    pub(super) fn layout(&self, processes: u32, transfer_bytes: u64) -> Layout {
        Layout {
            file: self.file.clone(),
            is_file_per_process: self.is_file_per_process,
            ranks: processes,
            block_bytes: self.block_bytes,
            transfer_bytes,
            segments: self.segments,
            is_random: self.is_random,
        }
    }

    fn layouts(&self) -> Vec<Layout> {
        let with = |processes: &u32| {
            let processes = *processes;
            self.transfers.iter().map(move |transfer| self.layout(processes, *transfer))
        };
        self.processes.iter().flat_map(with).collect()
    }

    fn folder(&self) -> &Path {
        self.file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    /// What the test would do.
    ///
    /// # Errors
    /// [`BenchError::Invalid`], and if the folder is not there.
    pub fn plan(&self) -> Result<IorPlan, BenchError> {
        self.check()?;
        let (folder, layouts) = (self.folder(), self.layouts());
        let free = room(folder)?;
        let largest =
            layouts.iter().max_by_key(|layout| layout.bytes()).expect("there is one number at least");
        let names = largest.paths();
        let all = layouts.iter().fold(0_u64, |sum, layout| sum.saturating_add(layout.bytes()));
        let times = |is_done: bool| all.saturating_mul(u64::from(is_done) * u64::from(self.repetitions));
        let reads = [self.read, self.check_write, self.check_read].map(times);
        Ok(IorPlan {
            folder: TestedFolder::look(folder),
            files: names.len() as u32,
            names: match names.as_slice() {
                [first, .., last] => vec![first.clone(), last.clone()],
                _ => names.clone(),
            },
            bytes: largest.bytes(),
            bytes_free: free.bytes,
            bytes_written: times(self.write),
            bytes_read: reads.into_iter().fold(0, u64::saturating_add),
            keeps: self.keep,
        })
    }
}

/// Runs the test: starts its processes or waits for them, measures, and removes the files, also if
/// something fails or somebody asks for the end. `tell` gets a line about what is being done.
///
/// # Errors
/// [`BenchError::Invalid`]; [`BenchError::NoRoom`] and [`BenchError::NotOurs`] before anything was written;
/// what a rank says that fails; [`BenchError::Stopped`].
pub fn ior(options: &IorOptions, tell: &mut dyn FnMut(&str)) -> Result<IorFigures, BenchError> {
    let plan = options.plan()?;
    let leftover: u64 =
        options.layouts().iter().flat_map(Layout::paths).map(|path| length(&path)).max().unwrap_or(0);
    if options.write {
        // Files of an earlier test give their space back.
        insist_on(options.folder(), plan.bytes.saturating_sub(leftover), u64::from(plan.files))?;
    }
    for path in options.layouts().iter().flat_map(Layout::paths) {
        known_or_missing(&path, options.write)?;
    }
    let size = options.processes.iter().copied().max().unwrap_or(1);
    let ranks = Ranks::gather(&options.ranks, size, options.folder())?;
    let mut figures = IorFigures::new(options, plan.folder, ranks.hosts());
    let mut test = Test { options, ranks, began: Instant::now(), figures: &mut figures, tell };
    let measured = options.layouts().iter().try_for_each(|layout| test.measure(layout));
    let is_far = options.ranks.launched.is_some();
    // Ranks here have ended when this is over.
    drop(test);
    let keeps = options.keep || options.keep_wrong && figures.wrong() > 0;
    if !keeps {
        clean_up(options, is_far && measured.is_err());
    }
    measured?;
    figures.summarize();
    Ok(figures)
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Fails if something is in the place of a file that no such test has written.
fn known_or_missing(path: &Path, is_written: bool) -> Result<(), BenchError> {
    let failed = |source| BenchError::File { action: "look at", path: path.to_owned(), source };
    let file = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(found) if found.is_file() => File::open(path).map_err(failed)?,
        Ok(_) => return Err(BenchError::NotOurs { path: path.to_owned() }),
    };
    match seed_of(&file).map_err(failed)? {
        None if is_written => Err(BenchError::NotOurs { path: path.to_owned() }),
        _ => Ok(()),
    }
}

/// Removes the files that are there, if a test has written them.
fn clean_up(options: &IorOptions, ranks_may_go_on: bool) {
    if ranks_may_go_on {
        // Those on other machines hear of it when they say how far they have come.
        std::thread::sleep(Duration::from_nanos(2 * crate::suites::rank::PROGRESS_EVERY_NS));
    }
    for path in options.layouts().iter().flat_map(Layout::paths) {
        // A file whose first bytes are not written yet was made by this run: it was not there before.
        let is_ours =
            options.write || File::open(&path).is_ok_and(|file| matches!(seed_of(&file), Ok(Some(_))));
        if is_ours
            && let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::error!(path = %path.display(), %error, "a test file stays behind");
        }
    }
}

/// A test that runs.
struct Test<'a> {
    options: &'a IorOptions,
    ranks: Ranks,
    began: Instant,
    figures: &'a mut IorFigures,
    tell: &'a mut dyn FnMut(&str),
}

impl Test<'_> {
    /// All repetitions with one size of transfers and one number of processes.
    fn measure(&mut self, layout: &Layout) -> Result<(), BenchError> {
        let options = self.options;
        for iteration in 0..options.repetitions {
            self.ranks.pause(options.delay)?;
            let mut seed = match options.seed {
                Some(seed) => mix(seed.wrapping_add(iteration.into())),
                None => random_number()?,
            };
            // What each rank has written, if a deadline was before the end.
            let mut written = vec![layout.transfers(); layout.ranks as usize];
            if options.write && self.is_in_time() {
                self.prepare(layout)?;
                let reports = self.phase(Access::Write, layout, seed, &written, iteration)?;
                written = reports.iter().map(|report| report.operations).collect();
                if options.check_write {
                    self.phase(Access::Check, layout, seed, &written, iteration)?;
                }
            } else if options.read || options.check_read || options.check_write {
                seed = self.seed_of_files(layout, seed)?;
            }
            if options.check_write && !options.write && self.is_in_time() {
                self.phase(Access::Check, layout, seed, &written, iteration)?;
            }
            if options.read && self.is_in_time() {
                let reports = self.phase(Access::Read, layout, seed, &written, iteration)?;
                written = transposed(options, &self.ranks, layout, reports, &written);
            }
            if options.check_read && self.is_in_time() {
                self.phase(Access::Check, layout, seed, &written, iteration)?;
            }
            let is_kept = options.keep || options.keep_wrong && self.figures.wrong() > 0;
            if !is_kept && layout.paths().iter().all(|path| known_or_missing(path, true).is_ok()) {
                self.phase(Access::Remove, layout, seed, &written, iteration)?;
            }
        }
        Ok(())
    }

    fn is_in_time(&self) -> bool {
        self.options.time_max.is_none_or(|time| self.began.elapsed() < time)
    }

    /// Files of an earlier repetition or test make room.
    fn prepare(&self, layout: &Layout) -> Result<(), BenchError> {
        if self.options.use_existing {
            return Ok(());
        }
        for path in layout.paths() {
            match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(BenchError::File { action: "remove", path, source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The seed of files that another run has written.
    fn seed_of_files(&self, layout: &Layout, seed: u64) -> Result<u64, BenchError> {
        let path = layout.path(0);
        let found = File::open(&path).and_then(|file| seed_of(&file));
        let found =
            found.map_err(|source| BenchError::File { action: "read", path: path.clone(), source })?;
        match found {
            Some(found) => Ok(found),
            // It can be read all the same; what should be in it is not known.
            None if !self.options.check_read && !self.options.check_write => Ok(seed),
            None => Err(BenchError::Unknown { path }),
        }
    }

    /// One phase of all ranks, and its row.
    fn phase(
        &mut self,
        access: Access,
        layout: &Layout,
        seed: u64,
        transfers: &[u64],
        iteration: u32,
    ) -> Result<Vec<PhaseReport>, BenchError> {
        let options = self.options;
        let ranks = match access {
            Access::Remove => layout.paths().len() as u32,
            _ => layout.ranks,
        };
        let to_next = self.ranks.ranks_to_next_machine(layout.ranks);
        let order = |rank: u32| {
            let whose = match access {
                Access::Write | Access::Remove => rank,
                Access::Read | Access::Check => options.read_order.whose(rank, layout.ranks, to_next),
            };
            Order::Ior(options.order(access, layout, whose, seed, transfers[whose as usize]))
        };
        let what = format!(
            "{} {} {} of {} (repetition {} of {})",
            access.word(),
            size_words(layout.bytes()),
            match access {
                Access::Remove => "by".to_owned(),
                _ => format!("in transfers of {} by", size_text(layout.transfer_bytes)),
            },
            processes_text(layout.ranks),
            iteration + 1,
            options.repetitions
        );
        let tell = &mut *self.tell;
        tell(&what);
        let reports =
            self.ranks.phase(ranks, order, &mut |hundredths| tell(&format!("{what}: {hundredths} %")))?;
        match access {
            Access::Check => self.figures.checked.add(&Checked::of(&reports)),
            _ => {
                let total_s = self.ranks.span_s(&reports);
                self.figures.rows.push(IorRow::new(access, layout, iteration, &reports, total_s));
            }
        }
        Ok(reports)
    }
}

/// How many transfers of each rank's data were read, from what each reader says.
fn transposed(
    options: &IorOptions,
    ranks: &Ranks,
    layout: &Layout,
    reports: Vec<PhaseReport>,
    written: &[u64],
) -> Vec<u64> {
    let to_next = ranks.ranks_to_next_machine(layout.ranks);
    let mut read = written.to_vec();
    for (reader, report) in (0..).zip(reports) {
        read[options.read_order.whose(reader, layout.ranks, to_next) as usize] = report.operations;
    }
    read
}

impl IorOptions {
    fn order(&self, access: Access, layout: &Layout, rank: u32, seed: u64, transfers: u64) -> IorOrder {
        let is_measured = matches!(access, Access::Write | Access::Read);
        IorOrder {
            access,
            layout: layout.clone(),
            rank,
            seed,
            transfers,
            is_direct: self.is_direct,
            fsync: self.fsync,
            fsync_per_write: self.fsync_per_write,
            waits_between: self.waits_between && is_measured,
            deadline_ns: self.deadline.filter(|_| is_measured).map(|time| time.as_nanos() as u64),
            // What is read was written, and not more.
            wears_out: self.wears_out && access == Access::Write,
            quits: self.quits,
        }
    }
}
