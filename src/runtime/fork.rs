//! The fork handler: tells [`crate::lifecycle`] when this process turns out to be a forked child.

use std::sync::Once;

use crate::lifecycle;

/// Installs the handler, once. Called when a runtime is chosen, so a child forked earlier may use the GPU.
pub(super) fn watch() {
    static INSTALLED: Once = Once::new();
    // SAFETY: the child handler only stores to an atomic, which is allowed between fork and exec.
    INSTALLED.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

extern "C" fn in_child() {
    lifecycle::set_forked();
}
