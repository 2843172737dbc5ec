//! What brings news without the kernel: memory that another process writes.

use crate::executor::{try_with_core, with_core};
use std::rc::Rc;

/// Something that an executor looks at in each of its turns, and that can wake its thread.
pub trait Polled {
    /// Whether there is something for a task here.
    fn is_ready(&self) -> bool;

    /// Wakes the tasks for which something is here.
    fn poll(&self);

    /// The thread is about to sleep: whoever writes from now on has to wake it. The executor looks once more
    /// after this, behind a fence.
    fn arm_wakeup(&self);

    /// The thread is awake.
    fn disarm_wakeup(&self);
}

/// Has this thread's executor look at it from now on.
///
/// # Panics
/// Under simulation, where nothing comes by itself.
pub fn watch(polled: Rc<dyn Polled>) {
    with_core(|core| core.uring().expect("only the real backend polls").watch(polled));
}

/// Has this thread's executor look at it no more.
pub fn unwatch(polled: &Rc<dyn Polled>) {
    try_with_core(|core| core.uring().map(|driver| driver.unwatch(polled)));
}
