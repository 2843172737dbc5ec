//! What several members of a group say of what holds data, as one answer.

use weft_types::{BlockRange, ObjectId};
use weft_wire::listing::ListAnswer;

/// Whatever one of the lists names, up to where the first of them goes on.
pub(crate) fn united(lists: Vec<ListAnswer>) -> ListAnswer {
    let next = lists.iter().filter_map(|list| list.next).min();
    let mut named: Vec<(ObjectId, BlockRange)> = lists.into_iter().flat_map(|list| list.runs).collect();
    named.sort_by_key(|(object, run)| (*object, run.first));
    let mut runs: Vec<(ObjectId, BlockRange)> = Vec::with_capacity(named.len());
    for (object, mut run) in named {
        match next {
            Some(next) if next <= (object, run.first) => break,
            Some((last, block)) if last == object => run.count = run.count.min(block - run.first),
            _ => {}
        }
        match runs.last_mut() {
            Some((before, last)) if *before == object && run.first <= last.end() => {
                last.count = last.count.max(run.end() - last.first);
            }
            _ => runs.push((object, run)),
        }
    }
    ListAnswer { runs, next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::VolumeId;

    fn list(runs: &[(u64, u32, u32)], next: Option<(u64, u32)>) -> ListAnswer {
        let object = |index| ObjectId::of_volume(VolumeId(1), index);
        let run = |&(index, first, count): &(u64, u32, u32)| (object(index), BlockRange::new(first, count));
        ListAnswer {
            runs: runs.iter().map(run).collect(),
            next: next.map(|(index, block)| (object(index), block)),
        }
    }

    #[test]
    fn what_one_of_them_names_counts_as_far_as_all_have_come() {
        let a = list(&[(1, 0, 128), (1, 512, 256), (3, 0, 128)], None);
        let b = list(&[(1, 128, 128), (1, 640, 512), (2, 0, 128)], None);
        let both = list(&[(1, 0, 256), (1, 512, 640), (2, 0, 128), (3, 0, 128)], None);
        assert_eq!(united(vec![a.clone(), b.clone()]), both);
        assert_eq!(united(vec![b, a.clone()]), both);
        let short = list(&[(1, 0, 128)], Some((1, 640)));
        assert_eq!(united(vec![a, short]), list(&[(1, 0, 128), (1, 512, 128)], Some((1, 640))));
        assert_eq!(united(vec![]), list(&[], None));
    }
}
