//! Memory and queues stay within their limits, looked at again and again while a run goes on.

use crate::bed::Bed;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use weft_rt::{sim, sleep};
use weft_types::SessionSlot;
use weft_types::limits::{FRAME_BODY_MAX, OPEN_ENTRIES_REPAIR_MAX};

/// Virtual time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Bytes under way on one connection in one direction: what a socket takes, and one frame.
const BYTES_UNDER_WAY_MAX: usize = (4 << 20) + FRAME_BODY_MAX;

/// Tasks of a whole run. A few clients of some requests each, a few nodes with as many as the credits of their
/// connections allow: a number far above what is ever seen, and far below what a leak would reach in one run.
const TASKS_MAX: usize = 20_000;

/// Timers of a whole run; a task has few.
const TIMERS_MAX: usize = 2 * TASKS_MAX;

/// What a store may have in RAM beyond its budget: pages in use, and the bitmap.
const RAM_BEYOND_BUDGET: u64 = 8 << 20;

/// What was seen at most.
#[derive(Default)]
pub struct LimitsCheck {
    tasks: Cell<usize>,
    wrong: RefCell<Option<String>>,
}

impl LimitsCheck {
    /// Looks again and again, for ever.
    pub async fn watch(self: Rc<Self>, bed: Rc<Bed>) {
        loop {
            let found = self.look(&bed);
            if let Err(wrong) = found
                && self.wrong.borrow().is_none()
            {
                *self.wrong.borrow_mut() = Some(wrong);
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// The most tasks that there were.
    ///
    /// # Errors
    /// The first limit that was passed.
    pub fn verdict(&self) -> Result<usize, String> {
        match self.wrong.borrow().clone() {
            None => Ok(self.tasks.get()),
            Some(wrong) => Err(wrong),
        }
    }

    fn look(&self, bed: &Bed) -> Result<(), String> {
        let tasks = sim::task_count();
        self.tasks.set(self.tasks.get().max(tasks));
        within("tasks", tasks as u64, TASKS_MAX as u64)?;
        within("timers", sim::timer_count() as u64, TIMERS_MAX as u64)?;
        within("bytes under way", sim::bytes_under_way() as u64, BYTES_UNDER_WAY_MAX as u64)?;
        let slots: Vec<SessionSlot> = bed.truth().sessions.values().map(|s| s.slot).collect();
        for store in bed.nodes.iter().flat_map(|n| n.stores()) {
            let usage = store.usage();
            within("RAM of a store", usage.ram_bytes, usage.ram_budget_bytes + RAM_BEYOND_BUDGET)?;
            within("the log of a store", usage.log_used_bytes, usage.log_capacity_bytes)?;
            for group in store.groups() {
                for slot in &slots {
                    let open = store.open_entries_of(group, *slot).len() as u64;
                    within("open entries of a session", open, OPEN_ENTRIES_REPAIR_MAX as u64)?;
                }
            }
        }
        Ok(())
    }
}

fn within(what: &str, found: u64, limit: u64) -> Result<(), String> {
    match found <= limit {
        true => Ok(()),
        false => Err(format!("{what}: {found}, and the limit is {limit}")),
    }
}
