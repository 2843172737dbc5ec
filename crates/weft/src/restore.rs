//! `weft map restore`: the manager's store anew from a backup of the map, where the drives know nothing newer.
//!
//! It owns the refusals. How the map is raised above everything that may have been handed out since is that of
//! `weft fabric recover`; a backup that is older than what a drive knows is never gone back to, because it could
//! bring back replicas that were evicted since.

use crate::known::{Known, gather};
use crate::recover::{beside, check_target, is_same_file, keep_as, say_kept, store_file, write};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use weft_api::Timestamp;
use weft_cli::{CliError, MapRestoreArgs, Output, note};
use weft_manager::{EmbeddedStore, load_map};
use weft_membership::diff;
use weft_types::{DriveId, DriveState, FabricId, FabricMap, MapVersion};
use weft_wire::backup::{BackupError, decode_backup};
use weft_wire::collected::DriveContents;

/// What was, or would be, restored.
#[derive(serde::Serialize)]
struct Report {
    store: PathBuf,
    kept: Option<PathBuf>,
    fabric: FabricId,
    backup: MapVersion,
    taken: Timestamp,
    before: Option<MapVersion>,
    map: MapVersion,
    changes: Vec<String>,
    warnings: Vec<String>,
    dry_run: bool,
}

pub(crate) async fn restore(args: MapRestoreArgs, output: Output) -> Result<(), CliError> {
    let bytes = fs::read(&args.file).map_err(CliError::file("read", &args.file))?;
    let (head, backup) = decode_backup(&bytes).map_err(|e| unusable(&args.file, &e))?;
    if let Some(violation) = weft_membership::check(&backup).first() {
        return Err(CliError::Failed {
            message: format!("the map in {} breaks a rule: {violation}", args.file.display()),
            hint: RECOVER.into(),
        });
    }
    let store = store_file(&args.dir)?;
    if is_same_file(&store, &args.file) {
        return Err(CliError::Refused {
            message: format!("{} is the backup itself", store.display()),
            hint: "name the backup first, then the store to write".into(),
        });
    }
    check_target(&store, &args.sources)?;
    let current = current(&store).await?;
    if let Some(current) = &current {
        check_current(&store, current, &backup)?;
    }
    let Known { fabric, maps: copies, contents, mut warnings, .. } = gather(&args.sources).await?;
    if fabric != backup.fabric {
        return Err(CliError::Refused {
            message: format!("the drives belong to fabric {fabric}, the backup to {}", backup.fabric),
            hint: "name the drives of the backup's fabric, or a backup of theirs".into(),
        });
    }
    check_drives(&backup, &copies, &contents)?;
    let recovered = weft_manager::recover(vec![backup.clone()], &contents).map_err(|e| CliError::Failed {
        message: format!("the backup cannot be made into a map to go on with: {e}"),
        hint: RECOVER.into(),
    })?;
    warnings.extend(recovered.warnings.iter().cloned());
    let from = current.clone().unwrap_or_else(|| FabricMap::empty(backup.fabric));
    let kept = keep_as(&store);
    if !args.dry_run {
        write(&store, &recovered, kept.as_deref()).await?;
    }
    let report = Report {
        store,
        kept,
        fabric: backup.fabric,
        backup: backup.version,
        taken: Timestamp::from_millis(head.taken_ms),
        before: current.map(|c| c.version),
        map: recovered.map.version,
        changes: diff(&from, &recovered.map),
        warnings,
        dry_run: args.dry_run,
    };
    for warning in &report.warnings {
        note(&format!("warning: {warning}"));
    }
    output.show(&report, |r, _| describe(r))
}

/// What to do where a backup is of no use.
const RECOVER: &str =
    "the drives hold copies of the map: `weft fabric recover` makes a map from them, without any backup";

fn unusable(file: &Path, error: &BackupError) -> CliError {
    CliError::Failed {
        message: format!("{} cannot be used: {error}", file.display()),
        hint: match error {
            BackupError::Foreign => "name a file that `weft map backup` has written".into(),
            BackupError::Newer { .. } => "use the version of weft that wrote it, or a newer one".into(),
            BackupError::Damaged(_) => format!("use another backup; {RECOVER}"),
        },
    }
}

/// The map that the store holds, if it can be read. A copy of the file is looked into: to open a store is
/// to change it, and this one may be all that is left.
async fn current(store: &Path) -> Result<Option<FabricMap>, CliError> {
    if !store.exists() {
        return Ok(None);
    }
    let copy = beside(store, "copy");
    fs::copy(store, &copy).map_err(CliError::file("copy the store to", &copy))?;
    let held = match EmbeddedStore::open(&copy) {
        Ok(copied) => load_map(&copied).await,
        Err(error) => Err(error),
    };
    fs::remove_file(&copy).map_err(CliError::file("remove", &copy))?;
    Ok(held.ok().flatten())
}

/// Refuses to go back behind what the store holds. A store that was made by mistake, with nothing in it, is none.
fn check_current(store: &Path, current: &FabricMap, backup: &FabricMap) -> Result<(), CliError> {
    let is_new = current.nodes.is_empty() && current.volumes.is_empty() && current.drives.is_empty();
    if is_new {
        return Ok(());
    }
    let refused = |message: String, hint: &str| Err(CliError::Refused { message, hint: hint.into() });
    let place = store.display();
    if current.fabric != backup.fabric {
        let text = format!("{place} belongs to fabric {}, the backup to {}", current.fabric, backup.fabric);
        return refused(text, "name the store of the backup's own fabric, or a file that does not exist");
    }
    if current.version < backup.version {
        return Ok(());
    }
    if current == backup {
        return refused(
            format!("{place} holds this very map {} already", backup.version),
            "there is nothing to do",
        );
    }
    let changes = diff(backup, current);
    let shown: Vec<&str> = changes.iter().take(8).map(String::as_str).collect();
    let text = format!(
        "{place} holds map {}, the backup is {}: to go back would undo {} changes and could bring back copies that \
         have missed writes ({}{})",
        current.version,
        backup.version,
        changes.len(),
        shown.join("; "),
        if changes.len() > shown.len() { "; ..." } else { "" }
    );
    refused(
        text,
        "start the manager on its store as it is; if that is damaged, see `weft fabric recover --help`",
    )
}

/// Refuses unless every drive that may know more is at hand, and none does.
fn check_drives(
    backup: &FabricMap,
    copies: &[FabricMap],
    contents: &[DriveContents],
) -> Result<(), CliError> {
    let newest_copy = copies.iter().map(|c| c.version).max();
    let newer_drive = contents.iter().find_map(|found| {
        let newer = |g: &&weft_types::Group| match backup.groups.get(&g.id) {
            Some(known) => known.epoch < g.epoch,
            None => g.id.0 >= backup.next_id,
        };
        let group = found.entries.iter().find(newer)?;
        Some(format!("drive {} knows group {} at {}", found.id, group.id, group.epoch))
    });
    let newer = match newest_copy.filter(|v| *v > backup.version) {
        Some(version) => Some(format!("a drive holds map {version}")),
        None => newer_drive,
    };
    if let Some(newer) = newer {
        let instead = match weft_manager::recover(copies.to_vec(), contents) {
            Ok(recovered) => {
                let changes = diff(backup, &recovered.map);
                format!(
                    "`weft fabric recover` with the same drives would make map {} with {} volumes from them, which \
                     differs from the backup in {} places",
                    recovered.map.version,
                    recovered.map.volumes.len(),
                    changes.len()
                )
            }
            Err(error) => format!("`weft fabric recover` would say: {error}"),
        };
        return Err(CliError::Refused {
            message: format!(
                "the drives know more than the backup, which is map {}: {newer}; to go back could bring back copies \
                 that have missed writes",
                backup.version
            ),
            hint: instead,
        });
    }
    let at_hand: BTreeSet<DriveId> = contents.iter().map(|c| c.id).collect();
    let listed = |d: DriveId| backup.groups.values().any(|g| g.slot_of(d).is_some());
    let missing = backup.drives.values().filter(|d| d.state != DriveState::Destroyed && listed(d.id));
    let missing: Vec<String> = missing
        .filter(|d| !at_hand.contains(&d.id))
        .map(|d| format!("{} ({} of node {})", d.id.short(), d.path, d.node))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(CliError::Refused {
        message: format!(
            "{} drives that hold copies were not named, or cannot be read: {}; each of them may know that the backup \
             is out of date",
            missing.len(),
            missing.join(", ")
        ),
        hint: "name them all with --drives, or with --from those of other machines; if some are gone for \
               good, `weft fabric \
               recover` goes on without them, and says what that can cost"
            .into(),
    })
}

fn describe(report: &Report) -> String {
    let mut text = String::new();
    let (verb, done) = if report.dry_run { ("would be ", "would be written") } else { ("", "written") };
    for change in &report.changes {
        text.push_str(&format!("{verb}changed: {change}\n"));
    }
    text.push_str(&format!(
        "map {} of fabric {}, from the backup of map {} taken {}, {done} to {}\n",
        report.map,
        report.fabric,
        report.backup,
        report.taken,
        report.store.display()
    ));
    text.push_str(&say_kept(report.kept.as_deref(), report.dry_run));
    text
}
