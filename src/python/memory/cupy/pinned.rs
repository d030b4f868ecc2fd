//! CuPy's allocator of pinned memory.

use std::cell::Cell;
use std::sync::Mutex;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::error::{Error, ErrorKind};
use crate::ids::NumaNode;
use crate::memory::{self, PinnedBuffer};
use crate::process;
use crate::python::memory::allocate_detached;
use crate::python::stream::Keepers;
use crate::python::whole::{Nbytes, Whole};
use crate::python::{device, stream};
use crate::sync::lock;

thread_local! {
    /// How many blocks of `gpupool.cupy.using(pinned=True)` the thread is in.
    static BLOCKS: Cell<usize> = const { Cell::new(0) };
}

#[doc = docstring!("CupyPinnedMemory")]
#[pyclass(name = "CupyPinnedMemory", module = "gpupool._native", frozen, weakref)]
#[derive(Debug)]
pub(in crate::python) struct PyCupyPinnedMemory {
    buffer: PinnedBuffer,
    #[doc = docstring!("CupyPinnedMemory.ptr")]
    #[pyo3(get)]
    ptr: u64,
    #[doc = docstring!("CupyPinnedMemory.size")]
    #[pyo3(get)]
    size: u64,
    /// Dropped after the buffer, whose end asks the streams.
    keepers: Mutex<Keepers>,
}

impl PyCupyPinnedMemory {
    fn new(py: Python<'_>, nbytes: u64) -> crate::error::Result<Self> {
        let node = memory::node_of(None, None)?;
        let allocate = |nbytes, node: &NumaNode| allocate_detached(py, nbytes, node);
        let buffer = memory::empty_pinned_by(nbytes, node, None, allocate)?;
        Ok(Self { ptr: buffer.address(), size: nbytes, buffer, keepers: Mutex::default() })
    }
}

#[pymethods]
impl PyCupyPinnedMemory {
    #[new]
    fn allocate(py: Python<'_>, nbytes: Whole<Nbytes>) -> PyResult<Self> {
        device::get(py)?;
        Ok(Self::new(py, nbytes.0)?)
    }

    #[doc = docstring!("CupyPinnedMemory.record_stream")]
    fn record_stream(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let recorded = stream::resolve(py, Some(stream), None)?;
        process::refuse_forked()?;
        lock(&self.keepers).keep(stream);
        Ok(self.buffer.record_stream(&recorded)?)
    }
}

#[doc = docstring!("CupyPinnedAllocator")]
#[pyclass(name = "CupyPinnedAllocator", module = "gpupool._native", frozen, weakref)]
#[derive(Debug)]
pub(in crate::python) struct PyCupyPinnedAllocator {
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
        if let Some(otherwise) = &self.otherwise
            && BLOCKS.get() == 0
        {
            return otherwise.bind(py).call1((nbytes.0,));
        }
        device::get(py)?;
        match PyCupyPinnedMemory::new(py, nbytes.0) {
            Ok(memory) => self.pointer.bind(py).call1((memory, 0)),
            Err(error) => self.failed(py, nbytes.0, error),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        [Some(&self.pointer), Some(&self.retry), self.otherwise.as_ref()]
            .into_iter()
            .try_for_each(|kept| visit.call(kept))
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

impl PyCupyPinnedAllocator {
    #[cold]
    fn failed<'py>(&self, py: Python<'py>, nbytes: u64, error: Error) -> PyResult<Bound<'py, PyAny>> {
        if !matches!(error.kind(), ErrorKind::OutOfMemory(_)) {
            return Err(error.into());
        }
        self.retry.bind(py).call1((nbytes, PyErr::from(error)))
    }
}
