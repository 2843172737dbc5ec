//! How much CPU a read of a drive costs through the executor: random reads of a file with direct I/O.
//!
//! `cargo run --release -p weft-rt --example reads FILE [BYTES] [DEPTH] [SECONDS]` makes a FILE of 256 MiB, or uses one
//! that is there, and prints reads per second and CPU time per read, kernel included. To compare two builds, let
//! them take turns.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::join_all;
use weft_rt::{Buf, Drive, OpenOptions, block_on, now, random_u64};

const FILE_BYTES: u64 = 256 << 20;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, otherwise: u64| -> u64 {
        args.get(i).map_or(otherwise, |text| text.parse().expect("BYTES, DEPTH and SECONDS are numbers"))
    };
    let path = args.first().expect("usage: reads FILE [BYTES] [DEPTH] [SECONDS]").clone();
    let (bytes, depth, seconds) = (number(1, 4096), number(2, 32), number(3, 2));
    block_on(async move {
        let options = OpenOptions { create_bytes: Some(FILE_BYTES), ..OpenOptions::default() };
        let is_new = !std::path::Path::new(&path).exists();
        let drive = Drive::open(&path, options).await.expect("the file can be opened");
        if is_new {
            for at in (0..FILE_BYTES).step_by(1 << 20) {
                let data = Buf::from(vec![at as u8; 1 << 20]);
                drive.write(at, data).await.expect("the file can be written");
            }
        }
        let done = Rc::new(Cell::new(0u64));
        let (began, cpu) = (now(), cpu_us());
        let until = began + Duration::from_secs(seconds);
        let readers = (0..depth).map(|_| async {
            while now() < until {
                let at = random_u64() % (FILE_BYTES / bytes) * bytes;
                drive.read(at, bytes as usize).await.expect("the file can be read");
                done.set(done.get() + 1);
            }
        });
        join_all(readers).await;
        let (took, cpu, done) = (now() - began, cpu_us() - cpu, done.get());
        println!(
            "{:.0} reads/s, {:.2} us CPU per read",
            done as f64 / took.as_secs_f64(),
            cpu as f64 / done as f64
        );
    })
    .expect("the executor starts");
}

/// CPU time of this process so far, in microseconds.
fn cpu_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0, "every Linux has this clock");
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}
