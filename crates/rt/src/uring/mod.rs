//! The real backend: one io_uring per thread.

use crate::executor::Remote;
use crate::time::Instant;
use crate::{Addr, Buf, BufMut, OpenOptions};
use std::io;

/// The kernel refuses io_uring.
#[derive(Debug, thiserror::Error)]
#[error("io_uring is not available")]
pub struct RtError(#[source] pub io::Error);

pub(crate) struct Driver {}

impl Driver {
    pub(crate) fn new() -> Result<Driver, RtError> {
        Err(RtError(io::Error::from(io::ErrorKind::Unsupported)))
    }
    pub(crate) fn now(&self) -> Instant {
        Instant::default()
    }
    pub(crate) fn wall_clock_us(&self) -> u64 {
        0
    }
    pub(crate) fn random_u64(&self) -> u64 {
        0
    }
    pub(crate) fn doorbell(&self) -> Box<dyn Fn() + Send> {
        Box::new(|| {})
    }
    pub(crate) fn turn(&self, _idle: bool, _timer: Option<Instant>, _remote: &Remote) {}
    pub(crate) fn shut_down(&self) {}
}

pub(crate) struct DriveFile {}

impl DriveFile {
    pub(crate) async fn open(_path: &str, _options: &OpenOptions) -> io::Result<DriveFile> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
    pub(crate) fn len(&self) -> u64 {
        0
    }
    pub(crate) async fn read(&self, _offset: u64, _len: usize) -> io::Result<BufMut> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
    pub(crate) async fn write(&self, _offset: u64, _data: Vec<Buf>) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
    pub(crate) async fn flush(&self) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
    pub(crate) async fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}

pub(crate) struct SocketListener {}

impl SocketListener {
    pub(crate) fn bind(_addr: &Addr) -> io::Result<SocketListener> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
    pub(crate) async fn accept(&self) -> io::Result<SocketStream> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
    pub(crate) fn local_addr(&self) -> Addr {
        unreachable!()
    }
}

#[derive(Clone)]
pub(crate) struct SocketStream {}

impl SocketStream {
    pub(crate) async fn connect(_addr: &Addr) -> io::Result<SocketStream> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
    pub(crate) async fn read(&self, buf: BufMut, _at: usize) -> (io::Result<usize>, BufMut) {
        (Err(io::Error::from(io::ErrorKind::Unsupported)), buf)
    }
    pub(crate) async fn write(&self, _bufs: Vec<Buf>) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
    pub(crate) fn shutdown(&self) {}
}
