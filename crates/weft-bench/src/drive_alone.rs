//! A `mem:` drive by itself: how often its blocks can be read with nothing around it. That is what the memory of the
//! machine allows, since a volume is larger than any cache of the processor.

use crate::BenchError;
use std::time::Duration;
use weft_rt::{Buf, Drive, OpenOptions, now, random_below};

/// The drive, as large as one of the benchmark's.
const SPEC: &str = "mem:1G";

/// Bytes of each write that fills it.
const FILL_BYTES: usize = 1 << 20;

/// Reads between two looks at the clock.
const BETWEEN_LOOKS: u32 = 64;

/// Reads per second of `len` bytes, a multiple of 4096, at random, one after another; for each of `lens`, `duration` long.
///
/// # Errors
/// If there is no memory for the drive.
pub async fn reads_per_s<const N: usize>(
    lens: [usize; N],
    duration: Duration,
) -> Result<[f64; N], BenchError> {
    let failed = |source| BenchError::System { action: "read a drive in memory", source };
    let drive = Drive::open(SPEC, OpenOptions::default()).await.map_err(failed)?;
    for at in (0..drive.size_bytes()).step_by(FILL_BYTES) {
        drive.write(at, Buf::zeroes(FILL_BYTES)).await.map_err(failed)?;
    }
    let mut rates = [0.0; N];
    for (rate, len) in rates.iter_mut().zip(lens) {
        let (places, from, mut reads) = (drive.size_bytes() / len as u64, now(), 0);
        while from.elapsed() < duration {
            for _ in 0..BETWEEN_LOOKS {
                drive.read(random_below(places) * len as u64, len).await.map_err(failed)?;
            }
            reads += BETWEEN_LOOKS;
        }
        *rate = f64::from(reads) / from.elapsed().as_secs_f64();
    }
    Ok(rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_alone_is_read() {
        let rates = weft_rt::block_on(reads_per_s([4096, 65_536], Duration::from_millis(1))).unwrap();
        assert!(rates.unwrap().iter().all(|rate| *rate > 0.0));
    }
}
