//! The file that names the hosts of a job, in the forms that Slurm, PBS and Open MPI write.
//!
//! It owns what a line means. It reads no file and asks no host.

use std::collections::BTreeSet;

/// Hosts that a file may name: more than any job has, and few enough to start a process for each.
const HOSTS_MOST: usize = 4096;

/// Why a host file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostFileError {
    /// No line names a host.
    #[error("it names no host")]
    Empty,
    /// A line is not understood.
    #[error("line {line}: {what}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// What was found and what was expected.
        what: String,
    },
    /// It names too many hosts.
    #[error("it names more than {HOSTS_MOST} hosts")]
    TooMany,
}

/// Reads a host file. Each host comes once, in the order in which the file names it first.
///
/// A line holds host names that commas separate, as in `node[01-04,07],login1`, or one host with words such
/// as `slots=4`. `host:4` is a host with four slots. Behind `#` is a comment.
///
/// # Errors
/// [`HostFileError`] with the line that is not understood.
pub fn parse_hosts(text: &str) -> Result<Vec<String>, HostFileError> {
    let (mut hosts, mut seen) = (Vec::new(), BTreeSet::new());
    for (index, line) in text.lines().enumerate() {
        let wrong = |what: String| HostFileError::Line { line: index + 1, what };
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(names) = words.next() else { continue };
        if let Some(word) = words.find(|word| !word.contains('=')) {
            let what =
                format!("'{word}' behind '{names}': expected a word such as slots=4, or one host a line");
            return Err(wrong(what));
        }
        for pattern in split_at_commas(names).map_err(wrong)? {
            for host in expand(without_slots(pattern)).map_err(wrong)? {
                check_name(&host).map_err(wrong)?;
                // Names of hosts are the same in capitals (RFC 4343).
                if seen.insert(host.to_ascii_lowercase()) {
                    hosts.push(host);
                }
                if hosts.len() > HOSTS_MOST {
                    return Err(HostFileError::TooMany);
                }
            }
        }
    }
    if hosts.is_empty() { Err(HostFileError::Empty) } else { Ok(hosts) }
}

/// The name without `:4` behind it, the number of slots. An address of IPv6 has more than one colon.
fn without_slots(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((host, slots))
            if !host.contains(':') && !slots.is_empty() && slots.bytes().all(|b| b.is_ascii_digit()) =>
        {
            host
        }
        _ => name,
    }
}

/// Parts between commas that are not in brackets.
fn split_at_commas(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut start, mut is_inside) = (Vec::new(), 0, false);
    for (at, letter) in text.char_indices() {
        match (letter, is_inside) {
            ('[', false) => is_inside = true,
            (']', true) => is_inside = false,
            ('[', true) | (']', false) => {
                return Err(format!("'{text}' has a bracket too many: expected node[01-04,07]"));
            }
            (',', false) => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if is_inside {
        return Err(format!("'{text}' has no closing bracket: expected node[01-04,07]"));
    }
    parts.push(&text[start..]);
    Ok(parts.into_iter().filter(|part| !part.is_empty()).collect())
}

/// All names of a pattern such as `rack[1-2]node[01-04,07]`. Its brackets are balanced.
fn expand(pattern: &str) -> Result<Vec<String>, String> {
    let Some((before, rest)) = pattern.split_once('[') else { return Ok(vec![pattern.to_owned()]) };
    let (ranges, behind) = rest.split_once(']').unwrap_or((rest, ""));
    let tails = expand(behind)?;
    let mut names = Vec::new();
    for range in ranges.split(',') {
        for number in numbers(range)? {
            if names.len() + tails.len() > HOSTS_MOST {
                return Err(format!("'{pattern}' names more than {HOSTS_MOST} hosts"));
            }
            names.extend(tails.iter().map(|tail| format!("{before}{number}{tail}")));
        }
    }
    Ok(names)
}

/// The numbers of `01-04` or `07`, with the zeroes that the first one has.
fn numbers(range: &str) -> Result<Vec<String>, String> {
    let wrong = || format!("'{range}' in brackets: expected a number such as 07, or a range such as 01-04");
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let is_number = |text: &str| {
        // More digits than a number of 64 bits may have.
        !text.is_empty() && text.len() <= 18 && text.bytes().all(|b| b.is_ascii_digit())
    };
    if !is_number(first) || !is_number(last) {
        return Err(wrong());
    }
    let (from, to): (u64, u64) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
    if from > to {
        return Err(format!("'{range}' in brackets ends before it begins"));
    }
    if to - from >= HOSTS_MOST as u64 {
        return Err(format!("'{range}' in brackets names more than {HOSTS_MOST} hosts"));
    }
    let width = first.len();
    Ok((from..=to).map(|number| format!("{number:0width$}")).collect())
}

/// Refuses what is no name of a host, address or `USER@HOST`. It is an argument of ssh: a dash at its
/// beginning would make it an option.
fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '@' | '%');
    match name.chars().find(|c| !is_allowed(*c)) {
        Some(found) => Err(format!("'{name}' is no name of a host: it has '{found}'")),
        None if name.is_empty()
            || name.starts_with(['-', '@', '.'])
            || name.starts_with(':') && !name.starts_with("::")
            || name.contains("@-")
            || name.ends_with('@') =>
        {
            Err(format!("'{name}' is no name of a host"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(text: &str) -> String {
        parse_hosts(text).map_or_else(|e| format!("error: {e}"), |hosts| hosts.join(" "))
    }

    #[test]
    fn files_of_slurm_are_read() {
        assert_eq!(hosts("node1\nnode2\n"), "node1 node2");
        assert_eq!(hosts("node[01-04,07]"), "node01 node02 node03 node04 node07");
        assert_eq!(hosts("gpu[8-11]-ib,login1\n"), "gpu8-ib gpu9-ib gpu10-ib gpu11-ib login1");
        assert_eq!(hosts("r[1-2]n[01-02]"), "r1n01 r1n02 r2n01 r2n02");
        assert_eq!(hosts("n[098-101]"), "n098 n099 n100 n101");
    }

    #[test]
    fn files_of_pbs_and_of_open_mpi_are_read_and_twins_are_joined() {
        assert_eq!(hosts("a\na\nb\nA\na\n"), "a b");
        let mpi =
            "# made by hand\n\n  a slots=4 max_slots=8\r\nb.example.org slots=2 # the small one\nc:16\n";
        assert_eq!(hosts(mpi), "a b.example.org c");
        assert_eq!(hosts("root@10.0.0.1\nfe80::1%eth0\n::1\n"), "root@10.0.0.1 fe80::1%eth0 ::1");
    }

    #[test]
    fn what_is_no_host_file_is_refused_with_its_line() {
        assert_eq!(hosts(""), "error: it names no host");
        assert_eq!(hosts("# nothing\n , \n"), "error: it names no host");
        for (text, says) in [
            ("a b\n", "line 1: 'b' behind 'a'"),
            ("a\n-oProxyCommand=x\n", "line 2: '-oProxyCommand=x' is no name of a host: it has '='"),
            ("a\n-l\n", "line 2: '-l' is no name of a host"),
            (":4", "'' is no name of a host"),
            (":x", "':x' is no name of a host"),
            ("root@-l", "line 1: 'root@-l' is no name of a host"),
            ("a;b", "it has ';'"),
            ("a$(x)", "it has '$'"),
            ("n[1-2", "no closing bracket"),
            ("n1-2]", "a bracket too many"),
            ("n[]", "'' in brackets: expected a number"),
            ("n[1-x]", "'1-x' in brackets: expected a number"),
            ("n[4-1]", "ends before it begins"),
            ("n[0-999999999]", "names more than 4096 hosts"),
            ("n[1-100][1-100]", "names more than 4096 hosts"),
            ("n[1-4000],m[1-4000]", "it names more than 4096 hosts"),
            ("n[1-99999999999999999999999]", "expected a number"),
        ] {
            let said = hosts(text);
            assert!(said.starts_with("error: ") && said.contains(says), "{text}: {said}");
        }
    }
}
