//! A stage with a file system, and what the hunts on mounts of it have in common.

use super::stage::Stage;
use crate::bed::KnowFiles;
use crate::check::tables;
use crate::mounts::{Died, Station};
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;
use weft_api::ApiRequest;
use weft_fs::{Files, FsError};
use weft_rt::{random_below, sim, timeout};
use weft_types::{BLOCK_SIZE, FileKind};
use weft_wire::files::NewInode;

/// The name of the file system.
pub(super) const FILES: &str = "files";

/// How long an operation may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Shards of a file system that has several.
const SHARDS: u32 = 3;

pub(super) const BLOCK: u64 = BLOCK_SIZE as u64;

/// A fabric of three nodes, which has one file system with two copies.
pub(super) struct FilesStage {
    stage: Rc<Stage>,
    _know_files: KnowFiles,
}

impl FilesStage {
    /// One whose sessions end after 300 ms of silence.
    pub async fn set() -> FilesStage {
        FilesStage::set_as(async || Stage::set_with_sessions(3, 2, 300).await).await
    }

    /// The same, with directories in several shards.
    pub async fn set_spread() -> FilesStage {
        let set = async || Stage::set_with_sessions(3, 2, 300).await;
        FilesStage::set_of(SHARDS, set).await
    }

    /// One whose sessions last.
    pub async fn set_to_last() -> FilesStage {
        FilesStage::set_as(async || Stage::set(3, 2).await).await
    }

    async fn set_as(set: impl AsyncFnOnce() -> Rc<Stage>) -> FilesStage {
        FilesStage::set_of(1, set).await
    }

    async fn set_of(shards: u32, set: impl AsyncFnOnce() -> Rc<Stage>) -> FilesStage {
        // The nodes have to know of files before they start.
        let know_files = KnowFiles::begin();
        let stage = set().await;
        stage.bed.create_file_system_of(shards, FILES, 2, 1).await;
        FilesStage { stage, _know_files: know_files }
    }

    /// One in which one node's drive came after the file system was made, as often as not: it can grow.
    pub async fn set_to_grow() -> FilesStage {
        let know_files = KnowFiles::begin();
        let stage = Stage::set_with_sessions(3, 2, 300).await;
        let comes_later = random_below(2) == 0;
        if comes_later {
            stage.bed.all_drives_are_there().await;
            stage.bed.evacuate(2, 0, false).await;
        }
        stage.bed.create_file_system(FILES, 2, 1).await;
        if comes_later {
            stage.bed.evacuate(2, 0, true).await;
        }
        FilesStage { stage, _know_files: know_files }
    }

    /// Has the file system grow, if it can now.
    pub async fn grow(&self) {
        let request = ApiRequest::FsGrow { name: FILES.into(), dry_run: false };
        if let Ok(Err(error)) = timeout(PATIENCE, self.stage.bed.try_api(&request)).await {
            sim::tell(|| format!("management: {error}"));
        }
    }

    /// A mount of it on the client host of this number.
    pub fn mount(&self, host: usize) -> Rc<Station> {
        Station::start(&self.stage.bed, FILES, host, PATIENCE)
    }

    /// The file system agrees with itself, as `weft fs check` finds: names, inodes, and the data of files.
    ///
    /// # Errors
    /// What is wrong with it.
    pub async fn check(&self) -> Result<(), String> {
        tables::check(&self.stage.bed, FILES).await
    }

    /// Mounts of it, each on a client host of its own, from the first one on.
    pub fn mounts<const N: usize>(&self) -> [Rc<Station>; N] {
        std::array::from_fn(|host| self.mount(host))
    }
}

impl Deref for FilesStage {
    type Target = Rc<Stage>;

    fn deref(&self) -> &Rc<Stage> {
        &self.stage
    }
}

/// Has a mount do something that has to end well.
///
/// # Errors
/// If the operation fails, or the mount dies.
pub(super) async fn done<T: 'static, F: Future<Output = Result<T, FsError>> + 'static>(
    station: &Rc<Station>,
    job: impl FnOnce(Files) -> F + 'static,
) -> Result<T, String> {
    match station.run(job).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(Died) => Err("a mount has died".to_owned()),
    }
}

/// An inode of this kind with nothing special about it.
pub(super) fn plain(kind: FileKind) -> NewInode {
    NewInode { kind, mode: 0o755, umask: 0, uid: 0, gid: 0, device: 0, target: Vec::new() }
}
