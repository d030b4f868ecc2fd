//! The locks and atomics that threads meet through: those of `std`, or in a model those of loom.
//!
//! A build with `--cfg loom` runs nothing but the models: the tests, named `models`, that loom runs with every order in
//! which the threads can take turns, and every value that the memory orderings let them read.

use std::sync::PoisonError;
use std::time::Instant;

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// Locks what is whole at any time, also after a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits to be told, at the latest until the deadline: then the guard comes back as an error. In a model no time passes, and
/// a deadline is over at once or never.
pub(crate) fn wait_until<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Instant,
) -> Result<MutexGuard<'a, T>, MutexGuard<'a, T>> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(guard);
    }
    #[cfg(not(loom))]
    let guard = condition.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
    #[cfg(loom)]
    let guard = condition.wait(guard).unwrap_or_else(PoisonError::into_inner);
    Ok(guard)
}
