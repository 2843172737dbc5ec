//! The record of a client: a line when an operation is called, a line when it returns. It outlives the client, which
//! may be killed at any moment, and is read by whoever judges what all clients saw.
//!
//! Times are of CLOCK_MONOTONIC, which all processes of a machine share. A call is noted before it is made and a return
//! after it was seen, so what is recorded as one after the other was so.

use crate::Trouble;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use weft_checker::{Action, Operation, Value};

/// What is asked of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Writes this value to the first block, the next to the next, and so on.
    Write(Value),
    /// Makes them zeroes.
    Zero,
    /// Reads them.
    Read,
}

/// Where a client writes down what it does.
pub struct Recorder {
    file: RefCell<File>,
    next: Cell<u64>,
}

/// An operation that has not returned.
#[derive(Clone, Copy, Debug)]
pub struct Pending(u64);

impl Recorder {
    /// Begins a record.
    ///
    /// # Errors
    /// If the file is there already, or cannot be written.
    pub fn create(path: &Path) -> Result<Recorder, Trouble> {
        let file = OpenOptions::new().append(true).create_new(true).open(path);
        let file = file.map_err(|e| Trouble::of(path.display(), e))?;
        Ok(Recorder { file: RefCell::new(file), next: Cell::new(0) })
    }

    /// An operation is about to be called.
    ///
    /// # Panics
    /// If the record cannot be written: nothing that is not recorded may be asked.
    pub fn begin(&self, ask: Ask, first: u64, count: u64) -> Pending {
        let number = self.next.replace(self.next.get() + 1);
        let at = monotonic_ns();
        let line = match ask {
            Ask::Write(value) => format!("b {number} {at} w {first} {count} {value}\n"),
            Ask::Zero => format!("b {number} {at} z {first} {count}\n"),
            Ask::Read => format!("b {number} {at} r {first} {count}\n"),
        };
        self.say(&line);
        Pending(number)
    }

    /// An operation has succeeded; a read with these values.
    ///
    /// # Panics
    /// If the record cannot be written.
    pub fn end(&self, pending: Pending, values: &[Value]) {
        let values: String = values.iter().map(|v| format!(" {v}")).collect();
        self.say(&format!("e {} {}{values}\n", pending.0, monotonic_ns()));
    }

    fn say(&self, line: &str) {
        // One call: either all of the line is there after a kill, or none.
        self.file.borrow_mut().write_all(line.as_bytes()).expect("the record can be written");
    }
}

/// What was done to each block, from the records of several clients.
#[derive(Default)]
pub struct Histories {
    /// By block.
    pub blocks: BTreeMap<u64, Vec<Operation>>,
    /// Operations that returned.
    pub acknowledged: u64,
    /// The longest that one took, in nanoseconds.
    pub longest_ns: u64,
}

struct Begun {
    at: u64,
    ask: Ask,
    first: u64,
    count: u64,
}

impl Histories {
    /// Adds a client's record. A last line that was cut off is not there.
    ///
    /// # Errors
    /// If a line is none of a record.
    pub fn add(&mut self, client: &str, text: &str) -> Result<(), Trouble> {
        let mut begun: BTreeMap<u64, Begun> = BTreeMap::new();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines() {
            let bad = || Trouble(format!("the record of {client} has a line that is none: '{line}'"));
            let mut words = line.split(' ');
            let kind = words.next().ok_or_else(bad)?;
            let mut number = || words.next().and_then(|w| w.parse::<u64>().ok());
            let (id, at) = (number().ok_or_else(bad)?, number().ok_or_else(bad)?);
            match kind {
                "b" => {
                    let what = words.next().ok_or_else(bad)?;
                    let mut number = || words.next().and_then(|w| w.parse::<u64>().ok());
                    let (first, count) = (number().ok_or_else(bad)?, number().ok_or_else(bad)?);
                    let ask = match what {
                        "w" => Ask::Write(number().ok_or_else(bad)?),
                        "z" => Ask::Zero,
                        "r" => Ask::Read,
                        _ => return Err(bad()),
                    };
                    begun.insert(id, Begun { at, ask, first, count });
                }
                "e" => {
                    let call = begun.remove(&id).ok_or_else(bad)?;
                    let values: Vec<Value> = words.map_while(|w| w.parse().ok()).collect();
                    if call.ask == Ask::Read && values.len() as u64 != call.count {
                        return Err(bad());
                    }
                    self.acknowledged += 1;
                    self.longest_ns = self.longest_ns.max(at.saturating_sub(call.at));
                    self.note(client, &call, Some(at), &values);
                }
                _ => return Err(bad()),
            }
        }
        // Never returned: it failed, or its client was killed. It may have taken effect, or may yet.
        for call in begun.values() {
            self.note(client, call, None, &[]);
        }
        Ok(())
    }

    fn note(&mut self, client: &str, call: &Begun, end: Option<u64>, values: &[Value]) {
        for i in 0..call.count {
            let action = match call.ask {
                Ask::Write(value) => Action::Write(value + i),
                Ask::Zero => Action::Write(0),
                Ask::Read => Action::Read(values.get(i as usize).copied().unwrap_or_default()),
            };
            let operation =
                Operation { client: client.to_owned(), action, start: call.at, end, given_up: None };
            self.blocks.entry(call.first + i).or_default().push(operation);
        }
    }
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that lives through the call.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    assert_eq!(status, 0, "every Linux has this clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_checker::is_linearizable;

    fn histories(records: &[&str]) -> Histories {
        let mut all = Histories::default();
        for (i, text) in records.iter().enumerate() {
            all.add(&format!("client-{i}"), text).unwrap();
        }
        all
    }

    #[test]
    fn records_of_several_clients_become_one_history_of_each_block() {
        let all = histories(&["b 0 10 w 7 2 100\ne 0 20\n", "b 0 30 r 8 1\ne 0 40 101\n"]);
        assert_eq!(all.acknowledged, 2);
        assert_eq!(all.blocks[&7].len(), 1);
        assert!(is_linearizable(&all.blocks[&8]));
    }

    #[test]
    fn an_acknowledged_write_that_is_gone_is_noticed() {
        let all = histories(&["b 0 10 w 7 1 100\ne 0 20\n", "b 0 30 r 7 1\ne 0 40 0\n"]);
        assert!(!is_linearizable(&all.blocks[&7]));
    }

    #[test]
    fn a_killed_client_leaves_an_operation_that_may_or_may_not_have_happened() {
        for seen in [0, 100] {
            let reader = format!("b 0 30 r 7 1\ne 0 40 {seen}\n");
            let all = histories(&["b 0 10 w 7 1 100\nb 1 12 w 9", &reader]);
            assert!(is_linearizable(&all.blocks[&7]));
            assert!(!all.blocks.contains_key(&9), "that line was cut off");
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        for text in ["x 0 1\n", "b 0 1 q 1 1\n", "e 5 1\n", "b 0 1 r 1 2\ne 0 2 5\n", "b 0 1 w 1\n"] {
            assert!(Histories::default().add("c", text).is_err(), "{text:?}");
        }
    }
}
