//! What a drive can do by itself: its sequential rates, measured in the same run as what is set beside them.
//!
//! It goes through the runtime's drives, as the store does, and knows nothing of a store or a fabric.

use crate::BenchError;
use crate::load::data;
use crate::report::rounded;
use serde::Serialize;
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use weft_rt::{Drive, OpenOptions, now, spawn};

/// Bytes of each request, and requests in flight: those of a resync, which copies four chunks of 512 KiB at once.
const REQUEST_BYTES: u64 = 512 << 10;
const DEPTH: usize = 4;

/// Passes of writes before the one that is timed: a file's blocks are made then, and memory is touched.
const WARM_PASSES: usize = 1;

/// What one drive reaches with nobody beside it, in megabytes (10^6 bytes) per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RawRates {
    /// Sequential writes with a flush at the end.
    pub write_mb_per_s: f64,
    /// Sequential reads.
    pub read_mb_per_s: f64,
}

/// Measures a drive of so many bytes: a file in the folder, or one in memory.
///
/// # Errors
/// If the drive cannot be made, or refuses a request.
pub(crate) async fn measure(drives_in: Option<&Path>, bytes: u64) -> Result<RawRates, BenchError> {
    let file = drives_in.map(|folder| {
        folder.join(format!("weft-bench-raw-{}-{:08x}", std::process::id(), weft_rt::random_u64() as u32))
    });
    let measured = match &file {
        Some(path) => measure_at(&path.display().to_string(), Some(bytes)).await,
        None => measure_at(&format!("mem:{bytes}"), None).await,
    };
    if let Some(path) = file
        && let Err(error) = std::fs::remove_file(&path)
    {
        tracing::warn!(path = %path.display(), %error, "the file stays behind");
    }
    measured
}

async fn measure_at(spec: &str, create_bytes: Option<u64>) -> Result<RawRates, BenchError> {
    let failed = |action| move |source| BenchError::File { action, path: spec.into(), source };
    let options = OpenOptions { create_bytes, ..Default::default() };
    let drive = Drive::open(spec, options).await.map_err(failed("open the drive"))?;
    for _ in 0..WARM_PASSES {
        pass(&drive, true).await.map_err(failed("write to"))?;
    }
    let write = pass(&drive, true).await.map_err(failed("write to"))?;
    let read = pass(&drive, false).await.map_err(failed("read from"))?;
    Ok(RawRates { write_mb_per_s: rounded(write, 1.0), read_mb_per_s: rounded(read, 1.0) })
}

/// Goes over the whole drive once: megabytes per second.
async fn pass(drive: &Drive, is_write: bool) -> std::io::Result<f64> {
    let requests = drive.size_bytes() / REQUEST_BYTES;
    let (began, next) = (now(), Rc::new(Cell::new(0)));
    let workers: Vec<_> = (0..DEPTH)
        .map(|seed| {
            let (drive, next) = (drive.clone(), next.clone());
            let bufs = data(REQUEST_BYTES as usize, seed as u64);
            spawn(async move {
                loop {
                    let i = next.get();
                    if i >= requests {
                        return std::io::Result::Ok(());
                    }
                    next.set(i + 1);
                    match is_write {
                        true => drive.write(i * REQUEST_BYTES, bufs[i as usize % bufs.len()].clone()).await?,
                        false => drop(drive.read(i * REQUEST_BYTES, REQUEST_BYTES as usize).await?),
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("nobody aborts it")?;
    }
    if is_write {
        drive.flush().await?;
    }
    Ok((requests * REQUEST_BYTES) as f64 / 1e6 / began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_in_memory_and_a_file_have_rates_and_the_file_is_gone() {
        let folder = std::env::temp_dir().join(format!("weft-bench-raw-test-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("it is new");
        let at = folder.clone();
        let rates =
            weft_rt::block_on(
                async move { [measure(None, 4 << 20).await, measure(Some(&at), 4 << 20).await] },
            );
        for rates in rates.expect("the runtime starts") {
            let rates = rates.expect("the drive works");
            assert!(rates.write_mb_per_s > 0.0 && rates.read_mb_per_s > 0.0, "{rates:?}");
        }
        std::fs::remove_dir(&folder).expect("nothing is left in it");
    }
}
