//! `pool.lease()`: a handle for a `with` block.

use std::sync::Mutex;

use pyo3::intern;
use pyo3::prelude::*;

use crate::error::{Error, OneLine, Result};
use crate::handle::Lease;
use crate::process;
use crate::python::device;
use crate::sync::lock;

#[doc = docstring!("Lease")]
#[pyclass(name = "Lease", module = "gpupool", frozen, weakref)]
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

    /// Takes the lease out. Refuses in a forked child, where the lock may be held for ever.
    fn end(&self) -> Result<Option<Lease>> {
        process::refuse_forked()?;
        Ok(lock(&self.lease).take())
    }
}

#[pymethods]
impl PyLease {
    #[doc = docstring!("Lease.__enter__")]
    fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        slf.__index__()?;
        Ok(slf)
    }

    #[doc = docstring!("Lease.__exit__")]
    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _traceback: &Bound<'_, PyAny>) -> bool {
        // In a forked child the refusal would hide what was raised in the block.
        let _ = self.end();
        false
    }

    fn __index__(&self) -> PyResult<usize> {
        process::refuse_forked()?;
        if lock(&self.lease).is_some() {
            return Ok(self.address);
        }
        let over = format!("this lease of a {} handle is over; use the handle inside the with block", self.library);
        Err(Error::invalid_value(over).into())
    }

    fn __int__(&self) -> PyResult<usize> {
        self.__index__()
    }

    #[doc = docstring!("Lease._as_parameter_")]
    #[getter]
    fn _as_parameter_<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import(intern!(py, "ctypes"))?.getattr(intern!(py, "c_void_p"))?.call1((self.__index__()?,))
    }

    #[doc = docstring!("Lease.device")]
    #[getter]
    const fn device(&self) -> usize {
        self.device
    }

    #[doc = docstring!("Lease.release")]
    fn release(&self) -> PyResult<()> {
        Ok(self.end().map(drop)?)
    }

    #[doc = docstring!("Lease.discard")]
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(lease) = self.end()? {
            py.detach(|| lease.discard());
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        let library = OneLine(self.library);
        match self.__index__() {
            Ok(address) => format!("<gpupool.Lease {library} {address:#x}, device={}>", device::shown(self.device)),
            Err(_) if process::is_forked() => format!("<gpupool.Lease {library} (of the parent process)>"),
            Err(_) => format!("<gpupool.Lease {library} (over)>"),
        }
    }
}
