//! What ends a wait early, such as Ctrl-C in Python. Nothing here knows signals: the caller of a wait gives a check.

use std::time::{Duration, Instant};

/// How often a wait runs the check: often enough for a person, rarely enough to cost nothing. In a model no time
/// passes.
const INTERVAL: Duration = Duration::from_millis(if cfg!(loom) { 0 } else { 50 });

/// The check of whether a wait is to end, on the waiting thread with no lock held.
#[derive(Default)]
pub(crate) struct Interruption<'a>(Option<&'a mut (dyn FnMut() -> bool + Send)>);

#[derive(Debug)]
pub(crate) struct Interrupted;

impl<'a> Interruption<'a> {
    /// Makes an interruption that comes once this returns true.
    #[cfg(any(feature = "python", all(test, loom)))]
    pub(crate) fn when(is_due: &'a mut (dyn FnMut() -> bool + Send)) -> Self {
        Self(Some(is_due))
    }

    /// Returns until when to wait before the next check.
    pub(crate) fn next(&self, deadline: Instant) -> Instant {
        if self.0.is_some() { deadline.min(Instant::now() + INTERVAL) } else { deadline }
    }

    pub(crate) fn is_due(&mut self) -> bool {
        self.0.as_mut().is_some_and(|is_due| is_due())
    }
}
