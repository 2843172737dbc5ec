//! Replicas are equal once everything has healed: by the fabric's own scrub, and by the digests of their stores.

use crate::bed::Bed;
use crate::faults::Guard;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest};
use weft_rt::{sim, sleep};
use weft_types::ScrubFindingKind;

/// How often a scrub is asked how far it is, and how often at most.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LOOKS_MAX: u32 = 1200;

/// Has the fabric scrub itself and waits for the end. Damage may be found only where it was done, and must be healed.
///
/// # Errors
/// What it found, or that it does not end.
pub async fn scrub(bed: &Rc<Bed>, guard: &Guard) -> Result<(), String> {
    bed.api(ApiRequest::ScrubStart { volumes: vec![] }).await;
    for _ in 0..LOOKS_MAX {
        if let ApiAnswer::Scrub(info) = bed.api(ApiRequest::ScrubStatus {}).await {
            let is_rightful = |kind: ScrubFindingKind| {
                guard.may_be_damaged()
                    && matches!(kind, ScrubFindingKind::Healed | ScrubFindingKind::NotHealed)
            };
            if let Some(wrong) = info.findings.iter().find(|f| !is_rightful(f.kind)) {
                return Err(format!("a scrub found {wrong:?}"));
            }
            if info.running.is_none() {
                return Ok(());
            }
        }
        sleep(LOOK_EVERY).await;
    }
    Err("a scrub does not end".into())
}

/// Compares the replicas of every group, chunk by chunk; returns how many chunks there were. A block that nobody has
/// read may be damaged on one of them, and be equal all the same.
///
/// # Errors
/// What differs.
pub async fn check(bed: &Rc<Bed>) -> Result<u64, String> {
    let chunks = bed.scrub().await?;
    sim::tell(|| format!("{chunks} chunks are equal"));
    Ok(chunks)
}
