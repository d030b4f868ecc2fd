//! The calling thread as the operating system numbers it, for people who look for it in a debugger or in `/proc`.

use std::cell::Cell;

thread_local! {
    static NUMBER: Cell<u32> = const { Cell::new(0) };
}

/// What `gettid` answers, asked once.
#[inline]
pub(crate) fn thread_number() -> u32 {
    match NUMBER.get() {
        0 => ask(),
        known => known,
    }
}

#[cold]
fn ask() -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    let number = unsafe { libc::gettid() }.cast_unsigned();
    NUMBER.set(number);
    number
}
