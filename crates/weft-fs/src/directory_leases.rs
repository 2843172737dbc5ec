//! Leases of directories: a mount that is not alone holds directories to read, and answers for the names
//! in them without asking the shard (F4).
//!
//! It owns when a lease is asked for and given back. A lease is asked for where names are looked at again
//! and again. It is given back when another session changes something in the directory, or when no program
//! here looks at it any more. A lease that is often recalled is asked for less and less often. For each
//! directory one lease is asked for or given back at a time, because a recall may arrive before the answer
//! that grants the lease.

use crate::caller::Shards;
use crate::error::FsError;
use crate::kept_names::KeptBy;
use crate::namespace::Namespace;
use crate::open_files::OpenFiles;
use crate::turns::Turns;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;
use weft_rt::sync::join_all;
use weft_rt::{Instant, now};
use weft_rules::{Mutation, mutated};
use weft_types::InodeNumber;
use weft_types::limits::DIRECTORY_LEASES_MAX;
use weft_wire::files::{AttributeChanges, Operation};

/// How long a lease that was taken back is not asked for: the longer, the more often that was in a row.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_LONGEST: Duration = Duration::from_secs(64);

/// Directories whose pauses are kept. When there are more, all of them are forgotten.
const PAUSES: usize = 4_096;

/// Leases that are given back at once.
const GIVEN_AT_ONCE: usize = 32;

/// How long none is asked for where a server knows of none: it may be of a release before.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(300);

/// How often those are given back that were of no use meanwhile.
pub(crate) const LOOKED_THROUGH_EVERY: Duration = Duration::from_secs(30);

/// The names of a mount, and the files that it has open.
type Of<'a, S> = (&'a Namespace<S>, &'a OpenFiles<S>);

/// When leases are asked for and given back.
#[derive(Default)]
pub(crate) struct DirectoryLeases {
    turns: Turns,
    pauses: RefCell<BTreeMap<InodeNumber, Pause>>,
    /// Until when none is asked for: a server knew of no such leases.
    quiet_until: Cell<Option<Instant>>,
    /// The mount ends.
    has_ended: Cell<bool>,
}

#[derive(Clone, Copy)]
struct Pause {
    until: Instant,
    length: Duration,
}

impl DirectoryLeases {
    /// Asks for the lease of a directory, unless that was in vain lately.
    pub(crate) async fn take<S: Shards>(&self, names: &Namespace<S>, directory: InodeNumber) {
        let is_too_early = self.pauses.borrow().get(&directory).is_some_and(|pause| now() < pause.until);
        let is_quiet = self.quiet_until.get().is_some_and(|until| now() < until);
        if is_too_early || is_quiet || names.kept().leases() >= DIRECTORY_LEASES_MAX as usize {
            return;
        }
        let taken = self.turns.take(directory, async || {
            if self.has_ended.get() || names.kept().has(directory) {
                return Ok(());
            }
            let (hearing, asked) = (names.hearing(directory.shard()), names.kept().begin_look());
            let held = names.attributes_by(b"", Operation::HoldDirectory(directory)).await?;
            names.kept().lease(asked, &held, &hearing);
            Ok(())
        });
        match taken.await {
            Ok(()) => {}
            // A server of before.
            Err(FsError::NotUnderstood { .. }) => self.quiet_until.set(Some(now() + ASKED_AGAIN_AFTER)),
            Err(_) => self.pause(directory),
        }
    }

    /// Gives back a directory in which another session changes something, and pauses before it is asked
    /// for again. For the root, the caller makes sure that all names are not held, and are not taken until
    /// this returns: a hold of the root also stands for all names.
    pub(crate) async fn give<S: Shards>(&self, of: Of<'_, S>, directory: InodeNumber) -> Result<(), FsError> {
        if of.0.kept().is_leased(directory) {
            self.pause(directory);
        }
        self.give_back(of, directory).await
    }

    /// Gives back the directories whose leases were of no use since the last call, so that another mount
    /// can be alone. The root is not given back here. Returns whether its lease was of no use, too.
    pub(crate) async fn give_unused<S: Shards>(&self, of: Of<'_, S>) -> bool {
        let mut unused = of.0.kept().leased(true);
        let before = unused.len();
        unused.retain(|directory| *directory != InodeNumber::ROOT);
        if let Err(error) = self.give_some_back(of, &unused).await {
            tracing::debug!(%error, "a directory is not given back yet");
        }
        unused.len() < before
    }

    /// Neither holds nor takes any more.
    pub(crate) async fn end<S: Shards>(&self, of: Of<'_, S>) -> Result<(), FsError> {
        self.has_ended.set(true);
        self.give_some_back(of, &of.0.kept().leased(false)).await
    }

    async fn give_some_back<S: Shards>(
        &self,
        of: Of<'_, S>,
        directories: &[InodeNumber],
    ) -> Result<(), FsError> {
        let mut all = Ok(());
        for some in directories.chunks(GIVEN_AT_ONCE) {
            let given = join_all(some.iter().map(|directory| self.give_back(of, *directory))).await;
            all = given.into_iter().fold(all, Result::and);
        }
        all
    }

    /// Makes the next request for the lease wait. The pause doubles each time, and begins with the first
    /// one again when the last one ended long ago.
    fn pause(&self, directory: InodeNumber) {
        let mut pauses = self.pauses.borrow_mut();
        if pauses.len() >= PAUSES {
            pauses.clear();
        }
        let before = pauses.get(&directory).filter(|pause| now() < pause.until + PAUSE_LONGEST);
        let length = before.map_or(PAUSE_FIRST, |pause| (2 * pause.length).min(PAUSE_LONGEST));
        pauses.insert(directory, Pause { until: now() + length, length });
    }

    /// Gives a directory back, once the shard knows of the files in it that are open. If it is the root, as
    /// [`DirectoryLeases::give`].
    pub(crate) async fn give_back<S: Shards>(
        &self,
        (names, open): Of<'_, S>,
        directory: InodeNumber,
    ) -> Result<(), FsError> {
        self.turns
            .take(directory, async || {
                names.kept().end_lease(directory);
                // From here on others may write them, and take their names away.
                if !mutated(Mutation::LeaseGivenUnsaid) {
                    open.say(|_, kept_by| kept_by == KeptBy::Directory(directory)).await?;
                }
                let release = Operation::Release(directory, AttributeChanges::default());
                names.ask(b"", directory, release).await.map(drop)
            })
            .await
    }
}
