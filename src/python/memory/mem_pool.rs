//! `MemPool`, and pools by their ids.

use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::PyList;

use super::allocator::source;
use super::capture::PyCapture;
use super::scope::PyPoolToken;
use super::snapshot::segments;
use super::stats::PyPoolStats;
use super::{Id, IdArgument, from_pair, pair};
use crate::memory::{self, MemPool};
use crate::observe::recording::{Purpose, hold_stack};
use crate::process;
use crate::python::whole::Whole;
use crate::python::{device, stream};
use crate::sync::lock;

#[pyclass(name = "MemPool", module = "gpupool", frozen)]
#[derive(Debug)]
pub(in crate::python) struct PyMemPool {
    pool: MemPool,
    allocator: Mutex<Option<Py<PyAny>>>,
}

impl PyMemPool {
    pub(super) fn token(&self) -> memory::PoolToken {
        self.pool.token()
    }
}

#[pymethods]
impl PyMemPool {
    #[new]
    #[pyo3(signature = (
        allocator = None, use_on_oom = false, no_split = false, limit = None, device = None, segments = false
    ))]
    fn new(
        py: Python<'_>,
        allocator: Option<&Bound<'_, PyAny>>,
        use_on_oom: bool,
        no_split: bool,
        limit: Option<Whole>,
        device: Option<&Bound<'_, PyAny>>,
        segments: bool,
    ) -> PyResult<Self> {
        let device = device::extract_or_current(py, device)?;
        let mut builder =
            MemPool::builder().device(device).use_on_oom(use_on_oom).no_split(no_split).segments(segments);
        if let Some(limit) = limit {
            builder = builder.limit(limit.0);
        }
        if let Some(allocator) = allocator {
            builder = builder.allocator(source(allocator)?);
        }
        let pool = py.detach(|| builder.build())?;
        Ok(Self { pool, allocator: Mutex::new(allocator.map(|allocator| allocator.clone().unbind())) })
    }

    #[getter]
    fn id(&self) -> Id {
        pair(self.pool.id())
    }

    #[getter]
    fn device(&self) -> usize {
        self.pool.device().ordinal()
    }

    #[getter]
    fn allocator(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        process::refuse_forked()?;
        let allocator = lock(&self.allocator);
        Ok(allocator.as_ref().map(|allocator| allocator.clone_ref(py)))
    }

    #[getter]
    fn use_on_oom(&self) -> bool {
        self.pool.use_on_oom()
    }

    #[getter]
    fn no_split(&self) -> bool {
        self.pool.no_split()
    }

    fn use_count(&self) -> PyResult<u32> {
        process::refuse_forked()?;
        Ok(self.pool.use_count())
    }

    #[getter]
    fn limit(&self) -> Option<u64> {
        self.pool.limit()
    }

    #[setter]
    fn set_limit(&self, limit: Option<Whole>) -> PyResult<()> {
        process::refuse_forked()?;
        self.pool.set_limit(limit.map(|limit| limit.0));
        Ok(())
    }

    fn stats(&self, py: Python<'_>) -> PyResult<PyPoolStats> {
        Ok(py.detach(|| self.pool.stats())?.into())
    }

    fn reset_peak_stats(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.pool.reset_peak_stats())?)
    }

    fn trim(&self, py: Python<'_>) -> PyResult<u64> {
        let _stack = hold_stack(Purpose::Allocation);
        Ok(py.detach(|| self.pool.trim())?)
    }

    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let found = py.detach(|| self.pool.snapshot())?;
        segments(py, &found)
    }

    #[pyo3(name = "token")]
    fn py_token(&self) -> PyResult<PyPoolToken> {
        process::refuse_forked()?;
        Ok(PyPoolToken::from(self.token()))
    }

    fn capture(slf: &Bound<'_, Self>, stream: &Bound<'_, PyAny>) -> PyResult<PyCapture> {
        let stream = stream::resolve(slf.py(), Some(stream), None)?;
        Ok(PyCapture::new(slf, &stream))
    }

    fn __repr__(&self) -> String {
        format!("gpupool.MemPool(id={:?}, device={})", self.id(), self.device())
    }
}

#[pyfunction]
#[pyo3(signature = (user_created = true))]
pub(in crate::python) fn graph_pool_handle(user_created: bool) -> PyResult<Id> {
    process::refuse_forked()?;
    Ok(pair(memory::graph_pool_handle(user_created)))
}

#[pyfunction]
pub(in crate::python) fn begin_allocate_to_pool(
    py: Python<'_>,
    device: &Bound<'_, PyAny>,
    pool_id: IdArgument,
) -> PyResult<()> {
    let device = device::extract(py, device)?;
    Ok(memory::begin_allocate_to_pool(device, from_pair(pool_id))?)
}

#[pyfunction]
pub(in crate::python) fn end_allocate_to_pool(
    py: Python<'_>,
    device: &Bound<'_, PyAny>,
    pool_id: IdArgument,
) -> PyResult<()> {
    let device = device::extract(py, device)?;
    Ok(memory::end_allocate_to_pool(device, from_pair(pool_id))?)
}

#[pyfunction]
pub(in crate::python) fn release_pool(py: Python<'_>, device: &Bound<'_, PyAny>, pool_id: IdArgument) -> PyResult<()> {
    let device = device::extract(py, device)?;
    Ok(py.detach(|| memory::release_pool(device, from_pair(pool_id)))?)
}

#[pyfunction]
pub(in crate::python) fn pool_use_count(
    py: Python<'_>,
    device: &Bound<'_, PyAny>,
    pool_id: IdArgument,
) -> PyResult<Option<u32>> {
    let device = device::extract(py, device)?;
    Ok(memory::pool_use_count(device, from_pair(pool_id))?)
}
