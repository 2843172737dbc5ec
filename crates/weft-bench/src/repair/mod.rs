//! `weft bench repair`: what repair costs and how fast it is, on fabrics of its own.
//!
//! Four parts: a client beside resync and rebuild (`beside.rs`), how evenly a rebuild spreads over the drives
//! (`spread.rs`), scrubs (`scrub.rs`), and what drives write per byte of data (`amplify.rs`). Each starts what it needs
//! and ends it.

mod amplify;
mod beside;
mod copies;
mod outcome;
mod page;
mod phases;
mod quiet;
mod raw;
mod scrub;
mod spread;
mod stage;

use crate::BenchError;
use crate::cores::own_cores;
use crate::machine::Machine;
use quiet::Voids;
use std::path::PathBuf;
use std::time::Duration;
use weft_types::BLOCK_SIZE;

pub use amplify::{AmplifyFigures, AmplifyRow};
pub use beside::{BesideFigures, ClientFigures, Copied, Round};
pub use outcome::RepairFigures;
pub use phases::{PhaseFigures, RoundEvent, RoundTimeline, SlotFigures};
pub use raw::RawRates;
pub use scrub::{ScrubFigures, ScrubRun};
pub use spread::{DriveShare, SpreadFigures};

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RepairPart {
    /// A client beside resync and rebuild.
    Beside,
    /// How a rebuild spreads over the drives.
    Spread,
    /// Scrubs, with a client and without.
    Scrub,
    /// Bytes that drives write per byte of data.
    Amplify,
}

impl RepairPart {
    /// All of them, in the order in which they run.
    pub const ALL: [RepairPart; 4] =
        [RepairPart::Beside, RepairPart::Spread, RepairPart::Scrub, RepairPart::Amplify];
}

/// How much data is moved about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairSizes {
    /// The volume beside which repair runs; there are two copies of it.
    pub volume_bytes: u64,
    /// Each of its four drives.
    pub drive_bytes: u64,
    /// Bytes written before a drive of eight is lost.
    pub spread_bytes: u64,
    /// The working set of write amplification.
    pub amplify_bytes: u64,
    /// Bytes written to it of each block size while that is measured.
    pub amplify_written_bytes: u64,
}

impl RepairSizes {
    /// As `make bench-repair` runs it: many times what the processor's caches hold, and seconds of copying.
    pub const USUAL: RepairSizes = RepairSizes {
        volume_bytes: 1 << 30,
        drive_bytes: 1 << 30,
        spread_bytes: 2 << 30,
        amplify_bytes: 512 << 20,
        amplify_written_bytes: 2 << 30,
    };

    /// Just enough for everything to happen: for a look at how it works, not for figures.
    pub const TINY: RepairSizes = RepairSizes {
        volume_bytes: 128 << 20,
        drive_bytes: 192 << 20,
        spread_bytes: 64 << 20,
        amplify_bytes: 16 << 20,
        amplify_written_bytes: 16 << 20,
    };

    fn is_working_set(&self, bytes: u64) -> bool {
        bytes > 0 && bytes.is_multiple_of(BLOCK_SIZE as u64) && bytes <= self.volume_bytes
    }
}

/// How to measure.
#[derive(Clone, Debug)]
pub struct RepairOptions {
    /// The weft binary whose daemons are measured.
    pub program: PathBuf,
    /// What to measure; empty: everything.
    pub parts: Vec<RepairPart>,
    /// Rounds of what is repeated, at least 1.
    pub rounds: usize,
    /// How long a phase lasts that does not last as long as a repair.
    pub phase: Duration,
    /// How fast the client beside repair goes: percent of what a closed loop reaches alone; 100: a closed loop.
    pub load_percent: u8,
    /// The bytes of the volume that the client beside repair uses, one after the other; empty: a sixteenth of it, and
    /// all of it.
    pub working_sets: Vec<u64>,
    /// An existing folder in which drives are files; none: drives in memory, and files in the folder for temporary
    /// files where only a disk will do.
    pub drives_in: Option<PathBuf>,
    /// How much data is moved about.
    pub sizes: RepairSizes,
}

impl RepairOptions {
    /// As `make bench-repair` runs it.
    pub fn new(program: PathBuf) -> RepairOptions {
        RepairOptions {
            program,
            parts: vec![],
            rounds: 3,
            phase: Duration::from_secs(4),
            load_percent: 25,
            working_sets: vec![],
            drives_in: None,
            sizes: RepairSizes::USUAL,
        }
    }

    fn check(&self) -> Result<(), BenchError> {
        let what = if self.rounds == 0 {
            "0 rounds measure nothing".to_owned()
        } else if self.phase < Duration::from_millis(100) {
            format!("phases of {:?} are too short to tell anything: at least 100 ms", self.phase)
        } else if !(1..=100).contains(&self.load_percent) {
            format!("a load of {} percent is not between 1 and 100", self.load_percent)
        } else if let Some(bytes) = self.working_sets.iter().find(|bytes| !self.sizes.is_working_set(**bytes))
        {
            let volume = self.sizes.volume_bytes;
            format!("a working set of {bytes} bytes: expected a multiple of 4096 up to the volume's {volume}")
        } else if let Some(folder) = self.drives_in.as_ref().filter(|folder| !folder.is_dir()) {
            format!("{} is not a folder in which drives could be files", folder.display())
        } else {
            return Ok(());
        };
        Err(BenchError::Invalid { what })
    }

    /// Most clients come back to a small part of their volume; one that goes evenly over all of it is the worst case.
    fn working_sets(&self, volume_bytes: u64) -> impl Iterator<Item = u64> {
        let usual = if self.working_sets.is_empty() { vec![volume_bytes / 16, volume_bytes] } else { vec![] };
        usual.into_iter().chain(self.working_sets.clone())
    }

    fn has(&self, part: RepairPart) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }
}

/// Measures; progress goes to standard error. Figures of phases that began before what went before them was over are
/// void ([`RepairFigures::void`]): there is a result all the same, and the caller makes it a failure.
///
/// # Errors
/// If anything does not start, gets stuck, or a request fails.
///
/// # Panics
/// On a thread that runs an executor already.
pub fn repair(options: &RepairOptions) -> Result<RepairFigures, BenchError> {
    options.check()?;
    let options = options.clone();
    weft_rt::block_on(async move { measure(&options).await })?
}

async fn measure(options: &RepairOptions) -> Result<RepairFigures, BenchError> {
    let cores = own_cores()?;
    // The nodes stand for machines of their own.
    weft_rpc::shm::set_shared_memory(false);
    let voids = Voids::default();
    let mut figures = RepairFigures {
        machine: Machine::describe(cores.len()).with_commit(),
        drives: options.drives_in.as_ref().map_or("mem:".to_owned(), |folder| folder.display().to_string()),
        rounds: options.rounds,
        phase_s: options.phase.as_secs_f64(),
        void: false,
        void_reasons: vec![],
        beside: None,
        spread: None,
        scrub: None,
        amplify: None,
    };
    if options.has(RepairPart::Beside) {
        figures.beside = Some(beside::measure(options, &voids).await?);
    }
    if options.has(RepairPart::Spread) {
        figures.spread = Some(spread::measure(options, &voids).await?);
    }
    if options.has(RepairPart::Scrub) {
        figures.scrub = Some(scrub::measure(options, &voids).await?);
    }
    if options.has(RepairPart::Amplify) {
        figures.amplify = Some(amplify::measure(options, &voids).await?);
    }
    figures.void_reasons = voids.reasons();
    figures.void = !figures.void_reasons.is_empty();
    Ok(figures)
}

/// Where drives are files whatever the options say: what the kernel counts at disks is not there for memory.
fn disk_folder(options: &RepairOptions) -> PathBuf {
    options.drives_in.clone().unwrap_or_else(std::env::temp_dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_measure_nothing_are_refused() {
        let good = RepairOptions::new(PathBuf::from("weft"));
        assert!(good.check().is_ok());
        for bad in [
            RepairOptions { rounds: 0, ..good.clone() },
            RepairOptions { phase: Duration::ZERO, ..good.clone() },
            RepairOptions { load_percent: 0, ..good.clone() },
            RepairOptions { load_percent: 101, ..good.clone() },
            RepairOptions { working_sets: vec![4096, 5000], ..good.clone() },
            RepairOptions { working_sets: vec![2 << 30], ..good.clone() },
            RepairOptions { drives_in: Some("/no such folder".into()), ..good.clone() },
        ] {
            assert!(matches!(repair(&bad), Err(BenchError::Invalid { .. })), "{bad:?}");
        }
    }

    #[test]
    fn parts_can_be_picked() {
        let mut options = RepairOptions::new(PathBuf::from("weft"));
        assert!(RepairPart::ALL.iter().all(|part| options.has(*part)));
        options.parts = vec![RepairPart::Scrub];
        assert!(options.has(RepairPart::Scrub) && !options.has(RepairPart::Beside));
    }
}
