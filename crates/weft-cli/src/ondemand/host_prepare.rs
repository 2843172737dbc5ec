//! What a host makes before anything of it runs: its record, its folders and its drives.
//!
//! It owns the choice of address and ports, and whether there is room.

use super::host_drives::{format, paths, size};
use super::message::{Prepare, Prepared};
use super::on_host::{Place, Undo, Work};
use super::record::{HostRecord, Phase, write};
use crate::error::CliError;
use crate::local::free_bytes;
use crate::size::Size;
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::{self, Command, Stdio};
use weft_types::limits::DRIVE_BYTES_MIN;

/// What the file system below PATH keeps for its own records of large files, and what logs may take.
const SPARE_BYTES: u64 = 64 << 20;

/// Where nothing is said, drives have this much of the free space, in percent.
const SHARE_PERCENT: u64 = 80;

/// A size by default is a multiple of this.
const STEP_BYTES: u64 = 64 << 20;

/// The port of the discard service (RFC 863). Nothing is sent there: the kernel is asked for the way to a
/// host.
const ANY_PORT: u16 = 9;

/// Makes the folder's parts, the record and the drives; with `resume` finds them.
pub(super) async fn prepare(work: &Work<'_>, asked: Prepare) -> Result<Prepared, CliError> {
    let place = work.place;
    let mut record = asked.record.clone();
    let earlier = match asked.resume {
        true => Some(earlier(place, &record)?),
        false => None,
    };
    // From here on what is in the folder is this start's to end, and to remove if it has made it.
    work.undo.set(if asked.resume { Undo::Stop } else { Undo::Remove });
    let address = address(&asked)?;
    let bytes = match &earlier {
        None if record.devices.is_empty() => drive_bytes(&asked, &place.0)?,
        _ => 0,
    };
    match &earlier {
        Some(earlier) => record = HostRecord { listen: String::new(), ..earlier.clone() },
        None => {
            let there = record.mountpoint.ancestors().find(|path| path.exists());
            let above = there.filter(|there| *there != record.mountpoint).map(Path::to_owned);
            record.above_mountpoint = above;
        }
    }
    let mut ports = FreePorts { address, next: asked.ports.0, last: asked.ports.1 };
    record.manager = match record.has_manager() {
        true => SocketAddr::new(address, ports.take(1)?).to_string(),
        false => String::new(),
    };
    record.listen = SocketAddr::new(address, ports.take(record.drives)?).to_string();
    record.state = Phase::Starting;
    for name in ["run", "log", "manager"] {
        let path = place.0.join(name);
        fs::create_dir_all(&path).map_err(CliError::file("create the folder", path))?;
    }
    write(&place.record_file(), &record)?;
    if earlier.is_none() {
        format(work, &record, bytes, asked.sparse)?;
    }
    let sizes = paths(place, &record).iter().map(|path| size(path)).collect::<Result<Vec<u64>, _>>()?;
    if !record.mountpoint.exists() {
        let path = &record.mountpoint;
        fs::create_dir_all(path).map_err(CliError::file("create the folder", path))?;
    }
    Ok(Prepared { address, drives: sizes.len(), bytes: sizes.iter().sum() })
}

/// The record of an earlier start, whose data are to be used.
fn earlier(place: &Place, asked: &HostRecord) -> Result<HostRecord, CliError> {
    let earlier = place.record()?;
    let refused = |message: String| {
        Err(CliError::Refused {
            message,
            hint: "resume with the hosts, PATH and MOUNTPOINT of before".into(),
        })
    };
    if earlier.state != Phase::Stopped {
        return Err(CliError::Refused {
            message: format!("the file system is {} here, not stopped", earlier.state.word()),
            hint: "end it first: `weft ondemand stop`".into(),
        });
    }
    if earlier.hosts != asked.hosts {
        return refused(format!("the data are those of the hosts {}", earlier.hosts.join(" ")));
    }
    if earlier.mountpoint != asked.mountpoint {
        return refused(format!("it was mounted at {}", earlier.mountpoint.display()));
    }
    Ok(earlier)
}

/// The address at which the node listens: that of the wanted network; or the one at which ssh has reached
/// this host; or, where that was the loopback network, the one from which other hosts are reached.
fn address(asked: &Prepare) -> Result<IpAddr, CliError> {
    if let Some(network) = &asked.network {
        return super::network::address_in(network);
    }
    match (asked.reached_at, asked.other) {
        (Some(address), _) if !address.is_loopback() => Ok(address),
        (_, Some(other)) => towards(other),
        (Some(address), None) => Ok(address),
        (None, None) => Err(CliError::Failed {
            message: "ssh has not said at which address it has reached this host (SSH_CONNECTION)".into(),
            hint: "name the network of the file system with --network ADDRESS/BITS".into(),
        }),
    }
}

/// The address of this host from which another one is reached.
fn towards(other: IpAddr) -> Result<IpAddr, CliError> {
    let any: IpAddr = if other.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let asked = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((other, ANY_PORT))?;
        socket.local_addr()
    });
    asked.map(|own| own.ip()).map_err(|error| CliError::Failed {
        message: format!("there is no way to the host at {other}: {error}"),
        hint: "name the network of the file system with --network ADDRESS/BITS".into(),
    })
}

/// Ports of the range at which no program listens.
struct FreePorts {
    address: IpAddr,
    next: u16,
    last: u16,
}

impl FreePorts {
    /// The first of several that follow each other.
    fn take(&mut self, count: u16) -> Result<u16, CliError> {
        let first = self.next;
        let mut from = u32::from(first);
        while from + u32::from(count) <= u32::from(self.last) + 1 {
            // Each is bound for a moment only: what starts there says so if somebody was faster.
            let taken = (from..from + u32::from(count))
                .rfind(|port| TcpListener::bind((self.address, *port as u16)).is_err());
            match taken {
                None => {
                    self.next = (from + u32::from(count)).min(u32::from(u16::MAX)) as u16;
                    return Ok(from as u16);
                }
                Some(port) => from = port + 1,
            }
        }
        Err(CliError::Failed {
            message: format!(
                "of the ports {first} to {} at {} no {count} that follow each other are free",
                self.last, self.address
            ),
            hint: "name other ports with --ports FIRST-LAST".into(),
        })
    }
}

/// The size of each drive: what is asked for, or a share of what is free.
fn drive_bytes(asked: &Prepare, folder: &Path) -> Result<u64, CliError> {
    let free = free_bytes(folder).map_err(CliError::file("ask for the free space of", folder))?;
    let drives = u64::from(asked.record.drives).max(1);
    let bytes = match asked.drive_bytes {
        Some(bytes) => bytes,
        None => {
            let share = free / 100 * SHARE_PERCENT / drives;
            share - share % STEP_BYTES
        }
    };
    let needed = bytes.saturating_mul(drives).saturating_add(SPARE_BYTES);
    if bytes < DRIVE_BYTES_MIN || (needed > free && !asked.sparse) {
        return Err(CliError::Failed {
            message: format!(
                "there is no room: {} are free, {drives} drives of {} need {}",
                Size(free),
                Size(bytes.max(DRIVE_BYTES_MIN)),
                Size(bytes.max(DRIVE_BYTES_MIN).saturating_mul(drives).saturating_add(SPARE_BYTES)),
            ),
            hint: "free some space, ask for less with --size, or choose another PATH".into(),
        });
    }
    Ok(bytes)
}

/// Runs a command of this program to its end, whatever that is.
pub(super) fn output_of(mut command: Command, what: &str) -> Result<process::Output, CliError> {
    command.stdin(Stdio::null()).output().map_err(|error| CliError::Failed {
        message: format!("{what}: {error}"),
        hint: "check that weft can be started there".into(),
    })
}

/// Runs a command of this program, and fails if that does.
pub(super) fn run(command: Command, what: &str) -> Result<(), CliError> {
    let failed = |reason: String, hint: &str| CliError::Failed {
        message: format!("{what}: {reason}"),
        hint: hint.to_owned(),
    };
    let done = output_of(command, what)?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let line = |word: &str| said.lines().find_map(|line| Some(line.strip_prefix(word)?.trim().to_owned()));
    let reason = line("error:").unwrap_or_else(|| said.trim().replace('\n', "; "));
    Err(failed(reason, &line("hint:").unwrap_or_else(|| "its text above says why".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_are_taken_are_passed_over() {
        let address: IpAddr = [127, 0, 0, 1].into();
        // Three in a row of which the kernel has just given one.
        let taken = TcpListener::bind((address, 0)).expect("a port is free");
        let port = taken.local_addr().expect("bound").port();
        let mut ports = FreePorts { address, next: port, last: port.saturating_add(200) };
        let first = ports.take(2).expect("two are free");
        assert!(first > port, "{first} is behind {port}");
        let second = ports.take(1).expect("one is free");
        assert!(second >= first + 2, "{second} is behind {first} and its follower");
        let none = FreePorts { address, next: port, last: port }.take(1).expect_err("it is taken");
        assert!(none.hint().contains("--ports"), "{none}");
        let last = FreePorts { address, next: u16::MAX, last: u16::MAX }.take(2).expect_err("there is one");
        assert!(last.to_string().contains("no 2 that follow"), "{last}");
    }

    #[test]
    fn the_way_to_a_host_has_an_address() {
        assert_eq!(towards([127, 0, 0, 2].into()).ok(), Some(IpAddr::from([127, 0, 0, 1])));
    }
}
