//! Everything completes within a bound of virtual time once nothing is wrong any more: the operations that clients have
//! begun, and what the fabric does to be whole.

use crate::bed::Bed;
use crate::faults::{self, Guard};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sim::{self, ProcessId};
use weft_rt::{Instant, now, sleep};

/// Virtual time in which clients have finished what they had begun: silent targets are evicted, epochs learnt and
/// connections made anew well before.
const OPERATIONS_WITHIN: Duration = Duration::from_secs(60);

/// Virtual time in which a healed fabric is whole: sessions expire, leases are waited out, drives are replaced and every
/// replica is verified well before.
const WHOLE_WITHIN: Duration = Duration::from_secs(150);

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A client that is to finish what it has begun.
pub type Finishing = (String, ProcessId, Rc<Cell<bool>>);

/// Waits until every client that lives has finished.
///
/// # Errors
/// Who has not in time.
pub async fn finish(clients: &[Finishing]) -> Result<(), String> {
    let began = now();
    loop {
        let left = clients.iter().find(|(_, process, done)| !done.get() && sim::is_alive(*process));
        match left {
            None => return Ok(()),
            Some((name, ..)) if began.elapsed() > OPERATIONS_WITHIN => {
                return Err(format!("{name} has not finished {OPERATIONS_WITHIN:?} after everything healed"));
            }
            Some(_) => sleep(LOOK_EVERY).await,
        }
    }
}

/// Waits until the fabric is whole, and puts in order what people put in order. Says how long it took.
///
/// # Errors
/// What is still missing when the time is over.
pub async fn converge(bed: &Rc<Bed>, guard: &Guard, from: Instant) -> Result<Duration, String> {
    for look in 0.. {
        if look % 10 == 0 {
            faults::mend(bed, guard).await;
        }
        match bed.is_whole().await {
            Ok(()) => return Ok(now() - from),
            Err(why) if now() - from > WHOLE_WITHIN => {
                return Err(format!("not whole {WHOLE_WITHIN:?} after everything healed: {why}"));
            }
            Err(_) => sleep(LOOK_EVERY).await,
        }
    }
    unreachable!("the loop ends by returning")
}
