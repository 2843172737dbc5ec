//! What a result was measured on.

use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::{Command, Stdio};
use std::{fmt, fs};
use weft_api::Timestamp;

/// What stands where the machine does not say.
const UNKNOWN: &str = "unknown";

/// The machine and the code, as far as they bear on a figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// How TCP connections are paced.
    pub tcp_congestion_control: String,
    /// The commit, as `git describe` names it; none if it was not looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// When the run began.
    pub date: Timestamp,
}

impl Machine {
    /// This machine, now; called on an executor's thread.
    pub fn describe(cores: usize) -> Machine {
        Machine::at(cores, Timestamp::from_millis(weft_rt::wall_clock_us() / 1000))
    }

    /// This machine, now; called on a thread without an executor.
    pub(crate) fn of_this_time(cores: usize) -> Machine {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Machine::at(cores, Timestamp::from_millis(since.as_millis() as u64))
    }

    fn at(cores: usize, date: Timestamp) -> Machine {
        Machine {
            cpu: cpu_name(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            cores,
            kernel: first_line("/proc/sys/kernel/osrelease"),
            tcp_congestion_control: first_line("/proc/sys/net/ipv4/tcp_congestion_control"),
            commit: None,
            date,
        }
    }

    /// With the commit of the working tree that this program lies in: for those who measure their own build.
    pub fn with_commit(mut self) -> Machine {
        self.commit = Some(commit());
        self
    }

    /// The commit in words.
    pub(crate) fn commit_text(&self) -> &str {
        self.commit.as_deref().unwrap_or(UNKNOWN)
    }

    /// What a page says of it.
    pub(crate) fn facts(&self) -> [(&'static str, String); 2] {
        [
            ("processor", format!("{} cores of {}", self.cores, self.cpu)),
            ("kernel", format!("Linux {}, TCP {}", self.kernel, self.tcp_congestion_control)),
        ]
    }
}

impl fmt::Display for Machine {
    /// In a line: the processor, the kernel, and how connections are paced.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} x {}, Linux {}, TCP {}", self.cores, self.cpu, self.kernel, self.tcp_congestion_control)
    }
}

fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    known(text.lines().next().unwrap_or_default())
}

fn known(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() { UNKNOWN.to_owned() } else { text.to_owned() }
}

fn cpu_name(cpuinfo: &str) -> String {
    let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    known(name.map_or("", |(_, name)| name))
}

/// The commit of the working tree that this program lies in, as a build does, if it is one.
fn commit() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let output = Command::new("git")
        .arg("-C")
        .arg(program.parent().unwrap_or(Path::new("/")))
        .args(["describe", "--always", "--dirty", "--tags"])
        .stderr(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => known(&String::from_utf8_lossy(&output.stdout)),
        _ => UNKNOWN.to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine on which a commit was measured, or a program whose commit nobody has looked for.
    pub(crate) fn machine(commit: Option<&str>) -> Machine {
        Machine {
            cpu: "Fast One".into(),
            cores: 2,
            kernel: "6.18.0".into(),
            tcp_congestion_control: "bbr".into(),
            commit: commit.map(str::to_owned),
            date: Timestamp::from_millis(0),
        }
    }

    #[test]
    fn the_processor_has_a_name_or_none() {
        assert_eq!(cpu_name("processor\t: 0\nmodel name\t: Fast One\n"), "Fast One");
        assert_eq!(cpu_name("processor: 0\n"), UNKNOWN);
        assert_eq!(known(" \n"), UNKNOWN);
    }
}
