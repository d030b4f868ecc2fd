//! Forks: a child finds every lock as another thread held it at that moment, for ever. So it only passes calls on, if
//! its parent had counted any; one of a server that leaves the GPU to its children counts as any process.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::elf;

static HAS_COUNTED: AtomicBool = AtomicBool::new(false);
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// Called when the library is loaded: at the first call of the driver a fork may already be under way.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = watch;

extern "C" fn watch() {
    extern "C" fn before() {
        elf::keep_out();
    }
    extern "C" fn after() {
        elf::let_in();
    }
    extern "C" fn in_child() {
        elf::let_in();
        IS_FORKED.store(HAS_COUNTED.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    // SAFETY: the handlers change atomics and a lock that the thread holds which forks.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
}

/// Returns whether calls are only to be passed on. From the first time that they are not, those of children are.
pub(crate) fn is_forked() -> bool {
    HAS_COUNTED.store(true, Ordering::Relaxed);
    IS_FORKED.load(Ordering::Relaxed)
}

/// Returns whether this process, not one before a fork, has counted: otherwise nothing is to be asked for.
pub(crate) fn has_counted() -> bool {
    HAS_COUNTED.load(Ordering::Relaxed) && !IS_FORKED.load(Ordering::Relaxed)
}
