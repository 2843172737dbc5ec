//! Requests over io_uring (Linux 6.14): the kernel writes each into memory of ours, and takes the answer
//! from the same place. FORGET and INTERRUPT still come through the device.
//!
//! A lane carries one request at a time. Each processor has lanes of its own, and a request goes over those
//! of the processor that makes it. It owns which request is in which lane; it never looks into requests.

use crate::device::{DATA_BYTES, MESSAGE_AT};
use crate::error::FuseError;
use crate::proto::{Field, InHeader, OutHeader};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::{fs, io};
use weft_rt::{BufMut, Commands};

/// `FUSE_IO_URING_CMD_REGISTER`: the kernel may use the lane from now on.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: an answer is in the lane, and the next request may come.
const COMMIT_AND_FETCH: u32 = 2;

/// `struct fuse_uring_req_header`: the headers of request and answer, the first struct of a request, and
/// `struct fuse_uring_ent_in_out`.
const HEAD_BYTES: usize = 288;
const OPERATION_AT: usize = 128;
const OPERATION_BYTES: usize = 128;
const COMMIT_ID_AT: usize = 264;
const PAYLOAD_LENGTH_AT: usize = 272;

/// `struct fuse_uring_cmd_req`: flags, the request that is answered, the queue of the processor, padding.
const ARGUMENT_BYTES: usize = 24;

/// What a lane says when the mount has ended.
const ENDED: [i32; 4] = [libc::ENOTCONN, libc::ECONNABORTED, libc::ENODEV, libc::ECANCELED];

/// Lanes of all processors together, about; a lane takes up to [`DATA_BYTES`] of memory.
const LANES: usize = 128;
/// Lanes of one processor, at least and at most.
const LANES_OF_A_PROCESSOR: (usize, usize) = (8, 64);

/// The processors that there may ever be, as a list of ranges: the kernel has a queue for each.
const PROCESSORS: &str = "/sys/devices/system/cpu/possible";

/// The lanes of one mount.
pub(crate) struct Lanes {
    commands: Commands,
    /// Lanes of each processor.
    of_a_processor: usize,
    /// The lane in which each request is that has no answer yet, by the kernel's number.
    busy: RefCell<FxHashMap<u64, usize>>,
    /// Requests that came while the lanes were made known to the kernel.
    early: RefCell<VecDeque<usize>>,
}

impl Lanes {
    /// Makes lanes known to the kernel. It holds back all requests of the mount until this has returned.
    ///
    /// # Errors
    /// If the kernel refuses them; the mount is of no use then.
    pub(crate) async fn open(device: OwnedFd) -> Result<Lanes, FuseError> {
        let listed = fs::read_to_string(PROCESSORS).map_err(FuseError::Lanes)?;
        let processors = count_processors(&listed).ok_or_else(|| {
            FuseError::Lanes(io::Error::other(format!(
                "{PROCESSORS} is not a list of processors: {}",
                listed.trim()
            )))
        })?;
        let (least, most) = LANES_OF_A_PROCESSOR;
        let of_a_processor = (LANES / processors).clamp(least, most);
        let count = processors * of_a_processor;
        let commands = Commands::new(device, count, [HEAD_BYTES, DATA_BYTES]).map_err(FuseError::Lanes)?;
        let lanes = Lanes { commands, of_a_processor, busy: RefCell::default(), early: RefCell::default() };
        (0..count).for_each(|lane| lanes.start(lane, REGISTER, 0));
        lanes.commands.submitted().await;
        while let Some((lane, result)) = lanes.commands.next() {
            match result {
                0 => lanes.early.borrow_mut().push_back(lane),
                error => return Err(FuseError::Lanes(io::Error::from_raw_os_error(-error))),
            }
        }
        Ok(lanes)
    }

    /// Programs that may wait for locks: each keeps a lane, so half of those of a processor are left to
    /// others.
    pub(crate) fn lock_waits_max(&self) -> usize {
        self.of_a_processor / 2
    }

    /// Completes when there may be a request. First take all that [`read`](Lanes::read) has.
    pub(crate) async fn ready(&self) {
        self.commands.ready().await;
    }

    /// Puts one request to its place in the buffer, as the device would; its length, or `None` if there is
    /// none now.
    pub(crate) fn read(&self, buffer: &mut BufMut) -> Option<usize> {
        let early = self.early.borrow_mut().pop_front();
        let lane = early.or_else(|| self.next_lane())?;
        let (length, commit_id) = self.commands.with_memory(lane, |[head, payload]| {
            let number = |at: usize| u64::take(&mut &head[at..]).expect("the head is longer");
            let header = InHeader::take(&mut &head[..]).expect("the head is longer");
            let data = (number(PAYLOAD_LENGTH_AT) as u32 as usize).min(DATA_BYTES);
            let operation = (header.len as usize).saturating_sub(InHeader::BYTES + data);
            // If these do not come to the length that the header says, the message is refused as any other.
            let operation = operation.min(OPERATION_BYTES);
            let data = data.min(buffer.len() - MESSAGE_AT - InHeader::BYTES - operation);
            let mut end = MESSAGE_AT;
            for part in [&head[..InHeader::BYTES], &head[OPERATION_AT..][..operation], &payload[..data]] {
                buffer[end..end + part.len()].copy_from_slice(part);
                end += part.len();
            }
            (end - MESSAGE_AT, number(COMMIT_ID_AT))
        });
        self.busy.borrow_mut().insert(commit_id, lane);
        Some(length)
    }

    /// The next lane with a request. A lane that ends without a request is not used any more, because the
    /// mount has ended.
    fn next_lane(&self) -> Option<usize> {
        loop {
            match self.commands.next()? {
                (lane, 0) => return Some(lane),
                (lane, error) if ENDED.contains(&-error) => {
                    tracing::trace!(lane, "the kernel has ended a lane");
                }
                (lane, error) => {
                    let error = io::Error::from_raw_os_error(-error);
                    tracing::error!(lane, %error, "a lane of FUSE over io_uring has failed");
                }
            }
        }
    }

    /// Answers a request; false if it came through the device.
    pub(crate) fn send(&self, unique: u64, error: i32, parts: &[&[u8]]) -> bool {
        let Some(lane) = self.busy.borrow_mut().remove(&unique) else { return false };
        let fits = parts.iter().map(|part| part.len()).sum::<usize>() <= DATA_BYTES;
        let (error, parts) = if fits { (error, parts) } else { (-libc::EIO, &[][..]) };
        self.commands.with_memory(lane, |[head, payload]| {
            let mut end = 0;
            for part in parts {
                payload[end..end + part.len()].copy_from_slice(part);
                end += part.len();
            }
            let mut header = Vec::with_capacity(OutHeader::BYTES);
            OutHeader { len: (OutHeader::BYTES + end) as u32, error, unique }.put(&mut header);
            head[..OutHeader::BYTES].copy_from_slice(&header);
            head[PAYLOAD_LENGTH_AT..][..4].copy_from_slice(&(end as u32).to_ne_bytes());
        });
        self.start(lane, COMMIT_AND_FETCH, unique);
        true
    }

    /// Hands a lane to the kernel, with the request that is answered.
    fn start(&self, lane: usize, operation: u32, unique: u64) {
        let mut argument = Vec::with_capacity(ARGUMENT_BYTES);
        [0, unique].iter().for_each(|word| word.put(&mut argument));
        let queue = (lane / self.of_a_processor) as u16;
        argument.extend(queue.to_ne_bytes());
        argument.resize(ARGUMENT_BYTES, 0);
        self.commands.start(lane, operation, &argument);
    }
}

/// How many processors are in a list such as `0-3,8`.
fn count_processors(list: &str) -> Option<usize> {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        (last + 1).checked_sub(first)
    };
    list.trim().split(',').map(count).sum::<Option<usize>>().filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, count) in [
            ("0\n", Some(1)),
            ("0-1\n", Some(2)),
            ("0-3,8,10-11", Some(7)),
            ("", None),
            ("3-1", None),
            ("a", None),
        ] {
            assert_eq!(count_processors(list), count, "{list}");
        }
    }
}
