//! What fio says in its form `json+`: figures of each job, and how many requests took how long.
//!
//! The form is that of fio 3 (HOWTO, "JSON+ output"): latencies in nanoseconds, rates in bytes, one entry for each process
//! of a job unless it reports for the group.

use super::FioError;
use super::outcome::{Direction, FioJob};
use crate::clients::Rates;
use crate::process::last_lines;
use crate::subprocess::Ended;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io;

/// How much of what fio says is shown when it fails, in lines.
const LINES_SHOWN: usize = 4;

/// A run of fio.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) version: String,
    /// How long requests were made, in seconds: the longest job of each group, and one group after the other, as
    /// `stonewall` makes them.
    pub(super) elapsed_s: f64,
    /// Each job and direction in which something was done.
    pub(super) jobs: Vec<FioJob>,
}

#[derive(Deserialize)]
struct Document {
    #[serde(rename = "fio version")]
    version: String,
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    jobname: String,
    groupid: u32,
    error: i32,
    read: Side,
    write: Side,
    trim: Side,
}

impl Job {
    fn sides(&self) -> [(Direction, &Side); 3] {
        [(Direction::Read, &self.read), (Direction::Write, &self.write), (Direction::Trim, &self.trim)]
    }
}

#[derive(Deserialize)]
struct Side {
    total_ios: u64,
    io_bytes: u64,
    /// Milliseconds.
    runtime: u64,
    iops: f64,
    bw_bytes: f64,
    /// From submission to completion.
    #[serde(default)]
    clat_ns: Latency,
    /// From its beginning on; there only if the job asks for it.
    #[serde(default)]
    lat_ns: Latency,
}

#[derive(Default, Deserialize)]
struct Latency {
    #[serde(default)]
    bins: BTreeMap<String, u64>,
}

impl Latency {
    fn counted(&self) -> Vec<(u64, u64)> {
        self.bins.iter().filter_map(|(ns, count)| Some((ns.parse().ok()?, *count))).collect()
    }
}

/// Reads it.
///
/// # Errors
/// [`FioError::Failed`] if a job says that it failed, or else fio does; [`FioError::Said`] if it is no such document.
pub(super) fn read(ended: &Ended) -> Result<Said, FioError> {
    // What it has to remark may stand before the document.
    let begin = ended.out.find('{').unwrap_or(0);
    let document: serde_json::Result<Document> = serde_json::from_str(&ended.out[begin..]);
    let mut jobs = document.iter().flat_map(|document| &document.jobs);
    if let Some(Job { jobname, error, .. }) = jobs.find(|job| job.error != 0) {
        let why = io::Error::from_raw_os_error(*error);
        // Without complaints, its words would be the document.
        let complaints = if ended.err.trim().is_empty() { String::new() } else { in_a_line(ended) };
        return Err(FioError::Failed { words: format!("job {jobname}: {why}; {complaints}") });
    }
    if !ended.status.success() {
        return Err(FioError::Failed { words: format!("{}: {}", ended.status, in_a_line(ended)) });
    }
    let document = document.map_err(|e| FioError::Said { what: e.to_string() })?;
    let mut longest_ms: BTreeMap<u32, u64> = BTreeMap::new();
    let mut jobs = Vec::new();
    for job in &document.jobs {
        for (direction, side) in job.sides().into_iter().filter(|(_, side)| side.total_ios > 0) {
            let longest = longest_ms.entry(job.groupid).or_default();
            *longest = side.runtime.max(*longest);
            jobs.push(side.job(&job.jobname, direction));
        }
    }
    let elapsed_s = longest_ms.values().sum::<u64>() as f64 / 1000.0;
    Ok(Said { version: document.version, elapsed_s, jobs: FioJob::together(jobs) })
}

impl Side {
    fn job(&self, name: &str, direction: Direction) -> FioJob {
        let rates = Rates { iops: self.iops, mb_per_s: self.bw_bytes / 1e6, ..Rates::default() };
        let latencies = if self.lat_ns.bins.is_empty() { &self.clat_ns } else { &self.lat_ns };
        FioJob {
            job: name.to_owned(),
            direction,
            requests: self.total_ios,
            bytes: self.io_bytes,
            rates,
            latencies_ns: latencies.counted(),
        }
    }
}

/// What it said, in a line.
pub(super) fn in_a_line(ended: &Ended) -> String {
    // Of requests that fail, it names each.
    let text = last_lines(ended.words(), LINES_SHOWN);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    const SAID: &str = r#"fio: a remark
{ "fio version": "fio-3.33", "jobs": [
  {"jobname": "mix", "groupid": 0, "error": 0,
   "read": {"total_ios": 3, "io_bytes": 12288, "runtime": 100, "iops": 30.0, "bw_bytes": 122880,
            "clat_ns": {"N": 3, "bins": {"1000": 2, "9000": 1}}, "lat_ns": {"N": 3}},
   "write": {"total_ios": 1, "io_bytes": 4096, "runtime": 90, "iops": 10.0, "bw_bytes": 40960,
             "clat_ns": {"bins": {"5000": 1}}},
   "trim": {"total_ios": 0, "io_bytes": 0, "runtime": 0, "iops": 0.0, "bw_bytes": 0}},
  {"jobname": "mix", "groupid": 0, "error": 0,
   "read": {"total_ios": 1, "io_bytes": 4096, "runtime": 120, "iops": 10.0, "bw_bytes": 40960,
            "clat_ns": {"bins": {"1000": 1}}},
   "write": {"total_ios": 0, "io_bytes": 0, "runtime": 0, "iops": 0.0, "bw_bytes": 0},
   "trim": {"total_ios": 0, "io_bytes": 0, "runtime": 0, "iops": 0.0, "bw_bytes": 0}},
  {"jobname": "after", "groupid": 1, "error": 0,
   "read": {"total_ios": 0, "io_bytes": 0, "runtime": 0, "iops": 0.0, "bw_bytes": 0},
   "write": {"total_ios": 0, "io_bytes": 0, "runtime": 0, "iops": 0.0, "bw_bytes": 0},
   "trim": {"total_ios": 2, "io_bytes": 8192, "runtime": 1000, "iops": 2.0, "bw_bytes": 8192}}]}"#;

    fn ended(code: i32, out: &str, err: &str) -> Ended {
        Ended { status: ExitStatus::from_raw(code << 8), out: out.into(), err: err.into() }
    }

    #[test]
    fn processes_of_a_job_are_added_up_and_groups_follow_each_other() {
        let said = read(&ended(0, SAID, "")).expect("it is fio's");
        assert_eq!((said.version.as_str(), said.elapsed_s, said.jobs.len()), ("fio-3.33", 1.12, 3));
        let reads = &said.jobs[0];
        assert_eq!((reads.job.as_str(), reads.direction, reads.requests), ("mix", Direction::Read, 4));
        assert_eq!((reads.rates.iops, reads.rates.p50_us, reads.rates.max_us), (40.0, 1.0, 9.0));
        assert_eq!((said.jobs[1].direction, said.jobs[2].direction), (Direction::Write, Direction::Trim));
        assert_eq!(said.jobs[2].rates.p99_us, 0.0, "it has kept none");
    }

    #[test]
    fn what_is_no_result_is_said() {
        let io_error = SAID.replace("\"error\": 0", "\"error\": 5");
        for (code, out, err, word) in [
            (0, "", "", "no JSON of fio 3"),
            (0, "nonsense", "", "no JSON of fio 3"),
            (1, "", "fio: first\nfio: second\n", "exit status: 1: fio: first; fio: second"),
            (1, &io_error, "fio: a place\n", "job mix: Input/output error (os error 5); fio: a place"),
        ] {
            let error = read(&ended(code, out, err)).expect_err(word).to_string();
            assert!(error.contains(word), "'{word}' is not in '{error}'");
        }
    }
}
