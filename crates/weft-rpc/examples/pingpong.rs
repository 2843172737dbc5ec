//! How fast frames go there and back between two threads, one core each: the limit that the data path is
//! measured against. `bare` only reads and writes frames, `link` goes through `Link` and `Server`.
//!
//! usage: pingpong [bare|link] [DEPTH] [REQUEST_BYTES] [REPLY_BYTES] [SECONDS] [adaptive|never|always] [ADDR]
//!
//! It prints the rate, the mean time of a request, and the CPU time of each side for one request, which is
//! the steadier figure on a machine with other work. ADDR is where the server listens (127.0.0.1:0; or
//! unix:PATH).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_rpc::{Answer, FrameReader, FrameWriter, Greeter, Link, Peer, Request, Server, Service, Services};
use weft_rt::*;
use weft_types::FabricId;
use weft_wire::Kind;
use weft_wire::frame::{Envelope, FLAG_ANSWER};
use weft_wire::handshake::{Hello, PeerRole};

struct Reply(Buf);

impl Greeter for Reply {
    fn greet(&self, _: &Hello) -> Result<Option<FabricId>, String> {
        Ok(None)
    }
}

impl Service for Reply {
    async fn handle(self: Rc<Self>, _: Rc<Peer>, _: Request) -> Answer {
        Answer::ok(vec![0; 32], vec![self.0.clone()])
    }
}

async fn serve_bare(listener: Listener, reply: Buf) {
    let stream = listener.accept().await.unwrap();
    let (mut reader, writer) = (FrameReader::new(stream.clone()), FrameWriter::new(stream));
    while let Ok(Some(frame)) = reader.next().await {
        writer.send(Envelope { flags: FLAG_ANSWER, ..frame.envelope }, &[0; 32], reply.clone().into());
    }
}

async fn drive_bare(addr: Addr, depth: u64, request: Buf, until: Instant) -> u64 {
    let stream = Stream::connect(&addr).await.unwrap();
    let (mut reader, writer) = (FrameReader::new(stream.clone()), FrameWriter::new(stream));
    let send = |n| {
        writer.send(Envelope { kind: 16, request: n, ..Default::default() }, &[0; 32], request.clone().into())
    };
    (0..depth).for_each(send);
    let mut done = 0;
    while now() < until {
        let frame = reader.next().await.unwrap().unwrap();
        send(frame.envelope.request);
        done += 1;
    }
    done
}

async fn drive_link(addr: Addr, depth: u64, request: Buf, until: Instant) -> u64 {
    let link = Link::connect(&addr, &Hello::new(PeerRole::Client, None, "pingpong")).await.unwrap();
    let done = Rc::new(Cell::new(0));
    let lanes = (0..depth).map(|_| {
        let (link, done, request) = (link.clone(), done.clone(), request.clone());
        spawn(async move {
            while now() < until {
                link.call(Kind::Read, &[0; 32], request.clone()).await.unwrap();
                done.set(done.get() + 1);
            }
        })
    });
    for lane in lanes.collect::<Vec<_>>() {
        lane.await.unwrap();
    }
    done.get()
}

/// CPU seconds of the calling thread, or of the whole process.
fn cpu_seconds(who: libc::c_int) -> f64 {
    // SAFETY: the structure is plain integers, for which zero is a value.
    let mut usage = unsafe { std::mem::zeroed::<libc::rusage>() };
    // SAFETY: the structure is ours.
    let result = unsafe { libc::getrusage(who, &raw mut usage) };
    assert_eq!(result, 0, "usage can be read");
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Binds the calling thread to a processor, as far as there is one of this number.
fn pin(processor: usize) {
    // SAFETY: a set of processors is plain bits, for which zero is a value: none.
    let mut set = unsafe { std::mem::zeroed::<libc::cpu_set_t>() };
    // SAFETY: the set is ours, and has room for the small numbers used here.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: the set is initialised and as large as is said. A refusal leaves the thread where it is.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: u64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let bare = args.get(1).is_none_or(|a| a == "bare");
    let (depth, request, reply) = (number(2, 32), number(3, 0) as usize, number(4, 4096) as usize);
    let seconds = number(5, 3);
    let spin = match args.get(6).map(String::as_str) {
        Some("never") => Spin::Never,
        Some("always") => Spin::Always,
        _ => Spin::Adaptive,
    };
    let at: Addr = args.get(7).map_or("127.0.0.1:0", |a| a).parse().expect("an address");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        pin(0);
        block_on(async move {
            set_spin(spin);
            let listener = Listener::bind(&at).unwrap();
            tell.send(listener.local_addr()).unwrap();
            let body = Buf::from(vec![7; reply]);
            if bare {
                serve_bare(listener, body).await
            } else {
                Server::run(listener, Services::one(Rc::new(Reply(body)))).await
            }
        })
        .unwrap();
    });
    let addr = told.recv().unwrap();
    pin(1);
    let done = block_on(async move {
        set_spin(spin);
        let body = Buf::from(vec![7; request]);
        let until = now() + Duration::from_secs(seconds);
        if bare {
            drive_bare(addr, depth, body, until).await
        } else {
            drive_link(addr, depth, body, until).await
        }
    });
    let done = done.unwrap();
    let client = cpu_seconds(libc::RUSAGE_THREAD);
    let server = cpu_seconds(libc::RUSAGE_SELF) - client;
    let rate = done / seconds;
    println!(
        "{rate}/s, {:.1} us each at depth {depth}; CPU of one request: client {:.2} us, server {:.2} us",
        depth as f64 * 1e6 / rate as f64,
        client * 1e6 / done as f64,
        server * 1e6 / done as f64,
    );
}
