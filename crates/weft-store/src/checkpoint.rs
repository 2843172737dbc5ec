//! Checkpoints: the changes since the last one become a new root, so that the log before can be reused.
//!
//! ```text
//!   freeze (one instant) -> block map pages -> state pages -> bitmap pages, zone table
//!     -> batch of the instant is durable -> flush -> superblock -> flush -> old pages and log are free
//! ```
//!
//! The order is what makes it safe: until the second flush the older superblock holds, and nothing that it
//! reaches has been written over; after it, the newer one holds, and everything that it reaches is durable.
//! Writers go on all the time; what they change after the freeze belongs to the next checkpoint. The
//! places of what they replace stay taken until this one is durable, which reaches them.

use crate::StoreError;
use crate::bitmap::{self, ZoneBits};
use crate::engine::Engine;
use crate::label::FORMAT_VERSION;
use crate::leaf::{Leaf, LeafKey};
use crate::page::{PAGE_ROOM, PageDraft, PageKind, PageReader, PageWriter};
use crate::region::{Place, PlaceRun, ZONE_ENTRY_BYTES};
use crate::state::{State, ZoneEntry};
use crate::superblock::{PageRef, Superblock, TreeRoot};
use crate::tree::{self, TreeBuild};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weft_rt::sync::join_all;
use weft_rt::{Buf, BufMut, breathe};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::{BLOCK_SIZE, Version};
use weft_wire::{DecodeError, Decoder, Encoder, crc32c};

/// Bitmap pages that are written at the same time.
const BITMAP_WRITES_MAX: usize = 16;

/// Bytes of state in one page, behind the reference to the next.
pub(crate) const STATE_ROOM: usize = PAGE_ROOM - PageRef::BYTES;

/// The checkpointer: takes a checkpoint whenever one is wanted, until the store is stopped or fails.
pub(crate) async fn run(engine: Rc<Engine>) {
    loop {
        let waits_for = {
            let mut state = engine.state.borrow_mut();
            if state.is_stopped || state.failed.is_some() {
                return;
            }
            let is_wanted = state.checkpoints_wanted > state.checkpoints_begun;
            if state.checkpoint_waits_for_reads() {
                Some(&engine.read_ended)
            } else if is_wanted
                && (state.checkpoint_holds == 0 || std::mem::take(&mut state.checkpoint_despite_holds))
            {
                None
            } else {
                Some(&engine.checkpoint_wanted)
            }
        };
        if let Some(event) = waits_for {
            event.notified().await;
            continue;
        }
        if let Err(error) = take(&engine).await {
            engine.fail(&error);
            return;
        }
        engine.checkpointed.notify_all();
    }
}

/// What the drive shall hold: the state of one instant.
struct Frozen {
    number: u64,
    /// The newest batch whose records are in it.
    batch: u64,
    leaves: Vec<(LeafKey, Rc<Leaf>)>,
    state: Vec<u8>,
    dirty_zones: Vec<u64>,
    /// Replaced by batches up to `batch`: free in the checkpoint, although not yet reusable.
    replaced: Vec<PlaceRun>,
    root: Option<TreeRoot>,
    state_pages: Vec<PageRef>,
    /// Pages of format 1 that are rewritten beside.
    conversions: usize,
}

/// What a checkpoint has written beside the superblock.
struct Written {
    root: Option<TreeRoot>,
    state_pages: Vec<PageRef>,
    /// Pages that only the older checkpoint reaches.
    retired: Vec<PageRef>,
    /// How many of them were of format 1.
    converted: u64,
    taken: Vec<PlaceRun>,
    zones: Vec<(u64, ZoneEntry)>,
    bytes: u64,
}

/// Takes one checkpoint.
///
/// # Errors
/// Any of them means that the drive has failed: it may be written to no more.
pub(crate) async fn take(engine: &Engine) -> Result<(), StoreError> {
    mark(Path::CheckpointTaken);
    let frozen = freeze(&mut engine.state.borrow_mut());
    engine.work.notify_all();
    let mut written = write_pages(engine, &frozen).await?;
    check_retired(&engine.state.borrow(), &written)?;
    write_bitmaps(engine, &frozen, &mut written).await?;
    let (table_copy, table_crc) = write_zone_table(engine, &mut written).await?;
    let log_position = wait_for_batch(engine, frozen.batch).await?;
    if !mutated(Mutation::PagesNotFlushed) {
        engine.flush().await?;
    }
    let superblock = Superblock {
        format: FORMAT_VERSION,
        drive: engine.label.drive,
        checkpoint: frozen.number,
        batch: frozen.batch,
        log_position,
        root: written.root,
        state: written.state_pages.first().copied(),
        table_copy,
        table_crc,
        must_know: 0,
        may_ignore: 0,
    };
    let slot = if mutated(Mutation::SuperblockInPlace) { 0 } else { frozen.number };
    let at = Superblock::slot(slot).offset();
    write(engine, at, superblock.encode().freeze()).await?;
    if !mutated(Mutation::SuperblockNotFlushed) {
        engine.flush().await?;
    }
    switch(engine, &mut engine.state.borrow_mut(), superblock, written)
}

/// Fixes the instant: closes the open batch, so that the state is that of whole batches.
fn freeze(state: &mut State) -> Frozen {
    state.checkpoints_begun += 1;
    state.records_since_checkpoint = 0;
    let batch = state.commits.close_for_checkpoint();
    state.frees.begin_checkpoint(batch);
    let encoded = state.drive.encode();
    state.state_bytes = encoded.len() as u64;
    let groups = &state.drive.groups;
    let floor = |group| groups.get(&group).map_or(Version::ZERO, |held| held.floor);
    let (leaves, forgotten) = state.map.freeze(floor);
    state.figures.tombstones_forgotten += forgotten;
    Frozen {
        number: state.superblock.checkpoint + 1,
        batch,
        leaves,
        state: encoded,
        dirty_zones: state.bitmap.freeze(),
        replaced: state.frees.runs(),
        root: state.superblock.root,
        state_pages: state.state_pages.clone(),
        conversions: state.conversions(),
    }
}

/// Writes the block map's and the state's pages.
async fn write_pages(engine: &Engine, frozen: &Frozen) -> Result<Written, StoreError> {
    let allocate = || engine.state.borrow_mut().bitmap.allocate_page();
    let writer = PageWriter::new(engine.drive.clone(), &allocate);
    let mut build = TreeBuild {
        reader: &engine.reader,
        writer,
        checkpoint: frozen.number,
        conversions: frozen.conversions,
        converted: 0,
        retired: Vec::new(),
    };
    let root = build.apply(frozen.root, &frozen.leaves).await?;
    let state_pages = write_state(&mut build.writer, frozen.number, &frozen.state).await?;
    build.writer.finish().await?;
    let (mut retired, converted) = (build.retired, build.converted);
    retired.extend(&frozen.state_pages);
    let (taken, bytes) = (build.writer.taken, build.writer.bytes.get());
    if mutated(Mutation::RetiredReusedEarly) {
        for page in retired.drain(..) {
            let _ = engine.state.borrow_mut().bitmap.release(PlaceRun { place: page.place, count: 1 });
        }
    }
    Ok(Written { root, state_pages, retired, converted, taken, zones: Vec::new(), bytes })
}

/// Pages that the older checkpoint reached are in use as long as it holds; the bitmap, read from the same drive, has
/// to say so too.
fn check_retired(state: &State, written: &Written) -> Result<(), StoreError> {
    // What is taken by the new checkpoint was free, so the older one cannot have reached it.
    let mut seen: BTreeSet<Place> = written.taken.iter().map(|run| run.place).collect();
    for run in tree::places(&written.retired) {
        let owned = state.bitmap.check_owned(run);
        owned.map_err(|unowned| unowned.found_by("a page of an older checkpoint"))?;
        if !seen.insert(run.place) {
            let reason = "the bitmap had the place as free, or the older checkpoint reaches it in two ways";
            return Err(StoreError::damaged("a page of an older checkpoint", run.place, reason));
        }
    }
    Ok(())
}

/// Writes the state blob as a chain of pages, the last first, because each names its follower's checksum.
async fn write_state(
    writer: &mut PageWriter<'_>,
    checkpoint: u64,
    state: &[u8],
) -> Result<Vec<PageRef>, StoreError> {
    let mut pages = Vec::new();
    let mut next = PageRef { place: Place::NONE, crc: 0 };
    for part in state.chunks(STATE_ROOM).rev() {
        let mut e = Encoder::with_capacity(PAGE_ROOM);
        next.encode(&mut e);
        e.bytes(part);
        let draft =
            PageDraft { kind: PageKind::State, level: 0, count: part.len() as u16, checkpoint, body: &e.0 };
        next = writer.write(&draft).await?;
        pages.push(next);
    }
    pages.reverse();
    Ok(pages)
}

/// Reads the state blob; returns its bytes and its pages.
///
/// # Errors
/// If a page is damaged, or follows itself.
pub(crate) async fn read_state(
    reader: &PageReader,
    first: Option<PageRef>,
) -> Result<(Vec<u8>, Vec<PageRef>), StoreError> {
    let (mut bytes, mut pages, mut next) = (Vec::new(), Vec::new(), first);
    let mut seen = BTreeSet::new();
    while let Some(page) = next {
        if !seen.insert(page.place) {
            return Err(StoreError::damaged("a page of the state", page.place, "it follows itself"));
        }
        let found = reader.read(page, PageKind::State, 0).await?;
        pages.push(page);
        let (mut d, count) = (Decoder::new(found.body()), found.count());
        let follower = PageRef::decode(&mut d);
        let (Ok(follower), Ok(part)) = (follower, d.bytes(count)) else {
            return Err(StoreError::damaged("a page of the state", page.place, "its bytes pass its end"));
        };
        bytes.extend_from_slice(part);
        next = (follower.place != Place::NONE).then_some(follower);
    }
    Ok((bytes, pages))
}

/// Writes the bitmap pages of zones that changed, each to the slot that the older checkpoint does not use.
async fn write_bitmaps(engine: &Engine, frozen: &Frozen, written: &mut Written) -> Result<(), StoreError> {
    let mut zones: BTreeMap<u64, Vec<(PlaceRun, bool)>> =
        frozen.dirty_zones.iter().map(|z| (*z, Vec::new())).collect();
    let retired: Vec<PlaceRun> = tree::places(&written.retired).collect();
    let changes = frozen.replaced.iter().map(|run| (run, false));
    let changes = changes.chain(retired.iter().map(|run| (run, false)));
    // What the checkpoint took comes last: it may have taken what had been replaced and was returned since.
    for (run, is_used) in changes.chain(written.taken.iter().map(|run| (run, true))) {
        for zone in bitmap::zones_of(*run) {
            zones.entry(zone).or_default().push((*run, is_used));
        }
    }
    let zones: Vec<_> = zones.into_iter().collect();
    for some in zones.chunks(BITMAP_WRITES_MAX) {
        let writes = some.iter().map(|(zone, changes)| write_zone(engine, *zone, changes));
        for entry in join_all(writes).await {
            written.zones.push(entry?);
            written.bytes += BLOCK_SIZE as u64;
        }
        breathe().await;
    }
    Ok(())
}

async fn write_zone(
    engine: &Engine,
    zone: u64,
    changes: &[(PlaceRun, bool)],
) -> Result<(u64, ZoneEntry), StoreError> {
    let (entry, page) = {
        let state = engine.state.borrow();
        let mut bits: Box<ZoneBits> = state.bitmap.frozen_bits(zone);
        for (run, is_used) in changes {
            bitmap::change_bits(&mut bits, zone, *run, *is_used);
        }
        let mut page = BufMut::aligned(BLOCK_SIZE);
        bitmap::encode_zone(&bits, &mut page);
        let slot = match state.zones[zone as usize].slot {
            used if mutated(Mutation::BitmapInPlace) => used.min(1),
            0 => 1,
            _ => 0,
        };
        let free = bitmap::count_free(&bits) as u16;
        (ZoneEntry { crc: crc32c(&page), free, slot }, page.freeze())
    };
    write(engine, engine.label.region.bitmap_page(zone, entry.slot).offset(), page).await?;
    Ok((zone, entry))
}

/// Writes the zone table to the copy that the older checkpoint does not use.
async fn write_zone_table(engine: &Engine, written: &mut Written) -> Result<(u8, u32), StoreError> {
    let (copy, table) = {
        let state = engine.state.borrow();
        let mut zones = state.zones.clone();
        for (zone, entry) in &written.zones {
            zones[*zone as usize] = *entry;
        }
        let used = state.superblock.table_copy;
        (if mutated(Mutation::ZoneTableInPlace) { used } else { 1 - used }, encode_zone_table(&zones))
    };
    let crc = crc32c(&table);
    written.bytes += table.len() as u64;
    write(engine, engine.label.region.zone_table(u64::from(copy)).offset(), table).await?;
    Ok((copy, crc))
}

/// The zone table as whole blocks.
pub(crate) fn encode_zone_table(zones: &[ZoneEntry]) -> Buf {
    let mut table = BufMut::zeroed((zones.len() * ZONE_ENTRY_BYTES as usize).next_multiple_of(BLOCK_SIZE));
    for (bytes, entry) in table.chunks_exact_mut(ZONE_ENTRY_BYTES as usize).zip(zones) {
        bytes[..4].copy_from_slice(&entry.crc.to_le_bytes());
        bytes[4..6].copy_from_slice(&entry.free.to_le_bytes());
        bytes[6] = entry.slot;
    }
    table.freeze()
}

/// The entries of a zone table.
///
/// # Errors
/// If an entry names a slot that there is not.
pub(crate) fn decode_zone_table(table: &[u8], zones: u64) -> Result<Vec<ZoneEntry>, DecodeError> {
    let mut d = Decoder::new(table);
    let mut entries = Vec::with_capacity((zones as usize).min(table.len() / ZONE_ENTRY_BYTES as usize));
    for _ in 0..zones {
        let entry = ZoneEntry { crc: d.u32()?, free: d.u16()?, slot: d.u8()? };
        if entry.slot > 1 && entry.slot != ZoneEntry::PRISTINE {
            return Err(DecodeError::Invalid { field: "slot", value: u64::from(entry.slot) });
        }
        d.u8()?;
        entries.push(entry);
    }
    Ok(entries)
}

/// Waits for the instant's batch; returns where in the log the one after it begins.
async fn wait_for_batch(engine: &Engine, batch: u64) -> Result<u64, StoreError> {
    engine.durable(batch).await?;
    let state = engine.state.borrow();
    Ok(state.commits.end_of_watched())
}

/// The newer superblock holds: what only the older one reached is given up.
///
/// # Errors
/// If two owners give up the same place.
fn switch(
    engine: &Engine,
    state: &mut State,
    superblock: Superblock,
    written: Written,
) -> Result<(), StoreError> {
    state.superblock = superblock;
    state.ring.tail = superblock.log_position;
    state.commits.cover(superblock.batch);
    state.frees.cover(superblock.batch);
    state.frees.end_checkpoint();
    for page in &written.retired {
        engine.reader.forget(*page);
        state.frees.retire(PlaceRun { place: page.place, count: 1 });
    }
    state.frees.release(&mut state.bitmap)?;
    for (zone, entry) in written.zones {
        state.zones[zone as usize] = entry;
    }
    state.state_pages = written.state_pages;
    state.bitmap.thaw();
    state.map.thaw();
    state.checkpoints_done = state.checkpoints_begun;
    state.figures.pages_converted += written.converted;
    state.figures.metadata_bytes_written += written.bytes + BLOCK_SIZE as u64;
    state.trim(engine.reader.cached_bytes() as u64);
    Ok(())
}

async fn write(engine: &Engine, at: u64, data: Buf) -> Result<(), StoreError> {
    let len = data.len() as u64;
    engine.drive.write(at, data).await.map_err(|e| StoreError::io("write", at, len, e))
}
