//! Scripts about clients that lose their way to one member, while the manager and all others reach it
//! (R6, R11).

use super::actor::{Actor, about_ms, becomes, enter, until};
use crate::bed::manager_host;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sim;
use weft_rt::{now, random_below, sleep};
use weft_types::Role;

/// Virtual time within which a write of a client that is cut off from one member completes: seven
/// leases of 100 ms, as in `check/cut.rs`.
const COMPLETES_WITHIN: Duration = Duration::from_millis(700);

/// A client loses its way to one of two members, in one direction or both, alone or together with
/// another one, and it stays so.
pub async fn cut_off() -> Result<(), String> {
    let (stage, [_, b], [victim, other]) = enter(["victim", "other"]).await;
    until(&victim.write(0).done).await;
    let (to, from) = [(true, true), (true, false), (false, true)][random_below(3) as usize];
    let cut = |client: &Rc<Actor>| {
        client.cut_to(b, to);
        client.cut_from(b, from);
    };
    cut(&victim);
    // The other one goes on, or does nothing, or is cut off as well.
    let part = random_below(3);
    if part == 0 {
        cut(&other);
    }
    for block in 0..3 {
        let write = victim.write(block);
        let begun = now();
        while !write.done.get() {
            if begun.elapsed() > COMPLETES_WITHIN {
                return Err(format!(
                    "a write waits for more than {COMPLETES_WITHIN:?} for a member out of reach"
                ));
            }
            if part != 2 {
                let _ = weft_rt::timeout(Duration::from_millis(20), other.read(block)).await;
            }
            sleep(Duration::from_millis(1)).await;
        }
        sleep(about_ms(1, 60)).await;
    }
    if !becomes(&stage, b, Role::Out).await {
        return Err("the member that is out of reach has not left".into());
    }
    stage.heal();
    stage.finish_with_sessions().await
}

/// Two clients miss a member that does not hear that it is to leave; another client reads there.
pub async fn departs_unawares() -> Result<(), String> {
    let (stage, [_, b], [writer, other, reader]) = enter(["writer", "other", "reader"]).await;
    until(&writer.write(0).done).await;
    writer.be_quiet().await;
    // It does not hear of it either, and asks by the map of before.
    reader.hear_of_nothing(true);
    let mut begun = Vec::new();
    for (client, block) in [(&writer, 0), (&other, 1)] {
        client.cut_to(b, true);
        client.cut_from(b, true);
        begun.push(client.write(block));
    }
    // Clients are believed after 125 ms and a look. The member's lease outlasts that by a little.
    sleep(about_ms(100, 40)).await;
    sim::set_blocked(manager_host(), stage.host(b), true);
    for _ in 0..60 {
        if begun[0].done.get() {
            reader.reach_only(b);
            reader.read_now(0..1).await;
            break;
        }
        sleep(Duration::from_millis(1)).await;
    }
    stage.heal();
    stage.finish_with_sessions().await
}
