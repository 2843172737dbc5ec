//! A run of IO500 from its first process to its score: what is asked for, what that needs, and its phases
//! one after the other.

use super::find::{WANTED_BYTES, WANTED_NAME};
use super::limits::{HARD_TRANSFER_BYTES, Io500Limits};
use super::orders::{FOLDERS, Orders, TIMESTAMP};
use super::outcome::{Io500Figures, Io500Find, Io500Result};
use super::phase::{Form, Io500Phase, Task};
use crate::BenchError;
use crate::outcome::size_text;
use crate::report::grouped;
use crate::suites::facts::processes_text;
use crate::suites::failed;
use crate::suites::ior::{Access, what_is_wrong_with_transfers};
use crate::suites::mdtest::{Item, Operation, remove_given};
use crate::suites::meeting::random_number;
use crate::suites::message::PhaseReport;
use crate::suites::ranks::{Ranks, RanksOptions};
use crate::suites::space::{TestedFolder, room, size_words};
use serde::Serialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What to run, on what.
#[derive(Clone, Debug)]
pub struct Io500Options {
    /// Where ranks come from.
    pub ranks: RanksOptions,
    /// The folder in which all is made; it has to be there.
    pub folder: PathBuf,
    /// Numbers of processes, each of which is measured; at least one, and none twice.
    pub processes: Vec<u32>,
    /// How long each of the four write phases goes on, at the least; afterwards all ranks do as much as the
    /// fastest.
    pub stonewall: Duration,
    /// Bytes of a transfer of ior-easy.
    pub transfer_bytes: u64,
    /// Direct requests of ior-easy, past the pages of the kernel.
    pub is_direct: bool,
    /// The most files that each process makes in a phase.
    pub files_max: u64,
    /// The most bytes that all files take; none: half of what is free.
    pub space: Option<u64>,
    /// Compare what is read with what was written, in the time that is measured.
    pub checks: bool,
    /// Leave the files of IOR and all folders.
    pub keep: bool,
}

/// What a run would do, and what that takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Io500Plan {
    /// Where.
    pub folder: TestedFolder,
    /// The folders that are made there, one for each number of processes.
    pub made: Vec<PathBuf>,
    /// The phases of each run, in their order.
    pub phases: Vec<Io500Phase>,
    /// How long each of the four write phases goes on at the least, in seconds.
    pub stonewall_s: u64,
    /// The most that is written, for each number of processes.
    pub limits: Vec<Io500Limits>,
    /// Bytes that the folder has left.
    pub bytes_free: u64,
    /// Whether files stay.
    pub keeps: bool,
}

impl Io500Plan {
    /// As text for people.
    pub fn text(&self) -> String {
        let fate = if self.keeps { "which stays" } else { "which is removed in the end" };
        let names: Vec<&str> = self.phases.iter().map(|phase| phase.name()).collect();
        let mut out = format!(
            "folder   {}\nphases   {}\nwrites   4 phases of {} s or more\n",
            self.folder.text(),
            names.join(", "),
            self.stonewall_s
        );
        for (made, limits) in self.made.iter().zip(&self.limits) {
            out.push_str(&format!(
                "made     {}, {fate}, by {}\n         each at the most: {} of ior-easy, {} of ior-hard, \
                 {} empty files, {} files of {WANTED_BYTES} bytes\n\
                 space    {} at a time, of {} that are free\n",
                made.display(),
                processes_text(limits.processes),
                size_words(limits.easy_transfers * limits.easy_transfer_bytes),
                size_words(limits.hard_transfers * HARD_TRANSFER_BYTES),
                grouped(limits.easy_files as f64),
                grouped(limits.hard_files as f64),
                size_words(limits.space),
                size_words(self.bytes_free)
            ));
        }
        out
    }
}

impl Io500Options {
    fn check(&self) -> Result<(), BenchError> {
        let twice = (1..).zip(&self.processes).find(|(n, number)| self.processes[*n..].contains(number));
        let refused = what_is_wrong_with_transfers(self.transfer_bytes, self.is_direct);
        let what = if let Some(what) = self.ranks.what_is_wrong_with("--processes", &self.processes) {
            what
        } else if let Some((_, number)) = twice {
            format!("--processes has {number} twice: each number is measured once")
        } else if self.stonewall.is_zero() {
            "--stonewall has to be at least 1 second".to_owned()
        } else if self.transfer_bytes == 0 || self.files_max == 0 {
            "-t and --files have to be at least 1".to_owned()
        } else if let Some(what) = refused {
            what
        } else if !self.folder.is_dir() {
            format!("there is no folder {}: make it first, or name another one", self.folder.display())
        } else {
            return Ok(());
        };
        Err(BenchError::Invalid { what })
    }

    /// The folder of a run.
    fn top(&self, processes: u32) -> PathBuf {
        self.folder.join(format!("weft-io500.{processes}"))
    }

    fn limits(&self, processes: u32) -> Result<Io500Limits, BenchError> {
        Io500Limits::new(self, processes, room(&self.folder)?)
    }

    /// What the run would do.
    ///
    /// # Errors
    /// [`BenchError::Invalid`]; [`BenchError::Leftover`] if an earlier run has left its folder;
    /// [`BenchError::NoRoom`]; those of the operating system.
    pub fn plan(&self) -> Result<Io500Plan, BenchError> {
        self.check()?;
        let made: Vec<PathBuf> = self.processes.iter().map(|number| self.top(*number)).collect();
        if let Some(path) = made.iter().find(|path| path.symlink_metadata().is_ok()) {
            return Err(BenchError::Leftover { path: path.clone() });
        }
        let limits = self.processes.iter().map(|number| self.limits(*number));
        Ok(Io500Plan {
            folder: TestedFolder::look(&self.folder),
            made,
            phases: Io500Phase::ALL.to_vec(),
            stonewall_s: self.stonewall.as_secs(),
            limits: limits.collect::<Result<_, _>>()?,
            bytes_free: room(&self.folder)?.bytes,
            keeps: self.keep,
        })
    }

    /// How files are used, a part for each choice.
    pub(super) fn how(&self) -> Vec<String> {
        let checked = if self.checks { "compared while it is read" } else { "not compared" };
        let direct = if self.is_direct { " by direct requests (O_DIRECT)" } else { "" };
        vec![
            format!("stonewall after {} s", self.stonewall.as_secs()),
            format!("ior-easy in transfers of {}{direct}", size_text(self.transfer_bytes)),
            format!("content {checked}"),
        ]
    }
}

/// Runs all phases with each number of processes, and removes what they have made, also if something fails
/// or the user asks for the end. `tell` gets a line about what is being done.
///
/// # Errors
/// [`BenchError::Invalid`]; [`BenchError::NoRoom`] and [`BenchError::Leftover`] before anything was written;
/// what a rank says that fails; [`BenchError::Stopped`].
pub fn io500(options: &Io500Options, tell: &mut dyn FnMut(&str)) -> Result<Io500Figures, BenchError> {
    let plan = options.plan()?;
    let size = options.processes.iter().copied().max().unwrap_or(1);
    let mut ranks = Ranks::gather(&options.ranks, size, &options.folder)?;
    let mut figures = Io500Figures::new(options, plan.folder, ranks.hosts());
    for processes in &options.processes {
        let top = options.top(*processes);
        // Whatever is in it from now on, this run has made.
        fs::create_dir(&top).map_err(failed("create", &top))?;
        match Run::new(options, *processes, &mut ranks, tell).and_then(Run::measure) {
            Ok(result) => figures.results.push(result),
            Err(error) => {
                // Ranks here end with it.
                drop(ranks);
                if !options.keep {
                    tell("removing what was made");
                    clean_up(&top, options.ranks.launched.is_some());
                }
                return Err(error);
            }
        }
        if !options.keep {
            tell("removing what is left");
            remove(&top)?;
        }
    }
    figures.judge();
    Ok(figures)
}

/// One run that is measured.
struct Run<'a> {
    orders: Orders<'a>,
    ranks: &'a mut Ranks,
    tell: &'a mut dyn FnMut(&str),
    result: Io500Result,
}

impl<'a> Run<'a> {
    /// Makes the folders of a run in a folder that exists.
    fn new(
        options: &'a Io500Options,
        processes: u32,
        ranks: &'a mut Ranks,
        tell: &'a mut dyn FnMut(&str),
    ) -> Result<Run<'a>, BenchError> {
        let (limits, top) = (options.limits(processes)?, options.top(processes));
        for folder in FOLDERS.map(|name| top.join(name)) {
            fs::create_dir(&folder).map_err(failed("create", &folder))?;
        }
        let to_next_machine = ranks.ranks_to_next_machine(processes);
        let orders = Orders {
            options,
            limits,
            top,
            seed: random_number()?,
            to_next_machine,
            transfers: [limits.easy_transfers, limits.hard_transfers],
            files: [limits.easy_files, limits.hard_files],
        };
        Ok(Run { orders, ranks, tell, result: Io500Result::new(processes) })
    }

    /// All phases, in their order.
    fn measure(mut self) -> Result<Io500Result, BenchError> {
        for phase in Io500Phase::ALL {
            self.ranks.pause(Duration::ZERO)?;
            self.phase(phase)?;
        }
        self.result.finish();
        Ok(self.result)
    }

    /// One phase of all ranks, and its row.
    fn phase(&mut self, phase: Io500Phase) -> Result<(), BenchError> {
        let (number, processes) = (phase as usize + 1, self.result.processes);
        let all = Io500Phase::ALL.len();
        let what = format!("{} by {} (phase {number} of {all})", phase.name(), processes_text(processes));
        (self.tell)(&what);
        match phase.task() {
            Task::Timestamp => return self.make_timestamp(),
            Task::Mdtest(form, Operation::FileCreation) => self.make_trees(form)?,
            _ => {}
        }
        let (orders, tell) = (&self.orders, &mut *self.tell);
        let mut progress = |hundredths: u64| tell(&format!("{what}: {hundredths} %"));
        let order = |rank: u32| orders.order(phase.task(), rank);
        let reports = self.ranks.phase(processes, order, &mut progress)?;
        let seconds = self.ranks.span_s(&reports);
        // Behind the stonewall all have gone as far as the fastest.
        let most = reports.iter().map(|report| report.operations).max().unwrap_or(0);
        match phase.task() {
            Task::Ior(form, Access::Write) => self.orders.transfers[form as usize] = most,
            Task::Mdtest(form, Operation::FileCreation) => self.orders.files[form as usize] = most,
            Task::Find => self.result.find = Some(self.found(&reports)),
            _ => {}
        }
        let options = self.orders.options;
        let is_checked = options.checks && phase.is_compared();
        self.result.add(phase, &reports, seconds, options.stonewall, is_checked);
        Ok(())
    }

    fn make_timestamp(&mut self) -> Result<(), BenchError> {
        let path = self.orders.top.join(TIMESTAMP);
        fs::write(&path, "").map_err(failed("write", &path))?;
        self.result.add(Io500Phase::Timestamp, &[], 0.0, Duration::ZERO, false);
        Ok(())
    }

    /// Makes the folders of mdtest, each by its rank; this is not measured.
    fn make_trees(&mut self, form: Form) -> Result<(), BenchError> {
        let orders = &self.orders;
        let order = |rank: u32| orders.order(Task::Mdtest(form, Operation::TreeCreation), rank);
        let trees = orders.limits.tree(form, 0).trees() as u32;
        self.ranks.phase(trees, order, &mut |_| {}).map(drop)
    }

    /// How many files a search has found, and how many it should find.
    fn found(&self, reports: &[PhaseReport]) -> Io500Find {
        let is_wanted = |rank: u32, file: u64| Item::File.name(rank, file).contains(WANTED_NAME);
        let files = self.orders.files[Form::Hard as usize];
        let of_rank = |rank: u32| (0..files).filter(|file| is_wanted(rank, *file)).count() as u64;
        Io500Find {
            looked_at: reports.iter().map(|report| report.operations).sum(),
            found: reports.iter().map(|report| report.found).sum(),
            expected: (0..self.result.processes).map(of_rank).sum(),
        }
    }
}

/// Removes what a run has left that has failed.
fn clean_up(top: &Path, ranks_may_go_on: bool) {
    if ranks_may_go_on {
        // Those on other machines hear of it when they say how far they have come.
        std::thread::sleep(Duration::from_nanos(2 * crate::suites::rank::PROGRESS_EVERY_NS));
    }
    if let Err(error) = remove(top) {
        tracing::error!(folder = %top.display(), %error, "what the test has made stays behind");
    }
}

/// Removes the folder of a run, with what a run has given its name.
///
/// # Errors
/// Those of the operating system, also if something else is in it.
fn remove(top: &Path) -> Result<(), BenchError> {
    for folder in FOLDERS.map(|name| top.join(name)) {
        let removed = remove_given(&folder).and_then(|()| fs::remove_dir(&folder));
        missing_is_well(removed).map_err(failed("remove", &folder))?;
    }
    let timestamp = top.join(TIMESTAMP);
    missing_is_well(fs::remove_file(&timestamp)).map_err(failed("remove", &timestamp))?;
    missing_is_well(fs::remove_dir(top)).map_err(failed("remove", top))
}

fn missing_is_well(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn options() -> Io500Options {
        Io500Options {
            ranks: RanksOptions { program: "weft".into(), words: vec![], launched: None },
            folder: std::env::temp_dir(),
            processes: vec![2],
            stonewall: Duration::from_secs(30),
            transfer_bytes: 2 << 20,
            is_direct: false,
            files_max: 1_000_000,
            space: None,
            checks: true,
            keep: false,
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_option() {
        let refused = |options: Io500Options| options.plan().expect_err("it makes no sense").to_string();
        assert!(refused(Io500Options { stonewall: Duration::ZERO, ..options() }).contains("--stonewall"));
        assert!(refused(Io500Options { processes: vec![0], ..options() }).contains("process"));
        assert!(refused(Io500Options { processes: vec![5000], ..options() }).contains("--processes 5000"));
        assert!(refused(Io500Options { processes: vec![1, 2, 1], ..options() }).contains("1 twice"));
        assert!(refused(Io500Options { transfer_bytes: 0, ..options() }).contains("-t"));
        assert!(refused(Io500Options { transfer_bytes: 1000, is_direct: true, ..options() }).contains("-B"));
        assert!(refused(Io500Options { files_max: 0, ..options() }).contains("--files"));
        let missing = Io500Options { folder: "/nowhere/at/all".into(), ..options() };
        assert!(refused(missing).contains("there is no folder /nowhere/at/all"));
    }

    #[test]
    fn only_what_a_run_has_named_is_removed() {
        let top = std::env::temp_dir().join(format!("weft-bench-io500-{}", std::process::id()));
        for folder in FOLDERS {
            fs::create_dir_all(top.join(folder).join("tree.0")).expect("there is room");
        }
        for name in ["ior-easy/file.00000001", "ior-hard/file.0", "mdtest-hard/tree.0/file.1.2", TIMESTAMP] {
            fs::write(top.join(name), "x").expect("there is room");
        }
        let note = top.join("ior-hard/note");
        fs::write(&note, "mine").expect("there is room");
        let refused = remove(&top).expect_err("something else is in it");
        assert!(refused.to_string().contains("ior-hard") && note.exists(), "{refused}");
        fs::remove_file(&note).expect("it is there");
        remove(&top).expect("all is named");
        assert!(!top.exists());
        remove(&top).expect("nothing is left to do");
    }
}
