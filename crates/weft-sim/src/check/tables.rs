//! The tables of a file system's shards agree with themselves, and what groups hold with them, as `weft fs
//! check` asks of servers that go on serving.

use crate::bed::Bed;
use std::rc::Rc;
use std::time::Duration;
use weft_client::{AttachMode, Fabric};
use weft_fs::Mount;
use weft_rt::{sleep, timeout};
use weft_types::InodeNumber;
use weft_wire::files::{QuotaAmount, QuotaKind, QuotaOf, TableCheck};

/// How long one question may take: nothing is wrong any more.
const PATIENCE: Duration = Duration::from_secs(20);

/// Virtual time in which a shard is checked.
const WITHIN: Duration = Duration::from_secs(60);

/// The number of the table of inodes, as `weft-meta` has it.
const INODES: u8 = 4;

/// How often it is looked whether inodes are counted right: while some are purged, it never seems so.
const COUNTS_MOST: u32 = 50;

/// The project of all that is made where something is limited.
const PROJECT: u32 = 9;

/// How often it is asked how a check stands.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Checks all shards of a file system, one after the other.
///
/// # Errors
/// What one of them has found, or that it does not come to its end.
pub async fn check(bed: &Rc<Bed>, file_system: &str) -> Result<(), String> {
    let checking = timeout(WITHIN, check_shards(bed, file_system)).await;
    checking.unwrap_or_else(|_| Err(format!("the tables of {file_system} are not checked in {WITHIN:?}")))
}

async fn check_shards(bed: &Rc<Bed>, file_system: &str) -> Result<(), String> {
    let mount = mount(bed, file_system).await;
    let shards: Vec<u16> = (0..mount.shards()).collect();
    let checked = mount.check_names(&shards, |_, _, _| ()).await;
    let checked = checked.map_err(|error| format!("tables are not checked: {error}"))?;
    for (shard, check) in &checked.shards {
        verdict(*shard, check)?;
    }
    if let Some(finding) = checked.findings.first() {
        return Err(format!("{}, and {} in all", finding.text, checked.found));
    }
    counted(&mount).await?;
    let data = mount.check_data(|_| ()).await.map_err(|error| format!("data are not checked: {error}"))?;
    let shards = mount.shards();
    mount.detach().await;
    // Clients of files without names write to inodes of a shard that is not there.
    match data.findings.iter().find(|finding| finding.inode.shard() < shards) {
        Some(finding) => Err(format!("{}, and {} in all", finding.text, data.found)),
        None => Ok(()),
    }
}

async fn mount(bed: &Rc<Bed>, file_system: &str) -> Mount {
    loop {
        if let Ok(fabric) = Fabric::connect(&bed.managers(), "checker").await
            && let Ok(mount) = Mount::attach(&fabric, file_system, AttachMode::ReadOnly, PATIENCE).await
        {
            return mount;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Limits what a user may use, one of those that tests of names make files for. All that is made from now on
/// belongs to a project, which is limited as well.
pub async fn limit(bed: &Rc<Bed>, file_system: &str, limit: QuotaAmount) {
    let fabric = loop {
        if let Ok(fabric) = Fabric::connect(&bed.managers(), "admin").await {
            break fabric;
        }
        sleep(LOOK_EVERY).await;
    };
    let mount = Mount::attach(&fabric, file_system, AttachMode::Shared, PATIENCE).await;
    let mount = mount.expect("the file system was made");
    mount.set_project(InodeNumber::ROOT, PROJECT).await.expect("nothing is wrong yet");
    // Other users have files, too.
    let of_all = limit.plus(limit).plus(limit);
    for (kind, id, limit) in [(QuotaKind::User, 1, limit), (QuotaKind::Project, PROJECT, of_all)] {
        mount.set_quota(QuotaOf { kind, id }, limit, None).await.expect("nothing is wrong yet");
    }
    mount.detach().await;
}

/// Users, groups and the project have as many inodes as the shards have.
async fn counted(mount: &Mount) -> Result<(), String> {
    let failed = |error| format!("quotas are not read: {error}");
    let last = QuotaOf { kind: QuotaKind::Project, id: u32::MAX };
    let mut seen = [0; 4];
    for _ in 0..COUNTS_MOST {
        let mut inodes = 0;
        for shard in mount.shards_of_quotas() {
            let state = mount.state_of_shard(shard).await.map_err(failed)?;
            inodes += state.tables.iter().filter(|(table, _)| *table == INODES).map(|(_, n)| n).sum::<u64>();
        }
        let quotas = mount.quotas(QuotaOf::FIRST, last).await.map_err(failed)?;
        let of = |kind| quotas.iter().filter(|q| q.of.kind == kind).map(|q| q.used.inodes).sum::<u64>();
        let is_limited = quotas.iter().any(|q| q.of.kind == QuotaKind::Project);
        let in_projects = if is_limited { of(QuotaKind::Project) } else { inodes };
        seen = [inodes, of(QuotaKind::User), of(QuotaKind::Group), in_projects];
        if seen.iter().all(|n| *n == inodes) {
            return Ok(());
        }
        // Some are purged meanwhile.
        sleep(Duration::from_millis(200)).await;
    }
    Err(format!("inodes that are there, and counted of users, groups and projects: {seen:?}"))
}

/// What a check that is over says.
///
/// # Errors
/// What it has found.
pub fn verdict(shard: u16, check: &TableCheck) -> Result<(), String> {
    match check.findings.first() {
        Some(finding) => Err(format!("shard {shard}: {}, and {} in all", finding.text, check.found)),
        None => Ok(()),
    }
}
