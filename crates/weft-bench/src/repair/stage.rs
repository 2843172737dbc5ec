//! The fabric of a measurement of repair: its drives, its volume, how it is filled, and what is waited for.
//!
//! It decides what happens to the fabric, and measures nothing but how long waiting takes.

use super::RepairOptions;
use super::copies::Copies;
use super::quiet::{Look, Voids};
use crate::BenchError;
use crate::bed::{Bed, BedOptions, NewVolume};
use crate::load::{Load, Schedule};
use crate::process::disk_bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use weft_api::FailureDomain;
use weft_client::{AttachOptions, Fabric, Volume};
use weft_rt::{Spin, now, sleep};
use weft_types::DriveId;

/// The volume's name.
const VOLUME: &str = "bench";

/// Between two looks whether drives still write: many times what a write takes, so that what is under way shows in
/// one of them.
const WRITES_LOOK: Duration = Duration::from_millis(200);

/// How long to wait for quiet before a phase: more than a client needs to make up for a stall of 4 s at half of what it
/// can, several times over. What is not quiet by then will not be.
const QUIET_PATIENCE: Duration = Duration::from_secs(60);

/// How often to look how far a repair is: the error of a duration, and far below any that is measured.
const LOOK: Duration = Duration::from_millis(20);

/// How long anything may take that is waited for, before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(180);

/// Passes over the volume before anything is timed: the first fills it, overwrites go on through the rest of the drives,
/// of which the volume takes half.
const FILLS: u32 = 3;

/// What to set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagePlan {
    pub(crate) nodes: u32,
    pub(crate) drives: u32,
    pub(crate) drive_bytes: u64,
    pub(crate) volume_bytes: u64,
    /// Objects that a stripe runs over; none: the default, which spreads every part of the volume over the drives.
    pub(crate) width: Option<u32>,
    pub(crate) is_thin: bool,
}

/// A fabric with an attached volume.
pub(crate) struct Stage {
    pub(crate) volume: Volume,
    pub(crate) bed: Bed,
    voids: Voids,
    _fabric: Fabric,
}

impl Stage {
    /// Starts it, with an empty volume, for a part of the measurement.
    pub(crate) async fn set(
        options: &RepairOptions,
        plan: &StagePlan,
        voids: Voids,
    ) -> Result<Stage, BenchError> {
        let mut bed = Bed::start(&BedOptions {
            program: options.program.clone(),
            nodes: plan.nodes,
            drives: plan.drives,
            drive_bytes: plan.drive_bytes,
            cpu: None,
            spin: Spin::Adaptive,
            drives_in: options.drives_in.clone(),
        })
        .await?;
        let failure_domain = if plan.nodes > 1 { FailureDomain::Node } else { FailureDomain::Drive };
        bed.create_volume(&NewVolume {
            name: VOLUME,
            size_bytes: plan.volume_bytes,
            failure_domain,
            width: plan.width,
            is_thin: plan.is_thin,
        })
        .await?;
        let fabric = Fabric::connect(&[bed.manager_addr().clone()], "weft bench").await?;
        let volume = fabric.attach(VOLUME, AttachOptions::default()).await?;
        Ok(Stage { volume, bed, voids, _fabric: fabric })
    }

    /// Writes all of the volume often enough that the drives' memory has been touched throughout: the first touch is
    /// slow and erratic on a virtual machine.
    pub(crate) async fn settle(&self) -> Result<(), BenchError> {
        for _ in 0..FILLS {
            self.fill().await?;
        }
        Ok(())
    }

    /// Writes all of the volume once.
    pub(crate) async fn fill(&self) -> Result<(), BenchError> {
        let size = self.volume.size_bytes();
        self.fill_range(0..size).await
    }

    /// Writes a part of the volume once.
    pub(crate) async fn fill_range(&self, range: std::ops::Range<u64>) -> Result<(), BenchError> {
        Load::filling(range.clone(), range.start).run(&self.volume).await.map(drop)
    }

    /// Waits until the copies stand as wanted; how they stand otherwise is part of what is said if they never do.
    pub(crate) async fn wait_for(
        &mut self,
        what: &'static str,
        is_wanted: impl Fn(Copies) -> bool,
    ) -> Result<(), BenchError> {
        let until = now() + PATIENCE;
        loop {
            self.bed.check()?;
            let copies = Copies::of(&self.bed.drives().await?);
            if is_wanted(copies) {
                return Ok(());
            }
            if now() >= until {
                let missing = format!("{what}; copies: {copies:?}");
                return Err(BenchError::NotReady { seconds: PATIENCE.as_secs(), missing });
            }
            sleep(LOOK).await;
        }
    }

    /// Waits until nothing goes on that belongs to no phase: copies stand as wanted, no scrub runs, a client has caught
    /// up with its rate, and where there is none, drives have written all that they had to. If that never comes, the
    /// run is void, and goes on.
    pub(crate) async fn quiet(
        &mut self,
        phase: &str,
        wanted: Copies,
        client: Option<&Schedule>,
    ) -> Result<(), BenchError> {
        let until = now() + QUIET_PATIENCE;
        while let Some(unrest) = self.look(client).await?.unrest(wanted) {
            if now() >= until {
                let seconds = QUIET_PATIENCE.as_secs();
                self.voids.add(phase, &format!("{unrest}, {seconds} s after the phase could have begun"));
                return Ok(());
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Makes the run void if something else went on in a phase that has just ended and wanted all copies in-sync.
    pub(crate) async fn still_whole(&mut self, phase: &str) -> Result<(), BenchError> {
        let copies = Copies::of(&self.bed.drives().await?);
        let is_scrubbing = self.bed.scrub().await?.running.is_some();
        let look = Look { copies, is_scrubbing, behind: Duration::ZERO, written: None };
        if let Some(unrest) = look.unrest(Copies::Whole) {
            self.voids.add(phase, &unrest);
        }
        Ok(())
    }

    async fn look(&mut self, client: Option<&Schedule>) -> Result<Look, BenchError> {
        self.bed.check()?;
        let written = match client {
            Some(_) => None,
            None => {
                let before = self.written().await?;
                sleep(WRITES_LOOK).await;
                Some(self.written().await?.abs_diff(before))
            }
        };
        Ok(Look {
            copies: Copies::of(&self.bed.drives().await?),
            is_scrubbing: self.bed.scrub().await?.running.is_some(),
            behind: client.map_or(Duration::ZERO, Schedule::behind),
            written,
        })
    }

    /// Bytes that went to drives so far: data and logs by the stores' own count, and with checkpoints by that of the
    /// kernel, where drives are files.
    async fn written(&mut self) -> Result<u64, BenchError> {
        let load = self.bed.load().await?;
        let drives = load.nodes.iter().flat_map(|node| &node.drives);
        let counted: u64 = drives.map(|d| d.data_bytes_written + d.log_bytes_written).sum();
        let pids = self.bed.node_pids().into_iter();
        let kernel: u64 = pids.map(|pid| Ok(disk_bytes(pid)?.written)).sum::<Result<u64, BenchError>>()?;
        Ok(counted + kernel)
    }

    /// Bytes that each drive was given by others so far: all that was written to it, but for what clients wrote.
    pub(crate) async fn copied(&mut self) -> Result<BytesCopied, BenchError> {
        let load = self.bed.load().await?;
        let drives = load.nodes.iter().flat_map(|node| &node.drives);
        let given = drives.map(|d| (d.id, d.data_bytes_written.saturating_sub(d.meter.written_bytes)));
        Ok(BytesCopied(given.collect()))
    }
}

/// Bytes that each drive was given by others, of those that answered.
pub(crate) struct BytesCopied(BTreeMap<DriveId, u64>);

impl BytesCopied {
    /// All that was copied since, to drives that answered both times.
    pub(crate) fn since(&self, before: &BytesCopied) -> u64 {
        let of = |(id, bytes): (&DriveId, &u64)| Some(bytes.saturating_sub(*before.0.get(id)?));
        self.0.iter().filter_map(of).sum()
    }
}
