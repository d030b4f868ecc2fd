//! `MemPool.capture`: the memory of a graph, for the `with` block in which it is captured.

use std::sync::Mutex;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::mem_pool::PyMemPool;
use super::{Id, pair};
use crate::error::Error;
use crate::memory::{EnteredCapture, GraphMemory, PoolToken};
use crate::process;
use crate::python::device;
use crate::runtime::Stream;
use crate::sync::{ThisThread, ThreadNumber, lock};

#[doc = docstring!("Capture")]
#[pyclass(name = "Capture", module = "gpupool", frozen, weakref)]
#[derive(Debug)]
pub(in crate::python) struct PyCapture {
    /// Kept as long as it may be entered.
    pool: Py<PyMemPool>,
    token: PoolToken,
    stream: Stream,
    state: Mutex<Option<(ThreadNumber, EnteredCapture, Py<PyGraphMemory>)>>,
}

#[doc = docstring!("GraphMemory")]
#[pyclass(name = "GraphMemory", module = "gpupool", frozen, weakref)]
#[derive(Debug)]
pub(in crate::python) struct PyGraphMemory {
    pool_id: Id,
    device: usize,
    /// None before the block ends, and after the reset.
    memory: Mutex<Option<GraphMemory>>,
}

impl PyCapture {
    pub(super) fn new(pool: &Bound<'_, PyMemPool>, stream: &Stream) -> PyResult<Self> {
        let token = pool.get().token()?;
        Ok(Self { pool: pool.clone().unbind(), token, stream: stream.kept(), state: Mutex::new(None) })
    }
}

#[pymethods]
impl PyCapture {
    #[doc = docstring!("Capture.__enter__")]
    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<PyGraphMemory>> {
        process::refuse_forked()?;
        let wrong = || Error::invalid_value("this capture was entered before; call MemPool.capture for each");
        if lock(&self.state).is_some() {
            return Err(wrong().into());
        }
        let memory = PyGraphMemory {
            pool_id: pair(self.token.id()),
            device: self.token.device().ordinal(),
            memory: Mutex::new(None),
        };
        let memory = Py::new(py, memory)?;
        // It waits for calls for the whole device, and they for work that may need Python.
        let entered = py.detach(|| EnteredCapture::new(&self.token, &self.stream))?;
        let is_first = {
            let mut state = lock(&self.state);
            let is_first = state.is_none();
            if is_first {
                *state = Some((ThisThread::get().number(), entered, memory.clone_ref(py)));
            }
            is_first
        };
        if !is_first {
            return Err(wrong().into());
        }
        Ok(memory)
    }

    #[doc = docstring!("Capture.__exit__")]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        if process::is_forked() {
            return Ok(false);
        }
        let left = {
            let mut state = lock(&self.state);
            state.take_if(|(thread, _, _)| *thread == ThisThread::get().number())
        };
        let wrong = "this capture was left on a thread that did not enter it; enter and leave it on one thread";
        let (_, entered, place) = left.ok_or_else(|| Error::invalid_value(wrong))?;
        let memory = entered.leave()?;
        if kind.is_none() {
            *lock(&place.get().memory) = Some(memory);
        } else {
            // The capture failed, so there will be no graph.
            py.detach(|| drop(memory));
        }
        Ok(false)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.pool)
    }

    fn __repr__(&self) -> String {
        let (pool_id, stream) = (pair(self.token.id()), self.stream.raw().address());
        let device = device::shown(self.stream.device().ordinal());
        format!("gpupool.Capture(pool_id={pool_id:?}, stream={stream:#x}, device={device})")
    }
}

#[pymethods]
impl PyGraphMemory {
    #[doc = docstring!("GraphMemory.pool_id")]
    #[getter]
    const fn pool_id(&self) -> Id {
        self.pool_id
    }

    #[doc = docstring!("GraphMemory.reset")]
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        process::refuse_forked()?;
        let memory = lock(&self.memory).take();
        py.detach(|| drop(memory));
        Ok(())
    }

    fn __repr__(&self) -> String {
        let state = if process::is_forked() {
            ", of the parent process"
        } else if lock(&self.memory).is_none() {
            ", without memory: its capture has not ended, or it was reset"
        } else {
            ""
        };
        let Self { pool_id, device, .. } = self;
        format!("gpupool.GraphMemory(pool_id={pool_id:?}, device={}{state})", device::shown(device))
    }
}
