//! The meeting place of ranks that `mpirun` or `srun` has started: a file in the tested folder, which says
//! where the conductor listens, and a random key, without which it answers no connection.
//!
//! Ranks have the tested file system in common, and nothing else for sure.

use super::launch::Launched;
use crate::BenchError;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long ranks wait for each other at the beginning: launchers start them within seconds.
pub(crate) const MEETING_PATIENCE: Duration = Duration::from_secs(60);

/// How often a rank looks for the meeting place.
const LOOKED_FOR: Duration = Duration::from_millis(50);

/// How long a rank waits for one address to answer.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of a key.
const KEY_BYTES: usize = 16;

/// What the file says.
#[derive(Debug, Serialize, Deserialize)]
struct Notice {
    addresses: Vec<SocketAddr>,
    key: String,
}

/// Where the conductor waits for ranks. The file is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct MeetingPlace {
    pub(crate) listener: TcpListener,
    pub(crate) key: String,
    file: PathBuf,
}

impl MeetingPlace {
    /// Listens, and writes the file.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn open(folder: &Path, launched: &Launched) -> Result<MeetingPlace, BenchError> {
        let failed = |source| BenchError::System { action: "listen for the other ranks", source };
        // Ranks of one machine need no network.
        let at = if launched.is_one_machine { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
        let listener = TcpListener::bind((at, 0)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let hosts = match launched.is_one_machine {
            true => vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            false => own_addresses().map_err(failed)?,
        };
        let addresses = hosts.into_iter().map(|host| SocketAddr::new(host, port)).collect();
        let key = random_key()?;
        let file = notice_path(folder, &launched.job);
        write(&file, &Notice { addresses, key: key.clone() })?;
        Ok(MeetingPlace { listener, key, file })
    }
}

impl Drop for MeetingPlace {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.file) {
            tracing::warn!(file = %self.file.display(), %error, "the ranks' meeting place stays behind");
        }
    }
}

/// Goes to the conductor of the same job: the connection, and the key to show.
///
/// # Errors
/// [`BenchError::Invalid`] if none is found.
pub(crate) fn meet(folder: &Path, launched: &Launched) -> Result<(TcpStream, String), BenchError> {
    let (file, began) = (notice_path(folder, &launched.job), Instant::now());
    let mut last = "it is not there".to_owned();
    while began.elapsed() < MEETING_PATIENCE {
        match fs::read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => last = error.to_string(),
            Ok(bytes) => match serde_json::from_slice::<Notice>(&bytes) {
                Err(error) => last = error.to_string(),
                Ok(notice) => match connect(&notice.addresses) {
                    Ok(stream) => return Ok((stream, notice.key)),
                    // A file that a run has left that was killed names an address where no process listens.
                    Err(error) => last = error.to_string(),
                },
            },
        }
        std::thread::sleep(LOOKED_FOR);
    }
    let (seconds, file) = (MEETING_PATIENCE.as_secs(), file.display());
    Err(BenchError::Invalid {
        what: format!("rank {} has not found rank 0 within {seconds} s by {file}: {last}", launched.rank),
    })
}

fn connect(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(address, CONNECT_PATIENCE) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn notice_path(folder: &Path, job: &str) -> PathBuf {
    folder.join(format!(".weft-bench-ranks.{job}"))
}

/// Puts the file there at once or not at all; only its owner may read it.
fn write(file: &Path, notice: &Notice) -> Result<(), BenchError> {
    let failed = |source| BenchError::File { action: "write", path: file.to_owned(), source };
    let mut partial = file.as_os_str().to_owned();
    partial.push(".partial");
    let mut open = fs::OpenOptions::new();
    open.write(true).create(true).truncate(true).mode(0o600);
    let mut out = open.open(&partial).map_err(failed)?;
    let bytes = serde_json::to_vec(notice).expect("a notice serialises");
    out.write_all(&bytes).map_err(failed)?;
    drop(out);
    fs::rename(&partial, file).map_err(failed)
}

fn random_key() -> Result<String, BenchError> {
    let mut bytes = [0; KEY_BYTES];
    fill_random(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A number that no other run has.
///
/// # Errors
/// Those of the operating system.
pub(crate) fn random_number() -> Result<u64, BenchError> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn fill_random(bytes: &mut [u8]) -> Result<(), BenchError> {
    let read = fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes));
    read.map_err(|source| BenchError::File { action: "read", path: "/dev/urandom".into(), source })
}

/// The IPv4 addresses at which other machines may reach this one.
fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call fills in a pointer to a list, which is given back below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut found, mut at) = (Vec::new(), list);
    while !at.is_null() {
        // SAFETY: the kernel's list ends with a null pointer, and lives until it is given back.
        let entry = unsafe { &*at };
        // SAFETY: an address is null, or begins with its family.
        if !entry.ifa_addr.is_null() && unsafe { (*entry.ifa_addr).sa_family } == libc::AF_INET as u16 {
            // SAFETY: an address of this family is a sockaddr_in.
            let address = unsafe { *entry.ifa_addr.cast::<libc::sockaddr_in>() };
            let address = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            if !address.is_loopback() {
                found.push(IpAddr::V4(address));
            }
        }
        at = entry.ifa_next;
    }
    // SAFETY: it is the list that the call above has made, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn launched(rank: u32, is_one_machine: bool) -> Launched {
        Launched { rank, size: 2, is_one_machine, job: format!("test-{}", std::process::id()) }
    }

    #[test]
    fn ranks_find_each_other_by_the_file_and_it_is_gone_afterwards() {
        let folder = std::env::temp_dir();
        let place = MeetingPlace::open(&folder, &launched(0, true)).expect("it listens");
        let file = place.file.clone();
        assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
        assert!(place.listener.local_addr().expect("it has one").ip().is_loopback());
        let (stream, key) = meet(&folder, &launched(1, true)).expect("it is found");
        assert_eq!((key.as_str(), key.len()), (place.key.as_str(), 2 * KEY_BYTES));
        assert_eq!(stream.peer_addr().ok(), place.listener.local_addr().ok());
        drop(place);
        assert!(!file.exists());
    }

    #[test]
    fn keys_differ_and_addresses_are_of_no_loopback() {
        assert_ne!(random_key().expect("random"), random_key().expect("random"));
        assert!(own_addresses().expect("a list").iter().all(|address| !address.is_loopback()));
    }
}
