//! The interpreter, as code knows it that may run on any thread, with the GIL or without: whether this thread has it, how it
//! is left to others, and calls that the interpreter makes soon, in its main thread, between two instructions.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;
use std::{ptr, thread};

use libloading::os::unix::Library;
use pyo3::prelude::*;
use pyo3::{ffi, intern};

use crate::python::error::take_left;

/// Returns a function of Python's that the stable ABI of Python 3.11 lacks; none where this Python has none of the name.
///
/// # Safety
/// The function has this type in every version that has it.
pub(super) unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    // SAFETY: the caller promises the type, and Python is never unloaded.
    unsafe { Library::this().get::<F>(name) }.ok().map(|found| *found)
}

type GetThreadState = unsafe extern "C" fn() -> *mut ffi::PyThreadState;

/// Returns what knows this thread's state if it holds the GIL; in Python 3.11 that of the thread that holds it.
fn thread_state() -> Option<GetThreadState> {
    static FOUND: OnceLock<Option<GetThreadState>> = OnceLock::new();
    // SAFETY: PyThreadState_GetUnchecked has had this type since 3.13, its former name since 3.5.
    *FOUND.get_or_init(|| unsafe {
        function(c"PyThreadState_GetUnchecked").or_else(|| function(c"_PyThreadState_UncheckedGet"))
    })
}

/// The interpreter, if this thread holds its lock. Otherwise this touches nothing of Python's, and it never waits.
pub(crate) fn attached<'py>() -> Option<Python<'py>> {
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
pub(crate) fn if_attached<R>(run: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    attached().map(run)
}

/// Returns the identity of the function that made this call, as long as it has not ended, if it is a generator or a coroutine:
/// one that another thread or task may go on with.
pub(crate) fn calling_generator(py: Python<'_>) -> Option<usize> {
    /// `CO_GENERATOR`, `CO_COROUTINE` and `CO_ASYNC_GENERATOR` of `inspect`.
    const KINDS: u32 = 0x20 | 0x80 | 0x200;
    // SAFETY: the thread holds the GIL, and the innermost frame runs; a frame has its code object as long as it lives.
    let (frame, code) = unsafe {
        let frame = ffi::PyEval_GetFrame();
        if frame.is_null() {
            return None;
        }
        (frame.addr(), Bound::from_owned_ptr(py, ffi::PyFrame_GetCode(frame).cast()))
    };
    let flags: u32 = code.getattr(intern!(py, "co_flags")).ok()?.extract().ok()?;
    (flags & KINDS != 0).then_some(frame)
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
pub(crate) fn wait_detached(wait: &mut dyn FnMut()) {
    let mut waiting = OnThisThread(wait);
    if if_attached(|py| py.detach(|| waiting.run())).is_none() {
        waiting.run();
    }
}

/// Has the main thread raise the exceptions that are left to it.
pub(crate) fn raise_soon() {
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

// Objects that all threads use and that live as long as the process: their references are not counted.
//
// Without a GIL threads that call one function, or make objects of one class, would wait for each other to count their
// references to it. Python calls such objects immortal (https://peps.python.org/pep-0683/). Modules can make them from 3.15
// on, by `PyUnstable_SetImmortal`; before that, this does what Python does for its own.

/// Ends the counting of references to an object, which then lives as long as the process.
#[cfg(Py_GIL_DISABLED)]
pub(crate) fn make_immortal(object: &Bound<'_, PyAny>) {
    use std::sync::atomic::Ordering;
    /// `_Py_IMMORTAL_REFCNT_LOCAL`.
    const IMMORTAL: u32 = u32::MAX;
    let object = object.as_ptr();
    // SAFETY: the object is alive, and no other thread knows it yet, as its module is just made. Its fields are those of the
    // Python that this is built for: without a GIL no module fits several.
    unsafe {
        if (*object).ob_ref_local.load(Ordering::Relaxed) == IMMORTAL {
            return;
        }
        if ffi::PyObject_GC_IsTracked(object) != 0 {
            ffi::PyObject_GC_UnTrack(object.cast());
        }
        (*object).ob_tid = 0;
        (*object).ob_ref_local.store(IMMORTAL, Ordering::Relaxed);
        (*object).ob_ref_shared.store(0, Ordering::Relaxed);
    }
}

// Threads that Python ends during our calls: they park for ever instead.
//
// As the interpreter ends, Python before 3.14 ends any other thread that asks for the GIL: by `pthread_exit`, wherever the
// thread is, also in a callable, a number's `__index__` or a finaliser that our calls, or PyO3's, have run. That unwinds the
// thread's frames. Rust's drop what they hold, without the GIL, and `catch_unwind` aborts the process.
//
// The unwinder asks each frame's personality function what the frame does, and Rust's frames share one. The linker puts
// ours before it (`build.rs`). So the innermost Rust frame that a forced unwind comes to parks the thread, as Python 3.14
// does, and every frame stays as it is. Panics unwind as ever, and no call costs more.

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
