//! Where a group holds data, beside what was written and discarded.

use crate::model;

use model::*;
use std::collections::BTreeSet;
use std::rc::Rc;
use weft_rt::random_below;
use weft_rt::sim::{Sim, SimDisk};
use weft_store::*;
use weft_types::limits::CHUNK_BLOCKS;
use weft_types::*;

const GROUP: GroupId = GroupId(1);
const OBJECTS: u64 = 5;

fn object(index: u64) -> ObjectId {
    ObjectId::new(Owner::Inode { file_system: VolumeId(3), inode: 40 + index / 2 }, index % 2)
}

/// The chunks in all parts of the list, as it is asked for by parts of so many runs.
async fn listed(
    store: &Rc<Store>,
    from: (ObjectId, ChunkIndex),
    last: ObjectId,
    limit: usize,
) -> Vec<(ObjectId, u32)> {
    let (mut chunks, mut next) = (Vec::new(), Some(from));
    while let Some(from) = next {
        let part = store.data_runs(GROUP, from, last, limit).await.unwrap();
        assert!(part.runs.len() <= limit && (part.next.is_none() || part.next > Some(from)), "{part:?}");
        for (object, run) in &part.runs {
            assert!(run.is_valid() && run.count.is_multiple_of(CHUNK_BLOCKS));
            chunks.extend(run.by_chunk().map(|(chunk, _)| (*object, u32::from(chunk.0))));
        }
        assert!(part.next.is_none_or(|(object, chunk)| object <= last && chunk.range().is_valid()));
        next = part.next;
    }
    chunks
}

#[test]
fn all_chunks_with_data_are_listed_and_no_others() {
    for seed in 0..30 {
        Sim::new(seed).block_on(async move {
            let disk = SimDisk::new("d", 16 << 20);
            let mut store = new_store(&disk).await;
            let mut blocks: BTreeSet<(ObjectId, u32)> = BTreeSet::new();
            for counter in 2..80 {
                let (object, first) = (object(random_below(OBJECTS)), random_below(900) as u32);
                let range = BlockRange::new(first, 1 + random_below(40) as u32);
                let named = range.blocks().map(|block| (object, block));
                match random_below(3) {
                    0 => {
                        store.write(zero(object, range, counter)).await.unwrap();
                        named.for_each(|block| {
                            blocks.remove(&block);
                        });
                    }
                    _ => {
                        store
                            .write(client(object, range, counter, fill(counter, range.count)))
                            .await
                            .unwrap();
                        blocks.extend(named);
                    }
                }
                match random_below(20) {
                    0 => store.checkpoint().await.unwrap(),
                    1 => store = reopen(&disk, store).await,
                    _ => {}
                }
            }
            let chunks: BTreeSet<(ObjectId, u32)> =
                blocks.iter().map(|(object, block)| (*object, block / CHUNK_BLOCKS)).collect();
            let (first, last) = (object(random_below(OBJECTS)), object(random_below(OBJECTS)));
            let (first, last) = (first.min(last), first.max(last));
            let from = ChunkIndex(random_below(8) as u16);
            let is_asked_for = |chunk: &(ObjectId, u32)| *chunk >= (first, from.0.into()) && chunk.0 <= last;
            let expected: Vec<(ObjectId, u32)> = chunks.iter().copied().filter(is_asked_for).collect();
            for limit in [1, 2, 512] {
                assert_eq!(listed(&store, (first, from), last, limit).await, expected, "seed {seed}");
            }
        });
    }
}

#[test]
fn a_part_that_ends_with_an_object_goes_on_with_the_next_one() {
    Sim::new(1).block_on(async {
        let disk = SimDisk::new("d", 128 << 20);
        let store = new_store(&disk).await;
        let object = |index| ObjectId::new(Owner::Inode { file_system: VolumeId(3), inode: 40 }, index);
        // One call looks at as many leaves as 64 objects have.
        let mut expected = Vec::new();
        for index in 0..65 {
            for chunk in 0..limits::OBJECT_CHUNKS_MAX {
                let range = BlockRange::one(chunk * CHUNK_BLOCKS);
                store.write(client(object(index), range, 5, fill(1, 1))).await.unwrap();
                expected.push((object(index), chunk));
            }
        }
        for last in [63, 64, 1_000] {
            let expected: Vec<_> = expected.iter().copied().filter(|chunk| chunk.0 <= object(last)).collect();
            assert_eq!(listed(&store, (object(0), ChunkIndex(0)), object(last), 512).await, expected);
        }
        let first = store.data_runs(GROUP, (object(0), ChunkIndex(0)), object(63), 512).await.unwrap();
        assert_eq!((first.runs.len(), first.next), (64, None), "nothing of these objects lies further");
    });
}
