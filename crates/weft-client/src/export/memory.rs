//! A volume in memory, for tests and fuzzing of faces: takes random time, and fails on demand. Never part of
//! a build that is used.

use crate::{AttachMode, ClientError, StatusExtent};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use weft_rt::{Buf, random_below, sleep};
use weft_types::BLOCK_SIZE;

/// The volume.
pub struct MemoryVolume {
    /// What it holds.
    pub bytes: RefCell<Vec<u8>>,
    mode: AttachMode,
    /// Makes the error that operations on data fail with.
    pub failing: RefCell<Option<fn() -> ClientError>>,
    /// The longest time that an operation takes.
    pub delay_max: Cell<Duration>,
    /// Operations under way, and the most there ever were.
    pub in_flight: Cell<(usize, usize)>,
}

impl MemoryVolume {
    /// Of so many bytes, all zero.
    pub fn new(size: usize, mode: AttachMode) -> Rc<MemoryVolume> {
        Rc::new(MemoryVolume {
            bytes: RefCell::new(vec![0; size]),
            mode,
            failing: RefCell::default(),
            delay_max: Cell::new(Duration::from_millis(1)),
            in_flight: Cell::default(),
        })
    }

    pub(super) fn name(&self) -> &str {
        "memory"
    }

    pub(super) fn mode(&self) -> AttachMode {
        self.mode
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }

    pub(super) fn logical_block(&self) -> u32 {
        if self.mode == AttachMode::Exclusive { 512 } else { BLOCK_SIZE as u32 }
    }

    pub(super) async fn read(&self, offset: u64, length: u64) -> Result<Vec<Buf>, ClientError> {
        self.work().await?;
        let bytes = self.bytes.borrow();
        let range = &bytes[offset as usize..(offset + length) as usize];
        // In two pieces, as a volume over several objects gives them.
        let cut = range.len() / 2 / 512 * 512;
        Ok([&range[..cut], &range[cut..]].into_iter().filter(|p| !p.is_empty()).map(Buf::from).collect())
    }

    pub(super) async fn write(&self, offset: u64, bufs: Vec<Buf>) -> Result<(), ClientError> {
        self.work().await?;
        let mut at = offset as usize;
        for buf in bufs {
            self.bytes.borrow_mut()[at..at + buf.len()].copy_from_slice(&buf);
            at += buf.len();
        }
        Ok(())
    }

    pub(super) async fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        self.work().await?;
        self.bytes.borrow_mut()[offset as usize..(offset + length) as usize].fill(0);
        Ok(())
    }

    pub(super) async fn discard(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        self.write_zeroes(offset, length).await
    }

    pub(super) async fn flush(&self) -> Result<(), ClientError> {
        match *self.failing.borrow() {
            Some(error) => Err(error()),
            None => Ok(()),
        }
    }

    pub(super) async fn block_status(
        &self,
        offset: u64,
        length: u64,
    ) -> Result<Vec<StatusExtent>, ClientError> {
        self.work().await?;
        let bytes = self.bytes.borrow();
        let mut out: Vec<StatusExtent> = Vec::new();
        for block in bytes[offset as usize..(offset + length) as usize].chunks(BLOCK_SIZE) {
            let (length, is_zero) = (block.len() as u64, block.iter().all(|b| *b == 0));
            match out.last_mut() {
                Some(last) if last.is_zero == is_zero => last.length += length,
                _ => out.push(StatusExtent { length, is_zero }),
            }
        }
        Ok(out)
    }

    async fn work(&self) -> Result<(), ClientError> {
        let (now, most) = self.in_flight.get();
        self.in_flight.set((now + 1, most.max(now + 1)));
        sleep(Duration::from_nanos(random_below(self.delay_max.get().as_nanos() as u64 + 1))).await;
        let (now, most) = self.in_flight.get();
        self.in_flight.set((now - 1, most));
        self.flush().await
    }
}
