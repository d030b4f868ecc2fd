//! `PinnedBuffer` and `empty_pinned`. They are in `ffi` since the buffer exports its memory by Python's buffer protocol.
//!
//! The buffer cannot be freed while its memory is exported: each view has a share of it.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::address::consumer;
use super::dlpack::{self, Exported};
use crate::error::Result;
use crate::ids::NumaNode;
use crate::memory::{self, PinnedBuffer};
use crate::observe::recording::Purpose;
use crate::process;
use crate::python::arguments::{Nbytes, Whole};
use crate::python::buffer::{HeldBuffer, allocate_detached, array_interface, repr};
use crate::python::kept::Keepers;
use crate::python::{device, stream};
use crate::runtime::{Kind, Stream, get};

#[doc = docstring!("PinnedBuffer")]
#[pyclass(name = "PinnedBuffer", module = "gpupool", frozen, weakref)]
pub(crate) struct PyPinnedBuffer(pub(super) HeldBuffer<PinnedBuffer>);

#[doc = docstring!("empty_pinned")]
#[pyfunction(signature = (nbytes, stream = None, numa = None))]
pub(crate) fn empty_pinned(
    py: Python<'_>,
    nbytes: Whole<Nbytes>,
    stream: Option<&Bound<'_, PyAny>>,
    numa: Option<NumaNode>,
) -> PyResult<PyPinnedBuffer> {
    let mut keepers = Keepers::default();
    stream.into_iter().for_each(|stream| keepers.keep(stream));
    let stream = stream.map(stream::named).transpose()?;
    if stream.is_none() {
        device::get(py)?;
    }
    let buffer = allocate_pinned(py, nbytes.0, numa, stream.as_ref())?;
    Ok(PyPinnedBuffer(HeldBuffer::new(Some(buffer), keepers)))
}

/// Allocates pinned memory; other threads run Python meanwhile, unless it is there at once.
pub(crate) fn allocate_pinned(
    py: Python<'_>,
    nbytes: u64,
    numa: Option<NumaNode>,
    stream: Option<&Stream>,
) -> Result<PinnedBuffer> {
    let node = memory::node_of(numa.map(|node| node.number().into()), stream)?;
    memory::empty_pinned_by(nbytes, node, stream, |nbytes, node| allocate_detached(py, nbytes, node))
}

impl Drop for PyPinnedBuffer {
    fn drop(&mut self) {
        self.0.let_streams_end(PinnedBuffer::let_streams_end);
    }
}

#[pymethods]
impl PyPinnedBuffer {
    #[doc = docstring!("PinnedBuffer.ptr")]
    #[getter]
    fn ptr(&self) -> Result<u64> {
        self.0.read(PinnedBuffer::address)
    }

    #[doc = docstring!("PinnedBuffer.nbytes")]
    #[getter]
    fn nbytes(&self) -> Result<u64> {
        self.0.read(PinnedBuffer::nbytes)
    }

    #[doc = docstring!("PinnedBuffer.numa")]
    #[getter]
    fn numa(&self) -> Result<u32> {
        self.0.read(PinnedBuffer::numa)
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.0.read(PinnedBuffer::nbytes)?)?)
    }

    #[doc = docstring!("PinnedBuffer.record_stream")]
    fn record_stream(&self, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.record_stream(stream, PinnedBuffer::record_stream)
    }

    #[doc = docstring!("PinnedBuffer.free")]
    #[pyo3(signature = (stream = None))]
    fn free(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let stream = stream.map(stream::named).transpose()?;
        let lent = || {
            PyBufferError::new_err(
                "this buffer's memory is in use by a memoryview, an array or a DLPack consumer: delete those first",
            )
        };
        let (buffer, keepers) = self.0.take(stream.as_ref(), PinnedBuffer::check_stream)?.ok_or_else(lent)?;
        let outcome = device::detached_for(py, Purpose::Free, || buffer.free(stream.as_ref()));
        drop(keepers);
        outcome
    }

    /// # Safety
    /// Python passes a place for a view.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        process::refuse_forked()?;
        let buffer = slf.get().0.shared().map_err(|freed| PyBufferError::new_err(freed.to_string()))?;
        // A view of no bytes has an address, too.
        let start = NonNull::new(buffer.as_ptr()).unwrap_or(NonNull::dangling()).as_ptr();
        let bytes = buffer.nbytes().cast_signed() as ffi::Py_ssize_t;
        // SAFETY: Python passes a place for a view, and the memory stays until the view is released, which has a share of it.
        unsafe {
            if ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast(), bytes, 0, flags) != 0 {
                return Err(PyErr::fetch(slf.py()));
            }
            (*view).internal = Arc::into_raw(buffer).cast_mut().cast();
        }
        Ok(())
    }

    /// # Safety
    /// Python passes a view that `__getbuffer__` filled, once.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: `__getbuffer__` gave this view the share, which is taken back once.
        drop(unsafe { Arc::from_raw((*view).internal.cast::<PinnedBuffer>()) });
    }

    #[doc = docstring!("PinnedBuffer.__array_interface__")]
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (address, nbytes) = self.0.read(|buffer| (buffer.address(), buffer.nbytes()))?;
        array_interface(py, address, nbytes)
    }

    #[doc = docstring!("PinnedBuffer.__dlpack_device__")]
    fn __dlpack_device__(&self) -> Result<(i32, i32)> {
        self.0.read(PinnedBuffer::place)
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
        let buffer = self.0.shared()?;
        dlpack::check_request(&*buffer, "PinnedBuffer", dl_device, copy)?;
        // The host's memory has no stream; a consumer that names one will use it there.
        if stream.is_some()
            && get()?.kind() != Kind::Host
            && let Some(consumer) = consumer(stream, None)?
        {
            buffer.record_consumer(&consumer)?;
        }
        dlpack::export(py, buffer, max_version)
    }

    fn __repr__(&self) -> String {
        let told = self.0.read(|buffer| (buffer.address(), buffer.nbytes(), buffer.numa()));
        let told = told
            .map(|(address, nbytes, numa)| format!("ptr={address:#x}, nbytes={nbytes}, numa={}", device::shown(numa)));
        repr("PinnedBuffer", told)
    }
}
