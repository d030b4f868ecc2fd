//! CuPy's allocator of device memory.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;

use crate::memory::DeviceBuffer;
use crate::python::device;
use crate::python::ffi::{CurrentStream, Memories, PythonAddress};
use crate::python::memory::buffer::{PyDeviceBuffer, allocate};
use crate::python::whole::{Nbytes, Whole};

#[doc = docstring!("CupyAllocator")]
#[pyclass(name = "CupyAllocator", module = "gpupool._native", frozen, weakref)]
#[derive(Debug)]
pub(in crate::python) struct PyCupyAllocator {
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
        self.current.get_on(py, device)?.getattr(intern!(py, "ptr"))
    }

    #[doc = docstring!("CupyAllocator.asks_directly")]
    #[getter]
    fn asks_directly(&self) -> bool {
        self.current.is_exported()
    }

    #[doc = docstring!("CupyAllocator.makes_memory")]
    #[getter]
    fn makes_memory(&self) -> bool {
        self.memories.is_some()
    }
}

impl PyCupyAllocator {
    /// Allocates memory on CuPy's current stream. Returns with it the object that keeps the stream alive, if there is one.
    #[inline]
    fn allocate<'py>(&self, py: Python<'py>, bytes: u64) -> PyResult<(DeviceBuffer, Option<Bound<'py, PyAny>>)> {
        device::get(py)?;
        let object = self.current.get(py)?;
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
        let (address, bytes, device) = (buffer.address(), buffer.nbytes(), buffer.device().ordinal());
        let owner = PyDeviceBuffer::keeping(buffer, keeper.map(Bound::unbind));
        // Without the device CuPy would ask the driver for it.
        let memory = self.unowned.bind(py).call1((address, bytes, owner, device))?;
        self.pointer.bind(py).call1((memory, 0))
    }
}
