//! The end of things: every rule about threads, processes and forks in one place.
//!
//! - A thread ends: its [`window`](crate::handle) moves its handles to their pools. No driver call, no library call, no
//!   Python, no panic.
//! - The process ends: nothing is destroyed. Pools are `static` or leaked, so nothing of theirs is dropped.
//! - The process forks: a child made after the first use of a runtime gets `ErrorKind::Forked` from every call. The flag
//!   is set by a `pthread_atfork` handler and read before any lock is taken, for a lock may be held for ever there.

use std::sync::atomic::{AtomicBool, Ordering};

use log::info;

use crate::activity::target::RUNTIME;
use crate::error::{Error, ErrorKind, Result};

static FORKED: AtomicBool = AtomicBool::new(false);

/// Marks this process as the child of one that had used a GPU. Called by the fork handler alone.
pub(crate) fn set_forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Whether this process is such a child.
#[inline]
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Refuses in a forked child.
#[inline]
pub(crate) fn refuse_forked() -> Result<()> {
    if is_forked() { Err(forked()) } else { Ok(()) }
}

/// The error of a forked child. Apart, to keep its making out of the paths that check.
#[cold]
fn forked() -> Error {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    let error = Error::from(ErrorKind::Forked);
    if !IS_TOLD.swap(true, Ordering::Relaxed) {
        info!(target: RUNTIME, "this call and later ones are refused: {error}");
    }
    error
}
