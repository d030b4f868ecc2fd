//! What other frameworks call to have memory of gpupool: CuPy's allocators, the base class of cuda.core's memory resource, and
//! the addresses of the C interface. CuPy and cuda.core call them directly, so that a request that is served at once, and its
//! free, run no Python of ours.

use std::cell::Cell;
use std::mem;
use std::sync::{Mutex, OnceLock};

use pyo3::exceptions::PyMemoryError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use rustc_hash::FxHashMap;

use crate::c_api::C_API;
use crate::error::{Error, Result};
use crate::memory::{self, DEVICE_MEM_HANDLER, DeviceBuffer, Followers, PINNED_MEM_HANDLER, PinnedBuffer};
use crate::observe::recording::{Purpose, hold_stack};
use crate::process;
use crate::python::arguments::{Nbytes, Size, Whole, accepted, wrong_objects};
use crate::python::buffer::{HeldBuffer, PyDeviceBuffer, allocate};
use crate::python::device;
use crate::python::ffi::address::PythonAddress;
use crate::python::ffi::buffers::allocate_pinned;
use crate::python::ffi::frameworks;
use crate::python::ffi::frameworks::{CurrentStream, Memories, StreamHandles};
use crate::python::kept::Keepers;
use crate::python::scope::token_of;
use crate::runtime::Stream;
use crate::sync::lock;

#[doc = docstring!("CupyAllocator")]
#[pyclass(name = "CupyAllocator", module = "gpupool._native", frozen, weakref)]
pub(crate) struct PyCupyAllocator {
    current: CurrentStream,
    /// `cupy.cuda.Stream`, whose objects destroy their streams.
    own: Py<PyAny>,
    /// `cupy.cuda.Stream.null`.
    null: Py<PyAny>,
    /// What makes arrays' memory; none for a CuPy whose objects are not as they are known.
    memories: Option<Memories>,
    /// `cupy.cuda.UnownedMemory`.
    unowned: Py<PyAny>,
    /// `cupy.cuda.MemoryPointer`.
    pointer: Py<PyAny>,
    /// Called with the bytes and the error of a request that failed; returns what the request does, or raises.
    failed: Py<PyAny>,
}

#[pymethods]
impl PyCupyAllocator {
    #[new]
    fn new(cuda: &Bound<'_, PyAny>, failed: Py<PyAny>) -> PyResult<Self> {
        let (own, streams) = (cuda.getattr("Stream")?, cuda.getattr("stream")?);
        let exported = streams.getattr("__pyx_capi__").and_then(|table| table.get_item("get_current_stream")).ok();
        let (unowned, pointer) = (cuda.getattr("UnownedMemory")?, cuda.getattr("MemoryPointer")?);
        let base = cuda.getattr("BaseMemory").ok();
        Ok(Self {
            current: CurrentStream::new(exported.as_ref(), cuda.getattr("get_current_stream")?.unbind()),
            null: own.getattr("null")?.unbind(),
            own: own.unbind(),
            memories: base.and_then(|base| Memories::new(&base, &unowned, &pointer)),
            unowned: unowned.unbind(),
            pointer: pointer.unbind(),
            failed,
        })
    }

    #[doc = docstring!("CupyAllocator.malloc")]
    #[pyo3(signature = (nbytes, /))]
    fn malloc<'py>(&self, nbytes: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = nbytes.py();
        let bytes = nbytes.extract::<Whole<Nbytes>>()?.0;
        let (buffer, keeper) = match self.allocate(py, bytes) {
            Ok(allocated) => allocated,
            Err(error) => return self.failed.bind(py).call1((nbytes, error)),
        };
        match &self.memories {
            Some(memories) => memories.point_to(py, buffer, keeper),
            None => self.point_to(py, buffer, keeper),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.failed)
    }

    #[doc = docstring!("CupyAllocator.current_stream")]
    #[pyo3(signature = (device, /))]
    fn current_stream<'py>(&self, py: Python<'py>, device: i32) -> PyResult<Bound<'py, PyAny>> {
        self.current.get(py, Some(device))?.getattr(intern!(py, "ptr"))
    }
}

members! { PyCupyAllocator = "CupyAllocator" of this, py;
    get asks_directly: bool = this.current.is_exported();
    get makes_memory: bool = this.memories.is_some();
}

impl PyCupyAllocator {
    /// Allocates memory on CuPy's current stream. Returns with it the object that keeps the stream alive, if there is one.
    #[inline]
    fn allocate<'py>(&self, py: Python<'py>, bytes: u64) -> PyResult<(DeviceBuffer, Option<Bound<'py, PyAny>>)> {
        device::get(py)?;
        let object = self.current.get(py, None)?;
        let address = if object.is(&self.null) {
            PythonAddress::NULL
        } else {
            object.getattr(intern!(py, "ptr"))?.extract::<PythonAddress>()?
        };
        let buffer = allocate(py, bytes, &address.stream(None)?)?;
        // Other code destroys the stream of an ExternalStream; CuPy destroys its own with their objects.
        let is_own = object.get_type().is(&self.own);
        Ok((buffer, is_own.then_some(object)))
    }

    /// Returns a `cupy.cuda.MemoryPointer` by CuPy's public calls.
    #[cold]
    fn point_to<'py>(
        &self,
        py: Python<'py>,
        buffer: DeviceBuffer,
        keeper: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (address, bytes, device) = (buffer.ptr(), buffer.nbytes(), buffer.device().ordinal());
        let owner = PyDeviceBuffer::keeping(buffer, keeper.map(Bound::unbind));
        // Without the device CuPy would ask the driver for it.
        let memory = self.unowned.bind(py).call1((address, bytes, owner, device))?;
        self.pointer.bind(py).call1((memory, 0))
    }
}

thread_local! {
    /// How many blocks of `gpupool.cupy.using(pinned=True)` the thread is in.
    static BLOCKS: Cell<usize> = const { Cell::new(0) };
}

#[doc = docstring!("CupyPinnedMemory")]
#[pyclass(name = "CupyPinnedMemory", module = "gpupool._native", frozen, weakref)]
pub(crate) struct PyCupyPinnedMemory {
    held: HeldBuffer<PinnedBuffer>,
    ptr: u64,
    size: u64,
}

#[pymethods]
impl PyCupyPinnedMemory {
    #[new]
    fn new(py: Python<'_>, nbytes: Whole<Nbytes>) -> PyResult<Self> {
        device::get(py)?;
        let buffer = allocate_pinned(py, nbytes.0, None, None)?;
        Ok(Self { ptr: buffer.ptr(), size: nbytes.0, held: HeldBuffer::new(Some(buffer), Keepers::default()) })
    }
}

members! { PyCupyPinnedMemory = "CupyPinnedMemory" of this, py;
    get ptr: u64 = this.ptr;
    get size: u64 = this.size;

    fn record_stream(stream: &Bound<'_, PyAny>) -> PyResult<()> =
        this.held.record_stream(stream, PinnedBuffer::record_stream);
}

#[doc = docstring!("CupyPinnedAllocator")]
#[pyclass(name = "CupyPinnedAllocator", module = "gpupool._native", frozen, weakref)]
pub(crate) struct PyCupyPinnedAllocator {
    /// `cupy.cuda.PinnedMemoryPointer`.
    pointer: Py<PyAny>,
    /// Called with the bytes and the error of a request that found no memory; returns what the request does.
    retry: Py<PyAny>,
    /// The allocator of threads that are in no block; none where all threads are served.
    otherwise: Option<Py<PyAny>>,
}

#[pymethods]
impl PyCupyPinnedAllocator {
    #[new]
    #[pyo3(signature = (pointer, retry, otherwise = None))]
    const fn new(pointer: Py<PyAny>, retry: Py<PyAny>, otherwise: Option<Py<PyAny>>) -> Self {
        Self { pointer, retry, otherwise }
    }

    #[doc = docstring!("CupyPinnedAllocator.malloc")]
    fn malloc<'py>(&self, py: Python<'py>, nbytes: Whole<Nbytes>) -> PyResult<Bound<'py, PyAny>> {
        let bytes = nbytes.0;
        if let Some(otherwise) = &self.otherwise
            && BLOCKS.get() == 0
        {
            return otherwise.bind(py).call1((bytes,));
        }
        match PyCupyPinnedMemory::new(py, nbytes) {
            Ok(memory) => self.pointer.bind(py).call1((memory, 0)),
            Err(error) if error.is_instance_of::<PyMemoryError>(py) => self.retry.bind(py).call1((bytes, error)),
            Err(error) => Err(error),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.pointer)?;
        visit.call(&self.retry)?;
        visit.call(&self.otherwise)
    }

    #[doc = docstring!("CupyPinnedAllocator.enter")]
    #[staticmethod]
    fn enter() {
        BLOCKS.set(BLOCKS.get() + 1);
    }

    #[doc = docstring!("CupyPinnedAllocator.leave")]
    #[staticmethod]
    fn leave() {
        BLOCKS.set(BLOCKS.get().saturating_sub(1));
    }
}

#[doc = docstring!("CudaCoreMemory")]
#[pyclass(name = "CudaCoreMemory", module = "gpupool._native", frozen, subclass, weakref)]
pub(crate) struct PyCudaCoreMemory {
    made: OnceLock<MadeResource>,
    /// The buffers that live, by their addresses.
    buffers: Mutex<FxHashMap<u64, CudaCoreBuffer>>,
}

/// What `__init__` makes.
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
            Some(pool) => Some(token_of(pool.bind(py), "MemoryResource")?.enter_scope(Followers::Thread)?),
            None => None,
        };
        let buffer = allocate(py, size.extract::<Whole<Size>>()?.0, &on)?;
        if buffer.device().ordinal() != made.device {
            let (device, own) = (buffer.device(), made.device);
            let text =
                |[stream]: [String; 1]| format!("{stream} is a stream of {device}, and the memory of device {own}");
            return Err(wrong_objects([stream], text).into());
        }
        let address = buffer.ptr();
        if address != 0 {
            this.keep(address, buffer);
        }
        let pointer = address.into_pyobject(py)?;
        let arguments = [pointer.as_any(), size, slf.as_any()];
        let made = frameworks::call_named(made.make_buffer.bind(py), arguments, made.names.bind(py), stream);
        if made.is_err() {
            let _refused = lock(&this.buffers).remove(&address);
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
            CudaCoreBuffer::Shared(buffer) => {
                // One that Python has freed is refused below.
                if let Ok(Err(refused)) = buffer.get().held.read(|buffer| buffer.check_stream(&on)) {
                    lock(&self.buffers).entry(address).or_insert(CudaCoreBuffer::Shared(buffer));
                    return Err(refused.into());
                }
                // The last that has it frees it.
                buffer.get().held.record_stream(stream, DeviceBuffer::record_stream)
            }
        }
    }

    #[doc = docstring!("CudaCoreMemory.device_buffer")]
    fn device_buffer(&self, py: Python<'_>, pointer: u64) -> PyResult<Option<Py<PyDeviceBuffer>>> {
        process::refuse_forked()?;
        // The object is made, and ends if it is of no use, with no lock held, since that may run Python.
        let made = Py::new(py, PyDeviceBuffer::without())?;
        let mut buffers = lock(&self.buffers);
        let Some(known) = buffers.get_mut(&pointer) else { return Ok(None) };
        if let CudaCoreBuffer::Shared(shared) = known {
            return Ok(Some(shared.clone_ref(py)));
        }
        if let CudaCoreBuffer::Alone(buffer) = mem::replace(known, CudaCoreBuffer::Shared(made.clone_ref(py))) {
            made.get().held.put(buffer);
        }
        drop(buffers);
        Ok(Some(made))
    }
}

members! { PyCudaCoreMemory = "CudaCoreMemory" of this, py;
    get reads_streams: PyResult<bool> = Ok(this.made()?.handles.is_some());
    get device_id: PyResult<usize> = Ok(this.made()?.device);
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
        let answer = frameworks::call_method(object, intern!(py, "__cuda_stream__"))?;
        let address = answer.cast::<PyTuple>()?.get_borrowed_item(1)?.extract::<PythonAddress>()?;
        Ok(address.stream(None)?)
    }
}

impl PyCudaCoreMemory {
    /// Keeps a buffer. One that Python freed at its address before is dropped with no lock held.
    #[inline]
    fn keep(&self, address: u64, buffer: DeviceBuffer) {
        let _before = lock(&self.buffers).insert(address, CudaCoreBuffer::Alone(buffer));
    }

    #[inline]
    fn made(&self) -> PyResult<&MadeResource> {
        let unmade = || {
            Error::invalid_value("this memory resource was not made: call its __init__ first, as super().__init__()")
        };
        Ok(self.made.get().ok_or_else(unmade)?)
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

told_class! {
    #[pyclass(name = "CApi", module = "gpupool.typing", frozen, get_all)]
    PyCApi = "CApi" from table: Py<PyAny> {
        malloc: usize = C_API.malloc as usize,
        free: usize = C_API.free as usize,
        cupy_malloc: usize = C_API.cupy_malloc as usize,
        cupy_free: usize = C_API.cupy_free as usize,
        handler_alloc: usize = C_API.handler_alloc as usize,
        handler_free: usize = C_API.handler_free as usize,
        handler: usize = (&raw const DEVICE_MEM_HANDLER).addr(),
        pinned_handler: usize = (&raw const PINNED_MEM_HANDLER).addr(),
        capsule: Py<PyAny> = table,
    }
}

#[pymethods]
impl PyCApi {
    #[doc = docstring!("CApi.feed")]
    #[pyo3(signature = (pool = None))]
    fn feed(&self, pool: Option<&Bound<'_, PyAny>>) -> PyResult<(usize, usize)> {
        let token = pool.map(|pool| token_of(pool, "feed")).transpose()?;
        let (malloc, free) = memory::feed(token.as_ref())?;
        Ok((malloc as usize, free as usize))
    }

    #[doc = docstring!("CApi.bare_feed")]
    #[pyo3(signature = (pool = None))]
    fn bare_feed(&self, pool: Option<&Bound<'_, PyAny>>) -> PyResult<(usize, usize, usize)> {
        let token = pool.map(|pool| token_of(pool, "bare_feed")).transpose()?;
        let (allocate, free, empty_cache) = memory::bare_feed(token.as_ref())?;
        Ok((allocate as usize, free as usize, empty_cache as usize))
    }

    fn __repr__(&self) -> String {
        format!("<gpupool.typing.CApi: addresses of C functions, malloc={:#x}, free={:#x}>", self.malloc, self.free)
    }
}
