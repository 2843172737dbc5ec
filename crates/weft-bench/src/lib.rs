//! Face: load generator and benchmark.
//!
//! [`Load`] puts a load on a volume and notes latencies; a [`Ledger`] beside it knows what may be read. [`run()`] puts
//! one on a volume of any fabric and tells what it did ([`RunReport`]). [`figures`] is the committed benchmark: it
//! starts a fabric of its own from the weft binary, runs [`WORKLOADS`] beside a bare exchange of frames of the same
//! sizes ([`Limit`]), and reports medians of the ratios; [`repair()`] does the same for resync, rebuild, scrubs and what
//! drives write. On any fabric, [`matrix()`] has more and more client processes put loads of several sizes,
//! [`fleet()`] one load from all at once, and [`fio()`] the jobs of a file of fio's; [`compare()`] compares two of
//! their results.
//! On any folder, [`ior()`] and [`mdtest()`] are the suites of the field of parallel file systems, and
//! [`io500()`] runs both in the phases of IO500. This crate links neither target nor
//! store nor manager: what it
//! measures is what a user's processes do.

mod bed;
mod clients;
mod compare;
mod cores;
mod drive_alone;
mod error;
mod figures;
mod findings;
mod fio;
mod fleet;
mod folder;
mod idle;
mod job;
mod latency;
mod ledger;
mod limit;
mod load;
mod machine;
mod matrix;
mod outcome;
mod page;
mod plan;
mod process;
mod progress;
mod repair;
mod report;
mod run;
mod stamp;
mod subprocess;
mod suites;
mod timeline;
mod tool;
mod transport;
mod workload;

pub use bed::{Bed, BedOptions, NewVolume};
pub use clients::{ClientPlaces, ClientRow, ClientSecond, ClientsRun, MeasuredOn, Rates, Together};
pub use compare::{Compared, Comparison, compare};
pub use error::BenchError;
pub use figures::{Figures, FiguresOptions, figures};
pub use findings::Findings;
pub use fio::{
    Direction, FioError, FioFigures, FioJob, FioOnVolume, FioOptions, JobFile, fio, fio_on_volume,
};
pub use fleet::{FleetFigures, FleetLoad, FleetOptions, fleet};
pub use latency::Completed;
pub use ledger::{Before, Ledger, Mismatch, Seen, Verified};
pub use limit::{Limit, Shape};
pub use load::{Amount, Load, LoadResult, Ran, Schedule, Watch};
pub use machine::Machine;
pub use matrix::{Cell, MATRIX_LOADS, MatrixFigures, MatrixLoad, MatrixOptions, Volumes, matrix};
pub use outcome::{Failure, LoadFacts, RunReport, Side, VerifyFacts};
pub use plan::Pattern;
pub use process::{Daemon, cpu_seconds};
pub use repair::{
    AmplifyFigures, AmplifyRow, BesideFigures, ClientFigures, Copied, DriveShare, PhaseFigures, RawRates,
    RepairFigures, RepairOptions, RepairPart, RepairSizes, Round, RoundEvent, RoundTimeline, ScrubFigures,
    ScrubRun, SlotFigures, SpreadFigures, repair,
};
pub use report::{Row, RunFacts};
pub use run::{RunOptions, run};
pub use suites::io500::{
    Io500Figures, Io500Find, Io500Limits, Io500Options, Io500Phase, Io500Plan, Io500Result, Io500Row,
    Io500Score, Measure, io500,
};
pub use suites::ior::{Access, Checked, IorFigures, IorOptions, IorPlan, IorRow, IorSummary, ReadOrder, ior};
pub use suites::mdtest::{
    Item, Items, MdtestFigures, MdtestOptions, MdtestPhases, MdtestPlan, MdtestResult, MdtestRow, Operation,
    Tree, mdtest,
};
pub use suites::{Launched, RanksOptions, Spread, TestedFolder, follow, serve_as_rank};
pub use timeline::Tick;
pub use workload::{WORKLOADS, Workload};
