//! Who uses a shard, and who waits for whom, for people who look.

use crate::error::MetaError;
use crate::key::{Key, KeyParts, Table};
use crate::medium::Medium;
use crate::record::{Value, decode_hold};
use crate::shard::Inner;
use std::collections::BTreeMap;
use weft_rt::breathe;
use weft_types::SessionId;
use weft_types::limits::{SHARD_USERS_MAX, SHARD_WAITS_MAX};
use weft_wire::files::{Answer, HoldMode, ShardState, ShardUser, UseOfShard};

/// Items that are read in a row while other work waits: some tens of microseconds.
const ITEMS_PER_BREATH: usize = 256;

impl<M: Medium> Inner<M> {
    /// Who uses the shard, as of now.
    pub(crate) async fn use_of(&self) -> Result<Answer, MetaError> {
        self.prove().await?;
        let mut users = self.users().await;
        for (session, user) in &mut users {
            user.asked = self.recalls.asked_of(*session);
        }
        let users = users.into_values().take(SHARD_USERS_MAX as usize).collect();
        let mut waits = self.waits.all();
        waits.truncate(SHARD_WAITS_MAX as usize);
        Ok(Answer::Use(UseOfShard { users, waits }))
    }

    /// What sessions hold, read while others are served: it is of no one moment.
    async fn users(&self) -> BTreeMap<SessionId, ShardUser> {
        let mut users = BTreeMap::new();
        for table in [Table::Session, Table::Held, Table::Lock] {
            let mut last: Option<Key> = None;
            while let Some(key) = self.count_some(table, last.as_ref(), &mut users) {
                last = Some(key);
                breathe().await;
            }
        }
        users
    }

    /// Counts some items of a table behind a key, and returns the last one's; none if there are no more.
    fn count_some(
        &self,
        table: Table,
        last: Option<&Key>,
        users: &mut BTreeMap<SessionId, ShardUser>,
    ) -> Option<Key> {
        let tables = self.tables.borrow();
        let some = tables.behind(table, last).take(ITEMS_PER_BREATH);
        let read = some.inspect(|(key, value)| count(users, key, value)).last();
        read.map(|(key, _)| key.clone())
    }

    /// What the shard is made of, and what it has done.
    pub(crate) async fn state_of(&self) -> Result<Answer, MetaError> {
        self.prove().await?;
        let (newest, counters) = (self.newest.get(), self.counters.get());
        Ok(Answer::State(ShardState {
            format: newest.format,
            checkpoint: newest.checkpoint,
            generation: self.medium.generation(),
            log_blocks: self.log_blocks,
            log_from: self.log_from.get(),
            log_next: self.log_next.get(),
            pages: newest.pages,
            levels: newest.levels,
            tables: self.tables.borrow().counts(),
            served_ms: self.opened.elapsed().as_millis() as u64,
            operations: counters.operations,
            batches: counters.batches,
            appended_blocks: counters.log_blocks,
            change_bytes: counters.change_bytes,
            probes: counters.probes,
            checkpoints: counters.checkpoints,
        }))
    }
}

/// Counts an item for the session that it belongs to.
fn count(users: &mut BTreeMap<SessionId, ShardUser>, key: &Key, value: &Value) {
    let (session, held, is_lock) = match key.parts() {
        Some(KeyParts::Session(session)) => (session, None, false),
        Some(KeyParts::Held(inode, session)) => (session, Some(inode), false),
        Some(KeyParts::Lock(_, session, ..)) => (session, None, true),
        _ => return,
    };
    let user = users.entry(session).or_insert(ShardUser {
        session,
        open: 0,
        read: 0,
        write: 0,
        locks: 0,
        has_all_names: false,
        asked: 0,
    });
    user.locks += u64::from(is_lock);
    match held {
        Some(inode) if inode.is_whole() && is_all_names(value) => user.has_all_names = true,
        Some(_) => match decode_hold(value).expect("values are checked") {
            HoldMode::Open => user.open += 1,
            HoldMode::Read => user.read += 1,
            HoldMode::Write | HoldMode::Shared => user.write += 1,
        },
        None => {}
    }
}

/// Whether a hold of what stands for a shard stands for all names.
fn is_all_names(value: &Value) -> bool {
    decode_hold(value).expect("values are checked") == HoldMode::Write
}
