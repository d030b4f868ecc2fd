//! Which of its routes a thread follows, and whether they have changed. The routes themselves are in `route`. Each has
//! a ticket, larger than all before. While a pool's own allocator runs, older routes are not followed, so that the pool
//! does not supply itself.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;

use super::state::Pool;
use crate::error::{Error, Result};
use crate::process;
use crate::sync::{Ordering, ThisThread, ThreadNumber, lock};

static TICKETS: AtomicU64 = AtomicU64::new(1);

/// What a thread follows of its routes.
struct Followed {
    /// How often that has changed.
    changes: Cell<u32>,
    /// Routes with lower tickets are not followed for now.
    first_ticket: Cell<u64>,
}

thread_local! {
    // Without a destructor, so that a hit reads one word; the routes, which have one, are elsewhere.
    static FOLLOWED: Followed = const { Followed { changes: Cell::new(0), first_ticket: Cell::new(0) } };
}

#[inline]
pub(in crate::memory) fn changes() -> u32 {
    FOLLOWED.with(|followed| followed.changes.get())
}

/// Notes that this thread's routes, or those that it follows, have changed.
pub(in crate::memory) fn note_change() {
    FOLLOWED.with(|followed| followed.changes.set(followed.changes.get().wrapping_add(1)));
}

/// Returns a number for a new route, larger than all before.
pub(crate) fn next_ticket() -> u64 {
    TICKETS.fetch_add(1, Ordering::Relaxed)
}

pub(in crate::memory) fn first_ticket() -> u64 {
    FOLLOWED.with(|followed| followed.first_ticket.get())
}

/// Returns the error of a request on a thread whose thread-locals are destroyed.
pub(in crate::memory) fn ending() -> Error {
    Error::invalid_value("this thread is ending: allocate before its thread-locals are destroyed")
}

/// A supply by the calling thread. It ends when dropped, also after a panic.
struct Supplying<'a> {
    pool: &'a Pool,
    thread: ThreadNumber,
    first_ticket: u64,
}

impl Drop for Supplying<'_> {
    fn drop(&mut self) {
        follow_from(self.first_ticket);
        // In a forked child the lock may be held for ever.
        if !process::is_forked() {
            lock(&self.pool.suppliers).retain(|thread| *thread != self.thread);
        }
    }
}

/// Has the thread follow routes with this ticket or a larger one. Returns which it followed before.
fn follow_from(ticket: u64) -> u64 {
    note_change();
    FOLLOWED.with(|followed| followed.first_ticket.replace(ticket))
}

/// Runs a pool's own allocator. What it allocates from gpupool does not follow this thread's routes, so that the pool
/// does not supply itself.
///
/// # Errors
/// `ErrorKind::InvalidValue` if it is asked all the same; what the allocator returns.
pub(in crate::memory) fn supply<R>(pool: &Pool, allocator: impl FnOnce() -> Result<R>) -> Result<R> {
    let thread = ThisThread::get().number();
    {
        let mut suppliers = lock(&pool.suppliers);
        if suppliers.contains(&thread) {
            return Err(Error::invalid_value(format!(
                "the allocator of pool {} asked for memory of pool {} itself; take it from elsewhere",
                pool.id, pool.id
            )));
        }
        suppliers.push(thread);
    }
    let _supplying = Supplying { pool, thread, first_ticket: follow_from(next_ticket()) };
    allocator()
}
