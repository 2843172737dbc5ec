//! What is left of files that have lost their last name: their data are given back, then their inodes.
//!
//! It owns the order: first the data, so that an inode that is gone has none. It touches files that nobody
//! can name any more, and no others.

use crate::error::MetaError;
use crate::record::Inode;
use crate::shard::Shard;
use crate::volume_medium::VolumeMedium;
use std::time::Duration;
use weft_client::{AttachMode, AttachOptions, ClientError, Fabric, FileLayout, FileSystem};
use weft_rt::sync::join_all;
use weft_rt::{sleep, wall_clock_us};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::{BLOCK_SIZE, FileKind, FileTime, InodeNumber, with_causes};

/// How often it is looked for such files.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long to wait after files were given back: each round begins and ends a session, and all of the
/// fabric hears of that.
const PAUSE: Duration = Duration::from_secs(10);

/// How long a file rests before its data are given back, so that reads of it that have begun can end.
const REST: Duration = Duration::from_secs(5);

/// Files that are looked at at once, and those that are given back at the same time.
const LOOKED_AT: usize = 8192;
const AT_ONCE: usize = 64;

/// Bytes of a file that are given back whatever it holds. What lies further out is looked for first.
const NEAR_BYTES: u64 = 1 << 30;

/// Gives back what has no name, until the shard ends.
pub(crate) async fn purge(shard: &Shard<VolumeMedium>, fabric: &Fabric, file_system: &str) -> MetaError {
    loop {
        match purge_once(shard, fabric, file_system).await {
            Ok(false) => {}
            Ok(true) => sleep(PAUSE).await,
            Err(Trouble::Shard(error)) => return error,
            // A later look tries again: a group may have no replica that serves.
            Err(Trouble::Data(error)) => {
                tracing::debug!(file_system, error = with_causes(&error), "files are not given back yet");
                sleep(PAUSE).await;
            }
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Why files were not given back.
enum Trouble {
    Shard(MetaError),
    Data(ClientError),
}

impl From<MetaError> for Trouble {
    fn from(error: MetaError) -> Trouble {
        Trouble::Shard(error)
    }
}

impl From<ClientError> for Trouble {
    fn from(error: ClientError) -> Trouble {
        Trouble::Data(error)
    }
}

/// Gives back all files that have rested; returns whether there were any. The file system is attached for
/// that time only: an operator who deletes it must not meet an unknown client.
async fn purge_once(shard: &Shard<VolumeMedium>, fabric: &Fabric, name: &str) -> Result<bool, Trouble> {
    let mut due = due(shard).await?;
    if due.is_empty() {
        return Ok(false);
    }
    let options = AttachOptions { mode: AttachMode::Shared, ..AttachOptions::default() };
    let files = fabric.attach_file_system(name, options).await?;
    let mut outcome = Ok(());
    while outcome.is_ok() && !due.is_empty() {
        outcome = give_all_back(shard, &files, &due).await;
        due = self::due(shard).await.unwrap_or_default();
    }
    files.detach().await;
    outcome.map(|()| true)
}

/// Inodes without a name that have rested.
async fn due(shard: &Shard<VolumeMedium>) -> Result<Vec<Inode>, MetaError> {
    if !shard.may_have_orphans() {
        return Ok(Vec::new());
    }
    let until = FileTime::from_us(wall_clock_us().saturating_sub(REST.as_micros() as u64));
    let orphans = shard.orphans(LOOKED_AT).await?;
    let found = |inode: InodeNumber| shard.with_tables(|tables| tables.inode(inode));
    Ok(orphans.into_iter().filter_map(found).filter(|i| i.attributes.changed <= until).collect())
}

async fn give_all_back(
    shard: &Shard<VolumeMedium>,
    files: &FileSystem,
    due: &[Inode],
) -> Result<(), Trouble> {
    let mut outcome = Ok(());
    for some in due.chunks(AT_ONCE) {
        for given_back in join_all(some.iter().map(|orphan| give_back(shard, files, orphan))).await {
            match given_back {
                // One that cannot be given back keeps no others.
                Err(Trouble::Data(error)) => outcome = Err(Trouble::Data(error)),
                given_back => given_back?,
            }
        }
    }
    outcome
}

async fn give_back(shard: &Shard<VolumeMedium>, files: &FileSystem, orphan: &Inode) -> Result<(), Trouble> {
    let attributes = &orphan.attributes;
    if attributes.kind == FileKind::Regular && orphan.reserved_end > 0 {
        let layout = FileLayout::decode(&attributes.layout).map_err(ClientError::Layout)?;
        let file = files.file(attributes.inode.0, layout)?;
        mark(Path::Purged);
        let end = orphan.reserved_end.next_multiple_of(BLOCK_SIZE as u64).min(file.size_max());
        if !mutated(Mutation::PurgedWithData) {
            file.discard(0, end.min(NEAR_BYTES)).await?;
            file.discard_data(end.min(NEAR_BYTES)..end).await?;
        }
    }
    shard.purge(attributes.inode).await?;
    Ok(())
}
