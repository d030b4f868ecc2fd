//! Who has a handle: one word of it, which also its holder's name in errors is made of.

use std::fmt;

use crate::error::OneLine;
use crate::sync::{AtomicU64, Ordering, ThisThread};

/// How a handle is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HoldKind {
    /// By a thread until it ends.
    Window = 1,
    /// By a lease until that ends.
    Lease = 2,
}

/// The holder of a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Holder {
    pub(super) hold: HoldKind,
    /// The thread that requested it, by its `gettid`.
    thread: u32,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.hold {
            HoldKind::Window => "thread ",
            HoldKind::Lease => "a lease of thread ",
        })?;
        match std::fs::read_to_string(format!("/proc/self/task/{}/comm", self.thread)) {
            Ok(name) => write!(f, "{} ({})", self.thread, OneLine(name.trim_end())),
            Err(_) => write!(f, "{} (ended)", self.thread),
        }
    }
}

/// Nobody has it.
const IDLE: u64 = 0;
/// The same, and it was given back since a request last looked for one of an inactive thread: its thread probably takes it
/// again.
const IDLE_ACTIVE: u64 = 1;
/// A request has it, or who removed it. Above these values are the holders: the thread's number, and from bit 32 on how.
const TAKEN: u64 = 2;

/// Who has a handle. Whoever has it writes it, and others only take it while it is idle.
#[derive(Debug)]
pub(super) struct HandleState {
    word: AtomicU64,
}

impl HandleState {
    /// That of a new handle, which its maker has.
    pub(super) fn new() -> Self {
        Self { word: AtomicU64::new(TAKEN) }
    }

    /// Takes the handle if it is idle, and returns whether it was.
    #[inline]
    pub(super) fn take(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        word <= IDLE_ACTIVE && self.exchange(word, TAKEN)
    }

    /// Takes the handle if it is idle and its thread was not active since the last call.
    pub(super) fn take_unless_active(&self) -> bool {
        !self.exchange(IDLE_ACTIVE, IDLE) && self.exchange(IDLE, TAKEN)
    }

    #[inline]
    fn exchange(&self, current: u64, next: u64) -> bool {
        // Acquires what the former holder released.
        self.word.compare_exchange(current, next, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Makes the handle idle.
    pub(super) fn release(&self) {
        self.word.store(IDLE, Ordering::Release);
    }

    /// The same, by a thread that probably takes it again.
    #[inline]
    pub(super) fn release_active(&self) {
        self.word.store(IDLE_ACTIVE, Ordering::Release);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.word.load(Ordering::Relaxed) <= IDLE_ACTIVE
    }

    /// Notes that the calling thread holds the handle, which it has taken.
    #[inline]
    pub(super) fn hold(&self, hold: HoldKind) {
        let thread = u64::from(ThisThread::get().system_id());
        self.word.store((hold as u64) << 32 | thread, Ordering::Relaxed);
    }

    /// Returns the handle's holder; none while it is idle, or a request makes it ready.
    pub(super) fn holder(&self) -> Option<Holder> {
        let word = self.word.load(Ordering::Relaxed);
        let hold = if word >> 32 == HoldKind::Lease as u64 { HoldKind::Lease } else { HoldKind::Window };
        (word > TAKEN).then_some(Holder { hold, thread: word as u32 })
    }
}
