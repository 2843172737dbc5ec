//! What clients called and saw, and whether each block behaved like one atomic register.
//!
//! The check is that of Wing and Gong (1993) with the memory of Lowe (2017): look for an order of the
//! operations on a block that respects which ended before which began, and in which every read returns what
//! the write before it wrote. An operation that never ended may take effect at any time after its start, or
//! never. A write's value is unique in a run; zero is what every discard and write of zeroes writes.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::rc::Rc;

/// What a block holds: 0 for zeroes, else the number of the write that filled it.
pub type Value = u64;

/// An operation on one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Who called it.
    pub client: String,
    /// Written, or read (known once it has ended).
    pub action: Action,
    /// When it was called, as the history's step.
    pub start: u64,
    /// When it completed; none if it failed, or its client died.
    pub end: Option<u64>,
}

/// What an operation does to its register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sets the value.
    Write(Value),
    /// Returned the value.
    Read(Value),
}

/// Names an operation until it ends.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    block: u64,
    index: usize,
}

#[derive(Default)]
struct Inner {
    step: u64,
    next_value: Value,
    blocks: BTreeMap<u64, Vec<Operation>>,
    completed: u64,
}

/// Everything that clients called, per block. Clones share it; it survives the processes that write to it.
#[derive(Clone, Default)]
pub struct History(Rc<RefCell<Inner>>);

impl History {
    /// A value that no other write of this run has.
    pub fn fresh_value(&self) -> Value {
        let mut inner = self.0.borrow_mut();
        inner.next_value += 1;
        inner.next_value
    }

    /// A write of a block is called.
    pub fn begin_write(&self, client: &str, block: u64, value: Value) -> Call {
        self.begin(client, block, Action::Write(value))
    }

    /// A read of a block is called.
    pub fn begin_read(&self, client: &str, block: u64) -> Call {
        self.begin(client, block, Action::Read(0))
    }

    fn begin(&self, client: &str, block: u64, action: Action) -> Call {
        let mut inner = self.0.borrow_mut();
        inner.step += 1;
        let operation = Operation { client: client.to_owned(), action, start: inner.step, end: None };
        let operations = inner.blocks.entry(block).or_default();
        operations.push(operation);
        Call { block, index: operations.len() - 1 }
    }

    /// A write has completed.
    pub fn end_write(&self, call: Call) {
        self.end(call, None);
    }

    /// A read has completed with this value.
    pub fn end_read(&self, call: Call, value: Value) {
        self.end(call, Some(value));
    }

    fn end(&self, call: Call, read: Option<Value>) {
        let mut inner = self.0.borrow_mut();
        inner.step += 1;
        inner.completed += 1;
        let step = inner.step;
        let operation = &mut inner.blocks.get_mut(&call.block).expect("it was begun")[call.index];
        operation.end = Some(step);
        if let Some(value) = read {
            operation.action = Action::Read(value);
        }
    }

    /// Operations that completed so far.
    pub fn completed(&self) -> u64 {
        self.0.borrow().completed
    }

    /// The blocks that were touched.
    pub fn blocks(&self) -> Vec<u64> {
        self.0.borrow().blocks.keys().copied().collect()
    }

    /// Checks every block.
    ///
    /// # Errors
    /// The first block whose operations have no order that explains them, with all of them.
    pub fn check(&self) -> Result<(), Violation> {
        for (block, operations) in &self.0.borrow().blocks {
            if !is_linearizable(operations) {
                return Err(Violation { block: *block, operations: operations.clone() });
            }
        }
        Ok(())
    }
}

/// A block that did not behave like one atomic register.
#[derive(Debug)]
pub struct Violation {
    /// The block's address in the volume.
    pub block: u64,
    /// Everything that was done to it.
    pub operations: Vec<Operation>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "block {} is not linearizable:", self.block)?;
        for o in &self.operations {
            let end = o.end.map_or_else(|| "never".to_owned(), |e| e.to_string());
            writeln!(f, "  {:>6} .. {end:<6} {:<10} {:?}", o.start, o.client, o.action)?;
        }
        Ok(())
    }
}

/// Operations whose effect is set in the order searched so far: all before `floor`, and those in `beyond`.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Done {
    floor: usize,
    beyond: Vec<usize>,
}

impl Done {
    fn contains(&self, i: usize) -> bool {
        i < self.floor || self.beyond.binary_search(&i).is_ok()
    }

    fn with(&self, i: usize) -> Done {
        let mut next = self.clone();
        if let Err(place) = next.beyond.binary_search(&i) {
            next.beyond.insert(place, i);
        }
        while next.beyond.first() == Some(&next.floor) {
            next.beyond.remove(0);
            next.floor += 1;
        }
        next
    }
}

/// Whether some order explains the operations of one block, which begins as zeroes.
pub fn is_linearizable(operations: &[Operation]) -> bool {
    let read: HashSet<Value> = operations
        .iter()
        .filter_map(|o| match o.action {
            Action::Read(value) if o.end.is_some() => Some(value),
            _ => None,
        })
        .collect();
    let counts = |o: &&Operation| match o.action {
        // A read that never ended says nothing; nor does a write that never ended and that nobody saw.
        Action::Read(_) => o.end.is_some(),
        Action::Write(value) => o.end.is_some() || read.contains(&value),
    };
    let mut ops: Vec<&Operation> = operations.iter().filter(counts).collect();
    ops.sort_by_key(|o| o.start);
    let mut seen = HashSet::new();
    let mut stack = vec![(Done { floor: 0, beyond: Vec::new() }, 0)];
    while let Some((done, value)) = stack.pop() {
        let done = take_reads(&ops, done, value);
        let Some(horizon) = horizon(&ops, &done) else { return true };
        let mut next: Vec<usize> = Vec::new();
        for (i, op) in ops.iter().enumerate().skip(done.floor) {
            if op.start > horizon {
                break;
            }
            if matches!(op.action, Action::Write(_)) && !done.contains(i) {
                next.push(i);
            }
        }
        // The first to end is tried first: it is the likeliest.
        next.sort_by_key(|i| std::cmp::Reverse(ops[*i].end.unwrap_or(u64::MAX)));
        for i in next {
            let Action::Write(after) = ops[i].action else { unreachable!("only writes were taken") };
            let state = (done.with(i), after);
            if seen.insert(state.clone()) {
                stack.push(state);
            }
        }
    }
    false
}

/// The first end among the operations not yet ordered: whatever began after it cannot come before it.
fn horizon(ops: &[&Operation], done: &Done) -> Option<u64> {
    let open = (done.floor..ops.len()).filter(|i| !done.contains(*i));
    let mut first: Option<u64> = None;
    for i in open {
        if first.is_some_and(|end| ops[i].start > end) {
            break;
        }
        first = [first, ops[i].end].into_iter().flatten().min();
    }
    first
}

/// Orders every read that can come now and returns this value: a read changes nothing, so there is no better
/// moment for it.
fn take_reads(ops: &[&Operation], mut done: Done, value: Value) -> Done {
    loop {
        let Some(horizon) = horizon(ops, &done) else { return done };
        let found = (done.floor..ops.len())
            .take_while(|i| ops[*i].start <= horizon)
            .find(|i| !done.contains(*i) && ops[*i].action == Action::Read(value));
        match found {
            Some(i) => done = done.with(i),
            None => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(action: Action, start: u64, end: Option<u64>) -> Operation {
        Operation { client: "c".into(), action, start, end }
    }

    use Action::{Read, Write};

    #[test]
    fn a_read_may_see_either_side_of_a_concurrent_write() {
        for seen in [0, 1] {
            assert!(is_linearizable(&[op(Write(1), 1, Some(4)), op(Read(seen), 2, Some(3))]));
        }
    }

    #[test]
    fn a_completed_write_must_be_seen() {
        assert!(!is_linearizable(&[op(Write(1), 1, Some(2)), op(Read(0), 3, Some(4))]));
    }

    #[test]
    fn reads_cannot_go_back() {
        let ops = [op(Write(1), 1, Some(10)), op(Read(1), 2, Some(3)), op(Read(0), 4, Some(5))];
        assert!(!is_linearizable(&ops));
    }

    #[test]
    fn a_write_that_never_ended_may_take_effect_late_or_never_but_not_twice() {
        let lost = op(Write(1), 1, None);
        assert!(is_linearizable(&[lost.clone(), op(Read(0), 5, Some(6)), op(Read(1), 7, Some(8))]));
        assert!(is_linearizable(&[lost.clone(), op(Read(0), 5, Some(6))]));
        let twice = [
            lost,
            op(Read(1), 2, Some(3)),
            op(Write(2), 4, Some(5)),
            op(Read(2), 6, Some(7)),
            op(Read(1), 8, Some(9)),
        ];
        assert!(!is_linearizable(&twice));
    }

    #[test]
    fn zeroes_written_twice_are_not_mixed_up() {
        let ops = [
            op(Write(1), 1, Some(2)),
            op(Write(0), 3, Some(4)),
            op(Write(2), 5, Some(6)),
            op(Write(0), 7, None),
            op(Read(0), 8, Some(9)),
        ];
        assert!(is_linearizable(&ops));
        assert!(!is_linearizable(&[op(Write(1), 1, Some(2)), op(Read(7), 3, Some(4))]));
    }
}
