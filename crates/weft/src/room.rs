//! How much a process may owe to its clients: by the memory that it may use.

use std::fs;
use weft_types::limits::{ROOM_BYTES_MAX, ROOM_BYTES_MIN, ROOM_MEMORY_PARTS};

/// Bytes of room for each of so many threads: a sixteenth of the memory for all of them, and for each not
/// more than [`ROOM_BYTES_MAX`] and not less than [`ROOM_BYTES_MIN`].
pub(crate) fn room_bytes(threads: u64) -> u64 {
    room_of(memory_bytes(), threads)
}

fn room_of(memory: Option<u64>, threads: u64) -> u64 {
    let share = memory.map_or(ROOM_BYTES_MAX, |bytes| bytes / ROOM_MEMORY_PARTS / threads.max(1));
    share.clamp(ROOM_BYTES_MIN, ROOM_BYTES_MAX)
}

/// Bytes of memory that this process may use: what the machine has, or the limit of its control group where
/// that is less. `None` if neither can be read.
fn memory_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_bytes(&text));
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| group_path(&text));
    let limit =
        group.and_then(|path| fs::read_to_string(path).ok()).and_then(|text| text.trim().parse().ok());
    match (machine, limit) {
        (Some(machine), Some(limit)) => Some(std::cmp::min::<u64>(machine, limit)),
        (machine, limit) => machine.or(limit),
    }
}

/// The line `MemTotal:` of `/proc/meminfo` (proc_meminfo(5)), which counts in KiB.
fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Where the limit of a process's control group stands (cgroups(7), version 2). The file is missing at the
/// root, and says `max` where there is no limit.
fn group_path(cgroup: &str) -> Option<String> {
    let group = cgroup.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(format!("/sys/fs/cgroup/{group}/memory.max"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_machines_owe_less_and_threads_share() {
        let gib = 1 << 30;
        assert_eq!(room_of(Some(64 * gib), 1), ROOM_BYTES_MAX);
        assert_eq!(room_of(Some(2 * gib), 1), 128 << 20);
        assert_eq!(room_of(Some(16 * gib), 8), 128 << 20);
        assert_eq!(room_of(Some(gib / 2), 1), ROOM_BYTES_MIN);
        assert_eq!(room_of(None, 4), ROOM_BYTES_MAX);
    }

    #[test]
    fn the_kernel_s_files_are_read() {
        assert_eq!(total_bytes("MemTotal:       24684076 kB\nMemFree: 1 kB\n"), Some(24_684_076 << 10));
        assert_eq!(total_bytes("MemFree: 1 kB\n"), None);
        let path = "/sys/fs/cgroup/system.slice/weft.service/memory.max";
        assert_eq!(group_path("0::/system.slice/weft.service\n").as_deref(), Some(path));
        assert_eq!(group_path("4:memory:/x\n"), None);
        assert!(memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
