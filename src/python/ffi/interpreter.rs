//! The interpreter, as code knows it that may run on any thread, with the GIL or without: whether this thread has it, how it
//! is left to others, and calls that the interpreter makes soon, in its main thread, between two instructions.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use libloading::os::unix::Library;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::python::program::take_left;

type GetThreadState = unsafe extern "C" fn() -> *mut ffi::PyThreadState;

/// Returns what knows this thread's state if it holds the GIL; in Python 3.11 that of the thread that holds it. It is not
/// part of the stable ABI; none where this Python lacks it.
fn thread_state() -> Option<GetThreadState> {
    static FOUND: OnceLock<Option<GetThreadState>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let process = Library::this();
        // SAFETY: the function has had this type in every version that has it: PyThreadState_GetUnchecked since 3.13, its
        // former name since 3.5.
        let found = unsafe {
            process
                .get::<GetThreadState>(c"PyThreadState_GetUnchecked")
                .or_else(|_| process.get::<GetThreadState>(c"_PyThreadState_UncheckedGet"))
        };
        found.ok().map(|found| *found)
    })
}

/// The interpreter, if this thread holds its lock. Otherwise this touches nothing of Python's, and it never waits.
pub(super) fn attached<'py>() -> Option<Python<'py>> {
    let thread_state = thread_state()?;
    // SAFETY: both functions may be called by any thread at any time; the first knows the calling thread's state, if it
    // has one, and the second is that same state only while this thread holds the GIL.
    let is_attached = unsafe {
        let own = ffi::PyGILState_GetThisThreadState();
        !own.is_null() && own == thread_state()
    };
    // SAFETY: the calling thread holds the GIL, and no other thread can make it release it.
    is_attached.then(|| unsafe { Python::assume_attached() })
}

/// Runs this if the calling thread holds the GIL, which is never waited for.
pub(in crate::python) fn if_attached<R>(run: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    attached().map(run)
}

/// What waits for other threads, on this one.
struct OnThisThread<'a>(&'a mut dyn FnMut());

// SAFETY: `Python::detach` runs it on the same thread.
unsafe impl Send for OnThisThread<'_> {}

impl OnThisThread<'_> {
    fn run(&mut self) {
        (self.0)();
    }
}

/// Runs what waits for other threads without the GIL, which those may need: also in the end of an object of Python's, and
/// in a call of a C extension, neither of which gives it up.
pub(in crate::python) fn wait_detached(wait: &mut dyn FnMut()) {
    let mut waiting = OnThisThread(wait);
    if if_attached(|py| py.detach(|| waiting.run())).is_none() {
        waiting.run();
    }
}

/// Has the main thread raise the exceptions that are left to it.
pub(in crate::python) fn raise_soon() {
    // SAFETY: any thread may call this without the GIL, and the function is there as long as the process.
    let _ = unsafe { ffi::Py_AddPendingCall(Some(raise_left), ptr::null_mut()) };
}

/// Called by the interpreter, with the GIL, one exception at a time.
extern "C" fn raise_left(_: *mut c_void) -> c_int {
    let Some(exception) = take_left() else { return 0 };
    raise_soon();
    match Python::try_attach(|py| exception.restore(py)) {
        Some(()) => -1,
        None => 0,
    }
}
