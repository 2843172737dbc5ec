//! Programs on several mounts count in one file, each time under a lock on the counter (F11). Mounts die
//! with what they have locked, nodes die and are cut off, and no count is lost.

use super::files_stage::{FilesStage, PATIENCE, done, plain};
use crate::mounts::{Died, Station};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use weft_fs::{Files, FsError, HowToOpen};
use weft_rt::{Buf, now, random_below, sim, sleep, spawn};
use weft_types::{FileKind, InodeNumber};
use weft_wire::files::{FileError, FileLock, LockFamily, LockMode, LockOwner};

const NAME: &[u8] = b"counters";
const MOUNTS: usize = 3;
const USERS: u64 = 6;
const COUNTERS: u64 = 2;

/// Bytes of a counter: counters share a block.
const BYTES: u64 = 8;

/// What has been counted of one counter.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    /// Counts that were acknowledged.
    done: u64,
    /// Counts that have begun and not ended well: each may have happened.
    unknown: u64,
}

struct Scene {
    stations: Vec<Rc<Station>>,
    counted: RefCell<[Counted; COUNTERS as usize]>,
    is_over: Cell<bool>,
    users: Cell<u64>,
    found: RefCell<Option<String>>,
}

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    let stage = FilesStage::set().await;
    let stations = (0..MOUNTS).map(|host| stage.mount(host)).collect();
    let scene = Rc::new(Scene {
        stations,
        counted: RefCell::default(),
        is_over: Cell::new(false),
        users: Cell::new(USERS),
        found: RefCell::default(),
    });
    done(&scene.stations[0], make).await?;
    for user in 0..USERS {
        spawn(scene.clone().use_counters(user));
    }
    for _ in 0..3 + random_below(3) {
        sleep(Duration::from_millis(200 + random_below(1_000))).await;
        if random_below(3) == 0 {
            scene.stations[random_below(MOUNTS as u64) as usize].mount_anew();
        }
        stage.trouble_a_node(200, 4).await;
    }
    stage.heal();
    scene.finish().await?;
    stage.check().await
}

impl Scene {
    async fn use_counters(self: Rc<Self>, user: u64) {
        let station = self.stations[(user % MOUNTS as u64) as usize].clone();
        while !self.is_over.get() && self.found.borrow().is_none() {
            let life = station.life();
            let counting = self.clone();
            let ended = station.run(move |files| async move { counting.count(&files, user).await }).await;
            match ended {
                Ok(Ok(())) | Err(Died) => {}
                // Whoever is cut off for long has no session any more.
                Ok(Err(FsError::SessionOver { .. })) if station.life() == life => station.mount_anew(),
                Ok(Err(FsError::SessionOver { .. })) => {}
                Ok(Err(error)) => {
                    let wrong = match station
                        .run(|files| async move { files.attributes(InodeNumber::ROOT).await })
                        .await
                    {
                        Ok(Err(FsError::SessionOver { .. })) | Err(Died) => None,
                        _ => Some(format!("user {user}: {error}")),
                    };
                    *self.found.borrow_mut() = wrong.or(self.found.take());
                }
            }
        }
        self.users.set(self.users.get() - 1);
    }

    /// Opens the file and counts some times.
    async fn count(&self, files: &Files, user: u64) -> Result<(), FsError> {
        let inode = files.find(InodeNumber::ROOT, NAME).await?.inode;
        let handle = files.open(inode, HowToOpen { writes: true, ..HowToOpen::default() }).await?;
        for _ in 0..1 + random_below(10) {
            let counter = random_below(COUNTERS);
            let owner = LockOwner { family: LockFamily::Range, id: user };
            let (start, last) = (counter * BYTES, counter * BYTES + BYTES - 1);
            let lock = FileLock { owner, start, last, mode: LockMode::Exclusive, process: user as u32 };
            lock_in_turn(files, handle, lock).await?;
            self.count_one(files, handle, counter).await?;
            // Closing the file does it as well, and does not say so.
            if random_below(4) == 0 {
                break;
            }
            files.unlock(handle, owner, (start, last)).await?;
            self.is_counted(counter);
            sleep(Duration::from_micros(random_below(2_000))).await;
        }
        files.release(handle).await;
        Ok(())
    }

    /// What was counted under a lock outlives the mount once that is given back.
    fn is_counted(&self, counter: u64) {
        let mut counted = self.counted.borrow_mut();
        let counted = &mut counted[counter as usize];
        (counted.unknown, counted.done) = (counted.unknown - 1, counted.done + 1);
    }

    /// Counts by one, under the lock of the counter.
    async fn count_one(&self, files: &Files, handle: u64, counter: u64) -> Result<(), FsError> {
        let value = value_of(&files.read(handle, counter * BYTES, BYTES).await?);
        sleep(Duration::from_micros(random_below(3_000))).await;
        self.counted.borrow_mut()[counter as usize].unknown += 1;
        let data = Buf::from((value + 1).to_le_bytes().to_vec());
        files.write(handle, counter * BYTES, vec![data]).await
    }

    async fn finish(&self) -> Result<(), String> {
        self.is_over.set(true);
        let from = now();
        while self.users.get() > 0 {
            if from.elapsed() > PATIENCE {
                return Err("users of counters do not end".to_owned());
            }
            sleep(Duration::from_millis(10)).await;
        }
        if let Some(found) = self.found.take() {
            return Err(found);
        }
        for counter in 0..COUNTERS {
            let value = done(&self.stations[0], move |files| read(files, counter)).await?;
            let Counted { done, unknown } = self.counted.borrow()[counter as usize];
            sim::tell(|| {
                format!("counter {counter} is {value} after {done} counts and {unknown} unknown ones")
            });
            if value < done || value > done + unknown {
                return Err(format!(
                    "a counter is {value} after {done} counts, and {unknown} that may have been"
                ));
            }
        }
        Ok(())
    }
}

/// Takes a lock as soon as nobody else has it.
pub(super) async fn lock_in_turn(files: &Files, handle: u64, lock: FileLock) -> Result<(), FsError> {
    loop {
        match files.lock(handle, lock).await {
            Err(error) if error.refusal() == Some(FileError::Locked) => {
                files.until_unlocked(handle, lock).await?;
            }
            locked => return locked,
        }
    }
}

async fn make(files: Files) -> Result<(), FsError> {
    let new = plain(FileKind::Regular);
    let (_, handle) = files.create(InodeNumber::ROOT, NAME, new, false).await?;
    files.extend(handle, COUNTERS * BYTES).await?;
    files.release(handle).await;
    Ok(())
}

async fn read(files: Files, counter: u64) -> Result<u64, FsError> {
    let inode = files.find(InodeNumber::ROOT, NAME).await?.inode;
    let handle = files.open(inode, HowToOpen::default()).await?;
    let read = files.read(handle, counter * BYTES, BYTES).await?;
    files.release(handle).await;
    Ok(value_of(&read))
}

pub(super) fn value_of(bufs: &[Buf]) -> u64 {
    let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
    u64::from_le_bytes(bytes.try_into().expect("a counter is whole"))
}
