//! Pages made ahead of need: a thread keeps some extents of a range's size ready, so that a commit only maps them.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread;

use log::debug;

use crate::error::{Error, Result};
use crate::memory::pool::Pool;
use crate::memory::serve::{make_ready, release_ready};
use crate::observe::nvtx;
use crate::observe::target::MEMORY;
use crate::process;
use crate::sync::lock;

/// The thread's name; the system keeps 15 bytes.
const THREAD: &str = "gpupool-ready";

/// Extents of so many pages of a pool, which are to be made.
type WantedExtents = (Weak<Pool>, u32);

/// The way to the thread; none before its first work.
static WORKER: Mutex<Option<Sender<WantedExtents>>> = Mutex::new(None);

/// Has a thread of gpupool's own make what a pool lacks of ready extents of so many pages.
///
/// # Errors
/// `ErrorKind::Unavailable` if the system has no thread to give; `ErrorKind::Forked`.
pub(super) fn make_missing(pool: &Arc<Pool>, pages: u32) -> Result<()> {
    process::refuse_forked()?;
    let wanted = (Arc::downgrade(pool), pages);
    let mut worker = lock(&WORKER);
    if worker.as_ref().is_some_and(|worker| worker.send(wanted.clone()).is_ok()) {
        return Ok(());
    }
    let (sender, receiver) = channel();
    let work = move || {
        nvtx::name_thread(THREAD);
        while let Ok(wanted) = receiver.recv() {
            make(&wanted);
        }
    };
    let started = thread::Builder::new().name(THREAD.to_owned()).spawn(work);
    started
        .map_err(|error| Error::unavailable(format!("the system starts no thread that makes pages ready: {error}")))?;
    // The thread has just begun to receive.
    let _ = sender.send(wanted);
    *worker = Some(sender);
    Ok(())
}

/// Makes what is missing. Nothing while the pool is asleep, or once memory has run out: the next commit makes its own, and
/// asks again.
fn make((pool, pages): &WantedExtents) {
    while let Some(pool) = pool.upgrade() {
        if !pool.is_in_service() || !pool.supply.ready.lacks(*pages) {
            return;
        }
        if let Err(error) = make_ready(&pool, *pages) {
            debug!(target: MEMORY, "no page made ready for a range of pool {}: {error}", pool.label());
            return;
        }
        if !pool.is_in_service() {
            // Since then; what was made ready before went with that.
            release_ready(&pool);
            pool.memory.try_end_retired();
        }
    }
}
