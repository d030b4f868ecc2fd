//! Which of its routes a thread follows, and whether they have changed. The routes themselves are in `route`. Each has
//! a ticket, larger than all before. While a pool's own allocator runs, older routes are not followed, so that the pool
//! does not supply itself.

use std::cell::{Cell, RefCell};
use std::sync::atomic::AtomicU64;

use super::state::Pool;
use crate::error::{Error, Result};
use crate::sync::Ordering;

static TICKETS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    // Separate and without a destructor, so that a hit reads one word.
    static CHANGES: Cell<u32> = const { Cell::new(0) };
    /// Routes with lower tickets are not followed for now.
    static FIRST_TICKET: Cell<u64> = const { Cell::new(0) };
    /// The numbers of pools whose own allocators this thread is in.
    static SUPPLIED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

#[inline]
pub(in crate::memory) fn changes() -> u32 {
    CHANGES.get()
}

/// Notes that this thread's routes, or those that it follows, have changed.
pub(in crate::memory) fn note_change() {
    CHANGES.set(CHANGES.get().wrapping_add(1));
}

/// Returns a number for a new route, larger than all before.
pub(crate) fn next_ticket() -> u64 {
    TICKETS.fetch_add(1, Ordering::Relaxed)
}

pub(in crate::memory) fn first_ticket() -> u64 {
    FIRST_TICKET.get()
}

/// Returns the error of a request on a thread whose thread-locals are destroyed.
pub(in crate::memory) fn ending() -> Error {
    Error::invalid_value("this thread is ending: allocate before its thread-locals are destroyed")
}

/// Makes the thread follow its routes again when dropped, also after a panic.
#[derive(Debug)]
pub(in crate::memory) struct Unfollowed {
    first: u64,
}

impl Unfollowed {
    /// Stops following the present routes.
    pub(in crate::memory) fn new() -> Self {
        let first = FIRST_TICKET.replace(next_ticket());
        note_change();
        Self { first }
    }
}

impl Drop for Unfollowed {
    fn drop(&mut self) {
        FIRST_TICKET.set(self.first);
        note_change();
    }
}

/// Runs a pool's own allocator. What it allocates from gpupool does not follow this thread's routes, so that the pool
/// does not supply itself.
///
/// # Errors
/// `ErrorKind::InvalidValue` if it is asked all the same; what the allocator returns.
pub(in crate::memory) fn supply<R>(pool: &Pool, allocator: impl FnOnce() -> Result<R>) -> Result<R> {
    /// Ends the pool's supply when dropped, also after a panic.
    struct Supplying;
    impl Drop for Supplying {
        fn drop(&mut self) {
            let _ = SUPPLIED.try_with(|supplied| supplied.borrow_mut().pop());
        }
    }
    let is_first = SUPPLIED.try_with(|supplied| {
        let mut supplied = supplied.borrow_mut();
        let is_first = !supplied.contains(&pool.number);
        if is_first {
            supplied.push(pool.number);
        }
        is_first
    });
    if !is_first.map_err(|_| ending())? {
        return Err(Error::invalid_value(format!(
            "the allocator of pool {} asked for memory of pool {} itself; take it from elsewhere",
            pool.id, pool.id
        )));
    }
    let _supplying = Supplying;
    let _unfollowed = Unfollowed::new();
    allocator()
}
