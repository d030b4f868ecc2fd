//! A user's own allocator for a pool: two functions, Python callables or addresses of C functions, or an allocator
//! object of PyTorch's.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt};

use crate::error::{Error, OWN_ALLOCATOR, Result, StatusKind};
use crate::memory::{SegmentSource, TorchAllocator};
use crate::python::error::with_exception_set_aside;
use crate::python::ffi::{Keeping, PythonAddress, PythonSource, Trusted, torch_allocator};
use crate::runtime::Stream;

/// The source that an `allocator` argument names.
pub(super) fn source(allocator: &Bound<'_, PyAny>) -> PyResult<Arc<dyn SegmentSource>> {
    let wrong = || {
        Error::invalid_value(
            "allocator must be a pair (malloc, free): callables malloc(size, device, stream) -> address and \
             free(address, size, device, stream), or the addresses of C functions of these forms; or a \
             CUDAPluggableAllocator of PyTorch",
        )
    };
    if allocator.is_exact_instance_of::<PyInt>() || allocator.is_exact_instance_of::<PyFloat>() {
        return Err(Error::invalid_value(format!(
            "MemPool's first argument is its allocator, and {allocator} is a number: was limit={allocator} meant, the most \
             bytes of the pool, or reserve={allocator}?"
        ))
        .into());
    }
    let Ok((allocate, free)) = allocator.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>() else {
        return Ok(Arc::new(torch_source(allocator)?.ok_or_else(wrong)?));
    };
    if allocate.is_exact_instance_of::<PyInt>() && free.is_exact_instance_of::<PyInt>() {
        let address = |function: &Bound<'_, PyAny>| function.extract::<PythonAddress>().map_err(|_| wrong());
        return Ok(Arc::new(PythonAddress::segment_functions(address(&allocate)?, address(&free)?)?));
    }
    if allocate.is_callable() && free.is_callable() {
        let callables = Callables { allocate: allocate.unbind(), free: free.unbind() };
        return Ok(Arc::new(Trusted(callables)));
    }
    Err(wrong().into())
}

/// Returns a source of an allocator of PyTorch's; none if the object is nothing of PyTorch's.
fn torch_source(object: &Bound<'_, PyAny>) -> PyResult<Option<Keeping<TorchAllocator>>> {
    let py = object.py();
    let module = py.import(intern!(py, "gpupool._frameworks.torch_allocator"))?;
    let found: Option<[usize; 3]> = module.call_method1(intern!(py, "addresses"), (object,))?.extract()?;
    found.map(|addresses| Ok(Keeping::new(torch_allocator(addresses)?, object.clone().unbind()))).transpose()
}

#[derive(Debug)]
struct Callables {
    allocate: Py<PyAny>,
    free: Py<PyAny>,
}

fn refused(function: &str, status: String, cause: Option<PyErr>) -> Error {
    Error::refused(OWN_ALLOCATOR, function, status, -1, StatusKind::OutOfMemory)
        .map_library(|refused| refused.cause = cause.map(|raised| Box::new(raised) as _))
}

fn call<R>(function: &str, call: impl FnOnce(Python<'_>) -> PyResult<R>) -> Result<R> {
    match Python::try_attach(call) {
        Some(result) => result.map_err(|raised| refused(function, "an exception".to_owned(), Some(raised))),
        None => Err(refused(function, "the interpreter is shutting down".to_owned(), None)),
    }
}

impl PythonSource for Callables {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        let arguments = (bytes, stream.device().ordinal(), stream.raw().address());
        match call("malloc", |py| self.allocate.call1(py, arguments)?.extract(py))? {
            0 => Err(refused("malloc", "a null pointer".to_owned(), None)),
            address => Ok(address),
        }
    }

    fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()> {
        let arguments = (address, bytes, stream.device().ordinal(), stream.raw().address());
        call("free", |py| {
            // No Python code asked for this free, so there is none to raise it in.
            if let Err(raised) = with_exception_set_aside(py, || self.free.call1(py, arguments)) {
                raised.write_unraisable(py, Some(self.free.bind(py)));
            }
            Ok(())
        })
    }
}
