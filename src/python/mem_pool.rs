//! `MemPool`, pools by their ids, and a graph's memory in one.

use std::sync::{Mutex, OnceLock};

use log::warn;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::{self, Backup, EnteredCapture, Followers, GraphMemory, MemPool, PoolId, PoolToken, SegmentEvent};
use crate::observe::recording::Purpose;
use crate::observe::target::MEMORY;
use crate::process;
use crate::python::arguments::{Limit, Nbytes, PageBytes, Reserve, Whole};
use crate::python::buffer::PyDeviceBuffer;
use crate::python::context::Ignored;
use crate::python::ffi::address::source;
use crate::python::kept::{KeptObjects, PySegmentCallback, PySegmentEvent, UntilEnd, callable_name};
use crate::python::range::PyMemoryRange;
use crate::python::recording::{Frames, list_of_segments};
use crate::python::scope::{PyPoolToken, ScopeBlocks, wake_for_use};
use crate::python::stats::PyPoolStats;
use crate::python::values::Facts;
use crate::python::{device, stream};
use crate::runtime::Stream;
use crate::sync::{ThisThread, ThreadNumber, lock};

#[doc = docstring!("MemPool")]
#[pyclass(name = "MemPool", module = "gpupool", frozen, subclass, dict, weakref)]
pub(crate) struct PyMemPool {
    /// False for an object that has no fields yet, which the collector of garbage may find all the same: see [`Self::new`].
    has_fields: bool,
    made: OnceLock<MadePool>,
    blocks: ScopeBlocks,
    /// Its allocator's functions and its callbacks, which its memory needs as long as there is some.
    kept: KeptObjects,
}

/// What `__init__` makes.
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
        facts.add("id", pool.id());
        facts.add("device", device::shown(pool.device().ordinal()));
        if let Some(limit) = pool.limit() {
            facts.add("limit", limit);
        }
        // A forked child has none.
        if let Some(stats) = slf.py().detach(|| pool.stats().ok()) {
            facts.add("live_bytes", stats.live_bytes);
            facts.add("reserved_bytes", stats.reserved_bytes);
        }
        facts.states.extend(pool.is_closed().then_some("closed"));
        facts.states.extend(pool.is_asleep().then_some("asleep"));
        Ok(Some(facts))
    }

    fn made(&self) -> Result<&MadePool> {
        let unmade =
            || Error::invalid_value("this MemPool was not made: call MemPool.__init__ first, as super().__init__()");
        self.made.get().ok_or_else(unmade)
    }

    fn pool(&self) -> Result<&MemPool> {
        Ok(&self.made()?.pool)
    }

    /// Returns the pool; none of the parent's in a forked child.
    fn own_pool(&self) -> Result<&MemPool> {
        process::refuse_forked()?;
        self.pool()
    }

    pub(crate) fn pool_token(&self) -> Result<PoolToken> {
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
        device: Option<Device>,
        segments: bool,
        is_user_created: bool,
        reserve: Whole<Reserve>,
        sleeps_for_others: bool,
        wakes_on_use: bool,
    ) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        let device = device::or_current(py, device)?;
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

    #[setter]
    fn set_limit(&self, limit: Option<Whole<Limit>>) -> PyResult<()> {
        self.own_pool()?.set_limit(limit.map(|limit| limit.0));
        Ok(())
    }

    #[doc = docstring!("MemPool.allocator")]
    #[getter]
    fn allocator(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        process::refuse_forked()?;
        Ok(self.made()?.allocator.as_ref().map(|allocator| allocator.clone_ref(py)))
    }

    #[doc = docstring!("MemPool.sleep")]
    #[pyo3(signature = (backup = Backup::Host), text_signature = "($self, backup='host')")]
    fn sleep(&self, py: Python<'_>, backup: Backup) -> PyResult<u64> {
        let pool = self.pool()?;
        device::detached_for(py, Purpose::Allocation, || pool.sleep(backup))
    }

    #[doc = docstring!("MemPool.on_segment")]
    fn on_segment(&self, callback: &Bound<'_, PyAny>) -> PyResult<PySegmentCallback> {
        let pool = self.pool()?;
        let name = callable_name(callback, "on_segment takes a callable(event)")?;
        let (callable, called) = (self.kept.keep(callback), name.clone());
        let call = move |event: &SegmentEvent| {
            callable.call_unasked((PySegmentEvent::from(event),), |raised| {
                let pool = event.pool;
                warn!(target: MEMORY, "pool {pool}: {called}, a callback of on_segment, raised {raised} for {event:?}");
            });
        };
        let guard = callback.py().detach(|| pool.on_segment(call))?;
        Ok(PySegmentCallback::new(name, guard))
    }

    #[doc = docstring!("MemPool.snapshot")]
    #[pyo3(signature = (include_traces = true))]
    fn snapshot<'py>(&self, py: Python<'py>, include_traces: bool) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let _ = include_traces;
        let pool = self.pool()?;
        let found = py.detach(|| pool.snapshot())?;
        list_of_segments(&mut Frames::new(py), &found)
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
        let stream = stream::resolve(py, stream, Some(pool.device()))?;
        let token = pool.token();
        wake_for_use(py, &token)?;
        let _scope = token.enter_scope(Followers::Thread)?;
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
        Ok(PyMemoryRange::new(py.detach(|| pool.reserve_range(nbytes.0, page_bytes.0))?))
    }

    #[doc = docstring!("MemPool.__enter__")]
    fn __enter__(slf: &Bound<'_, Self>) -> PyResult<Py<Self>> {
        process::refuse_forked()?;
        let this = slf.get();
        this.blocks.enter(slf.py(), &this.pool_token()?, Followers::Thread)?;
        Ok(slf.clone().unbind())
    }

    #[doc = docstring!("MemPool.__exit__")]
    fn __exit__(&self, py: Python<'_>, _kind: Ignored, _value: Ignored, _traceback: Ignored) -> PyResult<bool> {
        self.blocks.leave(py, "a MemPool's block")
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
    fn capture(slf: &Bound<'_, Self>, stream: Stream) -> Result<PyCapture> {
        let (pool, token) = (slf.clone().unbind(), slf.get().pool_token()?);
        Ok(PyCapture { pool, token, stream: stream.kept(), state: Mutex::new(None) })
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

members! { PyMemPool = "MemPool" of this, py;
    get id: Result<PoolId> = Ok(this.pool()?.id());
    get device: Result<Device> = Ok(this.pool()?.device());
    get use_on_oom: Result<bool> = Ok(this.pool()?.use_on_oom());
    get no_split: Result<bool> = Ok(this.pool()?.no_split());
    get sleeps_for_others: Result<bool> = Ok(this.pool()?.sleeps_for_others());
    get wakes_on_use: Result<bool> = Ok(this.pool()?.wakes_on_use());
    get reserve: Result<u64> = Ok(this.pool()?.reserve());
    get limit: Result<Option<u64>> = Ok(this.pool()?.limit());
    get is_asleep: Result<bool> = Ok(this.own_pool()?.is_asleep());

    fn use_count() -> Result<u32> = Ok(this.own_pool()?.use_count());
    fn stats() -> PyResult<PyPoolStats> = Ok(py.detach(|| this.pool()?.stats())?.into());
    fn reset_peak_stats() -> Result<()> = py.detach(|| this.pool()?.reset_peak_stats());
    fn token() -> Result<PyPoolToken> = Ok(PyPoolToken(this.own_pool()?.token()));
    fn trim() -> PyResult<u64> = device::detached_for(py, Purpose::Free, || this.pool()?.trim());
    fn close() -> PyResult<u64> = device::detached_for(py, Purpose::Free, || this.pool()?.close());
    fn wake() -> PyResult<u64> = device::detached_for(py, Purpose::Allocation, || this.pool()?.wake());
}

functions! { py;
    fn graph_pool_handle(is_user_created: bool = true) -> Result<PoolId> =
        process::refuse_forked().map(|()| memory::graph_pool_handle(is_user_created));
    fn begin_allocate_to_pool(device: Device, pool_id: PoolId) -> Result<()> =
        memory::begin_allocate_to_pool(device, pool_id);
    fn end_allocate_to_pool(device: Device, pool_id: PoolId) -> Result<()> =
        memory::end_allocate_to_pool(device, pool_id);
    fn release_pool(device: Device, pool_id: PoolId) -> Result<()> = py.detach(|| memory::release_pool(device, pool_id));
    fn pool_use_count(device: Device, pool_id: PoolId) -> Result<Option<u32>> = memory::pool_use_count(device, pool_id);
}

// The memory of a graph, for the `with` block in which it is captured.
#[doc = docstring!("Capture")]
#[pyclass(name = "Capture", module = "gpupool.typing", frozen, weakref)]
pub(crate) struct PyCapture {
    /// Kept as long as it may be entered.
    pool: Py<PyMemPool>,
    token: PoolToken,
    stream: Stream,
    state: Mutex<Option<(ThreadNumber, EnteredCapture, Py<PyGraphMemory>)>>,
}

#[doc = docstring!("GraphMemory")]
#[pyclass(name = "GraphMemory", module = "gpupool.typing", frozen, weakref)]
pub(crate) struct PyGraphMemory {
    pool_id: PoolId,
    device: Device,
    /// From the end of the block until the reset.
    memory: UntilEnd<GraphMemory>,
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
        let (pool_id, device) = (self.token.id(), self.token.device());
        let memory = Py::new(py, PyGraphMemory { pool_id, device, memory: UntilEnd::new(None) })?;
        // It waits for calls for the whole device, and they for work that may need Python.
        let entered = py.detach(|| EnteredCapture::new(&self.token, &self.stream))?;
        let entered = (ThisThread::get().number(), entered, memory.clone_ref(py));
        let mut state = lock(&self.state);
        let refused = if state.is_none() { state.replace(entered) } else { Some(entered) };
        drop(state);
        if refused.is_none() { Ok(memory) } else { Err(wrong().into()) }
    }

    #[doc = docstring!("Capture.__exit__")]
    fn __exit__(&self, kind: &Bound<'_, PyAny>, _value: Ignored, _traceback: Ignored) -> PyResult<bool> {
        if process::is_forked() {
            return Ok(false);
        }
        let left = lock(&self.state).take_if(|(thread, _, _)| *thread == ThisThread::get().number());
        let wrong = "this capture was left on a thread that did not enter it; enter and leave it on one thread";
        let (_, entered, place) = left.ok_or_else(|| Error::invalid_value(wrong))?;
        let memory = entered.leave()?;
        if kind.is_none() {
            place.get().memory.begin(memory);
        } else {
            // The capture failed, so there will be no graph.
            kind.py().detach(|| drop(memory));
        }
        Ok(false)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.pool)
    }

    fn __repr__(&self) -> String {
        let (pool_id, stream) = (self.token.id(), self.stream.raw().address());
        let device = device::shown(self.stream.device().ordinal());
        format!("gpupool.typing.Capture(pool_id={pool_id}, stream={stream:#x}, device={device})")
    }
}

#[pymethods]
impl PyGraphMemory {
    fn __repr__(&self) -> String {
        let state = self.memory.told("without memory: its capture has not ended, or it was reset");
        let (pool_id, device) = (self.pool_id, device::shown(self.device.ordinal()));
        format!("gpupool.typing.GraphMemory(pool_id={pool_id}, device={device}{state})")
    }
}

members! { PyGraphMemory = "GraphMemory" of this, py;
    get pool_id: PoolId = this.pool_id;

    fn reset() -> PyResult<()> = this.memory.end_detached(py);
}
