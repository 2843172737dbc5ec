//! Who uses a shard: what sessions hold in it, and who waits for whom.

use super::operation::HoldMode;
use super::{decode_bool, decode_count};
use crate::{DecodeError, Decoder, Encoder};
use weft_types::limits::{SHARD_USERS_MAX, SHARD_WAITS_MAX};
use weft_types::{InodeNumber, SessionId};

/// Who uses a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UseOfShard {
    /// Sessions that the shard knows, at most [`SHARD_USERS_MAX`], by number.
    pub users: Vec<ShardUser>,
    /// Operations that wait for other sessions, at most [`SHARD_WAITS_MAX`], the oldest first.
    pub waits: Vec<ShardWait>,
}

/// What a session holds in a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardUser {
    /// The session.
    pub session: SessionId,
    /// Inodes that it has open and may not use now, that it may read, and that it may write.
    pub open: u64,
    /// Inodes that it may read.
    pub read: u64,
    /// Inodes that it may write.
    pub write: u64,
    /// Locks of its programs.
    pub locks: u64,
    /// Whether it holds all names: it is alone, and looks names up without asking.
    pub has_all_names: bool,
    /// What it was asked to give back or to tell, and has not.
    pub asked: u64,
}

/// An operation that waits for another session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardWait {
    /// Whose operation it is.
    pub session: SessionId,
    /// For which session it waits.
    pub holder: SessionId,
    /// What is wanted: an inode, or all names, which stand under the root directory's number.
    pub inode: InodeNumber,
    /// What the holder may keep of it. `None`: it has a lock.
    pub keeps: Option<HoldMode>,
    /// How long it has waited, in milliseconds.
    pub waited_ms: u64,
}

impl UseOfShard {
    pub(super) fn encode(&self, e: &mut Encoder) {
        e.u32(self.users.len() as u32);
        for user in &self.users {
            e.u64(user.session.0).u64(user.open).u64(user.read).u64(user.write).u64(user.locks);
            e.u8(user.has_all_names.into()).u64(user.asked);
        }
        e.u32(self.waits.len() as u32);
        for wait in &self.waits {
            e.u64(wait.session.0).u64(wait.holder.0).u64(wait.inode.0);
            e.u8(wait.keeps.map_or(LOCK, |keeps| keeps as u8)).u64(wait.waited_ms);
        }
    }

    pub(super) fn decode(d: &mut Decoder<'_>) -> Result<UseOfShard, DecodeError> {
        let users = (0..decode_count(d, "users of a shard", SHARD_USERS_MAX)?).map(|_| {
            Ok(ShardUser {
                session: SessionId(d.u64()?),
                open: d.u64()?,
                read: d.u64()?,
                write: d.u64()?,
                locks: d.u64()?,
                has_all_names: decode_bool(d, "all names")?,
                asked: d.u64()?,
            })
        });
        let users = users.collect::<Result<_, DecodeError>>()?;
        let waits = (0..decode_count(d, "waits in a shard", SHARD_WAITS_MAX)?).map(|_| {
            let (session, holder) = (SessionId(d.u64()?), SessionId(d.u64()?));
            let (inode, keeps) = (InodeNumber(d.u64()?), d.u8()?);
            let keeps = match keeps {
                LOCK => None,
                n => {
                    let mode = HoldMode::from_u8(n);
                    Some(mode.ok_or(DecodeError::Invalid { field: "hold mode", value: n.into() })?)
                }
            };
            Ok(ShardWait { session, holder, inode, keeps, waited_ms: d.u64()? })
        });
        Ok(UseOfShard { users, waits: waits.collect::<Result<_, DecodeError>>()? })
    }
}

/// Stands for a lock where a mode would stand.
const LOCK: u8 = u8::MAX;
