//! Which file system on demand a command means: the one that is named, the only one that was started here, or
//! the one below PATH on the hosts of a host file.

use super::host_file::parse_hosts;
use super::plan::host_path;
use super::record::{Records, StartRecord};
use super::remote::Ssh;
use crate::error::CliError;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Where a file system is.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) hosts: Vec<String>,
    pub(super) path: PathBuf,
    /// Empty for the only one that hosts have.
    pub(super) id: String,
    pub(super) ssh: Ssh,
}

/// How a command names a file system.
#[derive(Clone, Debug, clap::Args)]
pub struct WhichArgs {
    /// The host file that it was started with: needed on another machine than the one that has started it
    #[arg(long = "hosts", short = 'n', value_name = "FILE", requires = "path")]
    pub hosts: Option<PathBuf>,
    /// The folder on the hosts that it was started with
    #[arg(long, short = 'd', value_name = "PATH", requires = "hosts")]
    pub path: Option<PathBuf>,
    /// The command that reaches a host [default: the one that it was started with, or 'ssh']
    #[arg(long, value_name = "COMMAND")]
    pub ssh: Option<Ssh>,
    /// Where this machine keeps what it knows of file systems that were started on it [default:
    /// $XDG_STATE_HOME/weft/ondemand, or ~/.local/state/weft/ondemand]
    #[arg(long, value_name = "DIR", env = "WEFT_ONDEMAND_STATE", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
}

/// Reads a host file; `-` is the standard input.
pub(super) fn read_hosts(file: &Path) -> Result<Vec<String>, CliError> {
    let text = match file.as_os_str() == "-" {
        true => io::read_to_string(io::stdin()),
        false => fs::read_to_string(file),
    };
    let text = text.map_err(CliError::file("read the host file", file))?;
    parse_hosts(&text).map_err(|error| CliError::Usage {
        message: format!("the host file {} cannot be used: {error}", file.display()),
        hint:
            "a host a line, as Slurm (`scontrol show hostnames`), PBS ($PBS_NODEFILE) and Open MPI write it"
                .into(),
    })
}

/// Finds what is meant; none if nothing was named, and nothing was started here.
pub(super) fn known(
    which: &WhichArgs,
    id: Option<&str>,
    records: &Records,
) -> Result<Option<Known>, CliError> {
    let id = id.unwrap_or_default().to_owned();
    check_id(&id)?;
    if let (Some(hosts), Some(path)) = (&which.hosts, &which.path) {
        let path = host_path(path).map_err(|message| CliError::Usage {
            message,
            hint: "name PATH as it was named for the start".into(),
        })?;
        let ssh = which.ssh.clone().unwrap_or_default();
        return Ok(Some(Known { hosts: read_hosts(hosts)?, path, id, ssh }));
    }
    let all = records.all()?;
    let found = match id.is_empty() {
        false => all.iter().find(|record| record.id == id),
        true if all.len() > 1 => {
            let ids: Vec<&str> = all.iter().map(|record| &*record.id).collect();
            return Err(CliError::Usage {
                message: format!("several file systems were started here: {}", ids.join(", ")),
                hint: "name one of them".into(),
            });
        }
        true => all.first(),
    };
    match found {
        Some(record) => of_record(record, which.ssh.clone()).map(Some),
        None if id.is_empty() => Ok(None),
        None => Err(CliError::Failed {
            message: format!("no file system on demand '{id}' was started here, or it was removed"),
            hint: "where it was started elsewhere, name its hosts and PATH with -n and -d".into(),
        }),
    }
}

fn of_record(record: &StartRecord, ssh: Option<Ssh>) -> Result<Known, CliError> {
    let ssh = match ssh {
        Some(ssh) => ssh,
        None => record.ssh.parse().map_err(|error| CliError::Failed {
            message: format!("the record of {} has '{}' as its ssh: {error}", record.id, record.ssh),
            hint: "name the command with --ssh".into(),
        })?,
    };
    let hosts = record.hosts.iter().filter(|host| !record.ended.contains(host)).cloned().collect();
    Ok(Known { hosts, path: record.path.clone(), id: record.id.clone(), ssh })
}

/// Refuses what cannot be an identity: it becomes the name of a folder.
fn check_id(id: &str) -> Result<(), CliError> {
    match id.bytes().all(|b| b.is_ascii_hexdigit()) {
        true => Ok(()),
        false => Err(CliError::Usage {
            message: format!("'{id}' is no ID of a file system on demand: it is of hexadecimal digits"),
            hint: "`weft ondemand start` and `weft ondemand status` print it".into(),
        }),
    }
}
