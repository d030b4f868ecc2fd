//! Pages made ahead of need: a thread keeps some extents of a range's size ready, so that a commit only maps them.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread;

use log::debug;

use super::held_range::HeldRange;
use crate::error::{Error, Result};
use crate::memory::serve::{make_ready, release_ready};
use crate::observe::nvtx;
use crate::observe::target::MEMORY;
use crate::process;
use crate::sync::{Ordering, lock};

/// The thread's name; the system keeps 15 bytes.
const THREAD: &str = "gpupool-ready";

/// The way to the thread; none before its first work.
static WORKER: Mutex<Option<Sender<Weak<HeldRange>>>> = Mutex::new(None);

/// Keeps so many pages ready from now on, made by a thread of gpupool's own.
///
/// # Errors
/// `ErrorKind::Unavailable` if the system has no thread to give; `ErrorKind::InvalidValue` for more pages than there are;
/// `ErrorKind::Forked`.
pub(super) fn prepare(range: &Arc<HeldRange>, pages: u32) -> Result<()> {
    if pages > range.count() {
        let count = range.count();
        return Err(Error::invalid_value(format!(
            "{pages} pages cannot be kept ready for a range of {count}: prepare {count} at most"
        )));
    }
    // The table is locked, so that a range that is freed keeps nothing.
    let table = range.open_table()?;
    let before = keep(range, pages);
    drop(table);
    let asked = if pages == 0 { Ok(()) } else { ask(range) };
    if asked.is_err() {
        let _table = range.open_table()?;
        keep(range, before);
    }
    asked
}

/// Notes how many pages are to be kept for a range. Returns how many were.
pub(super) fn keep(range: &HeldRange, pages: u32) -> u32 {
    let before = range.kept_ready.swap(pages, Ordering::Relaxed);
    range.pool.supply.ready.want(range.each, before, pages);
    before
}

/// Has what a commit took made again.
pub(super) fn refill(range: &Arc<HeldRange>) {
    // The thread is there; where it has ended, pages are made by the commits themselves.
    let _ = ask(range);
}

fn ask(range: &Arc<HeldRange>) -> Result<()> {
    process::refuse_forked()?;
    let mut worker = lock(&WORKER);
    let range = Arc::downgrade(range);
    let range = match worker.as_ref().map(|worker| worker.send(range.clone())) {
        Some(Ok(())) => return Ok(()),
        Some(Err(unsent)) => unsent.0,
        None => range,
    };
    let (sender, receiver) = channel();
    let work = move || {
        nvtx::name_thread(THREAD);
        while let Ok(range) = receiver.recv() {
            make_all(&range);
        }
    };
    let started = thread::Builder::new().name(THREAD.to_owned()).spawn(work);
    started
        .map_err(|error| Error::unavailable(format!("the system starts no thread that makes pages ready: {error}")))?;
    // The thread has just begun to receive.
    let _ = sender.send(range);
    *worker = Some(sender);
    Ok(())
}

/// Makes what is missing of a range's ready pages. Nothing while its pool is asleep, or once memory has run out: the next
/// commit makes its own, and asks again.
fn make_all(range: &Weak<HeldRange>) {
    loop {
        let Some(range) = range.upgrade() else { return };
        let pool = &range.pool;
        if pool.is_closed() || pool.sleep.is_asleep() || !pool.supply.ready.lacks(range.each) {
            return;
        }
        if let Err(error) = make_ready(pool, range.each) {
            debug!(target: MEMORY, "no page made ready for a range of pool {}: {error}", pool.label());
            return;
        }
        if pool.is_closed() || pool.sleep.is_asleep() {
            // Since then; what was made ready before went with that.
            release_ready(pool);
            pool.memory.try_end_retired();
        }
    }
}
