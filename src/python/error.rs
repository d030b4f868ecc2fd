//! Exceptions: one for each kind of [`Error`], below `gpupool.Error`, some also below Python's own; and what the program's code
//! raises that gpupool runs, or a signal's handler meanwhile.

use std::cell::Cell;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Mutex;

use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyException, PyMemoryError, PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::error::{Cause, Error, ErrorKind, LibraryError, OutOfMemory, Result, Wanted};
use crate::ids::MemoryLocation;
use crate::python::ffi::interpreter::raise_soon;
use crate::sync::{Interruption, lock};

/// Declares the classes below `gpupool.Error`, each with the kind of errors that it is for. Some are also below one of Python's.
macro_rules! exceptions {
    ($($field:ident $name:literal $(also $other:ty)?: $kind:pat,)*) => {
        struct Exceptions {
            base: Py<PyType>,
            $($field: Py<PyType>,)*
        }

        impl Exceptions {
            fn new(py: Python<'_>) -> PyResult<Self> {
                let base = class("Error", docstring!("Error"), vec![py.get_type::<PyException>()])?;
                // Python's own first: `__new__` must be that of the base by which Python lays objects out, or code that
                // carries exceptions between processes cannot make a MemoryError again.
                Ok(Self {
                    $($field: class($name, docstring!($name), vec![$(py.get_type::<$other>(),)? base.clone()])?.unbind(),)*
                    base: base.unbind(),
                })
            }

            fn add_to(&self, module: &Bound<'_, PyModule>) -> PyResult<()> {
                module.add("Error", &self.base)?;
                $(module.add($name, &self.$field)?;)*
                Ok(())
            }

            fn class_of(&self, kind: &ErrorKind) -> &Py<PyType> {
                match kind {
                    $($kind => &self.$field,)*
                }
            }
        }
    };
}

exceptions! {
    runtime_unavailable "RuntimeUnavailable": ErrorKind::RuntimeUnavailable { .. },
    library_not_found "LibraryNotFound": ErrorKind::LibraryNotFound { .. },
    library_error "LibraryError": ErrorKind::Library(_),
    out_of_memory "OutOfMemory" also PyMemoryError: ErrorKind::OutOfMemory(_),
    pool_exhausted "PoolExhausted" also PyTimeoutError: ErrorKind::PoolExhausted(_),
    forked "Forked": ErrorKind::Forked,
    invalid_value "InvalidValue" also PyValueError: ErrorKind::InvalidValue(_),
    asleep "Asleep": ErrorKind::Asleep(_),
    unavailable "Unavailable": ErrorKind::Unavailable(_),
    // What interrupted a call is raised in its place.
    internal "InternalError": ErrorKind::InternalError(_) | ErrorKind::Interrupted { .. },
}

static EXCEPTIONS: PyOnceLock<Exceptions> = PyOnceLock::new();

/// A class `gpupool.<name>` with these bases.
fn class<'py>(name: &str, doc: &str, bases: Vec<Bound<'py, PyType>>) -> PyResult<Bound<'py, PyType>> {
    let Some(py) = bases.first().map(Bound::py) else { return Err(PyValueError::new_err("a class needs a base")) };
    let namespace = PyDict::new(py);
    namespace.set_item("__module__", "gpupool")?;
    namespace.set_item("__doc__", doc)?;
    Ok(py.get_type::<PyType>().call1((name, PyTuple::new(py, bases)?, namespace))?.cast_into()?)
}

pub(crate) fn add_exceptions(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    EXCEPTIONS.get_or_try_init(py, || Exceptions::new(py))?.add_to(module)
}

/// Runs Python code that may be called while an exception is raised, which is set aside meanwhile: under it none can run.
pub(crate) fn with_exception_set_aside<R>(py: Python<'_>, run: impl FnOnce() -> R) -> R {
    let raised = PyErr::take(py);
    let result = run();
    if let Some(raised) = raised {
        raised.restore(py);
    }
    result
}

fn set_attributes(exception: &Bound<'_, PyAny>, refused: &LibraryError) -> PyResult<()> {
    exception.setattr("library", &refused.library)?;
    exception.setattr("function", &refused.function)?;
    exception.setattr("status", &refused.status)?;
    exception.setattr("code", refused.code)?;
    exception.setattr("device", refused.location.and_then(MemoryLocation::device))?;
    exception.setattr("path", refused.path.as_ref().map(|path| path.to_string_lossy().into_owned()))
}

fn set_amounts(exception: &Bound<'_, PyAny>, out: &OutOfMemory) -> PyResult<()> {
    let requested = match out.wanted {
        Wanted::Memory { bytes, .. } | Wanted::Claim(bytes) | Wanted::Addresses(bytes) => Some(bytes),
        Wanted::Handle(bytes) => (bytes > 0).then_some(bytes),
    };
    exception.setattr("device", out.location.device())?;
    exception.setattr("requested_bytes", requested)?;
    exception.setattr("free_bytes", out.free)?;
    exception.setattr("total_bytes", out.total)
}

fn convert(py: Python<'_>, error: Error) -> PyResult<PyErr> {
    let exceptions = EXCEPTIONS.get_or_try_init(py, || Exceptions::new(py))?;
    // Made here: PyO3 makes one later without the GIL, for which it panics as the interpreter ends.
    let exception = exceptions.class_of(error.kind()).bind(py).call1((error.to_string(),))?;
    let mut cause = None;
    match error.into_kind() {
        ErrorKind::Library(refused) => {
            set_attributes(&exception, &refused)?;
            cause = refused.cause;
        }
        ErrorKind::OutOfMemory(out) => {
            set_attributes(&exception, &out.refused)?;
            set_amounts(&exception, &out)?;
            cause = out.refused.cause;
        }
        ErrorKind::Interrupted { cause, refused } => {
            let Some(raised) = Raised::take(cause) else { return Ok(PyErr::from_value(exception)) };
            // As where the code had run in an except clause of the refusal.
            if let Some(refused) = refused
                && raised.context(py).is_none()
            {
                raised.set_context(py, Some(convert(py, refused)?));
            }
            return Ok(raised);
        }
        ErrorKind::PoolExhausted(exhausted) => {
            exception.setattr("library", exhausted.library)?;
            exception.setattr("device", exhausted.device)?;
            exception.setattr("limit", exhausted.limit)?;
            exception.setattr("holders", exhausted.holders)?;
        }
        ErrorKind::LibraryNotFound { library, tried, remedy, is_present } => {
            exception.setattr("library", library)?;
            exception.setattr("tried", tried)?;
            exception.setattr("remedy", remedy)?;
            exception.setattr("is_present", is_present)?;
        }
        _ => (),
    }
    let exception = PyErr::from_value(exception);
    if let Some(raised) = cause.and_then(Raised::take) {
        exception.set_cause(py, Some(raised));
    }
    Ok(exception)
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let mut error = Some(error);
        let converted = Python::try_attach(|py| Some(convert(py, error.take()?).unwrap_or_else(|failed| failed)));
        // As the interpreter ends, no class of gpupool's is at hand.
        converted.flatten().unwrap_or_else(|| PyRuntimeError::new_err(error.map(|error| error.to_string())))
    }
}

// What the program's own Python code raises that gpupool runs: callbacks, a pool's own allocator, a library's functions.
//
// KeyboardInterrupt, SystemExit and whatever else is no `Exception` are for the program, whatever the code was run for. They are
// raised by the call that ran it; where it can raise nothing, as a framework's or one that frees, by the main thread as soon
// as that runs Python again.

/// What code of the program raised, as the cause of an error of gpupool's.
#[derive(Debug)]
struct Raised {
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
    pub(crate) fn take(cause: Cause) -> Option<PyErr> {
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
pub(crate) fn interrupted(py: Python<'_>, raised: PyErr) -> Error {
    Error::interrupted(Raised::cause(py, raised))
}

/// Calls code of the program's for a call that fails if that raises, as `refused` says of a status and the cause.
pub(crate) fn call_asked<R>(
    call: impl FnOnce(Python<'_>) -> PyResult<R>,
    refused: impl Fn(&str, Option<Cause>) -> Error,
) -> Result<R> {
    let called = Python::try_attach(|py| {
        call(py).map_err(|raised| {
            if !raised.is_instance_of::<PyException>(py) {
                return interrupted(py, raised);
            }
            let name = raised.get_type(py).name().map(|name| name.to_string()).unwrap_or_default();
            refused(&name, Some(Raised::cause(py, raised)))
        })
    });
    called.unwrap_or_else(|| Err(refused("the interpreter is shutting down", None)))
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
pub(crate) fn take_left() -> Option<PyErr> {
    let mut left = lock(&LEFT);
    (UNASKED.get() == 0 && !left.is_empty()).then(|| left.remove(0))
}

/// Calls code of the program's on behalf of a call that did not ask for it, and so raises nothing of it: what is not for the
/// program is passed to `log` and goes to `sys.unraisablehook`.
pub(crate) fn call_unasked<'py, A: PyCallArgs<'py>>(
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

// Waits without the GIL that end when a signal's handler raises an exception, as for Ctrl-C.
//
// Python runs the handlers of signals on its main thread alone, and there only when asked to. So a wait on that thread asks
// from time to time, and a wait on any other goes on.

/// Returns whether the calling thread is the one on which handlers of signals run.
fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import(intern!(py, "threading"))?;
    let main = threading.call_method0(intern!(py, "main_thread"))?.getattr(intern!(py, "ident"))?;
    main.eq(threading.call_method0(intern!(py, "get_ident"))?)
}

/// Runs without the GIL what may wait, and raises what a signal's handler raises meanwhile.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    run: impl FnOnce(Interruption<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    // Not once the interpreter has ended the modules that tell: no signal's handler is called any more.
    if !is_main_thread(py).unwrap_or(false) {
        return Ok(py.detach(|| run(Interruption::default()))?);
    }
    asking(py, |py, ()| py.check_signals(), |may_go_on| run(Interruption::when(&mut || !may_go_on(()))))
}

/// Runs without the GIL what asks from time to time whether it may go on, and raises what `ask` raises, which ends it.
pub(crate) fn asking<A, T: Send>(
    py: Python<'_>,
    mut ask: impl FnMut(Python<'_>, A) -> PyResult<()> + Send,
    run: impl FnOnce(&mut (dyn FnMut(A) -> bool + Send)) -> Result<T> + Send,
) -> PyResult<T> {
    let mut raised = None;
    let outcome = py.detach(|| {
        run(&mut |about| {
            // None once there is no interpreter any more.
            let asked = Python::try_attach(|py| ask(py, about));
            asked.is_some_and(|asked| asked.map_err(|error| raised = Some(error)).is_ok())
        })
    });
    raised.map_or_else(|| Ok(outcome?), Err)
}
