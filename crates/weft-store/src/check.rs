//! Checks a drive: everything that a checkpoint reaches must be there, verify, and be counted exactly once.
//! It changes nothing; what it finds it explains.

use crate::StoreError;
use crate::bitmap::Bitmap;
use crate::checkpoint;
use crate::group_state::DriveState;
use crate::label::{FORMAT_VERSION, Label};
use crate::leaf::{Kind, Leaf, LeafKey};
use crate::log::{LogReader, LogRing};
use crate::page::PageReader;
use crate::recover::{read_bitmap, read_zone_table};
use crate::region::{Place, PlaceRun, RegionMap};
use crate::store::Store;
use crate::superblock::{Superblock, TreeRoot};
use crate::tree::{self, Visited};
use weft_rt::Drive;
use weft_types::limits::{CHUNK_BLOCKS, DRIVE_CHECK_FINDINGS_MAX, OBJECT_CHUNKS_MAX};
use weft_types::{BLOCK_SIZE, BlockRange, GroupId};
use weft_wire::crc32c;

/// Leaves whose data is read between two looks at the map.
const LEAVES_PER_STEP: usize = 256;

/// RAM for the check's own page cache.
const CACHE_BYTES: usize = 8 << 20;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is lost, and nothing will be; opening the drive mends it.
    Note,
    /// Space is lost, or a block has to be healed from a peer.
    Damage,
    /// The drive cannot be trusted: format it anew and resync it.
    Fatal,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Where on the drive, if at one place.
    pub place: Option<Place>,
    /// What was found.
    pub what: String,
    /// What to do about it.
    pub action: &'static str,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// What is not as it should be; empty on a drive in good order.
    pub findings: Vec<Finding>,
    /// Findings beyond those that are told.
    pub more_findings: u64,
    /// Leaves of the block map.
    pub leaves: u64,
    /// Pages of the block map.
    pub pages: u64,
    /// Pages of the block map that are of an older format. An open store rewrites them, some with
    /// each checkpoint.
    pub old_pages: u64,
    /// Blocks of data.
    pub data_blocks: u64,
    /// Blocks of data that were read and verified.
    pub verified_blocks: u64,
    /// Whether something was found that only a newer program knows: then nothing of the drive may be
    /// given up.
    pub needs_upgrade: bool,
    /// Batches in the log behind the checkpoint.
    pub log_batches: u64,
}

impl CheckReport {
    /// Whether nothing was found beyond notes.
    pub fn is_clean(&self) -> bool {
        self.more_findings == 0 && self.findings.iter().all(|f| f.severity == Severity::Note)
    }

    fn add(&mut self, severity: Severity, place: Option<Place>, what: String, action: &'static str) {
        if self.findings.len() < DRIVE_CHECK_FINDINGS_MAX {
            self.findings.push(Finding { severity, place, what, action });
        } else {
            self.more_findings += 1;
        }
    }

    fn fatal(&mut self, error: &StoreError) {
        let place = match error {
            StoreError::MetadataDamaged { place, .. } => Some(*place),
            _ => None,
        };
        let action = match error {
            StoreError::Unknown { .. } | StoreError::NewerFormat { .. } => UPGRADE,
            _ => RESYNC,
        };
        self.needs_upgrade |= action == UPGRADE;
        self.add(Severity::Fatal, place, error.to_string(), action);
    }
}

const RESYNC: &str = "format the drive anew and let it resync from its peers";
const UPGRADE: &str = "leave the drive as it is, and upgrade this node's weft";
const HEAL: &str = "let the fabric heal the block from a peer";
const REPORT: &str = "no data is lost: format the drive again and let it resync; please report this";
const OPEN: &str = "nothing: opening the drive mends it";
const LEAK: &str = "the space is lost until the drive is formatted anew; please report this";

/// Checks a drive that no store has open. `deep` reads all data as well, if the drive was closed in order.
///
/// # Errors
/// If the drive is not Weft's; everything else is a finding.
pub async fn check(drive: &Drive, deep: bool) -> Result<CheckReport, StoreError> {
    let mut report = CheckReport::default();
    let (label, repairs) = Label::read(drive).await?;
    for place in repairs {
        report.add(Severity::Note, Some(place), "a copy of the label is damaged".to_owned(), OPEN);
    }
    let superblock = match Superblock::read(drive, label.drive).await {
        Err(error) => {
            report.fatal(&error);
            return Ok(report);
        }
        Ok((superblock, is_other_damaged)) => {
            if is_other_damaged {
                let other = Superblock::slot(superblock.checkpoint + 1);
                report.add(Severity::Note, Some(other), "a superblock is damaged".to_owned(), OPEN);
            }
            superblock
        }
    };
    if let Err(error) = superblock.check_is_known() {
        report.fatal(&error);
        return Ok(report);
    }
    check_log(drive, &label, &superblock, &mut report).await;
    match load_bitmap(drive, &label.region, &superblock).await {
        Err(error) => report.fatal(&error),
        Ok(bitmap) => {
            let reader = PageReader::new(drive.clone(), CACHE_BYTES);
            check_pages(&reader, &label.region, &superblock, bitmap, &mut report).await;
            if deep && report.log_batches > 0 {
                let what = format!("{} batches are in the log: data was not read", report.log_batches);
                report.add(Severity::Note, None, what, "open and close the drive, then check again");
            } else if deep && report.is_clean() {
                check_all_data(&reader, drive, &superblock, &mut report).await?;
            }
        }
    }
    Ok(report)
}

impl Store {
    /// Checks the drive of the open store, as of a checkpoint taken now; writes wait only while the bitmap is
    /// read. `deep` reads all data as well, through the ordinary read path: damage is remembered.
    ///
    /// # Errors
    /// If the store has failed; everything else is a finding.
    pub async fn check(&self, deep: bool) -> Result<CheckReport, StoreError> {
        let engine = &self.engine;
        let mut report = CheckReport::default();
        engine.state.borrow_mut().checkpoint_holds += 1;
        let hold = Hold(self);
        engine.checkpoint_despite_hold().await?;
        let superblock = engine.state.borrow().superblock;
        let bitmap = load_bitmap(&engine.drive, &engine.label.region, &superblock).await;
        let pin = engine.pin();
        drop(hold);
        match bitmap {
            Err(error) => report.fatal(&error),
            Ok(bitmap) => {
                let reader = PageReader::new(engine.drive.clone(), CACHE_BYTES);
                check_pages(&reader, &engine.label.region, &superblock, bitmap, &mut report).await;
                drop(pin);
                let mut next = Some(LeafKey::first_of(GroupId(0))).filter(|_| deep);
                while let Some(from) = next {
                    let (leaves, more) = engine.scan(from, None, LEAVES_PER_STEP).await?;
                    for (key, _) in leaves {
                        self.check_chunk(key, &mut report).await?;
                    }
                    next = more;
                }
            }
        }
        Ok(report)
    }

    async fn check_chunk(&self, key: LeafKey, report: &mut CheckReport) -> Result<(), StoreError> {
        let range: BlockRange = key.chunk.range();
        let extents = match self.read(key.group, key.object, range).await {
            Err(StoreError::UnknownGroup { .. }) => return Ok(()),
            other => other?,
        };
        for extent in extents {
            match extent.data {
                crate::ExtentData::Data { crcs, .. } => report.verified_blocks += crcs.len() as u64,
                crate::ExtentData::Damaged => {
                    let what = format!(
                        "blocks {} of object {} in {} are damaged",
                        extent.range, key.object, key.group
                    );
                    report.add(Severity::Damage, None, what, HEAL);
                }
                crate::ExtentData::Zero => {}
            }
        }
        Ok(())
    }
}

/// Keeps checkpoints from beginning until it is dropped.
struct Hold<'a>(&'a Store);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.engine.state.borrow_mut().checkpoint_holds -= 1;
        self.0.engine.checkpoint_wanted.notify_all();
    }
}

async fn load_bitmap(
    drive: &Drive,
    region: &RegionMap,
    superblock: &Superblock,
) -> Result<Bitmap, StoreError> {
    let zones = read_zone_table(drive, region, superblock).await?;
    read_bitmap(drive, region, &zones).await
}

/// Reads the log behind the checkpoint.
async fn check_log(drive: &Drive, label: &Label, superblock: &Superblock, report: &mut CheckReport) {
    let ring = LogRing::new(label.drive, &label.region, superblock.log_position);
    let mut log = LogReader::new(&ring, drive, superblock.log_position, superblock.batch + 1);
    loop {
        match log.next().await {
            Ok(Some(batch)) => report.log_batches += u64::from(batch.header.count > 0),
            Ok(None) => return,
            Err(error) => return report.fatal(&error),
        }
    }
}

/// Walks the block map and the state, and compares what they use with the bitmap.
async fn check_pages(
    reader: &PageReader,
    region: &RegionMap,
    superblock: &Superblock,
    mut bitmap: Bitmap,
    report: &mut CheckReport,
) {
    match checkpoint::read_state(reader, superblock.state).await {
        Err(error) => report.fatal(&error),
        Ok((bytes, pages)) => {
            if !bytes.is_empty()
                && let Err(fault) = DriveState::decode(&bytes)
            {
                let place = pages.first().map_or(Place::NONE, |p| p.place);
                report.fatal(&fault.in_structure("the state", place));
            }
            for run in tree::places(&pages) {
                use_run(&mut bitmap, run, "a page of the state", report);
            }
        }
    }
    if let Some(root) = superblock.root {
        let mut last: Option<LeafKey> = None;
        let mut visit = |node: TreeRoot, found: Result<Visited, StoreError>| {
            report.pages += 1;
            let run = PlaceRun { place: node.page.place, count: 1 };
            let is_new = use_run(&mut bitmap, run, "a page of the block map", report);
            match found {
                Err(error) => report.fatal(&error),
                Ok(found) => {
                    check_newest(node, &found, report);
                    for (key, leaf) in found.leaves {
                        if last.replace(key).is_some_and(|last| last >= key) {
                            let what = "the block map's keys are not in order".to_owned();
                            report.add(Severity::Fatal, Some(node.page.place), what, RESYNC);
                        }
                        check_leaf(key, &leaf, &mut bitmap, report);
                    }
                }
            }
            // What lies below a page that is reached a second time has been looked at.
            is_new
        };
        tree::walk(reader, root, &mut visit).await;
    }
    for place in region.data_first..region.data_end() {
        // Every block that something uses was cleared above: a bit that is left is used by nothing.
        if bitmap.is_used(Place(place)) {
            report.add(
                Severity::Damage,
                Some(Place(place)),
                "a block is taken but nothing uses it".to_owned(),
                LEAK,
            );
        }
    }
}

/// Compares what a page holds with what refers to it says of versions.
fn check_newest(node: TreeRoot, found: &Visited, report: &mut CheckReport) {
    report.old_pages += u64::from(found.format < FORMAT_VERSION);
    if found.newest != node.newest {
        let (held, noted) = (found.newest, node.newest);
        let what = format!("the newest version below a page is {held}, the page above says {noted}");
        report.add(Severity::Damage, Some(node.page.place), what, REPORT);
    }
}

fn check_leaf(key: LeafKey, leaf: &Leaf, bitmap: &mut Bitmap, report: &mut CheckReport) {
    report.leaves += 1;
    if u32::from(key.chunk.0) >= OBJECT_CHUNKS_MAX || leaf.is_empty() {
        report.add(
            Severity::Fatal,
            None,
            format!("chunk {} of {} cannot exist", key.chunk.0, key.object),
            RESYNC,
        );
    }
    for piece in leaf.pieces(0, CHUNK_BLOCKS as u8) {
        if piece.kind == Some(Kind::Data) {
            report.data_blocks += u64::from(piece.count);
        }
    }
    for run in leaf.places() {
        use_run(bitmap, run, "data", report);
    }
}

/// Clears the bits of a run that something uses; a bit that is clear already is a contradiction. Returns whether there
/// was none.
fn use_run(bitmap: &mut Bitmap, run: PlaceRun, what: &str, report: &mut CheckReport) -> bool {
    if !bitmap.holds_data(run) {
        let what = format!("{what} lies outside of the data region");
        report.add(Severity::Fatal, Some(run.place), what, RESYNC);
        return false;
    }
    let mut is_sound = true;
    for i in 0..u64::from(run.count) {
        let place = run.place.plus(i);
        if bitmap.is_used(place) {
            bitmap.release(PlaceRun { place, count: 1 }).expect("it is in use, and holds data");
        } else {
            let what = format!("{what} lies where the bitmap says that nothing is, or something else is too");
            report.add(Severity::Fatal, Some(place), what, RESYNC);
            is_sound = false;
        }
    }
    is_sound
}

/// Reads all data of a drive that was closed in order.
async fn check_all_data(
    reader: &PageReader,
    drive: &Drive,
    superblock: &Superblock,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let mut next = Some(LeafKey::first_of(GroupId(0)));
    while let Some(from) = next {
        let leaves = tree::scan(reader, superblock.root, from, None, LEAVES_PER_STEP).await?;
        check_data(drive, &leaves, report).await;
        next = leaves.last().and_then(|(key, _)| key.next());
    }
    Ok(())
}

/// Reads the data of some leaves.
async fn check_data(drive: &Drive, leaves: &[(LeafKey, Leaf)], report: &mut CheckReport) {
    for (key, leaf) in leaves {
        for piece in leaf.pieces(0, CHUNK_BLOCKS as u8) {
            let at = |i: u8| BlockRange::one(key.chunk.range().first + u32::from(piece.first + i));
            let damaged =
                |i: u8| format!("block {} of object {} in {} is damaged", at(i), key.object, key.group);
            match piece.kind {
                Some(Kind::Data) => {
                    let len = usize::from(piece.count) * BLOCK_SIZE;
                    let data = drive.read(piece.place.offset(), len).await.ok();
                    for (i, crc) in (0..piece.count).zip(piece.crcs) {
                        let block = data.as_ref().map(|d| &d[usize::from(i) * BLOCK_SIZE..][..BLOCK_SIZE]);
                        if block.is_some_and(|b| crc32c(b) == *crc) {
                            report.verified_blocks += 1;
                        } else {
                            let place = piece.place.plus(u64::from(i));
                            report.add(Severity::Damage, Some(place), damaged(i), HEAL);
                        }
                    }
                }
                Some(Kind::Damaged) => {
                    for i in 0..piece.count {
                        report.add(Severity::Damage, None, damaged(i), HEAL);
                    }
                }
                Some(Kind::Zero) | None => {}
            }
        }
    }
}
