//! What a bundle takes, and from where: the whole list, so that it can be shown before anything is taken.

use super::SupportBundleArgs;
use crate::local::{Folder, LocalConfig};
use crate::locate::FabricPlace;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use weft_api::{ApiRequest, EventFilter, SettingsWish};
use weft_rt::Addr;

/// Files of the kernel about this machine and its limits. None of them names what other programs are told: command
/// lines and environments are not among them.
const KERNEL_FILES: &[(&str, &str)] = &[
    ("version", "/proc/version"),
    ("os-release", "/etc/os-release"),
    ("cpuinfo", "/proc/cpuinfo"),
    ("meminfo", "/proc/meminfo"),
    ("loadavg", "/proc/loadavg"),
    ("uptime", "/proc/uptime"),
    ("pressure-cpu", "/proc/pressure/cpu"),
    ("pressure-io", "/proc/pressure/io"),
    ("pressure-memory", "/proc/pressure/memory"),
    ("limits", "/proc/self/limits"),
    ("mounts", "/proc/self/mountinfo"),
    ("partitions", "/proc/partitions"),
    ("diskstats", "/proc/diskstats"),
    ("network-devices", "/proc/net/dev"),
    ("network-counters", "/proc/net/netstat"),
    ("network-protocols", "/proc/net/snmp"),
    ("network-sockets", "/proc/net/sockstat"),
];

/// What is known of the process of a member.
const PROCESS_FILES: [&str; 4] = ["status", "limits", "io", "sched"];

/// Where something comes from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// What this program and the kernel say of themselves.
    Facts(Facts),
    /// A file of the kernel, or a small one of the fabric.
    File(PathBuf),
    /// What the manager answers.
    Manager(Box<ApiRequest>),
    /// The page of metrics of a member.
    Metrics(Addr),
    /// The labels of a drive.
    Drive(PathBuf),
    /// The end of a log.
    Log(PathBuf),
    /// There is none, and why.
    Nowhere(String),
}

/// Facts that need more than reading one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Facts {
    /// Of this program, and whether it can use io_uring here.
    Program,
    /// Settings of the kernel that matter for storage.
    Settings,
    /// Block devices with their queues.
    BlockDevices,
    /// Network interfaces.
    Interfaces,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Facts(Facts::Program) => f.write_str("this program"),
            Source::Facts(Facts::Settings) => f.write_str("/proc/sys, settings by name"),
            Source::Facts(Facts::BlockDevices) => f.write_str("/sys/block"),
            Source::Facts(Facts::Interfaces) => f.write_str("/sys/class/net"),
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Manager(_) => f.write_str("the manager"),
            Source::Metrics(addr) => write!(f, "http://{addr}/metrics"),
            Source::Drive(path) => write!(f, "the labels of {}", path.display()),
            Source::Log(path) => write!(f, "the end of {}", path.display()),
            Source::Nowhere(_) => f.write_str("nowhere"),
        }
    }
}

/// One file of the bundle.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Its name in the bundle.
    pub(super) name: String,
    pub(super) source: Source,
}

/// Everything that a bundle takes; what matters most comes first, for when it does not all fit.
pub(super) struct Plan {
    pub(super) items: Vec<Item>,
}

impl Plan {
    /// The list for a fabric, as far as its places are known here.
    pub(super) fn new(args: &SupportBundleArgs, place: &FabricPlace) -> Plan {
        let mut plan = Plan { items: Vec::new() };
        plan.add("program.json", Source::Facts(Facts::Program));
        plan.machine();
        plan.manager();
        for addr in &args.metrics {
            let name = addr.to_string().replace(['/', ':', '[', ']'], "-");
            plan.add(format!("metrics/{name}.txt"), Source::Metrics(addr.clone()));
        }
        if let FabricPlace::Folder(path) = place {
            plan.local(&Folder::at(path));
        }
        for path in &args.drives {
            plan.add(format!("drives/{}.json", flat(path)), Source::Drive(path.clone()));
        }
        for path in &args.logs {
            plan.add(format!("logs/{}", flat(path)), Source::Log(path.clone()));
        }
        plan
    }

    fn add(&mut self, name: impl Into<String>, source: Source) {
        self.items.push(Item { name: name.into(), source });
    }

    fn machine(&mut self) {
        for (name, path) in KERNEL_FILES {
            self.add(format!("machine/{name}.txt"), Source::File(path.into()));
        }
        self.add("machine/settings.json", Source::Facts(Facts::Settings));
        self.add("machine/block-devices.json", Source::Facts(Facts::BlockDevices));
        self.add("machine/interfaces.json", Source::Facts(Facts::Interfaces));
    }

    fn manager(&mut self) {
        let asked = [
            ("status", ApiRequest::Status {}),
            ("map", ApiRequest::MapGet {}),
            ("events", ApiRequest::Events { after: 0, limit: None, filter: EventFilter::default() }),
            ("load", ApiRequest::Load {}),
            ("nodes", ApiRequest::NodeList {}),
            ("drives", ApiRequest::DriveList {}),
            ("pools", ApiRequest::PoolList {}),
            ("volumes", ApiRequest::VolumeList { all: false }),
            ("sessions", ApiRequest::SessionList { volume: None }),
            ("scrub", ApiRequest::ScrubStatus {}),
            ("settings", ApiRequest::Settings(SettingsWish::default())),
        ];
        for (name, request) in asked {
            assert!(!request.is_mutation(), "collecting changes nothing");
            self.add(format!("fabric/{name}.json"), Source::Manager(Box::new(request)));
        }
    }

    /// What a fabric that `weft up` made has in its folder, whether or not it runs.
    fn local(&mut self, folder: &Folder) {
        let config = match folder.config() {
            Ok(Some(config)) => config,
            Ok(None) => {
                let why = format!("there is no fabric in {}", folder.path().display());
                return self.add("local/fabric.json", Source::Nowhere(why));
            }
            Err(error) => {
                let path = folder.config_file();
                self.add("local/fabric.json", Source::File(path));
                return self.add("local", Source::Nowhere(error.to_string()));
            }
        };
        self.add("local/fabric.json", Source::File(folder.config_file()));
        self.members(folder, &config);
        for node in &config.nodes {
            for path in folder.drives(node) {
                let name = path.file_stem().map_or_else(|| flat(&path), |stem| stem.to_string_lossy().into());
                self.add(format!("drives/{}/{name}.json", node.name), Source::Drive(path));
            }
        }
        for path in newest_first(&folder.log_dir()) {
            let name = path.file_name().map_or_else(|| flat(&path), |name| name.to_string_lossy().into());
            self.add(format!("logs/{name}"), Source::Log(path));
        }
    }

    fn members(&mut self, folder: &Folder, config: &LocalConfig) {
        let nodes = config.nodes.iter().map(|node| (node.name.as_str(), node.addr.as_str()));
        let members: Vec<_> = [("manager", config.manager_addr.as_str())].into_iter().chain(nodes).collect();
        for (name, addr) in &members {
            let metrics = config.metrics_addr(addr).and_then(|addr| addr.parse().ok());
            let source = match metrics {
                Some(addr) => Source::Metrics(addr),
                None => Source::Nowhere(format!("{name} serves no metrics")),
            };
            self.add(format!("metrics/{name}.txt"), source);
        }
        for (name, _) in members {
            match folder.process(name) {
                Some(id) => {
                    for file in PROCESS_FILES {
                        let path = format!("/proc/{}/{file}", id.pid).into();
                        self.add(format!("processes/{name}/{file}.txt"), Source::File(path));
                    }
                }
                None => self.add(format!("processes/{name}"), Source::Nowhere("it does not run".into())),
            }
        }
    }
}

/// A path as one name.
fn flat(path: &Path) -> String {
    path.display().to_string().trim_start_matches(['.', '/']).replace('/', "-")
}

/// The files of a folder of logs: those in use first, then those that were put aside, the newest first, so that the
/// oldest lines are what does not fit.
fn newest_first(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    let age = |path: &PathBuf| path.extension().and_then(|e| e.to_str()?.parse::<u32>().ok()).unwrap_or(0);
    files.sort_by_key(|path| (age(path), path.clone()));
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_becomes_one_name() {
        assert_eq!(flat(Path::new("/dev/nvme0n1")), "dev-nvme0n1");
        assert_eq!(flat(Path::new("../x/y.log")), "x-y.log");
    }

    #[test]
    fn the_newest_logs_come_first() {
        let dir = std::env::temp_dir().join(format!("weft-bundle-logs-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("made");
        for name in ["b.log.1", "a.log", "a.log.10", "a.log.2", "b.log"] {
            fs::write(dir.join(name), "x").expect("written");
        }
        let names: Vec<String> = newest_first(&dir)
            .iter()
            .map(|p| p.file_name().expect("a name").to_string_lossy().into())
            .collect();
        assert_eq!(names, ["a.log", "b.log", "b.log.1", "a.log.2", "a.log.10"]);
        fs::remove_dir_all(&dir).expect("removed");
    }
}
