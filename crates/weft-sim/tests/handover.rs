//! A node that is stopped in order hands over: clients do not wait for its lease.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_client::AttachMode;
use weft_rt::sim::{Crash, Sim, kill, spawn_process};
use weft_rt::{Buf, now, sleep};
use weft_sim::{Bed, BedShape, STOP_PATIENCE, workload};
use weft_types::{BLOCK_SIZE, Durations};

/// What clients may notice: a fraction of the lease of two seconds.
const STALL_MAX: Duration = Duration::from_millis(100);

/// How long a node that was away may take until it is up to date again.
const WHOLE_WITHIN: Duration = Duration::from_secs(120);

/// The longest write or read of a client while the first node goes away, and comes back after some seconds.
async fn longest_stall(in_order: bool) -> Duration {
    let shape = BedShape {
        nodes: 3,
        drives: 1,
        parts: 1,
        targets: 1,
        drive_bytes: 64 << 20,
        copies: 2,
        durations: Durations::default(),
    };
    let bed = Bed::start(shape).await;
    bed.create_volume("shared", 2, 4).await;
    sleep(Duration::from_secs(3)).await;
    let (longest, managers) = (Rc::new(Cell::new(Duration::ZERO)), bed.managers());
    let noted = longest.clone();
    let client = spawn_process(IpAddr::from([10, 0, 2, 1]), "client", async move {
        let volume = workload::attach(&managers, "shared", "client", AttachMode::Shared).await;
        let lane = |lane: u64| {
            let (volume, noted) = (&volume, &noted);
            async move {
                for n in 0.. {
                    let at = (lane * 400 + n % 300) * BLOCK_SIZE as u64;
                    let began = now();
                    match n % 2 {
                        0 => volume.write(at, vec![Buf::zeroes(BLOCK_SIZE)]).await.expect("it is written"),
                        _ => drop(volume.read(at, BLOCK_SIZE as u64).await.expect("it is read")),
                    }
                    noted.set(noted.get().max(began.elapsed()));
                    sleep(Duration::from_millis(1)).await;
                }
            }
        };
        weft_rt::sync::join_all((0..4).map(lane)).await;
    });
    sleep(Duration::from_secs(1)).await;
    longest.set(Duration::ZERO);
    match in_order {
        true => bed.stop_node(0, STOP_PATIENCE).await,
        false => bed.kill_node(0, Crash::Process),
    }
    sleep(Duration::from_secs(6)).await;
    let stall = longest.get();
    bed.start_node(0);
    let began = now();
    while let Err(why) = bed.is_whole().await
        && !why.contains("session")
    {
        assert!(began.elapsed() < WHOLE_WITHIN, "{why}");
        sleep(Duration::from_secs(1)).await;
    }
    println!("whole {:?} after its return", began.elapsed());
    kill(client, Crash::Process);
    stall
}

#[test]
fn a_stop_in_order_stalls_nobody_for_a_lease() {
    for seed in 0..5 {
        let stall = Rc::new(Cell::new((Duration::ZERO, Duration::ZERO)));
        for in_order in [true, false] {
            let told = stall.clone();
            Sim::new(700 + seed).block_on(async move {
                let (stopped, killed) = told.get();
                let stall = longest_stall(in_order).await;
                told.set(if in_order { (stall, killed) } else { (stopped, stall) });
            });
        }
        let (stopped, killed) = stall.get();
        println!("seed {seed}: stopped {stopped:?}, killed {killed:?}");
        assert!(stopped < STALL_MAX, "seed {seed}: {stopped:?}");
        assert!(killed > Duration::from_secs(1), "a lease is waited out: {killed:?}");
    }
}
