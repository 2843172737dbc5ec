//! Scripts about how the map travels (C8). What clients have of it is compared with the map itself, at every
//! step.

use super::actor::{about_ms, enter, until};
use super::silence::reads_on;
use super::stage::VOLUME;
use crate::clients::client_host;
use crate::manager_host;
use std::time::Duration;
use weft_api::{ApiRequest, SettingsWish};
use weft_rt::{now, random_below, sim, sleep};
use weft_types::limits::MAP_VERSIONS_KEPT_MAX;

/// Longer than it takes a client to find the manager again, shorter than a manager holds the answer back
/// while nothing changes in a slice.
const SHORTER_THAN_A_WATCH: Duration = Duration::from_secs(6);

/// Longer than both together.
const LONGER_THAN_A_WATCH: Duration = Duration::from_secs(18);

/// A member passes to a drive that the client has not heard of, and that no commit touches.
pub async fn member_passes() -> Result<(), String> {
    let (stage, [a, b], [client]) = enter(["client"]).await;
    until(&client.write(0).done).await;
    let leaves = if random_below(2) == 0 { a } else { b };
    // Every target is sent a map, also the one that has nothing of the volume yet.
    let capacity_warning_percent = Some(60);
    stage
        .bed
        .api(ApiRequest::Settings(SettingsWish { capacity_warning_percent, ..Default::default() }))
        .await;
    sleep(about_ms(5, 20)).await;
    stage.bed.evacuate(leaves, 0, false).await;
    let (drive, from) = (stage.bed.nodes[leaves].drives()[0], now());
    while stage.bed.truth().groups.values().any(|g| g.slot_of(drive).is_some()) {
        if from.elapsed() > Duration::from_secs(20) {
            return Err("the drive is not emptied".into());
        }
        sleep(Duration::from_millis(10)).await;
    }
    sleep(about_ms(10, 100)).await;
    let write = client.write(0);
    until(&write.done).await;
    if !write.done.get() {
        return Err("a write does not end, although nothing is in its way".into());
    }
    stage.heal();
    stage.finish_with_sessions().await
}

/// A member leaves for another drive, forgets the group, and starts again; then a client that has not heard
/// of it brings the entry by which it was a member (C14).
pub async fn left_and_forgotten() -> Result<(), String> {
    let (stage, [a, _], [client, late]) = enter(["client", "late"]).await;
    until(&client.write(0).done).await;
    late.hear_of_nothing(true);
    late.reach_only(usize::MAX);
    stage.bed.evacuate(a, 0, false).await;
    let (drive, from) = (stage.bed.nodes[a].drives()[0], now());
    let holds_group = || stage.bed.nodes[a].stores().iter().any(|store| !store.groups().is_empty());
    while stage.bed.truth().groups.values().any(|g| g.slot_of(drive).is_some()) || holds_group() {
        if from.elapsed() > Duration::from_secs(20) {
            return Err("the drive is not emptied".into());
        }
        sleep(Duration::from_millis(10)).await;
    }
    until(&client.write(0).done).await;
    stage.restart(a, Duration::from_millis(1)).await;
    sleep(about_ms(30, 200)).await;
    late.reach_only(a);
    late.read_again(0, 3).await;
    stage.heal();
    stage.finish_with_sessions().await
}

/// A client does not hear of changes of its volume, and of so many others that the manager does not know any
/// more what has changed since. Then it hears the manager again: either nothing that concerns it happens for
/// long, or something does.
pub async fn changes_missed(then_changes: bool) -> Result<(), String> {
    let (stage, [_, b], [client]) = enter(["client"]).await;
    until(&client.write(0).done).await;
    client.hear_of_nothing(true);
    sim::reset_connections(client_host(0), manager_host());
    stage
        .bed
        .api(ApiRequest::VolumeResize { name: VOLUME.into(), size_bytes: 18 << 20, dry_run: false })
        .await;
    for round in 0..=MAP_VERSIONS_KEPT_MAX as u8 {
        let capacity_warning_percent = Some(50 + round % 20);
        stage
            .bed
            .api(ApiRequest::Settings(SettingsWish { capacity_warning_percent, ..Default::default() }))
            .await;
    }
    client.hear_of_nothing(false);
    // Targets hear it, so that its session lasts until it has found the manager again.
    if then_changes {
        reads_on(&client, SHORTER_THAN_A_WATCH).await?;
        stage.bed.evacuate(b, 0, false).await;
        reads_on(&client, about_ms(3_000, 3_000)).await?;
    } else {
        reads_on(&client, LONGER_THAN_A_WATCH).await?;
    }
    until(&client.write(0).done).await;
    stage.heal();
    stage.finish_with_sessions().await
}
