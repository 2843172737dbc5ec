//! A client: fio on one volume, which a process beside it serves over NBD at a Unix socket.

use super::outcome::{FioFigures, FioRun};
use super::{FioError, JobFile, said};
use crate::BenchError;
use crate::clients::{ClientPlaces, MeasuredOn, cpu_s};
use crate::cores::own_cores;
use crate::folder::Folder;
use crate::job::check_empty;
use crate::machine::Machine;
use crate::process::cpu_seconds;
use crate::subprocess::{LOOKED_AT, Subprocess};
use crate::tool::{Tool, not_an_answer};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, VolumeInfo};
use weft_client::{AttachMode, AttachOptions, Fabric};
use weft_rt::sync::{Either, race};
use weft_rt::{Addr, signal, sleep, wall_clock_us};

/// What to run, on which volume.
#[derive(Clone, Debug)]
pub struct FioOnVolume {
    /// The weft binary.
    pub program: PathBuf,
    /// Where the fabric's managers may answer; at least one.
    pub managers: Vec<Addr>,
    /// The volume.
    pub volume: String,
    /// What fio is to run.
    pub job_file: JobFile,
    /// Write also where the volume holds data.
    pub overwrite: bool,
    /// When to begin, in milliseconds since 1970; none, or in the past: at once.
    pub begin_at_ms: Option<u64>,
}

/// Runs the job file on a volume, until it is done or this process is asked to end.
///
/// # Errors
/// [`BenchError::Fio`], [`BenchError::HoldsData`] if it would destroy something, [`BenchError::Interrupted`], and if there
/// is no such volume or it cannot be served.
pub fn fio_on_volume(options: &FioOnVolume) -> Result<FioFigures, BenchError> {
    let options = options.clone();
    weft_rt::block_on(async move {
        match race(signal::terminated(), options.run()).await {
            Either::Left(()) => Err(BenchError::Interrupted),
            Either::Right(figures) => figures,
        }
    })?
}

/// Fails if fio cannot run the job file on this machine.
///
/// # Errors
/// [`BenchError::Fio`].
pub(super) async fn check(job_file: &JobFile) -> Result<(), BenchError> {
    let engine = fio(Path::new("."), &["--enghelp=nbd"])?.end().await?;
    if !engine.status.success() {
        return Err(FioError::NoEngine { words: said::in_a_line(&engine) }.into());
    }
    let folder = Folder::create(&std::env::temp_dir())?;
    let path = written(job_file, "nbd+unix:///any?socket=/any", &folder)?;
    let parsed = fio(folder.path(), &["--parse-only", &path])?.end().await?;
    match parsed.status.success() {
        true => Ok(()),
        false => {
            Err(FioError::JobFile { what: format!("is refused by fio: {}", said::in_a_line(&parsed)) }.into())
        }
    }
}

impl FioOnVolume {
    async fn run(&self) -> Result<FioFigures, BenchError> {
        check(&self.job_file).await?;
        let mut tool = Tool::new(self.managers.clone());
        let volume = self.find(&mut tool).await?;
        if self.job_file.writes() && !self.overwrite {
            self.check_empty().await?;
        }
        let places =
            ClientPlaces { program: self.program.clone(), managers: self.managers.clone(), on: vec![] };
        let on = MeasuredOn::look(&mut tool, &places, volume.copies).await?;
        // Whatever ends this, fio ends before what serves it, and the folder goes last.
        let folder = Folder::create(&std::env::temp_dir())?;
        let (mut served, uri) = self.serve(&folder).await?;
        let path = written(&self.job_file, &uri, &folder)?;
        self.until_begin().await;
        let before = (tool.load().await?, cpu_seconds(served.pid())?, cpu_s_of_children());
        let mut running = fio(folder.path(), &[&path, "--output-format=json+", "--eta=never"])?;
        let ended = loop {
            if let Some(ended) = served.ended()? {
                return Err(ended.refusal(served.name()));
            }
            match running.ended()? {
                Some(ended) => break ended,
                None => sleep(LOOKED_AT).await,
            }
        };
        let target_cpu_s = cpu_s(&before.0, &tool.load().await?);
        let served_cpu_s = cpu_seconds(served.pid())? - before.1;
        let fio_cpu_s = cpu_s_of_children() - before.2;
        let said = said::read(&ended)?;
        let run = FioRun {
            machine: Machine::describe(own_cores()?.len()),
            weft_version: env!("CARGO_PKG_VERSION").to_owned(),
            fio_version: said.version,
            elapsed_s: said.elapsed_s,
            cpu_s: served_cpu_s + fio_cpu_s,
            jobs: said.jobs,
        };
        let volumes = (std::slice::from_ref(&self.volume), volume.size_bytes);
        Ok(FioFigures::new(on, &places, &self.job_file, volumes, vec![run], target_cpu_s))
    }

    /// The volume as the manager describes it.
    async fn find(&self, tool: &mut Tool) -> Result<VolumeInfo, BenchError> {
        match tool.ask("volume-show", &ApiRequest::VolumeShow { name: self.volume.clone() }).await? {
            ApiAnswer::Volume { volume, .. } => Ok(volume),
            _ => Err(not_an_answer("volume-show")),
        }
    }

    /// Fails if the volume holds data.
    async fn check_empty(&self) -> Result<(), BenchError> {
        let fabric = Fabric::connect(&self.managers, "weft bench").await?;
        let attach = AttachOptions { mode: AttachMode::ReadOnly, ..AttachOptions::default() };
        let volume = fabric.attach(&self.volume, attach).await?;
        let is_empty = check_empty(&volume, &(0..volume.size_bytes()), &Default::default()).await;
        volume.detach().await;
        is_empty
    }

    /// Serves the volume at a socket in the folder. The process, and the export's address.
    async fn serve(&self, folder: &Folder) -> Result<(Subprocess, String), BenchError> {
        let manager = self.managers.first().ok_or_else(|| not_an_answer("connect"))?;
        let socket = format!("unix:{}", folder.path().join("nbd.sock").display());
        let mut command = Command::new(&self.program);
        command.args(["volume", "serve", &self.volume, "--nbd", &socket, "--json"]);
        command.args(["--fabric".to_owned(), manager.to_string()]);
        if !self.job_file.writes() {
            command.arg("--read-only");
        }
        let mut served = Subprocess::start("weft volume serve", &mut command, None)?;
        loop {
            // It says so once it is attached.
            let said: Option<serde_json::Value> = serde_json::from_str(&served.said()).ok();
            if let Some(uri) = said.as_ref().and_then(|said| said["exports"][0]["uri"].as_str()) {
                return Ok((served, uri.to_owned()));
            }
            if let Some(ended) = served.ended()? {
                return Err(ended.refusal(served.name()));
            }
            sleep(LOOKED_AT).await;
        }
    }

    async fn until_begin(&self) {
        let now_ms = wall_clock_us() / 1000;
        sleep(Duration::from_millis(self.begin_at_ms.unwrap_or(0).saturating_sub(now_ms))).await;
    }
}

/// Starts fio in a folder, where it leaves what it may leave.
fn fio(folder: &Path, words: &[&str]) -> Result<Subprocess, BenchError> {
    let started = Subprocess::start("fio", Command::new("fio").args(words).current_dir(folder), None);
    started.map_err(|error| match error {
        BenchError::File { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            FioError::Missing(source).into()
        }
        error => error,
    })
}

/// The path of the job file as fio is to run it, written to the folder.
fn written(job_file: &JobFile, uri: &str, folder: &Folder) -> Result<String, BenchError> {
    let path = folder.path().join("job.fio");
    let file = |source| BenchError::File { action: "write", path: path.clone(), source };
    std::fs::write(&path, job_file.on(uri)).map_err(file)?;
    Ok(path.to_string_lossy().into_owned())
}

/// CPU seconds of all processes that this one has started and waited for, and of theirs.
fn cpu_s_of_children() -> f64 {
    // SAFETY: a rusage is plain bits, for which zero is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is writable for its size.
    let outcome = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    assert_eq!(outcome, 0, "it has no way to fail");
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
