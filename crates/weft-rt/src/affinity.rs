//! Which cores a thread may run on.
//!
//! It owns the calls of the operating system. It never decides who gets which core.

use std::io;

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
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
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
