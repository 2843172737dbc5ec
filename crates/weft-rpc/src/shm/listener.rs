//! How a connection through shared memory begins: a process that serves listens on an abstract Unix socket
//! that only processes of the same machine and network namespace can reach. A process that connects gets the
//! descriptor of the memory; from then on the socket carries wake-ups, and shows whether the other end is
//! there.

use super::Endpoint;
use super::region::{LAYOUT, Region};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use weft_rt::{Listener, Stream, random_u128};

/// Takes connections of processes of this machine.
pub struct ShmListener {
    listener: Listener,
    name: String,
}

impl ShmListener {
    /// Listens under a name that nobody can guess.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn open() -> io::Result<ShmListener> {
        let name = format!("weft-{:032x}", random_u128());
        Ok(ShmListener { listener: Listener::bind_abstract(&name)?, name })
    }

    /// What a peer asks for: see [`connect`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next connection. It ends when both halves of it are dropped.
    ///
    /// # Errors
    /// Those of the operating system; the listener can go on.
    pub async fn accept(&self) -> io::Result<Rc<Endpoint>> {
        let stream = self.listener.accept().await?;
        let (region, memory) = Region::create()?;
        hand_over(&stream, &memory)?;
        Ok(Endpoint::new((region.direction(1), region.direction(0)), stream))
    }
}

/// Connects to the listener of this name. The connection ends when both halves of it are dropped.
///
/// # Errors
/// `ConnectionRefused` if there is none on this machine, `InvalidData` if what is handed over cannot be used;
/// those of the operating system.
pub async fn connect(name: &str) -> io::Result<Rc<Endpoint>> {
    let stream = Stream::connect_abstract(name).await?;
    stream.readable().await?;
    let region = Region::open(&take_over(&stream)?)?;
    Ok(Endpoint::new((region.direction(0), region.direction(1)), stream))
}

fn socket_of(stream: &Stream) -> io::Result<BorrowedFd<'_>> {
    stream.socket().ok_or_else(|| ErrorKind::Unsupported.into())
}

fn hand_over(stream: &Stream, memory: &OwnedFd) -> io::Result<()> {
    let descriptors = [memory.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "the space is for one");
    let bytes = [IoSlice::new(&LAYOUT)];
    // The first bytes of a connection always have room.
    let sent = sendmsg(socket_of(stream)?, &bytes, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    if sent == LAYOUT.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

fn take_over(stream: &Stream) -> io::Result<OwnedFd> {
    let mut layout = [0; LAYOUT.len()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket_of(stream)?, &mut [IoSliceMut::new(&mut layout)], &mut control, flags)?;
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
