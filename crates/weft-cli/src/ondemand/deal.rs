//! How files of a copy are dealt to hosts: in portions, the largest files first.
//!
//! Pure. A host takes the next portion when it is done with one, so a slow host has fewer of them.

use std::collections::VecDeque;

/// Files of a portion at most.
const FILES: usize = 500;

/// Bytes of a portion at most, unless it is one file.
const BYTES: u64 = 1 << 30;

/// Portions of each host at least, as far as there are files.
const PORTIONS: u64 = 4;

/// Bytes that are added to those of a file when work is divided: to make a file takes about as long as to
/// write them.
const BYTES_OF_A_FILE: u64 = 256 << 10;

/// Portions of files, given by their sizes in bytes: lists of their places.
pub(super) fn deal(sizes: &[u64], hosts: usize) -> VecDeque<Vec<usize>> {
    let cost = |size: u64| size.saturating_add(BYTES_OF_A_FILE);
    let total = sizes.iter().fold(0u64, |sum, size| sum.saturating_add(cost(*size)));
    let portion = (total / (PORTIONS * hosts.max(1) as u64)).clamp(BYTES_OF_A_FILE, BYTES);
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|place| std::cmp::Reverse(sizes[*place]));
    let (mut portions, mut next, mut bytes) = (VecDeque::new(), Vec::new(), 0u64);
    for place in order {
        let more = cost(sizes[place]);
        if !next.is_empty() && (bytes.saturating_add(more) > portion || next.len() == FILES) {
            portions.push_back(std::mem::take(&mut next));
            bytes = 0;
        }
        next.push(place);
        bytes = bytes.saturating_add(more);
    }
    if !next.is_empty() {
        portions.push_back(next);
    }
    portions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_dealt_once_and_large_ones_first() {
        let sizes: Vec<u64> =
            (0..3000u64).map(|n| n * n % 7919 * 4096).chain([5 << 30, u64::MAX, 0]).collect();
        let portions = deal(&sizes, 4);
        let mut all: Vec<usize> = portions.iter().flatten().copied().collect();
        let sorted = all.windows(2).all(|pair| sizes[pair[0]] >= sizes[pair[1]]);
        all.sort();
        assert!(sorted && all == (0..sizes.len()).collect::<Vec<_>>());
        assert!(portions.iter().all(|portion| portion.len() <= FILES));
        assert_eq!(portions[0], [3001]);
        assert!(portions.len() >= 16, "{}", portions.len());
    }

    #[test]
    fn few_files_are_spread_over_the_hosts() {
        assert_eq!(deal(&[], 3), VecDeque::new());
        assert_eq!(deal(&[1 << 20; 8], 8).len(), 8);
        assert_eq!(deal(&[0; 8], 8).len(), 8);
    }
}
