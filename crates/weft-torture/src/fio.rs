//! fio beside the clients: it writes a volume of its own over NBD, and verifies what it wrote.

use crate::Trouble;
use crate::fabric::{Fabric, tail};
use crate::world::{bind, signal};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The volume that it has for itself.
pub const VOLUME: &str = "fio";

/// Its size in MiB.
pub const VOLUME_MIB: u64 = 96;

/// `weft volume serve` for fio, for the whole run.
pub struct Export {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

/// A run of fio.
pub struct Fio {
    child: Child,
    result: PathBuf,
    log: PathBuf,
}

impl Export {
    /// Serves the volume on a Unix socket.
    ///
    /// # Errors
    /// If it does not listen within half a minute.
    pub fn start(fabric: &Fabric) -> Result<Export, Trouble> {
        let (socket, log) = (fabric.dir.join("fio.sock"), fabric.dir.join("log/serve.log"));
        let file = fs::File::create(&log).map_err(|e| Trouble::of(log.display(), e))?;
        let copy = file.try_clone().map_err(|e| Trouble::of(log.display(), e))?;
        let mut command = Command::new(fabric.program());
        command.args(["volume", "serve", VOLUME, "--nbd", &format!("unix:{}", socket.display())]);
        command.env("WEFT_FABRIC", fabric.address()).stdin(Stdio::null()).stdout(file).stderr(copy);
        bind(&mut command);
        let child = command.spawn().map_err(|e| Trouble::of("weft volume serve", e))?;
        let mut export = Export { child, socket, log };
        let began = Instant::now();
        while !export.socket.exists() {
            export.check()?;
            if began.elapsed() > Duration::from_secs(30) {
                return Err(Trouble(format!("the volume is not served: {}", tail(&export.log))));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(export)
    }

    /// Whether it still serves.
    ///
    /// # Errors
    /// If it ended: its last words.
    pub fn check(&mut self) -> Result<(), Trouble> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            _ => Err(Trouble(format!("weft volume serve ended by itself:\n{}", tail(&self.log)))),
        }
    }

    /// Begins to write, at a bounded rate, and to verify.
    ///
    /// # Errors
    /// If fio cannot be started.
    pub fn fio(&self, fabric: &Fabric, round: u32, lasts: Duration) -> Result<Fio, Trouble> {
        let result = fabric.dir.join(format!("fio-{round}.json"));
        let log = fabric.dir.join("log/fio.log");
        let file = fs::File::create(&log).map_err(|e| Trouble::of(log.display(), e))?;
        let copy = file.try_clone().map_err(|e| Trouble::of(log.display(), e))?;
        let mut command = Command::new("fio");
        command.args(["--name=torture", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--iodepth=8"]);
        command.args([
            "--verify=crc32c",
            "--verify_backlog=512",
            "--verify_fatal=1",
            "--verify_state_save=0",
        ]);
        command.args(["--io_size=8g", "--rate_iops=800", "--output-format=json"]);
        command.arg(format!("--uri=nbd+unix:///{VOLUME}?socket={}", self.socket.display()));
        command.arg(format!("--size={}m", VOLUME_MIB));
        command.arg(format!("--runtime={}", lasts.as_secs().max(1)));
        command.arg(format!("--randseed={round}")).arg(format!("--output={}", result.display()));
        command.current_dir(&fabric.dir).stdin(Stdio::null()).stdout(file).stderr(copy);
        bind(&mut command);
        let child = command.spawn().map_err(|e| Trouble::of("fio", e))?;
        Ok(Fio { child, result, log })
    }
}

impl Fio {
    /// Awaits its end; how much it has written and verified, in operations.
    ///
    /// # Errors
    /// If it found wrong data, or was refused.
    pub fn end(mut self) -> Result<(u64, u64), Trouble> {
        let status = self.child.wait().map_err(|e| Trouble::of("fio", e))?;
        let text = fs::read_to_string(&self.result).unwrap_or_default();
        // It may complain in the file before the document begins.
        let document = text.find('{').map_or("", |at| &text[at..]);
        let value: Value = serde_json::from_str(document).unwrap_or_default();
        let job = &value["jobs"][0];
        if !status.success() || job["error"] != 0 {
            return Err(Trouble(format!(
                "fio ended with {status}, error {}: {}",
                job["error"],
                tail(&self.log)
            )));
        }
        let count = |what: &str| job[what]["total_ios"].as_u64().unwrap_or_default();
        Ok((count("write"), count("read")))
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let _ = signal(&self.child, "TERM");
        let _ = self.child.wait();
    }
}
