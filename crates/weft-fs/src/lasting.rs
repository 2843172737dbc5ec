//! A mount that outlives its session: when the session is over, it takes another one (F14).
//!
//! A file that was open belongs to the session in which it was opened, and fails from then on: other
//! mounts may have written to it since, and may have had the locks on it. A file that is opened afterwards
//! works.

use crate::error::FsError;
use crate::files::Files;
use crate::mount::Mount;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use weft_client::ClientError;
use weft_rt::sync::Mutex;
use weft_rt::{Instant, now, sleep, spawn, timeout};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::{InodeNumber, with_causes};

/// Attaches the file system once more.
type Attach = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Mount, ClientError>>>>>;

/// How long a refused attach is not repeated.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How long it is waited until a file is closed, and how often it is looked.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A mount in one session after another.
pub struct LastingFiles {
    attach: Attach,
    newest: RefCell<Files>,
    /// Those before, of which something is open.
    former: RefCell<Vec<Files>>,
    /// Held by whoever attaches.
    turn: Mutex<()>,
    /// When a new session was refused last, and why.
    refused: RefCell<Option<(Instant, FsError)>>,
}

impl LastingFiles {
    /// Begins to use a file system, which `attach` attaches now, and again when the session is over.
    ///
    /// # Errors
    /// If it cannot be attached.
    pub async fn begin<F: Future<Output = Result<Mount, ClientError>> + 'static>(
        attach: impl Fn() -> F + 'static,
    ) -> Result<LastingFiles, ClientError> {
        let attach: Attach = Box::new(move || Box::pin(attach()));
        let newest = RefCell::new(Files::begin(attach().await?));
        Ok(LastingFiles {
            attach,
            newest,
            former: RefCell::default(),
            turn: Mutex::new(()),
            refused: RefCell::default(),
        })
    }

    /// The files of the newest session, whether or not that is over.
    pub fn newest(&self) -> Files {
        self.newest.borrow().clone()
    }

    /// The files in a session that is not over, as far as is known. Takes a new one if need be.
    ///
    /// # Errors
    /// If there is none to be had.
    pub async fn files(&self) -> Result<Files, FsError> {
        let newest = self.newest();
        if !newest.is_over() {
            return Ok(newest);
        }
        let _turn = self.turn.lock().await;
        let before = self.newest();
        if !before.is_over() {
            return Ok(before);
        }
        let mount = self.attach_again(&before).await?;
        let files = Files::begin_behind(mount, &before);
        mark(Path::SessionRenewed);
        tracing::warn!(
            session = %files.session_id(),
            "the session of the mount was over: it has a new one; files that were open before fail"
        );
        if mutated(Mutation::HandlesOutlive) {
            files.0.open.open_all_of(&before.0.open).await;
        }
        self.newest.replace(files.clone());
        self.former.borrow_mut().retain(Files::has_handles);
        self.former.borrow_mut().push(before.clone());
        spawn(async move { before.abandon().await });
        Ok(files)
    }

    /// Takes a new session. If one was refused within the last second, this fails at once for the same
    /// reason.
    async fn attach_again(&self, before: &Files) -> Result<Mount, FsError> {
        if let Some((at, error)) = &*self.refused.borrow()
            && at.elapsed() < AGAIN_AFTER
        {
            return Err(error.clone());
        }
        let why = match timeout(before.patience(), (self.attach)()).await {
            Ok(Ok(mount)) => return Ok(mount),
            Ok(Err(error)) => with_causes(&error),
            Err(_) => "no manager answers".to_owned(),
        };
        let why = format!("the mount's session is over, and a new one cannot be had: {why}").into();
        let error = FsError::SessionOver { why };
        self.refused.replace(Some((now(), error.clone())));
        Err(error)
    }

    /// Whether an inode stays open in a session that is over. The kernel says of a file that it is closed a
    /// moment after the program goes on; so this waits for up to a second.
    pub async fn has_former(&self, inode: InodeNumber) -> bool {
        let has_one = || self.former.borrow().iter().any(|files| files.has_handle_of(inode));
        let from = now();
        while has_one() && from.elapsed() < CLOSED_WITHIN {
            sleep(LOOK_AGAIN).await;
        }
        has_one()
    }

    /// The files in the session in which a handle was opened.
    ///
    /// # Errors
    /// If it was never opened, or is closed.
    pub fn of_handle(&self, handle: u64) -> Result<Files, FsError> {
        let newest = self.newest();
        if newest.knows(handle) {
            return Ok(newest);
        }
        let former = self.former.borrow().iter().find(|files| files.knows(handle)).cloned();
        former.ok_or(FsError::Refused { path: String::new(), error: weft_wire::files::FileError::Stale })
    }

    /// Ends the mount: what the shards have not heard is told first.
    ///
    /// # Errors
    /// If that fails; it has ended then, too.
    pub async fn end(&self) -> Result<(), FsError> {
        self.newest().end().await
    }
}
