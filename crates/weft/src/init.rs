//! `weft fabric init`: a new fabric, as the store of its manager. Also what is said where a manager finds
//! none.
//!
//! It owns the refusals on both sides: no fabric is made where there may have been one, and no manager goes
//! on without the one that it should have.

use crate::backup::BackupFolder;
use crate::manager::refused;
use crate::recover::beside;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use weft_cli::{CliError, FabricInitArgs, Output};
use weft_manager::{EmbeddedStore, ManagerError, StoreError, found};
use weft_rt::random_u128;
use weft_types::{Durations, FabricId, MapVersion};

/// Names of files that a refusal mentions; the others are counted.
const NAMED_MAX: usize = 6;

/// A fabric that was, or would be, made.
#[derive(serde::Serialize)]
struct Made {
    fabric: FabricId,
    store: PathBuf,
    map: MapVersion,
    dry_run: bool,
}

pub(crate) async fn init(args: FabricInitArgs, output: Output) -> Result<(), CliError> {
    check_is_new(&args.store)?;
    let fabric = args.fabric_id.unwrap_or_else(|| FabricId::from_random(random_u128()));
    let map = match args.dry_run {
        true => weft_types::FabricMap::empty(fabric).version,
        false => make(&args.store, fabric).await?,
    };
    let made = Made { fabric, store: args.store, map, dry_run: args.dry_run };
    output.show(&made, |made, _| describe(made))
}

/// Refuses where there is, or was, a fabric: a new one would not know the drives of the old one.
fn check_is_new(store: &Path) -> Result<(), CliError> {
    let place = store.display();
    if fs::symlink_metadata(store).is_ok() {
        let hint = format!(
            "start its manager with `weft manager run --store {place}`; if what it held is lost, `weft \
             fabric recover \
             {place}` makes it from the drives; for a new fabric name another file"
        );
        return Err(CliError::Refused { message: format!("{place} exists already"), hint });
    }
    let Some(backup) = BackupFolder::beside(store).newest() else { return Ok(()) };
    let hint = format!(
        "if that fabric is to come back: `weft fabric recover {place}` makes its store from the drives; \
         for a new one name \
         a store in another folder, or move the backups away"
    );
    let message = format!("there was a fabric: its map is backed up in {}", backup.display());
    Err(CliError::Refused { message, hint })
}

/// Makes the store with its first map under another name, and then gives it its own: whole, or not there.
/// Durable on return.
async fn make(store: &Path, fabric: FabricId) -> Result<MapVersion, CliError> {
    let folder = store.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(CliError::file("create the folder", folder))?;
    let fresh = beside(store, "new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(CliError::file("remove", &fresh)(error));
        }
        _ => {}
    }
    let map = {
        let store = EmbeddedStore::open_or_make(&fresh).map_err(|e| refused(&ManagerError::from(e)))?;
        found(&store, fabric, Durations::default()).await.map_err(|e| refused(&e))?
    };
    // A link never replaces what somebody else has made meanwhile, as a rename would; not every file system
    // has links.
    match fs::hard_link(&fresh, store) {
        Ok(()) => fs::remove_file(&fresh).map_err(CliError::file("remove", &fresh))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let _ = fs::remove_file(&fresh);
            return check_is_new(store).and(Err(CliError::file("make", store)(error)));
        }
        Err(_) => fs::rename(&fresh, store).map_err(CliError::file("make", store))?,
    }
    File::open(folder).and_then(|f| f.sync_all()).map_err(CliError::file("write", folder))?;
    Ok(map.version)
}

fn describe(made: &Made) -> String {
    let (fabric, store) = (made.fabric, made.store.display());
    if made.dry_run {
        return format!("fabric {fabric} would be made in {store}\n");
    }
    format!(
        "fabric {fabric} made, in {store}\n\nNext:\n  \
         weft manager run --store {store} --listen IP:PORT\n      \
         start its manager; where the package is installed, set WEFT_LISTEN (and WEFT_STORE, if it is not \
         the usual \
         one)\n      in /etc/weft/manager.env, then: systemctl enable --now weft-manager\n  \
         weft drive format DRIVE --fabric-id {fabric}\n      \
         make each drive one of this fabric\n  \
         weft node run --name NODE --manager IP:PORT --listen IP:PORT --drive DRIVE...\n      \
         serve the drives of each machine\n"
    )
}

/// Opens the store of a manager that is to start. Its fabric was made by [`init`], or has come back by a
/// recovery.
///
/// # Errors
/// A refusal with what there is instead, where the store is missing or empty; the store's own errors
/// otherwise.
pub(crate) fn open_store(store: &Path, expected: Option<FabricId>) -> Result<EmbeddedStore, CliError> {
    check_is_there(store, expected)?;
    EmbeddedStore::open(store).map_err(|e| refused(&ManagerError::from(e)))
}

/// Refuses where a manager's store is missing or empty.
pub(crate) fn check_is_there(store: &Path, expected: Option<FabricId>) -> Result<(), CliError> {
    match fs::metadata(store) {
        Ok(found) if found.is_file() && found.len() == 0 => Err(no_fabric(store, expected)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            let missing = StoreError::Missing { place: store.display().to_string() };
            Err(without_fabric(store, expected, &format!("{missing}: {}", what_is_there(store))))
        }
        _ => Ok(()),
    }
}

/// The refusal of a manager whose store holds no fabric.
pub(crate) fn no_fabric(store: &Path, expected: Option<FabricId>) -> CliError {
    let what = format!("{} holds no fabric: it is empty", store.display());
    without_fabric(store, expected, &what)
}

fn without_fabric(store: &Path, expected: Option<FabricId>, what: &str) -> CliError {
    let place = store.display();
    let expected = expected.map_or_else(String::new, |fabric| format!("; fabric {fabric} is expected"));
    let is_mounted = if store.exists() { "" } else { "is its disk mounted? " };
    let moved = if store.exists() { ", once that file is moved away" } else { "" };
    let backup = match BackupFolder::beside(store).newest() {
        Some(newest) => newest.display().to_string(),
        None => "BACKUP".into(),
    };
    CliError::Refused {
        message: format!("{what}{expected}"),
        hint: format!(
            "{is_mounted}a fabric that was there comes back with `weft fabric recover {place} --drives \
             DRIVE...`, from the \
             copies of its map on the drives, or with `weft map restore {backup} {place} --drives \
             DRIVE...`; a new one \
             begins with `weft fabric init {place}`{moved}"
        ),
    }
}

/// What is found where a store should be, for people.
fn what_is_there(store: &Path) -> String {
    if let Ok(target) = fs::read_link(store) {
        return format!("it is a link to {}, which is not there", target.display());
    }
    let folder = store.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let place = folder.display();
    let mut names = match fs::read_dir(folder) {
        Ok(entries) => entries
            .filter_map(|e| Some(e.ok()?.file_name().to_string_lossy().into_owned()))
            .collect::<Vec<_>>(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return format!("the folder {place} does not exist");
        }
        Err(error) => return format!("the folder {place} cannot be read ({error})"),
    };
    names.sort();
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    match (names.is_empty(), more) {
        (true, _) => format!("the folder {place} is empty"),
        (false, 0) => format!("the folder {place} holds {}", names.join(", ")),
        (false, more) => format!("the folder {place} holds {} and {more} more", names.join(", ")),
    }
}
