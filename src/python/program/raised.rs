//! What the program's own Python code raises that gpupool runs: callbacks, a pool's own allocator, a library's functions.
//!
//! KeyboardInterrupt, SystemExit and whatever else is no `Exception` are for the program, whatever the code was run for. They are
//! raised by the call that ran it; where it can raise nothing, as a framework's or one that frees, by the main thread as soon
//! as that runs Python again.

use std::cell::Cell;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Mutex;

use pyo3::call::PyCallArgs;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::error::{Cause, Error};
use crate::python::error::with_exception_set_aside;
use crate::python::ffi::raise_soon;
use crate::python::waiting::is_main_thread;
use crate::sync::lock;

/// What code of the program raised, as the cause of an error of gpupool's.
#[derive(Debug)]
pub(in crate::python) struct Raised {
    /// None once a call raises it.
    exception: Option<PyErr>,
    is_for_program: bool,
}

/// Whether an exception is for the program, and can be raised by the main thread.
fn is_for_program(py: Python<'_>, raised: &PyErr) -> bool {
    !raised.is_instance_of::<PyException>(py) && is_main_thread(py).unwrap_or(false)
}

impl Raised {
    fn cause(py: Python<'_>, raised: PyErr) -> Cause {
        Box::new(Self { is_for_program: is_for_program(py, &raised), exception: Some(raised) })
    }

    /// Returns the exception of a cause, for the caller to raise; none if it is no exception.
    pub(in crate::python) fn take(cause: Cause) -> Option<PyErr> {
        cause.downcast::<Self>().ok()?.exception.take()
    }
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = Python::try_attach(|_| self.exception.as_ref().map(ToString::to_string));
        f.write_str(&text.flatten().unwrap_or_default())
    }
}

impl StdError for Raised {}

impl Drop for Raised {
    fn drop(&mut self) {
        if let Some(exception) = self.exception.take()
            && self.is_for_program
        {
            leave_to_main_thread(exception);
        }
    }
}

/// Returns the error of a call that what its code raised ends.
pub(in crate::python) fn interrupted(py: Python<'_>, raised: PyErr) -> Error {
    Error::interrupted(Raised::cause(py, raised))
}

/// As [`interrupted`] for what is no `Exception`, else the error that `refused` makes of the cause.
pub(in crate::python) fn interrupted_or(py: Python<'_>, raised: PyErr, refused: impl FnOnce(Cause) -> Error) -> Error {
    if raised.is_instance_of::<PyException>(py) { refused(Raised::cause(py, raised)) } else { interrupted(py, raised) }
}

/// Exceptions that no call could raise, for the main thread.
static LEFT: Mutex<Vec<PyErr>> = Mutex::new(Vec::new());

thread_local! {
    /// How many calls of [`call_unasked`] this thread is in, of which none is to end by what another one raised.
    static UNASKED: Cell<usize> = const { Cell::new(0) };
}

fn leave_to_main_thread(exception: PyErr) {
    lock(&LEFT).push(exception);
    raise_soon();
}

/// Takes the next exception that the main thread, which this is, is to raise now.
pub(in crate::python) fn take_left() -> Option<PyErr> {
    let mut left = lock(&LEFT);
    (UNASKED.get() == 0 && !left.is_empty()).then(|| left.remove(0))
}

/// Calls code of the program's on behalf of a call that did not ask for it, and so raises nothing of it: what is not for the
/// program is passed to `log` and goes to `sys.unraisablehook`.
pub(in crate::python) fn call_unasked<'py, A: PyCallArgs<'py>>(
    callable: &Bound<'py, PyAny>,
    arguments: A,
    log: impl FnOnce(&PyErr),
) {
    let py = callable.py();
    UNASKED.set(UNASKED.get() + 1);
    let outcome = with_exception_set_aside(py, || callable.call1(arguments));
    UNASKED.set(UNASKED.get() - 1);
    match outcome {
        Ok(_) => (),
        Err(raised) if is_for_program(py, &raised) => lock(&LEFT).push(raised),
        Err(raised) => {
            log(&raised);
            raised.write_unraisable(py, Some(callable));
        }
    }
    if UNASKED.get() == 0 && !lock(&LEFT).is_empty() {
        raise_soon();
    }
}
