//! Whether there is room: on the disk for the drive files, at the ports for the members. Checked before
//! anything is made.

use super::{LocalConfig, LocalError};
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use weft_types::limits::DRIVE_BYTES_MIN;

/// What a file system keeps for its own records of a large file; left free beside the drive files.
const SPARE_BYTES: u64 = 64 << 20;

/// What belongs to no part of a drive file that is formatted into several.
const BESIDE_PARTS_BYTES: u64 = 2 << 20;

/// Refuses drive files that are too small, or do not fit the disk.
pub(super) fn check_disk(config: &LocalConfig, path: &Path) -> Result<(), LocalError> {
    let minimum = match config.parts {
        1 => DRIVE_BYTES_MIN,
        parts => u64::from(parts) * DRIVE_BYTES_MIN + BESIDE_PARTS_BYTES,
    };
    if config.drive_bytes < minimum {
        return Err(LocalError::DriveTooSmall { asked: config.drive_bytes, minimum });
    }
    if config.sparse {
        return Ok(());
    }
    let needed = config.total_bytes().and_then(|b| b.checked_add(SPARE_BYTES)).unwrap_or(u64::MAX);
    let free = free_bytes(path).map_err(LocalError::file("ask for the free space of", path))?;
    if needed > free {
        return Err(LocalError::NoRoom { path: path.to_owned(), needed, free });
    }
    Ok(())
}

/// Bytes that this user may still fill on the file system of a path.
pub(crate) fn free_bytes(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut stat = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends in NUL, and the kernel fills the whole structure if it returns 0.
    let stat = unsafe {
        if libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        stat.assume_init()
    };
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Refuses if somebody listens at a port that a member needs.
pub(super) fn check_ports(config: &LocalConfig) -> Result<(), LocalError> {
    let manager = ("the manager".to_owned(), config.manager_addr.clone());
    let threads = |n| config.thread_addrs(n).into_iter();
    let nodes = config.nodes.iter().flat_map(|n| threads(n).map(|addr| (n.name.clone(), addr)));
    let members: Vec<(String, String)> = std::iter::once(manager).chain(nodes).collect();
    let firsts = config.nodes.iter().map(|n| (&*n.name, &n.addr));
    let firsts = firsts.chain([("the manager", &config.manager_addr)]);
    let metrics = firsts
        .filter_map(|(member, addr)| Some((format!("the metrics of {member}"), config.metrics_addr(addr)?)));
    for (purpose, addr) in members.iter().cloned().chain(metrics) {
        // Bound only for a moment: the member binds it anew, and says so if it was taken meanwhile.
        if let Err(source) = TcpListener::bind(addr.as_str()) {
            let port = addr.rsplit(':').next().and_then(|p| p.parse().ok()).unwrap_or(0);
            return Err(LocalError::Port { port, purpose, source });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = taken.local_addr().expect("it is bound").port();
        let config = LocalConfig {
            schema: 1,
            fabric: Default::default(),
            manager_addr: format!("127.0.0.1:{port}"),
            drive_bytes: 0,
            sparse: true,
            is_formatted: false,
            threads: 1,
            parts: 1,
            nodes: Vec::new(),
        };
        let error = check_ports(&config).expect_err("it is taken");
        assert!(error.to_string().contains(&format!("port {port} ")), "{error}");
        assert!(error.hint().contains("--port"));
    }

    #[test]
    fn files_that_do_not_fit_are_refused_unless_sparse() {
        let mut config = LocalConfig {
            schema: 1,
            fabric: Default::default(),
            manager_addr: String::new(),
            drive_bytes: 1 << 60,
            sparse: false,
            is_formatted: false,
            threads: 1,
            parts: 1,
            nodes: vec![super::super::LocalNode { name: "n".into(), addr: String::new(), drives: 300 }],
        };
        let path = std::env::temp_dir();
        assert!(matches!(check_disk(&config, &path), Err(LocalError::NoRoom { .. })));
        config.sparse = true;
        check_disk(&config, &path).expect("it may grow");
        config.drive_bytes = 4096;
        assert!(matches!(check_disk(&config, &path), Err(LocalError::DriveTooSmall { .. })));
    }
}
