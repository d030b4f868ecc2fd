//! Exceptions: one for each kind of [`Error`], below `gpupool.Error`, some also below Python's own.

use pyo3::exceptions::{PyException, PyMemoryError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::error::{Error, ErrorKind, LibraryError, OutOfMemory, Wanted};
use crate::ids::{Device, MemoryLocation};

struct Exceptions {
    base: Py<PyType>,
    runtime_unavailable: Py<PyType>,
    library_not_found: Py<PyType>,
    library_error: Py<PyType>,
    out_of_memory: Py<PyType>,
    pool_exhausted: Py<PyType>,
    forked: Py<PyType>,
    invalid_value: Py<PyType>,
    asleep: Py<PyType>,
    unavailable: Py<PyType>,
    internal: Py<PyType>,
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

impl Exceptions {
    fn new(py: Python<'_>) -> PyResult<Self> {
        let base = class("Error", docstring!("Error"), vec![py.get_type::<PyException>()])?;
        let derived = |name, doc| Ok::<_, PyErr>(class(name, doc, vec![base.clone()])?.unbind());
        // Python's own first: it has the `__new__` that is found and must be the one of the base that Python goes by, or
        // what carries exceptions between processes cannot make a MemoryError anew.
        let also = |name, doc, other| Ok::<_, PyErr>(class(name, doc, vec![other, base.clone()])?.unbind());
        Ok(Self {
            runtime_unavailable: derived("RuntimeUnavailable", docstring!("RuntimeUnavailable"))?,
            library_not_found: derived("LibraryNotFound", docstring!("LibraryNotFound"))?,
            library_error: derived("LibraryError", docstring!("LibraryError"))?,
            out_of_memory: also("OutOfMemory", docstring!("OutOfMemory"), py.get_type::<PyMemoryError>())?,
            pool_exhausted: also("PoolExhausted", docstring!("PoolExhausted"), py.get_type::<PyTimeoutError>())?,
            forked: derived("Forked", docstring!("Forked"))?,
            invalid_value: also("InvalidValue", docstring!("InvalidValue"), py.get_type::<PyValueError>())?,
            asleep: derived("Asleep", docstring!("Asleep"))?,
            unavailable: derived("Unavailable", docstring!("Unavailable"))?,
            internal: derived("InternalError", docstring!("InternalError"))?,
            base: base.unbind(),
        })
    }
}

pub(super) fn add_exceptions(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let exceptions = EXCEPTIONS.get_or_try_init(py, || Exceptions::new(py))?;
    module.add("Error", &exceptions.base)?;
    module.add("RuntimeUnavailable", &exceptions.runtime_unavailable)?;
    module.add("LibraryNotFound", &exceptions.library_not_found)?;
    module.add("LibraryError", &exceptions.library_error)?;
    module.add("OutOfMemory", &exceptions.out_of_memory)?;
    module.add("PoolExhausted", &exceptions.pool_exhausted)?;
    module.add("Forked", &exceptions.forked)?;
    module.add("InvalidValue", &exceptions.invalid_value)?;
    module.add("Asleep", &exceptions.asleep)?;
    module.add("Unavailable", &exceptions.unavailable)?;
    module.add("InternalError", &exceptions.internal)
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
        Wanted::Memory { bytes, .. } | Wanted::Addresses(bytes) => Some(bytes),
        Wanted::Handle(bytes) => (bytes > 0).then_some(bytes),
    };
    value.setattr("device", ordinal(out.location))?;
    value.setattr("requested_bytes", requested)?;
    value.setattr("free_bytes", out.free)?;
    value.setattr("total_bytes", out.total)
}

fn convert(py: Python<'_>, error: Error) -> PyResult<PyErr> {
    let exceptions = EXCEPTIONS.get_or_try_init(py, || Exceptions::new(py))?;
    let kind = match error.kind() {
        ErrorKind::RuntimeUnavailable { .. } => &exceptions.runtime_unavailable,
        ErrorKind::LibraryNotFound { .. } => &exceptions.library_not_found,
        ErrorKind::Library(_) => &exceptions.library_error,
        ErrorKind::OutOfMemory(_) => &exceptions.out_of_memory,
        ErrorKind::PoolExhausted(_) => &exceptions.pool_exhausted,
        ErrorKind::Forked => &exceptions.forked,
        ErrorKind::InvalidValue(_) => &exceptions.invalid_value,
        ErrorKind::Asleep(_) => &exceptions.asleep,
        ErrorKind::Unavailable(_) => &exceptions.unavailable,
        ErrorKind::InternalError(_) => &exceptions.internal,
    };
    let exception = PyErr::from_type(kind.bind(py).clone(), error.to_string());
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
