//! A mount is cut off while a program has locked a file on it (F14). Its session ends, another mount has the
//! file and the lock, and then the first one is back with a new session: what was open before must not go on.

use super::counters::{lock_in_turn, value_of};
use super::fenced::cut_off;
use super::files_stage::{FILES, FilesStage, PATIENCE, done, plain};
use super::stage::Stage;
use crate::clients::client_host;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_client::{AttachMode, Fabric};
use weft_fs::{Files, FsError, HowToOpen, LastingFiles, Mount};
use weft_rt::{Buf, now, random_below, sim, sleep};
use weft_types::{FileKind, InodeNumber};
use weft_wire::files::{FileLock, LockFamily, LockMode, LockOwner};

const NAME: &[u8] = b"shared";
const TO_WRITE: HowToOpen = HowToOpen { writes: true, truncates: false, appends: false };

/// What each of the two writes.
const FIRST: u64 = 1;
const OTHER: u64 = 10;

/// How far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    #[default]
    Begins,
    Locked,
    CutOff,
    Healed,
    Back,
}

#[derive(Default)]
struct Scene {
    phase: Cell<Phase>,
}

impl Scene {
    async fn until(&self, phase: Phase) {
        while self.phase.get() < phase {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// The mount that is cut off.
    async fn mount(self: Rc<Self>, stage: Rc<Stage>) {
        let fabric =
            Fabric::connect(&stage.bed.managers(), "files of one that lasts").await.expect("it is served");
        let attach = move || {
            let fabric = fabric.clone();
            async move { Mount::attach(&fabric, FILES, AttachMode::Shared, PATIENCE).await }
        };
        let files = LastingFiles::begin(attach).await.expect("it is served");
        let first = files.newest();
        let handle = make(&first).await.expect("it is served");
        self.phase.set(Phase::Locked);
        self.until(Phase::Healed).await;
        let before = first.session_id();
        while files.files().await.is_ok_and(|files| files.session_id() == before) {
            // It hears of the end when it is answered next.
            let _ = files.newest().attributes(InodeNumber::ROOT).await;
            sleep(Duration::from_millis(5)).await;
        }
        // A program that knows nothing of all that goes on.
        if let Ok(old) = files.of_handle(handle) {
            let _ = old.write(handle, 0, vec![Buf::from((FIRST + 1).to_le_bytes().to_vec())]).await;
            let _ = old.sync_handle(handle).await;
        }
        self.phase.set(Phase::Back);
    }
}

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let stage = FilesStage::set().await;
    let other = stage.mount(1);
    let scene = Rc::new(Scene::default());
    let host = client_host(0);
    sim::spawn_process(host, "mount-that-lasts", scene.clone().mount(stage.clone()));
    scene.until(Phase::Locked).await;
    cut_off(&stage, host);
    scene.phase.set(Phase::CutOff);
    let handle = done(&other, |files| async move {
        let inode = files.find(InodeNumber::ROOT, NAME).await?.inode;
        let handle = files.open(inode, TO_WRITE).await?;
        lock_in_turn(&files, handle, lock(2)).await?;
        files.write(handle, 0, vec![Buf::from(OTHER.to_le_bytes().to_vec())]).await?;
        Ok(handle)
    })
    .await?;
    sleep(Duration::from_millis(random_below(200))).await;
    stage.heal();
    scene.phase.set(Phase::Healed);
    let from = now();
    while scene.phase.get() < Phase::Back {
        if from.elapsed() > PATIENCE {
            return Err("a mount whose session is over does not come back".to_owned());
        }
        sleep(Duration::from_millis(5)).await;
    }
    let read = done(&other, move |files| async move { files.read(handle, 0, 8).await }).await?;
    match value_of(&read) {
        OTHER => stage.check().await,
        value => {
            Err(format!("beside the lock of another mount {value} was written, by one that had lost it"))
        }
    }
}

async fn make(files: &Files) -> Result<u64, FsError> {
    let new = plain(FileKind::Regular);
    let (_, handle) = files.create(InodeNumber::ROOT, NAME, new, false).await?;
    files.lock(handle, lock(1)).await?;
    files.write(handle, 0, vec![Buf::from(FIRST.to_le_bytes().to_vec())]).await?;
    Ok(handle)
}

fn lock(id: u64) -> FileLock {
    let owner = LockOwner { family: LockFamily::Whole, id };
    FileLock { owner, start: 0, last: u64::MAX, mode: LockMode::Exclusive, process: 0 }
}
