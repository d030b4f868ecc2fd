//! The work so far on a cache's stream, marked while the stream was alive. A stream that gpupool did not make can be
//! touched only in a call that names it; its mark serves when it may be gone.

use std::sync::Mutex;

use crate::runtime::Event;
use crate::sync::lock;

/// A stream's work at a time when the cache's heap was as it was.
#[derive(Debug)]
pub(in crate::memory) struct WorkMark {
    pub(in crate::memory) event: Event,
    pub(in crate::memory) is_done: bool,
    /// The heap's turnover then.
    pub(in crate::memory) turnover: u64,
}

/// The last mark of one cache, taken out for work with it, so that no driver call is made under the lock.
#[derive(Debug, Default)]
pub(in crate::memory) struct LastWork(Mutex<Option<WorkMark>>);

impl LastWork {
    pub(in crate::memory) fn turnover(&self) -> Option<u64> {
        lock(&self.0).as_ref().map(|mark| mark.turnover)
    }

    pub(in crate::memory) fn take(&self) -> Option<WorkMark> {
        lock(&self.0).take()
    }

    /// Keeps the newer of two marks, and returns the other's event.
    pub(in crate::memory) fn put(&self, mark: WorkMark) -> Option<Event> {
        let mut last = lock(&self.0);
        let older = match &*last {
            Some(newer) if newer.turnover >= mark.turnover => Some(mark),
            _ => last.replace(mark),
        };
        older.map(|mark| mark.event)
    }
}
