//! A node's drives, when its process starts: each is opened and recovered, or left out with a reason.

use super::devices::{Listed, PartOf, left_out_part};
use crate::drive::{open_refusal, store_refusal};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use weft_cli::CliError;
use weft_rt::{Drive, Instant, OpenOptions, now, random_u128, sleep};
use weft_store::{FormatOptions, Store, StoreError};
use weft_types::{DriveId, FabricId};
use weft_wire::control::DriveLeftOut;

/// How long a drive may be in use by a process that was killed: the kernel holds on to it until the last
/// request that was under way is through, and tells nobody when.
pub(super) const FORMER_DRIVE_MAX: Duration = Duration::from_secs(10);
const FORMER_DRIVE_POLL: Duration = Duration::from_millis(50);

/// Opens a drive and recovers what is on it; one in memory is formatted first. One that is in use may be let
/// go until then.
///
/// # Errors
/// Why it is left out.
pub(super) async fn open(
    listed: &Listed,
    fabric: FabricId,
    former_until: Instant,
) -> Result<Rc<Store>, Box<DriveLeftOut>> {
    let path = &*listed.path;
    let left_out = |error: CliError| Box::new(left_out_part(listed, error.chain(), error.hint()));
    let drive = open_drive(listed, former_until).await.map_err(left_out)?;
    if path.starts_with("mem:") {
        let options = FormatOptions::new(fabric, DriveId::from_random(random_u128()));
        Store::format(&drive, options).await.map_err(|e| left_out(store_refusal(path)(e)))?;
    }
    let part_of = listed.part.as_ref().map(|part| (part.label.clone(), part.index));
    let options = weft_store::OpenOptions { fabric: Some(fabric), part_of, ..Default::default() };
    let (store, report) = Store::open(drive, options).await.map_err(|error| match error {
        StoreError::FormattedAlready { fabric: found, drive } => Box::new(DriveLeftOut {
            path: path.to_owned(),
            id: Some(drive),
            fabric: Some(found),
            why: format!("{path}: drive {drive} belongs to fabric {found}, not to {fabric}"),
            hint: "put the drive of this fabric back, or start the node of the other one with it".into(),
        }),
        error => left_out(store_refusal(path)(error)),
    })?;
    tracing::info!(path, drive = %store.label().drive, ?report, "drive is open");
    Ok(store)
}

/// Opens what a drive lies on: for itself, or a part of what this process has opened already.
async fn open_drive(listed: &Listed, former_until: Instant) -> Result<Drive, CliError> {
    let Some(PartOf { path, label, index }) = &listed.part else {
        let opened = open_patiently(&listed.path, &OpenOptions::default(), former_until).await;
        return opened.map_err(open_refusal(&listed.path));
    };
    let options = OpenOptions { is_shared: true, ..OpenOptions::default() };
    let device = open_patiently(path, &options, former_until).await.map_err(open_refusal(path))?;
    label.part(&device, *index).map_err(store_refusal(path))
}

/// Opens a path; one that is in use may be let go until then.
pub(super) async fn open_patiently(path: &str, options: &OpenOptions, until: Instant) -> io::Result<Drive> {
    let mut drive = Drive::open(path, options.clone()).await;
    if drive.as_ref().is_err_and(is_in_use) {
        tracing::info!(path, "waiting for the drive, which a process that has just ended may still hold");
    }
    while drive.as_ref().is_err_and(is_in_use) && now() < until {
        sleep(FORMER_DRIVE_POLL).await;
        drive = Drive::open(path, options.clone()).await;
    }
    drive
}

fn is_in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Drives that carry the same identity: one is a copy of the other, and nobody can tell which one holds the
/// acknowledged writes. Why each of these identities is to be left out.
pub(super) fn twins<'a>(found: impl Iterator<Item = (&'a str, DriveId)>) -> BTreeMap<DriveId, DriveLeftOut> {
    let mut paths: BTreeMap<DriveId, Vec<&str>> = BTreeMap::new();
    for (path, drive) in found {
        paths.entry(drive).or_default().push(path);
    }
    let twins = paths.into_iter().filter(|(_, paths)| paths.len() > 1);
    let left_out = |drive: DriveId, paths: &[&str]| DriveLeftOut {
        path: paths.first().map_or_else(String::new, |path| (*path).to_owned()),
        id: Some(drive),
        fabric: None,
        why: format!("{} carry the same identity, so one is a copy of the other", paths.join(" and ")),
        hint: "keep the one that was in use last, and format the other one anew".into(),
    };
    twins.map(|(drive, paths)| (drive, left_out(drive, &paths))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_with_one_identity_are_twins() {
        let found = [("a", DriveId(1)), ("b", DriveId(2)), ("c", DriveId(1))];
        let twins = twins(found.into_iter());
        assert_eq!(twins.keys().copied().collect::<Vec<_>>(), [DriveId(1)]);
        assert!(twins[&DriveId(1)].why.starts_with("a and c carry"));
    }
}
