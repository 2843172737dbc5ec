//! Scripts about sessions whose clients live, and are not heard by the manager for longer than a
//! session's term.

use super::actor::{Actor, enter, until};
use super::stage::{Stage, VOLUME};
use crate::clients::client_host;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_client::{AttachMode, AttachOptions, Fabric};
use weft_rt::sim::{self, Crash};
use weft_rt::{now, random_below, sleep};

/// Longer than a session's term of the stage.
fn longer_than_a_term() -> Duration {
    Duration::from_millis(2_000 + random_below(2_000))
}

/// Reads for a while; an error if the session does not last as long.
pub async fn reads_on(client: &Rc<Actor>, lasts: Duration) -> Result<(), String> {
    let from = now();
    while from.elapsed() < lasts {
        client.read(0).await.map_err(|_| "the client ends".to_owned())??;
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn finish(stage: &Rc<Stage>, client: &Rc<Actor>) -> Result<(), String> {
    stage.heal();
    // By then whatever the manager makes of the silence has begun.
    reads_on(client, Duration::from_millis(1_500)).await?;
    stage.finish_with_sessions().await
}

/// The manager stands still, and goes on as if nothing had been.
pub async fn manager_stands_still() -> Result<(), String> {
    let (stage, _, [client]) = enter::<2, 1>(["client"]).await;
    until(&client.write(0).done).await;
    let manager = stage.bed.manager_process().expect("it runs");
    for _ in 0..2 {
        sim::pause(manager);
        reads_on(&client, longer_than_a_term()).await?;
        sim::resume(manager);
        reads_on(&client, Duration::from_millis(random_below(1_000))).await?;
    }
    finish(&stage, &client).await
}

/// A client does not reach the manager, and targets hear it: first of requests, then only that it is there.
pub async fn heard_by_targets_only() -> Result<(), String> {
    let (stage, _, [client]) = enter::<2, 1>(["client"]).await;
    until(&client.write(0).done).await;
    client.hear_of_nothing(true);
    reads_on(&client, longer_than_a_term()).await?;
    sleep(longer_than_a_term()).await;
    reads_on(&client, Duration::from_millis(100)).await?;
    finish(&stage, &client).await
}

/// The answer to an exclusive attach is lost, and the client asks again. Its own session must not stand in
/// its way until the term is over (C10).
pub async fn asked_again() -> Result<(), String> {
    let stage = Stage::set_with_sessions(3, 2, 60_000).await;
    let (host, manager) = (client_host(0), crate::manager_host());
    let (is_asking, has_attached) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let client = {
        let (stage, is_asking, has_attached) = (stage.clone(), is_asking.clone(), has_attached.clone());
        sim::spawn_process(host, "client", async move {
            let fabric = Fabric::connect(&stage.bed.managers(), "client").await.expect("it is there");
            let (mode, io_timeout) = (AttachMode::Exclusive, Duration::from_secs(3600));
            let options = AttachOptions { mode, preempt: false, io_timeout, ..Default::default() };
            sim::set_blocked(manager, host, true);
            is_asking.set(true);
            let volume = loop {
                match fabric.attach(VOLUME, options.clone()).await {
                    Ok(volume) => break volume,
                    Err(_) => sleep(Duration::from_millis(50)).await,
                }
            };
            has_attached.set(true);
            std::future::pending::<()>().await;
            drop(volume);
        })
    };
    until(&is_asking).await;
    while stage.bed.map().await.sessions.is_empty() {
        sleep(Duration::from_millis(5)).await;
    }
    sleep(Duration::from_millis(random_below(20))).await;
    sim::reset_connections(host, manager);
    sim::set_blocked(manager, host, false);
    let from = now();
    while !has_attached.get() {
        if from.elapsed() > Duration::from_secs(10) {
            return Err("a client that asked again for its attach finds its own session in its way".into());
        }
        sleep(Duration::from_millis(20)).await;
    }
    let sessions = stage.bed.map().await.sessions.len();
    sim::kill(client, Crash::Process);
    match sessions {
        1 => Ok(()),
        n => Err(format!("an attach that was asked for twice has {n} sessions")),
    }
}
