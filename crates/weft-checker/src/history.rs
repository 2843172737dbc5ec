//! What clients called and saw, and whether each block behaved like one atomic register.
//!
//! The check is that of Wing and Gong (1993) with the memory of Lowe (2017): look for an order of the
//! operations on a block that respects which ended before which began, and in which every read returns what
//! the write before it wrote. An operation that never ended may take effect at any time after its start, or
//! never. A write that its caller has given up may do so as well, but not after a write that the same caller
//! called later (P8). A write's value is unique in a run; zero is what every discard and write of zeroes
//! writes.
//!
//! Three things keep the search small where many write one block at the same time: a value that is there once
//! is not replaced while a read of it is still to come; writes that no read saw are not tried in all orders;
//! nor are writes of the same.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
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
    /// When its caller gave it up, if it has.
    pub given_up: Option<u64>,
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
    /// Steps between which somebody accepted that blocks were lost, and which blocks.
    losses: Vec<(u64, u64, Vec<u64>)>,
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
        let operation =
            Operation { client: client.to_owned(), action, start: inner.step, end: None, given_up: None };
        let operations = inner.blocks.entry(block).or_default();
        operations.push(operation);
        Call { block, index: operations.len() - 1 }
    }

    /// A write has completed.
    pub fn end_write(&self, call: Call) {
        self.end(call, None);
    }

    /// A write has failed, or is not waited for any more.
    pub fn give_up(&self, call: Call) {
        let mut inner = self.0.borrow_mut();
        inner.step += 1;
        let step = inner.step;
        let operation = &mut inner.blocks.get_mut(&call.block).expect("it was begun")[call.index];
        operation.given_up = Some(step);
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

    /// Somebody begins to accept a loss; say so before asking for it.
    pub fn begin_loss(&self) -> u64 {
        let mut inner = self.0.borrow_mut();
        inner.step += 1;
        inner.step
    }

    /// The loss was accepted since: each of these blocks holds something from then on that it held before, or
    /// zeroes. All others are as they were.
    pub fn end_loss(&self, began: u64, is_lost: impl Fn(u64) -> bool) {
        let mut inner = self.0.borrow_mut();
        inner.step += 1;
        let step = inner.step;
        let blocks = inner.blocks.keys().copied().filter(|b| is_lost(*b)).collect();
        inner.losses.push((began, step, blocks));
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
        let inner = self.0.borrow();
        for (block, operations) in &inner.blocks {
            let losses = inner.losses.iter().filter(|(_, _, blocks)| blocks.contains(block));
            let losses: Vec<(u64, u64)> = losses.map(|(from, to, _)| (*from, *to)).collect();
            if !is_explained(operations, &losses) {
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
/// Operations that never ended are sorted behind all others, so that they do not keep `floor` low.
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

/// Whether the operations of one block are explained, given the steps between which losses of it were
/// accepted. A loss ends one life of the block and begins another, with any value that was ever written
/// before, or zeroes. What was under way at that time may belong to either.
pub fn is_explained(operations: &[Operation], losses: &[(u64, u64)]) -> bool {
    let mut ends: Vec<(u64, u64)> = losses.to_vec();
    ends.sort();
    ends.push((u64::MAX, u64::MAX));
    let mut begins = (0, 0);
    ends.into_iter().all(|(from, to)| {
        let before = |o: &&Operation| o.start < begins.1;
        let mut initial: Vec<Value> = vec![0];
        let mut life = Vec::new();
        for o in operations.iter().filter(before) {
            if let Action::Write(value) = o.action {
                initial.push(value);
                if o.end.is_none_or(|end| end >= begins.0) {
                    life.push(Operation { end: None, ..o.clone() });
                }
            }
        }
        for o in operations.iter().filter(|o| o.start >= begins.1 && o.start < to) {
            let is_certain = o.start < from && o.end.is_some_and(|end| end < from);
            life.push(Operation { end: o.end.filter(|_| is_certain), ..o.clone() });
        }
        if begins == (0, 0) {
            initial.truncate(1);
        }
        begins = (from, to);
        initial.into_iter().any(|value| is_linearizable_from(&life, value))
    })
}

/// Whether some order explains the operations of one block, which begins as zeroes.
pub fn is_linearizable(operations: &[Operation]) -> bool {
    is_linearizable_from(operations, 0)
}

/// Likewise, of a block that begins with this value.
fn is_linearizable_from(operations: &[Operation], initial: Value) -> bool {
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
    ops.sort_by_key(|o| (o.end.is_none(), o.start));
    let ended = ops.partition_point(|o| o.end.is_some());
    let reads_of = reads_of_passing(&ops, initial);
    let mut seen = HashSet::new();
    let mut stack = vec![(Done { floor: 0, beyond: Vec::new() }, initial)];
    while let Some((done, value)) = stack.pop() {
        let done = take_reads(&ops[..ended], done, value);
        let Some(horizon) = horizon(&ops[..ended], &done) else { return true };
        if reads_of.get(&value).is_some_and(|reads| reads.iter().any(|i| !done.contains(*i))) {
            // Only a write can come now, and the value would never be there again.
            continue;
        }
        let mut next: Vec<usize> = Vec::new();
        let from = done.floor.min(ended);
        let [some, rest] = [from..ended, ended..ops.len()]
            .map(|part| part.take_while(|i| ops[*i].start <= horizon).collect::<Vec<_>>());
        for i in some.into_iter().chain(rest) {
            let op = ops[i];
            if matches!(op.action, Action::Write(_)) && !done.contains(i) && !comes_too_late(&ops, &done, op)
            {
                next.push(i);
            }
        }
        // Writes that no read saw are placed directly before another write: no read can come in between.
        let (unseen, mut next): (Vec<usize>, Vec<usize>) = next
            .into_iter()
            .partition(|i| !read.contains(&written(ops[*i])) && !makes_late(&ops, &done, ops[*i]));
        // Of writes with the same value only the first to end is tried: a later one can take any later place.
        next.sort_by_key(|i| ops[*i].end.unwrap_or(u64::MAX));
        let mut kinds = HashSet::new();
        next.retain(|i| {
            let has_order = ops[*i].given_up.is_some() || makes_late(&ops, &done, ops[*i]);
            has_order || kinds.insert((written(ops[*i]), ops[*i].end.is_some()))
        });
        let before = unseen.iter().fold(done, |done, i| done.with(*i));
        if let Some(last) = unseen.last() {
            let state = (before.clone(), written(ops[*last]));
            if seen.insert(state.clone()) {
                stack.push(state);
            }
        }
        // The first to end is tried first: it is the likeliest.
        for i in next.into_iter().rev() {
            let state = (before.with(i), written(ops[i]));
            if seen.insert(state.clone()) {
                stack.push(state);
            }
        }
    }
    false
}

/// What a write writes.
fn written(write: &Operation) -> Value {
    match write.action {
        Action::Write(value) => value,
        Action::Read(_) => unreachable!("only writes are asked for what they write"),
    }
}

/// The reads of each value that is there once only: it is written once, or is there at the beginning and not
/// written again.
fn reads_of_passing(ops: &[&Operation], initial: Value) -> HashMap<Value, Vec<usize>> {
    let mut times: HashMap<Value, u32> = HashMap::from([(initial, 1)]);
    for op in ops {
        if let Action::Write(value) = op.action {
            *times.entry(value).or_default() += 1;
        }
    }
    let mut reads: HashMap<Value, Vec<usize>> = HashMap::new();
    for (i, op) in ops.iter().enumerate() {
        match op.action {
            Action::Read(value) if times.get(&value) == Some(&1) => reads.entry(value).or_default().push(i),
            _ => {}
        }
    }
    reads
}

/// Whether a write, once it has come, keeps another one from coming that its caller had given up before.
fn makes_late(ops: &[&Operation], done: &Done, write: &Operation) -> bool {
    let open = (done.floor..ops.len()).filter(|i| !done.contains(*i)).map(|i| ops[i]);
    let is_earlier = |o: &Operation| o.given_up.is_some_and(|given_up| given_up < write.start);
    { open }.any(|o| is_earlier(o) && matches!(o.action, Action::Write(_)) && o.client == write.client)
}

/// Whether a write that was given up would take effect after one that its caller has called since.
fn comes_too_late(ops: &[&Operation], done: &Done, write: &Operation) -> bool {
    let Some(given_up) = write.given_up else { return false };
    let ordered = (0..ops.len()).filter(|i| done.contains(*i)).map(|i| ops[i]);
    let is_later = |o: &Operation| matches!(o.action, Action::Write(_)) && o.start > given_up;
    { ordered }.any(|o| is_later(o) && o.client == write.client)
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
        Operation { client: "c".into(), action, start, end, given_up: None }
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
    fn what_was_given_up_does_not_come_after_what_its_caller_called_since() {
        let given_up = |client: &str| Operation {
            client: client.into(),
            action: Write(1),
            start: 1,
            end: None,
            given_up: Some(2),
        };
        let later = [op(Write(2), 3, Some(4)), op(Read(1), 5, Some(6))];
        let with = |first: Operation| [vec![first], later.to_vec()].concat();
        assert!(!is_linearizable(&with(given_up("c"))));
        assert!(is_linearizable(&with(given_up("other"))));
        assert!(is_linearizable(&with(Operation { given_up: None, ..given_up("c") })), "its client died");
        let before =
            [given_up("c"), op(Read(1), 3, Some(5)), op(Write(2), 4, Some(6)), op(Read(2), 7, Some(8))];
        assert!(is_linearizable(&before), "it came before the later one");
        let concurrent = [given_up("c"), Operation { start: 1, ..later[0].clone() }, later[1].clone()];
        assert!(is_linearizable(&concurrent), "the other one was called before it was given up");
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
    fn an_accepted_loss_takes_back_what_was_written_and_nothing_else() {
        let ops = |seen: Value| {
            vec![
                op(Write(1), 1, Some(2)),
                op(Write(2), 3, Some(4)),
                op(Read(seen), 12, Some(13)),
                op(Write(3), 14, Some(15)),
                op(Read(3), 16, Some(17)),
            ]
        };
        for seen in [0, 1, 2] {
            assert!(is_explained(&ops(seen), &[(10, 11)]), "{seen} was there before");
        }
        assert!(!is_explained(&ops(7), &[(10, 11)]), "nobody wrote that");
        assert!(!is_explained(&ops(1), &[]), "nothing was lost");
        let mut back = ops(1);
        back.push(op(Read(2), 18, Some(19)));
        assert!(!is_explained(&back, &[(10, 11)]), "what was written since the loss stays");
        let mut before = ops(1);
        before.insert(2, op(Read(1), 5, Some(6)));
        assert!(!is_explained(&before, &[(10, 11)]), "before the loss, nothing was lost");
    }

    /// The same by trying everything: no memory, and nothing is left out.
    fn is_linearizable_plainly(ops: &[&Operation], value: Value) -> bool {
        let Some(horizon) = ops.iter().filter_map(|o| o.end).min() else { return true };
        (0..ops.len()).filter(|i| ops[*i].start <= horizon).any(|i| {
            let rest: Vec<&Operation> =
                ops.iter().copied().enumerate().filter(|(n, _)| *n != i).map(|(_, o)| o).collect();
            match ops[i].action {
                Read(seen) => seen == value && is_linearizable_plainly(&rest, value),
                Write(after) => {
                    // What its caller has given up before it does not come any more.
                    let left = rest.iter().copied().filter(|o| {
                        let is_late = o.given_up.is_some_and(|given_up| given_up < ops[i].start);
                        !(is_late && o.client == ops[i].client)
                    });
                    is_linearizable_plainly(&left.collect::<Vec<_>>(), after)
                }
            }
        })
    }

    #[test]
    fn the_search_finds_what_trying_everything_finds() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut below = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let mut explained = 0;
        for _ in 0..20_000 {
            let mut ops: Vec<Operation> = Vec::new();
            for n in 1..=2 + below(6) {
                let start = 1 + below(12);
                let end = start + 1 + below(8);
                let client = ["a", "b", "c"][below(3) as usize].to_owned();
                let operation =
                    Operation { client, action: Read(below(5)), start, end: Some(end), given_up: None };
                ops.push(match below(5) {
                    0 | 1 => operation,
                    2 => Operation { action: Write(0), ..operation },
                    3 => Operation { action: Write(n), ..operation },
                    _ => {
                        let given_up = (below(2) == 0).then_some(end);
                        let action = Write(if below(3) == 0 { 0 } else { n });
                        Operation { action, end: None, given_up, ..operation }
                    }
                });
            }
            let all: Vec<&Operation> = ops.iter().collect();
            let initial = below(3);
            let plainly = is_linearizable_plainly(&all, initial);
            assert_eq!(is_linearizable_from(&ops, initial), plainly, "{initial}: {ops:?}");
            explained += u32::from(plainly);
        }
        assert!((2_000..18_000).contains(&explained), "{explained}");
    }

    #[test]
    fn many_writers_of_one_block_do_not_make_the_search_long() {
        let mut ops = Vec::new();
        for round in 0..40 {
            let from = 1 + round * 100;
            for n in 0..24 {
                let value = 1 + round * 24 + n;
                ops.push(op(Write(value), from + n, Some(from + 50 + n)));
            }
            ops.push(op(Read(1 + round * 24 + 7), from + 80, Some(from + 81)));
        }
        assert!(is_linearizable(&ops));
        ops.push(op(Read(3), 4_000, Some(4_001)));
        assert!(!is_linearizable(&ops));
        // Zeroes are there many times.
        let mut zeroes = Vec::new();
        for n in 0..60 {
            zeroes.push(op(Write(0), 1 + n, Some(1_000 + n)));
            zeroes.push(op(Write(1 + n), 100 + n, Some(1_100 + n)));
        }
        for n in 0..20 {
            zeroes.push(op(Read(0), 200 + 4 * n, Some(201 + 4 * n)));
            zeroes.push(op(Read(1 + n), 202 + 4 * n, Some(203 + 4 * n)));
        }
        assert!(is_linearizable(&zeroes));
        zeroes.push(op(Read(1), 2_000, Some(2_001)));
        assert!(!is_linearizable(&zeroes));
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
