//! Exceptions: one for each kind of [`Error`], below `gpupool.Error`, some also below Python's own.

use pyo3::exceptions::{PyException, PyMemoryError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

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
    internal "InternalError": ErrorKind::InternalError(_),
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

fn set_attributes(exception: &PyErr, py: Python<'_>, refused: &LibraryError) -> PyResult<()> {
    let value = exception.value(py);
    value.setattr("library", &refused.library)?;
    value.setattr("function", &refused.function)?;
    value.setattr("status", &refused.status)?;
    value.setattr("code", refused.code)?;
    value.setattr("device", refused.location.and_then(ordinal))?;
    value.setattr("path", refused.path.as_ref().map(|path| path.to_string_lossy().into_owned()))
}

fn set_amounts(exception: &PyErr, py: Python<'_>, out: &OutOfMemory) -> PyResult<()> {
    let value = exception.value(py);
    let requested = match out.wanted {
        Wanted::Memory { bytes, .. } | Wanted::Claim(bytes) | Wanted::Addresses(bytes) => Some(bytes),
        Wanted::Handle(bytes) => (bytes > 0).then_some(bytes),
    };
    value.setattr("device", ordinal(out.location))?;
    value.setattr("requested_bytes", requested)?;
    value.setattr("free_bytes", out.free)?;
    value.setattr("total_bytes", out.total)
}

fn convert(py: Python<'_>, error: Error) -> PyResult<PyErr> {
    let exceptions = EXCEPTIONS.get_or_try_init(py, || Exceptions::new(py))?;
    let exception = PyErr::from_type(exceptions.class_of(error.kind()).bind(py).clone(), error.to_string());
    let refused = match error.kind() {
        ErrorKind::Library(refused) => refused,
        ErrorKind::OutOfMemory(out) => &out.refused,
        ErrorKind::PoolExhausted(exhausted) => {
            let value = exception.value(py);
            value.setattr("library", &exhausted.library)?;
            value.setattr("device", exhausted.device.ordinal())?;
            value.setattr("limit", exhausted.limit)?;
            value.setattr("holders", exhausted.holders.clone())?;
            return Ok(exception);
        }
        ErrorKind::LibraryNotFound { library, tried, remedy, is_present } => {
            let value = exception.value(py);
            value.setattr("library", library)?;
            value.setattr("tried", tried.clone())?;
            value.setattr("remedy", remedy)?;
            value.setattr("is_present", is_present)?;
            return Ok(exception);
        }
        _ => return Ok(exception),
    };
    set_attributes(&exception, py, refused)?;
    if let ErrorKind::OutOfMemory(out) = error.kind() {
        set_amounts(&exception, py, out)?;
    }
    if let Some(raised) = refused.cause.as_ref().and_then(|cause| cause.downcast_ref::<PyErr>()) {
        // KeyboardInterrupt and SystemExit pass as they are: they are no failure of the callback.
        if !raised.is_instance_of::<PyException>(py) {
            return Ok(raised.clone_ref(py));
        }
        exception.set_cause(py, Some(raised.clone_ref(py)));
    }
    Ok(exception)
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        Python::attach(|py| convert(py, error).unwrap_or_else(|failed| failed))
    }
}
