//! What it costs to delete an owner as a whole: work for each chunk that it has, and nothing for a byte of
//! it.

use crate::model;

use model::*;
use weft_rt::sim::{Sim, SimDisk};
use weft_store::*;
use weft_types::*;

const KEPT: ObjectId = ObjectId::of_volume(VolumeId(8), 0);

/// The owner's chunks: so many, in objects of eight chunks.
fn chunks(count: u64) -> impl Iterator<Item = (ObjectId, ChunkIndex)> {
    (0..count).map(|n| (ObjectId::of_volume(VolumeId(7), n / 8), ChunkIndex((n % 8) as u16)))
}

/// Writes so many blocks of so many chunks, deletes the owner, and says what that cost the store.
async fn cost_of_deletion(chunk_count: u64, blocks: u32) -> Usage {
    let disk = SimDisk::new("d", 64 << 20);
    let store = new_store(&disk).await;
    store.write(client(KEPT, BlockRange::one(0), 5, fill(1, 1))).await.unwrap();
    store.checkpoint().await.unwrap();
    let used = store.usage().used_blocks;
    for (object, chunk) in chunks(chunk_count) {
        let range = BlockRange::new(chunk.range().first, blocks);
        store.write(client(object, range, 5, fill(1, blocks))).await.unwrap();
    }
    store.checkpoint().await.unwrap();
    let before = store.usage();
    assert!(before.used_blocks >= used + chunk_count * u64::from(blocks));
    store.drop_objects(VolumeId(7)).await.unwrap();
    store.checkpoint().await.unwrap();
    let after = store.usage();
    store.checkpoint().await.unwrap();
    assert_eq!(store.usage().used_blocks, used, "nothing is left of it, and no tombstone for it");
    assert_eq!(store.digests(GroupId(1), None, 10).await.unwrap().len(), 1, "the other owner");
    clean(&store, 0).await;
    Usage {
        data_bytes_read: after.data_bytes_read - before.data_bytes_read,
        data_bytes_written: after.data_bytes_written - before.data_bytes_written,
        log_bytes_written: after.log_bytes_written - before.log_bytes_written,
        metadata_bytes_written: after.metadata_bytes_written - before.metadata_bytes_written,
        ..Usage::default()
    }
}

#[test]
fn deleting_an_owner_costs_nothing_for_a_byte() {
    Sim::new(1).block_on(async {
        let small = cost_of_deletion(64, 1).await;
        let large = cost_of_deletion(64, 128).await;
        for cost in [small, large] {
            assert_eq!((cost.data_bytes_read, cost.data_bytes_written), (0, 0), "no data is moved: {cost:?}");
        }
        assert_eq!(
            large.log_bytes_written, small.log_bytes_written,
            "as many records for 128 times the bytes"
        );
        assert_eq!(large.metadata_bytes_written, small.metadata_bytes_written, "as many pages");
        let many = cost_of_deletion(512, 1).await;
        assert!(
            many.log_bytes_written <= small.log_bytes_written + 448 * 64,
            "64 bytes for a chunk: {many:?}"
        );
        assert!(
            many.metadata_bytes_written <= 2 * small.metadata_bytes_written,
            "none for a chunk: {many:?}"
        );
    });
}
