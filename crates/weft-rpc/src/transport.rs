//! What carries the frames of a connection.

use crate::frames::{FrameReader, FrameWriter};
use crate::shm::{self, Endpoint};
use std::io;
use std::rc::Rc;
use weft_rt::{Addr, Stream};

/// An open connection that has carried no frame yet. Encryption is one more kind: what it reads and writes
/// are streams.
pub enum Transport {
    /// A stream of bytes: TCP, a Unix socket, or simulated.
    Stream(Stream),
    /// Memory that is shared with a process of the same machine.
    Shared(Rc<Endpoint>),
}

impl Transport {
    /// A stream to an address.
    ///
    /// # Errors
    /// Those of the operating system.
    pub async fn connect(addr: &Addr) -> io::Result<Transport> {
        Ok(Transport::Stream(Stream::connect(addr).await?))
    }

    /// Shared memory, by the name of the listener in a process of this machine.
    ///
    /// # Errors
    /// See [`shm::connect`].
    pub async fn connect_shared(name: &str) -> io::Result<Transport> {
        Ok(Transport::Shared(shm::connect(name).await?))
    }

    /// The side that reads and the side that writes.
    pub fn into_halves(self) -> (FrameReader, FrameWriter) {
        match self {
            Transport::Stream(stream) => (FrameReader::new(stream.clone()), FrameWriter::new(stream)),
            Transport::Shared(end) => {
                let (reader, writer) = end.split();
                (FrameReader::shared(reader), FrameWriter::shared(writer))
            }
        }
    }
}
