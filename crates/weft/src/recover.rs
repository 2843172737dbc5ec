//! `weft fabric recover`: the manager's store anew, from the copies of the fabric map on the drives.

use crate::drive::{open_refusal, spec, store_refusal};
use crate::manager::refused;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
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
    check_target(&store, &args.drives)?;
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
    let kept = keep_as(&store);
    if !args.dry_run {
        write(&store, &recovered, kept.as_deref())?;
    }
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

/// The store's file: that of a local fabric's folder, one in another folder, or the file named, which may exist.
pub(crate) fn store_file(named: &Path) -> Result<PathBuf, CliError> {
    if !named.is_dir() {
        return Ok(named.to_owned());
    }
    let folder = Folder::at(named);
    match folder.config()? {
        Some(_) => Ok(folder.map_file()),
        None => Ok(named.join("map.redb")),
    }
}

/// Refuses to write a store in the place of something that is none, or of one that a manager uses. One that is damaged
/// or missing is what recovery is for.
pub(crate) fn check_target(store: &Path, drives: &[PathBuf]) -> Result<(), CliError> {
    let parent = store.parent().filter(|p| !p.as_os_str().is_empty());
    if let Some(parent) = parent.filter(|p| p.exists() && !p.is_dir()) {
        return Err(CliError::Failed {
            message: format!("cannot write {}: {} is a file", store.display(), parent.display()),
            hint: "name the store's file, or the folder in which it belongs".into(),
        });
    }
    if !store.exists() {
        return Ok(());
    }
    let refused = |message: String, hint: &str| Err(CliError::Refused { message, hint: hint.into() });
    if !store.is_file() {
        let hint = "name the store's file, or the folder in which it belongs";
        return refused(format!("{} is no file", store.display()), hint);
    }
    if drives.iter().any(|drive| is_same_file(store, drive)) {
        let hint = "name STORE first, and the drives behind --drives";
        return refused(format!("{} is one of the drives", store.display()), hint);
    }
    match EmbeddedStore::open(store) {
        Err(error @ weft_manager::StoreError::Locked { .. }) => refused(
            error.to_string(),
            "stop the manager and all nodes first, for a local fabric with `weft down`",
        ),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Whether two paths lead to the same file.
pub(crate) fn is_same_file(one: &Path, other: &Path) -> bool {
    match (fs::canonicalize(one), fs::canonicalize(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
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

/// The name under which a store that is there is kept; none if there is no store.
pub(crate) fn keep_as(store: &Path) -> Option<PathBuf> {
    if !store.exists() {
        return None;
    }
    let seconds = wall_clock_us() / 1_000_000;
    let names = (0..).map(|n| match n {
        0 => format!("old-{seconds}"),
        n => format!("old-{seconds}-{n}"),
    });
    names.map(|name| beside(store, &name)).find(|path| !path.exists())
}

/// Writes the new store beside the old one, keeps the old one under another name, and takes its place. Durable on return.
pub(crate) fn write(store: &Path, recovered: &Recovered, kept: Option<&Path>) -> Result<(), CliError> {
    let folder = store.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(CliError::file("create the folder", folder))?;
    let fresh = beside(store, "new");
    if fresh.exists() {
        fs::remove_file(&fresh).map_err(CliError::file("remove", &fresh))?;
    }
    {
        let written = EmbeddedStore::open_or_make(&fresh)
            .and_then(|s| s.commit(MapVersion(0), recovered.map.version, &encode_map(&recovered.map)));
        written.map_err(|e| refused(&ManagerError::from(e)))?;
    }
    if let Some(kept) = kept {
        fs::rename(store, kept).map_err(CliError::file("rename", store))?;
    }
    fs::rename(&fresh, store).map_err(CliError::file("rename", &fresh))?;
    File::open(folder).and_then(|f| f.sync_all()).map_err(CliError::file("write", folder))
}

/// The path with something behind its name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
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
    text.push_str(&say_kept(report.kept.as_deref(), report.dry_run));
    text
}

/// Where the store that was there is, or would be; nothing where there was none.
pub(crate) fn say_kept(kept: Option<&Path>, dry_run: bool) -> String {
    let verb = if dry_run { "would be" } else { "is" };
    kept.map_or_else(String::new, |kept| format!("the old store {verb} kept as {}\n", kept.display()))
}
