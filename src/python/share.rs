//! Sharing buffers with other processes: tokens, and attaching by them.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple, PyType};

use super::memory::PyDeviceBuffer;
use super::{device, stream};
use crate::error::Error;
use crate::memory::{self, ShareToken};
use crate::observe::recording::{Purpose, hold_stack};
use crate::process;

#[doc = docstring!("ShareToken")]
#[pyclass(name = "ShareToken", module = "gpupool", frozen, eq)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PyShareToken(pub(super) ShareToken);

#[pymethods]
impl PyShareToken {
    #[new]
    #[pyo3(signature = (data, /))]
    fn new(data: &[u8]) -> PyResult<Self> {
        Ok(Self(ShareToken::from_bytes(data)?))
    }

    #[doc = docstring!("ShareToken.nbytes")]
    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.nbytes()
    }

    #[doc = docstring!("ShareToken.process")]
    #[getter]
    fn process(&self) -> u32 {
        self.0.process()
    }

    #[doc = docstring!("ShareToken.__bytes__")]
    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.as_bytes())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (Bound<'py, PyBytes>,)) {
        (py.get_type::<Self>(), (self.__bytes__(py),))
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        format!("gpupool.ShareToken(of {} bytes of process {})", self.0.nbytes(), self.0.process())
    }
}

/// Returns the token that an argument is, or whose bytes it is.
fn token_of(token: &Bound<'_, PyAny>) -> PyResult<ShareToken> {
    if let Ok(token) = token.cast::<PyShareToken>() {
        return Ok(token.get().0.clone());
    }
    match token.extract::<&[u8]>() {
        Ok(bytes) => Ok(ShareToken::from_bytes(bytes)?),
        Err(_) => Err(PyTypeError::new_err(format!(
            "attach takes a ShareToken, as share() returns it, or its bytes, not {}",
            token.get_type().name()?
        ))),
    }
}

#[doc = docstring!("attach")]
#[pyfunction]
#[pyo3(signature = (token, stream = None, device = None))]
pub(super) fn attach(
    py: Python<'_>,
    token: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyDeviceBuffer> {
    process::refuse_forked()?;
    let token = token_of(token)?;
    let stream = stream.map(|given| stream::resolve(py, Some(given), device)).transpose()?;
    let device = device.map(|device| device::extract(py, device)).transpose()?;
    let _stack = hold_stack(Purpose::Allocation);
    let buffer = py.detach(|| memory::attach(&token, device, stream.as_ref()))?;
    Ok(PyDeviceBuffer::keeping(buffer, None))
}

#[doc = docstring!("share_at")]
#[pyfunction]
pub(super) fn share_at(py: Python<'_>, ptr: u64, stream: &Bound<'_, PyAny>) -> PyResult<(PyShareToken, u64)> {
    process::refuse_forked()?;
    let stream = stream::resolve(py, Some(stream), None)?;
    let (token, offset) = py.detach(|| memory::share_at(ptr, Some(&stream), false))?;
    Ok((PyShareToken(token), offset))
}

impl PyDeviceBuffer {
    /// Shares the buffer, and keeps it until it was attached if it `is_sent`.
    pub(in crate::python) fn share_on(
        &self,
        py: Python<'_>,
        given: Option<&Bound<'_, PyAny>>,
        is_sent: bool,
    ) -> PyResult<PyShareToken> {
        let (buffer, stream) = self.on(py, given)?;
        let token = py.detach(|| if is_sent { buffer.send(&stream) } else { buffer.share(&stream) })?;
        Ok(PyShareToken(token))
    }

    /// What a pickler of `multiprocessing` writes; any other is refused.
    pub(in crate::python) fn reduce<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        process::refuse_forked()?;
        let sender = py.import("gpupool._frameworks.sent_buffers")?;
        if !sender.call_method0("is_sent")?.extract::<bool>()? {
            return Err(Error::invalid_value(
                "a DeviceBuffer can be sent by multiprocessing (its queues, pipes and arguments of processes), but not pickled \
                 in any other way, because its content is not part of the pickle: pickle the token that share() returns, for \
                 attach() in another process, or the content, bytes(buffer)",
            )
            .into());
        }
        let native = py.import("gpupool._native")?;
        let nbytes = self.shared()?.nbytes();
        if nbytes == 0 {
            return (native.getattr("empty")?, (0,)).into_pyobject(py);
        }
        let token = self.share_on(py, None, true)?;
        (native.getattr("attach")?, (token,)).into_pyobject(py)
    }
}
