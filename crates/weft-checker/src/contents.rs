//! What a file may hold, as its only writer knows: which values each part of it may have, and how long it is.
//!
//! Changes that are under way may have happened or not, in any order. So a part has a set of values, and
//! the size is one of several. A read has to find one of them, and whoever opens the file after the writer
//! has died as well. What was not synced by then may be as it was at the last sync, or as it was at any
//! time since.

use std::collections::BTreeSet;
use weft_types::BLOCK_SIZE;

/// Bytes of a part, except of the first one, which may be shorter.
const PART_BYTES: u64 = 512;

/// Changes that may be under way at once: their orders are all tried.
const CHANGES_MAX: usize = 4;

/// Values of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Values([u64; 4]);

impl Values {
    fn one(value: u8) -> Values {
        let mut values = Values([0; 4]);
        values.add(value);
        values
    }

    fn add(&mut self, value: u8) {
        self.0[usize::from(value / 64)] |= 1 << (value % 64);
    }

    fn has(&self, value: u8) -> bool {
        self.0[usize::from(value / 64)] & 1 << (value % 64) != 0
    }

    fn add_all(&mut self, other: &Values) {
        self.0.iter_mut().zip(&other.0).for_each(|(values, others)| *values |= others);
    }

    fn list(&self) -> Vec<u8> {
        (0..=u8::MAX).filter(|value| self.has(*value)).collect()
    }
}

/// A change of a file. All numbers are parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// All bytes of some parts get a value, and the file ends behind them at least.
    Write {
        /// The first of them.
        first: u64,
        /// How many.
        parts: u64,
        /// The value.
        value: u8,
    },
    /// Parts read as zeroes, as far as the file goes.
    Zero {
        /// The first of them.
        first: u64,
        /// How many.
        parts: u64,
    },
    /// The file ends there.
    Resize(u64),
    /// The file ends there at least.
    Extend(u64),
}

impl Change {
    /// The size of a file that has had this one.
    fn size_after(self, size: u64) -> u64 {
        match self {
            Change::Write { first, parts, .. } => size.max(first + parts),
            Change::Zero { .. } => size,
            Change::Resize(to) => to,
            Change::Extend(to) => size.max(to),
        }
    }

    /// The value that it gives to a part; `None` if it leaves it as it is.
    fn value_of(self, part: u64) -> Option<u8> {
        match self {
            Change::Write { first, parts, value } => (first..first + parts).contains(&part).then_some(value),
            Change::Zero { first, parts } => (first..first + parts).contains(&part).then_some(0),
            Change::Resize(to) => (part >= to).then_some(0),
            Change::Extend(_) => None,
        }
    }

    /// The part behind the last one of which it says something.
    fn end(self) -> u64 {
        match self {
            Change::Write { first, parts, .. } | Change::Zero { first, parts } => first + parts,
            Change::Resize(to) | Change::Extend(to) => to,
        }
    }
}

/// What a file may hold.
#[derive(Clone, Debug)]
pub struct Contents {
    /// By how many bytes the first part is shorter than the others: no part begins where a block does.
    shift: u64,
    /// What is behind the end is what is seen when the file grows. Parts behind these are zero.
    parts: Vec<Values>,
    /// What each part may have held at the last sync, and since.
    held: Vec<Values>,
    /// How many parts it may have.
    sizes: BTreeSet<u64>,
    /// How many it may have once the writer has died.
    durable: BTreeSet<u64>,
    under_way: Vec<Change>,
    /// What the parts may have held before the only change that is under way; what they may have held at the
    /// sync before it, and since; and how many parts the file had at least then.
    before: Vec<Values>,
    held_before: Vec<Values>,
    least_before: usize,
    last_value: u8,
}

impl Contents {
    /// A file without bytes. The first part is shorter by so many bytes, fewer than 512.
    pub fn empty(shift: u64) -> Contents {
        let none = BTreeSet::from([0]);
        let (sizes, durable) = (none.clone(), none);
        Contents {
            shift: shift % PART_BYTES,
            parts: Vec::new(),
            held: Vec::new(),
            sizes,
            durable,
            under_way: Vec::new(),
            before: Vec::new(),
            held_before: Vec::new(),
            least_before: 0,
            last_value: 0,
        }
    }

    /// The byte where a part begins.
    pub fn position(&self, part: u64) -> u64 {
        (part * PART_BYTES).saturating_sub(self.shift)
    }

    /// Bytes of some parts.
    pub fn bytes(&self, first: u64, parts: u64) -> u64 {
        self.position(first + parts) - self.position(first)
    }

    /// How many parts it has at most.
    pub fn parts(&self) -> u64 {
        self.sizes.last().copied().unwrap_or(0)
    }

    /// A value that was not written for long.
    pub fn next_value(&mut self) -> u8 {
        self.last_value = self.last_value % u8::MAX + 1;
        self.last_value
    }

    /// A change begins.
    ///
    /// # Panics
    /// If there are too many at once.
    pub fn begin(&mut self, change: Change) {
        if self.under_way.is_empty() {
            self.before = self.parts.clone();
            self.held_before = self.held.clone();
            self.least_before = self.durable_least();
        }
        self.under_way.push(change);
        assert!(self.under_way.len() <= CHANGES_MAX, "the orders of these changes are too many");
        let sizes = self.sizes.clone();
        for size in sizes {
            some_orders(&self.under_way, size, &mut |size| {
                self.sizes.insert(size);
            });
        }
        self.durable.extend(&self.sizes);
        let end = change.end().max(self.parts()) as usize;
        self.grow(end);
        for (part, (values, held)) in self.parts.iter_mut().zip(&mut self.held).enumerate() {
            if let Some(value) = change.value_of(part as u64) {
                values.add(value);
                held.add_all(values);
            }
        }
    }

    fn grow(&mut self, parts: usize) {
        if self.parts.len() < parts {
            self.parts.resize(parts, Values::one(0));
        }
        self.held.resize(self.parts.len(), Values::one(0));
    }

    /// All that are under way have happened.
    pub fn end(&mut self) {
        let changes = std::mem::take(&mut self.under_way);
        let sizes = self.sizes_after(&changes);
        if let [Change::Resize(to)] = changes[..] {
            self.durable = [to].into();
        }
        self.sizes = sizes;
        for (part, values) in self.parts.iter_mut().enumerate() {
            let mut given = changes.iter().filter_map(|change| change.value_of(part as u64));
            if let (Some(value), None) = (given.next(), given.next()) {
                *values = Values::one(value);
            }
        }
    }

    /// Sizes that the file may have once all of these changes have happened, from any that it may have now.
    fn sizes_after(&self, changes: &[Change]) -> BTreeSet<u64> {
        let mut sizes = BTreeSet::new();
        for size in &self.sizes {
            whole_orders(changes, *size, &mut |size| {
                sizes.insert(size);
            });
        }
        sizes
    }

    /// None of those that are under way happens any more. Each of them has happened, or a part of it has, or
    /// nothing.
    pub fn give_up(&mut self) {
        self.under_way.clear();
    }

    /// Who was about to change it has died. What it did is what it did, unless the size will say whether it
    /// has cut the file.
    pub fn abandon(&mut self) {
        if !matches!(self.under_way[..], [Change::Resize(_)]) || !self.is_uncertain() {
            self.give_up();
        }
    }

    /// Whether it is not known how long it is.
    pub fn is_uncertain(&self) -> bool {
        self.sizes.len() > 1
    }

    /// It was synced: what it holds now is what is found once the writer has died.
    pub fn make_durable(&mut self) {
        self.durable = self.sizes.clone();
        self.held = self.parts.clone();
    }

    /// A writer has died: the size may be one that the shard knows, and what was behind that is gone when the
    /// file grows again.
    pub fn lose_writer(&mut self) {
        self.sizes.extend(&self.durable);
        let lose = |parts: &mut Vec<Values>, least: usize, held: &[Values]| {
            parts.iter_mut().skip(least).for_each(|values| values.add(0));
            parts.iter_mut().zip(held).for_each(|(values, held)| values.add_all(held));
        };
        let least = self.durable_least();
        lose(&mut self.parts, least, &self.held);
        lose(&mut self.before, self.least_before, &self.held_before);
    }

    /// How many parts it has at least once the writer has died.
    fn durable_least(&self) -> usize {
        self.durable.first().copied().unwrap_or(0) as usize
    }

    /// It has so many bytes now, and nothing happens any more of what is under way.
    ///
    /// # Errors
    /// If it cannot have so many.
    pub fn settle(&mut self, size: u64) -> Result<(), String> {
        let parts = self.one_of(&self.sizes, size)?;
        if let [Change::Resize(to)] = self.under_way[..]
            && parts > to
        {
            // It has not happened, and nothing of it may have.
            self.parts = std::mem::take(&mut self.before);
        }
        self.give_up();
        self.sizes = [parts].into();
        self.forget_behind(parts);
        Ok(())
    }

    /// All writers have died, and so many bytes are found.
    ///
    /// # Errors
    /// If there cannot be so many.
    pub fn reopen(&mut self, size: u64) -> Result<(), String> {
        self.sizes = self.durable.clone();
        self.settle(size)?;
        self.make_durable();
        Ok(())
    }

    /// Whether it may have so many bytes now.
    ///
    /// # Errors
    /// If it cannot have.
    pub fn may_have(&self, size: u64) -> Result<(), String> {
        self.one_of(&self.sizes, size).map(drop)
    }

    fn one_of(&self, sizes: &BTreeSet<u64>, size: u64) -> Result<u64, String> {
        let found = sizes.iter().find(|parts| self.position(**parts) == size);
        found.copied().ok_or_else(|| {
            let may: Vec<u64> = sizes.iter().map(|parts| self.position(*parts)).collect();
            format!("it has {size} bytes, and may have {may:?}")
        })
    }

    /// What is behind the end reads as zeroes when the file grows.
    fn forget_behind(&mut self, parts: u64) {
        self.parts.truncate(parts as usize);
        self.held.truncate(parts as usize);
    }

    /// Compares what was read of some parts with what they may hold, and knows more of them afterwards.
    ///
    /// # Errors
    /// If they cannot hold that.
    pub fn judge(&mut self, first: u64, parts: u64, data: &[u8]) -> Result<(), String> {
        let length_at =
            |size: u64| self.position((first + parts).min(size).max(first)) - self.position(first);
        if !self.sizes.iter().any(|size| length_at(*size) == data.len() as u64) {
            let (from, sizes) = (self.position(first), &self.sizes);
            return Err(format!("a read at {from} finds {} bytes of a file of {sizes:?} parts", data.len()));
        }
        for part in first.. {
            let at = (self.position(part) - self.position(first)) as usize;
            if at >= data.len() {
                break;
            }
            let end = ((self.position(part + 1) - self.position(first)) as usize).min(data.len());
            self.judge_part(part, &data[at..end])?;
        }
        Ok(())
    }

    fn judge_part(&mut self, part: u64, data: &[u8]) -> Result<(), String> {
        let from = self.position(part);
        let may = self.parts.get(part as usize).copied().unwrap_or(Values::one(0));
        let mut found = Values([0; 4]);
        // Two blocks are two registers.
        let first_block = (from.next_multiple_of(BLOCK_SIZE as u64) - from).min(data.len() as u64);
        let (left, right) = data.split_at(first_block as usize);
        for piece in [left, right].into_iter().filter(|piece| !piece.is_empty()) {
            let value = piece[0];
            if let Some(at) = piece.iter().position(|byte| *byte != value) {
                return Err(format!(
                    "a block is torn at byte {at} behind {from}: {value}, then {}",
                    piece[at]
                ));
            }
            if !may.has(value) {
                return Err(format!("it holds {value} at {from}, and may hold {:?}", may.list()));
            }
            found.add(value);
        }
        if self.under_way.is_empty() && (part as usize) < self.parts.len() {
            self.parts[part as usize] = found;
        }
        Ok(())
    }
}

/// Every size that a file may have after some of the changes, in any order.
fn some_orders(changes: &[Change], size: u64, see: &mut impl FnMut(u64)) {
    see(size);
    for n in 0..changes.len() {
        let mut others = changes.to_vec();
        let change = others.remove(n);
        some_orders(&others, change.size_after(size), see);
    }
}

/// Every size that it may have after all of them.
fn whole_orders(changes: &[Change], size: u64, see: &mut impl FnMut(u64)) {
    if changes.is_empty() {
        see(size);
    }
    for n in 0..changes.len() {
        let mut others = changes.to_vec();
        let change = others.remove(n);
        whole_orders(&others, change.size_after(size), see);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(parts: u64) -> Contents {
        let mut file = Contents::empty(100);
        file.begin(Change::Write { first: 0, parts, value: 7 });
        file.end();
        file
    }

    #[test]
    fn what_was_written_is_read() {
        let mut file = written(3);
        assert_eq!(file.judge(0, 10, &vec![7; 3 * 512 - 100]), Ok(()));
        assert!(file.judge(0, 10, &vec![7; 3 * 512]).is_err(), "it is longer");
        assert!(file.judge(0, 3, &vec![0; 3 * 512 - 100]).is_err(), "nobody wrote zeroes");
        assert_eq!(file.judge(3, 1, &[]), Ok(()));
    }

    #[test]
    fn what_is_under_way_may_be_there_or_not_until_it_was_seen() {
        let mut file = written(2);
        file.begin(Change::Write { first: 1, parts: 2, value: 9 });
        assert_eq!(file.judge(0, 4, &[vec![7; 412], vec![9; 1024]].concat()), Ok(()));
        assert_eq!(file.judge(0, 4, &[vec![7; 412], vec![7; 512]].concat()), Ok(()));
        file.give_up();
        assert_eq!(file.judge(1, 1, &[9; 512]), Ok(()));
        assert!(file.judge(1, 1, &[7; 512]).is_err(), "it goes back");
    }

    #[test]
    fn sizes_that_were_not_told_may_be_lost_and_leave_nothing() {
        let mut file = written(2);
        file.make_durable();
        file.begin(Change::Write { first: 4, parts: 2, value: 9 });
        file.end();
        assert!(file.clone().reopen(412 + 512 * 2).is_err());
        assert_eq!(file.reopen(412 + 512), Ok(()));
        file.begin(Change::Extend(6));
        file.end();
        assert_eq!(file.judge(2, 4, &[0; 4 * 512]), Ok(()));
        assert!(file.judge(4, 1, &[9; 512]).is_err(), "what was left behind shows");
    }

    #[test]
    fn what_was_not_synced_may_be_as_it_was_before() {
        let mut file = written(2);
        file.make_durable();
        for value in [8, 9] {
            file.begin(Change::Write { first: 0, parts: 1, value });
            file.end();
        }
        assert!(file.clone().judge(0, 1, &vec![7; 412]).is_err(), "its writer lives");
        let mut synced = file.clone();
        synced.make_durable();
        synced.lose_writer();
        assert!(synced.judge(0, 1, &vec![8; 412]).is_err(), "it was synced");
        file.lose_writer();
        for value in [7, 8, 9] {
            assert_eq!(file.clone().judge(0, 1, &vec![value; 412]), Ok(()));
        }
        assert!(file.judge(1, 1, &vec![9; 512]).is_err(), "it was not written");
    }

    #[test]
    fn a_file_that_is_as_long_as_before_holds_what_it_held_before() {
        let mut file = written(4);
        file.make_durable();
        file.begin(Change::Resize(1));
        let (mut longer, mut shorter) = (file.clone(), file);
        assert_eq!(longer.reopen(longer.position(4)), Ok(()));
        assert!(longer.judge(2, 1, &[0; 512]).is_err(), "its end was taken away too early");
        assert_eq!(shorter.reopen(shorter.position(1)), Ok(()));
    }

    #[test]
    fn what_was_lost_is_lost_where_its_end_was_not_taken_away() {
        let mut file = written(4);
        file.make_durable();
        file.begin(Change::Write { first: 2, parts: 1, value: 9 });
        file.end();
        file.begin(Change::Resize(1));
        file.lose_writer();
        assert_eq!(file.settle(file.position(4)), Ok(()));
        for value in [7, 9] {
            assert_eq!(file.clone().judge(2, 1, &[value; 512]), Ok(()));
        }
        assert!(file.judge(2, 1, &[0; 512]).is_err(), "its end was taken away too early");
    }

    #[test]
    fn changes_at_once_happen_in_any_order() {
        let mut file = written(4);
        file.begin(Change::Resize(1));
        file.begin(Change::Write { first: 6, parts: 1, value: 9 });
        file.end();
        assert!(file.is_uncertain());
        for size in [1, 7] {
            assert_eq!(file.clone().settle(file.position(size)), Ok(()));
        }
        assert!(file.clone().settle(file.position(4)).is_err());
        assert!(file.judge(0, 1, &vec![0; 412]).is_err(), "it was not touched");
    }

    #[test]
    fn torn_blocks_show() {
        let mut file = written(2);
        file.begin(Change::Write { first: 0, parts: 2, value: 9 });
        let mut data = vec![7; 412 + 512];
        data[400] = 9;
        assert!(file.judge(0, 2, &data).unwrap_err().contains("torn"));
    }
}
