//! Threads that Python ends during our calls: they park for ever instead.
//!
//! As the interpreter ends, Python before 3.14 ends any other thread that asks for the GIL: by `pthread_exit`, wherever the
//! thread is, also in a callable, a number's `__index__` or a finaliser that our calls, or PyO3's, have run. That unwinds the
//! thread's frames. Rust's drop what they hold, without the GIL, and `catch_unwind` aborts the process.
//!
//! The unwinder asks each frame's personality function what the frame does, and Rust's frames share one. The linker puts
//! ours before it (`build.rs`). So the innermost Rust frame that a forced unwind comes to parks the thread, as Python 3.14
//! does, and every frame stays as it is. Panics unwind as ever, and no call costs more.

use std::ffi::{c_int, c_void};
use std::thread;

/// `_UA_FORCE_UNWIND` of the Itanium C++ ABI: `pthread_exit` or `pthread_cancel` unwinds, not a panic.
const FORCED: c_int = 8;

unsafe extern "C" {
    /// The personality function of Rust's frames, as the standard library has it.
    #[link_name = "__real_rust_eh_personality"]
    fn personality(version: c_int, actions: c_int, class: u64, exception: *mut c_void, context: *mut c_void) -> c_int;
}

/// The personality function that every Rust frame of the Python module names.
#[unsafe(export_name = "__wrap_rust_eh_personality")]
unsafe extern "C" fn park_or_unwind(
    version: c_int,
    actions: c_int,
    class: u64,
    exception: *mut c_void,
    context: *mut c_void,
) -> c_int {
    if actions & FORCED != 0 {
        loop {
            thread::park();
        }
    }
    // SAFETY: the unwinder calls this in the place of that function, and the arguments are passed on as they came.
    unsafe { personality(version, actions, class, exception, context) }
}
