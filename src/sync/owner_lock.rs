//! A lock that costs its owner a nanosecond, so that a thread's cache is fast and yet open to others. The owner locks
//! by two plain memory accesses. Any other thread first announces itself, then makes every core of the process pass a
//! memory barrier (`membarrier(2)`, microseconds), and waits for the owner to step out: the rare other thread pays for
//! the barrier that each lock needs. The announcement stands until the owner has come by the mutex a few times, so
//! further threads need no barrier. Without `membarrier` in the kernel the owner passes a barrier of its own; so it
//! does under Miri, which understands that one.

use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, lock, try_lock};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::thread;
use std::time::Duration;

/// How often the owner locks by the mutex before it returns to the fast path. A barrier costs as much as some hundred
/// locks of a mutex, and stops every core; so other threads' locks in close succession share one.
const LOCKS_AFTER_OTHERS: u32 = if cfg!(any(loom, miri)) { 2 } else { 64 };

/// How often another thread yields its core to the owner before it sleeps: far longer than an owner that runs is inside.
const YIELDS: u32 = 1000;
const PAUSE: Duration = Duration::from_micros(50);

/// A value that one thread uses often and others seldom.
#[derive(Debug)]
pub(crate) struct OwnerLock<T> {
    /// Whether the owner uses the value.
    inside: AtomicBool,
    /// Whether the owner has to lock by the mutex. Changed under the mutex.
    is_shared: AtomicBool,
    /// Held by a thread other than the owner that uses the value, and, while the lock is shared, by the owner. How
    /// often the owner has locked it since the last other thread.
    owner_locks: Mutex<u32>,
    value: UnsafeCell<T>,
    /// Whether the owner has a guard, of either kind.
    #[cfg(debug_assertions)]
    is_owner_inside: AtomicBool,
    /// Touched as the value is, so that loom sees whether one thread's work is visible to the next.
    #[cfg(loom)]
    touched: loom::cell::UnsafeCell<()>,
}

// SAFETY: the guards give out `&mut T` to one thread at a time, as a `Mutex` does.
unsafe impl<T: Send> Sync for OwnerLock<T> {}

#[derive(Debug)]
pub(crate) struct OwnerGuard<'a, T> {
    lock: &'a OwnerLock<T>,
    /// None if the owner came by the fast path.
    shared: Option<MutexGuard<'a, u32>>,
    #[cfg(debug_assertions)]
    is_owner: bool,
}

impl<T> OwnerLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            inside: AtomicBool::new(false),
            is_shared: AtomicBool::new(false),
            owner_locks: Mutex::new(0),
            value: UnsafeCell::new(value),
            #[cfg(debug_assertions)]
            is_owner_inside: AtomicBool::new(false),
            #[cfg(loom)]
            touched: loom::cell::UnsafeCell::new(()),
        }
    }

    /// # Safety
    /// Only one thread at a time is the owner, this one is it, it holds no guard of this lock, and becoming the owner
    /// happens after the former owner's last unlock.
    #[inline]
    pub(crate) unsafe fn lock_as_owner(&self) -> OwnerGuard<'_, T> {
        // SAFETY: the caller promises the same.
        unsafe { self.lock_fast() }.unwrap_or_else(|| self.lock_as_one_of_many())
    }

    /// Locks for the owner by the fast path; none while it has to use the mutex. The compiler sees that such a guard
    /// holds no mutex.
    ///
    /// # Safety
    /// As [`OwnerLock::lock_as_owner`].
    #[inline]
    pub(crate) unsafe fn lock_fast(&self) -> Option<OwnerGuard<'_, T>> {
        #[cfg(debug_assertions)]
        debug_assert!(!self.is_owner_inside.load(Ordering::Relaxed), "locked twice by its owner");
        self.inside.store(true, Ordering::Relaxed);
        barrier::light();
        if self.is_shared.load(Ordering::Relaxed) {
            self.inside.store(false, Ordering::Release);
            return None;
        }
        Some(OwnerGuard::new(self, None, true))
    }

    /// As [`OwnerLock::lock_as_owner`]; none if another thread has it.
    ///
    /// # Safety
    /// As [`OwnerLock::lock_as_owner`].
    #[cold]
    pub(crate) unsafe fn try_lock_as_owner(&self) -> Option<OwnerGuard<'_, T>> {
        // SAFETY: the caller promises the same.
        let fast = unsafe { self.lock_fast() };
        fast.or_else(|| try_lock(&self.owner_locks).map(|owner_locks| self.guard_as_one_of_many(owner_locks)))
    }

    #[cold]
    fn lock_as_one_of_many(&self) -> OwnerGuard<'_, T> {
        self.guard_as_one_of_many(lock(&self.owner_locks))
    }

    fn guard_as_one_of_many<'a>(&'a self, mut owner_locks: MutexGuard<'a, u32>) -> OwnerGuard<'a, T> {
        *owner_locks += 1;
        if *owner_locks >= LOCKS_AFTER_OTHERS {
            // No other thread enters while the mutex is held, and the next one announces itself anew.
            self.is_shared.store(false, Ordering::Relaxed);
        }
        OwnerGuard::new(self, Some(owner_locks), true)
    }

    /// Locks for any thread, the owner too.
    #[cold]
    pub(crate) fn lock(&self) -> OwnerGuard<'_, T> {
        self.lock_announced(lock(&self.owner_locks))
    }

    /// Locks for any thread but the owner, unless another has it.
    #[cold]
    pub(crate) fn try_lock(&self) -> Option<OwnerGuard<'_, T>> {
        try_lock(&self.owner_locks).map(|owner_locks| self.lock_announced(owner_locks))
    }

    fn lock_announced<'a>(&'a self, mut owner_locks: MutexGuard<'a, u32>) -> OwnerGuard<'a, T> {
        *owner_locks = 0;
        // While the lock is shared the owner needs the mutex, which is held here.
        if !self.is_shared.load(Ordering::Relaxed) {
            self.is_shared.store(true, Ordering::Relaxed);
            barrier::heavy();
            // Acquire: what the owner did is seen once it has stepped out. It makes no system call inside, unless
            // memory is recorded.
            let mut looks = 0_u32;
            while self.inside.load(Ordering::Acquire) {
                give_way(looks);
                looks = looks.saturating_add(1);
            }
        }
        OwnerGuard::new(self, Some(owner_locks), false)
    }
}

impl<'a, T> OwnerGuard<'a, T> {
    #[inline]
    fn new(lock: &'a OwnerLock<T>, shared: Option<MutexGuard<'a, u32>>, is_owner: bool) -> Self {
        #[cfg(loom)]
        lock.touched.with_mut(|_| ());
        #[cfg(debug_assertions)]
        if is_owner {
            lock.is_owner_inside.store(true, Ordering::Relaxed);
        }
        #[cfg(not(debug_assertions))]
        let _ = is_owner;
        Self {
            lock,
            shared,
            #[cfg(debug_assertions)]
            is_owner,
        }
    }
}

/// Lets the owner go on, after so many looks. A thread with a real-time priority (`SCHED_FIFO`) yields to none of a lower
/// one, so if the owner waits for its core it has to sleep.
fn give_way(looks: u32) {
    #[cfg(schedules)]
    super::schedule::wait();
    #[cfg(loom)]
    loom::thread::yield_now();
    match looks {
        _ if cfg!(any(loom, schedules)) => {}
        ..YIELDS => thread::yield_now(),
        _ => thread::sleep(PAUSE),
    }
}

impl<T> Deref for OwnerGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a guard exists for one thread at a time.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for OwnerGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: a guard exists for one thread at a time, and this one is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for OwnerGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        #[cfg(loom)]
        self.lock.touched.with_mut(|_| ());
        #[cfg(debug_assertions)]
        if self.is_owner {
            self.lock.is_owner_inside.store(false, Ordering::Relaxed);
        }
        if self.shared.is_none() {
            self.lock.inside.store(false, Ordering::Release);
        }
    }
}

/// The two halves of an asymmetric barrier: where one thread's light one and another's heavy one meet, one of them sees
/// the other's earlier store.
#[cfg(not(loom))]
mod barrier {
    use std::sync::atomic::{AtomicU8, compiler_fence};
    use std::thread;
    use std::time::Duration;

    use crate::sync::{Ordering, fence};

    const UNKNOWN: u8 = 0;
    const KERNEL: u8 = 1;
    const NONE: u8 = 2;
    /// Refused recently: owners pay, and other threads still wait for owners that entered before.
    const REFUSED: u8 = 3;

    static MEMBARRIER: AtomicU8 = AtomicU8::new(UNKNOWN);

    /// Far longer than any core delays a store: that reaches others as soon as their cache lines can.
    const STORE_KEPT_MOST: Duration = Duration::from_millis(1);

    #[inline]
    pub(super) fn light() {
        // Acquire: a thread that sees that the process has registered sees what was announced before that.
        if MEMBARRIER.load(Ordering::Acquire) == KERNEL {
            compiler_fence(Ordering::SeqCst);
        } else {
            light_unless_kernel();
        }
    }

    #[cold]
    fn light_unless_kernel() {
        // Threads that still see UNKNOWN pay for a barrier, which is always enough.
        if MEMBARRIER.load(Ordering::Relaxed) == UNKNOWN {
            let known = if command(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) { KERNEL } else { NONE };
            let _ = MEMBARRIER.compare_exchange(UNKNOWN, known, Ordering::Release, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    pub(super) fn heavy() {
        fence(Ordering::SeqCst);
        let state = MEMBARRIER.load(Ordering::Relaxed);
        // Refused where the process has not registered yet: then every owner has paid for a barrier.
        let is_refused = state != NONE && !command(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        if is_refused && state != UNKNOWN {
            // By a filter of system calls that was set since. Owners pay from now on, and those that came in before have
            // stepped in for all to see after a while.
            MEMBARRIER.store(REFUSED, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            thread::sleep(STORE_KEPT_MOST);
            MEMBARRIER.store(NONE, Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    pub(super) fn is_free_for_owners() -> bool {
        MEMBARRIER.load(Ordering::Relaxed) == KERNEL
    }

    fn command(command: libc::c_int) -> bool {
        // SAFETY: `membarrier` takes a command, flags and a CPU number, and touches no memory of ours.
        !cfg!(miri) && unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }
}

#[cfg(loom)]
mod barrier {
    use crate::sync::{Ordering, fence};

    pub(super) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::{OwnerLock, barrier};

    /// Makes the system refuse `membarrier` to this thread, as a sandbox does.
    fn forbid_membarrier() {
        let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut filter = [
            // The data begins with the number of the system call.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_membarrier as u32, 0, 1),
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the filter is whole, and the system copies it.
        let refused = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
        };
        assert!(!refused, "{}", std::io::Error::last_os_error());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has neither membarrier nor filters of system calls")]
    fn owners_pay_for_a_barrier_once_membarrier_is_refused() {
        let lock = OwnerLock::new(0_u64);
        // SAFETY: this thread is the only owner and holds no guard.
        *unsafe { lock.lock_as_owner() } += 1;
        thread::scope(|scope| {
            scope.spawn(|| {
                forbid_membarrier();
                *lock.lock() += 1;
            });
        });
        assert!(!barrier::is_free_for_owners());
        // SAFETY: this thread is the only owner and holds no guard.
        *unsafe { lock.lock_as_owner() } += 1;
        assert_eq!(*lock.lock(), 3);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use loom::thread;

    use super::OwnerLock;

    /// Adds one in two steps, so that of two threads inside at once one is lost.
    fn add_one(value: &AtomicUsize) {
        let before = value.load(Ordering::Relaxed);
        value.store(before + 1, Ordering::Relaxed);
    }

    #[test]
    fn an_owner_and_another_thread_take_turns() {
        loom::model(|| {
            let lock = Arc::new(OwnerLock::new(AtomicUsize::new(0)));
            let other = {
                let lock = Arc::clone(&lock);
                thread::spawn(move || add_one(&*lock.lock()))
            };
            // SAFETY: this thread is the only owner and holds no guard.
            add_one(&*unsafe { lock.lock_as_owner() });
            other.join().unwrap();
            assert_eq!(lock.lock().load(Ordering::Relaxed), 2);
        });
    }

    #[test]
    fn an_owner_returns_to_the_fast_path_between_other_threads() {
        loom::model(|| {
            let lock = Arc::new(OwnerLock::new(AtomicUsize::new(0)));
            drop(lock.lock());
            let other = {
                let lock = Arc::clone(&lock);
                thread::spawn(move || (0..2).for_each(|_| add_one(&*lock.lock())))
            };
            for _ in 0..3 {
                // SAFETY: this thread is the only owner and holds no guard.
                add_one(&*unsafe { lock.lock_as_owner() });
            }
            other.join().unwrap();
            assert_eq!(lock.lock().load(Ordering::Relaxed), 5);
        });
    }

    #[test]
    fn a_new_owner_sees_what_the_former_one_did() {
        loom::model(|| {
            let lock = Arc::new(OwnerLock::new(0));
            let has_owner = Arc::new(AtomicBool::new(true));
            let former = {
                let (lock, has_owner) = (Arc::clone(&lock), Arc::clone(&has_owner));
                thread::spawn(move || {
                    // SAFETY: this thread is the owner until it says otherwise.
                    *unsafe { lock.lock_as_owner() } += 1;
                    has_owner.store(false, Ordering::Release);
                })
            };
            if has_owner.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                // SAFETY: the former owner has given up, and this thread took its place.
                assert_eq!(*unsafe { lock.lock_as_owner() }, 1);
            }
            former.join().unwrap();
        });
    }
}
