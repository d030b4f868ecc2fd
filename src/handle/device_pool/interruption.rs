//! What ends a wait before its time, as Ctrl-C does in Python. The core knows no signals: the caller of a wait says what to
//! ask meanwhile.

use std::fmt;
use std::time::{Duration, Instant};

/// How often a wait asks whether it is to end: so often that it ends at once for a person, so seldom that it costs nothing.
/// In a model no time passes.
const INTERVAL: Duration = Duration::from_millis(if cfg!(loom) { 0 } else { 50 });

/// What a wait asks now and then: whether to end. It is asked on the thread that waits, with no lock held.
#[derive(Default)]
pub(crate) struct Interruption<'a>(Option<&'a mut (dyn FnMut() -> bool + Send)>);

/// A wait that was ended before its time.
#[derive(Debug)]
pub(in crate::handle) struct Interrupted;

impl fmt::Debug for Interruption<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Interruption").field(&self.0.is_some()).finish()
    }
}

impl<'a> Interruption<'a> {
    /// Makes an interruption that comes once this returns true.
    #[cfg(any(feature = "python", all(test, loom)))]
    pub(crate) fn when(is_due: &'a mut (dyn FnMut() -> bool + Send)) -> Self {
        Self(Some(is_due))
    }

    /// Returns until when to wait before it is asked next.
    pub(super) fn next(&self, deadline: Instant) -> Instant {
        if self.0.is_some() { deadline.min(Instant::now() + INTERVAL) } else { deadline }
    }

    /// Asks whether the wait is to end now.
    pub(super) fn is_due(&mut self) -> bool {
        self.0.as_mut().is_some_and(|is_due| is_due())
    }
}
