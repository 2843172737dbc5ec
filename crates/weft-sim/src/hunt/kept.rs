//! Scripts about the manager's store: it is slow, or does not answer, and managers die or follow each other.

use super::actor::{Actor, until};
use super::stage::Stage;
use crate::bed::{USUAL_SLOWNESS, manager_host, second_manager_host};
use crate::check::lease::LeaseCheck;
use crate::clients::client_host;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, Health, SettingsWish};
use weft_manager::Slowness;
use weft_rt::sim;
use weft_rt::{now, random_below, sleep, spawn, timeout};
use weft_types::{DriveId, Role, SessionState};

/// How long the store takes at most over one transaction.
const SLOW_MS: u64 = 400;

/// How often a script goes through its schedule.
const ROUNDS: u64 = 6;

/// Within what time a node that is cut off is taken out.
const TAKEN_OUT_WITHIN: Duration = Duration::from_secs(3);

fn some_ms(below: u64) -> Duration {
    Duration::from_micros(random_below(below * 1000))
}

fn settings(n: u64) -> ApiRequest {
    ApiRequest::Settings(SettingsWish::rebuild_after_ms(3_700_000 + n))
}

impl Stage {
    fn store_is_slow(&self) {
        let latency = (Duration::ZERO, Duration::from_millis(SLOW_MS));
        self.bed.map_store().set_slowness(Slowness { latency, ..Slowness::default() });
    }

    /// The manager dies after a while, and starts again with a store that is sound.
    async fn manager_dies(&self, after: Duration) {
        sleep(after).await;
        self.bed.kill_manager();
        self.heal();
    }

    fn asks(self: &Rc<Stage>, request: ApiRequest) -> weft_rt::JoinHandle<Option<Result<ApiAnswer, String>>> {
        let bed = self.bed.clone();
        spawn(async move { timeout(Duration::from_secs(2), bed.try_api(&request)).await.ok() })
    }
}

/// What people were told to have changed has changed.
pub async fn answers_are_kept() -> Result<(), String> {
    let stage = Stage::set(3, 2).await;
    for round in 0..ROUNDS {
        stage.store_is_slow();
        let answered = Rc::new(RefCell::new(0));
        let (asking, noted) = (stage.clone(), answered.clone());
        let asking = spawn(async move {
            for n in 1.. {
                match asking.asks(settings(round * 1_000 + n)).await {
                    Ok(Some(Ok(_))) => *noted.borrow_mut() = n,
                    _ => return,
                }
            }
        });
        stage.manager_dies(some_ms(3 * SLOW_MS)).await;
        asking.await.ok();
        let (kept, told) = (stage.bed.map().await.durations.rebuild_after_ms, *answered.borrow());
        if told > 0 && kept < 3_700_000 + round * 1_000 + told {
            return Err(format!("change {told} was answered, and {kept} is kept"));
        }
    }
    stage.finish().await
}

/// What people were told to be in their way is there.
pub async fn refusals_are_kept() -> Result<(), String> {
    let stage = Stage::set(3, 2).await;
    for _ in 0..ROUNDS {
        let doomed = "doomed";
        stage.bed.create_volume(doomed, 2, 1).await;
        stage.store_is_slow();
        let delete = || ApiRequest::VolumeDelete { name: doomed.into(), force: true, dry_run: false };
        let first = stage.asks(delete());
        sleep(some_ms(5)).await;
        // Said again, it is under way already.
        let second = stage.asks(delete());
        stage.manager_dies(some_ms(SLOW_MS)).await;
        first.await.ok();
        let is_told = matches!(second.await, Ok(Some(Ok(_))));
        sleep(Duration::from_millis(300)).await;
        let map = stage.bed.map().await;
        let is_there = map.volume_named(doomed).is_some_and(|v| v.state != weft_types::VolumeState::Deleting);
        if is_told && is_there {
            return Err("a volume is told to be on its way out, and stays".to_owned());
        }
        while stage.bed.map().await.volume_named(doomed).is_some() {
            drop(timeout(Duration::from_secs(2), stage.bed.try_api(&delete())).await);
            sleep(Duration::from_millis(50)).await;
        }
    }
    stage.finish().await
}

/// No target has a map that never came to be.
pub async fn maps_are_kept() -> Result<(), String> {
    let stage = Stage::set(3, 2).await;
    for round in 0..ROUNDS {
        stage.store_is_slow();
        let asked = stage.asks(settings(round + 1));
        stage.manager_dies(some_ms(SLOW_MS)).await;
        asked.await.ok();
        sleep(Duration::from_millis(500)).await;
        let ApiAnswer::Status(status) = stage.bed.api(ApiRequest::Status {}).await else {
            return Err("the answer to status is another one".to_owned());
        };
        if status.health == Health::Unavailable && status.reasons.iter().any(|r| r.contains("recover")) {
            return Err(format!("a target knows a map that is in no store: {}", status.reasons[0]));
        }
    }
    stage.finish().await
}

/// A session that is open in the map is served.
pub async fn ends_are_kept() -> Result<(), String> {
    let stage = Stage::set(3, 2).await;
    for round in 0..ROUNDS {
        let client = Actor::enter(&stage, round as usize, "client").await;
        until(&client.write(0).done).await;
        let map = stage.bed.map().await;
        let session = map.sessions.values().find(|s| s.client == "client" && s.state == SessionState::Open);
        let Some(session) = session.map(|s| s.id) else { return Err("it has a session".to_owned()) };
        stage.store_is_slow();
        let asked = stage.asks(ApiRequest::SessionEnd { session: session.0, dry_run: false });
        stage.manager_dies(some_ms(SLOW_MS)).await;
        asked.await.ok();
        let map = stage.bed.map().await;
        let is_open = map.sessions.get(&session).is_some_and(|s| s.state == SessionState::Open);
        let read = timeout(Duration::from_secs(3), client.read(0)).await;
        if is_open && !matches!(read, Ok(Ok(Ok(())))) {
            return Err(format!("{session} is open, and its client is refused: {read:?}"));
        }
        stage.bed.ask(ApiRequest::SessionEnd { session: session.0, dry_run: false }).await;
    }
    stage.finish().await
}

/// Reads on through a node, whoever else it hears.
async fn read_on(client: Rc<Actor>) {
    loop {
        let client = client.clone();
        spawn(async move { drop(timeout(Duration::from_millis(5), client.read(0)).await) });
        sleep(Duration::from_millis(15)).await;
    }
}

/// Nobody is answered by a member that is out.
pub async fn just_taken_out() -> Result<(), String> {
    let stage = Stage::set_with_sessions(3, 2, 60_000).await;
    let (reader, writer) = (Actor::enter(&stage, 0, "reader").await, Actor::enter(&stage, 1, "writer").await);
    until(&writer.write(0).done).await;
    let checked = LeaseCheck::start(&stage.bed);
    let victim = stage.holders().await[1];
    // It hears of nothing.
    for n in (0..3).filter(|n| *n != victim) {
        reader.cut_to(n, true);
    }
    stage.cut(manager_host(), client_host(0), true);
    let reads = spawn(read_on(reader.clone()));
    for _ in 0..ROUNDS {
        let own = stage.host(victim);
        stage.cut(own, manager_host(), true);
        sleep(Duration::from_millis(50)).await;
        let latency = Duration::from_millis(2 * SLOW_MS);
        let slow = Slowness { latency: (latency / 2, latency), ..Slowness::default() };
        stage.bed.map_store().set_slowness(slow);
        let began = now();
        while stage.bed.map_store().commits_under_way() == 0 && began.elapsed() < TAKEN_OUT_WITHIN {
            sleep(Duration::from_millis(1)).await;
        }
        stage.cut(own, manager_host(), false);
        sleep(2 * latency).await;
        stage.bed.map_store().set_slowness(USUAL_SLOWNESS);
        stage.become_whole_but_for_sessions().await?;
    }
    reads.abort();
    checked.verdict()?;
    drop(checked);
    stage.heal();
    reader.cut_to(0, false);
    stage.finish_with_sessions().await
}

/// What becomes of the manager that led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// It stands still, and goes on when another one has taken over.
    StandsStill,
    /// Its store answers late, and then not at all.
    IsNotAnswered,
}

/// Whoever was followed grants no lease that lasts into the time of the next one.
pub async fn replaced(first: First) -> Result<(), String> {
    let stage = Stage::set_shared(3, 2).await;
    let (reader, writer) = (Actor::enter(&stage, 0, "reader").await, Actor::enter(&stage, 1, "writer").await);
    until(&writer.write(0).done).await;
    let checked = LeaseCheck::start(&stage.bed);
    let victim = stage.holders().await[1];
    let (own, process) = (stage.host(victim), stage.bed.manager_process().expect("it runs"));
    // The reader and its node hear of nothing but the first manager.
    for n in (0..3).filter(|n| *n != victim) {
        reader.cut_to(n, true);
        stage.cut(own, stage.host(n), true);
        stage.cut(stage.host(n), manager_host(), true);
    }
    stage.cut(second_manager_host(), client_host(0), true);
    stage.cut(second_manager_host(), own, true);
    stage.cut(manager_host(), client_host(0), true);
    let reads = spawn(read_on(reader.clone()));
    let store = stage.bed.store_of(manager_host());
    match first {
        First::StandsStill => sim::pause(process),
        First::IsNotAnswered => {
            let latency = (Duration::from_millis(50), Duration::from_millis(60));
            store.set_own_slowness(Some(Slowness { latency, ..Slowness::default() }));
            sleep(some_ms(300)).await;
            let silent = Slowness { latency, unanswered_per_mille: 1_000, late: Duration::from_secs(3_600) };
            store.set_own_slowness(Some(silent));
        }
    }
    stage.bed.start_second_manager();
    let began = now();
    let is_out = |stage: &Stage| {
        let map = stage.bed.truth();
        let drive: DriveId = stage.bed.nodes[victim].drives()[0];
        map.groups.values().any(|g| g.slot_of(drive).is_some_and(|s| s.role == Role::Out))
    };
    while !is_out(&stage) && began.elapsed() < Duration::from_secs(4) {
        sleep(Duration::from_millis(5)).await;
    }
    sim::resume(process);
    sleep(Duration::from_millis(600)).await;
    reads.abort();
    checked.verdict()?;
    drop(checked);
    store.set_own_slowness(None);
    (0..3).for_each(|n| reader.cut_to(n, false));
    stage.heal();
    stage.finish_with_sessions().await
}
