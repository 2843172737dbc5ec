//! Which cores a thread may run on.
//!
//! It owns the calls of the operating system. It never decides who gets which core.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

/// The cores that the calling thread may run on, in order.
///
/// # Errors
/// Those of the operating system.
pub fn allowed() -> io::Result<Vec<usize>> {
    // SAFETY: a cpu_set_t is plain bits, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable for its size; 0 names the calling thread.
    let outcome = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: every index is below CPU_SETSIZE, the number of bits in the set.
    let is_set = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    Ok((0..libc::CPU_SETSIZE as usize).filter(is_set).collect())
}

/// Where the kernel lists the NUMA nodes of the machine.
const NUMA_NODES: &str = "/sys/devices/system/node";

/// The cores that the calling thread may run on, by the NUMA node that they are on. Nodes without such a core
/// are not there, and none are where the kernel lists none.
pub fn allowed_by_numa_node() -> BTreeMap<u32, Vec<usize>> {
    by_numa_node(&allowed().unwrap_or_default(), Path::new(NUMA_NODES))
}

fn by_numa_node(allowed: &[usize], nodes: &Path) -> BTreeMap<u32, Vec<usize>> {
    let cores = |folder: &Path| {
        let listed = cores_of_list(&fs::read_to_string(folder.join("cpulist")).unwrap_or_default());
        listed.into_iter().filter(|core| allowed.contains(core)).collect::<Vec<_>>()
    };
    let node = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        Some((number, cores(&entry.path())))
    };
    let nodes = fs::read_dir(nodes).into_iter().flatten().flatten().filter_map(node);
    nodes.filter(|(_, cores)| !cores.is_empty()).collect()
}

/// The cores of a list as the kernel writes it: `0-2,5`. What is no number is left out.
fn cores_of_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (usize, usize) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        Some(from..=to.min(libc::CPU_SETSIZE as usize))
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// Lets the calling thread, and what it starts from now on, run on these cores only.
///
/// # Errors
/// Those of the operating system: none of the cores exists or is allowed.
pub fn pin_to(cpus: &[usize]) -> io::Result<()> {
    pin(0, cpus)
}

/// Lets every thread that a process has at this moment run on these cores only.
///
/// # Errors
/// Those of the operating system: no such process, or none of the cores exists or is allowed.
pub fn pin_process(pid: u32, cpus: &[usize]) -> io::Result<()> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let name = task?.file_name();
        let thread = name.to_str().and_then(|n| n.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        pin(thread, cpus)?;
    }
    Ok(())
}

/// Pins one thread; 0 names the calling one.
fn pin(thread: libc::pid_t, cpus: &[usize]) -> io::Result<()> {
    // SAFETY: a cpu_set_t is plain bits, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus {
        if *cpu >= libc::CPU_SETSIZE as usize {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        // SAFETY: the index was just checked to be below the number of bits.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: `set` is readable for its size; a thread that does not exist is an error, no harm.
    match unsafe { libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_told_apart_by_numa_node() {
        assert_eq!(cores_of_list("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(cores_of_list("\n"), [0; 0]);
        let folder = std::env::temp_dir().join(format!("weft-numa-{}", std::process::id()));
        for (node, cores) in [("node0", "0-1\n"), ("node1", "2-3\n"), ("node2", "\n"), ("power", "4")] {
            fs::create_dir_all(folder.join(node)).expect("a folder");
            fs::write(folder.join(node).join("cpulist"), cores).expect("a file");
        }
        let found = by_numa_node(&[1, 2, 3, 4], &folder);
        let _ = fs::remove_dir_all(&folder);
        assert_eq!(found, BTreeMap::from([(0, vec![1]), (1, vec![2, 3])]));
        assert_eq!(by_numa_node(&[0], &folder), BTreeMap::new());
        let all: usize = allowed_by_numa_node().values().map(Vec::len).sum();
        assert!(all == 0 || all == allowed().expect("the kernel says").len());
    }

    #[test]
    fn a_thread_can_be_pinned_and_released() {
        std::thread::spawn(|| {
            let before = allowed().expect("the kernel says");
            pin_to(&before[..1]).expect("it is allowed");
            assert_eq!(allowed().expect("the kernel says"), before[..1]);
            pin_to(&before).expect("it was allowed before");
            assert_eq!(allowed().expect("the kernel says"), before);
            assert!(pin_to(&[libc::CPU_SETSIZE as usize]).is_err());
            assert!(pin_process(u32::MAX, &before).is_err());
        })
        .join()
        .expect("no assertion failed");
    }
}
