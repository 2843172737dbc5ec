//! Which version of a block counts as the newest, of what several replicas say that they hold: readers, sweeps and scrubs
//! decide it alike (R8).
//!
//! Where a newer one is damaged wherever it is, and a member holds an older one, the newer was neither complete nor ever
//! returned, because then every member would hold it: it is a write in flight, or one whose writer died. Whatever a
//! member holds is at least as new as all that was, so what can be read is taken, as if that write had not come yet; its
//! writer may still put it again, and that heals it.

use crate::data::{Content, Extent};
use weft_types::{BlockRange, DriveId, Version};

/// The newest version of a run of blocks; of those that some replica can read, if there are any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    /// The blocks.
    pub range: BlockRange,
    /// The version; zero where nothing was ever written.
    pub version: Version,
    /// What it is; damaged if nobody can read it.
    pub content: Content,
    /// The replicas that hold it undamaged, in the order in which they were given.
    pub intact_on: Vec<DriveId>,
}

/// Cuts a range into runs that have one newest version, held intact by the same replicas. The runs are in order, without
/// gaps; blocks of which a replica says nothing are not held by it.
pub fn newest_runs(range: BlockRange, holdings: &[(DriveId, Vec<Extent>)]) -> Vec<Newest> {
    let mut runs: Vec<Newest> = Vec::new();
    for block in range.blocks() {
        let held = holdings
            .iter()
            .filter_map(|(drive, extents)| Some((*drive, extents.iter().find(|x| x.range.contains(block))?)));
        let held: Vec<(DriveId, &Extent)> = held.collect();
        let readable = held.iter().filter(|(_, x)| x.content != Content::Damaged);
        let newest = readable.map(|(_, x)| x.version).max().or(held.iter().map(|(_, x)| x.version).max());
        let version = newest.unwrap_or(Version::ZERO);
        let intact = |x: &Extent| x.version == version && x.content != Content::Damaged;
        let intact_on: Vec<DriveId> = held.iter().filter(|(_, x)| intact(x)).map(|(d, _)| *d).collect();
        let content = held.iter().find(|(_, x)| intact(x)).map_or(Content::Damaged, |(_, x)| x.content);
        match runs.last_mut() {
            Some(run) if run.version == version && run.content == content && run.intact_on == intact_on => {
                run.range.count += 1;
            }
            _ => runs.push(Newest { range: BlockRange::one(block), version, content, intact_on }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::SessionSlot;

    fn extent(first: u32, count: u32, counter: u64, content: Content) -> Extent {
        let version = if counter == 0 { Version::ZERO } else { Version::new(counter, SessionSlot(1)) };
        Extent { range: BlockRange::new(first, count), version, open: false, content, crcs: vec![] }
    }

    #[test]
    fn the_newest_of_each_block_is_found_with_those_who_can_read_it() {
        let (a, b) = (DriveId(1), DriveId(2));
        let of_a = vec![
            extent(0, 4, 5, Content::Data),
            extent(4, 4, 7, Content::Zero),
            extent(8, 1, 8, Content::Damaged),
        ];
        let of_b = vec![
            extent(0, 2, 5, Content::Data),
            extent(2, 1, 5, Content::Damaged),
            extent(3, 3, 0, Content::Zero),
            extent(6, 2, 9, Content::Damaged),
            extent(8, 1, 9, Content::Damaged),
            extent(9, 1, 0, Content::Zero),
        ];
        let runs = newest_runs(BlockRange::new(0, 10), &[(b, of_b), (a, of_a)]);
        let found: Vec<_> = runs
            .iter()
            .map(|r| (r.range.first, r.range.count, r.version.counter(), r.content, &r.intact_on[..]))
            .collect();
        // Nobody can read what is newer than the zeroes of blocks 6 and 7, and it was never complete; nobody can read
        // anything of block 8; block 9 was never written, as far as anybody says.
        let expected: [(u32, u32, u64, Content, &[DriveId]); 5] = [
            (0, 2, 5, Content::Data, &[b, a]),
            (2, 2, 5, Content::Data, &[a]),
            (4, 4, 7, Content::Zero, &[a]),
            (8, 1, 9, Content::Damaged, &[]),
            (9, 1, 0, Content::Zero, &[b]),
        ];
        assert_eq!(found, expected);
    }
}
