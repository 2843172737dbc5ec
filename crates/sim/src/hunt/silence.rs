//! Scripts about sessions whose clients live, and are not heard by the manager for longer than a
//! session's term.

use super::actor::{Actor, enter, until};
use super::stage::Stage;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sim;
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
