//! A user's own allocator for a pool: two functions, Python callables or addresses of C functions, or an allocator
//! object of PyTorch's.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt};

use crate::error::{Cause, Error, OWN_ALLOCATOR, Result, StatusKind};
use crate::memory::{SegmentSource, TorchAllocator};
use crate::python::ffi::{Keeping, PythonAddress, PythonSource, Trusted, torch_allocator};
use crate::python::program::{Kept, KeptObjects, call_unasked, interrupted_or};
use crate::runtime::Stream;

/// The source that an `allocator` argument names.
pub(super) fn source(allocator: &Bound<'_, PyAny>, kept: &KeptObjects) -> PyResult<Arc<dyn SegmentSource>> {
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
        return Ok(Arc::new(torch_source(allocator, kept)?.ok_or_else(wrong)?));
    };
    if allocate.is_exact_instance_of::<PyInt>() && free.is_exact_instance_of::<PyInt>() {
        let address = |function: &Bound<'_, PyAny>| function.extract::<PythonAddress>().map_err(|_| wrong());
        return Ok(Arc::new(PythonAddress::segment_functions(address(&allocate)?, address(&free)?)?));
    }
    if allocate.is_callable() && free.is_callable() {
        let callables = Callables { allocate: kept.keep(&allocate), free: kept.keep(&free) };
        return Ok(Arc::new(Trusted(callables)));
    }
    Err(wrong().into())
}

/// Returns a source of an allocator of PyTorch's; none if the object is nothing of PyTorch's.
fn torch_source(object: &Bound<'_, PyAny>, kept: &KeptObjects) -> PyResult<Option<Keeping<TorchAllocator>>> {
    let py = object.py();
    let module = py.import(intern!(py, "gpupool._frameworks.torch_allocator"))?;
    let found: Option<[usize; 3]> = module.call_method1(intern!(py, "addresses"), (object,))?.extract()?;
    found.map(|addresses| Ok(Keeping::new(torch_allocator(addresses)?, kept.keep(object)))).transpose()
}

#[derive(Debug)]
struct Callables {
    allocate: Arc<Kept>,
    free: Arc<Kept>,
}

fn refused(status: &str, cause: Option<Cause>) -> Error {
    Error::refused(OWN_ALLOCATOR, "malloc", status, -1, StatusKind::OutOfMemory)
        .map_library(|refused| refused.cause = cause)
}

impl PythonSource for Callables {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        let arguments = (bytes, stream.device().ordinal(), stream.raw().address());
        let called = Python::try_attach(|py| {
            let address = self.allocate.bind(py).and_then(|allocate| allocate.call1(arguments)?.extract::<u64>());
            address.map_err(|raised| interrupted_or(py, raised, |cause| refused("an exception", Some(cause))))
        });
        match called {
            None => Err(refused("the interpreter is shutting down", None)),
            Some(Ok(0)) => Err(refused("a null pointer", None)),
            Some(outcome) => outcome,
        }
    }

    fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()> {
        let arguments = (address, bytes, stream.device().ordinal(), stream.raw().address());
        // Nor is memory freed once the interpreter has ended.
        let _ = Python::try_attach(|py| self.free.bind(py).map(|free| call_unasked(&free, arguments, |_| ())));
        Ok(())
    }
}
