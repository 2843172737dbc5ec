//! Directories that a mount holds to read beside others, so that it answers for their names without asking
//! (F4).
//!
//! It owns when a lease is asked for and given back: where names are looked at again and again, until
//! somebody else changes something there, or nobody here looks any more. Where leases are taken back often
//! they are asked for ever more seldom. Of each directory one lease is asked for or given back at a time: a
//! recall may be here before the answer that grants what it wants back.

use crate::caller::Shards;
use crate::error::FsError;
use crate::hearing::Hearing;
use crate::namespace::Namespace;
use crate::open_files::OpenFiles;
use crate::turns::Turns;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
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
    pub(crate) async fn take<S: Shards>(
        &self,
        names: &Namespace<S>,
        hearing: &Rc<Hearing>,
        directory: InodeNumber,
    ) {
        let is_too_early = self.pauses.borrow().get(&directory).is_some_and(|pause| now() < pause.until);
        let is_quiet = self.quiet_until.get().is_some_and(|until| now() < until);
        if is_too_early || is_quiet || names.kept().leases() >= DIRECTORY_LEASES_MAX as usize {
            return;
        }
        let taken = self.turns.take(directory, async || {
            if self.has_ended.get() || names.kept().has(directory) {
                return Ok(());
            }
            let asked = names.kept().begin_look();
            let held = names.attributes_by(b"", Operation::HoldDirectory(directory)).await?;
            names.kept().lease(asked, &held, hearing);
            Ok(())
        });
        match taken.await {
            Ok(()) => {}
            // A server of before.
            Err(FsError::NotUnderstood { .. }) => self.quiet_until.set(Some(now() + ASKED_AGAIN_AFTER)),
            Err(_) => self.pause(directory),
        }
    }

    /// Somebody else changes something in a directory. If it is the root, all names are not held, and nobody
    /// takes them meanwhile: the root's hold stands for these as well.
    pub(crate) async fn give<S: Shards>(&self, of: Of<'_, S>, directory: InodeNumber) -> Result<(), FsError> {
        if of.0.kept().is_leased(directory) {
            self.pause(directory);
        }
        self.give_back(of, directory).await
    }

    /// Gives those back that were of no use since this was done last, but the root: another mount can be
    /// alone then. Whether the root is one of them.
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

    /// The next time the lease is not asked for soon. One that was had for long begins anew.
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
                    open.say_in(directory).await?;
                }
                let release = Operation::Release(directory, AttributeChanges::default());
                names.ask(b"", directory, release).await.map(drop)
            })
            .await
    }
}
