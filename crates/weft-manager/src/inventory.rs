//! What the targets have: asked anew each time, because it is asked seldom and decided upon.

use crate::manager::Manager;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::join_all;
use weft_rt::{Instant, now};
use weft_types::{GroupId, TargetId, VolumeId, with_causes};
use weft_wire::control::{Inventory, TargetAnswer, TargetRequest};

/// How long a target may take: it reads the block map of its drives.
const INVENTORY_MAX: Duration = Duration::from_secs(60);

/// What a target has, and between which instants of this side's clock it said so.
pub(crate) struct Counted {
    pub(crate) inventory: Inventory,
    pub(crate) asked: Instant,
    pub(crate) answered: Instant,
    /// This side's clock at the answer, in microseconds.
    pub(crate) clock_us: u64,
}

impl Manager {
    /// What every target has; of the groups that are named, how much and how new.
    pub(crate) async fn inventories(
        self: &Rc<Self>,
        detail: Vec<GroupId>,
    ) -> BTreeMap<TargetId, Result<Counted, String>> {
        let targets: Vec<TargetId> = self.map().targets.keys().copied().collect();
        let request = TargetRequest::Inventory { detail };
        let asked = targets.into_iter().map(|target| {
            let request = &request;
            async move {
                let asked = now();
                let answer = self.ask(target, request, None, INVENTORY_MAX).await;
                let counted = match answer {
                    Ok(TargetAnswer::Inventory(inventory)) => Ok(Counted {
                        inventory: *inventory,
                        asked,
                        answered: now(),
                        clock_us: weft_rt::wall_clock_us(),
                    }),
                    Ok(_) => Err("it answered another question than the one asked".to_owned()),
                    Err(error) => Err(with_causes(&error)),
                };
                (target, counted)
            }
        });
        join_all(asked).await.into_iter().collect()
    }

    /// Whether a drive holds data of the volume; none if a target that may does not answer.
    pub(crate) async fn holds_data(self: &Rc<Self>, volume: VolumeId) -> Option<bool> {
        let targets = self.state.borrow().writers_of(volume);
        let request = TargetRequest::HoldsData { volume };
        let asked = targets.iter().map(|&target| {
            let request = &request;
            async move { self.ask(target, request, None, INVENTORY_MAX).await }
        });
        let mut all_answered = true;
        for answer in join_all(asked).await {
            match answer {
                Ok(TargetAnswer::HoldsData { holds: true }) => return Some(true),
                Ok(TargetAnswer::HoldsData { holds: false }) => {}
                _ => all_answered = false,
            }
        }
        all_answered.then_some(false)
    }
}
