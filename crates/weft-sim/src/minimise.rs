//! Finds fewer and shorter faults with which a seed still fails.

use crate::plan::Plan;
use crate::run::{Failure, run_plan};

/// How much shorter faults are tried.
const DIVISORS: [u32; 3] = [64, 16, 4];

/// Drops faults one by one, then shortens those that are left, for as long as the run still fails. The outcome names
/// the faults that are needed. A fault that is left out changes when others meet the rest, so a run may also fail in
/// another way; whatever fails is worth a look.
pub fn minimise(failure: &Failure, mut tell: impl FnMut(&str)) -> Failure {
    let plan = Plan::of(failure.seed);
    let whole: String = match &failure.faults {
        Some(list) => list.clone(),
        None => join(&plan.faults.iter().map(|p| p.number.to_string()).collect::<Vec<_>>()),
    };
    let mut kept: Vec<String> = whole.split(',').filter(|s| !s.is_empty()).map(str::to_owned).collect();
    let mut what = failure.what.clone();
    let fails = |list: &[String]| {
        let plan = Plan::of(failure.seed).with_faults(&join(list)).expect("the faults are those of the plan");
        run_plan(&plan, false).0.err()
    };
    // Halves first: often most of a plan has nothing to do with it.
    let mut step = kept.len() / 2;
    while step > 0 {
        let mut at = 0;
        while at < kept.len() {
            let mut fewer = kept.clone();
            fewer.drain(at..(at + step).min(kept.len()));
            match fails(&fewer) {
                Some(found) => {
                    (kept, what) = (fewer, found);
                    tell(&format!("fails with {} faults: {}", kept.len(), join(&kept)));
                }
                None => at += step,
            }
        }
        step /= 2;
    }
    for at in 0..kept.len() {
        for by in DIVISORS {
            let mut shorter = kept.clone();
            let number = kept[at].split('/').next().expect("a number").to_owned();
            shorter[at] = format!("{number}/{by}");
            if let Some(found) = fails(&shorter) {
                (kept, what) = (shorter, found);
                tell(&format!("fails with shorter faults: {}", join(&kept)));
                break;
            }
        }
    }
    Failure { seed: failure.seed, script: None, faults: Some(join(&kept)), what }
}

/// The faults of a failure as a schedule, for people.
pub fn schedule(failure: &Failure) -> String {
    let plan = Plan::of(failure.seed);
    let plan = match &failure.faults {
        Some(list) => plan.with_faults(list).expect("the faults are those of the plan"),
        None => plan,
    };
    let mut out = format!(
        "{:?}, {} sharing and {} alone of {:?} lanes, {:?}\n",
        plan.shape, plan.sharers, plan.loners, plan.lanes, plan.habits
    );
    plan.faults.iter().for_each(|planned| out.push_str(&format!("{planned}\n")));
    out
}

fn join(items: &[String]) -> String {
    items.join(",")
}
