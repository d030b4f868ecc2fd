//! `pool.lease()`: a handle for a `with` block.

use std::sync::Mutex;

use pyo3::prelude::*;

use crate::error::Error;
use crate::handle::Lease;
use crate::sync::lock;

/// A handle that is its holder's alone until the block ends.
#[pyclass(name = "Lease", module = "gpupool", frozen)]
#[derive(Debug)]
pub(in crate::python) struct PyLease {
    library: &'static str,
    address: usize,
    device: usize,
    /// None once it is over.
    lease: Mutex<Option<Lease>>,
}

impl PyLease {
    pub(super) fn new(library: &'static str, lease: Lease) -> Self {
        let (address, device) = (lease.as_ptr().addr(), lease.device().ordinal());
        Self { library, address, device, lease: Mutex::new(Some(lease)) }
    }

    fn end(&self) -> Option<Lease> {
        lock(&self.lease).take()
    }
}

#[pymethods]
impl PyLease {
    fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        slf.__index__()?;
        Ok(slf)
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _traceback: &Bound<'_, PyAny>) -> bool {
        drop(self.end());
        false
    }

    fn __index__(&self) -> PyResult<usize> {
        if lock(&self.lease).is_some() {
            return Ok(self.address);
        }
        let over = format!("this lease of a {} handle is over; use the handle inside the with block", self.library);
        Err(Error::invalid_value(over).into())
    }

    fn __int__(&self) -> PyResult<usize> {
        self.__index__()
    }

    #[getter]
    const fn device(&self) -> usize {
        self.device
    }

    fn release(&self) {
        drop(self.end());
    }

    fn discard(&self, py: Python<'_>) {
        if let Some(lease) = self.end() {
            py.detach(|| lease.discard());
        }
    }

    fn __repr__(&self) -> String {
        match self.__index__() {
            Ok(address) => format!("<gpupool.Lease {} {address:#x}>", self.library),
            Err(_) => format!("<gpupool.Lease {} (over)>", self.library),
        }
    }
}
