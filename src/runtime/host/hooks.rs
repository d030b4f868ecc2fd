//! Code that a test runs before a call of the simulated platform, with none of its locks held, to get a rare order of
//! two threads' calls each time. Only with the feature `fault-injection`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::fault::Call;
use crate::sync::lock;

struct Hook {
    call: Call,
    /// How many calls come first.
    after: u32,
    run: Box<dyn FnOnce() + Send>,
}

static ARMED: AtomicBool = AtomicBool::new(false);
static HOOKS: Mutex<Vec<Hook>> = Mutex::new(Vec::new());

/// Runs code once, before a call by any thread of the process, after so many others of its kind. The code's own calls
/// count, too.
pub fn before_call(call: Call, after: u32, run: impl FnOnce() + Send + 'static) {
    lock(&HOOKS).push(Hook { call, after, run: Box::new(run) });
    ARMED.store(true, Ordering::Release);
}

#[inline]
pub(super) fn run_before(call: Call) {
    if ARMED.load(Ordering::Acquire) {
        run_due(call);
    }
}

#[cold]
fn run_due(call: Call) {
    let due = {
        let mut hooks = lock(&HOOKS);
        let is_due = |hook: &mut Hook| {
            let is_meant = hook.call == call;
            let is_due = is_meant && hook.after == 0;
            hook.after -= u32::from(is_meant && !is_due);
            is_due
        };
        let due: Vec<_> = hooks.extract_if(.., |hook| is_due(hook)).collect();
        ARMED.store(!hooks.is_empty(), Ordering::Release);
        due
    };
    due.into_iter().for_each(|hook| (hook.run)());
}

/// Forgets the code that has not run yet, and returns how many pieces there were.
pub fn clear_before_call() -> usize {
    let left = {
        let mut hooks = lock(&HOOKS);
        ARMED.store(false, Ordering::Release);
        std::mem::take(&mut *hooks)
    };
    left.len()
}
