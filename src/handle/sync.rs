//! What threads meet through: the standard library's, or loom's where every interleaving is tried.

#[cfg(not(loom))]
pub(super) use std::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Instant;

#[cfg(loom)]
pub(super) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering},
};
#[cfg(loom)]
pub(super) use std::sync::Arc;

/// Locks. What the locks of this module guard is whole at any time, also after a panic.
#[cfg(not(loom))]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits to be told, at the latest until the deadline: then the guard comes back as an error.
#[cfg(not(loom))]
pub(super) fn wait<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Instant,
) -> Result<MutexGuard<'a, T>, MutexGuard<'a, T>> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(guard);
    }
    let (guard, _) = condition.wait_timeout(guard, left).unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(guard)
}

#[cfg(loom)]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// Loom knows no time: a model in which nobody tells is a deadlock, which loom finds. A deadline that has passed already
/// stands for one that passes at any moment.
#[cfg(loom)]
pub(super) fn wait<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Instant,
) -> Result<MutexGuard<'a, T>, MutexGuard<'a, T>> {
    if deadline <= Instant::now() {
        return Err(guard);
    }
    Ok(condition.wait(guard).unwrap())
}
