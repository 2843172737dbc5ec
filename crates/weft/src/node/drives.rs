//! A node's drives, when its process starts: each is opened and recovered, or left out with a reason.

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
    path: &str,
    fabric: FabricId,
    former_until: Instant,
) -> Result<Rc<Store>, Box<DriveLeftOut>> {
    let left_out = |error: CliError| {
        let (why, hint) = (error.chain(), error.hint());
        Box::new(DriveLeftOut { path: path.to_owned(), id: None, fabric: None, why, hint })
    };
    let mut drive = Drive::open(path, OpenOptions::default()).await;
    if drive.as_ref().is_err_and(is_in_use) {
        tracing::info!(path, "waiting for the drive, which a process that has just ended may still hold");
    }
    while drive.as_ref().is_err_and(is_in_use) && now() < former_until {
        sleep(FORMER_DRIVE_POLL).await;
        drive = Drive::open(path, OpenOptions::default()).await;
    }
    let drive = drive.map_err(|e| left_out(open_refusal(path)(e)))?;
    if path.starts_with("mem:") {
        let options = FormatOptions::new(fabric, DriveId::from_random(random_u128()));
        Store::format(&drive, options).await.map_err(|e| left_out(store_refusal(path)(e)))?;
    }
    let options = weft_store::OpenOptions { fabric: Some(fabric), ..Default::default() };
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

/// Deals drives to so many threads: the largest first, each to the thread that has least. One whose size is
/// not known counts for nothing: it will most likely not open.
pub(super) fn deal(paths: &[String], threads: usize) -> Vec<Vec<String>> {
    let mut sized: Vec<(u64, &String)> =
        paths.iter().map(|path| (Drive::size_of(path).unwrap_or(0), path)).collect();
    sized.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let mut dealt: Vec<(u64, Vec<String>)> = vec![(0, Vec::new()); threads];
    for (bytes, path) in sized {
        let least = dealt.iter_mut().min_by_key(|(sum, drives)| (*sum, drives.len()));
        let (sum, drives) = least.expect("there is a thread");
        *sum += bytes;
        drives.push(path.clone());
    }
    dealt.into_iter().map(|(_, drives)| drives).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_drives_go_to_the_emptiest_threads() {
        let paths = ["mem:1G", "mem:4G", "mem:2G", "mem:2G", "/not/there"].map(str::to_owned);
        let dealt = deal(&paths, 2);
        assert_eq!(dealt[0], ["mem:4G", "mem:1G"]);
        assert_eq!(dealt[1], ["mem:2G", "mem:2G", "/not/there"]);
        let one_each = deal(&paths, 5);
        assert!(one_each.iter().all(|drives| drives.len() == 1), "{one_each:?}");
    }

    #[test]
    fn drives_with_one_identity_are_twins() {
        let found = [("a", DriveId(1)), ("b", DriveId(2)), ("c", DriveId(1))];
        let twins = twins(found.into_iter());
        assert_eq!(twins.keys().copied().collect::<Vec<_>>(), [DriveId(1)]);
        assert!(twins[&DriveId(1)].why.starts_with("a and c carry"));
    }
}
