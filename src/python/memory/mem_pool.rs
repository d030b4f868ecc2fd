//! `MemPool`, and pools by their ids.

use std::sync::OnceLock;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::allocator::source;
use super::buffer::PyDeviceBuffer;
use super::callbacks::{PySegmentCallback, on_segment};
use super::capture::PyCapture;
use super::range::PyMemoryRange;
use super::scope::{PyPoolToken, ScopeBlocks, wake_for_use};
use super::snapshot::segments;
use super::stats::PyPoolStats;
use super::{Id, IdArgument, pair};
use crate::error::Error;
use crate::memory::{self, Backup, MemPool};
use crate::observe::recording::{Purpose, hold_stack};
use crate::process;
use crate::python::facts::Facts;
use crate::python::program::KeptObjects;
use crate::python::sleep::PyBackup;
use crate::python::whole::{Limit, Nbytes, PageBytes, Reserve, Whole};
use crate::python::with_blocks::Ignored;
use crate::python::{device, stream};

#[doc = docstring!("MemPool")]
#[pyclass(name = "MemPool", module = "gpupool", frozen, subclass, dict, weakref)]
#[derive(Debug)]
pub(in crate::python) struct PyMemPool {
    /// False for an object that has no fields yet, which the collector of garbage may find all the same: see [`Self::new`].
    has_fields: bool,
    made: OnceLock<MadePool>,
    blocks: ScopeBlocks,
    /// Its allocator's functions and its callbacks, which its memory needs as long as there is some.
    kept: KeptObjects,
}

/// What `__init__` makes.
#[derive(Debug)]
struct MadePool {
    pool: MemPool,
    allocator: Option<Py<PyAny>>,
    /// Whether `MemPool.__del__` ends it before the collector clears what it calls; not where a class has one of its own.
    is_ended_first: bool,
}

impl PyMemPool {
    /// Returns what is told of a pool; None if it was not made.
    fn facts(slf: &Bound<'_, Self>) -> PyResult<Option<Facts>> {
        let Some(MadePool { pool, .. }) = slf.get().made.get() else {
            return Ok(None);
        };
        let mut facts = Facts::of(slf.get_type().fully_qualified_name()?.to_string());
        facts.add("id", format_args!("{:?}", pair(pool.id())));
        facts.add("device", device::shown(pool.device().ordinal()));
        if let Some(limit) = pool.limit() {
            facts.add("limit", limit);
        }
        // A forked child has none.
        if let Some(stats) = slf.py().detach(|| pool.stats().ok()) {
            facts.add("live_bytes", stats.live_bytes);
            facts.add("reserved_bytes", stats.reserved_bytes);
        }
        if pool.is_closed() {
            facts.state("closed");
        }
        if pool.is_asleep() {
            facts.state("asleep");
        }
        Ok(Some(facts))
    }

    fn made(&self) -> PyResult<&MadePool> {
        let unmade =
            || Error::invalid_value("this MemPool was not made: call MemPool.__init__ first, as super().__init__()");
        Ok(self.made.get().ok_or_else(unmade)?)
    }

    fn pool(&self) -> PyResult<&MemPool> {
        Ok(&self.made()?.pool)
    }

    pub(super) fn token(&self) -> PyResult<memory::PoolToken> {
        Ok(self.pool()?.token())
    }
}

#[pymethods]
impl PyMemPool {
    // A subclass's `__init__` takes what it likes; the text is of this one's.
    #[new]
    #[pyo3(
        signature = (*_arguments, **_named),
        text_signature = "(allocator=None, use_on_oom=False, no_split=False, limit=None, device=None, segments=False, *, \
                          is_user_created=True, reserve=0, sleeps_for_others=False, wakes_on_use=False)"
    )]
    fn new(py: Python<'_>, _arguments: &Bound<'_, PyTuple>, _named: Option<&Bound<'_, PyDict>>) -> Self {
        // Python 3.11 makes the object's dict while the object has no fields yet, and may collect garbage for it, which
        // could find the object: unless it has a dict at hand that was given back.
        drop(PyDict::new(py));
        Self { has_fields: true, made: OnceLock::new(), blocks: ScopeBlocks::new(), kept: KeptObjects::default() }
    }

    #[pyo3(signature = (
        allocator = None, use_on_oom = false, no_split = false, limit = None, device = None, segments = false, *,
        is_user_created = true, reserve = Whole::new(0), sleeps_for_others = false, wakes_on_use = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "each is one of Python's, most with a default")]
    fn __init__(
        slf: &Bound<'_, Self>,
        allocator: Option<&Bound<'_, PyAny>>,
        use_on_oom: bool,
        no_split: bool,
        limit: Option<Whole<Limit>>,
        device: Option<&Bound<'_, PyAny>>,
        segments: bool,
        is_user_created: bool,
        reserve: Whole<Reserve>,
        sleeps_for_others: bool,
        wakes_on_use: bool,
    ) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        let device = device::extract_or_current(py, device)?;
        let mut builder = MemPool::builder()
            .device(device)
            .use_on_oom(use_on_oom)
            .no_split(no_split)
            .segments(segments)
            .user_created(is_user_created)
            .reserve(reserve.0)
            .sleeps_for_others(sleeps_for_others)
            .wakes_on_use(wakes_on_use);
        if let Some(limit) = limit {
            builder = builder.limit(limit.0);
        }
        if let Some(allocator) = allocator {
            builder = builder.allocator(source(allocator, &this.kept)?);
        }
        let pool = py.detach(|| builder.build())?;
        let finalizer = intern!(py, "__del__");
        let is_ended_first = slf.get_type().getattr(finalizer)?.is(&py.get_type::<Self>().getattr(finalizer)?);
        let allocator = allocator.map(|allocator| allocator.clone().unbind());
        let made = MadePool { pool, allocator, is_ended_first };
        // What is not used of it goes outside of the lock.
        this.made.set(made).map_err(|_| Error::invalid_value("this MemPool was made before; make another").into())
    }

    #[doc = docstring!("MemPool.id")]
    #[getter]
    fn id(&self) -> PyResult<Id> {
        Ok(pair(self.pool()?.id()))
    }

    #[doc = docstring!("MemPool.device")]
    #[getter]
    fn device(&self) -> PyResult<usize> {
        Ok(self.pool()?.device().ordinal())
    }

    #[doc = docstring!("MemPool.allocator")]
    #[getter]
    fn allocator(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        process::refuse_forked()?;
        Ok(self.made()?.allocator.as_ref().map(|allocator| allocator.clone_ref(py)))
    }

    #[doc = docstring!("MemPool.use_on_oom")]
    #[getter]
    fn use_on_oom(&self) -> PyResult<bool> {
        Ok(self.pool()?.use_on_oom())
    }

    #[doc = docstring!("MemPool.no_split")]
    #[getter]
    fn no_split(&self) -> PyResult<bool> {
        Ok(self.pool()?.no_split())
    }

    #[doc = docstring!("MemPool.sleeps_for_others")]
    #[getter]
    fn sleeps_for_others(&self) -> PyResult<bool> {
        Ok(self.pool()?.sleeps_for_others())
    }

    #[doc = docstring!("MemPool.wakes_on_use")]
    #[getter]
    fn wakes_on_use(&self) -> PyResult<bool> {
        Ok(self.pool()?.wakes_on_use())
    }

    #[doc = docstring!("MemPool.reserve")]
    #[getter]
    fn reserve(&self) -> PyResult<u64> {
        Ok(self.pool()?.reserve())
    }

    #[doc = docstring!("MemPool.use_count")]
    fn use_count(&self) -> PyResult<u32> {
        process::refuse_forked()?;
        Ok(self.pool()?.use_count())
    }

    #[doc = docstring!("MemPool.limit")]
    #[getter]
    fn limit(&self) -> PyResult<Option<u64>> {
        Ok(self.pool()?.limit())
    }

    #[setter]
    fn set_limit(&self, limit: Option<Whole<Limit>>) -> PyResult<()> {
        process::refuse_forked()?;
        self.pool()?.set_limit(limit.map(|limit| limit.0));
        Ok(())
    }

    #[doc = docstring!("MemPool.stats")]
    fn stats(&self, py: Python<'_>) -> PyResult<PyPoolStats> {
        let pool = self.pool()?;
        Ok(py.detach(|| pool.stats())?.into())
    }

    #[doc = docstring!("MemPool.reset_peak_stats")]
    fn reset_peak_stats(&self, py: Python<'_>) -> PyResult<()> {
        let pool = self.pool()?;
        Ok(py.detach(|| pool.reset_peak_stats())?)
    }

    #[doc = docstring!("MemPool.trim")]
    fn trim(&self, py: Python<'_>) -> PyResult<u64> {
        let pool = self.pool()?;
        let _stack = hold_stack(Purpose::Free);
        Ok(py.detach(|| pool.trim())?)
    }

    #[doc = docstring!("MemPool.close")]
    fn close(&self, py: Python<'_>) -> PyResult<u64> {
        let pool = self.pool()?;
        let _stack = hold_stack(Purpose::Free);
        Ok(py.detach(|| pool.close())?)
    }

    #[doc = docstring!("MemPool.sleep")]
    #[pyo3(signature = (backup = PyBackup(Backup::Host)), text_signature = "($self, backup='host')")]
    fn sleep(&self, py: Python<'_>, backup: PyBackup) -> PyResult<u64> {
        let pool = self.pool()?;
        let _stack = hold_stack(Purpose::Allocation);
        Ok(py.detach(|| pool.sleep(backup.0))?)
    }

    #[doc = docstring!("MemPool.wake")]
    fn wake(&self, py: Python<'_>) -> PyResult<u64> {
        let pool = self.pool()?;
        let _stack = hold_stack(Purpose::Allocation);
        Ok(py.detach(|| pool.wake())?)
    }

    #[doc = docstring!("MemPool.is_asleep")]
    #[getter]
    fn is_asleep(&self) -> PyResult<bool> {
        process::refuse_forked()?;
        Ok(self.pool()?.is_asleep())
    }

    #[doc = docstring!("MemPool.on_segment")]
    fn on_segment(&self, callback: &Bound<'_, PyAny>) -> PyResult<PySegmentCallback> {
        on_segment(self.pool()?, &self.kept, callback)
    }

    #[doc = docstring!("MemPool.snapshot")]
    #[pyo3(signature = (include_traces = true))]
    fn snapshot<'py>(&self, py: Python<'py>, include_traces: bool) -> PyResult<Bound<'py, PyList>> {
        let _ = include_traces;
        let pool = self.pool()?;
        let found = py.detach(|| pool.snapshot())?;
        segments(py, &found)
    }

    #[doc = docstring!("MemPool.token")]
    #[pyo3(name = "token")]
    fn py_token(&self) -> PyResult<PyPoolToken> {
        process::refuse_forked()?;
        Ok(PyPoolToken::from(self.token()?))
    }

    #[doc = docstring!("MemPool.empty")]
    #[pyo3(signature = (nbytes, stream = None))]
    fn empty(
        &self,
        py: Python<'_>,
        nbytes: Whole<Nbytes>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyDeviceBuffer> {
        let pool = self.pool()?;
        let stream = stream::resolve_on(py, stream, Some(pool.device()))?;
        let token = pool.token();
        wake_for_use(py, &token)?;
        let _scope = token.enter_scope(false)?;
        PyDeviceBuffer::new(py, nbytes.0, &stream)
    }

    #[doc = docstring!("MemPool.reserve_range")]
    #[pyo3(signature = (nbytes, page_bytes = Whole::new(2 << 20)), text_signature = "($self, nbytes, page_bytes=2097152)")]
    fn reserve_range(
        &self,
        py: Python<'_>,
        nbytes: Whole<Nbytes>,
        page_bytes: Whole<PageBytes>,
    ) -> PyResult<PyMemoryRange> {
        let pool = self.pool()?;
        Ok(py.detach(|| pool.reserve_range(nbytes.0, page_bytes.0))?.into())
    }

    #[doc = docstring!("MemPool.__enter__")]
    fn __enter__(slf: &Bound<'_, Self>) -> PyResult<Py<Self>> {
        process::refuse_forked()?;
        let this = slf.get();
        this.blocks.enter(slf.py(), &this.token()?, false)?;
        Ok(slf.clone().unbind())
    }

    #[doc = docstring!("MemPool.__exit__")]
    fn __exit__(&self, py: Python<'_>, _kind: Ignored, _value: Ignored, _traceback: Ignored) -> PyResult<bool> {
        if !process::is_forked() {
            self.blocks.leave(py, "a MemPool's block")?;
        }
        Ok(false)
    }

    #[doc = docstring!("MemPool.__del__")]
    fn __del__(&self, py: Python<'_>) {
        if let Some(MadePool { pool, .. }) = self.made.get() {
            py.detach(|| pool.end());
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if !self.has_fields {
            return Ok(());
        }
        let Some(MadePool { pool, allocator, is_ended_first }) = self.made.get() else { return Ok(()) };
        visit.call(allocator)?;
        // What outlives the pool needs them itself.
        if (pool.is_owned() && *is_ended_first) || pool.is_gone() { self.kept.traverse(&visit) } else { Ok(()) }
    }

    fn __clear__(&self) {
        if self.made.get().is_some_and(|made| made.pool.is_gone()) {
            self.kept.clear();
        }
    }

    #[doc = docstring!("MemPool.capture")]
    fn capture(slf: &Bound<'_, Self>, stream: &Bound<'_, PyAny>) -> PyResult<PyCapture> {
        let stream = stream::resolve(slf.py(), Some(stream), None)?;
        PyCapture::new(slf, &stream)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        Ok(match Self::facts(slf)? {
            Some(facts) => facts.to_string(),
            None => format!("<{} that was not made>", slf.get_type().fully_qualified_name()?),
        })
    }

    #[doc = docstring!("MemPool._repr_html_")]
    fn _repr_html_(slf: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
        Self::facts(slf)?.map_or(Ok(None), |facts| facts.html(slf.py()))
    }
}

#[doc = docstring!("graph_pool_handle")]
#[pyfunction]
#[pyo3(signature = (is_user_created = true))]
pub(in crate::python) fn graph_pool_handle(is_user_created: bool) -> PyResult<Id> {
    process::refuse_forked()?;
    Ok(pair(memory::graph_pool_handle(is_user_created)))
}

#[doc = docstring!("begin_allocate_to_pool")]
#[pyfunction]
pub(in crate::python) fn begin_allocate_to_pool(
    py: Python<'_>,
    device: &Bound<'_, PyAny>,
    pool_id: IdArgument,
) -> PyResult<()> {
    let device = device::extract(py, device)?;
    Ok(memory::begin_allocate_to_pool(device, pool_id.0)?)
}

#[doc = docstring!("end_allocate_to_pool")]
#[pyfunction]
pub(in crate::python) fn end_allocate_to_pool(
    py: Python<'_>,
    device: &Bound<'_, PyAny>,
    pool_id: IdArgument,
) -> PyResult<()> {
    let device = device::extract(py, device)?;
    Ok(memory::end_allocate_to_pool(device, pool_id.0)?)
}

#[doc = docstring!("release_pool")]
#[pyfunction]
pub(in crate::python) fn release_pool(py: Python<'_>, device: &Bound<'_, PyAny>, pool_id: IdArgument) -> PyResult<()> {
    let device = device::extract(py, device)?;
    Ok(py.detach(|| memory::release_pool(device, pool_id.0))?)
}

#[doc = docstring!("pool_use_count")]
#[pyfunction]
pub(in crate::python) fn pool_use_count(
    py: Python<'_>,
    device: &Bound<'_, PyAny>,
    pool_id: IdArgument,
) -> PyResult<Option<u32>> {
    let device = device::extract(py, device)?;
    Ok(memory::pool_use_count(device, pool_id.0)?)
}
