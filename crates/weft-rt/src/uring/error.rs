//! Why there is no ring, and what to do about it.

use std::io;

/// The oldest kernel with everything that the ring needs: waiting with a timeout in one call
/// (IORING_FEAT_EXT_ARG) came with Linux 5.11, all else earlier. 6.1 and later are faster: completions are
/// run when this thread asks for them instead of interrupting it (IORING_SETUP_DEFER_TASKRUN).
pub const KERNEL_OLDEST: &str = "5.11";

/// The kernel's switch for io_uring, since Linux 6.6: 0 allows it, 1 allows it to a group, 2 forbids it.
const SWITCH: &str = "/proc/sys/kernel/io_uring_disabled";

/// Why the kernel gives no io_uring.
#[derive(Debug, thiserror::Error)]
pub enum RtError {
    /// The system call does not exist.
    #[error(
        "this kernel has no io_uring: Linux {KERNEL_OLDEST} or later is needed, built with CONFIG_IO_URING; \
         inside a sandbox such as gVisor, run on the host's kernel instead"
    )]
    Missing(#[source] io::Error),
    /// The system's administrator has switched it off.
    #[error(
        "io_uring is switched off on this machine (kernel.io_uring_disabled = {switch}); allow it with \
         'sysctl -w kernel.io_uring_disabled=0'{}",
        if *.switch == 1 { ", or put this user into the group of kernel.io_uring_group" } else { "" }
    )]
    SwitchedOff {
        /// The switch's value.
        switch: u32,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A filter of system calls forbids it.
    #[error(
        "io_uring is forbidden to this process, most likely by a container's seccomp profile: allow \
         io_uring_setup, io_uring_enter and io_uring_register in it, or start the container with \
         '--security-opt seccomp=unconfined' (Docker, Podman) or 'seccompProfile: Unconfined' (Kubernetes); \
         under systemd look at SystemCallFilter="
    )]
    Forbidden(#[source] io::Error),
    /// Memory may not be locked.
    #[error(
        "not enough memory may be locked for io_uring: raise the limit with 'ulimit -l unlimited', \
         'LimitMEMLOCK=infinity' (systemd) or '--ulimit memlock=-1' (Docker)"
    )]
    Memory(#[source] io::Error),
    /// No descriptors are left.
    #[error(
        "no file descriptor is left for io_uring: raise the limit with 'ulimit -n 65536' or \
         'LimitNOFILE=65536' (systemd)"
    )]
    Descriptors(#[source] io::Error),
    /// Something that is needed came later.
    #[error("this kernel's io_uring lacks {feature}: Linux {KERNEL_OLDEST} or later is needed")]
    TooOld {
        /// What it lacks.
        feature: &'static str,
    },
    /// Anything else.
    #[error("cannot set up {what}")]
    Failed {
        /// What was to be set up.
        what: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

impl RtError {
    /// Reads the reason from the error of the set-up call, and from the kernel's switch.
    pub(super) fn of_setup(source: io::Error) -> RtError {
        let switch = std::fs::read_to_string(SWITCH).ok().and_then(|text| text.trim().parse().ok());
        Self::explain(source, switch.unwrap_or(0))
    }

    fn explain(source: io::Error, switch: u32) -> RtError {
        match source.raw_os_error() {
            Some(libc::ENOSYS) => RtError::Missing(source),
            Some(libc::EPERM | libc::EACCES) if switch > 0 => RtError::SwitchedOff { switch, source },
            Some(libc::EPERM | libc::EACCES) => RtError::Forbidden(source),
            Some(libc::ENOMEM) => RtError::Memory(source),
            Some(libc::EMFILE | libc::ENFILE) => RtError::Descriptors(source),
            _ => RtError::Failed { what: "io_uring", source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_says_what_to_do() {
        let text = |errno, switch| {
            RtError::explain(io::Error::from_raw_os_error(errno), switch).to_string().to_lowercase()
        };
        assert!(text(libc::ENOSYS, 0).contains("linux 5.11 or later"));
        assert!(text(libc::EPERM, 0).contains("--security-opt seccomp"));
        assert!(text(libc::EPERM, 2).contains("sysctl -w kernel.io_uring_disabled=0"));
        assert!(!text(libc::EPERM, 2).contains("io_uring_group"));
        assert!(text(libc::EPERM, 1).contains("io_uring_group"));
        assert!(text(libc::ENOMEM, 0).contains("ulimit -l"));
        assert!(text(libc::EMFILE, 0).contains("ulimit -n"));
    }
}
