//! What a recovery goes by: what drives of this machine know, and what was collected from those of others.
//!
//! It owns the reading of drives, and the refusals of what does not belong together or is out of date. It
//! never writes.

use crate::drive::store_refusal;
use crate::part::{self, Named};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_api::Timestamp;
use weft_cli::{CliError, DriveSources, span};
use weft_rt::{OpenOptions, wall_clock_us};
use weft_store::Store;
use weft_types::{DriveId, FabricId, FabricMap, Group, GroupId, MapVersion, SessionSlot};
use weft_wire::collected::{Collected, CollectedDrive, CollectedError, DriveContents, decode_collected};
use weft_wire::control::decode_map;
use weft_wire::map_part::{MapPart, join};

/// How long what was collected is taken for the present state: a recovery is done in an hour, and a file of
/// another day was most likely made for another one.
const OLD_AFTER: Duration = Duration::from_secs(24 * 3600);

/// All that is known of a fabric's drives.
pub(crate) struct Known {
    /// The fabric of all of them.
    pub(crate) fabric: FabricId,
    /// The copies of the map.
    pub(crate) maps: Vec<FabricMap>,
    /// What sound drives know.
    pub(crate) contents: Vec<DriveContents>,
    /// Which drive holds which copy.
    pub(crate) copies: Vec<Copy>,
    /// What people should know.
    pub(crate) warnings: Vec<String>,
}

/// A copy of the map that was found.
#[derive(serde::Serialize)]
pub(crate) struct Copy {
    /// The machine from which it was collected; none for this one.
    pub(crate) machine: Option<String>,
    pub(crate) drive: String,
    pub(crate) map: MapVersion,
}

impl Copy {
    /// Where it is, for people.
    pub(crate) fn place(&self) -> String {
        place(self.machine.as_deref(), &self.drive)
    }
}

fn place(machine: Option<&str>, drive: &str) -> String {
    machine.map_or_else(|| drive.to_owned(), |machine| format!("{machine}:{drive}"))
}

/// A drive with where what is known of it comes from.
struct Source {
    fabric: FabricId,
    /// The file and the machine that it was collected from.
    file: Option<(PathBuf, String)>,
    drive: CollectedDrive,
}

impl Source {
    fn place(&self) -> String {
        place(self.file.as_ref().map(|(_, machine)| machine.as_str()), &self.drive.path)
    }

    /// Where it was read, for people who can take it out again.
    fn origin(&self) -> String {
        match &self.file {
            Some((file, _)) => file.display().to_string(),
            None => "the drive itself".into(),
        }
    }
}

/// Reads drives of this machine and files that were collected on others.
///
/// # Errors
/// If one cannot be read, if they belong to several fabrics, or a file is out of date.
pub(crate) async fn gather(args: &DriveSources) -> Result<Known, CliError> {
    let DriveSources { drives, from: files, accept_old } = args;
    let (mut sources, mut maps, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    for path in drives {
        for Found { fabric, map, parts: found, drive } in read_drives(path).await? {
            sources.push(Source { fabric, file: None, drive });
            maps.extend(map);
            parts.extend(found);
        }
    }
    for file in files {
        let (found, of_file) = read_file(file, *accept_old, &mut sources)?;
        maps.extend(found);
        parts.extend(of_file);
    }
    let fabric = one_fabric(sources.iter().map(|s| (s.fabric, s.place())))?;
    leave_out_doubles(&mut sources)?;
    // Another fabric's map may be on a drive from before it was formatted.
    parts.retain(|part: &MapPart| part.fabric == fabric);
    maps.extend(join(parts).0);
    let mut known =
        Known { fabric, maps, contents: Vec::new(), copies: Vec::new(), warnings: behind(&sources, files) };
    for source in sources {
        if source.drive.map_copy.is_none() {
            known.warnings.push(format!("{} holds no copy of the fabric map", source.place()));
        }
        let machine = source.file.map(|(_, machine)| machine);
        let CollectedDrive { path, map_copy, contents, warning, .. } = source.drive;
        known.copies.extend(map_copy.map(|map| Copy { machine, drive: path, map }));
        known.warnings.extend(warning);
        known.contents.extend(contents);
    }
    Ok(known)
}

/// Files that know an older map than others: that is so if their nodes were down, and if the files are not
/// of now.
fn behind(sources: &[Source], files: &[PathBuf]) -> Vec<String> {
    let of = |file: &PathBuf| {
        let own = sources.iter().filter(move |s| s.file.as_ref().is_some_and(|(f, _)| f == file));
        own.filter_map(|s| s.drive.map_copy).max()
    };
    let Some(newest) = sources.iter().filter_map(|s| s.drive.map_copy).max() else { return Vec::new() };
    let behind = files.iter().filter_map(|file| Some((file, of(file).filter(|own| *own < newest)?)));
    let warning = |(file, own): (&PathBuf, MapVersion)| {
        format!(
            "{} knows map {own}, others know {newest}: if nodes have run on that machine since the file \
             was written, \
             collect it again",
            file.display()
        )
    };
    behind.map(warning).collect()
}

/// The fabric of all that was read, each with where it was found.
///
/// # Errors
/// If there are several, or nothing was read.
pub(crate) fn one_fabric(mut found: impl Iterator<Item = (FabricId, String)>) -> Result<FabricId, CliError> {
    let (fabric, first) = found.next().ok_or_else(|| CliError::Failed {
        message: "no drive was found".into(),
        hint: "name the drives of the fabric with --drives, or files of `weft fabric collect` with --from"
            .into(),
    })?;
    match found.find(|(other, _)| *other != fabric) {
        None => Ok(fabric),
        Some((other, place)) => Err(CliError::Refused {
            message: format!("{first} belongs to fabric {fabric}, {place} to fabric {other}"),
            hint: "name the drives of one fabric, and only those".into(),
        }),
    }
}

/// Of a drive that was read twice, one reading stays.
///
/// # Errors
/// If one reading is older than the other: then whatever else was read with it is out of date as well.
fn leave_out_doubles(sources: &mut Vec<Source>) -> Result<(), CliError> {
    let mut first: BTreeMap<DriveId, usize> = BTreeMap::new();
    let mut doubles = BTreeSet::new();
    for (at, source) in sources.iter().enumerate() {
        let Some(id) = source.drive.contents.as_ref().map(|c| c.id) else { continue };
        let Some(other) = first.get(&id).map(|at| &sources[*at]) else {
            first.insert(id, at);
            continue;
        };
        doubles.insert(at);
        // Opening a drive to read it is a commit, so these alone do not tell.
        if other.drive.contents != source.drive.contents {
            let is_older = other.drive.commit < source.drive.commit;
            let (old, new) = if is_older { (other, source) } else { (source, other) };
            return Err(CliError::Refused {
                message: format!(
                    "{} is out of date: drive {} has come to commit {} there, and to {} by {}",
                    old.origin(),
                    id.short(),
                    old.drive.commit,
                    new.drive.commit,
                    new.origin()
                ),
                hint:
                    "leave it out, or run `weft fabric collect` on that machine again, with its nodes stopped"
                        .into(),
            });
        }
    }
    let mut at = 0;
    sources.retain(|_| {
        at += 1;
        !doubles.contains(&(at - 1))
    });
    Ok(())
}

/// The copies of the map in a file, the parts of whole ones, and its drives.
fn read_file(
    file: &Path,
    accept_old: bool,
    sources: &mut Vec<Source>,
) -> Result<(Vec<FabricMap>, Vec<MapPart>), CliError> {
    let bytes = fs::read(file).map_err(CliError::file("read", file))?;
    let (head, Collected { maps, parts, drives }) =
        decode_collected(&bytes).map_err(|e| unusable(file, &e))?;
    let age_ms = (wall_clock_us() / 1000).abs_diff(head.taken_ms);
    if Duration::from_millis(age_ms) > OLD_AFTER && !accept_old {
        return Err(CliError::Refused {
            message: format!(
                "{} was written on {} at {}, {} from now: its drives may know more since",
                file.display(),
                head.machine,
                Timestamp::from_millis(head.taken_ms),
                span(Duration::from_millis(age_ms))
            ),
            hint: "run `weft fabric collect` there again, with its nodes stopped; if that machine is \
                   gone, or a clock was \
                   wrong: --accept-old"
                .into(),
        });
    }
    let file = (file.to_owned(), head.machine);
    let source = |drive| Source { fabric: head.fabric, file: Some(file.clone()), drive };
    sources.extend(drives.into_iter().map(source));
    Ok((maps, parts))
}

fn unusable(file: &Path, error: &CollectedError) -> CliError {
    CliError::Failed {
        message: format!("{} cannot be used: {error}", file.display()),
        hint: match error {
            CollectedError::Foreign => "name a file that `weft fabric collect` has written".into(),
            CollectedError::Newer { .. } => "use the version of weft that wrote it, or a newer one".into(),
            CollectedError::Damaged(_) => {
                "copy it once more, or run `weft fabric collect` on that machine again".into()
            }
        },
    }
}

/// What a drive holds.
pub(crate) struct Found {
    pub(crate) fabric: FabricId,
    /// Its copy of the map: what concerns its target.
    pub(crate) map: Option<FabricMap>,
    /// Its parts of whole maps.
    pub(crate) parts: Vec<MapPart>,
    /// What else it knows, if it is sound otherwise.
    pub(crate) drive: CollectedDrive,
}

/// Reads the drive that a path names, or all parts of a device.
///
/// # Errors
/// If it is no drive of a fabric, is in use, or its copy of the map cannot be read; a part that is so can be
/// left out by naming the others.
pub(crate) async fn read_drives(path: &Path) -> Result<Vec<Found>, CliError> {
    let mut found = Vec::new();
    for named in part::find(path, OpenOptions::default()).await?.drives()? {
        found.push(read_drive(named).await?);
    }
    Ok(found)
}

async fn read_drive(named: Named) -> Result<Found, CliError> {
    let (spec, drive) = (named.spec()?, named.drive.clone());
    let found = Store::read_map_copy(&drive).await.map_err(store_refusal(spec))?;
    let mut map = None;
    if let Some((_, bytes)) = &found {
        map = Some(decode_map(bytes).map_err(|e| CliError::Failed {
            message: format!("the copy of the fabric map on {spec} cannot be read: {e}"),
            hint: "use the version of weft that wrote it, or a newer one".into(),
        })?);
    }
    let mut parts = Vec::new();
    for (_, bytes) in Store::read_map_parts(&drive).await.map_err(store_refusal(spec))? {
        // One of a later release helps nobody here; others may have the whole map.
        parts.extend(MapPart::decode(&bytes));
    }
    let map_copy = map.as_ref().map(|map| map.version);
    let version = found.map_or(0, |(version, _)| version);
    let path_text = spec.to_owned();
    match (contents(&named, version).await, map) {
        (Ok((fabric, commit, contents)), map) => {
            let contents = Some(contents);
            let drive = CollectedDrive { path: path_text, map_copy, commit, contents, warning: None };
            Ok(Found { fabric, map, parts, drive })
        }
        (Err(error), Some(map)) => {
            let warning = Some(format!("{}; only its copy of the map is used", error.chain()));
            let drive = CollectedDrive { path: path_text, map_copy, commit: 0, contents: None, warning };
            Ok(Found { fabric: map.fabric, map: Some(map), parts, drive })
        }
        (Err(error), None) => Err(error),
    }
}

/// Opens the drive as a node would: it is locked meanwhile, so no node uses it.
async fn contents(named: &Named, version: u64) -> Result<(FabricId, u64, DriveContents), CliError> {
    let spec = named.spec()?;
    let options = weft_store::OpenOptions { part_of: named.part_of.clone(), ..Default::default() };
    let opened = Store::open(named.drive.clone(), options).await;
    let (store, _) = opened.map_err(store_refusal(spec))?;
    let mut slots: BTreeMap<SessionSlot, BTreeSet<GroupId>> = BTreeMap::new();
    for group in store.groups() {
        for slot in store.slots_in(group) {
            slots.entry(slot).or_default().insert(group);
        }
    }
    let contents = DriveContents {
        id: store.label().drive,
        map_copy: MapVersion(version),
        entries: store.groups().into_iter().filter_map(|g| Some(Group::clone(&*store.group(g)?))).collect(),
        generations: store.generations(),
        slots,
    };
    let (fabric, commit) = (store.label().fabric, store.durable_commit());
    store.close().await.map_err(store_refusal(spec))?;
    Ok((fabric, commit, contents))
}
