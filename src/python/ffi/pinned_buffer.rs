//! `PinnedBuffer` and `empty_pinned`. They are in `ffi` since the buffer exports its memory by Python's buffer protocol.
//!
//! The buffer cannot be freed while its memory is exported.

use std::ffi::c_int;
use std::mem;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{Error, Result};
use crate::ids::NumaNode;
use crate::memory::{self, PinnedBuffer};
use crate::observe::recording::{Purpose, hold_stack};
use crate::process;
use crate::python::arguments::{Nbytes, Numa, Whole};
use crate::python::buffer::{BufferState, allocate_detached, array_interface};
use crate::python::ffi::address::consumer;
use crate::python::ffi::dlpack;
use crate::python::ffi::dlpack::Exported;
use crate::python::kept::Keepers;
use crate::python::stats::numa_number;
use crate::python::{device, stream};
use crate::runtime::{Kind, Stream, get};
use crate::sync::lock;

#[doc = docstring!("PinnedBuffer")]
#[pyclass(name = "PinnedBuffer", module = "gpupool", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct PyPinnedBuffer(Mutex<PinnedState>);

#[derive(Debug)]
struct PinnedState {
    buffer: BufferState<PinnedBuffer>,
    /// How often it is lent by the buffer protocol.
    exports: usize,
    /// Dropped after the buffer, whose end asks the streams.
    keepers: Keepers,
}

#[doc = docstring!("empty_pinned")]
#[pyfunction]
#[pyo3(signature = (nbytes, stream = None, numa = None))]
pub(crate) fn empty_pinned(
    py: Python<'_>,
    nbytes: Whole<Nbytes>,
    stream: Option<&Bound<'_, PyAny>>,
    numa: Option<Whole<Numa>>,
) -> PyResult<PyPinnedBuffer> {
    let mut keepers = Keepers::default();
    stream.into_iter().for_each(|stream| keepers.keep(stream));
    let stream = stream.map(|stream| stream::resolve(py, Some(stream), None)).transpose()?;
    if stream.is_none() {
        device::get(py)?;
    }
    let node = memory::node_of(numa_number(numa)?.map(i64::from), stream.as_ref())?;
    let allocate = |nbytes, node: &NumaNode| allocate_detached(py, nbytes, node);
    let buffer = memory::empty_pinned_by(nbytes.0, node, stream.as_ref(), allocate)?;
    Ok(PyPinnedBuffer(Mutex::new(PinnedState { buffer: BufferState::Alone(buffer), exports: 0, keepers })))
}

/// Returns the error of a free while the memory is in use.
fn lent() -> PyErr {
    PyBufferError::new_err(
        "this buffer's memory is in use by a memoryview, an array or a DLPack consumer: delete those first",
    )
}

fn freed() -> Error {
    Error::invalid_value("this buffer was freed; keep it as long as its memory is used")
}

impl PyPinnedBuffer {
    /// Refuses in a forked child, whose parent's memory it is, before it takes the lock.
    pub(crate) fn shared(&self) -> Result<Arc<PinnedBuffer>> {
        process::refuse_forked()?;
        lock(&self.0).buffer.share().ok_or_else(freed)
    }

    /// Returns what `read` takes out of the buffer, under the lock. Refuses as [`PyPinnedBuffer::shared`].
    fn read<R>(&self, read: impl FnOnce(&PinnedBuffer) -> R) -> Result<R> {
        process::refuse_forked()?;
        lock(&self.0).buffer.buffer().map(read).ok_or_else(freed)
    }

    /// Counts one more export, and returns the memory's start and its bytes; none once freed.
    fn lend(&self) -> Option<(*mut u8, u64)> {
        let mut state = lock(&self.0);
        let buffer = state.buffer.buffer()?;
        let lent = (buffer.as_ptr(), buffer.nbytes());
        state.exports += 1;
        Some(lent)
    }

    fn end_lending(&self) {
        // In a forked child the lock may be held for ever, and nothing is freed there.
        if !process::is_forked() {
            let mut state = lock(&self.0);
            state.exports = state.exports.saturating_sub(1);
        }
    }

    /// Takes the buffer, which may be freed on the stream, if one is given; none while it is lent. A refusal leaves it as it
    /// is.
    fn take(&self, stream: Option<&Stream>) -> Result<Option<(PinnedBuffer, Keepers)>> {
        process::refuse_forked()?;
        let mut state = lock(&self.0);
        if state.exports > 0 {
            return Ok(None);
        }
        if let (Some(buffer), Some(stream)) = (state.buffer.buffer(), stream) {
            buffer.check_stream(stream)?;
        }
        let Ok(taken) = state.buffer.take() else { return Ok(None) };
        let freed = || Error::invalid_value("this buffer was freed before; free each buffer once");
        Ok(Some((taken.ok_or_else(freed)?, mem::take(&mut state.keepers))))
    }

    /// Frees the memory; refused while it is lent.
    fn end(&self, py: Python<'_>, stream: Option<&Stream>) -> PyResult<()> {
        let (buffer, keepers) = self.take(stream)?.ok_or_else(lent)?;
        let _stack = hold_stack(Purpose::Free);
        let outcome = py.detach(|| buffer.free(stream));
        drop(keepers);
        Ok(outcome?)
    }
}

impl Drop for PyPinnedBuffer {
    fn drop(&mut self) {
        let state = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Consumers of DLPack free it, after this object's streams.
        if let Some(buffer) = state.buffer.lent()
            && !state.keepers.is_empty()
        {
            buffer.let_streams_end();
        }
    }
}

#[pymethods]
impl PyPinnedBuffer {
    #[doc = docstring!("PinnedBuffer.ptr")]
    #[getter]
    fn ptr(&self) -> Result<u64> {
        self.read(PinnedBuffer::address)
    }

    #[doc = docstring!("PinnedBuffer.nbytes")]
    #[getter]
    fn nbytes(&self) -> Result<u64> {
        self.read(PinnedBuffer::nbytes)
    }

    #[doc = docstring!("PinnedBuffer.numa")]
    #[getter]
    fn numa(&self) -> Result<u32> {
        self.read(PinnedBuffer::numa)
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.read(PinnedBuffer::nbytes)?)?)
    }

    #[doc = docstring!("PinnedBuffer.record_stream")]
    fn record_stream(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let recorded = stream::resolve(py, Some(stream), None)?;
        let buffer = self.shared()?;
        lock(&self.0).keepers.keep(stream);
        Ok(buffer.record_stream(&recorded)?)
    }

    #[doc = docstring!("PinnedBuffer.free")]
    #[pyo3(signature = (stream = None))]
    fn free(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let stream = stream.map(|stream| stream::resolve(py, Some(stream), None)).transpose()?;
        self.end(py, stream.as_ref())
    }

    /// # Safety
    /// Python passes a place for a view.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        process::refuse_forked()?;
        let freed = || PyBufferError::new_err("this buffer was freed; keep it as long as its memory is used");
        let (start, bytes) = slf.get().lend().ok_or_else(freed)?;
        // A view of no bytes has an address, too.
        let start = NonNull::new(start).unwrap_or(NonNull::dangling()).as_ptr();
        // SAFETY: Python passes a place for a view, and the memory stays until the view is released: it is counted, and the
        // view has a reference to this object.
        let status = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast(), bytes.cast_signed() as ffi::Py_ssize_t, 0, flags)
        };
        if status != 0 {
            slf.get().end_lending();
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }

    /// # Safety
    /// Python passes a view that `__getbuffer__` filled, once.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.end_lending();
    }

    #[doc = docstring!("PinnedBuffer.__array_interface__")]
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (address, nbytes) = self.read(|buffer| (buffer.address(), buffer.nbytes()))?;
        array_interface(py, address, nbytes)
    }

    #[doc = docstring!("PinnedBuffer.__dlpack_device__")]
    fn __dlpack_device__(&self) -> Result<(i32, i32)> {
        self.read(|buffer| buffer.place())
    }

    #[doc = docstring!("PinnedBuffer.__dlpack__")]
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let buffer = self.shared()?;
        dlpack::check_request(&*buffer, "PinnedBuffer", dl_device, copy)?;
        // The host's memory has no stream; a consumer that names one will use it there.
        if stream.is_some()
            && get()?.kind() != Kind::Host
            && let Some(consumer) = consumer(stream, None)?
        {
            buffer.record_consumer(&consumer)?;
        }
        dlpack::export(py, buffer, max_version.is_some_and(|(major, _)| major >= 1))
    }

    fn __repr__(&self) -> String {
        match self.read(|buffer| (buffer.address(), buffer.nbytes(), buffer.numa())) {
            Ok((address, nbytes, numa)) => {
                let numa = device::shown(numa);
                format!("gpupool.PinnedBuffer(ptr={address:#x}, nbytes={nbytes}, numa={numa})")
            }
            Err(_) if process::is_forked() => "gpupool.PinnedBuffer(of the parent process)".to_owned(),
            Err(_) => "gpupool.PinnedBuffer(freed)".to_owned(),
        }
    }
}
