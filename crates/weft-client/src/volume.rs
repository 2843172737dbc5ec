//! The public handle of an attached volume: reads and writes by byte offset.

use crate::attach::Attach;
use crate::attached::Ended;
use crate::block::{Blocks, Space};
use crate::error::ClientError;
use crate::group_io::{GroupIo, Place};
use crate::lane::Lane;
use crate::mirror::Mirror;
use crate::session::Session;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::Buf;
use weft_types::{
    AttachMode, BLOCK_SIZE, BlockCount, BlockRange, Generation, ObjectId, SECTOR_SIZE, SessionId, Striping,
};

/// How to attach a volume.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    /// Beside whom. Exclusive by default.
    pub mode: AttachMode,
    /// End attaches that are in the way.
    pub preempt: bool,
    /// How long an operation goes on trying before it fails with [`ClientError::TimedOut`].
    pub io_timeout: Duration,
    /// How many lanes to ask for, from 1 to [`weft_types::limits::LANES_MAX`]: as many executors can use the
    /// attach at a time. The manager may give fewer, at least one.
    pub lanes: usize,
    /// Logical blocks have 4096 bytes although the volume is attached exclusively. Without this it has one
    /// lane.
    pub whole_blocks: bool,
}

/// How long an operation goes on trying unless told otherwise: several evictions' worth, and what disk
/// drivers allow before they reset a device.
pub const IO_TIMEOUT: Duration = Duration::from_secs(30);

impl Default for AttachOptions {
    fn default() -> Self {
        AttachOptions {
            mode: AttachMode::Exclusive,
            preempt: false,
            io_timeout: IO_TIMEOUT,
            lanes: 1,
            whole_blocks: false,
        }
    }
}

impl AttachOptions {
    /// Whether parts of blocks are written: logical blocks have 512 bytes.
    pub(crate) fn writes_parts(&self) -> bool {
        self.mode == AttachMode::Exclusive && !self.whole_blocks
    }
}

/// A run of bytes that a volume does or does not hold data for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusExtent {
    /// Its length in bytes.
    pub length: u64,
    /// Whether it surely reads as zeroes and takes no space.
    pub is_zero: bool,
}

struct Inner {
    attach: Attach,
    blocks: Blocks<VolumeSpace>,
}

/// An attached volume. Clones share the attach. Every block is one atomic register: operations on it take
/// effect one after another, each at one instant between its call and its completion; several blocks in one
/// call are several registers. A completed write is durable on every in-sync replica.
///
/// Call [`Volume::detach`] when done; a volume that is merely dropped counts as attached until its session
/// expires.
#[derive(Clone)]
pub struct Volume(Rc<Inner>);

impl Volume {
    /// With the other lanes of the attach.
    pub(crate) fn of_first_lane(session: Rc<Session>, options: AttachOptions, lanes: Vec<Lane>) -> Volume {
        let attach = Attach::new(session, lanes);
        let space = VolumeSpace { io: attach.io.clone(), writes_parts: options.writes_parts() };
        Volume(Rc::new(Inner { attach, blocks: Blocks::new(space, options.io_timeout) }))
    }

    /// The other lanes of the attach, each to be opened on an executor of its own; none once they were taken,
    /// and none of a lane that is not the first one.
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

    /// The volume's name.
    pub fn name(&self) -> &str {
        &self.session().volume_name
    }

    /// The session of this attach.
    pub fn session_id(&self) -> SessionId {
        self.session().id
    }

    /// The generation of the volume under which it is attached: an exclusive attach that comes later has a
    /// higher one (R16).
    pub fn generation(&self) -> Generation {
        self.session().generation
    }

    /// What this attach may do.
    pub fn mode(&self) -> AttachMode {
        self.session().mode
    }

    /// The size in bytes, as of the newest map: it may grow.
    pub fn size_bytes(&self) -> u64 {
        let map = self.session().fabric.map();
        let size = map.volumes.get(&self.session().volume).map_or(BlockCount(0), |v| v.size);
        size.bytes().unwrap_or(u64::MAX - u64::MAX % BLOCK_SIZE as u64)
    }

    /// The unit of addressing in bytes: 512 where attached exclusively, unless
    /// [`AttachOptions::whole_blocks`]; else 4096.
    pub fn logical_block(&self) -> u32 {
        match self.0.blocks.space.writes_parts {
            true => SECTOR_SIZE as u32,
            false => BLOCK_SIZE as u32,
        }
    }

    /// Reads `length` bytes at `offset`: buffers that together are the range, in order.
    ///
    /// # Errors
    /// [`ClientError::OutOfBounds`], [`ClientError::Misaligned`] at once; [`ClientError::TimedOut`] if a
    /// group had no replica; [`ClientError::Damaged`] if no replica has a good copy.
    pub async fn read(&self, offset: u64, length: u64) -> Result<Vec<Buf>, ClientError> {
        self.check_range(offset, length)?;
        let _busy = self.0.attach.begin();
        self.0.blocks.read(offset, length).await
    }

    /// Writes the buffers, one behind the other, at `offset`. When it completes, the data is durable on every
    /// replica of the write set.
    ///
    /// Poll the future to its end, or drop it: one that is kept and not polled keeps other writes to these
    /// blocks waiting. Dropping it does not cancel the write.
    ///
    /// # Errors
    /// Those of [`Volume::read`], and [`ClientError::ReadOnly`], [`ClientError::NoSpace`]. After
    /// [`ClientError::TimedOut`], or if the future is dropped, the write may go on in the background and
    /// still take effect, but never over a write that this client called later.
    pub async fn write(&self, offset: u64, bufs: Vec<Buf>) -> Result<(), ClientError> {
        let length = bufs.iter().map(|b| b.len() as u64).sum();
        self.check_write(offset, length)?;
        let _busy = self.0.attach.begin();
        self.0.blocks.write(offset, length, bufs).await
    }

    /// Whether writes that begin from now on may take space that drives keep for the names of files when they
    /// refuse other writes. Targets allow it for the volumes of shards of metadata only.
    pub fn take_reserve(&self, takes: bool) {
        self.0.blocks.space.io.takes_reserve.set(takes);
    }

    /// Blocks of the smallest drive that has a copy of a part of it, as this client's map says.
    pub fn smallest_drive(&self) -> BlockCount {
        let session = self.0.attach.session();
        let map = session.fabric.map();
        let groups = map.volumes.get(&session.volume).into_iter().flat_map(|volume| volume.groups());
        let drives = groups.flat_map(|id| map.groups.get(id).into_iter().flat_map(|group| &group.slots));
        let blocks = drives.filter_map(|slot| Some(map.drives.get(&slot.drive)?.capacity));
        blocks.min().unwrap_or_default()
    }

    /// Makes `length` bytes at `offset` read as zeroes, and gives back the space of whole blocks.
    ///
    /// # Errors
    /// Those of [`Volume::write`].
    pub async fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        self.check_write(offset, length)?;
        let _busy = self.0.attach.begin();
        self.0.blocks.write_zeroes(offset, length).await
    }

    /// Gives back the space of the whole blocks in the range; they read as zeroes afterwards. Parts of blocks
    /// at its ends keep their contents.
    ///
    /// # Errors
    /// Those of [`Volume::write`].
    pub async fn discard(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        self.check_write(offset, length)?;
        let _busy = self.0.attach.begin();
        self.0.blocks.discard(offset, length).await
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

    /// Which parts of a range hold data, cautiously: what a write in flight may have filled counts as data.
    ///
    /// # Errors
    /// Those of [`Volume::read`].
    pub async fn block_status(&self, offset: u64, length: u64) -> Result<Vec<StatusExtent>, ClientError> {
        self.check_range(offset, length)?;
        let _busy = self.0.attach.begin();
        let runs = self.0.blocks.zeroes(offset, length).await?;
        Ok(runs.into_iter().map(|(length, is_zero)| StatusExtent { length, is_zero }).collect())
    }

    /// Ends the attach: waits for operations in flight, then tells the manager, so that others need not wait
    /// for the session to expire. Operations that other lanes have in flight then fail: let those lanes
    /// detach first. A lane that is not the first one waits for its own operations, and leaves the attach to
    /// the others.
    pub async fn detach(&self) {
        self.0.attach.detach().await;
    }

    fn check_range(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        let logical_block = self.logical_block();
        let unit = u64::from(logical_block);
        if !offset.is_multiple_of(unit) || !length.is_multiple_of(unit) || length == 0 {
            return Err(ClientError::Misaligned { offset, length, logical_block });
        }
        let size = self.size_bytes();
        if offset.checked_add(length).is_none_or(|end| end > size) {
            self.session().check()?;
            return Err(ClientError::OutOfBounds { offset, length, size });
        }
        Ok(())
    }

    fn check_write(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        if self.mode() == AttachMode::ReadOnly {
            return Err(ClientError::ReadOnly { volume: self.name().to_owned() });
        }
        self.check_range(offset, length)
    }

    fn session(&self) -> &Session {
        self.0.attach.session()
    }
}

/// The blocks of a volume, as the newest map says.
struct VolumeSpace {
    io: Rc<Mirror>,
    /// Whether parts of blocks are written.
    writes_parts: bool,
}

impl Space for VolumeSpace {
    type Io = Mirror;

    fn io(&self) -> &Rc<Mirror> {
        &self.io
    }

    fn striping(&self) -> Result<Striping, ClientError> {
        let session = self.io.session();
        match session.fabric.map().volumes.get(&session.volume) {
            Some(volume) => Ok(volume.striping),
            None => {
                session.end(Ended::Fenced);
                Err(session.fenced())
            }
        }
    }

    fn place(&self, object_index: u64, range: BlockRange) -> Result<Place, ClientError> {
        let session = self.io.session();
        let map = session.fabric.map();
        let volume = map.volumes.get(&session.volume);
        let group = volume.and_then(|v| weft_layout::group_of(v, object_index));
        let object = ObjectId::of_volume(session.volume, object_index);
        match group {
            Some(group) => Ok(Place { group, object, range, request: session.number_request() }),
            None => Err(session.fenced()),
        }
    }

    fn writes_parts(&self) -> bool {
        self.writes_parts
    }
}
