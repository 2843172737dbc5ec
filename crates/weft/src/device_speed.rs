//! How fast a device is, and so into how many parts it is formatted where nobody says it.
//!
//! A part is served by one thread, which does about a quarter of a million small reads in a second. So a
//! device that does more is worth several. Each part has a log of its own, and asks for flushes of its own:
//! where a flush takes long, several parts wait for each other.

use std::rc::Rc;
use std::time::Duration;
use weft_cli::Size;
use weft_rt::{
    Buf, Drive, Instant, OpenOptions, Thread, affinity, mailbox, now, random_below, spawn, timeout,
};

/// Small reads that a thread does in a second.
const READS_PER_PART: u64 = 250_000;

/// The slowest flush that several parts may share.
const FLUSH_SLOWEST: Duration = Duration::from_micros(100);

/// The smallest part that a device is formatted into without being told.
pub(crate) const PART_BYTES_LEAST: u64 = 64 << 30;

/// The numbers of parts that there may be.
pub(crate) const PARTS: [u32; 4] = [1, 2, 4, 8];

/// How long reads are counted, and flushes timed: 2 s together.
const READS_FOR: Duration = Duration::from_millis(1500);
const FLUSHES_FOR: Duration = Duration::from_millis(500);

/// Reads under way, and the threads that ask for them: one alone may be slower than the device.
const DEPTH: u64 = 64;
const THREADS: u64 = 4;

const BLOCK: u64 = 4096;

/// Where a block is written before each flush: on a device that is about to be formatted, beside every
/// structure.
const WRITE_AT: u64 = 512 << 10;

/// What was measured.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Speed {
    /// Random reads of 4 KiB per second, 64 at a time.
    reads_per_s: u64,
    /// The median of flushes, in microseconds.
    flush_us: u64,
    /// Whether a block was written before each flush; without, a flush may be faster than in use.
    is_flush_of_data: bool,
    /// How many parts follow.
    parts: u32,
}

impl Speed {
    /// Measures for 2 s. With `may_write` a block of zeroes is written before each flush.
    ///
    /// # Errors
    /// What the device reported, in words.
    pub(crate) async fn measure(drive: &Drive, may_write: bool) -> Result<Speed, String> {
        let reads_per_s = reads_per_s(drive).await?;
        let flush = flush_time(drive, may_write).await?;
        let parts = parts_worth(drive.size_bytes(), reads_per_s, flush);
        let flush_us = flush.as_micros() as u64;
        Ok(Speed { reads_per_s, flush_us, is_flush_of_data: may_write, parts })
    }

    /// How many parts follow.
    pub(crate) fn parts(&self) -> u32 {
        self.parts
    }

    /// The figures and what follows, for people.
    pub(crate) fn describe(&self, size_bytes: u64) -> String {
        let why = match self.parts {
            1 if self.flush_us >= FLUSH_SLOWEST.as_micros() as u64 => {
                format!("1 part, because a flush takes {} us or more", FLUSH_SLOWEST.as_micros())
            }
            1 => format!("1 part: several are worth it from {} reads/s on", 2 * READS_PER_PART),
            parts => format!("{parts} parts of {}", Size(size_bytes / u64::from(parts))),
        };
        let of = if self.is_flush_of_data { "" } else { " of nothing" };
        format!("{} reads/s of 4 KiB, a flush{of} takes {} us: {why}", self.reads_per_s, self.flush_us)
    }
}

/// How many parts a device of this size and speed is worth.
fn parts_worth(size_bytes: u64, reads_per_s: u64, flush: Duration) -> u32 {
    let most = (reads_per_s / READS_PER_PART).min(size_bytes / PART_BYTES_LEAST);
    let fits = |parts: &&u32| u64::from(**parts) <= most && flush < FLUSH_SLOWEST;
    PARTS.iter().rev().find(fits).copied().unwrap_or(1)
}

/// Counts random reads, by several threads with a file each.
async fn reads_per_s(drive: &Drive) -> Result<u64, String> {
    let cores = affinity::allowed().map_or(1, |cores| cores.len() as u64);
    let count = cores.clamp(1, THREADS);
    let (news, mut told) = mailbox(count as usize);
    let mut threads = Vec::new();
    for n in 0..count {
        let (path, blocks, news) = (drive.path().to_owned(), drive.size_bytes() / BLOCK, news.clone());
        let started = Thread::start(&format!("reads-{n}"), None, move || async move {
            let counted = count_reads(&path, blocks, DEPTH / count).await;
            // Nobody waits any more where this fails.
            let _ = news.post(counted.map_err(|error| error.to_string()));
        });
        threads.push(started.map_err(|error| error.to_string())?);
    }
    drop(news);
    let mut all = 0;
    while let Some(counted) = told.next().await {
        all += counted?;
    }
    for mut thread in threads {
        thread.ended().await.map_err(|error| error.to_string())?;
    }
    Ok(all * 1000 / READS_FOR.as_millis() as u64)
}

async fn count_reads(path: &str, blocks: u64, depth: u64) -> std::io::Result<u64> {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let drive = Rc::new(Drive::open(path, options).await?);
    let until: Instant = now() + READS_FOR;
    let readers: Vec<_> = (0..depth)
        .map(|_| {
            let drive = drive.clone();
            spawn(async move {
                let mut count = 0;
                while now() < until {
                    drive.read(random_below(blocks) * BLOCK, BLOCK as usize).await?;
                    count += 1;
                }
                Ok::<u64, std::io::Error>(count)
            })
        })
        .collect();
    let mut all = 0;
    for reader in readers {
        all += reader.await.map_err(|_| std::io::Error::other("a reader was cancelled"))??;
    }
    Ok(all)
}

/// The median of flushes.
async fn flush_time(drive: &Drive, may_write: bool) -> Result<Duration, String> {
    let until = now() + FLUSHES_FOR;
    let mut taken = Vec::new();
    while now() < until {
        if may_write {
            let written = drive.write(WRITE_AT, Buf::zeroes(BLOCK as usize)).await;
            written.map_err(|error| error.to_string())?;
        }
        let began = now();
        let flushed = timeout(FLUSHES_FOR, drive.flush()).await;
        flushed.unwrap_or(Ok(())).map_err(|error| error.to_string())?;
        taken.push(began.elapsed());
    }
    taken.sort();
    Ok(taken.get(taken.len() / 2).copied().unwrap_or(FLUSHES_FOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_worth_parts_by_its_reads_its_flushes_and_its_size() {
        let (tib, quick) = (1 << 40, Duration::from_micros(20));
        for (reads_per_s, parts) in [
            (0, 1),
            (249_999, 1),
            (499_999, 1),
            (500_000, 2),
            (999_999, 2),
            (1_000_000, 4),
            (1_999_999, 4),
            (2_000_000, 8),
            (9_000_000, 8),
        ] {
            assert_eq!(parts_worth(tib, reads_per_s, quick), parts, "{reads_per_s}");
        }
        assert_eq!(parts_worth(tib, 2_000_000, Duration::from_micros(100)), 1);
        assert_eq!(parts_worth(tib, 2_000_000, Duration::from_micros(99)), 8);
        for (gib, parts) in [(511, 4), (512, 8), (128, 2), (127, 1), (1, 1)] {
            assert_eq!(parts_worth(gib << 30, 2_000_000, quick), parts, "{gib} GiB");
        }
    }

    #[test]
    fn a_file_is_measured() {
        let path = std::env::temp_dir().join(format!("weft-speed-{}", std::process::id()));
        let spec = path.to_str().expect("it is text").to_owned();
        let measured = weft_rt::block_on(async move {
            let options = OpenOptions { create_bytes: Some(4 << 20), ..OpenOptions::default() };
            let drive = Drive::open(&spec, options).await.expect("it is made");
            Speed::measure(&drive, true).await
        });
        std::fs::remove_file(&path).expect("it is there");
        let speed = measured.expect("the kernel has a ring").expect("a file can be read");
        assert!(speed.reads_per_s > 0 && speed.parts == 1, "{speed:?}");
        assert!(speed.describe(4 << 20).contains("reads/s of 4 KiB"));
    }
}
