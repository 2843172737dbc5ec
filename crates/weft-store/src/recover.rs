//! Opening a drive: the newest checkpoint, then the log behind it.
//!
//! Records of a batch that a later batch names as durable are applied as they are. The last batch is in
//! doubt: its data is read, and what does not match its checksum never happened, because nobody can have
//! been told of it. What cannot be read at all is no such proof: it may have been acknowledged, and so the block is at
//! that version, and damaged until it can be read or is put again. What was found is flushed before
//! anything rests on it: a process that was killed may have left it in the drive's volatile cache. When
//! anything was replayed, a checkpoint is taken before the store serves, so that the doubt is settled once
//! and for all.

use crate::StoreError;
use crate::bitmap::{self, Bitmap};
use crate::checkpoint::{self, decode_zone_table};
use crate::convert;
use crate::engine::Engine;
use crate::group_state::DriveState;
use crate::label::{FORMAT_VERSION, Label};
use crate::leaf::{Kind, Leaf};
use crate::log::{FoundBatch, LogReader, LogRing};
use crate::page::PageReader;
use crate::record::Record;
use crate::region::{Place, PlaceRun, RegionMap};
use crate::request::{OpenOptions, OpenReport};
use crate::state::{State, StateParts, ZoneEntry, places_of};
use crate::superblock::Superblock;
use std::collections::BTreeSet;
use weft_rt::sync::join_all;
use weft_rt::{BufMut, Drive};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::{BLOCK_SIZE, BlockRange};
use weft_wire::crc32c;

/// RAM per byte of drive, 1 GiB per TiB, and the least that is of use: a third of it holds the leaves of
/// several GiB of random writes between two checkpoints.
const BUDGET_SHARE: u64 = 1024;
const BUDGET_BYTES_MIN: u64 = 64 << 20;

/// Bitmap pages that are read at the same time.
const BITMAP_READS_MAX: usize = 32;

/// Opens a drive; the tasks of the store are not running yet.
///
/// # Errors
/// If the drive is not Weft's, or damaged beyond what the log can mend.
pub(crate) async fn open(drive: Drive, options: &OpenOptions) -> Result<(Engine, OpenReport), StoreError> {
    let began = weft_rt::now();
    let mut report = OpenReport::default();
    let (label, repairs) = Label::read(&drive).await?;
    if let Some((device, index)) = options.part_of.as_ref().filter(|_| !mutated(Mutation::PartUnchecked)) {
        device.check_part(*index, &label)?;
    }
    if options.fabric.is_some_and(|fabric| fabric != label.fabric) {
        return Err(StoreError::FormattedAlready { fabric: label.fabric, drive: label.drive });
    }
    if !repairs.is_empty() {
        label.write(&drive, &repairs).await?;
        report.label_repaired = true;
    }
    let (superblock, is_other_damaged) = Superblock::read(&drive, label.drive).await?;
    superblock.check_is_known()?;
    report.superblock_fallback = is_other_damaged;
    let zones = read_zone_table(&drive, &label.region, &superblock).await?;
    let mut bitmap = read_bitmap(&drive, &label.region, &zones).await?;
    if options.reuse_at_once {
        bitmap.reuse_at_once();
    }
    let reader = PageReader::new(drive.clone(), 0);
    let (state, state_pages) = checkpoint::read_state(&reader, superblock.state).await?;
    let state = if state.is_empty() {
        DriveState::default()
    } else {
        let place = superblock.state.map_or(Place::NONE, |p| p.place);
        DriveState::decode(&state).map_err(|fault| fault.in_structure("the state", place))?
    };
    let budget = (label.size_bytes / BUDGET_SHARE).max(BUDGET_BYTES_MIN);
    let ring = LogRing::new(label.drive, &label.region, superblock.log_position);
    let state = State::new(StateParts {
        bitmap,
        drive: state,
        ring,
        superblock,
        zones,
        state_pages,
        budget_bytes: options.ram_budget_bytes.unwrap_or(budget),
        capacity_blocks: label.region.data_blocks(),
        conversions_max: options.conversions,
    });
    // From here on the drive is one of the present format; `replay_log` makes it so.
    let label_format = label.format;
    let engine = Engine::new(drive, Label { format: FORMAT_VERSION, ..label }, state);
    replay_log(&engine, label_format, &mut report).await?;
    report.took_us = (weft_rt::now() - began).as_micros() as u64;
    Ok((engine, report))
}

/// Applies the log behind the checkpoint, and takes a checkpoint if there was anything, or if the drive
/// gets a newer format. `label_format` is that of its labels.
async fn replay_log(engine: &Engine, label_format: u16, report: &mut OpenReport) -> Result<(), StoreError> {
    let (ring, sequence) = {
        let mut state = engine.state.borrow_mut();
        state.is_replaying = true;
        (state.ring.clone(), state.superblock.batch + 1)
    };
    let mut log = LogReader::new(&ring, &engine.drive, ring.tail, sequence);
    let mut waiting: Option<FoundBatch> = None;
    loop {
        let next = log.next().await?;
        if let Some(batch) = waiting.take() {
            let is_durable = next.as_ref().is_some_and(|n| n.header.durable >= batch.header.sequence);
            replay_batch(engine, batch, is_durable, report).await?;
        }
        match next {
            Some(batch) => waiting = Some(batch),
            None => break,
        }
    }
    {
        let mut state = engine.state.borrow_mut();
        state.is_replaying = false;
        state.ring.head = log.position;
        state.commits.resume(log.sequence - 1, log.position);
    }
    report.was_clean = report.records_replayed == 0 && report.blocks_dropped == 0;
    if !mutated(Mutation::FoundNotFlushed) {
        // What was read may still be in a volatile cache: batches, markers, and the superblock of a process
        // that was killed before its flush. The next batch names them as durable, and what they replaced
        // may be written over.
        engine.flush().await?;
    }
    report.converted = convert::begin(engine, label_format).await?;
    // Batches without records change nothing, but a ring that is full of them has no room for the next one.
    let is_settled = (report.was_clean && !report.converted) || mutated(Mutation::DoubtNotSettled);
    if !is_settled || engine.state.borrow().is_checkpoint_due() {
        checkpoint::take(engine).await?;
        let mut state = engine.state.borrow_mut();
        state.checkpoints_wanted = state.checkpoints_begun;
    }
    Ok(())
}

async fn replay_batch(
    engine: &Engine,
    batch: FoundBatch,
    is_durable: bool,
    report: &mut OpenReport,
) -> Result<(), StoreError> {
    let number = batch.header.sequence;
    let place = Place(engine.label.region.log_first);
    let damaged = |reason: String| StoreError::damaged("the log", place, format!("batch {number}: {reason}"));
    let records = batch.decode().map_err(|fault| fault.in_structure("the log", place))?;
    report.batches_replayed += 1;
    mark(Path::LogReplayed);
    for record in records {
        let is_sure =
            (is_durable && !mutated(Mutation::DurableUnhappens)) || mutated(Mutation::DoubtNotChecked);
        engine.state.borrow_mut().is_in_doubt = !is_sure;
        let kept = match is_sure {
            true => vec![record],
            false => {
                let held = held_places(engine, &record).await?;
                let (kept, dropped) =
                    keep_what_arrived(&engine.drive, &engine.label.region, record, &held).await;
                report.blocks_dropped += dropped;
                if dropped > 0 {
                    mark(Path::TornBatch);
                }
                kept
            }
        };
        for record in kept {
            for key in State::leaves_of(&record) {
                // One leaf at a time is applied below; several stay loaded because the cache keeps a few always.
                engine.load(key).await?;
            }
            engine.state.borrow_mut().replay(number, record).map_err(damaged)?;
            report.records_replayed += 1;
        }
    }
    Ok(())
}

/// Places that the chunk of a copy holds already, before the copy is applied.
async fn held_places(engine: &Engine, record: &Record) -> Result<BTreeSet<u64>, StoreError> {
    let Record::Copy { .. } = record else { return Ok(BTreeSet::new()) };
    let mut held = BTreeSet::new();
    for key in State::leaves_of(record) {
        engine.load(key).await?;
        held.extend(engine.state.borrow_mut().map.get(&key).into_iter().flat_map(|leaf| places_of(leaf)));
    }
    Ok(held)
}

/// The part of a record of the batch in doubt whose data is on the drive, and of how many blocks it is not.
/// `held` are the places that the chunk of a copy has already: what a copy leaves as it was is not in doubt, and
/// rot of it makes no copy unhappen.
pub(crate) async fn keep_what_arrived(
    drive: &Drive,
    region: &RegionMap,
    record: Record,
    held: &BTreeSet<u64>,
) -> (Vec<Record>, u64) {
    match record {
        Record::Write { group, object, range, version, opens, places, crcs } => {
            let arrived = has_arrived(drive, region, &places, &crcs).await;
            let dropped = arrived.iter().filter(|ok| !**ok).count() as u64;
            let all: Vec<Place> = blocks_of(&places).collect();
            let parts = runs_of(&arrived).map(|(from, to)| Record::Write {
                group,
                object,
                range: BlockRange::new(range.first + from as u32, (to - from) as u32),
                version,
                opens,
                places: join_places(&all[from..to]),
                crcs: crcs[from..to].to_vec(),
            });
            (parts.collect(), dropped)
        }
        Record::Copy { ref leaf, .. } => {
            let Ok(decoded) = Leaf::decode(leaf) else { return (vec![record], 0) };
            let mut has_all = true;
            let mut blocks = 0;
            for piece in decoded.pieces(0, weft_types::limits::CHUNK_BLOCKS as u8) {
                if piece.kind != Some(Kind::Data) {
                    continue;
                }
                for (i, crc) in (0..).zip(piece.crcs).filter(|(i, _)| !held.contains(&piece.place.plus(*i).0))
                {
                    let places = [PlaceRun { place: piece.place.plus(i), count: 1 }];
                    has_all &= has_arrived(drive, region, &places, &[*crc]).await[0];
                    blocks += 1;
                }
            }
            if has_all { (vec![record], 0) } else { (Vec::new(), blocks) }
        }
        other => (vec![other], 0),
    }
}

/// For each block whether its data may be on the drive: it matches its checksum, or it cannot be read, neither with its
/// neighbours nor alone. That says nothing of what was written there before the power went.
async fn has_arrived(drive: &Drive, region: &RegionMap, places: &[PlaceRun], crcs: &[u32]) -> Vec<bool> {
    let mut out = check_data(drive, region, places, crcs).await;
    for (i, place) in blocks_of(places).enumerate().filter(|(_, place)| is_inside(region, *place)) {
        if !out[i] {
            out[i] = match drive.read(place.offset(), BLOCK_SIZE).await {
                Ok(block) => crc32c(&block) == crcs[i],
                Err(error) => {
                    tracing::warn!(%place, %error, "data of the newest batch cannot be read");
                    true
                }
            };
        }
    }
    out
}

fn is_inside(region: &RegionMap, place: Place) -> bool {
    region.holds_data(PlaceRun { place, count: 1 })
}

/// For each block whether it can be read and its data matches its checksum.
pub(crate) async fn check_data(
    drive: &Drive,
    region: &RegionMap,
    places: &[PlaceRun],
    crcs: &[u32],
) -> Vec<bool> {
    let mut out = Vec::with_capacity(crcs.len());
    for run in places {
        let is_inside = region.holds_data(*run);
        let len = run.count as usize * BLOCK_SIZE;
        let data = if is_inside { drive.read(run.place.offset(), len).await.ok() } else { None };
        for i in 0..run.count as usize {
            let crc = crcs[out.len()];
            let block = data.as_ref().map(|d: &BufMut| &d[i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE]);
            out.push(block.is_some_and(|b| crc32c(b) == crc));
        }
    }
    out
}

fn blocks_of(places: &[PlaceRun]) -> impl Iterator<Item = Place> + '_ {
    places.iter().flat_map(|run| (0..u64::from(run.count)).map(|i| run.place.plus(i)))
}

fn join_places(blocks: &[Place]) -> Vec<PlaceRun> {
    let mut out: Vec<PlaceRun> = Vec::new();
    for place in blocks {
        match out.last_mut() {
            Some(run) if run.place.plus(u64::from(run.count)) == *place => run.count += 1,
            _ => out.push(PlaceRun { place: *place, count: 1 }),
        }
    }
    out
}

/// The runs of `true`, as (first, end).
fn runs_of(flags: &[bool]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let from = at + flags[at..].iter().position(|f| *f)?;
        at = flags[from..].iter().position(|f| !*f).map_or(flags.len(), |n| from + n);
        Some((from, at))
    })
}

/// Reads the zone table of a checkpoint.
///
/// # Errors
/// If it is damaged.
pub(crate) async fn read_zone_table(
    drive: &Drive,
    region: &RegionMap,
    superblock: &Superblock,
) -> Result<Vec<ZoneEntry>, StoreError> {
    let place = region.zone_table(u64::from(superblock.table_copy));
    let len = region.table_blocks as usize * BLOCK_SIZE;
    let table = drive
        .read(place.offset(), len)
        .await
        .map_err(|e| StoreError::io("read", place.offset(), len as u64, e))?;
    if crc32c(&table) != superblock.table_crc {
        return Err(StoreError::damaged("the zone table", place, "its checksum is wrong"));
    }
    decode_zone_table(&table, region.zones)
        .map_err(|e| StoreError::damaged("the zone table", place, e.to_string()))
}

/// Reads the bitmap of a checkpoint.
///
/// # Errors
/// If a page is damaged.
pub(crate) async fn read_bitmap(
    drive: &Drive,
    region: &RegionMap,
    zones: &[ZoneEntry],
) -> Result<Bitmap, StoreError> {
    let mut bitmap = Bitmap::new(*region);
    let written: Vec<(u64, ZoneEntry)> =
        (0..).zip(zones.iter().copied()).filter(|(_, z)| z.slot < 2).collect();
    for some in written.chunks(BITMAP_READS_MAX) {
        let pages = join_all(some.iter().map(|(zone, entry)| {
            let place = region.bitmap_page(*zone, entry.slot);
            async move { (place, drive.read(place.offset(), BLOCK_SIZE).await) }
        }));
        for ((zone, entry), (place, page)) in some.iter().zip(pages.await) {
            let page = page.map_err(|e| StoreError::damaged("a page of the bitmap", place, e.to_string()))?;
            if crc32c(&page) != entry.crc {
                return Err(StoreError::damaged("a page of the bitmap", place, "its checksum is wrong"));
            }
            if !bitmap.load(*zone, bitmap::decode_zone(&page)) {
                let reason =
                    "it has blocks as free that belong to the fixed regions, or lie beyond the drive";
                return Err(StoreError::damaged("a page of the bitmap", place, reason));
            }
        }
    }
    Ok(bitmap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_arrived_blocks_are_found() {
        let flags = [true, false, false, true, true];
        assert_eq!(runs_of(&flags).collect::<Vec<_>>(), [(0, 1), (3, 5)]);
        assert_eq!(runs_of(&[false; 3]).count(), 0);
        let places = [Place(4), Place(5), Place(9)];
        let runs = [PlaceRun { place: Place(4), count: 2 }, PlaceRun { place: Place(9), count: 1 }];
        assert_eq!(join_places(&places), runs);
        assert_eq!(blocks_of(&runs).collect::<Vec<_>>(), places);
    }
}
