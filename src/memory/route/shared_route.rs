//! Routes of more than one thread: scopes for all threads, and scopes of a context. While there is any, the process
//! counts as rerouted, and every request looks for one. Otherwise requests do no further check.

use std::sync::{Arc, Mutex, RwLock};

use crate::ids::Device;
use crate::memory::pool::Pool;
use crate::process;
use crate::sync::{lock, read, take_last, write};

/// How many such routes there are.
static OPEN: Mutex<usize> = Mutex::new(0);
/// The routes of all threads; the innermost is the last.
static ALL_THREADS: RwLock<Vec<(u64, Arc<Pool>)>> = RwLock::new(Vec::new());

/// Makes requests look for routes that are not their thread's, until it is dropped.
#[derive(Debug)]
pub(super) struct Rerouted(());

impl Rerouted {
    pub(super) fn new() -> Self {
        let mut open = lock(&OPEN);
        *open += 1;
        process::set_rerouted(true);
        Self(())
    }
}

impl Drop for Rerouted {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        let mut open = lock(&OPEN);
        *open -= 1;
        process::set_rerouted(*open > 0);
    }
}

/// A pool for requests on its device by every thread without a route of its own there, until this is dropped. It does
/// not keep the pool.
#[derive(Debug)]
pub(super) struct AllThreads {
    ticket: u64,
    _rerouted: Rerouted,
}

impl AllThreads {
    pub(super) fn new(pool: &Arc<Pool>, ticket: u64) -> Self {
        write(&ALL_THREADS).push((ticket, Arc::clone(pool)));
        Self { ticket, _rerouted: Rerouted::new() }
    }
}

impl Drop for AllThreads {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        // Dropped outside the lock: it may be the last reference to the pool.
        let ended = take_last(&mut write(&ALL_THREADS), |(ticket, _)| *ticket == self.ticket);
        drop(ended);
    }
}

pub(super) fn of_all_threads(device: Device) -> Option<Arc<Pool>> {
    let routes = read(&ALL_THREADS);
    routes.iter().rev().find(|(_, pool)| pool.memory.location == device).map(|(_, pool)| Arc::clone(pool))
}

/// Returns the pool of the context's innermost scope: none, as only Python has contexts.
#[cfg(not(feature = "python"))]
pub(super) const fn of_context(_device: Device, _first: u64) -> Option<(u64, Arc<Pool>)> {
    None
}
