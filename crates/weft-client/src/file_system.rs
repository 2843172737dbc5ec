//! The public handles of an attached file system: reads and writes of byte ranges of an inode's objects.
//!
//! It owns how an inode's addresses become objects in groups. It knows no names, sizes, attributes or leases:
//! whoever calls says which inode with which layout, and keeps apart what must not meet.

use crate::attach::Attach;
use crate::attached::Ended;
use crate::block::{Blocks, Space};
use crate::error::ClientError;
use crate::group_io::{GroupIo, Place};
use crate::lane::Lane;
use crate::mirror::Mirror;
use crate::range_lock::RangeLock;
use crate::session::Session;
use crate::volume::{AttachOptions, StatusExtent};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;
use weft_layout::{FileLayout, LayoutError, file_blocks_max, group_of_file};
use weft_rt::sync::{Either, race};
use weft_rt::{Buf, now, timeout};
use weft_types::limits::{FRAME_BODY_MAX, FRAME_HEAD_MAX, SETS_MAX};
use weft_types::{
    AttachMode, BLOCK_SIZE, BlockRange, ObjectId, Owner, SessionId, Striping, TargetId, Volume as MapVolume,
    with_causes,
};
use weft_wire::files::{Answer, FileRequest, ShardRequest};
use weft_wire::{Decoder, Kind, Status};

/// An attached file system. Clones share the attach, which is one session however many files are used.
///
/// Call [`FileSystem::detach`] when done; a file system that is merely dropped counts as attached until its
/// session expires.
#[derive(Clone)]
pub struct FileSystem(Rc<Inner>);

struct Inner {
    attach: Attach,
    io_timeout: Duration,
    locks: RefCell<Locks>,
}

/// What keeps writes of parts of blocks apart, for each inode that has a [`File`] or a write under way.
#[derive(Default)]
struct Locks {
    by_inode: BTreeMap<u64, Weak<RangeLock>>,
    /// As many entries as there are when those that nobody uses are looked for.
    look_at: usize,
}

/// How long a server of a shard may take to answer before it is asked again: as long as a group of the shard
/// has no replica that serves it answers nobody. Where another one is named, that one is asked at once.
const SHARD_PATIENCE: Duration = Duration::from_secs(10);

/// How long a connection to it may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);

/// How long to wait, if the map does not change, before a shard is asked again that has not answered.
const SHARD_RETRY: Duration = Duration::from_millis(50);

/// How long a map that lacks a set is waited for without a look at whether the attach is over.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Entries below which it costs more to look for unused ones than to have them.
const LOCKS_MIN: usize = 1024;

impl Locks {
    /// The lock of an inode: the same as long as somebody has it.
    fn of(&mut self, inode: u64) -> Rc<RangeLock> {
        if let Some(lock) = self.by_inode.get(&inode).and_then(Weak::upgrade) {
            return lock;
        }
        if self.by_inode.len() >= self.look_at.max(LOCKS_MIN) {
            self.by_inode.retain(|_, lock| lock.strong_count() > 0);
            self.look_at = 2 * self.by_inode.len();
        }
        let lock = Rc::default();
        self.by_inode.insert(inode, Rc::downgrade(&lock));
        lock
    }
}

impl FileSystem {
    /// With the other lanes of the attach.
    pub(crate) fn of_first_lane(
        session: Rc<Session>,
        options: AttachOptions,
        lanes: Vec<Lane>,
    ) -> FileSystem {
        let (attach, io_timeout) = (Attach::new(session, lanes), options.io_timeout);
        FileSystem(Rc::new(Inner { attach, io_timeout, locks: RefCell::default() }))
    }

    /// The other lanes of the attach, each to be opened on an executor of its own by
    /// [`Lane::open_file_system`]; none once they were taken, and none of a lane that is not the first one.
    pub fn take_lanes(&self) -> Vec<Lane> {
        self.0.attach.take_lanes()
    }

    /// Which lane of the attach this is; 0: the first one, which keeps the attach alive.
    pub fn lane(&self) -> usize {
        self.session().seat.number
    }

    /// How many lanes the attach has, this one too.
    pub fn lanes(&self) -> usize {
        self.session().lanes
    }

    /// The file system's name.
    pub fn name(&self) -> &str {
        &self.session().volume_name
    }

    /// The session of this attach.
    pub fn session_id(&self) -> SessionId {
        self.session().id
    }

    /// What this attach may do.
    pub fn mode(&self) -> AttachMode {
        self.session().mode
    }

    /// How many shards its metadata have, as the map says that this client has; 0 if the file system is gone.
    pub fn shards(&self) -> u16 {
        let listed = |volume: &MapVolume| Ok(volume.files().map_or(0, |files| files.shards.len() as u16));
        with_listed(self.session(), listed).unwrap_or(0)
    }

    /// Whether its directories lie in several of them, as the map says that this client has.
    pub fn is_spread(&self) -> bool {
        let listed = |volume: &MapVolume| Ok(volume.files().is_some_and(|files| files.is_spread));
        with_listed(self.session(), listed).unwrap_or(false)
    }

    /// The layout of a new file for which nobody has said another: in the newest set of the map that this
    /// client has.
    ///
    /// # Errors
    /// [`ClientError::Fenced`] if the file system is gone.
    pub fn default_layout(&self) -> Result<FileLayout, ClientError> {
        let listed = |volume: &MapVolume| Ok(FileLayout::default_of(volume));
        with_listed(self.session(), listed)?.ok_or_else(|| self.session().fenced())
    }

    /// The data of an inode. It costs no message, and says nothing of whether there is such an inode: objects
    /// that nobody has written read as zeroes.
    ///
    /// All that is read and written of an inode has to go by the same layout: another one finds other
    /// objects.
    ///
    /// # Errors
    /// [`ClientError::Layout`] if the layout does not fit the file system; [`ClientError::Fenced`] if that is
    /// gone. A set that this client's map has not yet is no error: requests wait until it is there.
    pub fn file(&self, inode: u64, layout: FileLayout) -> Result<File, ClientError> {
        let striping = self.striping(layout)?;
        let space = FileSpace { io: self.0.attach.io.clone(), inode, set: layout.set, striping };
        let lock = self.0.locks.borrow_mut().of(inode);
        let blocks = Blocks::with_lock(space, self.0.io_timeout, lock);
        Ok(File(Rc::new(FileInner { blocks, file_system: self.0.clone() })))
    }

    /// How the addresses of a file with this layout become objects.
    ///
    /// # Errors
    /// Those of [`FileSystem::file`].
    pub fn striping(&self, layout: FileLayout) -> Result<Striping, ClientError> {
        with_listed(self.session(), |volume| match layout.striping(volume) {
            // The shard that has made the inode knows a newer map. Requests wait for it.
            Err(LayoutError::NoSet { .. }) if usize::from(layout.set) < SETS_MAX => {
                layout.striping_in_any_set(volume).map_err(ClientError::Layout)
            }
            striping => striping.map_err(ClientError::Layout),
        })
    }

    /// Asks the server of a shard, as far as the map names one. `None` if no answer has come: it is not
    /// there, or does not serve yet, or the connection is lost. The request may have arrived then, and may
    /// still arrive; sent again it happens once (F1).
    ///
    /// # Errors
    /// [`ClientError::SessionOver`] and [`ClientError::Fenced`] if the attach is over;
    /// [`ClientError::Refused`] if the server cannot read the request, or this side the answer.
    pub async fn ask_shard(&self, shard: u16, request: &FileRequest) -> Result<Option<Answer>, ClientError> {
        let session = self.session();
        session.check()?;
        let fabric = &session.fabric;
        let changed = fabric.changed.notified();
        let asked = match with_listed(session, |volume| Ok(server_of(volume, shard)))? {
            Some(server) => self.ask_server(server, shard, request).await?,
            None => None,
        };
        if asked.is_none() {
            // Another server is named soon, or this one serves soon.
            let _ = timeout(SHARD_RETRY, changed).await;
            session.check()?;
        }
        Ok(asked)
    }

    async fn ask_server(
        &self,
        server: TargetId,
        shard: u16,
        request: &FileRequest,
    ) -> Result<Option<Answer>, ClientError> {
        let session = self.session();
        let bytes = ShardRequest::encode_of(session.volume, shard, request);
        let (head, body) = match bytes.len() <= FRAME_HEAD_MAX {
            true => (&bytes[..], None),
            false => (&[][..], Some(bytes.clone())),
        };
        if bytes.len() > FRAME_BODY_MAX {
            let message = format!("a request of {} bytes, {FRAME_BODY_MAX} can be sent", bytes.len());
            return Err(ClientError::Refused { message });
        }
        let Ok(Ok(link)) = timeout(CONNECT_PATIENCE, session.fabric.link_to(server)).await else {
            return Ok(None);
        };
        let called = link.call_within(SHARD_PATIENCE, Kind::AskShard, head, body);
        let Either::Left(called) = race(called, self.names_other(shard, server)).await else {
            return Ok(None);
        };
        let reply = match called {
            Ok(reply) => reply,
            Err(error) => match error.status() {
                Some(Status::SessionOver) => {
                    session.end(Ended::Over);
                    return Err(session.check().expect_err("it has just ended"));
                }
                Some(Status::Invalid | Status::Unsupported | Status::Refused) => {
                    return Err(ClientError::Refused { message: with_causes(&error) });
                }
                _ => return Ok(None),
            },
        };
        let bytes = if reply.head.is_empty() { &reply.body } else { &reply.head };
        let mut d = Decoder::new(bytes);
        let answer = Answer::decode(&mut d).and_then(|answer| d.finish().map(|()| answer));
        answer.map(Some).map_err(|error| ClientError::Refused { message: with_causes(&error) })
    }

    /// Waits until the map names another server for a shard than this one.
    async fn names_other(&self, shard: u16, server: TargetId) {
        let session = self.session();
        loop {
            let changed = session.fabric.changed.notified();
            let map = session.fabric.map();
            let listed = map.volumes.get(&session.volume);
            if listed.and_then(|volume| server_of(volume, shard)) != Some(server) {
                return;
            }
            changed.await;
        }
    }

    /// Makes completed writes durable: they are already, so this only fails if the attach has ended.
    ///
    /// # Errors
    /// [`ClientError::Fenced`], [`ClientError::SessionOver`].
    pub async fn flush(&self) -> Result<(), ClientError> {
        self.session().check()
    }

    /// Why this attach is over, in the manager's words if it answers within two seconds. None if it
    /// is not over, as far as this client knows.
    pub async fn why_over(&self) -> Option<ClientError> {
        self.session().why_over().await
    }

    /// Ends the attach, as [`crate::Volume::detach`] does.
    pub async fn detach(&self) {
        self.0.attach.detach().await;
    }

    pub(crate) fn session(&self) -> &Session {
        self.0.attach.session()
    }

    /// How its groups are read and written.
    pub(crate) fn io(&self) -> &Rc<Mirror> {
        &self.0.attach.io
    }

    /// How long a request goes on trying.
    pub(crate) fn io_timeout(&self) -> Duration {
        self.0.io_timeout
    }

    /// A request begins; it ends with what is returned.
    pub(crate) fn begin(&self) -> impl Drop {
        self.0.attach.begin()
    }

    /// What the newest map says of the file system; without that the attach is over.
    pub(crate) fn with_listed<T>(&self, say: impl FnOnce(&MapVolume) -> Option<T>) -> Result<T, ClientError> {
        with_listed(self.session(), |volume| Ok(say(volume)))?.ok_or_else(|| self.session().fenced())
    }
}

/// The data of one inode of an attached file system. Every block of 4096 bytes is one atomic register, as in
/// a [`crate::Volume`]; a completed write is durable on every in-sync replica.
///
/// It has no size: what was never written reads as zeroes, up to [`File::size_max`].
///
/// A write that is not whole blocks reads, changes and writes the blocks at its ends. This handle, its clones
/// and other handles of the inode by this lane are kept apart; the caller makes sure that no other lane and
/// no other client writes these blocks meanwhile.
#[derive(Clone)]
pub struct File(Rc<FileInner>);

struct FileInner {
    blocks: Blocks<FileSpace>,
    file_system: Rc<Inner>,
}

impl File {
    /// The inode.
    pub fn inode(&self) -> u64 {
        self.0.blocks.space.inode
    }

    /// Where a file with this layout ends at the latest, in bytes: as many objects as an inode can have, and
    /// no more than 2^63 - 1.
    pub fn size_max(&self) -> u64 {
        let blocks = file_blocks_max(&self.0.blocks.space.striping);
        let most = i64::MAX as u64;
        blocks.bytes().map_or(most, |bytes| bytes.min(most))
    }

    /// Reads `length` bytes at `offset`: buffers that together are the range, in order.
    ///
    /// # Errors
    /// [`ClientError::OutOfBounds`] at once; [`ClientError::TimedOut`] if a group had no replica;
    /// [`ClientError::Damaged`] if no replica has a good copy.
    pub async fn read(&self, offset: u64, length: u64) -> Result<Vec<Buf>, ClientError> {
        if self.is_nothing(offset, length)? {
            return Ok(Vec::new());
        }
        let _busy = self.begin().await?;
        self.0.blocks.read(offset, length).await
    }

    /// Writes the buffers, one behind the other, at `offset`. When it completes, the data is durable on every
    /// replica of the write set.
    ///
    /// Poll the future to its end, or drop it: one that is kept and not polled keeps other writes to these
    /// blocks waiting. Dropping it does not cancel the write.
    ///
    /// # Errors
    /// Those of [`File::read`], and [`ClientError::ReadOnly`], [`ClientError::NoSpace`]. After
    /// [`ClientError::TimedOut`], or if the future is dropped, the write may go on in the background and
    /// still take effect, but never over a write that this client called later.
    pub async fn write(&self, offset: u64, bufs: Vec<Buf>) -> Result<(), ClientError> {
        let length = bufs.iter().map(|b| b.len() as u64).sum();
        if self.changes_nothing(offset, length)? {
            return Ok(());
        }
        let _busy = self.begin().await?;
        self.0.blocks.write(offset, length, bufs).await
    }

    /// Makes `length` bytes at `offset` read as zeroes, and gives back the space of whole blocks.
    ///
    /// # Errors
    /// Those of [`File::write`].
    pub async fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        if self.changes_nothing(offset, length)? {
            return Ok(());
        }
        let _busy = self.begin().await?;
        self.0.blocks.write_zeroes(offset, length).await
    }

    /// Gives back the space of the whole blocks in the range; they read as zeroes afterwards. Parts of blocks
    /// at its ends keep their contents.
    ///
    /// # Errors
    /// Those of [`File::write`].
    pub async fn discard(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        if self.changes_nothing(offset, length)? {
            return Ok(());
        }
        let _busy = self.begin().await?;
        self.0.blocks.discard(offset, length).await
    }

    /// Which parts of a range hold data, cautiously: what a write in flight may have filled counts as data.
    ///
    /// # Errors
    /// Those of [`File::read`].
    pub async fn block_status(&self, offset: u64, length: u64) -> Result<Vec<StatusExtent>, ClientError> {
        if self.is_nothing(offset, length)? {
            return Ok(Vec::new());
        }
        let _busy = self.begin().await?;
        let runs = self.0.blocks.zeroes(offset, length).await?;
        Ok(runs.into_iter().map(|(length, is_zero)| StatusExtent { length, is_zero }).collect())
    }

    pub(crate) fn space(&self) -> &FileSpace {
        &self.0.blocks.space
    }

    pub(crate) fn blocks(&self) -> &Blocks<FileSpace> {
        &self.0.blocks
    }

    /// A request begins; it ends with what is returned. An inode may lie in a set of groups that this
    /// client's map has not yet: then it begins when that is there.
    pub(crate) async fn begin(&self) -> Result<impl Drop, ClientError> {
        let busy = self.0.file_system.attach.begin();
        let from = now();
        while !self.0.blocks.space.knows_set()? {
            let session = self.0.file_system.attach.session();
            let changed = session.fabric.changed.notified();
            let left = self.0.file_system.io_timeout.saturating_sub(from.elapsed());
            if left.is_zero() {
                let set = self.0.blocks.space.set;
                let sets = self.0.blocks.space.with_listed(|volume| Some(volume.files()?.sets.len()))?;
                return Err(ClientError::Layout(LayoutError::NoSet { set, sets }));
            }
            session.check()?;
            if !self.0.blocks.space.knows_set()? {
                let _ = timeout(left.min(LOOK_AGAIN), changed).await;
            }
        }
        Ok(busy)
    }

    /// Whether a range that is in bounds is empty.
    fn is_nothing(&self, offset: u64, length: u64) -> Result<bool, ClientError> {
        let size = self.size_max();
        match offset.checked_add(length).is_some_and(|end| end <= size) {
            true => Ok(length == 0),
            false => Err(ClientError::OutOfBounds { offset, length, size }),
        }
    }

    fn changes_nothing(&self, offset: u64, length: u64) -> Result<bool, ClientError> {
        let session = self.0.file_system.attach.session();
        if session.mode == AttachMode::ReadOnly {
            return Err(ClientError::ReadOnly { volume: session.volume_name.clone() });
        }
        self.is_nothing(offset, length)
    }
}

/// The target beside which a shard is served, if one is named.
fn server_of(volume: &MapVolume, shard: u16) -> Option<TargetId> {
    volume.files()?.shards.get(usize::from(shard))?.server
}

/// What the newest map says of the file system; without it the attach is over.
fn with_listed<T>(
    session: &Session,
    say: impl FnOnce(&MapVolume) -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    match session.fabric.map().volumes.get(&session.volume) {
        Some(volume) => say(volume),
        None => {
            session.end(Ended::Fenced);
            Err(session.fenced())
        }
    }
}

/// The blocks of an inode: its layout is fixed, the groups of a set are never others.
pub(crate) struct FileSpace {
    io: Rc<Mirror>,
    pub(crate) inode: u64,
    pub(crate) set: u8,
    pub(crate) striping: Striping,
}

impl FileSpace {
    /// Whether this client's map has the set that the objects are in.
    fn knows_set(&self) -> Result<bool, ClientError> {
        self.with_listed(|volume| Some(usize::from(self.set) < volume.files()?.sets.len()))
    }

    /// What the newest map says of the file system; without that the attach is over.
    pub(crate) fn with_listed<T>(&self, say: impl FnOnce(&MapVolume) -> Option<T>) -> Result<T, ClientError> {
        let session = self.io.session();
        with_listed(session, |volume| Ok(say(volume)))?.ok_or_else(|| session.fenced())
    }
}

impl Space for FileSpace {
    type Io = Mirror;

    fn io(&self) -> &Rc<Mirror> {
        &self.io
    }

    fn striping(&self) -> Result<Striping, ClientError> {
        with_listed(self.io.session(), |_| Ok(self.striping))
    }

    fn place(&self, object_index: u64, range: BlockRange) -> Result<Place, ClientError> {
        let session = self.io.session();
        let index = u32::try_from(object_index).expect("a range within `File::size_max` has such objects");
        let group = |volume: &MapVolume| Ok(group_of_file(volume, self.set, self.inode, index));
        let group = with_listed(session, group)?.ok_or_else(|| session.fenced())?;
        let owner = Owner::Inode { file_system: session.volume, inode: self.inode };
        let object = ObjectId::new(owner, object_index);
        Ok(Place { group, object, range, request: session.number_request() })
    }

    /// The ranges of whole blocks are kept apart from parts of blocks, too.
    fn writes_parts(&self) -> bool {
        true
    }
}

const _: () = assert!((i64::MAX as u64) / (BLOCK_SIZE as u64) < u64::MAX / 2, "addresses of blocks fit");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_has_one_lock_for_as_long_as_somebody_has_it() {
        let mut locks = Locks::default();
        let first = locks.of(7);
        assert!(Rc::ptr_eq(&first, &locks.of(7)) && !Rc::ptr_eq(&first, &locks.of(8)));
        for inode in 100..100 + 4 * LOCKS_MIN as u64 {
            drop(locks.of(inode));
        }
        assert!(locks.by_inode.len() <= LOCKS_MIN && Rc::ptr_eq(&first, &locks.of(7)));
        let held: Vec<_> = (10_000..10_000 + 4 * LOCKS_MIN as u64).map(|inode| locks.of(inode)).collect();
        assert!(held.iter().zip(10_000..).all(|(lock, inode)| Rc::ptr_eq(lock, &locks.of(inode))));
    }
}
