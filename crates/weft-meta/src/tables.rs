//! The tables of a shard in memory, and what of them has changed since a checkpoint.

use crate::change::Change;
use crate::key::{Key, KeyParts, Table};
use crate::record::{Entry, Inode, Part, ShardRecord, Value, decode_hold, decode_lock, decode_number};
use crate::usage::Usage;
use siphasher::sip::SipHasher24;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::ops::Bound;
use weft_types::{InodeNumber, SessionId};
use weft_wire::files::{FileLock, HoldMode, QuotaAmount, QuotaOf};

/// Hashes below this one are those of `.`, `..` and of a directory's beginning.
const HASH_FIRST: u64 = 16;

/// All items of a shard, by key. Reads cost memory accesses only.
#[derive(Default)]
pub struct Tables {
    items: BTreeMap<Key, Value>,
    /// Keys that have changed since the last checkpoint began.
    changed: BTreeSet<Key>,
    /// The counter of the next inode.
    next_inode: u64,
    /// Items of each table, by its number.
    counts: BTreeMap<u8, u64>,
    /// What users and groups use of the shard.
    usage: Usage,
    /// Inodes whose attributes or names have changed since they were watched, if they are.
    touched: Option<BTreeSet<InodeNumber>>,
}

/// An item by which it is counted what is used.
enum Counts {
    Inode(InodeNumber),
    Room(InodeNumber),
}

impl Counts {
    fn of(key: &Key) -> Option<Counts> {
        let table = key.bytes()[0];
        if table != Table::Inode as u8 && table != Table::Room as u8 {
            return None;
        }
        match key.parts() {
            Some(KeyParts::Inode(inode)) => Some(Counts::Inode(inode)),
            Some(KeyParts::Room(inode)) => Some(Counts::Room(inode)),
            _ => None,
        }
    }
}

impl Tables {
    /// Puts an item in that was read from a checkpoint: nothing has changed by it.
    pub(crate) fn load(&mut self, key: Key, value: Value) {
        self.put(key, value);
    }

    fn put(&mut self, key: Key, value: Value) {
        let (table, counted) = (key.bytes()[0], Counts::of(&key));
        let before = self.items.insert(key, value.clone());
        if before.is_none() {
            *self.counts.entry(table).or_default() += 1;
        }
        self.count(counted, before.as_ref(), Some(&value));
    }

    fn remove(&mut self, key: &Key) {
        let Some(before) = self.items.remove(key) else { return };
        if let Some(count) = self.counts.get_mut(&key.bytes()[0]) {
            *count -= 1;
        }
        self.count(Counts::of(key), Some(&before), None);
    }

    /// Counts what is used, after an item has got another value or has gone.
    fn count(&mut self, counted: Option<Counts>, before: Option<&Value>, after: Option<&Value>) {
        let decode = |value: &Value| Inode::decode(value).expect("values are checked");
        match counted {
            None => {}
            Some(Counts::Inode(inode)) => {
                let room = self.room(inode);
                before.into_iter().for_each(|before| self.usage.remove(&decode(before), room));
                after.into_iter().for_each(|after| self.usage.add(&decode(after), room));
            }
            Some(Counts::Room(inode)) => {
                let Some(inode) = self.items.get(&Key::inode(inode)).map(decode) else { return };
                let room = |value: Option<&Value>| {
                    value.map_or(0, |value| decode_number(value).expect("values are checked"))
                };
                self.usage.remove(&inode, room(before));
                self.usage.add(&inode, room(after));
            }
        }
    }

    /// Up to where the writers of an inode may write, if a quota limits it; otherwise 0.
    pub(crate) fn room(&self, inode: InodeNumber) -> u64 {
        if self.count_of(Table::Room) == 0 {
            return 0;
        }
        self.get(&Key::room(inode)).map_or(0, |value| decode_number(value).expect("values are checked"))
    }

    /// What counts against a quota in this shard: files up to their ends, or to where their
    /// writers may write.
    pub fn charged(&self, of: QuotaOf) -> QuotaAmount {
        self.usage.of(of).charged()
    }

    /// What users and groups use of the shard.
    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Items of each table, by its number.
    pub(crate) fn counts(&self) -> Vec<(u8, u64)> {
        self.counts.iter().map(|(table, items)| (*table, *items)).collect()
    }

    /// Items of one table.
    pub(crate) fn count_of(&self, table: Table) -> u64 {
        self.counts.get(&(table as u8)).copied().unwrap_or(0)
    }

    /// Notes from now on which inodes change, or does so no more.
    pub(crate) fn watch(&mut self, is_watched: bool) {
        self.touched = is_watched.then(BTreeSet::new);
    }

    /// Whether an inode or its names have changed since they were watched.
    pub(crate) fn is_touched(&self, inode: InodeNumber) -> bool {
        self.touched.as_ref().is_some_and(|touched| touched.contains(&inode))
    }

    /// Notes what a change touches that is about to be made.
    fn touch(&mut self, change: &Change) {
        if self.touched.is_none() {
            return;
        }
        let named = |value: &Value| Entry::decode(value).expect("values are checked").inode;
        let mut inodes = Vec::new();
        match change.key().parts() {
            Some(KeyParts::Entry(directory, ..)) => {
                inodes.push(directory);
                inodes.extend(self.items.get(change.key()).map(named));
                if let Change::Put(_, value) = change {
                    inodes.push(named(value));
                }
            }
            Some(KeyParts::Inode(inode) | KeyParts::Part(inode, _)) => inodes.push(inode),
            _ => {}
        }
        self.touched.iter_mut().for_each(|touched| touched.extend(inodes.iter()));
    }

    /// Ends loading and replaying: inodes are made from where no server can have made any.
    pub(crate) fn begin(&mut self) {
        self.next_inode = self.shard().map_or(1, |record| record.reserved);
    }

    /// Makes a change.
    pub(crate) fn apply(&mut self, change: &Change) {
        self.touch(change);
        let key = change.key();
        if let Some(KeyParts::Inode(inode)) = key.parts() {
            self.next_inode = self.next_inode.max(inode.counter() + 1);
        }
        match change {
            Change::Put(key, value) => self.put(key.clone(), value.clone()),
            Change::Delete(key) => self.remove(key),
        }
        self.changed.insert(key.clone());
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &Key) -> Option<&Value> {
        self.items.get(key)
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// All items, in key order.
    pub fn items(&self) -> impl Iterator<Item = (&Key, &Value)> {
        self.items.iter()
    }

    /// Items from a key on, in key order.
    pub(crate) fn from(&self, key: Key) -> impl Iterator<Item = (&Key, &Value)> {
        self.items.range(key..)
    }

    /// Items of one table, in key order.
    pub(crate) fn of(&self, table: Table) -> impl Iterator<Item = (&Key, &Value)> {
        let items = self.items.range(Key::first_of(table)..);
        items.take_while(move |(key, _)| key.bytes()[0] == table as u8)
    }

    /// Items of one table behind a key, or all of them, in key order.
    pub(crate) fn behind(
        &self,
        table: Table,
        last: Option<&Key>,
    ) -> impl Iterator<Item = (&Key, &Value)> + use<'_> {
        let from = last.map_or_else(|| Bound::Included(Key::first_of(table)), |k| Bound::Excluded(k.clone()));
        let items = self.items.range((from, Bound::Unbounded));
        items.take_while(move |(key, _)| key.bytes()[0] == table as u8)
    }

    /// Entries of a directory.
    pub(crate) fn entries(&self, directory: InodeNumber) -> impl Iterator<Item = Entry> + use<'_> {
        self.from(Key::entry(directory, 0, b"")).map_while(move |(key, value)| match key.parts() {
            Some(KeyParts::Entry(of, ..)) if of == directory => {
                Some(Entry::decode(value).expect("values are checked"))
            }
            _ => None,
        })
    }

    /// Keys that have changed since the last checkpoint took them; they are counted anew.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Key> {
        std::mem::take(&mut self.changed)
    }

    /// Those items from `from` on and below `to` that are wanted; each of them is asked for, in their order.
    pub(crate) fn range(
        &self,
        from: &Key,
        to: Option<&Key>,
        is_wanted: &mut dyn FnMut(&Key, &Value) -> bool,
    ) -> Vec<(Key, Value)> {
        let range = (Bound::Included(from), to.map_or(Bound::Unbounded, Bound::Excluded));
        let wanted = self.items.range(range).filter(|(key, value)| is_wanted(key, value));
        wanted.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// The counter that the next inode gets.
    pub(crate) fn next_inode(&self) -> u64 {
        self.next_inode
    }

    /// Gives the counter of the next inode out: no other inode gets it while this server lives.
    pub(crate) fn take_inode(&mut self) -> u64 {
        self.next_inode += 1;
        self.next_inode - 1
    }

    /// The shard's record; `None` before it was formatted.
    pub fn shard(&self) -> Option<ShardRecord> {
        self.get(&Key::shard()).map(|bytes| ShardRecord::decode(bytes).expect("values are checked"))
    }

    /// What stands for all names of this shard ([`InodeNumber::whole_of`]).
    pub(crate) fn whole(&self) -> InodeNumber {
        InodeNumber::whole_of(self.shard().map_or(0, |record| record.number))
    }

    /// Up to which number a session's operations were answered for good; `None` if it is not known here.
    pub fn session(&self, session: SessionId) -> Option<u64> {
        self.get(&Key::session(session)).map(|bytes| decode_number(bytes).expect("values are checked"))
    }

    /// An inode.
    pub fn inode(&self, inode: InodeNumber) -> Option<Inode> {
        self.get(&Key::inode(inode)).map(|bytes| Inode::decode(bytes).expect("values are checked"))
    }

    /// In which mode a session holds an inode, if it does.
    pub(crate) fn hold_of(&self, inode: InodeNumber, session: SessionId) -> Option<HoldMode> {
        let value = self.get(&Key::held(inode, session))?;
        Some(decode_hold(value).expect("values are checked"))
    }

    /// Whether a session has an inode open.
    pub fn is_held(&self, inode: InodeNumber) -> bool {
        self.holders(inode).next().is_some()
    }

    /// The sessions that have an inode open, and in which mode.
    pub fn holders(&self, inode: InodeNumber) -> impl Iterator<Item = (SessionId, HoldMode)> {
        let from = self.from(Key::held(inode, SessionId(0)));
        from.map_while(move |(key, value)| match key.parts() {
            Some(KeyParts::Held(held, session)) if held == inode => {
                Some((session, decode_hold(value).expect("values are checked")))
            }
            _ => None,
        })
    }

    /// The other sessions that hold an inode in a mode that does not go with this one (F4).
    pub fn in_the_way(
        &self,
        inode: InodeNumber,
        session: SessionId,
        mode: HoldMode,
    ) -> impl Iterator<Item = (SessionId, HoldMode)> {
        let others = self.holders(inode).filter(move |(holder, _)| *holder != session);
        others.filter(move |(_, held)| !held.goes_with(mode))
    }

    /// Locks of an inode, and whose they are.
    pub fn locks(&self, inode: InodeNumber) -> impl Iterator<Item = (SessionId, FileLock)> {
        self.from(Key::first_lock(inode)).map_while(move |(key, value)| match key.parts() {
            Some(KeyParts::Lock(locked, session, owner, start)) if locked == inode => {
                Some((session, decode_lock(owner, start, value).expect("values are checked")))
            }
            _ => None,
        })
    }

    /// Locks of others that exclude this one of a session (F11).
    pub fn locks_in_the_way(
        &self,
        inode: InodeNumber,
        session: SessionId,
        wanted: FileLock,
    ) -> impl Iterator<Item = (SessionId, FileLock)> {
        let is_other =
            move |(other, held): &(SessionId, FileLock)| (*other, held.owner) != (session, wanted.owner);
        self.locks(inode).filter(is_other).filter(move |(_, held)| held.excludes(&wanted))
    }

    /// The first part of a directory.
    pub fn part(&self, directory: InodeNumber) -> Option<Part> {
        self.get(&Key::part(directory, 0)).map(|bytes| Part::decode(bytes).expect("values are checked"))
    }

    /// An entry of a directory.
    pub fn entry(&self, directory: InodeNumber, name: &[u8]) -> Option<Entry> {
        let key = Key::entry(directory, self.hash(directory, name), name);
        self.get(&key).map(|bytes| Entry::decode(bytes).expect("values are checked"))
    }

    /// The hash of a name in a directory, by which entries are ordered: from 16 to 2^63 - 2, by
    /// SipHash-2-4 with the shard's key over the directory's number and the name.
    pub fn hash(&self, directory: InodeNumber, name: &[u8]) -> u64 {
        let key = self.shard().map_or([0; 16], |record| record.hash_key);
        let mut hasher = SipHasher24::new_with_key(&key);
        hasher.write(&directory.0.to_le_bytes());
        hasher.write(name);
        (hasher.finish() >> 1).clamp(HASH_FIRST, i64::MAX as u64 - 1)
    }
}
