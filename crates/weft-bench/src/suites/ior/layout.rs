//! Which bytes of which file are whose: the layout of an IOR test, without any I/O.
//!
//! A file has segments; in each segment each rank has one block, in the order of ranks; a block is moved by
//! transfers of one size. Where each rank has a file of its own, its blocks follow each other there.

use crate::suites::mix::Shuffle;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The files of a test, and what is in them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layout {
    /// The file, or what the names of files of ranks begin with.
    pub(crate) file: PathBuf,
    pub(crate) is_file_per_process: bool,
    pub(crate) ranks: u32,
    pub(crate) block_bytes: u64,
    pub(crate) transfer_bytes: u64,
    pub(crate) segments: u64,
    /// Transfers go to places at random, each place once.
    pub(crate) is_random: bool,
}

impl Layout {
    /// Transfers of each rank.
    pub(crate) fn transfers(&self) -> u64 {
        self.block_bytes / self.transfer_bytes * self.segments
    }

    /// Bytes of all files together.
    pub(crate) fn bytes(&self) -> u64 {
        self.block_bytes.saturating_mul(self.segments).saturating_mul(self.ranks.into())
    }

    /// Bytes of each file.
    #[cfg(test)]
    fn file_bytes(&self) -> u64 {
        if self.is_file_per_process { self.block_bytes * self.segments } else { self.bytes() }
    }

    /// The file in which a rank's data are.
    pub(crate) fn path(&self, rank: u32) -> PathBuf {
        if !self.is_file_per_process {
            return self.file.clone();
        }
        let mut path = self.file.clone().into_os_string();
        path.push(format!(".{rank:08}"));
        path.into()
    }

    /// All files.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let files = if self.is_file_per_process { self.ranks } else { 1 };
        (0..files).map(|rank| self.path(rank)).collect()
    }

    /// The number of the file in which a rank's data are.
    pub(crate) fn file_number(&self, rank: u32) -> u64 {
        if self.is_file_per_process { rank.into() } else { 0 }
    }

    /// Where in its file the data of each of a rank's transfers are, in the order in which it makes them.
    pub(crate) fn offsets(&self, rank: u32, seed: u64) -> Offsets<'_> {
        let order = self.is_random.then(|| match self.is_file_per_process {
            true => Shuffle::new(self.transfers(), seed ^ u64::from(rank)),
            false => Shuffle::new(self.transfers() * u64::from(self.ranks), seed),
        });
        Offsets { layout: self, rank, order }
    }
}

/// Where a rank's transfers go.
pub(crate) struct Offsets<'a> {
    layout: &'a Layout,
    rank: u32,
    order: Option<Shuffle>,
}

impl Offsets<'_> {
    /// Where a transfer begins in its file.
    pub(crate) fn at(&self, transfer: u64) -> u64 {
        let (layout, rank) = (self.layout, u64::from(self.rank));
        let place = match (&self.order, layout.is_file_per_process) {
            (None, true) => transfer,
            (Some(order), true) => order.at(transfer),
            (Some(order), false) => order.at(rank * layout.transfers() + transfer),
            (None, false) => {
                let per_block = layout.block_bytes / layout.transfer_bytes;
                let (segment, within) = (transfer / per_block, transfer % per_block);
                (segment * u64::from(layout.ranks) + rank) * per_block + within
            }
        };
        place * layout.transfer_bytes
    }
}

/// Whose data each rank reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOrder {
    /// Its own.
    Own,
    /// Those of the rank this many further on; of machines, if there are several.
    Next(u32),
    /// Those of any rank, by this seed; each rank's data are read once.
    Random(u64),
}

impl ReadOrder {
    /// The rank whose data this one reads, where the next machine is this many ranks away.
    pub(crate) fn whose(self, rank: u32, ranks: u32, to_next_machine: u32) -> u32 {
        match self {
            ReadOrder::Own => rank,
            ReadOrder::Next(far) => {
                let far = u64::from(far) * u64::from(to_next_machine);
                ((u64::from(rank) + far) % u64::from(ranks)) as u32
            }
            ReadOrder::Random(seed) => Shuffle::new(ranks.into(), seed).at(rank.into()) as u32,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeSet;

    pub(crate) fn layout() -> Layout {
        Layout {
            file: "/tmp/test".into(),
            is_file_per_process: false,
            ranks: 3,
            block_bytes: 8192,
            transfer_bytes: 4096,
            segments: 2,
            is_random: false,
        }
    }

    fn offsets(layout: &Layout, rank: u32) -> Vec<u64> {
        let offsets = layout.offsets(rank, 5);
        (0..layout.transfers()).map(|n| offsets.at(n)).collect()
    }

    #[test]
    fn blocks_of_ranks_follow_each_other_in_each_segment() {
        let layout = layout();
        assert_eq!(offsets(&layout, 0), [0, 4096, 24_576, 28_672]);
        assert_eq!(offsets(&layout, 2), [16_384, 20_480, 40_960, 45_056]);
        assert_eq!((layout.bytes(), layout.file_bytes(), layout.paths().len()), (49_152, 49_152, 1));
    }

    #[test]
    fn a_file_of_its_own_has_a_ranks_blocks_one_after_the_other() {
        let layout = Layout { is_file_per_process: true, ..layout() };
        assert_eq!(offsets(&layout, 2), [0, 4096, 8192, 12_288]);
        assert_eq!(layout.path(2), PathBuf::from("/tmp/test.00000002"));
        assert_eq!((layout.file_bytes(), layout.paths().len(), layout.file_number(2)), (16_384, 3, 2));
    }

    #[test]
    fn random_transfers_go_to_each_place_once() {
        for is_file_per_process in [false, true] {
            let layout = Layout { is_random: true, segments: 40, is_file_per_process, ..layout() };
            let of_ranks: Vec<Vec<u64>> = (0..3).map(|rank| offsets(&layout, rank)).collect();
            let whole = if is_file_per_process { of_ranks[0].clone() } else { of_ranks.concat() };
            let places: BTreeSet<u64> = whole.iter().copied().collect();
            let all: BTreeSet<u64> = (0..layout.file_bytes()).step_by(4096).collect();
            assert!(places == all && whole.len() == all.len());
            assert!(!of_ranks[0].is_sorted());
            assert!(of_ranks[0] != of_ranks[1], "each rank has an order of its own");
        }
    }

    #[test]
    fn each_ranks_data_are_read_once_in_every_order() {
        for order in [ReadOrder::Own, ReadOrder::Next(1), ReadOrder::Next(2), ReadOrder::Random(3)] {
            let read: BTreeSet<u32> = (0..6).map(|rank| order.whose(rank, 6, 1)).collect();
            assert_eq!(read, (0..6).collect(), "{order:?}");
        }
        assert_eq!([0, 5].map(|rank| ReadOrder::Next(1).whose(rank, 6, 1)), [1, 0]);
        assert_eq!([0, 5].map(|rank| ReadOrder::Next(1).whose(rank, 6, 3)), [3, 2], "on the next machine");
    }
}
