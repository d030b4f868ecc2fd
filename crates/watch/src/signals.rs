//! The signals that a thread has blocked, by the system's own call: the C library's function would be another's that stands
//! in for it, as thread sanitizers do.

use std::ffi::c_int;

/// Signals that are blocked until this is dropped, on the same thread.
pub(crate) struct Blocked {
    /// Those that the thread had blocked.
    before: u64,
}

impl Blocked {
    /// Blocks all signals, but for those that a fault raises, or a system call that is filtered: blocked, these would end the
    /// process.
    pub(crate) fn all() -> Self {
        const FAULTS: [c_int; 6] =
            [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
        Self { before: change(libc::SIG_BLOCK, FAULTS.iter().fold(u64::MAX, |all, &fault| all & !bit(fault))) }
    }

    /// Blocks one signal.
    pub(crate) fn only(signal: c_int) -> Self {
        Self { before: change(libc::SIG_BLOCK, bit(signal)) }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        change(libc::SIG_SETMASK, self.before);
    }
}

fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Returns the signals that were blocked.
fn change(how: c_int, signals: u64) -> u64 {
    let mut before: u64 = 0;
    // SAFETY: the system reads the first and writes the second.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const signals, &raw mut before, size_of::<u64>());
    }
    before
}
