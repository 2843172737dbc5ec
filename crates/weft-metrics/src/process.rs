//! What this process and its machine have used, from `/proc` (proc(5), proc_pid_stat(5)).
//!
//! What cannot be read counts as nothing: on a machine without `/proc` everything else still works.

use std::fs;
use weft_types::{InterfaceLoad, ProcessLoad};

/// Reads what this process has used. It blocks for some tens of microseconds.
pub fn process_load() -> ProcessLoad {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let (ticks, pages) = usage(&read("/proc/self/stat")).unwrap_or_default();
    ProcessLoad {
        cpu_us: ticks.saturating_mul(1_000_000) / configured(libc::_SC_CLK_TCK, 100),
        resident_bytes: pages.saturating_mul(configured(libc::_SC_PAGESIZE, 4096)),
        interfaces: interfaces(&read("/proc/net/dev")),
    }
}

/// A number of the system's configuration, or what it is nearly everywhere.
fn configured(name: libc::c_int, usual: u64) -> u64 {
    // SAFETY: sysconf reads a number and touches no memory of ours.
    let value = unsafe { libc::sysconf(name) };
    u64::try_from(value).ok().filter(|value| *value > 0).unwrap_or(usual)
}

/// Processor time in clock ticks (fields 14 and 15) and resident pages (field 24) of `/proc/self/stat`. The command's
/// name, which may hold anything, ends with the last parenthesis; field 3 follows.
fn usage(stat: &str) -> Option<(u64, u64)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some((number(14)? + number(15)?, number(24)?))
}

/// Interfaces of `/proc/net/dev`: a name, eight numbers of what was received (bytes first), then as many of what
/// was sent.
fn interfaces(table: &str) -> Vec<InterfaceLoad> {
    let interface = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<&str> = numbers.split_ascii_whitespace().collect();
        Some(InterfaceLoad {
            name: name.trim().to_owned(),
            received_bytes: numbers.first()?.parse().ok()?,
            sent_bytes: numbers.get(8)?.parse().ok()?,
        })
    };
    let mut interfaces: Vec<InterfaceLoad> = table.lines().filter_map(interface).collect();
    interfaces.sort_by(|a, b| a.name.cmp(&b.name));
    interfaces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let stat =
            "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 3 0 99 1000000 321 18446744073709551615";
        assert_eq!(usage(stat), Some((300, 321)));
        assert_eq!(usage("7 (a) S 1"), None);
        assert_eq!(usage(""), None);
    }

    #[test]
    fn interfaces_are_read() {
        let table = "Inter-|   Receive                            |  Transmit\n \
             face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets\n\
             \x20   lo: 123 1 0 0 0 0 0 0 456 1 0 0 0 0 0 0\n  eth0:7 1 0 0 0 0 0 0 8 1 0 0 0 0 0 0\n";
        let found = interfaces(table);
        let of = |name: &str, received_bytes, sent_bytes| InterfaceLoad {
            name: name.into(),
            received_bytes,
            sent_bytes,
        };
        assert_eq!(found, [of("eth0", 7, 8), of("lo", 123, 456)]);
    }

    #[test]
    fn this_process_has_used_something() {
        assert!(process_load().resident_bytes > 0);
    }
}
