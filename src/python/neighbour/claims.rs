//! `Claim`: a right to memory before it is taken, for a `with` block or until it is released.

use std::sync::Mutex;
use std::time::Duration;

use pyo3::prelude::*;

use crate::memory::{self, MemoryClaim};
use crate::process;
use crate::python::device;
use crate::python::waiting::{Timeout, interruptible};
use crate::python::whole::{Nbytes, Whole};
use crate::sync::lock;

#[doc = docstring!("Claim")]
#[pyclass(name = "Claim", module = "gpupool", frozen, weakref)]
#[derive(Debug)]
pub(in crate::python) struct PyClaim {
    device: usize,
    nbytes: u64,
    /// None once it is over.
    claim: Mutex<Option<MemoryClaim>>,
}

#[pymethods]
impl PyClaim {
    #[doc = docstring!("Claim.device")]
    #[getter]
    const fn device(&self) -> usize {
        self.device
    }

    #[doc = docstring!("Claim.nbytes")]
    #[getter]
    const fn nbytes(&self) -> u64 {
        self.nbytes
    }

    #[doc = docstring!("Claim.left")]
    #[getter]
    fn left(&self) -> PyResult<u64> {
        process::refuse_forked()?;
        Ok(lock(&self.claim).as_ref().map_or(0, MemoryClaim::left))
    }

    #[doc = docstring!("Claim.release")]
    fn release(&self) -> PyResult<()> {
        process::refuse_forked()?;
        let ended = lock(&self.claim).take();
        drop(ended);
        Ok(())
    }

    #[doc = docstring!("Claim.__enter__")]
    fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        process::refuse_forked()?;
        Ok(slf)
    }

    #[doc = docstring!("Claim.__exit__")]
    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _traceback: &Bound<'_, PyAny>) -> bool {
        // In a forked child the refusal would hide what was raised in the block.
        let _ = self.release();
        false
    }

    fn __repr__(&self) -> String {
        let (device, nbytes) = (device::shown(self.device), self.nbytes);
        let is_over = process::is_forked() || lock(&self.claim).is_none();
        let state = if is_over { ", over" } else { "" };
        format!("<gpupool.Claim nbytes={nbytes}, device={device}{state}>")
    }
}

#[doc = docstring!("claim")]
#[pyfunction]
#[pyo3(
    signature = (nbytes, device = None, timeout = Timeout(Duration::ZERO)),
    text_signature = "(nbytes, device=None, timeout=0)"
)]
pub(in crate::python) fn claim(
    py: Python<'_>,
    nbytes: Whole<Nbytes>,
    device: Option<&Bound<'_, PyAny>>,
    timeout: Timeout,
) -> PyResult<PyClaim> {
    let device = device::extract_or_current(py, device)?;
    let claim =
        interruptible(py, |interruption| memory::claim_unless_interrupted(nbytes.0, device, timeout.0, interruption))?;
    Ok(PyClaim { device: device.ordinal(), nbytes: nbytes.0, claim: Mutex::new(Some(claim)) })
}
