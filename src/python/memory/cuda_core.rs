//! The base class of cuda.core's memory resource: cuda.core calls it directly, so that a request that is served at once, and
//! its free, run no Python of ours.

use std::sync::{Mutex, OnceLock};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use rustc_hash::FxHashMap;

use super::buffer::{PyDeviceBuffer, allocate};
use super::scope::token_of;
use crate::error::Error;
use crate::memory::DeviceBuffer;
use crate::observe::recording::{Purpose, hold_stack};
use crate::process;
use crate::python::device;
use crate::python::ffi::{PythonAddress, StreamHandles, vectorcall};
use crate::python::whole::{Size, Whole, accepted, wrong_objects};
use crate::runtime::Stream;
use crate::sync::lock;

#[doc = docstring!("CudaCoreMemory")]
#[pyclass(name = "CudaCoreMemory", module = "gpupool._native", frozen, subclass, weakref)]
#[derive(Debug)]
pub(in crate::python) struct PyCudaCoreMemory {
    made: OnceLock<MadeResource>,
    /// The buffers that live, by their addresses.
    buffers: Mutex<FxHashMap<u64, CudaCoreBuffer>>,
}

/// What `__init__` makes.
#[derive(Debug)]
struct MadeResource {
    /// `cuda.core.Buffer.from_handle`, or what takes its arguments.
    make_buffer: Py<PyAny>,
    /// Of the argument that it takes by name alone.
    names: Py<PyTuple>,
    /// How streams' handles are read; none where they are asked for.
    handles: Option<StreamHandles>,
    device: usize,
    /// The pool of all requests; none where scopes say which.
    pool: Option<Py<PyAny>>,
}

#[derive(Debug)]
enum CudaCoreBuffer {
    Alone(DeviceBuffer),
    /// Python has it too, which frees it with the last that does.
    Shared(Py<PyDeviceBuffer>),
}

#[pymethods]
impl PyCudaCoreMemory {
    // A subclass's `__init__` takes what it likes.
    #[new]
    #[pyo3(signature = (*_arguments, **_named))]
    fn new(_arguments: &Bound<'_, PyTuple>, _named: Option<&Bound<'_, PyDict>>) -> Self {
        Self { made: OnceLock::new(), buffers: Mutex::default() }
    }

    fn __init__(
        &self,
        make_buffer: Bound<'_, PyAny>,
        stream: Bound<'_, PyType>,
        device: usize,
        pool: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let names = PyTuple::new(make_buffer.py(), ["stream"])?.unbind();
        let handles = StreamHandles::find(&stream);
        let made = MadeResource { make_buffer: make_buffer.unbind(), names, handles, device, pool };
        Ok(self.made.set(made).map_err(|_| Error::invalid_value("this memory resource was made before"))?)
    }

    #[doc = docstring!("CudaCoreMemory.allocate")]
    #[pyo3(signature = (size, *, stream))]
    fn allocate<'py>(
        slf: &Bound<'py, Self>,
        size: &Bound<'py, PyAny>,
        stream: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let this = slf.get();
        let made = this.made()?;
        let on = made.stream(stream)?;
        let _scope = match &made.pool {
            Some(pool) => Some(token_of(pool.bind(py), "MemoryResource")?.enter_scope(false)?),
            None => None,
        };
        let buffer = allocate(py, size.extract::<Whole<Size>>()?.0, &on)?;
        if buffer.device().ordinal() != made.device {
            let (device, own) = (buffer.device(), made.device);
            let text =
                |[stream]: [String; 1]| format!("{stream} is a stream of {device}, and the memory of device {own}");
            return Err(wrong_objects([stream], text).into());
        }
        let address = buffer.address();
        if address != 0 {
            this.keep(address, buffer);
        }
        let pointer = address.into_pyobject(py)?;
        let arguments = [pointer.as_any(), size, slf.as_any()];
        let made = vectorcall::call_named(made.make_buffer.bind(py), arguments, made.names.bind(py), stream);
        if made.is_err() {
            let refused = lock(&this.buffers).remove(&address);
            drop(refused);
        }
        made
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(MadeResource { make_buffer, pool, .. }) = self.made.get() else { return Ok(()) };
        visit.call(make_buffer)?;
        visit.call(pool)
    }

    #[doc = docstring!("CudaCoreMemory.deallocate")]
    #[pyo3(signature = (ptr, size, *, stream))]
    fn deallocate(&self, ptr: &Bound<'_, PyAny>, size: Whole<Size>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        process::refuse_forked()?;
        if size.0 == 0 {
            // These have no address.
            return Ok(());
        }
        let address = address_of(ptr)?;
        let on = self.made()?.stream(stream)?;
        let found = lock(&self.buffers).remove(&address);
        let unknown = || {
            Error::invalid_value(format!(
                "{address:#x} is no memory of this resource's, or was freed before; cuda.core frees each buffer once"
            ))
        };
        match found.ok_or_else(unknown)? {
            CudaCoreBuffer::Alone(buffer) => {
                if let Err(refused) = buffer.check_stream(&on) {
                    self.keep(address, buffer);
                    return Err(refused.into());
                }
                let _stack = hold_stack(Purpose::Free);
                Ok(buffer.free_on(&on)?)
            }
            // The last that has it frees it.
            CudaCoreBuffer::Shared(buffer) => buffer.bind(stream.py()).get().record_stream(stream),
        }
    }

    #[doc = docstring!("CudaCoreMemory.device_buffer")]
    fn device_buffer(&self, py: Python<'_>, pointer: u64) -> PyResult<Option<Py<PyDeviceBuffer>>> {
        process::refuse_forked()?;
        if let Some(known) = known_buffer(py, &lock(&self.buffers), pointer) {
            return Ok(known);
        }
        // The object is made with no lock held, since that may run Python; meanwhile the buffer may have got another one.
        let made = Py::new(py, PyDeviceBuffer::without())?;
        let mut buffers = lock(&self.buffers);
        if let Some(known) = known_buffer(py, &buffers, pointer) {
            drop(buffers);
            return Ok(known);
        }
        if let Some(CudaCoreBuffer::Alone(buffer)) = buffers.insert(pointer, CudaCoreBuffer::Shared(made.clone_ref(py)))
        {
            made.get().put(buffer);
        }
        Ok(Some(made))
    }

    #[doc = docstring!("CudaCoreMemory.reads_streams")]
    #[getter]
    fn reads_streams(&self) -> PyResult<bool> {
        Ok(self.made()?.handles.is_some())
    }

    #[doc = docstring!("CudaCoreMemory.device_id")]
    #[getter]
    fn device_id(&self) -> PyResult<usize> {
        Ok(self.made()?.device)
    }
}

impl MadeResource {
    /// Returns the stream that an object of cuda.core's names. Of a default stream the device is the current context's,
    /// which costs less to ask than the object.
    #[inline]
    fn stream(&self, object: &Bound<'_, PyAny>) -> PyResult<Stream> {
        let py = object.py();
        device::get(py)?;
        if let Some(handle) = self.handles.as_ref().and_then(|handles| handles.read(object)) {
            return Ok(handle.stream(None)?);
        }
        let answer = vectorcall::call_method(object, intern!(py, "__cuda_stream__"))?;
        let address = answer.cast::<PyTuple>()?.get_borrowed_item(1)?.extract::<PythonAddress>()?;
        Ok(address.stream(None)?)
    }
}

impl PyCudaCoreMemory {
    /// Keeps a buffer. One that Python freed at its address before is dropped with no lock held.
    #[inline]
    fn keep(&self, address: u64, buffer: DeviceBuffer) {
        let before = lock(&self.buffers).insert(address, CudaCoreBuffer::Alone(buffer));
        drop(before);
    }

    #[inline]
    fn made(&self) -> PyResult<&MadeResource> {
        let unmade = || {
            Error::invalid_value("this memory resource was not made: call its __init__ first, as super().__init__()")
        };
        Ok(self.made.get().ok_or_else(unmade)?)
    }
}

/// Returns the object of the buffer at an address, or none if there is no buffer; none at all if it has no object yet.
fn known_buffer(
    py: Python<'_>,
    buffers: &FxHashMap<u64, CudaCoreBuffer>,
    pointer: u64,
) -> Option<Option<Py<PyDeviceBuffer>>> {
    match buffers.get(&pointer) {
        None => Some(None),
        Some(CudaCoreBuffer::Shared(buffer)) => Some(Some(buffer.clone_ref(py))),
        Some(CudaCoreBuffer::Alone(_)) => None,
    }
}

/// Returns the address that cuda.core names, by an int or by a handle of cuda.bindings.
#[inline]
fn address_of(pointer: &Bound<'_, PyAny>) -> PyResult<u64> {
    if let Some(address) = accepted(pointer.py(), pointer.extract::<u64>())? {
        return Ok(address);
    }
    pointer.call_method0(intern!(pointer.py(), "__int__"))?.extract()
}
