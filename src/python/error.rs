//! Exceptions: one for each kind of [`Error`], below `gpupool.Error`, some also below Python's own.

use pyo3::exceptions::{PyException, PyMemoryError, PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

use super::program::Raised;
use crate::error::{Error, ErrorKind, LibraryError, OutOfMemory, Wanted};
use crate::ids::{Device, MemoryLocation};

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

pub(super) fn add_exceptions(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    EXCEPTIONS.get_or_try_init(py, || Exceptions::new(py))?.add_to(module)
}

/// Runs Python code that may be called while an exception is raised, which is set aside meanwhile: under it none can run.
pub(super) fn with_exception_set_aside<R>(py: Python<'_>, run: impl FnOnce() -> R) -> R {
    let raised = PyErr::take(py);
    let result = run();
    if let Some(raised) = raised {
        raised.restore(py);
    }
    result
}

/// The number of a device; none for the host's memory.
fn ordinal(location: MemoryLocation) -> Option<usize> {
    location.device().map(Device::ordinal)
}

fn set_attributes(exception: &Bound<'_, PyAny>, refused: &LibraryError) -> PyResult<()> {
    exception.setattr("library", &refused.library)?;
    exception.setattr("function", &refused.function)?;
    exception.setattr("status", &refused.status)?;
    exception.setattr("code", refused.code)?;
    exception.setattr("device", refused.location.and_then(ordinal))?;
    exception.setattr("path", refused.path.as_ref().map(|path| path.to_string_lossy().into_owned()))
}

fn set_amounts(exception: &Bound<'_, PyAny>, out: &OutOfMemory) -> PyResult<()> {
    let requested = match out.wanted {
        Wanted::Memory { bytes, .. } | Wanted::Claim(bytes) | Wanted::Addresses(bytes) => Some(bytes),
        Wanted::Handle(bytes) => (bytes > 0).then_some(bytes),
    };
    exception.setattr("device", ordinal(out.location))?;
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
            exception.setattr("device", exhausted.device.ordinal())?;
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
