//! Who uses a shard, and who waits for whom, for people who look.

use crate::error::MetaError;
use crate::key::{KeyParts, Table};
use crate::medium::Medium;
use crate::record::decode_hold;
use crate::shard::Inner;
use std::collections::BTreeMap;
use weft_types::limits::{SHARD_USERS_MAX, SHARD_WAITS_MAX};
use weft_types::{InodeNumber, SessionId};
use weft_wire::files::{Answer, HoldMode, ShardState, ShardUser, UseOfShard};

impl<M: Medium> Inner<M> {
    /// Who uses the shard, as of now.
    pub(crate) async fn use_of(&self) -> Result<Answer, MetaError> {
        self.prove().await?;
        let mut users = self.users();
        for (session, user) in &mut users {
            user.asked = self.recalls.asked_of(*session);
        }
        let users = users.into_values().take(SHARD_USERS_MAX as usize).collect();
        let mut waits = self.waits.all();
        waits.truncate(SHARD_WAITS_MAX as usize);
        Ok(Answer::Use(UseOfShard { users, waits }))
    }

    fn users(&self) -> BTreeMap<SessionId, ShardUser> {
        let tables = self.tables.borrow();
        let nothing = |session| ShardUser {
            session,
            open: 0,
            read: 0,
            write: 0,
            locks: 0,
            has_all_names: false,
            asked: 0,
        };
        let mut users = BTreeMap::new();
        let kept = [Table::Session, Table::Held, Table::Lock].into_iter().flat_map(|table| tables.of(table));
        for (key, value) in kept {
            let (session, held, is_lock) = match key.parts() {
                Some(KeyParts::Session(session)) => (session, None, false),
                Some(KeyParts::Held(inode, session)) => (session, Some(inode), false),
                Some(KeyParts::Lock(_, session, ..)) => (session, None, true),
                _ => continue,
            };
            let user: &mut ShardUser = users.entry(session).or_insert_with(|| nothing(session));
            user.locks += u64::from(is_lock);
            match held {
                Some(InodeNumber::ROOT) => user.has_all_names = true,
                Some(_) => match decode_hold(value).expect("values are checked") {
                    HoldMode::Open => user.open += 1,
                    HoldMode::Read => user.read += 1,
                    HoldMode::Write => user.write += 1,
                },
                None => {}
            }
        }
        users
    }

    /// What the shard is made of, and what it has done.
    pub(crate) async fn state_of(&self) -> Result<Answer, MetaError> {
        self.prove().await?;
        let (newest, counters) = (self.newest.get(), self.counters.get());
        Ok(Answer::State(ShardState {
            format: newest.format,
            checkpoint: newest.checkpoint,
            generation: newest.generation,
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
