//! Tasks of the thread that talks to other processes, besides that, which are tried until they are done. A caller that
//! frees attached memory leaves a task here and goes on: the memory's work may not be done, the driver may refuse, and
//! there may be no room for a message to the owner. So the owner gets its memory back even if this process never calls
//! gpupool again.

use std::sync::Mutex;

use log::Level;

use crate::error::Result;
use crate::memory::device::{log_out, wake};
use crate::process;
use crate::sync::lock;

/// A task, which is tried until it returns true.
type Task = Box<dyn FnMut() -> Result<bool> + Send>;

static TASKS: Mutex<Vec<Task>> = Mutex::new(Vec::new());

/// Leaves a task to that thread.
pub(super) fn later(task: impl FnMut() -> Result<bool> + Send + 'static) {
    lock(&TASKS).push(Box::new(task));
    wake();
}

/// Tries a task at once, and leaves it to that thread if it is not done. Does nothing in a forked child.
pub(super) fn now_or_later(mut task: impl FnMut() -> Result<bool> + Send + 'static) {
    if !process::is_forked() && !is_done(&mut task) {
        later(task);
    }
}

fn is_done(task: &mut dyn FnMut() -> Result<bool>) -> bool {
    task().unwrap_or_else(|error| {
        log_out(Level::Debug, format_args!("attached memory could not be let go yet: {error}"));
        false
    })
}

/// Tries all tasks, and returns whether some are left.
pub(super) fn try_all() -> bool {
    let mut tasks = std::mem::take(&mut *lock(&TASKS));
    tasks.retain_mut(|task| !is_done(task));
    let mut new = lock(&TASKS);
    new.append(&mut tasks);
    !new.is_empty()
}
