//! An exclusive attach takes a volume away from a client that does not know it yet, and whose writes are
//! under way. From then on nothing but what the new client does may change a block (R10, R16).

use super::actor::take_alone;
use super::crowd;
use super::stage::Stage;
use crate::clients::client_host;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_api::FailureDomain;
use weft_checker::{fill_block, read_value};
use weft_client::{AttachMode, AttachOptions, Fabric, Volume};
use weft_rt::sim::{self, Crash};
use weft_rt::{Buf, now, random_below, sleep, spawn};
use weft_types::BLOCK_SIZE;

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub async fn run() -> Result<(), String> {
    run_on(Stage::set(3, 2 + random_below(2) as u8).await, false).await
}

/// Likewise, where each node has several targets of which one may have heard what another has not.
///
/// # Errors
/// What is wrong.
pub async fn run_split() -> Result<(), String> {
    run_on(Stage::set_split(3, 2, FailureDomain::Node).await, true).await
}

async fn run_on(stage: Rc<Stage>, is_split: bool) -> Result<(), String> {
    let drives = stage.write_set().await;
    // The node, the place there, and the host of each drive's target.
    let places: Vec<(usize, usize)> = drives.iter().map(|drive| stage.place_of(*drive)).collect();
    let hosts: Vec<IpAddr> = places.iter().map(|(node, at)| stage.bed.host_of(*node, *at)).collect();
    let victim = client_host(0);
    for _ in 0..2 {
        let process = {
            let stage = stage.clone();
            sim::spawn_process(victim, "victim", async move { write_on(stage).await })
        };
        sleep(Duration::from_millis(30)).await;
        if random_below(2) == 0 {
            // What it reads of the drive it has to read anew: then a request is under way for long.
            let (node, at) = places[random_below(places.len() as u64) as usize];
            stage.restart(node, Duration::from_millis(1)).await;
            stage.bed.nodes[node].disks()[at].set_faults(|f| f.latency.1 = Duration::from_millis(40));
            sleep(Duration::from_millis(random_below(60))).await;
        }
        // It does not hear that it is fenced, and some of what it sends arrives late.
        stage.cut(victim, crate::manager_host(), true);
        let delayed: Vec<IpAddr> = hosts.iter().copied().filter(|_| random_below(2) == 0).collect();
        delayed.iter().for_each(|host| sim::set_blocked(victim, *host, true));
        if is_split {
            hear_late(hosts[random_below(hosts.len() as u64) as usize]);
        }
        sleep(Duration::from_micros(random_below(20_000))).await;
        let late = {
            let delayed = delayed.clone();
            spawn(async move {
                sleep(Duration::from_micros(random_below(60_000))).await;
                delayed.iter().for_each(|host| sim::set_blocked(victim, *host, false));
            })
        };
        let restarts = (random_below(3) == 0).then(|| {
            let (stage, node) = (stage.clone(), places[random_below(places.len() as u64) as usize].0);
            spawn(async move {
                sleep(Duration::from_micros(random_below(50_000))).await;
                stage.restart(node, Duration::from_millis(random_below(20))).await;
            })
        });
        let volume = take_alone(&stage, "successor").await;
        watch(&stage, &volume).await?;
        late.await.ok();
        if let Some(restarts) = restarts {
            restarts.await.ok();
        }
        volume.detach().await;
        sim::kill(process, Crash::Process);
        stage.heal();
    }
    stage.finish().await
}

/// A target does not hear the manager for less than a lease, while its sibling does.
fn hear_late(host: IpAddr) {
    sim::set_blocked(crate::manager_host(), host, true);
    spawn(async move {
        sleep(Duration::from_millis(40 + random_below(50))).await;
        sim::set_blocked(crate::manager_host(), host, false);
    });
}

async fn write_on(stage: Rc<Stage>) {
    let fabric = loop {
        match Fabric::connect(&stage.bed.managers(), "victim").await {
            Ok(fabric) => break fabric,
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    };
    let mode = AttachMode::Exclusive;
    let options =
        AttachOptions { mode, preempt: true, io_timeout: Duration::from_secs(3600), ..Default::default() };
    let Ok(volume) = fabric.attach(super::stage::VOLUME, options).await else { return };
    let lanes = (0..4).map(|lane| {
        let (stage, volume) = (stage.clone(), volume.clone());
        spawn(async move {
            let name = format!("victim-{lane}");
            while crowd::write(&name, &stage, &volume, random_below(2), 1, false).await.is_ok() {
                sleep(Duration::from_micros(random_below(1_000))).await;
            }
        })
    });
    let lanes: Vec<_> = lanes.collect();
    for lane in lanes {
        let _ = lane.await;
    }
    std::future::pending::<()>().await;
}

/// Nobody else may write: what is read stays, and what is written is read.
async fn watch(stage: &Rc<Stage>, volume: &Volume) -> Result<(), String> {
    let mut known: [Option<u64>; 2] = [None; 2];
    let until = now() + Duration::from_millis(300);
    while now() < until {
        let block = random_below(2);
        let at = block * BLOCK_SIZE as u64;
        if random_below(30) == 0 {
            let value = stage.history.fresh_value();
            let call = stage.history.begin_write("successor", block, value);
            let data = vec![Buf::from(fill_block(block, value))];
            volume.write(at, data).await.map_err(|e| e.to_string())?;
            stage.history.end_write(call);
            known[block as usize] = Some(value);
        } else {
            let call = stage.history.begin_read("successor", block);
            let parts = volume.read(at, BLOCK_SIZE as u64).await.map_err(|e| e.to_string())?;
            let bytes: Vec<u8> = parts.iter().flat_map(|b| b.iter().copied()).collect();
            let value = read_value(block, &bytes);
            stage.history.end_read(call, value);
            if let Some(before) = known[block as usize].replace(value)
                && before != value
            {
                return Err(format!(
                    "block {block} changed from {before} to {value} while its only client did nothing: the client \
                     before was not fenced, or left something behind"
                ));
            }
        }
        sleep(Duration::from_micros(random_below(1_500))).await;
    }
    Ok(())
}
