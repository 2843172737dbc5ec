//! Readiness of any descriptor that can be polled: devices that speak a protocol of their own.

use crate::executor::with_core;
use crate::uring::PolledFile;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor whose reader waits until there is something to read. It should be non-blocking. Not under
/// simulation, where no descriptor is.
pub struct Readiness(PolledFile);

impl Readiness {
    /// Takes the descriptor over; it is closed when this is dropped and the kernel has ended the poll.
    pub fn new(file: OwnedFd) -> Readiness {
        Readiness(PolledFile::new(file))
    }

    /// Completes when something can be read, or the other side has hung up or failed.
    ///
    /// Read until the descriptor would block before calling this again: what was there before the call,
    /// and is not read, may not be reported a second time. It may also complete when nothing can be read.
    /// Dropping the future loses nothing. At most one task may wait at a time.
    ///
    /// # Errors
    /// `Unsupported` under simulation; those of the operating system, such as of a descriptor that cannot be
    /// polled.
    pub async fn ready(&self) -> io::Result<()> {
        if with_core(|core| core.uring().is_none()) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.0.ready().await
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{Either, race};
    use crate::{block_on, sleep, spawn};
    use std::fs::File;
    use std::io::{Read, Write};
    use std::rc::Rc;
    use std::time::Duration;

    /// A pipe whose reading end does not block.
    fn pipe() -> (OwnedFd, File) {
        let mut ends = [0; 2];
        // SAFETY: the kernel writes two descriptors to the array.
        let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) };
        assert_eq!(made, 0);
        use std::os::fd::FromRawFd;
        // SAFETY: the kernel has just made these descriptors for us.
        unsafe { (OwnedFd::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) }
    }

    async fn is_ready(pipe: &Readiness) -> bool {
        matches!(race(pipe.ready(), sleep(Duration::from_millis(50))).await, Either::Left(Ok(())))
    }

    fn read_all(pipe: &Readiness) -> usize {
        let mut file = File::from(pipe.as_fd().try_clone_to_owned().unwrap());
        let mut bytes = Vec::new();
        let error = file.read_to_end(&mut bytes).map_err(|error| error.kind());
        assert!(matches!(error, Ok(_) | Err(io::ErrorKind::WouldBlock)));
        bytes.len()
    }

    #[test]
    fn what_comes_to_a_pipe_is_reported_as_often_as_it_comes() {
        block_on(async {
            let (reader, mut writer) = pipe();
            let pipe = Rc::new(Readiness::new(reader));
            assert!(!is_ready(&pipe).await, "nothing was written");
            for round in 0..3 {
                // More often than reports are kept.
                (0..200).for_each(|_| writer.write_all(b"x").unwrap());
                assert!(is_ready(&pipe).await, "{round}");
                assert_eq!(read_all(&pipe), 200);
            }
            while is_ready(&pipe).await {
                assert_eq!(read_all(&pipe), 0, "a report of what was read already");
            }
            let waiting = spawn({
                let pipe = pipe.clone();
                async move { pipe.ready().await }
            });
            sleep(Duration::from_millis(5)).await;
            writer.write_all(b"y").unwrap();
            waiting.await.unwrap().unwrap();
            assert_eq!(read_all(&pipe), 1);
            drop(writer);
            assert!(is_ready(&pipe).await, "the end is reported");
        })
        .unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_polled_is_an_error_or_always_ready() {
        block_on(async {
            let file = File::open("/proc/self/exe").unwrap();
            let file = Readiness::new(file.into());
            assert!(is_ready(&file).await && is_ready(&file).await || file.ready().await.is_err());
        })
        .unwrap();
    }
}
