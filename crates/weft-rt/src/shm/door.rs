//! How a connection through shared memory begins: a process that serves has a door, an abstract Unix socket that only
//! processes of the same machine and network namespace can reach. Who comes in is handed the memory; from then on the
//! socket is the bell, and shows whether the other end is there.

use super::Endpoint;
use super::region::{LAYOUT, Region};
use crate::frame::{FrameReader, FrameWriter, frames_of};
use crate::random_u128;
use crate::uring::{SocketListener, SocketStream};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// Where processes of this machine come in.
pub struct Door {
    listener: SocketListener,
    name: String,
}

impl Door {
    /// Opens one, under a name that nobody can guess.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn open() -> io::Result<Door> {
        let name = format!("weft-{:032x}", random_u128());
        Ok(Door { listener: SocketListener::bind_abstract(&name)?, name })
    }

    /// What a peer asks for: see [`connect_door`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next connection. It ends when both halves are dropped.
    ///
    /// # Errors
    /// Those of the operating system; the door can go on.
    pub async fn accept(&self) -> io::Result<(FrameReader, FrameWriter)> {
        let stream = self.listener.accept().await?;
        let (region, memory) = Region::create()?;
        hand_over(&stream, &memory)?;
        Ok(frames_of(Endpoint::new((region.direction(1), region.direction(0)), stream)))
    }
}

/// Goes through the door of this name. The connection ends when both halves are dropped.
///
/// # Errors
/// `ConnectionRefused` if there is none on this machine, `InvalidData` if what is handed over cannot be used; those of
/// the operating system.
pub async fn connect_door(name: &str) -> io::Result<(FrameReader, FrameWriter)> {
    let stream = SocketStream::connect_abstract(name).await?;
    stream.readable().await?;
    let region = Region::open(&take_over(&stream)?)?;
    Ok(frames_of(Endpoint::new((region.direction(0), region.direction(1)), stream)))
}

fn hand_over(stream: &SocketStream, memory: &OwnedFd) -> io::Result<()> {
    let descriptors = [memory.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "the space is for one");
    let bytes = [IoSlice::new(&LAYOUT)];
    // The first bytes of a connection always have room.
    let sent = sendmsg(stream.socket(), &bytes, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    if sent == LAYOUT.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

fn take_over(stream: &SocketStream) -> io::Result<OwnedFd> {
    let mut layout = [0; LAYOUT.len()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(stream.socket(), &mut [IoSliceMut::new(&mut layout)], &mut control, flags)?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let memory = rights.flatten().next();
    let invalid = |text: String| io::Error::new(ErrorKind::InvalidData, text);
    if layout[..received.bytes] != LAYOUT {
        let found = layout[..received.bytes].escape_ascii();
        return Err(invalid(format!("shared memory of layout '{found}', not '{}'", LAYOUT.escape_ascii())));
    }
    memory.ok_or_else(|| invalid("no memory was handed over".into()))
}
