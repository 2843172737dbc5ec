//! What a fabric costs while nobody uses it.

use crate::BenchError;
use crate::bed::{Bed, BedOptions};
use std::path::Path;
use std::time::Duration;
use weft_rt::{Spin, now, sleep};

/// Nodes of the idle fabric, each with [`DRIVES`] drives.
const NODES: u32 = 4;
const DRIVES: u32 = 2;

/// Bytes of each drive: twice the smallest that there may be.
const DRIVE_BYTES: u64 = 128 << 20;

/// How long a fabric that has just come up may still be busy with that.
const SETTLE: Duration = Duration::from_secs(2);

/// How long to watch it. CPU time is counted in steps of 10 ms, so this resolves a tenth of a percent.
const WATCH: Duration = Duration::from_secs(10);

/// CPU time of all processes of an idle fabric of four nodes, in percent of one core.
///
/// # Errors
/// If the fabric does not come up or one of its processes ends.
pub async fn percent(program: &Path) -> Result<f64, BenchError> {
    let mut bed = Bed::start(&BedOptions {
        program: program.to_owned(),
        nodes: NODES,
        drives: DRIVES,
        drive_bytes: DRIVE_BYTES,
        cpu: None,
        spin: Spin::Adaptive,
        drives_in: None,
    })
    .await?;
    sleep(SETTLE).await;
    let (began, before) = (now(), bed.all_cpu_seconds()?);
    sleep(WATCH).await;
    bed.check()?;
    Ok((bed.all_cpu_seconds()? - before) / began.elapsed().as_secs_f64() * 100.0)
}
