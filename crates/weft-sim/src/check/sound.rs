//! No drive fails to which nothing was done: a drive that is given up for no reason is a copy that is lost for no reason.

use crate::bed::Bed;
use std::rc::Rc;
use weft_api::{ApiAnswer, ApiRequest};

/// Looks through the stores that failed, and through what the manager has written down.
///
/// # Errors
/// The first drive that failed on its own account.
pub async fn check(bed: &Rc<Bed>) -> Result<(), String> {
    if let Some((drive, why)) = bed.failures().into_iter().find(|(drive, _)| !bed.may_fail(*drive)) {
        return Err(format!("nothing was done to {drive}, and its store has failed: {why}"));
    }
    let request = ApiRequest::Events { after: 0, limit: None, filter: Default::default() };
    let ApiAnswer::Events { events } = bed.api(request).await else {
        return Err("the answer to events is another one".into());
    };
    let is_wrong = |drives: &[_]| drives.iter().any(|drive| !bed.may_fail(*drive));
    match events.into_iter().find(|e| e.what == "fail-drive" && is_wrong(&e.drives)) {
        None => Ok(()),
        Some(event) => Err(format!("nothing was done to it: {}", event.why)),
    }
}
