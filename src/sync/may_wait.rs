//! Waiting for another thread. Callbacks run with no lock held, but in the middle of a call that may have something in hand
//! which other threads wait for: pages of a range, a pool that is changing. Two such threads that wait for each other do
//! so for ever. So a thread with something in hand waits for none that may be in a callback: it is refused. Nor does a
//! thread that waits keep Python's interpreter, which a callback may need.

use std::cell::Cell;
use std::fmt::{self, Display};
use std::marker::PhantomData;
#[cfg(feature = "python")]
use std::sync::OnceLock;
use std::time::Duration;

use crate::error::{Error, Result};

/// Longer than any program runs: so long a timeout is none.
pub(crate) const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Others' code that gpupool calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallbackKind {
    Oom,
    Discard,
    Segment,
    /// A pool's own allocator.
    Allocator,
    /// What is called with each event of memory.
    Observer,
    Logger,
    /// A library that the program has described.
    Library,
}

impl Display for CallbackKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Oom => "a callback of on_oom",
            Self::Discard => "a callback of on_discard",
            Self::Segment => "a callback of on_segment",
            Self::Allocator => "a pool's own allocator",
            Self::Observer => "an observer of memory",
            Self::Logger => "a logger",
            Self::Library => "a function of a program's own handle pool",
        })
    }
}

thread_local! {
    /// The innermost callback that the thread is in.
    static CALLBACK: Cell<Option<CallbackKind>> = const { Cell::new(None) };
    static IN_HAND: Cell<u32> = const { Cell::new(0) };
}

/// Calls others' code.
#[inline]
pub(crate) fn in_callback<R>(kind: CallbackKind, call: impl FnOnce() -> R) -> R {
    /// Restores the callback around it, also after a panic.
    struct Around(Option<CallbackKind>);
    impl Drop for Around {
        fn drop(&mut self) {
            CALLBACK.set(self.0);
        }
    }
    let _around = Around(CALLBACK.replace(Some(kind)));
    call()
}

/// Marks that the thread has something in hand which others wait for, as long as this lives.
#[must_use = "it ends when this is dropped"]
#[derive(Debug)]
pub(crate) struct InHand(PhantomData<*mut ()>);

impl InHand {
    pub(crate) fn begin() -> Self {
        IN_HAND.set(IN_HAND.get() + 1);
        Self(PhantomData)
    }

    /// Marks it for the rest of the thread's life.
    pub(crate) fn for_ever(self) {
        std::mem::forget(self);
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        IN_HAND.set(IN_HAND.get() - 1);
    }
}

/// A place where the calling thread may have to wait for others, with what it would wait for. It has no lock but the one
/// that it waits with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MayWait {
    until: &'static str,
    is_refused: bool,
    is_not_sent: PhantomData<*mut ()>,
}

impl MayWait {
    pub(crate) fn until(until: &'static str) -> Self {
        Self { until, is_refused: IN_HAND.get() > 0, is_not_sent: PhantomData }
    }

    /// The same for a wait for the end of callbacks: a thread that is in one itself may be waited for so.
    pub(crate) fn until_callbacks_end(until: &'static str) -> Self {
        let here = Self::until(until);
        Self { is_refused: here.is_refused || CALLBACK.get().is_some(), ..here }
    }

    /// # Errors
    /// `ErrorKind::InvalidValue` if the thread has something in hand that others wait for.
    pub(crate) fn check(self) -> Result<()> {
        if self.is_refused { Err(self.refused()) } else { Ok(()) }
    }

    /// The same for a wait of at most so long, which ends whatever others do, unless it is longer than any program runs.
    ///
    /// # Errors
    /// As [`MayWait::check`].
    pub(crate) fn check_for(self, timeout: Duration) -> Result<()> {
        if timeout < FOREVER { Ok(()) } else { self.check() }
    }

    #[cold]
    fn refused(self) -> Error {
        let caller = CALLBACK.get().map_or_else(|| "a callback".to_owned(), |kind| kind.to_string());
        Error::invalid_value(format!(
            "{caller} may not wait until {}: the thread that it would wait for may be waiting for the call that called back. Do \
             without that in the callback, or do it once that call has returned",
            self.until
        ))
    }
}

/// Runs what waits without the interpreter, if the calling thread has it.
#[cfg(feature = "python")]
type Detach = fn(&mut dyn FnMut());

#[cfg(feature = "python")]
static DETACH: OnceLock<Detach> = OnceLock::new();

/// Sets how a thread that waits lets others run Python meanwhile.
#[cfg(feature = "python")]
pub(crate) fn set_detach(detach: Detach) {
    let _ = DETACH.set(detach);
}

/// Runs what waits for other threads, which may need the interpreter. It holds no lock before it or after.
pub(super) fn detached(wait: &mut dyn FnMut()) {
    #[cfg(feature = "python")]
    if let Some(detach) = DETACH.get() {
        return detach(wait);
    }
    wait();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn here() -> Result<()> {
        MayWait::until("the sun rises").check()
    }

    #[test]
    fn a_thread_with_something_in_hand_may_not_wait_and_is_told_where() -> Result<()> {
        in_callback(CallbackKind::Oom, here)?;
        let first = InHand::begin();
        let second = InHand::begin();
        drop(second);
        let said = in_callback(CallbackKind::Oom, || {
            in_callback(CallbackKind::Segment, || ());
            here().map_err(|refused| refused.to_string())
        });
        let expected = "a callback of on_oom may not wait until the sun rises";
        assert!(said.as_ref().is_err_and(|said| said.contains(expected)), "{said:?}");
        assert!(here().is_err());
        std::thread::scope(|scope| assert!(matches!(scope.spawn(|| here().is_ok()).join(), Ok(true))));
        drop(first);
        here()
    }

    #[test]
    fn a_callback_may_not_wait_for_the_end_of_callbacks() -> Result<()> {
        let here = || MayWait::until_callbacks_end("they have ended").check();
        here()?;
        assert!(in_callback(CallbackKind::Discard, here).is_err());
        here()
    }
}
