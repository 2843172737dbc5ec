//! A mount that outlives its session: when the session is over, it takes another one (F14).
//!
//! What was open stays of the session in which it was opened, and fails: others may have written to it since,
//! and have had the locks on it. What is opened afterwards works.

use crate::error::FsError;
use crate::files::Files;
use crate::mount::Mount;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use weft_client::ClientError;
use weft_rt::spawn;
use weft_rt::sync::Mutex;
use weft_rules::{Mutation, mutated};

/// Attaches the file system once more.
type Attach = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Mount, ClientError>>>>>;

/// A mount in one session after another.
pub struct LastingFiles {
    attach: Attach,
    newest: RefCell<Files>,
    /// Those before, of which something is open.
    former: RefCell<Vec<Files>>,
    /// Held by whoever attaches.
    turn: Mutex<()>,
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
        Ok(LastingFiles { attach, newest, former: RefCell::default(), turn: Mutex::new(()) })
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
        let mount = (self.attach)().await.map_err(|error| FsError::SessionOver {
            why: format!("the mount's session is over, and a new one cannot be had: {error}").into(),
        })?;
        let files = Files::begin_behind(mount, &before);
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
