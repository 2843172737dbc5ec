//! Measures how much RAM a store takes at two fill levels of a sparse 1 TiB drive, and extrapolates.
//!
//! `cargo run --release -p weft-store --example memory [PATH]`: PATH is where the sparse file is made and
//! removed again. Only the map is filled: tombstones take leaves like data, without their checksums.

use std::rc::Rc;
use weft_rt::Drive;
use weft_store::{FormatOptions, OpenOptions, Payload, Store, Write, WriteKind};
use weft_types::{
    BlockRange, DriveId, Epoch, FabricId, Group, GroupId, ObjectId, PoolId, Role, SessionSlot, Slot, Version,
    VolumeId, limits,
};

const GROUP: GroupId = GroupId(1);
const DRIVE: DriveId = DriveId(2);
const DRIVE_BYTES: u64 = 1 << 40;

/// Chunks that are written up to each level.
const LEVELS: [u64; 2] = [20_000, 60_000];

fn main() {
    let path = std::env::args().nth(1).unwrap_or_else(|| "/tmp/weft-memory-drive".to_owned());
    let made = path.clone();
    let done = weft_rt::block_on(async move { measure(&made).await });
    let _ = std::fs::remove_file(&path);
    if let Err(error) = done.map_err(|e| e.to_string()).and_then(|r| r) {
        eprintln!("memory: {error}");
        std::process::exit(1);
    }
}

async fn measure(path: &str) -> Result<(), String> {
    let options =
        weft_rt::OpenOptions { create_bytes: Some(DRIVE_BYTES), sparse: true, ..Default::default() };
    let drive = Drive::open(path, options).await.map_err(|e| format!("cannot open {path}: {e}"))?;
    let format = FormatOptions { force: true, ..FormatOptions::new(FabricId(1), DRIVE) };
    Store::format(&drive, format).await.map_err(|e| e.to_string())?;
    let before = resident_bytes();
    let (store, report) = Store::open(drive, OpenOptions::default()).await.map_err(|e| e.to_string())?;
    let slots = vec![Slot { drive: DRIVE, role: Role::InSync, since: Epoch(1) }];
    let group = Group { id: GROUP, pool: PoolId(1), epoch: Epoch(1), slots, floor: Default::default() };
    store.set_group(group).await.map_err(|e| e.to_string())?;
    println!("empty: opened in {} us, {}", report.took_us, figures(&store, before));
    let mut seen = Vec::new();
    let mut chunk = 0;
    for level in LEVELS {
        while chunk < level {
            write_worst_chunk(&store, chunk).await?;
            chunk += 1;
        }
        println!("{level} chunks of 128 runs each: {}", figures(&store, before));
        seen.push((level, resident_bytes().saturating_sub(before)));
    }
    let [(n0, r0), (n1, r1)] = seen[..] else { unreachable!("two levels") };
    let per_chunk = r1.saturating_sub(r0) as f64 / (n1 - n0) as f64;
    let chunks = DRIVE_BYTES / (u64::from(limits::CHUNK_BLOCKS) * 4096);
    println!(
        "growth between the levels: {per_chunk:.0} bytes per chunk; all {chunks} chunks of a full drive would take \
         {:.1} GiB; the budget ends the growth at {} MiB",
        per_chunk * chunks as f64 / (1u64 << 30) as f64,
        store.usage().ram_budget_bytes >> 20
    );
    store.close().await.map_err(|e| e.to_string())
}

/// Fills a chunk so that every block is a run of its own: two versions, block by block in turn.
async fn write_worst_chunk(store: &Rc<Store>, chunk: u64) -> Result<(), String> {
    let chunks = u64::from(limits::OBJECT_CHUNKS_MAX);
    let object = ObjectId::of_volume(VolumeId(1), chunk / chunks);
    let first = (chunk % chunks) as u32 * limits::CHUNK_BLOCKS;
    let version = |n| Version::new(chunk * 2 + n, SessionSlot(1));
    let put = |range, version| Write {
        group: GROUP,
        object,
        range,
        version,
        kind: WriteKind::Client,
        payload: Payload::Zero,
    };
    let all = BlockRange::new(first, limits::CHUNK_BLOCKS);
    store.write(put(all, version(1))).await.map_err(|e| e.to_string())?;
    let writes = (0..limits::CHUNK_BLOCKS / 2).map(|i| {
        let (store, write) = (store.clone(), put(BlockRange::one(first + 2 * i), version(2)));
        async move { store.write(write).await }
    });
    for done in weft_rt::sync::join_all(writes).await {
        done.map_err(|e| e.to_string())?;
    }
    store.advance(GROUP, SessionSlot(1), version(2));
    Ok(())
}

fn figures(store: &Store, before: u64) -> String {
    let usage = store.usage();
    format!(
        "maps and caches {} MiB of {} MiB, resident set grew by {} MiB, {} dirty leaves, {} checkpoints",
        usage.ram_bytes >> 20,
        usage.ram_budget_bytes >> 20,
        resident_bytes().saturating_sub(before) >> 20,
        usage.dirty_leaves,
        usage.checkpoints
    )
}

/// The process's resident set, from the kernel: the second field of `statm`, in pages of 4 KiB.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 4096
}
