//! Forks: a child finds every lock as another thread held it at that moment, for ever. So it only passes calls on, if
//! its parent had counted any; one of a server that leaves the GPU to its children counts as any process.

use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::elf;

static HAS_COUNTED: AtomicBool = AtomicBool::new(false);
static IS_FORKED: AtomicBool = AtomicBool::new(false);
/// The process that forks just now; 0 for none.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// Called when the library is loaded: at the first call of the driver a fork may already be under way.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = watch;

extern "C" fn watch() {
    extern "C" fn before() {
        elf::keep_out();
        FORKING.store(process::id(), Ordering::Relaxed);
    }
    extern "C" fn after() {
        FORKING.store(0, Ordering::Relaxed);
        elf::let_in();
    }
    extern "C" fn in_child() {
        begin_child();
        elf::let_in();
    }
    // SAFETY: the handlers change atomics and a lock that the thread holds which forks.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
}

/// Begins the child of a fork, once.
fn begin_child() {
    if FORKING.swap(0, Ordering::Relaxed) != 0 {
        IS_FORKED.store(HAS_COUNTED.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Begins it before the library's own handler does, if that of another, which was loaded before, calls the driver there.
fn begin_early() {
    let forking = FORKING.load(Ordering::Relaxed);
    if forking != 0 && forking != process::id() {
        begin_child();
    }
}

/// Returns whether calls are only to be passed on. From the first time that they are not, those of children are.
pub(crate) fn is_forked() -> bool {
    begin_early();
    HAS_COUNTED.store(true, Ordering::Relaxed);
    IS_FORKED.load(Ordering::Relaxed)
}

/// Returns whether this process, not one before a fork, has counted: otherwise nothing is to be asked for.
pub(crate) fn has_counted() -> bool {
    begin_early();
    HAS_COUNTED.load(Ordering::Relaxed) && !IS_FORKED.load(Ordering::Relaxed)
}
