//! The holder of a handle: a thread, by its `gettid`, in its window or by a lease.

use std::fmt;

use crate::error::OneLine;
use crate::sync::ThisThread;

/// How a handle is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::handle) enum HoldKind {
    /// By a thread until it ends.
    Window,
    /// By a lease until that ends.
    Lease,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::handle) struct Holder {
    pub(in crate::handle) hold: HoldKind,
    /// The thread that requested it, by its `gettid`.
    pub(in crate::handle) thread: u32,
    /// That thread's name; none once it has ended.
    pub(in crate::handle) name: Option<String>,
}

const WINDOW: u64 = 1 << 32;
const LEASE: u64 = 2 << 32;

impl Holder {
    /// No holder, as bits.
    pub(in crate::handle) const NONE: u64 = 0;

    /// Returns this thread's window, as bits.
    pub(in crate::handle) fn window() -> u64 {
        WINDOW | u64::from(ThisThread::get().system_id())
    }

    /// Returns a lease of this thread's, as bits.
    #[inline]
    pub(in crate::handle) fn lease() -> u64 {
        LEASE | u64::from(ThisThread::get().system_id())
    }

    /// Returns the holder of these bits, without the name.
    pub(in crate::handle) fn from_bits(bits: u64) -> Option<Self> {
        let hold = match bits & !u64::from(u32::MAX) {
            WINDOW => HoldKind::Window,
            LEASE => HoldKind::Lease,
            _ => return None,
        };
        Some(Self { hold, thread: bits as u32, name: None })
    }

    /// Adds the thread's name in the operating system.
    pub(in crate::handle) fn named(mut self) -> Self {
        let name = std::fs::read_to_string(format!("/proc/self/task/{}/comm", self.thread));
        self.name = name.ok().map(|name| name.trim_end().to_owned());
        self
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.hold {
            HoldKind::Window => "thread ",
            HoldKind::Lease => "a lease of thread ",
        })?;
        write!(f, "{}", self.thread)?;
        match &self.name {
            Some(name) => write!(f, " ({})", OneLine(name)),
            None => f.write_str(" (ended)"),
        }
    }
}
