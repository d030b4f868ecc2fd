//! Locks of data that is whole at any time, also after a panic: no code under gpupool's locks can panic but for want of
//! memory, so a poisoned lock is taken like any other.

use std::sync::{LockResult, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult};
use std::time::Instant;

use super::may_wait::{MayWait, detached};
use super::{Condvar, Mutex, MutexGuard};
use crate::error;

/// Takes a lock: a thread of a schedule, which must not block, tries until it has it.
#[cfg(schedules)]
fn take<G>(attempt: impl Fn() -> TryLockResult<G>, take: impl FnOnce() -> LockResult<G>) -> G {
    use super::schedule;

    schedule::point();
    while schedule::is_member() {
        match attempt() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(guard)) => return guard.into_inner(),
            Err(TryLockError::WouldBlock) => schedule::wait(),
        }
    }
    take().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(not(schedules))]
#[inline]
fn take<G>(_attempt: impl Fn() -> TryLockResult<G>, take: impl FnOnce() -> LockResult<G>) -> G {
    take().unwrap_or_else(PoisonError::into_inner)
}

/// A mutex of `std`, or in a model one of loom.
pub(crate) trait Lock {
    /// What holds the lock.
    type Guard<'a>
    where
        Self: 'a;

    /// Locks, also after a panic under the lock.
    fn lock_whole(&self) -> Self::Guard<'_>;
}

impl<T> Lock for std::sync::Mutex<T> {
    type Guard<'a>
        = std::sync::MutexGuard<'a, T>
    where
        T: 'a;

    #[inline]
    fn lock_whole(&self) -> Self::Guard<'_> {
        take(|| self.try_lock(), || self.lock())
    }
}

#[cfg(loom)]
impl<T> Lock for loom::sync::Mutex<T> {
    type Guard<'a>
        = loom::sync::MutexGuard<'a, T>
    where
        T: 'a;

    fn lock_whole(&self) -> Self::Guard<'_> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[inline]
pub(crate) fn lock<M: Lock>(mutex: &M) -> M::Guard<'_> {
    mutex.lock_whole()
}

/// Locks a mutex, unless another thread has it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    #[cfg(schedules)]
    super::schedule::point();
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    take(|| lock.try_read(), || lock.read())
}

pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    take(|| lock.try_write(), || lock.write())
}

/// A condition variable of `std`, or in a model one of loom.
pub(crate) trait Condition<M: Lock> {
    /// Releases the mutex until notified, or spuriously woken.
    fn wait_whole<'a>(&self, guard: M::Guard<'a>) -> M::Guard<'a>
    where
        M: 'a;
}

impl<T> Condition<std::sync::Mutex<T>> for std::sync::Condvar {
    #[expect(clippy::disallowed_methods, reason = "the waits of this file")]
    fn wait_whole<'a>(&self, guard: std::sync::MutexGuard<'a, T>) -> std::sync::MutexGuard<'a, T>
    where
        T: 'a,
    {
        self.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(loom)]
impl<T> Condition<loom::sync::Mutex<T>> for loom::sync::Condvar {
    fn wait_whole<'a>(&self, guard: loom::sync::MutexGuard<'a, T>) -> loom::sync::MutexGuard<'a, T>
    where
        T: 'a,
    {
        self.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until notified, or spuriously woken, by a thread that may be in a callback meanwhile.
///
/// # Errors
/// As [`MayWait::check`]; the mutex is unlocked then.
pub(crate) fn wait<'a, M: Lock>(
    condition: &impl Condition<M>,
    mutex: &'a M,
    guard: M::Guard<'a>,
    may_wait: MayWait,
) -> error::Result<M::Guard<'a>> {
    may_wait.check()?;
    let mut guard = Some(guard);
    // The mutex is not held while the thread asks for the interpreter again.
    detached(&mut || drop(guard.take().map(|guard| wait_for_driver(condition, mutex, guard))));
    Ok(lock(mutex))
}

/// Waits until notified, or spuriously woken, by a thread that calls nobody back meanwhile, and waits for nothing but the
/// driver: so in a callback, too.
pub(crate) fn wait_for_driver<'a, M: Lock>(
    condition: &impl Condition<M>,
    mutex: &'a M,
    guard: M::Guard<'a>,
) -> M::Guard<'a> {
    #[cfg(schedules)]
    if super::schedule::is_member() {
        drop(guard);
        super::schedule::wait();
        return lock(mutex);
    }
    let _ = mutex;
    condition.wait_whole(guard)
}

/// Waits until notified or the deadline, which ends it whatever the other threads wait for: so in a callback, too. Returns
/// the guard as an error once the deadline has passed. In a model no time passes, and a deadline is over at once or never.
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

/// Removes the last matching item from a list. One from a locked list is dropped outside the lock, since it may hold
/// anything.
pub(crate) fn take_last<T>(list: &mut Vec<T>, is_meant: impl FnMut(&T) -> bool) -> Option<T> {
    let place = list.iter().rposition(is_meant)?;
    Some(list.remove(place))
}
