//! `weft fabric recover`: the manager's store anew, from the copies of the fabric map on the drives, of this
//! machine and of others.

use crate::known::{Copy, Known, gather};
use crate::manager::refused;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use weft_cli::{CliError, DriveSources, FabricRecoverArgs, Folder, Output, note};
use weft_manager::{EmbeddedStore, ManagerError, Recovered, StoreError, put_map};
use weft_rt::wall_clock_us;
use weft_store::split_part;
use weft_types::{MapVersion, with_causes};

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

pub(crate) async fn recover(args: FabricRecoverArgs, output: Output) -> Result<(), CliError> {
    let store = store_file(&args.dir)?;
    check_target(&store, &args.sources)?;
    let Known { maps, contents, copies, mut warnings, .. } = gather(&args.sources).await?;
    let recovered = weft_manager::recover(maps, &contents).map_err(|e| CliError::Failed {
        message: format!("cannot recover the fabric map: {}", with_causes(&e)),
        hint: "name all drives of this fabric, and only those: with --drives, or with --from for those of \
               other machines"
            .into(),
    })?;
    warnings.extend(recovered.warnings.iter().cloned());
    let kept = keep_as(&store);
    if !args.dry_run {
        write(&store, &recovered, kept.as_deref()).await?;
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

/// The store's file: that of a local fabric's folder, one in another folder, or the file named, which may
/// exist.
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

/// Refuses to write a store in the place of something that is none, or of one that a manager uses. One that
/// is damaged or missing is what recovery is for.
pub(crate) fn check_target(store: &Path, sources: &DriveSources) -> Result<(), CliError> {
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
    let is_drive = |drive: &PathBuf| {
        let device = drive.to_str().and_then(split_part).map(|(device, _)| Path::new(device));
        is_same_file(store, drive) || device.is_some_and(|device| is_same_file(store, device))
    };
    if sources.drives.iter().any(is_drive) {
        let hint = "name STORE first, and the drives behind --drives";
        return refused(format!("{} is one of the drives", store.display()), hint);
    }
    if sources.from.iter().any(|file| is_same_file(store, file)) {
        let hint = "name STORE first, and the files behind --from";
        return refused(format!("{} is one of the files to recover from", store.display()), hint);
    }
    if EmbeddedStore::is_in_use(store) {
        return refused(
            StoreError::Locked { place: store.display().to_string() }.to_string(),
            "stop the manager and all nodes first, for a local fabric with `weft down`",
        );
    }
    Ok(())
}

/// Whether two paths lead to the same file.
pub(crate) fn is_same_file(one: &Path, other: &Path) -> bool {
    match (fs::canonicalize(one), fs::canonicalize(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
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

/// Writes the new store beside the old one, keeps the old one under another name, and takes its place.
/// Durable on return.
pub(crate) async fn write(store: &Path, recovered: &Recovered, kept: Option<&Path>) -> Result<(), CliError> {
    let folder = store.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(CliError::file("create the folder", folder))?;
    let fresh = beside(store, "new");
    if fresh.exists() {
        fs::remove_file(&fresh).map_err(CliError::file("remove", &fresh))?;
    }
    {
        let failed = |e| refused(&ManagerError::from(e));
        let store = EmbeddedStore::open_or_make(&fresh).map_err(failed)?;
        put_map(&store, &recovered.map).await.map_err(failed)?;
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
        text.push_str(&format!("{}: {}\n", copy.place(), copy.map));
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
