//! The calling thread: its number, and its id in the operating system. gpupool numbers threads itself, since the system
//! reuses an ended thread's id. Only this module makes a [`ThisThread`], which never leaves its thread, so a function
//! that takes one knows its caller.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// A thread's number: 1, 2, ... in the order in which threads first came to gpupool, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ThreadNumber(u64);

impl ThreadNumber {
    /// Returns the number as a word that threads can share; 0 is no thread's.
    #[inline]
    pub(crate) const fn get(self) -> u64 {
        self.0
    }
}

/// Proof that its holder runs on the thread with this number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThisThread {
    number: u64,
    is_not_sent: PhantomData<*mut ()>,
}

static NUMBERS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    // Neither has a destructor, so both can be read until the thread is gone.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static SYSTEM_ID: Cell<u32> = const { Cell::new(0) };
}

impl ThisThread {
    #[inline]
    pub(crate) fn get() -> Self {
        let number = match NUMBER.get() {
            0 => begin(),
            known => known,
        };
        Self { number, is_not_sent: PhantomData }
    }

    #[inline]
    pub(crate) const fn number(self) -> ThreadNumber {
        ThreadNumber(self.number)
    }

    /// Returns the operating system's id of it (`gettid`), as in a debugger or `/proc`.
    #[inline]
    pub(crate) fn system_id(self) -> u32 {
        match SYSTEM_ID.get() {
            0 => ask(),
            known => known,
        }
    }

    /// Has the system asked for the calling thread's id again: in a forked child it has another one.
    #[cfg(feature = "python")]
    pub(crate) fn forget_system_id() {
        SYSTEM_ID.set(0);
    }

    /// Returns a thread of a model, which loom runs as a coroutine of one thread.
    ///
    /// # Safety
    /// The caller keeps the promise of the type by itself.
    #[cfg(all(test, loom))]
    pub(crate) const unsafe fn of_model(number: u64) -> Self {
        Self { number, is_not_sent: PhantomData }
    }
}

#[cold]
fn begin() -> u64 {
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

#[cold]
fn ask() -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    let id = unsafe { libc::gettid() }.cast_unsigned();
    SYSTEM_ID.set(id);
    id
}
