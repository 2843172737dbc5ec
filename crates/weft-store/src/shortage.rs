//! Patience with a machine that is short of memory or the like: that says nothing of a drive, nor of what lies on it.

use std::io::{self, ErrorKind};
use std::time::Duration;
use weft_rt::{BufMut, Drive, sleep};

/// How often, and after which pauses, it is tried again: two seconds in all.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Reads bytes to memory of our own, and again for a while where the machine lacks what it takes.
///
/// # Errors
/// What the drive says, or the machine in the end.
pub(crate) async fn read_patiently(drive: &Drive, offset_bytes: u64, len: usize) -> io::Result<BufMut> {
    let mut tries = 0..TRIES;
    loop {
        match drive.read(offset_bytes, len).await {
            Err(error) if is_shortage(error.kind()) && tries.next().is_some() => sleep(PAUSE).await,
            read => return read,
        }
    }
}

/// Whether an error is of the machine, not of the drive.
fn is_shortage(kind: ErrorKind) -> bool {
    use ErrorKind::{Interrupted, OutOfMemory, ResourceBusy, WouldBlock};
    matches!(kind, OutOfMemory | ResourceBusy | WouldBlock | Interrupted)
}
