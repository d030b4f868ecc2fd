//! The calling thread as the operating system numbers it, for people who look for it in a debugger or in `/proc`.

/// What `gettid` answers.
pub(crate) fn thread_number() -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::gettid() }.cast_unsigned()
}
