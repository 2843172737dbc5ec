//! What features of io_uring save on this machine that the executor could use: registered files and buffers,
//! receives and accepts that repeat, receives that wait before they try. `docs/decisions/0006-io-uring-features.md`
//! argues from these figures.
//!
//! usage: features [ROUNDS] [FILE]
//!
//! FILE (64 MiB; made, read and written with direct I/O, and removed; by default in the folder for temporary files)
//! must not be there before.
//! One thread has both ends of everything in one ring, set up as the executor's is. Each round runs every variant,
//! in alternating order; printed are the medians, over the rounds, of wall time and CPU time of this thread relative
//! to the first variant of the same round.

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::File;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU16, Ordering};
use weft_rt::BufMut;

const BLOCK: usize = 4096;
const FILE_BYTES: usize = 64 << 20;
/// Operations on the drive at once, at most; each has its own buffer.
const DEPTH_MAX: usize = 32;
const DRIVE_OPERATIONS: usize = 2048;

/// What the executor's frame reader asks for at once, and from where on it receives bodies in place.
const READ_BYTES: usize = 256 * 1024;
const DIRECT_BYTES: usize = 32 * 1024;
/// Envelope and head of a request.
const HEAD_BYTES: usize = 64;
const BODY_BYTES_MAX: usize = 1 << 20;
/// Bytes there and back in one run of a stream.
const STREAM_BYTES: usize = 64 << 20;
const EXCHANGES_MAX: usize = 20_000;

/// Buffers that repeating receives fill.
const CHUNKS: u16 = 16;
const CHUNK_BYTES: usize = 64 * 1024;

const CONNECTIONS: usize = 128;

/// The flag IORING_RECVSEND_POLL_FIRST of linux/io_uring.h.
const POLL_FIRST: u16 = 1;

/// Tokens: of what is sent or cancelled, and, plus the number of its end, of what is received.
const SENT: u64 = 0;
const RECEIVED: u64 = 1;

fn main() -> io::Result<()> {
    let rounds = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(15);
    let path = std::env::args().nth(2).map_or_else(|| std::env::temp_dir().join("weft-features"), Into::into);
    // Programs of ours have several threads, which makes looking up a descriptor dearer.
    std::thread::spawn(std::thread::park);
    accepts(rounds)?;
    streams(rounds)?;
    let file =
        File::options().read(true).write(true).create_new(true).custom_flags(libc::O_DIRECT).open(&path)?;
    let result = drives(rounds, &file);
    std::fs::remove_file(&path)?;
    result
}

/// A ring as the executor has it on a new kernel.
fn new_ring() -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
    builder.build(256)
}

/// Seconds of wall time and of this thread's CPU time.
fn clocks() -> [f64; 2] {
    [libc::CLOCK_MONOTONIC, libc::CLOCK_THREAD_CPUTIME_ID].map(|clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structure is ours.
        let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
        assert_eq!(result, 0, "clocks can be read");
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    })
}

/// Runs every variant in every round and prints how they compare. A run returns seconds per operation.
fn compare(
    title: &str,
    rounds: usize,
    variants: &[&str],
    mut run: impl FnMut(usize) -> io::Result<[f64; 2]>,
) -> io::Result<()> {
    let mut all = vec![Vec::new(); variants.len()];
    (0..variants.len()).try_for_each(|variant| run(variant).map(drop))?;
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..variants.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for variant in order {
            all[variant].push(run(variant)?);
        }
    }
    println!("{title}");
    for (variant, name) in variants.iter().enumerate() {
        let median = |of: &dyn Fn(usize) -> f64| {
            let mut values: Vec<f64> = (0..rounds).map(of).collect();
            values.sort_by(f64::total_cmp);
            values[rounds / 2]
        };
        let [time, cpu] = [0, 1].map(|i| median(&|round| all[variant][round][i] * 1e6));
        let ratio = [0, 1].map(|i| median(&|round| all[variant][round][i] / all[0][round][i]));
        println!("  {name:<24} time {time:9.2} us x {:.3}   CPU {cpu:9.2} us x {:.3}", ratio[0], ratio[1]);
    }
    Ok(())
}

fn push(ring: &mut IoUring, entry: &squeue::Entry) {
    // SAFETY: what is handed to the kernel here lies in buffers that outlive the ring's operations: every run
    // waits for all of its completions, and rings are dropped before buffers.
    unsafe { ring.submission().push(entry) }.expect("the queue has room for all that is under way");
}

fn drives(rounds: usize, file: &File) -> io::Result<()> {
    let mut buf = BufMut::zeroed(DEPTH_MAX * BLOCK);
    // Overwriting is what is measured, so every block is there before.
    (0..FILE_BYTES / buf.len()).try_for_each(|_| (&*file).write_all(&buf))?;
    let start = buf.as_mut_ptr();
    let iov = libc::iovec { iov_base: start.cast(), iov_len: buf.len() };
    let mut ring = new_ring()?;
    ring.submitter().register_files(&[file.as_raw_fd()])?;
    // SAFETY: the buffer outlives the ring.
    unsafe { ring.submitter().register_buffers(&[iov])? };
    let variants = ["as it is", "file registered", "buffers registered", "both"];
    for (write, depth) in [(false, 1), (false, DEPTH_MAX), (true, 1), (true, DEPTH_MAX)] {
        let title = format!("{} of 4 KiB, direct, depth {depth}", if write { "write" } else { "read" });
        compare(&title, rounds, &variants, |variant| {
            let (fixed_file, fixed_buffers) = (variant & 1 != 0, variant & 2 != 0);
            let fd = types::Fd(if fixed_file { 0 } else { file.as_raw_fd() });
            let before = clocks();
            let (mut started, mut done) = (0, 0);
            while done < DRIVE_OPERATIONS {
                while started < DRIVE_OPERATIONS && started - done < depth {
                    let at = (started.wrapping_mul(2_654_435_761) % (FILE_BYTES / BLOCK) * BLOCK) as u64;
                    let to = start.wrapping_add(started % depth * BLOCK);
                    let n = BLOCK as u32;
                    let entry = match (write, fixed_buffers) {
                        (false, false) => opcode::Read::new(fd, to, n).offset(at).build(),
                        (false, true) => opcode::ReadFixed::new(fd, to, n, 0).offset(at).build(),
                        (true, false) => opcode::Write::new(fd, to, n).offset(at).build(),
                        (true, true) => opcode::WriteFixed::new(fd, to, n, 0).offset(at).build(),
                    };
                    push(&mut ring, &with_file(entry, fixed_file));
                    started += 1;
                }
                ring.submit_and_wait(1)?;
                for completion in ring.completion() {
                    assert_eq!(completion.result(), BLOCK as i32, "a whole block");
                    done += 1;
                }
            }
            Ok(per(before, DRIVE_OPERATIONS))
        })?;
    }
    Ok(())
}

fn with_file(entry: squeue::Entry, registered: bool) -> squeue::Entry {
    if registered { entry.flags(squeue::Flags::FIXED_FILE) } else { entry }
}

fn per(before: [f64; 2], operations: usize) -> [f64; 2] {
    let after = clocks();
    [0, 1].map(|i| (after[i] - before[i]) / operations as f64)
}

fn streams(rounds: usize) -> io::Result<()> {
    let variants = ["as it is", "wait before trying", "files registered", "repeating"];
    for (frames, body) in [(1, BLOCK), (32, BLOCK), (1, 64 * 1024), (1, BODY_BYTES_MAX)] {
        let mut pair = Pair::new()?;
        let (there, back) = (frames * HEAD_BYTES, frames * (HEAD_BYTES + body));
        let exchanges = (STREAM_BYTES / back).min(EXCHANGES_MAX);
        let title = format!("{frames} x 64 B there, {frames} x (64 B + {} KiB) back", body / 1024);
        compare(&title, rounds, &variants, |variant| {
            pair.disarm()?;
            let before = clocks();
            for _ in 0..exchanges {
                pair.carry(0, there, variant)?;
                pair.carry(1, back, variant)?;
            }
            Ok(per(before, exchanges))
        })?;
    }
    Ok(())
}

/// Both ends of a connection.
struct Pair {
    ring: IoUring,
    ends: [TcpStream; 2],
    /// Whether a repeating receive is under way at this end.
    armed: [bool; 2],
    outgoing: BufMut,
    read: BufMut,
    /// Where the bytes of a message are to end up.
    body: BufMut,
    chunk_ring: BufMut,
    chunks: BufMut,
    tail: u16,
}

impl Pair {
    fn new() -> io::Result<Pair> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let ends = [TcpStream::connect(listener.local_addr()?)?, listener.accept()?.0];
        ends.iter().try_for_each(|end| end.set_nodelay(true))?;
        let largest = 2 * BODY_BYTES_MAX;
        let mut pair = Pair {
            ring: new_ring()?,
            armed: [false; 2],
            outgoing: BufMut::zeroed(largest),
            read: BufMut::zeroed(READ_BYTES),
            body: BufMut::zeroed(largest),
            chunk_ring: BufMut::zeroed(BLOCK),
            chunks: BufMut::zeroed(CHUNKS as usize * CHUNK_BYTES),
            tail: 0,
            ends,
        };
        let submitter = pair.ring.submitter();
        submitter.register_files(&[pair.ends[0].as_raw_fd(), pair.ends[1].as_raw_fd()])?;
        let address = pair.chunk_ring.as_mut_ptr() as u64;
        // SAFETY: the memory is a page of its own, larger than the entries, and outlives the ring.
        unsafe { submitter.register_buf_ring_with_flags(address, CHUNKS, 0, 0)? };
        (0..CHUNKS).for_each(|id| pair.provide(id));
        Ok(pair)
    }

    /// Lets the kernel fill this chunk.
    fn provide(&mut self, id: u16) {
        let entries = self.chunk_ring.as_mut_ptr().cast::<types::BufRingEntry>();
        // SAFETY: the index is less than the number of entries, and the kernel reads no entry past the tail.
        let entry = unsafe { &mut *entries.add(usize::from(self.tail % CHUNKS)) };
        entry.set_addr(self.chunks[usize::from(id) * CHUNK_BYTES..].as_mut_ptr() as u64);
        entry.set_len(CHUNK_BYTES as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail lies in the first entry, aligned, and is shared with the kernel only.
        let tail = unsafe { AtomicU16::from_ptr(types::BufRingEntry::tail(entries).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// Ends repeating receives, so that the next variant finds its own.
    fn disarm(&mut self) -> io::Result<()> {
        let mut completions = 0;
        for end in [0, 1] {
            if std::mem::take(&mut self.armed[end]) {
                let entry = opcode::AsyncCancel::new(RECEIVED + end as u64).build();
                push(&mut self.ring, &entry.user_data(SENT));
                completions += 2;
            }
        }
        self.ring.submit_and_wait(completions)?;
        self.ring.completion().for_each(drop);
        Ok(())
    }

    /// Sends `len` bytes from one end and receives them at the other, as the executor's frame reader would.
    fn carry(&mut self, from: usize, len: usize, variant: usize) -> io::Result<()> {
        let (to, repeating, registered) = (1 - from, variant == 3, variant == 2);
        let fd = |ends: &[TcpStream; 2], end: usize| {
            types::Fd(if registered { end as i32 } else { ends[end].as_raw_fd() })
        };
        let (mut received, mut sent) = (0, false);
        let mut direct = false;
        self.receive(fd(&self.ends, to), to, received, &mut direct, len, variant);
        let send = opcode::Send::new(fd(&self.ends, from), self.outgoing.as_ptr(), len as u32)
            .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL);
        push(&mut self.ring, &with_file(send.build().user_data(SENT), registered));
        while received < len || !sent {
            self.ring.submit_and_wait(1)?;
            while let Some(completion) = { self.ring.completion().next() } {
                let result = completion.result();
                if completion.user_data() == SENT {
                    sent = true;
                    continue;
                }
                if repeating {
                    self.armed[to] = cqueue::more(completion.flags());
                }
                match cqueue::buffer_select(completion.flags()) {
                    Some(id) => {
                        let at = usize::from(id) * CHUNK_BYTES;
                        let n = result as usize;
                        self.body[received..received + n].copy_from_slice(&self.chunks[at..at + n]);
                        self.provide(id);
                        received += n;
                    }
                    None if repeating && result == -libc::ENOBUFS => {}
                    None => {
                        let n = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))?;
                        if !direct {
                            self.body[received..received + n].copy_from_slice(&self.read[..n]);
                        }
                        received += n;
                    }
                }
                if received < len {
                    self.receive(fd(&self.ends, to), to, received, &mut direct, len, variant);
                }
            }
        }
        Ok(())
    }

    /// Asks for bytes, unless that goes on by itself.
    fn receive(
        &mut self,
        fd: types::Fd,
        end: usize,
        at: usize,
        direct: &mut bool,
        len: usize,
        variant: usize,
    ) {
        if variant == 3 {
            if !std::mem::replace(&mut self.armed[end], true) {
                let entry = opcode::RecvMulti::new(fd, 0).build();
                push(&mut self.ring, &entry.user_data(RECEIVED + end as u64));
            }
            return;
        }
        *direct = at > 0 && len - at >= DIRECT_BYTES;
        let to = if *direct { &mut self.body[at..len] } else { &mut self.read[..] };
        let first = if variant == 1 { POLL_FIRST } else { 0 };
        let entry = opcode::Recv::new(fd, to.as_mut_ptr(), to.len() as u32).ioprio(first);
        push(&mut self.ring, &with_file(entry.build().user_data(RECEIVED + end as u64), variant == 2));
    }
}

fn accepts(rounds: usize) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?;
    let fd = types::Fd(listener.as_raw_fd());
    let variants = ["as it is", "repeating"];
    for (title, together) in [("accept, one at a time", 1), ("accept, 64 at once", 64)] {
        let mut rings = [new_ring()?, new_ring()?];
        compare(title, rounds, &variants, |variant| {
            let ring = &mut rings[variant];
            let mut total = [0.0; 2];
            let mut armed = false;
            for _ in 0..CONNECTIONS / together {
                let clients =
                    (0..together).map(|_| TcpStream::connect(at)).collect::<io::Result<Vec<_>>>()?;
                let before = clocks();
                let mut taken = Vec::new();
                while taken.len() < together {
                    if !std::mem::replace(&mut armed, true) {
                        let (addr, addr_len) = (std::ptr::null_mut(), std::ptr::null_mut());
                        let entry = match variant {
                            0 => opcode::Accept::new(fd, addr, addr_len).build(),
                            _ => opcode::AcceptMulti::new(fd).build(),
                        };
                        push(ring, &entry.user_data(RECEIVED));
                    }
                    ring.submit_and_wait(1)?;
                    for completion in ring.completion() {
                        armed = cqueue::more(completion.flags());
                        // SAFETY: the kernel has just made this descriptor for us.
                        taken.push(unsafe { OwnedFd::from_raw_fd(completion.result()) });
                    }
                }
                let spent = per(before, CONNECTIONS);
                total = [total[0] + spent[0], total[1] + spent[1]];
                drop((clients, taken));
            }
            if armed {
                push(ring, &opcode::AsyncCancel::new(RECEIVED).build().user_data(SENT));
                ring.submit_and_wait(2)?;
                ring.completion().for_each(drop);
            }
            Ok(total)
        })?;
    }
    Ok(())
}
