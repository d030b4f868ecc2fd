//! Memory of the host for this library's own lists, which is the system's: what gives the program its own may call the driver,
//! and have a lock meanwhile for which a thread would wait that has those of the lists. In the child of a fork of a process
//! that has counted there is none, as another thread may have been in the middle of a change.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlmalloc::Dlmalloc;

struct Own(Mutex<Dlmalloc>);

#[global_allocator]
static OWN: Own = Own(Mutex::new(Dlmalloc::new()));

impl Own {
    fn lock(&self) -> MutexGuard<'_, Dlmalloc> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether nobody is in the middle of a change.
pub(crate) fn is_free() -> bool {
    OWN.0.try_lock().is_ok()
}

// SAFETY: each is the allocator's own, with the same arguments.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for the trait.
        unsafe { self.lock().malloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as for the trait.
        unsafe { self.lock().free(block, layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as for the trait.
        unsafe { self.lock().realloc(block, layout.size(), layout.align(), size) }
    }
}
