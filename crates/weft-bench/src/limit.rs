//! The limit: what a bare exchange of frames of a workload's sizes reaches on this machine.
//!
//! A thread on the server's core answers every frame with one of a fixed size, and does nothing else; the
//! client's side keeps a number of operations in flight. There are no versions, checksums of data, drives or
//! tasks per request: what is lost against this limit, the system itself costs. It never touches a fabric.

use crate::BenchError;
use crate::transport::Transport;
use std::io;
use std::time::Duration;
use weft_rpc::shm::ShmListener;
use weft_rpc::{Body, FrameError, FrameReader, FrameWriter};
use weft_rt::affinity;
use weft_rt::{Addr, Buf, BufMut, Instant, Listener, RtError, Spin, now, set_spin};
use weft_types::{BLOCK_SIZE, BlockRange, Version};
use weft_wire::Kind;
use weft_wire::data::{Content, DataRequest, Extent, ReadAnswer, Verdict, WriteAnswer};
use weft_wire::frame::{ENVELOPE_BYTES, Envelope, FLAG_ANSWER};

/// The sizes of an exchange, in bytes; an envelope comes in front of each head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Head of the request.
    pub request_head: usize,
    /// Body of the request.
    pub request_body: usize,
    /// Head of the reply.
    pub reply_head: usize,
    /// Body of the reply.
    pub reply_body: usize,
    /// How often the request goes out per operation: once per replica for a write.
    pub copies: u32,
}

impl Shape {
    /// What a read of so many bytes exchanges with a target.
    pub fn of_read(bytes: usize) -> Shape {
        let blocks = (bytes / BLOCK_SIZE) as u32;
        let extent = Extent {
            range: BlockRange::new(0, blocks),
            version: Version::ZERO,
            open: false,
            content: Content::Data,
            crcs: vec![0; blocks as usize],
        };
        let reply_head = ReadAnswer { clock: 0, extents: vec![extent] }.encode().len();
        Shape { request_head: DataRequest::BYTES, request_body: 0, reply_head, reply_body: bytes, copies: 1 }
    }

    /// What a write of so many bytes exchanges with the targets of so many replicas.
    pub fn of_write(bytes: usize, copies: u32) -> Shape {
        let blocks = (bytes / BLOCK_SIZE) as u32;
        let verdicts = vec![(BlockRange::new(0, blocks), Verdict::Applied)];
        Shape {
            request_head: DataRequest::BYTES + 4 * blocks as usize,
            request_body: bytes,
            reply_head: WriteAnswer { clock: 0, verdicts }.encode().len(),
            reply_body: 0,
            copies,
        }
    }

    /// A request of 64 bytes in all, answered with 4 KiB: the exchange whose rate is known of machines that are
    /// fit for measuring.
    pub fn of_reference() -> Shape {
        Shape {
            request_head: 64 - ENVELOPE_BYTES,
            request_body: 0,
            reply_head: 0,
            reply_body: BLOCK_SIZE,
            copies: 1,
        }
    }
}

/// An exchange to measure.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The sizes.
    pub shape: Shape,
    /// Operations in flight, at least 1.
    pub depth: u32,
    /// How long to go on before counting.
    pub warm_up: Duration,
    /// How long to count.
    pub duration: Duration,
    /// The core for the answering thread; none: wherever the kernel likes.
    pub server_cpu: Option<usize>,
    /// How the two sides reach each other.
    pub transport: Transport,
    /// How the answering thread waits; the client's side waits as its executor does.
    pub spin: Spin,
}

/// Where the answering thread can be reached.
enum Place {
    Addr(Addr),
    Shared(String),
}

impl Place {
    async fn connect(&self) -> io::Result<(FrameReader, FrameWriter)> {
        match self {
            Place::Addr(addr) => Ok(weft_rpc::Transport::connect(addr).await?.into_halves()),
            Place::Shared(name) => Ok(weft_rpc::Transport::connect_shared(name).await?.into_halves()),
        }
    }
}

impl Limit {
    /// Measures: operations per second.
    ///
    /// # Errors
    /// If the thread, its runtime or the connection fails.
    pub async fn run(&self) -> Result<f64, BenchError> {
        let (tell, told) = std::sync::mpsc::channel();
        let (shape, cpu, transport, spin) = (self.shape, self.server_cpu, self.transport, self.spin);
        let server = std::thread::Builder::new()
            .name("limit-server".into())
            .spawn(move || -> Result<(), RtError> {
                // An executor that starts on a single core never spins, so it begins with two.
                let start = cpu.map(|cpu| {
                    affinity::allowed().and_then(|a| affinity::pin_to(&[&a[..], &[cpu]].concat()))
                });
                weft_rt::block_on(async move {
                    let pinned = cpu.map(|cpu| affinity::pin_to(&[cpu]));
                    for error in [start, pinned].into_iter().flatten().filter_map(Result::err) {
                        tracing::warn!(%error, "the server of the bare exchange is not pinned");
                    }
                    set_spin(spin);
                    if let Err(error) = serve_one(transport, shape, |place| tell.send(place).is_ok()).await {
                        // The client ends by closing, which may cut an answer off.
                        tracing::debug!(error = &error as &dyn std::error::Error, "the bare exchange ends");
                    }
                })
            })
            .map_err(|source| BenchError::System { action: "start a thread", source })?;
        let rate = match told.recv() {
            Ok(place) => self.measure(&place).await,
            Err(_) => Err(BenchError::ServerGone),
        };
        // The connection is dropped, so the thread ends once this executor has closed it.
        while !server.is_finished() {
            weft_rt::sleep(Duration::from_millis(1)).await;
        }
        match server.join() {
            Ok(ended) => ended?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        rate
    }

    /// The client's side of the exchange.
    async fn measure(&self, place: &Place) -> Result<f64, BenchError> {
        let connect = |source| BenchError::System { action: "connect to the bare exchange's server", source };
        let (mut reader, writer) = place.connect().await.map_err(connect)?;
        let mut asker = Asker {
            writer,
            shape: self.shape,
            head: vec![0x5a; self.shape.request_head],
            body: filled(self.shape.request_body),
            missing: vec![0; self.depth as usize],
        };
        let from = now() + self.warm_up;
        let until = from + self.duration;
        for slot in 0..self.depth as usize {
            asker.ask(slot);
        }
        let (mut counted, mut in_flight) = (0u64, self.depth);
        let (mut first, mut last) = (None::<Instant>, from);
        while in_flight > 0 {
            let frame = reader.next().await?.ok_or(BenchError::ServerGone)?;
            let slot = frame.envelope.request as usize;
            if !asker.is_answered(slot) {
                continue;
            }
            let at = now();
            if at >= until {
                in_flight -= 1;
                continue;
            }
            if at >= from {
                counted += u64::from(first.is_some());
                first.get_or_insert(at);
                last = at;
            }
            asker.ask(slot);
        }
        asker.writer.shutdown();
        let elapsed = first.map_or(0.0, |first| (last - first).as_secs_f64());
        Ok(if elapsed > 0.0 { counted as f64 / elapsed } else { 0.0 })
    }
}

/// Sends requests, and knows which replies are missing.
struct Asker {
    writer: FrameWriter,
    shape: Shape,
    head: Vec<u8>,
    body: Option<Buf>,
    /// Replies that each operation in flight still waits for.
    missing: Vec<u32>,
}

impl Asker {
    fn ask(&mut self, slot: usize) {
        self.missing[slot] = self.shape.copies;
        for _ in 0..self.shape.copies {
            let envelope = Envelope { kind: Kind::Read as u16, request: slot as u64, ..Default::default() };
            self.writer.send(envelope, &self.head, Body::blocks(self.body.iter().cloned().collect()));
        }
    }

    /// Notes a reply; whether it was the operation's last.
    fn is_answered(&mut self, slot: usize) -> bool {
        let missing = &mut self.missing[slot];
        assert!(*missing > 0, "more replies than requests");
        *missing -= 1;
        *missing == 0
    }
}

/// Takes one connection at a place that it tells, if somebody listens, and answers its frames until it ends.
async fn serve_one(
    transport: Transport,
    shape: Shape,
    tell: impl FnOnce(Place) -> bool,
) -> Result<(), FrameError> {
    match transport {
        Transport::Tcp => {
            let listener = Listener::bind(&"127.0.0.1:0".parse().expect("a valid address"))?;
            if !tell(Place::Addr(listener.local_addr())) {
                return Ok(());
            }
            serve(weft_rpc::Transport::Stream(listener.accept().await?).into_halves(), shape).await
        }
        Transport::Shared => {
            let listener = ShmListener::open()?;
            if !tell(Place::Shared(listener.name().to_owned())) {
                return Ok(());
            }
            serve(weft_rpc::Transport::Shared(listener.accept().await?).into_halves(), shape).await
        }
    }
}

async fn serve((mut reader, writer): (FrameReader, FrameWriter), shape: Shape) -> Result<(), FrameError> {
    let head = vec![0xa5; shape.reply_head];
    let body = filled(shape.reply_body);
    while let Some(frame) = reader.next().await? {
        let envelope = Envelope { flags: FLAG_ANSWER, ..frame.envelope };
        writer.send(envelope, &head, Body::blocks(body.iter().cloned().collect()));
    }
    Ok(())
}

/// A body of so many bytes, none of them zero.
fn filled(len: usize) -> Option<Buf> {
    (len > 0).then(|| {
        let mut buf = BufMut::aligned(len);
        buf.fill(0xc3);
        buf.freeze()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;
    use weft_rt::sim::{Sim, spawn_process};

    /// Runs the exchange in a simulation: operations per second of its virtual time.
    fn exchange(shape: Shape, depth: u32) -> f64 {
        Sim::new(11).block_on(async move {
            let addr: Addr = "10.0.0.1:9".parse().expect("a valid address");
            let at = addr.clone();
            spawn_process(IpAddr::from([10, 0, 0, 1]), "server", async move {
                let listener = Listener::bind(&at).expect("the port is free");
                let ended = serve(
                    weft_rpc::Transport::Stream(listener.accept().await.expect("a connection")).into_halves(),
                    shape,
                )
                .await;
                drop(ended);
            });
            weft_rt::sleep(Duration::from_millis(1)).await;
            let limit = Limit {
                shape,
                depth,
                warm_up: Duration::from_millis(5),
                duration: Duration::from_millis(50),
                server_cpu: None,
                transport: Transport::Tcp,
                spin: Spin::Adaptive,
            };
            limit.measure(&Place::Addr(addr)).await.expect("the exchange works")
        })
    }

    #[test]
    fn shapes_are_those_of_the_protocol() {
        let read = Shape::of_read(BLOCK_SIZE);
        assert_eq!((read.request_head, read.request_body, read.reply_body), (108, 0, 4096));
        let write = Shape::of_write(16 * BLOCK_SIZE, 2);
        assert_eq!((write.request_head, write.request_body), (108 + 64, 65536));
        assert_eq!((write.reply_head, write.reply_body, write.copies), (24, 0, 2));
    }

    #[test]
    fn every_shape_is_answered_and_depth_pays() {
        for shape in [Shape::of_reference(), Shape::of_read(1 << 20), Shape::of_write(65536, 2)] {
            assert!(exchange(shape, 4) > 0.0, "{shape:?}");
        }
        let (one, many) = (exchange(Shape::of_reference(), 1), exchange(Shape::of_reference(), 16));
        assert!(many > one, "16 in flight: {many}/s, one at a time: {one}/s");
    }
}
