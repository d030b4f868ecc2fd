//! The progress of a replay, and its early end on demand.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::error::{Error, Result};

/// How often a watcher is asked.
const TICK: Duration = Duration::from_millis(100);

/// How far a replay is.
pub(super) struct Progress {
    done: AtomicUsize,
    total: usize,
    is_stopped: AtomicBool,
}

impl Progress {
    pub(super) fn new(total: usize) -> Self {
        Self { done: AtomicUsize::new(0), total, is_stopped: AtomicBool::new(false) }
    }

    /// Counts events; false if the replay is to end.
    pub(super) fn advance(&self, events: usize) -> bool {
        self.done.fetch_add(events, Ordering::Relaxed);
        !self.is_stopped()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn part(&self) -> f64 {
        self.done.load(Ordering::Relaxed) as f64 / self.total.max(1) as f64
    }
}

/// Does the work on a thread of its own while the calling one asks the watcher, and returns none if that stopped it.
pub(super) fn watched<T: Send>(
    progress: &Progress,
    watch: &mut dyn FnMut(f64) -> bool,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<Option<T>> {
    let outcome = thread::scope(|scope| {
        let (working, ended) = mpsc::channel::<()>();
        let working = move || {
            // Dropped when the work ends, however it does.
            let _working = working;
            work()
        };
        let worker = thread::Builder::new()
            .spawn_scoped(scope, working)
            .map_err(|e| Error::unavailable(format!("no thread could be started for a replay: {e}")))?;
        while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            if !progress.is_stopped() && !watch(progress.part()) {
                progress.is_stopped.store(true, Ordering::Relaxed);
            }
        }
        worker.join().map_err(|_| Error::internal("the replay's thread panicked"))?
    });
    let result = outcome?;
    Ok((!progress.is_stopped()).then_some(result))
}
