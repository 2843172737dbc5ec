//! `weft fabric recover`: the manager's store anew, from the copies of the fabric map on the drives.

use crate::drive::{open_refusal, spec, store_refusal};
use crate::manager::refused;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use weft_cli::{CliError, FabricRecoverArgs, Folder, Output, note};
use weft_manager::{DriveContents, EmbeddedStore, ManagerError, MapStore, Recovered};
use weft_rt::{Drive, OpenOptions, wall_clock_us};
use weft_store::Store;
use weft_types::{FabricId, FabricMap, Group, GroupId, MapVersion, SessionSlot, with_causes};
use weft_wire::control::{decode_map, encode_map};

/// What was, or would be, recovered.
#[derive(serde::Serialize)]
struct Report {
    store: PathBuf,
    kept: Option<PathBuf>,
    fabric: String,
    map: MapVersion,
    copies: Vec<Copy>,
    volumes: Vec<String>,
    warnings: Vec<String>,
    dry_run: bool,
}

/// A copy of the map that was found.
#[derive(serde::Serialize)]
struct Copy {
    drive: PathBuf,
    map: MapVersion,
}

pub(crate) async fn recover(args: FabricRecoverArgs, output: Output) -> Result<(), CliError> {
    let store = store_file(&args.dir)?;
    check_is_free(&store)?;
    let (mut maps, mut contents, mut copies, mut warnings) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for path in &args.drives {
        let DriveReading { map, contents: found, .. } = read(path, &mut warnings).await?;
        match map {
            Some(map) => {
                copies.push(Copy { drive: path.clone(), map: map.version });
                maps.push(map);
            }
            None => warnings.push(format!("{} holds no copy of the fabric map", path.display())),
        }
        contents.extend(found);
    }
    let recovered = weft_manager::recover(maps, &contents).map_err(|e| CliError::Failed {
        message: format!("cannot recover the fabric map: {}", with_causes(&e)),
        hint: "name all drives of this fabric, and only those, with --drives".into(),
    })?;
    warnings.extend(recovered.warnings.iter().cloned());
    let kept = if args.dry_run { None } else { write(&store, &recovered)? };
    let report = Report {
        store,
        kept,
        fabric: recovered.map.fabric.to_string(),
        map: recovered.map.version,
        copies,
        volumes: recovered.map.volumes.values().map(|v| v.name.clone()).collect(),
        warnings,
        dry_run: args.dry_run,
    };
    for warning in &report.warnings {
        note(&format!("warning: {warning}"));
    }
    output.show(&report, |r, _| describe(r))
}

/// The store's file: that of a local fabric's folder, one in another folder, or the file named.
pub(crate) fn store_file(named: &Path) -> Result<PathBuf, CliError> {
    let folder = Folder::at(named);
    match (folder.config()?, named.is_dir()) {
        (Some(_), _) => Ok(folder.map_file()),
        (None, true) => Ok(named.join("map.redb")),
        (None, false) => Ok(named.to_owned()),
    }
}

/// Refuses while a manager uses the store. One that is damaged or missing is what this command is for.
pub(crate) fn check_is_free(store: &Path) -> Result<(), CliError> {
    if !store.exists() {
        return Ok(());
    }
    match EmbeddedStore::open(store) {
        Err(error @ weft_manager::StoreError::Locked { .. }) => Err(CliError::Refused {
            message: error.to_string(),
            hint: "stop the manager and all nodes first, for a local fabric with `weft down`".into(),
        }),
        Err(weft_manager::StoreError::Io { .. }) | Ok(_) => Ok(()),
        Err(_) => Ok(()),
    }
}

/// What a drive says.
pub(crate) struct DriveReading {
    /// The fabric that it belongs to.
    pub(crate) fabric: FabricId,
    /// Its copy of the map.
    pub(crate) map: Option<FabricMap>,
    /// What it knows of its groups, if it is sound otherwise.
    pub(crate) contents: Option<DriveContents>,
}

/// The copy of the map on a drive, and what the drive knows of its groups if it is sound otherwise.
pub(crate) async fn read(path: &Path, warnings: &mut Vec<String>) -> Result<DriveReading, CliError> {
    let spec = spec(path)?;
    let drive = Drive::open(spec, OpenOptions::default()).await.map_err(open_refusal(spec))?;
    let found = Store::read_map_copy(&drive).await.map_err(store_refusal(spec))?;
    let mut map = None;
    if let Some((_, bytes)) = &found {
        map = Some(decode_map(bytes).map_err(|e| CliError::Failed {
            message: format!("the copy of the fabric map on {spec} cannot be read: {e}"),
            hint: "use the version of weft that wrote it, or a newer one".into(),
        })?);
    }
    let version = found.map_or(0, |(version, _)| version);
    match contents(drive, path, version).await {
        Ok((fabric, contents)) => Ok(DriveReading { fabric, map, contents: Some(contents) }),
        Err(error) => match map {
            Some(map) => {
                warnings.push(format!("{}; only its copy of the map is used", error.chain()));
                Ok(DriveReading { fabric: map.fabric, map: Some(map), contents: None })
            }
            None => Err(error),
        },
    }
}

/// Opens the drive as a node would: it is locked meanwhile, so no node uses it.
async fn contents(drive: Drive, path: &Path, version: u64) -> Result<(FabricId, DriveContents), CliError> {
    let spec = spec(path)?;
    let opened = Store::open(drive, weft_store::OpenOptions::default()).await;
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
    let fabric = store.label().fabric;
    store.close().await.map_err(store_refusal(spec))?;
    Ok((fabric, contents))
}

/// Writes the new store beside the old one, keeps the old one under another name, and takes its place.
pub(crate) fn write(store: &Path, recovered: &Recovered) -> Result<Option<PathBuf>, CliError> {
    if let Some(parent) = store.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(CliError::file("create the folder", parent))?;
    }
    let fresh = beside(store, "new");
    if fresh.exists() {
        fs::remove_file(&fresh).map_err(CliError::file("remove", &fresh))?;
    }
    {
        let written = EmbeddedStore::open(&fresh)
            .and_then(|s| s.commit(MapVersion(0), recovered.map.version, &encode_map(&recovered.map)));
        written.map_err(|e| refused(&ManagerError::from(e)))?;
    }
    let mut kept = None;
    if store.exists() {
        let old = beside(store, &format!("old-{}", wall_clock_us() / 1_000_000));
        fs::rename(store, &old).map_err(CliError::file("rename", store))?;
        kept = Some(old);
    }
    fs::rename(&fresh, store).map_err(CliError::file("rename", &fresh))?;
    Ok(kept)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

fn describe(report: &Report) -> String {
    let mut text = String::new();
    for copy in &report.copies {
        text.push_str(&format!("{}: {}\n", copy.drive.display(), copy.map));
    }
    let done = if report.dry_run { "would be written" } else { "written" };
    text.push_str(&format!(
        "map {} of fabric {} with volumes {} {done} to {}\n",
        report.map,
        report.fabric,
        if report.volumes.is_empty() { "(none)".to_owned() } else { report.volumes.join(", ") },
        report.store.display()
    ));
    if let Some(kept) = &report.kept {
        text.push_str(&format!("the old store is kept as {}\n", kept.display()));
    }
    text
}
